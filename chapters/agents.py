# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Agents, episodes and time limits
#
# **What does an agent optimise, and what goes wrong at the end of an episode?** After this chapter
# you can say what a return, a value and an advantage are, and why two flags say how an episode
# ended. You also have the first form of a program that grows to PPO on the next four pages. It
# takes about 25 minutes to read, without exercises. You need Python and means.

# %% tags=["export", "hide-input"]
"""Returns: discounted sums of rewards, and what to do where an episode ends."""

from __future__ import annotations

import torch
from torch import Tensor

from literate_rl.ground.signatures import Bool, Float, Fraction, check_finite, checked

__all__ = ["discounted_returns"]

# %% [markdown]
# ## An agent and its environment

# %% tags=["hide-input"]
import os

from literate_rl.book.pictures import Axis, Mark, Picture, dial, plot, predict

# CartPole is drawn below, on no screen and without a greeting.
os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

picture = Picture(
    "Agent and environment",
    "Two boxes in a loop. The agent sends an action to the environment. The environment "
    "sends back an observation, a reward and two flags, terminated and truncated.",
)
agent = picture.box(80, 70, "agent\npolicy π", width=120, height=64)
environment = picture.box(360, 70, "environment\nstate s", width=140, height=64)
picture.arrow(agent.at(0.6, 0), environment.at(0.4, 0), "action", bend=28)
reply = "observation, reward,\nterminated? truncated?"
picture.arrow(environment.at(0.4, 1), agent.at(0.6, 1), reply, "accent", bend=28)
picture

# %% [markdown]
# An **agent** and an **environment** take turns. At step $t$ the environment is in a **state**
# $s_t$. The agent looks at it and takes an **action** $a_t$. The environment pays a **reward**
# $r_t$, a number, and moves on to the successor $s'_t$. Two flags say whether that was the end,
# and of which kind; [a section below](#termination-and-truncation) explains them. If the
# episode goes on, the successor is the next state, $s'_t = s_{t+1}$. The agent's rule for its
# actions is its **policy** $\pi(a \mid s)$: the probability of each action in each state.
#
# Here is an environment that this book uses often. In *CartPole* the agent sees four numbers: the
# position and speed of a cart, and the angle and angular speed of the pole on it. It pushes the
# cart to the left or to the right, and every step pays 1. An **episode** runs from a start to an
# end. This one ends when the pole tilts by more than 12 degrees (0.2095 radians), or when the
# cart leaves its track, 2.4 units from the middle. The first agent of this book pushes at random:

# %%
import gymnasium as gym

env = gym.make("CartPole-v1", render_mode="rgb_array")
obs, _ = env.reset(seed=3)
env.action_space.seed(3)

frames, done = [env.render()], False
while not done:
    action = env.action_space.sample()  # a policy that does not look at `obs` at all
    obs, reward, terminated, truncated, _ = env.step(action)
    frames.append(env.render())
    done = terminated or truncated
env.close()
print(f"{len(frames) - 1} steps, cart at {obs[0]:.1f}, pole at {obs[2]:.2f} radians")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Six frames of a CartPole episode, in which the pole tilts further from frame to frame until the episode ends"}}
import matplotlib.pyplot as plt

shown = [round(k * (len(frames) - 1) / 5) for k in range(6)]
fig, axes = plt.subplots(1, 6, figsize=(7, 1.4))
for axis, step in zip(axes, shown, strict=True):
    axis.imshow(frames[step][150:330, 150:450])
    axis.set_title(f"step {step}", fontsize=9)
    axis.set_axis_off()
fig.tight_layout()

# %% [markdown]
# **Notice** how soon the pole falls. In the {doc}`next chapter <policy_gradient>` an agent
# learns to hold it.

# %% tags=["claims"]
assert len(frames) < 40, "soon"
assert abs(obs[2]) > 0.2095, "it was the pole, beyond 12 degrees"
assert abs(obs[0]) < 2.4, "and not the track"

