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
# **How can a policy learn from data that an older policy collected?** An actor that runs
# beside the learner is always a little behind, and a replayed batch is behind by a lot.
#
# At the end of this chapter you can correct such data with clipped ratios, say what each
# of the three clips costs and what it buys, compute targets, advantages and losses for
# discrete and continuous actions, and recognise the ways in which published code gets
# them wrong.

# %% tags=["export", "hide-input"]
"""V-trace: values and policy gradients from data of an older policy."""

from __future__ import annotations

from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from jaxtyping import Integer
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from literate_rl.policy_gradient import policy_gradient_error
from literate_rl.ppo_error import gaussian
from literate_rl.workshop.fast import reverse_scan
from literate_rl.workshop.signatures import (
    Bool,
    Float,
    Fraction,
    Positive,
    check_finite,
    check_index,
    checked,
)

__all__ = [
    "categorical_terms",
    "clipped_policy",
    "vtrace",
    "vtrace_data",
    "vtrace_error_continuous_action",
    "vtrace_error_discrete_action",
    "vtrace_error_from_log_prob",
    "vtrace_loss",
]

# %% [markdown]
# ## A weight for each action
#
# The data come from the policy $\pi_{\text{old}}$, the **behaviour policy**. (Papers often
# call it $\mu$.) We want to know about another one, $\pi$, the **target policy**. In each
# state the actions are the same, only their frequencies differ. So weigh each action with
# the ratio of its two probabilities:
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
# This is **importance sampling**. For one action it works well. An unroll of $T$ actions
# needs the product of $T$ ratios. Its mean is still 1. But its mean *square* is the $T$-th
# power of a number above 1, so the deviation grows exponentially. Here are two actions
# that $\pi_{\text{old}}$ takes equally often, while $\pi$ takes one of them in 70 percent
# of all cases:

# %% mystnb={"image": {"alt": "Deviation of a product of ratios over the number of steps, up to 40, on a logarithmic axis. The plain product grows exponentially to about 20. The product of ratios clipped at 1 rises to 0.2 and then falls to nearly nothing"}}
import matplotlib.pyplot as plt
import torch

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
    print(f"{name}: deviation of the product of 32 is {deviation[31]:.2g}")
axis.set(xlabel="steps", ylabel="deviation of the product")
axis.legend()
fig.tight_layout()

# %% [markdown]
# **What to notice.** After 32 steps the weight has mean 1 and a standard deviation of about ten. A
# gradient with such a weight is noise. The product of ratios that are clipped at 1 never leaves the
# range from 0 to 1. But it no longer has mean 1. Its mean is $0.8^{32}$, less than a thousandth, so
# most of its calm is shrinkage: next to that mean, its standard deviation is larger than it looks.
# Something is lost. What is it? The answer is the subject of this chapter.

# %% tags=["claims"]
mean, mean_square = (old * ratio).sum(), (old * ratio.square()).sum()
assert abs(mean - 1) < 1e-12, "mean 1"
assert 9 < (mean_square**32 - 1).sqrt() < 13, "a standard deviation of about ten"
mean = (old * ratio.clamp(max=1)).sum()
assert abs(mean - 0.8) < 1e-12, "so the mean of the product is 0.8 to the power 32"
assert mean**32 < 1e-3 < deviation[31], "shrinkage, and the deviation above the mean"

