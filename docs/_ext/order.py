"""Order: the toctrees of index.md say in which order the chapters are read.

Names of chapters carry no number. From the order come the numbers in titles, sidebar
and equations, the lists of chapters on the start page and in README.md, and the order
of the public names. Chapters of the book have numbers, those of the package's
floors, in folders of their own, letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
# Where readers get the notebooks, on the site and at home.
FOLDER = "notebooks"
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXPORT = re.compile(r"^# %%.*tags=\[[^]]*\"export\"", re.MULTILINE)
FIRST_HEADING = re.compile(r"^# # (.+)$", re.MULTILINE)
QUESTION = re.compile(r"^# \*\*(.+?\?)\*\*", re.MULTILINE | re.DOTALL)
MINUTES = re.compile(r"(?:takes about|[Ii]n) (\d+) minutes")


@dataclass(frozen=True)
class Chapter:
    """A chapter and its place in the book.

    Attributes:
        docname: Its page, such as ``chapters/advantages``.
        part: Caption of the toctree that lists it.
        number: ``4``, or letters in the package.
        source: Its text.
    """

    docname: str
    part: str
    number: str
    source: str

    @property
    def name(self) -> str:
        """Its name: ``advantages``, or ``learners.ppo`` in the package."""
        return self.docname.removeprefix("chapters/").replace("/", ".")

    @property
    def notebook(self) -> str:
        """Name of its notebook for readers: ``05_advantages.ipynb``."""
        number = self.number.zfill(2) if self.number.isdigit() else self.number
        return f"{number}_{self.docname.rpartition('/')[2]}.ipynb"

    @property
    def kind(self) -> str:
        """One of ``path``, ``evidence`` (no package code) and ``package``."""
        if self.floor:
            return "package"
        return "path" if EXPORT.search(self.source) else "evidence"

    @property
    def floor(self) -> str:
        """Its floor in the package, or nothing if it is a chapter of the book."""
        return self.name.rpartition(".")[0]

    @property
    def title(self) -> str:
        """Its first heading."""
        found = FIRST_HEADING.search(self.source)
        return found[1] if found else self.name

    @property
    def question(self) -> str:
        """The question that it opens with, printed in bold."""
        found = QUESTION.search(self.source)
        return " ".join(found[1].replace("\n# ", " ").split()) if found else ""

    @property
    def minutes(self) -> int | None:
        """How long it takes to read, as its first lines say."""
        found = MINUTES.search(self.source[:3000].replace("\n# ", " "))
        return int(found[1]) if found else None


def chapter_files(root: Path = ROOT) -> dict[str, Path]:
    """Return the chapters' files by page, in the order of their names."""
    folder = root / "chapters"
    paths = sorted(folder.glob("*.py")) + sorted(folder.glob("*/*.py"))
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in paths}


