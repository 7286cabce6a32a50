"""Readers' notebooks: plain Markdown, the numbers of the site, never overwritten."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest
import reader
import tangle
import weave

ROOT = tangle.ROOT
BOOK = reader.Book()


def prose(notebook: nbformat.NotebookNode) -> str:
    """Return the Markdown of a notebook without its code."""
    cells = [c.source for c in notebook.cells if c.cell_type == "markdown"]
    text = re.sub(r"^```.*?^```", "", "\n".join(cells), flags=re.M | re.S)
    return re.sub(r"(`+)[^`]+\1", "", text)


# --- The notebooks of the book --------------------------------------------------------


@pytest.mark.parametrize("page", BOOK.chapters)
def test_a_chapter_becomes_a_notebook(page):
    made = reader.reader_notebook(BOOK, page)
    nbformat.validate(made)
    assert len({cell.id for cell in made.cells}) == len(made.cells)
    # Its code is that of the chapter; the head has two cells.
    old_cells, new_cells = (
        [cell for cell in cells if cell.cell_type == "code"]
        for cells in (BOOK.sources[page].cells, made.cells[2:])
    )
    for old, new in zip(old_cells, new_cells, strict=True):
        assert weave.meaning(old.source) == weave.meaning(new.source)
    for cell in made.cells:
        assert not cell.get("outputs")
        folded = {"hide-input", "hide-cell", "claims"} & {
            *cell.metadata.get("tags", [])
        }
        hidden = cell.metadata.get("jupyter", {}).get("source_hidden", False)
        assert hidden == (cell.metadata.get("cellView") == "form") == bool(folded)
        # No role, label or directive is left.
        assert not re.search(r"\{[\w:.-]+\}`", cell.source), cell.source
    text = prose(made)
    assert not re.search(r"\$\$ *\([\w-]+\)|(?m:^(?::::|```\{|\([\w-]+\)=))", text)
    assert made.cells[0].source.startswith(f"# {BOOK.title(page)}\n")
    assert f"({BOOK.site}{page}.html)" in made.cells[0].source
    # No index knows the package: only a file is ever installed.
    wheel = f"{BOOK.site}{reader.FOLDER}/{reader.WHEEL}"
    [line] = re.findall(r"%pip install (.+)", made.cells[1].source)
    named = [word for word in shlex.split(line) if not word.startswith("-")]
    assert named == ["matplotlib", f"literate-rl[trees] @ {wheel}"]
    # Links lead to notebooks, headings and other sites; the site tests its own pages.
    headings = {h.replace(" ", "-") for h in re.findall(r"^#+ (.+)$", text, re.M)}
    names = {chapter.notebook for chapter in BOOK.chapters.values()}
    for link in re.findall(r"\]\(([^)]*)\)", text):
        known = link[1:] in headings if link[0] == "#" else link in names
        assert known or link.startswith((BOOK.site, "https://")), link


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


SITE = "https://x.y/chapters"


@pytest.mark.parametrize(
    ("site", "words"),
    [
        (
            "https://x.y/",
            f"[1 Notes]({SITE}/notes.html) · Next: [A Mint]({SITE}/ground/mint.html)",
        ),
        (
            "https://some-one.github.io/book.x/",
            "](https://colab.research.google.com/github/some-one/book.x/blob/gh-pages/",
        ),
        ("", "Previous: [1 Notes](01_notes.ipynb) · Next: [A Mint](A_mint.ipynb)"),
    ],
)
def test_the_head_leads_to_the_neighbours_and_to_colab(root, site, words):
    book = reader.Book(root, site) if site else reader.Book(root)
    text = reader.reader_notebook(book, "chapters/coins").cells[0].source
    assert words in text
    assert ("colab" in text) == ("github" in site)


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
        *((f"{{{x}}}`nosuch`", "nosuch") for x in ("nosuch", "eq", "doc", "cite:p")),
        ("[x](#nosuch)", "#nosuch"),
        ("```{figure} x.png\n# ```", "figure"),
    ],
)
def test_what_no_notebook_can_show_is_an_error(root, text, message):
    path = root / "chapters/notes.py"
    path.write_text(f"{HEADER}# %% [markdown]\n# # Notes\n#\n# {text}\n")
    with pytest.raises(tangle.TangleError, match=f"notes.*{message}"):
        reader.reader_notebook(reader.Book(root), "chapters/notes")


# --- Handing them out -----------------------------------------------------------------


def notebook(text: str, origin: str) -> str:
    """Return a notebook of one cell that was made from some chapter."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])
    made.metadata["literate_rl"] = {"digest": origin}
    return nbformat.writes(made)


def test_a_changed_chapter_is_laid_beside_what_a_reader_has(tmp_path):
    first, mine = {"a.ipynb": notebook("x", "1")}, notebook("solved", "1")
    assert reader.lay(tmp_path, first) == [tmp_path / "a.ipynb"]
    (tmp_path / "a.ipynb").write_text(mine)
    assert reader.lay(tmp_path, first) == []
    for origin, name in (("2", "a.new.ipynb"), ("3", "a.new2.ipynb")):
        new = {"a.ipynb": notebook("y", origin)}
        assert reader.lay(tmp_path, new) == [tmp_path / name]
        assert reader.lay(tmp_path, new) == []
        assert (tmp_path / name).read_text() == new["a.ipynb"]
    assert (tmp_path / "a.ipynb").read_text() == mine
    # A file of unknown origin is kept as well.
    (tmp_path / "b.ipynb").write_text("[]")
    assert reader.lay(tmp_path, {"b.ipynb": mine}) == [tmp_path / "b.new.ipynb"]


def test_only_a_change_of_the_text_makes_a_new_notebook(root):
    def origins():
        notebooks = reader.reader_notebooks(reader.Book(root))
        return {(name, reader.origin(text)) for name, text in notebooks.items()}

    before = origins()
    (root / "chapters/notes.py").write_text(HEADER + NOTES + "#\n# More.\n")
    assert {name for name, _ in before - origins()} == {"01_notes.ipynb"}


def test_the_wheel_alone_holds_the_package_and_its_stored_runs(tmp_path):
    reader.build_wheel(tmp_path)
    place = tmp_path / "site"
    with zipfile.ZipFile(tmp_path / reader.WHEEL) as wheel:
        wheel.extractall(place)
    source = ROOT / "src/literate_rl"
    others = [*source.glob("book/*.js"), *source.glob("trained/*/*.*")]
    for path in (*source.rglob("*.py"), *others):
        packed = place / path.relative_to(ROOT / "src")
        assert packed.read_bytes() == path.read_bytes()
    code = (
        "import literate_rl; print(literate_rl.__file__)\n"
        "from literate_rl.runs.runs import results_folder, stored_runs\n"
        "assert stored_runs('cartpole'), results_folder()\n"
        "assert all(map(literate_rl.load, literate_rl.trained_agents()))"
    )
    shown = subprocess.check_output(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(place)},
        text=True,
    )
    assert shown.startswith(str(place))
