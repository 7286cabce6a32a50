# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Encoders for any space
#
# **Which encoder fits a space, and how does it come in front of a policy?** Pictures go through
# `PictureEncoder` of {doc}`/chapters/encoders`.

# %% tags=["export", "hide-input"]
"""Encoders: from what an agent sees to features, chosen by the space."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeGuard

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from literate_rl.ground.nests import (
    Space,
    as_vectors,
    form,
    leaves,
    named_ends,
    refused,
)
from literate_rl.ground.networks import eval_mode, orthogonal
from literate_rl.ground.signatures import Count, check_that, checked
from literate_rl.nets.pictures import (
    MINATAR_LAYERS as MINATAR_LAYERS,
    NATURE_LAYERS as NATURE_LAYERS,
    Convolutions,
    Layers as Layers,
    PictureEncoder as PictureEncoder,
    front,
    read_planes,
)

__all__ = [
    "ConvolutionalEncodingNetwork",
    "PartsEncoder",
    "RowEncoder",
    "ShapedEncoder",
    "entrance",
    "make_encoder",
]


# %% tags=["export"]
def as_floats(obs: Tensor, module: nn.Module) -> Tensor:
    """Return observations in the precision of a module's weights, if it has any."""
    weight = next(module.parameters(), None)
    if weight is not None:
        return obs.to(weight.dtype)
    return obs if obs.is_floating_point() else obs.to(torch.get_default_dtype())


class RowEncoder(nn.Module):
    """Whatever is a row already, or is best read as one, as it is.

    Args:
        space: A Box, Discrete, MultiDiscrete or MultiBinary.
    """

    @checked
    def __init__(self, space: Space) -> None:
        super().__init__()
        self.output_size = spaces.flatdim(space)
        self.shape: tuple[int, ...] = (self.output_size,)
        if isinstance(space, spaces.Box):
            self.shape = space.shape

    def forward(self, obs: Tensor) -> Tensor:
        """Return rows ``(*B, D)`` of floats."""
        lead = front(obs, self.shape)
        return as_floats(obs, self).reshape(*lead, self.output_size)


# %% [markdown]
# ## Several parts
#
# The flat row of a Dict or a Tuple is cut, each part goes through an encoder of its own, and the features are
# put side by side again.


