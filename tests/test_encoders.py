"""Encoders: a slow convolution, shapes of all kinds, parts side by side, refusals."""

from __future__ import annotations

import copy
import math
import pickle
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import one_hot

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import encoders_learning, minatar_frames, minatar_learning
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
from literate_rl.nets.pictures import (
    MINATAR_LAYERS,
    NATURE_LAYERS,
    PictureEncoder,
    side_after,
)
from literate_rl.runs.runs import todays_names

MINATAR = spaces.Box(0.0, 1.0, (10, 10, 4), bool)
ATARI = spaces.Box(0, 255, (4, 84, 84), np.uint8)
CAMERA = spaces.Box(0, 255, (7, 6, 3), np.uint8)
JOINTS = spaces.Box(-np.inf, np.inf, (3,))
NESTED = spaces.Dict(
    camera=CAMERA,
    body=spaces.Tuple((JOINTS, spaces.Discrete(4, start=1), spaces.Box(0, 1, (0,)))),
    keys=spaces.MultiBinary((2, 2)),
    doors=spaces.MultiDiscrete([2, 3]),
)


# --- Against a slow reference ---------------------------------------------------------


def slow_convolution(
    planes: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int
) -> Tensor:
    """Compute a convolution of (C, H, W) in float64, number by number."""
    filters, channels, kernel, _ = weight.shape
    depth, height, width = planes.shape
    wide = torch.zeros(depth, height + 2 * padding, width + 2 * padding).double()
    wide[:, padding : padding + height, padding : padding + width] = planes
    rows = (height + 2 * padding - kernel) // stride + 1
    columns = (width + 2 * padding - kernel) // stride + 1
    result = torch.zeros(filters, rows, columns).double()
    for f in range(filters):
        for i in range(rows):
            for j in range(columns):
                total = bias[f].item()
                for c in range(channels):
                    for a in range(kernel):
                        for b in range(kernel):
                            seen = wide[c, stride * i + a, stride * j + b].item()
                            total += weight[f, c, a, b].item() * seen
                result[f, i, j] = total
    return result


@pytest.mark.equation("convolution")
@pytest.mark.equation("convolution-size")
@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (2, 0), (3, 1), (1, 2)])
@pytest.mark.parametrize("last", [False, True])
def test_the_first_layer_is_the_sum_over_its_window(stride, padding, last) -> None:
    torch.manual_seed(0)
    shape = (6, 5, 2) if last else (2, 6, 5)
    space = spaces.Box(0, 255, shape, np.uint8)
    encoder = PictureEncoder(space, 4, ((3, 2, stride, padding),)).double()
    first = encoder.convolutions[0]
    torch.nn.init.normal_(first.bias)
    seen: list[Tensor] = []
    first.register_forward_hook(lambda module, inputs, output: seen.append(output))
    picture = torch.randint(256, shape, dtype=torch.uint8)
    encoder(picture.flatten())

    # Bytes become numbers from 0 to 1, and the channels come first.
    planes = picture.double() / 255
    planes = planes.permute(2, 0, 1) if last else planes
    weight, bias = first.weight.detach(), first.bias.detach()
    expected = slow_convolution(planes, weight, bias, stride, padding)
    torch.testing.assert_close(seen[0][0].detach(), expected)
    assert [side_after(n, ((3, 2, stride, padding),)) for n in (6, 5)] == [
        *expected.shape[1:]
    ]


def test_two_layers_and_the_features_follow() -> None:
    torch.manual_seed(0)
    encoder = PictureEncoder(spaces.Box(0, 1, (1, 6, 6)), 5, ((2, 3, 1), (3, 2, 2)))
    first, second = encoder.convolutions[0], encoder.convolutions[2]
    planes = torch.rand(1, 6, 6).double()
    maps = slow_convolution(planes, first.weight, first.bias, 1, 0).relu()
    maps = slow_convolution(maps, second.weight, second.bias, 2, 0).relu()
    linear = encoder.features
    expected = (linear.weight.double() @ maps.flatten() + linear.bias).relu()
    torch.testing.assert_close(encoder(planes.float()).double(), expected)


# --- Shapes ---------------------------------------------------------------------------


