"""Weave: turn chapters into pages, with prose and code side by side.

An export cell of a chapter is cut at its comments and docstrings. Each of them becomes
prose on the left; the code that it speaks of stands on the right. The whole cell stays
in the page too, for readers who prefer the plain notebook and for the copy button.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from sysconfig import get_python_version
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Parser as RstParser
from docutils.utils import new_document
from myst_nb.sphinx_ import NbMetadataCollector
from myst_parser.parsers.sphinx_ import MystParser
from nbformat import NotebookNode
from order import FOLDER, read_order
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.ext.intersphinx import InventoryAdapter
from sphinx.ext.napoleon import GoogleDocstring
from sphinx.transforms import SphinxTransform
from sphinx.writers.html5 import HTML5Translator
from tangle import COPY, ROOT, digest, is_export, module_name, parse

from literate_rl.apps.programs import STEPS

PACKAGE = "literate_rl"
RUN = re.compile(r'run_program\(\s*"(\w+)"')
READ = re.compile(r'(stored_runs\(|results_folder\(\) / )\s*(?:f?"([^"]*)")?')
COMPUTED = re.compile(r"\{eq\}`([\w-]+)`")
SHOWN_AGAIN = re.compile(r"^source\(", re.MULTILINE)
DIRECTIVE = re.compile(r"#(:|\s*(noqa|type:|fmt:|pragma|ruff:|mypy:))")


# --- Reading: what decides whether a chapter is executed again ------------------------


def read_chapter(text: str) -> NotebookNode:
    """Read a chapter for myst-nb.

    The execution cache compares code cells and the kernelspec. A digest of the imported
    chapters, of Python, the libraries and the stored results that it reads stands in
    the kernelspec: a page never shows numbers of an earlier state of the package.
    """
    notebook = parse(text)
    code = "\n".join(c.source for c in notebook.cells if c.cell_type == "code")
    # A change of Python or of any library may change what a chapter prints.
    parts = [f"Python {get_python_version()}"]
    parts += [
        (ROOT / name).read_text("utf-8")
        for name in ("constraints.txt", "docs/_ext/kernel_config.py")
    ]
    imported = imported_modules(code)
    modules = [path.read_text("utf-8") for path in imported]
    parts += map(meaning, modules)
    # A figure holds its scripts.
    if any(path.stem == "pictures" for path in imported):
        scripts = sorted((ROOT / "src" / PACKAGE).glob("book/*.js"))
        parts += [path.read_text("utf-8") for path in scripts]
    if SHOWN_AGAIN.search(code):
        parts += modules  # a cell that shows code again shows its comments too
    parts += [path.read_text("utf-8") for path in stored_data(code)]
    kernelspec = notebook.metadata.setdefault("kernelspec", {})
    kernelspec["package_digest"] = digest("\n".join(parts))
    name_folded_cells(notebook)
    return notebook


def name_folded_cells(notebook: NotebookNode) -> None:
    """Say on each folded cell what it holds; fold the claims."""
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if "claims" in tags:
            name, tags[:] = "What this section claims", [*tags, "hide-input"]
        elif "so-far" in tags:
            name = "The file so far"
        elif "hide-cell" in tags:
            name = "Solution"
        elif "hide-input" in tags:
            opens = "export" in tags and "__all__" in cell.source
            name = "Imports and public names" if opens else "Code"
        else:
            continue
        options = cell.metadata.setdefault("mystnb", {})
        options |= {"code_prompt_show": name, "code_prompt_hide": name}


def imported_modules(code: str) -> list[Path]:
    """Return the package's modules that a code imports, directly or through others.

    A program that it runs counts as such.
    """
    found: dict[Path, None] = {}
    waiting = [code]
    pattern = re.compile(rf"^\s*from {PACKAGE}\.([\w.]+) import", re.MULTILINE)
    while waiting:
        code = waiting.pop()
        ran = [f"programs.{name}" for name in RUN.findall(code)]
        for name in pattern.findall(code) + ran:
            path = ROOT / "src" / PACKAGE / f"{name.replace('.', '/')}.py"
            if path.exists() and path not in found:
                found[path] = None
                waiting.append(path.read_text("utf-8"))
    return sorted(found)


def stored_data(code: str) -> list[Path]:
    """Return the stored results that a code reads: all where it does not name them."""
    results = ROOT / "benchmarks/results"
    patterns = set()
    for call, name in READ.findall(code):
        name = re.sub(r"\{.*?\}", "*", name)
        if call == "stored_runs(":
            patterns.add(f"learning/{name or '*'}.csv")
            patterns.add(f"learning/{name}_curves.csv")
        else:
            patterns.add(name if name.endswith(".csv") else f"{name or '**'}/*.csv")
    return sorted({path for pattern in patterns for path in results.glob(pattern)})


@cache  # many chapters import the same modules
def meaning(code: str) -> str:
    """Return what a module does: its syntax tree without comments and docstrings."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if docstring_of(node) is not None:
            del node.body[0]  # type: ignore[attr-defined]
    return ast.dump(tree)


