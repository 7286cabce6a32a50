"""Generalised advantage estimation, against TorchRL's function.

The environment that it needs is described in ``ppo_loop.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.advantages import GAMMA, LAMBDA, Batch, batch
from benchmarks.harness import Case, Goal
from literate_rl.advantages import gae, gae_loop

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


def cases() -> Iterator[Case]:
    """Yield the sizes, each after its check; the layout of each side is its own."""
    for size, goal in GOALS.items():
        steps = batch(*size)
        columns = torchrl_columns(steps)
        double = [x.double() if x.is_floating_point() else x for x in steps]
        expected = gae_loop(*double, gamma=GAMMA, lambda_=LAMBDA)
        theirs = torchrl_form(*columns).squeeze(-1).t()
        for answer in (theirs, gae(*steps)):
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
