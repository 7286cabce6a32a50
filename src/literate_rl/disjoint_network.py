# Generated from chapters/disjoint_network.py (edit there); digest 2fa9220466680c0e
"""The disjoint network: a policy, a value and an auxiliary value, in two forms."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from literate_rl.workshop.nests import check_spec, flat, leaves, pack

__all__ = [
    "CategoricalProjectionNetwork",
    "DisjointPolicyValueNetwork",
    "EncodingNetwork",
    "NormalProjectionNetwork",
    "RecurrentEncodingNetwork",
]


def linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """Build a linear layer with orthogonal weights and a bias of zero."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a box may be empty
        layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class EncodingNetwork(nn.Module):
    """An encoder without memory: linear layers with tanh.

    Args:
        observation_spec: Space of one observation, a nest of Box and Discrete.
        hidden: Widths of the layers.

    Attributes:
        output_size: Number of features F.

    Raises:
        TypeError: If the space is of another kind.
    """

    def __init__(
        self, observation_spec: spaces.Space[Any], hidden: tuple[int, ...] = (64, 64)
    ) -> None:
        super().__init__()
        check_spec(observation_spec=observation_spec)
        if not hidden or min(hidden) < 1:
            raise ValueError(f"hidden must hold widths of at least 1, got {hidden}")
        self.spec, self.output_size = observation_spec, hidden[-1]
        sizes = [spaces.flatdim(observation_spec), *hidden]
        self.layers = nn.ModuleList(
            linear(n, m, math.sqrt(2)) for n, m in pairwise(sizes)
        )

    def forward(self, observation: Any, state: Any = ()) -> tuple[Tensor, Any]:
        """Return features ``(*, F)`` and the state as it came."""
        dtype = next(self.parameters()).dtype
        features = flat(self.spec, observation).to(dtype)
        for layer in self.layers:
            features = layer(features).tanh()
        return features, state


class RecurrentEncodingNetwork(nn.Module):
    """An encoder with a memory: a linear layer with tanh, then a gated recurrent unit.

    Args:
        observation_spec: Space of one observation, a nest of Box and Discrete.
        hidden: Width of the layer and of the memory.

    Attributes:
        output_size: Number of features F, the same as ``hidden``.

    Raises:
        TypeError: If the space is of another kind.

    Source:
        Cho et al. 2014, Learning Phrase Representations using RNN Encoder-Decoder,
        equations 5 to 8.
    """

    def __init__(self, observation_spec: spaces.Space[Any], hidden: int = 64) -> None:
        super().__init__()
        self.inputs = EncodingNetwork(observation_spec, (hidden,))
        self.memory = nn.GRUCell(hidden, hidden)
        self.output_size = hidden

    def forward(self, observation: Any, state: Any = ()) -> tuple[Tensor, Tensor]:
        """Return features (B, F) of one step and the state after it, the same tensor.

        Args:
            observation: Observations of B environments.
            state: The state that the step before returned, (B, F), or () at a start.
        """
        # One turn of {eq}`recurrent-features`. Without a state the memory is zero.
        inputs, _ = self.inputs(observation)
        memory = self.memory(inputs, state if len(state) else None)
        return memory, memory


