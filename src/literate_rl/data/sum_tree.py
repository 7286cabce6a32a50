# Generated from chapters/replay.py (edit there); digest ae947f84460a980d
"""Preferences: priorities in a tree of sums, and weights that undo them."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor

from literate_rl.ground.signatures import (
    Count,
    Float,
    Fraction,
    Int,
    check_finite,
    checked,
)

__all__ = ["SumTree", "importance_weights"]


class SumTree:
    """Masses, the sums of their groups, the sums of those groups, and so on.

    Args:
        capacity: Number of masses, all zero at first.
        branching: Members of a group.
        root: The most members that the top group, the root, may have.

    Attributes:
        levels: Groups ``(groups, members)``: the root, which is one group, and so on
            down to the masses.
    """

    @checked
    def __init__(
        self,
        capacity: Count,
        branching: Annotated[int, Ge(2)] = 16,
        root: Count = 4096,
    ) -> None:
        self.branching = branching
        self.levels: list[NDArray[np.float64]] = []
        # From the masses up, until a level is small enough to be the root. The last
        # group of a level is filled up with zeros.
        size: int = capacity
        while size > root:
            size = -(-size // branching)
            self.levels.insert(0, np.zeros((size, branching)))
        self.levels.insert(0, np.zeros((1, size)))

    @property
    def mass(self) -> NDArray[np.float64]:
        """The masses, as a view, with some zeros after the last."""
        return self.levels[-1].reshape(-1)

    @property
    def total(self) -> float:
        """The sum of all masses."""
        return float(self.levels[0].sum())

    @checked
    def update(self, index: Int[np.ndarray, "N"], mass: Float[np.ndarray, "N"]) -> None:
        """Change some masses; where an index comes twice, the last one counts."""
        # From the masses up to the root, every group that has changed is added up again
        # {eq}`replay-sums`. (Adding only the difference would save little and let
        # rounding errors build up in the sums.)
        sums: Any = mass
        for level in self.levels[:0:-1]:
            level.reshape(-1)[index] = sums
            index = index // self.branching
            sums = level.take(index, 0).sum(1)
        self.levels[0][0, index] = sums

    @checked
    def find(self, mark: Float[np.ndarray, "N"]) -> NDArray[Any]:
        """Return which mass each mark falls on, from 0 to a ``total`` above 0."""
        # In the root all marks look at the same ends, so one binary search will do.
        # Rounding may put a mark at the very end, where no mass is; move it just below.
        ends = self.levels[0][0].cumsum()
        mark = np.minimum(mark, np.nextafter(ends[-1], 0.0))
        index: NDArray[Any] = ends.searchsorted(mark, side="right")
        mark = mark - np.where(index > 0, ends.take(index - 1), 0.0)

        # One step of the walk {eq}`replay-walk` for each level below, now with a
        # group for each mark.
        first = np.arange(len(mark)) * self.branching
        for level in self.levels[1:]:
            ends = level.take(index, 0).cumsum(1)
            mark = np.minimum(mark, np.nextafter(ends[:, -1], 0.0))
            member = (ends > mark[:, None]).argmax(1)
            begin = ends.take(first + member - 1)
            mark = mark - np.where(member > 0, begin, 0.0)
            index = index * self.branching + member
        return index


@checked
def importance_weights(
    probability: Float[Tensor, "B"], count: Count, beta: Fraction = 1.0
) -> Float[Tensor, "B"]:
    """Return the weights that undo a preference, the largest of them 1.

    Args:
        probability: The probability of each of these entries in one draw.
        count: Number of entries in the memory.
        beta: How far the preference is undone; 1 is fully.

    Source: Schaul et al. 2016, section 3.4.
    """
    # Here is {eq}`replay-weight`. An entry of probability zero cannot have been drawn;
    # its infinite weight would give it away here.
    weight = (count * probability) ** -beta
    weight = weight / weight.max()
    check_finite(weight, probability=probability)
    return weight
