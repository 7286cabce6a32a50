# Generated from chapters/choices.py (edit there); digest 7bcf7d15b3b4259d
"""Several choices at once: a product of categorical distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from literate_rl.ground.nests import leaves, pack, refused
from literate_rl.ground.networks import chosen, expected, mean_surprise, race_noise
from literate_rl.ground.signatures import Float, Int, check_that, checked
from literate_rl.nets.masking import legal

__all__ = ["ChoiceActions", "is_choices"]


def is_choices(space: spaces.Space[Any]) -> bool:
    """Say whether an action consists of choices from lists, and of nothing else."""
    kinds = spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    parts = list(leaves(space))
    return bool(parts) and all(isinstance(part, kinds) for part in parts)


def options(leaf: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many options each choice of a leaf has, and the name of the first."""
    if isinstance(leaf, spaces.MultiBinary):
        leaf = spaces.MultiDiscrete(np.full(leaf.shape, 2))
    sizes = leaf.nvec if isinstance(leaf, spaces.MultiDiscrete) else leaf.n
    return np.ravel(sizes).astype(np.int64), np.ravel(leaf.start).astype(np.int64)


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
        places = torch.arange(self.num_logits).split(self.sizes)
        self.place = pad_sequence(places, True, self.num_logits)

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
        return race_noise(generator, num_steps, num_envs, self.num_logits)

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
    def evaluate(
        self, row: Float[Tensor, "*B logits"], action: Int[Tensor, "*B K"]
    ) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
        """Return log-probabilities and entropies, in nats."""
        # {eq}`choices-log-prob`, and the first sum of {eq}`choices-entropy`.
        log_prob = self.log_probs(row)
        likely = chosen(log_prob, action).sum(-1)
        return likely, mean_surprise(log_prob, over=(-2, -1))

    @checked
    def kl(
        self, row: Float[Tensor, "*B logits"], other: Float[Tensor, "*B logits"]
    ) -> Float[Tensor, "*B"]:
        """Return the KL divergences from rows to others, in nats."""
        log_prob = self.log_probs(row)
        difference = log_prob - self.log_probs(other)
        # The second sum of {eq}`choices-entropy`.
        return expected(log_prob.exp(), difference).sum((-2, -1))

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
