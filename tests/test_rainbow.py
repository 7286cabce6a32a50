"""Rainbow: noisy layers, errors of a batch and the agent, against slow references."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from projections import exact_projection
from torch import nn

from literate_rl.actors.apex import RainbowApexConfig
from literate_rl.apps.training import make_learner
from literate_rl.check.own_models import LogitsOf
from literate_rl.data.replay import Batch
from literate_rl.learners.dqn import EpsilonGreedy
from literate_rl.learners.rainbow import (
    DistributionalQLearning,
    RainbowConfig,
    RainbowNetwork,
    RainbowPolicy,
    make_rainbow_policy,
)
from literate_rl.maths.noisy import NoisyLinear, factorised_noise
from literate_rl.nets.encoders import ConvolutionalEncodingNetwork

STATES, LIST = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


# --- Noisy layers --------------------------------------------------------------------


@pytest.mark.equation("noisy-layer")
@pytest.mark.equation("noisy-weights")
@given(
    st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**32 - 1)
)
def test_a_noisy_layer_is_a_layer_with_random_weights(batch, n, m, seed):
    torch.manual_seed(seed)
    layer, x = NoisyLinear(n, m).double(), torch.randn(batch, n).double()
    mean, deviation = layer.mean, layer.deviation
    for parameter in deviation.parameters():
        nn.init.normal_(parameter)
    noise = factorised_noise(1, batch, n + m, generator(seed))[0].double()
    for row, eta, found in zip(x, noise, layer(x, noise), strict=True):
        weight = mean.weight + deviation.weight * torch.outer(eta[n:], eta[:n])
        slow = weight @ row + mean.bias + deviation.bias * eta[n:]
        torch.testing.assert_close(found, slow)
    # One noise for all rows makes the same weights for all; without it they are means.
    same = layer(x, noise[:1].expand(batch, -1))
    torch.testing.assert_close(layer(x, noise[0]), same)
    assert torch.equal(layer(x, 0.0), mean(x))
    assert torch.equal(layer(x, 0 * noise), mean(x))


@pytest.mark.equation("factorised-noise")
def test_noise_is_the_signed_root_of_a_normal_number():
    noise = factorised_noise(2, 3, 16, generator())
    normal = torch.randn(2, 3, 16, generator=generator())
    torch.testing.assert_close(noise * noise.abs(), normal)


@pytest.mark.equation("noisy-start")
def test_the_deviations_start_as_in_the_paper():
    layer, bound = NoisyLinear(512, 51), 512**-0.5
    for spread, mean in zip(
        layer.deviation.parameters(), layer.mean.parameters(), strict=True
    ):
        assert torch.equal(spread, torch.full_like(spread, 0.5 * bound))
        assert 0.9 * bound < mean.abs().max() <= bound
        assert abs(mean.mean()) < 0.3 * bound


# --- Networks and policies -----------------------------------------------------------


KINDS = [
    {"num_atoms": k, "dueling": d, "noisy": n}
    for k in (1, 5)
    for d in (False, True)
    for n in (False, True)
]


@pytest.mark.parametrize("kind", KINDS[1::6])
def test_pictures_may_come_flat_and_as_bytes(kind):
    pictures = spaces.Box(0, 255, (3, 7, 7), np.uint8)
    made = make_rainbow_policy(pictures, spaces.Discrete(4), hidden=16, **kind)
    assert isinstance(made.network.first.encoder, ConvolutionalEncodingNetwork)
    obs = torch.randint(256, (2, 5, 3, 7, 7), dtype=torch.uint8)
    value = made(obs)
    assert value.shape == (2, 5, 4)
    assert torch.equal(value, made(obs.flatten(2)))
    assert torch.equal(value, made(obs.float()))
    assert made.act(obs[0], made.noise(1, 5, generator())[0]).shape == (5,)


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_means_and_greedy_actions_the_best_of_them(kind):
    policy = make_rainbow_policy(STATES, LIST, hidden=16, **kind)
    assert type(policy.network.first) is nn.Linear  # as in old checkpoints
    obs = torch.randn(3, 6, 4)
    value = policy(obs)
    if policy.distributional:
        prob = policy.network(obs, 0.0).softmax(-1)
        torch.testing.assert_close(value, (prob * torch.arange(0, 101, 25)).sum(-1))
    assert torch.equal(policy.act(obs, 0.0), value.argmax(-1))
    torch.testing.assert_close(policy.value(obs), value.amax(-1))
    # One noise for each step and environment; it changes some action or other.
    action = policy.act(obs, 100 * policy.noise(3, 6, generator()))
    assert action.shape == (3, 6)
    assert torch.equal(action, value.argmax(-1)) != kind["noisy"]


@pytest.mark.equation("dueling-logits")
def test_dueling_logits_are_the_same_if_all_advantages_grow_alike():
    network = RainbowNetwork(4, 3, 5, 16, dueling=True, noisy=False, sigma=0.5)
    obs, layers = torch.randn(7, 4), network.layers
    before = network(obs, 0.0)
    hidden = torch.relu(layers[0](torch.relu(network.first(obs))))
    # The mean over the actions is the value's logit, for each atom.
    torch.testing.assert_close(before.mean(1), layers[-1](hidden).view(7, 4, 5)[:, 0])
    with torch.no_grad():
        layers[-1].bias.view(4, 5)[1:] += torch.randn(5)
    torch.testing.assert_close(network(obs, 0.0), before)


def test_probabilities_of_a_foreign_network_become_logits():
    own = RainbowNetwork(4, 2, 5, 16, dueling=True, noisy=False, sigma=0.5)

    class Foreign(nn.Module):
        def forward(self, obs):
            return own(obs, 0.0).softmax(-1)

    policies = [
        RainbowPolicy(network, EpsilonGreedy(2), 0.0, 100.0)
        for network in (own, LogitsOf(Foreign(), 2, 5))
    ]
    obs = torch.randn(7, 4)
    torch.testing.assert_close(*(p.value(obs) for p in policies))
    losses = [error_of(policy, policies[0]).loss for policy in policies]
    torch.testing.assert_close(*losses)
    # A probability of zero has a finite logit.
    logits = LogitsOf(nn.Identity(), 1, 2)(torch.tensor([[[0.0, 1.0]]]), 0.0)
    assert logits.flatten().tolist() == pytest.approx([math.log(1e-8), 0.0], abs=1e-6)


# --- The error of a batch ------------------------------------------------------------


def batch_of():
    g = generator()
    obs, next_obs = torch.randn(2, 8, 4, generator=g)
    discount = 0.9 * (torch.rand(8, generator=g) > 0.3).float()
    action, reward = torch.randint(2, (8,), generator=g), torch.rand(8, generator=g)
    return Batch(obs, action, reward, next_obs, discount, discount, torch.arange(8))


def error_of(policy, older, **changes):
    """Return the error of a batch, where this is the older network."""
    algorithm = DistributionalQLearning(policy, RainbowConfig(**changes))
    algorithm.target.network = older
    return algorithm.error(batch_of(), generator())


@pytest.mark.equation("rainbow-target")
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("num_atoms", [1, 5])
def test_the_error_of_a_batch_is_computed_sample_by_sample(double, num_atoms):
    kind = {"hidden": 16, "num_atoms": num_atoms, "value_max": 4.0, "noisy": False}
    policy, older = (make_rainbow_policy(STATES, LIST, **kind) for _ in range(2))
    found, batch = error_of(policy, older, double=double), batch_of()
    assert not any(x.requires_grad for x in found[1:])
    for i, action in enumerate(batch.action):
        obs, next_obs = batch.obs[i], batch.next_obs[i]
        reward, discount = batch.reward[i].item(), batch.discount[i].item()
        best = (policy if double else older)(next_obs).argmax()
        value = policy(obs)[action].item()
        if num_atoms == 1:
            gap = abs(value - reward - discount * older(next_obs)[best].item())
            loss = 0.5 * gap**2 if gap < 1 else gap - 0.5
        else:
            prob = older.network(next_obs, 0.0).softmax(-1)[best].tolist()
            aim = torch.tensor(exact_projection(prob, reward, discount, 0, 4))
            own = policy.network(obs, 0.0).log_softmax(-1)[action]
            loss = gap = (torch.xlogy(aim, aim) - aim * own).sum().item()
        told = [x[i].item() for x in (found.loss, found.td_error.abs(), found.value)]
        assert told == pytest.approx([loss, gap, value], abs=1e-5)


def test_the_target_network_has_noise_of_its_own():
    seen = []

    class Spy(nn.Linear):
        num_actions, num_atoms, noise_sizes = 2, 1, (3,)

        def forward(self, obs, noise):
            seen.append(tuple(noise.tolist()))
            return super().forward(obs).unsqueeze(-1)

    error_of(*(RainbowPolicy(Spy(4, 2), EpsilonGreedy(2), 0.0, 1.0) for _ in "ab"))
    assert len({*seen}) == len(seen) == 3


# --- The agent -----------------------------------------------------------------------


def test_returns_beyond_the_atoms_are_told_and_warned_of_once():
    # Each step of Acrobot costs 1, so all returns are below 0.
    ends = {"num_atoms": 11, "value_min": 0.0, "value_max": 100.0}
    config: Any = RainbowConfig(
        hidden=16, **ends, learning_starts=104, iteration_steps=100
    )
    learner = make_learner("rainbow", "Acrobot-v1", config, {})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        rows = [learner.iterate() for _ in range(5)]
    told = [str(x.message) for x in seen if "value_min" in str(x.message)]
    first, *shares = [row["losses/beyond_atoms"] for row in rows]
    assert math.isnan(first), "nothing has been learned yet"
    assert min(shares) > 0.05
    (only,) = told
    assert only.startswith(f"{shares[0]:.0%} of what the targets expect lies beyond")


@pytest.mark.parametrize("kind", [RainbowConfig, RainbowApexConfig])
def test_atoms_that_do_not_rise_are_refused(kind):
    with pytest.raises(ValueError, match="value_min"):
        kind(value_min=1.0, value_max=1.0)