# --- Splitting a cell into rows -------------------------------------------------------


@dataclass
class Prose:
    """A comment (MyST) or a docstring (Google style) and its first line in the cell."""

    text: str
    line: int
    is_docstring: bool = False


@dataclass
class Row:
    """Prose and the code beside it, as a range of the cell's 0-based lines."""

    prose: list[Prose] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)


def docstring_of(node: ast.AST) -> ast.Constant | None:
    """Return the docstring's node of a module, class or function."""
    if not isinstance(
        node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    ):
        return None
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return first.value if isinstance(first.value.value, str) else None
    return None


def comment_lines(source: str) -> dict[int, str]:
    """Return the full-line comments outside of brackets: 0-based line to text."""
    comments, depth = {}, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
        if token.type != tokenize.COMMENT or DIRECTIVE.match(token.string):
            continue
        if depth == 0 and token.line[: token.start[1]].strip() == "":
            comments[token.start[0] - 1] = token.string[1:].removeprefix(" ")
    return comments


def split(source: str) -> list[Row]:
    """Cut a cell into rows at its comments and docstrings."""
    docstrings, headers = {}, {}
    for node in ast.walk(ast.parse(source)):
        text = docstring_of(node)
        if text is None or isinstance(node, ast.Module):
            continue
        decorators = [decorator.lineno for decorator in node.decorator_list]  # type: ignore[attr-defined]
        headers[min([node.lineno, *decorators]) - 1] = True  # type: ignore[attr-defined]
        docstrings[text.lineno - 1] = (text, text.end_lineno or text.lineno)
    comments = comment_lines(source)

    rows, number, total = [Row()], 0, source.count("\n") + 1
    while number < total:
        if number in comments:
            prose = Prose("", number)
            while number in comments:
                prose.text += comments[number] + "\n"
                number += 1
            rows.append(Row([prose]))
        elif number in docstrings:
            text, end = docstrings[number]
            docstring = inspect.cleandoc(str(text.value))
            rows[-1].prose.append(Prose(docstring, number, is_docstring=True))
            number = end
        else:
            # A documented definition opens a row of its own, unless a comment just did.
            if number in headers and has_code(source, rows[-1]):
                rows.append(Row())
            rows[-1].lines.append(number)
            number += 1
    return [row for row in rows if row.prose or has_code(source, row)]


def added(before: str, source: str) -> set[int]:
    """Return the 0-based lines of a program that its form on an earlier page lacks.

    A line that was only moved to the right is not new.
    """
    old, new = ([x.strip() for x in text.splitlines()] for text in (before, source))
    match = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return {
        number
        for kind, _, _, start, end in match.get_opcodes()
        if kind in ("insert", "replace")
        for number in range(start, end)
        if new[number]
    }


def program_of(chapter: Path) -> str:
    """Return the program of a chapter, as its page shows it."""
    cells = parse(chapter.read_text("utf-8")).cells
    [code] = [c.source for c in cells if "program" in c.metadata.get("tags", [])]
    return str(code)


def has_code(source: str, row: Row) -> bool:
    """Say whether a row holds more than blank lines."""
    lines = source.split("\n")
    return any(lines[number].strip() for number in row.lines)


def definitions(source: str) -> dict[int, str]:
    """Return the name of each definition and method by its 0-based line."""
    found = {}
    body = ast.parse(source).body
    # A type checker may see other definitions than Python does: the last ones count.
    for node in list(body):
        body += node.orelse if isinstance(node, ast.If) else []
    for node in body:
        if name := defined(node):
            found[node.lineno - 1] = name
        if isinstance(node, ast.ClassDef):
            for child in node.body:
                name = f"{node.name}.{defined(child)}"
                # What sets a property has the name of what returns it, further up.
                if defined(child) and name not in found.values():
                    found[child.lineno - 1] = name
    return found


