# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Exact values
#
# **How do we find out whether an estimate is right?** We try it in a world so small that the
# right answer can be computed. This chapter is for those who want to be sure; no other needs it.
# After it you can say exactly what the wrong flag
# does to a value, and what a large step does to a policy. It
# takes about 25 minutes, reading, without exercises. You need {doc}`agents`,
# {doc}`policy_gradient` and the ratio of {doc}`ppo_error`.

# %% tags=["export", "hide-input"]
"""Exact values: a world whose values are known, and the equation that gives them."""

from __future__ import annotations

from typing import Annotated, Any

import gymnasium as gym
import numpy as np
from annotated_types import Ge
from numpy.typing import ArrayLike, NDArray

from literate_rl.data.worlds import check_action
from literate_rl.ground.signatures import Float, Fraction, check_that, checked

__all__ = ["Ring", "check_chain", "tabular_values"]

# %% [markdown]
# ## The ring
#
# A robot walks on a ring of five cells, at each step one cell to the left or to the right. Cell 0
# has a charger: a step that starts there pays 1, all others pay nothing. After each step the
# robot breaks down for good with a small probability $p$, here 0.02, which is a termination. A
# time limit can be put around the ring from outside, and that is a truncation.

# %% tags=["hide-input"]
from math import cos, pi, sin

import matplotlib.pyplot as plt
import torch

from literate_rl.book.pictures import Picture, predict

picture = Picture(
    "The ring",
    "Five cells in a circle, numbered 0 to 4, with an arrow from each to the next. Cell 0 "
    "holds the charger and pays 1.",
)
cells = []
for number in range(5):
    angle = 2 * pi * number / 5
    x, y = 220 + 130 * sin(angle), 95 - 80 * cos(angle)
    words, tone = ("0 · pays 1", "accent") if number == 0 else (str(number), "")
    cells.append(picture.box(x, y, words, tone, height=34))
for number in range(5):
    picture.arrow(cells[number], cells[(number + 1) % 5])
picture.text(220, 95, "right: from 0 to 1 to 2 …", "quiet")
picture


