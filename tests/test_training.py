"""Training in one call: models of one's own are checked, trained, saved, loaded."""

import copy
import json
import math
import re
import warnings
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import gymnasium as gym
import numpy as np
import pytest
import torch
from elsewhere import ELSEWHERE, Far, elsewhere
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import SyncVectorEnv
from soft import climb
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from worlds import Counting, Eye, left_alone, make_eye, modes, moody

from benchmarks.spaces import (
    DONE,
    SEEN,
    SMALL,
    USUAL_ACTION,
    Sampled,
    small_learner,
)
from literate_rl.actors import actors
from literate_rl.apps import training
from literate_rl.apps.cli import main
from literate_rl.apps.training import (
    ALGORITHMS,
    Agent,
    Device,
    Options,
    ended,
    make_learner,
    placing,
    train,
)
from literate_rl.book.contract_models import (
    ActionValue,
    CategoricalActor,
    CategoricalQNetwork,
    DeterministicActor,
    ProbabilityActor,
    QNetwork,
    SquashedGaussianActor,
    StateValue,
)
from literate_rl.check.own_models import make_qnet_policy
from literate_rl.data import agents
from literate_rl.data.agents import make_envs
from literate_rl.data.episodes import env_maker
from literate_rl.ground.nests import MODELS
from literate_rl.learners.loop import OffPolicy
from literate_rl.nets.encoders import PartsEncoder
from literate_rl.nets.pictures import PictureEncoder
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import (
    OwnModels,
    Run,
    fit,
    flat_env,
    load,
    load_env,
)

CARTPOLE, PENDULUM = "CartPole-v1", "Pendulum-v1"
ON_POLICY = ("ppo", "ppg", "impala", "a2c", "a3c")
DDPG_LIKE = ("ddpg", "ddpgper", "hddpg", "td3", "ddpgapex")
FILLING = ("sac", *DDPG_LIKE)
EVERYWHERE = [
    *((x, PENDULUM if y == "Box" else CARTPOLE) for x, y in USUAL_ACTION.items()),
    *(("sac", CARTPOLE), ("ppo", PENDULUM)),
]
HOME = dict(EVERYWHERE[:-2])

LIST, BOX = DONE["Discrete, start"], DONE["Box"]
LISTS, BOXES = (partial(Sampled, SEEN["picture"], x) for x in (LIST, BOX))
HYBRID = partial(Sampled, spaces.Box(0, 255, (3, 8, 8), np.uint8), DONE["hybrid"])
UNTOLD = partial(
    Sampled,
    SEEN["float32"],
    spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,)))),
)


def shown(name: str, seen: str) -> Any:
    """Return what makes an environment that shows something to an algorithm."""
    return partial(Sampled, SEEN[seen], BOX if name in DDPG_LIKE else LIST)


def made_pole() -> gym.Env[Any, Any]:
    return CartPoleEnv()


def vectors(env: Any, mode: str = "SameStep") -> SyncVectorEnv:
    return SyncVectorEnv([env_maker(env)] * 2, autoreset_mode=mode)


def small(name: str) -> dict[str, Any]:
    """Return settings with which an iteration is short and has updates in it."""
    known = {field.name for field in fields(ALGORITHMS[name].config)}
    given = {key: x for key, x in SMALL.items() if key in known}
    return given | ({"num_steps": 8} if name in ON_POLICY else {})


def brief(name: str, env: Any, **more: Any) -> Agent:
    """Train for a few iterations."""
    settings = {**small(name), "total_steps": 32, "progress": False}
    return train(name, env, **settings | more)


def same_weights(one: Any, other: Any) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(
        torch.equal(x, theirs[key]) for key, x in ours.items()
    )


def models(name: str, size: int = 4, options: int = 2) -> dict[str, Any]:
    """Return models of the book; without options they are Pendulum's."""
    kind: Any = CategoricalQNetwork if name.startswith("rainbow") else QNetwork
    if "qnet" in ALGORITHMS[name].models:
        return {"qnet": kind(size, options)}
    if options:
        kind = ProbabilityActor if name in DDPG_LIKE else CategoricalActor
        actor = kind(size, options)
    else:
        kind = DeterministicActor if name in DDPG_LIKE else SquashedGaussianActor
        actor = kind(size, np.float32([-2]), np.float32([2]))
    critic: Any = ActionValue(size, options or 1)
    if name == "sac" and options:
        critic = QNetwork(size, options)
    return {"actor": actor, "critic": critic if name in FILLING else StateValue(size)}


