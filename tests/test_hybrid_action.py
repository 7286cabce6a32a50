"""Hybrid actions against slow float64 references, gradients included."""

from __future__ import annotations

import math
import subprocess
import sys
from importlib.metadata import packages_distributions

import pytest
import torch
import treetensor.torch as ttorch
from extremes import assert_gradients_are_finite
from hybrid import (
    MASK,
    action_of,
    assert_same,
    cases,
    entropy_reference,
    kl_reference,
    leaves_of,
    log_prob_reference,
    logit_of,
    random_logit,
)
from hypothesis import given
from torch import Tensor
from torch.distributions import Categorical, Normal

from literate_rl.maths.fast import UNIT_ENTROPY, hybrid_terms, log_softmax
from literate_rl.nets.hybrid_action import (
    HybridDistribution,
    HybridPolicyNetwork,
    draw,
    mask_args,
    sample_hybrid_action,
    select_args,
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# --- The network --------------------------------------------------------------------

SHAPE = {"action_type_shape": 3, "action_args_shape": 4}


@pytest.mark.equation("hybrid-encoder")
@pytest.mark.equation("hybrid-heads")
def test_the_network_has_two_layers_two_linear_heads_and_free_deviations():
    network = HybridPolicyNetwork(10, SHAPE)
    assert not network.action_args_log_sigma.any()
    omega = torch.tensor([[0.0, 1.0, -1.0, 0.5]])
    with torch.no_grad():
        network.action_args_log_sigma.copy_(omega)

    first, _, second, _ = network.encoder
    x = torch.randn(6, 5, 10)  # many steps at once
    hidden = first(x).clamp(min=0)
    features = second(hidden).clamp(min=0)
    assert (hidden.shape[-1], features.shape[-1]) == (16, 32)
    heads = network.action_type_head, network.action_args_mu
    wanted = [*(head(features) for head in heads), omega.exp().expand(6, 5, 4)]
    torch.testing.assert_close(leaves_of(network(x)), wanted)


# --- Sampling -----------------------------------------------------------------------


@pytest.mark.equation("hybrid-softmax")
@pytest.mark.equation("hybrid-gaussian")
def test_samples_follow_the_distribution():
    number = 60_000
    leaves = [[0.3, -torch.inf, 1.5, -1.0]], [[0.5, -3.0]], [[0.1, 2.0]]
    type_logit, mu, sigma = (torch.tensor(x, dtype=torch.float64) for x in leaves)
    logit = logit_of(*(x.expand(number, -1) for x in (type_logit, mu, sigma)))
    action = sample_hybrid_action(logit, seeded())
    # By definition: exponentials over their sum.
    prob = type_logit[0].exp() / type_logit.exp().sum()
    share = action.action_type.bincount(minlength=4) / number
    # Five standard errors, here and below.
    assert ((share - prob).abs() <= 5 * (prob / number).sqrt()).all()
    # The whole law, not only its moments: the share of samples below each quantile.
    level = torch.tensor([0.01, 0.2, 0.5, 0.8, 0.99], dtype=torch.float64)
    below = ((action.action_args - mu) / sigma).unsqueeze(-1) < Normal(0, 1).icdf(level)
    error = (level * (1 - level) / number).sqrt()
    assert ((below.double().mean(0) - level).abs() < 5 * error).all()


def test_a_seed_decides_a_sample():
    logit = random_logit(50, MASK, seed=0, grad=True)
    sample, other = (sample_hybrid_action(logit, seeded(seed)) for seed in (7, 8))
    again = HybridDistribution(logit, MASK).sample(seeded(7))
    for key in ("action_type", "action_args"):
        assert torch.equal(sample[key], again[key])
        assert not torch.equal(sample[key], other[key])
        assert not sample[key].requires_grad


def test_impossible_types_lose_even_the_unluckiest_race(monkeypatch):
    """Uniform numbers at the end of their range make no tie with probability zero."""
    prob = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1e-30, 1.0]])
    mu = torch.zeros(2, 1)
    for end in (lambda low, high: low, lambda low, high: high - 2**-24):
        monkeypatch.setattr(
            Tensor,
            "uniform_",
            lambda x, low, high, generator=None, end=end: x.fill_(end(low, high)),
        )
        assert draw(prob, mu, mu + 1, None).action_type.tolist() == [1, 2]


# --- Masks --------------------------------------------------------------------------


@pytest.mark.erratum("masked-select-misaligns")
def test_masked_select_misaligns_rows():
    mask = torch.tensor([[1, 0], [0, 1], [0, 0]], dtype=torch.bool)
    args = torch.tensor([[10.0, 11], [20, 21], [30, 31], [40, 41]])
    action = action_of([0, 2, 1, 0], args)
    data_mask = mask[action.action_type]
    selected = ttorch.masked_select(action.action_args, data_mask)
    assert selected.tolist() == [10.0, 31.0, 40.0]  # four samples, three values
    action.action_args = selected
    assert action[2:3].action_args.item() == 40.0  # sample 2 took 31, sample 3 took 40
    args[0, 1] = torch.nan
    expected = [[10.0, 0.0], [0.0, 0.0], [0.0, 31.0], [40.0, 0.0]]
    assert mask_args(args, data_mask).tolist() == expected
    assert select_args(args[2:], data_mask[2:]).tolist() == [31.0, 40.0]
    with pytest.raises(ValueError, match=r"got \[0\] in rows \[1\]"):
        select_args(args, data_mask)


