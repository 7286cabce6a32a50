"""Runs: what is kept, what is refused, and what a killed run comes back to."""

import base64
import errno
import io
import json
import math
import os
import pickle
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
import tensorboardX
import torch
from gymnasium import spaces
from processes import Child
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from torch import nn
from worlds import left_alone, moody

import literate_rl
from benchmarks.spaces import Sampled
from literate_rl.data.episodes import Mean, mean_return
from literate_rl.learners.ddpg import make_ddpg_policy
from literate_rl.learners.ppg_learner import make_phasic_policy
from literate_rl.learners.rainbow import make_rainbow_policy
from literate_rl.nets.parts import ActorCritic, CategoricalActions
from literate_rl.nets.policies import Policy, make_policy
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import (
    FORMAT,
    Bar,
    Log,
    Run,
    beside,
    check_agreed,
    fit,
    flat_env,
    load,
    load_checkpoint,
    look_at_env,
    record_video,
    save_checkpoint,
    show,
    stored_runs,
    video_html,
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


# --- Environments ---------------------------------------------------------------------

IMAGE = spaces.Box(0, 255, (4, 3, 2), np.uint8)


@pytest.mark.parametrize(
    "space", [IMAGE, spaces.Box(-1, 1, ()), spaces.Dict(a=IMAGE, b=spaces.Discrete(3))]
)
def test_flat_env_shows_vectors(space):
    env = flat_env(Sampled, seen=space, done=TWO)
    first, _ = env.reset(seed=3)
    plain, _ = Sampled(space, TWO).reset(seed=3)
    assert np.array_equal(first, spaces.flatten(space, plain))
    assert first.shape == env.observation_space.shape == (spaces.flatdim(space),)


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
    assert "KL" not in err  # NaN says nothing


def test_the_return_of_the_last_20_episodes_does_not_vanish(monkeypatch):
    class Sparse(Walker):
        def iterate(self):
            number = self.step // 8
            returns = torch.full((40, 1), math.nan)
            count = (7, 2, 30, 0, 0)[number]
            returns[:count, 0] = torch.arange(count) + 100.0 * number
            return super().iterate() | {"charts/episodic_return": mean_return(returns)}

    seen = []
    place = "literate_rl.runs.runs.Bar.set_postfix"
    monkeypatch.setattr(place, lambda _, x, **__: seen.append(x["return"]))
    history = fit(Sparse(total_steps=40))
    returns = [*range(7), 100, 101, *range(200, 230)]
    means = [np.mean(returns[:n][-20:]) for n in (7, 9, 39, 39, 39)]
    assert seen == [f"{mean:.3g}" for mean in means]
    told = [row["charts/episodic_return"] for row in history]
    np.testing.assert_equal(told, [3, 100.5, 214.5, math.nan, math.nan])


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
    # The speed is that of the whole stretch, not a mean of speeds.
    log = Log(None, 0)
    for taken, seconds in ((10, 1.0), (10, 9.0)):
        log.add(taken, {"charts/SPS": Mean(taken / seconds, seconds)})
    log.end_row()
    log.end_row()  # there is nothing left to tell
    assert [row["charts/SPS"] for row in log.rows] == pytest.approx([2.0])


@pytest.mark.parametrize("number", [3.0, 0.1, 1e300, math.inf, -0.0, 7])
def test_a_row_about_one_iteration_is_what_it_told(number):
    for mean in (number, Mean(number, 3), Mean(number, 0.7)):
        log = Log(None, 0)
        log.add(8, {"a": mean, "b": math.nan})
        log.end_row()
        assert log.rows[0]["a"] == number
        assert math.isnan(log.rows[0]["b"])


@pytest.mark.parametrize("number", range(1, 10))
def test_a_checkpoint_between_two_rows_keeps_what_was_gathered(number, tmp_path):
    directory, end = tmp_path / "run", 8 * number
    killed(directory, Patient(number + 1, die))
    # Whoever asks why it died finds all in the table that no checkpoint has gathered.
    wanted = {*range(24, end + 1, 24), *([end] if number % 4 else [])}
    assert steps(Run(directory, resume=True)) == sorted(wanted)
    # Nothing is lost and nothing is counted twice.
    assert_same_end(directory, Patient)


def fail():
    raise ChildProcessError


@pytest.mark.parametrize("event", [interrupt, fail])
@pytest.mark.parametrize("at", [2, 3, 4])
def test_who_ends_between_two_rows_logs_what_there_is(at, event, ctrl_c, tmp_path):
    fails = event is fail  # actors do, in the iteration behind it
    with pytest.raises(ChildProcessError) if fails else nullcontext():
        train(tmp_path, Patient(at + fails, event))
    run = Run(tmp_path, resume=True)
    assert steps(run) == {2: [16], 3: [24], 4: [24, 32]}[at]
    if event is interrupt:
        assert run.saved == 8 * at
        run = train(tmp_path, Patient(), resume=True)
        assert steps(run) == sorted({8 * at, 24, 48, 72, 80}), (
            "rows stay where they are"
        )
        if at == 2:
            assert table(run)[1:3] == [["16", "4", "2"], ["24", "1", "4"]]


def test_first_interrupt_ends_after_the_iteration_and_the_run_goes_on(
    ctrl_c, tmp_path, capsys
):
    before = signal.getsignal(signal.SIGINT)
    run = train(tmp_path / "run", Walker(4, interrupt))
    assert capsys.readouterr().out == "interrupted at step 32 of 80\n"
    assert steps(run) == [8, 16, 24, 32]
    assert run.saved == 32
    assert signal.getsignal(signal.SIGINT) is before
    assert_same_end(run.directory)


def test_second_interrupt_ends_at_once(ctrl_c, tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, Walker(5, lambda: (interrupt(), interrupt())))
    run = Run(tmp_path, resume=True)
    assert (run.saved, steps(run)) == (24, [8, 16, 24, 32])
    assert signal.getsignal(signal.SIGINT) is before


def test_a_bar_waits_for_no_killed_process_and_starts_no_thread():
    threads = threading.active_count()
    fit(Walker())
    assert threading.active_count() <= threads  # those of other tests may end
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


@pytest.mark.parametrize(
    ("given", "error"),
    [({"settings": {"p": Path()}}, TypeError), ({"resume": True}, FileNotFoundError)],
)
def test_a_run_that_cannot_begin_leaves_nothing(tmp_path, given, error):
    with pytest.raises(error):
        Run(tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "name", ["checkpoint.pt", "checkpoint.previous.pt", "metrics.csv"]
)
def test_nothing_that_is_left_of_a_run_is_overwritten(tmp_path, name):
    (tmp_path / name).write_bytes(b"what is left")
    before = snapshot(tmp_path)
    with pytest.raises(FileExistsError, match="holds a run: resume it or choose"):
        Run(tmp_path)
    assert snapshot(tmp_path) == before


def test_a_run_that_died_at_its_birth_can_be_begun_again(tmp_path):
    for seed in (1, 2):
        Run(tmp_path, {"seed": seed}).close()
    assert json.loads((tmp_path / "settings.json").read_text()) == {"seed": 2}


def test_metrics_are_a_table_with_a_header(tmp_path):
    with Run(tmp_path) as run:
        run.log(8, {"a": 0.5, "b": math.nan})
        run.log(123_456_789, {"b": -1e-9, "a": math.inf})
        run.log(123_456_790, {"c": 3.0})
    rows = "8,0.5,,\n123456789,inf,-1e-09,\n123456790,,,3\n"
    assert run.metrics.read_text() == "step,a,b,c\n" + rows


def test_a_resumed_table_gets_the_columns_that_are_new(tmp_path):
    learner = Walker()
    with Run(tmp_path) as run:
        run.log(8, {"a": 0.5, "b": math.nan})
        learner.iterate()
        run.save(learner)
    with Run(tmp_path, resume=True) as run:
        run.log(24, {"new": 2.0, "a": 1.0})
    assert run.metrics.read_text() == "step,a,b,new\n8,0.5,,\n24,1,,2\n"
    assert Run(tmp_path, resume=True).logged == 1


def test_columns_are_added_at_once_or_not_at_all(tmp_path, monkeypatch):
    whole = train(tmp_path, Walker()).metrics.read_text()
    with Run(tmp_path, resume=True) as run:
        run.begin()
        monkeypatch.setattr(os, "replace", lambda *_: die())
        with pytest.raises(RuntimeError):
            run.log(88, {"charts/episodic_return": 1.0, "new": 2.0})
    assert run.metrics.read_text() == whole


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("step,a\n8,1\n16,2\n24,3\n32,4\n", "step,a\n8,1\n16,2\n24,3\n"),
        ("step,a\n8,1\n16,2\n24,3\n32,", "step,a\n8,1\n16,2\n24,3\n"),
        ("step,a\n8,1\n32,4,4\n16\n2", "step,a\n8,1\n"),
        ("step,a\n123456", "step,a\n"),
        ("step,", ""),
        ("", ""),
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


def test_tensorboard_gets_the_same_numbers(tmp_path, monkeypatch):
    """W&B learns of a run when a writer is made, and others when an event is added."""
    usual = tensorboardX.writer.EventFileWriter
    made, added = [], set()

    class Watched(usual):
        def __init__(self, logdir, *arguments, **options):
            made.append(logdir)
            super().__init__(logdir, *arguments, **options)

        def add_event(self, event):
            super().add_event(event)
            added.update((x.tag, event.step) for x in event.summary.value)

    monkeypatch.setattr(tensorboardX.writer, "EventFileWriter", Watched)
    with Run(tmp_path) as run:
        history = fit(Walker(), run, progress=False)
    found, names = scalars(tmp_path), ("charts/episodic_return", "charts/SPS")
    # The other metric is NaN, which is left out.
    wanted = {(name, row["step"]): row[name] for name in names for row in history}
    assert found == pytest.approx(wanted, rel=1e-6)
    assert made == [str(tmp_path)]
    assert added == found.keys()


def test_tensorboard_forgets_what_came_after_the_checkpoint(tmp_path):
    killed(tmp_path)
    # Both attempts fall into one second, and still both have their file.
    with Run(tmp_path, resume=True) as run:
        run.log(32, {"charts/episodic_return": 7.0})
    found = scalars(tmp_path)
    name = "charts/episodic_return"
    assert [step for tag, step in found if tag == name] == [8, 16, 24, 32]
    assert found[name, 32] == 7.0


def test_events_are_on_the_disk_when_a_checkpoint_is(tmp_path, monkeypatch):
    """A run that is killed loses no event that a resumed one does not write again."""
    write, main = EventsWriter.write_event, threading.current_thread()

    def late(file, event):
        time.sleep(0 if threading.current_thread() is main else 0.1)
        write(file, event)

    monkeypatch.setattr(EventsWriter, "write_event", late)
    with Run(tmp_path) as run:
        run.log(8, {"a": 1.0, "b": 2.0})
        run.save(Walker())
        # Before anything was closed.
        assert scalars(tmp_path) == {("a", 8): 1.0, ("b", 8): 2.0}


@contextmanager
def files_of_at_most(size):
    """Let no process write a longer file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_told_to_the_run(tmp_path):
    """A thread of the writer's could only end without a word."""
    with Run(tmp_path) as run:
        run.log(8, {"a" * 3000: 1.0})
        with files_of_at_most(2000), pytest.raises(OSError, match="too large"):
            run.events.flush()
    assert len(scalars(tmp_path)) == 1


@pytest.mark.parametrize("at", range(1, 11))
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
    state = torch.load(path, weights_only=True)  # it is still a file of torch
    assert state.pop("format") == FORMAT
    assert same_content(STATE, state)
    with path.open("r+b") as file:  # an older version ended it with a digest
        file.seek(-2, io.SEEK_END)
        file.write((32).to_bytes(2, "little") + bytes(range(32)))
    assert same_content(STATE, load_checkpoint(path))


@pytest.mark.parametrize("moment", ["fsync", "replace", 0, 3, 8])
def test_a_failed_save_costs_neither_the_checkpoint_nor_the_one_before(
    tmp_path, monkeypatch, moment
):
    """It fails in a call, or as a disk that is full after so many writes.

    Torch reports a failed write in words of its own.
    """
    path = tmp_path / "c.pt"
    for step in (1, 2):
        save_checkpoint(path, {"step": step})

    def fail(*_):
        raise OSError(errno.ENOSPC, "no space left on device")

    class Full(io.FileIO):
        writes = 0

        def write(self, content):
            self.writes += 1
            return fail() if self.writes > moment else super().write(content)

    with monkeypatch.context() as patch:
        if isinstance(moment, str):
            patch.setattr(os, moment, fail)
        else:
            patch.setattr(Path, "open", lambda *given: Full(*given))
        with pytest.raises(OSError, match="no space left") as caught:
            save_checkpoint(path, {"step": 3, "zeros": torch.zeros(1000)})
    assert caught.value.errno == errno.ENOSPC
    assert load_checkpoint(path) == {"step": 2}
    assert load_checkpoint(tmp_path / "c.previous.pt") == {"step": 1}
    assert len([*tmp_path.iterdir()]) == 2
    save_checkpoint(path, {"step": 3})
    assert load_checkpoint(path) == {"step": 3}


PEAK = """
import resource, sys
from pathlib import Path
import torch
from literate_rl.runs.runs import load_checkpoint, save_checkpoint

def peak():
    kilobytes = 1024 if sys.platform == "linux" else 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilobytes

path, call = Path(sys.argv[1]), sys.argv[2]
# What the first calls load into memory is not meant.
save_checkpoint(path.with_name("small.pt"), {"step": 1})
load_checkpoint(path.with_name("small.pt"))
size = 150 * 2**20
if call == "save":
    state = {"buffer": torch.ones(size, dtype=torch.uint8), "step": 2}
    before = peak()
    save_checkpoint(path, state)
else:
    before = peak()
    state = load_checkpoint(path)
    assert state["buffer"].numel() == size and state["buffer"].min() == 1
print((peak() - before) / size)
"""


def test_a_large_state_is_held_in_memory_once(tmp_path):
    # What is written is not copied first.
    for call, most in (("save", 0.2), ("load", 1.2)):
        command = [sys.executable, "-c", PEAK, str(tmp_path / "c.pt"), call]
        grown = subprocess.run(command, capture_output=True, text=True, check=True)
        assert float(grown.stdout) < most


@pytest.mark.parametrize(
    "unsafe",
    [
        *(lambda: 1, io.StringIO(), threading.Lock(), np.zeros(3), np.float32(1.0)),
        *(np.random.RandomState(0).get_state(), Path("x"), nn.Linear(1, 1), Walker),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_could_not_be_loaded_is_not_written(tmp_path, unsafe):
    path = tmp_path / "c.pt"
    save_checkpoint(path, {"step": 1})
    before = snapshot(tmp_path)
    with pytest.raises(TypeError, match="state must hold tensors and plain values"):
        save_checkpoint(path, {"nested": [unsafe]})
    assert snapshot(tmp_path) == before


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


@pytest.mark.parametrize(
    "thing",
    [
        *(nn.Linear(2, 2), nn.Linear(2, 2).state_dict(), [1, 2], {"format": "other"}),
        *(pickle.dumps({"format": FORMAT}), b"step,return\n8,1\n", b""),
    ],
)
@pytest.mark.parametrize("load_file", [load_checkpoint, load])
def test_a_file_that_is_none_of_ours_is_refused_by_name(tmp_path, thing, load_file):
    path = tmp_path / "c.pt"
    path.write_bytes(thing) if isinstance(thing, bytes) else torch.save(thing, path)
    words = r"^[^\n]*c\.pt is (damaged|not a literate_rl)[^\n]*$"
    with pytest.raises(ValueError, match=words):
        load_file(path)


def damages(content):
    """Yield what may have become of a file, and whether anybody may read it."""
    rng = random.Random(0)
    for number in range(150):
        yield content[: rng.randrange(len(content))], False
        yield rng.randbytes(rng.randrange(80)), False
        for _ in "ab":
            flipped = bytearray(content)
            flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            yield bytes(flipped), True
        start = 512 * number
        sector = content[start : start + 512]
        if sector:
            yield content[:start] + bytes(len(sector)) + content[start + 512 :], True


@pytest.mark.filterwarnings("ignore")
def test_no_damage_changes_a_number_unnoticed(tmp_path):
    path, refused, silent = tmp_path / "c.pt", 0, 0
    state = {**STATE, "weights": make_policy(vectors(4), TWO).state_dict()}
    save_checkpoint(path, state)
    whole = path.read_bytes()
    assert len(whole) > 50 * 512
    for damaged, readable in damages(whole):
        path.write_bytes(damaged)
        # Some damages are in bytes that nobody reads.
        try:
            found = load_checkpoint(path)
        except ValueError:
            refused += 1
        else:
            assert readable
            assert same_content(state, found)
        # Torch itself reads many of these files, and gives back something else.
        with suppress(Exception):
            unchecked = torch.load(path, weights_only=True)
            unchecked.pop("format")
            silent += not same_content(state, unchecked)
    assert refused > 600
    assert silent > 100


def test_a_file_of_an_older_version_tells_its_world_without_its_folder(tmp_path):
    state = {"settings": {"env": "CartPole-v1"}}
    seen, masked = look_at_env(tmp_path / "checkpoint.pt", state)
    assert (seen.shape, masked) == ((4,), False)


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
    assert {*tmp_path.iterdir()} == {path, previous}
    assert previous.stat().st_ino in synced[-4:]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"c\.pt is damaged") as caught:
        load_checkpoint(path)
    way_out = f"; to go on from step 2, rename {previous} to c.pt"
    assert str(caught.value).endswith(way_out)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="to go on from step 2"):
        load_checkpoint(path)
    previous.write_bytes(b"damaged too")
    with pytest.raises(FileNotFoundError) as caught:
        load_checkpoint(path)
    assert "rename" not in str(caught.value)


def test_a_file_and_its_new_name_are_on_the_disk_when_it_is_saved(
    tmp_path, monkeypatch, synced
):
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *a: (synced.append("name"), replace(*a)))
    save_checkpoint(path := tmp_path / "c.pt", {"step": 1})
    assert synced == [path.stat().st_ino, "name", tmp_path.stat().st_ino]


