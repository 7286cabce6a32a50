# Generated from chapters/learners/ppo.py (edit there); digest e04a6bd5230988a8
"""PPO: a policy, a rollout, a few epochs of updates, for any action space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from annotated_types import Gt
from torch import Tensor, nn

from literate_rl.data.agents import Rollout, Runner, Window, seen_by
from literate_rl.data.episodes import check_num_envs, mean_return
from literate_rl.ground.networks import eval_mode
from literate_rl.ground.protocols import (
    Act,
    ActorCriticLike,
    ByHandLike,
    Envs,
    RecurrentConfig,
    settings_of,
)
from literate_rl.ground.rows import ANY, Row, actor_critic, register
from literate_rl.ground.signatures import (
    Count,
    Fraction,
    NonNegative,
    Positive,
    Scale,
    check_finite,
    check_that,
    checked,
)
from literate_rl.maths.advantages import gae
from literate_rl.maths.ppo_error import (
    approx_kl_k3,
    policy_error_from_log_prob,
    ppo_info,
    ppo_policy_loss,
    ppo_value_data,
    ppo_value_error,
)
from literate_rl.nets.parts import RewardScaler, normalizer_of, take_in

__all__ = [
    "PPO",
    "PPOConfig",
    "Samples",
    "ppo_settings",
]


class Samples(NamedTuple):
    """What PPO learns from: real steps in any order, or a minibatch of them.

    Attributes:
        obs: What the agent saw; for a policy that remembers a ``Window`` of it.
        action: What it did.
        log_prob: How likely that was under the policy that did it.
        adv: Advantage estimates.
        target: Targets of the values.
        value: Values before learning.
        mask: Which actions were legal, or None where nobody says so.
    """

    obs: Any
    action: Tensor
    log_prob: Tensor
    adv: Tensor
    target: Tensor
    value: Tensor
    mask: Tensor | None = None

    def take(self, rows: Tensor) -> Samples:
        """Return some of the samples; of a window those of some environments."""
        obs, *fields = self
        obs, rows = obs.take(rows) if isinstance(obs, Window) else (obs[rows], rows)
        rest: Any = [x if x is None else x[rows] for x in fields]
        return Samples(obs, *rest)

    @property
    def number(self) -> int:
        """How many samples there are to deal out; of a window its environments."""
        obs = self.obs
        return obs.obs.shape[1] if isinstance(obs, Window) else len(obs)


class PPO(Runner):
    """Proximal policy optimisation, for any policy with the methods of ``Policy``.

    Args:
        policy: The policy to train, on any device.
        envs: A vector environment with ``config.num_envs`` copies.
        config: The settings.
        act: A faster form of ``policy.act``, or None for that one.
        policy_error: Loss of log-probabilities, instead of
            ``policy_error_from_log_prob``.
        by_hand: What computes the policy's numbers and the gradient without autograd,
            such as ``ByHand(policy)``, or None for autograd.
    """

    policy: ActorCriticLike
    scaler: RewardScaler
    kept = (*Runner.kept, "optimizer", "scaler")

    def __init__(
        self,
        policy: ActorCriticLike,
        envs: Envs,
        config: PPOConfig,
        act: Act | None = None,
        policy_error: Callable[..., tuple[ppo_policy_loss, ppo_info]] | None = None,
        by_hand: ByHandLike | None = None,
    ) -> None:
        check_num_envs(envs, config.num_envs)
        settings = config.num_steps, config.seed, config.checkpoint_interval
        super().__init__(policy, envs, *settings, act)
        one = policy_error is None or by_hand is None
        check_that(one, "policy_error needs autograd: leave out by_hand")
        self.normalizer = normalizer_of(policy, config.normalize_obs)
        self.config = config
        self.policy_error = policy_error or policy_error_from_log_prob
        self.judge = by_hand or policy
        self.gradient = by_hand.gradient if by_hand else self.autograd
        # One optimiser for both networks. Adam's `eps`, which keeps its divisor from
        # zero, is that of OpenAI Baselines.
        self.parameters = list(policy.parameters())
        self.optimizer = torch.optim.Adam(
            self.parameters, config.learning_rate, eps=1e-5, fused=True
        )
        if by_hand is not None:
            by_hand.speed_up(self.optimizer)
        self.scaler = RewardScaler(config.num_envs, config.gamma).to(self.device)

    def iterate(self) -> dict[str, float]:
        """Collect a rollout, learn from it, and return metrics."""
        return self.update(self.collect())

    def collect(self) -> Rollout:
        """Act for T steps with the policy as it is."""
        # The learning rate {eq}`annealing`.
        if self.config.anneal:
            self.optimizer.param_groups[0]["lr"] = self.config.rate(self.step)
        return super().collect()

    @torch.no_grad()
    def look_back(self, batch: Rollout) -> Samples:
        """Return the samples of a rollout: all that the old policy knows about it."""
        config, judge = self.config, self.judge
        # One pass over the whole rollout says what the old policy and the old values
        # were. So nothing of this had to be computed while acting.
        with eval_mode(self.policy):
            obs, next_obs = seen_by(self.policy, batch)
            log_prob, _ = judge.evaluate_actions(obs, batch.action, mask=batch.mask)
            value, next_value = judge.value(obs), judge.value(next_obs)

        # The advantages, {eq}`gae`, with a flag for each kind of end.
        if config.scale_reward:
            batch = self.scaler.scaled(batch)
        adv = gae(
            *(batch.reward, value, next_value, batch.terminated, batch.truncated),
            *(config.gamma, config.lambda_),
        )
        # {doc}`/chapters/ppg` looks at the rollout once more.
        self.seen = (batch, value, next_value)

        # From here on time plays no role. Phantom rows, which some environments put
        # behind each episode ({doc}`/chapters/exact_values`), are left out.
        columns = (obs, batch.action, log_prob, adv, adv + value, value)
        return Samples(*columns, batch.mask).take(batch.real)

    def update(self, batch: Rollout) -> dict[str, float]:
        """Learn from a rollout for some epochs; return metrics.

        The losses are those of the last minibatch, the distances those of all steps.
        """
        config, samples = self.config, self.look_back(batch)
        for _ in range(config.num_epochs):
            # Each epoch shuffles the samples and deals them out in minibatches.
            order = torch.randperm(samples.number, generator=self.generator)
            for rows in order.to(self.device).tensor_split(config.num_minibatches):
                losses = self.learn(samples.take(rows))
            # A policy that has moved far enough has learned enough from this rollout.
            most = config.target_kl
            if most and self.distance(samples)["losses/approx_kl"] > most:
                break
        moved = self.distance(samples)
        # Only now may the normaliser change. Earlier it would move the old policy.
        take_in(self.normalizer, batch.obs, batch.real)

        # How much of the targets the critic foresaw: 1 is all of their variance.
        unexplained = (samples.target - samples.value).var() / samples.target.var()
        return {
            "charts/episodic_return": mean_return(batch.episode_return),
            "charts/episodic_length": batch.episode_length.nanmean().item(),
            "charts/learning_rate": self.optimizer.param_groups[0]["lr"],
            **losses,
            **moved,
            "losses/explained_variance": 1 - unexplained.item(),
        }

    def learn(self, part: Samples) -> dict[str, float]:
        """Take one step of the optimiser on a minibatch; return its losses."""
        losses = self.gradient(part, self.config)
        self.optimizer.step()
        return losses

    def autograd(self, part: Samples, config: PPOConfig) -> dict[str, float]:
        """Leave the clipped gradient of a minibatch in ``grad``; return its losses."""
        policy = self.policy
        # Mean 0 and standard deviation 1, {eq}`advantage-normalised`.
        adv = part.adv
        if config.normalize_advantage:
            adv = (adv - adv.mean()) / (adv.std(correction=0) + 1e-8)

        # The actor: the clipped surrogate and the entropy bonus of
        # {doc}`/chapters/ppo_error`.
        log_prob, entropy = policy.evaluate_actions(
            part.obs, part.action, mask=part.mask
        )
        clips = config.clip_ratio, config.dual_clip
        (policy_loss, entropy_loss), _ = self.policy_error(
            log_prob, part.log_prob, entropy, adv, None, *clips
        )
        # The critic: half the mean squared error to the targets.
        data = ppo_value_data(policy.value(part.obs), part.value, part.target, None)
        value_loss = ppo_value_error(data, config.value_clip)

        # The total. What is not finite would spoil all weights at once.
        loss = policy_loss + config.value_weight * value_loss
        loss = loss - config.entropy_weight * entropy_loss
        inputs = {"log_prob_old": part.log_prob, "log_prob": log_prob}
        check_finite(loss, **inputs, entropy=entropy)
        # The gradient, clipped.
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, config.max_grad_norm)
        return {
            "losses/policy_loss": policy_loss.item(),
            "losses/value_loss": value_loss.item(),
            "losses/entropy": entropy_loss.item(),
        }

    @torch.no_grad()
    def distance(self, samples: Samples) -> dict[str, float]:
        """Say how far the policy has moved from the one that collected the rollout."""
        with eval_mode(self.policy):
            log_prob, _ = self.judge.evaluate_actions(
                samples.obs, samples.action, mask=samples.mask
            )
        log_ratio = log_prob - samples.log_prob
        # The names are CleanRL's: `approx_kl` is $k_3$ and `old_approx_kl` is $k_1$. A
        # loss of one's own may have several log-probabilities for an action, and all of
        # them count.
        outside = (log_ratio.exp() - 1).abs() > self.config.clip_ratio
        return {
            "losses/old_approx_kl": -log_ratio.mean().item(),
            "losses/approx_kl": approx_kl_k3(
                log_prob.flatten(), samples.log_prob.flatten()
            ).item(),
            "losses/clipfrac": outside.float().mean().item(),
        }


@checked
@dataclass(frozen=True)
class PPOConfig(RecurrentConfig):
    """Settings of PPO. The defaults suit small tasks such as CartPole.

    Attributes:
        num_envs: Environments that are stepped together.
        num_steps: Steps of one rollout in each environment.
        num_epochs: How often each rollout is learned from.
        num_minibatches: Parts into which each epoch divides the rollout.
        gamma: Discount.
        lambda_: Decay of the weights of longer returns in the advantage.
        clip_ratio: Half width of the ratio's clip range.
        dual_clip: Bound of the dual clip, or none.
        value_clip: Half width of the value's clip range, in units of the return, or
            none.
        entropy_weight: Weight of the entropy bonus.
        value_weight: Weight of the value loss.
        max_grad_norm: Norm above which a gradient is clipped.
        normalize_advantage: Whether a minibatch's advantages get mean 0 and standard
            deviation 1.
        scale_reward: Whether rewards are divided by the standard deviation of the
            return.
        target_kl: Divergence in nats after which no further epoch begins, or none.
        share_encoder: Whether actor and critic share an encoder. The policy has to be
            built so, as ``train`` does.
    """

    num_envs: Count = 4
    num_steps: Count = 128
    num_epochs: Count = 4
    num_minibatches: Count = 4
    learning_rate: Scale = 2.5e-4
    anneal: bool = True
    gamma: Fraction = 0.99
    lambda_: Fraction = 0.95
    clip_ratio: Positive = 0.2
    dual_clip: Annotated[float, Gt(1)] | None = None
    value_clip: Positive | None = None
    entropy_weight: NonNegative = 0.01
    value_weight: NonNegative = 0.5
    max_grad_norm: Positive = 0.5
    normalize_advantage: bool = True
    scale_reward: bool = False
    target_kl: Positive | None = None
    share_encoder: bool = False

    def __post_init__(self) -> None:
        # Of a single advantage nothing is left when its mean is subtracted.
        least = 2 if self.normalize_advantage else 1
        most, parts = self.num_envs * self.num_steps // least, self.num_minibatches
        words = "num_envs * num_steps must be at least 2 for normalize_advantage"
        check_that(most > 0, words)
        if self.recurrent:  # a minibatch has whole environments
            most = self.num_envs
        words = f"num_minibatches must be at most {most}, got {parts}"
        check_that(parts <= most, words)


# Settings by environment. What an entry leaves out is the default.
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "total_steps": 50_000, "num_envs": 8, "num_steps": 32, "num_epochs": 10,
        "num_minibatches": 1, "learning_rate": 2e-3, "gamma": 0.98, "lambda_": 0.8,
        "entropy_weight": 0.0,
    },
    "Acrobot-v1": {"total_steps": 300_000, "num_envs": 16, "learning_rate": 1e-3},
    "Pendulum-v1": {
        "num_envs": 8, "num_steps": 200, "num_epochs": 10, "num_minibatches": 8,
        "learning_rate": 3e-3, "gamma": 0.9, "entropy_weight": 0.0,
    },
    "literate_rl/Moving-v0": {
        "total_steps": 60_000, "num_envs": 32, "num_steps": 64, "num_epochs": 8,
        "learning_rate": 3e-3, "gamma": 0.98,
    },
    "literate_rl/HybridLander-v0": {
        "total_steps": 400_000, "num_envs": 16, "num_epochs": 8, "num_minibatches": 8,
        "learning_rate": 2e-3, "gamma": 0.995, "scale_reward": True,
    },
} | {
    f"MinAtar/{game}-v1": {
        "total_steps": 1_001_472, "num_envs": 16, "num_minibatches": 8,
        "learning_rate": 1e-3,
    }
    for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
}  # fmt: skip


ppo_settings = settings_of(PPOConfig, SETTINGS)


ROW = register(
    Row(
        "PPO",
        "where to start: steady, few settings",
        ANY,
        PPOConfig,
        actor_critic,
        PPO,
        settings=ppo_settings,
        contract="ppo",
        forms=("act", "by_hand"),
    )
)
