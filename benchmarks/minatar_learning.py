"""MinAtar's games, with the network that their pictures call for.

``python -m benchmarks.minatar_learning`` works as ``benchmarks.learning`` does, where
MinAtar is installed (``pip install '.[minatar]'``). All networks are that of the
MinAtar paper: a convolution of 16 filters and a layer of 128. PPO has the policy of
``make_policy``, on Breakout also one that is built by hand; all games have the settings
of Breakout, which were not tuned. The settings of DQN and Rainbow were chosen among
seven on seed 100; ``docs/results.md`` lists them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from benchmarks.encoders_learning import CONFIG, ENV
from benchmarks.learning import Experiment, Variant, main
from literate_rl.apps.training import make_learner
from literate_rl.data.agents import make_envs
from literate_rl.learners.dqn import DQNConfig
from literate_rl.learners.ppo import PPO, PPOConfig
from literate_rl.learners.rainbow import RainbowConfig
from literate_rl.nets.parts import ActorCritic, CategoricalActions
from literate_rl.nets.policies import Policy, make_policy
from literate_rl.runs.runs import flat_env


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


def by_name(config: Any, algorithm: str, env: str = ENV) -> Any:
    """Build an agent as the command line does."""
    return make_learner(algorithm, env, config, {})


# One update of 32 steps for every four steps of the game, and older copies that follow
# slowly.
OF_VALUES: dict[str, Any] = {
    "total_steps": 300_000,
    "num_envs": 8,
    "batch_size": 32,
    "train_interval": 4,
    "learning_starts": 5_000,
    "target_interval": 1,
    "tau": 0.005,
    "gamma": 0.99,
    "num_steps": 3,
}
OF_PPO = replace(CONFIG, total_steps=1_001_472)
OF_DQN = DQNConfig(
    **OF_VALUES,
    learning_rate=2.5e-4,
    dueling=True,
    epsilon_end=0.05,
    epsilon_steps=100_000,
)
OF_RAINBOW = RainbowConfig(
    **OF_VALUES, learning_rate=1e-3, value_max=20.0, anneal=False
)


def other_game(env: str) -> Experiment:
    """Return the experiment that trains PPO on another game of MinAtar."""
    variants = {"PPO": Variant({}, partial(by_name, algorithm="ppo", env=env))}
    return Experiment(env, OF_PPO, 5, 20, variants, packages=("MinAtar",))


def values(config: DQNConfig, algorithm: str) -> Experiment:
    """Return the experiment that trains an agent that learns values."""
    variants = {algorithm: Variant({}, partial(by_name, algorithm=algorithm.lower()))}
    return Experiment(ENV, config, 2, 20, variants, packages=("MinAtar",))


EXPERIMENTS = {
    "minatar_breakout": Experiment(
        ENV,
        OF_PPO,
        seeds=5,
        episodes=20,
        variants={"chosen": Variant({}, chosen), "by hand": Variant({}, by_hand)},
        packages=("MinAtar",),
    ),
    "minatar_asterix": other_game("MinAtar/Asterix-v1"),
    "minatar_dqn": values(OF_DQN, "DQN"),
    "minatar_rainbow": values(OF_RAINBOW, "Rainbow"),
}


if __name__ == "__main__":
    main("python -m benchmarks.minatar_learning", EXPERIMENTS)
