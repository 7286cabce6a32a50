"""Replay: draws, weights and states, and a buffer against a slow one."""

import copy
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_windows import SlowBuffer, generator, make_rollout, rings_of

from literate_rl.data.agents import Collector, Rollout, make_envs
from literate_rl.data.memory import UnrollBuffer
from literate_rl.data.replay import Batch, ReplayBuffer
from literate_rl.data.sum_tree import SumTree, importance_weights

SEEDS = st.integers(0, 2**31)


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
    assert (buffer.windows(batch.place.numpy(), num_steps, 0.9).weight == 1).all()


@pytest.mark.equation("replay-walk")
@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 6, 7, 16, 17, 257])
@pytest.mark.parametrize(("branching", "root"), [(2, 1), (2, 2), (3, 4), (16, 4096)])
def test_the_tree_draws_each_leaf_by_its_mass(capacity, branching, root):
    rng = np.random.default_rng(capacity)
    tree = SumTree(capacity, branching, root)
    mass = rng.random(capacity) * (rng.random(capacity) < 0.8) + 1e-300
    tree.update(np.arange(capacity), mass)
    assert tree.total == pytest.approx(mass.sum(), rel=1e-14)
    # Marks on a fine grid: the share of each leaf is its length, to one mark.
    count = 20_000
    leaves = tree.find((np.arange(count) + 0.5) / count * tree.total)
    share = np.bincount(leaves, minlength=capacity) / count
    assert np.abs(share - mass / mass.sum()).max() <= 1.01 / count


