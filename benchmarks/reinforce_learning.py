"""The first agent of the book over seeds: REINFORCE, with a baseline and without one.

``python -m benchmarks.reinforce_learning`` works as ``benchmarks.learning`` does. The
agent is that of the chapter on the policy gradient, network by network and step by
step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.learning import Experiment, Variant, main
from literate_rl.data.agents import Collector, discounted_returns, make_envs
from literate_rl.data.episodes import env_seed
from literate_rl.maths.policy_gradient import (
    categorical_log_prob,
    policy_gradient_error,
)
from literate_rl.nets.parts import ActorCritic, CategoricalActions
from literate_rl.nets.policies import Policy


@dataclass(frozen=True)
class ReinforceConfig:
    """Settings of REINFORCE, those of the chapter.

    Attributes:
        seed: Seed of the networks, the actions and the environments.
        total_steps: Steps of a run, all environments together.
        num_envs: Environments.
        num_steps: Steps in each of them before an update.
        learning_rate: Learning rate of both optimisers.
        critic_updates: Updates of the critic for one of the actor.
        gamma: Discount.
        subtract_value: Whether the value is the baseline; else there is none.
    """

    seed: int = 0
    total_steps: int = 51_200
    num_envs: int = 16
    num_steps: int = 64
    learning_rate: float = 0.01
    critic_updates: int = 10
    gamma: float = 0.99
    subtract_value: bool = True


def network(outputs: int) -> nn.Sequential:
    """Build a network for CartPole's four numbers."""
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, outputs))


class Reinforce:
    """A learner as ``fit`` knows it; it cannot be resumed.

    Args:
        config: The settings.
    """

    checkpoint_due = False

    def __init__(self, config: ReinforceConfig) -> None:
        torch.manual_seed(config.seed)
        self.config, self.total_steps = config, config.total_steps
        self.actor, self.critic = network(2), network(1)
        self.policy = Policy(
            ActorCritic(self.actor, self.critic), CategoricalActions(2)
        )
        rate = config.learning_rate
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), rate)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), rate)
        self.envs = make_envs("CartPole-v1", config.num_envs)
        self.collector = Collector(self.envs)
        self.collector.reset(env_seed(config.seed, 0))

    @property
    def step(self) -> int:
        """Steps taken so far, all environments together."""
        return self.collector.step

    def act(self, obs: torch.Tensor) -> torch.Tensor:
        """Draw one action for each observation."""
        return torch.multinomial(self.actor(obs).softmax(1), 1).squeeze(1)

    def iterate(self) -> dict[str, float]:
        """Collect, take one step with the actor and some with the critic."""
        batch = self.collector.collect(self.act, self.config.num_steps)
        with torch.no_grad():
            next_value = self.policy.value(batch.next_obs)
        returns = discounted_returns(
            batch.reward,
            next_value,
            batch.terminated,
            batch.truncated,
            self.config.gamma,
        ).flatten()
        states, actions = batch.obs.flatten(0, 1), batch.action.flatten()

        adv = returns
        if self.config.subtract_value:
            adv = returns - self.policy.value(states).detach()
        log_prob = categorical_log_prob(self.actor(states), actions)
        loss = policy_gradient_error(log_prob, adv)
        self.actor_optimizer.zero_grad()
        loss.backward()
        self.actor_optimizer.step()

        for _ in range(self.config.critic_updates):
            error = (returns - self.policy.value(states)).square().mean()
            self.critic_optimizer.zero_grad()
            error.backward()
            self.critic_optimizer.step()

        ended = batch.episode_return[batch.episode_return.isfinite()]
        mean = ended.mean().item()  # NaN where no episode ended
        return {"charts/episodic_return": mean, "losses/policy_loss": loss.item()}

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: these runs are short."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""


VARIANTS = {"minus the value": True, "no baseline": False}
EXPERIMENTS = {
    "reinforce": Experiment(
        "CartPole-v1",
        ReinforceConfig(),  # type: ignore[arg-type]
        seeds=20,
        episodes=100,
        variants={
            name: Variant({"subtract_value": value}, Reinforce)
            for name, value in VARIANTS.items()
        },
    )
}


if __name__ == "__main__":
    main("python -m benchmarks.reinforce_learning", EXPERIMENTS)
