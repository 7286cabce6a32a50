# Generated from chapters/ground/networks.py (edit there); digest ca7ea89d1cbb0445
"""Networks: what several chapters build, from numbers and actions."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from literate_rl.ground.signatures import Float, Positive, checked

__all__ = [
    "ActionCritic",
    "ClipConfig",
    "Critics",
    "GradientClip",
    "eval_mode",
    "randomness_kept",
    "squashed_log_prob",
]


def layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Build two hidden layers with ReLU."""
    first, second = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden)
    last = nn.Linear(hidden, outputs)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)


def orthogonal(layer: Any, gain: float = math.sqrt(2)) -> Any:
    """Give a layer orthogonal weights times a gain, and no bias.

    The default suits what a ReLU leaves of a signal.
    """
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class ActionCritic(nn.Module):
    """Two hidden layers from an observation and an action to the action's value.

    Args:
        inputs: Numbers in an observation, or in what ``front`` makes of it.
        size: Numbers in an action.
        hidden: Width of the hidden layers.
        front: What observations go through first: nothing, or an encoder.
    """

    def __init__(
        self,
        inputs: int,
        size: int,
        hidden: int = 64,
        front: Sequence[nn.Module] = (),
    ) -> None:
        super().__init__()
        self.front = nn.Sequential(*front)
        self.net = layers(inputs + size, hidden, 1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return the values of actions, ``(*B, 1)``."""
        return self.net(torch.cat([self.front(obs), action], -1))


class Critics(nn.ModuleList):
    """Several critics, which are asked about the same actions."""

    def forward(self, obs: Tensor, action: Tensor) -> Float[Tensor, "K *B"]:
        """Return the value of actions by each of K critics."""
        return torch.stack([critic(obs, action) for critic in self]).squeeze(-1)


def climbing(
    parameters: Iterable[nn.Parameter], critics: nn.Module
) -> list[nn.Parameter]:
    """Return those of an actor's parameters that its critics do not train."""
    theirs = set(critics.parameters())
    return [p for p in parameters if p not in theirs]


def race_noise(generator: torch.Generator, *shape: int) -> Tensor:
    """Draw the noise of logits, on the CPU: the largest sum wins the race."""
    return torch.empty(shape).exponential_(generator=generator).log_().neg_()


def chosen(numbers: Tensor, action: Tensor) -> Tensor:
    """Return the entries of rows at the actions."""
    return numbers.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def expected(prob: Tensor, numbers: Tensor) -> Tensor:
    """Return numbers times their probabilities; what never happens adds nothing."""
    return prob * numbers.masked_fill(prob == 0, 0.0)


def mean_surprise(log_prob: Tensor, over: Any = -1) -> Tensor:
    """Return entropies, in nats: sums over dimensions of log-probabilities."""
    return -expected(log_prob.exp(), log_prob).sum(over)


# Entropy of a normal distribution with standard deviation 1, in nats.
UNIT_ENTROPY = 0.5 * math.log(2.0 * math.pi * math.e)


def normal_log_prob(x: Tensor, mu: Tensor, log_sigma: Tensor) -> Tensor:
    """Return the log-densities of normal numbers, one by one."""
    # How many standard deviations a number is away from its mean.
    distance = (x - mu) * (-log_sigma).exp()
    return -(0.5 * distance.square() + log_sigma + 0.5 * math.log(2 * math.pi))


class Stretch(nn.Module):
    """The squash to a box with lower and upper bounds, and back."""

    middle: Tensor
    half_width: Tensor

    def __init__(self, low: Any, high: Any, stored: bool = True) -> None:
        super().__init__()
        first, last = (torch.as_tensor(x, dtype=torch.float32) for x in (low, high))
        self.register_buffer("middle", (first + last) / 2, stored)
        self.register_buffer("half_width", (last - first) / 2, stored)

    def forward(self, u: Tensor) -> Tensor:
        """Return the actions."""
        return self.middle + self.half_width * u.tanh()

    def undo(self, action: Tensor) -> Tensor:
        """Return u, as precisely as the digits of the action allow."""
        x = (action.double() - self.middle) / self.half_width
        edge = 1 - torch.finfo(action.dtype).eps / 2
        x = x.clamp(-edge, edge)
        return (0.5 * (x.log1p() - (-x).log1p())).to(action)


@checked
def squashed_log_prob(
    u: Float[Tensor, "*B A"],
    mu: Float[Tensor, "*B A"],
    log_sigma: Float[Tensor, "*B A"],
    half_width: Float[Tensor, "A"],
) -> Float[Tensor, "*B"]:
    """Return the log-density of an action, given its value u before the squash.

    ``mu`` and ``log_sigma`` describe the Gaussian of ``u``, ``half_width`` the box.

    Source: Haarnoja et al. 2018, appendix C, in a form that is exact for large u.
    """
    # The logarithm of the squash's derivative: {eq}`stable-jacobian` plus $\log h$.
    jacobian = 2 * (math.log(2) - u - softplus(-2 * u)) + half_width.log()
    # The density of the whole action is a product, its logarithm a sum,
    # {eq}`squashed-density`.
    return (normal_log_prob(u, mu, log_sigma) - jacobian).sum(-1)


@contextmanager
def eval_mode(module: Any) -> Iterator[None]:
    """Keep a module in evaluation mode for a block; each part gets its mode back.

    Args:
        module: The module, for instance a policy. A policy that is no module has no
            modes.
    """
    # Loops do this again and again, so it is written to be fast. The list of parts
    # grows under the loop.
    parts = [module] if isinstance(module, nn.Module) else []
    for part in parts:
        parts += filter(None, part._modules.values())
    training = [part for part in parts if part.training]
    # An assignment to a module first looks for a parameter of that name, which takes
    # long, so we write past it.
    try:
        for part in training:
            object.__setattr__(part, "training", False)
        yield
    finally:
        for part in training:
            object.__setattr__(part, "training", True)


@contextmanager
def randomness_kept() -> Iterator[None]:
    """Run a block that leaves the global random numbers as they were."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    seed, awake = torch.initial_seed(), torch.cuda.is_initialized()
    gpus = range(torch.cuda.device_count()) if awake else ()
    with torch.random.fork_rng(gpus, device_type="cuda"):
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)
            # A GPU that was not in use waits for the last seed that was set.
            if not awake and torch.initial_seed() != seed:
                torch.cuda.manual_seed_all(seed)


ClipType = Literal["clip_norm", "clip_value", "clip_momentum_norm"]


@checked
@dataclass(frozen=True)
class ClipConfig:
    """Settings that say how a gradient is clipped.

    Attributes:
        grad_clip_type: How the gradient is clipped, or none.
        clip_value: Bound of the gradient, if grad_clip_type says how it is clipped.
            With clip_momentum_norm it is a multiple of the usual norm, and DI-engine
            takes 5.
    """

    grad_clip_type: ClipType | None = None
    clip_value: Positive = 0.5


class GradientClip:
    """Clips the gradients of parameters as settings say.

    Attributes:
        norms: Sums for the usual norm of the gradient: of squared norms, and of
            weights.
    """

    def __init__(self, parameters: list[nn.Parameter], config: ClipConfig) -> None:
        self.parameters, self.config = parameters, config
        self.norms = (0.0, 0.0)

    def __call__(self) -> float:
        """Clip the gradient; return its norm before that."""
        # The three ways {eq}`gradient-clips`. An infinite limit only measures.
        kind, bound = self.config.grad_clip_type, self.config.clip_value
        limit = bound if kind == "clip_norm" else math.inf
        norm = nn.utils.clip_grad_norm_(self.parameters, limit).item()
        if kind == "clip_value":
            nn.utils.clip_grad_value_(self.parameters, bound)
        if kind == "clip_momentum_norm":
            squares, weights = (0.999 * total for total in self.norms)
            self.norms = (squares + norm**2, weights + 1)
            usual = math.sqrt(self.norms[0] / self.norms[1])
            nn.utils.clip_grad_norm_(self.parameters, bound * usual)
        return norm