# %% [markdown]
# The probabilities of reward and successor may depend on $s_t$ and $a_t$, and on nothing
# that came before. That is the **Markov property**: the state holds all of the past that
# matters. CartPole has it, because speeds are part of its state. From positions alone
# nobody could tell where the pole is going. States, actions, rewards and their
# probabilities together are a **Markov decision process**, an MDP. What an agent sees need
# not be the whole state, so it has a name of its own, the **observation**. In most of this
# book the two are the same. The agent does not know the probabilities of its MDP. It can
# only try actions and see, which is called *model-free* learning.
#
# ## What an agent optimises
#
# An agent wants more than the next reward. It wants all rewards to come, and the later
# ones a little less. The **return** weights a reward that is $k$ steps away by $\gamma^k$,
# where the **discount** $\gamma$ is a number from 0 to 1:
#
# $$
# G_t = r_t + \gamma r_{t+1} + \gamma^2 r_{t+2} + \dots
#     = \sum_{k \ge 0} \gamma^k r_{t+k}
# $$ (def-return)
#
# Move the slider. The first picture shows how much a reward that is $k$ steps away counts today. In
# the second every step pays 1, and the first $k$ rewards are added up.

# %% tags=["hide-input"]
import torch

# The package's own; this chapter defines it below.
from literate_rl.maths.returns import discounted_returns

discounts = [0.0, 0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995]
ahead = list(range(301))
ones = torch.ones(300, 1, dtype=torch.float64)
ended = torch.zeros(300, 1, dtype=torch.bool)
ended[-1] = True


def sums_of_ones(gamma):
    """Return what the first 0, 1, 2, … rewards of 1 add up to."""
    # A step that is k steps from the end has k rewards to come.
    returns = discounted_returns(ones, 0 * ones, ended, ended, gamma)
    return [0.0, *returns.flatten().flip(0).tolist()]


def frame(gamma):
    horizon, sums = 1 / (1 - gamma), sums_of_ones(gamma)
    weights = plot(
        "A reward in k steps",
        "A curve falls from 1 to 0, the slower the larger the discount is.",
        Axis("k", 0, 320, ticks=(0, 100, 200, 300)),
        Axis("counts today", 0, 1, ticks=(0, 0.5, 1)),
        Mark("line dashed", [horizon, horizon], [0, 1], "quiet"),
        Mark("line thick", ahead, [gamma**k for k in ahead], "accent"),
    )
    total = plot(
        "The first k rewards of 1",
        "A curve rises and levels off at one over one minus the discount.",
        Axis("k", 0, 320, ticks=(0, 100, 200, 300)),
        Axis("add up to", 0, 210, ticks=(0, 50, 100, 150, 200)),
        Mark("line dashed", [0, 320], [horizon, horizon], "quiet"),
        Mark("line thick", ahead, sums, "accent"),
    )
    return [weights, total], (
        f"γ = {gamma}: horizon 1 / (1 − γ) = {horizon:.0f} steps. "
        f"The first {horizon:.0f} rewards make up "
        f"{sums[round(horizon)] / horizon:.0%} of the whole return."
    )


dial("The discount and its horizon", frame, {"discount γ": discounts}, start=(0.98,))

# %% [markdown]
# **Notice** the dashed lines. An endless stream of ones has the return $1 + \gamma + \gamma^2 +
# \dots = 1 / (1 - \gamma)$. That number is also the agent's **horizon**: from $\gamma = 0.8$ on,
# about two thirds of the return lies within that many steps. With $\gamma = 0.99$ it is 100, so an
# agent with this discount looks about 100 steps ahead.

# %% tags=["claims"]
for gamma in discounts[2:]:
    horizon, sums = 1 / (1 - gamma), sums_of_ones(gamma)
    assert 0.6 < sums[round(horizon)] / horizon < 0.7, "about two thirds"
    assert sums[-1] < horizon + 1e-6, "it levels off at the dashed line"

