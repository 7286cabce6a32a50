"""Readers' notebooks: plain Markdown, the numbers of the site, never overwritten."""

from __future__ import annotations

import ast
import itertools
import os
import re
import shlex
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import citations
import nbformat
import pytest
import reader
import tangle
import weave
from routes import onward, read_routes

ROOT = tangle.ROOT
BOOK = reader.Book()
PAGES = list(BOOK.chapters)
each_page = pytest.mark.parametrize("page", PAGES)


@cache
def made(page: str) -> nbformat.NotebookNode:
    """Return a chapter's notebook for readers."""
    return reader.reader_notebook(BOOK, page)


def prose(notebook: nbformat.NotebookNode) -> str:
    """Return the Markdown of a notebook without its code."""
    cells = [c.source for c in notebook.cells if c.cell_type == "markdown"]
    text = re.sub(r"^```.*?^```", "", "\n".join(cells), flags=re.M | re.S)
    return re.sub(r"(`+)[^`]+\1", "", text)


# --- The notebooks of the book --------------------------------------------------------


@each_page
def test_they_are_valid_notebooks(page):
    notebook = nbformat.reads(nbformat.writes(made(page)), 4)
    nbformat.validate(notebook)
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    assert not any(cell.get("outputs") for cell in notebook.cells)


@each_page
def test_no_role_label_or_directive_is_left(page):
    for cell in made(page).cells:
        assert not re.search(r"\{[\w:.-]+\}`", cell.source), cell.source
    text = prose(made(page))
    assert not re.search(r"\$\$ *\([\w-]+\)", text)
    assert not re.search(r"^(:::|```\{|\([\w-]+\)=)", text, re.M)
    assert "mystnb" not in nbformat.writes(made(page))


def test_they_are_made_alike_every_time():
    once = reader.reader_notebooks(BOOK)
    tangle.parsed.cache_clear()  # to parse gives each cell a number by chance
    again = reader.reader_notebooks(reader.Book())
    assert once == again
    assert list(once)[:2] == ["01_agents.ipynb", "02_policy_gradient.ipynb"]
    assert "A_signatures.ipynb" in once


@each_page
def test_the_code_is_that_of_the_chapter(page):
    # The head has two cells.
    old_cells, new_cells = (
        [cell for cell in cells if cell.cell_type == "code"]
        for cells in (BOOK.sources[page].cells, made(page).cells[2:])
    )
    for old, new in zip(old_cells, new_cells, strict=True):
        assert weave.meaning(old.source) == weave.meaning(new.source)
        if tangle.is_export(old):
            same = ast.dump(ast.parse(old.source)) == ast.dump(ast.parse(new.source))
            assert same or reader.ROLE.search(old.source)


@each_page
def test_what_the_page_folds_is_folded(page):
    for cell in made(page).cells:
        folded = {"hide-input", "hide-cell", "claims"} & set(
            cell.metadata.get("tags", [])
        )
        hidden = cell.metadata.get("jupyter", {}).get("source_hidden", False)
        assert hidden == (cell.metadata.get("cellView") == "form") == bool(folded)


@each_page
def test_below_a_program_stands_how_to_take_it(page):
    cells = made(page).cells
    for cell, after in itertools.pairwise(cells):
        if "program" in cell.metadata.get("tags", []):
            name = page.rpartition("/")[2]
            command = f"literate-rl copy {name} > my_{name}.py"
            assert after.source == f"Take this program: `{command}`"


@each_page
def test_the_end_says_where_routes_go_on(page):
    ways = onward(page, read_routes())
    text = made(page).cells[-1].source
    for after, names in ways.items():
        if after:
            link = f"- [{BOOK.title(after)}]({BOOK.address(after)}): "
            assert link + ", ".join(names) in text
    assert ("Next on your route" in text) == bool(ways.keys() - {""})


