# Generated from chapters/hybrid_ppo.py (edit there); digest 2136baf549cd7213
"""Hybrid PPO: one ratio for a type and its arguments."""

from __future__ import annotations

from typing import NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from literate_rl.ground.signatures import Float, Positive, checked
from literate_rl.maths.ppo_error import (
    AboveOne,
    policy_error_from_log_prob,
    ppo_info,
    ppo_policy_loss,
)
from literate_rl.nets.hybrid_action import HybridAction, HybridDistribution, HybridLogit

# Importing the worlds registers the environments of this chapter.
from literate_rl.data.worlds import HybridLander, Moving  # noqa: F401

__all__ = ["ppo_policy_error_hybrid", "ppo_policy_error_hybrid_per_head"]


class HybridPolicyData(NamedTuple):
    """What the error reads: ``ppo_policy_data`` with trees in it.

    Attributes:
        logit_new: What describes the policy in training.
        logit_old: The same for the policy that collected the batch.
        action: The actions taken.
        adv: Advantage estimates.
        weight: One factor for each sample, or None for ones.
    """

    logit_new: HybridLogit
    logit_old: HybridLogit
    action: HybridAction
    adv: Float[Tensor, "B"]
    weight: Float[Tensor, "B"] | None


@checked
def ppo_policy_error_hybrid(
    data: HybridPolicyData,
    mask: ArrayLike | Tensor,
    clip_ratio: Positive = 0.2,
    dual_clip: AboveOne | None = None,
) -> tuple[ppo_policy_loss, ppo_info]:
    """Compute the PPO policy error of hybrid actions, with one ratio for the action.

    Args:
        data: A batch, as a ``ppo_policy_data`` of trees.
        mask: Which type (row) uses which argument (column), zeros and ones.
        clip_ratio: Half width of the clip range.
        dual_clip: Bound of the dual clip, or None for no bound.
    """
    new, old = new_and_old(data, mask)
    # The exponent of {eq}`hybrid-ratio`; the clipped surrogate takes it from here.
    return policy_error_from_log_prob(
        new.log_prob(data.action),
        old.log_prob(data.action),
        new.entropy(),
        data.adv,
        data.weight,
        clip_ratio,
        dual_clip,
    )


def new_and_old(
    data: HybridPolicyData, mask: ArrayLike | Tensor
) -> tuple[HybridDistribution, HybridDistribution]:
    """Build both policies of a batch, the old one without gradient."""
    new = HybridDistribution(data.logit_new, mask, "data.logit_new")
    with torch.no_grad():
        old = HybridDistribution(data.logit_old, new.mask, "data.logit_old")
    return new, old


@checked
def ppo_policy_error_hybrid_per_head(
    data: HybridPolicyData,
    mask: ArrayLike | Tensor,
    clip_ratio: Positive = 0.2,
    dual_clip: AboveOne | None = None,
) -> tuple[ppo_policy_loss, ppo_info]:
    """Compute the PPO policy error of hybrid actions, with a ratio for each head.

    Arguments are those of ``ppo_policy_error_hybrid``. In what is returned, the
    divergence is that of the whole action, ``clipfrac`` the larger of the two heads'.

    Source: Fan et al. 2019 (H-PPO).
    """
    new, old = new_and_old(data, mask)
    type_new, args_new = new.log_prob_of_heads(data.action)
    type_old, args_old = old.log_prob_of_heads(data.action)

    # The first term of {eq}`hybrid-per-head`, and the entropy of the whole.
    clips = clip_ratio, dual_clip
    type_loss, type_info = policy_error_from_log_prob(
        type_new, type_old, new.entropy(), data.adv, data.weight, *clips
    )

    # The second term. The indicator is a weight, 0 where the type has no argument.
    has_args = new.mask.any(-1)[data.action["action_type"]].to(args_new.dtype)
    weight = has_args if data.weight is None else has_args * data.weight
    no_entropy = torch.zeros_like(args_new)
    args_loss, args_info = policy_error_from_log_prob(
        args_new, args_old, no_entropy, data.adv, weight, *clips
    )

    # The sum of both; the entropy was in the first one.
    policy_loss = type_loss.policy_loss + args_loss.policy_loss
    loss = ppo_policy_loss(policy_loss, type_loss.entropy_loss)
    info = ppo_info(
        type_info.approx_kl + args_info.approx_kl,
        max(type_info.clipfrac, args_info.clipfrac),
    )
    return loss, info
