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
# compute its log-probability, entropy and divergence without a NaN, connect it to any
# Gymnasium environment whose actions have this form, and train it with PPO.

# %% tags=["export", "hide-input"]
"""Hybrid actions: a type and its arguments, as one distribution, in an environment."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from literate_rl.policy_gradient import check_finite, check_shape
from literate_rl.ppo import ActorCritic, Policy, RunningMoments, mlp
from literate_rl.ppo_error import (
    policy_error_from_log_prob,
    ppo_info,
    ppo_policy_data,
    ppo_policy_loss,
)
from literate_rl.workshop.nests import (
    as_space,
    boxes_by_type,
    fill,
    first_row,
    leaves,
    plain_space,
)

# The trees come from the package DI-treetensor. On import it calls a function that
# torch has renamed, and torch warns about that. The warning is not for our reader.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    import treetensor.torch as ttorch

__all__ = [
    "HybridActions",
    "HybridDistribution",
    "HybridLander",
    "HybridPolicyNetwork",
    "Moving",
    "make_hybrid_policy",
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
# are full of them: in StarCraft II or Honor of Kings one picks a skill, then a
# direction and a distance for it.
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
# The network has three parts. An *encoder* turns the state $s$ into a vector $y$ of 32
# features,
#
# $$
# y = \max\bigl(W_2 \max(W_1 s + b_1,\, 0) + b_2,\; 0\bigr) .
# $$ (hybrid-encoder)
#
# For a state that is a vector, two layers with rectifiers will do. For images one would
# put a convolutional network in this place; nothing else would change. Two *heads* read
# the features. One gives the logits $z$ of the types, the other the means of the
# arguments. The deviations do not depend on the state at all: they are parameters
# $\omega \in \mathbb R^A$ of their own, and the exponential keeps them positive,
#
# $$
# z = W_z\, y + b_z, \quad \mu = W_\mu\, y + b_\mu, \quad \sigma = e^{\omega} .
# $$ (hybrid-heads)


# %% tags=["export"]
class HybridPolicyNetwork(nn.Module):
    """A policy network for hybrid actions: an encoder and two heads.

    Args:
        obs_shape: Length of a state vector, at least 1.
        action_shape: ``{"action_type_shape": K, "action_args_shape": A}``, the number
            of action types and of arguments, each at least 1.

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
        # arguments, and $\omega$ as a bare parameter. Starting at 0 it makes each
        # deviation equal to 1.
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
            action_space: Space of one action; see ``HybridActions.from_space``.
            mask: As in ``HybridActions.from_space``, and needed where it is needed
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
        spec = HybridActions.from_space(action_space, mask)
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

        # $\omega$ has the shape $(1, A)$. Adding zeros of the shape of $\mu$ repeats it
        # for each state of the batch. `zeros_like` passes no gradient on, so nothing
        # flows into $\mu$ along this way. $\omega$ itself gets its gradient, summed
        # over the batch.
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
    left, right = 0.05 + 0.026 * len(start), 0.05 + 0.026 * len(end)
    right = 0.15 if end in outputs else right
    tip = {"arrowstyle": "->", "color": "C0", "shrinkA": 2, "shrinkB": 2}
    axis.annotate("", (x1 - right, y1), (x0 + left, y0), arrowprops=tip)
axis.set(xlim=(-0.3, 4.2), ylim=(-0.4, 2.4))
axis.axis("off")
fig.tight_layout()

# %% [markdown]
# **What to notice.** Three arrows end at the three outputs, and nothing but
# `action_args_log_sigma` reaches $\sigma$. Exercise 1 asks for the size of that
# gradient.
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
# and the type follows the *categorical* distribution, whose probability mass function
# is simply $f(k) = p_k$. Each argument follows a *normal* distribution,
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
# all this in four lines. This is the plain form. `Independent(..., 1)` takes the last
# dimension of a batch of normal distributions for one event: out of $A$ distributions
# of numbers it makes one of vectors. Without it a log-probability would have the shape
# $(B, A)$ instead of $(B,)$.


# %%
from torch.distributions import Categorical, Independent, Normal


def plain_sample(logit):
    prob = torch.softmax(logit.action_type, dim=-1)
    type_dist = Categorical(probs=prob)
    args_dist = Independent(Normal(logit.action_args.mu, logit.action_args.sigma), 1)
    return ttorch.as_tensor(
        {"action_type": type_dist.sample(), "action_args": args_dist.sample()}
    )


sample = plain_sample(logit)
print("types     ", sample.action_type.tolist())
print("arguments ", [[round(u, 2) for u in row] for row in sample.action_args.tolist()])

# %% [markdown]
# `sample_hybrid_action` below does the same with the formulas themselves. It gains two
# things. It takes a random generator of your own, which `torch.distributions` does not.
# And it looks at its input once, where `torch.distributions` checks each tensor at each
# call.
#
# Drawing the type uses a race. Give each type a track of random length $\tau_k$, from the
# exponential distribution with mean 1, and let it run at the speed $p_k$: it arrives after
# $\tau_k / p_k$. The first to arrive is type $k$ with probability exactly $p_k$, because
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
        ValueError: If a key is missing, shapes differ, a number is NaN or a deviation
            is not positive.

    Source:
        PPOxFamily, chapter 2, ``hybrid_tutorial.py``.
    """
    type_logit, mu, sigma = read_logit(logit, "logit")
    # The probabilities by the softmax {eq}`hybrid-softmax`.
    prob = torch.softmax(type_logit, dim=-1)
    total = prob.sum() + mu.sum() + sigma.log().sum()
    check_policy(total.item(), "logit", type_logit, mu, sigma)
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
    type_logit = branch(logit, "action_type", name)
    arguments = branch(logit, "action_args", name)
    mu = branch(arguments, "mu", f"{name}.action_args")
    sigma = branch(arguments, "sigma", f"{name}.action_args")
    check_matrix(f"{name}.action_type", type_logit, "(B, K)")
    check_matrix(f"{name}.action_args.mu", mu, "(B, A)")
    check_shape(f"{name}.action_args.mu", mu, (len(type_logit), mu.shape[1]))
    check_shape(f"{name}.action_args.sigma", sigma, mu.shape)
    return type_logit, mu, sigma


def branch(tree: Any, key: str, name: str) -> Any:
    """Take a branch out of a tree tensor or a dictionary; raise if there is none."""
    if isinstance(tree, Tensor) or not hasattr(tree, "keys"):
        raise TypeError(
            f"{name} must be a tree with the key {key!r}, got {type(tree).__name__}"
        )
    if key not in tree:
        raise ValueError(f"{name} must have the key {key!r}, got {list(tree.keys())}")
    return tree[key]


def check_matrix(name: str, value: Any, shape: str) -> None:
    """Raise if a value is no floating-point tensor with two dimensions."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if value.dim() != 2:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(value.shape)}")
    if not value.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {value.dtype}")


