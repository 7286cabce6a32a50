"""PPO on MinAtar's Breakout: the policy of ``make_policy``, and one built by hand.

``python -m benchmarks.minatar_learning`` works as ``benchmarks.learning`` does, where
MinAtar is installed (``pip install MinAtar``). Both policies have the network of the
MinAtar paper, for the actor and for the critic: a convolution of 16 filters and a layer
of 128. Nothing was tuned.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import gymnasium as gym
import torch
from torch import Tensor, nn

from benchmarks.encoders_learning import CONFIG, ENV
from benchmarks.learning import Experiment, Variant, main
from literate_rl.agents import make_envs
from literate_rl.policies import ActorCritic, CategoricalActions, Policy, make_policy
from literate_rl.ppo import PPO, PPOConfig
from literate_rl.workshop.runs import flat_env


class ByHand(nn.Sequential):
    """The layers, one after another, for rows of 400 numbers."""

    def __init__(self, outputs: int, gain: float) -> None:
        layers = (nn.Conv2d(4, 16, 3), nn.Linear(1024, 128), nn.Linear(128, outputs))
        for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
            nn.init.orthogonal_(layer.weight, scale)
            nn.init.zeros_(layer.bias)
        convolution, hidden, last = layers
        super().__init__(convolution, nn.ReLU(), nn.Flatten(), hidden, nn.ReLU(), last)

    def forward(self, obs: Tensor) -> Tensor:
        """Return the outputs, ``(*B, outputs)``."""
        pictures = obs.reshape(math.prod(obs.shape[:-1]), 10, 10, 4)
        outputs: Tensor = super().forward(pictures.movedim(-1, -3))
        return outputs.view(*obs.shape[:-1], -1)


def chosen(config: PPOConfig) -> PPO:
    """Build PPO with the policy that is chosen from the spaces."""
    envs = make_envs(partial(flat_env, ENV), config.num_envs)
    torch.manual_seed(config.seed)
    space = gym.make(ENV).observation_space
    return PPO(make_policy(space, envs.single_action_space), envs, config)


def by_hand(config: PPOConfig) -> PPO:
    """Build PPO with the same layers, written out."""
    envs = make_envs(partial(flat_env, ENV), config.num_envs)
    torch.manual_seed(config.seed)
    network = ActorCritic(ByHand(3, 0.01), ByHand(1, 1.0))
    return PPO(Policy(network, CategoricalActions(3)), envs, config)


EXPERIMENTS = {
    "minatar_breakout": Experiment(
        ENV,
        replace(CONFIG, total_steps=1_001_472),
        seeds=5,
        episodes=20,
        variants={"chosen": Variant({}, chosen), "by hand": Variant({}, by_hand)},
        packages=("MinAtar",),
    )
}


if __name__ == "__main__":
    main("python -m benchmarks.minatar_learning", EXPERIMENTS)
