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
# **What does an agent optimise, and what goes wrong at the end of an episode?** Most
# reinforcement learning code loses information in one place, the last step of an
# episode, and a value function that is wrong by a factor of two or three is the result.
#
# At the end of this chapter you can say what a return and a value are, run an agent in
# many environments at once, and treat the two ways in which an episode ends as two
# different things. You need Python and a little PyTorch, no reinforcement learning.

# %% tags=["export", "hide-input"]
"""Agents, episodes and time limits: returns, rollouts, seeds, devices, exercises."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

__all__ = [
    "Collector",
    "Ring",
    "Rollout",
    "best_device",
    "check_experience",
    "check_steps",
    "discounted_returns",
    "grade",
    "make_envs",
    "seed_everything",
    "tabular_values",
    "true_successors",
]

# %% [markdown]
# ## An agent and its environment
#
# An *agent* and an *environment* take turns. At step $t$ the environment is in a state
# $s_t$. The agent looks at it and takes an action $a_t$. The environment pays a reward
# $r_t$, a number, and moves on to the successor $s'_t$. The agent's rule for its
# actions is its *policy* $\pi$: the probability $\pi(a \mid s)$ of each action in each
# state.
#
# Here is an environment that this book uses often. In CartPole the state is four
# numbers: position and speed of a cart, angle and angular speed of a pole. The action
# pushes the cart to the left or to the right, and every step pays 1. An *episode* runs
# from a start to an end, and here it ends when the pole has tilted too far. The agent
# in the picture pushes at random. **Notice** how soon the pole goes: this agent does not
# look at the state at all.

# %% mystnb={"image": {"alt": "Six frames of a CartPole episode, in which the pole tilts further from frame to frame until the episode ends"}}
import os

os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # draw without a screen

import matplotlib.pyplot as plt

env = gym.make("CartPole-v1", render_mode="rgb_array")
env.reset(seed=3)
env.action_space.seed(3)
frames = [env.render()]
ended = False
while not ended:
    _, _, terminated, truncated, _ = env.step(env.action_space.sample())
    frames.append(env.render())
    ended = terminated or truncated
env.close()

shown = [round(k * (len(frames) - 1) / 5) for k in range(6)]
fig, axes = plt.subplots(1, 6, figsize=(7, 1.4))
for axis, step in zip(axes, shown, strict=True):
    axis.imshow(frames[step][150:330, 150:450])
    axis.set_title(f"step {step}", fontsize=9)
    axis.set_axis_off()
fig.tight_layout()

# %% [markdown]
# ## What an agent optimises
#
# An agent wants more than the next reward. It wants all rewards to come, and the later
# ones a little less. The *return* weights a reward that is $k$ steps away by
# $\gamma^k$, where the *discount* $\gamma$ is a number between 0 and 1:
#
# $$
# G_t = r_t + \gamma r_{t+1} + \gamma^2 r_{t+2} + \dots
#     = \sum_{k \ge 0} \gamma^k r_{t+k}
# $$ (def-return)
#
# The return is random, because the policy and the environment are. Its average, for
# an agent that starts in state $s$ and then follows $\pi$, is the *value* of the state:
#
# $$
# V(s) = \mathbb{E}_\pi \left[ G_t \mid s_t = s \right]
# $$ (def-value)
#
# That is what an agent optimises: it looks for the policy with the highest value of the
# states that it starts in {cite:p}`sutton2018`.
#
# A constant reward of 1 has the return $1 + \gamma + \gamma^2 + \dots = 1 / (1 -
# \gamma)$. With $\gamma = 0.99$ that is 100, so an agent with this discount looks about
# 100 steps ahead. There is another way to read $\gamma$. Suppose that nothing is
# discounted, but that after each step the world ends with probability $1 - \gamma$.
# The reward $k$ steps away is then paid with probability $\gamma^k$, and the average
# sum of the rewards is the same $V$. So **a discount is a small chance of the end**.
# Keep this in mind: it explains the mistake that this chapter is about.

# %% [markdown]
# ## Two ways for an episode to end
#
# The sum above has no last term, but an episode has a last step. There are two
# kinds:
#
# - **Terminated**, flag $\mathrm{te}_t = 1$. The task itself is over: the pole fell, the
#   game is lost, the goal is reached. No reward can come any more, so the value of what
#   comes next is zero.
# - **Truncated**, flag $\mathrm{tr}_t = 1$. We stopped watching, usually because of a time
#   limit. The world would have gone on and paid more rewards. We just do not see them.
#
# An episode is *done* if one of the two is set: $\mathrm{done}_t = \mathrm{te}_t \lor
# \mathrm{tr}_t$. Both can be set at once, and then the task is over.
#
# What can we do about rewards that nobody saw? We put their expected sum there, the
# value of the state in which the view was cut: the *bootstrap*. The value has to come
# from somewhere, often from a network that is being trained. Here it is simply an
# argument. The same cure helps with data that just stop because the batch is full.
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
# The two flags have two jobs, and no flag can do the other's. **`terminated` says
# whether there is a future.** **`done` says whether the next row of the batch is that
# future**, or belongs to the next episode. This rule returns in every chapter.
#
# All data in this book are *time-major*: row $t$ of a tensor of shape $(T, B)$ is
# step $t$ of $B$ environments. One function checks that, because most silent mistakes
# are mistakes of shape.


# %% tags=["export"]
def check_steps(**tensors: Tensor) -> None:
    """Raise unless all arguments are time-major tensors of one shape (T, B).

    Args:
        tensors: Tensors by the name that a message should give them. Those called
            ``terminated`` and ``truncated`` must be boolean, all others floating-point.

    Raises:
        TypeError: If an argument is no tensor or has the wrong dtype.
        ValueError: If an argument is empty or has another shape than the first.
    """
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
        flag = name in ("terminated", "truncated")
        if (value.dtype != torch.bool) if flag else not value.is_floating_point():
            kind = "boolean" if flag else "floating-point"
            raise TypeError(f"{name} must be {kind}, got {value.dtype}")
    first, *others = tensors
    shape = tuple(tensors[first].shape)
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"{first} must have a non-empty shape (T, B), got {shape}")
    for name in others:
        if tensors[name].shape != shape:
            given = tuple(tensors[name].shape)
            raise ValueError(
                f"{name} must have shape {shape} like {first}, got {given}"
            )


def check_gamma(gamma: float) -> None:
    """Raise unless a discount is a number from 0 to 1."""
    if isinstance(gamma, bool) or not isinstance(gamma, int | float):
        raise TypeError(f"gamma must be a number, got {type(gamma).__name__}")
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must lie in [0, 1], got {gamma}")


# %% tags=["export"]
def discounted_returns(
    reward: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float = 0.99,
) -> Tensor:
    """Compute the discounted return of every step, with two flags.

    Args:
        reward: Rewards, (T, B).
        next_value: Value of each step's true successor, (T, B). Only the entries at
            truncated steps and in the last row are read.
        terminated: Whether the task ended with this step, (T, B) boolean.
        truncated: Whether the episode was cut off after this step, (T, B) boolean.
        gamma: Discount, in [0, 1].

    Returns:
        The returns, (T, B), without gradient.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If a shape or ``gamma`` is wrong, or a number that counts is not
            finite.

    Source:
        Sutton and Barto, Reinforcement Learning, 2nd edition, equation 3.9.
    """
    check_steps(
        reward=reward, next_value=next_value, terminated=terminated, truncated=truncated
    )
    check_gamma(gamma)
    # A return is a target, something to move towards. No gradient may flow through it.
    reward, next_value = reward.detach(), next_value.detach()
    # `terminated` decides whether there is a future. Filling in a zero is safer than
    # multiplying by one, because $0 \cdot \infty$ is not a number.
    bootstrap = next_value.masked_fill(terminated, 0.0)
    # `done` decides where the future is found: in the bootstrap or in the row below.
    done = terminated | truncated
    # This loop is {eq}`discounted-return`, read from the last step to the first. The
    # last row has no row below it, so it starts from its own bootstrap.
    future = bootstrap[-1]
    returns = []
    for t in reversed(range(len(reward))):
        future = torch.where(done[t], bootstrap[t], future)
        future = reward[t] + gamma * future
        returns.append(future)
    result = torch.stack(returns[::-1])
    # One look at the result is cheap. Only when it is bad do we look for the culprit.
    if not result.isfinite().all():
        inputs = {"reward": reward, "next_value": next_value}
        bad = [name for name, x in inputs.items() if not x.isfinite().all()]
        raise ValueError(f"{' and '.join(bad) or 'the sum of reward'} must be finite")
    return result


# %% [markdown]
# Three short episodes show the three cases. Each pays 1 at every step, the discount is
# 0.9, and whoever is asked says that every state has the value 10. That is in fact the
# exact value if the rewards never stop.

# %%
reward = torch.ones(3, 3)
next_value = torch.full((3, 3), 10.0)
terminated = torch.zeros(3, 3, dtype=torch.bool)
truncated = torch.zeros(3, 3, dtype=torch.bool)
terminated[2, 0] = True  # episode 0: the task is over after three steps
truncated[2, 1] = True  # episode 1: the time limit is reached after three steps
# Episode 2 just goes on, and the batch is full.

returns = discounted_returns(reward, next_value, terminated, truncated, gamma=0.9)
print("          terminated  truncated  batch full")
for t, row in enumerate(returns.tolist()):
    print(f"G at t={t} {row[0]:11.2f} {row[1]:10.2f} {row[2]:11.2f}")

# %% [markdown]
# ## Values without sampling
#
# Before we estimate values, we want to know the right answer, so that an estimate can
# be called wrong. For an environment with a few states there is one.
#
# Number the states $1, \dots, S$ and fix the policy. Let $P_{ss'}$ be the probability
# that a step from $s$ leads to $s'$, averaged over the policy's actions, and let
# $r_s$ be the expected reward of that step. The value of a state is the reward
# of one step plus the discounted value of where it leads. Written for all states at
# once, as vectors and a matrix, that is the *Bellman equation*:
#
# $$
# V = r + \gamma P V
# $$ (def-bellman)
#
# It is linear, so we can solve it:
#
# $$
# V = (I - \gamma P)^{-1} r
# $$ (tabular-value)
#
# A row of $P$ may sum to less than 1. The missing probability is that of termination:
# what does not arrive anywhere has no future value. Discount and missing probability
# enter the equation in the same way, as a product. This is again the sentence from
# above: a discount is a small chance of the end.


# %% tags=["export"]
def tabular_values(
    transition: ArrayLike, reward: ArrayLike, gamma: float
) -> NDArray[Any]:
    """Solve the Bellman equation of a policy exactly.

    Args:
        transition: Probabilities (S, S) from row to column, averaged over the policy.
            What a row lacks to 1 is the probability of termination.
        reward: Expected reward of a step from each state, (S,).
        gamma: Discount, in [0, 1].

    Returns:
        The value of each state, (S,) in float64.

    Raises:
        TypeError: If ``gamma`` is not a number.
        ValueError: If a shape or number is wrong, or if the values are infinite because
            nothing is discounted and some state never terminates.

    Source:
        Sutton and Barto, Reinforcement Learning, 2nd edition, equation 3.14.
    """
    check_gamma(gamma)
    chain = np.asarray(transition, dtype=np.float64)
    pay = np.asarray(reward, dtype=np.float64)
    if chain.ndim != 2 or chain.shape[0] != chain.shape[1] or not chain.size:
        raise ValueError(f"transition must have shape (S, S), got {chain.shape}")
    if pay.shape != chain.shape[:1]:
        raise ValueError(f"reward must have shape {chain.shape[:1]}, got {pay.shape}")
    if not np.isfinite(pay).all():
        raise ValueError("reward must be finite")
    if not ((chain >= 0).all() and (chain.sum(axis=1) <= 1 + 1e-9).all()):
        raise ValueError("transition must have rows of probabilities with a sum <= 1")
    # Wherever an end can be reached at all, it can be reached in $S$ steps. A state
    # that survives $S$ discounted steps for certain has no finite value.
    survival = np.linalg.matrix_power(gamma * chain, len(chain)).sum(axis=1)
    if (survival > 1 - 1e-12).any():
        raise ValueError(
            f"gamma must be below 1 if a state never terminates, got {gamma}"
        )
    # Here is {eq}`tabular-value`. Solving is faster and more exact than inverting.
    return np.linalg.solve(np.eye(len(chain)) - gamma * chain, pay)


# %% [markdown]
# ## A ring to walk on
#
# We need an environment with few states, in which both kinds of end occur. A robot walks
# on a ring of cells, to the left or to the right. Cell 0 has a charger: a step that
# starts there pays 1, all others pay nothing. After each step the robot breaks down for
# good with a small probability. That is a termination. A time limit can be put around
# the environment from outside, and that is a truncation.
#
# The class follows Gymnasium's interface {cite:p}`towers2024`: two spaces, `reset` and
# `step`. Any other code for Gymnasium runs with it.


# %% tags=["export"]
class Ring(gym.Env[np.int64, np.int64]):
    """A ring of cells with a reward in cell 0 and a chance to break down.

    The observation is the number of the cell. Action 0 goes left (to the cell before),
    action 1 goes right (to the cell after). A step from cell 0 pays 1, every other step
    0. An episode starts in a random cell.

    Args:
        num_cells: Number of cells, at least 2.
        end_probability: Probability that a step terminates the episode, in [0, 1].

    Raises:
        ValueError: If an argument is out of range.
    """

    metadata = {"render_modes": []}

    def __init__(self, num_cells: int = 5, end_probability: float = 0.02) -> None:
        if num_cells < 2:
            raise ValueError(f"num_cells must be at least 2, got {num_cells}")
        if not 0 <= end_probability <= 1:
            raise ValueError(
                f"end_probability must be in [0, 1], got {end_probability}"
            )
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

    def chain(self, right: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return what ``tabular_values`` reads, for a policy that ignores the cell.

        Args:
            right: Probability of action 1 in every cell.

        Returns:
            The transition probabilities (S, S) and the expected rewards (S,).
        """
        stay = np.eye(self.num_cells)
        # Rolling the identity's columns by one sends each cell to its neighbour.
        walk = right * np.roll(stay, 1, axis=1) + (1 - right) * np.roll(
            stay, -1, axis=1
        )
        return (1 - self.end_probability) * walk, stay[0]


