# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Advantages
#
# **Was this action better than what the policy usually does here?** After this chapter
# you can answer that for every step of a rollout, and say what the answer costs you: bias
# or noise. It takes about 25 minutes. You need returns and the two flags
# ({doc}`agents`) and the policy gradient ({doc}`policy_gradient`), which weights every
# action by the number that we are about to compute.

# %% tags=["export", "hide-input"]
"""Advantages: n-step returns, lambda-returns and generalised advantage estimation."""

from __future__ import annotations

import torch
from torch import Tensor

from literate_rl.workshop.fast import reverse_scan
from literate_rl.workshop.signatures import (
    Bool,
    Count,
    Float,
    Fraction,
    check_finite,
    checked,
)

__all__ = ["gae", "gae_loop", "lambda_returns", "n_step_returns"]

# %% [markdown]
# ## One dial between bias and noise
#
# To judge an action we can follow the rewards that come after it, or we can ask a
# **critic**, a network that estimates the value $V(s)$ of a state. The first is honest
# and noisy. The second is quiet and may be wrong. A number $\lambda$ from 0 to 1 says how
# much we trust the rewards.
#
# Drag it. Each dot estimates one and the same advantage, whose true value is the dashed
# line. On the left the critic is right. On the right it is wrong: it sees half of what is
# still to come.

# %% tags=["hide-input"]
import torch

from literate_rl.advantages import (
    gae,
)  # the package's own; this chapter defines it below
from literate_rl.workshop.pictures import Axis, Mark, dial, plot

gamma, num_steps, num_estimates = 0.97, 30, 400
generator = torch.Generator().manual_seed(0)
# Each step pays 0.2 on average, and the first action pays 1 more: its advantage is 1.
reward = 0.2 + 0.5 * torch.randn(num_steps, num_estimates, generator=generator)
reward[0] += 1
ended = torch.zeros_like(reward, dtype=torch.bool)
ended[-1] = True
# The value of a state is what the remaining steps pay.
remaining = torch.arange(num_steps, -1, -1)
exact = (0.2 * (1 - gamma**remaining) / (1 - gamma)).unsqueeze(1).expand(-1, 400)
halved = torch.cat([exact[:1], exact[1:] / 2])
critics = {"The critic is right": exact, "The critic is wrong by half": halved}

lambdas = [k / 10 for k in range(11)]
estimates = {
    name: [
        gae(reward, value[:-1], value[1:], ended, ended, gamma, lambda_)[0]
        for lambda_ in lambdas
    ]
    for name, value in critics.items()
}
aside = [0.035 * ((7 * k) % 40 / 20 - 1) for k in range(40)]  # dots side by side


def dots(lambda_, cloud, tone):
    return Mark("dots", [lambda_ + a for a in aside], cloud[:40].tolist(), tone)


def frame(lambda_):
    pictures, readout = [], []
    for name, clouds in estimates.items():
        cloud = clouds[lambdas.index(lambda_)]
        mean, deviation = cloud.mean().item(), cloud.std().item()
        alt = (
            f"{name}. Forty estimates for each λ; the wider the cloud, the larger is λ."
        )
        pictures.append(
            plot(
                name,
                alt,
                Axis("λ", -0.05, 1.05, ticks=(0, 0.5, 1)),
                Axis(
                    "estimates of an advantage of 1", -4, 6, ticks=(-4, -2, 0, 2, 4, 6)
                ),
                *(dots(k, c, "faint") for k, c in zip(lambdas, clouds, strict=True)),
                Mark("line dashed", [-0.05, 1.05], [1, 1], "quiet"),
                dots(lambda_, cloud, "accent"),
                Mark("line thick", [lambda_ - 0.04, lambda_ + 0.04], [mean, mean]),
            )
        )
        readout.append(
            f"{name}: bias {mean - 1:+.2f}, standard deviation {deviation:.2f}"
        )
    return pictures, "\n".join(readout).replace("-", "−")


