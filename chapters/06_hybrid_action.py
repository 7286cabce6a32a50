# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Hybrid actions
#
# **How does a policy choose between "accelerate by this much", "turn by that much" and
# "stop"?** It chooses a type and the numbers that go with it, and the hard part is that
# most of the numbers do not count.
#
# At the end of this chapter you can build a policy for such actions, sample from it,
# compute its log-probability, entropy and divergence without a NaN, train it with the
# PPO error, and connect it to any Gymnasium environment whose actions have this form.

# %% tags=["export"]
"""Hybrid actions: a type and its arguments, as one distribution, in an environment."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from literate_rl.ppo_error import (
    check_finite,
    check_shape,
    policy_error_from_log_prob,
    ppo_info,
    ppo_policy_data,
    ppo_policy_loss,
)

# The trees come from the package DI-treetensor. On import it calls a function that
# torch has renamed, and torch warns about that. The warning is not for our reader.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    import treetensor.torch as ttorch

__all__ = [
    "HybridActionSpec",
    "HybridDistribution",
    "HybridLander",
    "HybridPolicyNetwork",
    "Moving",
    "mask_args",
    "ppo_policy_error_hybrid",
    "ppo_policy_error_hybrid_per_head",
    "sample_hybrid_action",
    "select_args",
]

# %% [markdown]
# ## A tree of choices
#
# A **hybrid** (or *parameterised*) action has two parts {cite:p}`masson2016`. The first
# is its **type** $k$, one of $K$. The second is its **arguments**, real numbers. Games
# are full of them: in StarCraft II or Honor of Kings one picks a skill, then a direction
# and a distance for it.
#
# Each type may need other arguments than the next, so we line up the arguments of all
# types in one vector $u \in \mathbb R^A$. The type says which entries of it count. The
# little environment that we build below has $K = 3$ types and $A = 2$ arguments:
#
# | type $k$ | meaning | argument $u_1$, power | argument $u_2$, angle |
# |---|---|---|---|
# | 0 | accelerate | counts | |
# | 1 | turn | | counts |
# | 2 | stop | | |
#
# The type is discrete, the arguments are continuous, and they hang together as a tree:
# a discrete node on top, continuous leaves below. We keep them in a **tree tensor**, a
# dictionary of tensors that is indexed, sliced and moved as a whole. A batch of $B$
# states gives these shapes:
#
# | tree | entry | shape | what it is |
# |---|---|---|---|
# | `logit`, from the network | `action_type` | $(B, K)$ | logits of the types |
# | | `action_args.mu` | $(B, A)$ | means $\mu_j$ of the arguments |
# | | `action_args.sigma` | $(B, A)$ | their deviations $\sigma_j$ |
# | `action`, a sample | `action_type` | $(B,)$ | integers, the types $k$ |
# | | `action_args` | $(B, A)$ | real numbers, the arguments $u$ |
#
# ## The policy network
#
# The network has three parts. An *encoder* turns the state $x$ into a vector $y$ of 32
# features,
#
# $$
# y = \max\bigl(W_2 \max(W_1 x + b_1,\, 0) + b_2,\; 0\bigr) .
# $$ (hybrid-encoder)
#
# For a state that is a vector, two layers with rectifiers will do. For images one would
# put a convolutional network in this place; nothing else would change. Two *heads* read
# the features. One gives the logits $z$ of the types, the other the means of the
# arguments. The deviations do not depend on the state at all: they are parameters
# $w \in \mathbb R^A$ of their own, and the exponential keeps them positive,
#
# $$
# z = W_z\, y + b_z, \qquad \mu = W_\mu\, y + b_\mu, \qquad \sigma = e^{w} .
# $$ (hybrid-heads)


# %% tags=["export"]
class HybridPolicyNetwork(nn.Module):
    """A policy network for hybrid actions: an encoder and two heads.

    Args:
        obs_shape: Length of a state vector, at least 1.
        action_shape: ``{"action_type_shape": K, "action_args_shape": A}``, the number of
            action types and of arguments, each at least 1.

    Raises:
        TypeError: If ``action_shape`` is no dictionary or a size is no integer.
        ValueError: If the keys are others or a size is below 1.

    Source:
        PPOxFamily, chapter 2, ``hybrid_tutorial.py``; DI-engine, ``VAC`` with
        ``action_space="hybrid"``.
    """

    def __init__(self, obs_shape: int, action_shape: dict[str, int]) -> None:
        # A network in PyTorch is a subclass of
        # [`nn.Module`](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html),
        # and whoever subclasses it calls its constructor first. Only then are layers
        # and parameters that we assign registered, so that an optimiser finds them.
        super().__init__()
        check_size("obs_shape", obs_shape)
        check_action_shape(action_shape)

        # The encoder of {eq}`hybrid-encoder`.
        self.encoder = nn.Sequential(
            nn.Linear(obs_shape, 16),
            nn.ReLU(),
            nn.Linear(16, 32),
            nn.ReLU(),
        )

        # The head for the type, which is discrete: one logit for each of $K$ types.
        self.action_type_shape = action_shape["action_type_shape"]
        self.action_type_head = nn.Linear(32, self.action_type_shape)

        # The head for the arguments, which are continuous: one mean for each of $A$
        # arguments, and $w$ as a bare parameter. Starting at 0 it makes each deviation 1.
        self.action_args_shape = action_shape["action_args_shape"]
        self.action_args_mu = nn.Linear(32, self.action_args_shape)
        self.action_args_log_sigma = nn.Parameter(
            torch.zeros(1, self.action_args_shape)
        )

    @classmethod
    def from_space(
        cls,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        mask: ArrayLike | Tensor | None = None,
    ) -> HybridPolicyNetwork:
        """Build the network that fits an environment.

        Args:
            observation_space: Space of one observation, a one-dimensional ``Box``.
            action_space: Space of one action; see ``HybridActionSpec.from_space``.
            mask: As in ``HybridActionSpec.from_space``, and needed where it is needed
                there. The network does not keep it.

        Returns:
            A new network.

        Raises:
            TypeError: If the action space is not one Discrete and some Boxes.
            ValueError: If a space or the mask has another form.
        """
        flat = isinstance(observation_space, spaces.Box)
        shape = observation_space.shape
        if not flat or shape is None or len(shape) != 1:
            raise ValueError(
                "observation_space must be a Box with one dimension, "
                f"got {observation_space}"
            )
        spec = HybridActionSpec.from_space(action_space, mask)
        return cls(shape[0], spec.action_shape)

    def forward(self, x: Tensor) -> ttorch.Tensor:
        """Compute what describes the policy at each state.

        Args:
            x: States, (B, obs_shape), of the dtype of the parameters.

        Returns:
            A tree tensor with ``action_type``, the logits (B, K), and ``action_args``
            with ``mu`` and ``sigma``, each (B, A).

        Raises:
            TypeError: If ``x`` is no tensor or has another dtype.
            ValueError: If ``x`` has another shape.
        """
        check_states(x, self.encoder[0])

        # From a state $(B, *)$ to features $(B, 32)$, then to logits and means by
        # {eq}`hybrid-heads`.
        x = self.encoder(x)
        logit = self.action_type_head(x)
        mu = self.action_args_mu(x)

        # $w$ has the shape $(1, A)$. Adding zeros of the shape of $\mu$ repeats it for
        # each state of the batch. `zeros_like` passes no gradient on, so nothing flows
        # into $\mu$ along this way; $w$ itself gets its gradient, summed over the batch.
        log_sigma = self.action_args_log_sigma + torch.zeros_like(mu)
        sigma = torch.exp(log_sigma)

        # A tree tensor, and not an instance of `torch.Tensor`, whatever its name says.
        return ttorch.as_tensor(
            {"action_type": logit, "action_args": {"mu": mu, "sigma": sigma}}
        )


def check_size(name: str, size: Any) -> None:
    """Raise if a size is no integer or below 1."""
    if not isinstance(size, int) or isinstance(size, bool):
        raise TypeError(f"{name} must be an int, got {type(size).__name__}")
    if size < 1:
        raise ValueError(f"{name} must be at least 1, got {size}")


def check_action_shape(action_shape: Any) -> None:
    """Raise if ``action_shape`` is not what ``HybridPolicyNetwork`` takes."""
    if not isinstance(action_shape, dict):
        raise TypeError(f"action_shape must be a dict, got {action_shape!r}")
    keys = {"action_type_shape", "action_args_shape"}
    if action_shape.keys() != keys:
        raise ValueError(
            f"action_shape must have the keys {sorted(keys)}, "
            f"got {sorted(map(str, action_shape))}"
        )
    for key, size in action_shape.items():
        check_size(f"action_shape[{key!r}]", size)


def check_states(x: Any, layer: Any) -> None:
    """Raise if states do not fit the first layer of a network."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor, got {type(x).__name__}")
    if x.dim() != 2 or x.shape[1] != layer.in_features:
        raise ValueError(
            f"x must have shape (B, {layer.in_features}), got {tuple(x.shape)}"
        )
    if x.dtype != layer.weight.dtype:
        raise TypeError(f"x must have dtype {layer.weight.dtype}, got {x.dtype}")


