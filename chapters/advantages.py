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
# you can answer that for every step of a rollout, and say what the answer costs: bias or
# variance. It takes about 25 minutes, reading, without exercises. You need to know returns, and the flags `terminated`
# and `truncated` ({doc}`agents`). The policy gradient ({doc}`policy_gradient`) weights
# every action by the number that we are about to compute.

# %% tags=["export", "hide-input"]
"""Advantages: n-step returns, lambda-returns and generalised advantage estimation."""

from __future__ import annotations

import torch
from torch import Tensor

from literate_rl.ground.signatures import (
    Bool,
    Count,
    Float,
    Fraction,
    check_finite,
    checked,
)
from literate_rl.maths.fast import reverse_scan

__all__ = ["gae", "gae_loop", "lambda_returns", "n_step_returns"]

# %% [markdown]
# ## One dial between bias and variance
#
# The **advantage** of an action is how much more it earns, on average, than the policy usually
# earns in that state: its expected return minus the value of the state. The value is the same for
# every action of the state. So the question is how to estimate the return of one action, and
# there are two witnesses. The rewards that follow are right on average, but they vary. A **critic**,
# a network that estimates the value $V(s)$ of a state, is steady but may be wrong. A number
# $\lambda$ from 0 to 1 says how much to rely on the rewards.
#
# Drag the slider below the pictures. In the first two each dot is one estimate of the same
# return, and the dashed line is the truth. In the first the critic is right. In the second it is
# wrong: for every state it sees only half of what is still to come. The third shows how far the
# estimate looks ahead: how much weight the rewards of the first $n$ steps have as a return of
# their own, after which the critic is asked.

# %% tags=["hide-input"]
import torch

# The package's own, defined below.
from literate_rl.maths.advantages import lambda_returns
from literate_rl.book.pictures import Axis, Mark, dial, plot

gamma, num_steps, num_estimates = 0.97, 30, 20_000
generator = torch.Generator().manual_seed(0)
# Each step pays 0.2 on average, and the action that we judge pays 1 more.
reward = 0.2 + 0.5 * torch.randn(num_steps, num_estimates, generator=generator)
reward[0] += 1
ended = torch.zeros_like(reward, dtype=torch.bool)
ended[-1] = True
# What the remaining steps pay on average, from each step on.
remaining = torch.arange(num_steps, -1, -1)
exact = (0.2 * (1 - gamma**remaining) / (1 - gamma))[:, None].expand(-1, num_estimates)
truth = 1 + exact[0, 0].item()
critics = {"The critic is right": exact, "The critic sees half": exact / 2}

lambdas = [0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1]
estimates = {
    name: [
        lambda_returns(reward, value[1:], ended, ended, gamma, lambda_)[0]
        for lambda_ in lambdas
    ]
    for name, value in critics.items()
}
aside = [0.35 * ((7 * k) % 40 / 20 - 1) for k in range(40)]  # dots side by side


def dots(place, cloud, tone):
    return Mark("dots", [place + a for a in aside], cloud[:40].tolist(), tone)


def frame(lambda_):
    place, pictures, readout = lambdas.index(lambda_), [], []
    for name, clouds in estimates.items():
        mean, deviation = clouds[place].mean().item(), clouds[place].std().item()
        alt = f"{name}. Forty estimates for each λ: the larger λ, the wider the cloud."
        pictures.append(
            plot(
                name,
                alt,
                Axis(
                    "λ", -0.5, 9.5, ticks={k: f"{x:g}" for k, x in enumerate(lambdas)}
                ),
                Axis("estimates of one return", -2, 12, ticks=(0, 5, 10)),
                *(dots(k, cloud, "faint") for k, cloud in enumerate(clouds)),
                Mark("line dashed", [-0.5, 9.5], [truth, truth], "quiet"),
                dots(place, clouds[place], "accent"),
                Mark("line thick", [place - 0.45, place + 0.45], [mean, mean]),
                width=380,
            )
        )
        readout.append(
            f"{name}: off by {mean - truth:+.1f} on average, "
            f"standard deviation {deviation:.1f}"
        )
    # The return of all steps gets what is left.
    weights = [(1 - lambda_) * lambda_**n for n in range(num_steps - 1)]
    pictures.append(
        plot(
            "Weight of each n",
            "Bars over n from 1 to 30. They fall by the factor λ from one to the next, "
            "and the last one has all that is left.",
            Axis("n rewards, then the critic", 0, 31, ticks=(1, 10, 20, 30)),
            Axis("weight", 0, 1, ticks=(0, 0.5, 1)),
            Mark(
                "bars", range(1, 31), [*weights, lambda_ ** (num_steps - 1)], "accent"
            ),
            width=380,
        )
    )
    return pictures, "\n".join(readout).replace("-0.0", "0.0").replace("-", "−")


