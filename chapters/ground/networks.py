# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Networks
#
# **Which networks do several chapters build?** Layers, a critic that judges an action, and the way
# into a box and back. Each chapter says what its network is for; here is what they share, the
# mode in which a network acts, and how random numbers stay those of the caller.
#
# You can follow the book without this page.

# %% tags=["export", "hide-input"]
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

# %% [markdown]
# ## Layers
#
# Most tasks of this book are small, and two hidden layers are enough for them.


# %% tags=["export"]
def layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Build two hidden layers with ReLU."""
    first, second = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden)
    last = nn.Linear(hidden, outputs)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)


# %% [markdown]
# Layers that see pictures ({doc}`/chapters/encoders`) start with orthogonal weights, as those of
# {doc}`/chapters/policies` do.


# %% tags=["export"]
def orthogonal(layer: Any, gain: float = math.sqrt(2)) -> Any:
    """Give a layer orthogonal weights times a gain, and no bias.

    The default suits what a ReLU leaves of a signal.
    """
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


# %% [markdown]
# ## A critic of actions
#
# A critic like that of {doc}`/chapters/ddpg` judges one action in one state. Both go into the same
# first layer.


# %% tags=["export"]
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


# %% [markdown]
# ## What action distributions share
#
# Actions are drawn from a list by the race of {doc}`/chapters/policies`, and all numbers of an action
# have the density given there. What never happens adds nothing to an entropy or a divergence: an
# action that was taken away has probability zero, and zero times infinity would be NaN, in the
# gradient as well.


# %% tags=["export"]
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


# %% [markdown]
# ## Into a box
#
# An actor whose actions stay in a box squashes its numbers, {eq}`def-squash`. The way back is
# computed in float64, because $\operatorname{artanh}$ magnifies rounding errors near the edges, and
# its two ends are moved inwards by one step of float32.


# %% tags=["export"]
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


# %% [markdown]
# What the squash does to a density is derived in {doc}`/chapters/contract_models`.


# %% tags=["export"]
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


# %% [markdown]
# ## Modes
#
# Dropout and batch normalisation do one thing while a network learns and another while it acts.
# A policy that only acts, or only tells what states are worth, does so in evaluation mode: then
# the same state gives the same answer, one state will do, and the running moments of batch
# normalisation stay as they are. Afterwards each part gets *its own* mode back. `train()` would
# not do, because a user may have frozen a layer inside of a network that learns.


# %% tags=["export"]
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


# %% [markdown]
# ## Random numbers
#
# Who trains an agent with a seed draws the next setting of a search from the very generators that
# the training has seeded, and gets the same one for ever. So what seeds or draws does it in such a
# block: the generators of Python, NumPy and PyTorch, those of GPUs too, get their old state back.


# %% tags=["export"]
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


# %% [markdown]
# ## Clipping a gradient
#
# A gradient $g$ may be clipped before the optimiser sees it. DI-engine knows three ways, with a
# bound $g_{\max}$. *clip_norm* shortens all of it to the length $g_{\max}$, *clip_value* limits
# each number $g_j$ on its own, and *clip_momentum_norm* compares its length with the usual one,
# $\bar g$:
#
# $$
# \begin{aligned}
# g &\leftarrow g \min \Bigl( 1, \frac{g_{\max}}{\lVert g \rVert} \Bigr) , \\
# g_j &\leftarrow \max \bigl( -g_{\max}, \min(g_{\max}, g_j) \bigr) , \\
# g &\leftarrow g \min \Bigl( 1, \frac{g_{\max} \bar g}{\lVert g \rVert} \Bigr) .
# \end{aligned}
# $$ (gradient-clips)
#
# Here $\bar g^2$ is a weighted mean of $\lVert g \rVert^2$ over this update and all earlier ones.
# Each update has 0.999 times the weight of the next one. The lengths are those *before* the clip.


# %% tags=["export"]
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


# %% [markdown]
# ## Heads in several processes
#
# Why do all weights of {doc}`/chapters/disjoint_network` live in `heads`, which returns nothing but
# tensors? Let several processes train together. Each has a copy of the network and computes the
# gradient of its own part of the batch, and all of them average their gradients:
#
# $$
# \frac{1}{n_{\text{proc}}} \sum_{i=1}^{n_{\text{proc}}} \nabla \mathcal L^{(i)} .
# $$ (def-averaged-gradient)
#
# For parts of equal size this is the gradient of the mean loss over the whole batch. PyTorch's
# `DistributedDataParallel` (DDP) wraps a module and averages each gradient as soon as it is
# there. So it has to know which gradients will come. It waits for *all* parameters, unless
# `find_unused_parameters` tells it to search the graph of the outputs first.
#
# In the policy phase the auxiliary head has no loss, and no gradient of it will ever come.
# ALF's [documentation](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg/disjoint_policy_value_network.py#L237-L243)
# says that this is why the policy phase leaves the auxiliary value out: DDP then does not wait.
# We ask PyTorch itself. The folded cell starts a program in two processes. Each row takes two
# steps of the policy phase and one of the auxiliary phase.

# %% tags=["hide-input"]
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
from literate_rl.nets.disjoint_network import DisjointPolicyValueNetwork

torch.set_num_threads(1)
dist.init_process_group("gloo")
batch = torch.randn(8, 4)

def phases(wrapped, require_aux, search, zero=False):
    """Take two steps of the policy phase and one of the auxiliary phase."""
    network = DisjointPolicyValueNetwork(spaces.Box(-1, 1, (4,)), spaces.Discrete(3))
    wrap = lambda module: DistributedDataParallel(module, find_unused_parameters=search)
    if wrapped == "all":
        network = wrap(network)
    else:
        network.heads = wrap(network.heads)
    try:
        for _ in range(2):
            (policy, value, aux), _ = network(batch, require_aux=require_aux)
            loss = policy.log_prob(torch.zeros(8)).mean() + value.mean()
            (loss + 0 * aux.sum() if zero else loss).backward()
        (policy, value, aux), _ = network(batch)
        (policy.entropy() + value + aux).mean().backward()
    except RuntimeError as error:
        return "fails: " + shorten(str(error), 52, placeholder=" …")
    return "works"

rows = list(product((False, True), ("heads", "all"), (False, True), (False,)))
for search, wrapped, require_aux, zero in [*rows, *product((False,), ("heads", "all"), (True,), (True,))]:
    answer = phases(wrapped, require_aux, search, zero) + ", with 0 times the auxiliary value" * zero
    if dist.get_rank() == 0:
        print(f"{search!s:8s}{wrapped:9s}{require_aux!s:13s}{answer}", flush=True)
dist.destroy_process_group()
'''
launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "two_processes.py"
    path.write_text(program, "utf-8")
    command = [*launch, "--nproc-per-node=2", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
assert done.returncode == 0, done.stderr
print("search  wrapped  require_aux  what happens", done.stdout, sep="\n")

# %% [markdown]
# - **Without the search** it fails, with and without `require_aux`. The weights of the auxiliary
#   head are parameters of the module even when it returns nothing, and DDP waits for their
#   gradients. The documented reason does not hold for today's PyTorch.
# - **With the search** it works if `heads` is wrapped. It fails if the whole network is: the
#   search looks for tensors in tuples, lists, dictionaries and dataclasses, and a distribution
#   is none of these. That is why the weights live in `heads`.
# - **With a weight of zero** it works without the search. If the auxiliary value enters the loss
#   times zero, its head gets a gradient, of zeros. The search walks through the graph in every
#   step; the weight of zero costs no more than one small head.
#
# After `network.heads = DistributedDataParallel(network.heads)` the network is called as before.

# %% tags=["claims"]
rows = [line.split(maxsplit=3) for line in done.stdout.strip().splitlines()]
for search, wrapped, _, answer in rows[:8]:
    right = "works" if search == "True" and wrapped == "heads" else "fails"
    assert answer.startswith(right), "the search and the heads, both are needed"
assert all("works, with 0 times" in row[3] for row in rows[8:]), "or a loss of zero"

# %% [markdown]
# ## An encoder with a memory
#
# No agent of this book has a memory, but the disjoint network has room for one. Where a single observation
# does not show the state, an encoder may keep a state of its own, such as the *gated recurrent
# unit* {cite:p}`cho2014` in the folded cell. It is called with the state that it returned for
# the step before, and with `()` at the start of an episode. The network hands on a triple,
# in the order of its heads. The auxiliary value shares the policy's memory, so its entry is
# always `()`. Below, the same observation gets two values, because the steps before it differed.

# %% tags=["hide-input"]
from gymnasium import spaces

from literate_rl.nets.disjoint_network import DisjointPolicyValueNetwork


class Remembering(nn.Module):
    """An encoder that remembers its own features."""

    def __init__(self, observation_spec, output_size=8):
        super().__init__()
        self.output_size = output_size
        self.memory = nn.GRUCell(spaces.flatdim(observation_spec), output_size)

    def forward(self, observation, state=()):
        memory = self.memory(observation, state if len(state) else None)
        return memory, memory


box, three = spaces.Box(-1.0, 1.0, (4,)), spaces.Discrete(3)
torch.manual_seed(0)
recurrent = DisjointPolicyValueNetwork(box, three, Remembering)
nothing = torch.zeros(1, 4)
found = []
with torch.no_grad():
    for first in (-torch.ones(1, 4), torch.ones(1, 4)):
        _, state = recurrent(first)
        (_, value, _), after = recurrent(nothing, state)
        found.append(value.item())
        print(f"after {first[0].tolist()}: value of nothing {found[-1]:+.3f}")
print("states:", [tuple(x.shape) if len(x) else x for x in after])

# %% tags=["claims"]
assert abs(found[0] - found[1]) > 0.01, "two values for the same observation"
assert after[2] == (), "the auxiliary value has no memory of its own"

# %% [markdown]
# ## References
#
# The squashed Gaussian is from {cite:t}`haarnoja2018`, the gated recurrent unit from
# {cite:t}`cho2014`.
