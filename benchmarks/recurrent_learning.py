"""PPO with and without a memory where one observation is not enough.

``python -m benchmarks.recurrent_learning`` works as ``benchmarks.learning`` does.

On CartPole three step sizes were tried with three other seeds: 0.002 was the best one,
or as good as any, for each kind of policy. The T-mazes have the same settings but for a
bonus for entropy. With them the one of 20 steps was not learned. Eight other settings
were tried there with a GRU and one seed, and those below were the best. Pendulum has
the settings of PPO without a memory. Nothing was tried there.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import torch

from benchmarks.learning import Experiment, Variant, main
from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.data.agents import make_envs
from literate_rl.data.makers import make_wrapped
from literate_rl.data.worlds import SelectObservation
from literate_rl.learners.ppo import PPO, PPOConfig, ppo_settings
from literate_rl.nets.policies import make_policy
from literate_rl.nets.recurrent import make_recurrent_policy
from literate_rl.runs.runs import flat_env

CARTPOLE, PENDULUM = "CartPoleWithoutSpeeds-v1", "PendulumWithoutSpeed-v1"
LENGTHS = (5, 10, 20)
STACKED = ("FrameStackObservation(4)",)
RATES = (1e-3, 2e-3, 3e-3)


def without(env: str, numbers: tuple[int, ...], **options: Any) -> gym.Env[Any, Any]:
    """Make an environment that shows some of its numbers only."""
    return SelectObservation(gym.make(env, **options), *numbers)


for name, env, numbers in (
    (CARTPOLE, "CartPole-v1", (0, 2)),
    (PENDULUM, "Pendulum-v1", (0, 1)),
):
    gym.register(name, entry_point=partial(without, env, numbers))
for length in LENGTHS:
    gym.register(
        f"TMaze{length}-v0",
        entry_point="literate_rl.data.worlds:TMaze",
        max_episode_steps=200,
        kwargs={"length": length},
    )


def agent(config: PPOConfig, env: str, wrappers: tuple[str, ...] = ()) -> PPO:
    """Build the agent as ``train`` does."""
    world = partial(flat_env, make_wrapped(env, wrappers))
    envs = make_envs(world, config.num_envs)
    torch.manual_seed(config.seed)
    spaces = envs.single_observation_space, envs.single_action_space
    if config.recurrent:
        kind = config.recurrent, config.recurrent_size
        return PPO(make_recurrent_policy(*spaces, *kind), envs, config)
    policy = make_policy(*spaces)
    return PPO(policy, envs, config, numpy_act(policy))


def compare(env: str, config: PPOConfig) -> Experiment:
    """Return the experiment with four kinds of policies."""
    variants = {}
    for name, recurrent, wrappers in (
        ("one observation", None, ()),
        ("four stacked", None, STACKED),
        ("GRU", "gru", ()),
        ("LSTM", "lstm", ()),
    ):
        changes: dict[str, Any] = {"recurrent": recurrent} if recurrent else {}
        build = partial(agent, env=env, wrappers=wrappers)
        variants[name] = Variant(changes, build, wrappers)
    return Experiment(env, config, seeds=10, episodes=100, variants=variants)


def tried(made: Experiment, rates: tuple[float, ...] = RATES) -> Experiment:
    """Return the experiment that tries step sizes with three other seeds."""
    variants = {
        f"{name}, step size {rate:g}": replace(
            variant, changes=variant.changes | {"learning_rate": rate}
        )
        for name, variant in made.variants.items()
        for rate in rates
    }
    return replace(made, variants=variants, seeds=3, first_seed=100)


CARTPOLE_CONFIG = PPOConfig(
    total_steps=60_000,
    num_envs=16,
    num_steps=64,
    num_epochs=6,
    num_minibatches=4,
    learning_rate=2e-3,
    gamma=0.98,
    lambda_=0.9,
    entropy_weight=0.0,
    recurrent_size=32,
)
PENDULUM_CONFIG = replace(ppo_settings("Pendulum-v1"), recurrent_size=32)

TMAZE_CONFIG = replace(CARTPOLE_CONFIG, entropy_weight=0.01)
LONG_CONFIG = replace(
    TMAZE_CONFIG,
    total_steps=120_000,
    num_envs=8,
    num_steps=256,
    num_epochs=10,
    learning_rate=3e-3,
    gamma=0.99,
    lambda_=0.95,
)

EXPERIMENTS = {
    "recurrent_cartpole_rates": tried(compare(CARTPOLE, CARTPOLE_CONFIG)),
    "recurrent_cartpole": compare(CARTPOLE, CARTPOLE_CONFIG),
    "recurrent_tmaze_5": compare("TMaze5-v0", TMAZE_CONFIG),
    "recurrent_tmaze_10": compare("TMaze10-v0", TMAZE_CONFIG),
    "recurrent_tmaze_20": compare("TMaze20-v0", LONG_CONFIG),
    "recurrent_pendulum": compare(PENDULUM, PENDULUM_CONFIG),
}


if __name__ == "__main__":
    main("python -m benchmarks.recurrent_learning", EXPERIMENTS)
