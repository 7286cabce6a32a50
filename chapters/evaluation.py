# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Did it learn?
#
# **Has the agent learned, or was I lucky?** Train the same agent twice, with another seed of its random
# numbers, and you get two results.
#
# In 24 minutes of reading, without exercises, you will be able to say what a trained agent and a training
# method are worth, which of two methods is better, and how sure you can be. You need the agents of
# {doc}`policy_gradient` and {doc}`advantages`.

# %% tags=["export", "hide-input"]
"""Evaluation: what an agent is worth, and how sure one can be of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from functools import cache, partial
from typing import Annotated, Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from annotated_types import Ge, Gt, Lt
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray
from torch import Tensor

from literate_rl.data.agents import make_envs
from literate_rl.data.episodes import (
    Masks,
    as_argument,
    env_seed,
    follow_masks,
    read_masks,
)
from literate_rl.data.held import check_seen, warn_unended
from literate_rl.data.makers import flat_env
from literate_rl.ground.networks import eval_mode, randomness_kept
from literate_rl.ground.protocols import PolicyLike
from literate_rl.ground.signatures import Count, Float, at_least, checked, finite

__all__ = ["Difference", "evaluate", "paired_difference", "t_interval"]

Level = Annotated[float, Gt(0), Lt(1)]
Seed = Annotated[int, Ge(0)]

# %% [markdown]
# ## Luck, and what is left of it
#
# An agent like that of {doc}`policy_gradient`, whose returns go on with a critic's value where a
# rollout ends, was trained for 51,200 steps with each of 20 seeds, and then played 100 episodes of CartPole, in
# which 500 is the most that one can get. Suppose that you could afford only some of these seeds.
# The dots are your results, the line is their mean, and the band should contain the true mean. In the
# second picture each dot is how much better the agent with a baseline was, with the same seed.

# %% tags=["hide-input"]
from literate_rl.runs.evaluation import paired_difference, t_interval  # explained below
from literate_rl.book.pictures import Axis, Mark, dial, plot
from literate_rl.runs.runs import stored_runs

stored = stored_runs("reinforce")
with_baseline, without = stored["minus the value"].final, stored["no baseline"].final


def panel(title, alt, axis, at, results):
    """Draw results in their order, their mean, its interval and a line to look at."""
    number, mean = len(results), results.mean()
    low, high, words = mean, mean, f"mean {mean:.0f}"
    if number >= 5:
        low, high = t_interval(results)
        words += f", interval {low:.0f} to {high:.0f}"
        low, high = np.clip((low, high), axis.low, axis.high)
    edges = [0.5, number + 0.5]
    picture = plot(
        title,
        alt,
        Axis("seeds", 0, 21, ticks=(1, 5, 10, 15, 20)),
        axis,
        Mark("band", edges, [high, high], "second", low=[low, low]),
        Mark("line dashed", [0, 21], [at, at], "quiet"),
        Mark("line thick", edges, [mean, mean], "second"),
        Mark("dots", range(1, number + 1), results.tolist(), "accent"),
    )
    return picture, words


def frame(number, draw):
    mine = np.random.default_rng(draw).permutation(20)[:number]
    returns, returned = panel(
        "No baseline",
        "Returns of single seeds between 111 and 500, their mean and its interval, which "
        "gets narrower the more seeds there are.",
        Axis("return at the end", 0, 700, ticks=(0, 250, 500)),
        500,
        without[mine],
    )
    gains, gained = panel(
        "Gain from the baseline",
        "Differences of two agents with the same seed, from below zero to nearly 400, "
        "their mean and its interval.",
        Axis("difference of two returns", -300, 600, ticks=(0, 250, 500)),
        0,
        (with_baseline - without)[mine],
    )
    return [returns, gains], f"no baseline: {returned}\ngain: {gained}".replace(
        "-", "−"
    )


few, draws = (2, 3, 4, 5, 6, 8, 10, 15, 20), range(1, 9)
dial(
    "Mean and interval over the number of seeds",
    frame,
    {"seeds": few, "which seeds": draws},
    start=(5, 1),
)

# %% [markdown]
# **Notice** that the mean of three seeds lies between 140 and 400 in these eight draws. With all
# twenty the band of the gain leaves out zero: the baseline helps. But with five, the bands of seven
# of the eight draws include zero, and with ten still those of five. Below five there is no band, for a
# [reason](#trap-the-interval-of-three-seeds).

# %% tags=["claims"]


def of_draws(results, number):
    """Return the results of all settings of the dial with so many seeds."""
    order = [np.random.default_rng(draw).permutation(20)[:number] for draw in draws]
    return np.array([results[mine] for mine in order]).T


three = of_draws(without, 3).mean(0)
assert 140 < three.min() < 150, "the lowest mean of three seeds"
assert 390 < three.max() < 400, "the highest"
for number, draws_with_zero in ((5, 7), (10, 5)):
    low, high = t_interval(of_draws(with_baseline - without, number))
    assert np.sum((low < 0) & (high > 0)) == draws_with_zero
assert paired_difference(with_baseline, without).low > 0, "with all twenty"
assert (without.min().round(), without.max()) == (111, 500), "what the picture says"

# %% [markdown]
# Two kinds of luck are mixed in such a number. An *episode* depends on its start, and more episodes
# are cheap. A *training run* depends on its seed, and only more training runs average that out.
#
# ## What is one agent worth?
#
# While it trains, an agent tries things out. To learn what it *can* do, we let it do what it thinks
# best in each state: it acts **greedily**.
#
# A policy's `act(obs, noise)` chooses the actions. Only the random numbers `noise` make it act differently
# each time, and greedy means that they are zero. `to_env` writes actions as the environment wants them.


# %% tags=["export"]
def acted(
    policy: PolicyLike,
    obs: NDArray[Any],
    mask: Masks | None = None,
    noise: Tensor | float = 0.0,
) -> Any:
    """Return a policy's actions, in the form that environments take."""
    device = next(policy.parameters(), torch.empty(0)).device
    with torch.no_grad(), eval_mode(policy):
        state = torch.as_tensor(obs, dtype=torch.float32, device=device)
        noise = noise.to(device) if isinstance(noise, Tensor) else noise
        return policy.to_env(policy.act(state, noise, **as_argument(mask)).cpu())