# %% [markdown]
# ## V-trace
#
# V-trace {cite:p}`espeholt2018` clips the ratio in three places, with three bounds:
#
# $$
# \rho_t = \min(\bar\rho, e^{\ell_t}) , \qquad
# c_t = \min(\bar c, e^{\ell_t}) , \qquad
# \rho^{\text{pg}}_t = \min(\bar\rho^{\text{pg}}, e^{\ell_t}) .
# $$ (vtrace-ratios)
#
# The rest is nearly GAE ({doc}`/chapters/advantages`). There is the same surprise
# $\delta_t$, {eq}`td-error`, and the same recursion. Each surprise is weighted with $\rho_t$.
# What a step takes over from the next one is weighted with $c_t$. Added to the
# value, the sum is the target $v_t$ of the value function:
#
# $$
# x_t = \rho_t \delta_t + \gamma \lambda \, (1 - \mathrm{done}_t) \, c_t \, x_{t+1} ,
# \qquad x_T = 0 , \qquad v_t = V(s_t) + x_t .
# $$ (vtrace)
#
# Written out, a surprise $k$ steps ahead reaches step $t$ with all ratios on the way,
#
# $$
# v_t = V(s_t) + \sum_{k \ge 0} (\gamma \lambda)^k
#     \Bigl( \prod_{i=t}^{t+k-1} (1 - \mathrm{done}_i)\, c_i \Bigr)
#     \rho_{t+k}\, \delta_{t+k} .
# $$ (def-vtrace-sum)
#
# The policy's gradient needs an advantage. Take one step, then trust the corrected
# future:
#
# $$
# \hat A_t = \rho^{\text{pg}}_t \bigl( \delta_t
#     + \gamma \lambda \, (1 - \mathrm{done}_t) \, x_{t+1} \bigr) .
# $$ (vtrace-advantage)
#
# The paper counts $\lambda$ as a part of $c_t$ (section 4.1, remark 2), and leaves it out of the
# advantage. Here it stands in both. If the two policies are the same, all ratios are 1. Then
# $x_t$ and $\hat A_t$ are both the advantage of GAE, with the same $\lambda$.
#
# The two flags do what they always do. $\mathrm{te}_t$ takes the future out of the
# surprise. $\mathrm{done}_t$ cuts the recursion. So one unroll may hold the end of one
# episode and the start of the next.


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

    Args:
        log_ratio: Log-probability of each action under the target policy minus that
            under the behaviour policy.
        reward: Rewards.
        value: Value of each step's state.
        next_value: Value of each step's true successor. Where a step is terminated it
            counts as 0, whatever it holds.
        terminated: Whether the task ended with this step.
        truncated: Whether the episode was cut off after this step.
        gamma: Discount.
        lambda_: Decay of the weights of longer returns.
        rho_clip_ratio: Bound of the ratio that weighs a TD error, or None. It decides
            which policy the values belong to.
        c_clip_ratio: Bound of the ratio that weighs what comes later, at most
            ``rho_clip_ratio``, or None. It decides how fast the values get there.
        rho_pg_clip_ratio: Bound of the ratio that weighs an advantage, or None.

    Returns:
        The targets and the advantages, without gradient.

    Source:
        Espeholt et al. 2018, equation 1, remark 2 and section 4.2, with the decay in
        the advantage as well, and with two flags.
    """
    check_clips(rho_clip_ratio, c_clip_ratio)
    # The TD errors of {doc}`/chapters/advantages`.
    future = torch.where(terminated, 0.0, next_value.detach())
    delta = torch.add(reward.detach(), future, alpha=gamma) - value.detach()

    # The three clipped ratios {eq}`vtrace-ratios`. A ratio that is infinite becomes its
    # bound.
    ratio = log_ratio.detach().exp()
    bounds = (rho_clip_ratio, c_clip_ratio, rho_pg_clip_ratio)
    clipped = {x: ratio if x is None else ratio.clamp(max=x) for x in set(bounds)}
    rho, c, rho_pg = (clipped[x] for x in bounds)

    # How much of the next row belongs to this one: nothing behind a done.
    follow = gamma * lambda_ * (~(terminated | truncated)).to(delta)

    # The recursion {eq}`vtrace` is the scan of {doc}`/chapters/advantages`.
    x = reverse_scan(rho * delta, follow * c)
    # The advantage {eq}`vtrace-advantage`. Behind the last row comes nothing. What was
    # made here may be written to.
    delta[:-1].addcmul_(follow[:-1], x[1:])
    adv, target = delta.mul_(rho_pg), x.add_(value.detach())
    causes = {"log_ratio": log_ratio, "reward": reward, "next_value": future}
    for result in (target, adv):
        check_finite(result, **causes, value=value)
    return target, adv


def check_clips(rho: float | None, c: float | None) -> None:
    """Raise unless the bound of c is not above that of rho."""
    if rho is not None and (c is None or c > rho):
        raise ValueError(
            f"c_clip_ratio must be at most rho_clip_ratio, got {c} and {rho}"
        )


# %% [markdown]
# Four steps, one environment, no discount. The rewards are 1, the values are 0, so each
# surprise is 1. The second action is half as likely now as it was, the others are as
# likely as they were. **Notice** that the target of the second step is halved,
# and that the first step takes over that half and no more. The third step never hears
# of it: corrections go back in time, not forward.

# %%
one, zero = torch.ones(4, 1), torch.zeros(4, 1)
never = torch.zeros(4, 1, dtype=torch.bool)
log_ratio = torch.tensor([[1.0], [0.5], [1.0], [1.0]]).log()
target, adv = vtrace(log_ratio, one, zero, zero, never, never, 1.0, 1.0)
print("targets:   ", target.flatten().tolist())
print("advantages:", adv.flatten().tolist())

# %% [markdown]
# ## What the values are values of
#
# Clipping loses something, and now we can say what. When does the target equal the value,
# on average? If the mean of $\rho\, \delta$ is zero in each state:
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
# Here $Q(a)$ is the reward and the discounted value of what follows. Divide by the sum of
# the factors, and they are probabilities. The values are those of a policy between the
# two,
#
# $$
# \pi_{\bar\rho}(a) = \frac{\min \bigl( \bar\rho\, \pi_{\text{old}}(a), \pi(a) \bigr)}
#     {\sum_b \min \bigl( \bar\rho\, \pi_{\text{old}}(b), \pi(b) \bigr)} .
# $$ (clipped-policy)
#
# Without a bound it is $\pi$. When $\bar\rho$ goes to 0 it is $\pi_{\text{old}}$. An action
# that $\pi_{\text{old}}$ hardly ever takes cannot get a large weight, so the values
# underrate it, and that is the price of the clip. The bound $\bar c$ does not appear
# here at all.


# %% tags=["export"]
@checked
def clipped_policy(
    policy: ArrayLike, old_policy: ArrayLike, rho_clip_ratio: Positive | None = 1.0
) -> NDArray[np.float64]:
    """Return the policy whose values V-trace estimates.

    Args:
        policy: Probabilities of the target policy, ``(*, N)``.
        old_policy: Those of the behaviour policy, ``(*, N)``.
        rho_clip_ratio: Bound of the ratio, positive, or None.

    Returns:
        Probabilities ``(*, N)``, a new array.

    Raises:
        ValueError: If the shapes differ or the two policies have no action in common.

    Source:
        Espeholt et al. 2018, equation 3.
    """
    new = np.array(policy, dtype=np.float64)
    old = np.asarray(old_policy, dtype=np.float64)
    if old.shape != new.shape:
        raise ValueError(f"old_policy must have shape {new.shape}, got {old.shape}")
    if rho_clip_ratio is None:
        return new
    # Numerator and denominator of {eq}`clipped-policy`.
    part = np.minimum(rho_clip_ratio * old, new)
    total = part.sum(-1, keepdims=True)
    if not (total > 0).all():
        raise ValueError("policy and old_policy must have an action in common")
    result: NDArray[np.float64] = part / total
    return result


# %% [markdown]
# Let us see whether that is true, exactly and not by sampling. A small problem with 3
# states and 2 actions has $3 \cdot (2 \cdot 3)^4 = 3888$ different unrolls of 4 steps. Put
# all of them into one batch, and weigh each with its probability under
# $\pi_{\text{old}}$. What `vtrace` gives, averaged with these weights, has no noise. Call
# that a *sweep*: values go in, mean targets come out.

# %%
import numpy as np

from literate_rl.agents import tabular_values

gamma, num_states, num_actions, num_steps = 0.9, 3, 2, 4
rng = np.random.default_rng(3)
P = rng.dirichlet(np.ones(num_states), (num_states, num_actions))  # next states
R = rng.normal(size=(num_states, num_actions))
pi_old, pi = rng.dirichlet(np.ones(num_actions), (2, num_states))
step = torch.arange(num_actions * num_states)  # an action and where it leads
every = torch.cartesian_prod(torch.arange(num_states), *[step] * num_steps).T
state = torch.cat([every[:1], every[1:] % num_states])  # (T + 1, B)
action = every[1:] // num_states  # (T, B)
taken = (state[:-1], action)
likely = torch.tensor(pi_old)[taken] * torch.tensor(P)[*taken, state[1:]]
likely = likely.prod(0)  # of each unroll, given its first state
nowhere = torch.zeros_like(action, dtype=torch.bool)
arguments = {
    "log_ratio": torch.tensor(np.log(pi / pi_old))[taken],
    "reward": torch.tensor(R)[taken],
    "terminated": nowhere,
    "truncated": nowhere,
}


def sweep(value, rho, c):
    """Return the mean and the deviation of the first step's target, by state."""
    target, _ = vtrace(
        **arguments,
        value=value[state[:-1]],
        next_value=value[state[1:]],
        gamma=gamma,
        lambda_=1.0,
        rho_clip_ratio=rho,
        c_clip_ratio=c,
    )
    start = state[0]
    mean = torch.zeros_like(value).index_add(0, start, likely * target[0])
    spread = (target[0] - mean[start]).square() * likely
    return mean, torch.zeros_like(value).index_add(0, start, spread).sqrt()


