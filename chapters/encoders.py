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
# numbers. Others see pictures, categories, or several things at once. After this chapter you can choose layers for each
# of these, and say what a convolution computes and who may train a network that an actor and a critic share.
#
# It takes about 25 minutes. You need {doc}`policies`.

# %% tags=["export", "hide-input"]
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

# %% [markdown]
# ## What the first convolution sees
#
# **Breakout** is a game of ten cells by ten, from the collection MinAtar {cite:p}`young2019`. A
# ball breaks bricks, and a paddle keeps it in the game. What an agent sees has four **planes** or **channels**,
# tables of zeros and ones: where the paddle is, the ball, the *trail* (where the ball was one step
# before), and the bricks.
#
# A **filter** has a weight for each place in a window of three by three cells, on each plane. It is laid over the
# picture, weights and cells are multiplied and added up, and a negative sum becomes 0. Then the window moves on. All
# sums together are the filter's **map**. Choose a filter and move its window.

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
    d = ""
    for i, j, share in found:
        side = size * share
        x, y = left + size * (j + 0.5) - side / 2, top + size * (i + 0.5) - side / 2
        side = round(side, 1)
        d += f"M{x:g},{y:g}h{side:g}v{side:g}h-{side:g}Z"
    return d


def draw_frame(picture, frame, left, top, size, trail=True, bricks=True):
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
    number, (i, j) = list(filters).index(name), (row - 1, column - 1)
    weight = first.weight[number]
    alt = "Bricks above, a ball with its trail, a paddle, a window around nine cells."
    frame = Picture("A frame of Breakout", alt, width=300)
    frame.text(4, 0, "the frame", anchor="start", bold=True)
    draw_frame(frame, frames["game"], 4, 18, 28)
    frame.path(f"M{4 + 28 * j},{18 + 28 * i}h84v84h-84Z", "accent", "thick")

    alt = "Weights of three by three on four planes, a table of eight by eight sums."
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
# silent. We made these filters by hand. A **convolutional layer** has many, and learns their weights.

# %% tags=["claims"]
_, right, left = maps
assert right.nonzero().tolist() == [[4, 5]], "at one place, under row 5 and column 6"
assert right[4, 5] == 1, "1 + 1 − 1"
assert not left.any(), "silent"

# %% [markdown]
# ## What it buys
#
# PPO ({doc}`ppo`) learned Breakout with two kinds of network. One takes the 400 cells as a **row**, into two hidden
# layers of 128 units with tanh. The other has the encoder of this chapter: 16 filters of three by three and one layer
# of 128 units, with ReLU. The settings are the same, and nothing was tuned. Thin lines are seeds, thick ones their
# means.

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
gain = paired_difference(last["encoder"], last["row"])
print(f"in the last fifth {gain.mean:.1f} more ({gain.low:.1f} to {gain.high:.1f})")

# %% [markdown]
# **Notice** that with the encoder PPO earns more in the end, with eight of the ten seeds, in more than
# twice the processor's time. Two things differ, the convolution and the ReLU, so the gain need not be the
# convolution's alone.

# %% tags=["claims"]
assert all(len(found.final) == 10 for found in runs.values()), "ten seeds"
assert (last["encoder"] > last["row"]).sum() == 8, "eight of the ten"
assert gain.low > 0, "the interval lies above zero"
seconds = {name: found.cpu_seconds.mean() for name, found in runs.items()}
assert 2 < seconds["encoder"] / seconds["row"] < 3, "more than twice the time"

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
# side of $n_X$ cells a window of $n_W$ cells, its **kernel size**, has
#
# $$
# n_Y = \left\lfloor \frac{n_X - n_W}{n_S} \right\rfloor + 1
# $$ (convolution-size)
#
# places. A **padding** puts a rim of zeros around the picture, which makes $n_X$ larger by twice its width.
#
# A layer that reads all cells could compute the same maps. But it would have to learn the same filter for each
# place anew, from the episodes in which a ball was there. A filter learns from all places at once, and it has
# fewer weights: the 16 filters have 592, a layer from all cells to their maps has 410,624.
#
# Convolutions can stand one after another. The second one then reads the maps of the first as its
# channels, and sees a larger part of the picture. In the end a linear layer reads all maps and
# turns them into **features**. It has weights for each place again, and it has to: a paddle must know not only that a
# ball falls, but where it will arrive.

