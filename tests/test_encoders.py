"""Encoders: a slow convolution, shapes of all kinds, parts side by side, refusals."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import encoders_learning, masks_learning, minatar_learning
from benchmarks.learning import LEARNING, defaults_of, settings_in
from benchmarks.store import read_table
from literate_rl.ground.networks import ActionCritic, Critics
from literate_rl.nets.encoders import (
    ConvolutionalEncodingNetwork,
    PartsEncoder,
    RowEncoder,
    ShapedEncoder,
    entrance,
    has_pictures,
    make_encoder,
    off_policy_entrances,
)
from literate_rl.nets.pictures import NATURE_LAYERS, PictureEncoder, side_after
from literate_rl.runs.runs import todays_names

MINATAR = spaces.Box(0.0, 1.0, (10, 10, 4), bool)
ATARI = spaces.Box(0, 255, (4, 84, 84), np.uint8)
CAMERA = spaces.Box(0, 255, (7, 6, 3), np.uint8)
FILM = spaces.Box(0, 255, (2, 4, 5), np.uint8)
JOINTS = spaces.Box(-np.inf, np.inf, (3,))
NESTED = spaces.Dict(
    camera=CAMERA,
    body=spaces.Tuple((JOINTS, spaces.Discrete(4, start=1), spaces.Box(0, 1, (0,)))),
    keys=spaces.MultiBinary((2, 2)),
    doors=spaces.MultiDiscrete([2, 3]),
)


def box(*shape: int, dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(0, 255, shape, dtype)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


# --- Against a slow reference ---------------------------------------------------------


def slow_convolution(
    planes: Tensor, layer: nn.Conv2d, stride: int, padding: int
) -> Tensor:
    """Compute a convolution of (C, H, W), window by window."""
    wide, side = pad(planes, (padding,) * 4), layer.weight.shape[-1]
    rows, columns = (range(0, n - side + 1, stride) for n in wide.shape[1:])
    windows = [[wide[:, i : i + side, j : j + side] for j in columns] for i in rows]
    sums = [[(layer.weight * x).sum((1, 2, 3)) for x in row] for row in windows]
    maps = torch.stack([torch.stack(row, -1) for row in sums], -2)
    return maps + layer.bias[:, None, None]


@pytest.mark.equation("convolution")
@pytest.mark.equation("convolution-size")
@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (2, 0), (3, 1), (1, 2)])
@pytest.mark.parametrize("last", [False, True])
def test_features_are_sums_over_windows(stride, padding, last):
    shape = (6, 5, 2) if last else (2, 6, 5)
    layers = (3, 2, stride, padding), (2, 2, 1)
    encoder = PictureEncoder(box(*shape, dtype=np.uint8), 4, layers).double()
    first, second = encoder.convolutions[0], encoder.convolutions[2]
    for layer in (first, second, encoder.features):
        nn.init.normal_(layer.bias)
    picture = torch.randint(256, shape, dtype=torch.uint8)
    # Bytes become numbers from 0 to 1, and the channels come first.
    planes = picture.double() / 255
    planes = planes.permute(2, 0, 1) if last else planes
    maps = slow_convolution(planes, first, stride, padding).relu()
    assert [side_after(n, layers[:1]) for n in (6, 5)] == [*maps.shape[1:]]
    maps = slow_convolution(maps, second, 1, 0).relu()
    expected = encoder.features(maps.flatten()).relu()
    torch.testing.assert_close(encoder(picture.flatten()), expected)


# --- Shapes ---------------------------------------------------------------------------


def test_a_stack_of_frames_has_the_features_of_their_channels():
    first, second = PictureEncoder(box(6, 7, 8), 7), PictureEncoder(box(3, 7, 8, 2), 7)
    second.load_state_dict(first.state_dict())
    obs = torch.rand(3, 6, 7, 8)
    stacked = obs.unflatten(1, (3, 2)).movedim(2, -1)
    torch.testing.assert_close(second(stacked), first(obs))


def test_many_pictures_are_read_as_one_by_one():
    encoder = PictureEncoder(CAMERA, 5, [(2, 3, 1)])
    obs = torch.randint(256, (257, 7, 6, 3), dtype=torch.uint8)
    alone = torch.stack([encoder(picture) for picture in obs])
    for count in (0, 256, 257):
        torch.testing.assert_close(encoder(obs[:count]), alone[:count])


# --- The usual layers -----------------------------------------------------------------

WEIGHTS = {
    "MinAtar": (MINATAR, {}, [(16, 4, 3, 3), (128, 16 * 8 * 8)]),
    "Nature": (
        ATARI,
        {},
        [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 3136)],
    ),
    "too small for it": (box(3, 35, 50), {}, [(16, 3, 3, 3), (128, 16 * 33 * 48)]),
    "a wish": (
        ATARI,
        {"hidden": 32, "convolutions": ((4, 8, 8), (2, 3, 1, 1))},
        [(4, 4, 8, 8), (2, 4, 3, 3), (32, 2 * 10 * 10)],
    ),
}


@pytest.mark.parametrize(("space", "wish", "sizes"), WEIGHTS.values(), ids=WEIGHTS)
def test_the_size_decides_the_layers_and_a_wish_comes_first(space, wish, sizes):
    encoder = make_encoder(space, **wish)
    found = [tuple(x.shape) for x in encoder.parameters() if x.ndim > 1]
    assert found[: len(sizes)] == sizes
    assert encoder(torch.zeros(2, *space.shape)).shape == (2, encoder.output_size)


def test_weights_start_orthogonal_and_biases_at_zero():
    encoder = PictureEncoder(MINATAR)
    for layer in (encoder.convolutions[0], encoder.features):
        rows = layer.weight.detach().flatten(1)
        torch.testing.assert_close(
            rows @ rows.T, 2 * torch.eye(len(rows)), atol=1e-5, rtol=0
        )
        assert not layer.bias.any()


@pytest.mark.parametrize(
    ("space", "kind", "features"),
    [
        # Rows and columns of numbers, such as stacked vectors, are no picture.
        (box(4, 5), RowEncoder, 20),
        (box(4, 5, dtype=np.uint8), PictureEncoder, 128),
        # Three cells by three are the smallest picture.
        (box(1, 3, 3), PictureEncoder, 128),
        (box(1, 3, 2), RowEncoder, 6),
        (NESTED, PartsEncoder, 128 + 3 + 4 + 4 + 5),
    ],
    ids=str,
)
def test_the_space_decides(space, kind, features):
    encoder = make_encoder(space)
    assert type(encoder) is kind
    assert encoder.output_size == features
    assert has_pictures(space) == (kind is not RowEncoder)
    rows = torch.randint(2, (2, 3, spaces.flatdim(space)))
    found = encoder(rows)
    assert (found.shape, found.dtype) == ((2, 3, features), torch.float32)
    if isinstance(space, spaces.Box):
        shaped = torch.as_tensor(rows.numpy().astype(space.dtype))
        assert torch.equal(found, encoder(shaped.reshape(2, 3, *space.shape)))


# --- Parts ----------------------------------------------------------------------------


def test_parts_have_the_features_of_their_own_encoders():
    encoder = PartsEncoder(NESTED, hidden=9)
    NESTED.seed(0)
    samples = [NESTED.sample() for _ in range(4)]
    rows = np.stack([spaces.flatten(NESTED, sample) for sample in samples])

    def part(read):
        return torch.as_tensor(np.stack([read(sample) for sample in samples]))

    camera = encoder.encoders[0]
    expected = [
        camera(part(lambda s: s["camera"])),
        part(lambda s: s["body"][0]),
        one_hot(part(lambda s: s["body"][1] - 1), 4),
        part(lambda s: s["keys"].ravel()),
        part(lambda s: spaces.flatten(NESTED["doors"], s["doors"])),
    ]
    features = encoder(torch.as_tensor(rows))
    torch.testing.assert_close(features, torch.cat(expected, -1))
    assert camera.output_size == 9


# --- Where observations go in ---------------------------------------------------------


class Totals(nn.Module):
    """An encoder of one's own: a sum for each channel of a picture."""

    def __init__(self, space: spaces.Box = FILM, output_size: Any = 2) -> None:
        super().__init__()
        self.output_size = output_size
        self.gain = nn.Parameter(torch.tensor(2.0))

    def forward(self, obs: Tensor) -> Any:
        return self.gain * obs.sum((-2, -1))


