"""A slow and exact projection of distributions, for tests of C51 and Rainbow."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def exact_projection(
    prob: Sequence[float], reward: float, discount: float, low: float, high: float
) -> list[float]:
    """Share out mass with fractions of integers: nothing is rounded."""
    first, last = Fraction(low), Fraction(high)
    atoms = len(prob)
    spacing = (last - first) / (atoms - 1)
    result = [Fraction(0)] * atoms
    for k, mass in enumerate(prob):
        value = Fraction(reward) + Fraction(discount) * (first + k * spacing)
        place = (min(max(value, first), last) - first) / spacing
        for j in range(atoms):
            # A hat over each atom: 1 at the atom, 0 one spacing away.
            result[j] += Fraction(mass) * max(Fraction(0), 1 - abs(place - j))
    return [float(x) for x in result]
