"""Reader: make from each chapter the notebook that its readers get.

The pairs in ``chapters/notebooks`` serve authors. They hold what the chapter holds:
labels and roles that only the website understands. A reader's notebook says the same
in plain Markdown. ``{eq}`` becomes "(5.1)", the number of the site, ``{doc}`` a link,
``{cite:t}`` "Schulman et al. (2016)" with a list at the end. What the page folds is
folded.

The website hands these notebooks out, with the outputs that its pages show and with the
wheel that their first cells install.
``python docs/_ext/reader.py``, which ``make lab`` calls, copies them to ``notebooks/``,
where nothing is ever overwritten.
"""

from __future__ import annotations

import io
import itertools
import json
import posixpath
import re
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nbformat
import weave
from citations import Bibliography
from jupyter_cache import get_cache
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from order import FOLDER, Chapter, chapter_files, read_order
from routes import onward, read_routes
from sphinx.application import Sphinx
from sphinx.util.nodes import _make_id as anchor_of
from tangle import COPY, ROOT, TangleError, cells_of, digest, read, write

# Where `make serve` shows the site. A site with another address sets `html_baseurl`.
LOCAL = "http://localhost:8000/"
WHEEL = f"literate_rl-{version('literate-rl')}-py3-none-any.whl"
FOLDED = {"hide-input", "hide-cell", "claims"}

