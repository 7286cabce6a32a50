"""Environments that break their interface at some step, for the chaos."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Breaking(gym.Env[Any, Any]):
    """Episodes of ten steps, all well until one step is not.

    Args:
        fault: What is wrong with that step, a key of ``FAULTS``.
        at: The step, counted over all episodes.
        continuous: Whether actions are numbers.
    """

    def __init__(self, fault: str, at: int, continuous: bool) -> None:
        self.observation_space = spaces.Box(-1, 1, (3,))
        numbers = spaces.Box(-1, 1, (1,))
        self.action_space = numbers if continuous else spaces.Discrete(2)
        self.fault, self.at, self.count = fault, at, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        """Take a step."""
        self.count += 1
        row = [np.zeros(3, np.float32), 1.0, self.count % 10 == 0, False, {}]
        return FAULTS[self.fault](row) if self.count == self.at else tuple(row)


def fail(row: Any) -> Any:
    """Raise what a bug in an environment raises."""
    raise KeyError("the physics broke")


def leave(row: Any) -> Any:
    """Do what a closed window of a game does: leave Python, as if all were well."""
    raise SystemExit(0)


def panic(row: Any) -> Any:
    """Raise what no ``except Exception`` catches, as code in other languages may."""
    raise BaseException("the simulator is gone")


def instead(index: int, value: Any) -> Any:
    """Return a function that puts something wrong into a row."""
    return lambda row: (*row[:index], value, *row[index + 1 :])


UNSEEN = ("observation NaN", "reward NaN", "reward infinite")  # until the rollout ends
FAULTS = {
    "raises": fail,
    "leaves": leave,
    "panics": panic,
    "returns four things": lambda row: tuple(row[:4]),
    "returns nothing": lambda row: None,
    "observation of another shape": instead(0, np.zeros(4, np.float32)),
    "observation of two dimensions": instead(0, np.zeros((3, 1), np.float32)),
    "observation NaN": instead(0, np.full(3, np.nan, np.float32)),
    "observation None": instead(0, None),
    "observation a word": instead(0, "here"),
    "observation of words": instead(0, np.array(["up", "down", "up"])),
    "reward None": instead(1, None),
    "reward a number as text": instead(1, "1"),
    "reward text in an array": instead(1, np.array("1")),
    "reward a word": instead(1, "good"),
    "reward NaN": instead(1, float("nan")),
    "reward infinite": instead(1, float("inf")),
    "reward a vector": instead(1, np.ones(2)),
    "reward complex": instead(1, 1j),
    "terminated None": instead(2, None),
    "terminated NaN": instead(2, float("nan")),
    "terminated 2": instead(2, 2),
    "terminated a word": instead(2, "no"),
    "truncated None": instead(3, None),
    "truncated a vector": instead(3, np.zeros(2, bool)),
    "infos None": instead(4, None),
}
