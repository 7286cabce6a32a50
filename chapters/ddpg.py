# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # DDPG
#
# **How can an actor follow the gradient of its critic through an action?** After this chapter you
# can train an agent with continuous actions and no probabilities, write down the gradient that it
# follows, and say where that leads if the critic is wrong. It takes about 22 minutes, reading,
# without exercises. You need the target network of {doc}`dqn` and the buffer of {doc}`replay`.

# %% [markdown]
# ## A critic is a landscape
#
# DQN computes the values of all $N$ actions and takes the best. If an action is a force between
# $-1$ and $1$, there are infinitely many. But let the **critic** be a network that takes the
# action as an *input*. Then in each state its values form a landscape over the actions, with a slope,
# and one can walk uphill.
#
# The dashed line below is what the actions are really worth in one state. The solid line is what
# a critic believes: it has a **ridge** at actions that it has hardly seen.
# The dots are the steps of an actor, which walks uphill and knows only the solid line. Move the
# sliders.

# %% tags=["hide-input"]
import math

from literate_rl.book.pictures import Axis, Mark, dial, plot

places = [-1 + 0.02 * i for i in range(101)]


def truth(action):
    return 0.5 - 0.5 * (action - 0.5) ** 2


def believed(action, ridge):
    return truth(action) + ridge * math.exp(-(((action + 0.6) / 0.12) ** 2) / 2)


def slope(action, ridge):
    """Return the derivative of what is believed with respect to the action."""
    bump = believed(action, ridge) - truth(action)
    return -(action - 0.5) - (action + 0.6) / 0.12**2 * bump


def walk(start, steps, ridge):
    """Return the actor's action after each step uphill."""
    found = [start]
    for _ in range(steps):
        uphill = found[-1] + 0.02 * slope(found[-1], ridge)
        found.append(min(max(uphill, -1.0), 1.0))
    return found


def landscape(ridge, start, steps):
    way = walk(start, steps, ridge)
    here = way[-1]
    believe = [believed(x, ridge) for x in places]
    picture = plot(
        "An actor walks up a critic",
        "Two curves over the action. The true one has one hill at 0.5. The believed one "
        "has a second, narrow hill at -0.6. Dots show an actor that walks uphill.",
        Axis("action", -1.05, 1.05, ticks=(-1, -0.6, 0, 0.5, 1)),
        Axis("value", -0.7, 1.05, ticks=(0, 0.5, 1)),
        Mark("line dashed", places, [truth(x) for x in places], "quiet"),
        Mark("line", places, believe, "accent"),
        Mark("dots", way, [believed(x, ridge) for x in way], "second"),
        width=440,
    )
    promise, real = believed(here, ridge), truth(here)
    return [picture], (
        f"The actor stands at {here:.2f}. The critic promises {promise:.2f}, "
        f"the environment pays {real:.2f}.".replace("-", "−")
    )


dial(
    "A critic over one action, and an actor that walks uphill",
    landscape,
    {
        "height of the ridge": [0.0, 0.2, 0.4, 0.7, 1.0],
        "start": [-0.9, -0.6, -0.3, 0.0, 0.9],
        "steps": [0, 3, 10, 30, 100, 300],
    },
    start=(1.0, -0.9, 10),
)

# %% [markdown]
# **Notice** that the actor needs no list of actions, only a slope. Without a ridge it reaches the
# best action from anywhere. If it starts at $-0.9$ and the ridge has its full height, it gets
# stuck: the critic promises 0.90, and the environment pays $-0.09$.
#
# The actor is an *adversary* of its critic: it looks for the place where the critic promises
# most, and that is often where the critic is wrong. This is the **overestimation** of {doc}`dqn`
# again, with a maximum that is found by climbing.

# %% tags=["claims"]
for start in (-0.9, -0.6, -0.3, 0.0, 0.9):
    assert abs(walk(start, 300, 0.0)[-1] - 0.5) < 0.01, "from anywhere"
stuck = walk(-0.9, 300, 1.0)[-1]
assert abs(believed(stuck, 1.0) - 0.90) < 0.01, "what the critic promises"
assert abs(truth(stuck) + 0.09) < 0.005, "what the environment pays"

