"""Policies of one's own models: what they draw, and what checkpoints say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces

from literate_rl.book.contract_models import (
    ActionValue,
    CategoricalActor,
    DeterministicActor,
    QNetwork,
    SquashedGaussianActor,
)
from literate_rl.check.own_models import (
    as_many,
    make_own_ddpg_policy,
    make_own_sac_policy,
)
from literate_rl.runs.runs import todays_form

STATES, FORCES = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (1,))


def test_no_critic_is_none():
    with pytest.raises(ValueError, match="critic must hold a model, got none"):
        as_many([], 2)


def own_ddpg() -> Any:
    actor = DeterministicActor(3, [-1.0], [1.0], 4)
    return make_own_ddpg_policy(STATES, FORCES, actor, ActionValue(3, 1, 4))


def own_sac() -> Any:
    actor = SquashedGaussianActor(3, [-1.0], [1.0], 4)
    return make_own_sac_policy(STATES, FORCES, actor, ActionValue(3, 1, 4))


def own_discrete_sac() -> Any:
    actor, critic = CategoricalActor(3, 2, 4), QNetwork(3, 2, 4)
    return make_own_sac_policy(STATES, spaces.Discrete(2), actor, critic)


def test_the_generator_decides_what_an_own_actor_draws():
    policy, obs = own_sac(), torch.randn(5, 3)
    seeds = (torch.Generator().manual_seed(seed) for seed in (1, 1, 2))
    one, same, other = (policy.draw(obs, generator)[0].tolist() for generator in seeds)
    assert one == same != other


@pytest.mark.parametrize("make", [own_ddpg, own_sac, own_discrete_sac])
def test_todays_checkpoints_stay_what_they_are(make):
    policy = make()
    target = getattr(policy, "critics", policy).state_dict()
    state = {
        "policy": {"recipe": policy.recipe, "weights": policy.state_dict()},
        "learner": {"learner": {"target": target}},
    }
    today = todays_form(state)
    assert today["policy"]["recipe"] == policy.recipe
    assert [*today["policy"]["weights"]] == [*policy.state_dict()]
    assert [*today["learner"]["learner"]["target"]] == [*target]
