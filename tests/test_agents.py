import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from literate_rl.maths.returns import discounted_returns

GAMMAS = st.one_of(st.just(0.0), st.just(1.0), st.floats(0.0, 1.0))


def slow_returns(reward, next_value, terminated, truncated, gamma):
    """Sum the rewards of each step's own episode forward, one number at a time."""
    steps, copies = reward.shape
    result = np.zeros((steps, copies))
    for start in range(steps):
        for copy in range(copies):
            weight = 1.0
            for t in range(start, steps):
                result[start, copy] += weight * float(reward[t, copy])
                weight *= gamma
                if terminated[t, copy]:
                    break
                if truncated[t, copy] or t == steps - 1:
                    result[start, copy] += weight * float(next_value[t, copy])
                    break
    return torch.from_numpy(result)


@st.composite
def batches(draw, max_steps=8, max_copies=3):
    """Draw a float64 batch: reward, next_value, terminated, truncated."""
    shape = draw(st.integers(1, max_steps)), draw(st.integers(1, max_copies))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    numbers = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    chance = draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    flags = torch.rand(2, *shape, generator=generator) < chance
    return numbers[0], 3 * numbers[1], flags[0], flags[1]


def no_flags(*shape):
    return torch.zeros(shape, dtype=torch.bool)


# discounted_returns


@pytest.mark.equation("discounted-return")
@given(batches(), GAMMAS)
def test_returns_equal_the_forward_sum(batch, gamma):
    wanted = slow_returns(*batch, gamma)
    torch.testing.assert_close(discounted_returns(*batch, gamma), wanted)


@pytest.mark.equation("discounted-return")
@given(batches(), GAMMAS, st.data())
def test_cutting_at_a_done_changes_nothing(batch, gamma, data):
    reward, _, terminated, truncated = batch
    cut = data.draw(st.integers(1, len(reward)))
    truncated[cut - 1] |= ~terminated[cut - 1]
    whole = discounted_returns(*batch, gamma)
    head = discounted_returns(*(x[:cut] for x in batch), gamma)
    torch.testing.assert_close(whole[:cut], head)
    if cut < len(reward):
        tail = discounted_returns(*(x[cut:] for x in batch), gamma)
        torch.testing.assert_close(whole[cut:], tail)


@given(batches(), GAMMAS)
def test_values_that_do_not_count_may_be_anything(batch, gamma):
    reward, next_value, terminated, truncated = batch
    read = truncated & ~terminated
    read[-1] = ~terminated[-1]
    wild = next_value.masked_fill(~read, float("nan"))
    torch.testing.assert_close(
        discounted_returns(reward, wild, terminated, truncated, gamma),
        discounted_returns(reward, next_value, terminated, truncated, gamma),
    )


def test_no_gradient_flows_through_a_return():
    reward = torch.randn(4, 2, requires_grad=True)
    value = torch.randn(4, 2, requires_grad=True)
    returns = discounted_returns(reward, value, no_flags(4, 2), no_flags(4, 2))
    assert not returns.requires_grad


def test_returns_keep_dtype_and_default_gamma():
    reward = torch.ones(2, 1)
    returns = discounted_returns(reward, reward, no_flags(2, 1), no_flags(2, 1))
    assert returns.dtype == torch.float32
    torch.testing.assert_close(returns, torch.tensor([[2.9701], [1.99]]))


@pytest.mark.erratum("cleanrl-time-limit")
def test_one_flag_loses_the_tail_of_the_return():
    gamma, steps = 0.99, 20
    reward, none = torch.ones(steps, 1, dtype=torch.float64), no_flags(steps, 1)
    cut = none.clone()
    cut[-1] = True
    value = 100 * reward
    right = discounted_returns(reward, value, none, cut, gamma)
    wrong = discounted_returns(reward, value, cut, none, gamma)
    torch.testing.assert_close(right, value)
    left = torch.arange(steps, 0, -1, dtype=torch.float64).unsqueeze(1)
    torch.testing.assert_close(right - wrong, gamma**left * value)


@pytest.mark.erratum("column-minus-row")
@settings(max_examples=20)
@given(st.integers(2, 6))
def test_a_column_of_values_learns_the_mean(size):
    target = torch.arange(size, dtype=torch.float64)
    column = target.unsqueeze(1).clone().requires_grad_()
    error = target - column
    assert error.shape == (size, size)
    error.square().mean().backward()
    # The perfect values get a gradient, and at the mean it vanishes.
    wanted = 2 / size * (target - target.mean())
    torch.testing.assert_close(column.grad.squeeze(1), wanted)
