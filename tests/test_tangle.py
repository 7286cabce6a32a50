"""Tangle: one chapter makes one module and one notebook, and nobody's work is lost."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import jupytext.cli
import nbformat
import pytest
import tangle
from hypothesis import given
from hypothesis import strategies as st

from literate_rl import floors

HEADER = """\
# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

"""
CELLS = [
    "# %% [markdown]\n# # Coins\n#\n# How much is a coin worth, $v$?",
    '# %% tags=["export"]\n"""Coins."""\n\n__all__ = ["value"]',
    "# %% [markdown]\n# Now the value.",
    '# %% tags=["export"]\ndef value(coin):\n    """Return it."""\n    return coin + 1',
    '# %% mystnb={"image": {"alt": "a coin"}}\nprint(value(1))',
]
COINS = HEADER + "\n\n".join(CELLS) + "\n"
NOTES = COINS.replace("Coins", "Notes").replace("value", "note")
MODULE = "src/literate_rl/coins.py"
NOTEBOOK = "chapters/notebooks/coins.ipynb"
NAMES = "src/literate_rl/__init__.pyi"


def files(root: Path) -> dict[str, bytes]:
    """Return all files below a folder."""
    paths = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def replace(path: Path, old: str, new: str) -> None:
    """Edit a file as a person would."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def refusal(root: Path) -> str:
    """Return the message with which a sync refuses, having written nothing."""
    before = files(root)
    with pytest.raises(tangle.TangleError) as error:
        tangle.sync(root)
    assert files(root) == before
    return str(error.value)


