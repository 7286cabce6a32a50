"""Windows: a buffer against lists, its draws, and queues that lose or mix windows."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from literate_rl.data.agents import Rollout
from literate_rl.data.replay import ReplayBuffer
from literate_rl.data.windows import STORED, Rings


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def make_rollout(rng, num_steps, num_envs, start=0, phantoms=False):
    """Return a rollout that observes 100 times the step plus the environment."""
    shape = (num_steps, num_envs)
    number = 100.0 * (start + np.arange(num_steps))[:, None] + np.arange(num_envs)
    obs = torch.tensor(number, dtype=torch.float32).unsqueeze(-1)
    flags = torch.tensor(rng.random((2, *shape)) < 0.1)
    real = torch.ones(shape, dtype=torch.bool)
    if phantoms:
        real[1:] = ~flags.any(0)[:-1]
    action, reward = (
        torch.tensor(rng.integers(0, 3, shape)),
        torch.tensor(rng.normal(size=shape)),
    )
    nan = torch.full(shape, torch.nan)
    return Rollout(obs, action, reward.float(), obs + 0.5, *flags, real, nan, nan)


class SlowBuffer:
    """The same promises with lists of Python: one list of steps an environment."""

    def __init__(self, length, num_envs):
        self.columns = [deque(maxlen=length) for _ in range(num_envs)]

    def push(self, rollout):
        for t, b in np.argwhere(rollout.real.numpy()):
            self.columns[b].append({k: getattr(rollout, k)[t, b] for k in STORED})

    def cut(self):
        for column in self.columns:
            if column:
                column[-1]["truncated"] = torch.tensor(True)

    def windows(self, num_steps, gamma):
        """Return, for each start, what `sample` promises of it, by its observation."""
        found = {}
        for column in map(list, self.columns):
            for start, first in enumerate(column):
                reward, discount = 0.0, 1.0
                for step in column[start : start + num_steps]:
                    reward += discount * step["reward"].item()
                    discount *= gamma
                    if step["terminated"]:
                        discount = 0.0
                    if step["terminated"] or step["truncated"]:
                        break
                rest = first["action"].item(), reward, step["next_obs"].item(), discount
                found[first["obs"].item()] = rest
        return found


@pytest.mark.equation("replay-window")
@pytest.mark.equation("replay-target")
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**31),
    st.integers(1, 4),
    st.integers(1, 23),
    st.integers(1, 9),
    st.sampled_from([0.0, 0.6]),
    st.booleans(),
)
def test_windows_are_those_of_lists(seed, num_envs, length, num_steps, alpha, phantoms):
    rng, start = np.random.default_rng(seed), 0
    buffer = ReplayBuffer(length * num_envs + rng.integers(num_envs), alpha)
    slow = SlowBuffer(length, num_envs)
    for _ in range(rng.integers(1, 6)):
        rollout = make_rollout(rng, rng.integers(1, 13), num_envs, start, phantoms)
        start += len(rollout.reward)
        for memory in (buffer, slow):
            memory.push(rollout)
        if rng.random() < 0.3:
            buffer.cut()
            slow.cut()
    expected = slow.windows(num_steps, 0.9)
    assert len(buffer) == len(expected)
    # Enough draws to see every start; with a tree one for each slice would do.
    batch = buffer.sample(60 * len(buffer), generator(seed), num_steps, 0.9)
    rows = (batch.action, batch.reward, batch.next_obs[:, 0], batch.discount)
    rest = zip(*(x.tolist() for x in rows), strict=True)
    found = dict(zip(batch.obs[:, 0].tolist(), rest, strict=True))
    assert found.keys() == expected.keys(), "every stored step can be a start"
    for obs, window in found.items():
        assert window == pytest.approx(expected[obs], rel=1e-5, abs=1e-6)
    assert (buffer.windows(batch.place.numpy(), num_steps, 0.9).weight == 1).all()


def test_all_stored_steps_are_drawn_alike():
    """Also where phantom rows have left the rings unequally full."""
    rings, rng = Rings(60), np.random.default_rng(3)
    _, (step, _) = rings.push(make_rollout(rng, 18, 3, phantoms=True))
    assert len(set(rings.count.tolist())) > 1
    draws = rings.draw(2000 * len(step), generator())
    hits = np.bincount(draws, minlength=rings.places)
    assert (hits > 0).sum() == len(step)
    assert abs(hits[hits > 0] / 2000 - 1).max() < 0.1


@given(st.integers(0, 9999), st.integers(1, 5), st.booleans())
def test_a_rollout_of_some_environments_goes_to_their_rings(seed, cut, phantoms):
    """In two parts, one after the other, steps and priorities lie where they would."""
    rng = np.random.default_rng(seed)
    whole, parts = ReplayBuffer(50, 0.6), ReplayBuffer(50, 0.6)
    for start in (0, 9):
        rollout = make_rollout(rng, 9, 6, start, phantoms)
        priority = torch.tensor(rng.random((9, 6)))
        whole.push(rollout, priority)
        for mine in (slice(cut), slice(cut, 6)):
            part = Rollout(*(x[:, mine] for x in rollout[:9]))
            parts.push(part, priority[:, mine], (mine.start or 0, 6))
    both = whole.state_dict(), parts.state_dict()
    torch.testing.assert_close(*both, rtol=0, atol=0)


# --- What others do -------------------------------------------------------------------


def queue_windows(terminated, num_steps):
    """Return first and last step of the windows of a queue, as CleanRL stores them."""
    queue, stored = deque(maxlen=num_steps), []
    for step, end in enumerate(terminated):
        queue.append(step)
        if len(queue) == num_steps:
            stored.append((queue[0], queue[-1]))
            if end:
                queue.clear()
    return stored


def rings_of(terminated, truncated):
    """Return rings of one environment that was paid its step's number plus one."""
    rows = torch.arange(float(len(terminated))).unsqueeze(1)
    flags = (torch.tensor(x).unsqueeze(1) for x in (terminated, truncated))
    rings = Rings(len(rows))
    rings.push(Rollout(rows, rows, rows + 1, rows, *flags, rows > -1, rows, rows))
    return rings


