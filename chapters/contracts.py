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
# this chapter you can read the contracts of fifteen families of algorithms, from DQN to SAC,
# check a model of your own with one call, and understand each error that the check reports. The
# later chapters of this part train any model that passes.
#
# It takes about 35 minutes. You need policies ({doc}`policies`) and the policy gradient
# ({doc}`policy_gradient`).

# %% tags=["export", "hide-input"]
"""Contracts: what an algorithm demands of a network, as a text and as a check."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation
from torch import Tensor, nn
from torch.nn.functional import softplus

from literate_rl.workshop.probes import (
    Finding,
    Probe,
    Rule,
    advice,
    device_of,
    fits,
    open_parameters,
    raised,
    randomness_kept,
    required_parameters,
    results_of,
    rule,
    try_rules,
    unwrapped,
    warning,
    watch,
    write_out,
)
from literate_rl.workshop.signatures import Float, checked

__all__ = [
    "CONTRACTS",
    "ActionValue",
    "Broken",
    "ByName",
    "CategoricalActor",
    "CategoricalQNetwork",
    "Contract",
    "ContractError",
    "DeterministicActor",
    "DuelingQNetwork",
    "ProbabilityActor",
    "QNetwork",
    "Result",
    "Role",
    "SquashedGaussianActor",
    "StateSpec",
    "StateValue",
    "check_model",
    "squashed_log_prob",
    "state_spec",
]

# %% [markdown]
# ## A model that looks right
#
# The documentation of [Machin](https://github.com/iffiX/machin), a library of algorithms, has a
# page that says what each algorithm expects of a model, with an example for each. We know of no
# other library with such a page. Here is its actor for A2C, the simplest actor-critic algorithm.
# It draws an action, or judges one that it is given: it returns how likely the action was.


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
# positive, action 0 if not. The policy gradient weights each log-probability by an advantage.
# For comparison we train an actor that we write below, with the same algorithm.


# %%
torch.set_num_threads(1)  # networks as small as these gain nothing from more


def train(actor, num_updates=300, batch=64):
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


# %% tags=["hide-input"] mystnb={"image": {"alt": "Share of right actions over 300 updates. The actor of this chapter rises to more than 90 percent, the other one stays at 50"}}
import matplotlib.pyplot as plt
import numpy as np

from literate_rl.contracts import CategoricalActor  # the package's own, defined below

torch.manual_seed(1)
trained = {
    "the example": train(Actor(4, 2)),
    "this chapter's": train(CategoricalActor(4, 2, hidden=16)),
}
fig, axis = plt.subplots(figsize=(7, 2.4))
for name, shares in trained.items():
    axis.plot(np.convolve(shares, np.full(20, 1 / 20), "valid"), label=name)
axis.set(xlabel="updates", ylabel="share of right actions", ylim=(0, 1))
axis.legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# The example learns nothing at all, and yet it raises no error. What is wrong? We ask the
# checker.

# %%
from literate_rl.contracts import ContractError, check_model

try:
    check_model("A2C", actor=Actor(4, 2), env="CartPole-v1")
except ContractError as error:
    print(error)
    verdict = error

# %% [markdown]
# **Notice** the line about `action_log_prob`. On the checker's five rows the log-probabilities
# have the shape $(5,)$. Advantages have the shape $(5, 1)$, and PyTorch broadcasts the product of
# the two to a table $(5, 5)$: every action is weighted by the advantage of every state. The mean
# of that table is the mean log-probability times the mean advantage, and the mean advantage is
# zero.
#
# Machin's [own A2C
# reshapes](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/a2c.py#L369)
# what the model returns, so the example trains there and the mistake stays hidden. Machin's
# contract is right: it asks for $(B, 1)$.

# %% tags=["claims"]
assert trained["this chapter's"][-20:].mean() > 0.9
assert 0.35 < trained["the example"][-20:].mean() < 0.65, "the example learns nothing"
assert [x.rule.row for x in verdict.broken] == ["M47", "M41", "M42"]

# %% [markdown]
# ## Six roles
#
# Fifteen families sound like a lot to learn, but they need networks in only six roles. You need
# not know the algorithms yet. A **Q value** is the expected return of an action in a state. A Q
# network returns one for each of $N$ discrete actions. Rainbow's network returns a distribution
# instead: the probabilities of fixed returns, the **atoms**.

# %% tags=["hide-input"]
from literate_rl.workshop.pictures import Picture

picture = Picture(
    "Families and roles",
    "Five groups of families on the left, six roles on the right. The DQN group needs Q "
    "values, Rainbow a distribution. The DDPG group needs an actor that returns an action and "
    "a critic of actions. The A2C group needs an actor that draws and a critic of states. SAC "
    "needs an actor that draws and a critic of actions.",
)
families = {
    "DQN": "DQN, dueling\nDQNPer, DQNApex",
    "RAINBOW": "RAINBOW",
    "DDPG": "DDPG, TD3\nHDDPG, DDPGPer\nDDPGApex",
    "SAC": "SAC",
    "A2C": "A2C, PPO\nA3C, IMPALA",
}
roles = {
    "q": "Q values\n(B, N)",
    "p": "distribution\n(B, N, atoms)",
    "a": "actor: an action\n(B, …)",
    "qa": "critic of an action\n(B, 1)",
    "d": "actor that draws\naction, log π, entropy",
    "v": "critic of a state\n(B, 1)",
}
left = {
    key: picture.box(84, 42 + 84 * i, words, width=164)
    for i, (key, words) in enumerate(families.items())
}
right = {
    key: picture.box(342, 30 + 68 * i, words, "accent" if key == "d" else "", width=190)
    for i, (key, words) in enumerate(roles.items())
}
needs = {
    "DQN": ["q"],
    "RAINBOW": ["p"],
    "DDPG": ["a", "qa"],
    "SAC": ["qa", "d"],
    "A2C": ["d", "v"],
}
for family, needed in needs.items():
    for role in needed:
        tone = "accent" if role == "d" else ""
        picture.arrow(left[family].at(1, 0.5), right[role].at(0, 0.5), tone=tone)
picture

# %% [markdown]
# **Notice** the role in colour, the actor that draws, also called a stochastic actor. Each of the
# other roles takes one line to describe. An actor that draws has to return its action, the
# log-probability and the entropy. It has to judge actions that it is given. And all of this has
# to be consistent. That is where models go wrong, and what most of this chapter is about.
#
# `CONTRACTS` holds the contracts. Each rule has a number from a table of 76 requirements that we
# collected from Machin's page. The numbers that are missing here are not about models. This is
# one of the short contracts.

# %%
from literate_rl.contracts import CONTRACTS

print(CONTRACTS["RAINBOW"])

# %% [markdown]
# The first lines are in Machin's notation. `state_0[batch_size, ...]` is a tensor with a row for
# each state and at least one more dimension. `<...>` means that more results may follow, or more
# arguments if they have a default. In the notation of this book's signatures
# ({doc}`workshop/signatures`), a result `q_value[batch_size, action_num]` is
# `Float[Tensor, "B N"]`.
#
# ## Rules about calling
#
# Now line by line. A rule is a small function, a *check*, that tries a model and yields what it
# finds: what was expected, what came, and a hint. The first line of its docstring is the line
# that the contract prints. The decorator gives the rule its number, and names the rules that must
# hold before this one is tried. The model comes wrapped in a `Probe`, which holds a copy of
# yours; {doc}`workshop/probes` explains how the copy is isolated from the rest of the program.
#
# Arguments are matched by name, and an algorithm passes exactly the states that the environment
# has. `*args` and `**kwargs` are refused, because they do not show which states a model takes.
# Here is one rule about calling; the others are folded.


# %% tags=["export"]
@rule("M39", "copies")
def takes_optional_action(probe: Probe) -> Iterator[Finding]:
    """Takes action, with the default None."""
    given = probe.parameters.get("action")
    if given is None or given.default is not None:
        came = "there is none" if given is None else f"got {given}"
        yield Finding("must take action=None", came)


# %% tags=["export", "hide-input"]
@rule("M28", "")
def copies(probe: Probe) -> Iterator[Finding]:
    """Can be copied, for target networks."""
    if probe.copy_error is not None:
        yield Finding("must be copied by copy.deepcopy", raised(probe.copy_error))


@rule("M09", "copies")
def takes_states(probe: Probe) -> Iterator[Finding]:
    """Takes the states by name; anything else has a default."""
    named = dict(probe.parameters)
    if probe.action:
        named.pop("action", None)
    required = {k for k, p in named.items() if p.default is p.empty}
    vague = open_parameters(named)
    if vague or {*probe.states} - {*named} or required - {*probe.states}:
        wanted = ", ".join(probe.states)
        came = ", ".join(map(str, probe.parameters.values()))
        hint = "write out each argument" if vague else ""
        yield Finding(f"must take the states ({wanted}) by name", f"got ({came})", hint)


@rule("M34", "copies")
def takes_action(probe: Probe) -> Iterator[Finding]:
    """Takes an argument called action."""
    if "action" not in probe.parameters:
        yield Finding("must take an argument called action", "there is none")


@rule("M03", "takes_states", "takes_action", "takes_optional_action")
def runs(probe: Probe) -> Iterator[Finding]:
    """Runs on any number of rows, in training and in evaluation mode."""
    # A batch of one in training mode is left out: batch normalisation refuses it.
    for batch, train in ((5, False), (1, False), (5, True)):
        try:
            probe.call(batch, train=train)
        except Exception as error:
            mode = " in training mode" if train else ""
            yield Finding(f"must run on a batch of {batch}{mode}", raised(error))
            return


def returns_enough(number: int) -> Rule:
    """Return the rule that the first results are tensors."""
    words = "a tensor" if number == 1 else f"a tuple of {number} tensors"

    def check(probe: Probe) -> Iterator[Finding]:
        results = probe.call(5)
        if sum(isinstance(x, Tensor) for x in results[:number]) < number:
            came = ", ".join(type(x).__name__ for x in results)
            yield Finding(f"must return {words}, or more", f"got {came}")

    row = "M06" if number == 1 else "M40"
    return Rule(row, "results", f"returns {words}, or more", check, ("runs",))


# %% [markdown]
# ## Rules about results
#
# A result is described by its line in the contract: name and dimensions. Two rules follow from
# that line. The result must have this shape, with five rows and with one, because a `squeeze`
# does no harm until a batch has a single row. And if the result is meant to be learned, a
# gradient must flow from it to at least one parameter.


# %% tags=["export"]
class Result(NamedTuple):
    """One result of a model.

    Attributes:
        row: Number of the rule about its shape.
        text: Name and dimensions, such as ``q_value[batch_size, action_num]``.
        learns: Number of the rule that it has a gradient; empty if there is none.
    """

    row: str
    text: str
    learns: str = ""

    @property
    def name(self) -> str:
        """The name alone."""
        return self.text.partition("[")[0]

    def shape_rule(self, index: int) -> Rule:
        """Return the rule that the result at this index has its shape."""
        dims = self.text.partition("[")[2].rstrip("]").split(", ")

        def check(probe: Probe) -> Iterator[Finding]:
            for batch in (5, 1):
                got, wanted = (
                    tuple(probe.call(batch)[index].shape),
                    probe.shape(dims, batch),
                )
                if not fits(got, wanted):
                    sizes = ", ".join(str(size or "atoms") for size in wanted)
                    expected = f"{self.name} must have shape ({sizes})"
                    yield Finding(expected, f"got {got}", advice(got, wanted))
                    return

        return Rule(self.row, self.name, f"returns {self.text}", check)

    def gradient_rule(self, index: int) -> Rule:
        """Return the rule that this result can be learned from."""
        check = partial(find_no_gradient, index=index, name=self.name)
        text = f"{self.name} has a gradient with respect to the parameters"
        return Rule(
            self.learns, f"{self.name} learns", text, check, (self.name, "numbers")
        )


# %% tags=["export", "hide-input"]
def find_no_gradient(probe: Probe, index: int, name: str) -> Iterator[Finding]:
    """Yield a finding if no gradient flows from a result to the parameters."""
    expected = f"a gradient must flow from {name} to the parameters"
    result = probe.call(5)[index]
    if not result.requires_grad:
        yield Finding(expected, "none does", "a detach, or no_grad?")
        return
    # The sum over a row of probabilities never changes, so each number gets a weight.
    weight = torch.randn(result.shape, generator=torch.Generator().manual_seed(0))
    loss = (result * weight.to(result)).sum()
    grads = torch.autograd.grad(loss, probe.weights, allow_unused=True)
    largest = [grad.abs().max().item() for grad in grads if grad is not None]
    if not all(map(math.isfinite, largest)):
        yield Finding(expected, "it is not finite")
    elif not any(largest):
        yield Finding(expected, "it is zero")


# %% [markdown]
# Next, the numbers themselves. They must be finite, and **no row may depend on the others**. A
# mean over the wrong dimension, or one `flatten` too many, mixes the rows of a batch and keeps
# every shape. So each row is computed once more, alone. (`luck` is the random seed of a call.)


# %% tags=["export"]
@rule("M15")
def numbers(probe: Probe) -> Iterator[Finding]:
    """Returns finite floating numbers, but for discrete actions."""
    for result in probe.judge():
        if not result.is_floating_point():
            yield Finding("results must be floating numbers", f"got {result.dtype}")
        elif not result.isfinite().all():
            bad = result[~result.isfinite()][0].item()
            yield Finding("results must be finite", f"got {bad}")


@rule("M12", "shapes", "numbers")
def rows_apart(probe: Probe) -> Iterator[Finding]:
    """No row depends on the other rows."""
    action = probe.drawn_or_given(5)
    together, again = probe.judge(action), probe.judge(action, luck=1)
    for i in range(5):
        own = None if action is None else action[i : i + 1]
        alone = probe.judge(own, batch=1, row=i)
        for one, row, other in zip(alone, together, again, strict=True):
            off = (one[0] - row[i]).abs().max().item()
            # A result that is random even now, such as a sampled entropy, is left out.
            if torch.equal(row, other) and not off <= 1e-4 * (1 + row.abs().max()):
                expected = "a row must not depend on the other rows"
                yield Finding(
                    expected, f"alone it differs by {off:.3g}", "which dimension?"
                )
                return


# %% [markdown]
# ## Rules about probabilities, bounds and critics
#
# Rainbow's network returns a distribution over returns for each action. DDPG's actor, if actions
# are discrete, returns one over the actions. The rule checks that each sums to 1, and its hint
# tries to say what came instead: logits, logarithms, or a softmax over the wrong dimension.


# %% tags=["export", "hide-input"]
def sums_to_one(row: str, name: str, text: str) -> Rule:
    """Return the rule that the first result holds probabilities."""

    def check(probe: Probe) -> Iterator[Finding]:
        prob = probe.call(5)[0].detach()
        sums = prob.sum(-1)
        if (prob >= 0).all() and (sums - 1).abs().max() <= 1e-5:
            return
        hint = "softmax over the last dimension"
        if (prob.exp().sum(-1) - 1).abs().max() <= 1e-4:
            hint = "these are log-probabilities: exp"
        elif prob.ndim == 3 and (prob.sum(1) - 1).abs().max() <= 1e-4:
            hint = "dimension 1 sums to 1: softmax over the last dimension"
        expected = f"{name} must be at least 0, and sum to 1 over the last dimension"
        came = (
            f"got {prob.min():.3g} and sums from {sums.min():.3g} to {sums.max():.3g}"
        )
        yield Finding(expected, came, hint)

    return Rule(row, "sums", text, check, (name, "numbers"))


# %% [markdown]
# A continuous action must stay within its bounds, the box of the action space. An untrained
# network returns numbers near zero, so the rule also tries states that are 100 times as large.


# %% tags=["export"]
@rule("M29", "shapes", "numbers")
def in_bounds(probe: Probe) -> Iterator[Finding]:
    """Action lies in its box, however large the states are."""
    space: Any = probe.space
    for scale in (1.0, 100.0):
        action = probe.call(5, scale=scale)[0].detach().cpu().numpy()
        slack = 1e-5 * (1 + np.abs(action))
        outside = (action < space.low - slack) | (action > space.high + slack)
        if outside.any():
            # Report the first dimension of the action that leaves its bounds.
            at = tuple(np.argwhere(outside)[0][1:].tolist())
            column, place = action[(slice(None), *at)], ", ".join(map(str, at))
            low, high = space.low[at], space.high[at]
            expected = f"action[:, {place}] must lie in {low:g} to {high:g}"
            came = f"got {column.min():.3g} to {column.max():.3g}"
            yield Finding(expected, came, "tanh, times the range of each dimension")
            return


# %% [markdown]
# The actor of DDPG or SAC learns *through* its critic: the gradient of the critic's value with
# respect to the action points to a better action. If a critic ignores or detaches the action,
# the critic's loss may still fall, but the actor learns nothing.


# %% tags=["export"]
@rule("M32", "q_value learns")
def leads_through_action(probe: Probe) -> Iterator[Finding]:
    """q_value has a gradient with respect to the action."""
    action = probe.actions(5).requires_grad_()
    value = probe.call(5, action)[0]
    (grad,) = torch.autograd.grad(value.sum(), action, allow_unused=True)
    if grad is None or not grad.abs().max() > 0:
        yield Finding("a gradient must flow from q_value to the action", "none does")


# %% [markdown]
# ## Rules for actors that draw
#
# Such an actor does two things: it draws actions, and it says how likely they are. Do the two
# agree? We cannot look inside. But if they agree, three facts hold, and most mistakes break at
# least one of them.
#
# First, an action that was drawn and is then given back must get **the same log-probability** as
# when it was drawn. It must also be returned unchanged, because the algorithm stores it and has
# it judged again. The third rule below checks that the log-probability depends on the action at
# all.


# %% tags=["export"]
@rule("M46")
def as_it_is(probe: Probe) -> Iterator[Finding]:
    """A given action is returned as it is."""
    given = probe.call(5)[0].detach()
    back = probe.call(5, given.clone(), luck=1)[0]
    if back.shape != given.shape or not torch.equal(back, given):
        yield Finding("a given action must be returned as it is")


@rule("M46", "numbers")
def judged_alike(probe: Probe) -> Iterator[Finding]:
    """A given action has the log-probability that it had when it was drawn."""
    drawn, log_prob, *_ = probe.call(5)
    again = probe.call(5, drawn.detach(), luck=1)[1]
    off = (
        math.inf
        if again.shape != log_prob.shape
        else (again - log_prob).abs().max().item()
    )
    # Undoing a tanh costs some digits.
    if not off <= 2e-3 * (1 + 0.1 * log_prob.abs().max().item()):
        same = "must be the same when it is given"
        expected = f"the log-probability of the sampled action {same}"
        yield Finding(expected, f"differs by {off:.3f}")


@rule("M46", "judged_alike", "action_log_prob")
def tells_apart(probe: Probe) -> Iterator[Finding]:
    """The log-probability depends on the action."""
    (one, log_one, _), (two, log_two, _) = probe.draw(200, 0), probe.draw(200, 1)
    if not torch.equal(one, two) and torch.equal(log_one, log_two):
        yield Finding(
            "the log-probability must depend on the action", "it never changes"
        )


# %% [markdown]
# Second, **the probabilities of all actions sum to 1**,
#
# $$
# \sum_a \pi(a \mid s) = 1 \quad\text{or}\quad \int \pi(a \mid s) \, \mathrm d a = 1 .
# $$ (unit-mass)
#
# For discrete actions this takes one call. For continuous ones, we draw points $a_i$ uniformly
# from the box, whose volume is $v$, and take the mean of $v \, \pi(a_i \mid s)$. This works only
# if all actions lie in the box. Those of a Gaussian do not, so the rule skips it. The rule finds
# a Gaussian whose actions are clamped to the box before they are judged: part of its density lies
# outside. It also finds a missing Jacobian, which we meet in the section on a Gaussian in a box.


# %% tags=["export"]
@rule("M44", "action", "is_an_action", "as_it_is", "tells_apart")
@torch.no_grad()
def has_unit_mass(probe: Probe) -> Iterator[Finding]:
    """The probabilities of all actions sum to 1."""
    expected = "the probabilities of all actions must sum to 1"
    if probe.num_actions is not None:
        every = torch.arange(probe.num_actions).unsqueeze(-1)
        mass = probe.call(len(every), every, row=0)[1].exp().sum().item()
        if not abs(mass - 1) <= 1e-4:
            yield Finding(expected, f"they sum to {mass:.3f}")
        return
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
    if error <= 0.1 and not abs(mass - 1) <= 0.02 + 5 * error:
        hint = "is the Jacobian there? was the action clamped?"
        yield Finding(expected, f"they integrate to {mass:.2f}", hint)


# %% [markdown]
# Third, **the score has mean zero**,
#
# $$
# \mathbb E_{a \sim \pi} \bigl[ \nabla \log \pi(a \mid s) \bigr] = 0 ,
# $$ (score-zero)
#
# which is the derivative of the equation above. ({doc}`policy_gradient` needed it for its
# baseline.) If actions come from one distribution and are judged by another, the mean is not
# zero, and it is a bias of every policy gradient.
#
# We draw 20 groups of 200 actions. Even if the expectation is zero, the mean gradient over all
# groups is not exactly zero. The differences between the groups tell us how long it is by chance,
# its standard error. More than five standard errors is too much.
#
# An untrained network finds all discrete actions about equally likely, so a wrong formula hardly
# shows. Larger states make its probabilities unequal, so the rule tries those too.


# %% tags=["export"]
@rule("M46", "is_an_action", "action_log_prob learns", "as_it_is", "tells_apart")
def scores_cancel(probe: Probe) -> Iterator[Finding]:
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
        if not ratio <= 5:
            yield Finding(expected, f"it is {ratio:.0f} standard errors away", hint)
            return


def excess(terms: Sequence[Tensor], weights: Sequence[Tensor]) -> float:
    """Return how many standard errors the mean gradient of terms is away from 0."""
    grads = [torch.autograd.grad(x, weights, allow_unused=True) for x in terms]
    flat = [torch.cat([x.flatten() for x in g if x is not None]) for g in grads]
    grad = torch.stack(flat).double()
    mean, count = grad.mean(0), len(grad)
    # The squared standard error of the mean, summed over the parameters.
    chance = (grad - mean).square().sum() / (count * (count - 1))
    return float((mean.square().sum() / chance.clamp(min=1e-30)).sqrt())


# %% [markdown]
# Four rules are left. A discrete action is an integer below $N$. The entropy must have a
# gradient, unless it is a constant, as it is for a Gaussian of fixed width. For SAC the drawn
# action must have a gradient too, because SAC's actor learns through the action. In PyTorch
# `rsample()` keeps that gradient and `sample()` cuts it.
#
# The fourth rule is about **SAC with discrete actions**. Here Machin's page contradicts itself:
# it asks for `rsample`, and its example uses a `Categorical`, which has none. But an actor of
# discrete actions can do better than sample. If it returns the log-probabilities of *all*
# actions, the expectation over actions is a sum, and no gradient needs to pass through a sample
# {cite:p}`christodoulou2019`.
#
# So we give discrete SAC a contract of its own: a fourth result, `action_log_probs`, and a critic
# that returns the values of all actions at once. A critic that takes `action`, as on Machin's
# page, is accepted as well. It will be called once for each action.


# %% tags=["export", "hide-input"]
@rule("M47", "action")
def is_an_action(probe: Probe) -> Iterator[Finding]:
    """Action is an integer below action_num, or finite numbers."""
    drawn, count = probe.call(5)[0], probe.num_actions
    if count is None:
        if not drawn.is_floating_point() or not drawn.isfinite().all():
            yield Finding(
                "action must be finite floating numbers", f"got {drawn.dtype}"
            )
    elif drawn.dtype != torch.int64:
        yield Finding("action must be int64", f"got {drawn.dtype}")
    elif not ((drawn >= 0) & (drawn < count)).all():
        came = f"got {drawn.min()} to {drawn.max()}"
        yield Finding(f"action must lie in 0 to {count - 1}", came)


@rule("M45", "distribution_entropy", "numbers")
def entropy_learns(probe: Probe) -> Iterator[Finding]:
    """distribution_entropy has a gradient, unless it is a constant."""
    entropy = probe.call(5)[2]
    if entropy.requires_grad or entropy.std(0).max() > 1e-6:
        yield from find_no_gradient(probe, 2, "distribution_entropy")


@rule("M63", "action", "is_an_action")
def action_learns(probe: Probe) -> Iterator[Finding]:
    """A drawn action has a gradient: rsample(), not sample()."""
    for finding in find_no_gradient(probe, 0, "action"):
        yield finding._replace(hint="rsample(), not sample()")


@rule("M65", "shapes", "is_an_action", "numbers")
def lists_log_probs(probe: Probe) -> Iterator[Finding]:
    """action_log_probs holds the log-probabilities of all actions."""
    drawn, log_prob, _, every, *_ = probe.call(5)
    off = (every.gather(1, drawn) - log_prob).abs().max().item()
    if not off <= 1e-4:
        expected = "action_log_probs must agree with action_log_prob at the action"
        yield Finding(expected, f"differs by {off:.3f}", "log_softmax")


# %% [markdown]
# ## Legal, but harmful
#
# Some models keep their contract and still do harm. They get a warning. The cell below holds six
# such rules. They find
#
# - a model that writes to its arguments;
# - batch normalisation or dropout: the network that learns is not the one that acted;
# - an entropy that is a constant;
# - an entropy that belongs to another distribution;
# - NaN for large states;
# - log-probabilities that stop at −15.9, as those of `Categorical(probs=…)` do: an action that
#   has become unlikely no longer gets a gradient.


# %% tags=["export", "hide-input"]
@warning("M04", "runs")
def keeps_inputs(probe: Probe) -> Iterator[Finding]:
    """Does not write to its arguments."""
    before, given = probe.rows(5), probe.rows(5)
    probe.run(
        given | ({"action": probe.actions(5)} if probe.action == "action" else {})
    )
    tensors = [name for name, x in before.items() if isinstance(x, Tensor)]
    changed = [name for name in tensors if not torch.equal(before[name], given[name])]
    if changed:
        yield Finding(
            "arguments should not be written to", f"{', '.join(changed)} changed"
        )


@warning("M76", "runs")
def same_in_both_modes(probe: Probe) -> Iterator[Finding]:
    """Is the same network in training and in evaluation mode."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    found = {type(x).__name__ for x in probe.model.modules() if isinstance(x, kinds)}
    if found:
        expected = "the network that learns should be the one that acts"
        came = f"{', '.join(sorted(found))} changes with the mode"
        yield Finding(expected, came, "LayerNorm, or none")