def new_root(path: Path) -> Path:
    """Make a repository with one chapter and no views."""
    (path / "chapters").mkdir(parents=True)
    (path / "chapters/coins.py").write_text(COINS)
    (path / "src/literate_rl").mkdir(parents=True)
    (path / "src/literate_rl/__init__.py").write_text('"""Hand-written."""\n')
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a repository whose views are in sync."""
    root = new_root(tmp_path / "repository")
    tangle.sync(root)
    return root


# --- What is written ------------------------------------------------------------------


def test_sync_writes_a_module_and_a_notebook(tmp_path):
    root = new_root(tmp_path)
    assert tangle.sync(root) == [root / NOTEBOOK, root / NAMES, root / MODULE]
    assert {MODULE, NOTEBOOK, NAMES} <= files(root).keys()


def test_sync_twice_changes_nothing(root):
    before = files(root)
    stamps = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert tangle.sync(root) == []
    assert files(root) == before
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == stamps


def test_views_do_not_depend_on_the_place(root, tmp_path):
    other = new_root(tmp_path / "elsewhere/and deeper")
    tangle.sync(other)
    assert files(other) == files(root)


def test_a_module_is_its_header_and_the_export_cells(root):
    header, _, body = (root / MODULE).read_text().partition("\n")
    assert header.startswith("# Generated from chapters/coins.py ")
    exports = [cell.partition("\n")[2] for cell in CELLS if "export" in cell]
    assert body == "\n\n\n".join(exports) + "\n"


def test_the_names_are_those_that_the_modules_make_public(root):
    _, _, body = (root / NAMES).read_text().partition("\n")
    assert body == ("from .coins import (\n    value as value,\n)\n")
    notes = COINS.replace("value", "b").replace('"b"', '"a", "b"')
    notes = notes.replace("def b(", "a = 1\n\n\ndef b(")
    (root / "chapters/notes.py").write_text(notes)
    assert root / NAMES in tangle.sync(root)
    assert "from .notes import (\n    a as a,\n    b as b,\n)" in (
        (root / NAMES).read_text()
    )


def test_a_notebook_holds_all_cells_and_no_outputs(root):
    notebook = nbformat.read(root / NOTEBOOK, 4)
    nbformat.validate(notebook)
    assert [cell.cell_type for cell in notebook.cells] == [
        "markdown",
        "code",
        "markdown",
        "code",
        "code",
    ]
    assert notebook.cells[0].source.startswith("# Coins\n\nHow much")
    assert notebook.cells[4].metadata.mystnb == {"image": {"alt": "a coin"}}
    assert notebook.metadata.kernelspec.name == "python3"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(c.outputs == [] and c.execution_count is None for c in code)


def test_cell_ids_stay_when_a_cell_is_edited(root):
    before = [cell.id for cell in nbformat.read(root / NOTEBOOK, 4).cells]
    replace(root / "chapters/coins.py", "How much", "How very much")
    tangle.sync(root)
    assert [cell.id for cell in nbformat.read(root / NOTEBOOK, 4).cells] == before


def test_an_edited_chapter_rewrites_its_own_views_only(root):
    (root / "chapters/notes.py").write_text(NOTES)
    tangle.sync(root)
    replace(root / "chapters/coins.py", "coin + 1", "coin + 2")
    assert tangle.sync(root) == [root / NOTEBOOK, root / MODULE]
    assert "coin + 2" in (root / MODULE).read_text()
    assert "coin + 2" in (root / NOTEBOOK).read_text()


def test_prose_alone_leaves_the_module(root):
    replace(root / "chapters/coins.py", "How much", "How very much")
    assert tangle.sync(root) == [root / NOTEBOOK]


def test_metadata_alone_rewrites_the_notebook(root):
    replace(root / "chapters/coins.py", "a coin", "a silver coin")
    assert tangle.sync(root) == [root / NOTEBOOK]
    assert "a silver coin" in (root / NOTEBOOK).read_text()


def test_a_renamed_chapter_takes_its_views_along(root):
    (root / "chapters/coins.py").rename(root / "chapters/money.py")
    assert set(tangle.sync(root)) == {
        root / MODULE,
        root / NOTEBOOK,
        root / NAMES,
        root / "src/literate_rl/money.py",
        root / "chapters/notebooks/money.ipynb",
    }
    assert files(root).keys() == {
        "chapters/money.py",
        "chapters/notebooks/money.ipynb",
        "src/literate_rl/__init__.py",
        "src/literate_rl/__init__.pyi",
        "src/literate_rl/money.py",
    }


def test_the_order_of_the_index_is_that_of_the_names(root):
    (root / "chapters/notes.py").write_text(COINS.replace("value", "a"))
    for pages in (["notes", "coins"], ["coins", "notes"]):
        entries = "\n".join(f"chapters/{page}" for page in pages)
        index = f"```{{toctree}}\n:caption: Money\n\n{entries}\n```\n"
        (root / "index.md").write_text(index)
        tangle.sync(root)
        _, _, body = (root / NAMES).read_text().partition("\n")
        assert re.findall(r"from \.(\w+) import", body) == pages


def test_a_chapter_of_the_package_has_its_views_on_its_floor(root):
    ground = root / "chapters/ground"
    ground.mkdir()
    (ground / "mint.py").write_text(COINS.replace("value", "strike"))
    made = [
        root / "chapters/notebooks/ground/mint.ipynb",
        root / NAMES,
        root / "src/literate_rl/ground/mint.py",
    ]
    assert tangle.sync(root) == made
    assert "from .ground.mint import (\n    strike as strike,\n)" in (
        (root / NAMES).read_text()
    )
    assert tangle.sync(root) == []
    replace(made[2], "coin + 1", "coin + 2")
    assert refusal(root).startswith("src/literate_rl/ground/mint.py:1: edited by")
    made[2].unlink()
    (ground / "mint.py").unlink()
    assert set(tangle.sync(root)) == set(made[:2])
    assert not made[0].exists()


def test_the_readme_lists_the_chapters_and_keeps_the_rest(root):
    readme = root / "README.md"
    text = "# Mine\n<!-- chapters -->\nold\n<!-- end of chapters -->\nrest\n"
    readme.write_text(text)
    assert tangle.sync(root) == [readme]
    head, row, rest = readme.read_text().partition(
        "| 1 | [Coins](chapters/coins.py) |  |\n"
    )
    assert head.startswith("# Mine\n<!-- chapters -->\n| |")
    assert row
    assert rest == "<!-- end of chapters -->\nrest\n"
    assert tangle.sync(root) == []


def test_check_names_stale_views_and_writes_nothing(root):
    replace(root / "chapters/coins.py", "coin + 1", "coin + 2")
    before = files(root)
    assert tangle.sync(root, check=True) == [root / NOTEBOOK, root / MODULE]
    assert files(root) == before


# --- What is refused ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "old", "new"),
    [
        (MODULE, "coin + 1", "coin + 2"),
        (MODULE, "# Generated from", "# Made from"),
        (NAMES, "value as value", "value as price"),
        (MODULE, '"""Coins."""\n', ""),
        (NOTEBOOK, "coin + 1", "coin + 2"),
        (NOTEBOOK, "How much", "How very much"),
        (NOTEBOOK, '"export"', '"exported"'),
        (NOTEBOOK, '"a coin"', '"a silver coin"'),
    ],
)
@pytest.mark.parametrize("chapter_changed", [False, True])
def test_a_hand_edit_is_kept_and_named(root, view, old, new, chapter_changed):
    # Another chapter has work to do: it must wait as well.
    (root / "chapters/notes.py").write_text(NOTES)
    if chapter_changed:
        replace(root / "chapters/coins.py", "print(value(1))", "print(value(2))")
    replace(root / view, old, new)
    message = refusal(root)
    assert message.startswith(f"{view}:1: edited by hand")
    assert "chapters/" in message
    assert "make sync" in message
    assert len(message.splitlines()) == 1


def test_all_hand_edits_are_named(root):
    replace(root / MODULE, "coin + 1", "coin + 2")
    replace(root / NOTEBOOK, "How much", "How very much")
    assert [line.split(":")[0] for line in refusal(root).splitlines()] == [
        NOTEBOOK,
        MODULE,
    ]


def test_deleting_the_edited_view_is_the_way_out(root):
    before = files(root)
    replace(root / MODULE, "coin + 1", "coin + 2")
    refusal(root)
    (root / MODULE).unlink()
    assert tangle.sync(root) == [root / MODULE]
    assert files(root) == before


def test_a_hand_edited_module_of_a_removed_chapter_is_kept(root):
    replace(root / MODULE, "coin + 1", "coin + 2")
    (root / "chapters/coins.py").unlink()
    assert refusal(root).startswith(f"{MODULE}:1:")


def test_a_module_that_no_chapter_made_is_refused(root):
    (root / "src/literate_rl/utils.py").write_text("answer = 42\n")
    assert refusal(root).startswith("src/literate_rl/utils.py:1:")


@pytest.mark.parametrize("name", ["__init__.py", "__main__.py", "py.typed"])
def test_hand_written_files_of_the_package_are_left_alone(root, name):
    (root / "src/literate_rl" / name).write_text("# mine\n")
    assert tangle.sync(root) == []


def test_a_notebook_with_merge_conflicts_is_refused(root):
    replace(root / NOTEBOOK, "{", "<<<<<<< HEAD\n{")
    assert refusal(root).startswith(f"{NOTEBOOK}:1:")


# --- A person at work in Jupyter ------------------------------------------------------


def test_an_executed_notebook_is_written_afresh(root):
    before = files(root)
    notebook = nbformat.read(root / NOTEBOOK, 4)
    output = nbformat.v4.new_output("stream", name="stdout", text="2\n")
    notebook.cells[4].update(outputs=[output], execution_count=1)
    notebook.metadata.language_info = {"name": "python", "version": "3.11.7"}
    nbformat.write(notebook, root / NOTEBOOK)
    assert tangle.sync(root) == [root / NOTEBOOK]
    assert files(root) == before


@pytest.mark.parametrize("folder", ["", "ground/"])
def test_a_notebook_saved_through_its_pairing_is_accepted(root, monkeypatch, folder):
    shutil.copy(tangle.ROOT / "pyproject.toml", root)
    monkeypatch.chdir(root)
    source = root / f"chapters/{folder}coins.py"
    source.parent.mkdir(exist_ok=True)
    (root / "chapters/coins.py").rename(source)
    tangle.sync(root)
    pair = root / f"chapters/notebooks/{folder}coins.ipynb"
    module = root / f"src/literate_rl/{folder}coins.py"
    notebook = nbformat.read(pair, 4)
    notebook.cells[3].source = notebook.cells[3].source.replace("coin + 1", "coin + 2")
    notebook.cells.insert(3, nbformat.v4.new_markdown_cell("A cell between."))
    nbformat.write(notebook, pair)
    later = source.stat().st_mtime + 10
    os.utime(pair, (later, later))

    jupytext.cli.jupytext(["--quiet", "--sync", str(pair.relative_to(root))])
    edited = [*CELLS[:3], "# %% [markdown]\n# A cell between.", *CELLS[3:]]
    expected = HEADER + "\n\n".join(edited) + "\n"
    assert source.read_text().split() == (
        expected.replace("coin + 1", "coin + 2").split()
    )
    assert set(tangle.sync(root)) == {pair, module}
    assert "coin + 2" in module.read_text()
    assert tangle.sync(root) == []


@pytest.mark.parametrize("folder", ["", "ground/"])
def test_a_chapter_saved_through_its_pairing_reaches_the_notebook(
    root, monkeypatch, folder
):
    shutil.copy(tangle.ROOT / "pyproject.toml", root)
    monkeypatch.chdir(root)
    source = root / f"chapters/{folder}coins.py"
    source.parent.mkdir(exist_ok=True)
    (root / "chapters/coins.py").rename(source)
    tangle.sync(root)
    pair = root / f"chapters/notebooks/{folder}coins.ipynb"
    replace(source, "How much", "How very much")
    later = pair.stat().st_mtime + 10
    os.utime(source, (later, later))
    jupytext.cli.jupytext(["--quiet", "--sync", str(source.relative_to(root))])
    assert "How very much" in pair.read_text()


# --- Errors in a chapter --------------------------------------------------------------


@given(
    before=st.lists(st.sampled_from(CELLS), max_size=4),
    after=st.lists(st.sampled_from(CELLS), max_size=2),
    gap=st.integers(0, 3),
    broken=st.sampled_from(["def f(:", "return =", "x = (1", "  indented = 1", "1x"]),
)
def test_a_syntax_error_is_reported_at_its_line(
    tmp_path_factory, before, after, gap, broken
):
    root = new_root(tmp_path_factory.mktemp("root"))
    cell = '# %% tags=["export"]\n' + "fine = 1\n" * gap + broken
    text = HEADER + "\n\n".join([*before, cell, *after]) + "\n"
    (root / "chapters/coins.py").write_text(text)
    line = 1 + text.splitlines().index(broken)
    assert refusal(root).startswith(f"chapters/coins.py:{line}: ")


def test_an_open_string_is_reported_as_such(root):
    chapter = root / "chapters/coins.py"
    replace(chapter, '"""Return it."""', '"""Return it.')
    line = 1 + chapter.read_text().splitlines().index('    """Return it.')
    assert refusal(root).startswith(f"chapters/coins.py:{line}: ")


