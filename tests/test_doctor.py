"""The doctor: each rule has a run that shows it, and healthy runs show none."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from check import ROOT
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.store import RESULTS, read_table
from literate_rl import diagnose, look
from literate_rl.apps import commands
from literate_rl.apps.doctor import RULES, Record, read_record

STORED = ROOT / "tests/doctor"
HEALTHY = sorted(path.name for path in STORED.glob("healthy_*"))
RULE = {rule.name: rule for rule in RULES}
KL, CLIPPED, RETURN = "losses/approx_kl", "losses/clipfrac", "charts/episodic_return"
EXPLAINED, ENTROPY = "losses/explained_variance", "losses/entropy"
VALUE, LOSS = "losses/q_value", "losses/value_loss"
# What a healthy run of 20 iterations says, where a test changes one column.
WELL: dict[str, Any] = {RETURN: 20.0, LOSS: 1.0, ENTROPY: 0.6, KL: 0.01, CLIPPED: 0.1}
WELL |= {EXPLAINED: 0.9}


def write_run(
    directory: Path, columns: dict[str, Any], env: str = "CartPole-v1", **config: Any
) -> Path:
    """Write the files of a run whose columns are constant, or lists of 20."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {"total_steps": 2000, "gamma": 0.99} | config
    settings = {"algorithm": "ppo", "env": env, "models": {}, "config": config}
    (directory / "settings.json").write_text(json.dumps(settings))
    lists = [x if isinstance(x, list) else [x] * 20 for x in columns.values()]
    rows = [["step", *columns], *zip(range(100, 2001, 100), *lists, strict=True)]
    lines = [",".join("" if x != x else str(x) for x in row) + "\n" for row in rows]
    (directory / "metrics.csv").write_text("".join(lines))
    return directory


def names(directory: Path, **options: Any) -> list[str]:
    return [symptom.name for symptom in diagnose(directory, **options)]