@st.composite
def pictures(draw) -> spaces.Box:
    """Draw a space of pictures: with channels, without, or in a stack."""
    height, width = draw(st.integers(3, 6)), draw(st.integers(3, 6))
    channels = draw(st.integers(1, 2))
    frame = draw(
        st.sampled_from(
            [(height, width), (channels, height, width), (height, width, channels)]
        )
    )
    stack = (
        (draw(st.integers(1, 3)),) if len(frame) == 3 and draw(st.booleans()) else ()
    )
    dtype = draw(st.sampled_from([np.uint8, np.float32, np.float64, np.int64]))
    return spaces.Box(0, 9, stack + frame, dtype)


def numbers(space: spaces.Box, *lead: int) -> Tensor:
    """Return observations of a space."""
    drawn = 9 * np.random.default_rng(0).random((*lead, *space.shape))
    return torch.as_tensor(drawn.astype(space.dtype))


@given(pictures(), st.lists(st.integers(0, 3), max_size=3))
@settings(settings.get_profile("few"))
def test_flat_or_shaped_with_any_leading_dimensions(space, lead) -> None:
    torch.manual_seed(0)
    encoder = PictureEncoder(space, 5)
    obs = numbers(space, *lead)
    features = encoder(obs)
    assert features.shape == (*lead, 5)
    assert features.dtype == torch.float32
    assert torch.equal(features, encoder(obs.reshape(*lead, math.prod(space.shape))))
    # One picture alone, bit for bit up to what a batch changes in the order of sums.
    if math.prod(lead):
        alone = encoder(obs.reshape(-1, *space.shape)[0])
        torch.testing.assert_close(alone, features.reshape(-1, 5)[0])


@pytest.mark.parametrize("stack", [(), (2,)])
def test_channels_first_and_last_give_the_same_features(stack) -> None:
    torch.manual_seed(0)
    first = PictureEncoder(spaces.Box(0, 1, (*stack, 2, 6, 5)), 7)
    last = PictureEncoder(spaces.Box(0, 1, (*stack, 6, 5, 2)), 7)
    last.load_state_dict(first.state_dict())
    obs = torch.rand(3, *stack, 2, 6, 5)
    torch.testing.assert_close(last(obs.movedim(-3, -1)), first(obs))


def test_of_two_equal_sides_the_channels_are_the_first() -> None:
    torch.manual_seed(0)
    encoder = PictureEncoder(spaces.Box(0, 1, (4, 6, 4)), 3)
    assert encoder.convolutions[0].weight.shape == (16, 4, 3, 3)
    assert encoder.planes == (4, 6, 4)
    assert not encoder.channels_last


def test_a_stack_is_a_picture_with_the_channels_of_all_frames() -> None:
    torch.manual_seed(0)
    stack = PictureEncoder(spaces.Box(0, 1, (3, 7, 8, 2)), 7)
    frames = torch.rand(4, 3, 7, 8, 2)
    one = PictureEncoder(spaces.Box(0, 1, (6, 7, 8)), 7)
    one.load_state_dict(stack.state_dict())
    expected = one(torch.cat([*frames.movedim(-1, -3).unbind(1)], 1))
    torch.testing.assert_close(stack(frames), expected)


def test_a_picture_without_channels_has_one() -> None:
    torch.manual_seed(0)
    grey = PictureEncoder(spaces.Box(0, 255, (6, 5), np.uint8), 7)
    one = PictureEncoder(spaces.Box(0, 255, (1, 6, 5), np.uint8), 7)
    one.load_state_dict(grey.state_dict())
    obs = torch.randint(256, (3, 6, 5), dtype=torch.uint8)
    assert torch.equal(grey(obs), one(obs.unsqueeze(1)))


def test_bytes_are_scaled_by_their_space_and_nothing_else_is() -> None:
    torch.manual_seed(0)
    of_bytes = PictureEncoder(CAMERA, 5)
    of_floats = PictureEncoder(spaces.Box(0, 1, CAMERA.shape), 5)
    of_ints = PictureEncoder(spaces.Box(0, 255, CAMERA.shape, np.int64), 5)
    for other in (of_floats, of_ints):
        other.load_state_dict(of_bytes.state_dict())
    obs = torch.randint(256, (2, *CAMERA.shape), dtype=torch.uint8)
    torch.testing.assert_close(of_floats(obs / 255), of_bytes(obs))
    # In a row of parts, bytes arrive as floats.
    assert torch.equal(of_bytes(obs.float()), of_bytes(obs))
    assert torch.equal(of_ints(obs.long()), of_floats(obs.float()))