def test_text_before_the_first_cell_is_refused(root):
    replace(root / "chapters/coins.py", HEADER, HEADER + "import this\n\n")
    assert refusal(root) == "chapters/coins.py:1: text outside of the `# %%` cells"


def test_a_chapter_without_package_code_has_a_notebook_and_no_module(root):
    replace(root / "chapters/coins.py", ' tags=["export"]', "")
    assert set(tangle.sync(root)) == {root / NOTEBOOK, root / NAMES, root / MODULE}
    assert not (root / MODULE).exists()
    assert "coins" not in (root / NAMES).read_text()


def test_demonstrations_do_not_reach_the_module(root):
    assert "print" not in (root / MODULE).read_text()


def at(root: Path, text: str) -> str:
    """Return file and line of a text in the chapter."""
    lines = (root / "chapters/coins.py").read_text().splitlines()
    return f"chapters/coins.py:{1 + lines.index(text)}: "


@pytest.mark.parametrize("name", ["__init__", "__main__", "floors"])
def test_a_chapter_may_not_take_the_name_of_a_hand_written_file(root, name):
    (root / f"chapters/{name}.py").write_text(COINS)
    assert refusal(root).startswith(f"chapters/{name}.py:1: ")


@pytest.mark.parametrize("name", ["my-chap", "a.b", "class", "2nd"])
def test_a_chapter_has_the_name_of_a_module(root, name):
    (root / f"chapters/{name}.py").write_text(COINS)
    message = f"chapters/{name}.py:1: {name!r} is no name of a module"
    assert refusal(root) == message


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ('["value", "value"]', "'value' stands twice in `__all__`"),
        ('["value", "worth"]', "no export cell defines the public 'worth'"),
    ],
)
def test_public_names_are_listed_once_and_defined(root, names, message):
    replace(root / "chapters/coins.py", '["value"]', names)
    assert refusal(root) == at(root, f"__all__ = {names}") + message


