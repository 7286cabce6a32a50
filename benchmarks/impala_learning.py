"""Training runs of IMPALA: how well it learns, and what old data do to it.

``python -m benchmarks.impala_learning [NAME …]`` works as ``benchmarks.learning`` does.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import gymnasium as gym
import torch
from torch import Tensor
from torch.nn.functional import pad

from benchmarks.learning import Experiment, Variant, main
from literate_rl.actors.actors import ActorLearner, ActorsConfig, actors_settings
from literate_rl.actors.processes import transport_named
from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.data.agents import make_envs
from literate_rl.learners.impala import (
    IMPALA,
    IMPALAConfig,
    Unroll,
    VTraceLearner,
    impala_settings,
)
from literate_rl.maths.off_policy import vtrace, vtrace_loss
from literate_rl.maths.policy_gradient import policy_gradient_error
from literate_rl.nets.policies import make_policy
from literate_rl.runs.runs import flat_env

UPDATES = (1, 4, 8)
LAGS = (5, 15)
WAIT = 0.001  # seconds


class Uncorrected(VTraceLearner):
    """Takes all data for its own: each ratio is exactly 1."""

    def learn(self, unroll: Unroll) -> dict[str, float]:
        """Replace what the older policy said by what this one says."""
        with torch.no_grad():
            log_prob, _ = self.policy.evaluate_actions(
                unroll.obs_plus_1[:-1], unroll.action
            )
        return super().learn(unroll._replace(log_prob=log_prob))


class Split(VTraceLearner):
    """V-trace, with the ratio in the targets, in the gradient, or in both.

    Attributes:
        in_targets: Whether ratios weight what the targets and advantages are made of.
        in_gradient: The advantages whose gradient is weighted with the ratio of the
            action: all, none, positive or negative.
    """

    in_targets = False
    in_gradient: Literal["all", "none", "positive", "negative"] = "none"

    def __init__(self, policy: Any, config: IMPALAConfig) -> None:
        super().__init__(policy, config)
        self.vtrace_error = self.split_error  # type: ignore[assignment]

    def split_error(
        self,
        log_prob: Tensor,
        log_prob_old: Tensor,
        entropy: Tensor,
        value: Tensor,
        reward: Tensor,
        weight: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        next_value: Tensor,
    ) -> vtrace_loss:
        """Compute the losses of V-trace with the ratio in these places only."""
        gamma, lambda_ = self.config.gamma, self.config.lambda_
        ratio = (log_prob - log_prob_old).detach().exp()
        seen = ratio.log() if self.in_targets else torch.zeros_like(ratio)
        steps = reward, value[:-1], next_value, terminated, truncated
        target, _ = vtrace(seen, *steps, gamma, lambda_)
        # The advantage of V-trace before its own weight.
        correction = (target - value[:-1]).detach()
        follow = gamma * lambda_ * (~(terminated | truncated)).to(ratio)
        delta = reward + gamma * torch.where(terminated, 0.0, next_value) - value[:-1]
        adv = delta.detach() + follow * pad(correction[1:], (0, 0, 0, 1))
        weighted = {
            "all": torch.ones_like(terminated),
            "none": torch.zeros_like(terminated),
            "positive": adv > 0,
            "negative": adv < 0,
        }[self.in_gradient]
        adv = torch.where(weighted, ratio.clamp(max=1), 1.0) * adv
        policy_loss = policy_gradient_error(log_prob, adv, weight)
        value_loss = ((value[:-1] - target).square() * weight).mean()
        return vtrace_loss(policy_loss, value_loss, (entropy * weight).mean())


class TargetsOnly(Split):
    """Ratios in the targets, and none at the gradient."""

    in_targets = True


class GradientOnly(Split):
    """Ratios at the gradient, and none in the targets."""

    in_gradient = "all"


class PraiseOnly(Split):
    """Ratios at the gradients of actions that went better than expected."""

    in_gradient = "positive"


class BlameOnly(Split):
    """Ratios at the gradients of actions that went worse than expected."""

    in_gradient = "negative"


def parts(config: IMPALAConfig, env: str) -> Any:
    """Return a policy and the function that makes its environments."""
    build_envs = partial(make_envs, partial(flat_env, env), config.num_envs)
    envs = build_envs()
    torch.manual_seed(config.seed)
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    return policy, build_envs


def build(
    config: IMPALAConfig, env: str, learner: type[VTraceLearner] = VTraceLearner
) -> IMPALA:
    """Build the agent of the chapter."""
    policy, build_envs = parts(config, env)
    impala = IMPALA(policy, build_envs(), config)
    impala.learner = learner(policy, config)
    return impala


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
        num_envs=8,
        num_steps=20,
        update_per_collect=updates,
        learning_rate=2e-3,
        lambda_=1.0,
        entropy_weight=0.01,
        lag=lag,
        checkpoint_interval=1000,  # beyond the end: no reset in between
    )
    kinds = {"V-trace": VTraceLearner, "uncorrected": Uncorrected}
    variants = {
        name: Variant({}, partial(build, env=env, learner=learner))
        for name, learner in kinds.items()
    }
    return Experiment(env, config, 10, 20, variants)


def places() -> Experiment:
    """Return the experiment that asks where the weight of V-trace costs something."""
    late = behind(lag=15)
    kinds: dict[str, tuple[type[VTraceLearner], dict[str, Any]]] = {
        "uncorrected": (Uncorrected, {}),
        "targets and gradient": (VTraceLearner, {}),
        "targets only": (TargetsOnly, {}),
        "gradient only": (GradientOnly, {}),
        "targets without bounds": (
            VTraceLearner,
            {"rho_clip_ratio": None, "c_clip_ratio": None},
        ),
        "no bound at all": (
            VTraceLearner,
            {"rho_clip_ratio": None, "c_clip_ratio": None, "rho_pg_clip_ratio": None},
        ),
        "gradient, praise only": (PraiseOnly, {}),
        "gradient, blame only": (BlameOnly, {}),
    }
    variants = {
        name: Variant(changes, partial(build, env=late.env, learner=learner))
        for name, (learner, changes) in kinds.items()
    }
    return replace(late, variants=variants, seeds=20)


def with_actors(config: ActorsConfig, env: str) -> ActorLearner:
    """Build the agent with actors."""
    transport = transport_named(config.transport)
    return ActorLearner(*parts(config, env), config, transport, numpy_act)


def two_actors(env: str) -> Experiment:
    """Return the experiment with two actors in processes of their own."""
    config = replace(actors_settings(env), actors=2, transport="shared")
    variants = {"two actors": Variant({}, partial(with_actors, env=env))}
    return Experiment(env, config, 5, 20, variants, goal=500)


class Waiting(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose step takes a while, without any work for the processor."""

    def step(self, action: Any) -> Any:
        """Wait, and take the step."""
        time.sleep(WAIT)
        return self.env.step(action)


