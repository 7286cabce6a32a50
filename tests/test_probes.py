"""Probes: states and actions to try, and rules in stages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from literate_rl.check.probes import Probe, demand, try_rules, watch

NET, TWO = nn.Linear(4, 2), spaces.Discrete(2)


def test_states_are_those_that_a_model_will_see():
    made, seen = watch("CartPole-v1")
    assert len(seen) >= 32
    assert all(made.observation_space.contains(x) for x in seen)
    assert np.abs(seen).max() < 5, "no velocity of 1e38"
    np.testing.assert_array_equal(seen, watch("CartPole-v1")[1])


def test_actions_for_a_critic_fit_the_space():
    low, high = np.float32([-2, -np.inf]), np.float32([3, np.inf])
    actions = Probe(NET, {}, spaces.Box(low, high), "action").actions(1000)
    for ends, wanted in ((actions.amin(0), [-2, -1]), (actions.amax(0), [3, 1])):
        assert ends.tolist() == pytest.approx(wanted, abs=0.02)
    prob = Probe(NET, {}, spaces.Discrete(3), "action").actions(7)
    torch.testing.assert_close(prob.sum(1), torch.ones(7))


def second(probe: Probe) -> None:
    demand(True, "never told")
    demand(False, "must be so", "is not", "think")
    demand(False, "never told")


def third(probe: Probe) -> None:
    """Is only harmful (a warning)."""
    demand(False, "should be so")


def fourth(probe: Probe) -> None:
    """Raises."""
    raise ValueError("one line\nand another")


def test_all_rules_of_a_stage_are_tried_and_each_finds_at_most_one_thing():
    stages = [[third], [second, fourth], [third]]
    found = try_rules(Probe(NET, {}, TWO), stages)
    assert [f"{name}: {finding}" for name, finding in found] == [
        "third: should be so",
        "second: must be so, is not (think)",
        "fourth: Raises, raised ValueError: one line",
    ]
