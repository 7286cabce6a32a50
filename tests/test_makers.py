"""Wrappers and names: what is read, what is refused, what leads back to itself."""

from __future__ import annotations

import pickle
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

from literate_rl.data.episodes import Held, env_maker, make_one
from literate_rl.data.makers import (
    Wrapped,
    make_wrapped,
    name_of_maker,
    read_wrapper,
)
from literate_rl.runs.runs import flat_env


class Shaped(gym.RewardWrapper[Any, Any]):
    """Pays a multiple."""

    def __init__(self, env: gym.Env[Any, Any], factor: float = 2.0) -> None:
        super().__init__(env)
        self.factor = factor

    def reward(self, reward: Any) -> Any:
        return self.factor * float(reward)


class Reusing(gym.Env[Any, Any]):
    """Counts its steps in an array that it hands out again and again."""

    observation_space = spaces.Box(0, 9, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.count = np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count[:] = 0
        return self.count, {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.count, 1.0, False, False, {}


@pytest.mark.parametrize(
    ("text", "args", "named"),
    [
        ("ClipAction", (), {}),
        ("FrameStackObservation(4)", (4,), {}),
        ("FrameStackObservation(stack_size = 4)", (), {"stack_size": 4}),
        ("ResizeObservation((84, 84))", ((84, 84),), {}),
        ("RescaleAction(-1, max_action=1.5)", (-1,), {"max_action": 1.5}),
        (" ClipAction()", (), {}),
    ],
)
def test_a_text_is_read_as_a_call(text: str, args: Any, named: Any) -> None:
    make, given, by_name = read_wrapper(text)
    assert make is getattr(gym.wrappers, text.partition("(")[0].strip())
    assert (tuple(given), by_name) == (args, named)


def test_a_wrapper_of_ones_own_has_its_module_in_front() -> None:
    make, args, _ = read_wrapper("test_makers:Shaped(0.5)")
    made: Any = make(gym.make("CartPole-v1"), *args)
    assert made.factor == 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FrameStack(4)", "got 'FrameStack'; is it FrameStackObservation?"),
        ("MaskFromMethod", "is it literate_rl:MaskFromMethod?"),
        ("nowhere:X", "wrappers: nowhere:X cannot be imported: No module named"),
        ("Nothing", "must be names of gymnasium.wrappers, or module:name"),
        ("vector", "got 'vector'"),
        ("test_makers:Missing", "got 'test_makers:Missing'"),
        ("ClipAction(", "must be like Name, .* got 'ClipAction\\('"),
        ("ClipAction) + (1", "must be"),
        ("ClipAction(1)(2)", "must be like"),
        ("ClipAction(print('here'))", "must be like"),
        ("ClipAction(*[1])", "must be like"),
        ("", "must be names"),
    ],
)
def test_what_is_no_wrapper_is_refused(
    text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=message):
        make_wrapped("CartPole-v1", [text])
    assert capsys.readouterr().out == "", "nothing is evaluated"


@pytest.mark.parametrize("wrappers", ["ClipAction", 3, {"ClipAction": 1}])
def test_wrappers_come_in_a_list(wrappers: Any) -> None:
    with pytest.raises(TypeError, match="wrappers must be a list"):
        make_wrapped("CartPole-v1", wrappers)
    with pytest.raises(TypeError, match="texts or functions, got int"):
        make_wrapped("CartPole-v1", [3])  # type: ignore[list-item]


def test_without_wrappers_nothing_changes() -> None:
    assert make_wrapped("CartPole-v1") == "CartPole-v1"
    assert make_wrapped(CartPoleEnv, []) is CartPoleEnv


def test_the_first_wrapper_is_the_innermost() -> None:
    made = make_wrapped("CartPole-v1", ["TimeAwareObservation", Shaped])()
    assert isinstance(made, Shaped)
    assert isinstance(made.env, gym.wrappers.TimeAwareObservation)
    assert isinstance(made.env.env, Held)
    assert made.observation_space.shape == (5,)


def test_a_stack_has_four_observations_and_not_one_four_times() -> None:
    env = make_wrapped(Reusing, ["FrameStackObservation(3)"])()
    env.reset()
    for _ in range(4):
        obs, *_ = env.step(0)
    assert obs.flatten().tolist() == [2, 3, 4]


def test_a_wrapper_that_does_not_fit_is_named() -> None:
    with pytest.raises(TypeError, match="requires a Box") as refusal:
        flat_env(make_wrapped("CartPole-v1", ["RescaleAction(-1, 1)"]))
    (note,) = refusal.value.__notes__
    assert note.startswith("wrapper RescaleAction(-1, 1) does not fit 'CartPole-v1'")
    with pytest.raises(TypeError, match="must return an environment, got int"):
        make_wrapped("CartPole-v1", [lambda env: 3])()  # type: ignore[list-item,return-value]


def test_render_modes_reach_the_environment_and_processes_get_it() -> None:
    maker = make_wrapped("CartPole-v1", ["TimeAwareObservation", Shaped])
    again = pickle.loads(pickle.dumps(maker))
    assert again == maker
    assert again(render_mode="rgb_array").render_mode == "rgb_array"


def local() -> Any:
    def make() -> gym.Env[Any, Any]:
        return CartPoleEnv()

    return make


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        ("CartPole-v1", "CartPole-v1"),
        (Reusing, "test_makers:Reusing"),
        (local, "test_makers:local"),
        (gym.wrappers.ClipAction, "ClipAction"),
        (gym.spec("CartPole-v1"), "CartPole-v1"),
        (lambda: None, "<lambda of test_makers>"),
        (local(), "<local.<locals>.make of test_makers>"),
        (partial(Reusing), "<partial of test_makers:Reusing>"),
        (Wrapped("CartPole-v1", ("ClipAction",)), "<Wrapped of "),
    ],
)
def test_names(thing: Any, name: str) -> None:
    stored = name_of_maker(thing)
    assert name in stored
    assert stored.startswith("<") == ("<" in name)
    if ":" in stored and not stored.startswith("<"):
        assert getattr(sys.modules[__name__], stored.partition(":")[2]) is thing


def test_vector_environments_are_told_by_their_kind() -> None:
    envs = gym.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    assert name_of_maker(envs) == "<SyncVectorEnv of CartPole-v1>"
    envs.spec = None
    assert name_of_maker(envs) == "<SyncVectorEnv>"
    envs.close()


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


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "minemakers.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("minemakers", None)
    gym.registry.pop("Both", None)


@pytest.mark.usefixtures("mine")
def test_a_module_and_a_name_make_an_environment() -> None:
    for name in ("Pole", "made", "Both"):
        made = make_one(f"minemakers:{name}")
        assert type(made.unwrapped).__name__ == "Pole", "an id goes first"
        assert isinstance(env_maker(f"minemakers:{name}")(), Held)
    env = flat_env("minemakers:made", render_mode="rgb_array")
    assert env.unwrapped.render_mode == "rgb_array"
    assert make_one("minemakers:CartPole-v1").spec.id == "CartPole-v1"  # type: ignore[union-attr]
    for wrong in ("minemakers:nothing", "minemakers:Missing", "nowhere:Pole"):
        with pytest.raises(ValueError, match=f"env '{wrong}' cannot be made"):
            flat_env(wrong)
    with pytest.raises(ValueError, match=r"cannot be made: .*Missing"):
        flat_env("minemakers:Missing")
