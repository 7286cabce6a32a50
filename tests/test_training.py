"""Training in one call: models of one's own are checked, trained, saved, loaded."""

import copy
import gc
import json
import math
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import gymnasium as gym
import numpy as np
import pytest
import torch
from elsewhere import ELSEWHERE, Far, elsewhere
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv
from torch import Tensor, nn
from worlds import Eye, left_alone, make_eye, modes, moody

from benchmarks.spaces import (
    DONE,
    SEEN,
    SMALL,
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
    made,
    make_learner,
    opening,
    placing,
    settings_of_run,
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
from literate_rl.ground.networks import eval_mode
from literate_rl.learners.loop import OffPolicy
from literate_rl.learners.ppg import PPGAlgorithm
from literate_rl.learners.ppo import PPO, PPOConfig
from literate_rl.nets.encoders import PartsEncoder, ShapedEncoder
from literate_rl.nets.pictures import PictureEncoder
from literate_rl.nets.policies import make_policy
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import (
    OwnModels,
    Run,
    fit,
    flat_env,
    load,
    load_checkpoint,
    load_env,
    record_video,
    show,
)

CARTPOLE = "CartPole-v1"
SHORT = {"total_steps": 800, "progress": False}
DDPG_LIKE = ("ddpg", "ddpgper", "hddpg", "td3", "ddpgapex")
# Settings with which a short run reaches updates.
TINY: dict[str, dict[str, Any]] = {
    "ppo": {"num_steps": 32},
    "impala": {"num_envs": 4},
    "rainbow": {"learning_starts": 400, "iteration_steps": 400, "batch_size": 32},
    "dqn": {"learning_starts": 400, "iteration_steps": 400, "batch_size": 32},
    "dqnper": {"learning_starts": 400, "iteration_steps": 400, "batch_size": 32},
    "dqnapex": {"learning_starts": 400, "batch_size": 32},
    "rainbowapex": {"learning_starts": 400, "batch_size": 32},
} | {name: {"learning_starts": 700, "batch_size": 32} for name in DDPG_LIKE}
TINY["sac"] = {"learning_starts": 700, "iteration_steps": 200, "batch_size": 32}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_setting_that_no_run_could_use_is_refused_by_its_name(name: str) -> None:
    config = ALGORITHMS[name].config
    given = {field.name: field.type for field in fields(config)}
    words = "float", "Fraction", "Positive", "NonNegative", "Finite", "Scale"
    numbers = [key for key, type_ in given.items() if any(w in type_ for w in words)]
    assert len(numbers) > 5
    for key in numbers:
        for x in (math.nan, 1e39, "1"):
            with pytest.raises((TypeError, ValueError), match=f"{key} must be"):
                config(**{key: x})
    for key in (key for key in given if "Scale" in given[key]):
        with pytest.raises(ValueError, match=f"{key} must be greater than 0 and less"):
            config(**{key: math.inf})
    for key in (key for key in given if key.endswith("_weight") and key in numbers):
        for x in (-1.0, math.inf):
            with pytest.raises(ValueError, match=f"{key} must be at least 0 and less"):
                config(**{key: x})


class QNet(nn.Module):
    """A Q network whose only state has a name of its own, with a second result."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, some_state: Tensor) -> tuple[Tensor, Tensor]:
        hidden = some_state.tanh()
        return self.layer(hidden), hidden


class TwoStates(gym.Env[Any, Any]):
    """CartPole whose observation comes in two parts."""

    def __init__(self) -> None:
        self.env = gym.make(CARTPOLE)
        part = spaces.Box(-np.inf, np.inf, (2,))
        # The order of the names is not that of the alphabet on purpose.
        self.observation_space = spaces.Dict({"place": part, "angle": part})
        self.action_space = self.env.action_space

    def parts(self, obs: Any) -> dict[str, Any]:
        return {"place": obs[:2], "angle": obs[2:]}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = self.env.reset(seed=seed, options=options)
        return self.parts(obs), info

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        return self.parts(obs), *rest


gym.register("TwoStates-v0", entry_point=TwoStates)


class TwoNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, place: Tensor, angle: Tensor) -> Tensor:
        return self.layer(torch.cat([place, angle], 1))


def models(algorithm: str) -> dict[str, Any]:
    torch.manual_seed(0)
    if algorithm in ("rainbow", "rainbowapex"):
        return {"qnet": CategoricalQNetwork(4, 2, atom_num=11)}
    if ALGORITHMS[algorithm].models == ("qnet",):
        return {"qnet": QNet()}
    if algorithm in DDPG_LIKE:
        return {"actor": ProbabilityActor(4, 2), "critic": ActionValue(4, 2)}
    if algorithm == "sac":
        return {"actor": CategoricalActor(4, 2), "critic": QNetwork(4, 2)}
    return {"actor": CategoricalActor(4, 2), "critic": StateValue(4)}


WITH_MODELS = [name for name, known in ALGORITHMS.items() if known.models]


@pytest.mark.parametrize("algorithm", WITH_MODELS)
def test_a_model_of_ones_own_trains_is_saved_and_gets_its_weights_back(
    algorithm: str, tmp_path: Path
) -> None:
    given = models(algorithm)
    first = {
        name: {key: x.clone() for key, x in model.state_dict().items()}
        for name, model in given.items()
    }
    options = SHORT | TINY.get(algorithm, {})
    agent = train(algorithm.upper(), CARTPOLE, **given, **options)
    for name, model in given.items():
        after = model.state_dict()
        assert any(not torch.equal(after[key], x) for key, x in first[name].items())
    assert agent.history[-1]["step"] >= 800
    saved = agent.save(tmp_path / "deep/my_agent")
    names = {path.name for path in saved.iterdir()}
    assert {"settings.json", "checkpoint.pt", "metrics.csv"} <= names
    loaded = load(saved, **models(algorithm))
    one, other = (
        evaluate(policy, CARTPOLE, episodes=3) for policy in (agent.policy, loaded)
    )
    assert one.tolist() == other.tolist()


def test_two_states_reach_the_model_by_their_names() -> None:
    net = TwoNet()
    agent = train("DQN", "TwoStates-v0", qnet=net, **SHORT)
    place, angle = torch.randn(5, 2), torch.randn(5, 2)
    action = agent.act({"place": place, "angle": angle})
    assert torch.equal(action, net(place, angle).argmax(1, keepdim=True))
    # From a flat observation the parts come in the order in which Gymnasium lays them.
    space = agent.learner.collector.envs.envs[0].env.observation_space
    flat = gym.spaces.flatten(
        space, {"place": place[0].numpy(), "angle": angle[0].numpy()}
    )
    row = agent.policy(torch.as_tensor(flat)[None])
    assert torch.allclose(row, net(place[:1], angle[:1]))


def test_what_a_model_returns_beside_comes_back_from_act() -> None:
    agent = train("DQN", CARTPOLE, qnet=QNet(), **SHORT)
    state = torch.randn(3, 4)
    action, hidden = agent.act({"some_state": state})
    assert action.shape == (3, 1)
    assert torch.equal(hidden, state.tanh())


def test_a_distribution_acts_by_its_mean() -> None:
    net = CategoricalQNetwork(4, 2, atom_num=11)
    agent = train("RAINBOW", CARTPOLE, qnet=net, **SHORT)
    state = torch.randn(3, 4)
    mean = net(state) @ torch.linspace(0.0, 100.0, 11)
    assert torch.equal(agent.act({"state": state}), mean.argmax(1, keepdim=True))


def test_our_policies_act_in_states_as_well() -> None:
    agent = train("a2c", CARTPOLE, **SHORT)
    state = torch.randn(3, 4)
    assert torch.equal(agent.act({"state": state}), agent.policy.act(state, 0.0))


class ThreeValues(QNet):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)


def test_a_model_that_breaks_its_contract_is_not_trained() -> None:
    net = ThreeValues()
    before = net.layer.weight.clone()
    with pytest.raises(ContractError, match=r"q_value must have shape \(5, 2\)"):
        train("DQN", CARTPOLE, qnet=net, **SHORT)
    assert torch.equal(net.layer.weight, before)


def test_the_check_may_be_skipped() -> None:
    # A third value for a CartPole with two actions: the environment complains.
    with pytest.raises((AssertionError, IndexError, ValueError)):
        train("DQN", CARTPOLE, qnet=ThreeValues(), check=False, **SHORT)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: train("SARSA", CARTPOLE), "algorithm must be one of .*ppo.*'SARSA'"),
        (lambda: train("DQN", CARTPOLE, steps=3), "no setting 'steps', but seed"),
        (lambda: train("DQN", CARTPOLE, actor=QNet()), "for dqn must be qnet, got act"),
        (lambda: train("PPO", CARTPOLE, actor=QNet()), "must be actor and critic, got"),
        (lambda: train("ppg", CARTPOLE, qnet=QNet()), "for ppg must be none, got qnet"),
        (lambda: train("DQN", "Pendulum-v1"), "DQN's action_space must be Discrete"),
        (lambda: train("DQN", "NoSuch-v0"), "NoSuch-v0"),
        (lambda: train("DQN", CARTPOLE, total_steps=0), "total_steps"),
        (
            lambda: train("DQN", CARTPOLE, device="gpu"),
            "'cpu' or 'cuda', got 'gpu'",
        ),
        (lambda: train("DQN", CARTPOLE, device="cuda"), "cpu or auto where .* no CUDA"),
    ],
)
def test_what_cannot_be_trained_is_said(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_options_are_the_settings_of_all_algorithms_and_the_models() -> None:
    wanted: dict[str, Any] = get_type_hints(OwnModels)
    assert tuple(wanted) == MODELS
    for known in ALGORITHMS.values():
        for name, hint in get_type_hints(known.config).items():
            wanted[name] = wanted.get(name, hint) | hint
    assert get_type_hints(Options) == wanted


def test_a_saved_agent_is_never_written_over(tmp_path: Path) -> None:
    agent = train("a2c", CARTPOLE, **SHORT)
    agent.save(tmp_path / "a")
    before = {path: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    with pytest.raises(FileExistsError, match="another name"):
        agent.save(tmp_path / "a")
    assert {path: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["a"]  # and nothing half-done


def test_a_copy_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = train("a2c", CARTPOLE, **SHORT)

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("shutil.copytree", full)
    with pytest.raises(OSError, match="no space"):
        agent.save(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    agent: Agent = train("DQN", CARTPOLE, qnet=QNet(), **SHORT)
    return agent.save(tmp_path_factory.mktemp("saved") / "agent")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"qnet=QNet\(\.\.\.\), got none"),
        ({"actor": QNet()}, "got actor"),
        ({"qnet": ThreeValues()}, "holds no policy that can"),
    ],
)
def test_a_foreign_model_must_be_brought_along(
    saved: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load(saved, **given)


def test_our_own_models_need_no_other(tmp_path: Path) -> None:
    saved = train("dqn", CARTPOLE, **SHORT).save(tmp_path / "a")
    assert load(saved) is not None
    with pytest.raises(ValueError, match="with no models, got qnet"):
        load(saved, qnet=QNet())


def test_a_q_network_is_for_one_of_n_actions() -> None:
    box = spaces.Box(-1.0, 1.0, (2,))
    with pytest.raises(ValueError, match="action_space must be Discrete, got Box"):
        make_qnet_policy(box, box, QNet())


def test_rainbow_sees_pictures_as_pictures(tmp_path: Path) -> None:
    maze = "literate_rl/Maze-v0"
    small = {**SHORT, **TINY["rainbow"], "num_envs": 8, "hidden": 8}
    agent = train("rainbow", maze, **small)
    assert agent.policy.network.first.encoder.shape == (3, 7, 7)
    again = load(agent.save(tmp_path / "a"))
    for ours, theirs in zip(agent.policy.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert np.array_equal(evaluate(again, maze, 4), evaluate(agent.policy, maze, 4))


class Failing(CartPoleEnv):
    """It raises at a step."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.left = last

    def step(self, action: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the pole is glass")
        return super().step(action)


@pytest.mark.parametrize("last", [20, 1000])
def test_a_training_that_fails_keeps_what_was_saved(
    last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setitem(gym.registry, "Failing-v0", EnvSpec("Failing-v0", Failing))
    gym.registry["Failing-v0"].kwargs["last"] = last
    small = {"num_envs": 1, "num_steps": 100, "checkpoint_interval": 2}
    with pytest.raises(RuntimeError, match="the pole is glass") as failure:
        train("ppo", "Failing-v0", total_steps=10_000, progress=False, **small)
    if last == 20:
        assert list(tmp_path.glob("literate_rl_*")) == []
    else:
        (folder,) = tmp_path.glob("literate_rl_*")
        words = f"what was saved is kept, go on with resume={folder}"
        assert failure.value.__notes__[-1] == words
        assert load(folder).network.actor[0].in_features == 4


def test_an_agent_that_is_gone_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    agent = train("a2c", CARTPOLE, **SHORT)
    # PyTorch's first optimiser in a process makes a folder of its own beside it.
    (folder,) = tmp_path.glob("literate_rl_*")
    del agent
    gc.collect()
    assert not folder.exists()


def test_an_agent_that_is_gone_leaves_a_folder_of_yours_alone(tmp_path: Path) -> None:
    learner: Any = SimpleNamespace()
    agent = Agent(learner, tmp_path / "mine", [])
    agent.folder.mkdir()
    del agent
    gc.collect()
    assert (tmp_path / "mine").exists()


@pytest.mark.parametrize("name", ["SAC", "DQN", "A2C"])
def test_a_name_of_before_is_answered_with_that_of_today(name: str) -> None:
    old, new = ("epsilon", "rmsprop_epsilon") if name == "A2C" else ("alpha", None)
    words = (
        new or "priority_exponent is the replay buffer's alpha, temperature is SAC's"
    )
    with pytest.raises(TypeError, match=f"no setting '{old}' .*{words}"):
        train(name, "CartPole-v1", **{old: 0.2})
    with pytest.raises(TypeError, match=old):
        ALGORITHMS[name.lower()].config(**{old: 0.2})


class Coarse(nn.Module):
    """An encoder without a weight."""

    output_size = 2

    def forward(self, obs: Any) -> Any:
        return obs.float().flatten(1)[:, ::100]


def test_an_encoder_without_weights_comes_back(tmp_path: Path) -> None:
    """Its policy has fewer numbers than what it sees."""
    small = {"total_steps": 16, "num_envs": 2, "num_steps": 8, "progress": False}
    env = "tests/Seen-picture-list-v0"
    run = train("PPO", env, encoder=Coarse(), **small).save(tmp_path / "a")
    policy = load(run, encoder=Coarse())
    seen = math.prod(policy.observation_space.shape)
    assert sum(x.numel() for x in policy.parameters()) < seen


# --- Agents in many spaces (tests/test_spaces.py has the whole table) -----------------

PICTURES = ("picture", "planes", "gray", "stack", "parts")
LISTED, BOXED = DONE["Discrete, start"], DONE["Box"]
WHOLE = SEEN | {"exact": spaces.Box(2**53 - 4, 2**53, (3,), np.int64)}
for name, space in WHOLE.items():
    for other, done in (("list", LISTED), ("box", BOXED)):
        if name.isalnum():
            world = partial(Sampled, space, done)
            gym.register(f"tests/Seen-{name}-{other}-v0", world)
world = partial(Sampled, spaces.Box(0, 255, (3, 8, 8), np.uint8), Moving().action_space)
gym.register("tests/Hybrid-v0", world)


def handed_in(name: str, env: str, **models: Any) -> str:
    """Say which fast forms a learner is handed."""
    settings = ALGORITHMS[name].settings(env)
    learner, forms = made(name, env, settings, models, check=False)
    with ended(learner):
        return opening(learner, forms).splitlines()[0]


ON_POLICY = ("ppo", "ppg", "impala", "a2c", "a3c")
FILLING = ("sac", *DDPG_LIKE)


@pytest.mark.parametrize(
    ("name", "env", "act", "error"),
    [
        ("dqn", CARTPOLE, True, True),
        ("dqnper", CARTPOLE, True, True),
        ("rainbow", CARTPOLE, False, False),
        ("ddpg", "Pendulum-v1", False, False),
        ("hddpg", "Pendulum-v1", False, False),
        ("td3", "Pendulum-v1", False, False),
        ("sac", "Pendulum-v1", False, False),
        ("sac", CARTPOLE, True, False),
    ],
)
def test_our_own_policies_get_fast_forms_that_compute_the_same(
    name: str, env: str, act: bool, error: bool
) -> None:
    with small_learner(name, env) as learner:
        assert (learner.act != learner.policy.act) == act
        assert (learner.error != learner.algorithm.error) == error
        words = [w for w, x in (("acting", act), ("the error", error)) if x]
        assert handed_in(name, env) == f"fast forms: {' and '.join(words) or 'none'}"
        learner.iterate()
        batch = learner.sample()
        forms = learner.error, learner.algorithm.error
        fast, plain = (form(batch, torch.Generator().manual_seed(0)) for form in forms)
        for part in ("loss", "td_error", "value"):
            torch.testing.assert_close(getattr(fast, part), getattr(plain, part))
    with small_learner(name, env, **moody_models(name, env)) as learner:
        assert learner.act == learner.policy.act
        assert learner.error == learner.algorithm.error
    assert handed_in(name, env, **moody_models(name, env)) == "fast forms: none"


@pytest.mark.parametrize(
    ("name", "env", "forms"),
    [
        ("ppo", CARTPOLE, "acting"),
        ("ppo", "literate_rl/Moving-v0", "acting"),
        ("impala", CARTPOLE, "none"),
        ("a3c", CARTPOLE, "acting"),
        ("dqnapex", CARTPOLE, "acting and the error"),
        ("ddpgapex", "Pendulum-v1", "acting"),
    ],
)
def test_a_training_says_what_was_handed_in(name: str, env: str, forms: str) -> None:
    assert handed_in(name, env) == f"fast forms: {forms}"


def test_train_says_so_first(capsys) -> None:
    train("PPO", CARTPOLE, total_steps=64, num_steps=8)
    assert capsys.readouterr().out.startswith("fast forms: acting\n")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_environments_are_closed_when_a_training_ends(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def noted(*arguments: Any) -> Any:
        made.append(make_envs(*arguments))
        return made[-1]

    monkeypatch.setattr(training, "make_envs", noted)
    env = PENDULUM if name in CONTINUOUS else CARTPOLE
    learner = make_learner(name, env, small_config(name, env), {})
    with ended(learner):
        learner.iterate()
    assert made
    assert all(envs.closed for envs in made)


def test_prioritised_replay_has_the_exponent_of_the_paper() -> None:
    for name in ("dqn", "ddpg"):
        plain, preferring = (
            ALGORITHMS[x].settings(CARTPOLE) for x in (name, f"{name}per")
        )
        assert preferring == replace(plain, priority_exponent=0.6) != plain


@pytest.mark.parametrize("seen", PICTURES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_agent_has_an_encoder_where_there_are_pictures(
    name: str, seen: str
) -> None:
    env = f"tests/Seen-{seen}-{'box' if name in DDPG_LIKE else 'list'}-v0"
    with small_learner(name, env) as learner:
        found = [type(part) for part in learner.policy.modules()]
        kind = PartsEncoder if seen == "parts" else PictureEncoder
        assert any(issubclass(part, kind) for part in found)
        # Each critic has one of its own, and so has each actor.
        loop = "error" if hasattr(learner, "error") else "acting"
        assert loop not in handed_in(name, env)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_has_learned_from_pictures_acts_comes_back_and_goes_on(
    name: str, tmp_path: Path
) -> None:
    env = f"tests/Seen-parts-{'box' if name in DDPG_LIKE else 'list'}-v0"
    with small_learner(name, env) as learner:
        settings = settings_of_run(name, env, learner.config, {})
        with Run(tmp_path / "run", settings) as run:
            learner.iterate()
            run.save(learner)
        policy = load(tmp_path / "run")
        assert policy.recipe == learner.policy.recipe
        obs, _ = flat_env(env).reset(seed=1)
        row = torch.as_tensor(obs)[None].float()
        with torch.no_grad(), eval_mode(learner.policy):
            assert torch.equal(policy.act(row, 0.0), learner.policy.act(row, 0.0))
    with small_learner(name, env) as again:
        with Run(tmp_path / "run", resume=True) as run:
            run.restore(again)
        kept, now = policy.state_dict(), again.policy.state_dict()
        assert all(torch.equal(x, now[key]) for key, x in kept.items())
        train_a_little(again)


@pytest.mark.parametrize("name", ON_POLICY)
def test_hybrid_actions_follow_from_pictures_too(name: str, tmp_path: Path) -> None:
    with small_learner(name, "tests/Hybrid-v0") as learner:
        kinds = [type(part) for part in learner.policy.modules()]
        assert sum(issubclass(kind, PictureEncoder) for kind in kinds) == 2
        with Run(tmp_path / "run", {}) as run:
            train_a_little(learner)
            run.save(learner)
        policy = load(tmp_path / "run")
        row = torch.randint(256, (5, 3 * 8 * 8)).float()
        for one in (policy, learner.policy.eval()):
            assert torch.equal(one.act(row, 0.0), policy.act(row, 0.0))


@pytest.mark.parametrize("seen", ["picture", "gray", "planes", "stack"])
@pytest.mark.parametrize("name", ON_POLICY)
def test_bytes_are_kept_as_bytes_which_changes_nothing(
    name: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, ends, own = f"tests/Seen-{seen}-list-v0", [], SEEN[seen].dtype
    project, got = PictureEncoder.project, set()

    def note(encoder: PictureEncoder, obs: Tensor) -> Tensor:
        got.add(obs.numpy().dtype)
        return project(encoder, obs)

    monkeypatch.setattr(PictureEncoder, "project", note)
    for as_floats in (False, True):
        if as_floats:
            for module in (agents, actors):
                monkeypatch.setattr(module, "kept_dtype", lambda *_: np.float32)
        with small_learner(name, env) as learner:
            got.clear()
            train_a_little(learner)
        assert got == {np.dtype(np.float32) if as_floats else own}
        ends.append(learner.policy.state_dict())
    assert all(torch.equal(x, ends[1][key]) for key, x in ends[0].items())


def test_actors_in_other_processes_have_encoders() -> None:
    maze = "literate_rl/Maze-v0"
    with small_learner(
        "impala", maze, replace(actors_settings(maze), actors=1, transport="shared")
    ) as learner:
        network = learner.policy.network
        assert isinstance(network.actor[0], PictureEncoder)
        train_a_little(learner)


# --- An encoder of one's own ----------------------------------------------------------


@pytest.mark.parametrize("seen", ["picture", "parts", "float32", "Discrete"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_encoder_of_ones_own_learns_comes_back_and_goes_on(
    name: str, seen: str, tmp_path: Path
) -> None:
    env = f"tests/Seen-{seen}-{'box' if name in DDPG_LIKE else 'list'}-v0"
    with small_learner(name, env, encoder=make_eye) as learner:
        eyes = [part for part in learner.policy.modules() if isinstance(part, Eye)]
        first = [eye.layer.weight.detach().clone() for eye in eyes]
        settings = settings_of_run(name, env, learner.config, {"encoder": make_eye})
        with Run(tmp_path / "run", settings) as run:
            train_a_little(learner)
            run.save(learner)
        # Each has first weights of its own, and all of them learn.
        for eye, weight in zip(eyes, first, strict=True):
            assert sum(torch.equal(weight, other) for other in first) == 1
            later = name in ("td3", "hddpg") and eye is eyes[0]
            assert later or not torch.equal(eye.layer.weight, weight)
        row = torch.as_tensor(flat_env(env).reset(seed=1)[0])[None].float()
        policy = load(tmp_path / "run", encoder=make_eye)
        with torch.no_grad(), eval_mode(learner.policy):
            assert torch.equal(policy.act(row, 0.0), learner.policy.act(row, 0.0))
    assert run.settings["models"] == {"encoder": "worlds:make_eye"}
    with pytest.raises(ValueError, match=r"must be loaded with encoder=make_eye"):
        load(tmp_path / "run")
    with small_learner(name, env, encoder=make_eye) as again:
        with Run(tmp_path / "run", resume=True) as run:
            run.restore(again)
        train_a_little(again)


def test_a_module_is_copied_for_each_network() -> None:
    eye = Eye()
    with small_learner("sac", "tests/Seen-picture-list-v0", encoder=eye) as learner:
        eyes = [part for part in learner.policy.modules() if isinstance(part, Eye)]
        assert len({id(x) for x in (*eyes, eye)}) == 4
        assert all(torch.equal(x.layer.weight, eye.layer.weight) for x in eyes)
        train_a_little(learner)


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (
            {"encoder": nn.Linear(200, 3)},
            "^encoder must have its number .*, got Linear",
        ),
        ({"encoder": Eye(), "qnet": nn.Linear(3, 2)}, "models of your own .* be qnet"),
    ],
)
def test_encoders_that_do_not_fit_are_refused(models: Any, message: str) -> None:
    with (
        pytest.raises(ValueError, match=message),
        small_learner("dqn", "tests/Seen-picture-list-v0", **models),
    ):
        pass


def test_an_encoder_that_returns_something_else_is_told_so() -> None:
    encoder = ShapedEncoder(SEEN["picture"], Eye())
    encoder.output_size = 4
    with pytest.raises(ValueError, match=r"must return \(3, 4\), got \(3, 5\)"):
        encoder(torch.zeros(3, 200))


@pytest.mark.parametrize("encoder", [None, make_eye], ids=["chosen", "own"])
def test_a_shared_encoder_comes_back_as_one(encoder: Any, tmp_path: Path) -> None:
    env = "tests/Seen-picture-list-v0"
    torch.manual_seed(1)
    own = {} if encoder is None else {"encoder": encoder}
    policy = make_policy(SEEN["picture"], LISTED, share_encoder=True, **own)
    config = PPOConfig(num_envs=2, num_steps=4, num_minibatches=1, num_epochs=1)
    learner = PPO(policy, make_envs(partial(flat_env, env), 2), config)
    with Run(tmp_path / "run", {}) as run, ended(learner):
        train_a_little(learner)
        run.save(learner)
    again = load(tmp_path / "run", **own)
    obs = torch.randint(256, (5, 200)).float()
    assert torch.equal(again(obs), policy(obs))
    assert torch.equal(again.value(obs), policy.value(obs))
    assert again.network.actor[0] is again.network.critic[0]


def test_a_partial_of_ours_is_an_encoder_of_ones_own() -> None:
    smaller = partial(PictureEncoder, hidden=7)
    policy = make_policy(SEEN["picture"], LISTED, encoder=smaller)
    obs = torch.randint(256, (2, 5, 200), dtype=torch.uint8)
    inner = policy.network.actor[0].encoder
    assert inner.output_size == 7
    expected = policy.network.actor[1](inner(obs))
    assert torch.equal(policy(obs), expected)


def test_pictures_are_not_normalised() -> None:
    env = "tests/Seen-picture-list-v0"
    with pytest.raises(ValueError, match=r"^normalize must be False with an"):
        train("PPO", env, normalize_obs=True, progress=False)


def test_train_takes_an_encoder_and_keeps_it(tmp_path: Path) -> None:
    small = {"total_steps": 64, "num_envs": 2, "num_steps": 8, "progress": False}
    env = "tests/Seen-picture-list-v0"
    agent = train("PPO", env, encoder=Eye(), **small)
    run = agent.save(tmp_path / "a")
    assert np.array_equal(
        evaluate(load(run, encoder=Eye()), env, 2), evaluate(agent.policy, env, 2)
    )
    state = torch.zeros(3, 10, 10, 2, dtype=torch.uint8)
    assert agent.act({"state": state}).shape == (3,)


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac", "td3"])
def test_what_has_seen_whole_numbers_acts_and_comes_back(
    name: str, tmp_path: Path
) -> None:
    env = f"tests/Seen-bytes-{'box' if name == 'td3' else 'list'}-v0"
    with small_learner(name, env) as learner:
        settings = settings_of_run(name, env, learner.config, {})
        with Run(tmp_path / "run", settings) as run:
            fit(learner, run, progress=False)
        agent = Agent(learner, tmp_path / "run", [])
        state = torch.randint(0, 256, (5, 3), dtype=torch.uint8)
        action = learner.policy.act(state.float(), 0.0)
        for again in (state, state.double(), state.float()):
            assert torch.equal(agent.act({"state": again}), action)
        policy = load(tmp_path / "run")
        assert torch.equal(policy.act(state.float(), 0.0), action)
        assert evaluate(policy, env, 3).tolist() == (
            evaluate(learner.policy, env, 3).tolist()
        )


@pytest.mark.parametrize("name", ["dqn", "a2c", "sac"])
def test_a_model_acts_on_what_its_environment_shows(name: str, tmp_path: Path) -> None:
    """It gets what it got in training: float32, unless whole numbers stay whole."""
    for seen, wanted in (
        *(("float64", torch.float32), ("flags", torch.float32)),
        *(("Discrete", torch.float32), ("seconds", torch.int64)),
    ):
        got = set()

        def note(module: nn.Module, given: Any, named: Any, got: Any = got) -> Any:
            got.add(named["state"].dtype)
            return given, named | {"state": named["state"].float()}

        env = f"tests/Seen-{seen}-list-v0"
        size = spaces.flatdim(SEEN[seen])
        models: Any = {"actor": CategoricalActor(size, 3), "critic": StateValue(size)}
        if name == "sac":
            models["critic"] = QNetwork(size, 3)
        if name == "dqn":
            models = {"qnet": QNetwork(size, 3)}
        for model in models.values():
            model.register_forward_pre_hook(note, with_kwargs=True)
        with small_learner(name, env, **models) as learner:
            learner.iterate()
        agent = Agent(learner, tmp_path, [])
        agent.act({"state": torch.as_tensor(np.stack([flat_env(env).reset()[0]] * 3))})
        assert got == {wanted}


@pytest.mark.parametrize(
    ("seen", "sent"), [("uint32", "f4"), ("exact", "f4"), ("bytes", "u1")]
)
def test_actors_send_what_float32_can_hold(seen: str, sent: str) -> None:
    with small_learner("dqnapex", f"tests/Seen-{seen}-list-v0") as learner:
        assert learner.layout["result"]["obs"].base == np.dtype(sent)
        learner.iterate()
        low, high = (getattr(WHOLE[seen], end) for end in ("low", "high"))
        obs = learner.learner.sample().obs.double().numpy()
        assert (obs >= np.float32(low)).all()
        assert (obs <= np.float32(high)).all()


def test_actors_of_impala_see_whole_numbers() -> None:
    env = "tests/Seen-uint32-list-v0"
    with small_learner("impala", env, replace(actors_settings(env), actors=1)) as one:
        train_a_little(one)


# --- Modes ----------------------------------------------------------------------------


def moody_models(name: str, env: str) -> dict[str, Any]:
    """Return models with modes, for CartPole or for Pendulum."""
    models = plain_models(name, env)
    for model in models.values():
        model.net = moody(model.net[0].in_features, model.net[-1].out_features)
    return models


def plain_models(name: str, env: str) -> dict[str, Any]:
    """Return models of the book."""
    if "qnet" in ALGORITHMS[name].models:
        distributions = name.startswith("rainbow")
        return {"qnet": CategoricalQNetwork(4, 2) if distributions else QNetwork(4, 2)}
    if env == CARTPOLE:
        actor: Any = (ProbabilityActor if name in DDPG_LIKE else CategoricalActor)(4, 2)
        critic: Any = QNetwork(4, 2) if name == "sac" else StateValue(4)
        critic = ActionValue(4, 2) if name in DDPG_LIKE else critic
    else:
        kind = DeterministicActor if name in DDPG_LIKE else SquashedGaussianActor
        actor = kind(3, np.float32([-2]), np.float32([2]))
        critic = ActionValue(3, 1) if name in FILLING else StateValue(3)
    return {"actor": actor, "critic": critic}


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
    ("name", "env"),
    [
        *((name, CARTPOLE) for name in ALGORITHMS),
        *((name, "Pendulum-v1") for name in ON_POLICY + FILLING),
    ],
)
def test_dropout_is_on_where_there_is_a_gradient_and_nowhere_else(
    name: str, env: str
) -> None:
    models = moody_models(name, env) if name != "ppg" else {}
    with small_learner(name, env, **models) as learner, dropout_watched() as seen:
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


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac"])
def test_an_agent_with_modes_is_judged_as_the_one_that_comes_back(
    name: str, tmp_path: Path
) -> None:
    with small_learner(name, CARTPOLE, **moody_models(name, CARTPOLE)) as learner:
        settings = settings_of_run(name, CARTPOLE, learner.config, {})
        with Run(tmp_path / "run", settings) as run:
            fit(learner, run, progress=False)
    policy, agent = learner.policy, Agent(learner, tmp_path / "run", [])
    with left_alone(policy):
        returns = evaluate(policy, CARTPOLE, 8).tolist()
        assert evaluate(policy, CARTPOLE, 8).tolist() == returns, "nothing is dropped"
        agent.act({"state": torch.randn(1, 4)})  # one state will do
    again = load(tmp_path / "run", **moody_models(name, CARTPOLE))
    assert not any(modes(again)), "it comes back in evaluation mode"
    assert evaluate(again, CARTPOLE, 8).tolist() == returns


def test_a_look_at_a_model_of_ones_own_leaves_it_alone() -> None:
    qnet = moody_models("rainbow", CARTPOLE)["qnet"]
    with left_alone(qnet):
        make_qnet_policy(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), qnet, [0, 1])


# --- Devices --------------------------------------------------------------------------

PENDULUM = "Pendulum-v1"
CONTINUOUS = ("ddpg", "ddpgper", "hddpg", "td3", "sac", "ddpgapex")
# An iteration of each algorithm, with updates in it.
ITERATION = {"learning_starts": 8, "iteration_steps": 16, "batch_size": 8}
ITERATION |= {"rollout_len": 8, "hidden": 16}
EVERYWHERE = [
    (name, PENDULUM if name in CONTINUOUS else CARTPOLE) for name in ALGORITHMS
]
EVERYWHERE += [("sac", CARTPOLE), ("ppo", PENDULUM)]


def small_config(name: str, env: str) -> Any:
    known = ALGORITHMS[name]
    names = {field.name for field in fields(known.config)}
    changes = {key: x for key, x in ITERATION.items() if key in names}
    changes |= {"normalize_obs": True}
    if name == "impala":
        changes |= {"num_steps": 8}
    if "num_epochs" in names:
        changes |= {"num_steps": 16, "num_epochs": 2}
    if "scale_reward" in names:
        changes |= {"scale_reward": True}
    if "aux_interval" in names:
        changes |= {"aux_interval": 1}
    return replace(known.settings(env), **changes)


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


def assert_close(some: dict[str, float], others: dict[str, float], rtol: float) -> None:
    assert some.keys() == others.keys()
    for key, x in some.items():
        assert math.isclose(x, others[key], rel_tol=rtol, abs_tol=rtol) or (
            math.isnan(x) and math.isnan(others[key])
        ), key


@pytest.mark.parametrize(("name", "env"), EVERYWHERE)
def test_an_algorithm_learns_and_resumes_on_any_device(
    name: str, env: str, tmp_path: Path
) -> None:
    wanted = two_iterations(name, env, ("cpu", "cpu"), tmp_path / "here")
    with elsewhere():
        there = two_iterations(name, env, ("cuda", "cpu"), tmp_path / "back")
        goes = two_iterations(name, env, ("cpu", "cuda"), tmp_path / "there")
    for got in (there, goes):
        for some, others in zip(wanted, got, strict=True):
            assert_close(some, others, 1e-4)
    assert any(math.isfinite(x) for key, x in wanted[0].items() if "losses" in key)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "env"), EVERYWHERE)
def test_an_algorithm_learns_and_resumes_on_a_gpu(
    name: str, env: str, tmp_path: Path
) -> None:
    first, _ = two_iterations(name, env, ("cpu", "cuda"), tmp_path / "there")
    got, after = two_iterations(name, env, ("cuda", "cpu"), tmp_path / "back")
    # Which step is drawn by its priority may hang on the last digit.
    priorities = any(word in name for word in ("per", "rainbow", "apex"))
    assert_close(first, got, 1e-2 if priorities else 1e-3)
    assert first.keys() == after.keys()


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


LOGGED = [
    (name, env)
    for name, env in EVERYWHERE
    if "log_interval" in {field.name for field in fields(ALGORITHMS[name].config)}
]


@pytest.mark.parametrize(("name", "env"), LOGGED)
def test_a_longer_row_of_the_log_changes_no_bit(name: str, env: str) -> None:
    small = replace(small_config(name, env), total_steps=320, checkpoint_interval=3)
    each = small.steps_per_iteration
    learners, histories = [], []
    for times in (None, 2, 4):
        log = None if times is None else times * each
        learner = make_learner(name, env, replace(small, log_interval=log), {})
        with ended(learner):
            histories.append(fit(learner, progress=False))
        learners.append(learner)
    whole, *longer = [(x.state_dict(), x.policy.state_dict()) for x in learners]
    for other in longer:
        torch.testing.assert_close(other, whole, rtol=0, atol=0, equal_nan=True)
    rows = histories[0]
    for times, history in zip((2, 4), histories[1:], strict=True):
        ends = [row["step"] for row in rows][times - 1 :: times]
        ends += [rows[-1]["step"]] if len(rows) % times else []
        assert [row["step"] for row in history] == ends
        assert all(row.keys() == rows[0].keys() for row in history)


@pytest.mark.parametrize("name", [name for name in dict(LOGGED) if "apex" in name])
def test_with_actors_an_iteration_is_a_slot(name: str) -> None:
    small = small_config(name, PENDULUM if name in CONTINUOUS else CARTPOLE)
    each = small.rollout_len * small.num_envs
    words = f"log_interval must be a multiple of rollout_len \\* num_envs, {each}"
    with pytest.raises(ValueError, match=f"{words}, got {each + 1}"):
        replace(small, log_interval=each + 1)


def test_stored_settings_of_before_say_what_an_iteration_was() -> None:
    for name, _ in LOGGED:
        config = ALGORITHMS[name].config
        stored = {"config": {"log_interval": 40, "seed": 3}}
        found = training.settings_of(config, stored, Path("settings.json"))
        assert found == config(iteration_steps=40, seed=3)
        assert found.log_interval is None
        both = {"config": {"log_interval": 320, "iteration_steps": 40}}
        found = training.settings_of(config, both, Path("settings.json"))
        assert (found.iteration_steps, found.log_interval) == (40, 320)


FEW = {"learning_starts": 8, "iteration_steps": 40, "batch_size": 8, "total_steps": 80}
FEW |= {"check": False, "progress": False}


def check_a_model_comes_back() -> None:
    net = Odd()
    before = net.first.weight
    agent = train("dqn", CARTPOLE, qnet=net, device="cuda", **FEW)
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
        around = {"step", "charts/SPS", "charts/episodic_length"}
        assert fresh.iterate().keys() == {*agent.history[0]} - around


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
        train("dqn", CARTPOLE, qnet=net, device="cuda", **FEW)
    assert moved == [ELSEWHERE]
    assert {x.device.type for x in net.state_dict().values()} == {"cpu"}


def test_each_part_goes_back_to_its_own_device() -> None:
    with elsewhere():
        net = Odd().to(ELSEWHERE)
        net.last.to("cpu")
        for device in ("auto", "cpu"):
            net.seen.clear()
            train("dqn", CARTPOLE, qnet=net, device=device, **FEW)
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
    small, large = Odd(), Odd(3_000)
    assert (place_of(small), place_of(large)) == ("cpu", "cpu")
    assert capsys.readouterr().out == "", "there is no choice here"
    with elsewhere():
        assert (place_of(small), place_of(large)) == ("cpu", ELSEWHERE.type)
        said = capsys.readouterr().out.splitlines()
        assert said == [
            "device: cpu (an update is 0.2 million multiply-adds, "
            "and CUDA pays above 50 million)",
            "device: meta (an update is 83.0 million multiply-adds, "
            "and CUDA pays above 50 million)",
        ]
        assert place_of(small, "cpu") == "cpu"
        assert place_of(small, "cuda") == ELSEWHERE.type
        assert place_of(large, tell=False) == ELSEWHERE.type
        train("dqn", CARTPOLE, qnet=small, **FEW)
        assert capsys.readouterr().out == "", "nobody asked, or wants to know"
        train("dqn", CARTPOLE, qnet=small, **FEW | {"progress": True})
        assert "device: cpu" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "changes", "rows"),
    [
        ("ppo", {"num_envs": 3, "num_steps": 40, "num_minibatches": 4}, 30),
        ("ppg", {"num_envs": 3, "num_steps": 40, "num_minibatches": 4}, 30),
        ("a2c", {"num_envs": 3, "num_steps": 40}, 120),
        ("a3c", {"num_envs": 3, "num_steps": 40}, 0),
        ("impala", {"batch_size": 5, "num_steps": 7, "num_envs": 3}, 35),
        ("impala", {"batch_size": 5, "num_steps": 7, "num_envs": 3, "actors": 2}, 21),
        ("sac", {"batch_size": 77, "num_envs": 2, "num_steps": 3}, 77),
        ("dqnapex", {"batch_size": 77}, 77),
    ],
)
def test_rows_of_an_update(name: str, changes: dict[str, int], rows: int) -> None:
    assert ALGORITHMS[name].config(**changes).rows_per_update == rows


