# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The policy gradient
#
# **How can a loss whose value means nothing still improve a policy?** Because its
# gradient points to where the return is higher, on average. To find that gradient we
# never have to look inside the environment.
#
# At the end of this chapter you can derive the policy gradient with nothing left out, say
# why a baseline is free and which one is best, and get the sign of the entropy right. And
# you will have trained your first agent.

# %% tags=["export", "hide-input"]
"""The policy gradient: log-probabilities, entropy, the loss and its best baseline."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "categorical_entropy",
    "categorical_log_prob",
    "optimal_baseline",
    "policy_gradient_error",
]

# %% [markdown]
# ## What we want to climb
#
# A policy $\pi_\theta(a \mid s)$ has parameters $\theta$: the weights of a network, or the
# entries of a table. We judge it by the return that it gets from the start of an episode,
# on average,
#
# $$
# J(\theta) = \mathbb{E}_{\pi_\theta} \left[ G_0 \right] .
# $$ (def-objective)
#
# To improve it we move $\theta$ a little along the gradient $\nabla J$, and do so again.
# But where does the gradient come from? The return is computed by the environment, which
# is somebody's program, or the world. We cannot differentiate it. We can only try
# actions and see.
#
# ## One decision
#
# Start with the smallest case: one state, one action, then the episode is over. Action
# $a$ pays $Q(a)$ on average, so $J = \sum_a \pi_\theta(a)\, Q(a)$ and
#
# $$
# \nabla J = \sum_a Q(a)\, \nabla \pi_\theta(a) .
# $$
#
# Only $\pi_\theta$ has a gradient here, and that one we know: it is our own network. But
# the sum runs over *all* actions, and we have tried only those that the policy drew. We
# want an average over the policy's draws, and in such an average each term has a factor
# $\pi_\theta(a)$. So put this factor there, and divide by it again. This is the
# **log-derivative trick**:
#
# $$
# \nabla \pi_\theta(a) = \pi_\theta(a)\, \frac{\nabla \pi_\theta(a)}{\pi_\theta(a)}
#                      = \pi_\theta(a)\, \nabla \log \pi_\theta(a) .
# $$ (def-log-derivative)
#
# Now the sum is an average over the actions that the policy takes anyway:
#
# $$
# \nabla J = \mathbb{E}_{a \sim \pi_\theta} \left[ Q(a)\, \nabla \log \pi_\theta(a) \right] .
# $$ (def-one-decision)
#
# The vector $\nabla \log \pi_\theta(a)$ is called the **score** of the action. It is the
# direction in which $\theta$ has to move to make the action more likely. So the recipe
# is: draw an action, see what it pays, and go in the direction of its score, the further
# the more it paid. A single payment will do in place of its mean $Q(a)$.
#
# One fact about the score carries the rest of this chapter: **its mean is zero**.
#
# $$
# \mathbb{E}_{a \sim \pi_\theta} \left[ \nabla \log \pi_\theta(a) \right]
#   = \sum_a \nabla \pi_\theta(a) = \nabla \sum_a \pi_\theta(a) = \nabla 1 = 0 .
# $$ (def-score-mean)
#
# The probabilities sum to 1 whatever $\theta$ is. What makes one action more likely makes
# the others less likely.
#
# ## Logits and log-probabilities
#
# A policy over $N$ actions usually ends in $N$ numbers $z_j$ without bounds, the
# *logits*. Softmax turns them into probabilities $p_j$, and the logarithm of the
# probability of action $a$ is
#
# $$
# \log p_a = z_a - \log \sum_j e^{z_j} .
# $$ (categorical-log-prob)
#
# Its derivative is the score of a softmax policy. You will meet it often:
#
# $$
# \frac{\partial \log p_a}{\partial z_j} = \mathbb 1[j = a] - p_j .
# $$ (def-score)
#
# The logit of the action goes up, and all logits go down by their probabilities. In sum
# nothing is gained or lost.
#
# Before the code, a word about mistakes. A wrong shape is the quietest of all: a $(B,)$
# and a $(B, 1)$ tensor multiply to $(B, B)$ without a word ({doc}`/chapters/agents`). So
# each loss compares shapes first. Numbers that are not finite are looked for only when
# the result is not finite, because looking costs time.


# %% tags=["export"]
def check_tensor(name: str, value: Any) -> Tensor:
    """Return an argument if it is a tensor, else raise a ``TypeError``."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    return value


def check_shape(name: str, value: Any, shape: tuple[int, ...]) -> Tensor:
    """Return an argument if it is a tensor of the expected shape, else raise.

    Args:
        name: Name of the argument, for the message.
        value: What came.
        shape: The expected shape.

    Returns:
        ``value`` itself.

    Raises:
        TypeError: If ``value`` is not a tensor.
        ValueError: If its shape is another one.
    """
    tensor = check_tensor(name, value)
    if tensor.shape != shape:
        raise ValueError(
            f"{name} must have shape {tuple(shape)}, got {tuple(tensor.shape)}"
        )
    return tensor


def check_finite(result: tuple[float, ...], **inputs: Tensor | None) -> None:
    """Raise if a result is not finite, and name the input that is to blame.

    Args:
        result: What was computed.
        inputs: The tensors that the result was computed from, by their names. A logit
            of minus infinity is legal: it takes an action away.

    Raises:
        ValueError: If any number of ``result`` is NaN or infinite.
    """
    if all(map(math.isfinite, result)):
        return
    for name, value in inputs.items():
        if value is None:
            continue
        legal = torch.isfinite(value)
        if name.startswith("logit"):
            legal |= value == -torch.inf
        if not legal.all():
            place = tuple((~legal).nonzero()[0].tolist())
            bad = value[place].item()
            raise ValueError(f"{name} must be finite, got {bad} at index {place}")
    raise ValueError(
        f"the result {result} is not finite: an action that was taken has probability "
        f"zero, or one of {', '.join(inputs)} is too large"
    )


