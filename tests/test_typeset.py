"""Typeset: the MathML of formulas, which screen readers read and which is copied."""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import tangle
import weave
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from typeset import typeset

ROOT = tangle.ROOT
PAGES = [ROOT / "index.md", *(ROOT / "docs").rglob("*.md"), *tangle.chapter_paths()]
MARKDOWN = MarkdownIt().enable("table").use(dollarmath_plugin, double_inline=True)

TEXTS = {"annotation", "mi", "mn", "mo", "mtext"}
PARTS = {
    "math": 1,
    **dict.fromkeys(("mfrac", "mroot", "msub", "msup", "munder", "mover"), 2),
    **dict.fromkeys(("msubsup", "munderover"), 3),
}
INSIDE = {"math": {"semantics"}, "mtable": {"mtr"}, "mtr": {"mtd"}}


def faults(html: str) -> list[str]:
    """Return what is wrong with the MathML of a formula."""
    [formula] = re.findall(r"<math.*?</math>", html, re.DOTALL)
    found = []
    for node in ElementTree.fromstring(formula).iter():
        name, *parts = [each.tag.rpartition("}")[2] for each in [node, *node]]
        wrong = [
            len(parts) != PARTS.get(name, len(parts)),
            not {*parts} <= INSIDE.get(name, {*parts}),
            name in TEXTS and parts,
            name not in TEXTS and (node.text or "").strip(),
            name == "semantics" and (len(parts) != 2 or parts[1] != "annotation"),
        ]
        found += [f"{name}: {node.text or parts}"] if any(wrong) else []
    return found


def texts(path: Path) -> Iterator[str]:
    """Yield the Markdown of a page, that of a chapter's comments too."""
    if path.suffix == ".md":
        yield path.read_text("utf-8")
        return
    for cell in tangle.read(path).cells:
        if cell.cell_type == "markdown":
            yield cell.source
        elif tangle.is_export(cell):
            pieces = [piece for row in weave.split(cell.source) for piece in row.prose]
            yield from (piece.text for piece in pieces if not piece.is_docstring)


def formulas(path: Path) -> Iterator[str]:
    """Yield the formulas of a page."""
    for text in texts(path):
        for block in MARKDOWN.parse(text):
            for token in [block, *(block.children or ())]:
                if token.type.startswith("math_"):
                    yield token.content


@pytest.mark.parametrize(
    "formula",
    [
        # The name of a function where one element is expected.
        r"g_{\min}^{\max}",
        r"\frac{\log}{\exp}",
        r"\sqrt[\max]{x}",
        r"\underset{x}{\operatorname{argmax}}",
        # What becomes a relation, an operator or a letter and is more than a letter.
        r"Z \overset{D}{=} R",
        r"\mathop{a + b}_c",
        r"\mathord{x_1}",
    ],
)
def test_mathml_is_well_formed(formula):
    assert faults(typeset(formula)) == []


def test_all_formulas_of_the_book_are_well_formed():
    book = {formula for path in PAGES for formula in formulas(path)}
    assert len(book) > 500
    assert {f: wrong for f in book if (wrong := faults(typeset(f)))} == {}