value = torch.zeros(num_states, dtype=torch.float64)
for _ in range(100):
    value, _ = sweep(value, rho=1.0, c=1.0)


def closed_form(policy):
    """Return the true values of a policy."""
    chain = np.einsum("sa,saz->sz", policy, P)
    return tabular_values(chain, (policy * R).sum(1), gamma)


print("after 100 sweeps:       ", value.numpy().round(6))
print("clipped policy's values:", closed_form(clipped_policy(pi, pi_old)).round(6))
print("target policy's values: ", closed_form(pi).round(6))

# %% [markdown]
# The values settle, but not at the target policy's values. We need not wait for
# that. A sweep is an affine function of the values, $V \mapsto b + W V$. Sweeps from
# zero and from one 1 at a time give $b$ and $W$, and the fixed point solves a linear
# equation. Beside it stands a bandit with three arms: one step, then the end.
# $\pi_{\text{old}}$ likes the arm that pays nothing, $\pi$ likes the one that pays 5.

# %% mystnb={"image": {"alt": "Two panels over the bound on a logarithmic axis from 0.1 to 10. Left the bandit: dots lie on a curve that is flat at the old policy's value 0.8 for small bounds and climbs to the new policy's 3.7. Right the value of one state of the random problem: dots lie on a curve that starts just above the old policy's 1.1 and climbs to 3.5, a little below the new policy's 3.6"}}
pay = torch.tensor([[0.0, 1.0, 5.0]], dtype=torch.float64)
arm_old, arm = np.array([0.6, 0.3, 0.1]), np.array([0.1, 0.2, 0.7])
over = torch.ones(1, 3, dtype=torch.bool)


