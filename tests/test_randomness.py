"""The caller's random numbers: public calls leave them as they found them."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from literate_rl import (
    check_model,
    diagnose,
    evaluate,
    fit,
    grade,
    load,
    load_env,
    make_envs,
    record_video,
    seed_everything,
    show,
    train,
    trained_agents,
)
from literate_rl.apps.cli import main
from literate_rl.apps.programs import run_program
from literate_rl.apps.training import ALGORITHMS, ended, make_learner
from literate_rl.check.states import look_around
from literate_rl.ground.networks import randomness_kept
from literate_rl.runs import runs

CARTPOLE, PENDULUM = "CartPole-v1", "Pendulum-v1"
SHORT: dict[str, Any] = {"total_steps": 64, "progress": False}


def states() -> list[Any]:
    """Return the states of all global generators, in plain values."""
    keys = np.random.get_state()[1]
    assert isinstance(keys, np.ndarray)
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    mine = [x.tolist() for x in (torch.get_rng_state(), *gpus)]
    return [random.getstate(), keys.tolist(), np.random.get_state()[2], mine]


def luck() -> list[float]:
    return [torch.rand(()).item(), float(np.random.random()), random.random()]


def world_of(algorithm: str) -> str:
    boxes = algorithm.startswith(("ddpg", "hddpg", "td3"))
    return PENDULUM if boxes else CARTPOLE


class Gambling(gym.Wrapper):
    """Draws from all global generators, and may raise or be interrupted."""

    seen: list[list[float]] = []
    error: BaseException | None = None
    presses = False

    def step(self, action: Any) -> Any:
        self.seen.append(luck())
        if self.error:
            raise self.error
        if self.presses:
            Gambling.presses = False
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(action)


class Dropping(nn.Module):
    """A Q network that draws while it learns."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        random.random()
        np.random.random()
        return self.net(state)


@pytest.fixture(autouse=True)
def reset_world(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"seen": [], "error": None, "presses": False}.items():
        monkeypatch.setattr(Gambling, name, value)


def gamble() -> gym.Env[Any, Any]:
    return Gambling(gym.make(CARTPOLE))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_training_leaves_them_alone(algorithm: str) -> None:
    before = states()
    train(algorithm, world_of(algorithm), **SHORT)
    assert states() == before


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_our_learners_draw_from_generators_of_their_own(algorithm: str) -> None:
    env = world_of(algorithm)
    learner = make_learner(algorithm, env, ALGORITHMS[algorithm].settings(env), {})
    before = states()
    with ended(learner):
        for _ in range(3):
            learner.iterate()
    assert states() == before


def test_what_draws_in_an_environment_draws_as_the_seed_says() -> None:
    firsts = []
    for _ in range(2):
        Gambling.seen.clear()
        before = states()
        train("PPO", gamble, seed=3, **SHORT)
        assert states() == before
        luck()  # nobody's draws change what a training sees
        firsts.append([x[1:] for x in Gambling.seen])
    assert firsts[0] == firsts[1]
    assert firsts[0][0][0] == np.random.RandomState(3).random()
    assert firsts[0][0][1] == random.Random(3).random()


def test_a_search_draws_other_settings_each_time() -> None:
    drawn = []
    for _ in range(3):
        drawn += luck()
        train("PPO", CARTPOLE, **SHORT)
    assert len({*drawn}) == 9


@pytest.mark.parametrize("error", [KeyError("broken"), KeyboardInterrupt()])
def test_they_are_put_back_when_it_ends_early(error: BaseException) -> None:
    Gambling.error = error
    before = states()
    with pytest.raises(type(error)):
        train("PPO", gamble, **SHORT)
    assert states() == before


def test_they_are_put_back_after_ctrl_c(ctrl_c: None) -> None:
    Gambling.presses = True
    before = states()
    agent = train("PPO", gamble, num_envs=2, num_steps=16, **SHORT)
    assert agent.interrupted
    assert states() == before


def test_a_refusal_leaves_them_alone() -> None:
    wrong = nn.Linear(3, 2)
    before = states()
    with pytest.raises(ValueError, match="broken rule"):
        train("DQN", CARTPOLE, qnet=wrong, **SHORT)
    assert states() == before


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    train("PPO", CARTPOLE, **SHORT).save(place / "ours")
    train("DQN", CARTPOLE, qnet=Dropping(), **SHORT).save(place / "own")
    return place


