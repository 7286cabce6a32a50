"""Evaluation: which episodes count, what an interval covers, how agents compare."""

import math
import warnings
from functools import partial
from statistics import NormalDist

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
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
    """Episodes of one or of ten steps, by chance; every step pays 1."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.choice([1, 10]))
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(2, np.float32), 1.0, self.left == 0, False, {}


def policy_for(env, seed=0):
    """Return a fresh policy for an environment."""
    envs = make_envs(env)
    torch.manual_seed(seed)
    return make_policy(envs.single_observation_space, envs.single_action_space)


def weights(module):
    return torch.cat([x.flatten().double() for x in module.state_dict().values()])


# --- Episodes -------------------------------------------------------------------------


class Undecided(nn.Module):
    """A policy that draws each action, and always says 1 if it is greedy."""

    def noise(self, num_steps, num_envs, generator):
        return torch.rand(num_steps, num_envs, generator=generator)

    def act(self, obs, noise):
        return (noise + 0 * obs[:, 0] < 0.5).long()

    def to_env(self, action):
        return action.numpy()


class Paid(gym.Env):
    """Pays for the action 1, ten times."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 10
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(2, np.float32), float(action), self.left == 0, False, {}


def test_a_policy_that_draws_is_repeated_by_the_seed_alone():
    assert evaluate(Undecided(), Paid, 50).tolist() == [10.0] * 50
    torch.manual_seed(1)
    before = torch.get_rng_state()
    drawn = evaluate(Undecided(), Paid, 50, seed=3, greedy=False)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again = evaluate(Undecided(), Paid, 50, seed=3, greedy=False)
    assert drawn.tolist() == again.tolist()
    assert 4 < drawn.mean() < 6, "half of the steps are paid"
    assert len({*drawn}) > 3, "each episode draws its own"
    other = evaluate(Undecided(), Paid, 50, seed=4, greedy=False)
    assert drawn.tolist() != other.tolist()


def one_by_one(policy, env, episodes, seed):
    """Evaluate with one environment after the other and one observation at a time."""
    returns = []
    for index in range(episodes):
        made = gym.make(env) if isinstance(env, str) else env()
        obs, _ = made.reset(seed=env_seed(seed, 0) + index)
        total, done = 0.0, False
        while not done:
            with torch.no_grad():
                action = policy.act(torch.as_tensor(obs).float()[None], 0.0)
            obs, reward, terminated, truncated, _ = made.step(policy.to_env(action)[0])
            total, done = total + reward, terminated or truncated
        returns.append(total)
    return np.array(returns)


@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1", Lottery])
def test_evaluate_plays_one_episode_in_each_environment(env):
    policy, episodes = policy_for(env), 3 if env == "Acrobot-v1" else 12
    returns = evaluate(policy, env, episodes, seed=5)
    assert returns.dtype == np.float64
    assert np.array_equal(returns, one_by_one(policy, env, episodes, seed=5))


def test_evaluate_takes_continuous_actions():
    policy = policy_for("Pendulum-v1")
    returns = evaluate(policy, "Pendulum-v1", 2, seed=1)
    assert np.allclose(returns, one_by_one(policy, "Pendulum-v1", 2, seed=1))


def test_evaluate_is_decided_by_its_seed():
    policy = policy_for("CartPole-v1")
    first, again, other = (evaluate(policy, "CartPole-v1", 8, s) for s in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_evaluate_leaves_global_generators_and_weights_alone():
    policy = policy_for("CartPole-v1")
    before, torch_state = weights(policy), torch.get_rng_state()
    numpy_state = np.random.get_state()[1].copy()
    evaluate(policy, "CartPole-v1", 2)
    assert torch.equal(weights(policy), before)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)


class Endless(Lottery):
    """Like the lottery, but one in two episodes has no end."""

    def reset(self, *, seed=None, options=None):
        obs, infos = super().reset(seed=seed)
        self.left = -1 if self.left == 10 else 1
        return obs, infos


class LeftAlways(torch.nn.Module):
    """A scripted policy, without parameters."""

    def act(self, obs, noise):
        return torch.zeros(len(obs), dtype=torch.long)

    def to_env(self, action):
        return action.numpy()


def test_a_scripted_policy_needs_no_parameters():
    returns = evaluate(LeftAlways(), "CartPole-v1", episodes=5)
    assert ((returns > 5) & (returns < 15)).all()


def test_an_episode_without_an_end_is_cut_off_and_told():
    policy = policy_for(Endless)
    with pytest.warns(UserWarning, match="env 'Endless': 7 of 8 episodes") as told:
        returns = evaluate(policy, Endless, 8, seed=5, max_episode_steps=50)
    assert sorted(returns) == [1] + [50] * 7
    assert len(told) == 1
    assert told[0].filename == __file__
    for words in ("within 50 steps", "max_episode_steps=...", "more steps"):
        assert words in str(told[0].message)


