# Generated from chapters/learners/ddpg.py (edit there); digest c638435ff26dee82
"""DDPG: an actor that climbs the values of a critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike, DTypeLike, NDArray
from torch import Tensor, nn

from literate_rl.data.replay import Batch
from literate_rl.ground.nests import AnySpace, as_space, bounded_box, remembered
from literate_rl.ground.networks import (
    ActionCritic,
    Critics,
    Stretch,
    climbing,
    layers,
    race_noise,
)
from literate_rl.ground.protocols import settings_of
from literate_rl.ground.rows import BOUNDED, Row, by_settings, register
from literate_rl.ground.signatures import Count, Float, Fraction, NonNegative, checked
from literate_rl.learners.dqn import (
    EpsilonGreedy,
    Exploring,
    ExploringConfig,
    prioritised,
)
from literate_rl.learners.loop import (
    ActorCriticConfig,
    QError,
    TargetNetwork,
    learner_of,
    squared_error,
)
from literate_rl.maths.dqn import td_target
from literate_rl.nets.encoders import OwnEncoder, off_policy_entrances
from literate_rl.nets.policies import Policy, normalizing

__all__ = [
    "DDPG",
    "ActorCritics",
    "BoxActions",
    "DDPGConfig",
    "DeterministicPolicyGradient",
    "OneHotActions",
    "ddpg_settings",
    "make_ddpg_policy",
]


class ActorCritics(nn.Module):
    """An actor, and critics that judge its actions.

    Args:
        actor: Module from observations to actions.
        critics: Each is a module from observations and actions to values.
    """

    def __init__(self, actor: nn.Module, critics: Critics) -> None:
        super().__init__()
        self.actor, self.critics = actor, critics

    def forward(self, obs: Tensor) -> Tensor:
        """Return the actor's actions, before any noise."""
        return self.actor(obs)

    def value(self, obs: Tensor) -> Tensor:
        """Return the value of the actor's own actions by the first critic."""
        value: Tensor = self.critics[0](obs, self(obs))
        return value.squeeze(-1)


class BoxActions(nn.Module):
    """Continuous actions in a box: a row is the action, and noise is added to it.

    It is a module without weights: its bounds go where the policy goes.

    Args:
        low: Lower bounds of the box, all finite.
        high: Upper bounds.
        dtype: Dtype of the environment's actions.

    Attributes:
        scale: Standard deviation of the noise, as a share of half the box: one number,
            or one for each environment.
        epsilon: Probability of a random action, drawn uniformly from the box.
    """

    low: Tensor
    high: Tensor

    def __init__(
        self, low: ArrayLike, high: ArrayLike, dtype: DTypeLike = "float32"
    ) -> None:
        super().__init__()
        self.bounds = tuple(np.atleast_1d(np.asarray(x, dtype)) for x in (low, high))
        for name, bound in zip(("low", "high"), self.bounds, strict=True):
            tensor = torch.from_numpy(bound.astype(np.float32))
            self.register_buffer(name, tensor, persistent=False)
        self.scale: float | Tensor = 0.0
        self.epsilon: float | Tensor = 0.0

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""
        low, high = self.low.cpu(), self.high.cpu()
        shape = num_steps, num_envs, len(low)
        # The noise, for each number in proportion to its own range, {eq}`box-noise`.
        share = torch.as_tensor(self.scale).reshape(-1, 1)
        added = share * (high - low) / 2 * torch.randn(shape, generator=generator)
        # With probability ε a uniform action replaces the actor's; NaN elsewhere.
        explore = torch.rand(shape[:2], generator=generator) < self.epsilon
        anything = torch.rand(shape, generator=generator)
        anything = low + (high - low) * anything
        instead = anything.masked_fill(~explore.unsqueeze(-1), torch.nan)
        return torch.cat([added, instead], -1)

    @checked
    def choose(
        self, row: Float[Tensor, "*B A"], noise: Float[Tensor, "*B 2*A"] | float
    ) -> Float[Tensor, "*B A"]:
        """Return the actions that follow from rows and noise."""
        if not isinstance(noise, Tensor):
            return row + noise
        added, instead = noise.chunk(2, -1)
        return torch.where(instead.isnan(), row + added, instead)

    def to_env(self, action: Tensor) -> NDArray[np.floating]:
        """Clip actions to the box, each dimension to its own bounds."""
        low, high = self.bounds
        return action.numpy().clip(low, high).astype(low.dtype)


class OneHotActions:
    """One of N actions; a row holds probabilities, and an action is a one-hot row.

    Args:
        num_actions: Number of actions N.
        start: What the environment calls the first action.

    Attributes:
        epsilon: Probability of a random action, as in ``EpsilonGreedy``.
    """

    def __init__(self, num_actions: int, start: int = 0) -> None:
        self.num_actions, self.start = num_actions, start
        self.epsilon: float | Tensor = 0.0

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""
        # The race of {doc}`/chapters/policies` draws an action from the probabilities.
        # On top of it, ε-greedy takes any action now and then.
        race = race_noise(generator, num_steps, num_envs, self.num_actions)
        now_and_then = EpsilonGreedy(self.num_actions)
        now_and_then.epsilon = self.epsilon
        return race + now_and_then.noise(num_steps, num_envs, generator)

    @checked
    def choose(
        self, row: Float[Tensor, "*B N"], noise: Float[Tensor, "*B N"] | float
    ) -> Float[Tensor, "*B N"]:
        """Return the actions that follow from probabilities and noise."""
        # A probability of 0 has the logarithm −∞, which wins no race, not even that of
        # ε-greedy. So the smallest positive number replaces it.
        log_prob = row.clamp(min=torch.finfo(row.dtype).tiny).log()
        best = (log_prob + noise).argmax(-1, keepdim=True)
        return torch.zeros_like(row).scatter_(-1, best, 1.0)

    def to_env(self, action: Tensor) -> NDArray[np.int64]:
        """Return the actions as vector environments take them."""
        return action.argmax(-1).numpy() + self.start


