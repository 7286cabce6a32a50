# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # DDPG and TD3
#
# **How can an actor follow the gradient of its critic through an action?** After this chapter you
# can train an agent with continuous actions and no probabilities. You can say why its critic
# overestimates, and what the three changes of TD3 do about it. It takes about 40 minutes. You
# need the target network of {doc}`dqn` and the buffer of {doc}`replay`.

# %% tags=["export", "hide-input"]
"""DDPG, HDDPG and TD3: an actor that climbs the values of a critic."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from literate_rl.contract_models import (
    ActionValue,
    DeterministicActor,
    ProbabilityActor,
)
from literate_rl.dqn import DQN, EpsilonGreedy, ExploringConfig, QError
from literate_rl.policies import Policy
from literate_rl.replay import Batch
from literate_rl.workshop.fast import (
    FusedCriticError,
    chain_critic_error,
    chain_layers,
    clip_gradient,
    tangent_values,
)
from literate_rl.workshop.nests import as_space, as_vectors, plain_space
from literate_rl.workshop.signatures import (
    Count,
    Float,
    Fraction,
    NonNegative,
    Positive,
    check_finite,
    checked,
)
from literate_rl.workshop.states import ByName, state_spec

__all__ = [
    "DDPG",
    "ActorCritics",
    "BoxActions",
    "DDPGConfig",
    "HDDPGConfig",
    "OneHotActions",
    "TD3Config",
    "clipped_double_target",
    "critic_error",
    "ddpg_error",
    "ddpg_settings",
    "ddpg_target",
    "hddpg_settings",
    "make_ddpg_policy",
    "smoothed_action",
    "td3_settings",
]


# %% [markdown]
# ## A critic is a landscape
#
# DQN computes the values of all $N$ actions and takes the best. If an action is a force between
# $-1$ and $1$, there are infinitely many. But let the **critic** be a network that takes the
# action as an *input*. Then its value is differentiable with respect to the action. In each state
# the values form a landscape over the actions, and one can walk uphill.
#
# The dashed line below is what the actions are really worth in one state. The solid line is what
# a critic believes: it is wrong about actions that it has hardly seen, and has a **ridge** there.
# The dots are the steps of an actor, which walks uphill and knows only the solid line. Move the
# sliders.

# %% tags=["hide-input"]
import math

from literate_rl.workshop.pictures import Axis, Mark, dial, plot

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
# stuck there: the critic promises 0.90, and the environment pays $-0.09$.
#
# The actor is an *adversary* of its critic. It looks for the place where the critic promises
# most, and that is often where the critic is wrong. This is the **overestimation** of {doc}`dqn`:
# a maximum of noisy guesses is too high. Here the maximum is found by climbing.

# %% tags=["claims"]
for start in (-0.9, -0.6, -0.3, 0.0, 0.9):
    assert abs(walk(start, 300, 0.0)[-1] - 0.5) < 0.01, "from anywhere"
stuck = walk(-0.9, 300, 1.0)[-1]
assert abs(believed(stuck, 1.0) - 0.90) < 0.01, "what the critic promises"
assert abs(truth(stuck) + 0.09) < 0.005, "what the environment pays"

# %% [markdown]
# ## What it buys, and what the critic believes
#
# Here are three agents that learn to swing a pendulum up and to hold it there: **DDPG**
# {cite:p}`lillicrap2016`, the plain form; **HDDPG**, whose values rise faster than they fall; and
# **TD3** {cite:p}`fujimoto2018`, DDPG with three changes.
#
# On the left are their returns while training. On the right is how much more the critic promises
# than the agent then earns: the critic's mean value over some states, minus the mean discounted
# return that the policy without noise earns from these states on.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Left: returns of DDPG, HDDPG and TD3 over 10,000 steps of Pendulum, which rise from -1200 to about -150. Right: what the critics promise minus what is earned. For all of them it falls from far above; at the end TD3 is below zero, DDPG near it and HDDPG above it"}}
import matplotlib.pyplot as plt
import numpy as np

from literate_rl.workshop.runs import stored_runs

runs = stored_runs("ddpg_pendulum")
fig, axes = plt.subplots(1, 2, figsize=(7.6, 3))
gaps = {}
for color, (name, found) in zip(("C0", "C2", "C1"), runs.items(), strict=True):
    steps = found.steps / 1000
    gaps[name] = found.watched["estimate"] - found.watched["earned"]
    for axis, curves in zip(axes, (found.curves, gaps[name]), strict=True):
        axis.plot(steps, curves.T, color=color, alpha=0.2, linewidth=0.7)
        axis.plot(steps, np.median(curves, 0), color=color, linewidth=2, label=name)
axes[0].set(xlabel="thousand steps", ylabel="return while training")
axes[1].axhline(0, color="gray", linewidth=0.8)
axes[1].set(xlabel="thousand steps", ylabel="promised minus earned", ylim=(-30, 60))
axes[0].legend()
fig.tight_layout()
for name, found in runs.items():
    ends = " ".join(f"{x:.0f}" for x in np.sort(found.final))
    print(f"{name:6s} {ends}")

# %% [markdown]
# Each thin line is one of ten seeds, each thick one their median. The printed numbers are the
# mean returns of 100 greedy episodes of each last policy. **Notice**:
#
# - HDDPG and TD3 end above −200 with all ten seeds, DDPG with nine. TD3 takes longer; a later
#   figure shows which of its changes is the reason.
# - At first all critics promise far too much, beyond the top of the figure: an untrained critic
#   says about 0, and a pendulum that hangs down earns hundreds less.
# - At the end DDPG and HDDPG promise too much in every run. TD3 promises less than DDPG with
#   every seed, and its median is close to what it earns.
# - The run of DDPG that fails is the one whose critic promises most, by far.
# - HDDPG's promises grow, and yet none of its runs ends below −150. The actor uses only the slope
#   of the critic. An error that is the same for all actions does not change it; an error in one
#   place does.

# %% tags=["claims"]
ends = {name: gap[:, -1] for name, gap in gaps.items()}
assert all(len(found.final) == 10 for found in runs.values())
assert (runs["HDDPG"].final > -150).all(), "none ends below −150"
assert (runs["TD3"].final > -200).all(), "all ten"
assert (runs["DDPG"].final > -200).sum() == 9, "nine"
half_way = {name: np.median(found.curves, 0)[12] for name, found in runs.items()}
assert half_way["TD3"] < min(half_way["DDPG"], half_way["HDDPG"]) - 200, "takes longer"
assert all(gap[:, 1].min() > 300 for gap in gaps.values()), "far too much at first"
assert (ends["DDPG"] > 0).all(), "too much in every run"
assert (ends["HDDPG"] > 0).all(), "too much in every run"
assert (ends["TD3"] < ends["DDPG"]).all(), "with every seed"
assert abs(np.median(ends["TD3"])) < 3, "close to what it earns"
assert ends["DDPG"].argmax() == runs["DDPG"].final.argmin(), "the run that fails"
assert ends["DDPG"].max() > 5 * np.sort(ends["DDPG"])[-2], "by far"
late = [np.median(gaps["HDDPG"], 0)[place] for place in (18, 24)]
assert late[1] > late[0] + 1, "HDDPG's promises grow"

# %% [markdown]
# ## DDPG on one page
#
# Here is the plain form, whole, for the pendulum. It runs from top to bottom. From earlier chapters
# it takes the collector and the buffer. The rest of the chapter takes it apart, adds what makes it
# HDDPG or TD3, and puts it together again for any task.

# %%
import copy

import torch
from torch import nn

from literate_rl.agents import Collector, make_envs
from literate_rl.replay import ReplayBuffer

torch.set_num_threads(1)  # the networks are too small to be shared out

total_steps, random_steps, batch_size = 5_000, 500, 128
learning_rate, gamma, tau, noise = 1e-3, 0.99, 0.005, 0.1
strength = 2.0  # the motor's torque lies between -2 and 2


def network(inputs):
    """Build two hidden layers and one output."""
    first, second = nn.Linear(inputs, 64), nn.Linear(64, 64)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(64, 1))


torch.manual_seed(1)
generator = torch.Generator().manual_seed(1)
actor = nn.Sequential(network(3), nn.Tanh())  # from a state to a share of the torque
critic = network(3 + 1)  # from a state and an action to a value
older_actor, older_critic = copy.deepcopy((actor, critic))
actor_optimizer = torch.optim.Adam(actor.parameters(), learning_rate)
critic_optimizer = torch.optim.Adam(critic.parameters(), learning_rate)


def value(actor, critic, obs):
    """Return what a critic thinks of an actor's actions."""
    return critic(torch.cat([obs, strength * actor(obs)], -1)).squeeze(-1)


