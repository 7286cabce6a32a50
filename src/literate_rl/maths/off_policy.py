# Generated from chapters/off_policy.py (edit there); digest 4d6f334eda278a97
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