# %% [markdown]
# Here it is at work, for four states of ten numbers.

# %%
torch.manual_seed(0)
network = HybridPolicyNetwork(10, {"action_type_shape": 3, "action_args_shape": 2})
state = torch.rand(4, 10)
logit = network(state)
for name, leaf in (
    ("action_type", logit.action_type),
    ("action_args.mu", logit.action_args.mu),
    ("action_args.sigma", logit.action_args.sigma),
):
    print(f"{name:18s}{tuple(leaf.shape)}")

# %% [markdown]
# Which parameter can change which output? The next figure asks autograd. An arrow is
# drawn wherever the gradient of an output with respect to a part is not zero.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Computation graph. Arrows lead from the state x to the encoder, from the encoder to the type head and to the head of the means, from those to the logits and to mu, and from log sigma alone to sigma"}}
import matplotlib.pyplot as plt

parts = {
    "encoder": network.encoder[2].weight,
    "action_type_head": network.action_type_head.weight,
    "action_args_mu": network.action_args_mu.weight,
    "action_args_log_sigma": network.action_args_log_sigma,
}
outputs = {
    "logits": logit.action_type,
    r"$\mu$": logit.action_args.mu,
    r"$\sigma$": logit.action_args.sigma,
}


def reaches(part, output):
    weights = torch.linspace(1, 2, output.numel()).view_as(output)
    (grad,) = torch.autograd.grad(
        (output * weights).sum(), part, retain_graph=True, allow_unused=True
    )
    return grad is not None and bool(grad.abs().sum() > 0)


