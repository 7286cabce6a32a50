# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # PPO by hand
#
# **Where does the time of a minibatch go?** Not into arithmetic. After this chapter you can take
# the gradient of PPO's loss by hand, from the loss back to the first weight, and write it in NumPy.
# It is the same gradient as autograd's, in much less time.
#
# Nobody needs this page to use PPO: read it if you want to know what
# `loss.backward()` does, or if your runs take too long. It takes about 55 minutes, reading, without
# exercises. You need the loss ({doc}`ppo_error`), the loop ({doc}`ppo`), and the rows and action
# distributions of {doc}`policies`. *Hybrid actions* needs {doc}`hybrid_action`; skip it until you have been there.

# %% tags=["export", "hide-input"]
"""PPO by hand: forward, loss, backward and gradient clipping in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from literate_rl.by_hand.fast_forms import (
    FlatAdam,
    SharesMemory,
    as_made,
    check_numbers,
    layers_of,
    memory,
    one_thread,
)
from literate_rl.ground.protocols import ActorCriticLike
from literate_rl.ground.signatures import check_finite, check_that
from literate_rl.learners.ppo import PPOConfig, Samples
from literate_rl.nets.hybrid_action import HybridPolicyNetwork
from literate_rl.nets.hybrid_policy import HybridActions, HybridRows
from literate_rl.nets.policies import Policy
from literate_rl.nets.parts import (
    ActorCritic,
    CategoricalActions,
    GaussianActions,
    WithDeviations,
)

__all__ = ["ByHand"]

Array = NDArray[Any]

# %% [markdown]
# ## Where the time goes
#
# One minibatch of PPO on CartPole has 128 samples. Actor and critic have two hidden layers of 64,
# so an update has 16 products of small matrices and
# four calls of the hyperbolic tangent. Here are their shares of the time of an update, and Adam's:

# %% tags=["hide-input"]
import time
from statistics import median

import numpy as np
import torch

from literate_rl.data.agents import make_envs
from literate_rl.nets.policies import make_policy
from literate_rl.learners.ppo import PPO, PPOConfig
from literate_rl.by_hand.fast_forms import numpy_act

torch.set_num_threads(1)


def make_learner(form=None, config=None, hidden=64):
    """Build PPO for CartPole, always with the same weights."""
    torch.manual_seed(1)
    config = config or PPOConfig()
    envs = make_envs("CartPole-v1", config.num_envs)
    spaces = envs.single_observation_space, envs.single_action_space
    policy = make_policy(*spaces, hidden)
    act = numpy_act(policy)
    return PPO(policy, envs, config, act, by_hand=form and form(policy))


def seconds(function, rounds=25, calls=10):
    """Return the median CPU time of a call."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(calls):
            function()
        times.append(time.process_time() - start)
    return median(times) / calls


learner = make_learner()
samples = learner.look_back(learner.collect())
part = samples.take(torch.arange(128))
learner.learn(part)

sizes = [(4, 64), (64, 64), (64, 2), (4, 64), (64, 64), (64, 1)]
operands = [
    [torch.randn(shape) for shape in ((128, inputs), (inputs, outputs), (128, outputs))]
    for inputs, outputs in sizes
]
units = [torch.randn(128, 64) for _ in range(4)]


def products():
    """Compute the products of an update: forward, weights, and backward."""
    for x, w, g in operands:
        x @ w, x.T @ g
        if len(w) == 64:
            g @ w.T


whole = seconds(lambda: learner.learn(part))
shares = {
    "products of matrices": seconds(products) / whole,
    "tangents": seconds(lambda: [x.tanh() for x in units]) / whole,
    "Adam": seconds(learner.optimizer.step) / whole,
}
shares["all the rest"] = 1 - sum(shares.values())
for name, share in shares.items():
    print(f"{name:22s}{share:4.0%}")

from torch.utils._python_dispatch import TorchDispatchMode


class Counted(TorchDispatchMode):
    """Counts the operations that PyTorch carries out, those of autograd included."""

    number = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.number += 1
        return function(*args, **(kwargs or {}))


with Counted() as counted:
    learner.learn(part)

# %% [markdown]
# **Notice** the last share. The largest is none of these. An update has some two hundred operations, and
# each of them looks at its arguments, chooses a kernel, makes a tensor for the
# result and, on the way forward, writes down how to come back. That takes some microseconds, whatever is
# in the tensors. In large networks nobody notices; here fewer and cheaper calls save time.

# %% tags=["claims"]
assert sum(2 + (inputs == 64) for inputs, _ in sizes) == 16
assert len(units) == 4
assert len(part.adv) == 128
assert shares["all the rest"] == max(shares.values()), "the largest share"
assert 150 < counted.number < 300, "some two hundred"
each = 1e6 * whole * shares["all the rest"] / counted.number
assert 0.5 < each < 20, "some microseconds"

# %% [markdown]
# ## The gradient walks back
#
# Below is an actor as small as can be: four numbers come in, two hidden layers have three units
# each, and two logits come out. It has seen one sample. The first picture is what went forward: what
# each unit takes in, $u$, what it puts out, $h = \tanh u$, and the logits $z$. In the second the
# gradient of the loss comes back. The first slider moves it from place to place; the
# other two say what the sample was: its advantage, and its ratio by now.

# %% tags=["hide-input"]
from torch import nn

# The package's own; this chapter defines them below.
from literate_rl.by_hand.ppo_by_hand import (
    Linear,
    Tanh,
    backward,
    categorical,
    forward,
    surrogate,
)
from literate_rl.book.pictures import Axis, Mark, dial, plot

