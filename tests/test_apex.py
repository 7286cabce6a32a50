"""Ape-X: the ladder, first priorities, one memory of many actors, and its loop."""

from __future__ import annotations

import copy
import json
import os
import signal
from collections import deque
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from fuzz import assert_held
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from test_processes import gone, hurry, interrupted_while_all_hang, pids
from torch import Tensor
from worlds import counting, left_alone, moody

from literate_rl.actors.actors import weights_of
from literate_rl.actors.apex import (
    Apex,
    ApexActor,
    ApexConfig,
    DDPGApexConfig,
    DQNApexConfig,
    RainbowApexConfig,
    actor_epsilons,
    apex_settings,
    experience_layout,
    first_priorities,
    of_one_policy,
)
from literate_rl.actors.processes import SharedMemory
from literate_rl.apps.cli import main
from literate_rl.data.agents import Rollout, make_envs
from literate_rl.data.replay import ReplayBuffer
from literate_rl.ground.protocols import Algorithm
from literate_rl.learners.ddpg import DDPG, make_ddpg_policy
from literate_rl.learners.dqn import (
    DQN,
    DQNConfig,
    EpsilonGreedy,
    QLearning,
    dqn_settings,
    make_q_policy,
)
from literate_rl.learners.loop import OffPolicy
from literate_rl.learners.rainbow import Rainbow, make_rainbow_policy, rainbow_settings
from literate_rl.maths.dqn import q_target
from literate_rl.nets.policies import Policy
from literate_rl.runs.runs import Run, fit, load_checkpoint

SMALL = DQNApexConfig(
    actors=2,
    num_envs=3,
    rollout_len=8,
    train_interval=12,
    total_steps=480,
    learning_starts=48,
    batch_size=16,
    hidden=16,
    num_steps=3,
    checkpoint_interval=4,
)
SMALL_RAINBOW = RainbowApexConfig(
    **{
        field.name: getattr(SMALL, field.name)
        for field in fields(DQNApexConfig)
        if field.name not in ("dueling", "learning_rate", "priority_exponent")
    },
    num_atoms=11,
    value_max=20.0,
)
SMALL_DDPG = DDPGApexConfig(
    **{field.name: getattr(SMALL, field.name) for field in fields(ApexConfig)},
    num_envs=3,
    train_interval=12,
    total_steps=480,
    learning_starts=48,
    batch_size=16,
    hidden=16,
    num_steps=3,
    checkpoint_interval=4,
)


def cartpoles(copies: int = 3, limit: int = 9) -> SyncVectorEnv:
    """CartPoles with a time limit, so that both flags occur."""

    def make() -> gym.Env[Any, Any]:
        return TimeLimit(gym.make("CartPole-v1").unwrapped, limit)

    return make_envs(make, copies)


def pendulums(copies: int = 3) -> SyncVectorEnv:
    """Pendulums with a short time limit."""
    return make_envs(lambda: TimeLimit(gym.make("Pendulum-v1").unwrapped, 9), copies)


def late_resets(copies: int = 3) -> SyncVectorEnv:
    """CartPoles that reset a step late, so that some rows are no steps."""

    def make() -> gym.Env[Any, Any]:
        return TimeLimit(gym.make("CartPole-v1").unwrapped, 4)

    return SyncVectorEnv([make] * copies, autoreset_mode=AutoresetMode.NEXT_STEP)


def make_plain(config: Any, envs: SyncVectorEnv) -> OffPolicy:
    """Build the learner that has no actors."""
    space = envs.single_observation_space, envs.single_action_space
    torch.manual_seed(config.seed)
    if hasattr(config, "num_atoms"):
        names = "hidden num_atoms value_min value_max dueling noisy sigma hold"
        policy: Any = make_rainbow_policy(
            *space, **{name: getattr(config, name) for name in names.split()}
        )
        return Rainbow(policy, envs, config)
    if hasattr(config, "noise"):
        policy = make_ddpg_policy(*space, config.hidden)
        return DDPG(policy, envs, config)
    return DQN(make_q_policy(*space, config.hidden, config.dueling), envs, config)


