"""The benchmarks run, agree with their peers, and keep their data whole."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import curves
import numpy as np
import pytest
import torch
from gymnasium import spaces

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
    ppg_learning,
    ppo_solve,
    programs,
    sac_learning,
)
from benchmarks.harness import Case, Goal, summarise
from benchmarks.store import nets, read_results, read_table, write_results, write_table
from literate_rl.apps.trained import trained_agents
from literate_rl.apps.training import settings_of
from literate_rl.data.agents import discounted_returns
from literate_rl.data.replay import Batch
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import load, load_env, todays_names

# Whether the methods agree can be seen with less than is measured.
SMALLER: dict[str, dict[str, Any]] = {
    "advantages": {"GOALS": {(128, 64): 5.0}},
    "hybrid": {"GOALS": {8: 4.7}},
    "actors": {"SIZES": (4,), "FRAMES": 512},
    "apex": {"ACTORS": (1, 2), "ROLLOUTS": 2},
    "c51_projection": {"SIZES": {32: 2.5, 128: 2.5}},
    "ppg_aux": {"COPIES": 8},
    "replay": {"ENTRIES": 1_000, "BATCHES": (32,), "SIZES": (1_000,)},
    "vtrace": {"SIZES": ((128, 64),)},
    "devices": {
        "WIDTHS": {64: (64,)},
        "PICTURES": (),
        "AGENTS": {"a2c": "CartPole-v1"},
    },
}
OTHERS = pytest.mark.skipif(
    not all(map(find_spec, ("stable_baselines3", "torchrl"))),
    reason="the peers live in an environment of their own",
)


@pytest.mark.parametrize(
    "name",
    [
        # Imports have no methods that could agree.
        *(x for x in command.NAMES + command.GPU_NAMES if x != "import_time"),
        *(pytest.param(name, marks=OTHERS) for name in command.PEER_NAMES),
    ],
)
def test_benchmark_runs_and_its_methods_agree(name, monkeypatch):
    for size, value in SMALLER.get(name, {}).items():
        monkeypatch.setattr(f"benchmarks.{name}.{size}", value)
    rows = command.run(name, quick=True)
    assert rows
    assert all(row.microseconds >= 0 for row in rows)


def test_a_trial_of_chaos_that_lost_count_does_not_hold(monkeypatch):
    monkeypatch.setattr(chaos_actors.Witness, "size", lambda self: 31)
    (row,) = chaos_actors.trials(seed=1, count=1)
    assert not row["held"]
    assert "steps in" in str(row["came"])


# --- Measuring and storing ------------------------------------------------------------


def test_ratios_come_from_the_same_round_and_goals_can_be_missed():
    samples = {"peer": [1.0, 10.0, 1.0], "own": [0.25, 5.0, 0.5]}
    for goal, reached in (
        (Goal(at_least=2.0), True),
        (Goal(at_least=5.0), False),
        (Goal(at_most=2e6), True),
        (Goal(at_most=0.4e6), False),
    ):
        case = Case("c", {"peer": int, "own": int}, "peer", {"own": goal})
        peer, own = summarise(case, samples)
        assert (peer.ratio, own.ratio) == (1.0, 2.0)
        assert (peer.reached, own.reached) == (None, reached)


def test_stored_rows_come_back(tmp_path):
    case = Case("a, b", {"peer": int, "own": int}, "peer", {"own": Goal(at_least=2)})
    rows, origin = summarise(case, {"peer": [2.0], "own": [1.0]}), {"command": "c: d"}
    write_results(tmp_path / "x.csv", rows, origin)
    assert read_results(tmp_path / "x.csv") == (rows, origin)
    write_table(
        tmp_path / "x.csv", "abc", [("λ, 1", math.inf, None)], {"s": "a=1 b: 2"}
    )
    table, origin = read_table(tmp_path / "x.csv")
    assert table == [{"a": "λ, 1", "b": "inf", "c": ""}]
    assert origin == {"s": "a=1 b: 2"}


def test_every_experiment_of_the_page_can_be_repeated(monkeypatch):
    for made in command.learning_commands().values():
        module, given = made.removeprefix("python -m ").split()
        if module == "benchmarks.peer_learning":  # in an environment of its own
            continue
        known = getattr(import_module(module), "EXPERIMENTS", programs.SEEDS)
        assert given in known, made
    ran: list[str] = []
    monkeypatch.setattr(
        "subprocess.run", lambda words, check: ran.append(" ".join(words[2:]))
    )
    command.learn(["cartpole", "program_ppo"])
    assert ran == [
        "benchmarks.learning cartpole --again",
        "benchmarks.programs ppo --again",
    ]


def test_few_seeds_are_shown_and_get_no_interval():
    four = np.array([1.0, 2.0, 3.0, 10.0])
    assert curves.with_interval(four) == "1, 2, 3, 10"
    assert curves.interval(four) == (4.0, 1.0, 10.0)
    five = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    assert curves.with_interval(five) == "3 <small>(1.04 to 4.96)</small>"


def test_bins_average_what_ended_in_them():
    ended = {40: 1.0, 80: math.nan, 100: 3.0, 1010: 7.0}
    history = [{"step": k, "charts/episodic_return": x} for k, x in ended.items()]
    curve = learning.binned(history, total=1000)
    assert len(curve) == learning.BINS
    assert (curve[0], curve[2], curve[-1]) == ((40, 1.0), (120, 3.0), (1000, 7.0))
    assert np.isnan(curve[1][1])


def test_the_clock_starts_when_all_processes_have():
    columns = ("step", "charts/SPS", "charts/lag")
    rows = (10, 0.1, 0.0), (20, 10.0, 1.0), (30, 5.0, 2.0)
    numbers = learning.clock([dict(zip(columns, row, strict=True)) for row in rows])
    assert numbers == {"seconds": 3.0, "half_seconds": 1.0, "lag": 1.0}


def test_the_median_seed_is_that_of_the_lower_middle():
    def rows(text):
        return [{"seed": f"{k}", "return": x} for k, x in enumerate(text.split(), 8)]

    # Of many that are equally good the middle one, by number and not by letter.
    for returns in ("500 -20 7", "500 -20 7 100", "9 9 9 9 9"):
        assert learning.median_seed(rows(returns)) == "10"


# --- Experiments ----------------------------------------------------------------------


@pytest.fixture
def small() -> learning.Experiment:
    return learning.quick(ablation.EXPERIMENTS["ablation_cartpole"])


def kept_in(folder: Path) -> set[str]:
    """Return which policies an experiment has kept."""
    found = (folder / "policies").glob("*/*/*/checkpoint.pt")
    return {str(path.parent.relative_to(folder / "policies")) for path in found}


def test_a_stopped_experiment_goes_on_and_another_starts_over(small, tmp_path, capsys):
    one = replace(small, variants={"as it is": learning.Variant({})})
    learning.run("x", one, "c", tmp_path)
    assert kept_in(tmp_path) == {"x/as_it_is/1"}
    learning.run("x", replace(small, seeds=2), "c", tmp_path)
    assert len(capsys.readouterr().out.splitlines()) == 4, "one has trained before"
    finals, _ = read_table(tmp_path / "x.csv")
    assert len(finals) == 4
    assert len(read_table(tmp_path / "x_curves.csv")[0]) == 4 * learning.BINS
    seeds = [learning.median_seed(finals[variant::2]) for variant in range(2)]
    kept = {f"x/as_it_is/{seeds[0]}", f"x/no_clip/{seeds[1]}"}
    assert kept_in(tmp_path) == kept, "the policy of the median seed, and no other"
    place = tmp_path / f"policies/x/as_it_is/{seeds[0]}"
    told = json.loads((place / "settings.json").read_text())
    returns = evaluate(load(place), load_env(place), 1, told["evaluation_seed"])
    assert returns.tolist() == told["returns"]
    assert told["config"]["seed"] == int(seeds[0])
    other = replace(small, config=replace(small.config, gamma=0.9), first_seed=3)
    learning.run("x", other, "c", tmp_path)
    assert kept_in(tmp_path) == {"x/as_it_is/3", "x/no_clip/3"}
    assert len(read_table(tmp_path / "x.csv")[0]) == 2


@pytest.mark.parametrize(
    ("then", "now", "kept"),
    [
        ("gamma=0.9 tau=0.1", "tau=0.1 gamma=0.9", 1),
        ("gamma=0.9 tau=0.1", "tau=0.2 gamma=0.9", 0),
        # A name of that day, and a setting that is new.
        ("alpha=0.6 tau=0.1", "tau=0.1 priority_exponent=0.6", 1),
        ("gamma=0.9", "gamma=0.9 epochs=None", 1),
        ("gamma=0.9", "gamma=0.9 epochs=4", 0),
    ],
)
def test_rows_are_kept_if_their_settings_are_those_of_today(then, now, kept, tmp_path):
    paths = learning.paths("x", tmp_path)
    today = nets()["PPO"]
    origin = {"env": "a", "episodes": "1", "net": today, "settings": then}
    asked = origin | {"settings": now}
    defaults = {"epochs": "None"} if "epochs" in now else {}
    for net, count in ((today, kept), ("other numbers", 0)):
        origin["net"] = net
        write_table(paths[1], ("variant", "seed"), [["as it is", "1"]], origin)
        found = learning.stored(*paths, asked, ["as it is"], defaults)[1]
        assert len(found) == count


@pytest.mark.parametrize("name", ["ddpg_pendulum", "td3_switches", "td3_cheetah"])
def test_stored_runs_were_made_with_the_settings_of_today(name):
    config = asdict(ddpg_learning.EXPERIMENTS[name].config)
    del config["seed"]
    _, origin = read_table(learning.LEARNING / f"{name}.csv")
    stored = todays_names(learning.settings_in(origin), config)
    # What was no setting then had its default.
    defaults = learning.defaults_of(ddpg_learning.EXPERIMENTS[name].config)
    assert {**defaults, **stored} == {name: str(x) for name, x in config.items()}


def test_the_agents_of_the_package_are_from_the_rows_that_are_named():
    packed = trained_agents()
    assert packed.keys() == agents.AGENTS.keys()
    for name, agent in packed.items():
        assert (agent.experiment, agent.variant) == agents.AGENTS[name]
        row, made = agents.row_of(name), agents.experiment_of(name)
        assert (agent.seed, agent.score) == (int(row["seed"]), float(row["return"]))
        assert np.mean(agent.returns) == pytest.approx(agent.score, rel=1e-4)
        changes = made.variants[agent.variant].changes
        config = replace(made.config, seed=agent.seed, **changes)
        source = agents.FOLDER / name / "settings.json"
        told = json.loads(source.read_text())
        assert settings_of(type(config), told, source) == config


TINY = {"total_steps": 8, "num_steps": 4, "num_minibatches": 1}
SHORT: dict[Any, dict[str, int]] = {
    **dict.fromkeys((ablation, arc_learning, hybrid_learning, ppg_learning), TINY),
    a2c_learning: {"num_envs": 2},
    impala_learning: {"num_envs": 2, "num_steps": 4, "batch_size": 2},
    ddpg_learning: {"total_steps": 20, "learning_starts": 10, "iteration_steps": 10},
    sac_learning: {"total_steps": 64, "learning_starts": 32, "iteration_steps": 32},
}


@pytest.mark.parametrize("module", SHORT, ids=lambda module: module.__name__)
def test_every_kind_of_variant_trains(module):
    """Those that differ in numbers alone are of one kind; some worlds are not here."""
    kinds = {
        (repr(variant.build), *variant.changes): (experiment, variant)
        for name, experiment in module.EXPERIMENTS.items()
        if name != "platform" and "cheetah" not in name
        for variant in experiment.variants.values()
    }
    short = SHORT[module]
    for experiment, variant in kinds.values():
        config = replace(experiment.config, **variant.changes | short)
        learner = (variant.build or partial(learning.agent, env=experiment.env))(config)
        for _ in range(1 + ("learning_starts" in short)):
            metrics = learner.iterate()
        assert math.isfinite(
            metrics["losses/loss" if "losses/loss" in metrics else "losses/policy_loss"]
        )
        assert metrics.keys() >= {*experiment.watched}
        learning.close(learner)


def test_a_task_counts_as_solved_at_its_first_good_evaluation(monkeypatch):
    means, calls = iter([100.0, 474.9, 475.0]), []
    monkeypatch.setattr(ppo_solve, "evaluate", lambda *_: np.array([next(means)]))
    steps, _ = ppo_solve.solve(lambda _: (None, lambda: calls.append(1)), seed=1)
    assert (steps, len(calls)) == (3 * ppo_solve.INTERVAL, 3)


# --- What the variants change ---------------------------------------------------------


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
def test_the_halves_of_vtrace_make_the_whole(split, whole):
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


def steps_of(kind: Any, gradients: list[float]) -> list[float]:
    """Return the steps of a weight that is alone, in learning rates."""
    config = a2c_learning.A2CConfig(learning_rate=1e-3, anneal=False, max_grad_norm=1e9)
    weight = torch.nn.Linear(1, 1, bias=False).double()
    learner, steps = kind(weight, config), []
    for gradient in gradients:
        before = weight.weight.item()
        part = torch.full((1, 1), gradient, dtype=torch.float64)
        learner.learn((part,), 0)
        steps.append((before - weight.weight.item()) / config.learning_rate)
    return steps


def test_steps_are_watched_capped_corrected_or_floored():
    gradients, decay = [1.0, 1e-4, -3.0], 0.99
    square, plain, floored = 0.0, [], []
    for gradient in gradients:
        square = decay * square + (1 - decay) * gradient**2
        plain.append(gradient / (square**0.5 + 1e-5))
        floored.append(gradient / (square + 1e-5) ** 0.5)
    corrected = [x * (1 - decay**k) ** 0.5 for k, x in enumerate(plain, 1)]
    for kind, wanted in (
        (a2c_learning.Watched, plain),
        (a2c_learning.Capped, np.clip(plain, -1, 1)),
        (a2c_learning.Corrected, corrected),
        (a2c_learning.Floored, floored),
    ):
        assert steps_of(kind, gradients) == pytest.approx(wanted)


def test_reinforce_for_any_policy_weights_actions_with_returns():
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
        networks = (twin.network.actor, made.policy.network.actor)
        for old, new in zip(*(x.parameters() for x in networks), strict=True):
            large = old.grad.abs() > 1e-4
            wanted = -config.learning_rate * old.grad.sign()
            torch.testing.assert_close(
                (new - old)[large], wanted[large], rtol=1e-2, atol=0
            )


# --- The losses of hybrid actions -----------------------------------------------------

# Types with one, no and two arguments.
MASK = torch.tensor([[0, 1, 0], [0, 0, 0], [1, 0, 1]], dtype=torch.bool)
SPACE = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (3,))))


def terms(loss: str) -> list[torch.Tensor]:
    """Return log-probabilities, entropies and a gradient of one batch."""
    generator = torch.Generator().manual_seed(0)
    row = torch.randn(64, 9, generator=generator, dtype=torch.float64)
    row[:, 6:] = row[:, 6:].exp()
    actions = hybrid_learning.LOSSES[loss].from_space(SPACE, MASK)
    action = actions.choose(row, actions.noise(1, 64, generator)[0])
    log_prob, entropy = actions.evaluate(row.requires_grad_(), action)
    return [log_prob, entropy, *torch.autograd.grad(log_prob.sum(), row)]


def test_each_loss_drops_its_part_of_the_mask():
    log_prob, entropy, grad = terms("joint")
    without = terms("not masked")
    # Two of three types leave arguments out, and the policy takes each of them.
    assert not torch.allclose(log_prob, without[0])
    assert not torch.allclose(entropy, without[1])
    assert torch.equal(terms("ratio not masked")[0], without[0])
    assert torch.equal(terms("ratio not masked")[1], entropy)
    assert torch.equal(terms("entropy not masked")[0], log_prob)
    assert torch.equal(terms("entropy not masked")[1], without[1])
    for loss, sums, of in (
        ("per head", log_prob, entropy),
        (hybrid_learning.DI_ENGINE, without[0], without[1]),
    ):
        torch.testing.assert_close(terms(loss)[0].sum(-1), sums)
        assert torch.equal(terms(loss)[1], of)
    # A ratio of all arguments with the gradient of those that count.
    idle = terms("idle without gradient")
    torch.testing.assert_close((idle[0], idle[2]), (without[0], grad))


@pytest.mark.parametrize(("gamma", "n", "share"), [(0.9, 1, 1.0), (0.99, 20, 0.25)])
def test_the_feedback_of_one_weight_is_that_of_the_equation(gamma, n, share):
    # A value w of the first state and 2w of the second: targets move 2γⁿ times as far,
    # in the share of the windows that end in a value.
    weight = torch.nn.Linear(1, 1, bias=False)
    ones, zeros = torch.ones(8, 1), torch.zeros(8, dtype=torch.int64)
    discount = gamma**n * (torch.arange(8) < 8 * share)
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