@warning("M45", "distribution_entropy", "entropy_learns")
def entropy_varies(probe: Probe) -> Iterator[Finding]:
    """distribution_entropy is no constant."""
    if not probe.call(5)[2].requires_grad:
        yield Finding("distribution_entropy should have a gradient", "it is a constant")


@warning("M45", "distribution_entropy", "scores_cancel", "has_unit_mass")
def entropy_fits(probe: Probe) -> Iterator[Finding]:
    """distribution_entropy is that of the actions."""
    draws = [probe.draw(500, luck) for luck in range(8)]
    surprise = -torch.cat([log_prob for _, log_prob, _ in draws]).detach()
    told = torch.cat([entropy for _, _, entropy in draws]).detach()
    gap, difference = (told - surprise).mean().item(), (told - surprise).std().item()
    if not abs(gap) <= 0.1 + 5 * difference / math.sqrt(len(told)):
        expected = "distribution_entropy should be the mean of minus log-probabilities"
        yield Finding(
            expected, f"differs by {gap:+.2f} nats", "of the actions before the squash?"
        )


@warning("M50", "judged_alike")
def survives_large_states(probe: Probe) -> Iterator[Finding]:
    """Survives states that are 1,000 times as large."""
    expected = "states 1,000 times as large should do no harm"
    hint = "a floor for the standard deviation"
    try:
        log_prob = probe.call(5, scale=1000.0)[1]
    except Exception as error:
        yield Finding(expected, raised(error)[:80], hint)
        return
    if not log_prob.isfinite().all():
        yield Finding(expected, "the log-probability is not finite", hint)


