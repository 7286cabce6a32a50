"""Policies: their actions, their densities, and the numbers that they normalise."""

from __future__ import annotations

import copy
import json
import math
import warnings
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import torch
from fuzz import assert_held
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.data.agents import Collector, Rollout, kept_dtype, make_envs
from literate_rl.data.episodes import env_seed
from literate_rl.nets.encoders import make_encoder
from literate_rl.nets.parts import CategoricalActions, GaussianActions, RunningMoments
from literate_rl.nets.policies import (
    Policy,
    RewardScaler,
    Runner,
    make_actions,
    make_policy,
)


def discrete(
    obs_size: int, num_actions: int, normalize: bool = False, start: int = 0
) -> Policy:
    space = gym.spaces.Discrete(num_actions, start=start)
    return make_policy(gym.spaces.Box(-1, 1, (obs_size,)), space, normalize=normalize)


def gaussian(normalize: bool = False) -> Policy:
    low, high = np.array([[-2.0, 0.0], [2.0, 1.0]], np.float32)
    space = gym.spaces.Box(low, high)
    policy = make_policy(gym.spaces.Box(-1, 1, (3,)), space, 16, normalize)
    torch.nn.init.normal_(policy.network.actor.log_sigma, std=0.5)
    return policy


# --- Policies as functions of noise ---------------------------------------------------


@pytest.mark.equation("act-discrete")
def test_the_race_draws_from_the_softmax() -> None:
    torch.manual_seed(0)
    policy = discrete(2, 4)
    torch.nn.init.normal_(policy.network.actor[-1].bias)
    obs = torch.zeros(1, 2)
    noise = policy.noise(200, 1000, torch.Generator().manual_seed(0))
    with torch.no_grad():
        action = policy.act(obs.expand(200, 1000, 2), noise)
        expected = policy(obs).softmax(-1)[0]
    share = torch.bincount(action.flatten(), minlength=4) / 200_000
    torch.testing.assert_close(share, expected, atol=5e-3, rtol=0)


@pytest.mark.equation("act-gaussian")
def test_gaussian_actions_have_their_mean_and_deviation() -> None:
    torch.manual_seed(0)
    policy = gaussian()
    obs = torch.randn(1, 3)
    noise = policy.noise(200, 1000, torch.Generator().manual_seed(0))
    with torch.no_grad():
        action = policy.act(obs.expand(200, 1000, 3), noise).flatten(0, 1)
        mu, log_sigma = policy(obs).chunk(2, -1)
    torch.testing.assert_close(action.mean(0), mu[0], atol=1e-2, rtol=0)
    torch.testing.assert_close(action.std(0), log_sigma.exp()[0], atol=1e-2, rtol=0)


@pytest.mark.parametrize("make", [partial(discrete, 3, 4), gaussian])
def test_without_noise_a_policy_is_greedy(make: Any) -> None:
    policy, obs = make(), torch.randn(7, 3)
    row, actions = policy(obs), policy.actions
    is_discrete = isinstance(actions, CategoricalActions)
    best = row.argmax(-1) if is_discrete else row.chunk(2, -1)[0]
    torch.testing.assert_close(policy.act(obs, 0.0), best)
    others = policy.act(obs, 3 * policy.noise(1, 7, torch.Generator())[0])
    assert actions.log_prob(row, others).sum() < actions.log_prob(row, best).sum()


# --- Action distributions against those of PyTorch ------------------------------------

CATEGORICAL = CategoricalActions(5)
GAUSSIAN = GaussianActions([-1.0, 0.0, -np.inf], [1.0, 2.0, np.inf])
SHAPES = st.sampled_from([(1,), (6,), (4, 3), (2, 1, 3)])


def rows_of(actions: Any, shape: tuple[int, ...], generator: Any) -> torch.Tensor:
    """Return rows in float64, logits that are far apart among them."""
    width, scale = (5, 6.0) if actions is CATEGORICAL else (6, 1.0)
    row = torch.randn(*shape, width, dtype=torch.float64, generator=generator)
    return (scale * row).requires_grad_()


def peer_of(actions: Any, row: torch.Tensor) -> Any:
    """Return what PyTorch makes of rows."""
    if actions is CATEGORICAL:
        return Categorical(logits=row)
    mu, log_sigma = row.chunk(2, -1)
    return Independent(Normal(mu, log_sigma.exp()), 1)