def test_rows_are_on_the_disk_when_a_checkpoint_is(tmp_path, synced):
    with Run(tmp_path) as run:
        run.log(8, {"a": 1.0})
        synced.clear()
        run.save(Walker())
    files = [run.metrics.stat().st_ino, run.checkpoint.stat().st_ino]
    assert [number for number in synced if number in files] == files


def test_many_writers_of_one_file_never_leave_half_of_it(tmp_path):
    """Without a lock the last one wins, and each content is whole."""
    path, failures = tmp_path / "c.pt", []

    def write(number):
        try:
            for _ in range(30):
                save_checkpoint(path, {"step": number, "zeros": torch.zeros(5000)})
                load_checkpoint(path)
                load_checkpoint(tmp_path / "c.previous.pt")
        except Exception as error:
            failures.append(error)

    for _ in "ab":
        save_checkpoint(path, {"step": -1})
    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len([*tmp_path.iterdir()]) == 2


def test_a_missing_file_is_missing(tmp_path):
    for call in (lambda: load_checkpoint(tmp_path / "c.pt"), lambda: load(tmp_path)):
        with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
            call()


# --- A directory that is refused, or in use -------------------------------------------


def test_resuming_touches_nothing_before_there_is_something_to_write(tmp_path):
    killed(tmp_path)
    before = snapshot(tmp_path)
    with Run(tmp_path, resume=True) as run:
        run.restore(Walker())
        assert snapshot(tmp_path) == before
        run.begin()
        after = snapshot(tmp_path)
        run.begin()
        assert snapshot(tmp_path) == after
    assert steps(run) == [8, 16, 24]


