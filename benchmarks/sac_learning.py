"""Training runs of SAC: how well it learns, and what its temperature does.

``python -m benchmarks.sac_learning [NAME …]`` works as ``benchmarks.learning`` does.
How the settings were found, on seeds above 100, is told in ``docs/results.md``.
``sac_cheetah`` needs MuJoCo.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.drift import left_the_track, what_a_push_gains
from benchmarks.learning import Experiment, Variant, main
from literate_rl.apps.training import make_learner
from literate_rl.learners.discrete_sac import discrete_sac_settings
from literate_rl.learners.sac import SACConfig, sac_settings

# Stored beside the curve of the return.
WATCHED = ("charts/alpha", "charts/entropy")


def build(config: SACConfig, env: str) -> Any:
    """Build the agent as the command line does."""
    return make_learner("sac", env, config, {})


# Actions from a list, with the target entropy ½ log 2, with nearly all of log 2, as the
# paper has it, and almost sure of them. The last again, with a lower temperature at the
# start, and with a buffer that forgets nothing.
LISTED = replace(discrete_sac_settings("CartPole-v1"), target_entropy=None)
RANDOM = replace(LISTED, target_entropy=0.98 * math.log(2))
SURE = replace(LISTED, target_entropy=0.1)
COOL = replace(SURE, temperature=0.01)
HOARD = replace(SURE, buffer_size=100_000)
JUDGES = {"off_track": left_the_track, "push": what_a_push_gains}
# Not searched: those of the paper.
CHEETAH = SACConfig(
    total_steps=100_000,
    hidden=256,
    learning_rate=3e-4,
    batch_size=256,
    learning_starts=5000,
    iteration_steps=1000,
)


# Who decides how random a policy stays? Other units of reward, with a tuned price of
# entropy and with one that stays.
FIXED: dict[str, Any] = {"tune": False, "temperature": 0.2}
UNITS: dict[str, dict[str, Any]] = {
    "tuned, rewards × 0.1": {"reward_scale": 0.1},
    "tuned, rewards × 10": {"reward_scale": 10.0},
    "fixed, rewards × 0.1": {**FIXED, "reward_scale": 0.1},
    "fixed": FIXED,
    "fixed, rewards × 10": {**FIXED, "reward_scale": 10.0},
}
# How random should a policy stay? Uniform torques have an entropy of 0.69, in units in
# which the box is from -1 to 1.
TARGETS: dict[str, dict[str, Any]] = {
    f"target {target}": {"target_entropy": target} for target in (-3.0, 0.0, 0.5)
}
# What the settings of MountainCarContinuous are good for: each without one of them.
PARTS: dict[str, dict[str, Any]] = {
    "noise of one step": {"hold": 1},
    "targets of one step": {"num_steps": 1},
}


def experiment(
    env: str,
    seeds: int,
    goal: float | None = None,
    config: SACConfig | None = None,
    variants: dict[str, dict[str, Any]] | None = None,
) -> Experiment:
    """Return the experiment that trains the chapter's agent, or variants of it."""
    changes = variants or {"SAC": {}}
    made = {name: Variant(x, partial(build, env=env)) for name, x in changes.items()}
    config, episodes = config or sac_settings(env), 10 if "Cheetah" in env else 100
    return Experiment(env, config, seeds, episodes, made, goal, watched=WATCHED)


EXPERIMENTS = {
    "sac_pendulum": experiment("Pendulum-v1", seeds=10, goal=-200),
    "sac_batches": experiment(
        "Pendulum-v1",
        seeds=10,
        goal=-200,
        variants={"SAC, batches of 256": {"batch_size": 256}},
    ),
    "sac_units": experiment(
        "Pendulum-v1",
        seeds=3,
        config=replace(sac_settings("Pendulum-v1"), total_steps=3000),
        variants=UNITS,
    ),
    "sac_targets": experiment("Pendulum-v1", seeds=5, variants=TARGETS),
    "sac_mountain": experiment("MountainCarContinuous-v0", seeds=10, goal=90),
    "sac_mountain_parts": experiment("MountainCarContinuous-v0", 10, variants=PARTS),
    "sac_cartpole": replace(experiment("CartPole-v1", 10, 195, LISTED), judges=JUDGES),
    "sac_cartpole_sure": replace(
        experiment("CartPole-v1", 10, 195, SURE), judges=JUDGES
    ),
    "sac_cartpole_cool": replace(
        experiment("CartPole-v1", 10, 195, COOL), judges=JUDGES
    ),
    "sac_cartpole_random": experiment("CartPole-v1", 10, 195, RANDOM),
    "sac_cartpole_hoard": experiment("CartPole-v1", 10, 195, HOARD),
    "sac_cheetah": experiment("HalfCheetah-v5", 5, config=CHEETAH),
}

if __name__ == "__main__":
    main("python -m benchmarks.sac_learning", EXPERIMENTS)
