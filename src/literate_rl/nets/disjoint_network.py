# Generated from chapters/disjoint_network.py (edit there); digest 0ff4ab6b1a0afc1b
"""The disjoint network: a policy, a value and an auxiliary value, in two forms."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from literate_rl.ground.nests import Spec, flat, leaves, pack
from literate_rl.ground.networks import orthogonal
from literate_rl.ground.signatures import Count, Float, at_least, checked

__all__ = [
    "CategoricalProjectionNetwork",
    "DisjointPolicyValueNetwork",
    "EncodingNetwork",
    "NormalProjectionNetwork",
]


def linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """Build a linear layer with orthogonal weights and a bias of zero."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a type may have no arguments
        return orthogonal(nn.Linear(inputs, outputs), gain)


class EncodingNetwork(nn.Module):
    """An encoder without memory: linear layers with tanh.

    ``observation_spec`` is a nest of Box and Discrete. ``hidden`` has the widths of the
    layers; the last one is the number of features, ``output_size``.
    """

    @checked
    def __init__(
        self,
        observation_spec: Spec,
        hidden: Annotated[Sequence[Count], at_least(1, "one width")] = (64, 64),
    ) -> None:
        super().__init__()
        self.spec, self.output_size = observation_spec, hidden[-1]
        # Each layer is as wide as the next one expects.
        sizes = [spaces.flatdim(observation_spec), *hidden]
        self.layers = nn.ModuleList(
            linear(n, m, math.sqrt(2)) for n, m in pairwise(sizes)
        )

    def forward(self, observation: Any, state: Any = ()) -> tuple[Tensor, Any]:
        """Return the features of observations, and the state as it came."""
        # One vector for each state, in the precision of the weights.
        features = flat(self.spec, observation).to(next(self.parameters()).dtype)
        for layer in self.layers:
            features = layer(features).tanh()
        return features, state


class CategoricalProjectionNetwork(nn.Module):
    """Projects features onto the logits of a discrete action.

    Actions count from 0 here, whatever the space calls the first one.
    """

    @checked
    def __init__(self, input_size: Count, action_spec: spaces.Discrete) -> None:
        super().__init__()
        self.logits = linear(input_size, int(action_spec.n), gain=0.01)

    @checked
    def forward(self, features: Float[Tensor, "... F"]) -> Float[Tensor, "... N"]:
        """Return the logits of features."""
        return self.logits(features)

    @checked
    def distribution(self, row: Float[Tensor, "... N"]) -> Distribution:
        """Return the distribution that logits describe."""
        return Categorical(logits=row, validate_args=False)


class NormalProjectionNetwork(nn.Module):
    """Projects features onto means and standard deviations of the numbers in a box.

    Their units are those in which the box goes from -1 to 1.
    """

    @checked
    def __init__(self, input_size: Count, action_spec: spaces.Box) -> None:
        super().__init__()
        self.shape = action_spec.shape
        self.mu = linear(input_size, math.prod(self.shape), gain=0.01)
        self.log_sigma = nn.Parameter(torch.zeros(math.prod(self.shape)))

    @checked
    def forward(self, features: Float[Tensor, "... F"]) -> Float[Tensor, "... 2*A"]:
        """Return means, then logarithms of standard deviations."""
        mu = self.mu(features)
        return torch.cat([mu, self.log_sigma.expand_as(mu)], -1)

    @checked
    def distribution(self, row: Float[Tensor, "..."]) -> Distribution:
        """Return the distribution over the box that rows describe."""
        # Half of the row each, in the shape of the box.
        mu, log_sigma = (
            x.reshape(*x.shape[:-1], *self.shape) for x in row.chunk(2, -1)
        )
        # The numbers of one action count together, not one by one.
        normal = Normal(mu, log_sigma.exp(), validate_args=False)
        return Independent(normal, len(self.shape), validate_args=False)


# When a shared encoder is cut off from the value.
Detach = Literal["always", "policy_phase", "never"]


