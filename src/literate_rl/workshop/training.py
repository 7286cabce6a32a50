# Generated from chapters/workshop/training.py (edit there); digest 6590bada13ce715e
"""Training: one line that says what the module is for."""

from __future__ import annotations

from torch import Tensor

__all__ = ["training_mean"]


def training_mean(x: Tensor) -> Tensor:
    """Say what it means, its unit, its defaults and its source."""
    # A comment is the text beside the line below it. This one computes
    # {eq}`training-mean`.
    return x.mean()