# %% [markdown]
# The robot of this chapter goes right in four steps of five. Here are the exact values of
# its cells. **Notice** that the values rise towards the charger, and that the last
# line, with the breakdown moved into the discount, is the same to the last digit.

# %%
gamma, right = 0.99, 0.8
ring = Ring(num_cells=5, end_probability=0.02)
transition, reward_of_cell = ring.chain(right)
exact = tabular_values(transition, reward_of_cell, gamma)
forever, _ = Ring(num_cells=5, end_probability=0.0).chain(right)
moved = tabular_values(forever, reward_of_cell, gamma * 0.98)

print("cell                           ", *(f"{cell:7d}" for cell in range(5)))
print("discount 0.99, breakdown 0.02  ", *(f"{value:7.4f}" for value in exact))
print("discount 0.99 * 0.98, no end   ", *(f"{value:7.4f}" for value in moved))

# %% [markdown]
# ## Many environments at once
#
# A network is happier with a batch than with a single state. So agents step $B$ copies
# of an environment together. Gymnasium calls the bundle a *vector environment*. A copy
# whose episode is done has to be reset while the others go on, and *when* that happens
# matters more than one would think. There are two ways:
#
# | mode | at the step that ends an episode, `obs` is | the next step |
# |---|---|---|
# | `NEXT_STEP`, Gymnasium's default | the last observation | ignores the action and resets |
# | `SAME_STEP` | the first observation of the *next* episode | is an ordinary step |
#
# `NEXT_STEP` puts a step into the data that never happened. We shall look at one below.
# This book always uses `SAME_STEP`.