torch.manual_seed(28)
tiny = nn.Sequential(
    nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)
)
for linear in tiny[::2]:
    nn.init.normal_(linear.weight, std=0.9)
layers = [
    Tanh()
    if isinstance(layer, nn.Tanh)
    else Linear(layer, lambda p: np.zeros(p.shape, "f"))
    for layer in tiny
]
seen = np.array([[1.0, -0.5, 0.8, 0.4]], np.float32)
went = [forward(layers[:number], seen)[0] for number in range(1, 6)]
terms = categorical(went[-1][None], np.array([0]), None)
stops = {"u₁": 1, "h₁": 5, "u₂": 9, "h₂": 13, "z": 17}
words = (
    "From the loss to the log-probability of the action: minus the advantage times the ratio, "
    "or nothing where the clip has stopped it.",
    "To the logits: times 1 minus its probability for the action that was taken, and times minus "
    "its own for the other. Two bars, equal and opposite. A step downhill goes against them.",
    "Back through the last layer: each unit adds up what comes along its weights.",
    "Back through the tangent, times 1 − h²: what is far from zero lets little through.",
    "Back through the middle layer.",
    "Back through the first tangent. The next layer is the first, and its input is data.",
)


def walk(adv, ratio):
    """Return the loss's slope over the log-probability, and the gradient at each place."""
    columns = [np.array([x], np.float32) for x in (np.log(ratio), 0.0, adv)]
    _, slope = surrogate(*columns, 0.2, None)
    grad = -slope[:, None] * terms.log_prob_slope
    came = [grad[0]]
    for layer in layers[:0:-1]:
        grad = layer.backward(grad)
        came.append(grad[0])
    return 0.0 - slope.item(), came[::-1]


def frame(back, adv, ratio):
    slope, came = walk(adv, ratio)
    pictures = []
    for title, low, rows, shown in (
        ("forward: what each unit holds", -1.6, went, 5),
        ("backward: the gradient of the loss", -1.0, came, back),
    ):
        marks = []
        for number, (start, row) in enumerate(zip(stops.values(), rows, strict=True)):
            heights = row if number >= 5 - shown else 0 * row
            places = [start + unit for unit in range(len(row))]
            tone = "" if shown == 5 and title[0] == "f" else "accent"
            marks.append(Mark("bars", places, heights.tolist(), tone))
        ticks = {
            start + (len(r) - 1) / 2: n
            for (n, start), r in zip(stops.items(), rows, strict=True)
        }
        axis = Axis("place in the network", 0, 19, ticks)
        pictures.append(
            plot(
                title,
                f"{title}, at five places of a small network.",
                axis,
                Axis("", low, -low, (-1, 0, 1)),
                *marks,
                width=340,
            )
        )
    pull = f"{slope:.2f}".replace("-", "−")
    return (
        pictures,
        f"The loss's slope over the log-probability is {pull}. {words[back]}",
    )


dial(
    "The gradient walks back",
    frame,
    {
        "places reached": list(range(6)),
        "advantage Â": [-1.0, 1.0],
        "ratio ρ": [0.6, 0.9, 1.0, 1.1, 1.4],
    },
    start=(2, 1.0, 1.0),
)

# %% [markdown]
# **Notice** three things. A tangent makes bars smaller, and most where $h$ is near $\pm 1$. The shape of
# the bars does not depend on the sample's advantage or ratio, only their size and their sign do. And with
# $\rho = 1.4$ and $\hat A = 1$, or 0.6 and $-1$, all bars of the second picture are gone: the clip has
# stopped this sample.

# %% tags=["claims"]
assert frame(5, 1.0, 1.4)[1].startswith(
    "The loss's slope over the log-probability is 0.00"
)
assert frame(5, 1.0, 1.0)[1].startswith(
    "The loss's slope over the log-probability is −1.00"
)
for unit, (inside, outside) in enumerate(zip(went[0], went[1], strict=True)):
    assert np.isclose(np.tanh(inside), outside), unit
_, alive = walk(1.0, 1.0)
for place in (0, 2):
    assert (abs(alive[place]) < abs(alive[place + 1])).all(), "a tangent: smaller"
for x, y in zip(alive, walk(-1.0, 1.4)[1], strict=True):
    assert np.allclose(-1.4 * x, y), "the same shape"
for stopped in ((1.0, 1.4), (-1.0, 0.6)):
    assert not any(x.any() for x in walk(*stopped)[1]), "all bars are gone"

# %% [markdown]
# ## Layers that know their way back
#
# A network is a chain of steps, and the chain rule is a sentence about each step alone: *given how
# the loss changes with your output, say how it changes with your input, and with your weights if you have
# any*. A **layer** here has two methods. `forward` computes, and keeps what it will need. `backward` does
# what that sentence asks.
#
# A linear layer makes $Y = X W^\top + w_0$ of a batch $X$, one row for each sample $b$. We write $\Gamma$
# for the derivatives of the loss by its output, $\Gamma = \partial \mathcal L / \partial Y$. Then
#
# $$
# \frac{\partial \mathcal L}{\partial W} = \Gamma^\top X , \qquad
# \frac{\partial \mathcal L}{\partial w_0} = \sum_b \Gamma_b , \qquad
# \frac{\partial \mathcal L}{\partial X} = \Gamma W .
# $$ (by-hand-linear)
#
# Why? Weight $W_{ij}$ leads from input $j$ to output $i$. If it grows by a little, output $i$ of
# sample $b$ grows by $X_{bj}$ times that, and the loss by $\Gamma_{bi} X_{bj}$ times that. The
# samples add up. What goes back goes along the same weights, the other way.
#
# An activation works on each number alone, so its step back is a multiplication, and both
# derivatives can be told from the output:
#
# $$
# h = \tanh u : \;\; \frac{\partial h}{\partial u} = 1 - h^2 ; \qquad
# h = \max(u, 0) : \;\; \frac{\partial h}{\partial u} = \mathbb 1[h > 0] .
# $$ (by-hand-squash)
#
# A NumPy array can be a *view* of a tensor's memory: `p.detach().numpy()` copies
# nothing. So `weight` below *is* the weight of the policy, and when the optimiser changes it, this
# layer has changed as well. `take` hands out the place where a gradient goes.

