"""C51: projections and errors of distributions, against slow references."""

import math
from random import Random

import pytest
import torch
from fuzz import assert_held
from hypothesis import given
from hypothesis import strategies as st
from projections import exact_projection

from literate_rl.maths.c51 import (
    categorical_error,
    mass_beyond,
    project_distribution,
    project_distribution_loop,
)

seeds = st.integers(0, 9999)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# --- The projection ------------------------------------------------------------------


def distributions(size, seed, dtype=torch.float64):
    g = generator(seed)
    batch, atoms = size
    prob = (3 * torch.randn(batch, atoms, generator=g, dtype=dtype)).softmax(-1)
    reward = 4 * torch.randn(batch, generator=g, dtype=dtype)
    discount = torch.rand(batch, generator=g, dtype=dtype)
    # Some have ended, some keep their place, some are moved by whole spacings.
    kind = torch.randint(4, (batch,), generator=g)
    discount = discount.masked_fill(kind == 0, 0.0).masked_fill(kind == 1, 1.0)
    reward = torch.where(kind == 1, reward.round(), reward)
    return prob, reward, discount


sizes = st.tuples(st.integers(1, 6), st.integers(2, 21))


@pytest.mark.equation("shifted-atom")
@pytest.mark.equation("projection")
@given(sizes, seeds)
def test_the_projection_is_that_of_exact_fractions(size, seed) -> None:
    data = distributions(size, seed)
    expected = [
        exact_projection(p, r, d, -3, 5)
        for p, r, d in zip(*(x.tolist() for x in data), strict=True)
    ]
    expected = torch.tensor(expected, dtype=torch.float64)
    for form in (project_distribution, project_distribution_loop):
        torch.testing.assert_close(form(*data, -3.0, 5.0), expected)


@pytest.mark.equation("atom-position")
@given(sizes, seeds, st.floats(-5, 5), st.floats(0.1, 20))
def test_the_kernel_is_the_loop(size, seed, low, width) -> None:
    data = distributions(size, seed)
    torch.testing.assert_close(
        project_distribution(*data, low, low + width),
        project_distribution_loop(*data, low, low + width),
    )


@given(sizes, seeds)
def test_no_mass_is_lost_and_none_is_negative(size, seed) -> None:
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        result = project_distribution(*distributions(size, seed, dtype), -3.0, 5.0)
        assert result.dtype == dtype
        assert (result >= 0).all()
        assert (result.sum(-1) - 1).abs().max() < tolerance


@given(sizes, seeds)
def test_the_mean_is_kept_as_long_as_nothing_leaves_the_support(size, seed) -> None:
    prob, _, discount = distributions(size, seed)
    low, high = -3.0, 5.0
    # What is paid keeps every atom inside the support.
    room = (1 - discount) * torch.rand(len(discount), dtype=torch.float64)
    reward = (1 - discount) * low + room * (high - low)
    atoms = torch.linspace(low, high, prob.shape[1], dtype=torch.float64)
    result = project_distribution(prob, reward, discount, low, high)
    torch.testing.assert_close(result @ atoms, reward + discount * (prob @ atoms))


def test_what_lands_beyond_the_atoms_is_counted_and_nothing_else() -> None:
    prob = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64).repeat(6, 1)
    reward = torch.tensor([0.0, -1.0, 1.5, 9.0, -9.0, 0.3], dtype=torch.float64)
    discount = torch.tensor([1.0, 1.0, 1.0, 0.5, 0.0, 0.9], dtype=torch.float64)
    found = mass_beyond(prob, reward, discount, 0.0, 3.0)
    wanted = [0.0, 0.1, 0.3 + 0.4, 1.0, 1.0, 0.0]
    assert found.tolist() == pytest.approx(wanted)
    # What pays 1 for ever is worth 100, and rounding takes it nowhere else.
    steps = torch.arange(30.0)
    paid, left = (1 - 0.99**steps) / (1 - 0.99), 0.99**steps
    last = torch.zeros(30, 51)
    last[:, -1] = 1.0
    assert mass_beyond(last, paid, left, 0.0, 100.0).max() == 0


def test_a_distribution_that_is_moved_by_whole_spacings_keeps_its_shape() -> None:
    # Here rounding down and rounding up agree, and mass vanishes in many programs.
    prob = torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.0]])
    one = torch.ones(1)
    moved = project_distribution(prob, one, one, 0.0, 4.0)
    torch.testing.assert_close(moved, torch.tensor([[0.0, 0.1, 0.2, 0.3, 0.4]]))
    # At the upper end the support is over, and what would leave it stays there.
    moved = project_distribution(prob, 2 * one, one, 0.0, 4.0)
    torch.testing.assert_close(moved, torch.tensor([[0.0, 0.0, 0.1, 0.2, 0.7]]))


