"""Hybrid actions against slow float64 references, gradients included."""

from __future__ import annotations

import math
import subprocess
import sys
from importlib.metadata import packages_distributions
from random import Random

import numpy as np
import pytest
import torch
import treetensor.torch as ttorch
from extremes import assert_gradients_are_finite
from fuzz import assert_held
from hybrid import (
    BAD_ACTIONS,
    BAD_LOGITS,
    MASK,
    action_of,
    assert_same,
    cases,
    entropy_reference,
    good,
    kl_reference,
    leaves_of,
    log_prob_reference,
    logit_of,
    quadrature,
    random_logit,
    repeated,
    used,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal

from literate_rl.maths.fast import hybrid_terms, log_softmax
from literate_rl.nets.hybrid_action import (
    HybridDistribution,
    HybridPolicyNetwork,
    args_divergence,
    args_log_density,
    as_tree,
    draw,
    mask_args,
    sample_hybrid_action,
    select_args,
)

# --- Trees --------------------------------------------------------------------------


def test_a_tree_is_that_of_the_library(monkeypatch):
    """And no tensor is written out as text, which takes thousands of µs."""
    a, b = torch.ones(3, 2), torch.zeros(3)
    leaves = {"action_type": a, "action_args": {"mu": a, "sigma": b}}
    slow = ttorch.as_tensor(leaves)

    def text(tensor):
        raise AssertionError("a tensor was written out")

    monkeypatch.setattr(Tensor, "__repr__", text)
    tree = as_tree(leaves)
    assert type(tree) is type(tree.action_args) is ttorch.Tensor
    assert tree.action_type is a
    assert tree[1:].action_args.sigma.shape == (2,)
    assert (tree == slow).all()


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


def test_an_encoder_of_ones_own_takes_other_states(network):
    """PPOxFamily's tutorial: "such as Convolution Neural Network for image state"."""
    convolution = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())
    network.encoder = nn.Sequential(convolution, nn.Linear(4 * 6 * 6, 32))
    logit = network(torch.rand(5, 3, 8, 8))
    assert [tuple(leaf.shape) for leaf in leaves_of(logit)] == [(5, 3), (5, 4), (5, 4)]
    assert sample_hybrid_action(logit).action_args.shape == (5, 4)
    logit.action_type.sum().backward()
    assert convolution[0].weight.grad.any()


def test_states_of_many_steps_are_described_one_by_one(network):
    x = torch.rand(6, 5, 10)
    for leaf, row in zip(
        leaves_of(network(x)), leaves_of(network(x.flatten(0, 1))), strict=True
    ):
        torch.testing.assert_close(leaf, row.view(6, 5, -1))


SHAPE = {"action_type_shape": 3, "action_args_shape": 2}


@pytest.mark.parametrize(
    ("obs_shape", "action_shape", "error", "message"),
    [
        (0, SHAPE, ValueError, "obs_shape must be .*1.*, got 0"),
        (1.5, SHAPE, TypeError, "obs_shape must be .*, got float"),
        (True, SHAPE, TypeError, "obs_shape must be .*, got bool"),
        (4, [3, 2], TypeError, "action_shape must be a tree.*, got list"),
        (4, {"action_type_shape": 3}, TypeError, "got {'action_type_shape'}"),
        (4, {**SHAPE, "more": 1}, TypeError, "'more'"),
        (4, {**SHAPE, "action_args_shape": 0}, ValueError, "args_shape must .*got 0"),
        (
            4,
            {**SHAPE, "action_args_shape": "2"},
            TypeError,
            "args_shape must .*got str",
        ),
    ],
)
def test_network_refuses_bad_sizes(obs_shape, action_shape, error, message):
    with pytest.raises(error, match=message):
        HybridPolicyNetwork(obs_shape, action_shape)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.rand(10), ValueError, r"x must have .*got.*\(10,\)"),
        (torch.rand(2, 9), RuntimeError, r"2x9 and 10x16"),  # PyTorch's own words
        (torch.rand(2, 10).double(), RuntimeError, "dtype.*(double|Double)"),
        (torch.rand(2, 10).long(), TypeError, "x must .*int64"),
        (np.zeros((2, 10)), TypeError, "x must be .*, got .*ndarray"),
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


def test_the_same_numbers_in_another_memory_layout_give_the_same_sample():
    logit = random_logit(50, MASK, 0)
    turned = logit_of(*(x.t().contiguous().t() for x in leaves_of(logit)))
    samples = [
        sample_hybrid_action(x, torch.Generator().manual_seed(0))
        for x in (logit, turned)
    ]
    for name in ("action_type", "action_args"):
        assert torch.equal(samples[0][name], samples[1][name])


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
    with pytest.raises(ValueError, match=r"got \[0, 2\] in rows \[1, 2\]"):
        select_args(torch.zeros(3, 2), data_mask)


