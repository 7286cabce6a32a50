# Generated from chapters/c51.py (edit there); digest b4f1564e42a87324
"""C51: distributions of returns, moved, projected onto atoms and compared."""

from __future__ import annotations

import torch
from torch import Tensor

from literate_rl.ground.networks import expected
from literate_rl.ground.signatures import (
    Finite,
    Float,
    check_finite,
    check_that,
    checked,
)
from literate_rl.maths.fast import project_atoms

__all__ = ["categorical_error", "project_distribution", "project_distribution_loop"]


@checked
def project_distribution_loop(
    prob: Float[Tensor, "B K"],
    reward: Float[Tensor, "B"],
    discount: Float[Tensor, "B"],
    value_min: Finite,
    value_max: Finite,
) -> Float[Tensor, "B K"]:
    """Move distributions of returns and project them onto the atoms, in plain loops."""
    check_atoms(value_min, value_max)
    batch, num_atoms = prob.shape
    spacing = (value_max - value_min) / (num_atoms - 1)
    result = torch.zeros_like(prob)
    for b in range(batch):
        for k in range(num_atoms):
            # Where atom $k$ lands, {eq}`shifted-atom`, in spacings from the first atom.
            value = reward[b] + discount[b] * (value_min + k * spacing)
            place = (value.clamp(value_min, value_max) - value_min) / spacing
            # The nearer neighbour gets more of its mass, {eq}`projection`. The last
            # atom counts as the upper end of the last gap.
            below = min(int(place), num_atoms - 2)
            result[b, below] += prob[b, k] * (below + 1 - place)
            result[b, below + 1] += prob[b, k] * (place - below)
    return result


@checked
def project_distribution(
    prob: Float[Tensor, "B K"],
    reward: Float[Tensor, "B"],
    discount: Float[Tensor, "B"],
    value_min: Finite,
    value_max: Finite,
) -> Float[Tensor, "B K"]:
    """Move distributions of returns and project them onto the atoms, without gradient.

    Source: Bellemare, Dabney and Munos 2017, equation 7.

    Args:
        prob: Probabilities of the atoms at the states that the steps led to.
        reward: Discounted sum of the rewards on the way.
        discount: Factor on the return from there on; 0 where the episode terminated.
        value_min: First of the evenly spaced atoms.
        value_max: Last of them.
    """
    check_atoms(value_min, value_max)
    prob, reward, discount = prob.detach(), reward.detach(), discount.detach()
    # Where nothing follows, all mass lands at the reward, whatever was said there.
    nothing = (discount == 0).unsqueeze(-1) & ~prob.isfinite()
    prob = prob.masked_fill(nothing, 1 / prob.shape[1])
    return project_atoms(prob, reward, discount, value_min, value_max)


def check_atoms(low: float, high: float) -> None:
    """Raise unless the last of the atoms lies above the first."""
    check_that(low < high, f"value_min must be below value_max, {high}, got {low}")


def mass_beyond(
    prob: Tensor, reward: Tensor, discount: Tensor, value_min: float, value_max: float
) -> Tensor:
    """Return which share of each moved distribution lies beyond the ends of the atoms.

    The arguments are those of ``project_distribution``.
    """
    # Rounding carries no atom a thousandth of a gap away.
    slack = 1e-3 * (value_max - value_min) / (prob.shape[1] - 1)
    atoms = torch.linspace(value_min, value_max, prob.shape[1]).to(prob)
    value = torch.addcmul(reward[:, None], discount[:, None], atoms)
    inside = value.clamp(value_min - slack, value_max + slack) == value
    return prob.detach().masked_fill(inside, 0.0).sum(-1)


@checked
def categorical_error(
    log_prob: Float[Tensor, "*B K"], target: Float[Tensor, "*B K"]
) -> Float[Tensor, "*B"]:
    """Compute how far distributions are from their targets, as a KL divergence.

    Args:
        log_prob: Log-probabilities of the atoms, with gradient.
        target: The probabilities that they should become; no gradient reaches them.
    """
    target = target.detach()
    # Where the target is 0 nothing is added, even if the log-probability is -inf.
    cross = expected(target, log_prob).sum(-1)
    # {eq}`categorical-error`; zero times the logarithm of zero is zero here.
    error: Tensor = torch.special.xlogy(target, target).sum(-1) - cross
    check_finite(error, log_prob=log_prob, target=target)
    return error
