# Generated from chapters/contracts.py (edit there); digest e58032fc901e227a
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


@rule("M39", "copies")
def takes_optional_action(probe: Probe) -> Iterator[Finding]:
    """Takes action, with the default None."""
    given = probe.parameters.get("action")
    if given is None or given.default is not None:
        came = "there is none" if given is None else f"got {given}"
        yield Finding("must take action=None", came)


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


@rule("M32", "q_value learns")
def leads_through_action(probe: Probe) -> Iterator[Finding]:
    """q_value has a gradient with respect to the action."""
    action = probe.actions(5).requires_grad_()
    value = probe.call(5, action)[0]
    (grad,) = torch.autograd.grad(value.sum(), action, allow_unused=True)
    if grad is None or not grad.abs().max() > 0:
        yield Finding("a gradient must flow from q_value to the action", "none does")


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
