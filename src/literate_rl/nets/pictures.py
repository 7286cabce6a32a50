# Generated from chapters/encoders.py (edit there); digest 13fbbeef4ba77b94
"""Pictures: from planes of numbers to features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
import torch
from annotated_types import Ge
from gymnasium import spaces
from torch import Tensor, nn

from literate_rl.ground.networks import orthogonal
from literate_rl.ground.signatures import Count, check_that, checked

__all__ = ["MINATAR_LAYERS", "NATURE_LAYERS", "Layers", "PictureEncoder"]


class Layers(NamedTuple):
    """Layers for pictures.

    Attributes:
        convolutions: Channels, kernel and stride of each, and perhaps a padding.
        features: Number of features that a linear layer makes of the last maps.
    """

    convolutions: tuple[tuple[int, ...], ...]
    features: int


# Young and Tian 2019.
MINATAR_LAYERS = Layers(((16, 3, 1),), 128)
# Mnih et al. 2015, "Model architecture" in the methods.
NATURE_LAYERS = Layers(((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512)


Convolutions = Sequence[Sequence[Annotated[int, Ge(0)]]]


def side_after(side: int, convolutions: Sequence[Sequence[int]]) -> int:
    """Return how many places are left of a side, 0 if it is too short."""
    for _, kernel, stride, *padding in convolutions:
        # A padding adds a rim on both sides.
        side += 2 * sum(padding)
        if side < kernel:
            return 0
        # {eq}`convolution-size`.
        side = (side - kernel) // stride + 1
    return side


def front(obs: Tensor, shape: tuple[int, ...]) -> torch.Size:
    """Return the leading dimensions of observations that have a shape or are flat."""
    shape = shape or (1,)  # every shape ends with none, and one number is a row of one
    row = (math.prod(shape),)
    for ending in (shape, row):
        place = obs.ndim - len(ending)
        if place >= 0 and obs.shape[place:] == ending:
            return obs.shape[:place]
    raise ValueError(f"obs must end in {shape} or {row}, got {tuple(obs.shape)}")


class PictureEncoder(nn.Module):
    """Convolutions and a linear layer, each followed by a ReLU.

    Args:
        space: A picture with channels first or last, a picture without channels, or a
            stack of pictures. Of a picture's first and last axis the shorter one holds
            the channels, or the first if they are equal. Bytes are scaled to [0, 1].
        hidden: Number of features, kept as ``output_size``.
        convolutions: Channels, kernel and stride of each, and perhaps a padding.

    What is None is taken from ``NATURE_LAYERS`` if they fit the picture, and else from
    ``MINATAR_LAYERS``.
    """

    @checked
    def __init__(
        self,
        space: spaces.Box,
        hidden: Count | None = None,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__()
        self.shape = shape = space.shape
        # The space says whether there are bytes, and where the channels are.
        self.scale = 1 / 255 if space.dtype == np.uint8 else 1.0
        self.channels_last, self.planes = read_planes(shape)
        channels, *sides = self.planes
        large = side_after(min(sides), NATURE_LAYERS.convolutions) > 0
        usual = NATURE_LAYERS if large else MINATAR_LAYERS
        if convolutions is None:
            convolutions = usual.convolutions
        left = [side_after(side, convolutions) for side in sides]
        # What is too small would fail in PyTorch, in words about tensors.
        check_that(
            min(left) > 0,
            f"space must have pictures larger than {sides[0]} x {sides[1]} for "
            f"convolutions {convolutions}",
        )

        # Each layer reads all maps of the one before it.
        depths = [channels, *(made for made, *_ in convolutions)]
        layers = [
            nn.Conv2d(before, after, kernel, stride, sum(padding))
            for before, (after, kernel, stride, *padding) in zip(
                depths, convolutions, strict=False
            )
        ]
        # All weights start orthogonal, with the gain that suits a ReLU.
        for layer in layers:
            orthogonal(layer)
        # Behind each stands a ReLU. All maps become one row, and a linear layer makes
        # features of it.
        rectified = [part for layer in layers for part in (layer, nn.ReLU())]
        self.convolutions = nn.Sequential(*rectified, nn.Flatten())
        self.output_size = hidden or usual.features
        self.features = orthogonal(
            nn.Linear(depths[-1] * math.prod(left), self.output_size)
        )

    def project(self, obs: Tensor) -> Tensor:
        """Return the features before the last ReLU."""
        lead = front(obs, self.shape)
        # A part at a time: as floats, the pictures of a whole rollout would be slow to
        # move through memory.
        parts = obs.reshape(-1, *self.shape).split(256)
        # The convolutions, {eq}`convolution`.
        maps = torch.cat([self.convolutions(self.to_planes(part)) for part in parts])
        features: Tensor = self.features(maps)
        return features.view(*lead, self.output_size)

    def to_planes(self, pictures: Tensor) -> Tensor:
        """Return what the convolutions read, ``(N, channels, height, width)``."""
        pictures = pictures.to(self.features.weight.dtype)
        if self.scale != 1:
            pictures = pictures * self.scale
        if self.channels_last:
            pictures = pictures.movedim(-1, -3)
        # The channels of all frames in a stack stand one after another.
        return pictures.reshape(-1, *self.planes)

    def forward(self, obs: Tensor) -> Tensor:
        """Return features ``(*B, F)`` of pictures, shaped or flat."""
        return self.project(obs).relu()


def read_planes(shape: tuple[int, ...]) -> tuple[bool, tuple[int, int, int]]:
    """Say whether channels come last; return their number, the height and the width."""
    last = len(shape) > 2 and shape[-1] < shape[-3]
    if last:
        shape = (*shape[:-3], shape[-1], *shape[-3:-1])
    *stack, height, width = shape
    return last, (math.prod(stack), height, width)