def moody_models(*asked: Any) -> dict[str, Any]:
    """Return models with modes."""
    given = models(*asked)
    for model in given.values():
        model.net = moody(model.net[0].in_features, model.net[-1].out_features)
    return given


# --- What is refused ------------------------------------------------------------------

MASK = [[1, 0], [0, 1], [0, 0]]
REFUSED: list[tuple[Any, Any, dict[str, Any], str]] = [
    ("SARSA", CARTPOLE, {}, "got 'SARSA'$"),
    ("PP0", CARTPOLE, {}, "is it 'ppo'"),
    ("DQN", CARTPOLE, {"actor": QNetwork(4, 2)}, "must be qnet, got actor"),
    ("DQN", CARTPOLE, {"qnet": nn.Identity}, "got the class"),
    ("DQN", LISTS, {"encoder": nn.Linear(200, 3)}, "encoder must"),
    ("PPO", LISTS, {"normalize_obs": True}, "normalize must"),
    ("DQN", PENDULUM, {}, "DQN's action_space must be Discrete"),
    *(("PPO", env, {}, "env must be an id") for env in (gym.make(CARTPOLE), None)),
    *(
        (name, env, {"share_encoder": True}, "share_encoder")
        for name, env in (("a3c", CARTPOLE), ("dqn", CARTPOLE), ("td3", PENDULUM))
    ),
    ("PPO", UNTOLD, {}, "mask must be given"),
    ("PPO", CARTPOLE, {"mask": MASK}, "mask is for hybrid actions"),
    *(
        ("PPO", UNTOLD, {"mask": mask}, "mask must")
        for mask in (MASK[:2], [[2, 0]] * 3, "10", [[1], [0, 1]])
    ),
    ("DQN", vectors(made_pole), {"num_envs": 4}, "num_envs must be 2"),
    ("DQN", vectors(made_pole), {"wrappers": ["A"]}, "wrappers must"),
    ("DQN", vectors(made_pole), {"qnet": QNetwork(4, 3)}, "q_value must have shape"),
    ("PPO", vectors(made_pole, "Disabled"), {}, "NEXT_STEP or SAME_STEP"),
    *((x, vectors(made_pole), {}, "env must be an id") for x in ("A3C", "DQNApex")),
]


