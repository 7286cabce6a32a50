# Generated from chapters/agents.py (edit there); digest 701dfd0c340eb484
"""Returns: discounted sums of rewards, and what to do where an episode ends."""

from __future__ import annotations

import torch
from torch import Tensor

from literate_rl.ground.signatures import Bool, Float, Fraction, check_finite, checked

__all__ = ["discounted_returns"]


@checked
def discounted_returns(
    reward: Float[Tensor, "T B"],
    next_value: Float[Tensor, "T B"],
    terminated: Bool[Tensor, "T B"],
    truncated: Bool[Tensor, "T B"],
    gamma: Fraction = 0.99,
) -> Float[Tensor, "T B"]:
    """Compute the discounted return of every step, without gradient.

    ``next_value`` belongs to the true successor of each step. It counts where an
    episode is truncated and in the last row; elsewhere it may hold anything.

    Source: Sutton and Barto, Reinforcement Learning, 2nd edition, equation 3.9.
    """
    # Our view ends where an episode does, and in the last row of the batch.
    view_ends = terminated | truncated
    view_ends[-1] = True
    # What we do not see is worth its value. After a termination there is nothing, so
    # zero is filled in. (A product would not do: $0 \cdot \infty$ is not a number.)
    bootstrap = torch.where(view_ends & ~terminated, next_value, 0.0)

    # The recursion {eq}`discounted-return`, from the last step to the first.
    future = bootstrap[-1]
    returns = []
    for t in reversed(range(len(reward))):
        future = reward[t] + gamma * torch.where(view_ends[t], bootstrap[t], future)
        returns.append(future)

    # A return is a target, something to move towards: no gradient flows through it.
    result = torch.stack(returns[::-1]).detach()
    check_finite(result, reward=reward, next_value=bootstrap)
    return result