place = {
    "x": (0, 1.5),
    "encoder": (1, 1.5),
    "action_type_head": (2.4, 2),
    "action_args_mu": (2.4, 1),
    "action_args_log_sigma": (2.4, 0),
    "logits": (3.8, 2),
    r"$\mu$": (3.8, 1),
    r"$\sigma$": (3.8, 0),
}
heads = [name for name in parts if name != "encoder"]
arrows = [("x", "encoder")]
arrows += [(h, o) for h in heads for o in outputs if reaches(parts[h], outputs[o])]
arrows += [
    ("encoder", h) for h, o in arrows[1:] if reaches(parts["encoder"], outputs[o])
]

fig, axis = plt.subplots(figsize=(7, 2.6))
for name, (x, y) in place.items():
    axis.text(x, y, name, ha="center", va="center", size=9)
for start, end in arrows:
    (x0, y0), (x1, y1) = place[start], place[end]
    left, right = 0.05 + 0.037 * len(start), 0.05 + 0.037 * len(end)
    right = 0.15 if end in outputs else right
    tip = {"arrowstyle": "->", "color": "C0", "shrinkA": 2, "shrinkB": 2}
    axis.annotate("", (x1 - right, y1), (x0 + left, y0), arrowprops=tip)
axis.set(xlim=(-0.3, 4.2), ylim=(-0.4, 2.4))
axis.axis("off")
fig.tight_layout()

# %% [markdown]
# **What to notice.** Three arrows end at the three outputs, and nothing but
# `action_args_log_sigma` reaches $\sigma$. Exercise 1 asks for the size of that gradient.
#
# ## Sampling
#
# To act we draw a type, then the arguments. The logits become probabilities by the
# softmax,
#
# $$
# p_k = \frac{e^{z_k}}{\sum_i e^{z_i}} ,
# $$ (hybrid-softmax)
#
# and the type follows the *categorical* distribution, whose probability mass function is
# simply $f(k) = p_k$. Each argument follows a *normal* distribution,
# $u_j \sim \mathcal N(\mu_j, \sigma_j^2)$, whose density is
#
# $$
# f(u_j) = \frac{1}{\sigma_j \sqrt{2\pi}}
#     \exp\Bigl(-\frac12 \Bigl(\frac{u_j - \mu_j}{\sigma_j}\Bigr)^2\Bigr) .
# $$ (hybrid-gaussian)
#
# The arguments are drawn independently of each other. In other words, the whole vector
# $u$ has a normal distribution whose covariance matrix is diagonal.
#
# PyTorch's [distributions](https://docs.pytorch.org/docs/stable/distributions.html) say
# all this in four lines. This is the plain form:


# %%
from torch.distributions import Categorical, Independent, Normal


