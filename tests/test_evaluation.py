"""Evaluation: which episodes count, what an interval covers, how agents compare."""

import math
import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from worlds import Counting, left_alone, moody

from literate_rl.data.agents import make_envs
from literate_rl.data.episodes import env_seed
from literate_rl.nets.parts import ActorCritic, CategoricalActions
from literate_rl.nets.policies import Policy, make_policy
from literate_rl.runs.evaluation import (
    evaluate,
    paired_difference,
    t_interval,
    t_quantile,
    t_share,
)


class Lottery(gym.Env):
    """Episodes of one step, or of so many more, by chance; pays for the action 1."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, most=10):
        self.most = most

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.choice([1, self.most]))
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(2, np.float32), float(action), self.left == 0, False, {}


class Undecided(nn.Module):
    """A policy that draws each action, and always says 1 if it is greedy."""

    def noise(self, num_steps, num_envs, generator):
        return torch.rand(num_steps, num_envs, generator=generator)

    def act(self, obs, noise):
        return (noise + 0 * obs[:, 0] < 0.5).long()

    def to_env(self, action):
        return action.numpy()


# --- Episodes -------------------------------------------------------------------------


def test_a_policy_that_draws_is_repeated_by_the_seed_alone():
    env = partial(Lottery, 1)
    assert evaluate(Undecided(), env, 50).tolist() == [1.0] * 50
    drawn = []
    for seed in (3, 3, 4):
        torch.manual_seed(len(drawn))
        before = torch.get_rng_state()
        drawn.append(evaluate(Undecided(), env, 50, seed=seed, greedy=False).tolist())
        assert torch.equal(torch.get_rng_state(), before)
    assert drawn[0] == drawn[1] != drawn[2]
    assert 15 < sum(drawn[0]) < 35, "half of the steps are paid"


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", Lottery])
def test_evaluate_plays_one_episode_in_each_environment(env):
    """Whoever plays one after the other, one observation at a time, gets the same."""
    envs = make_envs(env)
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    policy = Undecided() if env is Lottery else policy
    expected = []
    for index in range(6):
        made = gym.make(env) if isinstance(env, str) else env()
        obs, _ = made.reset(seed=env_seed(5, 0) + index)
        total, done = 0.0, False
        while not done:
            with torch.no_grad():
                action = policy.act(torch.as_tensor(obs).float()[None], 0.0)
            obs, reward, terminated, truncated, _ = made.step(policy.to_env(action)[0])
            total, done = total + reward, terminated or truncated
        expected.append(total)
    returns = evaluate(policy, env, 6, seed=5)
    assert returns.dtype == np.float64
    np.testing.assert_allclose(returns, expected, rtol=1e-5)


def test_an_episode_without_an_end_is_cut_off_and_told():
    endless = partial(Lottery, -1)
    with pytest.warns(UserWarning, match=r"7 of 8 episodes .*within 50 steps") as told:
        returns = evaluate(Undecided(), endless, 8, seed=5, max_episode_steps=50)
    assert sorted(returns) == [1] + [50] * 7
    assert [x.filename for x in told] == [__file__]
    # One that ends at the limit is no warning.
    limited = lambda: gym.wrappers.TimeLimit(endless(), 50)  # noqa: E731
    with warnings.catch_warnings(action="error"):
        evaluate(Undecided(), limited, 8, seed=5, max_episode_steps=50)


def test_evaluate_leaves_modes_and_moments_alone_also_after_an_error():
    policy = Policy(ActorCritic(moody(2, 3), moody(2, 1)), CategoricalActions(3))
    with left_alone(policy):
        first, again = (evaluate(policy, Counting, 4).tolist() for _ in range(2))
        assert first == again, "nothing is dropped"
    with left_alone(policy), pytest.raises(ValueError, match="made of glass"):
        evaluate(policy, partial(Counting, fails_at=3))


# --- Student's t ----------------------------------------------------------------------

# From the table that every textbook prints: degrees of freedom, then the two-sided
# quantiles for 90, 95, 99 and 99.9 percent.
TABLE = {
    1: (6.314, 12.706, 63.657, 636.619),
    3: (2.353, 3.182, 5.841, 12.924),
    10: (1.812, 2.228, 3.169, 4.587),
    120: (1.658, 1.980, 2.617, 3.373),
}


@pytest.mark.equation("t-share")
@pytest.mark.parametrize("freedom", TABLE)
def test_quantiles_are_those_of_the_table(freedom):
    found = [t_quantile(level, freedom) for level in (0.90, 0.95, 0.99, 0.999)]
    assert found == pytest.approx(TABLE[freedom], abs=0.0006)


@pytest.mark.equation("t-share")
@pytest.mark.parametrize("freedom", [1, 2, 3, 6, 9, 40])
@pytest.mark.parametrize("t", [0.3, 1.0, 2.5])
def test_share_is_the_integral_of_the_density(freedom, t):
    """Student's density, added up over a fine grid."""
    x = np.linspace(-t, t, 20_001)
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    scale = math.exp(log_scale) / math.sqrt(freedom * math.pi)
    density = scale * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    angle = math.atan(t / math.sqrt(freedom))
    expected = np.trapezoid(density, x)
    assert t_share(angle, freedom) == pytest.approx(expected, rel=1e-7)


# --- Intervals ------------------------------------------------------------------------


@pytest.mark.equation("t-interval")
def test_interval_by_hand():
    """Five results with mean 3 and variance 2.5."""
    half = 2.776445 * math.sqrt(2.5 / 5)
    found = t_interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert found == pytest.approx((3 - half, 3 + half), rel=1e-6)
    with pytest.raises(ValueError, match="results must hold at least 2 seeds, got 1"):
        t_interval(np.ones(1))


@pytest.mark.equation("t-interval")
@pytest.mark.parametrize("seeds", [2, 3, 5, 10, 40])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_interval_covers_what_it_promises(seeds, level):
    results = np.random.default_rng(0).normal(3.0, 2.0, size=(seeds, 20_000))
    low, high = t_interval(results, level)
    assert np.mean((low <= 3) & (high >= 3)) == pytest.approx(level, abs=0.01)


@given(st.integers(0, 1000))
def test_difference_is_taken_seed_by_seed(seed):
    ours, theirs = np.random.default_rng(seed).normal(size=(2, 6))
    one, other = paired_difference(ours, theirs), paired_difference(theirs, ours)
    assert one.mean == pytest.approx((ours - theirs).mean())
    assert (one.low, one.high) == pytest.approx(t_interval(ours - theirs))
    assert other == pytest.approx((-one.mean, -one.high, -one.low))


# --- Mistakes of published code -------------------------------------------------------


@pytest.mark.erratum("best-of-many")
def test_the_best_of_many_evaluations_promises_too_much():
    """A policy whose return is 100 ± 50, and 50 evaluations of ten episodes."""
    draw = partial(np.random.default_rng(0).normal, 100, 50, size=(1_000, 50, 10))
    evaluations, anew = draw().mean(axis=2), draw().mean(axis=2)
    assert evaluations.mean() == pytest.approx(100, abs=1)
    assert evaluations.max(axis=1).mean() > 130
    best = evaluations.argmax(axis=1)
    assert anew[np.arange(1_000), best].mean() == pytest.approx(100, abs=2)