# %% [markdown]
# Then we play some episodes and add up their rewards, without a discount, which was a means of learning,
# not the aim. Only the first episode of an environment counts, for a
# [reason](#trap-the-first-episodes-that-end).


# %% tags=["export"]
@checked
@randomness_kept()
def evaluate(
    policy: PolicyLike,
    env: str | Callable[..., gym.Env[Any, Any]],
    episodes: Count = 10,
    seed: Seed = 0,
    max_episode_steps: Count = 30_000,
    greedy: bool = True,
) -> Float[np.ndarray, "episodes"]:
    """Play episodes, greedily or not, and return the undiscounted return of each.

    Args:
        policy: The policy; only ``act``, ``to_env`` and ``parameters`` are called,
            ``noise`` if it draws, and ``reset`` if it has one: alone at the start and
            the end, and after each step with a flag for each episode that is over.
        env: A registered id, or a function that makes an environment.
        episodes: How many to play.
        seed: Decides how they start and what happens in them. The same seed gives the
            same returns.
        max_episode_steps: After how many steps an episode is cut off, with a warning.
        greedy: Whether the policy takes the best action. If not, it draws as it did
            while it learned. It must where states look alike that want different
            actions: there a greedy policy may turn in circles.

    Raises:
        ValueError: If ``env`` cannot be made.
    """
    # One environment for each episode, stepped together: the network sees one batch.
    with closing(make_envs(partial(flat_env, env), episodes)) as envs:
        return play(policy, envs, seed, max_episode_steps, greedy)


def play(
    policy: PolicyLike,
    envs: SyncVectorEnv,
    seed: int,
    max_episode_steps: int,
    greedy: bool = True,
    look: Callable[[], Any] = lambda: None,
) -> NDArray[np.float64]:
    """Play an episode in each environment, as ``evaluate`` does; look at each step."""
    check_seen(policy, envs)
    obs, infos = envs.reset(seed=env_seed(seed, 0))
    # All play until the last of the first episodes is over.
    returns, playing = np.zeros(envs.num_envs), np.ones(envs.num_envs, bool)
    mask = read_masks(infos, playing)
    forget = getattr(policy, "reset", lambda *over: None)
    forget()
    generator = torch.Generator().manual_seed(env_seed(seed, 1))
    for _ in range(max_episode_steps):
        look()
        noise = 0.0 if greedy else policy.noise(1, envs.num_envs, generator)[0]
        action = acted(policy, obs, mask, noise)
        obs, reward, terminated, truncated, infos = envs.step(action)
        mask, _ = follow_masks(mask, infos, terminated, truncated)
        # An environment that is done starts another episode, which does not count.
        returns += np.where(playing, reward, 0.0)
        forget(over := terminated | truncated)
        playing &= ~over
        if not playing.any():
            break
    else:
        warn_unended(envs.envs[0], playing.tolist(), max_episode_steps, calls=5)
    forget()
    return returns


