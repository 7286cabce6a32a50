"""Landing: what the start page takes from the rest of the book, so that it stays true.

``{film} name`` shows an agent before and after training, with what it got there.
``{specimen} label function`` shows an equation beside the code of a chapter that
computes it. ``{reliable}`` counts what can be relied on. The cards of
``{chapter-list}`` get a picture: the first drawing of their chapter, without its words.
``{train-here}`` is the training that runs in the page, ``{growth}`` the curves of the
program that grows.
"""

from __future__ import annotations

import base64
import re
import struct
import sys
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from docutils import nodes
from docutils.parsers.rst import directives
from equations import computing, ties
from order import read_order
from results import html_table
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from tangle import ROOT
from weave import code_lines

sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "src"))
from benchmarks.store import RESULTS, read_table
from literate_rl.book.growth import grown
from literate_rl.book.pictures import STYLE
from literate_rl.book.train_here import train_cartpole

logger = logging.getLogger(__name__)
FILMS = ROOT / "docs/_static/films"


# --- Films ----------------------------------------------------------------------------


class Film(SphinxDirective):
    """``{film} name``: an agent before and after training; the content describes it.

    With ``:plays:`` the film starts by itself, unless the reader wants nothing to move.
    ``:chapter:`` names the page that explains the agent.
    """

    required_arguments = 1
    has_content = True
    option_spec = {
        "plays": directives.flag,
        "title": directives.unchanged_required,
        "chapter": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        """Build the figure, or warn that there is no such film."""
        name = self.arguments[0]
        paths = [RESULTS / "films.csv", FILMS / f"{name}.mp4", FILMS / f"{name}.png"]
        for path in paths:
            self.env.note_dependency(str(path))
        rows = read_table(paths[0])[0] if paths[0].exists() else []
        row = next((row for row in rows if row["film"] == name), None)
        if row is None or not all(path.exists() for path in paths):
            place = self.get_location()
            logger.warning("no film %s: run `make films`", name, location=place)
            return []
        up = "../" * self.env.docname.count("/")
        # A PNG file says its size in its first chunk.
        width, height = struct.unpack(">II", paths[2].read_bytes()[16:24])
        words = escape(" ".join(self.content), quote=True)
        plays = " data-plays" if "plays" in self.options else ""
        source = f"{up}_static/films/{name}"
        video = (
            f'<div class="film-frame"><video controls muted loop playsinline{plays} '
            f'preload="none" width="{width}" height="{height}" '
            f'poster="{source}.png" aria-label="{words}">'
            f'<source src="{source}.mp4" type="video/mp4">{words}</video></div>'
        )
        return [
            nodes.raw("", f'<figure class="film">{video}<figcaption>', format="html"),
            *self.caption(row),
            nodes.raw("", "</figcaption></figure>", format="html"),
        ]

    def caption(self, row: dict[str, str]) -> list[nodes.Node]:
        """Return what stands below the film: both returns, and what it is."""
        halves = nodes.container(classes=["film-returns"])
        for when, name in (
            ("before", "untrained"),
            ("after", f"after {int(row['steps']):,} steps"),
        ):
            value = number(row[f"mean_{when}"])
            halves += nodes.paragraph(
                "",
                "",
                nodes.inline("", name),
                nodes.Text(" "),
                nodes.strong("", value),
                classes=[f"film-{when}"],
            )
        content: list[nodes.Node] = [halves]
        if "title" in self.options:
            text = nodes.inline("", self.options["title"])
            line = nodes.paragraph(classes=["film-title"])
            if "chapter" in self.options:
                line += reference(text, f"/{self.options['chapter']}", self.env.docname)
            else:
                line += text
            content.append(line)
        return content


class Films(SphinxDirective):
    """``{films}``: which episodes the films show, and how they were made."""

    def run(self) -> list[nodes.Node]:
        """Build a table."""
        path = RESULTS / "films.csv"
        self.env.note_dependency(str(path))
        rows, origin = read_table(path)
        body = ""
        for row in rows:
            film = f'<a href="../_static/films/{row["film"]}.mp4">{row["env"]}</a>'
            cells = [f"{row['agent']}, seed {row['seed']}"]
            for when in ("before", "after"):
                mean, shown = row[f"mean_{when}"], row[f"returns_{when}"].split()
                cells.append(f"{number(mean)} <small>({', '.join(shown)})</small>")
            cells.append(f"{int(row['steps']):,}")
            body += f'<tr><th scope="row">{film}</th>'
            body += "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        columns = ("film", "agent", "before (shown)", "after (shown)", "steps")
        source = ", ".join(f"{key} {value}" for key, value in origin.items())
        return [
            nodes.raw("", html_table(columns, body), format="html"),
            nodes.paragraph("", f"Filmed: {source}.", classes=["provenance"]),
        ]


def number(text: str) -> str:
    """Write a mean return with two or three digits and a true minus sign."""
    value = float(text)
    digits = f"{value:.0f}" if abs(value) >= 10 else f"{value:.2g}"
    return digits.replace("-", "−")


def reference(text: nodes.Node, target: str, page: str) -> addnodes.pending_xref:
    """Return a link to a page of the book."""
    return addnodes.pending_xref(
        "",
        text,
        refdomain="std",
        reftype="doc",
        reftarget=target,
        refdoc=page,
        refexplicit=True,
        refwarn=True,
    )


# --- An equation and its code ---------------------------------------------------------


class specimen(nodes.General, nodes.Element):  # noqa: N801 (docutils' style)
    """Stands for an equation and its code until all pages are read."""


class Specimen(SphinxDirective):
    """``{specimen} label function``: an equation beside the code that computes it."""

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        """Leave a placeholder."""
        label, function = self.arguments
        for chapter in read_order(Path(self.env.srcdir)):
            if f"({label})\n" in chapter.source:
                path = Path(self.env.srcdir) / f"{chapter.docname}.py"
                self.env.note_dependency(str(path))
        return [specimen(label=label, function=function)]


def show_specimens(app: Sphinx, document: nodes.document, docname: str) -> None:
    """Take the woven rows out of their chapter."""
    for place in list(document.findall(specimen)):
        label, function = place["label"], place["function"]
        pages = [page for page, owner in computing(app.env, label) if owner == function]
        if not pages:
            logger.warning("%s does not compute %r", function, label, location=docname)
            place.parent.remove(place)
            continue
        place.replace_self(rows_of(app, docname, pages[0], label, function))


def rows_of(
    app: Sphinx, docname: str, page: str, label: str, function: str
) -> nodes.Node:
    """Return a chapter's equation, its ties, and the rows of the function."""
    chapter = app.env.get_doctree(page)
    block = next(
        block.deepcopy()
        for block in chapter.findall(nodes.math_block)
        if block.get("label") == label
    )
    block.attributes.update(number=None, label=None, ids=[], names=[])
    head = nodes.container("", block, classes=["specimen-equation"])
    head += ties(app, label, docname, classes=["equation-ties"])

    cell = next(
        cell
        for cell in chapter.findall(nodes.container)
        if "woven" in cell["classes"]
        and any(
            function in code["owners"].values() for code in cell.findall(code_lines)
        )
    )
    # What the chapter says right before the code introduces it here too.
    before = cell.parent.children[: cell.parent.index(cell)]
    said = [node.deepcopy() for node in before if isinstance(node, nodes.paragraph)]
    columns = next(
        part.deepcopy() for part in cell.children if "weave-columns" in part["classes"]
    )
    for row in columns.children:
        cited = [x["reftarget"] for x in row.findall(addnodes.pending_xref)]
        row["classes"] += ["specimen-line"] if label in cited else []
    for code in columns.findall(code_lines):
        code["owners"] = {}  # the places of definitions are in the chapter
    cell = nodes.container("", columns, classes=["cell", "woven"])

    title = app.env.titles[page].astext()
    uri = app.builder.get_relative_uri(docname, page)
    words = f"Chapter {title}"
    link = nodes.reference("", words, refuri=f"{uri}#def-{function}", internal=True)
    source = nodes.paragraph("", "From ", link, classes=["specimen-source"])
    box = nodes.container("", head, *said[-1:], cell, source, classes=["specimen"])
    # References were not resolved there yet: here they lead into the chapter.
    scratch = nodes.document(chapter.settings, chapter.reporter)
    scratch += box
    for node in scratch.findall(addnodes.pending_xref):
        node["refdoc"] = docname
    app.env.resolve_references(scratch, docname, app.builder)
    return scratch[0]


# --- What can be counted --------------------------------------------------------------


class reliable(nodes.General, nodes.Element):  # noqa: N801 (docutils' style)
    """Stands for the counts until all pages are read."""


class Reliable(SphinxDirective):
    """``{reliable}``: how much is tested, executed and corrected."""

    def run(self) -> list[nodes.Node]:
        """Leave a placeholder."""
        return [reliable()]


def counts(env: BuildEnvironment) -> dict[str, int]:
    """Count what the start page states."""
    labels = [x for found in env.equations_of.values() for x in found]  # type: ignore[attr-defined]
    tests = [path.read_text("utf-8") for path in (ROOT / "tests").glob("test_*.py")]
    return {
        "equations": sum(not label.startswith("def-") for label in labels),
        "errata": len(env.marked_tests["erratum"]),
        "chapters": sum(x.docname in env.found_docs for x in read_order(ROOT)),
        "tests": sum(len(re.findall(r"^def test_", x, re.MULTILINE)) for x in tests),
    }


STATEMENTS = {
    "equations": ("equations, each tied to its code and its tests", "docs/equations"),
    "errata": ("mistakes in papers and libraries, each shown by a test", "docs/errata"),
    "chapters": ("chapters, each executed when this site is built", None),
    "tests": ("test functions hold the prose and the code together", "docs/results"),
}


def show_counts(app: Sphinx, document: nodes.document, docname: str) -> None:
    """Write the counts."""
    for place in list(document.findall(reliable)):
        box = nodes.bullet_list(classes=["reliable"])
        for name, count in counts(app.env).items():
            words, page = STATEMENTS[name]
            line = nodes.paragraph("", "", nodes.strong("", f"{count:,}"))
            line += nodes.Text(" ")
            if page in app.env.found_docs:
                uri = app.builder.get_relative_uri(docname, page)
                line += nodes.reference("", words, refuri=uri, internal=True)
            else:
                line += nodes.Text(words)
            box += nodes.list_item("", line)
        place.replace_self(box)


# --- A training in the page -----------------------------------------------------------


class TrainHere(SphinxDirective):
    """``{train-here}``: the reader trains PPO on CartPole."""

    def run(self) -> list[nodes.Node]:
        """Build the figure."""
        self.env.note_dependency(str(RESULTS / "learning/train_here_curves.csv"))
        chapter = ROOT / "chapters/book/train_here.py"
        for path in (chapter, *ROOT.glob("src/literate_rl/book/*.js")):
            self.env.note_dependency(str(path))
        return [nodes.raw("", train_cartpole()._repr_html_(), format="html")]


class Growth(SphinxDirective):
    """``{growth}``: the curves of the program that grows over the first pages."""

    def run(self) -> list[nodes.Node]:
        """Build the picture."""
        for path in (RESULTS / "learning").glob("program_*_curves.csv"):
            self.env.note_dependency(str(path))
        return [nodes.raw("", grown("ppo")._repr_html_(), format="html")]


# --- Thumbnails -----------------------------------------------------------------------

DRAWING = re.compile(r"<svg.*?</svg>", re.DOTALL)
SVG = "http://www.w3.org/2000/svg"
LARGEST = 60_000  # characters of a picture that still is a thumbnail


def collect(app: Sphinx, document: nodes.document) -> None:
    """Keep a chapter's first picture, rather a drawing than a plot."""
    made = {**drawings(document), **plots(app, document)}
    kept = vars(app.env).setdefault("thumbnails", {})
    kept[app.env.docname] = next(iter(made), "")


def drawings(document: nodes.document) -> dict[str, None]:
    """Return a chapter's own drawings, in the colours of the page."""
    found = {}
    for raw in document.findall(nodes.raw):
        if "lr-train" in raw.astext():
            continue  # the same on each page that has it
        for svg in (
            DRAWING.findall(raw.astext()) if "lr-picture" in raw.astext() else ()
        ):
            bare = without_words(ElementTree.fromstring(svg))
            box = " ".join(f"{x:.0f}" for x in reach(bare))
            bare.attrib = {"viewBox": box, "aria-hidden": "true", "focusable": "false"}
            text = ElementTree.tostring(bare, "unicode")
            if len(text) < LARGEST:
                found[f'<div class="lr-picture">{text}</div>'] = None
    return found


def plots(app: Sphinx, document: nodes.document) -> dict[str, None]:
    """Return a chapter's plots as images, with colours of their own."""
    found = {}
    for image in document.findall(nodes.image):
        path = Path(app.srcdir, image["uri"].lstrip("/"))
        if path.suffix == ".svg" and path.exists():
            ElementTree.register_namespace("", SVG)
            bare = without_words(ElementTree.fromstring(path.read_text("utf-8")))
            text = re.sub(r"(\.\d)\d+", r"\1", ElementTree.tostring(bare, "unicode"))
            # Of a table only the grounds of the figure and of its axes are left.
            drawn = sum(mark.tag.endswith(("}path", "}use")) for mark in bare.iter())
            if len(text) < LARGEST and drawn > 2:
                data = base64.b64encode(text.encode()).decode()
                source = f"data:image/svg+xml;base64,{data}"
                found[f'<img alt="" src="{source}">'] = None
    return found


def without_words(svg: ElementTree.Element) -> ElementTree.Element:
    """Take out the text, which would be too small to read."""
    for parent in list(svg.iter()):
        for child in list(parent):
            tag = child.tag.removeprefix(f"{{{SVG}}}")
            words = child.get("id", "").startswith(("text_", "legend_"))
            if tag in ("text", "title", "desc", "metadata") or words:
                parent.remove(child)
    return svg


def reach(svg: ElementTree.Element) -> tuple[float, float, float, float]:
    """Return left, top, width and height of what is drawn, with a margin."""
    xs, ys = [], []
    for mark in svg.iter():
        if mark.tag == "rect":
            x, y, width, height = (
                float(mark.get(name, 0)) for name in ("x", "y", "width", "height")
            )
            xs += [x, x + width]
            ys += [y, y + height]
        # Relative steps, in small letters, are only the marks of an axis.
        for letter, numbers in re.findall(r"([A-Z])([^A-Za-z]*)", mark.get("d", "")):
            values = [float(x) for x in re.findall(r"-?[\d.]+", numbers)]
            xs += values if letter == "H" else [] if letter == "V" else values[::2]
            ys += values if letter == "V" else [] if letter == "H" else values[1::2]
    left, top = min(xs, default=0) - 6, min(ys, default=0) - 6
    return left, top, max(xs, default=0) + 6 - left, max(ys, default=0) + 6 - top


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Drop the picture of a removed or changed page."""
    getattr(env, "thumbnails", {}).pop(docname, None)


def merge(app: Sphinx, env: BuildEnvironment, pages: list[str], other: Any) -> None:
    """Take the pictures of the pages that another process has read."""
    kept = vars(env).setdefault("thumbnails", {})
    kept.update({page: other.thumbnails[page] for page in pages})


def changed(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Write the pages with cards again if a picture or a count has changed."""
    now = (dict(env.thumbnails), counts(env))  # type: ignore[attr-defined]
    before = getattr(env, "landing", None)
    env.landing = now  # type: ignore[attr-defined]
    return ["index"] if now != before and "index" in env.found_docs else []


def show_thumbnails(app: Sphinx, document: nodes.document, docname: str) -> None:
    """Put the pictures into their places."""
    found = app.env.thumbnails  # type: ignore[attr-defined]
    styled = False
    for place in document.findall(nodes.container):
        if "chapter-thumbnail" not in place["classes"]:
            continue
        if not styled:
            place += nodes.raw("", f"<style>{STYLE}</style>", format="html")
            styled = True
        place += nodes.raw("", found.get(place["page"], ""), format="html")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_node(specimen)
    app.add_node(reliable)
    app.add_directive("film", Film)
    app.add_directive("films", Films)
    app.add_directive("specimen", Specimen)
    app.add_directive("reliable", Reliable)
    app.add_directive("train-here", TrainHere)
    app.add_directive("growth", Growth)
    app.connect("doctree-read", collect)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    app.connect("env-updated", changed)
    for show in (show_specimens, show_counts, show_thumbnails):
        app.connect("doctree-resolved", show)
    app.add_css_file("landing.css")
    app.add_js_file("film.js")
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
