# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # V-trace
#
# **How can a policy learn from data that an older policy collected?** After this chapter you can
# correct such data with clipped ratios, say what each of the three clips costs and what it buys,
# and compute the losses for any kind of action. Reading takes about 45 minutes, without exercises.
# You need to know the advantages of {doc}`advantages` and the ratio of {doc}`ppo_error`.

# %% tags=["export", "hide-input"]
"""V-trace: values and policy gradients from data of an older policy."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple, TypedDict
from warnings import warn

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor
from torch.nn.functional import pad

from literate_rl.ground.signatures import (
    Bool,
    Float,
    Fraction,
    Positive,
    check_finite,
    check_that,
    checked,
)
from literate_rl.maths.fast import categorical_terms
from literate_rl.maths.policy_gradient import policy_gradient_error
from literate_rl.maths.ppo_error import gaussian
from literate_rl.maths.scan import reverse_scan

__all__ = [
    "clipped_policy",
    "vtrace",
    "vtrace_data",
    "vtrace_error_continuous_action",
    "vtrace_error_discrete_action",
    "vtrace_error_from_log_prob",
    "vtrace_loop",
    "vtrace_loss",
]

# %% [markdown]
# ## One unlikely action
#
# A large agent collects and learns at the same time, in two programs: an **actor** acts in the
# environment (so far the word meant a network), and a **learner** takes the updates. The actor's
# weights are always a little behind, and data also grow old when a batch is used twice. Either way they
# come from an older policy, and some of its actions are ones that today's policy would hardly take. What
# followed such an action says little about today's policy.
#
# Here is an **unroll**: some steps in a row of one environment, in this case four. Nothing is
# discounted, each step pays 1, and all values are 0, so every TD error is 1. Today's policy takes
# the second action half as often as the policy that collected the data.

# %% tags=["hide-input"]
import torch

from literate_rl.maths.off_policy import vtrace  # the package's own, defined below
from literate_rl.book.pictures import Picture

ones, zeros = torch.ones(4, 1), torch.zeros(4, 1)
never = torch.zeros(4, 1, dtype=torch.bool)
ratio = torch.tensor([[1.0], [0.5], [1.0], [1.0]])
rest = (ones, zeros, zeros, never, never, 1.0, 1.0)  # neither discount nor decay
plain, _ = vtrace(zeros, *rest)
corrected, _ = vtrace(ratio.log(), *rest)

picture = Picture(
    "An unroll with and without V-trace",
    "Four steps with the TD error 1 each. Without correction the targets are 4, 3, 2, 1. "
    "The second action has the ratio one half. With V-trace the targets are 2.5, 1.5, 2, "
    "1: the second is halved, the first takes over that half, the later ones do not "
    "change.",
)
rows = {
    "TD error δ": ones,
    "ratio": ratio,
    "without V-trace": plain,
    "with V-trace": corrected,
}
accents = {"ratio": {1: "accent"}, "with V-trace": {0: "accent", 1: "accent"}}
for (name, column), y in zip(rows.items(), (20, 64, 124, 168), strict=True):
    picture.text(142, y, name, anchor="end", bold=y > 100)
    numbers = [f"{number:g}" for number in column.flatten().tolist()]
    row = picture.cells(178, y, numbers, accents.get(name), gap=32)
    # The recursion goes from the last step to the first.
    for later, earlier in zip(row[1:], row, strict=False) if y > 100 else ():
        picture.arrow(later, earlier)
picture.text(436, 212, "half of the TD error and of what follows", "accent", "end")
picture

# %% [markdown]
# The two lower rows are targets for the values. **Notice** that V-trace halves the target of the
# second step, and that the first step takes over that half and no more. The third and the fourth
# step stay as they are: a correction travels back in time, not forward.

# %% tags=["claims"]
assert plain.flatten().tolist() == [4, 3, 2, 1], "the picture's third row"
assert corrected.flatten().tolist() == [2.5, 1.5, 2, 1], "and its fourth"

# %% [markdown]
# ## A weight for each action
#
# The data come from the policy $\pi_{\text{old}}$, the **behaviour policy**, which papers often call
# $\mu$. We want to know about another one, $\pi$, the **target policy**. In each state the
# actions are the same, only their frequencies differ. So weight each action with the ratio of its
# two probabilities. Then for any function $f$ of the action
#
# $$
# \begin{aligned}
# \mathbb{E}_{\pi_{\text{old}}} \bigl[ e^{\ell} f(a) \bigr]
#     &= \sum_a \pi_{\text{old}}(a)\, \frac{\pi(a)}{\pi_{\text{old}}(a)}\, f(a)
#     = \mathbb{E}_{\pi} \bigl[ f(a) \bigr] , \\
# \ell &= \log \pi(a) - \log \pi_{\text{old}}(a) .
# \end{aligned}
# $$ (def-importance-ratio)
#
# This is **importance sampling**. It needs a $\pi_{\text{old}}$ that takes every action of $\pi$
# now and then, for no weight makes up for one that was never taken. For one action it works well.
# An unroll of $T$ actions needs the product of $T$ ratios. Its mean is still 1. But where all
# steps are alike, its mean *square* is the $T$-th power of a number above 1, so the standard
# deviation grows exponentially. Here are two actions that $\pi_{\text{old}}$ takes equally often,
# while $\pi$ takes one of them 70 percent of the time:

# %% tags=["hide-input"] mystnb={"image": {"alt": "Standard deviation of a product of ratios over the number of steps, up to 40, on a logarithmic axis. The plain product grows exponentially to about 20. The product of ratios clipped at 1 rises to 0.2 and then falls to nearly nothing"}}
import matplotlib.pyplot as plt

old, new = torch.tensor([[0.5, 0.5], [0.7, 0.3]], dtype=torch.float64)
ratio = new / old
steps = torch.arange(1, 41)

fig, axis = plt.subplots(figsize=(7, 2.6))
for name, weight in {
    "ratios": ratio,
    "ratios, clipped at 1": ratio.clamp(max=1),
}.items():
    mean, mean_square = (old * weight).sum(), (old * weight.square()).sum()
    deviation = (mean_square**steps - mean ** (2 * steps)).sqrt()
    axis.semilogy(steps, deviation, label=name)
axis.set(xlabel="steps", ylabel="standard deviation")
axis.legend()
fig.tight_layout()

# %% [markdown]
# **Notice** that after 32 steps the weight has mean 1 and a standard deviation of about ten. A
# gradient with such a weight is noise. The product of ratios that are clipped at 1 stays between
# 0 and 1, but its mean is no longer 1: it is $0.8^{32}$, less than a thousandth. What is lost by that?

# %% tags=["claims"]
mean, mean_square = (old * ratio).sum(), (old * ratio.square()).sum()
assert abs(mean - 1) < 1e-12, "mean 1"
assert 9 < (mean_square**32 - 1).sqrt() < 13, "a standard deviation of about ten"
mean = (old * ratio.clamp(max=1)).sum()
assert abs(mean - 0.8) < 1e-12, "so the mean of the product is 0.8 to the power 32"
assert mean**32 < 1e-3 < deviation[31], "shrinkage, and the deviation above the mean"

# %% [markdown]
# ## Three clips
#
# V-trace {cite:p}`espeholt2018` clips the ratio $e^{\ell}$ in three places, with three bounds. As in the
# paper, $\rho$ and $c$ are clipped ratios here:
#
# $$
# \rho_t = \min(\bar\rho, e^{\ell_t}) , \qquad
# c_t = \min(\bar c, e^{\ell_t}) , \qquad
# \rho^{\text{pg}}_t = \min(\bar\rho^{\text{pg}}, e^{\ell_t}) .
# $$ (vtrace-ratios)
#
# The rest is nearly GAE ({doc}`advantages`): the TD error $\delta_t$ of {eq}`td-error` and a
# recursion from the last step to the first. It computes a correction $x_t$ of each value. Each TD
# error is weighted with $\rho_t$, and the correction that the next step passes on is weighted
# with $c_t$. The value plus its correction is the target $v_t$ of the value function:
#
# $$
# x_t = \rho_t \delta_t + \gamma \lambda \, (1 - \mathrm{done}_t) \, c_t \, x_{t+1} ,
# \qquad x_T = 0 , \qquad v_t = V(s_t) + x_t .
# $$ (vtrace)
#
# Written out, a TD error $k$ steps ahead reaches step $t$ with all ratios on the way,
#
# $$
# v_t = V(s_t) + \sum_{k \ge 0} (\gamma \lambda)^k
#     \Bigl( \prod_{i=t}^{t+k-1} (1 - \mathrm{done}_i)\, c_i \Bigr)
#     \rho_{t+k}\, \delta_{t+k} .
# $$ (def-vtrace-sum)
#
# The policy needs an advantage. Take the step as it was, and correct what came after it, with
# $x_{t+1}$. The action was drawn by $\pi_{\text{old}}$, so weight the whole with its ratio:
#
# $$
# \hat A_t = \rho^{\text{pg}}_t \bigl( \delta_t
#     + \gamma \lambda \, (1 - \mathrm{done}_t) \, x_{t+1} \bigr) .
# $$ (vtrace-advantage)
#
# The paper leaves $\lambda$ out of the advantage; here it stands in both. So if the two policies are the
# same and no bound is below 1, $x_t$ and $\hat A_t$ are both the advantage of GAE, with the same $\lambda$.
#
# The two flags do what they always do. $\mathrm{te}_t$ takes the future out of the TD error.
# $\mathrm{done}_t$ cuts the recursion. So one unroll may hold the end of one episode and the
# start of the next.
#
# ## Line by line
#
# First the recursion by itself, as a loop. What a step takes over from the next one, $\gamma
# \lambda (1 - \mathrm{done}_t) \, c_t$, is called `passed_on`.


# %% tags=["export"]
@checked
def vtrace_loop(
    rho: Float[Tensor, "T B"],
    td_error: Float[Tensor, "T B"],
    passed_on: Float[Tensor, "T B"],
) -> Float[Tensor, "T B"]:
    """Add up weighted TD errors from the last step to the first, written to be read."""
    # After the last row there is nothing to add.
    x, rows = torch.zeros_like(td_error[0]), []
    # Each turn is the recursion {eq}`vtrace` for one step of all environments.
    for t in reversed(range(len(td_error))):
        x = rho[t] * td_error[t] + passed_on[t] * x
        rows.append(x)
    return torch.stack(rows[::-1])


# %% [markdown]
# `vtrace` clips the ratios, runs the recursion in its faster form, `reverse_scan`, and adds the values.


# %% tags=["export"]
@checked
def vtrace(
    log_ratio: Float[Tensor, "T B"],
    reward: Float[Tensor, "T B"],
    value: Float[Tensor, "T B"],
    next_value: Float[Tensor, "T B"],
    terminated: Bool[Tensor, "T B"],
    truncated: Bool[Tensor, "T B"],
    gamma: Fraction = 0.99,
    lambda_: Fraction = 0.95,
    rho_clip_ratio: Positive | None = 1.0,
    c_clip_ratio: Positive | None = 1.0,
    rho_pg_clip_ratio: Positive | None = 1.0,
) -> tuple[Float[Tensor, "T B"], Float[Tensor, "T B"]]:
    """Compute the targets of the values and the advantages of V-trace.

    ``log_ratio`` is the log-probability of each action under the target policy minus
    that under the behaviour policy. ``next_value`` belongs to the true successor of
    each step; where the step is terminated it counts as 0, whatever it holds.

    The bounds may be None. That of rho, which weights a TD error, decides which policy
    the values belong to. That of c, which weights what comes later, decides how fast
    they get there; above that of rho it warns, once. That of rho_pg is the weight of an
    advantage.

    Source: Espeholt et al. 2018, equation 1, remark 2 and section 4.2, with the decay
    in the advantage as well, and with two flags.
    """
    check_clips(rho_clip_ratio, c_clip_ratio)
    # The TD errors {eq}`td-error`.
    future = torch.where(terminated, 0.0, next_value.detach())
    delta = reward.detach() + gamma * future - value.detach()

    # The three clipped ratios {eq}`vtrace-ratios`. A ratio that is infinite becomes its
    # bound.
    ratio = log_ratio.detach().exp()
    bounds = rho_clip_ratio, c_clip_ratio, rho_pg_clip_ratio
    rho, c, rho_pg = (ratio.clamp(max=x or math.inf) for x in bounds)

    # The recursion {eq}`vtrace`. Nothing is taken over from the row after a done.
    goes_on = ~(terminated | truncated)
    follow = gamma * lambda_ * goes_on.byte().to(delta)
    x = reverse_scan(rho * delta, follow * c)
    target = value.detach() + x

    # The advantage {eq}`vtrace-advantage`. After the last row comes nothing.
    adv = rho_pg * (delta + follow * pad(x[1:], (0, 0, 0, 1)))
    causes = {"log_ratio": log_ratio, "reward": reward, "next_value": future}
    for result in (target, adv):
        check_finite(result, **causes, value=value)
    return target, adv


@cache
def check_clips(rho: float | None, c: float | None) -> None:
    """Warn if the bound of c is above that of rho, once for each pair."""
    if (c or math.inf) > (rho or math.inf):
        warn(
            f"c_clip_ratio is above rho_clip_ratio, {c} and {rho}: V-trace's values "
            "are not proven to converge then",
            stacklevel=2,
        )


# %% [markdown]
# ## Whose values are these?
#
# V-trace comes to rest where the targets are the values, on average. By
# {eq}`def-vtrace-sum` that is so if the mean of $\rho\, \delta$ is zero in each state: the factors $c$ in
# front of a $\rho\, \delta$ belong to earlier actions, and are fixed before the action of that $\delta$ is
# drawn. With one state fixed and left out of the notation, the condition is
#
# $$
# \begin{aligned}
# & \sum_a \pi_{\text{old}}(a)
#     \min\Bigl( \bar\rho, \frac{\pi(a)}{\pi_{\text{old}}(a)} \Bigr)
#     \bigl( Q(a) - V \bigr) \\
# & = \sum_a \min \bigl( \bar\rho\, \pi_{\text{old}}(a), \pi(a) \bigr)
#     \bigl( Q(a) - V \bigr) = 0 .
# \end{aligned}
# $$
#
# Here $Q(a)$ is the mean reward plus the discounted mean value of what follows. Divide the
# factors by their sum, and they are probabilities. Now the equation says that $V$ is the mean of
# $Q$ under these probabilities. That is the Bellman equation ({doc}`exact_values`) of a policy
# between the two,
#
# $$
# \pi_{\bar\rho}(a) = \frac{\min \bigl( \bar\rho\, \pi_{\text{old}}(a), \pi(a) \bigr)}
#     {\sum_j \min \bigl( \bar\rho\, \pi_{\text{old}}(j), \pi(j) \bigr)} .
# $$ (clipped-policy)
#
# Without a bound it is $\pi$, if $\pi_{\text{old}}$ takes every action of $\pi$. As $\bar\rho$
# goes to 0 it becomes $\pi_{\text{old}}$. An action that $\pi_{\text{old}}$ hardly ever takes
# counts too little in the values, for better or worse. That is the
# price of the clip. The bound $\bar c$ does not appear here at all.


# %% tags=["export"]
@checked
def clipped_policy(
    policy: Float[np.ndarray, "*S N"],
    old_policy: Float[np.ndarray, "*S N"],
    rho_clip_ratio: Positive | None = 1.0,
) -> Float[np.ndarray, "*S N"]:
    """Return the probabilities of the policy whose values V-trace estimates.

    Args:
        policy: Probabilities of the target policy.
        old_policy: Those of the behaviour policy.
        rho_clip_ratio: Bound of the ratio, or None.

    Source: Espeholt et al. 2018, equation 3.
    """
    # Numerator and denominator of {eq}`clipped-policy`. What the behaviour policy never
    # does is not in the data, so no bound makes it count.
    bound = min(rho_clip_ratio or math.inf, np.finfo(policy.dtype).max)
    part = np.minimum(bound * old_policy, policy)
    total = part.sum(-1, keepdims=True)
    common = bool((total > 0).all())
    check_that(common, "policy and old_policy must have an action in common")
    return part / total


# %% [markdown]
# Does V-trace really settle at the values of {eq}`clipped-policy`? We can check it without any
# noise. A problem with 3 states and 2 actions has $3 \cdot (2 \cdot 3)^4 = 3888$ unrolls of 4 steps, and
# each has a known probability under $\pi_{\text{old}}$, given its start. So the targets of `vtrace`,
# averaged with these probabilities, are exact means. Call that a *sweep*: values go in, mean targets come
# out. Sweep until the values settle.

# %%
import numpy as np

from literate_rl.data.exact_values import tabular_values

# 1. The problem: where actions lead, what they pay, and the two policies.
gamma, num_states, num_actions, num_steps = 0.9, 3, 2, 4
rng = np.random.default_rng(3)
P = rng.dirichlet(np.ones(num_states), (num_states, num_actions))
R = rng.normal(size=(num_states, num_actions))
pi_old, pi = rng.dirichlet(np.ones(num_actions), (2, num_states))

# 2. Every unroll. A number from 0 to 5 stands for an action and the state it leads to.
move = torch.arange(num_actions * num_states)
every = torch.cartesian_prod(torch.arange(num_states), *[move] * num_steps).T
state = torch.cat([every[:1], every[1:] % num_states])  # (T + 1, B)
taken = (state[:-1], every[1:] // num_states)  # states and actions, (T, B) each

# 3. The probability of each unroll, given its start.
likely = torch.tensor(pi_old)[taken] * torch.tensor(P)[*taken, state[1:]]
likely = likely.prod(0)


# 4. A sweep, and how much the target of a single unroll varies.
def sweep(value, rho, c):
    """Return mean and standard deviation of the first step's target, by state."""
    nowhere = torch.zeros(taken[0].shape, dtype=torch.bool)
    log_ratio, reward = torch.tensor(np.log(pi / pi_old))[taken], torch.tensor(R)[taken]
    values = value[state[:-1]], value[state[1:]]
    target, _ = vtrace(log_ratio, reward, *values, nowhere, nowhere, gamma, 1.0, rho, c)
    mean = torch.zeros_like(value).index_add(0, state[0], likely * target[0])
    spread = (target[0] - mean[state[0]]).square() * likely
    return mean, torch.zeros_like(value).index_add(0, state[0], spread).sqrt()


