# Generated from chapters/ppo.py (edit there); digest da32b56da2b022ad
"""PPO: a policy, a rollout, a few epochs of updates, for any action space."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from literate_rl.advantages import gae, reverse_scan
from literate_rl.agents import Rollout, true_successors
from literate_rl.ppo_error import (
    approx_kl_k3,
    check_clip,
    ppo_info,
    ppo_policy_data,
    ppo_policy_error,
    ppo_policy_error_continuous,
    ppo_policy_loss,
    ppo_value_data,
    ppo_value_error,
)
from literate_rl.workshop.runs import check_counts, check_setting, env_seed

__all__ = [
    "PPO",
    "DiscretePolicy",
    "GaussianPolicy",
    "PPOConfig",
    "RewardScaler",
    "RunningMoments",
    "make_policy",
    "numpy_act",
    "ppo_settings",
]


@dataclass(frozen=True)
class PPOConfig:
    """Settings of PPO. The defaults suit small tasks such as CartPole.

    Attributes:
        seed: Decides all that is random in the run, once the policy has its weights.
        total_steps: Steps in the environments, all of them together.
        num_envs: Environments that are stepped together.
        num_steps: Steps of one rollout in each environment.
        num_epochs: How often each rollout is learned from.
        num_minibatches: Parts into which each epoch divides the rollout.
        learning_rate: Step size of Adam at the start.
        anneal: Whether the step size falls to zero in a straight line.
        gamma: Discount.
        lambda_: Decay of the weights of longer returns in the advantage.
        clip_ratio: Half width of the ratio's clip range.
        dual_clip: Bound of the dual clip, greater than 1, or none.
        value_clip: Half width of the value's clip range, in units of the return, or
            none.
        entropy_weight: Weight of the entropy bonus.
        value_weight: Weight of the value loss.
        max_grad_norm: Longest gradient that an update may use.
        normalize_advantage: Whether a minibatch's advantages get mean 0, deviation 1.
        normalize_obs: Whether the policy sees observations with mean 0, deviation 1. It
            has to be built so too.
        scale_reward: Whether rewards are divided by the deviation of the return.
        target_kl: Divergence in nats after which no further epoch begins, or none.
        checkpoint_interval: Iterations between checkpoints. The environments are reset
            at each of them.
    """

    seed: int = 1
    total_steps: int = 100_000
    num_envs: int = 4
    num_steps: int = 128
    num_epochs: int = 4
    num_minibatches: int = 4
    learning_rate: float = 2.5e-4
    anneal: bool = True
    gamma: float = 0.99
    lambda_: float = 0.95
    clip_ratio: float = 0.2
    dual_clip: float | None = None
    value_clip: float | None = None
    entropy_weight: float = 0.01
    value_weight: float = 0.5
    max_grad_norm: float = 0.5
    normalize_advantage: bool = True
    normalize_obs: bool = False
    scale_reward: bool = False
    target_kl: float | None = None
    checkpoint_interval: int = 50

    def __post_init__(self) -> None:
        # What can be checked without an environment is checked before one is made.
        counts = ("total_steps", "num_envs", "num_steps", "num_epochs")
        check_counts(self, (*counts, "num_minibatches", "checkpoint_interval"))
        check_setting(self, "seed", lambda x: x >= 0, "at least 0")
        for name in ("learning_rate", "max_grad_norm"):
            check_setting(self, name, lambda x: x > 0, "positive")
        for name in ("value_clip", "target_kl"):
            check_setting(self, name, lambda x: x is None or x > 0, "positive or None")
        for name in ("gamma", "lambda_"):
            check_setting(self, name, lambda x: 0 <= x <= 1, "in [0, 1]")
        check_clip(self.clip_ratio, self.dual_clip)
        # Of a single advantage nothing is left when its mean is subtracted.
        most = self.num_envs * self.num_steps // (2 if self.normalize_advantage else 1)
        expected = f"at most {most}, so that each part has enough steps of the rollout"
        check_setting(self, "num_minibatches", lambda x: x <= most, expected)


# Settings with which the agent was seen to learn, by environment. What an entry leaves
# out is the default.
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "total_steps": 50_000,
        "num_envs": 8,
        "num_steps": 32,
        "num_epochs": 10,
        "num_minibatches": 1,
        "learning_rate": 2e-3,
        "gamma": 0.98,
        "lambda_": 0.8,
        "entropy_weight": 0.0,
    },
    "Acrobot-v1": {
        "total_steps": 300_000,
        "num_envs": 16,
        "learning_rate": 1e-3,
    },
    "Pendulum-v1": {
        "num_envs": 8,
        "num_steps": 200,
        "num_epochs": 10,
        "num_minibatches": 8,
        "learning_rate": 3e-3,
        "gamma": 0.9,
        "entropy_weight": 0.0,
    },
    "literate_rl/Moving-v0": {
        "total_steps": 60_000,
        "num_envs": 32,
        "num_steps": 64,
        "num_epochs": 8,
        "learning_rate": 3e-3,
        "gamma": 0.98,
    },
    "literate_rl/HybridLander-v0": {
        "total_steps": 400_000,
        "num_envs": 16,
        "num_epochs": 8,
        "num_minibatches": 8,
        "learning_rate": 2e-3,
        "gamma": 0.995,
        "scale_reward": True,
    },
}


def ppo_settings(env: str) -> PPOConfig:
    """Return settings for an environment: its own if we know some, else the defaults.

    Args:
        env: Id of the environment.
    """
    return PPOConfig(**SETTINGS.get(env, {}))


def mlp(inputs: int, hidden: int, outputs: int, gain: float) -> nn.Sequential:
    """Build two hidden layers with tanh, initialised orthogonally.

    Args:
        inputs: Length of the input.
        hidden: Width of the hidden layers.
        outputs: Length of the output.
        gain: Scale of the last layer's weights.
    """
    linear = (
        nn.Linear(inputs, hidden),
        nn.Linear(hidden, hidden),
        nn.Linear(hidden, outputs),
    )
    for layer, scale in zip(linear, (math.sqrt(2), math.sqrt(2), gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(linear[0], nn.Tanh(), linear[1], nn.Tanh(), linear[2])


class DiscretePolicy(nn.Module):
    """A policy for discrete actions, and a value function beside it.

    Args:
        obs_size: Length of an observation.
        num_actions: Number of actions N.
        hidden: Width of the hidden layers.
        normalize: Whether observations are normalised with ``RunningMoments``.
        start: What the environment calls the first action.
    """

    def __init__(
        self,
        obs_size: int,
        num_actions: int,
        hidden: int = 64,
        normalize: bool = False,
        start: int = 0,
    ) -> None:
        super().__init__()
        self.arguments = {
            "obs_size": obs_size,
            "num_actions": num_actions,
            "start": start,
            "hidden": hidden,
            "normalize": normalize,
        }
        self.normalizer = RunningMoments(obs_size) if normalize else nn.Identity()
        self.actor = mlp(obs_size, hidden, num_actions, gain=0.01)
        self.critic = mlp(obs_size, hidden, 1, gain=1.0)

    def forward(self, obs: Tensor) -> Tensor:
        """Return the logits ``(*, N)`` at observations ``(*, D)``."""
        logit: Tensor = self.actor(self.normalizer(obs))
        return logit

    def value(self, obs: Tensor) -> Tensor:
        """Return the values ``(*)`` of observations ``(*, D)``."""
        value: Tensor = self.critic(self.normalizer(obs))
        return value.squeeze(-1)

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, (T, B, N), on the CPU."""
        shape = (num_steps, num_envs, self.arguments["num_actions"])
        return torch.empty(shape).exponential_(generator=generator).log_().neg_()

    def act(self, obs: Tensor, noise: Tensor | float) -> Tensor:
        """Return the actions (B,) that a noise (B, N) makes of observations (B, D)."""
        return self.choose(self(obs), noise)

    def choose(self, logit: Tensor, noise: Tensor | float) -> Tensor:
        """Return the actions (B,) that a noise (B, N) makes of logits (B, N)."""
        # The winner of the race, {eq}`act-discrete`.
        return (logit + noise).argmax(-1)

    def log_prob(self, logit: Tensor, action: Tensor) -> Tensor:
        """Return the log-probabilities ``(*)`` of actions ``(*)``, from logits."""
        return logit.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def error(
        self,
        data: ppo_policy_data,
        clip_ratio: float = 0.2,
        dual_clip: float | None = None,
    ) -> tuple[ppo_policy_loss, ppo_info]:
        """Return the PPO policy error; see ``ppo_policy_error``."""
        return ppo_policy_error(data, clip_ratio, dual_clip)

    def to_env(self, action: Tensor) -> NDArray[np.int64]:
        """Return the actions as vector environments take them."""
        names: NDArray[np.int64] = action.numpy() + self.arguments["start"]
        return names


