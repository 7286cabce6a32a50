"""Rules: a finding says what is wrong, and what may help.

That every rule is broken by a model that breaks nothing else stands in
``test_contracts``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from literate_rl.check import rules
from literate_rl.check.probes import Probe, try_rules

STATE = torch.randn(6, 4, generator=torch.Generator().manual_seed(3))
DISCRETE = spaces.Discrete(3)
BOX = spaces.Box(np.float32([-2, -1, -3]), np.float32([2, 3, 3]))


class Bent(nn.Linear):
    """A linear layer whose result is changed."""

    def __init__(self, bend: Callable[[Tensor], Any]) -> None:
        torch.manual_seed(0)
        super().__init__(4, 3)
        self.bend = bend

    def forward(self, state: Tensor) -> Any:
        return self.bend(super().forward(state))


def found(rule: Any, bend: Callable[[Tensor], Any]) -> str:
    """Return what a rule finds, nothing if the model keeps it."""
    space = BOX if rule is rules.in_bounds else DISCRETE
    findings = try_rules(Probe(Bent(bend), {"state": STATE}, space), [[rule]])
    return "".join(str(finding) for _, finding in findings)


def has_gradient(probe: Probe) -> None:
    rules.demand_gradient(probe, 0, "q_value")


SUMS = rules.sums_to_one("action", "sum(action[i, :]) == 1")
ATOMS = rules.has_shape("dist[batch_size, action_num, atom_num]", 0)
ONE = rules.has_shape("value[batch_size, 1]", 0)


@pytest.mark.parametrize(
    ("rule", "bend", "words"),
    [
        (SUMS, lambda x: x.softmax(-1), ""),
        (SUMS, lambda x: x, r"sums from .*\(softmax over the last dimension\)"),
        (SUMS, lambda x: x.log_softmax(-1), r"these are log-probabilities: exp"),
        (
            SUMS,
            lambda x: torch.stack([x, 2 * x], 1).softmax(1),
            "dimension 1 sums to 1: softmax over the last dimension",
        ),
        # A row of probabilities always sums to 1, and has a gradient all the same.
        (has_gradient, lambda x: x.softmax(-1), ""),
        (has_gradient, lambda x: x.detach(), "none does"),
        (has_gradient, lambda x: 0 * x, "it is zero"),
        (has_gradient, lambda x: (0 * x).sqrt(), "it is not finite"),
        # All lie within the bounds of all, or one leaves its own.
        (rules.in_bounds, lambda x: x.tanh(), ""),
        (
            rules.in_bounds,
            lambda x: 2 * x.tanh(),
            r"action\[:, 1\] must lie in -1 to 3",
        ),
        # Numbers near zero stay inside, so larger states have to be tried.
        (rules.in_bounds, lambda x: 0.1 * x, "must lie in"),
        (rules.is_an_action, lambda x: x.argmax(-1, True), ""),
        (rules.is_an_action, lambda x: x.argmax(-1, True) + 3, r"got 3 to \d"),
        (rules.is_an_action, lambda x: x, r"got torch\.float32"),
        # Of atoms there are at least two.
        (ATOMS, lambda x: torch.stack([x] * 2, -1), ""),
        (ATOMS, lambda x: x.unsqueeze(-1), r"shape \(5, 3, atoms\), got \(5, 3, 1\)"),
        (ATOMS, lambda x: x.repeat(1, 2), "unflatten the last dimension"),
        (ONE, lambda x: x[:, 0], "keepdim, or unsqueeze"),
        (ONE, lambda x: x, "sum over the dimensions, keepdim"),
    ],
)
def test_what_a_rule_finds_and_advises(rule: Any, bend: Any, words: str) -> None:
    finding = found(rule, bend)
    assert bool(finding) == bool(words)
    assert re.search(words, finding)