def defined(node: ast.stmt) -> str:
    """Return the name of what a statement defines: also ``SAC = learner_of(…)``."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call | ast.Name):
        return ast.unparse(node.targets[0]) if len(node.targets) == 1 else ""
    return ""


# --- Building the page ----------------------------------------------------------------


class code_lines(nodes.General, nodes.Element):  # noqa: N801 (docutils' style)
    """Some lines of a cell: ``source`` is the whole cell, ``lines`` the range."""


class WeaveCells(SphinxTransform):
    """Set export cells in two columns, before messages are marked for translation."""

    default_priority = 5

    def apply(self, **kwargs: Any) -> None:
        """Rewrite the document in place."""
        path = Path(self.env.doc2path(self.env.docname))
        if path.suffix != ".py":
            return
        notebook = parse(path.read_text("utf-8"))
        code = [c.source for c in notebook.cells if c.cell_type == "code"]
        joined = "\n".join(code)
        for dependency in imported_modules(joined) + stored_data(joined):
            self.env.note_dependency(str(dependency))
        self.env.note_dependency(str(ROOT / "constraints.txt"))

        module = f"{PACKAGE}.{module_name(path)}"
        own = [c.source for c in notebook.cells if is_export(c)]
        names = aliases(code) | {
            name: f"{module}.{name}"
            for source in own
            for name in definitions(source).values()
        }
        for block in self.document.findall(nodes.literal_block):
            block["aliases"] = names
        starts = notebook.metadata["source_map"]
        for cell in list(self.document.findall(nodes.container)):
            if cell.get("nb_element") != "cell_code":
                continue
            classes = cell["classes"]
            link_modules(cell)
            if "tag_program" in classes:
                cell.parent.insert(cell.parent.index(cell) + 1, take_along(path.stem))
                if path.stem in STEPS[1:]:
                    before = path.with_stem(STEPS[STEPS.index(path.stem) - 1])
                    self.env.note_dependency(str(before))
                    first = starts[cell["cell_index"]] + 1
                    self.weave(cell, first, names, program_of(before))
            if "tag_export" not in classes:
                continue
            # What is folded has nothing to say beside itself.
            if "tag_hide-input" in classes:
                self.add_anchors(cell)
            else:
                self.weave(cell, starts[cell["cell_index"]] + 1, names)
        self.add_facts(path, module, bool(own))

    def add_anchors(self, cell: nodes.container) -> None:
        """Let links to what a folded cell defines lead to it; note what it computes."""
        block = next(cell.findall(nodes.literal_block))
        owners = definitions(block.astext())
        anchors = "".join(f'<span id="def-{name}"></span>' for name in owners.values())
        block.parent.insert(0, nodes.raw("", anchors, format="html"))
        folded, owner = self.document.setdefault("folded", []), ""
        for number, line in enumerate(block.astext().splitlines()):
            owner = owners.get(number, owner)
            folded += [(label, owner) for label in COMPUTED.findall(line) if owner]

    def weave(
        self,
        cell: nodes.container,
        first: int,
        names: dict[str, str],
        before: str | None = None,
    ) -> None:
        """Add the two columns to a cell whose code starts at 0-based line ``first``.

        Of a program that has grown, what it was ``before`` is folded.
        """
        block = next(cell.findall(nodes.literal_block))
        source = block.astext()
        rows = split(source)
        if not any(row.prose for row in rows):
            self.add_anchors(cell)
            return
        grown = before is not None
        new = added(before, source) if grown else set()
        owners = {} if grown else definitions(source)
        columns = nodes.container(classes=["weave-columns"])
        owner = ""
        for fresh, group in groupby(rows, lambda row: not grown or is_new(row, new)):
            boxes = []
            for row in group:
                box = nodes.container(classes=["weave-row"])
                prose = nodes.container(classes=["weave-prose"])
                for number in row.lines:
                    owner = owners.get(number, owner)
                for piece in row.prose:
                    line = first + piece.line
                    prose += self.parse(piece, line)
                for reference in prose.findall(addnodes.pending_xref):
                    if reference["reftype"] == "eq" and not grown:
                        reference["computed_by"] = owner
                code = code_lines(
                    source=source,
                    lines=row.lines,
                    owners=owners,
                    aliases=names,
                    new=new,
                )
                box += [prose, code]
                boxes.append(box)
            columns += boxes if fresh else as_before(boxes)
        plain = nodes.container("", *cell.children, classes=["weave-plain"])
        cell.children = []
        cell["classes"].append("woven")
        cell += [columns, plain]

    def parse(self, piece: Prose, line: int) -> list[nodes.Node]:
        """Parse a comment as MyST, a docstring as reStructuredText after Napoleon."""
        document = new_document(self.document["source"], self.document.settings)
        document.reporter = self.document.reporter
        # Ids are counted through, so that no two of the page are equal.
        document.ids, document.id_counter = self.document.ids, self.document.id_counter
        if not piece.is_docstring:
            MystParser().parse("\n" * line + piece.text, document)
            return document.children
        body = str(GoogleDocstring(piece.text, self.config))
        indented = "\n".join("   " + text for text in body.splitlines())
        directive = ".. py:function:: f\n   :no-index:\n\n"
        RstParser().parse("\n" * (line - 3) + directive + indented, document)
        content = next(document.findall(addnodes.desc_content)).children
        # The reference part is folded: it is long, and the code beside it is short.
        text = [node for node in content if not isinstance(node, nodes.field_list)]
        fields = [node for node in content if isinstance(node, nodes.field_list)]
        if fields:
            summary = "<details><summary>Arguments, result, errors</summary>"
            text.append(nodes.raw("", summary, format="html"))
            text += [*fields, nodes.raw("", "</details>", format="html")]
        return text

    def add_facts(self, path: Path, module: str, has_module: bool) -> None:
        """Say under the title how long the page ran and where its other views are."""
        title = next(self.document.findall(nodes.title))
        run = NbMetadataCollector.get_exec_data(self.env, self.env.docname) or {}
        facts = nodes.paragraph(classes=["chapter-facts"])
        if run.get("runtime"):
            facts += nodes.Text(f"Ran in {run['runtime']:.0f} s · ")
        facts += handed_out(self.env.docname, Path(self.env.srcdir))
        facts += nodes.Text(" · ")
        if has_module:
            facts += addnodes.pending_xref(
                "",
                nodes.inline("", "Module"),
                refdomain="py",
                reftype="mod",
                reftarget=module,
                refdoc=self.env.docname,
                refexplicit=True,
            )
            facts += nodes.Text(" · ")
        facts += download("Source", f"/{path.relative_to(ROOT)}")
        if has_module:
            # Where no script runs, the style sheet hides it.
            switch = '<button type="button" class="weave-switch">{}</button>'
            words = "Show the plain notebook"
            facts += nodes.raw("", switch.format(words), format="html")
        title.parent.insert(title.parent.index(title) + 1, facts)


def is_new(row: Row, new: set[int]) -> bool:
    """Say whether a row of a program that has grown holds a new line."""
    return not new.isdisjoint([*row.lines, *(piece.line for piece in row.prose)])


def as_before(boxes: list[nodes.container]) -> Iterator[nodes.Node]:
    """Fold rows of a program that an earlier page has shown."""
    words = f"{sum(len(box[-1]['lines']) for box in boxes)} lines as before"
    yield nodes.raw(
        "", f'<details class="as-before"><summary>{words}</summary>', format="html"
    )
    yield from boxes
    yield nodes.raw("", "</details>", format="html")


def take_along(name: str) -> nodes.Node:
    """Return how a reader gets the program that stands above."""
    command = nodes.literal("", COPY.format(name))
    file = download(f"{name}.py", f"/src/{PACKAGE}/programs/{name}.py")
    words = ["Take this program: ", command, ", or download ", file, "."]
    text = [nodes.Text(x) if isinstance(x, str) else x for x in words]
    return nodes.paragraph("", "", *text, classes=["take-along"])


def link_modules(cell: nodes.container) -> None:
    """Let the names of modules in a cell's output lead to their chapters."""
    for name in list(cell.findall(nodes.literal)):
        page = name.astext().removeprefix(f"{PACKAGE}.").replace(".", "/")
        if name.astext() != page and (ROOT / f"chapters/{page}.py").exists():
            link = addnodes.pending_xref(
                "",
                name.deepcopy(),
                refdomain="std",
                reftype="doc",
                reftarget=f"/chapters/{page}",
                refexplicit=True,
                refwarn=True,
            )
            name.parent.replace(name, link)


