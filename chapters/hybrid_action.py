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
# **How does a policy choose between "accelerate by this much", "turn by that much" and "stop"?**
# It chooses a type and the numbers that go with it, and the hard part is that most of the numbers
# do not count. After this chapter you can build a policy for such actions, sample from it, and
# compute its log-probability, its entropy and its divergence without a NaN. It takes about 40
# minutes. You need {doc}`policies`: rows of numbers, the race that draws an action, and Gaussian
# actions. {doc}`hybrid_ppo` turns this distribution into a policy and trains it.

# %% tags=["export", "hide-input"]
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

# %% [markdown]
# ## A tree of choices
#
# A **hybrid** (or *parameterised*) action {cite:p}`masson2016` has a **type** $k$, one of $K$, and **arguments**, real
# numbers. Games are full of them: one picks a skill, then a direction and a distance for it.
#
# Our example is a point in a square that has to stop in a target, a task called *Moving*
# {cite:p}`fan2019,hirtz2020`. It has three types. Together they form a tree:

# %% tags=["hide-input"]
from literate_rl.book.pictures import Axis, Mark, Picture, dial, plot, predict

picture = Picture(
    "The tree of a hybrid action",
    "The root chooses one of three types: accelerate, turn, stop. Accelerate has the "
    "argument power, turn has the argument angle, stop has none. The mask has a row of "
    "zeros and ones for each type: 1 0, 0 1 and 0 0. Turn and its angle are emphasised.",
)
root = picture.box(220, 20, "type")
branches = [("accelerate", "power", "10"), ("turn", "angle", "01"), ("stop", "", "00")]
for number, (name, argument, bits) in enumerate(branches):
    x, tone = 74 + 146 * number, "accent" if name == "turn" else ""
    node = picture.box(x, 94, name, tone)
    picture.arrow(root.at(0.5, 1), node.at(0.5, 0), tone=tone, head=False)
    if argument:
        leaf = picture.box(x, 160, argument, tone)
        picture.arrow(node, leaf, tone=tone, head=False)
    else:
        picture.text(x, 160, "no argument", "quiet")
    picture.cells(x - 24, 216, bits, {bits.find("1"): tone})
picture.text(220, 250, "the mask: which arguments count", "quiet")
picture.text(220, 282, "log π = log p(turn) + log f(angle)", "accent", bold=True)
picture

# %% [markdown]
# The policy gives each type a probability $p_k$, and each argument a normal distribution with
# mean $\mu$, standard deviation $\sigma$ and density $f$. It draws *all* arguments and a type,
# and the **mask** says which of the arguments this type uses. Tick arguments in the mask, and draw
# another type. The bars are the gradient of the action's log-probability with respect to the three logits
# $z$, the two means and the two standard deviations: what one action can teach. Those that are
# not zero are called *alive*.

# %% tags=["hide-input"]
import torch

from literate_rl.nets.hybrid_action import HybridDistribution  # we build it below

types, arguments = ["accelerate", "turn", "stop"], ["power", "angle"]
entries = ["z₀", "z₁", "z₂", "μ₁", "μ₂", "σ₁", "σ₂"]
heights = {}


def frame(name, table):
    """Draw the gradient of an action's log-probability under a mask."""
    k = types.index(name)
    numbers = torch.tensor([[0.2, 0.5, -0.4, 0.1, 0.4, 0.8, 0.6]], requires_grad=True)
    z, mu, sigma = numbers.split([3, 2, 2], -1)
    tree = {"action_type": z, "action_args": {"mu": mu, "sigma": sigma}}
    args = torch.tensor([[0.7, -0.3]])
    drawn = {"action_type": torch.tensor([k]), "action_args": args}
    log_prob = HybridDistribution(tree, table).log_prob(drawn)
    gradient = torch.autograd.grad(log_prob, numbers)[0][0].tolist()
    heights[name, table] = gradient
    picture = plot(
        "gradient of log π",
        "The gradient of the action's log-probability with respect to logits, means and "
        "standard deviations, as bars. Those of arguments that do not count are zero.",
        Axis("", 0.4, 7.6, dict(enumerate(entries, 1))),
        Axis("", -2.5, 1.5, ticks=(-2, -1, 0, 1)),
        Mark("line", [0.4, 7.6], [0, 0], "quiet"),
        Mark("bars", range(1, 8), gradient, "accent"),
    )
    used = [f"log f({arguments[j]})" for j in range(2) if table[k][j]]
    parts = [f"log p({name})", *used]
    alive = [entries[i] for i in range(7) if gradient[i] != 0]
    return [picture], (
        f"log π = {' + '.join(parts)} = {log_prob.item():.2f}\n"
        f"alive: {', '.join(alive)}".replace("-", "−")
    )


