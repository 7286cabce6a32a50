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


def test_chapters_come_in_the_order_of_the_index(root):
    read = order.read_order(root)
    assert [(c.number, c.name, c.kind, c.part) for c in read] == [
        ("1", "notes", "evidence", "Part"),
        ("2", "coins", "path", "Part"),
        ("A", "ground.mint", "package", "Shop"),
    ]
    assert [c.title for c in read] == ["Notes", "Coins", "Mint"]
    assert read[0].question == "What is notes?"
    (root / "chapters/alms.py").write_text(chapter("alms"))
    last = order.read_order(root)[-1]
    assert last.name == "alms", "which the index leaves out"


def equation(page: BeautifulSoup) -> list[str]:
    """Return the number beside a page's equation and that of the reference to it."""
    texts = [a.get_text() for a in page.select(".eqno, a.reference.internal")]
    return [text.rstrip("¶") for text in texts if text.startswith("(")]


def test_numbers_are_those_of_the_index_and_follow_it(root):
    pages = build(root)
    page = pages["chapters/coins.html"]
    assert page.h1.get_text().startswith("2 Coins")
    assert equation(page) == ["(2.1)", "(2.1)"]
    assert equation(pages["chapters/ground/mint.html"]) == ["(A.1)", "(A.1)"]
    start = pages["index.html"]
    listed = [line.get_text() for line in start.select(".chapter-list .chapter-title")]
    assert listed == ["1 Notes", "2 Coins"]
    # After a new chapter no page keeps the old order.
    (root / "chapters/alms.py").write_text(chapter("alms"))
    index = INDEX + entries("alms", "notes", "coins") + entries("ground/mint")
    (root / "index.md").write_text(index)
    pages = build(root)
    for name in ("chapters/coins.html", "chapters/ground/mint.html"):
        assert {"1 Alms", "3 Coins"} <= {*links(pages[name])}, name
    assert equation(pages["chapters/coins.html"]) == ["(3.1)", "(3.1)"]


def test_a_chapter_says_how_long_it_takes():
    text = chapter("coins").replace("This:", "It takes about\n# 30 minutes.")
    assert order.Chapter("chapters/coins", "", "1", text).minutes == 30


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


def test_a_new_chapter_is_complete_and_what_it_lacks_is_said(copy):
    before = {*copy.rglob("*")}
    for place in ("advantages", "12_bandits", "../up", "a/b", "Upper", "class"):
        with pytest.raises(tangle.TangleError, match=re.escape(place.split("/")[-1])):
            new_chapter.make_chapter(place, copy)
    assert {*copy.rglob("*")} == before

    made = []
    for place in ("bandits", "ground/benches"):
        made += new_chapter.make_chapter(place, copy)
        pages = [chapter.docname for chapter in order.read_order(copy)]
        folder = f"chapters/{place}".rpartition("/")[0]
        last = [x for x in pages if x.rpartition("/")[0] == folder][-1]
        assert last == f"chapters/{place}"
    tangle.sync(copy)
    assert [*check.stale_views(copy), *check.missing_files(copy)] == []
    assert "def bandits_mean" in (copy / "src/literate_rl/bandits.py").read_text()
    files = [path for path in made if path.suffix == ".py"]
    for tool in ("check", "format --check"):
        command = [sys.executable, "-m", "ruff", *tool.split(), *files]
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout

    for name in ("docs/api/bandits.md", "tests/test_bandits.py"):
        (copy / name).unlink()
    for name, old, new in (
        ("docs/api.md", "\nbandits: bandits_mean\n", "\n"),
        ("index.md", "chapters/bandits\n", "chapters/gone\n"),
        ("chapters/bandits.py", "return x.mean()", "return x"),
    ):
        (copy / name).write_text((copy / name).read_text().replace(old, new))
    said = "\n".join([*check.missing_files(copy), *check.stale_views(copy)])
    for words in (
        "docs/api/bandits.md is missing",
        "tests/test_bandits.py is missing",
        "docs/api.md: put bandits into a group",
        "index.md: add the line chapters/bandits",
        "there is no chapters/gone.py",
        "is stale: run `make sync`",
    ):
        assert words in said


def test_the_repository_lacks_nothing():
    assert [*check.stale_views(), *check.missing_files(), *check.unlinked()] == []
    assert not [*check.in_brackets()]
