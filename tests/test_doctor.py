"""The doctor: each rule has a run that shows it, and healthy runs show none."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import doctor as benchmark
from benchmarks.store import RESULTS, read_table
from literate_rl import diagnose, look
from literate_rl.apps import commands
from literate_rl.apps.doctor import (
    LARGEST_REWARDS,
    RULES,
    Record,
    main,
    read_record,
)

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "tests/doctor"
HEALTHY = sorted(path.name for path in STORED.glob("healthy_*"))
RULE = {rule.name: rule for rule in RULES}
KL, CLIPPED, RETURN = "losses/approx_kl", "losses/clipfrac", "charts/episodic_return"
EXPLAINED, ENTROPY, VALUE = (
    "losses/explained_variance",
    "losses/entropy",
    "losses/q_value",
)
# What a healthy run of 20 iterations says, where a test changes one column.
WELL = {
    RETURN: 20.0,
    "losses/value_loss": 1.0,
    ENTROPY: 0.6,
    KL: 0.01,
    CLIPPED: 0.1,
    EXPLAINED: 0.9,
}


def write_run(
    directory: Path,
    columns: dict[str, Any],
    env: str = "CartPole-v1",
    number: int = 20,
    **config: Any,
) -> Path:
    """Write the files of a run whose columns are constant, or lists."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = {"algorithm": "ppo", "env": env, "models": {}}
    settings["config"] = {"total_steps": 100 * number, "gamma": 0.99} | config
    (directory / "settings.json").write_text(json.dumps(settings))
    lists = [x if isinstance(x, list) else [x] * number for x in columns.values()]
    rows = [
        ",".join(["" if math.isnan(x) else str(x) for x in row])
        for row in zip(*lists, strict=True)
    ]
    lines = [f"{100 * (i + 1)},{row}\n" for i, row in enumerate(rows)]
    header = ",".join(["step", *columns]) + "\n"
    (directory / "metrics.csv").write_text(header + "".join(lines))
    return directory


def names(directory: Path, **options: Any) -> list[str]:
    return [symptom.name for symptom in diagnose(directory, **options)]


# --- Stored runs ----------------------------------------------------------------------


@pytest.mark.parametrize("name", RULE)
def test_each_rule_has_a_run_that_shows_it(name: str) -> None:
    symptoms = {x.name: x for x in diagnose(STORED / name.replace(" ", "_"))}
    assert name in symptoms
    found, rule = symptoms[name], RULE[name]
    assert (found.meaning, found.section, found.change) == (
        *(rule.meaning, rule.section),
        rule.change,
    )
    assert 0 < found.first <= found.last
    assert found.seen.startswith(rule.limit)