# %% tags=["export"]
def make_envs(
    env: str | Callable[[], gym.Env[Any, Any]], num_envs: int = 1
) -> SyncVectorEnv:
    """Make a vector environment that resets in the step that ends an episode.

    Args:
        env: A registered id such as ``"CartPole-v1"``, or a function without arguments
            that makes a new environment at each call.
        num_envs: Number of copies B.

    Returns:
        The vector environment, with autoreset mode ``SAME_STEP``.

    Raises:
        TypeError: If an argument has the wrong type, or ``env`` makes something else
            than an environment.
        ValueError: If ``num_envs`` is below 1, the id cannot be made, or ``env``
            returns the same object twice.
    """
    if not isinstance(env, str) and not callable(env):
        raise TypeError(f"env must be an id or a function, got {type(env).__name__}")
    if isinstance(num_envs, bool) or not isinstance(num_envs, int):
        raise TypeError(f"num_envs must be an int, got {type(num_envs).__name__}")
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")
    make = partial(gym.make, env) if isinstance(env, str) else env

    def make_one() -> gym.Env[Any, Any]:
        made = make()
        if not isinstance(made, gym.Env):
            raise TypeError(f"env must make a gymnasium.Env, got {type(made).__name__}")
        return made

    try:
        envs = SyncVectorEnv(
            [make_one] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP
        )
    except gym.error.Error as error:
        raise ValueError(f"env {env!r} cannot be made: {error}") from error
    # Copies that are one and the same object would step each other's episode.
    if len(set(map(id, envs.envs))) < num_envs:
        raise ValueError("env must make a new environment at each call")
    return envs