class Other(Walker):
    """A walker with other things to remember."""

    def load_state_dict(self, state):
        self.step = state["iterations"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Walker(policy=small_policy(3)),
        lambda: Walker(policy=small_policy(start=1)),  # its weights have one shape
        lambda: Walker(policy=make_phasic_policy(vectors(2), TWO)),
        Other,
    ],
)
def test_a_checkpoint_of_another_learner_is_refused_and_nothing_lost(tmp_path, make):
    killed(tmp_path)
    before = snapshot(tmp_path)
    words = r"checkpoint\.pt does not fit.*(its policy is|KeyError: 'iterations')"
    with Run(tmp_path, resume=True) as run, pytest.raises(ValueError, match=words):
        run.restore(make())
    assert snapshot(tmp_path) == before


HEAD = "step,a\n"
ROWS = [
    *((None, 0), ("", 0), (HEAD, 0), ("a\nx,1\n", 0), ("\xff\n", 0)),
    *((HEAD + rest, 2) for rest in ("8,1\n16,2\n24,", "8,1\n24,3\n32,4\n")),
]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("settings.json", '{"env": "Other-v0"}', "its env is 'A-v0', that of settings"),
        ("settings.json", '{"env": "A-v0", "algorithm": "x"}', "its algorithm is None"),
        ("settings.json", '{"env": ', "is no JSON"),
        ("settings.json", None, "No such file"),
        ("checkpoint.pt", {}, "comes from no run"),
        *(("metrics.csv", x, f"3 rows up to step 24, got {n}") for x, n in ROWS),
    ],
)
def test_files_that_do_not_belong_together_are_refused_and_nothing_lost(
    tmp_path, name, content, words
):
    path = killed(tmp_path, settings={"env": "A-v0"}) / name
    if content is None:
        path.unlink()
    elif content == {}:
        save_checkpoint(path, {})
    else:
        path.write_text(content, "latin-1")
    before = snapshot(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        Run(tmp_path, resume=True)
    assert snapshot(tmp_path) == before


def test_a_damaged_run_goes_on_from_the_checkpoint_before_to_the_same_end(tmp_path):
    directory = killed(tmp_path / "run")
    path = directory / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:-50])
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match="to go on from step 0, rename") as caught:
        Run(directory, resume=True)
    assert snapshot(tmp_path) == before
    old, new = re.search("rename (.*) to (.*)", str(caught.value)).groups()
    Path(old).replace(directory / new)
    assert Run(directory, resume=True).saved == 0
    assert_same_end(directory)


