"""Actors that take turns, and the learner that learns from their unrolls."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import counting, left_alone, moody

from literate_rl.actors.actors import (
    Actor,
    ActorLearner,
    ActorsConfig,
    actors_settings,
    slot_layout,
    weights_of,
)
from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.data.agents import make_envs
from literate_rl.learners.impala import Unroll, VTraceLearner, impala_settings
from literate_rl.nets.hybrid_policy import make_hybrid_policy
from literate_rl.nets.parts import ActorCritic, CategoricalActions
from literate_rl.nets.policies import Policy, make_policy
from literate_rl.runs.runs import Run, fit, flat_env

SMALL = ActorsConfig(actors=2, num_steps=5, num_envs=3, total_steps=300)


def cartpoles(copies: int = 3, limit: int = 500) -> SyncVectorEnv:
    """CartPoles with a time limit, so that both flags occur."""

    def make() -> gym.Env[Any, Any]:
        return TimeLimit(gym.make("CartPole-v1").unwrapped, limit)

    return make_envs(make, copies)


def make_learner(
    env: str = "CartPole-v1", transport: Any = None, **changes: Any
) -> ActorLearner:
    config = replace(SMALL, **changes)
    build = partial(make_envs, partial(flat_env, env), config.num_envs)
    envs = build()
    torch.manual_seed(config.seed)
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    return ActorLearner(policy, build, config, transport)


def policy_for(envs: SyncVectorEnv) -> Any:
    torch.manual_seed(0)
    return make_policy(envs.single_observation_space, envs.single_action_space)


# --- Settings -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actors": 0}, "actors must be .*at least 1.*, got 0"),
        ({"slots": 0}, "slots must be at least 1, got 0"),
        ({"deadline": 0.0}, "deadline must be greater than 0"),
        ({"deadline": math.nan}, "deadline must be greater than 0"),
        ({"transport": "pigeon"}, "transport must be 'in_process' or .*, got 'pigeon'"),
        ({"address": "auto"}, "transport must be ray for address auto"),
        ({"actors": None, "transport": "shared"}, "actors must be given for transport"),
        ({"actors": True}, "actors must be .*int.*, got (bool|True)"),
        ({"priority": True}, "priority, lag and on_policy must be off"),
        ({"on_policy": True}, "priority, lag and on_policy must be off"),
        ({"lag": 3}, "priority, lag and on_policy must be off"),
        ({"num_steps": 0}, "num_steps must be at least 1"),
    ],
)
def test_illegal_settings_are_named(changes, message) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        replace(SMALL, **changes)


def test_settings_are_those_of_impala() -> None:
    for env in ("CartPole-v1", "unknown"):
        known, plain = actors_settings(env), impala_settings(env)
        assert known.actors is None
        assert all(getattr(known, k) == x for k, x in vars(plain).items())


def test_a_learner_wants_actors_and_the_right_number_of_environments() -> None:
    with pytest.raises(ValueError, match="actors must be at least 1, got None"):
        make_learner(actors=None)
    policy = policy_for(counting())
    with pytest.raises(ValueError, match="envs must have 3 copies, got 2"):
        ActorLearner(policy, counting, SMALL)
    with pytest.raises(TypeError, match=r"envs must be .*VectorEnv, got .*None"):
        ActorLearner(policy, lambda: None, SMALL)
    message = r"literate_rl\.actors\.processes\.SharedMemory or literate_rl\.interfaces"
    for name in ("shared", "ray"):
        with pytest.raises(ValueError, match=f"transport {name}: pass {message}"):
            ActorLearner(policy, partial(counting, 3), replace(SMALL, transport=name))


def test_what_an_actor_is_made_of_is_held_by_signatures() -> None:
    envs, policy = counting(), policy_for(counting())
    with pytest.raises(ValueError, match="num_steps must be at least 1, got 0"):
        slot_layout(policy, envs, 0)
    with pytest.raises(TypeError, match="seed must be an integer, got float"):
        Actor(counting, policy, 0.5)


def test_the_layout_of_a_slot_is_found_without_a_trace() -> None:
    policy = Policy(ActorCritic(moody(2, 3), moody(2, 1)), CategoricalActions(3))
    with left_alone(policy):
        slot_layout(policy, counting(1), 4)


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


def one_unroll(
    build: Callable[[], SyncVectorEnv], steps: int, unrolls: int = 1, seed: int = 0
) -> tuple[Any, Any]:
    """Return the last of some unrolls, a record, and the policy that acted."""
    envs = build()
    policy = policy_for(envs)
    layout = slot_layout(policy, envs, steps)
    actor, record = Actor(build, policy, seed), np.zeros(1, layout)[0]["result"]
    for _ in range(unrolls):
        actor.work(weights_of(policy), record)
    return record, policy


@settings(max_examples=15)
@given(
    steps=st.integers(1, 12),
    copies=st.integers(1, 3),
    limit=st.integers(1, 9),
    unrolls=st.integers(1, 2),
)
def test_an_unroll_is_what_the_environments_did(steps, copies, limit, unrolls) -> None:
    """Replay the actions in single environments that nobody resets in secret."""
    record, policy = one_unroll(partial(cartpoles, copies, limit), steps, unrolls)
    said = log_probs(policy, record)
    np.testing.assert_allclose(record["log_prob"], said, rtol=1e-5, atol=1e-6)
    for b in range(copies):
        for t in range(steps):
            world: Any = gym.make("CartPole-v1").unwrapped
            world.reset()
            world.state = record["obs_plus_1"][t, b].astype(float)
            obs, reward, terminated, *_ = world.step(int(record["action"][t, b]))
            np.testing.assert_allclose(record["next_obs"][t, b], obs, atol=1e-5)
            assert record["reward"][t, b] == reward
            assert record["terminated"][t, b] == terminated
            done = terminated or record["truncated"][t, b]
            if not done and t + 1 < steps:
                np.testing.assert_array_equal(
                    record["next_obs"][t, b], record["obs_plus_1"][t + 1, b]
                )
            ended = not math.isnan(record["episode_return"][t, b])
            assert ended == done
            assert not ended or record["episode_return"][t, b] <= limit
    np.testing.assert_array_equal(record["obs_plus_1"][-1], record["next_obs"][-1])
    assert (record["weight"] == 1).all()


def test_both_kinds_of_end_and_their_returns_are_written_down() -> None:
    record, _ = one_unroll(partial(cartpoles, 4, 12), steps=80)
    cut, ended = record["truncated"], record["terminated"]
    assert cut.any()
    assert ended.any()
    assert (record["episode_return"][cut] == 12).all()
    assert (record["episode_return"][ended] <= 12).all()


def test_the_actor_does_what_its_policy_says_and_what_its_seed_decides() -> None:
    """Actions are those that the policy's own ``act`` makes of the same noise."""
    for env in ("CartPole-v1", "Pendulum-v1"):
        build = partial(make_envs, partial(flat_env, env), 3)
        record, policy = one_unroll(build, steps=20, seed=5)
        generator = torch.Generator().manual_seed(5)
        noise = policy.noise(20, 3, generator)
        with torch.no_grad():
            shown = torch.from_numpy(record["obs_plus_1"][:-1])
            wanted = policy.act(shown.flatten(0, 1), noise.flatten(0, 1))
        got = torch.from_numpy(record["action"]).flatten(0, 1)
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)
        again, _ = one_unroll(build, steps=20, seed=5)
        other, _ = one_unroll(build, steps=20, seed=6)
        assert again["action"].tobytes() == record["action"].tobytes()
        assert other["obs_plus_1"].tobytes() != record["obs_plus_1"].tobytes()


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_faster_form_acts_with_the_weights_that_come(env: str) -> None:
    build, made = partial(make_envs, partial(flat_env, env), 3), []

    def make_act(policy: Any) -> Any:
        made.append((policy, numpy_act(policy)))
        return made[-1][1]

    policy = policy_for(build())
    weights = {name: 2 * x for name, x in weights_of(policy).items()}
    records = np.zeros(2, slot_layout(policy, build(), 20))["result"]
    for record, form in zip(records, (None, make_act), strict=True):
        actor = Actor(build, policy, 5, form)
        assert actor.policy is not policy
        actor.work(weights, record)
    assert made == [(actor.policy, actor.act)]
    for name in ("action", "obs_plus_1", "reward", "log_prob"):
        np.testing.assert_allclose(*(x[name] for x in records), rtol=1e-4, atol=1e-5)