# %% [markdown]
# The price of `SAME_STEP` is that `obs` after a done step is not where that step led.
# Gymnasium keeps the true last observation in `infos["final_obs"]`, and the mask
# `infos["_final_obs"]` says for which copies. With $o_{t+1}$ for the observation that
# the vector environment returns and $o^{\text{final}}_t$ for the one that it keeps,
# the true successor is
#
# $$
# s'_t =
# \begin{cases}
#   o^{\text{final}}_t & \text{if } \mathrm{done}_t \\
#   o_{t+1} & \text{otherwise}
# \end{cases}
# $$ (true-successor)
#
# This is the state whose value is the bootstrap.


# %% tags=["export"]
def true_successors(next_obs: NDArray[Any], infos: dict[str, Any]) -> NDArray[Any]:
    """Undo the reset: return where each step of a ``SAME_STEP`` environment led.

    Args:
        next_obs: Observations as ``step`` returned them, ``(B, *)``. Not written to.
        infos: The last thing that ``step`` returned.

    Returns:
        A new array ``(B, *)``: the true last observation where an episode ended, and
        ``next_obs`` elsewhere.

    Raises:
        ValueError: If a last observation has another shape than an observation.
    """
    # The copy is {eq}`true-successor` for every row that is not done.
    successors = np.array(next_obs)
    # The other rows are few, so a loop over them is quick enough.
    for index in np.flatnonzero(infos.get("_final_obs", ())):
        last = np.asarray(infos["final_obs"][index])
        if last.shape != successors.shape[1:]:
            wanted = successors.shape[1:]
            raise ValueError(f"final_obs must have shape {wanted}, got {last.shape}")
        successors[index] = last
    return successors


# %% [markdown]
# Now the loop of agent and environment fits on a screen. A stretch of $T$ steps in $B$
# environments is a *rollout*. It does not stop at the end of an episode, and it may
# start in the middle of one. So the loop is an object: between two rollouts it keeps
# the observation to go on from and what the unfinished episodes were paid so far.
#
# The agent is any function from observations to actions. It may hold a network, on any
# device, as long as it returns one action for each environment.


