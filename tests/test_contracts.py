"""Contracts: who keeps them passes, who breaks a rule is caught by its row.

``CASES`` has for each rule of each role a model that breaks this rule and no other. A
new rule without such a model fails ``test_every_rule_has_a_model_that_breaks_it``.
"""

from __future__ import annotations

import copy
import math
import random
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from worlds import Tower, TwoStates

from literate_rl.book.contract_models import (
    ActionValue,
    CategoricalActor,
    CategoricalQNetwork,
    DeterministicActor,
    ProbabilityActor,
    QNetwork,
    SquashedGaussianActor,
    StateValue,
)
from literate_rl.check import contracts
from literate_rl.check.contracts import CONTRACTS, ContractError, Role, check_model
from literate_rl.runs.runs import flat_env

SEED_FAMILIES = "DQN DQNPer DQNApex RAINBOW DDPG DDPGPer DDPGApex HDDPG TD3 A2C PPO A3C"
SEED_FAMILIES += " IMPALA SAC Dueling"
STATE = torch.randn(6, 4, generator=torch.Generator().manual_seed(3))
DISCRETE = spaces.Discrete(3)
BOX = spaces.Box(np.float32([-2, -1]), np.float32([2, 3]))


# --- Models that break one rule -------------------------------------------------------


class Bent(nn.Module):
    """A good model whose results are changed by ``bend(results, arguments)``."""

    def __init__(self, good: nn.Module, bend: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.good, self.bend = good, bend or (lambda results, **_: results)


class OfStates(Bent):
    def forward(self, state: Tensor) -> Any:
        return self.bend(self.good(state), state=state)


class OfActions(Bent):
    def forward(self, state: Tensor, action: Tensor) -> Any:
        return self.bend(self.good(state, action), state=state, action=action)


class Drawing(Bent):
    def forward(self, state: Tensor, action: Tensor | None = None) -> Any:
        given = action
        if action is not None:
            given = action.reshape(len(action), -1)
            given = given if action.is_floating_point() else given.long()
        results = self.good(state, given)
        # What is given comes back in the form that it came in.
        results = results if action is None else (action, *results[1:])
        return self.bend(results, state=state, action=action)


class Misnamed(nn.Module):
    """Takes another state than the one there is."""

    def __init__(self, good: nn.Module) -> None:
        super().__init__()
        self.good = good

    def forward(self, position: Tensor, action: Tensor | None = None) -> Any:
        return self.good(position, *(() if action is None else (action,)))


class MisnamedCritic(Misnamed):
    def forward(self, position: Tensor, action: Tensor) -> Any:
        return self.good(position, action)


class NoDefault(Bent):
    def forward(self, state: Tensor, action: Tensor) -> Any:
        return self.good(state, action)


class Fixed(Bent):
    """A critic that has no argument ``action``."""

    def forward(self, state: Tensor) -> Any:
        return self.good(state, torch.zeros(len(state), 2))


def uncopied(model: Bent) -> Bent:
    model.cache = torch.ones(2, requires_grad=True) * 2
    return model


def with_dropout(model: Bent) -> Bent:
    model.dropout = nn.Dropout()
    return model


def at(index: int, change: Callable[..., Tensor]) -> Callable[..., Any]:
    """Bend one result of several, or the only one."""

    def bend(results: Any, **arguments: Any) -> Any:
        if isinstance(results, Tensor):
            return change(results)
        changed = list(results)
        changed[index] = change(changed[index])
        return tuple(changed)

    return bend


def refuse_one_row(results: Any, state: Tensor, **_: Any) -> Any:
    if len(state) == 1:
        raise ValueError("one row is too few")
    return results


def write(results: Any, state: Tensor, **_: Any) -> Any:
    # Past autograd, so that the gradients are not refused.
    state.data.add_(1.0)
    return results


def breakers_of_all(
    make: Callable[..., Bent], misnamed: type[Misnamed], name: str, index: int = 0
) -> dict[str, Callable[[], nn.Module]]:
    """Return what breaks the rules that every role has."""
    return {
        "copies": lambda: uncopied(make()),
        "takes_states": lambda: misnamed(make().good),
        "runs_on_batches": lambda: make(refuse_one_row),
        "results": lambda: make(lambda results, **_: {"first": results}),
        name: lambda: make(at(index, lambda x: x.unsqueeze(1))),
        "numbers": lambda: make(at(index, lambda x: x * math.nan)),
        f"{name} learns": lambda: make(at(index, lambda x: x.detach())),
        "rows_apart": lambda: make(at(index, lambda x: x.roll(1, 0))),
        "keeps_inputs": lambda: make(write),
        "same_in_both_modes": lambda: with_dropout(make()),
    }


# Actors that draw.


def redraw(results: Any, state: Tensor, action: Tensor | None) -> Any:
    """Return another action than the given one, and judge the given one."""
    shift = 0 if action is None else 1
    return ((results[0] + shift) % 3, *results[1:])


def moved_when_given(results: Any, state: Tensor, action: Tensor | None) -> Any:
    return (results[0] + (0.0 if action is None else 0.1), *results[1:])


def other_when_given(results: Any, state: Tensor, action: Tensor | None) -> Any:
    shift = 0.0 if action is None else 0.5
    return (results[0], results[1] + shift, *results[2:])


def drawn(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """Bend the actions that are drawn, and leave those that are given."""

    def bend(results: Any, action: Tensor | None, state: Tensor) -> Any:
        first = change(results[0]) if action is None else action
        return (first, *results[1:])

    return bend


def same_for_all(results: Any, **_: Any) -> Any:
    best = results[3].max(-1, keepdim=True).values
    return (results[0], best, results[2], best.expand(-1, 3))


def heavier(results: Any, **_: Any) -> Any:
    return (results[0], results[1] + 0.3, results[2], results[3] + 0.3)


def infinite_when_large(results: Any, state: Tensor, **_: Any) -> Any:
    near = (state.abs().max() < 700).float()
    return (results[0], results[1] / near, *results[2:])


def cut_off(results: Any, **_: Any) -> Any:
    least = math.log(torch.finfo(torch.float32).eps)
    return (results[0], results[1].clamp(min=least), *results[2:])


class Twice(CategoricalActor):
    """Draws from its logits and judges by twice their size."""

    def forward(self, state: Tensor, action: Tensor | None = None) -> Any:
        logits = self.net(state)
        if action is None:
            action = torch.multinomial(logits.softmax(-1), 1)
        judge = Categorical(logits=2 * logits)
        log_prob = judge.log_prob(action.squeeze(-1))
        columns = log_prob.unsqueeze(-1), judge.entropy().unsqueeze(-1)
        return action, *columns, (2 * logits).log_softmax(-1)


class NoJacobian(SquashedGaussianActor):
    """Judges a squashed action by the density before the squash."""

    def forward(self, state: Tensor, action: Tensor | None = None) -> Any:
        mu, log_sigma = self.net(state).chunk(2, -1)
        gaussian = Normal(mu, log_sigma.clamp(-5, 2).exp())
        u = gaussian.rsample() if action is None else self.box.undo(action)
        out = self.box(u) if action is None else action
        log_prob = gaussian.log_prob(u).sum(-1, keepdim=True)
        return out, log_prob, gaussian.entropy().sum(-1, keepdim=True)


class Turned(nn.Linear):
    """Draws discrete actions, and returns the entropy times a factor."""

    factor = -1.0

    def forward(self, state: Tensor, action: Tensor | None = None) -> Any:
        dist = Categorical(logits=super().forward(state))
        drawn = dist.sample() if action is None else action.squeeze(-1)
        columns = drawn, dist.log_prob(drawn), self.factor * dist.entropy()
        return tuple(column.unsqueeze(-1) for column in columns)


@pytest.mark.parametrize(("factor", "hint"), [(-1.0, "the wrong sign"), (3.0, None)])
def test_a_wrong_entropy_of_discrete_actions_gets_a_hint_that_can_be_true(
    factor: float, hint: str | None
) -> None:
    torch.manual_seed(0)
    actor = Turned(4, 2)
    actor.factor = factor
    with pytest.warns(UserWarning, match="mean of minus log-probabilities") as told:
        contracts.check_model("A2C", actor=actor, env="CartPole-v1")
    [words] = [str(one.message) for one in told]
    assert "squash" not in words
    assert ("sign" in words) == bool(hint)


class Rounded(Drawing):
    """Draws whole numbers, of the dtype of whole numbers, where any number is meant."""

    def forward(self, state: Tensor, action: Tensor | None = None) -> Any:
        if action is None:
            action = self.good(state)[0].round().long()
        return action, *self.good(state, action.float())[1:]


class Narrow(Drawing):
    """Draws with half of the spread that it judges by."""

    def forward(self, state: Tensor, action: Tensor | None = None) -> Any:
        if action is None:
            action = 0.5 * self.good(state)[0]
        return action, *self.good(state, action)[1:]


class Blind(Drawing):
    """Has a log-probability that never looks at the action."""

    def __init__(self, good: nn.Module) -> None:
        super().__init__(good)
        self.value = StateValue(4)

    def forward(self, state: Tensor, action: Tensor | None = None) -> Any:
        results = self.good(state, action)
        return results[0], self.value(state), results[2]


def categorical(bend: Callable[..., Any] | None = None) -> Drawing:
    return Drawing(CategoricalActor(4, 3), bend)


def squashed(bend: Callable[..., Any] | None = None) -> Drawing:
    return Drawing(SquashedGaussianActor(4, BOX.low, BOX.high), bend)


def with_constant_entropy(make: Callable[..., Bent]) -> Bent:
    """Return an actor that tells its entropy at the first state, wherever it is."""
    model = make()
    with torch.no_grad():
        level = model(STATE[:1].expand(4000, -1))[2].mean()
    model.bend = at(2, lambda x: torch.zeros_like(x) + level)
    return model


def breakers_of_drawing(make: Callable[..., Bent]) -> dict[str, Any]:
    """Return what breaks the rules of an actor that draws discrete actions."""
    return {
        **breakers_of_all(make, Misnamed, "action_log_prob", 1),
        # One result may be rolled without a contradiction to the others.
        "rows_apart": lambda: make(at(2, lambda x: x.roll(1, 0))),
        "results": lambda: make(lambda results, **_: results[:2]),
        "takes_action": lambda: NoDefault(make().good),
        "action": lambda: make(drawn(lambda x: x.squeeze(-1))),
        "distribution_entropy": lambda: make(at(2, lambda x: x.squeeze(-1))),
        "is_an_action": lambda: make(drawn(lambda x: x.int())),
        "as_it_is": lambda: make(redraw),
        "judged_alike": lambda: make(other_when_given),
        "tells_apart": lambda: make(same_for_all),
        "has_unit_mass": lambda: make(heavier),
        "scores_cancel": lambda: Twice(4, 3),
        "entropy_learns": lambda: make(at(2, lambda x: x.detach())),
        "entropy_learns, constant": lambda: with_constant_entropy(make),
        "entropy_fits": lambda: make(at(2, lambda x: x + 1)),
        "survives_large_states": lambda: make(infinite_when_large),
        "survives_large_states, cut off": lambda: make(cut_off),
    }


def breakers_of_squashing(make: Callable[..., Bent]) -> dict[str, Any]:
    """Return what breaks the rules of an actor that draws continuous actions."""
    return {
        **breakers_of_all(make, Misnamed, "action_log_prob", 1),
        "results": lambda: make(lambda results, **_: results[:2]),
        "takes_action": lambda: NoDefault(make().good),
        "action": lambda: make(drawn(lambda x: x.unsqueeze(1))),
        "distribution_entropy": lambda: make(at(2, lambda x: x.expand(-1, 2))),
        "is_an_action": lambda: Rounded(make().good),
        "as_it_is": lambda: make(moved_when_given),
        "judged_alike": lambda: make(other_when_given),
        "tells_apart": lambda: Blind(make().good),
        "has_unit_mass": lambda: NoJacobian(4, BOX.low, BOX.high),
        "scores_cancel": lambda: Narrow(make().good),
        "entropy_learns": lambda: make(at(2, lambda x: x.detach())),
        "entropy_learns, constant": lambda: with_constant_entropy(make),
        "entropy_fits": lambda: make(at(2, lambda x: x + 1)),
        "survives_large_states": lambda: make(infinite_when_large),
    }


def q_values(bend: Callable[..., Any] | None = None) -> OfStates:
    return OfStates(QNetwork(4, 3), bend)


def atoms(bend: Callable[..., Any] | None = None) -> OfStates:
    return OfStates(CategoricalQNetwork(4, 3, 11), bend)


def value(bend: Callable[..., Any] | None = None) -> OfStates:
    return OfStates(StateValue(4), bend)


def deterministic(bend: Callable[..., Any] | None = None) -> OfStates:
    return OfStates(DeterministicActor(4, BOX.low, BOX.high), bend)


def probabilities(bend: Callable[..., Any] | None = None) -> OfStates:
    return OfStates(ProbabilityActor(4, 3), bend)


def judge(bend: Callable[..., Any] | None = None) -> OfActions:
    return OfActions(ActionValue(4, 2), bend)


class Detached(OfActions):
    """A critic that stops the gradient with respect to its action."""

    def forward(self, state: Tensor, action: Tensor) -> Any:
        return self.good(state, action.detach())


# For each role: a family and a kind of action that has it, a good model, and what
# breaks its rules. A role may stand here twice, with two kinds of action.
Case = tuple[str, str, Any, Role, Callable[..., Bent], dict[str, Any]]
CASES: dict[str, Case] = {
    "q_values": (
        *("DQN", "qnet", DISCRETE, contracts.Q_VALUES, q_values),
        breakers_of_all(q_values, Misnamed, "q_value"),
    ),
    "distribution": (
        *("RAINBOW", "qnet", DISCRETE, contracts.DISTRIBUTION, atoms),
        {
            **breakers_of_all(atoms, Misnamed, "q_value_dist"),
            "sums": lambda: atoms(at(0, lambda x: x.log())),
        },
    ),
    "state_value": (
        *("A2C", "critic", DISCRETE, contracts.STATE_VALUE, value),
        breakers_of_all(value, Misnamed, "value"),
    ),
    "action_value": (
        *("TD3", "critic", BOX, contracts.ACTION_VALUE, judge),
        {
            **breakers_of_all(judge, MisnamedCritic, "q_value"),
            "takes_action": lambda: Fixed(judge().good),
            "leads_through_action": lambda: Detached(judge().good),
        },
    ),
    "action": (
        *("DDPG", "actor", BOX, contracts.ACTION, deterministic),
        {
            **breakers_of_all(deterministic, Misnamed, "action"),
            "in_bounds": lambda: deterministic(at(0, lambda x: 2 * x)),
        },
    ),
    "probabilities": (
        *("DDPG", "actor", DISCRETE, contracts.PROBABILITIES, probabilities),
        {
            **breakers_of_all(probabilities, Misnamed, "action"),
            "sums": lambda: probabilities(at(0, lambda x: 1.1 * x)),
        },
    ),
    "drawing": (
        *("PPO", "actor", DISCRETE, contracts.DRAWING, categorical),
        breakers_of_drawing(categorical),
    ),
    "drawing in a box": (
        *("PPO", "actor", BOX, contracts.DRAWING, squashed),
        breakers_of_squashing(squashed),
    ),
    "reparametrised": (
        *("SAC", "actor", BOX, contracts.REPARAMETRISED, squashed),
        {
            **breakers_of_squashing(squashed),
            "action_learns": lambda: squashed(drawn(lambda x: x.detach())),
        },
    ),
    "listing": (
        *("SAC", "actor", DISCRETE, contracts.LISTING, categorical),
        {
            **breakers_of_drawing(categorical),
            "action_log_probs": lambda: categorical(at(3, lambda x: x[:, 1:])),
            "action_log_probs learns": lambda: categorical(at(3, lambda x: x.detach())),
            "lists_log_probs": lambda: categorical(at(3, lambda x: 0.9 * x)),
        },
    ),
}
PAIRS = [(case, name) for case in CASES for name in CASES[case][-1]]


def broken_by(
    family: str, states: dict[str, Any] | None = None, space: Any = None, **models: Any
) -> list[contracts.Broken]:
    """Return every rule that models break, warnings too."""
    found: list[contracts.Broken] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_model(
                family,
                states=states or {"state": STATE},
                action_space=space or DISCRETE,
                **models,
            )
        except ContractError as error:
            found += error.broken
    harmful = [str(item.message) for item in caught]
    return found + harmful


def rules_of(role: Role) -> dict[str, Any]:
    """Return the rules of a role by name."""
    return {rule.__name__: rule for stage in role.stages for rule in stage}


@pytest.mark.parametrize(("case", "name"), PAIRS)
def test_who_breaks_a_rule_is_caught_by_it_alone(case: str, name: str) -> None:
    family, part, space, role, _, breakers = CASES[case]
    torch.manual_seed(1)
    model = breakers[name]()
    broken = broken_by(family, space=space, **{part: model})
    assert len(broken) == 1, "\n".join(map(str, broken))
    rule = rules_of(role)[name.partition(",")[0]]
    probe = contracts.Probe(model, {"state": STATE}, space, role.action)
    finding = next(contracts.try_rules(probe, [[rule]]))[1]
    if finding.harmful:
        assert broken[0].startswith(f"{family}: {part}: {finding.expected}")
    else:
        assert (broken[0].who, broken[0].rule) == (part, name)


@pytest.mark.parametrize("case", CASES)
def test_who_keeps_every_rule_passes(case: str) -> None:
    family, part, space, _, make, _ = CASES[case]
    for seed in range(3):
        torch.manual_seed(seed)
        assert broken_by(family, space=space, **{part: make().good}) == []
        assert broken_by(family, space=space, **{part: make()}) == []


def test_every_rule_has_a_model_that_breaks_it() -> None:
    has: dict[Role, set[str]] = {}
    for *_, role, _, breakers in CASES.values():
        names = {name.partition(",")[0] for name in breakers}
        has[role] = has.get(role, set()) | names
    for contract in CONTRACTS.values():
        for parts in (contract.continuous, contract.discrete):
            for role in sum(parts.values(), ()):
                missing = {*rules_of(role)} - has[role]
                assert not missing, f"{contract.family}: {missing}"


def test_rules_of_a_role_have_names_of_their_own() -> None:
    for *_, role, _, _ in CASES.values():
        names = [rule.__name__ for stage in role.stages for rule in stage]
        assert len(set(names)) == len(names)


# --- The seed's families and examples -------------------------------------------------


def test_all_families_of_the_page_have_a_contract() -> None:
    assert set(CONTRACTS) == set(SEED_FAMILIES.split())
    assert {name: contract.family for name, contract in CONTRACTS.items()} == {
        name: name for name in CONTRACTS
    }


@pytest.mark.parametrize("family", CONTRACTS)
def test_a_contract_prints_every_rule(family: str) -> None:
    contract, text = CONTRACTS[family], str(CONTRACTS[family])
    assert text.startswith(f"{family}\n")
    assert "state_0[batch_size, ...]" in text
    for parts in (contract.continuous, contract.discrete):
        for role in sum(parts.values(), ()):
            assert all(contracts.text_of(x) in text for x in rules_of(role).values())
            assert all(result in text for result in role.results)


@pytest.mark.parametrize(
    ("family", "lines"),
    [
        ("DQN", "-> q_value[batch_size, action_num],\n   <...>"),
        ("RAINBOW", "-> q_value_dist[batch_size, action_num, atom_num],\n   <...>"),
        ("DDPG", " action[batch_size, .../action_num])\n-> q_value[batch_size, 1]"),
        ("A2C", " action[batch_size, ...]=None)\n-> action[batch_size, ...],"),
        ("SAC", "   distribution_entropy[batch_size, 1],\n   <...>"),
    ],
)
def test_a_contract_has_the_notation_of_the_page(family: str, lines: str) -> None:
    assert lines in str(CONTRACTS[family])


def test_a_contract_says_which_actions_where_it_matters() -> None:
    kinds = ["# continuous actions", "# discrete actions"]
    for family, titles in (
        ("DDPG", [kinds[0], "Actor", "Critic", kinds[1], "Actor", "Critic"]),
        ("A2C", ["Actor", "Critic"]),
        ("DQN", ["QNet"]),
    ):
        name, *texts = str(CONTRACTS[family]).split("\n\n")
        assert name == family
        assert [text.partition("(")[0] for text in texts] == titles


def test_the_error_is_printed_line_by_line() -> None:
    class Squashed(nn.Module):
        """Machin's continuous actor, which squashes twice."""

        def __init__(self) -> None:
            super().__init__()
            self.mu, self.sigma = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, state: Tensor, action: Tensor | None = None) -> Any:
            gaussian = Normal(self.mu(state), nn.functional.softplus(self.sigma(state)))
            act = gaussian.rsample() if action is None else action
            log_prob = gaussian.log_prob(act)
            log_prob = log_prob - torch.log(2 * (1 - act.tanh().pow(2)) + 1e-6)
            return act.tanh() * 2, log_prob.sum(1, keepdim=True), gaussian.entropy()

    torch.manual_seed(0)
    models = {"actor": Squashed(), "critic": ActionValue(4, 2)}
    box = spaces.Box(-2, 2, (2,))
    error = ContractError("SAC", broken_by("SAC", space=box, **models)[:3])
    *first, last = str(error).split("\n")
    assert first == [
        "SAC: 3 broken rules",
        "  actor: distribution_entropy must have shape (5, 1), got (5, 2) "
        "(sum over the dimensions, keepdim)",
        "  actor: a given action must be returned as it is",
    ]
    expected = (
        "  actor: the log-probability of the sampled action must be the same when "
    )
    assert last.startswith(f"{expected}it is given, differs by ")
    assert [x.rule for x in error.broken] == [
        "distribution_entropy",
        "as_it_is",
        "judged_alike",
    ]
    assert error.family == "SAC"


def test_one_model_serves_several_families() -> None:
    model = QNetwork(4, 3)
    for family in ("DQN", "DQNPer", "DQNApex", "Dueling", "dqn"):
        check_model(family, qnet=model, states={"state": STATE}, action_space=DISCRETE)


# --- Arguments ------------------------------------------------------------------------


def test_two_states_extras_options_and_things_that_are_no_tensors() -> None:
    states = {"pole": STATE[:, :2], "cart": STATE}
    check_model("DQN", qnet=TwoStates(), states=states, action_space=DISCRETE)
    mixed = {**states, "mode": "other"}
    check_model("DQN", qnet=TwoStates(), states=mixed, action_space=DISCRETE)
    fewer = {"pole": STATE[:, :2]}
    with pytest.raises(ContractError, match=r"must take the states \(pole\) by name"):
        check_model("DQN", qnet=TwoStates(), states=fewer, action_space=DISCRETE)
    more = {**states, "track": STATE}
    with pytest.raises(ContractError, match="cart, track"):
        check_model("DQN", qnet=TwoStates(), states=more, action_space=DISCRETE)


class Vague(nn.Module):
    def forward(self, *states: Tensor, **others: Tensor) -> Any:
        return torch.zeros(len(states[0]), 3)


def test_open_arguments_are_refused_with_a_hint() -> None:
    error = broken_by("DQN", qnet=Vague())[0]
    assert error.rule == "takes_states"
    assert "*states" in error.finding.came
    assert "write out each argument" in error.finding.hint


def test_a_lone_state_takes_the_name_of_the_models_argument() -> None:
    class Picture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 2)

        def forward(self, whatever_it_is_called: Tensor) -> Tensor:
            return self.net(whatever_it_is_called)

    check_model("DQN", qnet=Picture(), env="CartPole-v1")