# %% tags=["export"]
def check_logit(name: str, logit: Any) -> tuple[int, int]:
    """Return the shape (B, N) of logits, or raise if they are no such thing."""
    check_tensor(name, logit)
    if logit.dim() != 2 or logit.numel() == 0:
        raise ValueError(
            f"{name} must have shape (B, N) with B and N at least 1, "
            f"got {tuple(logit.shape)}"
        )
    if not logit.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {logit.dtype}")
    return tuple(logit.shape)


def check_action(action: Any, batch: int, num_actions: int) -> None:
    """Raise unless actions are (B,) integers from 0 to N - 1."""
    check_shape("action", action, (batch,))
    if action.is_floating_point() or action.dtype == torch.bool:
        raise TypeError(f"action must hold integers, got {action.dtype}")
    low, high = (bound.item() for bound in action.aminmax())
    if low < 0 or high >= num_actions:
        raise ValueError(f"action must lie in 0..{num_actions - 1}, got {low}..{high}")


def categorical_log_prob(logit: Tensor, action: Tensor) -> Tensor:
    """Compute the log-probability of each action, with gradient.

    Args:
        logit: Logits, (B, N). Minus infinity takes an action away.
        action: The actions taken, (B,) integers from 0 to N - 1.

    Returns:
        The log-probabilities, (B,). Minus infinity for an action that was taken away.

    Raises:
        TypeError: If the logits are no floating-point tensor or the actions are no
            integers.
        ValueError: If a shape is wrong or an action is out of range.

    Source:
        Sutton and Barto, Reinforcement Learning, 2nd edition, equation 13.2.
    """
    check_action(action, *check_logit("logit", logit))
    # All of {eq}`categorical-log-prob`, then the entry that was taken. `log_softmax`
    # subtracts the largest logit first, so no exponential overflows.
    log_prob = logit.log_softmax(1)
    return log_prob.gather(1, action.long().unsqueeze(1)).squeeze(1)


# %% [markdown]
# The score of three equally likely actions, for each of them. **Notice** that each row
# sums to zero, and so does each column: a column is the mean of the score here, times 3.

# %%
logit = torch.zeros(3, 3, requires_grad=True)
log_prob = categorical_log_prob(logit, torch.tensor([0, 1, 2]))
log_prob.sum().backward()
print(logit.grad)

# %% [markdown]
# ## Whole episodes
#
# An episode is a chain of decisions. Call it $\xi$. Its probability is a product: of the
# start, of all actions, and of all answers that the environment gave,
#
# $$
# \Pr_\theta(\xi) = \Pr(s_0) \prod_{t \ge 0}
#     \pi_\theta(a_t \mid s_t)\, \Pr(s'_t \mid s_t, a_t) .
# $$ (def-episode)
#
# The trick works for episodes as it works for actions: $\nabla J$ is the mean of
# $G_0\, \nabla \log \Pr_\theta(\xi)$. The logarithm turns the product into a sum. And in
# that sum only the policy's terms depend on $\theta$. The start and the environment's
# answers drop out, and with them all that we could not differentiate:
#
# $$
# \nabla J(\theta) = \mathbb{E}_{\pi_\theta} \Bigl[ G_0
#     \sum_{t \ge 0} \nabla \log \pi_\theta(a_t \mid s_t) \Bigr] .
# $$ (def-whole-return)
#
# **Mind the sum over $t$.** Every decision of the episode has a share in its return.
# A well-known course states the theorem without it, and below we shall see what is lost.
#
# ### The past drops out
#
# In {eq}`def-whole-return` an action is praised for the whole return, also for rewards
# that were paid before it was chosen. That cannot be right, and it does not matter. When
# $a_t$ is drawn, an earlier reward is a fixed number. The score of $a_t$ has mean zero by
# {eq}`def-score-mean`, and so has its product with a fixed number. Earlier rewards
# contribute noise and nothing else. We leave them out. What remains at step $t$ are the
# rewards from $t$ on, $\gamma^t r_t + \gamma^{t+1} r_{t+1} + \dots = \gamma^t G_t$.
#
# ### A baseline is free
#
# The same argument lets us *subtract* any number that is fixed before $a_t$ is drawn. It
# may depend on the state, but not on the action. Such a number $\bar G(s_t)$ is called a
# **baseline**. It moves no mean, so we may choose it as we like. The result is the
# **policy gradient theorem** {cite:p}`williams1992,sutton1999`:
#
# $$
# \nabla J(\theta) = \mathbb{E}_{\pi_\theta} \Bigl[ \sum_{t \ge 0} \gamma^t \,
#     \bigl( G_t - \bar G(s_t) \bigr)\, \nabla \log \pi_\theta(a_t \mid s_t) \Bigr] .
# $$ (policy-gradient)
#
# The usual baseline is the value $V(s_t)$. Then an action is judged by how much *better
# than expected* it turned out. That difference is an estimate $\hat A_t$ of the
# *advantage*, and {doc}`/chapters/advantages` is all about it.
#
# ### The factor that everybody drops
#
# The theorem has a factor $\gamma^t$: what happens late counts little from the start's
# point of view. Most code leaves it out, also that of the later chapters here. We seldom
# want a policy that is careless after step 500, and without the factor all steps of a
# batch count alike. But then the step is no longer along the gradient of $J$, nor
# of any other function {cite:p}`nota2020`. In practice it works well.
#
# ## The loss
#
# Optimisers want a loss to differentiate. So we write one down whose gradient is minus the
# estimate. For $B$ samples, the steps of one or of many episodes, with a weight $w$ each,
#
# $$
# \mathcal L_\pi(\theta) = -\frac1B \sum_{b=1}^{B}
#     w_b\, \hat A_b \, \log \pi_\theta(a_b \mid s_b) .
# $$ (policy-gradient-loss)
#
# The weight is there for $\gamma^t$, or to take a sample out with a zero. $\hat A_b$ is a
# number that was computed before. It is not differentiated, although a network may have
# had a say in it.
#
# **The value of this loss means nothing.** A loss in supervised learning is a distance from
# a target, on data that stay. This one is a tool that was made for its slope in one point.
#
# - It does not estimate $-J$, nor anything else that we care about. Add 100 to every
#   return: without a baseline the loss changes a lot, and its mean gradient not at all.
# - It belongs to the policy that drew the batch. After one step the policy is another one
#   and would draw other actions. If we step down the same loss again and again, it falls
#   and falls, while $J$ need not rise.
#
# So here one batch is good for one step. To take several from it is the business of
# {doc}`/chapters/ppo_error`.


