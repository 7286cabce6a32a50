"""Weave: what becomes prose and what stays code, and what a chapter depends on."""

import ast
from dataclasses import dataclass
from textwrap import dedent
from types import SimpleNamespace

import execute
import pytest
import tangle
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
        code("x = f(", "    # a comment inside brackets", "    1,", ")"),
        code("x = [", "    1,  # trailing inside brackets", "    # inside", "]"),
        code("x = {", '    "(": 1,', "    # inside", "}"),
        code('x = """', "# no comment", '"""'),
        code("x = '''", '""" # no comment', "# [", "'''"),
        code('x = "# no comment"'),
        code("x = 1 + \\", "    2"),
        code("x = 1", '"""A string that documents nothing."""'),
        code("if x:", "    y = 1", "else:", "    y = 2"),
        code("# fmt: off"),
        code("#: a comment for autodoc"),
        code("# noqa: E501"),
        code("# type: ignore"),
        code("# pragma: no cover"),
        code("# ruff: noqa"),
        code("# mypy: ignore-errors"),
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
        [Line("#!no space", "comment")],
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


def prose_of(row: weave.Row) -> list[str]:
    """Return the texts beside a row."""
    return [prose.text.strip() for prose in row.prose]


def rows_of(source: str) -> list[tuple[list[str], list[str]]]:
    """Return prose and code of the rows, without blank lines."""
    source = dedent(source).strip("\n")
    lines = source.split("\n")
    return [
        (
            prose_of(row),
            [lines[number] for number in row.lines if lines[number].strip()],
        )
        for row in weave.split(source)
    ]


@given(SOURCES)
def test_every_line_of_code_appears_once_and_in_order(lines):
    ast.parse(text_of(lines))
    shown = [number for row in weave.split(text_of(lines)) for number in row.lines]
    assert [number for number in shown if lines[number].text.strip()] == [
        number
        for number, line in enumerate(lines)
        if line.kind == "code" and line.text.strip()
    ]


@given(SOURCES)
def test_every_comment_appears_once_and_in_order(lines):
    rows = weave.split(text_of(lines))
    comments = [p for row in rows for p in row.prose if not p.is_docstring]
    shown = [text for prose in comments for text in prose.text.splitlines()]
    written = [line.text.strip() for line in lines if line.kind == "comment"]
    assert shown == [text[1:].removeprefix(" ") for text in written]


@given(SOURCES)
def test_every_docstring_appears_once_and_in_order(lines):
    rows = weave.split(text_of(lines))
    docstrings = [p for row in rows for p in row.prose if p.is_docstring]
    opened = [
        number
        for number, line in enumerate(lines)
        if line.kind == "docstring"
        and line.text.strip().startswith(('"""One', '"""First', "r'''"))
    ]
    assert [prose.line for prose in docstrings] == opened
    for prose in docstrings:
        assert prose.text.startswith(("One line.", "Raw: \\alpha.", "First."))


@given(SOURCES)
def test_prose_knows_its_line(lines):
    for row in weave.split(text_of(lines)):
        for prose in row.prose:
            first = prose.text.split("\n")[0]
            assert first.strip(". ") in lines[prose.line].text


@given(SOURCES)
def test_no_row_is_empty(lines):
    for row in weave.split(text_of(lines)):
        assert row.prose or any(lines[number].text.strip() for number in row.lines)


@pytest.mark.parametrize(
    "chapter", tangle.chapter_paths(), ids=lambda path: tangle.module_name(path)
)
def test_rows_and_prose_are_the_cells_of_the_book(chapter):
    for cell in filter(tangle.is_export, tangle.read(chapter).cells):
        rows = weave.split(cell.source)
        lines = cell.source.split("\n")
        shown = [number for row in rows for number in row.lines]
        assert shown == sorted(set(shown))
        left = set(range(len(lines))) - set(shown)
        # What is not shown as code is a comment, blank, or inside a docstring.
        docstrings = docstring_lines(cell.source)
        for number in left - docstrings:
            assert lines[number].strip() == "" or lines[number].strip().startswith("#")
        assert docstrings <= left