dial(
    "The mask of a hybrid action",
    lambda *at: frame(at[6], (at[:2], at[2:4], at[4:6])),
    {f"{x}: {y}": (False, True) for x in types for y in arguments}
    | {"type drawn": types},
    start=(True, False, False, True, False, False, "turn"),
)

# %% [markdown]
# **Notice** that only the row of the type that was drawn matters, and that a row without a
# 1 leaves the type's own probability.

# %% tags=["claims"]
of_moving = ((True, False), (False, True), (False, False))
one_row = ((False, False), (False, True), (True, True))
assert frame("turn", of_moving)[1] == frame("turn", one_row)[1], "only the row matters"
assert "= log p(stop) =" in frame("stop", of_moving)[1], "its own probability"
assert "alive: z₀, z₁, z₂, μ₁, σ₁" in frame("accelerate", of_moving)[1]
for gradient in heights.values():
    assert all(x == 0 or abs(x) > 0.1 for x in gradient), "a bar that can be seen"

# %% [markdown]
# We keep all this in a **tree tensor** (`ttorch`, of the package DI-treetensor), a dictionary of
# tensors that can be sliced and moved as a whole. There are two kinds of trees. The
# network describes the policy at $B$ states with logits $z$, means $\mu$ and standard deviations $\sigma$. A sample is
# a type for each state and a vector $u$ of all $A$ arguments. A plain dictionary of that form will do as well.


# %% tags=["export"]
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


# %% [markdown]
# ## The policy network
#
# The network has three parts. An *encoder* turns the state $s$ into a vector $y$ of 32
# features,
#
# $$
# y = \max\bigl(W_2 \max(W_1 s + b_1,\, 0) + b_2,\; 0\bigr) .
# $$ (hybrid-encoder)
#
# Two *heads* read the features. One gives the
# logits $z$ of the types, the other the means of the arguments. The standard deviations do not
# depend on the state at all: they are parameters $\omega \in \mathbb R^A$ of their own, and the
# exponential keeps them positive,
#
# $$
# z = W_z\, y + b_z, \quad \mu = W_\mu\, y + b_\mu, \quad \sigma = e^{\omega} .
# $$ (hybrid-heads)


# %% tags=["export"]
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


# %% [markdown]
# ## Sampling
#
# To act we draw a type, then the arguments. The logits become probabilities by the
# softmax,
#
# $$
# p_k = \frac{e^{z_k}}{\sum_i e^{z_i}} ,
# $$ (hybrid-softmax)
#
# and type $k$ is drawn with probability $p_k$, by the race of {doc}`policies`. Each argument follows a normal
# distribution of its own, $u_j \sim \mathcal N(\mu_j, \sigma_j^2)$, whose density is
#
# $$
# f(u_j) = \frac{1}{\sigma_j \sqrt{2\pi}}
#     \exp\Bigl(-\frac12 \Bigl(\frac{u_j - \mu_j}{\sigma_j}\Bigr)^2\Bigr) .
# $$ (hybrid-gaussian)


# %% tags=["export"]
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


# %% [markdown]
# ## Which arguments count: the mask
#
# The mask $m$ is a table of zeros and ones with a row for each type and a column for each
# argument: $m_{k,j} = 1$ if type $k$ uses argument $j$. For the three types above,
#
# $$
# m = \begin{pmatrix} 1 & 0 \\ 0 & 1 \\ 0 & 0 \end{pmatrix} .
# $$
#
# A row may hold no 1, a single 1 or several. Looking up the row of
# each sample's type gives a mask for the batch, `mask[action_type]`, of shape $(B, A)$.
# `mask_args` keeps the shape and puts zeros where nothing counts. `select_args` picks the one argument of each sample
# that counts, and raises an error if a row has more or fewer: a plain `masked_select` would
# [shift the rows](/docs/errata.md#arguments-that-change-rows) below a type without arguments.


# %% tags=["export"]
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


# %% [markdown]
# ## One distribution
#
# A policy gradient needs the probability of *the action*, not of its parts. The environment
# sees the type and the arguments that count. Their joint density is the probability of the type times the densities
# {eq}`hybrid-gaussian` of its arguments, and its logarithm is a sum,
#
# $$
# \log \pi(k, u \mid s) = \log p_k + \sum_{j=1}^{A} m_{k,j} \log f(u_j) .
# $$ (hybrid-log-prob)
#
# What is the log-probability of a type that has *no* argument? The sum is empty, and the answer is $\log p_k$. Here is
# the density of one state, with a panel for each type:

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three panels under each other over the same axis. Accelerate: a wide bell over the power with area 0.30. Turn: a narrower, higher bell over the angle with area 0.50. Stop: no curve, but one bar of height 0.20 at a point"}}
import matplotlib.pyplot as plt
import numpy as np