@pytest.mark.parametrize("closed", [False, True])
def test_a_run_that_is_closed_or_in_other_hands_writes_nothing(tmp_path, closed):
    killed(tmp_path)
    with Run(tmp_path, resume=True) as one, Run(tmp_path, resume=True) as two:
        two.close() if closed else one.begin()
        before = snapshot(tmp_path)
        for write in (
            two.begin,
            lambda: two.log(32, {}),
            lambda: two.save(Walker()),
            lambda: fit(Walker(), two, progress=False),
        ):
            expected = ValueError if closed else BlockingIOError
            with pytest.raises(expected, match=r"is closed: open|in use by"):
                write()
        assert snapshot(tmp_path) == before
        assert load(tmp_path).recipe == small_policy().recipe, "who reads may do so"
    with Run(tmp_path, resume=True) as run:
        run.begin()


def test_a_run_that_went_on_meanwhile_is_read_again(tmp_path):
    killed(tmp_path)
    with Run(tmp_path, resume=True) as late:
        train(tmp_path, Walker(), resume=True)
        before = snapshot(tmp_path)
        with pytest.raises(ValueError, match="has gone on since it was read"):
            late.begin()
    assert snapshot(tmp_path) == before


def test_what_a_killed_process_has_half_written_is_swept_up(tmp_path):
    killed(tmp_path)
    half, ours = beside(tmp_path / "checkpoint.pt"), tmp_path / "notes.new"
    for path in (half, ours):
        path.write_text("half")
    with Run(tmp_path, resume=True) as run:
        assert half.exists()
        run.begin()
    assert not half.exists()
    assert ours.exists()


