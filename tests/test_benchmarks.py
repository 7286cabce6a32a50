"""The benchmarks run, agree with their peers, and keep their data whole."""

from __future__ import annotations

import copy
import json
import math
import re
import shutil
import sys
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from hybrid import logit_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import curves

from benchmarks import __main__ as command
from benchmarks import (
    a2c_learning,
    ablation,
    agents,
    arc_learning,
    chaos_actors,
    ddpg_learning,
    dqn_learning,
    hybrid_learning,
    impala_learning,
    learning,
    ppg_authors,
    ppg_learning,
    ppo_loop,
    ppo_solve,
    programs,
    published,
    reinforce_learning,
    sac_learning,
    third_party,
)
from benchmarks.harness import Case, Goal, measure, summarise
from benchmarks.store import (
    RESULTS,
    read_results,
    read_table,
    write_results,
    write_table,
)
from literate_rl.apps.trained import trained_agents
from literate_rl.apps.training import settings_of
from literate_rl.data.agents import discounted_returns
from literate_rl.data.replay import Batch
from literate_rl.learners.impala import IMPALAConfig
from literate_rl.learners.ppg_learner import PPGConfig
from literate_rl.maths.ppo_error import ppo_policy_data
from literate_rl.nets.hybrid_ppo import ppo_policy_error_hybrid_per_head
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import (
    fit,
    load,
    load_env,
    stored_runs,
    todays_names,
)

SMALL = learning.ppo_settings("CartPole-v1")


# Whether the methods agree can be seen with less than is measured.
SMALLER: dict[str, dict[str, Any]] = {
    "actors": {"FRAMES": 4096},  # two unrolls of the larger size
    "apex": {"ROLLOUTS": 2},
    "c51_projection": {"SIZES": {32: 2.5, 128: 2.5}},
    "ppg_aux": {"COPIES": 32},
    "replay": {"ENTRIES": 5_000, "BATCHES": (32, 256), "SIZES": (1_000, 16_000)},
    "vtrace": {"SIZES": ((128, 64),)},
}


@pytest.mark.parametrize("name", command.NAMES)
def test_benchmark_runs_and_its_methods_agree(name: str, capsys, monkeypatch) -> None:
    for size, value in SMALLER.get(name, {}).items():
        monkeypatch.setattr(f"benchmarks.{name}.{size}", value)
    rows = command.run(name, quick=True)
    assert len(rows) >= 3
    assert all(row.microseconds >= 0 for row in rows)
    assert any(row.reached is not None for row in rows)
    capsys.readouterr()


def test_a_step_of_adam_is_measured_where_there_is_no_gpu(capsys, monkeypatch) -> None:
    monkeypatch.setattr("benchmarks.devices.WIDTHS", {64: (64,)})
    monkeypatch.setattr("benchmarks.devices.PICTURES", (1,))
    monkeypatch.setattr("benchmarks.devices.AGENTS", {"dqn": "CartPole-v1"})
    monkeypatch.setattr("benchmarks.devices.os.cpu_count", lambda: 1)
    rows = command.run("devices", quick=True)
    assert {row.method for row in rows} == {"CPU, 1 thread", "CPU, all threads"}
    said = capsys.readouterr().out
    assert "two layers of 64, 64 rows, 9e+05 multiply-adds" in said
    assert "Atari, 1 rows, 3e+07 multiply-adds" in said
    assert "an iteration of dqn on CartPole-v1" in said


def test_a_trial_of_chaos_holds_and_one_that_lost_count_does_not(monkeypatch) -> None:
    (row,) = chaos_actors.trials(seed=1, count=1)
    assert row["held"], row
    assert list(row)[1:5] == ["done", "expected", "came", "held"]
    monkeypatch.setattr(chaos_actors.Witness, "size", lambda self: 31)
    (row,) = chaos_actors.trials(seed=1, count=1)
    assert not row["held"]
    assert "steps in" in str(row["came"])


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


def test_what_others_publish_is_read_from_their_table() -> None:
    table = """
|  algo  |    env_id    |mean_reward|std_reward|n_timesteps|eval_timesteps|
|--------|--------------|----------:|---------:|-----------|-------------:|
|ppo     |LunarLander-v2|    242.119|    31.823|1M         |        149636|
|ars     |CartPole-v1   |    500.000|     0.000|50k        |        150000|
|dqn     |Enduro-v4     |    500.000|     0.000|50k        |        150000|
|a2c     |Acrobot-v1    |    -83.353|    17.213|500k       |        149979|"""
    assert published.rows_of(table) == [
        ("ppo", "LunarLander-v3", "LunarLander-v2", 242.119, 1_000_000, 4),
        ("a2c", "Acrobot-v1", "Acrobot-v1", -83.353, 500_000, 7),
    ]
    _, origin = read_table(RESULTS / "published.csv")
    assert origin["source"] == published.PAGE


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


def test_every_experiment_of_the_page_can_be_repeated(capsys, monkeypatch) -> None:
    page = (Path(__file__).parents[1] / "docs/results.md").read_text("utf-8")
    fences = re.findall(r"```\{(?:learning|ablation)\} (.*)", page)
    shown = {name for fence in fences for name in fence.split()}
    commands = command.learning_commands()
    assert shown <= commands.keys()
    for made in commands.values():
        module, given = made.removeprefix("python -m ").split()
        if module == "benchmarks.peer_learning":  # in an environment of its own
            continue
        known = getattr(import_module(module), "EXPERIMENTS", programs.SEEDS)
        assert given in known, made
    ran: list[list[str]] = []
    monkeypatch.setattr("subprocess.run", lambda words, check: ran.append(words))
    command.learn(["cartpole", "program_ppo"])
    command.learn(["sac_units", "--quick"])
    assert [" ".join(words[1:]) for words in ran] == [
        "-m benchmarks.learning cartpole --again",
        "-m benchmarks.programs ppo --again",
        "-m benchmarks.sac_learning sac_units --quick",
    ]
    with pytest.raises(SystemExit):
        command.learn(["mountain"])
    assert "no stored runs of 'mountain'" in capsys.readouterr().err