def bandit_sweep(value, rho, c):
    """Return the mean target of the bandit; one column is one arm."""
    flags, ratio = (over, ~over), torch.tensor(np.log(arm / arm_old)).unsqueeze(0)
    clips = {"rho_clip_ratio": rho, "c_clip_ratio": c}
    guess = value.expand(1, 3)
    target, _ = vtrace(ratio, pay, guess, guess, *flags, **clips)
    return target @ torch.tensor(arm_old), None


def affine(one_sweep, size, *clips):
    """Return b and W of a sweep."""
    nothing = torch.zeros(size, dtype=torch.float64)
    b, _ = one_sweep(nothing, *clips)
    unit = torch.eye(size, dtype=torch.float64)
    return b, torch.stack([one_sweep(row, *clips)[0] - b for row in unit], 1)


def fixed_point(one_sweep, size, rho):
    """Solve V = b + W V."""
    b, matrix = affine(one_sweep, size, rho, min(rho, 1.0))
    return torch.linalg.solve(torch.eye(size).double() - matrix, b).numpy()


fine, dots = np.geomspace(0.1, 10, 200), np.geomspace(0.1, 10, 13)
problems = {
    "bandit": (bandit_sweep, 1, arm, arm_old, lambda p: [p @ pay[0].numpy()]),
    "random problem, first state": (sweep, num_states, pi, pi_old, closed_form),
}
fig, axes = plt.subplots(1, 2, figsize=(7, 2.8))
for axis, (name, problem) in zip(axes, problems.items(), strict=True):
    one_sweep, size, new, old, truth = problem
    exact = np.array([truth(clipped_policy(new, old, rho)) for rho in dots])
    found = np.array([fixed_point(one_sweep, size, rho) for rho in dots])
    print(f"{name}: off by at most {abs(found - exact).max():.0e}")
    line = [truth(clipped_policy(new, old, rho))[0] for rho in fine]
    axis.semilogx(fine, line, label="closed form")
    axis.semilogx(dots, found[:, 0], "o", color="C1", label="V-trace")
    for x, policy, label in ((5, old, r"$\pi_{\mathrm{old}}$"), (0.1, new, r"$\pi$")):
        height = truth(policy)[0]
        axis.axhline(height, color="#808080", linewidth=0.8, linestyle=":")
        axis.annotate(label, (x, height), (0, 3), textcoords="offset points")
    axis.margins(y=0.12)
    axis.set_title(name, fontsize=10)
    axis.set_xlabel(r"bound $\bar\rho$")
axes[0].set_ylabel("value")
axes[1].legend(fontsize=8, loc="center left")
fig.tight_layout()

# %% [markdown]
# **What to notice.** The dots are `vtrace`, the lines are {eq}`clipped-policy` and the
# Bellman equation, and they agree to the last digits. With the usual bound of 1 the values
# lie a third of the way from the old policy to the new one in the bandit, and half of the
# way in the other problem.
#
# So why not leave $\bar\rho$ away? Because of the noise, and here $\bar c$ comes in as well.
# With $\bar\rho = \infty$ each $\bar c$ leads to the same values, those of $\pi$. What $\bar c$
# changes is how fast a sweep gets there, and how much a single unroll may be off:

# %% mystnb={"image": {"alt": "Two panels over the bound of c from 0 to 5. The share of the error that a sweep leaves falls from 0.9 to 0.7 at the bound 1.8 and hardly any further. The deviation of a target rises from 0.9 to 2.2 at the same bound, and slowly from there on"}}
bounds = np.linspace(0.01, 5, 40)
truth = torch.tensor(closed_form(pi))
left, noise = [], []
for c in bounds:
    _, matrix = affine(sweep, num_states, None, c)
    left.append(torch.linalg.eigvals(matrix).abs().max())
    noise.append(sweep(truth, None, c)[1].mean())
fig, axes = plt.subplots(1, 2, figsize=(7, 2.4))
axes[0].plot(bounds, left)
axes[0].set_ylabel("error left by a sweep")
axes[1].plot(bounds, noise, color="C1")
axes[1].set_ylabel("deviation of a target")
for axis in axes:
    axis.set_xlabel(r"bound $\bar c$")
fig.tight_layout()
print(f"largest ratio in the problem: {(pi / pi_old).max():.2f}")