# 5. Sweep until the values settle; and what they should be.
def settle(rho):
    """Return the values at which V-trace settles."""
    value, change = torch.zeros(num_states, dtype=torch.float64), 1.0
    while change > 1e-10:
        before, (value, _) = value, sweep(value, rho, min(rho, 1.0))
        change = (value - before).abs().max()
    return value.numpy()


def closed_form(policy):
    """Return the true values of a policy."""
    chain = np.einsum("sa,saz->sz", policy, P)
    return tabular_values(chain, (policy * R).sum(1), gamma)


# %% [markdown]
# Turn $\bar\rho$ and watch the value, then $\bar c$ and watch the noise:

# %% tags=["hide-input"]
from literate_rl.book.pictures import Axis, Mark, dial, plot


def speed_and_noise(rho, c):
    """Return the share of an error that a sweep leaves, and how noisy a target is."""
    value = torch.tensor(closed_form(clipped_policy(pi, pi_old, rho)))
    errors = torch.eye(num_states, dtype=torch.float64)
    matrix = torch.stack([sweep(value + e, rho, c)[0] - value for e in errors])
    # A sweep multiplies an error by this matrix; its largest eigenvalue decides.
    left = torch.linalg.eigvals(matrix).abs().max().item()
    return left, sweep(value, rho, c)[1].mean().item()


