# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Memory
#
# **Which of the last samples should an agent learn from next?** {doc}`/chapters/impala` keeps its
# unrolls in the buffer of this page. The buffer forgets the oldest, lets go of what has been used
# often enough, and can prefer samples from which much is still to be learned.
#
# Nobody has to read this page to follow the book.

# %% tags=["export", "hide-input"]
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

# %% [markdown]
# ## Priorities
#
# Prioritised replay {cite:p}`schaul2016` prefers samples whose values are far from their targets. Let
# $u_i$ be that distance for sample $i$ of $n$. Each draw takes it with probability $P_i$, and a
# weight $w_i$ makes up for being drawn more often than others:
#
# $$
# P_i = \frac{u_i^{\alpha_u}}{\sum_k u_k^{\alpha_u}} , \qquad
# w_i = \frac{(n P_i)^{-\beta_w}}{\max_k (n P_k)^{-\beta_w}} .
# $$ (replay-priority)
#
# With $\alpha_u = 0$ all samples are drawn alike, with $\alpha_u = 1$ in proportion to their
# priorities. With $\beta_w = 0$ all weights are 1. With $\beta_w = 1$ they undo the preference: $P_i$
# times $1 / (n P_i)$ is $1 / n$, so a weighted mean over draws estimates the mean over the buffer, up to
# a factor that all draws share. That is why the largest weight is taken over the whole buffer and not
# over a batch, where it would depend on what was drawn.
#
# The argument needs independent draws. So with a preference a sample goes back before the next one is
# drawn, and a batch may hold it twice. Without that, a batch as large as the buffer would hold every
# sample once: no preference would be left, and the weights would create the bias that they are meant
# to undo. Without a preference a batch holds different samples, and all weights are 1.


# %% tags=["export"]
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


# %% [markdown]
# The learner says how far off the values of a sample were. And the settings of IMPALA that are
# about the buffer have the names and the defaults of DI-engine ({doc}`/chapters/interfaces/ding`).


# %% tags=["export"]
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


# %% [markdown]
# Sixteen samples with the numbers 0 to 15, batches of sixteen, and priorities that grow with the
# number. The mean of all numbers is 7.5. What do the draws say?

# %%
import numpy as np
import torch

buffer = UnrollBuffer(max_use=10**9, alpha=0.6, beta=1.0)
buffer.push(range(16))
buffer.update(buffer.entries, [1.0 + i for i in range(16)])
generator = torch.Generator().manual_seed(0)
draws = [entry for _ in range(1000) for entry in buffer.sample(16, generator)]
number, weight = np.array([(entry["sample"], entry["IS"]) for entry in draws]).T
print(f"mean of the draws {number.mean():.2f}", end=", ")
print(f"weighted {np.average(number, weights=weight):.2f}")
# If every sample is drawn once, the same weights bend what was straight.
once = np.array([(entry["sample"], entry["IS"]) for entry in buffer.entries]).T
print(f"each sample once, weighted {np.average(once[0], weights=once[1]):.2f}")

# %% tags=["claims"]
assert number.mean() > 8.5, "the draws prefer large priorities"
assert abs(np.average(number, weights=weight) - 7.5) < 0.2, "the weights undo it"
assert np.average(once[0], weights=once[1]) < 5.5, "and spoil draws without it"

# %% [markdown]
# **Notice** that the draws prefer large numbers, and that the weights bring their mean back to
# about 7.5. A batch that holds each sample once needs no weights: there they pull the mean below
# 5.5.
#
# The paper starts with $\alpha_u = 0.6$ and $\beta_w = 0.4$ and raises $\beta_w$ to 1.
#
# ## References
#
# Prioritised replay is from {cite:t}`schaul2016`.