@each_page
def test_each_link_leads_to_a_notebook_a_heading_or_a_page(page):
    text = prose(made(page))
    headings = {h.replace(" ", "-") for h in re.findall(r"^#+ (.+)$", text, re.M)}
    names = {chapter.notebook for chapter in BOOK.chapters.values()}
    for link in re.findall(r"\]\(([^)]*)\)", text):
        if link.startswith("#"):
            assert link[1:] in headings
        elif link.startswith(BOOK.site):
            path = link.removeprefix(BOOK.site).partition("#")[0]
            stem = ROOT / path.removesuffix(".html")
            wheel = f"{reader.FOLDER}/{reader.WHEEL}"
            sources = [stem.with_suffix(".py"), stem.with_suffix(".md")]
            assert path in ("", wheel) or any(source.exists() for source in sources)
        else:
            assert link in names or link.startswith("https://"), link


@each_page
def test_the_head_says_what_it_is_and_what_it_needs(page):
    head, install = made(page).cells[:2]
    assert head.source.startswith(f"# {BOOK.title(page)}\n")
    assert f"({BOOK.site}{page}.html)" in head.source
    assert "less than a minute" in head.source
    # No index knows the package: only a file is ever installed.
    for line in re.findall(r"%pip install (.+)", install.source):
        named = [word for word in shlex.split(line) if not word.startswith("-")]
        wheel = f"{BOOK.site}{reader.FOLDER}/{reader.WHEEL}"
        assert named == ["matplotlib", f"literate-rl[trees] @ {wheel}"]
    assert sum(c.source.startswith("# ") for c in made(page).cells if c != install) >= 1
    titles = [c for c in made(page).cells if c.cell_type == "markdown"]
    assert sum(c.source.startswith("# ") for c in titles) == 1


@each_page
def test_what_is_cited_is_listed(page):
    names = re.findall(r"\{cite:[tp]\}`([^`]+)`", str(BOOK.sources[page]))
    keys = {key.strip() for group in names for key in group.split(",")}
    [references] = [c for c in made(page).cells if "## References" in c.source]
    listed = re.findall(r"^- ", references.source.split("## References")[1], re.M)
    assert len(listed) >= len(keys)
    for key in keys:
        assert BOOK.references.listing([key]) in references.source


# --- Rewriting ------------------------------------------------------------------------

HEADER = """\
# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

"""
COINS = r'''# %% [markdown]
# # Coins
#
# A {term}`coin`, {term}`two of them <coin>`; `{eq}` is a role. {doc}`notes`,
# {doc}`all of them <ground/mint>`, {doc}`/docs/start`,
# [there](/docs/start.md#here) and [here](#its-two-sides).
# See {py:func}`~a.b.toss` and {cite:p}`one2001,three2003`.
#
# $$
# a
# $$
#
# Then
#
# $$
# x = 1
# $$ (side)
#
# gives {eq}`side` and {eq}`note`.

# %% tags=["export", "hide-input"]
def toss():
    """Use {eq}`side`."""
    # After {cite:t}`two2002`, {doc}`notes`: {eq}`side`.
    return "{eq}`side`"  # {eq}`note`

# %% [markdown]
# ## Its two sides
#
# ## References
#
# By {cite:t}`two2002`.
'''
NOTES = "# %% [markdown]\n# # Notes\n#\n# $$\n# y\n# $$ (note)\n"
MINT = "# %% [markdown]\n# # Mint\n"
INDEX = """```{toctree}
:caption: Part

chapters/notes
chapters/coins
```

```{toctree}
:caption: Workshop

chapters/ground/mint
```
"""
BIBLIOGRAPHY = r"""
@misc{one2001, author={One, Ann}, title={First}, year={2001}}
@misc{two2002, author={Two, Bea and van Three, Cy}, title={Second}, year={2002}}
@misc{three2003, author={One, Ann and Two, Bea and others}, title={Third},
  journal={arXiv:1234.56789}, howpublished={\url{https://a.b/c_d}}}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a small book."""
    (tmp_path / "chapters/ground").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    chapters = {"coins": COINS, "notes": NOTES, "ground/mint": MINT}
    for name, text in chapters.items():
        (tmp_path / f"chapters/{name}.py").write_text(HEADER + text)
    (tmp_path / "index.md").write_text(INDEX)
    (tmp_path / "docs/start.md").write_text("# Start\n")
    (tmp_path / "docs/references.bib").write_text(BIBLIOGRAPHY)
    return tmp_path


