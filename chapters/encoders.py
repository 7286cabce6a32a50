# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Encoders
#
# **Where does the network come from that fits what the agent sees?** The agents so far saw a few
# numbers, and two hidden layers were enough. Other agents see pictures, categories, or several
# things at once. After this chapter you can choose layers for each of these, say what a convolution
# computes and why it helps, and say who may train a network that an actor and a critic share.
#
# It takes about 40 minutes. You need {doc}`policies`.

# %% tags=["export", "hide-input"]
"""Encoders: from what an agent sees to features, chosen by the space."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple, TypeGuard

import numpy as np
import torch
from annotated_types import Ge
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

__all__ = [
    "MINATAR_LAYERS",
    "NATURE_LAYERS",
    "ConvolutionalEncodingNetwork",
    "Layers",
    "PartsEncoder",
    "PictureEncoder",
    "RowEncoder",
    "ShapedEncoder",
    "entrance",
    "make_encoder",
]

# %% [markdown]
# ## What the first convolution sees
#
# **Breakout** is a game of ten cells by ten, from the collection MinAtar {cite:p}`young2019`. A
# ball breaks bricks, and a paddle keeps it in the game. What an agent sees has four **planes**,
# tables of zeros and ones: where the paddle is, the ball, the *trail* (where the ball was one step
# before), and the bricks. Planes are also called **channels**. The red, green and blue of a
# photograph are three.
#
# The first picture has all planes laid over each other. A **filter** has a weight for each place in
# a window of three by three cells, on each plane. It is laid over the picture, weights and cells
# are multiplied and added up, and a negative sum becomes 0. Then the window moves on. All sums
# together are the filter's **map**. Choose a filter and move its window.

# %% tags=["hide-input"]
import torch
from gymnasium import spaces

from literate_rl.nets.encoders import PictureEncoder  # built below
from literate_rl.book.pictures import Picture, dial
from literate_rl.runs.runs import read_rows, results_folder

torch.set_num_threads(1)  # the networks of this book are too small to be shared out
planes = ("paddle", "ball", "trail", "brick")
tables = {}
for line in read_rows(results_folder() / "minatar_frames.csv"):
    of_frame = tables.setdefault(line["frame"], {plane: [] for plane in planes})
    of_frame[line["plane"]].append([int(cell) for cell in line["cells"]])
# As the environment hands them out: rows, columns, planes, and truth values.
frames = {
    name: torch.tensor([*of_frame.values()]).permute(1, 2, 0).bool()
    for name, of_frame in tables.items()
}
minatar = spaces.Box(0.0, 1.0, (10, 10, 4), bool)

# Three filters made by hand: weights by plane, row and column, and a bias.
filters = {
    "lower edge": ({("brick", 0, k): 1 for k in range(3)}, 0),
    "falls right": ({("trail", 0, 0): 1, ("ball", 1, 1): 1}, -1),
    "falls left": ({("trail", 0, 2): 1, ("ball", 1, 1): 1}, -1),
}
filters["lower edge"][0].update({("brick", 2, k): -1 for k in range(3)})
by_hand = PictureEncoder(minatar, convolutions=((len(filters), 3, 1),))
first = by_hand.convolutions[0]
with torch.no_grad():
    first.weight.zero_()
    for number, (weights, bias) in enumerate(filters.values()):
        for (plane, i, j), weight in weights.items():
            first.weight[number, planes.index(plane), i, j] = weight
        first.bias[number] = bias
    seen = frames["game"].permute(2, 0, 1).float()
    sums = first(seen)
    maps = sums.relu()


def squares(left, top, size, found):
    """Return the way of a pen around squares; a share below 1 makes one smaller."""
    d = ""
    for i, j, share in found:
        side = size * share
        x, y = left + size * (j + 0.5) - side / 2, top + size * (i + 0.5) - side / 2
        side = round(side, 1)
        d += f"M{x:g},{y:g}h{side:g}v{side:g}h-{side:g}Z"
    return d


def draw_frame(picture, frame, left, top, size, trail=True, bricks=True):
    """Draw a frame: bricks as squares, the ball as a dot, its trail as a faint one."""
    edge = 10 * size
    picture.path(f"M{left},{top}h{edge}v{edge}h-{edge}Z", "faint")
    picture.reach(top - 2, top + edge + 2)
    for plane in ("brick", "paddle", "trail", "ball"):
        shown = {"trail": trail, "brick": bricks}.get(plane, True)
        for i, j in (
            frame[:, :, planes.index(plane)].nonzero().tolist() if shown else ()
        ):
            x, y = left + (j + 0.5) * size, top + (i + 0.5) * size
            if plane == "brick":
                picture.path(squares(left, top, size, [(i, j, 0.86)]), "second", "band")
            elif plane == "paddle":
                picture.path(f"M{x - 0.4 * size},{y}h{0.8 * size}", "", "bars")
            else:
                tone = "faint" if plane == "trail" else "accent"
                picture.path(f"M{x},{y}h0", tone, "token")


def look(name, row, column):
    """Draw the frame with a window, the filter, and its map."""
    number, (i, j) = list(filters).index(name), (row - 1, column - 1)
    weight = first.weight[number]
    alt = (
        "Bricks above, a ball with its trail, a paddle, and a window around nine cells."
    )
    frame = Picture("A frame of Breakout", alt, width=300)
    frame.text(4, 0, "the frame", anchor="start", bold=True)
    draw_frame(frame, frames["game"], 4, 18, 28)
    frame.path(f"M{4 + 28 * j},{18 + 28 * i}h84v84h-84Z", "accent", "thick")

    alt = (
        "Weights of three by three on four planes, and a table of eight by eight sums."
    )
    map_ = Picture("The filter and its map", alt, width=300)
    map_.text(4, 0, "the filter", anchor="start", bold=True)
    for place, plane in enumerate(planes):
        left, top = 4 + 74 * place, 38
        map_.text(left + 24, 26, plane, "quiet")
        map_.path(f"M{left},{top}h48v48h-48Z", "faint")
        # Weights of 1 have the accent, those of −1 the other colour.
        for tone, sign in (("accent", 1), ("second", -1)):
            where = (weight[place] * sign > 0).nonzero().tolist()
            d = "".join(f"M{left + 8 + 16 * y},{top + 8 + 16 * x}h0" for x, y in where)
            map_.path(d, tone, "token")
    map_.text(4, 106, "its map", anchor="start", bold=True)
    map_.path("M4,122h176v176h-176Z", "faint")
    largest = maps[number].max().clamp(min=1)
    shares = (maps[number] / largest).sqrt()
    where = [(x, y, shares[x, y].item()) for x, y in maps[number].nonzero().tolist()]
    for kind in ("band", ""):
        map_.path(squares(4, 122, 22, where), "accent", kind)
    map_.path(squares(4, 122, 22, [(i, j, 1.0)]), "", "thick")
    map_.reach(0, 300)
    parts = (weight * seen[:, i : i + 3, j : j + 3]).sum((1, 2)).tolist()
    terms = [f"{plane} {x:+g}" for plane, x in zip(planes, parts, strict=True) if x]
    if first.bias[number]:
        terms.append(f"bias {first.bias[number]:+g}")
    total = sums[number, i, j].item()
    words = f"Row {row}, column {column}: {', '.join(terms) or 'nothing'}."
    words += f" The sum is {total:g}"
    words += ", and the map shows 0." if total < 0 else "."
    return [frame, map_], words.replace("-", "−")


steps = range(1, 9)
dial(
    "A filter on a frame of Breakout",
    look,
    {"filter": list(filters), "row": list(steps), "column": list(steps)},
    start=("falls right", 5, 6),
)

# %% [markdown]
# **Notice** that one filter says *where* something is, wherever it is. The one for a ball that
# falls to the right needs the ball in the middle of its window and the trail up and to the left of
# it, and 1 + 1 − 1 is left at that place only. The filter for a ball that falls to the left stays
# silent. The one for the edge says 3 where three bricks have nothing below them, and less where
# bricks are missing.
#
# We made these filters by hand. A **convolutional layer** has many, and learns their weights.

# %% tags=["claims"]
edge, right, left = maps
assert right.nonzero().tolist() == [[4, 5]], "at one place, under row 5 and column 6"
assert right[4, 5] == 1, "1 + 1 − 1"
assert not left.any(), "silent"
assert edge.max() == 3, "three bricks with nothing below"
assert 0 < edge[edge > 0].min() < 3, "and less where some are missing"

# %% [markdown]
# ## What it buys
#
# PPO ({doc}`ppo`) learned Breakout with two kinds of network. One takes the 400 cells as a **row**,
# into two hidden layers of 128 units, the kind of network that this book has used so far. The other
# has the encoder of this chapter: 16 filters of three by three and a layer of 128 units, with ReLU
# where the row has tanh. The settings are the same, and nothing was tuned. Thin lines are seeds,
# thick ones their means.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Mean returns of PPO on MinAtar's Breakout over 300,000 steps, a thin line for each seed. All rise from below one. With an encoder the mean ends near seven, and single seeds near ten; with a row the mean ends near six"}}
import matplotlib.pyplot as plt
import numpy as np

from literate_rl.runs.evaluation import paired_difference
from literate_rl.runs.runs import stored_runs

runs = stored_runs("encoders_breakout")
fig, axis = plt.subplots(figsize=(7, 2.8), layout="constrained")
for color, name in zip(("C1", "C0"), ("encoder", "row"), strict=True):
    steps, curves = runs[name].steps / 1000, runs[name].curves
    axis.plot(steps, curves.T, color=color, alpha=0.25, linewidth=0.7)
    axis.plot(steps, curves.mean(0), color=color, linewidth=2, label=name)
axis.set(xlabel="thousand steps", ylabel="return while training")
axis.legend()
last = {name: found.curves[:, -5:].mean(1) for name, found in runs.items()}
print("return in the last fifth of the training")
for name, values in last.items():
    print(
        f"{name:8s} {values.mean():.1f}   seeds {' '.join(f'{x:.1f}' for x in values)}"
    )
gain = paired_difference(last["encoder"], last["row"])
print(
    f"the encoder earns {gain.mean:.1f} more (95 %: {gain.low:.1f} to {gain.high:.1f})"
)

# %% [markdown]
# **Notice** that both learn, and that with the encoder PPO earns more in the end. It does so with
# eight of the ten seeds, and the interval, which is the 95 % t interval of the paired differences
# ({doc}`evaluation`), lies above zero. It also takes more than twice the processor's time. The
# picture is tiny: 400 numbers are no hopeless row. A screen of Atari, 84 by 84 with four frames,
# has 28,224. (Runs of a million steps, and runs of DQN and Rainbow, are among the
# {doc}`results </docs/results>`.)

# %% tags=["claims"]
assert all(len(found.final) == 10 for found in runs.values()), "ten seeds"
assert (last["encoder"] > last["row"]).sum() == 8, "eight of the ten"
assert gain.low > 0, "the interval lies above zero"
seconds = {name: found.cpu_seconds.mean() for name, found in runs.items()}
assert 2 < seconds["encoder"] / seconds["row"] < 3, "more than twice the time"
assert 84 * 84 * 4 == 28_224

# %% [markdown]
# ## One filter at every place
#
# Let $X_{c,i,j}$ be the number in row $i$ and column $j$ of channel $c$, counted from 0. Filter $f$
# has the weights $W_{f,c,i',j'}$ and the bias $b_f$, and its map is
#
# $$
# Y_{f,i,j} = b_f + \sum_c \sum_{i'} \sum_{j'} W_{f,c,i',j'} \; X_{c, \, n_S i + i', \, n_S j + j'} .
# $$ (convolution)
#
# The **stride** $n_S$ says how far the window moves from one place of the map to the next. On a
# side of $n_X$ cells a window of $n_W$ cells has
#
# $$
# n_Y = \left\lfloor \frac{n_X - n_W}{n_S} \right\rfloor + 1
# $$ (convolution-size)
#
# places. (The side of the window, $n_W$, is called the kernel size.) A **padding** puts a rim of
# zeros around the picture, which makes $n_X$ larger by twice its width.
#
# Why is this better than a layer that reads all cells? That layer could compute the same maps,
# because they are sums of cells with weights. But it would have to learn the same filter for each
# place anew, from the episodes in which a ball was there. A filter learns from all places at once.
# And it has fewer weights:

# %%
filters_alone = sum(x.numel() for x in torch.nn.Conv2d(4, 16, 3).parameters())
all_cells = sum(x.numel() for x in torch.nn.Linear(400, 16 * 8 * 8).parameters())
print(f"16 filters of 3 x 3 on 4 planes: {filters_alone} weights")
print(f"a layer from all cells to maps of the same size: {all_cells} weights")

# %% tags=["claims"]
assert filters_alone == 16 * (4 * 3 * 3 + 1), "one filter at every place"
assert all_cells == (400 + 1) * 1024, "a weight for each cell and each number of a map"

# %% [markdown]
# Convolutions can stand one after another. The second one then reads the maps of the first as its
# channels, and sees a larger part of the picture. In the end a linear layer reads all maps and
# turns them into **features**.
#
# That last layer has weights for each place again. So how much of what was learned at some places
# is known at others? Below, networks learn to say in which of four directions a ball flies. They
# see balls at 16 of 64 places, and are asked about the other 48. Guessing is right in a quarter of
# the cases.

# %% tags=["hide-input"]
minatar_places = [(i, j) for i in range(1, 9) for j in range(1, 9)]
ways = [(-1, -1), (-1, 1), (1, -1), (1, 1)]


def balls(places):
    """Return frames with a ball and its trail, and the direction of each."""
    seen = torch.zeros(len(places), len(ways), 10, 10, 4)
    for p, (i, j) in enumerate(places):
        for way, (down, right) in enumerate(ways):
            seen[p, way, i, j, 1] = seen[p, way, i + down, j + right, 2] = 1
    return seen.flatten(2).flatten(0, 1), torch.arange(len(ways)).repeat(len(places))


class Largest(torch.nn.Module):
    """One convolution, and of each map only its largest number."""

    def __init__(self):
        super().__init__()
        self.maps = PictureEncoder(minatar).convolutions[:2]

    def forward(self, rows):
        planes = rows.reshape(-1, 10, 10, 4).movedim(-1, 1)
        return self.maps(planes).amax((-2, -1))


hidden, tanh = torch.nn.Linear, torch.nn.Tanh
kinds = {
    "a row": lambda: [
        hidden(400, 128),
        tanh(),
        hidden(128, 128),
        tanh(),
        hidden(128, 4),
    ],
    "the encoder": lambda: [PictureEncoder(minatar), hidden(128, 4)],
    "the largest of each map": lambda: [Largest(), hidden(16, 4)],
}
by_heart, right_elsewhere = {}, {}
for name, layers in kinds.items():
    torch.manual_seed(1)
    places = [minatar_places[k] for k in torch.randperm(64)]
    (known, way), (asked, truth) = balls(places[:16]), balls(places[16:])
    network = torch.nn.Sequential(*layers())
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(200):
        error = torch.nn.functional.cross_entropy(network(known), way)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
    with torch.no_grad():
        by_heart[name] = (network(known).argmax(-1) == way).float().mean().item()
        right_elsewhere[name] = (
            (network(asked).argmax(-1) == truth).float().mean().item()
        )
    print(f"{name}: right at {right_elsewhere[name]:.0%} of the new places")

# %% [markdown]
# All three know their 16 places by heart. **Notice** that only the third knows the others: what a
# filter has learned holds everywhere, until a layer asks *where*. The encoder asks, and it has to.
# A paddle must know not only that a ball falls, but where it will arrive. So its filters are shared
# between places, and what is made of them is not. That fits the modest gain on ten cells by ten.

# %% tags=["claims"]
assert min(by_heart.values()) > 0.95, "their 16 places"
assert right_elsewhere["a row"] < 0.5, "little better than guessing"
assert right_elsewhere["the encoder"] < 0.5, "the last layer asks where"
assert right_elsewhere["the largest of each map"] > 0.7, (
    "what is shared holds everywhere"
)

# %% [markdown]
# ## The usual layers
#
# Two sets of layers are well known, one for small pictures and one for large ones. The network of
# the MinAtar paper has one convolution. That of the *Nature* paper on DQN {cite:p}`mnih2015` has
# three. Its first one looks with 8 by 8 cells at every fourth place, because in a picture of 84 by
# 84 one cell alone says little.


# %% tags=["export"]
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


# %% [markdown]
# ## What comes in
#
# Whatever the environment shows, an agent gets it as one **flat row** for each step: `flat_env`
# ({doc}`workshop/runs`) sees to that, with Gymnasium's own order of numbers. A memory, a queue and
# a policy then know one kind of observation only. The price is that a row of 400 numbers does not
# say that it is a picture. But its *space* does, so an encoder is made from the space and gives the
# row its shape back. (It takes observations that have their shape, too.) Any number of dimensions
# may stand in front: $T$ and $B$ while learning, $B$ alone while acting.


# %% tags=["export"]
def front(obs: Tensor, shape: tuple[int, ...]) -> torch.Size:
    """Return the leading dimensions of observations that have a shape or are flat."""
    shape = shape or (1,)  # every shape ends with none, and one number is a row of one
    for ending in (shape, (math.prod(shape),)):
        place = obs.ndim - len(ending)
        if place >= 0 and obs.shape[place:] == ending:
            return obs.shape[:place]
    wanted = ", ".join(map(str, ("*", *shape)))
    given = tuple(obs.shape)
    raise ValueError(
        f"obs must have shape ({wanted}) or (*, {math.prod(shape)}), got {given}"
    )


def as_floats(obs: Tensor, module: nn.Module) -> Tensor:
    """Return observations in the precision of a module's weights, if it has any."""
    weight = next(module.parameters(), None)
    if weight is not None:
        return obs.to(weight.dtype)
    return obs if obs.is_floating_point() else obs.to(torch.get_default_dtype())