def test_many_pictures_are_read_as_one_by_one() -> None:
    encoder = PictureEncoder(CAMERA, 5, [(2, 3, 1)])
    obs = torch.randint(256, (513, 7, 6, 3), dtype=torch.uint8)
    for count in (0, 1, 256, 257, 513):
        alone = [encoder(picture) for picture in obs[:count]]
        together = encoder(obs[:count])
        assert together.shape == (count, 5)
        if alone:
            torch.testing.assert_close(together, torch.stack(alone))


def test_wrong_shapes_are_refused() -> None:
    encoder = PictureEncoder(CAMERA, 5)
    for wrong in ((2, 7, 6, 2), (125,), (3, 7, 6), ()):
        with pytest.raises(ValueError, match=r"obs must have shape \(\*, 7, 6, 3\)"):
            encoder(torch.zeros(wrong))
    with pytest.raises(ValueError, match=r"or \(\*, 3\), got \(2, 4\)"):
        RowEncoder(JOINTS)(torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"obs must have shape \(\*, 142\)"):
        make_encoder(NESTED)(torch.zeros(2, 141))


# --- The usual layers -----------------------------------------------------------------


def sizes_of(encoder: torch.nn.Module) -> list[tuple[int, ...]]:
    """Return the shapes of a network's weights, without its biases."""
    return [tuple(x.shape) for x in encoder.parameters() if x.ndim > 1]


def test_small_planes_get_the_network_of_minatar() -> None:
    encoder = make_encoder(MINATAR)
    assert sizes_of(encoder) == [(16, 4, 3, 3), (128, 16 * 8 * 8)]
    assert encoder.output_size == MINATAR_LAYERS.features == 128


def test_large_pictures_get_that_of_the_nature_paper() -> None:
    encoder = make_encoder(ATARI)
    convolutions = [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)]
    assert sizes_of(encoder) == [*convolutions, (512, 64 * 7 * 7)]
    assert encoder.output_size == NATURE_LAYERS.features == 512


@pytest.mark.parametrize(("side", "filters"), [(35, 16), (36, 32)])
def test_the_larger_network_is_taken_where_it_fits(side: int, filters: int) -> None:
    for shape in ((3, side, 50), (50, side, 3)):
        encoder = PictureEncoder(spaces.Box(0, 1, shape), 4)
        assert encoder.convolutions[0].weight.shape[0] == filters
        assert encoder(torch.zeros(2, *shape)).shape == (2, 4)


@pytest.mark.equation("convolution-size")
@given(
    st.integers(1, 12),
    st.lists(
        st.tuples(st.just(1), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2)),
        min_size=1,
        max_size=3,
    ),
)
def test_the_size_of_maps_is_known_before_they_are_computed(side, convolutions) -> None:
    maps = torch.zeros(1, 1, side, side)
    try:
        for _, kernel, stride, padding in convolutions:
            layer = torch.nn.Conv2d(1, 1, kernel, stride, padding)
            maps = layer(maps)
        expected = maps.shape[-1]
    except RuntimeError:  # the kernel is larger than what is left
        expected = 0
    assert side_after(side, convolutions) == expected


def test_no_convolution_at_all_is_a_linear_layer() -> None:
    assert sizes_of(make_encoder(CAMERA, 5, ())) == [(5, 7 * 6 * 3)]


def test_weights_start_orthogonal_and_biases_at_zero() -> None:
    encoder = PictureEncoder(MINATAR)
    for layer in (encoder.convolutions[0], encoder.features):
        rows = layer.weight.detach().flatten(1).double()
        expected = 2 * torch.eye(len(rows)).double()
        torch.testing.assert_close(rows @ rows.T, expected, atol=1e-5, rtol=0)
        assert not layer.bias.any()


def test_a_wish_comes_first() -> None:
    encoder = make_encoder(ATARI, hidden=32, convolutions=((4, 8, 8), (2, 3, 1, 1)))
    assert sizes_of(encoder) == [(4, 4, 8, 8), (2, 4, 3, 3), (32, 2 * 10 * 10)]
    assert encoder.output_size == 32


