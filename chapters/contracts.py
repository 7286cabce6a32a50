# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Contracts
#
# **What does an algorithm require of a network, and how do you know that yours meets it?** After
# this chapter you can read the contracts of fifteen families of algorithms, from DQN to SAC, and
# check a model of your own with one call. {doc}`contract_models` builds models that pass.
#
# Reading takes about 30 minutes. You need {doc}`policies`, and {doc}`ddpg` and {doc}`sac` for the rules about
# actions.

# %% tags=["export", "hide-input"]
"""Contracts: what an algorithm demands of a network, as a text and as a check."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn

from literate_rl.check.probes import (
    Finding,
    Probe,
    Rule,
    demand,
    required_parameters,
    text_of,
    try_rules,
)
from literate_rl.check.rules import (
    action_learns,
    as_it_is,
    copies,
    entropy_fits,
    entropy_learns,
    excess,
    has_gradient,
    has_shape,
    in_bounds,
    is_an_action,
    keeps_inputs,
    lists_log_probs,
    numbers,
    returns_enough,
    runs_on_batches,
    same_in_both_modes,
    sums_to_one,
    survives_large_states,
    takes_states,
    tells_apart,
)
from literate_rl.check.states import look_around
from literate_rl.ground.nests import Space, refused

__all__ = [
    "CONTRACTS",
    "Broken",
    "Contract",
    "ContractError",
    "Role",
    "check_model",
]

# %% [markdown]
# ## A model that looks right
#
# The library [Machin](https://github.com/iffiX/machin) has [a
# page](https://github.com/iffiX/machin/blob/32a8b936d9d52d060c71f54a9e272ea529efcfa8/docs/source/advance/algorithm_model_requirements.rst)
# that says what each algorithm expects of a model, with an example for each. Here is its actor for A2C, as an
# older edition prints it. It samples an action, or says how likely one is that it is given.

# %%
import torch
import torch as t
from torch import nn
from torch.distributions import Categorical


class Actor(nn.Module):
    def __init__(self, state_dim, action_num):
        super().__init__()

        self.fc1 = nn.Linear(state_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, action_num)

    def forward(self, state, action=None):
        a = t.relu(self.fc1(state))
        a = t.relu(self.fc2(a))
        probs = t.softmax(self.fc3(a), dim=1)
        dist = Categorical(probs=probs)
        act = action if action is not None else dist.sample()
        act_entropy = dist.entropy()
        act_log_prob = dist.log_prob(act.flatten())
        return act, act_log_prob, act_entropy


# %% [markdown]
# We give it an easy task: four random numbers come in, and action 1 is right if their sum is
# positive. For comparison we train the same actor
# with one change: each of its results gets a second dimension, of size 1.


# %%
class Fixed(Actor):
    def forward(self, state, action=None):
        action, log_prob, entropy = super().forward(state, action)
        return action.reshape(-1, 1), log_prob.unsqueeze(1), entropy.unsqueeze(1)


torch.set_num_threads(1)  # networks as small as these gain nothing from more


def learn(actor, num_updates=300, batch=64):
    """Train an actor with the policy gradient; return its shares of right actions."""
    optimizer, shares = torch.optim.Adam(actor.parameters(), 3e-3), []
    for _ in range(num_updates):
        state = torch.randn(batch, 4)
        with torch.no_grad():
            action = actor(state)[0].reshape(batch, 1)
        reward = (action == (state.sum(1, keepdim=True) > 0)).float()
        # The log-probabilities are weighted by advantages of shape (B, 1).
        _, log_prob, *_ = actor(state, action)
        loss = -(log_prob * (reward - reward.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shares.append(reward.mean().item())
    return np.array(shares)


# %% tags=["hide-input"] mystnb={"image": {"alt": "Share of right actions over 300 updates. The fixed actor rises to more than 90 percent, the example stays at 50"}}
import matplotlib.pyplot as plt
import numpy as np

torch.manual_seed(1)
trained = {"the example": learn(Actor(4, 2)), "fixed": learn(Fixed(4, 2))}
fig, axis = plt.subplots(figsize=(7, 2.4))
for name, shares in trained.items():
    axis.plot(np.convolve(shares, np.full(20, 1 / 20), "valid"), label=name)
axis.set(xlabel="updates", ylabel="share of right actions", ylim=(0, 1))
axis.legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# **Notice** that the example learns nothing at all, and yet it raises no error. If you did not
# know the fix, how would you find out? Ask the checker.

# %%
from literate_rl.check.contracts import CONTRACTS, ContractError, check_model


def verdict_on(family, **given):
    """Return what the checker says, as one string."""
    try:
        check_model(family, **given)
    except ContractError as error:
        return str(error)
    return "passes"


verdict = verdict_on("A2C", actor=Actor(4, 2), env="CartPole-v1")
print(verdict)

# %% [markdown]
# Look at the line about `action_log_prob`. On the checker's five rows the log-probabilities have
# the shape $(5,)$. Advantages have the shape $(5, 1)$, and PyTorch broadcasts the product of the
# two to a table $(5, 5)$: every action is weighted by the advantage of every state. The mean of
# that table is the mean log-probability times the mean advantage, and the mean advantage is zero.
# Machin's own A2C reshapes what the model returns, so the example trains there.

# %% tags=["claims"]
assert trained["fixed"][-20:].mean() > 0.9, "with the fix it learns"
assert 0.35 < trained["the example"][-20:].mean() < 0.65, "the example learns nothing"
assert verdict.count("must have shape (5, 1), got (5,)") == 3

# %% [markdown]
# ## Six roles
#
# Fifteen families need networks in only six roles, two of them with variants. A Q network returns a **Q value** for each of $N$ discrete
# actions, the expected return of that action in the state. Rainbow's network returns a
# distribution instead: the probabilities of fixed returns, the **atoms**.

# %% tags=["hide-input"]
from literate_rl.book.pictures import Picture

picture = Picture(
    "Families and roles",
    "The DQN group needs Q values, Rainbow a distribution, the DDPG group an actor that "
    "returns an action and a critic of actions, the A2C group an actor that draws and a "
    "critic of states, SAC an actor that draws and a critic of actions.",
)
families = [
    "DQN, dueling\nDQNPer, DQNApex",
    "RAINBOW",
    "DDPG, TD3\nHDDPG, DDPGPer\nDDPGApex",
    "SAC",
    "A2C, PPO\nA3C, IMPALA",
]
roles = [
    "Q values\n(B, N)",
    "distribution\n(B, N, atoms)",
    "actor: an action\n(B, …)",
    "critic of an action\n(B, 1)",
    "actor that draws\naction, log π, entropy",
    "critic of a state\n(B, 1)",
]
tones = ["accent" if "draws" in words else "" for words in roles]
left = [picture.box(84, 42 + 84 * i, x, width=164) for i, x in enumerate(families)]
right = [
    picture.box(342, 30 + 68 * i, x, tones[i], width=190) for i, x in enumerate(roles)
]
for family, needed in zip(left, [[0], [1], [2, 3], [3, 4], [4, 5]], strict=True):
    for i in needed:
        picture.arrow(family.at(1, 0.5), right[i].at(0, 0.5), tone=tones[i])
picture

# %% [markdown]
# **Notice** the role in colour, the actor that draws. It has to return its action, the
# log-probability and the entropy, and to judge actions that it is given. And all of this has
# to be consistent. That is where models go wrong.
#
# `CONTRACTS` holds the contracts, in Machin's notation. A short one:

# %%
print(CONTRACTS["RAINBOW"])

# %% [markdown]
# `state_0[batch_size, ...]` is a tensor with a row for each state and at least one more dimension. `<...>` means that
# more results may follow, or more arguments if they have a default.
#
# ## What a rule is
#
# A rule is a small function that tries a model and makes demands: what must hold, what is expected, what
# came, and a hint. The first line of its docstring is the line that the contract prints. The model comes
# wrapped in a `Probe` ({doc}`check/probes`), which holds a copy of yours: `call(n)` returns its results
# for n states, `judge` those that must not depend on chance, and `draw` an action with its log-probability.


# %% tags=["export"]
def takes_action(probe: Probe) -> None:
    """Takes action (an actor with the default None)."""
    given: Any = probe.parameters.get("action")
    demand(given is not None, "must take an argument called action", "there is none")
    fits = probe.action == "action" or given.default is None
    demand(fits, "must take action=None", f"got {given}")


# %% [markdown]
# Most rules are as small as this one and stand in {doc}`check/rules`. They find:
#
# | rules | what they find |
# |---|---|
# | `copies`, `takes_states` | a model that cannot be copied (some algorithms need an older copy); a missing or extra argument: they are matched by name |
# | `runs_on_batches`, `returns_enough`, `numbers` | an error with five rows or with one, in training or in evaluation mode; too few results; NaN and infinity |
# | `has_shape`, `has_gradient` | a result of another shape, with five rows or with one, where a `squeeze` does its harm; one that no parameter can learn |
# | `sums_to_one` | logits, logarithms, or a softmax over the wrong dimension, where probabilities are meant |
# | `in_bounds`, `is_an_action` | a continuous action outside of its box, also when the states are 100 times as large; a discrete one that is not an integer below $N$ |
# | `entropy_learns`, `action_learns` | an entropy without a gradient; for SAC an action without one, drawn by `sample()` and not by `rsample()` |
# | `as_it_is`, `tells_apart`, `lists_log_probs` | a given action that comes back changed; a log-probability that does not depend on the action, or disagrees with the list of all |
#
# **No row may depend on the others.** A mean over the wrong
# dimension, or one `flatten` too many, mixes the rows of a batch and keeps every shape. So each row is computed once
# more, alone; `luck` is the random seed of a call.


# %% tags=["export"]
def rows_apart(probe: Probe) -> None:
    """No row depends on the other rows."""
    action = probe.drawn_or_given(5)
    together, again = probe.judge(action), probe.judge(action, luck=1)
    # Each row once more, alone, and compared with what it was among the others.
    for i in range(5):
        own = None if action is None else action[i : i + 1]
        alone = probe.judge(own, batch=1, row=i)
        for one, row, other in zip(alone, together, again, strict=True):
            off = (one[0] - row[i]).abs().max().item()
            # A result that is random even now, such as a sampled entropy, is left out.
            if torch.equal(row, other):
                alike = off <= 1e-4 * (1 + row.abs().max())
                expected = "a row must not depend on the other rows"
                came = f"alone it differs by {off:.3g}"
                demand(alike, expected, came, "which dimension?")


# %% [markdown]
# The actor of DDPG or SAC learns *through* its critic: the gradient of the critic's value with
# respect to the action points to a better action. If a critic ignores or detaches the action,
# the critic's loss may still fall, but the actor learns nothing.


# %% tags=["export"]
def leads_through_action(probe: Probe) -> None:
    """q_value has a gradient with respect to the action."""
    action = probe.actions(5).requires_grad_()
    value = probe.call(5, action)[0]
    if not value.requires_grad:
        return  # then nothing can be learned from it at all, and another rule says so
    (grad,) = torch.autograd.grad(value.sum(), action, allow_unused=True)
    flows = grad is not None and grad.abs().max() > 0
    demand(flows, "a gradient must flow from q_value to the action", "none does")


# %% [markdown]
# ## Rules for actors that draw
#
# Such an actor draws actions, and it says how likely they are. If the two agree, three facts hold, and many mistakes
# break at least one of them.
#
# First, an action that was drawn and is then given back must get **the same log-probability** as
# when it was drawn.


# %% tags=["export"]
def judged_alike(probe: Probe) -> None:
    """A given action has the log-probability that it had when it was drawn."""
    drawn, log_prob, *_ = probe.call(5)
    again = probe.call(5, drawn.detach(), luck=1)[1]
    same_shape = again.shape == log_prob.shape
    off = (again - log_prob).abs().max().item() if same_shape else math.inf
    # Undoing a tanh costs some digits. If it is NaN, another rule says so.
    alike = not off > 2e-3 * (1 + 0.1 * log_prob.abs().max().item())
    expected = (
        "the log-probability of the sampled action must be the same when it is given"
    )
    demand(alike, expected, f"differs by {off:.3f}")


# %% [markdown]
# Second, **the probabilities of all actions sum to 1**,
#
# $$
# \sum_a \pi(a \mid s) = 1 \quad\text{or}\quad \int \pi(a \mid s) \, \mathrm d a = 1 .
# $$ (unit-mass)
#
# For discrete actions this takes one call. For continuous ones, we draw points $a_i$ uniformly
# from the box, whose volume is $v$, and take the mean of $v \, \pi(a_i \mid s)$. A policy that draws outside of the box,
# as a Gaussian does, is skipped. The rule finds actions that were clamped to the box before they are judged, and a
# missing Jacobian, which we meet in {doc}`contract_models`.


# %% tags=["export"]
@torch.no_grad()
def has_unit_mass(probe: Probe) -> None:
    """The probabilities of all actions sum to 1."""
    expected = "the probabilities of all actions must sum to 1"
    # Discrete: one row for each action, all in the same state.
    if probe.num_actions is not None:
        every = torch.arange(probe.num_actions).unsqueeze(-1)
        mass = probe.call(len(every), every, row=0)[1].exp().sum().item()
        demand(abs(mass - 1) <= 1e-4, expected, f"they sum to {mass:.3f}")
        return
    # Continuous: skip a policy that draws outside of the box.
    low, high = probe.bounds()
    drawn = torch.cat([probe.draw(500, luck)[0] for luck in range(8)])
    if ((drawn < low) | (drawn > high)).any():
        return
    # Estimate the integral {eq}`unit-mass` from 20,000 points, with its standard error.
    generator = torch.Generator().manual_seed(0)
    share = torch.rand(40, 500, *low.shape, generator=generator).to(low)
    log_prob = [probe.call(500, low + (high - low) * x, row=0)[1] for x in share]
    density = torch.cat(log_prob).double().exp() * (high - low).double().prod()
    mass, error = density.mean().item(), density.std().item() / math.sqrt(20_000)
    # An estimate that is too uncertain is no evidence.
    fine = not error <= 0.1 or abs(mass - 1) <= 0.02 + 5 * error
    hint = "is the Jacobian there? was the action clamped?"
    demand(fine, expected, f"they integrate to {mass:.2f}", hint)


# %% [markdown]
# Third, **the score has mean zero**,
#
# $$
# \mathbb E_{a \sim \pi} \bigl[ \nabla \log \pi(a \mid s) \bigr] = 0 ,
# $$ (score-zero)
#
# which is the derivative of the equation above. If actions come from one distribution and are judged by another, the
# mean is not zero, and it is a bias of every policy gradient.
#
# We draw 20 groups of 200 actions. How much the groups differ tells us how long the mean gradient would be by chance
# alone. This is its standard error, and `excess` divides the length of the mean gradient by it.
# More than five is too much. An untrained network gives all discrete actions nearly the same probability, so a wrong
# formula barely shows; the rule tries larger states too.


# %% tags=["export"]
def scores_cancel(probe: Probe) -> None:
    """The mean gradient of the log-probability is zero."""
    expected = "the mean gradient of the log-probability must be zero"
    hint = "drawn from one distribution, judged by another"
    # Estimate {eq}`score-zero` for each parameter, from samples.
    for scale in (1.0, 10.0, 100.0) if probe.num_actions else (1.0,):
        draws = [probe.draw(200, luck, scale)[:2] for luck in range(20)]
        ratio = excess([log_prob.mean() for _, log_prob in draws], probe.weights)
        actions = torch.cat([action for action, _ in draws])
        if (actions == actions[0]).all():
            # If every draw is the same action, it should be almost certain.
            luck = sum(log_prob.sum().item() for _, log_prob in draws)
            ratio = math.inf if probe.num_actions is None or luck < -25 else 0.0
        came = f"it is {ratio:.0f} standard errors away"
        demand(ratio <= 5, expected, came, hint)


# %% [markdown]
# **SAC with discrete actions** ({doc}`discrete_sac`) has a contract of its own. Its actor returns the
# log-probabilities of *all* actions, as a fourth result, and needs no gradient through a sample: the expectation over
# actions is a sum {cite:p}`christodoulou2019`.
#
# ## Legal, but harmful
#
# Some models keep their contract and still do harm. They get a warning: a model that writes to its arguments; batch
# normalisation or dropout; an entropy that is a constant, or that of another distribution; NaN for large states; or
# log-probabilities that stop at −15.9, as those of `Categorical(probs=…)` do: an action that has become unlikely no
# longer gets a gradient. The fixed example of the first section is such a model.

# %%
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    check_model("A2C", actor=Fixed(4, 2), env="CartPole-v1")
print(*(str(one.message) for one in told))

# %% tags=["claims"]
assert len(told) == 1, "it passes, with one warning"
assert "they stop at -15.9" in str(told[0].message)

# %% [markdown]
# ## From rules to contracts
#
# A **role** says what one network takes besides the states, what it returns, and
# which rules hold for it in particular. Its rules stand in stages. Those about calling come
# first, those that need many samples come last, and the check ends with the first stage in which a rule is broken.


# %% tags=["export", "hide-input"]
class Role(NamedTuple):
    """What one network of a contract does, and the rules that it has of its own."""

    # What it takes besides states: nothing, "action" or "action=None".
    action: str
    # The lines of its results, such as "q_value[batch_size, action_num]".
    results: tuple[str, ...]
    own: tuple[Rule, ...] = ()

    @property
    def stages(self) -> list[tuple[Rule, ...]]:
        """The rules of the role in stages, in the order in which they are tried."""
        draws, results = self.action == "action=None", [*enumerate(self.results)]
        shapes = [has_shape(text, i) for i, text in results]
        # Of what an actor that draws returns, only log-probabilities must be learned.
        must = [(i, text) for i, text in results if not draws or "log_prob" in text]
        learned = [has_gradient(text.partition("[")[0], i) for i, text in must]
        first = (is_an_action, as_it_is, judged_alike) * draws
        second = (tells_apart, entropy_learns) * draws
        many = has_unit_mass, scores_cancel, survives_large_states
        return [
            (copies,),
            (takes_states, *(takes_action,) * bool(self.action)),
            (runs_on_batches,),
            (returns_enough(len(results)),),
            (numbers, *shapes, *first, keeps_inputs, same_in_both_modes),
            (*learned, rows_apart, *second, *self.own),
            *(many, (entropy_fits,)) * draws,
        ]

    def text(self, part: str) -> str:
        """Return the role as its contract prints it."""
        title = "QNet" if part == "qnet" else part.capitalize()
        dims = ".../action_num" if self.action == "action" else "..."
        action = self.action.replace("action", f"action[batch_size, {dims}]")
        takes = ["state_0[batch_size, ...]", "...", "state_n[batch_size, ...]", action]
        results = ",\n   ".join([*self.results, "<...>"])
        lines = [f"   {text_of(rule)}" for stage in self.stages for rule in stage]
        signature = f"{title}({', '.join(filter(None, takes))})"
        return "\n".join([signature, f"-> {results}", *lines])


# %% tags=["export"]
# Q values, for DQN; a distribution over returns for each action, for Rainbow.
Q_VALUES = Role("", ("q_value[batch_size, action_num]",))
DISTRIBUTION = Role(
    "",
    ("q_value_dist[batch_size, action_num, atom_num]",),
    (sums_to_one("q_value_dist", "sum(q_value_dist[i, j, :]) == 1"),),
)
# Critics of a state and of an action.
STATE_VALUE = Role("", ("value[batch_size, 1]",))
ACTION_VALUE = Role("action", ("q_value[batch_size, 1]",), (leads_through_action,))
# Actors that return an action, or the probabilities of all.
ACTION = Role("", ("action[batch_size, ...]",), (in_bounds,))
PROBABILITIES = Role(
    "",
    ("action[batch_size, action_num]",),
    (sums_to_one("action", "sum(action[i, :]) == 1"),),
)
# The actor that draws: of A2C and its relatives, and of SAC, continuous and discrete.
DRAWING = Role(
    "action=None",
    (
        "action[batch_size, ...]",
        "action_log_prob[batch_size, 1]",
        "distribution_entropy[batch_size, 1]",
    ),
)
REPARAMETRISED = DRAWING._replace(own=(action_learns,))
LISTING = DRAWING._replace(
    results=(*DRAWING.results, "action_log_probs[batch_size, action_num]"),
    own=(lists_log_probs,),
)

# %% [markdown]
# A **contract** says, for continuous and for discrete actions, which networks a family has and in
# which roles. Where two roles are listed, a network may play either.

# %% tags=["export"]
Parts = dict[str, tuple[Role, ...]]


class Contract(NamedTuple):
    """What a family demands: for each network the roles that it may play.

    One dictionary is for continuous actions and empty if the family has none.
    """

    family: str
    continuous: Parts
    discrete: Parts

    def __str__(self) -> str:
        kinds = {"": self.discrete}
        if self.continuous not in ({}, self.discrete):
            kinds = {
                "# continuous actions": self.continuous,
                "# discrete actions": self.discrete,
            }
        texts = [self.family]
        for title, parts in kinds.items():
            told = [role.text(part) for part in parts for role in parts[part]]
            texts += [title, *told]
        return "\n\n".join(filter(None, texts))


# %% tags=["export"]
# The critic that an actor learns through, and the two networks of the policy gradient.
THROUGH: Parts = {"critic": (ACTION_VALUE,)}
BESIDE: Parts = {"actor": (DRAWING,), "critic": (STATE_VALUE,)}
# Names of families, then roles for continuous actions, then roles for discrete ones.
FAMILIES: dict[str, tuple[Parts, Parts]] = {
    "DQN DQNPer DQNApex Dueling": ({}, {"qnet": (Q_VALUES,)}),
    "RAINBOW": ({}, {"qnet": (DISTRIBUTION,)}),
    "DDPG DDPGPer DDPGApex HDDPG TD3": (
        {"actor": (ACTION,), **THROUGH},
        {"actor": (PROBABILITIES,), **THROUGH},
    ),
    "A2C PPO A3C IMPALA": (BESIDE, BESIDE),
    "SAC": (
        {"actor": (REPARAMETRISED,), **THROUGH},
        {"actor": (LISTING,), "critic": (Q_VALUES, ACTION_VALUE)},
    ),
}
CONTRACTS: dict[str, Contract] = {
    name: Contract(name, *parts)
    for names, parts in FAMILIES.items()
    for name in names.split()
}

# %% [markdown]
# ## The check
#
# `check_model` takes a few steps in the environment to collect states, finds the role of each model, tries the rules of
# the role, and raises one error that lists what is broken. The model stays on its device.


# %% tags=["export", "hide-input"]
class Broken(NamedTuple):
    """A rule that a model breaks: which model, the rule's name, and what was found."""

    who: str
    rule: str
    finding: Finding

    def __str__(self) -> str:
        return f"{self.who}: {self.finding}"