# %% [markdown]
# ## An encoder of pictures
#
# Pictures come in several forms, and all become planes with the channels first, as PyTorch wants
# them:
#
# - The channels may be the first or the last axis. They are few, so they are the *shorter* one of
#   the two. If both are equal, they are the first.
# - A picture of two dimensions has one channel.
# - A picture of four dimensions is a stack of frames ([below](#why-one-frame-is-not-enough)). The
#   channels of all frames become one long list of channels.
#
# Cameras and screens hand out **bytes**, whole numbers from 0 to 255. Networks learn best from
# numbers around 1 ({doc}`policies`), so bytes are divided by 255. That happens here, once, and
# nowhere before: a memory of bytes is a quarter as large as one of floats.


# %% tags=["export"]
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
        # The larger layers are taken wherever they fit.
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
        # Bytes are scaled once, and here.
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
    *stack, height, width = shape
    last = len(shape) > 2 and shape[-1] < shape[-3]
    if last:
        *stack, height, width, channels = shape
        stack = [*stack, channels]
    return last, (math.prod(stack), height, width)


# %% [markdown]
# Both networks, and what is left of a picture on its way:

# %%
atari = spaces.Box(0, 255, (84, 84, 4), np.uint8)
products = {}
for name, space in {"MinAtar": minatar, "Atari": atari}.items():
    encoder = PictureEncoder(space)
    maps, way = torch.zeros(1, *encoder.planes), [encoder.planes]
    products[name] = encoder.features.weight.numel()
    for layer in encoder.convolutions:
        maps = layer(maps)
        if isinstance(layer, torch.nn.Conv2d):
            way.append(tuple(maps.shape[1:]))
            # Each weight is used once at each place of the map.
            products[name] += layer.weight.numel() * maps[0, 0].numel()
    print(name, *way, f"{encoder.output_size} features", sep=" -> ")
    print(f"{products[name]:,} multiplications")

