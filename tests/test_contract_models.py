"""Models that keep a contract: densities, entropies and what a model returns."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Normal

from literate_rl.book.contract_models import (
    CategoricalActor,
    DuelingQNetwork,
    SquashedGaussianActor,
)
from literate_rl.ground.networks import squashed_log_prob

STATE = torch.randn(6, 4, generator=torch.Generator().manual_seed(3))


@pytest.mark.equation("unit-mass")
def test_the_density_of_the_squashed_actor_integrates_to_one() -> None:
    torch.manual_seed(0)
    actor = SquashedGaussianActor(4, [-1.0], [3.0]).double()
    state = torch.randn(1, 4).double().expand(200_000, -1)
    action = torch.linspace(-1, 3, 200_002).double()[1:-1].unsqueeze(-1)
    _, log_prob, _ = actor(state, action)
    mass = torch.trapezoid(log_prob.exp().squeeze(-1), action.squeeze(-1))
    assert mass.item() == pytest.approx(1.0, abs=1e-3)


def test_the_entropy_of_the_squashed_actor_has_the_right_mean_and_gradient() -> None:
    torch.manual_seed(0)
    actor = SquashedGaussianActor(4, [-1.0], [1.0]).double()
    state = STATE[:1].double()
    u = torch.linspace(-12, 12, 100_001).double().unsqueeze(-1)
    mu, log_sigma = (x.expand_as(u) for x in actor.net(state).chunk(2, -1))
    density = Normal(mu, log_sigma.exp()).log_prob(u).exp()
    log_prob = squashed_log_prob(u, mu, log_sigma, torch.ones(1).double())
    exact = -torch.trapezoid(density.squeeze(-1) * log_prob, u.squeeze(-1))
    sampled = actor(state.expand(100_000, -1))[2].mean()
    assert sampled.item() == pytest.approx(exact.item(), abs=0.02)
    weights = actor.net[-1].weight
    by_hand, by_sample = (torch.autograd.grad(x, weights)[0] for x in (exact, sampled))
    torch.testing.assert_close(by_sample, by_hand, rtol=0.05, atol=0.01)


def test_the_mean_of_the_dueling_network_is_its_value() -> None:
    model = DuelingQNetwork(4, 3)
    before, worth = model(STATE), model.value(model.body(STATE))
    torch.testing.assert_close(before.mean(-1, keepdim=True), worth)
    with torch.no_grad():
        model.adv.bias.add_(5.0)
    torch.testing.assert_close(model(STATE), before)


def test_actions_without_noise() -> None:
    actor = CategoricalActor(4, 3)
    best = actor(STATE)[3].argmax(-1, keepdim=True)
    assert torch.equal(actor.mode(STATE), best)
    squash = SquashedGaussianActor(4, [-2.0, -1.0], [2.0, 3.0])
    many, best = squash(STATE[:1].expand(20_000, -1))[0], squash.mode(STATE[:1])
    u, middle = (squash.box.undo(x).mean(0) for x in (many, best))
    torch.testing.assert_close(middle, u, atol=0.05, rtol=0)
