"""Order: index.md alone decides where a chapter stands and which numbers it has."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import check
import new_chapter
import order
import pytest
import tangle
from bs4 import BeautifulSoup
from sphinx.application import Sphinx

HEADER = """\
# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

"""
INDEX = "# Book\n\n```{chapter-list}\n```\n"
CONF = """\
project = "Book"
extensions = ["myst_nb", "order"]
include_patterns = ["index.md", "chapters/*.py", "chapters/*/*.py"]
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath"]
html_theme = "alabaster"
html_sidebars = {"**": ["globaltoc.html"]}
"""


def chapter(name: str, export: bool = True) -> str:
    """Return a small chapter with a labelled equation."""
    code = f'# %% tags=["export"]\n{name} = 1\n' if export else "# %%\n1 + 1\n"
    return (
        f"{HEADER}# %% [markdown]\n# # {name.capitalize()}\n#\n"
        f"# **What is\n# {name}?** This:\n#\n# $$\n# x = 1\n# $$ ({name})\n\n"
        f"{code}\n# %% [markdown]\n# See {{eq}}`{name}`.\n"
    )


def entries(*pages: str, caption: str = "Part") -> str:
    """Return a toctree."""
    lines = "".join(f"chapters/{page}\n" for page in pages)
    return f"\n```{{toctree}}\n:caption: {caption}\n\n{lines}```\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a book of two chapters, one with evidence only, and one of the package."""
    (tmp_path / "chapters/ground").mkdir(parents=True)
    (tmp_path / "conf.py").write_text(CONF)
    for name in ("coins", "notes"):
        (tmp_path / f"chapters/{name}.py").write_text(chapter(name, name == "coins"))
    (tmp_path / "chapters/ground/mint.py").write_text(chapter("mint"))
    index = INDEX + entries("notes", "coins") + entries("ground/mint", caption="Shop")
    (tmp_path / "index.md").write_text(index)
    return tmp_path


def build(root: Path) -> dict[str, BeautifulSoup]:
    """Build the book; return its pages, parsed."""
    out = root / "build"
    Sphinx(root, root, out, out / ".doctrees", "html", status=None).build()
    return {
        path.relative_to(out).as_posix(): BeautifulSoup(path.read_text(), "html.parser")
        for path in out.rglob("*.html")
    }


def links(page: BeautifulSoup) -> list[str]:
    """Return the titles in a page's sidebar."""
    return [
        a.get_text() for a in page.select(".sphinxsidebar a.internal, .toctree-l1 > a")
    ]


def test_chapters_come_in_the_order_of_the_index(root: Path) -> None:
    read = order.read_order(root)
    assert [(c.number, c.name, c.kind, c.part) for c in read] == [
        ("1", "notes", "evidence", "Part"),
        ("2", "coins", "path", "Part"),
        ("A", "ground.mint", "package", "Shop"),
    ]
    assert [c.title for c in read] == ["Notes", "Coins", "Mint"]
    assert read[0].question == "What is notes?"


def test_a_chapter_that_the_index_leaves_out_comes_last(root: Path) -> None:
    (root / "chapters/alms.py").write_text(chapter("alms"))
    assert [c.name for c in order.read_order(root)] == [
        "notes",
        "coins",
        "ground.mint",
        "alms",
    ]


def equation(page: BeautifulSoup) -> list[str]:
    """Return the number beside a page's equation and that of the reference to it."""
    texts = [a.get_text() for a in page.select(".eqno, a.reference.internal")]
    return [text.rstrip("¶") for text in texts if text.startswith("(")]


def test_titles_and_equations_carry_the_numbers(root: Path) -> None:
    pages = build(root)
    page = pages["chapters/coins.html"]
    assert page.h1 is not None
    assert page.h1.get_text().startswith("2 Coins")
    assert equation(page) == ["(2.1)", "(2.1)"]
    assert equation(pages["chapters/ground/mint.html"]) == ["(A.1)", "(A.1)"]
    start = pages["index.html"]
    listed = [line.get_text() for line in start.select(".chapter-list .chapter-title")]
    assert listed == ["1 Notes", "2 Coins"]
    links_there = [str(a["href"]) for a in start.select(".chapter-title a")]
    assert links_there == ["chapters/notes.html", "chapters/coins.html"]


def test_several_processes_read_what_one_reads(root: Path) -> None:
    for name in "abcdefg":  # fewer pages are not shared among processes
        (root / f"chapters/{name}.py").write_text(chapter(name))
    (root / "conf.py").write_text(CONF.replace('"order"', '"order", "equations"'))
    found = []
    for number in (1, 2):
        out = root / f"build{number}"
        app = Sphinx(root, root, out, out, "dummy", status=None, parallel=number)
        app.build()
        notes = {
            page: formulas
            for page, formulas in app.env.equations_of.items()
            if formulas
        }
        found.append((notes, set(app.env.computed_in)))
    assert found[0] == found[1]
    assert found[0][0]["chapters/a"] == {"a": "x = 1"}


