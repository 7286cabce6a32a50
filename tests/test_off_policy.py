"""V-trace: the recursion against its sum, its fixed point, and the losses."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal

from literate_rl.data.exact_values import tabular_values
from literate_rl.maths.advantages import gae
from literate_rl.maths.fast import reverse_scan
from literate_rl.maths.off_policy import (
    clipped_policy,
    vtrace,
    vtrace_data,
    vtrace_error_continuous_action,
    vtrace_error_discrete_action,
    vtrace_loop,
    vtrace_loss,
)

Batch = dict[str, Tensor]

sizes = st.tuples(st.integers(1, 24), st.integers(1, 3))
seeds = st.integers(0, 9999)
fractions = st.sampled_from([0.0, 0.3, 0.9, 1.0])
ends = st.sampled_from([0.0, 0.1, 0.5, 1.0])
# Bounds of rho, c and rho_pg.
clips = st.sampled_from(
    [
        (1.0, 1.0, 1.0),
        (2.0, 0.5, 0.7),
        (0.3, 0.3, 3.0),
        (None, 1.0, 2.0),
        (None,) * 3,
        (1.0, 2.0, 1.0),
    ]
)


def make_batch(size: tuple[int, int], seed: int, end: float = 0.2) -> Batch:
    """Return random steps in float64; successors do not fit to the states."""
    generator = torch.Generator().manual_seed(seed)
    names = "log_ratio", "reward", "value", "next_value"
    numbers = torch.randn(4, *size, generator=generator, dtype=torch.float64)
    flags = torch.rand(2, *size, generator=generator) < end / 2
    named = dict(zip(names, numbers, strict=True))
    return {**named, "terminated": flags[0], "truncated": flags[1]}


def on_policy(size: tuple[int, int], seed: int) -> Batch:
    """Return steps of one episode: a successor has the value of the next row."""
    batch = make_batch(size, seed, end=0.0)
    following = torch.cat((batch["value"][1:], batch["next_value"][-1:]))
    return batch | {"next_value": following, "log_ratio": 0 * following}


def by_sum(
    columns: Iterable[Tensor], gamma: float, lambda_: float, *bounds: float | None
) -> tuple[Tensor, Tensor]:
    """Sum over all later surprises of the episode, with the product of the ratios."""
    ratio, reward, value, behind, terminated, truncated = (
        x.detach().numpy() for x in columns
    )
    surprise = reward + gamma * np.where(terminated, 0.0, behind) - value
    done, ratio = terminated | truncated, np.exp(ratio)
    rho, c, rho_pg = (np.minimum(ratio, np.inf if x is None else x) for x in bounds)
    x = np.zeros((len(done) + 1, done.shape[1]))
    for first, env in product(range(len(done)), range(done.shape[1])):
        for t in range(first, len(done)):
            way = (gamma * lambda_) ** (t - first) * c[first:t, env].prod()
            x[first, env] += way * rho[t, env] * surprise[t, env]
            if done[t, env]:
                break
    later = np.where(done, 0.0, x[1:])
    adv = rho_pg * (surprise + gamma * lambda_ * later)
    return torch.from_numpy(value + x[:-1]), torch.from_numpy(adv)


# --- The targets ----------------------------------------------------------------------


@pytest.mark.equation("vtrace-ratios")
@pytest.mark.equation("vtrace")
@pytest.mark.equation("vtrace-advantage")
@given(sizes, seeds, ends, fractions, fractions, clips)
def test_vtrace_is_the_sum_over_later_surprises(size, seed, end, gamma, lambda_, clips):
    batch = make_batch(size, seed, end)
    got = vtrace(*batch.values(), gamma, lambda_, *clips)
    torch.testing.assert_close(got, by_sum(batch.values(), gamma, lambda_, *clips))


@pytest.mark.equation("vtrace")
@given(sizes, seeds)
def test_the_loop_is_the_recursion_of_the_kernel(size, seed):
    generator = torch.Generator().manual_seed(seed)
    rho, error, passed_on = torch.rand(3, *size, generator=generator).double()
    torch.testing.assert_close(
        vtrace_loop(rho, error, passed_on), reverse_scan(rho * error, passed_on)
    )


@pytest.mark.erratum("vtrace-decay-in-one-place")
@pytest.mark.parametrize("lambda_", [0.95, 1.0])
def test_on_policy_it_is_gae_and_full_targets_are_not(lambda_):
    batch = on_policy((20, 4), seed=0)
    target, adv = vtrace(**batch, lambda_=lambda_)
    behind = torch.cat([target[1:], batch["next_value"][-1:]])
    published = batch["reward"] + 0.99 * behind - batch["value"]
    assert torch.allclose(published, adv) == (lambda_ == 1.0)
    del batch["log_ratio"]
    torch.testing.assert_close(adv, gae(**batch, gamma=0.99, lambda_=lambda_))


@pytest.mark.erratum("vtrace-ignores-done")
def test_vtrace_without_a_cut_leaks_into_the_episode_before():
    """Two episodes, no reward, on-policy: the first must be worth nothing."""
    value = torch.tensor([1.0, 1, 1, 100, 100, 100, 100]).unsqueeze(1)
    zero, terminated = torch.zeros(6, 1), torch.arange(6).unsqueeze(1) == 2
    # As published: the value behind a done is zeroed, the recursion runs on.
    masked = torch.cat([value[:1], value[1:] * ~terminated])
    published = masked[:-1] + masked.diff(dim=0).flip(0).cumsum(0).flip(0)
    assert published.flatten().tolist() == [100.0] * 6
    columns = (zero, zero, value[:-1], value[1:], terminated, zero.bool())
    assert vtrace(*columns, 1.0, 1.0)[0].flatten().tolist() == [0, 0, 0, 100, 100, 100]


@pytest.mark.erratum("truncation-reads-the-next-episode")
def test_value_behind_a_truncation_belongs_to_the_next_episode():
    """Reward 0, values 1 before and 50 after a cut: the advantage at the cut is 0."""
    value = torch.tensor([1.0, 1.0, 50.0, 50.0]).unsqueeze(1)
    zero, cut = torch.zeros(3, 1), torch.arange(3).unsqueeze(1) == 1
    logit = torch.zeros(3, 1, 2)
    data = vtrace_data(logit, logit, zero.long(), value, zero, truncated=cut)
    with pytest.raises(ValueError, match="next_value"):
        vtrace_error_discrete_action(data)
    data = data._replace(next_value=torch.tensor([[1.0], [1.0], [50.0]]))
    assert vtrace_error_discrete_action(data, gamma=1.0).policy_loss == 0.0
    # In the last row the caller's last value is the true successor's.
    late = data._replace(truncated=cut.roll(1, 0), next_value=None)
    vtrace_error_discrete_action(late)


@pytest.mark.erratum("vtrace-last-target-zero")
@given(sizes, seeds, fractions)
def test_a_last_target_of_zero_costs_all_targets_the_last_reward(size, seed, gamma):
    """Machin: one episode to its end, on-policy, the recursion from a zeroed target."""
    batch = on_policy(size, seed)
    batch["terminated"][-1] = True
    reward, value = batch["reward"], batch["value"]
    published = torch.zeros_like(value)
    for t in reversed(range(len(reward) - 1)):
        published[t] = reward[t] + gamma * published[t + 1]
    target, _ = vtrace(**batch, gamma=gamma, lambda_=1.0)
    weight = gamma ** torch.arange(len(reward) - 1, -1, -1).double().unsqueeze(1)
    torch.testing.assert_close(target - published, weight * reward[-1])


def test_a_ratio_that_overflows_becomes_its_bound():
    batch = make_batch((4, 2), seed=0, end=0.0)
    huge, even = (
        vtrace(**batch | {"log_ratio": torch.full((4, 2), x)}) for x in (1e4, 0.0)
    )
    torch.testing.assert_close(huge, even)


def test_arguments_keep_their_numbers_and_get_no_gradient():
    batch = make_batch((9, 2), seed=0)
    before = {name: x.clone() for name, x in batch.items()}
    for x in batch.values():
        x.requires_grad_(x.is_floating_point())
    assert not any(result.requires_grad for result in vtrace(**batch))
    assert all(torch.equal(x, before[name]) for name, x in batch.items())


# --- The fixed point ------------------------------------------------------------------


@pytest.mark.equation("clipped-policy")
@pytest.mark.parametrize(
    ("rho", "c"), [(0.2, 0.2), (0.5, 0.2), (2.0, 1.0), (None, 1.0)]
)
def test_the_fixed_point_is_the_clipped_policys_value(rho, c):
    """Every unroll of a random problem, weighted with its probability: no noise."""
    rng = np.random.default_rng(7)
    states, actions, steps, gamma = 2, 3, 3, 0.9
    chance = rng.dirichlet(np.ones(states), (states, actions))
    pay = rng.normal(size=(states, actions))
    new, old = rng.dirichlet(np.ones(actions), (2, states))
    policy = clipped_policy(new, old, rho)
    direct = np.minimum(np.inf if rho is None else rho, new / old) * old
    np.testing.assert_allclose(policy, direct / direct.sum(1, keepdims=True))
    moves = np.einsum("sa,saz->sz", policy, chance)
    value = torch.tensor(tabular_values(moves, (policy * pay).sum(1), gamma))
    first, *rest = torch.cartesian_prod(
        torch.arange(states), *[torch.arange(actions * states)] * steps
    ).T
    action, after = torch.stack(rest) // states, torch.stack(rest) % states
    state = torch.cat([first[None], after[:-1]])
    likely = (
        torch.tensor(old)[state, action] * torch.tensor(chance)[state, action, after]
    )
    ratio, reward = (torch.tensor(x)[state, action] for x in (np.log(new / old), pay))
    never = torch.zeros_like(reward, dtype=torch.bool)
    columns = ratio, reward, value[state], value[after], never, never
    target, _ = vtrace(*columns, gamma, 0.7, rho, c)
    mean = torch.zeros_like(value).index_add(0, first, likely.prod(0) * target[0])
    torch.testing.assert_close(mean, value, rtol=0, atol=1e-12)


# --- The losses -----------------------------------------------------------------------


def discrete(
    steps: int = 5, envs: int = 3, actions: int = 4, seed: int = 0, end: float = 0.3
) -> vtrace_data:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        x = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return x.requires_grad_()

    return vtrace_data(
        random(steps, envs, actions),
        random(steps, envs, actions),
        torch.randint(actions, (steps, envs), generator=generator),
        random(steps + 1, envs),
        random(steps, envs),
        random(steps, envs).detach().exp().requires_grad_(),
        *torch.rand(2, steps, envs, generator=generator) < end / 2,
        random(steps, envs),
    )


def continuous(steps: int = 5, envs: int = 3, seed: int = 0) -> vtrace_data:
    data, mappings = discrete(steps, envs, seed=seed), []
    for output in data[:2]:
        mu, sigma = output.detach().chunk(2, -1)
        both = {"mu": mu.clone(), "sigma": (0.2 * sigma).exp()}
        mappings.append({name: x.requires_grad_() for name, x in both.items()})
    action = torch.randn(steps, envs, 2, dtype=torch.float64)
    return vtrace_data(*mappings, action, *data[3:])


KINDS: dict[str, Any] = {
    "discrete": (discrete, vtrace_error_discrete_action),
    "continuous": (continuous, vtrace_error_continuous_action),
}


def leaves(output: Any) -> list[Tensor]:
    return [output] if isinstance(output, Tensor) else [*output.values()]


def total(loss: vtrace_loss) -> Tensor:
    return loss.policy_loss + 0.5 * loss.value_loss - 0.1 * loss.entropy_loss


def reference(data: vtrace_data, settings: tuple) -> vtrace_loss:
    """Build the losses from PyTorch's distributions and the sum."""

    def peer(output: Any) -> Any:
        if isinstance(output, Tensor):
            return Categorical(logits=output)
        return Independent(Normal(output["mu"], output["sigma"]), 1)

    new, old = map(peer, data[:2])
    log_prob, log_prob_old = (d.log_prob(data.action) for d in (new, old))
    flags = data.terminated, data.truncated
    columns = log_prob - log_prob_old, data.reward, data.value[:-1], data.next_value
    target, adv = by_sum((*columns, *flags), *settings)
    weight = torch.ones_like(adv) if data.weight is None else data.weight.detach()
    return vtrace_loss(
        -(weight * adv * log_prob).mean(),
        (weight * (data.value[:-1] - target).square()).mean(),
        (weight * new.entropy()).mean(),
    )