def docstring_lines(source: str) -> set[int]:
    """Return the lines of the docstrings of classes and functions."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            first = node.body[0]
            found |= set(range(first.lineno - 1, first.end_lineno))
    return found


def test_a_comment_stands_beside_the_code_below_it():
    assert rows_of(
        """
        first = 1
        # The second
        # number.
        second = 2

        third = 3
        # The last.
        last = 4
        """
    ) == [
        ([], ["first = 1"]),
        (["The second\nnumber."], ["second = 2", "third = 3"]),
        (["The last."], ["last = 4"]),
    ]


def test_a_docstring_stands_beside_its_head_and_body():
    assert rows_of(
        '''
        @cached
        def f(x):
            """Return it."""
            return x
        '''
    ) == [(["Return it."], ["@cached", "def f(x):", "    return x"])]


def test_each_documented_definition_opens_a_row():
    assert rows_of(
        '''
        x = 1

        class C:
            """A class."""

            y = 2

            @property
            def f(self):
                """A method."""
                return self.y

            def bare(self):
                return 0
        '''
    ) == [
        ([], ["x = 1"]),
        (["A class."], ["class C:", "    y = 2"]),
        (
            ["A method."],
            [
                "    @property",
                "    def f(self):",
                "        return self.y",
                "    def bare(self):",
                "        return 0",
            ],
        ),
    ]


def test_a_comment_above_a_definition_shares_its_row():
    assert rows_of(
        '''
        # Why it is needed.
        def f(x):
            """Return it."""
            # How it is done.
            return x
        '''
    ) == [
        (["Why it is needed.", "Return it."], ["def f(x):"]),
        (["How it is done."], ["    return x"]),
    ]


def test_comments_inside_brackets_at_the_end_and_directives_stay_code():
    source = """
        # fmt: off
        x = [
            # inside
            1,  # at the end
        ]  # noqa: E501
        #: documented
        y = "# a string"
        """
    assert rows_of(source) == [([], dedent(source).strip().split("\n"))]


def test_a_docstring_of_the_cell_stays_code():
    assert rows_of('"""The module."""\nx = 1') == [([], ['"""The module."""', "x = 1"])]


def test_a_docstring_is_dedented_and_a_raw_one_read_as_python_reads_it():
    [(prose, _)] = rows_of(
        '''
        def f():
            r"""Return \\alpha.

            Args:
                x: deeper.
            """
            return 0
        '''
    )
    assert prose == ["Return \\alpha.\n\nArgs:\n    x: deeper."]


def test_paragraphs_of_a_comment_stay_together():
    [(prose, _)] = rows_of("# One.\n#\n# Two.\nx = 1")
    assert prose == ["One.\n\nTwo."]


def test_a_comment_after_a_blank_line_is_a_row_of_its_own():
    assert rows_of("# One.\n\n# Two.\nx = 1") == [(["One."], []), (["Two."], ["x = 1"])]


# --- meaning --------------------------------------------------------------------------


@given(SOURCES)
def test_prose_does_not_change_what_a_module_does(lines):
    bare = [line for line in lines if line.kind == "code" and line.text.strip()]
    assert weave.meaning(text_of(lines)) == weave.meaning(text_of(bare))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x = 1", "x = 2"),
        ("x = 1", "x = 1.0"),
        ("x = 'a'", "x = 'b'"),
        ("def f(x): return x", "def f(y): return y"),
        ("def f(x=1): return x", "def f(x=2): return x"),
        ("def f(x): return x", "def f(x: int): return x"),
        ("def f(x):\n    'd'\n    return x", "def f(x):\n    'd'\n    return -x"),
        ("x = 1\ny = 2", "y = 2\nx = 1"),
        ("class C:\n    'd'\n    x = 1", "class C:\n    'd'\n    x = 2"),
        ("@a\ndef f(): return 0", "@b\ndef f(): return 0"),
    ],
)
def test_code_changes_what_a_module_does(old, new):
    assert weave.meaning(old) != weave.meaning(new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x = 1", "x=1"),
        ("x = 1", "# why\nx = 1  # and how"),
        ("'a'\nx = 1", "'b'\nx = 1"),
        ("def f():\n    'a'\n    return 0", "def f():\n    return 0"),
        ("async def f():\n    'a'\n    return 0", "async def f():\n    return 0"),
        ("class C:\n    'a'\n    x = 1", "class C:\n    '''b'''\n    x = 1"),
        ("f(1, 2)", "f(\n    1,\n    2,\n)"),
    ],
)
def test_layout_and_prose_do_not(old, new):
    assert weave.meaning(old) == weave.meaning(new)


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
        ("from literate_rl.c import g", "c"),
        ("from literate_rl.b import f", "bc"),
        ("from literate_rl.a import x, y", "abc"),
        ("from literate_rl.d import h\nfrom literate_rl.b import (\n  f\n)", "bcd"),
        ("if x:\n    from literate_rl.d import h", "d"),
        ("import torch", ""),
        ("from literate_rl.unknown import x", ""),
        ("# from literate_rl.d import h", ""),
        ("from other_literate_rl.d import h", ""),
        ("from literate_rl.ground.w import z", "dw"),
    ],
)
def test_imported_modules_are_found_through_others(package, source, names):
    found = weave.imported_modules(source)
    assert [path.stem for path in found] == list(names)


def test_modules_that_import_each_other_end(package):
    (package / "c.py").write_text("from literate_rl.a import f\n")
    found = weave.imported_modules("from literate_rl.b import f")
    assert [path.stem for path in found] == ["a", "b", "c"]


def digest_of(source: str) -> str:
    """Return the digest that decides whether a chapter runs again."""
    notebook = weave.read_chapter(f"# %%\n{source}\n")
    return notebook.metadata["kernelspec"]["package_digest"]


def test_a_chapter_runs_again_when_code_that_it_imports_changes(package):
    chapter = "from literate_rl.a import f"
    before = digest_of(chapter)
    (package / "c.py").write_text("g = 2\n")
    assert digest_of(chapter) != before


def test_a_chapter_with_figures_runs_again_when_a_script_changes(package):
    (package / "pictures.py").write_text("def dial(): ...\n")
    (package / "book").mkdir()
    chapters = "from literate_rl.pictures import dial", "from literate_rl.a import f"
    before = [digest_of(chapter) for chapter in chapters]
    (package / "book/dial.js").write_text("export const start = () => {};\n")
    after = [digest_of(chapter) for chapter in chapters]
    assert [a != b for a, b in zip(after, before, strict=True)] == [True, False]


def test_a_chapter_does_not_run_again_for_prose_or_other_modules(package):
    chapter = "from literate_rl.a import f"
    before = digest_of(chapter)
    (package / "c.py").write_text('"""Prose."""\n\n# Why.\ng = 1  # one\n')
    (package / "d.py").write_text("h = 2\n")
    assert digest_of(chapter) == before


def test_a_chapter_runs_again_with_other_settings_of_its_kernel(package):
    before = digest_of("x = 1")
    (package / "../../docs/_ext/kernel_config.py").write_text("size = 12\n")
    assert digest_of("x = 1") != before


def test_a_chapter_runs_again_with_another_version_of_a_library(package):
    before = digest_of("x = 1")
    (package / "../../constraints.txt").write_text("torch==2.13.1\nwheel==0.46\n")
    assert digest_of("x = 1") != before


def test_a_chapter_runs_again_with_another_version_of_python(package, monkeypatch):
    before = digest_of("x = 1")
    monkeypatch.setattr(weave, "get_python_version", lambda: "4.0")
    assert digest_of("x = 1") != before


def test_every_chapter_that_stands_on_the_package_runs_again_with_it(monkeypatch):
    chapters = {path: path.read_text("utf-8") for path in tangle.chapter_paths()}

    def keys():
        return {
            path: weave.read_chapter(text).metadata["kernelspec"]["package_digest"]
            for path, text in chapters.items()
        }

    module = tangle.ROOT / "src/literate_rl/ground/signatures.py"
    stand_on_it = {
        path
        for path, text in chapters.items()
        if module in weave.imported_modules(text.replace("\n# ", "\n"))
    }
    assert len(stand_on_it) > 3
    before = keys()
    true = weave.meaning
    monkeypatch.setattr(
        weave,
        "meaning",
        lambda code: true(code + "\nx = 1" * (code == module.read_text("utf-8"))),
    )
    after = keys()
    assert {path for path in chapters if before[path] != after[path]} == stand_on_it


# --- Names ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ("import torch", {"torch": "torch"}),
        ("import torch.nn.functional as F", {"F": "torch.nn.functional"}),
        ("import torch.distributions", {"torch": "torch"}),
        ("import numpy as np", {"np": "numpy"}),
        ("from torch import Tensor, nn", {"Tensor": "torch.Tensor", "nn": "torch.nn"}),
        ("from a.b import c as d", {"d": "a.b.c"}),
        ("from literate_rl.x import f", {"f": "literate_rl.x.f"}),
        ("def f():\n    import torch", {"torch": "torch"}),
        ("x = 1", {}),
    ],
)
def test_aliases_say_what_imported_names_stand_for(cell, names):
    assert weave.aliases(["y = 0", cell]) == names


def test_definitions_are_functions_classes_and_methods():
    source = dedent(
        """
        @cached
        def f():
            def inner(): ...

        class C:
            x = 1

            @property
            def g(self): ...
        """
    ).strip()
    assert weave.definitions(source) == {1: "f", 4: "C", 8: "C.g"}


# --- reading --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "read"),
    [
        ("stored_runs('x')", "x"),
        ("stored_runs(f'{name}_y')", "x_y"),
        ("stored_runs(name)", "x x_y"),
        ("read_rows(results_folder() / 'speed.csv')", "speed"),
        ("(results_folder() / 'learning').iterdir()", "x x_y"),
        ("print('x')", ""),
    ],
)
def test_new_data_read_a_page_and_execute_its_chapter_again(
    code, read, tmp_path, monkeypatch
):
    folder = tmp_path / "benchmarks/results/learning"
    folder.mkdir(parents=True)
    files = {name: folder / f"{name}_curves.csv" for name in ("x", "x_y")} | {
        "speed": folder.parent / "speed.csv"
    }
    for name in ("docs", "constraints.txt"):
        (tmp_path / name).symlink_to(weave.ROOT / name)
    monkeypatch.setattr(weave, "ROOT", tmp_path)
    chapter = tmp_path / "chapters/one.py"
    chapter.parent.mkdir()
    chapter.write_text(f"# %%\n{code}\n".replace("'", '"'))
    pages = {"chapters/one": str(chapter), "index": ""}
    env = SimpleNamespace(found_docs=set(pages), doc2path=pages.get)
    found = set()
    for name, path in files.items():
        env.executed = execute.keys(execute.chapters_among(env, pages))
        assert execute.outdated(None, env, set(), set(), set()) == []
        path.write_text("return\n1\n")
        if execute.outdated(None, env, set(), set(), set()) == ["chapters/one"]:
            found.add(name)
    assert found == set(read.split())
    assert execute.outdated(None, env, {"chapters/one"}, set(), set()) == []
