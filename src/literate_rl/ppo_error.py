# Generated from chapters/ppo_error.py (edit there); digest 012dd1e32b21917f
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
