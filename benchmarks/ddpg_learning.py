"""Training runs of DDPG, HDDPG and TD3: how well they learn, and what each part does.

``python -m benchmarks.ddpg_learning [NAME …]`` works as ``benchmarks.learning`` does.
The settings of Pendulum come from a study on seeds above 100, one setting for all
three agents; there was no search. Those of the other tasks follow the defaults of the
peers and of DQN, without a search. ``td3_cheetah`` needs MuJoCo, which
``pip install '.[mujoco]'`` brings.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks.corner import corner
from benchmarks.landscapes import JUDGES
from benchmarks.learning import EVALUATION_SEED, Experiment, Variant, main
from literate_rl.apps.training import make_learner
from literate_rl.data.agents import make_envs
from literate_rl.learners.ddpg import ddpg_settings
from literate_rl.learners.td3 import HDDPGConfig, TD3Config
from literate_rl.runs.runs import flat_env

ENV = "Pendulum-v1"
DISCRETE = "CartPole-v1"
CHEETAH = "HalfCheetah-v5"


@dataclass(frozen=True)
class Settings(TD3Config, HDDPGConfig):
    """The settings of all three agents; what makes TD3 and HDDPG of DDPG is off."""

    target_interval: int = 1
    num_critics: int = 1
    smoothing: float = 0.0
    decrease: float = 1.0


# What makes TD3 of DDPG, and TD3 without one of its three parts.
TD3: dict[str, Any] = {"num_critics": 2, "target_interval": 2, "smoothing": 0.2}
SWITCHES: dict[str, dict[str, Any]] = {
    "without twins": {**TD3, "num_critics": 1},
    "without delay": {**TD3, "target_interval": 1},
    "without smoothing": {**TD3, "smoothing": 0.0},
}

# An estimate is compared with what the agent earns, from the first 200 steps of a few
# long episodes on. 400 further steps are played: the rest counts less than 2 %.
COPIES, COMPARED, PLAYED = 8, 200, 600


@torch.no_grad()
def hindsight(learner: Any) -> dict[str, float]:
    """Return means of the critic's estimates and of what the greedy policy earns."""
    policy = learner.policy
    long = partial(gym.make, ENV, max_episode_steps=PLAYED)
    envs = make_envs(partial(flat_env, long), COPIES)
    obs, _ = envs.reset(seed=EVALUATION_SEED)
    estimates, rewards = [], np.zeros((PLAYED, COPIES))
    for step in range(PLAYED):
        rows = torch.as_tensor(obs, dtype=torch.float32)
        if step < COMPARED:
            estimates.append(policy.network.value(rows))
        obs, rewards[step], *_ = envs.step(policy.to_env(policy.act(rows, 0.0)))
    envs.close()
    earned = np.zeros(COPIES)
    sums = []
    for reward in rewards[::-1]:
        earned = reward + learner.config.gamma * earned
        sums.append(earned)
    return {
        "estimate": torch.cat(estimates).mean().item(),
        "earned": float(np.mean(sums[-COMPARED:])),
    }


def build(config: Settings, algorithm: str, env: str) -> Any:
    """Build the agent as the command line does."""
    return make_learner(algorithm, env, config, {})


def watched(config: Settings, algorithm: str) -> Any:
    """Build it likewise; each row of its metrics is joined by what it earns."""
    learner = build(config, algorithm, ENV)
    iterate = learner.iterate
    learner.iterate = lambda: iterate() | hindsight(learner)
    return learner


def settings(env: str) -> Settings:
    """Return the settings of DDPG for an environment."""
    return Settings(**asdict(ddpg_settings(env)))


def pendulum(
    variants: dict[str, Variant], seeds: int, goal: float | None = None
) -> Experiment:
    """Return the experiment that trains variants of an agent on Pendulum."""
    names = ("estimate", "earned")
    return Experiment(ENV, settings(ENV), seeds, 100, variants, goal, watched=names)


CHANGES_OF_A_LIST: dict[str, Any] = {
    "total_steps": 20_000,
    "num_steps": 10,
    "reward_scale": 0.05,
}
OF_A_LIST = replace(settings(DISCRETE), **CHANGES_OF_A_LIST)


def experiment(
    env: str, variants: dict[str, dict[str, Any]], seeds: int, **changes: Any
) -> Experiment:
    """Return the experiment that trains DDPG or TD3 on another task."""
    made = {
        name: Variant(x, partial(build, algorithm=name.lower(), env=env))
        for name, x in variants.items()
    }
    return Experiment(env, replace(settings(env), **changes), seeds, 100, made)


def cornered(config: Settings) -> Any:
    """Build DDPG of a list; each row says how sure its actor is, and of what."""
    learner = build(config, "ddpg", DISCRETE)
    iterate = learner.iterate
    learner.iterate = lambda: iterate() | corner(learner.policy)
    return learner


OF_TD3 = partial(watched, algorithm="td3")
AGENTS = {
    "DDPG": Variant({}, partial(watched, algorithm="ddpg")),
    "HDDPG": Variant({"decrease": 0.5}, partial(watched, algorithm="hddpg")),
    "TD3": Variant(TD3, OF_TD3),
}
# Twice as many steps in an update.
LARGER = {
    name: Variant({**x.changes, "batch_size": 256}, x.build)
    for name, x in AGENTS.items()
}
EXPERIMENTS = {
    "ddpg_pendulum": pendulum(AGENTS, seeds=10, goal=-200),
    "ddpg_batches": pendulum(LARGER, seeds=10, goal=-200),
    "td3_switches": pendulum(
        {name: Variant(changes, OF_TD3) for name, changes in SWITCHES.items()}, seeds=5
    ),
    # The same agents, and how their critics are wrong in the end.
    "ddpg_landscapes": replace(pendulum(AGENTS, seeds=5), judges=JUDGES),
    # The actor waits, but the older copies follow as fast as those of DDPG. What comes
    # after the first half of a run is not needed to see that.
    "td3_copies": Experiment(
        ENV,
        replace(settings(ENV), total_steps=5000),
        10,
        100,
        {
            "faster copies": Variant(
                {**TD3, "tau": 0.01}, partial(build, algorithm="td3", env=ENV)
            )
        },
    ),
    "ddpg_corner": Experiment(
        DISCRETE,
        replace(OF_A_LIST, total_steps=4000),
        10,
        100,
        {"DDPG": Variant({}, cornered)},
        watched=("other", "right", "against", "slope"),
    ),
    # Demonstrations, without a goal: priorities, and probabilities as actions.
    "ddpg_priorities": pendulum(
        {"TD3, priorities": Variant({**TD3, "priority_exponent": 0.6}, OF_TD3)}, seeds=3
    ),
    "ddpg_discrete": experiment(
        DISCRETE, {"DDPG": {}, "TD3": TD3}, seeds=3, **CHANGES_OF_A_LIST
    ),
    # As the peers: layers of 256, batches of 256, and random steps at first.
    "td3_cheetah": experiment(
        CHEETAH,
        {"TD3": TD3},
        seeds=5,
        total_steps=100_000,
        hidden=256,
        batch_size=256,
        learning_starts=5000,
        epsilon_steps=5000,
        iteration_steps=5000,
    ),
}

if __name__ == "__main__":
    main("python -m benchmarks.ddpg_learning", EXPERIMENTS)