@pytest.mark.skipif(
    not all(map(find_spec, ("stable_baselines3", "torchrl"))),
    reason="the peers live in an environment of their own",
)
@pytest.mark.parametrize("name", command.PEER_NAMES)
def test_peers_agree_and_are_measured(name: str, capsys) -> None:
    rows = command.run(name, quick=True)
    assert all(row.microseconds >= 0 for row in rows)
    capsys.readouterr()


def test_both_forms_of_the_loop_agree() -> None:
    ppo_loop.check(replace(ppo_loop.CONFIG, num_steps=32))
    ppo_loop.check_loss(replace(ppo_loop.CONFIG, num_steps=32), "Pendulum-v1")


def test_any_table_comes_back(tmp_path: Path) -> None:
    rows = [("a, b", 1, 2.0, math.inf), ("λ = 1", 2, math.nan, None)]
    write_table(tmp_path / "x.csv", "abcd", rows, {"settings": "a=1 b: 2"})
    table, provenance = read_table(tmp_path / "x.csv")
    assert table == [
        {"a": "a, b", "b": "1", "c": "2", "d": "inf"},
        {"a": "λ = 1", "b": "2", "c": "nan", "d": ""},
    ]
    assert provenance == {"settings": "a=1 b: 2"}


def test_few_seeds_are_shown_and_get_no_interval() -> None:
    four = np.array([1.0, 2.0, 3.0, 10.0])
    assert curves.with_interval(four) == "1, 2, 3, 10"
    assert curves.interval(four) == (4.0, 1.0, 10.0)
    five = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    assert curves.with_interval(five) == "3 <small>(1.04 to 4.96)</small>"


def test_the_results_page_counts_the_seeds_of_reinforce() -> None:
    table, _ = read_table(learning.LEARNING / "reinforce.csv")
    ends: dict[str, list[float]] = {}
    for row in table:
        ends.setdefault(row["variant"], []).append(float(row["return"]))
    with_baseline, without = ends["minus the value"], ends["no baseline"]
    assert sum(value >= 499 for value in with_baseline) == 17
    assert sum(value == 500 for value in without) == 7
    assert round(min(without)) == 111


def test_the_results_page_counts_the_seeds_of_a2c() -> None:
    table, _ = read_table(learning.LEARNING / "a2c.csv")
    ends = [float(row["return"]) for row in table]
    assert len(ends) == 20
    assert sum(value > 490 for value in ends) == 10
    assert sum(value < 240 for value in ends) == 5


def test_bins_average_what_ended_in_them() -> None:
    history = [
        {"step": 40, "charts/episodic_return": 1.0},
        {"step": 80, "charts/episodic_return": math.nan},
        {"step": 100, "charts/episodic_return": 3.0},
        {"step": 1010, "charts/episodic_return": 7.0},
    ]
    curve = learning.binned(history, total=1000)
    assert len(curve) == learning.BINS
    assert (curve[0], curve[1][0], curve[-1]) == ((40, 1.0), 80, (1000, 7.0))
    assert np.isnan(curve[1][1])
    assert curve[2] == (120, 3.0)


EXPERIMENTS = (
    {"a2c": a2c_learning.EXPERIMENTS["a2c"]}
    | ablation.EXPERIMENTS
    | arc_learning.EXPERIMENTS
    | hybrid_learning.EXPERIMENTS
    | ppg_learning.EXPERIMENTS
)


@pytest.fixture
def small() -> learning.Experiment:
    return learning.quick(ablation.EXPERIMENTS["ablation_cartpole"])


def kept_in(folder: Path) -> set[str]:
    """Return which policies an experiment has kept."""
    found = (folder / "policies").glob("*/*/*/checkpoint.pt")
    return {str(path.parent.relative_to(folder / "policies")) for path in found}


def test_a_stopped_experiment_goes_on(small, tmp_path: Path, capsys) -> None:
    one = replace(small, variants={"as it is": learning.Variant({})})
    learning.run("x", one, "c", tmp_path)
    assert kept_in(tmp_path) == {"x/as_it_is/1"}
    learning.run("x", replace(small, seeds=2), "c", tmp_path)
    shown = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in shown] == [
        "x, as it is, seed 1",
        "x, no clip, seed 1",
        "x, as it is, seed 2",
        "x, no clip, seed 2",
    ]
    finals, provenance = read_table(tmp_path / "x.csv")
    curves, _ = read_table(tmp_path / "x_curves.csv")
    assert len(finals) == 4
    assert len(curves) == 4 * learning.BINS
    assert provenance["env"] == "CartPole-v1"
    seeds = [learning.median_seed(finals[variant::2]) for variant in range(2)]
    kept = {f"x/as_it_is/{seeds[0]}", f"x/no_clip/{seeds[1]}"}
    assert kept_in(tmp_path) == kept, "the policy of the median seed, and no other"
    place = tmp_path / f"policies/x/as_it_is/{seeds[0]}"
    told = json.loads((place / "settings.json").read_text())
    returns = evaluate(load(place), load_env(place), 1, told["evaluation_seed"])
    assert returns.tolist() == told["returns"]
    assert told["config"]["seed"] == int(seeds[0])