def test_healthy_runs_are_those_of_nine_algorithms() -> None:
    algorithms = "a2c ddpg dqn impala ppg ppo rainbow sac td3"
    assert {f"healthy_{name}" for name in algorithms.split()} == {*HEALTHY}
    assert {algorithm for algorithm, *_ in benchmark.HEALTHY} == {*algorithms.split()}
    assert len({env for _, env, *_ in benchmark.HEALTHY}) == 4


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_shows_none(name: str) -> None:
    assert diagnose(STORED / name) == []
    text = look(STORED / name)
    assert "\n\nNo symptom.\n" in text
    # Also while it was still going on, from the first iteration to the last.
    record = read_record(STORED / name)
    for end in range(1, len(record.step), max(1, len(record.step) // 25)):
        columns = {key: x[:end] for key, x in record.columns.items()}
        part = Record(record.settings, columns, record.largest_reward)
        for rule in RULES:
            if rule.column(part):
                assert rule.most_of_ten(part) < rule.count, (rule.name, end)


def test_no_healthy_run_comes_to_a_limit() -> None:
    rows, origin = read_table(RESULTS / "doctor.csv")
    assert origin["command"] == "python -m benchmarks.doctor"
    assert [row["rule"] for row in rows] == list(RULE) == list(benchmark.FAULTS)
    for row in rows:
        assert int(row["count"]) == RULE[row["rule"]].count
        assert int(row["most_healthy"]) < int(row["count"]) <= int(row["most_sick"])
        assert int(row["healthy_runs"]) >= 5
        assert int(row["alarms"]) == 0
        # The stored run is the one of the table, rounded.
        stored = read_record(STORED / row["rule"].replace(" ", "_"))
        assert RULE[row["rule"]].most_of_ten(stored) == int(row["most_sick"])


def test_the_benchmark_keeps_what_the_doctor_reads(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(benchmark, "STORE", tmp_path)
    changes = {"total_steps": 768, "learning_rate": 0.3, "num_epochs": 2}
    folder = benchmark.train("ppo", "CartPole-v1", changes, benchmark.wrong_sign)
    benchmark.keep(folder, "a short run")
    whole, kept = read_record(folder), read_record(tmp_path / "a_short_run")
    shutil.rmtree(folder)
    assert kept.settings == whole.settings
    assert whole.columns.keys() - kept.columns.keys() == {"charts/SPS"}
    for name, values in kept.columns.items():
        np.testing.assert_allclose(values, whole.columns[name], rtol=1e-3)


def test_old_runs_are_read() -> None:
    for directory in (ROOT / "tests/runs").iterdir():
        if directory.is_dir():
            assert isinstance(diagnose(directory), list)
            assert f"{directory}: " in look(directory)


def test_the_sections_are_those_of_the_chapter() -> None:
    text = (ROOT / "chapters/debugging.py").read_text("utf-8")
    heads = re.findall(r"^# ###? (.+)$", text, re.M)
    assert {rule.section for rule in RULES} <= {*heads}
    for rule in RULES:
        assert len(rule.name) > 8
        assert rule.change


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
def test_a_symptom_is_so_many_of_ten_iterations(name: str, tmp_path: Path) -> None:
    column, well, ill = LIMITS[name]
    count = RULE[name].count
    # In the part of the run that every rule looks at, from 700 to 1,000 steps of 2,000.
    for shown, there in ((count - 1, False), (count, True)):
        begin = 8 if name == "the critic explains nothing" else 0
        values = [well] * begin + [ill] * shown + [well] * (20 - begin - shown)
        run = write_run(tmp_path / str(shown), {**WELL, column: values})
        assert (name in names(run)) == there
        assert len(names(run)) == there, "and nothing else"
    (symptom,) = diagnose(run)
    assert (symptom.first, symptom.last) == (100 * (begin + 1), 100 * (begin + count))
    assert f"{ill:.2g}" in symptom.seen
    assert f"in {count} of the " in symptom.seen


def test_far_apart_iterations_are_no_symptom(tmp_path: Path) -> None:
    kl = [0.5 if i % 10 == 0 else 0.01 for i in range(100)]
    assert names(write_run(tmp_path, {**WELL, KL: kl}, number=100)) == []


def test_a_policy_may_be_certain_and_stand_still_in_the_second_half(
    tmp_path: Path,
) -> None:
    late = {ENTROPY: [0.6] * 10 + [0.0] * 10, KL: [0.01] * 10 + [0.0] * 10}
    assert names(write_run(tmp_path / "late", {**WELL, CLIPPED: 0.0, **late})) == []
    early = {ENTROPY: [0.0] * 20, KL: [0.0] * 20}
    assert names(write_run(tmp_path / "early", {**WELL, CLIPPED: 0.0, **early})) == [
        "the policy is certain too early",
        "the policy stands still",
    ]
    # The entropy of a density may pass zero, and go far below it.
    passing = [1.4 - 0.2 * i for i in range(20)]
    assert names(write_run(tmp_path / "box", {**WELL, ENTROPY: passing})) == []


def test_early_iterations_of_a_critic_do_not_count(tmp_path: Path) -> None:
    early = [-0.5] * 6 + [0.5] * 14
    assert names(write_run(tmp_path, {**WELL, EXPLAINED: early})) == []


def test_a_large_value_loss_alone_is_no_symptom(tmp_path: Path) -> None:
    large = {**WELL, "losses/value_loss": 1e5}
    assert names(write_run(tmp_path / "moves", large)) == []
    assert names(write_run(tmp_path / "stands", {**large, KL: 1e-5})) == [
        "the value loss is huge"
    ]


def test_a_return_that_falls_is_below_all_of_the_start(tmp_path: Path) -> None:
    for low, there in ((19.9, True), (20.1, False)):
        values = [20.0, 22.0] * 1 + [low] * 18
        run = write_run(tmp_path / str(low), {**WELL, RETURN: values})
        assert ("the return falls" in names(run)) == there
    # Iterations in which no episode ended have nothing to tell.
    gaps = [20.0, 22.0] + [math.nan, 9.0] * 9
    assert "the return falls" in names(
        write_run(tmp_path / "gaps", {**WELL, RETURN: gaps})
    )
    nothing = {**WELL, RETURN: math.nan}
    assert names(write_run(tmp_path / "nothing", nothing)) == []


@pytest.mark.equation("largest-value")
@pytest.mark.parametrize(
    ("env", "config", "options", "bound"),
    [
        ("CartPole-v1", {"gamma": 0.9}, {}, 10.0),
        ("CartPole-v1", {"gamma": 0.9, "reward_scale": 0.1}, {}, 1.0),
        ("Pendulum-v1", {"gamma": 0.9}, {}, 0.0),
        ("MountainCar-v0", {"gamma": 0.9}, {}, -1.0),
        ("Other-v0", {"gamma": 0.5}, {"largest_reward": 3.0}, 6.0),
        ("CartPole-v1", {"gamma": 0.9}, {"largest_reward": 3.0}, 30.0),
        ("Other-v0", {"gamma": 0.9}, {}, math.nan),
        ("CartPole-v1", {"gamma": 1.0}, {}, math.nan),
    ],
)
def test_the_largest_value(env, config, options, bound, tmp_path: Path) -> None:
    name = "a value is above the largest possible one"
    largest = bound if bound == bound else 1e9
    for share, there in ((0.09, False), (0.11, bound == bound)):
        value = largest + share * (abs(largest) or 1)
        run = write_run(tmp_path / str(share), {VALUE: value}, env, **config)
        found = read_record(run, options.get("largest_reward")).largest_value
        assert found == pytest.approx(bound, nan_ok=True)
        if bound != 0.0:
            assert (name in names(run, **options)) == there
    assert names(write_run(tmp_path / "below", {VALUE: -1e9}, env, **config)) == []


def test_values_with_a_bonus_or_changed_rewards_are_not_judged(tmp_path: Path) -> None:
    soft = write_run(tmp_path / "soft", {VALUE: 1e6, "charts/alpha": 0.2})
    assert names(soft) == []
    wrapped = write_run(tmp_path / "wrapped", {VALUE: 1e6})
    settings = json.loads((wrapped / "settings.json").read_text())
    (wrapped / "settings.json").write_text(json.dumps(settings | {"wrappers": ["W"]}))
    assert names(wrapped) == []
    assert names(wrapped, largest_reward=1.0) != []


@given(
    st.lists(st.sampled_from([0.01, 0.5, math.nan]), min_size=1, max_size=40),
    st.integers(1, 40),
)
def test_most_of_ten_is_what_counting_gives(values: list[float], total: int) -> None:
    columns = {"step": np.arange(1.0, len(values) + 1), KL: np.array(values)}
    record = Record({"config": {"total_steps": total}}, columns)
    known = [x for i, x in enumerate(values) if x == x and i + 1 <= total]
    windows = [known[i : i + 10] for i in range(max(1, len(known) - 9))]
    most = max(sum(x > 0.1 for x in window) for window in windows)
    assert RULE["the policy jumps"].most_of_ten(record) == most


# --- Files ----------------------------------------------------------------------------


def test_a_half_written_line_does_not_count(tmp_path: Path) -> None:
    run = write_run(tmp_path, WELL)
    table = run / "metrics.csv"
    before = look(run)
    for half in ("2100,20.0,1.0,0.6,9", "21", "2100,x", "\x00\x00"):
        table.write_text(table.read_text("utf-8").rpartition("\n")[0] + "\n" + half)
        assert look(run) == before


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    run = write_run(tmp_path, {**WELL, KL: 0.5})
    table = run / "metrics.csv"
    lines = table.read_text("utf-8").splitlines(keepends=True)
    for text in ("", "st", lines[0], lines[0] + lines[1][:5]):
        table.write_text(text)
        with pytest.raises(ValueError, match="no whole row yet: wait for the next"):
            diagnose(run)
    table.write_text("".join(lines[:3]))
    assert diagnose(run) == []
    assert "There is nothing to look at yet." in look(run)
    assert "Looked for" not in look(run)
    table.write_text("".join(lines[:4]))
    assert names(run) == ["the policy jumps"], "three iterations are enough"


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (".", "does not exist"),
        ("settings.json", "no settings.json"),
        ("metrics.csv", "no metrics.csv"),
    ],
)
def test_what_is_no_run_is_refused(missing: str, message: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", WELL)
    shutil.rmtree(run) if missing == "." else (run / missing).unlink()
    with pytest.raises(FileNotFoundError, match=f"run holds no run .*{message}"):
        diagnose(run)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("300,1", "is damaged: line 4 is '300,1'"),
        ("x,1,2", "is damaged: line 4 is 'x,1,2'"),
        (",1,2", "is damaged: line 4 is ',1,2'"),
        ("300,1,two", "is damaged: line 4 is '300,1,two'"),
    ],
)
def test_a_damaged_table_is_named(line: str, message: str, tmp_path: Path) -> None:
    run = write_run(tmp_path, {RETURN: 1.0, KL: 0.1}, number=2)
    with (run / "metrics.csv").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ValueError, match=re.escape(message)):
        diagnose(run)