dial("Bias and noise of an advantage over λ", frame, {"λ": lambdas}, start=(0.7,))

# %% [markdown]
# **Notice** the two ends of the dial. At $\lambda = 0$ the estimate believes the critic:
# there is little noise, and all of the critic's error. At $\lambda = 1$ it believes the
# rewards: there is no error on average, and several times the noise. Whoever sets the
# dial has to choose, and the rest of this chapter is one formula with that dial in it
# and eight lines of code.

# %% tags=["claims"]
right, wrong = (torch.stack(clouds) for clouds in estimates.values())
assert right.std(1)[-1] > 3 * right.std(1)[0], "at 1 there is several times the noise"
assert wrong.mean(1)[0] < 0, "at 0 the wrong critic is believed"
assert (wrong.mean(1)[-1] - 1).abs() < 0.2, "at 1 there is no error on average"
assert (right.mean(1) - 1).abs().max() < 0.2, "the right critic never errs on average"

# %% [markdown]
# ## What one step teaches
#
# In state $s_t$ the critic expects $V(s_t)$. One step later more is known: the reward
# $r_t$ and the state $s'_t$ that the step led to. The difference between what is known
# now and what was expected is the **temporal-difference error**, or TD error,
#
# $$
# \delta_t = r_t + \gamma \, (1 - \mathrm{te}_t) \, V(s'_t) - V(s_t) .
# $$ (td-error)
#
# The flag $\mathrm{te}_t$ takes the future away when the task is over. A truncated step
# keeps its future, because only our view of it ended.
#
# The **advantage** $A(s, a)$ of an action is the return that it leads to, minus the value
# of the state: how much better it is than what the policy does on average. If $V$ is
# exact, then the mean of $\delta_t$ over all that may happen is the advantage of $a_t$.
# So a single step already estimates it. But $V$ is the output of a network. If that is wrong,
# the estimate is wrong too, and more data do not help. That is **bias**.
#
# ## What many steps teach
#
# We can trust the critic less: add up $n$ rewards before asking it. This is the
# **$n$-step return**,
#
# $$
# G^{(n)}_t = r_t + \gamma \, (1 - \mathrm{te}_t)
# \begin{cases}
#   V(s'_t) & \text{if } n = 1 \text{ or } \mathrm{done}_t \text{ or } t = T - 1 \\
#   G^{(n-1)}_{t+1} & \text{otherwise.}
# \end{cases}
# $$ (n-step-return)
#
# Now the critic's error counts only $\gamma^n$ as much. In exchange, $n$ random rewards
# vary more than one. That is **variance**. Which $n$ is best? We do not have to choose: take all of
# them, with weights that fall by a factor $\lambda$ from one to the next. The result is
# the **$\lambda$-return**,
#
# $$
# G^\lambda_t = (1 - \lambda) \sum_{n \ge 1} \lambda^{n-1} G^{(n)}_t .
# $$ (def-lambda-return)
#
# Minus $V(s_t)$, it is **generalised advantage estimation**, GAE {cite:p}`schulman2016`. The sum
# looks expensive, but a short recursion hides in it. While the episode lasts, $s'_t$ is
# $s_{t+1}$. So when an $n$-step return is written as a sum of TD errors, the values in
# between cancel in pairs:
#
# $$
# G^{(n)}_t - V(s_t) = \delta_t + \gamma \delta_{t+1} + \dots
#     + \gamma^{n-1} \delta_{t+n-1} .
# $$ (def-telescope)
#
# The error $\delta_{t+k}$ stands in all sums with $n > k$, whose weights add up to
# $(1 - \lambda)(\lambda^k + \lambda^{k+1} + \dots) = \lambda^k$. The average is therefore
# $\delta_t + \gamma \lambda \delta_{t+1} + (\gamma \lambda)^2 \delta_{t+2} + \dots$, and
# this can be computed from the last step to the first:
#
# $$
# \hat A_t = \delta_t + \gamma \lambda \, (1 - \mathrm{done}_t) \, \hat A_{t+1} ,
# \qquad \hat A_T = 0 .
# $$ (gae)
#
# Here are the two flags again, each with its own job. In {eq}`td-error` $\mathrm{te}_t$
# says whether there is a future. In {eq}`gae` $\mathrm{done}_t$ says whether the next row
# belongs to the same episode.
#
# ## Line by line
#
# First the recursion by itself, as a loop.


