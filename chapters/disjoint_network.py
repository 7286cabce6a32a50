# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The disjoint network
#
# **How can a policy profit from what a value network learns without being pulled about by
# it?** Both look at the same states, so they could share the layers that see. But each of
# them trains these layers for its own purpose.
#
# At the end of this chapter you can build a network with a policy, a value and a second,
# auxiliary value, in two arrangements; say for each loss which weights it may move; and run
# the network in several processes that average their gradients. The next chapter,
# {doc}`/chapters/ppg`, trains it.

# %% tags=["export", "hide-input"]
"""The disjoint network: a policy, a value and an auxiliary value, in two forms."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from literate_rl.workshop.nests import check_spec, flat, leaves, pack

__all__ = [
    "CategoricalProjectionNetwork",
    "DisjointPolicyValueNetwork",
    "EncodingNetwork",
    "NormalProjectionNetwork",
    "RecurrentEncodingNetwork",
]

# %% [markdown]
# ## Three heads, two arrangements
#
# An **encoder** turns a state into features, and a **head** turns features into an answer.
# Phasic policy gradient {cite:p}`cobbe2021` works with three heads:
#
# - the **policy** head says what describes the policy at a state, for instance logits,
# - the **value** head estimates the return, as in {doc}`/chapters/ppo`,
# - the **auxiliary value** head estimates the return too. Nobody uses its estimate. It is
#   there for its gradient, which teaches the policy's encoder what matters for the return.
#
# In the **dual** arrangement the value has an encoder of its own. With the features
# $y_\pi$ of the policy's encoder and $y_V$ of the value's encoder,
#
# $$
# \psi = W y_\pi + b , \qquad
# V(s) = w_V^\top y_V + b_V , \qquad
# V^{\text{aux}}(s) = w_{\text{aux}}^\top y_\pi + b_{\text{aux}} .
# $$ (disjoint-dual)
#
# Here $\psi$ is the row of numbers that describes the policy. (For a box the logarithms of the
# deviations stand in it too, parameters that no feature moves.) No weight is in two losses but
# those of the policy's encoder, and these the value's loss cannot reach: the arrangement is
# *disjoint*.
#
# In the **shared** arrangement there is one encoder, so nearly half the weights. To keep the
# value from moving it, the value head reads a copy of the features that has no gradient:
#
# $$
# V(s) = w_V^\top \operatorname{sg}(y_\pi) + b_V .
# $$ (disjoint-shared)
#
# The operator $\operatorname{sg}$, *stop gradient*, returns its argument, and its derivative
# is zero by decree. In PyTorch it is called `detach`.
#
# What an environment shows and what it takes may consist of parts; {doc}`workshop/nests`
# walks through them in the order of their space.

# %% [markdown]
# ## Encoders
#
# An encoder is made from the space of the observations. It is called with an observation
# and a state, and returns features and the next state. The plain encoder has no memory. Its
# state is the empty tuple. Its layers are those of {doc}`/chapters/ppo`.


# %% tags=["export"]
def linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """Build a linear layer with orthogonal weights and a bias of zero."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a box may be empty
        layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class EncodingNetwork(nn.Module):
    """An encoder without memory: linear layers with tanh.

    Args:
        observation_spec: Space of one observation, a nest of Box and Discrete.
        hidden: Widths of the layers.

    Attributes:
        output_size: Number of features F.

    Raises:
        TypeError: If the space is of another kind.
    """

    def __init__(
        self, observation_spec: spaces.Space[Any], hidden: tuple[int, ...] = (64, 64)
    ) -> None:
        super().__init__()
        check_spec(observation_spec=observation_spec)
        if not hidden or min(hidden) < 1:
            raise ValueError(f"hidden must hold widths of at least 1, got {hidden}")
        self.spec, self.output_size = observation_spec, hidden[-1]
        sizes = [spaces.flatdim(observation_spec), *hidden]
        self.layers = nn.ModuleList(
            linear(n, m, math.sqrt(2)) for n, m in pairwise(sizes)
        )

    def forward(self, observation: Any, state: Any = ()) -> tuple[Tensor, Any]:
        """Return features ``(*, F)`` and the state as it came."""
        dtype = next(self.parameters()).dtype
        features = flat(self.spec, observation).to(dtype)
        for layer in self.layers:
            features = layer(features).tanh()
        return features, state


# %% [markdown]
# Where a single observation does not show the state, an encoder needs a memory. This one
# remembers its own features. A *gated recurrent unit* {cite:p}`cho2014` decides for each of
# them how much is kept and how much is replaced:
#
# $$
# y_t = \operatorname{GRU} \bigl( \tanh (W s_t + b), \; y_{t-1} \bigr) ,
# \qquad y_{-1} = 0 .
# $$ (recurrent-features)
#
# Who starts a new episode has to start with an empty
# memory again, which means: with the state `()`.


