# Generated from chapters/discrete_sac.py (edit there); digest 3761d26fdbae594e
"""The soft value of a list of actions, as a sum."""

from __future__ import annotations

from torch import Tensor

from literate_rl.ground.signatures import Float, checked

__all__ = ["expected_soft_value"]


@checked
def expected_soft_value(
    q: Float[Tensor, "K B N"],
    log_prob: Float[Tensor, "B N"],
    alpha: float | Float[Tensor, ""],
) -> Float[Tensor, "B"]:
    """Return what states are worth to a policy that is paid for its entropy.

    Args:
        q: What K critics think of each of the N actions.
        log_prob: Log-probabilities of the actions.
        alpha: The temperature: what a nat of entropy is worth.

    Source: Christodoulou 2019, section 3, with the minimum of Fujimoto et al. 2018.
    """
    # For each action the least optimistic critic counts. An action of probability 0
    # adds nothing, although its log-probability is −∞, and whatever its value.
    prob = log_prob.exp()
    q, log_prob = (x.masked_fill(prob == 0, 0.0) for x in (q, log_prob))
    # The sum of {eq}`exact-soft-value`.
    return (prob * (q.amin(0) - alpha * log_prob)).sum(-1)
