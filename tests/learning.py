"""How tests judge an agent that was trained."""

from __future__ import annotations

from collections.abc import Callable


def assert_for_most_seeds(check: Callable[[int], None]) -> None:
    """Check what training with a seed leads to; for two of three seeds it must hold.

    The last digit of a product depends on the processor, and a run that differs in its
    last digits can end elsewhere: each processor has its own luck with a seed. If one
    run in fifteen fails, two of three do so once in eighty times. The third seed is not
    tried where the first two agree.

    Args:
        check: Function that trains with a seed and asserts what came of it.
    """
    failures = []
    for seed in range(3):
        try:
            check(seed)
        except AssertionError as failure:
            failures.append(failure)
        if len(failures) == 2:
            raise ExceptionGroup("two seeds failed", failures)
        if seed + 1 - len(failures) == 2:
            return
