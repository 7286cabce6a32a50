"""Training in one call: models of one's own are checked, trained, saved, loaded."""

import copy
import json
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
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
from gymnasium.wrappers import TimeAwareObservation
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
    train_a_little,
)
from literate_rl.actors import actors
from literate_rl.actors.actors import actors_settings
from literate_rl.apps import training
from literate_rl.apps.cli import main
from literate_rl.apps.doctor import look
from literate_rl.apps.training import (
    ALGORITHMS,
    Agent,
    Device,
    Options,
    algorithm_named,
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
from literate_rl.check.contracts import ContractError
from literate_rl.check.own_models import make_qnet_policy
from literate_rl.data import agents
from literate_rl.data.agents import make_envs
from literate_rl.data.episodes import env_maker
from literate_rl.data.worlds import Moving
from literate_rl.ground.nests import MODELS
from literate_rl.learners.loop import OffPolicy
from literate_rl.learners.ppo import PPO
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
    record_video,
    show,
)

CARTPOLE, PENDULUM, MOVING = "CartPole-v1", "Pendulum-v1", "literate_rl/Moving-v0"
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
HYBRID = partial(
    Sampled, spaces.Box(0, 255, (3, 8, 8), np.uint8), Moving().action_space
)
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
    (PPO, CARTPOLE, {}, "algorithm must be a text"),
    ("SARSA", CARTPOLE, {}, "got 'SARSA'$"),
    ("", CARTPOLE, {}, "got ''$"),
    ("PP0", CARTPOLE, {}, "is it 'ppo'"),
    ("RainbowNetwork", CARTPOLE, {}, "is it 'rainbow'"),
    ("Apex", CARTPOLE, {}, "'dqnapex' or 'rainbowapex' or 'ddpgapex'"),
    ("PPO", CARTPOLE, {"totalsteps": 3}, "is it total_steps"),
    ("PPO", CARTPOLE, {"lr": 0.1}, "is it learning_rate"),
    ("PPO", CARTPOLE, {"gae_lambda": 0.1}, "is it lambda_"),
    ("PPO", CARTPOLE, {"hidden": 64}, "'hidden' .PPO and its relatives"),
    ("SAC", CARTPOLE, {"alpha": 0.2}, "temperature is SAC's"),
    ("A2C", CARTPOLE, {"epsilon": 0.2}, "rmsprop_epsilon"),
    ("DQNApex", CARTPOLE, {"rollout_len": 4, "log_interval": 9}, "log_interval must"),
    ("DQN", CARTPOLE, {"device": "gpu"}, "'cpu' or 'cuda'"),
    ("DQN", CARTPOLE, {"device": "cuda"}, "cpu or auto where .* no CUDA"),
    ("DQN", CARTPOLE, {"actor": QNetwork(4, 2)}, "must be qnet, got actor"),
    ("PPO", CARTPOLE, {"actor": QNetwork(4, 2)}, "must be actor and critic"),
    ("PPG", CARTPOLE, {"qnet": QNetwork(4, 2)}, "must be none, got qnet"),
    ("DQN", CARTPOLE, {"qnet": nn.Identity}, "got the class"),
    ("DQN", LISTS, {"encoder": nn.Linear(200, 3)}, "encoder must have its number"),
    ("DQN", LISTS, {"encoder": Eye(), "qnet": nn.Linear(3, 2)}, "must be qnet"),
    ("PPO", LISTS, {"normalize_obs": True}, "normalize must be False"),
    ("DQN", PENDULUM, {}, "DQN's action_space must be Discrete"),
    ("DQN", "NoSuch-v0", {}, "NoSuch-v0"),
    *(
        ("PPO", env, {}, "env must be an id, a class")
        for env in (gym.make(CARTPOLE), 5, None, [CARTPOLE])
    ),
    *(
        (name, env, {"share_encoder": True}, "share_encoder")
        for name, env in (
            *(("ppo", CARTPOLE), ("a3c", CARTPOLE), ("impala", MOVING)),
            *(("dqn", CARTPOLE), ("sac", CARTPOLE), ("td3", PENDULUM)),
        )
    ),
    ("PPO", UNTOLD, {}, "mask must be given"),
    ("PPO", CARTPOLE, {"mask": MASK}, "mask is for hybrid actions"),
    ("SAC", UNTOLD, {"mask": MASK}, "mask is for hybrid actions"),
    ("PPO", UNTOLD, {"mask": MASK[:2]}, "mask must have a row"),
    *(
        ("PPO", UNTOLD, {"mask": mask}, "mask must be a table of zeros and ones")
        for mask in ([1, 0], [[2, 0]] * 3, "10", [[1], [0, 1]])
    ),
    ("DQN", vectors(made_pole), {"num_envs": 4}, "num_envs must be 2"),
    ("DQN", vectors(made_pole), {"num_envs": 2, "wrappers": ["A"]}, "wrappers must"),
    ("DQN", vectors(made_pole), {"qnet": QNetwork(4, 3)}, "q_value must have shape"),
    ("PPO", vectors(made_pole, "Disabled"), {}, "NEXT_STEP or SAME_STEP"),
    *(
        (name, vectors(made_pole), more, "actors make environments of their own")
        for name, more in (("A3C", {}), ("DQNApex", {}), ("impala", {"actors": 1}))
    ),
]


