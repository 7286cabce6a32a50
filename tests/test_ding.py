"""DI-engine's interface: settings, samples and the three modes of the policy."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from worlds import left_alone, modes, moody

from literate_rl.ground.nests import map_nest
from literate_rl.interfaces.ding import (
    IMPALAPolicy,
    IMPALAPolicyConfig,
    Timestep,
)
from literate_rl.maths.off_policy import (
    vtrace,
    vtrace_data,
    vtrace_error_continuous_action,
    vtrace_error_discrete_action,
)
from literate_rl.nets.parts import ActorCritic, CategoricalActions
from literate_rl.nets.policies import Policy

SIZES = {"obs_shape": 3, "action_shape": 2}
SMALL = IMPALAPolicyConfig(model=SIZES, unroll_len=4, n_sample=4, batch_size=4)
KINDS = "discrete", "continuous"


def make_impala(kind: Any = "discrete", **changes: Any) -> IMPALAPolicy:
    torch.manual_seed(0)
    return IMPALAPolicy(replace(SMALL, action_space=kind, **changes))


def episode(
    impala: IMPALAPolicy,
    steps: int,
    seed: int = 0,
    end: str = "",
    shape: tuple[int, ...] = (3,),
) -> list[dict[str, Any]]:
    """Return transitions of one environment that ends as said, or goes on."""
    generator = torch.Generator().manual_seed(seed)
    seen = torch.randn(steps + 1, *shape, generator=generator)
    rows = []
    for t in range(steps):
        output = impala.forward_collect({0: seen[t]})[0]
        over = t == steps - 1 and end != ""
        reward = torch.randn((), generator=generator)
        step = Timestep(seen[t + 1], reward, over, over and end == "truncated")
        rows.append(impala.process_transition(seen[t], output, step))
    return rows


def arranged(impala: IMPALAPolicy, *rows: Any) -> tuple[dict[str, Any], vtrace_data]:
    """Return a batch, and what the documented lines make of it for the losses."""
    batch = impala.data_preprocess_learn(rows)
    seen = batch["obs_plus_1"].flatten(0, 1)
    with torch.no_grad():
        output = {"logit": impala.model(seen), "value": impala.model.value(seen)}
    return batch, impala.reshape_data(output, batch)


# --- Settings -------------------------------------------------------------------------

PUBLISHED: dict[str, Any] = {
    "type": "impala",
    "action_space": "discrete",
    "unroll_len": 32,
    "learn": {
        "update_per_collect": 4,
        "batch_size": 16,
        "learning_rate": 0.0005,
        "value_weight": 0.5,
        "entropy_weight": 0.0001,
        "discount_factor": 0.99,
        "lambda_": 0.95,
        "rho_clip_ratio": 1.0,
        "grad_clip_type": None,
        "optim": "adam",
    },
    "other": {"replay_buffer": {"replay_buffer_size": 1000, "max_use": 16}},
}


def leaves(config: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of each setting."""
    for name, x in config.items():
        inside = isinstance(x, dict)
        yield from leaves(x, f"{path}{name}.") if inside else [(path + name, x)]


def test_the_published_dictionary_is_the_default_and_can_be_changed():
    defaults = IMPALAPolicy.config
    assert dict(leaves(PUBLISHED)).items() <= dict(leaves(defaults)).items()
    for config in (PUBLISHED, defaults):
        assert IMPALAPolicyConfig.from_dict(config) == IMPALAPolicyConfig()
    # DI-engine's way: copy what is there, change it, and hand it over.
    config = copy.deepcopy(defaults) | {"model": SIZES}
    config["learn"]["batch_size"] = 8
    impala = IMPALAPolicy(config)
    assert impala.cfg == IMPALAPolicyConfig(batch_size=8, model=SIZES)
    assert impala.cfg.to_dict() == config
    assert defaults["learn"]["batch_size"] == 16


