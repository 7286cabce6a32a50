"""C51: projections and errors of distributions, against slow references."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from projections import exact_projection
from torch.nn.functional import kl_div

from literate_rl.maths.c51 import (
    categorical_error,
    mass_beyond,
    project_distribution,
    project_distribution_loop,
)

seeds = st.integers(0, 9999)
sizes = st.tuples(st.integers(1, 6), st.integers(2, 21))


def distributions(size, seed):
    g = torch.Generator().manual_seed(seed)
    batch, atoms = size
    prob = (3 * torch.randn(batch, atoms, generator=g).double()).softmax(-1)
    reward = 4 * torch.randn(batch, generator=g).double()
    # Some have ended, some keep their place, some are moved by whole numbers.
    kind = torch.randint(4, (batch,), generator=g)
    discount = torch.rand(batch, generator=g).double()
    discount = discount.masked_fill(kind == 0, 0.0).masked_fill(kind == 1, 1.0)
    return prob, torch.where(kind == 1, reward.round(), reward), discount


# --- The projection ------------------------------------------------------------------


@pytest.mark.equation("shifted-atom")
@pytest.mark.equation("atom-position")
@pytest.mark.equation("projection")
@given(sizes, seeds, st.integers(-5, 5), st.floats(0.1, 20) | st.integers(1, 20))
def test_the_kernel_is_the_loop_and_both_are_exact(size, seed, low, width):
    data, ends = distributions(size, seed), (float(low), float(low + width))
    rows = zip(*(x.tolist() for x in data), strict=True)
    expected = [exact_projection(*row, *ends) for row in rows]
    for form in (project_distribution_loop, project_distribution):
        got = form(*data, *ends)
        torch.testing.assert_close(got, torch.tensor(expected).to(got))
    assert (got >= 0).all(), "the loop's may lack a last digit"


def test_what_lands_beyond_the_atoms_is_counted_and_nothing_else():
    prob = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64).repeat(6, 1)
    reward = torch.tensor([0.0, -1.0, 1.5, 9.0, -9.0, 0.3], dtype=torch.float64)
    discount = torch.tensor([1.0, 1.0, 1.0, 0.5, 0.0, 0.9], dtype=torch.float64)
    found = mass_beyond(prob, reward, discount, 0.0, 3.0)
    assert found.tolist() == pytest.approx([0.0, 0.1, 0.3 + 0.4, 1.0, 1.0, 0.0])


@pytest.mark.parametrize("anything", [1 / 11, math.nan])
def test_after_a_termination_all_mass_is_at_the_reward(anything):
    prob = torch.full((3, 11), anything)
    reward = torch.tensor([2.0, 2.5, 99.0])
    result = project_distribution(prob, reward, torch.zeros(3), 0.0, 10.0)
    expected = torch.zeros(3, 11)
    expected[0, 2], expected[1, 2:4], expected[2, 10] = 1, 0.5, 1
    torch.testing.assert_close(result, expected)


def test_a_projection_has_no_gradient_and_changes_no_argument():
    data = [x.requires_grad_() for x in distributions((4, 7), 1)]
    kept = [x.clone() for x in data]
    assert not project_distribution(*data, -3.0, 5.0).requires_grad
    assert all(map(torch.equal, data, kept))


# --- The error -----------------------------------------------------------------------


@pytest.mark.equation("categorical-error")
@given(sizes, seeds)
def test_the_error_is_the_kl_divergence_and_its_gradient_the_difference(size, seed):
    target = distributions(size, seed)[0]
    target[0, 0] = 0
    target = target / target.sum(-1, keepdim=True)
    logit = distributions(size, seed + 1)[0].log().requires_grad_()
    error = categorical_error(logit.log_softmax(-1), target)
    terms = kl_div(logit.log_softmax(-1), target, reduction="none")
    torch.testing.assert_close(error, terms.sum(-1))
    (grad,) = torch.autograd.grad(error.sum(), logit)
    torch.testing.assert_close(grad, logit.detach().softmax(-1) - target)


def test_a_network_that_is_sure_of_the_wrong_atom_can_unlearn():
    logit = torch.tensor([[0.0, 0.0, 1000.0]], requires_grad=True)
    error = categorical_error(logit.log_softmax(-1), torch.eye(3)[:1])
    (grad,) = torch.autograd.grad(error.sum(), logit)
    assert grad.tolist() == [[-1, 0, 1]]


def test_what_the_target_finds_impossible_may_be_impossible():
    log_prob = torch.tensor([[0.0, -math.inf]])
    assert categorical_error(log_prob, torch.tensor([[1.0, 0.0]])).item() == 0
    with pytest.raises(ValueError, match="log_prob"):
        categorical_error(log_prob, torch.tensor([[0.5, 0.5]]))