def act(obs):
    """Act at random at first, then as the actor does, with some noise."""
    if collector.step < random_steps:
        return strength * (2 * torch.rand(1, 1, generator=generator) - 1)
    action = actor(obs) + noise * torch.randn(1, 1, generator=generator)
    return strength * action.clamp(-1.0, 1.0)


collector, buffer = Collector(make_envs("Pendulum-v1", 1)), ReplayBuffer(total_steps)
collector.reset(seed=1)
returns, snapshots = [], []
while collector.step < total_steps:
    # 1. Act once. Everything is remembered.
    step = collector.collect(act, 1)
    buffer.push(step)
    returns += step.episode_return[step.truncated].tolist()
    if collector.step <= random_steps:
        continue
    batch = buffer.sample(batch_size, generator, gamma=gamma)

    # 2. The critic learns. The next state is judged by older copies of both networks.
    with torch.no_grad():
        next_value = value(older_actor, older_critic, batch.next_obs)
        target = batch.reward + batch.discount * next_value
    q = critic(torch.cat([batch.obs, batch.action], -1)).squeeze(-1)
    critic_optimizer.zero_grad()
    (0.5 * (target - q).square().mean()).backward()
    critic_optimizer.step()

    # 3. The actor climbs what the critic thinks of its actions.
    actor_optimizer.zero_grad()
    (-value(actor, critic, batch.obs).mean()).backward()
    actor_optimizer.step()

    # 4. The older copies follow slowly.
    with torch.no_grad():
        for old, new in ((older_actor, actor), (older_critic, critic)):
            for weight, goal in zip(old.parameters(), new.parameters(), strict=True):
                weight.lerp_(goal, tau)
    # Only for a check further below.
    if len(snapshots) < 10:
        snapshots.append((batch, copy.deepcopy((actor, critic))))

print("first five episodes:", *(f"{x:.0f}" for x in returns[:5]))
print("last five episodes: ", *(f"{x:.0f}" for x in returns[-5:]))

# %% [markdown]
# **Notice** step 3. The loss is the critic's value, but only the actor's optimiser moves. The
# critic is the landscape, and nobody bends a landscape to make the climb shorter.

# %% tags=["claims"]
assert np.mean(returns[-5:]) > np.mean(returns[:10]) + 400, "it learns to swing up"

# %% [markdown]
# ## The gradient through the action
#
# The **actor** is a network with parameters $\phi$ that returns one action, $a = \mu_\phi(s)$.
# The critic $Q_\theta(s, a)$ judges it. The actor should maximise the critic's value of its
# actions, averaged over the states of a batch,
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
# This is the **deterministic policy gradient** {cite:p}`silver2014`, and automatic
# differentiation computes it if the actor's action is passed to the critic. Only the states come
# from the buffer; the actions are the actor's own. So steps of any age will do, without ratios of
# probabilities.
#
# In return the gradient is only as good as the critic's slope, and nothing guarantees that the
# slope is right: the critic is trained to have the right *values*, at the actions that were
# taken.
#
# One module holds the actor and its critics; TD3 will have two. The states reach them by name, so
# that models of your own fit ({doc}`contracts`).


# %% tags=["export"]
class ActorCritics(nn.Module):
    """An actor, and critics that judge its actions.

    Args:
        actor: A model that keeps its contract; its first result is the action.
        critics: Likewise; the first result of each is the value.
        observation_space: It names the states; it is not flattened.
    """

    def __init__(
        self,
        actor: Any,
        critics: Sequence[Any],
        observation_space: spaces.Space[Any],
    ) -> None:
        super().__init__()
        spec = state_spec(observation_space)
        self.actor = ByName(actor, spec)
        self.critics = nn.ModuleList(ByName(critic, spec) for critic in critics)

    def forward(self, obs: Tensor) -> Tensor:
        """Return the actor's actions, before any noise."""
        row: Tensor = self.actor(obs)[0]
        return row

    def q(self, obs: Tensor, action: Tensor) -> Float[Tensor, "K *B"]:
        """Return the value of actions by each of K critics."""
        values = [critic(obs, action=action)[0] for critic in self.critics]
        return torch.stack(values).squeeze(-1)

    def value(self, obs: Tensor) -> Tensor:
        """Return the value of the actor's own actions by the first critic."""
        value: Tensor = self.critics[0](obs, action=self(obs))[0]
        return value.squeeze(-1)


