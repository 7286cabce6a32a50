# Generated from chapters/a2c.py (edit there); digest 1c1e8336727506b8
"""A2C and A3C: one step on each rollout, and workers that send gradients."""

from __future__ import annotations

from torch import Tensor

__all__ = ["a2c_mean"]


def a2c_mean(x: Tensor) -> Tensor:
    """Say what it means, its unit, its defaults and its source."""
    # A comment is the text beside the line below it. This one computes
    # {eq}`a2c-mean`.
    return x.mean()
