"""Probes: models are found in their wrappers, called by name, and left as they were."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from worlds import moody

from literate_rl.check.probes import (
    Probe,
    demand,
    forward_parameters,
    open_parameters,
    required_parameters,
    results_of,
    text_of,
    try_rules,
    unwrapped,
    watch,
)
from literate_rl.ground.networks import randomness_kept

STATE = torch.arange(12.0).reshape(3, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 2)

    def forward(self, state: Tensor, scale: float, action: Tensor | None = None) -> Any:
        value = scale * self.net(state)
        return value if action is None else (value, action)


def test_a_model_is_found_inside_of_its_wrappers() -> None:
    net = Net()
    assert unwrapped(net) == (net, {})
    inner = partial(torch.compile(net), scale=1.0)
    assert unwrapped(partial(inner, scale=2.0)) == (net, {"scale": 2.0})
    assert unwrapped(nn.DataParallel(net))[0] is net
    with pytest.raises(TypeError, match=r"a torch\.nn\.Module, got int"):
        unwrapped(3)
    with pytest.raises(TypeError, match="by name"):
        unwrapped(partial(net, STATE))


def test_what_was_fixed_is_not_required() -> None:
    assert required_parameters(Net()) == ["state", "scale"]
    assert required_parameters(partial(Net(), scale=2.0)) == ["state"]

    class Open(nn.Module):
        def forward(self, state: Tensor, /, *rest: Any, key: Any, **more: Any) -> Any:
            return state

    assert required_parameters(Open()) == ["key"]
    given = forward_parameters(Open())
    assert open_parameters(given) == ["state", "rest", "more"]


def test_a_single_result_is_a_tuple_of_one() -> None:
    assert results_of(STATE) == (STATE,)
    assert results_of((STATE, None)) == (STATE, None)


def test_all_three_generators_are_put_back_even_after_an_error() -> None:
    def luck() -> list[float]:
        return [torch.rand(()).item(), np.random.random(), random.random()]

    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    first = luck()
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)

    def draw_and_fail() -> None:
        with randomness_kept():
            luck()
            raise KeyError

    with pytest.raises(KeyError):
        draw_and_fail()
    assert luck() == first


def test_states_are_those_that_a_model_will_see() -> None:
    made, seen = watch("CartPole-v1")
    assert len(seen) >= 32
    assert all(made.observation_space.contains(x) for x in seen)
    assert np.abs(seen).max() < 5, "no velocity of 1e38"
    again = watch("CartPole-v1")[1]
    np.testing.assert_array_equal(seen, again)


def test_a_probe_repeats_rows_and_passes_on_what_is_no_tensor() -> None:
    states = {"state": STATE, "scale": 2.0}
    probe = Probe(Net(), states, spaces.Discrete(2))
    assert torch.equal(probe.rows(5)["state"], STATE[[0, 1, 2, 0, 1]])
    assert torch.equal(probe.rows(2, row=4)["state"], STATE[[1, 1]])
    assert torch.equal(probe.rows(2, scale=3.0)["state"], 3 * STATE[:2])
    assert probe.rows(2)["scale"] == 2.0
    assert probe.call(5)[0].shape == (5, 2)
    _, action = probe.call(2, torch.ones(2, 1))
    assert action.shape == (2, 1)
    assert isinstance(probe.model, Net)
    assert probe.copy_error is None


def test_a_probe_works_on_a_copy() -> None:
    net = Net()
    probe = Probe(net, {"state": STATE, "scale": 1.0}, spaces.Discrete(2))
    with torch.no_grad():
        probe.weights[0].add_(1.0)
    assert not torch.equal(probe.weights[0], net.net.weight)


def test_actions_for_a_critic_fit_the_space() -> None:
    low, high = np.float32([-2, -np.inf]), np.float32([3, np.inf])
    probe = Probe(Net(), {}, spaces.Box(low, high), "action")
    actions = probe.actions(1000)
    assert actions.shape == (1000, 2)
    assert (actions[:, 0].min(), actions[:, 0].max()) == pytest.approx(
        (-2, 3), abs=0.02
    )
    assert (actions[:, 1].min(), actions[:, 1].max()) == pytest.approx(
        (-1, 1), abs=0.02
    )
    prob = Probe(Net(), {}, spaces.Discrete(3), "action").actions(7)
    assert prob.shape == (7, 3)
    torch.testing.assert_close(prob.sum(1), torch.ones(7))


def first(probe: Probe) -> None:
    """Holds always.

    And so on.
    """
    demand(True, "never told")


def second(probe: Probe) -> None:
    """Fails twice."""
    demand(False, "must be so", "is not", "think")
    demand(False, "never told")


def third(probe: Probe) -> None:
    """Is only harmful (a warning)."""
    demand(False, "should be so")


def fourth(probe: Probe) -> None:
    """Raises."""
    raise ValueError("one line\nand another")


def test_all_rules_of_a_stage_are_tried_and_each_finds_at_most_one_thing() -> None:
    probe = Probe(Net(), {}, spaces.Discrete(2))
    assert text_of(first) == "Holds always"
    found = list(try_rules(probe, [[first, third], [second, fourth], [third]]))
    assert [name for name, _ in found] == ["third", "second", "fourth"]
    told = [
        "should be so",
        "must be so, is not (think)",
        "Raises, raised ValueError: one line",
    ]
    assert [str(finding) for _, finding in found] == told


# --- Modes ----------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_a_probe_keeps_frozen_layers_frozen(training: bool) -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = moody(4, 2)

        def forward(self, state: Tensor) -> Any:
            return self.net(state), self.net.training, self.net[5].training

    model = Normed()
    if not training:
        model.eval()
    probe = Probe(model, {"state": STATE}, spaces.Discrete(2))
    assert probe.call(5)[1:] == (False, False)
    assert probe.call(5, train=True)[1:] == (True, not training)
    assert probe.call(5)[1:] == (False, False)
    assert model.training is training
