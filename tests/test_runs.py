"""Runs: what is kept, what is refused, and what a killed run comes back to."""

import io
import json
import math
import os
import random
import re
import resource
import signal
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensorboardX.proto.event_pb2 import Event, SessionLog
from torch import nn
from worlds import Fenced, left_alone, moody

from literate_rl.data.episodes import Mean
from literate_rl.learners.ppg_learner import make_phasic_policy
from literate_rl.nets.parts import ActorCritic, CategoricalActions
from literate_rl.nets.policies import Policy, make_policy
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import (
    FORMAT,
    Bar,
    Run,
    beside,
    check_agreed,
    fit,
    load,
    load_checkpoint,
    record_video,
    save_checkpoint,
    show,
    stored_runs,
    video_writer,
)

# --- Small things to run --------------------------------------------------------------

TWO = spaces.Discrete(2)


def vectors(size):
    return spaces.Box(-1, 1, (size,))


def small_policy(obs_size=2, start=0):
    """Return a policy with two actions, for vectors of some numbers."""
    return make_policy(vectors(obs_size), spaces.Discrete(2, start=start), hidden=4)


class Walker:
    """The smallest learner: each iteration moves the weights at random.

    Args:
        at: In which iteration something happens, before its work is done.
        event: What happens.
        total_steps: Eight for each iteration.
        policy: Another policy than the usual one.
    """

    interval = 3

    def __init__(self, at=0, event=None, total_steps=80, policy=None):
        torch.manual_seed(0)
        self.policy = policy or small_policy()
        self.config = SimpleNamespace(total_steps=total_steps)
        self.generator = torch.Generator().manual_seed(1)
        self.at, self.event, self.step = at, event, 0

    @property
    def checkpoint_due(self):
        return self.step // 8 % self.interval == 0

    @torch.no_grad()
    def iterate(self):
        self.step += 8
        if self.step == 8 * self.at:
            self.event()
        for weight in self.policy.parameters():
            weight += torch.randn(weight.shape, generator=self.generator)
        first = next(self.policy.parameters())[0, 0].item()
        return {"charts/episodic_return": first, "losses/approx_kl": math.nan}

    def state_dict(self):
        return {"step": self.step, "generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.step = state["step"]
        self.generator.set_state(state["generator"])


def die():
    raise RuntimeError


def interrupt():
    signal.raise_signal(signal.SIGINT)


def train(directory, learner, settings=None, resume=False):
    """Train in a directory; return the run."""
    with Run(directory, settings, resume) as run:
        run.restore(learner)
        fit(learner, run, progress=False)
    return run


def killed(directory, learner=None, settings=None):
    """Leave a run as ``kill -9`` does, with more rows than its checkpoint knows of."""
    with pytest.raises(RuntimeError):
        train(directory, learner or Walker(6, die), settings)
    return directory


def table(run):
    """Return the rows of a table, the header first, without the column of speeds."""
    return [line.split(",")[:-1] for line in run.metrics.read_text().splitlines()]


def steps(run):
    return [int(row[0]) for row in table(run)[1:]]


def snapshot(directory):
    """Return the bytes of all files below a directory."""
    return {p: p.read_bytes() for p in directory.rglob("*") if p.is_file()}


@contextmanager
def refused(directory, error, words):
    """Expect a refusal that touches nothing."""
    before = snapshot(directory)
    with pytest.raises(error, match=words) as refusal:
        yield refusal
    assert snapshot(directory) == before


def assert_same_end(directory, make=Walker):
    """Let a run go on: it ends as one that was never stopped."""
    whole, resumed = make(), make()
    run = train(directory, resumed, resume=True)
    assert table(run) == table(train(directory.with_name("whole"), whole))
    for x, y in zip(
        resumed.policy.parameters(), whole.policy.parameters(), strict=True
    ):
        assert torch.equal(x, y)
    assert torch.equal(resumed.generator.get_state(), whole.generator.get_state())


# --- The loop -------------------------------------------------------------------------


def test_fit_runs_to_the_end_and_tells_what_happened(tmp_path, capsys):
    learner = Walker(total_steps=30)  # the last iteration goes past it
    with Run(tmp_path) as run:
        history = fit(learner, run, progress=False)
    assert capsys.readouterr() == ("", ""), "nobody has interrupted it"
    assert [row["step"] for row in history] == steps(run) == [8, 16, 24, 32]
    assert all(row["charts/SPS"] > 0 for row in history)
    assert load_checkpoint(run.checkpoint)["step"] == 32
    assert fit(learner, progress=False) == [], "it is done"


def test_progress_is_shown_on_request(capsys):
    fit(Walker())
    out, err = capsys.readouterr()
    assert out == ""
    assert all(words in err for words in ("80/80", "return=", " steps/s"))
    assert err.split("\r")[-1].count("steps/s") == 1, "one speed"
    assert "approx_kl" not in err  # NaN says nothing


class Patient(Walker):
    """A row of its log is about three iterations; checkpoints come in between."""

    interval = 4
    # The return of an iteration, how many it is the mean of, and another metric.
    told = [(4.0, 1), (math.nan, 0), (1.0, 2), (math.nan, 0)] + 6 * [(7.0, 3)]
    other = [math.nan, 2.0, 4.0, 1.0, math.nan, math.nan, *range(4)]

    @property
    def log_due(self):
        return self.step // 8 % 3 == 0

    def iterate(self):
        super().iterate()
        number = self.step // 8 - 1
        charts = {"charts/episodic_return": Mean(*self.told[number])}
        return charts | {"charts/other": self.other[number]}


def test_a_row_is_about_all_iterations_since_the_row_before(tmp_path):
    found = table(train(tmp_path, Patient()))[1:]
    # The last row is about what is left.
    assert [" ".join(row) for row in found] == ["24 2 3", "48 7 1", "72 7 1", "80 7 3"]


@pytest.mark.parametrize("number", range(1, 10))
def test_a_checkpoint_between_two_rows_keeps_what_was_gathered(number, tmp_path):
    directory, end = tmp_path / "run", 8 * number
    killed(directory, Patient(number + 1, die))
    # Whoever asks why it died finds all in the table that no checkpoint has gathered.
    wanted = {*range(24, end + 1, 24), *([end] if number % 4 else [])}
    assert steps(Run(directory, resume=True)) == sorted(wanted)
    # Nothing is lost and nothing is counted twice.
    assert_same_end(directory, Patient)


def test_first_interrupt_ends_after_the_iteration_and_the_run_goes_on(
    ctrl_c, tmp_path, capsys
):
    before = signal.getsignal(signal.SIGINT)
    run = train(tmp_path / "run", Walker(4, interrupt))
    assert capsys.readouterr().out == "interrupted at step 32 of 80\n"
    assert (Run(run.directory, resume=True).saved, steps(run)) == (32, [8, 16, 24, 32])
    assert signal.getsignal(signal.SIGINT) is before
    assert_same_end(run.directory)


def test_second_interrupt_ends_at_once(ctrl_c, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, Walker(5, lambda: (interrupt(), interrupt())))
    run = Run(tmp_path, resume=True)
    assert (run.saved, steps(run)) == (24, [8, 16, 24, 32])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_bar_waits_for_no_killed_process():
    child = os.fork()
    if child == 0:
        Bar.get_lock().acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert Bar.get_lock().acquire(timeout=1)
    Bar.get_lock().release()


# --- The directory --------------------------------------------------------------------


def scalars(directory):
    """Return step and value of each number, as TensorBoard would show them."""
    shown = {}
    # In the order in which the files were begun.
    paths = directory.glob("events.out.tfevents.*")
    for path in sorted(paths, key=lambda path: int(path.name.rsplit(".", 1)[1])):
        data = io.BytesIO(path.read_bytes())
        # A record is its length, a checksum, the event and another checksum.
        while header := data.read(12):
            event = Event.FromString(data.read(struct.unpack("<Q4x", header)[0]))
            data.read(4)
            if event.session_log.status == SessionLog.START:
                shown = {key: x for key, x in shown.items() if key[1] < event.step}
            for value in event.summary.value:
                shown[value.tag, event.step] = value.simple_value
    return shown


def test_a_run_writes_down_its_settings(tmp_path):
    settings = {"env": "CartPole-v1", "config": {"seed": 3, "anneal": True}}
    run = train(tmp_path / "a" / "run", Walker(), settings)
    assert json.loads((tmp_path / "a/run/settings.json").read_text()) == settings
    # And a resumed one has its own.
    again = Run(run.directory, {"seed": 8}, resume=True)
    assert again.settings == run.settings == settings


def test_a_run_that_cannot_begin_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        Run(tmp_path / "run", {"path": Path()})
    with pytest.raises(FileNotFoundError):
        Run(tmp_path / "run", resume=True)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "name", ["checkpoint.pt", "checkpoint.previous.pt", "metrics.csv"]
)
def test_nothing_that_is_left_of_a_run_is_overwritten(tmp_path, name):
    (tmp_path / name).write_bytes(b"what is left")
    with refused(tmp_path, FileExistsError, "holds a run: resume it or choose"):
        Run(tmp_path)


