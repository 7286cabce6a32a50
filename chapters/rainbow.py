# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Rainbow
#
# **DQN has six well-known improvements. What do they add, and how do they fit into one agent?**
# Four of them you know. After this chapter you can derive the other two, learning a whole
# distribution of returns and exploring with random weights, and put all six together. It takes
# about 40 minutes. You need {doc}`dqn` and {doc}`replay`. What each part is worth, and on which
# task, is the question of {doc}`rainbow_evidence`.

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
from literate_rl.ppg import ConvolutionalEncodingNetwork
from literate_rl.replay import Batch
from literate_rl.workshop.fast import project_atoms
from literate_rl.workshop.nests import as_discrete, as_space, as_vectors, plain_space
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
    "LogitsOf",
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
# ## What a mean does not say
#
# A hiker wants to get home, which pays 20. Each step costs 1. There are two ways. One is a path
# of eight steps, where one step in five slips and has to be repeated. The other is a bridge of
# three steps. At each of them the hiker may fall, which costs 20 and ends the trip.
#
# The slider sets the probability of falling. The bars show how likely each return is, with
# $\gamma = 0.97$. The dashed line is the mean, the value that DQN learns.

# %% tags=["hide-input"]
import torch

from literate_rl.rainbow import (
    project_distribution,
)  # the package's own; this chapter defines it below
from literate_rl.workshop.pictures import Axis, Mark, Picture, dial, plot

torch.set_num_threads(1)  # the networks of this book are too small to gain from more
low, high, num_atoms, discount = -40.0, 20.0, 61, 0.97
atoms = torch.linspace(low, high, num_atoms, dtype=torch.float64)


def returns_of(num_steps, advance, fall=0.0):
    """Return the probability of each return of a way, worked out from its end."""
    prob = torch.full((num_steps, num_atoms), 1 / num_atoms, dtype=torch.float64)
    last = torch.arange(num_steps) == num_steps - 1
    one = torch.ones(num_steps, dtype=torch.float64)
    for _ in range(100):
        # A step leads on, or home; or the hiker falls into the river; or it slips.
        home = 20.0 * last - one, discount * (~last).double()
        on = project_distribution(prob.roll(-1, 0), *home, low, high)
        river = project_distribution(prob, -20 * one, 0 * one, low, high)
        slip = project_distribution(prob, -one, discount * one, low, high)
        prob = advance * on + fall * river + max(0.0, 1 - advance - fall) * slip
    return prob[0]


falls = [0.0, 0.02, 0.05, 0.08, 0.1, 0.11, 0.12, 0.15, 0.2, 0.3]
path = returns_of(8, advance=0.8)
bridges = [returns_of(3, advance=1 - fall, fall=fall) for fall in falls]


def panel(name, prob):
    mean = (prob @ atoms).item()
    return plot(
        name,
        f"{name}: a bar for each return, and the mean.",
        Axis("return", -43, 25, ticks=(-40, -20, 0, 20)),
        Axis("probability", 0, 1, ticks=(0, 0.5, 1)),
        Mark("bars", atoms.tolist(), prob.clamp(0, 1).tolist(), "accent"),
        Mark("line dashed", [mean, mean], [0, 1], "quiet"),
        width=330,
    )


def two_ways(fall):
    bridge = bridges[falls.index(fall)]
    means = (path @ atoms).item(), (bridge @ atoms).item()
    readout = f"means: path {means[0]:.1f}, bridge {means[1]:.1f}".replace("-", "−")
    return [panel("The path", path), panel("The bridge", bridge)], readout


dial("Two ways home", two_ways, {"chance of falling": falls}, start=(0.1,))

# %% [markdown]
# **Notice** the setting 0.1. The two means are nearly the same, so to DQN the two ways are worth
# nearly the same. But the two ways are very different. The path nearly always returns something
# around its mean. The bridge returns about 16 or less than −19, and its mean never happens.
#
# A **distribution** of returns says all of this. It also gives the network more to learn from: a
# value is one number about a state and an action, a distribution about fifty.

# %% tags=["claims"]
bridge = bridges[falls.index(0.1)]
assert abs((path - bridge) @ atoms) < 1.0, "nearly the same means"
middle = (atoms > -19) & (atoms < 15)
assert bridge[middle].sum() < 1e-6, "its mean never happens"
assert path[(atoms > -6) & (atoms < 12)].sum() > 0.95, "around its mean"
for prob in (path, *bridges):
    assert abs(prob.sum() - 1) < 1e-9
slow = torch.tensor(0.0)
for _ in range(8):  # the value of the path, by the Bellman equation of each step
    slow = (0.8 * (discount * slow + (20 if slow == 0 else 0) - 1) - 0.2) / (
        1 - 0.2 * discount
    )
assert abs(slow - path @ atoms) < 1e-5, "the mean of the distribution is the value"

# %% [markdown]
# ## Learning a distribution
#
# Let $Z(s, a)$ be the return after an action, a random number; so far we only asked for its mean
# $Q(s, a)$. It obeys a Bellman equation too. The return *is* the reward plus $\gamma$ times the
# return that follows,
#
# $$
# Z(s, a) \overset{D}{=} r + \gamma \, Z(s', a') , \qquad a' = \operatorname*{argmax}_{a}
#     \mathbb{E}[Z(s', a)] ,
# $$ (def-return-distribution)
#
# where $\overset{D}{=}$ says that both sides have the same distribution {cite:p}`bellemare2017`.
# The best action is still the one with the largest mean.
#
# How does a network return a distribution? As a bar chart. The bars stand on fixed returns, the
# **atoms** $x_1 < \dots < x_K$, evenly spaced with distance $\Delta$ from the smallest return we
# expect to the largest. For each action the network returns $K$ logits, whose softmax gives the
# probability $q_k(s, a)$ of each atom. With 51 atoms the algorithm is called **C51**. Its value
# of an action is the mean $Q(s, a) = \sum_k q_k(s, a)\, x_k$.
#
# By {eq}`def-return-distribution` the target is the distribution of the next state, moved: each
# atom is multiplied by the discount, shifted by the reward, and clipped to the ends,
#
# $$
# \tilde x_k = \min\bigl( \max( r + \gamma' x_k ,\, x_1 ),\, x_K \bigr) .
# $$ (shifted-atom)
#
# Here $\gamma'$ is $\gamma$, or $\gamma^m$ after a window of $m$ steps, or 0 after a termination:
# what {doc}`replay` calls `discount`. Each moved atom carries its probability, and we call the
# two together a piece. The pieces hardly ever land on atoms again. So each is divided between the
# two atoms around it, with more for the nearer one. An atom $x_j$ gets
#
# $$
# \hat q_j = \sum_{k=1}^{K} \max\!\Bigl( 0,\; 1 - \frac{|\tilde x_k - x_j|}{\Delta} \Bigr)\,
#     q_k(s', a') ,
# $$ (projection)
#
# which is called the **projection**. Move the sliders. The left picture shows where the pieces
# land, the right one what the atoms get.

