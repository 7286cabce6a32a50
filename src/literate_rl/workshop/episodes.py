# Generated from chapters/workshop/episodes.py (edit there); digest 0fcce3c2bb460c18
"""Episodes: what guards the loop of agent and environment, and counts its episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from literate_rl.workshop.signatures import Float, Fraction, checked

__all__ = [
    "EpisodeCounter",
    "check_chain",
    "check_copies",
    "check_experience",
    "env_maker",
    "on_cpu",
    "plain_actions",
]


@checked
def env_maker(
    env: str | Callable[[], gym.Env[Any, Any]],
) -> Callable[[], gym.Env[Any, Any]]:
    """Return a function that makes an environment, from an id or a function."""

    def make() -> gym.Env[Any, Any]:
        try:
            made = gym.make(env) if isinstance(env, str) else env()
        except gym.error.Error as error:
            raise ValueError(f"env {env!r} cannot be made: {error}") from error
        if not isinstance(made, gym.Env):
            raise TypeError(f"env must make a gymnasium.Env, got {type(made).__name__}")
        return made

    return make


def check_copies(envs: SyncVectorEnv) -> None:
    """Raise if two copies are one object: they would step each other's episode."""
    if len(set(map(id, envs.envs))) < envs.num_envs:
        raise ValueError("env must make a new environment at each call")


def on_cpu(action: Tensor) -> Tensor:
    """Return an agent's actions on the CPU, where environments run."""
    if not isinstance(action, Tensor):
        raise TypeError(f"act must return a tensor, got {type(action).__name__}")
    return action.cpu()


def plain_actions(envs: VectorEnv[Any, Any, Any], action: Tensor) -> NDArray[Any]:
    """Return actions as an array, or raise unless they fit the action space."""
    given, wanted = tuple(action.shape), envs.action_space.shape
    if given != wanted:
        raise ValueError(f"act must return shape {wanted}, got {given}")
    array: NDArray[Any] = action.numpy()
    return array


def check_experience(step: int, **arrays: NDArray[Any]) -> None:
    """Raise if an environment gave a number that is not finite, and say where.

    Args:
        step: Steps taken before this rollout.
        arrays: What the environments gave, ``(T, B, *)``, by name.
    """
    for name, array in arrays.items():
        bad = ~np.isfinite(array)
        if bad.any():
            index = tuple(np.argwhere(bad)[0])
            t, b = int(index[0]), int(index[1])
            raise ValueError(
                f"{name} of environment {b} is {array[index]} at step "
                f"{step + t * array.shape[1]} (row {t} of the rollout)"
            )


class EpisodeCounter:
    """Adds up the rewards and the steps of each episode, over many rollouts.

    Args:
        num_envs: Number of environments.
    """

    def __init__(self, num_envs: int) -> None:
        # Reward and steps of the episodes under way.
        self.carried = np.zeros((2, num_envs))

    def add(
        self, reward: NDArray[Any], done: NDArray[Any], real: NDArray[Any]
    ) -> NDArray[np.float64]:
        """Return the returns and the lengths of the episodes that end in a rollout.

        Both are NaN at all other steps. A step that is not ``real`` is not counted.
        """
        total = np.stack([reward.astype(np.float64), real]).cumsum(1)
        total += self.carried[:, None]
        # What the sums were when the episode under way began.
        start = np.zeros_like(self.carried)
        ended = np.full_like(total, np.nan)
        for t, b in zip(*done.nonzero(), strict=True):
            ended[:, t, b] = total[:, t, b] - start[:, b]
            start[:, b] = total[:, t, b]
        self.carried = total[:, -1] - start
        return ended


@checked
def check_chain(
    transition: Float[np.ndarray, "S S"],
    reward: Float[np.ndarray, "S"],
    gamma: Fraction,
) -> None:
    """Raise unless a chain of states has finite values."""
    if not np.isfinite(reward).all():
        raise ValueError("reward must be finite")
    # NaN is not at least zero either.
    total = transition.sum(1)
    if not ((transition >= 0).all() and (total <= 1 + 1e-9).all()):
        raise ValueError("transition must have rows of probabilities with a sum <= 1")
    survival = np.linalg.matrix_power(gamma * transition, len(reward)).sum(1)
    if (survival > 1 - 1e-12).any():
        raise ValueError(
            f"gamma must be below 1 if a state never terminates, got {gamma}"
        )
