"""Training runs of IMPALA: how well it learns, and what old data do to it.

``python -m benchmarks.impala_learning [NAME …]`` works as ``benchmarks.learning`` does.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.learning import Experiment, Variant, main
from literate_rl.actors import ActorLearner, ActorsConfig, actors_settings
from literate_rl.agents import make_envs
from literate_rl.impala import IMPALA, IMPALAConfig, IMPALAPolicy, impala_settings
from literate_rl.off_policy import vtrace_data
from literate_rl.policies import make_policy
from literate_rl.workshop.runs import flat_env

UPDATES = (1, 4, 8)
LAGS = (5, 15)


class Uncorrected(IMPALAPolicy):
    """Takes all data for its own: each ratio is exactly 1."""

    def reshape_data(self, output: dict[str, Any], data: dict[str, Any]) -> vtrace_data:
        """Replace what the older policy said by what this one says."""
        steps = super().reshape_data(output, data)
        return steps._replace(behaviour_output=steps.target_output)


def parts(config: IMPALAConfig, env: str, policy: type[IMPALAPolicy]) -> Any:
    """Return a policy and the function that makes its environments."""
    build_envs = partial(make_envs, partial(flat_env, env), config.n_sample)
    envs = build_envs()
    torch.manual_seed(config.seed)
    model = make_policy(envs.single_observation_space, envs.single_action_space)
    return policy(config, model), build_envs


def build(
    config: IMPALAConfig, env: str, policy: type[IMPALAPolicy] = IMPALAPolicy
) -> IMPALA:
    """Build the agent of the chapter."""
    impala, build_envs = parts(config, env, policy)
    return IMPALA(impala, build_envs())


def plain(
    env: str, seeds: int, episodes: int, goal: float, **changes: Any
) -> Experiment:
    """Return the experiment that trains the agent as it is set, but for changes."""
    config = replace(impala_settings(env), **changes)
    variants = {"IMPALA": Variant({}, partial(build, env=env))}
    return Experiment(env, config, seeds, episodes, variants, goal)


def behind(updates: int = 1, lag: int = 0) -> Experiment:
    """Return the experiment with data of an older policy, with and without V-trace."""
    env = "CartPole-v1"
    config = IMPALAConfig(
        total_steps=60_000,
        on_policy=True,
        n_sample=8,
        unroll_len=20,
        update_per_collect=updates,
        learning_rate=2e-3,
        lambda_=1.0,
        entropy_weight=0.01,
        lag=lag,
        checkpoint_interval=1000,  # beyond the end: no reset in between
    )
    kinds = {"V-trace": IMPALAPolicy, "uncorrected": Uncorrected}
    variants = {
        name: Variant({}, partial(build, env=env, policy=policy))
        for name, policy in kinds.items()
    }
    return Experiment(env, config, 10, 20, variants)


def with_actors(config: ActorsConfig, env: str) -> ActorLearner:
    """Build the agent with actors."""
    return ActorLearner(*parts(config, env, IMPALAPolicy))


def two_actors(env: str) -> Experiment:
    """Return the experiment with two actors in processes of their own."""
    config = replace(actors_settings(env), actors=2, transport="shared")
    variants = {"two actors": Variant({}, partial(with_actors, env=env))}
    return Experiment(env, config, 5, 20, variants, goal=500)


EXPERIMENTS = {
    "impala_cartpole": plain("CartPole-v1", seeds=5, episodes=20, goal=500),
    "impala_unscaled": plain(
        "CartPole-v1", seeds=5, episodes=20, goal=500, reward_scale=1.0
    ),
    "impala_actors": two_actors("CartPole-v1"),
    "impala_force": plain("literate_rl/ForceCartPole-v0", 5, episodes=20, goal=475),
    **{f"impala_updates_{n}": behind(updates=n) for n in UPDATES},
    **{f"impala_lag_{lag}": behind(lag=lag) for lag in LAGS},
}

if __name__ == "__main__":
    main("python -m benchmarks.impala_learning", EXPERIMENTS)
