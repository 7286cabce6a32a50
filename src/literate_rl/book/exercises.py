# Generated from chapters/book/exercises.py (edit there); digest 12acc697a0068ff6
"""Exercises: what compares a reader's answer with the right one."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import shorten
from typing import Any

import torch

from literate_rl.ground.networks import randomness_kept

__all__ = ["grade"]


def one_line(value: Any) -> str:
    """Return how a value prints, on one short line; all of a text."""
    text = repr(value)
    return text if isinstance(value, str) else shorten(text, 60, placeholder=" …")


def difference(got: Any, wanted: Any) -> str:
    """Say in words how a result differs from the one that was expected, or ''."""
    words = f"gave {one_line(got)}, expected {one_line(wanted)}"
    if isinstance(wanted, str):
        return "" if isinstance(got, str) and got == wanted else words
    if isinstance(wanted, tuple | list):
        try:
            parts = list(got)
        except TypeError:
            return words
        if len(parts) != len(wanted):
            return f"{words}: {len(parts)} results, not {len(wanted)}"
        each = enumerate(map(difference, parts, wanted))
        return next((f"{told} (result {k})" for k, told in each if told), "")
    # The rest are numbers, arrays and tensors. An empty answer is none of these.
    try:
        given, sought = (torch.as_tensor(x).cpu().double() for x in (got, wanted))
    except (TypeError, ValueError, RuntimeError):
        return words
    if given.shape != sought.shape:
        return f"{words}: shape {[*given.shape]}, not {[*sought.shape]}"
    # By more than the order of a sum can explain.
    differs = ~given.isclose(sought, rtol=1e-4, atol=1e-6, equal_nan=True)
    if not differs.any():
        return ""
    if sought.numel() < 2:
        return words
    where = differs.nonzero()[0].tolist()
    numbers = f"{given[*where]:.6g} instead of {sought[*where]:.6g}"
    count = f"{int(differs.sum())} of {differs.numel()} entries"
    return f"differs in {count}, first at {where}: {numbers}"


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
        if told := difference(got, wanted):
            print(f"Not yet: {call} {told}.")
            return
    most = f"all {len(named)} cases agree" if len(named) > 1 else "it agrees"
    print(f"Right: {most}.")
