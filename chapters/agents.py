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
# **What does an agent optimise, and what goes wrong at the end of an episode?** After this
# chapter you can say what a return, a value and an advantage are, run an agent in many
# environments at once, and treat the two ways in which an episode ends as two different
# things. It takes about 40 minutes. You need Python and a little PyTorch, no reinforcement
# learning.

# %% tags=["export", "hide-input"]
"""Agents, episodes and time limits: returns, rollouts, seeds, devices, exercises."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from textwrap import shorten
from typing import Annotated, Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from annotated_types import Ge, Lt
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from literate_rl.workshop.signatures import (
    Bool,
    Count,
    Float,
    Fraction,
    check_finite,
    checked,
)
from literate_rl.workshop.episodes import (
    EpisodeCounter,
    check_chain,
    check_copies,
    check_experience,
    env_maker,
    on_cpu,
    plain_actions,
)

__all__ = [
    "Collector",
    "Ring",
    "Rollout",
    "best_device",
    "discounted_returns",
    "grade",
    "make_envs",
    "seed_everything",
    "tabular_values",
    "true_successors",
]

# %% [markdown]
# ## An agent and its environment

# %% tags=["hide-input"]
import os

from literate_rl.workshop.pictures import Axis, Mark, Picture, dial, plot, predict

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
# $r_t$, a number, and moves on to the successor $s'_t$. (We do not write $s_{t+1}$: after the end
# of an episode the next row of the data belongs to another one.) It also says with two flags
# whether the episode has ended, and in which way; [a section
# below](#two-ways-for-an-episode-to-end) explains them. The agent's rule for its actions is its
# **policy** $\pi(a \mid s)$: the probability of each action in each state.
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
# **Notice** how soon the pole goes. In the {doc}`next chapter <policy_gradient>` an agent
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
# (Results are reported without the discount: it is there to make learning possible, and the plain
# sum is what we want in the end.) Move the slider. The left picture shows what a reward counts
# today if it is $k$ steps away. In the right one every step pays 1, and the first $k$ rewards are
# added up.

# %% tags=["hide-input"]
import torch

from literate_rl.agents import (
    discounted_returns,
)  # the package's own; this chapter defines it below

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
# \dots = 1 / (1 - \gamma)$. That number is also the agent's **horizon**: about two thirds of the
# return lies within that many steps. With $\gamma = 0.99$ it is 100, so an agent with this
# discount looks about 100 steps ahead.

# %% tags=["claims"]
for gamma in discounts[4:]:
    horizon, sums = 1 / (1 - gamma), sums_of_ones(gamma)
    assert 0.6 < sums[round(horizon)] / horizon < 0.7, "about two thirds"
    assert sums[-1] < horizon + 1e-6, "it levels off at the dashed line"

# %% [markdown]
# There is another way to read $\gamma$. Suppose that nothing is discounted, but that after
# each step the world ends with probability $1 - \gamma$. The reward $k$ steps away is then
# paid with probability $\gamma^k$, and on average the sum of the rewards is the same. So **a
# discount is a small chance of the end**. Keep this in mind: it explains the mistake that
# this chapter is about.
#
# The return is random, because policy and environment are. Its mean $\mathbb{E}_\pi$, for an
# agent that starts in state $s$ and follows $\pi$ from there, is the **value** of the state. The
# mean if the first action is $a$ and $\pi$ follows after that is the value of the action, $Q$.
# The difference says how much better the action is than what the policy does on average. It is
# the **advantage**:
#
# $$
# \begin{aligned}
# V(s) &= \mathbb{E}_\pi \left[ G_t \mid s_t = s \right] \\
# Q(s, a) &= \mathbb{E}_\pi \left[ G_t \mid s_t = s, a_t = a \right] \\
# A(s, a) &= Q(s, a) - V(s)
# \end{aligned}
# $$ (def-value)
#
# An agent looks for the policy with the highest value of the states that it starts in
# {cite:p}`sutton2018`.
#
# ## A map of methods
#
# How does an agent find such a policy? It has to try actions that do not look best, or it would
# never learn that one of them is better: **exploration**. And it has to use what it knows, or it
# would learn and never profit: **exploitation**. A policy that draws its actions at random does
# both: it starts by exploring, and becomes less random as it becomes better.
#
# Two questions sort nearly all methods. *What is learned?* And *whose actions does it
# learn from?* An **on-policy** method learns from actions of the policy as it is now, and
# throws them away after each update. An **off-policy** method may learn from other actions:
# older ones, or those of another agent.
#
# | family | learns | on-policy | off-policy |
# |---|---|---|---|
# | **value based** | $Q$, and takes the action with the highest one | SARSA | DQN |
# | **policy based** | the policy itself | **REINFORCE, {doc}`next chapter <policy_gradient>`** | |
# | **actor–critic** | a policy (the actor) and a value that judges it (the critic) | A2C, {doc}`PPO <ppo>`, {doc}`PPG <ppg>` | {doc}`IMPALA <impala>`, DDPG, SAC |
# You are here: at the row in the middle. The book goes on from there to the right and down. Names
# without a link are other well-known algorithms; you need not know them.
#
# ## Two ways for an episode to end
#
# The sum in {eq}`def-return` has no last term, but an episode has a last step. There are
# two kinds.

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
# What can we do about rewards that nobody saw? We put their expected sum there, the value
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
# The two flags have two jobs, and neither can do the other's. **`terminated` says whether
# there is a future.** **`done` says whether the next row of the batch is that future**, or
# belongs to the next episode. This rule returns in every chapter.
#
# ### How to read the code
#
# Code of the package stands on the right and what it does on the left. In a signature, `reward:
# Float[Tensor, "T B"]` is a tensor of floating-point numbers with $T$ rows, one for each step,
# and $B$ columns, one for each environment; equal letters are equal sizes. `@checked` holds each
# call to its signature and names the argument that does not fit ({doc}`workshop/signatures`
# builds it). `Bool` holds truth values, `Fraction` is a number from 0 to 1, `Count` a whole
# number from 1 on. A star, as in `"*B"`, stands for any number of dimensions, and `""` for a
# single number. Functions whose names begin with `check` only complain, early and clearly; those
# that guard the loop below are in {doc}`workshop/episodes`.


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
# **Notice** that an episode that was only cut off keeps its value of 10 at every step.

# %% tags=["claims"]
assert torch.allclose(returns[:, 1:], torch.full((3, 2), 10.0))
assert torch.allclose(returns[:, 0], torch.tensor([2.71, 1.9, 1.0]))

# %% [markdown]
# ## Many environments at once
#
# A network is faster with a batch than with single states. So an agent acts in $B$ copies of an
# environment at once, a *vector environment*. A copy whose episode is done has to be reset while
# the others go on, and *when* that happens matters. Here are six calls of `step` in two of
# Gymnasium's modes. The first episode has the letters $s$, $a$, $r$ and ends with the third call,
# the next one has $z$, $b$, $q$.

# %% tags=["hide-input"]
picture = Picture(
    "NEXT_STEP and SAME_STEP",
    "Six calls of step, with an episode that ends at the third. In the mode NEXT_STEP the "
    "third call returns the last observation and the fourth ignores its action and resets. "
    "In the mode SAME_STEP the third call returns the first observation of the next "
    "episode, and the last one of the old episode lies in final_obs.",
)


NEXT_STEP = """action a₀ a₁ a₂ none b₀ b₁
reward r₀ r₁ r₂ 0 q₀ q₁
obs s₁ s₂ s₃ z₀ z₁ z₂"""
SAME_STEP = """action a₀ a₁ a₂ b₀ b₁ b₂
reward r₀ r₁ r₂ q₀ q₁ q₂
obs s₁ s₂ z₀ z₁ z₂ z₃
final_obs · · s₃ · · ·"""


def table(y, mode, rows, column, names):
    picture.text(4, y, mode, bold=True, anchor="start")
    for number, row in enumerate(rows.split("\n"), 1):
        name, *contents = row.split()
        picture.text(96, y + 32 * number, name, "quiet", "end")
        tones = {column: "accent"} if name in names else {}
        picture.cells(130, y + 32 * number, contents, tones)


table(0, "NEXT_STEP", NEXT_STEP, 3, ("action", "reward", "obs"))
picture.text(274, 124, "a step that never happened", "accent")
table(164, "SAME_STEP", SAME_STEP, 2, ("final_obs",))
picture.text(226, 320, "where the third step really led", "accent")
picture

# %% [markdown]
# `NEXT_STEP`, the default, puts a step into the data that never happened. One of the traps
# below shows it. This book uses `SAME_STEP`.


# %% tags=["export"]
@checked
def make_envs(
    env: str | Callable[[], gym.Env[Any, Any]], num_envs: Count = 1
) -> SyncVectorEnv:
    """Make a vector environment that resets in the step that ends an episode.

    Args:
        env: A registered id such as ``"CartPole-v1"``, or a function that makes a new
            environment at each call.
        num_envs: Number of copies.
    """
    makers = [env_maker(env)] * num_envs
    envs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    check_copies(envs)
    return envs


# %% [markdown]
# The price of `SAME_STEP` is that at a done step `obs` is not where the step led. Gymnasium
# keeps the true last observation in `infos["final_obs"]`, and `infos["_final_obs"]` says
# for which copies. With $o_{t+1}$ for the observation that the vector environment returns
# and $o^{\text{final}}_t$ for the one that it keeps, the **true successor** is
#
# $$
# s'_t =
# \begin{cases}
#   o^{\text{final}}_t & \text{if } \mathrm{done}_t \\
#   o_{t+1} & \text{otherwise.}
# \end{cases}
# $$ (true-successor)
#
# This is the state whose value is the bootstrap. With $o_{t+1}$ instead, a fresh start would
# be taken for the state that was reached.


# %% tags=["export"]
def true_successors(next_obs: NDArray[Any], infos: dict[str, Any]) -> NDArray[Any]:
    """Return where each step of a ``SAME_STEP`` environment led, as a new array.

    Args:
        next_obs: Observations as ``step`` returned them, ``(B, *)``.
        infos: The last thing that ``step`` returned.
    """
    # The copy is {eq}`true-successor` for every row that is not done.
    successors = np.array(next_obs)
    # The other rows are few, so a loop over them is quick enough.
    for index in np.flatnonzero(infos.get("_final_obs", ())):
        last, wanted = np.asarray(infos["final_obs"][index]), successors.shape[1:]
        if last.shape != wanted:  # NumPy would stretch some shapes without a word
            raise ValueError(f"final_obs must have shape {wanted}, got {last.shape}")
        successors[index] = last
    return successors


# %% [markdown]
# ## The loop
#
# $T$ steps in $B$ environments are a **rollout**. It does not stop where an episode does,
# and it may start in the middle of one. This is what is written down, *time-major*: row $t$
# is step $t$ of all environments.


# %% tags=["export"]
class Rollout(NamedTuple):
    """What happened in T steps of B environments.

    Attributes:
        obs: What the agent saw, ``(T, B, *)``.
        action: What it did, ``(T, B, *)``.
        reward: What it was paid, float32.
        next_obs: Where each step led: true successors, never a reset.
        terminated: Whether the task ended with this step.
        truncated: Whether the episode was cut off after this step.
        real: Whether the step happened. In mode ``NEXT_STEP`` the one behind an end did
            not: its action was ignored.
        episode_return: At the last step of an episode its undiscounted return, NaN at
            all other steps.
        episode_length: The same of its number of steps.
    """

    obs: Tensor
    action: Tensor
    reward: Float[Tensor, "T B"]
    next_obs: Tensor
    terminated: Bool[Tensor, "T B"]
    truncated: Bool[Tensor, "T B"]
    real: Bool[Tensor, "T B"]
    episode_return: Float[Tensor, "T B"]
    episode_length: Float[Tensor, "T B"]

    def to(self, device: torch.device) -> Rollout:
        """Return the rollout on a device."""
        return Rollout(*(field.to(device) for field in self))


# %% [markdown]
# All agents of this book but the very first get their data from one loop, and here it is. It is
# an object, because it has to remember where the environments are when the next rollout begins.
# The agent is any function from observations to actions. `to_env` is for agents whose actions
# need translating ({doc}`policies`). The loop works in both modes: in `NEXT_STEP` the steps that
# never happened are marked in `real`.


# %% tags=["export"]
class Collector:
    """Lets an agent act in a vector environment and writes down what happens.

    Args:
        envs: A vector environment in one of these two modes; it observes arrays.
        to_env: Turns the agent's actions into what ``envs.step`` takes. The default
            takes tensors that fit the action space.
        dtype: NumPy's type for the stored observations; the environment's own if None.

    Attributes:
        obs: Observations to go on from, None before the first ``reset``.
        step: Steps taken so far, all environments together.
    """

    @checked
    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        to_env: Callable[[Tensor], Any] | None = None,
        dtype: Any = None,
    ) -> None:
        self.envs, self.dtype = envs, dtype
        self.to_env = to_env or partial(plain_actions, envs)
        mode = envs.metadata.get("autoreset_mode")
        self.resets_later = mode == AutoresetMode.NEXT_STEP
        self.obs: Any = None
        self.step = 0

    @checked
    def reset(self, seed: int) -> None:
        """Start new episodes in all environments, from a seed."""
        self.obs, _ = self.envs.reset(seed=int(seed))
        self.ended = np.zeros(self.envs.num_envs, dtype=bool)
        self.episodes = EpisodeCounter(self.envs.num_envs)

    @torch.no_grad()
    @checked
    def collect(self, act: Callable[[Tensor], Tensor], num_steps: Count) -> Rollout:
        """Let an agent act for T steps, without gradient.

        It gets observations ``(B, *)`` on the CPU and returns actions ``(B, *)``.
        """
        if self.obs is None:
            raise ValueError("collect needs a start: call reset first")
        # Step by step, then one array for each field, with time first.
        rows = [self.take_step(act) for _ in range(num_steps)]
        obs, action, reward, next_obs, *flags = map(np.stack, zip(*rows, strict=True))
        # An environment that breaks should say so here, not in a loss an hour later.
        check_experience(self.step, obs=obs, reward=reward, next_obs=next_obs)
        self.step += reward.size

        # Which episodes ended, what they were paid in all, and how long they were.
        terminated, truncated, real = flags
        ended = self.episodes.add(reward, terminated | truncated, real)
        fields = (obs, action, reward, next_obs, *flags, *ended)
        return Rollout(*map(torch.from_numpy, fields))

    def take_step(self, act: Callable[[Tensor], Tensor]) -> tuple[NDArray[Any], ...]:
        """Go round the loop once; return a row of each field up to ``real``."""
        # The agent looks, at a copy that nobody will write to, and acts.
        obs = np.array(self.obs, self.dtype)
        action = on_cpu(act(torch.from_numpy(obs)))
        # The environments answer.
        self.obs, reward, terminated, truncated, infos = self.envs.step(
            self.to_env(action)
        )

        real = ~self.ended
        if self.resets_later:
            # The last observation comes as it is, and the step after it did not happen.
            next_obs = self.obs
            self.ended = (terminated | truncated) & real
        else:
            # At an end `obs` belongs to the next episode already.
            next_obs = true_successors(self.obs, infos)

        # Copies, because an environment may use its arrays again.
        reward = np.array(reward, np.float32)
        next_obs = np.array(next_obs, obs.dtype)
        flags = terminated.copy(), truncated.copy(), real
        return obs, action.numpy(), reward, next_obs, *flags


# %% [markdown]
# Three CartPoles, 60 steps, random pushes. To see both flags we cut each episode off after
# 25 steps.

# %% tags=["hide-input"]
from gymnasium.wrappers import TimeLimit


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
# **Notice** that the last reward of an episode says nothing about the kind of its end. Only the
# flags do. The terminated episodes are beyond 0.2095 radians, which is 12 degrees. (None of these
# episodes ended at the end of the track.) The angle stands in `next_obs`: in what `step`
# returned, the pole is upright again.

# %% tags=["claims"]
angle = batch.next_obs[..., 2].abs()
assert (angle[batch.terminated] > 0.2095).all(), "terminated ones are beyond"
assert (angle[batch.truncated & ~batch.terminated] < 0.2095).all(), "the others are not"
assert (batch.next_obs[..., 0].abs() < 2.4).all(), "nobody got to the end of the track"
assert (batch.reward == 1).all(), "the reward says nothing"
assert batch.terminated.any()
assert batch.truncated.any()

# %% [markdown]
# ## What the wrong flag costs
#
# Much code has one flag for both ends. How large is the mistake? To say so we need an environment
# in which the right values are known. A robot walks on a ring of five cells, at each step one
# cell to the left or to the right. Cell 0 has a charger: a step that starts there pays 1, all
# others pay nothing. After each step the robot breaks down for good with a small probability $p$,
# here 0.02, which is a termination. A time limit can be put around it from outside, and that is a
# truncation. `chain` returns the table of the ring's probabilities, which the next section needs.

# %% tags=["hide-input"]
from math import cos, pi, sin

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
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Put the robot into a random cell."""
        super().reset(seed=seed)
        self.cell = self.np_random.integers(self.num_cells)
        return self.cell, {}

    def step(
        self, action: np.int64
    ) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Move by one cell; return observation, reward, two flags and an empty dict."""
        if not self.action_space.contains(action):
            raise ValueError(f"action must be 0 or 1, got {action!r}")
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
# The class follows Gymnasium's interface {cite:p}`towers2024`: two spaces, `reset` and
# `step`. Any code for Gymnasium runs with it.
#
# ### Values without sampling
#
# Number the states $1, \dots, S$ and fix the policy. Let $P_{ss'}$ be the probability
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
# does not arrive anywhere has no future value. Discount and missing probability enter the
# equation as a product. This is again the sentence from above: a discount is a small
# chance of the end.


# %% tags=["export"]
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
# ### The experiment
#
# The robot walks under a time limit of 20 steps, with ten seeds. We count in the data how often a
# step leads from each cell to each other one, and solve {eq}`tabular-value` for these shares. A
# step that counts as an end arrives nowhere, so its row sums to less than 1. The three rules
# below differ only in which steps count as ends. (Temporal-difference learning, which moves
# $V(s_t)$ towards $r_t + \gamma V(s'_t)$ again and again, arrives at the same values
# {cite:p}`sutton2018`.)


# %% tags=["hide-input"]
def walk(limit, seed, num_envs=32, num_steps=300):
    """Return a batch of the robot's steps under a time limit."""
    collector = Collector(make_envs(lambda: TimeLimit(Ring(), limit), num_envs))
    collector.reset(seed=1000 * seed)  # one of the traps says why 1000
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
    """Return the mean value by each of the three rules."""
    batch = walk(limit, seed)
    done = batch.terminated | batch.truncated
    rules = batch.terminated, done, torch.zeros_like(done)
    return [estimated(batch, ends).mean() for ends in rules]


