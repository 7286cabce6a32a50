"""Kernels against the plain forms that they stand for, in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from literate_rl.advantages import gae_loop
from literate_rl.workshop.fast import reverse_scan

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