def test_two_devices_do_not_meet() -> None:
    here, cpu = torch.ones(3), torch.device("cpu")
    with elsewhere():
        there = here.to(ELSEWHERE)
        assert (there.sum().item(), there.tolist()) == (3.0, [1.0, 1.0, 1.0])
        assert torch.equal((there * torch.tensor(2.0)).cpu(), 2 * here)
        assert (there[here.bool()].device, there.cpu().device) == (ELSEWHERE, cpu)
        generator = torch.Generator().manual_seed(0)
        for wrong in (
            lambda: there + here,
            lambda: here.add_(there),
            lambda: torch.stack([there, here]),
            lambda: here[there.bool()],
            lambda: torch.randn(3, generator=generator, device=ELSEWHERE),
            lambda: there.numpy(),
        ):
            with pytest.raises((RuntimeError, TypeError)):
                wrong()
        assert here.tolist() == [1.0, 1.0, 1.0]


# --- What train takes -----------------------------------------------------------------


def made_pole() -> gym.Env[Any, Any]:
    return CartPoleEnv()


def made_picture() -> gym.Env[Any, Any]:
    return Sampled(SEEN["picture"], LISTED)


BRIEF: dict[str, Any] = {"total_steps": 64, "num_envs": 2, "progress": False}


@pytest.mark.parametrize(
    ("env", "name"),
    [
        (CARTPOLE, CARTPOLE),
        (CartPoleEnv, "gymnasium.envs.classic_control.cartpole:CartPoleEnv"),
        (made_pole, "test_training:made_pole"),
        ("test_training:made_pole", "test_training:made_pole"),
        (lambda: CartPoleEnv(), "<<lambda> of test_training>"),
        (partial(CartPoleEnv, sutton_barto_reward=True), "<partial of"),
    ],
)
def test_an_environment_is_an_id_a_class_or_a_function(
    env: Any, name: str, tmp_path: Path
) -> None:
    agent = train("A2C", env, **BRIEF)
    assert agent.env is env
    saved = agent.save(tmp_path / "a")
    stored = json.loads((saved / "settings.json").read_text())
    name = name.replace("<<lambda>", "<lambda")
    assert stored["env"].startswith(name)
    assert "wrappers" not in stored
    returns = evaluate(agent.policy, agent.env, 2).tolist()
    assert evaluate(load(saved), env, 2).tolist() == returns
    edit(saved, total_steps=128)
    again = train("A2C", env, resume=saved, progress=False)
    assert again.history[0]["step"] > 64
    assert load_checkpoint(saved / "checkpoint.pt")["step"] >= 128
    if "<" in name:
        with pytest.raises(ValueError, match="may not choose whose code runs"):
            load_env(saved)
        with pytest.raises(SystemExit, match=r"hand over again --env .* in Python"):
            main(["a2c", "--resume", str(saved)])
    elif ":" in name:
        with pytest.raises(ValueError, match="may not choose whose code runs"):
            load_env(saved)
        assert load_env(saved, env) is env
        with pytest.raises(SystemExit, match=f"hand over again --env {name}"):
            main(["a2c", "--resume", str(saved)])
        main(["a2c", "--resume", str(saved), "--env", name])
        with pytest.raises(ValueError, match=r"the run has env .*, not CartPole-v1"):
            train("A2C", CARTPOLE, resume=saved, progress=False)