def test_metrics_are_a_table_with_a_header(tmp_path):
    with Run(tmp_path) as run:
        run.log(8, {"a": 0.5, "b": math.nan})
        run.log(123_456_789, {"b": -1e-9, "a": math.inf})
        run.log(123_456_790, {"c": 3.0})
    rows = "8,0.5,,\n123456789,inf,-1e-09,\n123456790,,,3\n"
    assert run.metrics.read_text() == "step,a,b,c\n" + rows


def test_columns_are_added_at_once_or_not_at_all(tmp_path, monkeypatch):
    with Run(tmp_path) as run:
        run.log(8, {"a": 1.0})
        monkeypatch.setattr(os, "replace", lambda *_: die())
        with refused(tmp_path, RuntimeError, "^$"):
            run.log(16, {"a": 1.0, "new": 2.0})


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("step,a\n8,1\n24,3\n32,4\n", "step,a\n8,1\n24,3\n"),
        ("step,a\n8,1\n32,4,4\n16\n2", "step,a\n8,1\n"),
        ("step,", ""),
    ],
)
def test_rows_behind_the_checkpoint_and_half_lines_go(tmp_path, text, kept):
    # One of the first versions, which did not count rows.
    save_checkpoint(tmp_path / "checkpoint.pt", {"step": 24})
    (tmp_path / "settings.json").write_text("{}")
    (tmp_path / "metrics.csv").write_text(text)
    with Run(tmp_path, resume=True) as run:
        run.begin()
        assert run.metrics.read_text() == kept
        run.log(32, {"a": 5.0})
    assert run.metrics.read_text() == (kept or "step,a\n") + "32,5\n"


