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
# **How can a value be learned from its own guess without diverging?** After this chapter you can
# say when such a value diverges and what helps against it, and train an agent that acts by values
# alone. It takes about 40 minutes to read, without exercises. You need values and $n$-step returns
# ({doc}`advantages`) and the buffer of {doc}`replay`. The short way here: from {doc}`agents` and
# {doc}`advantages` straight to {doc}`windows`. Nothing in this part needs PPO.

# %% tags=["export", "hide-input"]
"""DQN: values of actions, learned from their own guesses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from literate_rl.data.replay import Batch
from literate_rl.ground.nests import as_discrete, as_space, remembered
from literate_rl.ground.networks import chosen, eval_mode
from literate_rl.ground.protocols import Algorithm, Envs
from literate_rl.ground.rows import LISTED, Row, by_settings, register
from literate_rl.ground.signatures import Count, Float, Fraction, Int, checked
from literate_rl.learners.loop import (
    OffPolicy,
    OffPolicyConfig,
    QError,
    TargetNetwork,
    linear_schedule,
    polyak_update as polyak_update,
    td_target,
)
from literate_rl.nets.encoders import (
    Convolutions,
    OwnEncoder,
    PictureEncoder,
    ShapedEncoder,
    entrance,
)
from literate_rl.nets.masks import legal
from literate_rl.nets.policies import Policy, normalizing

__all__ = [
    "DQN",
    "DQNConfig",
    "EpsilonGreedy",
    "Exploring",
    "ExploringConfig",
    "QLearning",
    "double_q_target",
    "dqn_settings",
    "dueling_q",
    "make_q_policy",
    "q_target",
]

# %% [markdown]
# ## A value that feeds on itself
#
# An agent that knows what each action is worth needs no other policy: it takes the best one. But
# nobody tells it these values. If an action pays $r$ and leads to a state that the agent
# *believes* to be worth $V$, then the action should be worth $r + \gamma V$. So the agent moves
# one guess towards another guess of its own. This is called **bootstrapping**.
#
# Here is the smallest example in which it goes wrong {cite:p}`tsitsiklis1997`. A network with a
# single weight $w$ gives a first state the value $w$, and a second one, whose input is twice as
# large, the value $2 w$. No step pays anything, so the truth is $w = 0$.
#
# The agent went from the first state to the second and stayed there. It learns the value of the
# first state only. After $n$ steps it is in the second, so the target is $\gamma^n \cdot 2 \bar
# w$, where $\bar w$ is a copy of $w$ that is renewed now and then. Each update moves $w$ a tenth
# of the way towards the target. At first $w = 1$. The last slider lets the agent also learn from
# the steps that stay in the second state, once or three times for each step from the first. Drag
# the sliders.

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
# chases a target that is 1.8 times as large as itself. With $n = 10$ the bootstrapped value carries
# so little weight, $\gamma^n$, that $w$ goes to zero. If the copy is renewed only every 50 updates,
# the chase is slower but leads the same way. Between two copies the target stands still, and the
# updates solve an ordinary regression. That is what a **target network** does. And if the agent
# learns from the second state too, three times as often as from the first, $w$ goes to zero with
# $\gamma = 0.9$ and $n = 1$: the second state's value, $2 w$, is above its target, $1.8\, w$, and
# pulls $w$ down. With $\gamma = 0.99$ this pull is too weak, and $w$ still grows.
#
# A value can diverge when three things come together: values that share weights (function
# approximation), targets made of values (bootstrapping), and steps that are not learned from as
# often as the policy takes them (off-policy learning). {cite:t}`sutton2018` call this the
# **deadly triad**.

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
# Does that happen to a real agent? It takes the same two measures: a target network that follows
# slowly, and targets that look $n = 20$ steps ahead. Here they are taken away from this chapter's
# agent on CartPole. A line is the mean value in the batches of one run, five runs for each. The
# rewards are scaled, so that no true value is above 5, the dashed line.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Mean values over 30,000 steps, on a logarithmic scale, five runs for each of five agents. Four agents stay near the dashed line at 5. That with one step in a target and no target network rises to millions"}}
import matplotlib.pyplot as plt
import numpy as np

from literate_rl.runs.runs import stored_runs

runaway = stored_runs("dqn_runaway")
colours = dict(
    zip(runaway, (AGENT_COLOURS["DQN"], "C1", "C2", "C4", "C3"), strict=True)
)
fig, axis = plt.subplots(figsize=(4.6, 3.6), layout="tight")
for name, runs in runaway.items():
    mean_q = runs.watched["losses/q_value"].clip(0.1)
    lines = axis.plot(runs.steps / 1000, mean_q.T, color=colours[name], linewidth=1.2)
    lines[0].set_label(name)
axis.axhline(5, color="grey", linestyle="--")
axis.set(xlabel="thousand steps", ylabel="mean value", yscale="log", ylim=(0.1, 1e10))
_ = axis.legend(fontsize=9, loc="center right", bbox_to_anchor=(1, 0.43))

# %% tags=["hide-input"]
print("mean value at the end")
for name, runs in runaway.items():
    ends = runs.watched["losses/q_value"][:, -1]
    print(f"{ends.min():9.2g} to {ends.max():7.2g}  {name}")
print("last policies, 100 greedy episodes each")
for name, runs in runaway.items():
    print(" ".join(f"{x:3.0f}" for x in np.sort(runs.final)), "", name)

# %% [markdown]
# **Notice** that one measure is enough to hold the values. With twenty steps the values rise towards the
# bound and stay below it, with or without a target network. With one step and a target network they come
# to the bound itself, and one of five runs overshoots it, to 9. Without both they grow to twenty
# million, in all five runs, and nothing is learned: the last policies drop the pole after some ten
# steps. Without double DQN the values stay below the bound as well. It is meant against another error
# (below).
#
# ### Why twenty steps are enough
#
# In the toy of the first picture $n = 20$ is not enough with the agent's $\gamma = 0.99$: there
# $2 \gamma^n < 1$ needs $n \ge 69$. Yet the agent's values stay. What differs can be measured. Raise
# all values of a batch a little, along the gradient. How far do the targets of the same batch move,
# when the values move by 1 on average? (The next values are taken from the network in training, also
# where an older copy makes the targets: the copy comes to the same place later.) In the toy the answer
# is $2 \gamma^n$. Call it the **feedback**; above 1 the targets run ahead of the values that chase them.
# (A study of divergence in deep Q-learning, {cite:t}`achiam2019`, asks this of each pair of steps.) The
# means of five runs:

# %% tags=["hide-input"]
moments = [int(np.argmax(runs.steps >= step)) for step in (0, 9_000, 30_000)]
watched = {
    name: [
        runs.watched[f"charts/{x}"].mean(0)[moments] for x in ("feedback", "discount")
    ]
    for name, runs in runaway.items()
}
print("feedback at 1,200, 9,600 and 30,000 steps")
for name, (moved, _) in watched.items():
    print("  ".join(f"{x:.2f}" for x in moved), "", name)
print("mean factor of the next value in the targets")
for name, (_, factor) in watched.items():
    print("  ".join(f"{x:.2f}" for x in factor), "", name)

# %% [markdown]
# **Notice** where the feedback stands. With twenty steps it is 0.2 at first and never above 0.8. With
# one step and a slow target network it stays just below 1. Without that network it passes 1 in the
# first 3,000 steps, and stays above.
#
# Two things differ from the toy. In the four agents whose values stay, a step along the gradient raises
# a state and the state that it led to by nearly the same amount, not the second twice as far: at these
# three moments the feedback is within 5 percent of the factor of the next value, the second table. In
# the fifth it is a fifth larger at 9,600 steps, 1.11 against 0.92. There the next state rises further
# than the state itself, as in the toy, though not twice as far. And episodes end. At first most windows
# of twenty steps end in a fall, after which no value follows, so their targets are rewards alone. In the
# toy no episode ends.

# %% tags=["claims"]
values = {name: runs.watched["losses/q_value"] for name, runs in runaway.items()}
feedback = {
    name: runs.watched["charts/feedback"].mean(0) for name, runs in runaway.items()
}
diverged = runaway["n = 1, no target network"]
assert {len(x) for x in values.values()} == {len(diverged.final)} == {5}, "five runs"
for name in ("DQN", "not double", "no target network"):
    assert 2.5 < values[name][:, -1].min() < values[name].max() < 5, "they stay below"
    assert feedback[name][0] < 0.25, "0.2 at first"
    assert feedback[name].max() < 0.8, "never above 0.8"
highest = np.sort(values["n = 1"].max(1))
assert 4 < highest[0] < highest[3] < 6, "they come to the bound"
assert 8.5 < highest[4] < 9.5, "one overshoots it"
ends = values["n = 1, no target network"][:, -1]
assert 1.7e7 < ends.min() < ends.max() < 2.3e7, "twenty million"
assert diverged.final.max() < 15, "after some ten steps"
assert ((feedback["n = 1"] > 0.93) & (feedback["n = 1"] < 1)).all(), "just below 1"
chase = feedback["n = 1, no target network"]
assert chase[0] < 1 < chase[diverged.steps > 3_000].min(), "it passes 1"
assert list(diverged.steps[moments]) == [1_200, 9_600, 30_000]
for name, (moved, factor) in watched.items():
    if name != "n = 1, no target network":
        assert (abs(moved / factor - 1) < 0.05).all(), "within 5 percent"
moved, factor = watched["n = 1, no target network"]
assert (moved / factor)[1:].min() > 1.1, "the next state rises further"
assert [round(x[1], 2) for x in (moved, factor)] == [1.11, 0.92]
assert 1.15 < moved[1] / factor[1] < 1.25, "a fifth larger"
assert watched["DQN"][1][0] / 0.99**20 < 0.4, "most windows end in a fall"
assert min(n for n in range(1, 99) if 2 * 0.99**n < 1) == 69, "69 steps"

# %% [markdown]
# ## What it buys
#
# Here are ten agents that learn CartPole with both measures, and with the others of this chapter.
# ({doc}`rainbow_evidence` takes each of them away.)

# %% tags=["hide-input"] mystnb={"image": {"alt": "Ten thin curves and their mean over 50,000 steps of CartPole. They rise from 20. Six of them reach 500 in the first half, the lowest stays below 400"}}
runs = stored_runs("dqn_cartpole")["DQN"]
fig, axis = plt.subplots(figsize=(4.6, 2.8))
steps = runs.steps / 1000
colour = AGENT_COLOURS["DQN"]
axis.plot(steps, runs.curves.T, color=colour, alpha=0.35, linewidth=0.8)
axis.plot(steps, runs.curves.mean(0), color=colour, linewidth=2.5)
axis.set(xlabel="thousand steps", ylabel="return while training", ylim=(0, 520))
fig.tight_layout()
final = np.sort(runs.final)
print("100 greedy episodes of the last policy:", *(f"{x:.0f}" for x in final))

# %% [markdown]
# Each thin line is a run, the thick one their mean. **Notice** that six of ten runs touch 500 in
# the first half and one later, that two get beyond 475 and fall back, and that one never gets beyond 400.
# The printed returns are those of the *last* policies, not of the best of many: seven of ten end at 475
# or more. Our goal was eight.

# %% tags=["claims"]
assert len(final) == 10
assert (final >= 475).sum() == 7, "seven of ten end at 475 or more"
early, ever = runs.curves[:, : len(steps) // 2].max(1), runs.curves.max(1)
assert ((early > 499).sum(), (ever > 499).sum()) == (6, 7), "one later"
back = (ever > 475) & (ever < 499)
assert back.sum() == 2
assert (runs.final[back] < 415).all(), "two fall back"
assert (ever < 400).sum() == 1, "one never gets beyond 400"

# %% [markdown]
# ## DQN on one page
#
# Here is the whole agent. It runs from top to bottom, for any environment with vectors as
# observations and a list of actions. From earlier chapters it takes the collector and the buffer.
# The page trains it for 5,000 steps; `literate-rl copy dqn > my_dqn.py` gives you the same program
# as a file, which trains for 50,000. The rest of the chapter takes it apart, and {doc}`loop` puts it
# together again for any agent that learns from what it remembers.

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
# And the whole of its 50,000 steps, ten seeds (`python -m benchmarks.programs dqn`)? Here is the mean of the
# last twenty episodes of each, in which one action in twenty is still random:

# %% tags=["hide-input"]
ten = stored_runs("program_dqn")["dqn"]
print(*(f"{x:.0f}" for x in np.sort(ten.final)))

# %% [markdown]
# Eight of ten end above 450; two fail. A run takes about 40 seconds of processor time. Of the ten agents
# above, seven end above 450. What differs: their networks are dueling, their gradients are
# clipped, their share of random actions falls over 10,000 steps, not 5,000, this share and the learning
# rate move once in 1,000 steps, and their environments are reset after every 10,000.

# %% tags=["claims"]
assert len(ten.final) == 10
assert (ten.final > 450).sum() == 8, "eight of ten"
assert (runs.final > 450).sum() == 7, "seven of those above"
assert (ten.final < 300).sum() == 2, "two fail"
assert 35 < np.median(ten.cpu_seconds) < 45, "about 40 seconds"

# %% [markdown]
# ## Values that choose
#
# So far $Q(s, a)$ belonged to a policy, which chose all later actions ({doc}`agents`). Here it
# belongs to the best policy: it is the discounted return that the action earns on average if the
# agent acts as well as possible from then on. Acting well means taking the best action next time.
# So the true values satisfy the Bellman equation
# $Q(s, a) = \mathbb{E}\,[\, r + \gamma \max_{a'} Q(s', a') \,]$.
#
# Nothing in this equation asks which policy took the action. That is what makes old steps useful:
# **Q-learning** {cite:p}`watkins1989`, which moves $Q$ towards the right-hand side, is off-policy
# without any correction, as long as a target looks one step ahead. With a deep network for $Q$, a
# memory to replay and a target network it is the deep Q-network, **DQN** {cite:p}`mnih2015`.
#
# If the agent always took the action of the largest value, it might never learn what the others
# are worth. So with a small probability $\varepsilon$ it takes a random one. Such a policy is
# **ε-greedy**.
#
# How much chance is good? Below, Q-learning fills a table, without a network and without a memory. The
# maze has a prize of 1 near the start, and one of 10 nine steps away. One action in ten is random, and a
# value moves by the share $\alpha$ of the way to its target. Press Train. The ring walks by the best
# actions of the table as it is now, and soon takes the small prize. Which slider sends it to the large
# one? Guess, move that slider, press Reset and Train.

# %% tags=["hide-input"]
from literate_rl.book.train_here import train_maze

train_maze()

# %% [markdown]
# **Notice** that the two plots disagree. With $\varepsilon = 1$ every action is random and the return
# wavers around 2, yet in ten of ten runs the best actions end up on the shortest way to the prize of 10. With
# 0, 0.1 or 0.3 they lead to the small prize, in ten of ten runs: the agent hardly ever gets away
# from it. The policy that is learned is not the one that acts. That is what off-policy means. An agent
# that should earn something while it learns cannot act at random for ever, so in DQN $\varepsilon$ begins at
# 1 and falls.
#
# The other sliders. With $\gamma = 0.5$ and $\varepsilon = 1$ the ring takes the small prize again, and
# now it is right: at the start the prize of 10 is worth $10 \cdot 0.5^8 \approx 0.04$, and the other one
# 0.5. Before, it did not know the large prize; now it does not care. With $\alpha = 0.1$ and
# $\varepsilon = 1$, 6,000 steps are too few. And with all three at 1 every way is as good as the
# shortest, and the ring never arrives.

# %% tags=["claims"]
from literate_rl.book.train_here import MAZE, MAZE_SLIDERS, learn_maze, walk


def learned(step_size, exploration, discount):
    """Return what ten seeds have learned."""
    return [learn_maze(step_size, exploration, discount, seed) for seed in range(1, 11)]


at_random = learned(0.5, 1, 0.9)
assert {walk(x.table, limit=9) for x in at_random} == {10}, "ten of ten, in nine steps"
assert {walk(x.table, limit=8) for x in at_random} == {0}, "the shortest way"
assert 1.5 < np.mean([x.run[-1][1] for x in at_random]) < 2.5, "near 2"
for turned, prize, words in (
    ((0.5, 0, 0.9), 1, "the small prize"),
    ((0.5, 0.1, 0.9), 1, "the small prize"),
    ((0.5, 0.3, 0.9), 1, "the small prize"),
    ((0.5, 1, 0.5), 1, "it does not care"),
    ((0.1, 1, 0.9), 1, "too few steps"),
    ((1, 1, 1), 0, "it never arrives"),
):
    assert {walk(x.table) for x in learned(*turned)} == {prize}, words
assert round(10 * 0.5**8, 2) == 0.04
cares_not = learned(0.5, 1, 0.5)[0].table[MAZE.start]
assert abs(max(cares_not) - 0.5) < 1e-6, "the other one 0.5"
assert at_random[0].run[-1][0] == 6_000, "so many steps"
assert MAZE_SLIDERS["exploration ε"][1] == 0.1, "one action in ten"

# %% [markdown]
# Most programs choose between two actions, as the one above. Here it is a noise $\eta$ on the
# values, so that the same policy is greedy without noise, and its randomness comes from outside, as
# for all policies of this book ({doc}`policies`). Let $c$ be a coin (a Bernoulli variable) that is 1
# with probability $\varepsilon$, and let each of the $N$ actions draw a number $u_j$ uniformly
# between 0 and 1 (not a priority, as in {doc}`replay`):
#
# $$
# a = \operatorname*{argmax}_j \; (Q_j + \eta_j) , \qquad \eta_j = c \cdot 10^{30} \, u_j .
# $$ (epsilon-noise)
#
# Beside numbers of this size no value counts: if $c = 1$, the largest $u_j$ wins, and all actions
# are equally likely. If $c = 0$, there is no noise, and the policy is greedy. Each environment has
# its own coin at each step: with one coin for all, they would act at random together or not at all
# ({doc}`/docs/errata`). `evaluate` says how likely an action is, for learners that ask, such as the
# expected SARSA of {doc}`loop`.


# %% tags=["export"]
# The smallest numbers of a race are near 10²³. Added to them in float32, a value below
# 10¹⁵ is lost.
BESIDE_ALL_VALUES = 1e30


class EpsilonGreedy:
    """The action of the largest value, or now and then a random one; rows are values.

    Args:
        num_actions: Number of actions N.
        start: What the environment calls the first action.

    Attributes:
        epsilon: Probability of a random action, one drawn uniformly: one number, or one
            for each environment.
    """

    def __init__(self, num_actions: int, start: int = 0) -> None:
        self.num_actions, self.start = num_actions, start
        self.epsilon: float | Tensor = 0.0

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""
        shape = num_steps, num_envs, self.num_actions
        # One coin for each environment and each step, and a race of all actions.
        explore = torch.rand(shape[:2], generator=generator) < self.epsilon
        race = BESIDE_ALL_VALUES * torch.rand(shape, generator=generator)
        # Both together are {eq}`epsilon-noise`. It is finite, so that an action whose
        # value is minus infinity never wins.
        return explore.unsqueeze(-1) * race

    def legal(self, row: Tensor, mask: Tensor) -> Tensor:
        """Return rows that leave out what is illegal."""
        return legal(row, mask)

    @checked
    def choose(
        self, row: Float[Tensor, "*B N"], noise: Float[Tensor, "*B N"] | float
    ) -> Int[Tensor, "*B"]:
        """Return the actions that follow from values and noise."""
        return (row + noise).argmax(-1)

    @checked
    def evaluate(
        self, row: Float[Tensor, "*B N"], action: Int[Tensor, "*B"]
    ) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
        """Return log-probabilities and entropies."""
        # What is illegal has the lowest number there is and is not drawn: {doc}`masks`.
        drawn = row > torch.finfo(row.dtype).min
        others = drawn.sum(-1) - 1
        # A random draw may hit the best action too.
        each = torch.as_tensor(self.epsilon).to(row) / (others + 1)
        best = 1 - others * each
        prob = torch.where(row.argmax(-1) == action, best, each * chosen(drawn, action))
        entropy = -torch.xlogy(best, best) - others * torch.xlogy(each, each)
        return prob.log(), entropy

    def to_env(self, action: Tensor) -> NDArray[np.int64]:
        """Return the actions as vector environments take them."""
        names: NDArray[np.int64] = action.numpy() + self.start
        return names


# %% [markdown]
# ## Targets
#
# The values $Q_\theta$ come from a network with weights $\theta$. The target network has older
# weights $\bar\theta$. The target of a remembered step is the reward plus what the next state is
# worth to the target network, discounted:
#
# $$
# y = r + \gamma \max_{a'} Q_{\bar\theta}(s', a') .
# $$ (q-target)
#
# The buffer returns windows of $n$ steps ({doc}`windows`). Then $r$ is the discounted sum of
# their rewards, $s'$ is where the last one led, and $\gamma$ becomes the window's `discount`:
# $\gamma^m$ with the true number $m \le n$ of steps, or 0 if the episode terminated there.
#
# Why $n > 1$, if the later actions of a window came from older policies? Their rewards do make the
# target somewhat wrong. But the guess counts less, and news of a reward travels $n$ steps at once.
#
# In the signatures of targets and errors, `N` is the number of samples in a batch, and `A` that
# of actions.
#
# `td_target` of {doc}`loop` adds the reward and the discounted value, and nothing where the episode
# has ended.


# %% tags=["export"]
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
# A maximum has a flaw. Suppose that all actions are worth the same, and that each guess is off by
# some noise. Then the largest guess belongs to the luckiest action, and it is too high (the
# *overestimation*, or maximisation bias). **Double Q-learning** {cite:p}`vanhasselt2010` keeps two
# tables of values: one chooses the action, the other one evaluates it. An action that is lucky in one
# need not be lucky in the other. **Double DQN** {cite:p}`vanhasselt2016` takes the two networks that
# are there anyway. The one in training chooses, the target network evaluates:
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
# How large is the error? In this test every action is worth 0, every guess has a random error of
# standard deviation 1, and a second network has errors of its own.

# %%
import torch

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
# high by up to $1 / (1 - \gamma) = 100$.
#
# Here a second network removes the error. In double DQN it removes only a part, because the two
# networks are an old and a new copy of one, so their errors are correlated.

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
# In many states the choice of the action matters little. A **dueling** network {cite:p}`wang2016`
# has separate outputs for how good the state is, $V(s)$, and for how much better each action is
# than the others, $A(s, a)$. Every step then teaches $V$, whatever action was taken:
#
# $$
# Q(s, a) = V(s) + A(s, a) - \frac{1}{N} \sum_{a'} A(s, a') .
# $$ (dueling)
#
# Without the last term, any number could move from $V$ to all $A$ without changing $Q$. With it,
# the mean of a state's values over the actions *is* $V$, which is not the value of the best
# action. A mere `advantage.mean()` would be over the whole batch, and what a state is worth would
# depend on the others ({doc}`/docs/errata`).


# %% tags=["export"]
@checked
def dueling_q(
    value: Float[Tensor, "*B 1"], advantage: Float[Tensor, "*B N"]
) -> Float[Tensor, "*B N"]:
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
# What {eq}`dueling` does to $V$ and $A$ is a multiplication by a fixed matrix. So a dueling network is
# an ordinary chain of layers whose last one never learns (`dueling_layer`, folded).


# %% tags=["export", "hide-input"]
class QLayers(nn.Sequential):
    """Layers from observations to one value for each action."""

    def value(self, obs: Tensor) -> Tensor:
        """Return the value of the best action."""
        best: Tensor = self(obs).amax(-1)
        return best


def dueling_layer(num_actions: int) -> nn.Linear:
    """Return ``dueling_q`` as a layer, of a value and N advantages; it never learns."""
    layer = nn.Linear(num_actions + 1, num_actions, bias=False).requires_grad_(False)
    # Row a of {eq}`dueling`: 1 for the value, and for the advantages 1 at a, minus 1/N.
    layer.weight[:, 0] = 1.0
    layer.weight[:, 1:] = torch.eye(num_actions) - 1 / num_actions
    return layer


# %% [markdown]
# The network and ε-greedy together make a policy; `make_q_policy` (folded) builds one that fits the
# spaces of an environment. An image goes through an encoder ({doc}`encoders`), whose features need no
# more hidden layers: for a screen of Atari that is the network of the paper. What Atari asks for
# besides is work on the environment: four frames stacked as one observation, each action repeated
# for four frames (frame skip), rewards clipped to −1, 0 and 1, and the loss of a life told to the
# agent as a termination. {doc}`encoders` has such an agent.


# %% tags=["export", "hide-input"]
@checked
@remembered
def make_q_policy(
    observation_space: spaces.Space[Any] | dict[str, Any],
    action_space: spaces.Space[Any] | dict[str, Any],
    hidden: Count = 128,
    dueling: bool = False,
    *,
    normalize: bool = False,
    convolutions: Convolutions | None = None,
    encoder: OwnEncoder | None = None,
) -> Policy:
    """Build an ε-greedy policy for the spaces of one environment.

    Args:
        observation_space: A box of vectors, a picture, or a Dict or Tuple with pictures
            in it, which may come flat; or what ``plain_space`` made of it.
        action_space: A Discrete space, likewise.
        hidden: Width of the hidden layers. Behind the encoder of a picture, or one of
            your own, there are none.
        dueling: Whether the network separates a state's value from the advantages.
        normalize: Whether the policy normalises its observations; vectors only.
        convolutions: Those of each picture, as in ``make_encoder``.
        encoder: An encoder of your own, as in ``ShapedEncoder``.
    """
    discrete = as_discrete(action_space)
    num_actions = int(discrete.n)
    seen = as_space(observation_space)
    layers, size = entrance(seen, convolutions, encoder)
    # Two hidden layers, unless a picture has been through its own.
    if not (layers and isinstance(layers[0], PictureEncoder | ShapedEncoder)):
        layers += [nn.Linear(size, hidden), nn.ReLU()]
        layers += [nn.Linear(hidden, hidden), nn.ReLU()]
        size = hidden
    # The output: N values, or a value and N advantages.
    layers += [nn.Linear(size, num_actions + dueling)]
    if dueling:
        layers += [dueling_layer(num_actions)]
    actions = EpsilonGreedy(num_actions, int(discrete.start))
    first = normalizing(normalize, seen, encoder)
    return Policy(QLayers(*first, *layers), actions)


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
# ## Epsilon and target networks
#
# Two things change slowly. The first is the probability of a random action. An agent that knows
# nothing needs many of them to get anywhere. To one that knows the way they are mistakes. So the
# probability falls in a straight line from `epsilon_start` to `epsilon_end` over the first
# `epsilon_steps` steps and then stays there.


# %% tags=["export"]
@checked
@dataclass(frozen=True)
class ExploringConfig(OffPolicyConfig):
    """Settings of the agents that explore with random actions.

    Attributes:
        epsilon_start: Probability of a random action at first.
        epsilon_end: That probability after ``epsilon_steps`` steps.
        epsilon_steps: Steps in the environments until then.
    """

    epsilon_start: Fraction = 1.0
    epsilon_end: Fraction = 0.05
    epsilon_steps: Count = 10_000


class Exploring(Algorithm):
    """An algorithm whose policy takes random actions, fewer and fewer of them."""

    policy: Policy
    config: ExploringConfig

    def explore(self, step: int) -> None:
        """Set the probability of a random action."""
        config = self.config
        self.policy.actions.epsilon = linear_schedule(
            config.epsilon_start, config.epsilon_end, config.epsilon_steps, step
        )

    def metrics(self) -> dict[str, float]:
        """Return the probability of a random action."""
        return {"charts/epsilon": self.policy.actions.epsilon}


# %% [markdown]
# The second is the target network. After each update, or after every few, it moves a share $\tau$
# of the way towards the network in training (a *soft update*, or Polyak averaging),
#
# $$
# \bar\theta \;\leftarrow\; (1 - \tau)\, \bar\theta + \tau\, \theta .
# $$ (polyak)
#
# With $\tau = 1$ it becomes a copy. Done after every update, that leaves no target network.
# `TargetNetwork` of {doc}`loop` is such an older copy, because agents with critics have one too. This is
# how it moves:

# %%
from literate_rl.apps.programs import source

source(polyak_update)

# %% [markdown]
# ## The algorithm
#
# DQN says how wrong values are. For each sample `error` returns a loss, the TD error (the new priority)
# and the value (to be watched). `OffPolicy` is the while loop of the program; {doc}`loop` shows it. The
# targets come from networks in evaluation mode, so that a dropout layer of your own drops nothing there
# ({doc}`workshop/networks`).


# %% tags=["export"]
@checked
@dataclass(frozen=True)
class DQNConfig(ExploringConfig):
    """Settings of DQN: those of the loop and of exploration, and two of its own.

    Attributes:
        double: Whether the network in training chooses the next action.
        dueling: Whether ``train`` builds a network that separates a state's value from
            the advantages.
    """

    double: bool = True
    dueling: bool = False


class QLearning(Exploring):
    """Values of actions; an older copy evaluates what is best next.

    Args:
        policy: The policy to train; its rows are values.
        config: The settings.
    """

    config: DQNConfig

    def __init__(self, policy: Policy, config: DQNConfig) -> None:
        self.policy, self.config = policy, config
        self.target = TargetNetwork(policy)

    def error(self, batch: Batch, generator: torch.Generator) -> QError:
        """Compare values with their targets."""
        with torch.no_grad(), eval_mode(self.policy):
            next_q = self.target.network(batch.next_obs)
            # If the older copy chooses too, this is the target {eq}`q-target`.
            chooser = self.policy(batch.next_obs) if self.config.double else next_q
            # Where not everything is legal next, {eq}`masked-bootstrap`.
            chooser = self.policy.legal(chooser, batch.next_mask)
            target = double_q_target(batch.reward, batch.discount, next_q, chooser)
        # The current value of the action that was taken.
        row = self.policy(batch.obs)
        q = row.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        # A parabola near zero, straight lines further out: {eq}`huber`.
        loss = smooth_l1_loss(q, target, reduction="none")
        value = q.detach()
        return QError(loss, target - value, value)


def DQN(  # noqa: N802 (the field's name)
    policy: Policy, envs: Envs, config: DQNConfig, **forms: Any
) -> OffPolicy:
    """Return a learner of values.

    Args:
        policy: The policy to train, on any device; its rows are values.
        envs: A vector environment with ``config.num_envs`` copies.
        config: The settings.
        forms: Faster forms, as ``OffPolicy`` takes them.
    """
    return OffPolicy(QLearning(policy, config), envs, config, **forms)


# %% [markdown]
# `DQN` does what the program at the top does. The folded cell runs the program for a hundred steps
# beyond its first update, keeps the batches that it draws, and gives `DQN` the same batches.

# %% tags=["claims"]
from unittest.mock import patch

from literate_rl.apps.programs import run_program


class Recorded(ReplayBuffer):
    """A buffer that keeps what was drawn from it."""

    def sample(self, *settings):
        batches.append(super().sample(*settings))
        return batches[-1]


batches = []
with patch("literate_rl.data.replay.ReplayBuffer", Recorded):
    made = run_program("dqn", total_steps=1100)
torch.manual_seed(1)
envs = make_envs("CartPole-v1", 4)
policy = make_q_policy(envs.single_observation_space, envs.single_action_space)
names = ("gamma", "tau", "learning_rate")
config = DQNConfig(
    num_steps=made["n"],
    reward_scale=made["scale"],
    max_grad_norm=math.inf,
    **{name: made[name] for name in names},
)
learner = DQN(policy, envs, config)
start = copy.deepcopy(policy)
for number, batch in enumerate(batches):
    # Two updates after each round of four steps; the learning rate falls.
    rate = config.learning_rate * (1 - (1000 + 4 * (number // 2)) / 1100)
    learner.optimizer.param_groups[0]["lr"] = rate
    scaled = batch._replace(reward=made["scale"] * batch.reward)
    learner.sample = lambda scaled=scaled: scaled
    learner.learn()
assert len(batches) == 50, "fifty updates"
pairs = zip(made["network"].parameters(), policy.parameters(), strict=True)
assert all(torch.allclose(x, y, atol=1e-5) for x, y in pairs), "the same weights"
pairs = zip(start.parameters(), policy.parameters(), strict=True)
assert not any(torch.allclose(x, y, atol=1e-4) for x, y in pairs), "they have moved"

# %% [markdown]
# ## Settings
#
# With `priority_exponent` above 0 the memory prefers surprising steps ({doc}`replay`); `train`
# ({doc}`workshop/training`) knows DQN with `priority_exponent=0.6` as DQNPer.
#
# The settings for CartPole were chosen in a study on other seeds than those of the figures
# ({doc}`/docs/results`). That each of them is needed we cannot show: {doc}`rainbow_evidence` tries the
# switches one by one, and sees no difference for $n$ and for double DQN.


# %% tags=["export"]
# Settings with which the agent has learned, by environment. For what an entry leaves
# out, the default holds.
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "total_steps": 50_000,
        "dueling": True,
        "num_steps": 20,
        "learning_rate": 1e-3,
        "anneal": True,
        "train_interval": 2,
        "tau": 0.02,
        "reward_scale": 0.05,
    },
}


def dqn_settings(env: str) -> DQNConfig:
    """Return settings for an environment: its own if we know some, else the defaults.

    Args:
        env: Id of the environment.
    """
    return DQNConfig(**SETTINGS.get(env, {}))


# %% [markdown]
# What `train` knows of it, with even and with preferred replay, in two rows ({doc}`workshop/rows`):

# %% tags=["export", "hide-input"]
ROW = register(
    Row(
        "DQN",
        "a value for each action, from memory",
        LISTED,
        DQNConfig,
        by_settings(make_q_policy),
        DQN,
        settings=dqn_settings,
        contract="dqn",
        forms=("act", "error"),
    )
)
# The exponent of prioritised replay. Source: Schaul et al. 2016, section 4.
ROW_PER = register(
    replace(
        ROW,
        name="DQNPer",
        purpose="DQN, errors are replayed more often",
        settings=lambda env: replace(dqn_settings(env), priority_exponent=0.6),
        chapter="replay",
    )
)

# %% [markdown]
# ## Traps
#
# ### Trap: the unit of an interval
#
# "Renew the copy every 500": 500 what? Steps of one environment, of all of them, calls of `step`,
# or updates? CleanRL once [renewed it](https://github.com/vwxyzjn/cleanrl/issues/322) only at
# steps that also had an update. Stable-Baselines3 once
# [divided](https://github.com/DLR-RM/stable-baselines3/issues/1373) its interval by the number of
# environments and saved the quotient, so each load divided again.

# %%
both = [step for step in range(1, 20_000) if step % 10 == 0 and step % 501 == 0]
print("an update every 10 steps, a copy every 501: at", *both)
interval, after_loads = 10_000, []
for _ in range(4):
    interval //= 4  # four environments
    after_loads.append(interval)
print("asked for 10000, four environments, after 0, 1, 2, 3 loads:", *after_loads)

# %% [markdown]
# The first copies every 5010 steps, not every 501. Both libraries have fixed this. Here
# `train_interval` counts steps of all environments, and `target_interval` counts updates.

# %% tags=["claims"]
assert both == [5010, 10_020, 15_030], "every 5010"
assert after_loads == [2500, 625, 156, 39], "each load divides again"

# %% [markdown]
# ## What well-known implementations do
#
# | choice | this chapter | [CleanRL](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/dqn.py#L160-L219) | [Stable-Baselines3](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/dqn/dqn.py#L170-L231) | [Tianshou](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/algorithm/modelfree/dqn.py#L290-L410) | [Dopamine](https://github.com/google/dopamine/blob/5873f5494ee0c2d7c016d0ab2ad530354fec59d0/dopamine/jax/agents/dqn/dqn_agent.py#L110-L200) | [Machin](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/dqn.py#L277-L470) |
# |---|---|---|---|---|---|---|
# | loss | Huber | [square](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/dqn.py#L201) | [Huber](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/dqn/dqn.py#L217) | [square, or Huber](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/algorithm/modelfree/dqn.py#L390-L399) | [square, or Huber](https://github.com/google/dopamine/blob/5873f5494ee0c2d7c016d0ab2ad530354fec59d0/dopamine/jax/agents/dqn/dqn_agent.py#L135-L137) | any criterion |
# | double | by default | no | no | [by default](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/algorithm/modelfree/dqn.py#L308) | no | [by default](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/dqn.py#L50) |
# | target network | each update, by $\tau$; or a copy | [a copy, each 500 steps](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/dqn.py#L215-L219) | [a copy, each 10,000 steps](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/dqn/dqn.py#L176-L180) | [a copy, counted in updates](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/algorithm/modelfree/dqn.py#L283) | [a copy, each 8000 steps](https://github.com/google/dopamine/blob/5873f5494ee0c2d7c016d0ab2ad530354fec59d0/dopamine/jax/agents/dqn/dqn_agent.py#L270) | [each update, by 0.005](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/dqn.py#L42) |
# | coins | one each | one environment | [one for all](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/dqn/dqn.py#L250) | [one each](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/algorithm/modelfree/dqn.py#L163) | one environment | [one for the batch](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/dqn.py#L282-L283) |
# | ε falls | in a straight line | [in a straight line](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/dqn.py#L106-L108) | in a straight line | as the user sets it | [in a straight line](https://github.com/google/dopamine/blob/5873f5494ee0c2d7c016d0ab2ad530354fec59d0/dopamine/jax/agents/dqn/dqn_agent.py#L171) | [by a factor at each action](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/dqn.py#L285-L286) |
#
# We read the code at the linked commits.

# %% [markdown]
# ## When to use it
#
# DQN learns from each step many times, so it needs fewer steps than PPO and more computation for
# each. On CartPole its runs first touch 475 after 16,000 steps (the median of ten runs), those of PPO
# after 26,000, but 50,000 steps take it eleven times as much processor time. So prefer it where steps
# are expensive and actions can be listed. Begin without priorities: {doc}`replay` says where they paid.
#
# - **Use it for**: actions that can be listed, steps that cost more than updates
# - **Rather than**: {doc}`ppo`, which is faster by the clock where steps are cheap
# - **Costs**: about 16,000 steps until CartPole first reaches 475; 50,000 steps take 36 CPU seconds
# - **First settings**: `num_steps=20`, `tau=0.02, epsilon_steps=10_000` (a fifth of the run), and a
#   `reward_scale` that keeps values at a few units (0.05 for CartPole)
# - **Decided by**: one switch at a time in {doc}`rainbow_evidence`

# %% tags=["claims"]
from literate_rl.runs.evaluation import paired_difference

above = dqn_settings("CartPole-v1")
assert above.dueling, "in which the program differs"
assert above.max_grad_norm < np.inf
assert above.epsilon_steps == 10_000 == above.total_steps // 5
assert (above.num_steps, above.tau, above.reward_scale) == (20, 0.02, 0.05)
assert (above.iteration_steps, above.checkpoint_interval) == (1_000, 10)
switches = stored_runs("dqn_switches")
for name in ("three steps, n = 3", "not double"):
    assert (switches[name].final == 500).all(), "all five runs end at 500"
    gap = paired_difference(switches[name].area, switches["all parts"].area)
    assert gap.low < 0 < gap.high, "no difference is seen while training"
gap = paired_difference(switches["one step, n = 1"].area, switches["all parts"].area)
assert gap.high < -100, "far more slowly"
single = runaway["not double"]
assert (single.final < 320).sum() == 2, "two of five"
assert runaway["DQN"].final.min() > 450, "none of those with it"
gap = paired_difference(single.area, runaway["DQN"].area)
assert gap.low < 0 < gap.high, "no difference here either"
price = np.median(runaway["DQN"].cpu_seconds) / np.median(single.cpu_seconds)
assert 1.07 < price < 1.13, "about a tenth of the time"


def first_at_475(runs):
    """Return the median of the steps at which runs first reach 475."""
    there = runs.curves >= 475
    return np.median(np.where(there.any(1), runs.steps[there.argmax(1)], np.inf))


ppo = stored_runs("cartpole")["PPO"]
assert first_at_475(runs) == 16_000
assert first_at_475(ppo) == 26_000
assert ppo.steps[-1] == runs.steps[-1] == 50_000
assert round(np.median(runs.cpu_seconds)) == 36
price = np.median(runs.cpu_seconds) / np.median(ppo.cpu_seconds)
assert round(price) == 11, "eleven times"

# %% [markdown]
# ## Summary
#
# - A value learned from its own guess can diverge when states share weights and learning is
#   off-policy: when targets move further than the values that chase them.
# - Two things help. Targets that look many steps ahead move less. A target network turns the chase into
#   a series of regressions: in the toy that only slows it.
# - On CartPole one of the two is enough to hold the values. Without both they grow to millions, and
#   nothing is learned. To learn fast take the long targets: with $n = 1$ and a target network the agent
#   learns far more slowly ({doc}`rainbow_evidence`).
# - The maximum of noisy guesses is too high. In double DQN another network evaluates.
# - A dueling network ends in a fixed layer: a state's value plus advantages of mean zero.
# - ε-greedy is noise on the values, with one coin for each environment.
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
from dataclasses import replace
from functools import partial

from literate_rl.book.exercises import grade
from literate_rl.apps.training import make_learner


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
# ### Exercise 3: train
#
# How far should a target look? `train(n, seed)` trains this chapter's agent for 8,000 steps, in
# some five seconds, and returns the mean return of the last 2,000. Guess first: which of $n = 1$, 3
# and 20 stay below 100? Then train two seeds of each.


# %%
def train(n, seed):
    """Return the mean return from step 6,000 to step 8,000."""
    config = replace(dqn_settings("CartPole-v1"), num_steps=n, seed=seed)
    learner = make_learner("dqn", "CartPole-v1", config, {})
    returns = [learner.iterate()["charts/episodic_return"] for _ in range(8)]
    return np.mean(returns[-2:])


def answer():
    """Return a set of numbers of steps, such as {1, 3, 20}."""
    return ...


# %% tags=["hide-input"]
def found(answer):
    """Return the answer as a sorted list."""
    given = answer()
    return given if given is ... else sorted(given)


grade(partial(found, answer), lambda: [1], ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    # With n = 1 news of a fall goes back one step at a time, and at each step it waits for
    # the older copy, which follows by 0.02 an update. Three steps are enough to pass 100.
    # (These are stored runs, with the settings and seeds of `train`.)
    switches = stored_runs("dqn_switches")
    last = {20: switches["all parts"].curves, 1: switches["one step, n = 1"].curves}
    last[3] = switches["three steps, n = 3"].curves
    return {n for n, curves in last.items() if (curves[:2, 3] < 100).all()}


grade(partial(found, answer), lambda: [1], ())

# %% tags=["claims"]
assert runs.steps[3] == 8000
three = stored_runs("dqn_switches")["three steps, n = 3"].curves[:, 3]
assert three.min() > 100, "three steps are enough"

# %% [markdown]
# ### Exercise 4: from nothing
#
# Write DQN's learning step yourself, without `q_target`, `polyak_update` or a look at the program:
# targets of double DQN, the Huber loss, one step of the optimiser, and the older network that follows
# by a share `tau`. `network` and `older` turn observations into one value for each action. The check
# lets your step and the package's learn from the same three batches and compares all weights.


# %%
def answer(network, older, optimizer, batch, tau):
    """Change `network` by one step of the optimiser, and let `older` follow."""
    return ...


# %% tags=["hide-input"]
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
# DQN is from {cite:t}`mnih2015`, Q-learning from {cite:t}`watkins1989`, double Q-learning from
# {cite:t}`vanhasselt2010`, double DQN from {cite:t}`vanhasselt2016`, dueling from {cite:t}`wang2016`.
# {cite:t}`sutton2018` treat the deadly triad in chapter 11; {cite:t}`tsitsiklis1997` show when it does
# no harm, and {cite:t}`achiam2019` what decides in a deep network.
