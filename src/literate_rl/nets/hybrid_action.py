# Generated from chapters/hybrid_action.py (edit there); digest ab10850382181188
"""Hybrid actions: a type and its arguments, as one distribution."""

from __future__ import annotations

import math
import warnings
from functools import cache
from typing import Annotated, Any, TypedDict

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from literate_rl.data.hybrid_space import (
    as_mask,
    check_policy,
    one_each,
    rows_of,
)
from literate_rl.ground.networks import UNIT_ENTROPY, chosen, expected
from literate_rl.ground.signatures import (
    Bool,
    Count,
    Float,
    Int,
    check_finite,
    check_that,
    checked,
)
from literate_rl.maths.fast import log_softmax

__all__ = [
    "HybridDistribution",
    "HybridPolicyNetwork",
    "as_tree",
    "mask_args",
    "sample_hybrid_action",
    "select_args",
]


@cache
def trees() -> tuple[Any, Any]:
    """Return the class of tree tensors, and what makes a tree of dictionaries."""
    try:
        # DI-treetensor calls a function that torch has renamed.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            import treetensor.torch as ttorch
        from treevalue.tree.common import create_storage
    except ImportError as error:
        raise ImportError(
            "on Python 3.13 tree tensors are the extra `trees`, compiled from source: "
            "pip install DI-treetensor treevalue"
        ) from error
    return ttorch.Tensor, create_storage


def as_tree(leaves: dict[str, Any]) -> Any:
    """Return a tree tensor of tensors, in dictionaries as deep as they are given."""
    # `ttorch.as_tensor(leaves)` is the same, and slow since version 1.5 of treevalue.
    tree, create_storage = trees()
    return tree(create_storage(leaves))


class ArgsLogit(TypedDict):
    """What describes the arguments: their means and standard deviations."""

    mu: Float[Tensor, "B A"]
    sigma: Float[Tensor, "B A"]


class HybridLogit(TypedDict):
    """What describes a policy at B states: logits of K types, and the arguments."""

    action_type: Float[Tensor, "B K"]
    action_args: ArgsLogit


class HybridAction(TypedDict):
    """B actions: their types, from 0 to K - 1, and all arguments."""

    action_type: Int[Tensor, "B"]
    action_args: Float[Tensor, "B A"]


class HybridSizes(TypedDict):
    """How many types and how many arguments the actions have."""

    action_type_shape: Count
    action_args_shape: Count


