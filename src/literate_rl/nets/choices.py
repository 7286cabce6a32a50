# Generated from chapters/choices.py (edit there); digest b3e724dcf48af5f1
"""Several choices at once: a product of categorical distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from literate_rl.ground.nests import leaves, pack, refused
from literate_rl.ground.signatures import Float, Int, check_that, checked
from literate_rl.maths.fast import LOG_OF_NOTHING
from literate_rl.nets.masks import legal

__all__ = ["ChoiceActions", "is_choices"]


def is_choices(space: spaces.Space[Any]) -> bool:
    """Say whether an action consists of choices from lists, and of nothing else."""
    kinds = spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    parts = list(leaves(space))
    return bool(parts) and all(isinstance(part, kinds) for part in parts)


def options(leaf: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many options each choice of a leaf has, and the name of the first."""
    if isinstance(leaf, spaces.MultiDiscrete):
        return leaf.nvec.ravel().astype(np.int64), leaf.start.ravel().astype(np.int64)
    if isinstance(leaf, spaces.MultiBinary):
        return np.full(math.prod(leaf.shape), 2), np.zeros(math.prod(leaf.shape), int)
    return np.array([leaf.n]), np.array([leaf.start])


class ChoiceActions:
    """Choices that are drawn independently; a row holds the logits of all of them.

    Args:
        space: A MultiDiscrete or MultiBinary, or a Tuple or Dict of these and Discrete.

    Attributes:
        sizes: How many options each choice has, in the order of the space.
        num_logits: How many numbers a row has.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        wanted = "action_space must consist of choices, at least one"
        if not is_choices(space):
            raise refused(wanted, space, "kind")
        self.space, self.parts = space, list(leaves(space))
        sizes, starts = map(np.concatenate, zip(*map(options, self.parts), strict=True))
        if not len(sizes):
            raise refused(wanted, space, "shape")
        self.sizes, self.start = sizes.tolist(), starts
        self.num_logits = sum(self.sizes)
        # Where the logits of each choice stand, a table row for each. What is left over
        # in a table row points behind the end.
        self.place = torch.full((len(sizes), max(self.sizes)), self.num_logits)
        logits = torch.arange(self.num_logits).split(self.sizes)
        for table_row, own in zip(self.place, logits, strict=True):
            table_row[: len(own)] = own

    def log_probs(self, row: Tensor) -> Tensor:
        """Return the log-probabilities of all options, ``(*B, K, N)``."""
        return self.table(row).log_softmax(-1)

    def table(self, row: Tensor) -> Tensor:
        """Return logits with a table row for each choice, ``(*B, K, N)``."""
        wanted, given = self.num_logits, row.shape[-1]
        check_that(given == wanted, f"row must have {wanted} logits, got {given}")
        filled = nn.functional.pad(row, (0, 1), value=-math.inf)
        return filled[..., self.place.to(row.device)]

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""
        # A race for each choice, {eq}`act-discrete`.
        shape = (num_steps, num_envs, self.num_logits)
        return torch.empty(shape).exponential_(generator=generator).log_().neg_()

    def legal(self, row: Tensor, mask: Tensor) -> Tensor:
        """Return rows that leave out illegal options; the mask is like a row."""
        # Each choice keeps an option of its own ({doc}`masks`).
        wanted, given = self.num_logits, mask.shape[-1]
        check_that(given == wanted, f"mask must have {wanted} options, got {given}")
        choices = zip(*(x.split(self.sizes, -1) for x in (row, mask)), strict=True)
        return torch.cat([legal(*choice) for choice in choices], -1)

    @checked
    def choose(
        self, row: Float[Tensor, "*B logits"], noise: Float[Tensor, "*B logits"] | float
    ) -> Int[Tensor, "*B K"]:
        """Return the options that follow from logits and noise, counted from 0."""
        return self.table(row + noise).argmax(-1)

    @checked
    def log_prob(
        self, row: Float[Tensor, "*B logits"], action: Int[Tensor, "*B K"]
    ) -> Float[Tensor, "*B"]:
        """Return the log-probabilities of actions."""
        return taken(self.log_probs(row), action)

    @checked
    def entropy(self, row: Float[Tensor, "*B logits"]) -> Float[Tensor, "*B"]:
        """Return the entropies of the policy, in nats."""
        return surprise(self.log_probs(row))

    @checked
    def evaluate(
        self, row: Float[Tensor, "*B logits"], action: Int[Tensor, "*B K"]
    ) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
        """Return log-probabilities and entropies, with one softmax for both."""
        log_prob = self.log_probs(row)
        return taken(log_prob, action), surprise(log_prob)

    @checked
    def kl(
        self, row: Float[Tensor, "*B logits"], other: Float[Tensor, "*B logits"]
    ) -> Float[Tensor, "*B"]:
        """Return the KL divergences from rows to others, in nats."""
        log_prob = self.log_probs(row)
        difference, prob = log_prob - self.log_probs(other), log_prob.exp()
        # The second sum of {eq}`choices-entropy`. What never happens adds nothing.
        return (prob * difference.masked_fill(prob == 0, 0.0)).sum((-2, -1))

    def to_env(self, action: Tensor) -> Any:
        """Return the actions as vector environments take them, nested or not."""
        shapes = [part.shape or () for part in self.parts]
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        columns = np.split(action.numpy() + self.start, ends[:-1], axis=-1)
        named = zip(self.parts, shapes, columns, strict=True)
        return pack(
            self.space,
            (x.reshape(-1, *shape).astype(part.dtype) for part, shape, x in named),
        )


def taken(log_prob: Tensor, action: Tensor) -> Tensor:
    """Add up the log-probabilities of what was chosen."""
    # {eq}`choices-log-prob`.
    return log_prob.gather(-1, action.unsqueeze(-1)).squeeze(-1).sum(-1)


def surprise(log_prob: Tensor) -> Tensor:
    """Add up the entropies of all choices, in nats."""
    # The first sum of {eq}`choices-entropy`. An option that is not there has
    # probability zero and adds nothing. Zero times infinity would be NaN.
    likely = log_prob.clamp(min=LOG_OF_NOTHING)
    return -(log_prob.exp() * likely).sum((-2, -1))