# %% [markdown]
# ## What it buys
#
# **DDPG** (deep deterministic policy gradient) {cite:p}`lillicrap2016` is an actor that walks up a critic,
# while the critic learns. Here are ten such agents, which learn to swing a pendulum up and to hold it
# there. A step costs the square of the angle from upright, plus a share for speed and torque: about 16 at
# most. An episode has 200 steps and starts at any angle, so even a good policy earns only about −150.
#
# The first panel has the returns while training. The second has what the critic promises, its mean value
# over some states that the policy visits, and what the agent then earns, the mean discounted return from
# these states on. Thick lines are medians, and the thin ones of the second panel the run that fails.

# %% tags=["hide-input"] mystnb={"image": {"alt": "First: returns of ten runs of DDPG over 10,000 steps of Pendulum, which fall from -1100 to -1500 and then rise to about -150. Second: four lines, what is promised and what is earned, each as a median and for the run that fails. At first the promises are far above, later the lines lie close together. At the end what the failing run earns falls by hundreds, and what its critic promises by little"}}
import matplotlib.pyplot as plt
import numpy as np

from literate_rl.book.pictures import AGENT_COLOURS
from literate_rl.runs.runs import stored_runs

found = stored_runs("ddpg_pendulum")["DDPG"]
promised, earned = (found.watched[name] for name in ("estimate", "earned"))
worst = found.final.argmin()
fig, axes = plt.subplots(1, 2, figsize=(7.6, 3))
steps, color = found.steps / 1000, AGENT_COLOURS["DDPG"]
axes[0].plot(steps, found.curves.T, color=color, alpha=0.3, linewidth=0.7)
axes[0].plot(steps, np.median(found.curves, 0), color=color, linewidth=2)
axes[0].set(ylabel="return while training")
for look, label, values in (("--", "promised", promised), ("-", "earned", earned)):
    axes[1].plot(
        steps, np.median(values, 0), look, color=color, linewidth=2, label=label
    )
    axes[1].plot(steps, values[worst], look, color=color, linewidth=0.8, alpha=0.7)
axes[1].set(ylabel="discounted sum of rewards")
axes[1].legend()
for axis in axes:
    axis.set_xlabel("thousand steps")
fig.tight_layout()

# %% [markdown]
# **Notice**:
#
# - All runs first get *worse*: for some 1,000 steps they earn about −1,500 an episode, where random
#   torques earn about −1,200. Then they learn. Nine of the ten last policies earn more than −200 without noise.
# - At first all critics promise far too much: an untrained critic says about 0, and a pendulum that
#   hangs down earns hundreds less. At the end they still promise too much, in every run.
# - The run that fails had learned like the others. Shortly before the end what it earns falls from
#   about −20 to −300, and what its critic promises only from −16 to −39.
#
# Such **relapses** are common: in five of the ten runs promise and earnings, once within 20 of each
# other, came to lie more than 50 apart. Each time *both* fell, and what was earned fell much further: the
# policy had got worse, and the critic had noticed only a part of it. Why the policy got worse was not
# measured.

# %% tags=["claims"]
import gymnasium as gym

pendulum = gym.make("Pendulum-v1").unwrapped
pendulum.reset()
pendulum.state = np.array([math.pi, 8.0])
assert round(-pendulum.step(np.array([2.0]))[1]) == 16, "at most"
assert -155 < np.median(found.final) < -140, "a good policy"
gaps = promised - earned
assert len(found.final) == 10
assert (found.final > -200).sum() == 9, "nine of ten"
assert -1600 < found.curves.mean(0)[2:4].min() < -1450, "first get worse"
assert gaps[:, 1].min() > 300, "far too much at first"
assert abs(promised[:, 1]).max() < 1, "an untrained critic says about 0"
assert earned[:, 1].max() < -300, "hundreds less"
assert (gaps[:, -1] > 0).all(), "too much in every run"
assert -26 < earned[worst, 22] < -14, "had learned like the others"
assert round(earned[worst, -1], -1) == -300
assert [round(promised[worst, k]) for k in (22, -1)] == [-16, -39]
onsets, falls = [], []
for run, gap in enumerate(gaps):
    apart = np.maximum.accumulate(gap < 20) & (gap > 50)
    for k in np.flatnonzero(apart[1:] & ~apart[:-1]) + 1:
        before = np.flatnonzero(gap[:k] < 20)[-1]
        onsets.append((run, k))
        falls.append([x[run, k] - x[run, before] for x in (promised, earned)])
