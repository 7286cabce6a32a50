"""DI-engine's interface: settings, samples and the three modes of the policy."""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.utils.data import default_collate
from worlds import left_alone, modes, moody

from literate_rl.ground.nests import map_nest
from literate_rl.interfaces.ding import (
    IMPALAPolicy,
    IMPALAPolicyConfig,
    Timestep,
    collate,
)
from literate_rl.maths.off_policy import (
    vtrace,
    vtrace_data,
    vtrace_error_continuous_action,
    vtrace_error_discrete_action,
)
from literate_rl.nets.parts import ActorCritic, CategoricalActions, GaussianActions
from literate_rl.nets.policies import Policy

SMALL = IMPALAPolicyConfig(
    model={"obs_shape": 3, "action_shape": 2}, unroll_len=4, n_sample=4, batch_size=4
)


def make_impala(continuous: bool = False, **changes: Any) -> IMPALAPolicy:
    torch.manual_seed(0)
    kind = "continuous" if continuous else "discrete"
    return IMPALAPolicy(replace(SMALL, action_space=kind, **changes))


def episode(
    impala: IMPALAPolicy, steps: int, seed: int = 0, end: str = ""
) -> list[dict[str, Any]]:
    """Return transitions of one environment that ends as said, or goes on."""
    generator = torch.Generator().manual_seed(seed)
    seen = torch.randn(steps + 1, 3, generator=generator)
    rows = []
    for t in range(steps):
        output = impala.forward_collect({0: seen[t]})[0]
        over = t == steps - 1 and end != ""
        reward = torch.randn((), generator=generator)
        step = Timestep(seen[t + 1], reward, over, over and end == "truncated")
        rows.append(impala.process_transition(seen[t], output, step))
    return rows


PUBLISHED = {
    "type": "impala",
    "cuda": False,
    "on_policy": False,
    "priority": False,
    "priority_IS_weight": False,
    "action_space": "discrete",
    "unroll_len": 32,
    "transition_with_policy_data": True,
    "learn": {
        "update_per_collect": 4,
        "batch_size": 16,
        "learning_rate": 0.0005,
        "value_weight": 0.5,
        "entropy_weight": 0.0001,
        "discount_factor": 0.99,
        "lambda_": 0.95,
        "rho_clip_ratio": 1.0,
        "c_clip_ratio": 1.0,
        "rho_pg_clip_ratio": 1.0,
        "grad_clip_type": None,
        "clip_value": 0.5,
        "optim": "adam",
    },
    "collect": {},
    "eval": {},
    "other": {"replay_buffer": {"replay_buffer_size": 1000, "max_use": 16}},
}


def within(some: dict[str, Any], others: dict[str, Any]) -> bool:
    """Say whether all entries of a nested dictionary stand in another one too."""
    return all(
        within(x, others[key]) if isinstance(x, dict) else others[key] == x
        for key, x in some.items()
    )


def test_the_published_dictionary_is_the_default() -> None:
    assert IMPALAPolicyConfig.from_dict(PUBLISHED) == IMPALAPolicyConfig()
    assert PUBLISHED["other"] == {
        "replay_buffer": {"replay_buffer_size": 1000, "max_use": 16}
    }
    assert within(PUBLISHED, IMPALAPolicy.config)
    changed = {"learn": {"optim": "rmsprop"}, "collect": {"n_sample": 3}}
    config = IMPALAPolicyConfig.from_dict(changed)
    assert (config.optim, config.n_sample) == ("rmsprop", 3)


def test_the_class_shows_the_defaults_as_nested_dictionaries() -> None:
    defaults = IMPALAPolicy.config
    assert IMPALAPolicyConfig.from_dict(defaults) == IMPALAPolicyConfig()
    # DI-engine's way: copy what is there, change it, and hand it over.
    config = copy.deepcopy(defaults)
    config["model"] = {"obs_shape": 3, "action_shape": 2}
    config["learn"]["batch_size"] = 8
    impala = IMPALAPolicy(config)
    assert impala.cfg == IMPALAPolicyConfig(batch_size=8, model=config["model"])
    assert impala.cfg.to_dict() == config
    assert impala.config is defaults, "the same from an instance"
    assert defaults["learn"]["batch_size"] == 16


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"learn": {"learning_rte": 1}}, "learn.learning_rte"),
        ({"collect": {"n_episode": 1}}, "collect.n_episode"),
        ({"seeed": 1}, "seeed"),
        ({"policy": {"seeed": 1}}, "policy.seeed"),
        ({"model": {"width": 8}}, "model.width"),
        ({"other": {"replay_buffer": {"type": "naive"}}}, "other.replay_buffer.type"),
        # All at once, not one warning after another.
        (
            {"nstep": 1, "lr": 1, "learn": {"lr": 1}, "eval": {"gamma": 1}},
            "nstep, lr, learn.lr, eval.gamma",
        ),
    ],
)
def test_unknown_settings_are_ignored_and_named(config, names) -> None:
    with pytest.warns(UserWarning, match=f"which are ignored: {names}$"):
        assert IMPALAPolicyConfig.from_dict(config) == IMPALAPolicyConfig()


def test_a_setting_has_one_value() -> None:
    with pytest.raises(ValueError, match="two values of optim: 'adam' and 'rmsprop'"):
        IMPALAPolicyConfig.from_dict({"optim": "adam", "learn": {"optim": "rmsprop"}})


