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
# **How can a policy profit from what a value learns without being disturbed by it?** Both look
# at the same states, so they could share their first layers. But then each would change
# what the other sees. After this chapter you can build a
# network that keeps the two apart and still lets the policy's features profit, and say for each loss
# which weights it moves. It takes about 30 minutes. You need {doc}`policies` and {doc}`ppo`. The next
# chapter, {doc}`ppg`, trains the network.

# %% tags=["export", "hide-input"]
"""The disjoint network: a policy, a value and an auxiliary value, in two forms."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from literate_rl.ground.nests import Spec, flat, leaves, pack
from literate_rl.ground.networks import orthogonal
from literate_rl.ground.signatures import Count, Float, at_least, checked

__all__ = [
    "CategoricalProjectionNetwork",
    "DisjointPolicyValueNetwork",
    "EncodingNetwork",
    "NormalProjectionNetwork",
]

# %% [markdown]
# ## Two networks and three heads
#
# An **encoder** turns a state into features, and a **head** turns features into an answer.
# The network of this chapter, from *phasic policy gradient* {cite:p}`cobbe2021`, has three
# heads. The *policy* head says what to do, and both the *value* head and the *auxiliary value*
# head estimate the return. There are two arrangements:

# %% tags=["hide-input"]
from literate_rl.book.pictures import Picture

picture = Picture(
    "Two networks and three heads",
    "Above, the dual arrangement: the policy's encoder feeds the policy head and the "
    "auxiliary value head, a second encoder feeds the value head. Below, the shared "
    "arrangement: one encoder feeds all three, and no gradient flows back from the value "
    "head.",
)
for top, arrangement in ((0, "dual"), (226, "shared")):
    picture.text(4, top, arrangement, bold=True, anchor="start")
    state = picture.box(30, top + 92, "s", width=40)
    heads = [
        picture.box(366, top + 34 + 58 * row, name, width=136)
        for row, name in enumerate(("policy", "auxiliary value", "value"))
    ]
    dual = arrangement == "dual"
    name, y = ("encoder\nof the policy", 62) if dual else ("encoder", 92)
    encoder = picture.box(152, top + y, name, width=110)
    picture.arrow(state, encoder.at(0, 0.5))
    for head in heads[:2]:
        picture.arrow(encoder, head)
    if dual:
        second = picture.box(152, top + 150, "encoder\nof the value", width=110)
        picture.arrow(state, second.at(0, 0.5))
        picture.arrow(second, heads[2])
    else:
        picture.arrow(encoder, heads[2], tone="accent", kind="dashed")
        picture.text(252, top + 150, "no gradient back", "accent", "end")
picture

# %% [markdown]
# **Notice** what the auxiliary value is attached to: the encoder of the policy, in both
# arrangements. Its estimates are never used. It is there for its gradient, which teaches the
# policy's encoder what matters for the return. The value whose estimates *are* used sends no
# gradient there.
#
# ## What the policy's features gain
#
# Do features get better when a value learns, and does the policy stay as it was? A state is four random
# numbers from $-2$ to 2, and its return is the product of the first two. The policy is not trained; it has random
# opinions and should keep them. Four networks learn the returns of 256 states:
#
# - *one encoder*, shared with an ordinary value,
# - *two encoders*, one for the policy and one for the value,
# - *the disjoint network*: two encoders and an auxiliary value, which learns the returns too.
#   A second loss holds the policy where it was, by its Kullback-Leibler divergence.
# - *one encoder, held*: shared as in the first, with the second loss of the third.
#
# On new states we ask which share of the return's variance a linear fit can read off the policy's
# features (a *linear probe* {cite:p}`alain2017`), and how far the policy has moved.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two panels over 200 steps, five runs of each network. First, the share of the return's variance that the policy's features explain: it rises close to one with one encoder, held or not, and with the disjoint network, and stays low with two encoders. Second, the divergence of the policy: it grows with one encoder that is not held and stays near zero with the other three"}}
import matplotlib.pyplot as plt
import numpy as np
import torch
from gymnasium import spaces
from torch.distributions import kl_divergence

from literate_rl.nets.disjoint_network import DisjointPolicyValueNetwork  # built below

torch.set_num_threads(1)  # the networks are too small to be shared out
box, three = spaces.Box(-np.inf, np.inf, (4,)), spaces.Discrete(3)
states = 4 * torch.rand(4352, 4, generator=torch.Generator().manual_seed(0)) - 2
seen, fresh = states.split([256, 4096])


def return_of(state):
    return state[:, 0] * state[:, 1]


def network_of(seed, **options):
    """Return a network whose policy has opinions."""
    torch.manual_seed(seed)
    network = DisjointPolicyValueNetwork(box, three, **options)
    network.heads.projections[0].logits.weight.data.mul_(100)
    return network


@torch.no_grad()
def probe(network):
    """Return the share of the return's variance that a linear fit finds in features."""
    features, _ = network.heads.policy_encoder(fresh)
    rows = torch.cat([features, torch.ones(len(fresh), 1)], -1).double()
    target = return_of(fresh).double()
    # Fit to one half, test on the other.
    fit = torch.linalg.lstsq(rows[::2], target[::2, None]).solution[:, 0]
    return 1 - ((rows[1::2] @ fit - target[1::2]).square().mean() / target.var()).item()


