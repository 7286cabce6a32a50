"""Hybrid actions against slow float64 references, gradients included; environments."""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import replace
from functools import partial
from importlib.metadata import packages_distributions

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from learning import median_of_seeds
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from literate_rl import hybrid_action
from literate_rl.__main__ import main
from literate_rl.agents import make_envs, seed_everything
from literate_rl.evaluation import evaluate
from literate_rl.hybrid_action import (
    HybridActions,
    HybridDistribution,
    HybridLander,
    HybridPolicyNetwork,
    Moving,
    draw,
    log_softmax,
    make_hybrid_policy,
    mask_args,
    ppo_policy_error_hybrid,
    ppo_policy_error_hybrid_per_head,
    sample_hybrid_action,
    select_args,
    ttorch,
)
from literate_rl.ppo import PPO, Policy, ppo_settings
from literate_rl.ppo_error import (
    clipped_surrogate,
    policy_error_from_log_prob,
    ppo_policy_data,
)
from literate_rl.workshop.nests import as_space, leaves, plain_space
from literate_rl.workshop.runs import fit, load, save_checkpoint

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

# Types with one, no and two arguments. No symmetry, and K differs from A.
MASK = torch.tensor([[0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0]], dtype=torch.bool)
ERRORS = [ppo_policy_error_hybrid, ppo_policy_error_hybrid_per_head]


def logit_of(type_logit, mu, sigma):
    args = {"mu": torch.as_tensor(mu), "sigma": torch.as_tensor(sigma)}
    return ttorch.as_tensor(
        {"action_type": torch.as_tensor(type_logit), "action_args": args}
    )


def action_of(action_type, action_args):
    return ttorch.as_tensor(
        {
            "action_type": torch.as_tensor(action_type),
            "action_args": torch.as_tensor(action_args),
        }
    )


def leaves_of(logit) -> list[Tensor]:
    return [logit.action_type, logit.action_args.mu, logit.action_args.sigma]


def random_logit(batch, mask, seed, dtype=torch.float64, grad=False):
    generator = torch.Generator().manual_seed(seed)
    num_types, num_args = mask.shape
    sizes = (num_types, num_args, num_args)
    z, mu, w = (
        torch.randn(batch, size, generator=generator, dtype=torch.float64)
        for size in sizes
    )
    leaves = [x.to(dtype).requires_grad_(grad) for x in (2 * z, mu, (0.5 * w).exp())]
    return logit_of(*leaves)


@st.composite
def cases(draw_from):
    """A mask with any rows, a batch of policies (two of them) and of actions."""
    num_types = draw_from(st.integers(1, 4))
    num_args = draw_from(st.integers(1, 4))
    row = st.lists(st.booleans(), min_size=num_args, max_size=num_args)
    rows = st.lists(row, min_size=num_types, max_size=num_types)
    mask = torch.tensor(draw_from(rows), dtype=torch.bool)
    batch, seed = draw_from(st.integers(1, 4)), draw_from(st.integers(0, 2**16))
    logit = random_logit(batch, mask, seed, grad=True)
    other = random_logit(batch, mask, seed + 1, grad=True)
    generator = torch.Generator().manual_seed(seed)
    action_type = torch.randint(0, num_types, (batch,), generator=generator)
    noise = torch.randn(batch, num_args, generator=generator, dtype=torch.float64)
    return mask, logit, other, action_of(action_type, noise)


# --- References: torch.distributions, one sample and one argument at a time ---------


def parts(logit, b):
    """The distribution of the type and those of the arguments at one state."""
    type_dist = Categorical(logits=logit.action_type[b])
    args = logit.action_args
    pairs = zip(args.mu[b], args.sigma[b], strict=True)
    return type_dist, [Normal(mu, sigma) for mu, sigma in pairs]


def used(mask, k):
    return [j for j, counts in enumerate(mask[k].tolist()) if counts]


def log_prob_reference(logit, mask, action):
    rows = []
    for b, k in enumerate(action.action_type.tolist()):
        type_dist, arg_dists = parts(logit, b)
        row = type_dist.log_prob(torch.tensor(k))
        for j in used(mask, k):
            row = row + arg_dists[j].log_prob(action.action_args[b, j])
        rows.append(row)
    return torch.stack(rows)


def entropy_reference(logit, mask):
    rows = []
    for b in range(len(logit.action_type)):
        type_dist, arg_dists = parts(logit, b)
        row = type_dist.entropy()
        for k, p in enumerate(type_dist.probs):
            for j in used(mask, k):
                row = row + p * arg_dists[j].entropy()
        rows.append(row)
    return torch.stack(rows)


def kl_reference(logit, other, mask):
    rows = []
    for b in range(len(logit.action_type)):
        (type_dist, arg_dists), (type_other, arg_others) = (
            parts(tree, b) for tree in (logit, other)
        )
        row = kl_divergence(type_dist, type_other)
        for k, p in enumerate(type_dist.probs):
            for j in used(mask, k):
                row = row + p * kl_divergence(arg_dists[j], arg_others[j])
        rows.append(row)
    return torch.stack(rows)


def assert_same(actual, expected, *leaves):
    """Compare values, and the gradients of a weighted sum of them."""
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    weights = torch.linspace(1.0, 2.0, len(actual), dtype=torch.float64)
    grads = []
    for result in (actual, expected):
        total = (result * weights).sum()
        found = torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True)
        grads.append([torch.zeros(()) if g is None else g for g in found])
    for left, right in zip(*grads, strict=True):
        left, right = torch.broadcast_tensors(left, right)
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9, check_dtype=False)