# %% [markdown]
# **What to notice.** A larger $\bar c$ is faster: the error after a sweep is 0.9 of the one
# before, which is $\gamma$, or 0.7 of it. And it is noisier. The corners are where the
# bound passes one of the ratios, of which the largest is 11. The usual choice is 1 for both
# bounds. The proof that a sweep
# never makes the error larger needs $\bar c \le \bar\rho$, so `vtrace` insists on it.
#
# ## The losses
#
# An agent has three losses, as in {doc}`/chapters/ppo_error`. The policy follows the
# weighted advantages. The value goes to the targets. The entropy keeps the policy from
# making up its mind too early. With weights $w_t$, and means over all steps of all unrolls,
#
# $$
# \begin{aligned}
# \mathcal L_\pi &= -\operatorname{mean}_t \, w_t \hat A_t \log \pi_\theta(a_t) , \\
# \mathcal L_V &= \operatorname{mean}_t \, w_t \bigl( V_\theta(s_t) - v_t \bigr)^2 , \\
# \mathcal H &= \operatorname{mean}_t \, w_t H(\pi_\theta) .
# \end{aligned}
# $$ (vtrace-losses)
#
# The total to minimise is $\mathcal L_\pi + c_V \mathcal L_V - c_H \mathcal H$. Both $\hat A_t$
# and $v_t$ are numbers, through which no gradient flows.
#
# What goes in has six fields, as in DI-engine. Their value has one row more than the rest,
# the value after the last step. Further fields hold what those six cannot say: how episodes
# ended, and where a truncated one had led.


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
            ``value``, which is wrong behind a truncation.
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
# All that the losses need to know of a policy is the log-probability of what was done and
# the entropy. So there is one function for every kind of action.


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
    if next_value is None and truncated[:-1].any():
        raise ValueError("next_value must be given where a step is truncated")

    target, adv = vtrace(
        log_prob.detach() - log_prob_old.detach(),
        reward,
        value[:-1],
        value[1:] if next_value is None else next_value,
        *(terminated, truncated, gamma, lambda_),
        *(rho_clip_ratio, c_clip_ratio, rho_pg_clip_ratio),
    )

    # The three means {eq}`vtrace-losses`. The first is the loss of
    # {doc}`/chapters/policy_gradient`.
    policy_loss = policy_gradient_error(log_prob, adv, weight)
    error = (value[:-1] - target).square()
    if weight is not None:
        error, entropy = error * weight.detach(), entropy * weight.detach()
    loss = vtrace_loss(policy_loss, error.mean(), entropy.mean())
    causes = {"log_prob": log_prob, "entropy": entropy, "value": value}
    check_finite(torch.stack(loss), **causes, weight=weight)
    return loss


# %% [markdown]
# For discrete actions the log-probability and the entropy come from logits. They are worth
# a closer look, because they take more time than everything else: a batch of 512 steps in
# 256 environments is 131,072 rows of softmax. Two things help. Autograd would record a
# dozen operations, and the derivatives can be written down:
#
# $$
# \frac{\partial \log p_a}{\partial z_j} = \mathbb 1[j = a] - p_j , \qquad
# \frac{\partial H}{\partial z_j} = -p_j \bigl( \log p_j + H \bigr) .
# $$ (categorical-gradient)
#
# And on a CPU `log_softmax` over a short last dimension is several times slower than over
# the first one. So the logits are turned around, to the shape $(N, B)$.


