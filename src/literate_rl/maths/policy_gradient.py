# Generated from chapters/policy_gradient.py (edit there); digest 32109adb7e6a3b41
"""The policy gradient: log-probabilities, entropy, the loss and its best baseline."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Integer
from torch import Tensor

from literate_rl.ground.signatures import Float, below, check_finite, checked

__all__ = [
    "categorical_entropy",
    "categorical_log_prob",
    "optimal_baseline",
    "policy_gradient_error",
]


@checked
def categorical_log_prob(
    logit: Float[Tensor, "B N"],
    action: Annotated[Integer[Tensor, "B"], below("N")],
) -> Float[Tensor, "B"]:
    """Compute the log-probability of each action, with gradient.

    A logit of minus infinity takes an action away; the log-probability of such an
    action is minus infinity.

    Source: Sutton and Barto, Reinforcement Learning, 2nd edition, equation 13.2.
    """
    # All of {eq}`categorical-log-prob`. `log_softmax` subtracts the largest logit
    # first, so no exponential overflows.
    log_prob = logit.log_softmax(1)
    # From each row the entry of the action that was taken.
    return log_prob.gather(1, action.long().unsqueeze(1)).squeeze(1)


@checked
def policy_gradient_error(
    log_prob: Float[Tensor, "*B"],
    adv: Float[Tensor, "*B"],
    weight: Float[Tensor, "*B"] | None = None,
) -> Float[Tensor, ""]:
    """Compute the loss whose gradient is minus an estimate of the policy gradient.

    Args:
        log_prob: Log-probability of each action under the policy that took it. Gradient
            flows into it alone.
        adv: What it is weighted with: a return, a return minus a baseline, an
            advantage.
        weight: One factor for each sample, or None for ones. ``gamma ** t`` is what
            the theorem wants.

    Source: Williams 1992 (REINFORCE), as a loss; Sutton et al. 1999, theorem 1.
    """
    # What an action is worth is a number. If it came with a graph, the optimiser would
    # change the judge instead of the policy.
    factor = adv.detach() if weight is None else (weight * adv).detach()

    # The loss {eq}`policy-gradient-loss`. Autograd differentiates this line, and what
    # comes out is minus a sample of {eq}`policy-gradient` for each episode, their sum
    # divided by $B$.
    loss = -(factor * log_prob).mean()
    check_finite(loss, log_prob=log_prob, adv=adv, weight=weight)
    return loss


@checked
def optimal_baseline(
    logit: Float[Tensor, "B N"], q_value: Float[Tensor, "B N"]
) -> Float[Tensor, "B"]:
    """Compute the baseline with the least variance for a softmax policy, no gradient.

    ``q_value`` is the expected return of each action. Where one action is certain no
    baseline matters, and its expected return comes back.

    Source: Greensmith et al. 2004, for a single decision.
    """
    prob = logit.detach().softmax(1)
    # Row $a$ of the identity minus the probabilities is the score of action $a$. The
    # squared length of each is needed.
    identity = torch.eye(prob.shape[1]).to(prob)
    squared_length = (identity - prob.unsqueeze(1)).square().sum(2)

    # The baseline {eq}`optimal-baseline` is a weighted mean. If one action is certain,
    # all weights are zero, and the probabilities themselves have to do.
    weight = prob * squared_length
    total = weight.sum(1, keepdim=True)
    weight = torch.where(total > 0, weight / total, prob)
    baseline = (weight * q_value.detach()).sum(1)
    check_finite(baseline, logit=prob, q_value=q_value)
    return baseline


@checked
def categorical_entropy(logit: Float[Tensor, "B N"]) -> Float[Tensor, "B"]:
    """Compute the entropy of a softmax policy in each state, in nats, with gradient.

    A logit of minus infinity takes an action away.

    Source: Shannon 1948, section 6.
    """
    log_prob = logit.log_softmax(1)
    # An action that was taken away has probability zero and adds nothing. Zero times
    # infinity would be NaN, in the gradient as well, so its logarithm becomes zero.
    surprise = -torch.where(log_prob == -torch.inf, 0.0, log_prob)
    # The mean {eq}`categorical-entropy`.
    entropy = (log_prob.exp() * surprise).sum(1)
    check_finite(entropy, logit=surprise)
    return entropy