def test_a_chapter_is_listed_once(root):
    page = "chapters/coins"
    (root / "index.md").write_text(f"```{{toctree}}\n{page}\n{page}\n```\n")
    assert refusal(root) == "index.md:3: chapters/coins is listed twice"


def test_a_public_name_has_one_home(root):
    (root / "chapters/notes.py").write_text(COINS)
    line = 1 + COINS.splitlines().index('__all__ = ["value"]')
    assert refusal(root) == (
        f"chapters/notes.py:{line}: 'value' is public in chapters/coins.py as well"
    )


@pytest.mark.parametrize(
    "names", ["[*others]", "sorted(others)", "3", "['a', 1]", "'value'"]
)
def test_public_names_are_listed_literally(root, names):
    replace(root / "chapters/coins.py", '["value"]', names)
    message = "`__all__` must be a list of names"
    assert refusal(root) == at(root, f"__all__ = {names}") + message


@pytest.mark.parametrize("comment", ["", "# "])
@pytest.mark.parametrize("place", ["# Now the value.", "print(value(1))"])
def test_conflict_markers_are_refused_in_prose_and_code(root, comment, place):
    ours, theirs = f"{comment}<<<<<<< HEAD", f"{comment}>>>>>>> other"
    both = f"{ours}\n{place}\n{comment}=======\n{place}\n{theirs}"
    replace(root / "chapters/coins.py", place, both)
    assert refusal(root) == at(root, ours) + "a conflict of a merge is left"


