"""Actors in processes, which are started and killed for real."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from test_actors import SMALL, log_probs, make_learner, policy_for
from worlds import counting

from literate_rl.actors.actors import (
    Actor,
    ActorLearner,
    slot_layout,
    weights_of,
)
from literate_rl.actors.processes import SharedMemory
from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.data.held import in_one_line
from literate_rl.interfaces.cluster import RayActors
from literate_rl.runs.runs import Run, fit, load_checkpoint

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


@contextmanager
def at_work(
    build: Callable[[], SyncVectorEnv] = counting, actors: int = 1, slots: int = 2
) -> Iterator[tuple[SharedMemory, Witness]]:
    """Let actors work for a witness; when they are closed, none is left."""
    transport, policy = shared(build, actors, slots)
    everyone = pids(transport)
    try:
        yield transport, Witness(transport, policy, actors, slots)
    finally:
        transport.close()
    assert gone(*everyone)


@pytest.mark.equation("slot-memory")
def test_memory_is_bounded_by_the_slots_and_actors_sleep_while_they_wait():
    """A learner that does not come: the queue fills up, and then nothing happens."""
    with at_work(actors=2, slots=3) as (transport, witness):
        layout = transport.layout
        pockets = layout["weights"].itemsize + layout["result"].itemsize
        assert 0 <= layout.itemsize - pockets < 16  # what alignment costs
        assert sum(map(len, transport.memory)) == 2 * 3 * layout.itemsize
        witness.take()  # all have begun
        actors = [psutil.Process(pid) for pid in pids(transport)]

        def asleep():
            before = [actor.cpu_times()[:2] for actor in actors]
            time.sleep(0.5)
            # On a busy machine somebody may be awake and get no time.
            resting = all(actor.status() == "sleeping" for actor in actors)
            return resting and before == [actor.cpu_times()[:2] for actor in actors]

        assert eventually(asleep)
        assert asleep()
        witness.take()
        assert transport.waiting == 5
        for _ in range(20):
            witness.take()


def test_actors_that_are_killed_are_replaced_and_nothing_is_torn_or_counted_twice():
    """Kill at random moments, in the middle of an unroll and while waiting."""
    rng = random.Random(0)
    build, kills = partial(counting, nap=0.0005), 0
    # What makes a faster form travels by its name.
    transport, policy = shared(build, actors=2, slots=2, make_act=numpy_act)
    witness, everyone = Witness(transport, policy, 2, 2), set(pids(transport))
    for _ in range(8):
        for _ in range(rng.randrange(1, 8)):
            witness.take()
        time.sleep(0.02 * rng.random())
        victims = rng.choice([[0], [1], [0, 1]])
        for actor in victims:
            os.kill(pids(transport)[actor], signal.SIGKILL)
        kills += len(victims)
        witness.take_until(lambda kills=kills: transport.census.replaced >= kills)
        everyone |= set(pids(transport))
    for _ in range(20):
        witness.take()
    assert transport.census.replaced == kills
    assert transport.census.at_work == 2
    assert len(everyone) == 2 + kills
    # Each environment begins at its first step and goes on without a gap.
    assert witness.frames == sum(witness.next_step.values())
    transport.close()
    assert gone(*everyone)


def test_an_actor_that_hangs_does_not_keep_the_learner_from_ending():
    with at_work() as (transport, witness):
        witness.take()
        os.kill(pids(transport)[0], signal.SIGSTOP)
        transport.close()  # and once more below
    with pytest.raises(ValueError, match="closed"):
        transport.receive()


def test_ctrl_c_is_not_for_actors():
    with at_work() as (transport, witness):
        for _ in range(3):
            os.kill(pids(transport)[0], signal.SIGINT)
            witness.take()
        assert transport.census.replaced == 0
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_error_in_an_actor_ends_the_run_with_its_words(error):
    """Also ``sys.exit`` in an environment is one."""
    # With one slot the actor goes on only when the learner has taken what there was.
    build = partial(counting, fails_at=20, error=error)
    with at_work(build, slots=1) as (_, witness):
        for _ in range(2):  # two unrolls of 8 steps are below step 20
            witness.take()
        with pytest.raises(ChildProcessError, match="made of glass") as raised:
            witness.take()
    words = in_one_line(raised.value)
    for part in ("worlds.py", "failed in step: ", "in copy 0", "actor 0 failed"):
        assert part in words
    # A developer finds the rest.
    assert "Traceback (most recent call last)" in str(raised.value.__cause__)


class Closing:
    """An actor that leaves a file when it is closed, and then fails or hangs."""

    def __init__(self, path: Path, fails: bool, seed: int) -> None:
        self.path, self.fails = path, fails

    def work(self, weights: Any, out: Any) -> None:
        if self.fails:
            raise ValueError("the pole is made of glass")

    def close(self) -> None:
        self.path.touch()
        while not self.fails:
            time.sleep(3600)
        raise OSError("the simulator does not answer")


@pytest.mark.parametrize("fails", [True, False])
def test_an_actor_that_leaves_is_closed_but_not_waited_for_long(fails, tmp_path):
    layout = np.dtype([("weights", [("w", "f4")]), ("result", "f4")])
    path = tmp_path / "closed"
    transport = SharedMemory(partial(Closing, path, fails), layout, 1, 1, 1)
    (pid,) = pids(transport)
    transport.submit((0, 0), {})
    with pytest.raises(ChildProcessError, match="glass") if fails else nullcontext():
        transport.receive()
    before = time.monotonic()
    transport.close()
    assert gone(pid)
    assert path.exists()
    assert time.monotonic() - before < 60, "it was not killed"


# --- Actors that are lost for good ----------------------------------------------------


@pytest.mark.parametrize(
    ("world", "words", "unrolls"),
    [
        ({"dies_at": 3}, "3 times before its first .* code 3", 0),
        ({"fails_at": 40}, "actor 0 failed: .*pole", 7),
    ],
)
def test_what_was_learned_is_saved_when_an_actor_is_lost_for_good(
    world, words, unrolls, tmp_path
):
    config = replace(SMALL, actors=1, slots=1, num_envs=2, checkpoint_interval=10**6)
    config = replace(config, transport="shared", total_steps=10**7)
    build = partial(counting, **world)
    learner = ActorLearner(policy_for(counting()), build, config, SharedMemory)
    with Run(tmp_path / "a", {}) as run, learner:
        learner.start()
        before = psutil.Process().num_fds()
        with pytest.raises(ChildProcessError, match=words):
            fit(learner, run, progress=False)
        assert psutil.Process().num_fds() <= before
    assert learner.step == unrolls * 2 * 5
    assert load_checkpoint(tmp_path / "a/checkpoint.pt")["step"] == learner.step


def test_an_actor_that_never_brings_an_unroll_is_given_up():
    build = partial(counting, 1, hangs_at=3)
    policy = policy_for(build())
    make_actor = partial(Actor, build, policy)
    layout = slot_layout(policy, build(), 4)
    transport = SharedMemory(make_actor, layout, 1, 1, 2, deadline=0.2)
    witness, everyone = Witness(transport, policy, 1, 2), pids(transport)
    words = "actor 0 died 3 times before its first unroll, .* deadline of 0.2 s"
    with pytest.raises(ChildProcessError, match=words):
        witness.take()
    transport.close()
    assert gone(*everyone)


# --- Actors that hang -----------------------------------------------------------------


def test_the_others_go_on_while_one_hangs_and_then_they_are_all_there_again():
    with at_work(actors=2) as (transport, witness):
        census = transport.census
        witness.take_until(lambda: census.at_work == 2)
        (pid, other), works = pids(transport), transport.lives[1]
        os.kill(pid, signal.SIGSTOP)
        for _ in range(20):
            witness.take()
        assert census.replaced == 0, "nobody is hurried before the deadline"
        # Each look of the learner comes later than a deadline after the one before.
        for life in transport.lives:
            assert eventually(lambda: not works.held or works.whole.poll())
            life.since -= 301
        witness.take_until(lambda: census.replaced == 1 and census.at_work == 2)
        assert gone(pid)
        assert pids(transport)[1] == other
        assert witness.frames == sum(witness.next_step.values())


def test_a_learner_that_was_away_blames_nobody():
    """While it does something else, all tokens come back. It hears them first."""
    with at_work(actors=2) as (transport, witness):
        census = transport.census
        # No token that was heard already is left, so that each of them comes back.
        witness.take_until(lambda: census.at_work == 2 and not transport.whole)
        assert eventually(lambda: all(life.whole.poll() for life in transport.lives))
        for life in transport.lives:
            life.since -= 301
        transport.receive()
        assert census.replaced == 0


def test_ctrl_c_ends_a_run_that_waits_for_actors_that_hang(tmp_path):
    options = {"total_steps": 10**7, "checkpoint_interval": 10**6, "deadline": 77.0}
    with make_learner(transport=SharedMemory, **options) as learner:
        iterate, everyone = learner.iterate, pids(learner.start())
        press = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT))

        def watched():
            # All that they had sent before has been learned from when it waits.
            if learner.version == 6:
                for pid in everyone:
                    os.kill(pid, signal.SIGSTOP)
                press.start()
            return iterate()

        learner.iterate = watched
        with Run(tmp_path / "a", {}) as run:
            history = fit(learner, run, progress=False)
    assert {row["charts/replaced"] for row in history} == {0}, "not at the deadline"
    assert load_checkpoint(tmp_path / "a/checkpoint.pt")["step"] == learner.step
    assert gone(*everyone)


# --- The command line -----------------------------------------------------------------

TINY = ["--env=CartPole-v1", "--actors=2", "--transport=shared", "--n-sample=2"]
TINY += ["--unroll-len=8", "--checkpoint-interval=20", "--update-per-collect=1"]


@contextmanager
def started(place: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command in a session of its own, and begin when it has learned."""
    table = place / "runs/a/metrics.csv"
    before = table.read_text().count("\n") if table.exists() else 0
    process = subprocess.Popen(
        [sys.executable, "-m", "literate_rl", "impala", *words],
        cwd=place,
        # Wide enough for all that the progress bar says.
        env=os.environ | {"COLUMNS": "200", "LINES": "50"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def ready() -> bool:
        ended = process.poll() is not None  # then there is nothing to wait for
        return ended or (table.exists() and table.read_text().count("\n") > before + 25)

    try:
        assert eventually(ready)
        assert process.poll() is None, process.communicate()[1]
        yield process
    finally:
        for member in session(process.pid):
            os.kill(member, signal.SIGKILL)
        process.communicate(timeout=90)


def session(leader: int) -> list[int]:
    """Return the processes of a session that are no zombies."""
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and os.getsid(process.pid) == leader:
                found.append(process.pid)
    return found


def test_a_killed_run_leaves_no_actor_and_goes_on_until_ctrl_c_saves_it(tmp_path):
    with started(tmp_path, *TINY, "--name=a", "--total-steps=100000000") as killed:
        # The learner, the fork server, multiprocessing's tracker and two actors.
        assert len(session(killed.pid)) == 5
        killed.kill()
        assert eventually(lambda: not session(killed.pid))
    step = load_checkpoint(tmp_path / "runs/a/checkpoint.pt")["step"]
    with started(tmp_path, "--resume=runs/a") as resumed:
        os.killpg(resumed.pid, signal.SIGINT)
        out, err = resumed.communicate(timeout=90)
        assert resumed.returncode == 0, err
        assert eventually(lambda: not session(resumed.pid))
    assert "go on with --resume runs/a" in out
    assert "Traceback" not in err
    for word in ("actors=2", "queue=", "lag=", " steps/s"):
        assert word in err
    rows = (tmp_path / "runs/a/metrics.csv").read_text().splitlines()[1:]
    steps = [int(row.split(",")[0]) for row in rows]
    assert steps == list(range(16, steps[-1] + 1, 16))
    saved = load_checkpoint(tmp_path / "runs/a/checkpoint.pt")["step"]
    assert saved == steps[-1] > step


# --- Locks ----------------------------------------------------------------------------


@pytest.mark.erratum("lock-of-the-dead")
def test_a_queue_is_lost_when_a_process_dies_that_waits_in_it():
    """The page's own program."""
    page = Path(__file__).parents[1] / "chapters" / "processes.py"
    program = page.read_text("utf-8").split('queue_program = """')[1].split('"""')[0]
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "the second actor got it: False\n", done.stderr


# --- Without Ray ----------------------------------------------------------------------


def test_an_address_where_nobody_answers_is_refused_at_once():
    pytest.importorskip("ray")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"no Ray cluster answers .* {address}"):
            RayActors(lambda seed: None, np.dtype([]), 1, 1, 1, address=address)


def test_the_error_says_how_to_get_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    learner = make_learner()
    learner.make_transport = RayActors
    with pytest.raises(ValueError, match=r"pip install 'literate-rl\[ray\]'"):
        learner.iterate()