# %% [markdown]
# There is another way to read $\gamma$. Suppose that nothing is discounted, but that after
# each step the world ends with probability $1 - \gamma$. The reward $k$ steps away is then
# paid with probability $\gamma^k$, and the plain sum of the rewards is, on average, the
# discounted return. So **a discount is a small chance of the end**.
#
# The return is random, because the policy and the environment are. Its mean $\mathbb{E}_\pi$, for
# an agent that starts in state $s$ and follows $\pi$ from there, is the **value** of the state.
# The mean if the first action is $a$ and $\pi$ follows after that is the value of the action,
# $Q$. The difference says how much better the action is than what the policy does on average. It
# is the **advantage**:
#
# $$
# \begin{aligned}
# V(s) &= \mathbb{E}_\pi \left[ G_t \mid s_t = s \right] \\
# Q(s, a) &= \mathbb{E}_\pi \left[ G_t \mid s_t = s, a_t = a \right] \\
# A(s, a) &= Q(s, a) - V(s)
# \end{aligned}
# $$ (def-value)
#
# An agent looks for the policy with the highest value of the states that it starts in {cite:p}`sutton2018`.
# It learns by this discounted return; {doc}`evaluation` judges it without the discount.
#
# ## A map of methods
#
# How does an agent find such a policy? It has to try actions that do not look best, or it would
# never learn that one of them is better: **exploration**. And it has to use what it knows, or it
# would learn and never profit: **exploitation**. A policy that draws its actions at random does
# both: it starts by exploring, and becomes less random as it becomes better.
#
# Two questions sort nearly all methods. *What is learned?* And *whose actions does it learn from?* An
# **on-policy** method learns from actions of the policy as it is now, and has to act anew once the policy has
# changed much. An **off-policy** method may learn from other actions: older ones, or those of another agent.
#
# | family | learns | on-policy | off-policy |
# |---|---|---|---|
# | **value based** | $Q$, and takes the action with the highest one | | {doc}`DQN <dqn>` |
# | **policy based** | the policy itself | **REINFORCE, {doc}`next chapter <policy_gradient>`** | |
# | **actor–critic** | a policy (the actor) and a value that judges it (the critic) | {doc}`A2C <a2c>`, {doc}`PPO <ppo>`, {doc}`PPG <ppg>` | {doc}`IMPALA <impala>`, {doc}`DDPG <ddpg>`, {doc}`TD3 <td3>`, {doc}`SAC <sac>` |
#
# ## Termination and truncation
#
# The sum in {eq}`def-return` has no last term, but an episode has a last step. It ends in one
# of two ways.

# %% tags=["hide-input"]
picture = Picture(
    "Two ways to end",
    "Two rows of four states. In the first the last step is terminated: nothing follows, "
    "and the future counts as zero. In the second it is truncated: the task goes on "
    "unseen, and the value of the last state stands for what would have followed.",
)


def four_states(y, ending, tone=""):
    picture.text(4, y - 34, ending, tone, "start", bold=True)
    states = [picture.box(26 + 108 * t, y, f"s{'₀₁₂₃'[t]}", width=44) for t in range(4)]
    for t in range(3):
        picture.arrow(states[t], states[t + 1], f"a{'₀₁₂'[t]}, r{'₀₁₂'[t]}")
    return states[3]


four_states(40, "terminated: the task is over")
picture.path("M392,22v36", kind="thick")
picture.text(406, 40, "0", bold=True)
last = four_states(150, "truncated: only our view ends", "accent")
picture.arrow(last, (436, 150), tone="accent", kind="dashed")
picture.text(436, 186, "V(s₃) stands for what we do not see", "accent", "end")
picture