class Heads(nn.Module):
    """All weights of the disjoint network. It returns tensors only.

    ``projections`` has a policy head for each leaf of the action space. With None as
    ``value_encoder`` the value shares the encoder of the policy.
    """

    def __init__(
        self,
        policy_encoder: Any,
        projections: Iterable[nn.Module],
        value_encoder: Any,
        detach: Detach,
        reward_shape: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.detach, self.policy_encoder = detach, policy_encoder
        self.reward_shape, rewards = reward_shape, math.prod(reward_shape)
        self.projections = nn.ModuleList(projections)
        self.value_encoder = value_encoder
        self.value_head = linear(policy_encoder.output_size, rewards, gain=1.0)
        self.aux_head = linear(policy_encoder.output_size, rewards, gain=1.0)

    def forward(
        self, observation: Any, state: Any = (), require_aux: bool = True
    ) -> tuple[tuple[tuple[Tensor, ...], Tensor, Any], tuple[Any, Any, Any]]:
        """Return (rows of each leaf, value, auxiliary value) and the next states."""
        # The policy's encoder sees for the policy and for the auxiliary value.
        policy_state, value_state, _ = state or ((), (), ())
        features, policy_state = self.policy_encoder(observation, policy_state)

        # The value has its own features in {eq}`disjoint-dual`. In
        # {eq}`disjoint-shared` it reads the policy's, cut off. Only the auxiliary phase
        # requires the auxiliary value, so this tells the phases apart.
        policy_phase = not require_aux
        if self.value_encoder is not None:
            own, value_state = self.value_encoder(observation, value_state)
        elif self.detach == "always" or (
            self.detach == "policy_phase" and policy_phase
        ):
            own = features.detach()
        else:
            own = features

        # The three heads.
        rows = tuple(project(features) for project in self.projections)
        shape = (*features.shape[:-1], *self.reward_shape)
        value = self.value_head(own).reshape(shape)
        aux = self.aux_head(features).reshape(shape) if require_aux else ()
        return (rows, value, aux), (policy_state, value_state, ())


class DisjointPolicyValueNetwork(nn.Module):
    """A policy, a value and an auxiliary value, with one encoder or with two.

    The weights are in ``heads``, which ``DistributedDataParallel`` may wrap.

    Args:
        observation_spec: Space of one observation, a nest of Box and Discrete.
        action_spec: Space of one action, likewise. The leaves are independent.
        encoding_network_ctor: Makes an encoder from the observation space: a module
            with an ``output_size`` that maps an observation and a state to features and
            the next state. Called once or twice.
        is_sharing_encoder: True for the shared arrangement, False for the dual one.
        discrete_projection_net_ctor: Makes the policy head of a Discrete leaf, from the
            number of features and the leaf: a module that maps features to a row, with
            a method ``distribution(row)`` that says what the row means.
        continuous_projection_net_ctor: The same for a Box leaf.
        name: Name of the network.
        detach: When a shared encoder is cut off from the value: always, in the policy
            phase (where the auxiliary value is not required), or never.
        reward_shape: Shape of a reward and of both values: () for a number, (D,) where
            a step has D rewards.

    Source: Cobbe et al. 2021, Phasic Policy Gradient, sections 2 and 3.6.
    """

    @checked
    def __init__(
        self,
        observation_spec: Spec,
        action_spec: Spec,
        encoding_network_ctor: Callable[..., Any] = EncodingNetwork,
        is_sharing_encoder: bool = False,
        discrete_projection_net_ctor: Callable[..., Any] = CategoricalProjectionNetwork,
        continuous_projection_net_ctor: Callable[..., Any] = NormalProjectionNetwork,
        name: str = "DisjointPolicyValueNetwork",
        *,
        detach: Detach = "always",
        reward_shape: tuple[Count, ...] = (),
    ) -> None:
        super().__init__()
        self.observation_spec, self.action_spec = observation_spec, action_spec
        self.name, self.reward_shape = name, reward_shape

        # One encoder for the policy, and one policy head for each part of the action.
        encoder = encoding_network_ctor(observation_spec)
        size = encoder.output_size
        projections = [
            discrete_projection_net_ctor(size, leaf)
            if isinstance(leaf, spaces.Discrete)
            else continuous_projection_net_ctor(size, leaf)
            for leaf in leaves(action_spec)
        ]
        # The second encoder is the whole difference between dual and shared.
        second = None if is_sharing_encoder else encoding_network_ctor(observation_spec)
        self.heads = Heads(encoder, projections, second, detach, reward_shape)
        # They are kept here too, because `heads` may be wrapped later.
        self.projections = projections

    @checked
    def forward(
        self,
        observation: Any,
        state: tuple[()] | tuple[Any, Any, Any] = (),
        require_aux: bool = True,
    ) -> tuple[tuple[Any, Tensor, Any], tuple[Any, Any, Any]]:
        """Return what the three heads say of a batch of states, and the next states.

        The heads are action distribution (a nest like the action space), value and
        auxiliary value, and their states come in the same order. ``state`` is what the
        step before returned; () at the start of an episode. Without ``require_aux`` the
        auxiliary value is ().
        """
        (rows, value, aux), states = self.heads(observation, state, require_aux)
        return (self.distribution(rows), value, aux), states

    def distribution(self, rows: tuple[Tensor, ...]) -> Any:
        """Return the nest of distributions that rows, one for each leaf, describe."""
        projections: Any = self.projections
        pairs = zip(projections, rows, strict=True)
        return pack(self.action_spec, (p.distribution(row) for p, row in pairs))
