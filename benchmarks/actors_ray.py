"""Actors with shared memory, beside the same actors on Ray.

Ray runs on this machine, and its own processes are counted too. It is the extra ``ray``
of this package. A time is the CPU time of one frame, learner and actor together. The
limit is what the frame costs when it is not carried at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil

from benchmarks.actors import SIZES, TRANSPORTS, build, case, check
from benchmarks.harness import Case, Goal
from literate_rl.interfaces.cluster import RayActors, import_ray

ROUNDS = 11
PACKAGES = ("ray",)


def cases() -> Iterator[Case]:
    """Yield a case for each size, after its check."""
    ray, before = import_ray(), set(psutil.Process().children())
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    service = set(psutil.Process().children()) - before
    places = {
        "Ray": RayActors,
        "shared memory": TRANSPORTS["shared memory"],
        "limit: no transport": TRANSPORTS["in process"],
    }
    for envs in SIZES:
        systems = {key: build(place, envs) for key, place in places.items()}
        check(systems)
        # The actor's process is one of those that Ray keeps ready, so it is asked for.
        (actor,) = systems["Ray"].learner.transport.workers
        pid = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
        systems["Ray"].helpers = [*service, psutil.Process(pid)]
        yield case(
            f"{envs} environments",
            systems,
            peer="Ray",
            goals={"shared memory": Goal(at_least=1.8)},
        )
        for system in systems.values():
            system.learner.close()
    ray.shutdown()