# %% tags=["export"]
def policy_gradient_error(
    log_prob: Tensor, adv: Tensor, weight: Tensor | None = None
) -> Tensor:
    """Compute the loss whose gradient is minus an estimate of the policy gradient.

    Gradient flows into ``log_prob`` alone. The value of the loss is no measure of the
    policy.

    Args:
        log_prob: Log-probability of each action under the policy that took it, of any
            shape, usually (B,).
        adv: What each log-probability is weighted with, in the same shape: a return, a
            return minus a baseline, an advantage.
        weight: One factor for each sample, or None for ones. ``gamma ** t`` is
            what the theorem wants.

    Returns:
        The mean over all samples, a 0-dimensional tensor.

    Raises:
        TypeError: If an argument is no tensor, or ``log_prob`` is not floating-point.
        ValueError: If shapes differ, if there is no sample, or if the result is not
            finite. The message names the argument.

    Source:
        Williams 1992 (REINFORCE), as a loss; Sutton et al. 1999, theorem 1.
    """
    check_tensor("log_prob", log_prob)
    if not log_prob.is_floating_point():
        raise TypeError(f"log_prob must be floating point, got {log_prob.dtype}")
    if log_prob.numel() == 0:
        raise ValueError(f"log_prob must not be empty, got {tuple(log_prob.shape)}")
    check_shape("adv", adv, log_prob.shape)

    # What an action is worth is a number. If it came with a graph, the optimiser would
    # change the judge instead of the policy.
    factor = adv.detach()
    if weight is not None:
        factor = factor * check_shape("weight", weight, log_prob.shape).detach()

    # The loss {eq}`policy-gradient-loss`. Autograd differentiates this line, and what
    # comes out is minus a sample of {eq}`policy-gradient`, divided by $B$.
    loss = -(factor * log_prob).mean()
    check_finite((loss.item(),), log_prob=log_prob, adv=adv, weight=weight)
    return loss


# %% [markdown]
# ## The best baseline
#
# All baselines have the same mean. So choose the one with the least noise. In one state,
# the variance of the estimate $(G - \bar G)\, \nabla \log \pi_\theta(a)$, summed over its
# components, is
#
# $$
# \mathbb{E} \left[ (G - \bar G)^2 \, \lVert \nabla \log \pi_\theta(a) \rVert^2 \right]
#   - \lVert \nabla J \rVert^2 .
# $$
#
# The last term does not depend on $\bar G$. The first is a parabola in it. Its derivative
# is zero at {cite:p}`greensmith2004`
#
# $$
# \bar G^* = \frac
#   {\mathbb{E} \left[ \lVert \nabla \log \pi_\theta(a) \rVert^2 \, G \right]}
#   {\mathbb{E} \left[ \lVert \nabla \log \pi_\theta(a) \rVert^2 \right]} ,
# $$ (optimal-baseline)
#
# and any other baseline costs $\mathbb{E} \lVert \nabla \log \pi_\theta \rVert^2 \,
# (\bar G - \bar G^*)^2$ more. So the best baseline is a mean of the returns as well, like
# the value. Only it listens most to actions with a long score, and these are the unlikely
# ones.


# %% tags=["export"]
def optimal_baseline(logit: Tensor, q_value: Tensor) -> Tensor:
    """Compute the baseline with the least variance, for a softmax policy.

    Args:
        logit: Logits, (B, N). Minus infinity takes an action away.
        q_value: Expected return of each action, (B, N). Must be finite.

    Returns:
        The best baseline of each state, (B,), without gradient. Where one action is
        certain no baseline matters, and its expected return comes back.

    Raises:
        TypeError: If an argument is no tensor, or the logits are not floating-point.
        ValueError: If a shape is wrong or the result is not finite.

    Source:
        Greensmith et al. 2004, for a single decision.
    """
    shape = check_logit("logit", logit)
    check_shape("q_value", q_value, shape)
    prob = logit.detach().softmax(1)
    # Row $a$ of the identity minus the probabilities is the score of action $a$. The
    # squared length of each is needed.
    identity = torch.eye(shape[1], dtype=prob.dtype, device=prob.device)
    squared_length = (identity - prob.unsqueeze(1)).square().sum(2)
    # The baseline {eq}`optimal-baseline` is a weighted mean. If one action is certain,
    # all weights are zero, and the probabilities themselves have to do.
    weight = prob * squared_length
    total = weight.sum(1, keepdim=True)
    weight = torch.where(total > 0, weight / total, prob)
    result = (weight * q_value.detach()).sum(1)
    check_finite((result.sum().item(),), logit=logit, q_value=q_value)
    return result