names = (
    "two flags: terminated steps end",
    "one flag: all done steps end",
    "no flag: no step ends",
)
runs = np.array([three_ways(20, seed) for seed in range(10)])  # (seeds, rules)
print(f"mean of the five values             error\n{'exact':32s}{exact.mean():6.2f}")
for name, rule in zip(names, runs.T, strict=True):
    error = rule.mean() / exact.mean() - 1
    print(f"{name:32s}{rule.mean():6.2f}{error:8.0%}")

# %% [markdown]
# The right rule finds the right values. With one flag they are less than half of the truth.
# Without flags the robot believes that it is immortal, and they are about three times too large.
# More data do not help: with all ten seeds the error is of the same size, so it is not noise but
# **bias**.

# %% tags=["claims"]
two, one, none = runs.T / exact.mean()
assert (abs(two - 1) < 0.1).all(), "right"
assert (one < 0.5).all(), "less than half"
assert (abs(none - 3) < 0.6).all(), "about three times"

# %% [markdown]
# How large is the bias? Let $h_{\max}$ be the time limit and $\kappa$ the share of all steps
# that are the last ones before it. One flag makes each of these an end, so every step
# carries an additional chance $\kappa$ of the end. And a chance of the end is a discount. The values
# that come out are those of a more short-sighted agent:
#
# $$
# \begin{aligned}
# V_{\text{one flag}} &= \bigl(I - \gamma (1 - \kappa) P\bigr)^{-1} r, \\
# \kappa &= \frac{(1 - p)^{h_{\max}-1}}{\sum_{h=0}^{h_{\max}-1} (1 - p)^h}
# \end{aligned}
# $$ (def-time-limit-bias)
#
# Here $(1-p)^h$ is the probability that an episode lives to see step $h$. In the long run the
# formula is exact, because the chance of the last step is the same in every cell.


