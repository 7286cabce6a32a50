# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # DQN
#
# **How can a value be learned from its own guess without diverging?** After this chapter you can fill a
# table by Q-learning, train an agent that acts by values alone, and say when such values run away and what
# helps. It takes about 30 minutes to read, without exercises. You need values and $n$-step returns
# ({doc}`advantages`) and the buffer of {doc}`replay`. Nothing in this part needs PPO.

# %% tags=["export", "hide-input"]
"""Targets of Q-learning: rewards and the discounted value of what follows."""

from __future__ import annotations

import torch
from torch import Tensor

from literate_rl.ground.signatures import Float, check_finite, checked

__all__ = ["double_q_target", "dueling_q", "q_target"]

# %% [markdown]
# ## First a table
#
# Let $Q(s, a)$ be the discounted return that an action earns on average if the agent acts as well as
# possible from then on. Who knows it needs no other policy, but takes the best action. So the true
# values satisfy the **Bellman equation** $Q(s, a) = \mathbb{E}\,[\, r + \gamma \max_{a'} Q(s', a') \,]$.
#
# Nobody tells the agent these values. **Q-learning** {cite:p}`watkins1989` begins with a table of
# zeros. After each step it moves the entry of the action taken a share $\alpha$ of the way towards the
# right-hand side:
#
# $$
# Q(s, a) \;\leftarrow\; Q(s, a) + \alpha \, \bigl[\, r + \gamma \max_{a'} Q(s', a') - Q(s, a) \,\bigr] .
# $$
#
# One guess moves towards another. This is called **bootstrapping**. Where an episode ends, the target is
# the reward alone. Here is a maze ({doc}`book/train_here`) with a prize of 1 near the start and one of 10 nine steps away. The
# agent walks at random, and four lines learn:

# %%
import random

from literate_rl.book.train_here import MAZE

random.seed(1)
table, state = [[0.0] * 4 for _ in MAZE.cells], MAZE.start
for _ in range(6_000):
    action = random.randrange(4)
    later = MAZE.next[state][action]
    reward = MAZE.prize[later]
    future = 0 if reward else max(table[later])  # a prize ends the episode
    target = reward + 0.9 * future
    table[state][action] += 0.5 * (target - table[state][action])
    state = MAZE.start if reward else later

# %% tags=["hide-input"] mystnb={"image": {"alt": "The maze from above. Each free cell has the value of its best action and an arrow. The values rise from 4.3 at the start to 10 beside the large prize, and the arrows lead there"}}
import matplotlib.pyplot as plt
import numpy as np

values = np.full((5, 8), np.nan)
fig, axis = plt.subplots(figsize=(4.6, 2.9), layout="tight")
for cell, row, prize in zip(MAZE.cells, table, MAZE.prize, strict=True):
    values[cell] = prize or max(row)
    arrow = "↑→↓←"[np.argmax(row)] if any(row) else ""
    words = f"prize\n{prize}" if prize else f"{arrow}\n{max(row):.1f}"
    axis.text(*cell[::-1], words, ha="center", va="center", fontsize=9)
axis.imshow(values, cmap="Purples", vmin=0, vmax=18)
axis.set(xticks=[], yticks=[], facecolor="0.75")
_ = axis.text(*MAZE.cells[MAZE.start][::-1], "◯", ha="center", va="center", fontsize=24)

# %% [markdown]
# **Notice** that the best actions lead from the start, the ring, along the shortest way to the
# prize of 10, although the agent that filled the table wandered. Q-learning is **off-policy**: nothing
# in the Bellman equation asks which policy took an action, so old steps may be learned from as well.
#
# An agent that should earn something cannot act at random for ever. One that is **ε-greedy** takes a random
# action with probability $\varepsilon$, else the best. Here $\varepsilon$ is 0.1 at first. Press Train. The
# ring walks by the best actions of the table as it is now, and soon takes the small prize. Which slider sends
# it to the large one? Guess, move it, press Reset and Train.

# %% tags=["hide-input"]
from literate_rl.book.train_here import train_maze

train_maze()