class Seeing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.eye, self.net = nn.Conv2d(3, 4, 3), nn.Linear(4 * 16 + 2, 3)

    def forward(self, picture: Tensor, speed: Tensor) -> Tensor:
        assert picture.dtype == torch.uint8
        seen = self.eye(picture / 255.0).flatten(1)
        return self.net(torch.cat([seen, speed], -1))


@pytest.mark.parametrize("make", [Tower, partial(flat_env, Tower)])
def test_states_of_an_environment_by_name(make: Any) -> None:
    check_model("DQN", qnet=Seeing(), env=make)
    with pytest.raises(ContractError, match=r"\(picture, speed\) by name"):
        check_model("DQN", qnet=QNetwork(2, 3), env=make)


def test_bad_calls_say_what_is_missing() -> None:
    qnet, states = QNetwork(4, 3), {"state": STATE}
    with pytest.raises(ValueError, match=r"family must be one of DQN, .*SAC"):
        check_model("CQL", qnet=qnet, env="CartPole-v1")
    with pytest.raises(ValueError, match="either env, or states and action_space"):
        check_model("DQN", qnet=qnet)
    with pytest.raises(ValueError, match="either env, or states and action_space"):
        check_model("DQN", qnet=qnet, states=states)
    with pytest.raises(ValueError, match="either env, or states and action_space"):
        check_model(
            "DQN", qnet=qnet, env="CartPole-v1", states=states, action_space=DISCRETE
        )
    with pytest.raises(ValueError, match="DQN has qnet, got actor"):
        check_model("DQN", actor=qnet, env="CartPole-v1")
    with pytest.raises(ValueError, match="SAC has actor and critic, got none"):
        check_model("SAC", env="Pendulum-v1")
    with pytest.raises(ValueError, match="DQN needs discrete actions, got Box"):
        check_model("DQN", qnet=qnet, env="Pendulum-v1")
    space = spaces.MultiDiscrete([2, 3])
    with pytest.raises(ValueError, match="Discrete or a Box, got MultiDiscrete"):
        check_model("DQN", qnet=qnet, states=states, action_space=space)
    with pytest.raises(TypeError, match=r"a torch\.nn\.Module, got function"):
        check_model("DQN", qnet=lambda state: state, env="CartPole-v1")
    with pytest.raises(ValueError, match="cannot be made"):
        check_model("DQN", qnet=qnet, env="NoSuchPole-v1")
    with pytest.raises(ValueError, match="action_transform is for actors"):
        check_model(
            "DQN", qnet=qnet, env="CartPole-v1", action_transform=lambda a, s: a
        )