def test_a_setting_may_stand_in_several_places_with_one_value() -> None:
    many = {"discount_factor": 0.9, "unroll_len": 8, "action_space": "continuous"}
    config = many | {
        "learn": {"discount_factor": 0.9, "unroll_len": 8},
        "collect": {"discount_factor": 0.9, "unroll_len": 8},
        "model": {"action_space": "continuous"},
    }
    assert IMPALAPolicyConfig.from_dict(config) == IMPALAPolicyConfig(**many)
    for section in ("learn", "collect"):
        other = config | {section: {"discount_factor": 0.8}}
        with pytest.raises(ValueError, match="two values of discount_factor: "):
            IMPALAPolicyConfig.from_dict(other)


# --- The configurations that DI-engine ships ------------------------------------------

SHIPPED = json.loads(Path(__file__).with_name("ding_configs.json").read_text("utf-8"))
# What has no meaning in each of them, and what has.
OF_ALL = {"exp_name", "env", "policy.eval.evaluator"}
NETWORK = "policy.model.encoder_hidden_size_list"
HEADS = {
    f"policy.model.{part}_head_{name}"
    for part in ("actor", "critic")
    for name in ("hidden_size", "layer_num")
}
COLLECTOR, BUFFER = "policy.collect.collector", "policy.other.replay_buffer"
IDLE = {
    "cartpole": {NETWORK, COLLECTOR, "policy.collect.gae_lambda"},
    "cartpole, 2022": {NETWORK, COLLECTOR, "policy.collect.gae_lambda", "policy.nstep"},
    "lunarlander": {NETWORK, "policy.random_collect_size", f"{BUFFER}.sliced"},
    "bipedalwalker": {COLLECTOR, "policy.random_collect_size"},
    "pong": {NETWORK, COLLECTOR, f"{BUFFER}.sliced", *HEADS},
    "enduro": {
        *(NETWORK, COLLECTOR, "policy.collect.gae_lambda", f"{BUFFER}.type"),
        *HEADS,
    },
}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_configurations_are_read_with_one_warning(name: str) -> None:
    config = SHIPPED[name]["config"]
    before = copy.deepcopy(config)
    with pytest.warns(UserWarning, match="which are ignored") as told:
        read = IMPALAPolicyConfig.from_dict(config)
    (warning,) = told
    _, _, names = str(warning.message).partition("which are ignored: ")
    assert {*names.split(", ")} == OF_ALL | IDLE[name]
    assert config == before, "the caller's dictionary stays"

    # Everything else has become a setting.
    policy = config["policy"]
    learn, nested = policy["learn"], read.to_dict()
    assert within(
        {k: x for k, x in learn.items() if k != "unroll_len"}, nested["learn"]
    )
    assert read.unroll_len == policy.get("unroll_len", 32) == nested["unroll_len"]
    assert read.n_sample == policy["collect"]["n_sample"]
    buffer = policy["other"]["replay_buffer"]
    assert read.replay_buffer_size == buffer["replay_buffer_size"]
    assert read.max_use == buffer.get("max_use", 16)
    assert read.cuda == policy["cuda"]
    sizes = {key: policy["model"][key] for key in ("obs_shape", "action_shape")}
    assert read.model == sizes

    # The policy alone, as DI-engine hands it over, is the same.
    with pytest.warns(UserWarning, match="which are ignored: "):
        assert IMPALAPolicyConfig.from_dict(policy) == read
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert IMPALAPolicyConfig.from_dict(nested) == read


@pytest.mark.parametrize("name", ["cartpole, 2022", "bipedalwalker", "pong"])
def test_shipped_configurations_collect_learn_and_evaluate(name: str) -> None:
    config = copy.deepcopy(SHIPPED[name]["config"])
    sizes, shape = config["policy"]["model"], config["policy"]["model"]["obs_shape"]
    if name == "pong":  # smaller pictures, for the sake of time
        shape = sizes["obs_shape"] = [4, 12, 12]
    config["policy"] |= {"cuda": False}
    with pytest.warns(UserWarning, match="which are ignored"):
        impala = IMPALAPolicy(config)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    obs, steps = torch.rand(shape), []
    before = copy.deepcopy(impala.model.state_dict())
    for t in range(impala.cfg.unroll_len):
        output = impala.forward_collect({3: obs})[3]
        answer = Timestep(torch.rand(shape), float(t % 2), t == 20)
        steps.append(impala.process_transition(obs, output, answer))
        obs = answer.obs
    info = impala.forward_learn(impala.get_train_sample(steps))
    assert all(math.isfinite(x) for x in info.values())
    after = impala.model.state_dict()
    assert any(not torch.equal(before[key], after[key]) for key in before)
    numbers = (sizes["action_shape"],) if impala.continuous else ()
    assert impala.forward_eval({3: obs})[3]["action"].shape == numbers


def test_collecting_begins_anew_and_evaluating_changes_nothing() -> None:
    impala, obs = make_impala(), {i: torch.zeros(3) for i in range(64)}

    def drawn() -> list[int]:
        return [row["action"].item() for row in impala.forward_collect(obs).values()]

    first, second = drawn(), drawn()
    assert first != second
    impala.init_collect()
    assert drawn() == first
    state = copy.deepcopy(impala.state_dict_learn())
    greedy = impala.forward_eval(obs)
    impala.init_eval()
    again = impala.forward_eval(obs)
    assert all(torch.equal(greedy[i]["action"], again[i]["action"]) for i in obs)
    assert torch.equal(state["generator"], impala.state_dict_learn()["generator"])
    assert drawn() == second


