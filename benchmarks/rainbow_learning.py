"""Training runs of Rainbow: with all parts, without one of them, and on MountainCar.

``python -m benchmarks.rainbow_learning [NAME …]`` works as ``benchmarks.learning``.
Settings for CartPole were chosen with the seeds 100 and 101, by a run or two of each of
nine; two more had been tried in an earlier study. For MountainCar two were tried, with
seed 100.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.learning import Experiment, Variant, main
from literate_rl.rainbow import RainbowConfig, rainbow_settings
from literate_rl.workshop.runs import Learner
from literate_rl.workshop.training import make_learner

# Without noisy layers an agent explores with random actions until the end.
RANDOM = {"noisy": False, "epsilon_end": 0.05, "epsilon_steps": 5000}
# Values alone are learned from smaller rewards, as in DQN.
VALUES = {"num_atoms": 1, "reward_scale": 0.05}
# What Rainbow loses when a part is taken away.
PARTS: dict[str, dict[str, Any]] = {
    "without double": {"double": False},
    "without dueling": {"dueling": False},
    "without n steps": {"num_steps": 1},
    "without priorities": {"alpha": 0.0},
    "without distributions": VALUES,
    "without noisy layers": RANDOM,
    "without a random start": {"epsilon_start": 0.0},
}


def build(config: RainbowConfig, env: str) -> Learner:
    """Build the agent as the command line does."""
    return make_learner("rainbow", env, config, {})


def experiment(
    env: str,
    seeds: int,
    variants: dict[str, dict[str, Any]],
    goal: float | None = None,
    **changes: Any,
) -> Experiment:
    """Return the experiment that trains variants of the agent."""
    config: Any = replace(rainbow_settings(env), **changes)
    built = {name: Variant(x, partial(build, env=env)) for name, x in variants.items()}
    return Experiment(env, config, seeds, 100, built, goal)


EXPERIMENTS = {
    "rainbow_cartpole": experiment("CartPole-v1", 10, {"Rainbow": {}}, goal=475),
    "rainbow_ablation": experiment("CartPole-v1", 5, PARTS),
    # Plain DQN, and what is meant to help it explore.
    "rainbow_mountaincar": experiment(
        "MountainCar-v0",
        5,
        {
            "DQN": {**RANDOM, "num_steps": 1},
            "n = 10": RANDOM,
            "n = 10, noisy": {"hold": 1},
            "noisy for 20 steps": {"num_steps": 1},
            "n = 10, noisy for 20 steps": {},
        },
        sigma=0.5,
        hold=20,
        double=False,
        dueling=False,
        alpha=0.0,
        num_atoms=1,
        reward_scale=0.1,
        hidden=64,
        total_steps=60_000,
    ),
}

if __name__ == "__main__":
    main("python -m benchmarks.rainbow_learning", EXPERIMENTS)
