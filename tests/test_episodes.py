"""The guards of the loop, one by one; ``test_agents`` holds them in the loop itself."""

import copy
import re
import sys
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from hypothesis import given
from hypothesis import strategies as st
from test_evaluation import Undecided
from torch import nn

from literate_rl.apps.training import train
from literate_rl.data.agents import Collector, make_envs
from literate_rl.data.episodes import (
    EpisodeCounter,
    Held,
    check_experience,
    check_final,
    check_num_envs,
    check_seen,
    env_seed,
    plain_actions,
    resets_later,
)
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import flat_env, record_video

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.chaos_worlds import FAULTS, UNSEEN, Breaking

TWO, LIST = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
ZEROS = np.zeros(2, np.float32)


def cartpole():
    return gym.make("CartPole-v1")


class Answers(gym.Env):
    """Answers what it was told to, or raises it."""

    action_space = LIST

    def __init__(self, space=TWO, start=(ZEROS, {}), answer=None):
        self.observation_space, self.start, self.answer = space, start, answer

    def reset(self, **_):
        return self.start

    def step(self, action):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class Recipe(nn.Module):
    """A policy that says what it has learned from."""

    def __init__(self, **arguments):
        super().__init__()
        self.recipe = ("", arguments)


ONE = cartpole()
REFUSED = {
    "env must make a new .*": lambda: make_envs(partial(flat_env, lambda: ONE), 2),
    r"act must return shape \(2,\), got \(2, 1\)": lambda: plain_actions(
        make_envs(cartpole, 2), torch.zeros(2, 1)
    ),
    "envs must be a VectorEnv, got TimeLimit": lambda: check_num_envs(ONE, 1),
    "must show 5 numbers, .* got 4: with wrapp": lambda: check_seen(
        Recipe(observation_space=spaces.Box(-1, 1, (5,))), make_envs(cartpole)
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_fit_the_loop_is_named(words):
    with pytest.raises((ValueError, TypeError), match=words):
        REFUSED[words]()


def test_env_seeds_of_neighbours_have_nothing_in_common():
    seeds = [env_seed(seed, step) for seed in range(20) for step in range(20)]
    assert all(0 <= seed < 2**32 for seed in seeds)
    # A vector environment gives copy k the seed `seed + k`: those must not meet either.
    assert np.diff(sorted(seeds)).min() > 64


@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - UNSEEN))
def test_an_environment_that_breaks_its_interface_is_named(fault):
    envs = make_envs(partial(Breaking, fault, 2, continuous=False), 2)
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    with pytest.raises(BaseException) as failed:  # noqa: PT011 (or a note says it)
        envs.step(np.zeros(2, int))
    own = {"raises": KeyError, "panics": BaseException}.get(fault)
    words = failed.value.__notes__[0] if own else str(failed.value)
    assert failed.type is (own or ValueError)
    assert words.startswith("env 'Breaking' failed in step: ")
    assert failed.value.__notes__[-2:] == ["in step 2 of its episode", "in copy 0"]


# --- Exceptions -----------------------------------------------------------------------


class EnoughError(Exception):
    """What a user raises to end a training."""


class EndError(BaseException):
    """What no ``except Exception`` catches."""


class Raising(gym.Env):
    """Raises something in one of its methods, after a few steps."""

    observation_space, action_space = TWO, LIST
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, error, where, render_mode=None):
        self.error, self.where, self.render_mode = error, where, render_mode
        self.count = 0
        self.fail("make")

    def fail(self, where, count=0):
        if self.where == where and self.count >= count:
            raise self.error

    def reset(self, *, seed=None, options=None):
        self.fail("reset", 8)
        return ZEROS, {}

    def step(self, action):
        self.count += 1
        self.fail("step", 4)
        return ZEROS, 1.0, self.count % 8 == 0, False, {}

    def render(self):
        self.fail("render", 3)
        return np.zeros((16, 16, 3), np.uint8)

    def close(self):
        self.fail("close")


