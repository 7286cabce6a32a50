"""The book's own rules: what docs/contributing.md asks of a chapter, checked."""

import ast
import importlib
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import tangle
from nbformat import NotebookNode
from order import read_order

import literate_rl

ROOT = tangle.ROOT
CHAPTERS = tangle.chapter_paths()
KINDS = {ROOT / f"{chapter.docname}.py": chapter.kind for chapter in read_order()}
MODULES = [tangle.module_name(c) for c in CHAPTERS if KINDS[c] != "evidence"]


# --- Reading --------------------------------------------------------------------------


def code_cells(chapter: Path) -> list[NotebookNode]:
    """Return the code cells; each knows the line of its marker as ``cell.place``."""
    notebook = tangle.read(chapter)
    for cell, start in zip(
        notebook.cells, notebook.metadata["source_map"], strict=True
    ):
        cell["place"] = f"{chapter.relative_to(ROOT)}:{start + 1}"
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def calls(cell: NotebookNode, name: str) -> bool:
    """Say whether a code cell calls a function."""
    return cell.cell_type == "code" and any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name | ast.Attribute)
        and ast.unparse(node.func).split(".")[-1] == name
        for node in ast.walk(ast.parse(cell.source))
    )


def exported(module: str) -> list[str]:
    """Return the ``__all__`` of a module."""
    return list(importlib.import_module(f"literate_rl.{module}").__all__)


def in_python(code: str) -> set[str]:
    """Run code in a fresh interpreter; return the words that it prints."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


# --- The package's front door ---------------------------------------------------------


def names_of_modules() -> dict[str, str]:
    """Return name to module of all that can be taken from the package itself."""
    return {
        name: f"literate_rl.{module}"
        for module in MODULES
        if module not in tangle.NOT_AT_THE_TOP
        for name in exported(module)
        if name not in tangle.BELOW_THE_TOP.get(module, "").split()
    }


def test_each_public_name_is_the_object_of_its_module():
    for name, module in names_of_modules().items():
        thing = getattr(importlib.import_module(module), name)
        assert getattr(literate_rl, name) is thing, name


def test_dir_lists_all_public_names_before_their_first_use():
    listed = in_python("import literate_rl; print(*dir(literate_rl))")
    assert names_of_modules().keys() <= listed


@pytest.mark.parametrize("name", ["_private", "torch"])
def test_nothing_else_is_reachable(name):
    assert not hasattr(literate_rl, name)


@pytest.mark.parametrize(
    ("modules", "late"),
    [
        ("literate_rl", "matplotlib gymnasium treetensor treevalue numba tqdm"),
        ("literate_rl.learners.ppo", "imageio_ffmpeg tensorboardX"),
        (
            ", ".join(f"literate_rl.{module}" for module in MODULES),
            "matplotlib IPython",
        ),
    ],
    ids=["package", "ppo", "all modules"],
)
def test_importing_imports_nothing_that_can_wait(modules, late):
    assert not in_python(f"import sys, {modules}; print(*sys.modules)") & {
        *late.split()
    }


# --- The shape of a chapter -----------------------------------------------------------

DRAWS = re.compile(r"\bplt\.(subplots|figure|imshow|plot)\(|\.imshow\(|\bImage\(")


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_cells_keep_the_rules_of_the_book(chapter):
    cells, solutions = code_cells(chapter), 0
    exports = [cell for cell in cells if tangle.is_export(cell)]
    for cell in exports[1:]:
        for node in ast.parse(cell.source).body:
            assert not isinstance(node, ast.Import | ast.ImportFrom), cell.place
    for before, cell in pairwise(cells):
        tags, metadata = cell.metadata.get("tags", []), cell.metadata
        nodes = ast.parse(cell.source).body
        if "hide-cell" in tags and calls(cell, "grade"):
            assert calls(before, "grade"), f"{before.place}: grades nothing"
            assert metadata.get("jupyter", {}).get("source_hidden"), cell.place
            solutions += 1
        if DRAWS.search(cell.source):
            alt = metadata.get("mystnb", {}).get("image", {}).get("alt", "")
            assert len(alt.split()) >= 5, f"{cell.place}: no alt text"
            assert not tangle.is_export(cell), cell.place
        if "claims" in tags:  # they assert and show nothing
            tree = ast.walk(ast.parse(cell.source))
            assert any(isinstance(node, ast.Assert) for node in tree), cell.place
            assert not isinstance(nodes[-1], ast.Expr), cell.place
            assert not calls(cell, "print"), cell.place
    assert solutions or KINDS[chapter] != "path", "no exercise with a folded solution"


# --- In reading order -----------------------------------------------------------------

FOLDED = {"hide-input", "hide-cell", "remove-cell", "remove-input", "claims"}
# Words of the package that say themselves what they do, or are types.
SPOKEN = """
    Masks Space Spec ActorCriticLike Envs Kept PolicyLike RecurrentConfig RunConfig
    as_argument as_mask env_seed eval_mode flat_env follow_masks leaves map_nest
    mean_return one_each open_ended pack randomness_kept read_masks refused rows_of
    settings_of
"""


def unexplained(source: str, shown: list[ast.AST], known: set[str]) -> set[str]:
    """Return what shown cells of a page use from pages to which nobody has led."""
    origin = {
        name.asname or name.name: (node.module or "").partition(".")[2]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("literate_rl.")
        for name in node.names
    }
    used = {
        node.id for x in shown for node in ast.walk(x) if isinstance(node, ast.Name)
    }
    pages = {name: tangle.chapter_of(origin[name]) for name in used & origin.keys()}
    return {name for name, page in pages.items() if not {name, page} & known}


def test_nothing_is_used_before_it_is_explained():
    """In the book: on a page so far, or where one of them leads to.

    Names that begin with `check` or `warn` only complain, as the first page says.
    """
    known = {*SPOKEN.split()}
    for page in (x for x in read_order() if not x.floor and x.part != "Side roads"):
        code = code_cells(ROOT / f"{page.docname}.py")
        shown = [x for x in code if not FOLDED & {*x.metadata.get("tags", [])}]
        known |= {*re.findall(r"^(?:class |def )?(\w+)\b", page.source, re.M)}
        links = re.findall(r"{doc}`(?:[^`<]*<)?([\w/]+)>?`", page.source)
        known |= {link.replace("/", ".") for link in links}
        new = unexplained(page.source, [ast.parse(x.source) for x in shown], known)
        assert {x for x in new if not x.startswith(("check", "warn"))} == set(), page
