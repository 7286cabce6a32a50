"""The tests that the described systems print themselves, run against the package.

They are kept as their authors wrote them, save where a value is invalid.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
import treetensor.torch as ttorch
from gymnasium import spaces

from literate_rl import (
    DisjointPolicyValueNetwork,
    HybridPolicyNetwork,
    PPGAuxAlgorithm,
    PPGAuxOptions,
    PPGAuxPhaseLoss,
    PPGRolloutInfo,
    PPGTrainInfo,
    TimeStep,
    ppg_network_forward,
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


def test_disjoint_network_as_documented() -> None:
    """The constructor and the forward pass as ALF's documentation describes them."""
    names = "observation_spec action_spec encoding_network_ctor is_sharing_encoder "
    names += "discrete_projection_net_ctor continuous_projection_net_ctor name"
    parameters = inspect.signature(DisjointPolicyValueNetwork).parameters
    documented = [p for p in parameters.values() if p.kind == p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in documented] == names.split()
    assert parameters["is_sharing_encoder"].default is False
    assert parameters["name"].default == "DisjointPolicyValueNetwork"
    network = DisjointPolicyValueNetwork(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
    output, state = network.forward(torch.randn(4, 3), ())
    assert len(output) == len(state) == 3
    output, _ = network.forward(torch.randn(4, 3), (), require_aux=False)
    assert output[2] == ()


def test_ppg_as_documented() -> None:
    """The path from a rollout to the loss as ALF's documentation describes it."""
    assert PPGAuxOptions._fields == (
        "enabled",
        "interval",
        "mini_batch_length",
        "mini_batch_size",
        "num_updates_per_train_iter",
    )
    box, two = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)
    network = DisjointPolicyValueNetwork(box, two)
    algorithm = PPGAuxAlgorithm(box, two, dual_actor_value_network=network)
    assert algorithm.interval == 32
    assert algorithm.network is network
    inputs = TimeStep(torch.ones(4), torch.ones(4), torch.ones(4), torch.randn(4, 3))
    info = ppg_network_forward(network, inputs, ()).info
    assert isinstance(info, PPGRolloutInfo)
    exp = (inputs.observation, info._replace(next_value=torch.zeros(4)))
    algorithm.observe_for_aux_replay(exp)
    _, stored = algorithm.buffer[0]
    step = algorithm.train_step(inputs, (), stored)
    assert isinstance(step.info, PPGTrainInfo)
    as_rows = step.info._replace(
        **{
            name: getattr(step.info, name).unsqueeze(0)
            for name in PPGTrainInfo._fields
            if isinstance(getattr(step.info, name), torch.Tensor)
        }
    )
    loss_info = algorithm.calc_loss(as_rows)
    assert loss_info.loss.shape == (1, 4)
    assert torch.equal(loss_info.loss, PPGAuxPhaseLoss(gamma=0.99)(as_rows).loss)
