"""What the pages train while they run, once more with twenty seeds.

A page that trains an agent asserts a bound, and another processor rounds another way:
then the run is another one, as with another seed. So ``python -m benchmarks.live
[PAGE …]`` runs the cells behind each claim of ``LIVE`` with twenty other seeds, holds
the claim itself to each of them, and stores the number that it is about in
``results/learning/live.csv``. A stopped run goes on; a claim whose cells have changed
starts over. ``--quick`` runs one seed of each and stores nothing.
"""

from __future__ import annotations

import argparse
import ast
import functools
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np

from benchmarks.harness import provenance
from benchmarks.learning import LEARNING
from benchmarks.store import read_table, write_table

CHAPTERS = Path(__file__).parents[1] / "chapters"
FILE = LEARNING / "live.csv"
COLUMNS = ("page", "claim", "cells", "seed", "number")
SEEDS = range(1, 21)
# Numbers by page, as they stand in a cell of claims.
LIVE: dict[str, tuple[str, ...]] = {
    "contracts": ('trained["fixed"][-20:].mean()',),
    "encoders": ('right_elsewhere["the largest of each map"]',),
    "hybrid_ppo": ("returns.mean()",),
    "impala": ("rows[-100:, 1].max()",),
    "policy_gradient": ("sum(lengths[-50:]) / 50",),
    "ppg": ("min(first[-1] / first[0], second[-1] / second[0])",),
    "ppo": ("pendulum_returns.mean()",),
}


class Cell(NamedTuple):
    """A code cell of a page: is it one of claims, and what does it say?"""

    claims: bool
    tree: ast.Module

    @property
    def uses(self) -> set[str]:
        """The names that it reads."""
        nodes = [x for x in ast.walk(self.tree) if isinstance(x, ast.Name)]
        return {x.id for x in nodes if isinstance(x.ctx, ast.Load)}

    @property
    def makes(self) -> set[str]:
        """The names that it binds."""
        return set(bound(self.tree.body))

    @property
    def changes(self) -> set[str]:
        """The names of what it trains or writes into."""
        found = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and node.args:
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name in ("fit", "train") and isinstance(node.args[0], ast.Name):
                    found.add(node.args[0].id)
            elif isinstance(node, ast.Attribute | ast.Subscript):
                owner: Any = node
                while isinstance(owner, ast.Attribute | ast.Subscript):
                    owner = owner.value
                if isinstance(node.ctx, ast.Store) and isinstance(owner, ast.Name):
                    found.add(owner.id)
        return found


def bound(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind, those in functions left out."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
            continue
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                yield part.id
            elif isinstance(part, ast.alias):
                yield (part.asname or part.name).split(".")[0]


@functools.cache
def cells_of(page: str) -> list[Cell]:
    """Return the code cells of a page."""
    text = "\n" + (CHAPTERS / f"{page}.py").read_text("utf-8")
    found = []
    for part in text.split("\n# %%")[1:]:
        head, _, code = part.partition("\n")
        if "[markdown]" not in head:
            found.append(Cell('"claims"' in head, ast.parse(code)))
    return found


def behind(page: str, claim: str) -> list[Cell]:
    """Return the cells that a claim stands on, and at the end the cell that says it."""
    cells, said = cells_of(page), ast.unparse(ast.parse(claim))
    places = [
        place
        for place, cell in enumerate(cells)
        if cell.claims and said in ast.unparse(cell.tree)
    ]
    if len(places) != 1:
        raise ValueError(f"{page}: {len(places)} cells of claims say {claim!r}, not 1")
    needed, kept = set(cells[places[0]].uses), [cells[places[0]]]
    for cell in reversed(cells[: places[0]]):
        if needed & (cell.makes | cell.changes) and not cell.claims:
            needed = (needed - cell.makes) | cell.uses
            kept.append(cell)
    # What an earlier cell of claims imports is there, too.
    imports = [
        line
        for cell in cells[: places[0]]
        if cell.claims
        for line in cell.tree.body
        if isinstance(line, ast.Import | ast.ImportFrom) and needed & {*bound([line])}
    ]
    kept.append(Cell(False, ast.Module(imports, [])))
    return kept[::-1]


class Shifted(ast.NodeTransformer):
    """Adds a number to each seed that a cell names."""

    def __init__(self, by: int) -> None:
        self.by = by

    def moved(self, node: ast.expr) -> ast.expr:
        """Return ``node + by``."""
        return ast.BinOp(node, ast.Add(), ast.Constant(self.by))

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        """Move the seed in a dictionary of settings."""
        self.generic_visit(node)
        for place, key in enumerate(node.keys):
            if isinstance(key, ast.Constant) and key.value == "seed":
                node.values[place] = self.moved(node.values[place])
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Move the seed of a call."""
        self.generic_visit(node)
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in ("manual_seed", "seed_everything", "default_rng") and node.args:
            node.args[0] = self.moved(node.args[0])
        for word in node.keywords:
            if word.arg == "seed" and not isinstance(word.value, ast.Name):
                word.value = self.moved(word.value)
        return node


def fingerprint(cells: list[Cell]) -> str:
    """Return a digest of code, without comments and line breaks."""
    text = "\n".join(filter(None, (ast.unparse(cell.tree) for cell in cells)))
    return sha256(text.encode()).hexdigest()[:16]


def run(page: str, claim: str, seed: int) -> float:
    """Run the cells behind a claim with other seeds; return its number."""
    # A module of its own, because annotations are looked up in one.
    sys.modules["live"] = ModuleType("live")
    names = vars(sys.modules["live"])
    for cell in behind(page, claim):
        shifted = Shifted(100 * seed).visit(ast.parse(ast.unparse(cell.tree)))
        exec(compile(ast.fix_missing_locations(shifted), page, "exec"), names)
    return float(np.asarray(eval(claim, names)))


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live")
    parser.add_argument("pages", nargs="*", default=list(LIVE), metavar="PAGE")
    parser.add_argument("--quick", action="store_true", help="one seed, not stored")
    arguments = parser.parse_args()
    mpl.use("agg")
    stored = read_table(FILE)[0] if FILE.exists() else []
    for page in arguments.pages:
        for claim in LIVE[page]:
            digest = fingerprint(behind(page, claim))
            mine = {"page": page, "claim": claim, "cells": digest}
            if arguments.quick:
                print(page, claim, run(page, claim, 1))
                continue
            stored = [
                row
                for row in stored
                if (row["page"], row["claim"], row["cells"]) == tuple(mine.values())
                or (row["page"], row["claim"]) != (page, claim)
            ]
            known = {row["seed"] for row in stored if mine.items() <= row.items()}
            for seed in SEEDS:
                if str(seed) in known:
                    continue
                number = f"{run(page, claim, seed):.4g}"
                stored.append(mine | {"seed": str(seed), "number": number})
                rows = [[row[column] for column in COLUMNS] for row in stored]
                origin = provenance("python -m benchmarks.live", "gymnasium")
                write_table(FILE, COLUMNS, rows, origin)
                print(page, claim, seed, number, flush=True)


if __name__ == "__main__":
    main()
