"""Training runs of SAC: how well it learns, and what its temperature does.

``python -m benchmarks.sac_learning [NAME …]`` works as ``benchmarks.learning`` does.
How the settings were found, on seeds above 100, is told in ``docs/results.md``.
``sac_cheetah`` needs MuJoCo.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from literate_rl.sac import SACConfig, sac_settings
from literate_rl.workshop.training import make_learner

from benchmarks.learning import Experiment, Variant, main

# Stored beside the curve of the return.
WATCHED = ("charts/alpha", "charts/entropy")


def build(config: SACConfig, env: str) -> Any:
    """Build the agent as the command line does."""
    return make_learner("sac", env, config, {})


def experiment(env: str, seeds: int, goal: float | None = None) -> Experiment:
    """Return the experiment that trains the chapter's agent as it is set."""
    made = {"SAC": Variant({}, partial(build, env=env))}
    config, episodes = sac_settings(env), 10 if "Cheetah" in env else 100
    return Experiment(env, config, seeds, episodes, made, goal, watched=WATCHED)


EXPERIMENTS = {
    "sac_pendulum": experiment("Pendulum-v1", seeds=10, goal=-200),
    "sac_mountain": experiment("MountainCarContinuous-v0", seeds=10, goal=90),
    "sac_cartpole": experiment("CartPole-v1", seeds=10, goal=195),
    "sac_cheetah": experiment("HalfCheetah-v5", seeds=5),
}

if __name__ == "__main__":
    main("python -m benchmarks.sac_learning", EXPERIMENTS)
