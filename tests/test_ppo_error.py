"""The PPO error against slow float64 references, gradients included."""

from __future__ import annotations

import math
from collections import namedtuple
from random import Random

import numpy as np
import pytest
import torch
from extremes import assert_gradients_are_finite
from fuzz import assert_held
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from literate_rl.maths import ppo_error
from literate_rl.maths.ppo_error import (
    approx_kl_k3,
    clipped_surrogate,
    policy_error_from_log_prob,
    ppo_policy_data,
    ppo_policy_data_continuous,
    ppo_policy_error,
    ppo_policy_error_continuous,
    ppo_value_data,
    ppo_value_error,
)

ratios = st.floats(0.05, 20.0)
advantages = st.floats(-5.0, 5.0)
clips = st.floats(0.01, 0.9)
dual_clips = st.none() | st.floats(1.01, 10.0)


# --- References: one sample at a time, plain Python ----------------------------------


def surrogate_reference(ratio: float, adv: float, eps: float, c: float | None) -> float:
    """The definition of the objective, number by number."""
    clipped = min(max(ratio, 1 - eps), 1 + eps)
    value = min(ratio * adv, clipped * adv)
    return max(value, c * adv) if c is not None and adv < 0 else value


def slope_reference(ratio: float, adv: float, eps: float, c: float | None) -> float:
    """The derivative by the log-probability: the table of regions in the chapter."""
    dead = ratio > 1 + eps if adv > 0 else ratio < 1 - eps
    dead = dead or (c is not None and adv < 0 and ratio > c)
    return 0.0 if dead else ratio * adv


def policy_reference(data: ppo_policy_data, eps: float, c: float | None):
    """Losses and numbers to watch, with loops over samples and actions."""
    logit_new, logit_old, action, adv, weight = data
    losses, entropies, log_ratios = [], [], []
    for b in range(len(adv)):
        log_probs = []
        for logit in (logit_new, logit_old):
            row = logit[b].tolist()
            total = math.log(sum(math.exp(z - max(row)) for z in row)) + max(row)
            log_probs.append([z - total for z in row])
        w = 1.0 if weight is None else float(weight[b])
        log_ratio = log_probs[0][action[b]] - log_probs[1][action[b]]
        objective = surrogate_reference(math.exp(log_ratio), float(adv[b]), eps, c)
        losses.append(-w * objective)
        entropies.append(-w * sum(math.exp(p) * p for p in log_probs[0]))
        log_ratios.append(log_ratio)
    outside = [math.exp(x) > 1 + eps or math.exp(x) < 1 - eps for x in log_ratios]
    return (
        np.mean(losses),
        np.mean(entropies),
        -np.mean(log_ratios),
        np.mean(outside),
    )