# %% tags=["export"]
class Ring(gym.Env[np.int64, np.int64]):
    """A ring of cells with a reward in cell 0 and a chance to break down.

    The observation is the number of the cell. Action 0 goes left (to the cell before),
    action 1 goes right (to the cell after). An episode starts in a random cell. Each
    step terminates it with ``end_probability``.
    """

    metadata = {"render_modes": []}

    @checked
    def __init__(
        self, num_cells: Annotated[int, Ge(2)] = 5, end_probability: Fraction = 0.02
    ) -> None:
        self.num_cells = num_cells
        self.end_probability = end_probability
        self.observation_space = gym.spaces.Discrete(num_cells)
        self.action_space = gym.spaces.Discrete(2)
        self.cell = np.int64(0)

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Put the robot into a random cell."""
        super().reset(seed=seed)
        self.cell = self.np_random.integers(self.num_cells)
        return self.cell, {}

    def step(
        self, action: np.int64
    ) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Move by one cell; return observation, reward, two flags and an empty dict."""
        check_action(self.action_space, action)
        reward = float(self.cell == 0)
        self.cell = np.int64((self.cell + (1 if action == 1 else -1)) % self.num_cells)
        # The environment knows only one way to end. A time limit is not its business,
        # so its own `truncated` is always false.
        terminated = bool(self.np_random.random() < self.end_probability)
        return self.cell, reward, terminated, False, {}

    @checked
    def chain(self, right: Fraction) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return what ``tabular_values`` reads; ``right`` is the chance of action 1."""
        stay = np.eye(self.num_cells)
        # Rolling the identity's columns by one sends each cell to its neighbour.
        left, ahead = np.roll(stay, -1, axis=1), np.roll(stay, 1, axis=1)
        walk = right * ahead + (1 - right) * left
        return (1 - self.end_probability) * walk, stay[0]


# %% [markdown]
# The class follows Gymnasium's interface {cite:p}`towers2024`. `chain` returns the ring's
# probabilities and mean rewards as arrays.
#
# ## Values without sampling
#
# Number the states $0, \dots, S - 1$ and fix the policy. Let $P_{ss'}$ be the probability
# that a step from $s$ leads to $s'$, averaged over the policy's actions, and let $r_s$ be
# the mean reward of that step. The value of a state is the reward of one step plus the
# discounted value of where it leads. For all states at once, as vectors and a matrix, that
# is the **Bellman equation**. It is linear, so we can solve it:
#
# $$
# V = r + \gamma P V \quad \Longrightarrow \quad V = (I - \gamma P)^{-1} r
# $$ (tabular-value)
#
# A row of $P$ may sum to less than 1. The missing probability is that of termination: what
# does not arrive anywhere has no future value. So again a discount is a small chance of the end.
# There is one solution if, without a discount, an end can be reached from every state. Where it can be reached at
# all, it can be in $S$ steps. So we ask how likely a state is to survive $S$ steps, each of which it survives with
# probability $\gamma$ at most.


# %% tags=["export"]
@checked
def check_chain(
    transition: Float[np.ndarray, "S S"],
    reward: Float[np.ndarray, "S"],
    gamma: Fraction,
) -> None:
    """Raise unless a chain of states has finite values."""
    check_that(np.isfinite(reward).all(), "reward must be finite")
    # NaN is not at least zero either.
    fits = (transition >= 0).all() and (transition.sum(1) <= 1 + 1e-9).all()
    check_that(fits, "transition must have rows of probabilities with a sum <= 1")
    survival = np.linalg.matrix_power(gamma * transition, len(reward)).sum(1)
    words = f"gamma must be below 1 if a state never terminates, got {gamma}"
    check_that((survival <= 1 - 1e-12).all(), words)


@checked
def tabular_values(
    transition: ArrayLike, reward: ArrayLike, gamma: Fraction
) -> NDArray[Any]:
    """Solve the Bellman equation of a policy exactly, in float64.

    Args:
        transition: Probabilities (S, S) from row to column, averaged over the policy.
            What a row lacks to 1 is the probability of termination.
        reward: Mean reward of a step from each state, (S,).
        gamma: Discount; below 1 if some state never terminates.

    Raises:
        ValueError: If a row is no row of probabilities, or if ``gamma`` is 1 and a
            state never terminates.

    Source: Sutton and Barto, Reinforcement Learning, 2nd edition, equation 3.14.
    """
    chain = np.asarray(transition, dtype=np.float64)
    pay = np.asarray(reward, dtype=np.float64)
    check_chain(transition=chain, reward=pay, gamma=gamma)
    # Here is {eq}`tabular-value`. Solving is faster and more exact than inverting.
    return np.linalg.solve(np.eye(len(pay)) - gamma * chain, pay)


# %% [markdown]
# The robot goes right in four steps of five, and $\gamma = 0.99$. **Notice** that the values rise
# from cell 1 to cell 4 and on to the charger, and that the second line, with the breakdown moved
# into the discount, is the same.

# %% tags=["hide-input"]
gamma, right, ring = 0.99, 0.8, Ring(num_cells=5, end_probability=0.02)
transition, reward_of_cell = ring.chain(right)
exact = tabular_values(transition, reward_of_cell, gamma)
forever, _ = Ring(num_cells=5, end_probability=0.0).chain(right)
moved = tabular_values(forever, reward_of_cell, gamma * 0.98)

print("cell                           ", *(f"{cell:7d}" for cell in range(5)))
print("discount 0.99, breakdown 0.02  ", *(f"{value:7.4f}" for value in exact))
print("discount 0.99 * 0.98, no end   ", *(f"{value:7.4f}" for value in moved))

# %% tags=["claims"]
assert np.allclose(exact, moved), "the second line is the same"
assert (np.diff([*exact[1:], exact[0]]) > 0).all(), "they rise"

# %% [markdown]
# ## What the wrong flag costs
#
# Much code has one flag for both kinds of end. How large is the error? The robot walks under a
# time limit of 20 steps, with ten seeds. We count in the data how often a step leads from each
# cell to each other one, and solve {eq}`tabular-value` for these shares. The three rules below differ
# only in which steps count as ends, that is, arrive nowhere.

# %% tags=["hide-input"]
from gymnasium.wrappers import TimeLimit

from literate_rl.data.agents import Collector, make_envs


def walk(limit, seed, num_envs=32, num_steps=300):
    """Return a batch of the robot's steps under a time limit."""
    collector = Collector(make_envs(lambda: TimeLimit(Ring(), limit), num_envs))
    collector.reset(seed=1000 * seed)  # a trap of the first chapter says why 1000
    generator = torch.Generator().manual_seed(seed)

    def mostly_right(obs):
        return (torch.rand(len(obs), generator=generator) < right).long()

    return collector.collect(mostly_right, num_steps)


