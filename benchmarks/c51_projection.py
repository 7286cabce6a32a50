"""The projection of C51 against the forms of other libraries.

The peers are written out as their sources at the linked commits have them, from moved
atoms to the finished target; what they compute once and keep is given to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.harness import SEED, Case, Goal
from literate_rl.maths.c51 import project_distribution, project_distribution_loop

ROUNDS = 31
ATOMS, VALUE_MIN, VALUE_MAX = 51, -10.0, 10.0
SPACING = (VALUE_MAX - VALUE_MIN) / (ATOMS - 1)
SUPPORT = torch.linspace(VALUE_MIN, VALUE_MAX, ATOMS)
SIZES = {32: 2.5, 64: 2.5, 128: 2.5, 1024: 4.0}


class Targets(NamedTuple):
    """What a batch brings: probabilities, rewards and discounts."""

    prob: Tensor
    reward: Tensor
    discount: Tensor


def di_engine(data: Targets) -> Tensor:
    """Project as DI-engine's ``dist_nstep_td_error`` does.

    Rounds down and up, repairs where both agree, adds to a flat table.
    """
    prob, reward, discount = data
    batch, num_atoms = prob.shape
    support = torch.linspace(VALUE_MIN, VALUE_MAX, num_atoms)
    target_z = reward.unsqueeze(-1) + discount.unsqueeze(-1) * support
    target_z = target_z.clamp(min=VALUE_MIN, max=VALUE_MAX)
    b = (target_z - VALUE_MIN) / SPACING
    lower, upper = b.floor().long(), b.ceil().long()
    lower[(upper > 0) * (lower == upper)] -= 1
    upper[(lower < (num_atoms - 1)) * (lower == upper)] += 1
    result = torch.zeros_like(prob)
    offset = torch.linspace(0, (batch - 1) * num_atoms, batch).unsqueeze(1)
    offset = offset.expand(batch, num_atoms).long()
    flat = result.view(-1)
    flat.index_add_(0, (lower + offset).view(-1), (prob * (upper.float() - b)).view(-1))
    flat.index_add_(0, (upper + offset).view(-1), (prob * (b - lower.float())).view(-1))
    return result


def tianshou(data: Targets) -> Tensor:
    """Project as Tianshou's ``C51`` does: the hats of all atoms over all pieces."""
    prob, reward, discount = data
    moved = reward.unsqueeze(-1) + discount.unsqueeze(-1) * SUPPORT
    moved = moved.clamp(VALUE_MIN, VALUE_MAX)
    distance = (moved.unsqueeze(1) - SUPPORT.view(1, -1, 1)).abs()
    hats = (1 - distance / SPACING).clamp(0, 1) * prob.unsqueeze(1)
    return hats.sum(-1)


def cleanrl(data: Targets) -> Tensor:
    """Project as CleanRL's ``c51.py`` does: a loop over the batch."""
    prob, reward, discount = data
    next_atoms = reward.unsqueeze(-1) + discount.unsqueeze(-1) * SUPPORT
    tz = next_atoms.clamp(VALUE_MIN, VALUE_MAX)
    b = (tz - VALUE_MIN) / SPACING
    lower = b.floor().clamp(0, ATOMS - 1)
    upper = b.ceil().clamp(0, ATOMS - 1)
    to_lower = (upper + (lower == upper).float() - b) * prob
    to_upper = (b - lower) * prob
    result = torch.zeros_like(prob)
    for i in range(len(result)):
        result[i].index_add_(0, lower[i].long(), to_lower[i])
        result[i].index_add_(0, upper[i].long(), to_upper[i])
    return result


def ours(data: Targets) -> Tensor:
    """Call this package."""
    return project_distribution(*data, VALUE_MIN, VALUE_MAX)


def batch_of(size: int) -> Targets:
    """Return random targets, a tenth of them behind a termination."""
    generator = torch.Generator().manual_seed(SEED)
    prob = torch.randn(size, ATOMS, generator=generator).softmax(-1)
    reward = torch.randn(size, generator=generator)
    alive = torch.rand(size, generator=generator) > 0.1
    return Targets(prob, reward, 0.99**3 * alive.float())


def cases() -> Iterator[Case]:
    """Yield each size beside each peer, after a check that all agree."""
    peers: dict[str, Callable[[Targets], Tensor]] = {
        "DI-engine's form": di_engine,
        "Tianshou's form": tianshou,
        "CleanRL's form": cleanrl,
    }
    for size, goal in SIZES.items():
        data = batch_of(size)
        exact = project_distribution_loop(
            *(x[:32].double() for x in data), VALUE_MIN, VALUE_MAX
        )
        for form in (*peers.values(), ours):
            difference = (form(data)[:32].double() - exact).abs().max()
            assert difference < 1e-5, f"{form.__name__} differs by {difference:.1e}"
        for peer, form in peers.items():
            yield Case(
                name=f"B = {size}, {peer}",
                functions={
                    peer: partial(form, data),
                    "project_distribution": partial(ours, data),
                },
                peer=peer,
                goals={"project_distribution": Goal(at_least=goal)},
            )
