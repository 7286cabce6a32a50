# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Exercises
#
# **How can a book say whether an answer is right?** It has the right answer as a function, and
# computes both on a few cases. Then there are many right answers: whatever gives the same
# numbers.
#
# Nobody has to read this page to follow the book. It is for those who write an exercise.

# %% tags=["export", "hide-input"]
"""Exercises: what compares a reader's answer with the right one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from textwrap import shorten
from typing import Any

import numpy as np
import torch

__all__ = ["grade"]

# %% [markdown]
# ## Three kinds
#
# An exercise comes in three kinds, and *predict first* needs no code ({doc}`pictures`). The other
# two are graded by what the reader's code computes. *Find the bug*: a function is broken, the
# reader mends it, and it is compared with the right one. *Experiment*: the reader changes a
# setting, and the run says whether it was a good idea.
#
# ```python
# grade(mended, reference, *cases)
# grade(lambda: mean_return(settings) >= 475, lambda: True, ())
# ```
#
# ## When two answers are the same
#
# A list may stand for a tensor, a whole number for a float, and whoever adds in another order gets
# another last digit. None of this makes an answer wrong. A shape does: a column is not a row.


# %% tags=["export"]
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


# %%
row, column = torch.ones(3), torch.ones(3, 1)
print("a list and a row: ", agree([1, 1, 1 + 1e-7], row))
print("a column and a row:", agree(column, row))

# %% tags=["claims"]
assert agree([1, 1, 1 + 1e-7], row)
assert not agree(column, row)

# %% [markdown]
# ## The verdict
#
# The verdict is one line, right or wrong. It names the first case that differs, with what was
# given and what was expected. The values may be long tensors, so each is shortened.


# %% tags=["export"]
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


# %%
def answer(x):
    return x + x


grade(answer, lambda x: x**2, (2,), (3,))

# %% [markdown]
# **Notice** that the first case is right by chance. One case is seldom enough.

# %% tags=["claims"]
assert answer(2) == 2**2
assert answer(3) != 3**2

# %% [markdown]
# ## References
#
# [nbgrader](https://nbgrader.readthedocs.io) grades whole notebooks, by assertions that a reader
# need not see.