# %% [markdown]
# ## Actions that are numbers
#
# A deterministic actor does not explore, so noise is added when it acts. The numbers of an action
# may have different units, so the noise of each is a share $\sigma_a$ of half its range, $h =
# \tfrac12 (a_{\max} - a_{\min})$. With standard normal numbers $\eta$ and the product $\odot$
# taken element by element,
#
# $$
# a = \mu_\phi(s) + \sigma_a \, h \odot \eta .
# $$ (box-noise)
#
# The first actions of an untrained network are all alike, and such noise would explore only a
# small part of the box. So the first actions are drawn uniformly from the whole box. This is the
# $\varepsilon$ of {doc}`dqn`, 1 for the first 500 steps and 0 after that, by default.
#
# With its noise an action may lie outside the box. The buffer keeps it as it is, and only the
# environment gets a clipped one. So the critic learns that there is nothing to gain beyond the
# edge.


# %% tags=["export"]
class BoxActions:
    """Continuous actions in a box: a row is the action, and noise is added to it.

    Args:
        low: Lower bounds of the box, all finite.
        high: Upper bounds.

    Attributes:
        scale: Standard deviation of the noise, as a share of half the box: one number,
            or one for each environment.
        epsilon: Probability of a random action, drawn uniformly from the box.
    """

    def __init__(self, low: ArrayLike, high: ArrayLike) -> None:
        self.low = torch.as_tensor(np.asarray(low, dtype=np.float32))
        self.high = torch.as_tensor(np.asarray(high, dtype=np.float32))
        self.scale: float | Tensor = 0.0
        self.epsilon: float | Tensor = 0.0

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""
        shape = num_steps, num_envs, len(self.low)
        # The noise, for each number in proportion to its own range, {eq}`box-noise`.
        share = torch.as_tensor(self.scale).reshape(-1, 1)
        added = (
            share * (self.high - self.low) / 2 * torch.randn(shape, generator=generator)
        )
        # With probability ε a uniform action replaces the actor's; NaN elsewhere.
        explore = torch.rand(shape[:2], generator=generator) < self.epsilon
        anything = torch.rand(shape, generator=generator)
        anything = self.low + (self.high - self.low) * anything
        instead = anything.masked_fill(~explore.unsqueeze(-1), torch.nan)
        return torch.cat([added, instead], -1)

    @checked
    def choose(
        self, row: Float[Tensor, "*B A"], noise: Float[Tensor, "*B 2*A"] | float
    ) -> Float[Tensor, "*B A"]:
        """Return the actions that follow from rows and noise."""
        if isinstance(noise, float):
            return row + noise
        added, instead = noise.chunk(2, -1)
        return torch.where(instead.isnan(), row + added, instead)

    def nearby(
        self, action: Tensor, generator: torch.Generator, smoothing: float, clip: float
    ) -> Tensor:
        """Move actions a little, at random: see ``smoothed_action``."""
        noise = torch.randn(action.shape, generator=generator).to(action)
        box = self.low.to(action), self.high.to(action)
        return smoothed_action(action, noise, *box, smoothing, clip)

    def to_env(self, action: Tensor) -> NDArray[np.float32]:
        """Clip actions to the box, each dimension to its own bounds."""
        clipped: NDArray[np.float32] = action.clamp(self.low, self.high).numpy()
        return clipped


# %% [markdown]
# **Discrete actions** can be learned in this way too, with an actor that returns $N$
# probabilities. An action is drawn from them, and the critic learns from it as a one-hot row: 1
# for this action, 0 for the others. But when the actor climbs, the critic gets the probabilities
# themselves.
#
# So it is asked about rows between those that it has learned from, where nothing guarantees that
# it is right. For discrete actions {doc}`dqn` is the better choice. The code is folded.


# %% tags=["export", "hide-input"]
class OneHotActions:
    """One of N actions; a row holds probabilities, and an action is a one-hot row.

    Args:
        num_actions: Number of actions N.
        start: What the environment calls the first action.

    Attributes:
        epsilon: Probability of a random action, as in ``EpsilonGreedy``.
    """

    def __init__(self, num_actions: int, start: int = 0) -> None:
        self.num_actions, self.start = num_actions, start
        self.epsilon: float | Tensor = 0.0

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""
        # The race of {doc}`policies` draws an action from the probabilities. On top of
        # it, ε-greedy takes any action now and then.
        shape = num_steps, num_envs, self.num_actions
        race = -torch.empty(shape).exponential_(generator=generator).log()
        now_and_then = EpsilonGreedy(self.num_actions)
        now_and_then.epsilon = self.epsilon
        return race + now_and_then.noise(num_steps, num_envs, generator)

    @checked
    def choose(
        self, row: Float[Tensor, "*B N"], noise: Float[Tensor, "*B N"] | float
    ) -> Float[Tensor, "*B N"]:
        """Return the actions that follow from probabilities and noise."""
        # A probability of 0 would have the logarithm −∞, and then the random action of
        # ε-greedy could not win. So the smallest positive number replaces it.
        log_prob = row.clamp(min=torch.finfo(row.dtype).tiny).log()
        best = (log_prob + noise).argmax(-1, keepdim=True)
        return torch.zeros_like(row).scatter_(-1, best, 1.0)

    def nearby(
        self, action: Tensor, generator: torch.Generator, smoothing: float, clip: float
    ) -> Tensor:
        """Return probabilities as they are: they need no smoothing."""
        return action

    def to_env(self, action: Tensor) -> NDArray[np.int64]:
        """Return the actions as vector environments take them."""
        names: NDArray[np.int64] = action.argmax(-1).numpy() + self.start
        return names


# %% [markdown]
# ## Targets that promise less
#
# The critic learns from its own guess, as in {doc}`dqn`. The maximum over all next actions cannot
# be computed here, but the actor is trained to find it, so the target has the actor's action.
# Both networks have older copies, marked by a bar, which follow them slowly. In DDPG the target
# is $y = r + \gamma\, Q_{\bar\theta}(s', \mu_{\bar\phi}(s'))$.
#
# TD3 changes three things. The first is **twin critics**, with different first weights and
# therefore different errors. Both learn from the same target, that of the less optimistic one
# (clipped double Q-learning):
#
# $$
# y = r + \gamma \min_k Q_{\bar\theta_k}(s', a') .
# $$ (clipped-double-target)
#
# As in {doc}`dqn`, $\gamma$ becomes $\gamma^m$ in a window of $m$ steps, and 0 after a
# termination. A time limit is not a termination.


# %% tags=["export"]
@checked
def clipped_double_target(
    reward: Float[Tensor, "N"],
    discount: Float[Tensor, "N"],
    next_q: Float[Tensor, "K N"],
) -> Float[Tensor, "N"]:
    """Return the targets of K critics, without gradient.

    ``discount`` is the factor of the next value: a power of gamma, or 0 after a
    termination, where ``next_q`` may hold anything.

    Source: Fujimoto, van Hoof and Meger 2018, equation 10.
    """
    # The least optimistic critic counts, {eq}`clipped-double-target`.
    future = next_q.detach().amin(0).masked_fill(discount == 0, 0.0)
    target = torch.addcmul(reward, discount, future)
    check_finite(target, reward=reward, discount=discount, next_q=future)
    return target


