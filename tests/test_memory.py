"""The replay buffer: what leaves, what is drawn, and with what weight."""

from __future__ import annotations

import math
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from literate_rl.apps.training import ALGORITHMS, train
from literate_rl.data.memory import UnrollBuffer
from literate_rl.data.windows import check_fits, memory_left


@pytest.mark.equation("replay-priority")
@settings(max_examples=30)
@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=8), st.integers(1, 8))
def test_priorities_decide_how_often_and_with_what_weight(priorities, count) -> None:
    buffer = UnrollBuffer(max_use=10**9, alpha=0.6, beta=0.4)
    buffer.push([{"number": i} for i in range(len(priorities))])
    buffer.update(list(buffer.entries), priorities)
    generator = torch.Generator().manual_seed(0)
    powers = np.array(priorities) ** 0.6
    chance = powers / powers.sum()
    drawn = buffer.sample(count, generator)
    numbers = [entry["sample"]["number"] for entry in drawn]
    assert len(numbers) == min(count, len(priorities))
    weight = (len(priorities) * chance) ** -0.4
    expected = weight[numbers] / weight.max()
    assert [entry["IS"] for entry in drawn] == pytest.approx(expected)


@pytest.mark.equation("replay-priority")
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_frequencies_follow_the_priorities(batch) -> None:
    """Also where a batch is as large as the buffer."""
    buffer = UnrollBuffer(max_use=10**9, alpha=0.5)
    buffer.push([{"number": i} for i in range(16)])
    priority = np.arange(1.0, 17.0) ** 2
    buffer.update(list(buffer.entries), priority.tolist())
    generator = torch.Generator().manual_seed(0)
    draws = 16_000 // batch
    numbers = [
        entry["sample"]["number"]
        for _ in range(draws)
        for entry in buffer.sample(batch, generator)
    ]
    chance = np.sqrt(priority) / np.sqrt(priority).sum()
    frequency = np.bincount(numbers, minlength=16) / len(numbers)
    error = np.sqrt(chance * (1 - chance) / len(numbers))
    assert (np.abs(frequency - chance) < 4 * error).all()
    buffer.push([{"number": 16}])
    assert buffer.entries[-1]["priority"] == 256.0


@pytest.mark.equation("replay-priority")
@pytest.mark.parametrize(("size", "batch"), [(16, 16), (32, 16), (16, 1)])
def test_full_weights_undo_the_preference(size, batch) -> None:
    """The weighted mean is the mean over the buffer, but for a common factor."""
    buffer = UnrollBuffer(max_use=10**9, alpha=0.6, beta=1.0)
    buffer.push([{"number": i} for i in range(size)])
    buffer.update(list(buffer.entries), [1.0 + i for i in range(size)])
    generator = torch.Generator().manual_seed(0)
    rows = [
        [(entry["IS"], entry["sample"]["number"]) for entry in drawn]
        for drawn in (buffer.sample(batch, generator) for _ in range(64_000 // batch))
    ]
    weight, number = np.array(rows).reshape(-1, 2).T
    # The factor is the smallest weight's: that of the sample drawn most rarely is 1.
    chance = (1.0 + np.arange(size)) ** 0.6
    factor = size * chance[0] / chance.sum()
    products = weight * number / factor
    error = products.std() / np.sqrt(len(products))
    assert abs(products.mean() - (size - 1) / 2) < 4 * error
    # Without the weights large priorities pull the mean up.
    assert number.mean() > (size - 1) / 2 + 20 * error


def test_without_preference_no_sample_is_drawn_twice() -> None:
    buffer = UnrollBuffer(max_use=10**9)
    buffer.push([{"number": i} for i in range(16)])
    generator = torch.Generator().manual_seed(0)
    drawn = buffer.sample(16, generator)
    assert {entry["sample"]["number"] for entry in drawn} == set(range(16))
    assert {entry["IS"] for entry in drawn} == {1.0}


def test_each_draw_of_a_batch_is_a_use() -> None:
    buffer = UnrollBuffer(max_use=3, alpha=1.0)
    buffer.push([{"number": i} for i in range(2)])
    buffer.update(list(buffer.entries), [1e6, 1e-6])
    generator = torch.Generator().manual_seed(0)
    assert [e["sample"]["number"] for e in buffer.sample(2, generator)] == [0, 0]
    assert [entry["use"] for entry in buffer.entries] == [2, 0]
    buffer.sample(2, generator)
    assert [entry["sample"]["number"] for entry in buffer.entries] == [1]


@pytest.mark.erratum("last-start-excluded")
def test_every_sample_is_drawn_also_the_last() -> None:
    buffer = UnrollBuffer(max_use=10**9)
    buffer.push([{"number": i} for i in range(5)])
    generator = torch.Generator().manual_seed(0)
    drawn = {buffer.sample(1, generator)[0]["sample"]["number"] for _ in range(200)}
    assert drawn == set(range(5))
    # As published: starts are drawn from n - T numbers.
    steps, length = 10, 4
    seen = {t for start in range(steps - length) for t in range(start, start + length)}
    assert steps - 1 not in seen


def test_the_buffer_forgets_the_oldest_and_the_used() -> None:
    buffer = UnrollBuffer(size=3, max_use=2)
    buffer.push([{"number": i} for i in range(5)])
    assert [entry["sample"]["number"] for entry in buffer.entries] == [2, 3, 4]
    generator = torch.Generator().manual_seed(0)
    buffer.sample(3, generator)
    assert len(buffer) == 3
    assert len(buffer.sample(5, generator)) == 3
    assert len(buffer) == 0
    with pytest.raises(ValueError, match="the buffer must hold a sample"):
        buffer.sample(1, generator)
    for arguments in (
        {"size": 0},
        {"max_use": 0},
        {"max_use": math.nan},
        {"size": 2.5},
        {"alpha": -1.0},
        {"alpha": math.nan},
        {"beta": math.inf},
    ):
        with pytest.raises(
            (TypeError, ValueError), match=f"{next(iter(arguments))} must"
        ):
            UnrollBuffer(**arguments)


@pytest.mark.parametrize("priorities", [[2.0], [2.0, math.nan], [2.0, math.inf]])
def test_bad_priorities_leave_the_buffer_as_it_was(priorities) -> None:
    buffer = UnrollBuffer()
    buffer.push([{"number": 0}, {"number": 1}])
    with pytest.raises(ValueError, match="priorities must be 2 finite numbers"):
        buffer.update(list(buffer.entries), priorities)
    assert [entry["priority"] for entry in buffer.entries] == [1.0, 1.0]


def test_samples_are_a_sequence() -> None:
    buffer = UnrollBuffer()
    buffer.push([{"number": 0}, {"number": 1}])
    with pytest.raises(TypeError, match="samples must be a Sequence, got dict"):
        buffer.push({"number": 2})
    assert len(buffer) == 2


def test_the_state_is_a_copy_and_comes_back() -> None:
    buffer, other = UnrollBuffer(), UnrollBuffer()
    buffer.push([1, 2])
    state = buffer.state_dict()
    buffer.sample(2, torch.Generator())
    assert [entry["use"] for entry in state] == [0, 0]
    other.push([3])
    other.load_state_dict(state)
    other.sample(2, torch.Generator())
    assert [entry["sample"] for entry in other.entries] == [1, 2]
    assert [entry["use"] for entry in state] == [0, 0]


class Screen(gym.Env):
    """Shows pictures of 10 kB, and counts what is asked of it."""

    observation_space = gym.spaces.Box(0, 255, (100, 100), np.uint8)
    asked = 0

    def __init__(self, action_space: gym.spaces.Space[Any]) -> None:
        self.action_space = action_space

    def reset(self, **_: Any) -> Any:
        Screen.asked += 1
        raise NotImplementedError

    step = reset


MEMORIES = [
    name for name, x in ALGORITHMS.items() if "buffer_size" in str(fields(x.config))
]


@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize("free", ["little", "nobody tells"])
def test_a_buffer_that_does_not_fit_is_refused_before_the_first_step(
    name: str, free: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = name in ("ddpg", "ddpgper", "hddpg", "td3", "sac", "ddpgapex")
    action = gym.spaces.Box(-1, 1, (1,)) if boxes else gym.spaces.Discrete(2)
    setting = "buffer_size"
    if name == "impala":
        setting = "replay_buffer_size"
    # A thousand steps are 20 MB. 10**15 are more than any address space.
    size, left = (1000, 1e7) if free == "little" else (10**15, math.inf)
    monkeypatch.setattr("literate_rl.data.windows.memory_left", lambda: left)
    options: Any = {setting: size, "progress": False}
    if "apex" in name:
        options["actors"] = 1
    with pytest.raises(ValueError, match=f"^{setting} must be smaller, got {size}: "):
        train(name, partial(Screen, action), **options)
    assert not Screen.asked


def test_what_a_short_run_leaves_empty_takes_nothing(monkeypatch) -> None:
    space = Screen.observation_space
    monkeypatch.setattr("literate_rl.data.windows.memory_left", lambda: 1e9)
    check_fits("buffer_size", 10**6, 10**6, 40_000, space)
    with pytest.raises(ValueError, match=r"steps need 18\.7 GiB, and 0\.9 GiB are"):
        check_fits("buffer_size", 10**6, 10**6, 60_000, space)


def test_memory_is_what_is_available_or_what_a_container_allows(monkeypatch) -> None:
    texts = {"meminfo": "MemTotal: 9 kB\nMemAvailable:   5 kB\n", "memory.max": "max"}

    def read(path: Path, *_: Any) -> str:
        if path.name not in texts:
            raise FileNotFoundError
        return texts[path.name]

    monkeypatch.setattr(Path, "read_text", read)
    assert memory_left() == 5 * 1024
    texts["memory.max"] = "4096\n"
    assert memory_left() == 4096
    texts.clear()
    assert memory_left() == math.inf
