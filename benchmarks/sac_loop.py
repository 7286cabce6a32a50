"""SAC on Pendulum-v1, against stable-baselines3: one update, and the training loop.

Both train networks of the same size with the same settings: one environment, one update
on 256 steps after every step, two critics, a tuned temperature, Adam. Actions are
scaled to -1..1 by a wrapper, since the peer learns in these units. Two layers of 256
are the default of the paper, two of 64 are ours. They live in an environment of their
own: ``make peers ONLY=sac_loop``.

A time of the loop is that of one step in the environment, the learning included. An
update draws its batch itself, from a buffer that both have filled. Beside the loop of
``train`` stands one that acts in NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks.dqn_loop import as_peer, linear_layers
from benchmarks.harness import Case
from benchmarks.td3_loop import STEPS, Form, scaled_pendulum, side_by_side
from literate_rl.data.agents import make_envs
from literate_rl.learners.loop import OffPolicy
from literate_rl.learners.sac import SAC, SACConfig, make_sac_policy
from literate_rl.runs.runs import fit, flat_env

ROUNDS = 11
PACKAGES = ("stable-baselines3", "gymnasium")
CONFIG = SACConfig(
    total_steps=STEPS,
    batch_size=256,
    learning_starts=128,
    iteration_steps=128,
    buffer_size=50_000,
)


def own_learner(config: SACConfig, **forms: Form) -> OffPolicy:
    """Build the learner of ``train``, or one with another form of acting."""
    envs = make_envs(partial(flat_env, scaled_pendulum), config.num_envs)
    torch.manual_seed(config.seed)
    spaces = envs.single_observation_space, envs.single_action_space
    policy = make_sac_policy(*spaces, config.hidden, config.num_critics)
    made = {name: make(policy) for name, make in forms.items()}
    return SAC(policy, envs, config, **made)


def peer_learner(config: Any, env: Any = scaled_pendulum) -> Any:
    """Build stable-baselines3's learner with the same settings."""
    from stable_baselines3 import SAC as PeerSAC  # noqa: N811
    from stable_baselines3.common.env_util import make_vec_env

    return PeerSAC(
        "MlpPolicy",
        make_vec_env(env, config.num_envs, seed=config.seed),
        learning_rate=config.learning_rate,
        buffer_size=config.buffer_size,
        learning_starts=config.learning_starts,
        batch_size=config.batch_size,
        tau=config.tau,
        gamma=config.gamma,
        train_freq=config.train_interval,
        gradient_steps=1,
        policy_kwargs={"net_arch": [config.hidden] * 2},
        seed=config.seed,
        device="cpu",
    )


def network_pairs(own: OffPolicy, peer: Any) -> list[tuple[Any, Any]]:
    """Return our critics and the peer's side by side, then their older copies."""
    pairs: list[tuple[Any, Any]] = []
    for critics, others in (
        (own.policy.critics, peer.critic),
        (own.algorithm.target.network, peer.critic_target),
    ):
        pairs += zip(critics, others.q_networks, strict=True)
    return pairs


def actor_weights(own: OffPolicy, peer: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield weights of our actor and the peer's; its last layer is in two halves."""
    *ours, last = linear_layers(own.policy.network)
    others = linear_layers(peer.actor.latent_pi)
    for layer, other in zip(ours, others, strict=True):
        yield from zip(layer.parameters(), other.parameters(), strict=True)
    for name in ("weight", "bias"):
        halves = getattr(last, name).detach().chunk(2)
        for half, head in zip(halves, (peer.actor.mu, peer.actor.log_std), strict=True):
            yield half, getattr(head, name)


def check(config: SACConfig) -> None:
    """Assert that both learn the same from the same batches, without noise."""
    own, peer = own_learner(config), peer_learner(config)
    fit(own, progress=False)
    # The peer needs a moment to set up its loggers.
    peer.learn(2)
    with torch.no_grad():
        own.policy.log_alpha.zero_()
        for ours, theirs in network_pairs(own, peer):
            for layer, other in zip(*map(linear_layers, (ours, theirs)), strict=True):
                other.load_state_dict(layer.state_dict())
        for x, y in actor_weights(own, peer):
            y.copy_(x)
        peer.log_ent_coef.zero_()
    # Plain gradient steps, because Adam divides by gradients that may be all rounding.
    rate = config.learning_rate
    for part in (peer.actor, peer.critic):
        part.optimizer = torch.optim.SGD(part.parameters(), rate)
    peer.ent_coef_optimizer = torch.optim.SGD([peer.log_ent_coef], rate)
    own.optimizer = torch.optim.SGD(own.parameters, rate)  # type: ignore[assignment]
    draw = own.sample
    still = partial(patch, side_effect=lambda size, *_, **__: torch.zeros(size))
    for _ in range(6):
        batch = draw()
        own.sample = lambda batch=batch: batch  # type: ignore[method-assign]
        given = as_peer(batch)
        given.actions = batch.action
        peer.replay_buffer = SimpleNamespace(sample=lambda *_, given=given, **__: given)
        with patch("torch.randn", lambda *size, **_: torch.zeros(size)):
            own.learn()
        with still("torch.distributions.normal._standard_normal"):
            peer.train(1, config.batch_size)
    for ours, theirs in network_pairs(own, peer):
        for layer, other in zip(*map(linear_layers, (ours, theirs)), strict=True):
            same(layer, other)
    for x, y in actor_weights(own, peer):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        own.policy.log_alpha, peer.log_ent_coef.squeeze(), rtol=1e-4, atol=1e-5
    )


def same(layer: nn.Module, other: nn.Module) -> None:
    """Assert that two layers have the same weights."""
    for x, y in zip(layer.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def cases() -> Iterator[Case]:
    """Yield two cases for each width; before the first comes the check."""
    for hidden in (64, 256):
        config = replace(CONFIG, hidden=hidden)
        check(config)
        build = partial(own_learner, config), partial(peer_learner, config)
        yield from side_by_side("SAC", *build, config, goal=1.28)