def test_one_example_of_a_state_is_enough() -> None:
    one_example = {"state": STATE[:1]}
    check_model(
        "A2C", actor=CategoricalActor(4, 3), states=one_example, action_space=DISCRETE
    )
    torch.manual_seed(1)
    model = q_values(at(0, lambda x: x + x.mean() * (len(x) > 1)))
    assert [x.rule for x in broken_by("DQN", one_example, qnet=model)] == ["rows_apart"]


def test_several_critics_are_checked_one_by_one() -> None:
    critics = [ActionValue(4, 2), ActionValue(4, 3)]
    for given in (critics, tuple(critics), nn.ModuleList(critics)):
        broken = broken_by("TD3", space=BOX, critic=given)
        assert [x.who for x in broken] == ["critic 2"]


@pytest.mark.parametrize("critic", [QNetwork(4, 3), ActionValue(4, 3)])
def test_discrete_sac_takes_both_kinds_of_critic(critic: nn.Module) -> None:
    assert broken_by("SAC", actor=CategoricalActor(4, 3), critic=critic) == []


def test_an_actor_may_be_adapted() -> None:
    class Raw(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 2)

        def forward(self, state: Tensor) -> Tensor:
            return self.net(state)

    low, high = torch.as_tensor(BOX.low), torch.as_tensor(BOX.high)

    def squash(raw: Tensor, state: dict[str, Tensor]) -> Tensor:
        assert list(state) == ["state"]
        return (low + high) / 2 + (high - low) / 2 * raw.tanh()

    raw = Raw()
    assert [x.rule for x in broken_by("DDPG", space=BOX, actor=raw)] == ["in_bounds"]
    assert broken_by("DDPG", space=BOX, actor=raw, action_transform=squash) == []