def make_apex(
    config: Any = SMALL, build: Any = None, transport: Any = None, **changes: Any
) -> Apex:
    config = replace(config, **changes)
    kind = pendulums if hasattr(config, "noise") else cartpoles
    build = build or partial(kind, config.num_envs)
    return Apex(make_plain(config, build()), build, transport)


def same(one: Any, other: Any) -> bool:
    """Whether two nested states hold the same bits."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Tensor):
        return one.numpy().tobytes() == other.numpy().tobytes()
    return bool(one == other)


@pytest.mark.filterwarnings("ignore:.*beyond the atoms")
@pytest.mark.parametrize(("last", "some"), [(100.0, False), (5.0, True)])
def test_the_learner_tells_what_lies_beyond_its_atoms(last: float, some: bool) -> None:
    with make_apex(SMALL_RAINBOW, value_max=last, learning_starts=24) as learner:
        rows = [learner.iterate() for _ in range(2)]
    for row in rows:
        assert (row["losses/beyond_atoms"] > 0) == some
        assert "charts/epsilon" not in row, "the ladder explores"


# --- The ladder -----------------------------------------------------------------------


@pytest.mark.equation("epsilon-ladder")
def test_the_ladder_is_that_of_the_paper() -> None:
    for number in (2, 8, 360):
        wanted = [0.4 ** (1 + 7 * i / (number - 1)) for i in range(number)]
        torch.testing.assert_close(actor_epsilons(number), torch.tensor(wanted))
    assert actor_epsilons(1).tolist() == pytest.approx([0.4])
    ladder = actor_epsilons(360)
    assert ladder[0] == pytest.approx(0.4)
    assert ladder[-1] == pytest.approx(0.4**8)
    assert actor_epsilons(3, 0.5, 1.0).tolist() == pytest.approx([0.5, 0.5**1.5, 0.25])
    assert actor_epsilons(4, 0.3, 0.0).tolist() == pytest.approx([0.3] * 4)


@pytest.mark.equation("epsilon-ladder")
def test_each_environment_of_each_actor_acts_with_its_own_chance() -> None:
    """The values always prefer action 0, so every other action was drawn."""
    config = replace(
        SMALL,
        num_envs=2,
        rollout_len=500,
        train_interval=10,
        epsilon=0.8,
        power=2.0,
        checkpoint_interval=100,
    )
    apex = make_apex(config, counting, learning_starts=10**6)
    last = list(apex.policy.network)[-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor([1.0, 0.0, 0.0]))
    for _ in range(8):
        apex.iterate()
    rings = apex.learner.buffer.rings
    action = rings.fields["action"].reshape(-1, 4)[: rings.count[0]]
    assert len(action) == 2000
    for column, chance in enumerate(actor_epsilons(4, 0.8, 2.0).tolist()):
        often = (action[:, column] != 0).mean()
        assert abs(often - chance * 2 / 3) < 4 * (chance / len(action)) ** 0.5
    apex.close()


# --- First priorities -----------------------------------------------------------------


class WithNoise(Algorithm):
    """An algorithm whose error draws the same noise at each call."""

    def __init__(self, algorithm: Algorithm, seed: int) -> None:
        self.policy, self.target, self.seed = algorithm.policy, algorithm.target, seed
        self.judge = algorithm

    def error(self, batch: Any, _: torch.Generator) -> Any:
        judge = copy.copy(self.judge)
        judge.policy, judge.target = self.policy, self.target
        return judge.error(batch, torch.Generator().manual_seed(self.seed))


@pytest.mark.equation("first-priority")
@pytest.mark.parametrize("build", [cartpoles, late_resets])
@pytest.mark.parametrize("num_steps", [1, 3, 20])
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("kind", ["dqn", "rainbow", "noisy rainbow"])
def test_first_priorities_are_the_learners_own_errors(
    build, num_steps, double, kind
) -> None:
    """Right after the steps are stored, with the weights that acted."""
    config: Any = SMALL if kind == "dqn" else SMALL_RAINBOW
    if kind == "noisy rainbow":
        config = replace(config, noisy=True, sigma=0.5)
    apex = make_apex(
        replace(config, num_steps=num_steps, double=double, reward_scale=0.3),
        build,
        priority_exponent=1.0,
        learning_starts=10**6,
    )
    learner = apex.learner
    learner.algorithm = WithNoise(learner.algorithm, 7)
    apex.make_actor = partial(
        ApexActor, build, apex.policy, learner.algorithm, learner.config
    )
    for _ in range(2):  # one rollout of each actor
        apex.iterate()
    buffer = learner.buffer
    place = np.flatnonzero(buffer.tree.mass)
    assert len(place) == len(buffer)
    half = buffer.rings.num_envs // 2
    for mine in (place[place % (2 * half) < half], place[place % (2 * half) >= half]):
        batch = buffer.windows(mine, num_steps, config.gamma)
        batch = batch._replace(reward=batch.reward * 0.3)
        found = learner.algorithm.error(batch, None)
        given = torch.from_numpy(buffer.tree.mass[mine])
        wanted = found.td_error.abs().clamp_min(1e-6).double()
        torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-6)
        assert given.std() > 1e-5, "they differ from step to step"


@pytest.mark.equation("first-priority")
@pytest.mark.parametrize("num_steps", [1, 3])
def test_first_priorities_of_ddpg_are_those_of_its_critics(num_steps) -> None:
    apex = make_apex(
        SMALL_DDPG, num_steps=num_steps, priority_exponent=1.0, learning_starts=10**6
    )
    apex.iterate()
    learner, buffer = apex.learner, apex.learner.buffer
    place = np.flatnonzero(buffer.tree.mass)
    assert len(place) == 24
    batch = buffer.windows(place, num_steps, SMALL_DDPG.gamma)
    found = learner.error(batch, torch.Generator())
    given = torch.from_numpy(buffer.tree.mass[place])
    torch.testing.assert_close(given, found.td_error.abs().double(), rtol=1e-4, atol=0)
    apex.close()


def test_rows_that_are_no_steps_have_no_priority_and_may_hold_anything() -> None:
    envs = late_resets()
    learner = make_plain(SMALL, envs)
    learner.collector.reset(0)
    rollout = learner.collector.collect(lambda obs: torch.zeros(3, dtype=int), 12)
    phantom = ~rollout.real
    assert phantom.any()
    found = []
    for nonsense in (0.0, torch.nan):
        rollout.reward[phantom] = nonsense
        found.append(
            first_priorities(learner.algorithm, rollout, 3, 0.9, torch.Generator())
        )
        assert (found[-1][phantom] == 0).all()
    assert torch.equal(*found)
    assert (found[0][rollout.real] > 0).all()


def test_with_the_largest_no_actor_judges() -> None:
    apex = make_apex(priorities="largest", learning_starts=10**6)
    apex.iterate()
    buffer = apex.learner.buffer
    assert set(buffer.tree.mass[buffer.tree.mass > 0]) == {1.0}
    apex.close()


def test_layout_and_priorities_leave_modes_and_moments_alone() -> None:
    policy = Policy(moody(4, 2), EpsilonGreedy(2))
    envs = cartpoles(2)
    with left_alone(policy):
        experience_layout(policy, envs, 4)
        learner = make_plain(replace(SMALL, num_envs=2, train_interval=8), envs)
        learner.collector.reset(0)
        rollout = learner.collector.collect(lambda obs: torch.zeros(2, dtype=int), 4)
        algorithm = of_one_policy(QLearning(policy, SMALL), policy)
        first, again = (
            first_priorities(algorithm, rollout, 1, 0.9, learner.generator)
            for _ in "ab"
        )
        assert torch.equal(first, again)


def test_signatures_hold() -> None:
    assert assert_held(actor_epsilons, Random(0)) > 5
    envs = cartpoles(2)
    learner = make_plain(replace(SMALL, num_envs=2, train_interval=8), envs)
    learner.collector.reset(0)
    rollout = learner.collector.collect(lambda obs: torch.zeros(2, dtype=int), 4)
    none = torch.zeros(4, 2)  # and not NaN, which equals nothing
    rollout = rollout._replace(episode_return=none, episode_length=none)
    given = {
        "algorithm": lambda: learner.algorithm,
        "rollout": lambda: rollout,
    }
    assert assert_held(first_priorities, Random(0), **given) > 3
    layout = {"policy": lambda: learner.policy, "envs": lambda: envs}
    assert assert_held(experience_layout, Random(0), **layout) > 1


# --- One memory -----------------------------------------------------------------------


def check_rings(apex: Apex) -> None:
    """Every ring holds the steps of one environment, none missing and none twice.

    An environment shows its name and its count of steps. The name changes when an actor
    has died; the step before that must be an end.
    """
    rings = apex.learner.buffer.rings
    for env in range(rings.num_envs):
        rows = slice(env, rings.count[env] * rings.num_envs, rings.num_envs)
        obs, following = (rings.fields[name][rows] for name in ("obs", "next_obs"))
        cut = rings.fields["truncated"][rows] | rings.fields["terminated"][rows]
        assert (following[:, 0] == obs[:, 0]).all()
        assert (following[:, 1] == obs[:, 1] + 1).all()
        new = obs[1:, 0] != obs[:-1, 0]
        assert (obs[1:][new][:, 1] == 0).all()
        assert cut[:-1][new].all()
        assert (obs[1:][~new] == following[:-1][~new]).all()
        ended = (following[:, 1] % 7 == 0) | (following[:, 1] % 11 == 0)
        assert (cut[:-1] == (ended[:-1] | new)).all()


def test_the_rings_hold_what_each_environment_did() -> None:
    apex = make_apex(build=partial(counting, 3), learning_starts=10**6)
    fit(apex, progress=False)
    rings = apex.learner.buffer.rings
    assert rings.count.tolist() == [80] * 6
    # Five checkpoints, each with fresh environments.
    names = {*rings.fields["obs"][:480, 0].tolist()}
    assert len(names) == 5 * 6
    check_rings(apex)


def test_a_killed_actor_loses_nothing_that_counts() -> None:
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


def test_an_actor_that_hangs_is_replaced_and_loses_nothing_that_counts() -> None:
    build = partial(counting, 3, hangs_at=20)
    with make_apex(build=build, transport=SharedMemory, actors=1) as apex:
        steps = []
        # Each life sends two rollouts of 8 steps; a third one never ends.
        for replaced in (0, 0, 1, 1):
            if len(steps) == 2:
                hurry(apex.transport)
            row = apex.iterate()
            steps.append(apex.step)
            assert row["charts/replaced"] == replaced
        assert steps == [24, 48, 72, 96], "each counts once"
        check_rings(apex)


def test_ctrl_c_ends_a_run_that_waits_for_actors_that_hang(tmp_path: Path) -> None:
    options = {"total_steps": 10**7, "checkpoint_interval": 10**6}
    with make_apex(transport=SharedMemory, **options) as apex:
        apex.start()
        everyone = pids(apex.transport)
        interrupted_while_all_hang(apex, tmp_path / "a")
    assert gone(*everyone)


def test_pictures_travel_as_bytes() -> None:
    class Camera(gym.Env[Any, Any]):
        observation_space = spaces.Box(0, 255, (3, 8, 8), np.uint8)
        action_space = spaces.Discrete(2)

        def look(self) -> Any:
            return self.np_random.integers(0, 256, (3, 8, 8), np.uint8)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return self.look(), {}

        def step(self, action: Any) -> Any:
            return self.look(), 1.0, False, False, {}

    build = partial(make_envs, Camera, 2)
    apex = make_apex(
        SMALL_RAINBOW, build, num_envs=2, learning_starts=1, train_interval=8
    )
    assert apex.layout["result"]["obs"].base == np.uint8
    for _ in range(3):
        apex.iterate()
    obs = apex.learner.buffer.rings.fields["obs"]
    assert obs.dtype == np.uint8
    assert len(np.unique(obs[:16])) > 200
    apex.close()


# --- The loop -------------------------------------------------------------------------


class Numbered(gym.Wrapper[Any, Any, Any, Any]):
    """A CartPole whose episodes are the same for whoever makes it: seeds 0, 1, 2, …"""

    episode = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode += 1
        return self.env.reset(seed=self.episode)


@pytest.mark.parametrize("priorities", ["largest", "actor"])
def test_one_actor_with_one_slot_is_the_loop_without_actors(priorities) -> None:
    """The same steps, batches and learning rates: the same bits after 60 updates.

    Acting is greedy, because the noise comes from another generator with actors. With
    the actors' priorities other steps are drawn, and the runs part.
    """

    def build() -> SyncVectorEnv:
        return make_envs(lambda: Numbered(gym.make("CartPole-v1")), 3)

    config = replace(
        SMALL,
        actors=1,
        slots=1,
        rollout_len=4,
        train_interval=12,
        total_steps=720,
        learning_starts=12,
        iteration_steps=12,
        checkpoint_interval=10**6,
        anneal=True,
        epsilon=0.0,
        priorities=priorities,
    )
    names = {field.name for field in fields(DQNConfig)}
    plain_config = DQNConfig(**{k: x for k, x in vars(config).items() if k in names})
    plain = make_plain(replace(plain_config, train_interval=12), build())
    apex = make_apex(config, build)
    for policy in (plain.policy, apex.policy):
        policy.noise = lambda steps, envs, _: torch.zeros(steps, envs, 2)
    apex.make_actor = partial(
        ApexActor, build, apex.policy, apex.learner.algorithm, config
    )
    fit(plain, progress=False)
    fit(apex, progress=False)
    assert plain.updates == apex.learner.updates == 60
    one, other = plain.state_dict(), apex.learner.state_dict()
    assert one.pop("iteration") == 60 == apex.version
    other.pop("iteration")
    equal = same(one, other) and same(
        plain.policy.state_dict(), apex.policy.state_dict()
    )
    assert equal == (priorities == "largest")


@pytest.mark.parametrize("config", [SMALL, SMALL_RAINBOW, SMALL_DDPG])
def test_in_turns_a_resumed_run_is_the_same_bit_for_bit(
    config: Any, tmp_path: Path
) -> None:
    whole = make_apex(config)
    history = fit(whole, progress=False)
    assert history[-1]["step"] == 480
    assert np.isfinite(history[-1]["losses/loss"])
    again = make_apex(config)
    fit(again, progress=False)
    assert same(whole.state_dict(), again.state_dict()), "it can be repeated"
    half = make_apex(config, total_steps=288)
    half.learner.config = whole.config  # what falls with the steps
    with Run(tmp_path / "a", {}) as run:
        fit(half, run, progress=False)
    resumed = make_apex(config)
    with torch.no_grad():
        for parameter in resumed.policy.parameters():
            parameter.zero_()
    with Run(tmp_path / "a", resume=True) as run:
        run.restore(resumed)
        assert (resumed.step, resumed.version) == (288, 12)
        rows = fit(resumed, run, progress=False)
    assert same(whole.state_dict(), resumed.state_dict())
    assert same(whole.policy.state_dict(), resumed.policy.state_dict())
    assert rows[-1]["losses/loss"] == history[-1]["losses/loss"]


def test_actors_are_handed_the_faster_form() -> None:
    learner = make_plain(SMALL, cartpoles())
    plain = Apex(learner, cartpoles).make_actor(0)
    assert plain.act == plain.policy.act
    apex = Apex(learner, cartpoles, make_act=lambda own: (own, "fast"))
    actor = apex.make_actor(0)
    assert actor.act == (actor.policy, "fast")


@pytest.mark.parametrize("config", [SMALL, SMALL_RAINBOW, SMALL_DDPG])
def test_an_actor_judges_alone_and_leaves_the_learner_as_it_is(config: Any) -> None:
    apex = make_apex(config)
    algorithm, actor = apex.learner.algorithm, apex.make_actor(0)
    older, weights = algorithm.target.network, copy.deepcopy(apex.policy.state_dict())
    own = actor.algorithm
    assert own.policy is own.target.network is actor.policy
    assert list(own.actor) == []
    own.target.follow(0.5)
    apex.iterate()
    assert algorithm.policy is apex.policy
    assert algorithm.target.network is older
    assert older is not apex.policy
    assert same(apex.policy.state_dict(), weights)
    assert same(actor.policy.state_dict(), weights)
    apex.close()


def test_updates_are_as_many_for_each_step_as_without_actors() -> None:
    apex = make_apex(train_interval=6, learning_starts=100, checkpoint_interval=10**6)
    updates = []
    for _ in range(8):
        apex.iterate()
        updates.append(apex.learner.updates)
    # A rollout has 24 steps, so 4 updates; the fifth brings the count to 120.
    assert updates == [0, 0, 0, 0, 4, 8, 12, 16]
    apex.close()


def test_weights_travel_back_and_the_lag_is_that_of_the_slots() -> None:
    apex = make_apex(learning_starts=1, checkpoint_interval=10**6)
    lags = [apex.iterate()["charts/lag"] for _ in range(12)]
    assert lags == [0, 1, 2] + [3] * 9
    # The slot that was given away last brings the weights of this moment.
    latest = {k: x.copy() for k, x in weights_of(apex.policy).items()}
    transport = apex.transport
    slot = transport.tasks[-1]
    transport.tasks = deque([slot])
    transport.receive()
    acted = weights_of(transport.actors[slot[0]].policy)
    for name, x in latest.items():
        np.testing.assert_array_equal(acted[name], x)
    apex.close()


# --- Settings -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actors": None}, "actors must be an integer"),
        ({"train_interval": 7}, r"must divide rollout_len \* num_envs, 24, got 7"),
        ({"epsilon": 1.5}, "epsilon must be .*at most 1"),
        ({"power": -1.0}, "power must be at least 0"),
        ({"priorities": "nobody"}, "priorities must be 'actor' or 'largest'"),
        ({"rollout_len": 0}, "rollout_len must be at least 1"),
        ({"address": "a:1"}, "transport must be ray for address"),
    ],
)
def test_illegal_settings_are_named(changes, message) -> None:
    for config in (SMALL, SMALL_RAINBOW, SMALL_DDPG):
        with pytest.raises((TypeError, ValueError), match=message):
            replace(config, **changes)


def test_settings_are_those_without_actors_where_they_are_the_environments_own():
    for name, known in (("dqn", dqn_settings), ("rainbow", rainbow_settings)):
        for env in ("CartPole-v1", "unknown"):
            config, plain = apex_settings(env, name), known(env)
            assert config.actors == 2
            assert config.priority_exponent > 0
            for field in ("total_steps", "train_interval", "tau", "learning_rate"):
                assert getattr(config, field) == getattr(plain, field)
    assert not apex_settings("CartPole-v1", "rainbow").noisy


def test_random_actions_that_never_stop_shorten_the_targets():
    with_actors, alone = apex_settings("CartPole-v1"), dqn_settings("CartPole-v1")
    assert with_actors.num_steps < alone.num_steps
    assert apex_settings("unknown").num_steps == dqn_settings("unknown").num_steps


# --- Mistakes -------------------------------------------------------------------------


@pytest.mark.erratum("one-rung-for-all")
def test_one_rung_for_all_is_no_ladder() -> None:
    """Of 32 workers with one schedule all explore alike; a ladder spreads them."""
    alike = np.full(32, 0.9999**10_000)
    ladder = actor_epsilons(32).numpy()
    assert alike.max() / alike.min() == 1
    assert ladder.max() / ladder.min() > 600
    # At any time somebody explores more than the schedule does, and somebody less.
    for steps in (2_000, 10_000, 50_000):
        schedule = 0.9999**steps
        assert steps < 5_000 or ladder.max() > schedule
        assert ladder.min() < schedule


@pytest.mark.erratum("two-scales")
def test_a_first_priority_without_its_exponent_is_on_another_scale() -> None:
    """The same error, while new and once drawn; here the two masses are the same."""
    error, alpha = torch.tensor([0.01, 0.5, 10.0]), 0.6
    sent, written = error.double(), error.double() ** alpha
    assert (sent[:2] < written[:2]).all()
    assert sent[2] > written[2]
    one = torch.zeros(3, 1)
    no = one.bool()
    steps = Rollout(one, one.long(), one, one, no, no, ~no, one, one)
    buffer = ReplayBuffer(3, alpha)
    buffer.push(steps, error[:, None])
    first = buffer.tree.mass.copy()
    buffer.update(torch.arange(3), error)
    np.testing.assert_allclose(first, buffer.tree.mass)
    np.testing.assert_allclose(first, written.numpy(), rtol=1e-6)


@pytest.mark.erratum("two-scales")
def test_the_value_of_the_action_taken_is_another_priority() -> None:
    """Where the next action was random, the first priority is not the learner's."""
    generator = torch.Generator().manual_seed(0)
    q, following = torch.randn(2, 4000, 2, generator=generator)
    best = following.argmax(-1)
    explore = torch.rand(4000, generator=generator) < 0.4
    taken = torch.where(explore, torch.randint(2, (4000,), generator=generator), best)
    reward, value = torch.zeros(4000), q[:, 0]
    learner = q_target(reward, torch.full((4000,), 0.99), following) - value
    actor = 0.99 * following.gather(-1, taken[:, None])[:, 0] - value
    other = ~torch.isclose(learner, actor)
    assert 0.17 < other.double().mean() < 0.23, "every fifth step"
    assert torch.equal(other, taken != best)