def test_an_episode_that_ends_at_the_limit_is_no_warning():
    limited = lambda: gym.wrappers.TimeLimit(Endless(), 50)  # noqa: E731
    with warnings.catch_warnings(action="error"):
        evaluate(policy_for(Endless), limited, 8, seed=5, max_episode_steps=50)


def test_evaluate_leaves_modes_and_moments_alone_also_after_an_error():
    policy = Policy(ActorCritic(moody(2, 3), moody(2, 1)), CategoricalActions(3))
    with left_alone(policy):
        first, again = (evaluate(policy, Counting, 4).tolist() for _ in range(2))
        assert first == again, "nothing is dropped"
    with left_alone(policy), pytest.raises(ValueError, match="made of glass"):
        evaluate(policy, partial(Counting, fails_at=3))


def test_evaluate_names_bad_arguments():
    policy = policy_for("CartPole-v1")
    with pytest.raises(ValueError, match="episodes must be at least 1, got 0"):
        evaluate(policy, "CartPole-v1", 0)
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        evaluate(policy, "CartPole-v1", seed=-1)
    with pytest.raises(ValueError, match="env 'Nothing-v0' cannot be made"):
        evaluate(policy, "Nothing-v0")


# --- Student's t ----------------------------------------------------------------------

# From the table that every textbook prints: degrees of freedom, then the two-sided
# quantiles for 90, 95, 99 and 99.9 percent.
TABLE = {
    1: (6.314, 12.706, 63.657, 636.619),
    2: (2.920, 4.303, 9.925, 31.599),
    3: (2.353, 3.182, 5.841, 12.924),
    4: (2.132, 2.776, 4.604, 8.610),
    5: (2.015, 2.571, 4.032, 6.869),
    9: (1.833, 2.262, 3.250, 4.781),
    10: (1.812, 2.228, 3.169, 4.587),
    19: (1.729, 2.093, 2.861, 3.883),
    20: (1.725, 2.086, 2.845, 3.850),
    30: (1.697, 2.042, 2.750, 3.646),
    60: (1.671, 2.000, 2.660, 3.460),
    120: (1.658, 1.980, 2.617, 3.373),
}


@pytest.mark.equation("t-share")
@pytest.mark.parametrize("freedom", TABLE)
def test_quantiles_are_those_of_the_table(freedom):
    found = [t_quantile(level, freedom) for level in (0.90, 0.95, 0.99, 0.999)]
    assert found == pytest.approx(TABLE[freedom], abs=0.0006)


@pytest.mark.parametrize("level", [0.01, 0.5, 0.95, 0.999999])
def test_quantiles_of_few_degrees_of_freedom_have_closed_forms(level):
    one, two = math.tan(math.pi * level / 2), level * math.sqrt(2 / (1 - level**2))
    assert t_quantile(level, 1) == pytest.approx(one, rel=1e-9)
    assert t_quantile(level, 2) == pytest.approx(two, rel=1e-9)


def test_with_many_results_the_quantile_is_that_of_the_bell_curve():
    normal = NormalDist().inv_cdf(0.975)
    assert t_quantile(0.95, 9_999) == pytest.approx(normal, rel=1e-3)


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
    low, high = t_interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    half = 2.776445 * math.sqrt(2.5 / 5)
    assert (low, high) == pytest.approx((3 - half, 3 + half), rel=1e-6)


@pytest.mark.equation("t-interval")
@pytest.mark.parametrize("seeds", [2, 3, 5, 10, 40])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_interval_covers_what_it_promises(seeds, level):
    results = np.random.default_rng(0).normal(3.0, 2.0, size=(seeds, 20_000))
    low, high = t_interval(results, level)
    assert np.mean((low <= 3) & (high >= 3)) == pytest.approx(level, abs=0.01)


numbers = hnp.arrays(np.float64, st.integers(2, 12), elements=st.floats(-1e3, 1e3))


@given(numbers, st.floats(-100, 100), st.floats(0.01, 100))
def test_interval_moves_and_grows_with_the_results(results, shift, scale):
    low, high = t_interval(results)
    assert low <= results.mean() <= high
    moved = t_interval(scale * results + shift)
    assert np.allclose(moved, (scale * low + shift, scale * high + shift), atol=1e-6)
    turned = t_interval(-results)
    assert np.allclose(turned, (-high, -low), atol=1e-6)


@given(numbers)
def test_more_confidence_needs_a_wider_interval(results):
    inner, outer = t_interval(results, 0.5), t_interval(results, 0.99)
    assert outer[0] <= inner[0] <= inner[1] <= outer[1]