of_promise, of_earnings = np.array(falls).T
assert len({run for run, _ in onsets}) == 5, "in five of the ten runs"
assert (of_promise < 0).all(), "both fell"
assert (of_earnings < 2.5 * of_promise).all(), "much further"
assert (gaps[:, -1] > 50).nonzero()[0].tolist() == [worst], "five of the six were over"

# %% [markdown]
# ## DDPG on one page
#
# Here is the whole agent. From earlier chapters it takes the collector and the buffer.

# %% tags=["program"] total_steps=10000
import copy

import torch
from torch import nn

from literate_rl.data.agents import Collector, make_envs
from literate_rl.data.replay import ReplayBuffer

torch.set_num_threads(1)  # the networks are too small to be shared out

env_id, seed, total_steps = "Pendulum-v1", 1, 5_000
random_steps, batch_size = 500, 128
learning_rate, gamma, tau, noise = 1e-3, 0.99, 0.005, 0.1


def network(inputs, outputs):
    """Build two hidden layers and an output layer."""
    first, second = nn.Linear(inputs, 64), nn.Linear(64, 64)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(64, outputs))


envs = make_envs(env_id, 1)
inputs, box = envs.single_observation_space.shape[0], envs.single_action_space
low, high = torch.from_numpy(box.low), torch.from_numpy(box.high)
middle, half, size = (low + high) / 2, (high - low) / 2, len(low)
torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
actor = nn.Sequential(network(inputs, size), nn.Tanh())  # from a state to -1..1
critic = network(inputs + size, 1)  # from a state and an action to a value
older_actor, older_critic = copy.deepcopy((actor, critic))
actor_optimizer = torch.optim.Adam(actor.parameters(), learning_rate)
critic_optimizer = torch.optim.Adam(critic.parameters(), learning_rate)


def value(critic, obs, action):
    """Return what a critic thinks of actions."""
    return critic(torch.cat([obs, action], -1)).squeeze(-1)


def act(obs):
    """Act at random at first, then as the actor does, with some noise."""
    if collector.step < random_steps:
        share = 2 * torch.rand(1, size, generator=generator) - 1
    else:
        share = actor(obs) + noise * torch.randn(1, size, generator=generator)
    return middle + half * share.clamp(-1.0, 1.0)