# %% tags=["export"]
class RecurrentEncodingNetwork(nn.Module):
    """An encoder with a memory: a linear layer with tanh, then a gated recurrent unit.

    Args:
        observation_spec: Space of one observation, a nest of Box and Discrete.
        hidden: Width of the layer and of the memory.

    Attributes:
        output_size: Number of features F, the same as ``hidden``.

    Raises:
        TypeError: If the space is of another kind.

    Source:
        Cho et al. 2014, Learning Phrase Representations using RNN Encoder-Decoder,
        equations 5 to 8.
    """

    def __init__(self, observation_spec: spaces.Space[Any], hidden: int = 64) -> None:
        super().__init__()
        self.inputs = EncodingNetwork(observation_spec, (hidden,))
        self.memory = nn.GRUCell(hidden, hidden)
        self.output_size = hidden

    def forward(self, observation: Any, state: Any = ()) -> tuple[Tensor, Tensor]:
        """Return features (B, F) of one step and the state after it, the same tensor.

        Args:
            observation: Observations of B environments.
            state: The state that the step before returned, (B, F), or () at a start.
        """
        # One turn of {eq}`recurrent-features`. Without a state the memory is zero.
        inputs, _ = self.inputs(observation)
        memory = self.memory(inputs, state if len(state) else None)
        return memory, memory


# %% [markdown]
# ## Projections
#
# A policy head is called a **projection network**: it projects features onto the numbers of
# a distribution. There is one kind for discrete actions and one for boxes. The Gaussian one
# works in units in which the box is $[-1, 1]$, and its deviation is a parameter that does
# not depend on the state, both as in {doc}`/chapters/ppo`.
#
# A projection network has two methods. `forward` returns rows of numbers; `distribution`
# turns rows into an object of `torch.distributions`. Why these are two steps and not one
# is what the section on several processes is about.