def handed_out(page: str, root: Path) -> nodes.Node:
    """Return a link that downloads a chapter's notebook for readers."""
    [name] = [each.notebook for each in read_order(root) if each.docname == page]
    uri = "../" * page.count("/") + f"{FOLDER}/{name}"
    tag = f'<a class="reference download internal" download="" href="{uri}">'
    return nodes.raw("", f"{tag}Notebook</a>", format="html")


def download(text: str, target: str) -> nodes.Node:
    """Return a link that downloads a file of the repository."""
    return addnodes.download_reference(
        "", text, reftype="download", reftarget=target, refdoc=""
    )


# --- Highlighting: the lines of one cell, with links to what they name ----------------


def aliases(cells: list[str]) -> dict[str, str]:
    """Return what the names that a chapter imports stand for, fully qualified."""
    names = {}
    for node in ast.walk(ast.parse("\n".join(cells))):
        if isinstance(node, ast.Import):
            for item in node.names:
                short = item.asname or item.name.split(".")[0]
                names[short] = item.name if item.asname else short
        if isinstance(node, ast.ImportFrom) and node.module:
            for item in node.names:
                names[item.asname or item.name] = f"{node.module}.{item.name}"
    return names


DOTTED = re.compile(
    r'(?<!<span class="o">\.</span>)<span class="n[a-z]*">\w+</span>'
    r'(?:<span class="o">\.</span><span class="n[a-z]*">\w+</span>)*'
)


