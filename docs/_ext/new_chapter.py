"""New chapter: write its skeleton, tests, API page and entry in the order.

``make chapter NAME=bandits`` makes a chapter of the path, ``NAME=learners/bandits`` one
of a floor of the package. Everything that it writes is there to be overwritten by you.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from order import listed
from reference import PAGE as REFERENCE
from tangle import FLOORS, ROOT, TangleError, is_module_name, sync, write

CHAPTER = '''\
# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # {title}
#
# **Which question does this chapter answer?** Say in two sentences what the reader will
# be able to do, how long it takes and what is needed.

# %% tags=["export", "hide-input"]
"""{title}: one line that says what the module is for."""

from __future__ import annotations

from torch import Tensor

__all__ = ["{name}_mean"]

# %% [markdown]
# ## The idea
#
# First the picture, then the mathematics:
#
# $$
# m = \\frac{{1}}{{B}} \\sum_b x_b
# $$ ({label}-mean)


# %% tags=["export"]
def {name}_mean(x: Tensor) -> Tensor:
    """Say what it means, its unit, its defaults and its source."""
    # A comment is the text beside the line below it. This one computes
    # {{eq}}`{label}-mean`.
    return x.mean()


# %% [markdown]
# ## See it
#
# Say what to notice.

# %%
import torch

print({name}_mean(torch.arange(4.0)).item())

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: by hand
#
# Return the mean of a list.

# %%
from literate_rl.book.exercises import grade


def answer(numbers):
    return ...


grade(answer, lambda numbers: {name}_mean(torch.tensor(numbers)).item(), [1.0, 3.0])


# %% tags=["hide-cell"] jupyter={{"source_hidden": true}}
def answer(numbers):
    return sum(numbers) / len(numbers)


grade(answer, lambda numbers: {name}_mean(torch.tensor(numbers)).item(), [1.0, 3.0])

# %% [markdown]
# ## References
#
# Where to read on, in one line.
'''

TESTS = '''\
"""{title}: say what these tests hold."""

import pytest
import torch

from literate_rl.{module} import {name}_mean


@pytest.mark.equation("{label}-mean")
def test_the_mean_is_the_sum_over_the_number() -> None:
    x = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)
    assert {name}_mean(x).item() == 3.0
'''

PAGE = """\
# literate_rl.{module}

```{{eval-rst}}
.. automodule:: literate_rl.{module}
```
"""


def make_chapter(place: str, root: Path = ROOT) -> list[Path]:
    """Write the files of a new chapter; return them. Nothing is overwritten."""
    possible = re.fullmatch(rf"(({'|'.join(FLOORS)})/)?[a-z][a-z0-9_]*", place)
    if not possible or not is_module_name(Path(place).name):
        raise TangleError(
            f"NAME must be a module's name, or a floor/ and a name, got {place!r}"
        )
    name = place.split("/")[-1]
    words = {
        "name": name,
        "module": place.replace("/", "."),
        "label": name.replace("_", "-"),
        "title": name.replace("_", " ").capitalize(),
    }
    texts = {
        root / f"chapters/{place}.py": CHAPTER,
        root / f"tests/test_{name}.py": TESTS,
        root / f"docs/api/{place}.md": PAGE,
    }
    if taken := [path for path in texts if path.exists()]:
        raise TangleError(f"{taken[0].relative_to(root)} exists: choose another NAME")
    for path, text in texts.items():
        write(path, text.format(**words))
    index = root / "index.md"
    write(index, with_entry(index.read_text("utf-8"), f"chapters/{place}", root))
    # The last group has it until somebody knows a better one.
    reference = root / REFERENCE
    listing = reference.read_text("utf-8").removesuffix("```\n")
    write(reference, f"{listing}{words['module']}: {name}_mean\n```\n")
    return [*texts, index, reference]


def with_entry(index: str, page: str, root: Path) -> str:
    """Return index.md with a page behind the last chapter of its kind."""
    shelf = page.rpartition("/")[0]
    last = [each for _, each in listed(root) if each.rpartition("/")[0] == shelf][-1]
    return index.replace(f"\n{last}\n", f"\n{last}\n{page}\n")


def main() -> int:
    """Run from the command line; return the exit code."""
    if len(sys.argv) != 2:
        print("say which chapter: make chapter NAME=bandits", file=sys.stderr)
        return 1
    try:
        made = make_chapter(sys.argv[1]) + sync()
    except TangleError as error:
        print(error, file=sys.stderr)
        return 1
    for path in made:
        print(f"{path.relative_to(ROOT)}: written")
    print("Write the chapter, then: make format, make check, make html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