# %% tags=["export"]
class Rollout(NamedTuple):
    """What happened in T steps of B environments: time-major tensors.

    Attributes:
        obs: What the agent saw, ``(T, B, *)``.
        action: What it did, ``(T, B, *)``.
        reward: What it was paid, (T, B) float32.
        next_obs: Where each step led, ``(T, B, *)``: true successors, never a reset.
        terminated: Whether the task ended with this step, (T, B) boolean.
        truncated: Whether the episode was cut off after this step, (T, B) boolean.
        real: Whether the step happened, (T, B) boolean. In mode ``NEXT_STEP`` the step
            behind an end did not: its action was ignored.
        episode_return: At the last step of an episode its undiscounted return, NaN at
            all other steps, (T, B) float64.
        episode_length: The same of its number of steps, (T, B) float64.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    terminated: Tensor
    truncated: Tensor
    real: Tensor
    episode_return: Tensor
    episode_length: Tensor

    def to(self, device: torch.device) -> Rollout:
        """Return the rollout on a device."""
        return Rollout(*(field.to(device) for field in self))


class Collector:
    """Lets an agent act in a vector environment and writes down what happens.

    Args:
        envs: A vector environment in either mode, with observations that are arrays
            (Box, Discrete and the like).
        to_env: Turns the agent's actions into what ``envs.step`` takes. The default
            takes tensors that fit the action space.
        dtype: NumPy's type for the stored observations; the environment's own if None.

    Attributes:
        obs: Observations to go on from, None before the first ``reset``.
        step: Steps taken so far, all environments together.
    """

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

    def reset(self, seed: int) -> None:
        """Start new episodes in all environments, from a seed."""
        self.obs, _ = self.envs.reset(seed=seed)
        self.ended = np.zeros(self.envs.num_envs, dtype=bool)
        # What the episodes under way were paid, and how many steps they have taken.
        self.paid = np.zeros(self.envs.num_envs)
        self.age = np.zeros(self.envs.num_envs)

    @torch.no_grad()
    def collect(self, act: Callable[[Tensor], Tensor], num_steps: int) -> Rollout:
        """Act for some steps, without gradient.

        Args:
            act: The agent: function from observations ``(B, *)`` on the CPU to actions
                ``(B, *)``.
            num_steps: Number of steps T.

        Returns:
            What happened, on the CPU.

        Raises:
            TypeError: If ``num_steps`` is no int or the agent returns no tensor.
            ValueError: If ``num_steps`` or a shape is wrong, an environment gives a
                number that is not finite, or nothing was reset yet.
        """
        check_num_steps(num_steps)
        if self.obs is None:
            raise ValueError("collect needs a start: call reset first")
        shape = (num_steps, self.envs.num_envs)
        dtype = self.dtype or np.asarray(self.obs).dtype
        obs = np.empty((num_steps, *np.shape(self.obs)), dtype)
        next_obs = np.empty_like(obs)
        reward = np.empty(shape, np.float32)
        terminated, truncated, real = np.empty((3, *shape), bool)
        actions = []
        for t in range(num_steps):
            # The agent looks and acts, the environments answer.
            obs[t] = self.obs
            action = act(torch.from_numpy(obs[t]))
            if not isinstance(action, Tensor):
                got = type(action).__name__
                raise TypeError(f"act must return a tensor, got {got}")
            actions.append(action.cpu())
            self.obs, reward[t], terminated[t], truncated[t], infos = self.envs.step(
                self.to_env(actions[t])
            )
            # Where the step led. In mode `NEXT_STEP` the last observation comes as it
            # is, and the step after it is a phantom.
            real[t] = ~self.ended
            if self.resets_later:
                next_obs[t] = self.obs
                self.ended = (terminated[t] | truncated[t]) & real[t]
            else:
                next_obs[t] = true_successors(self.obs, infos)
        check_experience(self.step, obs=obs, reward=reward, next_obs=next_obs)
        self.step += reward.size
        fields = (reward, next_obs, terminated, truncated, real)
        ended = self.count_episodes(reward, terminated | truncated, real)
        rest = map(torch.from_numpy, (*fields, *ended))
        return Rollout(torch.from_numpy(obs), torch.stack(actions), *rest)

    def count_episodes(
        self, reward: NDArray[Any], done: NDArray[Any], real: NDArray[Any]
    ) -> NDArray[np.float64]:
        """Return the returns and the lengths of the episodes that ended, (2, T, B)."""
        # Running sums since the start of the rollout, and what they were when the
        # episode under way began.
        total = np.stack([reward.astype(np.float64), real]).cumsum(1)
        total += np.stack([self.paid, self.age])[:, None]
        start = np.zeros((2, reward.shape[1]))
        ended = np.full_like(total, np.nan)
        for t, b in zip(*done.nonzero(), strict=True):
            ended[:, t, b] = total[:, t, b] - start[:, b]
            start[:, b] = total[:, t, b]
        self.paid, self.age = total[:, -1] - start
        return ended


def plain_actions(envs: VectorEnv[Any, Any, Any], action: Tensor) -> NDArray[Any]:
    """Return actions as an array, or raise unless they fit the action space."""
    # A column of actions, (B, 1) instead of (B,), is caught here by name and not
    # somewhere inside the environment.
    if action.shape != envs.action_space.shape:
        given, wanted = tuple(action.shape), envs.action_space.shape
        raise ValueError(f"act must return shape {wanted}, got {given}")
    array: NDArray[Any] = action.numpy()
    return array


def check_num_steps(num_steps: int) -> None:
    """Raise unless a number of steps is a whole number, at least 1."""
    if isinstance(num_steps, bool) or not isinstance(num_steps, int | np.integer):
        raise TypeError(f"num_steps must be an int, got {type(num_steps).__name__}")
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")


def check_experience(step: int, **arrays: NDArray[Any]) -> None:
    """Raise if an environment gave a number that is not finite, and say where.

    Args:
        step: Steps taken before this rollout.
        arrays: What the environments gave, ``(T, B, *)``, by name.

    Raises:
        ValueError: If something is NaN or infinite.
    """
    for name, array in arrays.items():
        bad = ~np.isfinite(array)
        if bad.any():
            index = tuple(np.argwhere(bad)[0])
            t, b = int(index[0]), int(index[1])
            raise ValueError(
                f"{name} of environment {b} is {array[index]} at step "
                f"{step + t * array.shape[1]} (row {t} of the rollout)"
            )


# %% [markdown]
# Three CartPoles, 60 steps, random pushes. To see both flags we cut each episode off
# after 25 steps. **Notice** that an episode's last `reward` says nothing about the kind
# of its end. Only the flags do.

# %%
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
for name, field in batch._asdict().items():
    print(f"{name:14s} {tuple(field.shape)!s:11s} {field.dtype}")

print("\n t  copy  reward  terminated  truncated  pole angle")
for t, copy in (batch.terminated | batch.truncated).nonzero().tolist():
    te, tr = batch.terminated[t, copy].item(), batch.truncated[t, copy].item()
    angle = batch.next_obs[t, copy, 2].item()
    pay = batch.reward[t, copy].item()
    print(f"{t:2d}  {copy:4d}  {pay:6.0f}  {te!s:>10s}  {tr!s:>9s}  {angle:10.3f}")

# %% [markdown]
# The pole counts as fallen beyond an angle of 0.2095, which is 12 degrees. Episodes that
# were terminated are beyond it and those that were truncated are not. The angle stands
# in `next_obs`. In the observation that `step` returned, the pole is upright again.

# %% [markdown]
# ## What the wrong flag costs
#
# Now the experiment of this chapter. The robot walks on its ring with a time limit of 20
# steps. We estimate the values of the cells from what we saw, in three ways that differ
# in one line: which steps are taken for an end of the world.
#
# The estimate is the simplest one, *temporal difference learning* or TD(0). It moves
# $V(s_t)$ towards $r_t + \gamma V(s'_t)$, or towards $r_t$ alone if the step ended the
# world. Repeated over a batch until nothing moves, TD(0) arrives at the exact values
# of the chain that the batch has counted {cite:p}`sutton2018`. So we count, and
# solve.


# %%
def walk(limit, seed, num_envs=32, num_steps=300):
    """Return a batch of the robot's steps under a time limit."""
    collector = Collector(make_envs(lambda: TimeLimit(Ring(), limit), num_envs))
    # Gymnasium gives copy k the seed `seed + k`, so runs are seeded far apart.
    collector.reset(seed=1000 * seed)
    generator = torch.Generator().manual_seed(seed)

    def mostly_right(obs):
        return (torch.rand(len(obs), generator=generator) < right).long()

    return collector.collect(mostly_right, num_steps)


