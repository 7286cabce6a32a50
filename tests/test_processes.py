"""Actors in processes, which are started and killed for real."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from processes import Child
from test_actors import SMALL, log_probs, make_learner, policy_for
from worlds import counting, deadly

from literate_rl.actors.actors import (
    Actor,
    ActorLearner,
    Census,
    InProcess,
    slot_layout,
    weights_of,
)
from literate_rl.actors.processes import (
    SharedMemory,
    count_death,
    pickled,
    transport_named,
)
from literate_rl.apps.cli import main
from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.data.episodes import in_one_line
from literate_rl.interfaces.cluster import RayActors
from literate_rl.runs.runs import Run, fit, load_checkpoint

ROOT = Path(__file__).resolve().parents[1]

# --- Processes ------------------------------------------------------------------------


def wave(policy: Any, version: int) -> dict[str, np.ndarray]:
    """Return weights that are a wave, which begins elsewhere for each version."""
    return {
        name: 0.3 * np.sin(np.arange(x.size) + version).reshape(x.shape).astype(x.dtype)
        for name, x in weights_of(policy).items()
    }


class Witness:
    """Takes unrolls from a transport and checks each of them.

    An unroll is whole if its steps follow each other in every environment. It was made
    with one version if what the policy said fits these weights and no other. Over all
    unrolls of an environment no step may be missing and none may come twice.
    """

    def __init__(self, transport: Any, policy: Any, actors: int, slots: int) -> None:
        self.transport, self.policy = transport, policy
        self.versions: dict[Any, int] = {}
        self.version = self.frames = 0
        self.next_step: dict[float, int] = defaultdict(int)
        for index in range(slots):
            for actor in range(actors):
                self.submit((actor, index))

    def submit(self, slot: Any) -> None:
        self.versions[slot] = self.version
        self.transport.submit(slot, wave(self.policy, self.version))

    def take(self) -> None:
        slot, unroll = self.transport.receive()
        steps = len(unroll["reward"])
        name, count = unroll["obs_plus_1"][..., 0], unroll["obs_plus_1"][..., 1]
        for b in range(unroll["reward"].shape[1]):
            start = self.next_step[name[0, b]]
            assert (name[:, b] == name[0, b]).all()
            assert (count[:, b] == np.arange(start, start + steps + 1)).all()
            assert (unroll["reward"][:, b] == count[1:, b]).all()
            self.next_step[name[0, b]] = start + steps
        weights = wave(self.policy, self.versions[slot])
        self.policy.load_state_dict(
            {k: torch.from_numpy(x) for k, x in weights.items()}
        )
        said = log_probs(self.policy, unroll)
        np.testing.assert_allclose(unroll["log_prob"], said, rtol=1e-5, atol=1e-6)
        self.frames += unroll["reward"].size
        self.version += 1
        self.submit(slot)

    def take_until(self, condition: Callable[[], bool], seconds: float = 120.0) -> None:
        """Take unrolls until something has happened, but not for ever."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it has not happened"
            self.take()


def shared(
    build: Callable[[], SyncVectorEnv],
    actors: int = 1,
    slots: int = 2,
    steps: int = 8,
    make_act: Any = None,
) -> tuple[SharedMemory, Any]:
    policy = policy_for(build())
    layout = slot_layout(policy, build(), steps)
    make_actor = partial(Actor, build, policy, make_act=make_act)
    return SharedMemory(make_actor, layout, 1, actors, slots), policy


def pids(transport: SharedMemory) -> list[int]:
    return [life.process.pid for life in transport.lives]


def gone(*numbers: int) -> bool:
    """Wait, for a bounded time, until no such process is left."""
    return eventually(lambda: not any(map(psutil.pid_exists, numbers)))