# %% [markdown]
# - **Terminated**, flag $\mathrm{te}_t = 1$. The task itself is over: the pole fell, the
#   cart left its track, the game is lost. No reward can come any more, so the value of
#   what comes next is zero.
# - **Truncated**, flag $\mathrm{tr}_t = 1$. We stopped watching, usually because of a time
#   limit, which for CartPole is 500 steps. The world would have gone on and paid more
#   rewards. We just do not see them.
#
# A step is *done* if at least one of the two is set: $\mathrm{done}_t = \mathrm{te}_t \lor
# \mathrm{tr}_t$. Both can be set at once, and then the task is over.
#
# What can we do about rewards that nobody saw? We put their expected return there, the value
# of the state in which the view was cut: the **bootstrap**. It has to come from somewhere,
# often from a network that is being trained. Here it is simply an argument. The same cure
# helps with data that stop because the batch is full.
#
# For a batch with steps $t = 0, \dots, T - 1$ this gives a recursion that runs backward
# from the last step:
#
# $$
# G_t = r_t + \gamma \, (1 - \mathrm{te}_t)
# \begin{cases}
#   V(s'_t) & \text{if } \mathrm{done}_t \text{ or } t = T - 1 \\
#   G_{t+1} & \text{otherwise}
# \end{cases}
# $$ (discounted-return)
#
# The two flags have two jobs, and neither can do the other's. **`terminated` says that there is
# no future.** **`done` says that the next row of the batch is not that future**: it belongs to the
# next episode.
#
# ### How to read the code
#
# On the website the code of the package is on the right, what it does on the left, or on a phone above it.
# Two things help to read it.
#
# - In a signature, `reward: Float[Tensor, "T B"]` is a tensor of floating-point numbers with $T$
#   rows, one for each step, and $B$ columns, one for each environment; the same letter is the same
#   size. A star, as in `"*B"`, means any number of dimensions, and `""` a single number. `Bool` holds
#   truth values, `Fraction` is a number from 0 to 1, `Count` a whole number from 1 on.
# - `@checked` holds each call to its signature and names the argument that does not fit.
#   {doc}`ground/signatures` builds it. Functions whose names begin with `check` only complain,
#   early and clearly.


# %% tags=["export"]
@checked
def discounted_returns(
    reward: Float[Tensor, "T B"],
    next_value: Float[Tensor, "T B"],
    terminated: Bool[Tensor, "T B"],
    truncated: Bool[Tensor, "T B"],
    gamma: Fraction = 0.99,
) -> Float[Tensor, "T B"]:
    """Compute the discounted return of every step, without gradient.

    ``next_value`` belongs to the true successor of each step. It counts where an
    episode is truncated and in the last row; elsewhere it may hold anything.

    Source: Sutton and Barto, Reinforcement Learning, 2nd edition, equation 3.9.
    """
    # Our view ends where an episode does, and in the last row of the batch.
    view_ends = terminated | truncated
    view_ends[-1] = True
    # What we do not see is worth its value. After a termination there is nothing, so
    # zero is filled in. (A product would not do: $0 \cdot \infty$ is not a number.)
    bootstrap = torch.where(view_ends & ~terminated, next_value, 0.0)

    # The recursion {eq}`discounted-return`, from the last step to the first.
    future = bootstrap[-1]
    returns = []
    for t in reversed(range(len(reward))):
        future = reward[t] + gamma * torch.where(view_ends[t], bootstrap[t], future)
        returns.append(future)

    # A return is a target, something to move towards: no gradient flows through it.
    result = torch.stack(returns[::-1]).detach()
    check_finite(result, reward=reward, next_value=bootstrap)
    return result


# %% [markdown]
# Three short episodes show the three cases. Each pays 1 at every step, the discount is 0.9,
# and every state is said to have the value 10. That is the exact value if the rewards never
# stop.