rhos, cs = [0.1, 0.2, 0.5, 1, 2, 5, 12], [0.1, 0.2, 0.5, 1, 1.5, 2, 3, 5]
fine = np.geomspace(0.1, 12, 60)
line = [closed_form(clipped_policy(pi, pi_old, rho))[0] for rho in fine]
found = np.array([settle(rho) for rho in rhos])
exact = np.array([closed_form(clipped_policy(pi, pi_old, rho)) for rho in rhos])
trade = {(rho, c): speed_and_noise(rho, c) for rho in rhos for c in cs if c <= rho}
old_value, new_value = closed_form(pi_old)[0], closed_form(pi)[0]


def frame(rho, wanted):
    """Draw the value at a bound of rho, and speed and noise over the bound of c."""
    c, settled = min(wanted, rho), found[rhos.index(rho), 0]
    ends, places = np.log([0.1, 12]), {np.log(x): f"{x:g}" for x in rhos}
    values = plot(
        "What the target is",
        "The value of a state over the bound of rho. It climbs from near that of the old "
        "policy to that of the new one, and the dots of V-trace lie on the line.",
        Axis("bound ρ̄", ends[0], np.log(16), places),
        Axis("value of the first state", 0.8, 4, ticks=(1, 2, 3, 4)),
        Mark("line dashed", ends, [old_value] * 2, "quiet"),
        Mark("line dashed", ends, [new_value] * 2, "quiet"),
        Mark("line", np.log(fine), line, "second"),
        Mark("dots", list(places), found[:, 0], "second"),
        Mark("dots", [np.log(rho)], [settled], "accent"),
        Mark("label", [np.log(7)], [old_value + 0.2], "quiet", words="old policy"),
        Mark("label", [np.log(0.2)], [new_value + 0.2], "quiet", words="new policy"),
    )
    allowed = [x for x in cs if x <= rho]
    left, noise = zip(*(trade[rho, x] for x in allowed), strict=True)
    unbound = zip(*(trade[12, x] for x in cs), strict=True)
    speed = plot(
        "How fast, and how noisy",
        "Over the bound of c: the share of an error that a sweep leaves falls, and the "
        "standard deviation of a target rises. Faint: the same without a bound of rho.",
        Axis("bound c̄", 0, 5, ticks=(0, 1, 2, 3, 4, 5)),
        Axis("", 0, 2.5, ticks=(0, 1, 2)),
        *(Mark("line", cs, curve, "faint") for curve in unbound),
        Mark("line thick", allowed, left, "second"),
        Mark("line thick", allowed, noise),
        Mark("dots", [c, c], trade[rho, c], "accent"),
        Mark("label", [3.3], [0.5], "second", words="error left by a sweep"),
        Mark("label", [3.3], [1.7], words="noise: std of a target"),
    )
    note = " (it may not be above ρ̄)" if wanted > rho else ""
    return [values, speed], (
        f"ρ̄ = {rho:g}: V-trace settles at {settled:.2f}\n"
        f"c̄ = {c:g}{note}: a sweep leaves {trade[rho, c][0]:.2f} of an error, "
        f"noise {trade[rho, c][1]:.2f}"
    )