@pytest.mark.equation("replay-sums")
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**31), st.integers(1, 300), st.integers(2, 20), st.integers(1, 30)
)
def test_the_tree_finds_what_a_cumulative_sum_finds(seed, capacity, branching, root):
    """Exactly, in fractions: whole masses leave no room for rounding."""
    rng = np.random.default_rng(seed)
    tree, mass = SumTree(capacity, branching, root), np.zeros(capacity)
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
@given(
    st.integers(0, 2**31), st.integers(1, 300), st.integers(2, 20), st.integers(1, 30)
)
def test_a_leaf_without_mass_is_never_found(seed, capacity, branching, root):
    rng = np.random.default_rng(seed)
    tree = SumTree(capacity, branching, root)
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
    rng, tree = np.random.default_rng(0), SumTree(1000, root=8)
    for _ in range(2000):
        tree.update(rng.integers(0, 1000, 50), 10.0 ** rng.uniform(-6, 6, 50))
    fresh = SumTree(1000, root=8)
    fresh.update(np.arange(1000), tree.mass[:1000])
    for one, other in zip(tree.levels, fresh.levels, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.equation("replay-preference")
@pytest.mark.equation("replay-weight")
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


def test_weights_are_those_of_the_buffer_of_unrolls():
    """Over all entries at once, divided by the largest weight of all."""
    rng, count = np.random.default_rng(0), 40
    priority = rng.random(count) + 0.1
    unrolls = UnrollBuffer(max_use=10**9, alpha=0.6, beta=0.4)
    unrolls.push(range(count))
    unrolls.update(unrolls.entries, priority.tolist())
    for _ in range(20):
        unrolls.sample(count, generator())
    tree = SumTree(count)
    tree.update(np.arange(count), priority**0.6)
    probability = torch.from_numpy(tree.mass / tree.total)
    weight = importance_weights(probability, count, 0.4)
    theirs = {e["sample"]: e["IS"] for e in unrolls.entries if "IS" in e}
    assert len(theirs) > 20
    for number, expected in theirs.items():
        assert weight[number].item() == pytest.approx(expected, rel=1e-6)


def test_a_new_step_gets_the_largest_priority_ever():
    buffer = ReplayBuffer(4, priority_exponent=0.5)
    rng = np.random.default_rng(0)
    buffer.push(make_rollout(rng, 2, 1))
    assert buffer.tree.mass[:2].tolist() == [1, 1]
    buffer.update(torch.tensor([0, 1]), torch.tensor([-9.0, 0.0]))
    assert buffer.tree.mass[0] == 3
    assert buffer.tree.mass[1] == pytest.approx(1e-3), "no step is forgotten for good"
    buffer.update(torch.tensor([0]), torch.tensor([4.0], requires_grad=True))
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
    for more in (False, True):
        if more:
            for memory in (buffer, other):
                memory.push(rollout)
        if len(buffer):
            one, two = (memory.sample(64, generator(), 3) for memory in (buffer, other))
            assert all(torch.equal(a, b) for a, b in zip(one[:7], two[:7], strict=True))


PEAK = """
import resource, sys
from pathlib import Path
import torch
from literate_rl.data.agents import Rollout
from literate_rl.data.replay import ReplayBuffer
from literate_rl.runs.runs import load_checkpoint, save_checkpoint

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1024 if sys.platform == "linux" else 1
    )

path, shape = Path(sys.argv[1]), (50, 8)
picture = torch.ones(*shape, 84, 84, dtype=torch.uint8)
no, number = torch.zeros(shape).bool(), torch.ones(shape)
buffer = ReplayBuffer(8000, priority_exponent=0.5)
steps = Rollout(picture, no, number, picture, no, no, ~no, number, number)
for _ in range(20):
    buffer.push(steps)
save_checkpoint(path.with_name("small.pt"), {"step": 1})
size, before = sum(x.nbytes for x in buffer.rings.fields.values()), peak()
save_checkpoint(path, {"step": 1, "buffer": buffer.state_dict()})
print(size, (peak() - before) / size)
loaded = ReplayBuffer(8000, priority_exponent=0.5)
loaded.load_state_dict(load_checkpoint(path)["buffer"])
assert len(loaded) == 8000 and loaded.rings.fields["obs"].min() == 1
"""


def test_saving_a_large_buffer_needs_a_fifth_more_memory_at_most(tmp_path):
    """Its peak is 1.2 times the buffer, where three copies would be 4 times."""
    command = [sys.executable, "-c", PEAK, str(tmp_path / "c.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    size, grown = map(float, done.stdout.split())
    assert size > 100e6
    assert grown < 0.2


def test_priorities_of_another_shape_leave_the_buffer_as_it_was():
    no, ones = torch.zeros(3, 2).bool(), torch.ones(3, 2)
    nan = torch.full((3, 2), torch.nan)
    obs = torch.zeros(3, 2, 1)
    rollout = Rollout(obs, ones, ones, obs, no, no, ~no, nan, nan)
    buffer = ReplayBuffer(8, 0.6)
    with pytest.raises(ValueError, match=r"priority must be \(3, 2\), got \(4, 2\)"):
        buffer.push(rollout, torch.ones(4, 2))
    assert len(buffer) == 0


def test_a_batch_moves_to_a_device():
    moved = Batch(*torch.ones(8, 2)).to(torch.device("meta"))
    assert {field.device.type for field in moved[:8]} == {"meta"}
    assert moved.next_mask is None


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
    assert sum(x.nbytes for x in buffer.rings.fields.values()) == 10 * (
        2 * 48 + 20 + 4 + 2
    )


def rollout_of_three():
    return make_rollout(np.random.default_rng(0), 4, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b: ReplayBuffer(0), "capacity must be at least 1, got 0"),
        (lambda b: ReplayBuffer(5, -1.0), "priority_exponent must be at least 0"),
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
            "place must be below 9, got",
        ),
        (
            lambda b: b.update(torch.tensor([0]), torch.tensor([torch.nan])),
            "priority must",
        ),
        (
            lambda b: b.load_state_dict(ReplayBuffer(9).state_dict() | {"capacity": 8}),
            "state must be that of a buffer with .*capacity",
        ),
    ],
)
def test_what_is_refused_is_named(call, message):
    buffer = ReplayBuffer(9, 0.6)
    buffer.push(rollout_of_three())
    with pytest.raises(ValueError, match=message):
        call(buffer)


# --- What others do -------------------------------------------------------------------


@pytest.mark.erratum("n-steps-without-effect")
def test_a_setting_that_only_one_branch_reads_has_no_effect() -> None:
    def buffer_settings(buffer_class, n_steps, gamma, given):
        if buffer_class is None and n_steps > 1:
            given = given | {"n_steps": n_steps, "gamma": gamma}
        return {"n_steps": 3, "gamma": 0.99} | given

    assert buffer_settings(None, 5, 0.9, {}) == {"n_steps": 5, "gamma": 0.9}
    assert buffer_settings("NStep", 5, 0.9, {}) == {"n_steps": 3, "gamma": 0.99}
    # Here the length of a window is an argument of the draw, there is no other place.
    rings = rings_of([False] * 9, [False] * 9, 9)
    buffer = ReplayBuffer(9)
    buffer.rings = rings
    discounts = [buffer.sample(64, generator(), n, 0.5).discount.min() for n in (1, 3)]
    assert discounts == [0.5, 0.125]


