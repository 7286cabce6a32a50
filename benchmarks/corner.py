"""Is an actor with two actions in a corner? A look at policies of CartPole."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

SEED = 1_000_000


@lru_cache
def probes() -> Tensor:
    """Return 400 states of CartPole that random actions visit."""
    pole = gym.make("CartPole-v1")
    pole.action_space.seed(SEED)
    obs, _ = pole.reset(seed=SEED)
    rows = []
    while len(rows) < 400:
        rows.append(obs)
        obs, _, done, *_ = pole.step(pole.action_space.sample())
        if done:
            obs, _ = pole.reset()
    return torch.as_tensor(np.array(rows), dtype=torch.float32)


def corner(policy: Any) -> dict[str, float]:
    """Return how sure an actor with two actions is, and of what.

    Returns:
        The median probability of the action that is less likely (``other``), the share
        of states where the second action is the likely one (``right``) and where the
        critic prefers the less likely one (``against``), and the length of the actor's
        gradient (``slope``).
    """
    obs, network = probes(), policy.network
    prob = network(obs)
    both = torch.eye(2)
    with torch.no_grad():
        each = [network.critics[0](obs, x.expand(len(obs), 2)) for x in both]
        likes = torch.cat([x.reshape(-1, 1) for x in each], -1).argmax(-1)
    weights = list(network.actor.parameters())
    grads = torch.autograd.grad(policy.network.value(obs).mean(), weights)
    likely = prob.argmax(-1)
    return {
        "other": prob.amin(-1).median().item(),
        "right": (likely == 1).float().mean().item(),
        "against": (likely != likes).float().mean().item(),
        "slope": torch.stack([g.norm() for g in grads]).norm().item(),
    }