def eventually(condition: Callable[[], bool], seconds: float = 90.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_what_makes_a_faster_form_travels_by_its_name() -> None:
    transport, policy = shared(counting, make_act=numpy_act)
    witness = Witness(transport, policy, actors=1, slots=2)
    for _ in range(6):
        witness.take()
    transport.close()


@pytest.mark.equation("slot-memory")
def test_memory_is_bounded_by_the_slots_and_actors_sleep_while_they_wait() -> None:
    """A learner that does not come: the queue fills up, and then nothing happens."""
    transport, policy = shared(counting, actors=2, slots=3)
    layout = transport.layout
    pockets = layout["weights"].itemsize + layout["result"].itemsize
    assert 0 <= layout.itemsize - pockets < 16  # what alignment costs
    assert sum(map(len, transport.memory)) == 2 * 3 * layout.itemsize
    witness = Witness(transport, policy, actors=2, slots=3)
    witness.take()  # all have begun
    actors = [psutil.Process(pid) for pid in pids(transport)]

    def spent() -> float:
        return sum(sum(actor.cpu_times()[:2]) for actor in actors)

    def asleep() -> bool:
        before = spent()
        time.sleep(0.2)
        # On a busy machine somebody may be awake and get no time.
        resting = all(actor.status() == "sleeping" for actor in actors)
        return resting and spent() == before

    assert eventually(asleep)
    before = [actor.memory_info().rss for actor in actors]
    for _ in range(5):
        assert asleep()
    assert [actor.memory_info().rss for actor in actors] == before
    witness.take()
    assert transport.waiting == 5
    for _ in range(20):
        witness.take()
    transport.close()
    assert gone(*(actor.pid for actor in actors))


def test_actors_that_are_killed_are_replaced_and_nothing_is_torn_or_counted_twice():
    """Kill at random moments, in the middle of an unroll and while waiting."""
    rng = random.Random(0)
    transport, policy = shared(partial(counting, nap=0.0005), actors=2, slots=2)
    witness, kills = Witness(transport, policy, actors=2, slots=2), 0
    everyone = set(pids(transport))
    for _ in range(14):
        for _ in range(rng.randrange(1, 8)):
            witness.take()
        time.sleep(0.02 * rng.random())
        victims = rng.choice([[0], [1], [0, 1]])
        for actor in victims:
            os.kill(pids(transport)[actor], signal.SIGKILL)
        kills += len(victims)
        witness.take_until(lambda kills=kills: transport.census.replaced >= kills)
        everyone |= set(pids(transport))
    for _ in range(30):
        witness.take()
    assert transport.census.replaced == kills
    assert transport.census.at_work == 2
    assert len(everyone) == 2 + kills
    # Each environment begins at its first step and goes on without a gap.
    assert witness.frames == sum(witness.next_step.values())
    transport.close()
    assert gone(*everyone)


def test_an_actor_that_hangs_does_not_keep_the_learner_from_ending() -> None:
    transport, policy = shared(counting)
    witness = Witness(transport, policy, actors=1, slots=2)
    witness.take()
    (pid,) = pids(transport)
    os.kill(pid, signal.SIGSTOP)
    transport.close()
    assert gone(pid)
    transport.close()  # twice is no mistake
    with pytest.raises(ValueError, match="this transport is closed"):
        transport.receive()


def test_ctrl_c_is_not_for_actors() -> None:
    transport, policy = shared(counting)
    witness = Witness(transport, policy, actors=1, slots=2)
    for _ in range(3):
        os.kill(pids(transport)[0], signal.SIGINT)
        witness.take()
    assert transport.census.replaced == 0
    transport.close()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_error_in_an_actor_ends_the_run_with_its_words(error) -> None:
    # With one slot the actor goes on only when the learner has taken what there was.
    transport, policy = shared(partial(counting, fails_at=20, error=error), slots=1)
    witness = Witness(transport, policy, actors=1, slots=1)
    for _ in range(2):  # two unrolls of 8 steps are below step 20
        witness.take()
    # `sys.exit` in an environment is an error.
    with pytest.raises(ValueError, match="the pole is made of glass") as raised:
        witness.take()
    words = in_one_line(raised.value)
    assert "worlds.py" in words
    assert "failed in step: " in words
    assert "in copy 0" in words
    assert "in actor 0" in words
    # A developer finds the rest.
    quoted = raised.value.__cause__
    assert "actor 0 failed: " in str(quoted)
    assert "Traceback (most recent call last)" in str(quoted.__cause__)
    transport.close()


class EnoughError(Exception):
    """An error of a user's, with something to tell."""

    def __init__(self, words: str, value: int = 7) -> None:
        super().__init__(words)
        self.value = value


class LocalError(Exception):
    """An error that can be written down and not read again."""

    def __init__(self, words: str, value: int) -> None:
        super().__init__(words)


def local(words: str) -> LocalError:
    return LocalError(words, 3)


def test_an_error_of_ones_own_comes_from_an_actor_and_what_was_learned_is_saved(
    tmp_path,
) -> None:
    changes = {"actors": 1, "num_envs": 2, "checkpoint_interval": 10**6}
    config = replace(SMALL, transport="shared", **changes)
    build = partial(counting, fails_at=40, error=EnoughError)
    learner = ActorLearner(policy_for(counting()), build, config, SharedMemory)
    expected = pytest.raises(EnoughError, match="the pole is made of glass")
    with Run(tmp_path / "a", {}) as run, learner, expected as raised:
        fit(learner, run, progress=False)
    assert raised.value.value == 7
    assert load_checkpoint(tmp_path / "a/checkpoint.pt")["step"] == learner.step > 0


def test_an_error_that_cannot_travel_is_quoted() -> None:
    transport, policy = shared(partial(counting, fails_at=4, error=local), slots=1)
    witness = Witness(transport, policy, actors=1, slots=1)
    with pytest.raises(ChildProcessError, match="actor 0 failed: LocalError: the pole"):
        witness.take()
    transport.close()


class Closing:
    """An actor that leaves a file when it is closed, and then takes its time."""

    def __init__(self, path: Path, nap: float, fails: bool, seed: int) -> None:
        self.path, self.nap, self.fails = path, nap, fails

    def work(self, weights: Any, out: Any) -> None:
        if self.fails:
            raise ValueError("the pole is made of glass")

    def close(self) -> None:
        self.path.touch()
        time.sleep(self.nap)
        raise OSError("the simulator does not answer")


@pytest.mark.parametrize(("nap", "fails"), [(0.0, False), (0.0, True), (3600.0, False)])
def test_an_actor_that_leaves_is_closed_but_not_waited_for_long(
    nap, fails, tmp_path
) -> None:
    layout = np.dtype([("weights", [("w", "f4")]), ("result", "f4")])
    path = tmp_path / "closed"
    transport = SharedMemory(partial(Closing, path, nap, fails), layout, 1, 1, 1)
    (pid,) = pids(transport)
    transport.submit((0, 0), {})
    if fails:
        with pytest.raises(ValueError, match="the pole is made of glass"):
            transport.receive()
    else:
        transport.receive()
    before = time.monotonic()
    transport.close()
    assert gone(pid)
    assert path.exists()
    if nap:
        assert time.monotonic() - before < 60, "it was killed"


def test_a_machine_without_file_handles_starts_no_actor_and_loses_none() -> None:
    transport, _ = shared(counting)
    me, limits = psutil.Process(), resource.getrlimit(resource.RLIMIT_NOFILE)
    before = me.num_fds()
    message = "actor 0 cannot be started: OSError: .* Too many open files .* may lack"
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        with pytest.raises(ChildProcessError, match=message):
            transport.start(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert me.num_fds() == before
    transport.close()


def refuse(*_: Any) -> None:
    """Fail as a process does whose fork server cannot fork."""
    raise EOFError("unexpected EOF")


def test_a_run_whose_actor_cannot_be_replaced_is_saved(tmp_path, monkeypatch) -> None:
    config = replace(SMALL, actors=1, slots=1, num_envs=2, checkpoint_interval=10**6)
    config = replace(config, transport="shared", total_steps=10**7)
    build, policy = partial(counting, dies_at=12), policy_for(counting())
    learner = ActorLearner(policy, build, config, SharedMemory)
    with Run(tmp_path / "a", {}) as run, learner:
        transport, me = learner.start(), psutil.Process()
        monkeypatch.setattr(transport.context.Process, "start", refuse)
        before = me.num_fds()
        message = "actor 0 cannot be started: EOFError: unexpected EOF"
        with pytest.raises(ChildProcessError, match=message):
            fit(learner, run, progress=False)
        assert me.num_fds() <= before
    assert learner.step == 2 * 2 * 5
    assert load_checkpoint(tmp_path / "a/checkpoint.pt")["step"] == learner.step


def test_no_actor_is_left_if_another_one_cannot_be_started(monkeypatch) -> None:
    context = get_context("forkserver")
    start, started = context.Process.start, []

    def start_one(process: Any) -> None:
        if started:
            refuse()
        start(process)
        started.append(process.pid)

    monkeypatch.setattr(context.Process, "start", start_one)
    with pytest.raises(ChildProcessError, match="actor 1 cannot be started") as raised:
        shared(counting, actors=2)
    assert gone(*started)
    del raised  # with it the pipes would have been closed


def test_an_actor_that_always_dies_is_given_up() -> None:
    policy = policy_for(counting(1))
    layout = slot_layout(policy, counting(1), 4)
    transport = SharedMemory(partial(Actor, deadly, policy), layout, 1, 1, 2)
    witness = Witness(transport, policy, actors=1, slots=2)
    message = "actor 0 died 3 times before its first unroll, .* exit code -9"
    with pytest.raises(ChildProcessError, match=message):
        witness.take()
    transport.close()


@pytest.mark.parametrize(
    ("lives", "given_up"),
    [
        ([0, 0, 0], True),
        ([0, 0, 1, 0, 0], False),
        ([9] * 20, True),
        ([9] * 19, False),
        ([9] * 19 + [10] + [9] * 19, False),
        ([50, 60, 70] + [1] * 20, True),
        ([50, 60, 0, 0, 0], True),
        ([11] * 1000, False),
    ],
)
def test_patience_ends_with_many_short_lives_in_a_row(lives, given_up) -> None:
    """The other actor's long life does not help."""
    census = Census(actors=2, seed=0)
    census.unrolls[1] = 1000
    for number, unrolls in enumerate(lives, 1):
        census.unrolls[0] = unrolls
        if number == len(lives) and given_up:
            with pytest.raises(ChildProcessError, match=r"actor 0 died \d+ times"):
                count_death(census, 0, "exit code -11")
        else:
            count_death(census, 0, "exit code -11")
            assert census.replaced == number
            assert census.unrolls == [0, 1000]


# --- Actors that hang -----------------------------------------------------------------


def hurry(transport: Any) -> None:
    """Give the only actor half a second; its successor has as long as it needs."""
    replace, transport.deadline = transport.replace, 0.5

    def once(*arguments: Any) -> None:
        replace(*arguments)
        transport.deadline = 300.0

    transport.replace = once


def test_an_actor_that_is_stopped_is_replaced_when_its_deadline_has_passed() -> None:
    """It is the only one. Without a successor the learner would wait for ever."""
    transport, policy = shared(counting)
    witness = Witness(transport, policy, actors=1, slots=2)
    witness.take()
    (pid,) = pids(transport)
    os.kill(pid, signal.SIGSTOP)
    hurry(transport)
    # Unrolls of the first life may still be in its pipe.
    witness.take_until(lambda: transport.census.replaced == 1)
    for _ in range(10):
        witness.take()
    assert transport.census.replaced == 1
    assert transport.census.at_work == 1
    assert witness.frames == sum(witness.next_step.values())
    assert gone(pid)
    transport.close()


def test_the_others_go_on_while_one_hangs_and_then_they_are_all_there_again() -> None:
    transport, policy = shared(counting, actors=2)
    witness, census = Witness(transport, policy, actors=2, slots=2), transport.census
    witness.take_until(lambda: census.at_work == 2)
    (pid, other) = pids(transport)
    os.kill(pid, signal.SIGSTOP)
    for _ in range(20):
        witness.take()
    assert census.replaced == 0, "nobody is hurried before the deadline"
    transport.lives[0].since -= 301  # now it has passed
    witness.take()
    assert (census.replaced, census.at_work) == (1, 1)
    witness.take_until(lambda: census.at_work == 2)
    assert gone(pid)
    assert witness.frames == sum(witness.next_step.values())
    transport.close()
    assert gone(other)


def test_a_learner_that_always_learns_for_long_replaces_one_that_hangs() -> None:
    """Each look comes later than a deadline after the one before."""
    transport, policy = shared(counting, actors=2)
    witness, census = Witness(transport, policy, actors=2, slots=2), transport.census
    witness.take_until(lambda: census.at_work == 2)
    (pid, other), works = pids(transport), transport.lives[1]
    os.kill(pid, signal.SIGSTOP)
    for _ in range(20):  # some unrolls may still be in its pipe
        if census.replaced:
            break
        # The other one has had the time to work.
        assert eventually(lambda: not works.held or works.whole.poll())
        for life in transport.lives:
            life.since -= 301
        witness.take()
    assert census.replaced == 1
    assert gone(pid)
    assert pids(transport)[1] == other
    transport.close()


def test_an_environment_that_never_returns_is_given_up_in_the_end() -> None:
    """In its first unroll: three deadlines, and a message that names the setting."""
    transport, policy = shared(partial(counting, hangs_at=3))
    transport.deadline = 0.2
    witness = Witness(transport, policy, actors=1, slots=2)
    everyone = pids(transport)
    message = r"actor 0 died 3 times before its first unroll, .* deadline of 0.2 s"
    with pytest.raises(ChildProcessError, match=message):
        witness.take()
    transport.close()
    assert gone(*everyone)


def test_a_learner_that_was_away_blames_nobody() -> None:
    """While it does something else, all tokens come back. It hears them first."""
    transport, policy = shared(counting, actors=2)
    witness = Witness(transport, policy, actors=2, slots=2)
    # No token that was heard already is left, so that each of them comes back.
    witness.take_until(lambda: transport.census.at_work == 2 and not transport.whole)
    assert eventually(lambda: all(life.whole.poll() for life in transport.lives))
    for life in transport.lives:
        life.since -= 301
    transport.receive()
    assert transport.census.replaced == 0
    transport.close()


def interrupted_while_all_hang(learner: Any, directory: Path) -> list[dict[str, float]]:
    """Run a learner, stop its actors one day, and press Ctrl-C while it waits."""
    steps, iterate = [], learner.iterate

    def watched() -> dict[str, float]:
        if len(steps) == 6:
            stopped = pids(learner.transport)
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            # All that had been sent before has been learned from when it waits.
            threading.Thread(target=press, args=(stopped,), daemon=True).start()
        row = iterate()
        steps.append(learner.step)
        return row

    def press(stopped: list[int]) -> None:
        done = -1
        while done < len(steps):
            done = len(steps)
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)
        if ended.wait(120):
            return
        gave_in.append(True)
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    learner.iterate, ended, gave_in = watched, threading.Event(), []
    with Run(directory, {}) as run:
        history = fit(learner, run, progress=False)
    ended.set()
    assert not gave_in, "it ended when its actors went on"
    assert [row["step"] for row in history] == steps
    assert load_checkpoint(directory / "checkpoint.pt")["step"] == steps[-1]
    return history


def test_ctrl_c_ends_a_run_that_waits_for_actors_that_hang(tmp_path) -> None:
    options = {"total_steps": 10**7, "checkpoint_interval": 10**6}
    with make_learner(transport=SharedMemory, **options) as learner:
        learner.start()
        everyone = pids(learner.transport)
        history = interrupted_while_all_hang(learner, tmp_path / "a")
    assert learner.transport is None
    assert gone(*everyone)
    resumed = make_learner(total_steps=history[-1]["step"] + 30)
    with Run(tmp_path / "a", resume=True) as run:
        run.restore(resumed)
        rows = fit(resumed, run, progress=False)
    assert [row["step"] for row in rows] == [history[-1]["step"] + x for x in (15, 30)]


def test_a_run_whose_actors_are_given_up_is_saved(tmp_path) -> None:
    """Step 12 belongs to the second unroll of each life; all first ones count."""
    config = replace(SMALL, actors=1, slots=1, num_envs=2, checkpoint_interval=10**6)
    config = replace(config, transport="shared", total_steps=10**7)
    build, policy = partial(counting, dies_at=12), policy_for(counting())
    learner = ActorLearner(policy, build, config, SharedMemory)
    with Run(tmp_path / "a", {}) as run, learner:
        message = "actor 0 died 20 times before its tenth unroll, .* exit code 3"
        with pytest.raises(ChildProcessError, match=message):
            fit(learner, run, progress=False)
    assert learner.step == 20 * 2 * 10
    assert load_checkpoint(tmp_path / "a/checkpoint.pt")["step"] == learner.step


HANGS = """
import os, time
import numpy as np
from literate_rl.actors.processes import SharedMemory

class Hangs:
    def __init__(self, seed):
        pass

    def work(self, weights, out):
        print(os.getpid(), flush=True)
        time.sleep(3600)

if __name__ == "__main__":
    layout = np.dtype([("weights", "f4"), ("result", "f4")])
    transport = SharedMemory(Hangs, layout, 1, 2, 1)
    for actor in range(2):
        transport.submit((actor, 0), {})
    transport.receive()
"""


def test_actors_that_hang_leave_when_their_learner_is_killed(tmp_path) -> None:
    program = tmp_path / "program.py"
    program.write_text(HANGS)
    command = [sys.executable, str(program)]
    with Child(command, stdout=subprocess.PIPE, text=True) as learner:
        actors = [int(learner.stdout.readline()) for _ in range(2)]
        learner.kill()
    assert gone(*actors)


def test_the_deadline_is_that_of_the_settings() -> None:
    for transport in (InProcess, SharedMemory):
        with make_learner(transport=transport, deadline=77.0) as learner:
            learner.start()
            assert getattr(learner.transport, "deadline", 77.0) == 77.0
    with make_learner(transport=SharedMemory) as learner:
        assert learner.start().deadline == 300.0


def test_what_cannot_be_sent_to_a_process_is_refused() -> None:
    with pytest.raises(ValueError, match="make_envs must be a function that another"):
        shared(lambda: counting())


def test_what_only_a_notebook_has_is_refused(monkeypatch) -> None:
    """A notebook has a module ``__main__`` without a file."""
    notebook = ModuleType("__main__")
    exec("def make(): pass", vars(notebook))
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    with pytest.raises(ValueError, match="or one from a notebook"):
        pickled(partial(Actor, vars(notebook)["make"], None))


def test_both_transports_bring_the_same_unrolls() -> None:
    """The same seed and the same weights give the same experience anywhere."""
    policy = policy_for(counting())
    layout = slot_layout(policy, counting(), 8)
    common = (partial(Actor, counting, policy), layout, 7, 1, 2)
    transports = [InProcess(*common), SharedMemory(*common)]
    streams = []
    for transport in transports:
        witness = Witness(transport, policy, actors=1, slots=2)
        content = []
        for _ in range(4):
            witness.take()
            content.append(dict(witness.next_step))
        streams.append(content)
        transport.close()
    assert streams[0] == streams[1]


# Two transports that do not keep the promise, each with as many steps as the right one.
TWICE = """
    last = None

    def receive(self):
        self.last, now = (None, self.last) if self.last else (super().receive(),) * 2
        return now
"""
LOST = """
    count = 0

    def receive(self):
        self.count += 1
        if self.count % 5 == 0:
            (actor, index), _ = super().receive()
            self.lives[actor].send(index)
        return super().receive()
"""


@pytest.mark.parametrize("fault", ["", TWICE, LOST])
def test_the_chapters_count_sees_an_unroll_that_came_twice_or_was_lost(fault) -> None:
    """Its program, for a moment: two actors, one of which is killed."""
    text = (ROOT / "chapters/processes.py").read_text()
    found = re.search('\nprogram = """\n(.*?)"""', text, re.S)
    program = found[1].replace("range(1, 161)", "range(1, 41)")
    assert program != found[1]
    if fault:
        name = "from literate_rl.actors.processes import SharedMemory"
        broken = f"{name} as Right\n\nclass SharedMemory(Right):{fault}"
        assert program.count(name) == 1
        program = program.replace(name, broken)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    last = json.loads(done.stdout)["rows"][-1]
    assert last["step"] == 40 * 128, "whatever was delivered"
    assert (last["breaks"] > 2 + 1) == bool(fault)


def test_a_run_with_processes_counts_every_step() -> None:
    with make_learner(transport=SharedMemory, total_steps=300) as learner:
        history = fit(learner, progress=False)
        everyone = pids(learner.transport)
    assert [row["step"] for row in history] == list(range(15, 301, 15))
    assert all(row["charts/lag"] >= 0 for row in history)
    assert history[-1]["charts/replaced"] == 0
    assert gone(*everyone)


@pytest.mark.parametrize("transport", [InProcess, SharedMemory])
def test_a_learner_that_fails_can_go_on(transport, monkeypatch) -> None:
    """An unroll that could not be learned from does not leave a slot behind."""

    def fail(batch: Any) -> Any:
        raise KeyboardInterrupt

    with make_learner(actors=1, slots=1, transport=transport) as learner:
        learner.iterate()
        with monkeypatch.context() as context:
            context.setattr(learner.learner, "learn", fail)
            with pytest.raises(KeyboardInterrupt):
                learner.iterate()
        assert learner.transport is None
        learner.iterate()
        assert learner.step == 2 * 15


def test_a_transport_goes_by_its_name() -> None:
    assert transport_named("in_process") is InProcess
    assert transport_named("shared") is SharedMemory
    with pytest.raises(ValueError, match=r"'in_process' or .*, got 'ray'"):
        transport_named("ray")  # type: ignore[arg-type]


# --- The command line -----------------------------------------------------------------

TINY = ["--env=CartPole-v1", "--actors=2", "--transport=shared", "--n-sample=2"]
TINY += ["--unroll-len=8", "--checkpoint-interval=20", "--update-per-collect=1"]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run of the command in a session of its own, which has begun to learn."""
    options = [*TINY, "--name=a", "--total-steps=100000000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "literate_rl", "impala", *options],
        cwd=tmp_path,
        # Wide enough for all that the progress bar says.
        env=os.environ | {"COLUMNS": "200", "LINES": "50"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    table = tmp_path / "runs/a/metrics.csv"

    def ready() -> bool:
        ended = process.poll() is not None  # then there is nothing to wait for
        return ended or (table.exists() and table.read_text().count("\n") > 60)

    began = eventually(ready) and process.poll() is None
    yield process
    for member in session(process.pid):
        os.kill(member, signal.SIGKILL)
    _, err = process.communicate(timeout=90)
    assert began, err


def session(leader: int) -> list[int]:
    """Return the processes of a session."""
    members = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == leader:
                members.append(pid)
        except (ProcessLookupError, PermissionError):
            continue
    return members


def live(leader: int) -> list[int]:
    """Return those that are no zombies."""
    found = []
    for pid in session(leader):
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            continue
    return found


def test_a_killed_learner_leaves_no_actor_and_its_run_goes_on(
    started, tmp_path, monkeypatch, capsys
) -> None:
    # The learner, the fork server, multiprocessing's tracker and two actors.
    assert len(live(started.pid)) == 5
    started.kill()
    assert eventually(lambda: not live(started.pid))
    step = load_checkpoint(tmp_path / "runs/a/checkpoint.pt")["step"]
    assert step > 0
    assert step % 16 == 0
    settings = tmp_path / "runs/a/settings.json"
    goal = step + 160
    text = settings.read_text().replace("100000000", str(goal))
    settings.write_text(text)
    monkeypatch.chdir(tmp_path)
    main(["impala", "--resume", "runs/a"])
    assert "return of 20 episodes" in capsys.readouterr().out
    assert load_checkpoint(tmp_path / "runs/a/checkpoint.pt")["step"] == goal
    rows = (tmp_path / "runs/a/metrics.csv").read_text().splitlines()[1:]
    steps = [int(row.split(",")[0]) for row in rows]
    assert steps == list(range(16, goal + 1, 16))


def test_ctrl_c_saves_and_leaves_no_process(started) -> None:
    os.killpg(started.pid, signal.SIGINT)
    out, err = started.communicate(timeout=90)
    assert started.returncode == 0, err
    assert re.search(r"interrupted at step \d+ of \d+\n", out)
    assert "go on with --resume runs/a" in out
    assert "Traceback" not in err
    for word in ("actors=2", "queue=", "lag=", " steps/s"):
        assert word in err
    assert eventually(lambda: not live(started.pid))


# --- Locks ----------------------------------------------------------------------------

KILLED_IN_GET = """
import os, signal, time
from multiprocessing import get_context

def actor(queue):
    queue.get()

context = get_context("fork")
queue = context.SimpleQueue()
first = context.Process(target=actor, args=(queue,), daemon=True)
first.start()
while queue._rlock.acquire(block=False):
    queue._rlock.release()
    time.sleep(0.01)
os.kill(first.pid, signal.SIGKILL)
first.join()
queue.put("a free buffer")
assert not queue.empty()
print(queue._rlock.acquire(timeout=0.5))
"""


@pytest.mark.erratum("lock-of-the-dead")
def test_a_queue_is_lost_when_a_process_dies_that_waits_in_it() -> None:
    """A program of its own, because it forks."""
    command = [sys.executable, "-c", KILLED_IN_GET]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


# --- Without Ray ----------------------------------------------------------------------


def test_an_address_where_nobody_answers_is_refused_at_once() -> None:
    pytest.importorskip("ray")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"no Ray cluster answers .* {address}"):
            RayActors(lambda seed: None, np.dtype([]), 1, 1, 1, address=address)


def test_the_error_says_how_to_get_ray(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    learner = make_learner()
    learner.make_transport = RayActors
    with pytest.raises(ValueError, match=r"pip install 'literate-rl\[ray\]'"):
        learner.iterate()