# %% [markdown]
# We try it on a policy that nobody trained, which pushes the cart to where the pole leans or is falling,
# unless the cart already moves that way too fast.

# %%
import torch
from torch import nn


class Pusher(nn.Module):
    def __init__(self):
        super().__init__()
        # Place and speed of the cart, angle of the pole, and how fast it turns.
        self.weight = nn.Parameter(torch.tensor([0.0, -1.0, 1.0, 1.0]))

    def act(self, obs, noise):
        return (obs @ self.weight + noise > 0).long()

    def to_env(self, action):
        return action.numpy()


pusher = Pusher()
print("ten episodes:", evaluate(pusher, "CartPole-v1", seed=1))
print("another ten: ", evaluate(pusher, "CartPole-v1", seed=2))
returns = evaluate(pusher, "CartPole-v1", episodes=200, seed=3)
print(f"mean of 200:  {returns.mean():.0f}")

# %% [markdown]
# **Notice** that hardly any episode is near the mean: in almost all of them the pole either stays up until
# the end or falls within 150 steps. A mean of ten episodes may be off by more than a hundred.
#
# If a greedy agent gets far less than it got while it learned, evaluate it with `greedy=False`
# ({doc}`debugging`).

# %% tags=["claims"]
assert np.mean(abs(returns - returns.mean()) < 50) < 0.05, "hardly any near the mean"
assert np.mean((returns == 500) | (returns < 150)) > 0.95, "all or little"
assert 2 * returns.std() / math.sqrt(10) > 120, "two standard errors of ten"

# %% [markdown]
# ## What is a method worth?
#
# Nobody who trains REINFORCE with another seed will get *your* weights. So the question is what one
# may expect over all seeds, and no single result answers it, the best one least of all. We report all of
# them, or their mean and how sure we are of it.
#
# Let $R_1, \dots, R_M$ be the results of $M$ seeds, with mean $\bar R$ and standard
# deviation $s_R$. The mean moves from one experiment to the next with a standard deviation
# of about $s_R / \sqrt M$, its **standard error**: four times as many seeds make it
# half as large. The **confidence interval** is the mean, give or take some standard errors:
#
# $$
# \bar R \;\pm\; t_M \, \frac{s_R}{\sqrt M} ,
# \qquad s_R^2 = \frac{1}{M - 1} \sum_{i=1}^{M} \bigl( R_i - \bar R \bigr)^2 .
# $$ (t-interval)
#
# The promise of 95 percent is about the procedure: of 100 experiments, each with new seeds, about
# 95 get an interval that contains the true mean. If we knew the true standard deviation, $t_M = 1.96$
# would do. But $s_R$ comes from the same few seeds and may be too small. So $t_M$, *Student's t*, is
# larger, the fewer seeds there are: 2.78 for five, 2.26 for ten and 2.09 for twenty.

# %% tags=["export"]
Results = Annotated[Float[np.ndarray, "seeds *points"], at_least(2, "2 seeds"), finite]


@checked
def t_interval(
    results: Results, level: Level = 0.95
) -> tuple[Float[np.ndarray, "*points"], Float[np.ndarray, "*points"]]:
    """Return a confidence interval of the mean over seeds, its low and its high end.

    Args:
        results: One result for each seed, or one curve: then each point of the curve
            has an interval of its own.
        level: Share of experiments whose interval should contain the true mean.

    Source: Student 1908. It is exact if results have a normal distribution.
    """
    # The interval {eq}`t-interval`: the mean, and so many standard errors on each side.
    mean = results.mean(0)
    error = results.std(0, ddof=1) / math.sqrt(len(results))
    half = t_quantile(level, len(results) - 1) * error
    return mean - half, mean + half


# %% [markdown]
# If results are normal, the chance to be within $t = \sqrt{M - 1} \tan \varphi$ standard errors of the
# truth is
#
# $$
# \Pr \Bigl[ \, \bigl| \bar R - \mathbb E R \bigr| \le t \, \frac{s_R}{\sqrt M} \Bigr] =
# \int_0^{\varphi} \cos^{M-2} x \, \mathrm d x \Big/ \int_0^{\pi/2} \cos^{M-2} x \, \mathrm d x .
# $$ (t-share)
#
# The folded code finds the angle at which it is 0.95.