def test_unknown_settings_are_ignored_and_named_all_at_once():
    config = {
        "nstep": 1,
        "policy": {"seeed": 1},
        "model": {"width": 8},
        "learn": {"lr": 1},
        "other": {"replay_buffer": {"type": "naive"}},
    }
    names = "nstep, policy.seeed, model.width, learn.lr, other.replay_buffer.type"
    with pytest.warns(UserWarning, match=f"which are ignored: {names}$"):
        assert IMPALAPolicyConfig.from_dict(config) == IMPALAPolicyConfig()


SHIPPED = json.loads(Path(__file__).with_name("ding_configs.json").read_text("utf-8"))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_configurations_are_read_with_one_warning_and_learn(name):
    config = SHIPPED[name]["config"]
    before = copy.deepcopy(config)
    with pytest.warns(UserWarning, match="exp_name, .*policy.eval.evaluator") as told:
        read = IMPALAPolicyConfig.from_dict(config)
    assert len(told) == 1
    assert config == before, "the caller's dictionary stays"
    # The policy alone, as DI-engine hands it over, is the same.
    with pytest.warns(UserWarning, match="which are ignored: "):
        assert IMPALAPolicyConfig.from_dict(config["policy"]) == read
    # And a policy of these settings learns.
    impala = IMPALAPolicy(replace(read, cuda=False, unroll_len=4))
    rows = episode(impala, 4, shape=tuple(np.ravel(read.model["obs_shape"])))
    assert 0 < impala.forward_learn([rows])["grad_norm"] < math.inf


class ByModes(nn.Module):
    """A model as DI-engine's ``VAC``: one forward pass, a mode, and a dictionary."""

    def __init__(self, shape: tuple[int, ...], kind: str, column: bool) -> None:
        super().__init__()
        self.shape, self.column, self.kind = shape, column, kind
        size = math.prod(shape)
        self.actor, self.critic = nn.Linear(size, 2), nn.Linear(size, 1)
        self.log_sigma = nn.Parameter(torch.tensor([-0.5, 0.5]))

    def forward(self, x: Tensor, mode: str) -> dict[str, Any]:
        assert mode in ("compute_actor", "compute_actor_critic")
        assert x.shape[1:] == self.shape, "one dimension for the batch"
        row = self.actor(x.reshape(len(x), -1))
        output = {"logit": row}
        if self.kind == "continuous":
            sigma = self.log_sigma.exp().expand_as(row)
            output = {"logit": {"mu": row, "sigma": sigma}}
        if mode == "compute_actor_critic":
            value = self.critic(x.reshape(len(x), -1))
            output["value"] = value if self.column else value.squeeze(-1)
        return output


@pytest.mark.parametrize(
    "config",
    [
        {"transition_with_policy_data": False},
        {"model": {"obs_shape": 3}},
    ],
)
def test_what_makes_no_policy_is_refused(config):
    with pytest.raises((ValueError, KeyError)):
        IMPALAPolicy(config)
    with pytest.raises(ValueError, match=r"'learn'.*'lern'"):
        IMPALAPolicy(SMALL, enable_field=["lern"])


# --- From transitions to samples ------------------------------------------------------


@pytest.mark.erratum("padding-counts")
@given(st.integers(1, 23), st.integers(1, 7), st.booleans())
def test_each_transition_counts_once(steps, length, end):
    impala = make_impala(unroll_len=length)
    rows = [{"obs": torch.tensor([float(t)]), "done": False} for t in range(steps)]
    rows[-1]["done"] = end
    samples = impala.get_train_sample(rows)
    counted = torch.zeros(steps)
    for sample in samples:
        assert sample["obs"].shape == (length, 1)
        steps_of_sample = sample["obs"].flatten().long()
        assert (steps_of_sample.diff() <= 1).all()
        counted.index_add_(0, steps_of_sample, sample["weight"])
    assert torch.equal(counted, torch.ones(steps))
    assert rows[-1]["done"] == end  # the caller's transitions stay


