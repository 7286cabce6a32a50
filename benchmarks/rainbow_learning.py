"""Training runs of Rainbow: all parts, without one of them, MountainCar and mazes.

``python -m benchmarks.rainbow_learning [NAME …]`` works as ``benchmarks.learning``.
Settings for CartPole were chosen in three rounds on seeds above 100: two in a study,
then nine with a run or two of each on seeds 100 and 101, then three with one to three
runs of each on seeds 102 to 104. For MountainCar two were tried, with seed 100; for the
mazes there was no search.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from benchmarks.learning import Experiment, Variant, main, noisy_return
from benchmarks.ppg_learning import MAZE, TRAINING_LEVELS, UNSEEN_LEVELS
from literate_rl.apps.training import make_learner
from literate_rl.data.worlds import Maze, MazeLevels
from literate_rl.ground.protocols import Learner
from literate_rl.learners.rainbow import ROW, Rainbow, RainbowConfig, rainbow_settings

# Without noisy layers an agent explores with random actions until the end.
RANDOM = {"noisy": False, "epsilon_end": 0.05, "epsilon_steps": 5000}
# Values alone are learned from smaller rewards, as in DQN.
VALUES = {"num_atoms": 1, "reward_scale": 0.05}
# What Rainbow loses when a part is taken away.
PARTS: dict[str, dict[str, Any]] = {
    "without double": {"double": False},
    "without dueling": {"dueling": False},
    "without n steps": {"num_steps": 1},
    "without priorities": {"priority_exponent": 0.0},
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


class ByteMazes(MazeLevels):
    """The mazes as pictures of bytes, so that the memory of steps holds bytes."""

    def __init__(self, num_envs: int, levels: range) -> None:
        super().__init__(num_envs, levels)
        shape = self.single_observation_space.shape
        self.single_observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.observation_space = spaces.Box(0, 255, (num_envs, *shape), np.uint8)

    def observe(self) -> NDArray[Any]:
        """Return the three layers of each copy, 0 or 255."""
        return (255 * super().observe()).astype(np.uint8)


class ByteMaze(Maze):
    """One copy of them."""

    def __init__(self, levels: range) -> None:
        super().__init__(levels)
        self.world = ByteMazes(1, levels)
        self.observation_space = self.world.single_observation_space


gym.register("UnseenByteMaze-v0", entry_point=partial(ByteMaze, levels=UNSEEN_LEVELS))

# As for PPG: the share of a thousand episodes that the agent solves as it trains.
MAZE_JUDGES = {
    name: partial(noisy_return, make=partial(ByteMazes, 1_000, levels))
    for name, levels in (("training", TRAINING_LEVELS), ("unseen", UNSEEN_LEVELS))
}


def maze_agent(config: RainbowConfig) -> Rainbow:
    """Build the agent on the training levels."""
    envs = ByteMazes(config.num_envs, TRAINING_LEVELS)
    torch.manual_seed(config.seed)
    policy = ROW.policy(envs.single_observation_space, envs.single_action_space, config)
    return Rainbow(policy, envs, config)


EXPERIMENTS = {
    "rainbow_mazes": Experiment(
        "UnseenByteMaze-v0",
        rainbow_settings(MAZE),
        3,
        200,
        {"Rainbow": Variant({}, maze_agent)},
        judges=MAZE_JUDGES,
    ),
    "rainbow_cartpole": experiment("CartPole-v1", 10, {"Rainbow": {}}, goal=475),
    # At a quarter of the computation: half the batch, half as often.
    "rainbow_ablation": experiment(
        "CartPole-v1",
        5,
        {"all six parts": {}, **PARTS},
        num_steps=10,
        batch_size=64,
        train_interval=4,
    ),
    # At the settings of the chapter; the whole agent is that of rainbow_cartpole.
    "rainbow_parts": experiment("CartPole-v1", 5, PARTS),
    # Plain DQN, and what is meant to help it explore.
    "rainbow_mountaincar": experiment(
        "MountainCar-v0",
        10,
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
        priority_exponent=0.0,
        num_atoms=1,
        reward_scale=0.1,
        hidden=64,
        total_steps=60_000,
    ),
}

if __name__ == "__main__":
    main("python -m benchmarks.rainbow_learning", EXPERIMENTS)
