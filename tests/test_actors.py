"""Actors that take turns, and the learner that learns from their unrolls."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import counting

from literate_rl.actors.actors import (
    Actor,
    ActorLearner,
    ActorsConfig,
    slot_layout,
    weights_of,
)
from literate_rl.data.agents import make_envs
from literate_rl.learners.impala import Unroll
from literate_rl.nets.hybrid_policy import make_hybrid_policy
from literate_rl.nets.policies import make_policy
from literate_rl.runs.runs import Run, fit, flat_env

SMALL = ActorsConfig(actors=2, num_steps=5, num_envs=3, total_steps=300)


def cartpoles(copies: int = 3, limit: int = 500) -> SyncVectorEnv:
    """CartPoles with a time limit, so that both flags occur."""

    def make() -> gym.Env[Any, Any]:
        return TimeLimit(gym.make("CartPole-v1").unwrapped, limit)

    return make_envs(make, copies)


def policy_for(envs: SyncVectorEnv, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    hybrid = isinstance(envs.single_action_space, gym.spaces.Tuple)
    make = make_hybrid_policy if hybrid else make_policy
    return make(envs.single_observation_space, envs.single_action_space)


def make_learner(
    env: str = "CartPole-v1", transport: Any = None, **changes: Any
) -> ActorLearner:
    config = replace(SMALL, **changes)
    build = partial(make_envs, partial(flat_env, env), config.num_envs)
    return ActorLearner(policy_for(build(), config.seed), build, config, transport)


# --- Settings -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"address": "auto"},
        {"actors": None, "transport": "shared"},
        {"on_policy": True},
    ],
)
def test_illegal_settings_are_refused(changes):
    with pytest.raises((TypeError, ValueError)):
        replace(SMALL, **changes)


@pytest.mark.parametrize(
    ("copies", "changes", "words"),
    [
        (3, {"actors": None}, "actors must be at least 1"),
        (2, {}, "envs must have 3 copies, got 2"),
        (3, {"transport": "shared"}, r"pass .*SharedMemory"),
    ],
)
def test_what_makes_no_learner_is_named(copies, changes, words):
    build = partial(counting, copies)
    with pytest.raises(ValueError, match=words):
        ActorLearner(policy_for(counting()), build, replace(SMALL, **changes))


# --- One unroll -----------------------------------------------------------------------


def log_probs(policy: Any, record: Any) -> np.ndarray:
    """Return how likely a policy finds the actions of an unroll."""
    shown = torch.from_numpy(record["obs_plus_1"][:-1].copy())
    action = torch.from_numpy(record["action"].copy())
    log_prob, _ = policy.evaluate_actions(shown, action)
    return log_prob.numpy(force=True)


def to_unroll(record: Any) -> Unroll:
    """Return a copy of what the learner reads of a record."""
    fields = Unroll._fields[:8]  # without masks
    return Unroll(*(torch.from_numpy(record[name].copy()) for name in fields))


def actor_of(
    build: Callable[[], SyncVectorEnv], steps: int, seed: int = 0, form: Any = None
) -> tuple[Any, Callable[[], Any]]:
    """Return a policy, and what has an actor of it write another unroll."""
    envs = build()
    policy = policy_for(envs)
    record = np.zeros(1, slot_layout(policy, envs, steps))[0]["result"]
    actor = Actor(build, policy, seed, form)

    def work() -> Any:
        actor.work(weights_of(policy), record)
        return record

    return policy, work


@settings(max_examples=15)
@given(
    steps=st.integers(1, 12),
    copies=st.integers(1, 3),
    limit=st.integers(1, 9),
    unrolls=st.integers(1, 2),
)
def test_an_unroll_is_what_the_environments_did(steps, copies, limit, unrolls):
    """Replay the actions in single environments that nobody resets in secret."""
    policy, work = actor_of(partial(cartpoles, copies, limit), steps)
    for _ in range(unrolls):
        record = work()
    said = log_probs(policy, record)
    np.testing.assert_allclose(record["log_prob"], said, rtol=1e-5, atol=1e-6)
    for t, b in np.ndindex(steps, copies):
        world: Any = gym.make("CartPole-v1").unwrapped
        world.reset()
        world.state = record["obs_plus_1"][t, b].astype(float)
        obs, reward, terminated, *_ = world.step(int(record["action"][t, b]))
        np.testing.assert_allclose(record["next_obs"][t, b], obs, atol=1e-5)
        assert record["reward"][t, b] == reward
        assert record["terminated"][t, b] == terminated
        done = terminated or record["truncated"][t, b]
        if not done:
            following = record["obs_plus_1"][t + 1, b]
            np.testing.assert_array_equal(record["next_obs"][t, b], following)
        assert done != math.isnan(record["episode_return"][t, b])
        assert not record["episode_return"][t, b] > limit
    assert (record["weight"] == 1).all()


def late_resets() -> SyncVectorEnv:
    def make() -> gym.Env[Any, Any]:
        return TimeLimit(gym.make("CartPole-v1").unwrapped, 4)

    return SyncVectorEnv([make] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)


def test_rows_that_never_happened_weigh_nothing():
    _, work = actor_of(late_resets, 9)
    # Each end is followed by one, also in the next unroll, and a phantom is no end.
    ended = np.zeros(2, dtype=bool)
    for _ in range(6):
        record = work()
        for t in range(9):
            weight = record["weight"][t]
            assert (weight == ~ended).all()
            ended = record["terminated"][t] | record["truncated"][t]
            assert not ended[weight == 0].any()


# --- Learning -------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "literate_rl/Moving-v0"])
def test_a_slot_teaches_what_its_numbers_teach(env):
    """Learn from the slot's memory, and from a copy of what lies there."""
    learner, twin = make_learner(env), make_learner(env)
    _, record = learner.start().receive()
    unroll, said = to_unroll(record), log_probs(learner.policy, record)
    np.testing.assert_allclose(record["log_prob"], said, rtol=1e-5, atol=1e-6)
    metrics = learner.learn(record)
    for _ in range(SMALL.update_per_collect):
        losses = twin.learner.learn(unroll)
    assert metrics["losses/total_loss"] == losses["total_loss"]
    assert learner.step == SMALL.num_steps * SMALL.num_envs
    pairs = learner.learner.parameters, twin.learner.parameters
    assert all(map(torch.equal, *pairs))


