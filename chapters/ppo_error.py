# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The PPO error
#
# **How far may one batch of experience move a policy?** Proximal policy optimisation
# answers with a loss that stops pushing once the policy has moved far enough
# {cite:p}`schulman2017`.
#
# At the end of this chapter you can derive that loss, read every line of it, say for
# each sample whether it still has a gradient, and use it for discrete and for
# continuous actions. You will also know six mistakes that published versions make.

# %% tags=["export", "hide-input"]
"""The PPO error: clipped surrogate, value error, entropy bonus and KL estimates."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal

from literate_rl.policy_gradient import (
    check_action,
    check_finite,
    check_logit,
    check_shape,
    check_tensor,
)

__all__ = [
    "approx_kl_k3",
    "clipped_surrogate",
    "fused_ppo_policy_error",
    "policy_error_from_log_prob",
    "ppo_info",
    "ppo_policy_data",
    "ppo_policy_error",
    "ppo_policy_error_continuous",
    "ppo_policy_loss",
    "ppo_value_data",
    "ppo_value_error",
]

# %% [markdown]
# ## What goes in, what comes out
#
# A batch holds $B$ samples. For each sample we know the action $a$ and an estimate
# $\hat A$ of its advantage: how much better it was than the policy's average
# ({doc}`/chapters/advantages`). An action with a positive advantage is called *good*,
# one with a negative advantage *bad*. A sample may have a weight $w$.
#
# Two policies judge the action: $\pi_{\text{old}}$, which collected the batch and stays
# fixed, and $\pi_\theta$, which we train. Each is given by its *logits*, unnormalised
# log-probabilities, one row of $N$ numbers for each sample.
#
# The names of these tuples are those of DI-engine and of PPOxFamily, so that code
# written for them runs here. The functions that check shapes and numbers are those of
# {doc}`/chapters/policy_gradient`.


# %% tags=["export"]
class ppo_policy_data(NamedTuple):
    """What the policy error reads: one batch of B samples.

    Attributes:
        logit_new: What describes the policy in training. Discrete actions: logits of
            shape (B, N). Continuous actions: a mapping with ``mu`` and ``sigma`` of
            shape (B, A).
        logit_old: The same for the policy that collected the batch. No gradient flows
            into it.
        action: The actions taken, (B,) integers or (B, A) real numbers.
        adv: Advantage estimates, (B,). No gradient flows into them.
        weight: One factor for each sample, (B,), or None for ones.
    """

    logit_new: Any
    logit_old: Any
    action: Any
    adv: Tensor
    weight: Tensor | None


class ppo_policy_loss(NamedTuple):
    """The two parts of the policy's loss, 0-dimensional tensors with gradient.

    The total to minimise is ``policy_loss - entropy_weight * entropy_loss``: the second
    field is the mean entropy itself. With continuous actions it may be negative.
    """

    policy_loss: Tensor
    entropy_loss: Tensor


class ppo_info(NamedTuple):
    """Two numbers to watch while training, Python floats.

    Attributes:
        approx_kl: Mean of ``log_prob_old - log_prob_new``, the estimate called k1 of
            the divergence from the old to the new policy, in nats.
        clipfrac: Fraction of samples whose ratio left the clip range.
    """

    approx_kl: float
    clipfrac: float


# %% [markdown]
# ## The ratio
#
# How much more likely is the action now than when it was taken? The **ratio** says it,
#
# $$
# \rho(\theta) = \frac{\pi_\theta(a \mid s)}{\pi_{\text{old}}(a \mid s)}
#              = \exp\bigl(\log \pi_\theta(a \mid s) - \log \pi_{\text{old}}(a \mid s)\bigr) .
# $$ (ratio)
#
# Before the first update it is 1. Why is it useful? We want actions of $\pi_\theta$ with
# a high advantage, but we only have actions of $\pi_{\text{old}}$. The ratio exchanges
# one policy for the other:
#
# $$
# \sum_a \pi_\theta(a \mid s)\, \hat A
#     = \sum_a \pi_{\text{old}}(a \mid s)\, \rho(\theta)\, \hat A .
# $$ (def-importance)
#
# On the right stands an average over the old policy's actions. The exchange is exact for
# the actions. But the states are still those that the old policy visited, and the noise
# grows with the ratio. So a batch can be trusted only while the ratio stays near 1.
#
# ## The clipped surrogate
#
# The **surrogate** $\rho(\theta) \hat A$ is what stands in that average. Since
# $\nabla \rho = \rho\, \nabla \log \pi_\theta$, its gradient at $\rho = 1$ is
# $\hat A\, \nabla \log \pi_\theta(a \mid s)$. That is the policy gradient
# ({doc}`/chapters/policy_gradient`): it makes good actions more likely and bad ones
# less likely. But it has no brake.
#
# PPO takes the smaller of the surrogate and of one whose ratio is held within
# $1 \pm \epsilon$:
#
# $$
# L(\rho, \hat A) = \min\bigl(\rho \hat A,\;
#     \operatorname{clip}(\rho, 1-\epsilon, 1+\epsilon)\, \hat A\bigr) .
# $$ (clipped-surrogate)
#
# The minimum makes it a pessimist. Once the policy has moved *with* the advantage
# beyond the range, the sample has no say any more. When it has moved *against* the
# advantage, the full gradient pulls it back.
#
# For $\hat A < 0$ the surrogate has no lower bound: a large ratio gives a large loss
# and a large step. The **dual clip** {cite:p}`ye2020` bounds it by $c \hat A$, with a
# constant $c > 1$:
#
# $$
# L_c(\rho, \hat A) =
# \begin{cases}
#   \max\bigl(L(\rho, \hat A),\; c\, \hat A\bigr) & \hat A < 0, \\
#   L(\rho, \hat A) & \hat A \ge 0 .
# \end{cases}
# $$ (dual-clip)


# %% tags=["export"]
def clipped_surrogate(
    log_prob_new: Tensor,
    log_prob_old: Tensor,
    adv: Tensor,
    clip_ratio: float = 0.2,
    dual_clip: float | None = None,
) -> Tensor:
    """Compute PPO's clipped objective of each sample, to be maximised.

    It knows log-probabilities only, so that one function serves discrete, continuous
    and hybrid actions. Gradient flows into ``log_prob_new`` alone.

    Args:
        log_prob_new: Log-probability of each action under the policy in training, of
            any shape; (B,) in this chapter.
        log_prob_old: The same under the policy that collected the batch.
        adv: Advantage estimates, of the same shape.
        clip_ratio: Half width of the clip range, greater than 0.
        dual_clip: Bound c of the dual clip, greater than 1, or None for no bound.

    Returns:
        The objective of each sample, in the shape of ``log_prob_new``.

    Raises:
        TypeError: If an argument is no tensor.
        ValueError: If shapes differ or a clip constant is out of its range.

    Source:
        Schulman et al. 2017, equation 7; Ye et al. 2020, equation 5 (dual clip).
    """
    check_clip(clip_ratio, dual_clip)
    check_tensor("log_prob_new", log_prob_new)
    check_shape("log_prob_old", log_prob_old, log_prob_new.shape)
    check_shape("adv", adv, log_prob_new.shape)

    # The old policy and the advantage are data. Cut off from the graph here, they are
    # constants whatever the caller hands over.
    log_prob_old, adv = log_prob_old.detach(), adv.detach()

    # The ratio {eq}`ratio`, from the difference of logarithms. Beyond $e^{\pm 20}$ it
    # stays constant: an infinite ratio would turn the gradient of every clipped sample
    # into $0 \cdot \infty$, which is not a number.
    ratio = (log_prob_new - log_prob_old).clamp(-20.0, 20.0).exp()

    # The clipped surrogate {eq}`clipped-surrogate`: the pessimist's choice.
    unclipped = ratio * adv
    clipped = ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio) * adv
    objective = torch.min(unclipped, clipped)

    # The dual clip {eq}`dual-clip`. For a good action with $c > 1 + \epsilon$ the bound
    # $c \hat A$ lies above everything that the clip leaves, so it must not touch it.
    if dual_clip is not None:
        bounded = torch.max(objective, dual_clip * adv)
        objective = torch.where(adv < 0, bounded, objective)
    return objective


def check_clip(clip_ratio: float, dual_clip: float | None) -> None:
    """Raise ``ValueError`` if a clip constant is out of its range (or NaN)."""
    if not clip_ratio > 0:
        raise ValueError(f"clip_ratio must be greater than 0, got {clip_ratio}")
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip must be greater than 1 or None, got {dual_clip}")


# %% [markdown]
# ## From samples to a loss
#
# An optimiser minimises, so the loss is the negative mean of the weighted objective,
#
# $$
# \mathcal L_\pi(\theta) = -\frac1B \sum_{b=1}^{B} w_b\, L_c\bigl(\rho_b(\theta), \hat A_b\bigr) .
# $$ (policy-loss)
#
# Weights of zero take samples out of the sum but not out of $B$. If you want the mean
# over the samples that count, pass `weight / weight.mean()`.
#
# A policy that is sure of itself too early stops exploring. The **entropy bonus** pays
# for uncertainty,
#
# $$
# \begin{aligned}
# \mathcal H(\theta) &= \frac1B \sum_{b=1}^{B} w_b\, H\bigl(\pi_\theta(\cdot \mid s_b)\bigr), \\
# H(\pi) &= -\sum_a \pi(a) \log \pi(a) .
# \end{aligned}
# $$ (entropy-bonus)
#
# The value function has an error of its own, $\mathcal L_V$ below. All three make up the
# total, with the weights $c_V$ and $c_H$:
#
# $$
# \mathcal L = \mathcal L_\pi + c_V\, \mathcal L_V - c_H\, \mathcal H .
# $$ (def-ppo-total)
#
# Mind the minus sign. Entropy is a reward here, and what is rewarded is subtracted from
# a loss.
#
# Two numbers tell how far the policy has moved. With $\ell = \log \rho$, the mean of
# $-\ell$ over the old policy's actions estimates the Kullback–Leibler divergence,
#
# $$
# k_1 = \frac1B \sum_b -\ell_b
# \;\approx\; \operatorname{KL}(\pi_{\text{old}} \,\|\, \pi_\theta) ,
# $$ (kl-k1)
#
# and the **clip fraction** counts the samples whose ratio is out of range,
#
# $$
# \text{clipfrac} = \frac1B \sum_b \mathbb 1\bigl[\rho_b > 1 + \epsilon
#     \;\text{or}\; \rho_b < 1 - \epsilon\bigr] .
# $$ (clip-fraction)


# %% tags=["export"]
def policy_error_from_log_prob(
    log_prob_new: Tensor,
    log_prob_old: Tensor,
    entropy: Tensor,
    adv: Tensor,
    weight: Tensor | None = None,
    clip_ratio: float = 0.2,
    dual_clip: float | None = None,
) -> tuple[ppo_policy_loss, ppo_info]:
    """Compute the PPO policy error from log-probabilities, whatever the action space.

    Args:
        log_prob_new: Log-probability of each action under the policy in training, (B,).
        log_prob_old: The same under the policy that collected the batch, (B,).
        entropy: Entropy of the policy in training at each state, (B,), in nats.
        adv: Advantage estimates, (B,).
        weight: One factor for each sample, (B,), or None for ones.
        clip_ratio: Half width of the clip range, greater than 0.
        dual_clip: Bound of the dual clip, greater than 1, or None for no bound.

    Returns:
        The losses (0-dimensional tensors) and two floats to watch.

    Raises:
        TypeError: If an argument is no tensor.
        ValueError: If shapes differ or a clip constant is out of its range.
    """
    objective = clipped_surrogate(
        log_prob_new, log_prob_old, adv, clip_ratio, dual_clip
    )
    check_shape("entropy", entropy, objective.shape)
    if weight is not None:
        check_shape("weight", weight, objective.shape)
        objective, entropy = objective * weight.detach(), entropy * weight.detach()

    # The policy loss {eq}`policy-loss` and the entropy {eq}`entropy-bonus`, each a mean
    # over the batch.
    loss = ppo_policy_loss(-objective.mean(), entropy.mean())

    # What we only watch needs no graph: the estimate {eq}`kl-k1` and the clip fraction
    # {eq}`clip-fraction`.
    with torch.no_grad():
        log_ratio = log_prob_new - log_prob_old
        ratio = log_ratio.exp()
        outside = (ratio > 1.0 + clip_ratio) | (ratio < 1.0 - clip_ratio)
        clipfrac = outside.count_nonzero().item() / outside.numel()
        info = ppo_info(0.0 - log_ratio.mean().item(), clipfrac)
    return loss, info


# %% [markdown]
# ### Discrete actions
#
# What is left is to turn logits into log-probabilities and entropies.
# `torch.distributions` does it.


# %% tags=["export"]
def ppo_policy_error(
    data: ppo_policy_data, clip_ratio: float = 0.2, dual_clip: float | None = None
) -> tuple[ppo_policy_loss, ppo_info]:
    """Compute the PPO policy error of discrete actions.

    Args:
        data: Logits (B, N), old logits (B, N), actions (B,) as integers, advantages
            (B,), weights (B,) or None.
        clip_ratio: Half width of the clip range, greater than 0.
        dual_clip: Bound of the dual clip, greater than 1, or None for no bound.

    Returns:
        ``ppo_policy_loss`` (0-dimensional tensors) and ``ppo_info`` (floats).

    Raises:
        TypeError: If a field is no tensor, or the actions are no integers.
        ValueError: If shapes differ, an action is out of range, a clip constant is out
            of its range or the result is not finite. The message names the field.

    Source:
        Schulman et al. 2017, equations 7 and 9.
    """
    logit_new, logit_old, action, adv, weight = data
    check_discrete(logit_new, logit_old, action)

    # The old logits are constants. Without `detach` their gradient would cancel the new
    # ones' wherever both come from one network.
    dist_new = Categorical(logits=logit_new, validate_args=False)
    dist_old = Categorical(logits=logit_old.detach(), validate_args=False)
    loss, info = policy_error_from_log_prob(
        dist_new.log_prob(action),
        dist_old.log_prob(action),
        dist_new.entropy(),
        adv,
        weight,
        clip_ratio,
        dual_clip,
    )
    check_finite(
        (*(part.item() for part in loss), *info),
        logit_new=logit_new,
        logit_old=logit_old,
        adv=adv,
        weight=weight,
    )
    return loss, info


def check_discrete(logit_new: Any, logit_old: Any, action: Any) -> None:
    """Raise if logits and actions do not fit together; see ``ppo_policy_error``."""
    shape = check_logit("logit_new", logit_new)
    check_shape("logit_old", logit_old, shape)
    check_action(action, *shape)


# %% [markdown]
# ### Continuous actions
#
# A Gaussian policy gives a mean $\mu$ and a deviation $\sigma$ for each of the $A$
# numbers of an action. The density of the whole action is the product of the $A$
# densities, so its logarithm is a sum. `Independent` takes that sum. The surrogate
# does not change. The sum in {eq}`entropy-bonus` becomes an integral. It may be negative,
# when the densities are high.


# %% tags=["export"]
def ppo_policy_error_continuous(
    data: ppo_policy_data, clip_ratio: float = 0.2, dual_clip: float | None = None
) -> tuple[ppo_policy_loss, ppo_info]:
    """Compute the PPO policy error of continuous actions.

    Args:
        data: ``logit_new`` and ``logit_old`` are mappings (or tree tensors) with ``mu``
            and ``sigma``, each (B, A); actions (B, A), advantages (B,), weights (B,) or
            None.
        clip_ratio: Half width of the clip range, greater than 0.
        dual_clip: Bound of the dual clip, greater than 1, or None for no bound.

    Returns:
        ``ppo_policy_loss`` (0-dimensional tensors) and ``ppo_info`` (floats).

    Raises:
        TypeError: If a field is of the wrong kind.
        ValueError: If shapes differ, a deviation is not positive, a clip constant is
            out of its range or the result is not finite. The message names the field.

    Source:
        Schulman et al. 2017, equations 7 and 9.
    """
    logit_new, logit_old, action, adv, weight = data
    mu_new, sigma_new = mean_and_deviation("logit_new", logit_new)
    mu_old, sigma_old = mean_and_deviation("logit_old", logit_old)
    check_shape("logit_old.mu", mu_old, mu_new.shape)
    check_shape("action", action, mu_new.shape)

    # `Independent(..., 1)` sums the log-densities over the last dimension. Without it
    # log-probabilities have the shape (B, A), and the shape check below refuses them.
    dist_new = Independent(Normal(mu_new, sigma_new, validate_args=False), 1)
    dist_old = Independent(
        Normal(mu_old.detach(), sigma_old.detach(), validate_args=False), 1
    )
    loss, info = policy_error_from_log_prob(
        dist_new.log_prob(action),
        dist_old.log_prob(action),
        dist_new.entropy(),
        adv,
        weight,
        clip_ratio,
        dual_clip,
    )
    check_finite(
        (*(part.item() for part in loss), *info),
        mu_new=mu_new,
        sigma_new=sigma_new,
        mu_old=mu_old,
        sigma_old=sigma_old,
        action=action,
        adv=adv,
        weight=weight,
    )
    return loss, info


def mean_and_deviation(name: str, logit: Any) -> tuple[Tensor, Tensor]:
    """Take ``mu`` and ``sigma`` out of a mapping; raise if they do not fit."""
    expected = f"{name} must be a mapping with the keys 'mu' and 'sigma'"
    if isinstance(logit, Tensor) or not hasattr(logit, "keys"):
        raise TypeError(f"{expected}, got {type(logit).__name__}")
    if not {"mu", "sigma"} <= set(logit.keys()):
        raise ValueError(f"{expected}, got the keys {sorted(logit.keys())}")
    mu, sigma = logit["mu"], logit["sigma"]
    if not isinstance(mu, Tensor) or mu.dim() != 2 or mu.numel() == 0:
        got = tuple(mu.shape) if isinstance(mu, Tensor) else type(mu).__name__
        raise ValueError(f"{name}['mu'] must be a tensor of shape (B, A), got {got}")
    check_shape(f"{name}['sigma']", sigma, mu.shape)
    if (sigma <= 0).any():
        raise ValueError(f"{name}['sigma'] must be positive, got {sigma.min().item()}")
    return mu, sigma


# %% [markdown]
# ## The value error
#
# The value network regresses to a return $G$ that was computed when the batch was
# collected. Some implementations clip this error as well, around the value
# $V_{\text{old}}$ of that time:
#
# $$
# \begin{aligned}
# V_{\text{clip}} &= V_{\text{old}}
#     + \operatorname{clip}(V_\theta - V_{\text{old}}, -\epsilon_V, \epsilon_V), \\
# \mathcal L_V &= \frac{1}{2B} \sum_b w_b
#     \max\bigl((G_b - V_{\theta,b})^2,\; (G_b - V_{\text{clip},b})^2\bigr) .
# \end{aligned}
# $$ (value-clip)
#
# The half width $\epsilon_V$ is measured in the units of the return. A width of 0.2
# suits returns near 1. With returns near 100 it stops each value 0.2 away from where it
# was. So here $\epsilon_V$ is a constant of its own, and off unless you ask for it.


# %% tags=["export"]
class ppo_value_data(NamedTuple):
    """What the value error reads: one batch of B samples.

    Attributes:
        value_new: Values of the network in training, (B,).
        value_old: Values at the time of collection, (B,). Read only with a value clip.
        return_: Returns to regress to, (B,).
        weight: One factor for each sample, (B,), or None for ones.
    """

    value_new: Tensor
    value_old: Tensor | None
    return_: Tensor
    weight: Tensor | None


def ppo_value_error(data: ppo_value_data, value_clip: float | None = None) -> Tensor:
    """Compute half the mean squared error of the values, clipped on request.

    Args:
        data: New values, old values, returns and weights, each (B,); the weights may be
            None, and so may the old values when there is no clip.
        value_clip: Half width of the clip range in units of the return, greater than 0,
            or None for no clip.

    Returns:
        The error, a 0-dimensional tensor.

    Raises:
        TypeError: If a field is no tensor.
        ValueError: If shapes differ, ``value_clip`` is not positive or the result is
            not finite.

    Source:
        OpenAI baselines' ppo2, which the paper does not mention; Huang et al. 2022,
        detail 9.
    """
    value_new, value_old, return_, weight = data
    check_tensor("value_new", value_new)
    check_shape("return_", return_, value_new.shape)
    error = (return_.detach() - value_new).square()

    # The larger of the two errors {eq}`value-clip`: a value that has moved far enough
    # towards its return gets no gradient, one that has moved away gets all of it.
    if value_clip is not None:
        if not value_clip > 0:
            raise ValueError(f"value_clip must be greater than 0, got {value_clip}")
        anchor = check_shape("value_old", value_old, value_new.shape).detach()
        clipped = anchor + (value_new - anchor).clamp(-value_clip, value_clip)
        error = torch.max(error, (return_.detach() - clipped).square())

    if weight is not None:
        check_shape("weight", weight, value_new.shape)
        error = error * weight.detach()
    loss = 0.5 * error.mean()
    check_finite(
        (loss.item(),),
        value_new=value_new,
        value_old=value_old,
        return_=return_,
        weight=weight,
    )
    return loss


# %% [markdown]
# ## A better estimate of the divergence
#
# The estimate $k_1$ is right on average, yet a single batch often gives a negative
# number for a quantity that cannot be negative. Adding a term of mean zero mends it
# {cite:p}`schulman2020`:
#
# $$
# k_3 = \frac1B \sum_b \bigl(e^{\ell_b} - 1 - \ell_b\bigr) \;\ge\; 0 .
# $$ (kl-k3)
#
# The added term $e^\ell - 1$ has mean zero because the ratio has mean one. It cancels
# most of the noise, since near $\ell = 0$ the sum is $\ell^2 / 2$.


# %% tags=["export"]
def approx_kl_k3(log_prob_new: Tensor, log_prob_old: Tensor) -> Tensor:
    """Estimate the divergence from the old to the new policy without negative values.

    Args:
        log_prob_new: Log-probability of each action under the new policy, (B,).
        log_prob_old: The same under the policy that drew the actions, (B,).

    Returns:
        The estimate in nats, a 0-dimensional tensor without gradient.

    Raises:
        TypeError: If an argument is no tensor.
        ValueError: If the shapes differ.

    Source:
        Schulman 2020, the estimator called k3.
    """
    check_tensor("log_prob_new", log_prob_new)
    check_shape("log_prob_old", log_prob_old, log_prob_new.shape)
    # The estimate {eq}`kl-k3`. `expm1` keeps the digits that $e^\ell - 1$ loses when
    # the policies are close, which is the usual case.
    with torch.no_grad():
        log_ratio = log_prob_new - log_prob_old
        return (log_ratio.expm1() - log_ratio).mean()


# %% [markdown]
# ## The same loss with its own backward pass
#
# The plain form above asks autograd to record some twenty operations, and then to walk
# back through all of them. The gradient has a closed form that needs fewer. Derive it
# once and the loss runs two to four times faster, with the same numbers
# ({doc}`/docs/results`).
#
# Write $z_j$ for the logits of one sample, $p_j$ for their softmax and $a$ for the action
# taken. Two derivatives are enough:
#
# $$
# \begin{aligned}
# \frac{\partial \log p_a}{\partial z_j} &= \mathbb 1[j = a] - p_j , \\
# \frac{\partial H}{\partial z_j} &= -p_j\,(\log p_j + H) .
# \end{aligned}
# $$ (def-softmax-derivatives)
#
# Let $\chi_b$ be 1 where the surrogate of sample $b$ still moves with the ratio, and
# 0 where a clip holds it. Where it is 1, the surrogate is $\rho \hat A$, whose derivative with
# respect to $\log p_a$ is $\rho \hat A$ again. So the gradients of the policy loss and
# of the entropy are
#
# $$
# \begin{aligned}
# \frac{\partial \mathcal L_\pi}{\partial z_j}
#   &= -\frac{w}{B}\, \chi\, \rho \hat A\, \bigl(\mathbb 1[j = a] - p_j\bigr), \\
# \frac{\partial \mathcal H}{\partial z_j}
#   &= -\frac{w}{B}\, p_j\,(\log p_j + H) .
# \end{aligned}
# $$ (fused-gradient)
#
# The upper clip, the lower clip and the dual clip all hold the ratio itself. Only the
# sign of the advantage decides between which bounds. A good action's ratio is held below $1 + \epsilon$, a bad one's
# between $1 - \epsilon$ and $c$. So $\chi_b$ is 1 exactly where holding changed
# nothing.
#
# One more thing costs time. On a CPU, `log_softmax` over a short last dimension is up to
# ten times slower than over the first dimension of the transposed logits. The fused
# form therefore works on the shape $(N, B)$.


# %% tags=["export"]
class FusedPolicyError(torch.autograd.Function):
    """The discrete policy error as one node of the graph, with its gradient derived."""

    @staticmethod
    def forward(
        ctx: Any,
        logit_new: Tensor,
        logit_old: Tensor,
        action: Tensor,
        adv: Tensor,
        weight: Tensor | None,
        clip_ratio: float,
        dual_clip: float | None,
    ) -> tuple[Tensor, Tensor, float, float]:
        """Compute both losses and, as floats, the divergence and the clip fraction."""
        # Log-probabilities of the shape (N, B). Their difference at the action taken,
        # of the shape (1, B), is the logarithm of {eq}`ratio`.
        new = logit_new.t().log_softmax(0)
        old = logit_old.t().log_softmax(0)
        taken = action.long().unsqueeze(0)
        log_ratio = (new - old).gather(0, taken)
        ratio = log_ratio.exp()

        # Hold the ratio as {eq}`clipped-surrogate` and {eq}`dual-clip` do. The bounds
        # $e^{\pm 20}$ are those of the plain form. Before the dual clip, the two agree
        # exactly where the ratio is in range.
        good = ratio.clamp(LOWEST_RATIO, 1.0 + clip_ratio)
        bad = ratio.clamp(max(1.0 - clip_ratio, LOWEST_RATIO), HIGHEST_RATIO)
        outside = good != bad
        if dual_clip is not None:
            bad = bad.clamp(max=dual_clip)
        held = torch.where(adv.signbit(), bad, good)

        # A sample's share of a mean is $w / B$; the minus sign makes it a loss. The sum
        # is {eq}`policy-loss`.
        batch = adv.numel()
        if weight is None:
            share = torch.full_like(adv, -1.0 / batch)
        else:
            share = weight / -batch
        loss = held * (adv * share)
        policy_loss = loss.sum()

        # The entropy {eq}`entropy-bonus`. The logarithm of a probability zero becomes a
        # finite number, because zero times infinity is not zero. At $-10^4$ the
        # exponential is zero in every precision.
        prob = new.exp()
        plogp = new.clamp_min_(-1e4).mul_(prob)
        minus_entropy = plogp.sum(0)
        entropy = (minus_entropy * share).sum()

        # A loss that is proportional to the ratio is its own derivative with respect to
        # $\log p_a$. Where a clip holds the ratio, there is none.
        slope = loss.masked_fill_(held != ratio, 0.0)
        ctx.save_for_backward(prob, plogp, minus_entropy, slope, share, taken)

        # The estimate {eq}`kl-k1` and the clip fraction {eq}`clip-fraction`.
        kl = 0.0 - log_ratio.sum().item() / batch
        clipfrac = outside.count_nonzero().item() / batch
        return policy_loss, entropy, kl, clipfrac

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """Return the gradient of the new logits; everything else is a constant."""
        # Autograd records these lines only for a second derivative, and that would be a
        # wrong one: what forward saved counts as constant.
        if torch.is_grad_enabled():
            raise RuntimeError("the fused policy error can be differentiated only once")
        prob, plogp, minus_entropy, slope, share, taken = ctx.saved_tensors
        slope, share = slope * grads[0], share * grads[1]

        # Both gradients {eq}`fused-gradient`, sorted: what has the factor $p_j$ in
        # common is subtracted at once, and $\mathbb 1[j = a]$ adds to one logit of each
        # sample.
        common = slope.addcmul(share, minus_entropy)
        grad = (plogp * share).addcmul(prob, common, value=-1.0)
        grad.scatter_add_(0, taken, slope)
        return grad.t(), None, None, None, None, None, None


# The plain form holds the ratio between these, the exponentials of minus and plus 20.
LOWEST_RATIO, HIGHEST_RATIO = math.exp(-20.0), math.exp(20.0)


def fused_ppo_policy_error(
    data: ppo_policy_data, clip_ratio: float = 0.2, dual_clip: float | None = None
) -> tuple[ppo_policy_loss, ppo_info]:
    """Compute what ``ppo_policy_error`` computes, two to four times faster.

    Values and gradients agree with the plain form. Gradients of gradients do not exist.

    Args:
        data: Logits (B, N), old logits (B, N), actions (B,) as integers, advantages
            (B,), weights (B,) or None.
        clip_ratio: Half width of the clip range, greater than 0.
        dual_clip: Bound of the dual clip, greater than 1, or None for no bound.

    Returns:
        ``ppo_policy_loss`` (0-dimensional tensors) and ``ppo_info`` (floats).

    Raises:
        TypeError: If a field is no tensor, or the actions are no integers.
        ValueError: If shapes differ, an action is out of range, a clip constant is out
            of its range or the result is not finite. The message names the field.
    """
    logit_new, logit_old, action, adv, weight = data
    check_clip(clip_ratio, dual_clip)
    check_discrete(logit_new, logit_old, action)
    check_shape("adv", adv, action.shape)
    if weight is not None:
        check_shape("weight", weight, action.shape)

    policy_loss, entropy_loss, *info = FusedPolicyError.apply(
        logit_new, logit_old, action, adv, weight, clip_ratio, dual_clip
    )
    check_finite(
        (policy_loss.item(), entropy_loss.item(), *info),
        logit_new=logit_new,
        logit_old=logit_old,
        adv=adv,
        weight=weight,
    )
    return ppo_policy_loss(policy_loss, entropy_loss), ppo_info(*info)


# %% [markdown]
# ## See it: four samples by hand
#
# Four samples, $\epsilon = 0.2$. Two actions were good ($\hat A = 1$), two were bad
# ($\hat A = -1$); of each pair, the policy made one more likely and one less likely. The
# last column is the derivative of the objective with respect to $\log \pi_\theta(a)$.

# %%
ratio = torch.tensor([1.5, 0.5, 1.5, 0.5], dtype=torch.float64)
adv = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
log_prob = ratio.log().requires_grad_()
objective = clipped_surrogate(log_prob, torch.zeros_like(log_prob), adv)
objective.sum().backward()

print("ratio  advantage  objective  derivative")
for row in zip(ratio, adv, objective, log_prob.grad, strict=True):
    print("{:5.1f}  {:9.0f}  {:9.2f}  {:10.2f}".format(*(x.item() for x in row)))

# %% [markdown]
# **What to notice.** The first and the last sample have no derivative: the policy has
# already gone their way, far enough. The two in the middle went the wrong way, and they
# pull with all their weight. The third one pulls the harder the further it has gone.
# That is the one that the dual clip tames.
#
# ## See it: the objective and its gradient
#
# Move the sliders. Beside each objective stands its derivative with respect to
# $\log \pi_\theta(a)$, both over the ratio. The dotted line is $\rho = 1$. All curves come from `clipped_surrogate` and
# from autograd.

# %% tags=["hide-input"]
import json

from IPython.display import HTML

EPSILONS, DUAL_CLIPS = [0.1, 0.2, 0.3, 0.4], [None, 3.0, 2.5, 2.0, 1.5, 1.2]


def curves(sign: float, epsilon: float, c: float | None) -> list[str]:
    """Return the objective and its gradient over the ratio, as SVG paths."""
    ratio = torch.linspace(0.01, 3.6, 360, dtype=torch.float64)
    log_prob = ratio.log().requires_grad_()
    adv = torch.full_like(ratio, sign)
    objective = clipped_surrogate(log_prob, torch.zeros_like(ratio), adv, epsilon, c)
    objective.sum().backward()
    # A panel is 300 wide for ratios of 0 to 3.6 and 120 high for values of -4 to 4.
    x = (ratio / 3.6 * 300).tolist()
    paths = []
    for curve in (objective.detach(), log_prob.grad):
        y = (60 - curve * 15).tolist()
        points = [
            (a, b)
            for i, (a, b) in enumerate(zip(x, y, strict=True))
            # A point on a straight line needs no place in the path.
            if i in (0, 359) or abs(y[i - 1] - 2 * b + y[i + 1]) > 1e-6
        ]
        paths.append("M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in points))
    return paths


def panel(title: str, colour: str) -> str:
    """Return the frame of one panel, and an empty curve."""
    ticks = "".join(
        f'<text x="{r / 3.6 * 300:.0f}" y="134" text-anchor="middle">{r}</text>'
        for r in (1, 2, 3)
    )
    return f"""<svg viewBox="-25 -22 335 160" role="img" aria-label="{title}, over the
      ratio" fill="currentColor" font-size="13"><text y="-8">{title}</text>
      <text x="300" y="134" text-anchor="end">ratio</text>{ticks}
      <text x="-6" y="34" text-anchor="end">2</text>
      <text x="-6" y="64" text-anchor="end">0</text>
      <text x="-6" y="94" text-anchor="end">−2</text>
      <path d="M0,0V120H300M0,60H300" fill="none" stroke="currentColor" opacity=".5"/>
      <path d="M83.3,0V120" stroke="currentColor" stroke-dasharray="3 4" opacity=".5"/>
      <path class="curve" fill="none" stroke="{colour}" stroke-width="2.5"/></svg>"""


paths = [
    [curves(1.0, epsilon, c) + curves(-1.0, epsilon, c) for c in DUAL_CLIPS]
    for epsilon in EPSILONS
]
panels = "".join(
    panel(f"{what} for Â = {sign}", colour)
    for sign, colour in (("1", "#2f7fd1"), ("−1", "#d9541e"))
    for what in ("objective", "gradient")
)
HTML(f"""
<figure class="slider" id="clip-slider" style="margin: 0; max-width: 46rem">
  <p><label>clip range ε <input type="range" min="0" max="3" value="1"></label>
     <output style="margin-right: 1.5rem">0.2</output>
     <label>dual clip c <input type="range" min="0" max="5" value="0"></label>
     <output>off</output></p>
  <div style="display: grid; gap: .5rem; grid-auto-flow: row;
              grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr))">{panels}</div>