def test_the_median_seed_is_that_of_the_lower_middle() -> None:
    def rows(*returns: str) -> learning.Table:
        return [{"seed": f"{k + 8}", "return": x} for k, x in enumerate(returns)]

    assert learning.median_seed(rows("500", "-20", "7")) == "10"
    assert learning.median_seed(rows("500", "-20", "7", "100")) == "10"
    # Of many that are equally good the middle one, by number and not by letter.
    assert learning.median_seed(rows("9", "9", "9", "9", "9")) == "10"


def test_the_agents_of_the_package_are_from_the_rows_that_are_named() -> None:
    packed = trained_agents()
    assert packed.keys() == agents.AGENTS.keys()
    for name, agent in packed.items():
        assert (agent.experiment, agent.variant) == agents.AGENTS[name]
        row, made = agents.row_of(name), agents.experiment_of(name)
        assert agent.seed == int(row["seed"])
        assert np.mean(agent.returns) == pytest.approx(agent.score, rel=1e-4)
        config = replace(
            made.config, seed=agent.seed, **made.variants[agent.variant].changes
        )
        source = agents.FOLDER / name / "settings.json"
        told = json.loads(source.read_text())
        # What was no setting then had its default.
        assert settings_of(type(config), told, source) == config
        assert (told["area"], agent.score) == (float(row["area"]), float(row["return"]))


def test_an_agent_is_copied_where_its_row_has_kept_it(tmp_path, monkeypatch) -> None:
    short = learning.quick(agents.experiment_of("cartpole-a2c"))
    monkeypatch.setattr(agents, "experiment_of", lambda name: short)
    said = agents.make("cartpole-a2c", tmp_path / "a")
    assert said.startswith("trained again: return ")
    told = json.loads((tmp_path / "a/settings.json").read_text())
    assert told["config"]["seed"] == int(agents.row_of("cartpole-a2c")["seed"])

    monkeypatch.setattr(agents, "place_of", lambda *names: tmp_path / "kept")
    kept = tmp_path / "kept" / agents.row_of("cartpole-a2c")["seed"]
    shutil.copytree(tmp_path / "a", kept)
    assert agents.make("cartpole-a2c", tmp_path / "b") == "kept by its row"
    for path in kept.iterdir():
        assert (tmp_path / "b" / path.name).read_bytes() == path.read_bytes()
    assert load(tmp_path / "b").recipe == load(tmp_path / "a").recipe


def test_curves_of_further_metrics_are_stored(tmp_path: Path) -> None:
    short = learning.quick(ddpg_learning.EXPERIMENTS["ddpg_priorities"])
    learning.run("x", short, "c", tmp_path)
    (runs,) = stored_runs("x", tmp_path).values()
    assert set(runs.watched) == {"estimate", "earned"}
    for found in runs.watched.values():
        assert found.shape == runs.curves.shape == (1, learning.BINS)
        assert np.isfinite(found).all()
    # A pendulum that hangs earns hundreds less than nothing; a new critic expects 0.
    assert runs.watched["earned"].max() < -100
    assert abs(runs.watched["estimate"]).max() < 10


def test_other_settings_start_over(small, tmp_path: Path, capsys) -> None:
    learning.run("x", small, "c", tmp_path)
    other = replace(small, config=replace(small.config, gamma=0.9), first_seed=2)
    learning.run("x", other, "c", tmp_path)
    assert kept_in(tmp_path) == {"x/as_it_is/2", "x/no_clip/2"}
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.parametrize("name", ["ddpg_pendulum", "td3_switches", "td3_cheetah"])
def test_stored_runs_were_made_with_the_settings_of_today(name: str) -> None:
    """What was no setting then had its default."""
    config = asdict(ddpg_learning.EXPERIMENTS[name].config)
    del config["seed"]
    _, origin = read_table(learning.LEARNING / f"{name}.csv")
    stored = todays_names(learning.settings_in(origin), config)
    defaults = learning.defaults_of(ddpg_learning.EXPERIMENTS[name].config)
    now = {name: str(value) for name, value in config.items()}
    assert {**defaults, **stored} == now


@pytest.mark.parametrize(
    ("stored", "now", "same"),
    [
        ("alpha=0.6 tau=0.1", "tau=0.1 priority_exponent=0.6", True),
        ("alpha=0.5 tau=0.1", "tau=0.1 priority_exponent=0.6", False),
        ("alpha=0.6", "alpha=0.6", True),
    ],
)
def test_stored_runs_keep_the_names_of_their_day(
    stored: str, now: str, same: bool, tmp_path: Path
) -> None:
    paths = learning.paths("x", tmp_path)
    origin = {"env": "a", "episodes": "1", "settings": stored}
    row = {"variant": "as it is", "seed": "1"}
    write_table(paths[1], tuple(row), [["as it is", "1"]], origin)
    found = learning.stored(*paths, origin | {"settings": now}, ["as it is"])[1]
    assert len(found) == same


@pytest.mark.parametrize(("default", "kept"), [("None", 1), ("4", 0)])
def test_a_setting_that_is_new_had_its_default(
    default: str, kept: int, tmp_path: Path
) -> None:
    paths = learning.paths("x", tmp_path)
    origin = {"env": "a", "episodes": "1", "settings": "gamma=0.9"}
    row = {"variant": "as it is", "seed": "1"}
    write_table(paths[1], tuple(row), [["as it is", "1"]], origin)
    origin["settings"] = "gamma=0.9 value_epochs=None"
    defaults = {"gamma": "0.99", "value_epochs": default}
    found = learning.stored(*paths, origin, ["as it is"], defaults)[1]
    assert len(found) == kept