def estimated(batch, ends):
    """Return the values of the chain that was counted in a batch."""
    state, successor = batch.obs.flatten().numpy(), batch.next_obs.flatten().numpy()
    visits = np.bincount(state, minlength=5)
    counts = np.zeros((5, 5))
    np.add.at(counts, (state, successor), ~ends.flatten().numpy())
    paid = np.bincount(state, weights=batch.reward.flatten().numpy(), minlength=5)
    return tabular_values(counts / visits[:, None], paid / visits, gamma)


# %%
def three_ways(limit, seed):
    """Return the values of the cells by each of the three rules."""
    batch = walk(limit, seed)
    done = batch.terminated | batch.truncated
    rules = batch.terminated, done, torch.zeros_like(done)
    return [estimated(batch, ends) for ends in rules]


names = ("terminated steps end", "all done steps end", "no step ends")
runs = np.array([three_ways(20, seed) for seed in range(10)]).mean(2)  # (seeds, rules)
print(f"exact mean value: {exact.mean():.2f}")
for name, rule in zip(names, runs.T, strict=True):
    print(f"{name}: {rule.mean():.2f}, error {rule.mean() / exact.mean() - 1:.0%}")

# %% [markdown]
# With one flag the values are less than half of the truth. Without flags the robot seems to be
# immortal, and they are about three times the truth. More
# data would not help: each of the ten seeds has about the same error. It is **bias**.

# %% tags=["claims"]
two, one, none = runs.T / exact.mean()
assert (abs(two - 1) < 0.1).all(), "right"
assert (one < 0.5).all(), "less than half"
assert (abs(none - 3) < 0.6).all(), "about three times"

# %% [markdown]
# How large is it? Let $h_{\max}$ be the time limit and $\kappa$ the share of all steps that
# are the last ones before it. One flag makes each of these an end, an additional chance
# $\kappa$ of the end in every step. The values are those of a more short-sighted agent:
#
# $$
# \begin{aligned}
# V_{\text{one flag}} &= \bigl(I - \gamma (1 - \kappa) P\bigr)^{-1} r, \\
# \kappa &= \frac{(1 - p)^{h_{\max}-1}}{\sum_{h=0}^{h_{\max}-1} (1 - p)^h}
# \end{aligned}
# $$ (def-time-limit-bias)
#
# Here $(1-p)^h$ is the probability that an episode reaches step $h$. With enough data the formula
# is exact on the ring, where episodes start in any cell.

# %% tags=["hide-input"]
from literate_rl.book.pictures import Axis, Mark, dial, plot


def predicted(limit, end_probability=0.02):
    """Return the mean value that one flag leads to."""
    alive = (1 - end_probability) ** np.arange(limit)
    last = alive[-1] / alive.sum()
    chain, pay = Ring(5, end_probability).chain(right)
    return tabular_values(chain, pay, gamma * (1 - last)).mean()


limits, tones = (5, 10, 20, 50, 100, 200), ("second", "accent")
found = np.array([[three_ways(h, seed)[:2] for seed in range(5)] for h in limits])
dots = found.mean(3)  # (limits, seeds, rules)
curve = np.geomspace(5, 200, 60).astype(int)