# --- Which encoder fits ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "kind", "features"),
    [
        (JOINTS, RowEncoder, 3),
        (spaces.Box(0, 1, (0,)), RowEncoder, 0),
        (spaces.Box(0, 255, (128,), np.uint8), RowEncoder, 128),
        (spaces.Discrete(5, start=-2), RowEncoder, 5),
        (spaces.MultiDiscrete([2, 3]), RowEncoder, 5),
        (spaces.MultiBinary(4), RowEncoder, 4),
        (spaces.MultiBinary((4, 5, 6)), RowEncoder, 120),
        # Rows and columns of numbers, such as stacked vectors, are no picture.
        (spaces.Box(-1, 1, (4, 5)), RowEncoder, 20),
        (spaces.Box(0, 255, (4, 5), np.uint8), PictureEncoder, 128),
        (spaces.Box(0, 255, (2, 50), np.uint8), RowEncoder, 100),
        (spaces.Box(0, 1, (2, 2, 2)), RowEncoder, 8),
        (spaces.Box(0, 1, (2, 3, 0)), RowEncoder, 0),
        (spaces.Box(0, 1, (2, 2, 5, 5, 3)), RowEncoder, 300),
        (MINATAR, PictureEncoder, 128),
        (ATARI, PictureEncoder, 512),
        (NESTED, PartsEncoder, 128 + 3 + 4 + 4 + 5),
        (spaces.Tuple((JOINTS, JOINTS)), PartsEncoder, 6),
    ],
    ids=str,
)
def test_the_space_decides(space, kind, features) -> None:
    encoder = make_encoder(space)
    assert type(encoder) is kind
    assert encoder.output_size == features
    rows = torch.zeros(4, 5, spaces.flatdim(space))
    assert encoder(rows).shape == (4, 5, features)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.float64])
def test_a_row_is_a_row_of_floats(dtype) -> None:
    row = torch.tensor([[1, 0, 1], [0, 0, 1]], dtype=dtype)
    kept = RowEncoder(JOINTS)(row)
    assert kept.dtype == (dtype if dtype.is_floating_point else torch.float32)
    assert kept.tolist() == row.tolist()


def test_a_box_of_rows_and_columns_may_come_as_it_is() -> None:
    encoder = make_encoder(spaces.Box(-1, 1, (4, 5)))
    table = torch.rand(2, 4, 5)
    assert torch.equal(encoder(table), table.flatten(1))


# --- Parts ----------------------------------------------------------------------------


def stacked(arrays: Iterable[Any]) -> Tensor:
    """Return arrays one below the other."""
    return torch.as_tensor(np.stack([*arrays]))


def test_parts_have_the_features_of_their_own_encoders() -> None:
    torch.manual_seed(0)
    encoder = PartsEncoder(NESTED, hidden=9)
    NESTED.seed(0)
    samples = [NESTED.sample() for _ in range(4)]
    rows = np.stack([spaces.flatten(NESTED, sample) for sample in samples])
    features = encoder(torch.as_tensor(rows))
    camera, body, number, nothing, keys, doors = encoder.encoders
    expected = [
        camera(stacked(s["camera"] for s in samples)),
        body(stacked(s["body"][0] for s in samples)),
        one_hot(stacked(s["body"][1] - 1 for s in samples), 4),
        stacked(s["keys"].ravel() for s in samples),
        stacked(spaces.flatten(NESTED["doors"], s["doors"]) for s in samples),
    ]
    torch.testing.assert_close(features, torch.cat(expected, -1))
    assert isinstance(camera, PictureEncoder)
    assert camera.output_size == 9
    assert number.output_size == 4
    assert nothing.output_size == 0
    assert [doors.output_size, keys.output_size] == [5, 4]


@given(st.lists(st.sampled_from([JOINTS, CAMERA, spaces.Discrete(3)]), min_size=1))
@settings(settings.get_profile("few"))
def test_any_parts_keep_their_order(parts) -> None:
    torch.manual_seed(0)
    nested = spaces.Tuple((parts[0], spaces.Tuple(parts[1:]))) if parts[1:] else parts
    encoder = make_encoder(spaces.Tuple(nested), hidden=2)
    rows = torch.rand(3, sum(map(spaces.flatdim, parts)))
    slices = rows.split([spaces.flatdim(part) for part in parts], -1)
    expected = [part(x) for part, x in zip(encoder.encoders, slices, strict=True)]
    assert torch.equal(encoder(rows), torch.cat(expected, -1))