# %% tags=["export"]
@checked
def gae_loop(
    td_error: Float[Tensor, "T B"], passed_on: Float[Tensor, "T B"]
) -> Float[Tensor, "T B"]:
    """Add up TD errors from the last step to the first: the form to read."""
    # Behind the last row there is nothing to add.
    advantage = torch.zeros_like(td_error[0])
    advantages = []
    # Each turn is the recursion {eq}`gae` for one step of all environments.
    for t in reversed(range(len(td_error))):
        advantage = td_error[t] + passed_on[t] * advantage
        advantages.append(advantage)
    return torch.stack(advantages[::-1])


# %% [markdown]
# Around it stand the TD error and the two flags. `gae` calls a faster form of the loop that gives
# the same numbers; {doc}`workshop/fast` derives it.


# %% tags=["export"]
@checked
def gae(
    reward: Float[Tensor, "T B"],
    value: Float[Tensor, "T B"],
    next_value: Float[Tensor, "T B"],
    terminated: Bool[Tensor, "T B"],
    truncated: Bool[Tensor, "T B"],
    gamma: Fraction = 0.99,
    lambda_: Fraction = 0.95,
) -> Float[Tensor, "T B"]:
    """Estimate how much better each action was than the policy's average.

    ``next_value`` belongs to the true successor of each step. Where the step is
    terminated it counts as 0, whatever it holds. Added to ``value``, the advantages are
    targets for the critic.

    Source: Schulman et al. 2016, equation 16, with a flag for each kind of end.
    """
    # The future counts only if the task goes on. A time limit does not end the task.
    future = torch.where(terminated, 0.0, next_value)

    # What each step teaches, the TD error {eq}`td-error`.
    td_error = reward + gamma * future - value

    # A later error reaches this step, weaker by $\gamma \lambda$ for each step in
    # between, unless the next row belongs to another episode.
    same_episode = ~(terminated | truncated)
    passed_on = gamma * lambda_ * same_episode.to(td_error)

    # The loop of {eq}`gae` with fewer calls. An advantage is a weight: no gradient
    # flows through it.
    advantage = reverse_scan(td_error, passed_on)
    check_finite(advantage, reward=reward, value=value, next_value=future)
    return advantage


# %% [markdown]
# ## See it
#
# An example with round numbers: one environment and five steps, with $\gamma = 1$ and
# $\lambda = 1/2$. Every step pays 1, and the critic always says 0, so each TD error is 1.
# The episode ends with the third step. Predict before you look:

# %% tags=["hide-input"]
from literate_rl.workshop.pictures import predict

predict(
    "Which of the five steps gets the largest advantage?",
    ["the first", "the third", "the fourth"],
    right="the first",
    because="It adds 1, half of 1 and a quarter of 1. The third step is the last of its "
    "episode and gets 1. The fourth begins a new episode and has one step behind it: 1.5.",
)

# %%
ones, zeros = torch.ones(5, 1), torch.zeros(5, 1)
never = torch.zeros(5, 1, dtype=torch.bool)
end = never.clone()
end[2] = True
advantage = gae(ones, zeros, zeros, end, never, gamma=1.0, lambda_=0.5)
print(advantage.flatten().tolist())

# %% [markdown]
# **Notice** that advantages grow toward the start of an episode and that nothing crosses its
# end.

# %% tags=["claims"]
assert advantage.flatten().tolist() == [1.75, 1.5, 1.0, 1.5, 1.0]
td_error = torch.randn(512, 8, generator=generator, dtype=torch.float64)
passed_on = 0.9 * (torch.rand(512, 8, generator=generator) > 0.02).double()
by_loop = gae_loop(td_error, passed_on)
assert torch.allclose(reverse_scan(td_error, passed_on), by_loop), "the same numbers"