# %% tags=["hide-input"]
few = torch.linspace(0, 10, 11, dtype=torch.float64)
before = torch.tensor([[1, 2, 4, 7, 9, 7, 4, 3, 5, 6, 2]], dtype=torch.float64)
before /= before.sum()
rewards, powers = [-3.0, -1.0, 0.0, 0.5, 1.0, 2.4, 4.0], [0.0, 0.5, 0.9, 1.0]


def moved(reward, power):
    """Return where the pieces land and what the atoms get."""
    r, d = (torch.tensor([x], dtype=torch.float64) for x in (reward, power))
    return (r + d * few).clamp(0, 10), project_distribution(before, r, d, 0.0, 10.0)[0]


def atoms_plot(name, places, heights, tone):
    pieces = zip(places, heights, strict=True)
    rises = [Mark("line thick", [x, x], [0, y], tone) for x, y in pieces]
    return plot(
        name,
        f"{name}: an upright line for each piece, as high as its probability.",
        Axis("return", -0.4, 10.4, ticks=range(0, 11, 2)),
        Axis("probability", 0, 1, ticks=(0, 0.5, 1)),
        *rises,
        width=330,
    )


def projected(reward, power):
    places, after = moved(reward, power)
    mean, exact = (after @ few).item(), (reward + power * (before @ few)).item()
    readout = (
        f"mass {after.sum():.3f}; mean {mean:.2f}, "
        f"reward plus discount times the mean before: {exact:.2f}"
    ).replace("-", "−")
    pictures = [
        atoms_plot("Where the pieces land", places.tolist(), before[0].tolist(), ""),
        atoms_plot(
            "What the atoms get", few.tolist(), after.clamp(0, 1).tolist(), "accent"
        ),
    ]
    return pictures, readout


knobs = {"reward": rewards, "discount": powers}
dial("Move, then share out", projected, knobs, start=(0.5, 0.9))

# %% [markdown]
# **Notice** three things. The mass, the sum of all probabilities, is always 1, because the two
# shares of a piece add up to the whole piece.
#
# The mean is what the Bellman equation of values asks for, as long as no piece is clipped. This
# is because the two shares of a piece at $\tilde x$ balance at $\tilde x$: $x_j (x_{j+1} - \tilde
# x) + x_{j+1} (\tilde x - x_j) = \Delta \tilde x$. If pieces are clipped the mean is wrong, for
# instance with reward 4 and discount 1. So the range of the atoms, the **support**, has to be
# wide enough.
#
# With discount 0 everything lands at the reward, or at the end of the support next to it.

# %% tags=["claims"]
for reward in rewards:
    for power in powers:
        places, after = moved(reward, power)
        exact = reward + power * (before @ few).item()
        inside = reward >= 0 and reward + 10 * power <= 10
        assert abs(after.sum() - 1) < 1e-12, "the mass is always 1"
        assert not inside or abs(after @ few - exact) < 1e-9, "the mean is kept"
assert abs(moved(4.0, 1.0)[1] @ few - 4 - before @ few) > 0.5, "wrong at the ends"
assert moved(1.0, 0.0)[1][1] == 1, "everything lands where the reward is"

# %% [markdown]
# ### Line by line
#
# The plain form is a loop over the batch and over atoms. The place where a piece lands is
# measured in spacings from the first atom. Rounded down it is the number of the atom below,
# counted from 0.


# %% tags=["export"]
@checked
def project_distribution_loop(
    prob: Float[Tensor, "B K"],
    reward: Float[Tensor, "B"],
    discount: Float[Tensor, "B"],
    value_min: float,
    value_max: float,
) -> Float[Tensor, "B K"]:
    """Move distributions of returns and project them on the atoms, in plain loops."""
    batch, num_atoms = prob.shape
    spacing = (value_max - value_min) / (num_atoms - 1)
    result = torch.zeros_like(prob)
    for b in range(batch):
        for k in range(num_atoms):
            # Where atom $k$ lands, {eq}`shifted-atom`, in spacings from the first atom.
            value = reward[b] + discount[b] * (value_min + k * spacing)
            place = (value.clamp(value_min, value_max) - value_min) / spacing
            # The nearer neighbour gets more of its mass, {eq}`projection`. The last
            # atom counts as the upper end of the last gap.
            below = min(int(place), num_atoms - 2)
            result[b, below] += prob[b, k] * (below + 1 - place)
            result[b, below + 1] += prob[b, k] * (place - below)
    return result


# %% [markdown]
# The function that the agent calls does the same for all pieces at once; {doc}`workshop/fast`
# derives it. For 51 atoms it takes less than half the time of the fastest form that we found
# elsewhere ({doc}`/docs/results`).