def frame(limit):
    """Draw the values under a time limit, and their mean over all limits."""
    now, places = limits.index(limit), {np.log(h): str(h) for h in limits}
    ring_values = plot(
        "The values of the cells",
        "Five cells. With two flags the dots of five runs lie on the exact values, with "
        "one flag far below, the more so the shorter the time limit.",
        Axis("cell", -0.5, 4.5, ticks=range(5)),
        Axis("value", 0, 9, ticks=(0, 4, 8)),
        Mark("line dashed", range(5), exact, "quiet"),
        *(
            Mark("dots", list(range(5)) * 5, found[now, :, rule].ravel(), tone)
            for rule, tone in enumerate(tones)
        ),
    )
    mean_values = plot(
        "Their mean",
        "The mean value over time limits from 5 to 200 steps. With two flags it is the "
        "exact one. With one flag it follows a predicted curve from below.",
        Axis("time limit in steps", np.log(4.5), np.log(230), places),
        Axis("mean value", 0, 9, ticks=(0, 4, 8)),
        Mark("line dashed", np.log([5, 200]), [exact.mean()] * 2, "quiet"),
        Mark("line", np.log(curve), [predicted(h) for h in curve], "quiet"),
        *(
            Mark("dots", [np.log(limit)] * 5, dots[now, :, rule], tone)
            for rule, tone in enumerate(tones)
        ),
        Mark("label", [np.log(8.5)], [exact.mean() + 0.7], "second", words="two flags"),
        Mark("label", [np.log(60)], [2.2], "accent", words="one flag"),
    )
    two, one = dots[now].mean(0) / exact.mean()
    return [ring_values, mean_values], (
        f"A time limit of {limit} steps. With two flags the mean value is {two:.0%} of the "
        f"exact one,\nwith one flag {one:.0%}."
    )


dial("A time limit, with two flags and with one", frame, {"limit": limits}, start=(20,))

# %% [markdown]
# Each dot is one of five runs, the dashed lines are exact, and the curve is the formula. **Notice** that
# the value with one flag depends on the time limit: it grows
# from below 1 to above 6. But a value belongs to the task, and a limit that we chose for our
# convenience does not. There is one exception: if the limit is a rule of the game, and the agent is
# meant to hurry, then the end at the limit *is* a termination, and the time that is left has to be in
# the observation {cite:p}`pardo2018`.

# %% tags=["claims"]
means = dots.mean(1)  # (limits, rules)
assert means[0, 1] < 1, "from below 1"
assert means[-1, 1] > 6, "to above 6"
assert np.allclose(means[:, 1], [predicted(h) for h in limits], rtol=0.1)
assert np.allclose(means[:, 0], exact.mean(), rtol=0.1), "two flags do not depend on it"

# %% [markdown]
# ## What a large step costs
#
# How far can one go with the data of one policy? That is the
# question of {doc}`ppo_error`, and here it has an exact answer. Let
# $J(\pi)$ be the expected return from the start. We have a policy $\pi$ and want a better one,
# $\pi'$. By how much is it better? The exact answer {cite:p}`kakade2002` needs only the
# advantages of the *old* policy, $A_\pi(s, a) = Q(s, a) - V(s)$:
#
# $$
# J(\pi') - J(\pi)
#     = \mathbb{E}_{\pi'} \Bigl[ \sum_{t \ge 0} \gamma^t A_\pi(s_t, a_t) \Bigr] .
# $$ (def-performance-difference)
#
# This is the **performance-difference lemma**: run the new policy, and add up how much better its
# actions are than the old policy's average. The proof: averaged over what can
# follow an action, $r_t + \gamma V(s_{t+1}) - V(s_t)$ with the old policy's values is the
# advantage of that action. In the discounted sum of these terms all values but the first cancel
# in pairs. The rewards are left, whose mean is $J(\pi')$, and $-V(s_0)$, whose mean is $-J(\pi)$.
#
# Why not maximise the right side? Its states are those that the *new* policy
# visits, and we have data of the old one only. So we keep the old states, and correct the actions
# by the ratio of their probabilities:
#
# $$
# J(\pi') - J(\pi) \;\approx\;
#     \mathbb{E}_{\pi} \Bigl[ \sum_{t \ge 0} \gamma^t\,
#     \frac{\pi'(a_t \mid s_t)}{\pi(a_t \mid s_t)}\, A_\pi(s_t, a_t) \Bigr] .
# $$ (def-old-states)
#
# At $\pi' = \pi$ both sides are zero and have the same gradient. Further away the states differ, and
# the error grows at most with the square of the distance between the two policies
# {cite:p}`schulman2015`.
#
# Take a pier of six planks. The agent starts on the first. A step to
# the right pays 1, because the view gets better. A step to the left pays nothing, and on the
# first plank it leads nowhere. One more step to the right from the *last* plank ends in the
# water, costs 10, and leads back to the start. The discount is 0.95. The old policy goes right with
# probability 0.2, so it hardly ever sees the end of the pier.

