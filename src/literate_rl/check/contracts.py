# Generated from chapters/contracts.py (edit there); digest e503e91cfd0b5bc7
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


def takes_action(probe: Probe) -> None:
    """Takes action (an actor with the default None)."""
    given: Any = probe.parameters.get("action")
    demand(given is not None, "must take an argument called action", "there is none")
    fits = probe.action == "action" or given.default is None
    demand(fits, "must take action=None", f"got {given}")


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


def leads_through_action(probe: Probe) -> None:
    """q_value has a gradient with respect to the action."""
    action = probe.actions(5).requires_grad_()
    value = probe.call(5, action)[0]
    if not value.requires_grad:
        return  # then nothing can be learned from it at all, and another rule says so
    (grad,) = torch.autograd.grad(value.sum(), action, allow_unused=True)
    flows = grad is not None and grad.abs().max() > 0
    demand(flows, "a gradient must flow from q_value to the action", "none does")


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