@pytest.fixture
def coins(root: Path) -> list[str]:
    """Return the cells of a chapter of it."""
    book = reader.Book(root, "https://x.y/")
    return [c.source for c in reader.reader_notebook(book, "chapters/coins").cells]


def test_prose_becomes_plain_markdown(coins):
    assert coins[2] == (
        "A [coin](https://x.y/docs/glossary.html#term-coin), "
        "[two of them](https://x.y/docs/glossary.html#term-coin); `{eq}` is a role. "
        "[1 Notes](https://x.y/chapters/notes.html),\n"
        "[all of them](https://x.y/chapters/ground/mint.html), [Start](https://x.y/docs/start.html),\n"
        "[there](https://x.y/docs/start.html#here) and [here](#Its-two-sides).\n"
        "See `toss` and (One, 2001; One et al., n.d.).\n\n"
        "$$\na\n$$\n\nThen\n\n$$\nx = 1\n\\tag{2.1}\n$$\n\n"
        "gives (2.1) and [(1.1)](https://x.y/chapters/notes.html)."
    )


def test_comments_and_docstrings_become_plain_text_and_code_stays(coins):
    assert coins[3] == (
        'def toss():\n    """Use (2.1)."""\n'
        "    # After Two and van Three (2002), 1 Notes: (2.1).\n"
        '    return "{eq}`side`"  # (1.1)'
    )


def test_the_head_names_the_neighbours(coins):
    assert coins[0].startswith("# 2 Coins\n")
    site = "https://x.y/chapters"
    around = f"[1 Notes]({site}/notes.html) · Next: [A Mint]({site}/ground/mint.html)"
    assert f"Previous: {around}" in coins[0]
    assert "colab" not in coins[0]
    assert f"https://x.y/notebooks/{reader.WHEEL}" in coins[1]


def test_on_github_pages_a_badge_opens_it_in_colab(root):
    book = reader.Book(root, "https://some-one.github.io/book.x/")
    text = reader.reader_notebook(book, "chapters/coins").cells[0].source
    page = "github/some-one/book.x/blob/gh-pages/notebooks/02_coins.ipynb"
    assert f"](https://colab.research.google.com/{page})\n\n*A chapter" in text


def test_at_home_notebooks_lead_to_those_beside_them(root):
    text = reader.reader_notebook(reader.Book(root), "chapters/coins").cells[0].source
    assert "Previous: [1 Notes](01_notes.ipynb) · Next: [A Mint](A_mint.ipynb)" in text


def test_the_references_are_listed(coins):
    lines = coins[-1].splitlines()
    assert lines[lines.index("## References") + 2] == "By Two and van Three (2002)."
    assert [line for line in lines if line.startswith("- ")] == [
        "- A. One. First. 2001.",
        "- A. One, B. Two, and others. Third. <https://a.b/c_d>.",
        "- B. Two and C. van Three. Second. 2002.",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{nosuch}`x`", "nosuch"),
        ("{eq}`nosuch`", "nosuch"),
        ("[x](#nosuch)", "#nosuch"),
        ("{doc}`nosuch`", "nosuch"),
        ("{cite:p}`nosuch`", "nosuch"),
        (":::{note}\n# x\n# :::", ":::"),
        ("```{figure} x.png\n# ```", "figure"),
    ],
)
def test_what_no_notebook_can_show_is_an_error(root, text, message):
    path = root / "chapters/notes.py"
    path.write_text(f"{HEADER}# %% [markdown]\n# # Notes\n#\n# {text}\n")
    with pytest.raises(tangle.TangleError, match=f"notes.*{message}"):
        reader.reader_notebook(reader.Book(root), "chapters/notes")


def test_an_arxiv_number_is_a_link(tmp_path):
    path = tmp_path / "a.bib"
    path.write_text(
        "@article{k, author={A*, Ann}, title={T}, year={2012},"
        " journal={arXiv:1234.56789}}"
    )
    listing = citations.Bibliography(path).listing(["k"])
    assert "[arXiv:1234.56789](https://arxiv.org/abs/1234.56789)" in listing
    assert r"A\*" in listing