# %%
reward, next_value = torch.ones(3, 3), torch.full((3, 3), 10.0)
terminated, truncated = torch.zeros(2, 3, 3, dtype=torch.bool)
terminated[2, 0] = True  # episode 0: the task is over after three steps
truncated[2, 1] = True  # episode 1: the time limit is reached after three steps
# Episode 2 just goes on, and the batch is full.

returns = discounted_returns(reward, next_value, terminated, truncated, gamma=0.9)
print("          terminated  truncated  batch full")
for t, row in enumerate(returns.tolist()):
    print(f"G at t={t} {row[0]:11.2f} {row[1]:10.2f} {row[2]:11.2f}")

# %% [markdown]
# **Notice** that the two episodes that we only stopped watching keep their value of 10 at every
# step. The one that terminates is worth less and less.

# %% tags=["claims"]
assert torch.allclose(returns[:, 1:], torch.full((3, 2), 10.0))
assert torch.allclose(returns[:, 0], torch.tensor([2.71, 1.9, 1.0]))

# %% [markdown]
# ## Many environments at once
#
# A network is faster with one batch than with many single states. So an agent acts in $B$ copies of
# an environment at once. After $T$ steps there is a table with a row for each step and a column for
# each copy, a **rollout**. It does not stop where an episode does: a copy whose episode has ended
# begins another one, and the rollout goes on.
#
# That hides a trap. Once the copy has begun anew, what it shows is the start of the next episode,
# not the state that the last step led to. But it is the value of that state which a truncation
# needs. So a rollout keeps the **true successors** too, as `next_obs`. `Collector`
# ({doc}`data/agents`) takes the steps and fills the table. Its agent is any function from
# observations to actions. Here three random ones run for 60 steps, and to see both flags, no
# episode may last longer than 25:

# %%
from literate_rl.data.agents import Collector, make_envs


def random_policy(obs):
    """Push left or right, each with probability one half."""
    return torch.randint(2, (len(obs),))


def short_cartpole():
    return gym.make("CartPole-v1", max_episode_steps=25)


torch.manual_seed(1)
collector = Collector(make_envs(short_cartpole, num_envs=3))
collector.reset(seed=1)
batch = collector.collect(random_policy, 60)
print("obs", tuple(batch.obs.shape), " action", tuple(batch.action.shape))

print("\n t  copy  reward  terminated  truncated  pole angle")
ends = (batch.terminated | batch.truncated).nonzero().tolist()
for t, copy in ends:
    te, tr = batch.terminated[t, copy].item(), batch.truncated[t, copy].item()
    angle = batch.next_obs[t, copy, 2].item()
    pay = batch.reward[t, copy].item()
    print(f"{t:2d}  {copy:4d}  {pay:6.0f}  {te!s:>10s}  {tr!s:>9s}  {angle:10.3f}")

# %% [markdown]
# **Notice** that the last reward of an episode says nothing about the kind of its end. Only the flags do.
# The terminated episodes are beyond 0.2095 radians to one side or the other, which is 12 degrees. The angle
# comes from `next_obs`, the true successor: in what `step` returned, the pole is upright again.

# %% tags=["claims"]
angle = batch.next_obs[..., 2].abs()
assert (angle[batch.terminated] > 0.2095).all(), "terminated ones are beyond"
assert (angle[batch.truncated & ~batch.terminated] < 0.2095).all(), "the others are not"
assert (batch.reward == 1).all(), "the reward says nothing"
returned = batch.obs[1:][(batch.terminated | batch.truncated)[:-1]]
assert (returned[:, 2].abs() < 0.051).all(), "upright again"
assert batch.terminated.any()
assert batch.truncated.any()

# %% [markdown]
# ## A program that grows
#
# The same as a program: a random agent in eight CartPoles. On each of the next four pages twenty or thirty
# lines change, and on the last one it is PPO. Call it `mine.py`, type it, and let it grow with you.
# `literate-rl copy ppo --step 1` prints it as a file.

# %% tags=["program"] total_steps=50000
import torch

