"""Ape-X: the ladder, first priorities, one memory of many actors, and its loop."""

from __future__ import annotations

import copy
import os
import signal
from dataclasses import fields, replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from torch.utils._pytree import tree_leaves
from worlds import counting

from literate_rl.actors.apex import (
    Apex,
    ApexActor,
    DDPGApexConfig,
    DQNApexConfig,
    RainbowApexConfig,
    actor_epsilons,
    experience_layout,
    first_priorities,
)
from literate_rl.actors.processes import SharedMemory
from literate_rl.data.agents import Rollout, make_envs
from literate_rl.data.replay import ReplayBuffer
from literate_rl.ground.protocols import Algorithm
from literate_rl.learners.ddpg import DDPG, make_ddpg_policy
from literate_rl.learners.dqn import (
    DQN,
    DQNConfig,
    make_q_policy,
)
from literate_rl.learners.loop import OffPolicy
from literate_rl.learners.rainbow import Rainbow, make_rainbow_policy
from literate_rl.runs.runs import fit

SHARED: dict[str, Any] = {
    "actors": 2,
    "num_envs": 3,
    "rollout_len": 8,
    "train_interval": 12,
    "total_steps": 480,
    "learning_starts": 48,
    "batch_size": 16,
    "hidden": 16,
    "num_steps": 3,
    "checkpoint_interval": 4,
}
SMALL = DQNApexConfig(**SHARED)
ALL = {
    "dqn": SMALL,
    "rainbow": RainbowApexConfig(**SHARED, num_atoms=11, value_max=20.0),
    "ddpg": DDPGApexConfig(**SHARED),
}
NEVER = 10**6


def worlds(
    copies: int = 3,
    limit: int = 9,
    name: str = "CartPole-v1",
    mode: AutoresetMode = AutoresetMode.SAME_STEP,
) -> SyncVectorEnv:
    """Environments with a time limit, so that both flags occur."""
    makers = [lambda: TimeLimit(gym.make(name).unwrapped, limit)] * copies
    return SyncVectorEnv(makers, autoreset_mode=mode)


# These reset a step late, so that some rows are no steps.
late_resets = partial(worlds, limit=4, mode=AutoresetMode.NEXT_STEP)


def make_plain(config: Any, envs: SyncVectorEnv) -> OffPolicy:
    """Build the learner that has no actors."""
    both = envs.single_observation_space, envs.single_action_space
    torch.manual_seed(config.seed)
    if hasattr(config, "num_atoms"):
        names = "hidden num_atoms value_max noisy".split()  # noqa: SIM905
        given = {name: getattr(config, name) for name in names}
        return Rainbow(make_rainbow_policy(*both, **given), envs, config)
    if hasattr(config, "noise"):
        return DDPG(make_ddpg_policy(*both, config.hidden), envs, config)
    return DQN(make_q_policy(*both, config.hidden), envs, config)


def make_apex(
    config: Any = SMALL, build: Any = None, transport: Any = None, **changes: Any
) -> Apex:
    config = replace(config, **changes)
    name = "Pendulum-v1" if hasattr(config, "noise") else "CartPole-v1"
    build = build or partial(worlds, config.num_envs, name=name)
    return Apex(make_plain(config, build()), build, transport)


def collected(envs: SyncVectorEnv, steps: int) -> tuple[OffPolicy, Rollout]:
    """Return a learner without actors, and steps in which action 0 was taken."""
    learner = make_plain(replace(SMALL, num_envs=2, train_interval=8), envs)
    learner.collector.reset(0)
    return learner, learner.collector.collect(
        lambda obs: torch.zeros(2, dtype=int), steps
    )


def same(*both: Any) -> bool:
    """Say whether two states hold the same bits."""
    pairs = zip(*map(tree_leaves, both), strict=True)
    return all(
        np.array_equal(x, y, equal_nan=True) if hasattr(x, "shape") else x == y
        for x, y in pairs
    )


# --- The ladder -----------------------------------------------------------------------


@pytest.mark.equation("epsilon-ladder")
@pytest.mark.erratum("one-rung-for-all")
def test_the_ladder_is_that_of_the_paper():
    for number in (2, 8, 360):
        wanted = [0.4 ** (1 + 7 * i / (number - 1)) for i in range(number)]
        torch.testing.assert_close(actor_epsilons(number), torch.tensor(wanted))
    assert actor_epsilons(1).tolist() == pytest.approx([0.4])
    assert actor_epsilons(3, 0.5, 1.0).tolist() == pytest.approx([0.5, 0.5**1.5, 0.25])
    # Somebody always explores more than one schedule for all, and somebody less.
    ladder = actor_epsilons(32).numpy()
    assert ladder.max() / ladder.min() > 600
    for steps in (10_000, 50_000):
        assert ladder.min() < 0.9999**steps < ladder.max()


