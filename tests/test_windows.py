"""Windows: rings against lists, their draws, and queues that lose or mix windows."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from literate_rl.data.agents import Rollout
from literate_rl.data.windows import STORED, Rings


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def make_rollout(rng, num_steps, num_envs, start=0, phantoms=False, ends=0.2):
    """Return a rollout that observes 100 times the step plus the environment."""
    number = 100.0 * (start + np.arange(num_steps))[:, None] + np.arange(num_envs)
    flags = [rng.random((num_steps, num_envs)) < ends / 2 for _ in range(2)]
    real = np.ones((num_steps, num_envs), bool)
    if phantoms:
        real[1:] = ~(flags[0] | flags[1])[:-1]
    shape = (num_steps, num_envs)
    return Rollout(
        torch.tensor(number, dtype=torch.float32)[..., None],
        torch.tensor(rng.integers(0, 3, shape)),
        torch.tensor(rng.normal(size=shape), dtype=torch.float32),
        torch.tensor(number + 0.5, dtype=torch.float32)[..., None],
        *map(torch.tensor, flags),
        torch.tensor(real),
        *(torch.full(shape, torch.nan) for _ in range(2)),
    )


class SlowBuffer:
    """The same promises with lists of Python: one list of steps an environment."""

    def __init__(self, capacity):
        self.capacity, self.columns = capacity, None

    def push(self, rollout):
        num_envs = rollout.reward.shape[1]
        self.columns = self.columns or [[] for _ in range(num_envs)]
        for t in range(len(rollout.reward)):
            for b, column in enumerate(self.columns):
                if rollout.real[t, b]:
                    column.append({k: getattr(rollout, k)[t, b] for k in STORED})
                    del column[: -(self.capacity // num_envs)]

    def cut(self):
        for column in self.columns or []:
            if column:
                column[-1]["truncated"] = torch.tensor(True)

    def windows(self, num_steps, gamma):
        """Return, for each start, what `sample` promises of it, by its observation."""
        found = {}
        for column in self.columns:
            for start in range(len(column)):
                reward, discount = 0.0, 1.0
                for step in column[start : start + num_steps]:
                    reward += discount * step["reward"].item()
                    discount *= gamma
                    if step["terminated"]:
                        discount = 0.0
                    if step["terminated"] or step["truncated"]:
                        break
                first = column[start]
                found[first["obs"].item()] = (
                    first["action"].item(),
                    reward,
                    step["next_obs"].item(),
                    discount,
                )
        return found


def rings_and_lists(seed, num_envs, length, phantoms):
    """Return rings and lists that hold the same steps, after some pushes and cuts."""
    rng, start = np.random.default_rng(seed), 0
    capacity = length * num_envs + rng.integers(num_envs)
    rings, slow = Rings(capacity), SlowBuffer(capacity)
    for _ in range(rng.integers(1, 6)):
        rollout = make_rollout(rng, rng.integers(1, 13), num_envs, start, phantoms)
        start += len(rollout.reward)
        for memory in (rings, slow):
            memory.push(rollout)
        if rng.random() < 0.3:
            rings.cut()
            slow.cut()
    return rings, slow


RINGS = (
    st.integers(0, 2**31),
    st.integers(1, 4),
    st.integers(1, 23),
    st.booleans(),
)


@pytest.mark.equation("replay-window")
@pytest.mark.equation("replay-target")
@settings(max_examples=60, deadline=None)
@given(*RINGS, st.integers(1, 9))
def test_windows_of_rings_are_those_of_lists(
    seed, num_envs, length, phantoms, num_steps
):
    rings, slow = rings_and_lists(seed, num_envs, length, phantoms)
    expected = slow.windows(num_steps, 0.9)
    assert rings.count.sum() == len(expected)
    place = np.unique(rings.draw(60 * len(expected), generator(seed)))
    assert len(place) == len(expected), "every stored step is drawn, and nothing else"
    reward, last, discount = rings.window(place, num_steps, 0.9)
    fields = rings.fields
    for k, obs in enumerate(fields["obs"][place, 0]):
        found = (
            fields["action"][place[k]],
            reward[k],
            fields["next_obs"][last[k], 0],
            discount[k],
        )
        assert found == pytest.approx(expected[obs], rel=1e-6, abs=1e-6)


def test_all_stored_steps_are_drawn_alike() -> None:
    """Also where phantom rows have left the rings unequally full."""
    rings, slow = rings_and_lists(3, 3, 20, phantoms=True)
    assert len(set(rings.count.tolist())) > 1
    stored = len(slow.windows(1, 0.9))
    hits = np.bincount(rings.draw(2000 * stored, generator()), minlength=rings.places)
    assert (hits > 0).sum() == stored
    assert abs(hits[hits > 0] / 2000 - 1).max() < 0.1


@given(st.integers(0, 9999), st.integers(1, 5), st.booleans())
def test_a_rollout_of_some_environments_goes_to_their_rings(seed, cut, phantoms):
    """In two parts, one after the other, the steps come to lie where they would."""
    rng = np.random.default_rng(seed)
    whole, parts = Rings(50), Rings(50)
    for start in (0, 9):
        rollout = make_rollout(rng, 9, 6, start, phantoms)
        place, (step, env) = whole.push(rollout)
        for first, last in ((0, cut), (cut, 6)):
            part = Rollout(*(x[:, first:last] for x in rollout[:9]))
            mine, (when, where) = parts.push(part, (first, 6))
            inside = (env >= first) & (env < last)
            assert mine.tolist() == place[inside].tolist()
            assert when.tolist() == step[inside].tolist()
            assert (where + first).tolist() == env[inside].tolist()
    for name in STORED:
        assert np.array_equal(whole.fields[name], parts.fields[name])
    assert np.array_equal(whole.head, parts.head)
    assert np.array_equal(whole.count, parts.count)


def test_values_behind_an_end_never_reach_a_window() -> None:
    rings = rings_of([False, True, False], [False] * 3, 3)
    rings.fields["reward"][2] = np.nan
    reward, last, discount = rings.window(np.array([0]), 3, 0.5)
    assert (reward[0], last[0], discount[0]) == (1 + 0.5 * 2, 1, 0.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Rings(0), "capacity must be at least 1, got 0"),
        (
            lambda: Rings(2).push(make_rollout(np.random.default_rng(0), 1, 3)),
            "capacity must be at least 1 for each of 3 environments, got 2",
        ),
        (
            lambda: rings_of([False], [False], 4).push(
                make_rollout(np.random.default_rng(0), 1, 2)
            ),
            "rollout must be like the first",
        ),
    ],
)
def test_what_is_refused_is_named(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()


# --- What others do -------------------------------------------------------------------


def queue_windows(terminated, num_steps):
    """Return first and last step of the windows of a queue, as CleanRL stores them."""
    queue, stored = deque(maxlen=num_steps), []
    for step, end in enumerate(terminated):
        queue.append(step)
        if len(queue) < num_steps:
            continue
        stored.append((queue[0], queue[-1]))
        if end:
            queue.clear()
    return stored


def rings_of(terminated, truncated, capacity):
    """Return rings of one environment that was paid its step's number plus one."""
    count = len(terminated)
    rows = torch.arange(float(count))[:, None]
    flags = (torch.tensor(x)[:, None] for x in (terminated, truncated))
    nan = torch.full((count, 1), torch.nan)
    steps = Rollout(rows, rows, rows + 1, rows, *flags, nan.isnan(), nan, nan)
    rings = Rings(capacity)
    rings.push(steps)
    return rings


