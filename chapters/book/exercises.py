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
from textwrap import shorten
from typing import Any

import torch

from literate_rl.ground.networks import randomness_kept

__all__ = ["grade"]

# %% [markdown]
# ## Three kinds
#
# An exercise comes in three kinds, and *predict first* needs no code ({doc}`/chapters/book/pictures`). The other
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


# %%
row, column = torch.ones(3), torch.ones(3, 1)
print("a list: ", difference([1, 1, 1 + 1e-7], row) or "the same")
print("a column:", difference(column, row))

# %% tags=["claims"]
assert not difference([1, 1, 1 + 1e-7], row)
assert difference(column, row)

# %% [markdown]
# ## The verdict
#
# The verdict is one line, right or wrong. It names the first case that differs, by its name or by
# its arguments. Of two arrays of the same shape it tells the first entry that differs, and how
# many do; of anything else, what was given and what was expected, shortened.


# %% tags=["export"]
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
