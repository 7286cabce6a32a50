"""Training runs of stable-baselines3 and sb3-contrib, at the settings of ours.

They live in the environment that ``make peers`` makes::

    build/peers/bin/python -m benchmarks.peer_learning [NAME …]

It works as ``benchmarks.learning`` does. Two things differ: the peer's SAC takes
uniform actions until it learns, where ours draws from its untrained policy. And the
minibatches of its PPO with an LSTM are cut anywhere, not between environments.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import recurrent_loop, sac_loop, td3_loop
from benchmarks.ddpg_learning import EXPERIMENTS as OF_DDPG
from benchmarks.learning import Experiment, Variant, main
from benchmarks.recurrent_learning import EXPERIMENTS as OF_RECURRENT
from benchmarks.sac_learning import EXPERIMENTS as OF_SAC


class PeerPolicy(nn.Module):
    """The peer's policy, in the form that ``evaluate`` takes."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner, self.predict = model.policy, model.predict

    def act(self, obs: Tensor, noise: float) -> Tensor:
        """Return greedy actions."""
        return torch.from_numpy(self.predict(obs.numpy(), deterministic=True)[0])

    def to_env(self, action: Tensor) -> Any:
        """Return the actions as vector environments take them."""
        return action.numpy()


class RecurrentPeerPolicy(PeerPolicy):
    """A policy of the peer's that remembers."""

    state: Any = None
    over: Any = None

    def act(self, obs: Tensor, noise: float) -> Tensor:
        """Return the greedy actions that follow from all observations."""
        if self.over is None:
            self.state, self.over = None, np.ones(len(obs), dtype=bool)
        action, self.state = self.predict(obs.numpy(), self.state, self.over, True)
        return torch.from_numpy(action)

    def reset(self, over: Any = None) -> None:
        """Forget what was seen where an episode is over, or everything."""
        self.over = over


class Peer:
    """The peer's learner, in the form that ``fit`` takes.

    Args:
        model: The learner.
        config: Our settings.
    """

    checkpoint_due = False

    def __init__(self, model: Any, config: Any) -> None:
        self.model, self.config = model, config
        kind = RecurrentPeerPolicy if hasattr(config, "recurrent") else PeerPolicy
        self.policy = kind(model)
        # What `close` ends.
        self.collector = SimpleNamespace(envs=model.get_env())

    @property
    def step(self) -> int:
        """Steps taken so far."""
        return int(self.model.num_timesteps)

    def iterate(self) -> dict[str, float]:
        """Act and learn in turns for a while."""
        monitors = self.model.get_env().envs
        before = [len(monitor.get_episode_rewards()) for monitor in monitors]
        taken = getattr(self.config, "iteration_steps", self.config.steps_per_iteration)
        self.model.learn(taken, reset_num_timesteps=False)
        new = [
            reward
            for monitor, known in zip(monitors, before, strict=True)
            for reward in monitor.get_episode_rewards()[known:]
        ]
        return {"charts/episodic_return": float(np.mean(new)) if new else np.nan}


def learner(config: Any, env: str, build: Any) -> Peer:
    """Build the peer's learner."""
    return Peer(build(config, env), config)


def beside(ours: Experiment, build: Any, peer: str = "stable-baselines3") -> Experiment:
    """Return an experiment that trains the peer as it trains ours."""
    (changes,) = (variant.changes for variant in ours.variants.values())
    made = Variant(changes, partial(learner, env=ours.env, build=build))
    return replace(ours, variants={peer: made}, watched=(), packages=(peer,))


OF_LSTM = OF_RECURRENT["recurrent_cartpole"]
OF_LSTM = replace(OF_LSTM, variants={"LSTM": OF_LSTM.variants["LSTM"]})

EXPERIMENTS = {
    "td3_cheetah_peer": beside(OF_DDPG["td3_cheetah"], td3_loop.peer_learner),
    "sac_cheetah_peer": beside(OF_SAC["sac_cheetah"], sac_loop.peer_learner),
    "recurrent_cartpole_peer": beside(
        OF_LSTM, recurrent_loop.peer_learner, "sb3-contrib"
    ),
}

if __name__ == "__main__":
    main("python -m benchmarks.peer_learning", EXPERIMENTS)
