"""Spaces of hybrid actions: masks that they tell, and nests that are filled."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from test_nests import BOX, DISCRETE, ends_of, nests_of

from literate_rl.data.hybrid_space import fill_space, read_hybrid_space
from literate_rl.ground.nests import first_row, leaves, map_nest

# One place for the type; boxes of any shape and in any place.
BOXES = BOX.filter(lambda box: box.shape != ())


@st.composite
def hybrid(draw: st.DrawFn) -> spaces.Space:
    """Draw a nest with one discrete leaf among some boxes."""
    parts = draw(st.lists(nests_of(BOXES), max_size=3))
    parts.insert(draw(st.integers(0, len(parts))), draw(DISCRETE))
    if draw(st.booleans()):
        return spaces.Tuple(parts)
    return spaces.Dict(list(zip("zyxw", parts, strict=False)))


@given(hybrid(), st.integers(1, 3), st.integers(0, 2**31))
def test_types_and_columns_fill_the_space(space, size, seed):
    rng = np.random.default_rng(seed)
    kinds = next(x for x in leaves(space) if isinstance(x, spaces.Discrete))
    boxes = [x for x in leaves(space) if isinstance(x, spaces.Box)]
    action_type = rng.integers(kinds.n, size=size)
    width = sum(spaces.flatdim(box) for box in boxes)
    args = rng.uniform(-1, 1, (size, width))
    nest = fill_space(space, action_type, iter(args.T))
    values = ends_of(space, nest)
    # Each leaf has its type, its shape and, in turn, its columns.
    (types,) = [
        x
        for x, leaf in zip(values, leaves(space), strict=True)
        if isinstance(leaf, spaces.Discrete)
    ]
    np.testing.assert_array_equal(types, action_type + kinds.start)
    rest = [x for x in values if x is not types]
    assert [x.dtype for x in rest] == [box.dtype for box in boxes]
    assert [x.shape for x in rest] == [(size, *box.shape) for box in boxes]
    joined = np.concatenate(
        [np.zeros((size, 0)), *(x.reshape(size, -1) for x in rest)], 1
    )
    np.testing.assert_allclose(joined, args, atol=1e-6)
    for row in range(size):
        one = first_row(space, map_nest(lambda x, row=row: x[row:], nest))
        assert space.contains(one)


def test_boxes_by_type_are_told_from_other_spaces():
    box, three = spaces.Box(-1, 1, (1,)), spaces.Discrete(3)
    by_type = spaces.Tuple((three, spaces.Tuple((box,) * 3)))
    assert torch.equal(read_hybrid_space(by_type)[0], torch.eye(3).bool())
    for other in (
        spaces.Tuple((three, box)),
        spaces.Tuple((three, spaces.Tuple((box, box)))),
        spaces.Tuple((three, spaces.Tuple((box, box, three)))),
        spaces.Dict({"what": three, "how": spaces.Tuple((box,) * 3)}),
    ):
        with pytest.raises((TypeError, ValueError), match=r"space must|mask must be"):
            read_hybrid_space(other)