# %% tags=["claims"]
filters_alone = sum(x.numel() for x in torch.nn.Conv2d(4, 16, 3).parameters())
assert filters_alone == 592, "one filter at every place"
all_cells = sum(x.numel() for x in torch.nn.Linear(400, 16 * 8 * 8).parameters())
assert all_cells == 410_624, "a weight for each cell and each number of a map"

# %% [markdown]
# ## The usual layers
#
# The network of the MinAtar paper has one convolution. That of the *Nature* paper on DQN {cite:p}`mnih2015` has
# three, of which the first looks with 8 by 8 cells at every fourth place: in a picture of 84 by 84 one cell alone says
# little.


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
# An agent gets what the environment shows as one **flat row** for each step. A row of 400 numbers does not say that it
# is a picture. But its *space* does, so an encoder is made from the space and gives the row its shape back.


# %% tags=["export"]
def front(obs: Tensor, shape: tuple[int, ...]) -> torch.Size:
    """Return the leading dimensions of observations that have a shape or are flat."""
    shape = shape or (1,)  # every shape ends with none, and one number is a row of one
    row = (math.prod(shape),)
    for ending in (shape, row):
        place = obs.ndim - len(ending)
        if place >= 0 and obs.shape[place:] == ending:
            return obs.shape[:place]
    raise ValueError(f"obs must end in {shape} or {row}, got {tuple(obs.shape)}")


# %% [markdown]
# ## An encoder of pictures
#
# All pictures become planes with the channels first, as PyTorch wants them. Channels are few, so they are the
# *shorter* one of first and last axis. In a stack of frames ([below](#why-one-frame-is-not-enough)) the channels of all
# become one long list.
#
# Cameras and screens hand out **bytes**, whole numbers from 0 to 255. They are divided by 255 here, once, and
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


# %% [markdown]
# ## Categories, and several parts
#
# What is a row already needs no layers of its own. A category, one of several things without an order, comes as a row
# with a single 1. Multiplied with the next layer's weights it picks out one column of them, so this is an
# **embedding**: a table with a row of learned numbers for each category.

# %% tags=["claims"]
weights, category = torch.randn(8, 5), torch.tensor([3, 0, 3])
through_layer = torch.nn.functional.one_hot(category, 5).float() @ weights.T
looked_up = torch.nn.functional.embedding(category, weights.T)
assert torch.equal(through_layer, looked_up), "an embedding"

# %% [markdown]
# A robot may see a picture, the angles of its joints, and which of three tasks it has. Its flat row is cut, each part
# goes through an encoder of its own, and the features are put side by side.
#
# One function, `make_encoder` of {doc}`nets/encoders`, chooses by the space alone. If you know better, hand
# over **an encoder of your own** as `encoder=`, to `train` or to `make_policy`: any module that has its number of
# features as `output_size`.

# %% [markdown]
# ## Why one frame is not enough
#
# Where does the ball go? Here are two moments of Breakout, without their trails.

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
# **Notice** that the upper two pictures are equal, and no network can tell in which the paddle has to hurry. Only with
# the frame before, below, does one see that the first ball falls and the second one rises.
#
# So agents that see a screen get the last few frames at once, a **stack**: `train("PPO", env,
# wrappers=["FrameStackObservation(4)"])`. MinAtar's trail plane *is* the ball's place in the frame before.

# %% tags=["claims"]
kept = [planes.index(name) for name in ("paddle", "ball", "brick")]
falling, rising = (frames[name][..., kept] for name in ("falling", "rising"))
assert torch.equal(falling, rising), "the upper two are equal"
for name in ("falling", "rising"):
    trail = frames[name][..., planes.index("trail")]
    before = frames[f"before {name}"][..., planes.index("ball")]
    assert torch.equal(trail, before), "the trail is the ball of the frame before"

# %% [markdown]
# ## One encoder or two
#
# Should actor and critic share an encoder? That saves almost half of the weights. But **who may move it**?

