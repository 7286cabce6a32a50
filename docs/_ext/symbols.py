"""Symbols: what the letters of a displayed formula mean.

The tables of the page on notation say what a symbol stands for. Below each numbered
equation of a chapter lies a list of those that occur in it, as a template, so that the
page's script can show it. A letter that those tables give two meanings is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from typeset import typeset

NOTATION = "docs/notation"
AMBIGUOUS = "Letters with more than one meaning"
# A letter with its hat, bar or script, then what stands below and above it.
ACCENT = r"\\(?:hat|bar|tilde|mathcal|mathrm|mathbb)\s*\{?\\?[A-Za-z]+\}?"
BASE = rf"(?:{ACCENT}|\\[A-Za-z]+|[A-Za-z])'?"
GROUP = r"\{(?:[^{}]|\{[^{}]*\})*\}"
SYMBOL = re.compile(rf"({BASE})((?:[_^](?:{GROUP}|\\[A-Za-z]+|.))*)")
# An index only says which one: it belongs to every symbol.
INDEX = re.compile(r"_\{?[tTijkbn0-9,+\-\s]+\}?|\^\{?[0-9*]\}?")
WORDS = re.compile(
    r"(?<![_^])(?<![_^]\{)\\(?:text|operatorname\*?|overset|begin|end)\{[^{}]*\}"
)
OF_WHAT = re.compile(r"\((?:s|s, a|a \\mid s|\\theta|\\pi)\)")
Key = tuple[str, str]


def symbols(formula: str) -> Iterator[Key]:
    """Yield the symbols of a formula, without indices."""
    for base, rest in SYMBOL.findall(WORDS.sub("", formula)):
        yield re.sub(r"[{}\s]", "", base), re.sub(r"[{}\s]", "", INDEX.sub("", rest))


def written(node: nodes.Element) -> str:
    """Return a text with its formulas as HTML."""
    return "".join(
        typeset(part.astext())
        if isinstance(part, nodes.math)
        else escape(part.astext())
        for paragraph in node.findall(nodes.paragraph)
        for part in paragraph.children
    )


def meanings(env: BuildEnvironment) -> dict[Key, tuple[str, str]]:
    """Return symbol and meaning, as HTML, of what the tables give one meaning."""
    found: dict[Key, set[tuple[str, str]]] = {}
    letters: set[str] = set()
    for section in env.get_doctree(NOTATION).findall(nodes.section):
        title = section.children[0].astext()
        for body in section.findall(nodes.tbody):
            if title == AMBIGUOUS:
                for row in body.findall(nodes.row):
                    letters |= {x.astext() for x in row.children[0].findall(nodes.math)}
            elif section.parent.parent is not None:
                for row in body.findall(nodes.row):
                    symbol, meaning = row.children[:2]
                    line = written(symbol), written(meaning)  # type: ignore[arg-type]
                    for formula in symbol.findall(nodes.math):
                        plain = OF_WHAT.sub("", formula.astext())
                        for key in symbols(plain) if "(" not in plain else ():
                            found.setdefault(key, set()).add(line)
    return {
        key: next(iter(lines))
        for key, lines in found.items()
        if len(lines) == 1 and key[0] not in letters
    }


def reread(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Keep the meanings for all pages; write all again if one has changed."""
    now = meanings(env)
    changed = now != getattr(env, "meanings", None)
    env.meanings = now  # type: ignore[attr-defined]
    return list(env.found_docs) if changed else []


def explain(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Add the lists of a chapter's numbered equations to its templates."""
    if not page.startswith("chapters/"):
        return
    known = app.env.meanings  # type: ignore[attr-defined]
    for block in doctree.findall(nodes.math_block):
        lines = {known[key]: None for key in symbols(block.astext()) if key in known}
        if block.get("label") and lines:
            inside = "".join(f"<dt>{a}</dt><dd>{b}</dd>" for a, b in lines)
            name = nodes.make_id(f"where-equation-{block['label']}")
            inside = f'<dl class="where">{inside}</dl>'
            context["templates"] += f'<template id="{name}">{inside}</template>'


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("env-updated", reread)
    # After `words`, which begins the list of templates.
    app.connect("html-page-context", explain, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
