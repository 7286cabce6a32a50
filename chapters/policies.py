# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Policies
#
# **How can one training loop serve every kind of action?** It never looks inside an action. It
# asks the policy what to do, how likely that was, and how much was left to chance. After this
# chapter you can write an action distribution of your own, build a policy for any environment with discrete
# or continuous actions, and train both kinds with the same loop.
#
# It takes about 50 minutes, reading, without exercises. You need the rollouts of {doc}`agents` and
# the advantages of {doc}`advantages`.

# %% tags=["export", "hide-input"]
"""Policies: a network, and an action distribution that knows what its output means."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike, DTypeLike, NDArray
from torch import Tensor, nn

from literate_rl.data.agents import Collector, Rollout
from literate_rl.data.episodes import (
    as_argument,
    as_masks,
    as_rows,
    env_seed,
    warn_cut_off,
)
from literate_rl.ground.nests import (
    action_box,
    as_space,
    as_vectors,
    first_row,
    open_ended,
    remembered,
)
from literate_rl.ground.networks import (
    chosen,
    eval_mode,
    expected,
    mean_surprise,
    normal_log_prob,
    orthogonal,
    race_noise,
)
from literate_rl.ground.protocols import (
    Act,
    ActionDistribution,
    Envs,
    Kept,
    PolicyLike,
    refuse_mask,
)
from literate_rl.ground.signatures import (
    Bool,
    Count,
    Float,
    Int,
    check_finite,
    check_that,
    checked,
)
from literate_rl.maths.fast import UNIT_ENTROPY, reverse_scan
from literate_rl.nets.choices import ChoiceActions, is_choices
from literate_rl.nets.encoders import (
    Convolutions,
    OwnEncoder,
    PictureEncoder,
    ShapedEncoder,
    check_normalize,
    check_shared,
    entrance,
    has_pictures,
)
from literate_rl.nets.masks import legal

__all__ = [
    "ActorCritic",
    "CategoricalActions",
    "GaussianActions",
    "Policy",
    "RewardScaler",
    "Runner",
    "RunningMoments",
    "Sampler",
    "make_actions",
    "make_policy",
]

# %% [markdown]
# ## A race
#
# In the programs so far `torch.multinomial` drew the actions, with random numbers that we never
# saw. It is better to draw these numbers first: then a run has the same ones on every device, and leaving
# them out gives the greedy action. How do random numbers become an action?
#
# A network gives three actions a, b and c their logits, and softmax turns them into
# probabilities. Let the actions race. Each runs a track of random length, at a speed equal to its
# probability, and the first to arrive is the action taken. The slider changes how likely c is.

# %% tags=["hide-input"]
import torch

from literate_rl.book.pictures import Axis, Mark, dial, plot

torch.set_num_threads(1)  # the networks are too small for several threads to pay
names = {0: "a", 1: "b", 2: "c"}
tracks = torch.empty(20_000, 3).exponential_(generator=torch.Generator().manual_seed(4))
thirds = [-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0]


def probabilities(third):
    """Return the softmax of three logits, of which the last one can be turned."""
    return torch.tensor([0.5, 0.0, third]).softmax(-1)


def race(third):
    prob = probabilities(third)
    arrival = tracks / prob
    first, winners = arrival[:12], arrival.argmin(-1)
    wins = torch.bincount(winners, minlength=3) / len(tracks)
    lap, winner = first[7].clamp(max=7.9).tolist(), int(winners[7])
    runners = [Mark("line thick", [0, lap[k]], [2 - k, 2 - k], "quiet") for k in names]
    one = plot(
        "One race",
        "Three runners on their tracks. The one that arrives first is marked.",
        Axis("time of arrival", 0, 8, ticks=(0, 2, 4, 6, 8)),
        Axis("action", -0.6, 2.6, ticks={2 - k: name for k, name in names.items()}),
        *runners,
        Mark("line thick", [0, lap[winner]], [2 - winner, 2 - winner], "accent"),
        width=320,
    )
    many = plot(
        "20,000 races",
        "Shares of the races that each action has won, beside its probability.",
        Axis("action", -0.6, 2.6, ticks=names),
        Axis("share of races won", 0, 1, ticks=(0, 0.5, 1)),
        Mark("bars", list(names), wins.tolist(), "accent"),
        *(Mark("line thick", [k - 0.3, k + 0.3], [prob[k].item()] * 2) for k in names),
        width=320,
    )
    readout = [
        f"{words}: " + ", ".join(f"{name} {x[k]:.1%}" for k, name in names.items())
        for words, x in (("races won", wins), ("probabilities", prob))
    ]
    return [one, many], "\n".join([*readout, f"{names[winner]} wins the left race"])


dial("A race draws an action", race, {"logit of c": thirds}, start=(0.0,))

# %% [markdown]
# **Notice** that the shares of races won end almost exactly at the short lines, the probabilities. In
# the first picture the tracks stay the same, and only the speeds change: with the same luck, an action
# wins as soon as it is likely enough. So an action is a plain *function*, of what the network says and of
# noise that was drawn before.

# %% tags=["claims"]
for third in thirds:
    prob = probabilities(third)
    wins = torch.bincount((tracks / prob).argmin(-1), minlength=3) / len(tracks)
    assert (wins - prob).abs().max() < 0.015, "shares are probabilities"
winner = [int((tracks[7] / probabilities(third)).argmin()) for third in thirds]
assert winner[-1] == 2 != winner[0], "it wins once it is likely enough"

# %% [markdown]
# ## Actions as functions of noise
#
# Only the **action distribution** knows what an action is. The network gives it a *row* of
# numbers for each state, and it says what the row means:
#
# | name | what it is | discrete | Gaussian |
# |---|---|---|---|
# | a row | what describes the policy at a state | $N$ logits | $A$ means and $A$ numbers $\log \sigma$ |
# | `noise(T, B, generator)` | the randomness of a rollout | $N$ numbers a step | $A$ numbers a step |
# | `choose(row, noise)` | the action | an integer | $A$ numbers |
# | `log_prob(row, action)` | how likely the action was | a number | a number |
# | `entropy(row)` | how much is left to chance | a number | a number |
# | `evaluate(row, action)` | log-probability and entropy at once | two numbers | two numbers |
# | `to_env(action)` | the action as the environment wants it | the same | stretched to the box |
# | `kl(row, other)` | how far apart two policies are; for {doc}`ppg` | a number | a number |
# | `legal(row, mask)` | the row without what is not allowed; for {doc}`masks` | the logits left | none |
#
# Here $N$ is the number of actions to choose from and $A$ how many numbers a continuous action
# has. For a Gaussian policy with means $\mu_j$ and standard deviations $\sigma_j$ the function of
# noise is well known. With $\eta_j \sim \mathcal N(0, 1)$,
#
# $$
# a_j = \mu_j + \sigma_j \, \eta_j .
# $$ (act-gaussian)
#
# For a discrete policy it is the race. Each action gets a track of random length $\tau_j$, from
# the exponential distribution with mean 1, and runs at the speed $p_j$. It arrives after $\tau_j
# / p_j$, an exponential time with the rate $p_j$, and of such times the one with the rate $p_j$
# is the first with probability $p_j / \sum_i p_i = p_j$. The first to arrive has the largest $\log p_j -
# \log \tau_j$, and logits are as good as log-probabilities, because they differ by the same number
# for all actions. So with $\eta_j = -\log \tau_j$, whose distribution is named after Gumbel,
#
# $$
# a = \operatorname*{argmax}_j \; (z_j + \eta_j) .
# $$ (act-discrete)
#
# In both cases $\eta = 0$ gives the likeliest action. To act greedily is to act without noise. What
# several action distributions share ($\eta$, sums that leave out what never happens, the density of a
# number) is a line or two each, in {doc}`workshop/networks`.


# %% tags=["export"]
class CategoricalActions:
    """One of N actions; a row holds their logits.

    Args:
        num_actions: Number of actions N.
        start: What the environment calls the first action.
    """

    def __init__(self, num_actions: int, start: int = 0) -> None:
        self.num_actions, self.start = num_actions, start

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""
        return race_noise(generator, num_steps, num_envs, self.num_actions)

    def legal(self, row: Tensor, mask: Tensor) -> Tensor:
        """Return rows that leave out what is illegal."""
        return legal(row, mask)

    @checked
    def choose(
        self, row: Float[Tensor, "*B N"], noise: Float[Tensor, "*B N"] | float
    ) -> Int[Tensor, "*B"]:
        """Return the actions that follow from logits and noise."""
        # The winner of the race, {eq}`act-discrete`.
        return (row + noise).argmax(-1)

    @checked
    def log_prob(
        self, row: Float[Tensor, "*B N"], action: Int[Tensor, "*B"]
    ) -> Float[Tensor, "*B"]:
        """Return the log-probabilities of actions."""
        return chosen(row.log_softmax(-1), action)

    @checked
    def entropy(self, row: Float[Tensor, "*B N"]) -> Float[Tensor, "*B"]:
        """Return the entropies of the policy, in nats."""
        return mean_surprise(row.log_softmax(-1))

    @checked
    def evaluate(
        self, row: Float[Tensor, "*B N"], action: Int[Tensor, "*B"]
    ) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
        """Return log-probabilities and entropies, with one softmax for both."""
        log_prob = row.log_softmax(-1)
        return chosen(log_prob, action), mean_surprise(log_prob)

    @checked
    def kl(
        self, row: Float[Tensor, "*B N"], other: Float[Tensor, "*B N"]
    ) -> Float[Tensor, "*B"]:
        """Return the KL divergences from rows to others, in nats."""
        log_prob = row.log_softmax(-1)
        difference = log_prob - other.log_softmax(-1)
        return expected(log_prob.exp(), difference).sum(-1)

    def to_env(self, action: Tensor) -> NDArray[np.int64]:
        """Return the actions as vector environments take them."""
        return action.numpy() + self.start


# %% [markdown]
# For continuous actions the log-probability is the logarithm of a *density*, $-\sum_j \bigl(
# \tfrac12 (a_j - \mu_j)^2 / \sigma_j^2 + \log \sigma_j + \tfrac12 \log 2\pi \bigr)$. A density
# may exceed 1, so its logarithm may be positive, and the entropy negative. The gradient works
# just as before.
#
# Gaussian actions are measured in units in which the environment's box is $[-1, 1]$, and their noise may
# lead out of it. What lies outside is clipped, but *only on the way into the environment*. The action
# that we store, and whose probability we compute, is the one that was drawn.
# [A trap](#trap-the-action-that-was-clipped) shows why.


# %% tags=["export"]
class GaussianActions:
    """Numbers in a box; a row holds their means and logarithms of standard deviations.

    Args:
        low: Lower bounds of the box, or minus infinity.
        high: Upper bounds, or infinity.
        dtype: Dtype of the environment's actions.
    """

    def __init__(
        self, low: ArrayLike, high: ArrayLike, dtype: DTypeLike = "float32"
    ) -> None:
        self.low = np.atleast_1d(np.asarray(low, dtype))
        self.high = np.atleast_1d(np.asarray(high, dtype))
        # What -1 and 1 mean. Where there is no bound, nothing is stretched.
        first, last = open_ended(self.low), open_ended(self.high)
        bounded = np.isfinite(first) & np.isfinite(last)
        first, last = np.where(bounded, [first, last], [[-1.0], [1.0]])
        self.middle, self.half_width = (last + first) / 2, (last - first) / 2

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""
        return torch.randn(num_steps, num_envs, self.low.size, generator=generator)

    @checked
    def choose(
        self, row: Float[Tensor, "*B 2*A"], noise: Float[Tensor, "*B A"] | float
    ) -> Float[Tensor, "*B A"]:
        """Return the actions that follow from rows and noise."""
        # Mean plus standard deviation times noise, {eq}`act-gaussian`.
        mu, log_sigma = row.chunk(2, -1)
        return mu + log_sigma.exp() * noise

    @checked
    def log_prob(
        self, row: Float[Tensor, "*B 2*A"], action: Float[Tensor, "*B A"]
    ) -> Float[Tensor, "*B"]:
        """Return the log-densities of actions."""
        # The density of the whole action is a product, so its logarithm is a sum.
        return normal_log_prob(action, *row.chunk(2, -1)).sum(-1)

    @checked
    def entropy(self, row: Float[Tensor, "*B 2*A"]) -> Float[Tensor, "*B"]:
        """Return the entropies of the policy, in nats; they may be negative."""
        _, log_sigma = row.chunk(2, -1)
        return (log_sigma + UNIT_ENTROPY).sum(-1)

    @checked
    def evaluate(
        self, row: Float[Tensor, "*B 2*A"], action: Float[Tensor, "*B A"]
    ) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
        """Return log-densities and entropies."""
        return self.log_prob(row, action), self.entropy(row)

    @checked
    def kl(
        self, row: Float[Tensor, "*B 2*A"], other: Float[Tensor, "*B 2*A"]
    ) -> Float[Tensor, "*B"]:
        """Return the KL divergences from rows to others, in nats."""
        mu, log_sigma = row.chunk(2, -1)
        other_mu, other_log_sigma = other.chunk(2, -1)
        # The means have moved by so many standard deviations, and these have changed.
        shift = (mu - other_mu) * (-other_log_sigma).exp()
        change = log_sigma - other_log_sigma
        square = (2 * change).exp() + shift.square()
        return (0.5 * (square - 1) - change).sum(-1)

    def to_env(self, action: Tensor) -> NDArray[np.floating]:
        """Stretch actions from -1..1 to the box, and clip what lies outside."""
        stretched = self.middle + self.half_width * action.numpy()
        return stretched.clip(self.low, self.high).astype(self.low.dtype)


# %% [markdown]
# ## Actor and critic
#
# Actor and critic both have two hidden layers of 64 units with tanh.
# Their weights start orthogonal, so that signals keep their length on the way through, and are multiplied
# by a *gain*: $\sqrt 2$, as most code has it since
# [OpenAI's](https://github.com/openai/baselines/blob/ea25b9e8b234e6ee1bca43083f8f3cf974143998/baselines/ppo2/ppo2.py).
# The last layer of the actor starts near zero, so that
# all actions are about equally likely at first. For continuous actions {cite:t}`andrychowicz2021`
# found that this matters a great deal.


# %% tags=["export"]
def mlp(inputs: int, hidden: int, outputs: int, gain: float) -> nn.Sequential:
    """Build two hidden layers with tanh; ``gain`` scales the last layer's weights."""
    first, second = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden)
    last = nn.Linear(hidden, outputs)
    hidden_layers = orthogonal(first), nn.Tanh(), orthogonal(second), nn.Tanh()
    return nn.Sequential(*hidden_layers, orthogonal(last, gain))