@pytest.mark.parametrize(("name", "env", "options", "words"), REFUSED)
def test_what_cannot_be_trained_is_said(
    name: Any, env: Any, options: Any, words: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        train(name, env, progress=False, **options)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_numbers_beyond_float32_and_weights_below_zero_are_refused(name: str) -> None:
    config = ALGORITHMS[name].config
    for field in fields(config):
        if type(field.default) is float:
            for x in (1e39, -1.0) if field.name.endswith("_weight") else (1e39,):
                with pytest.raises(ValueError, match=field.name):
                    config(**{field.name: x})


def test_what_an_agent_is_not_is_said() -> None:
    agent, state = brief("ppo", vectors(made_pole)), np.zeros((2, 4))
    assert agent.act({"state": state}).shape == (2,)
    calls: dict[str, Any] = {
        "agent.policy": lambda: evaluate(agent, CARTPOLE),  # type: ignore[arg-type]
        "env must be an id": lambda: show(agent.policy, agent.env),
        "directory must be": lambda: look(agent),  # type: ignore[arg-type]
        "the key 'state'": lambda: agent.act({"obs": state}),
        r"shape \(B, 4\)": lambda: agent.act({"state": state[:, :3]}),
    }
    for words, call in calls.items():
        with pytest.raises((TypeError, ValueError), match=words):
            call()


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *((name.upper(), name) for name in ALGORITHMS),
        *(("PPGAlgorithm", "ppg"), ("DiscreteSAC", "sac"), ("DQN-Per", "dqnper")),
        ("rainbow apex", "rainbowapex"),
    ],
)
def test_an_algorithm_has_the_name_of_its_class(name: str, key: str) -> None:
    assert algorithm_named(name) == key


def test_options_are_the_settings_of_all_algorithms_and_the_models() -> None:
    wanted: dict[str, Any] = get_type_hints(OwnModels)
    assert tuple(wanted) == MODELS
    for known in ALGORITHMS.values():
        for name, hint in get_type_hints(known.config).items():
            wanted[name] = wanted.get(name, hint) | hint
    assert get_type_hints(Options) == wanted


# --- Models of one's own --------------------------------------------------------------


@pytest.mark.parametrize("name", [x for x, row in ALGORITHMS.items() if row.models])
def test_a_model_of_ones_own_trains_and_comes_back_as_it_was_judged(
    name: str, tmp_path: Path
) -> None:
    given = moody_models(name)
    first = copy.deepcopy(given)
    agent = brief(name, CARTPOLE, **given)
    for key, model in given.items():
        pairs = zip(model.parameters(), first[key].parameters(), strict=True)
        assert any(not torch.equal(*pair) for pair in pairs)
    with left_alone(agent.policy):
        returns = evaluate(agent.policy, CARTPOLE, 8).tolist()
        again = evaluate(agent.policy, CARTPOLE, 8).tolist()
        assert again == returns, "nothing is dropped"
        agent.act({"state": torch.randn(1, 4)})  # one state will do
    saved = agent.save(tmp_path / "deep/my_agent")
    for wrong in ({}, {"encoder": Eye()}):
        with pytest.raises(ValueError, match="must be loaded with"):
            load(saved, **wrong)
    policy = load(saved, **moody_models(name))
    assert not any(modes(policy)), "it comes back in evaluation mode"
    assert evaluate(policy, CARTPOLE, 8).tolist() == returns