# %% tags=["export"]
Take = Callable[[Tensor], Array]  # where the gradient of a parameter goes


class Linear:
    """A linear layer: its weights, and where their gradients go."""

    def __init__(self, layer: nn.Linear, take: Take) -> None:
        self.weight, self.bias = memory(layer.weight), memory(layer.bias)
        self.weight_grad, self.bias_grad = take(layer.weight), take(layer.bias)

    def forward(self, x: Array) -> Array:
        """Return what the layer makes of its input, and keep the input."""
        self.x = x
        return x @ self.weight.T + self.bias

    def backward(self, grad: Array) -> Array:
        """Write the gradients of the weights; return that of the input."""
        # The three gradients {eq}`by-hand-linear`.
        np.matmul(grad.T, self.x, out=self.weight_grad)
        grad.sum(0, out=self.bias_grad)
        return grad @ self.weight


class Tanh:
    """The hyperbolic tangent."""

    def forward(self, x: Array) -> Array:
        """Return it, and keep it."""
        self.y = np.tanh(x)
        return self.y

    def backward(self, grad: Array) -> Array:
        """Return the gradient of the input."""
        # The first half of {eq}`by-hand-squash`.
        return grad * (1 - self.y * self.y)


class ReLU:
    """What is above zero."""

    def forward(self, x: Array) -> Array:
        """Return it, and keep it."""
        self.y = np.maximum(x, 0)
        return self.y

    def backward(self, grad: Array) -> Array:
        """Return the gradient of the input."""
        # The second half.
        return grad * (self.y > 0)


# %% [markdown]
# A chain is a list of them. There and back again:


# %% tags=["export"]
class Layer(Protocol):
    """A step of a network that knows its way back."""

    def forward(self, x: Array) -> Array:
        """Return what the step makes of its input."""
        ...

    def backward(self, grad: Array) -> Array:
        """Return the gradient of the input, given that of the output."""
        ...


def forward(layers: list[Layer], x: Array) -> Array:
    """Go through layers from the first to the last."""
    for layer in layers:
        x = layer.forward(x)
    return x


def backward(layers: list[Layer], grad: Array) -> None:
    """Go back through them, from the last to the first."""
    for layer in reversed(layers):
        grad = layer.backward(grad)


# %% [markdown]
# ## The surrogate
#
# Now from the other end. The first step back leads from the loss to the log-probabilities. The
# objective of a sample is {eq}`clipped-surrogate`, perhaps with a dual clip {eq}`dual-clip`. In its
# live part it is $\rho \hat A$, and since $\rho = e^{\ell}$ with the log-ratio $\ell = \log
# \pi_\theta - \log \pi_{\text{old}}$, its slope over $\log \pi_\theta$ is again $\rho \hat A$.
# Elsewhere it is constant:
#
# $$
# \frac{\partial L_c}{\partial \log \pi_\theta} =
# \begin{cases}
#   \rho \hat A & \rho \hat A \le \operatorname{clip}(\rho, 1-\epsilon, 1+\epsilon)\, \hat A ,\;
#       |\ell| \le 20 \text{, and } \rho < c \text{ if } \hat A < 0 , \\
#   0 & \text{otherwise.}
# \end{cases}
# $$ (by-hand-surrogate)
#
# The first condition is true inside the range, and for a sample that
# went the wrong way. The second belongs to the clamp of {doc}`ppo_error` that keeps $\rho$ finite,
# the third to the dual clip, with $c = \infty$ if there is none. At the borders of the range
# PyTorch's `clamp` lets the slope through, and so do we.


# %% tags=["export"]
def surrogate(
    log_prob: Array, old: Array, adv: Array, clip_ratio: float, dual_clip: float | None
) -> tuple[Array, Array]:
    """Return the clipped objective of each sample, and its slope over ``log_prob``."""
    log_ratio = log_prob - old
    ratio = np.exp(log_ratio.clip(-20.0, 20.0))
    unclipped = ratio * adv
    clipped = ratio.clip(1.0 - clip_ratio, 1.0 + clip_ratio) * adv
    objective = np.minimum(unclipped, clipped)
    pulls = (unclipped <= clipped) & (abs(log_ratio) <= 20.0)
    if dual_clip is not None:
        bound = np.where(adv < 0, dual_clip * adv, -np.inf)
        objective = np.maximum(objective, bound)
        pulls &= unclipped > bound
    # The slope {eq}`by-hand-surrogate`.
    return objective, np.where(pulls, unclipped, 0)


# %% [markdown]
# ## The value error
#
# The critic's error is half a square, so its slope is $V - G$. With a value
# clip {eq}`value-clip` the larger of two errors counts, and the clipped one is constant once the value
# has left its range:
#
# $$
# \frac{\partial}{\partial V} \, \frac12 \max\bigl((G - V)^2, (G - V_{\text{clip}})^2\bigr) =
# \begin{cases}
#   V - G & |V - V_{\text{old}}| \le \epsilon_V \text{ or } (G - V)^2 \ge (G - V_{\text{clip}})^2 , \\
#   0 & \text{otherwise.}
# \end{cases}
# $$ (by-hand-value)