@pytest.mark.erratum("symmetric-mask")
def test_the_tutorials_mask_cannot_tell_rows_from_columns():
    tutorial = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 1]])
    chain = torch.tensor([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
    logit = random_logit(4, tutorial, seed=0)
    action = sample_hybrid_action(logit, seeded())
    values = [
        HybridDistribution(logit, table).log_prob(action)
        for table in (tutorial, tutorial.T, chain, chain.T)
    ]
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[2], values[3])


# --- The distribution ---------------------------------------------------------------


@pytest.mark.equation("hybrid-log-prob")
@pytest.mark.equation("hybrid-entropy")
@pytest.mark.equation("hybrid-kl")
@pytest.mark.equation("hybrid-level")
@pytest.mark.equation("hybrid-short")
@given(cases())
def test_all_terms_plain_and_fast_are_those_of_torch_distributions(case):
    mask, logit, other, action = case
    policy, another = (HybridDistribution(tree, mask) for tree in (logit, other))
    leaves, divergence = leaves_of(logit), policy.kl(another)
    short = hybrid_terms(*leaves, mask, action.action_type, action.action_args)
    found = policy.log_prob(action), policy.entropy(), *short, divergence
    terms = log_prob_reference(logit, mask, action), entropy_reference(logit, mask)
    wanted = *terms, *terms, kl_reference(logit, other, mask)
    assert_same(torch.stack(found), torch.stack(wanted), *leaves, *leaves_of(other))
    assert (divergence >= -1e-12).all()
    torch.testing.assert_close(policy.kl(policy), torch.zeros_like(divergence))


def test_the_mode_is_the_likeliest_type_with_all_arguments_at_their_means():
    kind, mu, _ = leaves_of(logit := random_logit(50, MASK, 0, grad=True))
    mode = HybridDistribution(logit, MASK).mode()
    assert torch.equal(mode.action_type, kind.argmax(-1))
    assert torch.equal(mode.action_args, mu)
    assert not mode.action_args.requires_grad
    assert mode.action_args.data_ptr() != mu.data_ptr(), "a copy"


@pytest.mark.parametrize("batch", [4, 2000])
def test_log_softmax_of_few_and_of_many_rows(batch):
    logit = 1e4 * torch.randn(batch, 3, generator=seeded(), dtype=torch.float64)
    logit[0, 1] = -torch.inf
    found = []
    for function in (log_softmax, lambda x: x - x.logsumexp(-1, keepdim=True)):
        leaf = logit.clone().requires_grad_()
        result = function(leaf)
        result[:, 0].sum().backward()
        found.append((result.detach(), leaf.grad))
    torch.testing.assert_close(*found)


# --- Numbers that must do no harm ---------------------------------------------------


def dangerous():
    """A policy and actions with all that may go wrong where it does not count."""
    type_logit = torch.tensor([[0.5, -torch.inf, 0.1], [-torch.inf, 0.0, -torch.inf]])
    mu = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.0, 0.0]])
    # Argument 3 counts for no type, and state 1 has a single type without arguments.
    sigma = torch.tensor([[1.0, 0.5, 2.0, 1e-40], [1e-40, 1e-30, 1e-40, 1.0]])
    nan, inf = torch.nan, torch.inf
    args = torch.tensor([[nan, 0.3, -inf, nan], [inf, nan, 1e38, -inf]])
    leaves = [x.requires_grad_() for x in (type_logit, mu, sigma)]
    return logit_of(*leaves), action_of([0, 1], args)


def finite_grads(total, logit):
    grads = torch.autograd.grad(
        total, leaves_of(logit), retain_graph=True, allow_unused=True
    )
    return all(g is None or bool(g.isfinite().all()) for g in grads)


@pytest.mark.parametrize("fast", [False, True])
def test_what_does_not_count_harms_neither_values_nor_gradients(fast):
    logit, action = dangerous()
    policy = HybridDistribution(logit, MASK)
    found = policy.log_prob(action), policy.entropy()
    if fast:
        leaves = leaves_of(logit)
        found = hybrid_terms(*leaves, MASK, action.action_type, action.action_args)
    wanted = log_prob_reference(logit, MASK, action), entropy_reference(logit, MASK)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    for total in (*(x.sum() for x in found), 1e6 * found[1].sum()):
        assert finite_grads(total, logit)


def test_what_does_not_count_does_not_harm_a_divergence():
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
    assert divergence.tolist() == pytest.approx([expected, 0.0], rel=1e-5, abs=1e-6)
    assert finite_grads(divergence.sum(), logit)
    assert finite_grads(divergence.sum(), other)


