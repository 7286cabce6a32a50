# Generated from chapters/ppo.py (edit there); digest 5a496af7c4ebc36d
"""PPO: a policy, a rollout, a few epochs of updates, for any action space."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from literate_rl.advantages import gae
from literate_rl.agents import Collector, Rollout
from literate_rl.policy_gradient import check_finite
from literate_rl.ppo_error import (
    approx_kl_k3,
    policy_error_from_log_prob,
    ppo_info,
    ppo_policy_loss,
    ppo_value_data,
    ppo_value_error,
)
from literate_rl.workshop.fast import reverse_scan
from literate_rl.workshop.nests import as_space, plain_space
from literate_rl.workshop.runs import check_counts, check_setting, env_seed

__all__ = [
    "PPO",
    "ActorCritic",
    "CategoricalActions",
    "GaussianActions",
    "PPOConfig",
    "Policy",
    "RewardScaler",
    "RunningMoments",
    "make_actions",
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
        for name in ("learning_rate", "max_grad_norm", "clip_ratio"):
            check_setting(self, name, lambda x: x > 0, "positive")
        for name in ("value_clip", "target_kl"):
            check_setting(self, name, lambda x: x is None or x > 0, "positive or None")
        for name in ("gamma", "lambda_"):
            check_setting(self, name, lambda x: 0 <= x <= 1, "in [0, 1]")
        above = "greater than 1 or None"
        check_setting(self, "dual_clip", lambda x: x is None or x > 1, above)
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


class CategoricalActions:
    """One of N actions; a row holds their logits.

    Args:
        num_actions: Number of actions N.
        start: What the environment calls the first action.
    """

    def __init__(self, num_actions: int, start: int = 0) -> None:
        self.num_actions, self.start = num_actions, start

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, (T, B, N), on the CPU."""
        shape = (num_steps, num_envs, self.num_actions)
        return torch.empty(shape).exponential_(generator=generator).log_().neg_()

    def choose(self, row: Tensor, noise: Tensor | float) -> Tensor:
        """Return the actions (B,) that a noise (B, N) makes of logits (B, N)."""
        # The winner of the race, {eq}`act-discrete`.
        return (row + noise).argmax(-1)

    def log_prob(self, row: Tensor, action: Tensor) -> Tensor:
        """Return the log-probabilities ``(*)`` of actions ``(*)``, from logits."""
        return chosen(row.log_softmax(-1), action)

    def entropy(self, row: Tensor) -> Tensor:
        """Return the entropies ``(*)`` of logits, in nats."""
        return mean_surprise(row.log_softmax(-1))

    def evaluate(self, row: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies, each ``(*)``, with one softmax."""
        log_prob = row.log_softmax(-1)
        return chosen(log_prob, action), mean_surprise(log_prob)

    def kl(self, row: Tensor, other: Tensor) -> Tensor:
        """Return the divergences ``(*)`` from rows to others, in nats."""
        log_prob = row.log_softmax(-1)
        difference = log_prob - other.log_softmax(-1)
        prob = log_prob.exp()
        return (prob * torch.where(prob > 0, difference, 0.0)).sum(-1)

    def to_env(self, action: Tensor) -> NDArray[np.int64]:
        """Return the actions as vector environments take them."""
        names: NDArray[np.int64] = action.numpy() + self.start
        return names


def chosen(log_prob: Tensor, action: Tensor) -> Tensor:
    """Return the entries ``(*)`` of rows ``(*, N)`` at the actions ``(*)``."""
    return log_prob.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def mean_surprise(log_prob: Tensor) -> Tensor:
    """Return the entropies ``(*)`` of log-probabilities ``(*, N)``, in nats."""
    # An action that was taken away has probability zero and adds nothing. Zero times
    # infinity would be NaN.
    return -(log_prob.exp() * log_prob.clamp(min=-1e4)).sum(-1)


class GaussianActions:
    """Numbers in a box; a row holds their means and logarithms of standard deviations.

    Args:
        low: Lower bounds of the box, (A,), or minus infinity.
        high: Upper bounds, (A,), or infinity.
    """

    def __init__(self, low: ArrayLike, high: ArrayLike) -> None:
        self.low = np.asarray(low, dtype=np.float32)
        self.high = np.asarray(high, dtype=np.float32)

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, (T, B, A), on the CPU."""
        return torch.randn(num_steps, num_envs, self.low.size, generator=generator)

    def choose(self, row: Tensor, noise: Tensor | float) -> Tensor:
        """Return the actions (B, A) that a noise (B, A) makes of rows (B, 2 A)."""
        # Mean plus standard deviation times noise, {eq}`act-gaussian`.
        mu, log_sigma = row.chunk(2, -1)
        return mu + log_sigma.exp() * noise

    def log_prob(self, row: Tensor, action: Tensor) -> Tensor:
        """Return the log-densities ``(*)`` of actions ``(*, A)``."""
        mu, log_sigma = row.chunk(2, -1)
        distance = (action - mu) * (-log_sigma).exp()
        constant = 0.5 * math.log(2 * math.pi)
        return -(0.5 * distance.square() + log_sigma + constant).sum(-1)

    def entropy(self, row: Tensor) -> Tensor:
        """Return the entropies ``(*)`` of rows, in nats; they may be negative."""
        _, log_sigma = row.chunk(2, -1)
        return (log_sigma + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def evaluate(self, row: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-densities and entropies, each ``(*)``."""
        return self.log_prob(row, action), self.entropy(row)

    def kl(self, row: Tensor, other: Tensor) -> Tensor:
        """Return the divergences ``(*)`` from rows to others, in nats."""
        mu, log_sigma = row.chunk(2, -1)
        other_mu, other_log_sigma = other.chunk(2, -1)
        shift = (mu - other_mu) * (-other_log_sigma).exp()
        change = log_sigma - other_log_sigma
        square = (2 * change).exp() + shift.square()
        return (0.5 * (square - 1) - change).sum(-1)

    def to_env(self, action: Tensor) -> NDArray[np.float32]:
        """Stretch actions from -1..1 to the box, and clip what lies outside."""
        # Where there is no bound, nothing is stretched.
        bounded = np.isfinite(self.low) & np.isfinite(self.high)
        low, high = np.where(bounded, [self.low, self.high], [[-1.0], [1.0]])
        stretched = (high + low) / 2 + (high - low) / 2 * action.numpy()
        clipped: NDArray[np.float32] = stretched.clip(self.low, self.high)
        return clipped.astype(np.float32)


class ActorCritic(nn.Module):
    """Two networks side by side: one for the rows, one for the values.

    Args:
        actor: Module from observations ``(*, D)`` to rows.
        critic: Module from observations ``(*, D)`` to values ``(*, 1)``.
        normalizer: Module that both see the observations through.
    """

    def __init__(
        self, actor: nn.Module, critic: nn.Module, normalizer: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.normalizer = normalizer or nn.Identity()
        self.actor, self.critic = actor, critic

    def forward(self, obs: Tensor) -> Tensor:
        """Return the rows of observations ``(*, D)``."""
        row: Tensor = self.actor(self.normalizer(obs))
        return row

    def value(self, obs: Tensor) -> Tensor:
        """Return the values ``(*)`` of observations ``(*, D)``."""
        value: Tensor = self.critic(self.normalizer(obs))
        return value.squeeze(-1)


class WithDeviations(nn.Module):
    """A network for means, and a standard deviation for each that no state changes.

    Args:
        mean: Module from observations ``(*, D)`` to means ``(*, A)``.
        size: Number of means A.
    """

    def __init__(self, mean: nn.Module, size: int) -> None:
        super().__init__()
        self.mean = mean
        self.log_sigma = nn.Parameter(torch.zeros(size))

    def forward(self, obs: Tensor) -> Tensor:
        """Return means and logarithms of the standard deviations, ``(*, 2 A)``."""
        mu = self.mean(obs)
        return torch.cat([mu, self.log_sigma.expand_as(mu)], -1)


class Policy(nn.Module):
    """What an agent does: a network and an action distribution.

    Args:
        network: Module from observations to rows, with a method ``value``.
        actions: The action distribution, which knows what a row means.
        recipe: Name of a public function that builds the same policy, and its
            arguments as plain values, for checkpoints.
    """

    def __init__(
        self,
        network: nn.Module,
        actions: Any,
        recipe: tuple[str, dict[str, Any]] = ("", {}),
    ) -> None:
        super().__init__()
        self.network, self.actions, self.recipe = network, actions, recipe

    def forward(self, obs: Tensor) -> Tensor:
        """Return the rows that describe the policy at observations ``(*, D)``."""
        row: Tensor = self.network(obs)
        return row

    def value(self, obs: Tensor) -> Tensor:
        """Return the values ``(*)`` of observations ``(*, D)``."""
        value: Tensor = self.network.value(obs)  # type: ignore[operator]
        return value

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, ``(T, B, *)``, on the CPU."""
        noise: Tensor = self.actions.noise(num_steps, num_envs, generator)
        return noise

    def act(self, obs: Tensor, noise: Tensor | float) -> Tensor:
        """Return the actions that a noise makes of observations; 0.0 is greedy."""
        action: Tensor = self.actions.choose(self(obs), noise)
        return action

    def evaluate_actions(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of actions and the entropies, each ``(*)``."""
        terms: tuple[Tensor, Tensor] = self.actions.evaluate(self(obs), action)
        return terms

    def to_env(self, action: Tensor) -> Any:
        """Return the actions as vector environments take them."""
        return self.actions.to_env(action)


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
    """Proximal policy optimisation, for any policy with the methods of ``Policy``.

    Args:
        policy: The policy to train, on any device.
        envs: A vector environment with ``config.num_envs`` copies.
        config: The settings.
        act: Function from observations and noise to actions, instead of
            ``policy.act``.
        policy_error: Loss of log-probabilities, instead of
            ``policy_error_from_log_prob``.

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
        normalizes = normalizer_of(policy) is not None
        if normalizes != config.normalize_obs:
            raise ValueError(
                "policy must normalise observations if config.normalize_obs says so, "
                f"which is {config.normalize_obs}"
            )
        self.policy, self.config = policy, config
        self.act = act or policy.act
        self.policy_error = policy_error or policy_error_from_log_prob
        self.parameters = list(policy.parameters())
        self.device = self.parameters[0].device
        self.optimizer = torch.optim.Adam(
            self.parameters, config.learning_rate, eps=1e-5, fused=True
        )
        self.scaler = RewardScaler(config.num_envs, config.gamma).to(self.device)
        self.generator = torch.Generator().manual_seed(config.seed)
        self.collector = Collector(envs, policy.to_env, np.float32)
        self.iteration = 0

    @property
    def step(self) -> int:
        """Steps taken so far, all environments together."""
        return self.collector.step

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
        return self.update(self.collect())

    def collect(self) -> Rollout:
        """Act for T steps with the policy as it is."""
        if self.collector.obs is None or self.checkpoint_due:
            self.collector.reset(env_seed(self.config.seed, self.step))
            self.scaler.carry.zero_()
        # The learning rate {eq}`annealing`.
        rate = self.config.learning_rate
        if self.config.anneal:
            rate *= max(0.0, 1 - self.step / self.total_steps)
        self.optimizer.param_groups[0]["lr"] = rate

        # The noise of all steps is drawn at once.
        num_steps, num_envs = self.config.num_steps, self.config.num_envs
        noise = self.policy.noise(num_steps, num_envs, self.generator)
        draws = iter(noise.to(self.device))
        self.iteration += 1
        return self.collector.collect(
            lambda obs: self.act(obs.to(self.device), next(draws)), num_steps
        ).to(self.device)

    def update(self, batch: Rollout) -> dict[str, float]:
        """Learn from a rollout for some epochs; return metrics.

        The losses are those of the last minibatch, the distances those of all steps.
        """
        config, policy = self.config, self.policy
        # One pass over the whole rollout gives what the old policy and the old values
        # were. Nothing had to be computed for this while acting.
        with torch.no_grad():
            old_log_prob, _ = policy.evaluate_actions(batch.obs, batch.action)
            value, next_value = policy.value(batch.obs), policy.value(batch.next_obs)
            reward = batch.reward
            if config.scale_reward:
                done = batch.terminated | batch.truncated
                reward = self.scaler(reward, done, batch.real)
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
        self.seen = (batch._replace(reward=reward), value, next_value)

        # From here on time plays no role. What is left is a table of real steps.
        columns = (batch.obs, batch.action, old_log_prob, adv, target, value)
        data = [column[batch.real] for column in columns]
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
            policy.network.normalizer.update(data[0])
        target, value = data[4:]
        unexplained = (target - value).var() / target.var()
        return {
            "charts/episodic_return": batch.episode_return.nanmean().item(),
            "charts/episodic_length": batch.episode_length.nanmean().item(),
            "charts/learning_rate": self.optimizer.param_groups[0]["lr"],
            **losses,
            **moved,
            "losses/explained_variance": 1 - unexplained.item(),
        }

    def learn(
        self,
        obs: Tensor,
        action: Tensor,
        old_log_prob: Tensor,
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
        log_prob, entropy = policy.evaluate_actions(obs, action)
        policy_loss, _ = self.policy_error(
            log_prob,
            old_log_prob,
            entropy,
            adv,
            None,
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
        losses = {
            "losses/policy_loss": policy_loss.policy_loss.item(),
            "losses/value_loss": value_loss.item(),
            "losses/entropy": policy_loss.entropy_loss.item(),
        }
        # What is not finite would spoil all weights at once.
        check_finite(
            tuple(losses.values()),
            log_prob_old=old_log_prob,
            log_prob=log_prob,
            entropy=entropy,
        )
        # One step downhill, with a gradient that is shortened if it is too long.
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, config.max_grad_norm)
        self.optimizer.step()
        return losses

    @torch.no_grad()
    def distance(
        self, obs: Tensor, action: Tensor, old_log_prob: Tensor
    ) -> dict[str, float]:
        """Say how far the policy has moved from the one that collected the rollout."""
        log_prob, _ = self.policy.evaluate_actions(obs, action)
        log_ratio = log_prob - old_log_prob
        # CleanRL calls $k_3$ `approx_kl` and $k_1$ `old_approx_kl`.
        outside = (log_ratio.exp() - 1).abs() > self.config.clip_ratio
        return {
            "losses/old_approx_kl": -log_ratio.mean().item(),
            "losses/approx_kl": approx_kl_k3(log_prob, old_log_prob).item(),
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
        self.collector.step, self.iteration = state["step"], state["iteration"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.generator.set_state(state["generator"])
        self.collector.obs = None


def normalizer_of(policy: Any) -> Any:
    """Return what normalises a policy's observations, or None."""
    normalizer = getattr(getattr(policy, "network", None), "normalizer", None)
    return normalizer if hasattr(normalizer, "update") else None


def make_actions(
    action_space: spaces.Space[Any],
) -> CategoricalActions | GaussianActions:
    """Return the action distribution that fits a Discrete space or a box.

    Args:
        action_space: A Discrete space or a box with one dimension.

    Raises:
        ValueError: If the space is of another kind.
    """
    if isinstance(action_space, spaces.Discrete):
        return CategoricalActions(int(action_space.n), int(action_space.start))
    if isinstance(action_space, spaces.Box) and len(action_space.shape) == 1:
        return GaussianActions(action_space.low, action_space.high)
    raise ValueError(
        f"action_space must be Discrete or a box with one dimension, got {action_space}"
    )


def make_policy(
    observation_space: spaces.Space[Any] | dict[str, Any],
    action_space: spaces.Space[Any] | dict[str, Any],
    hidden: int = 64,
    normalize: bool = False,
) -> Policy:
    """Build the policy that fits the spaces of one environment.

    Args:
        observation_space: A box with one dimension, or what ``plain_space`` made of it.
        action_space: A Discrete space or a box with one dimension, likewise.
        hidden: Width of the hidden layers.
        normalize: Whether the policy normalises its observations.

    Raises:
        ValueError: If a space is of another kind.
    """
    observation_space = as_space(observation_space)
    action_space = as_space(action_space)
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
    actions = make_actions(action_space)
    actor: nn.Module
    if isinstance(actions, CategoricalActions):
        actor = mlp(shape[0], hidden, actions.num_actions, gain=0.01)
    else:
        size = actions.low.size
        actor = WithDeviations(mlp(shape[0], hidden, size, gain=0.01), size)
    critic = mlp(shape[0], hidden, 1, gain=1.0)
    normalizer = RunningMoments(shape[0]) if normalize else None
    recipe = {
        "observation_space": plain_space(observation_space),
        "action_space": plain_space(action_space),
        "hidden": hidden,
        "normalize": normalize,
    }
    network = ActorCritic(actor, critic, normalizer)
    return Policy(network, actions, ("make_policy", recipe))


def numpy_act(policy: Policy) -> Callable[[Tensor, Tensor], Tensor]:
    """Return what ``policy.act`` computes, in NumPy: faster for small networks.

    The arrays share their memory with the parameters, so that the function always acts
    with the current weights.

    Args:
        policy: A policy that ``make_policy`` has built, on the CPU.

    Raises:
        ValueError: If the policy is on another device.
    """
    network: Any = policy.network
    discrete = isinstance(policy.actions, CategoricalActions)
    parameters = list((network.actor if discrete else network.actor.mean).parameters())
    if parameters[0].device.type != "cpu":
        raise ValueError(f"policy must be on the CPU, got {parameters[0].device}")
    *hidden, weight, bias = (p.detach().numpy().T for p in parameters)
    layers = list(zip(hidden[::2], hidden[1::2], strict=True))

    def forward(obs: Tensor) -> NDArray[np.float32]:
        x: NDArray[np.float32] = network.normalizer(obs).numpy()
        for w, b in layers:
            x = np.tanh(x @ w + b)
        out: NDArray[np.float32] = x @ weight + bias
        return out

    if discrete:

        def act(obs: Tensor, noise: Tensor) -> Tensor:
            return torch.from_numpy((forward(obs) + noise.numpy()).argmax(-1))
    else:
        log_sigma = network.actor.log_sigma.detach().numpy()

        def act(obs: Tensor, noise: Tensor) -> Tensor:
            return torch.from_numpy(forward(obs) + np.exp(log_sigma) * noise.numpy())

    return act
