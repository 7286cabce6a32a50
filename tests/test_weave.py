"""Weave: what becomes prose and what stays code, and what a chapter depends on."""

from dataclasses import dataclass
from types import SimpleNamespace

import execute
import pytest
import weave
from hypothesis import given
from hypothesis import strategies as st

# --- Sources that know which of their lines are what ----------------------------------


@dataclass(frozen=True)
class Line:
    """A line of a source; its kind is code, comment or docstring."""

    text: str
    kind: str = "code"


def indent(lines: list[Line]) -> list[Line]:
    """Move lines one level in."""
    return [Line("    " + line.text, line.kind) for line in lines]


def code(*texts: str) -> list[Line]:
    """Return lines of code."""
    return [Line(text) for text in texts]


STATEMENTS = st.sampled_from(
    [
        code("x = 1"),
        code("x = 1  # a trailing comment"),
        code("x = [", "    1,  # trailing inside brackets", "    # inside", "]"),
        code("x = {", '    "(": 1,', "    # inside", "}"),
        code('x = """', "# no comment", '"""'),
        code("x = '''", '""" # no comment', "# [", "'''"),
        code('x = "# no comment"'),
        code("x = 1", '"""A string that documents nothing."""'),
        code("if x:", "    y = 1", "else:", "    y = 2"),
        code("# fmt: off"),
        code("#: a comment for autodoc"),
        code("# noqa: E501"),
        code("# type: ignore"),
        code("lambda: (yield)"),
    ]
)
COMMENTS = st.sampled_from(
    [
        [Line("# One sentence.", "comment")],
        [
            Line("# Two", "comment"),
            Line("# lines, $x_{1}$ and {eq}`ratio`.", "comment"),
        ],
        [Line("#", "comment"), Line("#  * indented", "comment")],
        [Line("# ( an open bracket in prose", "comment")],
    ]
)
BLANK = st.just([Line("")])
DOCSTRINGS = st.sampled_from(
    [
        [Line('"""One line."""', "docstring")],
        [Line("r'''Raw: \\alpha.'''", "docstring")],
        [
            Line('"""First.', "docstring"),
            Line("", "docstring"),
            Line("# Not a comment but a docstring.", "docstring"),
            Line('"""', "docstring"),
        ],
    ]
)


@st.composite
def definitions(draw: st.DrawFn, body: st.SearchStrategy[list[Line]]) -> list[Line]:
    """Return a function or class, decorated or not, documented or not."""
    decorators = draw(
        st.sampled_from([[], code("@decorated"), code("@made(", "    1", ")")])
    )
    head = draw(
        st.sampled_from(
            [
                code("def f(x):"),
                code("async def f(x):"),
                code("class C:"),
                code("def f(", "    x: int,", "    # inside", ") -> int:"),
            ]
        )
    )
    documentation = draw(st.one_of(st.just([]), DOCSTRINGS))
    rest = draw(body) + code("y = 2")
    return decorators + head + indent(documentation + rest)


def sources(level: int) -> st.SearchStrategy[list[Line]]:
    """Return sources with definitions nested up to a level."""
    pieces = [STATEMENTS, COMMENTS, BLANK]
    if level:
        pieces.append(definitions(sources(level - 1)))
    return st.lists(st.one_of(pieces), max_size=5).map(
        lambda parts: [line for part in parts for line in part]
    )


SOURCES = sources(2)


def text_of(lines: list[Line]) -> str:
    """Return the source."""
    return "\n".join(line.text for line in lines)


# --- split ----------------------------------------------------------------------------


@given(SOURCES)
def test_every_line_appears_once_and_in_order(lines):
    rows = weave.split(text_of(lines))
    shown = [lines[number] for row in rows for number in row.lines]
    assert [line for line in shown if line.text.strip()] == [
        line for line in lines if line.kind == "code" and line.text.strip()
    ]
    beside = [prose for row in rows for prose in row.prose]
    comments = [x for p in beside if not p.is_docstring for x in p.text.splitlines()]
    written = [line.text.strip() for line in lines if line.kind == "comment"]
    assert comments == [text[1:].removeprefix(" ") for text in written]
    for prose in beside:  # it knows its line
        assert prose.text.split("\n")[0].strip(". ") in lines[prose.line].text


CELL = '''\
"""The module."""
x = 1
# The second
# number.
y = 2  # at the end

# Alone.

# Why.
#
# It is needed.
@cached
def f(x):
    r"""Return \\alpha.

    Args:
        x: deeper.
    """
    return x


class C:
    """A class."""

    # How.
    y = [
        # inside
        2,
    ]

    def g(self):
        """A method."""

    def bare(self):
        return 0'''


def test_prose_stands_beside_its_code():
    lines = CELL.split("\n")
    rows = [
        ([prose.text.strip() for prose in row.prose], [lines[k] for k in row.lines])
        for row in weave.split(CELL)
    ]
    assert [(prose, [*filter(None, map(str.strip, code))]) for prose, code in rows] == [
        ([], ['"""The module."""', "x = 1"]),
        (["The second\nnumber."], ["y = 2  # at the end"]),
        (["Alone."], []),
        (
            ["Why.\n\nIt is needed.", "Return \\alpha.\n\nArgs:\n    x: deeper."],
            ["@cached", "def f(x):", "return x"],
        ),
        (["A class."], ["class C:"]),
        (["How."], ["y = [", "# inside", "2,", "]"]),
        (["A method."], ["def g(self):", "def bare(self):", "return 0"]),
    ]