# %% tags=["claims"]
assert 50 < products["Atari"] / products["MinAtar"] < 60

# %% [markdown]
# ## Numbers and categories
#
# What is a row already, such as CartPole's four numbers, needs no layers of its own. Its encoder
# only makes floats of it, and leaves the rest to the hidden layers behind it, such as `mlp` of
# {doc}`policies`.
#
# A category, one of several things without an order, comes as a row with a single 1. You may have
# met **embeddings** in other books: a table with a row of learned numbers for each category. That
# is what happens here as well, because the next layer multiplies the row with its weights. All
# products are zero, except those with the one column that belongs to the category.

# %%
weights = torch.randn(8, 5)  # a layer from 5 categories to 8 numbers
category = torch.tensor([3, 0, 3])
as_rows = torch.nn.functional.one_hot(category, 5).float()
through_layer = as_rows @ weights.T
looked_up = torch.nn.functional.embedding(category, weights.T)
print("the same numbers:", torch.equal(through_layer, looked_up))

# %% tags=["claims"]
assert torch.equal(through_layer, looked_up), (
    "a one-hot row times a matrix is an embedding"
)


# %% tags=["export"]
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
# A robot may see a camera picture, the angles of its joints, and which of three tasks it has. In
# Gymnasium that is a Dict or a Tuple, which may hold further ones. Its flat row has all parts one
# after another. So it is cut, each part goes through an encoder of its own, and the features are
# put side by side again:

# %% tags=["hide-input"]
picture = Picture(
    "A row of three parts and their features",
    "A row is cut into three. The picture goes through convolutions. The numbers and the "
    "category stay as they are. Their features, side by side, are read by actor and critic.",
)
names = ("picture", "numbers", "category")
pieces = [
    picture.box(90 + 130 * k, 20, name, width=120) for k, name in enumerate(names)
]
picture.frame(pieces, "the flat row")
convolutions = picture.box(90, 104, "convolutions", "accent", width=120)
picture.arrow(pieces[0], convolutions, tone="accent")
found = [picture.box(90 + 130 * k, 178, "features", width=120) for k in range(3)]
picture.arrow(convolutions, found[0], tone="accent")
for piece, feature in zip(pieces[1:], found[1:], strict=True):
    picture.arrow(piece, feature)
heads = [
    picture.box(155 + 130 * k, 254, name, width=90)
    for k, name in enumerate(("actor", "critic"))
]
picture.frame(found, "")
for head in heads:
    picture.arrow((head.x, 192), head)
picture


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
# A policy for vectors needs no encoder in front of its hidden layers. So all functions of this book
# that build one, such as `make_policy`, begin with `entrance`: it returns an encoder where there are
# pictures, and nothing else.
#
# **An encoder of your own** is any module that has its number of features as `output_size`. You hand
# it to the same functions, or to `train`, as `encoder=`. It gets a batch of observations in their own
# shape, as floats; scaling bytes is up to you. It is tried once with zeros, so that one that does not
# fit is told at once. Each network has a copy of it. If you hand over a
# function that makes one from the space, such as `partial(PictureEncoder, hidden=64)`, each network
# has one with first weights of its own.
#
# `train` ({doc}`workshop/training`) does all of this itself. It looks at what the environment shows:
# vectors go straight into the hidden layers of each agent, pictures through `make_encoder` first, and
# with `encoder=` yours is used for either. The command line has `--encoder module:name`.


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


