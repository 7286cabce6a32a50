# Generated from chapters/check/rules.py (edit there); digest 53d6f07ad74a271f
"""Rules: the small demands that contracts make of models, one check each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from literate_rl.check.probes import Probe, Rule, demand, open_parameters, raised

__all__ = ["has_gradient", "has_shape", "returns_enough", "sums_to_one"]


def copies(probe: Probe) -> None:
    """Can be copied, for target networks."""
    if probe.copy_error is not None:
        demand(False, "must be copied by copy.deepcopy", raised(probe.copy_error))


def takes_states(probe: Probe) -> None:
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
        demand(False, f"must take the states ({wanted}) by name", f"got ({came})", hint)


def runs_on_batches(probe: Probe) -> None:
    """Runs on any number of rows, in training and in evaluation mode."""
    # A batch of one in training mode is left out: batch normalisation refuses it.
    for batch, train in ((5, False), (1, False), (5, True)):
        try:
            probe.call(batch, train=train)
        except Exception as error:
            mode = " in training mode" if train else ""
            demand(False, f"must run on a batch of {batch}{mode}", raised(error))


def returns_enough(number: int) -> Rule:
    """Return the rule that the first results are tensors."""
    words = "a tensor" if number == 1 else f"a tuple of {number} tensors"

    def results(probe: Probe) -> None:
        given = probe.call(5)
        enough = sum(isinstance(x, Tensor) for x in given[:number]) == number
        came = ", ".join(type(x).__name__ for x in given)
        demand(enough, f"must return {words}, or more", f"got {came}")

    return named(results, "results", f"Returns {words}, or more.")


def named(rule: Rule, name: str, text: str) -> Rule:
    """Give a rule its name and its text."""
    rule.__name__, rule.__doc__ = name, text
    return rule


def has_shape(text: str, index: int) -> Rule:
    """Return the rule that the result at an index has the shape in its text."""
    name, _, dims = text.rstrip("]").partition("[")

    def check(probe: Probe) -> None:
        for batch in (5, 1):
            got = tuple(probe.call(batch)[index].shape)
            wanted = probe.shape(dims.split(", "), batch)
            pairs = [*zip_longest(got, wanted, fillvalue=-1)]
            # Of atoms there may be any number above 1.
            fits = all(size == want or (not want and size > 1) for size, want in pairs)
            sizes = ", ".join(str(size or "atoms") for size in wanted)
            expected = f"{name} must have shape ({sizes})"
            demand(fits, expected, f"got {got}", advice(got, wanted))

    return named(check, name, f"Returns {text}.")


def advice(got: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """Guess what was forgotten."""
    if wanted[-1] == 1 and got == wanted[:-1]:
        return "keepdim, or unsqueeze(-1)"
    if wanted[-1] == 1 and got[:-1] == wanted[:-1]:
        return "sum over the dimensions, keepdim"
    if len(wanted) == 3 and len(got) == 2 and got[0] == wanted[0]:
        return "unflatten the last dimension"
    return "" if got[:1] == wanted[:1] else "the first dimension is the batch"


def numbers(probe: Probe) -> None:
    """Returns finite floating numbers, but for discrete actions."""
    for result in probe.judge():
        floats, came = result.is_floating_point(), f"got {result.dtype}"
        demand(floats, "results must be floating numbers", came)
        bad = result[~result.isfinite()].tolist()
        demand(not bad, "results must be finite", f"got {bad[:1]}")


def demand_gradient(
    probe: Probe, index: int, name: str, hint: str = "a detach, or no_grad?"
) -> None:
    """End a rule if no gradient flows from a result to the parameters."""
    expected = f"a gradient must flow from {name} to the parameters"
    result = probe.call(5)[index]
    # First: nothing is recorded that a gradient could go back through.
    demand(result.requires_grad, expected, "none does", hint)
    # The sum over a row of probabilities never changes, so each number gets a weight.
    weight = torch.randn(result.shape, generator=torch.Generator().manual_seed(0))
    loss = (result * weight.to(result)).sum()
    grads = torch.autograd.grad(loss, probe.weights, allow_unused=True)
    # Second and third: it is not finite, or zero for every parameter.
    seen = [grad for grad in grads if grad is not None and grad.numel()]
    largest = [grad.abs().max().item() for grad in seen]
    demand(all(map(math.isfinite, largest)), expected, "it is not finite")
    demand(any(largest), expected, "it is zero")


def has_gradient(name: str, index: int) -> Rule:
    """Return the rule that the result at an index can be learned from."""

    def check(probe: Probe) -> None:
        demand_gradient(probe, index, name)

    text = f"{name} has a gradient with respect to the parameters."
    return named(check, f"{name} learns", text)


def sums_to_one(name: str, text: str) -> Rule:
    """Return the rule that the first result holds probabilities."""

    def check(probe: Probe) -> None:
        prob = probe.call(5)[0].detach()
        sums = prob.sum(-1)
        hint = "softmax over the last dimension"
        if (prob.exp().sum(-1) - 1).abs().max() <= 1e-4:
            hint = "these are log-probabilities: exp"
        elif prob.ndim == 3 and (prob.sum(1) - 1).abs().max() <= 1e-4:
            hint = "dimension 1 sums to 1: softmax over the last dimension"
        expected = f"{name} must be at least 0, and sum to 1 over the last dimension"
        came = (
            f"got {prob.min():.3g} and sums from {sums.min():.3g} to {sums.max():.3g}"
        )
        fine = (prob >= 0).all() and (sums - 1).abs().max() <= 1e-5
        demand(fine, expected, came, hint)

    return named(check, "sums", text)


def in_bounds(probe: Probe) -> None:
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
            demand(False, expected, came, "tanh, times the range of each dimension")


def is_an_action(probe: Probe) -> None:
    """Action is an integer below action_num, or finite numbers."""
    drawn, count = probe.call(5)[0], probe.num_actions
    came = f"got {drawn.dtype}"
    if count is None:
        floats = drawn.is_floating_point() and drawn.isfinite().all()
        demand(floats, "action must be finite floating numbers", came)
        return
    demand(drawn.dtype == torch.int64, "action must be int64", came)
    inside = ((drawn >= 0) & (drawn < count)).all()
    came = f"got {drawn.min()} to {drawn.max()}"
    demand(inside, f"action must lie in 0 to {count - 1}", came)


def as_it_is(probe: Probe) -> None:
    """A given action is returned as it is."""
    given = probe.call(5)[0].detach()
    back = probe.call(5, given.clone(), luck=1)[0]
    demand(torch.equal(back, given), "a given action must be returned as it is")


def tells_apart(probe: Probe) -> None:
    """The log-probability depends on the action."""
    (one, log_one, _), (two, log_two, _) = probe.draw(200, 0), probe.draw(200, 1)
    apart = torch.equal(one, two) or not torch.equal(log_one, log_two)
    expected = "the log-probability must depend on the action"
    demand(apart, expected, "it never changes")


def action_learns(probe: Probe) -> None:
    """A drawn action has a gradient: rsample(), not sample()."""
    demand_gradient(probe, 0, "action", "rsample(), not sample()")


def lists_log_probs(probe: Probe) -> None:
    """action_log_probs holds the log-probabilities of all actions."""
    drawn, log_prob, _, every, *_ = probe.call(5)
    off = (every.gather(1, drawn) - log_prob).abs().max().item()
    expected = "action_log_probs must agree with action_log_prob at the action"
    demand(off <= 1e-4, expected, f"differs by {off:.3f}", "log_softmax")


def entropy_learns(probe: Probe) -> None:
    """distribution_entropy has a gradient (a warning if it is a constant)."""
    entropy = probe.call(5)[2]
    changes = entropy.requires_grad or entropy.std(0).max() > 1e-6
    expected = "distribution_entropy should have a gradient"
    demand(changes, expected, "it is a constant", harmful=True)
    demand_gradient(probe, 2, "distribution_entropy")


def entropy_fits(probe: Probe) -> None:
    """distribution_entropy is that of the actions (a warning)."""
    draws = zip(*(probe.draw(500, luck) for luck in range(8)), strict=True)
    _, log_prob, told = (torch.cat(x).detach() for x in draws)
    off = told + log_prob
    gap, chance = off.mean().item(), off.std().item() / math.sqrt(len(off))
    hint = "of the actions before the squash?" if probe.num_actions is None else ""
    if abs((told - log_prob).mean()) < 0.1 * abs(log_prob.mean()):
        hint = "has it the wrong sign? A bonus would then be a penalty"
    expected = "distribution_entropy should be the mean of minus log-probabilities"
    fine = abs(gap) <= 0.1 + 5 * chance
    demand(fine, expected, f"differs by {gap:+.2f} nats", hint)


def keeps_inputs(probe: Probe) -> None:
    """Does not write to its arguments (a warning)."""
    probe.call(5)
    pairs = [(name, x, probe.seen[name]) for name, x in probe.rows(5).items()]
    tensors = [pair for pair in pairs if isinstance(pair[1], Tensor)]
    changed = ", ".join(name for name, *both in tensors if not torch.equal(*both))
    demand(not changed, "arguments should not be written to", f"{changed} changed")


def same_in_both_modes(probe: Probe) -> None:
    """Is the same network in both modes (a warning)."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    learning = [x for x in probe.model.modules() if x.training]
    found = {type(x).__name__ for x in learning if isinstance(x, kinds)}
    expected = "the network that learns should be the one that acts"
    came = f"{', '.join(sorted(found))} changes with the mode"
    demand(not found, expected, came, "LayerNorm, or none")