def test_other_tables_and_settings_are_named(tmp_path: Path) -> None:
    run = write_run(tmp_path, WELL)
    (run / "metrics.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="is no table of a run: its first column"):
        diagnose(run)
    (run / "settings.json").write_text("{")
    with pytest.raises(ValueError, match=r"settings\.json is no JSON"):
        diagnose(run)


def test_settings_that_say_nothing_are_no_obstacle(tmp_path: Path) -> None:
    run = write_run(tmp_path, {**WELL, KL: 0.5})
    for settings in ({}, {"config": None}, {"config": {"total_steps": "many"}}):
        (run / "settings.json").write_text(json.dumps(settings))
        assert "the policy jumps" in names(run)
        assert "2,000 of 2,000 steps" in look(run)


# --- Words ----------------------------------------------------------------------------


def test_the_text_says_what_was_seen_where_and_what_to_do(tmp_path: Path) -> None:
    run = write_run(tmp_path, {**WELL, KL: [0.5] * 4 + [0.01] * 16})
    text, (symptom,) = look(run), diagnose(run)
    first, *_ = text.splitlines()
    assert first == (f"{run}: ppo on CartPole-v1, 2,000 of 2,000 steps, 20 iterations")
    assert "1. The policy jumps\n" in text
    assert "from step 100 to 400" in text
    assert symptom.link == ("chapters/debugging.html#the-entropy-falls-to-zero-at-once")
    assert max(map(len, text.splitlines()[1:])) <= 80, "a terminal"
    text = " ".join(text.split())
    for words in (symptom.seen, symptom.meaning, symptom.change):
        assert words in text
    assert f"“{symptom.section}” in {symptom.link}" in text
    assert "Not looked for, as the run does not tell or is too short: " in text
    assert "--largest-reward" not in text, "there are no values"


def test_the_text_asks_for_the_largest_reward(tmp_path: Path) -> None:
    run = write_run(tmp_path, {VALUE: 50.0}, "Mine-v0")
    assert "Add --largest-reward R" in look(run)
    told = look(run, largest_reward=0.1)
    assert "--largest-reward" not in told
    assert "1. A value is above the largest possible one" in told
    undiscounted = write_run(tmp_path / "sum", {VALUE: 50.0}, "Mine-v0", gamma=1.0)
    assert "--largest-reward" not in look(undiscounted), "it would not help"


def test_the_known_rewards_are_those_of_todays_environments() -> None:
    assert {*LARGEST_REWARDS} <= {*gym.registry}


@pytest.mark.parametrize("call", [main, lambda words: commands.main(["look", *words])])
def test_the_command_line_looks(call, tmp_path: Path, capsys) -> None:
    run = write_run(tmp_path / "run", {VALUE: 50.0}, "Mine-v0")
    before = {path: path.read_bytes() for path in run.iterdir()}
    call([str(run), "--largest-reward", "0.1"])
    assert capsys.readouterr().out == look(run, largest_reward=0.1) + "\n"
    assert {path: path.read_bytes() for path in run.iterdir()} == before
    with pytest.raises(SystemExit, match=r"error: .* holds no run with metrics"):
        call([str(tmp_path)])