def edit(directory: Path, **changes: Any) -> None:
    """Change the settings of a run."""
    path = directory / "settings.json"
    stored = json.loads(path.read_text())
    stored["config"] |= changes
    path.write_text(json.dumps(stored))


@pytest.mark.parametrize("env", [gym.make(CARTPOLE), 5, None, [CARTPOLE]])
def test_what_is_no_environment_is_refused(env: Any) -> None:
    with pytest.raises(TypeError, match="env must be an id, a class, a function or a"):
        train("PPO", env, **BRIEF)


def vectors(env: Any, number: int = 2, mode: str = "SameStep") -> SyncVectorEnv:
    return SyncVectorEnv([env_maker(env)] * number, autoreset_mode=mode)


@pytest.mark.parametrize(
    ("name", "env"),
    [
        *((name, made_pole) for name in ("ppo", "ppg", "a2c", "impala", "rainbow")),
        *((name, made_picture) for name in ("ppo", "impala", "dqn", "sac")),
        ("a2c", "tests/Seen-parts-list-v0"),
        ("a2c", "tests/Seen-Discrete-list-v0"),
        ("sac", "tests/Seen-picture-list-v0"),
        ("td3", "tests/Seen-parts-box-v0"),
    ],
)
def test_a_vector_environment_is_what_train_would_make(name: str, env: Any) -> None:
    config = ALGORITHMS[name].settings("")
    names = {field.name for field in fields(config)}
    small = {key: x for key, x in SMALL.items() if key in names}
    small |= {"num_steps": 8} if "num_steps" in names else {}
    given = {key: x for key, x in small.items() if key != "num_envs"}
    plain = train(name, env, **small, progress=False)
    envs = vectors(env)
    agent = train(name, envs, **given, progress=False)
    assert not envs.closed, "it is the user's"
    envs.close()
    ours, theirs = plain.policy.state_dict(), agent.policy.state_dict()
    assert all(torch.equal(x, theirs[key]) for key, x in ours.items())