# %% tags=["export"]
class PartsEncoder(nn.Module):
    """An encoder for each part; their features stand one after another.

    Args:
        space: A Dict or Tuple, which may be nested.
        hidden: Number of features of each picture; None as in ``PictureEncoder``.
        convolutions: Those of each picture, likewise.
    """

    @checked
    def __init__(
        self,
        space: spaces.Dict | spaces.Tuple[Any],
        hidden: Count | None = None,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__()
        parts = readable_parts(space)
        encoders: Any = [make_encoder(part, hidden, convolutions) for part in parts]
        self.sizes = [spaces.flatdim(part) for part in parts]
        self.encoders = nn.ModuleList(encoders)
        self.output_size: int = sum(encoder.output_size for encoder in encoders)

    def forward(self, obs: Tensor) -> Tensor:
        """Return features ``(*B, F)`` of flat observations."""
        front(obs, (sum(self.sizes),))
        # The parts stand in the row in the order of the space.
        rows = as_floats(obs, self).split(self.sizes, -1)
        features = [part(row) for part, row in zip(self.encoders, rows, strict=True)]
        return torch.cat(features, -1)


# %% [markdown]
# ## The space decides
#
# A Box of rows and columns that are no bytes, such as a table of five cars, stays a row: its neighbours mean
# nothing. If you know better, call `PictureEncoder` yourself. Texts, graphs and sequences of any length are
# refused.

# %% tags=["export"]
ROWS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


@checked
def make_encoder(
    space: Space,
    hidden: Count | None = None,
    convolutions: Convolutions | None = None,
) -> RowEncoder | PictureEncoder | PartsEncoder:
    """Return the encoder that fits a space.

    Args:
        space: What one environment shows.
        hidden: Number of features of each picture; None as in ``PictureEncoder``.
        convolutions: Those of each picture, likewise.

    Returns:
        A module from flat observations to features, with their number as
        ``output_size``.

    Raises:
        ValueError: If a part cannot be read. The message names it.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return PartsEncoder(space, hidden, convolutions)
    readable_parts(space)
    if is_picture(space, convolutions is not None):
        return PictureEncoder(space, hidden, convolutions)
    return RowEncoder(space)


def readable_parts(space: Space) -> list[Space]:
    """Return the innermost spaces of a nest, or raise if one cannot be read."""
    ends = named_ends(space, form(space), "observation_space")
    parts = {name: part for part, _, name in ends}
    if not parts:
        raise refused("observation_space must have a part", space, "numbers")
    for name, part in parts.items():
        if not isinstance(part, ROWS):
            wanted = f"{name} must be a Box, Discrete, MultiDiscrete or MultiBinary"
            raise refused(wanted, part, "numbers")
    return list(parts.values())


def is_picture(space: Any, asked: bool) -> TypeGuard[spaces.Box]:
    """Say whether to look for neighbours in a space."""
    if not isinstance(space, spaces.Box):
        return False
    # A table of numbers has rows and columns too, but no neighbours.
    if len(space.shape) not in ((2, 3, 4) if space.dtype == np.uint8 else (3, 4)):
        return False
    _, (channels, *sides) = read_planes(space.shape)
    if not channels:
        return False
    # Without a wish, what is too small for three cells by three stays a row.
    return asked or min(sides) >= 3


def has_pictures(space: Space) -> bool:
    """Say whether a space is a picture or has one among its parts."""
    return any(is_picture(part, False) for part in leaves(space))


# %% [markdown]
# ## In front of a policy
#
# All functions that build a policy begin with `entrance`: it returns an encoder where there are pictures, and
# nothing for vectors. **An encoder of your own** gets observations in their own shape, as floats; scaling bytes is
# up to you. Each network has a copy of it, or calls a function that makes one from the space, such as
# `partial(PictureEncoder, hidden=64)`.

# %% tags=["export", "hide-input"]
OwnEncoder = nn.Module | Callable[[Space], nn.Module]


class ShapedEncoder(nn.Module):
    """Gives observations their shape back for an encoder of your own.

    Args:
        space: What one environment shows. What is no Box stays a flat row.
        encoder: Module from ``(N, *shape)`` to features, with their number as
            ``output_size``; or a function from the space to such a module.
    """

    def __init__(self, space: Space, encoder: OwnEncoder) -> None:
        super().__init__()
        ready = isinstance(encoder, nn.Module)
        self.encoder: Any = copy.deepcopy(encoder) if ready else encoder(space)
        self.output_size: Any = getattr(self.encoder, "output_size", None)
        fits = isinstance(self.output_size, int) and self.output_size > 0
        words = "encoder must have its number of features as output_size, an int"
        kind = type(self.encoder).__name__
        check_that(fits, f"{words}, got {kind} with {self.output_size!r}")
        self.shape: tuple[int, ...] = (spaces.flatdim(space),)
        if isinstance(space, spaces.Box):
            self.shape = space.shape
        # Here, and not after the first steps. It also gives lazy layers their weights.
        weight = next(self.parameters(), torch.empty(0))
        with torch.no_grad(), eval_mode(self):
            try:
                self(torch.zeros(2, *self.shape, device=weight.device))
            except Exception as error:
                shape = (2, *self.shape)
                words = f"encoder must read observations of shape {shape}, got {kind}"
                raise ValueError(f"{words}: {type(error).__name__}: {error}") from error

    def forward(self, obs: Tensor) -> Tensor:
        """Return features ``(*B, F)`` of observations, shaped or flat."""
        lead = front(obs, self.shape)
        features: Tensor = self.encoder(as_floats(obs, self).reshape(-1, *self.shape))
        wanted = math.prod(lead), self.output_size
        tensor = isinstance(features, Tensor)
        given = tuple(features.shape) if tensor else type(features).__name__
        check_that(given == wanted, f"encoder must return {wanted}, got {given}")
        return features.view(*lead, self.output_size)


def entrance(
    space: Space,
    convolutions: Convolutions | None = None,
    encoder: OwnEncoder | None = None,
) -> tuple[list[nn.Module], int]:
    """Return what observations go through first, and the size of what comes out.

    Args:
        space: A box of vectors, or a space with pictures.
        convolutions: Those of each picture, as in ``make_encoder``.
        encoder: One of your own, as in ``ShapedEncoder``; then any space will do.

    Raises:
        ValueError: If it is another space.
    """
    if encoder is not None:
        words = "convolutions must be None with an encoder of your own"
        check_that(convolutions is None, words)
        own = ShapedEncoder(space, encoder)
        return [own], own.output_size
    if has_pictures(space):
        encoder = make_encoder(space, convolutions=convolutions)
        return [encoder], encoder.output_size
    check_that(
        convolutions is None, f"convolutions must be None without pictures, got {space}"
    )
    readable_parts(space)
    return [], as_vectors(space).shape[0]


class Detached(nn.Sequential):
    """What somebody else trains: its outputs carry no gradient."""

    @torch.no_grad()
    def forward(self, obs: Tensor) -> Tensor:
        """Return what its modules make of observations."""
        features: Tensor = super().forward(obs)
        return features


def entrances(
    space: Space,
    share_encoder: bool,
    convolutions: Convolutions | None = None,
    encoder: OwnEncoder | None = None,
) -> Iterator[tuple[list[nn.Module], int]]:
    """Yield what ``entrance`` returns, the same for all or one for each who asks."""
    made = entrance(space, convolutions, encoder)
    words = f"share_encoder must be False without an encoder, got {space}"
    check_that(bool(made[0]) or not share_encoder, words)
    while True:
        yield made
        if not share_encoder:
            made = entrance(space, convolutions, encoder)


def off_policy_entrances(
    space: Space,
    num_critics: int,
    share_encoder: bool,
    encoder: OwnEncoder | None = None,
    first: Sequence[nn.Module] = (),
) -> Iterator[tuple[list[nn.Module], int]]:
    """Yield an entrance for an actor and then one for each of its critics.

    A shared encoder is that of the critics, and detached for the actor. What is
    ``first`` stands before all of them.
    """
    fronts = entrances(space, share_encoder, encoder=encoder)
    front, size = next(fronts)
    yield [*first, *([Detached(*front)] if share_encoder else front)], size
    for front, _ in islice(fronts, num_critics):
        yield [*first, *front], size


def check_normalize(normalize: bool, encoded: bool, space: Space) -> None:
    """Raise if features were to be normalised, and warn of zeros and ones."""
    words = f"normalize must be False with an encoder, got {space}"
    check_that(not (encoded and normalize), f"{words}: leave out normalize_obs")
    if not (normalize and isinstance(space, spaces.Box) and space.dtype.kind in "iub"):
        return
    if space.low.min() >= 0 and space.high.max() <= 1:
        words = "normalize makes large numbers of ones that are rare"
        warnings.warn(f"{words}, got zeros and ones: {space}", stacklevel=2)


# %% [markdown]
# ## As ALF has it
#
# An encoder with two convolutions and tanh, which takes a state and returns it, as in the library ALF.


# %% tags=["export", "hide-input"]
class ConvolutionalEncodingNetwork(PictureEncoder):
    """Two convolutions and a linear layer with tanh, called as ALF calls its encoders.

    In a picture of more than 16 cells in each direction the first convolution looks at
    every fourth place only.

    Args:
        observation_spec: A Box with channels, height and width, as in
            ``PictureEncoder``.
        hidden: Number of features, kept as ``output_size``.
    """

    @checked
    def __init__(self, observation_spec: spaces.Box, hidden: Count = 64) -> None:
        _, (_, *sides) = read_planes(observation_spec.shape)
        first = (16, 8, 4) if min(sides) > 16 else (16, 3, 1, 1)
        super().__init__(observation_spec, hidden, (first, (32, 3, 2, 1)))

    def forward(  # type: ignore[override]
        self, observation: Tensor, state: Any = ()
    ) -> tuple[Tensor, Any]:
        """Return features ``(*B, F)`` of pictures, and the state as it came."""
        return self.project(observation).tanh(), state


class PartsEncodingNetwork(nn.Module):
    """An encoder of flat rows with pictures in them, called as ALF calls its encoders.

    Args:
        space: What the environment shows.
        hidden: Number of features, kept as ``output_size``.
        encoder: An encoder of your own, or None.
        row: The space of the flat rows, which says nothing else.
    """

    def __init__(
        self,
        space: Space,
        hidden: int,
        encoder: OwnEncoder | None,
        row: spaces.Box,
    ) -> None:
        super().__init__()
        front, size = entrance(space, encoder=encoder)
        last = orthogonal(nn.Linear(size, hidden))
        self.layers, self.output_size = nn.Sequential(*front, last, nn.Tanh()), hidden

    def forward(self, observation: Tensor, state: Any = ()) -> tuple[Tensor, Any]:
        """Return features ``(*B, F)``, and the state as it came."""
        return self.layers(observation), state


# %% [markdown]
# ## References
#
# Those of {doc}`/chapters/encoders`.
