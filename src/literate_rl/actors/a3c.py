# Generated from chapters/a3c.py (edit there); digest df015ce77f614a29
"""A3C: workers that send gradients, and a learner that takes the steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from literate_rl.actors.actors import (
    Actor,
    MakeAct,
    RemoteLearner,
    TransportConfig,
    Weights,
    fill,
    layout_of,
    weights_of,
)
from literate_rl.ground.protocols import ActorCriticLike, Envs, PolicyLike, settings_of
from literate_rl.ground.rows import ANY, Row, actor_critic, register
from literate_rl.ground.signatures import Count, checked
from literate_rl.learners.a2c import (
    SETTINGS,
    GradientConfig,
    GradientLearner,
    a2c_gradient,
    a2c_loss,
    named,
    returned,
)
from literate_rl.nets.parts import normalizer_of, take_in

__all__ = [
    "A3C",
    "A3CConfig",
    "GradientWorker",
    "a3c_settings",
    "gradient_layout",
]


@checked
@dataclass(frozen=True)
class A3CConfig(TransportConfig, GradientConfig):
    """Settings of A3C: nearly those of A2C, and those of workers and their transport.

    Each worker has ``num_envs`` environments. The default is two workers with one slot
    each, so each has one gradient under way.
    """

    actors: Count = 2
    slots: Count = 1
    rows_per_update = 0  # the workers compute the gradients, on the CPU


a3c_settings = settings_of(A3CConfig, SETTINGS)


def gradient_layout(policy: PolicyLike, config: GradientConfig) -> np.dtype[np.void]:
    """Describe the memory of a slot whose result is a gradient.

    Its ``result`` holds the ``gradient``, one array for each named parameter, the
    returns of the episodes that ended (NaN where none did) and the losses. Where
    observations are normalised, the learner needs them too.
    """
    weights = weights_of(policy)
    parts = [(n, weights[n].dtype, x.shape) for n, x in policy.named_parameters()]
    steps = config.num_steps, config.num_envs
    result: list[Any] = [
        ("gradient", parts),
        ("episode_return", np.float32, steps),
        ("losses", [(name, np.float64) for name in a2c_loss._fields]),
    ]
    if normalizer := normalizer_of(policy, config.normalize_obs):
        result += [("obs", np.float32, (*steps, *normalizer.mean.shape))]
        result += [("real", np.bool_, steps)]
    return layout_of(policy, result)


class GradientWorker(Actor):
    """Acts for one rollout at a time and computes the gradient itself.

    Args:
        make_envs: Function that makes its vector environment.
        policy: A policy on the CPU, which is copied.
        config: The settings.
        seed: Seed of the noise and of the environments.
        make_act: As for ``Actor``.
    """

    def __init__(
        self,
        make_envs: Callable[[], Envs],
        policy: ActorCriticLike,
        config: GradientConfig,
        seed: int,
        make_act: MakeAct | None = None,
    ) -> None:
        super().__init__(make_envs, policy, seed, make_act)
        self.config = config

    def work(self, weights: Weights, out: Any) -> None:
        """Act with these weights, and write the gradient to ``out``."""
        # Collect a rollout, as an actor of IMPALA does.
        batch = self.collect(weights, self.config.num_steps)
        # Send the gradient, and with it what the learner reports.
        policy = self.policy
        gradient, losses = a2c_gradient(policy, batch, self.config)
        for (name, _), part in zip(policy.named_parameters(), gradient, strict=True):
            out["gradient"][name] = part.numpy()
        out["episode_return"] = batch.episode_return.numpy()
        fill(out["losses"], losses)
        if self.config.normalize_obs:
            out["obs"], out["real"] = batch.obs.numpy(), batch.real.numpy()


class A3C(RemoteLearner):
    """Takes a step on each gradient that a worker sends.

    Its arguments are those of ``RemoteLearner``, with an ``A3CConfig``.
    """

    actor = GradientWorker
    config: A3CConfig
    learner: GradientLearner

    def prepare(self, acting: Any, envs: Envs) -> None:
        """Set what a slot holds and who takes the steps."""
        self.layout, self.brings = gradient_layout(acting, self.config), (self.config,)
        self.learner = GradientLearner(self.policy, self.config)

    def learn(self, result: Any) -> dict[str, float]:
        """Take a step on a gradient; return metrics."""
        parts, device = result["gradient"], self.learner.parameters[0].device
        gradient = tuple(
            torch.tensor(parts[name], device=device) for name in parts.dtype.names
        )
        taken = self.learner.learn(gradient, self.step)
        self.step += result["episode_return"].size
        if self.config.normalize_obs:
            seen = (torch.from_numpy(result[name]) for name in ("obs", "real"))
            take_in(self.learner.normalizer, *seen)
        losses = {name: float(result["losses"][name]) for name in a2c_loss._fields}
        ended = torch.from_numpy(result["episode_return"])
        return {**returned(ended), **taken, **named(losses)}


ROW = register(
    Row(
        "A3C",
        "A2C with workers that send gradients",
        ANY,
        A3CConfig,
        actor_critic,
        actors=A3C,
        settings=a3c_settings,
        contract="ppo",
    )
)