def make_batch(
    batch: int, actions: int, seed: int, weighted: bool = False, spread: float = 0.5
) -> ppo_policy_data:
    """A random float64 batch; the new logits want a gradient."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    logit_new = draw(batch, actions)
    return ppo_policy_data(
        logit_new.clone().requires_grad_(),
        logit_new + spread * draw(batch, actions),
        torch.randint(0, actions, (batch,), generator=g),
        draw(batch),
        torch.rand(batch, generator=g, dtype=torch.float64) if weighted else None,
    )


def numeric_gradient(function, x: Tensor, step: float = 1e-6) -> Tensor:
    """Central differences, entry by entry."""
    gradient = torch.zeros_like(x)
    for index in np.ndindex(*x.shape):
        values = []
        for sign in (1, -1):
            moved = x.detach().clone()
            moved[index] += sign * step
            values.append(float(function(moved)))
        gradient[index] = (values[0] - values[1]) / (2 * step)
    return gradient


# --- The surrogate --------------------------------------------------------------------


@pytest.mark.equation("ratio")
@given(ratios, ratios)
def test_ratio_is_new_over_old(new: float, old: float) -> None:
    log_new, log_old = (
        torch.tensor([x], dtype=torch.float64).log() for x in (new, old)
    )
    # With an advantage of -1 and a ratio above 1 the objective is minus the ratio.
    objective = -clipped_surrogate(log_new, log_old, -torch.ones(1).double()).item()
    assert objective == pytest.approx(max(new / old, 0.8), rel=1e-9)


@pytest.mark.equation("clipped-surrogate")
@pytest.mark.equation("dual-clip")
@given(ratios, advantages, clips, dual_clips)
def test_surrogate_matches_its_definition(
    ratio: float, adv: float, eps: float, c: float | None
) -> None:
    log_prob = torch.tensor([ratio], dtype=torch.float64).log().requires_grad_()
    objective = clipped_surrogate(
        log_prob,
        torch.zeros(1).double(),
        torch.tensor([adv], dtype=torch.float64),
        eps,
        c,
    )
    assert objective.item() == pytest.approx(surrogate_reference(ratio, adv, eps, c))
    objective.sum().backward()
    edges = [1 - eps, 1 + eps, *([] if c is None else [c])]
    if min(abs(ratio - edge) for edge in edges) > 1e-9:
        expected = slope_reference(ratio, adv, eps, c)
        assert log_prob.grad.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "adv", "live"),
    [
        (0.5, 1.0, True),
        (1.1, 1.0, True),
        (1.5, 1.0, False),
        (5.0, 1.0, False),
        (0.5, -1.0, False),
        (1.1, -1.0, True),
        (1.5, -1.0, True),
        (5.0, -1.0, False),
    ],
)
def test_table_of_regions(ratio: float, adv: float, live: bool) -> None:
    log_prob = torch.tensor([ratio]).log().requires_grad_()
    clipped_surrogate(
        log_prob, torch.zeros(1), torch.tensor([adv]), dual_clip=3.0
    ).sum().backward()
    assert (log_prob.grad.item() != 0) == live


def test_surrogate_at_ratio_one_is_the_policy_gradient() -> None:
    log_prob = torch.randn(16, dtype=torch.float64, requires_grad=True)
    adv = torch.randn(16, dtype=torch.float64)
    (slope,) = torch.autograd.grad(
        clipped_surrogate(log_prob, log_prob, adv, dual_clip=1.5).sum(), log_prob
    )
    torch.testing.assert_close(slope, adv)


@pytest.mark.equation("clip-fraction")
@pytest.mark.parametrize(("ratio", "clip"), [(2.0, 1.0), (0.5, 0.5)])
def test_a_ratio_on_the_edge_has_not_left_the_range(ratio, clip) -> None:
    log_prob = torch.tensor([ratio], dtype=torch.float64).log()
    zero = torch.zeros_like(log_prob)
    for edge, outside in ((clip, 0.0), (0.99 * clip, 1.0)):
        _, info = policy_error_from_log_prob(log_prob, zero, zero, zero, None, edge)
        assert info.clipfrac == outside


def test_dual_clip_bounds_the_objective() -> None:
    log_prob = torch.linspace(-3, 6, 200, dtype=torch.float64)
    adv = -torch.ones_like(log_prob)
    bounded = clipped_surrogate(log_prob, torch.zeros_like(adv), adv, dual_clip=3.0)
    assert bounded.min() == -3.0
    assert clipped_surrogate(log_prob, torch.zeros_like(adv), adv).min() < -100


@pytest.mark.parametrize("log_ratio", [1e4, -1e4, 100.0, torch.inf, -torch.inf])
@pytest.mark.parametrize("adv", [-1.0, 0.0, 1.0])
def test_extreme_ratios_stay_finite(log_ratio: float, adv: float) -> None:
    log_prob = torch.tensor([log_ratio], requires_grad=True)
    objective = clipped_surrogate(log_prob, torch.zeros(1), torch.tensor([adv]))
    objective.sum().backward()
    assert torch.isfinite(objective).all()
    assert log_prob.grad.item() == 0.0


# --- The policy error -----------------------------------------------------------------


@pytest.mark.equation("policy-loss")
@pytest.mark.equation("entropy-bonus")
@pytest.mark.equation("kl-k1")
@pytest.mark.equation("clip-fraction")
@given(
    st.integers(1, 6), st.integers(1, 5), st.integers(0, 999), st.booleans(), dual_clips
)
def test_policy_error_matches_loops(
    batch: int, actions: int, seed: int, weighted: bool, c: float | None
) -> None:
    data = make_batch(batch, actions, seed, weighted)
    loss, info = ppo_policy_error(data, 0.2, c)
    found = [loss.policy_loss.item(), loss.entropy_loss.item(), *info]
    assert found == pytest.approx(policy_reference(data, 0.2, c), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize(("weighted", "c"), [(False, None), (True, 2.0)])
def test_gradient_matches_central_differences(part, weighted, c) -> None:
    data = make_batch(5, 4, seed=3, weighted=weighted, spread=1.0)
    loss, _ = ppo_policy_error(data, 0.2, c)
    (gradient,) = torch.autograd.grad(loss[part], data.logit_new)

    def value(logit: Tensor) -> float:
        return policy_reference(data._replace(logit_new=logit), 0.2, c)[part]

    torch.testing.assert_close(
        gradient, numeric_gradient(value, data.logit_new), rtol=1e-5, atol=1e-8
    )


def test_unavailable_actions_get_no_gradient() -> None:
    data = make_batch(8, 4, seed=1)
    closed = torch.zeros(8, 4, dtype=torch.bool)
    closed[:, 3] = True
    logit = data.logit_new.detach().masked_fill(closed, -torch.inf).requires_grad_()
    data = data._replace(
        logit_new=logit,
        logit_old=data.logit_old.masked_fill(closed, -torch.inf),
        action=data.action % 3,
    )
    loss, _ = ppo_policy_error(data)
    (gradient,) = torch.autograd.grad(sum(loss), logit)
    assert (gradient[:, 3] == 0).all()
    assert torch.isfinite(gradient).all()
    open_ = data._replace(
        logit_new=logit.detach()[:, :3].requires_grad_(),
        logit_old=data.logit_old[:, :3],
    )
    expected, _ = ppo_policy_error(open_)
    torch.testing.assert_close(loss.entropy_loss, expected.entropy_loss)


def test_only_the_new_logits_get_gradient_and_nothing_is_written() -> None:
    data = make_batch(8, 4, seed=1, weighted=True)
    data = ppo_policy_data(
        *(x.requires_grad_() if x.is_floating_point() else x for x in data)
    )
    before = [x.detach().clone() for x in data]
    loss, _ = ppo_policy_error(data, dual_clip=2.0)
    sum(loss).backward()
    assert data.logit_new.grad is not None
    assert all(x.grad is None for x in (data.logit_old, data.adv, data.weight))
    assert all(torch.equal(x, old) for x, old in zip(data, before, strict=True))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (
            lambda: clipped_surrogate([0.0], torch.zeros(1), torch.ones(1)),
            "log_prob_new",
        ),
        (lambda: approx_kl_k3([0.0], torch.zeros(1)), "log_prob_new"),
        (
            lambda: ppo_value_error(ppo_value_data([0.0], None, torch.ones(1), None)),
            "data.value_new",
        ),
    ],
)
def test_a_list_is_no_tensor(call, name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a tensor, got list"):
        call()


def test_the_same_policy_has_the_divergence_zero() -> None:
    data = make_batch(4, 3, seed=0)
    _, info = ppo_policy_error(data._replace(logit_old=data.logit_new.detach()))
    assert str(info.approx_kl) == "0.0"


def test_a_retained_graph_gives_the_same_gradient_again() -> None:
    data = make_batch(8, 4, seed=1, weighted=True)
    loss, _ = ppo_policy_error(data, dual_clip=2.0)
    first, second = (
        torch.autograd.grad(sum(loss), data.logit_new, retain_graph=True)[0]
        for _ in range(2)
    )
    assert torch.equal(first, second)


def test_weights_normalised_by_their_mean_ignore_dropped_samples() -> None:
    data = make_batch(6, 4, seed=2)
    weight = torch.tensor([1.0, 1, 1, 0, 0, 0], dtype=torch.float64)
    kept = ppo_policy_data(*(x[:3] for x in data[:4]), None)
    whole, _ = ppo_policy_error(data._replace(weight=weight / weight.mean()))
    part, _ = ppo_policy_error(kept)
    torch.testing.assert_close(whole.policy_loss, part.policy_loss)
    torch.testing.assert_close(whole.entropy_loss, part.entropy_loss)


# --- Continuous actions ---------------------------------------------------------------


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 999), dual_clips)
def test_continuous_error_matches_loops(
    batch: int, dims: int, seed: int, c: float | None
) -> None:
    g = torch.Generator().manual_seed(seed)

    def draw() -> Tensor:
        return torch.randn(batch, dims, generator=g, dtype=torch.float64)

    new = {"mu": draw(), "sigma": draw().exp()}
    old = {"mu": new["mu"] + 0.1 * draw(), "sigma": new["sigma"] * 1.1}
    action, adv = draw(), draw()[:, 0]
    loss, info = ppo_policy_error_continuous(
        ppo_policy_data(new, old, action, adv, None), 0.2, c
    )

    def log_prob(logit: dict[str, Tensor], b: int) -> float:
        return sum(
            -0.5 * ((float(u) - float(m)) / float(s)) ** 2
            - math.log(float(s))
            - 0.5 * math.log(2 * math.pi)
            for u, m, s in zip(
                action[b], logit["mu"][b], logit["sigma"][b], strict=True
            )
        )

    log_ratio = [log_prob(new, b) - log_prob(old, b) for b in range(batch)]
    objective = [
        # The logarithm of a ratio counts as 20 beyond 20, and below -20 likewise.
        surrogate_reference(math.exp(min(max(x, -20.0), 20.0)), float(a), 0.2, c)
        for x, a in zip(log_ratio, adv, strict=True)
    ]
    entropy = (0.5 + 0.5 * math.log(2 * math.pi) + new["sigma"].log()).sum(1).mean()
    assert loss.policy_loss.item() == pytest.approx(-np.mean(objective), rel=1e-8)
    assert loss.entropy_loss.item() == pytest.approx(entropy.item())
    assert info.approx_kl == pytest.approx(-np.mean(log_ratio), abs=1e-10)


def test_one_dimensional_actions_keep_their_dimension() -> None:
    logit = {"mu": torch.zeros(3, 1), "sigma": torch.ones(3, 1)}
    data = ppo_policy_data(logit, logit, torch.zeros(3, 1), torch.ones(3), None)
    assert ppo_policy_error_continuous(data)[0].policy_loss.item() == -1.0
    expected = r"data.action must have shape \(B, A\) with B = 3.* A = 1.*got \(3,\)"
    with pytest.raises(ValueError, match=expected):
        ppo_policy_error_continuous(data._replace(action=torch.zeros(3)))


def test_a_finite_loss_has_a_finite_gradient_at_all_deviations() -> None:
    def loss_of(mu: Tensor, sigma: Tensor, action: float) -> ppo_error.ppo_policy_loss:
        new = {"mu": mu.expand(2, 1), "sigma": sigma.expand(2, 1)}
        old = {name: x.detach() for name, x in new.items()}
        actions = torch.full((2, 1), action)
        data = ppo_policy_data(new, old, actions, torch.tensor([1.0, 2.0]), None)
        return ppo_policy_error_continuous(data)[0]

    assert_gradients_are_finite(loss_of)


def test_without_clips_a_policy_error_has_those_of_the_paper() -> None:
    data = make_batch(64, 4, seed=1, spread=1.0)
    assert ppo_policy_error(data) == ppo_policy_error(data, 0.2, None)
    assert ppo_policy_error(data) != ppo_policy_error(data, 0.3, None)


# --- The value error ------------------------------------------------------------------


@pytest.mark.equation("value-clip")
@given(
    st.lists(
        st.tuples(*[st.floats(-5, 5)] * 3, st.floats(0, 2)), min_size=1, max_size=6
    ),
    st.none() | st.floats(0.1, 3.0),
    st.booleans(),
)
def test_value_error_matches_its_definition(rows, clip, weighted: bool) -> None:
    columns = [torch.tensor(x, dtype=torch.float64) for x in zip(*rows, strict=True)]
    # All of them want a gradient, and one gets it.
    new, *others = (x.requires_grad_() for x in columns)
    old, target, weight = others
    data = ppo_value_data(new, old, target, weight if weighted else None)
    loss = ppo_value_error(data, clip)
    total, slopes = 0.0, []
    for v, v_old, g, w in rows:
        share = (w if weighted else 1.0) / len(rows)
        moved = v - v_old if clip is None else min(max(v - v_old, -clip), clip)
        # A tie gives the same error either way; the step has the gradient then.
        held = moved != v - v_old and (g - v_old - moved) ** 2 > (g - v) ** 2
        total += 0.5 * max((g - v) ** 2, (g - v_old - moved) ** 2) * share
        slopes.append(0.0 if held else (v - g) * share)
    assert loss.item() == pytest.approx(total, abs=1e-12)
    loss.backward()
    assert new.grad.tolist() == pytest.approx(slopes, abs=1e-9)
    assert all(x.grad is None for x in others)


@pytest.mark.equation("value-clip")
@pytest.mark.parametrize(
    ("value", "slope"), [(0.5, 0.0), (0.1, -0.9), (-0.5, -1.5), (2.5, 1.5)]
)
def test_value_clip_stops_values_that_moved_towards_the_return(value, slope) -> None:
    new = torch.tensor([value], requires_grad=True)
    data = ppo_value_data(new, torch.zeros(1), torch.ones(1), None)
    ppo_value_error(data, value_clip=0.2).backward()
    assert new.grad.item() == pytest.approx(slope)


def test_value_clip_never_lowers_the_error() -> None:
    g = torch.Generator().manual_seed(0)
    new, old, target = torch.randn(3, 1000, generator=g)
    data = ppo_value_data(new, old, target, torch.rand(1000, generator=g))
    assert ppo_value_error(data, 0.2) > ppo_value_error(data)
    # Nothing is clipped, but the larger of two errors may round another way.
    torch.testing.assert_close(ppo_value_error(data, 1e9), ppo_value_error(data))


# --- The divergence -------------------------------------------------------------------


@pytest.mark.equation("kl-k3")
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=20))
def test_k3_matches_its_definition(log_ratio: list[float]) -> None:
    ell = torch.tensor(log_ratio, dtype=torch.float64)
    expected = np.mean([math.exp(x) - 1 - x for x in log_ratio])
    found = approx_kl_k3(ell, torch.zeros_like(ell)).item()
    assert found == pytest.approx(expected, abs=1e-12)
    # Not below 0; `expm1` may be off by one in its last digit.
    assert found >= -np.finfo(float).eps * max(map(abs, log_ratio))
    new, old = ell.clone().requires_grad_(), torch.zeros_like(ell, requires_grad=True)
    assert not approx_kl_k3(new, old).requires_grad


@pytest.mark.equation("kl-k1")
@pytest.mark.equation("kl-k3")
def test_both_estimates_have_the_divergence_as_their_mean() -> None:
    """Exact expectation: each action weighs as much as the old policy likes it."""
    g = torch.Generator().manual_seed(0)
    old, new = torch.randn(2, 6, generator=g, dtype=torch.float64).log_softmax(1)
    truth = (old.exp() * (old - new)).sum()
    k3 = torch.stack([approx_kl_k3(new[i : i + 1], old[i : i + 1]) for i in range(6)])
    torch.testing.assert_close((old.exp() * k3).sum(), truth)
    adv = torch.ones(1, dtype=torch.float64)
    k1 = sum(
        old[i].exp()
        * policy_error_from_log_prob(new[i : i + 1], old[i : i + 1], adv, adv)[
            1
        ].approx_kl
        for i in range(6)
    )
    torch.testing.assert_close(k1, truth)


# --- Bad input ------------------------------------------------------------------------


def bad_inputs():
    good = make_batch(4, 3, seed=0, weighted=True)
    nan = torch.full((4,), torch.nan, dtype=torch.float64)
    dead = good.logit_old.clone()
    dead[torch.arange(4), good.action] = -torch.inf
    return good, [
        ({"logit_new": [1.0]}, TypeError, r"data.logit_new must be a tensor, got list"),
        (
            {"logit_new": torch.zeros(4)},
            ValueError,
            r"data.logit_new .*\(B, N\).*got \(4,\)",
        ),
        (
            {"logit_new": torch.zeros(0, 3)},
            ValueError,
            r"data.logit_new .*non-empty.*got \(0, 3\)",
        ),
        (
            {"logit_new": torch.zeros(4, 3, dtype=torch.long)},
            TypeError,
            r"data.logit_new must be a float32 or float64 tensor, got torch.int64",
        ),
        (
            {"logit_old": torch.zeros(4, 2)},
            ValueError,
            r"data.logit_old .*N = 3 \(of data.logit_new\), got \(4, 2\)",
        ),
        (
            {"action": torch.zeros(4)},
            TypeError,
            r"data.action must be an int64 tensor, got torch.float",
        ),
        (
            {"action": torch.zeros(4, 1).long()},
            ValueError,
            r"data.action .*B = 4.*, got \(4, 1\)",
        ),
        (
            {"action": torch.tensor([0, 1, 2, 3])},
            ValueError,
            r"data.action must lie in 0\.\.2, got 0\.\.3",
        ),
        (
            {"action": torch.tensor([0, -1, 2, 2])},
            ValueError,
            r"data.action must lie in 0\.\.2, got -1\.\.2",
        ),
        (
            {"adv": torch.zeros(4, 1)},
            ValueError,
            r"data.adv .*B = 4.*, got \(4, 1\)",
        ),
        ({"weight": torch.ones(3)}, ValueError, r"data.weight .*B = 4.*, got \(3,\)"),
        ({"adv": nan}, ValueError, r"^adv must be finite"),
        ({"weight": nan}, ValueError, r"^weight must be finite"),
        (
            {"logit_new": good.logit_new * torch.nan},
            ValueError,
            r"^data.logit_new must be finite",
        ),
        (
            {"logit_old": good.logit_old * torch.inf},
            ValueError,
            r"^data.logit_old must be finite",
        ),
        # An action that was taken away, and yet taken.
        (
            {"logit_old": dead},
            ValueError,
            r"^data.logit_old must be finite",
        ),
    ]


@pytest.mark.parametrize("number", range(len(bad_inputs()[1])))
def test_bad_input_is_named(number: int) -> None:
    good, cases = bad_inputs()
    change, kind, message = cases[number]
    with pytest.raises(kind, match=message):
        ppo_policy_error(good._replace(**change))


@pytest.mark.parametrize("c", [1.0, 0.5, -3.0, math.nan])
def test_dual_clip_must_exceed_one(c: float) -> None:
    with pytest.raises(ValueError, match="dual_clip must be greater than 1, got"):
        ppo_policy_error(make_batch(4, 3, seed=0), dual_clip=c)


@pytest.mark.parametrize("eps", [0.0, -0.2, math.nan])
def test_clip_ratio_must_be_positive(eps: float) -> None:
    with pytest.raises(ValueError, match="clip_ratio must be greater than 0, got"):
        ppo_policy_error(make_batch(4, 3, seed=0), clip_ratio=eps)


def test_continuous_bad_input_is_named() -> None:
    logit = {"mu": torch.zeros(4, 2), "sigma": torch.ones(4, 2)}
    good = ppo_policy_data(logit, logit, torch.zeros(4, 2), torch.ones(4), None)
    cases = [
        (
            {"logit_new": torch.zeros(4, 2)},
            TypeError,
            "data.logit_new must be a tree with the keys .mu., .sigma., got Tensor",
        ),
        (
            {"logit_old": {"mu": torch.zeros(4, 2)}},
            TypeError,
            r"data.logit_old .*got {'mu'}",
        ),
        (
            {"logit_new": logit | {"sigma": torch.zeros(4, 2)}},
            ValueError,
            "^data.logit_new.sigma must be positive and finite, got",
        ),
        (
            {"logit_old": logit | {"sigma": torch.full((4, 2), math.nan)}},
            ValueError,
            "^data.logit_old.sigma must be positive and finite, got",
        ),
        (
            {"logit_old": logit | {"mu": torch.full((4, 2), math.inf)}},
            ValueError,
            "^data.logit_old.mu must be finite",
        ),
        (
            {"logit_new": logit | {"mu": torch.zeros(4)}},
            ValueError,
            r"data.logit_new.mu .*\(B, A\).*got \(4,\)",
        ),
        (
            {"action": torch.full((4, 2), torch.nan)},
            ValueError,
            "^data.action must be finite",
        ),
    ]
    for change, kind, message in cases:
        with pytest.raises(kind, match=message):
            ppo_policy_error_continuous(good._replace(**change))


def test_value_error_bad_input_is_named() -> None:
    good = ppo_value_data(torch.zeros(3), torch.zeros(3), torch.zeros(3), None)
    cases = [
        (
            good._replace(return_=torch.zeros(3, 1)),
            None,
            r"data.return_ .*B = 3 .*, got \(3, 1\)",
        ),
        (good._replace(weight=torch.zeros(2)), None, "data.weight must have shape"),
        (good, 0.0, "value_clip must be greater than 0, got 0.0"),
        (
            good._replace(return_=torch.full((3,), torch.inf)),
            None,
            "^return_ must be finite",
        ),
    ]
    for data, clip, message in cases:
        with pytest.raises(ValueError, match=message):
            ppo_value_error(data, clip)
    with pytest.raises(
        TypeError, match=r"data.value_old must be a tensor .*, got None"
    ):
        ppo_value_error(good._replace(value_old=None), 0.2)


@pytest.mark.parametrize(
    "name", ["log_prob_new", "log_prob_old", "entropy", "adv", "weight"]
)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_named(name: str, bad: float) -> None:
    names = ["log_prob_new", "log_prob_old", "entropy", "adv", "weight"]
    given = dict.fromkeys(names, torch.ones(4))
    policy_error_from_log_prob(**given)
    broken = torch.ones(4)
    broken[2] = bad
    with pytest.raises(ValueError, match=f"^{name} must be finite"):
        policy_error_from_log_prob(**{**given, name: broken})
    if name.startswith("log_prob"):
        pair = {key: given[key] for key in names[:2]}
        with pytest.raises(ValueError, match=f"^{name} must be finite"):
            approx_kl_k3(**{**pair, name: broken})


# --- Signatures -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        clipped_surrogate,
        policy_error_from_log_prob,
        ppo_policy_error,
        approx_kl_k3,
    ],
)
def test_calls_are_held_to_the_signature(function) -> None:
    assert assert_held(function, Random(0)) > 50


def test_calls_of_the_continuous_error_are_held_to_its_signature(monkeypatch) -> None:
    """A signature cannot say that a standard deviation is positive."""
    plain = ppo_error.gaussian

    def positive(name: str, policy: ppo_error.Gaussian, action: Tensor):
        policy = {"mu": policy["mu"], "sigma": policy["sigma"].exp()}
        return plain(name, policy, action)

    monkeypatch.setattr(ppo_error, "gaussian", positive)
    assert assert_held(ppo_policy_error_continuous, Random(0)) > 50


def test_calls_of_the_value_error_are_held_to_its_signature() -> None:
    """Nor can it say that a clip needs the old values."""
    assert assert_held(ppo_value_error, Random(0), value_clip=lambda: None) > 50
    values = torch.zeros(3)
    data = ppo_value_data(values, values, values, None)
    assert assert_held(ppo_value_error, Random(0), data=lambda: data) > 5


def test_double_precision_stays() -> None:
    data = make_batch(4, 3, seed=0, weighted=True)
    loss, _ = ppo_policy_error(data, dual_clip=2.0)
    assert {part.dtype for part in loss} == {torch.float64}
    log_prob, adv = data.adv, data.weight
    assert clipped_surrogate(log_prob, adv, adv, 0.2, 2.0).dtype == torch.float64
    assert approx_kl_k3(log_prob, adv).dtype == torch.float64
    values = ppo_value_data(log_prob, adv, adv, None)
    assert ppo_value_error(values, 0.2).dtype == torch.float64


def test_a_tuple_with_the_same_fields_is_taken() -> None:
    """Both tuples of data will do, and so will those of DI-engine up to 0.5.3."""
    logit = {"mu": torch.zeros(3, 1), "sigma": torch.ones(3, 1)}
    rest = torch.zeros(3, 1), torch.ones(3), None
    losses = [
        ppo_policy_error_continuous(kind(logit, logit, *rest))[0].policy_loss
        for kind in (
            ppo_policy_data,
            ppo_policy_data_continuous,
            namedtuple("ppo_policy_data", ppo_policy_data._fields),
        )
    ]
    assert losses == [-1.0] * 3
    six = namedtuple("ppo_policy_data", [*ppo_policy_data._fields, "logit_pretrained"])
    with pytest.raises(TypeError, match=r"data must be a ppo_policy_data \(logit_new"):
        ppo_policy_error(six(*make_batch(4, 3, seed=0), None))


# --- Errata ---------------------------------------------------------------------------


@pytest.mark.erratum("dual-clip-below-one")
@pytest.mark.parametrize(("c", "kept"), [(3.0, 1.0), (1.0, 0.5), (0.5, 0.0)])
def test_dual_clip_below_one_removes_the_gradient(c: float, kept: float) -> None:
    """The surrogate of a bad action at ratio one, as printed, for three constants."""
    log_prob = torch.zeros(1, requires_grad=True)
    adv = -torch.ones(1)
    torch.max(log_prob.exp() * adv, c * adv).sum().backward()
    assert log_prob.grad.item() == -kept


@pytest.mark.erratum("dual-clip-never-tested")
def test_positive_advantages_never_reach_the_dual_clip() -> None:
    data = make_batch(64, 32, seed=0, spread=2.0)
    data = data._replace(adv=data.adv.abs())
    losses = [ppo_policy_error(data, dual_clip=c)[0].policy_loss for c in (None, 1.1)]
    assert torch.equal(*losses)


@pytest.mark.erratum("dual-clip-all-signs")
def test_dual_clip_on_good_actions_removes_their_gradient() -> None:
    log_prob = torch.zeros(1, requires_grad=True)
    adv = torch.ones(1)
    printed = torch.max(log_prob.exp() * adv, 3.0 * adv)
    (gradient,) = torch.autograd.grad(printed.sum(), log_prob)
    assert gradient.item() == 0.0
    ours = clipped_surrogate(log_prob, torch.zeros(1), adv, dual_clip=3.0)
    (gradient,) = torch.autograd.grad(ours.sum(), log_prob)
    assert gradient.item() == 1.0


@pytest.mark.erratum("old-policy-attached")
def test_attached_old_policy_cancels_the_gradient() -> None:
    g = torch.Generator().manual_seed(0)
    logit = torch.randn(64, 32, generator=g, requires_grad=True)
    old = logit + 0.1 * torch.rand(64, 32, generator=g)
    action = torch.randint(0, 32, (64, 1), generator=g)
    adv = torch.rand(64, 1, generator=g)

    def norm(old: Tensor) -> float:
        ratio = logit.log_softmax(1).gather(1, action) - old.log_softmax(1).gather(
            1, action
        )
        (gradient,) = torch.autograd.grad(-(ratio.exp() * adv).mean(), logit)
        return gradient.norm().item()

    assert norm(old) < norm(old.detach()) / 50
    data = ppo_policy_data(logit, old, action[:, 0], adv[:, 0], None)
    loss, _ = ppo_policy_error(data)
    (gradient,) = torch.autograd.grad(loss.policy_loss, logit)
    assert gradient.norm().item() == pytest.approx(norm(old.detach()), rel=0.3)


@pytest.mark.erratum("entropy-sign")
def test_entropy_is_positive_and_must_be_subtracted() -> None:
    logit = torch.tensor([[1.0, 0.0, -1.0]], requires_grad=True)
    data = ppo_policy_data(logit, logit, torch.zeros(1).long(), torch.zeros(1), None)
    loss, _ = ppo_policy_error(data)
    assert 0 < loss.entropy_loss.item() <= math.log(3)
    (gradient,) = torch.autograd.grad(-loss.entropy_loss, logit)
    after, _ = ppo_policy_error(data._replace(logit_new=(logit - 0.1 * gradient)))
    assert after.entropy_loss > loss.entropy_loss


@pytest.mark.erratum("negative-divergence")
def test_k1_is_often_negative_and_k3_never() -> None:
    g = torch.Generator().manual_seed(0)
    old, new = (0.2 * torch.randn(2, 8, generator=g)).double().log_softmax(1)
    negative = 0
    for _ in range(200):
        action = torch.multinomial(old.exp(), 64, replacement=True, generator=g)
        k1 = (old - new)[action].mean()
        negative += bool(k1 < 0)
        assert approx_kl_k3(new[action], old[action]) >= 0
    assert negative > 20


@pytest.mark.erratum("ratio-overflow")
def test_plain_ratio_overflows_to_a_gradient_of_nan() -> None:
    log_prob = torch.tensor([100.0], requires_grad=True)
    ratio = log_prob.exp()
    loss = -torch.min(ratio, ratio.clamp(0.8, 1.2)).mean()
    (gradient,) = torch.autograd.grad(loss, log_prob)
    assert torch.isfinite(loss)
    assert torch.isnan(gradient).all()


@pytest.mark.erratum("value-clip-unit")
def test_value_clip_of_the_ratio_freezes_large_values() -> None:
    new = torch.tensor([0.3], requires_grad=True)
    data = ppo_value_data(new, torch.zeros(1), torch.tensor([100.0]), None)
    (gradient,) = torch.autograd.grad(ppo_value_error(data, value_clip=0.2), new)
    assert gradient.item() == 0.0


def test_all_names_exist() -> None:
    assert all(hasattr(ppo_error, name) for name in ppo_error.__all__)
