"""PPO with and without a memory where one observation is not enough.

``python -m benchmarks.recurrent_learning`` works as ``benchmarks.learning`` does.

Three step sizes were tried on CartPole with three other seeds, before the bias of the
gate that keeps became 1: 0.002 was the best one, or as good as any, for each kind of
policy. The T-mazes have the same settings but for a bonus for entropy. For the longest
one eleven others were tried with a memory and one or two further seeds, of which none
was clearly better.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import torch
from torch import nn

from benchmarks.learning import Experiment, Variant, main, ppo_settings
from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.data.agents import make_envs
from literate_rl.data.makers import make_wrapped
from literate_rl.data.worlds import SelectObservation
from literate_rl.learners.ppo import PPO, PPOConfig
from literate_rl.nets.policies import make_policy
from literate_rl.nets.recurrent import make_recurrent_policy
from literate_rl.runs.runs import flat_env

CARTPOLE, PENDULUM = "CartPoleWithoutSpeeds-v1", "PendulumWithoutSpeed-v1"
LENGTHS = (5, 10, 20)


def without(env: str, numbers: tuple[int, ...], **options: Any) -> gym.Env[Any, Any]:
    """Make an environment that shows some of its numbers only."""
    return SelectObservation(gym.make(env, **options), *numbers)


gym.register(CARTPOLE, entry_point=partial(without, "CartPole-v1", (0, 2)))
gym.register(PENDULUM, entry_point=partial(without, "Pendulum-v1", (0, 1)))
for length in LENGTHS:
    gym.register(
        f"TMaze{length}-v0",
        entry_point="literate_rl.data.worlds:TMaze",
        max_episode_steps=200,
        kwargs={"length": length},
    )


def agent(
    config: PPOConfig, env: str, wrappers: tuple[str, ...] = (), bias: float = 1.0
) -> PPO:
    """Build the agent as ``train`` does; ``bias`` is that of the gate that keeps."""
    world = partial(flat_env, make_wrapped(env, wrappers))
    envs = make_envs(world, config.num_envs)
    torch.manual_seed(config.seed)
    spaces = envs.single_observation_space, envs.single_action_space
    if not config.recurrent:
        policy = make_policy(*spaces)
        return PPO(policy, envs, config, numpy_act(policy))
    size = config.recurrent_size
    policy = make_recurrent_policy(*spaces, config.recurrent, size)
    for memory in policy.network.memories:
        # It is the second one, of a GRU and of an LSTM.
        nn.init.constant_(memory.cells.bias_ih_l0[size : 2 * size], bias)
    return PPO(policy, envs, config)


KINDS: dict[str, Any] = {
    "one observation": {},
    "four stacked": {"wrappers": ("FrameStackObservation(4)",)},
    "GRU": {"recurrent": "gru"},
    "LSTM": {"recurrent": "lstm"},
}
OPEN = {
    "GRU, bias 0": {"recurrent": "gru", "bias": 0.0},
    "LSTM, bias 0": {"recurrent": "lstm", "bias": 0.0},
}


def compare(env: str, config: PPOConfig, kinds: dict[str, Any] = KINDS) -> Experiment:
    """Return the experiment with some kinds of policies."""
    variants = {}
    for name, options in kinds.items():
        changes = {x: y for x, y in options.items() if x == "recurrent"}
        given = {x: y for x, y in options.items() if x != "recurrent"}
        build = partial(agent, env=env, **given)
        variants[name] = Variant(changes, build, options.get("wrappers", ()))
    return Experiment(env, config, seeds=10, episodes=100, variants=variants)


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

TMAZE_CONFIG = replace(CARTPOLE_CONFIG, entropy_weight=0.01)

PENDULUM_CONFIG = replace(ppo_settings("Pendulum-v1"), recurrent_size=32)

EXPERIMENTS = {
    "recurrent_cartpole": compare(CARTPOLE, CARTPOLE_CONFIG),
    "recurrent_pendulum": compare(PENDULUM, PENDULUM_CONFIG),
} | {
    f"recurrent_tmaze_{length}": compare(
        f"TMaze{length}-v0", TMAZE_CONFIG, KINDS | OPEN
    )
    for length in LENGTHS
}


if __name__ == "__main__":
    main("python -m benchmarks.recurrent_learning", EXPERIMENTS)