def test_what_cannot_be_read_is_named() -> None:
    text = spaces.Dict(view=CAMERA, mission=spaces.Tuple((JOINTS, spaces.Text(9))))
    message = r"observation_space\['mission'\]\[1\] must be a Box.*got Text.*leave it"
    with pytest.raises(ValueError, match=message):
        make_encoder(text)
    for space in (
        spaces.Text(9),
        spaces.Sequence(JOINTS),
        spaces.Graph(JOINTS, None),
        spaces.OneOf((JOINTS, JOINTS)),
    ):
        with pytest.raises(
            ValueError, match=r"observation_space must be a Box.*wrapper"
        ):
            make_encoder(space)
    with pytest.raises(ValueError, match="observation_space must have a part"):
        make_encoder(spaces.Dict({}))


def test_a_picture_too_small_for_its_convolutions_is_refused() -> None:
    with pytest.raises(ValueError, match="larger than 7 x 6 for convolutions"):
        PictureEncoder(CAMERA, convolutions=NATURE_LAYERS.convolutions)
    with pytest.raises(ValueError, match="larger than 2 x 2"):
        make_encoder(spaces.Box(0, 1, (1, 2, 2)), convolutions=((4, 3, 1),))
    for wrong in ((4, 3), (4, 3, 1, -1)):
        with pytest.raises(ValueError, match=r"values to unpack|must be at least 0"):
            PictureEncoder(CAMERA, convolutions=(wrong,))


# --- As modules -----------------------------------------------------------------------


@pytest.mark.parametrize("space", [CAMERA, ATARI, MINATAR, NESTED], ids=type)
def test_gradients_reach_every_weight(space) -> None:
    torch.manual_seed(0)
    encoder = make_encoder(space, hidden=16)
    rows = torch.rand(8, spaces.flatdim(space)) * 255
    encoder(rows).square().sum().backward()
    assert list(encoder.parameters())
    for name, weight in encoder.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name


