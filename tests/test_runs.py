"""Runs: what is kept, what is refused, and what a killed run comes back to."""

import base64
import errno
import inspect
import io
import json
import math
import os
import pickle
import random
import re
import resource
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
import warnings
import weakref
import zipfile
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

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
from benchmarks.chaos_worlds import FAULTS, UNSEEN, Breaking
from literate_rl.data.episodes import Mean, mean_return
from literate_rl.data.worlds import Moving
from literate_rl.learners.ddpg import make_ddpg_policy
from literate_rl.learners.discrete_sac import make_discrete_sac_policy
from literate_rl.learners.dqn import make_q_policy
from literate_rl.learners.ppg_learner import make_phasic_policy
from literate_rl.learners.rainbow import make_rainbow_policy
from literate_rl.learners.sac import make_sac_policy
from literate_rl.nets.hybrid_policy import make_hybrid_policy
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


class Lottery(gym.Env):
    """Episodes of one or of ten steps, by chance; every step pays 1."""

    metadata = {"render_modes": ["human"]}
    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.choice([1, 10]))
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(2, np.float32), 1.0, self.left == 0, False, {}

    def render(self):
        return None


class Gallery(gym.Env):
    """An environment that shows samples of a space."""

    action_space = spaces.Discrete(2)

    def __init__(self, space):
        self.observation_space = space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, True, False, {}


def vectors(size):
    return spaces.Box(-1, 1, (size,))


def small_policy(obs_size=2, start=0, normalize=False):
    """Return a policy with two actions, for vectors of some numbers."""
    actions = spaces.Discrete(2, start=start)
    return make_policy(vectors(obs_size), actions, hidden=4, normalize=normalize)


class Walker:
    """The smallest learner: each iteration moves the weights at random."""

    def __init__(self, total_steps=80, interval=3):
        torch.manual_seed(0)
        self.policy = small_policy()
        self.config = SimpleNamespace(total_steps=total_steps)
        self.generator = torch.Generator().manual_seed(1)
        self.step, self.interval = 0, interval

    @property
    def checkpoint_due(self):
        return self.step // 8 % self.interval == 0

    @torch.no_grad()
    def iterate(self):
        for weight in self.policy.parameters():
            weight += torch.randn(weight.shape, generator=self.generator)
        self.step += 8
        first = next(self.policy.parameters())[0, 0].item()
        return {"charts/episodic_return": first, "losses/approx_kl": float("nan")}

    def state_dict(self):
        return {"step": self.step, "generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.step = state["step"]
        self.generator.set_state(state["generator"])


class Stopped(Walker):
    """A walker to which something happens in one iteration, after its work is done."""

    def __init__(self, at, event):
        super().__init__()
        self.at, self.event = at, event

    def iterate(self):
        metrics = super().iterate()
        if self.step == 8 * self.at:
            self.event()
        return metrics


def cartpole_policy(seed=0):
    torch.manual_seed(seed)
    return make_policy(vectors(4), spaces.Discrete(2))


def weights(module):
    return torch.cat([x.flatten().double() for x in module.state_dict().values()])


def rows(run):
    """Return the table of a run as lists of strings, the header first."""
    return [line.split(",") for line in run.metrics.read_text().splitlines()]


def comparable(run):
    """Return the table without the column that measures time."""
    table = rows(run)
    keep = [k for k, name in enumerate(table[0]) if name != "charts/SPS"]
    return [[row[k] for k in keep] for row in table]


# --- Environments ---------------------------------------------------------------------


IMAGE = spaces.Box(0, 255, (4, 3, 2), np.uint8)


@pytest.mark.parametrize(
    ("space", "size"),
    [
        (spaces.Box(-1, 1, (3,)), 3),
        (IMAGE, 24),
        (spaces.Box(-1, 1, ()), 1),
        (spaces.Discrete(5), 5),
        (spaces.MultiDiscrete([2, 3]), 5),
        (spaces.Dict({"camera": IMAGE, "gear": spaces.Discrete(3)}), 27),
    ],
    ids=["vector", "image", "number", "discrete", "multidiscrete", "dict"],
)
def test_flat_env_shows_vectors(space, size):
    env = flat_env(Gallery, space=space)
    assert isinstance(env.observation_space, spaces.Box)
    assert env.observation_space.shape == (size,)
    first, _ = env.reset(seed=3)
    assert np.shape(first) == (size,)
    space.seed(3)
    assert np.array_equal(first, spaces.flatten(space, space.sample()))


class Words(spaces.Space):
    """A space of somebody else's, which does not know whether it can be flattened."""


def test_flat_env_leaves_a_vector_alone():
    env = flat_env("CartPole-v1", max_episode_steps=7)
    assert env.spec.max_episode_steps == 7
    assert not isinstance(env, gym.wrappers.FlattenObservation)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("Nothing-v0", "env 'Nothing-v0' cannot be made"),
        (lambda: gym.make("Nothing-v0"), "cannot be made"),
        (lambda: Gallery(spaces.Sequence(spaces.Discrete(2))), "can be flattened"),
        (lambda: Gallery(spaces.Dict(a=IMAGE, words=Words())), "can be flattened"),
    ],
)
def test_flat_env_says_what_is_wrong(env, message):
    with pytest.raises(ValueError, match=message):
        flat_env(env)


@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - UNSEEN))
def test_an_environment_that_breaks_its_interface_is_named(fault):
    env = flat_env(Breaking, fault=fault, at=2, continuous=False)
    env.reset(seed=0)
    env.step(0)
    with pytest.raises(BaseException) as error:  # noqa: PT011 (or a note says it)
        env.step(0)
    message = "; ".join([str(error.value), *error.value.__notes__])
    assert "env 'Breaking' failed in step: " in message
    if fault == "raises":
        assert re.search(r"KeyError: 'the physics broke' \(.*worlds.py:\d+\)", message)
    part = fault.partition(" ")[0].replace("observation", "obs")
    if part in ("obs", "reward", "terminated", "truncated", "infos"):
        assert f"{part} " in str(error.value)


def test_an_environment_that_cannot_begin_is_named():
    class Late(Lottery):
        def reset(self, **_):
            return np.zeros(3), {}

    with pytest.raises(
        ValueError, match=r"'Late' failed in reset: obs must have shape"
    ):
        flat_env(Late).reset()


# --- The loop -------------------------------------------------------------------------


def test_fit_runs_to_the_end_and_tells_what_happened(tmp_path, capsys):
    learner = Walker(total_steps=30)  # the last iteration goes past it
    with Run(tmp_path / "run", {"seed": 1}) as run:
        history = fit(learner, run, progress=False)
    assert capsys.readouterr().out == "", "nobody has interrupted it"
    assert [row["step"] for row in history] == [8, 16, 24, 32]
    assert all(row["charts/SPS"] > 0 for row in history)
    assert [int(row[0]) for row in rows(run)[1:]] == [8, 16, 24, 32]
    assert load_checkpoint(run.checkpoint)["step"] == 32


def test_fit_needs_no_directory():
    assert len(fit(Walker(), progress=False)) == 10


def test_fit_does_nothing_for_a_learner_that_is_done():
    learner = Walker(total_steps=8)
    fit(learner, progress=False)
    assert fit(learner, progress=False) == []


def test_progress_is_shown_on_request(capsys):
    fit(Walker(), progress=False)
    assert capsys.readouterr() == ("", "")
    fit(Walker())
    out, err = capsys.readouterr()
    assert out == ""
    assert "80/80" in err
    assert "return=" in err
    assert " steps/s" in err
    assert err.split("\r")[-1].count("steps/s") == 1, "one speed"
    assert "KL" not in err  # NaN says nothing


class Sparse(Walker):
    """Nine episodes end in the first two iterations, thirty in the third, then none."""

    ends = (7, 2, 30)

    def iterate(self):
        done = torch.full((4, 10), float("nan"))
        number = self.step // 8
        count = self.ends[number] if number < len(self.ends) else 0
        done.view(-1)[:count] = torch.arange(count) + 100.0 * number
        return super().iterate() | {"charts/episodic_return": mean_return(done)}


