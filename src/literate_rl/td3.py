# Generated from chapters/td3.py (edit there); digest d8c053bd8f7d37eb
"""TD3 and HDDPG: critics that promise less, and one that promises more."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from annotated_types import Ge
from gymnasium.vector import VectorEnv
from torch import Tensor

from literate_rl.ddpg import (
    DDPG,
    SETTINGS,
    ActorCritics,
    DDPGConfig,
    critic_chains,
    ddpg_target,
)
from literate_rl.dqn import QError
from literate_rl.replay import Batch
from literate_rl.workshop.fast import FusedCriticError, chain_critic_error, keeps
from literate_rl.workshop.signatures import (
    Count,
    Float,
    NonNegative,
    check_finite,
    check_that,
    checked,
)

__all__ = [
    "HDDPG",
    "TD3",
    "HDDPGConfig",
    "TD3Config",
    "clipped_double_target",
    "critic_error",
    "hddpg_error",
    "hddpg_settings",
    "smoothed_action",
    "td3_error",
    "td3_settings",
    "td3_target",
]


@checked
def smoothed_action(
    action: Float[Tensor, "N A"],
    noise: Float[Tensor, "N A"],
    low: Float[Tensor, "A"],
    high: Float[Tensor, "A"],
    smoothing: NonNegative = 0.2,
    clip: Annotated[float, Ge(0)] = 0.5,
) -> Float[Tensor, "N A"]:
    """Return an action near another one, inside the box.

    Args:
        action: The actions.
        noise: Standard normal numbers.
        low: Lower bounds of the box.
        high: Upper bounds.
        smoothing: Standard deviation of the distance, as a share of half the box.
        clip: Bound of that distance, as the same share.

    Source: Fujimoto, van Hoof and Meger 2018, section 5.3.
    """
    # Each dimension has its own scale and its own bounds, {eq}`smoothed-action`.
    half = (high - low) / 2
    distance = half * (smoothing * noise).clamp(-clip, clip)
    return (action + distance).clamp(low, high)


@checked
def clipped_double_target(
    reward: Float[Tensor, "N"],
    discount: Float[Tensor, "N"],
    next_q: Float[Tensor, "K N"],
) -> Float[Tensor, "N"]:
    """Return the targets of K critics, without gradient.

    ``discount`` is the factor of the next value: a power of gamma, or 0 after a
    termination, where ``next_q`` may hold anything.

    Source: Fujimoto, van Hoof and Meger 2018, equation 10.
    """
    # The least optimistic critic counts, {eq}`clipped-double-target`.
    future = next_q.detach().amin(0).masked_fill(discount == 0, 0.0)
    target = torch.addcmul(reward, discount, future).detach()
    check_finite(target, reward=reward, discount=discount, next_q=future)
    return target


@checked
def critic_error(
    q: Float[Tensor, "K N"],
    target: Float[Tensor, "N"],
    increase: NonNegative = 1.0,
    decrease: NonNegative = 1.0,
) -> Float[Tensor, "N"]:
    """Compute the loss of K critics, summed over them.

    Args:
        q: Their values, with gradient.
        target: What the values should be; treated as a constant.
        increase: Rate at which a value rises towards its target.
        decrease: Rate at which it falls.
    """
    td_error = target.detach() - q
    # A value below its target and one above it may learn at different rates,
    # {eq}`hysteretic`.
    rate = torch.where(td_error > 0, increase, decrease).to(q)
    error = (0.5 * rate * td_error.square()).sum(0)
    check_finite(error, q=q, target=target)
    return error


def compared(
    q: Tensor, target: Tensor, increase: float = 1.0, decrease: float = 1.0
) -> QError:
    """Return the loss of K critics with what the loop wants to know of it."""
    value = q.detach().mean(0)
    return QError(critic_error(q, target, increase, decrease), target - value, value)


def td3_target(
    target_policy: Any,
    batch: Batch,
    generator: torch.Generator,
    smoothing: float,
    clip: float,
) -> Tensor:
    """Return what the critics should think of the actions in a batch.

    Args:
        target_policy: The older copy of the policy; its network is an ``ActorCritics``.
        batch: Windows of steps, as the buffer returned them.
        generator: The source of the smoothing's noise.
        smoothing: As in ``smoothed_action``; 0 is none.
        clip: As in ``smoothed_action``.
    """
    with torch.no_grad():
        # 1. What would the older actor do next?
        action = target_policy(batch.next_obs)
        # Only an action in a box has others beside it. Probabilities stay as they are.
        if smoothing > 0 and hasattr(target_policy.actions, "low"):
            box = target_policy.actions
            low, high = box.low.to(action), box.high.to(action)
            noise = torch.randn(action.shape, generator=generator).to(action)
            action = smoothed_action(action, noise, low, high, smoothing, clip)
        # 2. What is that worth to the older critics? This gives the target.
        next_q = target_policy.network.q(batch.next_obs, action)
        return clipped_double_target(batch.reward, batch.discount, next_q)


def td3_error(
    policy: Any,
    target_policy: Any,
    batch: Batch,
    generator: torch.Generator,
    smoothing: float = 0.2,
    clip: float = 0.5,
) -> QError:
    """Compare the critics' values of actions with the targets of TD3.

    Args:
        policy: The policy in training; its network is an ``ActorCritics``.
        target_policy: As in ``td3_target``, like the others.
        batch: As in ``td3_target``.
        generator: As in ``td3_target``.
        smoothing: As in ``td3_target``.
        clip: As in ``td3_target``.
    """
    target = td3_target(target_policy, batch, generator, smoothing, clip)
    # 3. How far is each critic from it, for the action that was taken?
    return compared(policy.network.q(batch.obs, batch.action), target)


def hddpg_error(
    policy: Any,
    target_policy: Any,
    batch: Batch,
    generator: torch.Generator,
    increase: float,
    decrease: float,
) -> QError:
    """Compare the critic's values of actions with the targets of DDPG, at two rates.

    Args:
        policy: As in ``ddpg_error``, like the next three.
        target_policy: As in ``ddpg_error``.
        batch: As in ``ddpg_error``.
        generator: As in ``ddpg_error``.
        increase: As in ``critic_error``.
        decrease: As in ``critic_error``.
    """
    target = ddpg_target(target_policy, batch)
    q = policy.network.q(batch.obs, batch.action)
    return compared(q, target, increase, decrease)


def fused_td3_error(
    policy: Any,
    target_policy: Any,
    batch: Batch,
    generator: torch.Generator,
    smoothing: float = 0.2,
    clip: float = 0.5,
) -> QError | FusedCriticError:
    """Compute what ``td3_error`` does, faster if the critics are our own."""
    chains = critic_chains(policy.network.critics, batch.obs, batch.action)
    if chains is None or not keeps(policy.network, ActorCritics, "q"):
        return td3_error(policy, target_policy, batch, generator, smoothing, clip)
    target = td3_target(target_policy, batch, generator, smoothing, clip)
    return chain_critic_error(chains, batch, target)


def fused_hddpg_error(
    policy: Any,
    target_policy: Any,
    batch: Batch,
    generator: torch.Generator,
    increase: float,
    decrease: float,
) -> QError | FusedCriticError:
    """Compute what ``hddpg_error`` does, faster if the critic is our own."""
    chains = critic_chains(policy.network.critics, batch.obs, batch.action)
    if chains is None or not keeps(policy.network, ActorCritics, "q"):
        return hddpg_error(policy, target_policy, batch, generator, increase, decrease)
    target = ddpg_target(target_policy, batch)
    return chain_critic_error(chains, batch, target, increase, decrease)


@checked
@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    """Settings of TD3: two critics, delayed updates, smoothed targets.

    Attributes:
        num_critics: Number of critics; the targets take the least optimistic one.
        smoothing: Standard deviation of the noise on the next action in a target, as a
            share of half the box; 0 turns it off. Actions from a list have none.
        smoothing_clip: Bound of that noise, as the same share.
    """

    target_interval: Count = 2
    num_critics: Count = 2
    smoothing: NonNegative = 0.2
    smoothing_clip: Annotated[float, Ge(0)] = 0.5


class TD3(DDPG):
    """DDPG with twin critics, delayed updates and smoothed targets.

    Args:
        policy: What ``make_ddpg_policy`` returns, on any device.
        envs: A vector environment with ``config.num_envs`` copies.
        config: The settings.
    """

    def __init__(
        self, policy: Any, envs: VectorEnv[Any, Any, Any], config: TD3Config
    ) -> None:
        given, wanted = len(policy.network.critics), config.num_critics
        check_that(
            given >= wanted, f"policy must have {wanted} critics or more, got {given}"
        )
        smoothing, clip = config.smoothing, config.smoothing_clip
        error = partial(fused_td3_error, smoothing=smoothing, clip=clip)
        super().__init__(policy, envs, config, error)


@checked
@dataclass(frozen=True)
class HDDPGConfig(DDPGConfig):
    """Settings of hysteretic DDPG: values fall more slowly than they rise.

    Attributes:
        increase: Rate at which values rise towards their targets.
        decrease: Rate at which they fall.
    """

    increase: NonNegative = 1.0
    decrease: NonNegative = 0.5


class HDDPG(DDPG):
    """DDPG whose values rise and fall at two rates.

    Args:
        policy: As in ``TD3``, like the others.
        envs: As in ``TD3``.
        config: As in ``TD3``.
    """

    def __init__(
        self, policy: Any, envs: VectorEnv[Any, Any, Any], config: HDDPGConfig
    ) -> None:
        increase, decrease = config.increase, config.decrease
        error = partial(fused_hddpg_error, increase=increase, decrease=decrease)
        super().__init__(policy, envs, config, error)


def td3_settings(env: str) -> TD3Config:
    """Return settings of TD3 for an environment: those of DDPG, if we know some.

    Args:
        env: Id of the environment.
    """
    return TD3Config(**SETTINGS.get(env, {}))


def hddpg_settings(env: str) -> HDDPGConfig:
    """Return settings of hysteretic DDPG, likewise."""
    return HDDPGConfig(**SETTINGS.get(env, {}))