@pytest.mark.equation("policy-lag")
@pytest.mark.equation("lag-of-turns")
@pytest.mark.parametrize(("actors", "slots"), [(1, 1), (1, 3), (2, 1), (3, 2)])
def test_lag_in_turns_is_what_is_under_way_less_one(actors, slots):
    learner = make_learner(actors=actors, slots=slots, num_steps=2)
    seen = [learner.iterate()["charts/lag"] for _ in range(3 * actors * slots)]
    first = list(range(actors * slots))
    assert seen == first + [actors * slots - 1] * (2 * actors * slots)


def test_the_lag_is_that_of_the_weights_that_acted():
    """Each version's weights are kept; the one that explains the unroll is named."""
    learner = make_learner(slots=3, learning_rate=1e-2)
    learner.start()
    kept = []
    for _ in range(12):
        kept.append(weights_of(learner.policy))
        kept[-1] = {name: x.copy() for name, x in kept[-1].items()}
        slot, unroll = learner.transport.receive()
        unroll = unroll.copy()
        learner.transport.tasks.appendleft(slot)
        learner.transport.workers[slot[0]].work = lambda *_: None  # as it was
        lag = int(learner.iterate()["charts/lag"])
        del learner.transport.workers[slot[0]].work
        policy = policy_for(cartpoles())
        policy.load_state_dict(
            {name: torch.from_numpy(x) for name, x in kept[-1 - lag].items()}
        )
        said = log_probs(policy, unroll)
        np.testing.assert_allclose(unroll["log_prob"], said, rtol=1e-5, atol=1e-6)


def test_taking_turns_is_the_same_to_the_bit_and_nothing_runs_dry():
    runs = []
    for seed in (1, 1, 2):
        with make_learner(seed=seed, total_steps=150, anneal=True) as learner:
            history = fit(learner, progress=False)
        runs.append(learner.learner.parameters)
    assert all(map(torch.equal, runs[0], runs[1]))
    assert not all(map(torch.equal, runs[0], runs[2]))
    assert [row["step"] for row in history] == list(range(15, 151, 15))
    for number, row in enumerate(history, 1):
        assert (row["charts/queue"], row["charts/replaced"]) == (0, 0)
        assert row["charts/actors"] == min(number, 2)


def test_the_step_size_does_not_fall_below_zero():
    learner, rates = make_learner(total_steps=15, anneal=True), []
    for _ in range(3):
        learner.iterate()
        rates.append(learner.learner.optimizer.param_groups[0]["lr"])
    assert rates == [SMALL.learning_rate, 0.0, 0.0]


def test_a_resumed_run_goes_on_with_other_noise(tmp_path):
    learner = make_learner(total_steps=90, checkpoint_interval=2)
    with Run(tmp_path / "a", {}) as run:
        fit(learner, run, progress=False)
    resumed, fresh = (make_learner(checkpoint_interval=2) for _ in range(2))
    with Run(tmp_path / "a", resume=True) as run:
        run.restore(resumed)
        assert (resumed.step, resumed.version) == (90, 6)
        pairs = learner.learner.parameters, resumed.learner.parameters
        assert all(map(torch.equal, *pairs))
        shown = [x.start().receive()[1]["obs_plus_1"] for x in (resumed, fresh)]
        assert not np.array_equal(*shown)
        history = fit(resumed, run, progress=False)
    assert [row["step"] for row in history] == list(range(105, 301, 15))
    assert history[0]["charts/lag"] == 0