# %% tags=["export"]
class CategoricalProjectionNetwork(nn.Module):
    """Projects features onto the logits of a discrete action.

    Args:
        input_size: Number of features F.
        action_spec: A Discrete space with N actions, counted from 0 here, whatever the
            space calls the first one.
    """

    def __init__(self, input_size: int, action_spec: spaces.Discrete) -> None:
        super().__init__()
        self.logits = linear(input_size, int(action_spec.n), gain=0.01)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits ``(*, N)`` of features ``(*, F)``."""
        logit: Tensor = self.logits(features)
        return logit

    def distribution(self, row: Tensor) -> Distribution:
        """Return the distribution that logits ``(*, N)`` describe."""
        return Categorical(logits=row, validate_args=False)


class NormalProjectionNetwork(nn.Module):
    """Projects features onto means and deviations of the numbers in a box.

    Args:
        input_size: Number of features F.
        action_spec: A Box of any shape, with A numbers in all.
    """

    def __init__(self, input_size: int, action_spec: spaces.Box) -> None:
        super().__init__()
        self.shape = action_spec.shape
        self.mu = linear(input_size, math.prod(self.shape), gain=0.01)
        self.log_sigma = nn.Parameter(torch.zeros(math.prod(self.shape)))

    def forward(self, features: Tensor) -> Tensor:
        """Return means and logarithms of the deviations, ``(*, 2 A)``."""
        mu = self.mu(features)
        return torch.cat([mu, self.log_sigma.expand_as(mu)], -1)

    def distribution(self, row: Tensor) -> Distribution:
        """Return the distribution over the box that rows ``(*, 2 A)`` describe."""
        mu, log_sigma = (
            x.reshape(*x.shape[:-1], *self.shape) for x in row.chunk(2, -1)
        )
        normal = Normal(mu, log_sigma.exp(), validate_args=False)
        return Independent(normal, len(self.shape), validate_args=False)


# %% [markdown]
# ## The network
#
# It comes in two parts. `Heads` holds all weights and returns nothing but tensors.
# `DisjointPolicyValueNetwork` turns the rows into distributions.
#
# The last argument, `detach`, belongs to the shared arrangement only. It says when the value
# head is cut off from the encoder, and we come back to it below.


# %% tags=["export"]
DETACH = ("always", "policy_phase", "never")


class Heads(nn.Module):
    """All weights of the disjoint network; what goes in and what comes out is tensors.

    Args: see ``DisjointPolicyValueNetwork``.
    """

    def __init__(
        self,
        observation_spec: spaces.Space[Any],
        action_spec: spaces.Space[Any],
        encoding_network_ctor: Callable[..., Any],
        is_sharing_encoder: bool,
        discrete_projection_net_ctor: Callable[..., Any],
        continuous_projection_net_ctor: Callable[..., Any],
        detach: str,
    ) -> None:
        super().__init__()
        self.detach = detach
        self.policy_encoder = encoding_network_ctor(observation_spec)
        size = self.policy_encoder.output_size
        self.projections = nn.ModuleList(
            discrete_projection_net_ctor(size, leaf)
            if isinstance(leaf, spaces.Discrete)
            else continuous_projection_net_ctor(size, leaf)
            for leaf in leaves(action_spec)
        )
        self.value_encoder = (
            None if is_sharing_encoder else encoding_network_ctor(observation_spec)
        )
        self.value_head = linear(size, 1, gain=1.0)
        self.aux_head = linear(size, 1, gain=1.0)

    def forward(
        self, observation: Any, state: Any = (), require_aux: bool = True
    ) -> tuple[tuple[tuple[Tensor, ...], Tensor, Any], tuple[Any, Any, Any]]:
        """Return (rows of each leaf, value, auxiliary value) and the next states."""
        policy_state, value_state, _ = state or ((), (), ())
        features, policy_state = self.policy_encoder(observation, policy_state)
        # The value reads its own features in {eq}`disjoint-dual`, and those of the
        # policy, cut off, in {eq}`disjoint-shared`.
        if self.value_encoder is not None:
            seen, value_state = self.value_encoder(observation, value_state)
        elif self.detach == "always" or (
            self.detach == "policy_phase" and not require_aux
        ):
            seen = features.detach()
        else:
            seen = features
        rows = tuple(project(features) for project in self.projections)
        value = self.value_head(seen).squeeze(-1)
        aux = self.aux_head(features).squeeze(-1) if require_aux else ()
        return (rows, value, aux), (policy_state, value_state, ())


class DisjointPolicyValueNetwork(nn.Module):
    """A policy, a value and an auxiliary value, with one encoder or with two.

    Args:
        observation_spec: Space of one observation, a nest of Box and Discrete.
        action_spec: Space of one action, a nest of Box and Discrete. Each leaf gets a
            projection network of its own.
        encoding_network_ctor: Makes an encoder from the observation space: a module
            with the attribute ``output_size`` that maps an observation and a state to
            features and the next state. Called once or twice.
        is_sharing_encoder: True for the shared arrangement, False for the dual one.
        discrete_projection_net_ctor: Makes the projection network of a Discrete leaf,
            from the number of features and the leaf.
        continuous_projection_net_ctor: The same for a Box leaf.
        name: Name of the network.
        detach: When the value head of the shared arrangement is cut off from the
            encoder: ``"always"``; ``"policy_phase"``, which means where the auxiliary
            value is not required; or ``"never"``.

    Attributes:
        heads: The part that returns tensors; what ``DistributedDataParallel`` may wrap.

    Raises:
        TypeError: If a space is of another kind.
        ValueError: If ``detach`` is another word.

    Source:
        Cobbe et al. 2021, Phasic Policy Gradient, sections 2 and 3.6.
    """

    def __init__(
        self,
        observation_spec: spaces.Space[Any],
        action_spec: spaces.Space[Any],
        encoding_network_ctor: Callable[..., Any] = EncodingNetwork,
        is_sharing_encoder: bool = False,
        discrete_projection_net_ctor: Callable[..., Any] = CategoricalProjectionNetwork,
        continuous_projection_net_ctor: Callable[..., Any] = NormalProjectionNetwork,
        name: str = "DisjointPolicyValueNetwork",
        *,
        detach: str = "always",
    ) -> None:
        super().__init__()
        check_spec(observation_spec=observation_spec)
        check_spec(action_spec=action_spec)
        if detach not in DETACH:
            raise ValueError(f"detach must be one of {DETACH}, got {detach!r}")
        self.observation_spec, self.action_spec = observation_spec, action_spec
        self.name = name
        self.heads = Heads(
            observation_spec,
            action_spec,
            encoding_network_ctor,
            is_sharing_encoder,
            discrete_projection_net_ctor,
            continuous_projection_net_ctor,
            detach,
        )
        # Found here, these stay where they are when `heads` is wrapped.
        self.projections = list(self.heads.projections)

    def forward(
        self, observation: Any, state: Any = (), require_aux: bool = True
    ) -> tuple[tuple[Any, Tensor, Any], tuple[Any, Any, Any]]:
        """Return what the three heads say of B states.

        Args:
            observation: Tensors ``(B, *)`` in a nest like the observation space.
            state: The triple of states that the step before returned, or () at the
                start of episodes and for encoders without memory.
            require_aux: Whether the auxiliary value is wanted. The policy phase does
                without it.

        Returns:
            The triple of action distribution (a nest like the action space), value (B,)
            and auxiliary value (B,), which is () if it is not wanted; and the triple of
            states in the same order. A state is () where a head has no memory of its
            own: the auxiliary value always shares that of the policy.

        Raises:
            TypeError: If something else than a tensor stands at a leaf.
            ValueError: If the nest, a shape or the state is another one.
        """
        if not isinstance(state, tuple) or len(state) not in (0, 3):
            raise ValueError(
                f"state must be () or the triple of the step before, got {state!r:.60}"
            )
        (rows, value, aux), state = self.heads(observation, state, require_aux)
        return (self.distribution(rows), value, aux), state

    def distribution(self, rows: tuple[Tensor, ...]) -> Any:
        """Return the nest of distributions that rows, one for each leaf, describe."""
        projections: Any = self.projections
        pairs = zip(projections, rows, strict=True)
        return pack(self.action_spec, (p.distribution(row) for p, row in pairs))


# %% [markdown]
# Here it is for an environment that shows a vector and a mode, and takes a type with its
# arguments, the hybrid actions of {doc}`/chapters/hybrid_action`. Each leaf of the action
# space gets a projection. In the distributions below, a leaf is independent of the others.

# %%
import numpy as np

torch.manual_seed(0)
torch.set_num_threads(1)  # the networks are too small to be shared out
observations = spaces.Dict(
    {"mode": spaces.Discrete(3), "speed": spaces.Box(-np.inf, np.inf, (4,))}
)
actions = spaces.Tuple(
    (
        spaces.Discrete(3),
        spaces.Tuple((spaces.Box(0, 1, (1,)), spaces.Box(-1, 1, (2,)))),
    )
)
network = DisjointPolicyValueNetwork(observations, actions)
seen = {"mode": torch.tensor([0, 2, 1, 1, 0]), "speed": torch.randn(5, 4)}
(distribution, value, aux), state = network(seen)
action_type, (first, second) = distribution
for name, leaf in (("type", action_type), ("box 1", first), ("box 2", second)):
    print(f"{name:6s}{type(leaf).__name__:13s} sample {tuple(leaf.sample().shape)}")
print("value", tuple(value.shape), "auxiliary value", tuple(aux.shape))
print("states:", state)
(_, _, aux), _ = network(seen, require_aux=False)
print("auxiliary value that is not required:", aux)

# %% [markdown]
# With an encoder that remembers, the states are real. In the dual arrangement the policy and
# the value each have a memory of their own. The auxiliary value reads the policy's. A row
# of zeros as an observation, twice: what the network answers depends on what came before.

# %%
recurrent = DisjointPolicyValueNetwork(
    spaces.Box(-1, 1, (2,)), spaces.Discrete(2), RecurrentEncodingNetwork
)
nothing = torch.zeros(1, 2)
with torch.no_grad():
    for first in (torch.full((1, 2), -1.0), torch.full((1, 2), 1.0)):
        _, state = recurrent(first)
        (_, value, _), after = recurrent(nothing, state)
        print(f"after {first[0].tolist()}: value of nothing {value.item():+.4f}")
print("states:", [tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in after])

# %% [markdown]
# ## Where the gradient goes
#
# While PyTorch computes, it writes down a graph: which result came from which numbers. The
# gradient flows along this graph, backwards. So we need not believe what a drawing in a paper
# says about a network; we can read it from the graph itself. The function below starts at a
# head's output, walks back, and notes in which order it meets the weights of which part.


# %%
def gradient_edges(network, output):
    """Return pairs (from, to) of parts that the gradient of an output visits in turn."""
    parts = {
        id(p): ".".join(name.split(".")[:2])
        if "projections" in name
        else name.split(".")[0]
        for name, p in network.heads.named_parameters()
    }
    edges = set()

    def walk(node, above):
        below = [child for child, _ in node.next_functions if child is not None]
        weights = [child.variable for child in below if hasattr(child, "variable")]
        here = parts[id(weights[0])] if weights else above
        if here != above:
            edges.add((above, here))
        for child in below:
            if not hasattr(child, "variable"):
                walk(child, here)

    walk(output.grad_fn, "loss")
    return edges


def heads_of(network, require_aux=True):
    """Return one output tensor for each head."""
    (rows, value, aux), _ = network.heads(torch.randn(5, 4), (), require_aux)
    return {"policy": rows[0], "value": value, "aux": aux}


box, three = spaces.Box(-1, 1, (4,)), spaces.Discrete(3)
dual = DisjointPolicyValueNetwork(box, three)
shared = DisjointPolicyValueNetwork(box, three, is_sharing_encoder=True)
for name, net in (("dual", dual), ("shared", shared)):
    for head, output in heads_of(net).items():
        edges = gradient_edges(net, output)
        print(f"{name:7s}{head:7s}{sorted(edges)}")

# %% mystnb={"image": {"alt": "Two graphs with arrows from the losses on the right back to the encoders on the left. Dual: the arrows of the policy and of the auxiliary value meet in the policy's encoder, that of the value ends in the value's own encoder. Shared: there is one encoder, the arrows of policy and auxiliary value reach it, and the arrow of the value stops at its head before a cross"}} tags=["hide-input"]
import matplotlib.pyplot as plt

LABELS = {
    "policy_encoder": "policy\nencoder",
    "value_encoder": "value\nencoder",
    "projections.0": "policy\nhead",
    "aux_head": "auxiliary\nhead",
    "value_head": "value\nhead",
}
HEIGHT = {"projections.0": 2, "aux_head": 1, "value_head": 0}
COLOUR = {"policy": "C0", "aux": "C1", "value": "C2"}
OWN_HEAD = {"policy": "projections.0", "aux": "aux_head", "value": "value_head"}


def draw(axis, network, title):
    """Draw parts as boxes, gradients as arrows and a cut as a cross."""
    sharing = network.heads.value_encoder is None
    place = {name: (1.2, y) for name, y in HEIGHT.items()}
    place["policy_encoder"] = (0.0, 1.0 if sharing else 1.5)
    if not sharing:
        place["value_encoder"] = (0.0, 0.0)
    for head, output in heads_of(network).items():
        here, colour = OWN_HEAD[head], COLOUR[head]
        place["loss"] = (2.3, HEIGHT[here])
        edges = gradient_edges(network, output)
        for start, end in edges:
            arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 2}
            arrow |= {"shrinkA": 20 if start != "loss" else 0, "shrinkB": 22}
            axis.annotate("", place[end], place[start], arrowprops=arrow)
        axis.text(
            2.35,
            HEIGHT[here],
            "loss of\n" + {"aux": "auxiliary"}.get(head, head),
            color=colour,
            va="center",
        )
        if not any(end.endswith("encoder") for _, end in edges):
            x, y = (np.array(place[here]) + np.array(place["policy_encoder"])) / 2
            axis.plot(
                *zip(place[here], place["policy_encoder"], strict=True),
                ":",
                color=colour,
                zorder=0,
            )
            axis.plot(x, y, "x", color="C3", markersize=12, markeredgewidth=3)
    for name, (x, y) in place.items():
        if name in LABELS:
            box = {"boxstyle": "round", "facecolor": "#606060", "edgecolor": "none"}
            axis.text(
                x,
                y,
                LABELS[name],
                ha="center",
                va="center",
                color="white",
                fontsize=8,
                bbox=box,
            )
    axis.set(xlim=(-0.4, 3.0), ylim=(-0.5, 2.5), title=title)
    axis.axis("off")


fig, axes = plt.subplots(1, 2, figsize=(7, 2.8))
draw(axes[0], dual, "dual")
draw(axes[1], shared, "shared")
fig.tight_layout()

# %% [markdown]
# **What to notice.** Every arrow is a path in the real graph. In both arrangements two losses
# meet in the policy's encoder: that of the policy and that of the auxiliary value. The loss
# of the value never gets there. In the dual arrangement it has an encoder of its own. In the
# shared one it ends at its head, and the red cross marks the cut.
#
# In numbers: the length of the gradient that each loss sends into each part.

# %%
batch = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
target = batch[:, 0] * batch[:, 1]


def loss_of(network, head, require_aux=True):
    """Return a loss that only one head enters."""
    (distribution, value, aux), _ = network(batch, require_aux=require_aux)
    if head == "policy":
        return -distribution.log_prob((target > 0).long()).mean()
    return ((value if head == "value" else aux) - target).square().mean()


def length(loss, module):
    """Return the length of a loss's gradient in a module."""
    weights = list(module.parameters())
    gradients = torch.autograd.grad(loss, weights, allow_unused=True, retain_graph=True)
    return sum(g.square().sum() for g in gradients if g is not None) ** 0.5


