"""Training in one call: models of one's own are checked, trained, saved, loaded."""

import gc
import math
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from elsewhere import ELSEWHERE, Far, elsewhere
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
from literate_rl.workshop import training
from literate_rl.workshop.runs import Run, load
from literate_rl.workshop.training import (
    ALGORITHMS,
    Agent,
    Device,
    ended,
    make_learner,
    make_qnet_policy,
    placing,
    rows_of_update,
    train,
    work_of_update,
)

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
        (lambda: train("DQN", CARTPOLE, device="gpu"), "of auto, cpu, cuda, got 'gpu'"),
        (lambda: train("DQN", CARTPOLE, device="cuda"), "cpu or auto where .* no CUDA"),
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


# --- Devices --------------------------------------------------------------------------

PENDULUM = "Pendulum-v1"
BOXES = ("ddpg", "ddpgper", "hddpg", "td3", "sac", "ddpgapex")
# An iteration of each algorithm, with updates in it.
ITERATION = {"learning_starts": 8, "log_interval": 16, "batch_size": 8}
ITERATION |= {"rollout_len": 8, "unroll_len": 8, "hidden": 16}
EVERYWHERE = [(name, PENDULUM if name in BOXES else CARTPOLE) for name in ALGORITHMS]
EVERYWHERE += [("sac", CARTPOLE), ("ppo", PENDULUM)]


def small_config(name: str, env: str) -> Any:
    known = ALGORITHMS[name]
    names = {field.name for field in fields(known.config)}
    changes = {key: x for key, x in ITERATION.items() if key in names}
    if "num_epochs" in names:
        changes |= {"num_steps": 16, "num_epochs": 2}
        changes |= {"normalize_obs": True, "scale_reward": True}
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


FEW = {"learning_starts": 8, "log_interval": 40, "batch_size": 8, "total_steps": 80}
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
        assert fresh.iterate().keys() == {*agent.history[0]} - {"step", "charts/SPS"}


def test_a_model_of_ones_own_comes_back() -> None:
    with elsewhere():
        check_a_model_comes_back()


@pytest.mark.gpu
def test_a_model_of_ones_own_comes_back_from_a_gpu() -> None:
    check_a_model_comes_back()


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
@pytest.mark.parametrize("place", ["fit", "DQN"])
def test_a_model_comes_back_after_an_error(
    error: BaseException, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, moved = Odd(), []

    def fails(*arguments: Any) -> Any:
        moved.append(net.first.weight.device)
        raise error

    monkeypatch.setattr(training, place, fails)
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
    envs: Any = SimpleNamespace(single_observation_space=space)
    with placing(device, tell) as place:
        place(policy, envs, ALGORITHMS["dqn"].config(batch_size=1024))
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
        ("impala", {"batch_size": 5, "unroll_len": 7, "n_sample": 3}, 35),
        ("impala", {"batch_size": 5, "unroll_len": 7, "n_sample": 3, "actors": 2}, 21),
        ("sac", {"batch_size": 77, "num_envs": 2, "num_steps": 3}, 77),
        ("dqnapex", {"batch_size": 77}, 77),
    ],
)
def test_rows_of_an_update(name: str, changes: dict[str, int], rows: int) -> None:
    assert rows_of_update(ALGORITHMS[name].config(**changes)) == rows


def test_a_convolution_uses_its_weights_many_times() -> None:
    picture = spaces.Box(0.0, 1.0, (4, 10, 10))
    config = ALGORITHMS["dqn"].config(batch_size=100)
    envs: Any = SimpleNamespace(single_observation_space=spaces.Box(0.0, 1.0, (400,)))
    layers = nn.Unflatten(-1, (4, 10, 10)), nn.Conv2d(4, 16, 3), nn.Flatten(1)
    net = nn.Sequential(*layers, nn.Linear(1024, 2))
    network = nn.Module()
    network.net = net
    network.forward = lambda state: net(state.flatten(1))  # type: ignore[method-assign]
    policy = make_qnet_policy(picture, spaces.Discrete(2), network)
    each = 64 * 16 * 4 * 9 + 1024 * 2
    assert work_of_update(policy, envs, config) == 3 * 100 * each


def test_counting_leaves_no_trace() -> None:
    net = Odd()
    envs: Any = SimpleNamespace(single_observation_space=spaces.Box(-1.0, 1.0, (4,)))
    policy = make_qnet_policy(envs.single_observation_space, spaces.Discrete(2), net)
    config = ALGORITHMS["dqn"].config(batch_size=1)
    before = {key: x.clone() for key, x in policy.state_dict().items()}
    state = torch.get_rng_state()
    assert work_of_update(policy, envs, config) > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(x, before[key]) for key, x in policy.state_dict().items())
    assert net.training
    assert net.calls == 0
    # What cannot be copied or called is judged by its parameters.
    net.forward = lambda: None  # type: ignore[method-assign]
    weights = sum(x.numel() for x in policy.parameters())
    assert work_of_update(policy, envs, config) == 3 * weights


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