class ContractError(ValueError):
    """Models break the contract of a ``family``; ``broken`` lists the broken rules."""

    def __init__(self, family: str, broken: Sequence[Broken]) -> None:
        super().__init__(family, broken)
        self.family, self.broken = family, tuple(broken)

    def __str__(self) -> str:
        count = f"{len(self.broken)} broken rule{'s' * (len(self.broken) > 1)}"
        return "\n  ".join([f"{self.family}: {count}", *map(str, self.broken)])


# %% tags=["export"]
def check_model(
    family: str,
    *,
    actor: nn.Module | None = None,
    critic: nn.Module | Sequence[nn.Module] | None = None,
    qnet: nn.Module | None = None,
    env: Any = None,
    states: Mapping[str, Any] | None = None,
    action_space: Space | None = None,
    action_transform: Callable[..., Tensor] | None = None,
) -> None:
    """Try models against the contract of a family; they stay as they were.

    Args:
        family: A key of ``CONTRACTS``, in capitals or not.
        actor: The actor, for families that have one.
        critic: The critic, or a sequence of several.
        qnet: The Q network.
        env: An id or a function that makes an environment.
        states: Without ``env``, example states by name: tensors with a row for each.
            What is not a tensor is passed on unchanged.
        action_space: Needed with ``states``.
        action_transform: Turns the action of an actor, and its states, into the action
            that is used.

    Raises:
        ContractError: With the broken rules. A warning is a ``UserWarning``.
    """
    known = {name.lower(): contract for name, contract in CONTRACTS.items()}
    contract = known.get(str(family).lower())
    if contract is None:
        names = ", ".join(CONTRACTS)
        raise ValueError(f"family must be one of {names}, got {family!r}")
    if (env is None) == (states is None or action_space is None):
        raise ValueError("check_model needs either env, or states and action_space")
    space: Any = action_space
    if env is not None:
        spec, space, obs = look_around(env)
    discrete = isinstance(space, spaces.Discrete)
    roles = contract.discrete if discrete else contract.continuous
    if not roles or not isinstance(space, spaces.Discrete | spaces.Box):
        continuous = " or a Box" * bool(contract.continuous)
        raise refused(f"{contract.family} needs Discrete{continuous}", space, "kind")
    given: dict[str, Any] = {"actor": actor, "critic": critic, "qnet": qnet}
    models = {part: model for part, model in given.items() if model is not None}
    if not models or not models.keys() <= roles.keys():
        came = " and ".join(models) or "none"
        raise ValueError(f"{contract.family} has {' and '.join(roles)}, got {came}")
    # What is harmful is said of each model, what is illegal of all in one error.
    illegal = []
    for part, several in models.items():
        many = isinstance(several, list | tuple | nn.ModuleList)
        for number, model in enumerate(several if many else [several], 1):
            named: Any = states if env is None else spec.named_for(model).split(obs)
            role = role_of(model, roles[part])
            transform = action_transform if part == "actor" else None
            probe = Probe(model, named, space, role.action, transform)
            for rule, finding in try_rules(probe, role.stages):
                broken = Broken(f"{part} {number}" if many else part, rule, finding)
                if finding.harmful:
                    warnings.warn(f"{contract.family}: {broken}", stacklevel=2)
                else:
                    illegal.append(broken)
    if illegal:
        raise ContractError(contract.family, illegal)