@pytest.mark.parametrize("anything", [1 / 11, math.nan])
def test_after_a_termination_all_mass_is_at_the_reward(anything: float) -> None:
    prob = torch.full((3, 11), anything)
    reward = torch.tensor([2.0, 2.5, 99.0])
    result = project_distribution(prob, reward, torch.zeros(3), 0.0, 10.0)
    expected = torch.zeros(3, 11)
    expected[0, 2], expected[1, 2], expected[1, 3], expected[2, 10] = 1, 0.5, 0.5, 1
    torch.testing.assert_close(result, expected)


def test_a_projection_has_no_gradient_and_changes_no_argument() -> None:
    prob, reward, discount = distributions((4, 7), 1)
    for argument in (prob, reward, discount):
        argument.requires_grad_()
    kept = [x.clone() for x in (prob, reward, discount)]
    result = project_distribution(prob, reward, discount, -3.0, 5.0)
    assert not result.requires_grad
    result.zero_()
    assert all(map(torch.equal, (prob, reward, discount), kept))


@pytest.mark.parametrize("name", ["prob", "reward", "discount"])
def test_what_is_not_a_number_is_named(name) -> None:
    data = dict(
        zip(("prob", "reward", "discount"), distributions((3, 5), 0), strict=True)
    )
    data["discount"] = torch.full_like(data["reward"], 0.9)  # no episode ended
    data[name] = data[name].clone()
    data[name].view(-1)[1] = math.nan
    with pytest.raises(ValueError, match=name):
        project_distribution(**data, value_min=0.0, value_max=1.0)


def test_atoms_that_do_not_rise_or_are_alone_are_refused() -> None:
    one = torch.ones(1)
    with pytest.raises(ValueError, match="value_min"):
        project_distribution(torch.ones(1, 3) / 3, one, one, 1.0, 1.0)
    with pytest.raises(ValueError, match="two atoms"):
        project_distribution(torch.ones(1, 1), one, one, 0.0, 1.0)


# --- The error -----------------------------------------------------------------------


@pytest.mark.equation("categorical-error")
@given(sizes, seeds)
def test_the_error_is_the_kl_divergence_and_its_gradient_the_difference(
    size, seed
) -> None:
    target = distributions(size, seed)[0]
    target[0, 0] = 0
    target = target / target.sum(-1, keepdim=True)
    logit = torch.randn(size, generator=generator(seed), dtype=torch.float64)
    logit.requires_grad_()
    error = categorical_error(logit.log_softmax(-1), target)
    slow = [
        sum(t * math.log(t / p) for t, p in zip(ts, ps, strict=True) if t > 0)
        for ts, ps in zip(target.tolist(), logit.softmax(-1).tolist(), strict=True)
    ]
    torch.testing.assert_close(error.tolist(), slow)
    (grad,) = torch.autograd.grad(error.sum(), logit)
    torch.testing.assert_close(grad, logit.detach().softmax(-1) - target)


def test_a_network_that_is_sure_of_the_wrong_atom_can_unlearn() -> None:
    target = torch.tensor([[1.0, 0.0, 0.0]])
    for sure in (15.0, 50.0, 1000.0):
        logit = torch.tensor([[0.0, 0.0, sure]], requires_grad=True)
        error = categorical_error(logit.log_softmax(-1), target)
        (grad,) = torch.autograd.grad(error.sum(), logit)
        assert grad[0, 2] > 0.99
        assert grad[0, 0] < -0.99


def test_what_the_target_finds_impossible_may_be_impossible() -> None:
    log_prob = torch.tensor([[0.0, -math.inf]])
    assert categorical_error(log_prob, torch.tensor([[1.0, 0.0]])).item() == 0
    with pytest.raises(ValueError, match="log_prob"):
        categorical_error(log_prob, torch.tensor([[0.5, 0.5]]))


# --- Signatures ----------------------------------------------------------------------


def test_signatures_hold() -> None:
    # The two ends must rise, which a signature cannot say.
    ends = {"value_min": lambda: -1.0, "value_max": lambda: 2.0}
    for form in (project_distribution, project_distribution_loop):
        assert assert_held(form, Random(0), **ends) > 50
    log_prob = torch.zeros(4, 3).log_softmax(-1)
    assert torch.equal(categorical_error(log_prob, log_prob.exp()), torch.zeros(4))
    for wrong in (torch.ones(4, 2), torch.ones(4), torch.ones(4, 3).int(), None):
        with pytest.raises((TypeError, ValueError), match="target"):
            categorical_error(log_prob, wrong)
