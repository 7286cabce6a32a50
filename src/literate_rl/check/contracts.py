# Generated from chapters/contracts.py (edit there); digest caeea1bb890fba97
"""Contracts: what an algorithm demands of a network, as a text and as a check."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from gymnasium import spaces
from torch import Tensor, nn

from literate_rl.check.probes import (
    Finding,
    Probe,
    Rule,
    required_parameters,
    rule,
    try_rules,
    write_contract,
    write_out,
)
from literate_rl.check.rules import (
    action_learns,
    as_it_is,
    copies,
    entropy_fits,
    entropy_learns,
    entropy_varies,
    excess,
    find_contract,
    has_gradient,
    has_shape,
    in_bounds,
    is_an_action,
    keeps_inputs,
    lists_log_probs,
    models_for,
    never_cut_off,
    numbers,
    one_by_one,
    returns_enough,
    roles_for,
    runs_on_batches,
    same_in_both_modes,
    sums_to_one,
    survives_large_states,
    takes_action,
    takes_states,
    tells_apart,
)
from literate_rl.check.states import look_around

__all__ = [
    "CONTRACTS",
    "Broken",
    "Contract",
    "ContractError",
    "Result",
    "Role",
    "check_model",
]


@rule("M39", "copies")
def takes_optional_action(probe: Probe) -> Iterator[Finding]:
    """Takes action, with the default None."""
    given = probe.parameters.get("action")
    if given is None or given.default is not None:
        came = "there is none" if given is None else f"got {given}"
        yield Finding("must take action=None", came)


class Result(NamedTuple):
    """One result of a model: its line in the contract, and the numbers of its rules."""

    row: str
    text: str
    # The number of the rule that it has a gradient; empty if it need not have one.
    learns: str = ""

    @property
    def name(self) -> str:
        """The name alone, such as ``q_value``."""
        return self.text.partition("[")[0]


@rule("M12", "shapes", "numbers")
def rows_apart(probe: Probe) -> Iterator[Finding]:
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
            if torch.equal(row, other) and not off <= 1e-4 * (1 + row.abs().max()):
                expected = "a row must not depend on the other rows"
                yield Finding(
                    expected, f"alone it differs by {off:.3g}", "which dimension?"
                )
                return


@rule("M32", "q_value learns")
def leads_through_action(probe: Probe) -> Iterator[Finding]:
    """q_value has a gradient with respect to the action."""
    action = probe.actions(5).requires_grad_()
    value = probe.call(5, action)[0]
    (grad,) = torch.autograd.grad(value.sum(), action, allow_unused=True)
    if grad is None or not grad.abs().max() > 0:
        yield Finding("a gradient must flow from q_value to the action", "none does")


@rule("M46", "numbers")
def judged_alike(probe: Probe) -> Iterator[Finding]:
    """A given action has the log-probability that it had when it was drawn."""
    drawn, log_prob, *_ = probe.call(5)
    again = probe.call(5, drawn.detach(), luck=1)[1]
    same_shape = again.shape == log_prob.shape
    off = (again - log_prob).abs().max().item() if same_shape else math.inf
    # Undoing a tanh costs some digits.
    if not off <= 2e-3 * (1 + 0.1 * log_prob.abs().max().item()):
        same = "must be the same when it is given"
        expected = f"the log-probability of the sampled action {same}"
        yield Finding(expected, f"differs by {off:.3f}")


@rule("M44", "action", "is_an_action", "as_it_is", "tells_apart")
@torch.no_grad()
def has_unit_mass(probe: Probe) -> Iterator[Finding]:
    """The probabilities of all actions sum to 1."""
    expected = "the probabilities of all actions must sum to 1"
    # Discrete: one row for each action, all in the same state.
    if probe.num_actions is not None:
        every = torch.arange(probe.num_actions).unsqueeze(-1)
        mass = probe.call(len(every), every, row=0)[1].exp().sum().item()
        if not abs(mass - 1) <= 1e-4:
            yield Finding(expected, f"they sum to {mass:.3f}")
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


class Role(NamedTuple):
    """What one network of a contract does, and the rules that it has of its own."""

    # What it takes besides states: nothing, "action" or "action=None".
    action: str
    results: tuple[Result, ...]
    own: tuple[Rule, ...] = ()

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Every rule of the role, in the order in which they are tried."""
        takes = {"action": (takes_action,), "action=None": (takes_optional_action,)}
        calling = (
            *(copies, takes_states, *takes.get(self.action, ())),
            *(runs_on_batches, returns_enough(len(self.results))),
        )
        # A rule about the shape of each result, and about its gradient if it learns.
        many = list(enumerate(self.results))
        shapes = [has_shape(x.row, x.text, i) for i, x in many]
        learns = [has_gradient(x.learns, x.name, i) for i, x in many if x.learns]
        judging = (numbers, *learns, rows_apart, *self.own)
        warned = (keeps_inputs, same_in_both_modes)
        # A rule that comes after "shapes" comes after the shape of every result.
        every = {"shapes": tuple(x.name for x in self.results)}
        return tuple(
            one._replace(after=sum((every.get(x, (x,)) for x in one.after), ()))
            for one in (*calling, *shapes, *judging, *warned)
        )

    def text(self, title: str) -> str:
        """Return the role as its contract prints it."""
        return write_out(title, self.action, [x.text for x in self.results], self.rules)


