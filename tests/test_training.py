"""Training in one call: models of one's own are checked, trained, saved, loaded."""

import gc
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.envs.registration import EnvSpec
from torch import Tensor, nn

from literate_rl.contract_models import (
    ActionValue,
    CategoricalActor,
    CategoricalQNetwork,
    ProbabilityActor,
    QNetwork,
    StateValue,
)
from literate_rl.contracts import ContractError
from literate_rl.evaluation import evaluate
from literate_rl.workshop.runs import load
from literate_rl.workshop.training import ALGORITHMS, Agent, make_qnet_policy, train

CARTPOLE = "CartPole-v1"
SHORT = {"total_steps": 800, "progress": False}
DDPG_LIKE = ("ddpg", "ddpgper", "hddpg", "td3", "ddpgapex")
# Settings with which a short run reaches updates.
TINY: dict[str, dict[str, Any]] = {
    "ppo": {"num_steps": 32},
    "impala": {"n_sample": 4},
    "rainbow": {"learning_starts": 400, "log_interval": 400, "batch_size": 32},
    "dqn": {"learning_starts": 400, "log_interval": 400, "batch_size": 32},
    "dqnper": {"learning_starts": 400, "log_interval": 400, "batch_size": 32},
    "dqnapex": {"learning_starts": 400, "batch_size": 32},
    "rainbowapex": {"learning_starts": 400, "batch_size": 32},
} | {name: {"learning_starts": 700, "batch_size": 32} for name in DDPG_LIKE}
TINY["sac"] = {"learning_starts": 700, "log_interval": 200, "batch_size": 32}


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
        (lambda: train("SARSA", CARTPOLE), "algorithm must be one of ppo.*'SARSA'"),
        (lambda: train("DQN", CARTPOLE, steps=3), "no setting 'steps', but seed"),
        (lambda: train("DQN", CARTPOLE, actor=QNet()), "for dqn must be qnet, got act"),
        (lambda: train("PPO", CARTPOLE, actor=QNet()), "must be actor and critic, got"),
        (lambda: train("ppg", CARTPOLE, qnet=QNet()), "for ppg must be none, got qnet"),
        (lambda: train("DQN", "Pendulum-v1"), "actions must be Discrete"),
        (lambda: train("DQN", "NoSuch-v0"), "NoSuch-v0"),
        (lambda: train("DQN", CARTPOLE, total_steps=0), "total_steps"),
    ],
)
def test_what_cannot_be_trained_is_said(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


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
        ({"qnet": ThreeValues()}, "cannot be built"),
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
    assert agent.policy.network.first.shape == (3, 7, 7)
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
    with pytest.raises(ValueError, match="the pole is glass") as failure:
        train("ppo", "Failing-v0", total_steps=10_000, progress=False, **small)
    if last == 20:
        assert list(tmp_path.iterdir()) == []
    else:
        (folder,) = tmp_path.iterdir()
        assert failure.value.__notes__ == [f"what was saved is kept in {folder}"]
        assert load(folder).network.actor[0].in_features == 4


def test_an_agent_that_is_gone_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    agent = train("a2c", CARTPOLE, **SHORT)
    assert len(list(tmp_path.iterdir())) == 1
    del agent
    gc.collect()
    assert list(tmp_path.iterdir()) == []


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