@warning("M49", "action", "as_it_is", "tells_apart", "survives_large_states")
def never_cut_off(probe: Probe) -> Iterator[Finding]:
    """Log-probabilities are not cut off."""
    cut, least = math.log(torch.finfo(torch.float32).eps), 0.0
    for number in range(probe.num_actions or 0):
        every = torch.full((5, 1), number)
        least = min(least, probe.call(5, every, scale=1000.0)[1].min().item())
    if abs(least - cut) < 1e-3:
        expected = "log-probabilities should not be cut off"
        yield Finding(expected, f"they stop at {cut:.1f}", "Categorical(logits=…)")


# %% [markdown]
# ## Roles
#
# A role says what one network does: what it takes besides the states, what it returns, and which
# rules hold for this role in particular.


# %% tags=["export", "hide-input"]
class Role(NamedTuple):
    """What one network of a contract does.

    Attributes:
        action: ``""``, ``"action"`` or ``"action=None"``: what it takes besides states.
        results: What it returns, in order; more may follow.
        own: The rules beyond those that all roles have.
    """

    action: str
    results: tuple[Result, ...]
    own: tuple[Rule, ...] = ()

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Every rule of the role, in the order in which they are tried."""
        takes = {
            "": (),
            "action": (takes_action,),
            "action=None": (takes_optional_action,),
        }
        shapes = [x.shape_rule(i) for i, x in enumerate(self.results)]
        learns = [x.gradient_rule(i) for i, x in enumerate(self.results) if x.learns]
        calling = (
            copies,
            takes_states,
            *takes[self.action],
            runs,
            returns_enough(len(shapes)),
        )
        judging = (
            numbers,
            *learns,
            rows_apart,
            *self.own,
            keeps_inputs,
            same_in_both_modes,
        )
        # A rule that comes after "shapes" comes after the shape of every result.
        every = {"shapes": tuple(x.name for x in self.results)}
        return tuple(
            one._replace(after=sum((every.get(x, (x,)) for x in one.after), ()))
            for one in (*calling, *shapes, *judging)
        )

    def text(self, title: str) -> str:
        """Return the role as its contract prints it."""
        return write_out(title, self.action, [x.text for x in self.results], self.rules)


# %% [markdown]
# Here are the roles; actors that draw come last. Two of the six have variants. DDPG's actor
# returns an action or, if actions are discrete, their probabilities. An actor that draws has one
# more rule for SAC, which differs between continuous and discrete actions.


# %% tags=["export"]
Q_VALUES = Role("", (Result("M14", "q_value[batch_size, action_num]", "M15"),))
DISTRIBUTION = Role(
    "",
    (Result("M22", "q_value_dist[batch_size, action_num, atom_num]", "M27"),),
    (sums_to_one("M25", "q_value_dist", "sum(q_value_dist[i, j, :]) == 1"),),
)
STATE_VALUE = Role("", (Result("M48", "value[batch_size, 1]", "M48"),))
ACTION_VALUE = Role(
    "action", (Result("M32", "q_value[batch_size, 1]", "M32"),), (leads_through_action,)
)
ACTION = Role("", (Result("M29", "action[batch_size, ...]", "M29"),), (in_bounds,))
PROBABILITIES = Role(
    "",
    (Result("M30", "action[batch_size, action_num]", "M30"),),
    (sums_to_one("M31", "action", "sum(action[i, :]) == 1"),),
)

# What an actor that draws returns, and the rules for it.
DRAWN = (
    Result("M47", "action[batch_size, ...]"),
    Result("M41", "action_log_prob[batch_size, 1]", "M44"),
    Result("M42", "distribution_entropy[batch_size, 1]"),
)
JUDGED = (
    *(is_an_action, as_it_is, judged_alike, tells_apart, has_unit_mass, scores_cancel),
    *(entropy_learns, entropy_varies, entropy_fits),
    survives_large_states,
)
DRAWING = Role("action=None", DRAWN, (*JUDGED, never_cut_off))
REPARAMETRISED = Role("action=None", DRAWN, (*JUDGED, action_learns))
LISTING = Role(
    "action=None",
    (*DRAWN, Result("M65", "action_log_probs[batch_size, action_num]", "M65")),
    (*JUDGED, never_cut_off, lists_log_probs),
)


# %% [markdown]
# ## Contracts
#
# A contract says, for continuous and for discrete actions, which networks a family has and in
# which roles. Where two roles are listed, a network may play either. The fifteen families, with
# dueling networks counted as one, need only five entries.


# %% tags=["export", "hide-input"]
class Contract(NamedTuple):
    """What a family of algorithms demands of its networks.

    Attributes:
        family: Its name.
        continuous: For continuous actions the roles that each network may play, by the
            name of the network; empty if the family has no continuous actions.
        discrete: The same for discrete actions.
    """

    family: str
    continuous: dict[str, tuple[Role, ...]]
    discrete: dict[str, tuple[Role, ...]]

    def __str__(self) -> str:
        return "\n\n".join([self.family, *roles_in_words(self)])


Parts = dict[str, tuple[Role, ...]]


def roles_in_words(contract: Contract) -> list[str]:
    """Return the text of each role; one for a single kind of action says so."""
    kinds: dict[str, list[str]] = {}
    for kind in ("continuous", "discrete"):
        for part, roles in getattr(contract, kind).items():
            title = "QNet" if part == "qnet" else part.capitalize()
            for role in roles:
                kinds.setdefault(role.text(title), []).append(kind)
    if not contract.continuous:
        return list(kinds)
    return [f"# {k[0]} actions\n" * (len(k) == 1) + text for text, k in kinds.items()]


def contracts(names: str, continuous: Parts, discrete: Parts) -> dict[str, Contract]:
    """Give several families the same contract."""
    return {name: Contract(name, continuous, discrete) for name in names.split()}


# %% tags=["export"]
# The critic that an actor learns through, and the two networks of the policy gradient.
THROUGH: Parts = {"critic": (ACTION_VALUE,)}
BESIDE: Parts = {"actor": (DRAWING,), "critic": (STATE_VALUE,)}
DDPG_LIKE = "DDPG DDPGPer DDPGApex HDDPG TD3"
CONTRACTS: dict[str, Contract] = {
    **contracts("DQN DQNPer DQNApex Dueling", {}, {"qnet": (Q_VALUES,)}),
    **contracts("RAINBOW", {}, {"qnet": (DISTRIBUTION,)}),
    **contracts(
        DDPG_LIKE,
        {"actor": (ACTION,), **THROUGH},
        {"actor": (PROBABILITIES,), **THROUGH},
    ),
    **contracts("A2C PPO A3C IMPALA", BESIDE, BESIDE),
    **contracts(
        "SAC",
        {"actor": (REPARAMETRISED,), **THROUGH},
        {"actor": (LISTING,), "critic": (Q_VALUES, ACTION_VALUE)},
    ),
}

# %% [markdown]
# ## States by name
#
# In this book an observation is one flat vector, but a model may want `position` and `velocity`.
# `state_spec` reads the names of the states from an observation space, and the `StateSpec` that
# it returns splits a vector into them. Leading dimensions, such as $(T, B)$, are kept.


# %% tags=["export", "hide-input"]
class StateSpec(NamedTuple):
    """What the states of an environment are called, and how large they are.

    Attributes:
        names: A name for each state.
        shapes: The shape of each.
        dtypes: The dtype that a model gets, None for that of the observations.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype | None, ...]

    def named_for(self, model: Any) -> StateSpec:
        """Give a single state the name of the model's only argument."""
        required = [name for name in required_parameters(model) if name != "action"]
        lone = len(self.names) == len(required) == 1
        return self._replace(names=tuple(required)) if lone else self

    def rows(self, obs: Tensor) -> tuple[int, ...]:
        """Return the dimensions in front of an observation, such as (T, B)."""
        # A single picture may come unflattened; everything else is a flat vector.
        first = self.shapes[0]
        whole = len(self.shapes) == 1 and obs.shape[-len(first) :] == first
        return tuple(obs.shape[: -len(first) if whole else -1])

    def split(self, obs: Tensor) -> dict[str, Tensor]:
        """Split observations into their states; copy only where the dtype changes."""
        lead, sizes = self.rows(obs), [math.prod(shape) for shape in self.shapes]
        pieces = obs.reshape(*lead, sum(sizes)).split(sizes, -1)
        columns = zip(self.names, pieces, self.shapes, self.dtypes, strict=True)
        return {
            name: piece.reshape(*lead, *shape).to(dtype or piece.dtype)
            for name, piece, shape, dtype in columns
        }