@pytest.mark.parametrize("name", RULE)
def test_each_rule_has_a_run_that_shows_it(name):
    found = {x.name: x for x in diagnose(STORED / name.replace(" ", "_"))}[name]
    assert (found.meaning, found.change) == (RULE[name].meaning, RULE[name].change)
    assert 0 < found.first <= found.last
    assert found.seen.startswith(RULE[name].limit)
    assert f" {found.section}\n" in (ROOT / "chapters/debugging.py").read_text("utf-8")


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_shows_none(name):
    assert diagnose(STORED / name) == []
    assert "\n\nNo symptom.\n" in look(STORED / name)
    # Also while it was still going on, from the first iteration to the last.
    record = read_record(STORED / name)
    for end in range(1, len(record.step), max(1, len(record.step) // 25)):
        columns = {key: x[:end] for key, x in record.columns.items()}
        part = Record(record.settings, columns, record.largest_reward)
        for rule in RULES:
            assert rule.most_of_ten(part) < rule.count, (rule.name, end)


def test_the_stored_runs_with_a_fault_are_those_of_the_benchmark():
    for row in read_table(RESULTS / "doctor.csv")[0]:
        stored = read_record(STORED / row["rule"].replace(" ", "_"))
        assert RULE[row["rule"]].most_of_ten(stored) == int(row["most_sick"])


# --- Rules ----------------------------------------------------------------------------

# The column, a number that shows nothing and one that does. Both lie near the limit.
LIMITS = {
    "the policy jumps": (KL, 0.099, 0.101),
    "most ratios are clipped": (CLIPPED, 0.49, 0.51),
    "the policy is certain too early": (ENTROPY, 0.011, 0.009),
    "the critic explains nothing": (EXPLAINED, 0.051, 0.049),
    "returns lie beyond the atoms": ("losses/beyond_atoms", 0.049, 0.051),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_symptom_is_so_many_of_ten_iterations(name, tmp_path):
    column, well, ill = LIMITS[name]
    # In the part of the run that every rule looks at, from 700 to 1,000 steps of 2,000.
    begin, count = 8 if column == EXPLAINED else 0, RULE[name].count
    for shown in (count - 1, count):
        values = [well] * begin + [ill] * shown + [well] * (20 - begin - shown)
        found = diagnose(write_run(tmp_path, {**WELL, column: values}))
        assert [x.name for x in found] == [name] * (shown == count)
    assert found[0].first == 100 * (begin + 1)
    assert found[0].last == 100 * (begin + count)


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        # Certain and still in the second half is what a policy may be.
        ({ENTROPY: 10 * [0.6] + 10 * [0.0], KL: 10 * [0.01] + 10 * [0.0]}, []),
        (
            {ENTROPY: 0.0, KL: 0.0, CLIPPED: 0.0},
            ["the policy is certain too early", "the policy stands still"],
        ),
        # The entropy of a density may pass zero, and go far below it.
        ({ENTROPY: [*range(5, -15, -1)]}, []),
        ({LOSS: 1e5}, []),
        ({LOSS: 1e5, KL: 1e-5}, ["the value loss is huge"]),
        # Iterations in which no episode ended have nothing to tell.
        ({RETURN: [20.0, 22.0] + [math.nan, 9.0] * 9}, ["the return falls"]),
    ],
)
def test_what_is_a_symptom_and_what_is_none(columns, shown, tmp_path):
    assert names(write_run(tmp_path, {**WELL, **columns})) == shown


@pytest.mark.equation("largest-value")
@pytest.mark.parametrize(
    ("env", "config", "reward", "bound"),
    [
        ("CartPole-v1", {"gamma": 0.9, "reward_scale": 0.1}, None, 1.0),
        ("MountainCar-v0", {"gamma": 0.9}, None, -1.0),
        ("Other-v0", {"gamma": 0.5}, 3.0, 6.0),
        ("Other-v0", {"gamma": 0.9}, None, math.nan),
        ("CartPole-v1", {"gamma": 1.0}, None, math.nan),
    ],
)
def test_the_largest_value(env, config, reward, bound, tmp_path):
    largest = 1e9 if math.isnan(bound) else bound
    for share in (0.09, 0.11):
        value = {VALUE: largest + share * abs(largest)}
        run = write_run(tmp_path, value, env, **config)
        found = read_record(run, reward).largest_value
        assert found == pytest.approx(bound, nan_ok=True)
        told = names(run, largest_reward=reward) != []
        assert told == (share > 0.1 and not math.isnan(bound) and bound != 0)


@given(
    st.lists(st.sampled_from([0.01, 0.5, math.nan]), min_size=1, max_size=40),
    st.integers(1, 40),
)
def test_most_of_ten_is_what_counting_gives(values, total):
    columns = {"step": np.arange(1.0, len(values) + 1), KL: np.array(values)}
    record = Record({"config": {"total_steps": total}}, columns)
    known = [x for x in values[:total] if x == x]
    windows = [known[i : i + 10] for i in range(max(1, len(known) - 9))]
    most = max(sum(x > 0.1 for x in window) for window in windows)
    assert RULE["the policy jumps"].most_of_ten(record) == most


# --- Files and words ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("step,a\n100,", "no whole row yet: wait"),
        ("step,a,b\n1,1,1\n2,1,1\nx,1,2\n", "row 2|3"),
    ],
)
def test_what_is_no_run_is_refused(text, words, tmp_path):
    run = write_run(tmp_path, WELL)
    (run / "metrics.csv").write_text(text)
    with pytest.raises(ValueError, match=words):
        diagnose(run)


def test_what_a_run_does_not_say_yet_is_no_obstacle(tmp_path):
    run = write_run(tmp_path, {**WELL, KL: 0.5})
    (run / "settings.json").write_text("{}")
    lines = (run / "metrics.csv").read_text().splitlines(keepends=True)
    for number in (2, 3):
        # Three iterations are enough, and a half written line is none.
        (run / "metrics.csv").write_text("".join(lines[: number + 1]) + "2100,20.0,1")
        assert len(names(run)) == (number == 3)


def test_the_command_line_looks_and_asks_for_the_largest_reward(tmp_path, capsys):
    run = write_run(tmp_path / "run", {VALUE: 50.0}, "Mine-v0")
    assert "Add --largest-reward R" in look(run)
    commands.main(["look", str(run), "--largest-reward", "0.1"])
    out = capsys.readouterr().out
    assert "--largest-reward" not in out
    assert "1. A value is above the largest possible one" in out
    with pytest.raises(SystemExit, match=r"error: .* No such file .*settings\.json"):
        commands.main(["look", str(tmp_path)])
