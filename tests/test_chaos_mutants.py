"""The mutants: each is one change that compiles, and the list of equivalent ones."""

import ast
import random

import pytest

from benchmarks import chaos_mutants
from benchmarks.chaos_mutants import (
    LIST,
    Listed,
    all_mutants,
    parsed,
    path_of,
    spots_of,
)
from benchmarks.store import read_table, write_table

MUTANTS = all_mutants()


def test_each_mutant_is_another_program_and_has_a_name_of_its_own():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) > 1000
    for mutant in random.Random(0).sample(MUTANTS, 12):
        original = path_of(mutant.place.module).read_text()
        before, after = (ast.dump(ast.parse(x)) for x in (original, mutant.text()))
        assert before != after, mutant.name
        # One line is another one.
        texts = original.splitlines(), mutant.text().splitlines()
        pairs = enumerate(zip(*texts, strict=True), 1)
        assert [k for k, (x, y) in pairs if x != y] == [mutant.line]


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
def test_conditions_arguments_and_statements_are_changed(code, change):
    (function,) = ast.parse(f"def f():\n {code}").body
    assert [new for _, new in chaos_mutants.changes(function)] == change


def test_each_listed_mutant_is_there():
    chaos_mutants.check_the_list()


# --- Those that died before -----------------------------------------------------------

LOOP = Listed(
    "maths.advantages",
    "gae_loop",
    "operator",
    "advantage = td_error[t] + passed_on[t] * advantage",
    "advantage = td_error[t] - passed_on[t] * advantage",
    "test_advantages.py::test_of_then",
)


def test_the_list_can_be_read():
    rows = [Listed(**row) for row in read_table(LIST)[0]]
    assert len({row[:5] for row in rows}) == len(rows) >= 400
    for row in rows:
        before, after = (ast.dump(parsed(text)) for text in (row.before, row.after))
        assert before != after
        assert row.killed_by.startswith("test_")
        assert "::" in row.killed_by


def test_a_statement_is_found_where_it_went():
    moved = LOOP._replace(module="maths.sac", function="Old.gae_loop")
    other = LOOP._replace(module="maths.sac", function="step")
    for row in (LOOP, moved, other):
        (spot,) = spots_of(row)
        assert spot[:2] == ("maths.advantages", "gae_loop")
    assert spots_of(LOOP._replace(before="this = 'is' + nowhere")) == []


@pytest.mark.parametrize("killer", ["test_x.py::test_y", "", "pytest ended with 4"])
def test_a_mutant_dies_lives_or_is_gone(killer, monkeypatch, tmp_path, capsys):
    def run(source, tests):
        changed = LOOP.after in (source / "literate_rl/maths/advantages.py").read_text()
        return killer if changed else ""

    monkeypatch.setattr(chaos_mutants, "first_failure", run)
    rows = [LOOP, LOOP._replace(before="it = 'went'")]
    write_table(tmp_path / "list.csv", Listed._fields, rows, {})
    chaos_mutants.again([str(tmp_path / "list.csv")])
    *_, summary = capsys.readouterr().out.splitlines()
    now = "dies" if killer == "test_x.py::test_y" else "lives"
    assert summary == str({now: 1, "line gone": 1})


def test_a_test_that_cannot_run_at_all_kills_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(chaos_mutants, "first_failure", lambda *_: "import")
    write_table(tmp_path / "list.csv", Listed._fields, [LOOP], {})
    with pytest.raises(RuntimeError, match="fails without a mutant: import"):
        chaos_mutants.again([str(tmp_path / "list.csv")])