# %% [markdown]
# ## Targets for the critic
#
# A critic learns from returns, not from advantages. `gae` plus `value` is the
# $\lambda$-return. Where the values of the states themselves are not at hand, it has a
# recursion of its own. Look one step ahead: with weight $1 - \lambda$ we stop and ask for
# the value, with weight $\lambda$ we go on. At the end of an episode and in the last row
# we have to stop. So let $\lambda_t$ be 0 where $\mathrm{done}_t$ or $t = T - 1$, and
# $\lambda$ elsewhere:
#
# $$
# G^\lambda_t = r_t + \gamma \, (1 - \mathrm{te}_t)
#     \bigl( (1 - \lambda_t)\, V(s'_t) + \lambda_t\, G^\lambda_{t+1} \bigr) .
# $$ (lambda-return)


# %% tags=["export"]
@checked
def lambda_returns(
    reward: Float[Tensor, "T B"],
    next_value: Float[Tensor, "T B"],
    terminated: Bool[Tensor, "T B"],
    truncated: Bool[Tensor, "T B"],
    gamma: Fraction = 0.99,
    lambda_: Fraction = 0.95,
) -> Float[Tensor, "T B"]:
    """Compute the lambda-return of every step, without gradient.

    With ``lambda_`` 1 it is ``discounted_returns``, with 0 the one-step target of
    temporal-difference learning. ``next_value`` is as in ``gae``.

    Source: Sutton and Barto, Reinforcement Learning, 2nd edition, equation 12.18.
    """
    future = torch.where(terminated, 0.0, next_value)
    # Where the episode or the batch ends, every return has to stop.
    stop = terminated | truncated
    stop[-1] = True
    going_on = lambda_ * (~stop).to(reward)

    # The recursion {eq}`lambda-return`, sorted: what does not depend on the next row is
    # added, the rest is passed on.
    increment = reward + gamma * (1 - going_on) * future
    returns = reverse_scan(increment, gamma * going_on)
    check_finite(returns, reward=reward, next_value=future)
    return returns


# %% tags=["export"]
@checked
def n_step_returns(
    reward: Float[Tensor, "T B"],
    next_value: Float[Tensor, "T B"],
    terminated: Bool[Tensor, "T B"],
    truncated: Bool[Tensor, "T B"],
    gamma: Fraction = 0.99,
    num_steps: Count = 5,
) -> Float[Tensor, "T B"]:
    """Compute the n-step return of every step, without gradient.

    ``num_steps`` is the number n of rewards before the value. A return stops earlier
    where its episode ends, and in the last row. ``next_value`` is as in ``gae``.

    Source: Sutton and Barto, Reinforcement Learning, 2nd edition, equation 7.1.
    """
    future = torch.where(terminated, 0.0, next_value)
    stop = terminated | truncated
    stop[-1] = True
    # With n = 1 each return is a reward and the value behind it. Each turn makes all
    # returns of {eq}`n-step-return` one reward longer; more than $T$ change nothing.
    returns = reward + gamma * future
    for _ in range(min(num_steps, len(reward)) - 1):
        returns = reward + gamma * torch.where(stop, future, returns.roll(-1, 0))
    check_finite(returns, reward=reward, next_value=future)
    return returns.detach()


# %% [markdown]
# ## Which λ is best?
#
# That depends on how good the critic is, and on the ring of {doc}`agents` we can compute
# it, because there the truth is known. For cell $s$ and action $a$ a return should be
#
# $$
# Q(s, a) = r_s + \gamma \, (1 - p)\, V(s_a)
# $$ (def-true-return)
#
# on average, where $s_a$ is the cell that the action leads to and $p$ the probability of a
# breakdown. We compute $\lambda$-returns with exact values, and with values that are wrong
# by a normal error of standard deviation 3, drawn for each of 20 imagined critics. The
# values themselves lie around 7.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two panels over lambda from 0 to 1. With exact values the bias is zero and the standard deviation grows with lambda, so the error is smallest at 0. With wrong values the bias falls, to about 0.4, as lambda grows while the standard deviation grows, and the whole error is smallest in between"}}
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from gymnasium.wrappers import TimeLimit