# %% tags=["hide-input"] mystnb={"image": {"alt": "Mean value over time limits from 5 to 200 steps, with five dots at each limit. With two flags the dots lie on the exact value. With one flag they follow a predicted curve from below, and come near the exact value only for the longest limits."}}
def predicted(limit, end_probability=0.02):
    """Return the mean value that one flag leads to."""
    alive = (1 - end_probability) ** np.arange(limit)
    last = alive[-1] / alive.sum()
    chain, pay = Ring(5, end_probability).chain(right)
    return tabular_values(chain, pay, gamma * (1 - last)).mean()


limits = (5, 10, 20, 50, 100, 200)
dots = np.array([[three_ways(h, seed)[:2] for seed in range(5)] for h in limits])

fig, axis = plt.subplots(figsize=(7, 2.8))
axis.axhline(exact.mean(), color="C0", lw=1, label="exact")
curve = np.arange(5, 201)
axis.plot(curve, [predicted(h) for h in curve], "--", color="C1", label="predicted")
for rule, name in enumerate(("two flags", "one flag")):
    for h, values in zip(limits, dots[:, :, rule], strict=True):
        axis.plot([h] * 5, values, ".", color=f"C{rule}", label=name if h == 5 else "")
axis.set_xscale("log")
axis.set_xticks(limits, limits)
axis.minorticks_off()
axis.set_xlabel(r"time limit $h_{\max}$ in steps")
axis.set_ylabel("mean value")
axis.legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# Each dot is one run. **Notice** that the value with one flag depends on the time limit: it grows
# from below 1 to above 6. But a value belongs to the task, and a limit that we chose for our
# convenience does not. The dashed line is the formula, and the dots follow it.
#
# There is one exception. If the limit is a rule of the game, and the agent is meant to
# hurry, then the end at the limit *is* a termination. The time that is left is then a part
# of the state, and has to stand in the observation {cite:p}`pardo2018`.

