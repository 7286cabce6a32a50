"""Hybrid PPO over seeds: losses, idle arguments, lists of actions, and Platform.

``python -m benchmarks.hybrid_learning [NAME …]`` works as ``benchmarks.learning`` does.
The experiment ``platform`` needs the packages of the extra ``platform``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from benchmarks.learning import Experiment, Variant, main
from literate_rl.data.agents import make_envs
from literate_rl.data.worlds import Moving
from literate_rl.learners.ppo import PPO, PPOConfig, ppo_settings
from literate_rl.maths.ppo_error import (
    policy_error_from_log_prob,
    ppo_info,
    ppo_policy_loss,
)
from literate_rl.nets.hybrid_action import HybridPolicyNetwork
from literate_rl.nets.hybrid_policy import HybridActions, make_hybrid_policy
from literate_rl.runs.runs import flat_env

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


Listed = tuple[int, float]
POWERS: list[Listed] = [(0, power) for power in (0.0, 0.5, 1.0)]
COARSE: list[Listed] = [(1, angle) for angle in (-1.0, -0.4, 0.4, 1.0)]
FINE: list[Listed] = [(1, angle) for angle in (-0.15, -0.05, 0.05, 0.15)]
STOP: list[Listed] = [(2, 0.0)]
# Nobody tuned them. The shorter one lacks the small angles.
LISTS = {12: [*POWERS, *COARSE, *FINE, *STOP], 8: [*POWERS, *COARSE, *STOP]}


class ListedActions(gym.ActionWrapper[Any, Any, Any]):
    """Moving with a list of fixed actions, a type and its argument each."""

    def __init__(self, env: gym.Env[Any, Any], listed: list[Listed]) -> None:
        super().__init__(env)
        self.listed, self.action_space = listed, spaces.Discrete(len(listed))
        space: Any = env.action_space
        self.shapes = [box.shape for box in space[1]]

    def action(self, action: Any) -> tuple[int, tuple[np.ndarray, ...]]:
        """Look the action up. Only the argument of its type is read."""
        kind, value = self.listed[action]
        args = [np.zeros(shape, np.float32) for shape in self.shapes]
        args[kind][:] = value
        return kind, tuple(args)


def moving_with_list(number: int, **arguments: Any) -> gym.Env[Any, Any]:
    return ListedActions(Moving(**arguments), LISTS[number])


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
for number in LISTS:
    gym.register(
        f"MovingList{number}-v0",
        entry_point=partial(moving_with_list, number),
        max_episode_steps=100,
    )
gym.register("PlatformBox-v0", entry_point=platform)


class PerHead(HybridActions):
    """Hybrid actions with a log-probability for the type and one for the arguments."""

    def evaluate(self, row: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities ``(*, 2)`` and entropies ``(*)``."""
        policy = self.distribution(row)
        heads = policy.log_prob_of_heads(self.action_of(action))
        entropy = super().evaluate(row, action)[1]
        return torch.stack(heads, -1).view(*entropy.shape, 2), entropy


def per_head_error(
    new: Tensor, old: Tensor, entropy: Tensor, adv: Tensor, *rest: Any
) -> tuple[ppo_policy_loss, ppo_info]:
    """Add up the errors of both heads; the entropy counts once."""
    of_type, of_args = (
        policy_error_from_log_prob(new[:, k], old[:, k], entropy, adv, *rest)
        for k in range(2)
    )
    loss = of_type[0].policy_loss + of_args[0].policy_loss
    return ppo_policy_loss(loss, of_type[0].entropy_loss), of_type[1]


def everything(actions: HybridActions) -> HybridActions:
    """Return the distribution in which each type uses all arguments."""
    ones = torch.ones_like(actions.mask)
    return HybridActions(actions.space, ones, actions.low, actions.high)