@pytest.mark.parametrize(
    "words",
    ["It takes about 30 minutes.", "It takes about\n# 30 minutes.", "In 30 minutes"],
)
def test_a_chapter_says_how_long_it_takes(words: str) -> None:
    text = chapter("coins").replace("This:", words)
    assert order.Chapter("chapters/coins", "", "1", text).minutes == 30
    assert order.Chapter("chapters/coins", "", "1", chapter("coins")).minutes is None


def test_after_a_new_chapter_no_page_keeps_the_old_order(root: Path) -> None:
    build(root)
    (root / "chapters/alms.py").write_text(chapter("alms"))
    index = INDEX + entries("alms", "notes", "coins") + entries("ground/mint")
    (root / "index.md").write_text(index)
    pages = build(root)
    for name in ("chapters/coins.html", "chapters/ground/mint.html"):
        assert "1 Alms" in links(pages[name]), name
        assert "3 Coins" in links(pages[name]), name
    assert equation(pages["chapters/coins.html"]) == ["(3.1)", "(3.1)"]


# --- A new chapter, from the first command to the last check --------------------------


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return what a chapter stands beside in the repository."""
    names = ["index.md", "chapters", "docs", "tests", "src", "README.md"]
    names += ["pyproject.toml"]
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *names],
        cwd=tangle.ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in files:
        if (tangle.ROOT / name).exists():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((tangle.ROOT / name).read_bytes())
    return tmp_path


def test_new_chapters_are_complete(copy: Path) -> None:
    made = []
    for place in ("bandits", "reps", "ground/benches"):
        made += new_chapter.make_chapter(place, copy)
        assert copy / f"chapters/{place}.py" in made
        pages = [chapter.docname for chapter in order.read_order(copy)]
        page = f"chapters/{place}"
        folder = page.rpartition("/")[0]
        assert [x for x in pages if x.rpartition("/")[0] == folder][-1] == page
    tangle.sync(copy)
    assert [*check.stale_views(copy), *check.missing_files(copy)] == []
    for place in ("bandits", "reps", "ground/benches"):
        module = copy / f"src/literate_rl/{place}.py"
        assert f"def {module.stem}_mean" in module.read_text()
    files = [path for path in made if path.suffix == ".py"]
    for tool in ("ruff check", "ruff format --check"):
        command = [sys.executable, "-m", *tool.split(), *files]
        done = subprocess.run(
            command, cwd=copy, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout


def test_a_taken_or_impossible_name_is_refused_and_nothing_is_written(
    copy: Path,
) -> None:
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    for place in (
        "advantages",
        "runs/runs",
        "12_bandits",
        "../up",
        "a/b",
        "Upper",
        "class",
    ):
        with pytest.raises(tangle.TangleError, match=re.escape(place.split("/")[-1])):
            new_chapter.make_chapter(place, copy)
    after = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    assert after == before


def test_what_is_missing_is_said_in_words(copy: Path) -> None:
    new_chapter.make_chapter("bandits", copy)
    tangle.sync(copy)
    (copy / "docs/api/bandits.md").unlink()
    (copy / "tests/test_bandits.py").unlink()
    reference = copy / "docs/api.md"
    reference.write_text(
        reference.read_text().replace("\nbandits: bandits_mean\n", "\n")
    )
    index = copy / "index.md"
    index.write_text(index.read_text().replace("chapters/bandits\n", "chapters/gone\n"))
    said = "\n".join(check.missing_files(copy))
    assert "docs/api/bandits.md is missing" in said
    assert "tests/test_bandits.py is missing" in said
    assert "docs/api.md: put bandits into a group" in said
    assert "index.md: add the line chapters/bandits" in said
    assert "there is no chapters/gone.py" in said
    replaced = copy / "chapters/bandits.py"
    replaced.write_text(replaced.read_text().replace("return x.mean()", "return x"))
    assert "is stale: run `make sync`" in "\n".join(check.stale_views(copy))


def test_a_whole_sentence_in_brackets_is_said(copy: Path) -> None:
    chapter = copy / "chapters/advantages.py"
    chapter.write_text(chapter.read_text() + "\n# (Nobody has asked for this.)\n")
    (said,) = check.in_brackets(copy)
    assert said.startswith("chapters/advantages.py: no whole sentence")


def test_the_repository_lacks_nothing() -> None:
    assert [*check.stale_views(), *check.missing_files(), *check.unlinked()] == []
    assert not [*check.in_brackets()]
