"""Nests: leaves of spaces, tuples and dictionaries of tensors, spaces in files."""

from __future__ import annotations

import json
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import example, given
from hypothesis import strategies as st

from literate_rl.ground.nests import (
    Spec,
    as_space,
    ends,
    flat,
    leaves,
    map_nest,
    open_ended,
    pack,
    plain_space,
    unpack,
)
from literate_rl.ground.signatures import checked

DISCRETE = st.builds(spaces.Discrete, st.integers(1, 4), start=st.integers(-3, 3))
BOX = st.builds(
    lambda shape, bound, dtype: spaces.Box(dtype(-bound), dtype(bound), shape, dtype),
    st.lists(st.integers(0, 3), max_size=2).map(tuple),
    st.sampled_from([1.0, 720.0, np.inf]),
    st.sampled_from([np.float32, np.float64]),
)


def nests_of(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw spaces; in dictionaries the keys come in any order."""
    return st.recursive(
        leaf,
        lambda child: st.one_of(
            st.lists(child, min_size=1, max_size=3).map(spaces.Tuple),
            st.lists(
                st.tuples(st.sampled_from("zyx"), child),
                min_size=1,
                unique_by=lambda pair: pair[0],
            ).map(spaces.Dict),
        ),
        max_leaves=5,
    )


NEST = nests_of(DISCRETE | BOX)


def ends_of(space: spaces.Space, nest: Any) -> list[Any]:
    """What stands at the ends of a nest, in the order of its space, by hand."""
    if isinstance(space, spaces.Dict):
        return [x for key in space.spaces for x in ends_of(space[key], nest[key])]
    if isinstance(space, spaces.Tuple):
        pairs = zip(space.spaces, nest, strict=True)
        return [x for child, part in pairs for x in ends_of(child, part)]
    return [nest]


def batch_of(samples: list[Any], space: spaces.Space) -> Any:
    """Return a batch of elements: the nest of the space with tensors (size, *)."""
    columns = zip(*(ends_of(space, sample) for sample in samples), strict=True)
    return pack(space, (torch.as_tensor(np.stack(column)) for column in columns))


# --- Leaves ---------------------------------------------------------------------------


@given(NEST, st.integers(1, 3))
def test_a_nest_that_is_taken_apart_can_be_put_together(space, size):
    nest = batch_of([space.sample() for _ in range(size)], space)
    parts = list(unpack(space, nest, "nest"))
    for other in (ends_of(space, nest), ends(nest)):
        assert all(x is y for x, y in zip(parts, other, strict=True))
    assert str(pack(space, iter(parts))) == str(nest)


TWO = spaces.Tuple((spaces.Discrete(2), spaces.Dict({"far": spaces.Box(0, 1, (3,))})))


@pytest.mark.parametrize(
    ("nest", "error", "message"),
    [
        (torch.zeros(1), ValueError, r"x must have \[0, 1\], got Tensor"),
        ((torch.zeros(1), {"near": 1}), ValueError, r"x\[1\] must have \['far'\]"),
        (
            (torch.zeros(1), {"far": torch.zeros(1, 2)}),
            ValueError,
            r"x\[1\]\['far'\] must have shape \(\*, 3\), got \(1, 2\)",
        ),
    ],
)
def test_a_nest_of_another_form_is_named(nest, error, message):
    with pytest.raises(error, match=message):
        list(unpack(TWO, nest, "x"))


# --- Nests of tensors -----------------------------------------------------------------

Pair = namedtuple("Pair", ["left", "right"])


def test_named_tuples_keep_their_names_and_dictionaries_are_met_by_key():
    tree = Pair(1, {"a": (2,), "b": Pair(3, ())})
    other = Pair(10, {"b": Pair(30, ()), "a": (20,)})
    total = map_nest(lambda x, y: x + y, tree, other)
    assert str(total) == str(Pair(11, {"a": (22,), "b": Pair(33, ())}))
    # Nests of two lengths are not cut to the shorter.
    for longer in ((1,), (1, 2, 3)):
        with pytest.raises(ValueError, match=r"zip\(\)"):
            map_nest(lambda x, y: x + y, (1, 2), longer)


# --- One vector for each observation --------------------------------------------------


@given(NEST, st.integers(1, 3), st.booleans())
def test_a_flat_observation_is_that_of_gymnasium(space, size, with_time):
    samples = [space.sample() for _ in range(size)]
    nest = batch_of(samples, space)
    rows = flat(space, map_nest(lambda x: x[None], nest) if with_time else nest)
    rows = rows[0] if with_time else rows
    assert rows.shape == (size, spaces.flatdim(space))
    for row, sample in zip(rows, samples, strict=True):
        np.testing.assert_allclose(row, spaces.flatten(space, sample))


@pytest.mark.parametrize("value", [[-2], [2], [0, 3]])
def test_a_discrete_observation_out_of_range_is_named(value):
    space = spaces.Discrete(3, start=-1)
    assert flat(space, torch.tensor([-1, 1])).tolist() == [[1, 0, 0], [0, 0, 1]]
    message = "observation must be whole and from -1 to 1, got tensor"
    with pytest.raises(ValueError, match=message):
        flat(space, torch.tensor(value))
    with pytest.raises(ValueError, match=message):
        flat(space, torch.zeros(2))


@checked
def takes(spec: Spec) -> None:
    """A function whose signature asks for a specification."""


@pytest.mark.parametrize("empty", [spaces.Tuple(()), spaces.Dict({})])
def test_a_nest_without_leaves_is_named(empty):
    with pytest.raises(TypeError, match=r"spec must be .* at least one leaf"):
        takes(spec=empty)


# --- Spaces in files ------------------------------------------------------------------


MANY = [
    spaces.MultiBinary(3),
    spaces.MultiBinary((2, 2)),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete([[2, 3]], np.int32, start=[[1, -1]]),
]


@given(nests_of(DISCRETE | BOX | st.sampled_from(MANY)))
@example(spaces.Tuple(MANY))
def test_a_space_comes_back_from_plain_values(space):
    again = through_a_file(space)
    assert again == space
    # The order counts, and a Dict space compares without it.
    for one, other in zip(leaves(again), leaves(space), strict=True):
        assert (one, one.dtype, one.shape) == (other, other.dtype, other.shape)
        assert np.all(getattr(one, "start", 0) == getattr(other, "start", 0))
    assert as_space(space) is space


def through_a_file(space: spaces.Space) -> spaces.Space:
    """Return a space after numbers, strings, lists and dictionaries."""
    return as_space(json.loads(json.dumps(plain_space(space))))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_bounds_that_mean_none_come_back_as_they_are(kind):
    most = np.finfo(kind).max
    space = spaces.Box(kind([-most, -np.inf, 0]), kind([most, 3, np.inf]), dtype=kind)
    again = through_a_file(space)
    assert again == space
    wanted = [-np.inf, -np.inf, 0.0], [np.inf, 3.0, np.inf]
    for bound, found in zip((again.low, again.high), wanted, strict=True):
        assert open_ended(bound).tolist() == found
        assert open_ended(bound).dtype == kind