def check_policy(
    total: float, name: str, type_logit: Tensor, mu: Tensor, sigma: Tensor
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
        ("action_args.sigma", sigma, (sigma > 0) & sigma.isfinite(), "positive"),
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
def make_logit(type_logit, mu, sigma, batch=1):
    """Build the tree that describes one state, repeated for a batch."""
    rows = [torch.tensor([row]).repeat(batch, 1) for row in (type_logit, mu, sigma)]
    args = {"mu": rows[1], "sigma": rows[2]}
    return ttorch.as_tensor({"action_type": rows[0], "action_args": args})


torch.manual_seed(0)
one_state = make_logit([0.0, 1.0, -1.0], [0.5, -1.0], [1.0, 0.2], batch=100_000)
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
# All $A$ arguments are sampled, but the type uses only some of them. The **mask** $m$
# is a table of zeros and ones with a row for each type and a column for each argument:
# $m_{k,j} = 1$ if type $k$ uses argument $j$. For the three types above,
#
# $$
# m = \begin{pmatrix} 1 & 0 \\ 0 & 1 \\ 0 & 0 \end{pmatrix} .
# $$
#
# A row may hold no 1, a single 1 or several. Looking up the row of
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
    table = torch.as_tensor(mask, device=device)
    if table.shape != shape:
        raise ValueError(
            "mask must have one row for each action type and one column for each "
            f"argument, shape {shape}, got {tuple(table.shape)}"
        )
    if table.dtype == torch.bool:
        return table
    if not ((table == 0) | (table == 1)).all():
        raise ValueError(f"mask must hold zeros and ones, got {table.tolist()}")
    return table.bool()


# %% [markdown]
# The tree can be sliced as a whole, with all that hangs on it.

# %%
mask = torch.tensor([[1, 0], [0, 1], [0, 0]], dtype=torch.bool)
torch.manual_seed(1)
action = sample_hybrid_action(network(torch.rand(6, 10)))
action.action_args = mask_args(action.action_args, mask[action.action_type])
for name, tree in (("all six", action), ("action[1:3]", action[1:3])):
    print(name)
    for kind, args in zip(tree.action_type, tree.action_args, strict=True):
        print(f"    type {kind}, arguments", [round(u, 2) for u in args.tolist()])

# %% [markdown]
# ## One distribution
#
# PPO needs the probability of *the action*, not of its parts. The environment sees the
# type and the arguments that count, so these make up the action. Their joint density is
# the probability of the type times the densities {eq}`hybrid-gaussian` of its
# arguments, and its logarithm is a sum,
#
# $$
# \log \pi(k, u \mid s) = \log p_k + \sum_{j=1}^{A} m_{k,j} \log f(u_j) .
# $$ (hybrid-log-prob)
#
# Here is the question that users ask most: *what is the log-probability of a type that
# has no argument?* The sum is empty, and the answer is $\log p_k$.
#
# The entropy is the expectation of $-\log \pi$. A normal distribution has the entropy
# $H_j = \log \sigma_j + \tfrac12 \log(2 \pi e)$. An argument contributes to the whole
# only as often as its types are chosen,
#
# $$
# H(\pi) = -\sum_{k} p_k \log p_k + \sum_{k} p_k \sum_j m_{k,j} H_j .
# $$ (hybrid-entropy)
#
# The probabilities in front of the second sum carry gradient too: a bonus on this
# entropy also asks for types that leave more freedom.
#
# Between two policies with the same mask, $\pi$ and $\pi'$, the Kullback–Leibler
# divergence has the same structure,
#
# $$
# \begin{aligned}
# \operatorname{KL}(\pi \,\|\, \pi') &= \sum_k p_k \Bigl( \log \frac{p_k}{p'_k}
#     + \sum_j m_{k,j} \operatorname{KL}_j \Bigr) , \\
# \operatorname{KL}_j &= \log \frac{\sigma'_j}{\sigma_j}
#     + \frac{\sigma_j^2 + (\mu_j - \mu'_j)^2}{2 \sigma_j'^2} - \frac12 .
# \end{aligned}
# $$ (hybrid-kl)
#
# ### The plain form
#
# With `torch.distributions` these are a few lines.


# %%
def plain_form(logit, mask, action=None):
    """Return an action (new if none is given), its log-probability, the entropy."""
    type_dist = Categorical(probs=torch.softmax(logit.action_type, dim=-1))
    args_dist = Normal(logit.action_args.mu, logit.action_args.sigma)
    if action is None:
        sample = {"action_type": type_dist.sample(), "action_args": args_dist.sample()}
        action = ttorch.as_tensor(sample)
    used = mask[action.action_type]
    log_density = args_dist.log_prob(action.action_args)
    log_prob = type_dist.log_prob(action.action_type)
    log_prob = log_prob + torch.where(used, log_density, 0.0).sum(-1)
    how_often = type_dist.probs @ mask.float()
    entropy = type_dist.entropy() + (how_often * args_dist.entropy()).sum(-1)
    return action, log_prob, entropy


# %% [markdown]
# ### The direct form
#
# Small batches are not slow because of the arithmetic. Each call into PyTorch has a
# price of a few microseconds, whatever the size, and the plain form makes almost
# seventy of them. So it pays to find a shorter way to write the same thing.
#
# Let $E_k$ be the expected log-density of an action of type $k$,
#
# $$
# E_k = \log p_k - \sum_j m_{k,j} H_j .
# $$ (hybrid-level)
#
# With $\zeta_j = (u_j - \mu_j) / \sigma_j$ the log of {eq}`hybrid-gaussian` is
# $-H_j + \tfrac12 (1 - \zeta_j^2)$. Put that into {eq}`hybrid-log-prob` and
# {eq}`hybrid-entropy`, and both become short:
#
# $$
# \begin{aligned}
# \log \pi(k, u \mid s) &= E_k + \frac12 \sum_j m_{k,j} \bigl(1 - \zeta_j^2\bigr), \\
# H(\pi) &= -\sum_k p_k E_k .
# \end{aligned}
# $$ (hybrid-short)
#
# The class computes the table of all $E_k$ once, and both quantities read it.
#
# Three kinds of numbers must do no harm. An argument that *does not count* may hold
# anything, even a NaN. A logit of minus infinity takes a type away. And a deviation may
# be tiny. It is not enough that the results come out right: $0 \cdot \infty$ can hide
# in the backward pass as well. The cure is to replace a dangerous number *before* it
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
        ValueError: If a key is missing, shapes differ, the mask holds anything else
            than zeros and ones, a number is NaN or infinite, or a deviation is not
            positive.
    """

    def __init__(
        self, logit: ttorch.Tensor, mask: ArrayLike | Tensor, name: str = "logit"
    ) -> None:
        type_logit, self.mu, self.sigma = read_logit(logit, name)
        shape = (type_logit.shape[1], self.mu.shape[1])
        self.mask = as_mask(mask, shape, type_logit.device)

        self.type_log_prob = log_softmax(type_logit)
        self.prob = self.type_log_prob.exp()

        # The table of $E_k$ {eq}`hybrid-level`. The matrix product adds up, for each
        # type, the entropies of its arguments.
        args_entropy = self.sigma.log() + UNIT_ENTROPY
        self.level = self.type_log_prob - args_entropy @ self.mask.to(self.mu.dtype).T

        # One sum, one look: it is not finite if any number is bad.
        total = self.prob.sum() + (self.mu + args_entropy).sum()
        check_policy(total.item(), name, type_logit, self.mu, self.sigma)

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
        action_type, action_args = read_action(action, self.mu.shape[1], len(self.mu))

        # The level of each sample's type, from the table.
        try:
            level = self.level.gather(1, action_type.unsqueeze(1)).squeeze(1)
        except RuntimeError as error:
            raise ValueError(
                f"action.action_type must lie in 0..{len(self.mask) - 1}, "
                f"got {action_type.min().item()}..{action_type.max().item()}"
            ) from error

        # The log-density {eq}`hybrid-log-prob`, in the form {eq}`hybrid-short`. An
        # argument that does not count is replaced by its mean *before* anything is
        # computed. Its $\zeta$ is then 0, in the formula and in the gradient, whatever
        # it held.
        used = self.mask.index_select(0, action_type)
        zeta = (torch.where(used, action_args, self.mu) - self.mu) / self.sigma
        spread = torch.addcmul(used.to(zeta.dtype), zeta, zeta, value=-1).sum(-1)
        return torch.add(level, spread, alpha=0.5)

    def entropy(self) -> Tensor:
        """Compute the entropy of the whole action, (B,), in nats.

        An argument counts as often as its types are chosen.
        """
        # The entropy {eq}`hybrid-entropy`, in the form {eq}`hybrid-short`. For a type
        # that was taken away $p_k$ is 0 and $E_k$ is minus infinity; the product has to
        # be 0.
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

        # How often each argument counts, (B, A). Where it never does, a deviation of
        # 1 stands in for its own, which may be too small to divide by.
        often = self.prob @ self.mask.to(self.prob.dtype)
        sigma = torch.where(often > 0, self.sigma, 1.0)
        other_sigma = torch.where(often > 0, other.sigma, 1.0)
        shift = self.mu - other.mu

        # The two sums of {eq}`hybrid-kl`: over the arguments, and over the types.
        square = (sigma / other_sigma).square() + (shift / other_sigma).square()
        args_kl = (other_sigma / sigma).log() + 0.5 * (square - 1.0)
        difference = self.type_log_prob - other.type_log_prob
        type_kl = self.prob * torch.where(self.prob > 0, difference, 0.0)
        return type_kl.sum(-1) + (often * args_kl).sum(-1)


def log_softmax(logit: Tensor) -> Tensor:
    """Compute the logarithm of the softmax of each row, (B, K)."""
    # PyTorch's own function is one call, and it is the quickest for few rows. For many
    # short rows it is slow on a CPU, and the logarithm of {eq}`hybrid-softmax` written
    # out takes half the time. Subtracting the largest logit keeps `exp` from
    # overflowing; `detach`, because the result does not depend on it.
    if len(logit) < 1024:
        return torch.log_softmax(logit, -1)
    shifted = logit - logit.detach().amax(-1, keepdim=True)
    return shifted - shifted.exp().sum(-1, keepdim=True).log()


def read_action(
    action: Any, num_args: int, batch: int | None = None
) -> tuple[Tensor, Tensor]:
    """Take types (B,) and arguments (B, A) out of a tree; check them, B if given."""
    action_type = branch(action, "action_type", "action")
    action_args = branch(action, "action_args", "action")
    check_matrix("action.action_args", action_args, "(B, A)")
    batch = len(action_args) if batch is None else batch
    check_shape("action.action_args", action_args, (batch, num_args))
    check_shape("action.action_type", action_type, (batch,))
    if action_type.dtype != torch.int64:
        raise TypeError(f"action.action_type must be int64, got {action_type.dtype}")
    return action_type, action_args


# %% [markdown]
# Both forms give the same numbers. The last two lines count the operations that PyTorch
# has to dispatch for a sample, its log-probability and the entropy.

# %%
from torch.utils._python_dispatch import TorchDispatchMode


class Count(TorchDispatchMode):
    """Count the operations that PyTorch dispatches."""

    def __init__(self):
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.number += 1
        return function(*args, **(kwargs or {}))


def direct_form(logit, mask, action=None):
    policy = HybridDistribution(logit, mask)
    action = policy.sample() if action is None else action
    return action, policy.log_prob(action), policy.entropy()


with torch.no_grad():
    logit = network(torch.rand(256, 10))
    action, *plain = plain_form(logit, mask)
    _, *direct = direct_form(logit, mask, action)
    for name, one, other in zip(
        ("log-probability", "entropy"), plain, direct, strict=True
    ):
        difference = (one - other).abs().max().item()
        print(f"{name:16s} differs by less than 1e-5: {difference < 1e-5}")
    for form in (plain_form, direct_form):
        with Count() as count:
            form(logit, mask)
        print(f"{form.__name__:16s} {count.number} operations")

# %% [markdown]
# The class checks less than `torch.distributions` does, and on purpose. It looks once
# at one sum instead of at each tensor. When the sum is bad, it searches for the
# culprit:

# %%
broken = make_logit([0.0, 0.0, 0.0], [0.0, 0.0], [1.0, 1.0], batch=2)
broken.action_args.mu[1, 0] = torch.nan
try:
    HybridDistribution(broken, mask)
except ValueError as error:
    print("ValueError:", error)

# %% [markdown]
# ## The PPO error of hybrid actions
#
# With a log-probability and an entropy of the *whole* action, the PPO error needs
# nothing new. There is one ratio for the action,
#
# $$
# \rho(\theta) = \exp\bigl(\log \pi_\theta(k, u \mid s)
#     - \log \pi_{\text{old}}(k, u \mid s)\bigr) ,
# $$ (hybrid-ratio)
#
# and one clip. Old and new log-probability use the same type and the same mask, and
# that is all one can get wrong here.
#
# The paper that introduced hybrid PPO, called H-PPO {cite:p}`fan2019`, does it
# differently. It has a ratio $\rho^{\text{type}} = p_k / p_k^{\text{old}}$ for the type
# and a ratio $\rho^{\text{args}}$ for the arguments, clips each of them, and adds up:
#
# $$
# L(\rho^{\text{type}}, \hat A)
#     + \mathbb 1\Bigl[\textstyle\sum_j m_{k,j} > 0\Bigr]\, L(\rho^{\text{args}}, \hat A) ,
# $$ (hybrid-per-head)
#
# with the clipped surrogate $L$ of {doc}`/chapters/ppo_error`. The indicator in
# front of the second term matters. A sample whose type has no argument has
# $\rho^{\text{args}} = 1$ for ever, so its term would add a constant to the loss and to
# what one logs.
#
# The product of the two ratios is {eq}`hybrid-ratio`. Before the first update all three
# are 1, and there the two errors have the same gradient: $\nabla \rho$ is
# $\nabla \rho^{\text{type}} + \nabla \rho^{\text{args}}$. Further away they differ in
# what they clip.


# %% tags=["export"]
def ppo_policy_error_hybrid(
    data: ppo_policy_data,
    mask: ArrayLike | Tensor,
    clip_ratio: float = 0.2,
    dual_clip: float | None = None,
) -> tuple[ppo_policy_loss, ppo_info]:
    """Compute the PPO policy error of hybrid actions, with one ratio for the action.

    Args:
        data: ``logit_new`` and ``logit_old``, trees as ``HybridPolicyNetwork`` returns
            them; ``action``, a tree with ``action_type`` (B,) int64 and ``action_args``
            (B, A); advantages (B,); weights (B,) or None.
        mask: Which type (row) uses which argument (column), (K, A), zeros and ones.
        clip_ratio: Half width of the clip range, greater than 0.
        dual_clip: Bound of the dual clip, greater than 1, or None for no bound.

    Returns:
        ``ppo_policy_loss`` (0-dimensional tensors) and ``ppo_info`` (floats).

    Raises:
        TypeError: If a field is of the wrong kind.
        ValueError: If a key is missing, shapes differ, a type is out of range, a clip
            constant is out of its range or a number is not finite. The message names
            the field.
    """
    new, old = new_and_old(data, mask)
    # The exponent of {eq}`hybrid-ratio`; the clipped surrogate takes it from here.
    loss, info = policy_error_from_log_prob(
        new.log_prob(data.action),
        old.log_prob(data.action),
        new.entropy(),
        data.adv,
        data.weight,
        clip_ratio,
        dual_clip,
    )
    check_error(loss, info, data, new)
    return loss, info


def ppo_policy_error_hybrid_per_head(
    data: ppo_policy_data,
    mask: ArrayLike | Tensor,
    clip_ratio: float = 0.2,
    dual_clip: float | None = None,
) -> tuple[ppo_policy_loss, ppo_info]:
    """Compute the PPO policy error of hybrid actions, with a ratio for each head.

    Args:
        data: As in ``ppo_policy_error_hybrid``.
        mask: As in ``ppo_policy_error_hybrid``.
        clip_ratio: Half width of the clip range of both ratios, greater than 0.
        dual_clip: Bound of the dual clip, greater than 1, or None for no bound.

    Returns:
        ``ppo_policy_loss`` (0-dimensional tensors) and ``ppo_info`` (floats). The
        divergence is that of the whole action, ``clipfrac`` the larger of both heads'.

    Raises:
        TypeError: As ``ppo_policy_error_hybrid``.
        ValueError: As ``ppo_policy_error_hybrid``.

    Source:
        Fan et al. 2019 (H-PPO).
    """
    new, old = new_and_old(data, mask)
    type_new, args_new = log_prob_of_heads(new, data.action)
    type_old, args_old = log_prob_of_heads(old, data.action)

    # The first term of {eq}`hybrid-per-head`, and the entropy of the whole.
    type_loss, type_info = policy_error_from_log_prob(
        type_new, type_old, new.entropy(), data.adv, data.weight, clip_ratio, dual_clip
    )

    # The second term. The indicator is a weight, 0 where the type has no argument.
    has_args = new.mask.any(-1)[data.action["action_type"]].to(args_new.dtype)
    args_loss, args_info = policy_error_from_log_prob(
        args_new,
        args_old,
        torch.zeros_like(args_new),
        data.adv,
        has_args if data.weight is None else has_args * data.weight,
        clip_ratio,
        dual_clip,
    )
    loss = ppo_policy_loss(
        type_loss.policy_loss + args_loss.policy_loss, type_loss.entropy_loss
    )
    info = ppo_info(
        type_info.approx_kl + args_info.approx_kl,
        max(type_info.clipfrac, args_info.clipfrac),
    )
    check_error(loss, info, data, new)
    return loss, info


def new_and_old(
    data: ppo_policy_data, mask: ArrayLike | Tensor
) -> tuple[HybridDistribution, HybridDistribution]:
    """Build both policies of a batch, the old one without gradient."""
    new = HybridDistribution(data.logit_new, mask, "logit_new")
    type_old, mu_old, _ = read_logit(data.logit_old, "logit_old")
    check_shape("logit_old.action_type", type_old, new.prob.shape)
    check_shape("logit_old.action_args.mu", mu_old, new.mu.shape)
    with torch.no_grad():
        old = HybridDistribution(data.logit_old, new.mask, "logit_old")
    return new, old


def log_prob_of_heads(
    policy: HybridDistribution, action: ttorch.Tensor
) -> tuple[Tensor, Tensor]:
    """Split the log-probability of an action into those of type and arguments, (B,)."""
    joint = policy.log_prob(action)
    column = action["action_type"].unsqueeze(1)
    of_type = policy.type_log_prob.gather(1, column).squeeze(1)
    return of_type, joint - of_type


def check_error(
    loss: ppo_policy_loss,
    info: ppo_info,
    data: ppo_policy_data,
    policy: HybridDistribution,
) -> None:
    """Raise if an error is not finite, and name the field that is to blame."""
    # An argument that does not count may be a NaN, so it must not be blamed.
    data_mask = policy.mask[data.action["action_type"]]
    check_finite(
        (*(part.item() for part in loss), *info),
        action_args=mask_args(data.action["action_args"], data_mask),
        adv=data.adv,
        weight=data.weight,
    )


# %% [markdown]
# Here are the two errors for the same batch, once with the new policy equal to the old
# one and once after it has moved. The cosine compares the directions of their gradients
# with respect to all parameters of the network.

# %%
torch.manual_seed(2)
state = torch.rand(512, 10)
with torch.no_grad():
    old = network(state)
    action = HybridDistribution(old, mask).sample()
adv = torch.randn(512)


def gradient(error, network):
    data = ppo_policy_data(network(state), old, action, adv, None)
    loss, _ = error(data, mask)
    grads = torch.autograd.grad(loss.policy_loss, list(network.parameters()))
    return loss.policy_loss.item(), torch.cat([grad.flatten() for grad in grads])


moved = HybridPolicyNetwork(10, {"action_type_shape": 3, "action_args_shape": 2})
moved.load_state_dict(network.state_dict())
with torch.no_grad():
    for parameter in moved.parameters():
        parameter += 0.1 * torch.randn_like(parameter)

print("policy        loss: one ratio  per head   norm: one ratio  per head   cosine")
for name, policy in (("unchanged", network), ("moved", moved)):
    loss_1, grad_1 = gradient(ppo_policy_error_hybrid, policy)
    loss_2, grad_2 = gradient(ppo_policy_error_hybrid_per_head, policy)
    cosine = torch.cosine_similarity(grad_1, grad_2, dim=0).item()
    row = f"{name:12s}{loss_1:17.4f}{loss_2:10.4f}{grad_1.norm():18.4f}"
    print(row + f"{grad_2.norm():10.4f}{cosine:9.4f}")

# %% [markdown]
# **What to notice.** At the start the losses differ and the gradients do not, down to
# the last digit. Later they differ. Take $\rho^{\text{type}} = 1.3$ and
# $\rho^{\text{args}} = 0.75$: the action as a whole has hardly changed, $\rho = 0.975$,
# and one ratio clips nothing. Two ratios clip the type if the action was good, and the
# arguments if it was bad.
#
# ## What the mask is good for
#
# What if one left the mask out and summed over all $A$ arguments? Many implementations
# do. At $\rho = 1$ the gradient stays unbiased, since on average the noise of arguments
# that nobody used is unrelated to the advantage. But the noise enters the ratio, and the
# ratio trips the clip.
#
# The size can be computed. Let each mean move by $d$ deviations between two updates. The
# ratio of one argument is then $e^{d \zeta - d^2 / 2}$, with a standard normal $\zeta$.
# The mean of $e^{2 d \zeta}$ is $e^{2 d^2}$, so one argument multiplies the mean square of
# the ratio by $e^{d^2}$. The variance of the ratio grows with the number of arguments
# like $e^{A d^2} - 1$.
#
# The figure has 20,000 actions of the three types above, $d = 0.3$, logits moved as
# well, and more and more arguments that no type uses.

# %% mystnb={"image": {"alt": "Left: histograms of the ratio; with the mask it is narrow around one, without it and with sixteen unused arguments it is broad. Right: spread of the ratio and clip fraction against the number of unused arguments; both grow without the mask and stay constant with it"}}
num_samples, shift = 20_000, 0.3


def ratios(num_unused, masked):
    """Sample actions of an old policy; return the ratios of a policy that moved."""
    generator = torch.Generator().manual_seed(0)
    table = torch.cat([mask, torch.zeros(3, num_unused, dtype=torch.bool)], dim=1)
    if not masked:
        table = torch.ones_like(table)
    num_args = 2 + num_unused
    sides = torch.randint(0, 2, (num_samples, num_args), generator=generator) * 2 - 1
    zeros, ones = torch.zeros(num_samples, num_args), torch.ones(num_samples, num_args)
    logits = torch.zeros(num_samples, 3)
    new_logits = 0.1 * torch.randn(num_samples, 3, generator=generator)
    old_logit = {"action_type": logits, "action_args": {"mu": zeros, "sigma": ones}}
    new_args = {"mu": shift * sides, "sigma": ones}
    new_logit = {"action_type": new_logits, "action_args": new_args}
    old = HybridDistribution(old_logit, table)
    action = old.sample(generator)
    new = HybridDistribution(new_logit, table)
    return (new.log_prob(action) - old.log_prob(action)).exp()


fig, axes = plt.subplots(1, 2, figsize=(7, 3.2))
for label, num_unused, masked in (
    ("masked", 16, True),
    ("not masked, 0 unused", 0, False),
    ("not masked, 16 unused", 16, False),
):
    values = ratios(num_unused, masked).clamp(max=3.0).numpy()
    axes[0].hist(values, bins=90, range=(0, 3), histtype="step", label=label)
axes[0].set(xlabel=r"ratio $\rho$", ylabel="actions", xlim=(0, 2.95), ylim=(0, 2700))
axes[0].legend(fontsize=8)

unused = [0, 1, 2, 4, 8, 16]
print("                 masked                not masked")
print("unused   deviation  clip fraction   deviation  clip fraction")
found = {True: [], False: []}
for num_unused in unused:
    row = f"{num_unused:6d}"
    for masked in (True, False):
        values = ratios(num_unused, masked)
        clipped = ((values - 1).abs() > 0.2).float().mean().item()
        found[masked].append((values.std().item(), clipped))
        row += f"{found[masked][-1][0]:12.2f}{clipped:15.2f}"
    print(row)
for masked, colour in ((True, "C0"), (False, "C2")):
    name = "masked" if masked else "not masked"
    deviations, clipped = zip(*found[masked], strict=True)
    axes[1].plot(unused, deviations, "o-", color=colour, label=f"deviation, {name}")
    axes[1].plot(unused, clipped, "s--", color=colour, label=f"clipped, {name}")
computed = [math.sqrt(math.expm1((2 + n) * shift**2)) for n in unused]
axes[1].plot(unused, computed, ":", color="C3", label="deviation, computed")
axes[1].set(xlabel="arguments that no type uses", ylim=(0, 2.6))
axes[1].legend(fontsize=8, loc="upper left")
fig.tight_layout()

# %% [markdown]
# **What to notice.** With the mask nothing changes, however many arguments lie idle.
# Without it 64 % of the samples leave the clip range, not 35 %, although every argument is
# used by some type. The reason is that each sample counts one or two arguments that its
# own type ignores. With sixteen more it is 89 %. The dotted line is the formula, which
# leaves the moved logits out.
#
# So the mask is correct always. How much of this one sees in the return depends on the
# settings and on how many arguments lie idle. [Below](#three-losses) we measure it, with
# seeds and intervals.
#
# ## From a Gymnasium space to a policy and back
#
# In Gymnasium a hybrid action is a nest of spaces, and one form of it tells the mask:
# `Tuple(Discrete(K), Tuple(K boxes))`, one box of arguments for each type. A type
# without arguments has an empty box, of shape `(0,)`. Any other nest with one
# `Discrete` and some boxes, such as `Tuple(Discrete(3), Box(2))`, leaves open which
# type uses what, and we have to be told.
#
# The policy's arguments are normal: no bounds, and a spread of 1 at the start. The
# boxes of an environment are anything, from 0 to 720 say. So arguments live in
# $[-1, 1]$ on the policy's side, and only at the door of the environment they are moved
# to the box $[l_j, h_j]$ and clipped,
#
# $$
# \tilde u_j = \operatorname{clip}\Bigl(
#     \frac{l_j + h_j}{2} + \frac{h_j - l_j}{2}\, u_j,\; l_j,\, h_j \Bigr) ,
# $$ (hybrid-rescale)
#
# where an argument with an infinite bound is not moved. The log-probability is always
# that of $u$, the sample before the clip. That is what the policy did; the clip belongs
# to the environment. Storing $\tilde u$ instead and evaluating *its* density would
# compute a ratio for an action that was never drawn.


# %% tags=["export"]
@dataclass(frozen=True, eq=False)
class HybridActions:
    """What a hybrid action space is to a policy: sizes, a mask and a way back.

    Attributes:
        space: Space of one action.
        mask: Which type (row) uses which argument (column), (K, A) bool.
        low: Lower bounds of the arguments in the environment, (A,).
        high: Upper bounds, (A,).
    """

    space: spaces.Space[Any]
    mask: Tensor
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def from_space(
        cls, space: spaces.Space[Any], mask: ArrayLike | Tensor | None = None
    ) -> HybridActions:
        """Read a Gymnasium space.

        Args:
            space: A nest of Tuple and Dict spaces with exactly one Discrete and with
                Boxes of floating-point numbers. The order of the arguments is the order
                of the boxes, each flattened.
            mask: Which type uses which argument, (K, A), zeros and ones. May be left
                out for ``Tuple(Discrete(K), Tuple(K boxes))``, whose k-th box holds the
                arguments of type k, none if it is empty.

        Returns:
            The specification.

        Raises:
            TypeError: If the nest holds another kind of space.
            ValueError: If it does not hold exactly one Discrete, or no argument at all,
                or if the mask is missing or has another form.
        """
        nodes = list(leaves(space))
        boxes = [node for node in nodes if isinstance(node, spaces.Box)]
        types = [node for node in nodes if isinstance(node, spaces.Discrete)]
        for node in nodes:
            real = isinstance(node, spaces.Box) and np.issubdtype(
                node.dtype, np.floating
            )
            if not real and not isinstance(node, spaces.Discrete):
                raise TypeError(
                    "space must hold one Discrete and Boxes of floating-point numbers, "
                    f"got {node}"
                )
        sizes = [math.prod(box.shape) for box in boxes]
        if len(types) != 1 or sum(sizes) == 0:
            raise ValueError(
                "space must hold exactly one Discrete and at least one argument in a "
                f"Box, got {space}"
            )
        num_types = int(types[0].n)

        # One box for each type: the mask has a block of ones in each row.
        if mask is None:
            if not boxes_by_type(space, num_types):
                raise ValueError(
                    "mask must be given: only Tuple(Discrete(K), Tuple(K boxes)) tells "
                    f"which type uses which argument, got {space}"
                )
            mask = np.repeat(np.eye(num_types, dtype=bool), sizes, axis=1)
        return cls(
            space,
            as_mask(mask, (num_types, sum(sizes)), torch.device("cpu")),
            np.concatenate([box.low.ravel() for box in boxes]).astype(np.float64),
            np.concatenate([box.high.ravel() for box in boxes]).astype(np.float64),
        )

    @property
    def action_shape(self) -> dict[str, int]:
        """The sizes, as ``HybridPolicyNetwork`` takes them."""
        num_types, num_args = self.mask.shape
        return {"action_type_shape": num_types, "action_args_shape": num_args}

    @cached_property
    def centre_and_half_width(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Centre and half width of each argument's interval, 0 and 1 if unbounded."""
        bounded = np.isfinite(self.low) & np.isfinite(self.high)
        low = np.where(bounded, self.low, -1.0)
        high = np.where(bounded, self.high, 1.0)
        return (low + high) / 2, (high - low) / 2

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, (T, B, K + A), on the CPU."""
        # The race again, in the form that adds: $-\log \tau_k$ is added to the logit,
        # and the largest sum wins. The arguments get standard normal noise.
        num_types, num_args = self.mask.shape
        types = torch.empty(num_steps, num_envs, num_types)
        types.exponential_(generator=generator).log_().neg_()
        args = torch.randn(num_steps, num_envs, num_args, generator=generator)
        return torch.cat([types, args], -1)

    def choose(self, row: Tensor, noise: Tensor | float) -> Tensor:
        """Return the actions (B, 1 + A) that a noise makes of rows (B, K + 2 A)."""
        # Logits are moved by their noise as it is, means by $\sigma$ times theirs.
        num_types, num_args = self.mask.shape
        centre, sigma = row.split([num_types + num_args, num_args], -1)
        scale = nn.functional.pad(sigma, (num_types, 0), value=1.0)
        moved = centre + scale * noise
        scores, args = moved.split([num_types, num_args], -1)
        action_type = scores.argmax(-1, keepdim=True)
        return torch.cat([action_type.to(args.dtype), args], -1)

    def log_prob(self, row: Tensor, action: Tensor) -> Tensor:
        """Return the log-densities ``(*)`` of actions ``(*, 1 + A)``."""
        log_prob = self.distribution(row).log_prob(self.action_of(action))
        return log_prob.view(row.shape[:-1])

    def entropy(self, row: Tensor) -> Tensor:
        """Return the entropies ``(*)`` of rows, in nats."""
        return self.distribution(row).entropy().view(row.shape[:-1])

    def evaluate(self, row: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-densities and entropies, each ``(*)``, in one pass."""
        policy, shape = self.distribution(row), row.shape[:-1]
        log_prob = policy.log_prob(self.action_of(action))
        return log_prob.view(shape), policy.entropy().view(shape)

    def kl(self, row: Tensor, other: Tensor) -> Tensor:
        """Return the divergences ``(*)`` from rows to others, in nats."""
        divergence = self.distribution(row).kl(self.distribution(other))
        return divergence.view(row.shape[:-1])

    def distribution(self, row: Tensor) -> HybridDistribution:
        """Return what rows ``(*, K + 2 A)`` describe, all states in one batch."""
        return HybridDistribution(self.logit_of(row.flatten(0, -2)), self.mask)

    def logit_of(self, row: Tensor) -> dict[str, Any]:
        """Take rows (B, K + 2 A) apart into trees as the network returns them."""
        num_types, num_args = self.mask.shape
        action_type, mu, sigma = row.split([num_types, num_args, num_args], -1)
        return {"action_type": action_type, "action_args": {"mu": mu, "sigma": sigma}}

    def action_of(self, action: Tensor) -> dict[str, Tensor]:
        """Take actions ``(*, 1 + A)`` apart into a tree of types and arguments."""
        flat = action.flatten(0, -2)
        return {"action_type": flat[:, 0].long(), "action_args": flat[:, 1:]}

    def to_env(self, action: ttorch.Tensor | Tensor) -> Any:
        """Turn a batch of actions into what a vector environment's ``step`` takes.

        Args:
            action: Tree with ``action_type``, (B,) int64, and ``action_args``, (B, A),
                where [-1, 1] is the whole range of an argument; or rows (B, 1 + A).

        Returns:
            The nest of ``space`` with NumPy arrays of B rows in it.

        Raises:
            TypeError: If ``action`` is of the wrong kind.
            ValueError: If a key is missing, shapes differ, or a number is NaN.
        """
        if isinstance(action, Tensor):
            action = self.action_of(action)
        action_type, action_args = read_action(action, len(self.low))

        # To the box by {eq}`hybrid-rescale`, all arguments at once.
        centre, half_width = self.centre_and_half_width
        args = centre + half_width * action_args.detach().cpu().numpy()
        args = args.clip(self.low, self.high)
        if np.isnan(args).any():
            row, column = np.argwhere(np.isnan(args))[0].tolist()
            raise ValueError(
                f"action.action_args must not be NaN, got one at ({row}, {column})"
            )
        return fill(self.space, action_type.cpu().numpy(), iter(args.T))

    def to_single_env(self, action: ttorch.Tensor) -> Any:
        """Turn a batch of one action into what a single environment's ``step`` takes.

        Args:
            action: As in ``to_env``, with B = 1.

        Returns:
            An element of ``space``.

        Raises:
            TypeError: As ``to_env``.
            ValueError: As ``to_env``, or if B is not 1.
        """
        nest = self.to_env(action)
        batch = len(action if isinstance(action, Tensor) else action["action_type"])
        if batch != 1:
            raise ValueError(f"action must hold one action, got a batch of {batch}")
        return first_row(nest)


# %%
box = spaces.Box(0.0, 10.0, (1,))
empty = spaces.Box(0.0, 1.0, (0,))
space = spaces.Tuple((spaces.Discrete(3), spaces.Tuple((box, box, empty))))
spec = HybridActions.from_space(space)
print("mask          ", spec.mask.int().tolist())
print("action_shape  ", spec.action_shape)
action = ttorch.as_tensor(
    {
        "action_type": torch.tensor([0, 1, 2]),
        "action_args": torch.tensor([[0.5, 0.0], [0.0, -3.0], [9.0, 9.0]]),
    }
)
print("for the vector environment:\n", spec.to_env(action))
print("for a single environment:\n", spec.to_single_env(action[1:2]))
try:
    HybridActions.from_space(spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (2,)))))