def off_policy_entrances(
    space: Space,
    num_critics: int,
    share_encoder: bool,
    encoder: OwnEncoder | None = None,
    first: Sequence[nn.Module] = (),
) -> Iterator[tuple[list[nn.Module], int]]:
    """Yield what ``entrance`` returns, for an actor and then for each of its critics.

    A shared encoder is that of the critics, and detached for the actor. What is
    ``first`` stands before all of them.
    """
    front, size = entrance(space, encoder=encoder)
    check_shared(share_encoder, front, space)
    yield [*first, *([Detached(*front)] if share_encoder else front)], size
    for _ in range(num_critics):
        if not share_encoder:
            front, _ = entrance(space, encoder=encoder)
        yield [*first, *front], size


def check_shared(share_encoder: bool, front: Sequence[nn.Module], space: Space) -> None:
    """Raise if an encoder is to be shared, and there is none."""
    words = f"share_encoder must be False without an encoder, got {space}"
    check_that(bool(front) or not share_encoder, words)


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
# Here is what becomes of some spaces:

# %%
import textwrap

from literate_rl.nets.encoders import make_encoder

robot = spaces.Dict(
    camera=spaces.Box(0, 255, (48, 48, 3), np.uint8),
    body=spaces.Tuple((spaces.Box(-np.inf, np.inf, (6,)), spaces.Discrete(3))),
)
for name, space in {
    "CartPole": spaces.Box(-np.inf, np.inf, (4,)),
    "Taxi": spaces.Discrete(500),
    "MinAtar": minatar,
    "Atari": atari,
    "a robot": robot,
}.items():
    encoder = make_encoder(space)
    kind, numbers = type(encoder).__name__, spaces.flatdim(space)
    print(
        f"{name:9s} {numbers:6d} numbers -> {encoder.output_size:4d} features, {kind}"
    )
    for part in getattr(encoder, "encoders", ()):
        print(f"{'':11s}a part with {part.output_size} features, {type(part).__name__}")
try:
    make_encoder(spaces.Dict(view=minatar, mission=spaces.Text(20)))
except ValueError as error:
    print("", *textwrap.wrap(str(error), 70), sep="\n")

# %% [markdown]
# The encoder's features go into whatever stood there before. `make_policy` puts one layer behind an
# encoder of a picture, and hidden layers behind one of several parts, because the numbers among them
# have been through none yet. Here is its policy for Breakout by hand, with a layer for the logits and
# one for the value, each behind an encoder of its own:

# %%
from literate_rl.nets.policies import (
    ActorCritic,
    CategoricalActions,
    Policy,
    make_policy,
)


def behind_encoder(space, outputs, gain):
    encoder = make_encoder(space)
    head = torch.nn.Linear(encoder.output_size, outputs)
    torch.nn.init.orthogonal_(head.weight, gain)
    torch.nn.init.zeros_(head.bias)
    return torch.nn.Sequential(encoder, head)


torch.manual_seed(1)
actor, critic = behind_encoder(minatar, 3, 0.01), behind_encoder(minatar, 1, 1.0)
policy = Policy(ActorCritic(actor, critic), CategoricalActions(3))
row = frames["game"].flatten()  # what an agent gets from `flat_env`
print("probabilities of stay, left, right:", policy(row).softmax(-1).detach())

# %% tags=["claims"]
torch.manual_seed(1)
made = make_policy(minatar, spaces.Discrete(3))
assert torch.equal(policy(row), made(row)), "what make_policy builds"
assert torch.equal(policy.value(row), made.value(row))
assert torch.equal(policy(row), policy(frames["game"])), "flat or shaped"
assert (policy(row).softmax(-1) - 1 / 3).abs().max() < 0.05, (
    "hardly any preference at first"
)

# %% [markdown]
# This is the policy of the learning curves above.
#
# ## Why one frame is not enough
#
# Where does the ball go? Here are two moments of Breakout, without their trails. Ball, paddle and
# bricks are at the same places.

# %% tags=["hide-input"]
two_moments = Picture(
    "Two moments that look alike",
    "Left and right, the same frame. Below, each beside the frame before it: on the left the "
    "ball was higher and falls, on the right it was lower and rises.",
)
for k, name in enumerate(("falling", "rising")):
    left = 30 + 220 * k
    two_moments.text(left + 80, 0, f"moment {k + 1}", bold=True)
    draw_frame(two_moments, frames[name], left, 16, 16, trail=False)
    two_moments.text(left + 80, 204, "the frame before", "quiet")
    draw_frame(two_moments, frames[f"before {name}"], left, 220, 16, trail=False)
two_moments

# %% [markdown]
# **Notice** that the upper two pictures are equal. In one of them the paddle has to hurry, in the
# other it has time, and no network can tell which is which. Only with the frame before, below, does
# one see that the first ball falls and the second one rises.
#
# So agents that see a screen get the last few frames at once, a **stack**. In Gymnasium the wrapper
# `FrameStackObservation` makes it (`train("PPO", env, wrappers=["FrameStackObservation(4)"])`), and
# four frames are usual {cite:p}`mnih2015`. A first
# convolution with weights on both frames is then all that is needed to see movement, as the trail
# was in the dial. MinAtar's trail plane *is* the ball's place in the frame before.