def slow_cartpole() -> gym.Env[Any, Any]:
    """Return a CartPole that waits."""
    return Waiting(flat_env("CartPole-v1"))


def build_slow(config: ActorsConfig) -> IMPALA | ActorLearner:
    """Build the agent with or without actors, in environments that wait."""
    build_envs = partial(make_envs, slow_cartpole, config.num_envs)
    envs = build_envs()
    torch.manual_seed(config.seed)
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    if config.actors is None:
        return IMPALA(policy, envs, config)
    transport = transport_named(config.transport)
    return ActorLearner(policy, build_envs, config, transport, numpy_act)


def waiting() -> Experiment:
    """Return the experiment that is about seconds: nobody, or some actors, collect."""
    env = "CartPole-v1"
    config = ActorsConfig(
        total_steps=100_000,
        num_envs=8,
        num_steps=20,
        update_per_collect=2,
        learning_rate=1e-3,
        anneal=True,
        reward_scale=0.05,
        entropy_weight=0.01,
        checkpoint_interval=1000,  # beyond the end: no reset in between
    )
    variants = {"no actors": Variant({"on_policy": True}, build_slow)}
    numbers = {
        "1 actor, 2 slots": (1, 2),
        "2 actors, 2 slots": (2, 2),
        "4 actors, 2 slots": (4, 2),
        "4 actors, 1 slot": (4, 1),
    }
    for name, (actors, slots) in numbers.items():
        changes = {"actors": actors, "slots": slots, "transport": "shared"}
        variants[name] = Variant(changes, build_slow)
    return Experiment(env, config, 10, 20, variants, by_clock=True)


EXPERIMENTS = {
    "impala_waiting": waiting(),
    "impala_cartpole": plain("CartPole-v1", seeds=5, episodes=20, goal=500),
    "impala_unscaled": plain(
        "CartPole-v1", seeds=5, episodes=20, goal=500, reward_scale=1.0
    ),
    "impala_actors": two_actors("CartPole-v1"),
    "impala_force": plain("literate_rl/ForceCartPole-v0", 5, episodes=20, goal=475),
    **{f"impala_updates_{n}": behind(updates=n) for n in UPDATES},
    "impala_places": places(),
    **{f"impala_lag_{lag}": behind(lag=lag) for lag in LAGS},
}

if __name__ == "__main__":
    main("python -m benchmarks.impala_learning", EXPERIMENTS)