# %% tags=["export", "hide-input"]
def t_share(angle: float, freedom: int) -> float:
    """Return the chance that the mean is off by no more than a bound.

    The bound is √freedom · tan(angle) standard errors.
    """
    # The quotient {eq}`t-share`. An even power starts from the integral of 1, an odd
    # one from that of the cosine.
    power = (freedom - 1) % 2
    inside, whole = (math.sin(angle), 1.0) if power else (angle, math.pi / 2)
    while power < freedom - 1:
        power += 2
        edge = math.cos(angle) ** (power - 1) * math.sin(angle)
        inside = (edge + (power - 1) * inside) / power
        whole *= (power - 1) / power
    return inside / whole


@cache
def t_quantile(level: float, freedom: int) -> float:
    """Return how many standard errors hold the truth with probability ``level``."""
    # Sixty halvings of a right angle are as exact as the numbers of a computer.
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        if t_share(angle, freedom) < level:
            low = angle
        else:
            high = angle
    return math.sqrt(freedom) * math.tan(low)


# %% [markdown]
# Before you train, ask what your seeds can show. The interval reaches $t_M / \sqrt M$ standard
# deviations to each side, 1.2 with five seeds, 0.7 with ten, 0.5 with twenty. A smaller effect will
# mostly go unseen.

# %% tags=["claims"]
assert [round(t_quantile(0.95, m - 1), 2) for m in (5, 10, 20)] == [2.78, 2.26, 2.09]
reach = [round(t_quantile(0.95, m - 1) / m**0.5, 1) for m in (5, 10, 20)]
assert reach == [1.2, 0.7, 0.5], "what your seeds can show"

# %% [markdown]
# ## Which of two is better?
#
# Do not compare two intervals, which may overlap although the difference is clear. Train both agents with the same seeds, and take the difference of
# their results seed by seed, $D_i = R_i - R'_i$. The same seed gives both the same first weights and
# the same first starts, so some of the luck may drop out. Then $\bar D$ has the interval
# {eq}`t-interval`, and the rule is:
#
# | the interval of the difference | we say |
# |---|---|
# | is above zero | the first is better, by so much |
# | is below zero | the second is better, by so much |
# | includes zero | we see no difference. *Not* that they are equal: perhaps there are too few seeds |


# %% tags=["export"]
class Difference(NamedTuple):
    """How much better one agent is on average, and the ends of its interval."""

    mean: Any
    low: Any
    high: Any


@checked
def paired_difference(
    ours: Results, theirs: Results, level: Level = 0.95
) -> Difference:
    """Compare two agents that were trained with the same seeds, seed by seed.

    Args:
        ours: Results of the first agent.
        theirs: Results of the second, in the same order of seeds.
        level: Share of experiments whose interval should contain the true difference.
    """
    difference = ours - theirs
    return Difference(difference.mean(0), *t_interval(difference, level))


# %%
def in_words(found):
    """Say what an interval of a difference allows to say."""
    verdict = "no difference seen"
    if found.low > 0:
        verdict = "the first is better"
    elif found.high < 0:
        verdict = "the second is better"
    return f"{found.mean:5.0f} ({found.low:.0f} to {found.high:.0f}), {verdict}"


first, second = stored["minus the value"], stored["no baseline"]
for name, ours, theirs in (
    ("while training", first.area, second.area),
    ("at the end", first.final, second.final),
    ("at the end, five seeds", first.final[:5], second.final[:5]),
):
    print(f"{name:23s}{in_words(paired_difference(ours, theirs))}")

# %% [markdown]
# **Notice** how firm the first row is: with each of the twenty seeds the agent with the baseline
# had the higher mean return while training. At the end the gain is about a hundred points and
# far less certain, and the first five seeds cannot exclude none.

# %% tags=["claims"]
assert (first.area > second.area).all(), "with each of the twenty seeds"
assert paired_difference(first.area, second.area).low > 50, "firm"
found = paired_difference(first.final, second.final)
assert 90 < found.mean < 110, "about a hundred"
assert 0 < found.low < 50, "far less certain"

five = paired_difference(first.final[:5], second.final[:5])
assert five.low < 0 < five.high, "and still cannot exclude none"

