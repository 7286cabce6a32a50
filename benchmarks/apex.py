"""Many actors with one memory: frames a second where each step waits for its world.

CartPole whose step takes four milliseconds longer. The learner takes an update for
every sixteen steps. What counts here is the clock, not the CPU: a time is the
wall-clock time of one frame.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.apex_learning import build, waiting
from benchmarks.harness import Case, Goal
from literate_rl.actors.apex import Apex

ROUNDS = 7
ROLLOUTS = 24  # of one sample
ACTORS = (1, 2, 4)


def system(actors: int) -> Apex:
    """Build a learner with its actors, and run it until it learns."""
    changes = {"transport": "shared", "learning_starts": 200, "train_interval": 16}
    config = replace(waiting().config, actors=actors, **changes)
    apex: Any = build(config)
    while apex.step < config.learning_starts + 8 * actors * config.rollout_len:
        apex.iterate()
    return apex  # type: ignore[no-any-return]


def frame_seconds(apex: Apex) -> float:
    """Return the seconds of one frame, by the clock.

    The actors go on while others are measured, until their slots are full. So the
    rollouts that wait already are learned from first.
    """
    for _ in range(apex.config.actors * apex.config.slots):
        apex.iterate()
    start, frames = time.perf_counter(), apex.step
    for _ in range(ROLLOUTS):
        apex.iterate()
    return (time.perf_counter() - start) / (apex.step - frames)


def clock(function: Callable[[], Any], repeats: int) -> float:
    """Return the seconds of one frame, the mean of some samples."""
    return sum(frame_seconds(function()) for _ in range(repeats)) / repeats


def cases() -> Iterator[Case]:
    """Yield the one case."""
    systems = {f"{n} actor{'s' * (n > 1)}": system(n) for n in ACTORS}
    functions = {name: partial(lambda x: x, apex) for name, apex in systems.items()}
    yield Case(
        "steps of four milliseconds",
        functions,
        peer="1 actor",
        goals={"4 actors": Goal(at_least=3.0)},
        sample=clock,
        shortest=0.0,
    )
    for apex in systems.values():
        apex.close()
