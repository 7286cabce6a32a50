"""V-trace's targets, against TorchRL's function.

It lives in an environment of its own: ``make peers ONLY=vtrace_torchrl``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.harness import Case, Goal
from benchmarks.vtrace import GAMMA, SIZES, Steps, our_targets, steps_of

ROUNDS = 31
PACKAGES = ("torchrl", "tensordict")


def torchrl_columns(steps: Steps) -> list[Tensor]:
    """Bring the columns into TorchRL's layout, (B, T, 1), contiguous."""
    log_old = torch.zeros_like(steps.log_ratio)
    columns = (
        steps.log_ratio,
        log_old,
        steps.value[:-1],
        steps.value[1:],
        steps.reward,
        steps.terminated,
        steps.terminated,
    )
    return [column.t().contiguous().unsqueeze(-1) for column in columns]


def torchrl_form(*columns: Tensor) -> tuple[Tensor, Tensor]:
    """Call TorchRL; return the targets and the advantages."""
    from torchrl.objectives.value.functional import vtrace_advantage_estimate

    advantage, target = vtrace_advantage_estimate(GAMMA, *columns)
    return target, advantage


def cases() -> Iterator[Case]:
    """Yield the sizes, each after its check; the layout of each side is its own."""
    for size in SIZES:
        steps = steps_of(size, end=0.02)
        columns = torchrl_columns(steps)
        double = Steps(*(x.double() if x.is_floating_point() else x for x in steps))
        expected = our_targets(double, 1.0)
        theirs = (x.squeeze(-1).t() for x in torchrl_form(*columns))
        for answer in (theirs, our_targets(steps, 1.0)):
            for got, wanted in zip(answer, expected, strict=True):
                torch.testing.assert_close(got.double(), wanted, rtol=0, atol=1e-4)
        yield Case(
            name=f"T = {size[0]}, B = {size[1]}",
            functions={
                "TorchRL": partial(torchrl_form, *columns),
                "vtrace": partial(our_targets, steps, 1.0),
            },
            peer="TorchRL",
            goals={"vtrace": Goal(at_least=7.0)},
        )
