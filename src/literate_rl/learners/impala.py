# Generated from chapters/impala.py (edit there); digest b0044446a1cd0b01
"""IMPALA: unrolls, a learner that corrects them with V-trace, and a loop."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Annotated, Any, Literal, NamedTuple

import torch
from annotated_types import Ge
from torch import Tensor

from literate_rl.data.agents import (
    Rollout,
    Runner,
    as_read,
    behind,
    step_of,
)
from literate_rl.data.episodes import check_num_envs, mean_return
from literate_rl.data.memory import BufferConfig, UnrollBuffer, distances
from literate_rl.data.windows import check_fits
from literate_rl.ground.networks import ClipConfig, GradientClip, eval_mode
from literate_rl.ground.protocols import (
    ActorCriticLike,
    Envs,
    Kept,
    PolicyLike,
    RecurrentConfig,
    settings_of,
)
from literate_rl.ground.signatures import (
    Bool,
    Count,
    Float,
    Fraction,
    NonNegative,
    Positive,
    Scale,
    check_that,
    checked,
)
from literate_rl.maths.off_policy import check_clips, vtrace_error_from_log_prob
from literate_rl.nets.parts import normalizer_of, take_in
from literate_rl.data.worlds import ForceCartPole  # noqa: F401 (registered)

__all__ = [
    "IMPALA",
    "IMPALAConfig",
    "Unroll",
    "VTraceLearner",
    "impala_settings",
    "to_unroll",
]


class Unroll(NamedTuple):
    """What the learner reads: T steps in a row of each of B environments.

    Attributes:
        obs_plus_1: What the actor saw, and in one more row where the last step led.
        next_obs: Where each step led: true successors, never a reset.
        action: What the actor did.
        log_prob: How likely that was under the actor's policy, as a logarithm.
        reward: What it was paid.
        terminated: Whether the task ended with this step.
        truncated: Whether the episode was cut off after this step.
        weight: One factor for each step; 0 for a step that does not count.
        mask: Which actions were legal, or None where nobody says so.
        state: What an actor that remembers knew before each step, or None.
    """

    obs_plus_1: Any
    next_obs: Any
    action: Tensor
    log_prob: Float[Tensor, "T B"]
    reward: Float[Tensor, "T B"]
    terminated: Bool[Tensor, "T B"]
    truncated: Bool[Tensor, "T B"]
    weight: Float[Tensor, "T B"]
    mask: Bool[Tensor, "T B N"] | None = None
    state: Float[Tensor, "T B S"] | None = None

    def as_read(self, obs: Any) -> Any:
        """Return observations of its steps as a policy reads them."""
        return as_read(
            obs, self.state, self.terminated, self.truncated, self.weight > 0
        )


@torch.no_grad()
@checked
def to_unroll(batch: Rollout, actor: PolicyLike) -> Unroll:
    """Return the unroll that the learner reads of an actor's rollout."""
    # The actor's weights have not changed since the first step. So one pass over the
    # whole rollout says how likely each of its actions was. (`real` is False for rows
    # that some environments add after an end; they weigh nothing.)
    with eval_mode(actor):
        log_prob, _ = actor.evaluate_actions(batch.seen, batch.action, mask=batch.mask)
    return Unroll(
        obs_plus_1=torch.cat([batch.obs, batch.next_obs[-1:]]),
        next_obs=batch.next_obs,
        action=batch.action,
        log_prob=log_prob,
        reward=batch.reward,
        terminated=batch.terminated,
        truncated=batch.truncated,
        weight=batch.real.to(batch.reward),
        mask=batch.mask,
        state=batch.state,
    )


