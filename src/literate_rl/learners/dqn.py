# Generated from chapters/learners/dqn.py (edit there); digest 792b7c438625d36b
"""DQN: values of actions, learned from their own guesses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from literate_rl.data.replay import Batch
from literate_rl.ground.nests import AnySpace, as_discrete, as_space, remembered
from literate_rl.ground.networks import chosen, eval_mode, layers
from literate_rl.ground.protocols import Algorithm, settings_of
from literate_rl.ground.rows import LISTED, Row, by_settings, register
from literate_rl.ground.signatures import Count, Float, Fraction, Int, checked
from literate_rl.learners.loop import (
    OffPolicyConfig,
    QError,
    TargetNetwork,
    learner_of,
    linear_schedule,
    polyak_update as polyak_update,
)
from literate_rl.maths.dqn import (
    double_q_target,
    dueling_q as dueling_q,
    q_target as q_target,
)
from literate_rl.nets.encoders import OwnEncoder, ShapedEncoder, entrance
from literate_rl.nets.pictures import Convolutions, PictureEncoder
from literate_rl.nets.parts import CategoricalActions
from literate_rl.nets.policies import Policy, normalizing

__all__ = [
    "DQN",
    "DQNConfig",
    "EpsilonGreedy",
    "Exploring",
    "ExploringConfig",
    "QLearning",
    "dqn_settings",
    "make_q_policy",
]


# The smallest numbers of a race are near 10²³. Added to them in float32, a value below
# 10¹⁵ is lost.
BESIDE_ALL_VALUES = 1e30


class EpsilonGreedy(CategoricalActions):
    """The action of the largest value, or now and then a random one; rows are values.

    Args:
        num_actions: Number of actions N.
        start: What the environment calls the first action.

    Attributes:
        epsilon: Probability of a random action, one drawn uniformly: one number, or one
            for each environment.
    """

    def __init__(self, num_actions: int, start: int = 0) -> None:
        super().__init__(num_actions, start)
        self.epsilon: float | Tensor = 0.0

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""
        shape = num_steps, num_envs, self.num_actions
        # One coin for each environment and each step, and a race of all actions.
        explore = torch.rand(shape[:2], generator=generator) < self.epsilon
        race = BESIDE_ALL_VALUES * torch.rand(shape, generator=generator)
        # Both together are {eq}`epsilon-noise`. It is finite, so that an action whose
        # value is minus infinity never wins.
        return explore.unsqueeze(-1) * race

    @checked
    def evaluate(
        self, row: Float[Tensor, "*B N"], action: Int[Tensor, "*B"]
    ) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
        """Return log-probabilities and entropies."""
        # What is illegal has the lowest number there is and is not drawn
        # ({doc}`/chapters/masks`).
        drawn = row > torch.finfo(row.dtype).min
        others = drawn.sum(-1) - 1
        # A random draw may hit the best action too.
        each = torch.as_tensor(self.epsilon).to(row) / (others + 1)
        best = 1 - others * each
        prob = torch.where(row.argmax(-1) == action, best, each * chosen(drawn, action))
        entropy = -torch.xlogy(best, best) - others * torch.xlogy(each, each)
        return prob.log(), entropy


class QLayers(nn.Sequential):
    """Layers from observations to one value for each action."""

    def value(self, obs: Tensor) -> Tensor:
        """Return the value of the best action."""
        return self(obs).amax(-1)


def dueling_layer(num_actions: int) -> nn.Linear:
    """Return ``dueling_q`` as a layer, of a value and N advantages; it never learns."""
    layer = nn.Linear(num_actions + 1, num_actions, bias=False).requires_grad_(False)
    # Row a of {eq}`dueling`: 1 for the value, and for the advantages 1 at a, minus 1/N.
    layer.weight[:, 0] = 1.0
    layer.weight[:, 1:] = torch.eye(num_actions) - 1 / num_actions
    return layer


@checked
@remembered
def make_q_policy(
    observation_space: AnySpace,
    action_space: AnySpace,
    hidden: Count = 128,
    dueling: bool = False,
    *,
    normalize: bool = False,
    convolutions: Convolutions | None = None,
    encoder: OwnEncoder | None = None,
) -> Policy:
    """Build an ε-greedy policy for the spaces of one environment.

    Args:
        observation_space: A box of vectors, a picture, or a Dict or Tuple with pictures
            in it, which may come flat; or what ``plain_space`` made of it.
        action_space: A Discrete space, likewise.
        hidden: Width of the hidden layers. Behind the encoder of a picture, or one of
            your own, there are none.
        dueling: Whether the network separates a state's value from the advantages.
        normalize: Whether the policy normalises its observations; vectors only.
        convolutions: Those of each picture, as in ``make_encoder``.
        encoder: An encoder of your own, as in ``ShapedEncoder``.
    """
    discrete, seen = as_discrete(action_space), as_space(observation_space)
    front, size = entrance(seen, convolutions, encoder)
    # The output: N values, or a value and N advantages.
    num_actions = int(discrete.n)
    outputs = num_actions + dueling
    # Two hidden layers, unless a picture has been through its own.
    encoded = front and isinstance(front[0], PictureEncoder | ShapedEncoder)
    net = [nn.Linear(size, outputs)] if encoded else layers(size, hidden, outputs)
    last = [dueling_layer(num_actions)] if dueling else []
    actions = EpsilonGreedy(num_actions, int(discrete.start))
    first = normalizing(normalize, seen, encoder)
    return Policy(QLayers(*first, *front, *net, *last), actions)


@checked
@dataclass(frozen=True)
class ExploringConfig(OffPolicyConfig):
    """Settings of the agents that explore with random actions.

    Attributes:
        epsilon_start: Probability of a random action at first.
        epsilon_end: That probability after ``epsilon_steps`` steps.
        epsilon_steps: Steps in the environments until then.
    """

    epsilon_start: Fraction = 1.0
    epsilon_end: Fraction = 0.05
    epsilon_steps: Count = 10_000


class Exploring(Algorithm):
    """An algorithm whose policy takes random actions, fewer and fewer of them."""

    policy: Policy
    config: ExploringConfig

    def explore(self, step: int) -> None:
        """Set the probability of a random action."""
        config = self.config
        self.policy.actions.epsilon = linear_schedule(
            config.epsilon_start, config.epsilon_end, config.epsilon_steps, step
        )

    def metrics(self) -> dict[str, float]:
        """Return the probability of a random action."""
        return {"charts/epsilon": self.policy.actions.epsilon}


@checked
@dataclass(frozen=True)
class DQNConfig(ExploringConfig):
    """Settings of DQN: those of the loop and of exploration, and two of its own.

    Attributes:
        double: Whether the network in training chooses the next action.
        dueling: Whether ``train`` builds a network that separates a state's value from
            the advantages.
    """

    double: bool = True
    dueling: bool = False


class QLearning(Exploring):
    """Values of actions; an older copy evaluates what is best next.

    Args:
        policy: The policy to train; its rows are values.
        config: The settings.
    """

    config: DQNConfig

    def __init__(self, policy: Policy, config: DQNConfig) -> None:
        self.policy, self.config = policy, config
        self.target = TargetNetwork(policy)

    def error(self, batch: Batch, generator: torch.Generator) -> QError:
        """Compare values with their targets."""
        with torch.no_grad(), eval_mode(self.policy):
            next_q = self.target.network(batch.next_obs)
            # If the older copy chooses too, this is the target {eq}`q-target`.
            chooser = self.policy(batch.next_obs) if self.config.double else next_q
            # Where not everything is legal next, {eq}`masked-bootstrap`.
            chooser = self.policy.legal(chooser, batch.next_mask)
            target = double_q_target(batch.reward, batch.discount, next_q, chooser)
        # The current value of the action that was taken.
        return huber_error(chosen(self.policy(batch.obs), batch.action), target)


def huber_error(q: Tensor, target: Tensor) -> QError:
    """Compare values ``(N,)`` with their targets; outliers pull no harder than others.

    Source: Mnih et al. 2015, who clip the error.
    """
    # A parabola near zero, straight lines further out: {eq}`huber`.
    loss = smooth_l1_loss(q, target, reduction="none")
    value = q.detach()
    return QError(loss, target - value, value)


DQN = learner_of(QLearning)


# Settings with which the agent has learned, by environment. For what an entry leaves
# out, the default holds.
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "total_steps": 50_000,
        "dueling": True,
        "num_steps": 20,
        "learning_rate": 1e-3,
        "anneal": True,
        "train_interval": 2,
        "tau": 0.02,
        "reward_scale": 0.05,
    },
}


dqn_settings = settings_of(DQNConfig, SETTINGS)


ROW = register(
    Row(
        "DQN",
        "a value for each action, from memory",
        LISTED,
        DQNConfig,
        by_settings(make_q_policy),
        DQN,
        settings=dqn_settings,
        contract="dqn",
        forms=("act", "error"),
    )
)


def prioritised(row: Any) -> None:
    """Register an agent whose errors are replayed more often beside another one."""

    # The exponent of prioritised replay. Source: Schaul et al. 2016, section 4.
    def settings(env: str) -> Any:
        return replace(row.settings(env), priority_exponent=0.6)

    register(
        replace(
            row,
            name=f"{row.name}Per",
            purpose=f"{row.name}, errors are replayed more often",
            settings=settings,
            chapter="replay",
        )
    )


prioritised(ROW)
