"""The book's own rules: what docs/contributing.md asks of a chapter, checked."""

import ast
import importlib
import re
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import tangle
from nbformat import NotebookNode
from order import listed, read_order

import literate_rl

ROOT = tangle.ROOT
CHAPTERS = tangle.chapter_paths()
KINDS = {ROOT / f"{chapter.docname}.py": chapter.kind for chapter in read_order()}
CHAPTER_OF = {tangle.module_name(c): c for c in CHAPTERS if KINDS[c] != "evidence"}
MODULES = list(CHAPTER_OF)


def each(*kinds: str) -> pytest.MarkDecorator:
    """Run a test with each chapter of these kinds."""
    chosen = [chapter for chapter in CHAPTERS if KINDS[chapter] in kinds]
    return pytest.mark.parametrize("chapter", chosen, ids=lambda path: path.stem)


each_chapter = each("path", "evidence", "package")
each_module = pytest.mark.parametrize("module", MODULES)


# --- Reading --------------------------------------------------------------------------


@cache
def cells(chapter: Path) -> list[NotebookNode]:
    """Return a chapter's cells; each knows the line of its marker as ``cell.place``."""
    notebook = tangle.read(chapter)
    starts = notebook.metadata["source_map"]
    for cell, start in zip(notebook.cells, starts, strict=True):
        cell["place"] = f"{chapter.relative_to(ROOT)}:{start + 1}"
    return notebook.cells


def code_cells(chapter: Path) -> list[NotebookNode]:
    """Return the code cells."""
    return [cell for cell in cells(chapter) if cell.cell_type == "code"]


def headings(chapter: Path) -> list[tuple[int, int, str]]:
    """Return (cell number, level, text) of each heading."""
    return [
        (number, len(marks), text.strip())
        for number, cell in enumerate(cells(chapter))
        if cell.cell_type == "markdown"
        for marks, text in re.findall(r"^(#+) (.+)$", without_code(cell.source), re.M)
    ]


def without_code(markdown: str) -> str:
    """Return Markdown without its fenced blocks."""
    return re.sub(r"^(```+|:::+).*?^\1", "", markdown, flags=re.M | re.S)


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


def in_python(code: str) -> str:
    """Run code in a fresh interpreter; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout


# --- Files ----------------------------------------------------------------------------


def test_there_are_chapters():
    assert CHAPTERS


def test_the_views_are_in_sync():
    stale = [str(path.relative_to(ROOT)) for path in tangle.sync(ROOT, check=True)]
    assert not stale, f"stale, run `make sync`: {', '.join(stale)}"


def test_every_file_among_the_chapters_is_a_chapter():
    found = [*(ROOT / "chapters").glob("**/*.py")]
    assert sorted(found) == sorted(CHAPTERS)


def test_the_index_lists_each_chapter_once():
    pages = [page for _, page in listed()]
    files = [c.relative_to(ROOT).with_suffix("").as_posix() for c in CHAPTERS]
    assert sorted(pages) == sorted(files)
    assert len(set(pages)) == len(pages)


def test_no_two_chapters_make_one_module():
    assert len(set(MODULES)) == len(MODULES)


def test_no_module_is_named_like_a_public_object():
    names = {name for module in MODULES for name in exported(module)}
    assert not names & {module.split(".")[-1] for module in MODULES}


@each_chapter
def test_a_chapter_compiles_as_a_script(chapter):
    compile(chapter.read_text("utf-8"), chapter, "exec")


@each_module
def test_a_module_has_an_api_page(module):
    chapter = CHAPTER_OF[module].relative_to(ROOT / "chapters")
    page = ROOT / "docs/api" / chapter.with_suffix(".md")
    assert page.exists(), f"write {page.relative_to(ROOT)}"
    assert f".. automodule:: literate_rl.{module}\n" in page.read_text("utf-8")


# --- Imports --------------------------------------------------------------------------


@each_chapter
def test_package_code_imports_at_its_first_cell_only(chapter):
    exports = [cell for cell in code_cells(chapter) if tangle.is_export(cell)]
    for cell in exports[1:]:
        for node in ast.parse(cell.source).body:
            assert not isinstance(node, ast.Import | ast.ImportFrom), cell.place


@each("path", "package")
def test_the_first_export_cell_opens_the_module(chapter):
    first = next(cell for cell in code_cells(chapter) if tangle.is_export(cell))
    tree = ast.parse(first.source)
    assert ast.get_docstring(tree), first.place
    assert isinstance(tree.body[1], ast.ImportFrom), first.place
    assert tree.body[1].module == "__future__", first.place
    assert [item.name for item in tree.body[1].names] == ["annotations"], first.place
    assert list_named_all(tree), first.place


def list_named_all(tree: ast.Module) -> list[str]:
    """Return the literal ``__all__`` of a source."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def module_file(module: str) -> Path:
    """Return the file of a module."""
    return ROOT / f"src/literate_rl/{module.replace('.', '/')}.py"