@pytest.mark.parametrize("name", ["ppo", "dqn", "impala"])
def test_a_vector_environment_may_reset_a_step_later(name: str, tmp_path: Path) -> None:
    envs = gym.make_vec(CARTPOLE, 4)
    agent = train(name, envs, total_steps=500, progress=False)
    assert agent.learner.config.num_envs == 4
    saved = agent.save(tmp_path / "a")
    assert load(saved).recipe == agent.policy.recipe
    edit(saved, total_steps=1000)
    with pytest.raises(SystemExit, match="<CartPoleVectorEnv of CartPole-v1>' in Pyt"):
        main([name, "--resume", str(saved)])
    with pytest.raises(ValueError, match="num_envs must be 2, as many as env has"):
        train(name, vectors(made_pole), resume=saved, progress=False)
    assert train(name, envs, resume=saved, progress=False).learner.step >= 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 4}, "num_envs must be 2, as many as env has, got 4"),
        ({"wrappers": ["ClipAction"]}, "wrappers must be left out with a vector"),
        ({"qnet": ThreeValues()}, "q_value must have shape"),
    ],
)
def test_what_does_not_fit_a_vector_environment_is_said(
    options: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        train("DQN", vectors(made_pole), total_steps=8, progress=False, **options)
    with pytest.raises(ValueError, match=r"NEXT_STEP or SAME_STEP .* got DISABLED"):
        train("PPO", vectors(made_pole, 2, "Disabled"), progress=False)
    for name, more in (("A3C", {}), ("DQNApex", {}), ("impala", {"actors": 1})):
        with pytest.raises(ValueError, match="actors make environments of their own"):
            train(name, vectors(made_pole), **more, progress=False)


def test_a_model_of_ones_own_learns_in_a_vector_environment() -> None:
    agent = train("DQN", vectors(made_pole), qnet=QNet(), **SHORT)
    assert agent.act({"some_state": torch.zeros(3, 4)})[0].shape == (3, 1)


# --- Wrappers -------------------------------------------------------------------------

AROUND = ["TimeAwareObservation", gym.wrappers.OrderEnforcing]
AROUND += ["FrameStackObservation(stack_size=3)"]


def test_wrappers_are_stored_and_go_where_the_run_goes(tmp_path: Path) -> None:
    agent = train("PPO", CARTPOLE, wrappers=AROUND, **BRIEF)
    saved = agent.save(tmp_path / "a")
    stored = json.loads((saved / "settings.json").read_text())
    names = [x if isinstance(x, str) else "OrderEnforcing" for x in AROUND]
    assert (stored["env"], stored["wrappers"]) == (CARTPOLE, names)
    assert agent.learner.config.gamma == ALGORITHMS["ppo"].settings(CARTPOLE).gamma
    # The agent is judged, shown and filmed with them.
    env, policy = load_env(saved), load(saved)
    returns = evaluate(agent.policy, agent.env, 2).tolist()
    assert evaluate(policy, env, 2).tolist() == returns
    assert record_video(policy, env, tmp_path / "a.mp4", seed=1) > 0
    for judged in (evaluate, partial(record_video, path=tmp_path / "b.mp4")):
        with pytest.raises(ValueError, match=r"must show 15 numbers, .* got 4"):
            judged(policy, CARTPOLE)
    edit(saved, total_steps=128)
    before = (saved / "checkpoint.pt").read_bytes()
    for wrong in (["ClipAction"], AROUND[:2], [*AROUND, "ClipAction"]):
        with pytest.raises(ValueError, match="the run has wrappers"):
            train("PPO", CARTPOLE, wrappers=wrong, resume=saved, progress=False)
    assert (saved / "checkpoint.pt").read_bytes() == before
    train("PPO", CARTPOLE, resume=saved, progress=False)
    main(["ppo", "--resume", str(saved), "--wrappers", *names])


class Doubled(gym.RewardWrapper[Any, Any]):
    def reward(self, reward: Any) -> Any:
        return 2 * float(reward)


def test_wrappers_of_ones_own_are_named_again(tmp_path: Path) -> None:
    saved = train("A2C", CARTPOLE, wrappers=[Doubled], **BRIEF).save(tmp_path / "a")
    assert evaluate(load(saved), load_env(saved, wrappers=[Doubled]), 1)[0] % 2 == 0
    named = "test_training:Doubled"
    with pytest.raises(ValueError, match=f"hand over again wrappers {named}"):
        load_env(saved)
    resume = ["a2c", "--resume", str(saved)]
    with pytest.raises(SystemExit, match=f"hand over again --wrappers {named}"):
        main(resume)
    main([*resume, "--wrappers", named])
    nameless = train("A2C", CARTPOLE, wrappers=[lambda env: Doubled(env)], **BRIEF)
    other = nameless.save(tmp_path / "b")
    with pytest.raises(SystemExit, match=r"hand over again --wrappers .* in Python"):
        main(["a2c", "--resume", str(other)])
    train("A2C", CARTPOLE, wrappers=[Doubled], resume=other, progress=False)


def test_a_wrapper_that_writes_files_is_a_command(tmp_path: Path) -> None:
    saved = train("A2C", CARTPOLE, **BRIEF).save(tmp_path / "a")
    path = saved / "settings.json"
    stored = json.loads(path.read_text())
    for around, message in (
        ([f"RecordVideo({str(tmp_path / 'films')!r})"], "may not choose whose code"),
        (["Nothing"], "must be names of gymnasium.wrappers"),
    ):
        path.write_text(json.dumps(stored | {"wrappers": around}))
        for call in (load_env, lambda x: train("A2C", CARTPOLE, resume=x)):
            with pytest.raises(ValueError, match=message):
                call(saved)
    assert not (tmp_path / "films").exists()


def test_actors_in_other_processes_have_wrappers_and_classes() -> None:
    """Also of an environment that only this process has registered."""
    gym.register("tests/Here-v0", "worlds:Counting", max_episode_steps=10)
    small = {"actors": 1, "transport": "shared", "num_envs": 2, "num_steps": 4}
    small |= {"total_steps": 16, "progress": False}
    around = ["TimeAwareObservation", gym.wrappers.TimeAwareObservation]
    agent = train("impala", "tests/Here-v0", wrappers=around, **small)
    assert agent.policy.network.actor[0].in_features == 4
    assert agent.history[-1]["step"] == 16


@pytest.mark.parametrize("what", ["env", "wrappers", "encoder"])
def test_what_other_processes_cannot_import_is_said(what: str) -> None:
    class Hidden(Eye):
        """Of a class that nobody can import."""

    options: dict[str, Any] = {}
    if what == "encoder":
        options = {"encoder": lambda space: Hidden(*space.shape)}
    if what == "wrappers":
        options = {"wrappers": [lambda env: env]}
    env: Any = (lambda: CartPoleEnv()) if what == "env" else CARTPOLE
    name = "encoder" if what == "encoder" else "env"
    words = f"^{name} must be something that actors in other .* write it into a file"
    with pytest.raises(ValueError, match=words):
        train("impala", env, actors=1, transport="shared", progress=False, **options)
    # Where no process is needed it will do.
    agent = train("impala", env, actors=1, total_steps=8, progress=False, **options)
    assert agent.learner.step >= 8


# --- Masks and shared encoders --------------------------------------------------------

UNTOLD = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,))))
gym.register("tests/Untold-v0", partial(Sampled, SEEN["float32"], UNTOLD))
MASK = [[1, 0], [0, 1], [0, 0]]
FEW_STEPS: dict[str, dict[str, Any]] = {
    name: {"num_envs": 2, "num_steps": 8, "num_minibatches": 1, "num_epochs": 1}
    for name in ("ppo", "ppg")
}
FEW_STEPS |= {"ppg": FEW_STEPS["ppg"] | {"aux_interval": 1, "aux_epochs": 1}}
FEW_STEPS |= {name: {"num_envs": 2, "num_steps": 8} for name in ("a2c", "a3c")}
FEW_STEPS["impala"] = {"num_envs": 2, "num_steps": 8, "batch_size": 2}


