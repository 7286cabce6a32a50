"""Wrappers and names: what is read, what is refused, what leads back to itself."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from literate_rl.data.held import Held
from literate_rl.data.makers import (
    env_maker,
    make_one,
    make_wrapped,
    read_wrapper,
)
from literate_rl.runs.runs import flat_env


class Shaped(gym.RewardWrapper[Any, Any]):
    """Pays nothing."""

    def reward(self, reward):
        return 0.0


@pytest.mark.parametrize(
    ("text", "args", "named"),
    [
        (" ClipAction()", (), {}),
        ("RescaleAction(-1, max_action=1.5)", (-1,), {"max_action": 1.5}),
        ("test_makers:Shaped(0.5)", (0.5,), {}),
    ],
)
def test_a_text_is_read_as_a_call(text, args, named):
    make, given, by_name = read_wrapper(text)
    assert make.__name__ == text.partition("(")[0].strip().rpartition(":")[2]
    assert (tuple(given), by_name) == (args, named)


REFUSED = {
    "FrameStack(4)": "is it FrameStackObservation?",
    "nowhere:X": "nowhere:X cannot be imported",
    "test_makers:Missing": "got 'test_makers:Missing'",
    "RescaleAction(-1, 1)": "requires a Box",
    **dict.fromkeys(
        (
            *("ClipAction(", "ClipAction) + (1", "ClipAction(1)(2)"),
            *("ClipAction(print('here'))", "ClipAction(*[1])"),
        ),
        "must be like",
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_wrapper_is_refused(text, capsys):
    with pytest.raises((TypeError, ValueError), match=REFUSED[text]) as refusal:
        flat_env(make_wrapped("CartPole-v1", [text]))
    assert capsys.readouterr().out == "", "nothing is evaluated"
    if refusal.type is TypeError:
        assert text in refusal.value.__notes__[0]


def test_the_first_wrapper_is_the_innermost_and_processes_get_it():
    assert make_wrapped(CartPoleEnv, []) is CartPoleEnv
    maker = make_wrapped("CartPole-v1", ["TimeAwareObservation", Shaped])
    again = pickle.loads(pickle.dumps(maker))
    assert again == maker
    made = again(render_mode="rgb_array")
    assert made.render_mode == "rgb_array"
    kinds = [type(made), type(made.env), type(made.env.env)]
    assert kinds == [Shaped, gym.wrappers.TimeAwareObservation, Held]


MINE = """
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv

class Pole(CartPoleEnv):
    pass

def made(render_mode=None):
    return Pole(render_mode=render_mode)

def Both():
    return PendulumEnv()

gym.register("Both", Pole)
nothing = 3
"""


def test_a_module_and_a_name_make_an_environment(tmp_path, monkeypatch):
    (tmp_path / "minemakers.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("Pole", "made", "Both"):
        made = make_one(f"minemakers:{name}")
        assert type(made.unwrapped).__name__ == "Pole", "an id goes first"
        assert isinstance(env_maker(f"minemakers:{name}")(), Held)
    env = flat_env("minemakers:made", render_mode="rgb_array")
    assert env.unwrapped.render_mode == "rgb_array"
    for wrong in ("minemakers:nothing", "minemakers:Missing", "nowhere:Pole"):
        with pytest.raises(ValueError, match=f"env '{wrong}' cannot be made"):
            flat_env(wrong)
    del sys.modules["minemakers"], gym.registry["Both"]
