# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Rainbow

# %% tags=["export", "hide-input"]
"""Rainbow: distributions of returns, noisy layers, and all six parts together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from torch import Tensor, nn
from torch.nn.functional import linear, relu, smooth_l1_loss

from literate_rl.dqn import DQN, DQNConfig, EpsilonGreedy, QError, q_target
from literate_rl.policies import Policy
from literate_rl.replay import Batch
from literate_rl.workshop.fast import project_atoms
from literate_rl.workshop.nests import as_space, plain_space
from literate_rl.workshop.signatures import (
    Count,
    Float,
    Fraction,
    NonNegative,
    Positive,
    check_finite,
    checked,
)

__all__ = [
    "NoisyLinear",
    "Rainbow",
    "RainbowConfig",
    "RainbowNetwork",
    "RainbowPolicy",
    "categorical_error",
    "factorised_noise",
    "make_rainbow_policy",
    "project_distribution",
    "project_distribution_loop",
    "rainbow_error",
    "rainbow_settings",
]

# %% [markdown]
# projection


# %% tags=["export"]
@checked
def project_distribution_loop(
    prob: Float[Tensor, "B K"],
    reward: Float[Tensor, "B"],
    discount: Float[Tensor, "B"],
    value_min: float,
    value_max: float,
) -> Float[Tensor, "B K"]:
    """Move distributions of returns and share them out to the atoms, to be read."""
    batch, num_atoms = prob.shape
    spacing = (value_max - value_min) / (num_atoms - 1)
    result = torch.zeros_like(prob)
    for b in range(batch):
        for k in range(num_atoms):
            # Where atom $k$ lands, {eq}`shifted-atom`, and how many spacings that is
            # from the first atom.
            value = reward[b] + discount[b] * (value_min + k * spacing)
            place = (value.clamp(value_min, value_max) - value_min) / spacing
            # The nearer of its two neighbours gets more of its mass, {eq}`projection`.
            below = min(int(place), num_atoms - 2)
            result[b, below] += prob[b, k] * (below + 1 - place)
            result[b, below + 1] += prob[b, k] * (place - below)
    return result


# %% tags=["export"]
@checked
def project_distribution(
    prob: Float[Tensor, "B K"],
    reward: Float[Tensor, "B"],
    discount: Float[Tensor, "B"],
    value_min: float,
    value_max: float,
) -> Float[Tensor, "B K"]:
    """Move distributions of returns and share them out to the atoms, without gradient.

    Source: Bellemare, Dabney and Munos 2017, equation 7.

    Args:
        prob: Probabilities of the atoms at the states that the steps led to.
        reward: What was paid on the way, discounted.
        discount: What the return from there on counts; 0 where the episode terminated.
        value_min: First of the evenly spaced atoms.
        value_max: Last of them.
    """
    if prob.shape[1] < 2 or not value_min < value_max:
        raise ValueError(
            f"prob needs two atoms or more, and value_min to be below value_max: got "
            f"{prob.shape[1]} atoms from {value_min} to {value_max}"
        )
    rows = prob.detach(), reward.detach(), discount.detach()
    return project_atoms(*rows, value_min, value_max)


# %% tags=["export"]
@checked
def categorical_error(
    log_prob: Float[Tensor, "*B K"], target: Float[Tensor, "*B K"]
) -> Float[Tensor, "*B"]:
    """Compute how far distributions are from their targets, as a KL divergence.

    Args:
        log_prob: Log-probabilities of the atoms, with gradient.
        target: Probabilities that they shall have; a constant.
    """
    target = target.detach()
    # What the target finds impossible adds nothing, however unlikely it is.
    expected = (target * log_prob.masked_fill(target == 0, 0.0)).sum(-1)
    error = torch.special.xlogy(target, target).sum(-1) - expected
    check_finite(error, log_prob=log_prob, target=target)
    return error


# %% tags=["export"]
@checked
def factorised_noise(
    num_steps: Count, num_rows: Count, size: Count, generator: torch.Generator
) -> Tensor:
    """Draw the noise of noisy layers: signed roots of normal numbers, on the CPU."""
    normal = torch.randn(num_steps, num_rows, size, generator=generator)
    return normal.sign() * normal.abs().sqrt()


class NoisyLinear(nn.Module):
    """A linear layer whose weights are random, with deviations that are learned.

    The noise is an argument: the layer is a function of it and keeps none.

    Source: Fortunato et al. 2018, section 3 (b), factorised noise.

    Args:
        inputs: Number of inputs.
        outputs: Number of outputs.
        sigma: What the deviations start with, times the root of ``inputs``.
    """

    @checked
    def __init__(self, inputs: Count, outputs: Count, sigma: NonNegative = 0.5) -> None:
        super().__init__()
        # Means start uniform within one over the root of the inputs. That is PyTorch's
        # own start of a linear layer.
        self.mean = nn.Linear(inputs, outputs)
        # Deviations are a second layer, with one number for all at the start.
        self.deviation = nn.Linear(inputs, outputs)
        for parameter in self.deviation.parameters():
            nn.init.constant_(parameter, sigma / math.sqrt(inputs))

    @property
    def noise_size(self) -> int:
        """How many random numbers a row needs: one an input and one an output."""
        return self.mean.in_features + self.mean.out_features

    @checked
    def forward(
        self,
        x: Float[Tensor, "*B inputs"],
        noise: Float[Tensor, "*B size"] | Float[Tensor, "size"] | float,
    ) -> Float[Tensor, "*B outputs"]:
        """Return the outputs of inputs, with one noise for all or one for each row.

        Noise 0.0 leaves the means.
        """
        if isinstance(noise, float):
            return linear(x, self.mean.weight, self.mean.bias)
        into, out = noise.split([self.mean.in_features, self.mean.out_features], -1)
        # One noise for all rows: the random weights and biases of {eq}`noisy-weights`.
        if noise.dim() == 1:
            factor = torch.outer(out, into)
            weight = torch.addcmul(self.mean.weight, self.deviation.weight, factor)
            bias = torch.addcmul(self.mean.bias, self.deviation.bias, out)
            return linear(x, weight, bias)
        # One for each row: a product comes out of the sum, {eq}`noisy-layer`.
        return torch.addcmul(self.mean(x), out, self.deviation(into * x))


# %% tags=["export"]
class RainbowNetwork(nn.Module):
    """A network for the logits of N distributions over K atoms.

    Args:
        inputs: Size of an observation.
        num_actions: Number of actions N.
        num_atoms: Number of atoms K; 1 for values without a distribution.
        hidden: Width of the hidden layers.
        dueling: Whether a state's value and its actions' advantages are apart.
        noisy: Whether the last two layers are noisy.
        sigma: What the deviations of noisy layers start with.
    """

    @checked
    def __init__(
        self,
        inputs: Count,
        num_actions: Count,
        num_atoms: Count,
        hidden: Count,
        dueling: bool,
        noisy: bool,
        sigma: NonNegative,
    ) -> None:
        super().__init__()
        self.num_actions, self.num_atoms = num_actions, num_atoms
        self.dueling, self.noisy = dueling, noisy
        rows = num_actions + dueling  # one more for the value of the state
        self.first = nn.Linear(inputs, hidden)
        sizes = (hidden, hidden), (hidden, rows * num_atoms)
        noisy_sizes = [a + b for a, b in sizes]
        self.layers = nn.ModuleList(
            NoisyLinear(*size, sigma) if noisy else nn.Linear(*size) for size in sizes
        )
        # How many random numbers each noisy layer needs.
        self.noise_sizes = noisy_sizes if noisy else []

    def forward(self, obs: Tensor, noise: Tensor | float) -> Tensor:
        """Return logits ``(*B, N, K)`` for observations and the noise of the layers."""
        parts: Any = [noise] * len(self.layers)
        if self.noisy and not isinstance(noise, float):
            parts = noise.split(self.noise_sizes, -1)
        x = self.first(obs)
        for layer, part in zip(self.layers, parts, strict=True):
            x = layer(relu(x), part) if self.noisy else layer(relu(x))
        logit = x.unflatten(-1, (-1, self.num_atoms))
        if not self.dueling:
            return logit
        # The value of the state, and how much better than the others each action is:
        # {eq}`dueling-logits`, atom by atom.
        value, advantage = logit.split([1, self.num_actions], -2)
        return value + advantage - advantage.mean(-2, keepdim=True)


# %% tags=["export"]
class RainbowPolicy(Policy):
    """Acts by the mean of its distributions; what it explores with is noise.

    Args:
        network: Module from observations and noise to logits, ``RainbowNetwork`` or one
            like it: it says ``num_actions``, ``num_atoms`` and ``noise_sizes``.
        actions: Chance of a blind action, for a network without noise.
        value_min: First of the evenly spaced atoms.
        value_max: Last of them.
        recipe: As ``Policy`` has it.
    """

    atoms: Tensor

    def __init__(
        self,
        network: nn.Module,
        actions: Any,
        value_min: float,
        value_max: float,
        recipe: tuple[str, dict[str, Any]] = ("", {}),
    ) -> None:
        super().__init__(network, actions, recipe)
        self.value_min, self.value_max = value_min, value_max
        atoms = torch.linspace(value_min, value_max, network.num_atoms)
        self.register_buffer("atoms", atoms)

    @property
    def distributional(self) -> bool:
        """Whether the network gives distributions, and not values alone."""
        return len(self.atoms) > 1

    @property
    def noise_size(self) -> int:
        """How many random numbers the network needs for a row."""
        return sum(self.network.noise_sizes)

    def forward(self, obs: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """Return the values of all actions: the means of their distributions."""
        return self.mean(self.network(obs, noise))

    def mean(self, logit: Tensor) -> Tensor:
        """Return the means of distributions, given their logits."""
        if not self.distributional:
            return logit.squeeze(-1)
        return logit.softmax(-1) @ self.atoms

    def log_prob(self, obs: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """Return the log-probabilities of the atoms, for all actions."""
        logit: Tensor = self.network(obs, noise)
        return logit.log_softmax(-1)

    def value(self, obs: Tensor) -> Tensor:
        """Return the value of the best action."""
        return self(obs).amax(-1)

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout: that of the layers, then that of ε-greedy."""
        blind = super().noise(num_steps, num_envs, generator)
        if not self.noise_size:
            return blind
        noise = factorised_noise(num_steps, num_envs, self.noise_size, generator)
        return torch.cat([noise, blind], -1)

    def act(self, obs: Tensor, noise: Tensor | float) -> Tensor:
        """Return the actions that follow from observations and noise; 0.0 is greedy."""
        if isinstance(noise, float) or not self.noise_size:
            return super().act(obs, noise)
        layers, blind = noise.split([self.noise_size, self.network.num_actions], -1)
        action: Tensor = self.actions.choose(self(obs, layers), blind)
        return action