print(f"{'loss':16s}{'policy encoder':>16s}{'value encoder':>16s}")
for name, net in (("dual", dual), ("shared", shared)):
    for head in ("policy", "value", "aux"):
        loss = loss_of(net, head)
        encoders = (net.heads.policy_encoder, net.heads.value_encoder)
        numbers = ["-" if e is None else f"{length(loss, e):.3f}" for e in encoders]
        print(f"{name:8s}{head:8s}" + "".join(f"{x:>16s}" for x in numbers))

# %% [markdown]
# ## When to cut
#
# Here the paper and its authors' code differ. The paper on the shared arrangement (section
# 3.6): in the policy phase the value's gradient is cut off; *in the auxiliary phase it flows
# into all parameters*. In the code the value head is cut off in both phases. The library
# that this network's interface comes from, ALF, follows the code. Asked about it (issue #7
# of the code's repository), nobody has answered.
#
# `detach` offers all three: `"always"` as in the code, `"policy_phase"` as in the paper, and
# `"never"`, which is the ordinary shared network of many PPO implementations. The phase need
# not be told: only the auxiliary phase requires the auxiliary value. (So does a rollout that
# stores it, but no gradient is taken there.) First what reaches the encoder:

# %%
print(f"{'value loss reaches the encoder':34s}{'policy phase':>14s}{'auxiliary':>12s}")
for detach in ("always", "policy_phase", "never"):
    torch.manual_seed(0)
    net = DisjointPolicyValueNetwork(box, three, is_sharing_encoder=True, detach=detach)
    numbers = [
        length(loss_of(net, "value", require_aux), net.heads.policy_encoder)
        for require_aux in (False, True)
    ]
    print(f"{detach:34s}{numbers[0]:14.3f}{numbers[1]:12.3f}")

