"""The scan: equal to the loop that the chapter prints, and safe where that is."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from literate_rl.maths.advantages import gae_loop
from literate_rl.maths.scan import reverse_scan


@pytest.mark.equation("reverse-scan")
@pytest.mark.equation("scan-chunk")
@given(st.tuples(st.integers(1, 700), st.integers(1, 3)), st.integers(0, 9999))
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