# %%
kept = [planes.index(name) for name in ("paddle", "ball", "brick")]
single = {name: frames[name][..., kept] for name in ("falling", "rising")}
stacks = {
    name: torch.stack([frames[f"before {name}"][..., kept], frames[name][..., kept]])
    for name in single
}
torch.manual_seed(1)
one_frame = make_encoder(spaces.Box(0, 1, (10, 10, 3)))
two_frames = make_encoder(spaces.Box(0, 1, (2, 10, 10, 3)))
apart = {}
for name, encoder, seen in (("one", one_frame, single), ("two", two_frames, stacks)):
    with torch.no_grad():
        apart[name] = (encoder(seen["falling"]) - encoder(seen["rising"])).norm().item()
    print(f"frames: {name}, features of the two moments: {apart[name]:.2f} apart")

# %% tags=["claims"]
assert torch.equal(single["falling"], single["rising"]), "the upper two are equal"
assert apart["one"] == 0 < apart["two"], "a stack tells them apart"
for name in single:
    trail = frames[name][..., planes.index("trail")]
    before = frames[f"before {name}"][..., planes.index("ball")]
    assert torch.equal(trail, before), "the trail is the ball of the frame before"

# %% [markdown]
# ## Numbers without bounds
#
# Bytes have bounds, and so have categories. Distances, speeds and prices have none. If one number
# of a row is about 1,000 and another about 0.01, the first one drowns the second, and drives tanh
# to its ends, where it has no slope. `RunningMoments` of {doc}`policies` shifts and scales each
# number by what has been seen of it (`normalize_obs=True` in `train`):

# %%
from literate_rl.nets.policies import RunningMoments

generator = torch.Generator().manual_seed(1)
scale, middle = torch.tensor([200.0, 1.0, 0.01]), torch.tensor([1000.0, 0.0, 0.0])
rows = middle + scale * torch.randn(2000, 3, generator=generator)
moments = RunningMoments(3)
moments.update(rows)
layer = torch.nn.Linear(3, 64)
torch.nn.init.orthogonal_(layer.weight, 2**0.5)
stuck = {
    name: (layer(seen).tanh().abs() > 0.999).float().mean().item()
    for name, seen in {"as they are": rows, "normalised": moments(rows)}.items()
}
for name, share in stuck.items():
    print(f"{name}: {share:.0%} of the units are at an end of tanh")

# %% tags=["claims"]
assert stuck["as they are"] > 0.9
assert stuck["normalised"] < 0.01
cell = torch.zeros(1000)
cell[0] = 1
assert 0.03 < cell.std() < 0.032
assert (1 - cell.mean()) / cell.std() > 30, "more than 30"
rare = RunningMoments(1)
rare.update(cell[:, None])
assert rare(torch.ones(1)).item() == 10, "clipped to 10"
listed = spaces.flatten_space(spaces.Discrete(500))
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    check_normalize(True, False, listed)
    check_normalize(True, False, spaces.Box(0, 1, (3,)))
assert len(told) == 1, "of zeros and ones, and of floats nothing"

# %% [markdown]
# Do *not* normalise planes or one-hot rows this way. A cell in which the ball is in one frame of a
# thousand has a standard deviation of 0.03; its 1 would become more than 30, and is clipped to 10.
# The makers of our policies refuse planes, and warn of rows that hold nothing but zeros and ones. Of a category
# beside other numbers, in one row of floats, it knows nothing: scale those numbers in the environment.
#
# ## One encoder or two
#
# Actor and critic look at the same picture, and most of the work is done in the encoder. Should
# they share it? That saves almost half of the weights, and each can use what the other finds. But
# then somebody has to decide **who may move it**:

# %% tags=["hide-input"]
picture = Picture(
    "Who moves a shared encoder",
    "Left, on-policy: encoder below actor and critic, gradients of both losses flow back into "
    "the encoder. Right, off-policy: only the gradient of the critic's loss does.",
)
for k, (title, tone, words) in enumerate(
    (
        ("on-policy", "accent", "both losses"),
        ("DDPG, TD3, SAC", "faint", "the critic's loss alone"),
    )
):
    left = 220 * k
    picture.text(left + 108, 0, title, bold=True)
    encoder = picture.box(left + 108, 134, "encoder", width=100)
    actor_box = picture.box(left + 56, 46, "actor", width=80)
    critic_box = picture.box(left + 160, 46, "critic", width=80)
    picture.arrow(
        actor_box.at(0.4, 1), encoder.at(0.25, 0), tone=tone, kind="dashed" if k else ""
    )
    picture.arrow(critic_box.at(0.6, 1), encoder.at(0.75, 0), tone="accent")
    picture.text(left + 108, 172, words, "accent")
picture

# %% [markdown]
# - **On-policy** (PPO, A2C, IMPALA) there is one loss, the sum of the policy's and the value's.
#   Both move a shared encoder, and a weight says how much the value's counts. `make_policy` shares
#   it with `share_encoder=True`, and so does `train` (on the command line `--share-encoder`). {doc}`ppg` shows how the two losses pull in different directions,
#   and what it does about it.
# - **Off-policy** (DDPG, TD3, SAC) the actor climbs the critic. If the actor's gradient could move
#   the encoder, it could make the critic promise more by changing *what the critic sees*, and
#   nothing in the world would have got better. So the critics' loss alone moves the encoder
#   {cite:p}`yarats2021`, and the actor gets its features detached. `make_ddpg_policy` (which builds
#   TD3's policy too), `make_sac_policy` and `make_discrete_sac_policy` share it with
#   `share_encoder=True`, and so does `train`.

# %%
torch.manual_seed(1)
encoder = make_encoder(minatar)
features = encoder(frames["game"])


def pull(loss, module):
    """Return how long the gradient of a loss is in a module."""
    weights = list(module.parameters())
    found = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
    return sum(x.norm().item() for x in found if x is not None)