dial("Two bounds of V-trace", frame, {"ρ̄": rhos, "c̄": cs}, start=(1, 1))

# %% [markdown]
# **Notice** that the dots, which are `vtrace`, lie on the line, which is {eq}`clipped-policy` and
# the Bellman equation. With the usual bound of 1 the value lies about half of the way from the
# old policy to the new one, and $\bar c$ does not move it.
#
# So why not leave $\bar\rho$ out? Because of the noise. The largest ratio in this problem is 11,
# so a bound of 12 clips nothing. With $\bar c = 1$ the target of a single unroll then has a
# standard deviation of 1.5, but of 0.6 with $\bar\rho = 1$. The bound $\bar c$ makes another
# trade. Turn it at $\bar\rho = 12$, the faint lines: with a larger $\bar c$ a sweep leaves less of the
# error, but a single target is noisier. The usual choice is 1 for both bounds. The proof that a sweep never
# makes the error larger needs $\bar c \le \bar\rho$, so without it `vtrace` warns.
#
# The third bound, $\bar\rho^{\text{pg}}$, makes the first trade once more, for the gradient. With
# it no single rare action can dominate a batch, but actions that the old policy seldom took count
# too little. {doc}`impala` measures what that costs.

# %% tags=["claims"]
assert abs(found - exact).max() < 1e-7, "the dots lie on the line"
middle = exact[rhos.index(1), 0]
assert 0.4 < (middle - old_value) / (new_value - old_value) < 0.6, (
    "about half of the way"
)
for c in (0.2, 0.5):
    start = torch.tensor(exact[rhos.index(1)])
    assert torch.allclose(sweep(start, 1.0, c)[0], start), (
        "the bound of c does not move it"
    )
