# Generated from chapters/data/memory.py (edit there); digest 5da53ce336742aec
"""Memory: the last samples, drawn alike or by priority, a limited number of times."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from literate_rl.ground.signatures import Count, NonNegative, check_that, checked

__all__ = ["BufferConfig", "UnrollBuffer", "distances"]


class UnrollBuffer:
    """The last samples, each to be used a limited number of times.

    Args:
        size: Samples that it holds at most; the oldest makes room.
        max_use: Draws after which a sample leaves. With a preference the last batch may
            hold it more than once and go beyond.
        alpha: How strongly large priorities are preferred; 0 is not at all.
        beta: How far importance weights undo the preference; 1 is fully.

    Attributes:
        entries: For each sample its ``priority`` and how often it was drawn, ``use``.
    """

    @checked
    def __init__(
        self,
        size: Count = 1000,
        max_use: Count = 16,
        alpha: NonNegative = 0.0,
        beta: NonNegative = 0.4,
    ) -> None:
        self.max_use, self.alpha, self.beta = max_use, alpha, beta
        self.entries: deque[dict[str, Any]] = deque(maxlen=size)

    def __len__(self) -> int:
        return len(self.entries)

    @checked
    def push(self, samples: Sequence[Any]) -> None:
        """Add samples; each gets the highest priority that is in the buffer now."""
        highest = max((entry["priority"] for entry in self.entries), default=1.0)
        self.entries.extend(
            {"sample": sample, "priority": highest, "use": 0} for sample in samples
        )

    @checked
    def sample(
        self, batch_size: Count, generator: torch.Generator
    ) -> list[dict[str, Any]]:
        """Draw entries, as many as there are if the batch is larger than the buffer.

        Returns:
            The entries, each with its importance weight as ``IS``. They are different
            ones if ``alpha`` is 0.

        Raises:
            ValueError: If the buffer is empty.
        """
        if not self.entries:
            raise ValueError("the buffer must hold a sample, got an empty one")
        numbers = [entry["priority"] for entry in self.entries]
        priority = torch.tensor(numbers, dtype=torch.float64)
        # Probabilities and weights {eq}`replay-priority`.
        probability = priority.pow(self.alpha)
        probability /= probability.sum()
        weight = (len(self.entries) * probability).pow(-self.beta)
        weight /= weight.max()
        # A draw that is put back leaves the probabilities of the next one as they were.
        drawn = torch.multinomial(
            probability,
            min(batch_size, len(self.entries)),
            replacement=self.alpha > 0,
            generator=generator,
        )
        entries = [self.entries[index] for index in drawn.tolist()]
        for entry, number in zip(entries, weight[drawn].tolist(), strict=True):
            entry["use"] += 1
            entry["IS"] = number
        # What has been used often enough leaves.
        if any(entry["use"] >= self.max_use for entry in entries):
            left = [entry for entry in self.entries if entry["use"] < self.max_use]
            self.entries = deque(left, maxlen=self.entries.maxlen)
        return entries

    def update(
        self, entries: Sequence[dict[str, Any]], priorities: Sequence[float]
    ) -> None:
        """Give entries that were drawn their new priorities, all of them or none."""
        if len(entries) != len(priorities) or not all(map(math.isfinite, priorities)):
            raise ValueError(
                f"priorities must be {len(entries)} finite numbers, got {priorities}"
            )
        for entry, priority in zip(entries, priorities, strict=True):
            entry["priority"] = max(priority, 1e-6)

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the entries as they are now."""
        return [dict(entry) for entry in self.entries]

    def load_state_dict(self, state: Sequence[dict[str, Any]]) -> None:
        """Hold the entries that ``state_dict`` returned, and no others."""
        self.entries.clear()
        self.entries.extend(dict(entry) for entry in state)


def distances(value_loss: Tensor, value: Tensor, weight: Tensor) -> list[float]:
    """Return how far the values of each environment are from their targets."""
    # The loss has the distances already. Its derivative with respect to a value is
    # $2 w_t (V - v_t)$ over the number of steps.
    (grad,) = torch.autograd.grad(value_loss, value, retain_graph=True)
    total = grad[:-1].abs().sum(0) * weight.numel() / 2
    # Steps that do not count weigh nothing in this mean either.
    return (total / weight.sum(0).clamp_min(1e-9)).tolist()


@checked
@dataclass(frozen=True)
class BufferConfig:
    """Settings of the buffer of unrolls.

    Attributes:
        priority: Whether the buffer prefers samples with a large error.
        priority_IS_weight: Whether weights in the loss undo that preference.
        replay_buffer_size: Samples that the buffer holds at most.
        max_use: How often a sample is learned from at most.
    """

    priority: bool = False
    priority_IS_weight: bool = False  # noqa: N815 (the name of the original)
    replay_buffer_size: Count = 1000
    max_use: Count = 16

    def __post_init__(self) -> None:
        fits = self.priority or not self.priority_IS_weight
        check_that(fits, "priority must be True if priority_IS_weight is True")
