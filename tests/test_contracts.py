"""Contracts: who keeps them passes, who breaks a rule is caught by its row.

``CASES`` has for each rule of each role a model that breaks this rule and no other; a
new rule without such a model fails.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Normal
from worlds import TwoStates, modes

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

STATE = torch.randn(6, 4, generator=torch.Generator().manual_seed(3))
STATES = {"state": STATE}
DISCRETE = spaces.Discrete(3)
BOX = spaces.Box(np.float32([-2, -1]), np.float32([2, 3]))
LOW, HIGH = torch.as_tensor(BOX.low), torch.as_tensor(BOX.high)


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


class Redrawn(Bent):
    """Draws other actions than the good model, and judges them rightly."""

    def forward(self, state: Tensor, action: Tensor | None = None) -> Any:
        if action is None:
            action = self.bend(self.good(state)[0])
        return action, *self.good(state, action.float())[1:]


class Misnamed(Bent):
    """Takes another state than the one there is."""

    def forward(self, position: Tensor, action: Tensor | None = None) -> Any:
        return self.good(position, *(() if action is None else (action,)))


def at(index: int, change: Callable[..., Tensor]) -> Callable[..., Any]:
    """Bend one result of several, or the only one."""

    def bend(results: Any, **arguments: Any) -> Any:
        if isinstance(results, Tensor):
            return change(results)
        return *results[:index], change(results[index]), *results[index + 1 :]

    return bend


def bent(make: Callable[..., Bent], index: int, change: Any) -> Callable[[], Bent]:
    return lambda: make(at(index, change))


def refuse_one_row(results: Any, state: Tensor, **_: Any) -> Any:
    if len(state) == 1:
        raise ValueError("one row is too few")
    return results


def write(results: Any, state: Tensor, **_: Any) -> Any:
    # Past autograd, so that the gradients are not refused.
    state.data.add_(1.0)
    return results


def holding(model: Bent, part: Any) -> Bent:
    model.part = part
    return model


def breakers_of_all(
    make: Callable[..., Bent], name: str, index: int = 0
) -> dict[str, Callable[[], nn.Module]]:
    """Return what breaks the rules that every role has."""
    return {
        "copies": lambda: holding(make(), torch.ones(2, requires_grad=True) * 2),
        "takes_states": lambda: Misnamed(make().good),
        "runs_on_batches": lambda: make(refuse_one_row),
        "results": lambda: make(lambda results, **_: {"first": results}),
        name: bent(make, index, lambda x: x.unsqueeze(1)),
        "numbers": bent(make, index, lambda x: x * math.nan),
        f"{name} learns": bent(make, index, lambda x: x.detach()),
        "rows_apart": bent(make, index, lambda x: x.roll(1, 0)),
        "keeps_inputs": lambda: make(write),
        "same_in_both_modes": lambda: holding(make(), nn.Dropout()),
    }


# Actors that draw.


def drawn(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """Bend the actions that are drawn, and leave those that are given."""
    return lambda results, action, **_: (
        change(results[0]) if action is None else action,
        *results[1:],
    )


def if_given(index: int, shift: float) -> Callable[..., Any]:
    """Bend a result where the action is given."""
    return lambda results, action, **_: at(
        index, lambda x: x if action is None else x + shift
    )(results)


def of_all(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """Bend the log-probabilities of all actions, and that of the one taken."""

    def bend(results: Any, **_: Any) -> Any:
        every = change(results[3])
        return results[0], every.gather(-1, results[0].long()), results[2], every

    return bend


def twice(results: Any, **_: Any) -> Any:
    """Judge by twice the logits."""
    every = (2 * results[3]).log_softmax(-1)
    entropy = -(every.exp() * every).sum(-1, keepdim=True)
    return results[0], every.gather(-1, results[0]), entropy, every


def no_jacobian(results: Any, **_: Any) -> Any:
    """Judge a squashed action by the density before the squash."""
    unit = 2 * (results[0] - LOW) / (HIGH - LOW) - 1
    left_out = (1 - unit.square()).clamp(min=1e-6).log().sum(-1, keepdim=True)
    return results[0], results[1] + left_out, results[2]


def infinite_when_large(results: Any, state: Tensor, **_: Any) -> Any:
    near = (state.abs().max() < 700).float()
    return (results[0], results[1] / near, *results[2:])


def of(kind: type[Bent], network: Any, *sizes: Any) -> Callable[..., Bent]:
    """Return what makes a good model, or a bent one."""
    return lambda bend=None: kind(network(*sizes), bend)


categorical = of(Drawing, CategoricalActor, 4, 3)
squashed = of(Drawing, SquashedGaussianActor, 4, BOX.low, BOX.high)
q_values = of(OfStates, QNetwork, 4, 3)
atoms = of(OfStates, CategoricalQNetwork, 4, 3, 11)
value = of(OfStates, StateValue, 4)
deterministic = of(OfStates, DeterministicActor, 4, BOX.low, BOX.high)
probabilities = of(OfStates, ProbabilityActor, 4, 3)
judge = of(OfActions, ActionValue, 4, 2)


class Blind(Drawing):
    """Has a log-probability that never looks at the action."""

    def forward(self, state: Tensor, action: Tensor | None = None) -> Any:
        drawn, _, entropy = super().forward(state, action)
        return drawn, super().forward(state, torch.zeros(len(state), 2))[1], entropy


def with_constant_entropy(make: Callable[..., Bent]) -> Bent:
    """Return an actor that tells its entropy at the first state, wherever it is."""
    model = make()
    with torch.no_grad():
        level = model(STATE[:1].expand(4000, -1))[2].mean()
    model.bend = at(2, lambda x: torch.zeros_like(x) + level)
    return model


def breakers_of_drawing(make: Callable[..., Bent]) -> dict[str, Any]:
    """Return what breaks the rules of each actor that draws."""
    return {
        **breakers_of_all(make, "action_log_prob", 1),
        "results": lambda: make(lambda results, **_: results[:2]),
        "takes_action": lambda: OfActions(make().good),
        "judged_alike": lambda: make(if_given(1, 0.5)),
        "entropy_learns": bent(make, 2, lambda x: x.detach()),
        "entropy_learns, constant": lambda: with_constant_entropy(make),
        "entropy_fits": bent(make, 2, lambda x: x + 1),
        "survives_large_states": lambda: make(infinite_when_large),
    }


OF_LISTS = {
    **breakers_of_drawing(categorical),
    # One result may be rolled without a contradiction to the others.
    "rows_apart": bent(categorical, 2, lambda x: x.roll(1, 0)),
    "action": lambda: categorical(drawn(lambda x: x.squeeze(-1))),
    "distribution_entropy": bent(categorical, 2, lambda x: x.squeeze(-1)),
    "is_an_action": lambda: categorical(drawn(lambda x: x.int())),
    "as_it_is": lambda: categorical(if_given(0, 1)),
    "tells_apart": lambda: categorical(
        of_all(lambda x: x.amax(-1, keepdim=True).expand(-1, 3))
    ),
    "has_unit_mass": lambda: categorical(of_all(lambda x: x + 0.3)),
    "scores_cancel": lambda: categorical(twice),
    "survives_large_states, cut off": lambda: categorical(
        at(1, lambda x: x.clamp(min=math.log(torch.finfo(torch.float32).eps)))
    ),
}
OF_NUMBERS = {
    **breakers_of_drawing(squashed),
    "action": lambda: squashed(drawn(lambda x: x.unsqueeze(1))),
    "distribution_entropy": bent(squashed, 2, lambda x: x.expand(-1, 2)),
    "is_an_action": lambda: Redrawn(squashed().good, lambda x: x.round().long()),
    "as_it_is": lambda: squashed(if_given(0, 0.1)),
    "tells_apart": lambda: Blind(squashed().good),
    "has_unit_mass": lambda: squashed(no_jacobian),
    "scores_cancel": lambda: Redrawn(squashed().good, lambda x: 0.5 * x),
}


class Detached(OfActions):
    """A critic that stops the gradient with respect to its action."""

    def forward(self, state: Tensor, action: Tensor) -> Any:
        return self.good(state, action.detach())


# For each role: a space of actions, a good model, and what breaks its rules. A role may
# stand here twice, with two kinds of action.
Case = tuple[Any, Role, Callable[..., Bent], dict[str, Any]]
CASES: dict[str, Case] = {
    "q_values": (
        *(DISCRETE, contracts.Q_VALUES, q_values),
        {
            **breakers_of_all(q_values, "q_value"),
            "numbers, whole": bent(q_values, 0, lambda x: x.long()),
            "q_value learns, zero": bent(q_values, 0, lambda x: 0 * x),
            "q_value learns, infinite": bent(q_values, 0, lambda x: (0 * x).sqrt()),
        },
    ),
    "distribution": (
        *(DISCRETE, contracts.DISTRIBUTION, atoms),
        {
            **breakers_of_all(atoms, "q_value_dist"),
            "sums": bent(atoms, 0, lambda x: x.log()),
            "q_value_dist, one atom": bent(atoms, 0, lambda x: x[..., :1]),
            "q_value_dist, flat": bent(atoms, 0, lambda x: x.flatten(1)),
        },
    ),
    "state_value": (
        *(DISCRETE, contracts.STATE_VALUE, value),
        breakers_of_all(value, "value"),
    ),
    "action_value": (
        *(BOX, contracts.ACTION_VALUE, judge),
        {
            **breakers_of_all(judge, "q_value"),
            "takes_action": lambda: StateValue(4),
            "leads_through_action": lambda: Detached(judge().good),
        },
    ),
    "action": (
        *(BOX, contracts.ACTION, deterministic),
        {
            **breakers_of_all(deterministic, "action"),
            "in_bounds": bent(deterministic, 0, lambda x: 2 * x),
            # Numbers near zero stay inside, so larger states have to be tried.
            "in_bounds, far": lambda: OfStates(nn.Linear(4, 2), lambda x, **_: 0.1 * x),
        },
    ),
    "probabilities": (
        *(DISCRETE, contracts.PROBABILITIES, probabilities),
        {
            **breakers_of_all(probabilities, "action"),
            "sums": bent(probabilities, 0, lambda x: 1.1 * x),
        },
    ),
    "drawing": (DISCRETE, contracts.DRAWING, categorical, OF_LISTS),
    "drawing in a box": (BOX, contracts.DRAWING, squashed, OF_NUMBERS),
    "reparametrised": (
        *(BOX, contracts.REPARAMETRISED, squashed),
        {
            **OF_NUMBERS,
            "action_learns": lambda: squashed(drawn(lambda x: x.detach())),
        },
    ),
    "listing": (
        *(DISCRETE, contracts.LISTING, categorical),
        {
            **OF_LISTS,
            "action_log_probs": bent(categorical, 3, lambda x: x[:, 1:]),
            "action_log_probs learns": bent(categorical, 3, lambda x: x.detach()),
            "lists_log_probs": bent(categorical, 3, lambda x: 0.9 * x),
        },
    ),
}
PAIRS = [(case, name) for case in CASES for name in CASES[case][-1]]


def broken_by(
    family: str, states: dict[str, Any] = STATES, space: Any = DISCRETE, **models: Any
) -> list[Any]:
    """Return every rule that models break, warnings too."""
    found: list[Any] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_model(family, states=states, action_space=space, **models)
        except ContractError as error:
            found += error.broken
    return found + [str(item.message) for item in caught]


def names_of(broken: list[Any]) -> list[str]:
    return [x.rule for x in broken]


def caught(case: str, model: nn.Module) -> list[str]:
    """Return the names of the rules that a model breaks in the role of a case."""
    space, role, *_ = CASES[case]
    probe = contracts.Probe(model, STATES, space, role.action)
    return [name for name, _ in contracts.try_rules(probe, role.stages)]


@pytest.mark.parametrize(("case", "name"), PAIRS)
def test_who_breaks_a_rule_is_caught_by_it_alone(case, name):
    torch.manual_seed(1)
    assert caught(case, CASES[case][-1][name]()) == [name.partition(",")[0]]


@pytest.mark.parametrize("case", CASES)
def test_who_keeps_every_rule_passes(case):
    for seed in range(3):
        torch.manual_seed(seed)
        model = CASES[case][2]()
        assert caught(case, model) == caught(case, model.good) == []


@pytest.mark.parametrize("family", CONTRACTS)
def test_every_rule_is_printed_and_has_a_model_that_breaks_it(family):
    contract, text = CONTRACTS[family], str(CONTRACTS[family])
    assert text.startswith(f"{family}\n")
    assert "(state_0[batch_size, ...]" in text
    for parts in (contract.continuous, contract.discrete):
        for role in sum(parts.values(), ()):
            cases = [case for case in CASES.values() if case[1] == role]
            broken = {name.partition(",")[0] for *_, x in cases for name in x}
            rules = sum(role.stages, ())
            assert {rule.__name__ for rule in rules} <= broken
            printed = *map(contracts.text_of, rules), *role.results
            assert all(words in text for words in printed)


# --- Arguments ------------------------------------------------------------------------


def test_two_states_extras_options_and_things_that_are_no_tensors():
    two = {"pole": STATE[:, :2], "cart": STATE}
    for states in (two, {**two, "mode": "other"}):
        assert broken_by("DQN", states, qnet=TwoStates()) == []
    for states in ({"pole": two["pole"]}, {**two, "track": STATE}):
        [broken] = broken_by("DQN", states, qnet=TwoStates())
        assert f"must take the states ({', '.join(states)}) by name" in str(broken)


def test_several_critics_are_checked_one_by_one():
    critics = [ActionValue(4, 2), ActionValue(4, 3)]
    for given in (critics, nn.ModuleList(critics)):
        broken = broken_by("TD3", space=BOX, critic=given)
        assert [x.who for x in broken] == ["critic 2"]
    # Discrete SAC takes both kinds of them.
    for critic in (QNetwork(4, 3), ActionValue(4, 3)):
        assert broken_by("SAC", critic=critic) == []


def test_an_actor_may_be_adapted():
    def squash(raw, state):
        assert list(state) == ["state"]
        return (LOW + HIGH) / 2 + (HIGH - LOW) / 2 * raw.tanh()

    raw = OfStates(nn.Linear(4, 2))
    assert names_of(broken_by("DDPG", space=BOX, actor=raw)) == ["in_bounds"]
    assert broken_by("DDPG", space=BOX, actor=raw, action_transform=squash) == []


@pytest.mark.parametrize("bound", [math.inf, 1.0])
def test_a_gaussian_is_left_alone_and_a_clamped_one_is_not(bound):
    class Gaussian(nn.Linear):
        def forward(self, state, action=None):
            gaussian = Normal(super().forward(state), self.bias.exp())
            if action is None:
                action = gaussian.sample().clamp(-bound, bound)
            terms = gaussian.log_prob(action), gaussian.entropy()
            return action, *(x.sum(1, keepdim=True) for x in terms)

    broken = broken_by("PPO", space=spaces.Box(-1, 1, (2,)), actor=Gaussian(4, 2))
    rules = [x.rule for x in broken if not isinstance(x, str)]
    assert rules == ["has_unit_mass", "scores_cancel"] * (bound == 1.0)


def test_an_actor_that_never_draws_is_found():
    class Greedy(CategoricalActor):
        def forward(self, state, action=None):
            return super().forward(
                state, self.mode(state) if action is None else action
            )

    torch.manual_seed(0)
    assert names_of(broken_by("A2C", actor=Greedy(4, 3))) == ["scores_cancel"]
    sure = CategoricalActor(4, 3)
    with torch.no_grad():
        sure.net[-1].bias.copy_(torch.tensor([14.0, 0.0, 0.0]))
    assert broken_by("A2C", actor=sure) == [], "a sure policy is no greedy one"


# --- No trace -------------------------------------------------------------------------


def test_the_model_and_all_random_numbers_stay_as_they_were():
    """Although it uses three generators and normalises."""
    model = OfStates(nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 3)))
    model.bend = lambda results, **_: results + 0 * np.random.random() * random.random()
    states = {"state": STATE.clone()}

    def traces():
        seeds = torch.get_rng_state(), torch.as_tensor(np.random.get_state()[1])
        held = *seeds, *model.state_dict().values(), *states.values()
        return [x.tolist() for x in held], random.getstate(), modes(model)

    for mode in (True, False):
        before = model.train(mode) and traces()
        # What is harmful is told.
        assert broken_by("DQN", states, qnet=model) == [
            "DQN: qnet: the network that learns should be the one that acts, "
            "BatchNorm1d, Dropout changes with the mode (LayerNorm, or none)"
        ]
        assert traces() == before
        assert all(x.grad is None for x in model.parameters())


# --- Equations ------------------------------------------------------------------------


@pytest.mark.equation("score-zero")
@pytest.mark.parametrize(("bend", "is_zero"), [(None, True), (twice, False)])
def test_the_exact_score_has_mean_zero(bend, is_zero):
    """And that of an actor that judges by twice its logits has not."""
    torch.manual_seed(0)
    model = categorical(bend).double()
    states = 100 * STATE[:1].double().expand(3, -1)
    prob = model.good.net(states[0]).softmax(-1).detach()
    log_prob = model(states, torch.arange(3).unsqueeze(-1))[1].squeeze(-1)
    assert log_prob.exp().sum().item() == pytest.approx(1.0)
    grads = torch.autograd.grad((prob * log_prob).sum(), [*model.parameters()])
    assert (max(grad.abs().max() for grad in grads) < 1e-9) == is_zero
