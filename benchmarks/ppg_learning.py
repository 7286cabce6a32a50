"""PPG and PPO over seeds: CartPole, mazes with unseen levels, and PPG's own settings.

``python -m benchmarks.ppg_learning [NAME …]`` works as ``benchmarks.learning`` does.
PPO is the same agent without its auxiliary phase, with the same settings otherwise. In
the mazes the final return is that on unseen levels; the curve while training is that
of the training levels.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import torch

from benchmarks.learning import Experiment, Variant, main
from literate_rl.agents import make_envs
from literate_rl.ppg import (
    Maze,
    MazeLevels,
    PhasicPolicy,
    PPGAlgorithm,
    PPGConfig,
    ppg_settings,
)
from literate_rl.runs import flat_env

CARTPOLE, MAZE = "CartPole-v1", "literate_rl/Maze-v0"
TRAINING_LEVELS = range(200)
UNSEEN_LEVELS = range(1_000_000, 1_000_500)

gym.register("UnseenMaze-v0", entry_point=partial(Maze, levels=UNSEEN_LEVELS))


def agent(config: PPGConfig, env: str) -> PPGAlgorithm:
    """Build the agent of the chapter."""
    if env == CARTPOLE:
        envs: Any = make_envs(partial(flat_env, env), config.num_envs)
    else:
        envs = MazeLevels(config.num_envs, TRAINING_LEVELS)
    torch.manual_seed(config.seed)
    policy = PhasicPolicy(
        envs.single_observation_space,
        envs.single_action_space,
        config.share_encoder,
        config.detach,
    )
    return PPGAlgorithm(policy, envs, config)


def compare(
    env: str, config: PPGConfig, seeds: int, variants: dict[str, dict[str, Any]]
) -> Experiment:
    """Return the experiment that trains with each of some changes of the settings."""
    build = partial(agent, env=env)
    made = {name: Variant(changes, build) for name, changes in variants.items()}
    judged = env if env == CARTPOLE else "UnseenMaze-v0"
    return Experiment(judged, config, seeds, 100, made)


PPO = {"aux_enabled": False}
# One network for everything, which the value pulls at as it likes.
SHARED_PPO = PPO | {"share_encoder": True, "detach": "never"}
SHARED_PPG = {"share_encoder": True, "detach": "policy_phase"}

MAZE_CONFIG = ppg_settings(MAZE)

EXPERIMENTS = {
    "ppg_cartpole": replace(
        compare(CARTPOLE, ppg_settings(CARTPOLE), 3, {"PPG": {}, "PPO": PPO}), goal=500
    ),
    "ppg_maze": compare(MAZE, MAZE_CONFIG, 5, {"PPG": {}, "PPO": PPO}),
    "ppg_maze_shared": compare(
        MAZE, MAZE_CONFIG, 5, {"PPG": SHARED_PPG, "PPO": SHARED_PPO}
    ),
    "ppg_maze_interval": compare(
        MAZE, MAZE_CONFIG, 3, {f"{n} phases": {"aux_interval": n} for n in (4, 32)}
    ),
    "ppg_maze_epochs": compare(
        MAZE, MAZE_CONFIG, 3, {f"{n} epochs": {"aux_epochs": n} for n in (1, 6)}
    ),
    "ppg_maze_clone": compare(
        MAZE, MAZE_CONFIG, 3, {f"weight {w}": {"clone_weight": w} for w in (0.0, 0.1)}
    ),
}


if __name__ == "__main__":
    main("python -m benchmarks.ppg_learning", EXPERIMENTS)