@pytest.mark.erratum("collate-drops-a-dimension")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("actions", [1, 2])
@pytest.mark.parametrize("size", [(1, 1), (5, 1), (4, 3)])
def test_all_pipelines_give_the_same_batch(kind, actions, size):
    """Lists of lists, dictionaries of lists, dictionaries of tensors; any length."""
    steps, envs = size
    model = {"obs_shape": 3, "action_shape": actions}
    impala = make_impala(kind, model=model, unroll_len=steps)
    rows = [episode(impala, steps, seed) for seed in range(envs)]
    as_lists = [{key: [step[key] for step in row] for key in row[0]} for row in rows]
    pipelines = rows, as_lists, [impala.get_train_sample(row)[0] for row in rows]
    first, *others = map(impala.data_preprocess_learn, pipelines)
    for batch in others:
        torch.testing.assert_close(batch, first)
    assert first["obs_plus_1"].shape == (steps + 1, envs, 3)
    torch.testing.assert_close(first["obs_plus_1"][-1, 0], rows[0][-1]["next_obs"])
    # A policy whose own unroll_len is 4 learns the same from each.
    learned = [make_impala(kind, model=model).forward_learn(x) for x in pipelines]
    assert learned == learned[:1] * 3
    assert [*learned[0]] == impala.monitor_vars_learn()


# --- Learn mode -----------------------------------------------------------------------


@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("obs_shape", [3, (2, 4, 4), ()])
def test_a_model_of_di_engine_trains(obs_shape, kind, column):
    torch.manual_seed(0)
    shape = (3,) if obs_shape == 3 else tuple(obs_shape)
    model = ByModes(shape, kind, column)
    sizes = {"obs_shape": obs_shape, "action_shape": 2, "encoder_hidden_size_list": []}
    impala = IMPALAPolicy(replace(SMALL, model=sizes, action_space=kind), model)
    seen = torch.randn(2, *shape)
    drawn = impala.forward_collect(dict(enumerate(seen)))[1]["logit"]
    with torch.no_grad():
        logit = map_nest(lambda x: x[1], model(seen, mode="compute_actor")["logit"])
    torch.testing.assert_close(drawn, logit)

    # The documented lines of the learn mode.
    cut, *others = (episode(impala, 2, i, "truncated", shape) for i in range(4))
    rows = [cut + others[0], others[1] + others[2]]
    data = impala.data_preprocess_learn(rows)
    seen = data["obs_plus_1"].flatten(0, 1)
    output = model.forward(seen, mode="compute_actor_critic")
    errors = vtrace_error_discrete_action, vtrace_error_continuous_action
    error = errors[KINDS.index(kind)]
    loss = error(
        vtrace_data(*impala.reshape_data(output, data)), 0.99, 0.95, 1.0, 1.0, 1.0
    )
    before = copy.deepcopy(impala.model.state_dict())
    info = impala.forward_learn(rows)
    for name, x in loss._asdict().items():
        assert info[name] == pytest.approx(x.item(), rel=1e-4, abs=1e-5)
    for name, x in impala.model.state_dict().items():
        idle = kind == "discrete" and "sigma" in name
        assert torch.equal(x, before[name]) == idle, "the model itself learned"


@pytest.mark.erratum("successor-is-the-next-row")
@pytest.mark.erratum("sample-after-an-end")
@pytest.mark.parametrize("end", ["", "terminated", "truncated"])
def test_an_end_changes_the_targets_and_nothing_behind_it(end):
    """Six fields cannot say where it is, so there are nine."""
    impala = make_impala()
    rows = episode(impala, 2, 0, end) + episode(impala, 2, 1)
    batch, steps = arranged(impala, rows)
    *six, terminated, truncated, next_value = steps
    assert bool(terminated.any()) == (end == "terminated")
    assert bool(truncated.any()) == (end == "truncated")
    whole, part = map(vtrace_error_discrete_action, (steps, vtrace_data(*six)))
    same = torch.isclose(whole.value_loss, part.value_loss, rtol=1e-3)
    assert bool(same) == (end == "")
    # The step behind the end keeps reward, value and weight.
    value, truth = map(impala.model.value, (batch["obs_plus_1"], batch["next_obs"]))
    torch.testing.assert_close(steps.value, value)
    torch.testing.assert_close(steps.reward, batch["reward"])
    assert (steps.weight == 1).all()
    if end == "truncated":
        torch.testing.assert_close(next_value, truth)
        assert not torch.isclose(value[2], truth[1])


