"""Every trick of PPO switched off or changed, one at a time, over seeds.

``python -m benchmarks.ablation [NAME …]`` runs as ``benchmarks.learning`` does. What is
a setting is changed there. What is none is built here: other networks, a learner that
sees less, environments that reset later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from torch import nn

from benchmarks.learning import Experiment, Variant, main
from literate_rl.data.agents import Rollout, make_envs
from literate_rl.learners.ppo import PPO, PPOConfig, ppo_settings
from literate_rl.nets.policies import make_policy
from literate_rl.runs.runs import flat_env

Envs = VectorEnv[Any, Any, Any]
# "Off" for a bound: a number that nothing reaches.
NEVER = 1e9


# --- Networks. Each function changes a fresh policy in place.


def default_initialisation(policy: Any) -> None:
    """Initialise all layers as PyTorch does."""
    for module in policy.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()


def large_last_layer(policy: Any) -> None:
    """Give the actor's last layer the scale of a critic's."""
    nn.init.orthogonal_(policy.network.actor[-1].weight, 1.0)


def relu(policy: Any) -> None:
    """Put ReLU in the place of tanh."""
    for layers in (policy.network.actor, policy.network.critic):
        layers[1], layers[3] = nn.ReLU(), nn.ReLU()


def shared_trunk(policy: Any) -> None:
    """Let actor and critic share their hidden layers."""
    network = policy.network
    network.critic = nn.Sequential(*network.actor[:-1], network.critic[-1])


def small_deviation(policy: Any) -> None:
    """Start with a standard deviation of $e^{-1}$."""
    nn.init.constant_(policy.network.actor.log_sigma, -1.0)


# --- Learners.


def ordinary_adam(learner: PPO) -> None:
    """Give Adam the epsilon that it has by default."""
    learner.optimizer.param_groups[0]["eps"] = 1e-8


class Shortsighted(PPO):
    """Takes a time limit for the end of the task."""

    def collect(self) -> Rollout:
        """Collect, and call each truncation a termination."""
        batch = super().collect()
        done = batch.terminated | batch.truncated
        return batch._replace(terminated=done, truncated=torch.zeros_like(done))


class Phantoms(PPO):
    """Learns from the phantom rows of ``NEXT_STEP`` environments too."""

    def collect(self) -> Rollout:
        """Collect, and call each row real."""
        batch = super().collect()
        return batch._replace(real=torch.ones_like(batch.real))


def late_reset(env: str, config: PPOConfig) -> Envs:
    """Make environments that reset in the step after an episode's end."""
    make = partial(flat_env, env)
    return SyncVectorEnv(
        [make] * config.num_envs, autoreset_mode=AutoresetMode.NEXT_STEP
    )


def same_step(env: str, config: PPOConfig) -> Envs:
    """Make environments as the chapter does."""
    return make_envs(partial(flat_env, env), config.num_envs)


def build(
    config: PPOConfig,
    env: str,
    change_policy: Callable[[Any], None] | None = None,
    change_learner: Callable[[PPO], None] | None = None,
    learner: type[PPO] = PPO,
    environments: Callable[[str, PPOConfig], Envs] = same_step,
) -> PPO:
    """Build a learner with one thing changed; all with the plain functions."""
    envs = environments(env, config)
    torch.manual_seed(config.seed)
    policy = make_policy(
        envs.single_observation_space,
        envs.single_action_space,
        normalize=config.normalize_obs,
    )
    if change_policy is not None:
        change_policy(policy)
    made = learner(policy, envs, config)
    if change_learner is not None:
        change_learner(made)
    return made


def changed(env: str, **arguments: Any) -> Variant:
    """Return a variant that is built differently."""
    return Variant({}, partial(build, env=env, **arguments))


def general(env: str, config: PPOConfig) -> dict[str, Variant]:
    """Return the variants that make sense in every environment."""
    return {
        "as it is": Variant({}),
        "no clip": Variant({"clip_ratio": NEVER}),
        "no advantage normalisation": Variant({"normalize_advantage": False}),
        "no gradient clip": Variant({"max_grad_norm": NEVER}),
        "no annealing": Variant({"anneal": False}),
        "λ = 1": Variant({"lambda_": 1.0}),
        "λ = 0": Variant({"lambda_": 0.0}),
        "one epoch": Variant({"num_epochs": 1}),
        "value clip 0.2": Variant({"value_clip": 0.2}),
        "entropy bonus 0.01": Variant({"entropy_weight": 0.01}),
        "time limit as an end": changed(env, learner=Shortsighted),
        "PyTorch's initialisation": changed(env, change_policy=default_initialisation),
        "large last layer": changed(env, change_policy=large_last_layer),
        "ReLU": changed(env, change_policy=relu),
        "shared trunk": changed(env, change_policy=shared_trunk),
        "Adam's ε = 1e-8": changed(env, change_learner=ordinary_adam),
        "stop at KL 0.02": Variant({"target_kl": 0.02}),
        "dual clip 3": Variant({"dual_clip": 3.0}),
        "one environment": Variant(
            {"num_envs": 1, "num_steps": config.num_envs * config.num_steps}
        ),
        "phantom rows learned from": changed(
            env, learner=Phantoms, environments=late_reset
        ),
    }


def cartpole() -> Experiment:
    """Return the experiment on CartPole, with everything that can be changed."""
    env = "CartPole-v1"
    config = ppo_settings(env)
    return Experiment(env, config, 5, 20, general(env, config))


def pendulum() -> Experiment:
    """Return the experiment on Pendulum, with what matters for continuous control."""
    env = "Pendulum-v1"
    config = replace(ppo_settings(env), total_steps=50_000)
    everywhere = general(env, config)
    names = (
        "as it is",
        "no clip",
        "no advantage normalisation",
        "no gradient clip",
        "time limit as an end",
        "entropy bonus 0.01",
    )
    variants = {name: everywhere[name] for name in names} | {
        "observations normalised": Variant({"normalize_obs": True}),
        "rewards scaled": Variant({"scale_reward": True}),
        "smaller deviation at the start": changed(env, change_policy=small_deviation),
    }
    return Experiment(env, config, 5, 100, variants)


EXPERIMENTS = {"ablation_cartpole": cartpole(), "ablation_pendulum": pendulum()}

if __name__ == "__main__":
    main("python -m benchmarks.ablation", EXPERIMENTS)
