# Generated from chapters/contracts.py (edit there); digest 41e251cba9681e41
"""Contracts: what an algorithm demands of a network, as a text and as a check."""

from __future__ import annotations

from torch import Tensor

__all__ = ["contracts_mean"]


def contracts_mean(x: Tensor) -> Tensor:
    """Say what it means, its unit, its defaults and its source."""
    # A comment is the text beside the line below it. This one computes
    # {eq}`contracts-mean`.
    return x.mean()
