"""A2c: say what these tests hold."""

import pytest
import torch

from literate_rl.a2c import a2c_mean


@pytest.mark.equation("a2c-mean")
def test_the_mean_is_the_sum_over_the_number() -> None:
    x = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)
    assert a2c_mean(x).item() == 3.0
