# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A buffer of windows
#
# **What does a learner draw from?** `ReplayBuffer` puts the parts of {doc}`/chapters/replay` together: the
# rings and windows of {doc}`/chapters/data/windows`, and a tree if $\alpha_u > 0$.

# %% tags=["export", "hide-input"]
"""Replay: a buffer of windows, with priorities if they are wanted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from literate_rl.data.agents import Rollout
from literate_rl.data.sum_tree import (
    SumTree as SumTree,
    importance_weights as importance_weights,
)
from literate_rl.data.windows import MASKS, STORED, Rings
from literate_rl.ground.signatures import (
    Bool,
    Count,
    Float,
    Fraction,
    Int,
    NonNegative,
    check_finite,
    check_that,
    checked,
)

__all__ = ["Batch", "ReplayBuffer"]

# %% [markdown]
# All numbers of a batch have the shape `(N,)`: weights in a column, `(N, 1)`, would meet every loss, and
# none would be weighted ({doc}`/docs/errata`).


# %% tags=["export"]
class Batch(NamedTuple):
    """Windows of a buffer: where each began, what it paid, where it led.

    Attributes:
        obs: What the agent saw, ``(N, *)``, in the dtype that was pushed.
        action: What it did, ``(N, *)``.
        reward: Discounted sum of the window's rewards.
        next_obs: Where its last step led, ``(N, *)``.
        discount: The factor on the value of ``next_obs``: a power of gamma, or 0 where
            the window ended in a termination.
        weight: Importance weight; 1 without a preference.
        place: Where in the buffer it began, for ``ReplayBuffer.update``.
        mask: Which actions are legal in ``obs``, or None where nobody says so.
        next_mask: Which are legal in ``next_obs``.
    """

    obs: Tensor
    action: Tensor
    reward: Float[Tensor, "N"]
    next_obs: Tensor
    discount: Float[Tensor, "N"]
    weight: Float[Tensor, "N"]
    place: Int[Tensor, "N"]
    mask: Bool[Tensor, "N A"] | None = None
    next_mask: Bool[Tensor, "N A"] | None = None

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        fields: Any = [x if x is None else x.to(device) for x in self]
        return Batch(*fields)


class ReplayBuffer:
    """The last steps of some environments, sampled uniformly or by priority.

    Args:
        capacity: The most steps it holds, over all environments.
        priority_exponent: How strongly large priorities are preferred; 0 is not at
            all.

    Attributes:
        rings: The steps.
        tree: Their masses, None without a preference.
        largest: The largest priority ever given.
    """

    @checked
    def __init__(self, capacity: Count, priority_exponent: NonNegative = 0.0) -> None:
        self.rings, self.priority_exponent = Rings(capacity), priority_exponent
        self.tree: SumTree | None = None
        self.largest = 1.0

    def __len__(self) -> int:
        return int(self.rings.count.sum())

    @checked
    def push(
        self,
        rollout: Rollout,
        priority: Float[Tensor, "T B"] | None = None,
        among: tuple[int, int] | None = None,
    ) -> None:
        """Write steps over the oldest ones.

        A rollout goes on where the last one ended; call ``cut`` first if it does not.

        Args:
            rollout: The steps.
            priority: Their first priorities; None stands for the largest so far.
            among: As in ``Rings.push``.
        """
        place, steps = self.rings.push(rollout, among)
        if not len(place):
            return  # no row is a step: each stands behind the end of an episode
        if self.priority_exponent > 0:
            self.tree = self.tree or SumTree(self.rings.places)
            mass = self.largest**self.priority_exponent
            self.tree.update(place, np.full(len(place), mass))
        if priority is not None:
            self.update(torch.from_numpy(place), priority[steps])

    def cut(self, envs: slice = slice(None)) -> None:
        """Mark the newest steps of some rings as truncated, as a reset does."""
        self.rings.cut(envs)

    @checked
    def sample(
        self,
        batch_size: Count,
        generator: torch.Generator,
        num_steps: Count = 1,
        gamma: Fraction = 0.99,
        beta: Fraction = 1.0,
    ) -> Batch:
        """Draw windows, with replacement.

        Args:
            batch_size: Number of windows.
            generator: The source of randomness.
            num_steps: The length of a window that meets no end.
            gamma: Discount of each step.
            beta: How far the weights undo the preference; 1 is fully.

        Raises:
            ValueError: If the buffer is empty.
        """
        words = "the buffer must hold a step, got an empty one"
        check_that(self.rings.count.any(), words)
        weight: Any = np.ones(batch_size)
        if self.tree is None:
            place = self.rings.draw(batch_size, generator)
        else:
            # One mark in each piece of the row of masses.
            chance = torch.rand(batch_size, generator=generator, dtype=torch.float64)
            mark = (np.arange(batch_size) + chance.numpy()) / batch_size
            total = self.tree.total
            place = self.tree.find(mark * total)
            # The probabilities {eq}`replay-preference` of what was drawn.
            probability = torch.from_numpy(self.tree.mass[place] / total)
            weight = importance_weights(probability, len(self), beta).numpy()

        return self.windows(place, num_steps, gamma, weight)

    def windows(
        self, place: NDArray[Any], num_steps: int, gamma: float, weight: Any = 1.0
    ) -> Batch:
        """Return the windows that begin at some places."""
        # Look ahead from each place; observation and action are those of the start.
        weight = np.broadcast_to(weight, len(place))
        reward, last, discount = self.rings.window(place, num_steps, gamma)
        fields = self.rings.fields
        numbers = [x.astype(fields["reward"].dtype) for x in (reward, discount, weight)]
        arrays = (
            fields["obs"].take(place, 0),
            fields["action"].take(place, 0),
            numbers[0],
            fields["next_obs"].take(last, 0),
            *numbers[1:],
            place,
        )
        masks = zip(MASKS, (place, last), strict=True)
        legal = [fields[name].take(at, 0) for name, at in masks if name in fields]
        return Batch(*map(torch.from_numpy, (*arrays, *legal)))

    @checked
    def update(self, place: Int[Tensor, "N"], priority: Float[Tensor, "N"]) -> None:
        """Give steps new priorities, such as TD errors; their sign does not matter.

        Without a preference nothing happens.
        """
        if self.tree is None:
            return
        inside = (place >= 0) & (place < self.rings.places)
        words = f"place must be below {self.rings.places}, got {place.tolist()}"
        check_that(inside.all(), words)
        check_finite(priority, priority=priority)
        # A step without error today may have one tomorrow, so no priority is quite 0.
        size = priority.detach().cpu().double().abs().clamp_min(1e-6).numpy()
        self.largest = max(self.largest, float(size.max(initial=0.0)))
        self.tree.update(place.cpu().numpy(), size**self.priority_exponent)

    def state_dict(self) -> dict[str, Any]:
        """Return what is stored. The tensors share the buffer's memory."""
        rings = self.rings
        if not rings.fields:
            return {}
        # Rows that nothing was written to need not be saved.
        used = int(rings.count.max()) * rings.num_envs
        state = {name: torch.from_numpy(x[:used]) for name, x in rings.fields.items()}
        if self.tree is not None:
            state["mass"] = torch.from_numpy(self.tree.mass[:used])
        numbers = {"capacity": rings.capacity, "largest": self.largest}
        marks = {"head": rings.head.tolist(), "count": rings.count.tolist()}
        return {**state, **numbers, **marks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold what ``state_dict`` returned, and nothing else."""
        rings, tree = Rings(self.rings.capacity), None
        if state:
            wanted = rings.capacity, self.priority_exponent > 0
            came = state["capacity"], "mass" in state
            words = "state must be that of a buffer with (capacity, preference)"
            check_that(came == wanted, f"{words} {wanted}, got {came}")
            names = [name for name in (*STORED, *MASKS) if name in (*STORED, *state)]
            stored = {name: state[name].cpu().numpy() for name in names}
            envs = len(state["head"])
            rings.reserve(
                {name: ((envs, *x.shape[1:]), x.dtype) for name, x in stored.items()}
            )
            for name, x in stored.items():
                rings.fields[name][: len(x)] = x
            rings.head, rings.count = (np.array(state[x]) for x in ("head", "count"))
        if "mass" in state:
            mass = state["mass"].cpu().numpy()
            tree = SumTree(rings.places)
            tree.update(np.arange(len(mass)), mass)
        # Nothing of the old content goes before all of the new is there.
        self.rings, self.tree, self.largest = rings, tree, state.get("largest", 1.0)


# %% [markdown]
# A memory of images is often larger than a GPU's. So steps stay in main memory, `Batch.to` takes a
# batch to where the network is, and the tensors of `state_dict` are the buffer's own memory, which a
# checkpoint writes piece by piece. Another memory, {doc}`/chapters/data/memory`, keeps longer stretches of an
# episode.

# %% [markdown]
# ## References
#
# Those of {doc}`/chapters/replay`.