def test_each_mode_is_begun_by_the_constructor() -> None:
    begun = []

    class Watched(IMPALAPolicy):
        def init_collect(self) -> None:
            begun.append("collect")
            super().init_collect()

        def init_eval(self) -> None:
            begun.append("eval")
            super().init_eval()

    Watched(SMALL)
    assert begun == ["collect", "eval"]


def test_the_default_model_fits_the_action_space() -> None:
    for continuous, kind in ((False, CategoricalActions), (True, GaussianActions)):
        impala = make_impala(continuous)
        assert isinstance(impala.model.actions, kind)
        assert impala.default_model() == ("make_policy", ["literate_rl.nets.policies"])
        widths = [p.shape for p in impala.model.network.critic.parameters()][0::2]
        assert widths == [(64, 3), (64, 64), (1, 64)]
    sizes = {"obs_shape": 3, "action_shape": 2}
    for wrong, word in (({"obs_shape": 3}, "action_"), (sizes | {"width": 8}, "width")):
        with pytest.raises(TypeError, match=word):
            IMPALAPolicy(replace(SMALL, model=wrong))


# --- From transitions to samples ------------------------------------------------------


@pytest.mark.erratum("padding-counts")
@given(st.integers(1, 23), st.integers(1, 7), st.sampled_from(["", "terminated"]))
def test_each_transition_counts_once(steps: int, length: int, end: str) -> None:
    impala = make_impala(unroll_len=length)
    rows = [
        {"obs": torch.tensor([float(t)]), "done": False, "truncated": False}
        for t in range(steps)
    ]
    rows[-1]["done"] = end != ""
    samples = impala.get_train_sample(rows)
    counted = torch.zeros(steps)
    for sample in samples:
        assert sample["obs"].shape == (length, 1)
        steps_of_sample = sample["obs"].flatten().long()
        assert (steps_of_sample.diff() <= 1).all()
        counted.index_add_(0, steps_of_sample, sample["weight"])
    assert torch.equal(counted, torch.ones(steps))
    assert rows[-1]["done"] == (end != "")  # the caller's transitions stay

    # As published, an episode that goes on gets empty steps, and the first one counts.
    if steps < length and not end:
        done = torch.tensor([False] * steps + [True] * (length - steps))
        published = torch.ones(length)
        published[1:] = 1 - done[:-1].float()
        assert published[steps] == 1.0
        assert samples[0]["weight"][steps] == 0.0
    # And a short tail is filled up with steps that count again.
    if steps > length and steps % length:
        starts = [*range(0, steps - length + 1, length), steps - length]
        assert sum(length for _ in starts) > steps


@pytest.mark.erratum("padding-counts")
@pytest.mark.parametrize("end", ["", "truncated", "terminated"])
def test_filling_up_changes_no_target(end: str) -> None:
    """Three steps on their own and filled up to eight have the same loss."""
    exact, long = (make_impala(unroll_len=n, entropy_weight=0.0) for n in (3, 8))
    rows = episode(exact, 3, end=end)
    losses = []
    for impala in (exact, long):
        (sample,) = impala.get_train_sample(rows)
        info = impala.forward_learn([sample])
        losses.append(info["total_loss"] * impala.cfg.unroll_len)
    # Both are sums of three terms near 1 that cancel, in float32.
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_transitions_without_a_second_flag_are_taken() -> None:
    """The tuple of DI-engine: an end without a reason is a termination."""
    published = namedtuple("published", ["obs", "reward", "done", "info"])
    impala = make_impala()
    output = {"logit": torch.zeros(2), "action": torch.tensor(1)}
    step = published(torch.ones(3), torch.ones(1), True, {})
    row = impala.process_transition(torch.zeros(3), output, step)
    assert row["truncated"] is False
    batch = impala.data_preprocess_learn([[row] * 4])
    assert batch["reward"].shape == (4, 1)


@pytest.mark.erratum("collate-drops-a-dimension")
@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("actions", [1, 2])
@pytest.mark.parametrize("size", [(1, 1), (5, 1), (1, 3), (4, 3)])
def test_both_pipelines_give_the_same_batch(continuous, actions, size) -> None:
    """Lists of lists, dictionaries of lists, dictionaries of tensors; any length."""
    steps, envs = size
    model = {"obs_shape": 3, "action_shape": actions}
    impala = make_impala(continuous, model=model, unroll_len=steps)
    rows = [episode(impala, steps, seed) for seed in range(envs)]
    as_lists = [{key: [step[key] for step in row] for key in row[0]} for row in rows]
    as_tensors = [impala.get_train_sample(row)[0] for row in rows]
    batches = [
        impala.data_preprocess_learn(data) for data in (rows, as_lists, as_tensors)
    ]
    for batch in batches[1:]:
        torch.testing.assert_close(batch, batches[0])
    assert batches[0]["obs_plus_1"].shape == (steps + 1, envs, 3)
    torch.testing.assert_close(batches[0]["obs_plus_1"][-1, 0], rows[0][-1]["next_obs"])
    infos = []
    for data in (rows, as_lists, as_tensors):
        fresh = make_impala(continuous, model=model)  # its own unroll_len is 4
        infos.append(fresh.forward_learn(data))
    assert infos[0] == infos[1] == infos[2]
    assert list(infos[0]) == impala.monitor_vars_learn()


