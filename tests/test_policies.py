"""Policies: their actions, their densities, and the numbers that they normalise."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, flatdim
from hybrid import assert_same
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from literate_rl.data.agents import kept_dtype
from literate_rl.nets.parts import CategoricalActions, GaussianActions, RunningMoments
from literate_rl.nets.policies import Policy, RewardScaler, make_policy

THREE, BOX = Discrete(3, start=5), Box(-1, 1, (3,))
BOUNDED = Box(*np.array([[-2.0, 0.0], [2.0, 1.0]], np.float32))
BYTES = Box(0, 255, (10, 10, 2), np.uint8)
STICK = Dict(camera=BYTES, angles=Box(-1, 1, (2,)), keys=MultiBinary(2))


def policy_of(space: Any) -> Policy:
    """Return a policy that likes some actions more than others."""
    torch.manual_seed(0)
    policy = make_policy(BOX, space, 16)
    actor = policy.network.actor
    torch.nn.init.normal_(actor[-1].bias if space is THREE else actor.log_sigma)
    return policy


def again(policy: Policy) -> Policy:
    """Return the policy that the plain values of a recipe make."""
    maker, arguments = policy.recipe
    other = make_policy(**json.loads(json.dumps(arguments)))
    other.load_state_dict(policy.state_dict())
    assert json.dumps(other.recipe) == json.dumps(policy.recipe)
    assert maker == "make_policy"
    return other


# --- Policies as functions of noise ---------------------------------------------------


def drawn(policy: Policy) -> tuple[torch.Tensor, torch.Tensor]:
    """Return 200,000 actions in one state, and the row that they come from."""
    obs = torch.randn(1, 3)
    noise = policy.noise(200, 1000, torch.Generator().manual_seed(0))
    with torch.no_grad():
        action = policy.act(obs.expand(200, 1000, 3), noise)
        return action.flatten(0, 1), policy(obs)[0]


@pytest.mark.equation("act-discrete")
def test_the_race_draws_from_the_softmax():
    action, row = drawn(policy_of(THREE))
    share = torch.bincount(action, minlength=3) / 200_000
    torch.testing.assert_close(share, row.softmax(-1), atol=5e-3, rtol=0)


@pytest.mark.equation("act-gaussian")
def test_gaussian_actions_have_their_mean_and_deviation():
    action, row = drawn(policy_of(BOUNDED))
    found = torch.cat([action.mean(0), action.std(0).log()])
    torch.testing.assert_close(found, row, atol=1e-2, rtol=0)


# --- Action distributions against those of PyTorch ------------------------------------

CATEGORICAL = CategoricalActions(5)
GAUSSIAN = GaussianActions([-1.0, 0.0, -np.inf], [1.0, 2.0, np.inf])
both_kinds = pytest.mark.parametrize("actions", [CATEGORICAL, GAUSSIAN])


def peer_of(actions: Any, row: torch.Tensor) -> Any:
    """Return what PyTorch makes of rows."""
    if actions is CATEGORICAL:
        return Categorical(logits=row)
    mu, log_sigma = row.chunk(2, -1)
    return Independent(Normal(mu, log_sigma.exp()), 1)


@both_kinds
@settings(max_examples=30)
@given(st.sampled_from([(1,), (6,), (4, 3), (2, 1, 3)]), st.integers(0, 2**31))
def test_rows_mean_what_pytorchs_distributions_say(actions, shape, seed):
    torch.manual_seed(seed)
    # Logits that are far apart among them.
    width, scale = (5, 6.0) if actions is CATEGORICAL else (6, 1.0)
    rows = scale * torch.randn(2, *shape, width, dtype=torch.float64)
    row, other = rows.requires_grad_().unbind()
    peer, other_peer = peer_of(actions, row), peer_of(actions, other)
    kl = kl_divergence(peer, other_peer)
    # Actions of both, so that some are unlikely.
    for action in (peer.sample(), other_peer.sample()):
        found = *actions.evaluate(row, action), actions.kl(row, other)
        wanted = peer.log_prob(action), peer.entropy(), kl
        assert_same(torch.stack(found), torch.stack(wanted), row, other)
    assert (actions.kl(row, row) == 0).all()


# --- Out into the world ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "options"),
    [
        (BOX, {"normalize": False}),
        (BOX, {"normalize": True}),
        (BYTES, {"convolutions": ((4, 3, 2), (5, 2, 1))}),
        (STICK, {"share_encoder": True}),
    ],
)
@pytest.mark.parametrize("space", [THREE, Box(-2, np.inf, (2,))])
def test_a_recipe_builds_the_same_policy_from_plain_values(space, seen, options):
    policy = make_policy(seen, space, 8, **options)
    obs, other = torch.rand(4, 5, flatdim(seen)), again(policy)
    action = policy.act(obs, 0.0).detach()
    assert policy.value(obs).shape == (4, 5)
    assert torch.equal(other.act(obs, 0.0), action)
    sent = policy.to_env(action[0])
    assert sent.tolist() == other.to_env(action[0]).tolist()
    assert all(space.contains(x) for x in sent)


LARGEST = float(np.finfo(np.float64).max)


@pytest.mark.parametrize(
    ("low", "high", "dtype", "sent"),
    [
        (-1, 3, np.float32, [[1, 3], [-1, 3]]),
        (-np.inf, np.inf, np.float32, [[0, 1], [-7e4, 7e4]]),
        (-LARGEST, LARGEST, np.float64, [[0, 1], [-7e4, 7e4]]),
        (0, np.inf, np.float32, [[0, 1], [0, 7e4]]),
        (-0.1, 0.1, np.float16, [[0, 0.1], [-0.1, 0.1]]),
    ],
)
def test_what_is_sent_is_in_the_box_and_bounds_that_mean_none_stretch_nothing(
    low, high, dtype, sent
):
    space = Box(low, high, (2,), dtype)
    for policy in (make_policy(BOX, space), again(make_policy(BOX, space))):
        actions = policy.to_env(torch.tensor([[0.0, 1.0], [-7e4, 7e4]]))
        np.testing.assert_allclose(actions, sent, rtol=1e-3)
        assert all(space.contains(action) for action in actions)


@pytest.mark.parametrize(
    ("seen", "space", "options", "words"),
    [
        (Box(-1, 1, (2, 2)), THREE, {}, "observation_space"),
        (BOX, THREE, {"share_encoder": True}, "share_encoder"),
    ],
)
def test_what_does_not_fit_is_named(seen, space, options, words):
    with pytest.raises(ValueError, match=words):
        make_policy(seen, space, **options)


@pytest.mark.parametrize(
    ("seen", "kept"),
    [
        (BYTES, np.uint8),
        (Box(0, 255, (128,), np.uint8), np.float32),
        (STICK, np.float32),
    ],
)
def test_rollouts_keep_the_bytes_of_pictures_as_bytes(seen, kept):
    policy, envs = make_policy(seen, THREE), SimpleNamespace()
    envs.single_observation_space = seen
    assert kept_dtype(policy, envs) == kept
    # Only an encoder makes numbers of them in the network.
    assert policy.reads_bytes == (len(seen.shape or (1, 1)) > 1)


# --- Moments --------------------------------------------------------------------------


@pytest.mark.equation("pooled-moments")
@settings(max_examples=50)
@given(st.integers(0, 2**31), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_moments_of_parts_are_those_of_the_whole(seed, sizes):
    rng = np.random.default_rng(seed)
    parts = [rng.normal(rng.normal(), 2.0, (size, 3)) for size in sizes]
    moments, everything = RunningMoments(3), np.concatenate(parts)
    for part in parts:
        moments.update(torch.as_tensor(part))
    np.testing.assert_allclose(moments.mean, everything.mean(0), atol=1e-10)
    np.testing.assert_allclose(moments.var, everything.var(0), atol=1e-10)
    assert moments.count == len(everything)


def test_items_are_normalised_by_what_was_seen_and_within_ten():
    torch.manual_seed(0)
    moments, items = RunningMoments(2), 50 + torch.randn(1000, 2)
    items[:, 1] = 2.0  # it never moves
    moments.update(items)
    out = moments(items)[:, 0]
    assert out.mean().item() == pytest.approx(0, abs=1e-5)
    assert out.std().item() == pytest.approx(1, abs=1e-3)
    # A variance of 1e-8 is added, as Gymnasium does.
    steps = moments(torch.tensor([[1e6, 2.00001], [-1e6, 2.0]], dtype=torch.float64))
    np.testing.assert_allclose(steps, [[10, 0.1], [-10, 0]], rtol=1e-6)


@pytest.mark.equation("reward-scale")
def test_rewards_are_divided_by_the_deviation_of_the_sum_so_far():
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
    # What never changed is divided by a ten-thousandth.
    no = torch.zeros(1, 1, dtype=torch.bool)
    scaled = RewardScaler(1, 0.9)(torch.full((1, 1), 1e-5), no, ~no)
    torch.testing.assert_close(scaled.item(), 0.1, rtol=1e-6, atol=0)


def test_what_moments_and_scales_do_not_take_leaves_no_trace():
    moments, scaler = RunningMoments(3), RewardScaler(2, 0.9)
    items, flag = torch.ones(5, 3), torch.ones(5, 2).bool()
    with pytest.raises(ValueError, match="items must be finite"):
        moments.update(items / 0)
    with pytest.raises(ValueError, match="reward must be finite"):
        scaler(items[:, :2] / 0, flag, flag)
    assert moments.count == scaler.moments.count == 0
    assert not scaler.carry.any()
