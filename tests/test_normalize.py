"""Observations that policies normalise, with every agent; wrappers that would do so."""

import copy
import warnings
from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
import test_conformance
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from net import CASES
from test_conformance import trained
from torch import nn
from worlds import Apart

from literate_rl import evaluate, load, train
from literate_rl.apps.training import ALGORITHMS, ended, make_learner
from literate_rl.data.agents import Collector, make_envs
from literate_rl.data.replay import Batch
from literate_rl.learners.dqn import DQN, DQNConfig, make_q_policy
from literate_rl.nets.parts import RunningMoments

BOXES = ("ddpg", "ddpgper", "hddpg", "td3", "sac", "ddpgapex")
# Each algorithm, and what has a policy or a collector of its own.
AGENTS = {name: (name, name in BOXES, {}) for name in ALGORITHMS}
AGENTS |= {
    "ppo, hybrid": ("ppo", "literate_rl/Moving-v0", {}),
    "ppg, hybrid": ("ppg", "literate_rl/Moving-v0", {}),
    "impala, actors": ("impala", False, {"actors": 2}),
    "sac, listed": ("sac", False, {}),
}
SMALL = {
    "learning_starts": 8,
    "iteration_steps": 16,
    "batch_size": 8,
    "hidden": 16,
    "rollout_len": 8,
    "num_steps": 8,
    "num_envs": 2,
    "num_minibatches": 2,
    "num_epochs": 2,
    "aux_interval": 2,
    "tau": 0.5,
}


def settings(agent, **changes):
    """Return name, environment and small settings of an agent that normalises."""
    name, kind, own = AGENTS[agent]
    env = kind if isinstance(kind, str) else partial(Apart, kind)
    config = ALGORITHMS[name].settings("")
    names = {field.name for field in fields(config)}
    chosen = {key: x for key, x in SMALL.items() if key in names}
    chosen |= own | {"normalize_obs": True} | changes
    return name, env, replace(config, **chosen)


def moments_of(module):
    (found,) = (x for x in module.modules() if isinstance(x, RunningMoments))
    return found


def same(some, others):
    """Say whether two states hold the same bits."""
    assert some.keys() == others.keys()
    return all(torch.equal(x, others[name]) for name, x in some.items())


# --- Each step once -------------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch):
    """Keep what environments show in real steps, while a learner learns."""
    kept = []
    collect = Collector.collect

    def noted(self, *arguments):
        rollout = collect(self, *arguments)
        kept.append(rollout.obs[rollout.real])
        return rollout

    monkeypatch.setattr(Collector, "collect", noted)
    return kept


def assert_moments(policy, seen):
    moments, rows = moments_of(policy), torch.cat(seen).double()
    assert moments.count == len(rows) > 0
    wanted = rows.mean(0), rows.var(0, unbiased=False)
    found = moments.mean, moments.var
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("agent", AGENTS)
def test_moments_are_those_of_all_steps_each_once(agent, seen):
    name, env, config = settings(agent)
    with ended(learner := make_learner(name, env, config, {})):
        seen.clear()  # how an environment looks was looked at
        for _ in range(5):
            learner.iterate()
        assert_moments(learner.policy, seen)


@pytest.mark.parametrize("agent", ["ppo", "impala", "td3"])
def test_steps_that_did_not_happen_do_not_count(agent, seen):
    # One environment and one row: some rollouts of TD3 have no step.
    changes = {"num_envs": 1, "train_interval": 1} if agent == "td3" else {}
    name, make, config = settings(agent, **changes)
    envs = SyncVectorEnv([make] * config.num_envs)  # it resets in a step of its own
    learner = make_learner(name, envs, config, {})
    for _ in range(4):
        learner.iterate()
    assert_moments(learner.policy, seen)
    assert len(torch.cat(seen)) < learner.step


def test_memories_keep_what_the_environment_showed():
    learners = []
    for agent, changes in (("dqn", {}), ("impala", {"replay_buffer_size": 32})):
        name, env, config = settings(agent, **changes)
        learners.append(make_learner(name, env, config, {}))
        learners[-1].iterate()
    batch = learners[0].sample()
    kept = [x["sample"][0] for x in learners[1].memory.entries]
    assert min(x[:, 0].min() for x in (batch.obs, batch.next_obs, *kept)) > 500


# --- What is computed -----------------------------------------------------------------


def gradients(algorithm, batch):
    """Return the gradients of an error, and of an ascent where there is one."""
    found = []
    parameters = [p for p in algorithm.policy.parameters() if p.requires_grad]
    error = algorithm.error(batch, torch.Generator().manual_seed(1))
    ascent = algorithm.ascent(batch.obs, torch.Generator().manual_seed(2))
    for loss in (error.loss.mean(), ascent):
        if loss is not None:
            found += torch.autograd.grad(loss, parameters, allow_unused=True)
    return found