ERRORS = [EnoughError("x"), EndError("x"), ValueError("x"), OSError(2, "x")]
ERRORS += [StopIteration(3)]
SHORT = {"total_steps": 256, "progress": False}
CALLS = {
    "train": lambda make, _: train("PPO", make, **SHORT),
    "in a wrapper": lambda make, _: train("DQN", make, wrappers=[gym.Wrapper], **SHORT),
    "train actors": lambda make, _: train("IMPALA", make, actors=2, **SHORT),
    "evaluate": lambda make, _: evaluate(Undecided(), make, 3),
    "film": lambda make, place: record_video(Undecided(), make, place / "film.mp4"),
}
METHODS = "make", "reset", "step", "close"
RAISED = [(x, y, z) for x in CALLS for y in METHODS for z in ERRORS]
RAISED += [("film", "render", error) for error in ERRORS[:4]]


@pytest.mark.parametrize(("call", "where", "error"), RAISED)
def test_an_exception_of_an_environment_arrives_as_itself(call, where, error, tmp_path):
    made = copy.copy(error)
    with pytest.raises(type(error)) as failed:
        CALLS[call](partial(Raising, made, where), tmp_path)
    assert failed.value is made, "the very exception, with its attributes"
    first, *others = failed.value.__notes__
    words = "cannot be made: " if where == "make" else f"failed in {where}: "
    assert re.match(f"env .*{words}{type(error).__name__}: ", first)
    assert re.search(r"test_episodes\.py:\d+\)$", first)
    assert not any(x.startswith("env ") for x in others), "once is enough"
    assert where == "close" or not [*tmp_path.iterdir()], "no half a film is left"
    if where == "step":
        assert {"in step 4 of its episode", "in copy 0"} <= {*others}


@pytest.mark.parametrize("error", [SystemExit(), SystemExit(0), GeneratorExit("x")])
def test_an_environment_that_leaves_python_is_an_error(error):
    with pytest.raises(ValueError, match="env 'Answers' failed in step: "):
        Held(Answers(answer=error)).step(0)


def test_ctrl_c_in_an_environment_is_ctrl_c():
    with pytest.raises(KeyboardInterrupt) as pressed:
        Held(Answers(answer=KeyboardInterrupt())).step(0)
    assert not hasattr(pressed.value, "__notes__"), "not the environment's fault"


# --- What comes out of an environment -------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_found_at_its_step(value):
    obs, reward = np.zeros((4, 3, 2)), np.zeros((4, 3))
    check_experience(100, obs=obs, reward=reward)
    obs[2, 1, 0] = value
    where = rf"obs of environment 1 is {value} at step 106 \(row 2 of the rollout\)"
    with pytest.raises(ValueError, match=where):
        check_experience(100, reward=reward, obs=obs)


@given(st.integers(0, 999), st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_episodes_are_counted_across_rollouts(seed, lengths):
    random = np.random.default_rng(seed)
    shape = sum(lengths), 2
    reward = random.normal(size=shape)
    done, real = random.random((2, *shape)) < [[[0.3]], [[0.8]]]
    counter, cuts = EpisodeCounter(2), np.cumsum(lengths)[:-1]
    parts = zip(*(np.split(x, cuts) for x in (reward, done, real)), strict=True)
    found = np.concatenate([counter.add(*part) for part in parts], axis=1)
    totals, wanted = np.zeros((2, 2)), []
    for paid, over, taken in zip(reward, done, real, strict=True):
        totals += paid, taken
        wanted.append(np.where(over, totals, np.nan))
        totals[:, over] = 0
    np.testing.assert_allclose(found, np.swapaxes(wanted, 0, 1))


BYTES, SMALL = spaces.Box(0, 255, (2,), np.uint8), spaces.Box(-5, 5, (2,), np.int8)
FOUR, NAMED = spaces.Discrete(4), spaces.Dict(a=TWO)
PAIR = spaces.Tuple([TWO, LIST])


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        *((FOUR, x, rf"obs must be in Discrete\(4\), got {x}") for x in (7, -1)),
        (PAIR, (ZEROS, 2), r"obs\[1\]"),
        *((BYTES, np.full(2, x), "obs must hold uint8") for x in (0.9, np.nan, -1)),
        (SMALL, np.array([1, 200], np.uint8), "obs must hold int8 .*, got 200"),
        (spaces.Dict(a=SMALL), {"a": [0.6, -0.7]}, r"obs\['a'\] must hold int8"),
    ],
)
def test_an_observation_outside_of_its_space_is_named(space, obs, message):
    with pytest.raises(ValueError, match=f"^env 'Answers' failed in reset: {message}"):
        Held(Answers(space, (obs, {}))).reset()