class ActorCritic(nn.Module):
    """Two networks side by side: ``actor`` for the rows, ``critic`` for the values.

    The critic's values have a last dimension of 1. Both networks see the observations
    through ``normalizer``.
    """

    def __init__(
        self, actor: nn.Module, critic: nn.Module, normalizer: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.normalizer = normalizer or nn.Identity()
        self.actor, self.critic = actor, critic

    def forward(self, obs: Tensor) -> Tensor:
        """Return the rows of observations."""
        return self.actor(self.normalizer(obs))

    def value(self, obs: Tensor) -> Tensor:
        """Return the values of observations."""
        return self.critic(self.normalizer(obs)).squeeze(-1)


# %% [markdown]
# For continuous actions the network gives the means. The standard deviations are parameters of
# their own, the same in every state.


# %% tags=["export"]
class WithDeviations(nn.Module):
    """A network for A means, and a standard deviation for each, in every state."""

    def __init__(self, mean: nn.Module, size: int) -> None:
        super().__init__()
        self.mean = mean
        self.log_sigma = nn.Parameter(torch.zeros(size))

    def forward(self, obs: Tensor) -> Tensor:
        """Return means and logarithms of the standard deviations, side by side."""
        mu = self.mean(obs)
        return torch.cat([mu, self.log_sigma.expand_as(mu)], -1)


# %% [markdown]
# ## A policy is a network and an action distribution
#
# `Policy` puts the two together. Its `recipe` is for checkpoints.


# %% tags=["export"]
class Policy(nn.Module):
    """What an agent does: a network and an action distribution.

    Args:
        network: Module from observations to rows, with a method ``value``.
        actions: The action distribution, which knows what a row means.

    Attributes:
        recipe: Name of a public function that builds the same policy, and its
            arguments as plain values, for checkpoints.
        reads_bytes: Whether the network takes bytes as they are. If not, loops make
            floats of all observations.
        observation_space: What the environment shows, for ``predict``; rows come flat.
        action_space: What it takes.
        masked: Whether somebody has said before which actions are legal.
    """

    network: Any  # of a class of its own
    actions: Any
    recipe: tuple[str, dict[str, Any]] = ("", {})
    reads_bytes: bool = False
    observation_space: spaces.Space[Any] | None = None
    action_space: spaces.Space[Any] | None = None
    masked: bool = False

    def __init__(self, network: nn.Module, actions: ActionDistribution) -> None:
        super().__init__()
        self.network, self.actions = network, actions

    def forward(self, obs: Tensor) -> Tensor:
        """Return the rows that describe the policy at observations."""
        return self.network(obs)

    def value(self, obs: Tensor) -> Tensor:
        """Return the values of observations."""
        return self.network.value(obs)

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""
        # All random numbers of a rollout are drawn at once, in one call.
        return self.actions.noise(num_steps, num_envs, generator)

    def legal(self, row: Tensor, mask: Tensor | None) -> Tensor:
        """Return rows that leave out what is illegal; with None, rows as they are."""
        if mask is None:
            return row
        if not hasattr(self.actions, "legal"):
            refuse_mask(mask, self.actions)
        self.masked = True
        return self.actions.legal(row, mask)

    def act(
        self, obs: Tensor, noise: Tensor | float, *, mask: Tensor | None = None
    ) -> Tensor:
        """Return the actions that follow from observations and noise; 0.0 is greedy."""
        return self.actions.choose(self.legal(self(obs), mask), noise)

    def evaluate_actions(
        self, obs: Tensor, action: Tensor, *, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of actions and the entropies."""
        row = self.legal(self(obs), mask)
        return self.actions.evaluate(row, action)

    def to_env(self, action: Tensor) -> Any:
        """Return the actions as vector environments take them."""
        return self.actions.to_env(action)

    def predict(self, obs: Any, mask: Any = None, greedy: bool = True) -> Any:
        """Return actions in the environment's own form, as ``env.step`` takes them.

        Args:
            obs: One observation or a batch of them, as the environment or the vector
                environment shows it. Where only its flat form is known, a flat row.
            mask: Which actions are legal there, as in ``infos["action_mask"]``. None is
                all, and a policy that has learned with masks warns once.
            greedy: Whether to take the best action and draw none. What is drawn comes
                from PyTorch's global generator, so ``torch.manual_seed`` repeats it.
                Policies that draw only to explore do so with what the training has
                left them, and are greedy after ``load``.

        Returns:
            One action for one observation, a batch for a batch.

        Raises:
            ValueError: If observations or masks do not fit.
        """
        return predicted(self, obs, mask, greedy)


# %% [markdown]
# A loop of your own needs neither rows nor noise: `predict` takes what the environment shows and
# returns what it takes.


# %% tags=["export", "hide-input"]
@torch.no_grad()
def predicted(policy: PolicyLike, obs: Any, mask: Any, greedy: bool) -> Any:
    """Return what ``Policy.predict`` returns, for a policy of any class."""
    seen: Any = getattr(policy, "observation_space", None)
    done: Any = getattr(policy, "action_space", None)
    known = seen is not None and done is not None
    words = "predict needs observation_space and action_space of the policy"
    check_that(known, f"{words}, which make_policy and train set")
    rows, alone = as_rows(seen, obs)
    if mask is None:
        ask_for_mask(policy)
    else:
        mask = as_masks([mask] if alone else mask, "mask")
        words = f"mask must have {len(rows)} rows, as many as obs, got {len(mask)}"
        check_that(len(mask) == len(rows), words)
        # In a batch an episode may be over, and then nothing is legal any more.
        mask[~mask.any(-1) & (not alone)] = True
    device = next(policy.parameters(), torch.empty(0)).device
    if rows.dtype.itemsize > 1 or not getattr(policy, "reads_bytes", False):
        rows = rows.astype(np.float32)
    noise: Tensor | float = 0.0
    if not greedy:
        noise = policy.noise(1, len(rows), torch.default_generator)[0].to(device)
    with eval_mode(policy):
        state = torch.from_numpy(rows).to(device)
        action = policy.act(state, noise, **as_argument(mask)).cpu()
    actions = policy.to_env(action)
    return first_row(done, actions) if alone else actions


def ask_for_mask(policy: PolicyLike) -> None:
    """Warn once if a policy has been told before which actions are legal."""
    if getattr(policy, "masked", False) and "has_asked" not in vars(policy):
        vars(policy)["has_asked"] = True
        words = "this policy has learned with masks of legal actions and got none"
        warnings.warn(f'{words}: pass mask=infos["action_mask"]', stacklevel=5)


# %% [markdown]
# A policy is usually built from the two spaces of an environment, by `make_policy`. Several choices in a
# step follow {doc}`choices`, and pictures need an *encoder*, of {doc}`encoders`.


# %% tags=["export", "hide-input"]
def make_actions(
    action_space: spaces.Space[Any],
) -> CategoricalActions | ChoiceActions | GaussianActions:
    """Return the action distribution that fits a space.

    Args:
        action_space: A Discrete space, several choices as in ``ChoiceActions``, or a
            box of vectors.

    Raises:
        SpaceError: If it is another space.
    """
    if isinstance(action_space, spaces.Discrete):
        return CategoricalActions(int(action_space.n), int(action_space.start))
    if is_choices(action_space):
        return ChoiceActions(action_space)
    box = action_box(action_space, "Discrete, MultiDiscrete, MultiBinary")
    return GaussianActions(box.low, box.high, box.dtype)


def behind(
    front: list[nn.Module], size: int, hidden: int, outputs: int, gain: float
) -> nn.Sequential:
    """Build what comes after an ``entrance``; ``gain`` as in ``mlp``."""
    # The features of a picture come from hidden layers already, and yours as you like.
    if front and isinstance(front[0], PictureEncoder | ShapedEncoder):
        return nn.Sequential(*front, orthogonal(nn.Linear(size, outputs), gain))
    return nn.Sequential(*front, *mlp(size, hidden, outputs, gain))


def normalizing(
    normalize: bool, space: spaces.Space[Any], encoder: OwnEncoder | None = None
) -> list[nn.Module]:
    """Return the first layer of networks that normalise what they see, or no layer."""
    check_normalize(normalize, encoder is not None or has_pictures(space), space)
    return [RunningMoments(*as_vectors(space).shape)] if normalize else []


@checked
@remembered
def make_policy(
    observation_space: spaces.Space[Any] | dict[str, Any],
    action_space: spaces.Space[Any] | dict[str, Any],
    hidden: Count = 64,
    normalize: bool = False,
    *,
    share_encoder: bool = False,
    convolutions: Convolutions | None = None,
    encoder: OwnEncoder | None = None,
) -> Policy:
    """Build the policy that fits the spaces of one environment.

    Args:
        observation_space: A box of vectors, a picture, or a Dict or Tuple with pictures
            in it, which may come flat; or what ``plain_space`` made of it.
        action_space: One that ``make_actions`` takes, likewise.
        hidden: Width of the hidden layers. Behind the encoder of a picture, or one of
            your own, there are none.
        normalize: Whether the policy normalises its observations; vectors only.
        share_encoder: Whether actor and critic share an encoder, which both of their
            losses move.
        convolutions: Those of each picture, as in ``make_encoder``.
        encoder: An encoder of your own, as in ``ShapedEncoder``.

    Raises:
        ValueError: If the spaces do not fit, or an argument does not fit them.
    """
    seen, actions = as_space(observation_space), make_actions(as_space(action_space))
    front, size = entrance(seen, convolutions, encoder)
    first = normalizing(normalize, seen, encoder)
    check_shared(share_encoder, front, seen)
    # The network has an output for each number of the noise.
    outputs = actions.noise(0, 1, torch.Generator()).shape[-1]
    actor: nn.Module = behind(front, size, hidden, outputs, gain=0.01)
    if isinstance(actions, GaussianActions):
        actor = WithDeviations(actor, outputs)
    if not share_encoder:
        front, _ = entrance(seen, convolutions, encoder)
    critic = behind(front, size, hidden, 1, gain=1.0)
    policy = Policy(ActorCritic(actor, critic, *first), actions)
    policy.reads_bytes = bool(front)
    return policy


# %% [markdown]
# ## A rollout at a time
#
# A `Runner` lets the policy act for some steps, over and over. It draws all noise of a rollout at once,
# from one generator, so that a run can be repeated. And it takes fresh environments at each checkpoint,
# because a run that is resumed there has no others. So no episode can last longer than
# `num_steps * checkpoint_interval` steps: raise the interval if yours do.


# %% tags=["export"]
def kept_dtype(policy: PolicyLike, envs: Envs) -> Any:
    """Return NumPy's type in which a policy's rollouts keep observations."""
    own = envs.single_observation_space.dtype
    small = own is not None and own.itemsize == 1
    return own if small and getattr(policy, "reads_bytes", False) else np.float32


class Sampler(Kept):
    """Steps environments so that a resumed run goes on with the same bits.

    Args:
        policy: The policy that acts, on any device.
        envs: A vector environment.
        seed: Seed of the noise and of the environments.
        checkpoint_interval: Iterations between checkpoints, at which the environments
            are reset.
        act: A faster form of ``policy.act``, or None for that one.
        dtype: As for ``Collector``.
    """

    kept: tuple[str, ...] = ("generator", "step", "iteration")

    def __init__(
        self,
        policy: PolicyLike,
        envs: Envs,
        seed: int,
        checkpoint_interval: int,
        act: Act | None = None,
        dtype: Any = None,
    ) -> None:
        self.policy, self.act = policy, act or policy.act
        self.device = next(policy.parameters()).device
        self.seed, self.checkpoint_interval = seed, checkpoint_interval
        self.collector = Collector(envs, policy.to_env, dtype)
        self.generator = torch.Generator().manual_seed(seed)
        self.iteration, self.warned = 0, False

    @property
    def step(self) -> int:
        """Steps taken so far, all environments together."""
        return self.collector.step

    @step.setter
    def step(self, step: int) -> None:
        # Who goes back to a step starts from there with fresh environments.
        self.collector.step, self.collector.obs = step, None

    @property
    def checkpoint_due(self) -> bool:
        """Whether a run that resumes here ends with the same bits."""
        return self.iteration % self.checkpoint_interval == 0

    @property
    def starts_anew(self) -> bool:
        """Whether the next iteration starts with fresh environments."""
        return self.collector.obs is None or self.checkpoint_due

    def start(self) -> None:
        """Reset the environments where a resumed run would do so."""
        if self.starts_anew:
            self.warned = self.warned or warn_cut_off(self.collector)
            self.collector.reset(env_seed(self.seed, self.step))


class Runner(Sampler):
    """Lets a policy act for a rollout at a time.

    Args:
        policy: The policy that acts, on any device.
        envs: A vector environment.
        num_steps: Steps of one rollout in each environment.
        seed: Seed of the noise and of the environments.
        checkpoint_interval: Rollouts between checkpoints. The environments are reset
            at each of them, so an episode of more than ``num_steps *
            checkpoint_interval`` steps never ends.
        act: A faster form of ``policy.act``, or None for that one.

    Attributes:
        actor: Who acts, the policy unless a learner says otherwise.
        scaler: Its running returns begin anew with fresh environments; or None.
    """

    scaler: RewardScaler | None = None

    def __init__(
        self,
        policy: PolicyLike,
        envs: Envs,
        num_steps: int,
        seed: int,
        checkpoint_interval: int,
        act: Act | None = None,
    ) -> None:
        dtype = kept_dtype(policy, envs)
        super().__init__(policy, envs, seed, checkpoint_interval, act, dtype)
        # With one step a rollout might hold a reset and nothing else.
        fits = num_steps > 1 or not self.collector.resets_later
        check_that(fits, "num_steps must be above 1 with autoreset mode NEXT_STEP")
        self.num_steps, self.actor = num_steps, policy

    def noise(self) -> Tensor:
        """Draw the noise of a rollout."""
        num_envs = self.collector.envs.num_envs
        return self.actor.noise(self.num_steps, num_envs, self.generator)

    def collect(self) -> Rollout:
        """Act for T steps with the policy as it is."""
        # Fresh environments have no episodes under way whose rewards add up.
        if self.scaler is not None and self.starts_anew:
            self.scaler.carry.zero_()
        self.start()
        # Each step takes its share of the noise.
        draws = iter(self.noise().to(self.device))
        self.iteration += 1
        with eval_mode(self.actor):
            batch = self.collector.collect(
                lambda obs, **mask: self.act(obs.to(self.device), next(draws), **mask),
                self.num_steps,
            )
        return batch.to(self.device)


# %% [markdown]
# ## One learner, two kinds of action
#
# Here is a small learner: one update for each rollout, as in {doc}`a2c`, with Adam and with advantages
# scaled as in {doc}`ppo`. It trains on CartPole, where the cart is pushed to the left or to the right, and
# on the same cart with a push of any strength. Look for a line that knows which one it is.

# %%
from functools import partial

import matplotlib.pyplot as plt

from literate_rl.maths.advantages import gae
from literate_rl.data.agents import make_envs, seed_everything
from literate_rl.runs.runs import flat_env
from literate_rl.data.worlds import make_force_cart_pole


def train(env, total_steps=60_000, num_envs=8, num_steps=32):
    seed_everything(1)
    envs = make_envs(partial(flat_env, env), num_envs)
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    optimizer = torch.optim.Adam(policy.parameters(), 3e-3)
    runner = Runner(policy, envs, num_steps, seed=1, checkpoint_interval=1000)
    ended = []
    while runner.step < total_steps:
        # 1. Act for some steps with the policy as it is.
        batch = runner.collect()

        # 2. Look back: values and advantages.
        with torch.no_grad():
            value, next_value = policy.value(batch.obs), policy.value(batch.next_obs)
        ends = batch.terminated, batch.truncated
        adv = gae(batch.reward, value, next_value, *ends, gamma=0.98, lambda_=0.9)

        # 3. One update: actions that were better than expected become more likely.
        log_prob, _ = policy.evaluate_actions(batch.obs, batch.action)
        policy_loss = -(log_prob * (adv - adv.mean()) / adv.std()).mean()
        value_loss = (adv + value - policy.value(batch.obs)).square().mean()
        optimizer.zero_grad()
        (policy_loss + 0.25 * value_loss).backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
        over = ~batch.episode_return.isnan()
        ended += [(runner.step, x) for x in batch.episode_return[over].tolist()]
    return policy, np.array(ended).T


kinds = {"left or right": "CartPole-v1", "any strength": make_force_cart_pole}
trained = {name: train(env) for name, env in kinds.items()}

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two restless curves of the mean return of 50 episodes over 60,000 steps, one for each kind of action. Both climb from about 20 to more than 150 at their best, with setbacks"}}
fig, axis = plt.subplots(figsize=(7, 2.6))
for name, (_, (step, ended)) in trained.items():
    mean = np.convolve(ended, np.full(50, 1 / 50), "valid")
    axis.plot(step[49:], mean, label=name)
    first, last = ended[:50].mean(), ended[-50:].mean()
    print(f"{name}: the first 50 episodes {first:.0f}, the last 50 {last:.0f}")
axis.set(xlabel="steps", ylabel="return")
axis.legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# **Notice** that both learn, with the same code: from about twenty steps an episode they climb to several
# times as many at their best. It is one seed each, a demonstration and no comparison.

# %% tags=["claims"]
for _, (_, ended) in trained.values():
    assert 15 < ended[:50].mean() < 30, "about twenty steps an episode"
    later = np.convolve(ended, np.full(50, 1 / 50), "valid")
    assert later.max() > 3 * ended[:50].mean(), "several times as many"

# %% [markdown]
# ## Normalisation
#
# Networks often learn better from numbers around 1, though not always
# ({doc}`ppo_evidence`). So with `normalize` of `make_policy` a policy keeps the mean and the variance of
# what has come in so far. If $n$ items with mean $\bar m$ and variance $v$ were seen, and $n'$ new
# ones come in with $\bar m'$ and $v'$, then all of them have
#
# $$
# \begin{aligned}
# \bar m'' &= \bar m + \frac{n'}{n + n'}\,(\bar m' - \bar m) , \\
# v'' &= \frac{n v + n' v'}{n + n'} + \frac{n\, n'}{(n + n')^2}\,(\bar m' - \bar m)^2 .
# \end{aligned}
# $$ (pooled-moments)
#
# The two terms of $v''$ are the variance within the two groups and that between their means
# {cite:p}`chan1983`.


# %% tags=["export"]
class RunningMoments(nn.Module):
    """Mean and variance of everything that has been seen so far.

    Args:
        shape: Shape of one item.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    @checked
    def update(self, items: Float[Tensor, "n ..."]) -> None:
        """Take in items."""
        self.check_shape(items)
        items = items.reshape(-1, *self.mean.shape).double()
        # Two groups are put together by {eq}`pooled-moments`.
        count, mean, var = len(items), items.mean(0), items.var(0, unbiased=False)
        check_finite(mean + var, items=items)
        total = self.count + count
        between = (mean - self.mean).square() * self.count * count / total
        self.var.copy_((self.var * self.count + var * count + between) / total)
        self.mean.add_((mean - self.mean) * count / total)
        self.count.copy_(total)

    def forward(self, items: Tensor) -> Tensor:
        """Return items with mean 0 and standard deviation 1, clipped to -10..10."""
        self.check_shape(items)
        scale = (self.var + 1e-8).rsqrt()
        # Bytes and other integers become floats.
        dtype = items.dtype if items.is_floating_point() else torch.float32
        return ((items - self.mean) * scale).to(dtype).clamp(-10.0, 10.0)

    def check_shape(self, items: Tensor) -> None:
        """Raise unless items have the shape of the moments."""
        wanted, given = self.mean.shape, items.shape
        fits = given[len(given) - len(wanted) :] == wanted
        check_that(fits, f"items must end in {tuple(wanted)}, got {tuple(given)}")


# %% [markdown]
# All agents have the setting `normalize_obs`, for vectors. Then one `RunningMoments` is the first
# layer of all networks of a policy, and it is saved with the weights. On-policy agents let it take in a
# step after learning from it, because earlier it would move the policy that acted; those with a memory
# before.


# %% tags=["export"]
def normalizer_of(policy: PolicyLike, wanted: bool) -> RunningMoments | None:
    """Return what normalises a policy's observations, or None.

    Raises:
        ValueError: If the policy does not do what is wanted.
    """
    # What happens within a model of one's own is its own matter.
    own = "models" in getattr(policy, "recipe", ("", {}))[1]
    parts = policy.modules() if isinstance(policy, nn.Module) and not own else ()
    found = next((x for x in parts if isinstance(x, RunningMoments)), None)
    words = f"policy must normalise as normalize_obs says: {wanted}"
    check_that(wanted == (found is not None), words)
    return found


def take_in(normalizer: RunningMoments | None, obs: Tensor, real: Tensor) -> None:
    """Let a normaliser, if there is one, take in the observations of real steps."""
    if normalizer is None or not real.any():
        return
    # Pictures may come flat.
    seen = obs[real].reshape(-1, *normalizer.mean.shape)
    normalizer.update(seen.to(normalizer.mean.device, torch.float32))


# %% [markdown]
# Rewards are only *scaled*. Shifting them would change the task:
# where each step costs something, the agent wants a short episode, and after the shift it might
# want a long one. The scale is the standard deviation of the discounted sum of the episode's
# rewards so far, which is about as large as a return:
#
# $$
# R_t = r_t + \gamma \, (1 - \mathrm{done}_{t-1}) \, R_{t-1} ,
# \qquad \tilde r_t = r_t \,/ \operatorname{std}(R) .
# $$ (reward-scale)


# %% tags=["export"]
class RewardScaler(nn.Module):
    """Divides rewards by the standard deviation of the discounted return.

    The mean is not subtracted: that would pay for a longer or a shorter life.

    Args:
        num_envs: Number of environments B.
        gamma: Discount.
    """

    carry: Tensor

    def __init__(self, num_envs: int, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma
        self.moments = RunningMoments()
        self.register_buffer("carry", torch.zeros(num_envs))

    @checked
    def forward(
        self,
        reward: Float[Tensor, "T B"],
        done: Bool[Tensor, "T B"],
        real: Bool[Tensor, "T B"],
    ) -> Float[Tensor, "T B"]:
        """Take in the rewards of a rollout's real steps; return all of them scaled."""
        # The sum {eq}`reward-scale` runs forward in time. Turned around it is the scan
        # of {doc}`advantages`.
        wanted, given = len(self.carry), reward.shape[1]
        check_that(given == wanted, f"reward must have B = {wanted}, got {given}")
        increment = reward.clone()
        increment[0] += self.carry
        factor = torch.full_like(reward, self.gamma)
        factor[1:].masked_fill_(done[:-1], 0.0)
        so_far = reverse_scan(increment.flip(0), factor.flip(0)).flip(0)
        check_finite(so_far, reward=reward)

        # What goes on in the next rollout, and what the scale is measured from.
        self.carry.copy_(self.gamma * so_far[-1].masked_fill(done[-1], 0.0))
        if real.any():
            self.moments.update(so_far[real])
        return reward / (self.moments.var + 1e-8).sqrt().to(reward.dtype)

    def scaled(self, batch: Rollout) -> Rollout:
        """Return a rollout with scaled rewards."""
        done = batch.terminated | batch.truncated
        return batch._replace(reward=self(batch.reward, done, batch.real))


# %% [markdown]
# ## Traps
#
# ### Trap: the action that was clipped
#
# The box says $[-1, 1]$, the policy drew 3.5, the environment got 1. Which action goes into the
# batch? If it is the clipped one, the gradient is about an action that the policy never drew: a
# policy with mean 3 finds 1 unlikely, and a good return pulls it back.

# %%
mu = torch.tensor([3.0], requires_grad=True)
moves = []
for name, stored in (("as drawn, 3.5", 3.5), ("clipped, 1.0", 1.0)):
    log_prob = torch.distributions.Normal(mu, 1.0).log_prob(torch.tensor(stored))
    moves.append(torch.autograd.grad(log_prob.sum(), mu)[0].item())
    print(f"{name}: a good return moves the mean by {moves[-1]:+.1f}")

# %% [markdown]
# So the batch keeps the action as drawn, and `to_env` clips only what the environment gets.

# %% tags=["claims"]
assert moves == [0.5, -2.0]

# %% [markdown]
# ## Summary
#
# - A policy is a network and an action distribution. The network makes a row of numbers, the
#   action distribution knows what the row means.
# - An action is a function of a row and of noise. Without noise it is the greedy action.
# - A race draws from a softmax: the largest logit plus Gumbel noise wins.
# - A learner sees log-probabilities, entropies and values only, so one learner serves all kinds
#   of action.
# - What is clipped on the way into the environment is not clipped in memory.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "A Gaussian policy of one number doubles its standard deviation. Its mean was 0.3. What happens to "
    "its entropy?",
    ["it doubles", "it grows by 0.69 nats", "it depends on the mean"],
    right="it grows by 0.69 nats",
    because="The entropy is the logarithm of the standard deviation plus a constant, so it grows "
    "by ln 2. The mean only says where the policy looks, not how widely.",
)

# %% [markdown]
# ### Exercise 2: find the bug
#
# This log-density of a Gaussian policy is right before training, when every standard deviation is
# 1. As soon as they change, it is wrong. Repair it.


# %%
import math


def answer(mu, log_sigma, action):
    distance = (action - mu) / log_sigma.exp()
    return -(0.5 * distance.square() + 0.5 * math.log(2 * math.pi)).sum(-1)


from literate_rl.book.exercises import grade


def by_pytorch(mu, log_sigma, action):
    return torch.distributions.Normal(mu, log_sigma.exp()).log_prob(action).sum(-1)


rows = torch.randn(3, 3, 5, 2, generator=torch.Generator().manual_seed(2))
grade(answer, by_pytorch, *rows.unbind())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(mu, log_sigma, action):
    # A wider bell is a lower one: the area below it stays 1.
    distance = (action - mu) / log_sigma.exp()
    constant = 0.5 * math.log(2 * math.pi)
    return -(0.5 * distance.square() + log_sigma + constant).sum(-1)


grade(answer, by_pytorch, *rows.unbind())

# %% [markdown]
# ### Exercise 3: from nothing
#
# Write an action distribution that PPO could use. A Laplace distribution has a sharper peak than a
# Gaussian one and longer tails. Its density is
# $e^{-|a - \mu| / \beta} / (2 \beta)$ and its entropy $1 + \ln 2 \beta$; its noise is the difference of
# two exponential times. A row holds means and logarithms of
# $\beta$, so `choose` and `to_env` can stay those of `GaussianActions`, and the network that of
# `make_policy`.


# %%
def answer(low, high):
    return GaussianActions(low, high)


# %% tags=["hide-input"]
def fits_by_samples():
    """Put a network and the actions together, draw, and compare with PyTorch's."""
    box = spaces.Box(-2, 2, (3,))
    network = make_policy(spaces.Box(-1, 1, (4,)), box).network
    policy = Policy(network, answer(box.low, box.high))
    with torch.no_grad():
        obs = torch.zeros(5_000, 8, 4)
        noise = policy.noise(5_000, 8, torch.Generator().manual_seed(1))
        action = policy.act(obs, noise)
        log_prob, entropy = policy.evaluate_actions(obs, action)
    wanted = torch.distributions.Laplace(0.0, 1.0).log_prob(action).sum(-1)
    right = torch.allclose(log_prob, wanted, atol=1e-4)
    return [right, abs((log_prob + entropy).mean().item()) < 0.1]


grade(fits_by_samples, lambda: [True, True], ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
class LaplaceActions(GaussianActions):
    def noise(self, num_steps, num_envs, generator):
        times = torch.empty(2, num_steps, num_envs, self.low.size)
        first, second = times.exponential_(generator=generator)
        return first - second

    def log_prob(self, row, action):
        mu, log_beta = row.chunk(2, -1)
        distance = (action - mu).abs() * (-log_beta).exp()
        return -(distance + log_beta + math.log(2)).sum(-1)

    def entropy(self, row):
        _, log_beta = row.chunk(2, -1)
        return (1 + math.log(2) + log_beta).sum(-1)


def answer(low, high):
    # `evaluate` calls the two functions above. PPO and A2C act so, with
    # `Policy(network, LaplaceActions(…))`. PPG would need `kl` too: the one that is
    # inherited is a Gaussian's.
    return LaplaceActions(low, high)


grade(fits_by_samples, lambda: [True, True], ())

# %% [markdown]
# ## References
#
# The race is known as the Gumbel-max trick {cite:p}`maddison2014`. Which details of policies
# matter was measured by {cite:t}`andrychowicz2021`; {cite:t}`chan1983` put moments together.
