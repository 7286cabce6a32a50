"""Actors, transports and the learner; processes are started and killed for real."""

from __future__ import annotations

import math
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import counting, deadly

from literate_rl.actors import (
    Actor,
    ActorLearner,
    ActorsConfig,
    InProcess,
    SharedMemory,
    actors_settings,
    pickled,
    slot_layout,
    weights_of,
)
from literate_rl.agents import make_envs
from literate_rl.hybrid_policy import make_hybrid_policy
from literate_rl.impala import Unroll, VTraceLearner, impala_settings
from literate_rl.policies import make_policy
from literate_rl.workshop.cli import main
from literate_rl.workshop.cluster import RayActors
from literate_rl.workshop.runs import Run, fit, flat_env, load_checkpoint

SMALL = ActorsConfig(actors=2, unroll_len=5, n_sample=3, total_steps=300)


def cartpoles(copies: int = 3, limit: int = 500) -> SyncVectorEnv:
    """CartPoles with a time limit, so that both flags occur."""

    def make() -> gym.Env[Any, Any]:
        return TimeLimit(gym.make("CartPole-v1").unwrapped, limit)

    return make_envs(make, copies)


def make_learner(env: str = "CartPole-v1", **changes: Any) -> ActorLearner:
    config = replace(SMALL, **changes)
    build = partial(make_envs, partial(flat_env, env), config.n_sample)
    envs = build()
    torch.manual_seed(config.seed)
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    return ActorLearner(policy, build, config)


def policy_for(envs: SyncVectorEnv) -> Any:
    torch.manual_seed(0)
    return make_policy(envs.single_observation_space, envs.single_action_space)


# --- Settings -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actors": 0}, "actors must be .*at least 1.*, got 0"),
        ({"slots": 0}, "slots must be at least 1, got 0"),
        ({"transport": "pigeon"}, "transport must be 'in_process' or .*, got 'pigeon'"),
        ({"address": "auto"}, "transport must be ray for address auto"),
        ({"actors": None, "transport": "shared"}, "actors must be given for transport"),
        ({"actors": True}, "actors must be .*int.*, got (bool|True)"),
        ({"priority": True}, "priority, lag and on_policy must be off"),
        ({"on_policy": True}, "priority, lag and on_policy must be off"),
        ({"lag": 3}, "priority, lag and on_policy must be off"),
        ({"unroll_len": 0}, "unroll_len must be at least 1"),
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
    with pytest.raises(ValueError, match="make_envs must make 3 copies, got 2"):
        ActorLearner(policy, counting, SMALL)
    with pytest.raises(TypeError, match=r"envs must be .*VectorEnv, got .*None"):
        ActorLearner(policy, lambda: None, SMALL)
    with pytest.raises(ValueError, match=r"RayActors of literate_rl\.workshop"):
        ActorLearner(policy, counting, replace(SMALL, transport="ray"))


def test_what_an_actor_is_made_of_is_held_by_signatures() -> None:
    envs, policy = counting(), policy_for(counting())
    with pytest.raises(ValueError, match="unroll_len must be at least 1, got 0"):
        slot_layout(policy, envs, 0)
    with pytest.raises(TypeError, match="seed must be an integer, got float"):
        Actor(counting, policy, 0.5)


# --- One unroll -----------------------------------------------------------------------


def log_probs(policy: Any, record: Any) -> np.ndarray:
    """Return how likely a policy finds the actions of an unroll."""
    shown = torch.from_numpy(record["obs_plus_1"][:-1].copy())
    action = torch.from_numpy(record["action"].copy())
    log_prob, _ = policy.evaluate_actions(shown, action)
    return log_prob.numpy(force=True)


def to_unroll(record: Any) -> Unroll:
    """Return a copy of what the learner reads of a record."""
    return Unroll(*(torch.from_numpy(record[name].copy()) for name in Unroll._fields))


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
    assert learner.step == SMALL.unroll_len * SMALL.n_sample
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
    learner = make_learner(actors=actors, slots=slots, unroll_len=2)
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


@pytest.mark.parametrize("transport", ["in_process", "shared"])
def test_a_learner_that_fails_can_go_on(transport, monkeypatch) -> None:
    """An unroll that could not be learned from does not leave a slot behind."""

    def fail(batch: Any) -> Any:
        raise KeyboardInterrupt

    with make_learner(actors=1, slots=1, transport=transport) as learner:
        learner.iterate()
        with monkeypatch.context() as context:
            context.setattr(learner.learner, "learn", fail)
            with pytest.raises(KeyboardInterrupt):
                learner.iterate()
        assert learner.transport is None
        learner.iterate()
        assert learner.step == 2 * 15


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