@pytest.mark.erratum("impala-time-limit")
def test_a_limit_taken_for_an_end_lowers_all_advantages_before_it():
    """Steps that pay 1 in states worth 100 under 0.99: nothing is a surprise."""
    impala = make_impala()
    rows = [row | {"reward": 1.0} for row in episode(impala, 4, end="truncated")]
    impala.model.value = lambda obs: torch.full(obs.shape[:-1], 100.0)
    batch, steps = arranged(impala, rows)
    loss = vtrace_error_discrete_action(steps)
    assert loss.policy_loss.item() == pytest.approx(0.0, abs=1e-4)
    # As published, the flag of the end is all there is.
    never = torch.zeros_like(batch["done"])
    published = steps._replace(terminated=batch["done"], truncated=never)
    surprise = -99 * 0.9405 ** torch.arange(4)
    loss = vtrace_error_discrete_action(published).value_loss
    torch.testing.assert_close(loss, surprise.square().mean())


@pytest.mark.erratum("unroll-length-fixed")
def test_the_number_of_steps_is_that_of_the_data():
    impala = make_impala(unroll_len=5)
    batch, steps = arranged(impala, *(episode(impala, 2, seed) for seed in range(4)))
    value = impala.model.value(batch["obs_plus_1"])
    torch.testing.assert_close(steps.value, value)
    # As published: the setting decides, and the columns are mixed up.
    published = value.flatten().reshape(5 + 1, -1)
    assert not torch.isin(published[1], value[1]).any()


@pytest.mark.erratum("priority-weights-dead")
def test_importance_weights_reach_the_loss():
    def learn(*numbers):
        impala = make_impala(priority=True, priority_IS_weight=True, entropy_weight=0.0)
        rows = [episode(impala, 4, seed) for seed in (0, 1)]
        samples = [impala.get_train_sample(row)[0] for row in rows]
        weighted = zip(samples, numbers, strict=True)
        return impala.forward_learn([sample | {"IS": w} for sample, w in weighted])

    whole, half = learn(1.0, 1.0), learn(0.5, 0.5)
    assert half["grad_norm"] == pytest.approx(whole["grad_norm"] / 2, rel=1e-5)
    parts = learn(1.0, 0.0)["total_loss"] + learn(0.0, 1.0)["total_loss"]
    assert whole["total_loss"] == pytest.approx(parts, rel=1e-5)


def test_priorities_are_mean_distances_of_values_from_targets():
    """One sample is whole, the other has three steps and two that fill up."""
    options: Any = {"priority": True, "priority_IS_weight": True, "unroll_len": 5}
    rows = [episode(make_impala(), 5), episode(make_impala(), 3, 1, "terminated")]
    samples = [make_impala(**options).get_train_sample(row)[0] for row in rows]
    weighted = [x | {"IS": w} for x, w in zip(samples, (0.3, 1.0), strict=True)]
    found = make_impala(**options).forward_learn(weighted)["priority"]
    for row, priority in zip(rows, found, strict=True):  # each alone, without weights
        _, steps = arranged(make_impala(), row)
        columns = steps.reward, steps.value[:-1], steps.next_value
        flags = steps.terminated, steps.truncated
        # The policy is still that which collected.
        target, _ = vtrace(torch.zeros_like(steps.reward), *columns, *flags)
        distance = (target - steps.value[:-1]).abs().mean().item()
        assert priority == pytest.approx(distance, rel=1e-4)