@pytest.mark.parametrize("own", [Totals(), Totals], ids=["module", "function"])
def test_an_encoder_of_ones_own_gets_the_shape_back(own):
    encoder = ShapedEncoder(FILM, own)
    picture = torch.randint(256, (3, 6, 2, 4, 5), dtype=torch.uint8)
    wanted = 2 * picture.float().sum((-2, -1))
    assert torch.equal(encoder(picture), wanted)
    assert torch.equal(encoder(picture.flatten(-3)), wanted)
    assert encoder.encoder is not own, "each policy has its own"


@pytest.mark.parametrize("share", [False, True])
def test_actor_and_critics_have_an_entrance_each_or_one(share):
    actor, *theirs = off_policy_entrances(CAMERA, 3, share)
    critics = Critics(ActionCritic(size, 2, 8, front) for front, size in theirs)
    obs, action = torch.rand(4, spaces.flatdim(CAMERA)), torch.rand(4, 2)
    values = critics(obs, action)
    for critic, value in zip(critics, values, strict=True):
        again = critic.net(torch.cat([critic.front(obs), action], -1)).squeeze(-1)
        assert torch.equal(value, again)
    assert len({id(critic.front[0]) for critic in critics}) == (1 if share else 3)
    # What the actor sees is the same, and sends no gradient to a shared encoder.
    seen = nn.Sequential(*actor[0])(obs)
    assert torch.equal(seen, critics[0].front(obs)) == share
    assert seen.requires_grad != share


