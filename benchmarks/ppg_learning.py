"""PPG and PPO over seeds: CartPole, mazes with unseen levels, and PPG's own settings.

``python -m benchmarks.ppg_learning [NAME …]`` works as ``benchmarks.learning`` does.
PPO is the same agent without its auxiliary phase, with the same settings otherwise. In
the mazes the final return is that without noise on unseen levels; two judges let the
agent play with noise, on the training levels and on the unseen ones.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import torch

from benchmarks.learning import Experiment, Variant, main, noisy_return
from literate_rl.data.agents import make_envs
from literate_rl.data.worlds import Maze, MazeLevels
from literate_rl.learners.ppg import PPGAlgorithm
from literate_rl.learners.ppg_learner import (
    PPGConfig,
    make_phasic_policy,
    ppg_settings,
)
from literate_rl.runs.runs import flat_env

CARTPOLE, MAZE = "CartPole-v1", "literate_rl/Maze-v0"
TRAINING_LEVELS = range(200)
UNSEEN_LEVELS = range(1_000_000, 1_000_500)

gym.register("UnseenMaze-v0", entry_point=partial(Maze, levels=UNSEEN_LEVELS))


# A maze pays 1 at its goal, so this is the share of a thousand episodes that is solved.
JUDGES = {
    "training": partial(noisy_return, make=partial(MazeLevels, 1_000, TRAINING_LEVELS)),
    "unseen": partial(noisy_return, make=partial(MazeLevels, 1_000, UNSEEN_LEVELS)),
}


def agent(config: PPGConfig, env: str) -> PPGAlgorithm:
    """Build the agent of the chapter."""
    if env == CARTPOLE:
        envs: Any = make_envs(partial(flat_env, env), config.num_envs)
    else:
        envs = MazeLevels(config.num_envs, TRAINING_LEVELS)
    torch.manual_seed(config.seed)
    policy = make_phasic_policy(
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
    if env == CARTPOLE:
        return Experiment(env, config, seeds, 100, made, goal=500)
    return Experiment("UnseenMaze-v0", config, seeds, 200, made, judges=JUDGES)


PPO = {"aux_enabled": False}
# One network for everything, which the value pulls at as it likes.
SHARED_PPO = PPO | {"share_encoder": True, "detach": "never"}
SHARED_PPG = {"share_encoder": True, "detach": "policy_phase"}

CARTPOLE_CONFIG, MAZE_CONFIG = ppg_settings(CARTPOLE), ppg_settings(MAZE)

# Six settings for each of the two, tried with a seed that is not used again. What
# counts is the mean return while training. PPG goes on from PPO's best step size.
TUNING = {
    f"PPO, step size {rate:g}, {epochs} epochs": PPO
    | {"learning_rate": rate, "num_epochs": epochs}
    for rate in (5e-4, 1e-3, 2e-3)
    for epochs in (3, 6)
} | {
    f"PPG, {epochs} epochs, then {aux_epochs} after {interval} phases": {
        "learning_rate": 2e-3,
        "num_epochs": epochs,
        "aux_epochs": aux_epochs,
        "aux_interval": interval,
    }
    for epochs in (3, 6)
    for aux_epochs, interval in ((3, 16), (6, 16), (3, 4))
}

# What the paper varies: phases between two auxiliary ones, auxiliary epochs, and the
# weight of the clone term.
ABLATIONS = {
    "16 phases": {"aux_interval": 16},
    "6 auxiliary epochs": {"aux_epochs": 6},
    "clone weight 0": {"clone_weight": 0.0},
    "clone weight 10": {"clone_weight": 10.0},
}


def epochs_apart(*numbers: int) -> dict[str, dict[str, Any]]:
    """Return PPO with epochs of the policy and epochs of the value, of their own."""
    return {
        f"E_pi {policy}, E_V {value}": PPO
        | {"num_epochs": policy, "value_epochs": value}
        for policy in numbers
        for value in numbers
    }


# Does the auxiliary phase do for the value what epochs of its own do?
PHASE = {"PPG, E_pi 3, E_V 3": {"num_epochs": 3, "value_epochs": 3}}

EXPERIMENTS = {
    "ppg_cartpole": compare(CARTPOLE, CARTPOLE_CONFIG, 10, {"PPG": {}, "PPO": PPO}),
    # Rewards in units of the deviation of the returns: errors of the values are small.
    "ppg_cartpole_scaled": compare(
        CARTPOLE,
        replace(CARTPOLE_CONFIG, scale_reward=True),
        10,
        {"PPG": {}, "PPO": PPO},
    ),
    "ppg_cartpole_epochs": compare(
        CARTPOLE,
        replace(CARTPOLE_CONFIG, total_steps=50_000),
        10,
        epochs_apart(1, 3, 10) | PHASE,
    ),
    "ppg_maze_tuning": replace(compare(MAZE, MAZE_CONFIG, 1, TUNING), first_seed=101),
    "ppg_maze": compare(MAZE, MAZE_CONFIG, 5, {"PPG": {}, "PPO": PPO}),
    # Each rollout is used once in the policy phase, as in the paper.
    "ppg_maze_once": compare(
        MAZE, replace(MAZE_CONFIG, num_epochs=1), 5, {"PPG": {}, "PPO": PPO}
    ),
    "ppg_maze_ablation": compare(MAZE, MAZE_CONFIG, 3, ABLATIONS),
    "ppg_maze_shared": compare(
        MAZE, MAZE_CONFIG, 5, {"PPG": SHARED_PPG, "PPO": SHARED_PPO}
    ),
}


if __name__ == "__main__":
    main("python -m benchmarks.ppg_learning", EXPERIMENTS)