assert 10.5 < (pi / pi_old).max() < 11.5, "the largest ratio is 11"
assert abs(trade[12, 1][1] - 1.5) < 0.05, "1.5 without the bound"
assert abs(trade[1, 1][1] - 0.6) < 0.05, "0.6 with it"
assert trade[12, 0.1][0] > 0.88 > 0.75 > trade[12, 5][0], "0.7 of it instead of 0.9"
assert trade[12, 5][1] > 2 * trade[12, 0.1][1], "and a single target is noisier"

# %% [markdown]
# ## Four corrections, and none, in one formula
#
# V-trace has relatives, and they differ in two factors only. Let an *estimate* be a value $V(s_t)$
# or the value of an action, $Q(s_t, a_t)$. Each method adds to it weighted TD errors,
#
# $$
# \sum_{k \ge 0} \gamma^k \, \Bigl( \prod_i c_i \Bigr) \, \rho_{t+k} \, \delta_{t+k} ,
# $$ (def-four-corrections)
#
# where the product has a factor for each action between the estimate and the TD error. For estimates of $Q$
# the TD error is $r + \gamma \sum_a \pi(a) Q(s', a) - Q(s, a)$.
#
# | method | estimates | weight $\rho$ of a TD error | factor $c$ of an action |
# |---|---|---|---|
# | importance sampling {cite:p}`precup2000` | $V$ | $e^{\ell}$ | $e^{\ell}$ |
# | **V-trace** {cite:p}`espeholt2018` | $V$ | $\min(\bar\rho, e^{\ell})$ | $\lambda \min(\bar c, e^{\ell})$ |
# | Retrace {cite:p}`munos2016` | $Q$ | 1 | $\lambda \min(1, e^{\ell})$ |
# | tree backup {cite:p}`precup2000` | $Q$ | 1 | $\lambda\, \pi(a)$ |
# | no correction | $V$ | 1 | $\lambda$ |
#
# An estimate of $Q$ needs no weight, because its action is given, and Retrace and tree backup settle at the
# values of $\pi$ for any old policy. The price is a network that has a value for each action; a critic of
# states has only $V$, and V-trace is what is left for it.

# %% tags=["claims"]
value_of_pi = closed_form(pi)
right_q = torch.tensor(R + gamma * P @ value_of_pi)
next_mean = torch.tensor(value_of_pi)[state[1:]]
q_error = torch.tensor(R)[taken] + gamma * next_mean - right_q[taken]
ratio_of = torch.tensor(pi / pi_old)[taken]
for factor in (
    ratio_of.clamp(max=1),
    torch.tensor(pi)[taken],
    torch.ones_like(ratio_of),
):
    # Given the first action, the factors are those of the actions after it.
    passed = torch.cat([gamma * factor[1:], torch.zeros_like(factor[:1])])
    seen = torch.tensor(pi_old)[taken]
    seen = (seen * torch.tensor(P)[*taken, state[1:]]).prod(0)
    corrections = vtrace_loop(torch.ones_like(q_error), q_error, passed)[0]
    for start in range(num_states):
        for first in range(num_actions):
            rows = (taken[0][0] == start) & (taken[1][0] == first)
            assert abs((seen * corrections)[rows].sum()) < 1e-10, (
                "at rest at the values"
            )

