"""Models that keep a contract: densities, values and actions without noise."""

from __future__ import annotations

import pytest
import torch

from literate_rl.book.contract_models import (
    CategoricalActor,
    DuelingQNetwork,
    SquashedGaussianActor,
)

STATE = torch.randn(6, 4, generator=torch.Generator().manual_seed(3))


@pytest.mark.equation("unit-mass")
def test_the_density_of_the_squashed_actor_integrates_to_one():
    torch.manual_seed(0)
    actor = SquashedGaussianActor(4, [-1.0], [3.0]).double()
    state = torch.randn(1, 4).double().expand(200_000, -1)
    action = torch.linspace(-1, 3, 200_002).double()[1:-1].unsqueeze(-1)
    _, log_prob, _ = actor(state, action)
    mass = torch.trapezoid(log_prob.exp().squeeze(-1), action.squeeze(-1))
    assert mass.item() == pytest.approx(1.0, abs=1e-3)


def test_the_mean_of_the_dueling_network_is_its_value():
    model = DuelingQNetwork(4, 3)
    before, worth = model(STATE), model.value(model.body(STATE))
    torch.testing.assert_close(before.mean(-1, keepdim=True), worth)
    with torch.no_grad():
        model.adv.bias.add_(5.0)
    torch.testing.assert_close(model(STATE), before)


def test_actions_without_noise():
    actor = CategoricalActor(4, 3)
    best = actor(STATE)[3].argmax(-1, keepdim=True)
    assert torch.equal(actor.mode(STATE), best)
    squash = SquashedGaussianActor(4, [-2.0, -1.0], [2.0, 3.0])
    many, best = squash(STATE[:1].expand(20_000, -1))[0], squash.mode(STATE[:1])
    u, middle = (squash.box.undo(x).mean(0) for x in (many, best))
    torch.testing.assert_close(middle, u, atol=0.05, rtol=0)
