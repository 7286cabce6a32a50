"""Advantages and λ-returns, against the loops that DI-engine writes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.harness import SEED, Case, Goal
from literate_rl.maths.advantages import gae, gae_loop, lambda_returns

ROUNDS = 51
GAMMA, LAMBDA = 0.99, 0.95
GOALS = {(128, 64): 5.0, (512, 256): 5.0, (1024, 1024): 2.5}

Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def di_engine_form(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
) -> Tensor:
    """Compute the same numbers as DI-engine does: a loop, with flags as numbers."""
    ended = terminated.float()
    cut = (terminated | truncated).float()
    delta = reward + GAMMA * next_value * (1 - ended) - value
    factor = GAMMA * LAMBDA * (1 - cut)
    advantage = torch.zeros_like(value)
    carried = torch.zeros_like(value[0])
    for t in reversed(range(len(reward))):
        carried = delta[t] + factor[t] * carried
        advantage[t] += carried
    return advantage


def di_engine_returns(
    reward: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor
) -> Tensor:
    """Compute the same λ-returns as DI-engine does: a loop, with flags as numbers."""
    ended = terminated.float()
    cut = (terminated | truncated).float()
    bootstrap = GAMMA * (1 - ended) * next_value
    follow = LAMBDA * (1 - cut)
    result = torch.empty_like(reward)
    result[-1] = reward[-1] + bootstrap[-1]
    for t in reversed(range(len(reward) - 1)):
        later = follow[t] * GAMMA * result[t + 1]
        result[t] = reward[t] + (1 - follow[t]) * bootstrap[t] + later
    return result


def batch(num_steps: int, num_envs: int) -> Batch:
    """Return random steps with an end in one of fifty."""
    generator = torch.Generator().manual_seed(SEED)
    reward, value, next_value = torch.randn(
        3, num_steps, num_envs, generator=generator
    ).unbind()
    terminated, truncated = (
        torch.rand(2, num_steps, num_envs, generator=generator) < 0.01
    )
    return reward, value, next_value, terminated, truncated


def own_returns(
    reward: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor
) -> Tensor:
    """Call the package with the constants of this benchmark."""
    return lambda_returns(reward, next_value, terminated, truncated, GAMMA, LAMBDA)


def by_loop(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
) -> Tensor:
    """Do with the loop that the chapter prints what it does with the scan."""
    future = torch.where(terminated, 0.0, next_value)
    same_episode = (~(terminated | truncated)).to(reward)
    return gae_loop(reward + GAMMA * future - value, GAMMA * LAMBDA * same_episode)


def check(steps: Batch) -> None:
    """Assert that all forms agree with the loops in float64."""
    double = [x.double() if x.is_floating_point() else x for x in steps]
    advantage = by_loop(*double)
    for form in (di_engine_form, by_loop, gae):
        difference = (form(*steps).double() - advantage).abs().max()
        assert difference < 2e-5, f"{form.__name__} differs by {difference:.1e}"
    returns = di_engine_returns(double[0], *double[2:])
    for form in (di_engine_returns, own_returns):
        difference = (form(steps[0], *steps[2:]).double() - returns).abs().max()
        assert difference < 2e-5, f"{form.__name__} differs by {difference:.1e}"


def cases() -> Iterator[Case]:
    """Yield the sizes, each after its check, for advantages and for λ-returns."""
    advantages = {"DI-engine's form": di_engine_form, "gae_loop": by_loop, "gae": gae}
    returns = {"DI-engine's form": di_engine_returns, "lambda_returns": own_returns}
    for size, goal in GOALS.items():
        steps = batch(*size)
        check(steps)
        yield Case(
            name=f"T = {size[0]}, B = {size[1]}",
            functions={name: partial(f, *steps) for name, f in advantages.items()},
            peer="DI-engine's form",
            goals={"gae": Goal(at_least=goal)},
        )
        columns = steps[0], *steps[2:]
        yield Case(
            name=f"λ-returns, T = {size[0]}, B = {size[1]}",
            functions={name: partial(f, *columns) for name, f in returns.items()},
            peer="DI-engine's form",
            goals={"lambda_returns": Goal(at_least=goal)},
        )