@checked
def state_spec(observation_space: spaces.Space[Any]) -> StateSpec:
    """Name the states of an observation space.

    A ``Dict`` has a state for each key, a ``Tuple`` has ``state_0``, ``state_1`` and so
    on, and anything else is one state called ``state``. Integers, such as the bytes of
    a picture, stay integers. A space that is not a ``Box`` is flattened by Gymnasium.
    """
    parts: dict[str, spaces.Space[Any]] = {"state": observation_space}
    if isinstance(observation_space, spaces.Dict):
        parts = dict(observation_space.spaces)
    elif isinstance(observation_space, spaces.Tuple):
        parts = {f"state_{i}": x for i, x in enumerate(observation_space.spaces)}
    shapes, dtypes = [], []
    for name, space in parts.items():
        if not name.isidentifier():
            raise ValueError(f"a state needs a name for an argument, got {name!r}")
        box = isinstance(space, spaces.Box) and bool(space.shape)
        shapes.append(tuple(space.shape or ()) if box else (spaces.flatdim(space),))
        whole = box and np.issubdtype(space.dtype, np.integer)
        dtypes.append(
            torch.as_tensor(np.zeros(0, space.dtype)).dtype if whole else None
        )
    return StateSpec(tuple(parts), tuple(shapes), tuple(dtypes))


# %% [markdown]
# `ByName` wraps a model and passes it the states by name; the learners of the next chapters use
# it for your model. The example after it calls a model of two states on 8 steps of 4
# environments.


# %% tags=["export", "hide-input"]
class ByName(nn.Module):
    """A user's model, called with its states by name.

    Args:
        model: The model, wrapped or not.
        spec: What the states are called. A single state takes the name of the
            model's only argument.
    """

    def __init__(self, model: Any, spec: StateSpec) -> None:
        super().__init__()
        unwrapped(model)  # refuses anything that is not a module
        self.spec = spec.named_for(model)
        self.fixed: dict[str, Any] = {}
        if isinstance(model, partial):
            model, self.fixed = model.func, dict(model.keywords)
        self.model = model

    def forward(self, obs: Tensor, **given: Any) -> tuple[Any, ...]:
        """Return the results of the model, always as a tuple.

        Args:
            obs: Observations ``(*B, size)``.
            given: Further arguments, such as ``action``, with the same ``*B`` in front.
        """
        # All leading dimensions become one batch; the results get them back.
        lead = self.spec.rows(obs)
        batch, device = math.prod(lead), device_of(self.model)

        def flat(x: Any) -> Any:
            tensor = isinstance(x, Tensor)
            return x.to(device).reshape(batch, *x.shape[len(lead) :]) if tensor else x

        def unflat(x: Any) -> Any:
            rows = isinstance(x, Tensor) and x.ndim > 0 and len(x) == batch
            return x.reshape(*lead, *x.shape[1:]) if rows else x

        arguments = self.spec.split(flat(obs)) | {k: flat(x) for k, x in given.items()}
        return tuple(map(unflat, results_of(self.model(**arguments, **self.fixed))))


# %%
class Pushing(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 2)

    def forward(self, position, velocity):
        return self.net(torch.cat([position, velocity], 1))


parts = {"position": spaces.Box(-1, 1, (1,)), "velocity": spaces.Box(-1, 1, (2,))}
spec = state_spec(spaces.Dict(parts))
(q_value,) = ByName(Pushing(), spec)(torch.zeros(8, 4, 3))
print(spec.names, "→", tuple(q_value.shape))

# %% tags=["claims"]
assert spec.names == ("position", "velocity")
assert q_value.shape == (8, 4, 2), "the dimensions in front stay"

# %% [markdown]
# ## The check
#
# Now we can put the check together. `check_model` takes a few steps in the environment to collect
# states, finds the role of each model, tries the role's rules, and raises one error that lists
# all that are broken. If your program transforms what an actor returns before using it, pass the
# transformation as `action_transform`, and the two are checked together. The check is optional:
# nothing in this book depends on it.