@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
def test_the_return_of_the_last_20_episodes_does_not_vanish(iterations, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "literate_rl.runs.runs.Bar.set_postfix", lambda _, x, **__: seen.append(x)
    )
    history = fit(Sparse(total_steps=8 * iterations))
    returns = [*range(7), 100, 101, *(200 + k for k in range(30))]
    known = returns[: (7, 9, 39, 39, 39)[iterations - 1]][-20:]
    assert seen[-1] == {"return": f"{np.mean(known):.3g}"}
    means = [row["charts/episodic_return"] for row in history]
    assert means[:3] == [3, 100.5, 214.5][:iterations]
    assert all(math.isnan(mean) for mean in means[3:]), "the table has none"


class Patient(Walker):
    """A row of its log is about three iterations; checkpoints come in between."""

    # The return of an iteration, how many it is the mean of, and another metric.
    told = [(4.0, 1), (math.nan, 0), (1.0, 2), (math.nan, 0)] + 6 * [(7.0, 3)]
    other = [math.nan, 2.0, 4.0, 1.0, math.nan, math.nan, *range(4)]

    def __init__(self, total_steps=80, interval=4):
        super().__init__(total_steps, interval)

    @property
    def log_due(self):
        return self.step // 8 % 3 == 0

    def iterate(self):
        super().iterate()
        number = self.step // 8 - 1
        charts = {"charts/episodic_return": Mean(*self.told[number])}
        return charts | {"charts/other": self.other[number]}


PATIENT = [
    {"step": 24, "charts/episodic_return": 2.0, "charts/other": 3.0},
    {"step": 48, "charts/episodic_return": 7.0, "charts/other": 1.0},
    {"step": 72, "charts/episodic_return": 7.0, "charts/other": 1.0},
    {"step": 80, "charts/episodic_return": 7.0, "charts/other": 3.0},
]


def told(history):
    return [{k: x for k, x in row.items() if k != "charts/SPS"} for row in history]


def test_a_row_is_about_all_iterations_since_the_row_before(tmp_path):
    with Run(tmp_path / "run") as run:
        history = fit(Patient(), run, progress=False)
    assert told(history) == PATIENT, "and the last row is about what is left"
    assert [row[0] for row in rows(run)] == ["step", "24", "48", "72", "80"]
    # The speed is that of the whole stretch, not a mean of speeds.
    log = Log(None, 0)
    for steps, seconds in ((10, 1.0), (10, 9.0)):
        log.add(steps, {"charts/SPS": Mean(steps / seconds, seconds)})
    log.end_row()
    assert log.rows[0]["charts/SPS"] == pytest.approx(2.0)
    log.end_row()
    assert len(log.rows) == 1, "there is nothing left to tell"


@pytest.mark.parametrize("number", [3.0, 0.1, 1e300, math.inf, -0.0, 7])
def test_a_row_about_one_iteration_is_what_it_told(number):
    for mean in (number, Mean(number, 3), Mean(number, 0.7)):
        log = Log(None, 0)
        log.add(8, {"a": mean, "b": math.nan})
        log.end_row()
        assert log.rows[0]["a"] == number
        assert math.isnan(log.rows[0]["b"])


@pytest.mark.parametrize("killed", range(1, 10))
def test_a_checkpoint_between_two_rows_keeps_what_was_gathered(killed, tmp_path):
    whole, first, again = Patient(), Patient(), Patient()

    def die():
        raise RuntimeError

    # As `kill -9` leaves it: only files count.
    first.iterate = lambda: (
        die() if first.step == 8 * killed else Patient.iterate(first)
    )
    with pytest.raises(RuntimeError), Run(tmp_path / "run") as run:
        fit(first, run, progress=False)
    # Whoever asks why it died finds all in the table that no checkpoint has gathered.
    steps = {row["step"] for row in PATIENT if row["step"] <= 8 * killed}
    steps |= {8 * killed} if killed % 4 else set()
    assert [int(row[0]) for row in rows(run)[1:]] == sorted(steps)
    with Run(tmp_path / "run", resume=True) as run:
        run.restore(again)
        fit(again, run, progress=False)
    fit(whole, progress=False)
    names, *table = rows(run)
    kept = [dict(zip(names, map(float, row), strict=True)) for row in table]
    assert told(kept) == PATIENT, "nothing is lost and nothing is counted twice"
    assert torch.equal(weights(again.policy), weights(whole.policy))


@pytest.mark.parametrize("at", [2, 3, 4])
def test_who_is_interrupted_between_two_rows_logs_what_there_is(at, ctrl_c, tmp_path):
    learner, again = Patient(), Patient()
    step = Patient.iterate

    def stop_at():
        metrics = step(learner)
        if learner.step == 8 * at:
            interrupt()
        return metrics

    learner.iterate = stop_at
    with Run(tmp_path / "run") as run:
        history = fit(learner, run, progress=False)
    assert [row["step"] for row in history] == {2: [16], 3: [24], 4: [24, 32]}[at]
    with Run(tmp_path / "run", resume=True) as run:
        run.restore(again)
        history = fit(again, run, progress=False)
    steps = [int(row[0]) for row in rows(run)[1:]]
    assert steps == sorted({8 * at, 24, 48, 72, 80}), "rows stay where they were"


def test_actors_that_fail_between_two_rows_leave_what_was_measured(tmp_path):
    learner = Patient()

    def fail():
        if learner.step == 16:
            raise ChildProcessError
        return Patient.iterate(learner)

    learner.iterate = fail
    with pytest.raises(ChildProcessError), Run(tmp_path / "run") as run:
        fit(learner, run, progress=False)
    assert [row[:3] for row in rows(run)[1:]] == [["16", "4", "2"]]
    again = Patient()
    with Run(tmp_path / "run", resume=True) as run:
        run.restore(again)
        history = fit(again, run, progress=False)
    assert told(history)[0] == {**PATIENT[0], "charts/episodic_return": 1.0} | {
        "charts/other": 4.0
    }


