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
# **What does an algorithm demand of a network, and how do you know that yours gives it?** Say in two sentences what the
# reader will be able to do, how long it takes and what is needed.

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
from torch import Tensor, nn
from torch.nn.functional import softplus

from literate_rl.workshop.probes import (
    Probe,
    device_of,
    forward_parameters,
    randomness_kept,
    results_of,
    unwrapped,
    watch,
)
from literate_rl.workshop.signatures import Float, checked

__all__ = [
    "CONTRACTS",
    "ActionValue",
    "ByName",
    "CategoricalActor",
    "CategoricalQNetwork",
    "Contract",
    "ContractError",
    "DeterministicActor",
    "DuelingQNetwork",
    "ProbabilityActor",
    "QNetwork",
    "SquashedGaussianActor",
    "StateSpec",
    "StateValue",
    "check_model",
    "squashed_log_prob",
    "state_spec",
]

# %% [markdown]
# ## States by name


# %% tags=["export"]
class StateSpec(NamedTuple):
    """What the states of an environment are called, and how large they are.

    Attributes:
        names: A name for each state.
        shapes: The shape of one state each.
        dtypes: The dtype that a model gets, None for what the observations have.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype | None, ...]

    def named_for(self, model: Any) -> StateSpec:
        """Call a lone state as the model's only argument is called."""
        required = [name for name in required_arguments(model) if name != "action"]
        if len(self.names) == len(required) == 1:
            return self._replace(names=(required[0],))
        return self

    def rows(self, obs: Tensor) -> tuple[int, ...]:
        """Return the dimensions in front of an observation, such as (T, B)."""
        # A lone picture may come as it is; everything else is a flat vector.
        whole = (
            len(self.shapes) == 1
            and obs.shape[-len(self.shapes[0]) :] == (self.shapes[0])
        )
        return tuple(obs.shape[: -len(self.shapes[0])] if whole else obs.shape[:-1])

    def split(self, obs: Tensor) -> dict[str, Tensor]:
        """Cut observations into their states, as views where no dtype changes."""
        lead = self.rows(obs)
        pieces = obs.reshape(*lead, -1).split([*map(math.prod, self.shapes)], -1)
        return {
            name: piece.reshape(*lead, *shape).to(dtype or piece.dtype)
            for name, piece, shape, dtype in zip(
                self.names, pieces, self.shapes, self.dtypes, strict=True
            )
        }


def state_spec(observation_space: spaces.Space[Any]) -> StateSpec:
    """Name the states of an observation space.

    A ``Dict`` has a state for each key, a ``Tuple`` has ``state_0``, ``state_1`` and so
    on, and anything else is one state called ``state``. Spaces inside of these are
    flattened as Gymnasium flattens them.
    """
    if isinstance(observation_space, spaces.Dict):
        parts = dict(observation_space.spaces)
    elif isinstance(observation_space, spaces.Tuple):
        parts = {f"state_{i}": x for i, x in enumerate(observation_space.spaces)}
    else:
        parts = {"state": observation_space}
    shapes, dtypes = [], []
    for name, space in parts.items():
        if not name.isidentifier():
            raise ValueError(f"a state must have a name for an argument, got {name!r}")
        plain = isinstance(space, spaces.Box) and space.shape
        shapes.append(tuple(space.shape or ()) if plain else (spaces.flatdim(space),))
        # Integers, such as the bytes of a picture, stay what they are.
        whole = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer)
        dtypes.append(
            torch.as_tensor(np.zeros(0, space.dtype)).dtype if whole else None
        )
    return StateSpec(tuple(parts), tuple(shapes), tuple(dtypes))