# %% tags=["export", "hide-input"]
class Broken(NamedTuple):
    """A rule that a model breaks.

    Attributes:
        who: The model, such as ``actor``.
        rule: The rule.
        finding: What was found.
    """

    who: str
    rule: Rule
    finding: Finding

    def __str__(self) -> str:
        return f"{self.who}: {self.finding}"


class ContractError(ValueError):
    """Models break their contract.

    Attributes:
        family: The family whose contract it is.
        broken: Every rule that is broken.
    """

    def __init__(self, family: str, broken: Sequence[Broken]) -> None:
        self.family, self.broken = family, tuple(broken)
        count = f"{len(broken)} broken rule{'s' * (len(broken) > 1)}"
        super().__init__("\n  ".join([f"{family}: {count}", *map(str, broken)]))


# %% tags=["export"]
def check_model(
    family: str,
    *,
    actor: Any = None,
    critic: Any = None,
    qnet: Any = None,
    env: Any = None,
    states: Mapping[str, Any] | None = None,
    action_space: spaces.Space[Any] | None = None,
    action_transform: Callable[..., Tensor] | None = None,
) -> None:
    """Try models against the contract of a family; they stay as they were.

    Args:
        family: A key of ``CONTRACTS``, in capitals or not.
        actor: The actor, for families that have one.
        critic: The critic, or a sequence of several.
        qnet: The Q network.
        env: An id, or a function that makes an environment, to take states from.
        states: Example states by name, if there is no ``env``: tensors with
            a row for each state. A value that is not a tensor is passed on unchanged.
        action_space: The action space, needed with ``states``.
        action_transform: Turns the first result of an actor that returns an action, and
            its states, into the action.

    Raises:
        ContractError: With every rule that is broken. A warning is a ``UserWarning``.
    """
    contract = find_contract(family)
    if (env is None) == (states is None or action_space is None):
        raise ValueError("check_model needs either env, or states and action_space")
    if env is not None:
        spec, action_space, obs = look_around(env)
    space: Any = action_space
    roles = roles_for(contract, space)
    given = {"actor": actor, "critic": critic, "qnet": qnet}
    models = {part: model for part, model in given.items() if model is not None}
    if not models or not models.keys() <= roles.keys():
        came = " and ".join(models) or "none"
        raise ValueError(f"{contract.family} has {' and '.join(roles)}, got {came}")
    if action_transform is not None and roles.get("actor") != (ACTION,):
        raise ValueError(
            "action_transform is for actors that return a continuous action"
        )

    broken = []
    for part, who, model in one_by_one(models):
        # A single state takes the name that the model has for it.
        named = states if env is None else spec.named_for(model).split(obs)
        role = pick_role(roles[part], model)
        transform = action_transform if part == "actor" else None
        probe = Probe(model, named or {}, space, role.action, transform)
        broken += [Broken(who, *found) for found in try_rules(probe, role.rules)]

    for item in broken:
        if item.rule.harmful:
            warnings.warn(f"{contract.family}: {item}", stacklevel=2)
    if illegal := [item for item in broken if not item.rule.harmful]:
        raise ContractError(contract.family, illegal)


# %% [markdown]
# The small steps of this function are below, for those who want to see them.


# %% tags=["export", "hide-input"]
def find_contract(family: str) -> Contract:
    """Return a contract by the name of the family, in capitals or not."""
    for name, contract in CONTRACTS.items():
        if name.lower() == str(family).lower():
            return contract
    raise ValueError(f"family must be one of {', '.join(CONTRACTS)}, got {family!r}")


def look_around(env: Any) -> tuple[StateSpec, spaces.Space[Any], Tensor]:
    """Return the states' names, the action space and some observations."""
    with randomness_kept():
        made, seen = watch(env)
    # Where a wrapper has flattened the observations, the names are one level down.
    inner = made.env if isinstance(made, FlattenObservation) else made
    space = inner.observation_space
    if inner is made:
        seen = [np.asarray(spaces.flatten(space, x)) for x in seen]
    made.close()
    obs = torch.as_tensor(np.stack(seen), dtype=torch.float32)
    return state_spec(space), made.action_space, obs


def roles_for(contract: Contract, space: Any) -> Parts:
    """Return the roles that a contract has for an action space."""
    if not isinstance(space, spaces.Discrete | spaces.Box):
        raise ValueError(f"the action space must be Discrete or a Box, got {space}")
    discrete = isinstance(space, spaces.Discrete)
    roles = contract.discrete if discrete else contract.continuous
    if not roles:
        raise ValueError(f"{contract.family} needs discrete actions, got {space}")
    return roles