# %% [markdown]
# Does it matter? We let the network learn a target from 256 states with the losses of an
# auxiliary phase: both values shall reach the target, and a divergence keeps the policy
# where it was. Each row is a mean over five networks, the last one too, which has ten times the
# steps.

# %%
from torch.distributions import kl_divergence


def auxiliary_phase(detach, seed, steps=150):
    """Return errors of value and auxiliary value, and the divergence, at the end."""
    torch.manual_seed(seed)
    net = DisjointPolicyValueNetwork(box, three, is_sharing_encoder=True, detach=detach)
    net.heads.projections[0].logits.weight.data.mul_(100)  # a policy with opinions
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    with torch.no_grad():
        (old, _, _), _ = net(batch)
    for _ in range(steps):
        (new, value, aux), _ = net(batch)
        errors = [(x - target).square().mean() for x in (value, aux)]
        drift = kl_divergence(old, new).mean()
        optimizer.zero_grad()
        sum((*errors, drift)).backward()
        optimizer.step()
    return [x.item() for x in (*errors, drift)]


print(f"{'detach':16s}{'value':>10s}{'auxiliary':>12s}{'divergence':>12s}")
errors = {}
for detach, steps in (("always", 150), ("policy_phase", 150), ("always", 1500)):
    runs = [auxiliary_phase(detach, seed, steps) for seed in range(5)]
    errors[detach, steps] = np.mean(runs, 0)
    label = detach if steps == 150 else f"{detach}, {steps}"
    print(f"{label:16s}{{:10.4f}}{{:12.4f}}{{:12.4f}}".format(*errors[detach, steps]))

