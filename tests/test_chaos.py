"""Chaos in short: each kind of trial holds, and sees what does not."""

import pytest

from benchmarks import chaos_calls, chaos_runs
from literate_rl.runs import runs

# A world that cannot be saved, replay, actors.
FEW = ("ppo, LunarLander", "dqn", "a3c")
ONE = ("a2c",)


def gave_way(rows: list[dict[str, object]]) -> list[object]:
    assert rows
    return [row["why"] for row in rows if not row["held"]]


def test_killed_trainings_come_to_the_same_end():
    rows = chaos_runs.kills(1, len(FEW), FEW)
    assert gave_way(rows) == []
    assert {row["what"] for row in rows} == {f"SIGKILL, {name}" for name in FEW}


@pytest.mark.parametrize(
    ("trials", "asked"),
    [
        (chaos_runs.bits, (1, 100, ONE)),
        (chaos_runs.settings, (1, 6, ONE)),
        (chaos_runs.folders, (1, 2, ONE)),
        (chaos_runs.disk, (2, 2, ONE)),
        (chaos_runs.worlds, (1, 6, ONE)),
        (chaos_calls.calls, (1, 60)),
    ],
)
def test_what_is_wrong_is_seen_and_named(trials, asked):
    assert gave_way(trials(*asked)) == []


# --- It can fail ----------------------------------------------------------------------


def test_a_resume_that_forgets_is_seen(monkeypatch):
    def forget(run, learner):
        learner.policy.load_state_dict(run.state["policy"]["weights"])

    chaos_runs.whole("a2c")
    monkeypatch.setattr(runs.Run, "restore", forget)
    rows = chaos_runs.kills(1, 2, ONE)
    assert gave_way(rows)