# %% [markdown]
# **Notice** that with $\varepsilon = 0$, 0.1 or 0.3 the best actions lead to the small prize, in ten
# of ten runs: the agent hardly ever gets away from it. With $\varepsilon = 1$ they lead to the large
# one, in ten of ten. So in DQN $\varepsilon$ begins at 1 and falls.
#
# For CartPole a table will not do. A state there is four real numbers, and in 1,000 random steps none comes
# twice. Each would fill a row of its own, which says nothing about its neighbours. A network gives similar
# states similar values. With a deep network for $Q$, a memory to replay, and an older copy of it, the
# target network, Q-learning is the deep Q-network, **DQN** {cite:p}`mnih2015`.

# %% tags=["claims"]
import torch

from literate_rl.book.train_here import MAZE_SLIDERS, learn_maze, walk
from literate_rl.data.agents import Collector, make_envs

assert walk(table, limit=9) == 10, "the shortest way"
assert walk(table, limit=8) == 0, "nine steps"
assert abs(max(table[MAZE.start]) - 10 * 0.9**8) < 0.01, "the value at the start"


def learned(exploration):
    """Return the prizes to which ten seeds lead."""
    runs = [learn_maze(0.5, exploration, 0.9, seed) for seed in range(1, 11)]
    return {walk(run.table) for run in runs}


assert learned(0) == learned(0.1) == learned(0.3) == {1}, "the small one"
assert learned(1) == {10}, "the large one"

assert MAZE_SLIDERS["exploration ε"][1] == 0.1, "one action in ten"
wanderer = Collector(make_envs("CartPole-v1", 4))
wanderer.reset(seed=1)
obs = wanderer.collect(lambda obs: torch.randint(2, (len(obs),)), 250).obs
assert len(obs.reshape(-1, 4).unique(dim=0)) == 1000, "none comes twice"

# %% [markdown]
# ## DQN on one page
#
# Here is the whole agent, for any environment with vectors as observations and a list of actions. The
# collector and the buffer are those of earlier chapters. The page trains it for 5,000 steps;
# `literate-rl copy dqn > my_dqn.py` gives you the same program as a file, which trains for 50,000.

# %% tags=["program"] total_steps=50000
import copy

import torch
from torch import nn
from torch.nn.functional import smooth_l1_loss

from literate_rl.data.agents import Collector, make_envs
from literate_rl.data.replay import ReplayBuffer

torch.set_num_threads(1)  # the network is too small to be shared out

env_id, seed, total_steps = "CartPole-v1", 1, 5_000
num_envs, first_update, batch_size, hidden = 4, 1000, 128, 128
gamma, n, tau, learning_rate, scale = 0.99, 20, 0.02, 1e-3, 0.05

torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
envs = make_envs(env_id, num_envs)
seen, actions = envs.single_observation_space, int(envs.single_action_space.n)
first, second = nn.Linear(seen.shape[0], hidden), nn.Linear(hidden, hidden)
last = nn.Linear(hidden, actions)  # a value for each action
network = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)
older = copy.deepcopy(network)  # the target network
optimizer = torch.optim.Adam(network.parameters(), learning_rate)


def act(obs):
    """Take the action of the largest value, and now and then a random one."""
    epsilon = max(0.05, 1 - collector.step / 5000)
    anything = torch.randint(actions, (len(obs),), generator=generator)
    explore = torch.rand(len(obs), generator=generator) < epsilon
    return torch.where(explore, anything, network(obs).argmax(-1))