# --- meaning --------------------------------------------------------------------------


@given(SOURCES)
def test_prose_does_not_change_what_a_module_does(lines):
    bare = [line for line in lines if line.kind == "code" and line.text.strip()]
    assert weave.meaning(text_of(lines)) == weave.meaning(text_of(bare))


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("x = 1", "x = 1.0", False),
        ("def f(x=1): return x", "def f(x=2): return x", False),
        ("x = 1\ny = 2", "y = 2\nx = 1", False),
        ("@a\ndef f(): return 0", "@b\ndef f(): return 0", False),
        ("x = 1", "# why\nx=1  # and how", True),
        ("'a'\nx = 1", "'b'\nx = 1", True),
        ("class C:\n    'a'\n    x = 1", "class C:\n    '''b'''\n    x = 1", True),
        ("f(1, 2)", "f(\n    1,\n    2,\n)", True),
    ],
)
def test_code_changes_what_a_module_does_and_layout_does_not(old, new, same):
    assert (weave.meaning(old) == weave.meaning(new)) == same


# --- What a chapter depends on --------------------------------------------------------


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return the folder of a package: ``a`` imports ``b``, ``b`` imports ``c``."""
    folder = tmp_path / "src/literate_rl"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("import torch\nfrom literate_rl.b import f\n")
    (folder / "b.py").write_text("from literate_rl.c import (\n    g,\n)\n")
    (folder / "c.py").write_text("g = 1\n")
    (folder / "d.py").write_text("h = 1\n")
    (folder / "pictures.py").write_text("def dial(): ...\n")
    (folder / "book").mkdir()
    (folder / "ground").mkdir()
    (folder / "ground/w.py").write_text("from literate_rl.d import h\n")
    settings = tmp_path / "docs/_ext/kernel_config.py"
    settings.parent.mkdir(parents=True)
    settings.write_text("size = 11\n")
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\nwheel==0.46\n")
    monkeypatch.setattr(weave, "ROOT", tmp_path)
    return folder


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from literate_rl.a import x, y", "abc"),
        ("from literate_rl.d import h\nfrom literate_rl.b import (\n  f\n)", "bcd"),
        ("if x:\n    from literate_rl.d import h", "d"),
        ("# from literate_rl.d import h", ""),
        ("from other_literate_rl.d import h", ""),
        ("from literate_rl.ground.w import z", "dw"),
    ],
)
def test_imported_modules_are_found_through_others(package, source, names):
    assert [path.stem for path in weave.imported_modules(source)] == list(names)


def digest_of(source: str) -> str:
    """Return the digest that decides whether a chapter runs again."""
    notebook = weave.read_chapter(f"# %%\n{source}\n")
    return notebook.metadata["kernelspec"]["package_digest"]


@pytest.mark.parametrize(
    ("path", "text", "again"),
    [
        ("src/literate_rl/c.py", "g = 2\n", {"a", "b"}),
        ("src/literate_rl/c.py", '"""Prose."""\n\n# Why.\ng = 1  # one\n', set()),
        (
            "src/literate_rl/book/dial.js",
            "export const start = () => {};\n",
            {"pictures"},
        ),
        ("constraints.txt", "torch==2.13.1\nwheel==0.46\n", {*"abd", "pictures"}),
    ],
)
def test_a_chapter_runs_again_when_what_it_stands_on_changes(
    package, path, text, again
):
    def digests():
        names = *"abd", "pictures"
        return {(x, digest_of(f"from literate_rl.{x} import f")) for x in names}

    before = digests()
    (package / "../.." / path).write_text(text)
    assert {name for name, _ in digests() - before} == again


# --- reading --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "read"),
    [
        ("stored_runs('x')", "x"),
        ("stored_runs(f'{name}_y')", "x_y"),
        ("read_rows(results_folder() / 'speed.csv')", "speed"),
        ("(results_folder() / 'learning').iterdir()", "x x_y"),
    ],
)
def test_new_data_execute_a_chapter_again_that_reads_them(
    code, read, tmp_path, monkeypatch
):
    folder = tmp_path / "benchmarks/results/learning"
    folder.mkdir(parents=True)
    files = {name: folder / f"{name}_curves.csv" for name in ("x", "x_y")}
    files["speed"] = folder.parent / "speed.csv"
    for name in ("docs", "constraints.txt"):
        (tmp_path / name).symlink_to(weave.ROOT / name)
    monkeypatch.setattr(weave, "ROOT", tmp_path)
    chapter = tmp_path / "one.py"
    chapter.write_text(f"# %%\n{code}\n".replace("'", '"'))
    pages = {"chapters/one": str(chapter), "index": ""}
    env, found = SimpleNamespace(found_docs=set(pages), doc2path=pages.get), set()
    for name, path in files.items():
        env.executed = execute.keys(execute.chapters_among(env, pages))
        path.write_text("return\n1\n")
        if execute.outdated(None, env, set(), set(), set()) == ["chapters/one"]:
            found.add(name)
    assert found == set(read.split())