def learn(network, auxiliary, hold, steps=200):
    """Learn returns; return rows of step, probe, divergence and the value's error."""
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    with torch.no_grad():
        (old, _, _), _ = network(seen)
        (old_fresh, _, _), _ = network(fresh)
    rows = []
    for step in range(steps + 1):
        (new, value, aux), _ = network(seen)
        errors = [(x - return_of(seen)).square().mean() for x in (value, aux)]
        if step % 20 == 0:
            with torch.no_grad():
                (policy, _, _), _ = network(fresh)
                drift = kl_divergence(old_fresh, policy).mean().item()
            rows.append((step, probe(network), drift, errors[0].item()))
        loss = errors[0] + auxiliary * errors[1] + hold * kl_divergence(old, new).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return np.array(rows)


cases = {
    "one encoder": ({"is_sharing_encoder": True, "detach": "never"}, 0, 0),
    "two encoders": ({}, 0, 0),
    "disjoint": ({}, 1, 1),
    "one encoder, held": ({"is_sharing_encoder": True, "detach": "never"}, 0, 1),
}
curves = {
    name: np.array([learn(network_of(seed, **options), *losses) for seed in range(5)])
    for name, (options, *losses) in cases.items()
}
fig, axes = plt.subplots(1, 2, figsize=(7, 2.6), layout="constrained")
for number, (name, runs) in enumerate(curves.items()):
    for axis, column in zip(axes, (1, 2), strict=True):
        lines = axis.plot(runs[0, :, 0], runs[:, :, column].T, f"C{number}", alpha=0.7)
        lines[0].set_label(name)
axes[0].set(xlabel="steps", ylabel="share of the variance", ylim=(-0.1, 1.05))
axes[1].set(xlabel="steps", ylabel="divergence (nats)")
_ = axes[1].legend()

# %% [markdown]
# **Notice** that with one encoder the features learn, but the policy drifts: the features move under it. With two encoders the
# policy is left alone, and its features learn nothing. The disjoint network has the best of both: its features explain
# more than 95 % of the return's variance, and its policy has moved by less than a hundredth of a nat. But so it is with
# one encoder that is held. Whether a policy acts better with these features is a question for {doc}`ppg_evidence`.

# %% tags=["claims"]
shares, drifts = ({n: r[:, :, i] for n, r in curves.items()} for i in (1, 2))
assert (shares["one encoder"][:, -1] > 0.95).all(), "one encoder learns to see"
assert (drifts["one encoder"][:, -1] > 0.02).all(), "but the policy drifts"
assert (shares["two encoders"] < 0.01).all(), "nothing is learned"
assert (drifts["two encoders"] == 0).all(), "left in peace"
for name in ("disjoint", "one encoder, held"):
    assert (shares[name][:, -1] > 0.95).all(), "more than 95 %"
    assert (drifts[name][:, -1] < 0.01).all(), "a hundredth of a nat"

