"""The mutants: each is one change that compiles, and the list of equivalent ones."""

import ast
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import chaos_mutants
from benchmarks.chaos_mutants import (
    LIST,
    Listed,
    all_mutants,
    exchanged,
    headed,
    parsed,
    path_of,
    spots_of,
    statements,
    trials,
)
from benchmarks.store import read_table, write_table

MUTANTS = all_mutants()


def test_each_mutant_is_another_program_and_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) > 1000
    for mutant in random.Random(0).sample(MUTANTS, 12):
        original = path_of(mutant.place.module).read_text()
        before, after = (ast.dump(ast.parse(x)) for x in (original, mutant.text()))
        assert before != after, mutant.name
        # One line is another one.
        texts = original.splitlines(), mutant.text().splitlines()
        pairs = enumerate(zip(*texts, strict=True), 1)
        assert [k for k, (x, y) in pairs if x != y] == [mutant.line]


def test_every_kind_of_change_is_made() -> None:
    changes = {mutant.name.partition(": ")[2] for mutant in MUTANTS}
    assert {
        "value.detach() -> value",
        "0.99 -> 0.495",
        "~(terminated | truncated) -> (terminated | truncated)",
        "torch.min(unclipped, clipped) -> torch.max(unclipped, clipped)",
        "adv < 0 -> adv <= 0",
        "reward + gamma * future - value -> (reward + gamma * future + value)",
        "torch.where(terminated, 0.0, next_value) -> "
        "torch.where(terminated, next_value, 0.0)",
        "1: -> :-1",
    } <= changes


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("if config.anneal: pass", ["not (config.anneal)"]),
        ("x = f(a, b, c)", ["f(b, a, c)"]),
        ("optimizer.step()", ["pass"]),
        # What only guards or is the same either way is left out.
        ("check_finite(x, x=x); y = torch.add(x, x)", []),
    ],
)
def test_conditions_arguments_and_statements_are_changed(code: str, change) -> None:
    (function,) = ast.parse(f"def f():\n {code}").body
    assert [new for _, new in chaos_mutants.changes(function)] == change


def test_a_listed_mutant_that_is_gone_is_noticed(monkeypatch) -> None:
    chaos_mutants.check_the_list()
    monkeypatch.setitem(chaos_mutants.EQUIVALENT, "advantages.gae: 1 -> 2", "it is not")
    with pytest.raises(ValueError, match=r"advantages.gae: 1 -> 2"):
        trials(0, 1)


# --- Those that died before -----------------------------------------------------------

LOOP = Listed(
    "maths.advantages",
    "gae_loop",
    "operator",
    "advantage = td_error[t] + passed_on[t] * advantage",
    "advantage = td_error[t] - passed_on[t] * advantage",
    "test_advantages.py::test_of_then",
)


def test_the_list_can_be_read() -> None:
    rows = [Listed(**row) for row in read_table(LIST)[0]]
    assert len({row[:5] for row in rows}) == len(rows) >= 400
    for row in rows:
        before, after = (ast.dump(parsed(text)) for text in (row.before, row.after))
        assert before != after
        assert row.killed_by.startswith("test_")
        assert "::" in row.killed_by


def test_a_statement_is_found_however_it_is_broken_into_lines() -> None:
    tree = ast.parse(
        "def f():\n    if (a  # why\n            and b):\n        return 1"
    )
    ((name, condition), (_, inside)) = statements(tree)
    assert (name, headed(condition), headed(inside)) == ("f", "if a and b:", "return 1")
    assert headed(parsed("if a and b:")) == "if a and b:"


def test_a_statement_is_found_where_it_went() -> None:
    moved = LOOP._replace(module="maths.sac", function="Old.gae_loop")
    other = LOOP._replace(module="maths.sac", function="step")
    for row in (LOOP, moved, other):
        (spot,) = spots_of(row)
        assert spot[:2] == ("maths.advantages", "gae_loop")
    assert spots_of(LOOP._replace(before="this = 'is' + nowhere")) == []
    # Elsewhere it counts only if it is the only one.
    row = LOOP._replace(function="gone", module="gone", before="super().__init__()")
    assert len(spots_of(row)) > 1


def test_a_statement_is_changed_and_what_it_holds_stays() -> None:
    (spot,) = spots_of(LOOP._replace(before="for t in reversed(range(len(td_error))):"))
    new = "for t in range(len(td_error)):"
    original = ast.unparse(ast.parse(path_of("maths.advantages").read_text()))
    pairs = zip(original.splitlines(), exchanged(spot, new).splitlines(), strict=True)
    assert [y.strip() for x, y in pairs if x != y] == [new]


def test_old_names_become_new_ones_where_they_are_whole_words() -> None:
    row = LOOP._replace(before="a.tuned = b.tune", killed_by="test_tune.py::test_tune")
    new = row.renamed([("tune", "adapt"), ("a.tuned", "a.set")])
    assert new.before == "a.set = b.adapt"
    assert new.killed_by == "test_tune.py::test_tune"


@pytest.mark.parametrize(
    "killer", ["test_x.py::test_y", "import", "", "pytest ended with 4"]
)
def test_a_mutant_dies_lives_or_is_gone(
    killer: str, monkeypatch, tmp_path: Path, capsys
) -> None:
    runs = []

    def run(source: Path, tests: list[str]) -> str:
        changed = LOOP.after in (source / "literate_rl/maths/advantages.py").read_text()
        runs.append((changed, tests))
        return killer if changed else ""

    monkeypatch.setattr(chaos_mutants, "first_failure", run)
    rows = [LOOP, LOOP._replace(before="it = 'went'")]
    write_table(tmp_path / "list.csv", Listed._fields, rows, {})
    chaos_mutants.again([str(tmp_path / "list.csv")])
    first, second, summary = capsys.readouterr().out.splitlines()
    now = "dies" if killer in ("test_x.py::test_y", "import") else "lives"
    assert [json.loads(row)["now"] for row in (first, second)] == [now, "line gone"]
    assert summary == str({now: 1, "line gone": 1})
    # First the test that noticed it then; all of the file before it is said to live.
    named, *others = runs
    assert named == (True, [f"tests/{LOOP.killed_by}"])
    assert others == (
        # What fails must not do so without the mutant.
        [(False, [f"tests/{LOOP.killed_by if killer == 'import' else killer}"])]
        if now == "dies"
        else [(True, ["tests/test_advantages.py"])]
    )


def test_the_program_leaves_it_to_the_tests_to_import_the_package() -> None:
    # A process that runs them begins by importing the program, and what the program
    # imports is not the copy.
    code = (
        "import benchmarks.chaos_mutants, sys; assert 'literate_rl' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=chaos_mutants.ROOT)


def test_a_test_that_cannot_run_at_all_kills_nothing(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(chaos_mutants, "first_failure", lambda *_: "import")
    write_table(tmp_path / "list.csv", Listed._fields, [LOOP], {})
    with pytest.raises(RuntimeError, match="fails without a mutant: import"):
        chaos_mutants.again([str(tmp_path / "list.csv")])