# Q values, for DQN; a distribution over returns for each action, for Rainbow.
Q_VALUES = Role("", (Result("M14", "q_value[batch_size, action_num]", "M15"),))
DISTRIBUTION = Role(
    "",
    (Result("M22", "q_value_dist[batch_size, action_num, atom_num]", "M27"),),
    (sums_to_one("M25", "q_value_dist", "sum(q_value_dist[i, j, :]) == 1"),),
)
# Critics of a state and of an action.
STATE_VALUE = Role("", (Result("M48", "value[batch_size, 1]", "M48"),))
ACTION_VALUE = Role(
    "action", (Result("M32", "q_value[batch_size, 1]", "M32"),), (leads_through_action,)
)
# Actors that return an action, or the probabilities of all.
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
ALL_LOG_PROBS = Result("M65", "action_log_probs[batch_size, action_num]", "M65")
JUDGED = (
    *(is_an_action, as_it_is, judged_alike, tells_apart),
    *(has_unit_mass, scores_cancel),
    *(entropy_learns, entropy_varies, entropy_fits),
    survives_large_states,
)
# The actor of A2C and its relatives, and those of SAC: continuous and discrete.
DRAWING = Role("action=None", DRAWN, (*JUDGED, never_cut_off))
REPARAMETRISED = Role("action=None", DRAWN, (*JUDGED, action_learns))
LISTING = Role(
    "action=None",
    (*DRAWN, ALL_LOG_PROBS),
    (*JUDGED, never_cut_off, lists_log_probs),
)


class Contract(NamedTuple):
    """What a family demands: for each network the roles that it may play.

    One dictionary is for continuous actions and empty if the family has none.
    """

    family: str
    continuous: dict[str, tuple[Role, ...]]
    discrete: dict[str, tuple[Role, ...]]

    def __str__(self) -> str:
        return write_contract(*self)


Parts = dict[str, tuple[Role, ...]]


def contracts(names: str, continuous: Parts, discrete: Parts) -> dict[str, Contract]:
    """Give several families the same contract."""
    return {name: Contract(name, continuous, discrete) for name in names.split()}


# The critic that an actor learns through, and the two networks of the policy gradient.
THROUGH: Parts = {"critic": (ACTION_VALUE,)}
BESIDE: Parts = {"actor": (DRAWING,), "critic": (STATE_VALUE,)}
DDPG_LIKE = "DDPG DDPGPer DDPGApex HDDPG TD3"
# Names of families, then roles for continuous actions, then roles for discrete ones.
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


class Broken(NamedTuple):
    """A rule that a model breaks: which model, which rule, and what was found."""

    who: str
    rule: Rule
    finding: Finding

    def __str__(self) -> str:
        return f"{self.who}: {self.finding}"


class ContractError(ValueError):
    """Models break the contract of a ``family``; ``broken`` lists every broken rule."""

    def __init__(self, family: str, broken: Sequence[Broken]) -> None:
        self.family, self.broken = family, tuple(broken)
        count = f"{len(broken)} broken rule{'s' * (len(broken) > 1)}"
        super().__init__("\n  ".join([f"{family}: {count}", *map(str, broken)]))

    def __reduce__(self) -> Any:
        """Travel from another process without the checks, which need not have names."""
        none = cast(Any, None)
        bare = [x._replace(rule=x.rule._replace(check=none)) for x in self.broken]
        state = {**vars(self), "broken": tuple(bare)}
        return type(self), (self.family, bare), state


def check_model(
    family: str,
    *,
    actor: nn.Module | None = None,
    critic: nn.Module | Sequence[nn.Module] | None = None,
    qnet: nn.Module | None = None,
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
        env: An id or a function that makes an environment.
        states: Without ``env``, example states by name: tensors with a row for each.
            What is not a tensor is passed on unchanged.
        action_space: Needed with ``states``.
        action_transform: Turns the action of an actor, and its states, into the action
            that is used.

    Raises:
        ContractError: With every rule that is broken. A warning is a ``UserWarning``.
    """
    contract: Contract = find_contract(CONTRACTS, family)
    if (env is None) == (states is None or action_space is None):
        raise ValueError("check_model needs either env, or states and action_space")
    if env is not None:
        spec, action_space, obs = look_around(env)
    roles = roles_for(contract, action_space)
    models = models_for(contract.family, roles, actor=actor, critic=critic, qnet=qnet)
    if action_transform is not None and roles.get("actor") != (ACTION,):
        raise ValueError(
            "action_transform is for actors that return a continuous action"
        )

    # What is harmful is said of each model, what is illegal of all in one error.
    broken = []
    for part, who, model in one_by_one(models):
        named = states if env is None else spec.named_for(model).split(obs)
        transform = action_transform if part == "actor" else None
        broken += try_model(who, model, roles[part], named, action_space, transform)
    for item in broken:
        if item.rule.harmful:
            warnings.warn(f"{contract.family}: {item}", stacklevel=2)
    if illegal := [item for item in broken if not item.rule.harmful]:
        raise ContractError(contract.family, illegal)


def try_model(
    who: str,
    model: nn.Module,
    roles: Sequence[Role],
    states: Any,
    space: Any,
    transform: Any,
) -> list[Broken]:
    """Return every rule that a model breaks, in the role that it seems to play."""
    takes_one = "action" in required_parameters(model)
    fitting = [role for role in roles if (role.action == "action") == takes_one]
    role = (fitting or list(roles))[0]
    probe = Probe(model, states, space, role.action, transform)
    return [Broken(who, *found) for found in try_rules(probe, role.rules)]
