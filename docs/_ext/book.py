"""Book: what the theme's templates say of a page beside its text.

That is the list of all pages, part by part as in the toctrees of index.md, the sections
of the page, the kind of page that it is, and what it is about in a sentence.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from docutils import nodes
from order import read_order
from pygments.formatters import HtmlFormatter
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

# Parts that one reads in order are always open, the others while one is in them.
FOLDED = ("Side roads", "The package, line by line", "Reference")


def parts(env: BuildEnvironment) -> list[tuple[str, list[str]]]:
    """Return the caption and the pages of each toctree of the start page."""
    start = env.get_doctree(env.config.root_doc)
    return [
        (tree["caption"], [page for _, page in tree["entries"]])
        for tree in start.findall(addnodes.toctree)
    ]


def sections(doctree: nodes.document | None) -> list[tuple[str, str]]:
    """Return the anchor and the title of each section of a page."""
    if doctree is None:
        return []
    inner = [
        child
        for top in doctree.children
        for child in top.children
        if isinstance(child, nodes.section)
    ]
    return [(f"#{x['ids'][0]}", next(x.findall(nodes.title)).astext()) for x in inner]


def describe(
    app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Give the templates what they need for a page."""
    env = app.env
    listed = parts(env)
    context["book"] = [
        {
            "caption": caption,
            "open": caption not in FOLDED or name in pages,
            "pages": [{"name": x, "title": env.titles[x].astext()} for x in pages],
        }
        for caption, pages in listed
    ]
    context["part"] = next((x for x, pages in listed if name in pages), "")
    context["sections"] = sections(doctree)
    context["base_path"] = urlsplit(app.config.html_baseurl).path or "/"
    kind = "chapter" if name.startswith("chapters/") else "page"
    # In a page of many sections one looks something up.
    if kind == "page" and len(context["sections"]) >= 15:
        kind += " look-up"
    context["page_kind"] = "landing" if name == env.config.root_doc else kind
    for script in context["script_files"]:
        script.attributes["defer"] = "defer"  # no page waits for one
    questions = {x.docname: x.question for x in read_order() if x.question}
    context["description"] = questions.get(name) or first_sentence(doctree)


def first_sentence(doctree: nodes.document | None) -> str:
    """Return how the first paragraph of a page begins."""
    if doctree is None:
        return ""
    for paragraph in doctree.findall(nodes.paragraph):
        if "chapter-facts" not in paragraph["classes"]:
            text = " ".join(paragraph.astext().split())
            return re.split(r"\. (?=[A-Z])", text)[0].rstrip(".") + "."
    return ""


def dark_code(app: Sphinx) -> None:
    """Write the colours of code on a dark page, which the reader may choose too."""
    formatter = HtmlFormatter(style="a11y-high-contrast-dark", nobackground=True)
    rules = formatter.get_style_defs('html[data-theme="dark"] .highlight')
    folder = Path(app.outdir) / "_static"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dark.css").write_text(f"@media screen {{\n{rules}\n}}\n", "utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_js_file("book.js")
    app.add_js_file("search.js")
    app.add_css_file("dark.css")
    app.connect("builder-inited", dark_code)
    app.connect("html-page-context", describe)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
