"""The guards of the loop, one by one; ``test_agents`` holds them in the loop itself."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from hypothesis import given
from hypothesis import strategies as st

from literate_rl.data.agents import Collector, make_envs
from literate_rl.data.episodes import (
    EpisodeCounter,
    check_final,
    check_num_envs,
    env_seed,
    plain_actions,
    resets_later,
)


def cartpole():
    return gym.make("CartPole-v1")


def test_what_does_not_fit_the_loop_is_named():
    with pytest.raises(ValueError, match=r"act must return shape \(2,\), got \(2, 1\)"):
        plain_actions(make_envs(cartpole, 2), torch.zeros(2, 1))
    with pytest.raises(TypeError, match="envs must be a VectorEnv, got TimeLimit"):
        check_num_envs(cartpole(), 1)


def test_env_seeds_of_neighbours_have_nothing_in_common():
    seeds = [env_seed(seed, step) for seed in range(20) for step in range(20)]
    assert all(0 <= seed < 2**32 for seed in seeds)
    # A vector environment gives copy k the seed `seed + k`: those must not meet either.
    assert np.diff(sorted(seeds)).min() > 64


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


NEXT, SAME = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP


@pytest.mark.parametrize(
    ("envs", "later"),
    [
        *((Wrapping(copies(NEXT)), True), (copies(SAME), False)),
        (Silent("NextStep"), True),
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
        (Wrapping(Silent()), "None"),
        (copies(AutoresetMode.DISABLED), "DISABLED"),
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