@pytest.mark.parametrize(("name", "env", "options", "words"), REFUSED)
def test_what_cannot_be_trained_is_said(name, env, options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        train(name, env, progress=False, **options)


def test_options_are_the_settings_of_all_algorithms_and_the_models():
    wanted: dict[str, Any] = get_type_hints(OwnModels)
    assert tuple(wanted) == MODELS
    for known in ALGORITHMS.values():
        for name, hint in get_type_hints(known.config).items():
            wanted[name] = wanted.get(name, hint) | hint
    assert get_type_hints(Options) == wanted


# --- Models of one's own --------------------------------------------------------------


@pytest.mark.parametrize("name", [x for x, row in ALGORITHMS.items() if row.models])
def test_a_model_of_ones_own_trains_and_comes_back_as_it_was_judged(name, tmp_path):
    given, obs = moody_models(name), np.full(4, 0.5)
    first = copy.deepcopy(given)
    agent = brief(name, CARTPOLE, **given)
    for key, model in given.items():
        now, then = (parameters_to_vector(x.parameters()) for x in (model, first[key]))
        assert not torch.equal(now, then)
    with left_alone(agent.policy):
        returns = [evaluate(agent.policy, CARTPOLE, 8).tolist() for _ in range(2)]
        assert returns[0] == returns[1], "nothing is dropped"
        action = agent.predict(obs)
        own = agent.act({"state": torch.full((1, 4), 0.5)})
        assert "qnet" not in given or own.item() == action
    saved = agent.save(tmp_path / "deep/my_agent")
    for wrong in ({}, {"encoder": Eye()}):
        with pytest.raises(ValueError, match="must be loaded with"):
            load(saved, **wrong)
    policy = load(saved, **moody_models(name))
    assert not any(modes(policy)), "it comes back in evaluation mode"
    assert evaluate(policy, CARTPOLE, 8).tolist() == returns[0]
    assert policy.predict(obs) == action


class TwoStates(nn.Module):
    """A Q network of two states, with a second result."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, place, angle):
        state = torch.cat([place, angle], 1)
        return self.layer(state), state.tanh()


# The order of the names is not that of the alphabet on purpose.
PART = spaces.Box(-1, 1, (2,))
PARTS = partial(
    Sampled, spaces.Dict(place=PART, angle=PART), spaces.Discrete(2, start=3)
)


@pytest.mark.parametrize("around", [lambda env: env, vectors], ids=["one", "many"])
def test_states_reach_a_model_by_their_names_and_all_results_come_back(
    around, tmp_path
):
    net = TwoStates()
    agent = brief("dqn", around(PARTS), qnet=net)
    place, angle = torch.rand(2, 5, 2)
    action, beside = agent.act({"place": place, "angle": angle})
    q, wanted = net(place, angle)
    assert torch.equal(action, q.argmax(1, keepdim=True))
    assert torch.equal(beside, wanted)
    obs = {"place": place[0].numpy(), "angle": angle[0].numpy()}
    for each in (agent, load(agent.save(tmp_path / "a"), qnet=TwoStates())):
        assert each.predict(obs) == 3 + action[0].item()


def test_a_model_that_breaks_its_contract_is_left_alone_unless_one_insists():
    net = moody_models("dqn", 4, 3)["qnet"]
    with left_alone(net), pytest.raises(ValueError, match="q_value must have shape"):
        brief("dqn", CARTPOLE, qnet=net)
    # A third value for a CartPole with two actions: the environment complains.
    with pytest.raises((AssertionError, IndexError, ValueError)):
        brief("dqn", CARTPOLE, qnet=net, check=False, epsilon_start=1.0)


@pytest.mark.parametrize("seen", ["float64", "flags", "Discrete", "seconds"])
@pytest.mark.parametrize("name", ["dqn", "a2c", "sac"])
def test_a_model_acts_on_what_its_environment_shows(name, seen):
    """It gets what it got in training: float32, unless whole numbers stay whole."""
    got, env = set(), shown(name, seen)

    def note(module, given, named):
        got.add(named["state"].dtype)
        return given, named | {"state": named["state"].float()}

    own = models(name, spaces.flatdim(SEEN[seen]), 3)
    for model in own.values():
        model.register_forward_pre_hook(note, with_kwargs=True)
    agent = brief(name, env, check=False, **own)
    agent.act({"state": torch.as_tensor(np.stack([flat_env(env).reset()[0]] * 3))})
    assert got == {torch.int64 if seen == "seconds" else torch.float32}


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        *((name, ()) for name in ALGORITHMS),
        *((name, (3, 0)) for name in ON_POLICY + FILLING),
    ],
)
def test_dropout_is_on_where_there_is_a_gradient_and_nowhere_else(
    name, asked, monkeypatch
):
    seen, forward = set(), nn.Dropout.forward

    def note(module, x):
        seen.add((module.training, torch.is_grad_enabled()))
        return forward(module, x)

    own = {} if name == "ppg" else moody_models(name, *asked)
    with small_learner(name, PENDULUM if asked else CARTPOLE, **own) as learner:
        monkeypatch.setattr(nn.Dropout, "forward", note)
        if name == "ppg":
            heads = learner.policy.network.network.heads
            heads.value_head = nn.Sequential(nn.Dropout(), heads.value_head)
        before = modes(learner.policy)
        for _ in range(3):
            learner.iterate()
        # A worker of A3C learns as it acts: moments that it kept would get lost.
        assert seen == {(False, False), (name != "a3c", True)}
        assert modes(learner.policy) == before
        own = getattr(learner, "learner", learner)
        if isinstance(own, OffPolicy):
            own.load_state_dict(own.state_dict())
            target = own.algorithm.target.network
            for copied in (target, copy.deepcopy(target)):
                assert not any(modes(copied))


# --- Runs -----------------------------------------------------------------------------


def test_a_saved_agent_is_never_written_over_and_never_half_written(
    tmp_path, monkeypatch
):
    agent = brief("a2c", CARTPOLE)
    agent.save(tmp_path / "a")
    before = {path: path.read_bytes() for path in tmp_path.glob("a/*")}
    with pytest.raises(FileExistsError):
        agent.save(tmp_path / "a")
    monkeypatch.setattr("shutil.copytree", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        agent.save(tmp_path / "b")
    assert {path: path.read_bytes() for path in tmp_path.glob("a/*")} == before
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("last", [20, 1000])
def test_a_training_that_fails_keeps_what_was_saved(last, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    few = {"num_envs": 1, "num_steps": 100, "checkpoint_interval": 2}
    env = partial(Counting, fails_at=last)
    with pytest.raises(ValueError, match="the pole is made of glass") as failure:
        train("ppo", env, total_steps=10_000, progress=False, **few)
    folders = [*tmp_path.glob("literate_rl_*")]
    assert len(folders) == (last == 1000)
    for folder in folders:
        assert failure.value.__notes__[-1].endswith(f"go on with resume={folder}")
        assert load(folder).network.actor[0].in_features == 2


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac", "td3"])
def test_our_policies_act_in_states_of_any_dtype(name):
    agent = brief(name, shown(name, "bytes"))
    state = torch.randint(0, 256, (5, 3), dtype=torch.uint8)
    action = agent.policy.act(state.float(), 0.0)
    for again in (state, state.double(), state.float()):
        assert torch.equal(agent.act({"state": again}), action)
    for wrong in ({"obs": state}, {"state": state[:, :2]}):
        with pytest.raises(ValueError, match="state"):
            agent.act(wrong)


@pytest.mark.parametrize(
    ("name", "forms"),
    [
        *((name, "acting") for name in ("ppo", "a3c", "ddpgapex")),
        *((name, "none") for name in ("rainbow", "impala", "ddpg", "td3", "sac")),
        *((name, "acting and the error") for name in ("dqn", "dqnper", "dqnapex")),
    ],
)
def test_a_training_says_which_fast_forms_it_was_handed(name, forms, capsys):
    env, asked = (PENDULUM, (3, 0)) if name in FILLING else (CARTPOLE, ())
    brief(name, env, progress=True)
    assert capsys.readouterr().out.startswith(f"fast forms: {forms}\n")
    brief(name, env, progress=True, **moody_models(name, *asked))
    assert capsys.readouterr().out.startswith("fast forms: none\n")


def test_a_training_says_how_many_steps_it_takes(tmp_path, capsys):
    agent = train("A2C", CARTPOLE, total_steps=100, num_envs=2, num_steps=16)
    assert capsys.readouterr().out.splitlines() == [
        "fast forms: acting",
        "steps: 128 for 100, because an iteration has 32",
        "watch it with show(agent.policy, agent.env), keep it with "
        "agent.save(directory)",
    ]
    assert agent.learner.step == 128
    saved = agent.save(tmp_path / "a")
    train("A2C", CARTPOLE, resume=saved, total_steps=160)
    _, said = capsys.readouterr().out.splitlines()
    assert said.endswith(f", kept in {saved}")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_iteration_has_its_steps_and_its_environments_are_closed(name, monkeypatch):
    made: list[Any] = []

    def noted(*arguments):
        made.append(make_envs(*arguments))
        return made[-1]

    monkeypatch.setattr(training, "make_envs", noted)
    with small_learner(name, HOME[name]) as learner:
        learner.iterate()
        assert learner.step == learner.config.steps_per_iteration
    assert made
    assert all(envs.closed for envs in made)


def test_prioritised_replay_has_the_exponent_of_the_paper():
    for name in ("dqn", "ddpg"):
        plain, preferring = (
            ALGORITHMS[x].settings(CARTPOLE) for x in (name, f"{name}per")
        )
        assert preferring == replace(plain, priority_exponent=0.6) != plain


# --- Encoders -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "encoder"),
    [
        *((x, None) for x in ("picture", "planes", "gray", "stack", "parts")),
        *((x, make_eye) for x in ("picture", "parts", "float32", "Discrete")),
    ],
)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_has_encoders_learns_comes_back_and_goes_on(name, seen, encoder, tmp_path):
    env, own = shown(name, seen), {"encoder": encoder} if encoder else {}
    kind = Eye if encoder else PartsEncoder if seen == "parts" else PictureEncoder
    told: list[list[Tensor]] = []

    def note(learner, _):
        parts = [x for x in learner.policy.modules() if isinstance(x, kind)]
        told.append([parameters_to_vector(x.parameters()).detach() for x in parts])

    agent = brief(name, env, callback=note, **own)
    # Each network has one with weights of its own, and all of them learn.
    assert told[0]
    for weights, later in zip(told[0], told[-1], strict=True):
        assert sum(torch.equal(weights, other) for other in told[0]) == 1
        assert not torch.equal(weights, later)
    run = agent.save(tmp_path / "run")
    assert same_weights(load(run, **own), agent.policy)
    again = train(name, env, resume=run, total_steps=48, progress=False, **own)
    assert again.learner.step >= 48


def test_a_module_is_copied_for_each_network():
    eye = Eye()
    policy: Any = brief("sac", LISTS, encoder=eye).policy
    eyes = [part for part in policy.modules() if isinstance(part, Eye)]
    assert len({id(x) for x in (*eyes, eye)}) == 4


@pytest.mark.parametrize("seen", ["picture", "gray", "planes", "stack"])
@pytest.mark.parametrize("name", ON_POLICY)
def test_bytes_are_kept_as_bytes_which_changes_nothing(name, seen, monkeypatch):
    ends: list[Any] = []
    project, got = PictureEncoder.project, set()

    def note(encoder, obs):
        got.add(obs.numpy().dtype)
        return project(encoder, obs)

    monkeypatch.setattr(PictureEncoder, "project", note)
    for kept in (SEEN[seen].dtype, np.dtype(np.float32)):
        for module in (agents, actors) if ends else ():
            monkeypatch.setattr(module, "kept_dtype", lambda *_: np.float32)
        with small_learner(name, shown(name, seen)) as learner:
            got.clear()
            learner.iterate()
        assert got == {kept}
        ends.append(learner.policy)
    assert same_weights(*ends)


@pytest.mark.parametrize(("seen", "sent"), [("uint32", "f4"), ("bytes", "u1")])
def test_actors_send_what_float32_can_hold(seen, sent):
    env, space = shown("dqn", seen), SEEN[seen]
    with small_learner("dqnapex", env) as learner:
        assert learner.layout["result"]["obs"].base == np.dtype(sent)
        learner.iterate()
        obs = learner.learner.sample().obs.double().numpy()
        assert (obs >= np.float32(space.low)).all()
        assert (obs <= np.float32(space.high)).all()
    brief("impala", env, actors=1)


SHARED = [
    *((name, env) for name in ON_POLICY for env in (LISTS, HYBRID)),
    *((name, BOXES) for name in ("ddpg", "hddpg", "td3", "sac")),
    *((name, LISTS) for name in ("ddpg", "td3", "sac")),
]


@pytest.mark.parametrize("encoder", [None, make_eye], ids=["chosen", "own"])
@pytest.mark.parametrize(("name", "env"), SHARED)
def test_a_shared_encoder_is_one_and_comes_back_as_one(name, env, encoder, tmp_path):
    own = {"encoder": encoder} if encoder else {}

    def number(policy):
        kind = Eye if encoder else PictureEncoder
        return sum(isinstance(part, kind) for part in policy.modules())

    agent = brief(name, env, share_encoder=True, **own)
    assert number(brief(name, env, **own).policy) > number(agent.policy) == 1
    saved = agent.save(tmp_path / "run")
    policy = load(saved, **own)
    assert same_weights(policy, agent.policy)
    again = train(name, env, resume=saved, total_steps=48, progress=False, **own)
    assert number(policy) == number(again.policy) == 1


@pytest.mark.parametrize(("name", "env"), SHARED[10:])
def test_critics_alone_move_a_shared_encoder(name, env):
    config = replace(ALGORITHMS[name].settings(""), share_encoder=True)
    with small_learner(name, env, config) as learner:
        learner.iterate()
        (eye,) = (x for x in learner.policy.modules() if isinstance(x, PictureEncoder))
        before = copy.deepcopy(eye)
        climbs = copy.deepcopy([x.detach() for x in learner.actor])
        learner.optimizer.state.clear()
        climb(learner, learner.sample().obs)
        assert same_weights(eye, before)
        assert any(not torch.equal(*x) for x in zip(climbs, learner.actor, strict=True))
        learner.learn()
        assert not same_weights(eye, before)


# --- Devices --------------------------------------------------------------------------


def small_config(name: str, env: str) -> Any:
    config = ALGORITHMS[name].settings(env)
    return replace(config, **small(name), normalize_obs=True)


def two_iterations(
    name: str, env: str, devices: tuple[Device, Device], folder: Path
) -> list[dict[str, float]]:
    """Return the metrics of a run that begins on one device and ends on another."""
    config, metrics = small_config(name, env), []
    for device in devices:
        with placing(device, tell=False) as place:
            learner = make_learner(name, env, config, {}, place=place)
            run = Run(folder, {"env": env}, resume=bool(metrics))
            with run, ended(learner):
                run.restore(learner)
                metrics.append(learner.iterate())
                run.save(learner)
        assert {x.device.type for x in learner.policy.state_dict().values()} == {"cpu"}
    return metrics


@pytest.mark.parametrize(("name", "env"), EVERYWHERE)
def test_an_algorithm_learns_and_resumes_on_any_device(name, env, tmp_path):
    wanted = two_iterations(name, env, ("cpu", "cpu"), tmp_path / "here")
    with elsewhere():
        there = two_iterations(name, env, ("cuda", "cpu"), tmp_path / "back")
        goes = two_iterations(name, env, ("cpu", "cuda"), tmp_path / "there")
    for got in (there, goes):
        assert got == [pytest.approx(x, 1e-4, 1e-4, nan_ok=True) for x in wanted]
    assert any(math.isfinite(x) for key, x in wanted[0].items() if "losses" in key)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "env"), EVERYWHERE)
def test_an_algorithm_learns_and_resumes_on_a_gpu(name, env, tmp_path):
    first, _ = two_iterations(name, env, ("cpu", "cuda"), tmp_path / "there")
    got, after = two_iterations(name, env, ("cuda", "cpu"), tmp_path / "back")
    # Which step is drawn by its priority may hang on the last digit.
    close = 1e-2 if any(x in name for x in ("per", "rainbow", "apex")) else 1e-3
    assert got == pytest.approx(first, close, close, nan_ok=True)
    assert first.keys() == after.keys()


LOGGED = [x for x in EVERYWHERE if hasattr(ALGORITHMS[x[0]].config, "log_interval")]


@pytest.mark.parametrize(("name", "env"), LOGGED)
def test_a_longer_row_of_the_log_changes_no_bit(name, env):
    config = small_config(name, env)
    each = config.steps_per_iteration
    config = replace(config, total_steps=10 * each, checkpoint_interval=3)
    states = []
    for times in (1, 2, 4):
        log = None if times == 1 else times * each
        learner = make_learner(name, env, replace(config, log_interval=log), {})
        with ended(learner):
            history = fit(learner, progress=False)
        states.append((learner.state_dict(), learner.policy.state_dict()))
        torch.testing.assert_close(
            states[-1], states[0], rtol=0, atol=0, equal_nan=True
        )
        ends = [*range(times, 10, times), 10]
        assert [row["step"] for row in history] == [each * end for end in ends]


def test_stored_settings_of_before_say_what_an_iteration_was():
    config, source = ALGORITHMS["dqn"].config, Path("settings.json")
    found = training.settings_of(config, {"config": {"log_interval": 40}}, source)
    assert found == config(iteration_steps=40)


class Odd(nn.Sequential):
    """A model with modes and moments, which knows where its states have been."""

    def __init__(self, hidden=8):
        layers = nn.Linear(4, hidden), nn.BatchNorm1d(hidden), nn.Dropout()
        super().__init__(*layers, nn.Linear(hidden, 2))
        self.seen: set[str] = set()

    def forward(self, state):
        self.seen.add(state.device.type)
        return super().forward(state)


def check_a_model_comes_back() -> None:
    net = Odd()
    before = net[0].weight
    agent = brief("dqn", CARTPOLE, qnet=net, device="cuda", check=False)
    assert net.seen == {training.best_device().type}
    # The same parameter, gradient and buffers are here, and whatever comes next works.
    state = torch.zeros(2, 4)
    assert net[0].weight is before
    assert {x.device for x in net.state_dict().values()} == {state.device}
    assert before.grad.device == net(state).device == state.device
    assert agent.act({"state": state}).device == state.device


def test_a_model_of_ones_own_comes_back():
    with elsewhere():
        check_a_model_comes_back()


@pytest.mark.gpu
def test_a_model_of_ones_own_comes_back_from_a_gpu():
    check_a_model_comes_back()


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
@pytest.mark.parametrize("place", ["fit", "fast_form"])
def test_a_model_comes_back_after_an_error(error, place, monkeypatch):
    net, moved = Odd(), []

    def fails(*arguments):
        moved.append(net[0].weight.device)
        raise error

    monkeypatch.setattr(training, place, fails)
    with elsewhere(), pytest.raises(type(error)):
        brief("dqn", CARTPOLE, qnet=net, device="cuda", check=False)
    assert moved == [ELSEWHERE]
    assert {x.device.type for x in net.state_dict().values()} == {"cpu"}


def test_each_part_goes_back_to_its_own_device():
    with elsewhere():
        net = Odd().to(ELSEWHERE)
        net[3].to("cpu")
        for device in ("auto", "cpu"):
            net.seen.clear()
            brief("dqn", CARTPOLE, qnet=net, device=device, check=False)
            assert net.seen == {"cpu" if device == "cpu" else ELSEWHERE.type}
            assert net[3].weight.device.type == "cpu"
            assert isinstance(net[0].weight, Far)
            assert isinstance(net[1].running_mean, Far)


def place_of(net: nn.Module, device: Device = "auto") -> str:
    """Return where a network is trained in batches of 1024."""
    space = spaces.Box(-1.0, 1.0, (4,))
    policy = make_qnet_policy(space, spaces.Discrete(2), net)
    with placing(device) as place:
        place(policy, ALGORITHMS["dqn"].config(batch_size=1024))
        return training.device_of(net).type


def test_a_large_network_goes_where_it_pays_and_a_small_one_stays(capsys):
    few, many = Odd(), Odd(3_000)
    assert (place_of(few), place_of(many)) == ("cpu", "cpu")
    assert capsys.readouterr().out == "", "there is no choice here"
    with elsewhere():
        assert (place_of(few), place_of(many)) == ("cpu", ELSEWHERE.type)
        one, other = capsys.readouterr().out.splitlines()
        assert one.startswith("device: cpu (an update is 0.2 million multiply-adds")
        assert other.startswith("device: meta (an update is 83.0 million")
        assert place_of(few, "cuda") == ELSEWHERE.type
        assert capsys.readouterr().out == "", "nobody asked"


@pytest.mark.parametrize(
    ("name", "changes", "rows"),
    [
        ("ppg", {"num_minibatches": 4}, 30),
        ("impala", {"batch_size": 5}, 200),
        ("impala", {"batch_size": 5, "actors": 2}, 120),
        ("sac", {"batch_size": 77}, 77),
    ],
)
def test_rows_of_an_update(name, changes, rows):
    config = ALGORITHMS[name].config(num_envs=3, num_steps=40, **changes)
    assert config.rows_per_update == rows


def test_two_devices_do_not_meet():
    here = torch.ones(3)
    with elsewhere():
        there = here.to(ELSEWHERE)
        for wrong in (lambda: there + here, lambda: here.add_(there), there.numpy):
            with pytest.raises((RuntimeError, TypeError)):
                wrong()


# --- Environments ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "name"),
    [
        (CartPoleEnv, "gymnasium.envs.classic_control.cartpole:CartPoleEnv"),
        ("test_training:made_pole", "test_training:made_pole"),
        (lambda: CartPoleEnv(), "<lambda of test_training>"),
    ],
)
def test_an_environment_is_an_id_a_class_or_a_function(env, name, tmp_path):
    agent = brief("a2c", env)
    saved = agent.save(tmp_path / "a")
    assert json.loads((saved / "settings.json").read_text())["env"] == name
    assert len(evaluate(load(saved), agent.env, 2)) == 2
    again = train("A2C", env, resume=saved, total_steps=64, progress=False)
    assert again.history[0]["step"] > 32
    del again
    assert saved.exists(), "only what nobody has kept goes with its agent"
    again = f"--env {name}" if ":" in name else "--env .* in Python"
    with pytest.raises(SystemExit, match=f"hand over again {again}"):
        main(["a2c", "--resume", str(saved)])


@pytest.mark.parametrize(
    ("name", "env"),
    [
        *((name, made_pole) for name in ("ppo", "ppg", "a2c", "impala", "rainbow")),
        *((name, LISTS) for name in ("ppo", "impala", "dqn", "sac")),
        *((name, shown(name, "parts")) for name in ("a2c", "td3")),
        ("a2c", shown("a2c", "Discrete")),
    ],
)
def test_a_vector_environment_is_what_train_would_make(name, env):
    envs = vectors(env)
    agent = brief(name, envs)
    assert not envs.closed, "it is the user's"
    envs.close()
    assert same_weights(brief(name, env).policy, agent.policy)


@pytest.mark.parametrize("name", ["ppo", "dqn", "impala"])
def test_a_vector_environment_may_reset_a_step_later(name, tmp_path):
    envs = gym.make_vec(CARTPOLE, 4)
    saved = train(name, envs, total_steps=500, progress=False).save(tmp_path / "a")
    again = train(name, envs, resume=saved, total_steps=1000, progress=False)
    assert again.learner.step >= 1000


class Doubled(gym.RewardWrapper[Any, Any]):
    def reward(self, reward):
        return 2 * float(reward)


AROUND = ["TimeAwareObservation", Doubled, "FrameStackObservation(stack_size=3)"]
NAMES = [AROUND[0], "test_training:Doubled", AROUND[2]]


def test_wrappers_are_stored_and_go_where_the_run_goes(tmp_path):
    agent = brief("ppo", CARTPOLE, wrappers=AROUND)
    saved = agent.save(tmp_path / "a")
    stored = json.loads((saved / "settings.json").read_text())
    assert (stored["env"], stored["wrappers"]) == (CARTPOLE, NAMES)
    assert agent.learner.config.gamma == ALGORITHMS["ppo"].settings(CARTPOLE).gamma
    with pytest.raises(ValueError, match=f"hand over again wrappers .*{NAMES[1]}"):
        load_env(saved)
    # The agent is judged with them.
    policy, returns = load(saved), evaluate(agent.policy, agent.env, 2)
    again = evaluate(policy, load_env(saved, wrappers=AROUND), 2)
    assert again.tolist() == returns.tolist()
    assert (returns % 2 == 0).all()
    with pytest.raises(ValueError, match=r"must show 15 numbers, .* got 4"):
        evaluate(policy, CARTPOLE)
    # Gymnasium's own need not be named again.
    named = brief("a2c", CARTPOLE, wrappers=AROUND[::2]).save(tmp_path / "named")
    assert (evaluate(load(named), load_env(named), 1) > 0).all()
    before = (saved / "checkpoint.pt").read_bytes()
    goes_on = partial(train, "PPO", CARTPOLE, resume=saved, progress=False)
    for wrong in (["ClipAction"], AROUND[:2], [*AROUND, "ClipAction"]):
        with pytest.raises(ValueError, match="the run has wrappers"):
            goes_on(wrappers=wrong)
    assert (saved / "checkpoint.pt").read_bytes() == before
    assert goes_on(wrappers=AROUND, total_steps=64).learner.step == 64


def test_a_wrapper_that_writes_files_is_a_command(tmp_path):
    saved = brief("a2c", CARTPOLE).save(tmp_path / "a")
    stored = json.loads((saved / "settings.json").read_text())
    stored["wrappers"] = [f"RecordVideo({str(tmp_path / 'films')!r})"]
    (saved / "settings.json").write_text(json.dumps(stored))
    for call in (load_env, lambda x: train("A2C", CARTPOLE, resume=x)):
        with pytest.raises(ValueError, match="may not choose whose code"):
            call(saved)
    assert not (tmp_path / "films").exists()


SENT: dict[str, Any] = {"actors": 1, "transport": "shared"}


def test_actors_in_other_processes_have_encoders_wrappers_and_classes():
    """Also of an environment that only this process has registered."""
    gym.register("tests/Here-v0", "worlds:Counting", max_episode_steps=10)
    around = ["TimeAwareObservation", gym.wrappers.TimeAwareObservation]
    agent: Any = brief("impala", "tests/Here-v0", wrappers=around, **SENT)
    assert agent.policy.network.actor[0].in_features == 4
    assert agent.history[-1]["step"] == 32
    agent = brief("impala", LISTS, **SENT)
    assert isinstance(agent.policy.network.actor[0], PictureEncoder)


@pytest.mark.parametrize(
    ("what", "env", "options"),
    [
        ("env", lambda: CartPoleEnv(), {}),
        ("env", CARTPOLE, {"wrappers": [lambda env: env]}),
        ("encoder", CARTPOLE, {"encoder": lambda space: Hidden(*space.shape)}),
    ],
)
def test_what_other_processes_cannot_import_is_said(what, env, options):
    with pytest.raises(ValueError, match=f"^{what} must be something that actors"):
        brief("impala", env, **SENT, **options)
    # Where no process is needed it will do.
    assert brief("impala", env, actors=1, **options).learner.step >= 32


Hidden = type("Nowhere", (Eye,), {})


@pytest.mark.parametrize("name", ON_POLICY)
def test_a_space_that_does_not_tell_its_mask_is_given_one(name, tmp_path):
    agent = brief(name, UNTOLD, mask=torch.tensor(MASK).bool())
    saved = agent.save(tmp_path / "a")
    goes_on = partial(train, name, UNTOLD, resume=saved, progress=False)
    with pytest.raises(ValueError, match=r"the run has mask .*, not"):
        goes_on(mask=np.ones((3, 2)))
    for policy in (agent.policy, load(saved), goes_on(total_steps=48).policy):
        assert policy.actions.mask.int().tolist() == MASK


# --- Episodes that are cut off --------------------------------------------------------


class Steps(Sampled):
    """Ends after some steps."""

    def __init__(self, length):
        super().__init__(PART, spaces.Discrete(2))
        self.length = length

    def reset(self, **told):
        self.steps = 0
        return super().reset(**told)

    def step(self, action):
        self.steps += 1
        seen, *_ = super().step(action)
        return seen, 1.0, self.steps == self.length, False, {}


def told_of_resets(name: str, length: int) -> list[str]:
    """Train over three checkpoints, and return what was said of cut off episodes."""
    config = replace(ALGORITHMS[name].settings(""), checkpoint_interval=6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with small_learner(name, partial(Steps, length), config) as learner:
            for _ in range(19):
                learner.iterate()
    return [str(x.message) for x in caught if "at each checkpoint" in str(x.message)]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_episode_longer_than_the_time_between_checkpoints_is_told_once(name):
    (words,) = told_of_resets(name, 10**6)
    longest, some, all_ = map(int, re.findall(r"\d+", words))
    assert some == all_
    # One step decides: what ends just in time is seen, and nothing is said.
    assert told_of_resets(name, longest) == []
    assert told_of_resets(name, longest + 1) == [words]