# On-policy: a log-probability and a value read the same features.
logits, value = torch.nn.Linear(128, 3), torch.nn.Linear(128, 1)
policy_loss = -logits(features).log_softmax(-1)[0]
value_loss = (1 - value(features)).square().sum()

# Off-policy: a critic of actions, and an actor that climbs it.
critic, actor = torch.nn.Linear(128 + 1, 1), torch.nn.Linear(128, 1)


def judged(features, action):
    return critic(torch.cat([features, action])).sum()


critic_loss = (1 - judged(features, torch.zeros(1))).square()
climb = -judged(features, actor(features).tanh())
apart = features.detach()
detached_climb = -judged(apart, actor(apart).tanh())
pulls = {
    "policy": (pull(policy_loss, encoder), pull(policy_loss, logits)),
    "value": (pull(value_loss, encoder), pull(value_loss, value)),
    "critic": (pull(critic_loss, encoder), pull(critic_loss, critic)),
    "actor": (pull(climb, encoder), pull(climb, actor)),
    "actor, detached": (pull(detached_climb, encoder), pull(detached_climb, actor)),
}
for name, (on_encoder, on_head) in pulls.items():
    print(
        f"{name:15s}  pulls at the encoder {on_encoder:5.2f}, at its own layer {on_head:5.2f}"
    )

# %% tags=["claims"]
for name in ("policy", "value", "critic", "actor"):
    assert min(pulls[name]) > 0, "each loss moves what it can reach"
assert pulls["actor, detached"][0] == 0 < pulls["actor, detached"][1], "only the actor"
assert pulls["actor"][0] > 20 * pulls["actor"][1], "many times as hard"
num_weights = sum(x.numel() for x in encoder.parameters())
num_heads = sum(x.numel() for x in (*logits.parameters(), *value.parameters()))
assert (num_weights + num_heads) / (2 * num_weights + num_heads) < 0.51, "almost half"

# %% [markdown]
# **Notice** how the actor's loss pulls. Without `detach` it pulls at the encoder many times as hard
# as at the actor itself; with `detach` it does not reach it. (This is one net before any training: it
# shows that the way is open, and not what an agent makes of it; we have trained none both ways.
# {cite:t}`yarats2021` train SAC on pictures with a shared encoder, and stop the actor's gradient.)
#
# With two encoders the question does not come up. The curves above were made with two.
#
# ## As ALF calls it
#
# {doc}`ppg` and {doc}`rainbow` use an encoder with two convolutions and tanh, and with the library
# ALF's way of being called: it takes a state and returns it. Where a picture is only a part of what is
# seen, the second one is called in the same way.


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
# ## Traps
#
# ### Trap: reshaped is not turned
#
# The quickest way from channels last to channels first seems to be `reshape`. It runs, and the
# shape is right. But it only cuts the row anew, and cells that were neighbours end up far from each
# other. A network may even learn from such pictures, and nobody tells you.

# %%
frame = frames["game"]
turned, reshaped = frame.movedim(-1, 0), frame.reshape(4, 10, 10)
print("the ball's plane, turned:     one 1 at", turned[1].nonzero().tolist())
print(f"the ball's plane, reshaped: {int(reshaped[1].sum())} ones, from all planes")

# %% tags=["claims"]
assert turned[1].sum() == 1
assert reshaped[1].sum() > 1, "bricks have become balls"
assert turned.shape == reshaped.shape, "nobody tells you"

# %% [markdown]
# ### Trap: bytes in a float's clothes
#
# What is scaled is decided by the *space*. If a wrapper has made floats of the bytes and left them
# between 0 and 255, the space says `float32`, nothing is scaled, and the features are 255 times as
# large. (The biases start at zero, so the factor is exact.) If a wrapper has scaled them already,
# all is well.
#
# The opposite happens too: bytes that are no brightness. MiniGrid's cells hold [numbers of
# kinds](https://github.com/Farama-Foundation/Minigrid/blob/9874e42a60f342f6524494d294f67e459933b1e7/minigrid/core/constants.py#L23-L35),
# such as 2 for a wall. Divided by 255 all kinds look black. They are categories: make a plane for
# each kind.

# %%
camera = spaces.Box(0, 255, (20, 20, 3), np.uint8)
disguised = spaces.Box(0, 255, (20, 20, 3), np.float32)
right, wrong = PictureEncoder(camera), PictureEncoder(disguised)
wrong.load_state_dict(right.state_dict())
shot = torch.randint(256, (20, 20, 3), generator=generator, dtype=torch.uint8)
with torch.no_grad():
    ratio = (wrong(shot.float()).mean() / right(shot).mean()).item()
print(f"features of the same picture, {ratio:.0f} times as large")

# %% tags=["claims"]
assert abs(ratio - 255) < 0.1

