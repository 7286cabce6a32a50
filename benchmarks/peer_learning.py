"""Training runs of stable-baselines3's TD3 and SAC, at the settings of ours.

They live in the environment that ``make peers`` makes::

    build/peers/bin/python -m benchmarks.peer_learning [NAME …]

It works as ``benchmarks.learning`` does. One thing differs: the peer's SAC takes
uniform actions until it learns, where ours draws from its untrained policy.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import sac_loop, td3_loop
from benchmarks.ddpg_learning import EXPERIMENTS as OF_DDPG
from benchmarks.learning import Experiment, Variant, main
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


class Peer:
    """The peer's learner, in the form that ``fit`` takes.

    Args:
        model: The learner.
        config: Our settings.
    """

    checkpoint_due = False

    def __init__(self, model: Any, config: Any) -> None:
        self.model, self.config, self.policy = model, config, PeerPolicy(model)
        # What `close` ends.
        self.collector = SimpleNamespace(envs=model.get_env())

    @property
    def step(self) -> int:
        """Steps taken so far."""
        return int(self.model.num_timesteps)

    def iterate(self) -> dict[str, float]:
        """Act and learn in turns for a while."""
        (monitor,) = self.model.get_env().envs
        before = len(monitor.get_episode_rewards())
        self.model.learn(self.config.iteration_steps, reset_num_timesteps=False)
        new = monitor.get_episode_rewards()[before:]
        return {"charts/episodic_return": float(np.mean(new)) if new else np.nan}


def learner(config: Any, env: str, build: Any) -> Peer:
    """Build the peer's learner."""
    return Peer(build(config, env), config)


def beside(ours: Experiment, build: Any) -> Experiment:
    """Return an experiment that trains the peer as it trains ours."""
    (changes,) = (variant.changes for variant in ours.variants.values())
    made = Variant(changes, partial(learner, env=ours.env, build=build))
    return replace(ours, variants={"stable-baselines3": made}, watched=())


EXPERIMENTS = {
    "td3_cheetah_peer": beside(OF_DDPG["td3_cheetah"], td3_loop.peer_learner),
    "sac_cheetah_peer": beside(OF_SAC["sac_cheetah"], sac_loop.peer_learner),
}

if __name__ == "__main__":
    main("python -m benchmarks.peer_learning", EXPERIMENTS)