def batch_td(batch, ends):
    """Return the values at which TD(0) on this batch arrives."""
    state, successor = batch.obs.flatten().numpy(), batch.next_obs.flatten().numpy()
    visits = np.bincount(state, minlength=5)
    counts = np.zeros((5, 5))
    np.add.at(counts, (state, successor), ~ends.flatten().numpy())
    paid = np.bincount(state, weights=batch.reward.flatten().numpy(), minlength=5)
    return tabular_values(counts / visits[:, None], paid / visits, gamma)


def three_ways(batch):
    """Return the estimates of the three rules."""
    done = batch.terminated | batch.truncated
    rules = (batch.terminated, done, torch.zeros_like(done))
    return [batch_td(batch, ends) for ends in rules]


limit, seeds = 20, range(10)
runs = np.array([three_ways(walk(limit, seed)) for seed in seeds])  # (seeds, rules, 5)
names = (
    "two flags: terminated steps end",
    "one flag: all done steps end",
    "no flag: no step ends",
)
print(f"mean of the five values    {'estimate':>12s}    error")
print(f"{'exact':32s}{exact.mean():6.2f}")
for name, rule in zip(names, runs.mean(axis=2).T, strict=True):
    error = rule.mean() / exact.mean() - 1
    print(f"{name:32s}{rule.mean():6.2f} ± {rule.std():.2f}{error:8.0%}")

# %% [markdown]
# The right rule finds the right values. With one flag for both ends they are less than
# half of the truth. Without flags the robot believes that it is immortal, and they are
# about three times too large. The spread over ten seeds is small against that: more
# data do not help, because this error is not noise but bias.
#
# How large is the bias? Take all steps of many episodes with the time limit $h_{\max}$.
# Let $\kappa$ be the share of steps that are the last ones before the limit. One flag makes each
# of these an end, so every step carries an additional chance $\kappa$ of the end, and a
# chance of the end is a discount. The values that come out are those of a more short-sighted agent:
#
# $$
# \begin{aligned}
# V_{\text{one flag}} &= \bigl(I - \gamma (1 - \kappa) P\bigr)^{-1} r, \\
# \kappa &= \frac{(1 - p)^{h_{\max}-1}}{\sum_{h=0}^{h_{\max}-1} (1 - p)^h}
# \end{aligned}
# $$ (def-time-limit-bias)
#
# Here $p$ is the probability of a breakdown, and $(1-p)^h$ is the probability that an
# episode lives to see step $h$. If nothing breaks down, $\kappa$ is just
# $1/h_{\max}$. The formula is exact here because the chance of the last step is the same in
# every cell.


# %% mystnb={"image": {"alt": "Left: in each of five cells the estimates with two flags lie on the exact values, those with one flag far below, those with no flag far above. Right: over time limits from 5 to 200 steps the estimates with two flags stay on the exact value, those with one flag follow a predicted curve that reaches it only for the longest limits."}}
def predicted(limit):
    """Return the values that one flag leads to."""
    alive = (1 - ring.end_probability) ** np.arange(limit)
    last = alive[-1] / alive.sum()
    return tabular_values(transition, reward_of_cell, gamma * (1 - last))


def five_runs(limit):
    """Return the mean value of five runs, with two flags and with one."""
    fits = [three_ways(walk(limit, seed))[:2] for seed in range(limit, limit + 5)]
    return np.mean(fits, axis=2)  # (seeds, rules)


limits = (5, 10, 20, 50, 100, 200)
by_limit = np.array([five_runs(limit) for limit in limits])  # (limits, seeds, rules)

fig, (left, right_axis) = plt.subplots(1, 2, figsize=(7, 3))
left.plot(exact, "_", markersize=18, markeredgewidth=2, color="C3", label="exact")
for rule, name in enumerate(("two flags", "one flag", "no flag")):
    mean, spread = runs[:, rule].mean(axis=0), runs[:, rule].std(axis=0)
    left.errorbar(range(5), mean, spread, fmt="o", ms=4, color=f"C{rule}", label=name)
left.set_ylim(0, 23)
left.set_xlabel("cell")
left.set_ylabel("value")
left.legend(fontsize=8, ncols=2, loc=(0.12, 0.5))

right_axis.axhline(exact.mean(), color="C3", label="exact")
curve = np.arange(5, 201)
means = [predicted(limit).mean() for limit in curve]
right_axis.plot(curve, means, "--", color="C1", lw=1, label="one flag, predicted")
for rule, name in enumerate(("two flags", "one flag")):
    mean, spread = by_limit[:, :, rule].mean(axis=1), by_limit[:, :, rule].std(axis=1)
    right_axis.errorbar(
        limits, mean, spread, fmt="o", ms=4, color=f"C{rule}", label=name
    )
right_axis.set_xscale("log")
right_axis.set_xticks(limits, limits)
right_axis.minorticks_off()
right_axis.set_xlabel(r"time limit $h_{\max}$ in steps")
right_axis.set_ylabel("mean value")
right_axis.legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# Dots are means over seeds, bars are standard deviations. **Notice** in the left
# picture that the bars are hardly larger than the dots, and that only the two-flag
# estimates lie on the exact values. **Notice** in the right picture that the one-flag
# value depends on the time limit: it grows from below 1 to above 6. But a value belongs
# to the task, and a limit that we chose for our convenience does not. The dashed
# line is the formula, and the measured points follow it.
#
# There is one exception. If the limit is a rule of the game, and the agent is meant to
# hurry, then the end at the limit *is* a termination. The time that is left is then a
# part of the state, and has to stand in the observation {cite:p}`pardo2018`.

# %% [markdown]
# ## The same seed, the same run
#
# Everything that is random in a run comes from a few generators. Three of them are
# global and one line seeds each. The environments have generators of their own, which
# `envs.reset(seed=...)` seeds once, at the start.


