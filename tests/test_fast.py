"""Kernels: equal to what the chapters print, and safe where those are."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from literate_rl.maths.fast import categorical_terms
from literate_rl.maths.policy_gradient import categorical_entropy, categorical_log_prob

seeds = st.integers(0, 9999)


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