def plain_sample(logit):
    prob = torch.softmax(logit.action_type, dim=-1)
    type_dist = Categorical(probs=prob)
    # `Independent(..., 1)` makes one distribution of vectors out of $A$ distributions
    # of numbers, so that a log-probability has the shape (B,) and not (B, A).
    args_dist = Independent(Normal(logit.action_args.mu, logit.action_args.sigma), 1)
    return ttorch.as_tensor(
        {"action_type": type_dist.sample(), "action_args": args_dist.sample()}
    )


print(plain_sample(logit))

# %% [markdown]
# `sample_hybrid_action` below does the same with the formulas themselves. It gains two
# things. It takes a random generator of your own, which `torch.distributions` does not.
# And it leaves the checks of `torch.distributions` out, which cost more than the
# sampling when the batch is small.
#
# Drawing the type uses a race. Give each type a random time $e_k$ from the exponential
# distribution with mean 1, and let it run at the speed $p_k$: it arrives after
# $e_k / p_k$. The first to arrive is type $k$ with probability exactly $p_k$, because
# the minimum of exponential times with rates $p_1, \dots, p_K$ belongs to the $k$-th
# with probability $p_k / \sum_i p_i$. Nothing has to be added up and no row has to be
# searched, so the race is quick.


# %% tags=["export"]
def sample_hybrid_action(
    logit: ttorch.Tensor, generator: torch.Generator | None = None
) -> ttorch.Tensor:
    """Sample one hybrid action for each state.

    Args:
        logit: Tree (or nested dictionary) with ``action_type``, logits (B, K), and
            ``action_args`` with ``mu`` and ``sigma``, each (B, A), as
            ``HybridPolicyNetwork`` returns it.
        generator: Source of random numbers, on the device of the logits; None for
            PyTorch's own.

    Returns:
        A tree tensor with ``action_type``, (B,) int64, and ``action_args``, (B, A). All
        arguments are sampled, also those that the type does not use. No gradient flows
        through either.

    Raises:
        TypeError: If ``logit`` is of the wrong kind.
        ValueError: If a key is missing, shapes differ, a number is NaN or a deviation is
            not positive.

    Source:
        PPOxFamily, chapter 2, ``hybrid_tutorial.py``.
    """
    type_logit, mu, sigma = read_logit(logit, "logit")
    # The probabilities by the softmax {eq}`hybrid-softmax`.
    prob = torch.softmax(type_logit, dim=-1)
    total = prob.sum() + mu.sum() + sigma.log().sum()
    check_policy(total, "logit", type_logit, mu, sigma)
    return draw(prob, mu, sigma, generator)


@torch.no_grad()
def draw(
    prob: Tensor, mu: Tensor, sigma: Tensor, generator: torch.Generator | None
) -> ttorch.Tensor:
    """Draw types from ``prob`` (B, K) and arguments from ``mu``, ``sigma`` (B, A)."""
    # The race. For $v$ uniform in $(0, 1)$, $-\log v$ is exponential with mean 1. We
    # look for the largest $p_k / (-\log v_k)$, and the minus sign makes that the
    # smallest $p_k / \log v_k$. The lower end of the interval keeps $\log v$ finite: a
    # type of probability 0 then can never win, not even a tie.
    tiny = torch.finfo(prob.dtype).tiny
    chance = torch.empty_like(prob).uniform_(tiny, 1.0, generator=generator)
    action_type = (prob / chance.log_()).argmin(-1)

    # Arguments with the density {eq}`hybrid-gaussian`: standard normal noise, stretched
    # by $\sigma$ and moved by $\mu$.
    noise = torch.empty_like(mu).normal_(generator=generator)
    action_args = torch.addcmul(mu, sigma, noise)
    return ttorch.as_tensor({"action_type": action_type, "action_args": action_args})


def read_logit(logit: Any, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Take logits (B, K), ``mu`` and ``sigma`` (B, A) out of a tree; check shapes."""
    try:
        type_logit, arguments = logit["action_type"], logit["action_args"]
        mu, sigma = arguments["mu"], arguments["sigma"]
    except KeyError as error:
        raise ValueError(f"{name} must have the key {error}") from error
    except (TypeError, IndexError) as error:
        raise TypeError(
            f"{name} must be a tree with 'action_type' and 'action_args', the latter "
            f"with 'mu' and 'sigma', got {type(logit).__name__}"
        ) from error
    check_matrix(f"{name}.action_type", type_logit, "(B, K)")
    check_matrix(f"{name}.action_args.mu", mu, "(B, A)")
    check_shape(f"{name}.action_args.mu", mu, (len(type_logit), mu.shape[1]))
    check_shape(f"{name}.action_args.sigma", sigma, mu.shape)
    return type_logit, mu, sigma


def check_matrix(name: str, value: Any, shape: str) -> None:
    """Raise if a value is no floating-point tensor with two dimensions."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if value.dim() != 2:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(value.shape)}")
    if not value.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {value.dtype}")


