"""Chaos in short: each kind of trial holds, and sees what does not."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import chaos, chaos_calls, chaos_chapters, chaos_runs
from benchmarks.store import read_table
from literate_rl.runs import runs
from literate_rl.runs.runs import load_checkpoint, save_checkpoint

# A world that cannot be saved, a buffer between two phases, replay, actors.
FEW = ("ppo, LunarLander", "ppg", "a2c", "dqn", "a3c")


def gave_way(rows: list[dict[str, object]]) -> list[object]:
    assert rows
    return [row["why"] for row in rows if not row["held"]]


def test_killed_trainings_come_to_the_same_end() -> None:
    rows = chaos_runs.kills(1, len(FEW), FEW)
    assert gave_way(rows) == []
    assert {row["what"] for row in rows} == {f"SIGKILL, {name}" for name in FEW}


@pytest.mark.parametrize(
    ("trials", "numbers", "which"),
    [
        (chaos_runs.bits, (1, 100), FEW[1:3]),
        (chaos_runs.settings, (1, 6), FEW[2:3]),
        (chaos_runs.folders, (1, 3), FEW[2:3]),
        (chaos_runs.disk, (2, 2), FEW[2:3]),
        (chaos_runs.worlds, (1, 6), FEW[2:3]),
        (chaos_calls.calls, (1, 60), None),
    ],
)
def test_what_is_wrong_is_seen_and_named(trials, numbers, which) -> None:
    assert gave_way(trials(*numbers, which) if which else trials(*numbers)) == []


# --- It can fail ----------------------------------------------------------------------


def test_a_claim_that_hangs_on_the_rounding_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos_chapters, "CHAPTERS", tmp_path)
    start = "import torch\ntorch.manual_seed(1)\nlayer = torch.nn.Linear(2, 2)\n"
    torch.manual_seed(1)
    layer = torch.nn.Linear(2, 2)
    held = f"assert abs(layer.bias[0].item() - {layer.bias[0].item()}) < 1e-4\n"
    hangs = f"assert layer.bias[0].item() == {layer.bias[0].item()}\n"
    (tmp_path / "one.py").write_text(start + held + hangs)
    assert chaos_chapters.executed("one", 1) == f"one: AssertionError: {hangs[:-1]}"


def test_a_difference_between_two_runs_is_seen(tmp_path: Path) -> None:
    run, _ = chaos_runs.whole("a2c")
    other = shutil.copytree(run, tmp_path / "other")
    assert chaos_runs.difference(run, other) == ""
    rows = (other / "metrics.csv").read_text()
    (other / "metrics.csv").write_text(rows.rpartition("\n320,")[0] + "\n")
    assert chaos_runs.difference(run, other) == "the metrics differ"
    state = load_checkpoint(other / "checkpoint.pt")
    name = next(iter(state["policy"]["weights"]))
    state["policy"]["weights"][name].view(-1)[0] += 1e-6
    save_checkpoint(other / "checkpoint.pt", state)
    assert chaos_runs.difference(run, other) == f"/policy/weights/{name} differs"


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("run directory: runs/a\nerror: no space left\n", True),
        ("error: one\nerror: two\n", False),
        ("Traceback (most recent call last)\nerror: x\n", False),
    ],
)
def test_a_refusal_is_one_line_and_the_last(tmp_path, text, held) -> None:
    output = tmp_path / "output.txt"
    output.write_text(text)
    complaint = chaos_runs.complaint(SimpleNamespace(output=output))
    assert (complaint == "") == held


def test_a_resume_that_forgets_is_seen(monkeypatch) -> None:
    def forget(run, learner) -> None:
        learner.policy.load_state_dict(run.state["policy"]["weights"])

    chaos_runs.whole("a2c")
    monkeypatch.setattr(runs.Run, "restore", forget)
    rows = chaos_runs.kills(1, 2, ("a2c",))
    assert gave_way(rows)


def test_rows_of_actors_and_mutants_become_alike() -> None:
    actor = {"done": "impala: kill, one of 2", "came": "a process is left"}
    mutant = {"file": "a.py", "line": 3, "change": "+ to -", "killed_by": "survived"}
    rows = [{**actor, "held": False}, mutant, mutant | {"killed_by": "test_a.py::x"}]
    assert [[row[x] for x in ("what", "held")] for row in map(chaos.alike, rows)] == [
        ["actor, impala: kill", False],
        ["wrong formula, noticed by a test", False],
        ["wrong formula, noticed by a test", True],
    ]
    whys = [chaos.alike(row)["why"] for row in rows[:2]]
    assert whys == ["a process is left", "a.py:3 + to -"]


def test_rows_become_one_line_each_and_are_stored_by_kind(tmp_path, monkeypatch):
    monkeypatch.setattr(chaos, "RESULT", tmp_path / "chaos.csv")
    good = {"what": "a", "times": 3, "held": True, "why": ""}
    bad = {"what": "a", "held": False, "why": "gave way"}
    rows = chaos.summary([good, bad, bad])
    assert rows == [{"what": "a", "times": 5, "held": 3, "why": "gave way"}]
    for kind, what, seed in (("bits", "a", 7), ("kills", "a", 8), ("bits", "b", 9)):
        chaos.store(kind, [{**rows[0], "what": what}], seed=seed)
    table, _ = read_table(tmp_path / "chaos.csv")
    found = [(row["kind"], row["what"], row["seed"]) for row in table]
    assert found == [("kills", "a", "8"), ("bits", "b", "9")]
    # Each kind may have been tried on a machine of its own.
    assert all(row["cpu"] and row["date"] for row in table)