def test_samples_that_do_not_fit_are_refused() -> None:
    impala = make_impala()
    with pytest.raises(ValueError, match="items must hold at least one"):
        impala.data_preprocess_learn([])
    with pytest.raises(ValueError, match="items must hold at least one"):
        impala.forward_collect({})
    rows = episode(impala, 2)
    without = {key: x for key, x in rows[1].items() if key != "logit"}
    for data in ([[rows[0], without]], [rows, rows[:1]], [[without]]):
        with pytest.raises((KeyError, RuntimeError), match=r"logit|equal size"):
            impala.forward_learn(data)


def test_weights_come_in_all_forms_of_the_pipelines() -> None:
    """None for no weight; an importance weight as a number, a list or a tensor."""
    impala = make_impala(priority=True, priority_IS_weight=True)
    rows = episode(impala, 3)
    sample = {key: [row[key] for row in rows] for key in rows[0]}
    for number in (0.5, [0.5] * 3, [torch.tensor(0.5)] * 3, torch.tensor([0.5])):
        data = [sample | {"IS": number, "weight": None}] * 2
        weight = impala.data_preprocess_learn(data)["weight"]
        assert torch.equal(weight, torch.full((3, 2), 0.5))
    data = [[row | {"IS": 0.5, "weight": None} for row in rows]]
    assert torch.equal(
        impala.data_preprocess_learn(data)["weight"], torch.full((3, 1), 0.5)
    )
    assert torch.equal(
        impala.get_train_sample(tuple(rows))[0]["obs"][0], rows[0]["obs"]
    )


@pytest.mark.erratum("collate-drops-a-dimension")
def test_lists_below_the_first_level_stay_lists() -> None:
    said = {"mu": [torch.zeros(2)] * 3, "sigma": [torch.ones(2)] * 3}
    sample = {"reward": [torch.ones(())] * 3, "logit": said}
    published = default_collate([sample, sample])
    published = {
        key: default_collate(x) if isinstance(x, list) else x
        for key, x in published.items()
    }
    assert published["reward"].shape == (3, 2)
    assert isinstance(published["logit"]["mu"], list)
    with pytest.raises((TypeError, ValueError)):
        Normal(*published["logit"].values())
    assert collate([sample, sample], dim=1)["logit"]["mu"].shape == (3, 2, 2)

    # And a squeezed action of one number is refused, or pairs all with all.
    for steps, shape in ((5, None), (3, (3, 3, 3))):
        mu, action = torch.zeros(steps, 3, 1), torch.zeros(steps, 3)
        if shape is None:
            with pytest.raises(ValueError, match="not broadcastable"):
                Normal(mu, 1.0, validate_args=True).log_prob(action)
        else:
            assert Normal(mu, 1.0).log_prob(action).shape == shape


class DictModel(nn.Module):
    """A model whose observations are dictionaries and whose value ends in tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Linear(3, 2)
        self.critic = nn.Linear(3, 1)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return self.actor(torch.cat([obs["near"], obs["far"]], -1))

    def value(self, obs: dict[str, Tensor]) -> Tensor:
        joined = torch.cat([obs["near"], obs["far"]], -1)
        return self.critic(joined).tanh().squeeze(-1)

    def evaluate_actions(
        self, obs: Any, action: Tensor, *, mask: Any = None
    ) -> tuple[Tensor, Tensor]:
        return CategoricalActions(2).evaluate(self(obs), action)

    def noise(self, steps: int, envs: int, generator: torch.Generator) -> Tensor:
        return torch.empty(steps, envs, 2).exponential_(generator=generator).log().neg()

    def act(self, obs: dict[str, Tensor], noise: Tensor | float) -> Tensor:
        return (self(obs) + noise).argmax(-1)


@pytest.mark.erratum("successor-is-the-next-row")
def test_dictionaries_as_observations_and_a_squashed_value_train() -> None:
    torch.manual_seed(0)
    impala = IMPALAPolicy(SMALL, DictModel())
    seen = [{"near": torch.randn(2), "far": torch.randn(1)} for _ in range(5)]
    rows = []
    for t in range(4):
        output = impala.forward_collect({3: seen[t]})[3]
        step = Timestep(seen[t + 1], 1.0, t == 2, t == 2)
        rows.append(impala.process_transition(seen[t], output, step))
    before = impala.model.critic.weight.clone()
    info = impala.forward_learn([rows, rows])
    assert all(math.isfinite(number) for number in info.values())
    assert not torch.equal(before, impala.model.critic.weight)
    # As published, the observations are joined as if they were tensors.
    with pytest.raises(TypeError):
        torch.cat([seen[0], seen[1]])


# --- Models of DI-engine's kind -------------------------------------------------------


class ByModes(nn.Module):
    """A model as DI-engine's ``VAC``: one forward pass, a mode, and a dictionary."""

    def __init__(self, shape: tuple[int, ...], continuous: bool, column: bool) -> None:
        super().__init__()
        self.shape, self.column = shape, column
        size = math.prod(shape)
        self.actor, self.critic = nn.Linear(size, 2), nn.Linear(size, 1)
        self.log_sigma = nn.Parameter(torch.tensor([-0.5, 0.5])) if continuous else None

    def forward(self, x: Tensor, mode: str) -> dict[str, Any]:
        modes = {"compute_actor", "compute_actor_critic"}
        assert mode in modes, "the two that IMPALA asks for"
        assert x.shape[1:] == self.shape, "one dimension for the batch"
        row = self.actor(x.reshape(len(x), -1))
        output = {"logit": row}
        if self.log_sigma is not None:
            sigma = self.log_sigma.exp().expand_as(row)
            output = {"logit": {"mu": row, "sigma": sigma}}
        if mode == "compute_actor_critic":
            value = self.critic(x.reshape(len(x), -1))
            output["value"] = value if self.column else value.squeeze(-1)
        return output