def test_tensorboard_gets_the_same_numbers_and_forgets_what_is_written_anew(tmp_path):
    killed(tmp_path)
    # Both attempts fall into one second, and still both have their file.
    rows = table(train(tmp_path, Walker(), resume=True))[1:]
    found, name = scalars(tmp_path), "charts/episodic_return"
    wanted = {(name, int(row[0])): float(row[1]) for row in rows}
    # The other metric is NaN, which is left out.
    assert {x for x, _ in found} == {name, "charts/SPS"}
    assert {k: x for k, x in found.items() if k[0] == name} == pytest.approx(wanted)
    assert len(found) == 2 * len(rows)


@contextmanager
def files_of_at_most(size):
    """Let no process write a longer file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("at", range(1, 8))
def test_a_killed_run_comes_to_the_same_end(tmp_path, at):
    directory = killed(tmp_path / "killed", Walker(at, die))
    assert Run(directory, resume=True).saved == (at - 1) // 3 * 24
    assert_same_end(directory)


# --- Checkpoints ----------------------------------------------------------------------


STATE = {
    "step": 3,
    "nested": {"list": [1.5, "two", None, True], "tuple": (1, 2)},
    "tensor": torch.arange(6.0).view(2, 3),
    "numpy generator": np.random.default_rng(0).bit_generator.state,
    "torch generator": torch.Generator().get_state(),
}


def same_content(one, other):
    """Compare nested plain values and tensors to the last bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            same_content(one[key], other[key]) for key in one
        )
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return one == other


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    save_checkpoint(path := tmp_path / "c.pt", STATE)
    assert [*tmp_path.iterdir()] == [path]
    assert same_content(STATE, load_checkpoint(path))
    with path.open("r+b") as file:  # an older version ended it with a digest
        file.seek(-2, io.SEEK_END)
        file.write((32).to_bytes(2, "little") + bytes(range(32)))
    assert same_content(STATE, load_checkpoint(path))