# %% tags=["hide-input"]
discount, planks = 0.95, 6
start = np.eye(planks)[0]
transition = np.zeros((planks, 2, planks))  # state, action (left, right), next state
paid = np.zeros((planks, 2))
for plank in range(planks):
    transition[plank, 0, max(plank - 1, 0)] = 1
    transition[plank, 1, (plank + 1) % planks] = 1
    paid[plank, 1] = 1 if plank < planks - 1 else -10


def on_the_pier(right):
    """Return the policy, its V (S,), Q (S, 2) and discounted visits (S,)."""
    policy = np.tile([1 - right, right], (planks, 1))
    chain = np.einsum("sa,saz->sz", policy, transition)
    value = tabular_values(chain, (policy * paid).sum(1), discount)
    visits = np.linalg.solve(np.eye(planks) - discount * chain.T, start)
    return policy, value, paid + discount * transition @ value, visits


old, old_value, old_q, old_visits = on_the_pier(0.2)
advantage = old_q - old_value[:, None]
chances = np.linspace(0.2, 1, 101)
true, lemma, estimate = [], [], []
for probability in chances:
    new, new_value, _, new_visits = on_the_pier(probability)
    true.append(start @ (new_value - old_value))
    lemma.append(new_visits @ (new * advantage).sum(1))
    estimate.append(old_visits @ (new * advantage).sum(1))

# %% [markdown]
# {doc}`ppo_error` draws both. They touch at the start and have the same slope: a small step keeps its
# promise. A large one breaks it. The estimate says "always to the right", because it weights the water by
# how often the *old* policy was on the last plank.

# %% tags=["claims"]
assert old_visits[-1] < 0.001 * old_visits.sum(), "it hardly ever sees the end"
assert max(abs(np.subtract(true, lemma))) < 1e-12, "the lemma is exact"
assert abs(estimate[1] / true[1] - 1) < 0.05, "the same slope at the start"
assert np.argmax(estimate) == 100, "the estimate says: always to the right"
assert true[100] < -15, "a large step breaks its promise"
assert 0.4 < chances[np.argmax(true)] < 0.44

# %% [markdown]
# ## The gradient of many decisions
#
# On the ring the gradient of whole episodes can be computed as well. The robot now breaks down with
# probability 0.1, the discount is 0.9, and the policy is a table with two logits for each cell, drawn at
# random. Collect the terms of {eq}`policy-gradient` by the state in which they occur:
#
# $$
# \frac{\partial J}{\partial z_{s,j}} = \nu(s)\, \pi_\theta(j \mid s)\,
#     \bigl( Q(s, j) - V(s) \bigr) , \qquad
# \nu(s) = \sum_{t \ge 0} \gamma^t \Pr(s_t = s) .
# $$ (def-exact-gradient)
#
# Here $\nu(s)$ is the discounted number of visits to a state. Now estimate it from 20,000 episodes. We weight their scores in four ways: with the whole return
# $G_0$, with the return from $t$ on, with that return minus the value, and with the latter again
# but without the sum over $t$, as a [well-known course](#trap-the-sum-over-t-left-out) has it.
# How far is the mean of 10, 30, … episodes from the exact gradient?

# %% tags=["hide-input"] mystnb={"image": {"alt": "Error of the gradient over the number of episodes, both on logarithmic axes. Three parallel lines fall: highest for the whole return, lower for the return from t on, lowest with the value as a baseline. A fourth line, without the sum over t, stays level near 0.8."}}
from literate_rl.maths.policy_gradient import (
    categorical_log_prob,
    policy_gradient_error,
)

decay, frail = 0.9, Ring(num_cells=5, end_probability=0.1)
generator = torch.Generator().manual_seed(0)
table = torch.randn(5, 2, generator=generator, dtype=torch.float64)
policy = table.softmax(1)
successor = (torch.arange(5).unsqueeze(1) + torch.tensor([-1, 1])) % 5  # (cell, action)
lasts = 1 - frail.end_probability

identity = torch.eye(5, dtype=torch.float64)
moves = torch.zeros_like(identity).scatter_add(1, successor, lasts * policy)
reward_of_cell = identity[0]
begins = torch.full_like(reward_of_cell, 0.2)
value = torch.as_tensor(tabular_values(moves, reward_of_cell, decay))
q_value = reward_of_cell.unsqueeze(1) + decay * lasts * value[successor]
visits = torch.linalg.solve(identity - decay * moves.T, begins)
exact_gradient = visits.unsqueeze(1) * policy * (q_value - value.unsqueeze(1))