prob = torch.tensor([0.2, 0.7, -0.2]).softmax(-1).tolist()
bells = [(0.4, 0.8), (-0.3, 0.6)]
u = np.linspace(-3.0, 3.0, 301)
fig, axes = plt.subplots(3, 1, figsize=(7, 3.6), sharex=True, layout="constrained")
areas = []
for k, (axis, name) in enumerate(zip(axes, ("power", "angle", ""), strict=True)):
    if name:
        mu, sigma = bells[k]
        f = np.exp(-0.5 * ((u - mu) / sigma) ** 2) / (sigma * np.sqrt(2 * np.pi))
        axis.fill_between(u, prob[k] * f, color=f"C{k}", alpha=0.6)
        areas.append(prob[k] * f.sum() * (u[1] - u[0]))
        axis.set_ylabel(f"density\nof the {name}")
    else:
        axis.bar(0, prob[k], width=0.05, color=f"C{k}")
        areas.append(prob[k])
        axis.set_ylabel("probability")
    axis.set_title(f"{types[k]}: {areas[k]:.2f}", size=9)
    axis.set(ylim=(0, 0.38))
_ = axes[-1].set_xlabel("argument $u$")

# %% [markdown]
# **Notice** that the area under a bell is the probability of its type. *Stop* has no argument to be
# spread over, so its probability is the height of one bar. All three together make 1.

# %% tags=["claims"]
assert np.allclose(areas, prob, atol=1e-3), "the probability of its type"
assert [round(area, 2) for area in areas] == [0.3, 0.5, 0.2], "and in its text"

# %% [markdown]
# A normal distribution has the entropy $H_j = \log \sigma_j + \tfrac12 \log(2 \pi e)$. An argument contributes to
# the entropy of the whole only as often as its types are chosen,
#
# $$
# H(\pi) = -\sum_{k} p_k \log p_k + \sum_{k} p_k \sum_j m_{k,j} H_j .
# $$ (hybrid-entropy)
#
# So a bonus on this entropy also asks for types that leave more freedom.
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
# ## Line by line
#
# Three kinds of numbers must do no harm. An argument that *does not count* may hold
# anything, even a NaN. Its standard deviation may be tiny. And a logit may be minus infinity, where a
# state forbids a type. A dangerous number is replaced *before* it enters a formula.
#
# First the sum over the arguments in {eq}`hybrid-log-prob`, and the one in {eq}`hybrid-kl`.


# %% tags=["export"]
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


# %% [markdown]
# Around them stands the distribution.


# %% tags=["export"]
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


# %% [markdown]
# ### Trap: zero times infinity
#
# Multiplying log-densities by the mask looks the same as `where`, until one of them is
# infinite. With `where` afterwards the forward pass is fine, and the gradient is not:

# %%
counts = torch.tensor([True, False])
value = torch.tensor([0.3, torch.inf])


def loss_of(form):
    mu = torch.zeros(2, requires_grad=True)
    held = torch.where(counts, value, mu) if form == "replace before" else value
    density = -0.5 * (held - mu).square()
    if form == "multiply":
        total = (density * counts).sum()
    else:
        total = torch.where(counts, density, 0.0).sum()
    total.backward()
    return total.item(), mu.grad.tolist()


results = {f: loss_of(f) for f in ("multiply", "where afterwards", "replace before")}
print("                        sum  gradient")
for form, (result, grad) in results.items():
    print(f"{form:18s}{result:9.3f}  {grad}")

# %% tags=["claims"]
assert math.isnan(results["multiply"][0]), "zero times infinity"
assert math.isfinite(results["where afterwards"][0]), "the forward pass is fine"
assert math.isnan(results["where afterwards"][1][1]), "the gradient is not"
assert all(map(math.isfinite, results["replace before"][1]))

# %% [markdown]
# ## On the best device

# %%
from literate_rl.data.agents import best_device

device = best_device()
sizes = {"action_type_shape": 3, "action_args_shape": 2}
network = HybridPolicyNetwork(obs_shape=10, action_shape=sizes).to(device)
kinds = torch.tensor([[1, 0], [0, 1], [0, 0]], dtype=torch.bool)
rows = HybridDistribution(network(torch.rand(8, 10, device=device)), kinds)
log_prob = rows.log_prob(rows.mode())
print(f"{tuple(log_prob.shape)} log-probabilities computed on {log_prob.device.type}")

