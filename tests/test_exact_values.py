"""Exact values against iteration and by hand; the ring against its own table."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from literate_rl.data.exact_values import Ring, tabular_values

# tabular_values


@st.composite
def chains(draw):
    """Draw a chain (S, S) in which every state may terminate, and its rewards."""
    size = draw(st.integers(1, 6))
    random = np.random.default_rng(draw(st.integers(0, 2**31)))
    transition = random.dirichlet(np.ones(size + 1), size)[:, :size]
    return transition, random.normal(size=size)


def slow_values(transition, reward, gamma):
    """Apply the Bellman equation until nothing moves."""
    values = np.zeros(len(reward))
    while True:
        moved = reward + gamma * transition @ values
        if np.abs(moved - values).max() < 1e-13:
            return moved
        values = moved


@pytest.mark.equation("tabular-value")
@given(chains(), st.floats(0.0, 0.95))
def test_values_equal_iterated_bellman_updates(chain, gamma):
    wanted = slow_values(*chain, gamma)
    np.testing.assert_allclose(tabular_values(*chain, gamma), wanted, atol=1e-10)


@given(chains(), st.floats(0.0, 1.0))
def test_a_discount_is_a_chance_of_the_end(chain, gamma):
    transition, reward = chain
    moved = tabular_values(gamma * transition, reward, 1.0)
    np.testing.assert_allclose(tabular_values(*chain, gamma), moved, rtol=1e-9)


@pytest.mark.parametrize(
    ("transition", "message"),
    [
        ([[1.1]], "transition must have rows"),
        # The first state may end, the other two go round for ever.
        ([[0.5, 0, 0], [0, 0, 1], [0, 1, 0]], "gamma must be below 1"),
    ],
)
def test_values_name_the_bad_argument(transition, message):
    with pytest.raises(ValueError, match=message):
        tabular_values(transition, np.ones(len(transition)), 1.0)


# Ring


def test_ring_conforms_to_gymnasium():
    check_env(Ring(), skip_render_check=True)


@pytest.mark.parametrize("num_cells", [2, 3, 5])
def test_ring_moves_pays_and_ends(num_cells):
    env = Ring(num_cells, end_probability=0.0)
    cell, _ = env.reset(seed=0)
    for action in (0, 0, 1, 1, 1, 0, 1) * 3:
        successor, reward, *ends, _ = env.step(action)
        assert successor == (cell + 2 * action - 1) % num_cells
        assert (reward, ends) == (cell == 0, [False, False])
        cell = successor
    env = Ring(num_cells, end_probability=1.0)
    env.reset(seed=0)
    assert env.step(1)[2:4] == (True, False)


@pytest.mark.parametrize("num_cells", [2, 5])
def test_ring_chain_is_what_the_ring_does(num_cells):
    ring = Ring(num_cells, end_probability=0.3)
    transition, reward = ring.chain(right=0.8)
    wanted = np.zeros((num_cells, num_cells))
    for cell in range(num_cells):
        wanted[cell, (cell + 1) % num_cells] += 0.7 * 0.8
        wanted[cell, (cell - 1) % num_cells] += 0.7 * 0.2
    np.testing.assert_allclose(transition, wanted)
    np.testing.assert_array_equal(reward, np.arange(num_cells) == 0)


# errata


def one_flag_values(transition, reward, gamma, limit):
    """Return where TD(0) with one flag arrives, from the exact chain with a clock.

    An episode starts in a state drawn uniformly and is cut after ``limit`` steps. State
    and clock together form a chain, whose exact visits weigh the TD(0) targets.
    """
    size = len(reward)
    at_clock = np.full(size, 1 / size)
    visits, moves = np.zeros(size), np.zeros((size, size))
    for clock in range(limit):
        visits += at_clock
        if clock < limit - 1:
            moves += at_clock[:, None] * transition
        at_clock = at_clock @ transition
    return slow_values(moves / visits[:, None], reward, gamma)


@pytest.mark.erratum("cleanrl-time-limit")
@pytest.mark.parametrize("limit", [1, 5, 20, 200])
@pytest.mark.parametrize("end_probability", [0.0, 0.02])
def test_one_flag_shortens_the_horizon_by_a_known_factor(limit, end_probability):
    gamma = 0.99
    transition, reward = Ring(5, end_probability).chain(right=0.8)
    alive = (1 - end_probability) ** np.arange(limit)
    kappa = alive[-1] / alive.sum()
    biased = one_flag_values(transition, reward, gamma, limit)
    predicted = tabular_values(transition, reward, gamma * (1 - kappa))
    np.testing.assert_allclose(biased, predicted, rtol=1e-9)
    # The rewards sum to 1 over the five cells, so the mean value is a geometric series.
    survival = gamma * (1 - end_probability)
    exact = tabular_values(transition, reward, gamma)
    assert exact.mean() == pytest.approx(0.2 / (1 - survival))
    assert biased.mean() == pytest.approx(0.2 / (1 - survival * (1 - kappa)))
    assert biased.mean() < 0.99 * exact.mean()
