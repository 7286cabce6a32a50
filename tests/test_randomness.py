"""The caller's random numbers: public calls leave them as they found them."""

import random
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from literate_rl import (
    check_model,
    evaluate,
    fit,
    grade,
    load,
    make_envs,
    record_video,
    seed_everything,
    show,
    train,
)
from literate_rl.apps.training import ALGORITHMS, ended, make_learner
from literate_rl.ground.networks import randomness_kept
from literate_rl.runs import runs

CARTPOLE = "CartPole-v1"
SHORT = {"total_steps": 64, "progress": False}


def states():
    """Return the states of all global generators, in plain values."""
    keys = np.random.get_state()[1]
    assert isinstance(keys, np.ndarray)
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    mine = [x.tolist() for x in (torch.get_rng_state(), *gpus)]
    return [random.getstate(), keys.tolist(), np.random.get_state()[2], mine]


def luck():
    return [torch.rand(()).item(), float(np.random.random()), random.random()]


class Gambling(gym.Wrapper):
    """Draws from all global generators, and may raise."""

    seen = []
    error = None

    def step(self, action):
        self.seen.append(luck())
        if self.error:
            raise self.error
        return super().step(action)


class Dropping(nn.Module):
    """A Q network that draws while it learns."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))

    def forward(self, state):
        random.random()
        np.random.random()
        return self.net(state)


def gamble():
    return Gambling(gym.make(CARTPOLE))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_our_learners_draw_from_generators_of_their_own(algorithm):
    """`fit` is a loop and no more: what an environment draws is its own affair."""
    boxes = algorithm.startswith(("ddpg", "hddpg", "td3"))
    env = "Pendulum-v1" if boxes else CARTPOLE
    config = replace(ALGORITHMS[algorithm].settings(env), total_steps=64)
    learner = make_learner(algorithm, env, config, {})
    before = states()
    with ended(learner):
        fit(learner, progress=False)
    assert states() == before


def test_what_draws_in_an_environment_draws_as_the_seed_says():
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


@pytest.mark.parametrize("error", [KeyError("broken"), KeyboardInterrupt()])
def test_they_are_put_back_when_it_ends_early(error, monkeypatch):
    monkeypatch.setattr(Gambling, "error", error)
    before = states()
    with pytest.raises(type(error)):
        train("PPO", gamble, **SHORT)
    assert states() == before


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    train("PPO", CARTPOLE, **SHORT).save(place / "ours")
    return place


CALLS = {
    "load": lambda kept, _: load(kept / "ours"),
    "predict": lambda kept, _: load(kept / "ours").predict(np.zeros(4)),
    "resume": lambda kept, _: train("PPO", CARTPOLE, resume=kept / "ours"),
    "train a model": lambda *_: train("DQN", CARTPOLE, qnet=Dropping(), **SHORT),
    "evaluate": lambda kept, _: evaluate(load(kept / "ours"), gamble, 2),
    "show": lambda kept, _: show(load(kept / "ours"), gamble),
    "record_video": lambda kept, place: record_video(
        load(kept / "ours"), CARTPOLE, place / "film.mp4", max_episode_steps=3
    ),
    "check_model": lambda *_: check_model("DQN", qnet=Dropping(), env=gamble),
    "grade": lambda *_: grade(lambda x: luck(), lambda x: luck(), (1,)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore")
def test_a_call_leaves_them_alone(name, kept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name == "show":
        monkeypatch.setattr(runs, "make_visible", lambda *_: make_envs(gamble))
    # A model is made by the caller, and draws its weights.
    monkeypatch.setattr(Dropping, "__init__", randomness_kept()(Dropping.__init__))
    before = states()
    CALLS[name](kept, tmp_path)
    assert states() == before


def test_a_learner_of_ones_own_is_seeded_by_oneself():
    """`seed_everything` is the one call that seeds for good."""
    before = states()
    seed_everything(5)
    assert states() != before
    first = luck()
    seed_everything(5)
    assert luck() == first


@pytest.mark.gpu
def test_a_gpu_in_use_draws_on():
    torch.rand(1, device="cuda")
    before = states()
    train("PPO", CARTPOLE, device="cuda", **SHORT)
    assert states() == before


# --- Blocks without gradients ---------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_training_does_not_mind_a_block_without_gradients(algorithm):
    outside = train(algorithm, CARTPOLE, **SHORT).policy
    with torch.inference_mode():
        inside = train(algorithm, CARTPOLE, **SHORT).policy
        assert not torch.is_grad_enabled()
    for x, y in zip(inside.parameters(), outside.parameters(), strict=True):
        assert torch.equal(x, y)
        assert not x.is_inference()
