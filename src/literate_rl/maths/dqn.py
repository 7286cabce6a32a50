# Generated from chapters/dqn.py (edit there); digest 083cb480853a1c45
"""Targets of Q-learning: rewards and the discounted value of what follows."""

from __future__ import annotations

import torch
from torch import Tensor

from literate_rl.ground.signatures import Float, check_finite, checked

__all__ = ["double_q_target", "dueling_q", "q_target"]


def td_target(reward: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
    """Return rewards plus discounted values of what follows, without gradient.

    Where ``discount`` is 0 nothing follows, and ``next_q`` may hold anything.
    """
    future = next_q.detach().masked_fill(discount == 0, 0.0)
    target = torch.addcmul(reward, discount, future).detach()
    check_finite(target, reward=reward, discount=discount, next_q=future)
    return target


@checked
def q_target(
    reward: Float[Tensor, "N"],
    discount: Float[Tensor, "N"],
    next_q: Float[Tensor, "N A"],
) -> Float[Tensor, "N"]:
    """Return the targets of Q-learning, without gradient.

    ``discount`` is the factor of the next value: a power of gamma, or 0 after a
    termination, where ``next_q`` may hold anything.

    Source: Watkins 1989; Sutton and Barto, equation 6.8.
    """
    # The network that chooses the best action also evaluates it, {eq}`q-target`.
    return td_target(reward, discount, next_q.amax(-1))


@checked
def double_q_target(
    reward: Float[Tensor, "N"],
    discount: Float[Tensor, "N"],
    next_q: Float[Tensor, "N A"],
    chooser: Float[Tensor, "N A"],
) -> Float[Tensor, "N"]:
    """Return the targets of double DQN, without gradient.

    ``chooser`` holds the values by which the next action is chosen, ``next_q`` those by
    which it is evaluated.

    Source: van Hasselt et al. 2016, equation 4.
    """
    # One network chooses, the other one evaluates, {eq}`double-q-target`.
    best = chooser.argmax(-1, keepdim=True)
    return q_target(reward, discount, next_q.gather(-1, best))


@checked
def dueling_q(
    value: Float[Tensor, "*B 1"], advantage: Float[Tensor, "*B A"]
) -> Float[Tensor, "*B A"]:
    """Put a state's value and its actions' advantages together.

    Source: Wang et al. 2016, equation 9.
    """
    # The mean is over the actions, the last dimension: {eq}`dueling`.
    return value + advantage - advantage.mean(-1, keepdim=True)
