"""Rules: what a finding says and advises.

That every rule is broken by a model that breaks nothing else stands in
``test_contracts``.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from literate_rl.check import rules
from literate_rl.check.probes import Probe, try_rules

BOX = spaces.Box(np.float32([-2, -1, -3]), np.float32([2, 3, 3]))
SUMS = rules.sums_to_one("action", "sum(action[i, :]) == 1")
ATOMS = rules.has_shape("dist[batch_size, action_num, atom_num]", 0)


@pytest.mark.parametrize(
    ("rule", "bend", "words"),
    [
        (SUMS, lambda x: x, r"sums from .*\(softmax over the last dimension\)"),
        (SUMS, lambda x: x.log_softmax(-1), "these are log-probabilities: exp"),
        (SUMS, lambda x: torch.stack([x, x + 1], 1).softmax(1), "dimension 1 sums to"),
        (ATOMS, lambda x: x.repeat(1, 2), "unflatten the last dimension"),
        (ATOMS, lambda x: x[:1], "the first dimension is the batch"),
        # All lie within the bounds of all, and one leaves its own.
        (rules.in_bounds, lambda x: 2 * x.tanh(), r"\[:, 1\] must lie in -1 to 3"),
    ],
)
def test_what_a_rule_finds_and_advises(rule, bend, words):
    class Bent(nn.Linear):
        def forward(self, state):
            return bend(super().forward(state))

    torch.manual_seed(3)
    space = BOX if rule is rules.in_bounds else spaces.Discrete(3)
    probe = Probe(Bent(4, 3), {"state": torch.randn(6, 4)}, space)
    [(_, finding)] = try_rules(probe, [[rule]])
    assert re.search(words, str(finding))
