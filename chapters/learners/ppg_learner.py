# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # PPG for any task
#
# **Which network, which settings and which pieces of data do the phases of PPG work with?** Those of
# {doc}`/chapters/ppg` stand here, for any space of observations and of actions.

# %% tags=["export", "hide-input"]
"""What PPG's phases work with: its policy, its settings, its pieces of data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn

from literate_rl.data.agents import Window
from literate_rl.ground.nests import as_space, is_hybrid, map_nest, remembered
from literate_rl.ground.protocols import Kept
from literate_rl.ground.signatures import Count, NonNegative, Scale, check_that, checked
from literate_rl.learners.ppo import PPOConfig, ppo_settings
from literate_rl.maths.ppo_error import ppo_value_data, ppo_value_error
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
from literate_rl.nets.parts import RunningMoments
from literate_rl.nets.policies import Policy, make_actions
from literate_rl.nets.recurrent import RecurrentEncodingNetwork, RecurrentPolicy

__all__ = ["Chunks", "PPGConfig", "PhasicNetwork", "make_phasic_policy", "ppg_settings"]

# %% [markdown]
# ## A policy with three heads
#
# `PhasicNetwork` makes the disjoint network of {doc}`/chapters/disjoint_network` the network of a policy. A
# policy phase asks it for rows that describe the policy (`forward`) and for values (`value`), the auxiliary
# phase for everything at once (`three_heads`).


# %% tags=["export"]
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
        seen, states = self.observe(obs)
        return self.rows(self.network.heads.policy_encoder(seen, *states[:1])[0])

    def rows(self, features: Tensor) -> Tensor:
        """Return the rows of features."""
        rows = [project(features) for project in self.network.heads.projections]
        return one_row(rows, self.hybrid)

    def value(self, obs: Tensor) -> Tensor:
        """Return the values of observations, as the policy phase uses them."""
        heads, (seen, states) = self.network.heads, self.observe(obs)
        # With one encoder for both, the network says whether the value may move it.
        if heads.value_encoder is None:
            (_, value, _), _ = heads(seen, states, False)
        else:
            features, _ = heads.value_encoder(seen, *states[1:2])
            value = heads.value_head(features).squeeze(-1)
        result: Tensor = value
        return result

    def three_heads(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows, values and auxiliary values of observations."""
        (rows, value, aux_value), _ = self.network.heads(*self.observe(obs))
        return one_row(rows, self.hybrid), value, aux_value

    def observe(self, obs: Any) -> tuple[Any, tuple[Any, ...]]:
        """Return observations, which may come flat, in their own shape, normalised.

        Beside those of a window are the states of the encoders, else there are none.
        """
        if isinstance(obs, Window):
            policy, value = (*obs.state.split(self.sizes, -1), ())[:2]
            return obs._replace(obs=self.normalizer(obs.obs)), (policy, value, ())
        if obs.shape[-len(self.shape) :] != self.shape:
            obs = obs.unflatten(-1, self.shape)
        return self.normalizer(obs), ()

    @property
    def sizes(self) -> list[int]:
        """Sizes of the encoders' states, where they remember."""
        return [memory.state_size for memory in self.memories]

    @property
    def memories(self) -> list[Any]:
        """The memories of the encoders, where they have some."""
        heads = self.network.heads
        encoders = (heads.policy_encoder, heads.value_encoder)
        return [encoder.memory for encoder in encoders if encoder]

    def states(self, seen: Window) -> Tensor:
        """Return the states of all encoders behind all steps, ``(T, B, S)``."""
        seen, parts = self.observe(seen)
        pairs = zip(self.memories, parts, strict=False)
        states = [memory.states(seen._replace(state=part)) for memory, part in pairs]
        return torch.cat(states, -1)

    def row(self, state: Tensor) -> Tensor:
        """Return the rows that belong to states."""
        size = self.network.heads.policy_encoder.output_size
        return self.rows(state[..., :size])


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


# %% [markdown]
# For images and maps the encoder of {doc}`/chapters/encoders` replaces the plain one, and `encoder` takes one
# of your own.


# %% tags=["export"]
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
    recurrent: Literal["gru", "lstm"] | None = None,
    recurrent_size: Count = 64,
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
        recurrent: What remembers, as in ``make_recurrent_policy``, or None.
        recurrent_size: Number of its outputs.
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
    if encoded or recurrent:
        # Only the encoder knows what the parts of a row are.
        seen = spaces.Box(-math.inf, math.inf, (spaces.flatdim(box),))
        make = partial(PartsEncodingNetwork, box, hidden, encoder)
        if recurrent:
            make = partial(
                RecurrentEncodingNetwork,
                recurrent=recurrent,
                hidden=recurrent_size,
                space=box,
                encoder=encoder,
            )
    elif len(shape) == 3:
        make = partial(ConvolutionalEncodingNetwork, hidden=hidden)
    network = DisjointPolicyValueNetwork(
        seen, action_space, make, share_encoder, detach=detach
    )
    normalizer = RunningMoments(*shape) if normalize else None
    kind = RecurrentPolicy if recurrent else Policy
    policy = kind(PhasicNetwork(network, normalizer), actions)
    policy.reads_bytes = make.func is not EncodingNetwork and not normalize
    return policy


# %% [markdown]
# ## Settings
#
# They are PPO's and a few more. In the paper's letters: `aux_interval` is $N_\pi$, `num_epochs` is $E_\pi$
# and `value_epochs` is $E_V$, the epochs of policy and value in a policy phase, `aux_epochs` is
# $E_{\text{aux}}$, and `clone_weight` is $\beta$. `kl_reference="rollout"` holds the policy to the one of the
# rollouts, as ALF does, and [takes back](/docs/errata.md#the-clone-of-a-policy-that-is-gone) what PPO has
# learned since.


# %% tags=["export"]
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


# %% [markdown]
# ## Chunks
#
# PPO shuffles single steps. In an auxiliary phase, as in the paper's code, a minibatch is made of *chunks*: some
# consecutive steps of one environment. A network with memory would need them in order; for ours a chunk is
# only the unit that is shuffled.


# %% tags=["export"]
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


# %% [markdown]
# ## Epochs of its own for the value
#
# With `value_epochs` the value has an optimiser and epochs of its own in a policy phase, as in the paper's code.


# %% tags=["export"]
ALL = slice(None)


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

    def learn(self, rate: float, *steps: Any) -> float:
        """Fit observations' values to targets; return the last minibatch's loss.

        ``steps`` are observations, values of then and targets, ``(T, B, *)``.
        """
        self.optimizer.param_groups[0]["lr"] = rate
        # Time stays whole only where it has to.
        if not isinstance(steps[0], Window):
            steps = tuple(x.flatten(0, 1).unsqueeze(0) for x in steps)
        count, config = steps[1].shape[1], self.config
        for _ in range(config.value_epochs or config.num_epochs):
            order = torch.randperm(count, generator=self.generator)
            order = order.to(steps[1].device)
            for rows in order.tensor_split(config.num_minibatches):
                obs, old, target = map_nest(itemgetter((ALL, rows)), steps)
                value = self.policy.value(obs)
                data = ppo_value_data(
                    value.flatten(), old.flatten(), target.flatten(), None
                )
                loss = ppo_value_error(data, config.value_clip)
                # What belongs to the policy alone gets no gradient, and stays.
                self.optimizer.zero_grad()
                (config.value_weight * loss).backward()
                nn.utils.clip_grad_norm_(self.parameters, config.max_grad_norm)
                self.optimizer.step()
        return loss.item()


# %% [markdown]
# ## References
#
# Phases, letters and chunks are those of {cite:t}`cobbe2021`.
