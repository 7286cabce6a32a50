"""Contracts: who keeps them passes, who breaks a rule is caught by its row."""

from __future__ import annotations

import pytest

from literate_rl.contracts import (
    ActionValue,
    CategoricalActor,
    ContractError,
    QNetwork,
    SquashedGaussianActor,
    StateValue,
    check_model,
)


def test_the_corrected_models_pass() -> None:
    check_model("DQN", qnet=QNetwork(4, 2), env="CartPole-v1")
    models = {"actor": CategoricalActor(4, 2), "critic": StateValue(4)}
    check_model("A2C", **models, env="CartPole-v1")
    models = {
        "actor": SquashedGaussianActor(3, [-2], [2]),
        "critic": ActionValue(3, 1),
    }
    check_model("SAC", **models, env="Pendulum-v1")


def test_every_broken_rule_is_listed() -> None:
    with pytest.raises(ContractError, match="DQN: 1 broken rule"):
        check_model("DQN", qnet=QNetwork(4, 3), env="CartPole-v1")