def survives_large_states(probe: Probe) -> None:
    """Survives states that are 1,000 times as large (a warning)."""
    expected = "states 1,000 times as large should do no harm"
    came = "the log-probability is not finite"
    fine = probe.call(5, scale=1000.0)[1].isfinite().all()
    demand(fine, expected, came, "a floor for the standard deviation")
    every = [torch.full((5, 1), number) for number in range(probe.num_actions or 0)]
    least = [probe.call(5, x, scale=1000.0)[1].min().item() for x in every]
    cut = math.log(torch.finfo(torch.float32).eps)
    fine = not least or abs(min(least) - cut) >= 1e-3
    expected = "log-probabilities should not be cut off"
    demand(fine, expected, f"they stop at {cut:.1f}", "Categorical(logits=…)")


def excess(terms: Sequence[Tensor], weights: Sequence[Tensor]) -> float:
    """Return how many standard errors the mean gradient of terms is away from 0."""
    grads = [torch.autograd.grad(x, weights, allow_unused=True) for x in terms]
    flat = [torch.cat([x.flatten() for x in g if x is not None]) for g in grads]
    grad = torch.stack(flat).double()
    mean, count = grad.mean(0), len(grad)
    # The squared standard error of the mean, summed over the parameters.
    chance = (grad - mean).square().sum() / (count * (count - 1))
    return float((mean.square().sum() / chance.clamp(min=1e-30)).sqrt())
