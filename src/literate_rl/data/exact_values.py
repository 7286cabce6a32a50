# Generated from chapters/exact_values.py (edit there); digest 274233f24968fdb2
"""Exact values: a world whose values are known, and the equation that gives them."""

from __future__ import annotations

from typing import Annotated, Any

import gymnasium as gym
import numpy as np
from annotated_types import Ge
from numpy.typing import ArrayLike, NDArray

from literate_rl.data.worlds import check_action
from literate_rl.ground.signatures import Float, Fraction, check_that, checked

__all__ = ["Ring", "check_chain", "tabular_values"]


class Ring(gym.Env[np.int64, np.int64]):
    """A ring of cells with a reward in cell 0 and a chance to break down.

    The observation is the number of the cell. Action 0 goes left (to the cell before),
    action 1 goes right (to the cell after). An episode starts in a random cell. Each
    step terminates it with ``end_probability``.
    """

    metadata = {"render_modes": []}

    @checked
    def __init__(
        self, num_cells: Annotated[int, Ge(2)] = 5, end_probability: Fraction = 0.02
    ) -> None:
        self.num_cells = num_cells
        self.end_probability = end_probability
        self.observation_space = gym.spaces.Discrete(num_cells)
        self.action_space = gym.spaces.Discrete(2)
        self.cell = np.int64(0)

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Put the robot into a random cell."""
        super().reset(seed=seed)
        self.cell = self.np_random.integers(self.num_cells)
        return self.cell, {}

    def step(
        self, action: np.int64
    ) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Move by one cell; return observation, reward, two flags and an empty dict."""
        check_action(self.action_space, action)
        reward = float(self.cell == 0)
        self.cell = np.int64((self.cell + (1 if action == 1 else -1)) % self.num_cells)
        # The environment knows only one way to end. A time limit is not its business,
        # so its own `truncated` is always false.
        terminated = bool(self.np_random.random() < self.end_probability)
        return self.cell, reward, terminated, False, {}

    @checked
    def chain(self, right: Fraction) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return what ``tabular_values`` reads; ``right`` is the chance of action 1."""
        stay = np.eye(self.num_cells)
        # Rolling the identity's columns by one sends each cell to its neighbour.
        left, ahead = np.roll(stay, -1, axis=1), np.roll(stay, 1, axis=1)
        walk = right * ahead + (1 - right) * left
        return (1 - self.end_probability) * walk, stay[0]


@checked
def check_chain(
    transition: Float[np.ndarray, "S S"],
    reward: Float[np.ndarray, "S"],
    gamma: Fraction,
) -> None:
    """Raise unless a chain of states has finite values."""
    check_that(np.isfinite(reward).all(), "reward must be finite")
    # NaN is not at least zero either.
    fits = (transition >= 0).all() and (transition.sum(1) <= 1 + 1e-9).all()
    check_that(fits, "transition must have rows of probabilities with a sum <= 1")
    survival = np.linalg.matrix_power(gamma * transition, len(reward)).sum(1)
    words = f"gamma must be below 1 if a state never terminates, got {gamma}"
    check_that((survival <= 1 - 1e-12).all(), words)


@checked
def tabular_values(
    transition: ArrayLike, reward: ArrayLike, gamma: Fraction
) -> NDArray[Any]:
    """Solve the Bellman equation of a policy exactly, in float64.

    Args:
        transition: Probabilities (S, S) from row to column, averaged over the policy.
            What a row lacks to 1 is the probability of termination.
        reward: Mean reward of a step from each state, (S,).
        gamma: Discount; below 1 if some state never terminates.

    Raises:
        ValueError: If a row is no row of probabilities, or if ``gamma`` is 1 and a
            state never terminates.

    Source: Sutton and Barto, Reinforcement Learning, 2nd edition, equation 3.14.
    """
    chain = np.asarray(transition, dtype=np.float64)
    pay = np.asarray(reward, dtype=np.float64)
    check_chain(transition=chain, reward=pay, gamma=gamma)
    # Here is {eq}`tabular-value`. Solving is faster and more exact than inverting.
    return np.linalg.solve(np.eye(len(pay)) - gamma * chain, pay)