# %% [markdown]
# The second change is **target policy smoothing**. Similar actions should have similar values, so
# the next action is moved a little, at random, before it is judged. A narrow ridge is then
# averaged with what lies beside it.
#
# As in {eq}`box-noise`, each number moves by a share of its own $h$. The share has standard
# deviation $\sigma_y$ and is clipped to $c_y$, and the action stays within its bounds:
#
# $$
# a' = \operatorname{clip}\bigl( \mu_{\bar\phi}(s') + h \odot
# \operatorname{clip}(\sigma_y \eta, -c_y, c_y), \; a_{\min}, \; a_{\max} \bigr) .
# $$ (smoothed-action)


# %% tags=["export"]
@checked
def smoothed_action(
    action: Float[Tensor, "N A"],
    noise: Float[Tensor, "N A"],
    low: Float[Tensor, "A"],
    high: Float[Tensor, "A"],
    smoothing: NonNegative = 0.2,
    clip: NonNegative = 0.5,
) -> Float[Tensor, "N A"]:
    """Return an action near another one, inside the box.

    Args:
        action: The actions.
        noise: Standard normal numbers.
        low: Lower bounds of the box.
        high: Upper bounds.
        smoothing: Standard deviation of the distance, as a share of half the box.
        clip: Bound of that distance, as the same share.

    Source: Fujimoto, van Hoof and Meger 2018, section 5.3.
    """
    # Each dimension has its own scale and its own bounds, {eq}`smoothed-action`.
    half = (high - low) / 2
    distance = half * (smoothing * noise).clamp(-clip, clip)
    return (action + distance).clamp(low, high)


# %% [markdown]
# What do these two changes do to the ridge of the first picture? Below, the second critic has a
# ridge too, at another place. The solid line is the next value in the target, for each action
# that the older actor might choose.

# %% tags=["hide-input"]
import torch

from literate_rl.ddpg import smoothed_action  # the same as above

noise = torch.randn(4001, 1, generator=torch.Generator().manual_seed(0))
low, high = torch.tensor([-1.0]), torch.tensor([1.0])


def critics_at(action, num_critics):
    """Return the least of the critics' beliefs; each has its ridge somewhere else."""
    base = 0.5 - 0.5 * (action - 0.5) ** 2
    values = [base + torch.exp(-(((action - x) / 0.12) ** 2) / 2) for x in (-0.6, 0.0)]
    return torch.stack(values[:num_critics]).amin(0)


def target_at(action, num_critics, smoothing):
    """Return what a target believes of a next action, averaged over the noise."""
    rows = smoothed_action(
        torch.full_like(noise, action), noise, low, high, smoothing, 0.5
    )
    return critics_at(rows, num_critics).mean().item()


def targets(num_critics, smoothing):
    seen = places[::2]
    found = [target_at(x, num_critics, smoothing) for x in seen]
    picture = plot(
        "What a target believes",
        "The true values, and what the target believes. With one critic and no smoothing "
        "it has a high ridge; smoothing makes it lower, and twins make it vanish.",
        Axis("next action", -1.05, 1.05, ticks=(-1, -0.6, 0, 0.5, 1)),
        Axis("value", -0.7, 1.05, ticks=(0, 0.5, 1)),
        Mark("line dashed", places, [truth(x) for x in places], "quiet"),
        Mark("line", seen, found, "accent"),
        width=440,
    )
    ridge = target_at(-0.6, num_critics, smoothing)
    return [
        picture
    ], f"On the ridge the target believes {ridge:.2f}; the truth is −0.10."


dial(
    "Targets with one critic or two, and with smoothing",
    targets,
    {"critics": [1, 2], "smoothing": [0.0, 0.1, 0.2, 0.4]},
    start=(1, 0.0),
)

# %% [markdown]
# **Notice** that the minimum removes both ridges, because the two critics are wrong at different
# places. Where both are too high, it cannot help. Smoothing lowers a narrow ridge, but a true
# summit a little as well.
#
# A minimum is never above either critic, so TD3 tends to underestimate. That is the safer side:
# an actor is not drawn to actions that are underestimated.

# %% tags=["claims"]
ridge = [target_at(-0.6, k, s) for k, s in ((1, 0.0), (1, 0.2), (2, 0.0))]
assert ridge[0] > 0.85, "the ridge"
assert 0.3 < ridge[1] < 0.6, "smoothing lowers it"
assert abs(ridge[2] - truth(-0.6)) < 0.01, "the minimum removes it"
assert target_at(0.5, 1, 0.2) < truth(0.5), "a true summit becomes a little lower"

# %% [markdown]
# The third change is **delayed updates**. The actor and the older copies move only after every
# second update of the critics (`target_interval`), so that the actor climbs a landscape that has
# had time to settle.
#
# ## Two rates
#
# HDDPG has one critic and another idea: values rise at one rate and fall at another,
#
# $$
# \mathcal L = \tfrac12 \sum_k \alpha(\delta_k) \, \delta_k^2 , \qquad \alpha(\delta) =
# \begin{cases} \alpha_+ & \text{if } \delta > 0 \\ \alpha_- & \text{else,} \end{cases}
# $$ (hysteretic)
#
# where $\delta_k = y - Q_{\theta_k}(s, a)$ is the TD error of critic $k$. With $\alpha_- <
# \alpha_+$ bad news counts less than good news; with both rates at 1 this is DDPG.
#
# This is **hysteretic Q-learning** {cite:p}`matignon2007`, made for several agents that learn
# side by side. While the others still explore, a bad outcome may be their fault.
#
# A single agent pays for it. A value settles where the pulls of both sides are equal: $\alpha_+
# \mathbb E[\max(y - Q, 0)] = \alpha_- \mathbb E[\max(Q - y, 0)]$. That is above the mean of the
# targets, and the error enters the next target, and the next. This is why HDDPG's promises grow
# in the figure of the three agents. The cell below the function shows how far a single value
# rises.


# %% tags=["export"]
@checked
def critic_error(
    q: Float[Tensor, "K N"],
    target: Float[Tensor, "N"],
    increase: NonNegative = 1.0,
    decrease: NonNegative = 1.0,
) -> Float[Tensor, "N"]:
    """Compute the loss of K critics, summed over them.

    Args:
        q: Their values, with gradient.
        target: What the values should be; treated as a constant.
        increase: Rate at which a value rises towards its target.
        decrease: Rate at which it falls.
    """
    td_error = target.detach() - q
    # A value below its target and one above it may learn at different rates,
    # {eq}`hysteretic`.
    rate = torch.where(td_error > 0, increase, decrease).to(q)
    error = (0.5 * rate * td_error.square()).sum(0)
    check_finite(error, q=q, target=target)
    return error


