"""Training in one call: models of one's own are checked, trained, saved, loaded."""

import copy
import json
import math
import re
import warnings
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from elsewhere import ELSEWHERE, elsewhere
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
from literate_rl.apps.commands import main
from literate_rl.apps.training import (
    ALGORITHMS,
    Agent,
    Device,
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
from literate_rl.data.makers import env_maker
from literate_rl.learners.loop import OffPolicy
from literate_rl.nets.encoders import PartsEncoder
from literate_rl.nets.pictures import PictureEncoder
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import (
    Run,
    fit,
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


def vectors(env: Any) -> SyncVectorEnv:
    return SyncVectorEnv([env_maker(env)] * 2, autoreset_mode="SameStep")


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
    ("PP0", CARTPOLE, {}, "is it 'ppo'"),
    ("DQN", CARTPOLE, {"actor": QNetwork(4, 2)}, "must be qnet, got actor"),
    ("PPO", gym.make(CARTPOLE), {}, "env must be an id"),
    ("PPO", UNTOLD, {}, "mask must be given"),
    ("PPO", UNTOLD, {"mask": MASK[:2]}, "mask must"),
    ("DQN", vectors(made_pole), {"num_envs": 4}, "num_envs must be 2"),
    ("A3C", vectors(made_pole), {}, "env must be an id"),
]


@pytest.mark.parametrize(("name", "env", "options", "words"), REFUSED)
def test_what_cannot_be_trained_is_said(name, env, options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        train(name, env, progress=False, **options)


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
    with pytest.raises(ValueError, match="must be loaded with"):
        load(saved)
    policy = load(saved, **moody_models(name))
    assert not any(modes(policy)), "it comes back in evaluation mode"
    assert evaluate(policy, CARTPOLE, 8).tolist() == returns[0]


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


def test_states_reach_a_model_by_their_names_and_all_results_come_back(tmp_path):
    net = TwoStates()
    agent = brief("dqn", PARTS, qnet=net)
    place, angle = torch.rand(2, 5, 2)
    action, beside = agent.act({"place": place, "angle": angle})
    q, wanted = net(place, angle)
    assert torch.equal(action, q.argmax(1, keepdim=True))
    assert torch.equal(beside, wanted)
    obs = {"place": place[0].numpy(), "angle": angle[0].numpy()}
    for each in (agent, load(agent.save(tmp_path / "a"), qnet=TwoStates())):
        assert each.predict(obs) == 3 + action[0].item()


def test_a_model_that_breaks_its_contract_is_left_alone():
    net = moody_models("dqn", 4, 3)["qnet"]
    with left_alone(net), pytest.raises(ValueError, match="q_value must have shape"):
        brief("dqn", CARTPOLE, qnet=net)


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


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_our_policies_act_in_states_of_any_dtype(name):
    agent = brief(name, shown(name, "bytes"))
    state = torch.randint(0, 256, (5, 3), dtype=torch.uint8)
    action = agent.policy.act(state.float(), 0.0)
    for again in (state, state.double()):
        assert torch.equal(agent.act({"state": again}), action)


@pytest.mark.parametrize(
    ("name", "forms"),
    [
        ("a3c", "acting"),
        ("sac", "none"),
        ("dqnapex", "acting and the error"),
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
    forms, steps, said = capsys.readouterr().out.splitlines()
    assert forms == "fast forms: acting"
    assert steps == "steps: 128 for 100, because an iteration has 32"
    assert "keep it with agent.save" in said
    assert agent.learner.step == 128
    saved = agent.save(tmp_path / "a")
    train("A2C", CARTPOLE, resume=saved, total_steps=160)
    assert capsys.readouterr().out.endswith(f"kept in {saved}\n")


@pytest.mark.parametrize("name", ["dqn", "ddpg"])
def test_prioritised_replay_has_the_exponent_of_the_paper(name):
    plain, more = (ALGORITHMS[x].settings(CARTPOLE) for x in (name, f"{name}per"))
    assert more == replace(plain, priority_exponent=0.6) != plain


# --- Encoders -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "seen", "encoder"),
    [
        *((name, "parts", make) for name in ALGORITHMS for make in (None, make_eye)),
        *(("dqn", x, None) for x in ("picture", "planes", "gray", "stack")),
        *(("ppo", x, make_eye) for x in ("float32", "Discrete")),
        ("ppo", "picture", Eye()),
    ],
)
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


@pytest.mark.parametrize("name", ON_POLICY)
def test_bytes_are_kept_as_bytes_which_changes_nothing(name, monkeypatch):
    ends: list[Any] = []
    project, got = PictureEncoder.project, set()

    def note(encoder, obs):
        got.add(obs.dtype)
        return project(encoder, obs)

    monkeypatch.setattr(PictureEncoder, "project", note)
    for kept in (torch.uint8, torch.float32):
        for module in (agents, actors) if ends else ():
            monkeypatch.setattr(module, "kept_dtype", lambda *_: np.float32)
        with small_learner(name, shown(name, "picture")) as learner:
            got.clear()
            learner.iterate()
        assert got == {kept}
        ends.append(learner.policy)
    assert same_weights(*ends)


OFF_POLICY = [(name, BOXES) for name in ("ddpg", "td3", "sac")] + [("sac", LISTS)]


@pytest.mark.parametrize(
    ("name", "env"),
    [("ppo", HYBRID), *((name, LISTS) for name in ON_POLICY), *OFF_POLICY],
)
def test_a_shared_encoder_is_one_and_comes_back_as_one(name, env, tmp_path):
    own = {"encoder": make_eye}
    agent = brief(name, env, share_encoder=True, **own)
    saved = agent.save(tmp_path / "run")
    policy = load(saved, **own)
    assert same_weights(policy, agent.policy)
    again = train(name, env, resume=saved, total_steps=48, progress=False, **own)
    for each in (agent.policy, policy, again.policy):
        assert sum(isinstance(part, Eye) for part in each.modules()) == 1


@pytest.mark.parametrize(("name", "env"), OFF_POLICY)
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


GPU = pytest.param(nullcontext, marks=pytest.mark.gpu, id="gpu")


@pytest.mark.parametrize("place", [elsewhere, GPU])
@pytest.mark.parametrize(("name", "env"), EVERYWHERE)
def test_an_algorithm_learns_and_resumes_on_any_device(name, env, place, tmp_path):
    wanted = two_iterations(name, env, ("cpu", "cpu"), tmp_path / "here")
    with place():
        there = two_iterations(name, env, ("cuda", "cpu"), tmp_path / "back")
        goes = two_iterations(name, env, ("cpu", "cuda"), tmp_path / "there")
    # Which step is drawn by its priority may hang on the last digit.
    drawn = place is not elsewhere and any(x in name for x in ("per", "bow", "apex"))
    close = 1e-2 if drawn else 1e-3
    for got in (there, goes):
        assert got == [pytest.approx(x, close, close, nan_ok=True) for x in wanted]
    assert any(math.isfinite(x) for key, x in wanted[0].items() if "losses" in key)


@pytest.mark.parametrize(("name", "env"), [("dqnper", CARTPOLE), ("sac", PENDULUM)])
def test_a_longer_row_of_the_log_changes_no_bit(name, env):
    config = small_config(name, env)
    each = config.steps_per_iteration
    states = []
    for times, more in ((1, {}), (4, {"log_interval": 4 * each})):
        longer = replace(config, total_steps=10 * each, checkpoint_interval=3, **more)
        learner = make_learner(name, env, longer, {})
        with ended(learner):
            history = fit(learner, progress=False)
        states.append((learner.state_dict(), learner.policy.state_dict()))
        ends = [*range(times, 10, times), 10]
        assert [row["step"] for row in history] == [each * end for end in ends]
    torch.testing.assert_close(*states, rtol=0, atol=0, equal_nan=True)


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


@pytest.mark.parametrize("place", [elsewhere, GPU])
def test_a_model_of_ones_own_comes_back(place):
    net = Odd()
    before, state = net[0].weight, torch.zeros(2, 4)
    with place():
        agent = brief("dqn", CARTPOLE, qnet=net, device="cuda", check=False)
        assert net.seen == {training.best_device().type}
    # The same parameter, gradient and buffers are here, and whatever comes next works.
    assert net[0].weight is before
    assert {x.device for x in net.state_dict().values()} == {state.device}
    assert before.grad.device == agent.act({"state": state}).device == state.device


@pytest.mark.parametrize("place", ["fit", "fast_form"])
def test_a_model_comes_back_after_an_error(place, monkeypatch):
    net, moved = Odd(), []

    def fails(*arguments):
        moved.append(net[0].weight.device)
        raise KeyboardInterrupt

    monkeypatch.setattr(training, place, fails)
    with elsewhere(), pytest.raises(KeyboardInterrupt):
        brief("dqn", CARTPOLE, qnet=net, device="cuda", check=False)
    assert moved == [ELSEWHERE]
    assert {x.device.type for x in net.state_dict().values()} == {"cpu"}


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


def test_rows_of_an_update():
    sizes, few = {"num_envs": 3, "num_steps": 40}, {"batch_size": 5}
    for name, changes, rows in (
        ("ppg", {"num_minibatches": 4}, 30),
        ("impala", few, 200),
        ("sac", {"batch_size": 77}, 77),
    ):
        config = ALGORITHMS[name].config(**sizes, **changes)
        assert config.rows_per_update == rows


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
    with pytest.raises(SystemExit, match="hand over again --env"):
        main(["a2c", "--resume", str(saved)])


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("ppg", made_pole),
        *((name, LISTS) for name in ("impala", "dqn", "sac")),
        ("td3", shown("td3", "parts")),
    ],
)
def test_a_vector_environment_is_what_train_would_make(name, env):
    envs = vectors(env)
    agent = brief(name, envs)
    assert not envs.closed, "it is the user's"
    envs.close()
    assert same_weights(brief(name, env).policy, agent.policy)


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
    goes_on = partial(train, "PPO", CARTPOLE, resume=saved, progress=False)
    with pytest.raises(ValueError, match="the run has wrappers"):
        goes_on(wrappers=AROUND[:2])
    assert goes_on(wrappers=AROUND, total_steps=64).learner.step == 64


def test_a_wrapper_that_writes_files_is_a_command(tmp_path):
    saved = brief("a2c", CARTPOLE).save(tmp_path / "a")
    stored = json.loads((saved / "settings.json").read_text())
    stored["wrappers"] = [f"RecordVideo({str(tmp_path / 'films')!r})"]
    (saved / "settings.json").write_text(json.dumps(stored))
    for call in (load_env, lambda x: train("A2C", CARTPOLE, resume=x)):
        with pytest.raises(ValueError, match="may not choose whose code"):
            call(saved)


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
        ("encoder", CARTPOLE, {"encoder": lambda space: Hidden(*space.shape)}),
    ],
)
def test_what_other_processes_cannot_import_is_said(what, env, options):
    with pytest.raises(ValueError, match=f"^{what} must be something that actors"):
        brief("impala", env, **SENT, **options)


Hidden = type("Nowhere", (Eye,), {})


@pytest.mark.parametrize("name", ["ppo", "ppg"])
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
    with (
        warnings.catch_warnings(record=True, action="always") as caught,
        small_learner(name, partial(Steps, length), config) as learner,
    ):
        for _ in range(19):
            learner.iterate()
    return [str(x.message) for x in caught if "at each checkpoint" in str(x.message)]


# One of each kind of collector.
@pytest.mark.parametrize("name", ["ppo", "dqn", "impala", "a3c", "dqnapex"])
def test_an_episode_longer_than_the_time_between_checkpoints_is_told_once(name):
    (words,) = told_of_resets(name, 10**6)
    longest, some, all_ = map(int, re.findall(r"\d+", words))
    assert some == all_
    # One step decides: what ends just in time is seen, and nothing is said.
    assert told_of_resets(name, longest) == []
    assert told_of_resets(name, longest + 1) == [words]