# %% tags=["export"]
def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, NumPy and PyTorch (on all devices).

    Environments have their own generators: pass a seed to ``envs.reset`` as well.

    Args:
        seed: An int in [0, 2**32), the range that NumPy accepts.

    Raises:
        TypeError: If ``seed`` is no int.
        ValueError: If ``seed`` is out of range.
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be an int, got {type(seed).__name__}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must lie in [0, 2**32), got {seed}")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


# %%
def short_run(seed):
    """Return 50 steps of four CartPoles with random pushes."""
    seed_everything(seed)
    collector = Collector(make_envs("CartPole-v1", num_envs=4))
    collector.reset(seed=seed)
    return collector.collect(random_policy, 50)[:6]  # without the returns, mostly NaN


first, again, other = short_run(0), short_run(0), short_run(1)
print("seed 0 twice, all tensors equal:", all(map(torch.equal, first, again)))
print("seed 0 and 1, all tensors equal:", all(map(torch.equal, first, other)))

# %% [markdown]
# The promise is: same seed, same machine, same versions, same run. Another version of
# PyTorch may round differently, and two runs that differ in the last digit are two
# different runs after a few hundred steps.
#
# ## Traps
#
# ### Trap: truncation taken for termination
#
# Old interfaces returned a single `done`, and much code still joins the two flags as
# soon as it gets them. The experiment above showed the price. In the smallest case it
# can be computed by hand: the reward is always 1, the discount 0.99, and each state has
# the value 100. An episode of 20 steps that is merely cut must keep that value.

# %%
ones, no_end = torch.ones(20, 1), torch.zeros(20, 1, dtype=torch.bool)
cut = no_end.clone()
cut[-1] = True
two_flags = discounted_returns(ones, 100 * ones, no_end, cut)
one_flag = discounted_returns(ones, 100 * ones, cut, cut)
print(f"two flags {two_flags[0].item():.2f}, one flag {one_flag[0].item():.2f}")

# %% [markdown]
# ### Trap: a step that never happened
#
# In Gymnasium's default mode, `NEXT_STEP`, the step after a done ignores the action and
# resets. A loop that does not know this stores a transition from the end of one episode
# to the start of the next, with reward 0 and with no flag set. Here the robot always
# goes right, one cell at a time, and the limit is three steps.


# %%
def three_steps():
    return TimeLimit(Ring(5, end_probability=0.0), 3)


for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
    envs = SyncVectorEnv([three_steps], autoreset_mode=mode)
    obs, _ = envs.reset(seed=4)
    print(f"{mode.name}\n  from  to  reward  truncated")
    for _ in range(8):
        next_obs, reward, _, truncated, infos = envs.step(np.array([1]))
        successor = true_successors(next_obs, infos)
        phantom = "" if successor[0] == (obs[0] + 1) % 5 else "   <- never happened"
        row = f"{obs[0]:6d}{successor[0]:4d}{reward[0]:8.0f}{truncated[0]!s:>11s}"
        print(row + phantom)
        obs = next_obs

# %% [markdown]
# One row in four is a phantom here. With episodes of ten steps it would be one in eleven.
# Such a row is not merely useless: it teaches that the end of an episode leads, without
# pay, to its start, whatever the agent does. `Collector` works in this mode too, and
# marks the phantoms, so that a loss can leave them out.

# %%
collector = Collector(SyncVectorEnv([three_steps]))
collector.reset(seed=4)
batch = collector.collect(lambda obs: torch.ones(1, dtype=torch.long), 8)
print("real:", batch.real.flatten().tolist())

# %% [markdown]
# ### Trap: the observation after the end is the next start
#
# `SAME_STEP` has its own trap, and {eq}`true-successor` is the cure. At a done step
# `obs` belongs to the next episode. Bootstrapping from it takes the value of a fresh
# start for the value of the state that was reached. This is the step at which the limit
# of 25 ends a CartPole episode:

# %%
torch.manual_seed(1)
envs = make_envs(short_cartpole, num_envs=1)
obs, _ = envs.reset(seed=1)
truncated = [False]
while not truncated[0]:
    obs, _, terminated, truncated, infos = envs.step(random_policy(obs).numpy())
with np.printoptions(precision=2, suppress=True):
    print("what step returned   ", obs[0])
    print("where the step led   ", true_successors(obs, infos)[0])

# %% [markdown]
# ### Trap: a column minus a row is a square
#
# A value network often returns a column, $(B, 1)$, while returns are a row of $B$
# numbers. Their difference has the shape $(B, B)$: every value minus every return. The
# loss is a number all the same, it even falls, and the values all go to the
# *mean* of the returns.

# %%
target = torch.tensor([1.0, 2.0, 3.0, 4.0])
prediction = torch.tensor([[1.0], [2.0], [3.0], [4.0]])  # perfect, but a column
print("shape of the error:", tuple((target - prediction).shape))
print("loss as written:   ", (target - prediction).square().mean().item())
print("loss as meant:     ", (target - prediction.squeeze(1)).square().mean().item())

# %% [markdown]
# This is why each function of this book checks its shapes before it computes.
#
# ### Trap: neighbouring seeds share environments
#
# `envs.reset(seed=0)` gives its copies the seeds 0, 1, 2, and so on. With eight
# copies, the runs with seeds 0 and 1 share seven environments: the same starts, the same
# random numbers. That does no harm in a demonstration. But the spread over such runs is
# not the spread over independent runs. The experiment above therefore took seeds 1000 apart.

# %%
envs = make_envs("CartPole-v1", num_envs=8)
starts = [{tuple(row) for row in envs.reset(seed=seed)[0].tolist()} for seed in (0, 1)]
print("starts in common, seeds 0 and 1:", len(starts[0] & starts[1]), "of 8")