# %% tags=["export"]
def value_error(
    value: Array, old: Array, target: Array, value_clip: float | None
) -> tuple[Array, Array]:
    """Return half the squared error of each value, and its slope over ``value``."""
    miss = value - target
    error, slope = miss * miss, miss
    if value_clip is not None:
        step = value - old
        held = old + step.clip(-value_clip, value_clip) - target
        pulls = (abs(step) <= value_clip) | (error >= held * held)
        error, slope = np.maximum(error, held * held), np.where(pulls, miss, 0)
    # The slope {eq}`by-hand-value`.
    return error / 2, slope


# %% [markdown]
# ## The action distribution
#
# The next step back leads to the row of numbers that the actor has put
# out. Each action distribution gets a function that returns log-probability and entropy, and how each of
# them changes with the numbers of the row.
#
# For actions from a list the row holds logits $z_j$, and $\log p_a = z_a - \log \sum_j e^{z_j}$. So
#
# $$
# \frac{\partial \log p_a}{\partial z_j} = \mathbb 1[j = a] - p_j , \qquad
# \frac{\partial H}{\partial z_j} = -p_j \bigl( \log p_j + H \bigr) .
# $$ (by-hand-categorical)
#
# The first one is worth a look: *up for what was done, down for everything in proportion to its
# probability.* The second one pulls down what is likelier than on average, where $-\log p_j < H$, and
# pulls up the rest.


# %% tags=["export"]
class Terms(NamedTuple):
    """What the loss reads of B rows, and how it changes with the numbers of a row.

    Attributes:
        log_prob: Log-probabilities of the actions, (B,).
        entropy: Entropies, (B,).
        log_prob_slope: Derivatives of the first, of the shape of the rows.
        entropy_slope: Derivatives of the second.
    """

    log_prob: Array
    entropy: Array
    log_prob_slope: Array
    entropy_slope: Array


def log_softmax(logit: Array, mask: Array | None) -> Array:
    """Return the log-probabilities of all actions, (B, N)."""
    # An illegal action gets the lowest number there is. Its probability is 0, and so
    # are its slopes.
    if mask is not None:
        logit = np.where(mask, logit, np.finfo(logit.dtype).min)
    shifted = logit - logit.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def categorical(row: Array, action: Array, mask: Array | None) -> Terms:
    """Return the terms of actions from a list; a row holds their logits."""
    log_prob = log_softmax(row, mask)
    prob = np.exp(log_prob)
    entropy = -(prob * log_prob).sum(1, keepdims=True)
    # The slopes {eq}`by-hand-categorical`.
    taken = np.arange(len(row)), action
    log_prob_slope = -prob
    log_prob_slope[taken] += 1
    entropy_slope = -prob * (log_prob + entropy)
    return Terms(log_prob[taken], entropy[:, 0], log_prob_slope, entropy_slope)


# %% [markdown]
# For numbers in a box the row holds means and logarithms of standard deviations.
# With $\zeta_j = (a_j - \mu_j) / \sigma_j$ the log-density is $\sum_j (-\tfrac12 \zeta_j^2 - \log
# \sigma_j)$ plus a constant, and the entropy is $\sum_j \log \sigma_j$ plus another:
#
# $$
# \frac{\partial \log \pi}{\partial \mu_j} = \frac{\zeta_j}{\sigma_j} , \qquad
# \frac{\partial \log \pi}{\partial \log \sigma_j} = \zeta_j^2 - 1 , \qquad
# \frac{\partial H}{\partial \mu_j} = 0 , \qquad
# \frac{\partial H}{\partial \log \sigma_j} = 1 .
# $$ (by-hand-gaussian)
#
# In words: move the mean towards a good action, and make the deviation larger if a good action was
# more than one deviation away, smaller if it was nearer.

# %% tags=["export"]
# The logarithm of $\sqrt{2 \pi}$, and the entropy of a standard normal number.
LOG_ROOT = 0.5 * math.log(2 * math.pi)
UNIT_ENTROPY = LOG_ROOT + 0.5


def gaussian(row: Array, action: Array, mask: None) -> Terms:
    """Return the terms of numbers; a row holds means and log standard deviations."""
    mu, log_sigma = np.split(row, 2, 1)
    inverse = np.exp(-log_sigma)
    zeta = (action - mu) * inverse
    log_prob = -(zeta * zeta / 2 + log_sigma + LOG_ROOT).sum(1)
    entropy = (log_sigma + UNIT_ENTROPY).sum(1)
    # The slopes {eq}`by-hand-gaussian`.
    log_prob_slope = np.hstack([zeta * inverse, zeta * zeta - 1])
    entropy_slope = np.hstack([np.zeros_like(mu), np.ones_like(mu)])
    return Terms(log_prob, entropy, log_prob_slope, entropy_slope)


# %% [markdown]
# The deviations stand in every row as the same parameters. That
# is a layer as well: forward it repeats them, backward it adds up over the samples.


# %% tags=["export"]
class Deviations:
    """Puts the same logarithms of standard deviations behind each row."""

    def __init__(self, log_sigma: Tensor, take: Take) -> None:
        self.log_sigma, self.grad = memory(log_sigma), take(log_sigma)

    def forward(self, x: Array) -> Array:
        """Return longer rows."""
        return np.hstack([x, np.tile(self.log_sigma, (len(x), 1))])

    def backward(self, grad: Array) -> Array:
        """Write the gradient of the logarithms; return that of what came in."""
        size = self.log_sigma.size
        self.grad[...] = grad[:, -size:].sum(0)
        return grad[:, :-size]