def check_policy(
    total: Tensor, name: str, type_logit: Tensor, mu: Tensor, sigma: Tensor
) -> None:
    """Raise if numbers describe no policy.

    Args:
        total: A sum that is finite only if all is well, so that one comparison is
            enough as long as it is.
        name: What the message calls the logit.
        type_logit: Logits, (B, K). Minus infinity takes a type away.
        mu: Means, (B, A).
        sigma: Deviations, (B, A).

    Raises:
        ValueError: If a number is out of its range, or a state has no type left.
    """
    if math.isfinite(total):
        return
    for key, value, legal, wanted in (
        ("action_type", type_logit, type_logit < torch.inf, "finite or -inf"),
        ("action_args.mu", mu, mu.isfinite(), "finite"),
        ("action_args.sigma", sigma, (0 < sigma) & sigma.isfinite(), "positive"),
    ):
        if not legal.all():
            index = tuple((~legal).nonzero()[0].tolist())
            raise ValueError(
                f"{name}.{key} must be {wanted}, got {value[index].item()} at {index}"
            )
    none_left = (type_logit == -torch.inf).all(-1)
    if none_left.any():
        row = none_left.nonzero()[0].item()
        raise ValueError(f"{name}.action_type must leave a type, row {row} is all -inf")


# %% [markdown]
# Both forms draw from the same distribution. The table compares 100,000 draws of each
# for one state.

# %%
torch.manual_seed(0)
one_state = ttorch.as_tensor(
    {
        "action_type": torch.tensor([[0.0, 1.0, -1.0]]).expand(100_000, 3),
        "action_args": {
            "mu": torch.tensor([[0.5, -1.0]]).expand(100_000, 2),
            "sigma": torch.tensor([[1.0, 0.2]]).expand(100_000, 2),
        },
    }
)
print(f"{'':24s}{'frequency of the types':27s}mean of u      deviation of u")
for name, sample in (
    ("torch.distributions", plain_sample(one_state)),
    ("sample_hybrid_action", sample_hybrid_action(one_state)),
):
    frequency = sample.action_type.bincount() / 100_000
    columns = (frequency, sample.action_args.mean(0), sample.action_args.std(0))
    numbers = ("  ".join(f"{x:6.3f}" for x in column.tolist()) for column in columns)
    print(f"{name:24s}" + "   ".join(numbers))
exact = torch.softmax(torch.tensor([0.0, 1.0, -1.0]), -1).tolist()
print(f"{'exact':24s}" + "  ".join(f"{x:6.3f}" for x in exact))

# %% [markdown]
# ## Which arguments count: the mask
#
# All $A$ arguments are sampled, but the type uses only some of them. The **mask** $m$ is
# a table of zeros and ones with a row for each type and a column for each argument:
# $m_{k,j} = 1$ if type $k$ uses argument $j$. For the three types above,
#
# $$
# m = \begin{pmatrix} 1 & 0 \\ 0 & 1 \\ 0 & 0 \end{pmatrix} .
# $$
#
# Rows with no one, with one and with several ones are all legal. Looking up the row of
# each sample's type gives a mask for the batch, `mask[action_type]`, of shape $(B, A)$.
#
# Two functions use it. `mask_args` keeps the shape and puts zeros where nothing counts.
# It always works. `select_args` takes out the one argument of each sample. It needs
# exactly one in each row and says so.


# %% tags=["export"]
def mask_args(action_args: Tensor, data_mask: Tensor) -> Tensor:
    """Put zeros in the place of the arguments that do not count.

    Args:
        action_args: Arguments, (B, A). Not written to.
        data_mask: Which of them count, (B, A) bool: ``mask[action_type]``.

    Returns:
        The arguments with zeros, (B, A), also where there was a NaN.

    Raises:
        TypeError: If an argument is no tensor or ``data_mask`` is not bool.
        ValueError: If the shapes differ.
    """
    check_data_mask(action_args, data_mask)
    return action_args.masked_fill(~data_mask, 0.0)