class TwoStates(nn.Module):
    """A Q network of two states, with a second result."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, place: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.cat([place, angle], 1)
        return self.layer(state), state.tanh()


# The order of the names is not that of the alphabet on purpose.
PART = spaces.Box(-1, 1, (2,))
PARTS = partial(
    Sampled, spaces.Dict(place=PART, angle=PART), spaces.Discrete(2, start=3)
)


@pytest.mark.parametrize("around", [lambda env: env, vectors], ids=["one", "many"])
def test_states_reach_a_model_by_their_names_and_all_results_come_back(
    around: Any, tmp_path: Path
) -> None:
    net = TwoStates()
    agent = brief("dqn", around(PARTS), qnet=net)
    place, angle = torch.rand(2, 5, 2)
    action, beside = agent.act({"place": place, "angle": angle})
    q, wanted = net(place, angle)
    assert torch.equal(action, q.argmax(1, keepdim=True))
    assert torch.equal(beside, wanted)
    # From a flat observation the parts come in the order in which Gymnasium lays them.
    obs = {"place": place[0].numpy(), "angle": angle[0].numpy()}
    row = torch.as_tensor(spaces.flatten(PARTS().observation_space, obs))
    torch.testing.assert_close(agent.policy(row[None]), q[:1])
    for each in (agent, load(agent.save(tmp_path / "a"), qnet=TwoStates())):
        assert each.predict(obs) == 3 + action[0].item()


def test_a_distribution_acts_by_its_mean() -> None:
    net, state = CategoricalQNetwork(4, 2, atom_num=11), torch.randn(3, 4)
    agent = brief("rainbow", CARTPOLE, qnet=net, value_min=0.0, value_max=100.0)
    mean = net(state) @ torch.linspace(0.0, 100.0, 11)
    assert torch.equal(agent.act({"state": state}), mean.argmax(1, keepdim=True))


def test_a_model_that_breaks_its_contract_is_not_trained_unless_one_insists() -> None:
    net = QNetwork(4, 3)
    before = copy.deepcopy(net)
    with pytest.raises(ContractError, match=r"q_value must have shape \(5, 2\)"):
        brief("dqn", CARTPOLE, qnet=net)
    assert same_weights(net, before)
    # A third value for a CartPole with two actions: the environment complains.
    with pytest.raises((AssertionError, IndexError, ValueError)):
        brief("dqn", CARTPOLE, qnet=net, check=False, epsilon_start=1.0)


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        *((seen, torch.float32) for seen in ("float64", "flags", "Discrete")),
        ("seconds", torch.int64),
    ],
)
@pytest.mark.parametrize("name", ["dqn", "a2c", "sac"])
def test_a_model_acts_on_what_its_environment_shows(
    name: str, seen: str, wanted: Any
) -> None:
    """It gets what it got in training: float32, unless whole numbers stay whole."""
    got, env = set(), shown(name, seen)

    def note(module: nn.Module, given: Any, named: Any) -> Any:
        got.add(named["state"].dtype)
        return given, named | {"state": named["state"].float()}

    own = models(name, spaces.flatdim(SEEN[seen]), 3)
    for model in own.values():
        model.register_forward_pre_hook(note, with_kwargs=True)
    agent = brief(name, env, check=False, **own)
    agent.act({"state": torch.as_tensor(np.stack([flat_env(env).reset()[0]] * 3))})
    assert got == {wanted}


def test_a_look_at_a_model_of_ones_own_leaves_it_alone() -> None:
    qnet = moody_models("rainbow")["qnet"]
    with left_alone(qnet):
        make_qnet_policy(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), qnet, [0, 1])


@contextmanager
def dropout_watched() -> Iterator[set[tuple[bool, bool]]]:
    """Collect whether dropout was on and whether a gradient was wanted."""
    seen: set[tuple[bool, bool]] = set()

    def note(module: nn.Module, _: Any) -> None:
        if isinstance(module, nn.Dropout):
            seen.add((module.training, torch.is_grad_enabled()))

    hook = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield seen
    finally:
        hook.remove()


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        *((name, ()) for name in ALGORITHMS),
        *((name, (3, 0)) for name in ON_POLICY + FILLING),
    ],
)
def test_dropout_is_on_where_there_is_a_gradient_and_nowhere_else(
    name: str, asked: Any
) -> None:
    own = {} if name == "ppg" else moody_models(name, *asked)
    env = PENDULUM if asked else CARTPOLE
    with small_learner(name, env, **own) as learner, dropout_watched() as seen:
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = brief("a2c", CARTPOLE)
    agent.save(tmp_path / "a")
    before = {path: path.read_bytes() for path in tmp_path.glob("a/*")}
    with pytest.raises(FileExistsError):
        agent.save(tmp_path / "a")

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("shutil.copytree", full)
    with pytest.raises(OSError, match="no space"):
        agent.save(tmp_path / "b")
    assert {path: path.read_bytes() for path in tmp_path.glob("a/*")} == before
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("last", [20, 1000])
def test_a_training_that_fails_keeps_what_was_saved(
    last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_our_policies_act_in_states_of_any_dtype(name: str, tmp_path: Path) -> None:
    env = shown(name, "bytes")
    agent = brief(name, env)
    policy = load(agent.save(tmp_path / "run"))
    state = torch.randint(0, 256, (5, 3), dtype=torch.uint8)
    for again in (state, state.double(), state.float()):
        assert torch.equal(agent.act({"state": again}), policy.act(state.float(), 0.0))
    one, other = (evaluate(x, env, 3).tolist() for x in (policy, agent.policy))
    assert one == other


@pytest.mark.parametrize(
    ("name", "env", "forms"),
    [
        *((name, CARTPOLE, "acting") for name in ("ppo", "a3c", "sac")),
        *((name, CARTPOLE, "none") for name in ("rainbow", "impala")),
        *((x, CARTPOLE, "acting and the error") for x in ("dqn", "dqnper", "dqnapex")),
        *((name, PENDULUM, "none") for name in ("ddpg", "hddpg", "td3", "sac")),
        *(("ppo", MOVING, "acting"), ("ddpgapex", PENDULUM, "acting")),
    ],
)
def test_a_training_says_which_fast_forms_it_was_handed(
    name: str, env: str, forms: str, capsys: pytest.CaptureFixture[str]
) -> None:
    learner: Any = brief(name, env, progress=True).learner
    assert capsys.readouterr().out.startswith(f"fast forms: {forms}\n")
    if name in ("dqn", "sac"):
        assert (learner.act == learner.policy.act) == (forms == "none")
        assert (learner.error == learner.algorithm.error) == ("error" not in forms)
    if env != MOVING:
        asked = (3, 0) if env == PENDULUM else ()
        brief(name, env, progress=True, **moody_models(name, *asked))
        assert capsys.readouterr().out.startswith("fast forms: none\n")


def test_a_training_says_how_many_steps_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {"num_envs": 2, "num_steps": 16}
    agent = train("A2C", CARTPOLE, total_steps=100, **few)
    assert capsys.readouterr().out.splitlines() == [
        "fast forms: acting",
        "steps: 128 for 100, because an iteration has 32",
        "watch it with show(agent.policy, agent.env), keep it with "
        "agent.save(directory)",
    ]
    assert agent.learner.step == 128
    saved = agent.save(tmp_path / "a")
    for total, takes in ((100, 0), (129, 160), (160, 0)):
        train("A2C", CARTPOLE, resume=saved, total_steps=total)
        said = capsys.readouterr().out
        assert said.endswith(f", kept in {saved}\n")
        assert (f"steps: {takes} for {total}" in said) == bool(takes)
    train("A2C", vectors(made_pole), total_steps=64, num_steps=16)
    said = capsys.readouterr().out
    assert "steps" not in said
    assert "watch" not in said


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_iteration_has_its_steps_and_its_environments_are_closed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def noted(*arguments: Any) -> Any:
        made.append(make_envs(*arguments))
        return made[-1]

    monkeypatch.setattr(training, "make_envs", noted)
    with small_learner(name, HOME[name]) as learner:
        learner.iterate()
        assert learner.step == learner.config.steps_per_iteration
    assert made
    assert all(envs.closed for envs in made)


def test_prioritised_replay_has_the_exponent_of_the_paper() -> None:
    for name in ("dqn", "ddpg"):
        plain, preferring = (
            ALGORITHMS[x].settings(CARTPOLE) for x in (name, f"{name}per")
        )
        assert preferring == replace(plain, priority_exponent=0.6) != plain


SWEPT: dict[str, Any] = {
    "PPO": {"num_envs": np.int32(2), "num_steps": np.array(8), "anneal": np.bool_(1)},
    "IMPALA": {"seed": torch.tensor(3), "optim": np.str_("rmsprop")},
    "SAC": {"temperature": np.float32(0.1), "learning_rate": torch.tensor(1e-3)},
}


@pytest.mark.parametrize("name", SWEPT)
def test_a_swept_run_is_kept_and_goes_on(name: str, tmp_path: Path) -> None:
    options = {"total_steps": np.int64(64)} | SWEPT[name]
    path = train(name, CARTPOLE, progress=False, **options).save(tmp_path / "kept")
    stored = json.loads((path / "settings.json").read_text())["config"]
    for setting, x in options.items():
        assert stored[setting] == x.item()
    train(name, CARTPOLE, resume=path, progress=False, **options)
    with pytest.raises(ValueError, match="the run has total_steps 64, not 63"):
        train(name, CARTPOLE, resume=path, total_steps=np.int64(63))


# --- Encoders -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "encoder"),
    [
        *((x, None) for x in ("picture", "planes", "gray", "stack", "parts")),
        *((x, make_eye) for x in ("picture", "parts", "float32", "Discrete")),
    ],
)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_has_encoders_learns_comes_back_and_goes_on(
    name: str, seen: str, encoder: Any, tmp_path: Path
) -> None:
    env, own = shown(name, seen), {"encoder": encoder} if encoder else {}
    kind = Eye if encoder else PartsEncoder if seen == "parts" else PictureEncoder
    told: list[list[Tensor]] = []

    def note(learner: Any, _: Any) -> None:
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
    if encoder:
        with pytest.raises(ValueError, match="must be loaded with encoder=make_eye"):
            load(run)
    again = train(name, env, resume=run, total_steps=48, progress=False, **own)
    assert again.learner.step >= 48


def test_a_module_is_copied_for_each_network() -> None:
    eye = Eye()
    with small_learner("sac", LISTS, encoder=eye) as learner:
        eyes = [part for part in learner.policy.modules() if isinstance(part, Eye)]
        assert len({id(x) for x in (*eyes, eye)}) == 4
        assert all(same_weights(x, eye) for x in eyes)
        train_a_little(learner)


class Coarse(nn.Module):
    """An encoder without a weight."""

    output_size = 2

    def forward(self, obs: Any) -> Any:
        return obs.float().flatten(1)[:, ::100]


def test_an_encoder_without_weights_comes_back(tmp_path: Path) -> None:
    """Its policy has fewer numbers than what it sees."""
    run = brief("ppo", LISTS, encoder=Coarse()).save(tmp_path / "a")
    policy = load(run, encoder=Coarse())
    seen = math.prod(policy.observation_space.shape)
    assert sum(x.numel() for x in policy.parameters()) < seen


@pytest.mark.parametrize("seen", ["picture", "gray", "planes", "stack"])
@pytest.mark.parametrize("name", ON_POLICY)
def test_bytes_are_kept_as_bytes_which_changes_nothing(
    name: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[Any] = []
    project, got = PictureEncoder.project, set()

    def note(encoder: PictureEncoder, obs: Tensor) -> Tensor:
        got.add(obs.numpy().dtype)
        return project(encoder, obs)

    monkeypatch.setattr(PictureEncoder, "project", note)
    for kept in (SEEN[seen].dtype, np.dtype(np.float32)):
        if ends:
            for module in (agents, actors):
                monkeypatch.setattr(module, "kept_dtype", lambda *_: np.float32)
        with small_learner(name, shown(name, seen)) as learner:
            got.clear()
            train_a_little(learner)
        assert got == {kept}
        ends.append(learner.policy)
    assert same_weights(*ends)


EXACT = spaces.Box(2**53 - 4, 2**53, (3,), np.int64)


@pytest.mark.parametrize(
    ("seen", "sent"),
    [(SEEN["uint32"], "f4"), (EXACT, "f4"), (SEEN["bytes"], "u1")],
)
def test_actors_send_what_float32_can_hold(seen: Any, sent: str) -> None:
    env = partial(Sampled, seen, LIST)
    with small_learner("dqnapex", env) as learner:
        assert learner.layout["result"]["obs"].base == np.dtype(sent)
        learner.iterate()
        obs = learner.learner.sample().obs.double().numpy()
        assert (obs >= np.float32(seen.low)).all()
        assert (obs <= np.float32(seen.high)).all()
    with small_learner("impala", env, replace(actors_settings(""), actors=1)) as one:
        train_a_little(one)


SHARED = [
    *((name, env) for name in ON_POLICY for env in (LISTS, HYBRID)),
    *((name, BOXES) for name in ("ddpg", "hddpg", "td3", "sac")),
    *((name, LISTS) for name in ("ddpg", "td3", "sac")),
]


@pytest.mark.parametrize("encoder", [None, make_eye], ids=["chosen", "own"])
@pytest.mark.parametrize(("name", "env"), SHARED)
def test_a_shared_encoder_is_one_and_comes_back_as_one(
    name: str, env: Any, encoder: Any, tmp_path: Path
) -> None:
    own = {"encoder": encoder} if encoder else {}

    def number(policy: Any) -> int:
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
def test_critics_alone_move_a_shared_encoder(name: str, env: Any) -> None:
    config = replace(ALGORITHMS[name].settings(""), share_encoder=True)
    with small_learner(name, env, config) as learner:
        learner.iterate()
        (eye,) = (x for x in learner.policy.modules() if isinstance(x, PictureEncoder))
        target = learner.algorithm.target.network.modules()
        assert sum(isinstance(x, PictureEncoder) for x in target) == 1
        before = copy.deepcopy(eye)
        climbs = copy.deepcopy([x.detach() for x in learner.actor])
        learner.optimizer.state.clear()
        learner.climb(learner.sample().obs)
        assert same_weights(eye, before)
        assert any(not torch.equal(*x) for x in zip(climbs, learner.actor, strict=True))
        learner.learn()
        assert not same_weights(eye, before)


# --- Devices --------------------------------------------------------------------------


def small_config(name: str, env: str) -> Any:
    config = ALGORITHMS[name].settings(env)
    more = {"scale_reward": True} if hasattr(config, "scale_reward") else {}
    return replace(config, **small(name), normalize_obs=True, **more)


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
def test_an_algorithm_learns_and_resumes_on_any_device(
    name: str, env: str, tmp_path: Path
) -> None:
    wanted = two_iterations(name, env, ("cpu", "cpu"), tmp_path / "here")
    with elsewhere():
        there = two_iterations(name, env, ("cuda", "cpu"), tmp_path / "back")
        goes = two_iterations(name, env, ("cpu", "cuda"), tmp_path / "there")
    for got in (there, goes):
        assert got == [pytest.approx(x, 1e-4, 1e-4, nan_ok=True) for x in wanted]
    assert any(math.isfinite(x) for key, x in wanted[0].items() if "losses" in key)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "env"), EVERYWHERE)
def test_an_algorithm_learns_and_resumes_on_a_gpu(
    name: str, env: str, tmp_path: Path
) -> None:
    first, _ = two_iterations(name, env, ("cpu", "cuda"), tmp_path / "there")
    got, after = two_iterations(name, env, ("cuda", "cpu"), tmp_path / "back")
    # Which step is drawn by its priority may hang on the last digit.
    close = 1e-2 if any(x in name for x in ("per", "rainbow", "apex")) else 1e-3
    assert got == pytest.approx(first, close, close, nan_ok=True)
    assert first.keys() == after.keys()


LOGGED = [x for x in EVERYWHERE if hasattr(ALGORITHMS[x[0]].config, "log_interval")]


@pytest.mark.parametrize(("name", "env"), LOGGED)
def test_a_longer_row_of_the_log_changes_no_bit(name: str, env: str) -> None:
    config = small_config(name, env)
    each = config.steps_per_iteration
    config = replace(config, total_steps=10 * each, checkpoint_interval=3)
    states, histories = [], []
    for times in (1, 2, 4):
        log = None if times == 1 else times * each
        learner = make_learner(name, env, replace(config, log_interval=log), {})
        with ended(learner):
            histories.append(fit(learner, progress=False))
        states.append((learner.state_dict(), learner.policy.state_dict()))
        torch.testing.assert_close(
            states[-1], states[0], rtol=0, atol=0, equal_nan=True
        )
        ends = [*range(times, 10, times), 10]
        assert [row["step"] for row in histories[-1]] == [each * end for end in ends]
        assert all(row.keys() == histories[0][0].keys() for row in histories[-1])


def test_stored_settings_of_before_say_what_an_iteration_was() -> None:
    config = ALGORITHMS["dqn"].config
    for stored, wanted in (
        ({"log_interval": 40}, {"iteration_steps": 40}),
        *[({"log_interval": 320, "iteration_steps": 40},) * 2],
    ):
        found = training.settings_of(config, {"config": stored}, Path("settings.json"))
        assert found == config(**wanted)


class Odd(nn.Module):
    """A model that remembers each call and draws random numbers."""

    calls: Tensor

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, hidden), nn.Linear(hidden, 2)
        self.norm, self.drop = nn.BatchNorm1d(hidden), nn.Dropout()
        self.register_buffer("calls", torch.zeros(()))
        self.seen: set[str] = set()

    def forward(self, state: Tensor) -> Tensor:
        self.seen.add(state.device.type)
        self.calls += 1
        x = self.drop(self.norm(self.first(state))) + 0 * torch.rand(1).item()
        return self.last(x)


def check_a_model_comes_back() -> None:
    net = Odd()
    before = net.first.weight
    agent = brief("dqn", CARTPOLE, qnet=net, device="cuda", check=False)
    assert net.seen == {training.best_device().type}
    # The same parameter, gradient and buffers are here, and whatever comes next works.
    state = torch.zeros(2, 4)
    assert net.first.weight is before
    assert {x.device for x in net.state_dict().values()} == {state.device}
    assert before.grad is not None
    assert before.grad.device == net(state).device == state.device
    assert agent.act({"state": state}).device == state.device
    assert len(evaluate(agent.policy, CARTPOLE, 2)) == 2
    fresh = make_learner("dqn", CARTPOLE, agent.learner.config, {"qnet": Odd()}, False)
    with ended(fresh):
        fresh.load_state_dict(agent.learner.state_dict())
        fresh.iterate()


def test_a_model_of_ones_own_comes_back() -> None:
    with elsewhere():
        check_a_model_comes_back()


@pytest.mark.gpu
def test_a_model_of_ones_own_comes_back_from_a_gpu() -> None:
    check_a_model_comes_back()


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
@pytest.mark.parametrize("place", ["fit", "learner"])
def test_a_model_comes_back_after_an_error(
    error: BaseException, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, moved = Odd(), []

    def fails(*arguments: Any, **forms: Any) -> Any:
        moved.append(net.first.weight.device)
        raise error

    if place == "fit":
        monkeypatch.setattr(training, "fit", fails)
    else:
        known = replace(ALGORITHMS["dqn"], learner=fails)
        monkeypatch.setitem(ALGORITHMS, "dqn", known)
    with elsewhere(), pytest.raises(type(error)):
        brief("dqn", CARTPOLE, qnet=net, device="cuda", check=False)
    assert moved == [ELSEWHERE]
    assert {x.device.type for x in net.state_dict().values()} == {"cpu"}


def test_each_part_goes_back_to_its_own_device() -> None:
    with elsewhere():
        net = Odd().to(ELSEWHERE)
        net.last.to("cpu")
        for device in ("auto", "cpu"):
            net.seen.clear()
            brief("dqn", CARTPOLE, qnet=net, device=device, check=False)
            assert net.seen == {"cpu" if device == "cpu" else ELSEWHERE.type}
            assert net.last.weight.device.type == "cpu"
            parts = (net.first.weight, net.norm.running_mean, net.calls)
            assert all(isinstance(x, Far) for x in parts)


def place_of(net: nn.Module, device: Device = "auto", tell: bool = True) -> str:
    """Return where a network is trained in batches of 1024."""
    space = spaces.Box(-1.0, 1.0, (4,))
    policy = make_qnet_policy(space, spaces.Discrete(2), net)
    with placing(device, tell) as place:
        place(policy, ALGORITHMS["dqn"].config(batch_size=1024))
        return training.device_of(net).type


def test_a_large_network_goes_where_it_pays_and_a_small_one_stays(
    capsys: pytest.CaptureFixture[str],
) -> None:
    few, many = Odd(), Odd(3_000)
    assert (place_of(few), place_of(many)) == ("cpu", "cpu")
    assert capsys.readouterr().out == "", "there is no choice here"
    with elsewhere():
        assert (place_of(few), place_of(many)) == ("cpu", ELSEWHERE.type)
        one, other = capsys.readouterr().out.splitlines()
        assert one.startswith("device: cpu (an update is 0.2 million multiply-adds")
        assert other.startswith("device: meta (an update is 83.0 million")
        assert place_of(few, "cpu") == "cpu"
        assert place_of(few, "cuda") == ELSEWHERE.type
        assert place_of(many, tell=False) == ELSEWHERE.type
        brief("dqn", CARTPOLE, qnet=few, check=False)
        assert capsys.readouterr().out == "", "nobody asked, or wants to know"


@pytest.mark.parametrize(
    ("name", "changes", "rows"),
    [
        ("ppg", {"num_envs": 3, "num_steps": 40, "num_minibatches": 4}, 30),
        ("a2c", {"num_envs": 3, "num_steps": 40}, 120),
        ("a3c", {"num_envs": 3, "num_steps": 40}, 0),
        ("impala", {"batch_size": 5, "num_steps": 7, "num_envs": 3}, 35),
        ("impala", {"batch_size": 5, "num_steps": 7, "num_envs": 3, "actors": 2}, 21),
        ("sac", {"batch_size": 77, "num_envs": 2, "num_steps": 3}, 77),
    ],
)
def test_rows_of_an_update(name: str, changes: dict[str, int], rows: int) -> None:
    assert ALGORITHMS[name].config(**changes).rows_per_update == rows


def test_two_devices_do_not_meet() -> None:
    here = torch.ones(3)
    with elsewhere():
        there = here.to(ELSEWHERE)
        assert torch.equal((there * torch.tensor(2.0)).cpu(), 2 * here)
        for wrong in (
            lambda: there + here,
            lambda: here.add_(there),
            lambda: here[there.bool()],
            lambda: torch.randn(3, generator=torch.Generator(), device=ELSEWHERE),
            lambda: there.numpy(),
        ):
            with pytest.raises((RuntimeError, TypeError)):
                wrong()
        assert here.tolist() == [1.0, 1.0, 1.0]


# --- Environments ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "name"),
    [
        (CARTPOLE, CARTPOLE),
        (CartPoleEnv, "gymnasium.envs.classic_control.cartpole:CartPoleEnv"),
        ("test_training:made_pole", "test_training:made_pole"),
        (lambda: CartPoleEnv(), "<lambda of test_training>"),
    ],
)
def test_an_environment_is_an_id_a_class_or_a_function(
    env: Any, name: str, tmp_path: Path
) -> None:
    agent = brief("a2c", env)
    assert agent.env is env
    saved = agent.save(tmp_path / "a")
    assert json.loads((saved / "settings.json").read_text())["env"] == name
    one, other = (evaluate(x, env, 2).tolist() for x in (agent.policy, load(saved)))
    assert one == other
    again = train("A2C", env, resume=saved, total_steps=64, progress=False)
    assert again.history[0]["step"] > 32
    del again
    assert saved.exists(), "only what nobody has kept goes with its agent"
    if env == CARTPOLE:
        return
    with pytest.raises(ValueError, match="may not choose whose code runs"):
        load_env(saved)
    with pytest.raises(SystemExit, match="hand over again --env"):
        main(["a2c", "--resume", str(saved)])
    if ":" in name:
        assert load_env(saved, env) is env
        main(["a2c", "--resume", str(saved), "--env", name])
        with pytest.raises(ValueError, match=r"the run has env .*, not CartPole-v1"):
            train("A2C", CARTPOLE, resume=saved, progress=False)


@pytest.mark.parametrize(
    ("name", "env"),
    [
        *((name, made_pole) for name in ("ppo", "ppg", "a2c", "impala", "rainbow")),
        *((name, LISTS) for name in ("ppo", "impala", "dqn", "sac")),
        *((name, shown(name, "parts")) for name in ("a2c", "td3")),
        ("a2c", shown("a2c", "Discrete")),
    ],
)
def test_a_vector_environment_is_what_train_would_make(name: str, env: Any) -> None:
    envs = vectors(env)
    agent = brief(name, envs)
    assert not envs.closed, "it is the user's"
    envs.close()
    assert same_weights(brief(name, env).policy, agent.policy)


@pytest.mark.parametrize("name", ["ppo", "dqn", "impala"])
def test_a_vector_environment_may_reset_a_step_later(name: str, tmp_path: Path) -> None:
    envs = gym.make_vec(CARTPOLE, 4)
    agent = train(name, envs, total_steps=500, progress=False)
    assert agent.learner.config.num_envs == 4
    saved = agent.save(tmp_path / "a")
    assert load(saved).recipe == agent.policy.recipe
    with pytest.raises(SystemExit, match="<CartPoleVectorEnv of CartPole-v1>"):
        main([name, "--resume", str(saved)])
    with pytest.raises(ValueError, match="num_envs must be 2, as many as env has"):
        train(name, vectors(made_pole), resume=saved, progress=False)
    again = train(name, envs, resume=saved, total_steps=1000, progress=False)
    assert again.learner.step >= 1000


class Doubled(gym.RewardWrapper[Any, Any]):
    def reward(self, reward: Any) -> Any:
        return 2 * float(reward)


AROUND = ["TimeAwareObservation", Doubled, "FrameStackObservation(stack_size=3)"]
NAMES = [AROUND[0], "test_training:Doubled", AROUND[2]]


def test_wrappers_are_stored_and_go_where_the_run_goes(tmp_path: Path) -> None:
    agent = brief("ppo", CARTPOLE, wrappers=AROUND)
    saved = agent.save(tmp_path / "a")
    stored = json.loads((saved / "settings.json").read_text())
    assert (stored["env"], stored["wrappers"]) == (CARTPOLE, NAMES)
    assert agent.learner.config.gamma == ALGORITHMS["ppo"].settings(CARTPOLE).gamma
    with pytest.raises(ValueError, match=f"hand over again wrappers .*{NAMES[1]}"):
        load_env(saved)
    # The agent is judged and filmed with them.
    env, policy = load_env(saved, wrappers=AROUND), load(saved)
    returns = evaluate(agent.policy, agent.env, 2)
    assert evaluate(policy, env, 2).tolist() == returns.tolist()
    assert (returns % 2 == 0).all()
    assert record_video(policy, env, tmp_path / "a.mp4", seed=1) > 0
    for judged in (evaluate, partial(record_video, path=tmp_path / "b.mp4")):
        with pytest.raises(ValueError, match=r"must show 15 numbers, .* got 4"):
            judged(policy, CARTPOLE)
    before = (saved / "checkpoint.pt").read_bytes()
    goes_on = partial(train, "PPO", CARTPOLE, resume=saved, progress=False)
    for wrong in (["ClipAction"], AROUND[:2], [*AROUND, "ClipAction"]):
        with pytest.raises(ValueError, match="the run has wrappers"):
            goes_on(wrappers=wrong)
    assert (saved / "checkpoint.pt").read_bytes() == before
    assert goes_on(wrappers=AROUND, total_steps=64).learner.step == 64


def test_a_wrapper_that_writes_files_is_a_command(tmp_path: Path) -> None:
    saved = brief("a2c", CARTPOLE).save(tmp_path / "a")
    path = saved / "settings.json"
    stored = json.loads(path.read_text())
    for around, message in (
        (f"RecordVideo({str(tmp_path / 'films')!r})", "may not choose whose code"),
        ("Nothing", "must be names of gymnasium.wrappers"),
    ):
        path.write_text(json.dumps(stored | {"wrappers": [around]}))
        for call in (load_env, lambda x: train("A2C", CARTPOLE, resume=x)):
            with pytest.raises(ValueError, match=message):
                call(saved)
    assert not (tmp_path / "films").exists()


SENT: dict[str, Any] = {"actors": 1, "transport": "shared"}


def test_actors_in_other_processes_have_encoders_wrappers_and_classes() -> None:
    """Also of an environment that only this process has registered."""
    gym.register("tests/Here-v0", "worlds:Counting", max_episode_steps=10)
    around = ["TimeAwareObservation", TimeAwareObservation]
    agent: Any = brief("impala", "tests/Here-v0", wrappers=around, **SENT)
    assert agent.policy.network.actor[0].in_features == 4
    assert agent.history[-1]["step"] == 32
    agent = brief("impala", LISTS, **SENT)
    assert isinstance(agent.policy.network.actor[0], PictureEncoder)


class Hidden:
    """Its classes cannot be imported."""

    class Eye(Eye):
        __qualname__ = "nowhere"


@pytest.mark.parametrize(
    ("what", "env", "options"),
    [
        ("env", lambda: CartPoleEnv(), {}),
        ("env", CARTPOLE, {"wrappers": [lambda env: env]}),
        ("encoder", CARTPOLE, {"encoder": lambda space: Hidden.Eye(*space.shape)}),
    ],
)
def test_what_other_processes_cannot_import_is_said(
    what: str, env: Any, options: Any
) -> None:
    with pytest.raises(ValueError, match=f"^{what} must be something that actors"):
        brief("impala", env, **SENT, **options)
    # Where no process is needed it will do.
    assert brief("impala", env, actors=1, **options).learner.step >= 32


@pytest.mark.parametrize("name", ON_POLICY)
def test_a_space_that_does_not_tell_its_mask_is_given_one(
    name: str, tmp_path: Path
) -> None:
    given: Any = {"ppo": np.array(MASK), "a2c": torch.tensor(MASK).bool()}
    agent = brief(name, UNTOLD, mask=given.get(name, MASK))
    saved = agent.save(tmp_path / "a")
    assert json.loads((saved / "settings.json").read_text())["mask"] == MASK
    goes_on = partial(train, name, UNTOLD, resume=saved, progress=False)
    with pytest.raises(ValueError, match=r"the run has mask .*, not"):
        goes_on(mask=[[1, 1]] * 3)
    again = goes_on(total_steps=48)
    for policy in (agent.policy, load(saved), again.policy):
        assert policy.actions.mask.int().tolist() == MASK
        assert evaluate(policy, UNTOLD, 1).shape == (1,)


# --- Episodes that are cut off --------------------------------------------------------


class Steps(gym.Env[Any, Any]):
    """Ends after some steps; ``furthest`` says how far any copy has come."""

    furthest = 0
    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, length: int) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        Steps.furthest = max(Steps.furthest, self.steps)
        return np.zeros(2, np.float32), 1.0, self.steps == self.length, False, {}


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
    Steps.furthest = 0
    (words,) = told_of_resets(name, 10**6)
    longest = Steps.furthest
    copies = re.search(r"in (\d+) of (\d+) environments", words)
    assert copies
    assert copies[1] == copies[2]
    assert f"within {longest} steps" in words
    # One step decides: what ends just in time is seen, and nothing is said.
    assert told_of_resets(name, longest) == []
    assert told_of_resets(name, longest + 1) == [words]


def test_a_resumed_or_stopped_run_says_nothing_of_episodes(tmp_path):
    with warnings.catch_warnings(action="error"):
        agent = train("PPO", partial(Steps, 10**6), total_steps=2048, progress=False)
        agent.save(tmp_path / "run")
        agent.learner.load_state_dict(agent.learner.state_dict())
        agent.learner.iterate()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_settings_of_usual_tasks_leave_time_to_end(name):
    # An episode as long as the longest of the task ends before the checkpoint.
    for env in (CARTPOLE, PENDULUM, MOVING):
        config = ALGORITHMS[name].settings(env)
        limit = gym.spec(env).max_episode_steps
        steps = getattr(config, "rollout_len", 0)
        if hasattr(config, "num_epochs") or name in ("a2c", "a3c", "impala"):
            steps = config.num_steps
        elif not getattr(config, "actors", None):
            steps *= config.rounds
        share = getattr(config, "actors", None) or 1
        assert limit <= steps * config.checkpoint_interval // share, env