# %%
# Targets of 1 and −1, equally often. Where does the value settle?
settled = {}
for decrease in (1.0, 0.5, 0.1):
    q = torch.zeros(1, 2, requires_grad=True)
    value = torch.zeros(())
    for _ in range(2000):
        q = value.expand(1, 2).clone().requires_grad_()
        (grad,) = torch.autograd.grad(
            critic_error(q, torch.tensor([1.0, -1.0]), 1.0, decrease).sum(), q
        )
        value = value - 0.01 * grad.sum()
    settled[decrease] = value.item()
    print(f"rates 1 and {decrease}: the value settles at {value.item():.2f}")

# %% tags=["claims"]
assert abs(settled[1.0]) < 1e-6
assert abs(settled[0.5] - 1 / 3) < 0.01, "above the mean, which is 0"
assert abs(settled[0.1] - 9 / 11) < 0.01

# %% [markdown]
# ## From targets to losses
#
# These pieces make a function of the same form as `q_error`, so that the loop of {doc}`dqn` can
# use it. The TD error that becomes a priority is measured from the mean of the critics' values.


# %% tags=["export"]
def ddpg_target(
    policy: Any,
    target_policy: Any,
    batch: Batch,
    generator: torch.Generator,
    smoothing: float,
    clip: float,
) -> Tensor:
    """Return what the critics should think of the actions in a batch.

    Args:
        policy: The policy in training; its network is an ``ActorCritics``.
        target_policy: Its older copy.
        batch: Windows of steps, as the buffer returned them.
        generator: The source of the smoothing's noise.
        smoothing: As in ``smoothed_action``; 0 is none.
        clip: As in ``smoothed_action``.
    """
    with torch.no_grad():
        # 1. What would the older actor do next?
        action = target_policy(batch.next_obs)
        if smoothing > 0:
            action = policy.actions.nearby(action, generator, smoothing, clip)
        # 2. What is that worth to the older critics? This gives the target.
        next_q = target_policy.network.q(batch.next_obs, action)
        return clipped_double_target(batch.reward, batch.discount, next_q)


def ddpg_error(
    policy: Any,
    target_policy: Any,
    batch: Batch,
    generator: torch.Generator,
    smoothing: float = 0.0,
    clip: float = 0.5,
    increase: float = 1.0,
    decrease: float = 1.0,
) -> QError:
    """Compare the critics' values of actions with their targets.

    Args:
        policy: As in ``ddpg_target``, like the next five.
        target_policy: As in ``ddpg_target``.
        batch: As in ``ddpg_target``.
        generator: As in ``ddpg_target``.
        smoothing: As in ``ddpg_target``.
        clip: As in ``ddpg_target``.
        increase: As in ``critic_error``.
        decrease: As in ``critic_error``.
    """
    target = ddpg_target(policy, target_policy, batch, generator, smoothing, clip)
    # 3. How far is each critic from it, for the action that was taken?
    q = policy.network.q(batch.obs, batch.action)
    loss = critic_error(q, target, increase, decrease)
    value = q.detach().mean(0)
    return QError(loss, target - value, value)


# %% [markdown]
# A folded cell has the same error without a graph, for our own networks ({doc}`workshop/fast`).


# %% tags=["export", "hide-input"]
def critic_chains(critics: Iterable[Any]) -> list[list[nn.Module]] | None:
    """Return the layers of critics that are our own, or None if one is not."""
    ours = [type(critic.model) is ActionValue for critic in critics]
    chains = [chain_layers(critic.model.net) for critic in critics] if all(ours) else []
    known = [chain for chain in chains if chain is not None]
    return known if len(known) == len(ours) else None


def fused_ddpg_error(
    policy: Any,
    target_policy: Any,
    batch: Batch,
    generator: torch.Generator,
    smoothing: float = 0.0,
    clip: float = 0.5,
    increase: float = 1.0,
    decrease: float = 1.0,
) -> QError | FusedCriticError:
    """Compute what ``ddpg_error`` does, faster if the critics are our own."""
    given = policy, target_policy, batch, generator, smoothing, clip
    chains = critic_chains(policy.network.critics)
    if chains is None:
        return ddpg_error(*given, increase, decrease)
    target = ddpg_target(*given)
    return chain_critic_error(chains, batch, target, increase, decrease)


def frozen_values(critics: Any, obs: Tensor, action: Tensor) -> Float[Tensor, "K N"]:
    """Return what critics think of actions; only the actions need a gradient."""
    chains = critic_chains(critics)
    if chains is not None:
        return tangent_values(chains, obs, action)
    return torch.stack([critic(obs, action=action)[0] for critic in critics]).squeeze(
        -1
    )


# %% [markdown]
# ## The loop
#
# The loop is that of {doc}`dqn` with one addition: before the older copies move, the actor takes
# a step uphill.


# %% tags=["export"]
class DDPG(DQN):
    """DQN for continuous actions: an actor finds the best one.

    With twin critics, a delay and smoothing it is TD3.

    Args:
        policy: What ``make_ddpg_policy`` returns, on any device.
        envs: A vector environment with ``config.num_envs`` copies.
        config: The settings.
    """

    def __init__(
        self, policy: Any, envs: VectorEnv[Any, Any, Any], config: DDPGConfig
    ) -> None:
        error = partial(
            fused_ddpg_error,
            smoothing=config.smoothing,
            clip=config.smoothing_clip,
            increase=config.increase,
            decrease=config.decrease,
        )
        super().__init__(policy, envs, config, error, policy.act)
        actor = policy.network.actor
        self.actor_parameters = [p for p in actor.parameters() if p.requires_grad]
        policy.actions.scale = config.noise

    def follow(self, batch: Batch) -> None:
        """Let the actor climb, then let the older copies follow."""
        self.climb(batch.obs)
        super().follow(batch)

    def climb(self, obs: Tensor) -> None:
        """Take one step of the optimiser on the actor."""
        # The first critic's value of the actor's own actions, {eq}`actor-loss`. The
        # optimiser goes downhill, hence the minus.
        network: Any = self.policy.network
        loss = -frozen_values(network.critics[:1], obs, network(obs)).mean()
        # The gradient goes through the critic to the actor's parameters alone,
        # {eq}`policy-gradient-through-critic`. The optimiser does not move parameters
        # without a gradient, so the critics stay as they are.
        for parameter in self.parameters:
            parameter.grad = None
        # A model of your own may have parameters on which its action does not depend.
        grads = torch.autograd.grad(loss, self.actor_parameters, allow_unused=True)
        for parameter, grad in zip(self.actor_parameters, grads, strict=True):
            parameter.grad = grad
        clip_gradient(self.actor_parameters, self.config.max_grad_norm)
        self.optimizer.step()