@pytest.mark.parametrize("name", ON_POLICY)
def test_a_space_that_does_not_tell_its_mask_is_given_one(
    name: str, tmp_path: Path
) -> None:
    options = FEW_STEPS[name] | {"total_steps": 16, "progress": False}
    with pytest.raises(ValueError, match="mask must be given"):
        train(name, "tests/Untold-v0", **options)
    given: Any = {"ppo": np.array(MASK), "a2c": torch.tensor(MASK).bool()}
    agent = train(name, "tests/Untold-v0", mask=given.get(name, MASK), **options)
    saved = agent.save(tmp_path / "a")
    assert json.loads((saved / "settings.json").read_text())["mask"] == MASK
    for policy in (agent.policy, load(saved)):
        assert policy.actions.mask.int().tolist() == MASK
        assert evaluate(policy, "tests/Untold-v0", 1).shape == (1,)
    edit(saved, total_steps=32)
    with pytest.raises(ValueError, match=r"the run has mask .*, not"):
        train(name, "tests/Untold-v0", mask=[[1, 1]] * 3, resume=saved, progress=False)
    main([name, "--resume", str(saved)])
    main([name, "--resume", str(saved), "--mask", "10", "01", "00"])
    assert load_checkpoint(saved / "checkpoint.pt")["step"] == 32