num_episodes, num_steps = 20_000, 50  # after 50 discounted steps nothing is left
cell = torch.randint(5, (num_episodes,), generator=generator)
alive = torch.ones(num_episodes, dtype=torch.bool)
rows = []
for _ in range(num_steps):
    action = torch.multinomial(policy[cell], 1, generator=generator).squeeze(1)
    rows.append((cell, action, alive, (cell == 0) & alive))
    cell = successor[cell, action]
    alive = alive & (torch.rand(num_episodes, generator=generator) < lasts)
cells, actions, alives, rewards = map(torch.stack, zip(*rows, strict=True))

returns = torch.zeros(num_steps + 1, num_episodes, dtype=torch.float64)
for t in reversed(range(num_steps)):
    returns[t] = rewards[t] + decay * returns[t + 1]
returns = returns[:-1]


def episode_gradients(adv, weight):
    """Return minus the gradient of the loss of each episode, (episodes, 5, 2)."""
    copies = table.repeat(num_episodes, 1, 1).requires_grad_()
    logit = copies[torch.arange(num_episodes), cells].flatten(0, 1)
    log_prob = categorical_log_prob(logit, actions.flatten())
    loss = policy_gradient_error(log_prob, adv.flatten(), weight.flatten())
    return -log_prob.numel() * torch.autograd.grad(loss, copies)[0]


step = torch.arange(num_steps).unsqueeze(1)
fading = decay**step * alives  # zero after the end of an episode
better = returns - value[cells]
ways = {
    "whole return": episode_gradients(returns[:1].expand_as(returns), 1.0 * alives),
    "return from t on": episode_gradients(returns, fading),
    "minus the value": episode_gradients(better, fading),
    "no sum over t": episode_gradients(better, fading * (step == 0)),
}

