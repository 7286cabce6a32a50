# Generated from chapters/apex.py (edit there); digest 0101cf908c909de3
"""Ape-X: many actors, one memory, and first priorities that the actors set."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from literate_rl.actors.actors import (
    Actor,
    MakeAct,
    MakeTransport,
    RemoteLearner,
    TransportConfig,
    Weights,
    arrays_of,
    fields_of,
    fill,
    layout_of,
    one_step,
    tensors_in,
)
from literate_rl.data.agents import Rollout
from literate_rl.data.episodes import mean_return
from literate_rl.data.replay import ReplayBuffer
from literate_rl.ground.networks import eval_mode
from literate_rl.ground.protocols import (
    Algorithm,
    Envs,
    PolicyLike,
    settings_of,
)
from literate_rl.ground.rows import Row, register
from literate_rl.ground.signatures import (
    Count,
    Float,
    Fraction,
    NonNegative,
    check_that,
    checked,
)
from literate_rl.learners.ddpg import (
    ROW as DDPG_ROW,
    SETTINGS as DDPG_SETTINGS,
    DDPGConfig,
)
from literate_rl.learners.dqn import (
    ROW as DQN_ROW,
    SETTINGS as DQN_SETTINGS,
    DQNConfig,
)
from literate_rl.learners.loop import OffPolicy
from literate_rl.learners.rainbow import (
    ROW as RAINBOW_ROW,
    SETTINGS as RAINBOW_SETTINGS,
    RainbowConfig,
)
from literate_rl.nets.parts import take_in
from literate_rl.nets.policies import Policy

__all__ = [
    "Apex",
    "ApexActor",
    "ApexConfig",
    "DDPGApexConfig",
    "DQNApexConfig",
    "RainbowApexConfig",
    "actor_epsilons",
    "apex_settings",
    "experience_layout",
    "first_priorities",
]


@torch.no_grad()
@checked
def first_priorities(
    algorithm: Algorithm,
    rollout: Rollout,
    num_steps: Count,
    gamma: Fraction,
    generator: torch.Generator,
) -> Float[Tensor, "T B"]:
    """Return the priorities that a learner with this policy would give to steps.

    Args:
        algorithm: The learner's own, with the policy that acted in both places, as
            ``of_one_policy`` makes it.
        rollout: The steps, with rewards in the learner's scale.
        num_steps: Number n of rewards in a target. Windows end with the rollout.
        gamma: Discount.
        generator: The source of the noise, for an error that draws some.
    """
    # A buffer of these steps only, and every step is the start of a window.
    memory = ReplayBuffer(rollout.reward.numel())
    place, steps = memory.rings.push(rollout)
    priority = torch.zeros_like(rollout.reward)
    if not len(place):
        return priority  # no row is a step
    batch = memory.windows(place, num_steps, gamma)
    # The learner's own error, with one network in both places: {eq}`first-priority`.
    with eval_mode(algorithm.policy):
        priority[steps] = algorithm.error(batch, generator).td_error.abs()
    return priority


def of_one_policy(algorithm: Algorithm, policy: PolicyLike) -> Algorithm:
    """Return an algorithm with one policy in both places, which only judges steps."""
    both: Any = copy.copy(algorithm)
    both.policy, both.target, both.actor = policy, SimpleNamespace(network=policy), ()
    return cast(Algorithm, both)


@checked
def actor_epsilons(
    number: Count, epsilon: Fraction = 0.4, power: NonNegative = 7.0
) -> Float[Tensor, "number"]:
    """Return the probability of a random action for each of some environments.

    Args:
        number: Number of the environments of all actors.
        epsilon: That probability in the first one.
        power: In the last one it is ``epsilon`` to the power ``1 + power``.

    Source: Horgan et al. 2018, section 4.1.
    """
    # The ladder {eq}`epsilon-ladder`; a single environment gets the first rung.
    share = torch.arange(number) / max(1, number - 1)
    return epsilon ** (1 + power * share)


class ApexActor(Actor):
    """Acts for one rollout at a time, and sets first priorities.

    Args:
        make_envs: Function that makes its vector environment.
        policy: A policy on the CPU, which is copied.
        algorithm: The learner's own; its error gives the first priorities.
        config: The settings.
        seed: Decides the noise and the environments' random numbers.
        make_act: As for ``Actor``.
    """

    def __init__(
        self,
        make_envs: Callable[[], Envs],
        policy: Policy,
        algorithm: Algorithm,
        config: ApexSettings,
        seed: int,
        make_act: MakeAct | None = None,
    ) -> None:
        super().__init__(make_envs, policy, seed, make_act)
        self.algorithm = of_one_policy(algorithm, self.policy)
        self.config = config
        # The rungs of all environments, a row for each actor.
        self.epsilons = actor_epsilons(
            config.actors * config.num_envs, config.epsilon, config.power
        ).reshape(config.actors, -1)

    def work(self, weights: Weights, out: Any) -> None:
        """Act for one rollout with these weights; write it and its priorities."""
        config, number = self.config, int(weights["actor"])
        # The slot says which actor this is, and so which rungs its environments have.
        self.policy.actions.epsilon = self.epsilons[number]
        # In an actor's first rollout its environments have just been reset.
        out["actor"], out["fresh"] = number, self.collector.step == 0
        rollout = self.collect(weights, config.rollout_len)
        fill(out, arrays_of(rollout._asdict()))
        # The first priorities, from rewards in the learner's scale.
        if config.priorities == "actor":
            scaled = rollout._replace(reward=rollout.reward * config.reward_scale)
            how = config.num_steps, config.gamma, self.generator
            out["priority"] = first_priorities(self.algorithm, scaled, *how).numpy()


@checked
def experience_layout(
    policy: PolicyLike, envs: Envs, rollout_len: Count
) -> np.dtype[np.void]:
    """Describe the memory of one slot, a record with ``weights`` and ``result``.

    The weights come with the number of the ``actor``. The result has a field for each
    of ``Rollout``, the ``priority`` of each step, the number of the actor, and whether
    its environments were ``fresh``.

    Args:
        policy: A policy on the CPU.
        envs: The environments of one actor.
        rollout_len: Steps of each of them in a slot.
    """
    own: Any = envs.single_observation_space.dtype
    # What float32 holds may stay as it is; anything else has become float32 by then.
    kept = own if np.can_cast(own, np.float32) else np.float32
    one = one_step(policy, envs, kept)
    example = {**one._asdict(), "priority": one.reward}
    result = fields_of(example, rollout_len)
    result += [("actor", np.int64), ("fresh", np.bool_)]
    return layout_of(policy, result, ("actor", np.int64))


class Apex(RemoteLearner):
    """Learns from a memory that many actors fill.

    Use it as a context manager, or call ``close``, so that the actors end.

    Args:
        learner: What ``DQN``, ``Rainbow`` or ``DDPG`` returns. Its ``config`` is one of
            ``ApexConfig`` too. Its environments are closed.
        make_envs: Makes the ``config.num_envs`` environments of one actor.
        transport: As for ``RemoteLearner``.
        make_act: As for ``Actor``.
    """

    actor = ApexActor
    config: ApexSettings
    learner: OffPolicy

    @checked
    def __init__(
        self,
        learner: OffPolicy,
        make_envs: Callable[[], Envs],
        transport: MakeTransport | None = None,
        make_act: MakeAct | None = None,
    ) -> None:
        self.learner = learner
        learner.collector.envs.close()
        config = cast(TransportConfig, learner.config)
        super().__init__(learner.policy, make_envs, config, transport, make_act)

    def prepare(self, acting: Any, envs: Envs) -> None:
        """Set what a slot holds, and that an actor brings what judges steps."""
        self.layout = experience_layout(acting, envs, self.config.rollout_len)
        judge = of_one_policy(self.learner.algorithm, acting)
        self.brings = judge, self.config

    def message(self, actor: int) -> Weights:
        """Return what an actor is sent: the weights, and its number."""
        return {**super().message(actor), "actor": np.int64(actor)}

    def learn(self, record: Any) -> dict[str, float]:
        """Store a rollout and take the updates that are due; return metrics."""
        learner, config, number = self.learner, self.config, int(record["actor"])
        rollout = tensors_in(record, Rollout)
        first, width = number * config.num_envs, config.num_envs
        # A new actor does not continue where the one before it ended.
        if record["fresh"]:
            learner.buffer.cut(slice(first, first + width))
        # Without the actor's priorities the buffer gives each step the largest so far.
        judged = config.priorities == "actor"
        priority = torch.from_numpy(record["priority"]) if judged else None
        learner.buffer.push(rollout, priority, (first, config.actors * width))
        take_in(learner.normalizer, rollout.obs, rollout.real)

        # The learning rate and the count of steps, as in the loop without actors.
        learner.anneal()
        learner.collector.step += rollout.reward.numel()
        self.step = learner.step
        # As many updates for each step as without actors.
        due = config.updates_per_rollout if self.step >= config.learning_starts else 0
        losses = learner.mean_losses([learner.learn() for _ in range(due)])
        # Of the algorithm's own metrics those about learning: the ladder explores.
        told = learner.algorithm.metrics().items()
        losses |= {name: x for name, x in told if name.startswith("losses/")}
        return {"charts/episodic_return": mean_return(rollout.episode_return)} | losses

    @property
    def log_due(self) -> bool:
        """Whether the last iteration completes a row of the log."""
        each = self.config.steps_per_iteration
        return self.version % ((self.config.log_interval or each) // each) == 0


@checked
@dataclass(frozen=True)
class ApexConfig(TransportConfig):
    """Settings of many actors with one memory, beside those of their learner.

    Each actor has ``num_envs`` environments. The learner's own exploration schedule and
    ``iteration_steps`` play no role: an iteration is a slot, so ``log_interval`` is a
    multiple of its ``rollout_len * num_envs`` steps.

    Attributes:
        rollout_len: Steps of each environment in one slot.
        epsilon: Probability of a random action in the first environment of all.
        power: In the last one it is ``epsilon`` to the power ``1 + power``.
        priorities: What a new step gets: the priority that its actor computes, or the
            largest so far.
    """

    actors: Count = 2
    rollout_len: Count = 20
    epsilon: Fraction = 0.4
    power: NonNegative = 7.0
    priorities: Literal["actor", "largest"] = "actor"

    def __post_init__(self) -> None:
        super().__post_init__()
        own: Any = self
        steps, each = self.steps_per_iteration, own.train_interval
        words = "must divide rollout_len * num_envs"
        check_that(steps % each == 0, f"train_interval {words}, {steps}, got {each}")
        log = own.log_interval
        words = f"log_interval must be a multiple of rollout_len * num_envs, {steps}"
        check_that(log is None or log % steps == 0, f"{words}, got {log}")

    @property
    def steps_per_iteration(self) -> int:
        """Steps of one slot, all environments of its actor together."""
        return self.rollout_len * cast(Any, self).num_envs


@checked
@dataclass(frozen=True)
class DQNApexConfig(ApexConfig, DQNConfig):
    """Settings of DQN with many actors and one memory."""

    priority_exponent: NonNegative = 0.6
    checkpoint_interval: Count = 250


@checked
@dataclass(frozen=True)
class RainbowApexConfig(ApexConfig, RainbowConfig):
    """Settings of Rainbow with many actors and one memory.

    The ladder of the actors explores, so the layers are not noisy unless asked for.
    """

    noisy: bool = False
    checkpoint_interval: Count = 250

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_atoms()


@checked
@dataclass(frozen=True)
class DDPGApexConfig(ApexConfig, DDPGConfig):
    """Settings of DDPG with many actors and one memory.

    Actions have DDPG's noise; on the ladder some are replaced by random ones.
    """

    priority_exponent: NonNegative = 0.6
    checkpoint_interval: Count = 250


ApexSettings = DQNApexConfig | RainbowApexConfig | DDPGApexConfig


# Where a learner has settings of its own for an environment, they hold here too. But
# some actors never stop acting at random, so DQN's targets look less far ahead.
CARTPOLE = {"CartPole-v1": {**DQN_SETTINGS["CartPole-v1"], "num_steps": 5}}
SETTINGS: dict[str, Callable[[str], Any]] = {
    "dqn": settings_of(DQNApexConfig, DQN_SETTINGS | CARTPOLE),
    "rainbow": settings_of(RainbowApexConfig, RAINBOW_SETTINGS),
    "ddpg": settings_of(DDPGApexConfig, DDPG_SETTINGS),
}


@checked
def apex_settings(
    env: str, algorithm: Literal["dqn", "rainbow", "ddpg"] = "dqn"
) -> ApexSettings:
    """Return a learner's settings for an environment, with two actors.

    Args:
        env: Id of the environment.
        algorithm: The learner.
    """
    return SETTINGS[algorithm](env)


def many(row: Row, config: type[ApexConfig]) -> None:
    """Register an algorithm with many actors and one memory beside the one without."""
    alone: Any = row.learner

    def learner(
        policy: Policy, build: Any, config: ApexConfig, *of_actors: Any, **forms: Any
    ) -> Apex:
        return Apex(alone(policy, build(), config, **forms), build, *of_actors)

    register(
        replace(
            row,
            name=f"{row.name}Apex",
            purpose=f"{row.name} with many actors",
            config=config,
            learner=None,
            actors=learner,
            settings=SETTINGS[row.key],
            forms=tuple(name for name in row.forms if name != "act"),
            chapter="apex",
        )
    )


many(DQN_ROW, DQNApexConfig)
many(RAINBOW_ROW, RainbowApexConfig)
many(DDPG_ROW, DDPGApexConfig)
