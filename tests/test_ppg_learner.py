"""What PPG's phases work with: the policy, the settings, epochs of the value alone."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from test_ppg import BOX, HYBRID, PAIR, SMALL, THREE, copy_weights, learner

from literate_rl.learners.ppg_learner import (
    PPGConfig,
    ValueEpochs,
    make_phasic_policy,
    ppg_settings,
)
from literate_rl.nets.encoders import ConvolutionalEncodingNetwork
from literate_rl.nets.hybrid_policy import HybridActions
from literate_rl.nets.policies import Policy, make_policy

# --- The policy of the policy phase ---------------------------------------------------


def twins(action: spaces.Space) -> tuple[Policy, Policy]:
    """Return a phasic policy and one of the chapters before with the same weights."""
    torch.manual_seed(0)
    phasic, other = make_phasic_policy(BOX, action), make_policy(BOX, action)
    copy_weights(phasic, other)
    return phasic, other


@pytest.mark.parametrize("action", [THREE, PAIR])
def test_a_phasic_policy_is_that_of_ppo_with_another_head(action: Any) -> None:
    phasic, other = twins(action)
    phasic.requires_grad_(False)
    obs, generator = torch.randn(6, 4), torch.Generator()
    noise = phasic.noise(1, 6, generator.manual_seed(0))[0]
    assert torch.equal(noise, other.noise(1, 6, generator.manual_seed(0))[0])
    row, drawn = phasic(obs), phasic.act(obs, noise)
    torch.testing.assert_close(row, other(obs))
    torch.testing.assert_close(phasic.value(obs), other.value(obs))
    torch.testing.assert_close(drawn, other.act(obs, noise))
    judged = zip(
        phasic.evaluate_actions(obs, drawn),
        other.evaluate_actions(obs, drawn),
        strict=True,
    )
    for ours, theirs in judged:
        assert ours.shape == (6,)
        torch.testing.assert_close(ours, theirs)
    np.testing.assert_allclose(phasic.to_env(drawn), other.to_env(drawn), atol=1e-6)


def test_hybrid_rows_are_those_of_the_hybrid_actions() -> None:
    torch.manual_seed(0)
    phasic, actions = make_phasic_policy(BOX, HYBRID), HybridActions.from_space(HYBRID)
    for projection in phasic.network.network.heads.projections[1:]:
        torch.nn.init.normal_(projection.log_sigma)
    obs = torch.randn(6, 4)
    row = phasic(obs)
    (kind, boxes), _, _ = phasic.network.network(obs)[0]
    means, sigmas = ([getattr(b, name) for b in boxes] for name in ("mean", "stddev"))
    torch.testing.assert_close(row[:, :3].softmax(-1), kind.logits.softmax(-1))
    torch.testing.assert_close(row[:, 3:], torch.cat([*means, *sigmas], -1))
    noise = phasic.noise(1, 6, torch.Generator())[0]
    action = phasic.act(obs, noise)
    assert torch.equal(action, actions.choose(row, noise))
    # What was done is judged by the type and by the arguments of that type only.
    log_prob, entropy = phasic.evaluate_actions(obs, action)
    numbers = action[:, 1:].split([2, 1, 2], -1)
    of_type = torch.stack(
        [box.log_prob(x) for box, x in zip(boxes, numbers, strict=True)], -1
    )
    chosen = action[:, 0].long()
    expected = kind.log_prob(chosen) + of_type[torch.arange(6), chosen]
    torch.testing.assert_close(log_prob, expected)
    spread = torch.stack([box.entropy() for box in boxes], -1)
    expected = kind.entropy() + (kind.probs * spread).sum(-1)
    torch.testing.assert_close(entropy, expected)


@pytest.mark.parametrize("share", [False, True])
def test_pictures_may_come_flat(share: bool) -> None:
    space = spaces.Box(0, 1, (3, 5, 7))
    policy = make_phasic_policy(space, THREE, share)
    network = policy.network.network
    assert isinstance(network.heads.policy_encoder, ConvolutionalEncodingNetwork)
    obs = torch.rand(2, 4, 3, 5, 7)
    flat = obs.flatten(2)
    assert policy(obs).shape == (2, 4, 3)
    assert torch.equal(policy(obs), policy(flat))
    assert torch.equal(policy.value(obs), policy.value(flat))
    (_, value, _), _ = network(obs, (), False)
    assert torch.equal(policy.value(flat), value)
    torch.testing.assert_close(policy(obs)[1, 2], policy(obs[1, 2][None])[0])


@pytest.mark.parametrize(
    ("space", "normalize", "reads"),
    [
        (spaces.Box(0, 255, (3, 5, 7), np.uint8), False, True),
        (spaces.Box(0, 255, (3, 5, 7), np.uint8), True, False),
        (BOX, False, False),
        (spaces.Dict(eye=spaces.Box(0, 1, (3, 5, 7)), hand=BOX), False, True),
    ],
    ids=["picture", "normalised", "vector", "parts"],
)
def test_only_an_encoder_reads_bytes(space, normalize: bool, reads: bool) -> None:
    policy = make_phasic_policy(space, THREE, normalize=normalize)
    assert policy.reads_bytes == reads
    obs = torch.randint(255, (2, spaces.flatdim(space)), dtype=torch.uint8)
    assert policy(obs if reads else obs.float()).shape == (2, 3)


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (THREE, THREE, "observation_space must be a box"),
        (spaces.Box(0, 1, (2, 2)), THREE, "observation_space must be a box"),
        (BOX, spaces.Box(0, 1, (2, 2)), "action_space must have one dimension"),
        (BOX, spaces.Tuple((THREE, THREE, BOX)), "exactly one Discrete"),
    ],
)
def test_spaces_that_the_policy_phase_cannot_serve(
    observation, action, message
) -> None:
    with pytest.raises(ValueError, match=message):
        make_phasic_policy(observation, action)


# --- Settings -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"aux_interval": 0}, "aux_interval must be at least 1, got 0"),
        ({"aux_epochs": 2.5}, "aux_epochs must be an integer, got float"),
        ({"aux_batch_size": 0}, "aux_batch_size must be at least 1"),
        ({"aux_epochs": 0}, "aux_epochs must be at least 1"),
        ({"num_minibatches": 1000}, "num_minibatches must be at most"),
        (
            {"aux_batch_length": 5},
            "aux_batch_length must divide 16, got 5",
        ),
        ({"aux_learning_rate": 0.0}, "aux_learning_rate must be greater than 0"),
        ({"clone_weight": -1.0}, "clone_weight must be at least 0"),
        ({"kl_reference": "old"}, "kl_reference must be 'snapshot' or .*got 'old'"),
        ({"detach": "sometimes"}, "detach must be 'always' or .*got 'sometimes'"),
        (
            {"clone_weight": math.inf},
            "clone_weight must be at least 0 and less than inf",
        ),
        ({"gamma": 2.0}, "gamma must be at least 0 and at most 1, got 2.0"),
    ],
)
def test_settings_that_make_no_sense(change: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        replace(SMALL, **change)


def test_settings_are_those_of_ppo_and_more() -> None:
    assert ppg_settings("CartPole-v1").gamma == 0.98
    assert ppg_settings("CartPole-v1").aux_interval == 16
    assert ppg_settings("Nothing-v0") == PPGConfig()
    assert replace(SMALL, aux_batch_length=8).aux_batch_length == 8


# --- Epochs of its own for the value --------------------------------------------------


def after_phases(count: int = 2, **changes: Any) -> tuple[Any, Any]:
    """Return the parameters of policy and value after some policy phases."""
    plain = {"num_minibatches": 1, "max_grad_norm": 1e9, "aux_enabled": False}
    made = learner(config=replace(SMALL, **plain, **changes))
    for _ in range(count):
        made.iterate()
    heads = made.policy.network.network.heads
    value = heads.value_encoder, heads.value_head
    policy = heads.policy_encoder, heads.projections
    return tuple(
        torch.cat([p.detach().flatten() for part in half for p in part.parameters()])
        for half in (policy, value)
    )


def test_apart_each_learns_what_it_learns_together() -> None:
    """One minibatch and no clip: nothing is left that the two could share."""
    together, apart = after_phases(), after_phases(value_epochs=2)
    for ours, theirs in zip(apart, together, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_more_epochs_of_the_value_leave_the_policy_alone() -> None:
    few, many = (after_phases(1, value_epochs=epochs) for epochs in (1, 5))
    assert torch.equal(few[0], many[0])
    assert not torch.allclose(few[1], many[1])


def test_more_epochs_of_the_policy_leave_the_value_alone() -> None:
    few, many = (after_phases(1, value_epochs=2, num_epochs=n) for n in (1, 5))
    assert torch.equal(few[1], many[1])
    assert not torch.allclose(few[0], many[0])


def test_a_long_gradient_of_the_value_alone_is_clipped() -> None:
    policy = make_policy(spaces.Box(-1, 1, (4,)), spaces.Discrete(2))
    config = replace(SMALL, value_epochs=1, num_minibatches=1, max_grad_norm=0.1)
    obs = torch.randn(5, 2, 4)
    value = policy.value(obs).detach()
    ValueEpochs(policy, config).learn(1e-3, obs, value, value + 100)
    grads = [p.grad.square().sum() for p in policy.parameters() if p.grad is not None]
    assert math.sqrt(sum(grads)) == pytest.approx(0.1, rel=1e-4)


def test_a_run_with_epochs_of_the_value_goes_on_from_its_checkpoint() -> None:
    """In memory: what was stored gives the same next iteration."""
    config = replace(SMALL, value_epochs=3, checkpoint_interval=1, num_minibatches=2)
    first, other = learner(config=config), learner(config=config)
    for _ in range(2):
        first.iterate()
    other.policy.load_state_dict(first.policy.state_dict())
    other.load_state_dict(copy.deepcopy(first.state_dict()))
    found = [made.iterate() for made in (first, other)]
    assert found[0]["losses/value_loss"] == found[1]["losses/value_loss"]
    pairs = zip(first.policy.parameters(), other.policy.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