def quadrature(logit, mask):
    """Enumerate the types of one state and integrate over the arguments they use.

    Returns actions and weights: a sum of f(action) * weight is the expectation of f.
    Arguments that do not count are NaN. Gauss-Hermite, exact for polynomials.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    prob = torch.softmax(logit.action_type[0].detach(), 0)
    types, rows, totals = [], [], []
    for k, p in enumerate(prob.tolist()):
        columns = used(mask, k)
        for index in itertools.product(range(len(nodes)), repeat=len(columns)):
            row = torch.full((mask.shape[1],), torch.nan, dtype=torch.float64)
            total = p
            for j, i in zip(columns, index, strict=True):
                mu, sigma = (logit.action_args[key][0, j] for key in ("mu", "sigma"))
                row[j] = (mu + sigma * nodes[i]).detach()
                total *= weights[i]
            types.append(k)
            rows.append(row)
            totals.append(total)
    action = action_of(types, torch.stack(rows))
    return action, torch.tensor(totals, dtype=torch.float64)


def repeated(logit, batch):
    return logit_of(*(leaf.detach().expand(batch, -1) for leaf in leaves_of(logit)))


# --- The network --------------------------------------------------------------------


@pytest.fixture
def network():
    torch.manual_seed(0)
    shape = {"action_type_shape": 3, "action_args_shape": 4}
    return HybridPolicyNetwork(10, shape)


@pytest.mark.equation("hybrid-encoder")
def test_encoder_is_two_layers_with_rectifiers(network):
    x = torch.randn(5, 10)
    first, _, second, _ = network.encoder
    hidden = np.maximum(
        x.numpy() @ first.weight.detach().numpy().T + first.bias.detach().numpy(), 0
    )
    y = np.maximum(
        hidden @ second.weight.detach().numpy().T + second.bias.detach().numpy(), 0
    )
    assert (first.in_features, first.out_features, second.out_features) == (10, 16, 32)
    np.testing.assert_allclose(network.encoder(x).detach().numpy(), y, atol=1e-5)


@pytest.mark.equation("hybrid-heads")
def test_heads_are_linear_and_deviations_are_free(network):
    with torch.no_grad():
        network.action_args_log_sigma.copy_(torch.tensor([[0.0, 1.0, -1.0, 0.5]]))
    x = torch.randn(5, 10)
    logit, features = network(x), network.encoder(x)
    for head, value in (
        (network.action_type_head, logit.action_type),
        (network.action_args_mu, logit.action_args.mu),
    ):
        torch.testing.assert_close(value, features @ head.weight.T + head.bias)
    sigma = torch.tensor([1.0, math.e, 1 / math.e, math.sqrt(math.e)]).expand(5, 4)
    torch.testing.assert_close(logit.action_args.sigma, sigma)


def test_network_has_the_parts_of_the_tutorial(network):
    assert network.action_type_shape == 3
    assert network.action_args_shape == 4
    assert network.action_args_log_sigma.shape == (1, 4)
    assert not network.action_args_log_sigma.any()
    logit = network(torch.rand(6, 10))
    assert isinstance(logit, ttorch.Tensor)
    assert not isinstance(logit, Tensor)
    shapes = [tuple(leaf.shape) for leaf in leaves_of(logit)]
    assert shapes == [(6, 3), (6, 4), (6, 4)]


def test_gradients_flow_only_along_the_graph(network):
    heads = {
        "action_type": network.action_type_head.weight,
        "mu": network.action_args_mu.weight,
        "sigma": network.action_args_log_sigma,
    }
    logit = network(torch.rand(6, 10))
    for output, leaf in zip(heads, leaves_of(logit), strict=True):
        total = (leaf * torch.rand_like(leaf)).sum()
        for name, parameter in (*heads.items(), ("encoder", network.encoder[0].weight)):
            (grad,) = torch.autograd.grad(
                total, parameter, retain_graph=True, allow_unused=True
            )
            reached = grad is not None and bool(grad.any())
            wanted = name == output or (name == "encoder" and output != "sigma")
            assert reached == wanted, (output, name)


def test_log_sigma_gets_the_gradient_of_the_whole_batch(network):
    network(torch.rand(6, 10)).action_args.sigma.sum().backward()
    torch.testing.assert_close(
        network.action_args_log_sigma.grad, torch.full((1, 4), 6.0)
    )


def test_network_from_space():
    env = Moving()
    network = HybridPolicyNetwork.from_space(env.observation_space, env.action_space)
    assert network.encoder[0].in_features == 9
    assert (network.action_type_shape, network.action_args_shape) == (3, 2)
    flat = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (4,))))
    network = HybridPolicyNetwork.from_space(env.observation_space, flat, mask=MASK)
    assert network.action_args_shape == 4


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Box(0, 1, (3, 3))])
def test_network_from_space_wants_a_vector(space):
    with pytest.raises(ValueError, match="observation_space must be a Box with one"):
        HybridPolicyNetwork.from_space(space, Moving().action_space)


SHAPE = {"action_type_shape": 3, "action_args_shape": 2}


@pytest.mark.parametrize(
    ("obs_shape", "action_shape", "error", "message"),
    [
        (0, SHAPE, ValueError, "obs_shape must be at least 1, got 0"),
        (1.5, SHAPE, TypeError, "obs_shape must be an int, got float"),
        (True, SHAPE, TypeError, "obs_shape must be an int, got bool"),
        (4, [3, 2], TypeError, "action_shape must be a dict"),
        (4, {"action_type_shape": 3}, ValueError, r"got \['action_type_shape'\]"),
        (4, {**SHAPE, "more": 1}, ValueError, "'more'"),
        (4, {**SHAPE, "action_args_shape": 0}, ValueError, "args_shape.* at least 1"),
        (4, {**SHAPE, "action_args_shape": "2"}, TypeError, "args_shape.* an int"),
    ],
)
def test_network_refuses_bad_sizes(obs_shape, action_shape, error, message):
    with pytest.raises(error, match=message):
        HybridPolicyNetwork(obs_shape, action_shape)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.rand(10), ValueError, r"x must have shape \(B, 10\), got \(10,\)"),
        (torch.rand(2, 9), ValueError, r"got \(2, 9\)"),
        (torch.rand(2, 10).double(), TypeError, "x must have dtype torch.float32"),
        (np.zeros((2, 10)), TypeError, "x must be a tensor, got ndarray"),
    ],
)
def test_network_refuses_bad_states(network, x, error, message):
    with pytest.raises(error, match=message):
        network(x)


# --- Sampling -----------------------------------------------------------------------


@pytest.mark.equation("hybrid-softmax")
@pytest.mark.equation("hybrid-gaussian")
@pytest.mark.parametrize("through", ["function", "distribution"])
def test_samples_follow_the_distribution(through):
    number = 60_000
    type_logit = torch.tensor([[0.3, -torch.inf, 1.5, -1.0]])
    mu, sigma = torch.tensor([[0.5, -3.0]]), torch.tensor([[0.1, 2.0]])
    logit = logit_of(*(x.repeat(number, 1) for x in (type_logit, mu, sigma)))
    generator = torch.Generator().manual_seed(0)
    if through == "function":
        action = sample_hybrid_action(logit, generator)
    else:
        mask = torch.ones(4, 2, dtype=torch.bool)
        action = HybridDistribution(logit, mask).sample(generator)
    # By definition: exponentials over their sum.
    weights = np.exp(type_logit[0].numpy().astype(np.float64))
    prob = weights / weights.sum()
    counts = action.action_type.bincount(minlength=4).numpy()
    assert counts[1] == 0
    # Five standard errors of a frequency, and of a mean and a deviation below.
    assert (np.abs(counts / number - prob) <= 5 * np.sqrt(prob / number)).all()
    # The whole law, not only its moments: the share of samples below each quantile.
    u = ((action.action_args - mu) / sigma).double()
    for level in (0.01, 0.2, 0.5, 0.8, 0.99):
        share = (u < Normal(0.0, 1.0).icdf(torch.tensor(level)).item()).double().mean(0)
        bound = 5 * math.sqrt(level * (1 - level) / number)
        assert ((share - level).abs() < bound).all()
    # Independent of each other and of the type.
    columns = torch.cat([u, action.action_type.double().unsqueeze(1)], 1).T
    correlation = torch.corrcoef(columns) - torch.eye(3)
    assert correlation.abs().max() < 5 / math.sqrt(number)


def test_sampling_is_deterministic_and_leaves_the_global_generator_alone():
    logit = random_logit(50, MASK, seed=0, grad=True)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    samples = []
    for seed in (7, 7, 8):
        generator = torch.Generator().manual_seed(seed)
        samples.append(sample_hybrid_action(logit, generator))
    assert torch.equal(torch.get_rng_state(), before)
    for key in ("action_type", "action_args"):
        assert torch.equal(samples[0][key], samples[1][key])
        assert not torch.equal(samples[0][key], samples[2][key])
        assert not samples[0][key].requires_grad
    torch.manual_seed(1)
    first = sample_hybrid_action(logit)
    torch.manual_seed(1)
    again = HybridDistribution(logit, MASK).sample()
    assert torch.equal(first.action_args, again.action_args)
    assert first.action_type.dtype == torch.int64


def test_impossible_types_lose_even_the_unluckiest_race(monkeypatch):
    """Uniform numbers at the end of their range make no tie with probability zero."""
    prob = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1e-30, 1.0]])
    mu = torch.zeros(2, 1)
    for at_the_low_end in (True, False):

        def at_the_end(self, low, high, generator=None, at_the_low_end=at_the_low_end):
            return self.fill_(low if at_the_low_end else high - 2**-24)

        monkeypatch.setattr(Tensor, "uniform_", at_the_end)
        assert draw(prob, mu, mu + 1, None).action_type.tolist() == [1, 2]


def test_sampling_accepts_plain_dictionaries():
    args = {"mu": torch.zeros(2, 1), "sigma": torch.ones(2, 1)}
    action = sample_hybrid_action(
        {"action_type": torch.zeros(2, 3), "action_args": args}
    )
    assert isinstance(action, ttorch.Tensor)
    assert action[1:].action_args.shape == (1, 1)


# --- Masks --------------------------------------------------------------------------


def test_masking_keeps_rows_and_drops_what_does_not_count():
    args = torch.tensor([[1.0, torch.nan], [3.0, 4.0], [torch.inf, 6.0]])
    data_mask = torch.tensor([[True, False], [True, True], [False, False]])
    kept = args.clone()
    expected = torch.tensor([[1.0, 0.0], [3.0, 4.0], [0.0, 0.0]])
    assert torch.equal(mask_args(args, data_mask), expected)
    assert torch.equal(args.nan_to_num(9.0), kept.nan_to_num(9.0))


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 1000))
def test_select_is_a_lookup_when_each_row_has_one(batch, num_args, seed):
    generator = torch.Generator().manual_seed(seed)
    args = torch.randn(batch, num_args, generator=generator)
    column = torch.randint(0, num_args, (batch,), generator=generator)
    data_mask = torch.nn.functional.one_hot(column, num_args).bool()
    expected = [args[b, j].item() for b, j in enumerate(column.tolist())]
    assert select_args(args, data_mask).tolist() == expected


def test_select_names_the_rows():
    data_mask = torch.tensor([[True, False], [False, False], [True, True]])
    with pytest.raises(ValueError, match=r"rows \[1, 2\] have \[0, 2\]"):
        select_args(torch.zeros(3, 2), data_mask)


@pytest.mark.parametrize("function", [mask_args, select_args])
def test_data_masks_are_checked(function):
    args = torch.zeros(3, 2)
    with pytest.raises(TypeError, match=r"data_mask must be bool, got torch\.int64"):
        function(args, torch.ones(3, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"data_mask must have shape \(3, 2\)"):
        function(args, torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(TypeError, match="data_mask must be a tensor"):
        function(args, [[True, False]] * 3)
    with pytest.raises(ValueError, match=r"action_args must have shape \(B, A\)"):
        function(torch.zeros(3), torch.ones(3, dtype=torch.bool))


@pytest.mark.erratum("masked-select-misaligns")
def test_masked_select_misaligns_rows():
    mask = torch.tensor([[1, 0], [0, 1], [0, 0]], dtype=torch.bool)
    args = torch.tensor([[10.0, 11], [20, 21], [30, 31], [40, 41]])
    action = action_of([0, 2, 1, 0], args)
    data_mask = mask[action.action_type]
    selected = ttorch.masked_select(action.action_args, data_mask)
    assert selected.tolist() == [10.0, 31.0, 40.0]  # four samples, three values
    action.action_args = selected
    third = action[2:3]
    assert third.action_type.item() == 1
    assert third.action_args.item() == 40.0  # sample 2 took 31, sample 3 took 40
    # A type with two arguments makes it longer instead.
    both = torch.tensor([[1, 1], [0, 1], [1, 1]], dtype=torch.bool)
    assert len(torch.masked_select(args, both[action.action_type])) == 7
    assert mask_args(args, data_mask)[2].tolist() == [0.0, 31.0]
    with pytest.raises(ValueError, match=r"rows \[1\]"):
        select_args(args, data_mask)


@pytest.mark.erratum("symmetric-mask")
def test_the_tutorials_mask_cannot_tell_rows_from_columns():
    tutorial = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 1]])
    chain = torch.tensor([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
    logit = random_logit(4, tutorial, seed=0)
    action = sample_hybrid_action(logit, torch.Generator().manual_seed(0))
    values = [
        HybridDistribution(logit, table).log_prob(action)
        for table in (tutorial, tutorial.T, chain, chain.T)
    ]
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[2], values[3])


# --- The distribution ---------------------------------------------------------------


@pytest.mark.equation("hybrid-log-prob")
@given(cases())
def test_log_prob_is_the_masked_sum(case):
    mask, logit, _, action = case
    actual = HybridDistribution(logit, mask).log_prob(action)
    expected = log_prob_reference(logit, mask, action)
    assert actual.shape == action.action_type.shape
    assert_same(actual, expected, *leaves_of(logit))


@pytest.mark.equation("hybrid-entropy")
@given(cases())
def test_entropy_weighs_arguments_with_their_types(case):
    mask, logit, _, _ = case
    actual = HybridDistribution(logit, mask).entropy()
    assert_same(actual, entropy_reference(logit, mask), *leaves_of(logit))


@pytest.mark.equation("hybrid-kl")
@given(cases())
def test_kl_is_that_of_torch_distributions(case):
    mask, logit, other, _ = case
    policy, another = (HybridDistribution(tree, mask) for tree in (logit, other))
    expected = kl_reference(logit, other, mask)
    actual = policy.kl(another)
    assert_same(actual, expected, *leaves_of(logit), *leaves_of(other))
    assert (actual >= -1e-12).all()
    torch.testing.assert_close(policy.kl(policy), torch.zeros_like(actual))


@pytest.mark.equation("hybrid-level")
@pytest.mark.parametrize("seed", range(3))
def test_level_is_the_mean_log_density_of_a_type(seed):
    """Quadrature of the log-density, type by type."""
    logit = random_logit(1, MASK, seed)
    action, weight = quadrature(logit, MASK)
    type_dist, arg_dists = parts(logit, 0)
    log_density = type_dist.log_prob(action.action_type)
    for j, dist in enumerate(arg_dists):
        of_arg = dist.log_prob(action.action_args[:, j].nan_to_num())
        log_density += torch.where(MASK[action.action_type, j], of_arg, 0.0)
    level = HybridDistribution(logit, MASK).level[0]
    for k in range(3):
        rows = action.action_type == k
        mean = (log_density[rows] * weight[rows]).sum() / weight[rows].sum()
        assert level[k].item() == pytest.approx(mean.item(), abs=1e-9)


@pytest.mark.equation("hybrid-short")
@given(cases())
def test_short_forms_are_levels_and_squares(case):
    mask, logit, _, action = case
    policy = HybridDistribution(logit, mask)
    for b, k in enumerate(action.action_type.tolist()):
        z = (action.action_args[b] - policy.mu[b]) / policy.sigma[b]
        spread = sum(1 - z[j].item() ** 2 for j in used(mask, k))
        expected = policy.level[b, k].item() + 0.5 * spread
        assert policy.log_prob(action)[b].item() == pytest.approx(expected, abs=1e-9)
    expected = -(policy.prob * policy.level).sum(-1)
    torch.testing.assert_close(policy.entropy(), expected)


@pytest.mark.parametrize("seed", range(3))
def test_density_entropy_and_kl_by_enumeration_and_quadrature(seed):
    logit = random_logit(1, MASK, seed)
    other = random_logit(1, MASK, seed + 10)
    action, weight = quadrature(logit, MASK)
    policy, another = (
        HybridDistribution(repeated(tree, len(weight)), MASK) for tree in (logit, other)
    )
    log_prob, log_prob_other = policy.log_prob(action), another.log_prob(action)
    one = HybridDistribution(logit, MASK)
    entropy = -(log_prob * weight).sum()
    divergence = ((log_prob - log_prob_other) * weight).sum()
    torch.testing.assert_close(one.entropy()[0], entropy)
    torch.testing.assert_close(one.kl(HybridDistribution(other, MASK))[0], divergence)


@pytest.mark.parametrize("seed", range(3))
def test_density_integrates_to_one(seed):
    """On a grid, which knows nothing of the normal distribution."""
    logit = random_logit(1, MASK, seed)
    policy = HybridDistribution(logit, MASK)
    mass = 0.0
    for k in range(3):
        columns = used(MASK, k)
        grids, cells = [], 1.0
        for j in columns:
            centre, width = policy.mu[0, j].item(), 8 * policy.sigma[0, j].item()
            grids.append(
                torch.linspace(centre - width, centre + width, 201, dtype=torch.float64)
            )
            cells *= (grids[-1][1] - grids[-1][0]).item()
        points = (
            torch.cartesian_prod(*grids).reshape(-1, len(columns)) if grids else None
        )
        rows = 1 if points is None else len(points)
        args = torch.full((rows, 4), torch.nan, dtype=torch.float64)
        if points is not None:
            args[:, columns] = points
        action = action_of([k] * rows, args)
        density = HybridDistribution(repeated(logit, rows), MASK).log_prob(action).exp()
        mass += density.sum().item() * cells
    assert mass == pytest.approx(1.0, abs=1e-6)


@pytest.mark.equation("hybrid-ratio")
@pytest.mark.parametrize("seed", range(3))
def test_expected_ratio_is_one(seed):
    """Importance weights of any policy have mean one under the old policy."""
    old = random_logit(1, MASK, seed)
    new = random_logit(1, MASK, seed)
    new.action_type += torch.tensor([[0.3, -0.2, 0.1]])
    new.action_args.mu += 0.2
    new.action_args.sigma *= 0.9
    action, weight = quadrature(old, MASK)
    log_probs = [
        HybridDistribution(repeated(tree, len(weight)), MASK).log_prob(action)
        for tree in (new, old)
    ]
    ratio = (log_probs[0] - log_probs[1]).exp()
    assert (ratio * weight).sum().item() == pytest.approx(1.0, abs=1e-7)
    assert ratio.std() > 0.1  # it is not one everywhere
    # The error reports the same thing: the mean of -log ratio, weighted by hand.
    batch = len(weight)
    adv = torch.ones(batch, dtype=torch.float64)
    new, old = repeated(new, batch), repeated(old, batch)
    data = ppo_policy_data(new, old, action, adv, None)
    _, info = ppo_policy_error_hybrid(data, MASK)
    assert info.approx_kl == pytest.approx(-ratio.log().mean().item())


@given(st.integers(1, 5), st.integers(0, 1000))
def test_mode_is_argmax_and_means(batch, seed):
    logit = random_logit(batch, MASK, seed, grad=True)
    mode = HybridDistribution(logit, MASK).mode()
    assert mode.action_type.tolist() == logit.action_type.argmax(-1).tolist()
    assert torch.equal(mode.action_args, logit.action_args.mu)
    assert not mode.action_args.requires_grad


def test_masks_of_any_kind_are_read():
    logit = random_logit(3, MASK, seed=0)
    action = sample_hybrid_action(logit)
    expected = HybridDistribution(logit, MASK).log_prob(action)
    for mask in (MASK.int(), MASK.tolist(), MASK.numpy(), MASK.double()):
        assert torch.equal(HybridDistribution(logit, mask).log_prob(action), expected)


@pytest.mark.parametrize("batch", [4, 2000])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_log_softmax_of_few_and_of_many_rows(batch, scale):
    generator = torch.Generator().manual_seed(0)
    logit = scale * torch.randn(batch, 3, generator=generator, dtype=torch.float64)
    logit[0, 1] = -torch.inf
    grads = []
    for function in (log_softmax, lambda x: x - x.logsumexp(-1, keepdim=True)):
        leaf = logit.clone().requires_grad_()
        result = function(leaf)
        result[:, 0].sum().backward()
        grads.append((result.detach(), leaf.grad))
    for left, right in zip(*grads, strict=True):
        torch.testing.assert_close(left, right)


# --- Numbers that must do no harm ---------------------------------------------------


def dangerous(dtype=torch.float32):
    """A policy and actions with all that may go wrong where it does not count."""
    type_logit = torch.tensor([[0.5, -torch.inf, 0.1], [-torch.inf, 0.0, -torch.inf]])
    mu = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.0, 0.0]])
    # Argument 3 counts for no type, and state 1 has a single type without arguments.
    sigma = torch.tensor([[1.0, 0.5, 2.0, 1e-40], [1e-40, 1e-30, 1e-40, 1.0]])
    leaves = [x.to(dtype).requires_grad_() for x in (type_logit, mu, sigma)]
    nan, inf = torch.nan, torch.inf
    args = torch.tensor([[nan, 0.3, -inf, nan], [inf, nan, 1e38, -inf]]).to(dtype)
    return logit_of(*leaves), action_of([0, 1], args)


def finite_grads(total, logit):
    grads = torch.autograd.grad(
        total, leaves_of(logit), retain_graph=True, allow_unused=True
    )
    return all(g is None or bool(g.isfinite().all()) for g in grads)


def test_harmless_forward_and_backward():
    logit, action = dangerous()
    policy = HybridDistribution(logit, MASK)
    log_prob, entropy = policy.log_prob(action), policy.entropy()
    p = math.exp(0.5) / (math.exp(0.5) + math.exp(0.1))
    density = Normal(0.2, 0.5).log_prob(torch.tensor(0.3)).item()
    assert log_prob[0].item() == pytest.approx(math.log(p) + density, abs=1e-6)
    assert log_prob[1].item() == 0.0
    unit = 0.5 * math.log(2 * math.pi * math.e)
    expected = -p * math.log(p) - (1 - p) * math.log(1 - p)
    expected += p * (unit + math.log(0.5)) + (1 - p) * (2 * unit + math.log(2.0))
    assert entropy[0].item() == pytest.approx(expected, abs=1e-6)
    assert entropy[1].item() == pytest.approx(0.0, abs=1e-6)
    for total in (log_prob.sum(), entropy.sum(), 1e6 * entropy.sum()):
        assert finite_grads(total, logit)


def test_harmless_divergence():
    logit, _ = dangerous()
    leaves = [leaf.detach().clone() for leaf in leaves_of(logit)]
    leaves[1] += 0.5
    other = logit_of(*(leaf.requires_grad_() for leaf in leaves))
    policy, another = (HybridDistribution(tree, MASK) for tree in (logit, other))
    divergence = policy.kl(another)
    p = policy.prob[0, 0].item()
    # A shift of 0.5 in argument 1 (type 0), 0 and 2 (type 2): half its square each.
    expected = p * 0.5 + (1 - p) * 0.5 * (0.25 / 1.0 + 0.25 / 4.0)
    assert divergence[0].item() == pytest.approx(expected, rel=1e-5)
    assert divergence[1].item() == pytest.approx(0.0, abs=1e-6)
    assert finite_grads(divergence.sum(), logit)
    assert finite_grads(policy.kl(another).sum(), other)


def test_divergence_is_infinite_where_a_type_was_taken_away():
    logit = logit_of([[0.0, 0.0]], [[0.0]], [[1.0]])
    other = logit_of([[0.0, -torch.inf]], [[0.0]], [[1.0]])
    mask = torch.ones(2, 1, dtype=torch.bool)
    policy, another = (HybridDistribution(tree, mask) for tree in (logit, other))
    assert policy.kl(another).item() == torch.inf
    assert another.kl(policy).item() == pytest.approx(math.log(2.0))


def test_the_log_prob_of_a_type_taken_away_is_minus_infinity():
    logit, _ = dangerous()
    log_prob = HybridDistribution(logit, MASK).log_prob(
        action_of([1, 0], torch.zeros(2, 4))
    )
    assert log_prob.tolist() == [-torch.inf, -torch.inf]


def test_tiny_deviations_that_count():
    logit = logit_of([[0.0]], [[1.0]], [[1e-30]])
    logit = logit_of(*(leaf.requires_grad_() for leaf in leaves_of(logit)))
    policy = HybridDistribution(logit, [[1]])
    at_mean = policy.log_prob(policy.mode())
    assert at_mean.item() == pytest.approx(
        30 * math.log(10) - 0.5 * math.log(2 * math.pi)
    )
    assert finite_grads(at_mean.sum(), logit)
    assert finite_grads(policy.entropy().sum(), logit)


@pytest.mark.erratum("masked-by-multiplication")
def test_multiplying_by_the_mask_makes_nan():
    counts = torch.tensor([True, False])
    value = torch.tensor([0.3, torch.inf])
    mu = torch.zeros(2, requires_grad=True)
    density = -0.5 * (value - mu).square()
    assert (density * counts).sum().isnan()
    hidden = torch.where(counts, density, 0.0).sum()
    hidden.backward()
    assert hidden.isfinite()
    assert mu.grad[1].isnan()  # the result was hidden, its gradient was not
    logit = logit_of(
        torch.zeros(1, 1), mu.detach()[None].requires_grad_(), torch.ones(1, 2)
    )
    log_prob = HybridDistribution(logit, counts[None]).log_prob(
        action_of([0], value[None])
    )
    assert log_prob.isfinite()
    (grad,) = torch.autograd.grad(log_prob.sum(), logit.action_args.mu)
    torch.testing.assert_close(grad, torch.tensor([[0.3, 0.0]]))


@pytest.mark.erratum("categorical-probs-saturates")
def test_probabilities_saturate_and_logits_do_not():
    found = {}
    for name in ("probs", "logits"):
        z = torch.tensor([0.0, -50.0], requires_grad=True)
        given_ = {name: torch.softmax(z, -1) if name == "probs" else z}
        log_prob = Categorical(**given_).log_prob(torch.tensor(1))
        log_prob.backward()
        found[name] = (log_prob.item(), z.grad.tolist())
    assert found["probs"][0] == pytest.approx(-15.94, abs=0.01)
    assert found["probs"][1] == [0.0, 0.0]
    assert found["logits"][0] == pytest.approx(-50.0)
    assert found["logits"][1] == pytest.approx([-1.0, 1.0])
    # What the chapter's class gives.
    z = torch.tensor([[0.0, -50.0]], requires_grad=True)
    logit = logit_of(z, torch.zeros(1, 1), torch.ones(1, 1))
    no_args = torch.zeros(2, 1, dtype=torch.bool)
    log_prob = HybridDistribution(logit, no_args).log_prob(
        action_of([1], torch.zeros(1, 1))
    )
    log_prob.sum().backward()
    assert log_prob.item() == pytest.approx(-50.0)
    assert z.grad[0].tolist() == pytest.approx([-1.0, 1.0])


@pytest.mark.erratum("hybrid-entropy-unmasked")
def test_summing_all_entropies_counts_idle_arguments():
    mask = torch.tensor([[1, 0], [0, 1], [0, 0]], dtype=torch.bool)
    number = 400_000
    type_logit = torch.tensor([[0.3, 0.2, 0.5]]).log().expand(number, 3)
    logit = logit_of(type_logit, torch.zeros(number, 2), torch.ones(number, 2))
    policy = HybridDistribution(logit, mask)
    summed = Categorical(logits=type_logit[0]).entropy()
    summed = summed + Independent(Normal(torch.zeros(2), torch.ones(2)), 1).entropy()
    minus_log_prob = -policy.log_prob(policy.sample(torch.Generator().manual_seed(0)))
    error = minus_log_prob.std() / math.sqrt(number)
    assert (minus_log_prob.mean() - policy.entropy()[0]).abs() < 5 * error
    assert (minus_log_prob.mean() - summed).abs() > 1000 * error
    assert summed.item() == pytest.approx(3.868, abs=1e-3)
    assert policy.entropy()[0].item() == pytest.approx(1.739, abs=1e-3)


@pytest.mark.erratum("hybrid-ratio-unmasked")
def test_idle_arguments_widen_the_ratio_as_computed():
    """Without a mask the second moment of the ratio grows by exp(delta^2) each."""
    number, delta = 200_000, 0.3
    for num_args in (1, 4):
        zeros, ones = torch.zeros(number, num_args), torch.ones(number, num_args)
        types = torch.zeros(number, 2)
        old = logit_of(types, zeros, ones)
        new = logit_of(types, zeros + delta, ones)
        none = torch.zeros(2, num_args, dtype=torch.bool)
        action = sample_hybrid_action(old, torch.Generator().manual_seed(0))
        for mask, variance in ((none, 0.0), (~none, math.expm1(num_args * delta**2))):
            log_probs = [
                HybridDistribution(tree, mask).log_prob(action) for tree in (new, old)
            ]
            ratio = (log_probs[0] - log_probs[1]).exp()
            assert ratio.var().item() == pytest.approx(variance, rel=0.05, abs=1e-9)


@pytest.mark.erratum("treetensor-name")
def test_the_import_treetensor_comes_from_another_name():
    assert set(packages_distributions()["treetensor"]) == {"DI-treetensor"}


@pytest.mark.erratum("two-action-masks")
def test_both_kinds_of_masks_work_together():
    """Impossible types go into the logits; the relation of arguments is the mask."""
    type_logit = torch.tensor([[0.0, 1.0, 2.0]])
    possible = torch.tensor([[True, True, False]])
    logit = logit_of(
        type_logit.masked_fill(~possible, -torch.inf),
        torch.zeros(1, 4),
        torch.ones(1, 4),
    )
    policy = HybridDistribution(logit, MASK)
    fewer = logit_of(type_logit[:, :2], torch.zeros(1, 4), torch.ones(1, 4))
    smaller = HybridDistribution(fewer, MASK[:2])
    torch.testing.assert_close(policy.prob[:, :2], smaller.prob)
    torch.testing.assert_close(policy.entropy(), smaller.entropy())
    assert policy.mode().action_type.item() == 1


# --- Bad input ----------------------------------------------------------------------


def good():
    return {
        "action_type": torch.zeros(2, 3),
        "action_args": {"mu": torch.zeros(2, 4), "sigma": torch.ones(2, 4)},
    }


def broken(path, value):
    tree = good()
    *way, last = path.split(".")
    node = tree
    for key in way:
        node = node[key]
    if value is None:
        del node[last]
    else:
        node[last] = value
    return tree


def with_number(key, number):
    tree = good()
    tensor = tree["action_type"] if key == "action_type" else tree["action_args"][key]
    tensor[1, 2] = number
    return tree


BAD_LOGITS = [
    (torch.zeros(2, 3), TypeError, "must be a tree"),
    (None, TypeError, "must be a tree"),
    (broken("action_type", None), ValueError, "the key 'action_type'"),
    (broken("action_args.sigma", None), ValueError, "the key 'sigma'"),
    (broken("action_args", torch.zeros(2, 4)), TypeError, "must be a tree"),
    (broken("action_type", torch.zeros(3)), ValueError, r"shape \(B, K\), got \(3,\)"),
    (broken("action_type", torch.zeros(2, 3).long()), TypeError, "floating point"),
    (
        broken("action_args.mu", torch.zeros(3, 4)),
        ValueError,
        r"\(2, 4\), got \(3, 4\)",
    ),
    (
        broken("action_args.sigma", torch.ones(1, 4)),
        ValueError,
        r"\(2, 4\), got \(1, 4\)",
    ),
    (broken("action_args.sigma", [1.0]), TypeError, "must be a tensor, got list"),
    (
        with_number("action_type", torch.nan),
        ValueError,
        r"type must be .* got nan at \(1, 2",
    ),
    (
        with_number("action_type", torch.inf),
        ValueError,
        "action_type must be finite or",
    ),
    (
        with_number("mu", -torch.inf),
        ValueError,
        "action_args.mu must be finite, got -inf",
    ),
    (
        with_number("sigma", 0.0),
        ValueError,
        r"sigma must be positive, got 0.0 at \(1, 2\)",
    ),
    (with_number("sigma", -1.0), ValueError, "sigma must be positive, got -1.0"),
    (with_number("sigma", torch.inf), ValueError, "sigma must be positive, got inf"),
    (
        broken("action_type", torch.tensor([[0.0] * 3, [-torch.inf] * 3])),
        ValueError,
        "row 1 is all -inf",
    ),
]


@pytest.mark.parametrize(("logit", "error", "message"), BAD_LOGITS)
def test_bad_logits_are_named(logit, error, message):
    with pytest.raises(error, match=f"^logit.*{message}"):
        sample_hybrid_action(logit)
    with pytest.raises(error, match=f"^logit.*{message}"):
        HybridDistribution(logit, MASK)
    action = action_of([0, 1], torch.zeros(2, 4))
    adv = torch.ones(2)
    for function in ERRORS:
        for name in ("logit_new", "logit_old"):
            trees = {"logit_new": good(), "logit_old": good(), name: logit}
            data = ppo_policy_data(**trees, action=action, adv=adv, weight=None)
            with pytest.raises(error, match=f"^{name}.*{message}"):
                function(data, MASK)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (MASK.T, r"shape \(3, 4\), got \(4, 3\)"),
        (MASK[:, :2], r"shape \(3, 4\), got \(3, 2\)"),
        ([1, 0], r"got \(2,\)"),
        (MASK.int() * 2, "mask must hold zeros and ones"),
        (MASK * torch.nan, "mask must hold zeros and ones"),
    ],
)
def test_bad_masks_are_named(mask, message):
    with pytest.raises(ValueError, match=message):
        HybridDistribution(good(), mask)


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        ({"action_type": torch.zeros(2).long()}, ValueError, "key 'action_args'"),
        (torch.zeros(2, 4), TypeError, "action must be a tree"),
        (
            action_of([0, 1, 2], torch.zeros(3, 4)),
            ValueError,
            r"\(2, 4\), got \(3, 4\)",
        ),
        (action_of([0, 1, 2], torch.zeros(2, 4)), ValueError, r"\(2,\), got \(3,\)"),
        (action_of([0, 1], torch.zeros(2, 3)), ValueError, r"\(2, 4\), got \(2, 3\)"),
        (
            action_of([0, 1], torch.zeros(2, 4).long()),
            TypeError,
            "args must be floating",
        ),
        (
            action_of([0.0, 1.0], torch.zeros(2, 4)),
            TypeError,
            "action_type must be int64",
        ),
        (action_of([0, 3], torch.zeros(2, 4)), ValueError, r"in 0\.\.2, got 0\.\.3"),
        (action_of([-1, 1], torch.zeros(2, 4)), ValueError, r"in 0\.\.2, got -1\.\.1"),
    ],
)
def test_bad_actions_are_named(action, error, message):
    policy = HybridDistribution(good(), MASK)
    with pytest.raises(error, match=message):
        policy.log_prob(action)
    data = ppo_policy_data(good(), good(), action, torch.ones(2), None)
    for function in ERRORS:
        with pytest.raises(error, match=message):
            function(data, MASK)


def test_divergence_wants_the_same_shapes_and_mask():
    policy = HybridDistribution(good(), MASK)
    with pytest.raises(ValueError, match=r"other\.mask must equal"):
        policy.kl(HybridDistribution(good(), ~MASK))
    longer = logit_of(torch.zeros(3, 3), torch.zeros(3, 4), torch.ones(3, 4))
    with pytest.raises(ValueError, match=r"other.prob must have shape \(2, 3\)"):
        policy.kl(HybridDistribution(longer, MASK))


# --- The PPO error ------------------------------------------------------------------


def batch_of(seed, batch=40, shift=0.3, weight=True, mask=MASK):
    old = random_logit(batch, mask, seed, grad=True)
    noise = random_logit(batch, mask, seed + 1)
    new = logit_of(
        *(
            (leaf.detach() + shift * step.abs()).requires_grad_()
            for leaf, step in zip(leaves_of(old), leaves_of(noise), strict=True)
        )
    )
    generator = torch.Generator().manual_seed(seed)
    action = sample_hybrid_action(old, generator)
    adv = torch.randn(batch, generator=generator, dtype=torch.float64)
    w = torch.rand(batch, generator=generator, dtype=torch.float64) if weight else None
    return ppo_policy_data(new, old, action, adv, w)


def joint_reference(data, mask, clip_ratio, dual_clip):
    """One ratio for the action, number by number."""
    new, old = (
        log_prob_reference(x, mask, data.action)
        for x in (data.logit_new, data.logit_old)
    )
    weight = torch.ones_like(data.adv) if data.weight is None else data.weight
    total = torch.zeros((), dtype=torch.float64)
    ratios = []
    for b, a in enumerate(data.adv.tolist()):
        ratio = (new[b] - old[b].detach()).exp()
        ratios.append(ratio.item())
        value = torch.min(ratio * a, ratio.clamp(1 - clip_ratio, 1 + clip_ratio) * a)
        if dual_clip is not None and a < 0:
            value = value.clamp(min=dual_clip * a)
        total = total - weight[b] * value / len(data.adv)
    entropy = (entropy_reference(data.logit_new, mask) * weight).mean()
    outside = [abs(ratio - 1) > clip_ratio for ratio in ratios]
    return total, entropy, -np.mean(np.log(ratios)), np.mean(outside)


@pytest.mark.equation("hybrid-ratio")
@given(
    st.integers(0, 2**16),
    st.floats(0.05, 0.5),
    st.none() | st.floats(1.1, 5.0),
    st.booleans(),
)
@settings(max_examples=25)
def test_joint_error_is_the_definition(seed, clip_ratio, dual_clip, weight):
    data = batch_of(seed, batch=12, weight=weight)
    loss, info = ppo_policy_error_hybrid(data, MASK, clip_ratio, dual_clip)
    policy_loss, entropy, kl, clipfrac = joint_reference(
        data, MASK, clip_ratio, dual_clip
    )
    leaves = leaves_of(data.logit_new)
    assert_same(loss.policy_loss[None], policy_loss[None], *leaves)
    assert_same(loss.entropy_loss[None], entropy[None], *leaves)
    assert info.approx_kl == pytest.approx(kl, abs=1e-9)
    assert info.clipfrac == pytest.approx(clipfrac)
    assert isinstance(info.clipfrac, float)
    old_grads = torch.autograd.grad(
        loss.policy_loss, leaves_of(data.logit_old), allow_unused=True
    )
    assert old_grads == (None, None, None)


@pytest.mark.equation("hybrid-per-head")
@given(
    st.integers(0, 2**16),
    st.floats(0.05, 0.5),
    st.none() | st.floats(1.1, 5.0),
    st.booleans(),
)
@settings(max_examples=25)
def test_per_head_error_is_the_sum_of_two(seed, clip_ratio, dual_clip, weight):
    data = batch_of(seed, batch=12, weight=weight)
    loss, info = ppo_policy_error_hybrid_per_head(data, MASK, clip_ratio, dual_clip)
    no_args = torch.zeros_like(MASK)
    new, old = data.logit_new, data.logit_old
    type_new, type_old = (
        log_prob_reference(x, no_args, data.action) for x in (new, old)
    )
    args_new, args_old = (
        log_prob_reference(x, MASK, data.action) - of_type
        for x, of_type in ((new, type_new), (old, type_old))
    )
    terms = [
        clipped_surrogate(*pair, data.adv, clip_ratio, dual_clip)
        for pair in ((type_new, type_old), (args_new, args_old))
    ]
    has_args = torch.tensor([bool(used(MASK, k)) for k in data.action.action_type])
    objective = torch.where(has_args, terms[0] + terms[1], terms[0])
    w = torch.ones_like(data.adv) if data.weight is None else data.weight
    expected = -(objective * w).mean()
    assert_same(loss.policy_loss[None], expected[None], *leaves_of(new))
    entropy = (entropy_reference(new, MASK) * w).mean()
    assert_same(loss.entropy_loss[None], entropy[None], *leaves_of(new))
    joint = ((type_new + args_new) - (type_old + args_old)).mean().item()
    assert info.approx_kl == pytest.approx(-joint, abs=1e-9)
    outside = [
        ((a - b).exp() - 1).abs().gt(clip_ratio).double().mean().item()
        for a, b in ((type_new, type_old), (args_new, args_old))
    ]
    assert info.clipfrac == pytest.approx(max(outside))


@given(st.integers(0, 2**16))
@settings(max_examples=20)
def test_both_errors_have_the_same_gradient_at_ratio_one(seed):
    data = batch_of(seed, shift=0.0)
    losses, grads = [], []
    for function in ERRORS:
        loss, info = function(data, MASK)
        assert info.clipfrac == 0.0
        losses.append(loss.policy_loss.item())
        total = loss.policy_loss - 0.01 * loss.entropy_loss
        grads.append(torch.autograd.grad(total, leaves_of(data.logit_new)))
    for left, right in zip(*grads, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-12)
    has_args = MASK.any(-1)[data.action.action_type]
    value = data.weight * data.adv
    assert losses[0] == pytest.approx(-value.mean().item())
    assert losses[1] == pytest.approx(-(value * (1 + has_args.double())).mean().item())


def test_the_two_errors_clip_different_things():
    """Type ratio 1.3 and argument ratio 0.75: together 0.975, inside of the range."""
    mask = torch.ones(2, 1, dtype=torch.bool)
    old = logit_of(
        torch.zeros(1, 2).double(),
        torch.zeros(1, 1).double(),
        torch.ones(1, 1).double(),
    )
    z = torch.tensor(
        [[math.log(0.65 / 0.35), 0.0]], dtype=torch.float64
    ).requires_grad_()
    shift = math.sqrt(-2 * math.log(0.75))
    mu = torch.tensor([[shift]], dtype=torch.float64).requires_grad_()
    new = logit_of(z, mu, torch.ones(1, 1).double())
    action = action_of([0], torch.zeros(1, 1).double())
    data = ppo_policy_data(new, old, action, torch.ones(1).double(), None)
    joint, info = ppo_policy_error_hybrid(data, mask)
    assert joint.policy_loss.item() == pytest.approx(-0.975)
    assert info.clipfrac == 0.0
    assert torch.autograd.grad(joint.policy_loss, z)[0].abs().sum() > 0.1
    split, info = ppo_policy_error_hybrid_per_head(data, mask)
    assert split.policy_loss.item() == pytest.approx(-(1.2 + 0.75))
    assert info.clipfrac == 1.0
    assert torch.autograd.grad(split.policy_loss, z)[0].abs().sum() == 0.0


@pytest.mark.parametrize("function", ERRORS)
def test_errors_ignore_arguments_that_do_not_count(function):
    data = batch_of(3)
    data_mask = MASK[data.action.action_type]
    filled = data.action.action_args.masked_fill(~data_mask, torch.nan)
    other = data._replace(action=action_of(data.action.action_type, filled))
    results = [function(x, MASK) for x in (data, other)]
    assert results[0][1] == results[1][1]
    for left, right in zip(results[0][0], results[1][0], strict=True):
        assert torch.equal(left, right)
    grads = torch.autograd.grad(sum(results[1][0]), leaves_of(data.logit_new))
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("function", ERRORS)
def test_errors_take_impossible_types(function):
    data = batch_of(5, batch=8)
    k = data.action.action_type
    impossible = torch.nn.functional.one_hot((k + 1) % 3, 3).bool()
    trees = [
        logit_of(x.action_type.masked_fill(impossible, -torch.inf), *leaves_of(x)[1:])
        for x in (data.logit_new, data.logit_old)
    ]
    data = data._replace(logit_new=trees[0], logit_old=trees[1])
    loss, _ = function(data, MASK)
    (loss.policy_loss - loss.entropy_loss).backward()
    assert torch.isfinite(loss.policy_loss)


@pytest.mark.parametrize("function", ERRORS)
def test_errors_name_the_field(function):
    data = batch_of(1, batch=6)

    def with_nan(tensor, *index):
        result = tensor.clone()
        result[index] = torch.nan
        return result

    k = data.action.action_type
    counts = MASK[k].nonzero()[0].tolist()
    args = with_nan(data.action.action_args, *counts)
    for change, message in (
        ({"adv": with_nan(data.adv, 2)}, r"adv must be finite, got nan at .*2"),
        ({"weight": with_nan(data.weight, 3)}, "weight must be finite"),
        ({"action": action_of(k, args)}, "action_args must be finite"),
        ({"adv": data.adv[:, None]}, r"adv must have shape \(6,\), got \(6, 1\)"),
        ({"weight": data.weight[:5]}, r"weight must have shape \(6,\), got \(5,\)"),
        ({"logit_old": data.logit_old[:5]}, r"logit_old.*shape \(6, 3\), got \(5, 3\)"),
    ):
        with pytest.raises(ValueError, match=message):
            function(data._replace(**change), MASK)
    for clip in ({"dual_clip": 1.0}, {"dual_clip": math.nan}, {"clip_ratio": 0.0}):
        with pytest.raises(ValueError, match=next(iter(clip))):
            function(data, MASK, **clip)


def test_policy_improves_with_the_error():
    """A bandit whose best answer is type 2 with arguments near (1, ., -1, .)."""
    torch.manual_seed(0)
    network = HybridPolicyNetwork(2, {"action_type_shape": 3, "action_args_shape": 4})
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    state = torch.ones(256, 2)
    wanted = torch.tensor([1.0, -1.0])
    history = []
    for _ in range(60):
        with torch.no_grad():
            old = network(state)
            action = HybridDistribution(old, MASK).sample()
        miss = (action.action_args[:, [0, 2]] - wanted).square().sum(-1)
        reward = torch.where(action.action_type == 2, 2.0 - miss, 0.0)
        history.append(reward.mean().item())
        adv = reward - reward.mean()
        for _ in range(3):
            data = ppo_policy_data(network(state), old, action, adv, None)
            loss, _ = ppo_policy_error_hybrid(data, MASK)
            optimiser.zero_grad()
            loss.policy_loss.backward()
            optimiser.step()
    assert np.mean(history[-5:]) > np.mean(history[:5]) + 0.8


# --- Spaces -------------------------------------------------------------------------


def box(*shape, low=-1.0, high=1.0, dtype=np.float32):
    return spaces.Box(low, high, shape, dtype)


NESTS = {
    "by type": (
        spaces.Tuple((spaces.Discrete(3), spaces.Tuple((box(1), box(0), box(2))))),
        None,
    ),
    "one box": (spaces.Tuple((spaces.Discrete(3), box(4, low=0.0, high=720.0))), MASK),
    "boxes": (
        spaces.Tuple((spaces.Discrete(3), box(1, 2), box(2, dtype=np.float64))),
        MASK,
    ),
    "dict": (spaces.Dict({"kind": spaces.Discrete(3, start=5), "args": box(4)}), MASK),
    "deep": (
        spaces.Dict({"a": spaces.Tuple((box(1), spaces.Discrete(3))), "b": box(3)}),
        MASK.tolist(),
    ),
    "unbounded": (
        spaces.Tuple(
            (
                spaces.Discrete(3),
                box(2, low=-np.inf, high=np.inf),
                box(2, low=0, high=np.inf),
            )
        ),
        MASK.numpy(),
    ),
}


@pytest.mark.parametrize("name", NESTS)
@pytest.mark.equation("hybrid-rescale")
@given(st.data())
@settings(max_examples=15)
def test_actions_reach_the_environment_inside_its_space(name, data):
    space, mask = NESTS[name]
    spec = HybridActions.from_space(space, mask)
    num_types, num_args = spec.mask.shape
    batch, seed = data.draw(st.integers(1, 5)), data.draw(st.integers(0, 1000))
    scale = data.draw(st.sampled_from([0.3, 1.0, 100.0]))
    generator = torch.Generator().manual_seed(seed)
    action = action_of(
        torch.randint(0, num_types, (batch,), generator=generator),
        scale * torch.randn(batch, num_args, generator=generator),
    )
    nest = spec.to_env(action)
    assert gym.vector.utils.batch_space(space, batch).contains(nest)
    for b, single in enumerate(
        gym.vector.utils.iterate(gym.vector.utils.batch_space(space, batch), nest)
    ):
        assert space.contains(single)
        alone = spec.to_single_env(action[b : b + 1])
        assert space.contains(alone)
        flat, flat_alone = flatten(space, single), flatten(space, alone)
        assert flat == flat_alone
        kind, args = flat
        assert kind == action.action_type[b].item()
        for j, u in enumerate(action.action_args[b].tolist()):
            low, high = spec.low[j], spec.high[j]
            if math.isfinite(low) and math.isfinite(high):
                u = (low + high) / 2 + (high - low) / 2 * u
            assert args[j] == pytest.approx(min(max(u, low), high), rel=1e-6, abs=1e-6)


def flatten(space, element):
    """Return the type, from 0, and all arguments in order, by another walk."""
    if isinstance(space, spaces.Discrete):
        return int(element) - int(space.start), []
    if isinstance(space, spaces.Box):
        return None, np.ravel(element).tolist()
    children = list(
        space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
    )
    values = list(element.values() if isinstance(space, spaces.Dict) else element)
    flat = [flatten(c, v) for c, v in zip(children, values, strict=True)]
    kinds = [k for k, _ in flat if k is not None]
    return kinds[0] if kinds else None, [x for _, args in flat for x in args]


def test_boxes_by_type_give_the_mask():
    spec = HybridActions.from_space(NESTS["by type"][0])
    assert spec.mask.int().tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 1]]
    assert spec.mask.dtype == torch.bool
    assert spec.action_shape == {"action_type_shape": 3, "action_args_shape": 3}
    assert Moving().action_space.contains(
        (2, tuple(np.zeros(n, np.float32) for n in (1, 1, 0)))
    )
    assert HybridActions.from_space(Moving().action_space).mask.tolist() == [
        [True, False],
        [False, True],
        [False, False],
    ]


def test_a_given_mask_wins_over_the_form_of_the_space():
    given_mask = [[1, 1, 1], [0, 0, 0], [0, 0, 1]]
    spec = HybridActions.from_space(NESTS["by type"][0], given_mask)
    assert spec.mask.int().tolist() == given_mask


def test_the_action_distribution_is_frozen():
    spec = HybridActions.from_space(NESTS["by type"][0])
    with pytest.raises(AttributeError):
        spec.mask = MASK


@pytest.mark.parametrize(
    ("space", "mask", "error", "message"),
    [
        (NESTS["one box"][0], None, ValueError, "mask must be given"),
        (NESTS["boxes"][0], None, ValueError, "mask must be given"),
        (
            spaces.Tuple((spaces.Discrete(3), spaces.Tuple((box(1), box(1))))),
            None,
            ValueError,
            "mask must",
        ),
        (NESTS["one box"][0], MASK.T, ValueError, r"shape \(3, 4\), got \(4, 3\)"),
        (NESTS["one box"][0], MASK.int() + 1, ValueError, "zeros and ones"),
        (spaces.Discrete(3), None, ValueError, "at least one argument"),
        (box(2), None, ValueError, "exactly one Discrete"),
        (
            spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2), box(2))),
            None,
            ValueError,
            "exactly one",
        ),
        (
            spaces.Tuple((spaces.Discrete(1), spaces.Tuple((box(0),)))),
            None,
            ValueError,
            "at least one",
        ),
        (
            spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(2))),
            None,
            TypeError,
            "MultiBinary",
        ),
        (
            spaces.Tuple((spaces.Discrete(2), box(2, low=0, high=9, dtype=np.int64))),
            None,
            TypeError,
            "floating",
        ),
        ("Moving", None, TypeError, "space must hold one Discrete"),
    ],
)
def test_bad_spaces_are_named(space, mask, error, message):
    with pytest.raises(error, match=message):
        HybridActions.from_space(space, mask)


def test_bad_actions_do_not_reach_the_environment():
    spec = HybridActions.from_space(NESTS["by type"][0])
    args = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="got a batch of 2"):
        spec.to_single_env(action_of([0, 1], args))
    args[1, 2] = torch.nan
    with pytest.raises(ValueError, match=r"must not be NaN, got one at \(1, 2\)"):
        spec.to_env(action_of([0, 1], args))
    with pytest.raises(ValueError, match=r"shape \(2, 3\), got \(2, 2\)"):
        spec.to_env(action_of([0, 1], torch.zeros(2, 2)))
    with pytest.raises(TypeError, match="action must be a tree"):
        spec.to_env(np.zeros((2, 4)))
    # Rows have one number more, for the type.
    assert spec.to_env(torch.zeros(2, 4))[0].tolist() == [0, 0]
    with pytest.raises(ValueError, match=r"shape \(2, 3\), got \(2, 2\)"):
        spec.to_env(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"shape \(2,\), got \(3,\)"):
        spec.to_env(action_of([0, 1, 2], torch.zeros(2, 3)))


# --- Environments -------------------------------------------------------------------

IDS = ["literate_rl/Moving-v0", "literate_rl/HybridLander-v0"]


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
def test_environments_conform_to_gymnasium(env_id, render_mode, recwarn):
    check_env(gym.make(env_id, render_mode=render_mode).unwrapped)
    assert not [str(w.message) for w in recwarn if "WARN" in str(w.message)]


@pytest.mark.parametrize("env_id", IDS)
def test_environments_repeat_themselves_with_a_seed(env_id):
    runs = []
    for seed in (3, 3, 4):
        env = gym.make(env_id)
        env.action_space.seed(0)
        rows = [env.reset(seed=seed)[0]]
        for _ in range(30):
            obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            assert env.observation_space.contains(obs)
            rows.append([*obs, reward])
            if terminated or truncated:
                rows.append(env.reset()[0])
        runs.append(rows)
    assert all(np.array_equal(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    assert not np.array_equal(runs[0][0], runs[2][0])


@pytest.mark.parametrize("env_id", IDS)
def test_the_policy_acts_in_a_vector_environment(env_id):
    envs = make_envs(env_id, num_envs=3)
    space = envs.single_action_space
    spec = HybridActions.from_space(space)
    torch.manual_seed(0)
    network = HybridPolicyNetwork.from_space(envs.single_observation_space, space)
    obs, _ = envs.reset(seed=0)
    for _ in range(120):
        logit = network(torch.as_tensor(obs))
        action = HybridDistribution(logit, spec.mask).sample()
        obs, reward, *_ = envs.step(spec.to_env(action))
        assert obs.shape == (3, network.encoder[0].in_features)
        assert np.isfinite(reward).all()


@pytest.mark.parametrize("make", [Moving, HybridLander])
def test_environments_refuse_what_is_not_theirs(make):
    with pytest.raises(ValueError, match="render_mode must be 'rgb_array' or None"):
        make(render_mode="human")
    env = make()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action must be an element of"):
        env.step((9, ()))


@pytest.mark.parametrize("env_id", IDS)
def test_environments_draw(env_id):
    env = gym.make(env_id, render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert picture.ndim == 3
    assert picture.shape[2] == 3
    assert picture.dtype == np.uint8
    assert picture.std() > 1
    env.close()


def move(kind, power=0.0, angle=0.0):
    values = ([power], [angle], [])
    return kind, tuple(np.array(value, np.float32) for value in values)


def moving_at(position, target, heading=0.0, speed=0.0):
    env = Moving(render_mode="rgb_array")
    env.reset(seed=0)
    env.position, env.target = np.array(position), np.array(target)
    env.heading, env.speed = heading, speed
    return env


@pytest.mark.equation("hybrid-moving")
@given(
    st.sampled_from([0, 1, 2]),
    st.floats(0, 1, width=32),
    st.floats(-1, 1, width=32),
    st.floats(0, 0.1),
    st.floats(-3, 3),
)
def test_moving_follows_its_equations(kind, power, angle, speed, heading):
    env = moving_at((0.1, -0.2), (0.5, 0.5), heading, speed)
    obs, *_ = env.step(move(kind, power, angle))
    if kind == 0:
        speed = min(speed + 0.05 * power, 0.1)
    elif kind == 1:
        heading += math.pi / 2 * angle
    else:
        speed = 0.0
    x, y = 0.1 + speed * math.cos(heading), -0.2 + speed * math.sin(heading)
    way = (0.5 - x, 0.5 - y)
    inside = float(math.hypot(*way) < 0.1)
    expected = [x, y, speed, math.cos(heading), math.sin(heading), *way]
    expected += [math.hypot(*way), inside]
    np.testing.assert_allclose(obs, expected, atol=1e-6)


@pytest.mark.equation("hybrid-moving-reward")
def test_moving_pays_for_the_way_the_stop_and_the_edge():
    # On the way: the distance shrinks by the speed.
    env = moving_at((0.0, 0.0), (0.5, 0.0), speed=0.1)
    _, reward, terminated, truncated, _ = env.step(move(1))
    assert reward == pytest.approx(0.1 - 0.005)
    assert (terminated, truncated) == (False, False)
    # In the target, but not stopped.
    env = moving_at((0.45, 0.0), (0.5, 0.0), speed=0.01)
    assert env.step(move(0))[2] is False
    # Stopped, but not in the target.
    env = moving_at((0.0, 0.0), (0.5, 0.0))
    _, reward, terminated, _, _ = env.step(move(2))
    assert (reward, terminated) == (pytest.approx(-0.005), False)
    # Stopped in the target.
    env = moving_at((0.45, 0.0), (0.5, 0.0), speed=0.1)
    _, reward, terminated, _, _ = env.step(move(2))
    assert (reward, terminated) == (pytest.approx(1 - 0.005), True)
    # Over the edge.
    env = moving_at((0.95, 0.0), (0.5, 0.0), speed=0.1)
    obs, reward, terminated, _, _ = env.step(move(1))
    assert (reward, terminated) == (pytest.approx(-0.1 - 0.005 - 1), True)
    assert env.observation_space.contains(obs)


def test_moving_is_cut_after_a_hundred_steps():
    env = gym.make("literate_rl/Moving-v0")
    env.reset(seed=0)
    for step in range(1, 101):
        _, _, terminated, truncated, _ = env.step(move(1, angle=0.1))
        assert (terminated, truncated) == (False, step == 100)


def rule(obs):
    """Stop in the target, turn towards it, drive."""
    _, _, speed, cos, sin, dx, dy, distance, inside = obs.tolist()
    angle = math.atan2(cos * dy - sin * dx, cos * dx + sin * dy) / (math.pi / 2)
    power = (min(0.1, distance) - speed) / 0.05
    kind = 2 if inside else 1 if abs(angle) > 0.06 else 0
    return move(kind, min(max(power, 0.0), 1.0), min(max(angle, -1.0), 1.0))


def returns_of(env, act, episodes):
    totals = []
    for seed in range(episodes):
        obs, _ = env.reset(seed=seed)
        total, done = 0.0, False
        while not done:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total, done = total + reward, terminated or truncated
        totals.append(total)
    return totals


def test_moving_can_be_solved_by_a_rule_and_not_by_chance():
    env = gym.make("literate_rl/Moving-v0")
    good_returns = returns_of(env, rule, 50)
    env.action_space.seed(0)
    random_returns = returns_of(env, lambda _: env.action_space.sample(), 50)
    assert min(good_returns) > 0.9
    assert 1.7 < np.mean(good_returns) < 2.0
    assert -1.3 < np.mean(random_returns) < -0.6


def test_moving_draws_what_happens():
    env = moving_at((-0.5, 0.5), (0.5, -0.5))
    picture = env.render()
    quarter = env.pixels // 4
    assert tuple(picture[quarter, quarter]) == (40, 80, 160)  # the agent, top left
    assert tuple(picture[3 * quarter, 3 * quarter]) == (120, 190, 120)
    assert tuple(picture[0, -1]) == (235, 235, 235)
    assert Moving().render() is None


@pytest.mark.parametrize("throttle", [0.0, 0.4, 1.0])
def test_the_lander_is_lunar_lander_with_other_words(throttle):
    burning = max(throttle, 1e-6)  # at 0 LunarLander's engines are off
    side = 0.5 + 0.5 * burning
    throttles = tuple(np.full(n, throttle, np.float32) for n in (0, 1, 1, 1))
    for kind, command in enumerate([(0, 0), (burning, 0), (0, -side), (0, side)]):
        ours, theirs = HybridLander(), gym.make("LunarLander-v3", continuous=True)
        ours.reset(seed=5)
        theirs.reset(seed=5)
        for _ in range(20):
            left = ours.step((kind, throttles))
            right = theirs.unwrapped.step(np.array(command))
            np.testing.assert_allclose(left[0], right[0], atol=1e-5)
            assert left[1] == pytest.approx(float(right[1]), abs=1e-3)
            assert left[2] == right[2]


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_the_lightest_throttle_still_burns(kind):
    powers = tuple(np.zeros(n, np.float32) for n in (0, 1, 1, 1))
    ends = []
    for k in (0, kind):
        env = HybridLander()
        env.reset(seed=5)
        for _ in range(10):
            obs, *_ = env.step((k, powers))
        ends.append(obs)
    assert np.abs(ends[0] - ends[1]).max() > 0.01


def test_platform_runs_through_the_same_code():
    pytest.importorskip("gym_platform")

    def make():
        env = gym.make("Platform-v0")
        first = env.observation_space[0]
        return gym.wrappers.TransformObservation(env, lambda obs: obs[0], first)

    env = make()
    spec = HybridActions.from_space(env.action_space)
    assert spec.mask.tolist() == torch.eye(3).bool().tolist()
    assert spec.high.tolist() == [30.0, 720.0, 430.0]
    torch.manual_seed(0)
    network = HybridPolicyNetwork.from_space(env.observation_space, env.action_space)
    obs, _ = env.reset(seed=0)
    for _ in range(20):
        policy = HybridDistribution(network(torch.as_tensor(obs)[None]), spec.mask)
        action = spec.to_single_env(policy.sample())
        assert env.action_space.contains(action)
        obs, reward, terminated, truncated, _ = env.step(action)
        assert math.isfinite(reward)
        if terminated or truncated:
            obs, _ = env.reset()
    envs = make_envs(make, num_envs=2)
    obs, _ = envs.reset(seed=0)
    policy = HybridDistribution(network(torch.as_tensor(obs)), spec.mask)
    obs, *_ = envs.step(spec.to_env(policy.sample()))
    assert obs.shape == (2, 9)


# --- The policy of rows -------------------------------------------------------------

NEST = spaces.Dict(
    {
        "how": spaces.Tuple(
            (
                spaces.Box(-2.0, 2.0, (2, 1), np.float64),
                spaces.Box(np.float32(-np.inf), np.float32(np.inf), (1,)),
            )
        ),
        "what": spaces.Discrete(3, start=5),
        "why": spaces.Box(np.array([0.0], np.float32), np.array([9.0], np.float32)),
    }
)


BOX = spaces.Box(-1.0, 1.0, (6,))


def nested_policy(**arguments) -> Policy:
    torch.manual_seed(0)
    policy = make_hybrid_policy(BOX, NEST, MASK, **arguments)
    torch.nn.init.normal_(tree_network(policy).action_args_log_sigma, std=0.5)
    return policy


def tree_network(policy) -> HybridPolicyNetwork:
    """Return the network below the rows."""
    return policy.network.actor.network


def test_a_row_holds_what_the_network_says():
    policy, obs = nested_policy(), torch.randn(5, 6)
    logit = tree_network(policy)(obs)
    row = policy(obs)
    assert row.shape == (5, 3 + 2 * 4)
    args = logit.action_args
    torch.testing.assert_close(
        row, torch.cat([logit.action_type, args.mu, args.sigma], 1)
    )
    tree = policy.actions.logit_of(row)
    for part, whole in zip(
        leaves_of(ttorch.as_tensor(tree)), leaves_of(logit), strict=True
    ):
        torch.testing.assert_close(part, whole)
    # A rollout has two dimensions in front, the network knows one.
    rollout = torch.randn(7, 5, 6)
    torch.testing.assert_close(policy(rollout)[3], policy(rollout[3]))
    assert policy.value(rollout).shape == (7, 5)


# --- Rows against references ----------------------------------------------------------


def hybrid_actions(mask):
    """Return an action distribution with a mask, whatever its types look like."""
    num_types, num_args = mask.shape
    space = spaces.Tuple((spaces.Discrete(num_types), spaces.Box(-1, 1, (num_args,))))
    return HybridActions.from_space(space, mask)


def row_of(logit):
    return torch.cat(leaves_of(logit), -1)


def packed(action):
    types = action.action_type.to(action.action_args.dtype)
    return torch.cat([types.unsqueeze(-1), action.action_args], -1)


@given(case=cases())
@settings(max_examples=30, deadline=None)
def test_rows_mean_what_torch_distributions_say(case):
    mask, logit, other, action = case
    actions, row = hybrid_actions(mask), row_of(logit)
    both = [*leaves_of(logit), *leaves_of(other)]
    log_prob = log_prob_reference(logit, mask, action)
    entropy = entropy_reference(logit, mask)
    assert_same(actions.log_prob(row, packed(action)), log_prob, *leaves_of(logit))
    assert_same(actions.entropy(row), entropy, *leaves_of(logit))
    ours = actions.evaluate(row, packed(action))
    assert_same(ours[0], log_prob, *leaves_of(logit))
    assert_same(ours[1], entropy, *leaves_of(logit))
    assert_same(ours[0] + 3 * ours[1], log_prob + 3 * entropy, *leaves_of(logit))
    divergence = actions.kl(row, row_of(other))
    assert_same(divergence, kl_reference(logit, other, mask), *both)


@given(case=cases())
@settings(max_examples=30, deadline=None)
def test_a_divergence_of_rows_is_positive_but_between_equal_rows(case):
    mask, logit, other, _ = case
    actions, row, other_row = hybrid_actions(mask), row_of(logit), row_of(other)
    assert (actions.kl(row, row) == 0).all()
    # With one type and no argument that counts there is nothing to differ in.
    if mask.any() or len(mask) > 1:
        assert (actions.kl(row, other_row) > 0).all()
    assert (actions.kl(row.float(), other_row.float()) >= -1e-6).all()


def test_rows_of_a_rollout_are_rows_of_its_steps():
    policy, obs = nested_policy(), torch.randn(7, 5, 6)
    actions, row, other = policy.actions, policy(obs), policy(obs.flip(0))
    action = policy.act(obs, policy.noise(7, 5, torch.Generator().manual_seed(0)))
    for function, *arguments in (
        (actions.log_prob, row, action),
        (actions.entropy, row),
        (actions.kl, row, other),
        (lambda *x: actions.evaluate(*x)[0], row, action),
        (lambda *x: actions.evaluate(*x)[1], row, action),
    ):
        whole = function(*arguments)
        assert whole.shape == (7, 5)
        for t in range(7):
            torch.testing.assert_close(whole[t], function(*(x[t] for x in arguments)))


def test_the_policys_log_prob_is_that_of_the_distribution():
    policy, obs = nested_policy(), torch.randn(64, 6)
    action = policy.act(obs, policy.noise(1, 64, torch.Generator().manual_seed(0))[0])
    log_prob, entropy = policy.evaluate_actions(obs, action)
    tree, logit = policy.actions.action_of(action), tree_network(policy)(obs)
    reference = log_prob_reference(logit, MASK, ttorch.as_tensor(tree))
    torch.testing.assert_close(log_prob, reference, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy, entropy_reference(logit, MASK))


def test_acting_without_noise_is_the_mode():
    policy, obs = nested_policy(), torch.randn(64, 6)
    action = policy.actions.action_of(policy.act(obs, 0.0))
    mode = HybridDistribution(tree_network(policy)(obs), MASK).mode()
    assert action["action_type"].dtype == torch.int64
    assert torch.equal(action["action_type"], mode.action_type)
    torch.testing.assert_close(action["action_args"], mode.action_args)


def test_acting_with_noise_samples_the_distribution():
    policy = nested_policy()
    number = 200_000
    obs = torch.randn(1, 6).expand(number, 6)
    noise = policy.noise(1, number, torch.Generator().manual_seed(0))[0]
    assert noise.shape == (number, 3 + 4)
    with torch.no_grad():
        action = policy.actions.action_of(policy.act(obs, noise))
        expected = HybridDistribution(tree_network(policy)(obs[:1]), MASK)
    frequency = action["action_type"].bincount(minlength=3) / number
    # Five standard errors of a frequency, a mean and a deviation.
    error = 5 / math.sqrt(number)
    assert (frequency - expected.prob[0]).abs().max() < error * 0.5
    distance = (action["action_args"].mean(0) - expected.mu[0]) / expected.sigma[0]
    assert distance.abs().max() < error
    ratio = action["action_args"].std(0) / expected.sigma[0]
    assert (ratio - 1).abs().max() < error
    # Types and arguments are independent of each other.
    first = action["action_args"][action["action_type"] == 0].mean(0)
    assert ((first - expected.mu[0]) / expected.sigma[0]).abs().max() < 2 * error


def test_the_error_of_rows_is_that_of_trees():
    policy, obs = nested_policy(), torch.randn(64, 6)
    old = policy(obs).detach()
    action = policy.act(obs, policy.noise(1, 64, torch.Generator().manual_seed(0))[0])
    action = action.detach()
    old_log_prob, _ = policy.actions.evaluate(old, action)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    adv, new = torch.randn(64), policy(obs)
    log_prob, entropy = policy.actions.evaluate(new, action)
    clips = 0.1, 3.0
    loss, info = policy_error_from_log_prob(
        log_prob, old_log_prob, entropy, adv, None, *clips
    )
    split = [3, 4, 4]
    trees = ppo_policy_data(
        logit_of(*new.split(split, 1)),
        logit_of(*old.split(split, 1)),
        action_of(action[:, 0].long(), action[:, 1:]),
        adv,
        None,
    )
    expected_loss, expected_info = ppo_policy_error_hybrid(trees, MASK, *clips)
    torch.testing.assert_close(tuple(loss), tuple(expected_loss))
    assert info == pytest.approx(expected_info)


def test_arguments_that_do_not_count_do_no_harm_in_a_row():
    policy, obs = nested_policy(), torch.randn(8, 6)
    action = policy.act(obs, 0.0).detach()
    expected, _ = policy.evaluate_actions(obs, action)
    unused = ~MASK[action[:, 0].long()]
    assert unused.any()
    action[:, 1:][unused] = torch.nan
    log_prob, entropy = policy.evaluate_actions(obs, action)
    assert torch.equal(log_prob, expected)
    loss, _ = policy_error_from_log_prob(
        log_prob, log_prob.detach() - 0.1, entropy, torch.randn(8)
    )
    (loss.policy_loss + loss.entropy_loss).backward()
    for name, parameter in policy.network.actor.named_parameters():
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("normalize", [False, True])
def test_a_checkpoint_brings_the_policy_back(tmp_path, normalize):
    policy = nested_policy(normalize=normalize)
    if normalize:
        policy.network.normalizer.update(3 + 2 * torch.randn(100, 6))
    state = {"recipe": policy.recipe, "weights": policy.state_dict()}
    save_checkpoint(tmp_path / "checkpoint.pt", {"policy": state})
    again = load(tmp_path)
    assert again.actions.space == NEST
    assert torch.equal(again.actions.mask, MASK)
    obs = torch.randn(4, 6)
    action = policy.act(obs, 0.0)
    assert torch.equal(again.act(obs, 0.0), action)
    names = policy.to_env(action)
    for one in (again.to_env(action), names):
        assert one["what"].min() >= 5
        assert one["how"][0].shape == (4, 2, 1)
    assert again.recipe == policy.recipe


@given(data=st.data())
def test_spaces_survive_their_description(data):
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    shape = data.draw(st.sampled_from([(0,), (1,), (3,), (2, 2)]))
    bound = data.draw(st.sampled_from([1.0, 720.0, np.inf]))
    box = spaces.Box(dtype(-bound), dtype(bound), shape, dtype)
    types = spaces.Discrete(
        data.draw(st.integers(1, 4)), start=data.draw(st.integers(-2, 2))
    )
    for space in (
        spaces.Tuple((types, spaces.Tuple((box, box)))),
        spaces.Dict(b=box, a=spaces.Tuple((types,))),
    ):
        again = as_space(plain_space(space))
        # The order counts, and a Dict space compares without it.
        assert again == space
        assert list(leaves(again)) == list(leaves(space))
        kinds = [x.dtype for x in leaves(again)]
        assert kinds == [x.dtype for x in leaves(space)]


def moving_learner(**changes):
    config = replace(ppo_settings("literate_rl/Moving-v0"), **changes)
    seed_everything(config.seed)
    envs = make_envs("literate_rl/Moving-v0", config.num_envs)
    policy = make_hybrid_policy(
        envs.single_observation_space,
        envs.single_action_space,
        normalize=config.normalize_obs,
    )
    return PPO(policy, envs, config)


@pytest.mark.parametrize("normalize", [False, True])
def test_an_iteration_of_ppo(normalize):
    learner = moving_learner(normalize_obs=normalize)
    before = [parameter.clone() for parameter in learner.policy.parameters()]
    metrics = learner.iterate()
    assert learner.step == 2048
    losses = {key: value for key, value in metrics.items() if key.startswith("losses")}
    assert all(map(math.isfinite, losses.values()))
    pairs = zip(before, learner.policy.parameters(), strict=True)
    assert all(not torch.equal(one, other) for one, other in pairs)


def test_hybrid_ppo_learns_moving():
    def train(seed):
        learner = moving_learner(seed=seed, total_steps=75_000)
        fit(learner, progress=False)
        return evaluate(learner.policy, "literate_rl/Moving-v0", 400, seed=1).mean()

    assert median_of_seeds(train) > 1.5


def test_the_command_line_trains_a_hybrid_policy(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = ["--num-envs=2", "--num-steps=32", "--total-steps=64", "--num-epochs=1"]
    main(["ppo", "--env", "literate_rl/Moving-v0", "--name", "moving", *small])
    assert "return of 20 episodes" in capsys.readouterr().out
    policy = load(tmp_path / "runs" / "moving")
    assert isinstance(policy.actions, HybridActions)
    assert evaluate(policy, "literate_rl/Moving-v0", 2).shape == (2,)


class Odd(Moving):
    """Moving with an action space that nothing here can act in."""

    def __init__(self, space, **arguments):
        super().__init__(**arguments)
        self.action_space = space


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiBinary(3),
        spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2))),
        spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (2,)))),
    ],
)
def test_the_command_line_names_the_spaces_that_work(space, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(
        gym.registry,
        "Odd-v0",
        gym.envs.registration.EnvSpec("Odd-v0", partial(Odd, space)),
    )
    with pytest.raises(SystemExit, match=r"Discrete.*Box.*Tuple\(Discrete\(K\)"):
        main(["ppo", "--env", "Odd-v0"])


def test_public_names_are_documented():
    for name in hybrid_action.__all__:
        assert getattr(hybrid_action, name).__doc__, name