# %% [markdown]
# **What to notice.** The auxiliary value gets about as far in both cases. The value that is used
# for training, in the first column, is far behind if it is always cut off: all it can do is to
# combine the features that the others have made, and those change under it. It is late, not
# lost: with ten times the steps, in the last row, it arrives too. This is one target and one small
# network, so it shows what each rule does, not which one trains the better agent. The dual
# arrangement avoids the question.

# %% tags=["claims"]
always, phased, longer = errors.values()
assert 0.5 < always[1] / phased[1] < 1.5, "the auxiliary value gets about as far"
assert always[0] > 2 * phased[0], "the value is far behind if it is always cut off"
assert longer[0] < 0.1 * phased[0], "late, not lost"

# %% [markdown]
# ## Several processes
#
# Large experiments run in several processes. Each has a copy of the network, computes the
# gradient of its own part of the batch, and all of them average their gradients:
#
# $$
# \frac{1}{n_{\text{proc}}} \sum_{i=1}^{n_{\text{proc}}} \nabla \mathcal L^{(i)} .
# $$ (def-averaged-gradient)
#
# If the parts of the $n_{\text{proc}}$ processes have the same size, this is the gradient of the mean loss
# over the whole batch, and all copies take the same step. PyTorch's `DistributedDataParallel` does it: it
# wraps a module, and while `backward` runs, each gradient is averaged as soon as it is there.
# For this it has to know which gradients will come. It waits for *all* parameters, unless
# `find_unused_parameters` tells it to search the graph of the outputs first.
#
# In the policy phase the auxiliary head has no loss, so no gradient of it will ever come.
# That is why ALF's documentation gives `require_aux=False` to that phase: without the
# auxiliary value in the output, it says, the wait ends. We ask PyTorch itself. The cell
# writes a program of its own and starts it in two processes.

# %%
import subprocess
import sys
import tempfile
from pathlib import Path

program = '''
from itertools import product
from textwrap import shorten
import torch
import torch.distributed as dist
from gymnasium import spaces
from torch.nn.parallel import DistributedDataParallel
from literate_rl.disjoint_network import DisjointPolicyValueNetwork

torch.set_num_threads(1)
dist.init_process_group("gloo")
box, three = spaces.Box(-1, 1, (4,)), spaces.Discrete(3)
batch = torch.randn(8, 4)

def phases(wrap_all, require_aux, search, zero=False):
    """Take two steps of the policy phase and one of the auxiliary phase."""
    network = DisjointPolicyValueNetwork(box, three)
    if wrap_all:
        network = DistributedDataParallel(network, find_unused_parameters=search)
    else:
        network.heads = DistributedDataParallel(
            network.heads, find_unused_parameters=search
        )
    try:
        for _ in range(2):
            (policy, value, aux), _ = network(batch, require_aux=require_aux)
            loss = policy.log_prob(torch.zeros(8)).mean() + value.mean()
            if zero:
                loss = loss + 0 * aux.sum()
            loss.backward()
        (policy, value, aux), _ = network(batch)
        (policy.entropy() + value + aux).mean().backward()
    except RuntimeError as error:
        return "fails: " + shorten(str(error), 52, placeholder=" …")
    return "works"

for search, wrap_all, require_aux in product((False, True), repeat=3):
    answer = phases(wrap_all, require_aux, search)
    if dist.get_rank() == 0:
        wrapped = "all" if wrap_all else "heads"
        print(f"{search!s:8s}{wrapped:9s}{require_aux!s:13s}{answer}", flush=True)
for wrap_all in (True, False):
    answer = phases(wrap_all, True, False, zero=True)
    if dist.get_rank() == 0:
        wrapped = "all" if wrap_all else "heads"
        print(f"False   {wrapped:9s}True         {answer}, with 0 times the auxiliary value")
dist.destroy_process_group()
'''
launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "two_processes.py"
    path.write_text(program, "utf-8")
    done = subprocess.run(
        [*launch, "--nproc-per-node=2", str(path)],
        capture_output=True,
        text=True,
        timeout=100,
    )