# %% [markdown]
# ## Entropy
#
# A policy that is certain of an action has a score of zero: by {eq}`def-score` nothing is
# left of it when $p_a = 1$. Such a policy learns nothing any more, be it good or bad.
# So we want to know how uncertain a policy is, and sometimes to pay for it. The measure
# is the **entropy**, in nats:
#
# $$
# H(\pi) = -\sum_j p_j \log p_j .
# $$ (categorical-entropy)
#
# It is the mean surprise $-\log p_j$ of the policy's own actions. It is zero when the
# policy always does the same, and $\log N$ when all $N$ actions are equally likely. Its
# gradient is
#
# $$
# \frac{\partial H}{\partial z_j} = -p_j \, (\log p_j + H) .
# $$ (def-entropy-gradient)
#
# Read the sign: a logit goes *up* if its action is more surprising than the mean,
# $-\log p_j > H$, and down otherwise. Climbing the entropy makes the policy more even.
#
# If we pay for entropy, with a weight $c_H$, the objective becomes $J + c_H H$. A loss is
# minus an objective, so the entropy is *subtracted* from it: $\mathcal L_\pi - c_H H$. The
# wrong sign is a mistake that has been published more than once;
# {doc}`/chapters/ppo_error` shows one.


# %% tags=["export"]
def categorical_entropy(logit: Tensor) -> Tensor:
    """Compute the entropy of a softmax policy in each state, with gradient.

    Args:
        logit: Logits, (B, N). Minus infinity takes an action away.

    Returns:
        The entropies, (B,), in nats, from 0 to ``log(N)``.

    Raises:
        TypeError: If ``logit`` is no floating-point tensor.
        ValueError: If its shape is wrong.
    """
    check_logit("logit", logit)
    log_prob = logit.log_softmax(1)
    # An action that was taken away has probability zero and adds nothing. Zero times
    # infinity would be NaN, in the gradient as well, so its logarithm becomes zero.
    surprise = -log_prob.masked_fill(log_prob == -torch.inf, 0.0)
    # The mean surprise {eq}`categorical-entropy`.
    return (log_prob.exp() * surprise).sum(1)


# %% [markdown]
# Three policies over three actions. **Notice** the last one: with an impossible action it
# is a policy over two, and nothing is NaN.

# %%
logit = torch.tensor(
    [[0.0, 0.0, 0.0], [2.0, 0.0, -2.0], [0.0, 0.0, -torch.inf]], requires_grad=True
)
entropy = categorical_entropy(logit)
(gradient,) = torch.autograd.grad(entropy.sum(), logit)
for row, h, slope in zip(logit.softmax(1), entropy, gradient, strict=True):
    shown = ", ".join(f"{p:.2f}" for p in row.tolist())
    slopes = ", ".join(f"{g:5.2f}" for g in slope.tolist())
    print(f"probabilities {shown}: entropy {h.item():.2f}, gradient {slopes}")

# %% [markdown]
# ## See it: one decision, one gradient, three clouds
#
# One state, three actions that pay 3, 4 and 6 on average, each with a noise of deviation 1.
# The logits are known, so is the exact gradient: $p_j \, (Q_j - V)$. We estimate it
# 2,000 times, each time from 32 actions, with three baselines.
#
# One trick makes this quick: every estimate gets its own copy of the logits. Then a single
# backward pass gives all 2,000 gradients.

# %% mystnb={"image": {"alt": "Three scatter plots of gradient estimates around one cross, the exact gradient. Without a baseline the cloud is several times as wide as with the value or with the best baseline, whose clouds look alike. All three are centred on the cross."}}
import matplotlib.pyplot as plt

generator = torch.Generator().manual_seed(0)
logit = torch.tensor([0.6, 0.0, -0.6], dtype=torch.float64)
q_value = torch.tensor([3.0, 4.0, 6.0], dtype=torch.float64)
prob = logit.softmax(0)
value = prob @ q_value
exact = prob * (q_value - value)


def play(runs, size):
    """Draw actions and what they pay, each of shape (runs, size)."""
    action = torch.multinomial(prob.expand(runs, 3), size, True, generator=generator)
    noise = torch.randn(runs, size, generator=generator, dtype=torch.float64)
    return action, q_value[action] + noise


def estimates(action, adv):
    """Return the gradient that each run's loss gives, (runs, 3)."""
    runs, size = action.shape
    copies = logit.repeat(runs, 1).requires_grad_()
    rows = copies.repeat_interleave(size, 0)
    log_prob = categorical_log_prob(rows, action.flatten())
    loss = policy_gradient_error(log_prob, adv.flatten())
    # The loss is a mean over all runs, but each copy wants the mean over its own.
    return -runs * torch.autograd.grad(loss, copies)[0]


action, payment = play(2000, 32)
best = optimal_baseline(logit.unsqueeze(0), q_value.unsqueeze(0))
baselines = {"no baseline": 0.0, "value": value, "best baseline": best}

fig, axes = plt.subplots(1, 3, figsize=(7, 2.7), sharex=True, sharey=True)
print(f"{'exact gradient':16s}", *(f"{x:6.2f}" for x in exact.tolist()))
for axis, (name, baseline) in zip(axes, baselines.items(), strict=True):
    cloud = estimates(action, payment - baseline)
    axis.scatter(*cloud[:500, :2].T, s=4, alpha=0.4, color="C0", linewidths=0)
    axis.plot(*exact[:2], "+", color="C3", markersize=13, markeredgewidth=2)
    axis.set_title(name, fontsize=10)
    axis.set_xlabel("gradient by logit 0")
    mean, variance = cloud.mean(0), cloud.var(0).sum()
    shown = " ".join(f"{x:6.2f}" for x in mean.tolist())
    print(f"{name:16s} {shown}   variance {variance:.3f}")
axes[0].set_ylabel("gradient by logit 1")
fig.tight_layout()

