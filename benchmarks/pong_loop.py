"""The training loop of PPO on the pictures of Pong, against a bare loop.

The peer is the least that PPO needs: one file, the same network written out layer by
layer, no checks and nothing that is kept. Both train in the same vector environment.
The games live in the environment of the peers: ``make peers ONLY=pong_loop``. A time is
that of one step in one environment, the learning included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from torch import Tensor, nn

from benchmarks.harness import Case, Goal, cpu_seconds
from literate_rl.data.agents import make_envs
from literate_rl.learners.ppo import PPO, PPOConfig
from literate_rl.nets.policies import make_policy
from literate_rl.runs.runs import fit, flat_env

gym.register_envs(ale_py)

ROUNDS = 9
PACKAGES = ("ale-py", "gymnasium")
STEPS = 1024
CONFIG = PPOConfig(total_steps=STEPS, num_envs=8, num_steps=128, num_epochs=4)


def pong(**arguments: Any) -> gym.Env[Any, Any]:
    """Make Pong with four small grey frames."""
    env = gym.make("ALE/Pong-v5", frameskip=1, **arguments)
    return FrameStackObservation(AtariPreprocessing(env), 4)


def learner(config: PPOConfig) -> PPO:
    """Build our learner as the command line does."""
    envs = make_envs(partial(flat_env, pong), config.num_envs)
    torch.manual_seed(config.seed)
    space = pong().observation_space
    return PPO(make_policy(space, envs.single_action_space), envs, config)


def layers(outputs: int) -> nn.Sequential:
    """Build Nature's network."""
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3136, 512),
        nn.ReLU(),
        nn.Linear(512, outputs),
    )


class BareLoop:
    """PPO, and nothing else."""

    def __init__(self, config: PPOConfig) -> None:
        self.config = config
        self.envs = make_envs(pong, config.num_envs)
        self.actor, self.critic = layers(6), layers(1)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(
            self.parameters, config.learning_rate, eps=1e-5
        )

    def scaled(self, obs: Any) -> Tensor:
        """Return bytes as numbers from 0 to 1."""
        return torch.as_tensor(obs).float() / 255.0

    def iterate(self) -> None:
        """Collect a rollout and learn from it."""
        steps, envs = self.config.num_steps, self.config.num_envs
        self.obs = self.envs.reset(seed=self.config.seed)[0]
        obs = np.zeros((steps, envs, 4, 84, 84), np.uint8)
        action = torch.zeros(steps, envs, dtype=torch.int64)
        log_prob, value, reward = (
            torch.zeros(steps, envs),
            torch.zeros(steps + 1, envs),
            np.zeros((steps, envs)),
        )
        done = torch.zeros(steps, envs)
        with torch.no_grad():
            for t in range(steps):
                obs[t] = self.obs
                seen = self.scaled(self.obs)
                choice = torch.distributions.Categorical(logits=self.actor(seen))
                action[t] = choice.sample()
                log_prob[t] = choice.log_prob(action[t])
                value[t] = self.critic(seen).squeeze(-1)
                self.obs, reward[t], end, cut, _ = self.envs.step(action[t].numpy())
                done[t] = torch.as_tensor(end | cut).float()
            value[steps] = self.critic(self.scaled(self.obs)).squeeze(-1)
        gain, adv = torch.zeros(envs), torch.zeros(steps, envs)
        for t in reversed(range(steps)):
            stays = self.config.gamma * (1 - done[t])
            delta = torch.as_tensor(reward[t]).float() + stays * value[t + 1] - value[t]
            adv[t] = gain = delta + stays * self.config.lambda_ * gain
        target = adv + value[:steps]
        data = [
            x.flatten(0, 1)
            for x in (torch.as_tensor(obs), action, log_prob, adv, target)
        ]
        for _ in range(self.config.num_epochs):
            for rows in torch.randperm(steps * envs).chunk(self.config.num_minibatches):
                self.learn(*(x[rows] for x in data))

    def learn(
        self, obs: Tensor, action: Tensor, old: Tensor, adv: Tensor, target: Tensor
    ) -> None:
        """Learn from one minibatch."""
        config, seen = self.config, self.scaled(obs)
        choice = torch.distributions.Categorical(logits=self.actor(seen))
        ratio = (choice.log_prob(action) - old).exp()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        low, high = 1 - config.clip_ratio, 1 + config.clip_ratio
        policy_loss = -torch.min(ratio * adv, ratio.clamp(low, high) * adv).mean()
        value_loss = 0.5 * (self.critic(seen).squeeze(-1) - target).square().mean()
        entropy = choice.entropy().mean()
        loss = policy_loss - config.entropy_weight * entropy
        self.optimizer.zero_grad()
        (loss + config.value_weight * value_loss).backward()
        nn.utils.clip_grad_norm_(self.parameters, config.max_grad_norm)
        self.optimizer.step()


def check(config: PPOConfig) -> None:
    """Assert that both networks are the same function of bytes."""
    own, bare = learner(config), BareLoop(config)
    network = own.policy.network
    for ours, theirs in ((network.actor, bare.actor), (network.critic, bare.critic)):
        weights = zip(ours.parameters(), theirs.parameters(), strict=True)
        for mine, other in weights:
            assert mine.shape == other.shape
            other.data.copy_(mine.data)
    obs = torch.as_tensor(bare.envs.reset(seed=config.seed)[0])
    with torch.no_grad():
        row, value = own.policy(obs.flatten(1)), own.policy.value(obs.flatten(1))
        seen = bare.scaled(obs)
        torch.testing.assert_close(row, bare.actor(seen))
        torch.testing.assert_close(value, bare.critic(seen).squeeze(-1))


def step_clock(build: Callable[[], Callable[[], object]], repeats: int) -> float:
    """Return the CPU seconds of one step; building the learner is not counted."""
    return sum(cpu_seconds(build(), 1) for _ in range(repeats)) / (repeats * STEPS)


def cases() -> Iterator[Case]:
    """Yield one case, after its check."""
    check(CONFIG)
    yield Case(
        name=f"{CONFIG.num_envs} environments, {CONFIG.num_steps} steps each",
        functions={
            "bare loop": lambda: BareLoop(CONFIG).iterate,
            "PPO": lambda: partial(fit, learner(CONFIG), progress=False),
        },
        peer="bare loop",
        goals={"PPO": Goal(at_least=0.8)},
        sample=step_clock,
        shortest=0.0,
    )
