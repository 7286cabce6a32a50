"""Replay: windows, draws, weights and states, against slow references."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from literate_rl.agents import Rollout
from literate_rl.replay import STORED, ReplayBuffer, SumTree, importance_weights


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


def drawn(batch):
    """Return the windows of a batch by their first observation."""
    rows = zip(
        batch.obs[:, 0].tolist(),
        batch.action.tolist(),
        batch.reward.tolist(),
        batch.next_obs[:, 0].tolist(),
        batch.discount.tolist(),
        strict=True,
    )
    return {obs: rest for obs, *rest in rows}


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
    rng = np.random.default_rng(seed)
    capacity = length * num_envs + rng.integers(num_envs)
    buffer, slow = ReplayBuffer(capacity, alpha), SlowBuffer(capacity)
    start = 0
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
    found = drawn(batch)
    assert found.keys() == expected.keys(), "every stored step can be a start"
    for obs, window in found.items():
        assert window == pytest.approx(expected[obs], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 6, 7, 16, 17, 257])
@pytest.mark.parametrize("branching", [2, 3, 16])
def test_the_tree_draws_each_leaf_by_its_mass(capacity, branching):
    rng = np.random.default_rng(capacity)
    tree = SumTree(capacity, branching)
    mass = rng.random(capacity) * (rng.random(capacity) < 0.8) + 1e-300
    tree.update(np.arange(capacity), mass)
    assert tree.total == pytest.approx(mass.sum(), rel=1e-14)
    # Marks on a fine grid: the share of each leaf is its length, to one mark.
    count = 20_000
    leaves = tree.find((np.arange(count) + 0.5) / count * tree.total)
    share = np.bincount(leaves, minlength=capacity) / count
    assert np.abs(share - mass / mass.sum()).max() <= 1.01 / count


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 300), st.integers(2, 20))
def test_the_tree_finds_what_a_cumulative_sum_finds(seed, capacity, branching):
    """Exactly, in fractions: whole masses leave no room for rounding."""
    rng = np.random.default_rng(seed)
    tree, mass = SumTree(capacity, branching), np.zeros(capacity)
    for _ in range(4):
        index = rng.integers(0, capacity, rng.integers(1, 40))
        value = rng.integers(0, 9, len(index)).astype(float)
        tree.update(index, value)
        mass[index] = value
    assert np.array_equal(tree.mass[:capacity], mass)
    assert tree.total == mass.sum()
    if mass.sum():
        marks = np.arange(0, mass.sum(), 0.5)
        expected = np.searchsorted(mass.cumsum(), marks, side="right")
        assert np.array_equal(tree.find(marks), expected)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 300), st.integers(2, 20))
def test_a_leaf_without_mass_is_never_found(seed, capacity, branching):
    rng = np.random.default_rng(seed)
    tree = SumTree(capacity, branching)
    mass = 10.0 ** rng.uniform(-30, 30, capacity) * (rng.random(capacity) < 0.3)
    mass[rng.integers(capacity)] = 1e-3
    tree.update(np.arange(capacity), mass)
    total = tree.total
    marks = [
        0.0,
        total,
        np.nextafter(total, np.inf),
        2 * total,
        *(total * rng.random(99)),
    ]
    assert (mass[tree.find(np.array(marks))] > 0).all()


def test_a_tree_does_not_drift():
    """A hundred thousand updates later its sums are those of its leaves."""
    rng, tree = np.random.default_rng(0), SumTree(1000)
    for _ in range(2000):
        tree.update(rng.integers(0, 1000, 50), 10.0 ** rng.uniform(-6, 6, 50))
    fresh = SumTree(1000)
    fresh.update(np.arange(1000), tree.mass[:1000])
    for one, other in zip(tree.levels, fresh.levels, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_draws_follow_the_priorities_and_weights_undo_them(alpha):
    rng = np.random.default_rng(1)
    buffer = ReplayBuffer(12, alpha)
    buffer.push(make_rollout(rng, 4, 3))
    priority = torch.tensor(rng.random(12) + 0.01)
    buffer.update(torch.arange(12), priority)
    batch = buffer.sample(60_000, generator())
    share = torch.bincount(batch.place, minlength=12) / 60_000
    expected = priority**alpha / (priority**alpha).sum()
    tolerance = 0.01 if alpha == 0 else 2 / 60_000
    assert (share - expected).abs().max() < tolerance
    weighted = torch.bincount(batch.place, batch.weight.double(), 12)
    assert torch.allclose(
        weighted / weighted.sum(), torch.tensor(1 / 12).double(), atol=0.002
    )


def test_weights_are_those_of_the_paper():
    probability = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    for beta in (0.0, 0.4, 1.0):
        raw = (3 * probability) ** -beta
        weight = importance_weights(probability, 3, beta)
        assert torch.allclose(weight, raw / raw.max())
    assert importance_weights(probability, 3, 0.0).tolist() == [1, 1, 1]


def test_a_new_step_gets_the_largest_priority_ever():
    buffer = ReplayBuffer(4, alpha=0.5)
    rng = np.random.default_rng(0)
    buffer.push(make_rollout(rng, 2, 1))
    assert buffer.tree.mass[:2].tolist() == [1, 1]
    buffer.update(torch.tensor([0, 1]), torch.tensor([-9.0, 0.0]))
    assert buffer.tree.mass[0] == 3
    assert buffer.tree.mass[1] == pytest.approx(1e-3), "no step is forgotten for good"
    buffer.update(torch.tensor([0]), torch.tensor([4.0]))
    buffer.push(make_rollout(rng, 1, 1))
    assert buffer.tree.mass[:3].tolist() == pytest.approx([2, 1e-3, 3])


def bits(buffer):
    """Return all that a buffer holds, as bytes."""
    state = buffer.state_dict()
    return {
        k: v.numpy().tobytes() if isinstance(v, torch.Tensor) else v
        for k, v in state.items()
    }


@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("num_rollouts", [0, 1, 2, 7])
def test_a_state_comes_back_bit_for_bit(alpha, num_rollouts):
    rng = np.random.default_rng(0)
    buffer = ReplayBuffer(50, alpha)
    for k in range(num_rollouts):
        buffer.push(make_rollout(rng, 5, 3, 5 * k, phantoms=True))
        batch = buffer.sample(8, generator(k))
        buffer.update(batch.place, torch.tensor(rng.normal(size=8)))
    state = {
        k: v.clone() if hasattr(v, "clone") else v
        for k, v in buffer.state_dict().items()
    }
    other = ReplayBuffer(50, alpha)
    other.push(make_rollout(rng, 9, 3))  # what it held before is gone
    other.load_state_dict(state)
    assert bits(other) == bits(buffer)
    rollout = make_rollout(rng, 20, 3, 100)
    for memory in (buffer, other):
        memory.push(rollout)
    one, two = (memory.sample(64, generator(), 3) for memory in (buffer, other))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_pictures_stay_bytes_and_actions_what_they_were():
    shape = (6, 2)
    picture = torch.randint(0, 256, (*shape, 3, 4, 4), dtype=torch.uint8)
    no, yes = torch.zeros(shape).bool(), torch.ones(shape).bool()
    nan = torch.full(shape, torch.nan)
    buffer = ReplayBuffer(10)
    action = torch.rand(*shape, 5)
    buffer.push(
        Rollout(picture, action, torch.ones(shape), picture, no, no, yes, nan, nan)
    )
    batch = buffer.sample(7, generator())
    assert batch.obs.dtype == batch.next_obs.dtype == torch.uint8
    assert batch.obs.shape == (7, 3, 4, 4)
    assert batch.action.shape == (7, 5)
    assert sum(x.nbytes for x in buffer.fields.values()) == 10 * (2 * 48 + 20 + 4 + 2)


def rollout_of_three():
    return make_rollout(np.random.default_rng(0), 4, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b: ReplayBuffer(0), "capacity must be at least 1, got 0"),
        (lambda b: ReplayBuffer(5, -1.0), "alpha must be at least 0"),
        (
            lambda b: ReplayBuffer(2).push(
                make_rollout(np.random.default_rng(0), 1, 3)
            ),
            "capacity",
        ),
        (lambda b: ReplayBuffer(2).sample(1, generator()), "must hold a step"),
        (lambda b: b.sample(0, generator()), "batch_size must be at least 1"),
        (
            lambda b: b.update(torch.tensor([9]), torch.ones(1)),
            r"place must lie in 0\.\.8",
        ),
        (
            lambda b: b.update(torch.tensor([0]), torch.tensor([torch.nan])),
            "priority must",
        ),
        (
            lambda b: b.load_state_dict(ReplayBuffer(9).state_dict() | {"capacity": 8}),
            "settings",
        ),
    ],
)
def test_what_is_refused_is_named(call, message):
    buffer = ReplayBuffer(9, 0.6)
    buffer.push(rollout_of_three())
    with pytest.raises(ValueError, match=message):
        call(buffer)