# %% [markdown]
# These are the rules of this book:
#
# - ten seeds or more for a claim about learning; with five to nine, a claim only where all seeds
#   agree, and else no more than a hint; with fewer than five, show the results and give no
#   interval;
# - intervals are t intervals, and two agents are compared by paired differences;
# - settings are chosen on other seeds than those of the result.
#
# ## Traps
#
# ### Trap: the first episodes that end
#
# Ten environments are stepped until ten episodes have ended. But where a short episode has ended,
# another one starts, and the long ones, which are the good ones in CartPole, are still under way when we
# stop.


# %%
def first_to_end(policy, episodes, seed):
    """Return the returns of the episodes that end first: too low."""
    envs = make_envs(partial(flat_env, "CartPole-v1"), episodes)
    obs, _ = envs.reset(seed=env_seed(seed, 0))
    total, ended = np.zeros(episodes), []
    while len(ended) < episodes:
        obs, reward, terminated, truncated, _ = envs.step(acted(policy, obs))
        total += reward
        done = terminated | truncated
        ended.extend(total[done])
        total[done] = 0.0
    return np.array(ended[:episodes])


by_end = np.mean([first_to_end(pusher, 10, seed).mean() for seed in range(10)])
print(f"those that end first: {by_end:.0f}, one of each of 200: {returns.mean():.0f}")

# %% [markdown]
# The first number is less than half of the second. So decide *before* you start which episodes count.

# %% tags=["claims"]
assert by_end < 0.5 * returns.mean()

# %% [markdown]
# ### Trap: the best of many
#
# The highest of several chance numbers is too high on average. Our pusher does not learn. Evaluate it 50
# times on 10 of its 200 episodes and keep the best:

# %%
rng = np.random.default_rng(0)


def best_of(values, number):
    """Return the highest of some values drawn at random, averaged over many draws."""
    return rng.choice(values, size=(2_000, number)).max(axis=1).mean()


evaluations = rng.choice(returns, size=(2_000, 10)).mean(axis=1)
print(*(f"best of {k} evaluations: {best_of(evaluations, k):.0f}" for k in (1, 10, 50)))
print(*(f"best of {k} seeds: {best_of(without, k):.0f}" for k in (1, 3, 10)))

# %% [markdown]
# The best of 50 evaluations promises over 100 points too much, and the best of three seeds over 80.
# *Keep* the best policy, but then evaluate it anew, and choose seeds before you see what they do.

# %% tags=["claims"]
assert best_of(evaluations, 50) - returns.mean() > 100
assert best_of(without, 3) - without.mean() > 80

# %% [markdown]
# ### Trap: the interval of three seeds
#
# The **bootstrap** {cite:p}`efron1993`, which shares nothing but its name with that of {doc}`agents`,
# needs no formula: draw $M$ of the $M$ results with replacement, take the mean, do so a thousand
# times, and keep the middle 95 percent. Does it contain the truth in 95 of 100 experiments? We try two
# distributions whose mean is 1, a bell curve and the lopsided exponential one.


# %%
def bootstrap(results):
    """Return the middle 95 percent of the means of 1,000 draws."""
    number = len(results)
    counts = rng.multinomial(number, np.full(number, 1 / number), size=1_000)
    return np.quantile(counts @ results / number, [0.025, 0.975], axis=0)


print("            bell curve       exponential")
print("seeds  bootstrap    t     bootstrap    t")
covered = {}
for number in (3, 5, 10, 20):
    bell = rng.normal(1.0, 1.0, size=(number, 2_000))
    lopsided = rng.exponential(1.0, size=(number, 2_000))
    shares = []
    for experiments in (bell, lopsided):
        for low, high in (bootstrap(experiments), t_interval(experiments)):
            shares.append(np.mean((low <= 1) & (high >= 1)))
    covered[number] = shares
    print("{:5d}{:9.0%}{:8.0%}{:11.0%}{:8.0%}".format(number, *shares))

# %% [markdown]
# With three seeds the bootstrap fails on the bell curve not once in twenty times but once in four: its
# interval ends at the worst seed and at the best. There the t interval keeps its promise, at the price of
# its width: 4.3 standard errors for three seeds. On the lopsided results it fails about once in ten times,
# up to ten seeds.