def assert_same(ours: torch.Tensor, theirs: torch.Tensor, *rows: torch.Tensor) -> None:
    """Compare numbers and their gradients, each entry with a weight of its own."""
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    weight = torch.linspace(1, 2, ours.numel(), dtype=torch.float64).view_as(ours)
    grads = (
        torch.autograd.grad((x * weight).sum(), rows, retain_graph=True)
        for x in (ours, theirs)
    )
    for mine, other in zip(*grads, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


both_kinds = pytest.mark.parametrize(
    "actions", [CATEGORICAL, GAUSSIAN], ids=["categorical", "gaussian"]
)


@both_kinds
@settings(max_examples=30, deadline=None)
@given(shape=SHAPES, seed=st.integers(0, 2**31))
def test_rows_mean_what_pytorchs_distributions_say(
    actions: Any, shape: tuple[int, ...], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    row, other = (rows_of(actions, shape, generator) for _ in range(2))
    torch.manual_seed(seed)
    peer, other_peer = peer_of(actions, row), peer_of(actions, other)
    # Actions of both, so that some are unlikely.
    for action in (peer.sample(), other_peer.sample()):
        assert_same(actions.log_prob(row, action), peer.log_prob(action), row)
        log_prob, entropy = actions.evaluate(row, action)
        assert_same(log_prob, peer.log_prob(action), row)
        assert_same(entropy, peer.entropy(), row)
        # Each of the two has a gradient of its own, and so has their sum.
        assert_same(
            log_prob + 3 * entropy, peer.log_prob(action) + 3 * peer.entropy(), row
        )
    assert_same(actions.entropy(row), peer.entropy(), row)
    theirs = kl_divergence(peer, other_peer)
    assert_same(actions.kl(row, other), theirs, row, other)


@both_kinds
@settings(max_examples=30, deadline=None)
@given(shape=SHAPES, seed=st.integers(0, 2**31))
def test_a_divergence_is_positive_but_between_equal_rows(
    actions: Any, shape: tuple[int, ...], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    row, other = (rows_of(actions, shape, generator) for _ in range(2))
    assert actions.kl(row, other).shape == shape
    assert (actions.kl(row, other) > 0).all()
    assert (actions.kl(row, row) == 0).all()
    # In single precision a small divergence may be lost, but not by much.
    row, other = row.float(), other.float()
    assert (actions.kl(row, row + 1e-4 * other) >= -1e-6).all()
    assert (actions.kl(row, row) == 0).all()


def test_an_action_that_was_taken_away_makes_no_nan() -> None:
    row = torch.tensor([[0.0, -math.inf, 1.0, 2.0, 3.0]], requires_grad=True)
    rest = Categorical(logits=row.detach()[:, [0, 2, 3, 4]])
    action = torch.tensor([4])
    log_prob, entropy = CATEGORICAL.evaluate(row, action)
    torch.testing.assert_close(log_prob, rest.log_prob(torch.tensor([3])))
    torch.testing.assert_close(entropy, rest.entropy())
    torch.testing.assert_close(CATEGORICAL.entropy(row), rest.entropy())
    assert CATEGORICAL.kl(row, row).item() == 0
    assert CATEGORICAL.kl(torch.zeros(1, 5), row).item() == math.inf
    assert CATEGORICAL.kl(row, torch.zeros(1, 5)).isfinite().all()
    log_prob, _ = CATEGORICAL.evaluate(row, torch.tensor([1]))
    assert log_prob.item() == -math.inf
    (log_prob, entropy) = CATEGORICAL.evaluate(row, action)
    (grad,) = torch.autograd.grad((log_prob + entropy).sum(), row)
    assert grad.isfinite().all()
    assert grad[0, 1] == 0


@both_kinds
def test_noise_has_one_number_for_each_draw_and_is_decided_by_its_generator(
    actions: Any,
) -> None:
    first, again, other = (
        actions.noise(7, 2, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert first.shape == (7, 2, 5 if actions is CATEGORICAL else 3)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@both_kinds
def test_actions_that_noise_chooses_have_the_probabilities_of_their_rows(
    actions: Any,
) -> None:
    """The mean of the log-probability is minus the entropy, within five errors."""
    number, generator = 200_000, torch.Generator().manual_seed(0)
    row = rows_of(actions, (1,), generator).detach().expand(number, -1) / 3
    noise = actions.noise(1, number, generator)[0]
    log_prob = actions.log_prob(row, actions.choose(row, noise))
    distance = log_prob.mean() + actions.entropy(row[:1])[0]
    assert distance.abs() < 5 * log_prob.std() / math.sqrt(number)


@both_kinds
@pytest.mark.parametrize("name", ["choose", "log_prob", "entropy", "evaluate", "kl"])
def test_action_distributions_are_held_to_their_signatures(
    actions: Any, name: str
) -> None:
    assert assert_held(getattr(actions, name), Random(0)) > 5


def test_a_policy_is_its_network_and_its_action_distribution() -> None:
    torch.manual_seed(0)
    for policy in (discrete(3, 4), gaussian()):
        obs = torch.randn(6, 2, 3)
        noise = policy.noise(6, 2, torch.Generator().manual_seed(0))
        row, action = policy(obs), policy.act(obs, noise)
        assert torch.equal(row, policy.network(obs))
        assert torch.equal(policy.value(obs), policy.network.value(obs))
        assert torch.equal(action, policy.actions.choose(row, noise))
        log_prob, entropy = policy.evaluate_actions(obs, action)
        torch.testing.assert_close(log_prob, policy.actions.log_prob(row, action))
        torch.testing.assert_close(entropy, policy.actions.entropy(row))
        for numbers in (log_prob, entropy, policy.value(obs)):
            assert numbers.shape == (6, 2)


def test_spaces_have_their_action_distributions() -> None:
    actions = make_actions(gym.spaces.Discrete(3, start=5))
    assert isinstance(actions, CategoricalActions)
    assert (actions.num_actions, actions.start) == (3, 5)
    actions = make_actions(gym.spaces.Box(-2, 3, (4,)))
    assert isinstance(actions, GaussianActions)
    assert (actions.low.tolist(), actions.high.tolist()) == ([-2] * 4, [3] * 4)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    "space", [gym.spaces.Discrete(3, start=2), gym.spaces.Box(-2, np.inf, (2,))]
)
def test_a_recipe_builds_the_same_policy_from_plain_values(
    space: gym.Space[Any], normalize: bool
) -> None:
    policy = make_policy(gym.spaces.Box(-1, 1, (3,)), space, 8, normalize)
    maker, arguments = policy.recipe
    assert maker == "make_policy"
    again = make_policy(**json.loads(json.dumps(arguments)))
    again.load_state_dict(policy.state_dict())
    obs = torch.randn(4, 3)
    action = policy.act(obs, 0.0).detach()
    assert torch.equal(again.act(obs, 0.0), action)
    assert policy.to_env(action).tolist() == again.to_env(action).tolist()
    assert again.recipe == policy.recipe


# --- Out into the world ---------------------------------------------------------------


def test_actions_are_stretched_and_clipped_on_the_way_out() -> None:
    policy = gaussian()
    action = torch.tensor([[-1.0, -1.0], [1.0, 1.0], [0.0, 0.5], [-9.0, 9.0]])
    wanted = [[-2.0, 0.0], [2.0, 1.0], [0.0, 0.75], [-2.0, 1.0]]
    assert policy.to_env(action).tolist() == wanted
    assert policy.to_env(action).dtype == np.float32
    unbounded = GaussianActions([-np.inf, 0.0], [np.inf, np.inf])
    assert unbounded.to_env(torch.tensor([[7.0, -1.0]])).tolist() == [[7.0, 0.0]]


LARGEST = {x: float(np.finfo(x).max) for x in (np.float16, np.float32, np.float64)}
TOP = LARGEST[np.float32]


@pytest.mark.parametrize(
    ("space", "sent"),
    [
        (gym.spaces.Box(-1, 3, (2,)), [[1.0, 3.0], [-1.0, 3.0]]),
        (gym.spaces.Box(-np.inf, np.inf, (2,)), [[0.0, 1.0], [-7e4, 7e4]]),
        (gym.spaces.Box(-TOP, TOP, (2,)), [[0.0, 1.0], [-7e4, 7e4]]),
        (gym.spaces.Box(-TOP, TOP, (2,), np.float64), [[0.0, 1.0], [-7e4, 7e4]]),
        (gym.spaces.Box(-3e38, 3e38, (2,)), [[0.0, 3e38], [-3e38, 3e38]]),
        (gym.spaces.Box(0, np.inf, (2,)), [[0.0, 1.0], [0.0, 7e4]]),
        (gym.spaces.Box(0, TOP, (2,)), [[0.0, 1.0], [0.0, 7e4]]),
        (gym.spaces.Box(2, 2, (2,)), [[2.0, 2.0], [2.0, 2.0]]),
        *(
            (gym.spaces.Box(-x, x, (2,), kind), [[0, 1], [max(-x, -7e4), min(x, 7e4)]])
            for kind, x in LARGEST.items()
        ),
        *(
            (gym.spaces.Box(-0.1, 0.1, (2,), kind), [[0, 0.1], [-0.1, 0.1]])
            for kind in LARGEST
        ),
    ],
)
def test_what_is_sent_is_in_the_box_and_bounds_that_mean_none_stretch_nothing(
    space: Any, sent: Any
) -> None:
    policy = make_policy(gym.spaces.Box(-1, 1, (2,)), space)
    again = make_policy(**json.loads(json.dumps(policy.recipe[1])))
    for one in (policy, again):
        actions = one.to_env(torch.tensor([[0.0, 1.0], [-7e4, 7e4]]))
        np.testing.assert_allclose(actions, sent, rtol=1e-3)
        assert all(space.contains(action) for action in actions)


def test_actions_start_where_the_space_starts() -> None:
    space = gym.spaces.Discrete(3, start=5)
    policy = make_policy(gym.spaces.Box(-1, 1, (2,)), space)
    actions = policy.to_env(torch.tensor([0, 2]))
    assert actions.tolist() == [5, 7]
    assert all(space.contains(action) for action in actions)


def reversed_box() -> gym.spaces.Box:
    """Return a box whose bounds were changed after Gymnasium had looked at them."""
    box = gym.spaces.Box(-1, 1, (2,))
    box.low[1] = np.nan
    return box


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ((gym.spaces.Discrete(3), gym.spaces.Discrete(2)), "observation_space"),
        ((gym.spaces.Box(-1, 1, (2, 2)), gym.spaces.Discrete(2)), "observation_space"),
        ((gym.spaces.Box(-1, 1, (2,)), gym.spaces.Text(2)), "action_space"),
        ((gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-1, 1, (2, 2))), "action_space"),
        ((gym.spaces.Box(-1, 1, (2,)), reversed_box()), "at most the upper ones"),
    ],
)
def test_spaces_that_do_not_fit_are_named(spaces: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_policy(*spaces)


# --- Pictures -------------------------------------------------------------------------

BYTES = gym.spaces.Box(0, 255, (10, 10, 2), np.uint8)
STICK = gym.spaces.Dict(
    camera=BYTES, angles=gym.spaces.Box(-1, 1, (2,)), keys=gym.spaces.MultiBinary(2)
)


def glances(space: gym.Space[Any], *lead: int) -> Tensor:
    """Return flat observations of a space."""
    size = gym.spaces.flatdim(space)
    return torch.randint(256, (*lead, size)).float()


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("seen", [BYTES, STICK], ids=["picture", "parts"])
@pytest.mark.parametrize(
    "space", [gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (2,))], ids=["list", "box"]
)
def test_a_policy_sees_pictures_through_an_encoder(
    space: gym.Space[Any], seen: gym.Space[Any], share: bool
) -> None:
    policy = make_policy(seen, space, 8, share_encoder=share)
    obs = glances(seen, 4, 5)
    row, value = policy(obs), policy.value(obs)
    assert row.shape == (4, 5, 3 if space == gym.spaces.Discrete(3) else 4)
    assert value.shape == (4, 5)
    # Two networks that fit by themselves: what is behind the encoder starts small.
    assert row[..., :2].abs().max() < value.abs().max()
    actor, critic = policy.network.actor, policy.network.critic
    actor = getattr(actor, "mean", actor)
    assert type(actor[0]) is type(critic[0]) is type(make_encoder(seen))
    assert (actor[0] is critic[0]) == share
    # Behind a picture stands one layer, beside numbers there are hidden ones.
    assert len(actor) == len(critic) == (2 if seen is BYTES else 6)
    # A plain copy comes from the recipe, and does the same.
    again = make_policy(**json.loads(json.dumps(policy.recipe[1])))
    again.load_state_dict(policy.state_dict())
    assert torch.equal(again.act(obs, 0.0), policy.act(obs, 0.0))
    assert again.recipe == policy.recipe
    with pytest.raises(ValueError, match="there, without hooks or methods"):
        numpy_act(policy)


@pytest.mark.parametrize("share", [False, True])
def test_who_moves_an_encoder(share: bool) -> None:
    policy = make_policy(BYTES, gym.spaces.Discrete(3), share_encoder=share)
    obs = glances(BYTES, 6)
    log_prob, _ = policy.evaluate_actions(obs, torch.arange(6) % 3)
    losses = log_prob.square().sum(), policy.value(obs).square().sum()
    for loss, moved in zip(losses, ("actor", "critic"), strict=True):
        for name in ("actor", "critic"):
            weight = getattr(policy.network, name)[0].features.weight
            (grad,) = torch.autograd.grad(
                loss, weight, retain_graph=True, allow_unused=True
            )
            assert (grad is not None and bool(grad.any())) == (share or name == moved)


def test_the_layers_start_as_those_of_vectors_do() -> None:
    policy = make_policy(BYTES, gym.spaces.Discrete(3))
    for layer, gain in ((policy.network.actor[1], 0.01), (policy.network.critic[1], 1)):
        weight = layer.weight.detach()
        torch.testing.assert_close(weight @ weight.T, gain**2 * torch.eye(len(weight)))
        assert not layer.bias.any()


def test_convolutions_can_be_chosen_and_are_remembered() -> None:
    wish = ((4, 3, 2), (5, 2, 1))
    policy = make_policy(BYTES, gym.spaces.Discrete(3), convolutions=wish)
    assert policy.network.actor[0].convolutions[0].weight.shape == (4, 2, 3, 3)
    assert policy.recipe[1]["convolutions"] == wish
    again = make_policy(**policy.recipe[1])
    again.load_state_dict(policy.state_dict())


@pytest.mark.parametrize(
    ("seen", "kept"),
    [
        (BYTES, np.uint8),
        (gym.spaces.Box(0, 1, (10, 10, 2)), np.float32),
        (gym.spaces.Box(0, 1, (10, 10, 2), np.float64), np.float32),
        (gym.spaces.Box(0, 255, (128,), np.uint8), np.float32),
        (STICK, np.float32),
    ],
    ids=["bytes", "floats", "doubles", "row of bytes", "parts"],
)
def test_rollouts_keep_the_bytes_of_pictures_as_bytes(
    seen: gym.Space[Any], kept: Any
) -> None:
    policy = make_policy(seen, gym.spaces.Discrete(2))
    envs: Any = SimpleNamespace(single_observation_space=seen)
    assert kept_dtype(policy, envs) == kept
    # Only an encoder makes numbers of them in the network.
    assert policy.reads_bytes == (len(seen.shape or (1, 1)) > 1)


def test_a_recipe_of_vectors_is_what_it_always_was() -> None:
    vectors, two = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)
    policy = make_policy(vectors, two, share_encoder=False, convolutions=None)
    names = ["observation_space", "action_space", "hidden", "normalize"]
    assert [*policy.recipe[1]] == names
    weights = [f"{i}.{x}" for i in (0, 2, 4) for x in ("weight", "bias")]
    wanted = [f"network.{net}.{x}" for net in ("actor", "critic") for x in weights]
    assert [*policy.state_dict()] == wanted


