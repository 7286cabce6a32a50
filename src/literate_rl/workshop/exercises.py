# Generated from chapters/workshop/exercises.py (edit there); digest 5f0d59edb8c6abec
"""Exercises: what compares a reader's answer with the right one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from textwrap import shorten
from typing import Any

import numpy as np
import torch

__all__ = ["grade"]


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
    try:
        left, right = (torch.as_tensor(x).cpu().double() for x in (got, wanted))
    except (TypeError, ValueError, RuntimeError):
        return False
    close = partial(torch.allclose, rtol=1e-4, atol=1e-6, equal_nan=True)
    return left.shape == right.shape and close(left, right)


def one_line(value: Any, width: int = 60) -> str:
    """Return how a value prints, on one short line; all of a text."""
    if isinstance(value, str):
        return repr(value)
    return shorten(repr(value), width, placeholder=" …")


def grade(
    answer: Callable[..., Any],
    expected: Callable[..., Any],
    first: tuple[Any, ...],
    *others: tuple[Any, ...],
) -> None:
    """Compare an answer with a correct function, and print one line.

    Each case is a tuple of positional arguments. An answer that is wrong, that raises
    or that is still empty is reported, never raised.
    """
    for case in (first, *others):
        wanted = expected(*case)
        call = f"answer({', '.join(map(one_line, case))})"
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
            # As short as possible, and so long that one sees a difference.
            for width in (60, 120, 240, 1000):
                given, sought = one_line(got, width), one_line(wanted, width)
                if given != sought:
                    break
            print(f"Not yet: {call} gave {given}, expected {sought}.")
            return
    print(f"Right: all {1 + len(others)} cases agree.")
