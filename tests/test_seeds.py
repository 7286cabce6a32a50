"""The tests that the described systems print themselves, run against the package.

They are kept as their authors wrote them, save where a value is invalid.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import treetensor.torch as ttorch

from literate_rl import (
    HybridPolicyNetwork,
    ppo_policy_data,
    ppo_policy_error,
    sample_hybrid_action,
)


@pytest.mark.parametrize("clip_ratio", [0.1, 0.2, 0.3])
@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_ppo(clip_ratio: float, dual_clip: float | None) -> None:
    """PPOxFamily's test of the policy error (its own dual clip of 0.5 is invalid)."""
    B, N = 4, 32  # noqa: N806 (the names of the original)
    logit_new = torch.randn(B, N).requires_grad_(True)
    logit_old = logit_new + torch.rand_like(logit_new) * 0.1
    action = torch.randint(0, N, size=(B,))
    adv = torch.rand(B)
    data = ppo_policy_data(logit_new, logit_old, action, adv, None)
    loss, info = ppo_policy_error(data, clip_ratio=clip_ratio, dual_clip=dual_clip)
    assert all(np.isscalar(i) for i in info)
    assert logit_new.grad is None
    total_loss = sum(loss)
    total_loss.backward()
    assert isinstance(logit_new.grad, torch.Tensor)


def test_ppo_with_the_invalid_dual_clip_of_the_original() -> None:
    logit = torch.randn(4, 32)
    data = ppo_policy_data(logit, logit, torch.zeros(4).long(), torch.rand(4), None)
    with pytest.raises(ValueError, match="dual_clip must be greater than 1"):
        ppo_policy_error(data, clip_ratio=0.2, dual_clip=0.5)


def test_sample_hybrid_action() -> None:
    """PPOxFamily's test of the hybrid policy."""
    B, obs_shape = 4, 10  # noqa: N806 (the names of the original)
    action_shape = {"action_type_shape": 3, "action_args_shape": 3}
    mask = [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    state = torch.rand(B, obs_shape)
    policy_network = HybridPolicyNetwork(obs_shape, action_shape)
    logit = policy_network(state)
    assert isinstance(logit, ttorch.Tensor)
    assert logit.action_type.shape == (B, action_shape["action_type_shape"])
    assert logit.action_args.mu.shape == (B, action_shape["action_args_shape"])
    assert logit.action_args.sigma.shape == (B, action_shape["action_args_shape"])
    action = sample_hybrid_action(logit)
    assert action.action_type.shape == (B,)
    assert action.action_args.shape == (B, action_shape["action_args_shape"])
    data_mask = torch.as_tensor([mask[i] for i in action.action_type]).bool()
    filtered_action_args = ttorch.masked_select(action.action_args, data_mask)
    action.action_args = filtered_action_args
    assert action.action_args.shape == (B,)
    selected_action = action[1:3]
    assert selected_action.action_type.shape == (2,)