from literate_rl.data.agents import Collector, make_envs

torch.set_num_threads(1)  # the networks are too small for several threads to pay

env_id, seed, total_steps = "CartPole-v1", 1, 50_000
num_envs, num_steps = 8, 64

torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
envs = make_envs(env_id, num_envs)
inputs, actions = envs.single_observation_space.shape[0], envs.single_action_space.n
collector = Collector(envs)
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1


def act(obs):
    """Draw an action for each observation."""
    prob = torch.ones(len(obs), actions) / actions
    return torch.multinomial(prob, 1, generator=generator).squeeze(-1)


episodes, report = [], 0  # when each episode ended, and its return
while collector.step < total_steps:
    # 1. Collect: act for some steps with the policy as it is.
    batch = collector.collect(act, num_steps)
    returns = batch.episode_return[batch.terminated | batch.truncated]
    episodes += [(collector.step, x) for x in returns.tolist()]

    if collector.step >= report + total_steps / 8:
        report, recent = collector.step, [x for _, x in episodes[-20:]]
        print(f"step {report:6d}: mean return {sum(recent) / max(1, len(recent)):4.0f}")

# %% [markdown]
# **Notice** the three parts that stay: settings, a function that acts, and a loop. The agent gets
# about 22 points for an episode, now and after 50,000 steps, because nothing in it learns.

# %% tags=["claims"]
import numpy as np

from literate_rl.runs.runs import stored_runs

chance = stored_runs("program_agents")["agents"]
assert len(chance.final) == 20
assert 21 < chance.curves.mean() < 24, "about 22 points"
assert np.ptp(chance.curves.mean(0)) < 5, "now and after 50,000 steps"
assert 15 < np.mean([x for _, x in episodes]) < 30, "and the run of this page"

# %% [markdown]
# ## Traps
#
# ### Trap: a column minus a row is a square
#
# A value network often returns a column, $(B, 1)$, while returns are a row of $B$ numbers.
# Their difference has the shape $(B, B)$: every value minus every return. The loss is a
# number all the same, it even falls, and the values all go to the *mean* of the returns.

# %%
target = torch.tensor([1.0, 2.0, 3.0, 4.0])
prediction = torch.tensor([[1.0], [2.0], [3.0], [4.0]])  # perfect, but a column
as_written = (target - prediction).square().mean().item()
as_meant = (target - prediction.squeeze(1)).square().mean().item()
print("shape of the error:", tuple((target - prediction).shape))
print("loss as written:   ", as_written)
print("loss as meant:     ", as_meant)

# %% [markdown]
# This is why the functions of this book that compute with tensors have `@checked` above them.

# %% tags=["claims"]
assert as_written == 2.5, "the values are perfect"
assert as_meant == 0
flat = torch.full((4, 1), target.mean().item(), requires_grad=True)
(slope,) = torch.autograd.grad((target - flat).square().mean(), flat)
assert slope.abs().max() < 1e-6, "it has its minimum where all values are the mean"

# %% [markdown]
# ## Summary
#
# - An agent looks for the policy with the highest value: the mean of its discounted return.
# - With a discount $\gamma$ an agent looks about $1 / (1 - \gamma)$ steps ahead. A discount is a
#   small chance of the end.
# - The advantage $Q(s, a) - V(s)$ says how much better an action is than the policy's average.
# - `terminated` says that there is no future, `terminated or truncated` that the next row is not
#   it. {doc}`exact_values` measures what one flag for both costs.
# - `Collector` steps many environments and writes down where each step truly led.
#
# ## Exercises
#
# Most chapters end with exercises that grade themselves. You fill in a function `answer`,
# and `grade` ({doc}`book/exercises`) compares it with a correct function on a few cases.
#
# ### Exercise 1: predict
#
# No code yet, only a thought.