def select_args(action_args: Tensor, data_mask: Tensor) -> Tensor:
    """Take out the one argument that counts in each row.

    Args:
        action_args: Arguments, (B, A).
        data_mask: Which of them count, (B, A) bool, exactly one in each row.

    Returns:
        One number for each row, (B,).

    Raises:
        TypeError: If an argument is no tensor or ``data_mask`` is not bool.
        ValueError: If the shapes differ, or a row has no argument or several.
    """
    check_data_mask(action_args, data_mask)
    count = data_mask.sum(-1)
    if (count != 1).any():
        rows = (count != 1).nonzero().flatten().tolist()
        raise ValueError(
            "data_mask must have exactly one argument in each row, "
            f"rows {rows[:8]} have {count[rows[:8]].tolist()}; use mask_args instead"
        )
    return action_args[data_mask]


def check_data_mask(action_args: Any, data_mask: Any) -> None:
    """Raise if arguments (B, A) and their mask do not fit together."""
    check_matrix("action_args", action_args, "(B, A)")
    check_shape("data_mask", data_mask, action_args.shape)
    if data_mask.dtype != torch.bool:
        raise TypeError(f"data_mask must be bool, got {data_mask.dtype}")


def as_mask(mask: Any, shape: tuple[int, int], device: torch.device) -> Tensor:
    """Return a mask as a bool tensor (K, A) on a device; raise if it is none."""
    mask = torch.as_tensor(mask, device=device)
    if mask.shape != shape:
        raise ValueError(
            "mask must have one row for each action type and one column for each "
            f"argument, shape {shape}, got {tuple(mask.shape)}"
        )
    if mask.dtype != torch.bool:
        if not ((mask == 0) | (mask == 1)).all():
            raise ValueError(f"mask must hold zeros and ones, got {mask.tolist()}")
        mask = mask.bool()
    return mask


# %% [markdown]
# The tree can be sliced as a whole, with all that hangs on it.

# %%
mask = torch.tensor([[1, 0], [0, 1], [0, 0]], dtype=torch.bool)
torch.manual_seed(1)
action = sample_hybrid_action(network(torch.rand(6, 10)))
action.action_args = mask_args(action.action_args, mask[action.action_type])
print("all six\n", action)
print("two of them, action[1:3]\n", action[1:3])

# %% [markdown]
# ## One distribution
#
# PPO needs the probability of *the action*, not of its parts. The environment sees the
# type and the arguments that count, so these make up the action. Their joint density is
# the probability of the type times the densities {eq}`hybrid-gaussian` of its arguments,
# and its logarithm is a sum,
#
# $$
# \log \pi(k, u \mid s) = \log p_k + \sum_{j=1}^{A} m_{k,j} \log f(u_j) .
# $$ (hybrid-log-prob)
#
# Here is the question that users ask most: *what is the log-probability of a type that
# has no argument?* The sum is empty, and the answer is $\log p_k$.
#
# The entropy is the expectation of $-\log \pi$. A normal distribution has the entropy
# $H_j = \log \sigma_j + \tfrac12 \log(2 \pi e)$. An argument contributes to the whole only
# as often as its types are chosen,
#
# $$
# H(\pi) = -\sum_{k} p_k \log p_k + \sum_{k} p_k \sum_j m_{k,j} H_j .
# $$ (hybrid-entropy)
#
# The probabilities in front of the second sum carry gradient too: a bonus on this
# entropy also asks for types that leave more freedom.
#
# Between two policies with the same mask, $\pi$ and $\pi'$, the Kullback–Leibler divergence
# has the same structure,
#
# $$
# \operatorname{KL}(\pi \,\|\, \pi') = \sum_k p_k \Bigl( \log \frac{p_k}{p'_k}
#     + \sum_j m_{k,j} \operatorname{KL}_j \Bigr) ,
# \qquad
# \operatorname{KL}_j = \log \frac{\sigma'_j}{\sigma_j}
#     + \frac{\sigma_j^2 + (\mu_j - \mu'_j)^2}{2 \sigma_j'^2} - \frac12 .
# $$ (hybrid-kl)
#
# ### The plain form
#
# With `torch.distributions` these are a few lines.


# %%
def plain_log_prob_and_entropy(logit, action, mask):
    type_dist = Categorical(logits=logit.action_type)
    args_dist = Normal(logit.action_args.mu, logit.action_args.sigma)
    used = mask[action.action_type]
    log_density = args_dist.log_prob(action.action_args)
    log_prob = type_dist.log_prob(action.action_type)
    log_prob = log_prob + torch.where(used, log_density, 0.0).sum(-1)
    how_often = type_dist.probs @ mask.float()
    entropy = type_dist.entropy() + (how_often * args_dist.entropy()).sum(-1)
    return log_prob, entropy


