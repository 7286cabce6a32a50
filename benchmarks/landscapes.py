"""Is a critic wrong about a state, or about its actions? A look at Pendulum's.

The pendulum is simulated without the environment, in many states at once.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[np.float64]
SEED = 1_000_000
GAMMA = 0.99
# States that the greedy policy visits, and actions in each of them.
VISITED, TRIED = 300, 21
PLAYED = 400  # the rest counts less than 2 %
COPIES, LENGTH = 8, 200


def swing(state: Numbers, torque: Numbers) -> tuple[Numbers, Numbers]:
    """Return the states and rewards of Pendulum after one step.

    Args:
        state: Angles and angular velocities (N, 2).
        torque: Torques (N,).
    """
    angle, speed = state.T
    torque = torque.clip(-2.0, 2.0)
    lean = (angle + np.pi) % (2 * np.pi) - np.pi
    reward = -(lean**2 + 0.1 * speed**2 + 0.001 * torque**2)
    speed = (speed + 0.05 * (15 * np.sin(angle) + 3 * torque)).clip(-8.0, 8.0)
    return np.stack([angle + 0.05 * speed, speed], -1), reward


def seen(state: Numbers) -> Tensor:
    """Return the observations of states."""
    angle, speed = state.T
    rows = np.stack([np.cos(angle), np.sin(angle), speed], -1)
    return torch.as_tensor(rows, dtype=torch.float32)


@lru_cache(maxsize=1)
@torch.no_grad()
def landscape(policy: Any) -> dict[str, float]:
    """Compare the first critic with what actions are really worth.

    Returns:
        The mean error (``offset``), the mean over states of the error's standard
        deviation over the actions (``ridge``), that of the true values (``spread``),
        and what the actor's action is worth less than the best one (``lost``).
    """

    def greedy(state: Numbers) -> Numbers:
        action: Numbers = policy.to_env(policy.act(seen(state), 0.0))[:, 0]
        return action.astype(float)

    # States that the policy visits, from eight starts on.
    rng = np.random.default_rng(SEED)
    state = rng.uniform([-np.pi, -1.0], [np.pi, 1.0], (COPIES, 2))
    visited = []
    for _ in range(LENGTH):
        visited.append(state)
        state, _ = swing(state, greedy(state))
    states = np.concatenate(visited)
    states = states[np.linspace(0, len(states) - 1, VISITED).astype(int)]
    # Any torque first, and the actor's own; then the actor goes on.
    torques = np.tile(np.linspace(-2.0, 2.0, TRIED), (VISITED, 1))
    torques = np.hstack([torques, greedy(states)[:, None]])
    many = states.repeat(TRIED + 1, 0)
    value = policy.network.critics[0](
        seen(many), torch.as_tensor(torques.reshape(-1, 1), dtype=torch.float32)
    )
    promised = value.reshape(torques.shape).numpy()
    torque, earned, weight = torques.ravel(), np.zeros(torques.size), 1.0
    for _ in range(PLAYED):
        many, reward = swing(many, torque)
        earned, weight = earned + weight * reward, weight * GAMMA
        torque = greedy(many)
    true = earned.reshape(torques.shape)
    error = (promised - true)[:, :-1]
    return {
        "offset": float(error.mean()),
        "ridge": float(error.std(1).mean()),
        "spread": float(true[:, :-1].std(1).mean()),
        "lost": float((true.max(1) - true[:, -1]).mean()),
    }


def judge(policy: Any, name: str) -> float:
    """Return one number of the landscape."""
    return landscape(policy)[name]


JUDGES = {
    name: partial(judge, name=name) for name in ("offset", "ridge", "spread", "lost")
}