def link_names(translator: HTML5Translator, html: str, names: dict[str, str]) -> str:
    """Link the names in highlighted code to the API page or to other projects."""
    builder = translator.builder
    here = builder.current_docname
    own = builder.env.domains["py"].objects
    others = InventoryAdapter(builder.env).main_inventory

    def target(name: str) -> str | None:
        if name in own:
            entry = own[name]
            return f"{builder.get_relative_uri(here, entry.docname)}#{entry.node_id}"
        for kind, items in others.items():
            if kind.startswith("py:") and name in items:
                return items[name].uri
        return None

    def link(match: re.Match[str]) -> str:
        words = re.findall(r">(\w+)</span>", match[0])
        if words[0] not in names:
            return match[0]
        spans = match[0].split('<span class="o">.</span>')
        for length in range(len(words), 0, -1):
            full = ".".join([names[words[0]], *words[1:length]])
            if (uri := target(full)) is not None:
                dot = '<span class="o">.</span>'
                inner, rest = dot.join(spans[:length]), spans[length:]
                return f'<a href="{uri}">{inner}</a>' + "".join(dot + s for s in rest)
        return match[0]

    return DOTTED.sub(link, html)


@cache
def highlighted_lines(highlighter: Any, source: str) -> list[str]:
    """Return a cell's highlighted lines, each with balanced tags."""
    html = highlighter.highlight_block(source, "ipython3")
    inner = html.split("<pre>", 1)[1].rsplit("</pre>", 1)[0]
    return inner.replace("<span></span>", "", 1).split("\n")


def visit_code_lines(self: HTML5Translator, node: code_lines) -> None:
    """Write some lines of a cell."""
    lines = highlighted_lines(self.highlighter, node["source"])
    chosen = []
    for number in node["lines"]:
        line = lines[number]
        # The link to a definition leads to its line.
        if number in node["owners"]:
            line = f'<span id="def-{node["owners"][number]}"></span>{line}'
        if number in node["new"]:
            line = f"<ins>{line}</ins>"
        chosen.append(line)
    html = link_names(self, "\n".join(chosen).strip("\n"), node["aliases"])
    if html.strip():
        self.body.append(f'<div class="weave-code highlight"><pre>{html}\n</pre></div>')
    raise nodes.SkipNode


def visit_literal_block(self: HTML5Translator, node: nodes.literal_block) -> None:
    """Write a whole code block as Sphinx does, then link its names."""
    try:
        HTML5Translator.visit_literal_block(self, node)
    finally:
        if "aliases" in node:
            self.body[-1] = link_names(self, self.body[-1], node["aliases"])


def skip(self: Any, node: nodes.Node) -> None:
    """Leave the columns out of formats that only need the plain cell."""
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_node(code_lines, html=(visit_code_lines, None), text=(skip, None))
    app.add_node(
        nodes.literal_block,
        override=True,
        html=(visit_literal_block, HTML5Translator.depart_literal_block),
    )
    app.add_transform(WeaveCells)
    # A page that an older extension read would be wrong: read all again.
    code = "".join(
        path.read_text(encoding="utf-8")
        for path in sorted(Path(__file__).parent.glob("*.py"))
    )
    app.add_config_value("extensions_digest", digest(code), "env")
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