def role_of(model: nn.Module, roles: Sequence[Role]) -> Role:
    """Return the role that a model seems to play."""
    takes_one = "action" in required_parameters(model)
    fitting = (role for role in roles if (role.action == "action") == takes_one)
    return next(fitting, roles[0])


# %% [markdown]
# A model may take several states. Their names are those of the environment's `Dict` ({doc}`check/states`).
#
# ## Does such a model learn?
#
# To train models of yours, hand them to `train` ({doc}`apps/training`), `qnet=` for DQN and Rainbow.
# Actor and critic may share a body, which stays one:

# %%
from literate_rl.apps.training import train


class OnBody(nn.Module):
    def __init__(self, body, head):
        super().__init__()
        self.body, self.head = body, head

    def forward(self, state, action=None):
        dist = Categorical(logits=self.head(self.body(state)))
        action = dist.sample().unsqueeze(-1) if action is None else action
        log_prob, entropy = dist.log_prob(action.squeeze(-1)), dist.entropy()
        return action, log_prob.unsqueeze(-1), entropy.unsqueeze(-1)


body = nn.Sequential(nn.Linear(4, 16), nn.Tanh())
models = {
    "actor": OnBody(body, nn.Linear(16, 2)),
    "critic": nn.Sequential(body, nn.Linear(16, 1)),
}
check_model("PPO", **models, env="CartPole-v1")
agent = train("PPO", "CartPole-v1", **models, total_steps=4_096, progress=False)
num_weights = sum(x.numel() for x in agent.policy.parameters())
print(f"trained: {num_weights} weights, 80 of them in the body")

