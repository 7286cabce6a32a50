"""A2C and A3C: one update for each rollout, no clip, and gradients that come late.

``python -m benchmarks.a2c_learning [NAME …]`` works as ``benchmarks.learning`` does.

The learner of ``a2c`` stands between REINFORCE and PPO. It is PPO's with one epoch, one
minibatch and a clip range that nothing leaves, so it learns with Adam and GAE. Its
length of a rollout, learning rate, discount and lambda were chosen among ten settings,
by three runs of each with the seeds 100 to 102.

The other experiments are about the agents of the chapters on A2C and on A3C.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import torch

from benchmarks.learning import Experiment, Variant, main
from literate_rl.a2c import A2C, A2CConfig, a2c_settings
from literate_rl.a3c import A3C, A3CConfig, a3c_settings
from literate_rl.agents import make_envs
from literate_rl.contract_models import CategoricalActor, StateValue
from literate_rl.impala import IMPALA, impala_settings
from literate_rl.policies import make_policy
from literate_rl.ppo import PPO, PPOConfig, ppo_settings
from literate_rl.processes import transport_named
from literate_rl.workshop.fast_forms import numpy_act
from literate_rl.workshop.own_models import make_contract_policy
from literate_rl.workshop.runs import flat_env

ENV = "CartPole-v1"
HIDDEN = 64
LAGS = (0, 31, 127)


def parts(config: A2CConfig) -> Any:
    """Return a policy and the function that makes its environments."""
    build_envs = partial(make_envs, partial(flat_env, ENV), config.num_envs)
    envs = build_envs()
    torch.manual_seed(config.seed)
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    return policy, build_envs


def build(config: A2CConfig) -> A2C:
    """Build the agent that learns alone."""
    policy, build_envs = parts(config)
    return A2C(policy, build_envs(), config, numpy_act(policy))


def with_workers(config: A3CConfig) -> A3C:
    """Build the agent whose workers send gradients."""
    transport = transport_named(config.transport)
    return A3C(*parts(config), config, transport, numpy_act)


def workers(**changes: Any) -> Experiment:
    """Return the experiment with workers in processes of their own."""
    config = replace(a3c_settings(ENV), transport="shared", **changes)
    variants = {"two workers": Variant({}, with_workers)}
    return Experiment(ENV, config, 10, 100, variants, goal=475, by_clock=True)


def with_models(family: str, config: A2CConfig) -> Any:
    """Build an agent of a family around an actor and a critic of the contract."""
    env = gym.make(ENV)
    build_envs = partial(make_envs, partial(flat_env, ENV))
    spaces = env.observation_space, env.action_space
    torch.manual_seed(config.seed)
    policy = make_contract_policy(
        *spaces, CategoricalActor(4, 2, HIDDEN), StateValue(4, HIDDEN)
    )
    same: Any = {"seed": config.seed, "total_steps": config.total_steps}
    if family == "PPO":
        ppo = replace(ppo_settings(ENV), **same)
        return PPO(policy, build_envs(ppo.num_envs), ppo)
    if family == "IMPALA":
        impala = replace(impala_settings(ENV), **same)
        return IMPALA(policy, build_envs(impala.n_sample), impala)
    if family == "A3C":
        remote = replace(a3c_settings(ENV), **same)
        return A3C(policy, partial(build_envs, remote.num_envs), remote)
    return A2C(policy, build_envs(config.num_envs), config)


def contracts() -> Experiment:
    """Return the experiment with one actor and one critic in four families."""
    config = replace(a2c_settings(ENV), total_steps=60_000)
    variants = {
        family: Variant({}, partial(with_models, family))
        for family in ("A2C", "A3C", "PPO", "IMPALA")
    }
    return Experiment(ENV, config, 1, 100, variants)


def late() -> Experiment:
    """Return the experiment with gradients of older and older weights.

    One worker has one slot more than the lag, so each gradient is as old as it says.
    """
    config = replace(a3c_settings(ENV), actors=1, total_steps=50_000)
    variants = {f"lag {lag}": Variant({"slots": lag + 1}, with_workers) for lag in LAGS}
    return Experiment(ENV, config, 10, 100, variants)


EXPERIMENTS = {
    "a2c": Experiment(
        "CartPole-v1",
        PPOConfig(
            total_steps=50_000,
            num_envs=8,
            num_steps=32,
            num_epochs=1,
            num_minibatches=1,
            learning_rate=5e-3,
            clip_ratio=1e9,
            entropy_weight=0.0,
        ),
        seeds=20,
        episodes=100,
        variants={"A2C": Variant({})},
    ),
    "a2c_cartpole": Experiment(
        ENV, a2c_settings(ENV), 10, 100, {"A2C": Variant({}, build)}, goal=475
    ),
    "a2c_plain": Experiment(
        ENV,
        replace(a2c_settings(ENV), rmsprop_decay=0.99, reward_scale=1.0),
        10,
        100,
        {"A2C": Variant({}, build)},
        goal=475,
    ),
    "a3c_cartpole": workers(),
    "a2c_contract": contracts(),
    "a3c_lag": late(),
}


if __name__ == "__main__":
    main("python -m benchmarks.a2c_learning", EXPERIMENTS)
