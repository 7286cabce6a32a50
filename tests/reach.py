"""A task with two numbers in an action, and what tests of DDPG and TD3 share."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from literate_rl.data.agents import make_envs
from literate_rl.data.replay import Batch
from literate_rl.learners.ddpg import (
    DDPG,
    DDPGConfig,
    DeterministicPolicyGradient,
    make_ddpg_policy,
)
from literate_rl.learners.loop import OffPolicy
from literate_rl.learners.td3 import (
    HDDPG,
    TD3,
    HDDPGConfig,
    Hysteretic,
    TD3Config,
    TwinDelayed,
)
from literate_rl.nets.policies import Policy

N, STATE = 6, 3
# An action of two numbers whose bounds differ, and are not symmetric.
LOW, HIGH = (-1.0, 0.0), (3.0, 0.5)
BOX = spaces.Box(np.array(LOW, np.float32), np.array(HIGH, np.float32))
OBSERVATIONS = spaces.Box(-1.0, 1.0, (STATE,))


class Reach(gym.Env[Any, Any]):
    """Name the point that is seen. Every step pays minus the squared distance."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (1,)), BOX

    def look(self) -> Any:
        self.point = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.point

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.look(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        wanted = np.array([1.0 + self.point[0], 0.25 + 0.2 * self.point[0]])
        reward = -float(np.square(action - wanted).sum())
        self.time += 1
        return self.look(), reward, False, self.time == 5, {}


# For each kind of settings the algorithm, and the learner.
KINDS: dict[type[DDPGConfig], Any] = {
    DDPGConfig: (DeterministicPolicyGradient, DDPG),
    HDDPGConfig: (Hysteretic, HDDPG),
    TD3Config: (TwinDelayed, TD3),
}


def policy_for(config: Any, env: Any = Reach, **more: Any) -> Policy:
    """Build a policy with the critics that the settings ask for."""
    critics = {"num_critics": getattr(config, "num_critics", 1)} | more
    return make_ddpg_policy(env.observation_space, env.action_space, 8, **critics)


def batch_of(seed: int = 0) -> Batch:
    """Return a random batch of float64; its second step ended the episode."""
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    discount = torch.full((N,), 0.97, dtype=torch.float64)
    discount[1] = 0.0
    weight = draw(N).abs()
    obs, next_obs = draw(2, N, STATE)
    return Batch(obs, draw(N, 2), draw(N), next_obs, discount, weight, torch.arange(N))


class Seen:
    """The spaces of such a batch."""

    observation_space, action_space = OBSERVATIONS, BOX


def algorithm_for(config: DDPGConfig, policy: Policy | None = None) -> Any:
    """Build an algorithm of float64 whose older copy has other weights."""
    make, _ = KINDS[type(config)]
    algorithm = make(policy or policy_for(config, Seen).double(), config)
    older = algorithm.target.network
    with torch.no_grad():
        for p in older.parameters():
            p.add_(0.3 * torch.randn_like(p))
    # A gradient that reaches the copy would be seen.
    older.requires_grad_()
    return algorithm


SMALL: dict[str, Any] = {
    "total_steps": 300,
    "num_envs": 2,
    "train_interval": 2,
    "hidden": 8,
    "batch_size": 8,
    "learning_starts": 40,
    "epsilon_steps": 50,
    "buffer_size": 150,
    "iteration_steps": 50,
    "checkpoint_interval": 2,
    "learning_rate": 1e-2,
}


def learner_for(config: DDPGConfig, policy: Policy | None = None) -> OffPolicy:
    """Build the learner that the settings belong to."""
    torch.manual_seed(config.seed)
    _, make = KINDS[type(config)]
    envs = make_envs(Reach, config.num_envs)
    learner: OffPolicy = make(policy or policy_for(config), envs, config)
    return learner