@pytest.mark.parametrize(
    ("name", "env", "mask", "message"),
    [
        ("ppo", CARTPOLE, MASK, "mask is for hybrid actions .* ppo and Discrete"),
        ("dqn", "tests/Untold-v0", MASK, "mask is for hybrid actions .* got dqn"),
        ("sac", "tests/Untold-v0", MASK, "mask is for hybrid actions .* got sac"),
        ("ppo", "tests/Untold-v0", MASK[:2], r"mask must have a row .* \(3, 2\)"),
        ("ppo", "tests/Untold-v0", [1, 0], "mask must be a table of zeros and ones"),
        ("ppo", "tests/Untold-v0", [[2, 0]] * 3, "mask must be a table of zeros"),
        ("ppo", "tests/Untold-v0", "10", "mask must be a table of zeros and ones"),
        ("ppo", "tests/Untold-v0", [[1], [0, 1]], "mask must be a table of zeros"),
    ],
)
def test_masks_that_do_not_fit_are_refused(
    name: str, env: str, mask: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        train(name, env, mask=mask, progress=False)


@pytest.mark.parametrize("encoder", [None, make_eye], ids=["chosen", "own"])
@pytest.mark.parametrize("name", ON_POLICY)
def test_actor_and_critic_may_share_an_encoder(
    name: str, encoder: Any, tmp_path: Path
) -> None:
    own = {} if encoder is None else {"encoder": encoder}
    for env in ("tests/Seen-picture-list-v0", "tests/Hybrid-v0"):
        options = FEW_STEPS[name] | {"total_steps": 16, "progress": False} | own
        apart = train(name, env, **options)
        agent = train(name, env, share_encoder=True, **options)
        kind = PictureEncoder if encoder is None else Eye
        for trained, number in ((apart, 2), (agent, 1)):
            found = [x for x in trained.policy.modules() if isinstance(x, kind)]
            assert len(found) == number
        saved = agent.save(tmp_path / env.replace("/", "_"))
        ours, theirs = agent.policy.state_dict(), load(saved, **own).state_dict()
        assert all(torch.equal(x, theirs[key]) for key, x in ours.items())
        edit(saved, total_steps=32)
        again = train(name, env, resume=saved, progress=False, **own)
        assert again.learner.step == 32
        assert sum(isinstance(x, kind) for x in again.policy.modules()) == 1


SHARING = [
    *((name, "tests/Seen-picture-box-v0") for name in ("ddpg", "hddpg", "td3", "sac")),
    *((name, "tests/Seen-picture-list-v0") for name in ("ddpg", "td3", "sac")),
]
BRIEFLY = {"num_envs": 2, "total_steps": 32, "learning_starts": 8, "batch_size": 4}
BRIEFLY |= {"train_interval": 2, "iteration_steps": 16, "progress": False}


@pytest.mark.parametrize("encoder", [None, make_eye], ids=["chosen", "own"])
@pytest.mark.parametrize(("name", "env"), SHARING)
def test_critics_alone_move_a_shared_encoder(
    name: str, env: str, encoder: Any, tmp_path: Path
) -> None:
    own = {} if encoder is None else {"encoder": encoder}
    agent = train(name, env, share_encoder=True, **BRIEFLY, **own)
    learner, kind = agent.learner, PictureEncoder if encoder is None else Eye
    (eye,) = (x for x in agent.policy.modules() if isinstance(x, kind))
    target = learner.algorithm.target.network
    assert sum(isinstance(x, kind) for x in target.modules()) == 1
    saved = agent.save(tmp_path / "run")
    ours, theirs = agent.policy.state_dict(), load(saved, **own)
    assert all(torch.equal(x, ours[key]) for key, x in theirs.state_dict().items())
    # The actor climbs, the encoder stays; the critics learn, and it moves.
    batch, before = learner.sample(), copy.deepcopy(eye.state_dict())
    climbs = copy.deepcopy([x.detach() for x in learner.actor])
    learner.optimizer.state.clear()
    learner.climb(batch.obs)
    assert all(torch.equal(x, before[key]) for key, x in eye.state_dict().items())
    assert any(not torch.equal(*x) for x in zip(climbs, learner.actor, strict=True))
    learner.learn()
    assert any(not torch.equal(x, before[key]) for key, x in eye.state_dict().items())
    # It has come back as one, and the run goes on.
    assert sum(isinstance(x, kind) for x in theirs.modules()) == 1
    edit(saved, total_steps=64)
    again = train(name, env, resume=saved, progress=False, **own)
    assert again.learner.step == 64
    assert sum(isinstance(x, kind) for x in again.policy.modules()) == 1


@pytest.mark.parametrize(
    ("name", "env", "error", "message"),
    [
        ("ppo", CARTPOLE, ValueError, "^share_encoder must be False without an enc"),
        ("a3c", CARTPOLE, ValueError, "^share_encoder must be False without an enc"),
        ("impala", "literate_rl/Moving-v0", ValueError, "^share_encoder must be Fal"),
        ("dqn", CARTPOLE, TypeError, "'share_encoder' .it is one of "),
        ("rainbow", CARTPOLE, TypeError, "there is no setting 'share_encoder'"),
        ("sac", CARTPOLE, ValueError, "^share_encoder must be False without an enc"),
        ("td3", PENDULUM, ValueError, "^share_encoder must be False without an enc"),
    ],
)
def test_where_there_is_nothing_to_share_it_is_said(
    name: str, env: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        train(name, env, share_encoder=True, progress=False)


# --- Names, and what is said ----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *((name.upper(), name) for name in ALGORITHMS),
        *((x.__name__, y) for x, y in ((PPO, "ppo"), (PPGAlgorithm, "ppg"))),
        *(
            ("DiscreteSAC", "sac"),
            ("DQN-Per", "dqnper"),
            ("rainbow apex", "rainbowapex"),
        ),
    ],
)
def test_an_algorithm_has_the_name_of_its_class(name: str, key: str) -> None:
    assert algorithm_named(name) == key


