"""Equations: tie each labelled equation to the code that computes it and to its tests.

An equation is computed where an export cell cites it with ``{eq}``, and proved by each
test with the mark ``equation(label)``. The page says both below the equation, the
directive ``equation-index`` lists them all, and the build warns of every orphan. Labels
that start with ``def-`` are statements that nothing computes.

The directive ``errata-tests`` does the same for the errata page and its marks.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docutils import nodes
from order import read_order
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from tangle import ROOT

logger = logging.getLogger(__name__)
INDEX = "docs/equations"

MARKS = ("equation", "erratum")
NOTES = ("equations_of", "computed_in")


@dataclass(frozen=True)
class Test:
    """A marked test: where it stands and its source."""

    file: str
    name: str
    source: str


def marked_tests() -> dict[str, dict[str, list[Test]]]:
    """Return the tests with ``@pytest.mark.<mark>("label")``, by mark and label."""
    found: dict[str, Any] = {mark: defaultdict(list) for mark in MARKS}
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        text = path.read_text("utf-8")
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef):
                continue
            source = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            for decorator in node.decorator_list:
                words = ast.unparse(decorator).partition("(")[0]
                mark = words.removeprefix("pytest.mark.")
                if mark in MARKS:
                    label = ast.literal_eval(decorator.args[0])  # type: ignore[attr-defined]
                    found[mark][label].append(Test(path.name, node.name, source))
    return {mark: dict(tests) for mark, tests in found.items()}


# --- Collecting -----------------------------------------------------------------------


def load_tests(app: Sphinx, env: BuildEnvironment, *_: Any) -> list[str]:
    """Read the marks; pages whose tests changed are written again."""
    tests = marked_tests()
    changed = tests != getattr(env, "marked_tests", None)
    env.marked_tests = tests  # type: ignore[attr-defined]
    pages = [INDEX, "docs/errata", *getattr(env, "equations_of", {})]
    return [page for page in pages if page in env.found_docs] if changed else []


def collect(app: Sphinx, document: nodes.document) -> None:
    """Note a page's labelled equations and the places that compute them."""
    env = app.env
    blocks = document.findall(nodes.math_block)
    formulas = {x["label"]: x.astext() for x in blocks if x.get("label")}
    computed: dict[str, list[str]] = defaultdict(list)
    references = document.findall(addnodes.pending_xref)
    beside = [
        (x["reftarget"], x["computed_by"]) for x in references if "computed_by" in x
    ]
    for label, owner in [*beside, *document.get("folded", [])]:
        if owner and owner not in computed[label]:
            computed[label].append(owner)
    for notes, found in zip(NOTES, (formulas, dict(computed)), strict=True):
        vars(env).setdefault(notes, {})[env.docname] = found


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Drop what a removed or changed page noted."""
    for notes in NOTES:
        getattr(env, notes, {}).pop(docname, None)


def merge(app: Sphinx, env: BuildEnvironment, pages: list[str], other: Any) -> None:
    """Take what another process has noted of the pages that it read."""
    for notes in NOTES:
        found = getattr(other, notes)
        vars(env).setdefault(notes, {}).update({page: found[page] for page in pages})


def computing(env: BuildEnvironment, label: str) -> list[tuple[str, str]]:
    """Return the (page, function) pairs that compute an equation."""
    return [
        (page, owner)
        for page, labels in sorted(env.computed_in.items())  # type: ignore[attr-defined]
        for owner in labels.get(label, [])
    ]


def check(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of equations without code or test, and of marks without equation."""
    known = {}
    for page, labels in env.equations_of.items():  # type: ignore[attr-defined]
        for label in labels:
            known[label] = page
    tests = env.marked_tests["equation"]  # type: ignore[attr-defined]
    for label, page in known.items():
        if label.startswith("def-"):
            continue
        if not computing(env, label):
            logger.warning("no export cell computes equation %r", label, location=page)
        if label not in tests:
            logger.warning("no test is marked for equation %r", label, location=page)
    for label in tests.keys() - known.keys():
        logger.warning("tests name an unknown equation %r", label, location=INDEX)


# --- Showing --------------------------------------------------------------------------


class equation_index(nodes.General, nodes.Element):  # noqa: N801 (docutils' style)
    """Stands for the index until all pages are read."""


class EquationIndex(SphinxDirective):
    """``{equation-index}``: all equations with their code and tests."""

    def run(self) -> list[nodes.Node]:
        """Leave a placeholder."""
        return [equation_index()]


class ErrataTests(SphinxDirective):
    """``{errata-tests} name``: the tests that reproduce an entry of the errata."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Show the tests, or warn that there is none."""
        tests = self.env.marked_tests["erratum"].get(self.arguments[0], [])  # type: ignore[attr-defined]
        shown = self.env.metadata[self.env.docname].setdefault("errata", "")
        self.env.metadata[self.env.docname]["errata"] = f"{shown} {self.arguments[0]}"
        if not tests:
            logger.warning(
                "no test is marked for erratum %r",
                self.arguments[0],
                location=self.get_location(),
            )
        # One test may reproduce several entries.
        return [listing(test, f"{self.arguments[0]}-{anchor(test)}") for test in tests]


