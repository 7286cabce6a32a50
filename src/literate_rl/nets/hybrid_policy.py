# Generated from chapters/nets/hybrid_policy.py (edit there); digest 23d1aea0a624cb2f
"""A hybrid policy: vectors instead of trees, and the way into an environment."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike
from torch import Tensor, nn

from literate_rl.data.hybrid_space import fill_space, read_hybrid_space
from literate_rl.ground.nests import as_space, remembered
from literate_rl.ground.networks import race_noise
from literate_rl.ground.signatures import (
    Bool,
    Count,
    Float,
    check_finite,
    check_that,
    checked,
)
from literate_rl.maths.fast import hybrid_terms
from literate_rl.nets.encoders import OwnEncoder, entrances
from literate_rl.nets.hybrid_action import (
    HybridAction,
    HybridDistribution,
    HybridLogit,
    HybridPolicyNetwork,
    HybridSizes,
)
from literate_rl.nets.masking import legal
from literate_rl.nets.policies import Policy, behind, normalizing
from literate_rl.nets.parts import ActorCritic, GaussianActions

# Importing the worlds registers the environments with hybrid actions.
from literate_rl.data.worlds import HybridLander, Moving  # noqa: F401

__all__ = ["HybridActions", "make_hybrid_policy"]


@dataclass(frozen=True, eq=False)
class HybridActions:
    """What a hybrid action space is to a policy: an action distribution with a mask.

    Attributes:
        space: Space of one action.
        mask: Which type (row) uses which argument (column), (K, A) bool.
        low: Lower bounds of the arguments in the environment, (A,).
        high: Upper bounds, (A,).
    """

    space: spaces.Space[Any]
    mask: Bool[Tensor, "K A"]
    low: Float[np.ndarray, "A"]
    high: Float[np.ndarray, "A"]

    @classmethod
    @checked
    def from_space(
        cls, space: spaces.Space[Any], mask: ArrayLike | Tensor | None = None
    ) -> HybridActions:
        """Read a Gymnasium space.

        Args:
            space: A nest of Tuple and Dict spaces with exactly one Discrete and with
                Boxes of floating-point numbers. The order of the arguments is the order
                of the boxes, each flattened.
            mask: Which type (row) uses which argument (column), zeros and ones. May be
                left out for ``Tuple(Discrete(K), Tuple(K boxes))``, whose k-th box
                holds the arguments of type k, none if it is empty.
        """
        return cls(space, *read_hybrid_space(space, mask))

    @cached_property
    def box(self) -> GaussianActions:
        """The arguments alone, which are moved from [-1, 1] to their bounds."""
        # Its `to_env` is {eq}`hybrid-rescale`.
        return GaussianActions(self.low, self.high, "float64")

    @property
    def action_shape(self) -> HybridSizes:
        """The sizes, as ``HybridPolicyNetwork`` takes them."""
        num_types, num_args = self.mask.shape
        return {"action_type_shape": num_types, "action_args_shape": num_args}

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, (T, B, K + A), on the CPU."""
        # The race of {doc}`/chapters/policies`: $-\log \tau_k$ is added to the logit,
        # and the largest sum wins. The arguments get standard normal noise.
        num_types, num_args = self.mask.shape
        types = race_noise(generator, num_steps, num_envs, num_types)
        args = torch.randn(num_steps, num_envs, num_args, generator=generator)
        return torch.cat([types, args], -1)

    def legal(self, row: Tensor, mask: Tensor) -> Tensor:
        """Return rows that leave out illegal types; the mask is ``(*, K)``."""
        # The arguments of an illegal type count nowhere ({doc}`/chapters/masks`).
        types, args = row.tensor_split([len(self.mask)], -1)
        return torch.cat([legal(types, mask), args], -1)

    def choose(self, row: Tensor, noise: Tensor | float) -> Tensor:
        """Return the actions (B, 1 + A) that a noise makes of rows (B, K + 2 A)."""
        # The noise is added to the logits as it is, and to the means times $\sigma$.
        logit, mu, sigma = self.split(row)
        race, moves = noise, noise
        if isinstance(noise, Tensor):
            race, moves = noise.tensor_split([len(self.mask)], -1)
        kind = (logit + race).argmax(-1, keepdim=True)
        return torch.cat([kind.to(mu.dtype), mu + sigma * moves], -1)

    def evaluate(self, row: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-densities and entropies, each ``(*)``, in one pass."""
        # The learner's busiest place: a kernel gives both numbers in fewer calls.
        logit, mu, sigma = self.split(row.flatten(0, -2))
        taken, mask = self.action_of(action), self.mask.to(row.device)
        kind, args = taken["action_type"], taken["action_args"]
        log_prob, entropy = hybrid_terms(logit, mu, sigma, mask, kind, args)
        return log_prob.view(row.shape[:-1]), entropy.view(row.shape[:-1])

    def kl(self, row: Tensor, other: Tensor) -> Tensor:
        """Return the divergences ``(*)`` from rows to others, in nats."""
        divergence = self.distribution(row).kl(self.distribution(other))
        return divergence.view(row.shape[:-1])

    def distribution(self, row: Tensor) -> HybridDistribution:
        """Return what rows ``(*, K + 2 A)`` describe, all states in one batch."""
        logit, mu, sigma = self.split(row.flatten(0, -2))
        tree: HybridLogit = {
            "action_type": logit,
            "action_args": {"mu": mu, "sigma": sigma},
        }
        return HybridDistribution(tree, self.mask)

    def split(self, row: Tensor) -> tuple[Tensor, ...]:
        """Take rows apart into logits, means and standard deviations."""
        num_types, num_args = self.mask.shape
        return row.split([num_types, num_args, num_args], -1)

    def action_of(self, action: Tensor) -> HybridAction:
        """Take actions ``(*, 1 + A)`` apart into a tree of types and arguments."""
        flat = action.flatten(0, -2)
        return {"action_type": flat[:, 0].long(), "action_args": flat[:, 1:]}

    @checked
    def to_env(self, action: HybridAction | Float[Tensor, "B C"]) -> Any:
        """Turn actions into the nest of arrays that ``envs.step`` takes.

        ``action`` is a tree in which [-1, 1] is the whole range of an argument, or rows
        of the type and its arguments.
        """
        tree = self.action_of(action) if isinstance(action, Tensor) else action
        args, size = tree["action_args"].detach().cpu(), len(self.low)
        words = f"action.action_args must have A = {size}, got {tuple(args.shape)}"
        check_that(args.shape[1] == size, words)
        check_finite(args, **{"action.action_args": args})
        kind, moved = tree["action_type"].cpu().numpy(), self.box.to_env(args)
        return fill_space(self.space, kind, iter(moved.T))


class HybridRows(nn.Module):
    """A hybrid network whose tree is written as one row.

    Args:
        network: The network.
    """

    def __init__(self, network: HybridPolicyNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: Tensor) -> Tensor:
        """Return logits, means and deviations, ``(*, K + 2 A)``, at ``(*, D)``."""
        return torch.cat(self.network.described(obs), -1)


@checked
@remembered
def make_hybrid_policy(
    observation_space: spaces.Space[Any] | dict[str, Any],
    action_space: spaces.Space[Any] | dict[str, Any],
    mask: ArrayLike | None = None,
    hidden: Count = 64,
    normalize: bool = False,
    *,
    share_encoder: bool = False,
    encoder: OwnEncoder | None = None,
) -> Policy:
    """Build the policy that fits an environment with hybrid actions.

    Args:
        observation_space: A box with one dimension, or a space with pictures, which
            come flat; or what ``plain_space`` made of it.
        action_space: Space of one action, likewise.
        mask: As in ``HybridActions.from_space``, and required in the same cases.
        hidden: Width of the critic's two hidden layers.
        normalize: Whether the policy normalises its observations; vectors only.
        share_encoder: Whether actor and critic share an encoder, which both of their
            losses move.
        encoder: An encoder of your own, as in ``ShapedEncoder``.
    """
    states = as_space(observation_space)
    first = normalizing(normalize, states, encoder)
    fronts = entrances(states, share_encoder, encoder=encoder)
    front, size = next(fronts)
    actions = HybridActions.from_space(as_space(action_space), mask)
    network = HybridPolicyNetwork(size, actions.action_shape)
    # Pictures go through encoders first, one for the actor and one for the critic, or
    # one for both.
    network.encoder = nn.Sequential(*front, *network.encoder)
    front, _ = next(fronts)
    critic = behind(front, size, hidden, 1, gain=1.0)
    policy = Policy(ActorCritic(HybridRows(network), critic, *first), actions)
    # The mask may have come from the space, or as an array.
    policy.recipe = "", {"mask": actions.mask.tolist()}
    return policy
