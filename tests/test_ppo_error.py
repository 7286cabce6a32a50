"""The PPO error against slow float64 references, gradients included."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from extremes import assert_gradients_are_finite
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from literate_rl.maths.ppo_error import (
    approx_kl_k3,
    clipped_surrogate,
    policy_error_from_log_prob,
    ppo_policy_data,
    ppo_policy_error,
    ppo_policy_error_continuous,
    ppo_value_data,
    ppo_value_error,
)

likelihoods = st.floats(0.05, 20.0)
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


def policy_reference(data: ppo_policy_data, c: float | None) -> list[Any]:
    """Losses and numbers to watch, with loops over samples and actions."""
    rows = []
    for b, action in enumerate(data.action):
        log_probs = []
        for logit in data[:2]:
            row = logit[b].tolist()
            total = math.log(sum(math.exp(z - max(row)) for z in row)) + max(row)
            log_probs.append([z - total for z in row])
        w = 1.0 if data.weight is None else data.weight[b].item()
        log_ratio = log_probs[0][action] - log_probs[1][action]
        ratio = math.exp(log_ratio)
        objective = surrogate_reference(ratio, data.adv[b].item(), 0.2, c)
        entropy = -sum(math.exp(p) * p for p in log_probs[0])
        outside = abs(ratio - 1) > 0.2
        rows.append([-w * objective, w * entropy, -log_ratio, outside])
    return np.mean(rows, 0).tolist()


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


def slope_of(loss: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(loss.sum(), x)[0]


# --- The surrogate --------------------------------------------------------------------


@pytest.mark.equation("ratio")
@pytest.mark.equation("clipped-surrogate")
@pytest.mark.equation("dual-clip")
@given(likelihoods, likelihoods, st.floats(-5.0, 5.0), st.floats(0.01, 0.9), dual_clips)
def test_surrogate_matches_its_definition(new, old, adv, eps, c):
    columns = [torch.tensor([x], dtype=torch.float64) for x in (new, old, adv)]
    log_prob, ratio = columns[0].log().requires_grad_(), new / old
    objective = clipped_surrogate(log_prob, columns[1].log(), columns[2], eps, c)
    assert objective.item() == pytest.approx(surrogate_reference(ratio, adv, eps, c))
    edges = [1 - eps, 1 + eps, *([] if c is None else [c])]
    if min(abs(ratio - edge) for edge in edges) > 1e-9:
        expected = slope_reference(ratio, adv, eps, c)
        found = slope_of(objective, log_prob).item()
        assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.erratum("ratio-overflow")
@pytest.mark.parametrize("log_ratio", [1e4, -1e4, 100.0, torch.inf, -torch.inf])
@pytest.mark.parametrize("adv", [-1.0, 0.0, 1.0])
def test_extreme_ratios_stay_finite_and_plain_ones_do_not(log_ratio, adv):
    log_prob = torch.tensor([log_ratio], requires_grad=True)
    objective = clipped_surrogate(log_prob, torch.zeros(1), torch.tensor([adv]))
    assert torch.isfinite(objective).all()
    assert slope_of(objective, log_prob).item() == 0.0
    ratio = log_prob.exp()
    if ratio == torch.inf and adv == 1:
        plain = torch.min(ratio, ratio.clamp(0.8, 1.2))
        assert plain.isfinite()
        assert slope_of(plain, log_prob).isnan()


# --- The policy error -----------------------------------------------------------------


@pytest.mark.equation("policy-loss")
@pytest.mark.equation("entropy-bonus")
@pytest.mark.equation("kl-k1")
@pytest.mark.equation("clip-fraction")
@given(
    st.integers(1, 6), st.integers(1, 5), st.integers(0, 999), st.booleans(), dual_clips
)
def test_policy_error_matches_loops(batch, actions, seed, weighted, c):
    data = make_batch(batch, actions, seed, weighted)
    loss, info = ppo_policy_error(data, dual_clip=c)
    found = [*(x.item() for x in loss), *info]
    assert found == pytest.approx(policy_reference(data, c), rel=1e-9, abs=1e-12)


def test_gradient_matches_central_differences():
    data = make_batch(5, 4, seed=3, weighted=True, spread=1.0)

    def losses(logit):
        return ppo_policy_error(data._replace(logit_new=logit), 0.2, 2.0)[0]

    assert torch.autograd.gradcheck(losses, data.logit_new)


def test_only_the_new_logits_get_gradient():
    data = make_batch(8, 4, seed=1, weighted=True)
    for x in (data.logit_old, data.adv, data.weight):
        x.requires_grad_()
    loss, _ = ppo_policy_error(data, dual_clip=2.0)
    sum(loss).backward()
    assert data.logit_new.grad is not None
    assert all(x.grad is None for x in (data.logit_old, data.adv, data.weight))


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 999), dual_clips)
def test_continuous_error_is_that_of_the_densities_of_whole_actions(
    batch, dims, seed, c
):
    g = torch.Generator().manual_seed(seed)
    draws = torch.randn(5, batch, dims, generator=g, dtype=torch.float64)
    mu, sigma, action, adv = draws[0], draws[1].exp(), draws[3], draws[4, :, 0]
    new = {"mu": mu, "sigma": sigma}
    old = {"mu": mu + 0.1 * draws[2], "sigma": sigma * 1.1}
    half = 0.5 * math.log(2 * math.pi)

    def log_prob(mu, sigma):
        return -(((action - mu) / sigma) ** 2 / 2 + sigma.log() + half).sum(1)

    data = ppo_policy_data(new, old, action, adv, None)
    entropy = (0.5 + half + sigma.log()).sum(1)
    wanted = policy_error_from_log_prob(
        log_prob(**new), log_prob(**old), entropy, adv, dual_clip=c
    )
    found = ppo_policy_error_continuous(data, dual_clip=c)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(tuple(ours), tuple(theirs))


def test_a_finite_loss_has_a_finite_gradient_at_all_deviations():
    def loss_of(mu, sigma, action):
        new = {"mu": mu.expand(2, 1), "sigma": sigma.expand(2, 1)}
        old = {name: x.detach() for name, x in new.items()}
        actions = torch.full((2, 1), action)
        data = ppo_policy_data(new, old, actions, torch.tensor([1.0, 2.0]), None)
        return ppo_policy_error_continuous(data)[0]

    assert_gradients_are_finite(loss_of)


# --- The value error and the divergence -----------------------------------------------


@pytest.mark.equation("value-clip")
@given(
    st.lists(
        st.tuples(*[st.floats(-5, 5)] * 3, st.floats(0, 2)), min_size=1, max_size=6
    ),
    st.none() | st.floats(0.1, 3.0),
    st.booleans(),
)
def test_value_error_matches_its_definition(rows, clip, weighted):
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


@pytest.mark.equation("kl-k3")
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=20))
def test_k3_matches_its_definition(log_ratio):
    new = torch.tensor(log_ratio, dtype=torch.float64, requires_grad=True)
    old = torch.zeros_like(new, requires_grad=True)
    found = approx_kl_k3(new, old)
    expected = np.mean([math.exp(x) - 1 - x for x in log_ratio])
    assert found.item() == pytest.approx(expected, abs=1e-12)
    assert not found.requires_grad


# --- What no signature says -----------------------------------------------------------


def test_what_no_batch_may_hold_is_named():
    zero, good = torch.zeros(3), make_batch(3, 3, seed=0)
    with pytest.raises(TypeError, match="value_old"):
        ppo_value_error(ppo_value_data(zero, None, zero, None), 0.2)
    # An action that was taken away, and yet taken.
    gone = good.logit_old.scatter(1, good.action.unsqueeze(1), -math.inf)
    with pytest.raises(ValueError, match="logit_old"):
        ppo_policy_error(good._replace(logit_old=gone))
    row = {"mu": torch.zeros(3, 2), "sigma": torch.zeros(3, 2)}
    with pytest.raises(ValueError, match=r"logit_new\.sigma"):
        ppo_policy_error_continuous(ppo_policy_data(row, row, row["mu"], zero, None))


# --- Errata ---------------------------------------------------------------------------


@pytest.mark.erratum("dual-clip-below-one")
@pytest.mark.erratum("dual-clip-all-signs")
@pytest.mark.parametrize(
    ("adv", "c", "kept"), [(-1.0, 3.0, -1.0), (-1.0, 0.5, 0.0), (1.0, 3.0, 0.0)]
)
def test_a_dual_clip_where_it_does_not_belong_removes_the_gradient(adv, c, kept):
    """The surrogate at ratio one, as printed; ours always has the whole gradient."""
    log_prob, adv = torch.zeros(1, requires_grad=True), torch.tensor([adv])
    assert slope_of(torch.max(log_prob.exp() * adv, c * adv), log_prob).item() == kept
    ours = clipped_surrogate(log_prob, torch.zeros(1), adv, dual_clip=3.0)
    assert slope_of(ours, log_prob) == adv


@pytest.mark.erratum("dual-clip-never-tested")
def test_positive_advantages_never_reach_the_dual_clip():
    data = make_batch(64, 32, seed=0, spread=2.0)
    data = data._replace(adv=data.adv.abs())
    losses = [ppo_policy_error(data, dual_clip=c)[0].policy_loss for c in (None, 1.1)]
    assert torch.equal(*losses)


@pytest.mark.erratum("old-policy-attached")
def test_attached_old_policy_cancels_the_gradient():
    g = torch.Generator().manual_seed(0)
    logit = torch.randn(64, 32, generator=g, requires_grad=True)
    old = logit + 0.1 * torch.rand(64, 32, generator=g)
    action = torch.randint(0, 32, (64, 1), generator=g)
    adv = torch.rand(64, 1, generator=g)

    def norm(old):
        new, before = (x.log_softmax(1).gather(1, action) for x in (logit, old))
        return slope_of(-(new - before).exp() * adv / 64, logit).norm().item()

    assert norm(old) < norm(old.detach()) / 50
    data = ppo_policy_data(logit, old, action[:, 0], adv[:, 0], None)
    ours = slope_of(ppo_policy_error(data)[0].policy_loss, logit).norm().item()
    assert ours == pytest.approx(norm(old.detach()), rel=0.3)


@pytest.mark.erratum("entropy-sign")
def test_entropy_is_positive_and_must_be_subtracted():
    logit = torch.tensor([[1.0, 0.0, -1.0]], requires_grad=True)
    data = ppo_policy_data(logit, logit, torch.zeros(1).long(), torch.zeros(1), None)
    entropy = ppo_policy_error(data)[0].entropy_loss
    assert 0 < entropy.item() <= math.log(3)
    moved = data._replace(logit_new=logit + 0.1 * slope_of(entropy, logit))
    assert ppo_policy_error(moved)[0].entropy_loss > entropy


@pytest.mark.erratum("negative-divergence")
def test_k1_is_often_negative_and_k3_never():
    g = torch.Generator().manual_seed(0)
    old, new = (0.2 * torch.randn(2, 8, generator=g)).double().log_softmax(1)
    negative = 0
    for _ in range(200):
        action = torch.multinomial(old.exp(), 64, replacement=True, generator=g)
        negative += bool((old - new)[action].mean() < 0)
        assert approx_kl_k3(new[action], old[action]) >= 0
    assert negative > 20


@pytest.mark.erratum("value-clip-unit")
def test_value_clip_of_the_ratio_freezes_large_values():
    new = torch.tensor([0.3], requires_grad=True)
    data = ppo_value_data(new, torch.zeros(1), torch.tensor([100.0]), None)
    assert slope_of(ppo_value_error(data, value_clip=0.2), new).item() == 0.0