# %% tags=["export"]
@checked
def make_rainbow_policy(
    observation_space: spaces.Space[Any] | dict[str, Any],
    action_space: spaces.Space[Any] | dict[str, Any],
    hidden: Count = 128,
    num_atoms: Count = 51,
    value_min: float = 0.0,
    value_max: float = 100.0,
    dueling: bool = True,
    noisy: bool = True,
    sigma: NonNegative = 0.1,
) -> RainbowPolicy:
    """Build the policy that fits the spaces of one environment."""
    box, discrete = as_space(observation_space), as_space(action_space)
    if not isinstance(box, spaces.Box) or len(box.shape) != 1:
        raise ValueError(f"observation_space must be a box of vectors, got {box}")
    if not isinstance(discrete, spaces.Discrete):
        raise ValueError(f"action_space must be Discrete, got {discrete}")
    settings = {"hidden": hidden, "num_atoms": num_atoms, "dueling": dueling}
    settings |= {"noisy": noisy, "sigma": sigma}
    network = RainbowNetwork(box.shape[0], int(discrete.n), **settings)
    actions = EpsilonGreedy(int(discrete.n), int(discrete.start))
    recipe = {
        "observation_space": plain_space(box),
        "action_space": plain_space(discrete),
        "value_min": value_min,
        "value_max": value_max,
        **settings,
    }
    return RainbowPolicy(
        network, actions, value_min, value_max, ("make_rainbow_policy", recipe)
    )