@pytest.mark.parametrize(
    ("name", "belongs"),
    [
        ("RainbowNetwork", "'rainbow'"),
        ("PPOConfig", "'ppo'"),
        ("DQNConfig", "'dqn'"),
        ("Apex", "'dqnapex' or 'rainbowapex' or 'ddpgapex'"),
        ("PPO2", "'ppo'"),
    ],
)
def test_other_names_say_where_they_belong(name: str, belongs: str) -> None:
    with pytest.raises(ValueError, match=f"got '{name}': is it {belongs}") as refused:
        train(name, CARTPOLE)
    named = [x.lower() for x in re.findall(r"'(\w+)'", str(refused.value))[1:]]
    assert set(named) <= ALGORITHMS.keys(), "what is advised is there"


def test_a_name_that_belongs_nowhere_is_no_algorithm() -> None:
    for name in ("SARSA", "", "evaluate"):
        with pytest.raises(ValueError, match=f"got '{name}'$"):
            train(name, CARTPOLE)
    with pytest.raises(
        TypeError, match="must be a text such as 'PPO', or a row, got PPO"
    ):
        train(PPO, CARTPOLE)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_steps_of_an_iteration(name: str) -> None:
    env = PENDULUM if name in CONTINUOUS else CARTPOLE
    with small_learner(name, env) as learner:
        learner.iterate()
        assert learner.step == learner.config.steps_per_iteration


