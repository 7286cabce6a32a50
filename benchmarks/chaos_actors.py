"""Actors that are killed or stopped at random moments, while a learner trains.

``python -m benchmarks.chaos_actors [--seed N] [--count N]`` prints a row for each trial
and fails unless all have held. In each a learner trains on CartPole with one or two
actors, in processes of their own. At a random moment, often before they have begun,

- one of them is killed, and another one has to take its place at once;
- one of them is stopped, and has to be replaced when its deadline has passed; or
- all of them are stopped, Ctrl-C is pressed, and the run has to be saved and to end.

Each unroll must count exactly once, and no process and no shared memory may be left.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from literate_rl.actors.actors import RemoteLearner
from literate_rl.apps.training import ALGORITHMS, make_learner
from literate_rl.runs.runs import Run, fit, load_checkpoint

ENV = "CartPole-v1"
LEARNERS = ("impala", "dqnapex", "a3c")
# Of ten trials of a learner, six kill, three stop, and one ends with Ctrl-C.
DEEDS = (
    "kill",
    "stop",
    "kill",
    "kill",
    "stop",
    "Ctrl-C",
    "kill",
    "stop",
    "kill",
    "kill",
)
EXPECTED = {
    "kill": "one replaced, each unroll counts once, nothing left",
    "stop": "replaced at the deadline, each unroll counts once, nothing left",
    "Ctrl-C": "saved within 30 s, each unroll counts once, nothing left",
}
DEADLINE = 5.0  # seconds
LIMIT = 120.0  # seconds after which a trial has failed
MARKS = ("pym-", "psm_", "sem.mp-", "torch_")  # names of shared memory


def build(name: str, actors: int, seed: int) -> RemoteLearner:
    """Return a learner with actors in processes."""
    settings: Any = ALGORITHMS[name].settings(ENV)
    size = {"num_envs": 2} | ({"num_steps": 16} if name == "impala" else {})
    config = replace(
        settings,
        **size,
        actors=actors,
        transport="shared",
        seed=seed,
        total_steps=10**9,
        checkpoint_interval=10**6,
    )
    learner: Any = make_learner(name, ENV, config, {})
    return learner


class Witness:
    """Counts what a learner learns from, and does the deed meanwhile.

    Args:
        learner: The learner.
        deed: What is done.
        rng: Decides when, and to whom.
    """

    def __init__(self, learner: RemoteLearner, deed: str, rng: random.Random) -> None:
        self.learner, self.deed = learner, deed
        self.wait, self.victim = (
            1.5 * rng.random(),
            rng.randrange(learner.config.actors),
        )
        self.pids: set[int] = set()
        self.hit: list[int] = []
        self.counts: list[int] = []
        self.iterate, self.pressed = learner.iterate, 0.0
        learner.iterate = self.watched  # type: ignore[method-assign]

    def watched(self) -> dict[str, float]:
        """Let the learner iterate, and note who is there and what was counted."""
        if self.learner.transport is None:
            self.learner.start()
            threading.Thread(target=self.act, daemon=True).start()
        self.look()
        before, metrics = self.learner.step, self.iterate()
        self.counts.append(self.learner.step - before)
        self.look()
        return metrics

    def look(self) -> list[int]:
        """Return the processes of the actors, and remember them."""
        transport: Any = self.learner.transport
        present = [life.process.pid for life in transport.lives]
        self.pids.update(present)
        return present

    def act(self) -> None:
        """Do the deed at its moment."""
        time.sleep(self.wait)
        present = self.look()
        victims = present if self.deed == "Ctrl-C" else [present[self.victim]]
        number = signal.SIGKILL if self.deed == "kill" else signal.SIGSTOP
        for pid in victims:
            os.kill(pid, number)
        if self.deed == "stop":
            self.hurry()
        self.hit = victims
        if self.deed == "Ctrl-C":
            time.sleep(1.0)
            self.pressed = time.monotonic()
            os.kill(os.getpid(), signal.SIGINT)

    def hurry(self) -> None:
        """Shorten the deadline until the victim has been replaced.

        Where many other programs run, its successor may take longer to begin.
        """
        transport: Any = self.learner.transport
        given, replace_it = transport.deadline, transport.replace

        def watched(actor: int, *others: Any) -> None:
            if actor == self.victim:
                transport.deadline = given
            replace_it(actor, *others)

        transport.replace, transport.deadline = watched, DEADLINE

    def went_on(self) -> bool:
        """Whether the one that was hit has been replaced and all are at work again."""
        transport: Any = self.learner.transport
        census = transport.census
        return bool(
            self.hit
            and census.replaced
            and not set(self.hit) & set(self.look())
            and census.at_work == self.learner.config.actors
        )

    def size(self) -> int:
        """Return the steps of one result."""
        config: Any = self.learner.config
        for length in ("rollout_len", "num_steps"):
            if hasattr(config, length):
                return int(getattr(config, length) * config.num_envs)
        raise TypeError(f"what is sent by actors of {type(config).__name__}?")


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Press Ctrl-C as often as it takes when a trial lasts for too long."""
    over = threading.Event()

    def end() -> None:
        wait = seconds
        while not over.wait(wait):
            os.kill(os.getpid(), signal.SIGINT)
            wait = 5.0

    threading.Thread(target=end, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Wait, for a bounded time, until something holds."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def alive(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def left_behind() -> set[str]:
    """Return the names of shared memory of processes of Python that nobody uses."""
    found = {path.name for path in Path("/dev/shm").glob("*")}
    names = {name for name in found if name.startswith(MARKS)}
    for maps in Path("/proc").glob("[0-9]*/maps") if names else ():
        with suppress(OSError):  # it has ended meanwhile, or belongs to somebody else
            words = maps.read_text()
            names = {name for name in names if name not in words}
    return names


def carry_out(witness: Witness, directory: Path) -> list[str]:
    """Train until the deed is done and its consequences are there; return faults."""
    learner, deed = witness.learner, witness.deed
    if deed == "Ctrl-C":
        with Run(directory, {}) as run:
            fit(learner, run, progress=False)
        took = time.monotonic() - witness.pressed
        saved = load_checkpoint(directory / "checkpoint.pt")["step"]
        faults = [] if took < 30 else [f"ended after {took:.0f} s"]
        return faults + ([] if saved == learner.step else [f"saved step {saved}"])
    learner.iterate()
    while not witness.went_on():
        learner.iterate()
    for _ in range(10):
        learner.iterate()
    transport: Any = learner.transport
    replaced = transport.census.replaced
    # While the deadline is short, another one may be too slow for it.
    fits = replaced == 1 if deed == "kill" else replaced >= 1
    return [] if fits else [f"{replaced} replaced"]


def trial(name: str, deed: str, seed: int) -> dict[str, object]:
    """Carry out one trial; return its row."""
    rng, before, start = random.Random(seed), left_behind(), time.monotonic()
    actors = rng.choice((1, 2))
    learner = build(name, actors, seed)
    witness = Witness(learner, deed, rng)
    with tempfile.TemporaryDirectory() as place:
        try:
            with limited(LIMIT), learner:
                faults = carry_out(witness, Path(place) / "run")
        except (Exception, KeyboardInterrupt) as error:
            faults = [f"{type(error).__name__}: {error}"]
    wrong = [count for count in witness.counts if count != witness.size()]
    if wrong or learner.step != len(witness.counts) * witness.size():
        faults.append(f"{learner.step} steps in {len(witness.counts)} unrolls")
    if not eventually(lambda: not any(map(alive, witness.pids))):
        faults.append("a process is left")
    if not eventually(lambda: left_behind() <= before):
        faults.append(f"shared memory is left: {left_behind() - before}")
    whom = "all" if deed == "Ctrl-C" else f"one of {actors}"
    return {
        "seed": seed,
        "done": f"{name}: {deed}, {whom}, after {witness.wait:.2f} s",
        "expected": EXPECTED[deed],
        "came": "; ".join(faults) or f"as expected, {len(witness.counts)} unrolls",
        "held": not faults,
        "seconds": round(time.monotonic() - start, 1),
    }


def trials(seed: int, count: int) -> list[dict[str, object]]:
    """Carry out trials in the main thread of this process.

    Args:
        seed: Decides moments and victims.
        count: Number of trials; the learners and deeds take turns.

    Returns:
        A row for each: what was done, what was expected, what came, whether it held.
    """
    torch.set_num_threads(1)
    rows = []
    for number in range(count):
        name = LEARNERS[number % len(LEARNERS)]
        deed = DEEDS[number // len(LEARNERS) % len(DEEDS)]
        rows.append(trial(name, deed, 1000 * seed + number))
        print(*rows[-1].values(), sep=" | ", flush=True)
    return rows


def main() -> None:
    """Print the trials, and how many held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=90)
    options = parser.parse_args()
    rows = trials(options.seed, options.count)
    kinds = [str(row["done"]).split(",")[0] for row in rows]
    held = Counter(kind for kind, row in zip(kinds, rows, strict=True) if row["held"])
    for kind, number in sorted(Counter(kinds).items()):
        print(f"{kind:20s}{held[kind]:4d} of {number} held")
    sys.exit(not all(row["held"] for row in rows))


if __name__ == "__main__":
    main()