@pytest.mark.equation("vtrace-losses")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@given(seed=seeds, size=st.tuples(st.integers(1, 6), st.integers(1, 3)), clips=clips)
def test_losses_and_gradients_match_the_reference(kind, weighted, seed, size, clips):
    make, error = KINDS[kind]
    data, settings = make(*size, seed=seed), (0.9, 0.8, *clips)
    data = data if weighted else data._replace(weight=None)
    ours, theirs = error(data, *settings), reference(data, settings)
    torch.testing.assert_close(ours, theirs)
    inputs = [*leaves(data.target_output), data.value]
    torch.testing.assert_close(
        torch.autograd.grad(total(ours), inputs),
        torch.autograd.grad(total(theirs), inputs),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_else_gets_a_gradient(kind):
    make, error = KINDS[kind]
    data = make()
    total(error(data)).backward()
    others = [*leaves(data.behaviour_output), data.reward, data.weight, data.next_value]
    assert all(tensor.grad is None for tensor in others)
    assert not data.value.grad[-1].any()


def test_six_fields_are_enough():
    """The layout of DI-engine: positional fields, the value with one row more."""
    six = vtrace_data(*discrete(end=0.0)[:6])
    never = torch.zeros(5, 3, dtype=torch.bool)
    full = vtrace_data(*six[:6], never, never, six.value[1:].detach())
    assert vtrace_error_discrete_action(six) == vtrace_error_discrete_action(full)


@pytest.mark.erratum("values-written-in-place")
def test_the_callers_values_stay_and_a_squashed_head_trains():
    data = discrete()
    value = data.value.tanh()
    before = value.detach().clone()
    total(vtrace_error_discrete_action(data._replace(value=value))).backward()
    assert torch.equal(value, before)
    assert data.value.grad.any()
    # As published: the mask is written into the network's output.
    published = data.value.tanh()
    published[1:] = published[1:] * (~data.terminated)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        published.sum().backward()


@pytest.mark.erratum("vtrace-test-cannot-fail")
def test_a_test_that_looks_at_types_passes_everything():
    """DI-engine's test, with a loss that says nothing; and its sum of all three."""
    data = discrete()
    logit = data.target_output
    (logit.sum() * 0).backward()
    assert isinstance(logit, Tensor)  # as published
    assert not logit.grad.any()  # what it should have looked at
    # The entropy is to be taken away: added, it falls.
    entropy = vtrace_error_discrete_action(data).entropy_loss
    (slope,) = torch.autograd.grad(entropy, logit)
    moved = data._replace(target_output=logit - 0.1 * slope)
    assert vtrace_error_discrete_action(moved).entropy_loss < entropy
