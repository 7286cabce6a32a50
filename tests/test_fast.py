"""Kernels: equal to what the chapters print, and safe where those are."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical

from literate_rl.advantages import gae_loop
from literate_rl.policy_gradient import categorical_entropy, categorical_log_prob
from literate_rl.ppo_error import (
    fused_ppo_policy_error,
    ppo_policy_data,
    ppo_policy_error,
)
from literate_rl.workshop.fast import categorical_terms, reverse_scan

sizes = st.tuples(st.integers(1, 40), st.integers(1, 3))
seeds = st.integers(0, 9999)


def scan_by_sum(increment: Tensor, factor: Tensor) -> Tensor:
    """Sum all later increments, each times the factors on the way."""
    rows = range(len(increment))
    return torch.stack(
        [
            sum(
                (math.prod([factor[r] for r in range(t, u)], start=1.0) * increment[u])
                for u in rows[t:]
            )
            for t in rows
        ]
    )


@pytest.mark.equation("reverse-scan")
@pytest.mark.equation("scan-chunk")
@given(sizes, seeds)
def test_scan_is_the_sum_of_later_increments(size, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    increment, factor = torch.randn(2, *size, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(
        reverse_scan(increment, factor), scan_by_sum(increment, factor)
    )


@given(st.tuples(st.integers(1, 700), st.integers(1, 3)), seeds)
def test_scan_is_the_loop_that_the_chapter_prints(size, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    increment, factor = torch.rand(2, *size, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(
        reverse_scan(increment, factor), gae_loop(increment, factor)
    )


def test_a_product_that_overflows_does_not_spoil_the_recursion() -> None:
    increment = torch.zeros(128, 1)
    increment[0] = 1
    huge = torch.full((128, 1), 1e6)
    assert torch.equal(reverse_scan(increment, huge), increment)
    # Step by step means each step, the last ones too.
    late, cut = increment.clone(), huge.clone()
    late[-1], cut[125] = 1, 0
    torch.testing.assert_close(reverse_scan(late, cut), gae_loop(late, cut))
    # Also where infinity would have met a tiny number instead of zero.
    tiny = increment.clone()
    tiny[-1], huge[:64] = 1e-30, 1e-6
    huge[64:120] = 1.0
    torch.testing.assert_close(reverse_scan(tiny, huge), gae_loop(tiny, huge))
    # What is infinite step by step stays infinite.
    assert reverse_scan(increment + 1, huge * 1e6).isinf().any()


@pytest.mark.parametrize("factor", [0.5, 1e6])
def test_scan_keeps_no_gradient_and_stops_nobody_elses(factor: float) -> None:
    """The second factor takes the way for products that overflow."""
    increment = torch.zeros(128, 1)
    increment[0] = 1
    factors = torch.full((128, 1), factor)
    result = reverse_scan(increment.requires_grad_(), factors.requires_grad_())
    assert not result.requires_grad
    assert increment.requires_grad
    assert factors.requires_grad


@pytest.mark.parametrize("length", [1, 2, 3, 8, 100])
def test_scan_writes_to_no_argument_and_shares_no_memory(length) -> None:
    increment, factor = torch.rand(2, length, 2)
    kept = increment.clone(), factor.clone()
    result = reverse_scan(increment, factor)
    result.zero_()
    assert torch.equal(increment, kept[0])
    assert torch.equal(factor, kept[1])


@pytest.mark.parametrize(
    ("increment", "factor", "error", "message"),
    [
        (torch.zeros(3), torch.zeros(3), ValueError, "increment must have"),
        (torch.zeros(3, 2), torch.zeros(2, 2), ValueError, "factor must have shape"),
        (torch.zeros(3, 2), 0.5, TypeError, "factor must be a tensor, got float"),
    ],
)
def test_scan_names_bad_arguments(increment, factor, error, message) -> None:
    with pytest.raises(error, match=message):
        reverse_scan(increment, factor)


# --- The policy error with a gradient written by hand --------------------------------

FORMS = [ppo_policy_error, fused_ppo_policy_error]


def make_batch(
    batch: int, actions: int, seed: int, weighted: bool = False, spread: float = 0.5
) -> ppo_policy_data:
    """A random float64 batch; the new logits want a gradient."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    logit_new = draw(batch, actions)
    return ppo_policy_data(
        logit_new.clone().requires_grad_(),
        logit_new + spread * draw(batch, actions),
        torch.randint(0, actions, (batch,), generator=g),
        draw(batch),
        torch.rand(batch, generator=g, dtype=torch.float64) if weighted else None,
    )