class VTraceLearner(Kept):
    """Learns from the unrolls of any actor: a policy and its optimiser.

    Args:
        policy: The policy to train, with the methods of ``Policy``, on any device.
        config: The settings.

    Attributes:
        priority: After an update with ``config.priority``, how far the values of each
            environment were from their targets on average.
    """

    kept = ("optimizer", "norms")

    def __init__(self, policy: ActorCriticLike, config: IMPALAConfig) -> None:
        self.policy, self.config = policy, config
        self.normalizer = normalizer_of(policy, config.normalize_obs)
        self.parameters = list(policy.parameters())
        optimizer: Any = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}
        self.optimizer: torch.optim.Optimizer = optimizer[config.optim](
            self.parameters, config.learning_rate
        )
        # The losses, with the discount, the decay and the three bounds of the settings.
        self.vtrace_error = partial(
            vtrace_error_from_log_prob,
            gamma=config.gamma,
            lambda_=config.lambda_,
            rho_clip_ratio=config.rho_clip_ratio,
            c_clip_ratio=config.c_clip_ratio,
            rho_pg_clip_ratio=config.rho_pg_clip_ratio,
        )
        # How a gradient may be clipped says {doc}`/chapters/ground/networks`.
        self.clip_gradient = GradientClip(self.parameters, config)
        self.priority: list[float] = []

    @checked
    def learn(self, unroll: Unroll) -> dict[str, float]:
        """Take one step of the optimiser on an unroll; return its losses."""
        config, policy = self.config, self.policy
        # How likely are the actor's actions now, how random is the policy, and what are
        # the states worth?
        log_prob, entropy = policy.evaluate_actions(
            unroll.as_read(unroll.obs_plus_1[:-1]), unroll.action, mask=unroll.mask
        )
        value = policy.value(unroll.as_read(unroll.obs_plus_1))

        # Targets, advantages and the three losses of {doc}`/chapters/off_policy`.
        loss = self.vtrace_error(
            log_prob,
            unroll.log_prob,
            entropy,
            value,
            unroll.reward * config.reward_scale,
            unroll.weight,
            unroll.terminated,
            unroll.truncated,
            self.next_value(value, unroll),
        )
        # A buffer with priorities wants to know how far off the values are.
        if config.priority:
            self.priority = distances(loss.value_loss, value, unroll.weight)

        # The total {eq}`impala-loss`.
        total = loss.policy_loss + config.value_weight * loss.value_loss
        total = total - config.entropy_weight * loss.entropy_loss
        # One step downhill, with gradient clipping.
        self.optimizer.zero_grad()
        total.backward()
        norm = self.clip_gradient()
        self.optimizer.step()
        return {
            "cur_lr": self.optimizer.param_groups[0]["lr"],
            "total_loss": total.item(),
            **{name: part.item() for name, part in loss._asdict().items()},
            "grad_norm": norm,
        }

    @torch.no_grad()
    def next_value(self, value: Tensor, unroll: Unroll) -> Tensor:
        """Return the values of true successors, given those of the rows."""
        # The next row holds a step's successor. After a cut it belongs to another
        # episode. There, and only there, the true successor needs a value of its own.
        next_value, cut = value[1:].clone(), unroll.truncated
        if cut.any():
            obs, led = unroll.as_read(unroll.obs_plus_1[:-1]), unroll.next_obs
            with eval_mode(self.policy):
                if unroll.state is None:
                    next_value[cut] = self.policy.value(led[cut])
                else:
                    led = behind(self.policy, obs, led)
                    next_value[cut] = self.policy.value(led)[cut]
        return next_value

    def anneal(self, step: int) -> None:
        """Set the learning rate of a step of the run, if it falls."""
        if self.config.anneal:
            self.optimizer.param_groups[0]["lr"] = self.config.rate(step)

    @property
    def norms(self) -> tuple[float, float]:
        """What the clip knows of the gradients so far."""
        return self.clip_gradient.norms

    @norms.setter
    def norms(self, norms: tuple[float, float]) -> None:
        self.clip_gradient.norms = norms

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned."""
        groups = self.optimizer.param_groups, state["optimizer"]["param_groups"]
        same = groups[0][0].keys() == groups[1][0].keys()
        check_that(same, f"state must come from an optimiser {self.config.optim}")
        super().load_state_dict(state)


class IMPALA(Runner):
    """The loop: collect with a policy that may be old, store, learn.

    Args:
        policy: The policy to train, on any device.
        envs: A vector environment with ``config.num_envs`` copies.
        config: The settings.
    """

    policy: ActorCriticLike
    kept = (*Runner.kept, "learner", "memory", "actor")

    def __init__(
        self,
        policy: ActorCriticLike,
        envs: Envs,
        config: IMPALAConfig,
    ) -> None:
        check_num_envs(envs, config.num_envs)
        size, space = config.replay_buffer_size, envs.single_observation_space
        steps = size * config.num_steps
        check_fits("replay_buffer_size", size, steps, config.total_steps, space)
        settings = config.num_steps, config.seed, config.checkpoint_interval
        super().__init__(policy, envs, *settings)
        self.config, self.learner = config, VTraceLearner(policy, config)
        # An actor that never falls behind is the policy itself.
        if config.lag:
            self.actor = copy.deepcopy(policy)
            self.act = step_of(self.actor)
        preference = 0.6 if config.priority else 0.0
        self.memory = UnrollBuffer(size, config.max_use, preference)

    def iterate(self) -> dict[str, float]:
        """Collect a sample from each environment, learn, and return metrics."""
        config = self.config
        self.learner.anneal(self.step)
        batch = self.collect()
        # A few updates, each on samples from the memory, until all of them have been
        # used as often as they may.
        for _ in range(config.update_per_collect):
            if not self.memory:
                break
            entries = self.memory.sample(config.batch_size, self.generator)
            losses = self.learner.learn(self.batch(entries))
            if config.priority:
                self.memory.update(entries, self.learner.priority)
        take_in(self.learner.normalizer, batch.obs, batch.real)

        # Now and then an actor that falls behind gets new weights.
        if config.lag and self.iteration % (config.lag + 1) == 0:
            self.actor.load_state_dict(self.policy.state_dict())
        named = {f"losses/{name}": number for name, number in losses.items()}
        return {"charts/episodic_return": mean_return(batch.episode_return), **named}

    def noise(self) -> Tensor:
        """Draw the noise of an unroll, step by step."""
        # One draw for each step gives other numbers than one draw for all.
        sizes = 1, self.config.num_envs, self.generator
        return torch.cat([self.actor.noise(*sizes) for _ in range(self.num_steps)])

    def collect(self) -> Rollout:
        """Act for T steps and store the samples; return what happened."""
        config, batch = self.config, super().collect()
        unroll = to_unroll(batch, self.actor)
        # What is left of the last collection is no longer on-policy.
        if config.on_policy:
            self.memory.entries.clear()
        # Copies: a view would keep the whole unroll in memory for one sample of it.
        columns = [x if x is None else x.cpu() for x in unroll]
        self.memory.push(
            [
                tuple(x if x is None else x[:, b].clone() for x in columns)
                for b in range(config.num_envs)
            ]
        )
        return batch

    def batch(self, entries: list[dict[str, Any]]) -> Unroll:
        """Put stored samples side by side."""
        # Samples of an older version lack the fields that came last.
        columns = zip_longest(*(entry["sample"] for entry in entries))
        fields: Any = [x[0] if x[0] is None else torch.stack(x, 1) for x in columns]
        moved: Any = [x if x is None else x.to(self.device) for x in fields]
        unroll = Unroll(*moved)
        if self.config.priority_IS_weight:
            unroll.weight.mul_(unroll.weight.new_tensor([e["IS"] for e in entries]))
        return unroll


@checked
@dataclass(frozen=True)
class IMPALAConfig(BufferConfig, ClipConfig, RecurrentConfig):
    """Settings of IMPALA, with DI-engine's defaults.

    Those of the buffer and of the clip of the gradient are inherited.

    Attributes:
        on_policy: Whether the buffer is emptied before each collection.
        num_steps: Steps of one sample.
        update_per_collect: Steps of the optimiser after each collection.
        batch_size: Samples of one update.
        value_weight: Weight of the value loss.
        entropy_weight: Weight of the entropy bonus.
        gamma: Discount.
        lambda_: Decay of the weights of longer returns.
        rho_clip_ratio: Bound of the ratio that weights a TD error, or none.
        c_clip_ratio: Bound of the ratio that weights what comes later, or none.
        rho_pg_clip_ratio: Bound of the ratio that weights an advantage, or none.
        optim: The optimiser.
        num_envs: Environments; each gives one sample of a collection.
        reward_scale: Factor of the rewards that are learned from.
        lag: Collections by which the acting policy falls behind the learner before it
            gets new weights.
    """

    on_policy: bool = False
    num_steps: Count = 32
    update_per_collect: Count = 4
    batch_size: Count = 16
    value_weight: NonNegative = 0.5
    entropy_weight: NonNegative = 1e-4
    gamma: Fraction = 0.99
    lambda_: Fraction = 0.95
    rho_clip_ratio: Positive | None = 1.0
    c_clip_ratio: Positive | None = 1.0
    rho_pg_clip_ratio: Positive | None = 1.0
    optim: Literal["adam", "rmsprop"] = "adam"
    num_envs: Count = 16
    reward_scale: Scale = 1.0
    lag: Annotated[int, Ge(0)] = 0

    def __post_init__(self) -> None:
        BufferConfig.__post_init__(self)
        check_clips(self.rho_clip_ratio, self.c_clip_ratio)

    @property
    def rows_per_update(self) -> int:
        """Rows of one update, with actors those of one unroll of each environment."""
        samples = self.batch_size if self.actors is None else self.num_envs
        return samples * self.num_steps


# Settings with which the agent has learned, by environment. What an entry leaves out is
# the default.
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "total_steps": 200_000,
        "learning_rate": 1e-3,
        "anneal": True,
        "reward_scale": 0.05,
        "entropy_weight": 0.01,
        "replay_buffer_size": 16,
    },
}
# The same CartPole, pushed as hard as the agent likes.
SETTINGS["literate_rl/ForceCartPole-v0"] = {
    **SETTINGS["CartPole-v1"],
    "total_steps": 300_000,
}


impala_settings = settings_of(IMPALAConfig, SETTINGS)