dial("Bias and variance of a return over λ", frame, {"λ": lambdas}, start=(0.9,))

# %% [markdown]
# Forty of 20,000 estimates are drawn; the short bar is the mean of all. **Notice** the two ends.
# At $\lambda = 0$ the estimate relies on the critic after a single reward: little spread, but all
# of the critic's error. At $\lambda = 1$ it relies on the rewards alone: no error on average, but
# several times the standard deviation. That is the same in both pictures, because both see the same
# rewards. It grows slowly at first: even $\lambda = 0.9$ looks only about $1 / (1 - 0.9) = 10$
# steps ahead, as the bars say. At 1 the whole weight is on the longest return.

# %% tags=["claims"]
right, wrong = (torch.stack(clouds) for clouds in estimates.values())
assert right.std(1)[-1] > 3 * right.std(1)[0], "several times as much"
assert wrong.mean(1)[0] < truth - 1.5, "at 0 there is all of the critic's error"
assert (right.mean(1) - truth).abs().max() < 0.05, "the right critic has no error"
assert (wrong.mean(1)[-1] - truth).abs() < 0.05, "at 1 there is no error on average"
assert torch.allclose(right.std(1), wrong.std(1), rtol=1e-3), "the same in both"

# %% [markdown]
# ## What one step teaches
#
# In state $s_t$ the critic expects $V(s_t)$. (In this chapter $V$ is what a critic says, exact or
# not.) One step later more is known: the reward $r_t$ and the state $s'_t$ that the step led to.
# The difference between what is known now and what was expected is the **temporal-difference
# error**, or TD error,
#
# $$
# \delta_t = r_t + \gamma \, (1 - \mathrm{te}_t) \, V(s'_t) - V(s_t) .
# $$ (td-error)
#
# Here $\mathrm{te}_t$ is 1 if the step is terminated and 0 otherwise. It removes the future when
# the task is over. A truncated step keeps its future, because only our view of it ended.
#
# If the critic is exact, then the average of $\delta_t$ over everything that can follow $s_t$ and
# $a_t$ is the advantage of $a_t$. So a single step already estimates it. If $V(s'_t)$ is wrong,
# so is the estimate, and averaging more estimates does not help. That is **bias**.
#
# What if $V(s_t)$ itself is wrong? Then the advantages of all actions in $s_t$ are wrong
# by the same number. A baseline does that too ({doc}`policy_gradient`), and it leaves the
# gradient as it is on average. This is why the dial above could leave $V(s_t)$ out.
#
# ## What many steps teach
#
# To rely less on the critic, add up $n$ rewards before asking it:
# $r_t + \gamma r_{t+1} + \dots + \gamma^{n-1} r_{t+n-1} + \gamma^n V(s'_{t+n-1})$. With
# the ends of episodes and of the batch, where the sum has to stop earlier, this is the
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
# The critic's error now enters with the factor $\gamma^n$, and not at all if the episode
# terminates first. In exchange, $n$ random rewards vary more than one. That is **variance**, the
# spread in the dial.
#
# Rather than choose one $n$, average over all of them, with weights that fall by a factor
# $\lambda$ from one to the next. The result is the **$\lambda$-return**,
#
# $$
# G^\lambda_t = (1 - \lambda) \sum_{n \ge 1} \lambda^{n-1} G^{(n)}_t .
# $$ (def-lambda-return)
#
# The factor $1 - \lambda$ makes the weights sum to 1. After the end of the episode or of the
# batch $G^{(n)}_t$ no longer changes with $n$, so the longest return gets all the weight that is
# left. With $\lambda = 1$ it gets everything.
#
# Subtract $V(s_t)$, and you have **generalised advantage estimation**, GAE
# {cite:p}`schulman2016`. The sum looks expensive, but it reduces to a short recursion. Add up two
# TD errors of one episode, where $s'_t$ is $s_{t+1}$: $\delta_t + \gamma \delta_{t+1}$ is $r_t +
# \gamma V(s_{t+1}) - V(s_t) + \gamma r_{t+1} + \gamma^2 V(s_{t+2}) - \gamma V(s_{t+1})$. The
# value in the middle cancels. In longer sums all values but the first and the last do:
#
# $$
# G^{(n)}_t - V(s_t) = \delta_t + \gamma \delta_{t+1} + \dots
#     + \gamma^{n-1} \delta_{t+n-1} .
# $$ (def-telescope)
#
# The term $\gamma^k \delta_{t+k}$ appears in every sum with $n > k$. The weights of those
# sums add up to $(1 - \lambda)(\lambda^k + \lambda^{k+1} + \dots) = \lambda^k$. The
# weighted average is therefore
# $\delta_t + \gamma \lambda \delta_{t+1} + (\gamma \lambda)^2 \delta_{t+2} + \dots$,
# which can be computed from the last step to the first:
#
# $$
# \hat A_t = \delta_t + \gamma \lambda \, (1 - \mathrm{done}_t) \, \hat A_{t+1} ,
# \qquad \hat A_T = 0 .
# $$ (gae)
#
# With $\lambda = 1$ this is $G_t - V(s_t)$, what the last agent of {doc}`policy_gradient` used;
# with $\lambda = 0$ it is the TD error alone. The two flags do their two jobs again:
# $\mathrm{te}_t$ in {eq}`td-error`, $\mathrm{done}_t$ in {eq}`gae`.
#
# ## Line by line
#
# First the recursion by itself, as a loop. The factor with which a step takes over the advantage
# of the next one, $\gamma \lambda (1 - \mathrm{done}_t)$, is called `passed_on`.


# %% tags=["export"]
@checked
def gae_loop(
    td_error: Float[Tensor, "T B"], passed_on: Float[Tensor, "T B"]
) -> Float[Tensor, "T B"]:
    """Add up TD errors from the last step to the first, written to be read."""
    # After the last row there is nothing to add.
    advantage = torch.zeros_like(td_error[0])
    advantages = []
    # Each turn is the recursion {eq}`gae` for one step of all environments.
    for t in reversed(range(len(td_error))):
        advantage = td_error[t] + passed_on[t] * advantage
        advantages.append(advantage)
    return torch.stack(advantages[::-1])


# %% [markdown]
# `gae` computes the TD errors and what is passed on, then runs this recursion. It calls a
# faster form of the loop, `reverse_scan`, which {doc}`workshop/fast` derives.


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
    # The future counts only if the task continues. A time limit does not end the task.
    future = torch.where(terminated, 0.0, next_value)

    # What each step teaches, the TD error {eq}`td-error`.
    td_error = reward + gamma * future - value

    # A later error counts here too, times $\gamma \lambda$ for each step in between,
    # unless the next row belongs to another episode.
    same_episode = ~(terminated | truncated)
    # By way of bytes: PyTorch makes floats of them faster than of flags.
    passed_on = gamma * lambda_ * same_episode.byte().to(td_error)

    # The recursion {eq}`gae`. An advantage is a weight, so no gradient may flow through
    # it: `reverse_scan` returns a tensor without one.
    advantage = reverse_scan(td_error, passed_on)
    check_finite(advantage, reward=reward, value=value, next_value=future)
    return advantage


# %% [markdown]
# ## See it
#
# An example with round numbers: one environment and five steps, $\gamma = 1$, and
# $\lambda = 1/2$. Every step pays 1 and the critic always says 0, so each TD error is 1.
# The episode ends at the third step.

# %%
ones, zeros = torch.ones(5, 1), torch.zeros(5, 1)
never = torch.zeros(5, 1, dtype=torch.bool)
end = never.clone()
end[2] = True
advantage = gae(ones, zeros, zeros, end, never, gamma=1.0, lambda_=0.5)
print(advantage.flatten().tolist())

# %% [markdown]
# **Notice** that nothing crosses the end of the episode. Since every TD error is 1 here, the more
# steps of the episode remain, the larger the sum.

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
# $\lambda$-return. It also has a recursion of its own, which needs only the values of the
# next states. Look one step ahead: with weight $1 - \lambda$ we stop and ask for the
# value, with weight $\lambda$ we continue. At the end of an episode and in the last row
# we have to stop. So let $\lambda_t$ be 0 where $\mathrm{done}_t = 1$ or $t = T - 1$, and
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

    With ``lambda_`` 1 it is ``discounted_returns`` of the first chapter, with 0 the
    one-step target of temporal-difference learning. ``next_value`` is as in ``gae``.

    Source: Sutton and Barto, Reinforcement Learning, 2nd edition, equation 12.18.
    """
    future = torch.where(terminated, 0.0, next_value)
    # Where the episode or the batch ends, every return has to stop.
    stop = terminated | truncated
    stop[-1] = True
    going_on = lambda_ * (~stop).to(reward)

    # The recursion {eq}`lambda-return`, rearranged: what does not depend on the next
    # row is added, the rest is passed on.
    increment = reward + gamma * (1 - going_on) * future
    returns = reverse_scan(increment, gamma * going_on)
    check_finite(returns, reward=reward, next_value=future)
    return returns


# %% [markdown]
# (For completeness, the folded cell has {eq}`n-step-return` in code.)


# %% tags=["export", "hide-input"]
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
    # With n = 1 each return is a reward and the value after it. Each turn makes all
    # returns of {eq}`n-step-return` one reward longer; more than T change nothing.
    returns = reward + gamma * future
    for _ in range(min(num_steps, len(reward)) - 1):
        returns = reward + gamma * torch.where(stop, future, returns.roll(-1, 0))
    check_finite(returns, reward=reward, next_value=future)
    return returns.detach()


# %% [markdown]
# ## Which λ is best?
#
# That depends on how good the critic is. On the ring of {doc}`exact_values`, a small world of a
# later page, we can compute it, because there the truth is known. It has five cells in a circle, and
# each step from cell 0 pays 1. The robot breaks down with probability $p = 0.02$ and goes right with
# probability 0.8, and $\gamma = 0.99$. In cell $s$, action $a$ earns on average
#
# $$
# Q(s, a) = r_s + \gamma \, (1 - p)\, V(s_a) ,
# $$ (def-true-return)
#
# where $s_a$ is the cell that the action leads to and $V$ is exact. We compute $\lambda$-returns
# of 64 robots over 200 steps, with a time limit of 100. The values are exact at first. Then a
# normal error of standard deviation 3 is added to each cell, for 20 imagined critics. The values
# themselves lie around 7.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two panels over lambda from 0 to 1. With exact values the bias is zero and the standard deviation grows with lambda, so the error is smallest at 0. With wrong values the bias falls, to about 0.4, as lambda grows while the standard deviation grows, and the whole error is smallest in between"}}
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from gymnasium.wrappers import TimeLimit

from literate_rl.data.agents import Collector, make_envs
from literate_rl.data.exact_values import Ring, tabular_values

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
    error = np.sqrt(bias + variance)
    axis.plot(grid, error, color="C3", alpha=0.4, linewidth=4, label="whole error")
    axis.plot(grid, np.sqrt(bias), "--", color="C0", label="bias")
    axis.plot(grid, np.sqrt(variance), ":", color="C1", label="standard deviation")
    axis.set_title(name, fontsize=10)
    axis.set_xlabel(r"$\lambda$")
axes[0].set_ylabel("error of a return")
axes[0].legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# The whole error is the root of the mean squared error over cells, actions and critics.
# **Notice** in the first panel that with exact values $\lambda = 0$ is best: each further reward
# only adds variance. **Notice** in the second that with wrong values the best $\lambda$ lies
# in between. As it grows, the bias falls and the variance rises. A little bias is left even
# at 1, because returns that the time limit or the end of the batch cuts short still end in
# a value.
#
# On this small ring 0.7 is better than 0.95, the default of `gae` and of most code. How does the best
# $\lambda$ depend on the critic, and on how many steps are averaged? A mean over nine times as many
# has the same bias and a ninth of the variance.

# %%
print(
    "error of the critic     ", *(f"{3 * scale:5.0f}" for scale in (1 / 3, 1, 2, 5, 10))
)
best = {"these steps": [], "nine times as many": []}
for scale in (1 / 3, 1, 2, 5, 10):
    critics = cell_value + scale * noise
    part = np.array([[errors(batch, v, x) for v in critics] for x in grid]).mean(1)
    for found, share in zip(best.values(), (1, 1 / 9), strict=True):
        found.append(grid[(part @ [1, share]).argmin()].item())
for name, found in best.items():
    print(f"best λ, {name:18s}", *(f"{x:5.2f}" for x in found))

# %% [markdown]
# The worse the critic and the larger the batch, the closer the best $\lambda$ is to 1. So it is a
# setting to tune. Most people start at 0.95; {doc}`ppo_evidence` tries 0 and 1 with PPO.

# %% tags=["claims"]
assert reward_of_cell.tolist() == [1, 0, 0, 0, 0], "five cells, and cell 0 pays 1"
total = {name: part.sum(1) for name, part in parts.items()}
assert total["exact values"].argmin() == 0, "with exact values 0 is best"
assert 0 < total["wrong values"].argmin() < len(grid) - 1, "the best lies in between"
at = {name: dict(zip(grid.tolist(), x, strict=True)) for name, x in total.items()}
assert all(x[0.7] < x[0.95] for x in at.values()), (
    "on this ring 0.7 is better than 0.95"
)
assert (np.diff(parts["wrong values"][:, 0]) < 0).all(), "the bias falls"
few, many = best.values()
assert few == sorted(few), "the worse the critic, the larger λ"
assert many == sorted(many), "with more steps as well"
assert all(x < y for x, y in zip(few, many, strict=True)), "the larger the batch"
assert few[1] == grid[total["wrong values"].argmin()], "as in the picture"
assert (np.diff(parts["exact values"][:, 1]) > 0).all(), "each reward adds variance"
assert 0.2 < np.sqrt(parts["wrong values"][-1, 0]) < 0.6, "a little bias is left at 1"

# %% tags=["program"] total_steps=50000
import torch
from torch import nn

from literate_rl.maths.advantages import gae
from literate_rl.data.agents import Collector, make_envs

torch.set_num_threads(1)  # the networks are too small for several threads to pay

env_id, seed, total_steps = "CartPole-v1", 1, 50_000
num_envs, num_steps = 8, 64
learning_rate, gamma, lambda_ = 1e-2, 0.98, 0.8


def network(outputs):
    """Build a network with two hidden layers."""
    first, second = nn.Linear(inputs, 64), nn.Linear(64, 64)
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(64, outputs))


torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
envs = make_envs(env_id, num_envs)
inputs, actions = envs.single_observation_space.shape[0], envs.single_action_space.n
# The actor's numbers are the logits of the actions, the critic's one is the value.
actor, critic = network(int(actions)), network(1)
parameters = [*actor.parameters(), *critic.parameters()]
optimizer = torch.optim.Adam(parameters, learning_rate)
collector = Collector(envs)
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1


def act(obs):
    """Draw an action for each observation."""
    prob = actor(obs).softmax(-1)
    return torch.multinomial(prob, 1, generator=generator).squeeze(-1)


episodes, report = [], 0  # when each episode ended, and its return
while collector.step < total_steps:
    # 1. Collect: act for some steps with the policy as it is.
    batch = collector.collect(act, num_steps)
    returns = batch.episode_return[batch.terminated | batch.truncated]
    episodes += [(collector.step, x) for x in returns.tolist()]

    # 2. Look back: was each action better than expected, {eq}`gae`?
    with torch.no_grad():
        value, next_value = critic(batch.obs)[..., 0], critic(batch.next_obs)[..., 0]
    ends = batch.terminated, batch.truncated
    adv = gae(batch.reward, value, next_value, *ends, gamma, lambda_)
    # From here on time plays no role: the rollout becomes one long list of samples.
    columns = batch.obs, batch.action, adv, adv + value
    obs, action, adv, target = (column.flatten(0, 1) for column in columns)

    # 3. Learn: what turned out well becomes likelier, {eq}`policy-gradient-loss`.
    log_prob = actor(obs).log_softmax(-1).gather(-1, action[:, None])[:, 0]
    policy_loss = -(log_prob * adv).mean()
    value_loss = 0.5 * (target - critic(obs)[..., 0]).square().mean()

    optimizer.zero_grad()
    (policy_loss + 0.5 * value_loss).backward()
    optimizer.step()
    if collector.step >= report + total_steps / 8:
        report, recent = collector.step, [x for _, x in episodes[-20:]]
        print(f"step {report:6d}: mean return {sum(recent) / max(1, len(recent)):4.0f}")

# %% [markdown]
# ## Traps
#
# ### Trap: a truncation that ends the world
#
# A lot of code uses a single flag for both kinds of end and treats it as `terminated`. Take a
# robot that never breaks down, a time limit of 20 steps, and exact values. Here is the
# mean error of an advantage 0, 1, 2, … steps before the limit.

# %%
sturdy = Ring(end_probability=0.0)
chain, _ = sturdy.chain(right)
lasting = torch.as_tensor(tabular_values(chain, reward_of_cell, discount))
short = walk(sturdy, limit=20)
ended = short.terminated | short.truncated
never = torch.zeros_like(ended)
value, next_value = lasting[short.obs], lasting[short.next_obs]
reward = short.reward.double()
true_advantage = reward + discount * next_value - value  # each step has one outcome

print("steps before the limit", *(f"{before:6d}" for before in range(5)))
rows = {}
for name, flags in {"two flags": (never, ended), "one flag": (ended, never)}.items():
    error = gae(reward, value, next_value, *flags, discount) - true_advantage
    # A step is `before` steps away from the cut if the flag is that many rows below.
    near = [ended.roll(-before, 0)[:-5] for before in range(5)]
    rows[name] = [error[:-5][steps].mean().item() for steps in near]
    print(f"{name:22s}", *(f"{x:6.2f}" for x in rows[name]))

# %% [markdown]
# With one flag the step at the limit misses the whole value of the future, about 20 for a robot
# that never breaks down, and its action is blamed for it. The step before misses $\gamma \lambda$
# of that, and so on. The end of every episode looks like a series of mistakes. With two flags
# only chance is left.

# %% tags=["claims"]
assert max(map(abs, rows["two flags"])) < 0.1, "two flags are right"
assert -21 < rows["one flag"][0] < -19, "the whole value of the future"
assert np.allclose(
    np.divide(rows["one flag"][1:], rows["one flag"][:-1]), 0.94, atol=0.01
)

# %% [markdown]
# ### Trap: a function that writes into its arguments
#
# [DI-engine's `gae`](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/rl_utils/gae.py#L61)
# multiplies `next_value` by the flag in place. If `value` and `next_value` are two views of
# one tensor with $T + 1$ rows, `value` changes too. Here is what such a line does:

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
# | choice | this chapter | [Stable-Baselines3](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/common/buffers.py#L403-L438) | [CleanRL](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppo.py#L217-L231) | [Spinning Up](https://github.com/openai/spinningup/blob/038665d62d569055401d91856abb287263096178/spinup/algos/pytorch/ppo/ppo.py#L42-L69) | [DI-engine](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/rl_utils/gae.py#L25-L70) | [TorchRL](https://github.com/pytorch/rl/blob/ae9719f17b1517af5c2523a36c4616f003ee55cf/torchrl/objectives/value/functional.py#L120-L184) |
# |---|---|---|---|---|---|---|
# | how it sums | in chunks ({doc}`workshop/fast`) | loop in NumPy | loop | SciPy's `lfilter`, one episode at a time | loop | loop, or a convolution |
# | flags | two | one; the bootstrap is [added to the reward](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/common/on_policy_algorithm.py#L237-L245) | [one](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppo.py#L206) | one | two | two |
# | truncated step | asks the critic | asks the critic | counts as the end | counts as the end, except at [its own length limit](https://github.com/openai/spinningup/blob/038665d62d569055401d91856abb287263096178/spinup/algos/pytorch/ppo/ppo.py#L319-L325) | as the caller sets the flags | asks the critic |
# | writes to | a new tensor | its buffer | its buffer | its buffer | its argument `next_value` | a new tensor |
#
# Look at the rows "truncated step" and "writes to": two of the five fall into the first
# trap, one into the second. We read the code at the linked commits.
#
# ## On the best device
#
# The same call runs on a GPU if there is one.

# %%
from literate_rl.data.agents import best_device

device = best_device()
steps = [torch.randn(512, 8, generator=generator) for _ in range(3)]
flags = [torch.rand(512, 8, generator=generator) < 0.01 for _ in range(2)]
on_device = gae(*(x.to(device) for x in (*steps, *flags)))
print(f"512 steps of 8 environments on {on_device.device.type}")

# %% tags=["claims"]
assert torch.allclose(on_device.cpu(), gae(*steps, *flags), atol=1e-4)

# %% [markdown]
# ## Summary
#
# - The TD error is what one step teaches. With an exact critic its mean is the advantage.
# - $\lambda$ averages over returns of all lengths: 0 relies on the critic's next value
#   (bias), 1 on the rewards (variance). 0.95 is where people start.
# - The average is a recursion from the last step to the first: `gae`.
# - `terminated` removes the future, `terminated or truncated` cuts the recursion.
# - Advantages weight the policy's loss. Added to the values, they are the critic's targets.
#
# ## Exercises
#
# ### Exercise 1: predict
#
# No code yet, only a thought.

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "The critic's value is 5 too high in every state, and γ = 1. The episode is truncated, "
    "not terminated. What happens to its advantages?",
    ["nothing, for any λ", "all fall by 5, for any λ", "it depends on λ"],
    right="nothing, for any λ",
    because="Each TD error holds one value with a plus and one with a minus, so the 5 "
    "cancels. At a terminated step only the minus is left: with λ = 1 every advantage of "
    "such an episode would be 5 too low.",
)

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function is meant to be `gae`. It runs, and for some episodes it is right. Fix it.


# %%
def answer(reward, value, next_value, terminated, truncated, gamma, lambda_):
    future = torch.where(terminated, 0.0, next_value)
    td_error = reward + gamma * future - value
    same_episode = ~terminated
    return gae_loop(td_error, gamma * lambda_ * same_episode.to(td_error))


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade


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
# The ring again, with critics that are only a third as wrong. Does the best $\lambda$ become
# larger or smaller? Guess first. Then find it with the function
# `errors(batch, values, lambda_)`, which returns squared bias and variance. `batch` holds
# the steps, `cell_value` the exact values, `noise` the errors of 20 critics, `grid` the
# numbers to try. Return the one for which the sum of the two is least, on average over the critics.


# %%
def answer():
    return ...


# %% tags=["hide-input"]
def best_lambda():
    mean_squared = [
        np.mean([sum(errors(batch, cell_value + n / 3, x)) for n in noise])
        for x in grid
    ]
    return float(grid[np.argmin(mean_squared)])


grade(answer, best_lambda, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    # Smaller: a critic that is nearly right deserves more trust.
    def mean_squared(lambda_):
        return np.mean([sum(errors(batch, cell_value + n / 3, lambda_)) for n in noise])

    return float(min(grid, key=mean_squared))


grade(answer, best_lambda, ())

# %% tags=["claims"]
assert answer() < grid[total["wrong values"].argmin()], "a better critic wants less λ"

# %% [markdown]
# ### Exercise 4: write it from nothing
#
# Close the book, so to speak, and write `gae` with PyTorch alone: no function of this chapter. All
# tensors are $(T, B)$, rewards, values and next values of floats, the two flags of truth values. The
# cases have names, so the verdict tells which of them fails and where.


# %%
def answer(reward, value, next_value, terminated, truncated, gamma, lambda_):
    return ...


# %% tags=["hide-input"]
def rollout(*ends, wild=False):
    """Return six steps of two environments; ends are (step, copy, which flag)."""
    numbers = torch.randn(3, 6, 2, generator=torch.Generator().manual_seed(7))
    flags = torch.zeros(2, 6, 2, dtype=torch.bool)
    for step, copy, flag in ends:
        flags[flag, step, copy] = True
    if wild:  # what stands behind an end may be anything
        numbers[2][flags[0]] = torch.nan
    return (*numbers, *flags, 0.9, 0.8)


by_hand = {
    "no end": rollout(),
    "a terminated step": rollout((2, 0, 0)),
    "a truncated step": rollout((2, 0, 1)),
    "both flags in one step": rollout((2, 0, 0), (2, 0, 1)),
    "ends in both environments": rollout((1, 0, 0), (3, 1, 1), (5, 0, 1)),
    "a next value that is no number": rollout((2, 0, 0), wild=True),
}
grade(answer, gae, by_hand)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(reward, value, next_value, terminated, truncated, gamma, lambda_):
    # Termination takes the future away. Filled in, not multiplied: 0 times NaN is NaN.
    future = next_value.masked_fill(terminated, 0.0)
    error = reward + gamma * future - value
    # After an end of either kind the next row belongs to another episode.
    goes_on = (~(terminated | truncated)).float()
    adv, later = torch.zeros_like(error), torch.zeros_like(error[0])
    for t in reversed(range(len(error))):
        later = error[t] + gamma * lambda_ * goes_on[t] * later
        adv[t] = later
    return adv


grade(answer, gae, by_hand)

# %% [markdown]
# ## References
#
# GAE is from {cite:t}`schulman2016`. {cite:t}`sutton2018` treat $n$-step returns in chapter
# 7 and $\lambda$-returns in chapter 12.
