"""PPO on Taxi with masks always, while acting only, and never.

``python -m benchmarks.masks_learning`` works as ``benchmarks.learning`` does. The
settings are those of the chapter on legal actions. They were not tuned.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from benchmarks.learning import Experiment, Variant, main
from literate_rl.data.agents import make_envs
from literate_rl.learners.ppo import PPO, PPOConfig
from literate_rl.nets.masks import WithoutMask
from literate_rl.nets.policies import Policy, make_policy
from literate_rl.runs.runs import flat_env


class WhileActing(Policy):
    """Takes legal actions, and learns as if all had been legal."""

    def evaluate_actions(
        self, obs: Tensor, action: Tensor, *, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities and entropies of the policy without masks."""
        return super().evaluate_actions(obs, action)


def without_mask(**options: Any) -> gym.Env[Any, Any]:
    """Make the environment without its masks."""
    return WithoutMask(gym.make("Taxi-v4", **options))


gym.register("TaxiWithoutMask-v4", entry_point=without_mask)  # type: ignore[arg-type]


def taxi_agent(config: PPOConfig, env: str, kind: type[Policy] = Policy) -> PPO:
    """Build the agent of the chapter."""
    envs = make_envs(partial(flat_env, env), config.num_envs)
    torch.manual_seed(config.seed)
    made = make_policy(envs.single_observation_space, envs.single_action_space)
    policy = kind(made.network, made.actions)
    policy.recipe = made.recipe
    return PPO(policy, envs, config)


def experiment(env: str, kinds: dict[str, type[Policy]]) -> Experiment:
    """Return the experiment that trains kinds of policies."""
    config = PPOConfig(
        total_steps=102_400,
        num_envs=16,
        num_steps=64,
        learning_rate=3e-3,
        gamma=0.95,
        scale_reward=True,
    )
    variants = {
        name: Variant({}, partial(taxi_agent, env=env, kind=kind))
        for name, kind in kinds.items()
    }
    return Experiment(env, config, seeds=10, episodes=100, variants=variants)


EXPERIMENTS = {
    "masks_taxi": experiment(
        "Taxi-v4", {"masks": Policy, "masks while acting": WhileActing}
    ),
    "masks_taxi_without": experiment("TaxiWithoutMask-v4", {"no masks": Policy}),
}


if __name__ == "__main__":
    main("python -m benchmarks.masks_learning", EXPERIMENTS)
