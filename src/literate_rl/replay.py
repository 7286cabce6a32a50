# Generated from chapters/replay.py (edit there); digest 51d6b71cb6645f1b
"""Replay: a ring of transitions, steps in a row, priorities in a tree."""

from __future__ import annotations

from torch import Tensor

__all__ = ["replay_mean"]


def replay_mean(x: Tensor) -> Tensor:
    """Say what it means, its unit, its defaults and its source."""
    # A comment is the text beside the line below it. This one computes
    # {eq}`replay-mean`.
    return x.mean()