# %% tags=["export"]
@checked
def project_distribution(
    prob: Float[Tensor, "B K"],
    reward: Float[Tensor, "B"],
    discount: Float[Tensor, "B"],
    value_min: float,
    value_max: float,
) -> Float[Tensor, "B K"]:
    """Move distributions of returns and project them on the atoms, without gradient.

    Source: Bellemare, Dabney and Munos 2017, equation 7.

    Args:
        prob: Probabilities of the atoms at the states that the steps led to.
        reward: Discounted sum of the rewards on the way.
        discount: Factor on the return from there on; 0 where the episode terminated.
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


# %% [markdown]
# The projected distribution $\hat q$ is the target, and the distribution $q$ at the state and
# action of the step has to come closer to it. We measure how far it is by the KL divergence of
# {doc}`policies`,
#
# $$
# \mathcal L(\hat q, q) = \sum_{k=1}^{K} \hat q_k \, (\log \hat q_k - \log q_k) , \qquad
# \frac{\partial \mathcal L}{\partial z_k} = q_k - \hat q_k ,
# $$ (categorical-error)
#
# with the logits $z$ of $q$. The gradient is simple: a step downhill raises each logit whose atom
# has too little probability. It is the gradient of classification with $K$ classes, where the
# right answer is a distribution.
#
# Since the target is a constant, many implementations leave out $\log \hat q_k$ (what remains is
# the cross-entropy). We keep it, because then the error is 0 when nothing is left to learn, which
# is what priorities need.


# %% tags=["export"]
@checked
def categorical_error(
    log_prob: Float[Tensor, "*B K"], target: Float[Tensor, "*B K"]
) -> Float[Tensor, "*B"]:
    """Compute how far distributions are from their targets, as a KL divergence.

    Args:
        log_prob: Log-probabilities of the atoms, with gradient.
        target: What the probabilities should be; a constant.
    """
    target = target.detach()
    # Where the target is 0 nothing is added, even if the log-probability is -inf.
    expected = (target * log_prob.masked_fill(target == 0, 0.0)).sum(-1)
    # {eq}`categorical-error`; zero times the logarithm of zero is zero here.
    error: Tensor = torch.special.xlogy(target, target).sum(-1) - expected
    check_finite(error, log_prob=log_prob, target=target)
    return error


# %% [markdown]
# ## Layers with noise
#
# DQN explores with random actions: now and then any action, whether the state matters or not.
# **Noisy layers** {cite:p}`fortunato2018` make the *weights* random and learn how random. Each
# weight has a mean and a standard deviation, and is drawn again and again:
#
# $$
# W = \bar W + \sigma^W \odot \eta^W , \qquad b = \bar b + \sigma^b \odot \eta^b .
# $$ (noisy-weights)
#
# Here $\odot$ multiplies element by element, and $\eta$ is noise with mean 0. In states where the
# noise changes which action has the largest value, the network explores. In states where it does
# not, the network is greedy. Means and deviations are trained by the same loss.
#
# A layer with $m$ inputs and $n$ outputs would need $m n$ random numbers for its weights in each
# draw. **Factorised** noise needs only $m + n$ in all, one for each input $j$ and one for each
# output $i$, and multiplies them:
#
# $$
# \eta^W_{ij} = \phi_i \, \phi_j , \qquad \eta^b_i = \phi_i , \qquad
# \phi = \operatorname{sgn}(\eta) \sqrt{|\eta|} , \quad \eta \sim \mathcal N(0, 1) .
# $$ (factorised-noise)
#
# The roots keep very large products rare. The variance of a product is
# $\mathbb{E}[(\phi_i \phi_j)^2] = (\mathbb{E}|\eta|)^2 = 2 / \pi$, not far from the 1 of a normal
# number.
#
# Most implementations store the noise in the layer and have a method that draws it again. Here it
# is an *argument*, as for all policies of this book ({doc}`policies`): the same noise gives the
# same action, no call can be forgotten, and there is nothing to store in a checkpoint.
#
# Factorised noise has one more advantage. The noise of a weight is a product, so the factor of
# the output can be taken out of the sum over inputs. With $\phi^{\text{in}}$ for the inputs and
# $\phi^{\text{out}}$ for the outputs,
#
# $$
# W x + b = \bar W x + \bar b
#     + \phi^{\text{out}} \odot \bigl( \sigma^W (\phi^{\text{in}} \odot x) + \sigma^b \bigr) .
# $$ (noisy-layer)
#
# The right-hand side never makes a random matrix. So each row of a batch can have noise of its
# own, at the price of a second layer. When four environments act at once, they explore
# independently.
#
# At the start the means are drawn uniformly, and all deviations are equal,
#
# $$
# \bar W, \bar b \sim \mathcal U\bigl( -\tfrac{1}{\sqrt m}, \tfrac{1}{\sqrt m} \bigr) ,
# \qquad \sigma^W = \sigma^b = \frac{\sigma_0}{\sqrt m} .
# $$ (noisy-start)


# %% tags=["export"]
@checked
def factorised_noise(
    num_steps: Count, num_rows: Count, size: Count, generator: torch.Generator
) -> Tensor:
    """Draw the noise of noisy layers, on the CPU."""
    normal = torch.randn(num_steps, num_rows, size, generator=generator)
    # The signed roots of {eq}`factorised-noise`.
    result: Tensor = normal.sign() * normal.abs().sqrt()
    return result


class NoisyLinear(nn.Module):
    """A linear layer whose weights are random, with deviations that are learned.

    The noise is an argument; the layer does not store any.

    Source: Fortunato et al. 2018, section 3, factorised noise.

    Args:
        inputs: Number of inputs m.
        outputs: Number of outputs n.
        sigma: The deviations at the start, times the root of ``inputs``.
    """

    @checked
    def __init__(self, inputs: Count, outputs: Count, sigma: NonNegative = 0.5) -> None:
        super().__init__()
        self.sizes = [inputs, outputs]
        # The means: PyTorch initialises a linear layer as {eq}`noisy-start` says.
        self.mean = nn.Linear(inputs, outputs)
        # The deviations are a layer too; all start with the same number.
        self.deviation = nn.Linear(inputs, outputs)
        for parameter in self.deviation.parameters():
            nn.init.constant_(parameter, sigma / math.sqrt(inputs))

    @checked
    def forward(
        self,
        x: Float[Tensor, "*B inputs"],
        noise: Float[Tensor, "*B size"] | Float[Tensor, "size"] | float,
    ) -> Float[Tensor, "*B outputs"]:
        """Return the outputs of inputs, with one noise for all or one for each row.

        With noise 0.0 the weights are their means.
        """
        if isinstance(noise, float):
            return linear(x, self.mean.weight, self.mean.bias)
        into, out = noise.split(self.sizes, -1)
        # One noise for all rows: the random weights and biases of {eq}`noisy-weights`.
        if noise.dim() == 1:
            factor = torch.outer(out, into)
            weight = torch.addcmul(self.mean.weight, self.deviation.weight, factor)
            bias = torch.addcmul(self.mean.bias, self.deviation.bias, out)
            return linear(x, weight, bias)
        # One for each row: the factor is taken out of the sum, {eq}`noisy-layer`.
        return torch.addcmul(self.mean(x), out, self.deviation(into * x))


# %% [markdown]
# Here is a layer with two outputs, at one input, with 2000 draws of its weights. Each dot is one
# draw of the two outputs.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two clouds of dots around the same middle. The one with independent noise of each weight is round; that with factorised noise has the shape of a soft cross"}}
import matplotlib.pyplot as plt

torch.manual_seed(0)
layer, x = NoisyLinear(16, 2), torch.ones(16)
with torch.no_grad():
    noise = factorised_noise(1, 2000, 18, torch.Generator().manual_seed(0))[0]
    factorised = layer(x.expand(2000, -1), noise)
    independent = torch.randn(2000, 2, 16) @ x + torch.randn(2000, 2)
    independent = layer(x, 0.0) + independent * layer.deviation.weight[0, 0]
fig, axes = plt.subplots(1, 2, figsize=(6, 2.8), sharex=True, sharey=True)
clouds = {"independent noise": independent, "factorised noise": factorised}
for axis, (name, cloud) in zip(axes, clouds.items(), strict=True):
    axis.plot(*cloud.T, ".", markersize=2, alpha=0.4)
    axis.plot(*layer(x, 0.0).detach(), "k+", markersize=12)
    axis.set_title(name, fontsize=10)
    axis.set_xlabel("first output")
axes[0].set_ylabel("second output")
fig.tight_layout()

# %% [markdown]
# **Notice** that both clouds lie around the cross, the output without noise, and are about
# equally wide. With factorised noise the outputs share the noise of the inputs, so they are no
# longer independent: when one is far from the cross, the other tends to be far too, on either
# side. That is the price of factorising.

# %% tags=["claims"]
deviations = torch.stack([cloud.std(0) for cloud in clouds.values()])
assert (deviations[0] / deviations[1] - 1).abs().max() < 0.35, "about equally wide"
off = factorised - layer(x, 0.0).detach()
assert torch.corrcoef(off.T)[0, 1].abs() < 0.1, "with either sign"
assert torch.corrcoef(off.abs().T)[0, 1] > 0.1, "far out together"

# %% [markdown]
# ## Six parts on one drawing
#
# Together with these two, we have seen six improvements of DQN. {cite:t}`hessel2018` put them
# together and called the result **Rainbow**.

# %% tags=["hide-input"]
picture = Picture(
    "The six parts of Rainbow",
    "Environments send steps to a memory, which draws windows of n steps by priority. A "
    "network with noisy layers, a dueling head and distributions acts. It chooses the next "
    "action and an older network judges it. The moved distribution is the target, and the "
    "error goes back to the memory as priority.",
)
world = picture.box(66, 40, "environments", width=128)
memory = picture.box(66, 200, "memory\n3 priorities\n4 n steps", width=128)
network = picture.box(
    334, 40, "network\n2 dueling\n5 distributions\n6 noisy layers", "accent", 150
)
older = picture.box(334, 200, "older network\njudges", width=150)
error = picture.box(210, 320, "error of distributions", width=190)
picture.arrow(world.at(0.5, 1), memory.at(0.5, 0), "steps", side=-1)
picture.arrow(network.at(0, 0.3), world.at(1, 0.4), "actions", side=1)
picture.arrow(memory.at(1, 0.1), network.at(0, 0.9), "states", side=-1)
picture.arrow(memory.at(1, 0.6), older.at(0, 0.6), "next states", side=-1)
picture.arrow(network.at(0.5, 1), older.at(0.5, 0), "1 double:\nnext action", side=-1)
picture.arrow(older.at(0.4, 1), error.at(0.8, 0), "target", side=-1)
picture.arrow(network.at(1, 0.7), error.at(1, 0.5), "", bend=76)
picture.arrow(error.at(0, 0.5), memory.at(0.5, 1), "priorities", side=1)
picture

# %% [markdown]
# | no. | part | what it changes | where |
# |---|---|---|---|
# | 1 | double Q-learning | which network chooses the next action | {doc}`dqn` |
# | 2 | dueling network | value and advantages are separate | {doc}`dqn` |
# | 3 | priorities | which steps are drawn | {doc}`replay` |
# | 4 | $n$ steps | how far a target looks | {doc}`replay` |
# | 5 | distributions | what is learned | above |
# | 6 | noisy layers | how to explore | above |
#
# They are nearly independent, and each can be switched off. Only distributions change two of the
# others. With distributions, dueling happens in the logits, atom by atom. If $z^V_k$ are the
# logits of the state and $z^A_{a,k}$ those of the actions,
#
# $$
# z_{a,k} = z^V_k + z^A_{a,k} - \frac1N \sum_{a'} z^A_{a',k} .
# $$ (dueling-logits)
#
# And in double Q-learning, the next action is the one with the largest mean.


# %% tags=["export", "hide-input"]
class PictureLayer(nn.Module):
    """A first layer for pictures, which may come flat: the encoder of {doc}`ppg`.

    Args:
        space: The space of one picture.
        outputs: Number of outputs.
    """

    def __init__(self, space: spaces.Box, outputs: int) -> None:
        super().__init__()
        self.shape = space.shape
        self.encoder = ConvolutionalEncodingNetwork(space, outputs)

    def forward(self, obs: Tensor) -> Tensor:
        """Return features of pictures."""
        if obs.shape[-3:] != self.shape:
            obs = obs.unflatten(-1, self.shape)
        features: Tensor = self.encoder(obs)[0]
        return features


# %% tags=["export"]
class RainbowNetwork(nn.Module):
    """A network for the logits of N distributions over K atoms.

    Args:
        inputs: Size of an observation, or the space of pictures.
        num_actions: Number of actions N.
        num_atoms: Number of atoms K; 1 for values without a distribution.
        hidden: Width of the hidden layers.
        dueling: Whether a state's value and its actions' advantages are separate.
        noisy: Whether the last two layers are noisy.
        sigma: As in ``NoisyLinear``.

    Attributes:
        noise_sizes: How many random numbers each noisy layer needs.
    """

    @checked
    def __init__(
        self,
        inputs: Count | spaces.Box,
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
        if isinstance(inputs, spaces.Box):
            self.first: nn.Module = PictureLayer(inputs, hidden)
        else:
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
        parts: Any = [noise] * len(self.layers)
        if self.noisy and not isinstance(noise, float):
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
# A network of your own may return probabilities, as {doc}`contracts` asks for. Their logarithms
# are logits too, since a softmax undoes the logarithm. A small number is added to avoid the
# logarithm of zero. It also makes the gradient smaller where a probability is tiny, so use logits
# if you have them.


# %% tags=["export"]
class LogitsOf(nn.Module):
    """Makes a network that returns probabilities ``(B, N, K)`` one that returns logits.

    Args:
        model: The network, a function of observations.
        num_actions: Number of actions N.
        num_atoms: Number of atoms K.
    """

    noise_sizes: tuple[int, ...] = ()

    def __init__(self, model: nn.Module, num_actions: int, num_atoms: int) -> None:
        super().__init__()
        self.model, self.num_actions, self.num_atoms = model, num_actions, num_atoms

    def forward(self, obs: Tensor, noise: Tensor | float) -> Tensor:
        """Return logits for observations; there is no noise."""
        prob: Tensor = self.model(obs)
        return (prob + 1e-8).log()


# %% [markdown]
# The policy acts by the means of its distributions. Its noise is that of the layers, followed by
# that of ε-greedy ({doc}`dqn`). An untrained network with the noise of its layers alone explores
# too little, so our settings begin with random actions and end them after 2000 steps. The layers
# may keep one noise for several steps, which can decide whether an agent explores at all
# ({doc}`rainbow_evidence`).


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
        recipe: As in ``Policy``.

    Attributes:
        noise_size: How many random numbers the layers need for a row.
        distributional: Whether there is more than one atom.
    """

    atoms: Tensor

    def __init__(
        self,
        network: Any,
        actions: Any,
        value_min: float,
        value_max: float,
        hold: int = 1,
        recipe: tuple[str, dict[str, Any]] = ("", {}),
    ) -> None:
        super().__init__(network, actions, recipe)
        self.value_min, self.value_max, self.hold = value_min, value_max, hold
        atoms = torch.linspace(value_min, value_max, network.num_atoms)
        self.register_buffer("atoms", atoms)
        self.distributional = network.num_atoms > 1
        self.noise_size = sum(network.noise_sizes)
        self.num_actions = network.num_actions

    def mean(self, logit: Tensor) -> Tensor:
        """Return the means of distributions, given their logits."""
        # With a single atom a logit is the value itself.
        return logit.softmax(-1) @ self.atoms if self.distributional else logit[..., 0]

    def forward(self, obs: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """Return the values of all actions."""
        return self.mean(self.network(obs, noise))

    def log_prob(self, obs: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """Return the log-probabilities of the atoms, for all actions."""
        logit: Tensor = self.network(obs, noise)
        return logit.log_softmax(-1)

    def value(self, obs: Tensor) -> Tensor:
        """Return the value of the best action."""
        best: Tensor = self(obs).amax(-1)
        return best

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

    def act(self, obs: Tensor, noise: Tensor | float) -> Tensor:
        """Return the actions that follow from observations and noise; 0.0 is greedy."""
        if isinstance(noise, float) or not self.noise_size:
            return super().act(obs, noise)
        layers, random = noise.split([self.noise_size, self.num_actions], -1)
        action: Tensor = self.actions.choose(self(obs, layers), random)
        return action


# %% tags=["export", "hide-input"]
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
    hold: Count = 1,
) -> RainbowPolicy:
    """Build the policy that fits the spaces of one environment.

    Args:
        observation_space: A box of vectors or of pictures, which may come flat; or what
            ``plain_space`` made of it.
        action_space: A Discrete space, likewise.
        hidden: Width of the hidden layers.
        num_atoms: Atoms of a distribution; 1 for values alone.
        value_min: First of the atoms.
        value_max: Last of them.
        dueling: Whether a state's value and its actions' advantages are separate.
        noisy: Whether the last two layers are noisy.
        sigma: As in ``NoisyLinear``.
        hold: Steps that one noise of the layers lasts.
    """
    box, discrete = as_space(observation_space), as_discrete(action_space)
    num_actions = int(discrete.n)
    if isinstance(box, spaces.Box) and len(box.shape) == 3:
        inputs: Any = box
    else:
        inputs = as_vectors(box).shape[0]
    network = RainbowNetwork(
        inputs, num_actions, num_atoms, hidden, dueling, noisy, sigma
    )
    # What a checkpoint needs in order to build the policy again.
    recipe = {
        "observation_space": plain_space(box),
        "action_space": plain_space(discrete),
        "hidden": hidden,
        "num_atoms": num_atoms,
        "value_min": value_min,
        "value_max": value_max,
        "dueling": dueling,
        "noisy": noisy,
        "sigma": sigma,
        "hold": hold,
    }
    actions = EpsilonGreedy(num_actions, int(discrete.start))
    built = "make_rainbow_policy", recipe
    return RainbowPolicy(network, actions, value_min, value_max, hold, built)


# %% [markdown]
# ### The error of a batch
#
# Now everything meets in one function. Take a window with reward $r$, discount $\gamma'$ and next
# state $s'$, the network in training $\theta$ and the older one $\bar\theta$. Then
#
# $$
# a^* = \operatorname*{argmax}_a Q_\theta(s', a) , \qquad
# \hat q = \text{projection of } q_{\bar\theta}(s', a^*) \text{ moved by } r, \gamma' , \qquad
# \text{error} = \mathcal L\bigl( \hat q,\, q_\theta(s, a) \bigr) .
# $$ (rainbow-target)
#
# There are three passes through noisy layers, and each draws a noise of its own. If choosing and
# judging shared one noise, an action that the noise favours would be chosen *and* overrated.
# Double Q-learning is there to prevent just that.


# %% tags=["export"]
@checked
def rainbow_error(
    policy: Any,
    target_policy: Any,
    batch: Batch,
    generator: torch.Generator,
    double: bool = True,
) -> QError:
    """Compare distributions with their targets, or values if there is only one atom.

    Args:
        policy: The policy in training.
        target_policy: Its older copy.
        batch: Windows of steps, as the buffer returned them.
        generator: The source of the layers' noise.
        double: Whether the policy in training chooses the next action.
    """
    own, choosing, judging = draw_noise(policy, 3, generator)
    with torch.no_grad():
        # The older network gives the returns that follow each action. The network in
        # training chooses the action, or the older one itself without ``double``.
        following = target_policy.network(batch.next_obs, judging)
        next_q = target_policy.mean(following)
        chooser = policy(batch.next_obs, choosing) if double else next_q
        best = chooser.argmax(-1)
    taken = of_action(policy.network(batch.obs, own), batch.action)

    # Without distributions this is the error of DQN.
    if not policy.distributional:
        best_q = next_q.gather(-1, best.unsqueeze(-1))
        aim = q_target(batch.reward, batch.discount, best_q)
        q = taken.squeeze(-1)
        loss = smooth_l1_loss(q, aim, reduction="none")
        return QError(loss, (aim - q).detach(), q.detach())

    # The returns that follow are moved and projected, {eq}`rainbow-target`. The error
    # is also the priority, because it says how much there is to learn.
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
    """Return the noise of some passes, each 0.0 without noisy layers."""
    if not policy.noise_size:
        return [0.0] * passes
    noise = factorised_noise(1, passes, policy.noise_size, generator)[0]
    return list(noise.to(policy.atoms.device))


# %% [markdown]
# The agent is DQN with this error. Its loop, its buffer and its target network stay as they are.
# The rest is settings.


# %% tags=["export"]
class Rainbow(DQN):
    """DQN with the error of distributions.

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


@checked
@dataclass(frozen=True)
class RainbowConfig(DQNConfig):
    """Settings of Rainbow: those of DQN with other defaults, and some of its own.

    Attributes:
        num_atoms: Atoms of a distribution; 1 for values alone.
        value_min: First of the atoms.
        value_max: Last of them.
        noisy: Whether the last two layers are noisy.
        sigma: Deviations of noisy layers at the start, times the root of their inputs.
        hold: Steps that one noise of the layers lasts.
    """

    total_steps: Count = 30_000
    dueling: bool = True
    num_steps: Count = 10
    learning_rate: Positive = 1e-3
    anneal: bool = True
    batch_size: Count = 64
    tau: Fraction = 0.02
    epsilon_end: Fraction = 0.0
    epsilon_steps: Count = 2000
    alpha: NonNegative = 0.5
    num_atoms: Count = 51
    value_min: float = 0.0
    value_max: float = 100.0
    noisy: bool = True
    sigma: NonNegative = 0.1
    hold: Count = 1


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


def rainbow_settings(env: str) -> RainbowConfig:
    """Return settings for an environment: its own if we know some, else the defaults.

    Args:
        env: Id of the environment.
    """
    return RainbowConfig(**SETTINGS.get(env, {}))


# %% [markdown]
# ## See it
#
# Rainbow on CartPole, with the settings above.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Returns of Rainbow over 30,000 steps of CartPole, a thin line for each seed: they rise to near 500, at different times"}}
import numpy as np

from literate_rl.workshop.runs import stored_runs

(runs,) = stored_runs("rainbow_cartpole").values()
fig, axis = plt.subplots(figsize=(7, 2.6))
axis.plot(runs.steps, runs.curves.T, color="C0", alpha=0.4, linewidth=0.8)
axis.plot(runs.steps, runs.curves.mean(0), color="C0", linewidth=2)
axis.set(xlabel="steps", ylabel="return while training", ylim=(0, 510))
fig.tight_layout()
print(
    "last policy, 100 greedy episodes, seed by seed:", *runs.final.round().astype(int)
)

# %% [markdown]
# **Notice** that the runs get to the top at different times, but all ten last policies end at 475 or
# more. DQN reaches that in nine of ten runs, with 20,000 steps more ({doc}`dqn`). Both have targets
# of twenty steps, and an update with 128 of them after every two steps. With a quarter of this
# computation, and $n = 10$, only two of the first five runs of Rainbow reach 475
# ({doc}`rainbow_evidence`).

# %% tags=["claims"]
assert len(runs.final) == 10
assert runs.final.min() >= 475, "all ten"
assert (stored_runs("dqn_cartpole")["DQN"].final >= 475).sum() == 9
quarter = stored_runs("rainbow_ablation")["all six parts"].final
assert (len(quarter), (quarter >= 475).sum()) == (5, 2), "two of five"

# %% [markdown]
# ## Traps
#
# ### Trap: a network that cannot unlearn
#
# The error needs the logarithm of a probability, and the logarithm of zero is minus infinity. A
# popular remedy is to clamp the probability, to hold it above a small number, as
# [CleanRL](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/c51.py#L230)
# does: `pmf.clamp(1e-5, 1 - 1e-5).log()`. Where it is held, the gradient is zero. So a network
# that is sure, and wrong, stays wrong. Here it puts nearly all probability on the last of three
# atoms, but the first is right. We print the gradient of the last logit.

# %%
right = torch.tensor([[1.0, 0.0, 0.0]])
for sure in (5.0, 10.0, 15.0):
    line = f"logit {sure:4.0f}, gradient:"
    for name, log in (
        ("held", lambda z: z.softmax(-1).clamp(1e-5, 1 - 1e-5).log()),
        ("plus 1e-6", lambda z: (z.softmax(-1) + 1e-6).log()),
        ("log_softmax", lambda z: z.log_softmax(-1)),
    ):
        logit = torch.tensor([[0.0, 0.0, sure]], requires_grad=True)
        error = -(right * log(logit)).sum()
        line += f"  {name} {torch.autograd.grad(error, logit)[0][0, 2]:.3f}"
    print(line)

# %% [markdown]
# The right gradient is almost 1. Clamping loses all of it once the network is sure enough, and
# adding a small number loses a part. `log_softmax` computes the logarithm from logits and loses
# nothing.

# %% tags=["claims"]
assert line == ("logit   15, gradient:  held 0.000  plus 1e-6 0.234  log_softmax 1.000")

# %% [markdown]
# ### Trap: a piece that lands on an atom
#
# The usual form of the projection rounds the place $y$ of a piece, in spacings, down to $l$ and
# up to $u$. The lower atom gets the share $u - y$ and the upper one $y - l$. If $y$ is exactly on
# an atom, then $l = u = y$, both shares are zero, and the mass is gone. Then the target of a
# terminated step whose reward is an atom is zero everywhere. This bug has been found several
# times ({doc}`/docs/errata`). Here the upper neighbour is always the *next* atom, so it cannot
# happen.


# %%
def rounded(prob, place):
    """Divide pieces between the rounded numbers, as many programs once did."""
    lower, upper = place.floor().long(), place.ceil().long()
    result = torch.zeros_like(prob)
    result.scatter_add_(1, lower, prob * (upper - place))
    return result.scatter_add_(1, upper, prob * (place - lower))


place = torch.full((1, 11), 2.0, dtype=torch.float64)  # terminated, with reward 2
one = torch.ones(1, dtype=torch.float64)
print("mass that is left:", rounded(before, place).sum().item())
print("here:", project_distribution(before, 2 * one, 0 * one, 0.0, 10.0).sum().item())

# %% tags=["claims"]
assert rounded(before, place).sum() == 0

# %% [markdown]
# ## What well-known implementations do
#
# | choice | this chapter | [CleanRL](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/rainbow_atari.py) | [Tianshou](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/algorithm/modelfree/rainbow.py) | [Dopamine, full Rainbow](https://github.com/google/dopamine/blob/5873f5494ee0c2d7c016d0ab2ad530354fec59d0/dopamine/jax/agents/full_rainbow/full_rainbow_agent.py) | [Machin](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/rainbow.py) | [rainbow-is-all-you-need](https://github.com/Curt-Park/rainbow-is-all-you-need/blob/e864f0be10d028aebcbfac1d48c219813f3d48f9/08_rainbow.py) |
# |---|---|---|---|---|---|---|
# | logarithm of the error | from logits | [held at $10^{-5}$](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/rainbow_atari.py#L500) | [plus $10^{-8}$](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/algorithm/modelfree/c51.py#L154) | [from logits](https://github.com/google/dopamine/blob/5873f5494ee0c2d7c016d0ab2ad530354fec59d0/dopamine/jax/agents/full_rainbow/full_rainbow_agent.py#L161-L163) | [plus $10^{-6}$](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/rainbow.py#L301) | [from logits](https://github.com/Curt-Park/rainbow-is-all-you-need/blob/e864f0be10d028aebcbfac1d48c219813f3d48f9/08_rainbow.py#L976-L978) |
# | a piece on an atom | next atom is the upper one | [repaired](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/rainbow_atari.py#L488-L490) | [hats over all atoms](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/algorithm/modelfree/c51.py#L137-L141) | [hats](https://github.com/google/dopamine/blob/5873f5494ee0c2d7c016d0ab2ad530354fec59d0/dopamine/jax/agents/rainbow/rainbow_agent.py#L493) | [lost, except at the ends](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/rainbow.py#L256-L272) | [next atom](https://github.com/Curt-Park/rainbow-is-all-you-need/blob/e864f0be10d028aebcbfac1d48c219813f3d48f9/08_rainbow.py#L955-L956) |
# | noise | factorised, an argument | [independent](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/rainbow_atari.py#L134-L148), a buffer | [factorised](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/utils/net/discrete.py#L357-L364), parameters without gradient | [factorised](https://github.com/google/dopamine/blob/5873f5494ee0c2d7c016d0ab2ad530354fec59d0/dopamine/jax/networks.py#L512-L518), a key | the user's network | [factorised](https://github.com/Curt-Park/rainbow-is-all-you-need/blob/e864f0be10d028aebcbfac1d48c219813f3d48f9/08_rainbow.py#L503-L510), a buffer |
# | start of a bias's deviation | $\sigma_0$ over the root of the inputs | [of the outputs](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/rainbow_atari.py#L144) | [inputs](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/utils/net/discrete.py#L355) | [inputs](https://github.com/google/dopamine/blob/5873f5494ee0c2d7c016d0ab2ad530354fec59d0/dopamine/jax/networks.py#L502-L504), $\sigma_0 = 0.1$ | the user's network | [inputs](https://github.com/Curt-Park/rainbow-is-all-you-need/blob/e864f0be10d028aebcbfac1d48c219813f3d48f9/08_rainbow.py#L501) |
# | chooser and judge | noise of their own | [their own](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/rainbow_atari.py#L462-L463) | [their own](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/algorithm/modelfree/rainbow.py#L97-L100) | [one key for both](https://github.com/google/dopamine/blob/5873f5494ee0c2d7c016d0ab2ad530354fec59d0/dopamine/jax/agents/full_rainbow/full_rainbow_agent.py#L220-L223) | no noise | [their own](https://github.com/Curt-Park/rainbow-is-all-you-need/blob/e864f0be10d028aebcbfac1d48c219813f3d48f9/08_rainbow.py#L855-L856) |

# %% [markdown]
# We read the code at the linked commits.
#
# ## On the best device

# %%
from literate_rl.agents import best_device

device = best_device()
sees, acts = spaces.Box(-1, 1, (2,)), spaces.Discrete(3)
policy = make_rainbow_policy(sees, acts).to(device)
noise = policy.noise(1, 5, torch.Generator().manual_seed(0))[0].to(device)
print(f"on {device.type}:", policy.act(torch.zeros(5, 2, device=device), noise).cpu())

# %% [markdown]
# ## Summary
#
# - A distribution of returns obeys a Bellman equation: move it by reward and discount, project it
#   on the atoms. This keeps the mass and, inside the support, the mean.
# - The error is a KL divergence with the gradient $q - \hat q$; its logarithms come from logits.
# - Noisy layers learn where to explore. Their noise is an argument. If it is factorised, each row
#   of a batch can cheaply have its own.
# - Chooser, judge and learner draw noises of their own, or the chosen action is overrated.
# - Rainbow is DQN with six switches. Try what a part is worth on your task.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.workshop.pictures import predict

predict(
    "A step terminated with reward 3.25, and the atoms are 0, 1, …, 10. What does the target "
    "say?",
    ["all mass on 3", "three quarters on 3, one on 4", "it depends on the next state"],
    right="three quarters on 3, one on 4",
    because="With discount 0 every atom of the next state lands on 3.25, whatever its "
    "probability. The nearer atom gets more, 1 − 0.25, and the mean is 3.25.",
)

# %% tags=["claims"]
ended = project_distribution(before, 3.25 * one, 0 * one, 0.0, 10.0)[0]
assert torch.allclose(ended[[3, 4]], torch.tensor([0.75, 0.25], dtype=torch.float64))

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function should project, but two mistakes are in it. With one of them, pieces land in the
# wrong place or even beyond the last atom. With the other, mass disappears. Fix both.


# %%
def answer(prob, reward, discount, value_min, value_max):
    num_atoms = prob.shape[1]
    spacing = (value_max - value_min) / num_atoms
    atoms = torch.linspace(value_min, value_max, num_atoms, dtype=prob.dtype)
    value = (reward[:, None] + discount[:, None] * atoms).clamp(value_min, value_max)
    place = (value - value_min) / spacing
    lower, upper = place.floor().long(), place.ceil().long()
    result = torch.zeros_like(prob)
    result.scatter_add_(1, lower, prob * (upper - place))
    return result.scatter_add_(1, upper, prob * (place - lower))


# %% tags=["hide-input"]
from literate_rl.agents import grade


def targets(seed):
    """Return three random targets, one of them after a termination."""
    generator = torch.Generator().manual_seed(seed)
    prob = torch.rand(3, 6, generator=generator).softmax(-1)
    reward = torch.tensor([seed % 3, 0.5, 1.3])
    return prob, reward, torch.tensor([0.0, 0.9, 1.0]), -1.0, 4.0


grade(answer, project_distribution, *map(targets, range(3)))


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(prob, reward, discount, value_min, value_max):
    num_atoms = prob.shape[1]
    # Six atoms have five gaps.
    spacing = (value_max - value_min) / (num_atoms - 1)
    atoms = torch.linspace(value_min, value_max, num_atoms, dtype=prob.dtype)
    value = (reward[:, None] + discount[:, None] * atoms).clamp(value_min, value_max)
    place = (value - value_min) / spacing
    # The next atom, even if the piece lies on one; the last atom has no next.
    lower = place.floor().long().clamp(max=num_atoms - 2)
    upper = lower + 1
    result = torch.zeros_like(prob)
    result.scatter_add_(1, lower, prob * (upper - place))
    return result.scatter_add_(1, upper, prob * (place - lower))


grade(answer, project_distribution, *map(targets, range(3)))

# %% [markdown]
# ### Exercise 3: experiment
#
# How many atoms are enough? Take the bridge of the first picture, where the hiker falls with
# probability 0.1. The mean of its distribution is right for any number of atoms, but the fewer
# there are, the more the projection blurs it. `bridge_with(number)` returns atoms and
# probabilities.
#
# A return between −15 and 10 never happens. Which of 6, 11, 31, 61 and 121 is the smallest number
# of atoms that gives it a probability below 0.05? Guess first.


# %%
def bridge_with(number, fall=0.1):
    """Return atoms and probabilities of the bridge's return."""
    points = torch.linspace(low, high, number, dtype=torch.float64)
    prob = torch.full((1, number), 1 / number, dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    river = project_distribution(prob, -20 * one, 0 * one, low, high)
    home = project_distribution(prob, 19 * one, 0 * one, low, high)
    prob = fall * river + (1 - fall) * home
    for _ in range(2):
        on = project_distribution(prob, -one, discount * one, low, high)
        prob = fall * river + (1 - fall) * on
    return points, prob[0]


def answer():
    return ...


# %% tags=["hide-input"]
def enough():
    """Return the smallest number of atoms with little mass where none belongs."""

    def misplaced(number):
        points, prob = bridge_with(number)
        return prob[(points > -15) & (points < 10)].sum()

    return next(n for n in (6, 11, 31, 61, 121) if misplaced(n) < 0.05)


grade(answer, enough, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    def never(number):
        points, prob = bridge_with(number)
        return prob[(points > -15) & (points < 10)].sum()

    # Each projection blurs a piece by up to one spacing to both sides. With few atoms
    # a spacing is wide.
    return next(n for n in (6, 11, 31, 61, 121) if never(n) < 0.05)


grade(answer, enough, ())

# %% tags=["claims"]
assert answer() == enough()
means = [(x @ p).item() for x, p in map(bridge_with, (6, 11, 31, 61, 121))]
assert np.ptp(means) < 1e-6, "the mean is right for any number of atoms"

# %% [markdown]
# ## References
#
# Distributions of returns: {cite:t}`bellemare2017`. Noisy layers: {cite:t}`fortunato2018`. All six
# parts: {cite:t}`hessel2018`, and once more on small tasks {cite:t}`obando2021`. Double
# Q-learning, dueling networks and priorities have their references in {doc}`dqn` and
# {doc}`replay`.
