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


def test_a_flipped_bit_is_seen() -> None:
    assert gave_way(chaos_runs.bits(1, 100, FEW[1:3])) == []


def test_tampered_settings_are_refused_or_legal() -> None:
    assert gave_way(chaos_runs.settings(1, 6, FEW[2:3])) == []


def test_folders_of_others_are_refused_and_not_touched() -> None:
    assert gave_way(chaos_runs.folders(1, 3, FEW[2:3])) == []


def test_without_space_a_training_ends_in_one_line_and_can_go_on() -> None:
    assert gave_way(chaos_runs.disk(2, 2, FEW[2:3])) == []


def test_an_environment_that_breaks_is_named_in_one_line() -> None:
    assert gave_way(chaos_runs.worlds(1, 6, FEW[2:3])) == []


def test_calls_with_one_thing_wrong_are_refused() -> None:
    rows = chaos_calls.calls(1, 60)
    assert gave_way(rows) == []
    assert sum(row["times"] for row in rows) >= 60


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
        ("error: one\nand more\n", False),
        ("Traceback (most recent call last)\nerror: x\n", False),
        ("", False),
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
    done = {"done": "impala: kill, one of 2", "came": "a process is left"}
    made = {"file": "a.py", "line": 3, "change": "+ to -"}
    rows = [{**done, "held": False}, {**made, "killed_by": "test_a.py::test_a"}]
    rows.append({**made, "killed_by": "survived"})
    assert [(row["what"], row["held"]) for row in map(chaos.alike, rows)] == [
        ("actor, impala: kill", False),
        ("wrong formula, noticed by a test", True),
        ("wrong formula, noticed by a test", False),
    ]
    assert chaos.alike(rows[0])["why"] == "a process is left"
    assert chaos.alike(rows[2])["why"] == "a.py:3 + to -"


def test_rows_become_one_line_each_and_are_stored_by_kind(tmp_path, monkeypatch):
    path = tmp_path / "chaos.csv"
    monkeypatch.setattr(chaos, "RESULT", path)
    good = {"what": "a", "times": 3, "held": True, "why": ""}
    bad = {"what": "a", "held": False, "why": "gave way"}
    rows = chaos.summary([good, bad, bad])
    assert rows == [{"what": "a", "times": 5, "held": 3, "why": "gave way"}]
    chaos.store("bits", rows, seed=7)
    chaos.store("kills", rows, seed=8)
    chaos.store("bits", [{**rows[0], "what": "b"}], seed=9)
    table, origin = read_table(path)
    found = [(row["kind"], row["what"], row["seed"]) for row in table]
    assert found == [("kills", "a", "8"), ("bits", "b", "9")]
    assert {"command", "torch"} <= origin.keys()
    # Each kind may have been tried on a machine of its own.
    assert all(row["cpu"] and row["date"] for row in table)