@pytest.mark.parametrize("space", [CAMERA, NESTED], ids=type)
def test_weights_are_saved_and_loaded(space) -> None:
    torch.manual_seed(0)
    encoder, other = (make_encoder(space, hidden=4) for _ in range(2))
    rows = torch.rand(2, spaces.flatdim(space))
    assert not torch.equal(encoder(rows), other(rows))
    other.load_state_dict(encoder.state_dict())
    for twin in (other, copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        assert torch.equal(encoder(rows), twin(rows))


def test_features_have_the_precision_of_the_weights() -> None:
    for space in (CAMERA, NESTED):
        encoder = make_encoder(space).double()
        for dtype in (torch.float32, torch.float64, torch.uint8):
            rows = torch.ones(2, spaces.flatdim(space), dtype=dtype)
            assert encoder(rows).dtype == torch.float64


# --- Where observations go in ---------------------------------------------------------


class Totals(nn.Module):
    """An encoder of one's own: a sum for each channel of a picture."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self.output_size: Any = space.shape[0]
        self.gain = nn.Parameter(torch.tensor(2.0))

    def forward(self, obs: Tensor) -> Tensor:
        return self.gain * obs.sum((-2, -1))


FILM = spaces.Box(0, 255, (2, 4, 5), np.uint8)


@pytest.mark.parametrize("own", [Totals(FILM), Totals], ids=["module", "function"])
def test_an_encoder_of_ones_own_gets_the_shape_back(own) -> None:
    encoder = ShapedEncoder(FILM, own)
    assert encoder.output_size == 2
    picture = torch.randint(256, (3, 6, 2, 4, 5), dtype=torch.uint8)
    wanted = 2 * picture.float().sum((-2, -1))
    assert torch.equal(encoder(picture), wanted)
    assert torch.equal(encoder(picture.flatten(-3)), wanted)
    assert encoder.encoder is not own, "each policy has its own"


@pytest.mark.parametrize("size", [None, 0, -1, 2.0])
def test_an_encoder_of_ones_own_says_how_many_features_it_has(size) -> None:
    own = Totals(FILM)
    own.output_size = size
    with pytest.raises(ValueError, match="encoder must have its number of features"):
        ShapedEncoder(FILM, own)


class Pair(Totals):
    """Returns two things."""

    def forward(self, obs: Tensor) -> Any:
        return super().forward(obs), None


class Convolved(nn.Sequential):
    """Wants the channels in front, where there may be others."""

    output_size = 2

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 1, 3), nn.Flatten(), nn.LazyLinear(2))


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (
            Pair,
            r"must read observations of shape \(2, 2, 4, 5\), got Pair: .*, got tuple",
        ),
        (Convolved(), r"must read observations .*, got Convolved: RuntimeError: Given"),
    ],
)
def test_an_encoder_of_ones_own_that_does_not_fit_is_told_at_once(own, words) -> None:
    with pytest.raises(ValueError, match=f"^encoder {words}"):
        ShapedEncoder(FILM, own)


def test_lazy_layers_have_their_weights_before_anybody_asks() -> None:
    encoder = ShapedEncoder(spaces.Box(0, 1, (3, 4, 5)), Convolved())
    assert [x.shape for x in encoder.encoder[2].parameters()] == [(2, 6), (2,)]
    assert encoder.training


def test_vectors_go_straight_in_and_pictures_through_an_encoder() -> None:
    assert entrance(JOINTS) == ([], 3)
    wish = ((4, 3, 1),)
    for space, kind in ((CAMERA, PictureEncoder), (NESTED, PartsEncoder)):
        (encoder,), size = entrance(space)
        assert type(encoder) is kind
        assert size == encoder.output_size == make_encoder(space).output_size
    (encoder,), _ = entrance(CAMERA, wish)
    assert encoder.convolutions[0].out_channels == 4
    (encoder,), size = entrance(FILM, encoder=Totals)
    assert type(encoder.encoder) is Totals
    assert size == 2
    with pytest.raises(ValueError, match="must be None without pictures"):
        entrance(JOINTS, wish)
    with pytest.raises(ValueError, match="must be None with an encoder of your own"):
        entrance(FILM, wish, Totals)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_three_cells_by_three_are_the_smallest_picture(dtype) -> None:
    small, smaller = (spaces.Box(0, 1, (1, 3, side), dtype) for side in (3, 2))
    for space, is_one in ((small, True), (smaller, False)):
        assert has_pictures(space) == is_one
        assert has_pictures(spaces.Dict(eye=space, joints=JOINTS)) == is_one
    assert not has_pictures(spaces.Discrete(3))


@pytest.mark.parametrize("share", [False, True])
def test_actor_and_critics_have_an_entrance_each_or_one(share: bool) -> None:
    torch.manual_seed(0)
    actor, *theirs = off_policy_entrances(CAMERA, 3, share)
    critics = Critics(ActionCritic(size, 2, 8, front) for front, size in theirs)
    obs, action = torch.rand(4, spaces.flatdim(CAMERA)), torch.rand(4, 2)
    values = critics(obs, action)
    for critic, value in zip(critics, values, strict=True):
        features = critic.front(obs)
        assert features.shape == (4, make_encoder(CAMERA).output_size)
        again = critic.net(torch.cat([features, action], -1)).squeeze(-1)
        assert torch.equal(value, again)
    assert not torch.equal(values[0], values[1])
    encoders = {id(critic.front[0]) for critic in critics}
    assert len(encoders) == (1 if share else 3)
    # What the actor sees is the same, and sends no gradient to a shared encoder.
    front, size = actor
    assert size == theirs[0][1]
    seen = nn.Sequential(*front)(obs)
    assert torch.equal(seen, critics[0].front(obs)) == share
    assert seen.requires_grad != share


# --- As ALF calls it ------------------------------------------------------------------


def test_the_encoder_for_alf_reads_pictures_in_the_same_way() -> None:
    torch.manual_seed(0)
    first = ConvolutionalEncodingNetwork(spaces.Box(0, 1, (3, 20, 24)))
    last = ConvolutionalEncodingNetwork(spaces.Box(0, 255, (20, 24, 3), np.uint8))
    last.load_state_dict(first.state_dict())
    picture = torch.randint(256, (5, 20, 24, 3), dtype=torch.uint8)
    features, _ = last(picture)
    expected, _ = first((picture.double() / 255).movedim(-1, -3))
    torch.testing.assert_close(features, expected)
    assert torch.equal(features, last.project(picture).tanh())


@pytest.mark.parametrize("size", [5, 16, 17, 64])
def test_the_encoder_for_alf_takes_pictures_of_any_size(size: int) -> None:
    encoder = ConvolutionalEncodingNetwork(spaces.Box(0, 1, (2, size, size)), hidden=8)
    kernel = 3 if size <= 16 else 8
    assert encoder.convolutions[0].weight.shape == (16, 2, kernel, kernel)
    features, state = encoder(torch.rand(3, 4, 2, size, size), "a state")
    assert features.shape == (3, 4, 8)
    assert state == "a state"


def test_the_encoder_for_alf_needs_a_picture() -> None:
    with pytest.raises(TypeError, match="observation_spec must be a Box"):
        ConvolutionalEncodingNetwork(spaces.Discrete(3))


# --- What the chapter shows -----------------------------------------------------------


EXPERIMENTS = encoders_learning.EXPERIMENTS | minatar_learning.EXPERIMENTS


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_runs_on_pictures_were_made_with_the_settings_of_today(name: str) -> None:
    experiment = EXPERIMENTS[name]
    config = asdict(experiment.config)
    # The seeds are told apart, and some runs are older than some settings.
    del config["seed"]
    _, origin = read_table(LEARNING / f"{name}.csv")
    then = todays_names(settings_in(origin), config)
    found = {**defaults_of(experiment.config), **then}
    assert found == {name: str(value) for name, value in config.items()}
    assert origin["seeds"] == f"1 to {experiment.seeds}"


class Stub(gym.Env):
    """Frames as those of Breakout, and nothing that happens."""

    observation_space, action_space = MINATAR, spaces.Discrete(3)

    def __init__(self, game: str, **arguments: Any) -> None:
        assert game == "breakout"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(MINATAR.shape, bool), {}

    def step(self, action):
        return np.ones(MINATAR.shape, bool), 1.0, False, False, {}


@pytest.mark.parametrize("variant", ["row", "encoder"])
def test_both_variants_train_on_flat_rows(variant: str, monkeypatch) -> None:
    monkeypatch.setattr(gym.spec(encoders_learning.ENV), "entry_point", Stub)
    experiment = encoders_learning.EXPERIMENTS["encoders_breakout"]
    tiny = {"total_steps": 8, "num_envs": 2, "num_steps": 4, "num_minibatches": 1}
    build = experiment.variants[variant].build
    learner = build(replace(experiment.config, **tiny))
    assert learner.collector.envs.single_observation_space.shape == (400,)
    assert math.isfinite(learner.iterate()["losses/policy_loss"])
    encoders = [x for x in learner.policy.modules() if isinstance(x, PictureEncoder)]
    assert len(encoders) == (2 if variant == "encoder" else 0)


def test_the_stored_frames_show_what_they_are_stored_for() -> None:
    rows, origin = read_table(minatar_frames.PATH)
    assert origin["command"] == "python -m benchmarks.minatar_frames"
    cells: dict[str, dict[str, list[list[int]]]] = {}
    for row in rows:
        plane = cells.setdefault(row["frame"], {}).setdefault(row["plane"], [])
        plane.append([int(cell) for cell in row["cells"]])
    frames = {
        name: np.array([*planes.values()], bool).transpose(1, 2, 0)
        for name, planes in cells.items()
    }
    assert all(tuple(planes) == minatar_frames.PLANES for planes in cells.values())
    assert minatar_frames.way(frames["game"]) == (1, 1)
    falling, rising = frames["falling"], frames["rising"]
    assert minatar_frames.way(falling) == (1, 1)
    assert minatar_frames.way(rising) == (-1, 1)
    rest = [0, 1, 3]
    assert np.array_equal(falling[:, :, rest], rising[:, :, rest])
    for name in ("falling", "rising"):
        before = minatar_frames.place(frames[f"before {name}"], "ball")
        assert before == minatar_frames.place(frames[name], "trail")
