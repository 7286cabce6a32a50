"""Hybrid PPO: both errors against their definitions."""

from __future__ import annotations

import pytest
import torch
from hybrid import (
    MASK,
    action_of,
    assert_same,
    entropy_reference,
    leaves_of,
    log_prob_reference,
    logit_of,
    random_logit,
    used,
)

from literate_rl.maths.ppo_error import ppo_policy_data
from literate_rl.nets.hybrid_action import sample_hybrid_action
from literate_rl.nets.hybrid_ppo import (
    ppo_policy_error_hybrid,
    ppo_policy_error_hybrid_per_head,
)

ERRORS = [ppo_policy_error_hybrid, ppo_policy_error_hybrid_per_head]


# --- The PPO error ------------------------------------------------------------------


def batch_of(seed, batch=12, weight=True):
    old = random_logit(batch, MASK, seed, grad=True)
    noise = random_logit(batch, MASK, seed + 1)
    pairs = zip(leaves_of(old), leaves_of(noise), strict=True)
    new = [(x.detach() + 0.3 * step.abs()).requires_grad_() for x, step in pairs]
    generator = torch.Generator().manual_seed(seed)
    action = sample_hybrid_action(old, generator)
    adv, w = torch.randn(2, batch, generator=generator, dtype=torch.float64)
    return ppo_policy_data(
        logit_of(*new), old, action, adv, w.abs() if weight else None
    )


def clipped_reference(new, old, data, counts, clip_ratio, dual_clip):
    """Return a clipped objective, number by number, and what is told of it."""
    weight = torch.ones_like(data.adv) if data.weight is None else data.weight
    total, ratios = torch.zeros((), dtype=torch.float64), (new - old.detach()).exp()
    for ratio, a, w, c in zip(ratios, data.adv.tolist(), weight, counts, strict=True):
        value = torch.min(ratio * a, ratio.clamp(1 - clip_ratio, 1 + clip_ratio) * a)
        if dual_clip is not None and a < 0:
            value = value.clamp(min=dual_clip * a)
        total = total - c * w * value / len(ratios)
    entropy = (entropy_reference(data.logit_new, MASK) * weight).mean()
    outside = (ratios - 1).abs().gt(clip_ratio).double().mean().item()
    return total, entropy, -ratios.log().mean().item(), outside


@pytest.mark.equation("hybrid-ratio")
@pytest.mark.equation("hybrid-per-head")
@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("clip_ratio", [0.05, 0.3])
@pytest.mark.parametrize("dual_clip", [None, 1.1, 3.0])
def test_both_errors_are_their_definitions(clip_ratio, dual_clip, weight):
    """One ratio for the action, or one for its type and one for its arguments."""
    data, clips = batch_of(7, 40, weight), (clip_ratio, dual_clip)
    both = data.logit_new, data.logit_old
    joint = [log_prob_reference(x, MASK, data.action) for x in both]
    none = torch.zeros_like(MASK)
    kinds = [log_prob_reference(x, none, data.action) for x in both]
    args = [x - kind for x, kind in zip(joint, kinds, strict=True)]
    ones = [1.0] * len(data.adv)
    has_args = [float(bool(used(MASK, k))) for k in data.action.action_type]
    whole = clipped_reference(*joint, data, ones, *clips)
    kind = clipped_reference(*kinds, data, ones, *clips)
    rest = clipped_reference(*args, data, has_args, *clips)
    parts = kind[0] + rest[0], kind[1], kind[2] + rest[2], max(kind[3], rest[3])
    leaves = leaves_of(data.logit_new)
    for function, expected in zip(ERRORS, (whole, parts), strict=True):
        loss, info = function(data, MASK, *clips)
        assert_same(loss.policy_loss[None], expected[0][None], *leaves)
        assert_same(loss.entropy_loss[None], expected[1][None], *leaves)
        assert tuple(info) == pytest.approx(expected[2:], abs=1e-9)
        olds = leaves_of(data.logit_old)
        grads = torch.autograd.grad(loss.policy_loss, olds, allow_unused=True)
        assert grads == (None, None, None)


@pytest.mark.parametrize("function", ERRORS)
def test_errors_ignore_arguments_that_do_not_count(function):
    """Nor do types that are impossible."""
    data = batch_of(3)
    k, args = data.action.action_type, data.action.action_args
    impossible = torch.nn.functional.one_hot((k + 1) % 3, 3).bool()
    trees = [
        logit_of(x.action_type.masked_fill(impossible, -torch.inf), *leaves_of(x)[1:])
        for x in (data.logit_new, data.logit_old)
    ]
    filled = action_of(k, args.masked_fill(~MASK[k], torch.nan))
    data = data._replace(logit_new=trees[0], logit_old=trees[1])
    results = [function(x, MASK) for x in (data, data._replace(action=filled))]
    assert results[0] == results[1]
    grads = torch.autograd.grad(sum(results[1][0]), leaves_of(trees[0]))
    assert all(grad.isfinite().all() for grad in grads)