# %% [markdown]
# Each dot is an estimate (500 of them are drawn), the red cross is the exact gradient.
# **Notice** that all three clouds have their centre on the cross, and that a baseline
# shrinks the cloud. Half of the variance that is left is the noise of the payments,
# which no baseline removes. And **notice** how little the best baseline gains over the
# value. That is why everybody uses the value: it is nearly as good, and we want to know
# it anyway.
#
# ## See it: whole episodes on the ring
#
# Now with many steps. The robot of {doc}`/chapters/agents` walks on its ring, which
# pays 1 in cell 0, and breaks down with probability 0.1. Its policy is a table with two
# logits in each cell. Everything can be computed, also the gradient. Collect the terms of
# {eq}`policy-gradient` by the state in which they occur, and insert {eq}`def-score`:
#
# $$
# \frac{\partial J}{\partial z_{s,j}} = \nu(s)\, \pi_\theta(j \mid s)\,
#     \bigl( Q(s, j) - V(s) \bigr) , \qquad
# \nu(s) = \sum_{t \ge 0} \gamma^t \Pr(s_t = s) .
# $$ (def-exact-gradient)
#
# Here $\nu(s)$ counts the visits to a state, discounted. A cell matters as often as it is
# visited, and an action as much as it is better than the cell's value.

# %%
from literate_rl.agents import Ring, tabular_values

gamma, ring = 0.9, Ring(num_cells=5, end_probability=0.1)
generator = torch.Generator().manual_seed(0)
table = torch.randn(5, 2, generator=generator, dtype=torch.float64)
policy = table.softmax(1)
successor = (torch.arange(5).unsqueeze(1) + torch.tensor([-1, 1])) % 5  # (cell, action)
lasts = 1 - ring.end_probability

identity = torch.eye(5, dtype=torch.float64)
transition = torch.zeros_like(identity).scatter_add(1, successor, lasts * policy)
reward_of_cell = identity[0]
start = torch.full_like(reward_of_cell, 0.2)
value = torch.as_tensor(tabular_values(transition, reward_of_cell, gamma))
q_value = reward_of_cell.unsqueeze(1) + gamma * lasts * value[successor]
visits = torch.linalg.solve(identity - gamma * transition.T, start)
exact = visits.unsqueeze(1) * policy * (q_value - value.unsqueeze(1))

print("cell                          ", *(f"{cell:6d}" for cell in range(5)))
print("probability of going right    ", *(f"{x:6.2f}" for x in policy[:, 1].tolist()))
print("gradient by the logit of right", *(f"{x:6.2f}" for x in exact[:, 1].tolist()))

# %% [markdown]
# **Notice** the signs: in cells 3 and 4 the robot should go right, in cell 1 to the
# left. That is where the charger is. Cell 2 is no mistake: to its left lies cell 1, where
# this robot would mostly turn back.
#
# Now 20,000 episodes, stepped side by side. We weigh their scores in four ways: with
# the whole return $G_0$, with the return from $t$ on, with that return minus the value,
# and, as the course has it, without the sum over $t$. How far is the mean of $n$
# episodes from the exact gradient?

# %% mystnb={"image": {"alt": "Error of the gradient over the number of episodes, both on logarithmic axes. Three parallel lines fall: highest for the whole return, lower for the return from t on, lowest with the value as a baseline. A fourth line, without the sum over t, stays level near 0.8."}}
num_episodes, num_steps = 20_000, 50  # after 50 discounted steps nothing is left
cell = torch.randint(5, (num_episodes,), generator=generator)
alive = torch.ones(num_episodes, dtype=torch.bool)
rows = []
for _ in range(num_steps):
    action = torch.multinomial(policy[cell], 1, generator=generator).squeeze(1)
    rows.append((cell, action, alive, (cell == 0) & alive))
    cell = successor[cell, action]
    alive = alive & (torch.rand(num_episodes, generator=generator) < lasts)
cells, actions, alives, rewards = map(torch.stack, zip(*rows, strict=True))

returns = torch.zeros(num_steps + 1, num_episodes, dtype=torch.float64)
for t in reversed(range(num_steps)):
    returns[t] = rewards[t] + gamma * returns[t + 1]
returns = returns[:-1]


def episode_gradients(adv, weight):
    """Return minus the gradient of the loss of each episode, (episodes, 5, 2)."""
    copies = table.repeat(num_episodes, 1, 1).requires_grad_()
    logit = copies[torch.arange(num_episodes), cells].flatten(0, 1)
    log_prob = categorical_log_prob(logit, actions.flatten())
    loss = policy_gradient_error(log_prob, adv.flatten(), weight.flatten())
    return -log_prob.numel() * torch.autograd.grad(loss, copies)[0]


step = torch.arange(num_steps).unsqueeze(1)
discount = gamma**step * alives  # zero after the end of an episode
better = returns - value[cells]
ways = {
    "whole return": episode_gradients(returns[:1].expand_as(returns), 1.0 * alives),
    "return from t on": episode_gradients(returns, discount),
    "minus the value": episode_gradients(better, discount),
    "no sum over t": episode_gradients(better, discount * (step == 0)),
}

