"""The replay buffer: what leaves, what is drawn, and with what weight."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from literate_rl.apps.training import train
from literate_rl.data.memory import UnrollBuffer
from literate_rl.data.windows import check_fits, memory_left


def numbered(count: int, priorities: Any = (), **options: Any) -> UnrollBuffer:
    """Return a buffer of the first numbers."""
    buffer = UnrollBuffer(**{"max_use": 10**9, **options})
    buffer.push(range(count))
    buffer.update([*buffer.entries][: len(priorities)], list(priorities))
    return buffer


def drawn(buffer: UnrollBuffer, batch: int, times: int = 1) -> tuple[Any, Any]:
    """Return samples and weights of some draws."""
    generator = torch.Generator().manual_seed(0)
    entries = [x for _ in range(times) for x in buffer.sample(batch, generator)]
    return [x["sample"] for x in entries], [x["IS"] for x in entries]


def samples(buffer: UnrollBuffer) -> list[int]:
    return [entry["sample"] for entry in buffer.entries]


def uses(buffer: UnrollBuffer) -> list[int]:
    return [entry["use"] for entry in buffer.entries]


@pytest.mark.equation("replay-priority")
@settings(max_examples=30)
@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=8), st.integers(1, 8))
def test_priorities_decide_with_what_weight(priorities, count):
    size = len(priorities)
    numbers, weights = drawn(numbered(size, priorities, alpha=0.6, beta=0.4), count)
    assert len(numbers) == min(count, size)
    powers = np.array(priorities) ** 0.6
    weight = (size * powers / powers.sum()) ** -0.4
    assert weights == pytest.approx(weight[numbers] / weight.max())


@pytest.mark.equation("replay-priority")
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_frequencies_follow_the_priorities(batch):
    """Also where a batch is as large as the buffer."""
    priority = np.arange(1.0, 17.0) ** 2
    buffer = numbered(16, priority, alpha=0.5, beta=1.0)
    numbers, weights = drawn(buffer, batch, 16_000 // batch)
    chance = np.sqrt(priority) / np.sqrt(priority).sum()
    frequency = np.bincount(numbers, minlength=16) / len(numbers)
    error = np.sqrt(chance * (1 - chance) / len(numbers))
    assert (np.abs(frequency - chance) < 4 * error).all()
    # Full weights undo it, but for that of the sample drawn most rarely, which is 1.
    assert weights == pytest.approx(chance[0] / chance[numbers])
    buffer.push([16])
    assert buffer.entries[-1]["priority"] == 256.0


def test_each_draw_is_a_use_and_only_with_preference_one_is_drawn_twice():
    numbers, weights = drawn(numbered(16), 16)
    assert {*numbers} == {*range(16)}
    assert {*weights} == {1.0}
    buffer = numbered(2, [1e6, 1e-6], max_use=3, alpha=1.0)
    assert drawn(buffer, 2)[0] == [0, 0]
    assert uses(buffer) == [2, 0]
    drawn(buffer, 2)
    assert samples(buffer) == [1]


@pytest.mark.erratum("last-start-excluded")
def test_every_sample_is_drawn_also_the_last():
    assert {*drawn(numbered(5), 1, 200)[0]} == {*range(5)}
    # As published: starts are drawn from n - T numbers.
    steps, length = 10, 4
    seen = {t for start in range(steps - length) for t in range(start, start + length)}
    assert steps - 1 not in seen


def test_the_buffer_forgets_the_oldest_and_the_used():
    buffer = numbered(5, size=3, max_use=2)
    assert samples(buffer) == [2, 3, 4]
    drawn(buffer, 3)
    assert len(buffer) == 3
    assert len(drawn(buffer, 5)[0]) == 3
    assert len(buffer) == 0
    with pytest.raises(ValueError, match="the buffer must hold a sample"):
        drawn(buffer, 1)


def test_bad_priorities_leave_the_buffer_as_it_was():
    buffer = numbered(2)
    with pytest.raises(ValueError, match="priorities must be 2 finite numbers"):
        buffer.update([*buffer.entries], [2.0, math.nan])
    assert [entry["priority"] for entry in buffer.entries] == [1.0, 1.0]


def test_the_state_is_a_copy_and_comes_back():
    buffer, other = numbered(2), numbered(3)
    state = buffer.state_dict()
    drawn(buffer, 2)
    other.load_state_dict(state)
    drawn(other, 2)
    assert samples(other) == [0, 1]
    assert [entry["use"] for entry in state] == [0, 0]


class Screen(gym.Env):
    """Shows pictures of 10 kB, and counts what is asked of it."""

    observation_space = gym.spaces.Box(0, 255, (100, 100), np.uint8)
    action_space = gym.spaces.Discrete(2)
    asked = 0

    def reset(self, **_: Any) -> Any:
        Screen.asked += 1
        raise NotImplementedError

    step = reset


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("impala", "replay_buffer_size"),
        ("dqn", "buffer_size"),
        ("dqnapex", "buffer_size"),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused_before_the_first_step(
    name, setting, monkeypatch
):
    monkeypatch.setattr("literate_rl.data.windows.memory_left", lambda: 1e7)
    with pytest.raises(ValueError, match=f"^{setting} must be smaller, got 1000: "):
        train(name, Screen, **{setting: 1000}, progress=False)  # 20 MB
    assert not Screen.asked


def test_what_a_short_run_leaves_empty_takes_nothing(monkeypatch):
    space = Screen.observation_space
    monkeypatch.setattr("literate_rl.data.windows.memory_left", lambda: 1e9)
    check_fits("buffer_size", 10**6, 10**6, 40_000, space)
    with pytest.raises(ValueError, match=r"steps need 18\.7 GiB, and 0\.9 GiB are"):
        check_fits("buffer_size", 10**6, 10**6, 60_000, space)


def test_memory_is_what_is_available_or_what_a_container_allows(monkeypatch):
    texts = {"meminfo": "MemTotal: 9 kB\nMemAvailable:   5 kB\n", "memory.max": "max"}

    def read(path, *_):
        if path.name not in texts:
            raise FileNotFoundError
        return texts[path.name]

    monkeypatch.setattr(Path, "read_text", read)
    assert memory_left() == 5 * 1024
    texts["memory.max"] = "4096\n"
    assert memory_left() == 4096
    texts.clear()
    assert memory_left() == math.inf