def test_batch_normalisation_is_legal_but_harmful() -> None:
    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))

        def forward(self, state: Tensor) -> Tensor:
            return self.net(state)

    (warned,) = broken_by("DQN", qnet=Normalised())
    assert warned == (
        "DQN: qnet: the network that learns should be the one that acts, "
        "BatchNorm1d changes with the mode (LayerNorm, or none)"
    )


@pytest.mark.parametrize("kind", ["gaussian", "clamped"])
def test_a_gaussian_is_left_alone_and_a_clamped_one_is_not(kind: str) -> None:
    class Gaussian(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mu, self.log_sigma = nn.Linear(4, 2), nn.Parameter(torch.zeros(2))

        def forward(self, state: Tensor, action: Tensor | None = None) -> Any:
            gaussian = Normal(self.mu(state), self.log_sigma.exp())
            if action is None:
                action = gaussian.sample()
                if kind == "clamped":
                    action = action.clamp(-1, 1)
            log_prob, entropy = gaussian.log_prob(action), gaussian.entropy()
            return action, log_prob.sum(1, keepdim=True), entropy.sum(1, keepdim=True)

    broken = broken_by("PPO", space=spaces.Box(-1, 1, (2,)), actor=Gaussian())
    names = [x.rule for x in broken if not isinstance(x, str)]
    assert names == ([] if kind == "gaussian" else ["has_unit_mass", "scores_cancel"])


# --- Wrappers -------------------------------------------------------------------------


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, state: Tensor, scale: float) -> Tensor:
        return scale * self.net(state)