# %% tags=["claims"]
means = dots.mean(1)  # (limits, rules)
assert means[0, 1] < 1, "from below 1"
assert means[-1, 1] > 6, "to above 6"
assert np.allclose(means[:, 1], [predicted(h) for h in limits], rtol=0.1)
assert np.allclose(means[:, 0], exact.mean(), rtol=0.1), "two flags do not depend on it"

# %% [markdown]
# ## The same seed, the same run
#
# What is random in a run comes from a few generators. Three of them are global, and one line
# seeds each. The environments have generators of their own: `Collector.reset` seeds them.


# %% tags=["export"]
@checked
def seed_everything(seed: Annotated[int, Ge(0), Lt(2**32)]) -> None:
    """Seed the global generators of Python, NumPy and PyTorch (on all devices).

    Environments have their own generators: pass a seed to their ``reset`` as well.
    """
    random.seed(int(seed))
    np.random.seed(seed)
    torch.manual_seed(int(seed))


# %% tags=["hide-input"]
def short_run(seed):
    """Return 50 steps of four CartPoles with random pushes."""
    seed_everything(seed)
    collector = Collector(make_envs("CartPole-v1", num_envs=4))
    collector.reset(seed=seed)
    return collector.collect(random_policy, 50)[:6]  # without the returns, mostly NaN


