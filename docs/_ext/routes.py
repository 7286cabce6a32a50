"""Routes: ways through the book, for readers who do not want all of it.

``docs/routes.toml`` says which chapters a route has, in which order. From it come the
list on the start page (``{routes}``), the routes in the contents, and what stands at
the end of a chapter: the next one on each of its routes.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from order import Chapter, folded, link_to, read_order
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective
from tangle import ROOT

FILE = "docs/routes.toml"


@dataclass(frozen=True)
class Route:
    """A way through the book.

    Attributes:
        name: What it is called.
        promise: Where it leads, in a sentence.
        chapters: Its chapters, in order.
    """

    name: str
    promise: str
    chapters: tuple[Chapter, ...]

    @property
    def anchor(self) -> str:
        """Where the start page tells of it."""
        return nodes.make_id(f"route-{self.name}")

    @property
    def minutes(self) -> int:
        """How long it takes, as its chapters say."""
        return sum(chapter.minutes or 0 for chapter in self.chapters)


def read_routes(root: Path = ROOT) -> list[Route]:
    """Return the routes of the book."""
    if not (root / FILE).exists():
        return []
    known = {chapter.name: chapter for chapter in read_order(root)}
    found = tomllib.loads((root / FILE).read_text("utf-8"))["route"]
    return [
        Route(each["name"], each["promise"], tuple(known[x] for x in each["chapters"]))
        for each in found
    ]


def onward(page: str, routes: list[Route]) -> dict[str, list[str]]:
    """Return the next pages on the routes of a page, each with the routes' names.

    The page is empty where routes end.
    """
    found: dict[str, list[str]] = {}
    for route in routes:
        pages = [chapter.docname for chapter in route.chapters]
        if page in pages:
            after = [*pages, ""][pages.index(page) + 1]
            found.setdefault(after, []).append(route.name)
    return found


class Routes(SphinxDirective):
    """``{routes}``: all routes as cards; an open one lists its chapters."""

    def run(self) -> list[nodes.Node]:
        """Build the list."""
        self.env.note_dependency(str(ROOT / FILE))
        listed = nodes.bullet_list(classes=["routes"])
        for route in read_routes(Path(self.env.srcdir)):
            head = f"<b>{escape(route.name)}</b> <i>{route.minutes} minutes</i> "
            head += f"<span>{escape(route.promise)}</span>"
            steps = nodes.enumerated_list(arabic=True)
            for chapter in route.chapters:
                self.env.note_dependency(str(ROOT / f"{chapter.docname}.py"))
                steps += nodes.list_item("", link_to(chapter, self.env.docname))
            card = folded(head, [steps], "route")
            listed += nodes.list_item("", *card, ids=[route.anchor])
        return [listed]


def describe(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Give the templates the routes, and where they go on from a page."""
    routes = read_routes(Path(app.srcdir))
    titles = app.env.titles
    context["routes"] = [(route.name, route.anchor) for route in routes]
    context["onward"] = [
        (after, titles[after].astext() if after else "", names)
        for after, names in onward(page, routes).items()
    ]


def changed(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Write all pages again if the routes, which stand on each, have changed."""
    now = read_routes(Path(app.srcdir))
    before = getattr(env, "routes", None)
    env.routes = now  # type: ignore[attr-defined]
    return list(env.found_docs) if now != before else []


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("routes", Routes)
    app.connect("env-updated", changed)
    app.connect("html-page-context", describe)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
