# Generated from chapters/ppg.py (edit there); digest 0631353cc40726b2
"""PPG: PPO in a policy phase, and an auxiliary phase that teaches the values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn

from literate_rl.data.agents import Rollout
from literate_rl.ground.nests import as_space, is_hybrid, map_nest, remembered
from literate_rl.ground.networks import eval_mode
from literate_rl.ground.protocols import Envs, Kept
from literate_rl.ground.rows import ANY, Row, by_settings, register
from literate_rl.ground.signatures import (
    Count,
    Float,
    NonNegative,
    Scale,
    check_finite,
    check_that,
    checked,
)
from literate_rl.learners.ppo import PPO, PPOConfig, ppo_settings
from literate_rl.maths.advantages import lambda_returns
from literate_rl.maths.ppo_error import (
    ppo_info,
    ppo_policy_loss,
    ppo_value_data,
    ppo_value_error,
)
from literate_rl.nets.choices import ChoiceActions
from literate_rl.nets.disjoint_network import (
    Detach,
    DisjointPolicyValueNetwork,
    EncodingNetwork,
)
from literate_rl.nets.encoders import (
    ConvolutionalEncodingNetwork,
    OwnEncoder,
    PartsEncodingNetwork,
    check_normalize,
)
from literate_rl.nets.hybrid_policy import HybridActions
from literate_rl.nets.policies import Policy, make_actions
from literate_rl.nets.parts import RunningMoments

__all__ = [
    "AuxiliaryPhase",
    "Chunks",
    "PPGAlgorithm",
    "PPGAuxPhaseLossInfo",
    "PPGConfig",
    "PhasicNetwork",
    "auxiliary_loss",
    "element_wise_squared_loss",
    "make_phasic_policy",
    "ppg_settings",
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


class PhasicNetwork(nn.Module):
    """The disjoint network as the network of a ``Policy``.

    Args:
        network: The disjoint network, for observations in a Box.
        normalizer: Module that the observations are seen through.
    """

    def __init__(
        self, network: DisjointPolicyValueNetwork, normalizer: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.network, self.normalizer = network, normalizer or nn.Identity()
        self.shape = network.observation_spec.shape or ()
        self.hybrid = is_hybrid(network.action_spec)

    def forward(self, obs: Tensor) -> Tensor:
        """Return the rows that describe the policy at observations."""
        # Only the policy's half of the network runs.
        heads = self.network.heads
        features, _ = heads.policy_encoder(self.observe(obs))
        rows = [project(features) for project in heads.projections]
        return one_row(rows, self.hybrid)

    def value(self, obs: Tensor) -> Tensor:
        """Return the values of observations, as the policy phase uses them."""
        heads, seen = self.network.heads, self.observe(obs)
        # With one encoder for both, the network says whether the value may move it.
        if heads.value_encoder is None:
            (_, value, _), _ = heads(seen, (), False)
        else:
            features, _ = heads.value_encoder(seen)
            value = heads.value_head(features).squeeze(-1)
        result: Tensor = value
        return result

    def three_heads(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows, values and auxiliary values of observations."""
        (rows, value, aux_value), _ = self.network.heads(self.observe(obs))
        return one_row(rows, self.hybrid), value, aux_value

    def observe(self, obs: Tensor) -> Tensor:
        """Return observations, which may come flat, in their own shape, normalised."""
        if obs.shape[-len(self.shape) :] != self.shape:
            obs = obs.unflatten(-1, self.shape)
        seen: Tensor = self.normalizer(obs)
        return seen


def one_row(rows: Sequence[Tensor], hybrid: bool) -> Tensor:
    """Join the rows of an action's parts as its action distribution reads them."""
    if len(rows) == 1:
        return rows[0]
    # Several choices want their logits one after another.
    if not hybrid:
        return torch.cat([*rows], -1)
    # Hybrid actions want logits, then all means, then all standard deviations.
    logit, *boxes = rows
    mu, log_sigma = zip(*(box.chunk(2, -1) for box in boxes), strict=True)
    return torch.cat([logit, *mu, *(x.exp() for x in log_sigma)], -1)