first, again, other = short_run(0), short_run(0), short_run(1)
print("seed 0 twice, all tensors equal:", all(map(torch.equal, first, again)))
print("seed 0 and 1, all tensors equal:", all(map(torch.equal, first, other)))

# %% tags=["claims"]
assert all(map(torch.equal, first, again))
assert not all(map(torch.equal, first, other))

# %% [markdown]
# The promise is: same seed, same machine, same versions, same run. Another version of
# PyTorch may round differently, and two runs that differ in the last digit are two
# different runs after a few hundred steps.
#
# ## Traps
#
# ### Trap: a step that never happened
#
# In `NEXT_STEP`, Gymnasium's default mode, the step after a done ignores the action and
# resets. A loop that does not know this stores a transition from the end of one episode to
# the start of the next, with reward 0 and with no flag set. Here the robot always goes
# right, one cell at a time, and the limit is three steps.


# %% tags=["hide-input"]
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
# Every fourth row is such a phantom. It teaches that the end of an episode leads, without
# pay, to its start, whatever the agent does. `Collector` works in this mode too, and marks
# the phantoms in `real`, so that a loss can leave them out.

# %% tags=["claims"]
assert phantoms["NEXT_STEP"] == [False, False, False, True] * 2
assert not any(phantoms["SAME_STEP"])
collector = Collector(SyncVectorEnv([three_steps]))
collector.reset(seed=4)
batch = collector.collect(lambda obs: torch.ones(1, dtype=torch.long), 8)
assert batch.real.flatten().tolist() == [True, True, True, False] * 2, "it marks them"