@pytest.mark.parametrize("moment", ["fsync", "replace", 500])
def test_a_failed_save_costs_neither_the_checkpoint_nor_the_one_before(
    tmp_path, monkeypatch, moment
):
    """It fails in a call, or as a disk that is full after so many bytes.

    Torch reports a failed write in words of its own.
    """
    path, full = tmp_path / "c.pt", isinstance(moment, int)
    for step in (1, 2):
        save_checkpoint(path, {"step": step})

    def fail(*_):
        raise OSError("too large")

    disk = files_of_at_most(moment) if full else nullcontext()
    with monkeypatch.context() as patch, disk:
        if not full:
            patch.setattr(os, moment, fail)
        with pytest.raises(OSError, match="too large"):
            save_checkpoint(path, {"step": 3, "zeros": torch.zeros(1000)})
    assert load_checkpoint(path) == {"step": 2}
    assert load_checkpoint(tmp_path / "c.previous.pt") == {"step": 1}
    assert len([*tmp_path.iterdir()]) == 2


PEAK = """
import resource, sys
from pathlib import Path
import torch
from literate_rl.runs.runs import load_checkpoint, save_checkpoint

def peak():
    kilobytes = 1024 if sys.platform == "linux" else 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilobytes

path = Path(sys.argv[1])
# What the first calls load into memory is not meant.
save_checkpoint(path.with_name("small.pt"), {"step": 1})
load_checkpoint(path.with_name("small.pt"))
size = 100 * 2**20
state = {"buffer": torch.ones(size, dtype=torch.uint8), "step": 2}
before = peak()
save_checkpoint(path, state)
del state
state = load_checkpoint(path)
assert state["buffer"].numel() == size and state["buffer"].min() == 1
print((peak() - before) / size)
"""


def test_a_large_state_is_held_in_memory_once(tmp_path):
    """What is written is not copied first, and what is read takes its place."""
    command = [sys.executable, "-c", PEAK, str(tmp_path / "c.pt")]
    grown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(grown.stdout) < 0.2


@pytest.mark.parametrize("unsafe", [lambda: 1, io.StringIO(), np.zeros(3)])
def test_what_could_not_be_loaded_is_not_written(tmp_path, unsafe):
    path = tmp_path / "c.pt"
    save_checkpoint(path, {"step": 1})
    with refused(tmp_path, TypeError, "state must hold tensors and plain values"):
        save_checkpoint(path, {"nested": [unsafe]})


class Present:
    """A pickle that calls a function when it is loaded."""

    def __reduce__(self):
        return os.mkdir, ("opened",)


@pytest.mark.erratum("pickle-runs-code")
def test_loading_a_foreign_pickle_runs_its_code_and_ours_refuses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"format": FORMAT, "policy": Present()}, "gift.pt")
    for load_file in (load_checkpoint, load):
        with pytest.raises(ValueError, match="no checkpoint: Unpickling") as refusal:
            load_file("gift.pt")
        assert "weights_only" not in str(refusal.value), "no advice to load it anyhow"
    assert not Path("opened").exists()
    torch.load("gift.pt", weights_only=False)
    assert Path("opened").exists()


@pytest.mark.parametrize("thing", [nn.Linear(2, 2), [1, 2], {"format": "other"}])
def test_a_file_that_is_none_of_ours_is_refused_by_name(tmp_path, thing):
    torch.save(thing, path := tmp_path / "c.pt")
    with pytest.raises(ValueError, match=r"^[^\n]*c\.pt is (damaged|not a li)[^\n]*$"):
        load(path)


@pytest.mark.filterwarnings("ignore")
def test_no_damage_changes_a_number_unnoticed(tmp_path):
    """One bit flips, or the end is missing; some bits are those that nobody reads."""
    path, rng, refused, silent = tmp_path / "c.pt", random.Random(0), 0, 0
    state = {**STATE, "weights": make_policy(vectors(4), TWO).state_dict()}
    save_checkpoint(path, state)
    whole = path.read_bytes()
    for end in [len(whole)] * 120 + rng.sample(range(len(whole)), 20):
        damaged = bytearray(whole[:end])
        if end == len(whole):
            damaged[rng.randrange(end)] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            found = load_checkpoint(path)
        except ValueError:
            refused += 1
        else:
            assert end == len(whole)
            assert same_content(state, found)
        # Torch itself reads many of these files, and gives back something else.
        with suppress(Exception):
            unchecked = torch.load(path, weights_only=True)
            unchecked.pop("format")
            silent += not same_content(state, unchecked)
    assert refused > 80
    assert silent > 20