collector, buffer, episodes = Collector(envs), ReplayBuffer(100_000), []
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1
while collector.step < total_steps:
    # The learning rate falls to zero in a straight line.
    rate = learning_rate * (1 - collector.step / total_steps)
    optimizer.param_groups[0]["lr"] = rate

    # 1. Act once in each environment. Everything is remembered.
    steps = collector.collect(act, 1)
    buffer.push(steps)
    returns = steps.episode_return[steps.terminated | steps.truncated]
    episodes += [(collector.step, x) for x in returns.tolist()]

    for _ in range(num_envs // 2 if collector.step > first_update else 0):
        batch = buffer.sample(batch_size, generator, n, gamma)
        # 2. What should the values be? The network chooses the best next action, its
        # older copy says what that one is worth.
        with torch.no_grad():
            best = network(batch.next_obs).argmax(-1, keepdim=True)
            next_q = older(batch.next_obs).gather(-1, best).squeeze(-1)
            future = next_q.masked_fill(batch.discount == 0, 0.0)  # nothing, at an end
            target = scale * batch.reward + batch.discount * future
        # 3. What are they? One step towards the targets.
        q = network(batch.obs).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        optimizer.zero_grad()
        smooth_l1_loss(q, target).backward()
        optimizer.step()
        # 4. The older copy follows slowly.
        with torch.no_grad():
            for old, new in zip(older.parameters(), network.parameters(), strict=True):
                old.lerp_(new, tau)

    if collector.step % (total_steps // 10) < num_envs:
        mean = sum(x for _, x in episodes[-20:]) / max(1, len(episodes[-20:]))
        print(f"step {collector.step:6d}: mean return of 20 episodes {mean:5.1f}")

# %% [markdown]
# **Notice** that the last episodes are several times as long as the first, although the actions of
# step 1 come from a network that nobody has told what an action is worth. All it has is step 2:
# rewards, and what its own older copy believes.

# %% tags=["claims"]
lengths = [length for _, length in episodes]
assert np.mean(lengths[-10:]) > 3 * np.mean(lengths[:10]), "several times as long"

# %% [markdown]
# The same program after all of its 50,000 steps, with ten seeds:

# %% tags=["hide-input"] mystnb={"image": {"alt": "Ten thin curves and their mean over 50,000 steps of CartPole. They rise from 20. Eight of them end near 500, two near 240"}}
from literate_rl.book.pictures import AGENT_COLOURS
from literate_rl.runs.runs import stored_runs

ten = stored_runs("program_dqn")["dqn"]
fig, axis = plt.subplots(figsize=(4.6, 2.8))
steps, colour = ten.steps / 1000, AGENT_COLOURS["DQN"]
axis.plot(steps, ten.curves.T, color=colour, alpha=0.35, linewidth=0.8)
axis.plot(steps, ten.curves.mean(0), color=colour, linewidth=2.5)
axis.set(xlabel="thousand steps", ylabel="return while training", ylim=(0, 520))
fig.tight_layout()

# %% [markdown]
# **Notice** that eight of ten runs end above 475, while one action in twenty is still random, and
# that two end near 240. Why these two fail is not known.

# %% tags=["claims"]
assert len(ten.final) == 10
assert (ten.final > 475).sum() == 8, "eight of ten"
assert ((ten.final > 215) & (ten.final < 260)).sum() == 2, "two near 240"

# %% [markdown]
# ## A value that feeds on itself
#
# The entries of a table move alone. States of a network share weights, and then a value that chases
# another one can run away. The smallest example {cite:p}`tsitsiklis1997` has a single weight $w$. A first
# state has the value $w$, and a second one, whose input is twice as large, the value $2 w$. No step pays
# anything, so the truth is $w = 0$.
#
# The agent went from the first state to the second and stayed there. It learns the value of the
# first state only. After $n$ steps it is in the second, so the target is $\gamma^n \cdot 2 \bar
# w$, where $\bar w$ is a copy of $w$ that is renewed now and then. Each update moves $w$, at first 1, a
# tenth of the way. The last slider lets the agent also learn from the steps that stay in the second
# state, once or three times for each step from the first.

# %% tags=["hide-input"]
import math

from literate_rl.book.pictures import AGENT_COLOURS, Axis, Mark, dial, plot

num_updates = 200


def weights(gamma, n, renewed, stays=0):
    """Return w after each update, from 1 on; the copy is renewed every so often."""
    w, found = 1.0, [1.0]
    for update in range(num_updates):
        if update % renewed == 0:
            copied = w
        target = gamma**n * 2 * copied
        # The value of the second state is 2w, so it rises twice as steeply.
        w += 0.1 * (target - w) + stays * 0.1 * 2 * (target - 2 * w)
        found.append(w)
    return found


def goal(gamma, n, stays):
    """Return where w would go if the copy stood still, for a copy of 1."""
    return 2 * gamma**n * (1 + 2 * stays) / (1 + 4 * stays)


def frame(gamma, n, renewed, stays):
    found = weights(gamma, n, renewed, stays)
    factor = goal(gamma, n, stays)
    verdict = "w runs away" if factor > 1 else "w goes to 0, as it should"
    if factor == 1:
        verdict = "w stays where it is"
    powers = [max(-9.5, math.log10(abs(w))) for w in found]
    picture = plot(
        "One weight that learns from itself",
        "The weight over 200 updates, on a logarithmic scale. With a discount of 0.9 it "
        "grows a millionfold if the target is one step away, and vanishes if it is ten.",
        Axis("updates", 0, 1.03 * num_updates, ticks=(0, 50, 100, 150, 200)),
        Axis("powers of ten in w", -9.5, 9.5, ticks=(-8, -4, 0, 4, 8)),
        Mark("line dashed", [0, num_updates], [0, 0], "faint"),
        Mark("line thick", list(range(0, num_updates + 1, 2)), powers[::2], "accent"),
        width=440,
    )
    end = found[-1]
    number = f"{end:.3g}" if 1e-2 < abs(end) < 1e3 else f"{end:.1e}"
    return [picture], (
        f"If the copy stood still, w would go to {factor:.2f} times the copy: {verdict}.\n"
        f"After {num_updates} updates w = {number.replace('-', '−')}."
    )


dial(
    "A weight that learns from itself, over γ, n, how often the copy is renewed and how "
    "often the second state is learned from",
    frame,
    {
        "γ": [0.5, 0.9, 0.99],
        "n": [1, 3, 10, 20, 80],
        "updates between copies": [1, 10, 50],
        "steps that stay": [0, 1, 3],
    },
    start=(0.9, 1, 1, 0),
)

# %% [markdown]
# **Notice** four things. With $\gamma = 0.9$ and $n = 1$, $w$ grows more than a millionfold: it
# chases a target that is 1.8 times as large as itself. With $n = 10$ the next value carries so little
# weight, $\gamma^n$, that $w$ goes to zero. If the copy is renewed only every 50 updates, the chase is
# slower but leads the same way. Between two copies the target stands still, and the updates solve an
# ordinary regression: that is what a **target network** does. And if the agent learns three times as
# often from the second state, $w$ goes to zero with $\gamma = 0.9$ and $n = 1$: the value $2 w$ there is
# above its target, $1.8\, w$. With $\gamma = 0.99$ this pull is too weak.
#
# A value can diverge when three things come together: shared weights, bootstrapping, and learning
# off-policy, from steps that are not as frequent as the policy takes them. {cite:t}`sutton2018` call
# this the **deadly triad**.

# %% tags=["claims"]
assert weights(0.9, 1, 1)[-1] > 1e6, "a millionfold"
assert weights(0.5, 1, 1)[-1] == 1, "just in between it stays where it is"
assert 1 < weights(0.9, 1, 50)[-1] < 20, "slower, but the same way"
assert all(weights(0.9, 10, c)[-1] < 0.3 for c in (1, 10, 50)), "n = 10 vanishes"
assert abs(weights(0.9, 1, 1, stays=3)[-1]) < 1e-2, "with the other steps, to zero"
assert weights(0.99, 1, 1, stays=3)[-1] > 1, "with 0.99 it still grows"
for setting in [(g, n, 1, k) for g in (0.9, 0.99) for n in (1, 20, 80) for k in (0, 3)]:
    grows = goal(setting[0], setting[1], setting[3]) > 1
    assert (abs(weights(*setting)[-1]) > 1) == grows, "the words agree with the line"

# %% [markdown]
# ## When the values of an agent run away
#
# The agent takes the same two measures: targets that look $n = 20$ steps ahead, and a target network.
# Here they are taken away on CartPole. A line is the mean value in the batches of one run, five runs for
# each. Rewards are scaled, so that no true value is above 5, the dashed line.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Mean values over 30,000 steps, on a logarithmic scale, five runs for each of four agents. Three agents stay near the dashed line at 5. That with one step in a target and no target network rises to millions"}}
runaway = stored_runs("dqn_runaway")
shown = ("DQN", "no target network", "n = 1", "n = 1, no target network")
colours = (AGENT_COLOURS["DQN"], "C1", "C4", "C3")
fig, axis = plt.subplots(figsize=(4.6, 3.6), layout="tight")
for name, colour in zip(shown, colours, strict=True):
    runs = runaway[name]
    mean_q = runs.watched["losses/q_value"].clip(0.1)
    lines = axis.plot(runs.steps / 1000, mean_q.T, color=colour, linewidth=1.2)
    lines[0].set_label(name)
axis.axhline(5, color="grey", linestyle="--")
axis.set(xlabel="thousand steps", ylabel="mean value", yscale="log", ylim=(0.1, 1e10))
_ = axis.legend(fontsize=9, loc="center right", bbox_to_anchor=(1, 0.43))

# %% [markdown]
# **Notice** that one measure is enough to hold the values. With twenty steps they stay below the bound,
# with or without a target network. With one step and a target network they come to the bound, and one of
# five runs overshoots it, to 9. Without both they grow to twenty million, in all five runs, and the last
# policies drop the pole after some ten steps. The toy is harsher: with the agent's $\gamma = 0.99$ it
# needs $n \ge 69$, because there a step along the gradient raises the next value twice as far.
# {cite:t}`achiam2019` study how far it does in deep networks.

# %% tags=["claims"]
values = {name: runaway[name].watched["losses/q_value"] for name in shown}
diverged = runaway["n = 1, no target network"]
assert {len(x) for x in values.values()} == {len(diverged.final)} == {5}, "five runs"
for name in ("DQN", "no target network"):
    assert 2.5 < values[name][:, -1].min() < values[name].max() < 5, "they stay below"
highest = np.sort(values["n = 1"].max(1))
assert 4 < highest[0] < highest[3] < 6, "they come to the bound"
assert 8.5 < highest[4] < 9.5, "one overshoots it"
ends = values["n = 1, no target network"][:, -1]
assert 1.7e7 < ends.min() < ends.max() < 2.3e7, "twenty million"
assert diverged.final.max() < 15, "after some ten steps"
assert min(n for n in range(1, 99) if 2 * 0.99**n < 1) == 69, "69 steps"

# %% [markdown]
# ## Targets
#
# The network has weights $\theta$, the target network older ones, $\bar\theta$. The target of a
# remembered step is the reward plus what the next state is worth to the target network, discounted:
#
# $$
# y = r + \gamma \max_{a'} Q_{\bar\theta}(s', a') .
# $$ (q-target)
#
# The buffer returns windows of $n$ steps ({doc}`replay`). Then $r$ is the discounted sum of
# their rewards, $s'$ is where the last one led, and $\gamma$ becomes the window's `discount`:
# $\gamma^m$ with the true number $m \le n$ of steps, or 0 if the episode terminated there. The later
# actions of a window came from older policies, which makes the target somewhat wrong. But the guess
# counts less, and news of a reward travels $n$ steps at once.
#
# In the signatures `N` is the number of samples, and `A` that of actions.


# %% tags=["export"]
def td_target(reward: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
    """Return rewards plus discounted values of what follows, without gradient.

    Where ``discount`` is 0 nothing follows, and ``next_q`` may hold anything.
    """
    future = next_q.detach().masked_fill(discount == 0, 0.0)
    target = torch.addcmul(reward, discount, future).detach()
    check_finite(target, reward=reward, discount=discount, next_q=future)
    return target


@checked
def q_target(
    reward: Float[Tensor, "N"],
    discount: Float[Tensor, "N"],
    next_q: Float[Tensor, "N A"],
) -> Float[Tensor, "N"]:
    """Return the targets of Q-learning, without gradient.

    ``discount`` is the factor of the next value: a power of gamma, or 0 after a
    termination, where ``next_q`` may hold anything.

    Source: Watkins 1989; Sutton and Barto, equation 6.8.
    """
    # The network that chooses the best action also evaluates it, {eq}`q-target`.
    return td_target(reward, discount, next_q.amax(-1))


# %% [markdown]
# A maximum has a flaw. If all actions are worth the same and each guess is off by some noise, the largest
# guess belongs to the luckiest action, and it is too high: this is **overestimation**. **Double
# Q-learning** {cite:p}`vanhasselt2010` keeps two tables. One chooses the action, the other one, in which
# it need not be lucky, evaluates it. **Double DQN** {cite:p}`vanhasselt2016` takes the two networks that
# are there anyway:
#
# $$
# y = r + \gamma \, Q_{\bar\theta}\bigl(s', \operatorname*{argmax}_{a'} Q_\theta(s', a')\bigr) .
# $$ (double-q-target)


# %% tags=["export"]
@checked
def double_q_target(
    reward: Float[Tensor, "N"],
    discount: Float[Tensor, "N"],
    next_q: Float[Tensor, "N A"],
    chooser: Float[Tensor, "N A"],
) -> Float[Tensor, "N"]:
    """Return the targets of double DQN, without gradient.

    ``chooser`` holds the values by which the next action is chosen, ``next_q`` those by
    which it is evaluated.

    Source: van Hasselt et al. 2016, equation 4.
    """
    # One network chooses, the other one evaluates, {eq}`double-q-target`.
    best = chooser.argmax(-1, keepdim=True)
    return q_target(reward, discount, next_q.gather(-1, best))


# %% [markdown]
# How large is the error? Here every action is worth 0, every guess has a random error of standard
# deviation 1, and a second network has errors of its own.

# %%
generator = torch.Generator().manual_seed(0)
pays, counts = torch.zeros(100_000), torch.ones(100_000)
overestimate = {}
print("actions    max    double")
for num_actions in (2, 4, 18):
    guess, other = torch.randn(2, 100_000, num_actions, generator=generator)
    by_max = q_target(pays, counts, guess).mean().item()
    by_two = double_q_target(pays, counts, guess, other).mean().item()
    overestimate[num_actions] = by_max, by_two
    print(f"{num_actions:7d} {by_max:6.2f} {by_two:9.2f}")

# %% [markdown]
# **Notice** that the error of the maximum grows with the number of actions. It then enters the
# next target, and the next: with $\gamma = 0.99$ an error of 1 in every target makes values too
# high by up to $1 / (1 - \gamma) = 100$. Double DQN removes only a part of it, because the errors of an
# old and a new copy of one network are correlated.

# %% tags=["claims"]
by_max = [pair[0] for pair in overestimate.values()]
assert by_max == sorted(by_max), "it grows with the number of actions"
assert 0.5 < by_max[0] < 0.6
assert 1.7 < by_max[-1] < 1.9
assert all(abs(pair[1]) < 0.02 for pair in overestimate.values()), "double has none"
assert abs(1 / (1 - 0.99) - 100) < 1e-9

# %% [markdown]
# ## A dueling network
#
# In many states the choice of the action matters little. A **dueling** network {cite:p}`wang2016` has
# separate outputs for how good the state is, $V(s)$, and for how much better each action is than the
# others, $A(s, a)$. Every step then teaches $V$, whatever action was taken. With $N$ actions,
#
# $$
# Q(s, a) = V(s) + A(s, a) - \frac{1}{N} \sum_{a'} A(s, a') .
# $$ (dueling)
#
# With the last term the mean of a state's values over the actions *is* $V$. A mere `advantage.mean()`
# would be over the whole batch, and what a state is worth would depend on the others.


# %% tags=["export"]
@checked
def dueling_q(
    value: Float[Tensor, "*B 1"], advantage: Float[Tensor, "*B A"]
) -> Float[Tensor, "*B A"]:
    """Put a state's value and its actions' advantages together.

    Source: Wang et al. 2016, equation 9.
    """
    # The mean is over the actions, the last dimension: {eq}`dueling`.
    return value + advantage - advantage.mean(-1, keepdim=True)


# %% tags=["claims"]
state_value = torch.zeros(3, 1)
advantage = torch.tensor([[1.0, -1.0], [5.0, 3.0], [-2.0, 2.0]])
q = dueling_q(state_value, advantage)
assert q.mean(-1).tolist() == [0.0] * 3, "the mean of the values is V"
assert torch.equal(dueling_q(state_value[:1], advantage[:1]), q[:1]), "no matter which"
wrong = state_value + advantage - advantage.mean()
assert not torch.allclose(wrong[0], q[0]), "it depends on the others"

# %% [markdown]
# ## From targets to losses
#
# The **TD error** of a step is $\delta = y - Q_\theta(s, a)$. If its square were the loss, a
# single large error could outweigh a whole batch. The **Huber loss** is a parabola near zero and
# straight further out, so its slope is never larger than 1:
#
# $$
# \mathcal L(\delta) = \begin{cases}
#   \tfrac12 \delta^2 & \text{if } |\delta| \le 1 \\
#   |\delta| - \tfrac12 & \text{else.}
# \end{cases}
# $$ (huber)
#
# Which errors reach the straight part depends on the scale of the rewards. That is one reason to
# scale them: in CartPole by 0.05, so that no true value exceeds $0.05 / (1 - \gamma) = 5$.

# %% [markdown]
# ## The target network follows
#
# After each update the target network moves a share $\tau$ of the way towards the network in training (a
# *soft update*), as in step 4 of the program:
#
# $$
# \bar\theta \;\leftarrow\; (1 - \tau)\, \bar\theta + \tau\, \theta .
# $$ (polyak)
#
# With $\tau = 1$ it becomes a copy. Done after every update, that leaves no target network.
#
# That is all of DQN. Here is its error in the package, `QLearning.error` of {doc}`learners/dqn`;
# `legal` leaves out what is illegal ({doc}`masks`). It returns a loss, the TD error (the new priority in
# {doc}`replay`) and the value of each sample. The rest is the loop that DQN shares with six other agents of
# this book, {doc}`learners/loop`.

# %%
from literate_rl.apps.programs import source
from literate_rl.learners.dqn import EpsilonGreedy, QLearning, dqn_settings

source(QLearning.error)

# %% [markdown]
# ## When to use it
#
# DQN learns from each step many times. On CartPole the runs of the package's DQN, with a dueling head,
# first touch 475 after 16,000 steps (the median of ten), those of PPO after 26,000, but 50,000 steps take
# it eleven times as much processor time. So prefer it where steps are expensive and actions can be listed.
#
# - **Use it for**: actions that can be listed, steps that cost more than updates
# - **Rather than**: {doc}`ppo`, which is faster by the clock where steps are cheap
# - **Costs**: about 16,000 steps until CartPole first reaches 475; 50,000 steps take 36 CPU seconds
# - **First settings**: `num_steps=20` (the $n$ of a target), `tau=0.02, epsilon_steps=10_000` (a fifth of the
#   run), and a `reward_scale` that keeps values at a few units (0.05 for CartPole)
# - **Decided by**: one switch at a time in {doc}`rainbow_evidence`

# %% tags=["claims"]
from literate_rl.runs.evaluation import paired_difference

above = dqn_settings("CartPole-v1")
assert above.epsilon_steps == 10_000 == above.total_steps // 5
assert (above.num_steps, above.tau, above.reward_scale) == (20, 0.02, 0.05)
switches = stored_runs("dqn_switches")
gap = paired_difference(switches["one step, n = 1"].area, switches["all parts"].area)
assert gap.high < -100, "far more slowly"


def first_at_475(runs):
    """Return the median of the steps at which runs first reach 475."""
    there = runs.curves >= 475
    return np.median(np.where(there.any(1), runs.steps[there.argmax(1)], np.inf))


runs, ppo = stored_runs("dqn_cartpole")["DQN"], stored_runs("cartpole")["PPO"]
assert len(runs.curves) == 10
assert first_at_475(runs) == 16_000
assert first_at_475(ppo) == 26_000
assert ppo.steps[-1] == runs.steps[-1] == 50_000
assert round(np.median(runs.cpu_seconds)) == 36
price = np.median(runs.cpu_seconds) / np.median(ppo.cpu_seconds)
assert round(price) == 11, "eleven times"

# %% [markdown]
# ## Summary
#
# - Q-learning moves a value towards the reward plus the best next value, whoever took the steps.
# - With shared weights such a value can diverge: when targets move further than the values that chase
#   them.
# - Targets that look many steps ahead move less, and a target network slows the chase. On CartPole one
#   of the two is enough to hold the values; with $n = 1$ and a target network the agent learns far more
#   slowly.
# - The maximum of noisy guesses is too high. In double DQN another network evaluates.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "An agent with two actions is ε-greedy with ε = 0.1. How often does it take the action that "
    "it believes to be worse?",
    ["in 5 % of the steps", "in 10 % of the steps", "in 20 % of the steps"],
    right="in 5 % of the steps",
    because="In one step of ten it draws at random, and half of these draws hit the better "
    "action all the same.",
)

# %% tags=["claims"]
greedy = EpsilonGreedy(2)
greedy.epsilon = 0.1
worse, _ = greedy.evaluate(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
assert abs(worse.exp().item() - 0.05) < 1e-6, "in 5 % of the steps"

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function should compute `double_q_target`. It runs, and its targets look plausible. Fix it.


# %%
def answer(reward, discount, next_q, chooser):
    best = next_q.argmax(-1, keepdim=True)
    return reward + discount * chooser.gather(-1, best).squeeze(-1)


# %% tags=["hide-input"]
from functools import partial

from literate_rl.book.exercises import grade


def remembered(seed):
    """Return rewards, discounts and two tables of values."""
    generator = torch.Generator().manual_seed(seed)
    reward, discount = torch.rand(2, 6, generator=generator)
    return reward, discount, *torch.randn(2, 6, 3, generator=generator)


grade(answer, double_q_target, *map(remembered, range(3)))


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(reward, discount, next_q, chooser):
    # The network in training chooses, the target network evaluates.
    best = chooser.argmax(-1, keepdim=True)
    return reward + discount * next_q.gather(-1, best).squeeze(-1)


grade(answer, double_q_target, *map(remembered, range(3)))

# %% [markdown]
# ### Exercise 3: from nothing
#
# Write DQN's learning step, without a look at the program: targets of double DQN, the Huber loss, one
# step of the optimiser, and the older network that follows by a share `tau`. `network` and `older` turn
# observations into one value for each action. The check lets your step and the package's learn from the
# same batches and compares all weights.


# %%
def answer(network, older, optimizer, batch, tau):
    """Change `network` by one step of the optimiser, and let `older` follow."""
    return ...


# %% tags=["hide-input"]
from gymnasium import spaces
from literate_rl.data.replay import Batch
from literate_rl.learners.dqn import DQNConfig, make_q_policy
from literate_rl.learners.loop import polyak_update


def batch_of(seed, ended, size, generator):
    """Return a batch of ten random steps; rewards are as large as `size`."""
    obs, next_obs = torch.randn(2, 10, 4, generator=generator)
    reward = size * torch.randn(10, generator=generator)
    discount = torch.full((10,), 0.9)
    discount[:ended] = 0.0
    action = torch.randint(3, (10,), generator=generator)
    return Batch(obs, action, reward, next_obs, discount, torch.ones(10), action)


def weights_after(step, seed, ended=0, size=1.0, tau=0.1):
    """Return the weights of both networks after three steps."""
    torch.manual_seed(seed)
    box = spaces.Box(-1, 1, (4,)), spaces.Discrete(3)
    algorithm = QLearning(make_q_policy(*box, hidden=8), DQNConfig())
    network, older = algorithm.policy, algorithm.target.network
    with torch.no_grad():  # an older network with other values
        for parameter in older.parameters():
            parameter.mul_(-1.5)
    optimizer = torch.optim.SGD(network.parameters(), 0.3)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(3):
        batch = batch_of(seed, ended, size, generator)
        if step(network, older, optimizer, batch, tau) is ...:
            return ...
    # The package's form, from the algorithm itself.
    both = network, older
    return [torch.cat([x.flatten() for x in y.parameters()]).detach() for y in both]


def by_package(network, older, optimizer, batch, tau):
    algorithm = QLearning(network, DQNConfig())
    algorithm.target.network = older
    optimizer.zero_grad()
    algorithm.error(batch, torch.Generator()).backward(batch.weight)
    optimizer.step()
    polyak_update([*older.parameters()], [*network.parameters()], tau)


cases = {
    "no episode ended": (0,),
    "some episodes ended": (1, 4),
    "large errors": (2, 0, 10.0),
    "the older network is a copy": (3, 0, 1.0, 1.0),
}
grade(partial(weights_after, answer), partial(weights_after, by_package), cases)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(network, older, optimizer, batch, tau):
    # The network in training chooses the next action, the older one evaluates it. No
    # gradient goes through the target.
    with torch.no_grad():
        best = network(batch.next_obs).argmax(-1, keepdim=True)
        next_q = older(batch.next_obs).gather(-1, best).squeeze(-1)
        target = batch.reward + batch.discount * next_q
    q = network(batch.obs).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
    optimizer.zero_grad()
    smooth_l1_loss(q, target).backward()
    optimizer.step()
    with torch.no_grad():
        for old, new in zip(older.parameters(), network.parameters(), strict=True):
            old.mul_(1 - tau).add_(tau * new)


grade(partial(weights_after, answer), partial(weights_after, by_package), cases)

# %% [markdown]
# ## References
#
# Dueling is from {cite:t}`wang2016`, and {cite:t}`sutton2018` treat the deadly triad in chapter 11.