HOLD = """
import sys, time
from literate_rl.runs.runs import Run
with Run(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_goes_with_its_process(tmp_path, number):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with Child(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError, match="in use by another process"):
            Run(tmp_path, {"seed": 2})  # a new run of the same name
        save_checkpoint(tmp_path / "checkpoint.pt", {"step": 8})
        with Run(tmp_path, resume=True) as run:
            with pytest.raises(BlockingIOError, match="in use by another process"):
                run.begin()
            process.send_signal(number)
            assert process.wait(timeout=60) == -number
            run.begin()


@pytest.mark.parametrize(
    ("stored", "named", "message"),
    [
        ("A-v0", [], None),
        ("A-v0", ["A-v0"], None),
        ("m:A-v0", ["m:A-v0"], None),
        ("m:A-v0", [], "whose code runs: hand over again --env m:A-v0$"),
        ("m:A-v0", ["n:A-v0"], "the run has --env m:A-v0, not n:A-v0$"),
        ("A-v0", ["m:A-v0"], "the run has --env A-v0, not m:A-v0$"),
    ],
)
def test_what_runs_code_must_be_named(stored, named, message):
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        check_agreed({"env": [stored]}, {"env": named}, "--")


# --- Policies from a file -------------------------------------------------------------

BOX = spaces.Box(np.float32([-2.0, 0.0]), np.float32([2.0, 1.0]))
FROM_ONE, ENDLESS = spaces.Discrete(4, start=1), spaces.Box(-np.inf, np.inf, (1,))
# What ``test_conformance`` does not save.
MAKERS = {
    "discrete": (make_policy, FROM_ONE, {}),
    "endless box": (make_policy, ENDLESS, {"normalize": True}),
    "phasic": (make_phasic_policy, BOX, {"normalize": True}),
    "pictures": (make_rainbow_policy, FROM_ONE, {"hidden": 8}),
    "a row": (make_ddpg_policy, FROM_ONE, {"num_critics": 2}),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_policy_comes_back_and_acts_the_same(tmp_path, name):
    torch.manual_seed(0)
    shape = (3, 7, 7) if name == "pictures" else (3,)
    make, actions, options = MAKERS[name]
    policy = make(spaces.Box(-1, 1, shape), actions, **options)
    if "normalize" in options:
        policy.network.normalizer.update(5 * torch.randn(20, 3) + 1)
    state = {"recipe": policy.recipe, "weights": policy.state_dict()}
    save_checkpoint(tmp_path / "checkpoint.pt", {"policy": state})
    again, obs = load(tmp_path), torch.randn(7, *shape)
    assert again.recipe == policy.recipe
    assert not again.training
    assert same_content(policy.state_dict(), again.state_dict())
    for noise in (0.0, policy.noise(1, 7, torch.Generator().manual_seed(1))[0]):
        action, other = (x.act(obs, noise).detach() for x in (policy, again))
        assert torch.equal(action, other)
        np.testing.assert_equal(again.to_env(other), policy.to_env(action))


@pytest.mark.parametrize(
    "name",
    [
        *("Missing", "evaluate", "Run", "load", "nn", "__doc__", "make_envs", "policy"),
        *("make_odd_policy", "make_policy ", "ppo.make_policy", "", 3, None),
        *(["make_policy"], {"make_policy": 1}),
    ],
)
def test_only_builders_of_policies_are_called(tmp_path, monkeypatch, name):
    """Neither another public function nor one that is not public."""
    called, state = [], {"recipe": (name, small_policy().recipe[1]), "weights": {}}
    save_checkpoint(tmp_path / "c.pt", {"policy": state})
    if isinstance(name, str) and name.isidentifier() and not name.startswith("__"):
        spy = lambda **arguments: called.append(arguments)  # noqa: E731
        monkeypatch.setattr(literate_rl, name, spy, raising=False)
    with pytest.raises(ValueError, match="unknown here"):
        load(tmp_path / "c.pt")
    assert not called


def built(**changes):
    """Return what a file holds of a policy, with something wrong in its recipe."""
    policy = small_policy()
    recipe = ("make_policy", {**policy.recipe[1], **changes})
    return {"recipe": recipe, "weights": policy.state_dict()}


NO_RECIPES = [None, "make_policy", *(("make_policy", *x) for x in ([], [{}], [[1]]))]


@pytest.mark.parametrize(
    "policy",
    [
        *({}, None, "make_policy", torch.zeros(3), [1]),
        *({"recipe": recipe, "weights": {}} for recipe in NO_RECIPES),
        *(built() | {"weights": weights} for weights in ({}, None)),
        *(built(hidden=hidden) for hidden in (5, "four")),
        *(built(models=models) for models in (3, None, ["qnet"])),
        *(built(observation_space={"n": 2, "start": 0}), built(action_space=None)),
        built(envs=2),
    ],
)
def test_a_policy_that_cannot_be_built_is_refused(tmp_path, policy):
    save_checkpoint(tmp_path / "c.pt", {"policy": policy})
    words = r"^[^\n]*c\.pt holds no policy that can be built[^\n]*$"
    with pytest.raises(ValueError, match=words):
        load(tmp_path / "c.pt")


# --- Video ----------------------------------------------------------------------------


def test_who_plays_leaves_modes_and_moments_alone(tmp_path):
    policy = Policy(ActorCritic(moody(4, 2), moody(4, 1)), CategoricalActions(2))
    with left_alone(policy):
        totals = [record_video(policy, "CartPole-v1", tmp_path / "x.mp4") for _ in "ab"]
        assert totals == [evaluate(policy, "CartPole-v1", 1)[0]] * 2


def test_a_video_has_a_frame_for_each_step_and_needs_no_screen(tmp_path, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    path, policy = tmp_path / "video.mp4", make_policy(vectors(4), TWO)
    total = record_video(policy, "CartPole-v1", path, seed=3)
    assert total == evaluate(policy, "CartPole-v1", 1, seed=3)[0]
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


@pytest.mark.parametrize("full", [False, True])
def test_a_torn_film_replaces_no_whole_one(tmp_path, monkeypatch, full):
    path, usual = tmp_path / "video.mp4", imageio_ffmpeg.write_frames
    write_video(path, 0)
    before = snapshot(tmp_path)

    def torn(*arguments, **options):
        """End after 20 frames and do not say so."""
        writer = usual(*arguments, **options)
        yield writer.send(None)
        for _ in range(20):
            writer.send((yield))
        writer.close()
        while True:
            yield

    if not full:
        monkeypatch.setattr(imageio_ffmpeg, "write_frames", torn)
    with (
        files_of_at_most(path.stat().st_size // 2) if full else nullcontext(),
        pytest.raises(OSError, match=r"video\.mp4 could not be written; is the disk"),
    ):
        write_video(path, 1)
    assert snapshot(tmp_path) == before


class Pacing(gym.Env):
    """Walks to and fro and draws itself, without an end, or until it fails."""

    metadata = {"render_modes": ["rgb_array", "human"], "render_fps": 30}
    observation_space, action_space = vectors(2), TWO
    drawn, fails_at, error, open = [], 0, None, 0

    def __init__(self, render_mode=None):
        self.render_mode, self.steps = render_mode, 0
        Pacing.open += 1

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.fails_at:
            raise self.error
        return np.zeros(2, np.float32), 1.0, False, False, {}

    def render(self):
        frame = np.full((16, 16, 3), self.steps, np.uint8)
        self.drawn.append(weakref.ref(frame))
        assert sum(kept() is not None for kept in self.drawn) < 5, "frames are kept"
        return frame

    def close(self):
        Pacing.open -= 1


def test_an_environment_that_cannot_be_drawn_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(Pacing.metadata, "render_modes", ["human"])
    with pytest.raises(ValueError, match=r"env .* has no render mode 'rgb_array'"):
        record_video(small_policy(), Pacing, tmp_path / "video.mp4")
    assert not [*tmp_path.iterdir()]


def test_a_film_without_an_end_is_cut_off_and_told(tmp_path):
    path = tmp_path / "video.mp4"
    words = r"env 'Pacing': 1 of 1 episodes .* 40 steps"
    with pytest.warns(UserWarning, match=words) as told:
        total = record_video(small_policy(), Pacing, path, max_episode_steps=40)
    assert told[0].filename == __file__, "it points to whoever called"
    assert total == imageio_ffmpeg.count_frames_and_secs(str(path))[0] == 40


@pytest.mark.parametrize("when", [1, 20])
@pytest.mark.parametrize("error", [RuntimeError, OSError, KeyboardInterrupt])
def test_what_fails_while_it_is_watched_keeps_its_words_and_closes_the_window(
    tmp_path, monkeypatch, error, when
):
    monkeypatch.setattr(Pacing, "fails_at", when)
    monkeypatch.setattr(Pacing, "error", error("mine"))
    path, before = tmp_path / "video.mp4", Pacing.open
    path.write_bytes(b"an older film")
    for watch in (lambda *x: record_video(*x, path), show):
        with pytest.raises(error, match=r"^mine"):
            watch(small_policy(), Pacing)
        assert Pacing.open == before
    assert snapshot(tmp_path) == {path: b"an older film"}


def test_show_plays_one_episode_in_a_window():
    modes, policy, env = [], make_policy(vectors(4), TWO), "CartPole-v1"

    def make(render_mode):
        modes.append(render_mode)
        return gym.make(env)

    for seed in range(4):
        assert show(policy, make, seed) == evaluate(policy, env, 1, seed)[0]
    assert modes == ["human"] * 4


def test_a_video_stands_in_the_page_with_its_description(tmp_path):
    (tmp_path / "v.mp4").write_bytes(b"film")
    found = video_html(tmp_path / "v.mp4", 'A "fast" <cart> & a pole')
    text = "A &quot;fast&quot; &lt;cart&gt; &amp; a pole"
    assert f'aria-label="{text}"' in found
    assert f">{text}</video>" in found
    assert "<cart>" not in found
    assert base64.b64encode(b"film").decode() in found


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
    below = tmp_path / "chapters" / "notebooks"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    runs = stored_runs("x")
    assert list(runs) == ["as it is", "other"]
    first = runs["as it is"]
    assert first.steps.tolist() == [100, 200, 400]
    # The gap at 200 is filled by the line from 1 at 100 to 7 at 400, and a gap at an
    # end by its neighbour.
    assert first.curves.tolist() == [[1, 3, 7], [4, 4, 5]]
    assert runs["other"].curves.tolist() == [[9, 8, 8]]
    assert first.final.tolist() == [10, 20]
    np.testing.assert_equal(first.area, [5, np.nan])
    assert first.cpu_seconds.tolist() == [1, 2]
    assert {k: x.tolist() for k, x in first.judged.items()} == {"unseen": [0.5, 0.75]}
    monkeypatch.chdir("/")
    assert list(stored_runs("x", place)) == [*runs]
    with pytest.raises(FileNotFoundError, match=r"/x\.csv"):
        stored_runs("x")


# --- Mistakes of published code -------------------------------------------------------


@pytest.mark.erratum("checkpoint-in-place")
def test_a_crash_while_writing_in_place_leaves_nothing(tmp_path):
    path = tmp_path / "c.pt"
    save_checkpoint(path, {"step": 1})
    whole = path.read_bytes()
    with path.open("wb") as file:  # the old checkpoint is gone from here on
        file.write(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="damaged or no checkpoint"):
        load_checkpoint(path)


@pytest.mark.erratum("resume-weights-alone")
def test_weights_alone_do_not_bring_a_run_back():
    def train(steps, model, optimizer, generator):
        for _ in range(steps):
            batch = torch.randn(8, 3, generator=generator)
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

    def start():
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        generator = torch.Generator().manual_seed(0)
        return model, torch.optim.Adam(model.parameters(), 0.1), generator

    whole, halfway = start(), start()
    train(20, *whole)
    train(10, *halfway)
    for everything in (True, False):
        model, optimizer, generator = start()
        model.load_state_dict(halfway[0].state_dict())
        if everything:
            optimizer.load_state_dict(halfway[1].state_dict())
            generator.set_state(halfway[2].get_state())
        train(10, model, optimizer, generator)
        assert torch.equal(model.weight, whole[0].weight) is everything
    assert (model.weight - whole[0].weight).abs().max() > 0.01