# %% tags=["export"]
class CategoricalTerms(torch.autograd.Function):
    """Log-probability and entropy as one node of the graph, with its gradient."""

    @staticmethod
    def forward(ctx: Any, logit: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Compute both for logits (B, N) and actions (B,)."""
        log_prob = turned(logit).log_softmax(0)
        taken = action.long().unsqueeze(0)
        chosen = log_prob.gather(0, taken).squeeze(0)
        prob = log_prob.exp()
        # The logarithm of a probability zero becomes a finite number, because zero
        # times infinity is not zero.
        plogp = log_prob.clamp_min_(-1e4).mul_(prob)
        entropy = plogp.sum(0).neg_()
        ctx.save_for_backward(prob, plogp, entropy, taken)
        return chosen, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the logits."""
        prob, plogp, entropy, taken = ctx.saved_tensors
        by_log_prob, by_entropy = grads
        # Both derivatives {eq}`categorical-gradient`, sorted: what has the factor $p_j$
        # in common is subtracted at once.
        common = torch.addcmul(by_log_prob, by_entropy, entropy)
        grad = (plogp * by_entropy).addcmul_(prob, common).neg_()
        return grad.scatter_add_(0, taken, by_log_prob.unsqueeze(0)).t(), None


def turned(logit: Tensor) -> Tensor:
    """Return logits (B, N) in the memory layout of (N, B), quicker than ``t()``."""
    return torch.stack(logit.unbind(1))


@checked
def categorical_terms(
    logit: Float[Tensor, "B N"], action: Integer[Tensor, "B"]
) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
    """Return log-probabilities of actions and entropies, with gradient, fast.

    They are the numbers of ``categorical_log_prob`` and ``categorical_entropy``, and
    can be differentiated once. A logit of minus infinity takes an action away.
    """
    check_index(logit.shape[1], action=action)
    log_prob, entropy = CategoricalTerms.apply(logit, action)
    return log_prob, entropy


@checked
def vtrace_error_discrete_action(
    data: vtrace_data,
    gamma: Fraction = 0.99,
    lambda_: Fraction = 0.95,
    rho_clip_ratio: Positive | None = 1.0,
    c_clip_ratio: Positive | None = 1.0,
    rho_pg_clip_ratio: Positive | None = 1.0,
) -> vtrace_loss:
    """Compute the losses of V-trace for discrete actions.

    Args:
        data: Outputs are logits (T, B, N), actions integers (T, B) from 0 to N - 1.
        gamma: Discount.
        lambda_: Decay of the weights of longer returns.
        rho_clip_ratio: Bound of the ratio that weighs a surprise, or None.
        c_clip_ratio: Bound of the ratio that weighs what comes later, or None.
        rho_pg_clip_ratio: Bound of the ratio that weighs an advantage, or None.

    Source: Espeholt et al. 2018, sections 4.1 and 4.2.
    """
    terms = discrete_terms(data.target_output, data.behaviour_output, data.action)
    bounds = rho_clip_ratio, c_clip_ratio, rho_pg_clip_ratio
    rest: Any = data[3:]
    return vtrace_error_from_log_prob(*terms, *rest, gamma, lambda_, *bounds)


@checked
def discrete_terms(
    target_output: Float[Tensor, "T B N"],
    behaviour_output: Float[Tensor, "T B N"],
    action: Integer[Tensor, "T B"],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log-probabilities under both policies and the newer one's entropy."""
    shape = action.shape
    log_prob, entropy = categorical_terms(target_output.flatten(0, 1), action.flatten())
    # Of the older policy one number a row is needed, and no gradient.
    taken = action.long().reshape(1, -1)
    old = turned(behaviour_output.detach().flatten(0, 1)).log_softmax(0)
    log_prob_old = old.gather(0, taken)
    return log_prob.view(shape), log_prob_old.view(shape), entropy.view(shape)


# %% [markdown]
# Continuous actions have a mean and a deviation for each of their $A$ numbers. The
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
    """Compute the losses of V-trace for continuous actions.

    Args:
        data: Outputs are mappings with ``mu`` and ``sigma``, each (T, B, A), and
            actions real numbers (T, B, A).
        gamma: Discount.
        lambda_: Decay of the weights of longer returns.
        rho_clip_ratio: Bound of the ratio that weighs a surprise, or None.
        c_clip_ratio: Bound of the ratio that weighs what comes later, or None.
        rho_pg_clip_ratio: Bound of the ratio that weighs an advantage, or None.

    Source: Espeholt et al. 2018, sections 4.1 and 4.2.
    """
    terms = continuous_terms(data.target_output, data.behaviour_output, data.action)
    bounds = rho_clip_ratio, c_clip_ratio, rho_pg_clip_ratio
    rest: Any = data[3:]
    return vtrace_error_from_log_prob(*terms, *rest, gamma, lambda_, *bounds)


@checked
def continuous_terms(
    target_output: MeanAndDeviation,
    behaviour_output: MeanAndDeviation,
    action: Float[Tensor, "T B A"],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log-densities under both policies and the newer one's entropy."""
    new = gaussian("target_output", target_output)
    old = gaussian("behaviour_output", behaviour_output)
    return new.log_prob(action), old.log_prob(action), new.entropy()


# %% [markdown]
# Here is a batch of 5 steps in 3 environments. The six fields are enough when no episode
# ends in it.

# %%
import torch

torch.manual_seed(0)
logit = torch.randn(5, 3, 4, requires_grad=True)  # what the learner thinks now
logit_old = logit.detach() + 0.3 * torch.randn(5, 3, 4)  # what the actor thought
action = torch.randint(4, (5, 3))
values = torch.randn(6, 3, requires_grad=True)
reward = torch.randn(5, 3)
data = vtrace_data(logit, logit_old, action, values, reward, None)
loss = vtrace_error_discrete_action(data, 0.99, 0.95, 1.0, 1.0, 1.0)
(loss.policy_loss + 0.5 * loss.value_loss - 0.01 * loss.entropy_loss).backward()
for name, part in loss._asdict().items():
    print(f"{name:13s} {part.item():.4f}")
print("gradient of the last value:", values.grad[-1].tolist())

# %% [markdown]
# ## Traps
#
# ### Trap: an episode that leaks into the one before
#
# DI-engine's V-trace takes no flags. The value behind an end is set to zero, and the
# recursion runs on. Take two episodes in one unroll, no rewards, and on-policy data. Three
# steps belong to the first episode, whose values are 1, and three to the second, whose
# values are 100. What is the first worth?

# %%
reward = torch.zeros(6, 1)
values = torch.tensor([[1.0], [1], [1], [100], [100], [100], [100]])
terminated = torch.tensor([[False], [False], [True], [False], [False], [False]])
never = torch.zeros_like(terminated)
steps = (reward, reward, values[:-1], values[1:], terminated, never, 1.0, 1.0)
print("with the flags:", vtrace(*steps)[0].flatten().tolist())

masked = values.clone()
masked[1:] *= ~terminated
published, trace = [], 0.0
for t in reversed(range(6)):
    trace = masked[t + 1].item() - masked[t].item() + trace
    published.insert(0, masked[t].item() + trace)
print("without:       ", published)

# %% [markdown]
# Nothing is left to earn, so each target of the first episode should be 0. Without the cut
# it is 100. DI-engine gets away with it, because its collectors put one episode into a
# sample. With a vector environment that resets by itself nobody does.
#
# ### Trap: a truncation that reads the next episode
#
# Here the first episode is cut off by a time limit. It has a future, worth 1, and the state
# that it led to is not in the unroll: the next row is the next episode. TorchRL took that
# row for the successor until 2026 (issue #4209).

# %%
truncated, never = terminated, never
wrong = vtrace(reward, reward, values[:-1], values[1:], never, truncated, 1.0, 1.0)
successor = values[1:].clone()
successor[2] = 1.0  # where the truncated step really led
right = vtrace(reward, reward, values[:-1], successor, never, truncated, 1.0, 1.0)
print("advantages, next row:      ", wrong[1].flatten().tolist())
print("advantages, true successor:", right[1].flatten().tolist())

# %% [markdown]
# The losses refuse a truncation before the last row if `next_value` is missing.
#
# ### Trap: a decay in one place only
#
# With $\lambda < 1$ the target $v_t$ mixes short and long returns. The advantage must mix
# them as well. DI-engine puts $r_t + \gamma v_{t+1} - V(s_t)$ there, the form for
# $\lambda = 1$. Its shipped $\lambda$ is 0.95. On-policy the advantage should be that of
# GAE:

# %%
from literate_rl.advantages import gae

generator = torch.Generator().manual_seed(0)
shape = (32, 8)
reward, value = torch.randn(2, *shape, generator=generator)
next_value = torch.cat([value[1:], torch.randn(1, 8, generator=generator)])
never = torch.zeros(shape, dtype=torch.bool)
on_policy = torch.zeros(shape)
columns = (reward, value, next_value, never, never)
target, adv = vtrace(on_policy, *columns)
expected = gae(*columns)
published = reward + 0.99 * torch.cat([target[1:], next_value[-1:]]) - value
print(f"vtrace:    off by at most {(adv - expected).abs().max():.0e}")
print(f"published: off by at most {(published - expected).abs().max():.1f}")

# %% [markdown]
# ### Trap: the last target set to zero
#
# Machin's IMPALA sets the last *target* of each episode to zero and computes the others from it,
# backwards. But it is the value *behind* the last step that is zero. Here are three steps that pay
# 1, on-policy. All values are 2.

# %%
reward, value = torch.ones(3, 1), torch.full((3, 1), 2.0)
last = torch.tensor([[False], [False], [True]])
never = torch.zeros_like(last)
on_policy_ratio = torch.zeros(3, 1)
steps = (on_policy_ratio, reward, value, value, last, never, 1.0, 1.0)
target, adv = vtrace(*steps)

published = torch.zeros(3, 1)  # the last one stays zero
for t in (1, 0):
    surprise = reward[t] + value[t + 1] - value[t]
    published[t] = value[t] + surprise + (published[t + 1] - value[t + 1])
behind = torch.cat([published[1:], torch.zeros(1, 1)])
print(
    "targets:   ", target.flatten().tolist(), "published:", published.flatten().tolist()
)
published_adv = reward + behind - value
print(
    "advantages:",
    adv.flatten().tolist(),
    "published:",
    published_adv.flatten().tolist(),
)

# %% [markdown]
# The value of the last state learns 0, and every target before it has lost the last reward.
#
# ### Trap: a test that cannot fail
#
# DI-engine's test of these losses checks that all three are numbers, adds them up, runs backward,
# and then asserts that the inputs *are tensors*, which they were before. Any function passes:


# %%
def nonsense(data):
    number = (data.target_output.sum() + data.value.sum()) * 0
    return vtrace_loss(number, number, number)


def published_test(error):
    logit, value = torch.randn(4, 8, 16), torch.randn(5, 8)
    logit, value = logit.requires_grad_(), value.requires_grad_()
    action, reward = torch.randint(16, (4, 8)), torch.rand(4, 8)
    loss = error(vtrace_data(logit, torch.randn(4, 8, 16), action, value, reward))
    assert all(part.shape == () for part in loss)
    sum(loss).backward()
    assert isinstance(logit, torch.Tensor)
    assert isinstance(value, torch.Tensor)
    return "passed"


print("V-trace: ", published_test(vtrace_error_discrete_action))
print("nonsense:", published_test(nonsense))

# %% [markdown]
# It also shows the wrong sum. The entropy is a bonus, and who adds it to the loss teaches the
# policy to make up its mind. One step downhill, with nothing but the entropy:

# %%
logit = torch.tensor([[[1.0, 0.0]]], requires_grad=True)
taken, none = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 1)
data = vtrace_data(logit, logit, taken, torch.zeros(2, 1), none)
before = vtrace_error_discrete_action(data).entropy_loss
(slope,) = torch.autograd.grad(before, logit)
for name, sign in (("as in the test", 1), ("subtracted", -1)):
    moved = data._replace(target_output=logit - sign * slope)
    after = vtrace_error_discrete_action(moved).entropy_loss
    print(f"{name}: entropy from {before.item():.3f} to {after.item():.3f}")

# %% [markdown]
# ## What well-known implementations do
#
# | question | this chapter | scalable_agent | rlax | torchbeast | DI-engine | TorchRL |
# |---|---|---|---|---|---|---|
# | form | scan in chunks | scan of the framework | scan of the framework | loop | loop | loop |
# | end of an episode | two flags | a discount for each step | a discount for each step | a discount for each step | the caller zeroes values | two flags |
# | truncated step | bootstraps from the true successor | counts as the end | as the caller sets the discount | counts as the end | counts as the end | bootstraps |
# | $\lambda$ | 0.95, in target and advantage | none | 1, in both | none | 0.95, in the target only | none |
# | average of the losses | mean | sum | the caller's | sum | mean | mean |
# | value loss | square | half the square | the caller's | half the square | square | smooth L1 |
# | no bound | None | None | infinity | None | a large number | a large number |
#
# ## On the best device

# %%
from literate_rl.agents import best_device

device = best_device()
moved = (x.to(device) for x in (on_policy, *columns))
target, adv = vtrace(*moved)
print(
    f"{target.shape[0]} steps of {target.shape[1]} environments on {target.device.type}"
)
print("equal to GAE on the CPU:", torch.allclose(adv.cpu(), expected, atol=1e-5))

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: two steps by hand
#
# Given are two surprises, two ratios and the bounds $\bar\rho$ and $\bar c$, with
# $\gamma = \lambda = 1$. Return $x_0$ and $x_1$ of {eq}`vtrace` as a list, without this
# chapter's functions.

# %%
from literate_rl.agents import grade


def answer(delta, ratio, rho, c):
    return ...


def two_by_hand(delta, ratio, rho, c):
    last = min(rho, ratio[1]) * delta[1]
    return [min(rho, ratio[0]) * delta[0] + min(c, ratio[0]) * last, last]


cases = [
    ([1.0, 1.0], [1.0, 0.5], 1.0, 1.0),
    ([0.0, 4.0], [3.0, 3.0], 2.0, 1.0),
    ([-1.0, 2.0], [0.1, 10.0], 5.0, 0.05),
]
grade(answer, two_by_hand, *cases)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(delta, ratio, rho, c):
    second = min(rho, ratio[1]) * delta[1]
    first = min(rho, ratio[0]) * delta[0] + min(c, ratio[0]) * second
    return [first, second]


grade(answer, two_by_hand, *cases)

# %% [markdown]
# ### Exercise 2: how much of the new policy is left?
#
# For $\bar\rho = 1$ the denominator of {eq}`clipped-policy` says how much of the two policies
# overlaps. It is 1 if they are the same, and it is also the mean of the clipped ratio.
# Return it, for two lists of probabilities.


# %%
def answer(policy, old_policy):
    return ...


def overlap(policy, old_policy):
    return float(np.minimum(policy, old_policy).sum())


pairs = [([0.5, 0.5], [0.5, 0.5]), ([1.0, 0.0], [0.0, 1.0]), ([0.7, 0.3], [0.2, 0.8])]
grade(answer, overlap, *pairs)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(policy, old_policy):
    return sum(min(new, old) for new, old in zip(policy, old_policy, strict=True))


grade(answer, overlap, *pairs)

# %% [markdown]
# ### Exercise 3: how many unrolls are worth one?
#
# Weights make a batch smaller. $B$ samples with weights $w_b$ are worth about
# $(\sum_b w_b)^2 / \sum_b w_b^2$ samples of equal weight, the *effective sample size*. Return
# it for a tensor of log-ratios $\ell_b$, so that log-ratios near 1000 are no problem.


# %%
def answer(log_ratio):
    return ...


def effective(log_ratio):
    weight = log_ratio.double().softmax(0)
    return (1 / weight.square().sum()).item()


ratios = [
    (torch.zeros(7),),
    (torch.tensor([0.0, 1.0, -1.0]),),
    (torch.tensor([1e3, 0.0]),),
]
grade(answer, effective, *ratios)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(log_ratio):
    # A common factor cancels. With the largest log-ratio subtracted nothing overflows.
    weight = (log_ratio - log_ratio.max()).exp()
    return (weight.sum() ** 2 / weight.square().sum()).item()


grade(answer, effective, *ratios)

# %% [markdown]
# ## References
#
# V-trace is from {cite:t}`espeholt2018`. Its clipped traces come from Retrace
# {cite:p}`munos2016`, and the idea to weigh returns with ratios is that of
# {cite:t}`precup2000`.
