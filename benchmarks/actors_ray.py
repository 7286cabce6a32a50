"""Actors with shared memory, beside the same actors on Ray.

Ray runs on this machine, and its own processes are counted too. It is the extra ``ray``
of this package. A time is the CPU time of one frame, learner and actor together.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.actors import SIZES, TRANSPORTS, build, case, check
from benchmarks.harness import Case, Goal
from literate_rl.actors import RayActors

ROUNDS = 11
PACKAGES = ("ray",)


def cases() -> Iterator[Case]:
    """Yield a case for each size, after its check."""
    places = {"Ray": RayActors, "shared memory": TRANSPORTS["shared memory"]}
    for envs in SIZES:
        systems = {key: build(place, envs) for key, place in places.items()}
        check(systems)
        yield case(
            f"{envs} environments",
            systems,
            peer="Ray",
            goals={"shared memory": Goal(at_least=1.8)},
        )
        for system in systems.values():
            system.learner.close()
