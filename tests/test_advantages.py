"""Advantages: each recursion against the sum that defines it, in float64."""

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
    reward, value, next_value, terminated, truncated, gamma=0.99, lambda_=0.95
) -> Tensor:
    """Do with the loop what the chapter does with the scan."""
    future = next_value.detach().masked_fill(terminated, 0.0)
    delta = reward.detach() + gamma * future - value.detach()
    follow = gamma * lambda_ * (~(terminated | truncated)).to(delta)
    return gae_loop(delta, follow)


sizes = st.tuples(st.integers(1, 12), st.integers(1, 3))
seeds = st.integers(0, 9999)
fractions = st.sampled_from([0.0, 0.3, 0.9, 0.99, 1.0])
ends = st.sampled_from([0.0, 0.1, 0.5, 1.0])


def make_batch(size: tuple[int, int], seed: int, end: float = 0.2) -> Batch:
    """Return random steps. Values of successors do not fit to those of the states."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(3, *size, generator=generator, dtype=torch.float64)
    flags = torch.rand(2, *size, generator=generator) < end / 2
    names = "reward", "value", "next_value", "terminated", "truncated"
    return dict(zip(names, (*numbers, *flags), strict=True))


def targets(batch: Batch) -> Batch:
    """Return a batch without the values of the states."""
    return {name: x for name, x in batch.items() if name != "value"}


# --- The definitions, step by step and number by number -------------------------------


def td_error(batch: Batch, t: int, b: int, gamma: float) -> float:
    future = 0.0 if batch["terminated"][t, b] else batch["next_value"][t, b].item()
    return batch["reward"][t, b].item() + gamma * future - batch["value"][t, b].item()


def episode_end(batch: Batch, t: int, b: int) -> int:
    """Return the last row of the episode that row t belongs to."""
    done = (batch["terminated"] | batch["truncated"])[:, b]
    return next((row for row in range(t, len(done)) if done[row]), len(done) - 1)


def each(batch: Batch, number) -> Tensor:
    """Return what a function says about each step."""
    steps, envs = batch["reward"].shape
    rows = [[number(t, b) for b in range(envs)] for t in range(steps)]
    return torch.tensor(rows, dtype=torch.float64)


def gae_by_sum(batch: Batch, gamma: float, lambda_: float) -> Tensor:
    """Sum the TD errors of the rest of the episode, weighted."""

    def number(t: int, b: int) -> float:
        return sum(
            (gamma * lambda_) ** (row - t) * td_error(batch, row, b, gamma)
            for row in range(t, episode_end(batch, t, b) + 1)
        )

    return each(batch, number)


def n_step_by_sum(batch: Batch, gamma: float, n: int) -> Tensor:
    """Sum n rewards, or those that are left, and add the value behind them."""

    def number(t: int, b: int) -> float:
        last = min(t + n - 1, episode_end(batch, t, b))
        rewards = batch["reward"][t : last + 1, b].tolist()
        total = sum(gamma**k * reward for k, reward in enumerate(rewards))
        if not batch["terminated"][last, b]:
            total += gamma ** len(rewards) * batch["next_value"][last, b].item()
        return total

    return each(batch, number)


def lambda_by_sum(batch: Batch, gamma: float, lambda_: float) -> Tensor:
    """Average the n-step returns; all that do not fit have the last one's value."""
    steps = len(batch["reward"])
    total = sum(
        (1 - lambda_) * lambda_ ** (n - 1) * n_step_by_sum(batch, gamma, n)
        for n in range(1, steps)
    )
    return total + lambda_ ** (steps - 1) * n_step_by_sum(batch, gamma, steps)


@pytest.mark.equation("td-error")
@pytest.mark.equation("gae")
@pytest.mark.parametrize("estimate", [gae, gae_by_loop])
@given(sizes, seeds, ends, fractions, fractions)
def test_gae_is_the_weighted_sum_of_td_errors(
    estimate, size, seed, end, gamma, lambda_
):
    batch = make_batch(size, seed, end)
    found = estimate(**batch, gamma=gamma, lambda_=lambda_)
    torch.testing.assert_close(found, gae_by_sum(batch, gamma, lambda_))


@pytest.mark.equation("n-step-return")
@given(sizes, seeds, ends, fractions, st.integers(1, 15))
def test_n_step_return_is_its_rewards_and_a_value(size, seed, end, gamma, n):
    batch = make_batch(size, seed, end)
    found = n_step_returns(**targets(batch), gamma=gamma, num_steps=n)
    torch.testing.assert_close(found, n_step_by_sum(batch, gamma, n))


@pytest.mark.equation("lambda-return")
@given(sizes, seeds, ends, fractions, fractions)
def test_lambda_return_is_the_average_of_n_step_returns(
    size, seed, end, gamma, lambda_
):
    batch = make_batch(size, seed, end)
    found = lambda_returns(**targets(batch), gamma=gamma, lambda_=lambda_)
    torch.testing.assert_close(found, lambda_by_sum(batch, gamma, lambda_))
    if lambda_ == 1:
        returns = discounted_returns(**targets(batch), gamma=gamma)
        torch.testing.assert_close(found, returns)


def test_float32_is_close_to_float64():
    batch = make_batch((512, 256), seed=0, end=0.02)
    single = {k: x.float() if x.is_floating_point() else x for k, x in batch.items()}
    difference = gae(**single).double() - gae_by_loop(**batch)
    assert difference.abs().max() < 2e-5


# --- What is not read, not written and not taken --------------------------------------

EVERY = {gae: dict, lambda_returns: targets, n_step_returns: targets}
each_function = pytest.mark.parametrize(("function", "part"), EVERY.items())


@each_function
def test_nothing_crosses_an_end_and_nothing_gets_a_gradient(function, part):
    batch = make_batch((9, 2), seed=0)
    batch["truncated"][3], batch["terminated"][3, 0] = True, True
    batch["next_value"][batch["terminated"]] = torch.nan
    for x in batch.values():
        if x.is_floating_point():
            x.requires_grad_()
    other = make_batch((9, 2), seed=1)
    mixed = {name: torch.cat([x[:4], other[name][4:]]) for name, x in batch.items()}
    found, after = (function(**part(x)) for x in (batch, mixed))
    assert found.isfinite().all()
    assert not found.requires_grad
    assert torch.equal(found[:4], after[:4])


@each_function
def test_sums_that_overflow_are_refused(function, part):
    batch = make_batch((3, 2), seed=0, end=0.0)
    batch = {k: x.float() if x.is_floating_point() else x for k, x in batch.items()}
    batch["reward"].fill_(3e38)
    with pytest.raises(ValueError, match="the result must be finite"):
        function(**part(batch), gamma=1.0)