except ValueError as error:
    print("ValueError:", error)

# %% [markdown]
# ## Two environments
#
# ### Moving
#
# An agent is a point in the square $[-1, 1]^2$. It has a position $q_t$, a heading
# $\varphi_t$ and a speed $v_t$, and it shall come to rest in a disc, the target. Each
# step it does one of three things,
#
# $$
# \begin{aligned}
# \text{accelerate, power } u_1 \in [0, 1]&: & v_{t+1} &= \min(v_t + 0.05\, u_1,\; 0.1), \\
# \text{turn, angle } u_2 \in [-1, 1]&: & \varphi_{t+1} &= \varphi_t + \tfrac{\pi}{2} u_2, \\
# \text{stop}&: & v_{t+1} &= 0,
# \end{aligned}
# $$ (hybrid-moving)
#
# and then it glides,
# $q_{t+1} = q_t + v_{t+1} (\cos \varphi_{t+1}, \sin \varphi_{t+1})$. Turning and
# gliding cost no speed; what is not mentioned stays as it was. With $D_t$ for the
# distance to the centre of the target the reward is
#
# $$
# r_t = D_t - D_{t+1} - 0.005 +
# \begin{cases}
#   1 & \text{stopped in the target: terminated} \\
#   -1 & \text{left the square: terminated} \\
#   0 & \text{otherwise.}
# \end{cases}
# $$ (hybrid-moving-reward)
#
# | constant | value | why |
# |---|---|---|
# | top speed | 0.1 a step | crossing the square takes 20 steps |
# | acceleration at full power | 0.05 | two steps to top speed, so power matters at the end |
# | largest turn | a quarter of a circle | turning round takes two steps, a correction one |
# | radius of the target | 0.1 | at top speed the agent is inside for two steps at most |
# | price of a step | 0.005 | small: a detour is cheap, idling to the limit costs 0.5 |
# | time limit | 100 steps | truncates, and is not part of the state |
#
# The differences of the distance add up to the distance at the start, 0.9 on average,
# so a good agent collects about 1.8 in an episode. The task needs both parts of the
# action: the type alone cannot aim, and the arguments alone cannot stop.
#
# ### HybridLander
#
# Gymnasium's LunarLander has three engines and two action spaces: four discrete
# actions, all at full power, or two continuous numbers that throttle everything at
# once. Neither says what a pilot would say: *this engine, this much*. Here it is:
#
# | type | meaning | argument |
# |---|---|---|
# | 0 | coast | none |
# | 1 | main engine | throttle, 0 to 1 |
# | 2 | left engine | throttle, 0 to 1 |
# | 3 | right engine | throttle, 0 to 1 |
#
# A throttle of 0 is half power, because LunarLander's engines do not burn below that; a
# throttle of 1 is full power. State, reward and the end of an episode are those of
# LunarLander.


