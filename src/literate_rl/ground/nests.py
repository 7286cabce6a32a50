# Generated from chapters/ground/nests.py (edit there); digest 9cd107c381daca74
"""Nests: tuples and dictionaries of tensors, and the spaces that describe them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Annotated, Any, TypeVar, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from literate_rl.ground.signatures import Fault

__all__ = [
    "REASONS",
    "SpaceError",
    "as_discrete",
    "as_space",
    "as_vectors",
    "ends",
    "is_hybrid",
    "leaves",
    "map_nest",
    "pack",
    "plain_space",
    "refused",
    "remembered",
    "unpack",
]


Space = spaces.Space[Any]
AnySpace = Space | dict[str, Any]  # a space, or what `plain_space` made of it


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


def form(space: Space) -> Any:
    """Return a space as a nest, with spaces other than Tuple and Dict at its ends."""
    if isinstance(space, spaces.Tuple | spaces.Dict):
        return map_nest(form, space.spaces)
    return space


def leaves(space: Space) -> Iterator[Space]:
    """Yield the spaces at the ends of a nest of Tuple and Dict, in order."""
    return ends(form(space))


def pack(space: Space, values: Iterator[Any]) -> Any:
    """Put one value at each leaf of a space, in its order; return the nest."""
    return map_nest(lambda _: next(values), form(space))


def first_row(space: Space, nest: Any) -> Any:
    """Take the first of a batch of actions, as an environment's ``step`` takes it."""

    def first(leaf: Space, rows: Any) -> Any:
        # An array stays one, also of the shape ().
        return int(rows[0]) if isinstance(leaf, spaces.Discrete) else rows[0, ...]

    return map_nest(first, form(space), nest)


def named_ends(space: Space, nest: Any, name: str) -> Iterator[tuple[Any, Any, str]]:
    """Yield the ends of a nest of spaces, each with what stands there and its name.

    Raises:
        ValueError: If an end is missing.
    """
    if not isinstance(space, spaces.Tuple | spaces.Dict):
        yield space, nest, name
        return
    wanted, here = by_key(space.spaces), by_key(nest)
    if not wanted.keys() <= here.keys():
        came = [*here] or type(nest).__name__
        raise ValueError(f"{name} must have {[*wanted]}, got {came}")
    for key, child in wanted.items():
        yield from named_ends(child, here[key], f"{name}[{key!r}]")


def by_key(nest: Any) -> dict[Any, Any]:
    """Return the children of a nest by key or by number."""
    if isinstance(nest, tuple | list):
        return dict(enumerate(nest))
    return nest if isinstance(nest, dict) else {}


def unpack(space: Space, nest: Any, name: str) -> Iterator[Tensor]:
    """Yield what stands at the leaves of a nest, in the order of its space.

    Args:
        space: A nest of Tuple and Dict.
        nest: Tuples and dictionaries of the same form, with tensors at the leaves.
        name: What error messages call the nest.
    """
    for leaf, value, place in named_ends(space, nest, name):
        # Any number of dimensions may stand in front of those of the leaf.
        shape = leaf.shape or ()
        if value.shape[value.ndim - len(shape) :] != shape:
            expected = ", ".join(map(str, ("*", *shape)))
            given = tuple(value.shape)
            raise ValueError(f"{place} must have shape ({expected}), got {given}")
        yield value


# Why a space is refused, and what to do.
REASONS = {
    "kind": "this agent has no such actions; PPO, A2C, A3C, IMPALA and PPG take "
    "choices, numbers and both, and a wrapper such as Gymnasium's TransformAction "
    "makes one kind of another",
    "numbers": "it is no row of numbers; leave it out, or make numbers of it, with a "
    "wrapper such as Gymnasium's FilterObservation or TransformObservation",
    "shape": "its shape does not fit; give actions another one with Gymnasium's "
    "TransformAction, or observations with flat_env or ReshapeObservation",
    "bounds": "its bounds do not fit; choose others with gymnasium.wrappers."
    "TransformAction(env, lambda action: action, "
    "gymnasium.spaces.Box(-1, 1, env.action_space.shape))",
    "mask": "it does not tell which type uses which argument; give each type a box "
    "of its own, or a mask= with a row for each type and a column for each argument",
}