def test_the_signature_is_seen_through_partial_and_compile() -> None:
    plain = Scaled()
    assert broken_by("DQN", qnet=plain)[0].rule == "takes_states"
    for wrapped in (
        partial(plain, scale=2.0),
        partial(torch.compile(plain), scale=2.0),
        partial(partial(plain, scale=1.0), scale=2.0),
        torch.compile(QNetwork(4, 3)),
        nn.DataParallel(QNetwork(4, 3)),
    ):
        assert broken_by("DQN", qnet=wrapped) == []
    with pytest.raises(TypeError, match="by name"):
        broken_by("DQN", qnet=partial(plain, STATE))


def test_the_signature_is_seen_through_distributed_training(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", store, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(QNetwork(4, 3))
        assert broken_by("DQN", qnet=wrapped) == []
        wrapped = nn.parallel.DistributedDataParallel(QNetwork(4, 2))
        assert [x.rule for x in broken_by("DQN", qnet=wrapped)] == ["q_value"]
    finally:
        torch.distributed.destroy_process_group()


# --- No trace -------------------------------------------------------------------------


def test_the_model_and_all_random_numbers_stay_as_they_were() -> None:
    class Restless(CategoricalActor):
        """Uses three generators, counts its calls and normalises."""

        def __init__(self) -> None:
            super().__init__(4, 3)
            self.norm = nn.BatchNorm1d(4)
            self.calls = 0

        def forward(self, state: Tensor, action: Tensor | None = None) -> Any:
            self.calls += 1
            np.random.random()
            random.random()
            return super().forward(self.norm(state), action)

    model = Restless()
    state_dict = copy.deepcopy(model.state_dict())
    states = {"state": STATE.clone()}

    def luck() -> Any:
        numpy_state = np.random.get_state()
        return (
            torch.get_rng_state().tolist(),
            numpy_state[1].tolist(),
            random.getstate(),
        )

    before = luck()
    for mode in (True, False):
        model.train(mode)
        assert len(broken_by("A2C", states, actor=model)) == 1, "batch normalisation"
        assert model.training is mode
        assert model.norm.training is mode
    assert model.calls == 0, "it is never run itself"
    assert luck() == before
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state_dict[name]), name
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(states["state"], STATE)