# %% tags=["hide-input"]
picture = Picture(
    "Who moves a shared encoder",
    "Left, PPO and its relatives: encoder below actor and critic, gradients of both losses flow back into "
    "the encoder. Right, DDPG, TD3 and SAC: only the gradient of the critic's loss does.",
)
for k, (title, tone, words) in enumerate(
    (
        ("PPO, A2C, IMPALA", "accent", "both losses"),
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
# - In **PPO, A2C and IMPALA** there is one loss, the sum of the policy's and the value's, and both move a
#   shared encoder. {doc}`ppg` has another answer.
# - In **DDPG, TD3 and SAC** the actor climbs the critic. If the actor's gradient could move
#   the encoder, it could make the critic promise more by changing *what the critic sees*, and
#   nothing in the world would have got better. So the critics' loss alone moves the encoder
#   {cite:p}`yarats2021`, and the actor gets its features detached.
#
# `share_encoder=True` shares it. What that does to the return is not measured here; on CartPole, from
# numbers, it cost PPO a lot while training ({doc}`ppo_evidence`).

# %% tags=["claims"]
encoder, heads = PictureEncoder(minatar), torch.nn.Linear(128, 3 + 1)
shared, head = (sum(x.numel() for x in y.parameters()) for y in (encoder, heads))
assert 0.5 < (shared + head) / (2 * shared + head) < 0.51, "almost half"

# %% [markdown]
# ## Traps
#
# ### Trap: reshaped is not turned
#
# The quickest way from channels last to channels first seems to be `reshape`. The shape is right, but the row is only
# cut anew, and cells that were neighbours end up far from each other.

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
# The *space* decides what is scaled. If a wrapper has made floats of the bytes and left them between 0 and 255, the
# space says `float32`, nothing is scaled, and the features are 255 times as large.

# %%
camera = spaces.Box(0, 255, (20, 20, 3), np.uint8)
disguised = spaces.Box(0, 255, (20, 20, 3), np.float32)
right, wrong = PictureEncoder(camera), PictureEncoder(disguised)
wrong.load_state_dict(right.state_dict())
shot = torch.randint(256, (20, 20, 3), dtype=torch.uint8)
with torch.no_grad():
    ratio = (wrong(shot.float()).mean() / right(shot).mean()).item()
print(f"features of the same picture, {ratio:.0f} times as large")

# %% tags=["claims"]
assert abs(ratio - 255) < 0.1

# %% [markdown]
# ## One decision to take home
#
# **Start from what `make_encoder` chooses, with two encoders.** Look at your pictures first: are they bytes or numbers
# near 1, does a stack show what moves, and are they as small as the task allows? Share an encoder when time or memory
# runs out.
#
# ## Summary
#
# - A filter is laid over every place of a picture. It learns once what may appear anywhere.
# - The encoder knows the space, and gives flat rows their shape back.
# - Bytes are divided by 255, once. Categories are rows with a single 1, which is an embedding already.
# - One frame does not show what moves. A stack of frames does.
# - A shared encoder is moved by both losses in PPO, A2C and IMPALA, and by the critics' alone in DDPG, TD3 and SAC.
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
# ### Exercise 2: experiment
#
# Which weights make a filter of three by three on the ball's plane and the trail's that says 1
# where the ball *rises* to the right, and 0 everywhere else? Return two tables of three by three,
# for the ball and for the trail. The bias is −1, as in the dial.


# %%
def answer():
    ball, trail = torch.zeros(3, 3), torch.zeros(3, 3)
    return ball, trail


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade


def says(ball, trail):
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
# ### Exercise 3: from nothing
#
# Write a convolution, {eq}`convolution`, without PyTorch's: from planes `x` of shape (channels, rows, columns), weights
# `w` of shape (filters, channels, kernel, kernel), biases `b` and a stride to the maps. Loops are fine.


# %%
def answer(x, w, b, stride):
    return ...


# %% tags=["hide-input"]
def maps_of(x, w, b, stride):
    return torch.nn.functional.conv2d(x[None], w, b, stride)[0].round(decimals=4)


def rounded(*case):
    maps = answer(*case)
    return maps if maps is ... else maps.round(decimals=4)


torch.manual_seed(1)
cases = [
    (torch.randn(c, n, n + 1), torch.randn(f, c, k, k), torch.randn(f), stride)
    for c, n, f, k, stride in ((1, 4, 1, 2, 1), (3, 7, 2, 3, 1), (2, 9, 4, 3, 2))
]
grade(rounded, maps_of, *cases)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(x, w, b, stride):
    kernel = w.shape[-1]
    rows, columns = ((side - kernel) // stride + 1 for side in x.shape[1:])
    maps = torch.zeros(len(w), rows, columns)
    for i in range(rows):
        for j in range(columns):
            top, left = stride * i, stride * j
            window = x[:, top : top + kernel, left : left + kernel]
            # One window, all filters: products are added up over planes and cells.
            maps[:, i, j] = b + (w * window).sum((1, 2, 3))
    return maps


grade(rounded, maps_of, *cases)

# %% [markdown]
# ## References
#
# Convolutions that learn are from {cite:t}`lecun1989`.
