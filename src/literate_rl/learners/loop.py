# Generated from chapters/learners/loop.py (edit there); digest ce895feedb7cb337
"""One loop for every agent that learns from remembered steps."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from literate_rl.data.agents import Sampler
from literate_rl.data.episodes import Mean, check_num_envs, mean_return
from literate_rl.data.replay import Batch, ReplayBuffer
from literate_rl.data.windows import check_fits
from literate_rl.ground.networks import eval_mode
from literate_rl.ground.protocols import (
    Act,
    Algorithm,
    Envs,
    Error,
    PolicyLike,
    RunConfig,
    Stateful,
)
from literate_rl.ground.signatures import (
    Count,
    Float,
    Fraction,
    NonNegative,
    Positive,
    Scale,
    check_finite,
    checked,
)
from literate_rl.nets.parts import RunningMoments, normalizer_of, take_in

__all__ = [
    "ActorCriticConfig",
    "OffPolicy",
    "OffPolicyConfig",
    "QError",
    "TargetNetwork",
    "linear_schedule",
    "polyak_update",
    "squared_error",
]


class QError(NamedTuple):
    """How wrong a batch of values is, sample by sample.

    Attributes:
        loss: What is minimised.
        td_error: Targets minus values, without gradient. Its size is the priority in
            the buffer.
        value: The values themselves, without gradient.
    """

    loss: Float[Tensor, "N"]
    td_error: Float[Tensor, "N"]
    value: Float[Tensor, "N"]

    def backward(self, weight: Float[Tensor, "N"]) -> None:
        """Add the gradient of the weighted mean loss to that of the parameters."""
        (self.loss * weight).mean().backward()


@checked
def squared_error(
    q: Float[Tensor, "K N"],
    target: Float[Tensor, "N"],
    rate: float | Float[Tensor, "K N"] = 1.0,
) -> QError:
    """Return half the squared distance of K critics from a target, added up.

    Args:
        q: Their values, with gradient.
        target: What the values should be; treated as a constant.
        rate: Factor on each of these errors.
    """
    target = target.detach()
    loss = (0.5 * rate * (target - q).square()).sum(0)
    check_finite(loss, q=q, target=target)
    # A priority is measured from the mean of the critics' values.
    value = q.detach().mean(0)
    return QError(loss, target - value, value)


def polyak_update(target: list[Tensor], source: list[Tensor], tau: float) -> None:
    """Move the target's weights towards the source's, by a share ``tau`` of the way."""
    moving: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        for index, (x, y) in enumerate(zip(target, source, strict=True)):
            if x.shape != y.shape:
                raise ValueError(f"source[{index}] must have the shape of its target")
            if x.is_floating_point():
                moving.append((x, y))
            else:  # a whole number, such as a count, cannot go part of the way
                x.copy_(y)
        # {eq}`polyak`, in place and for all weights in one call.
        old, new = zip(*moving, strict=True)
        torch._foreach_lerp_(old, new, tau)


class TargetNetwork:
    """An older copy of a network that nobody trains, and that follows it.

    Args:
        newer: The network in training.

    Attributes:
        network: The copy. It is in evaluation mode and stays so.
    """

    def __init__(self, newer: nn.Module) -> None:
        # Observations have one scale: the copy normalises with the newer one's moments.
        kept = [m for m in newer.modules() if isinstance(m, RunningMoments)]
        copied = copy.deepcopy(newer, {id(m): m for m in kept})
        self.network: Any = copied.requires_grad_(False).eval()
        # Of both the weights, and the modules that hold numbers which no optimiser
        # moves, such as means.
        self.parts = [
            (
                list(net.parameters()),
                [m for m in net.modules() if m._buffers and m not in kept],
            )
            for net in (copied, newer)
        ]

    def follow(self, tau: float) -> None:
        """Move towards the network in training, by a share ``tau`` of the way."""
        # A module may have put another tensor in the place of a buffer.
        older, newer = (
            weights + list(dict.fromkeys(x for m in held for x in m.buffers(False)))
            for weights, held in self.parts
        )
        polyak_update(older, newer, tau)


@checked
def linear_schedule(
    start: float, end: float, duration: Positive, step: NonNegative
) -> float:
    """Return where a straight line from ``start`` to ``end`` is at a step."""
    # The line {eq}`linear-schedule`, written so that it ends exactly at its end.
    share = min(1.0, step / duration)
    return (1 - share) * start + share * end


@checked
@dataclass(frozen=True)
class OffPolicyConfig(RunConfig):
    """Settings of the loop, which all agents on it share.

    Attributes:
        num_envs: Number of environments.
        hidden: Width of the hidden layers that ``train`` builds. A policy that you hand
            over keeps its own, and for a picture DQN's network has none but its
            encoder's.
        num_steps: Number n of rewards in a target before the value.
        gamma: Discount.
        batch_size: Steps that one update learns from.
        train_interval: Steps in the environments between two updates.
        learning_starts: Steps before the first update.
        buffer_size: Steps that the buffer holds.
        target_interval: Updates between two moves of the target network and, in agents
            with an actor, between two updates of the actor.
        tau: How far it moves then; 1 is a copy.
        priority_exponent: How strongly the buffer prefers large TD errors; 0 is not at
            all.
        beta: How far the importance weights undo that preference at the start, where
            there is one; at the end they do so fully.
        reward_scale: Factor on the rewards in the targets.
        max_grad_norm: Bound of the gradient's norm.
        iteration_steps: Steps in the environments of one iteration. Its noise is drawn
            at once, and the learning rate and other schedules move on where it begins.
        log_interval: Steps in the environments from one row of the log to the next, a
            multiple of those of an iteration; None is a row for each. Nothing but the
            log depends on it.
        checkpoint_interval: Iterations between checkpoints. The environments are reset
            at each of them, so an episode that takes longer never ends: by default one
            of more than 2,500 steps.
    """

    num_envs: Count = 4
    hidden: Count = 128
    num_steps: Count = 1
    gamma: Fraction = 0.99
    batch_size: Count = 128
    train_interval: Count = 4
    learning_starts: Count = 1000
    buffer_size: Count = 100_000
    target_interval: Count = 1
    tau: Fraction = 0.01
    priority_exponent: NonNegative = 0.0
    beta: Fraction = 0.4
    reward_scale: Scale = 1.0
    max_grad_norm: Positive = 10.0
    iteration_steps: Count = 1000
    log_interval: Count | None = None
    checkpoint_interval: Count = 10

    def __post_init__(self) -> None:
        if self.rollout_len * self.num_envs % self.train_interval:
            raise ValueError(
                "train_interval must divide num_envs or be a multiple of it, got "
                f"{self.train_interval} for {self.num_envs}"
            )
        if (self.log_interval or 0) % self.iteration_steps:
            raise ValueError(
                "log_interval must be a multiple of iteration_steps, "
                f"{self.iteration_steps}, got {self.log_interval}"
            )

    @property
    def rollout_len(self) -> int:
        """Steps of each environment between two updates or more."""
        return max(1, self.train_interval // self.num_envs)

    @property
    def updates_per_rollout(self) -> int:
        """Updates that are due after them."""
        return self.rollout_len * self.num_envs // self.train_interval

    @property
    def rounds(self) -> int:
        """Rollouts of one iteration."""
        return max(1, self.iteration_steps // (self.rollout_len * self.num_envs))

    @property
    def steps_per_iteration(self) -> int:
        """Steps of one iteration, all environments together."""
        return self.rounds * self.rollout_len * self.num_envs

    @property
    def rows_per_update(self) -> int:
        """Rows of one update."""
        return self.batch_size


@checked
@dataclass(frozen=True)
class ActorCriticConfig(OffPolicyConfig):
    """Settings of the agents with an actor and critics: one update for each step.

    Attributes:
        share_encoder: Whether actor and critics share an encoder, in a policy that
            ``train`` builds.
    """

    num_envs: Count = 1
    hidden: Count = 64
    learning_rate: Scale = 1e-3
    train_interval: Count = 1
    learning_starts: Count = 500
    tau: Fraction = 0.005
    max_grad_norm: Positive = math.inf
    iteration_steps: Count = 500
    share_encoder: bool = False


class OffPolicy(Sampler):
    """Acts, remembers, learns.

    Args:
        algorithm: What is learned: an error and, where there is an actor, an ascent.
        envs: A vector environment with ``config.num_envs`` copies.
        config: The settings of the loop; those of the algorithm may be among them.
        act: A faster form of ``algorithm.policy.act``, or None for that one.
        error: A faster form of ``algorithm.error``, or None for that one: a function of
            the algorithm, a batch and a generator, which returns the same numbers.
    """

    # In a checkpoint, beside the policy's weights ({doc}`/chapters/runs/runs`).
    kept = ("buffer", "optimizer", "target", *Sampler.kept, "updates")

    def __init__(
        self,
        algorithm: Algorithm,
        envs: Envs,
        config: OffPolicyConfig,
        act: Act | None = None,
        error: Callable[..., Error] | None = None,
    ) -> None:
        check_num_envs(envs, config.num_envs)
        size, space = config.buffer_size, envs.single_observation_space
        check_fits("buffer_size", size, size, config.total_steps, space)
        super().__init__(
            algorithm.policy, envs, config.seed, config.checkpoint_interval, act
        )
        self.algorithm, self.config = algorithm, config
        self.normalizer = normalizer_of(self.policy, config.normalize_obs)
        # The plain form, unless somebody has handed in another.
        self.error = partial(error, algorithm) if error else algorithm.error
        # What learns, and how.
        self.parameters = [p for p in self.policy.parameters() if p.requires_grad]
        self.actor = [p for p in algorithm.actor if p.requires_grad]
        self.optimizer = torch.optim.Adam(
            self.parameters, config.learning_rate, fused=True
        )
        # What follows it, a checkpoint has a place for it in any case; and where its
        # steps are kept.
        target, self.updates = algorithm.target, 0
        self.target: Stateful = nn.Module() if target is None else target.network
        self.buffer = ReplayBuffer(size, config.priority_exponent)

    def iterate(self) -> dict[str, float]:
        """Act and learn in turns for a while, and return metrics."""
        config = self.config
        self.prepare()
        # All random numbers of the actions are drawn at once.
        noise = self.policy.noise(
            config.rounds * config.rollout_len, config.num_envs, self.generator
        )
        rows = iter(noise.to(self.device))

        def act(obs: Tensor, **mask: Tensor) -> Tensor:
            return self.act(obs.to(self.device, torch.float32), next(rows), **mask)

        returns, losses = [], []
        for _ in range(config.rounds):
            # A few steps with the policy as it is now; the buffer keeps them.
            with eval_mode(self.policy):
                rollout = self.collector.collect(act, config.rollout_len)
            self.buffer.push(rollout)
            take_in(self.normalizer, rollout.obs, rollout.real)
            returns.append(rollout.episode_return)
            # Then the updates that are due.
            if self.step >= config.learning_starts:
                losses += [self.learn() for _ in range(config.updates_per_rollout)]

        self.iteration += 1
        return {
            "charts/episodic_return": mean_return(torch.cat(returns)),
            **self.algorithm.metrics(),
            **self.mean_losses(losses),
        }

    def prepare(self) -> None:
        """Set what changes from iteration to iteration."""
        # A run that is resumed starts with fresh environments. A run that continues
        # must do the same, so each checkpoint resets them, and the buffer is told.
        if self.starts_anew:
            self.buffer.cut()
        self.start()
        self.algorithm.explore(self.step)
        self.anneal()

    def anneal(self) -> None:
        """Set the learning rate, if it falls."""
        if self.config.anneal:
            self.optimizer.param_groups[0]["lr"] = self.config.rate(self.step)

    def learn(self) -> QError:
        """Take one step of the optimiser on a batch from the buffer."""
        config = self.config
        # 1. Draw steps of any age; each is the start of a window of n.
        batch = self.sample()
        # 2. How wrong are the values? One step downhill for the weighted mean loss.
        error = self.error(batch, self.generator)
        self.descend(partial(error.backward, batch.weight), self.parameters)
        # 3. The TD errors are the new priorities.
        if config.priority_exponent > 0:
            self.buffer.update(batch.place, error.td_error)
        # 4. The actor climbs, and the older copy follows: by a little after each
        # update, or all the way now and then.
        self.updates += 1
        if self.updates % config.target_interval == 0:
            # Where there is an actor, it climbs by what is legal.
            mask = batch.mask if self.actor else None
            legal = {} if mask is None else {"mask": mask}
            loss = self.algorithm.ascent(batch.obs, self.generator, **legal)
            if loss is not None:
                # The gradient goes through the values, but they get none themselves,
                # so the optimiser does not move them.
                self.descend(partial(loss.backward, inputs=self.actor), self.actor)
            if self.algorithm.target is not None:
                self.algorithm.target.follow(config.tau)
        return QError(error.loss.detach(), error.td_error, error.value)

    def descend(self, backward: Callable[[], None], parameters: list[Any]) -> None:
        """Take one step downhill for a loss, with gradient clipping."""
        for parameter in self.parameters:
            parameter.grad = None
        backward()
        bound = self.config.max_grad_norm
        if bound < math.inf:
            # The norm of all gradients in one call. Few are so long that they are cut.
            grads = [p.grad for p in parameters if p.grad is not None]
            norm = torch.stack(torch._foreach_norm(grads)).square().sum().sqrt()
            if (share := bound / (norm + 1e-6)) < 1:
                torch._foreach_mul_(grads, share)
        self.optimizer.step()

    def sample(self) -> Batch:
        """Draw a batch with scaled rewards, on the policy's device."""
        config, beta = self.config, 1.0
        if config.priority_exponent > 0:
            beta = linear_schedule(config.beta, 1.0, config.total_steps, self.step)
        batch = self.buffer.sample(
            config.batch_size, self.generator, config.num_steps, config.gamma, beta
        )
        batch = batch._replace(
            obs=batch.obs.float(),
            next_obs=batch.next_obs.float(),
            reward=batch.reward * config.reward_scale,
        )
        return batch if self.device.type == "cpu" else batch.to(self.device)

    def mean_losses(self, errors: list[QError]) -> dict[str, float]:
        """Return the means of an iteration; NaN before the first update."""
        means = [math.nan] * 3
        if errors:
            loss, td_error, value = map(torch.stack, zip(*errors, strict=True))
            means = [x.mean().item() for x in (loss, td_error.abs(), value)]
            check_finite(means[0], values=value, td_error=td_error)
        names = ("losses/loss", "losses/td_error", "losses/q_value")
        return {
            name: Mean(x, len(errors)) for name, x in zip(names, means, strict=True)
        }

    @property
    def log_due(self) -> bool:
        """Whether the last iteration completes a row of the log."""
        each = self.config.iteration_steps
        return self.iteration % ((self.config.log_interval or each) // each) == 0


def learner_of(algorithm: type[Any], *seen: str) -> Callable[..., OffPolicy]:
    """Return a function that makes the learner of an algorithm.

    Args:
        algorithm: Its class, which takes a policy and settings.
        seen: What it is told of the environments too, by names of their attributes.
    """

    def learner(
        policy: PolicyLike, envs: Envs, config: OffPolicyConfig, **forms: Any
    ) -> OffPolicy:
        """Return what trains a policy.

        Args:
            policy: What the chapter's ``make_..._policy`` returns, on any device.
            envs: A vector environment with ``config.num_envs`` copies.
            config: The settings of the chapter.
            forms: Faster forms, as ``OffPolicy`` takes them.
        """
        more = (getattr(envs, name) for name in seen)
        return OffPolicy(algorithm(policy, config, *more), envs, config, **forms)

    learner.__module__ = algorithm.__module__
    return learner
