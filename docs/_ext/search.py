"""Search: an index of sections, which the site carries.

Sphinx finds pages, and fetches each of them whole to cut an excerpt out. Here a query
leads to sections, and one script holds all that is needed: for each word the sections
that have it, with a weight. A title weighs most, then the question of a chapter, words
that are printed bold where they are explained, names of code and equations, then text.
Pages of the path come before those of the package, the reference and the results.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from order import ROOT, Chapter, read_order
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

WORD = re.compile(r"[^\W_]+")
# Endings that do not change what a word is about. The script reads them from here.
ENDINGS = r"(?:ations?|at(?:ing|ed|es?|ors?)|ings?|e[ds]?|s)$"
# What every page has, and nobody looks for alone.
COMMON = set(
    WORD.findall("a an and are as at be by for from in is it its of on or so the to")
)
TITLE, QUESTION, BOLD, NAME, EQUATION, SECTION = 12.0, 6.0, 7.0, 7.0, 5.0, 8.0
# How much a page counts, by the beginning of its name; the first that fits.
KINDS = {
    r"chapters/\w+/": 0.3,
    "chapters/": 1.0,
    "docs/api": 0.35,
    "docs/glossary": 0.8,
    "docs/results": 0.3,
    "docs/equations": 0.3,
    "docs/errata": 0.4,
    "docs/bibliography": 0.3,
    "": 0.6,
}
EXCERPT = 160  # characters
# What a reader may look for and the book does not have, as README says too.
NOT_HERE = {
    "several agents in one world": "multi agent, multiagent, marl, self play",
    "learned models of the world": "world model, model based, muzero, dreamer, mcts",
    "learning from stored data alone": "offline, batch rl, cql, decision transformer",
    "training on Atari": "atari, ale",
}


class Part(NamedTuple):
    """A section: its anchor, title and own text, and what is explained in it."""

    anchor: str
    title: str
    text: str
    bold: str
    names: str
    equations: str


@cache
def stem(word: str) -> str:
    """Return a word without its ending, as the script does with those of a query."""
    if len(word) < 5:
        return word.removesuffix("s") if len(word) > 3 else word
    word = re.sub(r"(?<=.{3})" + ENDINGS, "", word)
    word = re.sub(r"([b-df-hj-np-tv-z])\1$", r"\1", word)
    return re.sub(r"(?:ies?|y)$", "i", word)


def words(text: str) -> list[str]:
    """Return the stems of a text; American and British spelling are one."""
    found = WORD.findall(text.lower().replace("isa", "iza").replace("ise", "ize"))
    return [stem(word) for word in found]


# --- What a section has ---------------------------------------------------------------


def plain(node: nodes.Node) -> str:
    """Return the text of a node in one line; a formula is no text."""
    if isinstance(node, nodes.Text):
        return node.astext()
    if isinstance(node, nodes.math):
        return "…"
    if isinstance(node, nodes.raw | nodes.comment):
        return " "
    return "".join(map(plain, node.children))


def own(section: nodes.Element) -> Iterator[nodes.Element]:
    """Yield the elements of a section, without those of the sections in it."""
    for child in section.children:
        if isinstance(child, nodes.Element) and not isinstance(child, nodes.section):
            yield child
            yield from own(child)


def parts(document: nodes.document) -> Iterator[Part]:
    """Yield the sections of a page from top to bottom."""
    for number, section in enumerate(document.findall(nodes.section)):
        inside = list(own(section))
        (title,) = (node for node in inside if isinstance(node, nodes.title))
        prose = nodes.paragraph, nodes.term, nodes.caption
        text = [plain(x) for x in inside if isinstance(x, prose)]
        bold = [x.astext() for x in inside if isinstance(x, nodes.strong)]
        code = [x.astext() for x in inside if isinstance(x, nodes.literal_block)]
        names = re.findall(
            r"^(?:class|def) ([A-Za-z]\w*)", "\n".join(code), re.MULTILINE
        )
        names += [x.astext() for x in inside if type(x).__name__ == "desc_name"]
        formulas = [x for x in inside if isinstance(x, nodes.math_block)]
        yield Part(
            "" if number == 0 else section["ids"][0],
            title.astext(),
            " ".join(" ".join(text).split()),
            " ".join(bold),
            " ".join(names),
            " ".join(x.get("label") or "" for x in formulas),
        )


def spelled(names: str) -> str:
    """Return names as they are, and the words that they are made of."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", names)
    return f"{names.replace('_', '')} {apart}"


