# Generated from chapters/td3.py (edit there); digest 917feb29169abc55
"""Targets of TD3: a smoothed action, and the lower of two estimates."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge
from torch import Tensor

from literate_rl.ground.signatures import Float, NonNegative, checked
from literate_rl.maths.dqn import td_target

__all__ = ["clipped_double_target", "smoothed_action"]


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
