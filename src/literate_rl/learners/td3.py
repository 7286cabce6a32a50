# Generated from chapters/td3.py (edit there); digest 320deab1c320f4be
"""TD3 and HDDPG: critics that promise less, and one that promises more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from literate_rl.data.replay import Batch
from literate_rl.ground.protocols import settings_of
from literate_rl.ground.rows import register
from literate_rl.ground.signatures import Count, Float, NonNegative, check_that, checked
from literate_rl.learners.ddpg import (
    ROW,
    SETTINGS,
    DDPGConfig,
    DeterministicPolicyGradient,
)
from literate_rl.learners.loop import QError, learner_of, squared_error, td_target
from literate_rl.nets.policies import Policy

__all__ = [
    "HDDPG",
    "TD3",
    "HDDPGConfig",
    "Hysteretic",
    "TD3Config",
    "TwinDelayed",
    "clipped_double_target",
    "critic_error",
    "hddpg_settings",
    "smoothed_action",
    "td3_settings",
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
    return td_target(reward, discount, next_q.amin(0))


@checked
def critic_error(
    q: Float[Tensor, "K N"],
    target: Float[Tensor, "N"],
    increase: NonNegative = 1.0,
    decrease: NonNegative = 1.0,
) -> QError:
    """Compare the values of K critics with their targets; the losses are added up.

    Args:
        q: Their values, with gradient.
        target: What the values should be; treated as a constant.
        increase: Rate at which a value rises towards its target.
        decrease: Rate at which it falls.
    """
    # A value below its target and one above it may learn at different rates,
    # {eq}`hysteretic`.
    rate = torch.where(target.detach() - q > 0, increase, decrease).to(q)
    return squared_error(q, target, rate)


class TwinDelayed(DeterministicPolicyGradient):
    """Critics that promise less, and an actor that climbs the first of them.

    Args:
        policy: The policy to train; its network is an ``ActorCritics``.
        config: The settings.
    """

    config: TD3Config

    def __init__(self, policy: Policy, config: TD3Config) -> None:
        super().__init__(policy, config)
        given, wanted = len(policy.network.critics), config.num_critics
        check_that(
            given >= wanted, f"policy must have {wanted} critics or more, got {given}"
        )

    def aim(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Return what the critics should think of the actions in a batch."""
        config, older = self.config, self.target.network
        with torch.no_grad():
            # 1. What would the older actor do next?
            action = older(batch.next_obs)
            # Only an action in a box has others beside it. Probabilities stay as they
            # are.
            if config.smoothing > 0 and hasattr(older.actions, "low"):
                box = older.actions.low, older.actions.high
                noise = torch.randn(action.shape, generator=generator).to(action)
                share = config.smoothing, config.smoothing_clip
                action = smoothed_action(action, noise, *box, *share)
            # 2. What is that worth to the older critics? This gives the target.
            next_q = older.network.critics(batch.next_obs, action)
            return clipped_double_target(batch.reward, batch.discount, next_q)

    def error(self, batch: Batch, generator: torch.Generator) -> QError:
        """Compare the critics' values of actions with their targets."""
        aim = self.aim(batch, generator)
        # 3. How far is each critic from it, for the action that was taken?
        return squared_error(self.policy.network.critics(batch.obs, batch.action), aim)


@checked
@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    """Settings of TD3: two critics, delayed updates, smoothed targets.

    Attributes:
        num_critics: Number of critics that ``train`` builds; a policy that you hand
            over has as many or more. All of them learn, and the targets take the least
            optimistic one.
        smoothing: Standard deviation of the noise on the next action in a target, as a
            share of half the box; 0 turns it off. Actions from a list have none.
        smoothing_clip: Bound of that noise, as the same share.
    """

    target_interval: Count = 2
    num_critics: Count = 2
    smoothing: NonNegative = 0.2
    smoothing_clip: Annotated[float, Ge(0)] = 0.5


TD3 = learner_of(TwinDelayed)


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


class Hysteretic(DeterministicPolicyGradient):
    """DDPG whose values rise and fall at two rates.

    Args:
        policy: The policy to train; its network is an ``ActorCritics``.
        config: The settings.
    """

    config: HDDPGConfig

    def error(self, batch: Batch, generator: torch.Generator) -> QError:
        """Compare the critic's values of actions with their targets, at two rates."""
        aim, rates = self.aim(batch, generator), self.config
        q = self.policy.network.critics(batch.obs, batch.action)
        return critic_error(q, aim, rates.increase, rates.decrease)


HDDPG = learner_of(Hysteretic)


td3_settings = settings_of(TD3Config, SETTINGS)


hddpg_settings = settings_of(HDDPGConfig, SETTINGS)


ROW_HDDPG = register(
    replace(
        ROW,
        name="HDDPG",
        purpose="DDPG that learns less from bad news",
        config=HDDPGConfig,
        learner=HDDPG,
        settings=hddpg_settings,
        chapter="td3",
    )
)
ROW_TD3 = register(
    replace(
        ROW,
        name="TD3",
        purpose="DDPG with doubts about its critics",
        config=TD3Config,
        learner=TD3,
        settings=td3_settings,
        forms=("error",),
        chapter="td3",
    )
)