fig, axis = plt.subplots(figsize=(7, 3))
sizes = (10, 30, 100, 300, 1000, 2000)
misses = {}
for name, gradient in ways.items():
    misses[name] = []
    for size in sizes:
        groups = gradient[: num_episodes // size * size].unflatten(0, (-1, size))
        miss = (groups.mean(1) - exact_gradient).square().sum((1, 2)).mean().sqrt()
        misses[name].append((miss / exact_gradient.norm()).item())
    style = "--" if name.startswith("no") else "-"
    axis.loglog(sizes, misses[name], style, marker="o", ms=4, label=name)
axis.set_xlabel("episodes")
axis.set_ylabel("error, relative")
axis.legend(fontsize=8, loc="lower left")
fig.tight_layout()

# %% [markdown]
# **Notice** that the solid lines are parallel: ten times as many episodes make the error
# about three times smaller. But a lower line needs fewer episodes for the same
# error. Leaving out the past saves most of them, and the baseline about half of the rest. The
# dashed line has the smallest variance, but it levels off: it has another mean.

# %% tags=["claims"]
noise = [gradient.var(0).sum().item() for gradient in ways.values()]
for name in list(ways)[:3]:
    assert 2.5 < misses[name][0] / misses[name][2] < 4, "about three times smaller"
assert noise[1] < noise[0] / 2, "the past costs most"
assert 0.35 < noise[2] / noise[1] < 0.65, "the baseline saves about half of the rest"
assert noise[3] == min(noise), "the smallest variance"
assert misses["no sum over t"][-1] > 0.5, "it does not arrive"
assert misses["minus the value"][-1] < 0.2

# %% [markdown]
# ## Traps
#
# ### Trap: a step that never happened
#
# In `NEXT_STEP`, Gymnasium's default mode, the step after a done ignores the action and
# resets. A loop that does not know this stores a transition from the end of one episode to
# the start of the next. Here the robot always goes right, and the limit is three steps.

# %% tags=["hide-input"]
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from literate_rl.data.agents import true_successors


def three_steps():
    return TimeLimit(Ring(5, end_probability=0.0), 3)


phantoms = {}
for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
    envs = SyncVectorEnv([three_steps], autoreset_mode=mode)
    obs, _ = envs.reset(seed=4)
    phantoms[mode.name] = []
    print(f"{mode.name}\n  from  to  reward  truncated")
    for _ in range(8):
        next_obs, reward, _, truncated, infos = envs.step(np.array([1]))
        successor = true_successors(next_obs, infos)
        phantoms[mode.name].append(successor[0] != (obs[0] + 1) % 5)
        note = "   <- never happened" if phantoms[mode.name][-1] else ""
        row = f"{obs[0]:6d}{successor[0]:4d}{reward[0]:8.0f}{truncated[0]!s:>11s}"
        print(row + note)
        obs = next_obs

# %% [markdown]
# In `NEXT_STEP` every fourth row is such a phantom, in `SAME_STEP` none is. `Collector` marks them in
# `real`, so that a loss can leave them out.

# %% tags=["claims"]
assert phantoms["NEXT_STEP"] == [False, False, False, True] * 2
assert not any(phantoms["SAME_STEP"])
collector = Collector(SyncVectorEnv([three_steps]))
collector.reset(seed=4)
batch = collector.collect(lambda obs: torch.ones(1, dtype=torch.long), 8)
assert batch.real.flatten().tolist() == [True, True, True, False] * 2, "it marks them"

# %% [markdown]
# ### Trap: a baseline that knows the action
#
# A baseline must be fixed before the action is drawn, or {eq}`def-score-mean` does not apply.
# [PyTorch's REINFORCE
# example](https://github.com/pytorch/examples/blob/77f55b912142e11fcfdf5b530231fb9c52f181e8/reinforcement_learning/reinforce.py#L63-L76)
# and Hugging Face's course subtract the mean of the very returns that they weight. That mean
# contains each sample's own return. For $B$ independent samples the gradient shrinks by the factor
# $1 - 1/B$. The mean of the *others* is a true baseline {cite:p}`kool2019`. One state and three actions
# that pay 3, 4 and 6, with a standard deviation of 1:

# %%
prob = torch.tensor([0.6, 0.0, -0.6]).softmax(0)
payments = torch.tensor([3.0, 4.0, 6.0])
exact_one = prob * (payments - prob @ payments)


def along(size, share):
    """Return the length of a mean estimate; ``share`` of the mean is a baseline."""
    draws = torch.multinomial(prob, 400_000, True, generator=generator)
    action = draws.reshape(-1, size)
    paid = payments[action] + torch.randn(action.shape, generator=generator)
    adv = paid - paid.mean(1, keepdim=True)  # times B / (B - 1): without its own return
    score = torch.eye(3)[action] - prob
    mean = (share * adv.unsqueeze(-1) * score).mean((0, 1))
    return (mean @ exact_one / exact_one.square().sum()).item()


for size in (2, 4, 16):
    own, others = along(size, 1.0), along(size, size / (size - 1))
    print(f"B = {size:2d}: own mean {own:.2f}, mean of the others {others:.2f}")

# %% [markdown]
# The right length is 1. With a batch of 1,000 samples the factor does not matter. With two it is one
# half, and with one sample nothing is learned at all.

# %% tags=["claims"]
for size in (2, 4, 16):
    assert abs(along(size, 1.0) - (1 - 1 / size)) < 0.04, "the factor"
    assert abs(along(size, size / (size - 1)) - 1) < 0.04, "a true baseline"

# %% [markdown]
# ### Trap: the sum over t left out
#
# [Hugging Face's course](https://huggingface.co/learn/deep-rl-course/unit4/policy-gradient)
# states the policy gradient theorem as the mean of $\nabla \log \pi_\theta(a_t \mid s_t)$ times the
# return of the episode, without a sum over $t$ ({doc}`/docs/errata`). Take that literally, with the first
# step for $t$. Here is the gradient
# of a robot that always starts in cell 2, for the logits of "right", with the sum and without it.

# %%
from_two = cells[0] == 2
of_cell = {}
for words, name in (("with", "minus the value"), ("without", "no sum over t")):
    of_cell[name] = ways[name][from_two].mean(0)[:, 1].tolist()
    print(f"{words:8s} cells 0 to 4:", *(f"{x + 0.0:6.3f}" for x in of_cell[name]))

# %% [markdown]
# Without the sum a policy learns its first step and nothing else, however many episodes there are.

# %% tags=["claims"]
assert [x != 0 for x in of_cell["no sum over t"]] == [False, False, True, False, False]
assert all(x != 0 for x in of_cell["minus the value"])

# %% [markdown]
# ## Summary
#
# - In a small world the values solve a linear equation, and the gradient follows from them.
# - More data cure variance, not bias. Only an exact answer shows which one an estimate has.
# - One flag for both ends is a smaller discount, and makes every value depend on the time limit.
# - How much better a new policy is can be estimated from the states of the old one, if the step
#   is small.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
predict(
    "The robot goes to the left as often as to the right, instead of mostly to the right. How do "
    "the values of cell 1 and cell 4, the two neighbours of the charger, compare?",
    ["cell 1 is worth more", "both are worth the same", "cell 4 is worth more"],
    right="both are worth the same",
    because="Seen in a mirror the ring is the same, with cells 1 and 4 exchanged. Only a robot "
    "that prefers one direction has a nearer neighbour.",
)

# %% tags=["claims"]
even = tabular_values(*Ring().chain(right=0.5), 0.99)
assert np.isclose(even[1], even[4])

# %% [markdown]
# ### Exercise 2: find the bug
#
# The Bellman equation can also be solved by applying it again and again until nothing moves. This
# loop does so, and returns numbers that look fine. It has one mistake.


# %%
def answer(transition, reward, gamma):
    values = np.zeros(len(reward))
    for _ in range(5000):
        values = reward + gamma * transition.T @ values
    return values


from literate_rl.book.exercises import grade

solved = [(*Ring().chain(right=0.8), 0.99), (*Ring(4, 0.1).chain(right=1.0), 0.9)]
grade(answer, tabular_values, *solved)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(transition, reward, gamma):
    values = np.zeros(len(reward))
    for _ in range(5000):
        # A row of the table says where a step leads. The transpose says where it came from.
        values = reward + gamma * transition @ values
    return values


grade(answer, tabular_values, *solved)

# %% [markdown]
# ### Exercise 3: experiment
#
# Take small steps on the pier, from 0.2 on: in each round make a step to the right more likely by a
# factor of 1.2, then call `on_the_pier`, which returns the policy, $V$, $Q$ (columns left and right) and
# the visits. Go on as long as $Q$ of the right step minus $Q$ of the left step, weighted by the
# visits, is positive. Return how many rounds that takes and the last probability. Guess first.


# %%
def answer():
    return ...


# %% tags=["hide-input"]
def by_rounds():
    probability, rounds = 0.2, 0
    while True:
        _, _, q, visits = on_the_pier(probability)
        if visits @ (q[:, 1] - q[:, 0]) <= 0:
            return rounds, probability
        probability, rounds = 1.2 * probability, rounds + 1


grade(answer, by_rounds, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    # The value of a state is the same for both actions, so Q decides.
    probability, rounds = 0.2, 0
    _, _, q, visits = on_the_pier(probability)
    while visits @ (q[:, 1] - q[:, 0]) > 0:
        probability, rounds = 1.2 * probability, rounds + 1
        _, _, q, visits = on_the_pier(probability)
    return rounds, probability


grade(answer, by_rounds, ())
print(f"{answer()[0]} rounds, near {answer()[1]:.2f}")
# The last round stayed in the band, promised a gain, and lost half a point: the band bounds the
# error of the promise, and does not promise a gain.
returns = [start @ on_the_pier(0.2 * 1.2**n)[1] for n in range(answer()[0] + 1)]
print("J after each round:", *(f"{value:.2f}" for value in returns))

# %% tags=["claims"]
assert returns[:-1] == sorted(returns[:-1]), "each round before it gained"
assert 0.4 < returns[-2] - returns[-1] < 0.6, "half a point"
best = chances[np.argmax(true)]
assert best / 1.2 < answer()[1] < 1.2 * best, "within a step of the best policy"

# %% [markdown]
# ## References
#
# The Bellman equation: chapter 3 of {cite:t}`sutton2018`. Time limits: {cite:t}`pardo2018`. The
# policy gradient theorem: {cite:t}`sutton1999`. The lemma is from {cite:t}`kakade2002`, the bound
# on the error of a large step from {cite:t}`schulman2015`.