def test_a_finite_density_has_a_finite_gradient_at_all_deviations():
    def parts_of(mu, sigma, action):
        logit = logit_of(torch.zeros(1, 1), mu.view(1, 1), sigma.view(1, 1))
        policy = HybridDistribution(logit, [[1]])
        log_prob = policy.log_prob(action_of([0], torch.full((1, 1), action)))
        return log_prob.sum(), policy.entropy().sum() + 0 * log_prob.sum()

    assert_gradients_are_finite(parts_of)


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


@pytest.mark.erratum("categorical-probs-saturates")
def test_probabilities_saturate_and_logits_do_not():
    for form, value, slope in (
        (lambda z: Categorical(probs=z.softmax(-1)).logits, -15.94, 0.0),
        (lambda z: Categorical(logits=z).logits, -50.0, 1.0),
        (log_softmax, -50.0, 1.0),
    ):
        z = torch.tensor([[0.0, -50.0]], requires_grad=True)
        log_prob = form(z)[0, 1]
        log_prob.backward()
        assert log_prob.item() == pytest.approx(value, abs=0.01)
        assert z.grad.tolist() == [pytest.approx([-slope, slope])]


@pytest.mark.erratum("hybrid-entropy-unmasked")
def test_summing_all_entropies_counts_idle_arguments():
    mask = torch.tensor([[1, 0], [0, 1], [0, 0]], dtype=torch.bool)
    type_logit = torch.tensor([[0.3, 0.2, 0.5]]).log()
    logit = logit_of(type_logit, torch.zeros(1, 2), torch.ones(1, 2))
    many = logit_of(*(leaf.expand(100_000, -1) for leaf in leaves_of(logit)))
    policy = HybridDistribution(many, mask)
    surprise = -policy.log_prob(policy.sample(seeded())).mean()
    assert surprise.item() == pytest.approx(1.739, abs=0.01)
    assert policy.entropy()[0].item() == pytest.approx(1.739, abs=1e-3)
    summed = Categorical(logits=logit.action_type).entropy() + 2 * UNIT_ENTROPY
    assert summed.item() == pytest.approx(3.868, abs=1e-3)


@pytest.mark.erratum("hybrid-ratio-unmasked")
def test_idle_arguments_widen_the_ratio_as_computed():
    """Without a mask the second moment of the ratio grows by exp(delta^2) each."""
    number, num_args, delta = 200_000, 4, 0.3
    zeros, ones = torch.zeros(number, num_args), torch.ones(number, num_args)
    old, new = (logit_of(zeros[:, :2], zeros + x, ones) for x in (0.0, delta))
    none = torch.zeros(2, num_args, dtype=torch.bool)
    action = sample_hybrid_action(old, seeded())
    for mask, variance in ((none, 0.0), (~none, math.expm1(num_args * delta**2))):
        left, right = (HybridDistribution(x, mask).log_prob(action) for x in (new, old))
        found = (left - right).exp().var().item()
        assert found == pytest.approx(variance, rel=0.05, abs=1e-9)


WITHOUT_TREES = """
import sys
sys.modules["treetensor"] = sys.modules["treevalue"] = None
import literate_rl.interfaces.alf, literate_rl.interfaces.ding
from literate_rl import train
from literate_rl.nets.hybrid_action import as_tree
train("PPO", "literate_rl/Moving-v0", total_steps=64, num_envs=2, num_steps=32,
      progress=False)
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
    type_logit = torch.tensor([[0.0, 1.0, -torch.inf]])
    args = torch.zeros(1, 4), torch.ones(1, 4)
    policy = HybridDistribution(logit_of(type_logit, *args), MASK)
    smaller = HybridDistribution(logit_of(type_logit[:, :2], *args), MASK[:2])
    torch.testing.assert_close(policy.prob[:, :2], smaller.prob)
    torch.testing.assert_close(policy.entropy(), smaller.entropy())
    assert policy.mode().action_type.item() == 1


# --- Bad input ----------------------------------------------------------------------


def test_what_does_not_fit_is_named():
    zeros = torch.zeros(2, 4)
    type_logit = torch.tensor([[0.0, 0.0, 0.0], [-torch.inf] * 3])
    with pytest.raises(ValueError, match="the softmax of"):
        sample_hybrid_action(logit_of(type_logit, zeros, zeros + 1))
    logit = logit_of(torch.zeros(2, 3), zeros, zeros + 1)
    with pytest.raises(ValueError, match=r"shape \(3, 4\), got \(4, 3\)"):
        HybridDistribution(logit, MASK.T)
    policy = HybridDistribution(logit, MASK)
    with pytest.raises(ValueError, match=r"in 0\.\.2, got 0\.\.3"):
        policy.log_prob(action_of([0, 3], zeros))
    # Type 0 uses argument 1.
    with pytest.raises(ValueError, match=r"action\.action_args must be finite"):
        policy.log_prob(action_of([0, 1], zeros * torch.nan))
