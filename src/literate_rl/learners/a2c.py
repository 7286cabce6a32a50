# Generated from chapters/a2c.py (edit there); digest 12549d157bac0e73
"""A2C: one step on each rollout, without a clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from literate_rl.data.agents import Rollout, Runner, seen_by
from literate_rl.data.episodes import check_num_envs, mean_return
from literate_rl.ground.networks import eval_mode
from literate_rl.ground.protocols import (
    Act,
    ActorCriticLike,
    Envs,
    Kept,
    RecurrentConfig,
    settings_of,
)
from literate_rl.ground.rows import ANY, Row, actor_critic, register
from literate_rl.ground.signatures import (
    Count,
    Float,
    Fraction,
    NonNegative,
    Positive,
    Scale,
    check_finite,
    checked,
)
from literate_rl.maths.advantages import gae
from literate_rl.maths.policy_gradient import policy_gradient_error
from literate_rl.nets.parts import RewardScaler, normalizer_of, take_in

__all__ = [
    "A2C",
    "A2CConfig",
    "GradientConfig",
    "GradientLearner",
    "a2c_error",
    "a2c_gradient",
    "a2c_loss",
    "a2c_settings",
]


class a2c_loss(NamedTuple):  # noqa: N801 (a name of the field, as ppo_loss)
    """The three terms of A2C's loss."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy_loss: Tensor


@checked
def a2c_error(
    log_prob: Float[Tensor, "*B"],
    entropy: Float[Tensor, "*B"],
    value: Float[Tensor, "*B"],
    adv: Float[Tensor, "*B"],
    target: Float[Tensor, "*B"],
) -> a2c_loss:
    """Compute the three terms of the loss, each a mean over all steps.

    Args:
        log_prob: Log-probabilities of the actions under the policy in training.
        entropy: Its entropies.
        value: Values of the critic in training.
        adv: How much better than expected each action was. No gradient flows here.
        target: What the values should become; no gradient flows here either.

    Source: Mnih et al. 2016, section 4 and algorithm S3.
    """
    # The actor: actions that went better than expected become more likely.
    policy_loss = policy_gradient_error(log_prob, adv)
    # The critic: the mean squared error, not half of it.
    value_loss = (value - target.detach()).square().mean()
    entropy_loss = entropy.mean()
    check_finite(value_loss + entropy_loss, value=value, target=target, entropy=entropy)
    return a2c_loss(policy_loss, value_loss, entropy_loss)


@checked
@dataclass(frozen=True)
class GradientConfig(RecurrentConfig):
    """Settings of A2C and A3C. The defaults suit small tasks such as CartPole.

    Attributes:
        num_envs: Environments that are stepped together.
        num_steps: Steps of one rollout in each environment.
        rmsprop_decay: Share of RMSProp's mean square that is kept at each step.
        rmsprop_epsilon: What RMSProp adds to the root of the mean square.
        gamma: Discount.
        lambda_: Decay of the weights of longer returns in the advantage.
        entropy_weight: Weight of the entropy bonus.
        value_weight: Weight of the value loss.
        max_grad_norm: Norm above which a gradient is clipped.
        reward_scale: Factor by which rewards are multiplied before learning.
        share_encoder: Whether actor and critic share an encoder. The policy has to be
            built so, as ``train`` does.
    """

    num_envs: Count = 8
    num_steps: Count = 5
    learning_rate: Scale = 1e-3
    anneal: bool = True
    rmsprop_decay: Fraction = 0.99
    rmsprop_epsilon: Scale = 1e-5
    gamma: Fraction = 0.99
    lambda_: Fraction = 1.0
    entropy_weight: NonNegative = 0.0
    value_weight: NonNegative = 0.5
    max_grad_norm: Positive = 0.5
    reward_scale: Scale = 1.0
    checkpoint_interval: Count = 500
    share_encoder: bool = False


@checked
@dataclass(frozen=True)
class A2CConfig(GradientConfig):
    """Settings of A2C: those of A3C, and one that needs all rewards in one place.

    Attributes:
        scale_reward: Whether rewards are divided by the standard deviation of the
            return, before ``reward_scale`` multiplies them.
    """

    scale_reward: bool = False


# Settings with which the agent has learned, by environment. What an entry leaves out
# has its default.
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "total_steps": 200_000,
        "rmsprop_decay": 0.999,
        "reward_scale": 0.1,
    },
}


a2c_settings = settings_of(A2CConfig, SETTINGS)