collector, buffer, episodes = Collector(envs), ReplayBuffer(total_steps), []
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1
while collector.step < total_steps:
    # 1. Act once. Everything is remembered.
    step = collector.collect(act, 1)
    buffer.push(step)
    ended = step.terminated | step.truncated
    episodes += [(collector.step, x) for x in step.episode_return[ended].tolist()]
    if episodes and collector.step % (total_steps // 5) == 0:
        last = [x for _, x in episodes[-20:]]
        print(f"step {collector.step:6d}: mean return {sum(last) / len(last):.0f}")
    if collector.step <= random_steps:
        continue
    batch = buffer.sample(batch_size, generator, gamma=gamma)

    # 2. The critic learns. Older copies of both networks value the next state.
    with torch.no_grad():
        next_action = middle + half * older_actor(batch.next_obs)
        next_value = value(older_critic, batch.next_obs, next_action)
        future = next_value.masked_fill(batch.discount == 0, 0.0)  # nothing, at an end
        target = batch.reward + batch.discount * future
    error = value(critic, batch.obs, batch.action) - target
    critic_optimizer.zero_grad()
    (0.5 * error.square().mean()).backward()
    critic_optimizer.step()

    # 3. The actor climbs what the critic thinks of its actions.
    own_action = middle + half * actor(batch.obs)
    actor_optimizer.zero_grad()
    (-value(critic, batch.obs, own_action).mean()).backward()
    actor_optimizer.step()

    # 4. The older copies follow slowly.
    with torch.no_grad():
        for old, new in ((older_actor, actor), (older_critic, critic)):
            for weight, goal in zip(old.parameters(), new.parameters(), strict=True):
                weight.lerp_(goal, tau)

# %% [markdown]
# **Notice** that the last five episodes pay hundreds more than the first five. Then look at step
# 3. Its loss is *minus* the critic's value, because an optimiser goes downhill, and only the
#    actor's optimiser takes a step. What `backward` leaves in the critic is cleared in step 2.
#
# The page trains for 5,000 steps, the file for 10,000. Of ten such runs all ten end above −200, the mean of
# the last twenty episodes, with the noise. A run takes about 20 seconds of processor time.

# %% tags=["claims"]
returns = [x for _, x in episodes]
assert np.mean(returns[-5:]) > np.mean(returns[:5]) + 400, "hundreds more"
ten = stored_runs("program_ddpg")["ddpg"]
assert len(ten.final) == 10
assert ten.final.min() > -200, "all ten"
assert 15 < np.median(ten.cpu_seconds) < 25, "about 20 seconds"

# %% [markdown]
# ## The gradient through the action
#
# The **actor** is a network with parameters $\phi$ that returns one action, $a = \mu_\phi(s)$.
# The critic $Q_\theta(s, a)$ estimates its value. The actor should maximise that value,
# averaged over the states of a batch,
#
# $$
# \hat J(\phi) = \frac{1}{B} \sum_{b} Q_\theta\bigl(s_b, \mu_\phi(s_b)\bigr) .
# $$ (actor-loss)
#
# By the chain rule its gradient has two factors. The critic says which way the *action* should
# move, and the actor says which way its *parameters* have to move for that:
#
# $$
# \nabla_\phi \hat J = \frac{1}{B} \sum_b \nabla_\phi \mu_\phi(s_b) \;
# \nabla_a Q_\theta(s_b, a) \big|_{a = \mu_\phi(s_b)} .
# $$ (policy-gradient-through-critic)
#
# Only the states come from the buffer; the actions are the actor's own. So steps of any age will do,
# without ratios of probabilities.
#
# But is this the gradient of what we want, the *return* $J(\phi)$? There is a theorem. Let $Q^\mu$
# hold the true values of the actor's own policy. Of course they depend on $\phi$ too: whoever acts
# differently from now on earns something else. And yet their derivative with respect to $\phi$ does
# not occur in the **deterministic policy gradient** {cite:p}`silver2014`:
#
# $$
# \nabla_\phi J = \mathbb E \Bigl[ \sum_t \gamma^t \; \nabla_\phi \mu_\phi(s_t) \;
# \nabla_a Q^\mu(s_t, a) \big|_{a = \mu_\phi(s_t)} \Bigr] .
# $$ (def-deterministic-policy-gradient)
#
# The reason is that $Q^\mu(s_t, a_t) = r_t + \gamma\, Q^\mu\bigl(s_{t+1}, \mu_\phi(s_{t+1})\bigr)$ on
# average. The value of the actor's action in $s_t$ changes because the action in $s_t$
# changes, which is the term above, and because the value in $s_{t+1}$ changes, which is the same
# question one step later, times $\gamma$. Step by step the whole sum unrolls.
#
# Two conditions stand in it: the slope is that of the *true* values, and the states are those that the
# actor of *today* visits, each weighted by $\gamma^t$. Let us see what they are worth, in a small task. A
# point on a line keeps nine tenths of its place and adds the action; a step costs the squares of its
# distance from 1 and of the action. Its actor has two weights.

# %%
weights = torch.tensor([-0.3, 0.5], dtype=torch.float64, requires_grad=True)
line, discount, length = torch.tensor([-0.5, 0.5], dtype=torch.float64), 0.9, 200


def play(weights, state, action=None):
    """Act from some states on; return all states and the discounted return."""
    states, total = [], 0.0
    for t in range(length):
        if t > 0 or action is None:
            action = weights[0] * state + weights[1]
        states.append(state)
        total = total - discount**t * ((state - 1) ** 2 + action**2)
        state = 0.9 * state + action
    return torch.stack(states), total


def by_the_theorem(weights, visitor):
    """Return the formula's gradient, in the states that some actor visits."""
    states = play(visitor, line)[0].detach()
    own = weights[0] * states + weights[1]
    action = own.detach().requires_grad_()
    # From each visited state this action and then the actor's: the slope of the return.
    (slope,) = torch.autograd.grad(
        play(weights.detach(), states, action)[1].sum(), action
    )
    share = discount ** torch.arange(length, dtype=torch.float64).unsqueeze(-1)
    return torch.autograd.grad((share * own * slope).sum(0).mean(), weights)[0]


(true,) = torch.autograd.grad(play(weights, line)[1].mean(), weights)
older = torch.tensor([-0.5, 0.0], dtype=torch.float64)
formula, stale = by_the_theorem(weights, weights), by_the_theorem(weights, older)
for name, gradient in (("return", true), ("theorem", formula), ("old states", stale)):
    cosine = torch.cosine_similarity(gradient, true, dim=0).item()
    print(f"{name:10s} ({gradient[0]:8.4f}, {gradient[1]:8.4f}), cosine {cosine:5.2f}")

# %% [markdown]
# **Notice** that the theorem gives the gradient of the return to all digits, although the values
# were held fixed. The third row has the right slopes in the wrong states: those that an *older*
# actor visits, who stays on the left of 1. There one should push to the right; the actor of today
# has gone past 1 and should push less. So the gradient points away from the true one.
#
# A buffer holds states of older actors, and all of them count alike, without $\gamma^t$. Nothing
# in DDPG corrects for that. Nor does anything guarantee that the critic's slope is the true one: the
# critic is trained to have the right *values*, at the actions that were taken.

# %% tags=["claims"]
assert torch.allclose(true, formula, rtol=1e-9), "to all digits"
assert torch.cosine_similarity(stale, true, dim=0) < -0.5, "points away"
ends_at = [play(x, line)[0][-1].mean().item() for x in (weights, older)]
assert ends_at[1] < 0.1 < 1.2 < ends_at[0], "left of 1, and past it"

# %% [markdown]
# ## Actions that are numbers
#
# A deterministic actor does not explore, so noise is added when it acts. The numbers of an action
# may have different units: 0.1 is five times the range of a thruster that takes 0 to 0.02, and next to
# nothing for a valve that takes 0 to 100. So the noise of each is a share $\sigma_a$ of half its range,
# $h = \tfrac12 (a_{\max} - a_{\min})$. With standard normal numbers $\eta$, and $\odot$ for the product
# element by element,
#
# $$
# a = \mu_\phi(s) + \sigma_a \, h \odot \eta .
# $$ (box-noise)
#
# An untrained network answers nearly alike everywhere, where the numbers that it sees are about as large as
# 1, and noise around one action would explore only a small part of the box. So the first 500 actions are
# drawn uniformly from the whole box.
#
# With its noise an action may lie outside the box. The program clips it before it acts. The package's
# `DDPG` ({doc}`learners/ddpg`) clips only what the environment gets and remembers the action as it
# was, so that its critic learns that there is nothing to gain beyond the edge. Both are right, because
# this agent never asks how likely an action was.
#
# ## What the critic learns
#
# The critic learns from its own guess, as in {doc}`dqn`. The maximum over all next actions cannot
# be computed here. But the actor is trained to find the best action, so its action takes the
# maximum's place. Both networks have older copies, marked by a bar, which follow them slowly:
#
# $$
# y = r + \gamma\, Q_{\bar\theta}\bigl(s', \mu_{\bar\phi}(s')\bigr) .
# $$ (ddpg-target)
#
# As in {doc}`dqn`, $\gamma$ becomes $\gamma^m$ in a window of $m$ steps, and 0 after a
# termination. A time limit is not a termination. The loss is half of the squared TD error
# $\delta = y - Q_\theta(s, a)$.
#
# ## When to use it
#
# DDPG is the smallest agent for numbers in a box, and the one to learn first. One of the ten runs of the
# picture fails at the end, and its noise is yours to choose. Try TD3 if you want one exact action, SAC if
# nobody should choose the noise.
#
# - **Use it for**: numbers in a box, where steps are dear and the agent should be simple
# - **Rather than**: {doc}`ppo`, which needs eight times the steps on the pendulum
# - **Costs**: about 4,000 steps to −300 on Pendulum; 20 CPU seconds for 10,000 steps
# - **First settings**: `noise=0.1`, `learning_rate=1e-3`, `tau=0.005`
# - **Decided by**: four agents on Pendulum in {doc}`control_evidence`


# %% tags=["claims"]
def learned(runs):
    """Return after how many steps the return exceeds −300, as the median."""
    return np.median(runs.steps[(runs.curves > -300).argmax(1)])


on_policy = stored_runs("pendulum")["PPO"]
assert round(learned(on_policy) / learned(found)) == 8, "an eighth of the steps"
assert 3900 < learned(found) < 4300
others = {}
for name in ("HDDPG", "TD3"):
    watched = stored_runs("ddpg_pendulum")[name].watched
    apart = watched["estimate"] - watched["earned"]
    relapses = np.maximum.accumulate(apart < 20, 1) & (apart > 50)
    others[name] = relapses.any(1).sum()
assert others == {"HDDPG": 4, "TD3": 3}, "as its successors do"

# %% [markdown]
# ## Summary
#
# - A critic that takes the action as an input has a slope over the actions, and the actor climbs it.
# - The actor learns from states alone, so steps of any age will do. For the gradient of the return
#   they would have to be its own.
# - In the target the actor's action takes the place of the maximum.
# - Nothing explores by itself: noise is added, on a scale of its own for each number.
# - The actor seeks out the critic's errors. On the pendulum DDPG promises more than it earns.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "The actor's step needs the gradient of the critic's value. While the actor takes its step, "
    "may the critic's weights move too, to raise the value?",
    [
        "yes, both want a higher value",
        "no, the critic would learn to promise more",
        "it makes no difference",
    ],
    right="no, the critic would learn to promise more",
    because="The critic must only learn from targets. If it climbed with the actor, it would "
    "simply praise whatever the actor does. So only the actor's optimiser takes a step.",
)