# %% [markdown]
# ## A policy for the spaces of an environment
#
# Our own networks are those of {doc}`contract_models`: two hidden layers, and `tanh` stretched to
# the bounds of each number. You can also pass models of your own. If you pass only one critic for
# TD3, the second is a copy *with fresh weights*: two equal critics that learn from equal targets
# would stay equal, and their minimum would change nothing.


# %% tags=["export", "hide-input"]
@checked
def make_ddpg_policy(
    observation_space: spaces.Space[Any] | dict[str, Any],
    action_space: spaces.Space[Any] | dict[str, Any],
    hidden: Count = 64,
    num_critics: Count = 1,
    actor: Any = None,
    critic: Any = None,
) -> Policy:
    """Build an actor and critics for the spaces of one environment.

    Args:
        observation_space: A space, or what ``plain_space`` made of it; vectors for our
            own networks.
        action_space: A bounded box of vectors, or a Discrete space.
        hidden: Width of our networks' hidden layers.
        num_critics: Number of critics.
        actor: An actor of your own instead of ours.
        critic: A critic of your own, or a sequence of them. If there is only one, the
            others are copies with fresh weights.
    """
    states, actions = as_space(observation_space), as_space(action_space)
    # Continuous actions have bounds, discrete ones probabilities.
    if isinstance(actions, spaces.Discrete):
        size = int(actions.n)
        make_actor: Callable[..., Any] = partial(ProbabilityActor, action_num=size)
        choice: Any = OneHotActions(size, int(actions.start))
    elif isinstance(actions, spaces.Box) and bounded(actions):
        size = actions.shape[0]
        make_actor = partial(DeterministicActor, low=actions.low, high=actions.high)
        choice = BoxActions(actions.low, actions.high)
    else:
        raise ValueError(
            f"action_space must be Discrete or a vector within bounds, got {actions}"
        )
    recipe: dict[str, Any] = {
        "observation_space": plain_space(states),
        "action_space": plain_space(actions),
        "hidden": hidden,
        "num_critics": num_critics,
    }
    if actor is None:
        inputs = as_vectors(states).shape[0]
        actor = make_actor(inputs, hidden=hidden)
        critics = [ActionValue(inputs, size, hidden) for _ in range(num_critics)]
    else:
        critics = as_many(critic, num_critics)
        kinds = {"actor": actor, "critic": critic}
        recipe["models"] = {name: type(x).__qualname__ for name, x in kinds.items()}
    network = ActorCritics(actor, critics, states)
    return Policy(network, choice, ("make_ddpg_policy", recipe))


def bounded(space: spaces.Box) -> bool:
    """Return whether a box holds vectors, with finite bounds."""
    return len(space.shape) == 1 and space.is_bounded()


def as_many(critic: Any, number: int) -> list[Any]:
    """Return critics, made from one if only one is given."""
    several = isinstance(critic, list | tuple | nn.ModuleList)
    given = list(critic) if several else [critic]
    while len(given) < number:
        # Equal critics would stay equal, so a copy gets fresh weights.
        twin = copy.deepcopy(given[0])
        for module in twin.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        given.append(twin)
    return given


# %% [markdown]
# ## Settings
#
# The three agents are one class and differ only in their settings. With `num_critics=1`,
# `target_interval=1` and `smoothing=0` TD3 *is* DDPG, update for update, and so is HDDPG with
# equal rates. Priorities (`alpha`) and $n$-step targets (`num_steps`) come with the loop of
# {doc}`dqn`. What {doc}`contracts` calls DDPGPer is DDPG with `alpha=0.6`.


# %% tags=["export"]
@checked
@dataclass(frozen=True)
class DDPGConfig(ExploringConfig):
    """Settings of DDPG: those of DQN with other defaults, and some of its own.

    Attributes:
        num_critics: Number of critics; the targets take the least optimistic one.
        noise: Standard deviation of the noise on actions, as a share of half the box.
        smoothing: The same for the next action in a target; 0 turns it off.
        smoothing_clip: Bound of that noise, as the same share.
        increase: Rate at which values rise towards their targets.
        decrease: Rate at which they fall.
    """

    num_envs: Count = 1
    hidden: Count = 64
    learning_rate: Positive = 1e-3
    train_interval: Count = 1
    learning_starts: Count = 500
    tau: Fraction = 0.005
    epsilon_end: Fraction = 0.0
    epsilon_steps: Count = 500
    max_grad_norm: Positive = math.inf
    log_interval: Count = 500
    num_critics: Count = 1
    noise: NonNegative = 0.1
    smoothing: NonNegative = 0.0
    smoothing_clip: NonNegative = 0.5
    increase: NonNegative = 1.0
    decrease: NonNegative = 1.0


@checked
@dataclass(frozen=True)
class HDDPGConfig(DDPGConfig):
    """Settings of hysteretic DDPG: values fall more slowly than they rise."""

    decrease: NonNegative = 0.5


@checked
@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    """Settings of TD3: two critics, delayed updates, smoothed targets."""

    target_interval: Count = 2
    num_critics: Count = 2
    smoothing: NonNegative = 0.2


# %% tags=["export"]
# Settings with which the agents have learned, by environment. For what an entry leaves
# out, the default holds.
SETTINGS: dict[str, dict[str, Any]] = {"Pendulum-v1": {"total_steps": 10_000}}


def ddpg_settings(env: str) -> DDPGConfig:
    """Return settings for an environment: its own if we know some, else the defaults.

    Args:
        env: Id of the environment.
    """
    return DDPGConfig(**SETTINGS.get(env, {}))


def hddpg_settings(env: str) -> HDDPGConfig:
    """Return settings of hysteretic DDPG, likewise."""
    return HDDPGConfig(**SETTINGS.get(env, {}))


def td3_settings(env: str) -> TD3Config:
    """Return settings of TD3, likewise."""
    return TD3Config(**SETTINGS.get(env, {}))


# %% [markdown]
# With these pieces `DDPG` does what the program at the top does. The folded cell gives both the
# same ten batches and compares their weights.

# %% tags=["claims"]
torch.manual_seed(1)
envs = make_envs("Pendulum-v1", 1)
policy = make_ddpg_policy(envs.single_observation_space, envs.single_action_space)
learner = DDPG(policy, envs, DDPGConfig())
for batch, models in snapshots:
    learner.sample = lambda batch=batch: batch
    learner.learn()
    theirs = [*policy.network.actor.parameters(), *policy.network.critics.parameters()]
    ours = [p for model in models for p in model.parameters()]
    for x, y in zip(ours, theirs, strict=True):
        assert torch.allclose(x, y, atol=1e-5), "the same weights"