@pytest.mark.equation("fused-gradient")
@given(
    st.integers(1, 40),
    st.integers(1, 8),
    st.integers(0, 999),
    st.booleans(),
    st.none() | st.floats(1.01, 10.0),
)
def test_fused_equals_plain(
    batch: int, actions: int, seed: int, weighted: bool, c: float | None
) -> None:
    data = make_batch(batch, actions, seed, weighted, spread=2.0)
    results = []
    for error in FORMS:
        loss, info = error(data, 0.2, c)
        total = 0.7 * loss.policy_loss - 0.3 * loss.entropy_loss
        results.append((*loss, *info, *torch.autograd.grad(total, data.logit_new)))
    for plain, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", [1e2, 1e4])
def test_fused_equals_plain_at_extreme_logits(scale: float) -> None:
    data = make_batch(64, 6, seed=0)
    logit = (data.logit_new.detach() * scale).float().requires_grad_()
    data = data._replace(
        logit_new=logit, logit_old=data.logit_old.float() * scale, adv=data.adv.float()
    )
    gradients = []
    for error in FORMS:
        loss, _ = error(data)
        gradients.append(torch.autograd.grad(sum(loss), logit)[0])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("adv", [-1.0, 1.0])
@pytest.mark.parametrize("log_ratio", [-30.0, -19.0, 19.0, 30.0])
@pytest.mark.parametrize("c", [None, 3.0])
def test_fused_holds_a_ratio_where_the_plain_form_does(adv, log_ratio, c) -> None:
    """Also where the loss is as small as the ratio: no absolute error is allowed."""
    small, large = min(log_ratio, 0.0), -max(log_ratio, 0.0)
    logits = (torch.tensor([[x, 0.0]], dtype=torch.float64) for x in (small, large))
    new, old = logits
    new.requires_grad_()
    weight = torch.tensor([adv], dtype=torch.float64)
    data = ppo_policy_data(new, old, torch.tensor([0]), weight, None)
    results = []
    for error in FORMS:
        loss, _ = error(data, 0.2, c)
        results.append((loss[0], *torch.autograd.grad(loss[0], new)))
    torch.testing.assert_close(*results, rtol=1e-9, atol=0)


@pytest.mark.parametrize("adv", [-1.0, 1.0])
@pytest.mark.parametrize("log_ratio", [-30.0, -1.0, 1.0, 19.0, 25.0])
@pytest.mark.parametrize("clip_ratio", [2.0, 1e8, math.inf])
def test_fused_holds_a_ratio_with_a_clip_that_is_wide(
    adv, log_ratio, clip_ratio
) -> None:
    new = torch.tensor([[min(log_ratio, 0.0), 0.0]], requires_grad=True)
    old = torch.tensor([[-max(log_ratio, 0.0), 0.0]])
    data = ppo_policy_data(new, old, torch.tensor([0]), torch.tensor([adv]), None)
    results = []
    for error in FORMS:
        loss, info = error(data, clip_ratio)
        results.append((loss[0], *info, *torch.autograd.grad(loss[0], new)))
    torch.testing.assert_close(*results, rtol=1e-5, atol=0)


def test_fused_refuses_second_derivatives() -> None:
    """A wrong second derivative must not come back silently."""
    data = make_batch(4, 3, seed=0)
    loss, _ = fused_ppo_policy_error(data)
    with pytest.raises(RuntimeError, match="can be differentiated only once"):
        torch.autograd.grad(loss.policy_loss**2, data.logit_new, create_graph=True)


@pytest.mark.equation("categorical-gradient")
@given(seeds, st.integers(1, 9), st.integers(1, 6), st.sampled_from([1.0, 30.0, 1e4]))
def test_terms_and_gradients_are_those_of_chapter_two(seed, rows, n, scale) -> None:
    generator = torch.Generator().manual_seed(seed)
    logit = scale * torch.randn(rows, n, generator=generator, dtype=torch.float64)
    logit.requires_grad_()
    action = torch.randint(n, (rows,), generator=generator)
    ours = categorical_terms(logit, action)
    theirs = categorical_log_prob(logit, action), categorical_entropy(logit)
    torch.testing.assert_close(ours, theirs)
    factors = torch.randn(2, rows, generator=generator, dtype=torch.float64)
    grads = [
        torch.autograd.grad((torch.stack(terms) * factors).sum(), logit)[0]
        for terms in (ours, theirs)
    ]
    torch.testing.assert_close(*grads)


def test_an_action_that_was_taken_away_has_no_gradient() -> None:
    logit = torch.tensor([[0.0, 1.0, -torch.inf]], requires_grad=True)
    log_prob, entropy = categorical_terms(logit, torch.tensor([0]))
    torch.testing.assert_close(entropy, Categorical(logits=logit[:, :2]).entropy())
    (log_prob + entropy).sum().backward()
    assert logit.grad.isfinite().all()
    assert logit.grad[0, 2] == 0.0


def test_terms_can_be_differentiated_once() -> None:
    logit = torch.zeros(2, 3, requires_grad=True)
    log_prob, _ = categorical_terms(logit, torch.tensor([0, 1]))
    factor = torch.ones((), requires_grad=True)
    total = factor * log_prob.sum()
    (grad,) = torch.autograd.grad(total, logit, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