</figure>
<script>
(() => {{
  const figure = document.getElementById("clip-slider");
  const paths = {json.dumps(paths)};
  const labels = [{json.dumps(EPSILONS)}, {json.dumps([c or "off" for c in DUAL_CLIPS])}];
  const inputs = figure.querySelectorAll("input");
  const outputs = figure.querySelectorAll("output");
  const draw = () => {{
    const [e, c] = [...inputs].map((input) => Number(input.value));
    figure.querySelectorAll(".curve").forEach((curve, i) =>
      curve.setAttribute("d", paths[e][c][i]));
    outputs[0].textContent = labels[0][e];
    outputs[1].textContent = labels[1][c];
  }};
  inputs.forEach((input) => input.addEventListener("input", draw));
  draw();
}})();
</script>
""")

# %% [markdown]
# **What to notice.** For a good action the gradient ends at $1 + \epsilon$, whatever the
# dual clip. For a bad one it starts at $1 - \epsilon$ and grows without bound; the dual
# clip ends it at $c$. Everywhere else the gradient is the ratio times the advantage, as
# if there were no clip at all.
#
# In one table, with `live` for a gradient and 0 for none:
#
# | advantage | below, $\rho < 1-\epsilon$ | inside | above, $\rho > 1+\epsilon$ | far above, $\rho > c$, with dual clip |
# |---|---|---|---|---|
# | $\hat A > 0$ | live | live | 0 | 0 |
# | $\hat A < 0$ | 0 | live | live, grows with $\rho$ | 0 |
#
# ## See it: three estimates of one divergence
#
# Two policies over six actions, 2,000 batches of 64 actions drawn from the old one. The
# third estimate, $k_2$, is the mean of $\ell^2 / 2$.

# %% mystnb={"image": {"alt": "Histograms of three estimates of the divergence: k1 is wide and partly negative, k2 and k3 are narrow and positive"}}
import matplotlib.pyplot as plt

torch.manual_seed(0)
logit_old = torch.randn(6, dtype=torch.float64)
logit_new = logit_old + 0.4 * torch.randn(6, dtype=torch.float64)
old, new = Categorical(logits=logit_old), Categorical(logits=logit_new)
truth = torch.distributions.kl_divergence(old, new).item()

action = old.sample((2000, 64))
log_ratio = new.log_prob(action) - old.log_prob(action)
k1 = (-log_ratio).mean(1)
k2 = (log_ratio.square() / 2).mean(1)
k3 = torch.stack([approx_kl_k3(row, torch.zeros_like(row)) for row in log_ratio])

fig, ax = plt.subplots(figsize=(7, 3))
bins = torch.linspace(-0.06, 0.1, 161).numpy()
for name, estimate in (("$k_1$", k1), ("$k_2$", k2), ("$k_3$", k3)):
    ax.hist(estimate.numpy(), bins, histtype="step", linewidth=1.5, label=name)
ax.axvline(0, color="#808080", linewidth=0.8)
ax.axvline(truth, linestyle="--", color="C3", label="true divergence")
ax.set(xlabel="estimate from one batch, in nats", ylabel="batches")
ax.legend()
fig.tight_layout()

print(f"true {truth:.4f}")
for name, estimate in (("k1", k1), ("k2", k2), ("k3", k3)):
    negative = (estimate < 0).double().mean()
    print(
        f"{name}   {estimate.mean():.4f}, standard deviation {estimate.std():.4f}, "
        f"negative in {negative:.0%} of the batches"
    )

# %% [markdown]
# **What to notice.** All three are near the truth on average, $k_2$ with a small bias.
# Only $k_1$ is ever negative, and its spread is many times that of the others. Log $k_1$
# if you compare with other people's logs; stop early on $k_3$.
#
# ## Traps
#
# ### Trap: a dual clip below one
#
# PPOxFamily's own test runs the loss with a dual clip of 0.5. With $c < 1$ the bound
# $c \hat A$ lies above the surrogate already at $\rho = 1$, and bad actions are never
# unlearned. The test did not notice: it draws its advantages from $[0, 1)$, where the
# dual clip never acts.

# %%
log_prob = torch.zeros(1, requires_grad=True)
surrogate = log_prob.exp() * -1.0
torch.max(surrogate, 0.5 * torch.tensor([-1.0])).sum().backward()
print(f"gradient for a bad action, c = 0.5: {log_prob.grad.item():.1f}")

try:
    clipped_surrogate(log_prob, torch.zeros(1), -torch.ones(1), dual_clip=0.5)
except ValueError as error:
    print(f"here: {error}")

# %% [markdown]
# ### Trap: the dual clip on good actions
#
# DI-engine's error for continuous actions bounds *all* samples by $c \hat A$. For a good
# action and $c > 1 + \epsilon$ that bound is above anything the clip leaves. The maximum
# always takes it, and a constant has no gradient: good actions are never learned.

# %%
log_prob = torch.zeros(1, requires_grad=True)
adv = torch.ones(1)
objective = torch.min(log_prob.exp() * adv, log_prob.exp().clamp(0.8, 1.2) * adv)
torch.max(objective, 3.0 * adv).sum().backward()
print(f"bound on all signs: gradient {log_prob.grad.item():.1f}")

log_prob.grad = None
clipped_surrogate(log_prob, torch.zeros(1), adv, dual_clip=3.0).sum().backward()
print(f"bound on bad ones:  gradient {log_prob.grad.item():.1f}")

# %% [markdown]
# ### Trap: an old policy with a gradient
#
# The same test builds the old logits from the new ones, inside the graph. What pulls the
# new policy up pulls the old one up as well, the ratio hardly moves, and the two
# gradients cancel.

# %%
torch.manual_seed(0)
logit = torch.randn(64, 32, requires_grad=True)
action, adv = torch.randint(0, 32, (64,)), torch.randn(64)
noise = 0.1 * torch.rand(64, 32)
for name, old in (("attached", logit + noise), ("detached", (logit + noise).detach())):
    log_prob_new = Categorical(logits=logit).log_prob(action)
    log_prob_old = Categorical(logits=old).log_prob(action)
    loss = -((log_prob_new - log_prob_old).exp() * adv).mean()
    (gradient,) = torch.autograd.grad(loss, logit)
    print(f"{name}: gradient norm {gradient.norm():.5f}")

# %% [markdown]
# `clipped_surrogate` detaches the old policy itself, so it does not matter what comes in.
#
# ### Trap: the sign of the entropy
#
# PPOxFamily's comment prints the bonus as $\sum_a \pi(a) \log \pi(a)$. That is *minus*
# the entropy. Its code returns the entropy itself. Its test then adds both returned
# losses, although a comment says to subtract. A step down that sum makes the policy
# *more* certain. Here is one logit pair, after a hundred steps each way.

# %%
for sign, name in ((-1, "policy_loss - weight * entropy"), (1, "their sum")):
    logit = torch.tensor([[0.5, -0.5]], requires_grad=True)
    for _ in range(100):
        data = ppo_policy_data(
            logit, logit, torch.zeros(1, dtype=torch.long), torch.zeros(1), None
        )
        loss, _ = ppo_policy_error(data)
        (gradient,) = torch.autograd.grad(
            loss.policy_loss + sign * loss.entropy_loss, logit
        )
        logit = (logit - 0.1 * gradient).detach().requires_grad_()
    print(f"{name:31s} probability of action 0: {logit.softmax(1)[0, 0]:.2f}")

# %% [markdown]
# ### Trap: a ratio that overflows
#
# One action whose log-probability rose by 100 makes an infinite ratio. The clipped loss
# looks fine. Its gradient is zero times infinity.

# %%
log_prob = torch.tensor([100.0], requires_grad=True)
ratio = log_prob.exp()
loss = -torch.min(ratio, ratio.clamp(0.8, 1.2)).mean()
loss.backward()
print(f"written plainly: loss {loss.item():.1f}, gradient {log_prob.grad.item()}")

log_prob.grad = None
objective = clipped_surrogate(log_prob, torch.zeros(1), torch.ones(1))
objective.sum().backward()
print(f"here: objective {objective.item():.1f}, gradient {log_prob.grad.item()}")

# %% [markdown]
# ### Trap: a value clip in the wrong unit
#
# Many implementations use one constant, 0.2, for the ratio and for the value. The ratio
# has no unit; the value has that of the return. Here the return is 100, and the network
# is allowed to come nearer by 0.2.

# %%
value = torch.tensor([0.1, 0.3, 50.0], requires_grad=True)
data = ppo_value_data(value, torch.zeros(3), torch.full((3,), 100.0), None)
for clip in (0.2, None):
    (gradient,) = torch.autograd.grad(ppo_value_error(data, value_clip=clip), value)
    shown = ", ".join(f"{g:6.2f}" for g in gradient.tolist())
    print(f"value_clip={clip}: gradients at values 0.1, 0.3, 50: {shown}")

# %% [markdown]
# ## What well-known implementations do
#
# | question | this chapter | CleanRL | Stable-Baselines3 | Spinning Up | DI-engine | PPOxFamily |
# |---|---|---|---|---|---|---|
# | old log-probability | stored or from logits, detached | stored | stored | stored | from logits | from logits, not detached |
# | dual clip | bad actions only, $c > 1$ checked | none | none | none | discrete: bad actions; continuous: all | bad actions, $c$ not checked |
# | value clip | own width, off | width of the ratio, on | own width, off | none | width of the ratio, on | promised in the text |
# | divergence logged | $k_1$; $k_3$ beside it | $k_1$ and $k_3$ | $k_3$ | $k_1$ | $k_1$ | $k_1$ |
# | early stop on the divergence | left to the training loop | optional | optional | yes | no | no |
#
# ## On the best device
#
# The same functions run where the tensors are. The fused form is compared with the plain
# one on the way.

# %%
from literate_rl.agents import best_device

device = best_device()
torch.manual_seed(0)
logit_new = torch.randn(512, 6, device=device, requires_grad=True)
logit_old = logit_new.detach() + 0.3 * torch.randn(512, 6, device=device)
action = torch.randint(0, 6, (512,), device=device)
adv = torch.randn(512, device=device)
data = ppo_policy_data(logit_new, logit_old, action, adv, None)

gradients = []
for error in (ppo_policy_error, fused_ppo_policy_error):
    loss, info = error(data, dual_clip=3.0)
    total = loss.policy_loss - 0.01 * loss.entropy_loss
    gradients.append(torch.autograd.grad(total, logit_new)[0])
    print(
        f"{error.__name__:23s} loss {loss.policy_loss.item():.5f}, "
        f"entropy {loss.entropy_loss.item():.5f}, clipfrac {info.clipfrac:.3f}"
    )
difference = (gradients[0] - gradients[1]).abs().max().item()
print(f"ran on {device.type}; the gradients agree: {difference < 1e-6}")

# %% [markdown]
# ## Exercises
#
# Each one grades itself: replace the `...` and run the cell.
#
# ### Exercise 1: the gradient by hand
#
# Write the derivative of the clipped surrogate (without dual clip) with respect to
# $\log \pi_\theta(a)$, from the ratio and the advantage alone.

# %%
from literate_rl.agents import grade


def answer(ratio: float, adv: float, epsilon: float = 0.2) -> float:
    """Return the derivative of the clipped surrogate by the log-probability."""
    return ...


def slope_by_autograd(ratio: float, adv: float, epsilon: float = 0.2) -> float:
    """Return the same, by the chapter's code."""
    log_prob = torch.tensor(ratio, dtype=torch.float64).log().requires_grad_()
    zero = torch.zeros_like(log_prob)
    clipped_surrogate(log_prob, zero, zero + adv, epsilon).backward()
    return log_prob.grad.item()