@pytest.mark.erratum("steps-never-a-start")
def test_a_queue_never_starts_at_the_last_steps() -> None:
    ends = [step == 5 for step in range(12)]
    for num_steps in (2, 3, 5):
        starts = {start for start, _ in queue_windows(ends, num_steps)}
        assert starts.isdisjoint(range(6 - num_steps + 1, 6))
        rings = rings_of(ends, [False] * 12, 12)
        _, last, discount = rings.window(np.arange(6), num_steps, 0.5)
        assert last.tolist() == [min(k + num_steps - 1, 5) for k in range(6)]
        assert (discount == 0).sum() == num_steps, "each of them leads to the end"


@pytest.mark.erratum("window-in-two-episodes")
def test_a_queue_mixes_episodes_at_a_time_limit() -> None:
    cut = [step == 3 for step in range(8)]
    mixed = [(a, b) for a, b in queue_windows([False] * 8, 3) if a <= 3 < b]
    assert mixed == [(2, 4), (3, 5)]
    reward, last, discount = rings_of([False] * 8, cut, 8).window(np.arange(8), 3, 0.5)
    assert last.tolist() == [2, 3, 3, 3, 6, 7, 7, 7]
    assert discount.tolist() == [0.125, 0.125, 0.25, 0.5, 0.125, 0.125, 0.25, 0.5]
    assert reward[2] == 3 + 0.5 * 4


@pytest.mark.erratum("power-of-a-shorter-window")
def test_a_fixed_power_moves_the_value_of_a_shorter_window() -> None:
    """Where each step pays 1 - gamma the value is 1 everywhere, from any window."""
    gamma, pay = 0.9, 0.1
    for steps, right in ((1, True), (2, True), (3, True), (2, False)):
        rewards = sum(gamma**k * pay for k in range(steps))
        power = steps if right else 3
        assert (rewards + gamma**power * 1.0 == pytest.approx(1.0)) == right
    # Machin: three rewards, then the value of the state after the first of them. On a
    # chain that pays 1 at its end, three steps away, that counts the end twice.
    values = [gamma**2, gamma, 1.0, 0.0]  # of the states 0 to 3
    assert gamma**2 + gamma**3 * values[1] > 1.5 * values[0]