# %% [markdown]
# ### Exercise 2: find the bug
#
# An actor with a single weight $w$ acts with $\mu(s) = w s$. Its critic knows that the best action
# is $2 s$. The function `answer` gets $w$ and the states and actions of a batch, and should
# return the gradient {eq}`policy-gradient-through-critic`. As long as all actions in the batch
# are the actor's own, it does. Fix it.


# %%
def critic_slope(obs, action):
    """Return the derivative of the value, -(2 s - a)², with respect to the action."""
    return 2 * (2 * obs - action)


def answer(weight, obs, action):
    return (obs * critic_slope(obs, action)).mean()


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade


def climbed(weight, obs, action):
    """Let automatic differentiation go through the critic."""
    weight = weight.clone().requires_grad_()
    value = -((2 * obs - weight * obs) ** 2)
    return torch.autograd.grad(value.mean(), weight)[0]


def remembered(seed):
    """Return a weight, states, and actions of older actors."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand((), generator=generator), *torch.randn(2, 8, generator=generator)


grade(answer, climbed, *map(remembered, range(3)))


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(weight, obs, action):
    # The slope is needed where the actor stands now, not where an older one stood.
    return (obs * critic_slope(obs, weight * obs)).mean()


grade(answer, climbed, *map(remembered, range(3)))

# %% [markdown]
# ### Exercise 3: experiment
#
# The actor of the first picture starts at −0.9. How high must the ridge be to stop it? Guess
# first, then find the smallest height in steps of 0.01, with `walk(start, 300, ridge)`.


# %%
def answer():
    return ...


# %% tags=["hide-input"]
def smallest_ridge():
    heights = [k / 100 for k in range(101)]
    return next(x for x in heights if walk(-0.9, 300, x)[-1] < 0)


grade(answer, smallest_ridge, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    # Beyond the ridge the hill has a slope of about 1. The ridge is so narrow that even
    # one of this height falls more steeply. The actor sees slopes, not heights.
    return 0.2


grade(answer, smallest_ridge, ())

# %% tags=["claims"]
assert answer() == smallest_ridge() == 0.2
assert believed(-0.6, 0.2) < 0.1 < truth(0.5), "far below the top of the hill"

# %% [markdown]
# ## References
#
# The deterministic policy gradient is from {cite:t}`silver2014`, DDPG from
# {cite:t}`lillicrap2016`.