# %% [markdown]
# ## What each part buys
#
# Here is TD3 with all three changes, without one of them, and without any, which is DDPG. On the
# left is the median return while training, on the right by how much the critic promises too much
# at the end, a dot for each seed.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Left: median returns over 10,000 steps for TD3, TD3 without one of its parts, and DDPG. Right: a row of dots for each, what the critic promises minus what is earned at the end"}}
parts = {"TD3": runs["TD3"], **stored_runs("td3_switches"), "DDPG": runs["DDPG"]}
num_seeds = min(len(found.final) for found in parts.values())
fig, axes = plt.subplots(1, 2, figsize=(7.6, 3))
last_gaps = {}
for place, (name, found) in enumerate(parts.items()):
    curves = np.median(found.curves[:num_seeds], 0)
    axes[0].plot(found.steps / 1000, curves, color=f"C{place}", label=name)
    gap = (found.watched["estimate"] - found.watched["earned"])[:num_seeds, -1]
    last_gaps[name] = gap
    axes[1].plot(gap.clip(max=30), np.full(num_seeds, place), "o", color=f"C{place}")
axes[0].set(xlabel="thousand steps", ylabel="return while training")
axes[0].legend(fontsize=8)
axes[1].axvline(0, color="gray", linewidth=0.8)
axes[1].set_yticks(range(len(parts)), parts)
axes[1].set(xlabel="promised minus earned, at most 30")
axes[1].invert_yaxis()
fig.tight_layout()
for name, found in parts.items():
    ends = " ".join(f"{x:.0f}" for x in found.final[:num_seeds])
    print(f"{name:18s} {ends}")

# %% [markdown]
# Five seeds are too few for a ranking. **Notice** all the same:
#
# - The delay is what makes TD3 take longer here. Without it the median return is hundreds higher
#   when half of the steps are done. But then the critics promise still less, with every seed.
# - Without the second critic the promises are higher, with every seed, and the seed with which
#   DDPG fails ends below −200 here too.
# - On smoothing, five seeds show nothing clear.

# %% tags=["claims"]
assert num_seeds == 5
half_way = {n: np.median(found.curves[:5, 12]) for n, found in parts.items()}
assert half_way["without delay"] > half_way["TD3"] + 300, "hundreds ahead"
assert (last_gaps["without delay"] < last_gaps["TD3"]).all(), "too little"
assert (last_gaps["without twins"] > last_gaps["TD3"]).all(), "with every seed"
fails = {n: found.final[:5].argmin() for n, found in parts.items()}
assert fails["without twins"] == fails["DDPG"], "the same seed"
assert (parts["without twins"].final < -200).sum() == 1
change = last_gaps["without smoothing"] - last_gaps["TD3"]
assert change.min() < 0 < change.max(), "nothing clear"

# %% [markdown]
# ## Traps
#
# ### Trap: no noise at all
#
# A deterministic actor without noise repeats itself. In Stable-Baselines3 the noise of DDPG and
# TD3 is
# [`None`](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/td3/td3.py#L92)
# unless you pass one, and the random start has [100
# steps](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/td3/td3.py#L86).
# A maintainer [recommends](https://github.com/DLR-RM/stable-baselines3/issues/1547) adding some.
# Here the default is 0.1, and `noise=0` has to be asked for.
#
# ### Trap: the unit of the noise
#
# 0.1 of what? Spinning Up adds 0.1 in the [units of the
# environment](https://github.com/openai/spinningup/blob/038665d62d569055401d91856abb287263096178/spinup/algos/pytorch/td3/td3.py#L266-L269).
# For a thruster that takes 0 to 0.02 that is five times its range; for a valve that takes 0 to
# 100 it is next to nothing.

# %%
from literate_rl.ddpg import BoxActions

thruster, valve = (0.0, 0.02), (0.0, 100.0)
box = BoxActions([thruster[0], valve[0]], [thruster[1], valve[1]])
box.scale = 0.1
drawn = box.noise(2000, 1, torch.Generator().manual_seed(0))[:, 0, :2]
ours = drawn.std(0) / (box.high - box.low)
theirs = 0.1 / (box.high - box.low)
for name, share in (("a share of the box", ours), ("units of the environment", theirs)):
    print(f"{name:26s} thruster {share[0]:.3f} of its range, valve {share[1]:.3f}")

# %% tags=["claims"]
assert torch.allclose(ours, torch.tensor([0.05, 0.05]), atol=0.003)
assert torch.allclose(theirs, torch.tensor([5.0, 0.001]))

# %% [markdown]
# ### Trap: twins that are one
#
# If the second critic is a plain copy of the first, both get the same batches and the same
# targets. They stay equal forever. Nothing crashes, and the minimum does nothing.

# %%
import copy

from literate_rl.contract_models import ActionValue

torch.manual_seed(0)
first = ActionValue(3, 1, 16)
apart = {}
for name, second in {
    "copied": copy.deepcopy(first),
    "with fresh weights": ActionValue(3, 1, 16),
}.items():
    one = copy.deepcopy(first)
    critics = [one, second]
    adam = [torch.optim.Adam(x.parameters(), 1e-2) for x in critics]
    for _ in range(100):
        obs, action, y = torch.randn(32, 3), torch.rand(32, 1), torch.randn(32, 1)
        for critic, optimizer in zip(critics, adam, strict=True):
            optimizer.zero_grad()
            (critic(obs, action) - y).square().mean().backward()
            optimizer.step()
    apart[name] = (one(obs, action) - second(obs, action)).abs().max().item()
    print(f"a second critic {name}: after 100 updates {apart[name]:.3f} apart")

# %% tags=["claims"]
assert apart["copied"] == 0.0
assert apart["with fresh weights"] > 0.01