def weights(part: Part, chapter: Chapter | None) -> dict[str, float]:
    """Return how much each stem says about a section."""
    found = {word: 1 + math.log2(n) for word, n in Counter(words(part.text)).items()}
    fields = [
        (part.bold, BOLD),
        (spelled(part.names), NAME),
        (part.equations, EQUATION),
        (part.title, SECTION if part.anchor else TITLE),
    ]
    if chapter and not part.anchor:
        name = chapter.docname.rpartition("/")[2]
        fields.append((f"{chapter.question} {name}", QUESTION))
    for text, weight in fields:
        for word in set(words(text)):
            found[word] = found.get(word, 0.0) + weight
    return {word: x for word, x in found.items() if word not in COMMON}


# --- The index ------------------------------------------------------------------------


def collect(app: Sphinx, document: nodes.document) -> None:
    """Keep the sections of a page; the environment remembers those of the others."""
    env = app.env
    env.parts_of = getattr(env, "parts_of", {})  # type: ignore[attr-defined]
    env.parts_of[env.docname] = list(parts(document))  # type: ignore[attr-defined]


def forget(app: Sphinx, env: BuildEnvironment, page: str) -> None:
    """Forget a page that is read anew."""
    getattr(env, "parts_of", {}).pop(page, None)


def merge(app: Sphinx, env: BuildEnvironment, pages: Any, other: Any) -> None:
    """Take over what another process has read."""
    kept = getattr(env, "parts_of", {})
    env.parts_of = kept | getattr(other, "parts_of", {})  # type: ignore[attr-defined]


def index_of(parts_of: dict[str, list[Part]], root: Path = ROOT) -> dict[str, Any]:
    """Return pages, sections, and for each stem the sections that have it."""
    chapters = {chapter.docname: chapter for chapter in read_order(root)}
    sections: list[tuple[int, str, str, str]] = []
    stems: defaultdict[str, list[int]] = defaultdict(list)
    pages = sorted((name, found) for name, found in parts_of.items() if found)
    for number, (name, found) in enumerate(pages):
        kind = next(x for start, x in KINDS.items() if re.match(start, name))
        for part in found:
            for word, weight in weights(part, chapters.get(name)).items():
                stems[word] += [len(sections), round(10 * kind * weight)]
            excerpt = part.text[:EXCERPT].rpartition(" ")[0] + " …"
            sections.append((number, part.anchor, part.title, excerpt))
    return {
        "pages": [(name, found[0].title) for name, found in pages],
        "sections": sections,
        "stems": dict(sorted(stems.items())),
        "endings": ENDINGS,
        "common": sorted(COMMON),
        "missing": [
            (words(asked), text)
            for text, queries in NOT_HERE.items()
            for asked in queries.split(", ")
        ],
    }


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the index beside the other scripts; from disk no data could be fetched."""
    if error or app.builder.name != "html":
        return
    parts_of = app.env.parts_of  # type: ignore[attr-defined]
    data = json.dumps(index_of(parts_of), ensure_ascii=False, separators=(",", ":"))
    file = Path(app.outdir) / "_static/search-index.js"
    file.write_text(f"searchIndex={data}", "utf-8")


def own_page(app: Sphinx) -> None:
    """Leave Sphinx's own search away."""
    app.builder.search = False  # type: ignore[attr-defined]


def page_of_results(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the page that shows all results."""
    yield "search", {"title": "Search"}, "search.html"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("builder-inited", own_page)
    app.connect("doctree-read", collect)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    app.connect("html-collect-pages", page_of_results)
    app.connect("build-finished", write)
    return {
        "version": "1",
        "env_version": 1,
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }
