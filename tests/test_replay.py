"""Replay: sums, draws, weights, states and files."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_windows import generator, make_rollout

from literate_rl.data.agents import Collector, Rollout, make_envs
from literate_rl.data.replay import ReplayBuffer
from literate_rl.data.sum_tree import SumTree, importance_weights

TREES = [st.integers(0, 2**31), st.integers(1, 300), st.integers(2, 20)]
TREES += [st.integers(1, 30)]


@pytest.mark.equation("replay-sums")
@pytest.mark.equation("replay-walk")
@settings(max_examples=60, deadline=None)
@given(*TREES)
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
@given(*TREES)
def test_a_leaf_without_mass_is_never_found(seed, capacity, branching, root):
    rng = np.random.default_rng(seed)
    tree = SumTree(capacity, branching, root)
    mass = 10.0 ** rng.uniform(-30, 30, capacity) * (rng.random(capacity) < 0.3)
    mass[rng.integers(capacity)] = 1e-3
    tree.update(np.arange(capacity), mass)
    total = tree.total
    marks = [0.0, total, np.nextafter(total, np.inf), 2 * total]
    marks += [*(total * rng.random(99))]
    assert (mass[tree.find(np.array(marks))] > 0).all()


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
    assert (share - expected).abs().max() < (2 / 60_000 if alpha else 0.01)
    weighted = torch.bincount(batch.place, batch.weight.double(), 12)
    even = torch.full((12,), 1 / 12).double()
    torch.testing.assert_close(weighted / weighted.sum(), even, rtol=0, atol=0.002)


@pytest.mark.erratum("exponent-too-few")
def test_weights_are_those_of_the_paper():
    priority, alpha = torch.tensor([0.1, 0.4, 0.9]).double(), 0.6
    mass = priority**alpha
    for beta in (0.0, 0.4, 1.0):
        raw = (3 * mass / mass.sum()) ** -beta
        weight = importance_weights(mass / mass.sum(), 3, beta)
        torch.testing.assert_close(weight, raw / raw.max())
        # With a smallest priority that lacks its exponent they are bent, but not if
        # they are divided by the largest of the batch: that hides it.
        published = (mass / priority.min()) ** -beta
        assert torch.allclose(published, weight) == (beta == 0)
        torch.testing.assert_close(published / published.max(), weight)


@pytest.mark.erratum("exponent-too-many")
def test_a_new_step_gets_the_largest_priority_ever():
    buffer, rng = ReplayBuffer(4, priority_exponent=0.5), np.random.default_rng(0)
    buffer.push(make_rollout(rng, 2, 1))
    assert buffer.tree.mass[:2].tolist() == [1, 1]
    buffer.update(torch.tensor([0, 1]), torch.tensor([-9.0, 0.0]))
    # No step is forgotten for good.
    assert buffer.tree.mass[:2].tolist() == pytest.approx([3, 1e-3])
    buffer.update(torch.tensor([0]), torch.tensor([4.0], requires_grad=True))
    buffer.push(make_rollout(rng, 1, 1))
    assert buffer.tree.mass[:3].tolist() == pytest.approx([2, 1e-3, 3])
    # Where the largest mass is raised once more, errors must be small to be worth it.
    assert 0.6 * buffer.tree.mass[2] > (9.0**0.5) ** 0.5


def same(one, other):
    """Say whether two states have the same bits."""
    return one.keys() == other.keys() and all(
        torch.equal(x, other[name]) if isinstance(x, torch.Tensor) else x == other[name]
        for name, x in one.items()
    )


@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("num_rollouts", [0, 1, 2, 7])
def test_a_state_comes_back_bit_for_bit(alpha, num_rollouts):
    rng = np.random.default_rng(0)
    buffer, other = ReplayBuffer(50, alpha), ReplayBuffer(50, alpha)
    for k in range(num_rollouts):
        buffer.push(make_rollout(rng, 5, 3, 5 * k, phantoms=True))
        batch = buffer.sample(8, generator(k))
        buffer.update(batch.place, torch.tensor(rng.normal(size=8)))
    other.push(make_rollout(rng, 9, 3))  # what it held before is gone
    other.load_state_dict(buffer.state_dict())
    assert same(buffer.state_dict(), other.state_dict())
    rollout = make_rollout(rng, 5, 3, 100)
    for memory in (buffer, other):
        memory.push(rollout)
    one, two = (memory.sample(64, generator(), 3) for memory in (buffer, other))
    assert all(map(torch.equal, one[:7], two[:7]))


@pytest.mark.parametrize("capacity", [8, 16])
def test_a_state_that_is_refused_changes_nothing(capacity):
    """One that lacks something, or is that of a larger buffer."""
    memory, other = ReplayBuffer(8), ReplayBuffer(capacity)
    for k, buffer in enumerate((memory, other)):
        buffer.push(make_rollout(np.random.default_rng(k), 4, 1))
    before, state = copy.deepcopy(memory.state_dict()), other.state_dict()
    if capacity == 8:
        del state["reward"]
    with pytest.raises((KeyError, ValueError)):
        memory.load_state_dict(state)
    assert same(memory.state_dict(), before)


def test_pictures_stay_bytes_and_a_batch_moves_to_a_device():
    picture = torch.randint(0, 256, (6, 2, 3, 4, 4), dtype=torch.uint8)
    no, one, action = torch.zeros(6, 2).bool(), torch.ones(6, 2), torch.rand(6, 2, 5)
    buffer = ReplayBuffer(10)
    buffer.push(Rollout(picture, action, one, picture, no, no, ~no, one, one))
    batch = buffer.sample(7, generator())
    assert batch.obs.dtype == batch.next_obs.dtype == torch.uint8
    assert torch.equal(batch.obs, batch.next_obs)
    assert batch.action.shape == (7, 5)
    stored = sum(x.nbytes for x in buffer.rings.fields.values())
    assert stored == 10 * (2 * 48 + 20 + 4 + 2)
    moved = batch.to(torch.device("meta"))
    assert {field.device.type for field in moved[:8] if field is not None} == {"meta"}


def rollout_of(*size):
    return make_rollout(np.random.default_rng(0), *size)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda b: ReplayBuffer(2).push(rollout_of(1, 3)), "capacity"),
        (lambda b: ReplayBuffer(2).sample(1, generator()), "hold a step"),
        (lambda b: b.update(torch.tensor([9]), torch.ones(1)), "place"),
        (lambda b: b.update(torch.tensor([0]), torch.tensor([torch.nan])), "priority"),
    ],
)
def test_what_is_refused_is_named_and_changes_nothing(call, words):
    buffer = ReplayBuffer(9, 0.6)
    buffer.push(rollout_of(4, 3))
    before = buffer.tree.mass.copy(), buffer.rings.head.copy()
    with pytest.raises(ValueError, match=words):
        call(buffer)
    assert all(map(np.array_equal, (buffer.tree.mass, buffer.rings.head), before))


# --- What others do -------------------------------------------------------------------


@pytest.mark.erratum("n-steps-without-effect")
def test_a_setting_that_only_one_branch_reads_has_no_effect():
    def buffer_settings(buffer_class, n_steps, gamma, given):
        if buffer_class is None and n_steps > 1:
            given = given | {"n_steps": n_steps, "gamma": gamma}
        return {"n_steps": 3, "gamma": 0.99} | given

    assert buffer_settings(None, 5, 0.9, {}) == {"n_steps": 5, "gamma": 0.9}
    assert buffer_settings("NStep", 5, 0.9, {}) == {"n_steps": 3, "gamma": 0.99}
    # Here the length of a window is an argument of the draw, there is no other place.
    buffer, rollout = ReplayBuffer(9), rollout_of(9, 1)
    never = torch.zeros(9, 1).bool()
    buffer.push(rollout._replace(terminated=never, truncated=never))
    discounts = [buffer.sample(64, generator(), n, 0.5).discount.min() for n in (1, 3)]
    assert discounts == [0.5, 0.125]


@pytest.mark.erratum("next-row-of-another-episode")
def test_the_next_row_is_no_successor_behind_an_end():
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
def test_weights_in_a_column_correct_nothing():
    loss, weight = torch.tensor([1.0, 4.0]), torch.tensor([[1.0], [0.25]])
    assert (loss * weight).mean() == loss.mean() * weight.mean()
    assert (loss * weight.squeeze(1)).mean() != loss.mean() * weight.mean()
