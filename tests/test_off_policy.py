"""V-trace: the recursion against its sum, its fixed point, and the losses."""

from __future__ import annotations

import math
import warnings
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from extremes import assert_gradients_are_finite
from fuzz import assert_held
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, Normal

from literate_rl.data.exact_values import tabular_values
from literate_rl.maths.advantages import gae
from literate_rl.maths.fast import reverse_scan
from literate_rl.maths.off_policy import (
    check_clips,
    clipped_policy,
    vtrace,
    vtrace_data,
    vtrace_error_continuous_action,
    vtrace_error_discrete_action,
    vtrace_error_from_log_prob,
    vtrace_loop,
    vtrace_loss,
)

Batch = dict[str, Tensor]

sizes = st.tuples(st.integers(1, 24), st.integers(1, 3))
seeds = st.integers(0, 9999)
fractions = st.sampled_from([0.0, 0.3, 0.9, 1.0])
ends = st.sampled_from([0.0, 0.1, 0.5, 1.0])
# Bounds of rho, c and rho_pg; the second is never above the first.
clips = st.sampled_from(
    [(1.0, 1.0, 1.0), (2.0, 0.5, 0.7), (0.3, 0.3, 3.0), (None, 1.0, 2.0), (None,) * 3]
)


def make_batch(size: tuple[int, int], seed: int, end: float = 0.2) -> Batch:
    """Return random steps in float64; successors do not fit to the states."""
    generator = torch.Generator().manual_seed(seed)
    log_ratio, reward, value, next_value = torch.randn(
        4, *size, generator=generator, dtype=torch.float64
    )
    terminated, truncated = torch.rand(2, *size, generator=generator) < end / 2
    return {
        "log_ratio": log_ratio,
        "reward": reward,
        "value": value,
        "next_value": next_value,
        "terminated": terminated,
        "truncated": truncated,
    }


def continuing(batch: Batch) -> Batch:
    """Return a batch in which a successor has the value of the next row."""
    done = batch["terminated"] | batch["truncated"]
    following = torch.cat((batch["value"][1:], batch["next_value"][-1:]))
    return batch | {"next_value": torch.where(done, batch["next_value"], following)}


def bounded(log_ratio: float, bound: float | None) -> float:
    ratio = float(np.exp(log_ratio))
    return ratio if bound is None else min(bound, ratio)


def by_sum(
    batch: Batch, gamma: float, lambda_: float, clips: tuple[float | None, ...]
) -> tuple[Tensor, Tensor]:
    """Sum over all later surprises of the episode, with the product of the ratios."""
    columns = {name: x.tolist() for name, x in batch.items()}
    steps, envs = batch["reward"].shape
    x, adv = torch.zeros(2, steps, envs, dtype=torch.float64)
    rho, c, rho_pg = (
        [[bounded(ell, bound) for ell in row] for row in columns["log_ratio"]]
        for bound in clips
    )

    def surprise(t: int, b: int) -> float:
        future = 0.0 if columns["terminated"][t][b] else columns["next_value"][t][b]
        return columns["reward"][t][b] + gamma * future - columns["value"][t][b]

    def last(t: int, b: int) -> int:
        while not (columns["terminated"][t][b] or columns["truncated"][t][b]):
            if t == steps - 1:
                break
            t += 1
        return t

    for t, b in product(range(steps), range(envs)):
        for k in range(last(t, b) - t + 1):
            way = np.prod([c[i][b] for i in range(t, t + k)])
            x[t, b] += (gamma * lambda_) ** k * way * rho[t + k][b] * surprise(t + k, b)
    for t, b in product(range(steps), range(envs)):
        later = 0.0 if t == last(t, b) else x[t + 1, b].item()
        adv[t, b] = rho_pg[t][b] * (surprise(t, b) + gamma * lambda_ * later)
    return batch["value"] + x, adv


# --- The targets ----------------------------------------------------------------------


@pytest.mark.equation("vtrace-ratios")
@pytest.mark.equation("vtrace")
@pytest.mark.equation("vtrace-advantage")
@given(sizes, seeds, ends, fractions, fractions, clips)
def test_vtrace_is_the_sum_over_later_surprises(
    size, seed, end, gamma, lambda_, clips
) -> None:
    batch = make_batch(size, seed, end)
    got = vtrace(**batch, gamma=gamma, lambda_=lambda_, **named(clips))
    torch.testing.assert_close(got, by_sum(batch, gamma, lambda_, clips))


@pytest.mark.equation("vtrace")
@given(sizes, seeds)
def test_the_loop_is_the_recursion_of_the_kernel(size, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    rho, error, passed_on = torch.rand(3, *size, generator=generator).double()
    torch.testing.assert_close(
        vtrace_loop(rho, error, passed_on), reverse_scan(rho * error, passed_on)
    )


def named(clips: tuple[float | None, ...]) -> dict[str, float | None]:
    names = ("rho_clip_ratio", "c_clip_ratio", "rho_pg_clip_ratio")
    return dict(zip(names, clips, strict=True))


@given(st.integers(1, 12), st.integers(1, 5))
def test_vtrace_matches_the_published_ground_truth(steps: int, envs: int) -> None:
    """The numbers of scalable_agent's test, one discount for each environment."""
    ramp = torch.arange(steps * envs, dtype=torch.float64).view(steps, envs)
    log_ratio = 5 * (ramp / (steps * envs) - 0.5)
    reward, value, end = ramp, ramp / envs, torch.arange(envs).double() + 1
    successor = torch.cat([value[1:], end.unsqueeze(0)])
    never = torch.zeros(steps, envs, dtype=torch.bool)
    rho = log_ratio.exp().clamp(max=3.7)
    c = log_ratio.exp().clamp(max=1.0)
    for b in range(envs):
        discount = 0.9 / (b + 1)
        target, adv = vtrace(
            *(x[:, b : b + 1] for x in (log_ratio, reward, value, successor)),
            *(never[:, b : b + 1],) * 2,
            discount,
            1.0,
            3.7,
            1.0,
            2.2,
        )
        expected = value[:, b].clone()
        for s in range(steps):
            for t in range(s, steps):
                surprise = reward[t, b] + discount * successor[t, b] - value[t, b]
                way = discount ** (t - s) * c[s:t, b].prod()
                expected[s] += way * rho[t, b] * surprise
        torch.testing.assert_close(target[:, 0], expected, rtol=1e-5, atol=1e-5)
        behind = torch.cat([expected[1:], end[b : b + 1]])
        one_step = reward[:, b] + discount * behind - value[:, b]
        weight = log_ratio[:, b].exp().clamp(max=2.2)
        torch.testing.assert_close(adv[:, 0], weight * one_step, rtol=1e-5, atol=1e-5)


@given(sizes, seeds, ends, fractions, fractions)
def test_on_policy_it_is_gae(size, seed, end, gamma, lambda_) -> None:
    batch = make_batch(size, seed, end)
    batch["log_ratio"] = torch.zeros_like(batch["reward"])
    steps = {name: x for name, x in batch.items() if name != "log_ratio"}
    expected = gae(**steps, gamma=gamma, lambda_=lambda_)
    target, adv = vtrace(**batch, gamma=gamma, lambda_=lambda_)
    torch.testing.assert_close(adv, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(target, expected + batch["value"], rtol=0, atol=1e-12)


@pytest.mark.erratum("vtrace-ignores-done")
@pytest.mark.parametrize("flag", ["terminated", "truncated"])
@given(sizes, seeds, st.integers(0, 23), fractions, clips)
def test_an_unroll_cut_at_an_end_gives_the_same(
    flag, size, seed, row, gamma, clips
) -> None:
    """Two episodes in one unroll, or each of them on its own."""
    row %= size[0]
    batch = make_batch(size, seed)
    batch[flag][row] = True
    settings = {"gamma": gamma, "lambda_": 0.9, **named(clips)}
    whole = vtrace(**batch, **settings)
    parts = [
        vtrace(**{name: x[rows] for name, x in batch.items()}, **settings)
        for rows in (slice(0, row + 1), slice(row + 1, None))
        if len(batch["reward"][rows])
    ]
    for got, pieces in zip(whole, zip(*parts, strict=True), strict=True):
        torch.testing.assert_close(got, torch.cat(pieces), rtol=0, atol=1e-12)


@pytest.mark.erratum("vtrace-ignores-done")
def test_vtrace_without_a_cut_leaks_into_the_episode_before() -> None:
    """Two episodes, no reward, on-policy: the first must be worth nothing."""
    value = torch.tensor([[1.0], [1], [1], [100], [100], [100], [100]])
    terminated = torch.tensor([[0], [0], [1], [0], [0], [0]]).bool()

    # As published: the value behind a done is zeroed, the recursion runs on.
    masked = value.clone()
    masked[1:] *= ~terminated
    published, trace = masked[:-1].clone(), 0.0
    for t in reversed(range(6)):
        trace = masked[t + 1] - masked[t] + trace
        published[t] += trace
    assert published.flatten().tolist() == [100.0] * 6

    zero, never = torch.zeros(6, 1), torch.zeros_like(terminated)
    columns = (zero, zero, value[:-1], value[1:], terminated, never)
    assert vtrace(*columns, 1.0, 1.0)[0].flatten().tolist() == [0, 0, 0, 100, 100, 100]


@pytest.mark.erratum("truncation-reads-the-next-episode")
def test_value_behind_a_truncation_belongs_to_the_next_episode() -> None:
    """Reward 0, values 1 before and 50 after a cut: the advantage at the cut is 0."""
    logit, action = torch.zeros(3, 1, 2), torch.zeros(3, 1, dtype=torch.long)
    value = torch.tensor([[1.0], [1.0], [50.0], [50.0]])
    cut = torch.tensor([[False], [True], [False]])
    assert (value[1:] - value[:-1])[1] == 49.0  # what the next row would say
    data = vtrace_data(logit, logit, action, value, torch.zeros(3, 1), truncated=cut)
    with pytest.raises(ValueError, match="next_value must be given where a step is"):
        vtrace_error_discrete_action(data)
    data = data._replace(next_value=torch.tensor([[1.0], [1.0], [50.0]]))
    assert vtrace_error_discrete_action(data, gamma=1.0).policy_loss == 0.0
    # In the last row the caller's last value is the true successor's.
    late = torch.tensor([[False], [False], [True]])
    vtrace_error_discrete_action(data._replace(truncated=late, next_value=None))


@pytest.mark.erratum("vtrace-decay-in-one-place")
def test_full_targets_in_the_advantage_are_not_gae() -> None:
    batch = continuing(make_batch((20, 4), seed=0, end=0.0))
    batch["log_ratio"] = torch.zeros_like(batch["reward"])
    target, adv = vtrace(**batch)
    behind = torch.cat([target[1:], batch["next_value"][-1:]])
    published = batch["reward"] + 0.99 * behind - batch["value"]
    assert (published - adv).abs().max() > 0.1
    target, adv = vtrace(**batch, lambda_=1.0)
    behind = torch.cat([target[1:], batch["next_value"][-1:]])
    torch.testing.assert_close(adv, batch["reward"] + 0.99 * behind - batch["value"])


@pytest.mark.erratum("vtrace-last-target-zero")
@given(sizes, seeds, fractions)
def test_a_last_target_of_zero_costs_all_targets_the_last_reward(
    size, seed, gamma
) -> None:
    """Machin: one episode to its end, on-policy, the recursion from a zeroed target."""
    batch = continuing(make_batch(size, seed, end=0.0))
    batch["log_ratio"] = torch.zeros_like(batch["reward"])
    batch["terminated"][-1] = True
    reward, value = batch["reward"], batch["value"]
    published = torch.zeros_like(value)
    for t in reversed(range(len(reward) - 1)):
        surprise = reward[t] + gamma * value[t + 1] - value[t]
        published[t] = value[t] + surprise + gamma * (published[t + 1] - value[t + 1])
    target, _ = vtrace(**batch, gamma=gamma, lambda_=1.0)
    weight = gamma ** torch.arange(len(reward) - 1, -1, -1).double().unsqueeze(1)
    torch.testing.assert_close(target - published, weight * reward[-1])


def test_all_three_losses_are_means_over_the_steps() -> None:
    """So their balance does not depend on how many steps there are."""
    once = discrete(seed=3)
    few, many = (
        vtrace_error_discrete_action(
            vtrace_data(
                *(None if x is None else x.repeat_interleave(copies, 1) for x in once)
            )
        )
        for copies in (1, 100)
    )
    for one, other in zip(few, many, strict=True):
        torch.testing.assert_close(one, other)


def test_surprises_and_advantages_have_bounds_of_their_own() -> None:
    zero, end = torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)
    step = (torch.tensor([[50.0]]).log(), zero + 1, zero, zero, end, ~end)
    unbounded = {"rho_clip_ratio": None, "c_clip_ratio": None}
    assert vtrace(*step, **unbounded)[1].item() == 1.0
    common = vtrace(*step, **unbounded, rho_pg_clip_ratio=None)
    assert common[1].item() == pytest.approx(50)


@pytest.mark.erratum("vtrace-test-cannot-fail")
def test_a_test_that_looks_at_types_passes_everything() -> None:
    """DI-engine's test, with a loss that says nothing and has no gradient."""
    logit, value = torch.randn(4, 8, 16), torch.randn(5, 8)
    logit, value = logit.requires_grad_(), value.requires_grad_()
    nothing = (logit.sum() + value.sum()) * 0
    loss = vtrace_loss(nothing, nothing, nothing)
    assert all(part.shape == () for part in loss)
    sum(loss).backward()
    assert isinstance(logit, Tensor)  # as published
    assert isinstance(value, Tensor)
    assert not logit.grad.any()  # what it should have looked at
    assert not value.grad.any()


@pytest.mark.erratum("vtrace-test-cannot-fail")
def test_the_sum_of_all_three_losses_lowers_the_entropy() -> None:
    logit = torch.tensor([[[1.0, 0.0]]], requires_grad=True)
    nothing = torch.zeros(1, 1)
    data = vtrace_data(
        logit, logit, torch.zeros(1, 1, dtype=torch.long), torch.zeros(2, 1), nothing
    )
    before = vtrace_error_discrete_action(data)
    assert before.policy_loss == before.value_loss == 0.0
    (slope,) = torch.autograd.grad(sum(before), logit)
    for sign, expected in ((1, -1), (-1, 1)):  # as published, and as it should be
        moved = data._replace(target_output=logit - sign * slope)
        change = vtrace_error_discrete_action(moved).entropy_loss - before.entropy_loss
        assert change * expected > 0.01


def test_float32_is_close_to_float64() -> None:
    batch = make_batch((512, 16), seed=0, end=0.02)
    single = {k: x.float() if x.is_floating_point() else x for k, x in batch.items()}
    for got, expected in zip(vtrace(**single), vtrace(**batch), strict=True):
        assert (got.double() - expected).abs().max() < 5e-5


def test_a_ratio_that_overflows_becomes_its_bound() -> None:
    batch = make_batch((4, 2), seed=0, end=0.0)
    batch["log_ratio"][1] = 1e4
    huge = vtrace(**batch)
    batch["log_ratio"][1] = 0.0
    torch.testing.assert_close(huge, vtrace(**batch))


def test_arguments_keep_their_numbers_and_get_no_gradient() -> None:
    batch = make_batch((9, 2), seed=0)
    batch = {
        k: x.requires_grad_() if x.is_floating_point() else x for k, x in batch.items()
    }
    before = {name: x.detach().clone() for name, x in batch.items()}
    assert not any(result.requires_grad for result in vtrace(**batch))
    assert all(torch.equal(x, before[name]) for name, x in batch.items())


# --- The fixed point ------------------------------------------------------------------


@pytest.mark.equation("clipped-policy")
@pytest.mark.parametrize(
    ("rho", "c"),
    [(0.2, 0.2), (0.5, 0.2), (1.0, 0.2), (1.0, 1.0), (2.0, 1.0), (None, 1.0)],
)
def test_the_fixed_point_is_the_clipped_policys_value(rho, c) -> None:
    """Every unroll of a random problem, weighted with its probability: no noise."""
    rng = np.random.default_rng(7)
    states, actions, steps, gamma = 2, 3, 3, 0.9
    chance = rng.dirichlet(np.ones(states), (states, actions))
    pay = rng.normal(size=(states, actions))
    new, old = rng.dirichlet(np.ones(actions), (2, states))
    policy = clipped_policy(new, old, rho)
    direct = np.minimum(np.inf if rho is None else rho, new / old) * old
    np.testing.assert_allclose(policy, direct / direct.sum(1, keepdims=True))
    value = torch.tensor(
        tabular_values(
            np.einsum("sa,saz->sz", policy, chance), (policy * pay).sum(1), gamma
        )
    )
    moves = torch.arange(actions * states)
    every = torch.cartesian_prod(torch.arange(states), *[moves] * steps).T
    state = torch.cat([every[:1], every[1:] % states])
    taken = (state[:-1], every[1:] // states)
    likely = torch.tensor(old)[taken] * torch.tensor(chance)[*taken, state[1:]]
    never = torch.zeros(steps, state.shape[1], dtype=torch.bool)
    target, _ = vtrace(
        torch.tensor(np.log(new / old))[taken],
        torch.tensor(pay)[taken],
        value[state[:-1]],
        value[state[1:]],
        never,
        never,
        gamma,
        0.7,
        rho,
        c,
    )
    mean = torch.zeros_like(value).index_add(0, state[0], likely.prod(0) * target[0])
    torch.testing.assert_close(mean, value, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("rho", "value"), [(0.5, 4 / 3), (1.0, 1.75), (2.0, 2.4)])
def test_the_bandit_settles_at_the_closed_form(rho, value) -> None:
    """Arms that pay 0, 1 and 5; the values are computed by hand."""
    old, pay = np.array([0.6, 0.3, 0.1]), np.array([0.0, 1.0, 5.0])
    new = np.array([0.1, 0.2, 0.7])
    assert clipped_policy(new, old, rho) @ pay == pytest.approx(value, abs=1e-12)
    over = torch.ones(1, 3, dtype=torch.bool)
    guess = torch.full((1, 3), value, dtype=torch.float64)
    target, _ = vtrace(
        torch.tensor(np.log(new / old)).unsqueeze(0),
        torch.tensor(pay).unsqueeze(0),
        guess,
        guess,
        over,
        ~over,
        rho_clip_ratio=rho,
        c_clip_ratio=min(rho, 1.0),
    )
    assert target[0].numpy() @ old == pytest.approx(value, abs=1e-12)


def test_the_ends_of_the_clipped_policy() -> None:
    rng = np.random.default_rng(0)
    new, old = rng.dirichlet(np.ones(4), (2, 3))
    np.testing.assert_allclose(clipped_policy(new, old, None), new)
    np.testing.assert_allclose(clipped_policy(new, old, 1e-9), old)
    np.testing.assert_allclose(clipped_policy(new, old, 1e9), new)
    with pytest.raises(ValueError, match="old_policy must have shape"):
        clipped_policy(new, old[:2])
    with pytest.raises(TypeError, match="old_policy must be a float32 or float64"):
        clipped_policy(new, np.ones((3, 4), dtype=int))
    with pytest.raises(ValueError, match="must have an action in common"):
        clipped_policy(np.eye(2), 1 - np.eye(2))
    assert not np.shares_memory(clipped_policy(new, old, None), new)


@given(st.integers(0, 2**32 - 1))
def test_no_bound_is_what_a_large_bound_comes_to(seed) -> None:
    """Also where the old policy never takes an action of the new one."""
    rng = np.random.default_rng(seed)
    new, old = rng.dirichlet(np.ones(4), (2, 3))
    for policy in (new, old):  # one action stays possible for both
        policy[:, 1:] *= rng.random((3, 3)) < 0.6
        policy /= policy.sum(1, keepdims=True)
    free = clipped_policy(new, old, None)
    large = 2 * float((new[old > 0] / old[old > 0]).max())
    np.testing.assert_allclose(clipped_policy(new, old, large), free, atol=1e-12)
    np.testing.assert_array_equal(clipped_policy(new, old, np.inf), free)
    assert not free[old == 0].any(), "an action that is not in the data"


def test_without_a_bound_v_trace_rests_at_what_is_in_the_data() -> None:
    """Only the first of two arms has ever been pulled, so only its pay is known."""
    new, old = np.array([0.5, 0.5]), np.array([1.0, 0.0])
    value = float(clipped_policy(new, old, None) @ [1.0, 9.0])
    over = torch.ones(1, 1, dtype=torch.bool)
    guess = torch.full((1, 1), value, dtype=torch.float64)
    log_ratio, pay = guess.new_tensor([[math.log(0.5)]]), guess.new_ones(1, 1)
    bounds = {"rho_clip_ratio": None, "c_clip_ratio": None}
    target, _ = vtrace(log_ratio, pay, guess, guess, over, ~over, **bounds)
    assert target.item() == value == 1.0


# --- The losses -----------------------------------------------------------------------


def discrete(
    steps: int = 5, envs: int = 3, actions: int = 4, seed: int = 0, end: float = 0.3
) -> vtrace_data:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    terminated, truncated = torch.rand(2, steps, envs, generator=generator) < end / 2
    return vtrace_data(
        random(steps, envs, actions).requires_grad_(),
        random(steps, envs, actions).requires_grad_(),
        torch.randint(actions, (steps, envs), generator=generator),
        random(steps + 1, envs).requires_grad_(),
        random(steps, envs),
        random(steps, envs).exp(),
        terminated,
        truncated,
        random(steps, envs),
    )


def continuous(steps: int = 5, envs: int = 3, numbers: int = 2) -> vtrace_data:
    data = discrete(steps, envs, 2 * numbers)
    mappings = []
    for output in data[:2]:
        mu, sigma = output.detach().chunk(2, -1)
        mu, sigma = mu.contiguous(), (0.2 * sigma).exp().contiguous()
        mappings.append({"mu": mu.requires_grad_(), "sigma": sigma.requires_grad_()})
    action = torch.randn(steps, envs, numbers, dtype=torch.float64)
    return data._replace(
        target_output=mappings[0], behaviour_output=mappings[1], action=action
    )


def total(loss: vtrace_loss) -> Tensor:
    return loss.policy_loss + 0.5 * loss.value_loss - 0.1 * loss.entropy_loss


def reference(data: vtrace_data, new: Any, old: Any, settings: tuple) -> vtrace_loss:
    """Build the losses from PyTorch's distributions and the sum."""
    log_prob, log_prob_old = (
        d.log_prob(data.action).reshape(*data.reward.shape, -1).sum(-1)
        for d in (new, old)
    )
    entropy = new.entropy().reshape(*data.reward.shape, -1).sum(-1)
    gamma, lambda_, *clips = settings
    batch = {
        "log_ratio": (log_prob - log_prob_old).detach(),
        "reward": data.reward,
        "value": data.value[:-1].detach(),
        "next_value": data.next_value,
        "terminated": data.terminated,
        "truncated": data.truncated,
    }
    target, adv = by_sum(batch, gamma, lambda_, tuple(clips))
    weight = torch.ones_like(data.reward) if data.weight is None else data.weight
    return vtrace_loss(
        -(weight * adv * log_prob).mean(),
        (weight * (data.value[:-1] - target).square()).mean(),
        (weight * entropy).mean(),
    )


@pytest.mark.equation("vtrace-losses")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@given(seed=seeds, size=st.tuples(st.integers(1, 6), st.integers(1, 3)), clips=clips)
def test_losses_and_gradients_match_the_reference(
    kind, weighted, seed, size, clips
) -> None:
    settings = (0.9, 0.8, *clips)
    if kind == "discrete":
        data = discrete(*size, actions=3, seed=seed)
        leaves = [data.target_output, data.value]
        new, old = (Categorical(logits=x) for x in data[:2])
        error = vtrace_error_discrete_action
    else:
        data = continuous(*size)
        leaves = [*data.target_output.values(), data.value]
        new, old = (Normal(x["mu"], x["sigma"]) for x in data[:2])
        error = vtrace_error_continuous_action
    if not weighted:
        data = data._replace(weight=None)
    ours, theirs = error(data, *settings), reference(data, new, old, settings)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(total(ours), leaves),
        torch.autograd.grad(total(theirs), leaves),
    )


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_nothing_else_gets_a_gradient(kind) -> None:
    data = discrete() if kind == "discrete" else continuous()
    others = [data.reward, data.weight, data.next_value]
    for tensor in others:
        tensor.requires_grad_()
    if kind == "discrete":
        loss = vtrace_error_discrete_action(data)
        others.append(data.behaviour_output)
    else:
        loss = vtrace_error_continuous_action(data)
        others += data.behaviour_output.values()
    total(loss).backward()
    assert all(tensor.grad is None for tensor in others)
    assert not data.value.grad[-1].any()


def test_six_fields_are_enough() -> None:
    """The layout of DI-engine: positional fields, the value with one row more."""
    data = discrete(end=0.0)
    six = vtrace_data(*data[:6])
    never = torch.zeros(5, 3, dtype=torch.bool)
    full = six._replace(
        terminated=never, truncated=never, next_value=data.value[1:].detach()
    )
    settings = (0.99, 0.95, 1.0, 1.0, 1.0)
    assert vtrace_error_discrete_action(six, *settings) == (
        vtrace_error_discrete_action(full, *settings)
    )
    assert vtrace_error_discrete_action(six) == (
        vtrace_error_discrete_action(six, *settings)
    )


@pytest.mark.parametrize("size", [(1, 1), (1, 3), (4, 1)])
def test_one_step_one_environment_and_one_number(size) -> None:
    vtrace_error_discrete_action(discrete(*size))
    data = continuous(*size, numbers=1)
    assert data.action.shape == (*size, 1)
    vtrace_error_continuous_action(data)
    with pytest.raises(ValueError, match=r"action must have shape \(T, B, A\)"):
        vtrace_error_continuous_action(data._replace(action=data.action.squeeze(-1)))


@pytest.mark.erratum("values-written-in-place")
@pytest.mark.parametrize("squash", [torch.tanh, torch.relu])
def test_the_callers_values_stay_and_a_squashed_head_trains(squash) -> None:
    data = discrete()
    value = squash(data.value)
    before = value.detach().clone()
    total(vtrace_error_discrete_action(data._replace(value=value))).backward()
    assert torch.equal(value, before)
    assert data.value.grad.any()

    # As published: the mask is written into the network's output.
    leaf = torch.randn(6, 3, requires_grad=True)
    published = squash(leaf)
    published[1:] = published[1:] * (~data.terminated)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        published.sum().backward()


# --- What is refused ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"log_ratio": torch.zeros(2, 2)}, ValueError, "reward must have shape"),
        ({"log_ratio": None}, TypeError, "log_ratio must be a tensor"),
        ({"reward": torch.zeros(3)}, ValueError, "reward must have shape"),
        ({"truncated": torch.zeros(3, 2)}, TypeError, "truncated must be a bool"),
        ({"gamma": 1.5}, ValueError, "gamma must be .* at most 1"),
        ({"lambda_": -0.1}, ValueError, "lambda_ must be at least 0"),
        ({"lambda_": "x"}, TypeError, "lambda_ must be a number"),
        ({"rho_clip_ratio": 0.0}, ValueError, "rho_clip_ratio must be greater than 0"),
        (
            {"rho_pg_clip_ratio": -1.0},
            ValueError,
            "rho_pg_clip_ratio must be greater than 0",
        ),
        ({"log_ratio": torch.full((3, 2), torch.nan)}, ValueError, "log_ratio must be"),
        ({"value": torch.full((3, 2), torch.inf)}, ValueError, "value must be finite"),
    ],
)
def test_bad_arguments_of_vtrace_are_named(change, error, message) -> None:
    batch = make_batch((3, 2), seed=0, end=0.0)
    batch = {k: x.float() if x.is_floating_point() else x for k, x in batch.items()}
    with pytest.raises(error, match=message):
        vtrace(**(batch | change))


@pytest.mark.parametrize("c", [2.0, None])
def test_a_bound_of_c_above_that_of_rho_is_computed_and_warns_once(c) -> None:
    batch = {name: torch.zeros(3, 2) for name in ("reward", "value", "next_value")}
    batch["log_ratio"] = torch.full((3, 2), 5.0)
    batch["reward"][2] = 1.0
    flags = dict.fromkeys(("terminated", "truncated"), torch.zeros(3, 2).bool())
    check_clips.cache_clear()
    settings = {"gamma": 1.0, "lambda_": 1.0, "c_clip_ratio": c}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        targets = [vtrace(**batch, **flags, **settings)[0] for _ in range(2)]
    for target in targets:
        assert torch.allclose(target[0], torch.tensor((c or math.exp(5)) ** 2))
    (only,) = (str(warning.message) for warning in caught)
    assert only.startswith(f"c_clip_ratio is above rho_clip_ratio, {c} and 1.0: ")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"target_output": torch.zeros(15, 4)}, ValueError, "target_output must have"),
        ({"behaviour_output": torch.zeros(5, 3, 2)}, ValueError, "behaviour_output"),
        ({"action": torch.zeros(5, 3)}, TypeError, "action must be an integer"),
        ({"action": torch.full((5, 3), 4)}, ValueError, r"action must lie in 0\.\.3"),
        (
            {"value": torch.zeros(5, 3)},
            ValueError,
            r"reward must have .* T = 4 \(of data.val",
        ),
        (
            {"reward": torch.zeros(5, 1)},
            ValueError,
            r"reward must have .* got \(5, 1\)",
        ),
        (
            {"weight": torch.zeros(3)},
            ValueError,
            r"weight must have shape .* got \(3,\)",
        ),
        ({"terminated": torch.zeros(5, 3)}, TypeError, "terminated must be a bool"),
        (
            {"target_output": torch.full((5, 3, 4), torch.nan)},
            ValueError,
            "^target_output must be finite",
        ),
        (
            {"behaviour_output": torch.full((5, 3, 4), torch.inf)},
            ValueError,
            "^behaviour_output must be finite",
        ),
    ],
)
def test_bad_fields_are_named(change, error, message) -> None:
    data = discrete(end=0.0)._replace(**change)
    with pytest.raises(error, match=message):
        vtrace_error_discrete_action(data)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"target_output": torch.zeros(5, 3, 2)}, TypeError, "target_output must be a"),
        ({"target_output": {"mu": 1}}, TypeError, "target_output must be a tree"),
        (
            {"behaviour_output": {"mu": torch.zeros(5, 3, 2)}},
            TypeError,
            "behaviour_output must be a tree with the keys",
        ),
        (
            {"target_output": dict.fromkeys(("mu", "sigma"), torch.zeros(5, 3, 2))},
            ValueError,
            "target_output.sigma must be positive",
        ),
        ({"action": torch.zeros(5, 3, 1)}, ValueError, "action must have shape"),
    ],
)
def test_bad_continuous_fields_are_named(change, error, message) -> None:
    with pytest.raises(error, match=message):
        vtrace_error_continuous_action(continuous()._replace(**change))


