"""PPO on MinAtar's Breakout: the cells as one row, or as a picture.

``python -m benchmarks.encoders_learning`` works as ``benchmarks.learning`` does, where
MinAtar is installed (``pip install '.[minatar]'``). Both variants see the same flat
rows and have the same settings, which are not tuned. One gives the rows to two hidden
layers, the other one to the encoder that ``make_encoder`` chooses.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import torch
from torch import nn

from benchmarks.learning import Experiment, Variant, main
from literate_rl.data.agents import make_envs
from literate_rl.ground.networks import orthogonal
from literate_rl.learners.ppo import PPO, PPOConfig
from literate_rl.nets.encoders import make_encoder
from literate_rl.nets.parts import ActorCritic, CategoricalActions
from literate_rl.nets.policies import Policy, make_policy
from literate_rl.runs.runs import flat_env

ENV = "MinAtarBreakout-v1"


gym.register(ENV, "literate_rl.data.worlds:make_minatar", kwargs={"game": "breakout"})


def plain_agent(config: PPOConfig) -> PPO:
    """Build PPO with two hidden layers of 128 for the actor, and for the critic."""
    envs = make_envs(partial(flat_env, ENV), config.num_envs)
    torch.manual_seed(config.seed)
    both = envs.single_observation_space, envs.single_action_space
    return PPO(make_policy(*both, hidden=128), envs, config)


def agent_with_encoder(config: PPOConfig) -> PPO:
    """Build PPO with an encoder for the actor, and one for the critic."""
    envs = make_envs(partial(flat_env, ENV), config.num_envs)
    torch.manual_seed(config.seed)
    space = gym.make(ENV).observation_space
    num_actions = int(envs.single_action_space.n)  # type: ignore[attr-defined]
    actor, critic = (network(space, *x) for x in ((num_actions, 0.01), (1, 1.0)))
    policy = Policy(ActorCritic(actor, critic), CategoricalActions(num_actions))
    return PPO(policy, envs, config)


def network(space: gym.Space[Any], outputs: int, gain: float) -> nn.Sequential:
    """Build an encoder and a head."""
    encoder = make_encoder(space)
    head = orthogonal(nn.Linear(encoder.output_size, outputs))
    nn.init.orthogonal_(head.weight, gain)
    return nn.Sequential(encoder, head)


CONFIG = PPOConfig(
    total_steps=307_200,
    num_envs=16,
    num_steps=128,
    num_epochs=4,
    num_minibatches=8,
    learning_rate=1e-3,
    gamma=0.99,
    lambda_=0.95,
    entropy_weight=0.01,
    max_grad_norm=0.5,
)

EXPERIMENTS = {
    "encoders_breakout": Experiment(
        ENV,
        CONFIG,
        seeds=10,
        episodes=20,
        variants={
            "row": Variant({}, plain_agent),
            "encoder": Variant({}, agent_with_encoder),
        },
        packages=("MinAtar",),
    )
}


if __name__ == "__main__":
    main("python -m benchmarks.encoders_learning", EXPERIMENTS)
