"""Words: help where the eye is.

The first time that a chapter uses a word of the glossary, the word is a link; and the
glossary says which chapter explains it. What such a link leads to, or a citation, or
the number of another chapter's equation, lies in the page as a template, so that the
page's script can show it beside the link, with or without a network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html import escape
from pathlib import Path
from posixpath import join, normpath
from typing import Any
from urllib.parse import urldefrag

from docutils import nodes
from order import read_order
from pybtex.backends.html import Backend
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from typeset import typeset

GLOSSARY, BIBLIOGRAPHY = "docs/glossary", "docs/bibliography"
# These are words of everyday English too: a function returns, a program runs.
EVERYDAY = {
    "agent",
    "argument",
    "done",
    "environment",
    "features",
    "head",
    "iteration",
    "priority",
    "return",
    "run",
    "scan",
    "score",
    "type",
    "value",
    "window",
}


def definitions(env: BuildEnvironment) -> dict[str, tuple[str, str]]:
    """Return the anchor and the definition of each word of the glossary."""
    found = {}
    for item in env.get_doctree(GLOSSARY).findall(nodes.definition_list_item):
        *terms, definition = item.children
        for term in terms:
            text = " ".join(definition.astext().split())
            found[term.astext()] = (term["ids"][0], text)  # type: ignore[attr-defined]
    return found


def reread(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Keep the words for all pages; write all of them again if one has changed."""
    now = definitions(env)
    changed = now != getattr(env, "words", None)
    env.words = now  # type: ignore[attr-defined]
    return list(env.found_docs) if changed else []


@cache
def pattern(words: tuple[str, ...]) -> re.Pattern[str]:
    """Return what finds a word of several, the longest first, also in the plural."""
    longest = sorted(words, key=len, reverse=True)
    return re.compile(rf"\b({'|'.join(map(re.escape, longest))})s?\b", re.IGNORECASE)


# --- In chapters ----------------------------------------------------------------------


def link_words(app: Sphinx, document: nodes.document, page: str) -> None:
    """Link the first use of each word in the running text of a chapter."""
    if page == GLOSSARY:
        name_chapters(app, document)
    if not page.startswith("chapters/"):
        return
    words = app.env.words  # type: ignore[attr-defined]
    anchors = {
        word.lower(): anchor
        for word, (anchor, _) in words.items()
        if word not in EVERYDAY
    }
    find = pattern(tuple(words))
    uri = app.builder.get_relative_uri(page, GLOSSARY)
    for text in list(running_text(document)):
        pieces: list[nodes.Node] = []
        done, whole = 0, text.astext()
        for match in find.finditer(whole):
            anchor = anchors.pop(match[1].lower(), None)
            if anchor is None:
                continue
            link = f'<a class="word" href="{uri}#{anchor}">{escape(match[0])}</a>'
            pieces.append(nodes.Text(whole[done : match.start()]))
            pieces.append(nodes.raw("", link, format="html"))
            done = match.end()
        if pieces:
            text.parent.replace(text, [*pieces, nodes.Text(whole[done:])])


def running_text(document: nodes.document) -> Iterator[nodes.Text]:
    """Yield the text of paragraphs that stand by themselves, not beside code."""
    for paragraph in document.findall(nodes.paragraph):
        alone = isinstance(paragraph.parent, nodes.section | nodes.list_item)
        if alone and not paragraph["classes"]:
            yield from (x for x in paragraph.children if isinstance(x, nodes.Text))


def name_chapters(app: Sphinx, document: nodes.document) -> None:
    """Say below each word of the glossary which chapter explains it.

    It has the word for a title, or is the first one to print it bold.
    """
    chapters = [x for x in read_order(Path(app.srcdir)) if x.kind != "package"]
    for item in document.findall(nodes.definition_list_item):
        word = item.children[0].astext()
        bold = re.compile(rf"\*\*{re.escape(word)}s?\*\*", re.IGNORECASE)
        places = [x for x in chapters if x.title == word]
        places += [x for x in chapters if bold.search(x.source)]
        if places:
            first = places[0]
            uri = app.builder.get_relative_uri(GLOSSARY, first.docname)
            name = f"{first.number} {first.title}"
            link = nodes.reference("", name, refuri=uri, internal=True)
            item.children[-1].append(nodes.paragraph("", "", link))  # type: ignore[attr-defined]


# --- What links lead to ---------------------------------------------------------------


def targets(page: str, html: str) -> Iterator[tuple[str, str]]:
    """Yield (page, anchor) of the links of a page that lead to another page."""
    for link in sorted(set(re.findall(r'href="([^":]+\.html#[^"]+)"', html))):
        path, anchor = urldefrag(link)
        yield normpath(join(page, "..", path)).removesuffix(".html"), anchor


def templates(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Lay what the links of a page lead to into the page."""
    words = dict(app.env.words.values())  # type: ignore[attr-defined]
    citations = app.env.get_domain("cite").citations  # type: ignore[attr-defined]
    cited = {citation.citation_id: citation.formatted_entry for citation in citations}
    formulas = formulas_of(app)
    found = []
    for place, anchor in targets(page, context.get("body") or ""):
        if place == GLOSSARY and anchor in words:
            inside = f"<p>{escape(words[anchor])}</p>"
        elif place == BIBLIOGRAPHY and anchor in cited:
            inside = f"<p>{cited[anchor].text.render(Backend())}</p>"
        elif formula := formulas.get((place, anchor)):
            inside = typeset(formula, display=True)
        else:
            continue
        key = f"{place.rsplit('/', 1)[-1]}-{anchor}"
        found.append(f'<template id="peek-{key}">{inside}</template>')
    context["templates"] = "\n".join(found)


@cache
def formulas_of(app: Sphinx) -> dict[tuple[str, str], str]:
    """Return the numbered formulas by page and anchor."""
    return {
        (page, nodes.make_id(f"equation-{label}")): formula
        for page, formulas in app.env.equations_of.items()  # type: ignore[attr-defined]
        for label, formula in formulas.items()
    }


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("env-updated", reread)
    # After the references are resolved, so that no link is put into a link.
    app.connect("doctree-resolved", link_words, priority=900)
    app.connect("html-page-context", templates)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
