"""TD3 on Pendulum-v1, against stable-baselines3: one update, and the training loop.

Both train networks of the same size with the same settings: one environment, one update
on 256 steps after every step, two critics, an actor that moves after every second
update, smoothed targets, Adam. Actions are scaled to -1..1 by a wrapper, since the peer
learns in these units. Two layers of 256 are the default of the paper, two of 64 are
ours. They live in an environment of their own: ``make peers ONLY=td3_loop``.

A time of the loop is that of one step in the environment, the learning included. An
update draws its batch itself, from a buffer that both have filled; every second one
moves the actor. Beside the loop of ``train`` stands one that acts in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks.dqn_loop import as_peer, linear_layers
from benchmarks.harness import Case, Goal, cpu_seconds
from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.data.agents import make_envs
from literate_rl.learners.ddpg import make_ddpg_policy
from literate_rl.learners.loop import OffPolicy
from literate_rl.learners.td3 import TD3, TD3Config
from literate_rl.runs.runs import fit, flat_env

Form = Callable[[Any], Any]

ROUNDS = 11
PACKAGES = ("stable-baselines3", "gymnasium")
STEPS = 1024
CONFIG = TD3Config(
    total_steps=STEPS,
    batch_size=256,
    learning_starts=128,
    epsilon_steps=128,
    iteration_steps=128,
    buffer_size=50_000,
)


def scaled_pendulum() -> gym.Env[Any, Any]:
    """Return Pendulum with actions from -1 to 1."""
    one = np.ones(1, np.float32)
    return gym.wrappers.RescaleAction(gym.make("Pendulum-v1"), -one, one)


def own_learner(config: TD3Config, **forms: Form) -> OffPolicy:
    """Build the learner of ``train``, or one with another form of acting."""
    envs = make_envs(partial(flat_env, scaled_pendulum), config.num_envs)
    torch.manual_seed(config.seed)
    spaces = envs.single_observation_space, envs.single_action_space
    policy = make_ddpg_policy(*spaces, config.hidden, config.num_critics)
    made = {name: make(policy) for name, make in forms.items()}
    return TD3(policy, envs, config, **made)


def peer_learner(config: Any, env: Any = scaled_pendulum) -> Any:
    """Build stable-baselines3's learner with the same settings."""
    from stable_baselines3 import TD3 as PeerTD3  # noqa: N811
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise

    envs = make_vec_env(env, config.num_envs, seed=config.seed)
    size = envs.action_space.shape
    return PeerTD3(
        "MlpPolicy",
        envs,
        learning_rate=config.learning_rate,
        buffer_size=config.buffer_size,
        learning_starts=config.learning_starts,
        batch_size=config.batch_size,
        tau=config.tau,
        gamma=config.gamma,
        train_freq=config.train_interval,
        gradient_steps=1,
        action_noise=NormalActionNoise(np.zeros(size), np.full(size, config.noise)),
        policy_delay=config.target_interval,
        target_policy_noise=config.smoothing,
        target_noise_clip=config.smoothing_clip,
        policy_kwargs={"net_arch": [config.hidden] * 2},
        seed=config.seed,
        device="cpu",
    )


def network_pairs(own: OffPolicy, peer: Any) -> list[tuple[Any, Any]]:
    """Return our networks and the peer's, side by side."""
    pairs: list[tuple[Any, Any]] = []
    for policy, actor, critic in (
        (own.policy, peer.actor, peer.critic),
        (own.algorithm.target.network, peer.actor_target, peer.critic_target),
    ):
        pairs.append((policy.network.actor, actor))
        pairs += zip(policy.network.critics, critic.q_networks, strict=True)
    return pairs


def check(config: TD3Config) -> None:
    """Assert that both learn the same from the same batches, without smoothing."""
    config = replace(config, smoothing=0.0)
    own, peer = own_learner(config), peer_learner(config)
    fit(own, progress=False)
    # The peer needs a moment to set up its loggers.
    peer.learn(2)
    peer._n_updates = own.updates = 0
    for ours, theirs in network_pairs(own, peer):
        for layer, other in zip(*map(linear_layers, (ours, theirs)), strict=True):
            other.load_state_dict(layer.state_dict())
    # Plain gradient steps, because Adam divides by gradients that may be all rounding.
    # Our loss is half of a square, so the critics' steps are twice as long.
    rate, network = config.learning_rate, own.policy.network
    for part in (peer.actor, peer.critic):
        part.optimizer = torch.optim.SGD(part.parameters(), rate)
    groups = [
        {"params": list(network.actor.parameters()), "lr": rate},
        {"params": list(network.critics.parameters()), "lr": 2 * rate},
    ]
    own.optimizer = torch.optim.SGD(groups)  # type: ignore[assignment]
    draw = own.sample
    for _ in range(6):
        batch = draw()
        own.sample = lambda batch=batch: batch  # type: ignore[method-assign]
        given = as_peer(batch)
        given.actions = batch.action
        peer.replay_buffer = SimpleNamespace(sample=lambda *_, given=given, **__: given)
        own.learn()
        peer.train(1, config.batch_size)
    for ours, theirs in network_pairs(own, peer):
        for layer, other in zip(*map(linear_layers, (ours, theirs)), strict=True):
            for x, y in zip(layer.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6)


def step_clock(build: Callable[[], Callable[[], object]], repeats: int) -> float:
    """Return the CPU seconds of one step; building the learner is not counted."""
    return sum(cpu_seconds(build(), 1) for _ in range(repeats)) / (repeats * STEPS)


def side_by_side(
    name: str,
    own: Callable[..., Any],
    peer: Callable[[], Any],
    config: Any,
    goal: float,
) -> Iterator[Case]:
    """Yield the cases of one width: a single update, and a whole training.

    Args:
        name: Name of our class.
        own: Builds our learner, and takes another form of acting.
        peer: Builds the peer's.
        config: The settings of both.
        goal: How many times as fast our update must be.
    """
    ours, theirs = own(), peer()
    fit(ours, progress=False)
    theirs.learn(STEPS)
    yield Case(
        name=f"one update, {config.batch_size} steps, layers of {config.hidden}",
        functions={
            "stable-baselines3": partial(theirs.train, 1, config.batch_size),
            f"{name}.learn": ours.learn,
        },
        peer="stable-baselines3",
        goals={f"{name}.learn": Goal(at_least=goal)},
        shortest=0.2,
    )
    # What is measured is a training; building the learner is not.
    yield Case(
        name=f"one environment, layers of {config.hidden}",
        functions={
            "stable-baselines3": lambda: partial(peer().learn, STEPS),
            f"{name}, NumPy acts": lambda: partial(
                fit, own(act=numpy_act), progress=False
            ),
            name: lambda: partial(fit, own(), progress=False),
        },
        peer="stable-baselines3",
        goals={name: Goal(at_least=1.3)},
        sample=step_clock,
        shortest=0.0,
    )


def cases() -> Iterator[Case]:
    """Yield two cases for each width; before the first comes the check."""
    for hidden in (64, 256):
        config = replace(CONFIG, hidden=hidden)
        check(config)
        build = partial(own_learner, config), partial(peer_learner, config)
        yield from side_by_side("TD3", *build, config, goal=1.15)