class SpaceError(ValueError):
    """A space is refused, for one of ``REASONS``."""


def refused(wanted: str, space: Space, reason: str) -> SpaceError:
    """Return the error that refuses a space.

    Args:
        wanted: What is expected, beginning with the name of the argument.
        space: What came instead.
        reason: The reason, a key of ``REASONS``.
    """
    came = " ".join(str(space).split())
    return SpaceError(f"{wanted}, got {came:.300}: {REASONS[reason]}")


def is_spec(name: str, spec: Any, sizes: Any) -> Fault | None:
    """Find a fault in what is no nest of Box and Discrete."""
    found = list(leaves(spec))
    if found and all(isinstance(x, spaces.Box | spaces.Discrete) for x in found):
        return None
    expected = "be a nest (Tuple, Dict) of Box and Discrete with at least one leaf"
    return Fault(TypeError, name, expected, spec)


Spec = Annotated[Space, is_spec]


def flat(space: Space, observation: Any) -> Tensor:
    """Return a nested observation as one vector for each state."""
    columns = []
    values = unpack(space, observation, "observation")
    for leaf, value in zip(leaves(space), values, strict=True):
        if isinstance(leaf, spaces.Discrete):
            place = value.long() - int(leaf.start)
            if value.is_floating_point() or (place.clamp(0, leaf.n - 1) != place).any():
                last = int(leaf.start + leaf.n) - 1
                raise ValueError(
                    f"observation must be whole and from {leaf.start} to {last}, "
                    f"got {value}"
                )
            columns.append(nn.functional.one_hot(place, int(leaf.n)))
        else:
            shape = leaf.shape or ()
            front = value.shape[: value.ndim - len(shape)]
            columns.append(value.reshape(*front, math.prod(shape)))
    return torch.cat(columns, -1)


