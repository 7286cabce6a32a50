"""DQN on CartPole-v1, against stable-baselines3: one update, and the training loop.

Both train the same network with the same settings: one environment, one update on 64
steps after every four, a Huber loss, Adam, a copy of the target network after every 250
updates, no double and no dueling values, since the peer has neither. Two layers of 64
are the default of the peer, two of 128 are ours. They live in an environment of their
own: ``make peers ONLY=dqn_loop``.

A time of the loop is that of one step in the environment, the learning included. An
update draws its batch itself, from a buffer that both have filled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from benchmarks.harness import Case, Goal, cpu_seconds
from literate_rl.by_hand.fast_forms import fused_q_error, numpy_act
from literate_rl.data.agents import make_envs
from literate_rl.data.replay import Batch
from literate_rl.learners.dqn import DQN, DQNConfig, make_q_policy
from literate_rl.learners.loop import OffPolicy
from literate_rl.runs.runs import fit, flat_env

ROUNDS = 11
PACKAGES = ("stable-baselines3", "gymnasium")
ENV = "CartPole-v1"
STEPS = 4096
CONFIG = DQNConfig(
    total_steps=STEPS,
    num_envs=1,
    double=False,
    learning_rate=1e-3,
    batch_size=64,
    train_interval=4,
    learning_starts=256,
    buffer_size=50_000,
    target_interval=250,
    tau=1.0,
    epsilon_end=0.1,
    epsilon_steps=1024,
    iteration_steps=512,
)


def own_learner(config: DQNConfig, plain: str = "") -> OffPolicy:
    """Build the learner of ``train``; ``plain`` names a form that stays as it is."""
    envs = make_envs(partial(flat_env, ENV), config.num_envs)
    torch.manual_seed(config.seed)
    spaces = envs.single_observation_space, envs.single_action_space
    policy = make_q_policy(*spaces, config.hidden, config.dueling)
    forms = {"act": numpy_act(policy), "error": fused_q_error(policy)}
    forms.pop(plain, None)
    return DQN(policy, envs, config, **forms)


def peer_learner(config: DQNConfig) -> Any:
    """Build stable-baselines3's learner with the same settings."""
    from stable_baselines3 import DQN as PeerDQN  # noqa: N811
    from stable_baselines3.common.env_util import make_vec_env

    return PeerDQN(
        "MlpPolicy",
        make_vec_env(ENV, config.num_envs, seed=config.seed),
        learning_rate=config.learning_rate,
        buffer_size=config.buffer_size,
        learning_starts=config.learning_starts,
        batch_size=config.batch_size,
        tau=config.tau,
        gamma=config.gamma,
        train_freq=config.train_interval,
        gradient_steps=1,
        target_update_interval=config.target_interval * config.train_interval,
        exploration_fraction=config.epsilon_steps / config.total_steps,
        exploration_initial_eps=config.epsilon_start,
        exploration_final_eps=config.epsilon_end,
        max_grad_norm=config.max_grad_norm,
        policy_kwargs={"net_arch": [config.hidden] * 2},
        seed=config.seed,
        device="cpu",
    )


def linear_layers(network: nn.Module) -> list[nn.Linear]:
    """Return the layers that learn, in their order."""
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


def as_peer(batch: Batch) -> Any:
    """Return a batch as the peer's buffer would."""
    given = {name: x for name, x in batch._asdict().items() if x is not None}
    column = {name: x.unsqueeze(1) for name, x in given.items()}
    ended = column["discount"] == 0
    return SimpleNamespace(
        observations=batch.obs,
        actions=column["action"],
        next_observations=batch.next_obs,
        dones=ended.float(),
        rewards=column["reward"],
        discounts=None,
    )


def check(own: OffPolicy, peer: Any) -> None:
    """Assert that both learn the same from the same batches, starting alike."""
    older = own.algorithm.target.network
    pairs = [(own.policy, peer.q_net), (older, peer.q_net_target)]
    for ours, theirs in pairs:
        for layer, other in zip(*map(linear_layers, (ours, theirs)), strict=True):
            other.load_state_dict(layer.state_dict())
    draw, learning_rate = own.sample, own.config.learning_rate
    peer.policy.optimizer = torch.optim.Adam(peer.policy.parameters(), learning_rate)
    own.optimizer = torch.optim.Adam(own.parameters, learning_rate, fused=True)
    for _ in range(5):
        batch = draw()
        own.sample = lambda batch=batch: batch  # type: ignore[method-assign]
        given = as_peer(batch)
        with_same = SimpleNamespace(sample=lambda *_, given=given, **__: given)
        peer.replay_buffer, kept = with_same, peer.replay_buffer
        own.learn()
        peer.train(1, own.config.batch_size)
        peer.replay_buffer = kept
    own.sample = draw  # type: ignore[method-assign]
    # Adam divides by gradients that may be all rounding: a tenth of one of its steps.
    near = partial(torch.testing.assert_close, rtol=1e-4, atol=learning_rate / 10)
    for layer, other in zip(*map(linear_layers, pairs[0]), strict=True):
        for x, y in zip(layer.parameters(), other.parameters(), strict=True):
            near(x, y)


def step_clock(build: Callable[[], Callable[[], object]], repeats: int) -> float:
    """Return the CPU seconds of one step; building the learner is not counted."""
    return sum(cpu_seconds(build(), 1) for _ in range(repeats)) / (repeats * STEPS)


def loop(config: DQNConfig, plain: str = "") -> Callable[[], object]:
    """Return a whole training of ours."""
    return partial(fit, own_learner(config, plain), progress=False)


def peer_loop(config: DQNConfig) -> Callable[[], object]:
    """Return a whole training of the peer."""
    return partial(peer_learner(config).learn, STEPS)


def cases() -> Iterator[Case]:
    """Yield two cases for each width; before the first comes the check."""
    for hidden in (64, 128):
        config = replace(CONFIG, hidden=hidden)
        own, plain = own_learner(config), own_learner(config, "error")
        peer = peer_learner(config)
        for learner in (own, plain):
            fit(learner, progress=False)
        peer.learn(STEPS)
        check(own, peer)
        yield Case(
            name=f"one update, {config.batch_size} steps, layers of {hidden}",
            functions={
                "stable-baselines3": partial(peer.train, 1, config.batch_size),
                "DQN.learn, plain": plain.learn,
                "DQN.learn": own.learn,
            },
            peer="stable-baselines3",
            goals={"DQN.learn": Goal(at_least=1.5)},
            shortest=0.2,
        )
        yield Case(
            name=f"one environment, layers of {hidden}",
            functions={
                "stable-baselines3": partial(peer_loop, config),
                "DQN, torch acts": partial(loop, config, "act"),
                "DQN": partial(loop, config),
            },
            peer="stable-baselines3",
            goals={"DQN": Goal(at_least=1.5)},
            sample=step_clock,
            shortest=0.0,
        )
