# Generated from chapters/advantages.py (edit there); digest 4806f5da0ab0c923
"""Advantages: n-step returns, lambda-returns and generalised advantage estimation."""

from __future__ import annotations

import torch
from torch import Tensor

from literate_rl.ground.signatures import (
    Bool,
    Count,
    Float,
    Fraction,
    check_finite,
    checked,
)
from literate_rl.maths.scan import reverse_scan

__all__ = ["gae", "gae_loop", "lambda_returns", "n_step_returns"]


@checked
def gae_loop(
    td_error: Float[Tensor, "T B"], passed_on: Float[Tensor, "T B"]
) -> Float[Tensor, "T B"]:
    """Add up TD errors from the last step to the first, written to be read."""
    # After the last row there is nothing to add.
    advantage = torch.zeros_like(td_error[0])
    advantages = []
    # Each turn is the recursion {eq}`gae` for one step of all environments.
    for t in reversed(range(len(td_error))):
        advantage = td_error[t] + passed_on[t] * advantage
        advantages.append(advantage)
    return torch.stack(advantages[::-1])


@checked
def gae(
    reward: Float[Tensor, "T B"],
    value: Float[Tensor, "T B"],
    next_value: Float[Tensor, "T B"],
    terminated: Bool[Tensor, "T B"],
    truncated: Bool[Tensor, "T B"],
    gamma: Fraction = 0.99,
    lambda_: Fraction = 0.95,
) -> Float[Tensor, "T B"]:
    """Estimate how much better each action was than the policy's average.

    ``next_value`` belongs to the true successor of each step. Where the step is
    terminated it counts as 0, whatever it holds. Added to ``value``, the advantages are
    targets for the critic.

    Source: Schulman et al. 2016, equation 16, with a flag for each kind of end.
    """
    # The future counts only if the task continues. A time limit does not end the task.
    future = torch.where(terminated, 0.0, next_value)

    # What each step teaches, the TD error {eq}`td-error`.
    td_error = reward + gamma * future - value

    # A later error counts here too, times $\gamma \lambda$ for each step in between,
    # unless the next row belongs to another episode.
    same_episode = ~(terminated | truncated)
    # By way of bytes: PyTorch makes floats of them faster than of flags.
    passed_on = gamma * lambda_ * same_episode.byte().to(td_error)

    # The recursion {eq}`gae`. An advantage is a weight, so no gradient may flow through
    # it: `reverse_scan` returns a tensor without one.
    advantage = reverse_scan(td_error, passed_on)
    check_finite(advantage, reward=reward, value=value, next_value=future)
    return advantage


@checked
def lambda_returns(
    reward: Float[Tensor, "T B"],
    next_value: Float[Tensor, "T B"],
    terminated: Bool[Tensor, "T B"],
    truncated: Bool[Tensor, "T B"],
    gamma: Fraction = 0.99,
    lambda_: Fraction = 0.95,
) -> Float[Tensor, "T B"]:
    """Compute the lambda-return of every step, without gradient.

    With ``lambda_`` 1 it is ``discounted_returns`` of the first chapter, with 0 the
    one-step target of temporal-difference learning. ``next_value`` is as in ``gae``.

    Source: Sutton and Barto, Reinforcement Learning, 2nd edition, equation 12.18.
    """
    future = torch.where(terminated, 0.0, next_value)
    # Where the episode or the batch ends, every return has to stop.
    stop = terminated | truncated
    stop[-1] = True
    going_on = lambda_ * (~stop).to(reward)

    # The recursion {eq}`lambda-return`, rearranged: what does not depend on the next
    # row is added, the rest is passed on.
    increment = reward + gamma * (1 - going_on) * future
    returns = reverse_scan(increment, gamma * going_on)
    check_finite(returns, reward=reward, next_value=future)
    return returns


@checked
def n_step_returns(
    reward: Float[Tensor, "T B"],
    next_value: Float[Tensor, "T B"],
    terminated: Bool[Tensor, "T B"],
    truncated: Bool[Tensor, "T B"],
    gamma: Fraction = 0.99,
    num_steps: Count = 5,
) -> Float[Tensor, "T B"]:
    """Compute the n-step return of every step, without gradient.

    ``num_steps`` is the number n of rewards before the value. A return stops earlier
    where its episode ends, and in the last row. ``next_value`` is as in ``gae``.

    Source: Sutton and Barto, Reinforcement Learning, 2nd edition, equation 7.1.
    """
    future = torch.where(terminated, 0.0, next_value)
    stop = terminated | truncated
    stop[-1] = True
    # With n = 1 each return is a reward and the value after it. Each turn makes all
    # returns of {eq}`n-step-return` one reward longer; more than T change nothing.
    returns = reward + gamma * future
    for _ in range(min(num_steps, len(reward)) - 1):
        returns = reward + gamma * torch.where(stop, future, returns.roll(-1, 0))
    check_finite(returns, reward=reward, next_value=future)
    return returns.detach()