@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize(
    ("obs_shape", "shape"),
    [(3, (3,)), ([3], (3,)), ((2, 4, 4), (2, 4, 4)), ((), ())],
)
def test_a_model_of_di_engine_trains(obs_shape, shape, continuous, column) -> None:
    torch.manual_seed(0)
    model = ByModes(shape, continuous, column)
    kind = "continuous" if continuous else "discrete"
    sizes = {"obs_shape": obs_shape, "action_shape": 2, "encoder_hidden_size_list": []}
    impala = IMPALAPolicy(replace(SMALL, model=sizes, action_space=kind), model)
    rows: list[list[dict[str, Any]]] = [[], []]
    for t in range(4):
        seen = torch.randn(2, *shape)
        drawn = impala.forward_collect(dict(enumerate(seen)))
        best = impala.forward_eval(dict(enumerate(seen)))
        with torch.no_grad():
            said = model(seen, mode="compute_actor")["logit"]
        for index, row in enumerate(rows):
            logit = map_nest(lambda x, index=index: x[index], said)
            torch.testing.assert_close(drawn[index]["logit"], logit)
            greedy = logit["mu"] if continuous else logit.argmax()
            torch.testing.assert_close(best[index]["action"], greedy)
            # The first of the two environments is cut off in the middle.
            cut = t == 1 and index == 0
            step = Timestep(torch.randn(shape), 1.0, cut, cut)
            row.append(impala.process_transition(seen[index], drawn[index], step))

    # The documented lines of the learn mode.
    data = impala.data_preprocess_learn(rows)
    seen = data["obs_plus_1"]
    output = model.forward(
        seen.view((-1, *seen.shape[2:])), mode="compute_actor_critic"
    )
    target_logit, behaviour_logit, actions, values, rewards, weights, *ends = (
        impala.reshape_data(output, data)
    )
    steps = vtrace_data(
        target_logit, behaviour_logit, actions, values, rewards, weights, *ends
    )
    loss = {
        "discrete": vtrace_error_discrete_action,
        "continuous": vtrace_error_continuous_action,
    }[kind](steps, 0.99, 0.95, 1.0, 1.0, 1.0)
    before = copy.deepcopy(model.state_dict())
    info = impala.forward_learn(rows)
    for name, x in loss._asdict().items():
        assert info[name] == pytest.approx(x.item(), rel=1e-4, abs=1e-5)
    after = model.state_dict()
    for name in before:
        assert not torch.equal(before[name], after[name]), "the model itself learned"
    impala.load_state_dict_learn(impala.state_dict_learn())


def test_a_model_is_a_module() -> None:
    with pytest.raises(TypeError, match="model must be a Module or None"):
        IMPALAPolicy(SMALL, lambda obs: obs)


@pytest.mark.parametrize("missing", ["obs_shape", "action_shape"])
def test_a_model_of_di_engine_needs_the_sizes(missing: str) -> None:
    sizes = {"obs_shape": 3, "action_shape": 2}
    del sizes[missing]
    with pytest.raises(KeyError, match=missing):
        IMPALAPolicy(replace(SMALL, model=sizes), ByModes((3,), False, False))