from literate_rl.agents import Collector, Ring, make_envs, tabular_values

discount, right = 0.99, 0.8
ring = Ring()
transition, reward_of_cell = ring.chain(right)
cell_value = torch.as_tensor(tabular_values(transition, reward_of_cell, discount))
reached = (torch.arange(5).unsqueeze(1) + torch.tensor([-1, 1])) % 5  # (cell, action)
alive = 1 - ring.end_probability
truth = (
    torch.as_tensor(reward_of_cell)[:, None] + discount * alive * cell_value[reached]
)


def walk(ring, limit, num_envs=64, num_steps=200):
    """Return a batch of the robot's steps under a time limit."""
    copies = partial(Ring, ring.num_cells, ring.end_probability)
    collector = Collector(make_envs(lambda: TimeLimit(copies(), limit), num_envs))
    collector.reset(seed=0)
    generator = torch.Generator().manual_seed(0)

    def mostly_right(obs):
        return (torch.rand(len(obs), generator=generator) < right).long()

    return collector.collect(mostly_right, num_steps)


def errors(batch, values, lambda_):
    """Return squared bias and variance, averaged over cells and actions."""
    flags = batch.terminated, batch.truncated
    returns = lambda_returns(
        batch.reward.double(), values[batch.next_obs], *flags, discount, lambda_
    )
    pair = (batch.obs * 2 + batch.action).flatten()
    count = torch.bincount(pair, minlength=10)
    mean = torch.bincount(pair, returns.flatten(), minlength=10) / count
    squared_bias = (count * (mean - truth.flatten()).square()).sum() / len(pair)
    variance = (returns.flatten() - mean[pair]).square().mean()
    return squared_bias.item(), variance.item()


batch = walk(ring, limit=100)
grid = np.array([0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1])
generator = torch.Generator().manual_seed(0)
noise = 3 * torch.randn(20, 5, generator=generator, dtype=torch.float64)
guesses = {"exact values": cell_value[None], "wrong values": cell_value + noise}
parts = {
    name: np.array([[errors(batch, v, x) for v in critics] for x in grid]).mean(1)
    for name, critics in guesses.items()
}  # each (lambda, squared bias and variance)

fig, axes = plt.subplots(1, 2, figsize=(7, 2.8), sharey=True)
for axis, (name, part) in zip(axes, parts.items(), strict=True):
    bias, variance = part.T
    axis.plot(grid, np.sqrt(bias), "--", color="C0", label="bias")
    axis.plot(grid, np.sqrt(variance), ":", color="C1", label="standard deviation")
    axis.plot(grid, np.sqrt(bias + variance), color="C3", label="both")
    axis.set_title(name, fontsize=10)
    axis.set_xlabel(r"$\lambda$")
axes[0].set_ylabel("error of a return")
axes[0].legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# "Both" is the root of the mean squared error. **Notice** on the left that exact values
# want $\lambda = 0$: each further reward only adds noise. **Notice** on the right that wrong values
# want a $\lambda$ in between. The bias falls, and the noise takes over. A critic is poor
# at the start of training and good at its end; 0.95 is the usual compromise.

# %% tags=["claims"]
total = {name: part.sum(1) for name, part in parts.items()}
assert total["exact values"].argmin() == 0, "exact values want λ = 0"
assert 0 < total["wrong values"].argmin() < len(grid) - 1, (
    "wrong values want one between"
)
assert (np.diff(parts["wrong values"][:, 0]) < 0).all(), "the bias falls"
assert (np.diff(parts["exact values"][:, 1]) > 0).all(), "each reward adds noise"