def check_errata(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of marks without an entry on the errata page."""
    shown = env.metadata.get("docs/errata", {}).get("errata", "").split()
    for name in env.marked_tests["erratum"].keys() - set(shown):  # type: ignore[attr-defined]
        logger.warning("tests name an unknown erratum %r", name, location="docs/errata")


def listing(test: Test, name: str) -> nodes.Node:
    """Return a folded listing of a test, with an anchor of this name."""
    box = nodes.container(ids=[name], classes=["test-listing"])
    box += nodes.raw("", f"<details><summary>{test.name} ", format="html")
    box += nodes.raw("", f"<span>tests/{test.file}</span></summary>", format="html")
    box += nodes.literal_block(test.source, test.source, language="python")
    box += nodes.raw("", "</details>", format="html")
    return box


def anchor(test: Test) -> str:
    """Return the id of a test's listing."""
    return f"{test.file.removesuffix('.py')}-{test.name}".replace("_", "-")


def tie(app: Sphinx, document: nodes.document, docname: str) -> None:
    """Say below each equation what computes it and what proves it; fill the index."""
    if document.next_node(equation_index):
        for place in list(document.findall(equation_index)):
            place.replace_self(index_of(app, docname))
        return
    for block in list(document.findall(nodes.math_block)):
        label = block.get("label")
        if label and not label.startswith("def-"):
            line = ties(app, label, docname, classes=["equation-ties"])
            if line.children:
                block.parent.insert(block.parent.index(block) + 1, line)


def ties(app: Sphinx, label: str, docname: str, classes: list[str]) -> nodes.paragraph:
    """Return the line "Computed by … · proved by …"."""
    line = nodes.paragraph(classes=classes)
    places = computing(app.env, label)
    tests = app.env.marked_tests["equation"].get(label, [])  # type: ignore[attr-defined]
    for number, (page, owner) in enumerate(places):
        line += nodes.Text("computed by " if number == 0 else ", ")
        line += link(app, docname, page, f"def-{owner}", nodes.literal("", owner))
    for number, test in enumerate(tests):
        line += nodes.Text(" · tested by " if number == 0 else ", ")
        sentence = test.name.removeprefix("test_").replace("_", " ")
        line += link(app, docname, INDEX, anchor(test), nodes.Text(sentence))
    return line


def link(
    app: Sphinx, here: str, page: str, identifier: str, text: nodes.Node
) -> nodes.Node:
    """Return a link to a place of a page."""
    uri = "" if page == here else app.builder.get_relative_uri(here, page)
    return nodes.reference("", "", text, refuri=f"{uri}#{identifier}", internal=True)


def index_of(app: Sphinx, docname: str) -> list[nodes.Node]:
    """Return the index: by chapter, each equation with its code and its tests."""
    env = app.env
    content: list[nodes.Node] = []
    listed: set[Test] = set()
    for page in [x.docname for x in read_order(Path(app.srcdir))]:
        labels = env.equations_of.get(page, {})  # type: ignore[attr-defined]
        shown = [label for label in labels if not label.startswith("def-")]
        if not shown:
            continue
        title = env.titles[page].astext()
        section = nodes.section("", nodes.title("", title), ids=[nodes.make_id(page)])
        blocks = {
            block.get("label"): block
            for block in env.get_doctree(page).findall(nodes.math_block)
        }
        section += [
            entry(app, docname, page, label, blocks[label], listed) for label in shown
        ]
        content.append(section)
    return content


def entry(
    app: Sphinx,
    docname: str,
    page: str,
    label: str,
    block: nodes.math_block,
    listed: set[Test],
) -> nodes.Node:
    """Return one equation of the index; a test is listed where it is first needed."""
    uri = app.builder.get_relative_uri(docname, page)
    place = f"{uri}#{nodes.make_id('equation-' + label)}"
    title = f"({block['number']}) {heading_of(block)}"
    heading = nodes.paragraph(classes=["equation-entry"])
    heading += nodes.reference("", title, refuri=place, internal=True)
    formula = nodes.math_block(block.astext(), block.astext())
    formula.attributes.update(number=None, label=None, nowrap=False)
    box = nodes.container(classes=["equation-box"])
    box += [heading, formula, ties(app, label, docname, classes=["equation-ties"])]
    for test in app.env.marked_tests["equation"].get(label, []):  # type: ignore[attr-defined]
        if test not in listed:
            listed.add(test)
            box.append(listing(test, anchor(test)))
    return box


def heading_of(block: nodes.Node) -> str:
    """Return the title of the section that an equation stands in."""
    section = block.parent
    while not isinstance(section, nodes.section):
        section = section.parent
    return next(section.findall(nodes.title)).astext()


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_node(equation_index)
    app.add_directive("equation-index", EquationIndex)
    app.add_directive("errata-tests", ErrataTests)
    app.connect("env-get-outdated", load_tests)
    app.connect("doctree-read", collect)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    app.connect("env-check-consistency", check)
    app.connect("env-check-consistency", check_errata)
    app.connect("doctree-resolved", tie)
    return {
        "version": "1",
        "env_version": 2,
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }
