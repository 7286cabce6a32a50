"""Rules: each is used by a contract, and its finding says what is wrong.

That every rule is broken by a model that breaks nothing else stands in
``test_contracts``.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from literate_rl.check import rules
from literate_rl.check.contracts import CONTRACTS
from literate_rl.check.probes import Finding, Probe, Rule, try_rules

STATE = torch.randn(6, 4, generator=torch.Generator().manual_seed(3))
DISCRETE = spaces.Discrete(3)
BOX = spaces.Box(np.float32([-2, -1]), np.float32([2, 3]))


class Bent(nn.Module):
    """A linear layer whose result is changed."""

    def __init__(self, bend: Callable[[Tensor], Any], outputs: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net, self.bend = nn.Linear(4, outputs), bend

    def forward(self, state: Tensor) -> Any:
        return self.bend(self.net(state))


def found(
    rule: Rule, bend: Callable[[Tensor], Any], space: Any = DISCRETE, outputs: int = 3
) -> Finding | None:
    """Return what a rule finds, None if the model keeps it."""
    probe = Probe(Bent(bend, outputs), {"state": STATE}, space)
    return next((finding for _, finding in try_rules(probe, [[rule]])), None)


def test_each_rule_is_used_by_a_contract() -> None:
    used = {
        rule
        for contract in CONTRACTS.values()
        for parts in (contract.continuous, contract.discrete)
        for role in sum(parts.values(), ())
        for stage in role.stages
        for rule in stage
    }
    checks = {f for f in vars(rules).values() if inspect.isfunction(f)}
    checks = {f for f in checks if [*inspect.signature(f).parameters] == ["probe"]}
    assert len(checks) > 10
    assert checks <= used


@pytest.mark.parametrize(
    ("bend", "hint"),
    [
        (lambda x: x, "softmax over the last dimension"),
        (lambda x: x.log_softmax(-1), "these are log-probabilities: exp"),
        (
            lambda x: torch.stack([x, 2 * x], 1).softmax(1),
            "dimension 1 sums to 1: softmax over the last dimension",
        ),
    ],
)
def test_what_came_instead_of_probabilities(bend: Any, hint: str) -> None:
    rule = rules.sums_to_one("action", "sum(action[i, :]) == 1")
    finding = found(rule, bend)
    assert finding is not None
    assert finding.hint == hint
    assert "sums from" in finding.came
    assert found(rule, lambda x: x.softmax(-1)) is None


@pytest.mark.parametrize(
    ("bend", "came"),
    [
        (lambda x: x.detach(), "none does"),
        (lambda x: 0 * x, "it is zero"),
        (lambda x: (0 * x).sqrt(), "it is not finite"),
    ],
)
def test_what_is_wrong_with_a_gradient(bend: Any, came: str) -> None:
    def check(probe: Probe) -> Any:
        rules.demand_gradient(probe, 0, "q_value")

    finding = found(check, bend)
    assert finding is not None
    assert finding.came == came
    # A row of probabilities always sums to 1, and has a gradient all the same.
    assert found(check, lambda x: x.softmax(-1)) is None


def test_the_bound_that_is_left_is_named() -> None:
    wide = torch.tensor([2.0, 1.0])
    finding = found(rules.in_bounds, lambda x: wide * x.tanh(), BOX, 2)
    assert finding is None, "both lie within -1 to 1, or -2 to 2"
    finding = found(rules.in_bounds, lambda x: 2 * x.tanh(), BOX, 2)
    assert finding is not None
    assert finding.expected == "action[:, 1] must lie in -1 to 3"
    # Numbers near zero stay inside, so larger states have to be tried.
    assert found(rules.in_bounds, lambda x: 0.1 * x, BOX, 2) is not None


@pytest.mark.parametrize(
    ("bend", "came"),
    [
        (lambda x: x.argmax(-1, keepdim=True).int(), r"got torch\.int32"),
        (lambda x: x.argmax(-1, keepdim=True) + 3, r"got 3 to \d"),
        (lambda x: x, r"got torch\.float32"),
    ],
)
def test_what_is_no_discrete_action(bend: Any, came: str) -> None:
    finding = found(rules.is_an_action, bend)
    assert finding is not None
    assert re.fullmatch(came, finding.came)
    assert found(rules.is_an_action, lambda x: x.argmax(-1, keepdim=True)) is None


def test_numbers_must_be_floating_and_finite() -> None:
    for bend, came in (
        (lambda x: x.long(), "got torch.int64"),
        (lambda x: x + math.inf, "got [inf]"),
    ):
        finding = found(rules.numbers, bend)
        assert finding is not None
        assert finding.came == came


def test_too_few_results_are_named_by_their_types() -> None:
    finding = found(rules.returns_enough(3), lambda x: (x, "word"))
    assert finding is not None
    assert str(finding) == "must return a tuple of 3 tensors, or more, got Tensor, str"


@pytest.mark.parametrize(
    ("got", "wanted", "words"),
    [
        ((5,), (5, 1), "keepdim"),
        ((5, 2), (5, 1), "sum over the dimensions"),
        ((5, 6), (5, 3, 0), "unflatten"),
        ((1, 3), (5, 3), "batch"),
        ((5, 2), (5, 3), ""),
    ],
)
def test_advice_guesses_what_was_forgotten(
    got: tuple[int, ...], wanted: tuple[int, ...], words: str
) -> None:
    assert words in rules.advice(got, wanted)
    assert bool(words) == bool(rules.advice(got, wanted))


def test_of_atoms_there_are_at_least_two() -> None:
    rule = rules.has_shape("dist[batch_size, action_num, atom_num]", 0)
    for number, fine in ((1, False), (2, True), (3, True)):
        finding = found(rule, lambda x, n=number: torch.stack([x] * n, -1))
        assert (finding is None) == fine
    for bend in (lambda x: x, lambda x: x[..., None, None], lambda x: x[:1]):
        finding = found(rule, bend)
        assert finding is not None
        assert finding.expected == "dist must have shape (5, 3, atoms)"
