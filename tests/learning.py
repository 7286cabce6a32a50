"""How tests judge an agent that was trained."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def median_of_seeds(train: Callable[[int], float]) -> float:
    """Train with seeds 0, 1 and 2, one after the other; return the middle result.

    The last digit of a product depends on the processor, and a run that differs in its
    last digits can end elsewhere: each processor has its own luck with a seed. If one
    run in fifteen misses a bar, the median of three does so once in eighty times.

    Args:
        train: Function from a seed to how good the trained agent is.
    """
    return float(np.median([train(seed) for seed in range(3)]))
