"""Tangle: one chapter makes one module and one notebook, and nobody's work is lost."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

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
CHAPTER = "chapters/coins.py"


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


def written(root: Path) -> set[str]:
    """Sync; return what was written or removed. It is what a first sync would write."""
    changed = {path.relative_to(root).as_posix() for path in tangle.sync(root)}
    other = root.parent / "another/place"
    own = *root.glob("*.md"), root / "src/literate_rl/__init__.py"
    for path in (*root.glob("chapters/**/*.py"), *own):
        (place := other / path.relative_to(root)).parent.mkdir(
            parents=True, exist_ok=True
        )
        shutil.copy(path, place)
    tangle.sync(other)
    assert files(other) == files(root)
    assert tangle.sync(root) == []
    shutil.rmtree(other)
    return changed


# --- What is written ------------------------------------------------------------------


def test_a_module_holds_the_export_cells_and_a_notebook_all_of_them(root):
    header, _, body = (root / MODULE).read_text().partition("\n")
    assert header.startswith("# Generated from chapters/coins.py ")
    exports = [cell.partition("\n")[2] for cell in CELLS if "export" in cell]
    assert body == "\n\n\n".join(exports) + "\n"
    notebook = nbformat.read(root / NOTEBOOK, 4)
    nbformat.validate(notebook)
    kinds = "".join(cell.cell_type[0] for cell in notebook.cells)
    assert kinds == "mcmcc"
    assert notebook.cells[0].source.startswith("# Coins\n\nHow much")
    assert notebook.cells[4].metadata.mystnb == {"image": {"alt": "a coin"}}
    assert notebook.cells[4].outputs == []


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("coin + 1", "coin + 2", {MODULE, NOTEBOOK}),
        ("How much", "How very much", {NOTEBOOK}),
        ("value", "price", {MODULE, NOTEBOOK, NAMES}),
        (' tags=["export"]', "", {MODULE, NOTEBOOK, NAMES}),
    ],
)
def test_an_edited_chapter_rewrites_what_it_changes(root, old, new, changed):
    (root / "chapters/notes.py").write_text(NOTES)
    tangle.sync(root)
    ids = [cell.id for cell in nbformat.read(root / NOTEBOOK, 4).cells]
    replace(root / CHAPTER, old, new)
    before = files(root)
    stale = {x.relative_to(root).as_posix() for x in tangle.sync(root, check=True)}
    assert files(root) == before
    assert stale == written(root) == changed
    assert [cell.id for cell in nbformat.read(root / NOTEBOOK, 4).cells] == ids
    assert (root / MODULE).exists() == ("export" not in old)


def test_chapters_come_move_and_go_with_their_views(root):
    source = root / "chapters/ground/mint.py"
    source.parent.mkdir()
    (root / CHAPTER).rename(source)
    mint = {"src/literate_rl/ground/mint.py", "chapters/notebooks/ground/mint.ipynb"}
    assert written(root) == mint | {MODULE, NOTEBOOK, NAMES}
    names = "from .{} import (\n    {} as {},\n)\n"
    assert names.format("ground.mint", "value", "value") in (root / NAMES).read_text()
    (root / "chapters/notes.py").write_text(NOTES)
    assert NAMES in written(root)
    # The order of the index is that of the names.
    (root / "index.md").write_text(
        "```{toctree}\n:caption: Money\n\nchapters/ground/mint\n```\n"
    )
    assert written(root) == {NAMES}
    text = (root / NAMES).read_text()
    assert text.index("from .ground.mint") < text.index("from .notes")
    (root / "index.md").unlink()
    source.unlink()
    assert written(root) == mint | {NAMES}


def test_the_readme_lists_the_chapters_and_keeps_the_rest(root):
    marks = "# Mine\n<!-- chapters -->\n{}<!-- end of chapters -->\nrest\n"
    (root / "README.md").write_text(marks.format("old\n"))
    assert written(root) == {"README.md"}
    head, rest = marks.split("{}")
    text = (root / "README.md").read_text()
    assert text.startswith(f"{head}| |")
    assert text.endswith(f"| 1 | [Coins](chapters/coins.py) |  |\n{rest}")


def test_an_executed_notebook_is_written_afresh(root):
    notebook = nbformat.read(root / NOTEBOOK, 4)
    output = nbformat.v4.new_output("stream", name="stdout", text="2\n")
    notebook.cells[4].update(outputs=[output], execution_count=1)
    notebook.metadata.language_info = {"name": "python", "version": "3.11.7"}
    nbformat.write(notebook, root / NOTEBOOK)
    assert written(root) == {NOTEBOOK}


def test_what_is_saved_through_its_pairing_reaches_all_views(root, monkeypatch):
    def paired(saved):
        later = source.stat().st_mtime + pair.stat().st_mtime
        os.utime(saved, (later, later))
        jupytext.cli.jupytext(["--quiet", "--sync", str(saved.relative_to(root))])

    shutil.copy(tangle.ROOT / "pyproject.toml", root)
    monkeypatch.chdir(root)
    source = root / "chapters/ground/coins.py"
    source.parent.mkdir()
    (root / CHAPTER).rename(source)
    tangle.sync(root)
    pair = root / "chapters/notebooks/ground/coins.ipynb"
    replace(source, "How much", "How very much")
    paired(source)
    assert "How very much" in pair.read_text()
    tangle.sync(root)

    replace(pair, "coin + 1", "coin + 2")
    paired(pair)
    edited = COINS.replace("How much", "How very much").replace("coin + 1", "coin + 2")
    assert source.read_text().split() == edited.split()
    module = root / "src/literate_rl/ground/coins.py"
    assert {*tangle.sync(root)} == {pair, module}
    assert "coin + 2" in module.read_text()


# --- What is refused ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "old", "new"),
    [
        (MODULE, "coin + 1", "coin + 2"),
        (MODULE, "# Generated from", "# Made from"),
        (NAMES, "value as value", "value as price"),
        (NOTEBOOK, "coin + 1", "coin + 2"),
        (NOTEBOOK, '"export"', '"exported"'),
        (NOTEBOOK, "", "[1]"),
    ],
)
def test_a_hand_edit_is_kept_until_it_is_deleted(root, view, old, new):
    before = files(root)
    if old:
        replace(root / view, old, new)
    else:
        (root / view).write_text(new)
    # Another chapter has work to do: it must wait as well.
    (root / "chapters/notes.py").write_text(NOTES)
    for number in (1, 2):
        assert refusal(root).startswith(f"{view}:1: edited by hand")
        replace(root / CHAPTER, f"value({number})", f"value({number + 1})")
    for path in (root / "chapters/notes.py", root / view):
        path.unlink()
    (root / CHAPTER).write_text(COINS)
    tangle.sync(root)
    assert files(root) == before


def test_all_hand_edits_are_named_also_when_their_chapter_is_gone(root):
    replace(root / MODULE, "coin + 1", "coin + 2")
    replace(root / NOTEBOOK, "How much", "How very much")
    (root / CHAPTER).unlink()
    said = refusal(root)
    assert f"{NOTEBOOK}:1: " in said
    assert f"{MODULE}:1: " in said


CONFLICT = "# <<<<<<< HEAD\n# Now\n# =======\n# Then\n# >>>>>>> other"


@pytest.mark.parametrize(
    ("path", "old", "new", "said"),
    [
        (NOTEBOOK, "{", "<<<<<<< HEAD\n{", "1: "),
        ("src/literate_rl/utils.py", "", "answer = 42\n", "1: "),
        ("chapters/floors.py", "", COINS, "1: "),
        ("chapters/class.py", "", COINS, "1: 'class' is no name"),
        ("chapters/more.py", "", COINS, "17: 'value' is public in chapters/coins.py"),
        ("index.md", "", "```{toctree}\nchapters/coins\nchapters/coins\n```", "3: "),
        (CHAPTER, HEADER, HEADER + "import this\n\n", "1: text outside"),
        (CHAPTER, '["value"]', '["value", "value"]', "LINE: 'value' stands twice"),
        (CHAPTER, '["value"]', '["value", "worth"]', "LINE: no export cell defines"),
        (CHAPTER, '["value"]', "[*others]", "LINE: `__all__` must be a list"),
        (CHAPTER, "print(value(1))", "print(value(1)", "LINE: "),
        (CHAPTER, "# Now the value.", CONFLICT, "LINE: a conflict"),
        *((x, "", b"# one\n\xe9\n", "2: byte 0xe9") for x in (CHAPTER, NOTEBOOK)),
        *((x, "", None, "1: is a dir") for x in ("chapters/x.py", MODULE)),
    ],
)
def test_what_is_wrong_is_named_with_its_line_and_nothing_is_written(
    root, path, old, new, said
):
    place = root / path
    before = place.read_bytes().splitlines() if place.exists() else []
    if old:
        replace(place, old, new)
    elif new is None:
        place.unlink(missing_ok=True)
        place.mkdir()
    else:
        place.write_bytes(new if isinstance(new, bytes) else new.encode())
    if "LINE" in said:
        pairs = zip(before, place.read_bytes().splitlines(), strict=False)
        line = next(k for k, (x, y) in enumerate(pairs, 1) if x != y)
        said = said.replace("LINE", str(line))
    assert refusal(root).startswith(f"{path}:{said}")


def test_hand_written_files_of_the_package_are_left_alone(root):
    (root / "src/literate_rl/__main__.py").write_text("# mine\n")
    assert tangle.sync(root) == []


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
    (root / CHAPTER).write_text(text)
    line = 1 + text.splitlines().index(broken)
    assert refusal(root).startswith(f"{CHAPTER}:{line}: ")


# --- The command, and when it is interrupted ------------------------------------------


def test_exit_codes_and_what_is_printed(tmp_path):
    root = new_root(tmp_path)
    extensions = shutil.copytree(Path(tangle.__file__).parent, root / "docs/_ext")
    shutil.copy(floors.__file__, root / "src/literate_rl")

    def run(*arguments: str):
        command = [sys.executable, extensions / "tangle.py", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    code, output, _ = run("--check")
    assert (code, f"{MODULE}: stale, run `make sync`\n" in output) == (1, True)
    code, output, _ = run()
    assert (code, f"{MODULE}: synced\n" in output) == (0, True)
    assert run("--check") == (0, "", "")
    replace(root / MODULE, "coin + 1", "coin + 2")
    code, output, errors = run("--check")
    assert (code, output) == (1, "")
    assert errors.startswith(f"{MODULE}:1: edited by hand")


def killed(*_: object, **__: object) -> None:
    """Stand for the moment at which the process is killed."""
    raise KeyboardInterrupt


def half(path: Path, text: str, **_: object) -> None:
    """Write a half, and be killed."""
    path.write_bytes(text[: len(text) // 2].encode())
    killed()


@pytest.mark.parametrize(("owner", "patch"), [(os, killed), (Path, half)])
def test_a_killed_write_leaves_the_old_file(root, monkeypatch, owner, patch):
    before = files(root)
    replace(root / CHAPTER, "coin + 1", "coin + 2")
    with monkeypatch.context() as context:
        context.setattr(owner, "replace" if owner is os else "write_text", patch)
        with pytest.raises(KeyboardInterrupt):
            tangle.sync(root)
    for view in (NOTEBOOK, MODULE):
        assert files(root)[view] == before[view]
    # The next run mends it, and no draft stays behind.
    tangle.sync(root)
    assert files(root).keys() == before.keys()
    assert "coin + 2" in (root / MODULE).read_text()