def test_a_finite_loss_has_a_finite_gradient_at_all_deviations() -> None:
    def loss_of(mu: Tensor, sigma: Tensor, action: float) -> tuple[Tensor, Tensor]:
        new = {"mu": mu.expand(2, 1, 1), "sigma": sigma.expand(2, 1, 1)}
        old = {name: x.detach() for name, x in new.items()}
        actions, numbers = torch.full((2, 1, 1), action), torch.ones(3, 1)
        data = vtrace_data(new, old, actions, numbers, numbers[1:])
        loss = vtrace_error_continuous_action(data)
        return loss.policy_loss, loss.entropy_loss

    assert_gradients_are_finite(loss_of)


def test_every_argument_is_held_to_its_annotation() -> None:
    settings: Any = dict.fromkeys(("rho_clip_ratio", "c_clip_ratio"), lambda: 1.0)
    assert assert_held(vtrace, Random(0), **settings) > 200
    assert assert_held(vtrace_loop, Random(0)) > 200
    settings["truncated"] = lambda: None
    assert assert_held(vtrace_error_from_log_prob, Random(0), **settings) > 200


@pytest.mark.parametrize("number", [2e38, -2e38])
def test_finite_targets_with_an_infinite_sum_are_taken(number: float) -> None:
    value, zero = torch.full((4, 2), number), torch.zeros(4, 2)
    never = zero.bool()
    target, adv = vtrace(zero, zero, value, value, never, never, 1.0, 1.0)
    assert target.sum().isinf()
    assert torch.equal(target, value)
    assert not adv.any()