@pytest.mark.parametrize(
    ("space", "around"),
    [
        (TWO, lambda x: x),
        (spaces.Tuple([NAMED]), lambda x: ({"a": x},)),
        (spaces.Tuple([TWO] * 2), lambda x: [x, x]),
    ],
)
def test_what_an_environment_hands_out_is_copied(space, around):
    count = np.zeros(2, np.float32)
    infos = {"more": {"at": [count]}, "me": count.any}
    answer = around(count), 1.0, False, False, infos
    env = Held(Answers(space, (around(count), infos), answer))
    first, start = env.reset()
    count += 1
    second, _, _, _, later = env.step(0)
    count += 1
    for steps, obs, told in ((0, first, start), (1, second, later)):
        now = np.full(2, steps, np.float32)
        torch.testing.assert_close(obs, around(now))
        assert type(obs) is type(around(now))
        assert told["more"]["at"][0].tolist() == now.tolist()
        assert told["me"] == count.any, "an object is nobody's to copy"


# --- When copies begin anew -----------------------------------------------------------


class Wrapping(VectorWrapper):
    """Changes nothing."""


class Silent(VectorEnv[Any, Any, Any]):
    """Has a mode in its metadata, which may be that of its class, and in itself."""

    num_envs = 1

    def __init__(self, mode=None, **attributes):
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        vars(self).update(attributes)


def copies(mode):
    return SyncVectorEnv([cartpole], autoreset_mode=mode)


# Its members are as another import of it would have them.
OTHER = Enum("AutoresetMode", {mode.name: mode.value for mode in AutoresetMode})
NEXT, SAME = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
DISABLED = AutoresetMode.DISABLED


@pytest.mark.parametrize(
    ("envs", "later"),
    [
        *((Wrapping(copies(NEXT)), True), (copies(SAME), False)),
        (gym.make_vec("CartPole-v1", vectorization_mode="vector_entry_point"), True),
        *((Silent(x), True) for x in (OTHER.NEXT_STEP, "NextStep", "NEXT_STEP")),
        (Silent("SameStep"), False),
        # An object knows better than its class, whose metadata another may have set.
        (Silent(NEXT, autoreset_mode=SAME), False),
    ],
)
def test_the_mode_of_an_environment_is_its_own(envs, later):
    assert resets_later(envs) is Collector(envs).resets_later is later


@pytest.mark.parametrize(
    ("envs", "got"),
    [
        *((Wrapping(Silent()), "None"), (Silent(True), "True")),
        *((copies(DISABLED), "DISABLED"), (Silent(OTHER.DISABLED), "DISABLED")),
    ],
)
def test_a_mode_that_cannot_be_served_is_named(envs, got):
    words = rf"NEXT_STEP or SAME_STEP as .*'autoreset_mode'\], got {got}: name it"
    with pytest.raises(ValueError, match=words):
        Collector(envs)


@pytest.mark.parametrize(
    ("told", "later", "got"),
    [([True, True], False, "0, 1"), ([False, True], True, "1")],
)
def test_a_mode_that_breaks_its_promise_is_found(told, later, got):
    done = np.array([False, True])
    check_final({"_final_obs": done}, done, later=False)
    check_final({}, done, later=True)
    with pytest.raises(ValueError, match=rf"mode \w+_STEP .*, got it for \[{got}\]"):
        check_final({"_final_obs": told}, done, later)