class CategoricalProjectionNetwork(nn.Module):
    """Projects features onto the logits of a discrete action.

    Args:
        input_size: Number of features F.
        action_spec: A Discrete space with N actions, counted from 0 here, whatever the
            space calls the first one.
    """

    def __init__(self, input_size: int, action_spec: spaces.Discrete) -> None:
        super().__init__()
        self.logits = linear(input_size, int(action_spec.n), gain=0.01)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits ``(*, N)`` of features ``(*, F)``."""
        logit: Tensor = self.logits(features)
        return logit

    def distribution(self, row: Tensor) -> Distribution:
        """Return the distribution that logits ``(*, N)`` describe."""
        return Categorical(logits=row, validate_args=False)


class NormalProjectionNetwork(nn.Module):
    """Projects features onto means and deviations of the numbers in a box.

    Args:
        input_size: Number of features F.
        action_spec: A Box of any shape, with A numbers in all.
    """

    def __init__(self, input_size: int, action_spec: spaces.Box) -> None:
        super().__init__()
        self.shape = action_spec.shape
        self.mu = linear(input_size, math.prod(self.shape), gain=0.01)
        self.log_sigma = nn.Parameter(torch.zeros(math.prod(self.shape)))

    def forward(self, features: Tensor) -> Tensor:
        """Return means and logarithms of the deviations, ``(*, 2 A)``."""
        mu = self.mu(features)
        return torch.cat([mu, self.log_sigma.expand_as(mu)], -1)

    def distribution(self, row: Tensor) -> Distribution:
        """Return the distribution over the box that rows ``(*, 2 A)`` describe."""
        mu, log_sigma = (
            x.reshape(*x.shape[:-1], *self.shape) for x in row.chunk(2, -1)
        )
        normal = Normal(mu, log_sigma.exp(), validate_args=False)
        return Independent(normal, len(self.shape), validate_args=False)


DETACH = ("always", "policy_phase", "never")


class Heads(nn.Module):
    """All weights of the disjoint network; what goes in and what comes out is tensors.

    Args: see ``DisjointPolicyValueNetwork``.
    """

    def __init__(
        self,
        observation_spec: spaces.Space[Any],
        action_spec: spaces.Space[Any],
        encoding_network_ctor: Callable[..., Any],
        is_sharing_encoder: bool,
        discrete_projection_net_ctor: Callable[..., Any],
        continuous_projection_net_ctor: Callable[..., Any],
        detach: str,
    ) -> None:
        super().__init__()
        self.detach = detach
        self.policy_encoder = encoding_network_ctor(observation_spec)
        size = self.policy_encoder.output_size
        self.projections = nn.ModuleList(
            discrete_projection_net_ctor(size, leaf)
            if isinstance(leaf, spaces.Discrete)
            else continuous_projection_net_ctor(size, leaf)
            for leaf in leaves(action_spec)
        )
        self.value_encoder = (
            None if is_sharing_encoder else encoding_network_ctor(observation_spec)
        )
        self.value_head = linear(size, 1, gain=1.0)
        self.aux_head = linear(size, 1, gain=1.0)

    def forward(
        self, observation: Any, state: Any = (), require_aux: bool = True
    ) -> tuple[tuple[tuple[Tensor, ...], Tensor, Any], tuple[Any, Any, Any]]:
        """Return (rows of each leaf, value, auxiliary value) and the next states."""
        policy_state, value_state, _ = state or ((), (), ())
        features, policy_state = self.policy_encoder(observation, policy_state)
        # The value reads its own features in {eq}`disjoint-dual`, and those of the
        # policy, cut off, in {eq}`disjoint-shared`.
        if self.value_encoder is not None:
            seen, value_state = self.value_encoder(observation, value_state)
        elif self.detach == "always" or (
            self.detach == "policy_phase" and not require_aux
        ):
            seen = features.detach()
        else:
            seen = features
        rows = tuple(project(features) for project in self.projections)
        value = self.value_head(seen).squeeze(-1)
        aux = self.aux_head(features).squeeze(-1) if require_aux else ()
        return (rows, value, aux), (policy_state, value_state, ())


class DisjointPolicyValueNetwork(nn.Module):
    """A policy, a value and an auxiliary value, with one encoder or with two.

    Args:
        observation_spec: Space of one observation, a nest of Box and Discrete.
        action_spec: Space of one action, a nest of Box and Discrete. Each leaf gets a
            projection network of its own.
        encoding_network_ctor: Makes an encoder from the observation space: a module
            with the attribute ``output_size`` that maps an observation and a state to
            features and the next state. Called once or twice.
        is_sharing_encoder: True for the shared arrangement, False for the dual one.
        discrete_projection_net_ctor: Makes the projection network of a Discrete leaf,
            from the number of features and the leaf.
        continuous_projection_net_ctor: The same for a Box leaf.
        name: Name of the network.
        detach: When the value head of the shared arrangement is cut off from the
            encoder: ``"always"``; ``"policy_phase"``, which means where the auxiliary
            value is not required; or ``"never"``.

    Attributes:
        heads: The part that returns tensors; what ``DistributedDataParallel`` may wrap.

    Raises:
        TypeError: If a space is of another kind.
        ValueError: If ``detach`` is another word.

    Source:
        Cobbe et al. 2021, Phasic Policy Gradient, sections 2 and 3.6.
    """

    def __init__(
        self,
        observation_spec: spaces.Space[Any],
        action_spec: spaces.Space[Any],
        encoding_network_ctor: Callable[..., Any] = EncodingNetwork,
        is_sharing_encoder: bool = False,
        discrete_projection_net_ctor: Callable[..., Any] = CategoricalProjectionNetwork,
        continuous_projection_net_ctor: Callable[..., Any] = NormalProjectionNetwork,
        name: str = "DisjointPolicyValueNetwork",
        *,
        detach: str = "always",
    ) -> None:
        super().__init__()
        check_spec(observation_spec=observation_spec)
        check_spec(action_spec=action_spec)
        if detach not in DETACH:
            raise ValueError(f"detach must be one of {DETACH}, got {detach!r}")
        self.observation_spec, self.action_spec = observation_spec, action_spec
        self.name = name
        self.heads = Heads(
            observation_spec,
            action_spec,
            encoding_network_ctor,
            is_sharing_encoder,
            discrete_projection_net_ctor,
            continuous_projection_net_ctor,
            detach,
        )
        # Found here, these stay where they are when `heads` is wrapped.
        self.projections = list(self.heads.projections)

    def forward(
        self, observation: Any, state: Any = (), require_aux: bool = True
    ) -> tuple[tuple[Any, Tensor, Any], tuple[Any, Any, Any]]:
        """Return what the three heads say of B states.

        Args:
            observation: Tensors ``(B, *)`` in a nest like the observation space.
            state: The triple of states that the step before returned, or () at the
                start of episodes and for encoders without memory.
            require_aux: Whether the auxiliary value is wanted. The policy phase does
                without it.

        Returns:
            The triple of action distribution (a nest like the action space), value (B,)
            and auxiliary value (B,), which is () if it is not wanted; and the triple of
            states in the same order. A state is () where a head has no memory of its
            own: the auxiliary value always shares that of the policy.

        Raises:
            TypeError: If something else than a tensor stands at a leaf.
            ValueError: If the nest, a shape or the state is another one.
        """
        if not isinstance(state, tuple) or len(state) not in (0, 3):
            raise ValueError(
                f"state must be () or the triple of the step before, got {state!r:.60}"
            )
        (rows, value, aux), state = self.heads(observation, state, require_aux)
        return (self.distribution(rows), value, aux), state

    def distribution(self, rows: tuple[Tensor, ...]) -> Any:
        """Return the nest of distributions that rows, one for each leaf, describe."""
        projections: Any = self.projections
        pairs = zip(projections, rows, strict=True)
        return pack(self.action_spec, (p.distribution(row) for p, row in pairs))
