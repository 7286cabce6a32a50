"""Advantages: each recursion against the sum that defines it, in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from literate_rl import discounted_returns
from literate_rl.maths.advantages import (
    gae,
    gae_loop,
    lambda_returns,
    n_step_returns,
)

Batch = dict[str, Tensor]


def gae_by_loop(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float = 0.99,
    lambda_: float = 0.95,
) -> Tensor:
    """Do with the loop what the chapter does with the scan."""
    future = next_value.detach().masked_fill(terminated, 0.0)
    delta = reward.detach() + gamma * future - value.detach()
    follow = gamma * lambda_ * (~(terminated | truncated)).to(delta)
    return gae_loop(delta, follow)


ESTIMATES = [gae, gae_by_loop]

sizes = st.tuples(st.integers(1, 40), st.integers(1, 3))
seeds = st.integers(0, 9999)
fractions = st.sampled_from([0.0, 0.3, 0.9, 0.99, 1.0])
ends = st.sampled_from([0.0, 0.1, 0.5, 1.0])


def make_batch(
    size: tuple[int, int],
    seed: int,
    end: float = 0.2,
    dtype: torch.dtype = torch.float64,
) -> Batch:
    """Return random steps. Values of successors do not fit to those of the states."""
    generator = torch.Generator().manual_seed(seed)
    reward, value, next_value = torch.randn(
        3, *size, generator=generator, dtype=torch.float64
    ).to(dtype)
    terminated, truncated = torch.rand(2, *size, generator=generator) < end / 2
    return {
        "reward": reward,
        "value": value,
        "next_value": next_value,
        "terminated": terminated,
        "truncated": truncated,
    }


def targets(batch: Batch) -> Batch:
    """Return a batch without the values of the states."""
    return {name: x for name, x in batch.items() if name != "value"}


# --- The definitions, step by step and number by number -------------------------------


def td_error(batch: Batch, t: int, b: int, gamma: float) -> float:
    future = 0.0 if batch["terminated"][t, b] else batch["next_value"][t, b].item()
    return batch["reward"][t, b].item() + gamma * future - batch["value"][t, b].item()


def episode_end(batch: Batch, t: int, b: int) -> int:
    """Return the last row of the episode that row t belongs to."""
    done = batch["terminated"] | batch["truncated"]
    return next(
        (row for row in range(t, len(done)) if done[row, b]),
        len(done) - 1,
    )


def gae_by_sum(batch: Batch, gamma: float, lambda_: float) -> Tensor:
    """Sum the TD errors of the rest of the episode, weighted."""
    result = torch.zeros_like(batch["reward"])
    for t in range(result.shape[0]):
        for b in range(result.shape[1]):
            last = episode_end(batch, t, b)
            result[t, b] = sum(
                (gamma * lambda_) ** (row - t) * td_error(batch, row, b, gamma)
                for row in range(t, last + 1)
            )
    return result


def n_step_by_sum(batch: Batch, gamma: float, n: int) -> Tensor:
    """Sum n rewards, or those that are left, and add the value behind them."""
    result = torch.zeros_like(batch["reward"])
    for t in range(result.shape[0]):
        for b in range(result.shape[1]):
            last = min(t + n - 1, episode_end(batch, t, b))
            rewards = [batch["reward"][row, b].item() for row in range(t, last + 1)]
            total = sum(gamma**k * reward for k, reward in enumerate(rewards))
            if not batch["terminated"][last, b]:
                total += gamma ** len(rewards) * batch["next_value"][last, b].item()
            result[t, b] = total
    return result


def lambda_by_sum(batch: Batch, gamma: float, lambda_: float) -> Tensor:
    """Average the n-step returns; all that do not fit have the last one's value."""
    steps = len(batch["reward"])
    total = sum(
        (1 - lambda_) * lambda_ ** (n - 1) * n_step_by_sum(batch, gamma, n)
        for n in range(1, steps)
    )
    return total + lambda_ ** (steps - 1) * n_step_by_sum(batch, gamma, steps)


# --- The formulas ---------------------------------------------------------------------


@pytest.mark.equation("td-error")
@given(sizes, seeds, ends, fractions)
def test_without_a_look_ahead_an_advantage_is_the_td_error(
    size, seed, end, gamma
) -> None:
    batch = make_batch(size, seed, end)
    delta = gae(**batch, gamma=gamma, lambda_=0)
    for t in range(size[0]):
        for b in range(size[1]):
            assert delta[t, b].item() == pytest.approx(td_error(batch, t, b, gamma))


@pytest.mark.equation("gae")
@pytest.mark.parametrize("estimate", ESTIMATES)
@given(sizes, seeds, ends, fractions, fractions)
def test_gae_is_the_weighted_sum_of_td_errors(
    estimate, size, seed, end, gamma, lambda_
) -> None:
    batch = make_batch(size, seed, end)
    torch.testing.assert_close(
        estimate(**batch, gamma=gamma, lambda_=lambda_),
        gae_by_sum(batch, gamma, lambda_),
    )


@pytest.mark.equation("n-step-return")
@given(sizes, seeds, ends, fractions, st.integers(1, 50))
def test_n_step_return_is_its_rewards_and_a_value(size, seed, end, gamma, n) -> None:
    batch = make_batch(size, seed, end)
    torch.testing.assert_close(
        n_step_returns(**targets(batch), gamma=gamma, num_steps=n),
        n_step_by_sum(batch, gamma, n),
    )


@pytest.mark.equation("lambda-return")
@given(
    st.tuples(st.integers(1, 12), st.integers(1, 2)), seeds, ends, fractions, fractions
)
def test_lambda_return_is_the_average_of_n_step_returns(
    size, seed, end, gamma, lambda_
) -> None:
    batch = make_batch(size, seed, end)
    torch.testing.assert_close(
        lambda_returns(**targets(batch), gamma=gamma, lambda_=lambda_),
        lambda_by_sum(batch, gamma, lambda_),
    )


# --- How they hang together -----------------------------------------------------------


@given(sizes, seeds, ends, fractions)
def test_lambda_one_is_the_discounted_return(size, seed, end, gamma) -> None:
    batch = targets(make_batch(size, seed, end))
    expected = discounted_returns(**batch, gamma=gamma)
    torch.testing.assert_close(
        lambda_returns(**batch, gamma=gamma, lambda_=1), expected
    )
    longest = n_step_returns(**batch, gamma=gamma, num_steps=size[0])
    torch.testing.assert_close(longest, expected)


@given(sizes, seeds, ends, fractions)
def test_lambda_zero_is_the_one_step_return(size, seed, end, gamma) -> None:
    batch = targets(make_batch(size, seed, end))
    one = n_step_returns(**batch, gamma=gamma, num_steps=1)
    torch.testing.assert_close(lambda_returns(**batch, gamma=gamma, lambda_=0), one)


@pytest.mark.parametrize("estimate", ESTIMATES)
@given(sizes, seeds, ends, fractions, fractions)
def test_advantage_and_value_make_a_lambda_return(
    estimate, size, seed, end, gamma, lambda_
) -> None:
    """They do if the value of a successor is that of the next row."""
    batch = make_batch(size, seed, end)
    done = batch["terminated"] | batch["truncated"]
    following = torch.cat((batch["value"][1:], batch["next_value"][-1:]))
    batch["next_value"] = torch.where(done, batch["next_value"], following)
    advantage = estimate(**batch, gamma=gamma, lambda_=lambda_)
    torch.testing.assert_close(
        advantage + batch["value"],
        lambda_returns(**targets(batch), gamma=gamma, lambda_=lambda_),
    )


@pytest.mark.parametrize("size", [(128, 64), (512, 256), (1023, 7)])
def test_float32_is_close_to_float64(size) -> None:
    batch = make_batch(size, seed=0, end=0.02)
    single = {k: x.float() if x.is_floating_point() else x for k, x in batch.items()}
    difference = gae(**single).double() - gae_by_loop(**batch)
    assert difference.abs().max() < 2e-5


@given(sizes, seeds, st.integers(0, 39))
def test_nothing_crosses_the_end_of_an_episode(size, seed, row) -> None:
    """Whatever happens after a done row, the rows up to it stay as they are."""
    row = row % size[0]
    batch = make_batch(size, seed)
    batch["truncated"][row] = True
    other = make_batch(size, seed + 1)
    changed = {name: x.clone() for name, x in batch.items()}
    for name, x in other.items():
        changed[name][row + 1 :] = x[row + 1 :]
    for function, arguments in [
        (gae, batch),
        (gae_by_loop, batch),
        (lambda_returns, targets(batch)),
        (n_step_returns, targets(batch)),
    ]:
        after = {name: changed[name] for name in arguments}
        upto = slice(0, row + 1)
        torch.testing.assert_close(
            function(**after)[upto], function(**arguments)[upto], rtol=0, atol=1e-12
        )