def test_the_order_of_the_settings_changes_nothing(small, tmp_path: Path) -> None:
    paths = learning.paths("x", tmp_path)
    origin = {"env": "a", "episodes": "1", "settings": "gamma=0.9 tau=0.1"}
    row = {"variant": "as it is", "seed": "1"}
    write_table(paths[1], tuple(row), [["as it is", "1"]], origin)
    for settings, kept in (("tau=0.1 gamma=0.9", 1), ("tau=0.2 gamma=0.9", 0)):
        other = origin | {"settings": settings}
        assert len(learning.stored(*paths, other, ["as it is"])[1]) == kept


def test_one_seed_gives_one_result(small) -> None:
    first, second = (
        learning.train(small, small.variants["no clip"], seed=1) for _ in range(2)
    )
    assert first.final == second.final
    assert np.array_equal(first.curve, second.curve, equal_nan=True)


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_variant_trains(name: str) -> None:
    if name == "platform":
        pytest.importorskip("gym_platform")
    experiment = EXPERIMENTS[name]
    tiny = {"total_steps": 8, "num_steps": 4, "num_minibatches": 1}
    for variant in experiment.variants.values():
        # A variant may have a say in the number of steps: one environment has more.
        changes = tiny | {k: v for k, v in variant.changes.items() if k == "num_envs"}
        changes = variant.changes | changes
        config = replace(experiment.config, **changes)
        build = variant.build
        learner = build(config) if build else learning.agent(config, experiment.env)
        assert math.isfinite(learner.iterate()["losses/policy_loss"])


@pytest.mark.parametrize("name", list(impala_learning.EXPERIMENTS))
def test_every_variant_of_impala_trains(name: str) -> None:
    experiment = impala_learning.EXPERIMENTS[name]
    tiny = {"num_envs": 2, "num_steps": 4, "batch_size": 2}
    for variant in experiment.variants.values():
        changes = variant.changes | tiny
        learner = variant.build(replace(experiment.config, **changes))
        assert math.isfinite(learner.iterate()["losses/policy_loss"])
        learning.close(learner)


@pytest.mark.parametrize(
    "name", [k for k in ddpg_learning.EXPERIMENTS if "td3_c" not in k]
)
def test_every_variant_of_ddpg_trains(name: str) -> None:
    experiment = ddpg_learning.EXPERIMENTS[name]
    short = {"total_steps": 60, "learning_starts": 30, "iteration_steps": 30}
    config = replace(experiment.config, **short)
    for variant in experiment.variants.values():
        assert variant.build is not None
        learner = variant.build(replace(config, **variant.changes))
        for _ in range(2):
            metrics = learner.iterate()
        assert math.isfinite(metrics["losses/loss"])
        assert metrics.keys() >= {*experiment.watched}
        learning.close(learner)


@pytest.mark.parametrize(
    "name", [k for k in sac_learning.EXPERIMENTS if "cheetah" not in k]
)
def test_every_experiment_of_sac_trains(name: str) -> None:
    experiment = sac_learning.EXPERIMENTS[name]
    short = {"total_steps": 128, "learning_starts": 64, "iteration_steps": 64}
    config = replace(experiment.config, **short)
    for variant in experiment.variants.values():
        assert variant.build is not None
        learner = variant.build(replace(config, **variant.changes))
        for _ in range(2):
            metrics = learner.iterate()
        assert math.isfinite(metrics["losses/loss"])
        assert metrics.keys() >= {*experiment.watched}
        learning.close(learner)


@pytest.mark.parametrize("name", [k for k in a2c_learning.EXPERIMENTS if k != "a2c"])
def test_every_variant_of_a2c_trains(name: str) -> None:
    experiment = a2c_learning.EXPERIMENTS[name]
    for variant in experiment.variants.values():
        changes = variant.changes | {"num_envs": 2}
        learner = variant.build(replace(experiment.config, **changes))
        assert math.isfinite(learner.iterate()["losses/policy_loss"])
        learning.close(learner)


class Both(impala_learning.Split):
    """The ratio in the targets and in the gradient."""

    in_targets, in_gradient = True, "all"


@pytest.mark.parametrize(
    ("split", "whole"),
    [
        (Both, impala_learning.VTraceLearner),
        (impala_learning.Split, impala_learning.Uncorrected),
    ],
)
def test_the_halves_of_vtrace_make_the_whole(split, whole) -> None:
    experiment = impala_learning.EXPERIMENTS["impala_places"]
    config = replace(experiment.config, lag=3)
    weights = []
    for kind in (split, whole):
        agent = impala_learning.build(config, experiment.env, kind)
        for _ in range(6):
            agent.iterate()
        parts = [x.detach().flatten() for x in agent.learner.parameters]
        weights.append(torch.cat(parts))
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-5)


