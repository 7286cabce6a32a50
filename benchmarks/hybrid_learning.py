"""Hybrid PPO over seeds: three losses, idle arguments, and the Platform benchmark.

``python -m benchmarks.hybrid_learning [NAME …]`` works as ``benchmarks.learning`` does.
The experiment ``platform`` needs the packages of the extra ``platform``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from benchmarks.learning import Experiment, Variant, main
from literate_rl.agents import make_envs
from literate_rl.hybrid_action import (
    HybridPolicy,
    Moving,
    ppo_policy_error_hybrid,
    ppo_policy_error_hybrid_per_head,
)
from literate_rl.ppo import PPO, PPOConfig, ppo_settings
from literate_rl.workshop.runs import flat_env

MOVING, LANDER = "literate_rl/Moving-v0", "literate_rl/HybridLander-v0"
MOVING_MASK = np.array([[1, 0], [0, 1], [0, 0]])
IDLE = (2, 4, 16)


class IdleArguments(gym.ActionWrapper[Any, Any, Any]):
    """Moving with further arguments that no type uses and nobody reads."""

    def __init__(self, env: gym.Env[Any, Any], number: int) -> None:
        super().__init__(env)
        idle = spaces.Box(-1.0, 1.0, (number,))
        self.action_space = spaces.Tuple((*env.action_space, idle))

    def action(self, action: tuple[Any, ...]) -> tuple[Any, ...]:
        """Drop the idle arguments."""
        return action[:2]


def moving_with_idle(number: int, **arguments: Any) -> gym.Env[Any, Any]:
    return IdleArguments(Moving(**arguments), number)


def platform(**arguments: Any) -> gym.Env[Any, Any]:
    """Make Platform without the step counter in its observation."""
    env = gym.make("gym_platform:Platform-v0", **arguments)
    return gym.wrappers.TransformObservation(
        env, itemgetter(0), env.observation_space[0]
    )


for number in IDLE:
    gym.register(
        f"MovingIdle{number}-v0",
        entry_point=partial(moving_with_idle, number),
        max_episode_steps=100,
    )
gym.register("PlatformBox-v0", entry_point=platform)

Loss = Callable[[HybridPolicy, Any, float, float | None], Any]


def joint(policy: HybridPolicy, data: Any, *clips: Any) -> Any:
    return policy.error(data, *clips)


def per_head(policy: HybridPolicy, data: Any, *clips: Any) -> Any:
    mask = policy.spec.mask
    return ppo_policy_error_hybrid_per_head(policy.trees(data), mask, *clips)


def unmasked(policy: HybridPolicy, data: Any, *clips: Any) -> Any:
    everything = torch.ones_like(policy.spec.mask)
    return ppo_policy_error_hybrid(policy.trees(data), everything, *clips)


def agent(config: PPOConfig, env: str, mask: Any = None, loss: Loss = joint) -> PPO:
    """Build the agent of the chapter, with one of the losses."""
    envs = make_envs(partial(flat_env, env), config.num_envs)
    torch.manual_seed(config.seed)
    size = envs.single_observation_space.shape[0]
    policy = HybridPolicy(
        size, envs.single_action_space, mask, normalize=config.normalize_obs
    )
    return PPO(policy, envs, config, policy_error=partial(loss, policy))


def compare(
    env: str,
    config: PPOConfig,
    losses: dict[str, Loss],
    mask: Any = None,
    goal: float | None = None,
) -> Experiment:
    """Return the experiment that trains with each of some losses."""
    variants = {
        name: Variant({}, partial(agent, env=env, mask=mask, loss=loss))
        for name, loss in losses.items()
    }
    return Experiment(env, config, 5, 100, variants, goal)


PLATFORM_SETTINGS = PPOConfig(
    total_steps=64_000,
    num_envs=16,
    num_steps=64,
    num_epochs=10,
    learning_rate=2e-3,
    normalize_obs=True,
)

LOSSES = {"joint": joint, "per head": per_head, "not masked": unmasked}
MASK_OR_NOT = {"joint": joint, "not masked": unmasked}

EXPERIMENTS = {
    "moving": compare(MOVING, ppo_settings(MOVING), LOSSES, goal=1.5),
    "lander": compare(LANDER, ppo_settings(LANDER), LOSSES, goal=200),
    **{
        f"moving_idle_{number}": compare(
            f"MovingIdle{number}-v0",
            ppo_settings(MOVING),
            MASK_OR_NOT,
            np.pad(MOVING_MASK, ((0, 0), (0, number))),
        )
        for number in IDLE
    },
    "platform": compare(
        "PlatformBox-v0",
        PLATFORM_SETTINGS,
        {"joint": joint},
        goal=0.9,
    ),
}


if __name__ == "__main__":
    main("python -m benchmarks.hybrid_learning", EXPERIMENTS)