@pytest.fixture
def synced(monkeypatch):
    """Keep the inodes of what is written through to the disk."""
    kept, fsync = [], os.fsync

    def sync(number):
        kept.append(os.fstat(number).st_ino)
        fsync(number)

    monkeypatch.setattr(os, "fsync", sync)
    return kept


@pytest.mark.parametrize("links", [True, False])
def test_the_checkpoint_before_stays_and_is_named_when_the_last_is_damaged(
    tmp_path, monkeypatch, synced, links
):
    path, previous = tmp_path / "c.pt", tmp_path / "c.previous.pt"
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: os.stat("/not/on/this/file/system"))
    for step in (1, 2, 3):
        save_checkpoint(path, {"step": step})
    assert load_checkpoint(previous) == {"step": 2}
    assert previous.stat().st_ino in synced[-4:]
    path.write_bytes(path.read_bytes()[:-1])
    way_out = f"is damaged .*; to go on from step 2, rename {previous} to c.pt$"
    with pytest.raises(ValueError, match=way_out):
        load_checkpoint(path)
    previous.write_bytes(b"damaged too")
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"checkpoint .*c\.pt$"):
        load_checkpoint(path)


def test_rows_are_on_the_disk_when_a_checkpoint_is(tmp_path, monkeypatch, synced):
    """And so are the file and its new name, in this order."""
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *a: (synced.append("name"), replace(*a)))
    with Run(tmp_path) as run:
        run.log(8, {"a": 1.0})
        synced.clear()
        run.save(Walker())
    files = [x.stat().st_ino for x in (run.metrics, run.checkpoint, tmp_path)]
    files.insert(2, "name")
    assert [x for x in synced if x in files] == files


def test_many_writers_of_one_file_never_leave_half_of_it(tmp_path):
    """Without a lock the last one wins, and each content is whole."""
    path = tmp_path / "c.pt"

    def write(number):
        for _ in range(30):
            save_checkpoint(path, {"step": number, "zeros": torch.zeros(5000)})
            load_checkpoint(path)
            load_checkpoint(tmp_path / "c.previous.pt")

    for _ in "ab":
        save_checkpoint(path, {"step": -1})
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))  # it raises what they raise
    assert len([*tmp_path.iterdir()]) == 2


def test_a_missing_file_is_missing(tmp_path):
    for call in (lambda: load_checkpoint(tmp_path / "c.pt"), lambda: load(tmp_path)):
        with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
            call()


# --- A directory that is refused, or in use -------------------------------------------


def test_resuming_touches_nothing_before_there_is_something_to_write(tmp_path):
    killed(tmp_path)
    half, ours = beside(tmp_path / "checkpoint.pt"), tmp_path / "notes.new"
    for path in (half, ours):
        path.write_text("half")
    before = snapshot(tmp_path)
    with Run(tmp_path, resume=True) as run:
        run.restore(Walker())
        assert snapshot(tmp_path) == before
        run.begin()
        after = snapshot(tmp_path)
        run.begin()
        assert snapshot(tmp_path) == after
    assert steps(run) == [8, 16, 24]
    # What a killed process has half written is swept up.
    assert half not in after
    assert ours in after


class Other(Walker):
    """A walker with other things to remember."""

    def load_state_dict(self, state):
        self.step = state["iterations"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Walker(policy=small_policy(start=1)),  # its weights have one shape
        lambda: Walker(policy=make_phasic_policy(vectors(2), TWO)),
        Other,
    ],
)
def test_a_checkpoint_of_another_learner_is_refused_and_nothing_lost(tmp_path, make):
    killed(tmp_path)
    words = r"checkpoint\.pt does not fit.*(its policy is|KeyError: 'iterations')"
    with refused(tmp_path, ValueError, words), Run(tmp_path, resume=True) as run:
        run.restore(make())


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("settings.json", '{"env": ', "is no JSON"),
        ("metrics.csv", "", "3 rows up to step 24, got 0"),
        ("metrics.csv", "a\nx,1\n", "got 0"),
        ("metrics.csv", "step,a\n8,1\n16,2\n24,", "got 2"),
        ("metrics.csv", "step,a\n8,1\n24,3\n32,4\n", "got 2"),
    ],
)
def test_files_that_do_not_belong_together_are_refused_and_nothing_lost(
    tmp_path, name, content, words
):
    (killed(tmp_path, settings={"env": "A-v0"}) / name).write_text(content)
    with refused(tmp_path, ValueError, words):
        Run(tmp_path, resume=True)


