# Generated from chapters/ppo_error.py (edit there); digest 68e38cad28dd813d
"""The PPO error: clipped surrogate, entropy bonus, value error and KL estimates."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple, TypedDict

import torch
from annotated_types import Gt
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

from literate_rl.ground.signatures import (
    Float,
    Int,
    Positive,
    below,
    check_finite,
    checked,
)

__all__ = [
    "approx_kl_k3",
    "clipped_surrogate",
    "policy_error_from_log_prob",
    "ppo_info",
    "ppo_policy_data",
    "ppo_policy_data_continuous",
    "ppo_policy_error",
    "ppo_policy_error_continuous",
    "ppo_policy_loss",
    "ppo_value_data",
    "ppo_value_error",
]


AboveOne = Annotated[float, Gt(1)]


@checked
def clipped_surrogate(
    log_prob_new: Float[Tensor, "*B"],
    log_prob_old: Float[Tensor, "*B"],
    adv: Float[Tensor, "*B"],
    clip_ratio: Positive = 0.2,
    dual_clip: AboveOne | None = None,
) -> Float[Tensor, "*B"]:
    """Compute PPO's clipped objective of each sample, to be maximised.

    Gradient flows into ``log_prob_new`` alone. That the result is finite is left to the
    loss that sums it up.

    Args:
        log_prob_new: Log-probability of each action under the policy in training.
        log_prob_old: The same under the policy that collected the batch.
        adv: Advantage estimates.
        clip_ratio: Half width of the clip range.
        dual_clip: Bound c of the dual clip, or None for no bound.

    Source: Schulman et al. 2017, equation 7; Ye et al. 2020, equation 5 (dual clip).
    """
    # The old policy and the advantage are data. Cut off from the graph here, they are
    # constants, whatever the caller hands over.
    log_prob_old, adv = log_prob_old.detach(), adv.detach()

    # The ratio {eq}`ratio`. Beyond $e^{\pm 20}$ it stays constant: an infinite ratio
    # would make the gradient of a clipped sample $0 \cdot \infty$, which is no number.
    ratio = (log_prob_new - log_prob_old).clamp(-20.0, 20.0).exp()

    # The pessimist's choice {eq}`clipped-surrogate`.
    unclipped = ratio * adv
    clipped = ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio) * adv
    objective = torch.min(unclipped, clipped)

    # The dual clip {eq}`dual-clip`. A positive advantage must stay as it is: a maximum
    # with $c \hat A$ would take away the slope of every ratio below $c$.
    if dual_clip is not None:
        bounded = torch.max(objective, dual_clip * adv)
        objective = torch.where(adv < 0, bounded, objective)
    return objective


class ppo_policy_loss(NamedTuple):
    """The two parts of the policy's loss, with gradient.

    The total to minimise is ``policy_loss - entropy_weight * entropy_loss``: the second
    field is the mean entropy itself. With continuous actions it may be negative.
    """

    policy_loss: Float[Tensor, ""]
    entropy_loss: Float[Tensor, ""]


class ppo_info(NamedTuple):
    """Two numbers to watch while training.

    Attributes:
        approx_kl: The estimate k1 of the divergence from the old to the new policy, in
            nats: the mean of ``log_prob_old - log_prob_new``.
        clipfrac: Fraction of samples whose ratio left the clip range.
    """

    approx_kl: float
    clipfrac: float


@checked
def policy_error_from_log_prob(
    log_prob_new: Float[Tensor, "B"],
    log_prob_old: Float[Tensor, "B"],
    entropy: Float[Tensor, "B"],
    adv: Float[Tensor, "B"],
    weight: Float[Tensor, "B"] | None = None,
    clip_ratio: Positive = 0.2,
    dual_clip: AboveOne | None = None,
) -> tuple[ppo_policy_loss, ppo_info]:
    """Compute the PPO policy error from log-probabilities, whatever the action space.

    ``entropy`` is that of the policy in training at each state, in nats. The other
    arguments are those of ``clipped_surrogate``; without ``weight`` each sample counts
    as one.

    Source: Schulman et al. 2017, equations 7 and 9.
    """
    objective = clipped_surrogate(
        log_prob_new, log_prob_old, adv, clip_ratio, dual_clip
    )
    bonus = entropy
    if weight is not None:
        objective, bonus = objective * weight.detach(), entropy * weight.detach()

    # The policy loss {eq}`policy-loss` and the entropy {eq}`entropy-bonus`, each a mean
    # over the batch.
    loss = ppo_policy_loss(-objective.mean(), bonus.mean())

    # What we only watch needs no graph: the estimate {eq}`kl-k1` and the clip fraction
    # {eq}`clip-fraction`.
    with torch.no_grad():
        log_ratio = log_prob_new - log_prob_old
        ratio = log_ratio.exp()
        outside = (ratio > 1.0 + clip_ratio) | (ratio < 1.0 - clip_ratio)
        mean, clipfrac = log_ratio.mean(), outside.double().mean()

    check_finite(
        (sum(loss) + mean).item(),
        log_prob_new=log_prob_new,
        log_prob_old=log_prob_old,
        entropy=entropy,
        adv=adv,
        weight=weight,
    )
    return loss, ppo_info(0.0 - mean.item(), clipfrac.item())


class ppo_policy_data(NamedTuple):
    """What the policy error reads: one batch of B samples.

    Gradient flows into ``logit_new`` alone.

    Attributes:
        logit_new: Logits of the policy in training.
        logit_old: Logits of the policy that collected the batch. Minus infinity in both
            takes an action away.
        action: The actions taken, from 0 to N - 1.
        adv: Advantage estimates.
        weight: One factor for each sample, or None for ones.
    """

    logit_new: Float[Tensor, "B N"]
    logit_old: Float[Tensor, "B N"]
    action: Annotated[Int[Tensor, "B"], below("N")]
    adv: Float[Tensor, "B"]
    weight: Float[Tensor, "B"] | None


@checked
def ppo_policy_error(
    data: ppo_policy_data,
    clip_ratio: Positive = 0.2,
    dual_clip: AboveOne | None = None,
) -> tuple[ppo_policy_loss, ppo_info]:
    """Compute the PPO policy error of discrete actions.

    Source: Schulman et al. 2017, equations 7 and 9.
    """
    # A softmax gives the log-probabilities of all actions. The old ones are constants:
    # where both come from one network, their gradient would cancel the new ones'.
    log_prob_new = data.logit_new.log_softmax(1)
    log_prob_old = data.logit_old.detach().log_softmax(1)

    # The entropy {eq}`entropy-bonus` of each row. An action that was taken away has the
    # probability zero, and zero times infinity would be NaN.
    entropy = -(log_prob_new.exp() * log_prob_new.clamp(min=-1e4)).sum(1)

    # The entries of the actions that were taken.
    taken = data.action.unsqueeze(1)
    new = log_prob_new.gather(1, taken).squeeze(1)
    old = log_prob_old.gather(1, taken).squeeze(1)
    check_finite(new + old + entropy, **{"data.logit_new": new, "data.logit_old": old})
    return policy_error_from_log_prob(
        new, old, entropy, data.adv, data.weight, clip_ratio, dual_clip
    )


class Gaussian(TypedDict):
    """Means and standard deviations, a dictionary or what is indexed like one."""

    mu: Float[Tensor, "B A"]
    sigma: Float[Tensor, "B A"]


class ppo_policy_data_continuous(NamedTuple):
    """What ``ppo_policy_data`` holds for continuous actions; it will do as well."""

    logit_new: Gaussian
    logit_old: Gaussian
    action: Float[Tensor, "B A"]
    adv: Float[Tensor, "B"]
    weight: Float[Tensor, "B"] | None


@checked
def ppo_policy_error_continuous(
    data: ppo_policy_data_continuous,
    clip_ratio: Positive = 0.2,
    dual_clip: AboveOne | None = None,
) -> tuple[ppo_policy_loss, ppo_info]:
    """Compute the PPO policy error of continuous actions.

    Source: Schulman et al. 2017, equations 7 and 9.
    """
    new, log_prob_new = gaussian("data.logit_new", data.logit_new, data.action)
    _, log_prob_old = gaussian("data.logit_old", data.logit_old, data.action)

    # From here on it is the same error. `clipped_surrogate` sees to it that the old
    # policy is a constant.
    return policy_error_from_log_prob(
        log_prob_new,
        log_prob_old,
        new.entropy(),
        data.adv,
        data.weight,
        clip_ratio,
        dual_clip,
    )


def gaussian(
    name: str, policy: Gaussian, action: Tensor
) -> tuple[Distribution, Tensor]:
    """Return the distribution of whole actions, and the log-density of some."""
    mu, sigma = policy["mu"], policy["sigma"]
    # The density divides by the square, so that must not be zero or infinite either.
    variance = sigma.detach().square()
    tiny = torch.finfo(sigma.dtype).tiny
    if not ((sigma > 0) & (variance >= tiny) & (variance < math.inf)).all():
        came = f"{sigma.min()}..{sigma.max()}"
        raise ValueError(
            f"{name}.sigma must be positive and finite, got {came}, and so must its "
            "square"
        )
    # The density of an action is the product of its numbers' densities. `Independent`
    # therefore adds up their logarithms, over the last dimension.
    distribution = Independent(Normal(mu, sigma, validate_args=False), 1)
    log_prob = distribution.log_prob(action)

    # A finite density of an action far away can have an infinite slope.
    slope = ((action - mu.detach()) / variance).square().sum(-1)
    causes = {f"{name}.mu": mu, "data.action": action}
    check_finite(log_prob + slope, **causes)
    return distribution, log_prob


class ppo_value_data(NamedTuple):
    """What the value error reads: one batch of B samples.

    Attributes:
        value_new: Values of the network in training; gradient flows into them alone.
        value_old: Values at the time of collection, read only with a value clip.
        return_: Returns to regress to.
        weight: One factor for each sample, or None for ones.
    """

    value_new: Float[Tensor, "B"]
    value_old: Float[Tensor, "B"] | None
    return_: Float[Tensor, "B"]
    weight: Float[Tensor, "B"] | None


@checked
def ppo_value_error(
    data: ppo_value_data, value_clip: Positive | None = None
) -> Float[Tensor, ""]:
    """Compute half the mean squared error of the values, clipped on request.

    ``value_clip`` is the half width of the clip range in units of the return, or None
    for no clip; a clip needs ``value_old``.

    Source: OpenAI Baselines' ppo2 (the value clip is not in the paper); Huang et al.
    2022, detail 9.
    """
    value_new, value_old, return_, weight = data
    error = (return_.detach() - value_new).square()

    # The larger of the two errors {eq}`value-clip`: a value that has moved far enough
    # toward its return gets no gradient, one that has moved away gets all of it.
    if value_clip is not None:
        if value_old is None:
            raise TypeError("data.value_old must be a tensor for a clip, got None")
        anchor = value_old.detach()
        clipped = anchor + (value_new - anchor).clamp(-value_clip, value_clip)
        error = torch.max(error, (return_.detach() - clipped).square())

    if weight is not None:
        error = error * weight.detach()
    loss = 0.5 * error.mean()
    check_finite(loss.item(), **data._asdict())
    return loss


@checked
def approx_kl_k3(
    log_prob_new: Float[Tensor, "B"], log_prob_old: Float[Tensor, "B"]
) -> Float[Tensor, ""]:
    """Estimate the divergence from the old to the new policy, without gradient.

    The actions are the old policy's; the result is in nats and never negative.

    Source: Schulman 2020, the estimator called k3.
    """
    # The estimate {eq}`kl-k3`. `expm1` keeps the digits that $e^\ell - 1$ loses when
    # the policies are close, which is the usual case.
    log_ratio = log_prob_new.detach() - log_prob_old.detach()
    kl = (log_ratio.expm1() - log_ratio).mean()
    check_finite(kl, log_prob_new=log_prob_new, log_prob_old=log_prob_old)
    return kl