fig, axis = plt.subplots(figsize=(7, 3))
sizes = (10, 30, 100, 300, 1000, 2000)
print(f"{'':18s}error of the mean   variance")
for number, (name, gradient) in enumerate(ways.items()):
    errors = []
    for size in sizes:
        groups = gradient[: num_episodes // size * size].unflatten(0, (-1, size))
        miss = (groups.mean(1) - exact).square().sum((1, 2)).mean().sqrt()
        errors.append((miss / exact.norm()).item())
    style = "--" if name.startswith("no") else "-"
    axis.loglog(sizes, errors, style, marker="o", ms=4, color=f"C{number}", label=name)
    miss = (gradient.mean(0) - exact).norm() / exact.norm()
    print(f"{name:18s}{miss:17.0%}{gradient.var(0).sum():11.2f}")
axis.set_xlabel("episodes")
axis.set_ylabel("error, relative")
axis.legend(fontsize=8, loc="lower left")
fig.tight_layout()

# %% [markdown]
# **Notice** the three solid lines. They are parallel: ten times as many episodes make
# the error about three times smaller. That is the way of all averages, and all three
# will arrive. But a lower line needs fewer episodes for the same error, in proportion to
# its variance. Leaving out the past saves most of them, and the baseline halves what is
# left. The dashed line is different. It has the smallest variance and does not arrive at
# all. It is the average of something else.
#
# ## A first agent that learns
#
# Now put it together and balance a pole. A small network maps the four numbers of
# CartPole to two logits. A second one learns the value, by moving its output towards
# the returns it has seen. After 64 steps in 16 environments the actor takes
# one step of its optimiser, the critic takes ten, and the batch is thrown away. This is **REINFORCE** {cite:p}`williams1992` with a learned
# baseline.
#
# Both networks are there in both of our variants, because a batch that stops in the middle
# of an episode needs a bootstrap. They differ in one place only: whether the value is
# subtracted.

# %%
import gymnasium as gym
from torch import nn

from literate_rl.agents import (
    Collector,
    discounted_returns,
    make_envs,
    seed_everything,
)


def network(outputs):
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, outputs))


def make_cartpole():
    return gym.make("CartPole-v1", disable_env_checker=True)  # the checker takes time


def train(seed, subtract_value, num_updates=50):
    """Return the mean length of the latest episodes and the loss, at each update."""
    seed_everything(seed)
    collector = Collector(make_envs(make_cartpole, num_envs=16))
    collector.reset(seed=1000 * seed)
    actor, critic = network(2), network(1)
    actor_optimiser = torch.optim.Adam(actor.parameters(), lr=0.01)
    critic_optimiser = torch.optim.Adam(critic.parameters(), lr=0.01)

    def policy(obs):
        return torch.multinomial(actor(obs).softmax(1), 1).squeeze(1)

    ended, lengths, losses = [0.0], [], []
    for _ in range(num_updates):
        batch = collector.collect(policy, 64)
        with torch.no_grad():
            next_value = critic(batch.next_obs).squeeze(2)
        returns = discounted_returns(
            batch.reward, next_value, batch.terminated, batch.truncated
        ).flatten()
        states, actions = batch.obs.flatten(0, 1), batch.action.flatten()

        adv = returns
        if subtract_value:
            adv = returns - critic(states).squeeze(1)
        log_prob = categorical_log_prob(actor(states), actions)
        loss = policy_gradient_error(log_prob, adv)
        actor_optimiser.zero_grad()
        loss.backward()
        actor_optimiser.step()

        # The critic is ordinary regression, and may look at a batch more than once.
        for _ in range(10):
            error = (returns - critic(states).squeeze(1)).square().mean()
            critic_optimiser.zero_grad()
            error.backward()
            critic_optimiser.step()

        length = batch.episode_length
        ended += length[length.isfinite()].tolist()
        lengths.append(sum(ended[-16:]) / len(ended[-16:]))
        losses.append(loss.item())
    return lengths, losses


torch.set_num_threads(1)  # the tensors are small: threads would only wait
seeds = range(4)
runs = {
    name: torch.tensor([train(seed, subtract) for seed in seeds])
    for name, subtract in (("minus the value", True), ("no baseline", False))
}  # each (seeds, 2, updates)

# %% mystnb={"image": {"alt": "Left: length of CartPole's episodes over environment steps, with bands of one deviation over four seeds. With the value as a baseline it rises to over 400 steps, without a baseline to little more than half of that. Right: the losses of the same runs. Both begin at 8. With the baseline the loss drops to nearly zero within ten updates and stays there, without one it rises to over 30."}}
fig, (left, right) = plt.subplots(1, 2, figsize=(7, 3))
environment_steps = 16 * 64 * torch.arange(1, 51)
for number, (name, run) in enumerate(runs.items()):
    for axis, curve in zip((left, right), run.unbind(1), strict=True):
        mean, spread = curve.mean(0), curve.std(0)
        axis.plot(environment_steps, mean, color=f"C{number}", label=name)
        band = (mean - spread, mean + spread)
        axis.fill_between(environment_steps, *band, color=f"C{number}", alpha=0.2)
left.axhline(500, color="#808080", linestyle=":", linewidth=1)
left.set_ylabel("steps in an episode")
right.set_ylabel("loss")
for axis in (left, right):
    axis.set_xlabel("environment steps")
left.legend(fontsize=8, loc="upper left")
fig.tight_layout()

print("steps in an episode, mean of the last ten updates, four seeds")
for name, run in runs.items():
    last = run[:, 0, -10:].mean(1)
    print(f"{name:16s} {last.mean():.0f} ± {last.std():.0f}")

# %% [markdown]
# Lines are means over four seeds, bands are one standard deviation, and 500 steps are the
# most that an episode can have. **Notice** in the left picture that the agent learns
# to balance the pole. At the start the pole fell after twenty steps, like that of the
# agent that pushed at random. With the value subtracted, fifty updates take it most of
# the way. Without, they take it about half as far, and the seeds differ more.
#
# **Notice** in the right picture what the losses do meanwhile. With the baseline the loss
# drops within ten updates. That is the critic's doing: it has learned what to expect, so
# the differences are small. From then on the loss stays near zero, while the agent
# learns nearly all that it learns. Without a baseline the loss *rises*, because it is a mean of returns
# with positive factors, and the returns are getting better. Neither curve tells you that
# something good is happening. So watch the return, and let the optimiser have the gradient.
#
# ## Traps
#
# ### Trap: the sum over t left out
#
# The policy gradient theorem, as Hugging Face's course on deep reinforcement learning
# states it, is the mean of $\nabla \log \pi_\theta(a_t \mid s_t)$ times the return of the
# episode. There is no sum over $t$, and nothing says which $t$ is meant (issues #285 and
# #527). The course's proof, one page on, has the sum. Take the statement at its word,
# with the first step for $t$. Then it teaches a policy its first step and nothing else.
# Here is what it says to a robot that always starts in cell 2.