class GaussianPolicy(nn.Module):
    """A policy for actions in a box, and a value function beside it.

    Args:
        obs_size: Length of an observation.
        low: Lower bounds of the box, (A,), or minus infinity.
        high: Upper bounds, (A,), or infinity.
        hidden: Width of the hidden layers.
        normalize: Whether observations are normalised with ``RunningMoments``.
    """

    def __init__(
        self,
        obs_size: int,
        low: ArrayLike,
        high: ArrayLike,
        hidden: int = 64,
        normalize: bool = False,
    ) -> None:
        super().__init__()
        self.low = np.asarray(low, dtype=np.float32)
        self.high = np.asarray(high, dtype=np.float32)
        self.arguments = {
            "obs_size": obs_size,
            "low": self.low.tolist(),
            "high": self.high.tolist(),
            "hidden": hidden,
            "normalize": normalize,
        }
        self.normalizer = RunningMoments(obs_size) if normalize else nn.Identity()
        self.actor = mlp(obs_size, hidden, self.low.size, gain=0.01)
        self.critic = mlp(obs_size, hidden, 1, gain=1.0)
        self.log_sigma = nn.Parameter(torch.zeros(self.low.size))

    def forward(self, obs: Tensor) -> Tensor:
        """Return means and logarithms of the deviations, ``(*, 2 A)``."""
        mu = self.actor(self.normalizer(obs))
        return torch.cat([mu, self.log_sigma.expand_as(mu)], -1)

    def value(self, obs: Tensor) -> Tensor:
        """Return the values ``(*)`` of observations ``(*, D)``."""
        value: Tensor = self.critic(self.normalizer(obs))
        return value.squeeze(-1)

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, (T, B, A), on the CPU."""
        return torch.randn(num_steps, num_envs, self.low.size, generator=generator)

    def act(self, obs: Tensor, noise: Tensor | float) -> Tensor:
        """Return the actions (B, A) that a noise (B, A) makes of observations."""
        return self.choose(self(obs), noise)

    def choose(self, row: Tensor, noise: Tensor | float) -> Tensor:
        """Return the actions (B, A) that a noise (B, A) makes of rows (B, 2 A)."""
        # Mean plus deviation times noise, {eq}`act-gaussian`.
        mu, log_sigma = row.chunk(2, -1)
        return mu + log_sigma.exp() * noise

    def log_prob(self, row: Tensor, action: Tensor) -> Tensor:
        """Return the log-densities ``(*)`` of actions ``(*, A)``."""
        mu, log_sigma = row.chunk(2, -1)
        distance = (action - mu) * (-log_sigma).exp()
        constant = 0.5 * math.log(2 * math.pi)
        return -(0.5 * distance.square() + log_sigma + constant).sum(-1)

    def error(
        self,
        data: ppo_policy_data,
        clip_ratio: float = 0.2,
        dual_clip: float | None = None,
    ) -> tuple[ppo_policy_loss, ppo_info]:
        """Return the PPO policy error; see ``ppo_policy_error_continuous``."""

        def named(row: Tensor) -> dict[str, Tensor]:
            mu, log_sigma = row.chunk(2, -1)
            return {"mu": mu, "sigma": log_sigma.exp()}

        new, old = named(data.logit_new), named(data.logit_old)
        data = data._replace(logit_new=new, logit_old=old)
        return ppo_policy_error_continuous(data, clip_ratio, dual_clip)

    def to_env(self, action: Tensor) -> NDArray[np.float32]:
        """Stretch actions from -1..1 to the box, and clip what lies outside."""
        # Where there is no bound, nothing is stretched.
        bounded = np.isfinite(self.low) & np.isfinite(self.high)
        low, high = np.where(bounded, [self.low, self.high], [[-1.0], [1.0]])
        stretched = (high + low) / 2 + (high - low) / 2 * action.numpy()
        clipped: NDArray[np.float32] = stretched.clip(self.low, self.high)
        return clipped.astype(np.float32)


class RunningMoments(nn.Module):
    """Mean and variance of everything that has been seen so far.

    Args:
        shape: Shape of one item.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, items: Tensor) -> None:
        """Take in items, ``(n, *shape)`` with n at least 1."""
        items = items.double()
        # Two groups are put together by {eq}`pooled-moments`.
        count, mean, var = len(items), items.mean(0), items.var(0, unbiased=False)
        total = self.count + count
        between = (mean - self.mean).square() * self.count * count / total
        self.var.copy_((self.var * self.count + var * count + between) / total)
        self.mean.add_((mean - self.mean) * count / total)
        self.count.copy_(total)

    def forward(self, items: Tensor) -> Tensor:
        """Return items with mean 0 and deviation 1, cut off beyond 10 deviations."""
        scale = (self.var + 1e-8).rsqrt()
        return ((items - self.mean) * scale).to(items.dtype).clamp(-10.0, 10.0)


