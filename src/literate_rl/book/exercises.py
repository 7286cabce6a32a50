# Generated from chapters/book/exercises.py (edit there); digest 2ac06b3364fb80d0
"""Exercises: what compares a reader's answer with the right one."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import shorten
from typing import Any

import numpy as np
import torch

from literate_rl.ground.networks import randomness_kept

__all__ = ["grade"]


def as_numbers(*values: Any) -> list[torch.Tensor] | None:
    """Return values as tensors, or None if one of them is no array of numbers."""
    try:
        return [torch.as_tensor(x).cpu().double() for x in values]
    except (TypeError, ValueError, RuntimeError):
        return None


def apart(got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Say where numbers differ by more than the order of a sum can explain."""
    return ~got.isclose(wanted, rtol=1e-4, atol=1e-6, equal_nan=True)


def agree(got: Any, wanted: Any) -> bool:
    """Say whether two results have the same shape and nearly the same numbers."""
    if isinstance(wanted, str):
        return isinstance(got, str) and got == wanted
    if isinstance(wanted, tuple | list):
        if isinstance(got, torch.Tensor | np.ndarray) and got.ndim:
            got = list(got)
        same_length = isinstance(got, tuple | list) and len(got) == len(wanted)
        return same_length and all(map(agree, got, wanted))
    # The rest are numbers, arrays and tensors. An empty answer is none of these.
    pair = as_numbers(got, wanted)
    if pair is None or pair[0].shape != pair[1].shape:
        return False
    return not apart(*pair).any()


def one_line(value: Any, width: int = 60) -> str:
    """Return how a value prints, on one short line; all of a text."""
    if isinstance(value, str):
        return repr(value)
    return shorten(repr(value), width, placeholder=" …")


def difference(got: Any, wanted: Any) -> str:
    """Say in words how a result differs from the one that was expected."""
    if (pair := as_numbers(got, wanted)) is None:
        several = isinstance(got, tuple | list) and isinstance(wanted, tuple | list)
        if not several or len(got) != len(wanted):
            return whole(got, wanted)
        place = [*map(agree, got, wanted)].index(False)
        return f"{difference(got[place], wanted[place])} (result {place})"
    given, sought = pair
    if given.shape != sought.shape or sought.numel() < 2:
        return whole(got, wanted)
    differs = apart(given, sought)
    where = differs.nonzero()[0].tolist()
    numbers = f"{given[tuple(where)]:.6g} instead of {sought[tuple(where)]:.6g}"
    count = f"{int(differs.sum())} of {differs.numel()} entries"
    return f"differs in {count}, first at {where}: {numbers}"


def whole(got: Any, wanted: Any) -> str:
    """Say what was given and what was expected."""
    # As short as possible, and so long that one sees a difference.
    for width in (60, 120, 240, 1000):
        given, sought = one_line(got, width), one_line(wanted, width)
        if given != sought:
            break
    return f"gave {given}, expected {sought}"


@randomness_kept()
def grade(
    answer: Callable[..., Any],
    expected: Callable[..., Any],
    first: tuple[Any, ...] | dict[str, tuple[Any, ...]],
    *others: tuple[Any, ...],
) -> None:
    """Compare an answer with a correct function, and print one line.

    Each case is a tuple of positional arguments; a dictionary gives them names. An
    answer that is wrong, that raises or that is still empty is reported, never raised.
    """
    if isinstance(first, dict):
        named = [(f"the answer to {name!r}", case) for name, case in first.items()]
    else:
        cases = first, *others
        named = [(f"answer({', '.join(map(one_line, x))})", x) for x in cases]
    for call, case in named:
        wanted = expected(*case)
        # Whatever a learner's code does wrong is an answer that is not right yet.
        try:
            got = answer(*case)
        except Exception as error:
            print(f"Not yet: {call} raised {type(error).__name__}: {error}")
            return
        # The right answer is shown only after an attempt.
        if got is ...:
            print("Not yet: the answer is still empty.")
            return
        if not agree(got, wanted):
            print(f"Not yet: {call} {difference(got, wanted)}.")
            return
    most = f"all {len(named)} cases agree" if len(named) > 1 else "it agrees"
    print(f"Right: {most}.")
