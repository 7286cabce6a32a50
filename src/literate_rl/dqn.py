# Generated from chapters/dqn.py (edit there); digest 85c6d57c018bb8ac
"""DQN: values of actions, learned from their own guess."""

from __future__ import annotations

from torch import Tensor

__all__ = ["dqn_mean"]


def dqn_mean(x: Tensor) -> Tensor:
    """Say what it means, its unit, its defaults and its source."""
    # A comment is the text beside the line below it. This one computes
    # {eq}`dqn-mean`.
    return x.mean()
