# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Replay
#
# **What is worth remembering, and how often should it be seen again?** After this chapter you can
# keep the last million transitions in a ring, cut windows of several steps out of it that never
# cross the end of an episode, and draw those more often that still surprise. It takes about 35 minutes. You need
# to know transitions and the flags `terminated` and `truncated` ({doc}`agents`) and $n$-step
# returns ({doc}`advantages`).

# %% tags=["export", "hide-input"]
"""Replay: a ring of transitions, windows of several steps, priorities in a tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor

from literate_rl.agents import Rollout
from literate_rl.workshop.signatures import (
    Count,
    Float,
    Fraction,
    Int,
    NonNegative,
    check_finite,
    check_index,
    checked,
)

__all__ = ["Batch", "ReplayBuffer", "SumTree", "importance_weights"]

# %% [markdown]
# ## A ring for each environment


# %% tags=["export"]
class Batch(NamedTuple):
    """Windows of a replay buffer: where each began, what it paid, where it led.

    Attributes:
        obs: What the agent saw, ``(N, *)``, in the dtype that was pushed.
        action: What it did, ``(N, *)``.
        reward: Discounted sum of the rewards of the window.
        next_obs: Where its last step led, ``(N, *)``.
        discount: What the value of ``next_obs`` counts: a power of gamma, or 0 where
            the window terminated.
        weight: Importance weight, 1 without a preference.
        place: Where in the buffer it began, for ``ReplayBuffer.update``.
    """

    obs: Tensor
    action: Tensor
    reward: Float[Tensor, "N"]
    next_obs: Tensor
    discount: Float[Tensor, "N"]
    weight: Float[Tensor, "N"]
    place: Int[Tensor, "N"]

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        return Batch(*(field.to(device) for field in self))


# %% tags=["export"]
class SumTree:
    """Masses, and the sums of their groups, the sums of those groups, and so on.

    Args:
        capacity: Number of masses, zero at first.
        branching: How many of them, or of sums, are one group.

    Attributes:
        levels: Groups ``(groups, branching)`` from the root, which is a single group,
            to the masses themselves.
    """

    @checked
    def __init__(self, capacity: Count, branching: Annotated[int, Ge(2)] = 16) -> None:
        self.branching = branching
        self.levels: list[NDArray[np.float64]] = []
        groups: int = capacity
        while groups > 1 or not self.levels:
            groups = -(-groups // branching)
            self.levels.insert(0, np.zeros((groups, branching)))

    @property
    def total(self) -> float:
        """Sum of all masses."""
        return float(self.levels[0].sum())

    @property
    def mass(self) -> NDArray[np.float64]:
        """The masses, a view of the lowest level with a few zeros behind the last."""
        return self.levels[-1].reshape(-1)

    @checked
    def update(self, index: Int[np.ndarray, "N"], mass: Float[np.ndarray, "N"]) -> None:
        """Give some leaves a new mass; of equal indices the last counts."""
        # From the masses to the root, every group that changed is added up anew.
        sums: Any = mass
        for level in reversed(self.levels):
            level.reshape(-1)[index] = sums
            index = index // self.branching
            sums = level[index].sum(1)

    @checked
    def find(self, mark: Float[np.ndarray, "N"]) -> NDArray[np.int64]:
        """Return the leaf at each mark, 0 to ``total``, with all masses in a row."""
        index, row = np.zeros(len(mark), np.int64), np.arange(len(mark))
        for level in self.levels:
            # Where each member of the group ends.
            ends = level[index].cumsum(1)
            # Rounding may place a mark at or behind the last end. It belongs before it.
            mark = np.minimum(mark, np.nextafter(ends[:, -1], 0.0))
            # The mark lies in the first member that ends behind it.
            member = (ends > mark[:, None]).argmax(1)
            # Below, the mark is counted from where that member begins.
            mark = mark - np.where(member > 0, ends[row, member - 1], 0.0)
            index = index * self.branching + member
        return index


# %% tags=["export"]
@checked
def importance_weights(
    probability: Float[Tensor, "N"], count: Count, beta: Fraction = 1.0
) -> Float[Tensor, "N"]:
    """Return the weights that undo a preference, the largest of them 1.

    Args:
        probability: The chance that each entry had in one draw.
        count: Number of entries in the buffer.
        beta: How far the preference is undone; 1 is fully.

    Source: Schaul et al. 2016, section 3.4.
    """
    weight = (count * probability) ** -beta
    weight = weight / weight.max()
    check_finite(weight, probability=probability)
    return weight


# %% tags=["export"]
STORED = ("obs", "action", "reward", "next_obs", "terminated", "truncated")


class ReplayBuffer:
    """The last steps of some environments, drawn alike or by priority.

    Each environment has a ring of its own. The memory is reserved at the first push,
    in the shapes and dtypes of what is pushed.

    Args:
        capacity: Steps that it holds at most, all environments together; what does not
            divide among them is left out.
        alpha: How strongly large priorities are preferred; 0 is not at all.
        branching: Size of the groups of the ``SumTree``.
    """

    @checked
    def __init__(
        self,
        capacity: Count,
        alpha: NonNegative = 0.0,
        branching: Annotated[int, Ge(2)] = 16,
    ) -> None:
        self.capacity, self.alpha, self.branching = capacity, alpha, branching
        self.fields: dict[str, NDArray[Any]] = {}
        self.tree: SumTree | None = None
        self.count = self.head = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return int(self.count.sum())

    def reserve(self, num_envs: int, examples: Mapping[str, NDArray[Any]]) -> None:
        """Make empty rings for rows like the examples."""
        self.num_envs, self.length = num_envs, self.capacity // num_envs
        if self.length < 1:
            raise ValueError(
                f"capacity must be at least 1 for each of {num_envs} environments, "
                f"got {self.capacity}"
            )
        self.places = self.length * num_envs
        self.fields = {
            name: np.zeros((self.places, *row.shape[1:]), row.dtype)
            for name, row in examples.items()
        }
        self.count = np.zeros(num_envs, np.int64)
        self.head = np.zeros(num_envs, np.int64)
        self.largest = 1.0
        if self.alpha > 0:
            self.tree = SumTree(self.places, self.branching)

    @property
    def newest(self) -> NDArray[np.int64]:
        """Place of the newest step of each environment that has one."""
        place = (self.head - 1) % self.length * self.num_envs + np.arange(self.num_envs)
        return place[self.count > 0]

    @checked
    def push(self, rollout: Rollout) -> None:
        """Write steps over the oldest ones; a new one gets the largest priority so far.

        A rollout goes on where the last one ended; call ``cut`` where it does not.
        """
        arrays = {name: getattr(rollout, name).cpu().numpy() for name in STORED}
        real = rollout.real.cpu().numpy()
        num_envs = real.shape[1]
        if not self.fields:
            self.reserve(num_envs, {name: x[0] for name, x in arrays.items()})
        # The how-manieth real step of its environment is each? Of a rollout longer than
        # the ring only the end stays.
        order = real.cumsum(0)
        number = order[-1]
        step, env = np.nonzero(real & (order > number - self.length))
        row = (self.head[env] + order[step, env] - 1) % self.length
        index = row * num_envs + env
        for name, x in arrays.items():
            self.fields[name][index] = x[step, env]
        self.head = (self.head + number) % self.length
        self.count = np.minimum(self.count + number, self.length)
        if self.tree is not None:
            self.tree.update(index, np.full(len(index), self.largest**self.alpha))

    def cut(self) -> None:
        """Mark the newest step of each environment as truncated, as a reset does."""
        if self.fields:
            self.fields["truncated"][self.newest] = True

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
            generator: Where the chance comes from.
            num_steps: Steps in a window, fewer where an episode or the ring ends.
            gamma: Discount of a step.
            beta: How far importance weights undo the preference; 1 is fully.
        """
        if not len(self):
            raise ValueError("the buffer must hold a step, got an empty one")
        if self.tree is None:
            index, weight = self.draw_alike(batch_size, generator), np.ones(batch_size)
        else:
            index = self.draw_by_priority(self.tree, batch_size, generator)
            probability = torch.from_numpy(self.tree.mass[index] / self.tree.total)
            weight = importance_weights(probability, len(self), beta).numpy()
        reward, last, discount = self.window(index, num_steps, gamma)
        dtype = self.fields["reward"].dtype
        columns = (
            self.fields["obs"][index],
            self.fields["action"][index],
            reward.astype(dtype),
            self.fields["next_obs"][last],
            discount.astype(dtype),
            weight.astype(dtype),
            index,
        )
        return Batch(*map(torch.from_numpy, columns))

    def draw_alike(
        self, batch_size: int, generator: torch.Generator
    ) -> NDArray[np.int64]:
        """Draw places, all equally likely."""
        draw = torch.randint(len(self), (batch_size,), generator=generator).numpy()
        ends = self.count.cumsum()
        env = np.searchsorted(ends, draw, side="right")
        row = draw - (ends - self.count)[env]
        index: NDArray[np.int64] = row * self.num_envs + env
        return index

    def draw_by_priority(
        self, tree: SumTree, batch_size: int, generator: torch.Generator
    ) -> NDArray[np.int64]:
        """Draw places by their mass, one from each of N equal slices of the total."""
        chance = torch.rand(batch_size, generator=generator, dtype=torch.float64)
        slices = (np.arange(batch_size) + chance.numpy()) / batch_size
        return tree.find(slices * tree.total)

    def window(
        self, index: NDArray[np.int64], num_steps: int, gamma: float
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
        """Follow steps; return their summed reward, their last place and a discount."""
        # One step later is one row further down, in a ring.
        offsets = np.arange(num_steps)[:, None] * self.num_envs
        place = (index + offsets) % self.places
        terminated = self.fields["terminated"][place]
        ends = terminated | self.fields["truncated"][place]
        newest = np.zeros(self.num_envs, np.int64)
        newest[self.count > 0] = self.newest
        ends |= place == newest[index % self.num_envs]
        # A step is in the window if none before it was the last.
        inside = np.ones_like(ends)
        inside[1:] = ~np.logical_or.accumulate(ends[:-1], axis=0)
        steps = inside.sum(0)
        power = float(gamma) ** np.arange(num_steps)[:, None]
        reward = np.where(inside, power * self.fields["reward"][place], 0.0).sum(0)
        ending = steps - 1, np.arange(len(index))
        discount = np.where(terminated[ending], 0.0, float(gamma) ** steps)
        return reward, place[ending], discount

    @checked
    def update(self, place: Int[Tensor, "N"], priority: Float[Tensor, "N"]) -> None:
        """Give entries that were drawn their new priorities; the sign does not count.

        Without a preference nothing happens.
        """
        if self.tree is None:
            return
        check_index(self.places, place=place)
        check_finite(priority, priority=priority)
        # What is learned for now may surprise again, so no priority is zero.
        size = priority.detach().cpu().double().abs().clamp_min(1e-6).numpy()
        self.largest = max(self.largest, float(size.max()))
        self.tree.update(place.cpu().numpy(), size**self.alpha)

    def state_dict(self) -> dict[str, Any]:
        """Return what is stored; the tensors share the buffer's memory."""
        if not self.fields:
            return {}
        used = int(self.count.max()) * self.num_envs
        fields = {name: torch.from_numpy(x[:used]) for name, x in self.fields.items()}
        if self.tree is not None:
            fields["mass"] = torch.from_numpy(self.tree.mass[:used])
        rings = {"head": self.head.tolist(), "count": self.count.tolist()}
        return {"capacity": self.capacity, "largest": self.largest, **rings, **fields}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold what ``state_dict`` returned, and nothing else."""
        if not state:
            self.__init__(self.capacity, self.alpha, self.branching)  # type: ignore[misc]
            return
        if state["capacity"] != self.capacity or ("mass" in state) != (self.alpha > 0):
            raise ValueError("the state must be that of a buffer with these settings")
        arrays = {name: state[name].cpu().numpy() for name in STORED}
        self.reserve(len(state["head"]), arrays)
        for name, x in arrays.items():
            self.fields[name][: len(x)] = x
        self.head, self.count = (np.array(state[k]) for k in ("head", "count"))
        self.largest = state["largest"]
        if self.tree is not None:
            mass = state["mass"].numpy()
            self.tree.update(np.arange(len(mass)), mass)