def test_a_check_always_says_the_same() -> None:
    torch.manual_seed(0)
    model = Twice(4, 3)
    first = str(broken_by("A2C", actor=model)[0])
    torch.manual_seed(5)
    assert str(broken_by("A2C", actor=model)[0]) == first


def test_an_actor_that_never_draws_is_found() -> None:
    class Greedy(CategoricalActor):
        def forward(self, state: Tensor, action: Tensor | None = None) -> Any:
            best = self.net(state).argmax(-1, keepdim=True)
            return super().forward(state, best if action is None else action)

    torch.manual_seed(0)
    broken = broken_by("A2C", actor=Greedy(4, 3))
    assert [x.rule for x in broken] == ["scores_cancel"]
    sure = CategoricalActor(4, 3)
    with torch.no_grad():
        sure.net[-1].bias.copy_(torch.tensor([14.0, 0.0, 0.0]))
    assert broken_by("A2C", actor=sure) == [], "a sure policy is no greedy one"


# --- Equations ------------------------------------------------------------------------


@pytest.mark.equation("unit-mass")
def test_probabilities_of_the_categorical_actor_sum_to_one() -> None:
    actor = CategoricalActor(4, 3)
    every = torch.arange(3).unsqueeze(-1)
    _, log_prob, *_ = actor(STATE[:1].expand(3, -1), every)
    assert log_prob.exp().sum().item() == pytest.approx(1.0)


@pytest.mark.equation("score-zero")
def test_the_exact_score_has_mean_zero() -> None:
    """And the exact one of an actor that judges by twice its logits has not."""
    torch.manual_seed(0)
    for actor, is_zero in ((CategoricalActor(4, 3), True), (Twice(4, 3), False)):
        actor = actor.double()
        logits = 100 * STATE[:1].double()
        prob = actor.net(logits).softmax(-1).detach()
        every = torch.arange(3).unsqueeze(-1)
        _, log_prob, *_ = actor(logits.expand(3, -1), every)
        mean = (prob.squeeze(0) * log_prob.squeeze(-1)).sum()
        grads = torch.autograd.grad(mean, list(actor.parameters()))
        largest = max(grad.abs().max().item() for grad in grads)
        assert (largest < 1e-9) is is_zero
