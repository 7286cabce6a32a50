"""What the tree container costs a step: building one tree and reading its leaves."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.harness import SEED, Case, Goal
from literate_rl.nets.hybrid_action import as_tree

ROUNDS = 51
SHAPE = (256, 3)


def tree(logit: Tensor, mu: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Build a tree tensor of three leaves and read them."""
    made = as_tree({"action_type": logit, "action_args": {"mu": mu, "sigma": sigma}})
    return made.action_type, made.action_args.mu, made.action_args.sigma


def plain(logit: Tensor, mu: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Do the same with dictionaries."""
    made = {"action_type": logit, "action_args": {"mu": mu, "sigma": sigma}}
    arguments = made["action_args"]
    return made["action_type"], arguments["mu"], arguments["sigma"]


def cases() -> Iterator[Case]:
    """Yield one case; one addition of tensors stands beside it for scale."""
    generator = torch.Generator().manual_seed(SEED)
    leaves = [torch.randn(*SHAPE, generator=generator) for _ in range(3)]
    assert all(map(torch.equal, tree(*leaves), leaves))
    yield Case(
        name=f"three leaves of shape {SHAPE}",
        functions={
            "dictionary": lambda: plain(*leaves),
            "tree tensor": lambda: tree(*leaves),
            "one addition, for scale": lambda: leaves[0] + leaves[1],
        },
        peer="dictionary",
        goals={"tree tensor": Goal(at_most=15.0)},
    )