def required_arguments(model: Any) -> list[str]:
    """Return the arguments of a model that have no default."""
    empty = [
        (name, p)
        for name, p in forward_parameters(model).items()
        if p.default is p.empty
    ]
    return [n for n, p in empty if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


# %% tags=["export"]
class ByName(nn.Module):
    """A user's model, called with its states by name.

    Args:
        model: The model, wrapped or not.
        spec: What the states are called. A lone state takes the name of the model's
            only argument.
    """

    def __init__(self, model: Any, spec: StateSpec) -> None:
        super().__init__()
        unwrapped(model)  # refuses what is no module
        self.spec = spec.named_for(model)
        self.fixed = dict(model.keywords) if isinstance(model, partial) else {}
        self.model = model.func if isinstance(model, partial) else model

    def forward(self, obs: Tensor, **given: Any) -> tuple[Any, ...]:
        """Return the results of the model as a tuple.

        Args:
            obs: Observations ``(*B, size)``, as the package's environments give them.
            given: Further arguments, such as ``action``, with the same ``*B`` in front.
        """
        # All leading dimensions become one batch, and come back with the results.
        lead = self.spec.rows(obs)
        batch = math.prod(lead)

        def to_batch(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            return x.to(device_of(self.model)).reshape(batch, *x.shape[len(lead) :])

        def from_batch(x: Any) -> Any:
            whole = isinstance(x, Tensor) and x.ndim > 0 and len(x) == batch
            return x.reshape(*lead, *x.shape[1:]) if whole else x

        states = self.spec.split(to_batch(obs))
        given = {name: to_batch(x) for name, x in given.items()}
        results = results_of(self.model(**states, **self.fixed, **given))
        return tuple(map(from_batch, results))


# %% [markdown]
# ## What a rule is


# %% tags=["export"]
class Finding(NamedTuple):
    """What a check has found: what must be, what came, and what may help."""

    expected: str
    came: str = ""
    hint: str = ""

    def __str__(self) -> str:
        came = f", {self.came}" if self.came else ""
        return f"{self.expected}{came}" + (f" ({self.hint})" if self.hint else "")


class Rule(NamedTuple):
    """One demand on a model.

    Attributes:
        row: The row of the table of demands that it belongs to.
        name: A short name, by which other rules refer to it.
        text: The demand in words.
        check: Yields what it finds wrong with a model on trial.
        after: Names of the rules without which it makes no sense.
        harmful: Whether a model that breaks it is legal, and only worth a warning.
    """

    row: str
    name: str
    text: str
    check: Callable[[Probe], Iterator[Finding]]
    after: tuple[str, ...] = ()
    harmful: bool = False


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
    """A model breaks its contract; ``broken`` lists every rule.

    Attributes:
        family: The family whose contract it is.
        broken: The rules, with who breaks them and what was found.
    """

    def __init__(self, family: str, broken: Sequence[Broken]) -> None:
        self.family, self.broken = family, tuple(broken)
        count = f"{len(broken)} broken rule{'s' * (len(broken) != 1)}"
        lines = "\n".join(f"  {item}" for item in broken)
        super().__init__(f"{family}: {count}\n{lines}")


# %% [markdown]
# ## Arguments and results


# %% tags=["export"]
def takes_states(probe: Probe) -> Iterator[Finding]:
    """Check the names of the arguments, M09."""
    parameters = {k: p for k, p in probe.parameters.items() if k != "action"}
    names = [k for k, p in parameters.items() if p.default is p.empty]
    open_ended = [
        str(p)
        for p in parameters.values()
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    # The order is free, because arguments go by name.
    if open_ended or {*probe.states} - {*parameters} or {*names} - {*probe.states}:
        wanted, came = (
            ", ".join(probe.states),
            ", ".join(map(str, probe.parameters.values())),
        )
        yield Finding(
            f"forward must take the states by name, ({wanted})",
            f"got ({came})",
            "name each argument" if open_ended else "further ones need a default",
        )
    if any(p.kind is p.POSITIONAL_ONLY for p in parameters.values()):
        yield Finding("arguments must be taken by name", "got one by position only")


def takes_optional_action(probe: Probe) -> Iterator[Finding]:
    """Check that ``action`` may be left out, M39."""
    action = probe.parameters.get("action")
    if action is None or action.default is not None:
        came = "there is none" if action is None else f"got {action}"
        yield Finding("forward must take action=None", came)


def takes_action(probe: Probe) -> Iterator[Finding]:
    """Check that there is an ``action``, M34."""
    if "action" not in probe.parameters:
        yield Finding("forward must take action", "there is none")


def takes_no_action(probe: Probe) -> Iterator[Finding]:
    """Check that there is no ``action``, M48."""
    action = probe.parameters.get("action")
    if action is not None and action.default is action.empty:
        yield Finding("forward must not take an action", f"got {action}")


def answers(probe: Probe) -> Iterator[Finding]:
    """Check that the model runs: one row and five, in both modes, M03."""
    for batch, train in ((5, False), (1, False), (5, True)):
        try:
            probe.call(batch, train=train)
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            mode = " in training mode" if train else ""
            came = f"raised {type(error).__name__}: {reason}"
            yield Finding(f"must run on a batch of {batch}{mode}", came)
            return


def returns_tensors(probe: Probe, count: int) -> Iterator[Finding]:
    """Check that there are enough results, M06 and M40."""
    results = probe.call(5)
    kinds = [type(x).__name__ for x in results]
    if len(results) < count or not all(isinstance(x, Tensor) for x in results[:count]):
        wanted = "a tensor" if count == 1 else f"a tuple of {count} tensors or more"
        yield Finding(f"must return {wanted}", f"got {', '.join(kinds)}")


def has_shape(
    probe: Probe, index: int, name: str, dims: Sequence[str]
) -> Iterator[Finding]:
    """Check the shape of a result with two batch sizes."""
    for batch in (5, 1):
        results = probe.call(batch)
        wanted = sizes_of(probe, dims, batch)
        if index >= len(results) or not isinstance(results[index], Tensor):
            yield Finding(
                f"{name} must be the result number {index + 1}", "there is none"
            )
            return
        got = tuple(results[index].shape)
        if len(got) == len(wanted) and all(
            b >= 2 if a is None else a == b for a, b in zip(wanted, got, strict=True)
        ):
            continue
        words = ", ".join(str(size) if size else "atoms" for size in wanted)
        yield Finding(
            f"{name} must have shape ({words})", f"got {got}", hint(wanted, got)
        )
        return


def sizes_of(probe: Probe, dims: Sequence[str], batch: int) -> tuple[int | None, ...]:
    """Return the sizes that the words of a result stand for; None is any from 2 on."""
    shape = (1,) if probe.num_actions else tuple(probe.space.shape or ())
    sizes: list[int | None] = []
    for word in dims:
        if word == "...":
            sizes += shape
        else:
            known = {
                "batch_size": batch,
                "action_num": probe.num_actions,
                "atom_num": None,
            }
            sizes.append(int(word) if word.isdigit() else known[word])
    return tuple(sizes)


def hint(wanted: tuple[int | None, ...], got: tuple[int, ...]) -> str:
    """Guess what was forgotten."""
    if wanted[-1] == 1 and got == wanted[:-1]:
        return "keepdim, or unsqueeze(-1)"
    if wanted[-1] == 1 and got[:-1] == wanted[:-1]:
        return "sum over the dimensions, keepdim"
    if got == wanted[1:] or (got and got[0] != wanted[0]):
        return "the first dimension is the batch"
    if len(got) == 2 and len(wanted) == 3 and got[0] == wanted[0]:
        return "unflatten the last dimension"
    return ""


def is_finite(probe: Probe, indices: Sequence[int]) -> Iterator[Finding]:
    """Check that results are finite floating numbers, M15."""
    for index in indices:
        result = probe.call(5)[index]
        if not result.is_floating_point():
            yield Finding("results must be floating numbers", f"got {result.dtype}")
        elif not result.isfinite().all():
            yield Finding(
                "results must be finite", f"got {result[~result.isfinite()][0]}"
            )


def rows_apart(probe: Probe, indices: Sequence[int]) -> Iterator[Finding]:
    """Check that no row depends on its neighbours, M12."""
    batch = 5
    # An actor that draws is asked about actions that are drawn already.
    action = probe.actions(batch) if probe.judges else None
    if len(indices) > 1:
        action = probe.call(batch)[0].detach()
    whole, again = probe.call(batch, action), probe.call(batch, action, luck=1)
    # A result that is random even then, such as an entropy by sampling, is left out.
    indices = [k for k in indices if torch.equal(whole[k], again[k])]
    for i in range(batch):
        one = {
            k: x[i : i + 1] if isinstance(x, Tensor) else x
            for k, x in probe.rows(batch).items()
        }
        if action is not None:
            one["action"] = action[i : i + 1]
        alone = probe.run(one)
        for index in indices:
            off = (whole[index][i] - alone[index][0]).abs().max().item()
            if not off <= 1e-4 * (1 + whole[index][i].abs().max().item()):
                yield Finding(
                    "a row must not depend on the other rows",
                    f"alone it differs by {off:.3g}",
                    "reduce over the last dimensions, not over the batch",
                )
                return


def has_gradient(probe: Probe, index: int, name: str) -> Iterator[Finding]:
    """Check that a result can be learned from."""
    result = probe.call(5)[index]
    # Random weights, because rows of probabilities have a constant sum.
    weight = torch.randn(result.shape, generator=torch.Generator().manual_seed(0))
    expected = f"a gradient must flow from {name} to the parameters"
    if not result.requires_grad:
        yield Finding(expected, "none does", "is there a detach or a no_grad?")
        return
    loss = (result * weight.to(result)).sum()
    grads = torch.autograd.grad(loss, probe.weights, allow_unused=True)
    sizes = [g.abs().max().item() for g in grads if g is not None]
    if not all(map(math.isfinite, sizes)):
        yield Finding(expected, "it is not finite")
    elif not any(sizes):
        yield Finding(expected, "it is zero")


# %% [markdown]
# ## What is special about a distribution


# %% tags=["export"]
def sums_to_one(probe: Probe, index: int, name: str) -> Iterator[Finding]:
    """Check rows of probabilities, M25 and M31."""
    prob = probe.call(5)[index].detach()
    sums = prob.sum(-1)
    expected = f"{name} must be at least 0 and sum to 1 over the last dimension"
    if (prob < 0).any() or not (sums - 1).abs().max() <= 1e-5:
        if (prob.exp().sum(-1) - 1).abs().max() <= 1e-4:
            advice = "these are log-probabilities: exp"
        elif prob.ndim == 3 and (prob.sum(1) - 1).abs().max() <= 1e-4:
            advice = "it sums to 1 over dimension 1: softmax over the last dimension"
        else:
            advice = "softmax over the last dimension"
        came = f"the least is {prob.min():.3g}, the sums {sums.min():.3g} to {sums.max():.3g}"
        yield Finding(expected, came, advice)


def in_bounds(probe: Probe) -> Iterator[Finding]:
    """Check that actions stay in their box, however wild the states are, M29."""
    space: Any = probe.space
    for scale in (1.0, 100.0):
        action = probe.call(5, scale=scale)[0].detach().cpu().numpy()
        slack = 1e-4 * (1 + np.abs(action))
        if not ((action >= space.low - slack) & (action <= space.high + slack)).all():
            low, high = space.low.min(), space.high.max()
            came = f"got {action.min():.3g} to {action.max():.3g}"
            yield Finding(
                f"action must lie in its box, {low:g} to {high:g}",
                came,
                "tanh times the range",
            )
            return


def depends_on_action(probe: Probe) -> Iterator[Finding]:
    """Check that a critic looks at the action, M32."""
    action = probe.actions(5).requires_grad_()
    expected = "a gradient must flow from q_value to the action"
    value = probe.call(5, action)[0]
    grad = None
    if value.requires_grad:
        (grad,) = torch.autograd.grad(value.sum(), action, allow_unused=True)
    if grad is None or not grad.abs().max() > 0:
        yield Finding(expected, "none does", "an actor learns through it")


# %% [markdown]
# ## Actors that draw


# %% tags=["export"]
def is_an_action(probe: Probe) -> Iterator[Finding]:
    """Check what kind of numbers an action is, M47."""
    action, count = probe.call(5)[0], probe.num_actions
    if count is None:
        if not action.is_floating_point() or not action.isfinite().all():
            yield Finding(
                "action must be finite floating numbers", f"got {action.dtype}"
            )
    elif action.dtype != torch.int64:
        yield Finding("action must be int64", f"got {action.dtype}")
    elif not ((action >= 0) & (action < count)).all():
        came = f"got {action.min()} to {action.max()}"
        yield Finding(f"action must lie in 0 to {count - 1}", came)


def returns_given_action(probe: Probe) -> Iterator[Finding]:
    """Check that a given action comes back, M46."""
    given = probe.call(5)[0].detach()
    back = probe.call(5, given.clone(), luck=1)[0]
    if back.shape != given.shape or not torch.equal(back, given):
        yield Finding("a given action must be returned as it is")


def judges_alike(probe: Probe) -> Iterator[Finding]:
    """Check that drawing and judging agree, M46."""
    action, drawn, *_ = probe.call(5)
    judged = probe.call(5, action.detach(), luck=1)[1]
    off = math.inf
    if drawn.shape == judged.shape:
        off = (drawn - judged).abs().max().item()
    if not off <= 2e-3 * (1 + 0.1 * drawn.abs().max().item()):
        yield Finding(
            "the log-probability of the sampled action must be the same when it is "
            "given",
            f"differs by {off:.3f}",
        )


def judges_each(probe: Probe) -> Iterator[Finding]:
    """Check that the log-probability depends on the action, M46."""
    drawn = [draw(probe, 200, luck)[:2] for luck in (0, 1)]
    (one, log_one), (two, log_two) = drawn
    if not torch.equal(one, two) and torch.equal(log_one, log_two):
        yield Finding(
            "the log-probability must depend on the action", "it is always the same"
        )


def draw(probe: Probe, count: int, luck: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw actions at the first state; return them, judged, and the entropies."""
    with torch.no_grad():
        action = probe.call(count, row=0, luck=luck)[0]
    _, log_prob, entropy, *_ = probe.call(count, action, row=0, luck=luck)
    return action, log_prob, entropy


def has_unit_mass(probe: Probe) -> Iterator[Finding]:
    """Check that the probabilities of all actions sum to 1, M44."""
    expected = "the probabilities of all actions must sum to 1"
    if probe.num_actions is not None:
        every = torch.arange(probe.num_actions).unsqueeze(-1)
        with torch.no_grad():
            mass = probe.call(len(every), every, row=0)[1].exp().sum().item()
        if not abs(mass - 1) <= 1e-4:
            yield Finding(expected, f"they sum to {mass:.3f}")
        return
    # A density is integrated over the box, with random points. That says something only
    # if all actions lie inside, and the box is not too large a place.
    low, high = probe.bounds()
    drawn = torch.cat([draw(probe, 500, luck)[0] for luck in range(8)])
    if ((drawn < low) | (drawn > high)).any():
        return
    generator, densities = torch.Generator().manual_seed(0), []
    for _ in range(40):
        point = (
            torch.rand(500, *low.shape, generator=generator).to(low) * (high - low)
            + low
        )
        with torch.no_grad():
            densities.append(probe.call(500, point, row=0)[1].double().exp())
    density = torch.cat(densities) * (high - low).double().prod()
    mass, error = density.mean().item(), density.std().item() / math.sqrt(len(density))
    if not abs(mass - 1) <= 0.02 + 5 * error and not error > 0.1:
        yield Finding(
            expected,
            f"they integrate to {mass:.2f}",
            "is the Jacobian there? was the action clamped?",
        )


def scores_cancel(probe: Probe) -> Iterator[Finding]:
    """Check that the score has mean zero, M46."""
    grads = []
    for luck in range(20):
        _, log_prob, _ = draw(probe, 200, luck)
        found = torch.autograd.grad(log_prob.mean(), probe.weights, allow_unused=True)
        grads.append(torch.cat([g.flatten() for g in found if g is not None]))
    grad = torch.stack(grads).double()
    # How long the mean gradient is, in units of what chance alone would make it.
    chance = (grad - grad.mean(0)).square().sum() / (20 * 19)
    ratio = (grad.mean(0).square().sum() / chance.clamp(min=1e-30)).sqrt().item()
    if not ratio <= 5:
        yield Finding(
            "the mean gradient of the log-probability must be zero",
            f"it is {ratio:.0f} standard errors away",
            "actions are drawn from one distribution and judged by another",
        )


def has_entropy_gradient(probe: Probe) -> Iterator[Finding]:
    """Check that the entropy can be learned from, unless it is constant, M45."""
    entropy = probe.call(5)[2]
    constant = entropy.detach().std(0).max() < 1e-6
    if not (constant and not entropy.requires_grad):
        yield from has_gradient(probe, 2, "distribution_entropy")


def draws_differentiably(probe: Probe) -> Iterator[Finding]:
    """Check that a gradient flows through the sampled action, M63."""
    for finding in has_gradient(probe, 0, "action"):
        yield finding._replace(hint="rsample(), not sample()")


def lists_log_probs(probe: Probe) -> Iterator[Finding]:
    """Check the log-probabilities of all actions against that of the one drawn, M65."""
    action, log_prob, _, every, *_ = probe.call(5)
    off = (every.gather(1, action) - log_prob).abs().max().item()
    off = max(off, every.logsumexp(-1).abs().max().item())
    if not off <= 1e-3:
        yield Finding(
            "action_log_probs must hold action_log_prob at the action, and be the "
            "logarithms of probabilities that sum to 1",
            f"off by {off:.3f}",
            "log_softmax",
        )


# %% [markdown]
# ## Legal, but harmful


# %% tags=["export"]
def keeps_inputs(probe: Probe) -> Iterator[Finding]:
    """Warn if the model writes into its arguments."""
    before, given = probe.rows(5), probe.rows(5)
    given |= {"action": probe.actions(5)} if probe.judges else {}
    probe.run(given)
    tensors = [name for name, x in before.items() if isinstance(x, Tensor)]
    changed = [name for name in tensors if not torch.equal(before[name], given[name])]
    if changed:
        yield Finding(
            "arguments should not be written to", f"{', '.join(changed)} changed"
        )


def acts_as_it_learns(probe: Probe) -> Iterator[Finding]:
    """Warn if the two modes differ."""
    names = sorted(
        {type(m).__name__ for m in probe.model.modules() if isinstance(m, TWO_FACED)}
    )
    if names:
        yield Finding(
            "the network that acts should be the one that learns",
            f"{', '.join(names)} changes with the mode",
            "LayerNorm, or none",
        )


TWO_FACED = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


def tells_its_entropy(probe: Probe) -> Iterator[Finding]:
    """Warn if the entropy is that of another distribution, M45."""
    draws = [draw(probe, 500, luck) for luck in range(8)]
    surprise = -torch.cat([log_prob for _, log_prob, _ in draws]).detach()
    told, error = (
        draws[0][2].mean().item(),
        surprise.std().item() / math.sqrt(len(surprise)),
    )
    off = told - surprise.mean().item()
    if not abs(off) <= 0.1 + 5 * error:
        yield Finding(
            "distribution_entropy should be the mean of minus the log-probability",
            f"it differs by {off:+.2f} nats",
            "the entropy of the distribution before the squash?",
        )


def has_learnable_entropy(probe: Probe) -> Iterator[Finding]:
    """Warn if the entropy is a constant."""
    if not probe.call(5)[2].requires_grad:
        yield Finding("distribution_entropy should have a gradient", "it is a constant")


def survives_wild_states(probe: Probe) -> Iterator[Finding]:
    """Warn if large states end in NaN, or in probabilities that are cut off."""
    expected = "states 1,000 times as large should do no harm"
    advice = "a floor for the standard deviation?"
    try:
        _, log_prob, *_ = probe.call(5, scale=1000.0)
    except ValueError as error:
        yield Finding(
            expected, f"raised {str(error).partition(chr(10))[0][:60]}", advice
        )
        return
    if not log_prob.isfinite().all():
        yield Finding(expected, "the log-probability is not finite", advice)


def keeps_logits(probe: Probe) -> Iterator[Finding]:
    """Warn if log-probabilities are cut off, as ``Categorical(probs=…)`` does."""
    cut = math.log(torch.finfo(torch.float32).eps)
    least = 0.0
    for action in range(probe.num_actions or 0):
        given = torch.full((5, 1), action)
        least = min(least, probe.call(5, given, scale=1000.0)[1].min().item())
    if abs(least - cut) < 1e-3:
        yield Finding(
            "log-probabilities should have no lower end",
            f"they stop at {cut:.1f}",
            "Categorical(logits=…), not probs=softmax",
        )


# %% [markdown]
# ## Roles


# %% tags=["export"]
class Result(NamedTuple):
    """A result of a model, in the notation of the contracts.

    Attributes:
        row: The row of the table that asks for its shape.
        text: Name and dimensions, such as ``q_value[batch_size, action_num]``.
    """

    row: str
    text: str

    @property
    def name(self) -> str:
        """The name alone."""
        return self.text.partition("[")[0]

    @property
    def dims(self) -> list[str]:
        """The words of the dimensions."""
        return self.text.partition("[")[2].rstrip("]").split(", ")


class Role(NamedTuple):
    """What one network of a contract does.

    Attributes:
        title: What kind of network it is.
        action: ``""``, ``"action"`` or ``"action=None"``: what it takes besides states.
        results: What it returns, in order; more may follow.
        own: The rules that only this role has.
    """

    title: str
    action: str
    results: tuple[Result, ...]
    own: tuple[Rule, ...]

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Every rule of the role, in the order in which they are tried."""
        takes, number = ARGUMENT[self.action], len(self.results)
        enough = partial(returns_tensors, count=number)
        row, words = (
            ("M40", f"a tuple of {number}, or more")
            if number > 1
            else ("M06", "a tensor, or a tuple that begins with it")
        )
        shapes = (
            Rule(
                x.row,
                x.name,
                f"{x.text}",
                partial(has_shape, index=i, name=x.name, dims=x.dims),
                ("results",),
            )
            for i, x in enumerate(self.results)
        )
        return (
            Rule(
                "M09",
                "states",
                "takes its states by name; anything else has a default",
                takes_states,
            ),
            *takes,
            Rule(
                "M03",
                "runs",
                "runs on any number of rows, in both modes",
                answers,
                ("states", *(rule.name for rule in takes)),
            ),
            Rule(row, "results", f"returns {words}", enough, ("runs",)),
            *shapes,
            *self.own,
            Rule(
                "M04",
                "inputs",
                "does not write to its arguments",
                keeps_inputs,
                ("runs",),
                True,
            ),
            Rule(
                "M76",
                "modes",
                "is the same network in both modes",
                acts_as_it_learns,
                ("runs",),
                True,
            ),
        )

    def __str__(self) -> str:
        return self.text()

    def text(self, name: str = "Model") -> str:
        """Return the contract of this role, rule by rule."""
        margin = " " * (len(name) + 1)
        takes = ["state_0[batch_size, ...]", "...", "state_n[batch_size, ...]"]
        if self.action:
            takes.append(
                self.action.replace("action", f"action[batch_size, {self.given}]")
            )
        gives = [x.text for x in self.results] + ["<...>"]
        lines = [
            f"{name}({f',{chr(10)}{margin}'.join(takes)})",
            "-> " + ",\n   ".join(gives),
        ]
        lines += [
            f"   {r.row}  {r.text}" + "  (a warning)" * r.harmful for r in self.rules
        ]
        return "\n".join(lines)

    @property
    def given(self) -> str:
        """The dimensions of the action that it takes."""
        return ".../action_num" if self.action == "action" else "..."


ARGUMENT = {
    "": (Rule("M48", "action", "takes no action", takes_no_action),),
    "action": (Rule("M34", "action", "takes an argument called action", takes_action),),
    "action=None": (
        Rule(
            "M39",
            "action",
            "takes action, with the default None",
            takes_optional_action,
        ),
    ),
}


def learns(row: str, index: int, name: str) -> Rule:
    """Return the rule that a gradient flows from a result."""
    check = partial(has_gradient, index=index, name=name)
    return Rule(row, f"{name} learns", f"{name} has a gradient", check, (name,))


def usual(row: str, name: str) -> tuple[Rule, ...]:
    """Return the rules for a model with a single result."""
    finite, apart = partial(is_finite, indices=(0,)), partial(rows_apart, indices=(0,))
    return (
        Rule("M15", "finite", f"{name} is finite", finite, ("results",)),
        Rule(
            "M12", "rows", "rows do not depend on each other", apart, (name, "finite")
        ),
        learns(row, 0, name)._replace(after=(name, "finite")),
    )


# %% [markdown]
# The roles.


# %% tags=["export"]
Q_VALUES = Role(
    "Q values",
    "",
    (Result("M14", "q_value[batch_size, action_num]"),),
    usual("M15", "q_value"),
)
DISTRIBUTION = Role(
    "distribution",
    "",
    (Result("M22", "q_value_dist[batch_size, action_num, atom_num]"),),
    (
        *usual("M27", "q_value_dist"),
        Rule(
            "M25",
            "sums",
            "sum(q_value_dist[i, j, :]) == 1",
            partial(sums_to_one, index=0, name="q_value_dist"),
            ("q_value_dist", "finite"),
        ),
    ),
)
ACTION = Role(
    "actor that returns an action",
    "",
    (Result("M29", "action[batch_size, ...]"),),
    (
        *usual("M29", "action"),
        Rule(
            "M29", "bounds", "action lies in its box", in_bounds, ("action", "finite")
        ),
    ),
)
PROBABILITIES = Role(
    "actor that returns probabilities",
    "",
    (Result("M30", "action[batch_size, action_num]"),),
    (
        *usual("M30", "action"),
        Rule(
            "M31",
            "sums",
            "sum(action[i, :]) == 1",
            partial(sums_to_one, index=0, name="action"),
            ("action", "finite"),
        ),
    ),
)
ACTION_VALUE = Role(
    "action value",
    "action",
    (Result("M32", "q_value[batch_size, 1]"),),
    (
        *usual("M32", "q_value"),
        Rule(
            "M32",
            "through action",
            "q_value has a gradient with respect to the action",
            depends_on_action,
            ("q_value", "q_value learns"),
        ),
    ),
)
STATE_VALUE = Role(
    "state value", "", (Result("M48", "value[batch_size, 1]"),), usual("M48", "value")
)

TRIPLE = (
    Result("M47", "action[batch_size, ...]"),
    Result("M41", "action_log_prob[batch_size, 1]"),
    Result("M42", "distribution_entropy[batch_size, 1]"),
)
DRAWS = (
    Rule(
        "M47",
        "kind",
        "action is an integer below action_num, or finite numbers",
        is_an_action,
        ("results",),
    ),
    Rule(
        "M15",
        "finite",
        "log-probability and entropy are finite",
        partial(is_finite, indices=(1, 2)),
        ("results", "kind"),
    ),
    learns("M44", 1, "action_log_prob"),
    Rule(
        "M45",
        "entropy learns",
        "distribution_entropy has a gradient, if it is no constant",
        has_entropy_gradient,
        ("distribution_entropy", "finite"),
    ),
    Rule(
        "M12",
        "rows",
        "rows do not depend on each other",
        partial(rows_apart, indices=(1, 2)),
        ("action", "action_log_prob", "distribution_entropy", "finite"),
    ),
    Rule(
        "M46",
        "as it is",
        "a given action is returned as it is",
        returns_given_action,
        ("results",),
    ),
    Rule(
        "M46",
        "alike",
        "a given action is judged as when it was drawn",
        judges_alike,
        ("results", "finite"),
    ),
    Rule(
        "M46",
        "each",
        "the log-probability depends on the action",
        judges_each,
        ("alike", "action_log_prob"),
    ),
    Rule(
        "M44",
        "mass",
        "the probabilities of all actions sum to 1",
        has_unit_mass,
        ("action", "action_log_prob", "as it is", "each"),
    ),
    Rule(
        "M46",
        "score",
        "the mean gradient of the log-probability is zero",
        scores_cancel,
        ("action", "action_log_prob learns", "as it is", "each"),
    ),
    Rule(
        "M45",
        "entropy told",
        "the entropy is that of the actions",
        tells_its_entropy,
        ("distribution_entropy", "score"),
        True,
    ),
    Rule(
        "M45",
        "entropy grows",
        "the entropy is no constant",
        has_learnable_entropy,
        ("distribution_entropy", "entropy learns"),
        True,
    ),
    Rule(
        "M52", "wild", "large states do no harm", survives_wild_states, ("alike",), True
    ),
    Rule(
        "M49",
        "logits",
        "log-probabilities have no lower end",
        keeps_logits,
        ("action", "as it is", "wild", "each"),
        True,
    ),
)
DRAWING = Role("actor that draws", "action=None", TRIPLE, DRAWS)
REPARAMETRISED = Role(
    "actor that draws differentiably",
    "action=None",
    TRIPLE,
    (
        *DRAWS,
        Rule(
            "M63",
            "rsample",
            "the sampled action has a gradient: rsample()",
            draws_differentiably,
            ("action", "kind"),
        ),
    ),
)
LISTING = Role(
    "actor that draws, and lists all log-probabilities",
    "action=None",
    (*TRIPLE, Result("M65", "action_log_probs[batch_size, action_num]")),
    (
        *DRAWS,
        Rule(
            "M65",
            "list",
            "action_log_probs holds action_log_prob",
            lists_log_probs,
            ("action", "action_log_prob", "action_log_probs", "finite"),
        ),
    ),
)


# %% tags=["export"]
class Contract(NamedTuple):
    """What a family of algorithms demands of its networks.

    Attributes:
        family: Its name.
        continuous: For continuous actions, the role of each network; more than one
            where a network may play either. Empty if it has no continuous actions.
        discrete: The same for discrete actions.
    """

    family: str
    continuous: dict[str, tuple[Role, ...]]
    discrete: dict[str, tuple[Role, ...]]

    def __str__(self) -> str:
        blocks = []
        for kind, parts in (
            ("continuous", self.continuous),
            ("discrete", self.discrete),
        ):
            for part, roles in parts.items():
                for role in roles:
                    # What is the same for both kinds of action is printed once.
                    both = role in self.continuous.get(
                        part, ()
                    ) and role in self.discrete.get(part, ())
                    if both and kind == "discrete":
                        continue
                    for_ = "" if both else f", {kind} actions"
                    blocks.append(f"{part}{for_}\n{role.text(TITLE[part])}")
        return f"{self.family}\n\n" + "\n\n".join(blocks)


TITLE = {"qnet": "QNet", "actor": "Actor", "critic": "Critic"}


def contracts(
    names: str,
    continuous: dict[str, tuple[Role, ...]],
    discrete: dict[str, tuple[Role, ...]],
) -> dict[str, Contract]:
    """Give several families the same contract."""
    return {name: Contract(name, continuous, discrete) for name in names.split()}


DRAW_AND_VALUE = {"actor": (DRAWING,), "critic": (STATE_VALUE,)}
CONTRACTS: dict[str, Contract] = {
    **contracts("DQN DQNPer DQNApex Dueling", {}, {"qnet": (Q_VALUES,)}),
    **contracts("RAINBOW", {}, {"qnet": (DISTRIBUTION,)}),
    **contracts(
        "DDPG DDPGPer DDPGApex HDDPG TD3",
        {"actor": (ACTION,), "critic": (ACTION_VALUE,)},
        {"actor": (PROBABILITIES,), "critic": (ACTION_VALUE,)},
    ),
    **contracts("A2C PPO A3C IMPALA", DRAW_AND_VALUE, DRAW_AND_VALUE),
    **contracts(
        "SAC",
        {"actor": (REPARAMETRISED,), "critic": (ACTION_VALUE,)},
        {"actor": (LISTING,), "critic": (Q_VALUES, ACTION_VALUE)},
    ),
}


# %% [markdown]
# ## The check


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
    """Try models against the contract of a family.

    Args:
        family: A key of ``CONTRACTS``, in capitals or not.
        actor: The actor, if the family has one.
        critic: The critic, or a sequence of several.
        qnet: The Q network.
        env: An id or a function that makes an environment, to take states from.
        states: Example states by name instead: tensors with a row each. What is no
            tensor is passed on.
        action_space: The action space, where there is no ``env``.
        action_transform: For actors that return an action: turns the first result and
            the states into the action.

    Raises:
        ContractError: With every rule that is broken. What is legal but harmful is a
            ``UserWarning``.
    """
    contract = find_contract(family)
    spec = None
    if env is not None:
        spec, space, states = examples(env)
    elif states is not None and action_space is not None:
        space = action_space
    else:
        raise ValueError("check_model needs env, or states and action_space")
    parts = parts_for(contract, space)
    given = {"actor": actor, "critic": critic, "qnet": qnet}
    names = [name for name, model in given.items() if model is not None]
    if not names or not set(names) <= set(parts):
        raise ValueError(
            f"{contract.family} checks {' and '.join(parts)}, "
            f"got {' and '.join(names) or 'no model'}"
        )
    if action_transform is not None and parts.get("actor") != (ACTION,):
        raise ValueError("action_transform is for actors that return an action")

    broken: list[Broken] = []
    for name in names:
        models = (
            list(given[name])
            if isinstance(given[name], Sequence | nn.ModuleList)
            else [given[name]]
        )
        for number, model in enumerate(models):
            who = name if len(models) == 1 else f"{name} {number + 1}"
            transform = action_transform if name == "actor" else None
            named = renamed(states, model) if spec and len(spec.names) == 1 else states
            broken += try_model(who, model, parts[name], named, space, transform)

    for item in broken:
        if item.rule.harmful:
            warnings.warn(f"{contract.family}: {item}", stacklevel=2)
    if illegal := [item for item in broken if not item.rule.harmful]:
        raise ContractError(contract.family, illegal)


def find_contract(family: str) -> Contract:
    """Return a contract by the name of the family, in capitals or not."""
    by_name = {name.lower(): contract for name, contract in CONTRACTS.items()}
    if str(family).lower() not in by_name:
        raise ValueError(
            f"family must be one of {', '.join(CONTRACTS)}, got {family!r}"
        )
    return by_name[family.lower()]


def parts_for(
    contract: Contract, space: spaces.Space[Any]
) -> dict[str, tuple[Role, ...]]:
    """Return the roles that a contract has for an action space."""
    if not isinstance(space, spaces.Discrete | spaces.Box):
        raise ValueError(f"the action space must be Discrete or a Box, got {space}")
    discrete = isinstance(space, spaces.Discrete)
    parts = contract.discrete if discrete else contract.continuous
    if not parts:
        kind = "discrete" if discrete else "continuous"
        raise ValueError(f"{contract.family} has no {kind} actions, got {space}")
    return parts


def examples(env: Any) -> tuple[StateSpec, spaces.Space[Any], dict[str, Tensor]]:
    """Return names of states, the action space and states of an environment."""
    with randomness_kept():
        made, seen = watch(env)
    flattened = type(made).__name__ == "FlattenObservation"
    space = made.env.observation_space if flattened else made.observation_space  # type: ignore[attr-defined]
    spec = state_spec(space)
    rows = seen if flattened else [spaces.flatten(space, x) for x in seen]
    flat = torch.as_tensor(np.stack(rows)).float()
    made.close()
    return spec, made.action_space, spec.split(flat)


def renamed(states: Mapping[str, Any], model: Any) -> Mapping[str, Any]:
    """Call a lone state as the model's only argument is called."""
    required = [name for name in required_arguments(model) if name != "action"]
    return dict(zip(required, states.values())) if len(required) == 1 else states  # noqa: B905


def try_model(
    who: str,
    model: Any,
    roles: Sequence[Role],
    states: Mapping[str, Any],
    space: spaces.Space[Any],
    transform: Callable[..., Any] | None,
) -> list[Broken]:
    """Try one model against its role; return the rules that it breaks."""
    takes_one = "action" in forward_parameters(model)
    role = next((r for r in roles if bool(r.action) == takes_one), roles[0])
    try:
        probe = Probe(model, states, space, role.action == "action", transform)
    except RuntimeError as error:
        finding = Finding("must be copied by copy.deepcopy", f"raised {error}")
        return [Broken(who, COPIES, finding)]
    broken, failed = [], set()
    with randomness_kept(probe.model):
        for rule in role.rules:
            if failed & {*rule.after}:
                failed.add(rule.name)
                continue
            try:
                findings = list(rule.check(probe))
            except Exception as error:
                reason = str(error).strip().partition("\n")[0]
                findings = [
                    Finding(rule.text, f"raised {type(error).__name__}: {reason}")
                ]
            broken += [Broken(who, rule, finding) for finding in findings]
            failed |= {rule.name} if findings else set()
    return broken


COPIES = Rule(
    "M28", "copies", "can be copied, for target networks", lambda probe: iter(())
)


# %% [markdown]
# ## Models that pass


# %% tags=["export"]
def layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Build two hidden layers with ReLU."""
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )


class QNetwork(nn.Module):
    """A value for each action: for DQN and its relatives."""

    def __init__(self, state_dim: int, action_num: int, hidden: int = 128) -> None:
        super().__init__()
        self.net = layers(state_dim, hidden, action_num)

    def forward(self, state: Tensor) -> Tensor:
        """Return Q values."""
        q_value: Tensor = self.net(state)
        return q_value


class DuelingQNetwork(nn.Module):
    """The value of the state, and what each action adds to it."""

    def __init__(self, state_dim: int, action_num: int, hidden: int = 128) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(state_dim, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
        )
        self.advantage = nn.Linear(hidden, action_num)
        self.value = nn.Linear(hidden, 1)

    def forward(self, state: Tensor) -> Tensor:
        """Return Q values, whose mean over the actions is the value."""
        features = self.body(state)
        advantage = self.advantage(features)
        q_value: Tensor = (
            self.value(features) + advantage - advantage.mean(-1, keepdim=True)
        )
        return q_value


class CategoricalQNetwork(nn.Module):
    """A distribution over returns for each action: for Rainbow."""

    def __init__(
        self, state_dim: int, action_num: int, atom_num: int = 51, hidden: int = 128
    ) -> None:
        super().__init__()
        self.net = layers(state_dim, hidden, action_num * atom_num)
        self.shape = (action_num, atom_num)

    def forward(self, state: Tensor) -> Tensor:
        """Return probabilities of the atoms."""
        return self.net(state).unflatten(-1, self.shape).softmax(-1)


class DeterministicActor(nn.Module):
    """One continuous action, stretched to its box: for DDPG and its relatives."""

    middle: Tensor
    reach: Tensor

    def __init__(self, state_dim: int, low: Any, high: Any, hidden: int = 128) -> None:
        super().__init__()
        box(self, low, high)
        self.net = layers(state_dim, hidden, self.middle.numel())

    def forward(self, state: Tensor) -> Tensor:
        """Return actions."""
        return self.middle + self.reach * self.net(state).tanh()


def box(module: nn.Module, low: Any, high: Any) -> None:
    """Give a module the middle of a box and half of its width, as buffers."""
    low, high = (torch.as_tensor(x, dtype=torch.float32) for x in (low, high))
    module.register_buffer("middle", (low + high) / 2)
    module.register_buffer("reach", (high - low) / 2)


class ProbabilityActor(nn.Module):
    """The probabilities of discrete actions: for DDPG."""

    def __init__(self, state_dim: int, action_num: int, hidden: int = 128) -> None:
        super().__init__()
        self.net = layers(state_dim, hidden, action_num)

    def forward(self, state: Tensor) -> Tensor:
        """Return probabilities."""
        return self.net(state).softmax(-1)


class CategoricalActor(nn.Module):
    """A discrete action, drawn and judged: for A2C, PPO, A3C, IMPALA and SAC."""

    def __init__(self, state_dim: int, action_num: int, hidden: int = 128) -> None:
        super().__init__()
        self.net = layers(state_dim, hidden, action_num)

    def forward(
        self, state: Tensor, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return actions, log-probabilities, entropies and all log-probabilities."""
        log_probs = self.net(state).log_softmax(-1)
        if action is None:
            action = torch.multinomial(log_probs.exp(), 1)
        entropy = -(log_probs.exp() * log_probs).sum(-1, keepdim=True)
        return action, log_probs.gather(-1, action), entropy, log_probs

    def mode(self, state: Tensor) -> Tensor:
        """Return the most likely actions."""
        return self.net(state).argmax(-1, keepdim=True)


class SquashedGaussianActor(nn.Module):
    """A continuous action that is drawn inside of its box, and judged."""

    middle: Tensor
    reach: Tensor

    def __init__(self, state_dim: int, low: Any, high: Any, hidden: int = 128) -> None:
        super().__init__()
        box(self, low, high)
        self.net = layers(state_dim, hidden, 2 * self.middle.numel())

    def forward(
        self, state: Tensor, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions, log-densities and entropies."""
        mu, log_sigma = self.net(state).chunk(2, -1)
        log_sigma = log_sigma.clamp(-5.0, 2.0)
        # An action of our own is never inverted: $u$ is known.
        drawn = mu + log_sigma.exp() * torch.randn_like(mu)
        u = drawn
        if action is None:
            action = self.middle + self.reach * drawn.tanh()
        else:
            u = unsquash((action - self.middle) / self.reach)
        log_prob = squashed_log_prob(u, mu, log_sigma, self.reach)
        # No formula is known for the entropy; one sample of it has the right mean.
        entropy = -squashed_log_prob(drawn, mu, log_sigma, self.reach)
        return action, log_prob.unsqueeze(-1), entropy.unsqueeze(-1)

    def mode(self, state: Tensor) -> Tensor:
        """Return the actions without noise."""
        return self.middle + self.reach * self.net(state).chunk(2, -1)[0].tanh()


@checked
def squashed_log_prob(
    u: Float[Tensor, "*B A"],
    mu: Float[Tensor, "*B A"],
    log_sigma: Float[Tensor, "*B A"],
    reach: Float[Tensor, "A"],
) -> Float[Tensor, "*B"]:
    """Return the log-density of the action ``reach * tanh(u)``, where u is Gaussian."""
    distance = (u - mu) * (-log_sigma).exp()
    gaussian = -(0.5 * distance.square() + log_sigma + 0.5 * math.log(2 * math.pi))
    jacobian = 2 * (math.log(2) - u - softplus(-2 * u)) + reach.log()
    return (gaussian - jacobian).sum(-1)


def unsquash(ratio: Tensor) -> Tensor:
    """Return the u of ``tanh(u)``, as far as the numbers tell."""
    edge = torch.nextafter(torch.ones_like(ratio), torch.zeros_like(ratio)).double()
    # In float64, and from 1 + x and 1 - x apart.
    x = ratio.double().clamp(-edge, edge)
    return (0.5 * (x.log1p() - (-x).log1p())).to(ratio)


class StateValue(nn.Module):
    """The value of a state."""

    def __init__(self, state_dim: int, hidden: int = 128) -> None:
        super().__init__()
        self.net = layers(state_dim, hidden, 1)

    def forward(self, state: Tensor) -> Tensor:
        """Return values."""
        value: Tensor = self.net(state)
        return value


class ActionValue(nn.Module):
    """The value of an action in a state."""

    def __init__(self, state_dim: int, action_dim: int, hidden: int = 128) -> None:
        super().__init__()
        self.net = layers(state_dim + action_dim, hidden, 1)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """Return values."""
        q_value: Tensor = self.net(torch.cat([state, action], -1))
        return q_value