class RewardScaler(nn.Module):
    """Divides rewards by the deviation of the discounted return.

    The mean is not subtracted: that would pay for a longer or a shorter life.

    Args:
        num_envs: Number of environments B.
        gamma: Discount.
    """

    carry: Tensor

    def __init__(self, num_envs: int, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma
        self.moments = RunningMoments()
        self.register_buffer("carry", torch.zeros(num_envs))

    def forward(self, reward: Tensor, done: Tensor, real: Tensor) -> Tensor:
        """Take in the rewards of a rollout's real steps, (T, B); return all scaled."""
        # The sum {eq}`reward-scale` runs forward in time. Turned around it is the scan
        # of {doc}`/chapters/advantages`.
        increment = reward.clone()
        increment[0] += self.carry
        factor = torch.full_like(reward, self.gamma)
        factor[1:].masked_fill_(done[:-1], 0.0)
        so_far = reverse_scan(increment.flip(0), factor.flip(0)).flip(0)
        self.carry.copy_(self.gamma * so_far[-1].masked_fill(done[-1], 0.0))
        self.moments.update(so_far[real])
        return reward / (self.moments.var + 1e-8).sqrt().to(reward.dtype)


class PPO:
    """Proximal policy optimisation, for any policy with the methods of this chapter.

    Args:
        policy: The policy to train, on any device.
        envs: A vector environment with ``config.num_envs`` copies.
        config: The settings.
        act: Function from observations and noise to actions, in place of
            ``policy.act``.
        policy_error: Function of ``ppo_policy_data``, clip ratio and dual clip, in
            place of ``policy.error``.

    Raises:
        ValueError: If the number of environments is another one, or the policy does
            not normalise observations as the settings say.
    """

    def __init__(
        self,
        policy: Any,
        envs: VectorEnv[Any, Any, Any],
        config: PPOConfig,
        act: Callable[[Tensor, Tensor], Tensor] | None = None,
        policy_error: Callable[..., tuple[ppo_policy_loss, ppo_info]] | None = None,
    ) -> None:
        if envs.num_envs != config.num_envs:
            raise ValueError(
                f"envs must have {config.num_envs} copies, got {envs.num_envs}"
            )
        normalizes = hasattr(getattr(policy, "normalizer", None), "update")
        if normalizes != config.normalize_obs:
            raise ValueError(
                "policy must normalise observations if config.normalize_obs says so, "
                f"which is {config.normalize_obs}"
            )
        self.policy, self.envs, self.config = policy, envs, config
        self.act = act or policy.act
        self.policy_error = policy_error or policy.error
        self.parameters = list(policy.parameters())
        self.device = self.parameters[0].device
        self.optimizer = torch.optim.Adam(
            self.parameters, config.learning_rate, eps=1e-5, fused=True
        )
        self.scaler = RewardScaler(config.num_envs, config.gamma).to(self.device)
        self.generator = torch.Generator().manual_seed(config.seed)
        self.resets_later = (
            envs.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP
        )
        self.step = self.iteration = 0
        self.obs: Any = None  # no episode is under way

    @property
    def total_steps(self) -> int:
        """Steps after which the training is over."""
        return self.config.total_steps

    @property
    def checkpoint_due(self) -> bool:
        """Whether the next iteration starts with fresh environments."""
        return self.iteration % self.config.checkpoint_interval == 0

    def iterate(self) -> dict[str, float]:
        """Collect a rollout, learn from it, and return metrics."""
        if self.obs is None or self.checkpoint_due:
            self.reset_envs()
        # The step size {eq}`annealing`.
        rate = self.config.learning_rate
        if self.config.anneal:
            rate *= max(0.0, 1 - self.step / self.total_steps)
        self.optimizer.param_groups[0]["lr"] = rate

        batch, real = self.collect()
        returns, lengths = self.count_episodes(batch, real)
        self.iteration += 1
        return {
            "charts/episodic_return": float(np.mean(returns)) if returns else math.nan,
            "charts/episodic_length": float(np.mean(lengths)) if lengths else math.nan,
            "charts/learning_rate": rate,
            **self.update(batch, real),
        }

    def reset_envs(self) -> None:
        """Start new episodes, from seeds that the run's seed and the step decide."""
        num_envs = self.config.num_envs
        seed = env_seed(self.config.seed, self.step)
        self.obs, _ = self.envs.reset(seed=seed)
        self.ended = np.zeros(num_envs, dtype=bool)
        self.episode_return = np.zeros(num_envs)
        self.episode_length = np.zeros(num_envs, dtype=np.int64)
        self.scaler.carry.zero_()

    @torch.no_grad()
    def collect(self) -> tuple[Rollout, Tensor]:
        """Act for T steps; return what happened and which steps are real, (T, B)."""
        # The noise of all steps is drawn at once. What happens is written into arrays
        # as large as the whole rollout.
        num_steps, num_envs = self.config.num_steps, self.config.num_envs
        noise = self.policy.noise(num_steps, num_envs, self.generator).to(self.device)
        obs = np.empty((num_steps, *np.shape(self.obs)), dtype=np.float32)
        next_obs = np.empty_like(obs)
        reward = np.empty((num_steps, num_envs), dtype=np.float32)
        terminated, truncated, real = np.empty((3, num_steps, num_envs), dtype=bool)
        actions = []
        for t in range(num_steps):
            obs[t] = self.obs
            action = self.act(torch.from_numpy(obs[t]).to(self.device), noise[t]).cpu()
            actions.append(action)
            self.obs, reward[t], terminated[t], truncated[t], infos = self.envs.step(
                self.policy.to_env(action)
            )
            # In mode `NEXT_STEP` the step after an end is a phantom, and `obs` at an
            # end is the true successor. In mode `SAME_STEP` all steps are real.
            real[t] = ~self.ended
            if self.resets_later:
                next_obs[t] = self.obs
                self.ended = (terminated[t] | truncated[t]) & real[t]
            else:
                next_obs[t] = true_successors(self.obs, infos)
        check_experience(self.step, obs=obs, reward=reward, next_obs=next_obs)
        self.step += num_steps * num_envs
        arrays = map(torch.from_numpy, (reward, next_obs, terminated, truncated))
        batch = Rollout(torch.from_numpy(obs), torch.stack(actions), *arrays)
        return Rollout(*(x.to(self.device) for x in batch)), torch.from_numpy(real)

    def count_episodes(
        self, batch: Rollout, real: Tensor
    ) -> tuple[list[float], list[int]]:
        """Return the returns and the lengths of the episodes that ended."""
        reward = batch.reward.cpu().double().numpy()
        done = (batch.terminated | batch.truncated).cpu().numpy()
        total = self.episode_return + reward.cumsum(0)
        steps = self.episode_length + real.numpy().cumsum(0)
        returns, lengths = [], []
        start_return = np.zeros(len(self.episode_return))
        start_length = np.zeros(len(self.episode_length), dtype=np.int64)
        for t, b in zip(*done.nonzero(), strict=True):
            returns.append(float(total[t, b] - start_return[b]))
            lengths.append(int(steps[t, b] - start_length[b]))
            start_return[b], start_length[b] = total[t, b], steps[t, b]
        self.episode_return = total[-1] - start_return
        self.episode_length = steps[-1] - start_length
        return returns, lengths

    def update(self, batch: Rollout, real: Tensor) -> dict[str, float]:
        """Learn from a rollout for some epochs; return metrics.

        The losses are those of the last minibatch, the distances those of all steps.
        """
        config, policy = self.config, self.policy
        # One pass over the whole rollout gives what the old policy and the old values
        # were. Nothing had to be computed for this while acting.
        with torch.no_grad():
            old = policy(batch.obs)
            value = policy.value(batch.obs)
            next_value = policy.value(batch.next_obs)
            reward = batch.reward
            if config.scale_reward:
                done = batch.terminated | batch.truncated
                reward = self.scaler(reward, done, real.to(self.device))
            adv = gae(
                reward,
                value,
                next_value,
                batch.terminated,
                batch.truncated,
                config.gamma,
                config.lambda_,
            )
            target = adv + value
        # {doc}`/chapters/ppg` looks at the rollout once more.
        self.seen = (batch._replace(reward=reward), old, value, next_value)

        # From here on time plays no role. What is left is a table of real steps.
        columns = (batch.obs, batch.action, old, adv, target, value)
        data = [column[real.to(self.device)] for column in columns]
        for _ in range(config.num_epochs):
            # Each epoch shuffles the table and deals it out in minibatches.
            order = torch.randperm(len(data[0]), generator=self.generator)
            shuffled = (column[order.to(self.device)] for column in data)
            parts = (column.tensor_split(config.num_minibatches) for column in shuffled)
            for minibatch in zip(*parts, strict=True):
                losses = self.learn(*minibatch)
            # A policy that has moved far enough has learned enough from this rollout.
            if config.target_kl is not None:
                moved = self.distance(*data[:3])
                if moved["losses/approx_kl"] > config.target_kl:
                    break
        moved = self.distance(*data[:3])
        # Only now may the normaliser change. Earlier it would move the old policy.
        if config.normalize_obs:
            policy.normalizer.update(data[0])
        target, value = data[4:]
        unexplained = (target - value).var() / target.var()
        return {**losses, **moved, "losses/explained_variance": 1 - unexplained.item()}

    def learn(
        self,
        obs: Tensor,
        action: Tensor,
        old: Tensor,
        adv: Tensor,
        target: Tensor,
        old_value: Tensor,
    ) -> dict[str, float]:
        """Take one step of the optimiser on a minibatch; return its losses."""
        config, policy = self.config, self.policy
        # The advantages of the minibatch get a handy size, {eq}`advantage-normalised`.
        if config.normalize_advantage:
            adv = (adv - adv.mean()) / (adv.std(correction=0) + 1e-8)
        # The three parts of the loss are those of {doc}`/chapters/ppo_error`.
        policy_loss, _ = self.policy_error(
            ppo_policy_data(policy(obs), old, action, adv, None),
            config.clip_ratio,
            config.dual_clip,
        )
        value_loss = ppo_value_error(
            ppo_value_data(policy.value(obs), old_value, target, None),
            config.value_clip,
        )
        loss = (
            policy_loss.policy_loss
            + config.value_weight * value_loss
            - config.entropy_weight * policy_loss.entropy_loss
        )
        # One step downhill, with a gradient that is shortened if it is too long.
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, config.max_grad_norm)
        self.optimizer.step()
        return {
            "losses/policy_loss": policy_loss.policy_loss.item(),
            "losses/value_loss": value_loss.item(),
            "losses/entropy": policy_loss.entropy_loss.item(),
        }

    @torch.no_grad()
    def distance(self, obs: Tensor, action: Tensor, old: Tensor) -> dict[str, float]:
        """Say how far the policy has moved from the one that collected the rollout."""
        log_prob_new = self.policy.log_prob(self.policy(obs), action)
        log_prob_old = self.policy.log_prob(old, action)
        log_ratio = log_prob_new - log_prob_old
        # CleanRL calls $k_3$ `approx_kl` and $k_1$ `old_approx_kl`.
        outside = (log_ratio.exp() - 1).abs() > self.config.clip_ratio
        return {
            "losses/old_approx_kl": -log_ratio.mean().item(),
            "losses/approx_kl": approx_kl_k3(log_prob_new, log_prob_old).item(),
            "losses/clipfrac": outside.float().mean().item(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, the policy's weights aside."""
        return {
            "step": self.step,
            "iteration": self.iteration,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned."""
        self.step, self.iteration = state["step"], state["iteration"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.generator.set_state(state["generator"])
        self.obs = None


def check_experience(step: int, **arrays: NDArray[Any]) -> None:
    """Raise if an environment gave a number that is not finite, and say where.

    Args:
        step: Steps taken before this rollout.
        arrays: What the environments gave, ``(T, B, *)``, by name.

    Raises:
        ValueError: If something is NaN or infinite.
    """
    for name, array in arrays.items():
        bad = ~np.isfinite(array)
        if bad.any():
            index = tuple(np.argwhere(bad)[0])
            t, b = int(index[0]), int(index[1])
            raise ValueError(
                f"{name} of environment {b} is {array[index]} at step "
                f"{step + t * array.shape[1]} (row {t} of the rollout)"
            )


def make_policy(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    hidden: int = 64,
    normalize: bool = False,
) -> DiscretePolicy | GaussianPolicy:
    """Build the policy that fits the spaces of one environment.

    Args:
        observation_space: A box with one dimension.
        action_space: A Discrete space or a box with one dimension.
        hidden: Width of the hidden layers.
        normalize: Whether the policy normalises its observations.

    Raises:
        ValueError: If a space is of another kind.
    """
    shape = observation_space.shape
    if (
        not isinstance(observation_space, spaces.Box)
        or shape is None
        or len(shape) != 1
    ):
        raise ValueError(
            "observation_space must be a box with one dimension, "
            f"got {observation_space}"
        )
    if isinstance(action_space, spaces.Discrete):
        start = int(action_space.start)
        num_actions = int(action_space.n)
        return DiscretePolicy(shape[0], num_actions, hidden, normalize, start)
    if isinstance(action_space, spaces.Box) and len(action_space.shape) == 1:
        low, high = action_space.low, action_space.high
        return GaussianPolicy(shape[0], low, high, hidden, normalize)
    raise ValueError(
        f"action_space must be Discrete or a box with one dimension, got {action_space}"
    )


def numpy_act(
    policy: DiscretePolicy | GaussianPolicy,
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return what ``policy.act`` computes, in NumPy: faster for small networks.

    The arrays share their memory with the parameters, so that the function always acts
    with the current weights.

    Args:
        policy: A policy of this chapter, on the CPU.

    Raises:
        ValueError: If the policy is on another device.
    """
    parameters = list(policy.actor.parameters())
    if parameters[0].device.type != "cpu":
        raise ValueError(f"policy must be on the CPU, got {parameters[0].device}")
    *hidden, weight, bias = (p.detach().numpy().T for p in parameters)
    layers = list(zip(hidden[::2], hidden[1::2], strict=True))

    def forward(obs: Tensor) -> NDArray[np.float32]:
        x: NDArray[np.float32] = policy.normalizer(obs).numpy()
        for w, b in layers:
            x = np.tanh(x @ w + b)
        out: NDArray[np.float32] = x @ weight + bias
        return out

    if isinstance(policy, DiscretePolicy):

        def act(obs: Tensor, noise: Tensor) -> Tensor:
            return torch.from_numpy((forward(obs) + noise.numpy()).argmax(-1))
    else:
        log_sigma = policy.log_sigma.detach().numpy()

        def act(obs: Tensor, noise: Tensor) -> Tensor:
            return torch.from_numpy(forward(obs) + np.exp(log_sigma) * noise.numpy())

    return act