# %% [markdown]
# ## Traps
#
# ### Trap: a truncation that ends the world
#
# Much code has one flag for both ends and uses it as `terminated`. Take a robot that never
# breaks down, a time limit of 20 steps, and exact values. What is the mean error of an
# advantage 0, 1, 2, … steps before the limit?

# %%
sturdy = Ring(end_probability=0.0)
chain, _ = sturdy.chain(right)
lasting = torch.as_tensor(tabular_values(chain, reward_of_cell, discount))
short = walk(sturdy, limit=20)
ended = short.terminated | short.truncated
never = torch.zeros_like(ended)
value, next_value = lasting[short.obs], lasting[short.next_obs]
reward = short.reward.double()
true_advantage = reward + discount * next_value - value  # nothing here is random

print("steps before the limit", *(f"{before:6d}" for before in range(5)))
rows = {}
for name, flags in {"two flags": (never, ended), "one flag": (ended, never)}.items():
    error = gae(reward, value, next_value, *flags, discount) - true_advantage
    # A step is `before` steps away from the cut if the flag is so many rows below.
    near = [ended.roll(-before, 0)[:-5] for before in range(5)]
    rows[name] = [error[:-5][steps].mean().item() for steps in near]
    print(f"{name:22s}", *(f"{x:6.2f}" for x in rows[name]))

# %% [markdown]
# With one flag the step at the limit misses the whole value of the future, about 20, and
# its action is blamed for it. The step before misses $\gamma \lambda$ of that, and so on.
# The end of every episode looks like a series of mistakes.

# %% tags=["claims"]
assert max(map(abs, rows["two flags"])) < 0.1, "two flags are right"
assert -21 < rows["one flag"][0] < -19, "the whole value of the future"
assert np.allclose(
    np.divide(rows["one flag"][1:], rows["one flag"][:-1]), 0.94, atol=0.01
)

# %% [markdown]
# ### Trap: a function that writes into its arguments
#
# `value` and `next_value` are often two views of one tensor with $T + 1$ rows.
# [DI-engine's `gae`](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/rl_utils/gae.py#L61)
# multiplies `next_value` by the flag in place, so it changes `value` as well. Here is what
# such a line does:

# %%
buffer = torch.arange(1.0, 7.0).unsqueeze(1)  # values of 6 states, one environment
value, next_value = buffer[:-1], buffer[1:]
next_value.mul_(~end)
print("value after masking next_value in place:", value.flatten().tolist())

# %% [markdown]
# The fourth value has become 0. It belongs to the next episode and had nothing to do with
# the end of this one. `torch.where` makes a new tensor instead.

# %% tags=["claims"]
assert value.flatten().tolist() == [1, 2, 3, 0, 5], "the fourth value has become 0"

# %% [markdown]
# ## What well-known implementations do
#
# | | this chapter | [Stable-Baselines3](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/common/buffers.py#L403-L438) | [CleanRL](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppo.py#L217-L231) | [Spinning Up](https://github.com/openai/spinningup/blob/038665d62d569055401d91856abb287263096178/spinup/algos/pytorch/ppo/ppo.py#L42-L69) | [DI-engine](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/rl_utils/gae.py#L25-L70) | [TorchRL](https://github.com/pytorch/rl/blob/ae9719f17b1517af5c2523a36c4616f003ee55cf/torchrl/objectives/value/functional.py#L120-L184) |
# |---|---|---|---|---|---|---|
# | form | scan in chunks | loop in NumPy | loop | filter from SciPy, one episode at a time | loop | loop, or a convolution |
# | flags | two | one; the bootstrap is [added to the reward](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/common/on_policy_algorithm.py#L237-L245) | [one](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppo.py#L206) | one | two | two |
# | truncated step | bootstraps | bootstraps | counts as the end | counts as the end, except at [its own length limit](https://github.com/openai/spinningup/blob/038665d62d569055401d91856abb287263096178/spinup/algos/pytorch/ppo/ppo.py#L319-L325) | as the caller sets the flags | bootstraps |
# | writes to its input | no | its own buffer | its own buffer | its own buffer | `next_value` | no |
#
# The code was read at the linked commits.
#
# ## On the best device
#
# The same call runs on a GPU if there is one. Each call costs more there, so the few
# large operations of the scan matter more.