# %% [markdown]
# ### The direct form
#
# Small batches are not slow because of the arithmetic. Each call into PyTorch has a
# price of a few microseconds, whatever the size, and the plain form makes almost ninety
# of them. So it pays to find a shorter way to write the same thing.
#
# Let $L_k$ be the expected log-density of an action of type $k$,
#
# $$
# L_k = \log p_k - \sum_j m_{k,j} H_j .
# $$ (hybrid-level)
#
# With $z_j = (u_j - \mu_j) / \sigma_j$ the log of {eq}`hybrid-gaussian` is
# $-H_j + \tfrac12 (1 - z_j^2)$. Put that into {eq}`hybrid-log-prob` and
# {eq}`hybrid-entropy`, and both become short:
#
# $$
# \log \pi(k, u \mid s) = L_k + \frac12 \sum_j m_{k,j} \bigl(1 - z_j^2\bigr),
# \qquad
# H(\pi) = -\sum_k p_k L_k .
# $$ (hybrid-short)
#
# The class computes the table of all $L_k$ once, and both quantities read it.
#
# Three kinds of numbers must do no harm. An argument that *does not count* may hold
# anything, even a NaN. A logit of minus infinity takes a type away. And a deviation may
# be tiny. It is not enough that the results come out right: $0 \cdot \infty$ can hide in
# the backward pass as well. The cure is to replace a dangerous number *before* it
# enters a formula, not to hide the result afterwards.


# %% tags=["export"]
# Entropy of a normal distribution with deviation 1.
UNIT_ENTROPY = 0.5 * math.log(2.0 * math.pi * math.e)

# Stands for the logarithm of zero where it is multiplied by zero. Any $p$ that is not 0
# in floating point has a logarithm far above it.
LOG_OF_NOTHING = -1e9