def test_a_damaged_run_goes_on_from_the_checkpoint_before_to_the_same_end(tmp_path):
    directory = killed(tmp_path / "run")
    path = directory / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:-50])
    with refused(tmp_path, ValueError, "to go on from step 0, rename") as caught:
        Run(directory, resume=True)
    old, new = re.search("rename (.*) to (.*)", str(caught.value)).groups()
    Path(old).replace(directory / new)
    assert Run(directory, resume=True).saved == 0
    assert_same_end(directory)


@pytest.mark.parametrize("closed", [False, True])
def test_a_run_that_is_closed_or_in_other_hands_writes_nothing(tmp_path, closed):
    killed(tmp_path)
    with Run(tmp_path, resume=True) as one, Run(tmp_path, resume=True) as two:
        two.close() if closed else one.begin()
        expected = ValueError if closed else BlockingIOError
        for write in (
            two.begin,
            lambda: two.log(32, {}),
            lambda: two.save(Walker()),
            lambda: fit(Walker(), two, progress=False),
        ):
            with refused(tmp_path, expected, r"is closed: open|in use by"):
                write()
        assert load(tmp_path).recipe == small_policy().recipe, "who reads may do so"
    with Run(tmp_path, resume=True) as run:
        run.begin()


def test_a_run_that_went_on_meanwhile_is_read_again(tmp_path):
    killed(tmp_path)
    with Run(tmp_path, resume=True) as late:
        train(tmp_path, Walker(), resume=True)
        with refused(tmp_path, ValueError, "has gone on since it was read"):
            late.begin()


def test_the_lock_goes_with_its_process(tmp_path):
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with Run(tmp_path):
                os.write(theirs, b"held")
                signal.pause()
        finally:
            os._exit(1)
    os.close(theirs)
    try:
        assert os.read(ours, 4) == b"held"
        with pytest.raises(BlockingIOError, match="in use by another process"):
            Run(tmp_path)  # a new run of the same name
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    Run(tmp_path).close()


@pytest.mark.parametrize(
    ("stored", "named", "message"),
    [
        ("A-v0", [], None),
        ("m:A-v0", ["m:A-v0"], None),
        ("m:A-v0", [], "whose code runs: hand over again --env m:A-v0$"),
        ("m:A-v0", ["n:A-v0"], "the run has --env m:A-v0, not n:A-v0$"),
    ],
)
def test_what_runs_code_must_be_named(stored, named, message):
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        check_agreed({"env": [stored]}, {"env": named}, "--")


# --- Policies from a file -------------------------------------------------------------


@pytest.mark.parametrize("name", ["Missing", "evaluate", "ppo.make_policy", 3])
def test_only_builders_of_policies_are_called(tmp_path, name):
    """Neither another public function nor one that is not public."""
    state = {"recipe": (name, small_policy().recipe[1]), "weights": {}}
    save_checkpoint(tmp_path / "c.pt", {"policy": state})
    with pytest.raises(ValueError, match="unknown here"):
        load(tmp_path / "c.pt")


def built(**changes):
    """Return what a file holds of a policy, with something wrong in its recipe."""
    policy = small_policy()
    recipe = ("make_policy", {**policy.recipe[1], **changes})
    return {"recipe": recipe, "weights": policy.state_dict()}


@pytest.mark.parametrize(
    "policy",
    [
        *(None, built() | {"weights": {}}, built(hidden=5), built(models=3)),
    ],
)
def test_a_policy_that_cannot_be_built_is_refused(tmp_path, policy):
    save_checkpoint(tmp_path / "c.pt", {"policy": policy})
    words = r"^[^\n]*c\.pt holds no policy that can be built[^\n]*$"
    with pytest.raises(ValueError, match=words):
        load(tmp_path / "c.pt")


# --- Video ----------------------------------------------------------------------------


