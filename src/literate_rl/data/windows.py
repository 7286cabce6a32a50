# Generated from chapters/data/windows.py (edit there); digest b4c1e457e1645a64
"""Windows: the last steps of each environment in a ring, and stretches of them."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from literate_rl.data.agents import Rollout
from literate_rl.ground.signatures import Count, check_that, checked

__all__ = ["Rings"]


def check_fits(
    setting: str, size: int, steps: int, total: int, space: spaces.Space[Any]
) -> None:
    """Raise unless a memory fits into what this machine has left.

    Args:
        setting: Name of the setting that says how large it is.
        size: Its value.
        steps: Steps in the environments that the memory holds then.
        total: How many steps there will be.
        space: Space of the observations.
    """
    # Two observations, and a little for action, reward and flags.
    each = 2 * math.prod(space.shape or ()) * np.dtype(space.dtype).itemsize + 32
    left = memory_left()
    need, free = f"{steps * each / 2**30:,.1f} GiB", f"{left / 2**30:,.1f} GiB"
    words = f"{setting} must be smaller, got {size}: {steps:,} steps need {need}"
    # Rows that nothing is written to take nothing.
    fits = min(steps, total) * each <= left
    check_that(fits, f"{words}, and {free} are free")


def memory_left() -> float:
    """Return how many bytes may still be taken, or infinity where nobody tells."""
    left = [math.inf]
    with suppress(OSError):
        known = re.search(r"MemAvailable: +(\d+)", Path("/proc/meminfo").read_text())
        left += [1024 * int(known[1])] if known else []
    # What a container allows.
    with suppress(OSError, ValueError):  # there is none, or it is "max"
        left.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(left)


# What the memory keeps of a step, the masks only where there are some.
STORED = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
MASKS = ("mask", "next_mask")


class Rings:
    """The last steps of some environments, one ring for each.

    Args:
        capacity: The most steps it holds, over all environments; each gets an equal
            share, rounded down.

    Attributes:
        fields: An array for each of ``STORED`` and ``MASKS``; time and environments, in
            this order, are flattened into one dimension of ``places``.
        head: The row that is written next, for each environment.
        count: Steps that are stored, for each environment.
    """

    @checked
    def __init__(self, capacity: Count) -> None:
        self.capacity = capacity
        self.form: dict[str, Any] = {}
        self.fields: dict[str, NDArray[Any]] = {}
        self.head = self.count = np.zeros(0, np.int64)

    def reserve(self, form: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        """Make empty rings for rows of these shapes ``(B, *)`` and dtypes."""
        self.form, self.num_envs = form, form["reward"][0][0]
        self.length = self.capacity // self.num_envs
        if self.length < 1:
            raise ValueError(
                f"capacity must be at least 1 for each of {self.num_envs} "
                f"environments, got {self.capacity}"
            )
        self.places = self.length * self.num_envs
        self.fields = {
            name: np.zeros((self.places, *shape[1:]), dtype)
            for name, (shape, dtype) in form.items()
        }
        self.head, self.count = np.zeros((2, self.num_envs), np.int64)

    def push(
        self, rollout: Rollout, among: tuple[int, int] | None = None
    ) -> tuple[NDArray[Any], tuple[Any, Any]]:
        """Write steps over the oldest ones.

        A rollout goes on where the last one ended; call ``cut`` first if it does not.

        Args:
            rollout: The steps.
            among: Which ring is that of its first environment, and how many there are,
                if others fill the rest, as the actors of Ape-X do.

        Returns:
            The places of the steps, and their indices in the rollout: time and
            environment.
        """
        masks = () if rollout.mask is None else MASKS
        arrays = {n: getattr(rollout, n).cpu().numpy() for n in (*STORED, *masks)}
        width = rollout.reward.shape[1]
        first, rings = among or (0, width)
        form = {name: ((rings, *x.shape[2:]), x.dtype) for name, x in arrays.items()}
        if not self.fields:
            self.reserve(form)
        # If nobody named illegal actions before, all that was done was legal.
        for name in {*masks} - self.form.keys():
            self.form[name] = form[name]
            self.fields[name] = np.ones((self.places, form[name][0][1]), bool)
        if form != self.form:
            raise ValueError(f"rollout must be like the first, {self.form}, got {form}")

        # Rows in which nothing happened are left out, so each ring counts its own
        # steps. If a rollout is longer than the ring, only its last steps stay.
        real = rollout.real.cpu().numpy()
        number = real.cumsum(0)
        total = number[-1]
        step, env = np.nonzero(real & (number > total - self.length))

        # The first new step goes to the head's row, the others to the rows after it.
        head, count = (x[first : first + width] for x in (self.head, self.count))
        row = (head[env] + number[step, env] - 1) % self.length
        place: NDArray[np.int64] = row * self.num_envs + first + env
        for name, x in arrays.items():
            self.fields[name][place] = x[step, env]
        head[:] = (head + total) % self.length
        count[:] = np.minimum(count + total, self.length)
        return place, (step, env)

    def newest(self) -> NDArray[np.int64]:
        """Return the place of each environment's newest step."""
        row = (self.head - 1) % self.length
        return row * self.num_envs + np.arange(self.num_envs)

    def cut(self, envs: slice = slice(None)) -> None:
        """Mark the newest steps of some rings as truncated, because a reset follows."""
        if self.fields:
            self.fields["truncated"][self.newest()[envs][self.count[envs] > 0]] = True

    def window(
        self, place: NDArray[np.int64], num_steps: int, gamma: float
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
        """Look ahead from some places, one window from each.

        Returns:
            The discounted sum of the rewards, the place of the last step, and the
            factor of the value after it.
        """
        # The places of n steps, one row for each; the remainder wraps them around.
        ahead = np.arange(num_steps)[:, None]
        places = (place + self.num_envs * ahead) % self.places

        # Where a window has to end before n: the three cases of {eq}`replay-window`.
        terminated = self.fields["terminated"][places]
        last = terminated | self.fields["truncated"][places]
        last |= places == self.newest()[place % self.num_envs]

        # A step belongs to the window if none before it was the last.
        inside = np.ones_like(last)
        inside[1:] = ~np.logical_or.accumulate(last[:-1])
        m = inside.sum(0)

        # The two parts of the target {eq}`replay-target`. After the end there may be
        # anything, even NaN, which times zero is still NaN; so it is masked.
        reward = np.where(inside, self.fields["reward"][places], 0.0)
        total = (float(gamma) ** ahead * reward).sum(0)
        ending = m - 1, np.arange(len(place))
        discount = np.where(terminated[ending], 0.0, float(gamma) ** m)
        return total, places[ending], discount

    def draw(self, number: int, generator: torch.Generator) -> NDArray[np.int64]:
        """Draw places of steps, uniformly and with replacement."""
        stored = int(self.count.sum())
        chosen = torch.randint(stored, (number,), generator=generator).numpy()
        # Number the steps ring by ring. Which ring holds the chosen one, in which row?
        ends = self.count.cumsum()
        env = np.searchsorted(ends, chosen, side="right")
        row = chosen - (ends - self.count)[env]
        return row * self.num_envs + env
