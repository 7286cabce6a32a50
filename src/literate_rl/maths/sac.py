# Generated from chapters/sac.py (edit there); digest 1e98af8e4d718ea7
"""Soft values, and the loss of their temperature."""

from __future__ import annotations


from torch import Tensor

from literate_rl.ground.signatures import Finite, Float, checked

__all__ = ["soft_value", "temperature_error"]


@checked
def soft_value(
    q: Float[Tensor, "K N"],
    log_prob: Float[Tensor, "N"],
    alpha: float | Float[Tensor, ""],
) -> Float[Tensor, "N"]:
    """Return what states are worth to a policy that is paid for its entropy.

    Args:
        q: What K critics think of an action that the policy drew in each state.
        log_prob: The log-densities of these actions.
        alpha: The temperature: what a nat of entropy is worth.

    Source: Haarnoja et al. 2018, equation 3, with the minimum of Fujimoto et al. 2018.
    """
    # The least optimistic critic counts, {eq}`soft-value`.
    return q.amin(0) - alpha * log_prob


@checked
def temperature_error(
    log_alpha: Float[Tensor, ""], entropy: Float[Tensor, "N"], target: Finite
) -> Float[Tensor, ""]:
    """Return a loss; a step downhill raises the temperature if the entropy is low.

    Args:
        log_alpha: Logarithm of the temperature; the only one that gets a gradient.
        entropy: Entropies, or minus log-probabilities of draws.
        target: What they should be on average.

    Source: Haarnoja et al. 2018 (Algorithms and Applications), equation 18.
    """
    # The derivative with respect to $\log\alpha$ is the entropy minus its target,
    # {eq}`temperature`.
    return log_alpha * (entropy.detach().mean() - target)