assert done.returncode == 0, done.stderr
print("search  wrapped  require_aux  two steps of the policy phase, then the other")
print(done.stdout)

# %% [markdown]
# What the rows say:
#
# - **Without the search**, in the first four rows, it fails, whatever is wrapped and with and
#   without `require_aux`. The auxiliary head is a parameter whatever the output is, and DDP
#   waits for it.
# - **The whole network wrapped, with the search**, fails too. It returns distributions, and the
#   search looks for tensors only in tuples, lists, dictionaries and dataclasses. Inside a
#   distribution it finds nothing. So it takes the weights of the policy for unused, and is
#   surprised when their gradients come.
# - **`heads` wrapped, with the search**, works, again with and without `require_aux`. So the
#   documented reason does not hold for today's PyTorch. What `require_aux=False` saves is the
#   work of one head.
# - **Without any search** it works if the auxiliary value enters the loss with the weight
#   zero, the last two rows. Its head then gets a gradient, of zeros. The search costs a walk
#   through the graph in every step; this costs one small head.
#
# That is why the weights live in `heads`. After `network.heads =
# DistributedDataParallel(network.heads)` the network is called as before, and the
# distributions are built outside of what is wrapped. Only a call of all of `heads` is averaged:
# who calls an encoder by itself, as the policy of the next chapter does, goes past it. The tests
# run this in two processes and compare the averaged gradient with that of one process.

# %% tags=["claims"]
rows = [line.split(maxsplit=3) for line in done.stdout.strip().splitlines()]
for search, wrapped, _, answer in rows[:8]:
    right = "works" if search == "True" and wrapped == "heads" else "fails"
    assert answer.startswith(right), "the search and the heads, both are needed"
assert all("works, with 0 times" in row[3] for row in rows[8:]), "or a loss of zero"

# %% [markdown]
# ## Traps
#
# ### Trap: the triple in another order
#
# The order is (distribution, value, auxiliary value). Both values have the same shape, so nothing
# complains if they are exchanged, and a test of shapes passes. ALF's test of this network names the
# specifications of its outputs [in the wrong
# order](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg/disjoint_policy_value_network_test.py#L68) and the outputs themselves
# [in the right one](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg/disjoint_policy_value_network_test.py#L84), and both halves
# pass. In the policy phase the mistake shows, because one of the two is not there:

# %%
(_, aux, value), _ = dual(batch, require_aux=False)  # the wrong order
print("the 'value' of the policy phase:", value)

# %% [markdown]
# ### Trap: cutting behind the head
#
# To keep the value from moving the encoder, the *features* are detached, in front of the
# head. If the value itself is detached, behind the head, then nothing is moved, the head
# included, and the loss has no gradient at all:

# %%
features, _ = shared.heads.policy_encoder(batch)
head = shared.heads.value_head
for name, value in (
    ("in front", head(features.detach())),
    ("behind", head(features).detach()),
):
    print(f"cut {name:9s} the head gets a gradient: {value.requires_grad}")

# %% [markdown]
# ### Trap: an empty tuple is no tensor
#
# `if aux:` tells a tuple that is empty from one that is not. For a tensor with several
# numbers it raises, and for a tensor with one number it asks whether the number is zero.

# %%
for aux in ((), torch.zeros(1), torch.zeros(3)):
    try:
        print(f"{aux!s:28s}counts as {bool(aux)}")
    except RuntimeError as error:
        print(f"{aux!s:28s}raises: {str(error)[:50]}…")

# %% [markdown]
# Ask `aux == ()`, or whether it is a tuple, or keep in mind what you required.
#
# ### Trap: the memory of another episode
#
# A state that is handed on beyond the end of an episode tells the new episode of the old one.
# Two copies of an environment, the first has just started anew:

# %%
with torch.no_grad():
    state = ()
    for _ in range(10):
        _, state = recurrent(torch.ones(2, 2), state)
    fresh = torch.tensor([True, False])
    clean = tuple(
        s if isinstance(s, tuple) else s.masked_fill(fresh[:, None], 0.0) for s in state
    )
    (_, alone, _), _ = recurrent(torch.zeros(1, 2))
    (_, kept, _), _ = recurrent(torch.zeros(2, 2), state)
    (_, cut, _), _ = recurrent(torch.zeros(2, 2), clean)
print(f"value at a start        {alone[0]:+.4f}")
print(f"memory handed on        {kept[0]:+.4f}")
print(f"memory set to zero      {cut[0]:+.4f}")