def test_a_learner_hands_the_faster_form_to_its_actors() -> None:
    policy = policy_for(cartpoles())
    plain = ActorLearner(policy, cartpoles, SMALL).make_actor(0)
    assert plain.act == plain.policy.act
    learner = ActorLearner(policy, cartpoles, SMALL, make_act=lambda own: (own, "fast"))
    actor = learner.make_actor(0)
    assert actor.act == (actor.policy, "fast")


def late_resets() -> SyncVectorEnv:
    def make() -> gym.Env[Any, Any]:
        return TimeLimit(gym.make("CartPole-v1").unwrapped, 4)

    return SyncVectorEnv([make] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)


def test_rows_that_never_happened_weigh_nothing_and_teach_nothing() -> None:
    policy = policy_for(late_resets())
    record = np.zeros(1, slot_layout(policy, late_resets(), 9))[0]["result"]
    actor, rows = Actor(late_resets, policy, 0), []
    for _ in range(6):
        actor.work(weights_of(policy), record)
        done = record["terminated"] | record["truncated"]
        rows.append((record["weight"].copy(), done))
    weight, done = (np.concatenate(column) for column in zip(*rows, strict=True))
    # Each end is followed by one, also in the next unroll, and a phantom is no end.
    assert (weight[0] == 1).all()
    assert (weight[1:] == ~done[:-1]).all()
    assert {row[0][0].min() for row in rows} == {0, 1}
    phantom = record["weight"] == 0
    assert phantom.any()
    assert not done[-9:][phantom].any()
    gradients = []
    for nonsense in (0.0, 1e3):
        record["reward"][phantom] = nonsense
        learner = VTraceLearner(policy, SMALL)
        norm = learner.learn(to_unroll(record))["grad_norm"]
        gradients.append((norm, *(p.grad.clone() for p in learner.parameters)))
        policy = policy_for(late_resets())
    torch.testing.assert_close(*gradients)


