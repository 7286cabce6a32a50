"""Standard deviations and distances at the ends of floating point."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor


def extremes() -> Iterator[tuple[float, float]]:
    """Yield deviations, and how far an action is from its mean."""
    for power in range(-45, 39, 3):
        sigma = 10.0**power
        for distance in (0.0, sigma, 1e4 * sigma, 1.0, 1e10):
            yield sigma, min(distance, 3e38)


def assert_gradients_are_finite(
    loss_of: Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]],
) -> None:
    """Assert that a loss raises or has a finite gradient, and that it may be usual.

    ``loss_of`` takes mean, deviation and the action, and returns two losses.
    """
    fine = set()
    for sigma, distance in extremes():
        for part in (0, 1):
            mu, deviation = torch.zeros(()), torch.tensor(sigma)
            leaves = mu.requires_grad_(), deviation.requires_grad_()
            try:
                loss = loss_of(*leaves, distance)[part]
            except ValueError:
                continue
            grads = torch.autograd.grad(loss, leaves, allow_unused=True)
            for grad in grads:
                assert grad is None or grad.isfinite(), (sigma, distance, grads)
            fine.add((sigma, distance))
    assert fine >= {(10.0**power, 10.0**power) for power in range(-9, 12, 3)}