class HybridDistribution:
    """The distribution of hybrid actions, one for each state of a batch.

    Args:
        logit: Tree (or nested dictionary) with ``action_type``, logits (B, K), and
            ``action_args`` with ``mu`` and ``sigma``, each (B, A). A logit of minus
            infinity takes the type away at that state.
        mask: Which type (row) uses which argument (column), (K, A), zeros and ones.
        name: What error messages call ``logit``.

    Attributes:
        mask: The mask, (K, A) bool, on the device of the logits.
        prob: Probabilities of the types, (B, K).
        type_log_prob: Their logarithms, (B, K).
        mu: Means of the arguments, (B, A).
        sigma: Deviations of the arguments, (B, A).

    Raises:
        TypeError: If ``logit`` is of the wrong kind.
        ValueError: If a key is missing, shapes differ, the mask holds anything else than
            zeros and ones, a number is NaN or infinite, or a deviation is not positive.
    """

    def __init__(
        self, logit: ttorch.Tensor, mask: ArrayLike | Tensor, name: str = "logit"
    ) -> None:
        type_logit, self.mu, self.sigma = read_logit(logit, name)
        shape = (type_logit.shape[1], self.mu.shape[1])
        self.mask = as_mask(mask, shape, type_logit.device)

        # The logarithm of the softmax {eq}`hybrid-softmax`. Subtracting the largest
        # logit changes nothing but keeps `exp` from overflowing; `detach`, because the
        # result does not depend on it. Written out like this it is faster than
        # `torch.log_softmax`, which is slow on a CPU when rows are many and short.
        shifted = type_logit - type_logit.detach().amax(-1, keepdim=True)
        self.type_log_prob = shifted - shifted.exp().sum(-1, keepdim=True).log()
        self.prob = self.type_log_prob.exp()

        # The table of $L_k$ {eq}`hybrid-level`. The matrix product adds up, for each
        # type, the entropies of its arguments.
        args_entropy = self.sigma.log() + UNIT_ENTROPY
        self.level = self.type_log_prob - args_entropy @ self.mask.to(self.mu.dtype).T

        # One sum, one look: it is not finite if any number is bad.
        total = self.prob.sum() + self.mu.sum() + args_entropy.sum()
        check_policy(total, name, type_logit, self.mu, self.sigma)

    def sample(self, generator: torch.Generator | None = None) -> ttorch.Tensor:
        """Draw one action for each state.

        Args:
            generator: Source of random numbers, on the device of the logits; None for
                PyTorch's own.

        Returns:
            A tree tensor with ``action_type``, (B,) int64, and ``action_args``, (B, A),
            without gradient. All arguments are drawn, also those that do not count.
        """
        return draw(self.prob, self.mu, self.sigma, generator)

    def mode(self) -> ttorch.Tensor:
        """Return the greedy action: the most likely type, its arguments at their means.

        Returns:
            A tree tensor as ``sample`` returns it.
        """
        action_type = self.type_log_prob.argmax(-1)
        return ttorch.as_tensor(
            {"action_type": action_type, "action_args": self.mu.detach()}
        )

    def log_prob(self, action: ttorch.Tensor) -> Tensor:
        """Compute the joint log-density of the type and of its arguments.

        Args:
            action: Tree with ``action_type``, (B,) int64, and ``action_args``, (B, A).
                Arguments that do not count may hold anything, NaN included.

        Returns:
            Log-densities, (B,). Minus infinity for a type that was taken away.

        Raises:
            TypeError: If ``action`` is of the wrong kind or the types are not int64.
            ValueError: If a key is missing, shapes differ or a type is out of range.
        """
        action_type, action_args = read_action(action, self.mu.shape)

        # The level of each sample's type, from the table.
        try:
            level = self.level.gather(1, action_type.unsqueeze(1)).squeeze(1)
        except RuntimeError as error:
            raise ValueError(
                f"action.action_type must lie in 0..{len(self.mask) - 1}, "
                f"got {action_type.min().item()}..{action_type.max().item()}"
            ) from error

        # {eq}`hybrid-log-prob` in the form {eq}`hybrid-short`. An argument that does not
        # count is replaced by its mean *before* anything is computed. Its $z$ is then 0,
        # in the formula and in the gradient, whatever it held.
        used = self.mask.index_select(0, action_type)
        z = (torch.where(used, action_args, self.mu) - self.mu) / self.sigma
        spread = torch.addcmul(used.to(z.dtype), z, z, value=-1).sum(-1)
        return torch.add(level, spread, alpha=0.5)

    def entropy(self) -> Tensor:
        """Compute the entropy of the whole action, (B,), in nats.

        An argument counts as often as its types are chosen.
        """
        # {eq}`hybrid-entropy` in the form {eq}`hybrid-short`. For a type that was taken
        # away $p_k$ is 0 and $L_k$ is minus infinity; the product has to be 0.
        return -(self.prob * self.level.clamp(min=LOG_OF_NOTHING)).sum(-1)

    def kl(self, other: HybridDistribution) -> Tensor:
        """Compute the divergence from this distribution to another one.

        Args:
            other: A distribution with the same shapes and the same mask.

        Returns:
            Divergences, (B,), in nats. Infinite where the other one has taken away a
            type that this one may choose.

        Raises:
            ValueError: If the shapes or the masks differ.
        """
        check_shape("other.prob", other.prob, self.prob.shape)
        check_shape("other.mu", other.mu, self.mu.shape)
        if not torch.equal(self.mask, other.mask):
            raise ValueError(
                f"other.mask must equal this mask {self.mask.tolist()}, "
                f"got {other.mask.tolist()}"
            )

        # How often each argument counts, (B, A). Where it never does, its terms are
        # replaced by harmless ones before they are squared.
        often = self.prob @ self.mask.to(self.prob.dtype)
        scale = torch.where(often > 0, self.sigma / other.sigma, 1.0)
        shift = torch.where(often > 0, (self.mu - other.mu) / other.sigma, 0.0)

        # The two sums of {eq}`hybrid-kl`: over the types, and over the arguments.
        args_kl = 0.5 * (scale.square() + shift.square() - 1.0) - scale.log()
        difference = self.type_log_prob - other.type_log_prob
        type_kl = self.prob * torch.where(self.prob > 0, difference, 0.0)
        return type_kl.sum(-1) + (often * args_kl).sum(-1)


def read_action(action: Any, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Take types (B,) and arguments of a shape (B, A) out of a tree; check them."""
    try:
        action_type, action_args = action["action_type"], action["action_args"]
    except KeyError as error:
        raise ValueError(f"action must have the key {error}") from error
    except (TypeError, IndexError) as error:
        raise TypeError(
            "action must be a tree with 'action_type' and 'action_args', "
            f"got {type(action).__name__}"
        ) from error
    check_shape("action.action_type", action_type, shape[:1])
    check_shape("action.action_args", action_args, shape)
    if action_type.dtype != torch.int64:
        raise TypeError(f"action.action_type must be int64, got {action_type.dtype}")
    if not action_args.is_floating_point():
        raise TypeError(
            f"action.action_args must be floating point, got {action_args.dtype}"
        )
    return action_type, action_args
