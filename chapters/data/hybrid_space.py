# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Spaces of hybrid actions
#
# **How does an environment say which type of action uses which argument?** This page reads the
# spaces of {doc}`/chapters/hybrid_action` and {doc}`/chapters/hybrid_ppo`, and refuses masks and
# numbers that describe no policy. You can follow the book without it.

# %% tags=["export", "hide-input"]
"""Spaces of hybrid actions: their masks, their bounds, and the way back into them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from literate_rl.ground.nests import Space, form, leaves, map_nest, open_ended, refused
from literate_rl.ground.signatures import Fault, below, check_finite

__all__ = ["read_hybrid_space"]

# %% [markdown]
# A hybrid action is a type and a row of arguments ({doc}`/chapters/hybrid_action`), and a
# mask says which type uses which argument. Its space is a nest with one Discrete and some
# Boxes. One form of it tells the mask: `Tuple(Discrete(K), Tuple(K boxes))`, with one box of
# arguments for each type, which is empty where the type has none. For any other nest the
# mask must be given.


# %% tags=["export"]
def read_hybrid_space(
    space: Space, mask: ArrayLike | Tensor | None = None
) -> tuple[Tensor, NDArray[np.float64], NDArray[np.float64]]:
    """Read the mask of a hybrid action and the bounds of its arguments from a space.

    Args:
        space: A nest with one Discrete and with Boxes of floating-point numbers.
            The arguments have the order of the boxes, each flattened.
        mask: Which type (row) uses which argument (column), zeros and ones; None if the
            space tells.

    Returns:
        The mask (K, A), and the lower and upper bounds (A,), infinite where there is
        none.
    """
    nodes = list(leaves(space))
    boxes = [node for node in nodes if isinstance(node, spaces.Box)]
    types = [node for node in nodes if isinstance(node, spaces.Discrete)]
    real = all(np.issubdtype(box.dtype, np.floating) for box in boxes)
    sizes = [math.prod(box.shape) for box in boxes]
    if not real or sum(sizes) == 0 or len(types) != 1 or len(nodes) > len(boxes) + 1:
        wanted = "exactly one Discrete, and at least one argument in Boxes"
        wanted = f"action_space must hold {wanted} of floating-point numbers"
        raise refused(wanted, space, "kind")

    # One box for each type: the mask has a block of ones in each row.
    num_types = int(types[0].n)
    if mask is None:
        if form(space) != (types[0], tuple(boxes)) or len(boxes) != num_types:
            known = "Tuple(Discrete(K), Tuple(K Boxes))"
            wanted = f"mask must be given unless action_space is {known}"
            raise refused(wanted, space, "mask")
        mask = np.repeat(np.eye(num_types, dtype=bool), sizes, axis=1)
    low, high = (
        np.concatenate([open_ended(getattr(box, end)).ravel() for box in boxes])
        for end in ("low", "high")
    )
    if not (low <= high).all():
        wanted = "action_space must have lower bounds that are at most the upper ones"
        raise refused(wanted, space, "bounds")
    mask = as_mask(mask, (num_types, sum(sizes))).clone()
    return mask, low.astype(np.float64), high.astype(np.float64)


def as_mask(
    mask: Any, shape: tuple[int, int], device: torch.device | None = None
) -> Tensor:
    """Return a table of zeros and ones as a bool tensor (K, A)."""
    try:
        table = torch.as_tensor(mask, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"mask must be a table of zeros and ones: {error}") from error
    if table.shape != shape:
        raise ValueError(
            "mask must have a row for each action type and a column for each argument, "
            f"shape {shape}, got {tuple(table.shape)}"
        )
    if table.dtype != torch.bool and not ((table == 0) | (table == 1)).all():
        raise ValueError(f"mask must hold zeros and ones, got {table.tolist()}")
    return table.bool()


def rows_of(table: Tensor, index: Tensor, name: str) -> Tensor:
    """Return a table's rows at an index; name the index if one is out of range."""
    if fault := below(len(table))(name, index, {}):
        raise fault.error()
    return table[index]


def one_each(name: str, mask: Tensor, sizes: Any) -> Fault | None:
    """Find a fault in a mask that has not exactly one argument in each row."""
    count = mask.sum(-1)
    rows = (count != 1).nonzero().flatten().tolist()[:8]
    came = f"{count[rows].tolist()} in rows {rows}; use mask_args instead"
    expected = "have exactly one argument in each row"
    return Fault(ValueError, name, expected, came) if rows else None


def check_policy(name: str, prob: Tensor, mu: Tensor, log_sigma: Tensor) -> None:
    """Raise if numbers describe no policy. A logit of minus infinity is legal."""
    numbers = {
        f"the softmax of {name}.action_type": prob,
        f"{name}.action_args.mu": mu,
        f"the logarithm of {name}.action_args.sigma": log_sigma,
    }
    check_finite(torch.cat([*numbers.values()], -1), **numbers)


# %% [markdown]
# On the way to the environment, types and arguments are put back into the nest.


# %% tags=["export"]
def fill_space(
    space: Space,
    action_type: NDArray[np.int64],
    columns: Iterator[NDArray[np.float64]],
) -> Any:
    """Build the nest of a space from types (B,) and the columns of the arguments."""

    def values(leaf: Any) -> Any:
        if isinstance(leaf, spaces.Discrete):
            return action_type + leaf.start
        size, batch = math.prod(leaf.shape), len(action_type)
        args = np.array([*islice(columns, size)], leaf.dtype).reshape(size, batch)
        return args.T.reshape(batch, *leaf.shape)

    return map_nest(values, form(space))


# %% [markdown]
# ## See it
#
# A player who turns by some angle, or goes forward with some speed to some distance:

# %%
turn, go = spaces.Box(-1, 1, (1,)), spaces.Box(0, 5, (2,))
space = spaces.Tuple((spaces.Discrete(2), spaces.Tuple((turn, go))))
mask, low, high = read_hybrid_space(space)
print("mask", mask.int().tolist())
print("bounds", low, high)
print("an action", fill_space(space, np.array([1]), iter(np.array([[0.0], [2], [3]]))))

# %% tags=["claims"]
assert mask.int().tolist() == [[1, 0, 0], [0, 1, 1]]

# %% [markdown]
# ## References
#
# The spaces are those of Gymnasium {cite:p}`towers2024`; actions with arguments come from
# Masson, Ranchod and Konidaris {cite:p}`masson2016`.
