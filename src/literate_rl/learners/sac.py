# Generated from chapters/learners/sac.py (edit there); digest 47943271f4a366da
"""SAC: a policy that is paid for staying random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike, DTypeLike, NDArray
from torch import Tensor, nn

from literate_rl.data.episodes import Mean
from literate_rl.data.replay import Batch
from literate_rl.ground.nests import (
    AnySpace,
    as_space,
    bounded_box,
    refused,
    remembered,
)
from literate_rl.ground.networks import (
    ActionCritic,
    Critics,
    Stretch,
    climbing,
    eval_mode,
    layers,
    squashed_log_prob,
)
from literate_rl.ground.protocols import Algorithm, PolicyLike, settings_of
from literate_rl.ground.signatures import (
    Count,
    Finite,
    Float,
    NonNegative,
    check_that,
    checked,
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
from literate_rl.nets.parts import GaussianActions
from literate_rl.maths.sac import (
    soft_value,
    temperature_error,
)

__all__ = [
    "SAC",
    "SACConfig",
    "SoftActorCritic",
    "SoftPolicy",
    "SoftPolicyLike",
    "SquashedGaussian",
    "Temperature",
    "make_sac_policy",
    "sac_settings",
]


class SquashedGaussian(GaussianActions, nn.Module):
    """Continuous actions in a box: a row describes a Gaussian, which is squashed.

    It is a module without weights: its box goes where the policy goes.

    Args:
        low: Lower bounds of the box, all finite.
        high: Upper bounds.
        hold: Steps for which one noise is used.
        dtype: Dtype of the environment's actions.
    """

    def __init__(
        self,
        low: ArrayLike,
        high: ArrayLike,
        hold: int = 1,
        dtype: DTypeLike = "float32",
    ) -> None:
        nn.Module.__init__(self)
        super().__init__(low, high, dtype)
        self.box, self.hold = Stretch(self.low, self.high, stored=False), hold

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""
        # One draw for each `hold` steps; their number is rounded up.
        noise = super().noise(-(-num_steps // self.hold), num_envs, generator)
        return noise.repeat_interleave(self.hold, 0)[:num_steps]

    @checked
    def choose(
        self, row: Float[Tensor, "*B 2*A"], noise: Float[Tensor, "*B A"] | float
    ) -> Float[Tensor, "*B A"]:
        """Return the actions that follow from rows and noise."""
        return self.box(super().choose(row, noise))

    @checked
    def draw(
        self, row: Float[Tensor, "*B 2*A"], noise: Float[Tensor, "*B A"]
    ) -> tuple[Float[Tensor, "*B A"], Float[Tensor, "*B"]]:
        """Return the same actions, and their log-densities."""
        # Here $u$ is known, and nothing has to be undone.
        mu, log_sigma = row.chunk(2, -1)
        u = mu + log_sigma.exp() * noise
        return self.box(u), squashed_log_prob(u, mu, log_sigma, self.box.half_width)

    @checked
    def log_prob(
        self, row: Float[Tensor, "*B 2*A"], action: Float[Tensor, "*B A"]
    ) -> Float[Tensor, "*B"]:
        """Return the log-densities of actions that come back."""
        mu, log_sigma = row.chunk(2, -1)
        u = self.box.undo(action)
        return squashed_log_prob(u, mu, log_sigma, self.box.half_width)

    @checked
    def entropy(self, row: Float[Tensor, "*B 2*A"]) -> Float[Tensor, "*B"]:
        """Return the entropies, from an integral over each number's noise."""
        # The mean of minus the log-density over the noise, each point weighted by how
        # likely it is. The log-density is a sum over the numbers of an action, and so
        # is its mean: all of them share the points.
        noise = torch.linspace(-7, 7, 141).to(row)
        share = (-noise.square() / 2).softmax(-1)
        rows = row.unsqueeze(-2).expand(*row.shape[:-1], len(noise), -1)
        points = noise.unsqueeze(-1).expand(*rows.shape[:-1], row.shape[-1] // 2)
        return -(share * self.draw(rows, points)[1]).sum(-1)

    def to_env(self, action: Tensor) -> NDArray[np.floating]:
        """Return the actions as vector environments take them."""
        # Rounding may lead out of the box in the last digit.
        return action.numpy().clip(self.low, self.high).astype(self.low.dtype)


class SoftPolicy(Policy):
    """A policy with critics and a temperature.

    Args:
        network: Module from observations to rows.
        actions: A ``SquashedGaussian``.
        critics: The critics.
    """

    actions: SquashedGaussian

    def __init__(
        self, network: nn.Module, actions: SquashedGaussian, critics: Critics
    ) -> None:
        super().__init__(network, actions)
        self.critics, self.log_alpha = critics, nn.Parameter(torch.zeros(()))

    def draw(self, obs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw an action in each state; return its log-density too, with gradient."""
        row = self.network(obs)
        noise = torch.randn(len(row), row.shape[-1] // 2, generator=generator)
        return self.actions.draw(row, noise.to(row))


class GaussianRows(nn.Module):
    """Two hidden layers, then means and logarithms of standard deviations."""

    def __init__(
        self, inputs: int, hidden: int, size: int, front: Sequence[nn.Module] = ()
    ) -> None:
        super().__init__()
        self.net = nn.Sequential(*front, *layers(inputs, hidden, 2 * size))

    def forward(self, obs: Tensor) -> Tensor:
        """Return means and logarithms of standard deviations, side by side."""
        mu, log_sigma = self.net(obs).chunk(2, -1)
        # Keep the deviations away from zero and from absurdly large numbers.
        return torch.cat([mu, log_sigma.clamp(-5.0, 2.0)], -1)


class SoftPolicyLike(PolicyLike, Protocol):
    """A policy with critics, a temperature and draws: what the agent asks for."""

    critics: Critics
    log_alpha: nn.Parameter

    def draw(self, obs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw an action in each state; return its log-density too, with gradient."""
        ...


def entropy_scale(
    action_space: spaces.Box, target: float | None
) -> tuple[float, float]:
    """Return what the box adds to an entropy, and the target with that."""
    # A box that is h times as wide adds log h for each number, {eq}`entropy-unit`.
    half = (np.float64(action_space.high) - action_space.low) / 2
    unit = float(np.log(half).sum())
    return unit, unit + (-half.size if target is None else target)


class Temperature:
    """The price of entropy, tuned or not.

    Args:
        log_alpha: Its logarithm, a parameter of the policy.
        config: The settings.
        unit: What the space of actions adds to an entropy.
        target: The entropy that a tuned temperature aims at, with that.
    """

    def __init__(
        self, log_alpha: Tensor, config: SACConfig, unit: float, target: float
    ) -> None:
        self.log_alpha, self.tune = log_alpha, config.tune
        self.unit, self.target, self.wanted = unit, target, config.target_entropy
        with torch.no_grad():
            log_alpha.fill_(config.temperature).log_()
        self.entropies: list[Tensor] = []

    def loss(self, entropy: Tensor, target: float | None = None) -> Tensor | float:
        """Return its loss at some entropies, which send no gradient to the actor."""
        self.entropies.append(entropy.mean())
        if not self.tune:
            return 0.0
        aim = self.target if target is None else target
        return temperature_error(self.log_alpha, entropy, aim)

    def metrics(self) -> dict[str, float]:
        """Return temperature and mean entropy, and begin a new mean."""
        # Without what the box adds, so that tasks can be compared.
        seen = [entropy.item() for entropy in self.entropies]
        self.entropies.clear()
        entropy = sum(seen) / len(seen) - self.unit if seen else float("nan")
        alpha = self.log_alpha.exp().item()
        return {"charts/alpha": alpha, "charts/entropy": Mean(entropy, len(seen))}


class SoftActorCritic(Algorithm):
    """Critics of soft values, and an actor and a temperature that climb them.

    Args:
        policy: The policy to train.
        config: The settings.
        action_space: The box of the environment's actions.
    """

    policy: SoftPolicyLike
    scale = staticmethod(entropy_scale)

    def __init__(
        self, policy: SoftPolicyLike, config: SACConfig, action_space: Any
    ) -> None:
        given, wanted = len(policy.critics), config.num_critics
        check_that(
            given >= wanted, f"policy must have {wanted} critics or more, got {given}"
        )
        self.policy = policy
        # Only the critics need an older copy, and all the rest climbs.
        self.target = TargetNetwork(policy.critics)
        self.actor = climbing(policy.parameters(), policy.critics)
        # The target entropy, in the unit of the box: {eq}`entropy-unit`.
        scale = self.scale(action_space, config.target_entropy)
        self.temperature = Temperature(policy.log_alpha, config, *scale)

    def worth(
        self,
        critics: nn.Module,
        obs: Tensor,
        generator: torch.Generator,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return soft values of states, and the log-densities of what was drawn."""
        # What would the policy do, and what is that worth, with its entropy?
        action, log_prob = self.policy.draw(obs, generator)
        alpha = self.policy.log_alpha.detach().exp()
        return soft_value(critics(obs, action), log_prob, alpha), log_prob

    def error(self, batch: Batch, generator: torch.Generator) -> QError:
        """Compare what critics think of actions with their soft targets."""
        policy, older, following = self.policy, self.target.network, batch.next_obs
        with torch.no_grad(), eval_mode(policy):
            # Only the critics have an older copy.
            value, _ = self.worth(older, following, generator, batch.next_mask)
            # The target, {eq}`soft-target`. After a termination nothing is added.
            aim = td_target(batch.reward, batch.discount, value)
        # How far is each critic from it, for the action that was taken?
        return squared_error(policy.critics(batch.obs, batch.action), aim)

    def ascent(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """Return minus the soft values of draws, and the temperature's loss."""
        # The actor climbs soft values, {eq}`soft-actor`.
        value, log_prob = self.worth(self.policy.critics, obs, generator)
        return -value.mean() + self.temperature.loss(-log_prob.detach())

    def metrics(self) -> dict[str, float]:
        """Return temperature and mean entropy."""
        return self.temperature.metrics()


# It sets the temperature of the policy to that of the settings.
SAC = learner_of(SoftActorCritic, "single_action_space")


@checked
@remembered
def make_sac_policy(
    observation_space: AnySpace,
    action_space: AnySpace,
    hidden: Count = 64,
    num_critics: Count = 2,
    hold: Count = 1,
    *,
    normalize: bool = False,
    share_encoder: bool = False,
    encoder: OwnEncoder | None = None,
) -> SoftPolicy:
    """Build an actor and critics for the spaces of one environment.

    Args:
        observation_space: A box of vectors, a picture, or a Dict or Tuple with pictures
            in it, which may come flat; or what ``plain_space`` made of it.
        action_space: A bounded box of vectors, likewise.
        hidden: Width of the hidden layers.
        num_critics: Number of critics.
        hold: Steps for which one noise is used.
        normalize: Whether the policy normalises its observations; vectors only.
        share_encoder: Whether actor and critics share an encoder, which the critics'
            loss alone moves.
        encoder: An encoder of your own, as in ``ShapedEncoder``.

    Raises:
        ValueError: If the spaces do not fit.
    """
    states, space = as_space(observation_space), roomy_box(as_space(action_space))
    size = space.shape[0]
    first = normalizing(normalize, states, encoder)
    entrances = off_policy_entrances(states, num_critics, share_encoder, encoder, first)
    front, inputs = next(entrances)
    network = GaussianRows(inputs, hidden, size, front)
    critics = Critics(ActionCritic(n, size, hidden, first) for first, n in entrances)
    actions = SquashedGaussian(space.low, space.high, hold, space.dtype)
    return SoftPolicy(network, actions, critics)


def roomy_box(space: spaces.Space[Any]) -> spaces.Box:
    """Return a space in which a density has room, or raise if it is another one."""
    if not isinstance(space, spaces.Box):
        wanted = "action_space must be a Box, or Discrete for discrete SAC"
        raise refused(wanted, space, "kind")
    box = bounded_box(space)
    # The logarithm of a density knows no box of width 0.
    if not (box.low < box.high).all():
        raise refused("action_space must have bounds that differ", box, "bounds")
    return box


@checked
@dataclass(frozen=True)
class SACConfig(ActorCriticConfig):
    """Settings of SAC: the shared ones with other defaults, and some of its own.

    Attributes:
        num_critics: Number of critics that ``train`` builds; a policy that you hand
            over has as many or more. All of them learn, and the least optimistic one
            counts.
        temperature: What a nat of entropy is worth; only at the start if it is tuned.
        tune: Whether the temperature is tuned.
        target_entropy: Entropy that a tuned temperature aims at, in nats. For
            continuous actions it is that of actions measured in units in which the box
            is -1..1. None is minus the number of dimensions or, for a list of actions,
            half of the largest entropy.
        hold: Steps for which one noise of continuous actions is used, in a policy that
            ``train`` builds.
    """

    num_critics: Count = 2
    temperature: NonNegative = 1.0
    tune: bool = True
    target_entropy: Finite | None = None
    hold: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tune and self.temperature == 0:
            raise ValueError("temperature must be above 0 if it is tuned, got 0")


# Settings with which the agent has learned, by environment. For what an entry leaves
# out, the default holds.
SETTINGS: dict[str, dict[str, Any]] = {
    "Pendulum-v1": {"total_steps": 10_000},
    "MountainCarContinuous-v0": {
        "total_steps": 50_000,
        "num_envs": 4,
        "num_steps": 20,
        "train_interval": 16,
        "tau": 0.02,
        "iteration_steps": 2000,
        "temperature": 0.1,
        "tune": False,
        "hold": 20,
    },
}


sac_settings = settings_of(SACConfig, SETTINGS)