def test_praise_and_blame_are_weighted_apart() -> None:
    """Each half differs from the whole, and from no weight at all."""
    experiment = impala_learning.EXPERIMENTS["impala_places"]
    agent = impala_learning.build(experiment.config, experiment.env)
    agent.collect()
    unroll = agent.batch(list(agent.memory.entries))
    generator = torch.Generator().manual_seed(0)
    shift, reward = torch.randn(2, *unroll.reward.shape, generator=generator)
    unroll = unroll._replace(log_prob=unroll.log_prob - shift, reward=reward)
    losses = set()
    for kind in ("Split", "GradientOnly", "PraiseOnly", "BlameOnly"):
        policy = copy.deepcopy(agent.policy)
        learner = getattr(impala_learning, kind)(policy, experiment.config)
        losses.add(round(learner.learn(unroll)["policy_loss"], 5))
    assert len(losses) == 4


def steps_of(kind: Any, gradients: list[float], **changes: Any) -> list[float]:
    """Return the steps of a weight that is alone, in learning rates."""
    settings = {"learning_rate": 1e-3, "anneal": False, "max_grad_norm": 1e9}
    config = a2c_learning.A2CConfig(**settings | changes)
    weight = torch.nn.Linear(1, 1, bias=False).double()
    learner, steps = kind(weight, config), []
    for gradient in gradients:
        before = weight.weight.item()
        part = torch.full((1, 1), gradient, dtype=torch.float64)
        told = learner.learn((part,), 0)["losses/largest_step"]
        steps.append((before - weight.weight.item()) / config.learning_rate)
        assert abs(steps[-1]) == pytest.approx(told)
    return steps


def test_steps_are_watched_capped_corrected_or_floored() -> None:
    gradients, decay = [1.0, 1e-4, -3.0], 0.99
    square, plain, floored = 0.0, [], []
    for gradient in gradients:
        square = decay * square + (1 - decay) * gradient**2
        plain.append(gradient / (square**0.5 + 1e-5))
        floored.append(gradient / (square + 1e-5) ** 0.5)
    assert plain[0] == pytest.approx(10, rel=1e-3)  # as long as can be
    assert steps_of(a2c_learning.Watched, gradients) == pytest.approx(plain)
    capped = np.clip(plain, -1, 1)
    assert steps_of(a2c_learning.Capped, gradients) == pytest.approx(capped)
    corrected = [x * (1 - decay**k) ** 0.5 for k, x in enumerate(plain, 1)]
    assert corrected[0] == pytest.approx(1, rel=1e-3)
    assert steps_of(a2c_learning.Corrected, gradients) == pytest.approx(corrected)
    assert steps_of(a2c_learning.Floored, gradients) == pytest.approx(floored)


def test_a_critic_times_ten_is_trained_and_ten_times_as_large() -> None:
    config = a2c_learning.A2CConfig(num_envs=2)
    plain, large = a2c_learning.build(config), a2c_learning.with_large_values(config)
    obs = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    values = [agent.policy.value(obs).detach() for agent in (plain, large)]
    torch.testing.assert_close(values[1], 10 * values[0])
    large.iterate()
    assert not torch.equal(large.policy.value(obs), values[1])


def test_the_clock_starts_when_all_processes_have() -> None:
    history = [
        {"step": 10, "charts/SPS": 0.1, "charts/lag": 0.0},
        {"step": 20, "charts/SPS": 10.0, "charts/lag": 1.0},
        {"step": 30, "charts/SPS": 5.0, "charts/lag": 2.0},
    ]
    numbers = learning.clock(history)
    assert numbers == {"seconds": 3.0, "half_seconds": 1.0, "lag": 1.0}


@pytest.mark.parametrize("subtract_value", [True, False])
def test_reinforce_is_decided_by_its_seed(subtract_value: bool) -> None:
    config = reinforce_learning.ReinforceConfig(
        seed=1, total_steps=4 * 1024, subtract_value=subtract_value
    )
    first, again = (
        fit(reinforce_learning.Reinforce(config), progress=False) for _ in range(2)
    )
    returns = [row["charts/episodic_return"] for row in first]
    assert returns == [row["charts/episodic_return"] for row in again]


def test_the_baseline_is_all_that_differs() -> None:
    """The first batch and the first value are the same, the first loss is not."""
    firsts = {}
    for subtract_value in (True, False):
        config = reinforce_learning.ReinforceConfig(subtract_value=subtract_value)
        learner = reinforce_learning.Reinforce(config)
        firsts[subtract_value] = learner.iterate()
    with_baseline, without = firsts[True], firsts[False]
    assert with_baseline["charts/episodic_return"] == without["charts/episodic_return"]
    assert with_baseline["losses/policy_loss"] != without["losses/policy_loss"]


def test_reinforce_for_any_policy_weights_actions_with_returns() -> None:
    settings = {**arc_learning.REINFORCE, "num_envs": 2, "num_steps": 5}
    config = replace(arc_learning.SHARED, **settings)
    for learner in (arc_learning.Reinforce, arc_learning.WithoutBaseline):
        made = arc_learning.build(config, arc_learning.ENV, learner)
        batch, twin = made.collect(), copy.deepcopy(made.policy)
        with torch.no_grad():
            next_value = twin.value(batch.next_obs)
        flags = batch.terminated, batch.truncated
        weight = discounted_returns(batch.reward, next_value, *flags, config.gamma)
        if made.subtract_value:
            weight = weight - twin.value(batch.obs).detach()
        log_prob, _ = twin.evaluate_actions(batch.obs, batch.action)
        (-(weight * log_prob).mean()).backward()
        made.update(batch)
        # Adam's first step goes against the sign of the gradient, and by the rate.
        for old, new in zip(
            twin.network.actor.parameters(),
            made.policy.network.actor.parameters(),
            strict=True,
        ):
            large = old.grad.abs() > 1e-4
            assert large.any()
            moved = (new - old)[large] / (-old.grad.sign()[large])
            assert torch.allclose(moved, torch.tensor(config.learning_rate), rtol=1e-2)