# %%
from_two = cells[0] == 2
for name in ("minus the value", "no sum over t"):
    right = ways[name][from_two].mean(0)[:, 1]
    print(f"{name:16s} cells 0 to 4:", *(f"{x:6.3f}" for x in right.tolist()))

# %% [markdown]
# The cells that come later get no gradient at all. No number of episodes mends that.
#
# ### Trap: a baseline that knows the action
#
# A baseline must be fixed before the action is drawn. If it depends on the action,
# {eq}`def-score-mean` does not apply, and the mean moves. Subtract $Q(s, a)$, the best
# guess of the return, and nothing is left but noise.
# There are methods that subtract such a baseline and then correct the mean.
# {cite:t}`tucker2018` found that their gains came from details of the code, some of which
# bias the gradient.
#
# There is an everyday version. PyTorch's REINFORCE example and Hugging Face's course
# subtract the mean of the very returns that they weigh. That mean contains each sample's
# own return, so it knows a bit about the action. For $B$ independent samples the
# gradient shrinks by the factor $1 - 1/B$. The mean of the *others* is a true baseline
# {cite:p}`kool2019`. One state and three actions again:

# %%
logit = torch.tensor([0.6, 0.0, -0.6], dtype=torch.float64)
q_value = torch.tensor([3.0, 4.0, 6.0], dtype=torch.float64)
prob = logit.softmax(0)
exact = prob * (q_value - prob @ q_value)