# %% [markdown]
# ## What well-known implementations do
#
# | implementation | what it does at a time limit |
# |---|---|
# | CleanRL, PPO | treats truncation as termination (issues #198 and #457, pull request #448, all open). Written for Gymnasium 0.29: with 1.x and `NEXT_STEP` it also trains on the phantom rows (issue #499) |
# | Stable-Baselines3, PPO | bootstraps: adds $\gamma V$ of the true last observation to the last reward, then cuts. A user of CleanRL traced the difference between the two libraries to this (CleanRL issue #198) |
# | Spinning Up, PPO | one `done` from the environment. It bootstraps when its own `max_ep_len` is reached; a limit inside the environment that comes earlier counts as termination. A termination in an epoch's last step is bootstrapped as well |
# | DI-engine | `gae` takes two flags, `done` and `traj_flag`. But the environment's `done` includes truncation, unless `ignore_done` is set |
# | TorchRL | two flags, `terminated` and `done`. Its V-trace read the value of the next episode at a truncation until September 2026 (issue #4209) |
# | this book | two flags and the true successor, in every chapter |
#
# ## On the best device
#
# Environments run on the CPU, networks where they are fastest. One function decides.


# %% tags=["export"]
def best_device() -> torch.device:
    """Return the CUDA device if there is one, the CPU otherwise."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


# %%
device = best_device()
value = torch.as_tensor(exact, dtype=torch.float32)
batch = walk(limit, seed=0)
arguments = (batch.reward, value[batch.next_obs], batch.terminated, batch.truncated)
on_cpu = discounted_returns(*arguments)
on_device = discounted_returns(*(x.to(device) for x in arguments))
difference = (on_device.cpu() - on_cpu).abs().max().item()
print(f"{tuple(on_device.shape)} returns computed on {on_device.device.type}")
print("equal to those of the CPU:", difference < 1e-5)

# %% [markdown]
# Every chapter has a cell like this one. No chapter needs a GPU.
#
# ## Exercises that grade themselves
#
# Every chapter ends with exercises. You fill in a function `answer`, and `grade`
# compares it with a function that is right on a few cases. It works offline and prints one line.


# %% tags=["export"]
def grade(
    answer: Callable[..., Any], expected: Callable[..., Any], *cases: tuple[Any, ...]
) -> None:
    """Compare an answer with a function that is right, and print one line.

    An answer that is wrong, that raises or that is still empty is reported, never
    raised.

    Args:
        answer: The reader's function.
        expected: A function that is right.
        cases: One tuple of positional arguments for each call.

    Raises:
        ValueError: If there is no case.
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
    """Return how a value prints, on one line."""
    return " ".join(repr(value).split())


# %% [markdown]
# ### Exercise 1: a return by hand
#
# Given are the rewards of one episode as a list, the value of the state that its last
# step led to, whether the episode was terminated, and the discount. Return $G_0$,
# the return of the first step.


# %%
def answer(rewards, last_value, terminated, gamma):
    return ...


def checked_return(rewards, last_value, terminated, gamma):
    """Ask `discounted_returns`: a batch of one episode that is terminated or not."""
    reward = torch.tensor(rewards).unsqueeze(1)
    ended = torch.zeros(len(rewards), 1, dtype=torch.bool)
    ended[-1] = terminated
    next_value = torch.full_like(reward, last_value)
    never = torch.zeros_like(ended)
    return discounted_returns(reward, next_value, ended, never, gamma)[0].item()


return_cases = [
    ([1.0, 2.0], 10.0, True, 0.5),
    ([1.0, 2.0], 10.0, False, 0.5),
    ([0.0, 0.0, 1.0], -3.0, False, 0.9),
    ([5.0], 1.0, False, 0.0),
]
grade(answer, checked_return, *return_cases)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer_1(rewards, last_value, terminated, gamma):
    result = 0.0 if terminated else last_value
    for reward in reversed(rewards):
        result = reward + gamma * result
    return result


grade(answer_1, checked_return, *return_cases)

# %% [markdown]
# ### Exercise 2: mend the target
#
# This is a TD(0) target as many programs have it: $r_t + \gamma V(s'_t)$ for a batch of
# steps, tensors of shape $(B,)$. It has the mistake of this chapter. It has a second
# one, which shows when the value of a terminal state is not a finite number. Mend
# both.


# %%
def answer(reward, next_value, terminated, truncated, gamma):
    done = terminated | truncated
    return reward + gamma * next_value * (~done).float()


def checked_target(reward, next_value, terminated, truncated, gamma):
    """Ask `discounted_returns`: for a single row of steps it is the TD(0) target."""
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
def answer_2(reward, next_value, terminated, truncated, gamma):
    return reward + gamma * next_value.masked_fill(terminated, 0.0)


grade(answer_2, checked_target, *target_cases)

# %% [markdown]
# ### Exercise 3: how far does it look?
#
# A task never terminates, but its episodes are cut after `limit` steps, and a program
# takes each cut for a termination. Its values are then those of an agent with a smaller
# discount. Which one? Return it for a discount `gamma` and a limit.


# %%
def answer(gamma, limit):
    return ...


def checked_discount(gamma, limit):
    """Count the steps that go on, solve, and read the discount off the value."""
    goes_on = sum(step + 1 < limit for step in range(limit))
    (value,) = tabular_values([[goes_on / limit]], [1.0], gamma)
    return float(1 - 1 / value)


discount_cases = [(0.99, 20), (0.99, 1000), (0.9, 1), (0.5, 2)]
grade(answer, checked_discount, *discount_cases)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer_3(gamma, limit):
    return gamma * (1 - 1 / limit)


grade(answer_3, checked_discount, *discount_cases)

# %% [markdown]
# ## References
#
# Returns, values and the Bellman equation: chapters 3 and 6 of {cite:t}`sutton2018`.
# Time limits: {cite:t}`pardo2018`. The environments' interface: {cite:t}`towers2024`.
