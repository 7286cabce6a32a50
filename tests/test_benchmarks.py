"""The benchmarks run, agree with their peers, and keep their data whole."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import __main__ as command
from benchmarks.harness import Case, Goal, measure, summarise
from benchmarks.store import read_results, write_results


@pytest.mark.parametrize("name", command.NAMES)
def test_benchmark_runs_and_its_methods_agree(name: str, capsys) -> None:
    rows = command.run(name, quick=True)
    assert len(rows) >= 3
    assert all(row.microseconds >= 0 for row in rows)
    assert any(row.reached is not None for row in rows)
    capsys.readouterr()


def test_ratios_come_from_the_same_round() -> None:
    case = Case("c", {"peer": int, "own": int}, "peer", {"own": Goal(at_least=2.0)})
    samples = {"peer": [1.0, 10.0, 1.0], "own": [0.25, 5.0, 0.5]}
    peer, own = summarise(case, samples)
    assert (peer.ratio, own.ratio) == (1.0, 2.0)
    assert own.reached is True
    assert peer.reached is None


def test_methods_take_turns() -> None:
    calls: list[str] = []
    functions = {name: lambda name=name: calls.append(name) for name in "abc"}
    case = Case("c", functions, "a", sample=lambda function, repeats: function() or 1.0)
    samples = measure(case, rounds=3)
    assert "".join(calls[3:]) == "abcbcacab"
    assert all(len(times) == 3 for times in samples.values())


@pytest.mark.parametrize(
    ("goal", "reached"),
    [
        (Goal(at_most=2e6), True),
        (Goal(at_most=0.5e6), False),
        (Goal(at_least=5.0), False),
    ],
)
def test_goals_can_be_missed(goal: Goal, reached: bool) -> None:
    case = Case("c", {"peer": int, "own": int}, "peer", {"own": goal})
    _, own = summarise(case, {"peer": [2.0], "own": [1.5]})
    assert own.reached is reached


def test_stored_rows_come_back(tmp_path: Path) -> None:
    case = Case("a, b", {"peer": int, "own": int}, "peer", {"own": Goal(at_least=2)})
    rows = summarise(case, {"peer": [2.0], "own": [1.0]})
    write_results(tmp_path / "x.csv", rows, {"command": "c: d", "seed": "0"})
    assert read_results(tmp_path / "x.csv") == (rows, {"command": "c: d", "seed": "0"})
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]