def test_collate_keeps_every_dimension() -> None:
    items = [{"a": np.ones(1), "b": [1.0, 2.0]}, {"a": np.zeros(1), "b": [3.0, 4.0]}]
    stacked = collate(items)
    assert stacked["a"].shape == (2, 1)
    assert stacked["b"].tolist() == [[1, 2], [3, 4]]
    assert collate(items, dim=1)["b"].tolist() == [[1, 3], [2, 4]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"action_space": "hybrid"}, "action_space must be 'discrete' or 'continuous'"),
        ({"transition_with_policy_data": False}, "transition_with_policy_data must be"),
        ({"type": "ppo"}, "type must be 'impala'"),
        ({"learn": {"batch_size": 0}}, "batch_size must be at least 1, got 0"),
    ],
)
def test_illegal_settings_are_named(changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        IMPALAPolicy(changes)


def test_without_the_learn_mode_there_is_no_optimiser() -> None:
    actor = IMPALAPolicy(SMALL, enable_field=["collect"])
    assert not hasattr(actor, "learner")
    assert actor.forward_collect({0: torch.zeros(3)}).keys() == {0}
    for enabled in ({"learn", "eval"}, ("learn",)):
        assert hasattr(IMPALAPolicy(SMALL, enable_field=enabled), "learner")
    actor.init_learn()
    assert actor.forward_learn([episode(actor, 4)])["cur_lr"] == SMALL.learning_rate
    with pytest.raises(ValueError, match=r"enable_field.* 'learn'.*'lern'"):
        IMPALAPolicy(SMALL, enable_field=["lern"])
    with pytest.raises(TypeError, match=r"enable_field must be .*, got str"):
        IMPALAPolicy(SMALL, enable_field="learn")


@pytest.mark.parametrize("as_steps", [False, True])
def test_entries_that_learning_does_not_read_are_handed_on(as_steps: bool) -> None:
    impala = make_impala()
    extra = {"replay_unique_id": "buffer_7", "use": 2, "collect_iter": 5}
    samples = [episode(impala, 4, seed) for seed in range(2)]
    steps = [[{**step, **extra} for step in sample] for sample in samples]
    whole = [{**collate(sample), **extra} for sample in samples]
    data = impala.data_preprocess_learn(steps if as_steps else whole)
    for key, x in extra.items():
        assert data[key] == ([[x] * 4] * 2 if as_steps else [x] * 2)
    plain = impala.data_preprocess_learn(samples)
    assert data.keys() == plain.keys() | extra.keys()
    assert all(torch.equal(data[key], x) for key, x in plain.items())


# --- Learn mode -----------------------------------------------------------------------


def test_the_loss_is_put_together_by_hand() -> None:
    """Two environments; one is truncated in the middle of the unroll."""
    impala = make_impala(value_weight=0.7, entropy_weight=0.3)
    other = make_impala()
    rows = [
        episode(other, 2, 0, "truncated") + episode(other, 2, 1),
        episode(other, 4, 2, "terminated"),
    ]
    batch = impala.data_preprocess_learn(rows)
    obs, model = batch["obs"], impala.model
    with torch.no_grad():
        next_value = model.value(batch["next_obs"])
        value = torch.cat([model.value(obs), next_value[-1:]])
        loss = vtrace_error_discrete_action(
            vtrace_data(
                model(obs),
                batch["logit"],
                batch["action"],
                value,
                batch["reward"],
                None,
                torch.tensor([[0, 0], [0, 0], [0, 0], [0, 1]]).bool(),
                torch.tensor([[0, 0], [1, 0], [0, 0], [0, 0]]).bool(),
                next_value,
            )
        )
    info = impala.forward_learn(rows)
    expected = loss.policy_loss + 0.7 * loss.value_loss - 0.3 * loss.entropy_loss
    assert info["total_loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert info["value_loss"] == pytest.approx(loss.value_loss.item(), rel=1e-5)


@pytest.mark.erratum("sample-after-an-end")
def test_the_step_behind_an_end_keeps_reward_and_value() -> None:
    impala = make_impala()
    rows = episode(impala, 2, 0, "terminated") + episode(impala, 2, 1)
    batch = impala.data_preprocess_learn([rows])
    value = torch.full((5,), 5.0)
    output = {"logit": torch.zeros(5, 2), "value": value}
    steps = impala.reshape_data(output, batch)
    assert value.tolist() == [5.0] * 5  # not written to
    assert steps.value.flatten().tolist() == [5.0] * 5
    torch.testing.assert_close(steps.reward, batch["reward"])
    assert steps.weight.flatten().tolist() == [1.0] * 4

    # As published: the mask is put where the value of the next step is.
    done = batch["done"].float()
    published, weight = value.reshape(5, 1).clone(), torch.ones(4, 1)
    published[1:] = published[1:] * (1 - done)
    weight[1:] = 1 - done[:-1]
    assert published[2] == 0.0
    assert weight[2] == 0.0
    assert not done[2]


@pytest.mark.erratum("sample-after-an-end")
@pytest.mark.parametrize("end", ["", "terminated", "truncated"])
def test_six_fields_cannot_say_where_an_episode_ends(end: str) -> None:
    """So there are nine, and who unpacks six is told at once."""
    impala = make_impala()
    rows = episode(impala, 2, 0, end) + episode(impala, 2, 1)
    data = impala.data_preprocess_learn([rows])
    seen = data["obs_plus_1"].flatten(0, 1)
    with torch.no_grad():
        output = {"logit": impala.model(seen), "value": impala.model.value(seen)}
    steps = impala.reshape_data(output, data)
    with pytest.raises(ValueError, match="too many values to unpack"):
        _logit, _behaviour, _actions, _values, _rewards, _weights = steps
    *six, terminated, truncated, _ = steps
    assert bool(terminated.any()) == (end == "terminated")
    assert bool(truncated.any()) == (end == "truncated")
    whole = vtrace_error_discrete_action(steps)
    part = vtrace_error_discrete_action(vtrace_data(*six))
    same = torch.isclose(whole.value_loss, part.value_loss, rtol=1e-3)
    assert bool(same) == (end == ""), "an end changes the targets"


@pytest.mark.erratum("impala-time-limit")
def test_a_limit_taken_for_an_end_lowers_all_advantages_before_it() -> None:
    """Steps that pay 1 in states worth 100 under 0.99: nothing is a surprise."""
    impala = make_impala()
    batch = impala.data_preprocess_learn([episode(impala, 4, end="truncated")])
    batch["reward"] = torch.ones(4, 1)
    impala.model.value = lambda obs: torch.full(obs.shape[:-1], 100.0)
    output = {"logit": torch.zeros(5, 2), "value": torch.full((5,), 100.0)}
    steps = impala.reshape_data(output, batch | {"logit": torch.zeros(4, 1, 2)})
    loss = vtrace_error_discrete_action(steps)
    assert loss.policy_loss.item() == pytest.approx(0.0, abs=1e-4)
    # As published there is one flag.
    never = torch.zeros_like(steps.truncated)
    hundred, one = torch.full((4, 1), 100.0), torch.ones(4, 1)
    columns = (torch.zeros(4, 1), one, hundred, hundred)
    _, published = vtrace(*columns, batch["done"], never)
    weights = 0.9405 ** torch.arange(3, -1, -1).unsqueeze(1)
    torch.testing.assert_close(published, -99 * weights)


@pytest.mark.erratum("successor-is-the-next-row")
def test_a_truncated_step_is_valued_at_its_true_successor() -> None:
    impala = make_impala()
    rows = episode(impala, 2, 0, "truncated") + episode(impala, 2, 1)
    batch = impala.data_preprocess_learn([rows])
    flat = batch["obs_plus_1"].flatten(0, 1)
    with torch.no_grad():
        output = {"logit": impala.model(flat), "value": impala.model.value(flat)}
        steps = impala.reshape_data(output, batch)
        truth = impala.model.value(batch["next_obs"])
    torch.testing.assert_close(steps.next_value, truth)
    published = output["value"][1:].reshape(4, 1)
    assert not torch.isclose(published[1], truth[1])


@pytest.mark.erratum("unroll-length-fixed")
def test_the_number_of_steps_is_that_of_the_data() -> None:
    impala = make_impala(unroll_len=5)
    rows = [episode(impala, 2, seed) for seed in range(4)]
    batch = impala.data_preprocess_learn(rows)
    value = torch.arange(12.0)
    output = {"logit": torch.zeros(12, 2), "value": value}
    steps = impala.reshape_data(output, batch)
    assert steps.value[:, 0].tolist() == [0, 4, 8]
    # As published: the setting decides, and the columns are mixed up.
    assert value.reshape(5 + 1, -1)[:, 0].tolist() == [0, 2, 4, 6, 8, 10]


@pytest.mark.erratum("priority-weights-dead")
def test_importance_weights_reach_the_loss_and_priorities_come_back() -> None:
    def learn(*numbers: float) -> dict[str, Any]:
        impala = make_impala(priority=True, priority_IS_weight=True, entropy_weight=0.0)
        rows = [episode(impala, 4, seed) for seed in (0, 1)]
        samples = [impala.get_train_sample(row)[0] for row in rows]
        weighted = zip(samples, numbers, strict=True)
        return impala.forward_learn([sample | {"IS": w} for sample, w in weighted])

    whole, half = learn(1.0, 1.0), learn(0.5, 0.5)
    assert half["grad_norm"] == pytest.approx(whole["grad_norm"] / 2, rel=1e-5)
    parts = learn(1.0, 0.0)["total_loss"] + learn(0.0, 1.0)["total_loss"]
    assert whole["total_loss"] == pytest.approx(parts, rel=1e-5)

    # As published: the weights that go on are marks of the ends, whatever was drawn.
    losses = []
    for number in (1.0, 0.5):
        impala = make_impala(priority=True, priority_IS_weight=True)
        sample = impala.get_train_sample(episode(impala, 4))[0] | {"IS": number}
        batch = impala.data_preprocess_learn([sample])
        assert batch["weight"].unique().tolist() == [number]
        batch["weight"] = torch.ones_like(batch["reward"])
        batch["weight"][1:] = 1 - batch["done"][:-1].float()
        losses.append(impala.learn(batch)["total_loss"])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("value_weight", [0.0, 0.5])
def test_priorities_are_mean_distances_of_values_from_targets(value_weight) -> None:
    """One sample is whole, the other has three steps and two that fill up."""
    impala = make_impala(
        priority=True, priority_IS_weight=True, unroll_len=5, value_weight=value_weight
    )
    rows = [episode(impala, 5, 0), episode(impala, 3, 1, "terminated")]
    impala.model.load_state_dict(make_impala(entropy_weight=0.0).model.state_dict())
    expected = []
    for row in rows:  # each on its own, without weights
        columns = [
            torch.stack([torch.as_tensor(step[key]) for step in row]).unsqueeze(1)
            for key in ("obs", "next_obs", "logit", "action", "reward", "done")
        ]
        obs, next_obs, logit, action, reward, done = columns
        with torch.no_grad():
            value, next_value = impala.model.value(obs), impala.model.value(next_obs)
            new, old = (
                Categorical(logits=x).log_prob(action)
                for x in (impala.model(obs), logit)
            )
        never = torch.zeros_like(done)
        target, _ = vtrace(new - old, reward, value, next_value, done, never)
        expected.append((target - value).abs().mean().item())
    samples = [impala.get_train_sample(row)[0] for row in rows]
    info = impala.forward_learn([samples[0] | {"IS": 0.3}, samples[1] | {"IS": 1.0}])
    assert info["priority"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.erratum("rate-from-defaults")
def test_the_step_size_in_the_log_is_the_one_in_use() -> None:
    impala = make_impala()
    impala.learner.optimizer.param_groups[0]["lr"] = 0.125
    rows = episode(impala, 4)
    assert impala.forward_learn([rows])["cur_lr"] == 0.125
    assert impala.learner.optimizer.defaults["lr"] == SMALL.learning_rate


def test_state_comes_back() -> None:
    changes = {"grad_clip_type": "clip_momentum_norm", "clip_value": 0.5}
    impala, other = make_impala(**changes), make_impala(**changes)
    rows = episode(impala, 4)
    impala.forward_learn([episode(impala, 4, 1)])
    impala.forward_learn([rows])
    state = copy.deepcopy(impala.state_dict_learn())
    other.forward_collect({0: torch.zeros(3)})
    other.load_state_dict_learn(state)
    for _ in range(2):  # the second one sees how the first gradient was clipped
        assert impala.forward_learn([rows]) == other.forward_learn([rows])
    drawn = [p.forward_collect({0: torch.zeros(3)}) for p in (impala, other)]
    assert drawn[0][0]["action"] == drawn[1][0]["action"]


def test_two_policies_that_were_loaded_from_one_state_go_their_own_ways() -> None:
    first, second = make_impala(), make_impala()
    first.forward_learn([episode(first, 4)])
    state = first.state_dict_learn()
    second.load_state_dict_learn(state)
    before = copy.deepcopy(second.state_dict_learn())
    first.forward_learn([episode(first, 4, 1)])
    after = second.state_dict_learn()
    for index, moments in before["optimizer"]["state"].items():
        for name, x in moments.items():
            assert torch.equal(after["optimizer"]["state"][index][name], x)
    for name, x in before["model"].items():
        assert torch.equal(after["model"][name], x)


@pytest.mark.parametrize("kind", ["optimiser", "model", "generator", "norms"])
def test_a_state_that_does_not_fit_changes_nothing(kind) -> None:
    impala = make_impala(grad_clip_type="clip_momentum_norm")
    impala.forward_learn([episode(impala, 4)])
    before = copy.deepcopy(impala.state_dict_learn())
    other = make_impala(optim="rmsprop" if kind == "optimiser" else "adam")
    other.forward_learn([episode(other, 4, 1)])
    state = other.state_dict_learn()
    if kind == "model":
        state["model"] = make_impala(
            model={"obs_shape": 3, "action_shape": 5}
        ).model.state_dict()
    elif kind != "optimiser":
        del state[kind]
    with pytest.raises((ValueError, KeyError, RuntimeError)):
        impala.load_state_dict_learn(state)
    torch.testing.assert_close(impala.state_dict_learn(), before, rtol=0, atol=0)


# --- Collect and eval mode ------------------------------------------------------------


def test_each_mode_gives_the_parts_of_a_model_their_own_modes_back() -> None:
    policy = Policy(ActorCritic(moody(3, 2), moody(3, 1)), CategoricalActions(2))
    impala = IMPALAPolicy(SMALL, policy)
    with left_alone(policy):
        samples = impala.get_train_sample(episode(impala, 8, end="done"))
        first, again = (impala.forward_eval({0: torch.ones(3)})[0] for _ in "ab")
        assert torch.equal(first["logit"], again["logit"])
    before = modes(policy)
    impala.forward_learn(samples)
    assert modes(policy) == before


def test_collect_draws_from_the_policy() -> None:
    impala = make_impala()
    nn.init.normal_(impala.model.network.actor[-1].weight, std=2.0)
    seen = torch.randn(3)
    output = impala.forward_collect(dict.fromkeys(range(4000), seen))
    logit = impala.model(seen.unsqueeze(0))[0]
    torch.testing.assert_close(output[0]["logit"], logit, rtol=1e-4, atol=1e-5)
    drawn = torch.stack([row["action"] for row in output.values()])
    frequency = torch.bincount(drawn, minlength=2) / len(drawn)
    torch.testing.assert_close(frequency, logit.softmax(0), rtol=0, atol=0.03)


def test_collect_of_numbers_has_mean_and_deviation() -> None:
    impala = make_impala(continuous=True)
    nn.init.constant_(impala.model.network.actor.log_sigma, -1.0)
    output = impala.forward_collect(dict.fromkeys(range(4000), torch.zeros(3)))
    drawn = torch.stack([row["action"] for row in output.values()])
    torch.testing.assert_close(
        drawn.std(0), output[0]["logit"]["sigma"], rtol=0.05, atol=0
    )
    torch.testing.assert_close(
        drawn.mean(0), output[0]["logit"]["mu"], rtol=0, atol=0.03
    )


@pytest.mark.parametrize("continuous", [False, True])
def test_eval_takes_the_best_action_and_keeps_the_numbers(continuous) -> None:
    impala = make_impala(continuous)
    data = {7: np.ones(3), 2: np.zeros(3, dtype=np.float32)}
    output = impala.forward_eval(data)
    assert list(output) == [7, 2]
    row = output[7]
    best = row["logit"]["mu"] if continuous else row["logit"].argmax()
    torch.testing.assert_close(row["action"], best)
    assert not row["action"].requires_grad


@pytest.mark.erratum("mask-in-one-place")
def test_a_mask_of_the_actor_alone_moves_the_ratio() -> None:
    logit = torch.zeros(1, 1, 4)
    masked = logit.masked_fill(torch.tensor([0, 0, 1, 1]).bool(), -torch.inf)
    action = torch.zeros(1, 1, dtype=torch.long)
    value, reward = torch.zeros(2, 1), torch.ones(1, 1)
    losses = [
        vtrace_error_discrete_action(vtrace_data(new, masked, action, value, reward))
        for new in (masked, logit)
    ]
    # The surprise is 1. With the ratio 1/2 the target is only half of it.
    assert losses[0].value_loss.item() == pytest.approx(1.0)
    assert losses[1].value_loss.item() == pytest.approx(0.25)


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("kind", [torch.tensor, np.array])
@pytest.mark.parametrize("steps", [3, 5])
def test_flags_of_any_form_and_entries_of_none_are_cut_into_samples(
    shape, kind, steps
) -> None:
    impala = make_impala(unroll_len=4)
    plain = episode(impala, steps)
    rows = [
        row | {"done": kind(bool(row["done"])).reshape(shape), "weight": None}
        for row in plain
    ]
    found, wanted = map(impala.get_train_sample, (rows, plain))
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one["done"], other["done"])
        assert torch.equal(one["truncated"], other["truncated"])
        assert torch.equal(one["weight"], other["weight"])
    impala.forward_learn(found)


def test_a_logit_that_is_no_number_has_its_own_name() -> None:
    impala = make_impala(unroll_len=3)
    (sample,) = impala.get_train_sample(episode(impala, 3))
    sample["logit"] = sample["logit"].clone()
    sample["logit"][0, 0] = math.nan
    with pytest.raises(ValueError, match="data's logit must hold numbers, got NaN"):
        impala.forward_learn([sample])