@pytest.mark.parametrize("normalize", [True, False])
def test_rows_of_zeros_and_ones_are_normalised_with_a_warning(normalize: bool) -> None:
    bits = gym.spaces.flatten_space(gym.spaces.Discrete(5))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        make_policy(
            gym.spaces.Box(0, 1, (5,)), gym.spaces.Discrete(2), normalize=normalize
        )
        assert not told
        make_policy(bits, gym.spaces.Discrete(2), normalize=normalize)
    words = [str(one.message) for one in told]
    assert len(words) == normalize
    assert all(text.startswith("normalize makes large numbers") for text in words)


@pytest.mark.parametrize(
    ("seen", "options", "message"),
    [
        (BYTES, {"normalize": True}, "normalize must be False with an encoder"),
        (STICK, {"normalize": True}, "normalize must be False with an encoder"),
        (
            gym.spaces.Box(-1, 1, (3,)),
            {"share_encoder": True},
            "share_encoder must be False without an",
        ),
        (gym.spaces.Box(-1, 1, (3,)), {"convolutions": ((4, 3, 1),)}, "must be None"),
    ],
)
def test_what_does_not_fit_pictures_or_vectors_is_refused(
    seen: gym.Space[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_policy(seen, gym.spaces.Discrete(2), **options)


# --- Moments --------------------------------------------------------------------------


@pytest.mark.equation("pooled-moments")
@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_moments_of_parts_are_those_of_the_whole(seed: int, sizes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.normal(rng.normal(), 2.0, (size, 3)) for size in sizes]
    moments = RunningMoments(3)
    for part in parts:
        moments.update(torch.as_tensor(part))
    everything = np.concatenate(parts)
    np.testing.assert_allclose(moments.mean, everything.mean(0), atol=1e-10)
    np.testing.assert_allclose(moments.var, everything.var(0), atol=1e-10)
    assert moments.count == len(everything)


def test_normalised_items_have_mean_zero_and_standard_deviation_one() -> None:
    torch.manual_seed(0)
    moments, items = RunningMoments(2), 50 + 7 * torch.randn(1000, 2)
    untouched = torch.randn(4, 2)
    torch.testing.assert_close(moments(untouched), untouched)
    moments.update(items)
    out = moments(items)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.std(0), torch.ones(2), atol=1e-3, rtol=0)
    assert moments(items + 1e6).max() == 10.0
    assert moments(items - 1e6).min() == -10.0


def test_what_never_moved_is_divided_by_a_ten_thousandth() -> None:
    moments = RunningMoments(1)
    moments.update(torch.full((5, 1), 2.0))
    # A variance of 1e-8 is added, as Gymnasium does.
    out = moments(torch.tensor([[2.00001]], dtype=torch.float64))
    torch.testing.assert_close(out.item(), 0.1, rtol=1e-6, atol=0)


def test_moments_take_finite_items_of_their_shape_and_stay_as_they_are() -> None:
    moments = RunningMoments(3)
    with pytest.raises(TypeError, match="items must be a float32 or float64 tensor"):
        moments.update(torch.ones(5, 3, dtype=torch.long))
    for call in (moments.update, moments):
        with pytest.raises(ValueError, match=r"items must end in \(3,\), got \(5, 1\)"):
            call(torch.ones(5, 1))
    for bad in (torch.nan, torch.inf):
        with pytest.raises(ValueError, match="items must be finite"):
            moments.update(torch.full((5, 3), bad))
    assert moments.count == 0
    assert not moments.mean.any()


@pytest.mark.equation("reward-scale")
def test_rewards_are_divided_by_the_deviation_of_the_sum_so_far() -> None:
    torch.manual_seed(0)
    gamma, rollouts = 0.9, 3
    reward = torch.randn(rollouts, 20, 4) + 1
    done = torch.rand(rollouts, 20, 4) < 0.15
    done[:, -1, 0], done[:, -1, 1] = True, False  # both ways into the next rollout
    real = torch.rand(rollouts, 20, 4) < 0.9
    scaler = RewardScaler(4, gamma)
    sums: list[np.ndarray] = []
    current = np.zeros(4)
    for k in range(rollouts):
        scaled = scaler(reward[k], done[k], real[k])
        for t in range(20):
            current = current + reward[k, t].double().numpy()
            sums.append(current[real[k, t]])
            current = gamma * current * ~done[k, t].numpy()
        deviation = np.concatenate(sums).std()
        np.testing.assert_allclose(scaled, reward[k] / deviation, rtol=1e-4)


def test_rewards_that_never_changed_are_divided_by_a_ten_thousandth() -> None:
    no = torch.zeros(1, 1, dtype=torch.bool)
    scaled = RewardScaler(1, 0.9)(torch.full((1, 1), 1e-5), no, ~no)
    torch.testing.assert_close(scaled.item(), 0.1, rtol=1e-6, atol=0)


def test_scales_take_what_their_signature_says_and_stay_as_they_are() -> None:
    reward, flag = torch.randn(5, 2), torch.zeros(5, 2, dtype=torch.bool)
    scaler = RewardScaler(2, 0.9)
    with pytest.raises(ValueError, match=r"done must have shape.*got \(4, 2\)"):
        scaler(reward, flag[:-1], flag)
    with pytest.raises(TypeError, match="real must be a bool tensor"):
        scaler(reward, flag, flag.float())
    for envs in (1, 3):
        wrong = torch.randn(5, envs), torch.zeros(5, envs).bool()
        with pytest.raises(ValueError, match=f"reward must have B = 2, got {envs}"):
            scaler(*wrong, ~wrong[1])
    with pytest.raises(ValueError, match="reward must be finite"):
        scaler(reward * torch.nan, flag, ~flag)
    assert scaler.moments.count == 0
    assert not scaler.carry.any()


# --- A rollout at a time --------------------------------------------------------------


class Moody(torch.nn.Module):
    """Logits that say in which mode they were asked."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        assert not self.training, "acting is in evaluation mode"
        return self.layer(obs)


def runner(checkpoint_interval: int = 3, act: Any = None) -> Runner:
    torch.manual_seed(0)
    policy, envs = Policy(Moody(), CategoricalActions(2)), make_envs("CartPole-v1", 2)
    return Runner(policy, envs, 5, 7, checkpoint_interval, act)


def assert_equal(ours: Rollout, theirs: Rollout) -> None:
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)


def test_a_runner_draws_the_noise_of_a_rollout_at_once() -> None:
    ours, peer = runner(), runner()
    policy, generator = peer.policy.eval(), torch.Generator().manual_seed(7)
    collector = Collector(peer.collector.envs, policy.to_env, np.float32)
    collector.reset(env_seed(7, 0))
    for _ in range(2):
        noise = iter(policy.noise(5, 2, generator))
        theirs = collector.collect(
            lambda obs, noise=noise: policy.act(obs, next(noise)), 5
        )
        assert_equal(ours.collect(), theirs)
    assert (ours.step, ours.iteration, ours.policy.training) == (20, 2, True)


def test_a_runner_starts_anew_at_each_checkpoint_and_so_does_a_resumed_one() -> None:
    whole = runner()
    whole.collector.reset = reset = mock.Mock(wraps=whole.collector.reset)
    anew = []
    for iteration in range(7):
        anew.append(whole.starts_anew)
        if iteration == 3:
            state = copy.deepcopy(whole.state_dict())
        last = whole.collect()
    assert anew == [True, False, False] * 2 + [True]
    assert reset.mock_calls == [mock.call(env_seed(7, step)) for step in (0, 30, 60)]

    assert set(state) == {"step", "iteration", "generator"}
    resumed = runner()
    for _ in range(2):
        resumed.collect()  # what it did before plays no role
    resumed.load_state_dict({**state, "optimizer": "somebody else's"})
    assert (resumed.step, resumed.checkpoint_due) == (30, True)
    for _ in range(4):
        again = resumed.collect()
    assert_equal(again, last)


def test_a_runner_that_goes_back_between_checkpoints_starts_anew_too() -> None:
    ours = runner()
    ours.collect()
    state = ours.state_dict()
    assert not ours.starts_anew
    ours.load_state_dict(state)
    assert ours.starts_anew
    assert not ours.checkpoint_due


def test_a_runner_refuses_a_state_that_lacks_something_before_anything_changes() -> (
    None
):
    ours = runner()
    ours.collect()
    state = copy.deepcopy(ours.state_dict())
    ours.collect()
    for name in state:
        before = ours.generator.get_state()
        with pytest.raises(KeyError, match=name):
            ours.load_state_dict({k: x for k, x in state.items() if k != name})
        assert (ours.step, ours.iteration) == (20, 2)
        assert torch.equal(ours.generator.get_state(), before)


def test_a_runner_acts_as_it_is_told() -> None:
    ones = runner(act=lambda obs, noise: torch.ones(len(obs), dtype=torch.int64))
    assert (ones.collect().action == 1).all()