@pytest.mark.parametrize(("size", "kernel"), [(5, 3), (16, 3), (17, 8), (64, 8)])
def test_the_encoder_for_alf_reads_pictures_of_any_size(size, kernel):
    encoder = ConvolutionalEncodingNetwork(box(size, size, 2, dtype=np.uint8), hidden=8)
    assert encoder.convolutions[0].weight.shape == (16, 2, kernel, kernel)
    features, state = encoder(torch.ones(3, 4, size, size, 2), "a state")
    assert (features.shape, state) == ((3, 4, 8), "a state")
    assert features.abs().max() <= 1
    assert features.min() < 0, "the last layer is no ReLU"


# --- Refusals -------------------------------------------------------------------------

TEXT = spaces.Dict(view=CAMERA, mission=spaces.Tuple((JOINTS, spaces.Text(9))))
REFUSED = [
    (lambda: make_encoder(NESTED)(torch.zeros(2, 141)), "end in (142,)"),
    (lambda: make_encoder(TEXT), "observation_space['mission'][1] must be a Box"),
    (lambda: PictureEncoder(CAMERA, 5, NATURE_LAYERS.convolutions), "than 7 x 6"),
    (lambda: ShapedEncoder(FILM, Totals(output_size=0)), "number of features"),
    (lambda: entrance(FILM, ((4, 3, 1),), Totals), "None with an encoder of your own"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_what_does_not_fit_is_named(call, words):
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        call()


# --- What the chapter shows -----------------------------------------------------------


EXPERIMENTS = encoders_learning.EXPERIMENTS | minatar_learning.EXPERIMENTS
EXPERIMENTS |= masks_learning.EXPERIMENTS


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_stored_runs_were_made_with_the_settings_of_today(name):
    experiment = EXPERIMENTS[name]
    config = asdict(experiment.config)
    # The seeds are told apart, and some runs are older than some settings.
    del config["seed"]
    _, origin = read_table(LEARNING / f"{name}.csv")
    then = todays_names(settings_in(origin), config)
    found = {**defaults_of(experiment.config), **then}
    assert found == {name: str(value) for name, value in config.items()}
    assert origin["seeds"] == f"1 to {experiment.seeds}"
