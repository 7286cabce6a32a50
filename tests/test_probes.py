"""Probes: models are found in their wrappers, called by name, and left as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from worlds import moody

from literate_rl.check.probes import (
    Finding,
    Probe,
    Rule,
    advice,
    fits,
    forward_parameters,
    open_parameters,
    required_parameters,
    results_of,
    rule,
    try_rules,
    unwrapped,
    warning,
    watch,
    write_contract,
    write_out,
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


@pytest.mark.parametrize(
    ("got", "wanted", "words"),
    [
        ((5,), (5, 1), "keepdim"),
        ((5, 2), (5, 1), "sum over the dimensions"),
        ((5, 6), (5, 3, None), "unflatten"),
        ((1, 3), (5, 3), "batch"),
        ((5, 2), (5, 3), ""),
    ],
)
def test_advice_guesses_what_was_forgotten(
    got: tuple[int, ...], wanted: tuple[int | None, ...], words: str
) -> None:
    assert not fits(got, wanted)
    assert words in advice(got, wanted)
    assert bool(words) == bool(advice(got, wanted))


def test_a_size_that_is_free_is_at_least_two() -> None:
    assert fits((5, 3, 2), (5, 3, None))
    assert not fits((5, 3, 1), (5, 3, None))


@rule("M1", "")
def first(probe: Probe) -> Iterator[Finding]:
    """Holds always.

    And so on.
    """
    yield from ()


@rule("M2", "first")
def second(probe: Probe) -> Iterator[Finding]:
    """Fails twice."""
    yield Finding("must be so", "is not", "think")
    yield Finding("never told")


@warning("M3", "second")
def third(probe: Probe) -> Iterator[Finding]:
    """Is not tried."""
    raise AssertionError


@rule("M4", "first")
def fourth(probe: Probe) -> Iterator[Finding]:
    """Raises."""
    if probe:
        raise ValueError("one line\nand another")
    yield Finding("")


def test_rules_are_tried_in_turn_and_each_finds_at_most_one_thing() -> None:
    probe = Probe(Net(), {}, spaces.Discrete(2))
    assert (first.text, first.row, first.name) == ("holds always", "M1", "first")
    assert third.harmful
    assert not second.harmful
    found = list(try_rules(probe, [first, second, third, fourth]))
    assert [one.name for one, _ in found] == ["second", "fourth"]
    assert str(found[0][1]) == "must be so, is not (think)"
    assert str(found[1][1]) == "raises, raised ValueError: one line"
    assert str(Finding("alone")) == "alone"


def test_a_role_is_written_as_its_page_writes_it() -> None:
    shape = Rule("M5", "value", "returns value[batch_size, 1]", second.check)
    text = write_out("Net", "action=None", ["value[batch_size, 1]"], [shape, third])
    assert text.split("\n") == [
        "Net(state_0[batch_size, ...],",
        "    ...,",
        "    state_n[batch_size, ...],",
        "    action[batch_size, ...]=None)",
        "-> value[batch_size, 1],",
        "   <...>",
        "   M5  returns value[batch_size, 1]",
        "   M3  is not tried (a warning)",
    ]


def test_a_contract_prints_each_role_once_and_says_which_actions() -> None:
    class Role(str):
        def text(self, title: str) -> str:
            return f"{title}: {self}"

    both, one, other = Role("for both"), Role("a box"), Role("names")
    text = write_contract(
        "DDPG",
        {"actor": [one], "critic": [both]},
        {"actor": [other], "critic": [both]},
    )
    assert text.split("\n\n") == [
        "DDPG",
        "# continuous actions\nActor: a box",
        "Critic: for both",
        "# discrete actions\nActor: names",
    ]
    assert write_contract("DQN", {}, {"qnet": [other]}) == "DQN\n\nQNet: names"


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