def test_returns_are_what_was_paid_since_the_start() -> None:
    """Add up by hand, over unrolls that cut the episodes anywhere."""
    build = partial(counting, 2)
    policy = policy_for(build())
    record = np.zeros(1, slot_layout(policy, build(), 5))[0]["result"]
    actor, paid, found = Actor(build, policy, 3), np.zeros(2), 0
    for _ in range(12):
        actor.work(weights_of(policy), record)
        for t in range(5):
            paid += record["reward"][t]
            for b in np.flatnonzero(record["terminated"][t] | record["truncated"][t]):
                assert record["episode_return"][t, b] == paid[b]
                paid[b] = 0.0
                found += 1
    assert found > 20


def test_an_environment_that_gives_no_number_is_named() -> None:
    class Broken(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            obs, *others = self.env.step(action)
            return obs * math.nan, *others

    with pytest.raises(ValueError, match="obs of environment 0 is nan at step"):
        one_unroll(
            lambda: make_envs(lambda: Broken(gym.make("CartPole-v1")), 2), steps=3
        )


def test_environments_that_the_unroll_has_no_room_for_are_named() -> None:
    policy = policy_for(counting())
    record = np.zeros(1, slot_layout(policy, counting(3), 4))[0]["result"]
    message = r"make_envs must make observations \(3, 2\), got \(2, 2\)"
    with pytest.raises(ValueError, match=message):
        Actor(counting, policy, 0).work(weights_of(policy), record)
    assert not record["reward"].any()


# --- Learning -------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_slot_teaches_what_its_numbers_teach(env) -> None:
    """Learn from the slot's memory, and from a copy of what lies there."""
    learner, twin = make_learner(env), make_learner(env)
    _, record = learner.start().receive()
    unroll = to_unroll(record)
    metrics = learner.learn(record)
    for _ in range(SMALL.update_per_collect):
        losses = twin.learner.learn(unroll)
    assert metrics["losses/total_loss"] == losses["total_loss"]
    assert learner.step == SMALL.num_steps * SMALL.num_envs
    for one, other in zip(
        learner.policy.parameters(), twin.policy.parameters(), strict=True
    ):
        assert torch.equal(one, other)


def test_hybrid_actions_travel_too() -> None:
    """The learner finds each action as likely as the actor said, at lag 0."""
    build = partial(make_envs, "literate_rl/Moving-v0", 3)
    envs = build()
    policy = make_hybrid_policy(envs.single_observation_space, envs.single_action_space)
    with ActorLearner(policy, build, replace(SMALL, actors=1, slots=1)) as learner:
        _, record = learner.start().receive()
        said = log_probs(policy, record)
        np.testing.assert_allclose(record["log_prob"], said, rtol=1e-5, atol=1e-6)
        assert math.isfinite(learner.learn(record)["losses/total_loss"])


@pytest.mark.equation("policy-lag")
@pytest.mark.equation("lag-of-turns")
@pytest.mark.parametrize(("actors", "slots"), [(1, 1), (1, 3), (2, 1), (3, 2)])
def test_lag_in_turns_is_what_is_under_way_less_one(actors, slots) -> None:
    learner = make_learner(actors=actors, slots=slots, num_steps=2)
    seen = [learner.iterate()["charts/lag"] for _ in range(3 * actors * slots)]
    first = list(range(actors * slots))
    assert seen == first + [actors * slots - 1] * (2 * actors * slots)


def test_the_lag_is_that_of_the_weights_that_acted() -> None:
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
        learner.transport.actors[slot[0]].work = lambda *_: None  # as it was
        lag = int(learner.iterate()["charts/lag"])
        del learner.transport.actors[slot[0]].work
        policy = policy_for(cartpoles())
        policy.load_state_dict(
            {name: torch.from_numpy(x) for name, x in kept[-1 - lag].items()}
        )
        said = log_probs(policy, unroll)
        np.testing.assert_allclose(unroll["log_prob"], said, rtol=1e-5, atol=1e-6)


def test_taking_turns_is_the_same_to_the_bit() -> None:
    runs = []
    for seed in (1, 1, 2):
        with make_learner(seed=seed, slots=2, anneal=True) as learner:
            fit(learner, progress=False)
            runs.append([p.detach().clone() for p in learner.learner.parameters])
    assert all(map(torch.equal, runs[0], runs[1]))
    assert not all(map(torch.equal, runs[0], runs[2]))


def test_metrics_tell_of_the_actors_and_nothing_runs_dry() -> None:
    learner = make_learner(total_steps=150)
    history = fit(learner, progress=False)
    assert [row["step"] for row in history] == list(range(15, 151, 15))
    for number, row in enumerate(history, 1):
        assert (row["charts/queue"], row["charts/replaced"]) == (0, 0)
        assert row["charts/actors"] == min(number, 2)
        assert math.isfinite(row["losses/total_loss"])


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    learner = make_learner()
    with pytest.raises(KeyError):
        learner.load_state_dict({"step": 7, "version": 7, "learner": {}})
    assert (learner.step, learner.version) == (0, 0)


def test_the_step_size_does_not_fall_below_zero() -> None:
    with make_learner(total_steps=15, anneal=True) as learner:
        rates = []
        for _ in range(3):
            learner.iterate()
            rates.append(learner.learner.optimizer.param_groups[0]["lr"])
    assert rates == [SMALL.learning_rate, 0.0, 0.0]


def test_a_resumed_run_goes_on_with_other_noise(tmp_path: Path) -> None:
    learner = make_learner(total_steps=90, checkpoint_interval=2)
    with Run(tmp_path / "a", {}) as run:
        fit(learner, run, progress=False)
    resumed = make_learner(total_steps=150, checkpoint_interval=2)
    with Run(tmp_path / "a", resume=True) as run:
        run.restore(resumed)
        assert (resumed.step, resumed.version) == (90, 6)
        assert all(
            map(torch.equal, learner.learner.parameters, resumed.learner.parameters)
        )
        resumed.start()
        fresh = make_learner()
        fresh.start()
        _, after = resumed.transport.receive()
        _, before = fresh.transport.receive()
        assert after["obs_plus_1"].tobytes() != before["obs_plus_1"].tobytes()
        history = fit(resumed, run, progress=False)
    assert [row["step"] for row in history] == [105, 120, 135, 150]
    assert history[0]["charts/lag"] == 0