# What is rewritten in Markdown and in comments, and code, in which nothing is.
MARKUP = re.compile(
    r"""
    (?P<code> ^```.*?^``` | (?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`) )
    | \{(?P<role>[\w:.-]+)\}`(?P<body>[^`]+)`
    | \$\$(?P<formula>(?:(?!\$\$).)+)\$\$ [ ] \((?P<label>[\w-]+)\)
    | \]\((?P<link>[^)\s]+)\)
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
ROLE = re.compile(r"\{[\w:.-]+\}`")
LABEL = re.compile(r"\$\$ \(([\w-]+)\)$", re.MULTILINE)
DIRECTIVE = re.compile(r"^(?:`{3,}\{|:{3,})", re.MULTILINE)
REFERENCES = re.compile(r"^## References$", re.MULTILINE)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
EXPLICIT = re.compile(r"(.+?)\s*<(.+)>", re.DOTALL)


# --- The book: what a chapter may refer to --------------------------------------------


@dataclass(frozen=True)
class Book:
    """All chapters and their labels.

    Attributes:
        root: The folder of the book.
        site: Address of the website.
    """

    root: Path = ROOT
    site: str = LOCAL

    @cached_property
    def chapters(self) -> dict[str, Chapter]:
        """The chapters in reading order, by page."""
        return {chapter.docname: chapter for chapter in read_order(self.root)}

    @cached_property
    def sources(self) -> dict[str, NotebookNode]:
        """The chapters as their authors write them, by page."""
        files = chapter_files(self.root)
        return {page: read(files[page], self.root) for page in self.chapters}

    @cached_property
    def equations(self) -> dict[str, tuple[str, str]]:
        """Page and number of each labelled equation."""
        found = {}
        for page, notebook in self.sources.items():
            cells = [c.source for c in notebook.cells if c.cell_type == "markdown"]
            labels = LABEL.findall("\n".join(cells))
            for count, label in enumerate(labels, start=1):
                found[label] = page, f"{self.chapters[page].number}.{count}"
        return found

    @cached_property
    def references(self) -> Bibliography:
        """The literature."""
        return Bibliography(self.root / "docs/references.bib")

    def title(self, page: str) -> str:
        """Return a page's title as links show it: with a chapter's number."""
        if page in self.chapters:
            return f"{self.chapters[page].number} {self.chapters[page].title}"
        text = (self.root / f"{page}.md").read_text("utf-8")
        return HEADING.findall(text)[0]

    def address(self, page: str, fragment: str = "") -> str:
        """Return where a page is: another reader's notebook, or a page of the site.

        A notebook of a site that others can reach may be open somewhere else, as in
        Colab, where no other one lies beside it.
        """
        if page in self.chapters and not fragment and self.site == LOCAL:
            return self.chapters[page].notebook
        mark = "#" if fragment else ""
        return f"{self.site}{page}.html{mark}{fragment}"


# --- One chapter ----------------------------------------------------------------------


@dataclass
class Translator:
    """Rewrites the text of one chapter for its readers."""

    book: Book
    page: str
    cited: set[str] = field(default_factory=set)

    def markdown(self, text: str) -> str:
        """Rewrite the prose of a cell."""
        if found := DIRECTIVE.search(text):
            line = text[found.start() :].split("\n")[0]
            raise TangleError(f"{self.page}.py: a notebook cannot show {line!r}")
        return MARKUP.sub(self.replace, text)

    def code(self, source: str) -> str:
        """Rewrite the comments and docstrings of a cell; the code stays as it is."""
        if not ROLE.search(source):
            return source
        lines = source.splitlines(keepends=True)
        starts = [0, *itertools.accumulate(map(len, lines))]
        # From the end, so that what comes before a piece stays where it is.
        for token in reversed([*prose_of(source)]):
            row, column = token.start
            first = starts[row - 1] + column
            last = first + len(token.string)
            text = MARKUP.sub(self.replace_in_code, token.string)
            source = source[:first] + text + source[last:]
        return source

    def replace(self, found: re.Match[str]) -> str:
        """Rewrite a piece of Markdown."""
        if found["label"]:
            number = self.book.equations[found["label"]][1]
            return f"$${found['formula']}\\tag{{{number}}}\n$$"
        if found["link"]:
            return f"]({self.link(found['link'])})"
        if found["role"]:
            text, address = self.role(found["role"], found["body"])
            return f"[{text}]({address})" if address else text
        return found[0]

    def replace_in_code(self, found: re.Match[str]) -> str:
        """Rewrite a piece of a comment, in which no link can be followed."""
        if found["role"]:
            return self.role(found["role"], found["body"])[0]
        return found[0]

    def role(self, name: str, body: str) -> tuple[str, str]:
        """Return what a role shows, and the address that it leads to, if any."""
        explicit = EXPLICIT.fullmatch(body)
        text, target = explicit.groups() if explicit else ("", body)
        try:
            return self.shown(name, text, target)
        except (KeyError, FileNotFoundError):
            problem = f"{self.page}.py: no notebook can show {{{name}}}`{body}`"
            raise TangleError(problem) from None

    def shown(self, name: str, text: str, target: str) -> tuple[str, str]:
        """Return the same; the explicit text is empty if there is none."""
        if name == "eq":
            page, number = self.book.equations[target]
            return f"({number})", "" if page == self.page else self.book.address(page)
        if name == "doc":
            page = self.resolve(target)
            return text or self.book.title(page), self.book.address(page)
        if name in ("cite:t", "cite:p"):
            keys = [key.strip() for key in target.split(",")]
            self.cited.update(keys)
            return self.book.references.cite(keys, in_text=name == "cite:t"), ""
        if name == "term":
            anchor = anchor_of(f"term-{target}")
            return text or target, self.book.address("docs/glossary", anchor)
        if name.split(":")[0] == "py" or name in ("func", "class", "meth", "mod"):
            # A tilde asks for the last part only.
            short = target.rpartition(".")[2] if target.startswith("~") else target
            return f"`{text or short}`", ""
        raise KeyError(name)

    def resolve(self, target: str) -> str:
        """Return the page that a chapter means by a path."""
        above = posixpath.dirname(self.page)
        path = posixpath.normpath(posixpath.join("/", above, target))
        return path.removeprefix("/")

    def link(self, target: str) -> str:
        """Return where a Markdown link leads."""
        if target.startswith(("http:", "https:")):
            return target
        path, _, fragment = target.partition("#")
        if path:
            page = posixpath.splitext(self.resolve(path))[0]
            return self.book.address(page, fragment)
        # JupyterLab names a heading by its text, the website by a slug of it.
        cells = self.book.sources[self.page].cells
        prose = "\n".join(c.source for c in cells if c.cell_type == "markdown")
        for heading in HEADING.findall(prose):
            if slug(heading) == fragment:
                return f"#{heading.replace(' ', '-')}"
        raise TangleError(f"{self.page}.py: no heading is called {target}")


def prose_of(source: str) -> Iterator[tokenize.TokenInfo]:
    """Yield the comments and docstrings of a code."""
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        begins = before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and begins):
            yield token
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            before = token.type


def slug(heading: str) -> str:
    """Return the anchor of a heading on the website."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


# Where Colab finds the notebooks of a site that GitHub shows.
PAGES = re.compile(r"https://([\w-]+)\.github\.io/([\w.-]+)/")
COLAB = "https://colab.research.google.com/github/{0}/{1}/blob/gh-pages/{2}/{3}"
BADGE = (
    "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({})"
)
HEAD = """\
# {title}

{badge}*A chapter of [Literate RL]({site}). [Its page]({site}{page}.html) shows each
explanation beside the lines of code that it speaks of.*

You need Python 3.11, 3.12 or 3.13. The next cell installs
[the package of the book]({site}{folder}/{wheel})
where it is missing. That takes a few minutes, and 2 GB with PyTorch. (On Python 3.13
one dependency is compiled, which needs a C compiler.) All other cells together run in
less than a minute, without a network.

{neighbours}"""

INSTALL = """\
from importlib.util import find_spec

if find_spec("literate_rl") is None:
    %pip install --quiet matplotlib "literate-rl[trees] @ {site}{folder}/{wheel}\""""


def head(book: Book, page: str) -> list[NotebookNode]:
    """Return the first two cells: what this is, and what it needs."""
    pages = list(book.chapters)
    place = pages.index(page)
    around = {"Previous": pages[:place][-1:], "Next": pages[place + 1 :][:1]}
    neighbours = [
        f"{word}: [{book.title(other)}]({book.address(other)})"
        for word, others in around.items()
        for other in others
    ]
    badge = ""
    if found := PAGES.fullmatch(book.site):
        name = book.chapters[page].notebook
        badge = BADGE.format(COLAB.format(*found.groups(), FOLDER, name)) + "\n\n"
    words = {"site": book.site, "folder": FOLDER, "wheel": WHEEL, "badge": badge}
    text = HEAD.format(
        title=book.title(page), page=page, neighbours=" · ".join(neighbours), **words
    )
    return [new_markdown_cell(text), new_code_cell(INSTALL.format(**words))]


def tail(book: Book, page: str) -> list[NotebookNode]:
    """Return the last cell: where the routes of a chapter go on from it."""
    lines = [
        f"[{book.title(after)}]({book.address(after)}): {', '.join(names)}"
        for after, names in onward(page, read_routes(book.root)).items()
        if after
    ]
    text = "**Next on your route**\n\n" + "\n".join(f"- {line}" for line in lines)
    return [new_markdown_cell(text)] if lines else []


def rewritten(cell: NotebookNode, translator: Translator) -> NotebookNode:
    """Return a cell as a reader gets it."""
    made, tags = NotebookNode(cell), cell.metadata.get("tags", [])
    made.metadata = NotebookNode(tags=list(tags)) if tags else NotebookNode()
    if FOLDED & set(tags):
        # JupyterLab reads the one, Colab the other.
        made.metadata |= {"jupyter": {"source_hidden": True}, "cellView": "form"}
    prose = cell.cell_type == "markdown"
    made.source = (translator.markdown if prose else translator.code)(cell.source)
    return made


def reader_notebook(book: Book, page: str) -> NotebookNode:
    """Return a chapter as its readers get it."""
    source, translator = book.sources[page], Translator(book, page)
    cells = []
    for cell in source.cells:
        cells.append(rewritten(cell, translator))
        if "program" in cell.metadata.get("tags", []):
            command = COPY.format(page.rpartition("/")[2])
            cells.append(new_markdown_cell(f"Take this program: `{command}`"))
    # The title stands in the head, with its number.
    cells[0].source = HEADING.sub("", cells[0].source, count=1).strip()
    for cell in cells:
        if cell.cell_type == "markdown" and REFERENCES.search(cell.source):
            cell.source += "\n\n" + book.references.listing(translator.cited)
    cells = head(book, page) + cells + tail(book, page)
    stem = page.rpartition("/")[2].replace("_", "-")
    for number, cell in enumerate(cells):
        cell.id = f"{stem}-{number:02d}"
    made = new_notebook(cells=cells)
    made.metadata = NotebookNode(
        kernelspec=source.metadata.get("kernelspec", {}),
        language_info={"name": "python"},
        literate_rl={"chapter": page, "digest": digest(cells_of(made))},
    )
    return made


def reader_notebooks(book: Book) -> dict[str, str]:
    """Return the text of each notebook for readers, by its name."""
    return {
        chapter.notebook: nbformat.writes(reader_notebook(book, page)) + "\n"
        for page, chapter in book.chapters.items()
    }


# --- Handing them out -----------------------------------------------------------------


def hand_out(app: Sphinx, error: Exception | None) -> None:
    """Put the notebooks among the files of the website, with the wheel they install."""
    if error or app.builder.format != "html":
        return
    folder = Path(app.outdir) / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    site = (app.config.html_baseurl or LOCAL).rstrip("/") + "/"
    book = Book(Path(app.srcdir), site)
    cache = get_cache(app.config.nb_execution_cache_path)
    for page, chapter in book.chapters.items():
        notebook = reader_notebook(book, page)
        source = weave.read_chapter((book.root / f"{page}.py").read_text("utf-8"))
        try:
            record = cache.match_cache_notebook(source)
        except KeyError:
            pass  # it failed, and myst-nb has said so
        else:
            show_outputs(notebook, cache.get_cache_bundle(record.pk).nb)
        write(folder / chapter.notebook, nbformat.writes(notebook) + "\n")
    build_wheel(folder)


def show_outputs(notebook: NotebookNode, executed: NotebookNode) -> None:
    """Give a notebook for readers the outputs of its chapter."""
    code, shown = (
        [cell for cell in nb.cells if cell.cell_type == "code"]
        for nb in (notebook, executed)
    )
    # The first one installs.
    for cell, other in zip(code[1:], shown, strict=True):
        cell.outputs, cell.execution_count = other.outputs, other.execution_count


def build_wheel(folder: Path) -> None:
    """Build the package; it must be this one, and no index has it."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    command += ["--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)


def places(path: Path) -> Iterator[Path]:
    """Yield where to lay it: ``x.ipynb``, ``x.new.ipynb``, ``x.new2.ipynb`` and on."""
    yield path
    for number in itertools.count(1):
        yield path.with_suffix(f".new{number if number > 1 else ''}.ipynb")


def origin(text: str) -> str:
    """Return the digest that a notebook was handed out with; a reader keeps it."""
    try:
        return str(json.loads(text)["metadata"]["literate_rl"]["digest"])
    except (ValueError, KeyError, TypeError):
        return ""


def lay(folder: Path, notebooks: dict[str, str]) -> list[Path]:
    """Copy notebooks where there is none of the same origin; overwrite nothing."""
    laid = []
    for name, text in notebooks.items():
        for path in places(folder / name):
            if not path.exists():
                write(path, text)
                laid.append(path)
                break
            if origin(path.read_text("utf-8")) == origin(text):
                break
    return laid


def main() -> int:
    """Copy the notebooks to where a reader works with them; say what is new."""
    folder = ROOT / FOLDER
    notebooks = reader_notebooks(Book())
    laid = lay(folder, notebooks)
    beside = [path for path in laid if path.name not in notebooks]
    if new := len(laid) - len(beside):
        print(f"{FOLDER}/: {new} notebooks are ready")
    for path in beside:
        print(f"{FOLDER}/{path.name}: the chapter has changed; yours stays as it is")
    return 0


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("build-finished", hand_out)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    sys.exit(main())