def a2c_gradient(
    policy: ActorCriticLike, batch: Rollout, config: GradientConfig
) -> tuple[tuple[Tensor, ...], dict[str, float]]:
    """Return the gradient of a policy's loss on a rollout, and the three terms."""
    # The critic's values of the states, and of the states that the steps led to.
    obs, next_obs = seen_by(policy, batch)
    value = policy.value(obs)
    with torch.no_grad(), eval_mode(policy):
        next_value = policy.value(next_obs)

    # Advantages and targets. With lambda 1 a target is {eq}`a2c-target`.
    ends = batch.terminated, batch.truncated
    reward = batch.reward * config.reward_scale
    adv = gae(reward, value, next_value, *ends, config.gamma, config.lambda_)
    # How likely the actions were, and how random the policy is.
    log_prob, entropy = policy.evaluate_actions(obs, batch.action, mask=batch.mask)

    # Leave out rows that some environments add after an episode and that are no step.
    columns = (log_prob, entropy, value, adv, adv + value)
    loss = a2c_error(*(column[batch.real] for column in columns))
    # The total {eq}`a2c-loss`.
    total = loss.policy_loss + config.value_weight * loss.value_loss
    total = total - config.entropy_weight * loss.entropy_loss

    # Return the gradient, without adding it to `parameter.grad`.
    parameters = list(policy.parameters())
    gradient = torch.autograd.grad(
        total, parameters, allow_unused=True, materialize_grads=True
    )
    return gradient, {name: x.item() for name, x in loss._asdict().items()}


class GradientLearner(Kept):
    """Takes steps on gradients, wherever they were computed.

    Args:
        policy: The policy to train, on any device.
        config: The settings.
    """

    kept = ("optimizer",)

    def __init__(self, policy: ActorCriticLike, config: GradientConfig) -> None:
        self.config = config
        self.normalizer = normalizer_of(policy, config.normalize_obs)
        self.parameters = list(policy.parameters())
        self.optimizer = torch.optim.RMSprop(
            self.parameters,
            config.learning_rate,
            config.rmsprop_decay,
            config.rmsprop_epsilon,
        )

    def learn(self, gradient: tuple[Tensor, ...], step: int) -> dict[str, float]:
        """Take one step downhill; ``step`` counts the steps of the run so far."""
        # The learning rate falls linearly to zero, if it falls.
        group = self.optimizer.param_groups[0]
        if self.config.anneal:
            group["lr"] = self.config.rate(step)

        # Assign the gradient (adding would be wrong), clip it, and take the step.
        for parameter, part in zip(self.parameters, gradient, strict=True):
            parameter.grad = part
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        self.optimizer.step()
        return {"charts/learning_rate": group["lr"], "losses/grad_norm": norm.item()}


class A2C(Runner):
    """Advantage actor-critic: one step of the optimiser on each rollout.

    Args:
        policy: The policy to train, on any device.
        envs: A vector environment with ``config.num_envs`` copies.
        config: The settings.
        act: A faster form of ``policy.act``, or None for that one.
    """

    policy: ActorCriticLike
    kept = (*Runner.kept, "learner", "scaler")

    def __init__(
        self,
        policy: ActorCriticLike,
        envs: Envs,
        config: A2CConfig,
        act: Act | None = None,
    ) -> None:
        check_num_envs(envs, config.num_envs)
        settings = config.num_steps, config.seed, config.checkpoint_interval
        super().__init__(policy, envs, *settings, act)
        self.config, self.learner = config, GradientLearner(policy, config)
        if config.scale_reward:
            self.scaler = RewardScaler(config.num_envs, config.gamma).to(self.device)

    def iterate(self) -> dict[str, float]:
        """Collect a rollout, take one step on it, and return metrics."""
        before, batch = self.step, self.collect()
        paid = self.scaler.scaled(batch) if self.scaler else batch
        gradient, losses = a2c_gradient(self.policy, paid, self.config)
        taken = self.learner.learn(gradient, before)
        # Only now may the normaliser change. Earlier it would move the old policy.
        take_in(self.learner.normalizer, batch.obs, batch.real)
        return {**returned(batch.episode_return), **taken, **named(losses)}


def returned(episode_return: Tensor) -> dict[str, float]:
    """Return the mean return of the episodes that ended, NaN if none did."""
    return {"charts/episodic_return": mean_return(episode_return)}


def named(losses: dict[str, float]) -> dict[str, float]:
    """Return losses by the names under which they are reported."""
    return {f"losses/{name}": number for name, number in losses.items()}


ROW = register(
    Row(
        "A2C",
        "PPO without its clip, small",
        ANY,
        A2CConfig,
        actor_critic,
        A2C,
        settings=a2c_settings,
        contract="ppo",
        forms=("act",),
    )
)