def test_a_syntax_error_in_a_demonstration_is_reported_at_its_line(root):
    replace(root / "chapters/coins.py", "print(value(1))", "x = 1\nprint(value(1)")
    assert refusal(root).startswith(at(root, "print(value(1)"))


@pytest.mark.parametrize("name", ["chapters/coins.py", MODULE, NOTEBOOK, "index.md"])
def test_a_file_that_is_no_text_is_named_with_its_line(root, name):
    (root / name).write_bytes(b"# one\n# caf\xe9\n")
    assert refusal(root) == f"{name}:2: byte 0xe9 is not UTF-8"


@pytest.mark.parametrize("name", ["chapters/notes.py", MODULE, NOTEBOOK])
def test_a_directory_in_the_place_of_a_file_is_named(root, name):
    (root / name).unlink(missing_ok=True)
    (root / name).mkdir()
    assert refusal(root) == f"{name}:1: is a directory"


@pytest.mark.parametrize(
    "text",
    ["{}", "[1]", "3", '{"nbformat": 3}', '{"cells": [{}], "nbformat": 4}', '{"a": 1}'],
)
def test_a_notebook_that_is_other_json_is_kept_and_named(root, text):
    (root / NOTEBOOK).write_text(text)
    assert refusal(root).startswith(f"{NOTEBOOK}:1: edited by hand")


# --- The command ----------------------------------------------------------------------


@pytest.fixture
def command(tmp_path: Path) -> ModuleType:
    """Return the tangler of a repository of its own, without views."""
    root = new_root(tmp_path)
    (root / "docs/_ext").mkdir(parents=True)
    script = shutil.copy(tangle.__file__, root / "docs/_ext")
    shutil.copy(floors.__file__, root / "src/literate_rl")
    spec = importlib.util.spec_from_file_location("tangle_command", script)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_exit_codes_and_what_is_printed(command, capsys):
    def run(*arguments: str) -> tuple[int, str, str]:
        return command.main([*arguments]), *capsys.readouterr()

    def each(state: str) -> str:
        return "".join(f"{view}: {state}\n" for view in (NOTEBOOK, NAMES, MODULE))

    assert run("--check") == (1, each("stale, run `make sync`"), "")
    assert run() == (0, each("synced"), "")
    assert run("--check") == (0, "", "")
    replace(command.ROOT / MODULE, "coin + 1", "coin + 2")
    for arguments in (["--check"], []):
        code, output, errors = run(*arguments)
        assert (code, output) == (1, "")
        assert errors.startswith(f"{MODULE}:1: edited by hand")


def test_the_exit_code_reaches_the_shell(command):
    run = [sys.executable, command.__file__, "--check"]
    assert subprocess.run(run, capture_output=True, check=False).returncode == 1


# --- Interrupted ----------------------------------------------------------------------


def killed(*_: object, **__: object) -> None:
    """Stand for the moment at which the process is killed."""
    raise KeyboardInterrupt


def test_a_killed_write_leaves_the_old_file(root, monkeypatch):
    before = files(root)
    replace(root / "chapters/coins.py", "coin + 1", "coin + 2")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            tangle.sync(root)
    assert files(root)[NOTEBOOK] == before[NOTEBOOK]
    assert files(root)[MODULE] == before[MODULE]
    # The next run mends it, and no draft stays behind.
    tangle.sync(root)
    assert files(root).keys() == before.keys()
    assert "coin + 2" in (root / MODULE).read_text()


def test_a_half_written_draft_never_takes_the_place(root, monkeypatch):
    before = files(root)[NOTEBOOK]
    replace(root / "chapters/coins.py", "coin + 1", "coin + 2")

    def half(path: Path, text: str, **_: object) -> None:
        path.write_bytes(text[: len(text) // 2].encode())
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", half)
        with pytest.raises(KeyboardInterrupt):
            tangle.sync(root)
    assert files(root)[NOTEBOOK] == before
    assert json.loads(before)["nbformat"] == 4
