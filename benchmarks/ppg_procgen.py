"""PPG and PPO on StarPilot, a game of Procgen, with training levels and unseen ones.

``python -m benchmarks.ppg_procgen`` works as ``benchmarks.learning`` does. It needs the
packages of the extra ``procgen`` and the library Qt 5, which Debian has as
``libqt5gui5``. The final return is that without noise on unseen levels; two judges let
the agent play with noise, on the training levels and on the unseen ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.learning import Experiment, Variant, main, noisy_return
from literate_rl.data.agents import make_envs
from literate_rl.learners.ppg import PPGAlgorithm
from literate_rl.learners.ppg_learner import PPGConfig, make_phasic_policy
from literate_rl.runs.runs import flat_env

LEVELS = 200
FIRST_UNSEEN = 1_000_000
EPISODES = 50


class StarPilot(gym.Env[NDArray[np.uint8], int]):
    """One copy of the game on its easy setting.

    Args:
        first_level: The smallest number of a level.
        levels: How many levels there are.
    """

    def __init__(self, first_level: int, levels: int = LEVELS) -> None:
        self.levels = {"start_level": first_level, "num_levels": levels}
        self.open(seed=0)
        self.observation_space = self.pool.observation_space
        self.action_space = gym.spaces.Discrete(int(self.pool.action_space.n))

    def open(self, seed: int) -> None:
        """Make the game anew: it takes its seed when it is made."""
        import envpool

        self.pool = envpool.make_gymnasium(
            "StarpilotEasy-v0", num_envs=1, num_threads=1, seed=seed, **self.levels
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        if seed is not None:
            self.open(seed % 2**31)
        return self.pool.reset()[0][0], {}

    def step(
        self, action: int
    ) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Take one step of the game."""
        obs, reward, terminated, truncated, _ = self.pool.step(
            np.array([action], np.int32)
        )
        return obs[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}


for name, first in (("StarPilot", 0), ("UnseenStarPilot", FIRST_UNSEEN)):
    gym.register(f"{name}-v0", entry_point=partial(StarPilot, first_level=first))


def agent(config: PPGConfig) -> PPGAlgorithm:
    """Build the agent of the chapter on the training levels."""
    envs = make_envs(partial(flat_env, "StarPilot-v0"), config.num_envs)
    torch.manual_seed(config.seed)
    with gym.make("StarPilot-v0") as env:
        policy = make_phasic_policy(env.observation_space, env.action_space)
    return PPGAlgorithm(policy, envs, config)


def played(env: str) -> Callable[[Any], float]:
    """Return a judge that lets a policy play with noise."""
    return partial(
        noisy_return, make=partial(make_envs, partial(flat_env, env), EPISODES)
    )


CONFIG = PPGConfig(
    total_steps=300_000,
    num_envs=16,
    num_steps=64,
    num_epochs=3,
    num_minibatches=4,
    learning_rate=5e-4,
    gamma=0.99,
    entropy_weight=0.01,
    scale_reward=True,
    aux_interval=16,
    aux_batch_size=16,
    aux_epochs=2,
)

EXPERIMENTS = {
    "ppg_starpilot": Experiment(
        "UnseenStarPilot-v0",
        CONFIG,
        seeds=3,
        episodes=EPISODES,
        variants={
            "PPG": Variant({}, agent),
            "PPO": Variant({"aux_enabled": False}, agent),
        },
        judges={
            "training": played("StarPilot-v0"),
            "unseen": played("UnseenStarPilot-v0"),
        },
    )
}

if __name__ == "__main__":
    main("python -m benchmarks.ppg_procgen", EXPERIMENTS)