# %% [markdown]
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
# This is why `@checked` stands above the functions of this book that compute with tensors.

# %% tags=["claims"]
assert as_written == 2.5, "the values are perfect"
assert as_meant == 0

# %% [markdown]
# ### Trap: neighbouring seeds share environments
#
# `envs.reset(seed=0)` gives its copies the seeds 0, 1, 2, and so on. With eight copies, the
# runs with seeds 0 and 1 share seven environments: the same starts, the same random
# numbers. The spread over such runs is not the spread over independent runs. The experiment
# above therefore took seeds 1000 apart.

# %% tags=["hide-input"]
envs = make_envs("CartPole-v1", num_envs=8)
starts = [{tuple(row) for row in envs.reset(seed=seed)[0].tolist()} for seed in (0, 1)]
print("starts in common, seeds 0 and 1:", len(starts[0] & starts[1]), "of 8")

# %% tags=["claims"]
assert len(starts[0] & starts[1]) == 7

# %% [markdown]
# ## What well-known implementations do
#
# | implementation | at a time limit |
# |---|---|
# | this book | two flags and the true successor, except in the first thirty-line agent of the next chapter |
# | CleanRL, PPO | [joins the flags](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppo.py#L206), so a truncation counts as a termination (issues [#198](https://github.com/vwxyzjn/cleanrl/issues/198) and [#457](https://github.com/vwxyzjn/cleanrl/issues/457)). It is written for [Gymnasium 0.29](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/pyproject.toml#L18); with 1.x it also trains on the phantom rows ([#499](https://github.com/vwxyzjn/cleanrl/issues/499)) |
# | Stable-Baselines3, PPO | bootstraps: [adds $\gamma V$ of the true last observation to the last reward](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/common/on_policy_algorithm.py#L235-L245), then cuts |
# | Spinning Up, PPO | bootstraps [at its own `max_ep_len`](https://github.com/openai/spinningup/blob/038665d62d569055401d91856abb287263096178/spinup/algos/pytorch/ppo/ppo.py#L313-L325). A limit inside the environment counts as termination; a termination in an epoch's last step is bootstrapped as well |
# | DI-engine | [`gae` takes two flags](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/rl_utils/gae.py#L48-L64). The environment gives [one `done`](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/envs/env/ding_env_wrapper.py#L172), and time limits count as ends unless [`ignore_done`](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/policy/ppo.py#L258) is set |
# | TorchRL | [two flags, `terminated` and `done`](https://github.com/pytorch/rl/blob/ae9719f17b1517af5c2523a36c4616f003ee55cf/torchrl/objectives/value/functional.py#L120-L184). Its V-trace read the value of the next episode at a truncation ([#4209](https://github.com/pytorch/rl/issues/4209)) |
#
# The code was read at the linked commits.
#
# ## On the best device
#
# Environments run on the CPU; a network may run on a GPU. One function picks the device.