def test_points_of_a_curve_get_the_intervals_that_they_would_get_alone():
    curves = np.random.default_rng(0).normal(size=(5, 2, 3))
    low, high = t_interval(curves)
    assert low.shape == high.shape == (2, 3)
    for index in np.ndindex(2, 3):
        alone = t_interval(curves[(slice(None), *index)])
        assert (low[index], high[index]) == pytest.approx(alone)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"results": np.ones(1)}, "results must hold at least 2 seeds, got 1"),
        ({"results": np.ones((0, 3))}, r"results must have a non-empty shape"),
        ({"results": np.array([1.0, np.nan])}, "results must be finite"),
        ({"results": np.array([1.0, np.inf])}, "results must be finite"),
        ({"results": np.ones(2), "level": 1.0}, "level must be .* less than 1, got 1"),
        ({"results": np.ones(2), "level": 0.0}, "level must be greater than 0"),
        ({"results": np.ones(2), "level": 95}, "level must be .* less than 1, got 95"),
    ],
    ids=str,
)
def test_interval_names_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        t_interval(**arguments)


@pytest.mark.parametrize("results", [[1.0, 2.0], np.array([1, 2]), 1.0], ids=str)
def test_interval_takes_arrays_of_floats_only(results):
    with pytest.raises(TypeError, match="results must be a"):
        t_interval(results)


# --- Two agents -----------------------------------------------------------------------


def test_difference_is_taken_seed_by_seed():
    ours, theirs = np.array([5.0, 9.0, 1.0]), np.array([4.0, 7.0, 1.0])
    found = paired_difference(ours, theirs)
    assert found.mean == pytest.approx(1.0)
    assert (found.low, found.high) == pytest.approx(t_interval(ours - theirs))
    # Another order of the seeds is another pairing, and a wider interval here.
    assert paired_difference(ours, theirs[::-1]).low < found.low


@given(st.integers(0, 1000))
def test_the_rule_is_the_same_in_both_directions(seed):
    ours, theirs = np.random.default_rng(seed).normal(size=(2, 6))
    one, other = paired_difference(ours, theirs), paired_difference(theirs, ours)
    assert other == pytest.approx((-one.mean, -one.high, -one.low))


def test_shared_luck_drops_out():
    rng = np.random.default_rng(0)
    luck = rng.normal(size=(10, 1_000))
    ours = luck + 0.1 * rng.normal(size=luck.shape) + 0.2
    theirs = luck + 0.1 * rng.normal(size=luck.shape)
    found = paired_difference(ours, theirs)
    assert np.mean(found.low > 0) > 0.9, "the gain of 0.2 is seen"
    unrelated = paired_difference(ours, theirs[:, ::-1].copy())
    assert np.mean(unrelated.low > 0) < 0.1


def test_agents_must_have_the_same_seeds():
    with pytest.raises(ValueError, match=r"theirs must have shape .* with seeds = 3"):
        paired_difference(np.ones(3), np.ones(4))
    with pytest.raises(ValueError, match="theirs must have shape"):
        paired_difference(np.ones((3, 2)), np.ones((3, 1)))


# --- Mistakes of published code -------------------------------------------------------


def test_the_first_episodes_that_end_are_short_ones():
    """One or ten steps with equal chances: the mean return is 5.5."""
    policy, means = policy_for(Lottery), []
    for seed in range(20):
        envs = make_envs(Lottery, 8)
        envs.reset(seed=env_seed(seed, 0))
        total, ended = np.zeros(8), []
        while len(ended) < 8:
            _, reward, terminated, _, _ = envs.step(np.zeros(8, dtype=int))
            total += reward
            ended.extend(total[terminated])
            total[terminated] = 0.0
        means.append(np.mean(ended[:8]))
    assert np.mean(means) < 3.5
    assert evaluate(policy, Lottery, 400).mean() == pytest.approx(5.5, abs=0.7)


@pytest.mark.erratum("best-of-many")
def test_the_best_of_many_evaluations_promises_too_much():
    """A policy whose return is 100 ± 50, and 50 evaluations of ten episodes."""
    rng = np.random.default_rng(0)
    evaluations = rng.normal(100, 50, size=(1_000, 50, 10)).mean(axis=2)
    assert evaluations.mean() == pytest.approx(100, abs=1)
    assert evaluations.max(axis=1).mean() > 130
    best = evaluations.argmax(axis=1)
    anew = rng.normal(100, 50, size=(1_000, 50, 10)).mean(axis=2)
    assert anew[np.arange(1_000), best].mean() == pytest.approx(100, abs=2)


def bootstrap(results, rng, draws=1_000):
    """Return the percentile bootstrap's interval of 95 percent, for each column."""
    number = len(results)
    counts = rng.multinomial(number, np.full(number, 1 / number), size=draws)
    return np.quantile(counts @ results / number, [0.025, 0.975], axis=0)


@pytest.mark.parametrize(
    ("seeds", "coverage"), [(3, 0.75), (5, 0.83), (10, 0.90), (50, 0.94)]
)
def test_bootstrap_intervals_of_few_seeds_are_too_short(seeds, coverage):
    rng = np.random.default_rng(0)
    results = rng.normal(size=(seeds, 4_000))
    low, high = bootstrap(results, rng)
    assert np.mean((low <= 0) & (high >= 0)) == pytest.approx(coverage, abs=0.025)
