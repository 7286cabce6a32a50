# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Rules
#
# **Which small demands does a contract make of every model?** A contract ({doc}`/chapters/contracts`)
# is a list of rules. Those that need an idea are explained there. The others are here: each checks
# one thing, and the first line of its docstring says what.
#
# Nobody has to read this page to follow the book. Read it if you want to know what exactly the
# checker tries, or to add a rule of your own ({doc}`probes` explains how a rule is tried).

# %% tags=["export", "hide-input"]
"""Rules: the small demands that contracts make of models, one check each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from literate_rl.ground.nests import refused
from literate_rl.check.probes import (
    Finding,
    Probe,
    Rule,
    advice,
    fits,
    open_parameters,
    raised,
    rule,
    warning,
)

__all__ = [
    "action_learns",
    "as_it_is",
    "copies",
    "entropy_fits",
    "entropy_learns",
    "entropy_varies",
    "excess",
    "find_contract",
    "find_no_gradient",
    "has_gradient",
    "has_shape",
    "in_bounds",
    "is_an_action",
    "keeps_inputs",
    "lists_log_probs",
    "models_for",
    "never_cut_off",
    "numbers",
    "one_by_one",
    "returns_enough",
    "roles_for",
    "runs_on_batches",
    "same_in_both_modes",
    "sums_to_one",
    "survives_large_states",
    "takes_action",
    "takes_states",
    "tells_apart",
]

# %% [markdown]
# ## Calling
#
# Arguments are matched by name, and an algorithm passes exactly the states that the environment
# has. `*args` and `**kwargs` are refused, because they do not show which states a model takes.


# %% tags=["export"]
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


# %% [markdown]
# A `squeeze` does no harm until a batch has a single row, so the model runs on one row and on five.


# %% tags=["export"]
@rule("M03", "takes_states", "takes_action", "takes_optional_action")
def runs_on_batches(probe: Probe) -> Iterator[Finding]:
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
    return Rule(
        row, "results", f"returns {words}, or more", check, ("runs_on_batches",)
    )


# %% [markdown]
# ## Shapes
#
# The line of a result, such as `q_value[batch_size, action_num]`, says its shape. It is tried with
# five rows and with one.


# %% tags=["export"]
def has_shape(row: str, text: str, index: int) -> Rule:
    """Return the rule that the result at an index has the shape in its text."""
    name, _, dims = text.rstrip("]").partition("[")

    def check(probe: Probe) -> Iterator[Finding]:
        for batch in (5, 1):
            got = tuple(probe.call(batch)[index].shape)
            wanted = probe.shape(dims.split(", "), batch)
            if not fits(got, wanted):
                sizes = ", ".join(str(size or "atoms") for size in wanted)
                expected = f"{name} must have shape ({sizes})"
                yield Finding(expected, f"got {got}", advice(got, wanted))
                return

    return Rule(row, name, f"returns {text}", check)


# %% [markdown]
# ## Numbers and gradients
#
# A result that is meant to be learned must have a gradient with respect to a parameter. Three
# things can be wrong with it, and the finding says which.


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


def find_no_gradient(probe: Probe, index: int, name: str) -> Iterator[Finding]:
    """Yield a finding if no gradient flows from a result to the parameters."""
    expected = f"a gradient must flow from {name} to the parameters"
    result = probe.call(5)[index]
    # First: nothing is recorded that a gradient could go back through.
    if not result.requires_grad:
        yield Finding(expected, "none does", "a detach, or no_grad?")
        return
    # The sum over a row of probabilities never changes, so each number gets a weight.
    weight = torch.randn(result.shape, generator=torch.Generator().manual_seed(0))
    loss = (result * weight.to(result)).sum()
    grads = torch.autograd.grad(loss, probe.weights, allow_unused=True)
    # Second and third: it is not finite, or zero for every parameter.
    seen = [grad for grad in grads if grad is not None and grad.numel()]
    largest = [grad.abs().max().item() for grad in seen]
    if not all(map(math.isfinite, largest)):
        yield Finding(expected, "it is not finite")
    elif not any(largest):
        yield Finding(expected, "it is zero")


def has_gradient(row: str, name: str, index: int) -> Rule:
    """Return the rule that the result at an index can be learned from."""
    check = partial(find_no_gradient, index=index, name=name)
    text = f"{name} has a gradient with respect to the parameters"
    return Rule(row, f"{name} learns", text, check, (name, "numbers"))


# %% [markdown]
# ## Probabilities
#
# Where a network returns probabilities, the rule checks that they sum to 1. Its hint tries to
# say what came instead: logits, logarithms, or a softmax over the wrong dimension.


# %% tags=["export"]
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
# ## Actions
#
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


# %% [markdown]
# An actor that draws is also given actions. It returns them unchanged, because the algorithm
# stores what it gets, and it judges them: its log-probability depends on the action.


# %% tags=["export"]
@rule("M46")
def as_it_is(probe: Probe) -> Iterator[Finding]:
    """A given action is returned as it is."""
    given = probe.call(5)[0].detach()
    back = probe.call(5, given.clone(), luck=1)[0]
    if back.shape != given.shape or not torch.equal(back, given):
        yield Finding("a given action must be returned as it is")


@rule("M46", "judged_alike", "action_log_prob")
def tells_apart(probe: Probe) -> Iterator[Finding]:
    """The log-probability depends on the action."""
    (one, log_one, _), (two, log_two, _) = probe.draw(200, 0), probe.draw(200, 1)
    if not torch.equal(one, two) and torch.equal(log_one, log_two):
        yield Finding(
            "the log-probability must depend on the action", "it never changes"
        )


# %% [markdown]
# SAC's actor learns through its action, so the drawn action needs a gradient. In PyTorch
# `rsample()` keeps that gradient and `sample()` cuts it. With discrete actions the actor lists the
# log-probabilities of all actions, and they must agree with that of the action.


# %% tags=["export"]
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
# ## Entropies
#
# The entropy of a Gaussian of fixed width is a constant and has no gradient. That is legal, but
# an entropy bonus on it does nothing, so it gets a warning.
#
# An entropy is the mean of minus the log-probability. The other warning compares the two over
# 4,000 actions, and allows for a tenth of a nat plus five standard errors of the difference.


# %% tags=["export"]
@rule("M45", "distribution_entropy", "numbers")
def entropy_learns(probe: Probe) -> Iterator[Finding]:
    """distribution_entropy has a gradient, unless it is a constant."""
    entropy = probe.call(5)[2]
    if entropy.requires_grad or entropy.std(0).max() > 1e-6:
        yield from find_no_gradient(probe, 2, "distribution_entropy")


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
        hint = "of the actions before the squash?" if probe.num_actions is None else ""
        if abs((told + surprise).mean()) < 0.1 * abs(surprise.mean()):
            hint = "has it the wrong sign? A bonus would then be a penalty"
        yield Finding(expected, f"differs by {gap:+.2f} nats", hint)


# %% [markdown]
# ## Other warnings
#
# A model may write to its arguments, use batch normalisation or dropout, or fail for states that
# are 1,000 times as large, and keep its contract. `Categorical(probs=…)` cuts its probabilities
# off, so an action that has become unlikely no longer gets a gradient.


# %% tags=["export"]
@warning("M04", "runs_on_batches")
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


@warning("M76", "runs_on_batches")
def same_in_both_modes(probe: Probe) -> Iterator[Finding]:
    """Is the same network in training and in evaluation mode."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    layers = (x for x in probe.model.modules() if isinstance(x, kinds))
    found = {type(layer).__name__ for layer in layers if layer.training}
    if found:
        expected = "the network that learns should be the one that acts"
        came = f"{', '.join(sorted(found))} changes with the mode"
        yield Finding(expected, came, "LayerNorm, or none")


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
# ## Zero by chance
#
# A mean over samples is never exactly zero. The rule about the score asks how many standard errors
# the mean gradient is away from zero, all parameters taken together.


