"""Training runs of DQN with many actors and one memory, in environments that wait.

``python -m benchmarks.apex_learning [NAME …]`` works as ``benchmarks.learning`` does.
"""

from __future__ import annotations

import time
from dataclasses import fields, replace
from functools import partial
from typing import Any

import gymnasium as gym
import torch

from benchmarks.learning import Experiment, Variant, main
from literate_rl.actors.apex import Apex, DQNApexConfig, apex_settings
from literate_rl.actors.processes import transport_named
from literate_rl.by_hand.fast_forms import fused_q_error, numpy_act
from literate_rl.data.agents import make_envs
from literate_rl.learners.dqn import DQN, DQNConfig, make_q_policy
from literate_rl.learners.loop import OffPolicy
from literate_rl.runs.runs import flat_env

ENV = "CartPole-v1"
WAIT = 0.004  # seconds


class Waiting(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose step takes a while, without any work for the processor."""

    def step(self, action: Any) -> Any:
        """Wait, and take the step."""
        time.sleep(WAIT)
        return self.env.step(action)


def slow_cartpole() -> gym.Env[Any, Any]:
    """Return a CartPole that waits."""
    return Waiting(flat_env(ENV))


def build(
    config: DQNApexConfig, make: Any = slow_cartpole, alone: bool = False
) -> OffPolicy | Apex:
    """Build the agent of the chapter, or DQN with the same settings."""
    build_envs = partial(make_envs, make, config.num_envs)
    envs = build_envs()
    torch.manual_seed(config.seed)
    spaces = envs.single_observation_space, envs.single_action_space
    policy = make_q_policy(*spaces, config.hidden, config.dueling)
    # Without actors the rollouts of DQN are as long as its own settings say.
    settings: DQNConfig = plain(config) if alone else config
    forms = {"act": numpy_act(policy), "error": fused_q_error(policy)}
    learner = DQN(policy, envs, settings, **forms)
    transport = transport_named(config.transport)
    return learner if alone else Apex(learner, build_envs, transport, numpy_act)


def plain(config: DQNApexConfig) -> DQNConfig:
    """Return those settings that DQN has too."""
    return DQNConfig(**{f.name: getattr(config, f.name) for f in fields(DQNConfig)})


def waiting(
    make: Any = slow_cartpole,
    seeds: int = 10,
    first: int = 1,
    where: str = "shared",
    **shared: Any,
) -> Experiment:
    """Return the experiment that is about seconds: nobody, or some actors, collect.

    ``shared`` are settings of all variants beside those of ``apex_settings``.
    """
    config = replace(
        apex_settings(ENV),
        **shared,
        total_steps=30_000,
        checkpoint_interval=10_000,  # beyond the end: no reset in between
    )
    variants = {"no actors": Variant({}, partial(build, make=make, alone=True))}
    for actors in (1, 2, 4):
        changes = {"actors": actors, "transport": where}
        name = f"{actors} actor{'s' * (actors > 1)}"
        variants[name] = Variant(changes, partial(build, make=make))
    return Experiment(ENV, config, seeds, 20, variants, first_seed=first, by_clock=True)


LARGEST = {"priorities": "largest"}
AT_ONCE = partial(build, make=partial(flat_env, ENV))
# 2.5 new steps for each that is drawn: a rollout of 80 steps, and two batches of 16.
CROWDED = {"actors": 1, "batch_size": 16, "train_interval": 40}
RULES: dict[str, dict[str, Any]] = {
    "actor": {},
    "largest": LARGEST,
    "none": {**LARGEST, "priority_exponent": 0.0},
}

EXPERIMENTS = {
    "apex_ratio": replace(
        waiting(seeds=5),
        variants={n: Variant({**CROWDED, **x}, AT_ONCE) for n, x in RULES.items()},
    ),
    "apex_waiting": waiting(),
    # Targets of 20 steps, as without actors, and half as many updates.
    "apex_long": waiting(num_steps=20, train_interval=4),
}

if __name__ == "__main__":
    main("python -m benchmarks.apex_learning", EXPERIMENTS)