# %%
from literate_rl.agents import best_device

device = best_device()
on_device = reverse_scan(td_error.to(device).float(), passed_on.to(device).float())
print(f"512 steps of 8 environments on {on_device.device.type}:", end=" ")
print("same numbers:", torch.allclose(on_device.cpu().double(), by_loop, atol=1e-4))

# %% [markdown]
# ## Summary
#
# - The TD error is what one step teaches. With an exact critic its mean is the advantage.
# - $\lambda$ mixes estimates of all lengths: 0 trusts the critic (bias), 1 trusts the
#   rewards (variance), 0.95 is usual.
# - The mixture is a recursion from the last step to the first: `gae`.
# - `terminated` removes the future, `terminated or truncated` cuts the recursion.
# - Advantages weight the policy's loss. Added to the values, they are the critic's targets.
#
# ## Exercises
#
# ### Exercise 1: predict
#
# No code yet, only a thought.

# %% tags=["hide-input"]
predict(
    "The critic says 5 too much for every state, and γ = 1. The episode is truncated, not "
    "terminated. What happens to its advantages?",
    ["nothing, for any λ", "all fall by 5, for any λ", "it depends on λ"],
    right="nothing, for any λ",
    because="Each TD error holds one value with a plus and one with a minus, so the 5 "
    "cancels. At a terminated step only the minus is left, and the error appears.",
)

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function is meant to be `gae`. It runs, and on episodes that terminate it is right. Mend
# it.


# %%
def answer(reward, value, next_value, terminated, truncated, gamma, lambda_):
    future = torch.where(terminated, 0.0, next_value)
    td_error = reward + gamma * future - value
    same_episode = ~terminated
    return gae_loop(td_error, gamma * lambda_ * same_episode.to(td_error))


from literate_rl.agents import grade


def episodes(seed):
    """Return eight random steps of two environments, with both kinds of end."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(3, 8, 2, generator=generator)
    flags = torch.rand(2, 8, 2, generator=generator) < 0.3
    return (*numbers, *flags, 0.9, 0.8)


grade(answer, gae, *map(episodes, range(3)))


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(reward, value, next_value, terminated, truncated, gamma, lambda_):
    future = torch.where(terminated, 0.0, next_value)
    td_error = reward + gamma * future - value
    # A truncated episode has a future, but the next row is not it.
    same_episode = ~(terminated | truncated)
    return gae_loop(td_error, gamma * lambda_ * same_episode.to(td_error))


grade(answer, gae, *map(episodes, range(3)))

# %% [markdown]
# ### Exercise 3: experiment
#
# The ring again, with critics that are only a third as wrong: the standard deviation of their
# errors is 1 instead of 3. Does the best $\lambda$ of `grid` become larger or smaller? Guess
# first. Then compute the best one with `errors`, and return it.


# %%
def answer():
    return ...


def best_lambda():
    mean_squared = [
        np.mean([sum(errors(batch, cell_value + n / 3, x)) for n in noise])
        for x in grid
    ]
    return grid[np.argmin(mean_squared)]


grade(answer, best_lambda, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    # Smaller: a critic that is nearly right deserves more trust.
    def mean_squared(lambda_):
        return np.mean([sum(errors(batch, cell_value + n / 3, lambda_)) for n in noise])

    return min(grid, key=mean_squared)


grade(answer, best_lambda, ())

# %% tags=["claims"]
assert answer() < grid[total["wrong values"].argmin()], "a better critic wants less λ"

# %% [markdown]
# ## References
#
# GAE is from {cite:t}`schulman2016`. {cite:t}`sutton2018` treat $n$-step returns in chapter
# 7 and $\lambda$-returns in chapter 12.