# %% [markdown]
# ### Why a second value?
#
# So it is the second loss that holds the policy still, and not the second encoder. But a policy can
# only be held while it does not learn, and the value must learn all the time. The auxiliary value
# can wait. Phasic policy gradient takes turns: in a **policy phase** policy and value learn as in PPO; in an
# **auxiliary phase** the auxiliary value teaches the policy's features while the policy is held.
#
# ## In symbols
#
# Let $y_\pi$ be the features of the policy's encoder and $y_V$ those of the value's encoder.
# In the **dual** arrangement
#
# $$
# \psi = W y_\pi + b , \qquad
# V(s) = w_V^\top y_V + b_V , \qquad
# V^{\text{aux}}(s) = w_{\text{aux}}^\top y_\pi + b_{\text{aux}} .
# $$ (disjoint-dual)
#
# Here $\psi$ is the row of numbers that describes the policy, such as logits. $V$ has weights and features that no
# other head knows.
#
# In the **shared** arrangement there is one encoder. To keep the value from moving it,
# the value head reads features that pass no gradient back:
#
# $$
# V(s) = w_V^\top \operatorname{sg}(y_\pi) + b_V .
# $$ (disjoint-shared)
#
# The operator $\operatorname{sg}$, *stop gradient*, returns its argument, and its derivative
# is zero by decree. In PyTorch it is called `detach`, and it belongs in front of the head: behind it, not even
# the head could learn.

# %% tags=["claims"]
features, _ = network_of(0).heads.policy_encoder(seen)
head = network_of(0).heads.value_head
assert head(features.detach()).requires_grad, "in front, the head learns"
assert not head(features).detach().requires_grad, "behind it does not"

# %% [markdown]
# ## Line by line: encoder
#
# An encoder is made from the space of the observations. That space may be a nest, that is a `Dict` or
# `Tuple` of spaces ({doc}`encoders`), whose innermost spaces are its **leaves**. `flat`
# puts all parts of an observation into one vector. The argument `state` is not the state $s$
# of the environment but what an encoder with a memory keeps from step to step. Ours has
# none, and its `state` is the empty tuple.