# %% tags=["export"]
@checked
def rainbow_error(
    policy: Any,
    target_policy: Any,
    batch: Batch,
    generator: torch.Generator,
    double: bool = True,
) -> QError:
    """Compare distributions with their targets, or values if there is one atom only.

    Args:
        policy: The policy in training.
        target_policy: Its older copy.
        batch: Windows of steps, as the buffer returned them.
        generator: Where the noise of the layers comes from.
        double: Whether the policy in training chooses the next action.
    """
    # Each of the three passes has noise of its own.
    own, choosing, judging = draw_noise(policy, 3, generator)
    with torch.no_grad():
        # The older network says what returns follow each action,
        following = target_policy.network(batch.next_obs, judging)
        next_q = target_policy.mean(following)
        # and the newer one, or itself, which action that is.
        chooser = policy(batch.next_obs, choosing) if double else next_q
        best = chooser.argmax(-1)
    taken = of_action(policy.network(batch.obs, own), batch.action)
    if not policy.distributional:
        best_q = next_q.gather(-1, best.unsqueeze(-1))
        aim = q_target(batch.reward, batch.discount, best_q)
        q = taken.squeeze(-1)
        loss = smooth_l1_loss(q, aim, reduction="none")
        return QError(loss, (aim - q).detach().abs(), q.detach())

    # Their distribution is moved by reward and discount and shared out to the atoms:
    # {eq}`rainbow-target`.
    prob = of_action(following, best).softmax(-1)
    bounds = policy.value_min, policy.value_max
    aim = project_distribution(prob, batch.reward, batch.discount, *bounds)
    error = categorical_error(taken.log_softmax(-1), aim)
    return QError(error, error.detach(), policy.mean(taken.detach()))


