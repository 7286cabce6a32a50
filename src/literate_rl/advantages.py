# Generated from chapters/advantages.py (edit there); digest 0ebdfae59856eb6f
"""Advantages: n-step returns, lambda-returns and generalised advantage estimation."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from literate_rl.agents import check_gamma, check_steps

__all__ = ["gae", "gae_loop", "lambda_returns", "n_step_returns", "reverse_scan"]


def gae_loop(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float = 0.99,
    lambda_: float = 0.95,
) -> Tensor:
    """Compute what ``gae`` computes, step by step: the form to read.

    Args:
        reward: As in ``gae``.
        value: As in ``gae``.
        next_value: As in ``gae``.
        terminated: As in ``gae``.
        truncated: As in ``gae``.
        gamma: As in ``gae``.
        lambda_: As in ``gae``.

    Returns:
        The advantages, (T, B), without gradient.

    Raises:
        TypeError: As ``gae``.
        ValueError: As ``gae``.
    """
    delta, done = td_errors(reward, value, next_value, terminated, truncated, gamma)
    check_lambda(lambda_)
    # The recursion {eq}`gae`, from the last step to the first.
    decay = gamma * lambda_ * (~done).to(delta.dtype)
    advantage = torch.zeros_like(delta[0])
    advantages = []
    for t in reversed(range(len(delta))):
        advantage = delta[t] + decay[t] * advantage
        advantages.append(advantage)
    return torch.stack(advantages[::-1])


def td_errors(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
) -> tuple[Tensor, Tensor]:
    """Check the arguments; return the TD errors (T, B) and which steps are done."""
    check_steps(
        reward=reward,
        value=value,
        next_value=next_value,
        terminated=terminated,
        truncated=truncated,
    )
    check_gamma(gamma)
    # The surprise {eq}`td-error`. An advantage is a weight, not a way for gradients.
    bootstrap = next_value.detach().masked_fill(terminated, 0.0)
    delta = torch.add(reward.detach(), bootstrap, alpha=gamma) - value.detach()
    check_finite(delta, reward=reward, value=value, next_value=next_value)
    return delta, terminated | truncated


def check_lambda(lambda_: float) -> None:
    """Raise unless a decay is a number from 0 to 1."""
    if isinstance(lambda_, bool) or not isinstance(lambda_, int | float):
        raise TypeError(f"lambda_ must be a number, got {type(lambda_).__name__}")
    if not 0 <= lambda_ <= 1:
        raise ValueError(f"lambda_ must lie in [0, 1], got {lambda_}")


def check_finite(result: Tensor, **inputs: Tensor) -> None:
    """Raise if a result holds NaN or infinity, and name the inputs to blame."""
    # One sum, one look. Only if it is bad, search.
    if not math.isfinite(result.sum().item()) and not result.isfinite().all():
        bad = [name for name, x in inputs.items() if not x.isfinite().all()]
        raise ValueError(f"{' and '.join(bad) or 'the result'} must be finite")


def reverse_scan(increment: Tensor, factor: Tensor) -> Tensor:
    """Solve a linear recursion that runs backward in time.

    The result obeys ``x[t] = increment[t] + factor[t] * x[t + 1]``; after the last row
    comes zero.

    Args:
        increment: What each step adds, (T, B) floating-point.
        factor: What each step passes on of the step after it, (T, B) floating-point.

    Returns:
        A new tensor (T, B), without gradient.

    Raises:
        TypeError: If an argument is no floating-point tensor.
        ValueError: If a shape is wrong.

    Source:
        Blelloch 1990, Prefix Sums and Their Applications, section 1.4 (recurrences),
        with chunks in place of a tree.
    """
    check_steps(increment=increment, factor=factor)
    num_steps, num_envs = increment.shape
    length = max(1, round(math.sqrt(num_steps / 2)))

    # Zeros behind the last row fill up the last chunk and change nothing. `pad` always
    # copies, so what follows may write in place.
    rows = (0, 0, 0, -num_steps % length)
    x = pad(increment.detach(), rows).view(-1, length, num_envs)
    product = pad(factor.detach(), rows).view(-1, length, num_envs)

    # The local answers of {eq}`scan-chunk`, for all chunks at once. Row by row the
    # factors become the products $F_t$.
    x_rows, product_rows = x.unbind(1), product.unbind(1)
    for k in reversed(range(length - 1)):
        x_rows[k].addcmul_(product_rows[k], x_rows[k + 1])
        product_rows[k].mul_(product_rows[k + 1])

    # The heads, from the last chunk to the first. This is {eq}`reverse-scan` again,
    # with chunks for steps.
    heads, head_products = x_rows[0].unbind(), product_rows[0].unbind()
    for c in reversed(range(len(heads) - 1)):
        heads[c].addcmul_(head_products[c], heads[c + 1])

    # All rows that are no head, each with the head of the chunk after its own.
    x[:-1, 1:].addcmul_(product[:-1, 1:], x[1:, :1])
    return x.flatten(0, 1)[:num_steps]


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float = 0.99,
    lambda_: float = 0.95,
) -> Tensor:
    """Estimate the advantage of every step, with two flags.

    Args:
        reward: Rewards, (T, B).
        value: Value of each step's state, (T, B).
        next_value: Value of each step's true successor, (T, B). Entries at terminated
            steps count as 0, whatever they hold.
        terminated: Whether the task ended with this step, (T, B) boolean.
        truncated: Whether the episode was cut off after this step, (T, B) boolean.
        gamma: Discount, in [0, 1].
        lambda_: Decay of the weights of longer returns, in [0, 1].

    Returns:
        The advantages, (T, B), without gradient. Added to ``value`` they are targets
        for the value function.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If a shape, ``gamma`` or ``lambda_`` is wrong, or a number that
            counts is not finite.

    Source:
        Schulman et al. 2016, equation 16, with separate flags for the two ends.
    """
    delta, done = td_errors(reward, value, next_value, terminated, truncated, gamma)
    check_lambda(lambda_)
    # The recursion {eq}`gae` as a scan.
    factor = torch.full_like(delta, gamma * lambda_).masked_fill_(done, 0.0)
    return reverse_scan(delta, factor)


def lambda_returns(
    reward: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float = 0.99,
    lambda_: float = 0.95,
) -> Tensor:
    """Compute the lambda-return of every step, with two flags.

    Args:
        reward: Rewards, (T, B).
        next_value: Value of each step's true successor, (T, B). Entries at terminated
            steps count as 0, whatever they hold.
        terminated: Whether the task ended with this step, (T, B) boolean.
        truncated: Whether the episode was cut off after this step, (T, B) boolean.
        gamma: Discount, in [0, 1].
        lambda_: Weight of going on against stopping, in [0, 1]. With 1 the result is
            ``discounted_returns``, with 0 the one-step target of TD learning.

    Returns:
        The returns, (T, B), without gradient.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If a shape, ``gamma`` or ``lambda_`` is wrong, or a number that
            counts is not finite.

    Source:
        Sutton and Barto, Reinforcement Learning, 2nd edition, equation 12.18.
    """
    bootstrap, stop = check_targets(reward, next_value, terminated, truncated, gamma)
    check_lambda(lambda_)
    # The recursion {eq}`lambda-return`, sorted: what does not depend on the next row is
    # the increment, the rest is the factor.
    weight = torch.full_like(bootstrap, lambda_).masked_fill_(stop, 0.0)
    increment = reward.detach() + gamma * (1 - weight) * bootstrap
    return reverse_scan(increment, gamma * weight)


def n_step_returns(
    reward: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float = 0.99,
    num_steps: int = 5,
) -> Tensor:
    """Compute the n-step return of every step, with two flags.

    Args:
        reward: Rewards, (T, B).
        next_value: Value of each step's true successor, (T, B). Entries at terminated
            steps count as 0, whatever they hold.
        terminated: Whether the task ended with this step, (T, B) boolean.
        truncated: Whether the episode was cut off after this step, (T, B) boolean.
        gamma: Discount, in [0, 1].
        num_steps: Number n of rewards before the value, at least 1. A return stops
            earlier where its episode ends and in the last row.

    Returns:
        The returns, (T, B), without gradient.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If a shape, ``gamma`` or ``num_steps`` is wrong, or a number that
            counts is not finite.

    Source:
        Sutton and Barto, Reinforcement Learning, 2nd edition, equation 7.1.
    """
    bootstrap, stop = check_targets(reward, next_value, terminated, truncated, gamma)
    if isinstance(num_steps, bool) or not isinstance(num_steps, int):
        raise TypeError(f"num_steps must be an int, got {type(num_steps).__name__}")
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")
    # This time the loop runs over $n$. Each turn makes all returns of
    # {eq}`n-step-return` one reward longer. More than $T$ turns change nothing.
    reward = reward.detach()
    future = bootstrap
    for _ in range(min(num_steps, len(reward)) - 1):
        returns = reward + gamma * future
        future = torch.where(stop, bootstrap, returns.roll(-1, 0))
    return reward + gamma * future


def check_targets(
    reward: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
) -> tuple[Tensor, Tensor]:
    """Check arguments; return the bootstrap and where a return has to stop, (T, B)."""
    check_steps(
        reward=reward, next_value=next_value, terminated=terminated, truncated=truncated
    )
    check_gamma(gamma)
    bootstrap = next_value.detach().masked_fill(terminated, 0.0)
    check_finite(reward + bootstrap, reward=reward, next_value=next_value)
    stop = terminated | truncated
    stop[-1] = True
    return bootstrap, stop
