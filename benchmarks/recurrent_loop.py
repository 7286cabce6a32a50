"""The training loop of PPO with an LSTM, against sb3-contrib's RecurrentPPO.

Both train on CartPole without its speeds, with the settings of
``benchmarks.recurrent_learning``: an LSTM for the actor, another for the critic, a
linear layer behind each. The peer lives in an environment of its own:
``make peers ONLY=recurrent_loop``.

A time is that of one step in one environment, the learning included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from benchmarks.harness import Case
from benchmarks.ppo_loop import close, step_clock
from benchmarks.recurrent_learning import CARTPOLE, CARTPOLE_CONFIG, agent
from literate_rl.data.agents import Rollout
from literate_rl.learners.ppo import PPOConfig
from literate_rl.runs.runs import fit, flat_env

ROUNDS = 5
PACKAGES = ("sb3-contrib", "stable-baselines3", "gymnasium")
PEER = "sb3-contrib"
CONFIG = replace(
    CARTPOLE_CONFIG, total_steps=10_240, recurrent="lstm", recurrent_size=64
)


def peer_learner(config: PPOConfig, env: str = CARTPOLE) -> Any:
    """Build sb3-contrib's learner with the same settings.

    Its value loss lacks the factor one half, so the weight gets it. Its step size falls
    with the number of steps as ours does. Its LSTMs start with other weights.
    """
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.env_util import make_vec_env

    model = RecurrentPPO(
        "MlpLstmPolicy",
        make_vec_env(partial(flat_env, env), config.num_envs, seed=config.seed),
        n_steps=config.num_steps,
        batch_size=config.rows_per_update,
        n_epochs=config.num_epochs,
        gamma=config.gamma,
        gae_lambda=config.lambda_,
        clip_range=config.clip_ratio,
        normalize_advantage=config.normalize_advantage,
        ent_coef=config.entropy_weight,
        vf_coef=config.value_weight / 2,
        max_grad_norm=config.max_grad_norm,
        policy_kwargs={"lstm_hidden_size": config.recurrent_size, "net_arch": []},
        seed=config.seed,
        device="cpu",
    )
    # It asks when the rollout has been collected, we ask before.
    model.lr_schedule = lambda _: config.rate(
        model.num_timesteps - config.steps_per_iteration
    )
    return model


def parameter_pairs(own: Any, peer: Any) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """Return our parameters and the peer's, side by side."""
    (actor, critic), network = own.network.memories, own.network
    pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
    for ours, theirs in (
        (actor.cells, peer.lstm_actor),
        (critic.cells, peer.lstm_critic),
        (network.actor, peer.action_net),
        (network.critic, peer.value_net),
    ):
        pairs += zip(ours.parameters(), theirs.parameters(), strict=True)
    return pairs


def as_peer(buffer: Any, batch: Rollout, samples: Any) -> None:
    """Write a rollout into the peer's buffer, which learns from any part of it."""
    shape = batch.reward.shape
    begins = torch.zeros(shape)
    begins[1:] = (batch.terminated | batch.truncated)[:-1]
    states = [x.unsqueeze(1).numpy() for x in batch.state.chunk(4, -1)]
    buffer.reset()
    buffer.hidden_states_pi, buffer.cell_states_pi = states[:2]
    buffer.hidden_states_vf, buffer.cell_states_vf = states[2:]
    buffer.observations, buffer.episode_starts = batch.obs.numpy(), begins.numpy()
    buffer.actions = batch.action.unsqueeze(-1).numpy().astype(np.float32)
    for name, x in (
        ("log_probs", samples.log_prob),
        ("advantages", samples.adv),
        ("returns", samples.target),
        ("values", samples.value),
    ):
        setattr(buffer, name, x.view(shape).numpy())
    buffer.full, buffer.pos = True, shape[0]


def check(config: PPOConfig) -> None:
    """Assert that both learn the same from the same rollouts."""
    # Their estimates of the deviation of the advantages differ a little.
    config = replace(config, num_epochs=1, num_minibatches=1, normalize_advantage=False)
    config = replace(config, learning_rate=1.0, anneal=False)
    own, peer = agent(config, CARTPOLE), peer_learner(config)
    peer.learn(1)
    pairs = parameter_pairs(own.policy, peer.policy)
    with torch.no_grad():
        for ours, theirs in pairs:
            theirs.copy_(ours)
    # Plain gradient steps, because Adam divides by gradients that may be all rounding.
    rate = config.learning_rate
    own.optimizer = torch.optim.SGD(own.parameters, rate)  # type: ignore[assignment]
    peer.policy.optimizer = torch.optim.SGD(peer.policy.parameters(), rate)
    for _ in range(3):
        batch = own.collect()
        assert (batch.terminated | batch.truncated).any(), "episodes have to end"
        samples = own.look_back(batch)
        as_peer(peer.rollout_buffer, batch, samples)
        own.learn(samples)
        # It turns the rows by so many before it cuts them. A cut within an episode
        # would stop the gradient there.
        with patch("numpy.random.randint", return_value=0):
            peer.train()
        for ours, theirs in pairs:
            close(ours, theirs)


def check_work(config: PPOConfig) -> None:
    """Assert that the peer has trained what we train, and as often."""
    own, peer = agent(config, CARTPOLE), peer_learner(config)
    fit(own, progress=False)
    peer.learn(config.total_steps)
    updates = []
    for adam in (own.optimizer, peer.policy.optimizer):
        updates.append({int(each["step"]) for each in adam.state.values()})
    for ours, theirs in parameter_pairs(own.policy, peer.policy):
        assert ours.shape == theirs.shape
    assert own.step == peer.num_timesteps, "steps differ"
    assert updates[0] == updates[1], f"updates differ: {updates}"


def cases() -> Iterator[Case]:
    """Yield the case, after its checks."""
    check(CONFIG)
    check_work(CONFIG)

    def own() -> Callable[[], object]:
        return partial(fit, agent(CONFIG, CARTPOLE), progress=False)

    def theirs() -> Callable[[], object]:
        return partial(peer_learner(CONFIG).learn, CONFIG.total_steps)

    copies, steps, size = CONFIG.num_envs, CONFIG.num_steps, CONFIG.recurrent_size
    yield Case(
        name=f"{copies} environments, {steps} steps, LSTMs of {size}",
        functions={PEER: theirs, "PPO": own},
        peer=PEER,
        sample=partial(step_clock, steps=CONFIG.total_steps),
        shortest=0.0,
    )
