"""PPO as CleanRL arranges it, in our own words: a peer for the benchmarks.

The order of the work is that of ``ppo.py`` and ``ppo_continuous_action.py`` in
https://github.com/vwxyzjn/cleanrl/tree/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb:
actor, critic and a distribution at each step, a loop over time for the advantages, and
minibatches of rows that NumPy has shuffled. What it writes to TensorBoard is left out,
and so is the clip of the value.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import wrappers
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from literate_rl.learners.ppo import PPOConfig, Samples


def cleanrl_env(env: str, config: PPOConfig) -> gym.Env[Any, Any]:
    """Make an environment in the wrappers that CleanRL puts around it."""
    made = wrappers.FlattenObservation(gym.make(env))
    made = wrappers.RecordEpisodeStatistics(made)
    if isinstance(made.action_space, gym.spaces.Box):
        made = wrappers.ClipAction(made)
    clip = partial(np.clip, a_min=-10, a_max=10)
    if config.normalize_obs:
        made = wrappers.NormalizeObservation(made)
        made = wrappers.TransformObservation(made, clip, made.observation_space)
    if config.scale_reward:
        made = wrappers.NormalizeReward(made, gamma=config.gamma)
        made = wrappers.TransformReward(made, clip)
    return made


class CleanRL(nn.Module):
    """An agent and its loop.

    Args:
        actor: From observations to logits, or to means.
        critic: From observations to values, ``(B, 1)``.
        env: Id of the environment.
        config: The settings.
    """

    def __init__(
        self, actor: nn.Module, critic: nn.Module, env: str, config: PPOConfig
    ) -> None:
        super().__init__()
        makers = [partial(cleanrl_env, env, config)] * config.num_envs
        self.envs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
        self.config, self.actor, self.critic = config, actor, critic
        actions = self.envs.single_action_space
        self.log_sigma: nn.Parameter | None = None
        if isinstance(actions, gym.spaces.Box):
            self.log_sigma = nn.Parameter(torch.zeros(1, *actions.shape))
        self.optimizer = torch.optim.Adam(
            self.parameters(), config.learning_rate, eps=1e-5
        )
        self.step = 0
        self.obs = self.read(self.envs.reset(seed=config.seed)[0])
        self.done = torch.zeros(config.num_envs)

    def read(self, numbers: Any) -> Tensor:
        """Return what an environment said as floats."""
        return torch.as_tensor(numbers, dtype=torch.float32)

    def act(
        self, obs: Tensor, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return actions, their log-probabilities, entropies and values."""
        row = self.actor(obs)
        if self.log_sigma is None:
            policy: Any = Categorical(logits=row)
            action = policy.sample() if action is None else action
            log_prob, entropy = policy.log_prob(action), policy.entropy()
        else:
            policy = Normal(row, self.log_sigma.expand_as(row).exp())
            action = policy.sample() if action is None else action
            log_prob = policy.log_prob(action).sum(1)
            entropy = policy.entropy().sum(1)
        return action, log_prob, entropy, self.critic(obs)

    def run(self) -> None:
        """Train to the last step."""
        config = self.config
        while self.step < config.total_steps:
            rate = config.learning_rate * (1 - self.step / config.total_steps)
            self.optimizer.param_groups[0]["lr"] = rate
            samples = self.collect()
            inds = np.arange(len(samples.adv))
            for _ in range(config.num_epochs):
                np.random.shuffle(inds)
                for rows in np.split(inds, config.num_minibatches):
                    self.learn(samples.take(torch.as_tensor(rows)))

    @torch.no_grad()
    def collect(self) -> Samples:
        """Act for a rollout; return it with advantages and targets, as one batch."""
        config, envs = self.config, self.envs
        size = config.num_steps, config.num_envs
        obs = torch.zeros(size + envs.single_observation_space.shape)  # type: ignore[operator]
        action = torch.zeros(size + envs.single_action_space.shape)  # type: ignore[operator]
        log_prob, reward, done, value = (torch.zeros(size) for _ in range(4))
        for t in range(config.num_steps):
            self.step += config.num_envs
            obs[t], done[t] = self.obs, self.done
            chosen, log_prob[t], _, values = self.act(self.obs)
            action[t], value[t] = chosen, values.flatten()
            seen, paid, terminated, truncated, _ = envs.step(chosen.numpy())
            reward[t] = self.read(paid)
            self.obs = self.read(seen)
            self.done = self.read(np.logical_or(terminated, truncated))

        next_value, next_done = self.critic(self.obs).flatten(), self.done
        adv, carried = torch.zeros(size), torch.zeros(())
        for t in reversed(range(config.num_steps)):
            goes_on = config.gamma * (1.0 - next_done)
            delta = reward[t] + goes_on * next_value - value[t]
            adv[t] = carried = delta + config.lambda_ * goes_on * carried
            next_value, next_done = value[t], done[t]
        action = action.long() if self.log_sigma is None else action
        columns = obs, action, log_prob, adv, adv + value, value
        return Samples(*(x.flatten(0, 1) for x in columns))

    def learn(self, part: Samples) -> None:
        """Learn from one minibatch."""
        config, adv = self.config, part.adv
        _, log_prob, entropy, value = self.act(part.obs, part.action)
        log_ratio = log_prob - part.log_prob
        ratio = log_ratio.exp()
        # Distances from the old policy, for the curves.
        with torch.no_grad():
            self.old_kl, self.kl = -log_ratio.mean(), (ratio - 1 - log_ratio).mean()
            outside = (ratio - 1).abs() > config.clip_ratio
            self.clip_fraction = outside.float().mean().item()
        if config.normalize_advantage:
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        clipped = ratio.clamp(1 - config.clip_ratio, 1 + config.clip_ratio)
        policy_loss = torch.max(-adv * ratio, -adv * clipped).mean()
        value_loss = 0.5 * ((value.view(-1) - part.target) ** 2).mean()
        loss = policy_loss - config.entropy_weight * entropy.mean()
        loss = loss + config.value_weight * value_loss
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters(), config.max_grad_norm)
        self.optimizer.step()