@each_module
def test_all_names_what_the_module_itself_defines(module):
    loaded = importlib.import_module(f"literate_rl.{module}")
    tree = ast.parse(module_file(module).read_text("utf-8"))
    nodes = [*tree.body]
    for node in tree.body:
        if isinstance(node, ast.If):  # what a type checker sees, and what runs
            nodes += node.orelse
    defined = {
        node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    assigned = {
        ast.unparse(target)
        for node in nodes
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    assert set(loaded.__all__) <= defined | assigned


@each_module
def test_public_objects_are_described(module):
    loaded = importlib.import_module(f"literate_rl.{module}")
    for name in loaded.__all__:
        thing = getattr(loaded, name)
        if callable(thing):
            assert thing.__doc__, name


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


def test_no_name_is_public_twice():
    names = [name for module in MODULES for name in exported(module)]
    assert len(set(names)) == len(names)


def test_each_public_name_is_the_object_of_its_module():
    for name, module in names_of_modules().items():
        thing = getattr(importlib.import_module(module), name)
        assert getattr(literate_rl, name) is thing, name


def test_dir_lists_all_public_names_before_their_first_use():
    listed = in_python("import literate_rl; print(*dir(literate_rl))").split()
    assert names_of_modules().keys() <= set(listed)


def test_an_unknown_name_is_named():
    with pytest.raises(AttributeError, match=r"literate_rl.*no_such_name"):
        _ = literate_rl.no_such_name


@pytest.mark.parametrize("name", ["__path__of", "_private", "torch", "plot", "Bool"])
def test_nothing_else_is_reachable(name):
    assert not hasattr(literate_rl, name)


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, literate_rl; print(*sys.modules)"
    loaded = {name.split(".")[0] for name in in_python(code).split()}
    heavy = {"matplotlib", "gymnasium", "treetensor", "treevalue", "numba", "tqdm"}
    assert not loaded & heavy


def test_what_a_run_writes_with_is_imported_when_it_writes():
    loaded = in_python(
        "import sys, literate_rl.learners.ppo; print(*sys.modules)"
    ).split()
    assert not {"imageio_ffmpeg", "tensorboardX"} & set(loaded)


def test_importing_the_modules_imports_no_demonstration():
    modules = ", ".join(f"literate_rl.{module}" for module in MODULES)
    code = f"import sys, {modules}; print(*sys.modules)"
    loaded = {name.split(".")[0] for name in in_python(code).split()}
    assert not loaded & {"matplotlib", "IPython"}


# --- The shape of a chapter -----------------------------------------------------------


@each_chapter
def test_a_chapter_opens_with_its_title_and_closes_with_references(chapter):
    found = headings(chapter)
    titles = [number for number, level, _ in found if level == 1]
    assert titles == [0], "one title, in the first cell"
    sections = [(number, text) for number, level, text in found if level == 2]
    assert sections[-1] == (len(cells(chapter)) - 1, "References")


@each_chapter
def test_heading_levels_are_not_skipped(chapter):
    levels = [level for _, level, _ in headings(chapter)]
    for above, below in pairwise(levels):
        assert below <= above + 1


@each("path")
def test_the_parts_of_a_chapter_stand_in_order(chapter):
    numbered = list(enumerate(cells(chapter)))
    code = [n for n, cell in numbered if tangle.is_export(cell)]
    traps = [n for n, _, text in headings(chapter) if text.startswith("Trap: ")]
    devices = [n for n, cell in numbered if runs_on_best_device(cell)]
    exercises = [n for n, cell in numbered if is_solution(cell)]
    assert exercises, "no exercise with a folded solution that calls grade()"
    # Traps and a device stand where they help.
    places = {
        "package code": code[:1],
        "traps": traps[:1],
        "best device": devices[-1:],
        "exercises": exercises[:1],
    }
    there = {part: number for part, found in places.items() for number in found}
    assert list(there) == sorted(there, key=lambda part: there[part])


def runs_on_best_device(cell: NotebookNode) -> bool:
    """Say whether a demonstration runs on the best device and says which it was."""
    return (
        not tangle.is_export(cell)
        and calls(cell, "best_device")
        and calls(cell, "print")
    )


@each_chapter
def test_agents_leave_the_cpu_in_the_section_on_the_best_device_only(chapter):
    for number, cell in enumerate(cells(chapter)):
        if calls(cell, "best_device") and not tangle.is_export(cell):
            sections = [text for n, _, text in headings(chapter) if n < number]
            assert sections[-1] == "On the best device"


def is_solution(cell: NotebookNode) -> bool:
    """Say whether a cell is the folded solution of an exercise."""
    return "hide-cell" in cell.metadata.get("tags", []) and calls(cell, "grade")


@each_chapter
def test_traps_are_headings_of_the_third_level_with_code_that_runs(chapter):
    found = headings(chapter)
    for place, (number, level, text) in enumerate(found):
        if not text.startswith("Trap: "):
            continue
        assert level == 3, text
        following = [n for n, _, _ in found[place + 1 :] if n > number]
        end = following[0] if following else len(cells(chapter))
        kinds = [cell.cell_type for cell in cells(chapter)[number:end]]
        assert "code" in kinds, f"nothing runs under {text!r}"


@each_chapter
def test_each_solution_stands_below_its_exercise(chapter):
    for exercise, cell in pairwise(code_cells(chapter)):
        if is_solution(cell):
            assert calls(exercise, "grade"), f"{exercise.place}: grades nothing"
            hidden = cell.metadata.get("jupyter", {}).get("source_hidden")
            assert hidden is True, f"{cell.place}: unfolded in Jupyter"


DRAWS = re.compile(r"\bplt\.(subplots|figure|imshow|plot)\(|\.imshow\(|\bImage\(")


@each_chapter
def test_each_figure_has_a_text_alternative(chapter):
    for cell in code_cells(chapter):
        if DRAWS.search(cell.source):
            alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
            assert len(alt.split()) >= 5, f"{cell.place}: no alt text"


@each_chapter
def test_claims_assert_and_show_nothing(chapter):
    for cell in code_cells(chapter):
        if "claims" in cell.metadata.get("tags", []):
            nodes = ast.parse(cell.source).body
            assert any(
                isinstance(n, ast.Assert) for n in ast.walk(ast.parse(cell.source))
            )
            assert not isinstance(nodes[-1], ast.Expr), f"{cell.place}: shows something"
            assert not calls(cell, "print"), cell.place


@each_chapter
def test_package_code_does_not_draw_or_print(chapter):
    for cell in code_cells(chapter):
        if tangle.is_export(cell):
            assert not DRAWS.search(cell.source), cell.place


# --- Words ----------------------------------------------------------------------------


@each_chapter
def test_equation_labels_of_code_are_those_of_the_chapter(chapter):
    prose = "\n".join(c.source for c in cells(chapter) if c.cell_type == "markdown")
    labels = re.findall(r"^\$\$ \(([\w-]+)\)$", prose, re.M)
    assert len(set(labels)) == len(labels)
    for cell in code_cells(chapter):
        for label in re.findall(r"\{eq\}`([\w-]+)`", cell.source):
            known = label in labels or label in labels_before(chapter)
            assert known, f"{cell.place}: no equation {label!r}"


def labels_before(chapter: Path) -> set[str]:
    """Return the labels of the earlier chapters."""
    text = "\n".join(
        path.read_text("utf-8") for path in CHAPTERS[: CHAPTERS.index(chapter)]
    )
    return set(re.findall(r"^# \$\$ \(([\w-]+)\)$", text, re.M))


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
