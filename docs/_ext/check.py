"""Check: say in words what a chapter still lacks, before any other tool looks at it.

``python docs/_ext/check.py`` names views that are stale or edited by hand, chapters
without a place in the order, modules without a page, a group or tests, decisions in
another form than the others, whole sentences in brackets, and classes in signatures
that the website cannot link.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from decisions import missing, wrong
from order import listed, read_order
from reference import grouped
from tangle import ROOT, TangleError, home_of, parse, sync


def stale_views(root: Path = ROOT) -> Iterator[str]:
    """Yield the views that do not fit their chapters."""
    try:
        for path in sync(root, check=True):
            yield f"{path.relative_to(root)} is stale: run `make sync`"
    except TangleError as error:
        yield from str(error).splitlines()


def missing_files(root: Path = ROOT) -> Iterator[str]:
    """Yield what should stand beside each chapter."""
    known = {page for _, page in listed(root)}
    modules = {module for module, _ in grouped(root)}
    for chapter in read_order(root):
        if chapter.docname not in known:
            yield f"index.md: add the line {chapter.docname} to a toctree"
        if not chapter.question:
            yield f"{chapter.docname}.py: open with a question in **bold**"
        if chapter.kind == "evidence":
            continue
        page = chapter.name.replace(".", "/")
        # A learner and the mathematics that its chapter teaches share their tests.
        for path in (f"docs/api/{page}.md", f"tests/test_{Path(page).name}.py"):
            if not (root / path).exists():
                yield f"{path} is missing: `make chapter` writes one for new chapters"
        if chapter.name not in modules:
            yield f"docs/api.md: put {chapter.name} into a group"
    for page in known - {chapter.docname for chapter in read_order(root)}:
        yield f"index.md: there is no {page}.py"


# They begin like a sentence and end like one.
IN_BRACKETS = re.compile(r"\(\s*[*_`\"“]*[A-Z][^()]*(?:\([^()]*\)[^()]*)*[.?!]\s*\)")


def in_brackets(root: Path = ROOT) -> Iterator[str]:
    """Yield the whole sentences in brackets: they are notes that no reader needs."""
    pages = [chapter.docname + ".py" for chapter in read_order(root)]
    pages += [f"docs/{path.name}" for path in sorted((root / "docs").glob("*.md"))]
    for page in pages:
        text = (root / page).read_text("utf-8")
        if page.endswith(".py"):
            cells = parse(text).cells
            text = "\n\n".join(c.source for c in cells if c.cell_type == "markdown")
        for found in IN_BRACKETS.findall(text):
            yield f"{page}: no whole sentence stands in brackets: {found[:50]}"


def public_functions(module: ModuleType) -> Iterator[Any]:
    """Yield a module's public functions and the methods of its public classes.

    A dataclass stands for its ``__init__``, because it knows where the names in the
    annotations that it has inherited come from.
    """
    for name in module.__all__:
        thing = getattr(module, name)
        inside = list(vars(thing).values() if inspect.isclass(thing) else [thing])
        if dataclasses.is_dataclass(thing) and "__init__" in vars(thing):
            inside.remove(vars(thing)["__init__"])
            yield thing
        yield from (each for each in inside if inspect.isfunction(each))


def classes_in(hint: Any) -> Iterator[type]:
    """Yield the classes that an annotation names, at any depth."""
    if inspect.isclass(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from classes_in(part)


def unlinked(root: Path = ROOT) -> Iterator[str]:
    """Yield PyTorch's classes that stand in signatures but not in the inventory."""
    text = (root / "docs/inventories.txt").read_text("utf-8")
    known = {line.split()[1] for line in text.splitlines()}
    modules = [home_of(c.name) for c in read_order(root) if c.kind != "evidence"]
    found = {
        f"{each.__module__}.{each.__qualname__}"
        for module in modules
        for function in public_functions(
            importlib.import_module(f"literate_rl.{module}")
        )
        for hint in typing.get_type_hints(function).values()
        for each in classes_in(hint)
    }
    for name in sorted(found - known):
        if name.startswith("torch."):
            line = f"torch {name} py:class PAGE#{name}"
            yield f"docs/inventories.txt: add a line for PyTorch's page: {line}"


def main() -> int:
    """Print what is wrong; return how much it is."""
    problems = [
        *stale_views(),
        *missing_files(),
        *wrong(),
        *missing(),
        *in_brackets(),
    ]
    if not problems:
        problems = [*unlinked()]
    print("\n".join(problems) or "views, pages and tests are complete")
    return len(problems)


if __name__ == "__main__":
    sys.exit(bool(main()))