# %% tags=["hide-input"]
predict(
    "An agent has learned to hold the pole for ever. CartPole's limit of 500 steps ends "
    "every episode, γ = 0.99, and the code treats that end as a termination. Which returns does "
    "such code compute for the last state before the limit, and for one 300 steps earlier?",
    ["100 and 100", "1 and about 95", "1 and 1"],
    right="1 and about 95",
    because="One reward is left, then the world seems to end. 300 steps earlier 301 rewards "
    "are left, and (1 − 0.99³⁰¹) · 100 is 95. So the same pole, at the same angle, has many returns as "
    "targets, and a network learns none of them but a mean: the step number is not in its input.",
)

# %% tags=["claims"]
assert round((1 - 0.99**301) / (1 - 0.99)) == 95

# %% [markdown]
# ### Exercise 2: find the bug
#
# This is a one-step target as many programs have it: $r_t + \gamma V(s'_t)$ for a batch of
# steps, tensors of shape $(B,)$. It confuses the flags. It has a second bug,
# which shows when the value of a terminal state is not a finite number. Correct both.


# %%
def answer(reward, next_value, terminated, truncated, gamma):
    done = terminated | truncated
    return reward + gamma * next_value * (~done).float()


from literate_rl.book.exercises import grade


def checked_target(reward, next_value, terminated, truncated, gamma):
    """Ask `discounted_returns`: for a single row of steps it is this target."""
    rows = (x.unsqueeze(0) for x in (reward, next_value, terminated, truncated))
    return discounted_returns(*rows, gamma).squeeze(0)


no, yes = torch.tensor([False, False]), torch.tensor([False, True])
two, ten = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 10.0])
wild = torch.tensor([10.0, float("nan")])
target_cases = [
    (two, ten, no, no, 0.9),
    (two, ten, yes, no, 0.9),
    (two, ten, no, yes, 0.9),
    (two, ten, yes, yes, 0.9),
    (two, wild, yes, no, 0.9),
]
grade(answer, checked_target, *target_cases)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(reward, next_value, terminated, truncated, gamma):
    # Only termination takes the future away, and it is filled in, not multiplied.
    return reward + gamma * torch.where(terminated, 0.0, next_value)


grade(answer, checked_target, *target_cases)

# %% [markdown]
# ### Exercise 3: experiment
#
# The random agent drops its pole within about 20 steps. No learning is needed to do much better:
# write a rule that holds it for at least 150 steps on average. `answer` gets the four numbers of
# each copy (position, speed, angle, angular speed), shape $(B, 4)$, and returns a tensor of whole
# numbers (`.long()`), shape $(B,)$: 1 to push to the right and 0 to push to the left.


# %%
def steps_held(policy):
    """Return the steps for each fall, over 1,000 steps of eight poles."""
    collector = Collector(make_envs("CartPole-v1", num_envs=8))
    collector.reset(seed=0)
    batch = collector.collect(policy, 1000)
    return batch.reward.sum().item() / max(1, batch.terminated.sum().item())


def answer(obs):
    """Push to the right if the pole leans to the right."""
    return (obs[:, 2] > 0).long()


grade(lambda: steps_held(answer) >= 150, lambda: True, ())
print(f"random: {steps_held(random_policy):.0f} steps", end=", ")
print(f"this rule: {steps_held(answer):.0f} steps")


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(obs):
    # A pole that leans but is already coming back needs no push, so look where it goes.
    return (obs[:, 2] + obs[:, 3] > 0).long()


print(f"this rule: {steps_held(answer):.0f} steps")
grade(lambda: steps_held(answer) >= 150, lambda: True, ())

# %% tags=["claims"]
assert 10 < steps_held(random_policy) < 30, "about 20 steps"
assert steps_held(answer) >= 150

# %% [markdown]
# ## References
#
# Returns and values: chapter 3 of {cite:t}`sutton2018`. Time limits: {cite:t}`pardo2018`. The
# environments' interface: {cite:t}`towers2024`.
