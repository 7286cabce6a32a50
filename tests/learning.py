"""How tests judge an agent that was trained."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def assert_most_seeds_reach(least: float, train: Callable[[int], float]) -> None:
    """Train with seeds 0 and 1, and with 2 if they disagree; two must reach a bar.

    The last digit of a product depends on the processor, and a run that differs in its
    last digits can end elsewhere: each processor has its own luck with a seed. If one
    run in fifteen misses a bar, two of three do so once in eighty times.

    Args:
        least: The bar.
        train: Function from a seed to how good the trained agent is.
    """
    results = [train(seed) for seed in range(2)]
    if min(results) < least <= max(results):
        results.append(train(2))
    assert np.median(results) >= least, results