# %% [markdown]
# ## Summary
#
# - A hybrid action is a type and arguments. The mask says which type uses which argument.
# - The log-probability is that of the type plus those of the arguments that count.
# - In the entropy and the divergence an argument counts as often as its types are chosen.
# - A dangerous number is replaced before it enters a formula, or the gradient is NaN.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
predict(
    "A comment in `described` says that `zeros_like` passes no gradient. The loss is the "
    "sum of all σ of a batch of 64 states, and ω is 0. What is the gradient with respect "
    "to each entry of ω?",
    ["0", "1", "64"],
    right="64",
    because="No gradient flows into the zeros. But ω is added to them, once for each "
    "state, and each state adds the derivative of the exponential, which is 1 at 0.",
)

# %% tags=["claims"]
omega = torch.zeros(1, 2, requires_grad=True)
torch.exp(omega + torch.zeros_like(torch.zeros(64, 2))).sum().backward()
assert omega.grad.tolist() == [[64.0, 64.0]], "64"

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function is meant to be the entropy of a hybrid policy, from probabilities of the types,
# standard deviations of the arguments and a mask. `UNIT_ENTROPY` is $\tfrac12 \log(2 \pi e)$. It
# runs, and for a mask of ones it is right. Fix it.


# %%
def answer(prob, sigma, mask):
    of_args = sigma.log() + UNIT_ENTROPY
    return -(prob * prob.log()).sum(-1) + of_args.sum(-1)


from literate_rl.book.exercises import grade


def entropy_of(prob, sigma, mask):
    """Return the entropy as the class computes it."""
    args = {"mu": torch.zeros_like(sigma), "sigma": sigma}
    tree = {"action_type": prob.log(), "action_args": args}
    return HybridDistribution(tree, mask).entropy()


def policies(seed, table):
    """Return probabilities, standard deviations and a mask for two states."""
    generator = torch.Generator().manual_seed(seed)
    prob = torch.rand(2, len(table), generator=generator).softmax(-1)
    sigma = torch.rand(2, len(table[0]), generator=generator) + 0.5
    return prob, sigma, torch.tensor(table, dtype=torch.bool)


cases = [
    policies(0, [[1, 1], [1, 1]]),
    policies(1, [[1, 0], [0, 1], [0, 0]]),
    policies(2, [[1, 0, 1], [0, 0, 1]]),
]
grade(answer, entropy_of, *cases)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(prob, sigma, mask):
    # An argument counts as often as its types are chosen.
    of_args = (prob @ mask.to(prob)) * (sigma.log() + UNIT_ENTROPY)
    return -(prob * prob.log()).sum(-1) + of_args.sum(-1)


grade(answer, entropy_of, *cases)

# %% [markdown]
# ### Exercise 3: from nothing
#
# Write the log-probability {eq}`hybrid-log-prob` of a batch, with nothing but `torch`: from logits `z`, means `mu` and
# standard deviations `sigma` of the policy, its mask, the types `kind` and the arguments `u`. Those that do not count
# may be NaN.


# %%
def answer(z, mu, sigma, mask, kind, u):
    return ...


# %% tags=["hide-input"]
def log_prob_of(z, mu, sigma, mask, kind, u):
    """Return the log-probabilities as the class computes them."""
    tree = {"action_type": z, "action_args": {"mu": mu, "sigma": sigma}}
    drawn = {"action_type": kind, "action_args": u}
    return HybridDistribution(tree, mask).log_prob(drawn)


def some_actions(seed, table):
    """Return a policy, a mask, and actions in which a NaN stands where nothing counts."""
    torch.manual_seed(seed)
    mask = torch.tensor(table, dtype=torch.bool)
    kinds, args = mask.shape
    z, kind = torch.randn(4, kinds), torch.arange(4) % kinds
    mu, u, sigma = torch.randn(4, args), torch.randn(4, args), torch.rand(4, args) + 0.5
    return z, mu, sigma, mask, kind, torch.where(mask[kind], u, torch.nan)


tables = [[1, 1], [1, 1]], [[1, 0], [0, 1], [0, 0]], [[1, 0, 1], [0, 0, 1]]
cases_3 = [some_actions(seed, table) for seed, table in enumerate(tables)]
grade(answer, log_prob_of, *cases_3)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(z, mu, sigma, mask, kind, u):
    used = mask[kind]
    # What does not count is replaced before it enters the formula.
    zeta = (torch.where(used, u, mu) - mu) / sigma
    density = -0.5 * zeta**2 - sigma.log() - 0.5 * math.log(2 * math.pi)
    of_type = z.log_softmax(-1)[torch.arange(len(z)), kind]
    return of_type + torch.where(used, density, 0.0).sum(-1)


grade(answer, log_prob_of, *cases_3)

# %% [markdown]
# ## References
#
# Parameterised actions were defined by {cite:t}`masson2016`; {cite:t}`bester2019` learn
# their values instead of a policy. Moving is a task of {cite:t}`fan2019` and {cite:t}`hirtz2020`. Network and
# sampling function follow chapter 2 of PPOxFamily's tutorial.
