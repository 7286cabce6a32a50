"""A saturated actor has no slope."""

import pytest
import torch
from gymnasium import spaces

from benchmarks.corner import corner, probes
from literate_rl.learners.ddpg import make_ddpg_policy


@pytest.mark.parametrize("sure", [0.0, 200.0])
def test_a_saturated_actor_has_no_slope(sure: float) -> None:
    torch.manual_seed(0)
    policy = make_ddpg_policy(spaces.Box(-5, 5, (4,)), spaces.Discrete(2), 8)
    last = policy.network.actor[-2][-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor([0.0, sure]))
    found = corner(policy)
    assert probes().shape == (400, 4)
    assert (found["other"] < 1e-30) == (sure > 0)
    assert (found["slope"] == 0.0) == (sure > 0)
    assert found["right"] == (1.0 if sure else 0.0)