corners = [
    (0.5, 1.0),
    (0.5, -1.0),
    (1.1, 2.0),
    (1.5, 1.0),
    (1.5, -3.0),
    (2.0, -1.0, 0.5),
]
grade(answer, slope_by_autograd, *corners)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(ratio: float, adv: float, epsilon: float = 0.2) -> float:
    """A sample is dead once the policy has gone its way far enough."""
    gone = ratio > 1 + epsilon if adv > 0 else ratio < 1 - epsilon
    return 0.0 if gone else ratio * adv


grade(answer, slope_by_autograd, *corners)

# %% [markdown]
# ### Exercise 2: repair a test
#
# PPOxFamily's test passes a dual clip of 0.5 and advantages from $[0, 1)$, so it cannot
# find a wrong dual clip. Return a pair: the largest dual clip that a loss must refuse,
# and the sign (1.0 or -1.0) of the advantages on which the dual clip acts.


# %%
def answer() -> tuple[float, float]:
    """Return the two numbers."""
    return ...


grade(answer, lambda: (1.0, -1.0), ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer() -> tuple[float, float]:
    """A dual clip of one is useless at best, and only bad actions are bounded."""
    return (1.0, -1.0)


grade(answer, lambda: (1.0, -1.0), ())

# %% [markdown]
# ### Exercise 3: another divergence
#
# The estimates above are for $\operatorname{KL}(\pi_{\text{old}}
# \| \pi_\theta)$ from actions of $\pi_{\text{old}}$. Write one for the other direction,
# $\operatorname{KL}(\pi_\theta \| \pi_{\text{old}})$, from the same actions, that is never
# negative. *Hint: weigh with the ratio, and add a term of mean zero.*


# %%
def answer(log_ratio: list[float]) -> float:
    """Estimate KL(new || old) from log-ratios at the old policy's actions."""
    return ...


def reverse_kl_reference(log_ratio: list[float]) -> float:
    """The mean of the ratio times its logarithm, minus what has mean zero."""
    ell = torch.tensor(log_ratio, dtype=torch.float64)
    return (ell.exp() * ell - ell.expm1()).mean().item()


grade(answer, reverse_kl_reference, ([0.0],), ([0.1, -0.2],), ([1.0, -1.0, 0.5],))


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(log_ratio: list[float]) -> float:
    """E[rho log rho] is the divergence; rho - 1 has mean zero."""
    return sum(math.exp(ell) * ell - (math.exp(ell) - 1.0) for ell in log_ratio) / len(
        log_ratio
    )


grade(answer, reverse_kl_reference, ([0.0],), ([0.1, -0.2],), ([1.0, -1.0, 0.5],))

# %% [markdown]
# ## References
#
# The loss is from {cite:t}`schulman2017`, the dual clip from {cite:t}`ye2020`, the
# estimates of the divergence from {cite:t}`schulman2020`. Which of PPO's details matter
# is measured by {cite:t}`engstrom2020`, {cite:t}`andrychowicz2021` and
# {cite:t}`huang2022`.