def plain_space(space: Space) -> dict[str, Any]:
    """Describe a space by plain values: a nest, or what stands at its ends."""
    if isinstance(space, spaces.Tuple):
        return {"tuple": [plain_space(child) for child in space.spaces]}
    if isinstance(space, spaces.Dict):
        return {"dict": {key: plain_space(x) for key, x in space.spaces.items()}}
    if isinstance(space, spaces.Discrete):
        return {"n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiBinary):
        row = len(space.shape) == 1
        return {"binary": space.shape[0] if row else list(space.shape)}
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = space.nvec.tolist(), space.start.tolist()
        return {"nvec": nvec, "start": start, "dtype": str(space.dtype)}
    if not isinstance(space, spaces.Box):
        raise ValueError(
            "space must be a nest of Tuple, Dict, Discrete, MultiBinary, MultiDiscrete "
            f"and Box, got {space}"
        )
    low, high = space.low.tolist(), space.high.tolist()
    kind = {"shape": list(space.shape), "dtype": str(space.dtype)}
    return {"low": low, "high": high, **kind}


def as_space(plain: AnySpace) -> Space:
    """Build the space that ``plain_space`` has described; return a space as it is."""
    if not isinstance(plain, dict):
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
    if "binary" in plain:
        return spaces.MultiBinary(plain["binary"])
    dtype = np.dtype(plain["dtype"]).type
    if "nvec" in plain:
        return spaces.MultiDiscrete(plain["nvec"], dtype, start=plain["start"])
    low, high = (
        np.array(plain[key], dtype).reshape(plain["shape"]) for key in ("low", "high")
    )
    return spaces.Box(low, high, dtype=dtype)


MODELS = ("qnet", "actor", "critic", "encoder")
Make = TypeVar("Make", bound=Callable[..., Any])


def name_of_model(model: Any) -> str:
    """Return the name of a model's class, or of the function that makes one."""
    return getattr(model, "__qualname__", type(model).__qualname__)


def remembered(make: Make) -> Make:
    """Let a function that builds a policy write down how it was called.

    Spaces come as they are, or by plain values where ``load`` calls it: the function
    gets spaces.
    """
    signature = inspect.signature(make)

    @wraps(make)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        for name in given.arguments:
            if name.endswith("_space"):
                given.arguments[name] = as_space(given.arguments[name])
        policy = make(*given.args, **given.kwargs)
        arguments: dict[str, Any] = {}
        for name, x in given.arguments.items():
            parameter = signature.parameters[name]
            later = parameter.kind is inspect.Parameter.KEYWORD_ONLY
            # An array equals nothing as a whole, and no default is one.
            if later and not isinstance(x, np.ndarray) and x == parameter.default:
                continue
            if name in MODELS:
                arguments.setdefault("models", {})[name] = name_of_model(x)
            elif name.endswith("_space"):
                arguments[name] = plain_space(x)
                # A plain copy, which other processes can be sent.
                vars(policy).setdefault(name, as_space(arguments[name]))
            else:
                arguments[name] = x
        # What the maker itself has written down, under no name yet, says it better.
        name, better = policy.recipe
        policy.recipe = make.__name__, arguments if name else arguments | better
        return policy

    return cast(Make, call)


def as_vectors(observation_space: AnySpace) -> spaces.Box:
    """Return a box of vectors that is given as it is or by plain values."""
    box = as_space(observation_space)
    if not isinstance(box, spaces.Box) or len(box.shape) != 1:
        raise refused("observation_space must be a box of vectors", box, "shape")
    return box


def as_discrete(action_space: AnySpace) -> spaces.Discrete:
    """Return a Discrete space that is given as it is or by plain values."""
    discrete = as_space(action_space)
    if not isinstance(discrete, spaces.Discrete):
        raise refused("action_space must be Discrete", discrete, "kind")
    return discrete


def is_hybrid(action_space: Space) -> bool:
    """Say whether an action has parts, and numbers among them."""
    parts = isinstance(action_space, spaces.Tuple | spaces.Dict)
    return parts and any(isinstance(x, spaces.Box) for x in leaves(action_space))


def open_ended(bound: NDArray[Any]) -> NDArray[Any]:
    """Return bounds that are infinite where the largest number stands for none."""
    if bound.dtype.kind != "f":
        return bound  # the largest integer is a number like any other
    largest = min(np.finfo(bound.dtype).max, np.finfo(np.float32).max)
    return np.where(abs(bound) >= largest, np.copysign(np.inf, bound), bound)


def action_box(space: Space, others: str = "Discrete") -> spaces.Box:
    """Return a space of continuous actions, or raise if it is another one.

    Args:
        space: The space.
        others: What else would have been taken, for the error.
    """
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        wanted, reason = f"be {others} or a Box of floating-point numbers", "kind"
    elif len(space.shape) != 1 or not space.shape[0]:
        wanted, reason = "have one dimension and a number in it", "shape"
    elif not (space.low <= space.high).all():
        wanted, reason = "have lower bounds that are at most the upper ones", "bounds"
    else:
        return space
    raise refused(f"action_space must {wanted}", space, reason)


def bounded_box(space: Space) -> spaces.Box:
    """Return a space of actions that fill a box, or raise if it is another one."""
    box, most = action_box(space), float(np.finfo(np.float32).max) ** 0.25
    ends = np.stack([open_ended(box.low), open_ended(box.high)])
    # Actions that fill a box are computed from its bounds, up to their fourth power.
    if not (abs(ends.astype(np.float64)) < most).all():
        wanted = f"action_space must have bounds below {most:.1e}"
        raise refused(wanted, box, "bounds")
    return box