def listed(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Yield (caption, page) of each chapter in the toctrees of index.md."""
    index = root / "index.md"
    text = index.read_text("utf-8") if index.exists() else ""
    for block in TOCTREE.findall(text):
        lines = [line.strip() for line in block.splitlines()]
        captions = [x[9:].strip() for x in lines if x.startswith(":caption:")]
        for line in lines:
            if line.startswith("chapters/"):
                yield (captions or [""])[0], line


def read_order(root: Path = ROOT) -> list[Chapter]:
    """Return the chapters in reading order; what index.md leaves out comes last."""
    files = chapter_files(root)
    entries = [(part, page) for part, page in listed(root) if page in files]
    known = {page for _, page in entries}
    entries += [("", page) for page in files if page not in known]
    counts = {"path": 0, "package": 0}
    chapters = []
    for part, page in entries:
        shelf = "package" if page.count("/") > 1 else "path"
        counts[shelf] += 1
        number = str(counts["path"])
        if shelf == "package":
            rounds, place = divmod(counts["package"] - 1, 26)
            number = chr(ord("A") + place) * (rounds + 1)  # Z, then AA, BB
        chapters.append(Chapter(page, part, number, files[page].read_text("utf-8")))
    return chapters


# --- Numbers --------------------------------------------------------------------------


class NumberChapter(SphinxTransform):
    """Put a chapter's number before its title and before those of its equations."""

    # Messages are translated at 20: the number is no part of them.
    default_priority = 30

    def apply(self, **kwargs: Any) -> None:
        """Rewrite the document in place."""
        number = numbers(self.env).get(self.env.docname)
        title = next(self.document.findall(nodes.title), None)
        if number is None or title is None:
            return
        title.insert(0, nodes.inline("", f"{number} ", classes=["chapter-number"]))
        equations = self.env.domains["math"].data["objects"]
        for block in self.document.findall(nodes.math_block):
            if block.get("label"):
                block["number"] = f"{number}.{block['number']}"
                equations[block["label"]] = (self.env.docname, block["number"])


def numbers(env: BuildEnvironment) -> dict[str, str]:
    """Return the number of each chapter by its page."""
    return {chapter.docname: chapter.number for chapter in read_order(Path(env.srcdir))}


def outdated(app: Sphinx, env: BuildEnvironment, *_: Any) -> list[str]:
    """Read all chapters again if their numbers have changed."""
    now = numbers(env)
    changed = now != getattr(env, "chapter_numbers", None)
    env.chapter_numbers = now  # type: ignore[attr-defined]
    return [name for name in now if name in env.found_docs] if changed else []


def sidebar_changed(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Write all pages again if the sidebar, which stands on each, has changed."""
    titles = {name: title.astext() for name, title in env.titles.items()}
    sidebar = (titles, {k: list(v) for k, v in env.toctree_includes.items()})
    changed = sidebar != getattr(env, "sidebar", None)
    env.sidebar = sidebar  # type: ignore[attr-defined]
    return list(env.found_docs) if changed else []


# --- Lists of chapters ----------------------------------------------------------------


class ChapterList(SphinxDirective):
    """``{chapter-list}``: part by part the chapters, as cards.

    A card has the chapter's number and title, its question, the minutes it takes, and
    room for a picture. Parts are folded, all but the first. With ``:package:`` the list
    is that of the package, floor by floor and without cards: nobody has to read it.
    """

    option_spec = {"package": directives.flag}

    def run(self) -> list[nodes.Node]:
        """Build the lists."""
        root = Path(self.env.srcdir)
        parts: dict[str, dict[str, nodes.bullet_list]] = {}
        package = "package" in self.options
        kind = "package-list" if package else "chapter-list"
        for chapter in read_order(root):
            self.env.note_dependency(str(root / f"{chapter.docname}.py"))
            if bool(chapter.floor) != package:
                continue
            item = nodes.list_item("", link_to(chapter, self.env.docname))
            if not package:
                # What fills the place for the picture knows the chapter by its page.
                item.insert(0, nodes.container(classes=["chapter-thumbnail"]))
                item[0]["page"] = chapter.docname
                item += nodes.paragraph(
                    "", chapter.question, classes=["chapter-question"]
                )
                if chapter.minutes:
                    words = f"{chapter.minutes} minutes"
                    item += nodes.paragraph("", words, classes=["chapter-minutes"])
            floors = parts.setdefault(chapter.part, {})
            floors.setdefault(chapter.floor, nodes.bullet_list(classes=[kind])).append(
                item
            )
        content: list[nodes.Node] = []
        for part, floors in parts.items():
            count = sum(map(len, floors.values()))
            many = f"{count} chapter{'s' * (count > 1)}"
            head = f"<h3>{escape(part)}</h3> <span>{many}</span>"
            inside: list[nodes.Node] = []
            for floor, cards in floors.items():
                inside += [nodes.paragraph("", floor)] * bool(floor) + [cards]
            content += folded(head, inside, "chapter-part", not (package or content))
        return content


def folded(
    head: str, content: list[nodes.Node], kind: str, opened: bool = False
) -> list[nodes.Node]:
    """Return what a reader opens, below its head, which is HTML."""
    start = f'<details class="{kind}"{" open" * opened}><summary>{head}</summary>'
    return [
        nodes.raw("", start, format="html"),
        *content,
        nodes.raw("", "</details>", format="html"),
    ]


def link_to(chapter: Chapter, page: str) -> nodes.paragraph:
    """Return the number and the title of a chapter, which leads there from a page."""
    reference = addnodes.pending_xref(
        "",
        nodes.inline("", chapter.title),
        refdomain="std",
        reftype="doc",
        reftarget=f"/{chapter.docname}",
        refdoc=page,
        refexplicit=True,
        refwarn=True,
    )
    number = nodes.inline("", f"{chapter.number} ", classes=["chapter-number"])
    return nodes.paragraph("", "", number, reference, classes=["chapter-title"])


def readme_table(chapters: list[Chapter]) -> str:
    """Return the table of the chapters for README.md."""
    rows = ["| | chapter | the question that it answers |", "|---|---|---|"]
    for chapter in chapters:
        link = f"[{chapter.title}]({chapter.docname}.py)"
        rows.append(f"| {chapter.number} | {link} | {chapter.question} |")
    return "\n".join(rows) + "\n"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_transform(NumberChapter)
    app.add_directive("chapter-list", ChapterList)
    app.connect("env-get-outdated", outdated)
    app.connect("env-updated", sidebar_changed)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
