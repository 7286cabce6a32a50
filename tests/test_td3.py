"""TD3 and HDDPG: targets and losses, and that without their parts they are DDPG."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from reach import (
    BOX,
    HIGH,
    LOW,
    SMALL,
    N,
    Reach,
    algorithm_for,
    batch_of,
    learner_for,
    policy_for,
)

from literate_rl.book.contract_models import ActionValue, DeterministicActor
from literate_rl.check.own_models import make_own_ddpg_policy
from literate_rl.learners.ddpg import DDPGConfig
from literate_rl.learners.td3 import HDDPGConfig, TD3Config, critic_error
from literate_rl.maths.td3 import smoothed_action


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


# --- Targets and losses ---------------------------------------------------------------


@pytest.mark.equation("hysteretic")
@pytest.mark.parametrize(("increase", "decrease"), [(1, 1), (1, 0.25), (0.5, 2)])
def test_values_rise_and_fall_at_two_rates(increase, decrease):
    q = torch.randn(2, N, dtype=torch.float64, requires_grad=True)
    target = torch.randn(N, dtype=torch.float64, requires_grad=True)
    error = critic_error(q, target, increase, decrease)
    (grad,) = torch.autograd.grad(error.loss.sum(), q)
    delta = (target - q).detach()
    up, down = delta.clamp(min=0), delta.clamp(max=0)
    assert up.any()
    assert down.any()
    # What the value moves by is the rate times the TD error.
    slope = -increase * up - decrease * down
    loss = (increase * up**2 + decrease * down**2).sum(0) / 2
    # A priority is measured from the mean of the critics.
    mean = (q[0] + q[1]).detach() / 2
    torch.testing.assert_close(
        [error.loss.detach(), grad, error.value, error.td_error],
        [loss, slope, mean, target.detach() - mean],
    )
    assert target.grad is None
    assert not any(x.requires_grad for x in error[1:])


@pytest.mark.equation("smoothed-action")
@pytest.mark.erratum("target-outside-the-box")
def test_smoothing_has_a_scale_and_bounds_for_each_number():
    low, high = (torch.tensor(x, dtype=torch.float64) for x in (LOW, HIGH))
    action = low + (high - low) * torch.rand(50, 2, dtype=torch.float64)
    noise = 3 * torch.randn(50, 2, dtype=torch.float64)
    got = smoothed_action(action, noise, low, high, 0.2, 0.5)
    shift = np.clip(0.2 * noise.numpy(), -0.5, 0.5) * [2.0, 0.25]
    published = action.numpy() + shift  # and no clip behind it
    np.testing.assert_allclose(got, np.clip(published, LOW, HIGH), atol=1e-14)
    assert ((published < LOW) | (published > HIGH)).sum() > 10
    # None at all is none at all.
    for share, bound in ((0.0, 0.5), (0.2, 0.0)):
        still = smoothed_action(action, noise, low, high, share, bound)
        assert torch.equal(still, action)


AGENTS = {
    "DDPG": DDPGConfig(),
    "HDDPG": HDDPGConfig(),
    # So much noise that some of it is clipped.
    "TD3": TD3Config(smoothing=0.4, smoothing_clip=0.3),
}


@pytest.mark.equation("ddpg-target")
@pytest.mark.equation("clipped-double-target")
@pytest.mark.parametrize("name", AGENTS)
def test_the_error_against_a_slow_form(name):
    config, batch = AGENTS[name], batch_of()
    algorithm = algorithm_for(config)
    network, older = algorithm.policy.network, algorithm.target.network.network
    error = algorithm.error(batch, torch.Generator().manual_seed(5))
    noise = torch.randn(N, 2, generator=torch.Generator().manual_seed(5))
    # What an agent lacks is switched off.
    off = {"smoothing": 0.0, "smoothing_clip": 0.0, "increase": 1.0, "decrease": 1.0}
    terms, clip = off | vars(config), getattr(config, "smoothing_clip", 0.0)
    shift = np.clip(terms["smoothing"] * noise.numpy(), -clip, clip) * [2.0, 0.25]
    action = np.clip(older.actor(batch.next_obs).detach().numpy() + shift, LOW, HIGH)
    after = batch.next_obs, torch.tensor(action)
    judged = np.min([x(*after).detach() for x in older.critics], 0).squeeze(1)
    aim = batch.reward.numpy() + batch.discount.numpy() * judged
    q = [x(batch.obs, batch.action).detach() for x in network.critics]
    gap = aim - np.squeeze(q, 2)
    rates = np.where(gap > 0, terms["increase"], terms["decrease"])
    wanted = (rates * gap**2 / 2).sum(0), gap.mean(0), aim - gap.mean(0)
    for found, other in zip(error, wanted, strict=True):
        np.testing.assert_allclose(found.detach(), other, rtol=1e-7, atol=1e-7)
    assert not any(x.requires_grad for x in error[1:])

    error.backward(batch.weight)
    assert all(p.grad is not None for p in network.critics.parameters())
    # The critics' loss moves neither the actor nor anything in the target.
    still = [*network.actor.parameters(), *older.parameters()]
    assert all(p.grad is None for p in still)


# --- The loop -------------------------------------------------------------------------


def same_run(one: DDPGConfig, other: DDPGConfig) -> bool:
    """Say whether two learners come to the same bits."""
    learners = [learner_for(replace(x, **SMALL, tau=0.5)) for x in (one, other)]
    for learner in learners * 5:
        learner.iterate()
    both = (x.policy.parameters() for x in learners)
    return all(map(torch.equal, *both))


OFF: dict[str, Any] = {"num_critics": 1, "target_interval": 1, "smoothing": 0.0}


@pytest.mark.equation("hysteretic")
def test_without_their_parts_they_are_ddpg_and_with_one_of_them_they_are_not():
    plain = DDPGConfig()
    assert same_run(plain, HDDPGConfig(decrease=1.0))
    assert not same_run(plain, HDDPGConfig())
    assert same_run(plain, TD3Config(**OFF))
    for name in OFF:
        rest = OFF | {name: getattr(TD3Config(), name)}
        assert same_run(plain, TD3Config(**rest)) == (rest == OFF), name


def test_probabilities_are_not_smoothed():
    config, found = TD3Config(), []
    policy = policy_for(config, gym.make("CartPole-v1"))
    batch = batch_of()._replace(next_obs=torch.randn(N, 4))
    for share in (0.2, 0.0):
        algorithm = algorithm_for(replace(config, smoothing=share), policy)
        algorithm.target.network = policy
        found.append(algorithm.aim(batch, torch.Generator()))
    assert torch.equal(*found)


def test_too_few_critics_are_refused():
    with pytest.raises(ValueError, match="2 critics or more, got 1"):
        algorithm_for(TD3Config(), policy_for(DDPGConfig()))


@pytest.mark.erratum("twins-that-are-one")
@pytest.mark.parametrize("fresh", [False, True])
def test_a_copied_critic_stays_a_copy(fresh):
    first, actor = ActionValue(1, 2, 8), DeterministicActor(1, LOW, HIGH, 8)
    given: Any = first if fresh else [first, copy.deepcopy(first)]
    policy = make_own_ddpg_policy(
        Reach.observation_space, BOX, actor, given, num_critics=2
    )
    learner = learner_for(TD3Config(**SMALL), policy)
    for _ in range(3):
        learner.iterate()
    batch = learner.sample()
    one, other = learner.policy.network.critics(batch.obs, batch.action)
    assert torch.equal(one, other) != fresh