print("length along the exact gradient, which is 1")
print(" B   own mean   1 - 1/B   mean of the others   Q of the action")
for size in (2, 4, 16):
    action, payment = play(400_000 // size, size)
    own = payment.mean(1, keepdim=True)
    others = (payment.sum(1, keepdim=True) - payment) / (size - 1)
    along = [
        (estimates(action, payment - baseline).mean(0) @ exact / exact.square().sum())
        for baseline in (own, others, q_value[action])
    ]
    print(
        f"{size:2d}{along[0]:11.2f}{1 - 1 / size:10.2f}{along[1]:21.2f}"
        f"{along[2].abs():18.2f}"
    )

# %% [markdown]
# With a batch of 1,000 independent samples the factor does not matter. With two it is one
# half, and with one sample nothing is learned at all. The steps of a single episode are
# *not* independent, so there even the direction is a little off.
#
# ### Trap: a gradient through the advantage
#
# The value in $G - V_\theta(s)$ comes out of a network. If it is not cut off, the loss has
# a second way down: where $\log \pi$ is negative, and it always is, *raise the value*.
# Keras's example of an actor and a critic did this (keras-io issue #194). Together with a
# squared error $\frac12 (G - V_\theta)^2$ the value then settles where
# $\mathbb{E}[\log \pi - (G - V_\theta)] = 0$, that is at $V + H$: too high by the entropy.

# %%
surprise = -logit.log_softmax(0)
for name, cut in (("attached", False), ("detached", True)):
    guess = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    for _ in range(200):
        adv = q_value - (guess.detach() if cut else guess)
        actor_loss = (prob * surprise * adv).sum()  # the mean, without sampling
        critic_loss = (prob * (q_value - guess).square() / 2).sum()
        (slope,) = torch.autograd.grad(actor_loss + critic_loss, guess)
        guess = (guess - 0.1 * slope).detach().requires_grad_()
    print(f"{name}: the value settles at {guess.item():.3f}")
entropy = categorical_entropy(logit.unsqueeze(0)).item()
print(f"true value {prob @ q_value:.3f}, entropy {entropy:.3f}")

# %% [markdown]
# `policy_gradient_error` detaches the advantage itself. In `train` above nothing had to
# be cut off by hand.
#
# ### Trap: every action with every state
#
# Many buffers store actions as a column, $(B, 1)$. PyTorch's `Categorical` takes them
# without complaint and returns $(B, B)$ log-probabilities: each action in each
# state. Times $B$ advantages and averaged, that is a loss, and it trains. But each state
# is taught the actions of all the others.

# %%
from torch.distributions import Categorical

logit = torch.zeros(3, 2, requires_grad=True)
action, adv = torch.tensor([0, 1, 1]), torch.tensor([1.0, 1.0, 1.0])
table_of_all = Categorical(logits=logit).log_prob(action.unsqueeze(1))
(gradient,) = torch.autograd.grad((table_of_all * adv).mean(), logit)
print(f"log-probabilities of shape {tuple(table_of_all.shape)}; uphill for action 1:")
print("with a column", *(f"{x:6.3f}" for x in gradient[:, 1].tolist()))

loss = policy_gradient_error(categorical_log_prob(logit, action), adv)
(gradient,) = torch.autograd.grad(-loss, logit)
print("with a row   ", *(f"{x:6.3f}" for x in gradient[:, 1].tolist()))
try:
    categorical_log_prob(logit, action.unsqueeze(1))
except ValueError as error:
    print("here:", error)

# %% [markdown]
# The first state took action 0 and was praised for it. With a column, it learns the
# opposite.
#
# ## What well-known implementations do
#
# | question | this chapter | Spinning Up, VPG | Stable-Baselines3, A2C | PyTorch's example | DI-engine, A2C | Pearl, REINFORCE |
# |---|---|---|---|---|---|---|
# | an action is weighed with | what the caller gives | GAE, normalised over the batch | GAE with $\lambda = 1$ of 5 steps; normalised on request | returns of one episode, normalised over it | what the caller gives | return, minus the critic if there is one |
# | samples are joined by | a mean | a mean | a mean | a sum | a mean | a sum |
# | advantage cut off | in the loss | in the buffer | in the buffer | no network in it | left to the caller | in the loss |
# | $\log \pi$ from | logits | logits | logits | probabilities | logits | $p + 10^{-8}$ |
# | entropy | separate function | logged only | subtracted, with weight 0 unless set | none | returned, to be subtracted | none |
# | factor $\gamma^t$ | a weight, on request | no | no | no | no | no, on purpose (issue #46) |
#
# ## On the best device
#
# The functions run where their tensors are.

# %%
from literate_rl.agents import best_device

device = best_device()
generator = torch.Generator().manual_seed(0)
logit = torch.randn(512, 6, generator=generator)
action = torch.randint(0, 6, (512,), generator=generator)
adv = torch.randn(512, generator=generator)

gradients = []
for place in (torch.device("cpu"), device):
    leaf = logit.to(place, copy=True).requires_grad_()
    log_prob = categorical_log_prob(leaf, action.to(place))
    loss = policy_gradient_error(log_prob, adv.to(place))
    total = loss - 0.01 * categorical_entropy(leaf).mean()
    gradients.append(torch.autograd.grad(total, leaf)[0].cpu())
print(f"loss and entropy of 512 samples on {device.type}")
print("same gradient as on the CPU:", torch.allclose(*gradients, atol=1e-7))

# %% [markdown]
# ## Exercises
#
# Each one grades itself: replace the `...` and run the cell.
#
# ### Exercise 1: the gradient by hand
#
# Given are the probabilities of a softmax policy as a list, the action that was taken and
# its advantage. Return the gradient of the loss $-\hat A \log \pi(a)$ by the logits, as
# a list.

# %%
from literate_rl.agents import grade


def answer(prob, action, adv):
    return ...


def slope_by_autograd(prob, action, adv):
    """Return the same by the chapter's code."""
    logit = torch.tensor([prob]).log().requires_grad_()
    log_prob = categorical_log_prob(logit, torch.tensor([action]))
    loss = policy_gradient_error(log_prob, torch.tensor([adv]))
    return torch.autograd.grad(loss, logit)[0].squeeze(0).tolist()


decisions = [([0.5, 0.5], 0, 1.0), ([0.7, 0.2, 0.1], 2, -3.0), ([0.9, 0.1], 0, 2.0)]
grade(answer, slope_by_autograd, *decisions)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(prob, action, adv):
    """The score is one minus the probability for the action, minus it for the rest."""
    return [-adv * ((j == action) - p) for j, p in enumerate(prob)]


grade(answer, slope_by_autograd, *decisions)

# %% [markdown]
# ### Exercise 2: the best baseline of two actions
#
# With only two actions, the best baseline has a short form. Return it for the probability
# $p$ of action 0 and the expected returns of both. Then ask yourself: what is the
# estimate from a single sample, if the returns have no noise?


# %%
def answer(p, q0, q1):
    return ...


def baseline_of_two(p, q0, q1):
    """Ask `optimal_baseline`."""
    logit = torch.tensor([[p, 1 - p]], dtype=torch.float64).log()
    return optimal_baseline(logit, torch.tensor([[q0, q1]]).double()).item()


pairs = [(0.5, 1.0, 3.0), (0.9, 1.0, 3.0), (0.2, -1.0, 5.0)]
grade(answer, baseline_of_two, *pairs)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(p, q0, q1):
    """The value with the probabilities exchanged: each action counts as the other one.

    Action 0 then gives `(q0 - baseline) * (1 - p)`, which is `p * (1 - p) * (q0 - q1)`,
    and action 1 gives the same. One sample without noise is already the exact gradient.
    """
    return (1 - p) * q0 + p * q1


grade(answer, baseline_of_two, *pairs)

# %% [markdown]
# ### Exercise 3: the whole sum
#
# Given are, for the steps of one episode, the scores as a tensor $(T, D)$ and the rewards
# as a list, and the discount. Return the episode's estimate of the gradient of $J$, a
# tensor $(D,)$. Use no baseline, and leave nothing else out: all steps, the rewards from
# each step on, and the factor $\gamma^t$.


# %%
def answer(score, reward, gamma):
    return ...


def whole_sum(score, reward, gamma):
    total = torch.zeros_like(score[0])
    for t in range(len(reward)):
        later = sum(gamma**k * reward[k] for k in range(t, len(reward)))
        total = total + later * score[t]
    return total


scores = torch.tensor([[1.0, 0.0], [0.5, -1.0], [0.0, 2.0]])
chains = [(scores, [0.0, 0.0, 1.0], 0.9), (scores, [5.0, 1.0, 2.0], 0.5)]
grade(answer, whole_sum, *chains)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(score, reward, gamma):
    """The discounted rewards, summed from the end, weigh the scores."""
    discounted = torch.tensor([gamma**t * r for t, r in enumerate(reward)])
    return discounted.flip(0).cumsum(0).flip(0) @ score


grade(answer, whole_sum, *chains)

# %% [markdown]
# ## References
#
# REINFORCE is from {cite:t}`williams1992`, the theorem from {cite:t}`sutton1999`; chapter
# 13 of {cite:t}`sutton2018` is a gentle second reading. {cite:t}`greensmith2004` treat
# baselines, {cite:t}`kool2019` the mean of the others, {cite:t}`nota2020` the missing
# discount.
