# Generated from chapters/ppg.py (edit there); digest e9f0ec74878b31e5
"""PPG: PPO in a policy phase, and an auxiliary phase that teaches the values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from literate_rl.data.agents import Rollout, Window
from literate_rl.ground.nests import map_nest
from literate_rl.ground.networks import eval_mode
from literate_rl.ground.protocols import Envs, Kept
from literate_rl.ground.rows import ANY, Row, by_settings, register
from literate_rl.ground.signatures import Float, NonNegative, check_finite, checked
from literate_rl.ground.signatures import check_that
from literate_rl.learners.ppg_learner import (
    Chunks,
    PhasicNetwork,  # noqa: F401 (an old address)
    PPGConfig,
    ValueEpochs,
    in_chunks,
    make_phasic_policy,
    ppg_settings,
    side_by_side,
)
from literate_rl.learners.ppo import PPO
from literate_rl.maths.advantages import lambda_returns
from literate_rl.maths.ppo_error import ppo_info, ppo_policy_loss
from literate_rl.nets.policies import Policy

__all__ = [
    "AuxiliaryPhase",
    "PPGAlgorithm",
    "PPGAuxPhaseLossInfo",
    "auxiliary_loss",
    "element_wise_squared_loss",
]


@checked
def element_wise_squared_loss(
    x: Float[Tensor, "*B"], y: Float[Tensor, "*B"]
) -> Float[Tensor, "*B"]:
    """Return the squared difference of two tensors, element by element."""
    return (x - y).square()


class PPGAuxPhaseLossInfo(NamedTuple):
    """The three parts of the auxiliary phase's loss.

    Attributes:
        td_loss_actual: Error of the value.
        td_loss_aux: Error of the auxiliary value.
        policy_kl_loss: Divergence from the old policy, in nats, not yet weighted.
    """

    td_loss_actual: Tensor
    td_loss_aux: Tensor
    policy_kl_loss: Tensor


@checked
def auxiliary_loss(
    value: Float[Tensor, "*B"],
    aux_value: Float[Tensor, "*B"],
    target: Float[Tensor, "*B"],
    kl: Float[Tensor, "*B"],
    clone_weight: NonNegative = 1.0,
    error: Callable[[Tensor, Tensor], Tensor] = element_wise_squared_loss,
) -> tuple[Float[Tensor, "*B"], PPGAuxPhaseLossInfo]:
    """Compute the loss of the auxiliary phase for each step, and its parts.

    ``kl`` is the divergence from the old policy at each step, in nats. ``target`` gets
    no gradient.

    Source: Cobbe et al. 2021, Phasic Policy Gradient, section 2 and algorithm 1.
    """
    target = target.detach()
    # The value's own error {eq}`phase-value`.
    of_value = error(value, target)
    # The error that teaches the policy's encoder {eq}`phase-auxiliary`.
    of_aux_value = error(aux_value, target)
    # The clone term {eq}`phase-clone`, weighted.
    held = clone_weight * kl
    # The sum of all three {eq}`auxiliary-loss`.
    loss = of_value + of_aux_value + held
    check_finite(loss, value=value, aux_value=aux_value, target=target, kl=kl)
    return loss, PPGAuxPhaseLossInfo(of_value, of_aux_value, kl)


AUX_METRICS = tuple(
    f"aux/{x}"
    for x in ("value_loss", "aux_value_loss", "kl", "grad_norm", "kl_at_start")
)


def targets(batch: Rollout, next_value: Tensor, config: PPGConfig) -> Tensor:
    """Return what the values of a rollout should become."""
    return lambda_returns(
        *(batch.reward, next_value, batch.terminated, batch.truncated),
        *(config.gamma, config.lambda_),
    )


class AuxiliaryPhase(Kept):
    """Trains both values on the data of several policy phases, and holds the policy.

    Args:
        policy: A policy whose network has ``three_heads``.
        config: The settings.
        optimizer: Optimiser to use instead of Adam.

    Attributes:
        buffer: What was observed since the last auxiliary phase, rollout by rollout.
        loss: Loss of values, auxiliary values, targets and divergences.

    Source: Cobbe et al. 2021, Phasic Policy Gradient, algorithm 1.
    """

    kept = ("optimizer", "generator")

    def __init__(
        self,
        policy: Policy,
        config: PPGConfig,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self.policy, self.config = policy, config
        self.network = policy.network
        self.parameters = list(policy.parameters())
        self.optimizer = optimizer or torch.optim.Adam(
            self.parameters, config.aux_learning_rate, eps=1e-5, fused=True
        )
        self.loss: Callable[..., tuple[Tensor, PPGAuxPhaseLossInfo]] = partial(
            auxiliary_loss, clone_weight=config.clone_weight
        )
        self.generator = torch.Generator().manual_seed(config.seed)
        self.buffer: list[Chunks] = []

    @torch.no_grad()
    def observe(self, batch: Rollout, next_value: Tensor, row: Tensor) -> None:
        """Put what matters of a rollout into the buffer.

        ``next_value`` are values of the true successors, and ``row`` is what described
        the policy, both from before the policy phase learned.
        """
        config = self.config
        # The targets are computed once and do not change later.
        target = targets(batch, next_value, config)
        length = config.aux_batch_length or config.num_steps
        masks = () if batch.mask is None else (batch.mask,)
        steps = Chunks(batch.seen, target, row, *masks)
        self.buffer.append(map_nest(lambda x: in_chunks(x, length), steps))

    def run(self) -> dict[str, float]:
        """Run one auxiliary phase, empty the buffer, and return metrics."""
        config, data = self.config, side_by_side(*self.buffer)
        count = data.target.shape[1]
        # The policy to hold to is the one of this moment, unless the settings say
        # otherwise.
        if config.kl_reference == "snapshot":
            data = data._replace(row=self.snapshot(data))

        # No minibatch is larger than the settings say.
        parts = math.ceil(count / config.aux_batch_size)
        history = []
        for _ in range(config.aux_epochs):
            # Each epoch shuffles the chunks and deals them out in minibatches.
            order = torch.randperm(count, generator=self.generator)
            for chosen in order.to(data.target.device).tensor_split(parts):
                history.append(self.learn(data.take(chosen)))
        self.buffer.clear()

        # Means over the last epoch. The first row was computed before any step, so its
        # divergence is that of the start.
        table = torch.stack(history)
        means = [*table[-parts:].mean(0).tolist(), table[0, 2].item()]
        return dict(zip(AUX_METRICS, means, strict=True))

    @torch.no_grad()
    def snapshot(self, data: Chunks) -> Any:
        """Return rows that describe the present policy, a minibatch at a time."""
        pieces = torch.arange(data.target.shape[1]).split(self.config.aux_batch_size)
        with eval_mode(self.policy):
            parts = map(data.take, pieces)
            rows = [self.legal(self.policy(part.obs), part) for part in parts]
        return side_by_side(*rows)

    def legal(self, row: Tensor, part: Chunks) -> Tensor:
        """Return rows that leave out what is illegal in some chunks."""
        known = isinstance(part.mask, Tensor)
        return self.policy.legal(row, part.mask) if known else row

    def learn(self, part: Chunks) -> Tensor:
        """Take one step of the optimiser on a minibatch; return means and a norm."""
        # What the three heads say now, and how far the policy is from the old one.
        row, value, aux_value = self.network.three_heads(part.obs)
        kl = self.policy.actions.kl(part.row, self.legal(row, part))
        loss, info = self.loss(value, aux_value, part.target, kl)

        # One step downhill, with gradient clipping.
        self.optimizer.zero_grad()
        loss.mean().backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        check_finite(norm, gradient=norm)
        self.optimizer.step()
        return torch.stack([*(x.detach().mean() for x in info), norm])

    # What follows is for checkpoints ({doc}`runs/runs`).
    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, the policy's weights aside."""
        # A file holds plain tuples; a window is one too.
        plain = [
            (tuple(obs) if isinstance(obs, Window) else obs, *rest)
            for obs, *rest in self.buffer
        ]
        return super().state_dict() | {"buffer": plain}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned."""
        super().load_state_dict(state)
        device = self.parameters[0].device
        moved = map_nest(lambda x: x.to(device), tuple(state["buffer"]))
        self.buffer = [
            Chunks(Window(*obs) if isinstance(obs, tuple) else obs, *rest)
            for obs, *rest in moved
        ]


class PPGAlgorithm(Kept):
    """Phasic policy gradient: PPO, and an auxiliary phase every few iterations.

    Args:
        policy: The policy to train, on any device, from ``make_phasic_policy``.
        envs: A vector environment with ``config.num_envs`` copies that resets in the
            step that ends an episode.
        config: The settings.
        policy_error: As in ``PPO``.

    Attributes:
        ppo: The learner of the policy phase.
        aux: The learner of the auxiliary phase.
        value: Trains the value alone, or None where it learns together with the policy.
    """

    kept = ("ppo", "aux", "value")

    def __init__(
        self,
        policy: Policy,
        envs: Envs,
        config: PPGConfig,
        policy_error: Callable[..., tuple[ppo_policy_loss, ppo_info]] | None = None,
    ) -> None:
        self.policy, self.config = policy, config
        # Where the value has epochs of its own, PPO trains the policy alone.
        apart = config.value_epochs is not None
        of_ppo = replace(config, value_weight=0.0) if apart else config
        self.ppo = PPO(policy, envs, of_ppo, policy_error=policy_error)
        self.value = ValueEpochs(policy, config) if apart else None
        # A step that did not happen has no place among consecutive steps.
        same = not self.ppo.collector.resets_later
        check_that(same, "envs must have autoreset mode SAME_STEP, got NEXT_STEP")
        self.aux = AuxiliaryPhase(policy, config)

    def iterate(self) -> dict[str, float]:
        """Run a policy phase and, when it is due, an auxiliary phase."""
        batch = self.ppo.collect()
        if not self.config.aux_enabled:
            return self.policy_phase(batch)
        with torch.no_grad(), eval_mode(self.policy):
            row = self.policy.legal(self.policy(batch.seen), batch.mask)

        # The policy phase. Afterwards `seen` holds the rollout as PPO learned from it,
        # with scaled rewards where the settings ask for them, and the values of then.
        metrics = self.policy_phase(batch)
        seen, _, next_value = self.ppo.seen
        self.aux.observe(seen, next_value, row)

        # Metrics have the same names in every iteration. Without a phase they are NaN.
        metrics |= dict.fromkeys(AUX_METRICS, math.nan)
        if self.ppo.iteration % self.config.aux_interval == 0:
            # The learning rate falls in the same straight line as that of PPO.
            share = metrics["charts/learning_rate"] / self.config.learning_rate
            rate = self.config.aux_learning_rate * share
            self.aux.optimizer.param_groups[0]["lr"] = rate
            metrics |= self.aux.run()
        return metrics

    def policy_phase(self, batch: Rollout) -> dict[str, float]:
        """Learn from a rollout as PPO does; return metrics."""
        metrics = self.ppo.update(batch)
        if self.value is not None:
            seen, value, next_value = self.ppo.seen
            target = targets(seen, next_value, self.config)
            rate = metrics["charts/learning_rate"]
            loss = self.value.learn(rate, seen.seen, value, target)
            metrics["losses/value_loss"] = loss
        return metrics

    # What follows is for the loop around the learner, `fit`, and for checkpoints.
    @property
    def step(self) -> int:
        """Steps taken so far, all environments together."""
        return self.ppo.step

    @property
    def checkpoint_due(self) -> bool:
        """Whether the next iteration starts with fresh environments."""
        return self.ppo.checkpoint_due


ROW = register(
    Row(
        "PPG",
        "PPO with phases for its values",
        ANY,
        PPGConfig,
        by_settings(make_phasic_policy),
        PPGAlgorithm,
        settings=ppg_settings,
        chapter="ppg",
    )
)