class DeterministicPolicyGradient(Exploring):
    """An actor that climbs the values of a critic, and older copies of both.

    Args:
        policy: The policy to train; its network is an ``ActorCritics``.
        config: The settings.

    Source: Lillicrap et al. 2016, algorithm 1.
    """

    def __init__(self, policy: Policy, config: DDPGConfig) -> None:
        self.policy, self.config = policy, config
        self.target = TargetNetwork(policy)
        network = policy.network
        self.actor = climbing(network.actor.parameters(), network.critics)
        policy.actions.scale = config.noise

    def aim(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Return what the critic should think of the actions in a batch."""
        # The older critic judges what the older actor would do next, {eq}`ddpg-target`.
        with torch.no_grad():
            next_q = self.target.network.value(batch.next_obs)
        return td_target(batch.reward, batch.discount, next_q)

    def error(self, batch: Batch, generator: torch.Generator) -> QError:
        """Compare the critics' values of actions with their targets."""
        # How far is each critic from its target, for the action that was taken?
        q = self.policy.network.critics(batch.obs, batch.action)
        return squared_error(q, self.aim(batch, generator))

    def ascent(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """Return minus the mean value of the actor's own actions."""
        # The optimiser goes downhill, hence the minus of {eq}`actor-loss`. The gradient
        # goes through the critic, {eq}`policy-gradient-through-critic`.
        return -self.policy.value(obs).mean()


DDPG = learner_of(DeterministicPolicyGradient)


@checked
@remembered
def make_ddpg_policy(
    observation_space: AnySpace,
    action_space: AnySpace,
    hidden: Count = 64,
    num_critics: Count = 1,
    *,
    normalize: bool = False,
    share_encoder: bool = False,
    encoder: OwnEncoder | None = None,
) -> Policy:
    """Build an actor and critics for the spaces of one environment.

    Args:
        observation_space: A box of vectors, a picture, or a Dict or Tuple with pictures
            in it, which may come flat; or what ``plain_space`` made of it.
        action_space: A bounded box of vectors, or a Discrete space, likewise.
        hidden: Width of the hidden layers.
        num_critics: Number of critics.
        normalize: Whether the policy normalises its observations; vectors only.
        share_encoder: Whether actor and critics share an encoder, which the critics'
            loss alone moves.
        encoder: An encoder of your own, as in ``ShapedEncoder``.

    Raises:
        ValueError: If the spaces do not fit.
    """
    states, space = as_space(observation_space), as_space(action_space)
    actions = actions_of(space)
    first = normalizing(normalize, states, encoder)
    entrances = off_policy_entrances(states, num_critics, share_encoder, encoder, first)
    front, inputs = next(entrances)
    # Continuous actions have bounds, discrete ones probabilities.
    last: nn.Module
    if isinstance(space, spaces.Discrete):
        size, last = actions.num_actions, nn.Softmax(-1)
    else:
        size, last = len(actions.low), Stretch(*actions.bounds)
    actor = nn.Sequential(*front, layers(inputs, hidden, size), last)
    critics = Critics(ActionCritic(n, size, hidden, first) for first, n in entrances)
    return Policy(ActorCritics(actor, critics), actions)


def actions_of(space: spaces.Space[Any]) -> Any:
    """Return the rule for actions of a space: a bounded box, or a list."""
    if isinstance(space, spaces.Discrete):
        return OneHotActions(int(space.n), int(space.start))
    box = bounded_box(space)
    return BoxActions(box.low, box.high, box.dtype)


@checked
@dataclass(frozen=True)
class DDPGConfig(ActorCriticConfig, ExploringConfig):
    """Settings of DDPG: those of actors, those of exploration, and one of its own.

    Attributes:
        noise: Standard deviation of the noise on actions in a box, as a share of half
            of it.
    """

    epsilon_end: Fraction = 0.0
    epsilon_steps: Count = 500
    noise: NonNegative = 0.1


# Settings with which the agents have learned, by environment. For what an entry leaves
# out, the default holds.
SETTINGS: dict[str, dict[str, Any]] = {"Pendulum-v1": {"total_steps": 10_000}}


ddpg_settings = settings_of(DDPGConfig, SETTINGS)


ROW = register(
    Row(
        "DDPG",
        "an actor that climbs its critic",
        BOUNDED,
        DDPGConfig,
        by_settings(make_ddpg_policy),
        DDPG,
        settings=ddpg_settings,
        contract="ddpg",
    )
)
prioritised(ROW)