class HybridPolicyNetwork(nn.Module):
    """A policy network for hybrid actions: an encoder and two heads.

    Args:
        obs_shape: Length of a state vector. For other states, such as images, replace
            ``encoder`` by a module of your own that returns 32 features.
        action_shape: ``{"action_type_shape": K, "action_args_shape": A}``.

    Source: PPOxFamily, chapter 2, ``hybrid_tutorial.py``; DI-engine's hybrid ``VAC``.
    """

    @checked
    def __init__(self, obs_shape: Count, action_shape: HybridSizes) -> None:
        super().__init__()

        # The encoder of {eq}`hybrid-encoder`.
        self.encoder = nn.Sequential(
            nn.Linear(obs_shape, 16), nn.ReLU(), nn.Linear(16, 32), nn.ReLU()
        )

        # One logit for each of $K$ types.
        self.action_type_shape = action_shape["action_type_shape"]
        self.action_type_head = nn.Linear(32, self.action_type_shape)

        # One mean for each of $A$ arguments, and $\omega$ as a bare parameter. At its
        # start, 0, each standard deviation is 1.
        self.action_args_shape = action_shape["action_args_shape"]
        self.action_args_mu = nn.Linear(32, self.action_args_shape)
        self.action_args_log_sigma = nn.Parameter(
            torch.zeros(1, self.action_args_shape)
        )

    def described(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, means and standard deviations at each state."""
        # From states to features, then to logits and means by {eq}`hybrid-heads`.
        x = self.encoder(x)
        logit = self.action_type_head(x)
        mu = self.action_args_mu(x)

        # $\omega$ has the shape $(1, A)$. Adding zeros of the shape of $\mu$ repeats it
        # for each state of the batch. `zeros_like` passes no gradient on to $\mu$.
        log_sigma = self.action_args_log_sigma + torch.zeros_like(mu)
        sigma = torch.exp(log_sigma)
        return logit, mu, sigma

    @checked
    def forward(self, x: Float[Tensor, "B D ..."]) -> Any:
        """Return what describes the policy at each state, a ``HybridLogit``."""
        # A tree tensor, which is not an instance of `torch.Tensor` despite its name.
        logit, mu, sigma = self.described(x)
        return as_tree(
            {"action_type": logit, "action_args": {"mu": mu, "sigma": sigma}}
        )


@checked
def sample_hybrid_action(
    logit: HybridLogit, generator: torch.Generator | None = None
) -> Any:
    """Sample one hybrid action for each state.

    Args:
        logit: What describes the policy, as ``HybridPolicyNetwork`` returns it.
        generator: Source of random numbers, on the device of the logits; None for
            PyTorch's own.

    Returns:
        A ``HybridAction`` without gradient. All arguments are sampled, also those that
        the type does not use.

    Source: PPOxFamily, chapter 2, ``hybrid_tutorial.py``.
    """
    # The probabilities by the softmax {eq}`hybrid-softmax`.
    prob = torch.softmax(logit["action_type"], dim=-1)
    args = logit["action_args"]
    check_policy("logit", prob, args["mu"], args["sigma"].log())
    return draw(prob, args["mu"], args["sigma"], generator)


@torch.no_grad()
def draw(
    prob: Tensor, mu: Tensor, sigma: Tensor, generator: torch.Generator | None
) -> Any:
    """Draw types from probabilities, and arguments from means and deviations."""
    # The race. With $v_k$ uniform in $(0, 1)$, the length $-\log v_k$ of a track is
    # exponential with mean 1. The first to arrive has the largest $p_k / (-\log v_k)$.
    # That is the smallest $p_k / \log v_k$, because $\log v_k$ is negative. At
    # $v_k = 0$ the quotient of every type would be 0, and a type of probability 0 could
    # win a tie; so the draw starts at the smallest positive number.
    tiny = torch.finfo(prob.dtype).tiny
    chance = prob.new_empty(prob.shape).uniform_(tiny, 1.0, generator=generator)
    action_type = (prob / chance.log_()).argmin(-1)

    # Arguments with the density {eq}`hybrid-gaussian`: standard normal noise, stretched
    # by $\sigma$ and moved by $\mu$.
    noise = mu.new_empty(mu.shape).normal_(generator=generator)
    action_args = torch.addcmul(mu, sigma, noise)
    return as_tree({"action_type": action_type, "action_args": action_args})


@checked
def mask_args(
    action_args: Float[Tensor, "B A"], data_mask: Bool[Tensor, "B A"]
) -> Float[Tensor, "B A"]:
    """Return arguments with zeros where they do not count, even where there was a NaN.

    ``data_mask`` says which of them count: ``mask[action_type]``.
    """
    return action_args.masked_fill(~data_mask, 0.0)


@checked
def select_args(
    action_args: Float[Tensor, "B A"],
    data_mask: Annotated[Bool[Tensor, "B A"], one_each],
) -> Float[Tensor, "B"]:
    """Pick the one argument that counts in each row."""
    return action_args[data_mask]


@checked
def args_log_density(
    mu: Float[Tensor, "B A"],
    sigma: Float[Tensor, "B A"],
    action_args: Float[Tensor, "B A"],
    data_mask: Bool[Tensor, "B A"],
) -> Float[Tensor, "B"]:
    """Add up the log-densities of the arguments that count."""
    # An argument that does not count is replaced by its mean. Its distance $\zeta$ from
    # the mean is then 0, in the formula and in the gradient, whatever it held.
    zeta = (torch.where(data_mask, action_args, mu) - mu) / sigma

    # The logarithm of {eq}`hybrid-gaussian`, and the sum of those that count.
    log_density = -0.5 * zeta.square() - sigma.log() - 0.5 * math.log(2 * math.pi)
    return torch.where(data_mask, log_density, 0.0).sum(-1)


@checked
def args_divergence(
    often: Float[Tensor, "B A"],
    mu: Float[Tensor, "B A"],
    sigma: Float[Tensor, "B A"],
    other_mu: Float[Tensor, "B A"],
    other_sigma: Float[Tensor, "B A"],
) -> Float[Tensor, "B"]:
    """Add up the divergences of the arguments, each as often as it counts."""
    # Where an argument never counts, a standard deviation of 1 stands in for its own,
    # which may be too small to divide by.
    sigma = torch.where(often > 0, sigma, 1.0)
    other_sigma = torch.where(often > 0, other_sigma, 1.0)

    # The second line of {eq}`hybrid-kl`. Nor is there a shift, too large to square.
    shift = torch.where(often > 0, mu - other_mu, 0.0) / other_sigma
    square = (sigma / other_sigma).square() + shift.square()
    divergence = (other_sigma / sigma).log() + 0.5 * (square - 1.0)
    return (often * divergence).sum(-1)


class HybridDistribution:
    """The distribution of hybrid actions, one for each state of a batch.

    Args:
        logit: What describes the policy. A logit of minus infinity forbids the type at
            that state.
        mask: Which type (row) uses which argument (column), a table of zeros and ones.
        name: What error messages call ``logit``.

    Attributes:
        mask: The mask, (K, A) bool, on the device of the logits.
        prob: Probabilities of the types, (B, K).
        type_log_prob: Their logarithms, (B, K).
        mu: Means of the arguments, (B, A).
        sigma: Standard deviations of the arguments, (B, A).
    """

    @checked
    def __init__(
        self, logit: HybridLogit, mask: ArrayLike | Tensor, name: str = "logit"
    ) -> None:
        type_logit, args = logit["action_type"], logit["action_args"]
        self.mu, self.sigma = args["mu"], args["sigma"]
        shape = (type_logit.shape[1], self.mu.shape[1])
        self.mask = as_mask(mask, shape, type_logit.device)

        # The logarithm of the softmax {eq}`hybrid-softmax`, straight from the logits:
        # a probability may be too small for floating point, its logarithm is not.
        self.type_log_prob = log_softmax(type_logit)
        self.prob = self.type_log_prob.exp()
        self.log_sigma = self.sigma.log()
        check_policy(name, self.prob, self.mu, self.log_sigma)

    @property
    def often(self) -> Tensor:
        """The chance that each argument counts, (B, A), added up over the types."""
        return self.prob @ self.mask.to(self.prob.dtype)

    def sample(self, generator: torch.Generator | None = None) -> Any:
        """Draw an action for each state, as ``sample_hybrid_action`` does."""
        return draw(self.prob, self.mu, self.sigma, generator)

    def mode(self) -> Any:
        """Return the greedy action: the most likely type, arguments at their means."""
        action_type = self.type_log_prob.argmax(-1)
        return as_tree(
            {"action_type": action_type, "action_args": self.mu.detach().clone()}
        )

    @checked
    def log_prob_of_heads(
        self, action: HybridAction
    ) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
        """Return the log-probability of the type and the log-density of its arguments.

        Arguments that do not count may hold anything, NaN included.
        """
        action_type, action_args = action["action_type"], action["action_args"]

        # Each sample's row of the mask, and the sum over its arguments.
        data_mask = rows_of(self.mask, action_type, "action.action_type")
        of_args = args_log_density(self.mu, self.sigma, action_args, data_mask)
        # An action far away can have a finite density with an infinite slope.
        with torch.no_grad():
            zeta = (action_args - self.mu) / self.sigma
            slope = torch.where(data_mask, (1 + zeta.square()) / self.sigma, 0.0)
        check_finite(of_args + slope.sum(-1), **{"action.action_args": action_args})

        # The logarithm of $p_k$ at each sample's own type.
        return chosen(self.type_log_prob, action_type), of_args

    def log_prob(self, action: HybridAction) -> Float[Tensor, "B"]:
        """Return the joint log-density of the type and of its arguments.

        It is minus infinity for a forbidden type.
        """
        # The two parts of {eq}`hybrid-log-prob`.
        of_type, of_args = self.log_prob_of_heads(action)
        return of_type + of_args

    def entropy(self) -> Float[Tensor, "B"]:
        """Return the entropy of the whole action, in nats.

        An argument counts as often as its types are chosen.
        """
        # The first sum of {eq}`hybrid-entropy`. A forbidden type adds nothing.
        of_type = -expected(self.prob, self.type_log_prob).sum(-1)

        # The second sum: the entropies $H_j$, each as often as its argument counts.
        # With a standard deviation of 1 an entropy is $\tfrac12 \log(2 \pi e)$.
        of_args = self.often * (self.log_sigma + UNIT_ENTROPY)
        return of_type + of_args.sum(-1)

    def kl(self, other: HybridDistribution) -> Float[Tensor, "B"]:
        """Return the divergence from this distribution to another one, in nats.

        Both have the same mask. The divergence is infinite where the other one has
        forbidden a type that this one may choose.
        """
        here, there = self.mask.tolist(), other.mask.tolist()
        check_that(
            here == there, f"other.mask must equal this mask {here}, got {there}"
        )
        # The two sums of {eq}`hybrid-kl`: over the arguments, and over the types.
        of_args = args_divergence(
            self.often, self.mu, self.sigma, other.mu, other.sigma
        )
        difference = self.type_log_prob - other.type_log_prob
        return expected(self.prob, difference).sum(-1) + of_args