# --- What arguments may hold and keep -------------------------------------------------

EVERY = [gae, lambda_returns, n_step_returns]


def arguments_of(function, batch: Batch) -> Batch:
    return batch if function in ESTIMATES else targets(batch)


@pytest.mark.parametrize("function", EVERY)
def test_values_behind_a_termination_are_not_read(function) -> None:
    batch = make_batch((6, 2), seed=0)
    batch["terminated"][2] = True
    batch["next_value"][2] = torch.nan
    assert function(**arguments_of(function, batch)).isfinite().all()


@pytest.mark.parametrize("function", EVERY)
def test_arguments_keep_their_numbers_and_get_no_gradient(function) -> None:
    batch = arguments_of(function, make_batch((9, 2), seed=0))
    batch = {
        k: x.requires_grad_() if x.is_floating_point() else x for k, x in batch.items()
    }
    before = {name: x.detach().clone() for name, x in batch.items()}
    assert not function(**batch).requires_grad
    assert all(torch.equal(x, before[name]) for name, x in batch.items())


def test_views_of_one_buffer_are_safe() -> None:
    """The layout that an in-place mask corrupts."""
    batch = make_batch((6, 2), seed=0)
    values = torch.randn(7, 2, dtype=torch.float64)
    apart = batch | {"value": values[:-1].clone(), "next_value": values[1:].clone()}
    together = batch | {"value": values[:-1], "next_value": values[1:]}
    assert torch.equal(gae(**together), gae(**apart))


# --- What is refused ------------------------------------------------------------------


@pytest.mark.parametrize("function", EVERY)
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"reward": torch.zeros(3)}, ValueError, r"reward must have .* \(T, B\)"),
        ({"reward": torch.zeros(3, 1)}, ValueError, "must have shape"),
        ({"reward": torch.zeros(3, 2).half()}, TypeError, "reward must be .*float16"),
        ({"reward": [[0.0, 0.0]] * 3}, TypeError, "reward must be a tensor, got list"),
        ({"next_value": torch.zeros(2, 2)}, ValueError, r"next_value must have shape"),
        (
            {"terminated": torch.zeros(3, 2)},
            TypeError,
            "terminated must be a bool",
        ),
        ({"truncated": None}, TypeError, "truncated must be a tensor"),
        ({"gamma": 1.5}, ValueError, "gamma must be at .* most 1, got 1.5"),
        ({"gamma": "x"}, TypeError, "gamma must be a number, got str"),
        (
            {"reward": torch.full((3, 2), torch.nan, dtype=torch.float64)},
            ValueError,
            "^reward must be finite",
        ),
        (
            {"next_value": torch.full((3, 2), torch.inf, dtype=torch.float64)},
            ValueError,
            "^next_value must be finite",
        ),
    ],
)
def test_bad_arguments_are_named(function, change, error, message) -> None:
    batch = arguments_of(function, make_batch((3, 2), seed=0, end=0.0))
    with pytest.raises(error, match=message):
        function(**(batch | change))


@pytest.mark.parametrize("function", [gae, lambda_returns])
@pytest.mark.parametrize(
    ("given_", "error"), [(-0.1, ValueError), (1.1, ValueError), ("x", TypeError)]
)
def test_a_bad_lambda_is_named(function, given_, error) -> None:
    batch = arguments_of(function, make_batch((3, 2), seed=0))
    with pytest.raises(error, match=r"lambda_ must .*, got"):
        function(**batch, lambda_=given_)


@pytest.mark.parametrize("function", EVERY)
def test_numpy_numbers_are_numbers(function) -> None:
    batch = arguments_of(function, make_batch((3, 2), seed=0))
    once = function(**batch, gamma=np.float32(0.5))
    torch.testing.assert_close(once, function(**batch, gamma=0.5), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("function", EVERY)
def test_results_that_overflow_are_named(function) -> None:
    batch = make_batch((3, 2), seed=0, dtype=torch.float32, end=0.0)
    batch["reward"].fill_(3e38)
    with pytest.raises(ValueError, match="the result must be finite"):
        function(**arguments_of(function, batch), gamma=1.0)


@pytest.mark.parametrize(
    ("given_", "error"), [(0, ValueError), (2.0, TypeError), (True, TypeError)]
)
def test_a_bad_number_of_steps_is_named(given_, error) -> None:
    batch = targets(make_batch((3, 2), seed=0))
    with pytest.raises(error, match=r"num_steps must be .*, got"):
        n_step_returns(**batch, num_steps=given_)