@pytest.mark.erratum("next-row-of-another-episode")
def test_the_next_row_is_no_successor_behind_an_end() -> None:
    envs = make_envs(lambda: gym.make("CartPole-v1", max_episode_steps=15), 2)
    collector = Collector(envs)
    collector.reset(seed=0)
    rollout = collector.collect(lambda obs: torch.randint(2, (2,)), 100)
    other = (rollout.obs[1:] != rollout.next_obs[:-1]).any(-1)
    assert torch.equal(other, (rollout.terminated | rollout.truncated)[:-1])
    assert (other & ~rollout.terminated[:-1]).any(), "and a value is asked for there"
    buffer = ReplayBuffer(200)
    buffer.push(rollout)
    batch = buffer.sample(500, generator())
    assert torch.equal(batch.next_obs, rollout.next_obs.flatten(0, 1)[batch.place])


@pytest.mark.erratum("weights-in-a-column")
def test_weights_in_a_column_correct_nothing() -> None:
    loss, weight = torch.tensor([1.0, 4.0]), torch.tensor([[1.0], [0.25]])
    assert (loss * weight).mean() == loss.mean() * weight.mean()
    assert (loss * weight.squeeze(1)).mean() != loss.mean() * weight.mean()


def test_a_total_of_one_entry_too_few_never_draws_the_newest() -> None:
    def total(masses, end):
        end -= 1  # as `reduce` does, whose end is exclusive already
        return sum(masses[: end + 1])

    masses = [1.0, 1.0, 1.0]
    mark = np.linspace(0, total(masses, len(masses) - 1), 1000, endpoint=False)
    drawn = set(np.searchsorted(np.cumsum(masses), mark, side="right").tolist())
    assert drawn == {0, 1}
    buffer = ReplayBuffer(8, priority_exponent=1.0)
    buffer.push(make_rollout(np.random.default_rng(0), 3, 1))
    assert set(buffer.sample(3, generator()).place.tolist()) == {0, 1, 2}


@pytest.mark.erratum("exponent-too-few")
def test_a_smallest_priority_without_its_exponent_bends_the_weights() -> None:
    priority, alpha, beta = torch.tensor([0.1, 0.4, 0.9], dtype=torch.double), 0.6, 0.4
    mass = priority**alpha
    right = importance_weights(mass / mass.sum(), 3, beta)
    published = (mass / priority.min()) ** -beta
    assert published.tolist() == pytest.approx([0.6918, 0.4960, 0.4083], abs=1e-4)
    assert right.tolist() == pytest.approx([1, 0.7170, 0.5902], abs=1e-4)
    # Divided by the largest of the batch they are the same: that hides it.
    assert torch.allclose(published / published.max(), right)


@pytest.mark.erratum("exponent-too-many")
def test_a_mass_raised_twice_is_not_the_largest() -> None:
    alpha, small = 0.6, 1e-2

    def mass_of(priority):
        return (abs(priority) + small) ** alpha

    largest = mass_of(10.0)
    assert mass_of(largest) < 0.6 * largest, "a new entry, where errors are large"
    buffer = ReplayBuffer(4, alpha)
    buffer.push(make_rollout(np.random.default_rng(0), 2, 1))
    buffer.update(torch.tensor([0]), torch.tensor([10.0]))
    buffer.push(make_rollout(np.random.default_rng(0), 1, 1))
    assert buffer.tree.mass[2] == buffer.tree.mass[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sum_of_differences_drifts(dtype: type) -> None:
    rng = np.random.default_rng(0)
    mass, total, tree = np.zeros(64, dtype), dtype(0), SumTree(64, 4, 4)
    for _ in range(3000):
        place, value = rng.integers(64), dtype(rng.uniform(0.1, 5))
        total += value - mass[place]
        mass[place] = value
        tree.update(np.array([place]), np.array([value], float))
    drift = abs(float(total) - mass.sum(dtype=float))
    assert drift > (1e-4 if dtype is np.float32 else 0)
    # Once all is zero again the sum should be zero too.
    for place in range(64):
        total -= mass[place]
    assert abs(total) > 0
    tree.update(np.arange(64), np.zeros(64))
    assert tree.total == 0


def test_a_state_that_is_refused_changes_nothing() -> None:
    memory, other = ReplayBuffer(8), ReplayBuffer(16)
    generator = torch.Generator().manual_seed(0)
    steps = torch.zeros(4, 1)
    no = steps.bool()
    obs = torch.randn(4, 1, 3, generator=generator)
    rollout = Rollout(obs, steps.long(), steps, obs, no, no, ~no, steps, steps)
    memory.push(rollout)
    other.push(rollout)
    before = copy.deepcopy(memory.state_dict())
    with pytest.raises(ValueError, match="state must be that of a buffer"):
        memory.load_state_dict(other.state_dict())
    incomplete = memory.state_dict()
    del incomplete["reward"]
    with pytest.raises(KeyError):
        memory.load_state_dict(incomplete)
    torch.testing.assert_close(memory.state_dict(), before)