class RatioNotMasked(HybridActions):
    """Hybrid actions whose log-probability, and it alone, counts all arguments."""

    def evaluate(self, row: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies, each ``(*)``."""
        log_prob, _ = everything(self).evaluate(row, action)
        return log_prob, super().evaluate(row, action)[1]


class IdleWithoutGradient(HybridActions):
    """The whole ratio of all arguments, with the gradient of those that count."""

    def evaluate(self, row: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies, each ``(*)``."""
        log_prob, entropy = super().evaluate(row, action)
        whole, _ = everything(self).evaluate(row, action)
        return log_prob + (whole - log_prob).detach(), entropy


class EntropyNotMasked(HybridActions):
    """Hybrid actions whose entropy, and it alone, counts all arguments."""

    def evaluate(self, row: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies, each ``(*)``."""
        _, entropy = everything(self).evaluate(row, action)
        return super().evaluate(row, action)[0], entropy


class NotMasked(HybridActions):
    """Hybrid actions that count all arguments everywhere."""

    def evaluate(self, row: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies, each ``(*)``."""
        return everything(self).evaluate(row, action)


class PerHeadNotMasked(PerHead):
    """DI-engine's: one log-probability for the type, one for all the arguments."""

    @classmethod
    def from_space(cls, space: spaces.Space[Any], mask: Any = None) -> PerHeadNotMasked:
        """Read a space; each type uses all arguments."""
        actions = super().from_space(space, mask)
        return replace(actions, mask=torch.ones_like(actions.mask))


DI_ENGINE = "per head, not masked"
ENCODER = "encoder without the idle"
LOSSES = {
    "joint": HybridActions,
    "per head": PerHead,
    "not masked": NotMasked,
    DI_ENGINE: PerHeadNotMasked,
    "ratio not masked": RatioNotMasked,
    "idle without gradient": IdleWithoutGradient,
    ENCODER: RatioNotMasked,
    "entropy not masked": EntropyNotMasked,
}


def spare_encoder(network: HybridPolicyNetwork, used: Tensor) -> None:
    """Let the means of arguments that no type uses train their head alone."""

    def forward(head: Any, seen: tuple[Tensor], mu: Tensor) -> Tensor:
        alone = nn.functional.linear(seen[0].detach(), head.weight, head.bias)
        return torch.where(used, mu, alone)

    network.action_args_mu.register_forward_hook(forward)


def agent(config: PPOConfig, env: str, mask: Any = None, loss: str = "joint") -> PPO:
    """Build the agent of the chapter, with one of the losses."""
    envs = make_envs(partial(flat_env, env), config.num_envs)
    torch.manual_seed(config.seed)
    policy = make_hybrid_policy(
        envs.single_observation_space,
        envs.single_action_space,
        mask,
        normalize=config.normalize_obs,
    )
    policy.actions = LOSSES[loss].from_space(envs.single_action_space, mask)
    if loss == ENCODER:
        network: Any = policy.network.actor.network
        spare_encoder(network, policy.actions.mask.any(0))
    error = per_head_error if loss.startswith("per head") else None
    return PPO(policy, envs, config, policy_error=error)


def compare(
    env: str,
    config: PPOConfig,
    losses: Iterable[str],
    mask: Any = None,
    goal: float | None = None,
) -> Experiment:
    """Return the experiment that trains with each of some losses."""
    variants = {
        loss: Variant({}, partial(agent, env=env, mask=mask, loss=loss))
        for loss in losses
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

# On the lander a run takes minutes, so the two halves of the mask are left out there.
THREE = ("joint", "per head", "not masked")
MASK_OR_NOT = ("joint", "not masked", "ratio not masked", "entropy not masked")

GYMNASIUM_LANDERS = {
    "lander_discrete": "LunarLander-v3",
    "lander_continuous": "LunarLanderContinuous-v3",
}

# What takes the harm of idle arguments apart, and is of no use elsewhere.
CAUSES = "idle without gradient", ENCODER
ASKED = [loss for loss in LOSSES if loss not in CAUSES]

EXPERIMENTS = {
    "moving": compare(MOVING, ppo_settings(MOVING), ASKED, goal=1.5),
    "lander": compare(LANDER, ppo_settings(LANDER), THREE, goal=200),
    # The same moon and the same settings, with the actions that Gymnasium offers.
    **{
        name: Experiment(env, ppo_settings(LANDER), 5, 100, {"PPO": Variant({})}, 200)
        for name, env in GYMNASIUM_LANDERS.items()
    },
    **{
        f"moving_idle_{number}": compare(
            f"MovingIdle{number}-v0",
            ppo_settings(MOVING),
            MASK_OR_NOT if number < max(IDLE) else (*MASK_OR_NOT, DI_ENGINE),
            np.pad(MOVING_MASK, ((0, 0), (0, number))),
        )
        for number in IDLE
    },
    # What of sixteen idle arguments does the harm: their ratio or their gradient?
    "moving_idle_cause": replace(
        compare(
            "MovingIdle16-v0",
            ppo_settings(MOVING),
            ("joint", "ratio not masked", *CAUSES),
            np.pad(MOVING_MASK, ((0, 0), (0, 16))),
        ),
        seeds=10,
        watched=("losses/clipfrac",),
    ),
    # PPO of the chapter, which chooses from a list, with the settings of hybrid PPO.
    **{
        f"moving_list_{number}": Experiment(
            f"MovingList{number}-v0",
            ppo_settings(MOVING),
            5,
            100,
            {"PPO": Variant({})},
            1.5,
        )
        for number in LISTS
    },
    "platform": compare(
        "PlatformBox-v0",
        PLATFORM_SETTINGS,
        ["joint"],
        goal=0.9,
    ),
}


if __name__ == "__main__":
    main("python -m benchmarks.hybrid_learning", EXPERIMENTS)