def test_checkpoints_are_written_when_they_are_due(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(Run, "save", lambda self, learner: saved.append(learner.step))
    with Run(tmp_path / "run") as run:
        fit(Walker(), run, progress=False)
    assert saved == [0, 24, 48, 72, 80]


def interrupt():
    signal.raise_signal(signal.SIGINT)


def test_first_interrupt_ends_after_the_iteration_and_saves(ctrl_c, tmp_path, capsys):
    before = signal.getsignal(signal.SIGINT)
    learner = Stopped(4, interrupt)
    with Run(tmp_path / "run") as run:
        history = fit(learner, run, progress=False)
    assert capsys.readouterr().out == "interrupted at step 32 of 80\n"
    assert [row["step"] for row in history] == [8, 16, 24, 32]
    assert len(rows(run)) == 5
    assert load_checkpoint(run.checkpoint)["step"] == 32
    assert signal.getsignal(signal.SIGINT) is before


def test_second_interrupt_ends_at_once(ctrl_c, tmp_path):
    before = signal.getsignal(signal.SIGINT)
    learner = Stopped(5, lambda: (interrupt(), interrupt()))
    run = Run(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt), run:
        fit(learner, run, progress=False)
    assert load_checkpoint(run.checkpoint)["step"] == 24
    assert len(rows(run)) == 5
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupted_run_goes_on(ctrl_c, tmp_path):
    with Run(tmp_path / "run") as run:
        fit(Stopped(4, interrupt), run, progress=False)
    resumed, whole = Walker(), Walker()
    with Run(tmp_path / "run", resume=True) as run:
        run.restore(resumed)
        fit(resumed, run, progress=False)
    fit(whole, progress=False)
    assert torch.equal(weights(resumed.policy), weights(whole.policy))
    assert [int(row[0]) for row in rows(run)[1:]] == list(range(8, 81, 8))


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


def test_fit_works_in_a_thread():
    histories = []
    thread = threading.Thread(
        target=lambda: histories.append(fit(Walker(), progress=False))
    )
    thread.start()
    thread.join(timeout=60)
    assert [len(history) for history in histories] == [10]


def test_an_error_passes_and_the_last_checkpoint_stays(tmp_path):
    def fail():
        raise ValueError("reward is nan")

    run = Run(tmp_path / "run")
    with pytest.raises(ValueError, match="reward is nan"), run:
        fit(Stopped(5, fail), run, progress=False)
    assert load_checkpoint(run.checkpoint)["step"] == 24


# --- The directory --------------------------------------------------------------------


def events(directory):
    """Read the events of all files, in the order in which they were begun."""
    found = []
    paths = directory.glob("events.out.tfevents.*")
    for path in sorted(paths, key=lambda path: int(path.name.rsplit(".", 1)[1])):
        data = io.BytesIO(path.read_bytes())
        # A record is its length, a checksum, the event and another checksum.
        while header := data.read(12):
            found.append(Event.FromString(data.read(struct.unpack("<Q4x", header)[0])))
            data.read(4)
    return found


def scalars(directory):
    """Return step and value of each number, as TensorBoard would show them."""
    shown = {}
    for event in events(directory):
        if event.session_log.status == SessionLog.START:
            shown = {key: x for key, x in shown.items() if key[1] < event.step}
        for value in event.summary.value:
            shown[value.tag, event.step] = value.simple_value
    return shown


def test_a_run_writes_down_its_settings(tmp_path):
    settings = {"env": "CartPole-v1", "config": {"seed": 3, "anneal": True}}
    with Run(tmp_path / "a" / "run", settings) as run:
        assert run.settings == settings
    assert json.loads((tmp_path / "a/run/settings.json").read_text()) == settings


def test_settings_that_cannot_be_written_leave_nothing(tmp_path):
    with pytest.raises(TypeError):
        Run(tmp_path / "run", {"path": Path()})
    assert not (tmp_path / "run").exists()


def test_a_run_is_not_overwritten(tmp_path):
    with Run(tmp_path / "run", {"seed": 1}) as run:
        fit(Walker(), run, progress=False)
    before = {path: path.read_bytes() for path in run.directory.iterdir()}
    with pytest.raises(FileExistsError, match="resume it or choose another name"):
        Run(tmp_path / "run", {"seed": 2})
    assert {path: path.read_bytes() for path in run.directory.iterdir()} == before


@pytest.mark.parametrize(
    "name", ["checkpoint.pt", "checkpoint.previous.pt", "metrics.csv"]
)
def test_nothing_that_is_left_of_a_run_is_overwritten(tmp_path, name):
    (tmp_path / name).write_bytes(b"what is left")
    with pytest.raises(FileExistsError, match="holds a run"):
        Run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_run_that_died_at_its_birth_can_be_begun_again(tmp_path):
    Run(tmp_path / "run", {"seed": 1}).events.close()
    with Run(tmp_path / "run", {"seed": 2}) as run:
        fit(Walker(), run, progress=False)
    assert json.loads((tmp_path / "run/settings.json").read_text()) == {"seed": 2}


def test_there_must_be_something_to_resume(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        Run(tmp_path / "nothing", resume=True)
    assert not (tmp_path / "nothing").exists()


def test_a_resumed_run_has_its_own_settings(tmp_path):
    with Run(tmp_path / "run", {"seed": 7}) as run:
        fit(Walker(), run, progress=False)
    with Run(tmp_path / "run", {"seed": 8}, resume=True) as run:
        assert run.settings == {"seed": 7}


def test_metrics_are_a_table_with_a_header(tmp_path):
    with Run(tmp_path / "run") as run:
        run.log(8, {"a": 0.5, "b": float("nan")})
        run.log(123_456_789, {"a": float("inf"), "b": -1e-9})
    assert rows(run) == [
        ["step", "a", "b"],
        ["8", "0.5", ""],
        ["123456789", "inf", "-1e-09"],
    ]


def test_metrics_may_come_in_any_order_and_later(tmp_path):
    with Run(tmp_path / "run") as run:
        run.log(1, {"a": 1.0, "b": 2.0})
        run.log(2, {"b": 2.0, "a": 1.0})
        run.log(3, {"c": 3.0})
    cells = [["1", "1", "2", ""], ["2", "1", "2", ""], ["3", "", "", "3"]]
    assert rows(run) == [["step", "a", "b", "c"], *cells]


@pytest.mark.parametrize(
    ("names", "header", "cells"),
    [
        (["b", "new", "a"], ["a", "b", "new"], ["3", "1", "2"]),
        (["a", "new"], ["a", "b", "new"], ["1", "", "2"]),
        (["b"], ["a", "b"], ["", "1"]),
        (["c"], ["a", "b", "c"], ["", "", "1"]),
    ],
)
def test_a_resumed_table_gets_the_columns_that_are_new(tmp_path, names, header, cells):
    learner = Walker()
    with Run(tmp_path / "run") as run:
        run.log(8, {"a": 0.5, "b": math.nan})
        run.log(16, {"a": 0.25, "b": 4.0})
        learner.step = 16
        run.save(learner)
    with Run(tmp_path / "run", resume=True) as run:
        run.log(24, dict(zip(names, (1.0, 2.0, 3.0), strict=False)))
    more = [""] * (len(header) - 2)
    before = [["8", "0.5", "", *more], ["16", "0.25", "4", *more]]
    assert rows(run) == [["step", *header], *before, ["24", *cells]]
    assert Run(tmp_path / "run", resume=True).logged == 2


def test_columns_are_added_at_once_or_not_at_all(tmp_path, monkeypatch):
    with Run(tmp_path / "run") as run:
        fit(Walker(), run, progress=False)
    whole = rows(run)

    def die(*_):
        raise OSError("no power")

    with Run(tmp_path / "run", resume=True) as run:
        run.begin()
        monkeypatch.setattr("literate_rl.runs.runs.os.replace", die)
        with pytest.raises(OSError, match="no power"):
            run.log(88, {"charts/episodic_return": 1.0, "new": 2.0})
    assert rows(run) == whole


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("step,a\n8,1\n16,2\n24,3\n32,4\n", "step,a\n8,1\n16,2\n24,3\n"),
        ("step,a\n8,1\n16,2\n24,3\n32,", "step,a\n8,1\n16,2\n24,3\n"),
        ("step,a\n8,1\n16,2\n2", "step,a\n8,1\n16,2\n"),
        ("step,a\n123456", "step,a\n"),
        ("step,", ""),
        ("", ""),
    ],
)
def test_rows_behind_the_checkpoint_and_half_lines_go(tmp_path, text, kept):
    save_checkpoint(tmp_path / "checkpoint.pt", {"step": 24})
    (tmp_path / "settings.json").write_text("{}")
    (tmp_path / "metrics.csv").write_text(text)
    with Run(tmp_path, resume=True) as run:
        run.begin()
        assert run.metrics.read_text() == kept
        run.log(32, {"a": 5.0})
    lines = kept.splitlines() or ["step,a"]
    assert run.metrics.read_text().splitlines() == [*lines, "32,5"]


def test_tensorboard_gets_the_same_numbers(tmp_path):
    with Run(tmp_path / "run") as run:
        history = fit(Walker(), run, progress=False)
    found = scalars(run.directory)
    for row in history:
        name = "charts/episodic_return"
        assert found[name, row["step"]] == pytest.approx(row[name], rel=1e-6)
    assert not any(name == "losses/approx_kl" for name, _ in found)  # NaN is left out


def test_tensorboard_forgets_what_came_after_the_checkpoint(tmp_path):
    def die():
        raise RuntimeError

    run = Run(tmp_path / "run")
    with pytest.raises(RuntimeError), run:
        fit(Stopped(6, die), run, progress=False)
    # Both attempts fall into one second, and still both have their file.
    with Run(tmp_path / "run", resume=True) as run:
        run.log(32, {"charts/episodic_return": 7.0, "losses/approx_kl": 0.0, **SPS})
    found = scalars(run.directory)
    steps = [step for name, step in found if name == "charts/episodic_return"]
    assert steps == [8, 16, 24, 32]
    assert found["charts/episodic_return", 32] == 7.0


SPS = {"charts/SPS": 1.0}