# --- The command ----------------------------------------------------------------------


def test_apex_names_its_learner(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    short = ["--total-steps=640", "--learning-starts=320", "--batch-size=16"]
    short += ["--checkpoint-interval=4", "--num-steps=3"]
    main(["apex", "--env=CartPole-v1", "--name=a", *short])
    main(["apex", "--algorithm=rainbow", "--num-atoms=11", "--name=b", *short])
    for name, algorithm in (("a", "dqnapex"), ("b", "rainbowapex")):
        stored = json.loads((tmp_path / f"runs/{name}/settings.json").read_text())
        assert stored["algorithm"] == algorithm
        settings = tmp_path / f"runs/{name}/settings.json"
        settings.write_text(settings.read_text().replace("640", "960"))
    main(["apex", "--resume=runs/a"])
    main(["apex", "--algorithm", "rainbow", "--resume", "runs/b"])
    out = capsys.readouterr().out
    assert out.count("return of 20 episodes without noise") == 4
    checkpoint = load_checkpoint(tmp_path / "runs/a/checkpoint.pt")
    assert checkpoint["step"] == 960
    with pytest.raises(SystemExit):
        main(["apex", "--algorithm=ppo"])


def test_the_number_of_environments_must_fit() -> None:
    with pytest.raises(ValueError, match="envs must have 3 copies, got 2"):
        make_apex(build=partial(cartpoles, 2))
