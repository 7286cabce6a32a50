"""Advantages and λ-returns, against TorchRL's functions.

It lives in an environment of its own: ``make peers ONLY=advantages_torchrl``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.advantages import (
    GAMMA,
    LAMBDA,
    Batch,
    batch,
    di_engine_returns,
    own_returns,
)
from benchmarks.harness import Case, Goal
from literate_rl.maths.advantages import gae, gae_loop

ROUNDS = 51
PACKAGES = ("torchrl", "tensordict")
GOALS = {(128, 64): 7.0, (512, 256): 7.0, (1024, 1024): None}


def torchrl_columns(steps: Batch) -> list[Tensor]:
    """Bring the columns into TorchRL's layout, (B, T, 1), contiguous."""
    reward, value, next_value, terminated, truncated = steps
    columns = (value, next_value, reward, terminated | truncated, terminated)
    return [column.t().contiguous().unsqueeze(-1) for column in columns]


def torchrl_form(
    value: Tensor, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor
) -> Tensor:
    """Call TorchRL."""
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    advantage, _ = generalized_advantage_estimate(
        GAMMA, LAMBDA, value, next_value, reward, done=done, terminated=terminated
    )
    result: Tensor = advantage
    return result


def torchrl_returns(
    value: Tensor, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor
) -> Tensor:
    """Call TorchRL for λ-returns, which do not need the value."""
    from torchrl.objectives.value.functional import td_lambda_return_estimate

    result: Tensor = td_lambda_return_estimate(
        GAMMA, LAMBDA, next_value, reward, done=done, terminated=terminated
    )
    return result


def cases() -> Iterator[Case]:
    """Yield the sizes, each after its check; the layout of each side is its own."""
    for size, goal in GOALS.items():
        steps = batch(*size)
        columns = torchrl_columns(steps)
        double = [x.double() if x.is_floating_point() else x for x in steps]
        reward, value, next_value, terminated, truncated = double
        td_error = reward + GAMMA * next_value * ~terminated - value
        expected = gae_loop(td_error, GAMMA * LAMBDA * ~(terminated | truncated))
        theirs = torchrl_form(*columns).squeeze(-1).t()
        for answer in (theirs, gae(*steps)):
            torch.testing.assert_close(answer.double(), expected, rtol=0, atol=2e-5)
        ours = partial(own_returns, steps[0], *steps[2:])
        expected = di_engine_returns(double[0], *double[2:])
        for answer in (torchrl_returns(*columns).squeeze(-1).t(), ours()):
            torch.testing.assert_close(answer.double(), expected, rtol=0, atol=2e-5)
        yield Case(
            name=f"T = {size[0]}, B = {size[1]}",
            functions={
                "TorchRL": partial(torchrl_form, *columns),
                "gae": partial(gae, *steps),
            },
            peer="TorchRL",
            goals={"gae": Goal(at_least=goal)},
        )
        yield Case(
            name=f"λ-returns, T = {size[0]}, B = {size[1]}",
            functions={
                "TorchRL": partial(torchrl_returns, *columns),
                "lambda_returns": ours,
            },
            peer="TorchRL",
            goals={"lambda_returns": Goal(at_least=goal)},
        )