# %% tags=["export"]
class Moving(gym.Env[NDArray[np.float32], tuple[Any, ...]]):
    """A point that accelerates, turns and stops, and shall come to rest in a target.

    Actions are ``Tuple(Discrete(3), Tuple(Box(1), Box(1), Box(0)))``: accelerate with a
    power in [0, 1], turn by an angle in [-1, 1] quarter circles, or stop. Observations
    hold nine numbers: position, speed, cosine and sine of the heading, the way to the
    target (two coordinates and its length), and 1 inside the target, 0 elsewhere.
    Registered as ``literate_rl/Moving-v0`` with a limit of 100 steps.

    Args:
        render_mode: ``"rgb_array"`` for pictures, or None.

    Raises:
        ValueError: If the render mode is another one, or ``step`` gets an action that
            is not in the space.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    max_speed = 0.1
    acceleration = 0.05
    max_turn = math.pi / 2
    target_radius = 0.1
    step_price = 0.005
    pixels = 160

    def __init__(self, render_mode: str | None = None) -> None:
        check_render_mode(render_mode)
        self.render_mode = render_mode
        power, angle = spaces.Box(0.0, 1.0, (1,)), spaces.Box(-1.0, 1.0, (1,))
        nothing = spaces.Box(0.0, 1.0, (0,))
        self.action_space = spaces.Tuple(
            (spaces.Discrete(3), spaces.Tuple((power, angle, nothing)))
        )
        # The last step may lead out of the square, by no more than the top speed.
        edge = 1.0 + self.max_speed
        far = 1.0 + edge
        high = [
            edge,
            edge,
            self.max_speed,
            1.0,
            1.0,
            far,
            far,
            math.hypot(far, far),
            1.0,
        ]
        low = [-edge, -edge, 0.0, -1.0, -1.0, -far, -far, 0.0, 0.0]
        self.observation_space = spaces.Box(
            np.array(low, np.float32), np.array(high, np.float32)
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Put the agent and the target at random places, well inside the square."""
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-0.9, 0.9, 2)
        self.target = self.np_random.uniform(-0.9, 0.9, 2)
        self.heading = self.np_random.uniform(-math.pi, math.pi)
        self.speed = 0.0
        return self.observe(), {}

    def step(
        self, action: tuple[Any, ...]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Accelerate, turn or stop, then glide for one step."""
        check_env_action(self.action_space, action)
        kind, (power, angle, _) = action
        before = self.distance()

        # The three types {eq}`hybrid-moving`. Only the type's own argument is read.
        if kind == 0:
            faster = self.speed + self.acceleration * float(power[0])
            self.speed = min(faster, self.max_speed)
        elif kind == 1:
            self.heading += self.max_turn * float(angle[0])
        else:
            self.speed = 0.0
        direction = np.array([math.cos(self.heading), math.sin(self.heading)])
        self.position = self.position + self.speed * direction

        # The reward {eq}`hybrid-moving-reward`.
        reward = before - self.distance() - self.step_price
        arrived = bool(kind == 2 and self.distance() < self.target_radius)
        outside = bool(np.abs(self.position).max() > 1.0)
        reward += float(arrived) - float(outside)
        return self.observe(), reward, arrived or outside, False, {}

    def distance(self) -> float:
        """Distance from the agent to the centre of the target."""
        return math.dist(self.position, self.target)

    def observe(self) -> NDArray[np.float32]:
        """What the agent sees, (9,)."""
        distance = self.distance()
        heading = (math.cos(self.heading), math.sin(self.heading))
        way = (*(self.target - self.position), distance)
        inside = float(distance < self.target_radius)
        return np.array(
            [*self.position, self.speed, *heading, *way, inside], np.float32
        )

    def render(self) -> NDArray[np.uint8] | None:
        """Draw the square: the target as a light disc, the agent with its nose."""
        if self.render_mode is None:
            return None
        axis = np.linspace(-1.0, 1.0, self.pixels)
        x, y = np.meshgrid(axis, -axis)
        picture = np.full((self.pixels, self.pixels, 3), 235, np.uint8)
        direction = np.array([math.cos(self.heading), math.sin(self.heading)])
        nose = self.position + 0.09 * direction
        for centre, radius, colour in (
            (self.target, self.target_radius, (120, 190, 120)),
            (self.position, 0.07, (40, 80, 160)),
            (nose, 0.03, (200, 60, 40)),
        ):
            disc = (x - centre[0]) ** 2 + (y - centre[1]) ** 2 < radius**2
            picture[disc] = colour
        return picture


class HybridLander(gym.Env[NDArray[np.float32], tuple[Any, ...]]):
    """Gymnasium's LunarLander with one engine at a time, and a throttle for each.

    Actions are ``Tuple(Discrete(4), Tuple(Box(0), Box(1), Box(1), Box(1)))``: coast, or
    burn the main, the left or the right engine with a throttle in [0, 1], from half to
    full power. Observations and rewards are those of ``LunarLander-v3``. Registered as
    ``literate_rl/HybridLander-v0`` with a limit of 1,000 steps.

    Args:
        render_mode: ``"rgb_array"`` for pictures, or None.

    Raises:
        ValueError: If the render mode is another one, or ``step`` gets an action that
            is not in the space.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}

    def __init__(self, render_mode: str | None = None) -> None:
        check_render_mode(render_mode)
        self.render_mode = render_mode
        lander = gym.make("LunarLander-v3", continuous=True, render_mode=render_mode)
        # Without the time limit that `make` adds: ours comes with our own registration.
        self.lander = lander.unwrapped
        self.observation_space = self.lander.observation_space
        nothing, throttle = spaces.Box(0.0, 1.0, (0,)), spaces.Box(0.0, 1.0, (1,))
        self.action_space = spaces.Tuple(
            (spaces.Discrete(4), spaces.Tuple((nothing, throttle, throttle, throttle)))
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start a new descent."""
        super().reset(seed=seed)
        return self.lander.reset(seed=seed, options=options)

    def step(
        self, action: tuple[Any, ...]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Burn one engine, or none, for one step."""
        check_env_action(self.action_space, action)
        kind, throttles = action
        command = np.zeros(2)
        if kind > 0:
            # At a throttle of exactly 0 LunarLander would not burn at all.
            throttle = max(float(throttles[kind][0]), 1e-6)
            # LunarLander's first number is the main engine: above 0 it burns, from half
            # power at 0 to full power at 1. The second is the side engines: beyond one
            # half they burn, the left one where it is negative, else the right one.
            side = 0.5 + 0.5 * throttle
            command[:] = [(throttle, 0.0), (0.0, -side), (0.0, side)][kind - 1]
        obs, reward, terminated, truncated, info = self.lander.step(command)
        return obs, float(reward), terminated, truncated, info

    def render(self) -> Any:
        """Draw the moon and the lander."""
        return self.lander.render()

    def close(self) -> None:
        """Free what drawing has allocated."""
        self.lander.close()


def check_render_mode(render_mode: str | None) -> None:
    """Raise if a render mode is not ours."""
    if render_mode not in (None, "rgb_array"):
        raise ValueError(
            f"render_mode must be 'rgb_array' or None, got {render_mode!r}"
        )


def check_env_action(space: spaces.Space[Any], action: Any) -> None:
    """Raise if an action is not an element of a space."""
    if not space.contains(action):
        raise ValueError(f"action must be an element of {space}, got {action!r}")


# With a name each environment gets its time limit, which *truncates* an episode.
gym.register(
    "literate_rl/Moving-v0",
    entry_point=Moving,  # type: ignore[arg-type]
    max_episode_steps=100,
)
gym.register(
    "literate_rl/HybridLander-v0",
    entry_point=HybridLander,  # type: ignore[arg-type]
    max_episode_steps=1000,
)

# %% [markdown]
# ## The policy acts
#
# Nobody has trained the policy yet. But it can act, and so can we. The first strip
# shows the untrained network. The second shows a
# rule of three lines, written by hand: *stop in the target; turn if you look past it;
# otherwise accelerate, less when it is near*. Each strip has six frames of one episode,
# from its start to its end.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two strips of six frames of the Moving environment. Above, the untrained policy wanders; below, the rule turns towards the target, drives to it and stops in it"}}
import os

os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # draw without a screen


def untrained(env, seed):
    """Build a network for an environment; return it as a function of an observation."""
    torch.manual_seed(seed)
    network = HybridPolicyNetwork.from_space(env.observation_space, env.action_space)
    spec = HybridActions.from_space(env.action_space)
    generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def act(obs):
        logit = network(torch.as_tensor(obs).unsqueeze(0))
        return spec.to_single_env(
            HybridDistribution(logit, spec.mask).sample(generator)
        )

    return act


def by_hand(obs):
    """The rule: stop in the target, turn towards it, drive."""
    _, _, speed, cos, sin, dx, dy, distance, inside = obs.tolist()
    angle = math.atan2(cos * dy - sin * dx, cos * dx + sin * dy) / (math.pi / 2)
    power = (min(0.1, distance) - speed) / 0.05
    kind = 2 if inside else 1 if abs(angle) > 0.06 else 0
    values = ([min(max(power, 0.0), 1.0)], [min(max(angle, -1.0), 1.0)], [])
    return kind, tuple(np.array(value, np.float32) for value in values)


def episode(env, act, seed):
    """Play one episode; return its return and, where the environment draws, frames."""
    obs, _ = env.reset(seed=seed)
    frames, total, done = [env.render()], 0.0, False
    while not done:
        obs, reward, terminated, truncated, _ = env.step(act(obs))
        done = terminated or truncated
        total += float(reward)
        frames.append(env.render())
    return total, frames


def show(axes, frames):
    """Draw frames at equal distances in time, the first and the last among them."""
    axes = list(axes)
    steps = np.linspace(0, len(frames) - 1, len(axes)).round().astype(int)
    for axis, step in zip(axes, steps, strict=True):
        axis.imshow(frames[step])
        axis.set_title(f"step {step}", size=9)
        axis.set(xticks=[], yticks=[])


env = gym.make("literate_rl/Moving-v0", render_mode="rgb_array")
fig, axes = plt.subplots(2, 6, figsize=(7, 2.9))
for row, (name, act) in enumerate(
    (("untrained", untrained(env, seed=0)), ("by hand", by_hand))
):
    total, frames = episode(env, act, seed=12)
    show(axes[row], frames)
    axes[row, 0].set_ylabel(f"{name}\nreturn {total:.2f}")
fig.tight_layout()

# %%
env = gym.make("literate_rl/Moving-v0")
for name, act in (("untrained", untrained(env, seed=0)), ("by hand", by_hand)):
    totals = [episode(env, act, seed)[0] for seed in range(30)]
    print(f"{name:10s} mean return of 30 episodes {np.mean(totals):6.2f}")

# %% [markdown]
# **What to notice.** The rule comes close to the 1.8 that we computed: that is what
# training should reach. The untrained network leaves the square or runs out of time.
#
# The same function `untrained` flies the lander. Not a line of it knows which
# environment it is in.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Six frames of the lander under the untrained policy: it tumbles and crashes"}}
env = gym.make("literate_rl/HybridLander-v0", render_mode="rgb_array")
total, frames = episode(env, untrained(env, seed=0), seed=1)
env.close()
fig, axes = plt.subplots(2, 3, figsize=(7, 3.9))
show(axes.flat, frames)
fig.suptitle(f"untrained, return {total:.0f}", size=10)
fig.tight_layout()

# %% [markdown]
# ## A policy that PPO can train
#
# The learner of {doc}`/chapters/ppo` knows a policy by a few methods. It keeps what
# the policy did, shuffles it, and deals it out in minibatches. For this, actions must be
# tensors with one row for each step, and so must be what the network says. Our network
# speaks and acts in trees. So we write each tree in one line:
#
# | row | what is in it | length |
# |---|---|---|
# | what the policy says | logits of the types, means, deviations | $K + 2 A$ |
# | its noise | one number for each type, one for each argument | $K + A$ |
# | what it does | the type, the arguments | $1 + A$ |
#
# The learner then needs to know nothing about trees, and two methods of two lines take
# the rows apart again. The type becomes a floating-point number on the way. That does no
# harm: all integers up to 16 million are exact there.
#
# An action is a function of the noise, as it is for the other policies. The types race,
# and the arguments are $\mu_j + \sigma_j \eta_j$. Without noise we get the greedy action.
# All of this is known by `HybridActions`; what is left is a network that writes its tree as
# a row, and a function that puts both together.


# %% tags=["export"]
class HybridRows(nn.Module):
    """A hybrid network whose tree is written as one row.

    Args:
        network: The network.
    """

    def __init__(self, network: HybridPolicyNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: Tensor) -> Tensor:
        """Return logits, means and deviations, ``(*, K + 2 A)``, at ``(*, D)``."""
        # The network takes one dimension of states; a rollout comes with two.
        logit = self.network(obs.reshape(-1, obs.shape[-1]))
        args = logit.action_args
        row = torch.cat([logit.action_type, args.mu, args.sigma], -1)
        return row.reshape(*obs.shape[:-1], row.shape[-1])


def make_hybrid_policy(
    observation_space: spaces.Space[Any] | dict[str, Any],
    action_space: spaces.Space[Any] | dict[str, Any],
    mask: ArrayLike | Tensor | None = None,
    hidden: int = 64,
    normalize: bool = False,
) -> Policy:
    """Build the policy that fits an environment with hybrid actions.

    Args:
        observation_space: A box with one dimension, or what ``plain_space`` made of it.
        action_space: Space of one action, likewise.
        mask: As in ``HybridActions.from_space``, and needed where it is there.
        hidden: Width of the critic's hidden layers.
        normalize: Whether the policy normalises its observations.

    Raises:
        TypeError: If the action space holds another kind of space.
        ValueError: If a space or the mask has another form.
    """
    observation_space = as_space(observation_space)
    actions = HybridActions.from_space(as_space(action_space), mask)
    network = HybridPolicyNetwork.from_space(
        observation_space, actions.space, actions.mask
    )
    size = spaces.flatdim(observation_space)
    critic = mlp(size, hidden, 1, gain=1.0)
    normalizer = RunningMoments(size) if normalize else None
    recipe = {
        "observation_space": plain_space(observation_space),
        "action_space": plain_space(actions.space),
        "mask": actions.mask.tolist(),
        "hidden": hidden,
        "normalize": normalize,
    }
    both = ActorCritic(HybridRows(network), critic, normalizer)
    return Policy(both, actions, ("make_hybrid_policy", recipe))


# %%
env = gym.make("literate_rl/Moving-v0")
policy = make_hybrid_policy(env.observation_space, env.action_space)
obs = torch.as_tensor(env.reset(seed=0)[0]).unsqueeze(0)
noise = policy.noise(1, 1, torch.Generator().manual_seed(0))[0]
with torch.no_grad():
    print("says           ", [round(x, 2) for x in policy(obs)[0].tolist()])
    for name, eta in (("does", noise), ("without noise", 0.0)):
        action = policy.act(obs, eta)
        print(f"{name:15s}", [round(x, 2) for x in action[0].tolist()])
print("to the world   ", policy.actions.to_single_env(action))

# %% [markdown]
# ## Training
#
# Nothing else is needed. The learner and its settings come from {doc}`/chapters/ppo`,
# the network and the error from this chapter. The critic beside the network has two
# layers of 64 units.

# %% mystnb={"image": {"alt": "Return of hybrid PPO on Moving over 60,000 steps: it starts below zero, crosses one after a fifth of the steps and ends close to the dashed line of the rule"}}
from literate_rl.agents import make_envs, seed_everything
from literate_rl.ppo import PPO, ppo_settings
from literate_rl.evaluation import evaluate
from literate_rl.workshop.runs import fit

torch.set_num_threads(1)  # the network is too small to be shared out
config = ppo_settings("literate_rl/Moving-v0")
seed_everything(config.seed)
envs = make_envs("literate_rl/Moving-v0", config.num_envs)
policy = make_hybrid_policy(envs.single_observation_space, envs.single_action_space)
learner = PPO(policy, envs, config)
history = fit(learner, progress=False)

env = gym.make("literate_rl/Moving-v0")
rule = np.mean([episode(env, by_hand, seed)[0] for seed in range(100)])
fig, axis = plt.subplots(figsize=(7, 2.6))
steps = [row["step"] for row in history]
axis.plot(steps, [row["charts/episodic_return"] for row in history], label="hybrid PPO")
axis.axhline(rule, linestyle="--", color="C1", label="the rule by hand")
axis.set(xlabel="steps", ylabel="return")
axis.legend()
fig.tight_layout()
returns = evaluate(learner.policy, "literate_rl/Moving-v0", episodes=100, seed=1)
print(f"100 episodes without noise: {returns.mean():.2f}, the rule: {rule:.2f}")

# %% [markdown]
# **What to notice.** The agent comes near the rule, although nobody told it what an angle
# is. The curve has the noise of exploration in it, the last line has not.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Six frames of the trained agent: it turns towards the target, drives straight at it and stops in it"}}
env = gym.make("literate_rl/Moving-v0", render_mode="rgb_array")


@torch.no_grad()
def trained(obs):
    action = learner.policy.act(torch.as_tensor(obs).unsqueeze(0), 0.0)
    return learner.policy.actions.to_single_env(action)


total, frames = episode(env, trained, seed=12)
fig, axes = plt.subplots(1, 6, figsize=(7, 1.6))
show(axes, frames)
fig.suptitle(f"trained, return {total:.2f}", size=10)
fig.tight_layout()

# %% [markdown]
# It is the episode that the two strips above show. And here is another one, as a film:

# %%
import tempfile
from pathlib import Path

from IPython.display import HTML

from literate_rl.workshop.runs import record_video, video_html

film = Path(tempfile.mkdtemp()) / "moving.mp4"
record_video(learner.policy, "literate_rl/Moving-v0", film, seed=3)
HTML(
    video_html(film, "The agent turns towards the target, drives to it and stops in it")
)

# %% [markdown]
# In a terminal the same takes one line, `python -m literate_rl ppo --env
# literate_rl/Moving-v0`. With `literate_rl/HybridLander-v0` it takes some minutes, and
# a video of the landing comes with `--watch`.
#
# (three-losses)=
# ## Three losses, and idle arguments
#
# Three losses were met: one ratio, a ratio for each head, and one ratio without the mask.
# For the third it is enough to give the action distribution a mask of ones. For the second
# it has to tell two log-probabilities for each action, and the error is the sum over both.


# %%
from dataclasses import replace


class PerHead(HybridActions):
    """Hybrid actions with one log-probability for the type and one for the arguments."""

    def evaluate(self, row, action):
        policy = self.distribution(row)
        heads = log_prob_of_heads(policy, self.action_of(action))
        entropy = policy.entropy().view(row.shape[:-1])
        return torch.stack(heads, -1).view(*entropy.shape, 2), entropy


def per_head_error(new, old, entropy, adv, *rest):
    """Add up the errors of both heads; the entropy counts once."""
    type_error, args_error = (
        policy_error_from_log_prob(new[:, k], old[:, k], entropy, adv, *rest)
        for k in range(2)
    )
    loss = type_error[0].policy_loss + args_error[0].policy_loss
    return ppo_policy_loss(loss, entropy.mean()), type_error[1]


def one_iteration(name):
    """Collect a rollout with a new policy, learn from it, and return metrics."""
    torch.manual_seed(0)
    box, nest = envs.single_observation_space, envs.single_action_space
    policy = make_hybrid_policy(box, nest)
    if name == "per head":
        policy.actions = PerHead.from_space(nest)
        return PPO(policy, envs, config, policy_error=per_head_error).iterate()
    if name == "not masked":
        everything = torch.ones_like(policy.actions.mask)
        policy.actions = replace(policy.actions, mask=everything)
    return PPO(policy, envs, config).iterate()


print("loss        divergence  clip fraction  entropy")
for name in ("joint", "per head", "not masked"):
    metrics = one_iteration(name)
    keys = ("approx_kl", "clipfrac", "entropy")
    numbers = (metrics[f"losses/{key}"] for key in keys)
    print(f"{name:12s}" + "".join(f"{x:<13.3f}" for x in numbers))

# %% [markdown]
# After one iteration they do not differ by much, but for the entropy. Without the mask it
# counts both arguments of each action, although no action has more than one. (For the
# loss per head the first two columns are means over both heads, so its divergence is half
# of what the whole action's would be.)
#
# Which of them learns best? A single run cannot tell. So here are stored runs with several
# seeds, and 95 % t intervals of the mean over the seeds, as bands and in brackets.
# `python -m benchmarks.hybrid_learning` makes the data anew, and {doc}`/docs/results` has
# their origin. On `HybridLander` a run takes some minutes, so
# the other two losses have two seeds only: too few for an interval, so both are shown.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Learning curves over steps with bands. Left, Moving: one ratio and a ratio for each head rise together, the loss without mask stays below them. Right, the lander: all three rise from below minus one hundred to about two hundred, on top of each other"}}
from literate_rl.evaluation import paired_difference, t_interval
from literate_rl.workshop.runs import stored_runs

fig, axes = plt.subplots(1, 2, figsize=(7, 3))
losses = {"joint": "C0", "per head": "C1", "not masked": "C2"}
for axis, name in zip(axes, ("moving", "lander"), strict=True):
    for loss, color in losses.items():
        runs = stored_runs(name)[loss]
        steps = runs.steps / 1000
        axis.plot(steps, runs.curves.mean(0), color=color, label=loss)
        if len(runs.curves) >= 5:
            band = t_interval(runs.curves)
            axis.fill_between(steps, *band, color=color, alpha=0.2, linewidth=0)
        else:
            axis.plot(steps, runs.curves.T, color=color, alpha=0.4, linewidth=0.8)
    axis.set(xlabel="thousand steps", title=name)
axes[0].set_ylabel("return while training")
axes[0].legend(fontsize=8)
fig.tight_layout()


def interval(values, digits):
    """Return a mean and its interval as text, or the values if they are few."""
    if len(values) < 5:
        return " and ".join(f"{value:.{digits}f}" for value in values)
    low, high = t_interval(values)
    return f"{values.mean():.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


print(f"{'':9s}{'loss':12s}seeds  {'at the end, without noise':27s}while training")
for name, digits in (("moving", 2), ("lander", 0)):
    for loss in losses:
        runs = stored_runs(name)[loss]
        final, area = (interval(x, digits) for x in (runs.final, runs.area))
        print(f"{name:9s}{loss:12s}{len(runs.final):5d}  {final:27s}{area}")

# %% [markdown]
# **What to notice.** On `Moving` we see no difference between one ratio and a ratio for each
# head. The clip of H-PPO is different, but that does not show in the return. The loss without
# the mask learns more slowly and ends lower: seed by seed it is 0.29 behind the masked one while
# training (0.15 to 0.43) and 0.41 at the end (0.24 to 0.57). And that is with
# two arguments only, of which each action leaves one or both idle. Mind that this loss
# differs in two ways: in the ratio, and in a bonus that pays for noise. On the lander, with
# one seed of five that stays low and two seeds for the others, no difference can be seen.

# %% tags=["claims"]
moving = stored_runs("moving")
for key, rounded in (("area", (0.29, 0.15, 0.43)), ("final", (0.41, 0.24, 0.57))):
    masked, bare, heads = (
        getattr(moving[loss], key) for loss in ("joint", "not masked", "per head")
    )
    found = paired_difference(masked, bare)
    assert np.allclose(found, rounded, atol=0.006), "how far behind it is"
    found = paired_difference(masked, heads)
    assert found.low < 0 < found.high, "no difference seen"

# %% [markdown]
# Now we give `Moving` further arguments that no type uses and nobody reads. With the mask
# they should not matter. Without it each of them adds noise to the ratio, as computed
# [above](#what-the-mask-is-good-for), and its entropy to the bonus.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Return against the number of idle arguments, while training on the left, at the end on the right. With the mask the lines are flat; without it they fall"}}
fig, axes = plt.subplots(1, 2, figsize=(7, 3), sharex=True)
idle = [0, 2, 4, 16]
for axis, key, title in (
    (axes[0], "area", "while training"),
    (axes[1], "final", "at the end, without noise"),
):
    print(f"{title}, with {', '.join(map(str, idle))} idle arguments:")
    for loss, name in (("joint", "masked"), ("not masked", "not masked")):
        names = (f"moving_idle_{n}" if n else "moving" for n in idle)
        values = [getattr(stored_runs(each)[loss], key) for each in names]
        mean = np.array([v.mean() for v in values])
        ends = np.array([t_interval(v) for v in values]).T
        bars = np.abs(ends - mean)
        axis.errorbar(idle, mean, bars, color=losses[loss], capsize=3, label=name)
        print(f"    {name:11s}" + "  ".join(interval(v, 2) for v in values))
    axis.set(xlabel="idle arguments", title=title, xticks=idle)
axes[0].set_ylabel("return")
axes[0].legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# **What to notice.** With the mask the number of idle arguments hardly matters. With 16 of them
# the return at the end is 0.06 lower than without any, and the interval of that difference
# just leaves out zero. Without the mask, two and four more lower the mean by less than five
# seeds could prove, and with 16 more the agent has hardly
# learned anything by the time at which the other one is done. None of these arguments
# does anything.

# %% tags=["claims"]
idle_16 = stored_runs("moving_idle_16")
found = paired_difference(idle_16["joint"].final, moving["joint"].final)
assert np.allclose(found, (-0.06, -0.11, -0.01), atol=0.006)
for number in (2, 4):
    bare = stored_runs(f"moving_idle_{number}")["not masked"]
    for key in ("area", "final"):
        found = paired_difference(
            getattr(bare, key), getattr(moving["not masked"], key)
        )
        assert found.low < 0 < found.high, "less than five seeds could prove"
assert idle_16["not masked"].area.mean() < 0.1, "has hardly learned anything"

# %% [markdown]
# ### Somebody else's environment
#
# The benchmark that the papers on parameterised actions share is *Platform*
# {cite:p}`masson2016,bester2019`: run, hop and leap over gaps and past enemies, each
# with one number. The return is the part of the way that was covered, so 1 is the best.
# The environment is on PyPI as `hybrid-platform`, which needs `numba` without saying so.
# If you install this book's package with the extra `platform`, both come along. Its
# observation is a pair of a box and a step counter. Our network wants a box, so a
# function takes the first of the two:
#
# ```python
# from operator import itemgetter
# import gymnasium as gym
#
# def platform(**arguments):
#     env = gym.make("gym_platform:Platform-v0", **arguments)
#     box = env.observation_space[0]
#     return gym.wrappers.TransformObservation(env, itemgetter(0), box)
#
# envs = make_envs(platform, config.num_envs)
# policy = make_hybrid_policy(box, envs.single_action_space, normalize=True)
# learner = PPO(policy, envs, config)
# ```
#
# Everything else is as above. The action space is `Tuple(Discrete(3), Tuple(3 boxes))`
# with bounds of 30, 720 and 430, so the mask comes out as the unit matrix, and `to_env`
# does the rest. Here are stored runs of 64,000 steps with `normalize_obs=True`, evaluated
# over 100 episodes without noise:

# %%
runs = stored_runs("platform")["joint"]
print(f"Platform, {len(runs.final)} seeds: {interval(runs.final, 3)}", end="")
print(f", worst seed {runs.final.min():.3f}")

# %% [markdown]
# The authors of MP-DQN, a method that learns values of actions with arguments, report a mean of
# 0.987 {cite:p}`bester2019`. H-PPO was tried on other environments {cite:p}`fan2019`. The
# number of steps is ours, so this is no race. It says how far hybrid PPO comes.
#
# The package also brings `pygame`, whose files replace those of `pygame-ce`, with which
# Gymnasium draws. To keep them, install it by `pip install --no-deps hybrid-platform`
# and `pip install numba` instead.

# %% [markdown]
# ## Traps
#
# ### Trap: masked_select loses the rows
#
# The tutorial that this chapter follows looks up the mask of each sample and then takes
# out the arguments that count with `masked_select`. Its mask has exactly one argument
# in each row, and there it works. With a type that has none, the result is shorter than
# the batch. Row $i$ of the arguments then belongs to another sample than row $i$ of the
# types, and nothing complains.

# %%
action = ttorch.as_tensor(
    {
        "action_type": torch.tensor([0, 2, 1, 0]),
        "action_args": torch.tensor([[10.0, 11], [20, 21], [30, 31], [40, 41]]),
    }
)
data_mask = mask[action.action_type]
action.action_args = ttorch.masked_select(action.action_args, data_mask)
print("types      ", action.action_type.tolist())
print("arguments  ", action.action_args.tolist())
third = action[2:3]
print(
    "third row  ",
    third.action_type.tolist(),
    third.action_args.tolist(),
    "(31 is right)",
)

# %% [markdown]
# `mask_args` keeps the rows where they are. `select_args` refuses, and says which rows
# are to blame:

# %%
action_args = torch.tensor([[10.0, 11], [20, 21], [30, 31], [40, 41]])
print("mask_args  ", mask_args(action_args, data_mask).tolist())
try:
    select_args(action_args, data_mask)
except ValueError as error:
    print("ValueError:", error)

# %% [markdown]
# ### Trap: a transposed mask
#
# Rows are types and columns are arguments. If the numbers of both are equal, no shape
# tells whether the mask lies the right way round, and if the mask is symmetric, no
# number does. The tutorial's own mask is symmetric. So test with one that is not:

# %%
symmetric = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 1]])
chain = torch.tensor([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
for name, table in (("the tutorial's", symmetric), ("asymmetric", chain)):
    print(f"{name:15s}", "type 0 reads argument", table[0].argmax().item(), end="")
    print(", transposed", table.T[0].argmax().item())

# %% [markdown]
# ### Trap: zero times infinity
#
# Multiplying log-densities by the mask looks the same as `where`, until one of them is
# infinite. And hiding the result with `where` afterwards is not enough: the forward
# pass is fine then, and the gradient is not.

# %%
counts = torch.tensor([True, False])
value = torch.tensor([0.3, torch.inf])


def loss_of(form):
    mu = torch.zeros(2, requires_grad=True)
    if form == "replace before":
        density = -0.5 * (torch.where(counts, value, mu) - mu).square()
    else:
        density = -0.5 * (value - mu).square()
    total = (
        density * counts if form == "multiply" else torch.where(counts, density, 0.0)
    )
    total.sum().backward()
    return total.sum().item(), mu.grad.tolist()


print("                        sum  gradient")
for form in ("multiply", "where afterwards", "replace before"):
    result, grad = loss_of(form)
    print(f"{form:18s}{result:9.3f}  {grad}")

# %% [markdown]
# ### Trap: probabilities that saturate
#
# The plain form above builds its categorical distribution from probabilities, as the
# tutorial does. PyTorch has to take a logarithm of them, and before that it lifts them
# to the smallest step of floating point, $1.2 \cdot 10^{-7}$. So no logarithm falls
# below $-15.94$, and there the gradient is exactly zero: an action that should never be
# taken cannot be learned any further, nor can it be brought back. From logits there is
# no such floor.

# %%
for name in ("probs", "logits"):
    z = torch.tensor([0.0, -50.0], requires_grad=True)
    given = torch.softmax(z, -1) if name == "probs" else z
    log_prob = Categorical(**{name: given}).log_prob(torch.tensor(1))
    log_prob.backward()
    print(
        f"{name:7s}log-probability {log_prob.item():7.2f}, gradient {z.grad.tolist()}"
    )

# %% [markdown]
# ### Trap: an entropy that pays for nothing
#
# Adding up the entropies of the type and of all arguments counts arguments that no
# chosen type uses. Here the mask is that of `Moving`, and the policy stops half of the
# time. The last row is what one gets from the definition, the mean of
# $-\log \pi$ over a million actions.

# %%
one_state = [0.3, 0.2, 0.5], [0.0, 0.0], [1.0, 1.0]  # probabilities, mu, sigma
logit = make_logit(*one_state)
logit.action_type = logit.action_type.log()
of_type = Categorical(logits=logit.action_type).entropy()
of_args = Normal(logit.action_args.mu, logit.action_args.sigma).entropy().sum(-1)

many = make_logit(*one_state, batch=1_000_000)
many.action_type = many.action_type.log()
policy = HybridDistribution(many, mask)
drawn = -policy.log_prob(policy.sample(torch.Generator().manual_seed(0))).mean()
print(f"sum of all parts      {(of_type + of_args).item():.3f}")
print(f"this chapter          {HybridDistribution(logit, mask).entropy().item():.3f}")
print(f"mean of -log pi       {drawn.item():.3f}")

# %% [markdown]
# A bonus on the first number pays for noise in arguments that do nothing. The policy then
# widens these arguments, because that pays and costs nothing.
#
# ### Trap: two packages and one name
#
# `import treetensor` is what one writes, and `pip install treetensor` is what one then
# types. On PyPI that name belongs to another project. The one that we import is called
# `DI-treetensor` there.

# %%
from importlib.metadata import packages_distributions

print(
    "treetensor is imported from", sorted(set(packages_distributions()["treetensor"]))
)

# %% [markdown]
# ### Trap: two meanings of "action mask"
#
# When somebody asks how to use an action mask with hybrid PPO, ask back which one. The
# mask of this chapter is a fact about the *action space*: which type uses which
# argument. The other kind is a fact about the *state*: which types are possible right
# now. It belongs into the logits, as minus infinity, in the old and in the new policy
# alike. Both work together:

# %%
logit = make_logit([0.0, 1.0, 2.0], [0.0, 0.0], [1.0, 1.0])
possible = torch.tensor([[True, True, False]])
logit.action_type = logit.action_type.masked_fill(~possible, -torch.inf)
policy = HybridDistribution(logit, mask)
print("probabilities", [round(p, 3) for p in policy.prob[0].tolist()])
print("greedy type  ", policy.mode().action_type.item())
print("entropy      ", round(policy.entropy().item(), 3))

# %% [markdown]
# ## What well-known implementations do
#
# | question | this chapter | DI-engine | H-PPO paper | PPOxFamily's tutorial | Stable-Baselines3 | CleanRL |
# |---|---|---|---|---|---|---|
# | hybrid actions | yes | yes, inside its PPO | yes | network and sampling only | refused: no tuple of Discrete and Box | no |
# | ratio | one for the action | one for each head | one for each head | no loss | | |
# | arguments that do not count | masked | in the ratio and in the entropy | produced, not executed | taken out by `masked_select` | | |
# | type without argument | its term is 0 | counted with the noise of all arguments | | misaligns the rows | | |
# | deviation $\sigma$ | a parameter | a parameter, a head or a constant; 0.3 in the Moving configuration | | a parameter | | |
# | evaluation | greedy, `mode` | samples in on-policy PPO, greedy off policy | | | | |
#
# ## On the best device

# %%
from literate_rl.agents import best_device

device = best_device()
row = learner.policy(torch.rand(8, 9)).detach()
noise = learner.policy.noise(1, 8, torch.Generator().manual_seed(0))[0]
action = learner.policy.act(torch.rand(8, 9), noise)
judge = learner.policy.actions.log_prob
log_prob = judge(row.to(device), action.to(device))
on_cpu = judge(row, action)
difference = (log_prob.cpu() - on_cpu).abs().max().item()
print(f"{tuple(log_prob.shape)} log-probabilities computed on {log_prob.device.type}")
print("equal to those of the CPU:", difference < 1e-5)

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: no gradient, or is there?
#
# The comment in `forward` says that `zeros_like`
# passes no gradient. Some readers conclude that $\omega$, the parameter
# `action_args_log_sigma`, is never trained. Let the loss be the sum of all entries of
# $\sigma = e^\omega$, repeated for a batch of $B$ states. What is its gradient with respect
# to $\omega$? Return a list with one number for each argument.

# %%
from literate_rl.agents import grade


def answer(log_sigma: list[float], batch: int) -> list[float]:
    return ...


def gradient_by_autograd(log_sigma: list[float], batch: int) -> list[float]:
    omega = torch.tensor([log_sigma], requires_grad=True)
    mu = torch.zeros(batch, len(log_sigma))
    torch.exp(omega + torch.zeros_like(mu)).sum().backward()
    return omega.grad[0].tolist()


cases_1 = ([0.0, 0.0], 1), ([0.0, 1.0], 4), ([-2.0], 7)
grade(answer, gradient_by_autograd, *cases_1)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer_1(log_sigma: list[float], batch: int) -> list[float]:
    # Every state adds the derivative of the exponential once.
    return [batch * math.exp(omega) for omega in log_sigma]


grade(answer_1, gradient_by_autograd, *cases_1)

# %% [markdown]
# ### Exercise 2: a type without arguments
#
# Given are the log-probabilities of all types at one
# state, the log-densities of all arguments, the mask as a list of rows and the type
# that was taken. Return the joint log-probability. Mind that the log-density of an
# argument that does not count may be minus infinity.


# %%
def answer(
    type_log_prob: list[float],
    args_log_density: list[float],
    mask: list[list[int]],
    action_type: int,
) -> float:
    return ...


def joint_by_where(type_log_prob, args_log_density, mask, action_type):
    used = torch.tensor(mask[action_type], dtype=torch.bool)
    density = torch.where(used, torch.tensor(args_log_density), 0.0)
    return type_log_prob[action_type] + density.sum().item()


table = [[1, 0], [0, 1], [1, 1], [0, 0]]
types = [-0.5, -1.5, -2.5, -3.5]
cases_2 = [(types, [-1.0, -20.0], table, k) for k in range(4)]
cases_2.append((types, [-1.0, -math.inf], table, 0))
grade(answer, joint_by_where, *cases_2)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer_2(type_log_prob, args_log_density, mask, action_type):
    row = zip(mask[action_type], args_log_density, strict=True)
    return type_log_prob[action_type] + sum(density for used, density in row if used)


grade(answer_2, joint_by_where, *cases_2)

# %% [markdown]
# ### Exercise 3: how many values does `masked_select` return?
#
# A batch of $B$ states draws its
# types with the probabilities $p$. How many arguments are selected on average? For
# which masks is the number always $B$?


# %%
def answer(prob: list[float], mask: list[list[int]], batch: int) -> float:
    return ...


def number_by_counting(prob, mask, batch):
    how_often = torch.tensor(prob, dtype=torch.float64) * batch
    return (how_often @ torch.tensor(mask, dtype=torch.float64)).sum().item()


cases_3 = (
    ([0.5, 0.5], [[0, 1], [1, 0]], 10),
    ([0.2, 0.3, 0.5], [[1, 0], [0, 1], [0, 0]], 100),
    ([0.25, 0.75], [[1, 1, 1], [0, 0, 1]], 8),
)
grade(answer, number_by_counting, *cases_3)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer_3(prob, mask, batch):
    # Always B only if every row holds exactly one 1.
    return batch * sum(p * sum(row) for p, row in zip(prob, mask, strict=True))


grade(answer_3, number_by_counting, *cases_3)

# %% [markdown]
# ## References
#
# Parameterised actions were defined by {cite:t}`masson2016`, together with the Platform
# domain; {cite:t}`bester2019` learn their values instead of a policy. Hybrid PPO is by
# {cite:t}`fan2019`, and the loss itself by {cite:t}`schulman2017`. The network and the
# sampling function follow chapter 2 of PPOxFamily's tutorial.
