"""A net under refactorings: what short trainings with one seed come to.

Three updates of each agent are boiled down to a few numbers: of every parameter its sum
and its product with fixed weights, and the same of the last actions. They were recorded
once. Where a refactoring changes what is drawn or computed, they change.

``python tests/net.py`` compares to the last bit, which holds on the processor that
recorded only; the tests allow for rounding. ``--record`` writes the numbers anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from literate_rl.actors import (
    Actor,
    ActorLearner,
    ActorsConfig,
    slot_layout,
    weights_of,
)
from literate_rl.agents import make_envs, seed_everything
from literate_rl.hybrid_policy import make_hybrid_policy
from literate_rl.impala import IMPALA, IMPALAConfig
from literate_rl.policies import make_policy
from literate_rl.ppg import PPGAlgorithm, PPGConfig, make_phasic_policy
from literate_rl.ppo import PPO, PPOConfig
from literate_rl.workshop.runs import flat_env

RECORD = Path(__file__).with_name("net.json")
UPDATES = 3


def boil_down(tensors: Iterable[Tensor]) -> list[list[float]]:
    """Return two numbers of each tensor, in an order that names do not decide."""
    numbers = []
    for tensor in tensors:
        x = tensor.detach().double().flatten()
        weight = torch.cos(torch.arange(len(x), dtype=torch.float64))
        numbers.append([float(len(x)), x.sum().item(), (weight * x).sum().item()])
    return sorted(numbers)


def result(policy: Any, obs_size: int) -> dict[str, list[list[float]]]:
    """Return what an agent has become: its parameters and what it does."""
    device = torch.Generator().manual_seed(7)
    obs = torch.randn(16, obs_size, generator=device)
    noise = policy.noise(1, 16, device)[0]
    with torch.no_grad():
        action = policy.act(obs, noise)
    return {
        "parameters": boil_down(policy.parameters()),
        "actions": [action.double().flatten().tolist()],
    }


def environments(env: str, copies: int) -> Any:
    return make_envs(partial(flat_env, env), copies)


def ppo(env: str) -> Any:
    seed_everything(1)
    envs = environments(env, 4)
    observations, actions = envs.single_observation_space, envs.single_action_space
    size = spaces.flatdim(observations)
    policy: Any = (
        make_hybrid_policy(observations, actions)
        if isinstance(actions, spaces.Tuple)
        else make_policy(observations, actions)
    )
    config = PPOConfig(num_steps=32, num_minibatches=2, learning_rate=1e-3)
    return PPO(policy, envs, config), size


def ppg(env: str, share_encoder: bool) -> Any:
    seed_everything(1)
    envs = environments(env, 4)
    observations, actions = envs.single_observation_space, envs.single_action_space
    policy = make_phasic_policy(observations, actions, share_encoder)
    config = PPGConfig(
        num_steps=32, num_minibatches=2, learning_rate=1e-3, aux_interval=2
    )
    return PPGAlgorithm(policy, envs, config), spaces.flatdim(observations)


def impala(env: str, lag: int, **changes: Any) -> Any:
    seed_everything(1)
    config = IMPALAConfig(
        unroll_len=16, n_sample=4, batch_size=4, learning_rate=1e-3, lag=lag, **changes
    )
    envs = environments(env, config.n_sample)
    model = make_policy(envs.single_observation_space, envs.single_action_space)
    learner = IMPALA(model, envs, config)
    return learner, spaces.flatdim(envs.single_observation_space)


def actors(env: str) -> Any:
    seed_everything(1)
    config = ActorsConfig(unroll_len=16, n_sample=4, learning_rate=1e-3, actors=1)
    build = partial(environments, env, config.n_sample)
    with_spaces = build()
    observations = with_spaces.single_observation_space
    model = make_policy(observations, with_spaces.single_action_space)
    with_spaces.close()
    return ActorLearner(model, build, config), spaces.flatdim(observations)


def one_actor(env: str) -> dict[str, list[list[float]]]:
    """Return what a single actor writes into its slot, unroll after unroll."""
    seed_everything(1)
    build = partial(environments, env, 4)
    envs = build()
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    slot = np.zeros((), slot_layout(policy, envs, 16))
    actor = Actor(build, policy, seed=3)
    for _ in range(UPDATES):
        actor.work(weights_of(policy), slot["result"])
    names = slot["result"].dtype.names or ()
    arrays = {name: np.nan_to_num(slot["result"][name]) for name in names}
    return {name: boil_down([torch.from_numpy(x)]) for name, x in arrays.items()}


LEARNERS: dict[str, Callable[[], Any]] = {
    "ppo, discrete": partial(ppo, "CartPole-v1"),
    "ppo, Gaussian": partial(ppo, "Pendulum-v1"),
    "ppo, hybrid": partial(ppo, "literate_rl/Moving-v0"),
    "ppg, two encoders": partial(ppg, "CartPole-v1", False),
    "ppg, one encoder": partial(ppg, "CartPole-v1", True),
    "ppg, Gaussian": partial(ppg, "Pendulum-v1", False),
    "ppg, hybrid": partial(ppg, "literate_rl/Moving-v0", False),
    "impala, lag 0": partial(impala, "CartPole-v1", 0),
    "impala, lag 2": partial(impala, "CartPole-v1", 2),
    "impala, Gaussian": partial(impala, "Pendulum-v1", 0, reward_scale=0.01),
    "impala, actors": partial(actors, "CartPole-v1"),
}
NAMES = [*LEARNERS, "one actor"]


def play(name: str) -> dict[str, list[list[float]]]:
    """Train the agent of that name for three updates and boil it down."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if name == "one actor":
            return one_actor("CartPole-v1")
        learner, obs_size = LEARNERS[name]()
        for _ in range(UPDATES):
            learner.iterate()
        if hasattr(learner, "close"):
            learner.close()
        return result(learner.policy, obs_size)
    finally:
        torch.set_num_threads(threads)


def main() -> int:
    numbers = {name: play(name) for name in NAMES}
    if "--record" in sys.argv:
        RECORD.write_text(json.dumps(numbers, indent=0) + "\n")
        return 0
    recorded = json.loads(RECORD.read_text())
    changed = [name for name in NAMES if numbers[name] != recorded[name]]
    print("changed:", changed or "nothing")
    return len(changed)


if __name__ == "__main__":
    sys.exit(main())