@pytest.mark.erratum("rate-from-defaults")
def test_the_step_size_in_the_log_is_the_one_in_use():
    impala = make_impala()
    impala.learner.optimizer.param_groups[0]["lr"] = 0.125
    assert impala.forward_learn([episode(impala, 4)])["cur_lr"] == 0.125
    assert impala.learner.optimizer.defaults["lr"] == SMALL.learning_rate


def test_a_state_comes_back_as_a_copy():
    clip: Any = {"grad_clip_type": "clip_momentum_norm", "clip_value": 0.5}
    impala, other = make_impala(**clip), make_impala(**clip)
    rows = [episode(impala, 4)]
    impala.forward_learn([episode(impala, 4, 1)])
    other.forward_collect({0: torch.zeros(3)})
    other.load_state_dict_learn(impala.state_dict_learn())
    # One goes its own way, and the other one follows step by step.
    told = [impala.forward_learn(rows) for _ in range(3)]
    assert [other.forward_learn(rows) for _ in range(3)] == told
    drawn = [p.forward_collect({0: torch.zeros(3)}) for p in (impala, other)]
    assert drawn[0][0]["action"] == drawn[1][0]["action"]


# --- Collect and eval mode ------------------------------------------------------------


def test_collecting_begins_anew_and_evaluating_changes_nothing():
    impala, obs = make_impala(), {i: torch.zeros(3) for i in range(64)}

    def drawn():
        return [row["action"].item() for row in impala.forward_collect(obs).values()]

    first, second = drawn(), drawn()
    assert first != second
    impala.init_collect()
    assert drawn() == first
    greedy = impala.forward_eval(obs)
    impala.init_eval()
    torch.testing.assert_close(impala.forward_eval(obs), greedy, rtol=0, atol=0)
    assert drawn() == second


def test_each_mode_gives_the_parts_of_a_model_their_own_modes_back():
    policy = Policy(ActorCritic(moody(3, 2), moody(3, 1)), CategoricalActions(2))
    impala = IMPALAPolicy(SMALL, policy)
    with left_alone(policy):
        samples = impala.get_train_sample(episode(impala, 8, end="done"))
        first, again = (impala.forward_eval({0: torch.ones(3)})[0] for _ in "ab")
        assert torch.equal(first["logit"], again["logit"])
    before = modes(policy)
    impala.forward_learn(samples)
    assert modes(policy) == before


@pytest.mark.parametrize("kind", KINDS)
def test_collecting_draws_from_the_policy_and_evaluating_takes_the_best(kind):
    impala = make_impala(kind)
    for weights in impala.model.network.actor.parameters():
        nn.init.normal_(weights, std=0.3)
    output = impala.forward_collect(dict.fromkeys(range(4000), torch.ones(3)))
    drawn = torch.stack([row["action"] for row in output.values()])
    best = impala.forward_eval({7: np.ones(3), 2: np.zeros(3, dtype=np.float32)})
    assert list(best) == [7, 2]
    logit = best[7]["logit"]
    torch.testing.assert_close(output[0]["logit"], logit)
    if kind == "discrete":
        said, wanted, greedy = drawn.float().mean(), logit.softmax(0)[1], logit.argmax()
    else:
        said = torch.stack([drawn.mean(0), drawn.std(0)])
        wanted, greedy = torch.stack([*logit.values()]), logit["mu"]
    torch.testing.assert_close(said, wanted, rtol=0, atol=0.05)
    torch.testing.assert_close(best[7]["action"], greedy)


@pytest.mark.erratum("mask-in-one-place")
def test_a_mask_of_the_actor_alone_moves_the_ratio():
    logit = torch.zeros(1, 1, 4)
    masked = logit.masked_fill(torch.tensor([0, 0, 1, 1]).bool(), -torch.inf)
    rest = torch.zeros(1, 1).long(), torch.zeros(2, 1), torch.ones(1, 1)
    for new, loss in ((masked, 1.0), (logit, 0.25)):
        # The surprise is 1. With the ratio 1/2 the target is only half of it.
        found = vtrace_error_discrete_action(vtrace_data(new, masked, *rest))
        assert found.value_loss.item() == pytest.approx(loss)