def test_a_training_says_how_many_steps_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"num_envs": 2, "num_steps": 16}
    agent = train("A2C", CARTPOLE, total_steps=100, **small)
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "fast forms: acting",
        "steps: 128 for 100, because an iteration has 32",
        "watch it with show(agent.policy, agent.env), keep it with "
        "agent.save(directory)",
    ]
    assert agent.learner.step == 128
    saved = agent.save(tmp_path / "a")
    for total, takes in ((100, 0), (129, 160), (160, 0)):
        edit(saved, total_steps=total)
        train("A2C", CARTPOLE, resume=saved)
        said = capsys.readouterr().out
        assert said.endswith(f", kept in {saved}\n")
        assert (f"steps: {takes} for {total}" in said) == bool(takes)
    train("A2C", CARTPOLE, total_steps=64, **small)
    assert "steps" not in capsys.readouterr().out
    train("A2C", vectors(made_pole), total_steps=64, num_steps=16)
    assert "watch" not in capsys.readouterr().out


def test_what_an_agent_is_not_is_said() -> None:
    envs = SyncVectorEnv([CartPoleEnv, CartPoleEnv])
    agent = train("PPO", envs, total_steps=16, progress=False)
    with pytest.raises(
        TypeError, match=r"policy must have act.*got Agent.*agent.policy"
    ):
        evaluate(agent, "CartPole-v1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"env must be an id.*got SyncVectorEnv"):
        show(agent.policy, agent.env)
    with pytest.raises(TypeError, match="directory must be a str or a Path, got Agent"):
        look(agent)  # type: ignore[arg-type]
    state = np.zeros((2, 4))
    assert agent.act({"state": state}).shape == (2,)
    with pytest.raises(
        ValueError, match=r"states must have the key 'state', got \['obs'"
    ):
        agent.act({"obs": state})
    with pytest.raises(
        ValueError, match=r"'state'\] must have shape \(B, 4\), got \(2, 3"
    ):
        agent.act({"state": state[:, :3]})


@pytest.mark.parametrize(
    ("algorithm", "options", "error", "message"),
    [
        ("PP0", {}, ValueError, "is it 'ppo'?"),
        ("PPO", {"totalsteps": 3}, TypeError, "'totalsteps' (is it total_steps?), but"),
        (
            "DQN",
            {"qnet": nn.Identity},
            TypeError,
            "qnet must be a torch.nn.Module, got",
        ),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(
    algorithm: str, options: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        train(algorithm, "CartPole-v1", **options)


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


def told_of_resets(name: str, length: int, interval: int = 6) -> list[str]:
    """Train over three checkpoints, and return what was said of cut off episodes."""
    config = replace(
        training.ALGORITHMS[name].settings(""), checkpoint_interval=interval
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with small_learner(name, partial(Steps, length), config) as learner:
            for _ in range(3 * interval + 1):
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
    assert "raise checkpoint_interval" in words
    # One step decides: what ends just in time is seen, and nothing is said.
    assert told_of_resets(name, longest) == []
    assert told_of_resets(name, longest + 1) == [words]


def test_a_resumed_or_stopped_run_says_nothing_of_episodes(tmp_path):
    with warnings.catch_warnings(action="error"):
        agent = train("PPO", partial(Steps, 10**6), total_steps=2048, progress=False)
        agent.save(tmp_path / "run")
        state = agent.learner.state_dict()
        agent.learner.load_state_dict(state)
        agent.learner.iterate()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_settings_of_usual_tasks_leave_time_to_end(name):
    # An episode as long as the longest of the task ends before the checkpoint.
    for env in ("CartPole-v1", "Pendulum-v1", "literate_rl/Moving-v0"):
        config = training.ALGORITHMS[name].settings(env)
        limit = gym.spec(env).max_episode_steps
        steps = getattr(config, "rollout_len", 0)
        if hasattr(config, "num_epochs") or name in ("a2c", "a3c", "impala"):
            steps = config.num_steps
        elif not getattr(config, "actors", None):
            steps *= config.rounds
        share = getattr(config, "actors", None) or 1
        assert limit <= steps * config.checkpoint_interval // share, env


KINDS = {bool: np.bool_, int: np.int32, float: np.float32, str: np.str_}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_settings_may_be_numbers_of_numpy(name: str) -> None:
    default = ALGORITHMS[name].settings("CartPole-v1")
    values = {x: y for x, y in vars(default).items() if type(y) in KINDS}
    given = {x: KINDS[type(y)](y) for x, y in values.items()}
    made = replace(default, **given)
    assert repr(type(default)(**{**vars(default), **given})) == repr(made)
    for x, y in values.items():
        assert type(getattr(made, x)) is type(y)
        assert getattr(made, x) == pytest.approx(y)


SWEPT: dict[str, Any] = {
    "PPO": {
        "num_envs": np.int32(2),
        "num_steps": np.array(8),
        "anneal": np.bool_(True),
    },
    "DQN": {"hidden": np.int64(8), "learning_rate": np.logspace(-4, -2, 3)[0]},
    "Rainbow": {"value_max": np.linspace(50, 100, 2)[0], "num_atoms": np.uint8(5)},
    "IMPALA": {"seed": torch.tensor(3), "optim": np.str_("rmsprop")},
    "SAC": {
        "temperature": np.float32(0.1),
        "learning_rate": torch.logspace(-4, -2, 3)[0],
    },
}


@pytest.mark.parametrize("name", SWEPT)
def test_a_swept_run_is_kept_and_goes_on(name: str, tmp_path: Path) -> None:
    options = {"total_steps": np.int64(64), "seed": np.int64(3)} | SWEPT[name]
    agent = train(name, "CartPole-v1", progress=np.bool_(False), **options)
    path = agent.save(tmp_path / "kept")
    stored = json.loads((path / "settings.json").read_text())["config"]
    for setting, x in options.items():
        assert stored[setting] == x.item()
    load(path)
    train(name, "CartPole-v1", resume=path, progress=False, **options)
    with pytest.raises(ValueError, match="the run has total_steps 64, not 63"):
        train(name, "CartPole-v1", resume=path, total_steps=np.int64(63))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"total_steps": np.float64(1e3)},
            "total_steps must be an integer, got float64",
        ),
        ({"num_envs": np.bool_(True)}, "num_envs must be an integer, got bool"),
        ({"lr": 0.1}, r"no setting 'lr' \(is it learning_rate\?\)"),
        ({"gae_lambda": 0.1}, r"no setting 'gae_lambda' \(is it lambda_\?\)"),
        ({"hidden": 64}, r"no setting 'hidden' \(PPO and its relatives"),
    ],
)
def test_what_is_no_setting_is_told(options: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        train("PPO", "CartPole-v1", progress=False, **options)


def test_a_file_may_name_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    text = "import gymnasium as gym\ndef make() -> gym.Env:\n"
    (tmp_path / "halls_x.py").write_text(f"{text}    return gym.make('CartPole-v1')\n")
    small: Any = {"total_steps": 32, "num_steps": 16, "num_envs": 2, "progress": False}
    small["num_minibatches"] = 1
    agent = train("PPO", f"{tmp_path}/halls_x.py", **small)
    stored = json.loads((agent.folder / "settings.json").read_text())
    assert stored["env"] == f"{tmp_path}/halls_x.py:make"
    path = agent.save(tmp_path / "kept")
    for env in (f"{tmp_path}/halls_x.py", f"{tmp_path}/halls_x:make", "halls_x:make"):
        assert len(evaluate(agent.policy, env, 1)) == 1
        train("PPO", env, resume=path, progress=False)
    with pytest.raises(ValueError, match=r"has env .*halls_x\.py:make, not"):
        train("PPO", f"{tmp_path}/halls_x.py:other", resume=path)