@checked
@remembered
def make_phasic_policy(
    observation_space: spaces.Space[Any] | dict[str, Any],
    action_space: spaces.Space[Any] | dict[str, Any],
    share_encoder: bool = False,
    detach: Detach = "always",
    hidden: Count = 64,
    normalize: bool = False,
    *,
    mask: Sequence[Sequence[int | bool]] | None = None,
    encoder: OwnEncoder | None = None,
) -> Policy:
    """Build a policy on the disjoint network.

    Args:
        observation_space: A box of vectors, a picture, or a Dict or Tuple with pictures
            in it, which may come flat; or what ``plain_space`` made of it.
        action_space: One that ``make_actions`` takes, or a hybrid one, likewise.
        share_encoder: Whether policy and value share an encoder.
        detach: When a shared encoder is cut off from the value's gradient.
        hidden: Width of the hidden layers.
        normalize: Whether the policy normalises its observations.
        mask: Which type of a hybrid action uses which argument, as in
            ``HybridActions.from_space``.
        encoder: An encoder of your own, as in ``ShapedEncoder``.
    """
    box, action_space = as_space(observation_space), as_space(action_space)
    make_ours: Any = partial(HybridActions.from_space, mask=mask)
    actions = (make_ours if is_hybrid(action_space) else make_actions)(action_space)
    # Several choices have a head each.
    if isinstance(actions, ChoiceActions):
        action_space = spaces.Tuple([spaces.Discrete(size) for size in actions.sizes])
    shape = (isinstance(box, spaces.Box) and box.shape) or ()
    make: partial[Any] = partial(EncodingNetwork, hidden=(hidden, hidden))
    # What was normalised holds no bytes any more, so the encoder must not scale it.
    seen = spaces.Box(-10.0, 10.0, shape) if normalize else box
    encoded = encoder is not None or len(shape) not in (1, 3)
    check_normalize(normalize, encoded, box)
    if encoded:
        # Only the encoder knows what the parts of a row are.
        make = partial(PartsEncodingNetwork, box, hidden, encoder)
        seen = spaces.Box(-math.inf, math.inf, (spaces.flatdim(box),))
    elif len(shape) == 3:
        make = partial(ConvolutionalEncodingNetwork, hidden=hidden)
    network = DisjointPolicyValueNetwork(
        seen, action_space, make, share_encoder, detach=detach
    )
    normalizer = RunningMoments(*shape) if normalize else None
    policy = Policy(PhasicNetwork(network, normalizer), actions)
    policy.reads_bytes = make.func is not EncodingNetwork and not normalize
    return policy


@checked
@dataclass(frozen=True)
class PPGConfig(PPOConfig):
    """Settings of PPG: those of PPO and those of the auxiliary phase.

    Attributes:
        value_epochs: Epochs of the value in a policy phase, or none for a value that
            learns together with the policy, for ``num_epochs`` epochs.
        aux_enabled: Whether there is an auxiliary phase. Without it PPG is PPO.
        aux_interval: Policy phases between two auxiliary phases.
        aux_batch_length: Steps of a chunk, or none for the steps of a rollout, which it
            must divide.
        aux_batch_size: Chunks of a minibatch, at most.
        aux_epochs: Epochs of an auxiliary phase.
        aux_learning_rate: Learning rate of the auxiliary phase's Adam at the start.
        clone_weight: Weight of the divergence.
        kl_reference: What the divergence starts from: the policy at the start of the
            auxiliary phase ("snapshot"), or the one that acted ("rollout").
        detach: When a shared encoder is cut off from the value's gradient.
    """

    value_epochs: Count | None = None
    aux_enabled: bool = True
    aux_interval: Count = 32
    aux_batch_length: Count | None = None
    aux_batch_size: Count = 8
    aux_epochs: Count = 6
    aux_learning_rate: Scale = 5e-4
    clone_weight: NonNegative = 1.0
    kl_reference: Literal["snapshot", "rollout"] = "snapshot"
    detach: Detach = "always"

    def __post_init__(self) -> None:
        super().__post_init__()
        steps, length = self.num_steps, self.aux_batch_length or self.num_steps
        words = f"aux_batch_length must divide {steps}, got {length}"
        check_that(steps % length == 0, words)


# Settings with which the agent has learned, by environment. What an entry leaves out
# comes from PPO's settings, or is the default above.
PPG_SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "total_steps": 100_000,
        "aux_interval": 16,
        "aux_batch_size": 16,
        "aux_learning_rate": 1e-3,
    },
    "literate_rl/Maze-v0": {
        "total_steps": 150_000,
        "num_envs": 32,
        "num_steps": 64,
        "num_epochs": 6,
        "learning_rate": 2e-3,
        "gamma": 0.97,
        "entropy_weight": 0.02,
        "aux_interval": 4,
        "aux_batch_size": 32,
        "aux_epochs": 3,
        "aux_learning_rate": 1e-3,
    },
}


def ppg_settings(env: str) -> PPGConfig:
    """Return an environment's own settings if we know some, else the defaults."""
    return PPGConfig(**asdict(ppo_settings(env)) | PPG_SETTINGS.get(env, {}))


class Chunks(NamedTuple):
    """What an auxiliary phase learns from: C chunks of L steps each, side by side.

    Attributes:
        obs: What the agent saw, ``(L, C, *)``.
        target: Targets of both values, ``(L, C)``.
        row: What describes the policy to hold to, ``(L, C, *)``.
        mask: Which actions are legal, ``(L, C, N)``, or () where this is not known.
    """

    obs: Any
    target: Tensor
    row: Any
    mask: Any = ()

    def take(self, chosen: Tensor) -> Chunks:
        """Return some of the chunks."""
        taken: Chunks = map_nest(lambda x: x[:, chosen], self)
        return taken