@pytest.mark.erratum("steps-never-a-start")
@pytest.mark.parametrize("num_steps", [2, 3, 5])
def test_a_queue_never_starts_at_the_last_steps(num_steps):
    ends = [step == 5 for step in range(12)]
    starts = {start for start, _ in queue_windows(ends, num_steps)}
    assert starts.isdisjoint(range(6 - num_steps + 1, 6))
    rings = rings_of(ends, [False] * 12)
    rings.fields["reward"][6:] = np.nan  # what is behind the end is not looked at
    reward, last, discount = rings.window(np.arange(6), num_steps, 0.5)
    assert last.tolist() == [min(k + num_steps - 1, 5) for k in range(6)]
    assert (discount == 0).sum() == num_steps, "each of them leads to the end"
    assert reward[4] == 5 + 0.5 * 6


@pytest.mark.erratum("window-in-two-episodes")
def test_a_queue_mixes_episodes_at_a_time_limit():
    cut, never = [step == 3 for step in range(8)], [False] * 8
    mixed = [(a, b) for a, b in queue_windows(never, 3) if a <= 3 < b]
    assert mixed == [(2, 4), (3, 5)]
    reward, last, discount = rings_of(never, cut).window(np.arange(8), 3, 0.5)
    assert last.tolist() == [2, 3, 3, 3, 6, 7, 7, 7]
    assert discount.tolist() == [0.125, 0.125, 0.25, 0.5] * 2
    assert reward[2] == 3 + 0.5 * 4


@pytest.mark.erratum("power-of-a-shorter-window")
def test_a_fixed_power_moves_the_value_of_a_shorter_window():
    """Where each step pays 1 - gamma the value is 1 everywhere, from any window."""
    gamma, pay = 0.9, 0.1
    for steps, right in ((1, True), (2, True), (3, True), (2, False)):
        rewards = sum(gamma**k * pay for k in range(steps))
        power = steps if right else 3
        assert (rewards + gamma**power == pytest.approx(1.0)) == right
    # Machin: three rewards, then the value of the state after the first of them. On a
    # chain that pays 1 at its end, three steps away, that counts the end twice.
    assert gamma**2 + gamma**3 * gamma > 1.5 * gamma**2