def in_a_window(*_: Any) -> Any:
    return make_envs(gamble)


CALLS: dict[str, Callable[[Path, Path], Any]] = {
    "load": lambda kept, _: load(kept / "ours"),
    "load an agent of the package": lambda *_: load("cartpole-ppg"),
    "load a model": lambda kept, _: load(kept / "own", qnet=Dropping()),
    "load the wrong model": lambda kept, _: load(kept / "own", qnet=nn.ReLU()),
    "load_env": lambda kept, _: load_env(kept / "ours"),
    "resume": lambda kept, _: train("PPO", CARTPOLE, resume=kept / "ours"),
    "train a model": lambda *_: train("DQN", CARTPOLE, qnet=Dropping(), **SHORT),
    "evaluate": lambda kept, _: evaluate(load(kept / "ours"), gamble, 2),
    "show": lambda kept, _: show(load(kept / "ours"), gamble),
    "record_video": lambda kept, place: record_video(
        load(kept / "ours"), CARTPOLE, place / "film.mp4", max_episode_steps=3
    ),
    "check_model": lambda *_: check_model("DQN", qnet=Dropping(), env=gamble),
    "look_around": lambda *_: look_around(gamble),
    "trained_agents": lambda *_: trained_agents(),
    "diagnose": lambda kept, _: diagnose(kept / "ours"),
    "grade": lambda *_: grade(lambda x: luck(), lambda x: luck(), (1,)),
    "run_program": lambda *_: run_program("ppo", total_steps=64),
    "the command line": lambda *_: main(["ppo", "--total-steps", "64"]),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore")
def test_a_call_leaves_them_alone(
    name: str, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "make_visible", in_a_window) if name == "show" else None
    # A model is made by the caller, and draws its weights.
    monkeypatch.setattr(Dropping, "__init__", randomness_kept()(Dropping.__init__))
    before = states()
    try:
        CALLS[name](kept, tmp_path)
    except ValueError:
        assert "wrong" in name
    assert states() == before


def test_a_learner_of_ones_own_is_seeded_by_oneself() -> None:
    """`seed_everything` is the one call that seeds for good."""
    before = states()
    seed_everything(5)
    assert states() != before
    first = luck()
    seed_everything(5)
    assert luck() == first


def test_a_gpu_that_sleeps_waits_for_the_seed_of_its_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds: list[int] = []
    monkeypatch.setattr("torch.cuda.manual_seed_all", seeds.append)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)
    torch.manual_seed(7)
    train("PPO", CARTPOLE, seed=3, **SHORT)
    assert seeds == [7, 3, 7]
    load("cartpole-ppg")
    assert seeds == [7, 3, 7], "nobody has seeded anything"


@pytest.mark.gpu
def test_a_gpu_in_use_draws_on() -> None:
    torch.rand(1, device="cuda")
    before = states()
    train("PPO", CARTPOLE, device="cuda", **SHORT)
    assert states() == before


# --- Blocks without gradients ---------------------------------------------------------


@pytest.mark.parametrize("block", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "sac", "impala"])
def test_training_does_not_mind_a_block_without_gradients(
    algorithm: str, block: Any
) -> None:
    def weights() -> torch.Tensor:
        agent = train(algorithm, CARTPOLE, **SHORT)
        return torch.cat([p.detach().flatten() for p in agent.policy.parameters()])

    outside = weights()
    with block():
        inside = weights()
        assert not torch.is_grad_enabled()
    assert torch.equal(inside, outside)
    assert not inside.is_inference() or block is torch.inference_mode


@pytest.mark.parametrize("block", [torch.no_grad, torch.inference_mode])
def test_agents_act_in_a_block_without_gradients(block: Any) -> None:
    policy = load("cartpole-ppg")
    outside = evaluate(policy, CARTPOLE, 2)
    with block():
        assert (evaluate(policy, CARTPOLE, 2) == outside).all()


def test_fit_is_a_loop_and_no_more() -> None:
    """A learner by hand draws nothing either; its environment may."""
    settings = ALGORITHMS["ppo"].settings(CARTPOLE)
    learner = make_learner("ppo", CARTPOLE, settings, {})
    before = states()
    with ended(learner):
        object.__setattr__(settings, "total_steps", 64)
        fit(learner, progress=False)
    assert states() == before