def test_a_video_has_a_frame_for_each_step_and_needs_no_screen(tmp_path, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    path, env = tmp_path / "video.mp4", "CartPole-v1"
    policy = Policy(ActorCritic(moody(4, 2), moody(4, 1)), CategoricalActions(2))
    with left_alone(policy):  # its modes and moments too
        total = record_video(policy, env, path, seed=3)
        assert total == evaluate(policy, env, 1, seed=3)[0]
    assert total == imageio_ffmpeg.count_frames_and_secs(str(path))[0]
    facts = next(imageio_ffmpeg.read_frames(str(path)))
    assert (facts["size"], facts["fps"], facts["codec"]) == ((600, 400), 50, "h264")
    assert [*tmp_path.iterdir()] == [path]


def write_video(path, seed):
    """Write a film of noise, which is large."""
    rng = np.random.default_rng(seed)
    with video_writer(path, 30) as write:
        for _ in range(40):
            write(rng.integers(0, 256, (64, 64, 3), np.uint8))


def test_a_torn_film_replaces_no_whole_one(tmp_path):
    path = tmp_path / "video.mp4"
    write_video(path, 0)
    words = r"video\.mp4 could not be written; is the disk"
    with files_of_at_most(path.stat().st_size // 2), refused(tmp_path, OSError, words):
        write_video(path, 1)


def test_show_plays_one_episode_in_a_window():
    modes, policy, env = [], make_policy(vectors(4), TWO), "CartPole-v1"
    make = lambda render_mode: modes.append(render_mode) or gym.make(env)  # noqa: E731
    assert show(policy, make, 3) == evaluate(policy, env, 1, 3)[0]
    assert modes == ["human"]
    with pytest.raises(ValueError, match="has no render mode 'human'"):
        show(policy, Fenced)


# --- Stored runs ----------------------------------------------------------------------

STORED = {
    "x.csv": """# command: none
variant,seed,return,area,cpu_seconds,unseen
as it is,1,10,5,1,0.5
other,1,30,15,1,0.25
as it is,2,20,nan,2,0.75
""",
    "x_curves.csv": """# command: none
variant,seed,step,return
as it is,1,100,1
as it is,1,200,nan
as it is,1,400,7
other,1,100,9
other,1,200,8
other,1,400,nan
as it is,2,100,nan
as it is,2,200,4
as it is,2,400,5
""",
}


def test_stored_runs_are_grouped_by_variant(tmp_path, monkeypatch):
    place = tmp_path / "benchmarks" / "results" / "learning"
    place.mkdir(parents=True)
    for name, text in STORED.items():
        (place / name).write_text(text)
    monkeypatch.chdir(place.parent)
    runs = stored_runs("x")
    assert list(runs) == ["as it is", "other"]
    first, other = runs.values()
    assert first.steps.tolist() == [100, 200, 400]
    # The gap at 200 is filled by the line from 1 at 100 to 7 at 400, and a gap at an
    # end by its neighbour.
    assert first.curves.tolist() == [[1, 3, 7], [4, 4, 5]]
    assert other.curves.tolist() == [[9, 8, 8]]
    numbers = [first.final, first.area, first.cpu_seconds, first.judged["unseen"]]
    np.testing.assert_equal(numbers, [[10, 20], [5, np.nan], [1, 2], [0.5, 0.75]])
    monkeypatch.chdir("/")
    with pytest.raises(FileNotFoundError, match=r"/x\.csv"):
        stored_runs("x")


# --- Mistakes of published code -------------------------------------------------------


@pytest.mark.erratum("checkpoint-in-place")
def test_a_crash_while_writing_in_place_leaves_nothing(tmp_path):
    path = tmp_path / "c.pt"
    save_checkpoint(path, {"step": 1})
    path.write_bytes(path.read_bytes()[:500])  # the old checkpoint is gone
    with pytest.raises(ValueError, match="damaged or no checkpoint"):
        load_checkpoint(path)


@pytest.mark.erratum("resume-weights-alone")
@pytest.mark.parametrize("everything", [True, False])
def test_weights_alone_do_not_bring_a_run_back(everything):
    whole, halfway, resumed = Walker(), Walker(total_steps=40), Walker()
    for learner in (whole, halfway):
        fit(learner, progress=False)
    resumed.policy.load_state_dict(halfway.policy.state_dict())
    resumed.step = 40
    if everything:
        resumed.load_state_dict(halfway.state_dict())
    fit(resumed, progress=False)
    states = (x.policy.state_dict() for x in (resumed, whole))
    assert same_content(*states) is everything
