# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # PPO
#
# **How does a loss become an agent that learns?** Around the loss there has to be a loop:
# act, look back, learn a little, act again. Most of what makes PPO work or fail is in
# that loop.
#
# At the end of this chapter you can say why the loss holds the policy near the old one,
# read every line of a PPO that solves CartPole in seconds, use it for discrete and for
# continuous actions, and say which of its many tricks matter.

# %% tags=["export", "hide-input"]
"""PPO: a policy, a rollout, a few epochs of updates, for any action space."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from literate_rl.advantages import gae
from literate_rl.agents import Collector, Rollout
from literate_rl.policy_gradient import check_finite
from literate_rl.ppo_error import (
    approx_kl_k3,
    check_clip,
    policy_error_from_log_prob,
    ppo_info,
    ppo_policy_loss,
    ppo_value_data,
    ppo_value_error,
)
from literate_rl.workshop.fast import reverse_scan
from literate_rl.workshop.nests import as_space, plain_space
from literate_rl.workshop.runs import check_counts, check_setting, env_seed

__all__ = [
    "PPO",
    "ActorCritic",
    "CategoricalActions",
    "GaussianActions",
    "PPOConfig",
    "Policy",
    "RewardScaler",
    "RunningMoments",
    "make_actions",
    "make_policy",
    "numpy_act",
    "ppo_settings",
]
# %% [markdown]
# ## What a better policy is worth
#
# Let $J(\pi)$ be the expected return from the start, what an agent optimises. We have a
# policy $\pi$ and want a better one, $\pi'$. By how much is it better? There is an exact
# answer {cite:p}`kakade2002`, and it needs only the advantages of the *old* policy,
# $A_\pi(s, a) = Q(s, a) - V(s)$:
#
# $$
# J(\pi') - J(\pi)
#     = \mathbb{E}_{\pi'} \Bigl[ \sum_{t \ge 0} \gamma^t A_\pi(s_t, a_t) \Bigr] .
# $$ (def-performance-difference)
#
# In words: run the new policy, and add up how much better each of its actions is than
# what the old policy does on average. This is the **performance-difference lemma**.
#
# *Proof.* Averaged over where a step leads, the advantage is the TD error of the old
# policy's values, $A_\pi(s_t, a_t) = \mathbb{E} \left[ r_t + \gamma V(s_{t+1}) - V(s_t)
# \mid s_t, a_t \right]$, with $V = 0$ after a termination. Put this into the sum:
#
# $$
# \begin{aligned}
# \mathbb{E}_{\pi'} \Bigl[ \sum_{t \ge 0} \gamma^t A_\pi(s_t, a_t) \Bigr]
#   &= \mathbb{E}_{\pi'} \Bigl[ \sum_{t \ge 0} \gamma^t r_t \Bigr]
#    + \mathbb{E}_{\pi'} \Bigl[ \sum_{t \ge 0}
#      \bigl( \gamma^{t+1} V(s_{t+1}) - \gamma^t V(s_t) \bigr) \Bigr] \\
#   &= J(\pi') - \mathbb{E} \left[ V(s_0) \right] = J(\pi') - J(\pi) .
# \end{aligned}
# $$
#
# The first sum is the return of the new policy. In the second sum each term cancels
# against the next, and what is left is the very first, $-V(s_0)$; the far end vanishes,
# because $\gamma^t V(s_t)$ goes to zero. The start does not depend on the policy, and
# the mean of $V(s_0)$ is $J(\pi)$ by definition. $\square$
#
# So why not maximise the right side? Because the states in it are those that the *new*
# policy visits, and we have data of the old one only. PPO does the obvious thing. It
# takes the old states, corrects the actions by the ratio
# ({doc}`/chapters/ppo_error`), and leaves $\gamma^t$ out, as nearly all code does
# ({doc}`/chapters/policy_gradient`). With the factor it would be
#
# $$
# J(\pi') - J(\pi) \;\approx\;
#     \mathbb{E}_{\pi} \Bigl[ \sum_{t \ge 0} \gamma^t\,
#     \frac{\pi'(a_t \mid s_t)}{\pi(a_t \mid s_t)}\, A_\pi(s_t, a_t) \Bigr] .
# $$ (def-old-states)
#
# For $\pi' = \pi$ both sides are zero, and their gradients are the same. But the further
# the new policy moves, the more its states differ from the old ones. The error grows at most
# with the square of the distance {cite:p}`schulman2015`.
#
# Here it is where everything can be computed. A pier has six planks, and the agent starts
# on the first. A step to the right pays 1, because the view gets better. A step to the
# left pays nothing. Whoever steps to the right from the *last* plank falls into the water,
# pays 10, and starts again. The policy has a single parameter: the probability of a step to the
# right, the same on all planks. The old policy has 0.2, so it hardly ever sees the end.

# %% mystnb={"image": {"alt": "Two curves over the probability of a step to the right, from 0.2 to 1. The estimate from the old states rises in a straight line to more than 15. The true gain starts along it, bends, peaks near 0.42 and falls to minus 16. A narrow band at the start marks where all ratios are within 0.2 of one"}}
import matplotlib.pyplot as plt
import numpy as np

from literate_rl.agents import tabular_values

gamma, planks = 0.95, 6
start = np.eye(planks)[0]
transition = np.zeros((planks, 2, planks))  # state, action (left, right), next state
reward = np.zeros((planks, 2))
for plank in range(planks):
    transition[plank, 0, max(plank - 1, 0)] = 1
    transition[plank, 1, (plank + 1) % planks] = 1
    reward[plank, 1] = 1 if plank < planks - 1 else -10


def walk(right):
    """Return the policy, its V (S,), Q (S, 2) and discounted visits (S,)."""
    policy = np.tile([1 - right, right], (planks, 1))
    chain = np.einsum("sa,saz->sz", policy, transition)
    value = tabular_values(chain, (policy * reward).sum(1), gamma)
    visits = np.linalg.solve(np.eye(planks) - gamma * chain.T, start)
    return policy, value, reward + gamma * transition @ value, visits


old, old_value, old_q, old_visits = walk(0.2)
advantage = old_q - old_value[:, None]
right = np.linspace(0.2, 1, 101)
true, lemma, estimate, ratio = [], [], [], []
for probability in right:
    new, new_value, _, new_visits = walk(probability)
    true.append(start @ (new_value - old_value))
    lemma.append(new_visits @ (new * advantage).sum(1))
    estimate.append(old_visits @ (new * advantage).sum(1))
    ratio.append(abs(new / old - 1).max())
print(f"the lemma is off by at most {max(abs(np.subtract(true, lemma))):.0e}")

fig, axis = plt.subplots(figsize=(7, 2.8))
axis.plot(right, estimate, "--", label="estimate from the old states")
axis.plot(right, true, label="true gain")
near = right[np.array(ratio) <= 0.2 + 1e-9]
axis.axvspan(near[0], near[-1], color="C2", alpha=0.3, linewidth=0)
axis.axhline(0, color="#808080", linewidth=0.8)
axis.set(xlabel="probability of a step to the right", ylabel="gain of $J$")
axis.legend()
fig.tight_layout()

# %% [markdown]
# **What to notice.** At the start the curves touch and have the same slope: a small step
# keeps its promise. A large one breaks it. The estimate says "always to the right",
# because it weighs the water with how often the *old* policy stood on the last plank. In
# the green band no ratio is further from 1 than 0.2. That is the reason for the clip: it
# takes away what could be gained by going further. It is no fence, and some ratios leave the
# band all the same. Then new data are collected, and the next step starts from there.
#
# ## Settings
#
# PPO has many settings. They stand in one frozen dataclass, so that a run can print, store
# and repeat them. The defaults are those of CleanRL for CartPole {cite:p}`huang2022cleanrl`,
# save two: fewer steps, and no clip of the value.


# %% tags=["export"]
@dataclass(frozen=True)
class PPOConfig:
    """Settings of PPO. The defaults suit small tasks such as CartPole.

    Attributes:
        seed: Decides all that is random in the run, once the policy has its weights.
        total_steps: Steps in the environments, all of them together.
        num_envs: Environments that are stepped together.
        num_steps: Steps of one rollout in each environment.
        num_epochs: How often each rollout is learned from.
        num_minibatches: Parts into which each epoch divides the rollout.
        learning_rate: Step size of Adam at the start.
        anneal: Whether the step size falls to zero in a straight line.
        gamma: Discount.
        lambda_: Decay of the weights of longer returns in the advantage.
        clip_ratio: Half width of the ratio's clip range.
        dual_clip: Bound of the dual clip, greater than 1, or none.
        value_clip: Half width of the value's clip range, in units of the return, or
            none.
        entropy_weight: Weight of the entropy bonus.
        value_weight: Weight of the value loss.
        max_grad_norm: Longest gradient that an update may use.
        normalize_advantage: Whether a minibatch's advantages get mean 0, deviation 1.
        normalize_obs: Whether the policy sees observations with mean 0, deviation 1. It
            has to be built so too.
        scale_reward: Whether rewards are divided by the deviation of the return.
        target_kl: Divergence in nats after which no further epoch begins, or none.
        checkpoint_interval: Iterations between checkpoints. The environments are reset
            at each of them.
    """

    seed: int = 1
    total_steps: int = 100_000
    num_envs: int = 4
    num_steps: int = 128
    num_epochs: int = 4
    num_minibatches: int = 4
    learning_rate: float = 2.5e-4
    anneal: bool = True
    gamma: float = 0.99
    lambda_: float = 0.95
    clip_ratio: float = 0.2
    dual_clip: float | None = None
    value_clip: float | None = None
    entropy_weight: float = 0.01
    value_weight: float = 0.5
    max_grad_norm: float = 0.5
    normalize_advantage: bool = True
    normalize_obs: bool = False
    scale_reward: bool = False
    target_kl: float | None = None
    checkpoint_interval: int = 50

    def __post_init__(self) -> None:
        # What can be checked without an environment is checked before one is made.
        counts = ("total_steps", "num_envs", "num_steps", "num_epochs")
        check_counts(self, (*counts, "num_minibatches", "checkpoint_interval"))
        check_setting(self, "seed", lambda x: x >= 0, "at least 0")
        for name in ("learning_rate", "max_grad_norm"):
            check_setting(self, name, lambda x: x > 0, "positive")
        for name in ("value_clip", "target_kl"):
            check_setting(self, name, lambda x: x is None or x > 0, "positive or None")
        for name in ("gamma", "lambda_"):
            check_setting(self, name, lambda x: 0 <= x <= 1, "in [0, 1]")
        check_clip(self.clip_ratio, self.dual_clip)
        # Of a single advantage nothing is left when its mean is subtracted.
        most = self.num_envs * self.num_steps // (2 if self.normalize_advantage else 1)
        expected = f"at most {most}, so that each part has enough steps of the rollout"
        check_setting(self, "num_minibatches", lambda x: x <= most, expected)


# %% [markdown]
# Which settings are good depends on the task. For the environments that this book uses,
# here are some that were seen to learn. An environment that is not in the table gets the
# defaults.

# %% tags=["export"]
# Settings with which the agent was seen to learn, by environment. What an entry leaves
# out is the default.
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "total_steps": 50_000,
        "num_envs": 8,
        "num_steps": 32,
        "num_epochs": 10,
        "num_minibatches": 1,
        "learning_rate": 2e-3,
        "gamma": 0.98,
        "lambda_": 0.8,
        "entropy_weight": 0.0,
    },
    "Acrobot-v1": {
        "total_steps": 300_000,
        "num_envs": 16,
        "learning_rate": 1e-3,
    },
    "Pendulum-v1": {
        "num_envs": 8,
        "num_steps": 200,
        "num_epochs": 10,
        "num_minibatches": 8,
        "learning_rate": 3e-3,
        "gamma": 0.9,
        "entropy_weight": 0.0,
    },
    "literate_rl/Moving-v0": {
        "total_steps": 60_000,
        "num_envs": 32,
        "num_steps": 64,
        "num_epochs": 8,
        "learning_rate": 3e-3,
        "gamma": 0.98,
    },
    "literate_rl/HybridLander-v0": {
        "total_steps": 400_000,
        "num_envs": 16,
        "num_epochs": 8,
        "num_minibatches": 8,
        "learning_rate": 2e-3,
        "gamma": 0.995,
        "scale_reward": True,
    },
}


def ppo_settings(env: str) -> PPOConfig:
    """Return settings for an environment: its own if we know some, else the defaults.

    Args:
        env: Id of the environment.
    """
    return PPOConfig(**SETTINGS.get(env, {}))


# %% [markdown]
# ## A policy is a function of noise
#
# The loop is going to work with any kind of action. So it must not know what an action
# is. That is known by an **action distribution**. The network gives it a *row* of numbers
# for each state, and it knows what the row means:
#
# | method | answers | discrete | Gaussian |
# |---|---|---|---|
# | a row | what describes the policy at a state | logits, $N$ | means and $\log \sigma$, $2 A$ |
# | `noise(T, B, generator)` | the randomness of a rollout | $N$ for each action | $A$ for each action |
# | `choose(row, noise)` | the action | an integer | $A$ numbers |
# | `log_prob(row, action)` | how likely the action was | a number | a number |
# | `entropy(row)` | how much is left to chance | a number | a number |
# | `kl(row, other)` | how far apart two policies are | a number | a number |
# | `to_env(action)` | the action as the environment wants it | the same | stretched to the box |
#
# How can an action be a plain *function* of noise? For a Gaussian policy it is well
# known. With $\eta_j \sim \mathcal N(0, 1)$,
#
# $$
# a_j = \mu_j + \sigma_j \, \eta_j .
# $$ (act-gaussian)
#
# For a discrete policy we let the actions race. Each action gets a track of random length
# $\tau_j$, from the exponential distribution with mean 1, and runs at the speed $p_j$. It
# arrives after $\tau_j / p_j$, an exponential time with the rate $p_j$, and of such times the
# one with the rate $p_j$ is the first with probability $p_j / \sum_i p_i = p_j$.
# The first to arrive has the largest $\log p_j - \log \tau_j$, and logits are as good as
# log-probabilities, because they differ by a number that is the same for all actions. So
# with $\eta_j = -\log \tau_j$,
#
# $$
# a = \operatorname*{argmax}_j \; (z_j + \eta_j) .
# $$ (act-discrete)
#
# In both cases $\eta = 0$ gives the action that the policy thinks best. Acting greedily is
# acting without noise.
#
# The networks are two layers of 64 units with tanh, one network for the policy and one for the
# value. All layers start with orthogonal weights, as is usual; the factor $\sqrt 2$ of the
# hidden ones makes up for what tanh shrinks. The last layer of the policy starts near zero, so
# that all actions are about equally likely at first. For continuous actions
# {cite:t}`andrychowicz2021` found that this matters more than one would think.


# %% tags=["export"]
def mlp(inputs: int, hidden: int, outputs: int, gain: float) -> nn.Sequential:
    """Build two hidden layers with tanh, initialised orthogonally.

    Args:
        inputs: Length of the input.
        hidden: Width of the hidden layers.
        outputs: Length of the output.
        gain: Scale of the last layer's weights.
    """
    linear = (
        nn.Linear(inputs, hidden),
        nn.Linear(hidden, hidden),
        nn.Linear(hidden, outputs),
    )
    for layer, scale in zip(linear, (math.sqrt(2), math.sqrt(2), gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(linear[0], nn.Tanh(), linear[1], nn.Tanh(), linear[2])


class CategoricalActions:
    """One of N actions; a row holds their logits.

    Args:
        num_actions: Number of actions N.
        start: What the environment calls the first action.
    """

    def __init__(self, num_actions: int, start: int = 0) -> None:
        self.num_actions, self.start = num_actions, start

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, (T, B, N), on the CPU."""
        shape = (num_steps, num_envs, self.num_actions)
        return torch.empty(shape).exponential_(generator=generator).log_().neg_()

    def choose(self, row: Tensor, noise: Tensor | float) -> Tensor:
        """Return the actions (B,) that a noise (B, N) makes of logits (B, N)."""
        # The winner of the race, {eq}`act-discrete`.
        return (row + noise).argmax(-1)

    def log_prob(self, row: Tensor, action: Tensor) -> Tensor:
        """Return the log-probabilities ``(*)`` of actions ``(*)``, from logits."""
        return chosen(row.log_softmax(-1), action)

    def entropy(self, row: Tensor) -> Tensor:
        """Return the entropies ``(*)`` of logits, in nats."""
        return mean_surprise(row.log_softmax(-1))

    def evaluate(self, row: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies, each ``(*)``, with one softmax."""
        log_prob = row.log_softmax(-1)
        return chosen(log_prob, action), mean_surprise(log_prob)

    def kl(self, row: Tensor, other: Tensor) -> Tensor:
        """Return the divergences ``(*)`` from rows to others, in nats."""
        log_prob = row.log_softmax(-1)
        difference = log_prob - other.log_softmax(-1)
        prob = log_prob.exp()
        return (prob * torch.where(prob > 0, difference, 0.0)).sum(-1)

    def to_env(self, action: Tensor) -> NDArray[np.int64]:
        """Return the actions as vector environments take them."""
        names: NDArray[np.int64] = action.numpy() + self.start
        return names


def chosen(log_prob: Tensor, action: Tensor) -> Tensor:
    """Return the entries ``(*)`` of rows ``(*, N)`` at the actions ``(*)``."""
    return log_prob.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def mean_surprise(log_prob: Tensor) -> Tensor:
    """Return the entropies ``(*)`` of log-probabilities ``(*, N)``, in nats."""
    # An action that was taken away has probability zero and adds nothing. Zero times
    # infinity would be NaN.
    return -(log_prob.exp() * log_prob.clamp(min=-1e4)).sum(-1)


# %% [markdown]
# Environments want their actions within the bounds of a box. Gaussian actions have units in
# which the box is $[-1, 1]$, and their noise may lead out of it. What lies outside is
# clipped, but *only on the way into the environment*. The action that we store, and whose
# probability we compute, is the one that was drawn. One of the traps below shows why.


# %% tags=["export"]
class GaussianActions:
    """Numbers in a box; a row holds their means and logarithms of standard deviations.

    Args:
        low: Lower bounds of the box, (A,), or minus infinity.
        high: Upper bounds, (A,), or infinity.
    """

    def __init__(self, low: ArrayLike, high: ArrayLike) -> None:
        self.low = np.asarray(low, dtype=np.float32)
        self.high = np.asarray(high, dtype=np.float32)

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, (T, B, A), on the CPU."""
        return torch.randn(num_steps, num_envs, self.low.size, generator=generator)

    def choose(self, row: Tensor, noise: Tensor | float) -> Tensor:
        """Return the actions (B, A) that a noise (B, A) makes of rows (B, 2 A)."""
        # Mean plus standard deviation times noise, {eq}`act-gaussian`.
        mu, log_sigma = row.chunk(2, -1)
        return mu + log_sigma.exp() * noise

    def log_prob(self, row: Tensor, action: Tensor) -> Tensor:
        """Return the log-densities ``(*)`` of actions ``(*, A)``."""
        mu, log_sigma = row.chunk(2, -1)
        distance = (action - mu) * (-log_sigma).exp()
        constant = 0.5 * math.log(2 * math.pi)
        return -(0.5 * distance.square() + log_sigma + constant).sum(-1)

    def entropy(self, row: Tensor) -> Tensor:
        """Return the entropies ``(*)`` of rows, in nats; they may be negative."""
        _, log_sigma = row.chunk(2, -1)
        return (log_sigma + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def evaluate(self, row: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-densities and entropies, each ``(*)``."""
        return self.log_prob(row, action), self.entropy(row)

    def kl(self, row: Tensor, other: Tensor) -> Tensor:
        """Return the divergences ``(*)`` from rows to others, in nats."""
        mu, log_sigma = row.chunk(2, -1)
        other_mu, other_log_sigma = other.chunk(2, -1)
        shift = (mu - other_mu) * (-other_log_sigma).exp()
        change = log_sigma - other_log_sigma
        square = (2 * change).exp() + shift.square()
        return (0.5 * (square - 1) - change).sum(-1)

    def to_env(self, action: Tensor) -> NDArray[np.float32]:
        """Stretch actions from -1..1 to the box, and clip what lies outside."""
        # Where there is no bound, nothing is stretched.
        bounded = np.isfinite(self.low) & np.isfinite(self.high)
        low, high = np.where(bounded, [self.low, self.high], [[-1.0], [1.0]])
        stretched = (high + low) / 2 + (high - low) / 2 * action.numpy()
        clipped: NDArray[np.float32] = stretched.clip(self.low, self.high)
        return clipped.astype(np.float32)


# %% [markdown]
# A **policy** is a network and an action distribution. The network turns observations into
# rows, and has values beside them. The action distribution knows what a row means. The
# learner needs to know neither: it asks the policy what to do, how likely that was, and
# how much the policy leaves to chance.


# %% tags=["export"]
class ActorCritic(nn.Module):
    """Two networks side by side: one for the rows, one for the values.

    Args:
        actor: Module from observations ``(*, D)`` to rows.
        critic: Module from observations ``(*, D)`` to values ``(*, 1)``.
        normalizer: Module that both see the observations through.
    """

    def __init__(
        self, actor: nn.Module, critic: nn.Module, normalizer: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.normalizer = normalizer or nn.Identity()
        self.actor, self.critic = actor, critic

    def forward(self, obs: Tensor) -> Tensor:
        """Return the rows of observations ``(*, D)``."""
        row: Tensor = self.actor(self.normalizer(obs))
        return row

    def value(self, obs: Tensor) -> Tensor:
        """Return the values ``(*)`` of observations ``(*, D)``."""
        value: Tensor = self.critic(self.normalizer(obs))
        return value.squeeze(-1)


class WithDeviations(nn.Module):
    """A network for means, and a standard deviation for each that no state changes.

    Args:
        mean: Module from observations ``(*, D)`` to means ``(*, A)``.
        size: Number of means A.
    """

    def __init__(self, mean: nn.Module, size: int) -> None:
        super().__init__()
        self.mean = mean
        self.log_sigma = nn.Parameter(torch.zeros(size))

    def forward(self, obs: Tensor) -> Tensor:
        """Return means and logarithms of the standard deviations, ``(*, 2 A)``."""
        mu = self.mean(obs)
        return torch.cat([mu, self.log_sigma.expand_as(mu)], -1)


class Policy(nn.Module):
    """What an agent does: a network and an action distribution.

    Args:
        network: Module from observations to rows, with a method ``value``.
        actions: The action distribution, which knows what a row means.
        recipe: Name of a public function that builds the same policy, and its
            arguments as plain values, for checkpoints.
    """

    def __init__(
        self,
        network: nn.Module,
        actions: Any,
        recipe: tuple[str, dict[str, Any]] = ("", {}),
    ) -> None:
        super().__init__()
        self.network, self.actions, self.recipe = network, actions, recipe

    def forward(self, obs: Tensor) -> Tensor:
        """Return the rows that describe the policy at observations ``(*, D)``."""
        row: Tensor = self.network(obs)
        return row

    def value(self, obs: Tensor) -> Tensor:
        """Return the values ``(*)`` of observations ``(*, D)``."""
        value: Tensor = self.network.value(obs)  # type: ignore[operator]
        return value

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, ``(T, B, *)``, on the CPU."""
        noise: Tensor = self.actions.noise(num_steps, num_envs, generator)
        return noise

    def act(self, obs: Tensor, noise: Tensor | float) -> Tensor:
        """Return the actions that a noise makes of observations; 0.0 is greedy."""
        action: Tensor = self.actions.choose(self(obs), noise)
        return action

    def evaluate_actions(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of actions and the entropies, each ``(*)``."""
        terms: tuple[Tensor, Tensor] = self.actions.evaluate(self(obs), action)
        return terms

    def to_env(self, action: Tensor) -> Any:
        """Return the actions as vector environments take them."""
        return self.actions.to_env(action)


# %% [markdown]
# ## Numbers of a handy size
#
# Networks learn best from numbers around 1. An environment may well give us thousandths
# or thousands. So we measure, while the run goes on, the mean and the variance of what
# comes in. If $n$ items with mean $\bar m$ and variance $v$ were seen, and $n'$ new ones come
# in with $\bar m'$ and $v'$, then all of them have
#
# $$
# \begin{aligned}
# \bar m'' &= \bar m + \frac{n'}{n + n'}\,(\bar m' - \bar m) , \\
# v'' &= \frac{n v + n' v'}{n + n'} + \frac{n\, n'}{(n + n')^2}\,(\bar m' - \bar m)^2 ,
# \end{aligned}
# $$ (pooled-moments)
#
# the variance within the two groups and that between their means {cite:p}`chan1983`. With
# them, observations are shifted to mean 0 and scaled to deviation 1.
#
# Rewards are only *scaled*. To shift them would change the task: where each step costs
# something, the agent wants a short episode, and after the shift it might want a long
# one. The scale is the deviation of the discounted sum of all rewards so far,
#
# $$
# R_t = r_t + \gamma \, (1 - \mathrm{done}_{t-1}) \, R_{t-1} ,
# \qquad \tilde r_t = r_t \,/ \operatorname{std}(R) ,
# $$ (reward-scale)
#
# because it is about as large as a return, and that is what the value network has to
# learn.


# %% tags=["export"]
class RunningMoments(nn.Module):
    """Mean and variance of everything that has been seen so far.

    Args:
        shape: Shape of one item.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, items: Tensor) -> None:
        """Take in items, ``(n, *shape)`` with n at least 1."""
        items = items.double()
        # Two groups are put together by {eq}`pooled-moments`.
        count, mean, var = len(items), items.mean(0), items.var(0, unbiased=False)
        total = self.count + count
        between = (mean - self.mean).square() * self.count * count / total
        self.var.copy_((self.var * self.count + var * count + between) / total)
        self.mean.add_((mean - self.mean) * count / total)
        self.count.copy_(total)

    def forward(self, items: Tensor) -> Tensor:
        """Return items with mean 0 and deviation 1, cut off beyond 10 deviations."""
        scale = (self.var + 1e-8).rsqrt()
        return ((items - self.mean) * scale).to(items.dtype).clamp(-10.0, 10.0)


class RewardScaler(nn.Module):
    """Divides rewards by the deviation of the discounted return.

    The mean is not subtracted: that would pay for a longer or a shorter life.

    Args:
        num_envs: Number of environments B.
        gamma: Discount.
    """

    carry: Tensor

    def __init__(self, num_envs: int, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma
        self.moments = RunningMoments()
        self.register_buffer("carry", torch.zeros(num_envs))

    def forward(self, reward: Tensor, done: Tensor, real: Tensor) -> Tensor:
        """Take in the rewards of a rollout's real steps, (T, B); return all scaled."""
        # The sum {eq}`reward-scale` runs forward in time. Turned around it is the scan
        # of {doc}`/chapters/advantages`.
        increment = reward.clone()
        increment[0] += self.carry
        factor = torch.full_like(reward, self.gamma)
        factor[1:].masked_fill_(done[:-1], 0.0)
        so_far = reverse_scan(increment.flip(0), factor.flip(0)).flip(0)
        self.carry.copy_(self.gamma * so_far[-1].masked_fill(done[-1], 0.0))
        self.moments.update(so_far[real])
        return reward / (self.moments.var + 1e-8).sqrt().to(reward.dtype)


# %% [markdown]
# ## The loop
#
# All pieces are here. One iteration of PPO is
#
# 1. **collect** $T$ steps in $B$ environments with the policy as it is,
# 2. **look back**: values, advantages and targets for all of these steps,
# 3. **learn** for a few epochs, in minibatches, and stop early if the policy has moved too
#    far.
#
# Two small formulas and one cut are used on the way. The step size of the optimiser falls in a straight
# line from $\alpha$ to zero. After $i$ of $I$ steps in the environments it is
#
# $$
# \alpha_i = \alpha \, (1 - i / I) .
# $$ (annealing)
#
# The advantages of a minibatch are shifted and scaled,
#
# $$
# \hat A_b \;\leftarrow\; \frac{\hat A_b - \operatorname{mean}(\hat A)}
#     {\operatorname{std}(\hat A) + 10^{-8}} ,
# $$ (advantage-normalised)
#
# so that the step does not depend on the unit of the rewards. And the gradient is shortened
# to a greatest length, so that one odd minibatch cannot undo an hour of training.
#
# What happens at the end of an episode was the subject of {doc}`/chapters/agents` and
# {doc}`/chapters/advantages`: `terminated` takes the future away, and the true last
# observation gives the bootstrap otherwise. Some environments only know the mode
# `NEXT_STEP`, for example Gymnasium's CartPole that is written for many copies at once. They
# have a phantom row after each episode. The loop finds these rows and leaves them out of
# the table that it learns from.


# %% tags=["export"]
class PPO:
    """Proximal policy optimisation, for any policy with the methods of ``Policy``.

    Args:
        policy: The policy to train, on any device.
        envs: A vector environment with ``config.num_envs`` copies.
        config: The settings.
        act: Function from observations and noise to actions, instead of
            ``policy.act``.
        policy_error: Loss of log-probabilities, instead of
            ``policy_error_from_log_prob``.

    Raises:
        ValueError: If the number of environments is another one, or the policy does
            not normalise observations as the settings say.
    """

    def __init__(
        self,
        policy: Any,
        envs: VectorEnv[Any, Any, Any],
        config: PPOConfig,
        act: Callable[[Tensor, Tensor], Tensor] | None = None,
        policy_error: Callable[..., tuple[ppo_policy_loss, ppo_info]] | None = None,
    ) -> None:
        if envs.num_envs != config.num_envs:
            raise ValueError(
                f"envs must have {config.num_envs} copies, got {envs.num_envs}"
            )
        normalizes = normalizer_of(policy) is not None
        if normalizes != config.normalize_obs:
            raise ValueError(
                "policy must normalise observations if config.normalize_obs says so, "
                f"which is {config.normalize_obs}"
            )
        self.policy, self.config = policy, config
        self.act = act or policy.act
        self.policy_error = policy_error or policy_error_from_log_prob
        self.parameters = list(policy.parameters())
        self.device = self.parameters[0].device
        self.optimizer = torch.optim.Adam(
            self.parameters, config.learning_rate, eps=1e-5, fused=True
        )
        self.scaler = RewardScaler(config.num_envs, config.gamma).to(self.device)
        self.generator = torch.Generator().manual_seed(config.seed)
        self.collector = Collector(envs, policy.to_env, np.float32)
        self.iteration = 0

    @property
    def step(self) -> int:
        """Steps taken so far, all environments together."""
        return self.collector.step

    @property
    def total_steps(self) -> int:
        """Steps after which the training is over."""
        return self.config.total_steps

    @property
    def checkpoint_due(self) -> bool:
        """Whether the next iteration starts with fresh environments."""
        return self.iteration % self.config.checkpoint_interval == 0

    def iterate(self) -> dict[str, float]:
        """Collect a rollout, learn from it, and return metrics."""
        return self.update(self.collect())

    def collect(self) -> Rollout:
        """Act for T steps with the policy as it is."""
        if self.collector.obs is None or self.checkpoint_due:
            self.collector.reset(env_seed(self.config.seed, self.step))
            self.scaler.carry.zero_()
        # The learning rate {eq}`annealing`.
        rate = self.config.learning_rate
        if self.config.anneal:
            rate *= max(0.0, 1 - self.step / self.total_steps)
        self.optimizer.param_groups[0]["lr"] = rate

        # The noise of all steps is drawn at once.
        num_steps, num_envs = self.config.num_steps, self.config.num_envs
        noise = self.policy.noise(num_steps, num_envs, self.generator)
        draws = iter(noise.to(self.device))
        self.iteration += 1
        return self.collector.collect(
            lambda obs: self.act(obs.to(self.device), next(draws)), num_steps
        ).to(self.device)

    def update(self, batch: Rollout) -> dict[str, float]:
        """Learn from a rollout for some epochs; return metrics.

        The losses are those of the last minibatch, the distances those of all steps.
        """
        config, policy = self.config, self.policy
        # One pass over the whole rollout gives what the old policy and the old values
        # were. Nothing had to be computed for this while acting.
        with torch.no_grad():
            old_log_prob, _ = policy.evaluate_actions(batch.obs, batch.action)
            value, next_value = policy.value(batch.obs), policy.value(batch.next_obs)
            reward = batch.reward
            if config.scale_reward:
                done = batch.terminated | batch.truncated
                reward = self.scaler(reward, done, batch.real)
            adv = gae(
                reward,
                value,
                next_value,
                batch.terminated,
                batch.truncated,
                config.gamma,
                config.lambda_,
            )
            target = adv + value
        # {doc}`/chapters/ppg` looks at the rollout once more.
        self.seen = (batch._replace(reward=reward), value, next_value)

        # From here on time plays no role. What is left is a table of real steps.
        columns = (batch.obs, batch.action, old_log_prob, adv, target, value)
        data = [column[batch.real] for column in columns]
        for _ in range(config.num_epochs):
            # Each epoch shuffles the table and deals it out in minibatches.
            order = torch.randperm(len(data[0]), generator=self.generator)
            shuffled = (column[order.to(self.device)] for column in data)
            parts = (column.tensor_split(config.num_minibatches) for column in shuffled)
            for minibatch in zip(*parts, strict=True):
                losses = self.learn(*minibatch)
            # A policy that has moved far enough has learned enough from this rollout.
            if config.target_kl is not None:
                moved = self.distance(*data[:3])
                if moved["losses/approx_kl"] > config.target_kl:
                    break
        moved = self.distance(*data[:3])
        # Only now may the normaliser change. Earlier it would move the old policy.
        if config.normalize_obs:
            policy.network.normalizer.update(data[0])
        target, value = data[4:]
        unexplained = (target - value).var() / target.var()
        return {
            "charts/episodic_return": batch.episode_return.nanmean().item(),
            "charts/episodic_length": batch.episode_length.nanmean().item(),
            "charts/learning_rate": self.optimizer.param_groups[0]["lr"],
            **losses,
            **moved,
            "losses/explained_variance": 1 - unexplained.item(),
        }

    def learn(
        self,
        obs: Tensor,
        action: Tensor,
        old_log_prob: Tensor,
        adv: Tensor,
        target: Tensor,
        old_value: Tensor,
    ) -> dict[str, float]:
        """Take one step of the optimiser on a minibatch; return its losses."""
        config, policy = self.config, self.policy
        # The advantages of the minibatch get a handy size, {eq}`advantage-normalised`.
        if config.normalize_advantage:
            adv = (adv - adv.mean()) / (adv.std(correction=0) + 1e-8)
        # The three parts of the loss are those of {doc}`/chapters/ppo_error`.
        log_prob, entropy = policy.evaluate_actions(obs, action)
        policy_loss, _ = self.policy_error(
            log_prob,
            old_log_prob,
            entropy,
            adv,
            None,
            config.clip_ratio,
            config.dual_clip,
        )
        value_loss = ppo_value_error(
            ppo_value_data(policy.value(obs), old_value, target, None),
            config.value_clip,
        )
        loss = (
            policy_loss.policy_loss
            + config.value_weight * value_loss
            - config.entropy_weight * policy_loss.entropy_loss
        )
        losses = {
            "losses/policy_loss": policy_loss.policy_loss.item(),
            "losses/value_loss": value_loss.item(),
            "losses/entropy": policy_loss.entropy_loss.item(),
        }
        # What is not finite would spoil all weights at once.
        check_finite(
            tuple(losses.values()),
            log_prob_old=old_log_prob,
            log_prob=log_prob,
            entropy=entropy,
        )
        # One step downhill, with a gradient that is shortened if it is too long.
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, config.max_grad_norm)
        self.optimizer.step()
        return losses

    @torch.no_grad()
    def distance(
        self, obs: Tensor, action: Tensor, old_log_prob: Tensor
    ) -> dict[str, float]:
        """Say how far the policy has moved from the one that collected the rollout."""
        log_prob, _ = self.policy.evaluate_actions(obs, action)
        log_ratio = log_prob - old_log_prob
        # CleanRL calls $k_3$ `approx_kl` and $k_1$ `old_approx_kl`.
        outside = (log_ratio.exp() - 1).abs() > self.config.clip_ratio
        return {
            "losses/old_approx_kl": -log_ratio.mean().item(),
            "losses/approx_kl": approx_kl_k3(log_prob, old_log_prob).item(),
            "losses/clipfrac": outside.float().mean().item(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, the policy's weights aside."""
        return {
            "step": self.step,
            "iteration": self.iteration,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned."""
        self.collector.step, self.iteration = state["step"], state["iteration"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.generator.set_state(state["generator"])
        self.collector.obs = None


def normalizer_of(policy: Any) -> Any:
    """Return what normalises a policy's observations, or None."""
    normalizer = getattr(getattr(policy, "network", None), "normalizer", None)
    return normalizer if hasattr(normalizer, "update") else None


# %% [markdown]
# The policy is built from the two spaces of an environment.


# %% tags=["export"]
def make_actions(
    action_space: spaces.Space[Any],
) -> CategoricalActions | GaussianActions:
    """Return the action distribution that fits a Discrete space or a box.

    Args:
        action_space: A Discrete space or a box with one dimension.

    Raises:
        ValueError: If the space is of another kind.
    """
    if isinstance(action_space, spaces.Discrete):
        return CategoricalActions(int(action_space.n), int(action_space.start))
    if isinstance(action_space, spaces.Box) and len(action_space.shape) == 1:
        return GaussianActions(action_space.low, action_space.high)
    raise ValueError(
        f"action_space must be Discrete or a box with one dimension, got {action_space}"
    )


def make_policy(
    observation_space: spaces.Space[Any] | dict[str, Any],
    action_space: spaces.Space[Any] | dict[str, Any],
    hidden: int = 64,
    normalize: bool = False,
) -> Policy:
    """Build the policy that fits the spaces of one environment.

    Args:
        observation_space: A box with one dimension, or what ``plain_space`` made of it.
        action_space: A Discrete space or a box with one dimension, likewise.
        hidden: Width of the hidden layers.
        normalize: Whether the policy normalises its observations.

    Raises:
        ValueError: If a space is of another kind.
    """
    observation_space = as_space(observation_space)
    action_space = as_space(action_space)
    shape = observation_space.shape
    if (
        not isinstance(observation_space, spaces.Box)
        or shape is None
        or len(shape) != 1
    ):
        raise ValueError(
            "observation_space must be a box with one dimension, "
            f"got {observation_space}"
        )
    actions = make_actions(action_space)
    actor: nn.Module
    if isinstance(actions, CategoricalActions):
        actor = mlp(shape[0], hidden, actions.num_actions, gain=0.01)
    else:
        size = actions.low.size
        actor = WithDeviations(mlp(shape[0], hidden, size, gain=0.01), size)
    critic = mlp(shape[0], hidden, 1, gain=1.0)
    normalizer = RunningMoments(shape[0]) if normalize else None
    recipe = {
        "observation_space": plain_space(observation_space),
        "action_space": plain_space(action_space),
        "hidden": hidden,
        "normalize": normalize,
    }
    network = ActorCritic(actor, critic, normalizer)
    return Policy(network, actions, ("make_policy", recipe))


# %% [markdown]
# ## Faster, with the same numbers
#
# Where does the time go? For networks as small as these a call into PyTorch costs more than
# the arithmetic in it. While acting, that is nearly all. NumPy's calls are cheaper. So here is
# `act` once more, in NumPy, on arrays that *are* the parameters: they share the memory, and an
# optimiser that changes the weights changes both.


# %% tags=["export"]
def numpy_act(policy: Policy) -> Callable[[Tensor, Tensor], Tensor]:
    """Return what ``policy.act`` computes, in NumPy: faster for small networks.

    The arrays share their memory with the parameters, so that the function always acts
    with the current weights.

    Args:
        policy: A policy that ``make_policy`` has built, on the CPU.

    Raises:
        ValueError: If the policy is on another device.
    """
    network: Any = policy.network
    discrete = isinstance(policy.actions, CategoricalActions)
    parameters = list((network.actor if discrete else network.actor.mean).parameters())
    if parameters[0].device.type != "cpu":
        raise ValueError(f"policy must be on the CPU, got {parameters[0].device}")
    *hidden, weight, bias = (p.detach().numpy().T for p in parameters)
    layers = list(zip(hidden[::2], hidden[1::2], strict=True))

    def forward(obs: Tensor) -> NDArray[np.float32]:
        x: NDArray[np.float32] = network.normalizer(obs).numpy()
        for w, b in layers:
            x = np.tanh(x @ w + b)
        out: NDArray[np.float32] = x @ weight + bias
        return out

    if discrete:

        def act(obs: Tensor, noise: Tensor) -> Tensor:
            return torch.from_numpy((forward(obs) + noise.numpy()).argmax(-1))
    else:
        log_sigma = network.actor.log_sigma.detach().numpy()

        def act(obs: Tensor, noise: Tensor) -> Tensor:
            return torch.from_numpy(forward(obs) + np.exp(log_sigma) * noise.numpy())

    return act


# %% [markdown]
# It is handed to the learner. The following function puts everything together.

# %%
from dataclasses import replace
from functools import partial

from literate_rl.agents import make_envs, seed_everything
from literate_rl.evaluation import evaluate
from literate_rl.workshop.runs import fit, flat_env

torch.set_num_threads(1)  # the networks are too small to be shared out


def make_learner(env, config, fast=True):
    """Build environments, the policy that fits them, and the learner."""
    seed_everything(config.seed)
    envs = make_envs(partial(flat_env, env), config.num_envs)
    observations, actions = envs.single_observation_space, envs.single_action_space
    policy = make_policy(observations, actions, normalize=config.normalize_obs)
    return PPO(policy, envs, config, numpy_act(policy) if fast else None)


# %% [markdown]
# The same noise gives the same actions, so both forms make the same run, up to rounding.
# {doc}`/docs/results` says how much time this saves, beside Stable-Baselines3.

# %%
config = replace(ppo_settings("CartPole-v1"), total_steps=4_096)
for name, fast in (("plain", False), ("fast", True)):
    last = fit(make_learner("CartPole-v1", config, fast), progress=False)[-1]
    print(f"{name:5s} after {last['step']} steps: entropy {last['losses/entropy']:.4f}")

# %% [markdown]
# ## See it: CartPole
#
# The agent of {doc}`/chapters/agents` let the pole fall after some 20 steps. The highest
# return is 500. Eight copies, 50,000 steps:

# %% mystnb={"image": {"alt": "Returns of PPO on CartPole over steps: they rise from 20 with several deep falls, reach 500 after about 30,000 steps and end there"}}


def draw(axis, history, **style):
    """Draw the return over steps; iterations in which no episode ended are left out."""
    rows = [(h["step"], h["charts/episodic_return"]) for h in history]
    steps, returns = np.array(rows).T
    seen = ~np.isnan(returns)
    axis.plot(steps[seen], returns[seen], **style)
    axis.set(xlabel="steps", ylabel="return")


cartpole = make_learner("CartPole-v1", ppo_settings("CartPole-v1"))
history = fit(cartpole, progress=False)

fig, axis = plt.subplots(figsize=(7, 2.6))
draw(axis, history, marker=".", linewidth=0.8)
fig.tight_layout()
returns = evaluate(cartpole.policy, "CartPole-v1", episodes=20, seed=1)
print(f"20 episodes without noise: {returns.mean():.0f}, lowest {returns.min():.0f}")

# %% [markdown]
# **What to notice.** Within a minute the agent has found out how to balance a pole, from
# nothing but "one point for each step". A dot is the mean over the episodes that ended
# in one iteration, with noise. On its way the agent falls back several times, deeply. And here
# it is:

# %%
import tempfile
from pathlib import Path

from IPython.display import HTML

from literate_rl.workshop.runs import record_video, video_html

folder = Path(tempfile.mkdtemp())
record_video(cartpole.policy, "CartPole-v1", folder / "cartpole.mp4")
HTML(
    video_html(
        folder / "cartpole.mp4",
        "The cart drifts slowly and keeps the pole upright",
    )
)

# %% [markdown]
# The metrics tell whether a run is healthy. These four are worth a look at each run.

# %% mystnb={"image": {"alt": "Four small panels over steps: the divergence stays below a tenth and ends at zero, the clip fraction falls towards zero, the entropy falls slowly, and the explained variance rises to nearly one, until it falls into noise at the end"}}
panels = {
    "losses/approx_kl": "divergence $k_3$",
    "losses/clipfrac": "clip fraction",
    "losses/entropy": "entropy",
    "losses/explained_variance": "explained variance",
}
fig, axes = plt.subplots(2, 2, figsize=(7, 3.6), sharex=True)
for axis, (name, title) in zip(axes.flat, panels.items(), strict=True):
    axis.plot([h["step"] for h in history], [h[name] for h in history], linewidth=0.8)
    axis.set_title(title, fontsize=10)
    axis.locator_params(nbins=4)
axes[1, 1].set_ylim(-0.5, 1.05)
fig.tight_layout()

# %% [markdown]
# - The **divergence** says how far one iteration moves the policy. A few hundredths are
#   usual. At the end it goes to zero, because the step size does.
# - The **clip fraction** is the share of samples whose ratio has left the clip range. If it
#   is always zero, the step is too small; above a half, it is too large.
# - The **entropy** falls while the policy makes up its mind. If it drops to zero at once,
#   the agent has stopped exploring.
# - The **explained variance** says how much of its targets, the $\lambda$-returns, the value
#   network foresees: 1 is all, 0 is no more than the mean. At the end of this run nearly all
#   of them are equal, and of a variance that is zero nothing can be explained.
#
# ## See it: Pendulum
#
# The same loop, with a Gaussian policy. A motor is too weak to lift a pendulum. It has to
# swing it up. Each step costs something, so returns are negative: about $-1200$ for a
# motor that pushes at random, about $-150$ for a good one. Here is a run
# of half the usual length; the longer ones are in the next section.

# %% mystnb={"image": {"alt": "Returns of PPO on Pendulum over 50,000 steps: they stay near minus 1200 for a while, then rise steeply to about minus 200"}}
config = replace(ppo_settings("Pendulum-v1"), total_steps=50_000)
pendulum = make_learner("Pendulum-v1", config)
fig, axis = plt.subplots(figsize=(7, 2.4))
draw(axis, fit(pendulum, progress=False), marker=".", linewidth=0.8)
fig.tight_layout()
returns = evaluate(pendulum.policy, "Pendulum-v1", episodes=20, seed=1)
print(f"20 episodes without noise: {returns.mean():.0f}")

# %% [markdown]
# ## How well it learns
#
# One training tells little, as {doc}`/chapters/evaluation` has shown. So here are stored runs
# over many seeds. Thin lines are the seeds, the thick one is their mean with its 95 percent
# t interval. `python -m benchmarks.learning` makes the data anew, and {doc}`/docs/results` has
# the settings and the comparison of speed with Stable-Baselines3.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Returns of PPO over steps, thin lines for seeds and a thick one for the mean. CartPole rises from 20 to near 500, with single dips. Acrobot rises quickly from minus 500 to near minus 90. Pendulum rises from minus 1200 to near minus 180"}}
from literate_rl.evaluation import paired_difference, t_interval
from literate_rl.workshop.runs import stored_runs

names = {
    "cartpole": "CartPole-v1",
    "acrobot": "Acrobot-v1",
    "pendulum": "Pendulum-v1",
}
fig, axes = plt.subplots(1, len(names), figsize=(7, 2.8), squeeze=False)
for axis, (name, env) in zip(axes[0], names.items(), strict=True):
    runs = stored_runs(name)["PPO"]
    steps = runs.steps / 1000
    axis.plot(steps, runs.curves.T, color="C0", alpha=0.3, linewidth=0.8)
    axis.plot(steps, runs.curves.mean(0), color="C1", linewidth=2)
    band = t_interval(runs.curves)
    axis.fill_between(steps, *band, color="C1", alpha=0.3, linewidth=0)
    axis.set_title(env, fontsize=10)
    axis.set_xlabel("thousand steps")
    low, high = t_interval(runs.final)
    print(
        f"{env}: {len(runs.final)} seeds, without noise at the end "
        f"{runs.final.mean():.1f} ({low:.1f} to {high:.1f}), "
        f"worst seed {runs.final.min():.1f}"
    )
axes[0, 0].set_ylabel("return while training")
fig.tight_layout()

# %% [markdown]
# **What to notice.** While training the returns stay a little below what the policy could do,
# because it goes on trying other actions. What counts is printed: the policy at the end,
# without noise, with the worst of all seeds. On CartPole one seed in twenty is stuck when the
# run ends.
#
# ## Which tricks matter
#
# Does PPO need all of this? Each row below is the agent of this chapter with *one thing
# changed*: a trick left out, or done as another implementation does it. (Two rows change a
# little more: PyTorch's initialisation has no small last layer either, and one environment
# takes all the steps of a rollout alone.) There are five seeds for each. A small dot is a
# seed, a large one the mean, a bar its 95 percent t interval, and the band that of the agent as
# it is. Whether a row differs is told by the paired differences, which are printed below. `python -m benchmarks.ablation` makes the data anew.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Twenty rows of dots and bars, in two panels. While training, the agent as it is lies near 276 and most rows overlap its band; a shared trunk lies near 130 and one epoch near 40. At the end eight of the rows are at 500 in all seeds; the value clip, the shared trunk and one epoch lie lowest"}}


def draw_ablation(name, height):
    """Draw all variants of an ablation, the best ones at the top."""
    variants = stored_runs(name)
    order = sorted(variants, key=lambda each: variants[each].area.mean())
    fig, axes = plt.subplots(1, 2, figsize=(7, height), sharey=True)
    titles = {"area": "while training", "final": "at the end, without noise"}
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        usual = t_interval(getattr(variants["as it is"], key))
        axis.axvspan(*usual, color="C1", alpha=0.25, linewidth=0)
        for row, each in enumerate(order):
            values = getattr(variants[each], key)
            color = "C1" if each == "as it is" else "C0"
            axis.plot(values, [row] * len(values), ".", color=color, markersize=3)
            axis.plot(t_interval(values), [row] * 2, color=color, linewidth=2)
            axis.plot(values.mean(), row, "o", color=color, markersize=5)
        axis.set_yticks(range(len(order)), order, fontsize=9)
        axis.set(xlabel="return", title=title)
    fig.tight_layout()
    for each in order:
        for key, title in titles.items():
            ours, usual = (getattr(variants[name], key) for name in (each, "as it is"))
            found = paired_difference(ours, usual)
            if found.low > 0 or found.high < 0:
                print(f"{each}, {title}: {found.mean:+.0f}", end=" ")
                print(f"({found.low:+.0f} to {found.high:+.0f})")


draw_ablation("ablation_cartpole", 5.2)

# %% [markdown]
# **What to notice.** Five seeds are too few to see a small gain or loss, and for most rows we see
# none. That is worth knowing before one adopts a trick. Two rows are beyond doubt: to learn
# from each rollout only once leaves a tenth of the updates. And a trunk that actor and critic
# share is pulled in two directions; {doc}`/chapters/ppg` measures how much. ReLU looks a
# little slower, but among nineteen comparisons one such is to be expected by chance.
#
# On the right, look for the seeds that fail. Six rows lose one seed of five. That says little:
# the agent as it is was stuck in one of the twenty runs above, and at that rate a quarter of all
# rows would lose a seed. The value clip of 0.2, which is on in CleanRL and in Baselines, leaves two
# of five seeds below 200. Values grow to 50 here, and 0.2 is little on that way; but the interval
# of this difference includes zero too. Without the clip of the ratio it still
# learns: the steps are small, and there are ten of them only.

# %% tags=["claims"]


def seen(name, variant, key):
    """Return the sign of a difference from the agent as it is, 0 if none is seen."""
    variants = stored_runs(name)
    ours, usual = (getattr(variants[each], key) for each in (variant, "as it is"))
    found = paired_difference(ours, usual)
    return int(found.low > 0) - int(found.high < 0)


rows = stored_runs("ablation_cartpole")
lost = {variant: int((runs.final < 400).sum()) for variant, runs in rows.items()}
slower = {each for each in rows if seen("ablation_cartpole", each, "area") < 0}
assert slower == {"one epoch", "shared trunk", "ReLU"}
assert [*lost.values()].count(1) == 6, "six rows lose one seed"
assert 0.2 < 1 - 0.95**5 < 0.25, "a quarter of all rows, if one run of twenty is lost"
assert (rows["value clip 0.2"].final < 200).sum() == 2
assert seen("ablation_cartpole", "value clip 0.2", "final") == 0
assert [(runs.final == 500).all() for runs in rows.values()].count(True) == 8
assert rows["no clip"].final.min() > 480, "without the clip it still learns"

# %% [markdown]
# Pendulum has other needs. Here is half of its usual training.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Nine rows of dots and bars, in two panels. While training, rewards scaled lies highest, near minus 460, the agent as it is near minus 640, and no clip far below all others, near minus 1400. At the end all rows but no clip lie between minus 170 and minus 270"}}
draw_ablation("ablation_pendulum", 2.9)

# %% [markdown]
# **What to notice.** Here the clip of the ratio decides everything. Eighty updates for each
# rollout, with a large step size, go far, and without the clip no seed learns. Scaled rewards
# help most. A step costs up to 16 and $\gamma$ is 0.9, so values go down to $-160$, far from
# where a new network starts. Every episode ends by its time limit, and to take that for a true end
# slows learning down. So does a small standard deviation at the start, with which the agent tries
# little. Two small differences point in opposite ways: without advantage normalisation it learns
# a little faster, and with normalised observations it ends a little lower. An entropy bonus and
# the gradient clip make no difference that five seeds could show.

# %% tags=["claims"]
in_pendulum = {
    (variant, key): seen("ablation_pendulum", variant, key)
    for variant in stored_runs("ablation_pendulum")
    for key in ("area", "final")
}
assert in_pendulum == dict.fromkeys(in_pendulum, 0) | {
    ("no clip", "area"): -1,
    ("no clip", "final"): -1,
    ("rewards scaled", "area"): 1,
    ("time limit as an end", "area"): -1,
    ("time limit as an end", "final"): -1,
    ("smaller deviation at the start", "area"): -1,
    ("no advantage normalisation", "area"): 1,
    ("observations normalised", "final"): -1,
}

# %% [markdown]
# The two tasks do not agree on what matters. A trick is worth what it is worth on *your* task,
# and a table like this one is cheap to make.
#
# ## Traps
#
# ### Trap: a normaliser that moves the old policy
#
# In the first minibatch of an iteration nothing has been learned yet, so each ratio must
# be 1, up to rounding. That is the best test of a PPO there is. Here the normaliser of the
# observations is updated too early, between acting and learning:

# %%
config = ppo_settings("CartPole-v1")
config = replace(config, normalize_obs=True, total_steps=5_000)
learner = make_learner("CartPole-v1", config)
fit(learner, progress=False)
batch = learner.collect()
with torch.no_grad():
    old, _ = learner.policy.evaluate_actions(batch.obs, batch.action)
    for name in ("before", "after"):
        new, _ = learner.policy.evaluate_actions(batch.obs, batch.action)
        furthest = (new - old).exp().sub(1).abs().max().item()
        print(f"{name} the normaliser's update: ratios within {furthest:.3f} of 1")
        learner.policy.network.normalizer.update(batch.obs.flatten(0, 1))

# %% [markdown]
# `PPO.update` changes the normaliser last.
#
# ### Trap: the action that was clipped
#
# The box says $[-1, 1]$, the policy drew 3.5, the environment got 1. Which action goes into
# the batch? If it is the clipped one, the ratio is about an action that nobody drew: a
# policy with mean 3 finds that 1 is unlikely, is pulled back for a good return, and
# pushed on for a bad one, whatever it really did.

# %%
mu = torch.tensor([3.0], requires_grad=True)
for name, stored in (("as drawn, 3.5", 3.5), ("clipped, 1.0", 1.0)):
    log_prob = torch.distributions.Normal(mu, 1.0).log_prob(torch.tensor(stored))
    (gradient,) = torch.autograd.grad(log_prob.sum(), mu)
    print(f"{name}: a good return moves the mean by {gradient.item():+.1f}")

# %% [markdown]
# ### Trap: rows that never happened, again
#
# Gymnasium's fast CartPole steps all copies at once and only knows the mode `NEXT_STEP`.
# An agent that is still bad has many short episodes, and so many phantoms.

# %%
import gymnasium as gym

envs = gym.make_vec("CartPole-v1", num_envs=8, vectorization_mode="vector_entry_point")
policy = make_policy(envs.single_observation_space, envs.single_action_space)
batch = PPO(policy, envs, PPOConfig(num_envs=8)).collect()
mode = envs.metadata["autoreset_mode"].name
print(f"mode {mode}: {batch.real.float().mean():.1%} real rows")
print("rewards of the others:", batch.reward[~batch.real].unique().tolist())

# %% [markdown]
# ### Trap: half of a run is not a shorter run
#
# The step size falls to zero at `total_steps`. So the first half of a long run had larger
# steps than a short run has at the same place, and the two curves differ. To compare
# agents after 50,000 steps, train them for 50,000 steps.

# %%
for total_steps in (50_000, 100_000):
    config = replace(ppo_settings("CartPole-v1"), total_steps=total_steps)
    learner = make_learner("CartPole-v1", config)
    learner.collector.step = 25_000  # as if the first 25,000 steps were done
    rate = learner.iterate()["charts/learning_rate"]
    print(f"run of {total_steps:7,} steps: step size {rate:.2e} at step 25,000")

# %% [markdown]
#
# ## What well-known implementations do
#
# | question | this chapter | CleanRL | Stable-Baselines3 | Spinning Up | OpenAI Baselines (ppo2) | TorchRL |
# |---|---|---|---|---|---|---|
# | initial weights | orthogonal, last layer of the policy 0.01 | the same | the same | PyTorch's own | orthogonal, last layer 0.01 | the user's network |
# | advantages normalised | in each minibatch | in each minibatch | in each minibatch | over the whole rollout | in each minibatch | off by default |
# | value clip | off by default | on, width of the ratio | off by default | none | on, width of the ratio | off by default |
# | step size | falls to 0 | falls to 0 | constant by default | constant, one for each network | constant, falls to 0 in its presets | the user's loop |
# | longest gradient | 0.5 | 0.5 | 0.5 | not limited | 0.5 | the user's loop |
# | stop at a divergence | optional, after an epoch | optional, after an epoch | optional, at a minibatch, 1.5 times the target | yes, 1.5 times 0.01 | none | the user's loop |
# | truncated step | bootstraps | counts as the end | bootstraps | bootstraps at its own limit | counts as the end | bootstraps |
# | $\log \sigma$ at the start | 0, a parameter | 0, a parameter | 0, a parameter | $-0.5$, a parameter | 0, a parameter | the user's network |
# | action beyond the bounds | clipped on the way out | clipped on the way out | clipped on the way out | sent as drawn | clipped on the way out | the user's choice |
# | observations and rewards normalised | optional | in the version for continuous actions | optional wrapper | no | in the version for MuJoCo | optional transforms |
#
# ## On the best device
#
# The networks follow the policy's device, the environments stay on the CPU. For networks as
# small as these a GPU is no faster: each step has to be sent there and back.

# %%
from literate_rl.agents import best_device

device = best_device()
config = PPOConfig(total_steps=1024)
envs = make_envs("CartPole-v1", config.num_envs)
policy = make_policy(envs.single_observation_space, envs.single_action_space)
on_device = PPO(policy.to(device), envs, config)
last = fit(on_device, progress=False)[-1]
print(f"trained on {on_device.device.type} for {last['step']} steps")
print("finite losses:", all(math.isfinite(last[k]) for k in last if "losses" in k))

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: how many steps downhill?
#
# How often does the optimiser take a step in a whole run, if no epoch is left out? An
# iteration always takes a whole rollout, also the last one.

# %%
from literate_rl.agents import grade


def answer(total_steps, num_envs, num_steps, num_epochs, num_minibatches):
    return ...


def counted(total_steps, num_envs, num_steps, num_epochs, num_minibatches):
    taken = step = 0
    while step < total_steps:
        step += num_envs * num_steps
        taken += num_epochs * num_minibatches
    return taken


runs = [(512, 4, 128, 4, 4), (100_000, 4, 128, 4, 4), (1, 8, 32, 10, 1)]
grade(answer, counted, *runs)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(total_steps, num_envs, num_steps, num_epochs, num_minibatches):
    iterations = math.ceil(total_steps / (num_envs * num_steps))
    return iterations * num_epochs * num_minibatches


grade(answer, counted, *runs)

# %% [markdown]
# ### Exercise 2: what is the new policy worth?
#
# Given are a new policy as a list of rows $\pi'(a \mid s)$, the old policy's advantages as
# rows $A_\pi(s, a)$, and how often the new policy visits each state (discounted, as a list).
# Return $J(\pi') - J(\pi)$ by {eq}`def-performance-difference`.


# %%
def answer(policy, advantage, visits):
    return ...


def by_lemma(policy, advantage, visits):
    return float(np.dot(visits, np.sum(np.multiply(policy, advantage), axis=1)))


cases = [
    ([[1.0, 0.0]], [[2.0, -2.0]], [5.0]),
    ([[0.5, 0.5], [0.0, 1.0]], [[1.0, -1.0], [-3.0, 4.0]], [2.0, 0.25]),
]
grade(answer, by_lemma, *cases)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(policy, advantage, visits):
    # In each state the mean advantage of the new actions, weighted with the visits.
    gains = [
        sum(p * a for p, a in zip(*rows, strict=True))
        for rows in zip(policy, advantage, strict=True)
    ]
    return sum(visit * gain for visit, gain in zip(visits, gains, strict=True))


grade(answer, by_lemma, *cases)

# %% [markdown]
# ### Exercise 3: a race of two
#
# Let only two actions run in the race of {eq}`act-discrete`, with the logits $z_0$ and $z_1$.
# How likely is action 0 to win? Return it without an exponential of a large number, so that
# 1000 and 0 are no problem.


# %%
def answer(z_0, z_1):
    return ...


pairs = [(0.0, 0.0), (1.0, -1.0), (1000.0, 0.0), (0.0, 1000.0)]
grade(answer, lambda a, b: torch.tensor(a - b).sigmoid().item(), *pairs)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(z_0, z_1):
    difference = z_0 - z_1
    if difference >= 0:
        return 1 / (1 + math.exp(-difference))
    return math.exp(difference) / (1 + math.exp(difference))


grade(answer, lambda a, b: torch.tensor(a - b).sigmoid().item(), *pairs)

# %% [markdown]
# ## References
#
# PPO is from {cite:t}`schulman2017`, the lemma from {cite:t}`kakade2002`, the bound on the
# error from {cite:t}`schulman2015`. {cite:t}`huang2022` collect the details of
# implementations, {cite:t}`engstrom2020` and {cite:t}`andrychowicz2021` measure what they
# are worth.
