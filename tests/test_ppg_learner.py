"""What PPG's phases work with: the policy, the settings, epochs of the value alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from test_ppg import BOX, HYBRID, PAIR, SMALL, THREE, copy_weights, learner

from literate_rl.learners.ppg_learner import ValueEpochs, make_phasic_policy
from literate_rl.nets.policies import make_policy

EYE = spaces.Box(0, 255, (3, 5, 7), np.uint8)

# --- The policy of the policy phase ---------------------------------------------------


@pytest.mark.parametrize("action", [THREE, PAIR])
def test_a_phasic_policy_is_that_of_ppo_with_another_head(action):
    phasic, other = make_phasic_policy(BOX, action), make_policy(BOX, action)
    copy_weights(phasic, other)
    obs, found = torch.randn(6, 4), []
    for policy in (phasic, other):
        noise = policy.noise(1, 6, torch.Generator().manual_seed(0))[0]
        drawn = policy.act(obs, noise).detach()
        judged = policy.evaluate_actions(obs, drawn)
        assert [x.shape for x in judged] == [(6,)] * 2
        found.append((noise, policy(obs), policy.value(obs), drawn, *judged))
        assert np.isfinite(policy.to_env(drawn)).all()
    torch.testing.assert_close(*found)


def test_hybrid_rows_are_those_of_the_hybrid_network():
    torch.manual_seed(0)
    phasic, obs = make_phasic_policy(BOX, HYBRID), torch.randn(6, 4)
    for projection in phasic.network.network.heads.projections[1:]:
        torch.nn.init.normal_(projection.log_sigma)
    row = phasic(obs)
    (kind, boxes), _, _ = phasic.network.network(obs)[0]
    numbers = [*(box.mean for box in boxes), *(box.stddev for box in boxes)]
    torch.testing.assert_close(row[:, :3].softmax(-1), kind.probs)
    torch.testing.assert_close(row[:, 3:], torch.cat(numbers, -1))


@pytest.mark.parametrize("share", [False, True])
def test_pictures_may_come_flat(share):
    policy = make_phasic_policy(spaces.Box(0, 1, (3, 5, 7)), THREE, share)
    obs = torch.rand(2, 4, 3, 5, 7)
    flat, one = obs.flatten(2), obs[1, 2][None]
    assert policy(obs).shape == (2, 4, 3)
    for ask in (policy, policy.value):
        assert torch.equal(ask(obs), ask(flat))
        torch.testing.assert_close(ask(obs)[1, 2], ask(one)[0])
    (_, value, _), _ = policy.network.network(obs, (), False)
    assert torch.equal(policy.value(flat), value)


@pytest.mark.parametrize(
    ("space", "normalize", "reads"),
    [
        (EYE, False, True),
        (EYE, True, False),
        (BOX, False, False),
        (spaces.Dict(eye=EYE, hand=BOX), False, True),
    ],
)
def test_only_an_encoder_reads_bytes(space, normalize, reads):
    policy = make_phasic_policy(space, THREE, normalize=normalize)
    assert policy.reads_bytes == reads
    obs = torch.randint(255, (2, spaces.flatdim(space)), dtype=torch.uint8)
    assert policy(obs if reads else obs.float()).shape == (2, 3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: make_phasic_policy(BOX, spaces.Box(0, 1, (2, 2))), "action_space"),
        (lambda: replace(SMALL, num_minibatches=1000), "num_minibatches"),
        (lambda: replace(SMALL, aux_batch_length=5), "must divide 16, got 5"),
    ],
)
def test_spaces_and_settings_that_no_phase_can_serve(call, words):
    with pytest.raises(ValueError, match=words):
        call()


# --- Epochs of its own for the value --------------------------------------------------


def after_phases(count: int, **changes: Any) -> tuple[Any, Any]:
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


def test_apart_each_learns_what_it_learns_together():
    """One minibatch and no clip: nothing is left that the two could share."""
    together, apart = after_phases(2), after_phases(2, value_epochs=2)
    torch.testing.assert_close(apart, together, rtol=1e-4, atol=1e-5)


def test_a_long_gradient_of_the_value_alone_is_clipped():
    policy, obs = make_policy(BOX, THREE), torch.randn(5, 2, 4)
    config = replace(SMALL, value_epochs=1, num_minibatches=1, max_grad_norm=0.1)
    value = policy.value(obs).detach()
    ValueEpochs(policy, config).learn(1e-3, obs, value, value + 100)
    grads = [p.grad.square().sum() for p in policy.parameters() if p.grad is not None]
    assert math.sqrt(sum(grads)) == pytest.approx(0.1, rel=1e-4)