# %% [markdown]
# ## The losses
#
# An agent has three losses, as in {doc}`ppo_error`. The policy follows the weighted advantages.
# The values move to the targets. The entropy keeps the policy from becoming certain too early.
# Each step has a factor $w_t$, usually 1, and 0 if it is not to count. With means over all steps
# of all unrolls,
#
# $$
# \begin{aligned}
# \mathcal L_\pi &= -\operatorname{mean}_t \, w_t \hat A_t \log \pi_\theta(a_t) , \\
# \mathcal L_V &= \operatorname{mean}_t \, w_t \bigl( V_\theta(s_t) - v_t \bigr)^2 , \\
# \mathcal H &= \operatorname{mean}_t \, w_t H(\pi_\theta) .
# \end{aligned}
# $$ (vtrace-losses)
#
# The total to minimise is $\mathcal L_\pi + c_V \mathcal L_V - c_H \mathcal H$, with the two
# weights of {doc}`ppo_error`. There $\mathcal L_V$ is half the
# mean square; here it is all of it, so the same $c_V$ weighs twice as much. No gradient flows
# through $\hat A_t$ and $v_t$.
#
# The first six fields of the data have the names of DI-engine's. `value` has one row more than
# the rest, for the state after the last step. Three more fields say how episodes ended, and what
# the state was worth that a truncated step had led to.


# %% tags=["export"]
class MeanAndDeviation(TypedDict):
    """What describes a Gaussian policy, as a dictionary or a tree tensor."""

    mu: Float[Tensor, "T B A"]
    sigma: Float[Tensor, "T B A"]


class vtrace_data(NamedTuple):
    """What the losses of V-trace read: T steps in each of B environments.

    Attributes:
        target_output: What describes the policy in training: logits, or a mapping with
            ``mu`` and ``sigma``.
        behaviour_output: The same for the policy that collected the data. No gradient
            flows into it.
        action: The actions taken, integers (T, B) or real numbers (T, B, A).
        value: Value of each step's state and, in the last row, of where the last step
            led. Gradient flows into the first T rows.
        reward: Rewards.
        weight: One factor for each step, or None for ones.
        terminated: Whether the task ended with a step. None: never.
        truncated: Whether the episode was cut off after a step. None: never.
        next_value: Value of each step's true successor. None: the next row of
            ``value``; refused if a step before the last row is truncated.
    """

    target_output: Any
    behaviour_output: Any
    action: Tensor
    value: Float[Tensor, "T+1 B"]
    reward: Float[Tensor, "T B"]
    weight: Float[Tensor, "T B"] | None = None
    terminated: Bool[Tensor, "T B"] | None = None
    truncated: Bool[Tensor, "T B"] | None = None
    next_value: Float[Tensor, "T B"] | None = None


class vtrace_loss(NamedTuple):
    """Three parts of the loss, 0-dimensional tensors with gradient.

    The total to minimise is ``policy_loss + value_weight * value_loss - entropy_weight
    * entropy_loss``: the last field is the mean entropy itself.
    """

    policy_loss: Float[Tensor, ""]
    value_loss: Float[Tensor, ""]
    entropy_loss: Float[Tensor, ""]


# %% [markdown]
# All that the losses need to know of a policy is the log-probability of what was done and the
# entropy. So one function serves every kind of action.


# %% tags=["export"]
@checked
def vtrace_error_from_log_prob(
    log_prob: Float[Tensor, "T B"],
    log_prob_old: Float[Tensor, "T B"],
    entropy: Float[Tensor, "T B"],
    value: Float[Tensor, "T+1 B"],
    reward: Float[Tensor, "T B"],
    weight: Float[Tensor, "T B"] | None = None,
    terminated: Bool[Tensor, "T B"] | None = None,
    truncated: Bool[Tensor, "T B"] | None = None,
    next_value: Float[Tensor, "T B"] | None = None,
    gamma: Fraction = 0.99,
    lambda_: Fraction = 0.95,
    rho_clip_ratio: Positive | None = 1.0,
    c_clip_ratio: Positive | None = 1.0,
    rho_pg_clip_ratio: Positive | None = 1.0,
) -> vtrace_loss:
    """Compute the losses of V-trace from log-probabilities, whatever the action space.

    ``log_prob`` is that of each action under the policy in training, ``log_prob_old``
    the same under the policy that collected the data. ``entropy`` is that of the policy
    in training, in nats. The other tensors are the fields of ``vtrace_data``, the
    numbers the arguments of ``vtrace``.

    Source: Espeholt et al. 2018, sections 4.1 and 4.2.
    """
    never = torch.zeros_like(reward, dtype=torch.bool)
    terminated = never if terminated is None else terminated
    truncated = never if truncated is None else truncated
    # The row after a cut belongs to the next episode.
    known = next_value is not None or not truncated[:-1].any()
    check_that(known, "next_value must be given where a step is truncated")

    target, adv = vtrace(
        log_prob.detach() - log_prob_old.detach(),
        reward,
        value[:-1],
        value[1:] if next_value is None else next_value,
        terminated,
        truncated,
        gamma,
        lambda_,
        rho_clip_ratio,
        c_clip_ratio,
        rho_pg_clip_ratio,
    )

    # The three means {eq}`vtrace-losses`. The first is the loss of
    # {doc}`/chapters/policy_gradient`.
    policy_loss = policy_gradient_error(log_prob, adv, weight)
    error = (value[:-1] - target).square()
    if weight is not None:
        error, entropy = error * weight.detach(), entropy * weight.detach()
    loss = vtrace_loss(policy_loss, error.mean(), entropy.mean())
    causes = {"log_prob": log_prob, "entropy": entropy, "value": value}
    check_finite(torch.stack(loss), **causes, target=target, weight=weight)
    return loss