# %% tags=["export"]
def linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """Build a linear layer with orthogonal weights and a bias of zero."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a type may have no arguments
        return orthogonal(nn.Linear(inputs, outputs), gain)


class EncodingNetwork(nn.Module):
    """An encoder without memory: linear layers with tanh.

    ``observation_spec`` is a nest of Box and Discrete. ``hidden`` has the widths of the
    layers; the last one is the number of features, ``output_size``.
    """

    @checked
    def __init__(
        self,
        observation_spec: Spec,
        hidden: Annotated[Sequence[Count], at_least(1, "one width")] = (64, 64),
    ) -> None:
        super().__init__()
        self.spec, self.output_size = observation_spec, hidden[-1]
        # Each layer is as wide as the next one expects.
        sizes = [spaces.flatdim(observation_spec), *hidden]
        self.layers = nn.ModuleList(
            linear(n, m, math.sqrt(2)) for n, m in pairwise(sizes)
        )

    def forward(self, observation: Any, state: Any = ()) -> tuple[Tensor, Any]:
        """Return the features of observations, and the state as it came."""
        # One vector for each state, in the precision of the weights.
        features = flat(self.spec, observation).to(next(self.parameters()).dtype)
        for layer in self.layers:
            features = layer(features).tanh()
        return features, state


# %% [markdown]
# ## Line by line: policy heads
#
# A policy head is called a **projection network**: it projects features onto the numbers of a
# distribution. The start is a policy with hardly any preference, hence the gain of 0.01.


# %% tags=["export"]
class CategoricalProjectionNetwork(nn.Module):
    """Projects features onto the logits of a discrete action.

    Actions count from 0 here, whatever the space calls the first one.
    """

    @checked
    def __init__(self, input_size: Count, action_spec: spaces.Discrete) -> None:
        super().__init__()
        self.logits = linear(input_size, int(action_spec.n), gain=0.01)

    @checked
    def forward(self, features: Float[Tensor, "... F"]) -> Float[Tensor, "... N"]:
        """Return the logits of features."""
        return self.logits(features)

    @checked
    def distribution(self, row: Float[Tensor, "... N"]) -> Distribution:
        """Return the distribution that logits describe."""
        return Categorical(logits=row, validate_args=False)


class NormalProjectionNetwork(nn.Module):
    """Projects features onto means and standard deviations of the numbers in a box.

    Their units are those in which the box goes from -1 to 1.
    """

    @checked
    def __init__(self, input_size: Count, action_spec: spaces.Box) -> None:
        super().__init__()
        self.shape = action_spec.shape
        self.mu = linear(input_size, math.prod(self.shape), gain=0.01)
        self.log_sigma = nn.Parameter(torch.zeros(math.prod(self.shape)))

    @checked
    def forward(self, features: Float[Tensor, "... F"]) -> Float[Tensor, "... 2*A"]:
        """Return means, then logarithms of standard deviations."""
        mu = self.mu(features)
        return torch.cat([mu, self.log_sigma.expand_as(mu)], -1)

    @checked
    def distribution(self, row: Float[Tensor, "..."]) -> Distribution:
        """Return the distribution over the box that rows describe."""
        # Half of the row each, in the shape of the box.
        mu, log_sigma = (
            x.reshape(*x.shape[:-1], *self.shape) for x in row.chunk(2, -1)
        )
        # The numbers of one action count together, not one by one.
        normal = Normal(mu, log_sigma.exp(), validate_args=False)
        return Independent(normal, len(self.shape), validate_args=False)


# %% [markdown]
# ## Line by line: the three heads
#
# The network comes in two parts. `Heads` has all the weights and returns nothing but tensors;
# several processes that train together need that ({doc}`ground/networks`). `detach` says when
# the value head of the shared arrangement is cut off ([below](#when-to-cut)).

# %% tags=["export"]
# When a shared encoder is cut off from the value.
Detach = Literal["always", "policy_phase", "never"]


class Heads(nn.Module):
    """All weights of the disjoint network. It returns tensors only.

    ``projections`` has a policy head for each leaf of the action space. With None as
    ``value_encoder`` the value shares the encoder of the policy.
    """

    def __init__(
        self,
        policy_encoder: Any,
        projections: Iterable[nn.Module],
        value_encoder: Any,
        detach: Detach,
        reward_shape: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.detach, self.policy_encoder = detach, policy_encoder
        self.reward_shape, rewards = reward_shape, math.prod(reward_shape)
        self.projections = nn.ModuleList(projections)
        self.value_encoder = value_encoder
        self.value_head = linear(policy_encoder.output_size, rewards, gain=1.0)
        self.aux_head = linear(policy_encoder.output_size, rewards, gain=1.0)

    def forward(
        self, observation: Any, state: Any = (), require_aux: bool = True
    ) -> tuple[tuple[tuple[Tensor, ...], Tensor, Any], tuple[Any, Any, Any]]:
        """Return (rows of each leaf, value, auxiliary value) and the next states."""
        # The policy's encoder sees for the policy and for the auxiliary value.
        policy_state, value_state, _ = state or ((), (), ())
        features, policy_state = self.policy_encoder(observation, policy_state)

        # The value has its own features in {eq}`disjoint-dual`. In
        # {eq}`disjoint-shared` it reads the policy's, cut off. Only the auxiliary phase
        # requires the auxiliary value, so this tells the phases apart.
        policy_phase = not require_aux
        if self.value_encoder is not None:
            own, value_state = self.value_encoder(observation, value_state)
        elif self.detach == "always" or (
            self.detach == "policy_phase" and policy_phase
        ):
            own = features.detach()
        else:
            own = features

        # The three heads.
        rows = tuple(project(features) for project in self.projections)
        shape = (*features.shape[:-1], *self.reward_shape)
        value = self.value_head(own).reshape(shape)
        aux = self.aux_head(features).reshape(shape) if require_aux else ()
        return (rows, value, aux), (policy_state, value_state, ())


# %% [markdown]
# `DisjointPolicyValueNetwork` builds these parts and turns the policy's rows into
# distributions. Each part of an action gets a policy head of its own.


# %% tags=["export"]
class DisjointPolicyValueNetwork(nn.Module):
    """A policy, a value and an auxiliary value, with one encoder or with two.

    The weights are in ``heads``, which ``DistributedDataParallel`` may wrap.

    Args:
        observation_spec: Space of one observation, a nest of Box and Discrete.
        action_spec: Space of one action, likewise. The leaves are independent.
        encoding_network_ctor: Makes an encoder from the observation space: a module
            with an ``output_size`` that maps an observation and a state to features and
            the next state. Called once or twice.
        is_sharing_encoder: True for the shared arrangement, False for the dual one.
        discrete_projection_net_ctor: Makes the policy head of a Discrete leaf, from the
            number of features and the leaf: a module that maps features to a row, with
            a method ``distribution(row)`` that says what the row means.
        continuous_projection_net_ctor: The same for a Box leaf.
        name: Name of the network.
        detach: When a shared encoder is cut off from the value: always, in the policy
            phase (where the auxiliary value is not required), or never.
        reward_shape: Shape of a reward and of both values: () for a number, (D,) where
            a step has D rewards.

    Source: Cobbe et al. 2021, Phasic Policy Gradient, sections 2 and 3.6.
    """

    @checked
    def __init__(
        self,
        observation_spec: Spec,
        action_spec: Spec,
        encoding_network_ctor: Callable[..., Any] = EncodingNetwork,
        is_sharing_encoder: bool = False,
        discrete_projection_net_ctor: Callable[..., Any] = CategoricalProjectionNetwork,
        continuous_projection_net_ctor: Callable[..., Any] = NormalProjectionNetwork,
        name: str = "DisjointPolicyValueNetwork",
        *,
        detach: Detach = "always",
        reward_shape: tuple[Count, ...] = (),
    ) -> None:
        super().__init__()
        self.observation_spec, self.action_spec = observation_spec, action_spec
        self.name, self.reward_shape = name, reward_shape

        # One encoder for the policy, and one policy head for each part of the action.
        encoder = encoding_network_ctor(observation_spec)
        size = encoder.output_size
        projections = [
            discrete_projection_net_ctor(size, leaf)
            if isinstance(leaf, spaces.Discrete)
            else continuous_projection_net_ctor(size, leaf)
            for leaf in leaves(action_spec)
        ]
        # The second encoder is the whole difference between dual and shared.
        second = None if is_sharing_encoder else encoding_network_ctor(observation_spec)
        self.heads = Heads(encoder, projections, second, detach, reward_shape)
        # They are kept here too, because `heads` may be wrapped later.
        self.projections = projections

    @checked
    def forward(
        self,
        observation: Any,
        state: tuple[()] | tuple[Any, Any, Any] = (),
        require_aux: bool = True,
    ) -> tuple[tuple[Any, Tensor, Any], tuple[Any, Any, Any]]:
        """Return what the three heads say of a batch of states, and the next states.

        The heads are action distribution (a nest like the action space), value and
        auxiliary value, and their states come in the same order. ``state`` is what the
        step before returned; () at the start of an episode. Without ``require_aux`` the
        auxiliary value is ().
        """
        (rows, value, aux), states = self.heads(observation, state, require_aux)
        return (self.distribution(rows), value, aux), states

    def distribution(self, rows: tuple[Tensor, ...]) -> Any:
        """Return the nest of distributions that rows, one for each leaf, describe."""
        projections: Any = self.projections
        pairs = zip(projections, rows, strict=True)
        return pack(self.action_spec, (p.distribution(row) for p, row in pairs))


# %% [markdown]
# ## When to cut
#
# The paper and its authors' code differ. In the shared arrangement of the paper (section 3.6) the
# value's gradient is cut off in the policy phase only; *in the auxiliary phase it flows into all
# parameters*. In the code it is [cut off in both phases](/docs/errata.md#cut-off-in-both-phases). So
# `detach` is `"always"` as in the code, `"policy_phase"` as in the paper,
# or `"never"`, as in an ordinary shared network. The dial
# shows how long a gradient each value sends into the policy's encoder, in a phase of either kind.

# %% tags=["hide-input"]
from literate_rl.book.pictures import Axis, Mark, dial, plot


def loss_of(network, head, require_aux=True):
    """Return a loss that only one head enters."""
    (_, value, aux), _ = network(seen, require_aux=require_aux)
    return ((value if head == "value" else aux) - return_of(seen)).square().mean()


def length(network, head, require_aux=True):
    """Return how long a loss's gradient is in the policy's encoder."""
    if head == "auxiliary value" and not require_aux:
        return 0.0
    weights = list(network.heads.policy_encoder.parameters())
    loss = loss_of(network, head, require_aux)
    gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    return sum(g.square().sum().item() for g in gradients if g is not None) ** 0.5


rules = {"two": {}} | {
    f'one, "{rule}"': {"is_sharing_encoder": True, "detach": rule}
    for rule in ("always", "policy_phase", "never")
}
names = ("auxiliary value", "value")
lengths = {}


def frame(rule, phase):
    network, auxiliary = network_of(0, **rules[rule]), phase == "auxiliary"
    found = [length(network, name, auxiliary) for name in names]
    lengths[rule, phase] = found
    picture = plot(
        "What reaches the policy's encoder",
        "A bar for each loss: the length of its gradient in the policy's encoder.",
        Axis("loss", -0.6, 1.6, dict(enumerate(names))),
        Axis("length of the gradient", 0, 2, (0, 1, 2)),
        Mark("bars", (0,), found[:1], "second"),
        Mark("bars", (1,), found[1:], "accent"),
        width=400,
        height=150,
    )
    said = ", ".join(f"{n} {x:.2f}" for n, x in zip(names, found, strict=True))
    return [picture], f"Encoders: {rule}; {phase} phase\n{said}"


dial(
    "Gradients that reach the policy's encoder",
    frame,
    {"encoders": list(rules), "phase": ["policy", "auxiliary"]},
    start=('one, "policy_phase"', "auxiliary"),
)

# %% [markdown]
# **Notice** the bar of the value. With two encoders, and with one that is
# always cut off, it is zero. With `"policy_phase"` it comes back in the auxiliary phase, and with `"never"` it is always there.

# %% tags=["claims"]
reached = {key: found[1] > 0 for key, found in lengths.items()}
assert sorted(key for key, arrives in reached.items() if arrives) == [
    ('one, "never"', "auxiliary"),
    ('one, "never"', "policy"),
    ('one, "policy_phase"', "auxiliary"),
], "where the value reaches the policy's encoder"

# %% [markdown]
# ## On the best device

# %%
from literate_rl.data.agents import best_device

device = best_device()
four = spaces.Box(-1, 1, (4,))
on_device = DisjointPolicyValueNetwork(four, spaces.Discrete(3)).to(device)
(kind, value, _), _ = on_device(torch.randn(5, 4, device=device))
print(f"logits and values of 5 states on {value.device.type}")
print("on one device:", kind.logits.device == value.device)

# %% [markdown]
# ## Summary
#
# - What a value learns makes features from which the return can be read, but a shared encoder moves
#   under the policy. A loss that holds the policy prevents that.
# - The auxiliary value sits on the policy's encoder and is there for its gradient only.
# - The value that is used has an encoder of its own, the default, or is cut off from a shared one.
# - `detach` says when: in the paper in the policy phase, in its authors' code always.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "A shared network has detach='policy_phase'. In the policy phase you forget "
    "require_aux=False and simply ignore the auxiliary value. What does the value's loss "
    "move?",
    ["the value head", "the value head and the encoder", "all three heads"],
    right="the value head and the encoder",
    because="The network tells the phases apart by whether the auxiliary value is "
    "required. It takes this for the auxiliary phase and does not cut.",
)

# %% tags=["claims"]
forgetful = network_of(0, is_sharing_encoder=True, detach="policy_phase")
loss_of(forgetful, "value").backward()
touched = {
    n.split(".")[1] for n, p in forgetful.named_parameters() if p.grad is not None
}
assert touched == {"value_head", "policy_encoder"}, "the value head and the encoder"

# %% [markdown]
# ### Exercise 2: find the bug
#
# The function gets features and two heads. The auxiliary value should teach the encoder, the
# value should not. Both values are right, yet the encoder never learns anything. Fix it.


# %%
def answer(features, value_head, aux_head):
    features = features.detach()
    return value_head(features), aux_head(features)


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade

shared = network_of(0, is_sharing_encoder=True)


def right(features, value_head, aux_head):
    return value_head(features.detach()), aux_head(features)


def reached(function):
    """Say for value and auxiliary value whether a gradient gets to the features."""
    features = torch.ones(1, 64, requires_grad=True)
    outputs = function(features, shared.heads.value_head, shared.heads.aux_head)
    return [
        torch.autograd.grad(output.sum(), features, allow_unused=True)[0] is not None
        for output in outputs
    ]


grade(lambda: reached(answer), lambda: reached(right), ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(features, value_head, aux_head):
    # Only the value is cut off.
    return value_head(features.detach()), aux_head(features)


grade(lambda: reached(answer), lambda: reached(right), ())

# %% [markdown]
# ### Exercise 3: experiment
#
# How strongly must the policy be held? In the curves above the divergence had the weight 1. Return a weight
# with which the policy of the disjoint network drifts by less than 0.0001 nats in 200 steps, while its
# features still explain more than 95 % of the return's variance.
#


# %%
def answer():
    return ...


# %% tags=["hide-input"]
def succeeds():
    _, share, drift, _ = learn(network_of(0), 1, answer())[-1]
    return share > 0.95 and drift < 0.0001


grade(lambda: ... if answer() is ... else succeeds(), lambda: True, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    # A hundred times as much as in the figure, and the features still explain the return.
    return 100.0


grade(succeeds, lambda: True, ())

# %% [markdown]
# ## References
#
# The three heads and both arrangements are from {cite:t}`cobbe2021`. Auxiliary tasks
# became known with {cite:t}`jaderberg2017`. {cite:t}`raileanu2021` separate
# policy and value as well, and let the policy's network predict advantages. The names and arguments of the network are
# those of the library ALF.