def test_events_are_on_the_disk_when_a_checkpoint_is(tmp_path, monkeypatch):
    """A run that is killed loses no event that a resumed one does not write again."""
    write, main = EventsWriter.write_event, threading.current_thread()

    def late(file, event):
        time.sleep(0 if threading.current_thread() is main else 0.1)
        write(file, event)

    monkeypatch.setattr(EventsWriter, "write_event", late)
    run = Run(tmp_path / "run")
    numbers = {"a": 1.0, "b": 2.0}
    run.log(8, numbers)
    learner = Walker()
    learner.step = 8
    run.save(learner)
    # Before anything was closed.
    assert scalars(run.directory) == {(name, 8): x for name, x in numbers.items()}
    run.events.close()


def test_other_tools_find_the_writer_of_events(tmp_path, monkeypatch):
    """W&B learns of a run when a writer is made, and others when an event is added."""
    usual = tensorboardX.writer.EventFileWriter
    made, added = [], {}

    class Watched(usual):
        def __init__(self, logdir, *arguments, **options):
            made.append(logdir)
            super().__init__(logdir, *arguments, **options)

        def add_event(self, event):
            super().add_event(event)
            added.update({(x.tag, event.step): x for x in event.summary.value})

    monkeypatch.setattr(tensorboardX.writer, "EventFileWriter", Watched)
    with Run(tmp_path / "run") as run:
        history = fit(Walker(), run, progress=False)
    assert made == [str(run.directory)]
    assert added.keys() == scalars(run.directory).keys()
    names = {"charts/episodic_return", "charts/SPS"}  # the other metric is NaN
    assert added.keys() == {(name, row["step"]) for name in names for row in history}


def test_a_full_disk_is_told_to_the_run(tmp_path):
    """A thread of the writer's could only end without a word."""
    run = Run(tmp_path / "run")
    run.log(8, {"a" * 3000: 1.0})
    with files_of_at_most(2000), pytest.raises(OSError, match="too large"):
        run.events.flush()
    run.close()
    assert len(scalars(run.directory)) == 1


@pytest.mark.parametrize("at", range(1, 11))
def test_a_killed_run_comes_to_the_same_end(tmp_path, at):
    def die():
        raise RuntimeError

    whole, resumed = Walker(), Walker()
    with Run(tmp_path / "whole") as whole_run:
        fit(whole, whole_run, progress=False)
    killed_run = Run(tmp_path / "killed")
    with pytest.raises(RuntimeError), killed_run:
        fit(Stopped(at, die), killed_run, progress=False)
    with Run(tmp_path / "killed", resume=True) as run:
        run.restore(resumed)
        assert resumed.step == (at - 1) // 3 * 24
        fit(resumed, run, progress=False)
    assert torch.equal(weights(resumed.policy), weights(whole.policy))
    assert torch.equal(resumed.generator.get_state(), whole.generator.get_state())
    assert comparable(run) == comparable(whole_run)


def test_restoring_a_new_run_changes_nothing(tmp_path):
    learner = Walker()
    before = weights(learner.policy)
    with Run(tmp_path / "run") as run:
        run.restore(learner)
    assert torch.equal(weights(learner.policy), before)


# --- Checkpoints ----------------------------------------------------------------------


STATE = {
    "step": 3,
    "nested": {"list": [1.5, "two", None, True], "tuple": (1, 2)},
    "tensor": torch.arange(6.0).view(2, 3),
    "numpy generator": np.random.default_rng(0).bit_generator.state,
    "torch generator": torch.Generator().get_state(),
}


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    save_checkpoint(tmp_path / "c.pt", STATE)
    state = load_checkpoint(tmp_path / "c.pt")
    assert state.keys() == STATE.keys()
    for key, value in STATE.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(state[key], value)
        else:
            assert state[key] == value
    assert [path.name for path in tmp_path.iterdir()] == ["c.pt"]


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_crash_while_writing_leaves_the_old_checkpoint(tmp_path, monkeypatch, moment):
    path = tmp_path / "c.pt"
    save_checkpoint(path, {"step": 1})

    def crash(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, moment, crash)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(path, {"step": 2})
    assert load_checkpoint(path) == {"step": 1}
    save_checkpoint(path, {"step": 3})
    assert load_checkpoint(path) == {"step": 3}