# %% [markdown]
# ## What well-known implementations do
#
# | choice | this chapter | [CleanRL](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/td3_continuous_action.py#L196-L267) | [Stable-Baselines3](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/td3/td3.py#L157-L211) | [Tianshou](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/algorithm/modelfree/td3.py#L190-L220) | [Machin](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/td3.py#L169-L260) | [Spinning Up](https://github.com/openai/spinningup/blob/038665d62d569055401d91856abb287263096178/spinup/algos/pytorch/td3/td3.py#L181-L264) |
# |---|---|---|---|---|---|---|
# | noise when acting | 0.1 of half the box | [0.1 of half the box](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/td3_continuous_action.py#L203), one draw for all environments | [none](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/td3/td3.py#L92) | [none](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/algorithm/modelfree/ddpg.py#L49); "default" is [0.1 in −1..1](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/algorithm/modelfree/ddpg.py#L93-L94) | [as the caller says](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/ddpg.py#L209-L216) | [0.1 in units of the environment](https://github.com/openai/spinningup/blob/038665d62d569055401d91856abb287263096178/spinup/algos/pytorch/td3/td3.py#L266-L269) |
# | random start | 500 steps | [25,000 steps](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/td3_continuous_action.py#L65) | [100 steps](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/td3/td3.py#L86) | as the user collects | none | [10,000 steps](https://github.com/openai/spinningup/blob/038665d62d569055401d91856abb287263096178/spinup/algos/pytorch/td3/td3.py#L47) |
# | smoothing of the target | share of half the box | [share of half the box](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/td3_continuous_action.py#L232-L234) | [in −1..1](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/td3/td3.py#L174-L176) | [in −1..1](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/algorithm/modelfree/td3.py#L195-L199) | [none unless overridden](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/td3.py#L263-L266) | [in units of the environment](https://github.com/openai/spinningup/blob/038665d62d569055401d91856abb287263096178/spinup/algos/pytorch/td3/td3.py#L192-L193) |
# | bounds of the next action | of each number | [of the first number](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/td3_continuous_action.py#L236-L238) | [−1 and 1](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/td3/td3.py#L176) | [none](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/algorithm/modelfree/td3.py#L195-L202) | none | [plus and minus the first upper bound](https://github.com/openai/spinningup/blob/038665d62d569055401d91856abb287263096178/spinup/algos/pytorch/td3/td3.py#L160) |
# | second critic | fresh weights | [fresh weights](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/td3_continuous_action.py#L172-L173) | [fresh weights](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/common/policies.py#L964-L969) | [a copy unless one is given](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/algorithm/modelfree/td3.py#L90) | [as the user passes it](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/td3.py#L27-L28) | [fresh weights](https://github.com/openai/spinningup/blob/038665d62d569055401d91856abb287263096178/spinup/algos/pytorch/td3/core.py#L57-L58) |
# | delay | 2 | [2, in steps](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/td3_continuous_action.py#L255) | [2, in updates](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/td3/td3.py#L197) | [2, in updates](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/algorithm/modelfree/td3.py#L215) | [a flag of the caller](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/td3.py#L172) | [2, in updates](https://github.com/openai/spinningup/blob/038665d62d569055401d91856abb287263096178/spinup/algos/pytorch/td3/td3.py#L238) |
# | time limits | bootstrap | [bootstrap](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/td3_continuous_action.py#L218-L223) | [bootstrap](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/common/buffers.py#L320-L322) | [bootstrap](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/algorithm/algorithm_base.py#L651) | as the user stores them | [bootstrap](https://github.com/openai/spinningup/blob/038665d62d569055401d91856abb287263096178/spinup/algos/pytorch/td3/td3.py#L305) |
#
# We read the code at the linked commits. In all of them the actor climbs the first critic only.
# HDDPG is Machin's, where both rates are [1 by
# default](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/hddpg.py#L29-L30),
# which makes it DDPG.

# %% [markdown]
# ## On the best device
#
# Here `fit` ({doc}`workshop/runs`) trains three agents for a moment, on a GPU if there is one.
# The second is TD3 with its three changes switched off.

# %%
from dataclasses import replace

from literate_rl.agents import best_device, make_envs
from literate_rl.workshop.runs import fit, flat_env


def make_learner(config, env="Pendulum-v1"):
    """Build environments, policy and learner."""
    envs = make_envs(partial(flat_env, env), config.num_envs)
    torch.manual_seed(config.seed)
    spaces = envs.single_observation_space, envs.single_action_space
    policy = make_ddpg_policy(*spaces, config.hidden, config.num_critics)
    return DDPG(policy.to(best_device()), envs, config)


off = {"num_critics": 1, "target_interval": 1, "smoothing": 0.0}
weights = {}
for name, config in {
    "DDPG": ddpg_settings("Pendulum-v1"),
    "TD3 without its parts": replace(td3_settings("Pendulum-v1"), **off),
    "TD3": td3_settings("Pendulum-v1"),
}.items():
    learner = make_learner(replace(config, total_steps=1000))
    history = fit(learner, progress=False)
    weights[name] = next(learner.policy.network.actor.parameters()).sum().item()
    print(
        f"{name:22s} {learner.updates} updates, first weights sum to {weights[name]:.6f}"
    )

# %% tags=["claims"]
assert weights["TD3 without its parts"] == weights["DDPG"], "update for update"
assert weights["TD3"] != weights["DDPG"]

# %% [markdown]
# ## Summary
#
# - A critic that takes the action as an input has a slope over the actions, and the actor climbs
#   it.
# - The actor seeks out the critic's errors, so DDPG tends to overestimate.
# - TD3 believes the less optimistic of two critics, smooths its targets, and updates the actor
#   less often.
# - Different rates for rising and falling make values optimistic (HDDPG) or pessimistic.
# - Noise, its clip and the bounds have their own scale for each number of an action.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.workshop.pictures import predict

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
    "simply praise whatever the actor does. So `climb` asks for the gradient of the actor's "
    "parameters alone.",
)

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function should compute `smoothed_action`. On a box of one number from
# $-1$ to $1$ it is right. Fix it.


# %%
def answer(action, noise, low, high):
    distance = (0.2 * noise).clamp(-0.5, 0.5)
    return (action + distance).clamp(low[0], high[0])


# %% tags=["hide-input"]
from literate_rl.agents import grade


def near_actions(seed):
    """Return actions, noise and the bounds of two numbers."""
    generator = torch.Generator().manual_seed(seed)
    low, high = torch.tensor([-1.0, 0.0]), torch.tensor([3.0, 0.5])
    share, noise = torch.rand(2, 6, 2, generator=generator)
    return low + share * (high - low), 4 * noise - 2, low, high


grade(answer, smoothed_action, *map(near_actions, range(3)))


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(action, noise, low, high):
    # The share is one of half the box, and each number has bounds of its own.
    distance = (high - low) / 2 * (0.2 * noise).clamp(-0.5, 0.5)
    return (action + distance).clamp(low, high)


grade(answer, smoothed_action, *map(near_actions, range(3)))

# %% [markdown]
# ### Exercise 3: experiment
#
# Targets are 1 and $-1$, equally often. With which rate of decrease does the value settle at 0.5,
# if the rate of increase is 1? Guess first, then solve the equation of the pulls or try rates
# with the cell above.


# %%
def answer():
    return ...


# %% tags=["hide-input"]
def wanted_rate():
    # Pull up: 1 · (1 − 0.5). Pull down: rate · (0.5 + 1).
    return (1 - 0.5) / (0.5 + 1)


grade(answer, wanted_rate, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    return 1 / 3


grade(answer, wanted_rate, ())

# %% [markdown]
# ## References
#
# The deterministic policy gradient is from {cite:t}`silver2014`, DDPG from
# {cite:t}`lillicrap2016`, TD3 from {cite:t}`fujimoto2018`, who also measured how much critics
# promise. Hysteretic Q-learning is from {cite:t}`matignon2007`.