# %% tags=["export"]
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
# ## What a check is given
#
# The check finds the contract of a family, its roles for an action space, and the models, of
# which there may be several for one role. An error says what it expected.


# %% tags=["export"]
def find_contract(contracts: Mapping[str, Any], family: str) -> Any:
    """Return a contract by the name of the family, in capitals or not."""
    for name, contract in contracts.items():
        if name.lower() == str(family).lower():
            return contract
    raise ValueError(f"family must be one of {', '.join(contracts)}, got {family!r}")


def roles_for(contract: Any, space: Any) -> Mapping[str, Any]:
    """Return the roles that a contract has for an action space."""
    if not isinstance(space, spaces.Discrete | spaces.Box):
        raise refused("the action space must be Discrete or a Box", space, "kind")
    discrete = isinstance(space, spaces.Discrete)
    roles: Mapping[str, Any]
    roles = contract.discrete if discrete else contract.continuous
    if not roles:
        raise refused(f"{contract.family} needs discrete actions", space, "kind")
    return roles


def models_for(family: str, roles: Iterable[str], **given: Any) -> dict[str, Any]:
    """Return the models that were given, if the contract has a role for each."""
    models = {part: model for part, model in given.items() if model is not None}
    if not models or not models.keys() <= {*roles}:
        came = " and ".join(models) or "none"
        raise ValueError(f"{family} has {' and '.join(roles)}, got {came}")
    return models


def one_by_one(models: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield part, name and model; several critics are numbered."""
    for part, given in models.items():
        several = isinstance(given, list | tuple | nn.ModuleList)
        for number, model in enumerate(given if several else [given], 1):
            yield part, f"{part} {number}" if several else part, model


# %% [markdown]
# ## See it
#
# A layer that returns logits, where probabilities are asked for.

# %%
from literate_rl.check.probes import try_rules

probe = Probe(nn.Linear(4, 2), {"input": torch.randn(5, 4)}, spaces.Discrete(2))
is_probability = sums_to_one("M31", "action", "sum(action[i, :]) == 1")
found = try_rules(probe, [is_probability._replace(after=())])
print(next(found)[1])

# %% [markdown]
# ## References
#
# The numbers of the rules count what the documentation of
# [Machin](https://github.com/iffiX/machin) requires of a model, as {doc}`/chapters/contracts`
# says.