# %% tags=["claims"]
assert sum(x.numel() for x in body.parameters()) == 80
assert num_weights == 80 + 17 * 2 + 17, "the body stays one"

# %% [markdown]
# ## Traps
#
# ### Trap: a test with a single state
#
# The quickest test of a network is to call it with one state. But a batch of one hides the
# mistake of the first section, because $(1,)$ times $(1, 1)$ is $(1, 1)$. Try at least two sizes,
# and let one of them be 1.

# %%
for batch in (1, 5):
    log_prob = Actor(4, 2)(torch.randn(batch, 4))[1]
    print(f"batch of {batch}:", tuple((log_prob * torch.ones(batch, 1)).shape))

# %% tags=["claims"]
assert (log_prob[:1] * torch.ones(1, 1)).shape == (1, 1), "a batch of one hides it"
assert (log_prob * torch.ones(5, 1)).shape == (5, 5)

# %% [markdown]
# ## On the best device
#
# A model is checked on its own device.

# %%
from literate_rl.data.agents import best_device

device = best_device()
check_model("DQN", qnet=nn.Linear(4, 2).to(device), env="CartPole-v1")
print("passes on", device.type)

# %% [markdown]
# ## Summary
#
# - Fifteen families need six roles. `CONTRACTS` says what each requires, `check_model` checks it.
# - Shapes are the least of it: rows must not mix, and given actions must come back unchanged.
# - Three facts reveal many mistakes without looking inside: the same log-probability when an
#   action is given back, probabilities that sum to 1, a score with mean zero.
# - What is legal but harmful gets a warning.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "An actor draws from the softmax of its logits. It computes every log-probability, drawn or "
    "given, from twice its logits. Which rule finds it?",
    [
        "a given action has the log-probability that it had when drawn",
        "the probabilities of all actions sum to 1",
        "the mean gradient of the log-probability is zero",
    ],
    right="the mean gradient of the log-probability is zero",
    because="Both log-probabilities come from the same formula, so they agree, and a softmax of "
    "twice the logits sums to 1 as well. But the actions come from another distribution than "
    "the one that judges them, so the mean score is not zero.",
)