# --- Handing them out -----------------------------------------------------------------


def notebook(text: str, origin: str) -> str:
    """Return a notebook of one cell that was made from some chapter."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])
    made.metadata["literate_rl"] = {"digest": origin}
    return nbformat.writes(made)


def test_notebooks_are_copied_once(tmp_path):
    folder, first = tmp_path / "notebooks", {"a.ipynb": notebook("x", "1")}
    assert reader.lay(folder, first) == [folder / "a.ipynb"]
    (folder / "a.ipynb").write_text(notebook("solved", "1"))
    assert reader.lay(folder, first) == []
    assert "solved" in (folder / "a.ipynb").read_text()


def test_a_changed_chapter_is_laid_beside_what_a_reader_has(tmp_path):
    mine = notebook("solved", "1")
    (tmp_path / "a.ipynb").write_text(mine)
    for origin, name in (("2", "a.new.ipynb"), ("3", "a.new2.ipynb")):
        new = {"a.ipynb": notebook("y", origin)}
        assert reader.lay(tmp_path, new) == [tmp_path / name]
        assert reader.lay(tmp_path, new) == []
        assert (tmp_path / name).read_text() == new["a.ipynb"]
    assert (tmp_path / "a.ipynb").read_text() == mine


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"metadata": {}}', "no JSON"])
def test_a_file_of_unknown_origin_is_kept(tmp_path, text):
    (tmp_path / "a.ipynb").write_text(text)
    new = {"a.ipynb": notebook("y", "1")}
    assert reader.lay(tmp_path, new) == [tmp_path / "a.new.ipynb"]
    assert (tmp_path / "a.ipynb").read_text() == text


def test_only_a_change_of_the_text_makes_a_new_notebook(root):
    def origins() -> dict[str, str]:
        notebooks = reader.reader_notebooks(reader.Book(root))
        return {name: reader.origin(text) for name, text in notebooks.items()}

    before = origins()
    (root / "chapters/notes.py").write_text(HEADER + NOTES + "#\n# More.\n")
    after = origins()
    assert {name for name in before if before[name] != after[name]} == {
        "01_notes.ipynb"
    }


def test_the_command_says_what_it_laid(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reader, "ROOT", tmp_path)
    monkeypatch.setattr(
        reader, "reader_notebooks", lambda _: {"a.ipynb": notebook("x", "2")}
    )
    reader.main()
    assert "1 notebook" in capsys.readouterr().out
    (tmp_path / "notebooks/a.ipynb").write_text(notebook("mine", "1"))
    reader.main()
    said = capsys.readouterr().out
    assert "notebooks/a.new.ipynb" in said
    assert "changed" in said


def test_git_ignores_what_readers_work_with_and_nothing_else():
    rules = (ROOT / ".gitignore").read_text("utf-8").splitlines()
    # The slash in front makes it the folder at the top, not chapters/notebooks.
    assert [rule for rule in rules if "notebooks/" in rule] == ["/notebooks/"]


def test_the_wheel_alone_holds_the_package_and_its_stored_runs(tmp_path):
    reader.build_wheel(tmp_path)
    place = tmp_path / "site"
    with zipfile.ZipFile(tmp_path / reader.WHEEL) as wheel:
        wheel.extractall(place)
    source = ROOT / "src/literate_rl"
    scripts = [*source.glob("book/*.js")]
    assert scripts
    for path in (*source.rglob("*.py"), *scripts, *source.glob("trained/*/*.*")):
        packed = place / path.relative_to(ROOT / "src")
        assert packed.read_bytes() == path.read_bytes()
    code = (
        "import literate_rl; print(literate_rl.__file__)\n"
        "from literate_rl.runs.runs import results_folder, stored_runs\n"
        "assert stored_runs('cartpole'), results_folder()\n"
        "assert all(map(literate_rl.load, literate_rl.trained_agents()))"
    )
    environment = os.environ | {"PYTHONPATH": str(place)}
    shown = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert shown.stdout.startswith(str(place))