# --- Processes ------------------------------------------------------------------------


def wave(policy: Any, version: int) -> dict[str, np.ndarray]:
    """Return weights that are a wave, which begins elsewhere for each version."""
    return {
        name: 0.3 * np.sin(np.arange(x.size) + version).reshape(x.shape).astype(x.dtype)
        for name, x in weights_of(policy).items()
    }


class Witness:
    """Takes unrolls from a transport and checks each of them.

    An unroll is whole if its steps follow each other in every environment. It was made
    with one version if what the policy said fits these weights and no other. Over all
    unrolls of an environment no step may be missing and none may come twice.
    """

    def __init__(self, transport: Any, policy: Any, actors: int, slots: int) -> None:
        self.transport, self.policy = transport, policy
        self.versions: dict[Any, int] = {}
        self.version = self.frames = 0
        self.next_step: dict[float, int] = defaultdict(int)
        for index in range(slots):
            for actor in range(actors):
                self.submit((actor, index))

    def submit(self, slot: Any) -> None:
        self.versions[slot] = self.version
        self.transport.submit(slot, wave(self.policy, self.version))

    def take(self) -> None:
        slot, unroll = self.transport.receive()
        steps = len(unroll["reward"])
        name, count = unroll["obs_plus_1"][..., 0], unroll["obs_plus_1"][..., 1]
        for b in range(unroll["reward"].shape[1]):
            start = self.next_step[name[0, b]]
            assert (name[:, b] == name[0, b]).all()
            assert (count[:, b] == np.arange(start, start + steps + 1)).all()
            assert (unroll["reward"][:, b] == count[1:, b]).all()
            self.next_step[name[0, b]] = start + steps
        weights = wave(self.policy, self.versions[slot])
        self.policy.load_state_dict(
            {k: torch.from_numpy(x) for k, x in weights.items()}
        )
        said = log_probs(self.policy, unroll)
        np.testing.assert_allclose(unroll["log_prob"], said, rtol=1e-5, atol=1e-6)
        self.frames += unroll["reward"].size
        self.version += 1
        self.submit(slot)

    def take_until(self, condition: Callable[[], bool], seconds: float = 120.0) -> None:
        """Take unrolls until something has happened, but not for ever."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it has not happened"
            self.take()


def shared(
    build: Callable[[], SyncVectorEnv],
    actors: int = 1,
    slots: int = 2,
    steps: int = 8,
) -> tuple[SharedMemory, Any]:
    policy = policy_for(build())
    layout = slot_layout(policy, build(), steps)
    make_actor = partial(Actor, build, policy)
    return SharedMemory(make_actor, layout, 1, actors, slots), policy


def pids(transport: SharedMemory) -> list[int]:
    return [life.process.pid for life in transport.lives]


def gone(*numbers: int) -> bool:
    """Wait, for a bounded time, until no such process is left."""
    return eventually(lambda: not any(map(psutil.pid_exists, numbers)))


def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@pytest.mark.equation("slot-memory")
def test_memory_is_bounded_by_the_slots_and_actors_sleep_while_they_wait() -> None:
    """A learner that does not come: the queue fills up, and then nothing happens."""
    transport, policy = shared(counting, actors=2, slots=3)
    layout = transport.layout
    pockets = layout["weights"].itemsize + layout["result"].itemsize
    assert 0 <= layout.itemsize - pockets < 16  # what alignment costs
    assert sum(map(len, transport.memory)) == 2 * 3 * layout.itemsize
    witness = Witness(transport, policy, actors=2, slots=3)
    witness.take()  # all have begun
    actors = [psutil.Process(pid) for pid in pids(transport)]

    def spent() -> float:
        return sum(sum(actor.cpu_times()[:2]) for actor in actors)

    def asleep() -> bool:
        before = spent()
        time.sleep(0.2)
        return spent() == before

    assert eventually(asleep)
    before = [actor.memory_info().rss for actor in actors]
    for _ in range(5):
        assert asleep()
    assert [actor.memory_info().rss for actor in actors] == before
    witness.take()
    assert transport.waiting == 5
    for _ in range(20):
        witness.take()
    transport.close()
    assert gone(*(actor.pid for actor in actors))


def test_actors_that_are_killed_are_replaced_and_nothing_is_torn_or_counted_twice():
    """Kill at random moments, in the middle of an unroll and while waiting."""
    rng = random.Random(0)
    transport, policy = shared(partial(counting, nap=0.0005), actors=2, slots=2)
    witness, kills = Witness(transport, policy, actors=2, slots=2), 0
    everyone = set(pids(transport))
    for _ in range(14):
        for _ in range(rng.randrange(1, 8)):
            witness.take()
        time.sleep(0.02 * rng.random())
        victims = rng.choice([[0], [1], [0, 1]])
        for actor in victims:
            os.kill(pids(transport)[actor], signal.SIGKILL)
        kills += len(victims)
        witness.take_until(lambda kills=kills: transport.census.replaced >= kills)
        everyone |= set(pids(transport))
    for _ in range(30):
        witness.take()
    assert transport.census.replaced == kills
    assert transport.census.at_work == 2
    assert len(everyone) == 2 + kills
    # Each environment begins at its first step and goes on without a gap.
    assert witness.frames == sum(witness.next_step.values())
    transport.close()
    assert gone(*everyone)


def test_an_actor_that_hangs_does_not_keep_the_learner_from_ending() -> None:
    transport, policy = shared(counting)
    witness = Witness(transport, policy, actors=1, slots=2)
    witness.take()
    (pid,) = pids(transport)
    os.kill(pid, signal.SIGSTOP)
    transport.close()
    assert gone(pid)
    transport.close()  # twice is no mistake
    with pytest.raises(ValueError, match="this transport is closed"):
        transport.receive()


def test_ctrl_c_is_not_for_actors() -> None:
    transport, policy = shared(counting)
    witness = Witness(transport, policy, actors=1, slots=2)
    for _ in range(3):
        os.kill(pids(transport)[0], signal.SIGINT)
        witness.take()
    assert transport.census.replaced == 0
    transport.close()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_error_in_an_actor_ends_the_run_with_its_words(error) -> None:
    # With one slot the actor goes on only when the learner has taken what there was.
    transport, policy = shared(partial(counting, fails_at=20, error=error), slots=1)
    witness = Witness(transport, policy, actors=1, slots=1)
    for _ in range(2):  # two unrolls of 8 steps are below step 20
        witness.take()
    with pytest.raises(ChildProcessError, match="actor 0 failed") as raised:
        witness.take()
    assert "the pole is made of glass" in str(raised.value)
    assert "worlds.py" in str(raised.value)
    transport.close()


def test_an_actor_that_always_dies_is_given_up() -> None:
    policy = policy_for(counting(1))
    layout = slot_layout(policy, counting(1), 4)
    transport = SharedMemory(partial(Actor, deadly, policy), layout, 1, 1, 2)
    witness = Witness(transport, policy, actors=1, slots=2)
    message = "actor 0 died 3 times before its first unroll, .* exit code -9"
    with pytest.raises(ChildProcessError, match=message):
        witness.take()
    transport.close()


def test_what_cannot_be_sent_to_a_process_is_refused() -> None:
    with pytest.raises(ValueError, match="make_envs must be a function that another"):
        shared(lambda: counting())


def test_what_only_a_notebook_has_is_refused(monkeypatch) -> None:
    """A notebook has a module ``__main__`` without a file."""
    notebook = ModuleType("__main__")
    exec("def make(): pass", vars(notebook))
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    with pytest.raises(ValueError, match="or one from a notebook"):
        pickled(partial(Actor, vars(notebook)["make"], None))


def test_both_transports_bring_the_same_unrolls() -> None:
    """The same seed and the same weights give the same experience anywhere."""
    policy = policy_for(counting())
    layout = slot_layout(policy, counting(), 8)
    common = (partial(Actor, counting, policy), layout, 7, 1, 2)
    transports = [InProcess(*common), SharedMemory(*common)]
    streams = []
    for transport in transports:
        witness = Witness(transport, policy, actors=1, slots=2)
        content = []
        for _ in range(4):
            witness.take()
            content.append(dict(witness.next_step))
        streams.append(content)
        transport.close()
    assert streams[0] == streams[1]


def test_a_run_with_processes_counts_every_step() -> None:
    with make_learner(transport="shared", total_steps=300) as learner:
        history = fit(learner, progress=False)
        everyone = pids(learner.transport)
    assert [row["step"] for row in history] == list(range(15, 301, 15))
    assert all(row["charts/lag"] >= 0 for row in history)
    assert history[-1]["charts/replaced"] == 0
    assert gone(*everyone)


# --- The command line -----------------------------------------------------------------

TINY = ["--env=CartPole-v1", "--actors=2", "--transport=shared", "--n-sample=2"]
TINY += ["--unroll-len=8", "--checkpoint-interval=20", "--update-per-collect=1"]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run of the command in a session of its own, which has begun to learn."""
    options = [*TINY, "--name=a", "--total-steps=100000000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "literate_rl", "impala", *options],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    table = tmp_path / "runs/a/metrics.csv"

    def ready() -> bool:
        ended = process.poll() is not None  # then there is nothing to wait for
        return ended or (table.exists() and table.read_text().count("\n") > 60)

    began = eventually(ready, seconds=90) and process.poll() is None
    yield process
    for member in session(process.pid):
        os.kill(member, signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert began, err


def session(leader: int) -> list[int]:
    """Return the processes of a session."""
    members = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == leader:
                members.append(pid)
        except (ProcessLookupError, PermissionError):
            continue
    return members


def live(leader: int) -> list[int]:
    """Return those that are no zombies."""
    found = []
    for pid in session(leader):
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            continue
    return found


def test_a_killed_learner_leaves_no_actor_and_its_run_goes_on(
    started, tmp_path, monkeypatch, capsys
) -> None:
    # The learner, the fork server, multiprocessing's tracker and two actors.
    assert len(live(started.pid)) == 5
    started.kill()
    assert eventually(lambda: not live(started.pid))
    step = load_checkpoint(tmp_path / "runs/a/checkpoint.pt")["step"]
    assert step > 0
    assert step % 16 == 0
    settings = tmp_path / "runs/a/settings.json"
    goal = step + 160
    text = settings.read_text().replace("100000000", str(goal))
    settings.write_text(text)
    monkeypatch.chdir(tmp_path)
    main(["impala", "--resume", "runs/a"])
    assert "return of 20 episodes" in capsys.readouterr().out
    assert load_checkpoint(tmp_path / "runs/a/checkpoint.pt")["step"] == goal
    rows = (tmp_path / "runs/a/metrics.csv").read_text().splitlines()[1:]
    steps = [int(row.split(",")[0]) for row in rows]
    assert steps == list(range(16, goal + 1, 16))


def test_ctrl_c_saves_and_leaves_no_process(started) -> None:
    os.killpg(started.pid, signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert started.returncode == 0, err
    assert re.search(r"interrupted at step \d+, go on with --resume runs/a", out)
    assert "Traceback" not in err
    for word in ("actors=2", "queue=", "lag=", "steps/s="):
        assert word in err
    assert eventually(lambda: not live(started.pid))


# --- Locks ----------------------------------------------------------------------------

KILLED_IN_GET = """
import os, signal, time
from multiprocessing import get_context

def actor(queue):
    queue.get()

context = get_context("fork")
queue = context.SimpleQueue()
first = context.Process(target=actor, args=(queue,), daemon=True)
first.start()
while queue._rlock.acquire(block=False):
    queue._rlock.release()
    time.sleep(0.01)
os.kill(first.pid, signal.SIGKILL)
first.join()
queue.put("a free buffer")
assert not queue.empty()
print(queue._rlock.acquire(timeout=0.5))
"""


@pytest.mark.erratum("lock-of-the-dead")
def test_a_queue_is_lost_when_a_process_dies_that_waits_in_it() -> None:
    """A program of its own, because it forks."""
    command = [sys.executable, "-c", KILLED_IN_GET]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


# --- Without Ray ----------------------------------------------------------------------


def test_an_address_where_nobody_answers_is_refused_at_once() -> None:
    pytest.importorskip("ray")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"no Ray cluster answers .* {address}"):
            RayActors(lambda seed: None, np.dtype([]), 1, 1, 1, address)


def test_the_error_says_how_to_get_ray(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    learner = make_learner()
    learner.make_transport = RayActors
    with pytest.raises(ValueError, match=r"pip install 'literate-rl\[ray\]'"):
        learner.iterate()