@pytest.mark.parametrize("function", [mask_args, select_args])
def test_data_masks_are_checked(function):
    args = torch.zeros(3, 2)
    with pytest.raises(TypeError, match=r"data_mask must .*int64"):
        function(args, torch.ones(3, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"data_mask must .*\(2, 3\)"):
        function(args, torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"data_mask must .*list"):
        function(args, [[True, False]] * 3)
    with pytest.raises(ValueError, match=r"action_args must .*\(3,\)"):
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


@pytest.mark.equation("hybrid-level")
@pytest.mark.equation("hybrid-short")
@given(cases())
def test_the_kernel_is_the_distribution(case):
    """Values and gradients of the short forms and of the plain ones."""
    mask, logit, _, action = case
    policy = HybridDistribution(logit, mask)
    arguments = mask, action.action_type, action.action_args
    short = hybrid_terms(*leaves_of(logit), *arguments)
    assert_same(short[0], policy.log_prob(action), *leaves_of(logit))
    assert_same(short[1], policy.entropy(), *leaves_of(logit))


def test_the_kernel_does_no_harm_either():
    logit, action = dangerous()
    policy = HybridDistribution(logit, MASK)
    log_prob, entropy = hybrid_terms(
        *leaves_of(logit), MASK, action.action_type, action.action_args
    )
    torch.testing.assert_close(log_prob, policy.log_prob(action))
    torch.testing.assert_close(entropy, policy.entropy())
    assert finite_grads(log_prob.sum() + entropy.sum(), logit)
    bad = [torch.full_like(leaf, torch.nan) for leaf in leaves_of(logit)]
    for place, name in enumerate(("logits", "mu", "sigma")):
        if name == "mu":
            continue  # it reaches the log-probability only
        leaves = [leaf.detach() for leaf in leaves_of(logit)]
        leaves[place] = bad[place]
        with pytest.raises(ValueError, match=f"{name}.* must be finite"):
            hybrid_terms(*leaves, MASK, action.action_type, action.action_args)


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
    leaves[1][:, 3] = 1e30  # its square is infinite
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


def test_a_finite_density_has_a_finite_gradient_at_all_deviations():
    def parts_of(mu, sigma, action):
        logit = logit_of(torch.zeros(1, 1), mu.view(1, 1), sigma.view(1, 1))
        policy = HybridDistribution(logit, [[1]])
        log_prob = policy.log_prob(action_of([0], torch.full((1, 1), action)))
        return log_prob.sum(), policy.entropy().sum() + 0 * log_prob.sum()

    assert_gradients_are_finite(parts_of)


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


WITHOUT_TREES = """
import sys
sys.modules["treetensor"] = sys.modules["treevalue"] = None
import literate_rl.interfaces.alf, literate_rl.interfaces.ding
from literate_rl import train
from literate_rl.nets.hybrid_action import as_tree
for fast in ("plain", "auto"):
    train("PPO", "literate_rl/Moving-v0", total_steps=256, num_envs=2, num_steps=64,
          fast=fast, progress=False)
try:
    as_tree({})
except ImportError as error:
    print(error)
"""


def test_only_trees_need_the_package_of_trees():
    code = [sys.executable, "-W", "ignore", "-c", WITHOUT_TREES]
    done = subprocess.run(code, capture_output=True, text=True, check=True)
    assert "pip install DI-treetensor treevalue" in done.stdout


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


@pytest.mark.parametrize(("logit", "error", "message"), BAD_LOGITS)
def test_bad_logits_are_named(logit, error, message):
    with pytest.raises(error, match=message):
        sample_hybrid_action(logit)
    with pytest.raises(error, match=message):
        HybridDistribution(logit, MASK)


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


@pytest.mark.parametrize(("action", "error", "message"), BAD_ACTIONS)
def test_bad_actions_are_named(action, error, message):
    with pytest.raises(error, match=message):
        HybridDistribution(good(), MASK).log_prob(action)


def test_divergence_wants_the_same_shapes_and_mask():
    policy = HybridDistribution(good(), MASK)
    with pytest.raises(ValueError, match=r"other\.mask must equal"):
        policy.kl(HybridDistribution(good(), ~MASK))
    for batch in (1, 3):
        other = logit_of(
            torch.zeros(batch, 3), torch.zeros(batch, 4), torch.ones(batch, 4)
        )
        with pytest.raises(ValueError, match=rf"other_mu .*\({batch}, 4\)"):
            policy.kl(HybridDistribution(other, MASK))


def test_one_action_is_not_spread_over_a_batch():
    policy = HybridDistribution(good(), MASK)
    with pytest.raises(ValueError, match=r"action_args .*\(1, 4\)"):
        policy.log_prob(action_of([0], torch.zeros(1, 4)))


@pytest.mark.parametrize("function", [mask_args, args_log_density, args_divergence])
def test_signatures_are_held(function):
    assert_held(function, Random(0))


def test_precision_in_is_precision_out():
    for dtype in (torch.float32, torch.float64):
        logit = random_logit(3, MASK, 0, dtype)
        policy = HybridDistribution(logit, MASK)
        action = policy.sample()
        assert action.action_args.dtype == dtype
        for result in (policy.log_prob(action), policy.entropy(), policy.kl(policy)):
            assert result.dtype == dtype


def test_a_nan_that_counts_is_named():
    args = torch.zeros(2, 4)
    args[0, 1] = torch.nan  # type 0 uses argument 1
    policy = HybridDistribution(good(), MASK)
    with pytest.raises(ValueError, match=r"action\.action_args must be finite"):
        policy.log_prob(action_of([0, 1], args))
    assert policy.log_prob(action_of([1, 2], args)).isfinite().all()


def test_a_greedy_action_is_a_copy() -> None:
    network = HybridPolicyNetwork(4, {"action_type_shape": 3, "action_args_shape": 4})
    chosen = HybridDistribution(network(torch.randn(2, 4)).detach(), MASK)
    action, mu = chosen.mode(), chosen.mu.detach().clone()
    action.action_args.fill_(9.0)
    assert torch.equal(chosen.mu, mu)