# %% [markdown]
# ### Hybrid actions
#
# A hybrid action ({doc}`hybrid_action`) is a type $k$ and the arguments $j$ that it uses, where the
# mask $m_{k,j}$ is 1. Its log-density {eq}`hybrid-log-prob` is that of the type plus those of the
# used arguments, so its slopes are those of above, with zeros for what is not used. In the entropy
# {eq}`hybrid-entropy` an argument counts as often as its types are chosen. Let $e_k = \sum_j
# m_{k,j} H_j$ be the entropy of the arguments of type $k$, and $\bar e = \sum_k p_k e_k$ its mean.
# Then
#
# $$
# \frac{\partial H}{\partial z_k} = -p_k \bigl( \log p_k + H_{\text{type}} \bigr) + p_k \, (e_k - \bar e) , \qquad
# \frac{\partial H}{\partial \log \sigma_j} = \sum_k p_k \, m_{k,j} .
# $$ (by-hand-hybrid)
#
# Its network has two heads on one encoder. Side by side they are a layer too; what they send back
# to their features adds up.


# %% tags=["export"]
def hybrid(uses: Array, row: Array, action: Array, mask: Array | None) -> Terms:
    """Return the terms of types with arguments.

    Args:
        uses: Which type (row) uses which argument (column), (K, A) bool.
        row: Logits of the types, means and log standard deviations of the arguments.
        action: Types and arguments, (B, 1 + A).
        mask: Which types are legal.
    """
    num_types, num_args = uses.shape
    logit, mu, log_sigma = np.split(row, [num_types, num_types + num_args], 1)
    kind = action[:, 0].astype(int)
    of_type = categorical(logit, kind, mask)
    # An argument that is not used is put at its mean, whatever it held.
    used = uses[kind]
    inverse = np.exp(-log_sigma)
    zeta = (np.where(used, action[:, 1:], mu) - mu) * inverse
    log_density = -(zeta * zeta / 2 + log_sigma + LOG_ROOT)
    log_prob = of_type.log_prob + (used * log_density).sum(1)
    slopes = of_type.log_prob_slope, zeta * inverse, used * (zeta * zeta - 1)

    # What the arguments of each type add to the entropy, and what they add on average.
    prob = np.exp(log_softmax(logit, mask))
    each = (log_sigma + UNIT_ENTROPY) @ uses.T
    mean = (prob * each).sum(1, keepdims=True)
    # The slopes {eq}`by-hand-hybrid`.
    type_slope = of_type.entropy_slope + prob * (each - mean)
    entropy_slopes = type_slope, np.zeros_like(mu), prob @ uses
    entropy = of_type.entropy + mean[:, 0]
    return Terms(log_prob, entropy, np.hstack(slopes), np.hstack(entropy_slopes))


class Heads:
    """Linear layers side by side, which see the same features."""

    def __init__(self, heads: list[Linear]) -> None:
        self.heads, self.ends = heads, np.cumsum([x.bias.size for x in heads])[:-1]

    def forward(self, x: Array) -> Array:
        """Return all that they put out, in one row."""
        return np.hstack([head.forward(x) for head in self.heads])

    def backward(self, grad: Array) -> Array:
        """Return the gradient of the features: the heads' gradients add up."""
        parts = np.split(grad, self.ends, 1)
        pairs = zip(self.heads, parts, strict=True)
        features: Any = sum(head.backward(part) for head, part in pairs)
        return features


# %% [markdown]
# ## One minibatch
#
# All parts are there. The loss {eq}`def-ppo-total` is a mean over $B$ samples, so what comes to a
# row and to a value is
#
# $$
# \frac{\partial \mathcal L}{\partial z_b} = -\frac1B \Bigl(
#     \frac{\partial L_c}{\partial \log \pi_\theta} \frac{\partial \log \pi_\theta}{\partial z_b}
#     + c_H \frac{\partial H}{\partial z_b} \Bigr) , \qquad
# \frac{\partial \mathcal L}{\partial V_b} = \frac{c_V}{B} \, d_b ,
# $$ (by-hand-total)
#
# where $z_b$ is the whole row of a sample and $d_b$ the slope
# {eq}`by-hand-value`. From there the layers go on by themselves. At last the gradient $g$ of all
# parameters is clipped at a norm of $g_{\max}$, as PyTorch does it:
#
# $$
# g \;\leftarrow\; g \cdot \min\Bigl(1, \frac{g_{\max}}{\lVert g \rVert + 10^{-6}}\Bigr) .
# $$ (by-hand-clip)
#
# Here a second view pays. All gradients lie in one vector, and each layer writes into its part of
# it, so the norm is one product. Each parameter's `grad` looks at the same memory. Adam's step is a few
# lines of NumPy as well ({doc}`by_hand/fast_forms`); its settings and its state stay PyTorch's.


# %% tags=["export"]
def legal_in(policy: Policy, rows: Array, mask: Tensor | None) -> Array | None:
    """Return a mask as an array, a row for each of rows; refuse what a policy does."""
    if mask is None:
        return None
    flat = mask.reshape(len(rows), -1)
    policy.legal(torch.from_numpy(rows), flat)
    return flat.numpy()


# %% [markdown]
# `PPO` takes an object of the class below as `by_hand`. It asks it for the gradient and for the optimiser's
# step, and also for the old log-probabilities and values when it looks back.