# %% tags=["export"]
def best_device() -> torch.device:
    """Return the CUDA device if there is one, the CPU otherwise."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


# %% tags=["hide-input"]
device = best_device()
batch = walk(limit=20, seed=0)
value = torch.as_tensor(exact, dtype=torch.float32)
arguments = batch.reward, value[batch.next_obs], batch.terminated, batch.truncated
plain = discounted_returns(*arguments)
on_device = discounted_returns(*(x.to(device) for x in arguments))
print(f"{tuple(on_device.shape)} returns computed on {on_device.device.type}:", end=" ")
print("same numbers:", torch.allclose(on_device.cpu(), plain, atol=1e-5))

# %% [markdown]
# Every chapter with code of its own has a cell like this one. No chapter needs a GPU.
#
# ## Summary
#
# - An agent looks for the policy with the highest value: the mean of its discounted return.
# - A discount $\gamma$ looks about $1 / (1 - \gamma)$ steps ahead, and is a small chance of the end.
# - The advantage $Q(s, a) - V(s)$ says how much better an action is than the policy's average.
# - `terminated` says whether there is a future, `terminated or truncated` whether the next
#   row is that future. One flag for both makes every value depend on the time limit.
# - `Collector` steps many environments and writes down where each step truly led.
#
# ## Exercises
#
# Every chapter ends with exercises that grade themselves. You fill in a function `answer`,
# and `grade` compares it with a function that is right, on a few cases. It works offline and
# prints one line.


# %% tags=["export", "hide-input"]
def grade(
    answer: Callable[..., Any], expected: Callable[..., Any], *cases: tuple[Any, ...]
) -> None:
    """Compare an answer with a function that is right, and print one line.

    Each case is a tuple of positional arguments. An answer that is wrong, that raises
    or that is still empty is reported, never raised.
    """
    if not cases:
        raise ValueError("cases must hold at least one tuple of arguments, got none")
    for case in cases:
        wanted = expected(*case)
        call = f"answer({', '.join(map(one_line, case))})"
        # Whatever a learner's code does wrong is an answer that is not right yet.
        try:
            got = answer(*case)
        except Exception as error:
            print(f"Not yet: {call} raised {type(error).__name__}: {error}")
            return
        # What is right is told to those who have tried.
        if got is ...:
            print("Not yet: the answer is still empty.")
            return
        if not agree(got, wanted):
            given, sought = one_line(got), one_line(wanted)
            print(f"Not yet: {call} gave {given}, expected {sought}.")
            return
    print(f"Right: all {len(cases)} cases agree.")


def agree(got: Any, wanted: Any) -> bool:
    """Say whether two results have the same shape and nearly the same numbers."""
    if isinstance(wanted, str):
        return isinstance(got, str) and got == wanted
    if isinstance(wanted, tuple | list):
        same_length = isinstance(got, tuple | list) and len(got) == len(wanted)
        return same_length and all(map(agree, got, wanted))
    # The rest are numbers, arrays and tensors. An empty answer is none of these.
    try:
        left, right = (torch.as_tensor(x).cpu().double() for x in (got, wanted))
    except (TypeError, ValueError, RuntimeError):
        return False
    close = partial(torch.allclose, rtol=1e-4, atol=1e-6, equal_nan=True)
    return left.shape == right.shape and close(left, right)


def one_line(value: Any) -> str:
    """Return how a value prints, on one short line."""
    return shorten(repr(value), 60, placeholder=" …")


# %% [markdown]
# ### Exercise 1: predict
#
# No code yet, only a thought.

# %% tags=["hide-input"]
predict(
    "An agent has learned to hold the pole for ever. CartPole's limit of 500 steps ends "
    "every episode, γ = 0.99, and the code takes that end for a termination. What is the value "
    "of the last state before the limit, and of one 300 steps earlier?",
    ["100 and 100", "1 and about 95", "1 and 1"],
    right="1 and about 95",
    because="One reward is left, then the world seems to end. 300 steps earlier 301 rewards "
    "are left, and 1 − 0.99³⁰¹ is 0.95. So the same pole, at the same angle, has many values, "
    "and the network does not see which one is wanted: the step number is not in its input.",
)

# %% tags=["claims"]
assert round((1 - 0.99**301) / (1 - 0.99)) == 95

# %% [markdown]
# ### Exercise 2: find the bug
#
# This is a one-step target as many programs have it: $r_t + \gamma V(s'_t)$ for a batch of
# steps, tensors of shape $(B,)$. It has the mistake of this chapter. It has a second one,
# which shows when the value of a terminal state is not a finite number. Correct both.


# %%
def answer(reward, next_value, terminated, truncated, gamma):
    done = terminated | truncated
    return reward + gamma * next_value * (~done).float()


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
# A sturdier robot breaks down with probability 0.005 instead of 0.02. Which of the limits 50,
# 100, 200, 400 and 800 is the shortest for which one flag loses less than a tenth of the value?
# For the robot of this chapter it is 100. Guess first. Then use `predicted(limit,
# end_probability)`, compare it with the true mean, `tabular_values(*Ring(5, 0.005).chain(right),
# gamma).mean()`, and return the limit.


# %%
def answer():
    return ...


# %% tags=["hide-input"]
def shortest_limit(end_probability=0.005):
    """Return the first limit that loses less than a tenth."""
    chain, pay = Ring(5, end_probability).chain(right)
    truth = tabular_values(chain, pay, gamma).mean()
    limits = (50, 100, 200, 400, 800)
    return next(h for h in limits if predicted(h, end_probability) > 0.9 * truth)


grade(answer, shortest_limit, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    # It lives longer and looks further ahead, so a cut takes more away.
    truth = np.mean(tabular_values(*Ring(5, 0.005).chain(right), gamma))
    lost = {h: 1 - predicted(h, 0.005) / truth for h in (50, 100, 200, 400, 800)}
    return min(h for h, share in lost.items() if share < 0.1)


grade(answer, shortest_limit, ())

# %% tags=["claims"]
assert shortest_limit(0.02) == 100, "for the robot of this chapter"
assert answer() == shortest_limit() == 400

# %% [markdown]
# ## References
#
# Returns, values and the Bellman equation: chapters 3 and 6 of {cite:t}`sutton2018`.
# Time limits: {cite:t}`pardo2018`. The environments' interface: {cite:t}`towers2024`.