# %% [markdown]
# ## What well-known implementations do
#
# | question | this chapter | the paper's code | ALF | CleanRL | DI-engine |
# |---|---|---|---|---|---|
# | arrangements | dual, shared | dual, shared, [shared and cut off](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/ppg.py#L80-L86) | dual, [shared and cut off](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg/disjoint_policy_value_network.py#L195-L206) | [shared and cut off](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppg_procgen.py#L206-L208) | [dual](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/model/template/ppg.py#L59-L73) |
# | value cut off from a shared encoder | always, in the policy phase, or never | [always, or never](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/ppg.py#L148-L151) | [always](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg/disjoint_policy_value_network.py#L106-L107) | [always](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppg_procgen.py#L200-L208) | – |
# | auxiliary value in the policy phase | optional | [computed](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/ppg.py#L153) | [left out](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg_algorithm.py#L173-L174) | [left out](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppg_procgen.py#L194-L200) | [left out](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/policy/ppg.py#L277) |
# | initial weights | orthogonal, policy 0.01 | [rows of a fixed length](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/ppg.py#L104-L108) | [variance scaling](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/layers.py#L351-L356), policy [0.1](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/networks/projection_networks.py#L39) | [as the paper's code](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppg_procgen.py#L101-L105) | PyTorch's own |
# | nested actions | yes | [no](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/distr_builder.py#L46-L49) | [yes](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg/disjoint_policy_value_network.py#L56) | no | no |
# | memory | optional | [optional](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/ppg.py#L157-L158) | [optional](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg/disjoint_policy_value_network.py#L255) | no | no |
#
# The code was read at the linked commits.
# The paper's code scales each row of weights to a fixed length, 0.1 for the heads. CleanRL
# does the same. The interface's documentation mentions the difference and uses the standard
# instead, as we do with that of this book.
#
# ## On the best device
#
# The network goes where its weights go.

# %%
from literate_rl.agents import best_device

device = best_device()
on_device = DisjointPolicyValueNetwork(observations, actions).to(device)
moved = {name: x.to(device) for name, x in seen.items()}
((kind, _), value, _), _ = on_device(moved)
print(f"logits and values of 5 states on {value.device.type}")
print("on one device:", kind.logits.device == value.device)

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: which weights move?
#
# Given are the arrangement (`"dual"` or `"shared"`, always cut off) and the names of the heads
# whose losses are added up. Return how many of the encoders get a gradient.

# %%
from literate_rl.agents import grade


def answer(arrangement, heads):
    return ...


def encoders_moved(arrangement, heads):
    net = dual if arrangement == "dual" else shared
    edges = set().union(*(gradient_edges(net, heads_of(net)[h]) for h in heads))
    return len({end for _, end in edges if end.endswith("encoder")})


cases = [
    ("dual", ["policy", "value"]),
    ("dual", ["policy", "aux"]),
    ("shared", ["value"]),
    ("shared", ["policy", "value", "aux"]),
]
grade(answer, encoders_moved, *cases)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(arrangement, heads):
    policy = "policy" in heads or "aux" in heads
    value = "value" in heads and arrangement == "dual"
    return policy + value


grade(answer, encoders_moved, *cases)

# %% [markdown]
# ### Exercise 2: the price of a second encoder
#
# How many more weights has the dual network than the shared one? Given are the length of an
# observation and the widths of the encoder's layers.


# %%
def answer(obs_size, hidden):
    return ...


def difference(obs_size, hidden):
    space = spaces.Box(-1, 1, (obs_size,))
    counts = [
        sum(
            p.numel()
            for p in DisjointPolicyValueNetwork(
                space, three, lambda s: EncodingNetwork(s, hidden), sharing
            ).parameters()
        )
        for sharing in (False, True)
    ]
    return counts[0] - counts[1]


sizes = [(4, (64, 64)), (10, (32,)), (1, (8, 8, 8))]
grade(answer, difference, *sizes)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(obs_size, hidden):
    # One encoder: each layer has a matrix and a bias.
    total = 0
    for width in hidden:
        total += (obs_size + 1) * width
        obs_size = width
    return total


grade(answer, difference, *sizes)

# %% [markdown]
# ### Exercise 3: one of four
#
# Two processes have four and twelve samples. Each averages the gradients over its samples,
# and then both are averaged with equal weights. Given are the gradients of all samples of the
# two processes, as two lists. By how much does the result exceed the mean over all samples?


# %%
def answer(first, second):
    return ...


def excess(first, second):
    averaged = (np.mean(first) + np.mean(second)) / 2
    return float(averaged - np.mean([*first, *second]))


gradients = [([1.0] * 4, [0.0] * 12), ([2.0] * 4, [2.0] * 12), ([0.0] * 8, [1.0] * 8)]
grade(answer, excess, *gradients)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(first, second):
    # The true mean weighs each process with its share of the samples.
    n, m = len(first), len(second)
    a, b = sum(first) / n, sum(second) / m
    return (0.5 - n / (n + m)) * a + (0.5 - m / (n + m)) * b


grade(answer, excess, *gradients)

# %% [markdown]
# ## References
#
# The three heads and both arrangements are from {cite:t}`cobbe2021`, the gated recurrent
# unit from {cite:t}`cho2014`. The names and arguments of the network are those of the library
# ALF.
