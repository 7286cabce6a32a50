# Generated from chapters/rainbow.py (edit there); digest b06034d7bcfb8db7
"""Rainbow: distributions of returns, noisy layers, and all parts together."""

from __future__ import annotations

from torch import Tensor

__all__ = ["rainbow_mean"]


def rainbow_mean(x: Tensor) -> Tensor:
    """Say what it means, its unit, its defaults and its source."""
    # A comment is the text beside the line below it. This one computes
    # {eq}`rainbow-mean`.
    return x.mean()