def of_action(logit: Tensor, action: Tensor) -> Tensor:
    """Return the logits of one action for each row, ``(B, K)`` of ``(B, N, K)``."""
    index = action.view(-1, 1, 1).expand(-1, 1, logit.shape[-1])
    return logit.gather(1, index).squeeze(1)


def draw_noise(policy: Any, passes: int, generator: torch.Generator) -> list[Any]:
    """Return the noise of some passes, 0.0 each without noisy layers."""
    if not policy.noise_size:
        return [0.0] * passes
    noise = factorised_noise(1, passes, policy.noise_size, generator)[0]
    return list(noise.to(policy.atoms.device))


# %% tags=["export"]
class Rainbow(DQN):
    """DQN with the error of distributions; the rest is settings.

    Args:
        policy: What ``make_rainbow_policy`` returns, on any device.
        envs: A vector environment with ``config.num_envs`` copies.
        config: The settings.
    """

    def __init__(
        self, policy: Any, envs: VectorEnv[Any, Any, Any], config: RainbowConfig
    ) -> None:
        error = partial(rainbow_error, double=config.double)
        super().__init__(policy, envs, config, error, policy.act)


# %% tags=["export"]
@checked
@dataclass(frozen=True)
class RainbowConfig(DQNConfig):
    """Settings of Rainbow: those of DQN, with other defaults, and some of its own.

    Attributes:
        num_atoms: Atoms of a distribution; 1 for values alone.
        value_min: First of the atoms.
        value_max: Last of them.
        noisy: Whether noisy layers explore, and no ε.
        sigma: What the deviations of noisy layers start with.
    """

    total_steps: Count = 30_000
    dueling: bool = True
    num_steps: Count = 10
    learning_rate: Positive = 1e-3
    anneal: bool = True
    batch_size: Count = 64
    tau: Fraction = 0.02
    alpha: NonNegative = 0.5
    num_atoms: Count = 51
    value_min: float = 0.0
    value_max: float = 100.0
    noisy: bool = True
    sigma: NonNegative = 0.1


# Settings with which the agent has learned, by environment. What an entry leaves out is
# the default.
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {},
    "MountainCar-v0": {"value_min": -100.0, "value_max": 0.0, "total_steps": 100_000},
}


def rainbow_settings(env: str) -> RainbowConfig:
    """Return settings for an environment: its own if we know some, else the defaults.

    Args:
        env: Id of the environment.
    """
    return RainbowConfig(**SETTINGS.get(env, {}))