def side_by_side(*pieces: Any) -> Any:
    """Join nests of tensors ``(L, C, *)`` along their chunks."""
    return map_nest(lambda *x: torch.cat(x, 1), *pieces)


def in_chunks(steps: Tensor, length: int) -> Tensor:
    """Cut steps ``(T, B, *)`` into chunks ``(L, C, *)``."""
    chunks: Tensor = steps.unflatten(0, (-1, length))
    return chunks.transpose(0, 1).flatten(1, 2)


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
        target = lambda_returns(
            *(batch.reward, next_value, batch.terminated, batch.truncated),
            *(config.gamma, config.lambda_),
        )
        length = config.aux_batch_length or config.num_steps
        masks = () if batch.mask is None else (batch.mask,)
        steps = (batch.obs, target, row, *masks)
        self.buffer.append(Chunks(*(in_chunks(x, length) for x in steps)))

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
        names = ("value_loss", "aux_value_loss", "kl", "grad_norm")
        means = table[-parts:].mean(0).tolist()
        metrics = {f"aux/{name}": x for name, x in zip(names, means, strict=True)}
        return metrics | {"aux/kl_at_start": table[0, 2].item()}

    @torch.no_grad()
    def snapshot(self, data: Chunks) -> Any:
        """Return rows that describe the present policy, a minibatch at a time."""
        pieces = torch.arange(data.target.shape[1]).split(self.config.aux_batch_size)
        with eval_mode(self.policy):
            rows = [self.row(data.take(piece)) for piece in pieces]
        return side_by_side(*rows)

    def row(self, part: Chunks) -> Tensor:
        """Return rows that describe the present policy."""
        return self.legal(self.policy(part.obs), part)

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

    # What follows is for checkpoints ({doc}`workshop/runs`).
    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, the policy's weights aside."""
        return super().state_dict() | {"buffer": [tuple(x) for x in self.buffer]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned."""
        super().load_state_dict(state)
        device = self.parameters[0].device
        moved = map_nest(lambda x: x.to(device), tuple(state["buffer"]))
        self.buffer = [Chunks(*chunks) for chunks in moved]


class ValueEpochs(Kept):
    """Trains the value alone on a rollout, after the policy has learned from it.

    Args:
        policy: The policy whose value learns.
        config: The settings, with ``value_epochs``.
    """

    kept = ("optimizer", "generator")

    def __init__(self, policy: Policy, config: PPGConfig) -> None:
        self.policy, self.config = policy, config
        self.parameters = list(policy.parameters())
        self.optimizer = torch.optim.Adam(self.parameters, eps=1e-5, fused=True)
        self.generator = torch.Generator().manual_seed(config.seed)

    def learn(self, rate: float, *steps: Tensor) -> float:
        """Fit observations' values to targets; return the last minibatch's loss.

        ``steps`` are observations, values of then and targets, ``(T, B, *)``.
        """
        self.optimizer.param_groups[0]["lr"] = rate
        columns = [x.flatten(0, 1) for x in steps]
        count, config = len(columns[0]), self.config
        for _ in range(config.value_epochs or config.num_epochs):
            order = torch.randperm(count, generator=self.generator)
            order = order.to(columns[0].device)
            for rows in order.tensor_split(config.num_minibatches):
                obs, old, target = (x[rows] for x in columns)
                data = ppo_value_data(self.policy.value(obs), old, target, None)
                loss = ppo_value_error(data, config.value_clip)
                # What belongs to the policy alone gets no gradient, and stays.
                self.optimizer.zero_grad()
                (config.value_weight * loss).backward()
                nn.utils.clip_grad_norm_(self.parameters, config.max_grad_norm)
                self.optimizer.step()
        return loss.item()


AUX_METRICS = ("value_loss", "aux_value_loss", "kl", "grad_norm", "kl_at_start")


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
            row = self.policy.legal(self.policy(batch.obs), batch.mask)

        # The policy phase. Afterwards `seen` holds the rollout as PPO learned from it,
        # with scaled rewards where the settings ask for them, and the values of then.
        metrics = self.policy_phase(batch)
        seen, _, next_value = self.ppo.seen
        self.aux.observe(seen, next_value, row)

        # Metrics have the same names in every iteration. Without a phase they are NaN.
        metrics |= {f"aux/{name}": math.nan for name in AUX_METRICS}
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
            flags, config = (seen.terminated, seen.truncated), self.config
            target = lambda_returns(
                *(seen.reward, next_value, *flags), config.gamma, config.lambda_
            )
            rate = metrics["charts/learning_rate"]
            loss = self.value.learn(rate, seen.obs, value, target)
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
    )
)