# %% [markdown]
# ## What well-known implementations do
#
# | choice | this chapter | [CleanRL](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppo_atari.py#L117-L142) | [Stable-Baselines3](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/common/torch_layers.py#L47-L107) | [MinAtar's examples](https://github.com/kenjyoung/MinAtar/blob/4241f24685622cfb52f843cab9bbcf385a53484a/examples/dqn.py#L62-L95) |
# |---|---|---|---|---|
# | layers | *Nature's* where they fit, else MinAtar's | [*Nature's*](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppo_atari.py#L120-L130) | [*Nature's*](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/common/torch_layers.py#L88-L102) | [MinAtar's](https://github.com/kenjyoung/MinAtar/blob/4241f24685622cfb52f843cab9bbcf385a53484a/examples/dqn.py#L72-L83) |
# | what counts as a picture | three or four dimensions; two if they are bytes | the script is for Atari | [three dimensions of bytes, from 0 to 255](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/common/preprocessing.py#L48-L56) | all |
# | which axis holds the channels | the shorter one of first and last | the first | [the shortest one](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/common/preprocessing.py#L20-L23) | [the last](https://github.com/kenjyoung/MinAtar/blob/4241f24685622cfb52f843cab9bbcf385a53484a/examples/dqn.py#L140) |
# | bytes | divided by 255 in the encoder | [in the agent](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppo_atari.py#L135-L138) | [before the network](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/common/preprocessing.py#L117-L120) | none |
# | several parts | an encoder each, side by side; nested too | none | [an encoder each, side by side](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/common/torch_layers.py#L291-L311) | none |
# | actor and critic share it | as you like | [yes](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppo_atari.py#L131-L142) | [on-policy yes](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/common/policies.py#L463), [SAC no](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/sac/policies.py#L231); if it does, [the actor's loss moves it](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/common/policies.py#L971-L975) | only a critic |
#
# We read the code at the linked commits.
#
# ## On the best device
#
# Convolutions are where a GPU pays. Here is one step of learning with the network of the *Nature*
# paper on 32 pictures. {doc}`/docs/results` has such times for several sizes, on a CPU and on a
# GPU.

# %%
import time

from literate_rl.data.agents import best_device

device = best_device()
encoder = PictureEncoder(atari).to(device)
batch = torch.randint(256, (32, 84 * 84 * 4), dtype=torch.uint8).to(device)
for _ in range(3):  # the first rounds warm up
    start = time.perf_counter()
    encoder.zero_grad()
    encoder(batch).mean().backward()
    length = encoder.features.weight.grad.norm().item()  # waits for the device
    milliseconds = 1000 * (time.perf_counter() - start)
print(f"on {device.type}: {milliseconds:.0f} ms for 32 pictures")

# %% [markdown]
# ## One decision to take home
#
# **Start from what `make_encoder` chooses, with two encoders.** Numbers in a row need none,
# whatever the algorithm. If you see pictures, look at three things first, in this order: are they
# bytes or numbers near 1, does a stack show what moves, and are they as small as the task allows?
# (The layers for 84 by 84 multiply fifty times as often as those for ten by ten.) Share an encoder
# when time or memory runs out; what that does to the return is not measured here. The experiment that decides is the one above: the same agent with
# the row and with the picture, ten seeds, the same steps.
#
# ## Summary
#
# - A filter is a small table of weights that is laid over every place of a picture. It learns once
#   what may appear anywhere.
# - Observations travel as flat rows. The encoder knows the space, and gives them their shape back.
# - Bytes are divided by 255, once. Numbers without bounds are normalised. Categories are rows with
#   a single 1, which is an embedding already.
# - One frame does not show what moves. A stack of frames does.
# - A shared encoder is moved by both losses on-policy, and by the critics' alone in DDPG, TD3 and
#   SAC.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "A picture of 84 by 84 goes through the first convolution of the Nature paper, with a window "
    "of 8 by 8 and a stride of 4. How large are its maps?",
    ["21 by 21", "20 by 20", "77 by 77"],
    right="20 by 20",
    because="The window starts at the cells 0, 4, 8 and so on up to 76, because 76 + 8 = 84. "
    "That makes (84 − 8) / 4 + 1 = 20 places.",
)

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function should turn a batch of flat rows, pictures with channels last, into planes with
# channels first. For pictures with one channel it is right. Fix it.


# %%
def answer(rows, height, width, channels):
    return rows.reshape(len(rows), channels, height, width)


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade


def planes_of(rows, height, width, channels):
    return rows.reshape(len(rows), height, width, channels).permute(0, 3, 1, 2)


cases = [(torch.arange(2 * 6.0 * c).reshape(2, -1), 2, 3, c) for c in (1, 2, 4)]
grade(answer, planes_of, *cases)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(rows, height, width, channels):
    # First the shape that the row had, then another order of its axes.
    pictures = rows.reshape(len(rows), height, width, channels)
    return pictures.movedim(-1, 1)


grade(answer, planes_of, *cases)

# %% [markdown]
# ### Exercise 3: experiment
#
# Which weights make a filter of three by three on the ball's plane and the trail's that says 1
# where the ball *rises* to the right, and 0 everywhere else? Return two tables of three by three,
# for the ball and for the trail. The bias is −1, as in the dial.


# %%
def answer():
    ball, trail = torch.zeros(3, 3), torch.zeros(3, 3)
    return ball, trail


# %% tags=["hide-input"]
def says(ball, trail):
    """Return where a filter speaks: moment, row and column of its map, and the number."""
    seen = torch.stack([frames[name] for name in ("falling", "rising")]).movedim(-1, 1)
    weight = torch.stack([ball, trail]).unsqueeze(0)
    bias = torch.tensor([-1.0])
    spoken = torch.nn.functional.conv2d(seen[:, 1:3].float(), weight, bias).relu()
    return [
        (k, i, j, spoken[k, 0, i, j].item()) for k, _, i, j in spoken.nonzero().tolist()
    ]


def in_the_middle():
    i, j = frames["rising"][..., 1].nonzero()[0].tolist()
    return [(1, i - 1, j - 1, 1.0)]


grade(lambda: says(*answer()), in_the_middle, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    ball, trail = torch.zeros(3, 3), torch.zeros(3, 3)
    # The ball is in the middle, and it came from below and from the left.
    ball[1, 1] = trail[2, 0] = 1
    return ball, trail


grade(lambda: says(*answer()), in_the_middle, ())

# %% [markdown]
# ## References
#
# Convolutions that learn are from {cite:t}`lecun1989`. Agents met them in {cite:t}`mnih2015`, and
# the games and the small network are from {cite:t}`young2019`. How an encoder is learned beside an
# actor and a critic was studied by {cite:t}`yarats2021`.