def one_by_one(models: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield part, name and model; several critics are numbered."""
    for part, given in models.items():
        several = isinstance(given, list | tuple | nn.ModuleList)
        for number, model in enumerate(given if several else [given], 1):
            yield part, f"{part} {number}" if several else part, model


def pick_role(roles: Sequence[Role], model: Any) -> Role:
    """Return the role that a model seems to play."""
    takes_one = "action" in required_parameters(model)
    fitting = [role for role in roles if (role.action == "action") == takes_one]
    return (fitting or list(roles))[0]


# %% [markdown]
# ## A Gaussian in a box
#
# The hardest model to get right is an actor whose continuous actions stay in a box. It draws
# $u_j = \mu_j + \sigma_j \eta_j$, where $\eta_j$ is standard normal noise, and **squashes** it
# {cite:p}`haarnoja2018`. With $\bar a$ the middle of the box and $h$ half of its width,
#
# $$
# a_j = \bar a_j + h_j \tanh u_j .
# $$ (def-squash)
#
# The squash pushes the actions together, so it changes their density. Move the sliders. The bars
# are 20,000 actions in a box from −1 to 1. The solid curve is their density as it should be, the
# dashed one is the density of $u$ at the same actions.

# %% tags=["hide-input"]
from literate_rl.contracts import squashed_log_prob  # defined below
from literate_rl.workshop.pictures import Axis, Mark, dial, plot

eta = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
edges = torch.linspace(-1, 1, 26)
middles = ((edges[1:] + edges[:-1]) / 2).tolist()
points = torch.linspace(-0.995, 0.995, 200)
sigmas, means = [0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0], [0.0, 0.5, 1.0]


def densities(sigma, mean):
    """Return shares of actions, and both densities at points of the box."""
    u = torch.atanh(points).unsqueeze(-1)
    mu, log_sigma = torch.full_like(u, mean), torch.full_like(u, math.log(sigma))
    right = squashed_log_prob(u, mu, log_sigma, torch.ones(1)).exp()
    wrong = torch.distributions.Normal(mean, sigma).log_prob(u).exp().squeeze(-1)
    shares = torch.histc((mean + sigma * eta).tanh(), 25, -1, 1) / len(eta)
    return shares * 25 / 2, right, wrong


def areas(sigma, mean):
    """Return the areas below both densities, from points that come close to the edges."""
    u = torch.linspace(-16, 16, 4001, dtype=torch.float64).unsqueeze(-1)
    mu, log_sigma = torch.full_like(u, mean), torch.full_like(u, math.log(sigma))
    right = squashed_log_prob(u, mu, log_sigma, torch.ones(1).double()).exp()
    wrong = torch.distributions.Normal(mu, sigma).log_prob(u).exp().squeeze(-1)
    action = u.tanh().squeeze(-1)
    return [torch.trapezoid(density, action).item() for density in (right, wrong)]


def frame(sigma, mean):
    bars, right, wrong = densities(sigma, mean)
    picture = plot(
        "Actions, and two densities",
        "Bars of drawn actions. The density with the Jacobian follows them; the one without "
        "it lies below or above.",
        Axis("action", -1, 1, ticks=(-1, 0, 1)),
        Axis("density", 0, 3, ticks=(0, 1, 2, 3)),
        Mark("bars", middles, bars.clamp(max=3).tolist(), "faint"),
        Mark("line thick", points.tolist(), right.clamp(max=3).tolist(), "accent"),
        Mark("line dashed", points.tolist(), wrong.clamp(max=3).tolist(), "second"),
        width=460,
    )
    with_it, without = areas(sigma, mean)
    return [picture], f"area with the Jacobian {with_it:.2f}, without it {without:.2f}"


dial("A density and its squash", frame, {"σ": sigmas, "μ": means}, start=(0.7, 0.0))

# %% [markdown]
# **Notice** that the area below the dashed curve is never 1, so it is not a density of actions at
# all. With μ = 0, the wider the policy, the smaller the area. What is missing is how much the
# squash stretches or shrinks at each point: its derivative, $h_j (1 - \tanh^2 u_j)$. For a whole
# vector it is the determinant of the *Jacobian*, which is the product of these derivatives,
# because each number is squashed on its own. The density is divided by it. In logarithms
#
# $$
# \log \pi(a \mid s) = \sum_j \Bigl[ \log \mathcal N(u_j;\, \mu_j, \sigma_j^2)
#     - \log h_j - \log (1 - \tanh^2 u_j) \Bigr] .
# $$ (squashed-density)
#
# In this form the last term is infinite as soon as $\tanh u$ rounds to 1, which in float32
# happens for $u$ above about 9. Many programs add $10^{-6}$ inside the logarithm. Then the
# logarithm stops at −13.8, however large $u$ is, and its gradient there is wrong. But
# $1 - \tanh^2 u = 4 / (e^u + e^{-u})^2$, and so
#
# $$
# \log (1 - \tanh^2 u) = 2 \, \bigl( \log 2 - u - \log (1 + e^{-2u}) \bigr) ,
# $$ (stable-jacobian)
#
# which is exact for every $u$. PyTorch calls $\log(1 + e^x)$ `softplus`.

# %% tags=["claims"]
for mean in means:
    right, wrong = np.array([areas(sigma, mean) for sigma in sigmas]).T
    assert abs(right - 1).max() < 0.01, "with the Jacobian the area is 1"
    assert wrong.max() < 0.97, "without it never"
assert np.all(np.diff([areas(sigma, 0.0)[1] for sigma in sigmas]) < 0), "the smaller"
assert torch.tensor(9.1).tanh() == 1 > torch.tensor(8.5).tanh()


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
    distance = (u - mu) * (-log_sigma).exp()
    gaussian = -(0.5 * distance.square() + log_sigma + 0.5 * math.log(2 * math.pi))
    # The logarithm of the squash's derivative: {eq}`stable-jacobian` plus $\log h$.
    jacobian = 2 * (math.log(2) - u - softplus(-2 * u)) + half_width.log()
    # The density of the whole action is a product, its logarithm a sum,
    # {eq}`squashed-density`.
    return (gaussian - jacobian).sum(-1)


# %% [markdown]
# The actor that uses it has two more pitfalls. The first is a *given* action, which must be
# turned back into $u$. (For an action that the actor has just drawn, $u$ is known.) Near the
# edges $\operatorname{artanh}$, the inverse of $\tanh$, magnifies every rounding error. So it is
# computed in float64. Only the two endpoints, where it would be infinite, are moved inwards, by
# one step of float32.
#
# The second is the entropy: no formula is known for that of a squashed Gaussian. That of the
# Gaussian before the squash is often returned instead. It grows without limit as $\sigma$ grows,
# while the true one falls once $\sigma$ is large, so an entropy bonus on it drives the actions to
# the edges of the box. We use minus the log-probability of a fresh sample, which has the right
# mean and the right gradient.


# %% tags=["export"]
class SquashedGaussianActor(nn.Module):
    """Draws continuous actions inside their box: for SAC, and for A2C and PPO.

    Args:
        state_dim: Numbers in a state.
        low: Lower bounds of the actions.
        high: Upper bounds.
        hidden: Width of the hidden layers.
    """

    def __init__(self, state_dim: int, low: Any, high: Any, hidden: int = 64) -> None:
        super().__init__()
        self.box = Stretch(low, high)
        self.net = layers(state_dim, hidden, 2 * len(self.box.middle))

    def forward(
        self, state: Tensor, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions, log-densities and entropies."""
        mu, log_sigma = self.net(state).chunk(2, -1)
        # Keep the standard deviation away from zero and from absurdly large numbers.
        log_sigma = log_sigma.clamp(-5.0, 2.0)
        describe = mu, log_sigma, self.box.half_width

        # Draw, with a gradient through the draw: this is what `rsample` does.
        fresh = mu + log_sigma.exp() * torch.randn_like(mu)
        entropy = -squashed_log_prob(fresh, *describe)

        # Judge what was drawn, or what was given.
        u = fresh if action is None else self.box.undo(action)
        log_prob = squashed_log_prob(u, *describe)
        action = self.box(fresh) if action is None else action
        return action, log_prob.unsqueeze(-1), entropy.unsqueeze(-1)

    def mode(self, state: Tensor) -> Tensor:
        """Return the actions without noise."""
        best: Tensor = self.box(self.net(state).chunk(2, -1)[0])
        return best


# %% tags=["export", "hide-input"]
class Stretch(nn.Module):
    """The squash to a box, and back.

    Args:
        low: Lower bounds, one for each number of an action.
        high: Upper bounds.
    """

    middle: Tensor
    half_width: Tensor

    def __init__(self, low: Any, high: Any) -> None:
        super().__init__()
        first, last = (torch.as_tensor(x, dtype=torch.float32) for x in (low, high))
        self.register_buffer("middle", (first + last) / 2)
        self.register_buffer("half_width", (last - first) / 2)

    def forward(self, u: Tensor) -> Tensor:
        """Return the actions, {eq}`def-squash`."""
        return self.middle + self.half_width * u.tanh()

    def undo(self, action: Tensor) -> Tensor:
        """Return u, as precisely as the digits of the action allow."""
        x = (action.double() - self.middle) / self.half_width
        edge = 1 - torch.finfo(action.dtype).eps / 2
        x = x.clamp(-edge, edge)
        return (0.5 * (x.log1p() - (-x).log1p())).to(action)


# %% [markdown]
# The other roles hold no surprises. Here is one model for each, small enough to copy.


# %% tags=["export", "hide-input"]
def layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Build two hidden layers with ReLU."""
    first, second = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden)
    return nn.Sequential(
        first, nn.ReLU(), second, nn.ReLU(), nn.Linear(hidden, outputs)
    )


class QNetwork(nn.Module):
    """Returns a Q value for each action: for DQN and its relatives."""

    def __init__(self, state_dim: int, action_num: int, hidden: int = 64) -> None:
        super().__init__()
        self.net = layers(state_dim, hidden, action_num)

    def forward(self, state: Tensor) -> Tensor:
        """Return Q values."""
        q_value: Tensor = self.net(state)
        return q_value


class DuelingQNetwork(nn.Module):
    """Returns Q values: the value of the state plus an advantage for each action."""

    def __init__(self, state_dim: int, action_num: int, hidden: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(layers(state_dim, hidden, hidden), nn.ReLU())
        self.value, self.adv = nn.Linear(hidden, 1), nn.Linear(hidden, action_num)

    def forward(self, state: Tensor) -> Tensor:
        """Return Q values, whose mean over the actions is the value of the state."""
        features = self.body(state)
        value, adv = self.value(features), self.adv(features)
        q_value: Tensor = value + adv - adv.mean(-1, keepdim=True)
        return q_value


class CategoricalQNetwork(nn.Module):
    """Returns a distribution over returns for each action: for Rainbow."""

    def __init__(
        self, state_dim: int, action_num: int, atom_num: int = 51, hidden: int = 64
    ) -> None:
        super().__init__()
        self.sizes = (action_num, atom_num)
        self.net = layers(state_dim, hidden, action_num * atom_num)

    def forward(self, state: Tensor) -> Tensor:
        """Return the probabilities of the atoms."""
        prob: Tensor = self.net(state).unflatten(-1, self.sizes).softmax(-1)
        return prob


class DeterministicActor(nn.Module):
    """Returns a continuous action inside its box: for DDPG and its relatives."""

    def __init__(self, state_dim: int, low: Any, high: Any, hidden: int = 64) -> None:
        super().__init__()
        self.box = Stretch(low, high)
        self.net = layers(state_dim, hidden, len(self.box.middle))

    def forward(self, state: Tensor) -> Tensor:
        """Return actions."""
        action: Tensor = self.box(self.net(state))
        return action


class ProbabilityActor(nn.Module):
    """Returns the probabilities of discrete actions: for DDPG and its relatives."""

    def __init__(self, state_dim: int, action_num: int, hidden: int = 64) -> None:
        super().__init__()
        self.net = layers(state_dim, hidden, action_num)

    def forward(self, state: Tensor) -> Tensor:
        """Return probabilities."""
        prob: Tensor = self.net(state).softmax(-1)
        return prob


class CategoricalActor(nn.Module):
    """Draws discrete actions: for A2C, PPO, A3C, IMPALA and SAC."""

    def __init__(self, state_dim: int, action_num: int, hidden: int = 64) -> None:
        super().__init__()
        self.net = layers(state_dim, hidden, action_num)

    def forward(
        self, state: Tensor, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return actions, log-probabilities, entropies, and all log-probabilities."""
        log_probs = self.net(state).log_softmax(-1)
        if action is None:
            action = torch.multinomial(log_probs.exp(), 1)
        entropy = -(log_probs.exp() * log_probs).sum(-1, keepdim=True)
        return action, log_probs.gather(-1, action), entropy, log_probs

    def mode(self, state: Tensor) -> Tensor:
        """Return the most likely actions."""
        best: Tensor = self.net(state).argmax(-1, keepdim=True)
        return best


class StateValue(nn.Module):
    """Returns the value of a state: a critic for A2C, PPO, A3C and IMPALA."""

    def __init__(self, state_dim: int, hidden: int = 64) -> None:
        super().__init__()
        self.net = layers(state_dim, hidden, 1)

    def forward(self, state: Tensor) -> Tensor:
        """Return values."""
        value: Tensor = self.net(state)
        return value


class ActionValue(nn.Module):
    """Returns the value of an action in a state: a critic for DDPG, TD3 and SAC."""

    def __init__(self, state_dim: int, action_dim: int, hidden: int = 64) -> None:
        super().__init__()
        self.net = layers(state_dim + action_dim, hidden, 1)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """Return Q values."""
        q_value: Tensor = self.net(torch.cat([state, action], -1))
        return q_value


# %%
pole, pendulum = "CartPole-v1", "Pendulum-v1"
push, critics = ([-2.0], [2.0]), [ActionValue(3, 1), ActionValue(3, 1)]
check_model("DQN", qnet=QNetwork(4, 2), env=pole)
check_model("Dueling", qnet=DuelingQNetwork(4, 2), env=pole)
check_model("RAINBOW", qnet=CategoricalQNetwork(4, 2), env=pole)
check_model("TD3", actor=DeterministicActor(3, *push), critic=critics, env=pendulum)
check_model("PPO", actor=CategoricalActor(4, 2), critic=StateValue(4), env=pole)
check_model("SAC", actor=SquashedGaussianActor(3, *push), critic=critics, env=pendulum)
check_model("SAC", actor=CategoricalActor(4, 2), critic=QNetwork(4, 2), env=pole)
print("seven checks, no complaint")

# %% [markdown]
# ## Twelve examples
#
# Machin's page has twelve example classes. We run the checker on each of them, word for word as
# [an older
# edition](https://github.com/iffiX/machin/blob/32a8b936d9d52d060c71f54a9e272ea529efcfa8/docs/source/advance/algorithm_model_requirements.rst)
# prints them. The page leaves out the imports, which we supply. ([Today's
# edition](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/docs/source/advance/algorithm_model_requirements.rst)
# sums the entropy, allows log-probabilities of shape $(B,)$, and has dropped the discrete actor
# of SAC.)

# %% tags=["hide-input"]
import re
import textwrap
import warnings

from torch.distributions import Normal
from torch.nn.functional import softplus

MACHIN = """
### DQN QNet
class QNet(nn.Module):
    def __init__(self, state_dim, action_num):
        super(QNet, self).__init__()

        self.fc1 = nn.Linear(state_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, action_num)

    def forward(self, state, state2):
        state = t.cat([state, state2], dim=1)
        a = t.relu(self.fc1(state))
        a = t.relu(self.fc2(a))
        return self.fc3(a)

### dueling QNet
class QNet(nn.Module):
    def __init__(self, state_dim, action_num):
        super(QNet, self).__init__()
        self.action_num = action_num
        self.fc1 = nn.Linear(state_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc_adv = nn.Linear(16, action_num)
        self.fc_val = nn.Linear(16, 1)

    def forward(self, some_state):
        a = t.relu(self.fc1(some_state))
        a = t.relu(self.fc2(a))
        batch_size = a.shape[0]
        adv = self.fc_adv(a)
        val = self.fc_val(a).expand(batch_size, self.action_num)
        return val + adv - adv.mean(1, keepdim=True)

### RAINBOW QNet
class QNet(nn.Module):
    def __init__(self, state_dim, action_num, atom_num=10):
        super(QNet, self).__init__()

        self.fc1 = nn.Linear(state_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, action_num * atom_num)
        self.action_num = action_num
        self.atom_num = atom_num

    def forward(self, state, state2):
        state = t.cat([state, state2], dim=1)
        a = t.relu(self.fc1(state))
        a = t.relu(self.fc2(a))
        return t.softmax(self.fc3(a)
                         .view(-1, self.action_num, self.atom_num),
                         dim=-1)

### DDPG Actor
class Actor(nn.Module):
def __init__(self, state_dim, action_dim, action_range):
    super(Actor, self).__init__()

    self.fc1 = nn.Linear(state_dim, 16)
    self.fc2 = nn.Linear(16, 16)
    self.fc3 = nn.Linear(16, action_dim)
    self.action_range = action_range

def forward(self, state):
    a = t.relu(self.fc1(state))
    a = t.relu(self.fc2(a))
    a = t.tanh(self.fc3(a)) * self.action_range
    return a

### DDPG ActorDiscrete
class ActorDiscrete(nn.Module):
    def __init__(self, state_dim, action_dim):
        # action_dim means action_num here
        super(ActorDiscrete, self).__init__()

        self.fc1 = nn.Linear(state_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, action_dim)

    def forward(self, state):
        a = t.relu(self.fc1(state))
        a = t.relu(self.fc2(a))
        a = t.softmax(self.fc3(a), dim=1)
        return a

### DDPG Critic
class Critic(nn.Module):
    def __init__(self, state_dim, action_dim):
        super(Critic, self).__init__()

        self.fc1 = nn.Linear(state_dim + action_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, 1)

    def forward(self, state, action):
        state_action = t.cat([state, action], 1)
        q = t.relu(self.fc1(state_action))
        q = t.relu(self.fc2(q))
        q = self.fc3(q)
        return q

### A2C Actor
class Actor(nn.Module):
    def __init__(self, state_dim, action_num):
        super(Actor, self).__init__()

        self.fc1 = nn.Linear(state_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, action_num)

    def forward(self, state, action=None):
        a = t.relu(self.fc1(state))
        a = t.relu(self.fc2(a))
        probs = t.softmax(self.fc3(a), dim=1)
        dist = Categorical(probs=probs)
        act = (action
               if action is not None
               else dist.sample())
        act_entropy = dist.entropy()
        act_log_prob = dist.log_prob(act.flatten())
        return act, act_log_prob, act_entropy

### A2C ActorContiguous
class ActorContiguous(nn.Module):
    def __init__(self, state_dim, action_dim, action_range):
        super(Actor, self).__init__()

        self.fc1 = nn.Linear(state_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.mu_head = nn.Linear(16, action_dim)
        self.sigma_head = nn.Linear(16, action_dim)
        self.action_range = action_range

    def forward(self, state, action=None):
        a = t.relu(self.fc1(state))
        a = t.relu(self.fc2(a))
        mu = self.mu_head(a)
        sigma = softplus(self.sigma_head(a))
        dist = Normal(mu, sigma)
        act = (action
               if action is not None
               else dist.sample())
        act_entropy = dist.entropy()

        # If your distribution is different from "Normal" then you may either:
        # 1. deduce the remapping function for your distribution and clamping
        #    function such as tanh
        # 2. clamp you action, but please take care:
        #    1. do not clamp actions before calculating their log probability,
        #       because the log probability of clamped actions might will be
        #       extremely small, and will cause nan
        #    2. do not clamp actions after sampling and before storing them in
        #       the replay buffer, because during update, log probability will
        #       be re-evaluated they might also be extremely small, and network
        #       will "nan". (might happen in PPO, not in SAC because there is
        #       no re-evaluation)
        # Only clamp actions sent to the environment, this is equivalent to
        # change the action reward distribution, will not cause "nan", but
        # this makes your training environment further differ from you real
        # environment.

        # the suggested way to confine your actions within a valid range
        # is not clamping, but remapping the distribution
        # from the SAC essay:   https://arxiv.org/abs/1801.01290
        act_log_prob = dist.log_prob(act)
        act_tanh = t.tanh(act)
        act = act_tanh * self.action_range

        # the distribution remapping process used in the original essay.
        act_log_prob -= t.log(self.action_range *
                              (1 - act_tanh.pow(2)) +
                              1e-6)
        act_log_prob = act_log_prob.sum(1, keepdim=True)

        return act, act_log_prob, act_entropy

### A2C Critic
class Critic(nn.Module):
    def __init__(self, state_dim):
        super(Critic, self).__init__()

        self.fc1 = nn.Linear(state_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, 1)

    def forward(self, state):
        v = t.relu(self.fc1(state))
        v = t.relu(self.fc2(v))
        v = self.fc3(v)
        return v

### SAC Actor
class Actor(nn.Module):
    def __init__(self, state_dim, action_num):
        super(Actor, self).__init__()

        self.fc1 = nn.Linear(state_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, action_num)

    def forward(self, state, action=None):
        a = t.relu(self.fc1(state))
        a = t.relu(self.fc2(a))
        probs = t.softmax(self.fc3(a), dim=1)
        dist = Categorical(probs=probs)
        act = (action
               if action is not None
               else dist.sample())
        act_entropy = dist.entropy()
        act_log_prob = dist.log_prob(act.flatten())
        return act, act_log_prob, act_entropy

### SAC ActorContiguous
class ActorContiguous(nn.Module):
    def __init__(self, state_dim, action_dim, action_range):
        super(Actor, self).__init__()

        self.fc1 = nn.Linear(state_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.mu_head = nn.Linear(16, action_dim)
        self.sigma_head = nn.Linear(16, action_dim)
        self.action_range = action_range

    def forward(self, state, action=None):
        a = t.relu(self.fc1(state))
        a = t.relu(self.fc2(a))
        mu = self.mu_head(a)
        sigma = softplus(self.sigma_head(a))
        dist = Normal(mu, sigma)
        act = (action
               if action is not None
               else dist.rsample())
        act_entropy = dist.entropy()

        # the suggested way to confine your actions within a valid range
        # is not clamping, but remapping the distribution
        act_log_prob = dist.log_prob(act)
        act_tanh = t.tanh(act)
        act = act_tanh * self.action_range

        # the distribution remapping process used in the original essay.
        act_log_prob -= t.log(self.action_range *
                              (1 - act_tanh.pow(2)) +
                              1e-6)
        act_log_prob = act_log_prob.sum(1, keepdim=True)

        return act, act_log_prob, act_entropy

### SAC Critic
class Critic(nn.Module):
    def __init__(self, state_dim, action_dim):
        super(Critic, self).__init__()

        self.fc1 = nn.Linear(state_dim + action_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, 1)

    def forward(self, state, action):
        state_action = t.cat([state, action], 1)
        q = t.relu(self.fc1(state_action))
        q = t.relu(self.fc2(q))
        q = self.fc3(q)
        return q
"""

examples = dict(re.findall(r"^### ([^\n]+)\n(.+?)(?=^###|\Z)", MACHIN, re.M | re.S))


def build(text, *sizes):
    """Run the text of a class, and make a model of it."""
    names = {"t": t, "nn": nn, "softplus": softplus}
    names |= {"Categorical": Categorical, "Normal": Normal}
    exec(text, names)
    torch.manual_seed(0)
    return names[re.match(r"class (\w+)", text)[1]](*sizes)


four, box = torch.randn(5, 4), spaces.Box(-2, 2, (2,))
one, two = {"state": four}, {"state": four, "state2": four}
yes_or_no = spaces.Discrete(2)
CASES = {
    "DQN QNet": ((4, 2), two, yes_or_no),
    "dueling QNet": ((4, 2), {"some_state": four}, yes_or_no),
    "RAINBOW QNet": ((4, 2), two, yes_or_no),
    "DDPG Actor": ((4, 2, 2.0), one, box),
    "DDPG ActorDiscrete": ((4, 2), one, yes_or_no),
    "DDPG Critic": ((4, 2), one, box),
    "A2C Actor": ((4, 2), one, yes_or_no),
    "A2C ActorContiguous": ((4, 2, 2.0), one, box),
    "A2C Critic": ((4,), one, yes_or_no),
    "SAC Actor": ((4, 2), one, yes_or_no),
    "SAC ActorContiguous": ((4, 2, 2.0), one, box),
    "SAC Critic": ((4, 2), one, box),
}


def look_at(name, text=None, sizes=None):
    """Return what the checker says about an example."""
    usual, states, space = CASES[name]
    family, title = name.replace("dueling", "Dueling").split()
    part = {"Q": "qnet", "A": "actor", "C": "critic"}[title[0]]
    try:
        model = build(text or examples[name], *(sizes or usual))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check_model(family, **{part: model}, states=states, action_space=space)
    except Exception as error:
        kind = "" if isinstance(error, ContractError) else type(error).__name__ + ": "
        return kind + str(error).partition(" (<")[0]
    return "passes"


verdicts = {name: look_at(name) for name in examples}
for name, words in verdicts.items():
    print(name, "→", words)

# %% [markdown]
# Five of the twelve pass. The other seven, one after the other:
#
# - **The Q networks of DQN and Rainbow** concatenate two states, but size their first layer for
#   one. Built with the sum of both sizes, they pass.
# - **The continuous actor of DDPG** is not valid Python: its methods are not indented. Indented,
#   it passes.
# - **The discrete actors of A2C and SAC** return $(B,)$ where the contract says $(B, 1)$. That is
#   the model of the first section. SAC's contract also asks for a fourth result (see above).
# - **The continuous actors of A2C and SAC** call `super(Actor, self)` in a class of another name,
#   which is an error. With that corrected, the checker finds three broken rules in each.

# %%
plain = {
    name: examples[name].replace("super(Actor, self)", "super()")
    for name in ("A2C ActorContiguous", "SAC ActorContiguous")
}
for name, text in plain.items():
    print(name, "→", look_at(name, text))

# %% [markdown]
# The first broken rule is a missing sum: the actor returns one entropy for each number of the
# action, and the entropy of the whole action is their sum. The other two come from a single
# mistake, the most instructive one on the page. The actor returns $a = h \tanh u$. When $a$ comes
# back to be judged, `act = action` treats it as $u$ and squashes it once more. The
# log-probability is then that of another action.
#
# Machin's PPO
# [judges the stored action twice](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/ppo.py#L137-L156),
# for the old policy and for the new one. Both log-probabilities are wrong in the same way, so the
# ratio starts at 1 and nothing looks suspicious. But the mean score is not zero.
# `SquashedGaussianActor` above is this actor without the mistakes.

# %% tags=["claims"]
passing = [name for name, words in verdicts.items() if words == "passes"]
assert passing == [
    "dueling QNet",
    "DDPG ActorDiscrete",
    "DDPG Critic",
    "A2C Critic",
    "SAC Critic",
]
for name in ("DQN QNet", "RAINBOW QNet"):
    assert "4x16" in verdicts[name]
    assert look_at(name, sizes=(8, 2)) == "passes", "with the sum of both"
assert verdicts["DDPG Actor"].startswith("IndentationError")
first, _, methods = examples["DDPG Actor"].partition("\n")
indented = first + "\n" + textwrap.indent(methods, "    ")
assert look_at("DDPG Actor", indented) == "passes", "indented, it passes"
assert verdicts["A2C Actor"].count("must have shape") == 3
assert "tuple of 4" in verdicts["SAC Actor"]
for name, text in plain.items():
    assert verdicts[name].startswith(("NameError", "TypeError"))
    assert "3 broken rules" in look_at(name, text)
    probe = Probe(build(text, 4, 2, 2.0), one, box, "action=None")
    assert list(scores_cancel.check(probe)), "the mean score is not zero"

# %% [markdown]
# ## Traps
#
# ### Trap: an inverse that is cut off
#
# The natural fix for that actor is `u = atanh(a / h)`. Because this is infinite at the edge,
# programs put `clamp(a / h, -1 + 1e-6, 1 - 1e-6)` in front of it. RLlib had this
# ([#14878](https://github.com/ray-project/ray/issues/14878), fixed in
# [#65036](https://github.com/ray-project/ray/pull/65036)). The clamp limits $|u|$ to about 7.25.
# If a policy has learned to push with full force, its $u$ lies beyond that, and its actions get
# the wrong log-probability.

# %%
mu, log_sigma, one = torch.tensor([[8.0]]), torch.tensor([[-1.0]]), torch.ones(1)
cut_off = torch.atanh(torch.tensor([[1 - 1e-6]]))
stretch = SquashedGaussianActor(4, [-1.0], [1.0]).box
for name, u in (("cut off", cut_off), ("this chapter's", stretch.undo(mu.tanh()))):
    log_prob = squashed_log_prob(u, mu, log_sigma, one).item()
    print(f"{name}: u = {u.item():.2f}, log-probability {log_prob:.2f}")
print(
    f"as drawn: u = 8.00, log-probability {squashed_log_prob(mu, mu, log_sigma, one).item():.2f}"
)

# %% tags=["claims"]
assert abs(cut_off.item() - 7.25) < 0.01
truth = squashed_log_prob(mu, mu, log_sigma, one).item()
ours = squashed_log_prob(stretch.undo(mu.tanh()), mu, log_sigma, one).item()
assert (
    abs(ours - truth)
    < 0.5
    < 2
    < truth - squashed_log_prob(cut_off, mu, log_sigma, one).item()
)

# %% [markdown]
# **Notice** that a small error remains. Near the edge only a few digits of a float32 action
# depend on $u$, and for $u$ above 9.01 none does. If you expect such policies with PPO, let the
# action *be* $u$, and squash it on the way into the environment. SAC never inverts anything.
#
# ### Trap: bounds of the first dimension for all
#
# A clamp to `low[0], high[0]` is right for Pendulum and for every task whose actions have equal
# bounds. CleanRL's [TD3](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/td3_continuous_action.py#L236-L238)
# clamps its targets this way. An actor that does so looks right in the same tasks. The checker
# compares every number with its own bound, so give it the environment that you will train in.


# %% tags=["hide-input"]
class FirstBounds(DeterministicActor):
    def forward(self, state):
        low, high = (
            self.box.middle - self.box.half_width,
            self.box.middle + self.box.half_width,
        )
        return low[0] + (high[0] - low[0]) * torch.sigmoid(self.net(state))


said = []
for low, high in (([-2, -2], [2, 2]), ([-2, 0], [2, 1])):
    actor, space = (
        FirstBounds(4, low, high),
        spaces.Box(np.float32(low), np.float32(high)),
    )
    try:
        check_model("TD3", actor=actor, states={"state": four}, action_space=space)
        said.append("passes")
    except ContractError as error:
        said.append(str(error).split("\n")[1].strip())
print("equal bounds:", said[0], "\nothers:", said[1])

# %% tags=["claims"]
assert said[0] == "passes"
assert "action[:, 1] must lie in 0 to 1" in said[1]

# %% [markdown]
# ## What well-known implementations do
#
# | question | this chapter | [Machin](https://github.com/iffiX/machin/tree/7fa986b1bafdefff117d6ff73d14644a5488de9d) | [Stable-Baselines3](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/common/distributions.py) | [CleanRL](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/sac_continuous_action.py) | [Tianshou](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/algorithm/modelfree/sac.py) | [Spinning Up](https://github.com/openai/spinningup/blob/038665d62d569055401d91856abb287263096178/spinup/algos/pytorch/sac/core.py) |
# |---|---|---|---|---|---|---|
# | is a model checked? | `check_model` | [probabilities, at each step](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/utils.py#L189) | no; [environments are](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/common/env_checker.py#L467) | no | no | no |
# | how are arguments matched? | by name | [by name](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/utils.py#L52) | its own networks | its own networks | by position | its own networks |
# | $\log(1 - \tanh^2 u)$ | exact | [+ 1e-6](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/test/frame/algorithms/test_sac.py#L53) | [+ 1e-6](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/common/distributions.py#L241) | [+ 1e-6](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/sac_continuous_action.py#L148) | [+ 1.2e-7](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/algorithm/modelfree/sac.py#L38) | [exact](https://github.com/openai/spinningup/blob/038665d62d569055401d91856abb287263096178/spinup/algos/pytorch/sac/core.py#L60) |
# | the width of the box, $\log h$ | subtracted | subtracted | left out: actions are in −1 to 1 | subtracted | left out: actions are in −1 to 1 | left out ([#314](https://github.com/openai/spinningup/issues/314)) |
# | a given action | in float64, endpoints moved | [`atanh`, no bound](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/test/frame/algorithms/test_sac.py#L42) | [clamped by 1.2e-7](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/common/distributions.py#L661-L663) | never | never | never |
#
# From the third row on, Machin's column is about its test of SAC. Leaving out $\log h$ adds a
# constant to every entropy, which only changes what a target entropy means. We read the code at
# the linked commits.
#
# ## On the best device
#
# A model is checked on its own device, so the same call works on a GPU.

# %%
from literate_rl.agents import best_device

device = best_device()
model = CategoricalActor(4, 2).to(device)
check_model("A2C", actor=model, env="CartPole-v1")
print("passes on", device.type)

# %% [markdown]
# ## Summary
#
# - Fifteen families need six roles. `CONTRACTS` says what each requires, `check_model` checks it.
# - Shapes are the least of it: rows must not mix, given actions must come back unchanged, and an
#   action must be judged by the distribution that it was drawn from.
# - Three facts reveal most mistakes without looking inside: the same log-probability when an
#   action is given back, probabilities that sum to 1, a score with mean zero.
# - A squashed Gaussian needs its Jacobian, in the form with `softplus`. Its entropy is estimated
#   from a sample.
# - The check works on a copy of the model, and one error lists all broken rules.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.workshop.pictures import predict

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


class Twice(CategoricalActor):
    def forward(self, state, action=None):
        logits = self.net(state)
        drawn = torch.multinomial(logits.softmax(-1), 1) if action is None else action
        dist = Categorical(logits=2 * logits)
        log_prob = dist.log_prob(drawn.squeeze(-1)).unsqueeze(-1)
        return drawn, log_prob, dist.entropy().unsqueeze(-1)


torch.manual_seed(0)
found = []
try:
    three = spaces.Discrete(3)
    check_model("A2C", actor=Twice(4, 3), states={"state": four}, action_space=three)
except ContractError as error:
    found = [x.rule.name for x in error.broken]
assert found == ["scores_cancel"], "this one alone finds it"

# %% [markdown]
# ### Exercise 2: find the bug
#
# This dueling network has every shape right and raises no error, but the checker finds one broken
# rule. Fix it.


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


from literate_rl.agents import grade


def verdict_on(family, env, **models):
    """Return the checker's words as one string."""
    try:
        check_model(family, **models, env=env)
    except ContractError as error:
        return str(error)
    return "passes"


grade(lambda: verdict_on("DQN", "CartPole-v1", qnet=Answer()), lambda: "passes", ())


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


grade(lambda: verdict_on("DQN", "CartPole-v1", qnet=Answer()), lambda: "passes", ())

# %% [markdown]
# ### Exercise 3: experiment
#
# Make this actor for Pendulum pass the contract of PPO. It breaks several rules, and the error
# names them. You may change what you like. `squashed_log_prob` may help, but there is a way
# without it.


# %%
class Answer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu, self.log_sigma = nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, obs, action):
        dist = Normal(self.mu(obs), self.log_sigma(obs).exp())
        action = dist.sample().clamp(-2, 2)
        return action, dist.log_prob(action), dist.entropy().mean()


grade(lambda: verdict_on("PPO", "Pendulum-v1", actor=Answer()), lambda: "passes", ())


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


grade(lambda: verdict_on("PPO", "Pendulum-v1", actor=Answer()), lambda: "passes", ())

# %% [markdown]
# ## References
#
# The contracts are those of [Machin](https://github.com/iffiX/machin). The squashed Gaussian is
# from {cite:t}`haarnoja2018`, SAC with discrete actions from {cite:t}`christodoulou2019`, dueling
# networks from {cite:t}`wang2016`.