# %% tags=["claims"]


class Twice(nn.Linear):
    def forward(self, state, action=None):
        logits = super().forward(state)
        drawn = torch.multinomial(logits.softmax(-1), 1) if action is None else action
        dist = Categorical(logits=2 * logits)
        log_prob = dist.log_prob(drawn.squeeze(-1)).unsqueeze(-1)
        return drawn, log_prob, dist.entropy().unsqueeze(-1)


torch.manual_seed(0)
found = verdict_on("A2C", actor=Twice(4, 2), env="CartPole-v1")
assert found.startswith("A2C: 1 broken rule\n")
assert "the mean gradient of the log-probability" in found, "this one alone finds it"

# %% [markdown]
# ### Exercise 2: find the bug
#
# This Q network adds the value of the state and an advantage of each action, which is called
# *dueling*. Every shape is right and no error is raised, but the checker finds one broken rule.
# Fix it.


# %%
class Answer(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 16)
        self.value, self.adv = nn.Linear(16, 1), nn.Linear(16, 2)

    def forward(self, state):
        features = torch.relu(self.body(state))
        value, adv = self.value(features), self.adv(features)
        return value + adv - adv.mean()


from literate_rl.book.exercises import grade


grade(lambda: verdict_on("DQN", qnet=Answer(), env="CartPole-v1"), lambda: "passes", ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
class Answer(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 16)
        self.value, self.adv = nn.Linear(16, 1), nn.Linear(16, 2)

    def forward(self, state):
        features = torch.relu(self.body(state))
        value, adv = self.value(features), self.adv(features)
        # The mean is over the actions of each state, not over the whole batch.
        return value + adv - adv.mean(1, keepdim=True)


grade(lambda: verdict_on("DQN", qnet=Answer(), env="CartPole-v1"), lambda: "passes", ())

# %% [markdown]
# ### Exercise 3: experiment
#
# Make this actor for Pendulum pass the contract of PPO. The checker
# names the first broken rule at once, and the others when that one is fixed.

# %%
from torch.distributions import Normal


class Answer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu, self.log_sigma = nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, obs, action):
        dist = Normal(self.mu(obs), self.log_sigma(obs).exp())
        action = dist.sample().clamp(-2, 2)
        return action, dist.log_prob(action), dist.entropy().mean()


def said():
    """Return the first complaint about three fresh actors."""
    for seed in range(3):
        torch.manual_seed(seed)
        verdict = verdict_on("PPO", actor=Answer(), env="Pendulum-v1")
        if verdict != "passes":
            break
    return verdict


grade(said, lambda: "passes", ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
class Answer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu, self.log_sigma = nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, obs, action=None):
        dist = Normal(self.mu(obs), self.log_sigma(obs).clamp(-5, 2).exp())
        # Not clamped: the algorithm keeps the action as drawn, and only the environment
        # gets a clipped one.
        action = dist.sample() if action is None else action
        log_prob, entropy = dist.log_prob(action), dist.entropy()
        return action, log_prob.sum(1, keepdim=True), entropy.sum(1, keepdim=True)


grade(said, lambda: "passes", ())

# %% [markdown]
# ## References
#
# The contracts are those of [Machin](https://github.com/iffiX/machin). SAC with discrete actions is
# from {cite:t}`christodoulou2019`, dueling networks are from {cite:t}`wang2016`.