# %% tags=["export"]
class ByHand(SharesMemory):
    """A policy's numbers, and the gradient of PPO's loss, without autograd.

    It is for policies of ``make_policy`` and ``make_hybrid_policy`` on the CPU whose
    actions are a list, a box or hybrid, and whose networks are linear layers with tanh
    or ReLU. The arrays share their memory with the parameters. These may be changed in
    place, as an optimiser and ``load_state_dict`` do it; after anything else, build the
    object again.

    Args:
        policy: The policy. It is looked at now, not again with each call.

    Raises:
        ValueError: If the policy is another one; the message says what is in the way.
    """

    def __init__(self, policy: ActorCriticLike) -> None:
        self.parameters = list(policy.parameters())
        check_numbers(self.parameters)
        sizes = [p.numel() for p in self.parameters]
        self.flat = np.zeros(sum(sizes), memory(self.parameters[0]).dtype)
        parts = np.split(self.flat, np.cumsum(sizes)[:-1])
        pairs = zip(self.parameters, parts, strict=True)
        free = {p: part.reshape(p.shape) for p, part in pairs}
        self.grads = [(p, torch.from_numpy(part)) for p, part in free.items()]

        def take(p: Any) -> Array:
            check_that(p in free, "policy must use each parameter in one place only")
            return free.pop(p)

        self.policy = as_made(policy, Policy)
        self.actor, self.critic, self.terms_of = parts_of(self.policy, take)
        check_that(not free, "policy must have no parameters but those of its layers")
        self.check_trained()
        self.normalizer = self.policy.network.normalizer

    def check_trained(self) -> None:
        """Raise unless all parameters are trained."""
        trained = all(p.requires_grad for p in self.parameters)
        check_that(trained, "policy must train all its parameters, none of them frozen")

    def seen(self, obs: Tensor) -> Array:
        """Return observations as the networks see them, a row for each."""
        return self.normalizer(obs).flatten(0, -2).numpy()

    @one_thread
    @torch.no_grad()
    @np.errstate(all="ignore")
    def evaluate_actions(
        self, obs: Tensor, action: Tensor, *, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return what the policy's method returns, without gradient."""
        shape = obs.shape[:-1]
        rows = forward(self.actor, self.seen(obs))
        flat = action.flatten(0, len(shape) - 1).numpy()
        terms = self.terms_of(rows, flat, legal_in(self.policy, rows, mask))
        log_prob, entropy = (torch.from_numpy(x).view(shape) for x in terms[:2])
        return log_prob, entropy

    @one_thread
    @torch.no_grad()
    @np.errstate(all="ignore")
    def value(self, obs: Tensor) -> Tensor:
        """Return what the policy's method returns, without gradient."""
        value = forward(self.critic, self.seen(obs))
        return torch.from_numpy(value).view(obs.shape[:-1])

    # Numbers that are not finite are refused below, with their names.
    @one_thread
    @np.errstate(all="ignore")
    def gradient(self, part: Samples, config: PPOConfig) -> dict[str, float]:
        """Leave the clipped gradient of PPO's loss in the parameters' ``grad``.

        Args:
            part: A minibatch.
            config: The settings of the loss.

        Returns:
            The losses, as ``PPO.learn`` returns them.
        """
        action, old, adv, target, old_value = (x.numpy() for x in part[1:6])
        # For numbers as few as these NumPy's `mean` takes much longer than a sum.
        size = len(adv)
        same = all(len(x) == size for x in part[:6])
        check_that(same, "part must have as many rows in each of its fields")
        if config.normalize_advantage:
            adv = adv - adv.sum() / size
            adv = adv / (math.sqrt(adv @ adv / size) + 1e-8)

        # Forward, through the networks and through the loss. On the way each part says
        # how it changes.
        obs = self.seen(part.obs)
        rows = forward(self.actor, obs)
        terms = self.terms_of(rows, action, legal_in(self.policy, rows, part.mask))
        value = forward(self.critic, obs)[:, 0]
        clips = config.clip_ratio, config.dual_clip
        objective, push = surrogate(terms.log_prob, old, adv, *clips)
        error, pull = value_error(value, old_value, target, config.value_clip)

        # The total {eq}`def-ppo-total`.
        losses = -objective, error, terms.entropy
        policy_loss, value_loss, entropy = (float(x.sum()) / size for x in losses)
        loss = policy_loss + config.value_weight * value_loss
        loss -= config.entropy_weight * entropy
        # What is not finite would spoil all weights at once. (The clamp hides from the
        # loss that a log-ratio is infinite.)
        far = float(terms.log_prob.sum() - old.sum())
        inputs = {"log_prob_old": part.log_prob, "adv": part.adv, "target": part.target}
        check_finite(loss + far, **inputs, log_prob=torch.from_numpy(terms.log_prob))

        # Backward: what comes to the rows and to the values, {eq}`by-hand-total`, and
        # from there through the layers.
        bonus = config.entropy_weight * terms.entropy_slope
        row_grad = (push[:, None] * terms.log_prob_slope + bonus) / -size
        backward(self.actor, row_grad)
        backward(self.critic, config.value_weight / size * pull[:, None])

        # All parameters at once, {eq}`by-hand-clip`.
        norm = math.sqrt(self.flat @ self.flat)
        self.flat *= min(1.0, config.max_grad_norm / (norm + 1e-6))
        for p, grad in self.grads:
            p.grad = grad
        self.check_trained()
        return {
            "losses/policy_loss": policy_loss,
            "losses/value_loss": value_loss,
            "losses/entropy": entropy,
        }

    def speed_up(self, optimizer: Any) -> None:
        """Give an Adam a faster ``step``, which reads the gradient where it is."""
        flat = FlatAdam(optimizer, self.flat, self.parameters)
        # A schedule of the learning rate asks for a method.
        optimizer.step = MethodType(lambda _: flat.step(), optimizer)


# %% [markdown]
# ## What is refused
#
# By hand we compute only what we know. So the policy is looked at when the object is made, and
# anything else is refused with the reason: several choices at once, encoders, other
# activations, hooks, a layer that actor and critic share, weights that are not trained, a GPU.


# %% tags=["export"]
def parts_of(policy: Policy, take: Take) -> tuple[list[Layer], list[Layer], Any]:
    """Return the layers of actor and critic, and what finds the terms of rows."""
    network = as_made(policy.network, ActorCritic)
    known = {nn.Tanh: lambda _: Tanh(), nn.ReLU: lambda _: ReLU()}
    chain = partial(layers_of, known={nn.Linear: partial(Linear, take=take), **known})
    actor, actions = network.actor, policy.actions
    kind: Any = CategoricalActions
    terms_of: Any = categorical
    if type(actor) is WithDeviations:
        kind, terms_of = GaussianActions, gaussian
        omega = Deviations(as_made(actor, WithDeviations).log_sigma, take)
        layers = [*chain(actor.mean), omega]
    elif type(actor) is HybridRows:
        kind, terms_of = HybridActions, partial(hybrid, actions.mask.numpy())
        net = as_made(as_made(actor, HybridRows).network, HybridPolicyNetwork)
        heads = chain(net.action_type_head) + chain(net.action_args_mu)
        omega = Deviations(net.action_args_log_sigma, take)
        layers = [*chain(net.encoder), Heads(heads), omega]
    else:
        layers = chain(actor)
    as_made(actions, kind)
    return layers, chain(network.critic), terms_of


# %% [markdown]
# ## The same curve, sooner
#
# Is it the same agent? Two learners begin with the same weights and draw the same noise. One learns
# with autograd, the other by hand.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two panels with the mean return of 20 episodes of both runs on CartPole. Over the steps the two curves begin as one and rise together. Over the time, as a share of what autograd takes, the curve by hand ends long before"}}
from collections import deque

settings = PPOConfig(
    total_steps=24_000,
    num_envs=8,
    num_steps=64,
    num_epochs=8,
    learning_rate=2e-3,
    gamma=0.98,
    lambda_=0.8,
    entropy_weight=0.0,
)
runs, both, cost = {}, [], {}
for name, form in (("autograd", None), ("by hand", ByHand)):
    learner = make_learner(form, settings)
    recent, rows, begin = deque(maxlen=20), [], time.process_time()
    while learner.step < settings.total_steps:
        metrics = learner.iterate()
        spent = time.process_time() - begin
        recent.extend(metrics["charts/episodic_return"].returns)
        rows.append((learner.step, np.mean(recent), spent))
        if len(rows) == 2:
            both.append([p.detach().clone() for p in learner.parameters])
    runs[name], cost[name] = np.array(rows).T, spent

apart = max((x - y).abs().max().item() for x, y in zip(*both, strict=True))
print(f"after two iterations no parameter differs by more than {apart:.0e}")
print(f"the run by hand takes {cost['by hand'] / cost['autograd']:.0%} of the time")

import matplotlib.pyplot as plt

fig, (left, right) = plt.subplots(1, 2, figsize=(7, 2.7), sharey=True)
for number, (name, (steps, returns, spent)) in enumerate(runs.items()):
    style = {"color": f"C{number}", "label": name, "lw": 2 - number}
    left.plot(steps / 1000, returns, **style)
    right.plot(spent / cost["autograd"], returns, **style)
left.set(xlabel="thousand steps", ylabel="mean of 20 episodes")
right.set(xlabel="CPU time, autograd's run is 1")
left.legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# **Notice** in the first panel that the two curves begin as one. They part when two results that
# differ in the last digit make the two agents choose another action for the first time; from there
# on they are as two runs with different seeds. The second panel shows
# where the curve by hand ends. In the stored comparison, with four CartPoles, the loop without autograd
# takes 3.6 times as many steps in a second as Stable-Baselines3 ({doc}`/docs/results`), and 1.9 times as
# many as the form that acts in NumPy and learns with autograd.

# %% tags=["claims"]
from literate_rl.runs.runs import read_rows, results_folder

assert apart < 1e-5, "the same parameters"
first = {name: returns[:3] for name, (_, returns, _) in runs.items()}
assert np.allclose(first["autograd"], first["by hand"]), "they begin as one"
assert cost["by hand"] < 0.9 * cost["autograd"], "it ends earlier"
for name, (_, returns, _) in runs.items():
    assert returns[-1] > 2 * returns[0], f"{name} learns"
four = "CartPole-v1, 4 environments"
pole = {
    row["method"]: float(row["ratio"])
    for row in read_rows(results_folder() / "ppo_loop.csv")
    if row["case"].startswith(four)
}
assert round(pole["PPO, by hand"], 1) == 3.6
assert round(pole["PPO, by hand"] / pole["PPO, numpy_act"], 1) == 1.9

# %% [markdown]
# ## Use it
#
# `train` and the command line do it only if asked:
#
# ```python
# train("PPO", "CartPole-v1", fast="by hand")
# ```
#
# ```text
# literate-rl ppo --env CartPole-v1 --fast "by hand"
# ```
#
# The default is `fast="auto"`: PPO acts in NumPy and learns with autograd. `fast="plain"` is all PyTorch.
# A run may begin in one form and go on in another, because what is saved is the same.
#
# When is it worth it? If your networks are small, and you train many of them: for seeds, for
# settings, for figures. As soon as you change the loss, it is the wrong form: every change means a
# new derivative, and a test against autograd. And the larger the layers, the more of the time is
# arithmetic, and the less there is to gain.

# %% tags=["claims"]
of_width = {}
for width in (64, 512):
    pair = [make_learner(form, hidden=width) for form in (ByHand, None)]
    times = [seconds(partial(x.learn, part), 5, 3) for x in pair]
    of_width[width] = times[0] / times[1]
assert of_width[64] < 0.75 * of_width[512], "less to gain"

# %% [markdown]
# ## Traps
#
# ### Trap: a view of what is no longer there
#
# A view sees changes that are made *in place*, as an optimiser and `load_state_dict` make them. If
# somebody puts another tensor into the place of a parameter's memory, the view still looks at the
# old one. Nothing fails: the object goes on training the old memory, and the policy
# that you save stays as it is. Here is one step before and one after:

# %%
learner = make_learner(ByHand)
moves = {}
for name in ("as it is", "after a new tensor"):
    values = learner.policy.value, learner.judge.value
    before = [value(samples.obs).detach() for value in values]
    learner.learn(part)
    here, there = moves[name] = [
        (value(samples.obs) - old).abs().max().item()
        for value, old in zip(values, before, strict=True)
    ]
    print(f"{name}: the policy moves by {here:.4f}, the object by {there:.4f}")
    for p in learner.policy.network.critic.parameters():
        p.data = p.data + 0.1  # a new tensor; `p.data += 0.1` would do

# %% [markdown]
# So build the object last, and build it again if you put in other weights like this.

# %% tags=["claims"]
assert min(moves["as it is"]) > 1e-4, "both move"
assert np.isclose(*moves["as it is"], atol=1e-5), "alike"
stays, goes_on = moves["after a new tensor"]
assert stays == 0, "the policy stays as it is"
assert goes_on > 1e-4, "the old memory is trained"

# %% [markdown]
# ## Summary
#
# - For small networks an update is some two hundred small calls; the arithmetic is a minor part.
# - Backpropagation is one sentence for each step: given how the loss changes with your output, say how it changes with
#   your input and your weights.
# - The surrogate's slope is $\rho \hat A$ where the clip leaves it alive, and the softmax turns it into *up for
#   what was done, down for everything in proportion to its probability*.
# - Autograd can be given a start. Then only the loss is by hand, and the network may be any.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "A unit with a ReLU puts out 0 for every sample of a minibatch. Which of its weights get a "
    "gradient?",
    ["none", "only those that lead into it", "only those that lead out of it"],
    right="none",
    because="The step back through the ReLU multiplies by 0, so nothing reaches the weights that "
    "lead into it. And those that lead out of it get the product of what comes back with what "
    "the unit put out, which is 0 as well. Such a unit is dead until other data come, or until the layers below it move.",
)

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function is meant to be the step back through a hyperbolic tangent: `u` came in, and `grad`
# is the gradient of what went out. Near zero it is right. Repair it.