@pytest.mark.equation("epsilon-ladder")
def test_each_environment_of_each_actor_acts_with_its_own_chance():
    """The values always prefer action 0, so every other action was drawn."""
    long = {"rollout_len": 500, "train_interval": 10, "learning_starts": NEVER}
    long |= {"num_envs": 2, "epsilon": 0.8, "power": 2.0, "checkpoint_interval": 100}
    with make_apex(build=counting, **long) as apex:
        last = list(apex.policy.network)[-1]
        with torch.no_grad():
            last.weight.zero_()
            last.bias.copy_(torch.tensor([1.0, 0.0, 0.0]))
        for _ in range(8):
            apex.iterate()
    rings = apex.learner.buffer.rings
    action = rings.fields["action"].reshape(-1, 4)[: rings.count[0]]
    assert len(action) == 2000
    often = (action != 0).mean(0)
    chance = actor_epsilons(4, 0.8, 2.0).numpy()
    assert (abs(often - chance * 2 / 3) < 4 * (chance / len(action)) ** 0.5).all()


# --- First priorities -----------------------------------------------------------------


class WithNoise(Algorithm):
    """An algorithm whose error draws the same noise at each call."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.policy, self.target = algorithm.policy, algorithm.target
        self.judge = algorithm

    def error(self, batch: Any, _: Any = None) -> Any:
        judge = copy.copy(self.judge)
        judge.policy, judge.target = self.policy, self.target
        return judge.error(batch, torch.Generator().manual_seed(7))


@pytest.mark.equation("first-priority")
@pytest.mark.parametrize("build", [worlds, late_resets])
@pytest.mark.parametrize("num_steps", [3, 20])
@pytest.mark.parametrize("kind", ["dqn", "rainbow", "ddpg"])
def test_first_priorities_are_the_learners_own_errors(build, num_steps, kind):
    """Right after the steps are stored, with the weights that acted."""
    changes = {"noisy": True} if kind == "rainbow" else {}
    name = "Pendulum-v1" if kind == "ddpg" else "CartPole-v1"
    build = partial(build, name=name)
    changes |= {"num_steps": num_steps, "reward_scale": 0.3, "priority_exponent": 1.0}
    apex = make_apex(ALL[kind], build, learning_starts=NEVER, **changes)
    learner, buffer = apex.learner, apex.learner.buffer
    judge = learner.algorithm = WithNoise(learner.algorithm)
    apex.make_actor = partial(ApexActor, build, apex.policy, judge, learner.config)
    for _ in range(2):  # one rollout of each actor
        apex.iterate()
    apex.close()
    place = np.flatnonzero(buffer.tree.mass)
    assert len(place) == len(buffer)
    for actor in (0, 1):
        mine = place[place % 6 // 3 == actor]
        batch = buffer.windows(mine, num_steps, learner.config.gamma)
        found = judge.error(batch._replace(reward=batch.reward * 0.3))
        given = torch.from_numpy(buffer.tree.mass[mine])
        wanted = found.td_error.abs().clamp_min(1e-6).double()
        torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-6)
        assert given.std() > 1e-5, "they differ from step to step"


def test_rows_that_are_no_steps_have_no_priority_and_may_hold_anything():
    learner, rollout = collected(late_resets(2), 12)
    phantom, found = ~rollout.real, []
    assert phantom.any()
    for nonsense in (0.0, torch.nan):
        rollout.reward[phantom] = nonsense
        given = learner.algorithm, rollout, 3, 0.9, torch.Generator()
        found.append(first_priorities(*given))
        assert torch.equal(found[-1] > 0, rollout.real)
    assert torch.equal(*found)


def test_with_the_largest_no_actor_judges():
    with make_apex(priorities="largest", learning_starts=NEVER) as apex:
        apex.iterate()
        assert {*apex.learner.buffer.tree.mass} == {0.0, 1.0}


@pytest.mark.parametrize("seen", ["uint8", "float32", "float64"])
def test_pictures_travel_as_bytes_and_no_number_as_a_float64(seen):
    envs = worlds(2)
    policy = make_plain(replace(SMALL, num_envs=2, train_interval=8), envs).policy
    envs.single_observation_space = spaces.Box(0, 255, (4,), np.dtype(seen).type)
    sent = experience_layout(policy, envs, 4)["result"]["obs"].base
    assert sent == ("float32" if seen == "float64" else seen)


# --- One memory -----------------------------------------------------------------------


def check_rings(apex: Apex) -> None:
    """Every ring holds the steps of one environment, none missing and none twice.

    An environment shows its name and its count of steps. The name changes when an actor
    has died; the step before that must be an end.
    """
    rings = apex.learner.buffer.rings
    names = "obs", "next_obs", "truncated", "terminated"
    for env in range(rings.num_envs):
        rows = slice(env, rings.count[env] * rings.num_envs, rings.num_envs)
        obs, following, *flags = (rings.fields[name][rows] for name in names)
        assert (following == obs + np.array([0, 1])).all()
        new = obs[1:, 0] != obs[:-1, 0]
        assert (obs[1:][new][:, 1] == 0).all()
        assert (obs[1:][~new] == following[:-1][~new]).all()
        ended = (following[:, 1] % 7 == 0) | (following[:, 1] % 11 == 0)
        assert ((flags[0] | flags[1])[:-1] == (ended[:-1] | new)).all()


def test_the_rings_hold_what_each_environment_did():
    apex = make_apex(build=partial(counting, 3), learning_starts=NEVER)
    fit(apex, progress=False)
    rings = apex.learner.buffer.rings
    assert rings.count.tolist() == [80] * 6
    # Five checkpoints, each with fresh environments.
    assert len({*rings.fields["obs"][:480, 0].tolist()}) == 5 * 6
    check_rings(apex)


def test_a_killed_actor_loses_nothing_that_counts():
    build = partial(counting, 3, nap=0.0005)
    with make_apex(build=build, transport=SharedMemory, total_steps=4800) as apex:
        kills, steps, row = 0, [], {"charts/replaced": 0}
        while apex.step < 4800 or row["charts/replaced"] < 4:
            row = apex.iterate()
            steps.append(apex.step)
            if len(steps) % 25 == 20 and kills < 4:
                victim = apex.transport.lives[kills % 2].process.pid
                os.kill(victim, signal.SIGKILL)
                kills += 1
        assert (kills, row["charts/replaced"]) == (4, 4)
        assert steps == list(range(24, 24 * len(steps) + 1, 24)), "each counts once"
        assert len(apex.learner.buffer) == apex.step
        check_rings(apex)


# --- The loop -------------------------------------------------------------------------


class Numbered(gym.Wrapper[Any, Any, Any, Any]):
    """A CartPole whose episodes are the same for whoever makes it: seeds 0, 1, 2, …"""

    episode = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode += 1
        return self.env.reset(seed=self.episode)


def test_one_actor_with_one_slot_is_the_loop_without_actors():
    """The same steps, batches and learning rates: the same bits after 60 updates.

    Acting is greedy, because the noise comes from another generator with actors.
    """
    build = partial(make_envs, lambda: Numbered(gym.make("CartPole-v1")), 3)
    changes = {"actors": 1, "slots": 1, "rollout_len": 4, "iteration_steps": 12}
    changes |= {"total_steps": 720, "learning_starts": 12, "anneal": True}
    changes |= {"checkpoint_interval": NEVER, "epsilon": 0.0, "priorities": "largest"}
    apex = make_apex(build=build, **changes)
    names = [field.name for field in fields(DQNConfig)]
    plain_config = DQNConfig(**{x: getattr(apex.config, x) for x in names})
    plain = make_plain(plain_config, build())
    for policy in (plain.policy, apex.policy):
        policy.noise = lambda steps, envs, _: torch.zeros(steps, envs, 2)
    apex.make_actor = partial(
        ApexActor, build, apex.policy, apex.learner.algorithm, apex.config
    )
    fit(plain, progress=False)
    fit(apex, progress=False)
    assert plain.updates == plain.iteration == apex.version == 60
    states = [plain.state_dict(), apex.learner.state_dict()]
    for state in states:
        del state["iteration"]
    assert same(*states)
    assert same(plain.policy.state_dict(), apex.policy.state_dict())


@pytest.mark.parametrize("kind", ALL)
def test_illegal_settings_are_named(kind):
    for name, wrong in (("train_interval", 7), ("address", "a:1")):
        with pytest.raises((TypeError, ValueError), match=name):
            replace(ALL[kind], **{name: wrong})


@pytest.mark.erratum("two-scales")
def test_a_first_priority_is_on_the_scale_of_the_learner():
    """The same error, while new and once drawn, has the same mass."""
    error, alpha = torch.tensor([0.01, 0.5, 10.0]), 0.6
    one = torch.ones(3, 1)
    no = one > 1
    buffer = ReplayBuffer(3, alpha)
    steps = Rollout(one, one.long(), one, one, no, no, ~no, one, one)
    buffer.push(steps, error[:, None])
    first = buffer.tree.mass.copy()
    buffer.update(torch.arange(3), error)
    np.testing.assert_allclose(first, buffer.tree.mass)
    assert not np.isclose(first, error, rtol=1e-2).any(), "what would be sent as it is"
