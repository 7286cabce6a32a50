"""Kernels: equal to what the chapters print, and safe where those are."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from literate_rl.maths.advantages import gae_loop
from literate_rl.maths.fast import categorical_terms, reverse_scan
from literate_rl.maths.policy_gradient import categorical_entropy, categorical_log_prob

seeds = st.integers(0, 9999)


@pytest.mark.equation("reverse-scan")
@pytest.mark.equation("scan-chunk")
@given(st.tuples(st.integers(1, 700), st.integers(1, 3)), seeds)
def test_scan_is_the_loop_that_the_chapter_prints(size, seed):
    generator = torch.Generator().manual_seed(seed)
    increment, factor = torch.randn(2, *size, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(
        reverse_scan(increment, factor), gae_loop(increment, factor)
    )


def test_a_product_that_overflows_does_not_spoil_the_recursion():
    increment = torch.zeros(128, 1)
    increment[0] = 1
    huge = torch.full((128, 1), 1e6)
    assert torch.equal(reverse_scan(increment, huge), increment)
    # Step by step means each step, the last ones too.
    late, cut = increment.clone(), huge.clone()
    late[-1], cut[125] = 1, 0
    torch.testing.assert_close(reverse_scan(late, cut), gae_loop(late, cut))
    # What is infinite step by step stays infinite.
    assert reverse_scan(increment + 1, huge * 1e6).isinf().any()


@pytest.mark.parametrize("factor", [0.5, 1e6])
def test_scan_keeps_no_gradient_and_stops_nobody_elses(factor):
    """The second factor takes the way for products that overflow."""
    increment = torch.zeros(128, 1)
    increment[0] = 1
    factors = torch.full((128, 1), factor)
    result = reverse_scan(increment.requires_grad_(), factors.requires_grad_())
    assert not result.requires_grad
    assert increment.requires_grad
    assert factors.requires_grad


@pytest.mark.parametrize("length", [1, 2, 100])
def test_scan_writes_to_no_argument_and_shares_no_memory(length):
    increment, factor = torch.rand(2, length, 2)
    kept = increment.clone(), factor.clone()
    result = reverse_scan(increment, factor)
    result.zero_()
    assert torch.equal(increment, kept[0])
    assert torch.equal(factor, kept[1])


@pytest.mark.equation("categorical-gradient")
@given(seeds, st.integers(1, 9), st.integers(1, 6), st.sampled_from([1.0, 30.0, 1e4]))
def test_terms_and_gradients_are_those_of_chapter_two(seed, rows, n, scale):
    generator = torch.Generator().manual_seed(seed)
    logit = scale * torch.randn(rows, n, generator=generator, dtype=torch.float64)
    # The last action was taken away.
    logit = torch.nn.functional.pad(logit, (0, 1), value=-torch.inf).requires_grad_()
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
