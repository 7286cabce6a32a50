# Generated from chapters/workshop/nests.py (edit there); digest 3aed4b398497b6dd
"""Nests: tuples and dictionaries of tensors, and the spaces that describe them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

__all__ = [
    "as_space",
    "ends",
    "leaves",
    "map_nest",
    "pack",
    "plain_space",
    "read_hybrid_space",
    "unpack",
]


def leaves(space: spaces.Space[Any]) -> Iterator[spaces.Space[Any]]:
    """Yield the spaces at the ends of a nest of Tuple and Dict, in order."""
    if isinstance(space, spaces.Tuple):
        for child in space.spaces:
            yield from leaves(child)
    elif isinstance(space, spaces.Dict):
        for child in space.spaces.values():
            yield from leaves(child)
    else:
        yield space


def unpack(space: spaces.Space[Any], nest: Any, name: str) -> Iterator[Tensor]:
    """Yield what stands at the leaves of a nest, in the order of its space.

    Args:
        space: A nest of Tuple and Dict.
        nest: Tuples and dictionaries of the same form, with tensors at the leaves.
        name: What error messages call the nest.

    Raises:
        TypeError: If something else than a tensor stands at a leaf.
        ValueError: If the form is another one.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(nest, dict) or nest.keys() != space.spaces.keys():
            raise ValueError(f"{name} must be a dict with keys {list(space.spaces)}")
        for key, child in space.spaces.items():
            yield from unpack(child, nest[key], f"{name}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        if not isinstance(nest, tuple) or len(nest) != len(space.spaces):
            raise ValueError(f"{name} must be a tuple of {len(space.spaces)}")
        for index, child in enumerate(space.spaces):
            yield from unpack(child, nest[index], f"{name}[{index}]")
    else:
        if not isinstance(nest, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(nest).__name__}")
        value = nest
        shape = space.shape or ()
        if value.shape[value.ndim - len(shape) :] != shape:
            expected = ", ".join(map(str, ("*", *shape)))
            given = tuple(value.shape)
            raise ValueError(f"{name} must have shape ({expected}), got {given}")
        yield value


def pack(space: spaces.Space[Any], values: Iterator[Any]) -> Any:
    """Put one value at each leaf of a space, in its order; return the nest."""
    if isinstance(space, spaces.Dict):
        return {key: pack(child, values) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(pack(child, values) for child in space.spaces)
    return next(values)


def map_nest(function: Callable[..., Any], *nests: Any) -> Any:
    """Apply a function to what stands at the same place of nests of one form."""
    first = nests[0]
    if isinstance(first, dict):
        return {key: map_nest(function, *(n[key] for n in nests)) for key in first}
    if isinstance(first, tuple):
        children = [map_nest(function, *c) for c in zip(*nests, strict=True)]
        return type(first)(*children) if hasattr(first, "_fields") else tuple(children)
    return function(*nests)


def ends(nest: Any) -> Iterator[Any]:
    """Yield what stands at the ends of a nest of dictionaries and tuples, in order."""
    if isinstance(nest, dict | tuple):
        for child in nest.values() if isinstance(nest, dict) else nest:
            yield from ends(child)
    else:
        yield nest


def check_spec(name: str, spec: Any) -> None:
    """Raise ``TypeError`` unless a specification is a nest of Box and Discrete."""
    ends = list(leaves(spec))
    if not ends:
        raise TypeError(f"{name} must have at least one leaf, got {spec}")
    for leaf in ends:
        if not isinstance(leaf, spaces.Box | spaces.Discrete):
            raise TypeError(
                f"{name} must be a nest (Tuple, Dict) of Box and Discrete spaces of "
                f"Gymnasium, got {leaf}"
            )


def flat(space: spaces.Space[Any], observation: Any) -> Tensor:
    """Return a nested observation as one vector for each state, ``(*, D)``.

    A box is flattened; a discrete observation becomes a row with a single 1.
    """
    columns = []
    values = unpack(space, observation, "observation")
    for leaf, value in zip(leaves(space), values, strict=True):
        if isinstance(leaf, spaces.Discrete):
            place = value.long() - int(leaf.start)
            if value.is_floating_point() or (place.clamp(0, leaf.n - 1) != place).any():
                last = int(leaf.start + leaf.n) - 1
                raise ValueError(
                    f"observation must hold whole numbers from {leaf.start} to {last} "
                    f"for the space {leaf}, got {value}"
                )
            columns.append(nn.functional.one_hot(place, int(leaf.n)))
        else:
            assert isinstance(leaf, spaces.Box)  # for the type checker
            dims = value.ndim - len(leaf.shape)
            columns.append(value.reshape(*value.shape[:dims], math.prod(leaf.shape)))
    return torch.cat(columns, -1)


def plain_space(space: spaces.Space[Any]) -> dict[str, Any]:
    """Describe a nest of Tuple, Dict, Discrete and Box by plain values."""
    if isinstance(space, spaces.Tuple):
        return {"tuple": [plain_space(child) for child in space.spaces]}
    if isinstance(space, spaces.Dict):
        return {"dict": {key: plain_space(x) for key, x in space.spaces.items()}}
    if isinstance(space, spaces.Discrete):
        return {"n": int(space.n), "start": int(space.start)}
    assert isinstance(space, spaces.Box)  # for the type checker; from_space has checked
    bounds = {"low": space.low.tolist(), "high": space.high.tolist()}
    return {**bounds, "shape": list(space.shape), "dtype": str(space.dtype)}


def as_space(plain: spaces.Space[Any] | dict[str, Any]) -> spaces.Space[Any]:
    """Build the space that ``plain_space`` has described; return a space as it is."""
    if isinstance(plain, spaces.Space):
        return plain
    if "tuple" in plain:
        return spaces.Tuple([as_space(child) for child in plain["tuple"]])
    if "dict" in plain:
        # In pairs, because Gymnasium sorts a dictionary, and the order of the boxes is
        # the order of the arguments.
        children = plain["dict"].items()
        return spaces.Dict([(key, as_space(child)) for key, child in children])
    if "n" in plain:
        return spaces.Discrete(plain["n"], start=plain["start"])
    dtype = np.dtype(plain["dtype"]).type
    low, high = (
        np.array(plain[key], dtype).reshape(plain["shape"]) for key in ("low", "high")
    )
    return spaces.Box(low, high, dtype=dtype)


def read_hybrid_space(
    space: spaces.Space[Any], mask: ArrayLike | Tensor | None = None
) -> tuple[Tensor, NDArray[np.float64], NDArray[np.float64]]:
    """Read the mask of a hybrid action and the bounds of its arguments from a space.

    Args:
        space: A nest of Tuple and Dict with exactly one Discrete and with Boxes of
            floating-point numbers. The arguments have the order of the boxes, each
            flattened.
        mask: Which type (row) uses which argument (column), zeros and ones; None if the
            space tells.

    Returns:
        The mask (K, A), and the lower and upper bounds (A,).
    """
    nodes = list(leaves(space))
    boxes = [node for node in nodes if isinstance(node, spaces.Box)]
    types = [node for node in nodes if isinstance(node, spaces.Discrete)]
    for node in nodes:
        real = isinstance(node, spaces.Box) and np.issubdtype(node.dtype, np.floating)
        if not real and not isinstance(node, spaces.Discrete):
            raise TypeError(
                "space must hold one Discrete and Boxes of floating-point numbers, "
                f"got {node}"
            )
    sizes = [math.prod(box.shape) for box in boxes]
    if len(types) != 1 or sum(sizes) == 0:
        raise ValueError(
            "space must hold exactly one Discrete and at least one argument in a Box, "
            f"got {space}"
        )
    num_types = int(types[0].n)
    if mask is None:
        if not boxes_by_type(space, num_types):
            raise ValueError(
                "mask must be given: only Tuple(Discrete(K), Tuple(K boxes)) tells "
                f"which type uses which argument, got {space}"
            )
        # One box for each type: the mask has a block of ones in each row.
        mask = np.repeat(np.eye(num_types, dtype=bool), sizes, axis=1)
    low, high = (
        np.concatenate([getattr(box, end).ravel() for box in boxes]).astype(np.float64)
        for end in ("low", "high")
    )
    return as_mask(mask, (num_types, sum(sizes))), low, high


def as_mask(
    mask: Any, shape: tuple[int, int], device: torch.device | None = None
) -> Tensor:
    """Return a table of zeros and ones as a bool tensor (K, A)."""
    table = torch.as_tensor(mask, device=device)
    if table.shape != shape:
        raise ValueError(
            "mask must have a row for each action type and a column for each argument, "
            f"shape {shape}, got {tuple(table.shape)}"
        )
    if table.dtype == torch.bool:
        return table
    if not ((table == 0) | (table == 1)).all():
        raise ValueError(f"mask must hold zeros and ones, got {table.tolist()}")
    return table.bool()


def vector_size(space: Any) -> int:
    """Return the length of the observations of a space, a Box with one dimension."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise ValueError(
            f"observation_space must be a Box with one dimension, got {space}"
        )
    return int(space.shape[0])


def rows_of(table: Tensor, index: Tensor, name: str) -> Tensor:
    """Return a table's rows at an index; name the index if one is out of range."""
    try:
        return table.index_select(0, index)
    except (IndexError, RuntimeError) as error:
        low, high = (int(end) for end in index.aminmax())
        raise ValueError(
            f"{name} must lie in 0..{len(table) - 1}, got {low}..{high}"
        ) from error


def boxes_by_type(space: spaces.Space[Any], num_types: int) -> bool:
    """Say whether a space is ``Tuple(Discrete(K), Tuple(K boxes))``."""
    if not isinstance(space, spaces.Tuple) or len(space.spaces) != 2:
        return False
    first, second = space.spaces
    return (
        isinstance(first, spaces.Discrete)
        and isinstance(second, spaces.Tuple)
        and len(second.spaces) == num_types
        and all(isinstance(child, spaces.Box) for child in second.spaces)
    )


def fill(
    space: spaces.Space[Any],
    action_type: NDArray[np.int64],
    columns: Iterator[NDArray[np.float64]],
) -> Any:
    """Build the nest of a space from types (B,) and the columns of the arguments."""
    if isinstance(space, spaces.Tuple):
        return tuple(fill(child, action_type, columns) for child in space.spaces)
    if isinstance(space, spaces.Dict):
        items = space.spaces.items()
        return {key: fill(child, action_type, columns) for key, child in items}
    if isinstance(space, spaces.Discrete):
        return action_type + space.start
    assert isinstance(space, spaces.Box)  # for the type checker; from_space has checked
    batch = np.empty((len(action_type), math.prod(space.shape)), space.dtype)
    for index in range(batch.shape[1]):
        batch[:, index] = next(columns)
    return batch.reshape(len(batch), *space.shape)


def first_row(nest: Any) -> Any:
    """Take the first row of each array in a nest of tuples and dictionaries."""
    if isinstance(nest, tuple):
        return tuple(map(first_row, nest))
    if isinstance(nest, dict):
        return {key: first_row(child) for key, child in nest.items()}
    return nest[0]