def test_no_place_of_the_cart_ends_an_episode_on_the_endless_track() -> None:
    env = arc_learning.endless_track()
    env.reset(seed=1)
    env.unwrapped.state = np.array([100.0, 0, 0, 0])
    assert not env.step(1)[2]
    env.unwrapped.state = np.array([0.0, 0, 0.3, 0])
    assert env.step(1)[2], "but the pole does"


def test_ends_of_episodes_are_counted_by_their_kind() -> None:
    config = replace(arc_learning.EXPERIMENTS["cartpole_ends"].config, num_steps=256)
    made = arc_learning.build(config, "CartPole-v1", arc_learning.Watched)
    batch = made.collect()
    batch.terminated.zero_()
    batch.truncated.zero_()
    batch.terminated[3:7, 0] = True
    batch.next_obs[..., 0] = 0.0
    batch.next_obs[3, 0, 0] = -2.5
    batch.truncated[8, 1] = True
    counts = made.update(batch)
    assert [counts[name] for name in arc_learning.ENDS] == [3, 1, 1]


def test_each_agent_has_twelve_settings() -> None:
    rows = arc_learning.search()
    for name in arc_learning.AGENTS:
        assert sum(agent == name for agent, *_ in rows.values()) == 12
    assert set(arc_learning.EXPERIMENTS["arc_search"].variants) == set(rows)


def test_the_four_agents_have_the_settings_that_the_chapter_tells() -> None:
    told = {
        "REINFORCE": (32, 0.003, True),
        "with a baseline": (8, 0.01, True),
        "A2C": (8, 0.003, False),
        "PPO": (200, 0.003, True),
    }
    names = ("num_steps", "learning_rate", "scale_reward")
    variants = arc_learning.EXPERIMENTS["arc_pendulum"].variants
    assert told == {
        agent: tuple(variant.changes[name] for name in names)
        for agent, variant in variants.items()
    }


def test_ablation_variants_change_what_they_say() -> None:
    env, config = "CartPole-v1", learning.ppo_settings("CartPole-v1")
    plain = ablation.build(config, env)
    for change in (ablation.default_initialisation, ablation.large_last_layer):
        other = ablation.build(config, env, change_policy=change)
        assert not torch.equal(
            plain.policy.network.actor[-1].weight,
            other.policy.network.actor[-1].weight,
        )
    shared = ablation.build(config, env, change_policy=ablation.shared_trunk)
    assert shared.policy.network.actor[0] is shared.policy.network.critic[0]
    rectified = ablation.build(config, env, change_policy=ablation.relu)
    kinds = {type(layer) for layer in rectified.policy.network.modules()}
    assert torch.nn.ReLU in kinds
    assert torch.nn.Tanh not in kinds
    late = ablation.build(
        config, env, learner=ablation.Phantoms, environments=ablation.late_reset
    )
    assert late.collector.resets_later
    assert late.collect().real.all()
    usual = ablation.build(config, env, environments=ablation.late_reset)
    assert not usual.collect().real.all()
    pendulum = replace(learning.ppo_settings("Pendulum-v1"), num_envs=2)
    blind = ablation.build(pendulum, "Pendulum-v1", learner=ablation.Shortsighted)
    batch = blind.collect()
    assert batch.terminated.any()
    assert not batch.truncated.any()
    calm = ablation.build(
        pendulum, "Pendulum-v1", change_policy=ablation.small_deviation
    )
    assert (calm.policy.network.actor.log_sigma == -1).all()


@pytest.mark.parametrize(
    "build",
    [
        partial(learning.agent, replace(SMALL, num_envs=2), "CartPole-v1"),
        partial(ppg_learning.agent, PPGConfig(num_envs=2), "CartPole-v1"),
        partial(impala_learning.build, IMPALAConfig(num_envs=2), "CartPole-v1"),
    ],
)
def test_a_learners_environments_are_closed(build, monkeypatch) -> None:
    closed = []
    monkeypatch.setattr(SyncVectorEnv, "close", lambda envs, **_: closed.append(envs))
    learning.close(build())
    assert len(closed) == 1


# --- The losses of hybrid actions -----------------------------------------------------

# Types with one, no and two arguments.
MASK = torch.tensor([[0, 1, 0], [0, 0, 0], [1, 0, 1]], dtype=torch.bool)
SPACE = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (3,))))


def hybrid_batch(loss: str) -> tuple[Any, Any, Any, Any]:
    """Return a distribution, new rows with gradient, old ones, and actions."""
    generator = torch.Generator().manual_seed(0)
    new, old = torch.randn(2, 64, 9, generator=generator, dtype=torch.float64)
    old = new + 0.2 * old
    new, old = (
        torch.cat([row[:, :6], row[:, 6:].exp()], -1).requires_grad_()
        for row in (new, old)
    )
    actions = hybrid_learning.LOSSES[loss].from_space(SPACE, MASK)
    noise = actions.noise(1, 64, generator)[0]
    return actions, new, old.detach(), actions.choose(old.detach(), noise)


