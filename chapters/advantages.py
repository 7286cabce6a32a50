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
# **Was this action better than what the policy usually does here?** The answer is a
# number, the advantage, and every policy gradient is weighted with it
# ({doc}`/chapters/policy_gradient`). We cannot look it up. We have to estimate it from
# rewards that were seen and from values that a network has guessed.
#
# At the end of this chapter you can choose between the two kinds of error that such an
# estimate makes, compute it for many environments at once with the two flags of
# {doc}`/chapters/agents`, and do it with a few large operations in place of a long
# loop.

# %% tags=["export", "hide-input"]
"""Advantages: n-step returns, lambda-returns and generalised advantage estimation."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from literate_rl.agents import check_gamma, check_steps

__all__ = ["gae", "gae_loop", "lambda_returns", "n_step_returns", "reverse_scan"]

# %% [markdown]
# ## One step of surprise
#
# The value $V(s_t)$ is what the agent expects when it is in state $s_t$. One step later it
# knows more: the reward $r_t$ and where the step led, $s'_t$. The difference between
# what it knows now and what it expected is the **TD error**, a small surprise:
#
# $$
# \delta_t = r_t + \gamma \, (1 - \mathrm{te}_t) \, V(s'_t) - V(s_t)
# $$ (td-error)
#
# The flag $\mathrm{te}_t$ takes the future away when the task is over. A truncated step
# keeps its future, because only our view ended there.
#
# The **advantage** of an action is how much better it is than the policy's average in
# that state. If $V$ is the true value of the policy, the surprise is the advantage, on
# average. One sample of it costs one step. But $V$ is a network's guess. If the guess
# is wrong, so is the surprise, and no amount of data mends it: the estimate has **bias**.
#
# ## Many steps of surprise
#
# We can trust the network less and the rewards more. Take $n$ rewards before asking for
# a value. This is the **$n$-step return**,
#
# $$
# G^{(n)}_t = r_t + \gamma \, (1 - \mathrm{te}_t)
# \begin{cases}
#   V(s'_t) & \text{if } n = 1 \text{ or } \mathrm{done}_t \text{ or } t = T - 1 \\
#   G^{(n-1)}_{t+1} & \text{otherwise.}
# \end{cases}
# $$ (n-step-return)
#
# The guess now counts only $\gamma^n$ as much, so there is less bias. But $n$ random
# rewards vary more than one: there is more **variance**. With $n = 1$ the return minus
# $V(s_t)$ is the TD error. With $n = \infty$ it is the return of
# {doc}`/chapters/agents`.
#
# Which $n$ is best? We need not choose. Average over all $n$, with weights that fall by
# a factor $\lambda$ from one to the next. The **$\lambda$-return** is
#
# $$
# G^\lambda_t = (1 - \lambda) \sum_{n \ge 1} \lambda^{n-1} G^{(n)}_t .
# $$ (def-lambda-return)
#
# Minus $V(s_t)$, this is **generalised advantage estimation**, GAE
# {cite:p}`schulman2016`. The sum looks expensive, but it hides a short recursion. Write
# an $n$-step return as a sum of surprises. While the episode lasts, $s'_t$ is $s_{t+1}$,
# so the values in between cancel in pairs:
#
# $$
# G^{(n)}_t - V(s_t) = \delta_t + \gamma \delta_{t+1} + \dots
#     + \gamma^{n-1} \delta_{t+n-1} .
# $$ (def-telescope)
#
# The surprise $\delta_{t+k}$ stands in all sums with $n > k$, and their weights add up to
# $(1 - \lambda)(\lambda^k + \lambda^{k+1} + \dots) = \lambda^k$. So the average is
# $\delta_t + \gamma \lambda \delta_{t+1} + (\gamma \lambda)^2 \delta_{t+2} + \dots$, and
# that is a recursion which runs backward:
#
# $$
# \hat A_t = \delta_t + \gamma \lambda \, (1 - \mathrm{done}_t) \, \hat A_{t+1} ,
# \qquad \hat A_T = 0 .
# $$ (gae)
#
# Here are the two flags again, each with its own job. $\mathrm{te}_t$ stands in
# {eq}`td-error` and says whether there is a future. $\mathrm{done}_t$ stands in {eq}`gae`
# and says whether the next row belongs to the same episode. Line by line:


# %% tags=["export"]
def gae_loop(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float = 0.99,
    lambda_: float = 0.95,
) -> Tensor:
    """Compute what ``gae`` computes, step by step: the form to read.

    Args:
        reward: As in ``gae``.
        value: As in ``gae``.
        next_value: As in ``gae``.
        terminated: As in ``gae``.
        truncated: As in ``gae``.
        gamma: As in ``gae``.
        lambda_: As in ``gae``.

    Returns:
        The advantages, (T, B), without gradient.

    Raises:
        TypeError: As ``gae``.
        ValueError: As ``gae``.
    """
    delta, done = td_errors(reward, value, next_value, terminated, truncated, gamma)
    check_lambda(lambda_)
    # The recursion {eq}`gae`, from the last step to the first.
    decay = gamma * lambda_ * (~done).to(delta.dtype)
    advantage = torch.zeros_like(delta[0])
    advantages = []
    for t in reversed(range(len(delta))):
        advantage = delta[t] + decay[t] * advantage
        advantages.append(advantage)
    return torch.stack(advantages[::-1])


def td_errors(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
) -> tuple[Tensor, Tensor]:
    """Check the arguments; return the TD errors (T, B) and which steps are done."""
    check_steps(
        reward=reward,
        value=value,
        next_value=next_value,
        terminated=terminated,
        truncated=truncated,
    )
    check_gamma(gamma)
    # The surprise {eq}`td-error`. An advantage is a weight, not a way for gradients.
    bootstrap = next_value.detach().masked_fill(terminated, 0.0)
    delta = torch.add(reward.detach(), bootstrap, alpha=gamma) - value.detach()
    check_finite(delta, reward=reward, value=value, next_value=next_value)
    return delta, terminated | truncated


def check_lambda(lambda_: float) -> None:
    """Raise unless a decay is a number from 0 to 1."""
    if isinstance(lambda_, bool) or not isinstance(lambda_, int | float):
        raise TypeError(f"lambda_ must be a number, got {type(lambda_).__name__}")
    if not 0 <= lambda_ <= 1:
        raise ValueError(f"lambda_ must lie in [0, 1], got {lambda_}")


def check_finite(result: Tensor, **inputs: Tensor) -> None:
    """Raise if a result holds NaN or infinity, and name the inputs to blame."""
    # One sum, one look. Only if it is bad, search.
    if not math.isfinite(result.sum().item()) and not result.isfinite().all():
        bad = [name for name, x in inputs.items() if not x.isfinite().all()]
        raise ValueError(f"{' and '.join(bad) or 'the result'} must be finite")


# %% [markdown]
# An example with round numbers: one environment, five steps, $\gamma = 1$ and
# $\lambda = 1/2$. Every step pays 1 and every value is guessed as 0, so each surprise
# is 1. The episode ends after the third step. **Notice** how an advantage grows toward
# the start of its episode, up to 2 if the episode is long, and that nothing crosses
# the end.

# %%
column = torch.ones(5, 1)
end = torch.tensor([[False], [False], [True], [False], [False]])
never = torch.zeros_like(end)
zero = torch.zeros_like(column)
print(gae_loop(column, zero, zero, end, never, gamma=1.0, lambda_=0.5).T)

# %% [markdown]
# ## The same numbers in fewer operations
#
# The loop is right, and it is slow. It takes $T$ turns, and each is a handful of calls
# into PyTorch that cost microseconds however few numbers they move. With 128 steps in
# 8 environments, nearly all of the time is spent on calling.
#
# Everything in this chapter is one recursion with different letters,
#
# $$
# x_t = b_t + f_t \, x_{t+1} , \qquad x_T = 0 ,
# $$ (reverse-scan)
#
# called a **scan**. For GAE the increment $b_t$ is the surprise and the factor $f_t$ is
# $\gamma \lambda (1 - \mathrm{done}_t)$. It looks as if step $t$ had to wait for step
# $t + 1$. It does not have to wait long.
#
# Cut time into chunks of $C$ steps. In each chunk, pretend that nothing comes after it.
# The recursion then gives a *local* answer $\hat x_t$. What was left out is the true
# answer at the head of the next chunk, in row $h$, times all factors on the way there:
#
# $$
# x_t = \hat x_t + F_t \, x_h , \qquad F_t = f_t \, f_{t+1} \cdots f_{h-1} .
# $$ (scan-chunk)
#
# The local answers of all chunks need only $C$ turns, because the chunks run side by
# side. Then the heads are put right, one after the other, in $T / C$ turns. One last
# operation puts right all other rows. A local turn makes two calls, one for $\hat x$ and
# one for $F$, so there are about $2 C + T / C$ calls. That is smallest for
# $C = \sqrt{T / 2}$: for 512 steps it is 64 calls and not 512.


# %% tags=["export"]
def reverse_scan(increment: Tensor, factor: Tensor) -> Tensor:
    """Solve a linear recursion that runs backward in time.

    The result obeys ``x[t] = increment[t] + factor[t] * x[t + 1]``; after the last row
    comes zero.

    Args:
        increment: What each step adds, (T, B) floating-point.
        factor: What each step passes on of the step after it, (T, B) floating-point.

    Returns:
        A new tensor (T, B), without gradient.

    Raises:
        TypeError: If an argument is no floating-point tensor.
        ValueError: If a shape is wrong.

    Source:
        Blelloch 1990, Prefix Sums and Their Applications, section 1.4 (recurrences),
        with chunks in place of a tree.
    """
    check_steps(increment=increment, factor=factor)
    num_steps, num_envs = increment.shape
    length = max(1, round(math.sqrt(num_steps / 2)))

    # Zeros behind the last row fill up the last chunk and change nothing. `pad` always
    # copies, so what follows may write in place.
    rows = (0, 0, 0, -num_steps % length)
    x = pad(increment.detach(), rows).view(-1, length, num_envs)
    product = pad(factor.detach(), rows).view(-1, length, num_envs)

    # The local answers of {eq}`scan-chunk`, for all chunks at once. Row by row the
    # factors become the products $F_t$.
    x_rows, product_rows = x.unbind(1), product.unbind(1)
    for k in reversed(range(length - 1)):
        x_rows[k].addcmul_(product_rows[k], x_rows[k + 1])
        product_rows[k].mul_(product_rows[k + 1])

    # The heads, from the last chunk to the first. This is {eq}`reverse-scan` again,
    # with chunks for steps.
    heads, head_products = x_rows[0].unbind(), product_rows[0].unbind()
    for c in reversed(range(len(heads) - 1)):
        heads[c].addcmul_(head_products[c], heads[c + 1])

    # All rows that are no head, each with the head of the chunk after its own.
    x[:-1, 1:].addcmul_(product[:-1, 1:], x[1:, :1])
    return x.flatten(0, 1)[:num_steps]


# %% tags=["export"]
def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float = 0.99,
    lambda_: float = 0.95,
) -> Tensor:
    """Estimate the advantage of every step, with two flags.

    Args:
        reward: Rewards, (T, B).
        value: Value of each step's state, (T, B).
        next_value: Value of each step's true successor, (T, B). Entries at terminated
            steps count as 0, whatever they hold.
        terminated: Whether the task ended with this step, (T, B) boolean.
        truncated: Whether the episode was cut off after this step, (T, B) boolean.
        gamma: Discount, in [0, 1].
        lambda_: Decay of the weights of longer returns, in [0, 1].

    Returns:
        The advantages, (T, B), without gradient. Added to ``value`` they are targets
        for the value function.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If a shape, ``gamma`` or ``lambda_`` is wrong, or a number that
            counts is not finite.

    Source:
        Schulman et al. 2016, equation 16, with separate flags for the two ends.
    """
    delta, done = td_errors(reward, value, next_value, terminated, truncated, gamma)
    check_lambda(lambda_)
    # The recursion {eq}`gae` as a scan.
    factor = torch.full_like(delta, gamma * lambda_).masked_fill_(done, 0.0)
    return reverse_scan(delta, factor)


# %% [markdown]
# Both forms give the same numbers, up to rounding. {doc}`/docs/results` says how much
# time the scan saves.

# %%
generator = torch.Generator().manual_seed(0)
shape = (512, 8)
reward, value, next_value = torch.randn(3, *shape, generator=generator)
terminated, truncated = torch.rand(2, *shape, generator=generator) < 0.02
steps = (reward, value, next_value, terminated, truncated)
by_loop, by_scan = gae_loop(*steps), gae(*steps)
print(f"largest difference: {(by_loop - by_scan).abs().max():.0e}")

# %% [markdown]
# ## Returns, for those who want targets
#
# A value function learns from returns, not from advantages. The two kinds above have
# functions of their own. Neither needs the values of the states themselves, only those
# of the successors.
#
# The $\lambda$-return obeys a recursion of its own. Look one step ahead: with weight
# $1 - \lambda$ we stop and ask for the value, with weight $\lambda$ we go on. At the end
# of an episode, and in the last row, we have to stop. So let $\lambda_t$ be 0 where
# $\mathrm{done}_t$ or $t = T - 1$, and $\lambda$ elsewhere:
#
# $$
# G^\lambda_t = r_t + \gamma \, (1 - \mathrm{te}_t)
#     \bigl( (1 - \lambda_t)\, V(s'_t) + \lambda_t\, G^\lambda_{t+1} \bigr) .
# $$ (lambda-return)


# %% tags=["export"]
def lambda_returns(
    reward: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float = 0.99,
    lambda_: float = 0.95,
) -> Tensor:
    """Compute the lambda-return of every step, with two flags.

    Args:
        reward: Rewards, (T, B).
        next_value: Value of each step's true successor, (T, B). Entries at terminated
            steps count as 0, whatever they hold.
        terminated: Whether the task ended with this step, (T, B) boolean.
        truncated: Whether the episode was cut off after this step, (T, B) boolean.
        gamma: Discount, in [0, 1].
        lambda_: Weight of going on against stopping, in [0, 1]. With 1 the result is
            ``discounted_returns``, with 0 the one-step target of TD learning.

    Returns:
        The returns, (T, B), without gradient.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If a shape, ``gamma`` or ``lambda_`` is wrong, or a number that
            counts is not finite.

    Source:
        Sutton and Barto, Reinforcement Learning, 2nd edition, equation 12.18.
    """
    bootstrap, stop = check_targets(reward, next_value, terminated, truncated, gamma)
    check_lambda(lambda_)
    # The recursion {eq}`lambda-return`, sorted: what does not depend on the next row is
    # the increment, the rest is the factor.
    weight = torch.full_like(bootstrap, lambda_).masked_fill_(stop, 0.0)
    increment = reward.detach() + gamma * (1 - weight) * bootstrap
    return reverse_scan(increment, gamma * weight)


# %% tags=["export"]
def n_step_returns(
    reward: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float = 0.99,
    num_steps: int = 5,
) -> Tensor:
    """Compute the n-step return of every step, with two flags.

    Args:
        reward: Rewards, (T, B).
        next_value: Value of each step's true successor, (T, B). Entries at terminated
            steps count as 0, whatever they hold.
        terminated: Whether the task ended with this step, (T, B) boolean.
        truncated: Whether the episode was cut off after this step, (T, B) boolean.
        gamma: Discount, in [0, 1].
        num_steps: Number n of rewards before the value, at least 1. A return stops
            earlier where its episode ends and in the last row.

    Returns:
        The returns, (T, B), without gradient.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If a shape, ``gamma`` or ``num_steps`` is wrong, or a number that
            counts is not finite.

    Source:
        Sutton and Barto, Reinforcement Learning, 2nd edition, equation 7.1.
    """
    bootstrap, stop = check_targets(reward, next_value, terminated, truncated, gamma)
    if isinstance(num_steps, bool) or not isinstance(num_steps, int):
        raise TypeError(f"num_steps must be an int, got {type(num_steps).__name__}")
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")
    # This time the loop runs over $n$. Each turn makes all returns of
    # {eq}`n-step-return` one reward longer. More than $T$ turns change nothing.
    reward = reward.detach()
    future = bootstrap
    for _ in range(min(num_steps, len(reward)) - 1):
        returns = reward + gamma * future
        future = torch.where(stop, bootstrap, returns.roll(-1, 0))
    return reward + gamma * future


def check_targets(
    reward: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
) -> tuple[Tensor, Tensor]:
    """Check arguments; return the bootstrap and where a return has to stop, (T, B)."""
    check_steps(
        reward=reward, next_value=next_value, terminated=terminated, truncated=truncated
    )
    check_gamma(gamma)
    bootstrap = next_value.detach().masked_fill(terminated, 0.0)
    check_finite(reward + bootstrap, reward=reward, next_value=next_value)
    stop = terminated | truncated
    stop[-1] = True
    return bootstrap, stop


# %% [markdown]
# ## See it: bias against variance
#
# Which $\lambda$ is best depends on how good the values are. The ring of
# {doc}`/chapters/agents` can show it, because there the truth is known. On average, a
# return that starts with action $a$ in cell $s$ should be
#
# $$
# Q(s, a) = r_s + \gamma \, (1 - p)\, V(s_a) ,
# $$ (def-true-return)
#
# where $s_a$ is the cell that the action leads to and $p$ the probability of a breakdown.
# The advantage subtracts $V(s)$ from it. An error there moves all actions of a cell alike,
# so it does not change which one looks better, and we leave it out.
#
# We compute $\lambda$-returns twice. First the values are exact. Then each value is wrong
# by a normal error with deviation 3, drawn anew for each of 20 networks that we imagine.
# The values themselves lie around 7.

# %% mystnb={"image": {"alt": "Two panels over lambda from 0 to 1. With exact values the bias is zero and the deviation grows with lambda, so the error is smallest at 0. With wrong values the bias falls, to about 0.4, as lambda grows while the deviation grows, and the whole error is smallest in between"}}
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from gymnasium.wrappers import TimeLimit

from literate_rl.agents import Collector, Ring, make_envs, tabular_values

gamma, right = 0.99, 0.8
ring = Ring()
transition, reward_of_cell = ring.chain(right)
exact = torch.as_tensor(tabular_values(transition, reward_of_cell, gamma))
reached = (torch.arange(5).unsqueeze(1) + torch.tensor([-1, 1])) % 5  # (cell, action)
alive = 1 - ring.end_probability
truth = torch.as_tensor(reward_of_cell).unsqueeze(1) + gamma * alive * exact[reached]


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
    returns = lambda_returns(
        batch.reward.double(),
        values[batch.next_obs],
        batch.terminated,
        batch.truncated,
        gamma,
        lambda_,
    )
    pair = (batch.obs * 2 + batch.action).flatten()
    count = torch.bincount(pair, minlength=10)
    mean = torch.bincount(pair, returns.flatten(), minlength=10) / count
    squared_bias = (count * (mean - truth.flatten()).square()).sum() / len(pair)
    variance = (returns.flatten() - mean[pair]).square().mean()
    return squared_bias.item(), variance.item()


batch = walk(ring, limit=100)
lambdas = np.array([0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1])
generator = torch.Generator().manual_seed(0)
noise = 3 * torch.randn(20, 5, generator=generator, dtype=torch.float64)
guesses = {"exact values": exact.unsqueeze(0), "wrong values": exact + noise}

fig, axes = plt.subplots(1, 2, figsize=(7, 2.8), sharey=True)
for axis, (name, networks) in zip(axes, guesses.items(), strict=True):
    parts = np.array([[errors(batch, v, x) for v in networks] for x in lambdas])
    bias, variance = parts.mean(axis=1).T
    axis.plot(lambdas, np.sqrt(bias), "--", color="C0", label="bias")
    axis.plot(lambdas, np.sqrt(variance), ":", color="C1", label="deviation")
    axis.plot(lambdas, np.sqrt(bias + variance), color="C3", label="both")
    axis.set_title(name, fontsize=10)
    axis.set_xlabel(r"$\lambda$")
axes[0].set_ylabel("error of a return")
axes[0].legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# "Both" is the root of the mean squared error. **Notice** in the left picture that exact
# values want $\lambda = 0$: each further reward only adds noise. **Notice** in the right
# picture that wrong values want a $\lambda$ in between. The bias falls, and the deviation
# takes over. A little bias is left even at 1, because a return still asks for a value
# where the time limit cuts it. Values are poor at the start of training and good at its
# end, and 0.95 is the usual compromise.

# %% [markdown]
# ## Traps
#
# ### Trap: a truncation that ends the world
#
# Much code has one flag for both ends and hands it over as `terminated`. Take a robot that
# never breaks down, a time limit of 20 steps, and exact values. What is the mean error of
# an advantage 0, 1, 2, … steps before the limit?

# %%
sturdy = Ring(end_probability=0.0)
chain, _ = sturdy.chain(right)
lasting = torch.as_tensor(tabular_values(chain, reward_of_cell, gamma))
short = walk(sturdy, limit=20)
ended = short.terminated | short.truncated
never = torch.zeros_like(ended)
value, next_value = lasting[short.obs], lasting[short.next_obs]
reward = short.reward.double()
true_advantage = reward + gamma * next_value - value  # nothing here is random
rules = {"two flags": (never, ended), "one flag": (ended, never)}

print("steps before the limit", *(f"{before:6d}" for before in range(5)))
for name, flags in rules.items():
    error = gae(reward, value, next_value, *flags, gamma) - true_advantage
    # A step is `before` steps away from the cut if the flag is so many rows below.
    near = [ended.roll(-before, 0)[:-5] for before in range(5)]
    row = (error[:-5][steps_near].mean().item() for steps_near in near)
    print(f"{name:22s}", *(f"{x:6.2f}" for x in row))

# %% [markdown]
# At the cut, one flag misses the whole value of the future, about 20, and blames the
# action for it. A step earlier it misses $\gamma \lambda$ of that, and so on. The end of
# every episode looks like a series of mistakes.
#
# ### Trap: the row that never happened
#
# In Gymnasium's mode `NEXT_STEP` the row after an end is a phantom: its action was ignored,
# its reward is 0, and it leads from the last observation of one episode to the first of the
# next ({doc}`/chapters/agents`). The flags of the row before keep it from reaching back.
# But it has an advantage of its own, and that is pure noise for an action that nobody
# took. With exact values again:

# %%
from gymnasium.vector import AutoresetMode, SyncVectorEnv

envs = SyncVectorEnv(
    [lambda: TimeLimit(Ring(), 20)] * 64, autoreset_mode=AutoresetMode.NEXT_STEP
)
obs, _ = envs.reset(seed=0)
rng = np.random.default_rng(0)
rows = []
for _ in range(200):
    action = (rng.random(64) < right).astype(np.int64)
    next_obs, reward, terminated, truncated, _ = envs.step(action)
    rows.append((obs, reward, next_obs, terminated, truncated))
    obs = next_obs
obs, reward, next_obs, terminated, truncated = map(
    torch.as_tensor, map(np.stack, zip(*rows, strict=True))
)
advantage = gae(reward, exact[obs], exact[next_obs], terminated, truncated, gamma)
phantom = (terminated | truncated).roll(1, 0)
phantom[0] = False
print(f"phantoms: {phantom.float().mean():.1%} of all rows")
for name, rows in (("real steps", ~phantom), ("phantoms", phantom)):
    print(
        f"mean square of the advantage, {name}: {advantage[rows].square().mean():.2f}"
    )

# %% [markdown]
# A loss has to leave these rows out, for instance with a weight of 0. This book's rollouts
# use `SAME_STEP` and have none.
#
# ### Trap: a function that writes into its arguments
#
# `value` and `next_value` often are two views of one tensor with $T + 1$ rows. DI-engine's
# `gae` multiplies `next_value` by the flag in place, so it changes `value` as well. Here is
# what that does:

# %%
buffer = torch.arange(1.0, 7.0).unsqueeze(1)  # values of 6 states, one environment
value, next_value = buffer[:-1], buffer[1:]
ended = torch.tensor([[False], [False], [True], [False], [False]])
next_value.mul_(~ended)
print("value after masking next_value in place:", value.flatten().tolist())

# %% [markdown]
# The fourth value has become 0. It belongs to the next episode and had nothing to do with
# the end of this one. `gae` masks a copy.
#
# ## What well-known implementations do
#
# | question | this chapter | Stable-Baselines3 | CleanRL | Spinning Up | DI-engine | TorchRL |
# |---|---|---|---|---|---|---|
# | form | scan in chunks | loop in NumPy | loop | filter from SciPy, one episode at a time | loop | loop, or a convolution |
# | flags | two | one, and the bootstrap is added to the reward | one | one | two | two |
# | truncated step | bootstraps | bootstraps | counts as the end | counts as the end, except at its own length limit | as the caller sets the flags | bootstraps |
# | writes to its input | no | its own buffer | its own buffer | its own buffer | `next_value` | no |
# | advantage normalised | by the training loop | in each minibatch | in each minibatch | over the batch | in each minibatch | optional |
#
# ## On the best device
#
# On a GPU each call costs more than on a CPU, and there the few large operations of the
# scan matter more.

# %%
from literate_rl.agents import best_device

device = best_device()
on_device = gae(*(x.to(device) for x in steps))
print(f"512 steps of 8 environments on {on_device.device.type}")
print(
    "equal to the loop on the CPU:",
    torch.allclose(on_device.cpu(), by_loop, atol=1e-4),
)

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: three steps by hand
#
# Given are three surprises as a list, whether the episode ended after the second step,
# and the product $\gamma \lambda$. Return the list of the three advantages, without a loop
# and without this chapter's functions.

# %%
from literate_rl.agents import grade


def answer(delta, ended, decay):
    return ...


def three_by_hand(delta, ended, decay):
    last = delta[2]
    middle = delta[1] if ended else delta[1] + decay * last
    return [delta[0] + decay * middle, middle, last]


surprises = [
    ([1.0, 1.0, 1.0], False, 0.5),
    ([1.0, 1.0, 1.0], True, 0.5),
    ([0.0, -2.0, 4.0], False, 0.9),
]
grade(answer, three_by_hand, *surprises)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(delta, ended, decay):
    third = delta[2]
    second = delta[1] + (0 if ended else decay * third)
    first = delta[0] + decay * second
    return [first, second, third]


grade(answer, three_by_hand, *surprises)

# %% [markdown]
# ### Exercise 2: how far does it look?
#
# In GAE the surprise $k$ steps ahead has the weight $(\gamma \lambda)^k$. The sum of all
# weights is a measure of how many steps count. Return it.


# %%
def answer(gamma, lambda_):
    return ...


horizons = [(0.99, 0.95), (1.0, 0.5), (0.9, 0.0)]
grade(answer, lambda gamma, lambda_: 1 / (1 - gamma * lambda_), *horizons)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(gamma, lambda_):
    # A geometric series: $1 + x + x^2 + \dots = 1 / (1 - x)$.
    return 1 / (1 - gamma * lambda_)


grade(answer, lambda gamma, lambda_: 1 / (1 - gamma * lambda_), *horizons)

# %% [markdown]
# ### Exercise 3: a sum that forgets
#
# A running sum with forgetting is a scan that runs *forward*:
# $y_t = x_t + f\, y_{t-1}$, with $y_{-1} = 0$. Compute it for a tensor of the shape
# $(T, B)$ with `reverse_scan`, without a loop of your own.


# %%
def answer(x, forget):
    return ...


def forward_sum(x, forget):
    y = torch.zeros_like(x[0])
    return torch.stack([y := row + forget * y for row in x])


sums = [(torch.ones(4, 1), 0.5), (torch.arange(6.0).view(3, 2), 0.9)]
grade(answer, forward_sum, *sums)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(x, forget):
    # Turn time around, solve, and turn it back.
    return reverse_scan(x.flip(0), torch.full_like(x, forget)).flip(0)


grade(answer, forward_sum, *sums)

# %% [markdown]
# ## References
#
# GAE is from {cite:t}`schulman2016`. {cite:t}`sutton2018` treat $n$-step returns in chapter
# 7 and $\lambda$-returns in chapter 12; the scan is one of {cite:t}`blelloch1990`.
