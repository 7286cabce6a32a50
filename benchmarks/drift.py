"""What holds an agent back on CartPole? Two judges of its last policy.

Two mistakes end an episode: the pole falls, or the cart leaves the track. The second
comes slowly. The cart drifts for a hundred steps, and each push changes little.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

EDGE = 2.4  # where the track ends
FAR = 0.6  # from here on a cart drifts
STARTS = 100
SEED = 1_000_000
DRAWS = 200  # episodes for each state and first push
GAMMA = 0.99

States = NDArray[np.float32]


def carts(number: int) -> Any:
    """Return copies of CartPole that step at once."""
    return gym.make_vec("CartPole-v1", number, vectorization_mode="vector_entry_point")


@torch.no_grad()
def greedy(policy: Any) -> tuple[States, States]:
    """Play episodes without noise.

    Returns:
        The states that were seen (N, 4), and the last ones of all episodes (100, 4).
    """
    envs = carts(STARTS)
    obs, _ = envs.reset(seed=SEED)
    seen, last = [], np.zeros_like(obs)
    playing = np.ones(STARTS, dtype=bool)
    while playing.any():
        seen.append(obs[playing].copy())
        action = policy.to_env(policy.act(torch.from_numpy(obs), 0.0))
        obs, _, terminated, truncated, _ = envs.step(action)
        done = playing & (terminated | truncated)
        last[done] = obs[done]
        playing &= ~done
    return np.concatenate(seen), last


def left_the_track(policy: Any) -> float:
    """Return the share of episodes in which the cart leaves the track."""
    _, last = greedy(policy)
    return float((abs(last[:, 0]) > EDGE).mean())


@torch.no_grad()
def what_a_push_gains(policy: Any) -> float:
    """Return how many steps the better push gains in a drifting cart, on average.

    The return is discounted. After the push the policy goes on, with its own noise.
    """
    seen, _ = greedy(policy)
    far = seen[abs(seen[:, 0]) > FAR]
    if len(far) < STARTS:
        return float("nan")
    states = far[np.linspace(0, len(far) - 1, STARTS).astype(int)]
    left, right = (returns(policy, states, push) for push in (0, 1))
    return float((right - left).abs().mean())


def returns(policy: Any, states: States, push: int) -> Tensor:
    """Return the mean discounted return of a first push in each state."""
    envs = carts(len(states) * DRAWS)
    envs.reset(seed=SEED)
    cart = envs.unwrapped
    cart.state = np.repeat(states.T, DRAWS, axis=1).astype(cart.state.dtype)
    generator = torch.Generator().manual_seed(SEED)
    playing, total, weight = np.ones(envs.num_envs, dtype=bool), 0.0, 1.0
    action = np.full(envs.num_envs, push)
    while playing.any() and weight > 1e-3:
        obs, _, terminated, truncated, _ = envs.step(action)
        total = total + weight * playing
        playing &= ~(terminated | truncated)
        weight *= GAMMA
        noise = policy.noise(1, envs.num_envs, generator)[0]
        action = policy.to_env(policy.act(torch.from_numpy(obs), noise))
    return torch.as_tensor(total).reshape(len(states), DRAWS).mean(1)