def terms(loss: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies of one batch, as a loss sees them."""
    actions, new, _, action = hybrid_batch(loss)
    return actions.evaluate(new, action)


def test_each_loss_drops_its_part_of_the_mask() -> None:
    log_prob, entropy = terms("joint")
    without = terms("not masked")
    # Two of three types leave arguments out, and the policy takes each of them.
    assert not torch.allclose(log_prob, without[0])
    assert not torch.allclose(entropy, without[1])
    for name, expected in (
        ("ratio not masked", (without[0], entropy)),
        ("entropy not masked", (log_prob, without[1])),
        ("per head", (None, entropy)),
    ):
        for ours, theirs in zip(terms(name), expected, strict=True):
            assert theirs is None or torch.equal(ours, theirs)
    for name, expected in (
        ("per head", log_prob),
        (hybrid_learning.DI_ENGINE, without[0]),
    ):
        torch.testing.assert_close(terms(name)[0].sum(-1), expected)
    assert torch.equal(terms(hybrid_learning.DI_ENGINE)[1], without[1])
    # What is not masked is what a mask of ones says.
    _, new, _, action = hybrid_batch("joint")
    ones = hybrid_learning.HybridActions.from_space(SPACE, torch.ones(3, 3))
    for ours, theirs in zip(without, ones.evaluate(new, action), strict=True):
        assert torch.equal(ours, theirs)


def test_a_ratio_of_all_arguments_with_the_gradient_of_those_that_count() -> None:
    grads, log_probs = {}, {}
    for loss in ("idle without gradient", "not masked", "joint"):
        actions, new, _, action = hybrid_batch(loss)
        log_probs[loss], _ = actions.evaluate(new, action)
        grads[loss] = torch.autograd.grad(log_probs[loss].sum(), new)[0]
    ours = "idle without gradient"
    torch.testing.assert_close(log_probs[ours], log_probs["not masked"])
    torch.testing.assert_close(grads[ours], grads["joint"])


def test_idle_arguments_spare_the_encoder_and_train_their_head() -> None:
    config = learning.ppo_settings(hybrid_learning.MOVING)
    mask = np.pad(hybrid_learning.MOVING_MASK, ((0, 0), (0, 2)))
    loss = hybrid_learning.ENCODER
    learner = hybrid_learning.agent(config, "MovingIdle2-v0", mask, loss)
    network = learner.policy.network.actor.network
    _, mu, _ = network.described(torch.rand(5, 9))
    first, head = network.encoder[0].weight, network.action_args_mu.weight
    for columns, reaches in (([0, 1], True), ([2, 3], False)):
        total = mu[:, columns].sum()
        of_first, of_head = torch.autograd.grad(
            total, (first, head), retain_graph=True, allow_unused=True
        )
        assert (of_first is not None and bool(of_first.any())) == reaches
        assert of_head[columns].any()


def test_the_error_per_head_has_the_gradient_of_the_chapters() -> None:
    """Its value differs by a constant: a type without arguments has a ratio of 1."""
    actions, new, old, action = hybrid_batch("per head")
    adv = torch.randn(64, dtype=torch.float64, generator=torch.Generator())
    ours, entropy = actions.evaluate(new, action)
    theirs, _ = actions.evaluate(old, action)
    clips = 0.2, 3.0
    loss, _ = hybrid_learning.per_head_error(ours, theirs, entropy, adv, None, *clips)
    trees = (logit_of(*actions.split(row)) for row in (new, old))
    data = ppo_policy_data(*trees, actions.action_of(action), adv, None)
    expected, _ = ppo_policy_error_hybrid_per_head(data, MASK, *clips)
    torch.testing.assert_close(loss.entropy_loss, expected.entropy_loss)
    for one, other in zip(loss, expected, strict=True):
        grads = (
            torch.autograd.grad(x, new, retain_graph=True)[0] for x in (one, other)
        )
        torch.testing.assert_close(*grads)
    bare = ~MASK[action[:, 0].long()].any(-1)
    assert bare.any()
    constant = (adv * bare).mean()
    torch.testing.assert_close(loss.policy_loss + constant, expected.policy_loss)


@pytest.mark.parametrize("number", hybrid_learning.LISTS)
def test_a_listed_action_is_one_of_moving(number: int) -> None:
    env = hybrid_learning.moving_with_list(number)
    assert env.action_space == spaces.Discrete(number)
    for place, (kind, value) in enumerate(hybrid_learning.LISTS[number]):
        action = env.action(place)
        assert env.unwrapped.action_space.contains(action)
        of_type = action[1][kind].tolist()
        assert (action[0], of_type) == (kind, pytest.approx([value] * (kind < 2)))
    assert len(set(hybrid_learning.LISTS[number])) == number


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("loss", hybrid_learning.LOSSES)
def test_an_iteration_of_ppo_with_each_loss(loss: str, normalize: bool) -> None:
    config = learning.ppo_settings(hybrid_learning.MOVING)
    config = replace(config, normalize_obs=normalize)
    learner = hybrid_learning.agent(config, hybrid_learning.MOVING, loss=loss)
    before = [parameter.clone() for parameter in learner.policy.parameters()]
    metrics = learner.iterate()
    losses = {key: value for key, value in metrics.items() if key.startswith("losses")}
    assert all(map(math.isfinite, losses.values()))
    pairs = zip(before, learner.policy.parameters(), strict=True)
    assert all(not torch.equal(one, other) for one, other in pairs)


def test_a_task_counts_as_solved_at_its_first_good_evaluation(monkeypatch) -> None:
    means = iter([100.0, 474.9, 475.0])
    monkeypatch.setattr(ppo_solve, "evaluate", lambda *_: np.array([next(means)]))
    calls = []
    steps, seconds = ppo_solve.solve(lambda _: (None, lambda: calls.append(1)), seed=1)
    assert (steps, len(calls)) == (3 * ppo_solve.INTERVAL, 3)
    assert seconds >= 0


# --- What others have published -------------------------------------------------------


def test_a_folder_of_the_authors_names_its_variant() -> None:
    assert ppg_authors.variant_of("ppg-run2") == ("PPG", 2)
    assert ppg_authors.variant_of("ppgsingle-run0") == ("PPG, one network", 0)
    assert ppg_authors.variant_of("e-pi-6") == ("E_pi 6", 0)


def test_a_curve_of_the_authors_is_put_on_the_scale_of_its_game() -> None:
    curve = ppg_authors.normalised("EpRewMean\n2.0\n7.0\n12.0\n", 2.0, 12.0)
    assert curve.tolist() == [0.0, 0.5, 1.0]


def test_the_authors_table_has_all_their_runs_and_games() -> None:
    table, provenance = read_table(learning.LEARNING / "ppg_authors.csv")
    assert provenance["commit"] == ppg_authors.COMMIT
    assert len(table) == 28
    games = [name for name in table[0] if name not in ppg_authors.COLUMNS]
    assert len(games) == 16
    for row in table:
        mean = np.mean([float(row[game]) for game in games])
        assert float(row["return"]) == pytest.approx(mean, abs=1e-3)


def test_worlds_of_others_are_pinned() -> None:
    pins = Path(third_party.__file__).with_suffix(".txt").read_text("utf-8")
    pinned = set(re.findall(r"^(\S+)==\S+$", pins, re.MULTILINE))
    assert {x.packages for x in third_party.WORLDS.values()} - pinned == {"literate-rl"}


def test_the_space_of_gym_hybrid_holds_its_actions() -> None:
    env = third_party.gym_hybrid()
    env.action_space.seed(1)
    env.reset(seed=1)
    for _ in range(20):
        env.step(env.action_space.sample())  # Moving refuses what is not in its space
    env.reset(seed=1)
    env.step((0, np.array([0.5, 1.0], np.float32)))
    assert env.get_wrapper_attr("speed") == 0.025, "its own number, and no other"


def test_an_agent_of_a_game_plays_against_chance(monkeypatch) -> None:
    """Two agents in turns take 1 or 2 of five stones; who takes the last one wins."""
    monkeypatch.setitem(sys.modules, "pettingzoo", ModuleType("pettingzoo"))
    game = ModuleType("pettingzoo.classic.tictactoe.tictactoe")
    game.raw_env = Stones  # type: ignore[attr-defined]
    for name in ("classic", "classic.tictactoe", "classic.tictactoe.tictactoe"):
        monkeypatch.setitem(sys.modules, f"pettingzoo.{name}", game)
    env = third_party.tictactoe()
    assert isinstance(env.observation_space, spaces.Box)
    ends = set()
    for seed in range(20):
        _, infos = env.reset(seed=seed)
        done = False
        while not done:
            action = int(env.np_random.choice(infos["action_mask"].nonzero()[0]))
            obs, reward, done, truncated, infos = env.step(action)
            assert not truncated
            assert reward == 0.0 or done
        assert obs == [0]
        ends.add(reward)
    assert ends == {1.0, -1.0}


class Stones:
    """A game with PettingZoo's interface."""

    possible_agents = ("a", "b")

    def observation_space(self, agent: str) -> spaces.Dict:
        mask = spaces.Box(0, 1, (2,), np.int8)
        return spaces.Dict(
            observation=spaces.Box(0, 5, (1,), np.int8), action_mask=mask
        )

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(2)

    def reset(self, seed: int | None) -> None:
        self.left, self.agent_selection = 5, "a"
        self.won = {"a": 0, "b": 0}

    def observe(self) -> dict[str, Any]:
        legal = np.array([self.left > 0, self.left > 1], np.int8)
        return {"observation": np.array([self.left], np.int8), "action_mask": legal}

    def last(self) -> Any:
        return self.observe(), self.won[self.agent_selection], self.left == 0, False, {}

    def step(self, action: int | None) -> None:
        """Take stones, or leave when the game is over."""
        mover, other = self.agent_selection, "ba"[self.agent_selection == "b"]
        self.agent_selection = other
        if action is not None:
            self.left -= int(action) + 1
            if self.left == 0:
                self.won = {mover: 1, other: -1}


@pytest.mark.parametrize(("gamma", "n", "share"), [(0.9, 1, 1.0), (0.99, 20, 0.25)])
def test_the_feedback_of_one_weight_is_that_of_the_equation(gamma, n, share):
    # A value w of the first state and 2w of the second: targets move 2γⁿ times as far,
    # in the share of the windows that end in a value.
    weight = torch.nn.Linear(1, 1, bias=False)
    ones, zeros = torch.ones(8, 1), torch.zeros(8, dtype=torch.int64)
    discount = torch.full((8,), gamma**n)
    discount[round(8 * share) :] = 0.0
    batch = Batch(ones, zeros, ones[:, 0], 2 * ones, discount, ones[:, 0], zeros)
    learner = SimpleNamespace(
        config=SimpleNamespace(num_steps=n, gamma=gamma),
        buffer=SimpleNamespace(sample=lambda *_: batch),
        policy=weight,
        step=1,
    )
    before = weight.weight.clone()
    found = dqn_learning.feedback(learner)
    assert found["charts/feedback"] == pytest.approx(2 * gamma**n * share, rel=1e-4)
    assert found["charts/discount"] == pytest.approx(gamma**n * share, rel=1e-4)
    assert torch.equal(weight.weight, before), "the agent's own weights stay"