def test_a_crash_while_the_bytes_are_written_leaves_the_old_checkpoint(
    tmp_path, monkeypatch
):
    path = tmp_path / "c.pt"
    save_checkpoint(path, {"step": 1})

    class Breaking(io.FileIO):
        def write(self, content):
            super().write(bytes(content)[: len(content) // 2])
            raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda self, mode: Breaking(self, mode))
        with pytest.raises(OSError, match="no space left"):
            save_checkpoint(path, {"step": 2})
    assert load_checkpoint(path) == {"step": 1}


@pytest.mark.parametrize("good_writes", [0, 3, 8])
def test_a_full_disk_is_called_by_its_name(tmp_path, monkeypatch, good_writes):
    """Torch writes in pieces, and reports a failed one in words of its own."""
    path = tmp_path / "c.pt"
    save_checkpoint(path, {"step": 1})

    class Full(io.FileIO):
        writes = 0

        def write(self, content):
            self.writes += 1
            if self.writes > good_writes:
                raise OSError(errno.ENOSPC, "no space left on device")
            return super().write(content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda self, mode: Full(self, mode))
        with pytest.raises(OSError, match="no space left") as caught:
            save_checkpoint(path, {"step": 2, "zeros": torch.zeros(1000)})
    assert caught.value.errno == errno.ENOSPC
    assert load_checkpoint(path) == {"step": 1}
    assert list(tmp_path.iterdir()) == [path]


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
    def grown(call):
        command = [sys.executable, "-c", PEAK, str(tmp_path / "c.pt"), call]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return float(done.stdout)

    assert grown("save") < 0.2, "what is written is not copied first"
    assert grown("load") < 1.2


@pytest.mark.parametrize(
    "unsafe",
    [
        lambda: 1,
        io.StringIO(),
        threading.Lock(),
        np.zeros(3),
        np.float32(1.0),
        np.random.RandomState(0).get_state(),
        Path("x"),
        nn.Linear(1, 1),
        Walker,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_could_not_be_loaded_is_not_written(tmp_path, unsafe):
    path = tmp_path / "c.pt"
    with pytest.raises(TypeError, match="state must hold tensors and plain values"):
        save_checkpoint(path, {"nested": [unsafe]})
    assert not list(tmp_path.iterdir())
    save_checkpoint(path, {"step": 1})
    with pytest.raises(TypeError):
        save_checkpoint(path, {"nested": [unsafe]})
    assert load_checkpoint(path) == {"step": 1}


class Present:
    """A pickle that calls a function when it is loaded."""

    def __reduce__(self):
        return os.putenv, ("LITERATE_RL_PRESENT", "opened")


def opens(monkeypatch, load_file, path):
    """Say whether loading a file runs its code; return that and the error."""
    calls = []
    # The pickle names the function by its module, here `posix` or `nt`.
    module = __import__(os.putenv.__module__)
    monkeypatch.setattr(module, "putenv", lambda *given: calls.append(given))
    error = None
    try:
        load_file(path)
    except ValueError as raised:
        error = raised
    return bool(calls), error


@pytest.mark.erratum("pickle-runs-code")
def test_loading_a_foreign_pickle_runs_its_code_and_ours_refuses(tmp_path, monkeypatch):
    path, gift = tmp_path / "gift.pt", io.BytesIO()
    torch.save({"format": FORMAT, "policy": Present()}, gift)
    path.write_bytes(gift.getvalue())

    def trusting(path):
        return torch.load(path, weights_only=False)

    ran, error = opens(monkeypatch, trusting, path)
    assert ran
    assert error is None
    for load_file in (load_checkpoint, load):
        ran, error = opens(monkeypatch, load_file, path)
        assert not ran
        assert "is damaged or no checkpoint: UnpicklingError" in str(error)
        assert "weights_only" not in str(error)  # no advice to load it all the same


def foreign(kind):
    """Return the bytes of a file that somebody else wrote."""
    buffer = io.BytesIO()
    if kind == "weights":
        torch.save(nn.Linear(2, 2).state_dict(), buffer)
    elif kind == "module":
        torch.save(nn.Linear(2, 2), buffer)
    elif kind == "list":
        torch.save([1, 2], buffer)
    elif kind == "other version":
        torch.save({"format": "literate_rl checkpoint, version 0"}, buffer)
    elif kind == "pickle":
        pickle.dump({"format": FORMAT, "policy": Present()}, buffer)
    elif kind == "text":
        buffer.write(b"step,return\n8,1\n")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "kind", ["weights", "module", "list", "other version", "pickle", "text", "empty"]
)
@pytest.mark.parametrize("load_file", [load_checkpoint, load])
def test_a_file_that_is_none_of_ours_is_refused_by_name(tmp_path, kind, load_file):
    path = tmp_path / "c.pt"
    path.write_bytes(foreign(kind))
    with pytest.raises(
        ValueError, match=r"c\.pt is (damaged|not a literate_rl)"
    ) as caught:
        load_file(path)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_damaged_file_is_a_value_error_whatever_happened_to_it(tmp_path):
    path, rng = tmp_path / "c.pt", random.Random(0)
    save_checkpoint(path, STATE)
    whole = path.read_bytes()
    for _ in range(150):
        path.write_bytes(whole[: rng.randrange(len(whole))])
        with pytest.raises(ValueError, match="damaged or no checkpoint"):
            load_checkpoint(path)
    for _ in range(150):
        path.write_bytes(rng.randbytes(rng.randrange(80)))
        with pytest.raises(ValueError, match="damaged or no checkpoint"):
            load_checkpoint(path)


def same_content(one, other):
    """Compare nested plain values and tensors to the last bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            same_content(one[key], other[key]) for key in one
        )
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return one == other


def damages(content):
    """Flip 300 single bits and zero 50 sectors of 512 bytes, by chance."""
    rng = random.Random(0)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        yield bytes(damaged)
    for _ in range(50):
        start = 512 * rng.randrange(math.ceil(len(content) / 512))
        end = min(start + 512, len(content))
        yield content[:start] + bytes(end - start) + content[end:]


def test_no_damage_changes_a_number_unnoticed(tmp_path):
    path, policy = tmp_path / "c.pt", cartpole_policy()
    state = {**STATE, "weights": policy.state_dict()}
    save_checkpoint(path, state)
    whole, refused, silent = path.read_bytes(), 0, 0
    assert len(whole) > 50 * 512
    for damaged in damages(whole):
        path.write_bytes(damaged)
        # Some damages are in bytes that nobody reads.
        try:
            found = load_checkpoint(path)
        except ValueError as error:
            refused += "c.pt is damaged or no checkpoint: " in str(error)
        else:
            assert same_content(state, found)
        # Torch itself reads many of these files, and gives back something else.
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            unchecked = torch.load(path, weights_only=True)
            unchecked.pop("format")
            silent += not same_content(state, unchecked)
    assert refused > 320
    assert silent > 100


def test_a_file_of_an_older_version_tells_its_world_without_its_folder(tmp_path):
    state = {"settings": {"env": "CartPole-v1"}}
    seen, masked = look_at_env(tmp_path / "checkpoint.pt", state)
    assert (seen.shape, masked) == ((4,), False)


def test_a_file_with_a_digest_of_an_older_version_is_read(tmp_path):
    save_checkpoint(path := tmp_path / "c.pt", STATE)
    with path.open("r+b") as file:
        file.seek(-2, io.SEEK_END)
        file.write((32).to_bytes(2, "little") + bytes(range(32)))
    assert zipfile.ZipFile(path).comment == bytes(range(32))
    assert same_content(STATE, load_checkpoint(path))


def test_a_checkpoint_is_still_a_file_of_torch(tmp_path):
    save_checkpoint(tmp_path / "c.pt", STATE)
    state = torch.load(tmp_path / "c.pt", weights_only=True)
    assert state.pop("format") == FORMAT
    assert same_content(STATE, state)


def test_the_checkpoint_before_stays_and_is_named_when_the_last_is_damaged(tmp_path):
    path, previous = tmp_path / "c.pt", tmp_path / "c.previous.pt"
    for step in (1, 2, 3):
        save_checkpoint(path, {"step": step})
    assert load_checkpoint(previous) == {"step": 2}
    assert set(tmp_path.iterdir()) == {path, previous}
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


def test_the_checkpoint_before_stays_where_there_are_no_hard_links(
    tmp_path, monkeypatch
):
    def no_links(*paths):
        raise PermissionError("not on this file system")

    synced, fsync = [], os.fsync

    def sync(number):
        synced.append(os.fstat(number).st_ino)
        fsync(number)

    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(os, "fsync", sync)
    for step in (1, 2, 3):
        save_checkpoint(tmp_path / "c.pt", {"step": step})
    assert load_checkpoint(tmp_path / "c.previous.pt") == {"step": 2}
    assert (tmp_path / "c.previous.pt").stat().st_ino in synced[-3:]


def test_a_failed_save_costs_neither_the_checkpoint_nor_the_one_before(
    tmp_path, monkeypatch
):
    path = tmp_path / "c.pt"
    for step in (1, 2):
        save_checkpoint(path, {"step": step})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda number: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            save_checkpoint(path, {"step": 3})
    assert load_checkpoint(path) == {"step": 2}
    assert load_checkpoint(tmp_path / "c.previous.pt") == {"step": 1}
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_and_its_new_name_are_on_the_disk_when_it_is_saved(
    tmp_path, monkeypatch
):
    log, fsync, replace = [], os.fsync, os.replace

    def sync(number):
        log.append("directory" if stat.S_ISDIR(os.fstat(number).st_mode) else "file")
        fsync(number)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", lambda *a: (log.append("name"), replace(*a)))
    save_checkpoint(tmp_path / "c.pt", {"step": 1})
    assert log == ["file", "name", "directory"]


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

    save_checkpoint(path, {"step": -1})
    save_checkpoint(path, {"step": -1})
    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(list(tmp_path.iterdir())) == 2


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        load_checkpoint(tmp_path / "c.pt")
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint .*checkpoint"):
        load(tmp_path)


# --- A directory that is refused, or in use -------------------------------------------


def snapshot(directory):
    """Return the bytes of all files below a directory."""
    return {p: p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def make_run(directory, settings=None, learner=None):
    """Make a run that was killed, with more rows than its checkpoint knows of."""

    def die():
        raise RuntimeError

    learner = learner or Stopped(6, die)
    with pytest.raises(RuntimeError), Run(directory, settings) as run:
        fit(learner, run, progress=False)
    return run


def test_resuming_touches_nothing_before_there_is_something_to_write(tmp_path):
    make_run(tmp_path / "run")
    before = snapshot(tmp_path)
    with Run(tmp_path / "run", resume=True) as run:
        run.restore(Walker())
        assert snapshot(tmp_path) == before
        run.begin()
        after = snapshot(tmp_path)
        run.begin()
        assert snapshot(tmp_path) == after
    assert len(rows(run)) == 4 < before[run.metrics].count(b"\n")


class Wider(Walker):
    """A walker with a policy of another size."""

    def __init__(self):
        super().__init__()
        self.policy = small_policy(3)


class Elsewhere(Walker):
    """A walker whose policy counts its actions from 1; its weights have one shape."""

    def __init__(self):
        super().__init__()
        self.policy = small_policy(start=1)


class Phasic(Walker):
    """A walker with a policy of another kind."""

    def __init__(self):
        super().__init__()
        self.policy = make_phasic_policy(vectors(2), spaces.Discrete(2))


class Other(Walker):
    """A walker with other things to remember."""

    def load_state_dict(self, state):
        super().load_state_dict(state | {"step": state["iterations"]})


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        (Wider, "its policy is that of another algorithm or env"),
        (Elsewhere, "its policy is that of another algorithm or env"),
        (Phasic, "its policy is that of another algorithm or env"),
        (Other, "KeyError: 'iterations'"),
    ],
)
def test_a_checkpoint_of_another_learner_is_refused_and_nothing_lost(
    tmp_path, learner, message
):
    make_run(tmp_path / "run")
    before = snapshot(tmp_path)
    with Run(tmp_path / "run", resume=True) as run:
        with pytest.raises(ValueError, match=message) as caught:
            run.restore(learner())
        assert str(run.checkpoint) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert snapshot(tmp_path) == before


def break_settings(text):
    def change(directory):
        (directory / "settings.json").write_text(text)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (break_settings('{"env": "Other-v0"}'), "its env is 'A-v0', that of settings"),
        (break_settings('{"env": "A-v0", "algorithm": "x"}'), "its algorithm is None"),
        (break_settings('{"env": '), r"settings\.json is no JSON"),
        (lambda d: save_checkpoint(d / "checkpoint.pt", {}), "comes from no run"),
        (
            lambda d: (d / "metrics.csv").write_text("a\nx,1\n"),
            "metrics.csv must have 3 rows up to step 24, got 0",
        ),
        (
            lambda d: (d / "metrics.csv").write_bytes(b"\xff\n"),
            "metrics.csv must have 3 rows up to step 24, got 0",
        ),
    ],
)
def test_files_that_do_not_belong_together_are_refused_and_nothing_lost(
    tmp_path, change, message
):
    run = make_run(tmp_path / "run", {"env": "A-v0"})
    change(run.directory)
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match=message):
        Run(run.directory, resume=True)
    assert snapshot(tmp_path) == before


HEAD = "step,a\n"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (None, 0),
        ("", 0),
        (HEAD, 0),
        (HEAD + "8,1\n16,2\n", 2),
        (HEAD + "8,1\n16,2\n24,", 2),
        (HEAD + "8,1\n24,3\n32,4\n", 2),
    ],
)
def test_a_table_that_has_lost_something_is_refused_and_nothing_lost(
    tmp_path, text, number
):
    with Run(tmp_path) as run:
        learner = Walker()
        for learner.step in (8, 16, 24):
            run.log(learner.step, {"a": 1.0})
        run.save(learner)
    run.metrics.unlink() if text is None else run.metrics.write_text(text)
    before = snapshot(tmp_path)
    message = rf"metrics\.csv must have 3 rows up to step 24, got {number}; "
    with pytest.raises(ValueError, match=message):
        Run(tmp_path, resume=True)
    assert snapshot(tmp_path) == before


def test_what_stands_behind_the_checkpoint_may_be_as_it_likes(tmp_path):
    with Run(tmp_path) as run:
        run.log(8, {"a": 1.0})
        learner = Walker()
        learner.step = 8
        run.save(learner)
    with run.metrics.open("a") as file:
        file.write("32,4,4\n16\n9")
    with Run(tmp_path, resume=True) as run:
        run.log(16, {"a": 2.0})
        assert run.metrics.read_text() == HEAD + "8,1\n16,2\n"
        learner.step = 16
        run.save(learner)
    assert load_checkpoint(run.checkpoint)["rows"] == 2


@pytest.mark.parametrize("old", [False, True])
def test_a_run_that_never_logged_is_resumed(tmp_path, old):
    learner = Walker()
    with Run(tmp_path) as run:
        learner.iterate()
        run.save(learner)
    state = load_checkpoint(run.checkpoint)
    assert state.pop("rows") == 0
    if old:  # those of the first versions do not count rows
        save_checkpoint(run.checkpoint, state)
    with Run(tmp_path, resume=True) as run:
        run.log(16, {"a": 2.0})
    assert rows(run) == [["step", "a"], ["16", "2"]]


def test_without_settings_nothing_is_resumed(tmp_path):
    run = make_run(tmp_path / "run")
    (run.directory / "settings.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"settings\.json"):
        Run(run.directory, resume=True)


def test_a_damaged_run_goes_on_from_the_checkpoint_before_to_the_same_end(tmp_path):
    whole, resumed = Walker(), Walker()
    with Run(tmp_path / "whole") as whole_run:
        fit(whole, whole_run, progress=False)
    run = make_run(tmp_path / "run")
    run.checkpoint.write_bytes(run.checkpoint.read_bytes()[:-50])
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match="to go on from step 0, rename") as caught:
        Run(run.directory, resume=True)
    assert snapshot(tmp_path) == before
    old, new = re.search("rename (.*) to (.*)", str(caught.value)).groups()
    Path(old).replace(run.directory / new)
    with Run(run.directory, resume=True) as run:
        run.restore(resumed)
        assert resumed.step == 0
        fit(resumed, run, progress=False)
    assert torch.equal(weights(resumed.policy), weights(whole.policy))
    assert comparable(run) == comparable(whole_run)


def test_two_runs_do_not_write_to_one_directory(tmp_path):
    run = make_run(tmp_path / "run")
    with Run(run.directory, resume=True) as one, Run(run.directory, resume=True) as two:
        one.begin()
        before = snapshot(tmp_path)
        for write in (
            two.begin,
            lambda: two.log(32, {}),
            lambda: two.save(Walker()),
            lambda: fit(Walker(), two, progress=False),
        ):
            with pytest.raises(BlockingIOError, match="run is in use by another"):
                write()
        assert snapshot(tmp_path) == before
        assert load(run.directory).recipe == Walker().policy.recipe
    with Run(run.directory, resume=True) as run:
        run.begin()


@pytest.mark.parametrize("resume", [False, True])
def test_a_closed_run_writes_no_more(tmp_path, resume):
    directory = tmp_path / "run"
    if resume:
        make_run(directory)
    with Run(directory, resume=resume) as run:
        pass
    before = snapshot(tmp_path)
    for write in (
        run.begin,
        lambda: run.log(32, {}),
        lambda: run.save(Walker()),
        lambda: fit(Walker(), run, progress=False),
    ):
        with pytest.raises(ValueError, match=r"the run in .*run is closed: open it"):
            write()
    run.close()
    assert snapshot(tmp_path) == before


def test_a_run_that_went_on_meanwhile_is_read_again(tmp_path):
    directory = make_run(tmp_path / "run").directory
    with Run(directory, resume=True) as late:
        learner = Walker()
        with Run(directory, resume=True) as run:
            run.restore(learner)
            fit(learner, run, progress=False)
        before = snapshot(tmp_path)
        with pytest.raises(ValueError, match="has gone on since it was read"):
            late.begin()
    assert snapshot(tmp_path) == before


def test_what_a_killed_process_has_half_written_is_swept_up(tmp_path):
    directory = make_run(tmp_path / "run").directory
    half = beside(directory / "checkpoint.pt")
    half.write_bytes(b"half")
    ours = directory / "notes.new"
    ours.write_text("not yours")
    with Run(directory, resume=True) as run:
        assert half.exists()
        run.begin()
    assert not half.exists()
    assert ours.exists()


HOLD = """
import sys, time
from literate_rl.runs.runs import Run
with Run(sys.argv[1]) as run:
    run.log(8, {"a": 1.0})
    print("held", flush=True)
    time.sleep(600)
"""


def hold(directory):
    """Start a process that holds the lock of a run and sleeps."""
    process = Child(
        [sys.executable, "-c", HOLD, str(directory)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_goes_with_its_process(tmp_path, number):
    directory = tmp_path / "run"
    with hold(directory) as process:
        save_checkpoint(directory / "checkpoint.pt", {"step": 8})
        with Run(directory, resume=True) as run:
            with pytest.raises(BlockingIOError, match="in use by another process"):
                run.begin()
            process.send_signal(number)
            assert process.wait(timeout=60) == -number
            run.begin()
            assert [row[0] for row in rows(run)] == ["step", "8"]


def test_new_runs_of_one_name_do_not_share_it(tmp_path):
    with hold(tmp_path / "run") as process:
        (tmp_path / "run" / "metrics.csv").unlink()  # as before the first row
        with pytest.raises(BlockingIOError, match="in use by another process"):
            Run(tmp_path / "run", {"seed": 2})
        process.kill()
    with Run(tmp_path / "run", {"seed": 2}) as run:
        assert json.loads((run.directory / "settings.json").read_text()) == {"seed": 2}


def test_rows_are_on_the_disk_when_a_checkpoint_is(tmp_path, monkeypatch):
    log, fsync = [], os.fsync

    def sync(number):
        log.append(os.fstat(number).st_ino)
        fsync(number)

    with Run(tmp_path / "run") as run:
        run.log(8, {"a": 1.0})
        monkeypatch.setattr(os, "fsync", sync)
        run.save(Walker())
    files = [run.metrics.stat().st_ino, run.checkpoint.stat().st_ino]
    assert [number for number in log if number in files] == files


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


POLICIES = {
    "discrete": lambda: make_policy(vectors(3), spaces.Discrete(4), hidden=8),
    "discrete, from 1": lambda: small_policy(3, start=1),
    "discrete, normalised": lambda: small_policy(3, normalize=True),
    "box": lambda: make_policy(
        vectors(3),
        spaces.Box(np.float32([-2.0, 0.0]), np.float32([2.0, 1.0])),
        hidden=8,
    ),
    "endless box": lambda: make_policy(
        vectors(3), spaces.Box(-np.inf, np.inf, (1,)), normalize=True
    ),
    "hybrid": lambda: make_hybrid_policy(
        vectors(3), Moving().action_space, normalize=True
    ),
    "phasic": lambda: make_phasic_policy(
        vectors(3), spaces.Discrete(4), normalize=True
    ),
    "phasic, box": lambda: make_phasic_policy(vectors(3), spaces.Box(-2, 2, (2,))),
    "phasic, hybrid": lambda: make_phasic_policy(
        vectors(3), Moving().action_space, share_encoder=True
    ),
    "values": lambda: make_q_policy(vectors(3), spaces.Discrete(4), dueling=True),
    "distributions": lambda: make_rainbow_policy(vectors(3), spaces.Discrete(4)),
}
# Those whose values are values of actions.
BOX = spaces.Box(np.float32([-2.0, 0.0]), np.float32([2.0, 1.0]))
WITH_CRITICS = {
    "an action": lambda: make_ddpg_policy(vectors(3), BOX, num_critics=2),
    "a row": lambda: make_ddpg_policy(vectors(3), spaces.Discrete(4, start=1)),
    "squashed": lambda: make_sac_policy(vectors(3), BOX, hold=3),
    "soft": lambda: make_discrete_sac_policy(vectors(3), spaces.Discrete(4)),
}
# Those that need a model of the user's own are loaded in tests/test_training.py.
WITH_MODELS = {
    "make_contract_policy",
    "make_own_ddpg_policy",
    "make_own_sac_policy",
    "make_qnet_policy",
}


def save_policy(path, policy, name=None):
    maker, arguments = policy.recipe
    state = {"recipe": (name or maker, arguments), "weights": policy.state_dict()}
    save_checkpoint(path, {"step": 0, "policy": state})


ALL_POLICIES = POLICIES | WITH_CRITICS


@pytest.mark.parametrize("make", ALL_POLICIES.values(), ids=ALL_POLICIES)
def test_a_policy_comes_back_and_acts_the_same(tmp_path, make):
    torch.manual_seed(0)
    policy, obs = make(), torch.randn(7, 3)
    if policy.recipe[1].get("normalize"):
        policy.network.normalizer.update(5 * torch.randn(20, 3) + 1)
    save_policy(tmp_path / "checkpoint.pt", policy)
    again = load(tmp_path)
    assert type(again.actions) is type(policy.actions)
    assert again.recipe == policy.recipe
    assert not again.training
    noise = policy.noise(1, 7, torch.Generator().manual_seed(1))[0]
    for given_ in (0.0, noise):
        action = policy.act(obs, given_)
        assert torch.equal(again.act(obs, given_), action)
        with torch.no_grad():
            np.testing.assert_equal(
                again.to_env(again.act(obs, given_)), policy.to_env(action.detach())
            )


@pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES)
def test_a_policy_that_comes_back_judges_the_same(tmp_path, make):
    torch.manual_seed(0)
    policy, obs = make(), torch.randn(7, 3)
    save_policy(tmp_path / "checkpoint.pt", policy)
    again = load(tmp_path)
    with torch.no_grad():
        action = policy.act(obs, 0.0)
    assert torch.equal(load(tmp_path / "checkpoint.pt").value(obs), policy.value(obs))
    terms = zip(
        again.evaluate_actions(obs, action),
        policy.evaluate_actions(obs, action),
        strict=True,
    )
    assert all(torch.equal(one, other) for one, other in terms)


def test_a_policy_that_sees_pictures_comes_back(tmp_path):
    box = spaces.Box(-1, 1, (3, 7, 7))
    policy = make_rainbow_policy(box, spaces.Discrete(4), hidden=8)
    save_policy(tmp_path / "c.pt", policy)
    obs = torch.randn(2, 3, 7, 7)
    assert torch.equal(load(tmp_path / "c.pt").act(obs, 0.0), policy.act(obs, 0.0))


def test_every_builder_of_policies_is_among_those_tested():
    public = [name for name in literate_rl.__all__ if name.endswith("policy")]
    builders = {name for name in public if name.startswith("make_")}
    # What remembers has tests of its own.
    assert builders - WITH_MODELS - {"make_recurrent_policy"} == {
        make().recipe[0] for make in ALL_POLICIES.values()
    }


@pytest.mark.parametrize(
    "name",
    [
        *("Missing", "evaluate", "Policy", "Run", "RunningMoments", "load", "nn"),
        *("__doc__", "make_envs", "make_actions", "make_odd_policy", "make_policy "),
        *("ppo.make_policy", "policy", "Makepolicy", ""),
    ],
)
def test_only_builders_of_policies_are_called(tmp_path, monkeypatch, name):
    """Neither another public function nor one that is not public."""
    policy = small_policy()
    policy.recipe = (name, policy.recipe[1])
    save_policy(tmp_path / "c.pt", policy)
    called = []
    if name.isidentifier() and not name.startswith("__"):
        spy = lambda **arguments: called.append(arguments)  # noqa: E731
        monkeypatch.setattr(literate_rl, name, spy, raising=False)
    with pytest.raises(ValueError, match=f"wants '{name}', unknown here"):
        load(tmp_path / "c.pt")
    assert not called


@pytest.mark.parametrize(
    "state",
    [
        {"step": 1},
        {"policy": None},
        {"policy": "make_policy"},
        {"policy": {"weights": {}}},
        {"policy": {"recipe": ("make_policy", {})}},
        {"policy": {"recipe": "make_policy", "weights": {}}},
        {"policy": {"recipe": ("make_policy",), "weights": {}}},
        {"policy": {"recipe": None, "weights": {}}},
        {"policy": torch.zeros(3)},
        {"policy": [1]},
    ],
    ids=str,
)
def test_a_checkpoint_without_a_policy_is_refused(tmp_path, state):
    save_checkpoint(tmp_path / "c.pt", state)
    with pytest.raises(ValueError, match=r"c\.pt holds no policy that can be built"):
        load(tmp_path / "c.pt")


def other_recipe(**changes):
    return ("make_policy", {**small_policy().recipe[1], **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": ("make_policy", {})},
        {"recipe": ("make_policy", [1])},
        {"recipe": ("make_policy", None)},
        {"recipe": other_recipe(hidden="four")},
        {"recipe": other_recipe(hidden=5)},
        {"recipe": other_recipe(envs=2)},
        {"recipe": other_recipe(observation_space={"n": 2, "start": 0})},
        {"recipe": other_recipe(action_space=None)},
        {"recipe": other_recipe(models=3)},
        {"recipe": other_recipe(models=None)},
        {"recipe": other_recipe(models=["qnet"])},
        {"weights": {}},
        {"weights": None},
    ],
    ids=range(13),
)
def test_a_policy_that_does_not_fit_its_recipe_is_refused(tmp_path, changes):
    policy = small_policy()
    saved = {"recipe": policy.recipe, "weights": policy.state_dict(), **changes}
    save_checkpoint(tmp_path / "c.pt", {"policy": saved})
    message = r"c\.pt holds no policy that can be built"
    with pytest.raises(ValueError, match=message) as caught:
        load(tmp_path / "c.pt")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [["make_policy"], 3, None, {"make_policy": 1}])
def test_a_builder_is_a_name(tmp_path, name):
    saved = {"recipe": (name, {}), "weights": {}}
    save_checkpoint(tmp_path / "c.pt", {"policy": saved})
    with pytest.raises(ValueError, match="unknown here"):
        load(tmp_path / "c.pt")


def test_a_run_saves_a_policy_that_loads(tmp_path):
    learner = Walker()
    with Run(tmp_path / "run") as run:
        fit(learner, run, progress=False)
    assert torch.equal(weights(load(tmp_path / "run")), weights(learner.policy))


# --- Video ----------------------------------------------------------------------------


def test_who_plays_leaves_modes_and_moments_alone(tmp_path):
    policy = Policy(ActorCritic(moody(4, 2), moody(4, 1)), CategoricalActions(2))
    with left_alone(policy):
        totals = [record_video(policy, "CartPole-v1", tmp_path / "x.mp4") for _ in "ab"]
        assert totals == [evaluate(policy, "CartPole-v1", 1)[0]] * 2


def test_a_video_has_a_frame_for_each_step_and_needs_no_screen(tmp_path, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    path, policy = tmp_path / "video.mp4", cartpole_policy()
    total = record_video(policy, "CartPole-v1", path, seed=3)
    assert total == evaluate(policy, "CartPole-v1", 1, seed=3)[0]
    frames, _ = imageio_ffmpeg.count_frames_and_secs(str(path))
    assert frames == total
    facts = next(imageio_ffmpeg.read_frames(str(path)))
    assert facts["size"] == (600, 400)
    assert facts["fps"] == gym.spec("CartPole-v1").make().metadata["render_fps"]
    assert facts["codec"] == "h264"
    assert [file.name for file in tmp_path.iterdir()] == ["video.mp4"]


def film(colour, number=40):
    """Return frames of noise: a film of them is large."""
    rng = np.random.default_rng(colour)
    return list(rng.integers(0, 256, (number, 64, 64, 3), np.uint8))


def write_video(path, frames):
    with video_writer(path, 30) as write:
        for frame in frames:
            write(frame)


def half_of(write):
    """Return a writer of videos that ends after 20 frames and does not say so."""

    def torn(*arguments, **options):
        writer = write(*arguments, **options)
        yield writer.send(None)
        for _ in range(20):
            writer.send((yield))
        writer.close()
        while True:
            yield

    return torn


@contextmanager
def files_of_at_most(size):
    """Let no process write a longer file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("full", [False, True])
def test_a_torn_film_replaces_no_whole_one(tmp_path, monkeypatch, full):
    path = tmp_path / "video.mp4"
    write_video(path, film(0))
    before = snapshot(tmp_path)
    if not full:
        half = half_of(imageio_ffmpeg.write_frames)
        monkeypatch.setattr(imageio_ffmpeg, "write_frames", half)
    with (
        files_of_at_most(path.stat().st_size // 2) if full else nullcontext(),
        pytest.raises(OSError, match=r"video\.mp4 could not be written; is the disk"),
    ):
        write_video(path, film(1))
    assert snapshot(tmp_path) == before


def test_an_environment_that_cannot_be_drawn_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"env .* has no render mode 'rgb_array'"):
        record_video(small_policy(), Lottery, tmp_path / "video.mp4")
    with pytest.raises(ValueError, match="env 'Nothing-v0' cannot be made"):
        record_video(small_policy(), "Nothing-v0", tmp_path / "video.mp4")
    assert not list(tmp_path.iterdir())


class Pacing(gym.Env):
    """Walks to and fro and draws itself, without an end."""

    metadata = {"render_modes": ["rgb_array", "human"], "render_fps": 30}
    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)
    drawn: ClassVar[list[Any]] = []
    interrupted_at = None
    open = 0

    def __init__(self, render_mode=None):
        self.render_mode, self.steps = render_mode, 0
        Pacing.open += 1

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.interrupted_at:
            raise KeyboardInterrupt
        return np.zeros(2, np.float32), 1.0, False, False, {}

    def render(self):
        frame = np.full((16, 16, 3), self.steps, np.uint8)
        self.drawn.append(weakref.ref(frame))
        assert sum(kept() is not None for kept in self.drawn) < 5, "frames are kept"
        return frame

    def close(self):
        Pacing.open -= 1


def test_a_film_without_an_end_is_cut_off_and_told(tmp_path):
    path = tmp_path / "video.mp4"
    words = r"env 'Pacing': 1 of 1 episodes .* 40 steps"
    with pytest.warns(UserWarning, match=words) as told:
        total = record_video(small_policy(), Pacing, path, max_episode_steps=40)
    assert told[0].filename == __file__, "it points to whoever called"
    with pytest.raises(ValueError, match="max_episode_steps must be at least 1, got 0"):
        record_video(small_policy(), Pacing, path, max_episode_steps=0)
    assert total == imageio_ffmpeg.count_frames_and_secs(str(path))[0] == 40
    limit = inspect.signature(record_video).parameters["max_episode_steps"].default
    assert limit == 3_000
    assert 60 <= limit / 50 <= limit / 30 <= 120, "a minute or two"


@pytest.mark.parametrize("when", [1, 20])
@pytest.mark.parametrize("error", [RuntimeError, OSError])
def test_what_fails_while_a_film_is_made_keeps_its_words(tmp_path, error, when):
    class Failing(Pacing):
        def render(self):
            if self.steps == when:
                raise error("mine")
            return super().render()

    path, before = tmp_path / "video.mp4", Pacing.open
    path.write_bytes(b"an older film")
    with pytest.raises(error, match=r"^mine\n") as failed:
        record_video(small_policy(), Failing, path)
    assert f"in step {when} of its episode" in failed.value.__notes__
    assert [file.name for file in tmp_path.iterdir()] == ["video.mp4"]
    assert path.read_bytes() == b"an older film"
    assert Pacing.open == before


def test_ctrl_c_closes_the_window(monkeypatch):
    monkeypatch.setattr(Pacing, "interrupted_at", 100)
    before = Pacing.open
    with pytest.raises(KeyboardInterrupt):
        show(small_policy(), Pacing)
    assert Pacing.open == before


def test_show_plays_one_episode_in_a_window():
    modes = []

    def make(render_mode):
        modes.append(render_mode)
        return Lottery(render_mode)

    policy = small_policy()
    for seed in range(4):
        assert show(policy, make, seed) == evaluate(policy, Lottery, 1, seed)[0]
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


@pytest.fixture
def folder(tmp_path, monkeypatch):
    place = tmp_path / "benchmarks" / "results" / "learning"
    place.mkdir(parents=True)
    for name, text in STORED.items():
        (place / name).write_text(text, "utf-8")
    below = tmp_path / "chapters" / "notebooks"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    return place


def test_stored_runs_are_grouped_by_variant(folder):
    runs = stored_runs("x")
    assert list(runs) == ["as it is", "other"]
    first = runs["as it is"]
    assert first.steps.tolist() == [100, 200, 400]
    # The gap at 200 is filled by the line from 1 at 100 to 7 at 400, and a gap at an
    # end by its neighbour.
    assert first.curves.tolist() == [[1, 3, 7], [4, 4, 5]]
    assert first.final.tolist() == [10, 20]
    np.testing.assert_equal(first.area, [5, np.nan])
    assert first.cpu_seconds.tolist() == [1, 2]
    assert {k: x.tolist() for k, x in first.judged.items()} == {"unseen": [0.5, 0.75]}
    assert runs["other"].curves.tolist() == [[9, 8, 8]]


def test_stored_runs_of_a_folder(folder, monkeypatch):
    monkeypatch.chdir("/")
    assert list(stored_runs("x", folder)) == ["as it is", "other"]


def test_stored_runs_that_are_not_there(folder, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"/y\.csv"):
        stored_runs("y")
    monkeypatch.chdir("/")
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
    ends = {}
    for restored in ("all", "weights"):
        resumed = start()
        resumed[0].load_state_dict(halfway[0].state_dict())
        if restored == "all":
            resumed[1].load_state_dict(halfway[1].state_dict())
            resumed[2].set_state(halfway[2].get_state())
        train(10, *resumed)
        ends[restored] = weights(resumed[0])
    assert torch.equal(ends["all"], weights(whole[0]))
    assert (ends["weights"] - weights(whole[0])).abs().max() > 0.01
