"""Interfaces: what each agent of the book has, and what it is refused for."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import pytest
import torch
from gymnasium import spaces
from torch import nn

from literate_rl.agents import make_envs
from literate_rl.ddpg import DDPGConfig, DeterministicPolicyGradient, make_ddpg_policy
from literate_rl.discrete_sac import DiscreteSoftActorCritic, make_discrete_sac_policy
from literate_rl.dqn import DQNConfig, QLearning, make_q_policy
from literate_rl.hybrid_policy import make_hybrid_policy
from literate_rl.loop import OffPolicy, OffPolicyConfig, QError
from literate_rl.policies import make_policy
from literate_rl.ppg import make_phasic_policy
from literate_rl.rainbow import (
    DistributionalQLearning,
    RainbowConfig,
    make_rainbow_policy,
)
from literate_rl.replay import Batch
from literate_rl.sac import SACConfig, SoftActorCritic, make_sac_policy
from literate_rl.td3 import HDDPGConfig, Hysteretic, TD3Config, TwinDelayed
from literate_rl.workshop import interfaces
from literate_rl.workshop.interfaces import Algorithm, refuse_mask

SEEN, BOX, LISTED = spaces.Box(-1, 1, (4,)), spaces.Box(-1, 1, (1,)), spaces.Discrete(2)
HYBRID = spaces.Tuple((LISTED, spaces.Tuple((BOX, BOX))))
POLICIES: dict[str, Any] = {
    "categorical": lambda: make_policy(SEEN, LISTED, 8),
    "Gaussian": lambda: make_policy(SEEN, BOX, 8),
    "phasic": lambda: make_phasic_policy(SEEN, LISTED),
    "hybrid": lambda: make_hybrid_policy(SEEN, HYBRID),
    "values": lambda: make_q_policy(SEEN, LISTED, 8),
    "distributions": lambda: make_rainbow_policy(SEEN, LISTED, 8),
    "deterministic": lambda: make_ddpg_policy(SEEN, BOX, 8, 2),
    "squashed": lambda: make_sac_policy(SEEN, BOX, 8),
    "soft list": lambda: make_discrete_sac_policy(SEEN, LISTED, 8),
}
ALGORITHMS: dict[str, tuple[str, Any]] = {
    "DQN": ("values", lambda p: QLearning(p, DQNConfig())),
    "Rainbow": (
        "distributions",
        lambda p: DistributionalQLearning(p, RainbowConfig()),
    ),
    "DDPG": ("deterministic", lambda p: DeterministicPolicyGradient(p, DDPGConfig())),
    "TD3": ("deterministic", lambda p: TwinDelayed(p, TD3Config())),
    "HDDPG": ("deterministic", lambda p: Hysteretic(p, HDDPGConfig())),
    "SAC": ("squashed", lambda p: SoftActorCritic(p, SACConfig(), BOX)),
    "discrete SAC": (
        "soft list",
        lambda p: DiscreteSoftActorCritic(p, SACConfig(), LISTED),
    ),
}


def members(interface: Any) -> dict[str, Any]:
    """Return what an interface asks for: its methods."""
    return {
        name: member
        for name, member in vars(interface).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }


def takes(function: Any) -> list[str]:
    """Return the names of a function's arguments."""
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize("name", POLICIES)
def test_policies_have_the_methods_and_know_no_legal_actions(name: str) -> None:
    policy = POLICIES[name]()
    for method, asked in members(interfaces.PolicyLike).items():
        if method not in ("parameters", "state_dict", "load_state_dict"):
            assert takes(getattr(policy, method)) == takes(asked)
    obs, legal = torch.zeros(1, 4), torch.ones(1, 2, dtype=torch.bool)
    noise = policy.noise(1, 1, torch.Generator().manual_seed(0))[0]
    action = policy.act(obs, noise, mask=None)
    with pytest.raises(ValueError, match="mask must be None"):
        policy.act(obs, noise, mask=legal)
    with pytest.raises(ValueError, match="mask must be None"):
        policy.evaluate_actions(obs, action, mask=legal)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_have_what_the_loop_asks_for(name: str) -> None:
    kind, make = ALGORITHMS[name]
    policy = POLICIES[kind]()
    algorithm = make(policy)
    assert algorithm.policy is policy
    for method, asked in members(Algorithm).items():
        assert takes(getattr(algorithm, method)) == takes(asked)
    actor = {id(p) for p in algorithm.actor}
    assert actor <= {id(p) for p in policy.parameters()}
    # Where there is an actor, there is an ascent, and the other way round.
    loss = algorithm.ascent(torch.zeros(3, 4), torch.Generator().manual_seed(0))
    assert (loss is not None) == bool(actor)
    assert all(isinstance(x, float) for x in algorithm.metrics().values())


class Regression(Algorithm):
    """The smallest algorithm there is: values that learn the rewards."""

    target = None

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def error(self, batch: Batch, generator: torch.Generator) -> QError:
        value = self.policy(batch.obs).mean(-1)
        td_error = batch.reward - value
        return QError(td_error.square(), td_error.detach(), value.detach())


def test_an_error_alone_makes_an_agent() -> None:
    policy = make_q_policy(SEEN, LISTED, 8)
    config = OffPolicyConfig(
        total_steps=64, learning_starts=8, log_interval=32, batch_size=8
    )
    before = nn.utils.parameters_to_vector(policy.parameters()).clone()
    learner = OffPolicy(Regression(policy), make_envs("CartPole-v1", 4), config)
    metrics = learner.iterate()
    assert metrics["losses/loss"] > 0
    assert not torch.equal(before, nn.utils.parameters_to_vector(policy.parameters()))
    assert learner.state_dict()["target"] == {}
    learner.load_state_dict(learner.state_dict())


def test_a_mask_is_refused_by_name() -> None:
    refuse_mask(None)
    with pytest.raises(ValueError, match=r"^mask must be None"):
        refuse_mask(torch.ones(2, dtype=torch.bool))


def test_every_interface_is_a_protocol() -> None:
    for name in interfaces.__all__:
        assert issubclass(getattr(interfaces, name), Protocol)  # type: ignore[arg-type]