# %%
def answer(u, grad):
    return grad * (1 - u * u)


from literate_rl.book.exercises import grade


def by_autograd(u, grad):
    x = torch.tensor(u, requires_grad=True)
    return torch.autograd.grad(x.tanh(), x, torch.tensor(grad))[0].numpy()


draws = np.random.default_rng(1).normal(size=(3, 2, 5))
grade(answer, by_autograd, *((2 * u, grad) for u, grad in draws))


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(u, grad):
    # The derivative is told by what went out, not by what came in.
    h = np.tanh(u)
    return grad * (1 - h * h)


grade(answer, by_autograd, *((2 * u, grad) for u, grad in draws))

# %% [markdown]
# ### Exercise 3: experiment
#
# Ten layers of 64 units with tangents between them. Their weights are orthogonal matrices times a
# gain. `passed(gain)` returns which share of a gradient's length gets through, from the last layer
# to the first. Which of the gains 0.5, 1, 1.5 and 3 keeps its length best? Guess first, then return
# the gain.


# %%
def passed(gain):
    """Return the length of the gradient at the first layer, that of the last being 1."""
    torch.manual_seed(0)
    chain = []
    for _ in range(10):
        linear = nn.Linear(64, 64)
        nn.init.orthogonal_(linear.weight, gain)
        chain += [Linear(linear, lambda p: np.zeros(p.shape, "f")), Tanh()]
    forward(chain, torch.randn(256, 64).numpy())
    grad = torch.randn(256, 64).numpy()
    before = np.linalg.norm(grad)
    for layer in reversed(chain):
        grad = layer.backward(grad)
    return np.linalg.norm(grad) / before


def answer():
    return ...


# %% tags=["hide-input"]
def best_gain():
    return min((0.5, 1.0, 1.5, 3.0), key=lambda gain: abs(np.log(passed(gain))))


grade(answer, best_gain, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    # A tangent lets less than all through, so the weights have to make up for it. Too much of
    # that, and the gradient grows from layer to layer.
    shares = {gain: passed(gain) for gain in (0.5, 1.0, 1.5, 3.0)}
    return min(shares, key=lambda gain: abs(np.log(shares[gain])))


grade(answer, best_gain, ())
print({gain: f"{passed(gain):.3f}" for gain in (0.5, 1.0, 1.5, 3.0)})

# %% [markdown]
# ## References
#
# Backpropagation became known through {cite:t}`rumelhart1986`. The loss is from {cite:t}`schulman2017`, the dual
# clip from {cite:t}`ye2020`. Karpathy's [micrograd](https://github.com/karpathy/micrograd) is
# autograd itself in a hundred lines, number by number: the other half of this lesson.
