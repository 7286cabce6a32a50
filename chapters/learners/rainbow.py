# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Rainbow for any task
#
# **How do six parts become one learner?** The layers are those of {doc}`/chapters/rainbow`, the error is that of
# {doc}`/chapters/c51`, the rest is DQN. What is left are a network, its policy, and an error that uses all parts.

# %% tags=["export", "hide-input"]
"""Rainbow: noisy layers, and six parts of DQN together."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.functional import relu

from literate_rl.data.replay import Batch
from literate_rl.ground.nests import AnySpace, as_discrete, as_space, remembered
from literate_rl.ground.networks import chosen, eval_mode
from literate_rl.ground.protocols import settings_of
from literate_rl.ground.rows import LISTED, Row, by_settings, register
from literate_rl.ground.signatures import (
    Count,
    Finite,
    Fraction,
    NonNegative,
    Scale,
    checked,
)
from literate_rl.learners.dqn import DQNConfig, EpsilonGreedy, QLearning, huber_error
from literate_rl.maths.dqn import td_target
from literate_rl.learners.loop import QError, learner_of
from literate_rl.maths.c51 import (
    categorical_error,
    check_atoms,
    mass_beyond,
    project_distribution,
)
from literate_rl.nets.encoders import (
    ConvolutionalEncodingNetwork,
    OwnEncoder,
    entrance,
)
from literate_rl.nets.policies import Policy, normalizing
from literate_rl.maths.noisy import (
    NoisyLinear,
    factorised_noise,
)

__all__ = [
    "DistributionalQLearning",
    "Rainbow",
    "RainbowConfig",
    "RainbowNetwork",
    "RainbowPolicy",
    "make_rainbow_policy",
    "rainbow_settings",
]


# %% tags=["export", "hide-input"]
class PictureLayer(nn.Module):
    """A first layer for pictures, which may come flat.

    Args:
        space: The space of one picture.
        outputs: Number of outputs.
    """

    def __init__(self, space: spaces.Box, outputs: int) -> None:
        super().__init__()
        self.encoder = ConvolutionalEncodingNetwork(space, outputs)

    def forward(self, obs: Tensor) -> Tensor:
        """Return features of pictures."""
        return self.encoder(obs)[0]


# %% tags=["export"]
class RainbowNetwork(nn.Module):
    """A network for the logits of N distributions over K atoms.

    Args:
        inputs: Size of an observation, or a first layer with ``hidden`` outputs.
        num_actions: Number of actions N.
        num_atoms: Number of atoms K; 1 for values without a distribution.
        hidden: Width of the hidden layers.
        dueling: Whether a state's value and its actions' advantages are separate.
        noisy: Whether the last two layers are noisy.
        sigma: As in ``NoisyLinear``.

    Attributes:
        noise_sizes: How many random numbers each noisy layer needs.
    """

    def __init__(
        self,
        inputs: int | nn.Module,
        num_actions: int,
        num_atoms: int,
        hidden: int,
        dueling: bool,
        noisy: bool,
        sigma: float,
    ) -> None:
        super().__init__()
        self.num_actions, self.num_atoms = num_actions, num_atoms
        self.dueling, self.noisy = dueling, noisy
        # The first layer has no noise.
        self.first: Any = inputs
        if isinstance(inputs, int):
            self.first = nn.Linear(inputs, hidden)
        # The last layer has a row for each action, and one more for the value.
        rows = num_actions + dueling
        sizes = (hidden, hidden), (hidden, rows * num_atoms)
        layers = [
            NoisyLinear(*size, sigma) if noisy else nn.Linear(*size) for size in sizes
        ]
        self.layers = nn.ModuleList(layers)
        self.noise_sizes = [sum(size) for size in sizes] if noisy else []

    def forward(self, obs: Tensor, noise: Tensor | float) -> Tensor:
        """Return logits ``(*B, N, K)`` for observations and the noise of the layers."""
        # Each layer takes its part of the noise.
        parts: Any = [noise, noise]
        if isinstance(noise, Tensor):
            parts = noise.split(self.noise_sizes, -1)
        x = self.first(obs)
        for layer, part in zip(self.layers, parts, strict=True):
            x = layer(relu(x), part) if self.noisy else layer(relu(x))
        logit: Tensor = x.unflatten(-1, (-1, self.num_atoms))
        if not self.dueling:
            return logit
        # The value, and how much better than the others each action is, atom by atom:
        # {eq}`dueling-logits`.
        value, advantage = logit[..., :1, :], logit[..., 1:, :]
        return value + advantage - advantage.mean(-2, keepdim=True)


# %% [markdown]
# The policy acts by the means of its distributions. Its noise is that of the layers, followed by that of
# ε-greedy ({doc}`/chapters/learners/dqn`).


# %% tags=["export"]
class RainbowPolicy(Policy):
    """Acts by the means of distributions, with layers that are noisy or not.

    Args:
        network: Module from observations and noise to logits, ``RainbowNetwork`` or one
            with its attributes.
        actions: The rule for choosing by values, ``EpsilonGreedy``.
        value_min: First of the evenly spaced atoms.
        value_max: Last of them.
        hold: Steps that one noise of the layers lasts.

    Attributes:
        noise_size: How many random numbers the layers need for a row.
        distributional: Whether there is more than one atom.
    """

    atoms: Tensor

    def __init__(
        self,
        network: nn.Module,
        actions: Any,
        value_min: float,
        value_max: float,
        hold: int = 1,
    ) -> None:
        super().__init__(network, actions)
        self.value_min, self.value_max, self.hold = value_min, value_max, hold
        atoms = torch.linspace(value_min, value_max, self.network.num_atoms)
        self.register_buffer("atoms", atoms)
        self.distributional = self.network.num_atoms > 1
        self.noise_size = sum(self.network.noise_sizes)
        self.num_actions = self.network.num_actions

    def mean(self, logit: Tensor) -> Tensor:
        """Return the means of distributions, given their logits."""
        # With a single atom a logit is the value itself.
        return logit.softmax(-1) @ self.atoms if self.distributional else logit[..., 0]

    def forward(self, obs: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """Return the values of all actions."""
        return self.mean(self.network(obs, noise))

    def value(self, obs: Tensor) -> Tensor:
        """Return the value of the best action."""
        return self(obs).amax(-1)

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout: that of the layers, then that of ε-greedy."""
        random = super().noise(num_steps, num_envs, generator)
        if not self.noise_size:
            return random
        # One draw for `hold` steps, rounded up.
        draws = -(-num_steps // self.hold)
        noise = factorised_noise(draws, num_envs, self.noise_size, generator)
        held = noise.repeat_interleave(self.hold, 0)[:num_steps]
        return torch.cat([held, random], -1)

    def act(
        self, obs: Tensor, noise: Tensor | float, *, mask: Tensor | None = None
    ) -> Tensor:
        """Return the actions that follow from observations and noise; 0.0 is greedy."""
        layers: Tensor | float = 0.0
        if self.noise_size and isinstance(noise, Tensor):
            layers, noise = noise.split([self.noise_size, self.num_actions], -1)
        row = self.legal(self(obs, layers), mask)
        return self.actions.choose(row, noise)


# %% tags=["export", "hide-input"]
@checked
@remembered
def make_rainbow_policy(
    observation_space: AnySpace,
    action_space: AnySpace,
    hidden: Count = 128,
    num_atoms: Count = 51,
    value_min: Finite = 0.0,
    value_max: Finite = 100.0,
    dueling: bool = True,
    noisy: bool = True,
    sigma: NonNegative = 0.1,
    hold: Count = 1,
    *,
    normalize: bool = False,
    encoder: OwnEncoder | None = None,
) -> RainbowPolicy:
    """Build the policy that fits the spaces of one environment.

    Args:
        observation_space: A box of vectors, a picture, or a Dict or Tuple with pictures
            in it, which may come flat; or what ``plain_space`` made of it.
        action_space: A Discrete space, likewise.
        hidden: Width of the hidden layers.
        num_atoms: Atoms of a distribution; 1 for values alone.
        value_min: First of the atoms.
        value_max: Last of them.
        dueling: Whether a state's value and its actions' advantages are separate.
        noisy: Whether the last two layers are noisy.
        sigma: As in ``NoisyLinear``.
        hold: Steps that one noise of the layers lasts.
        normalize: Whether the policy normalises its observations; vectors only.
        encoder: An encoder of your own, as in ``ShapedEncoder``.
    """
    seen, discrete = as_space(observation_space), as_discrete(action_space)
    num_actions = int(discrete.n)
    first = normalizing(normalize, seen, encoder)
    inputs: Any
    if encoder is None and isinstance(seen, spaces.Box) and len(seen.shape) == 3:
        inputs = PictureLayer(seen, hidden)
    else:
        encoders, inputs = entrance(seen, encoder=encoder)
        if front := first + encoders:
            inputs = nn.Sequential(*front, nn.Linear(inputs, hidden))
    network = RainbowNetwork(
        inputs, num_actions, num_atoms, hidden, dueling, noisy, sigma
    )
    actions = EpsilonGreedy(num_actions, int(discrete.start))
    return RainbowPolicy(network, actions, value_min, value_max, hold)


# %% [markdown]
# ## The error of a batch
#
# It is {eq}`rainbow-target`. The metric `losses/beyond_atoms` is the share of the last targets' probability
# that was moved beyond an end, and where it is above a twentieth, there is a warning.

# %% tags=["export"]
BEYOND = 0.05  # the share beyond the atoms from which on there is a warning


class DistributionalQLearning(QLearning):
    """Distributions of returns, moved and projected; with one atom, values.

    Args:
        policy: The policy to train.
        config: The settings.
    """

    policy: RainbowPolicy
    config: RainbowConfig

    def __init__(self, policy: RainbowPolicy, config: RainbowConfig) -> None:
        super().__init__(policy, config)
        # The last targets before they were projected, for the metrics.
        self.moved: tuple[Any, ...] | None = None
        self.warned = False

    def error(self, batch: Batch, generator: torch.Generator) -> QError:
        """Compare distributions with their targets."""
        policy, older = self.policy, self.target.network
        # The network in training is asked twice, the older one once.
        own: Any = 0.0
        choosing = evaluating = own
        if policy.noise_size:
            noise = factorised_noise(1, 3, policy.noise_size, generator)[0]
            own, choosing, evaluating = noise.to(policy.atoms.device)
        with torch.no_grad(), eval_mode(policy):
            # The older network gives the returns that follow each action. The network
            # in training chooses the action, or the older one itself without `double`.
            following = older.network(batch.next_obs, evaluating)
            next_q = older.mean(following)
            double = self.config.double
            chooser = policy(batch.next_obs, choosing) if double else next_q
            best = policy.legal(chooser, batch.next_mask).argmax(-1)
        taken = of_action(policy.network(batch.obs, own), batch.action)

        # Without distributions this is the error of DQN.
        if not policy.distributional:
            target = td_target(batch.reward, batch.discount, chosen(next_q, best))
            return huber_error(taken.squeeze(-1), target)

        # The returns that follow are moved and projected, {eq}`rainbow-target`. The
        # error is also the priority, because it says how much there is to learn.
        prob = of_action(following, best).softmax(-1)
        bounds = policy.value_min, policy.value_max
        self.moved = prob, batch.reward, batch.discount, *bounds
        target = project_distribution(*self.moved)
        error = categorical_error(taken.log_softmax(-1), target)
        return QError(error, error.detach(), policy.mean(taken.detach()))

    def metrics(self) -> dict[str, float]:
        """Add which share of the last targets lies beyond the atoms."""
        if not self.policy.distributional:
            return super().metrics()
        share = (
            math.nan if self.moved is None else mass_beyond(*self.moved).mean().item()
        )
        self.moved = None
        if share > BEYOND and not self.warned:
            self.warned = True
            warnings.warn(
                f"{share:.0%} of what the targets expect lies beyond the atoms: set "
                "value_min and value_max so that all discounted returns, of rewards "
                "times reward_scale, lie in between",
                stacklevel=2,
            )
        return {**super().metrics(), "losses/beyond_atoms": share}


def of_action(logit: Tensor, action: Tensor) -> Tensor:
    """Return the logits of one action for each row, ``(B, K)`` of ``(B, N, K)``."""
    return logit.take_along_dim(action.view(-1, 1, 1), 1).squeeze(1)


# %% tags=["export"]
Rainbow = learner_of(DistributionalQLearning)


@checked
@dataclass(frozen=True)
class RainbowConfig(DQNConfig):
    """Settings of Rainbow: those of DQN with other defaults, and some of its own.

    Attributes:
        num_atoms: Atoms of a distribution; 1 for values alone.
        value_min: First of the atoms, below all discounted returns. The default is for
            rewards of at least 0.
        value_max: Last of them, above all discounted returns. The default is for
            rewards of at most 1.
        noisy: Whether the last two layers are noisy.
        sigma: Deviations of noisy layers at the start, times the root of their inputs.
        hold: Steps that one noise of the layers lasts.
    """

    total_steps: Count = 30_000
    dueling: bool = True
    num_steps: Count = 10
    learning_rate: Scale = 1e-3
    anneal: bool = True
    batch_size: Count = 64
    tau: Fraction = 0.02
    epsilon_end: Fraction = 0.0
    epsilon_steps: Count = 2000
    priority_exponent: NonNegative = 0.5
    num_atoms: Count = 51
    value_min: Finite = 0.0
    value_max: Finite = 100.0
    noisy: bool = True
    sigma: NonNegative = 0.1
    hold: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_atoms()

    def check_atoms(self) -> None:
        """Raise unless the atoms rise."""
        check_atoms(self.value_min, self.value_max)


# Settings with which the agent has learned, by environment. For what an entry leaves
# out, the default holds.
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"num_steps": 20, "batch_size": 128, "train_interval": 2},
    # Steps, environments, features and discount are those of PPG in its mazes. A step
    # is drawn four times on average.
    "literate_rl/Maze-v0": {
        "total_steps": 150_000,
        "num_envs": 32,
        "hidden": 64,
        "gamma": 0.97,
        "num_steps": 3,
        "train_interval": 16,
        "value_max": 1.0,
    },
}


rainbow_settings = settings_of(RainbowConfig, SETTINGS)

# %% tags=["export", "hide-input"]
ROW = register(
    Row(
        "Rainbow",
        "DQN with all of its improvements",
        LISTED,
        RainbowConfig,
        by_settings(make_rainbow_policy),
        Rainbow,
        settings=rainbow_settings,
        contract="rainbow",
    )
)

# %% [markdown]
# ## References
#
# Those of {doc}`/chapters/rainbow`.