# %% [markdown]
# For discrete actions both come from logits, with a softmax.


# %% tags=["export"]
@checked
def vtrace_error_discrete_action(
    data: vtrace_data,
    gamma: Fraction = 0.99,
    lambda_: Fraction = 0.95,
    rho_clip_ratio: Positive | None = 1.0,
    c_clip_ratio: Positive | None = 1.0,
    rho_pg_clip_ratio: Positive | None = 1.0,
) -> vtrace_loss:
    """Compute the losses of V-trace for discrete actions; numbers as in ``vtrace``.

    Source: Espeholt et al. 2018, sections 4.1 and 4.2.
    """
    terms = discrete_terms(data.target_output, data.behaviour_output, data.action)
    settings = (gamma, lambda_, rho_clip_ratio, c_clip_ratio, rho_pg_clip_ratio)
    everything: Any = (*terms, *data[3:], *settings)
    return vtrace_error_from_log_prob(*everything)


@checked
def discrete_terms(
    target_output: Float[Tensor, "T B N"],
    behaviour_output: Float[Tensor, "T B N"],
    action: Integer[Tensor, "T B"],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log-probabilities under both policies and the newer one's entropy."""
    shape, taken = action.shape, action.flatten()
    log_prob, entropy = categorical_terms(target_output.flatten(0, 1), taken)
    # The older policy gets no gradient.
    old, _ = categorical_terms(behaviour_output.detach().flatten(0, 1), taken)
    # A logit of minus infinity only takes an action away: nobody is to blame for it.
    causes = {"target_output": log_prob, "behaviour_output": old}
    check_finite(log_prob.detach() + old, **causes)
    return log_prob.view(shape), old.view(shape), entropy.view(shape)


# %% [markdown]
# Continuous actions have a mean and a standard deviation for each of their $A$ numbers. The
# log-density of an action is the sum over them.


# %% tags=["export"]
@checked
def vtrace_error_continuous_action(
    data: vtrace_data,
    gamma: Fraction = 0.99,
    lambda_: Fraction = 0.95,
    rho_clip_ratio: Positive | None = 1.0,
    c_clip_ratio: Positive | None = 1.0,
    rho_pg_clip_ratio: Positive | None = 1.0,
) -> vtrace_loss:
    """Compute the losses of V-trace for continuous actions; numbers as in ``vtrace``.

    Source: Espeholt et al. 2018, sections 4.1 and 4.2.
    """
    terms = continuous_terms(data.target_output, data.behaviour_output, data.action)
    settings = (gamma, lambda_, rho_clip_ratio, c_clip_ratio, rho_pg_clip_ratio)
    everything: Any = (*terms, *data[3:], *settings)
    return vtrace_error_from_log_prob(*everything)


@checked
def continuous_terms(
    target_output: MeanAndDeviation,
    behaviour_output: MeanAndDeviation,
    action: Float[Tensor, "T B A"],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log-densities under both policies and the newer one's entropy."""
    new, log_prob = gaussian("data.target_output", target_output, action)
    _, log_prob_old = gaussian("data.behaviour_output", behaviour_output, action)
    return log_prob, log_prob_old, new.entropy()


# %% [markdown]
# Here is a batch of 5 steps in 3 environments. Six fields are enough when no episode ends in it.

# %%
torch.manual_seed(0)
logit = torch.randn(5, 3, 4, requires_grad=True)  # what the learner thinks now
logit_old = logit.detach() + 0.3 * torch.randn(5, 3, 4)  # what the actor thought
action = torch.randint(4, (5, 3))
values = torch.randn(6, 3, requires_grad=True)
data = vtrace_data(logit, logit_old, action, values, torch.randn(5, 3), None)
loss = vtrace_error_discrete_action(data, 0.99, 0.95, 1.0, 1.0, 1.0)
(loss.policy_loss + 0.5 * loss.value_loss - 0.01 * loss.entropy_loss).backward()
for name, part in loss._asdict().items():
    print(f"{name:13s} {part.item():.4f}")
print("gradient of the last value:", values.grad[-1].tolist())

# %% [markdown]
# **Notice** that the value after the last step gets no gradient. It only helps to compute a target.

# %% tags=["claims"]
assert not values.grad[-1].any(), "no gradient"

# %% [markdown]
# ## Traps
#
# ### Trap: an episode that leaks into the one before
#
# DI-engine's V-trace takes no flags: the value after an end is set to zero, and the recursion runs
# on. Its collectors put one episode into a sample, but a vector environment puts several into one unroll.
# Take on-policy data, no rewards, and two episodes in one unroll. The critic says 1 in the first
# and 100 in the second. The first has ended, and nothing was paid. What was it worth?

# %%
zero = torch.zeros(6, 1)
value = torch.tensor([1.0, 1, 1, 100, 100, 100, 100]).unsqueeze(1)
end = torch.tensor([0, 0, 1, 0, 0, 0]).bool().unsqueeze(1)
never = torch.zeros_like(end)
steps = (zero, zero, value[:-1], value[1:])
right, _ = vtrace(*steps, end, never, 1.0, 1.0)
print("with the flags:", right.flatten().tolist())

masked = value.clone()
masked[1:] *= ~end
leaking = masked[:-1] + vtrace_loop(zero + 1, masked[1:] - masked[:-1], zero + 1)
print("without:       ", leaking.flatten().tolist())

# %% [markdown]
# Each target of the first episode should be 0, and without the cut it is 100.

# %% tags=["claims"]
assert right[:3].flatten().tolist() == [0, 0, 0], "with the flags"
assert leaking.flatten().tolist() == [100] * 6, "without"

# %% [markdown]
# ### Trap: a truncation that reads the next episode
#
# Now a time limit cuts the first episode off. It has a future, worth 1, and the state that it led
# to is not in the unroll: the next row is the next episode.

# %%
_, wrong = vtrace(*steps, never, end, 1.0, 1.0)
successor = value[1:].clone()
successor[2] = 1.0  # where the truncated step really led
_, right = vtrace(*steps[:3], successor, never, end, 1.0, 1.0)
print("advantages, next row:      ", wrong.flatten().tolist())
print("advantages, true successor:", right.flatten().tolist())

# %% [markdown]
# Every action of the first episode is praised for a reset.

# %% tags=["claims"]
assert wrong.flatten().tolist() == [99, 99, 99, 0, 0, 0], "praised for a reset"
assert not right.any(), "nothing was better than expected"

# %% [markdown]
# ## On the best device

# %%
from literate_rl.data.agents import best_device

device = best_device()
generator = torch.Generator().manual_seed(0)
log_ratio, reward, value, next_value = torch.randn(4, 32, 8, generator=generator)
never = torch.zeros(32, 8, dtype=torch.bool)
columns = log_ratio, reward, value, next_value, never, never
on_device, adv = vtrace(*(x.to(device) for x in columns))
print(f"32 steps of 8 environments on {adv.device.type}")

# %% tags=["claims"]
from literate_rl.maths.advantages import gae

assert torch.allclose(on_device.cpu(), vtrace(*columns)[0], atol=1e-4)
on_policy = torch.zeros_like(log_ratio), *columns[1:]
assert torch.allclose(vtrace(*on_policy)[1], gae(*columns[1:]), atol=1e-4), "GAE"

# %% [markdown]
# ## Summary
#
# - The ratio of two probabilities turns a mean over old data into one over today's policy.
#   Products of many ratios are noise, so V-trace clips each of them.
# - $\bar\rho$ decides which policy the values belong to: one between the old and the new.
# - $\bar c$ decides how fast the values get there and how noisy the targets are.
# - $\bar\rho^{\text{pg}}$ weights the advantage. With equal policies, and no bound below 1, all of
#   this is GAE.
# - The losses need log-probabilities, an entropy and values, so any kind of action will do.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "There are three actions. Today's policy likes one that the old policy never takes, and "
    "prefers the other two in another proportion. The bound of ρ is 1. Whose values does "
    "V-trace estimate?",
    [
        "those of today's policy",
        "those of a policy between the two, without that action",
        "those of the old policy",
    ],
    right="those of a policy between the two, without that action",
    because="The smaller of 0 and π(a) is 0, so the clipped policy does not take the "
    "action, whatever the bound. Nobody has seen what it leads to. The other actions keep "
    "today's proportions as far as the bound lets them.",
)

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function is meant to return the targets of `vtrace`. With the usual bounds it does. Fix it.


# %%
def answer(log_ratio, reward, value, next_value, terminated, truncated, rho, c):
    future = torch.where(terminated, 0.0, next_value)
    td_error = reward + 0.9 * future - value
    weight = log_ratio.exp().clamp(max=rho)
    same_episode = (~(terminated | truncated)).to(value)
    return value + vtrace_loop(weight, td_error, 0.9 * same_episode * weight)


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade


def targets(log_ratio, reward, value, next_value, terminated, truncated, rho, c):
    columns = (log_ratio, reward, value, next_value, terminated, truncated)
    return vtrace(*columns, 0.9, 1.0, rho, c)[0]


def old_data(seed, rho, c):
    """Return eight random steps of two environments, and two bounds."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(4, 8, 2, generator=generator)
    flags = torch.rand(2, 8, 2, generator=generator) < 0.2
    return (*numbers, *flags, rho, c)


cases = {
    "ρ̄ = 1, c̄ = 1": old_data(0, 1.0, 1.0),
    "ρ̄ = 2, c̄ = 0.5": old_data(1, 2.0, 0.5),
    "ρ̄ = 5, c̄ = 1": old_data(2, 5.0, 1.0),
}
grade(answer, targets, cases)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(log_ratio, reward, value, next_value, terminated, truncated, rho, c):
    future = torch.where(terminated, 0.0, next_value)
    td_error = reward + 0.9 * future - value
    ratio = log_ratio.exp()
    same_episode = (~(terminated | truncated)).to(value)
    # What is passed on has a bound of its own.
    passed_on = 0.9 * same_episode * ratio.clamp(max=c)
    return value + vtrace_loop(ratio.clamp(max=rho), td_error, passed_on)


grade(answer, targets, cases)

# %% [markdown]
# ## References
#
# V-trace is from {cite:t}`espeholt2018`. Its clipped traces come from Retrace
# {cite:p}`munos2016`, and the idea to weight returns with ratios is that of {cite:t}`precup2000`.