# %% tags=["claims"]
bootstrap_bell, t_bell, _, t_lopsided = np.array(list(covered.values())).T
assert abs(bootstrap_bell[0] - 0.75) < 0.03, "once in four"
assert (abs(t_bell - 0.95) < 0.02).all(), "keeps its promise"
assert 0.86 < t_lopsided[:3].mean() < 0.93, "about once in ten"
assert round(t_quantile(0.95, 2), 1) == 4.3

# %% [markdown]
# ## Summary
#
# - Evaluate as the agent will be used, in new episodes, and fix which of them count before you start.
# - More episodes say more about one agent. Only more seeds say more about a method.
# - Report all results, or their mean with a t interval: ten seeds or more.
# - Compare two agents by the interval of their paired differences. If it includes zero, you have
#   seen no difference.
# - The best of many promises too much.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "You change 20 settings of an agent, one at a time, with ten seeds each. In truth none "
    "of them matters. For how many will the 95 % interval of the difference leave out "
    "zero?",
    ["for none", "for about one", "for about five"],
    right="for about one",
    because="Each interval fails in one of 20 experiments, and there are 20. So tell how "
    "many you tried, and try the winner again with new seeds.",
)

# %% tags=["claims"]
low, high = t_interval(rng.normal(size=(10, 20 * 500)))
leave_out_zero = 20 * np.mean((low > 0) | (high < 0))
assert 0.8 < leave_out_zero < 1.2, "about one of twenty"

# %% [markdown]
# ### Exercise 2: find the bug
#
# Episodes were played in some environments side by side. `played` holds, for each
# environment, the returns of its episodes in their order, and here an episode's return is its length. The
# function should return the mean of `n` episodes, where `n` is a multiple of the number of environments.
# Fix it.


# %%
def answer(played, n):
    ended = []
    for lengths in played:
        ended += zip(np.cumsum(lengths), lengths, strict=True)
    return float(np.mean([length for _, length in sorted(ended)[:n]]))


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade


def mean_by_quota(played, n):
    quota = n // len(played)
    return float(np.mean([lengths[:quota] for lengths in played]))


evaluations_played = [
    ([[1.0, 2.0, 3.0]], 3),
    ([[10.0, 10.0, 10.0, 10.0], [100.0]], 2),
    ([[10.0, 20.0, 30.0], [100.0, 200.0]], 4),
]
grade(answer, mean_by_quota, *evaluations_played)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(played, n):
    # Each environment has to give as many, those that it started first.
    quota = n // len(played)
    counted = [x for lengths in played for x in lengths[:quota]]
    return sum(counted) / n


grade(answer, mean_by_quota, *evaluations_played)

# %% [markdown]
# ### Exercise 3: from nothing
#
# Write the rule of the table yourself, with NumPy alone. `ours` and `theirs` are the results of ten
# seeds, in the same order, so $t_M = 2.262$. Return `"better"`, `"worse"` or `"no difference seen"`.
# How often do ten of the twenty seeds above see what all twenty see?


# %%
def answer(ours, theirs):
    return ...


# %% tags=["hide-input"]
def by_the_rule(ours, theirs):
    found = paired_difference(np.array(ours), np.array(theirs))
    if found.low > 0:
        return "better"
    return "worse" if found.high < 0 else "no difference seen"


tens = [(rng.normal(gain, 1, 10), rng.normal(0, 1, 10)) for gain in (3, -3, 0)]
tens += [(first.final[:10], second.final[:10]), (first.final[10:], second.final[10:])]
grade(answer, by_the_rule, *tens)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(ours, theirs):
    # The two agents share their seeds, so the differences are the results.
    gain = np.array(ours) - np.array(theirs)
    half = 2.262 * gain.std(ddof=1) / len(gain) ** 0.5
    if abs(gain.mean()) <= half:
        return "no difference seen"
    return "better" if gain.mean() > 0 else "worse"


grade(answer, by_the_rule, *tens)
draws = [rng.permutation(20)[:10] for _ in range(1_000)]
seen = np.mean([answer(first.final[x], second.final[x]) == "better" for x in draws])
print(f"ten of the twenty seeds see it in {seen:.0%} of the draws")

# %% tags=["claims"]
assert {by_the_rule(*ten) for ten in tens} == {"better", "worse", "no difference seen"}

# %% [markdown]
# ## References
#
# Why seeds matter: {cite:t}`henderson2018`. How to report few of them: {cite:t}`agarwal2021`. How many
# tell two algorithms apart: {cite:t}`colas2018`. The t interval: {cite:t}`student1908`.
