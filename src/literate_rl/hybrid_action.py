# Generated from chapters/hybrid_action.py (edit there); digest efdae344cfdf665d
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
    log_prob_new, log_prob_old = new.log_prob(data.action), old.log_prob(data.action)
    check_arguments(log_prob_new + log_prob_old, data, new)
    return policy_error_from_log_prob(
        log_prob_new,
        log_prob_old,
        new.entropy(),
        data.adv,
        data.weight,
        clip_ratio,
        dual_clip,
    )


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
    check_arguments(args_new + args_old, data, new)

    # The first term of {eq}`hybrid-per-head`, and the entropy of the whole.
    type_loss, type_info = policy_error_from_log_prob(
        type_new, type_old, new.entropy(), data.adv, data.weight, clip_ratio, dual_clip
    )

    # The second term. The indicator is a weight, 0 where the type has no argument.
    action: Any = data.action
    has_args = new.mask.any(-1)[action["action_type"]].to(args_new.dtype)
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


def check_arguments(
    log_prob: Tensor, data: ppo_policy_data, policy: HybridDistribution
) -> None:
    """Raise if log-probabilities are not finite, and name the arguments to blame."""
    # An argument that does not count may be a NaN, so it must not be blamed.
    action: Any = data.action
    data_mask = policy.mask[action["action_type"]]
    check_finite(
        (log_prob.sum().item(),),
        action_args=mask_args(action["action_args"], data_mask),
    )


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
