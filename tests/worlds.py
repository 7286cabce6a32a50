"""Environments and a model that tests share; other processes can import them."""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation
from torch import Tensor, nn

from literate_rl.data.agents import make_envs

ROW, LIST = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
ZEROS = np.zeros(2, np.float32)


class Counting(gym.Env[Any, Any]):
    """Shows who it is and how many steps it has taken; the reward is that count too.

    Whatever is lost, repeated or mixed up on the way to a learner shows in the numbers.

    Args:
        nap: Seconds that a step lasts.
        fails_at: Step at which it raises an error.
        error: What it raises.
        dies_at: Step at which it ends its process, with exit code 3.
        hangs_at: Step that never returns.
    """

    def __init__(
        self,
        nap: float = 0.0,
        fails_at: int = -1,
        error: Any = ValueError,
        dies_at: int = -1,
        hangs_at: int = -1,
    ) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,))
        self.action_space = spaces.Discrete(3)
        self.nap, self.fails_at, self.error = nap, fails_at, error
        self.dies_at, self.hangs_at = dies_at, hangs_at
        self.count = self.name = 0

    def obs(self) -> np.ndarray:
        return np.array([self.name, self.count], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.name = seed % 2**20
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        time.sleep(self.nap)
        self.count += 1
        if self.count == self.fails_at:
            raise self.error("the pole is made of glass")
        if self.count == self.dies_at:
            os._exit(3)
        while self.count == self.hangs_at:
            time.sleep(3600)
        ended, cut = self.count % 7 == 0, self.count % 11 == 0
        return self.obs(), float(self.count), ended, cut, {}


def counting(copies: int = 2, **arguments: Any) -> SyncVectorEnv:
    return make_envs(partial(Counting, **arguments), copies)


class Answers(gym.Env[Any, Any]):
    """Answers what it was told to, or raises it; usually its episode has one step."""

    def __init__(
        self,
        space: Any = ROW,
        actions: Any = LIST,
        start: Any = (ZEROS, {}),
        answer: Any = (ZEROS, 1.0, True, False, {}),
    ) -> None:
        self.observation_space, self.action_space = space, actions
        self.start, self.answer = start, answer

    def reset(self, **_: Any) -> Any:
        return self.start

    def step(self, action: Any) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class Tower(gym.Env[dict[str, Any], Any]):
    """Two states, one of them a picture of bytes; discrete actions or a box."""

    def __init__(self, action_space: spaces.Space[Any] | None = None) -> None:
        self.observation_space = spaces.Dict(
            {
                "picture": spaces.Box(0, 255, (3, 6, 6), np.uint8),
                "speed": spaces.Box(-np.inf, np.inf, (2,)),
            }
        )
        self.action_space = copy.deepcopy(action_space or spaces.Discrete(3))

    def look(self) -> dict[str, Any]:
        picture = self.np_random.integers(0, 256, (3, 6, 6), np.uint8)
        return {"picture": picture, "speed": np.float32(self.np_random.normal(size=2))}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.look(), {}

    def step(self, action: Any) -> Any:
        return self.look(), 0.0, bool(self.np_random.random() < 0.2), False, {}


class Eye(nn.Module):
    """An encoder of a reader's own: it wants a batch of floats in their own shape."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape, self.output_size = shape or (10, 10, 2), 5
        self.layer = nn.Linear(math.prod(self.shape), 5)

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1:] == self.shape
        assert x.is_floating_point()
        seen: Tensor = self.layer(x.flatten(1)).relu()
        return seen


def make_eye(space: spaces.Space[Any]) -> Eye:
    """Make one that fits a space; what is no Box comes flat."""
    box = isinstance(space, spaces.Box)
    return Eye(*(space.shape or ()) if box else (spaces.flatdim(space),))


class Rows(nn.Sequential):
    """A chain of layers for rows with any dimensions in front."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x.reshape(-1, x.shape[-1]))
        return out.reshape(*x.shape[:-1], -1)


def moody(inputs: int, outputs: int) -> Rows:
    """Return a network with dropout and batch normalisation, a frozen one too."""
    net = Rows(
        *(nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout()),
        *(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, outputs)),
    )
    net[5].eval()
    return net


def modes(module: nn.Module) -> list[bool]:
    return [part.training for part in module.modules()]


@contextmanager
def left_alone(module: nn.Module) -> Iterator[None]:
    """Fail if a block changes the weights, the moments or a mode of a module."""
    kept, before = copy.deepcopy(module.state_dict()), modes(module)
    assert {*before} == {True, False}
    yield
    assert all(torch.equal(x, kept[k]) for k, x in module.state_dict().items())
    assert modes(module) == before


class TwoStates(nn.Module):
    """Takes two states, something that is no tensor, and an option."""

    def __init__(self, action_num: int = 3) -> None:
        super().__init__()
        self.net = nn.Linear(6, action_num)

    def forward(
        self, cart: Tensor, pole: Tensor, mode: str = "usual", *, scale: float = 1.0
    ) -> Any:
        assert mode in ("usual", "other")
        features = torch.cat([cart, pole], -1)
        return scale * self.net(features), features.sum(), None, "anything"


class Fenced(gym.Env[Any, Any]):
    """Shows which of its four actions are legal, and fails at any other.

    Half of the episodes are cut off, with a mask like any other. The other half
    terminate, and then nothing is legal any more.

    Args:
        length: Steps of an episode.
        done: Other actions than four from 3 on, whose masks are as wide.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(
        self,
        length: int = 5,
        done: spaces.Space[Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (5,))
        self.action_space = copy.deepcopy(done or spaces.Discrete(4, start=3))
        self.length, self.render_mode = length, render_mode

    def look(self, over: bool = False) -> Any:
        self.mask = np.zeros(4, np.int8)
        if not over:
            some = self.np_random.permutation(4)[: self.np_random.integers(1, 4)]
            self.mask[some] = 1
        seen = np.append(self.mask, self.count / self.length).astype(np.float32)
        return seen, {"action_mask": self.mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.look()

    def step(self, action: Any) -> Any:
        index = int(action) - 3
        if not self.mask[index]:
            raise AssertionError(f"action {index} is illegal: {self.mask}")
        self.count += 1
        over = self.count == self.length
        ended = over and bool(self.np_random.random() < 0.5)
        seen, infos = self.look(ended)
        return seen, index / 3, ended, over and not ended, infos

    def render(self) -> Any:
        return np.full((16, 16, 3), 60 * self.count % 256, np.uint8)


gym.register("Fenced-v0", Fenced)


class Apart(gym.Env[Any, Any]):
    """Asks whether a number far from 0 is above its middle; the other one is tiny.

    Args:
        box: Whether the answer is a number, and its sign counts.
        middle: The middle.
    """

    def __init__(self, box: bool = False, middle: float = 1000.0) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,))
        self.action_space = spaces.Box(-1, 1, (1,)) if box else spaces.Discrete(2)
        self.middle, self.steps = middle, 0

    def look(self) -> Any:
        self.far, near = self.np_random.normal(size=2)
        row = [self.middle + 100 * self.far, 0.001 * near]
        return np.array(row, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def step(self, action: Any) -> Any:
        up = float(np.asarray(action).squeeze()) > 0
        reward = 10.0 * (up == (self.far > 0))
        self.steps += 1
        return self.look(), reward, False, self.steps == 5, {}


class GrownScale(NormalizeObservation[Any, Any, Any]):
    """A wrapper of one's own, made of Gymnasium's."""
