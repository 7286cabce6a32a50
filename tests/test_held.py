"""Environments that are held to their interface: answers, exceptions, copies."""

import copy
import re
import sys
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from test_evaluation import Undecided
from worlds import LIST, ROW, ZEROS, Answers

from literate_rl.apps.training import train
from literate_rl.data.agents import make_envs
from literate_rl.data.held import Held
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import record_video

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.chaos_worlds import FAULTS, UNSEEN, Breaking


@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - UNSEEN))
def test_an_environment_that_breaks_its_interface_is_named(fault):
    envs = make_envs(partial(Breaking, fault, 2, continuous=False), 2)
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    with pytest.raises(BaseException) as failed:  # noqa: PT011 (or a note says it)
        envs.step(np.zeros(2, int))
    own = {"raises": KeyError, "panics": BaseException}.get(fault)
    words = failed.value.__notes__[0] if own else str(failed.value)
    assert failed.type is (own or ValueError)
    assert words.startswith("env 'Breaking' failed in step: ")
    assert failed.value.__notes__[-2:] == ["in step 2 of its episode", "in copy 0"]


# --- Exceptions -----------------------------------------------------------------------


class EnoughError(Exception):
    """What a user raises to end a training."""


class EndError(BaseException):
    """What no ``except Exception`` catches."""


class Raising(gym.Env):
    """Raises something in one of its methods, after a few steps."""

    observation_space, action_space = ROW, LIST
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, error, where, render_mode=None):
        self.error, self.where, self.render_mode = error, where, render_mode
        self.count = 0
        self.fail("make")

    def fail(self, where, count=0):
        if self.where == where and self.count >= count:
            raise self.error

    def reset(self, *, seed=None, options=None):
        self.fail("reset", 8)
        return ZEROS, {}

    def step(self, action):
        self.count += 1
        self.fail("step", 4)
        return ZEROS, 1.0, self.count % 8 == 0, False, {}

    def render(self):
        self.fail("render", 3)
        return np.zeros((16, 16, 3), np.uint8)

    def close(self):
        self.fail("close")


ERRORS = [EnoughError("x"), EndError("x"), StopIteration(3)]
SHORT = {"total_steps": 256, "progress": False}
CALLS = {
    "train": lambda make, _: train("PPO", make, **SHORT),
    "in a wrapper": lambda make, _: train("DQN", make, wrappers=[gym.Wrapper], **SHORT),
    "train actors": lambda make, _: train("IMPALA", make, actors=2, **SHORT),
    "evaluate": lambda make, _: evaluate(Undecided(), make, 3),
    "film": lambda make, place: record_video(Undecided(), make, place / "film.mp4"),
}
METHODS = "make", "reset", "step", "close"
RAISED = [(x, y, z) for x in CALLS for y in METHODS for z in ERRORS]
RAISED += [("film", "render", error) for error in ERRORS[:2]]


@pytest.mark.parametrize(("call", "where", "error"), RAISED)
def test_an_exception_of_an_environment_arrives_as_itself(call, where, error, tmp_path):
    made = copy.copy(error)
    with pytest.raises(type(error)) as failed:
        CALLS[call](partial(Raising, made, where), tmp_path)
    assert failed.value is made, "the very exception, with its attributes"
    first, *others = failed.value.__notes__
    words = "cannot be made: " if where == "make" else f"failed in {where}: "
    assert re.match(f"env .*{words}{type(error).__name__}: ", first)
    assert re.search(r"test_held\.py:\d+\)$", first)
    assert not any(x.startswith("env ") for x in others), "once is enough"
    assert where == "close" or not [*tmp_path.iterdir()], "no half a film is left"
    if where == "step":
        assert {"in step 4 of its episode", "in copy 0"} <= {*others}


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit("x")])
def test_an_environment_that_leaves_python_is_an_error(error):
    with pytest.raises(ValueError, match="env 'Answers' failed in step: "):
        Held(Answers(answer=error)).step(0)


def test_ctrl_c_in_an_environment_is_ctrl_c():
    with pytest.raises(KeyboardInterrupt) as pressed:
        Held(Answers(answer=KeyboardInterrupt())).step(0)
    assert not hasattr(pressed.value, "__notes__"), "not the environment's fault"


# --- What comes out of an environment -------------------------------------------------


BYTES, SMALL = spaces.Box(0, 255, (2,), np.uint8), spaces.Box(-5, 5, (2,), np.int8)
NAMED = spaces.Dict(a=ROW)
PAIR = spaces.Tuple([ROW, LIST])


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (PAIR, (ZEROS, 2), r"obs\[1\]"),
        *((BYTES, np.full(2, x), "obs must hold uint8") for x in (0.9, -1)),
        (spaces.Dict(a=SMALL), {"a": [0.6, -0.7]}, r"obs\['a'\] must hold int8"),
    ],
)
def test_an_observation_outside_of_its_space_is_named(space, obs, message):
    with pytest.raises(ValueError, match=f"^env 'Answers' failed in reset: {message}"):
        Held(Answers(space, start=(obs, {}))).reset()


@pytest.mark.parametrize(
    ("space", "around"),
    [
        (spaces.Tuple([NAMED]), lambda x: ({"a": x},)),
        (spaces.Tuple([ROW] * 2), lambda x: [x, x]),
    ],
)
def test_what_an_environment_hands_out_is_copied(space, around):
    count = np.zeros(2, np.float32)
    infos = {"more": {"at": [count]}, "me": count.any}
    answer = around(count), 1.0, False, False, infos
    env = Held(Answers(space, LIST, (around(count), infos), answer))
    first, start = env.reset()
    count += 1
    second, _, _, _, later = env.step(0)
    count += 1
    for steps, obs, told in ((0, first, start), (1, second, later)):
        now = np.full(2, steps, np.float32)
        torch.testing.assert_close(obs, around(now))
        assert type(obs) is type(around(now))
        assert told["more"]["at"][0].tolist() == now.tolist()
        assert told["me"] == count.any, "an object is nobody's to copy"