@pytest.mark.parametrize(
    "agent", ["dqn", "rainbow", "ddpg", "hddpg", "td3", "sac", "sac, listed"]
)
def test_gradients_are_those_of_inputs_normalised_by_hand(agent):
    both = []
    for normalize in (True, False):
        name, env, config = settings(agent, normalize_obs=normalize)
        learner = make_learner(name, env, config, {})
        both.append(learner.algorithm)
        assert not normalize or learner.error == learner.algorithm.error, "no fast form"
    for algorithm in both:  # the older copies are another network
        for x in algorithm.policy.parameters():
            x.data.mul_(1.5)
        algorithm.target.follow(0.5)
    obs, next_obs = 40 + 5 * torch.randn(2, 16, 2)
    moments = moments_of(both[0].policy)
    moments.update(obs)
    listed = agent in ("dqn", "rainbow", "sac, listed")
    batch = Batch(
        obs=obs,
        action=torch.randint(2, (16,)) if listed else torch.randn(16, 1),
        reward=torch.randn(16),
        discount=torch.full((16,), 0.9),
        next_obs=next_obs,
        weight=torch.ones(16),
        place=torch.arange(16),
    )
    by_hand = batch._replace(obs=moments(obs), next_obs=moments(next_obs))
    found, wanted = gradients(both[0], batch), gradients(both[1], by_hand)
    for some, others in zip(found, wanted, strict=True):
        assert (some is None) == (others is None)
        assert some is None or torch.equal(some, others)
    assert any(x is not None and x.abs().sum() > 0 for x in found)
    assert moments_of(both[0].target.network) is moments


# --- Runs -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["PPG, one encoder", "A2C", "IMPALA", "SAC"])
def test_the_scale_is_resumed_and_loaded(name, tmp_path):
    more = {"normalize_obs": True}
    more |= {"scale_reward": True} if name == "A2C" else {}
    whole = trained(name, times=2, **more)
    half = whole.learner.step // 2
    more["callback"] = lambda learner, _: learner.step >= half
    run = trained(name, times=2, **more).save(tmp_path / "run")
    resumed = train(CASES[name].algorithm, resume=run, progress=False)
    assert resumed.learner.step == whole.learner.step > half
    assert test_conformance.same(whole, resumed)
    state = copy.deepcopy(resumed.policy.state_dict())
    assert moments_of(resumed.policy).count > 0
    evaluate(resumed.policy, CASES[name].env, 2)
    for policy in (resumed.policy, load(resumed.save(tmp_path / "whole"))):
        assert same(policy.state_dict(), state)


# --- What cannot be normalised --------------------------------------------------------


class Screen(Apart):
    """Shows pictures."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (12, 12, 3), np.uint8)


OBS = {"normalize_obs": True, "progress": False}
PAIR = {"actor": nn.Linear(2, 2), "critic": nn.Linear(2, 1)}
REFUSED = [
    (partial(train, "DQN", Screen, **OBS), "out normalize_obs$"),
    (partial(train, "PPO", Apart, **PAIR, **OBS), "with models of your own"),
    (
        lambda: DQN(
            make_q_policy(spaces.Box(-1, 1, (2,)), spaces.Discrete(2)),
            make_envs(Apart, 2),
            DQNConfig(num_envs=2, normalize_obs=True),
        ),
        "^policy must normalise as normalize_obs says",
    ),
]


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_what_cannot_be_normalised_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


# --- Wrappers that keep statistics ----------------------------------------------------


def told(name, env, **options):
    """Return what is said about statistics when a training begins."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        train(name, env, **{"total_steps": 16, "progress": False} | options)
    words = [str(x.message) for x in found]
    return [x for x in words if "statistics" in x]


@pytest.mark.parametrize(
    ("name", "wrapper", "words"),
    [
        ("PPO", "worlds:GrownScale", "set normalize_obs=True"),
        ("A2C", "NormalizeReward", "scale_reward=True for rewards"),
        ("SAC", "NormalizeReward", "or reward_scale for rewards"),
    ],
)
def test_wrappers_that_keep_statistics_are_told_by_name(name, wrapper, words):
    env = partial(Apart, name == "SAC")
    (found,) = told(name, env, wrappers=[wrapper])
    assert wrapper.rpartition(":")[2] in found
    assert words in found


def test_other_wrappers_are_not_told():
    assert told("PPO", Apart, wrappers=["ClipReward(-1, 1)"]) == []
    assert told("PPO", Apart, normalize_obs=True, scale_reward=True) == []


def test_ours_is_the_remedy():
    # Left or right of 5,000 is seen with the scale only.
    far = partial(Apart, middle=5000.0)
    agent = train("PPO", far, **OBS, total_steps=4096, learning_rate=3e-3)
    assert evaluate(agent.policy, far, 50).mean() > 30
