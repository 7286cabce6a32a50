"""Chapters on another processor: do their claims hold with other rounding?

A chapter trains its agents while it is executed. Another processor rounds differently,
and after some thousand updates the agent is another one. What the chapter says of it
must hold all the same. So a chapter is executed with first weights that differ in the
seventh digit, which has the same effect.
"""

from __future__ import annotations

import random
import re
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

CHAPTERS = Path(__file__).parents[1] / "chapters"

# Weights that were equal stay equal: the change follows from the weight alone.
OTHER_ROUNDING = """
import torch

def then_change(initialise):
    def both(*args, **arguments):
        result = initialise(*args, **arguments)
        first = args[0]
        weights = first.parameters() if hasattr(first, "parameters") else [first]
        with torch.no_grad():
            for weight in weights:
                weight.mul_(1 + 1e-6 * torch.sin(1e5 * weight + {seed}))
        return result
    return both

for layer in (torch.nn.Linear, torch.nn.Conv2d):
    layer.reset_parameters = then_change(layer.reset_parameters)
torch.nn.init.orthogonal_ = then_change(torch.nn.init.orthogonal_)
"""


def executed(chapter: str, seed: int) -> str:
    """Return what fails when a chapter is executed, or nothing."""
    path = CHAPTERS / f"{chapter}.py"
    notebook = jupytext.read(path)
    first = nbformat.v4.new_code_cell(OTHER_ROUNDING.format(seed=seed))
    notebook.cells.insert(0, first)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    where = {"metadata": {"path": str(path.parent)}}
    try:
        NotebookClient(notebook, timeout=1200, resources=where).execute()
    except CellExecutionError as error:
        # Of the coloured traceback only the line that failed.
        plain = re.sub(r"\x1b\[[\d;]*m", "", error.traceback)
        (line,) = re.findall(r"^-+> +\d+ (.*)$", plain, re.MULTILINE)[:1] or ("",)
        return f"{chapter}: {error.ename}: {error.evalue or line.strip()}"
    return ""


def trials(seed: int, count: int) -> list[dict[str, Any]]:
    """Execute chapters, one after the other; return a row for each."""
    rng = random.Random(seed)
    files = sorted(CHAPTERS.rglob("*.py"))
    chapters = [path.relative_to(CHAPTERS).with_suffix("").as_posix() for path in files]
    rows = []
    for chapter in islice(cycle(chapters), count):
        why = executed(chapter, rng.randrange(1000))
        rows.append({"what": "claims of a chapter", "held": not why, "why": why})
    return rows
