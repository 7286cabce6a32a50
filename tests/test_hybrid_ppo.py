"""Hybrid PPO: both errors, and training."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hybrid import (
    BAD_ACTIONS,
    BAD_LOGITS,
    MASK,
    action_of,
    assert_same,
    entropy_reference,
    good,
    leaves_of,
    log_prob_reference,
    logit_of,
    quadrature,
    random_logit,
    repeated,
    used,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from learning import assert_for_most_seeds

from literate_rl.apps.cli import main
from literate_rl.data.agents import make_envs, seed_everything
from literate_rl.data.worlds import Moving
from literate_rl.learners.ppo import PPO, ppo_settings
from literate_rl.maths.ppo_error import (
    clipped_surrogate,
    policy_error_from_log_prob,
    ppo_policy_data,
)
from literate_rl.nets import hybrid_ppo
from literate_rl.nets.hybrid_action import (
    HybridDistribution,
    HybridPolicyNetwork,
    sample_hybrid_action,
)
from literate_rl.nets.hybrid_policy import HybridActions, make_hybrid_policy
from literate_rl.nets.hybrid_ppo import (
    ppo_policy_error_hybrid,
    ppo_policy_error_hybrid_per_head,
)
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import fit, load

ERRORS = [ppo_policy_error_hybrid, ppo_policy_error_hybrid_per_head]


# --- The PPO error ------------------------------------------------------------------


def batch_of(seed, batch=40, shift=0.3, weight=True, mask=MASK):
    old = random_logit(batch, mask, seed, grad=True)
    noise = random_logit(batch, mask, seed + 1)
    new = logit_of(
        *(
            (leaf.detach() + shift * step.abs()).requires_grad_()
            for leaf, step in zip(leaves_of(old), leaves_of(noise), strict=True)
        )
    )
    generator = torch.Generator().manual_seed(seed)
    action = sample_hybrid_action(old, generator)
    adv = torch.randn(batch, generator=generator, dtype=torch.float64)
    w = torch.rand(batch, generator=generator, dtype=torch.float64) if weight else None
    return ppo_policy_data(new, old, action, adv, w)


def joint_reference(data, mask, clip_ratio, dual_clip):
    """One ratio for the action, number by number."""
    new, old = (
        log_prob_reference(x, mask, data.action)
        for x in (data.logit_new, data.logit_old)
    )
    weight = torch.ones_like(data.adv) if data.weight is None else data.weight
    total = torch.zeros((), dtype=torch.float64)
    ratios = []
    for b, a in enumerate(data.adv.tolist()):
        ratio = (new[b] - old[b].detach()).exp()
        ratios.append(ratio.item())
        value = torch.min(ratio * a, ratio.clamp(1 - clip_ratio, 1 + clip_ratio) * a)
        if dual_clip is not None and a < 0:
            value = value.clamp(min=dual_clip * a)
        total = total - weight[b] * value / len(data.adv)
    entropy = (entropy_reference(data.logit_new, mask) * weight).mean()
    outside = [abs(ratio - 1) > clip_ratio for ratio in ratios]
    return total, entropy, -np.mean(np.log(ratios)), np.mean(outside)


@pytest.mark.equation("hybrid-ratio")
@given(
    st.integers(0, 2**16),
    st.floats(0.05, 0.5),
    st.none() | st.floats(1.1, 5.0),
    st.booleans(),
)
@settings(max_examples=25)
def test_joint_error_is_the_definition(seed, clip_ratio, dual_clip, weight):
    data = batch_of(seed, batch=12, weight=weight)
    loss, info = ppo_policy_error_hybrid(data, MASK, clip_ratio, dual_clip)
    policy_loss, entropy, kl, clipfrac = joint_reference(
        data, MASK, clip_ratio, dual_clip
    )
    leaves = leaves_of(data.logit_new)
    assert_same(loss.policy_loss[None], policy_loss[None], *leaves)
    assert_same(loss.entropy_loss[None], entropy[None], *leaves)
    assert info.approx_kl == pytest.approx(kl, abs=1e-9)
    assert info.clipfrac == pytest.approx(clipfrac)
    assert isinstance(info.clipfrac, float)
    old_grads = torch.autograd.grad(
        loss.policy_loss, leaves_of(data.logit_old), allow_unused=True
    )
    assert old_grads == (None, None, None)


@pytest.mark.equation("hybrid-per-head")
@given(
    st.integers(0, 2**16),
    st.floats(0.05, 0.5),
    st.none() | st.floats(1.1, 5.0),
    st.booleans(),
)
@settings(max_examples=25)
def test_per_head_error_is_the_sum_of_two(seed, clip_ratio, dual_clip, weight):
    data = batch_of(seed, batch=12, weight=weight)
    loss, info = ppo_policy_error_hybrid_per_head(data, MASK, clip_ratio, dual_clip)
    no_args = torch.zeros_like(MASK)
    new, old = data.logit_new, data.logit_old
    type_new, type_old = (
        log_prob_reference(x, no_args, data.action) for x in (new, old)
    )
    args_new, args_old = (
        log_prob_reference(x, MASK, data.action) - of_type
        for x, of_type in ((new, type_new), (old, type_old))
    )
    terms = [
        clipped_surrogate(*pair, data.adv, clip_ratio, dual_clip)
        for pair in ((type_new, type_old), (args_new, args_old))
    ]
    has_args = torch.tensor([bool(used(MASK, k)) for k in data.action.action_type])
    objective = torch.where(has_args, terms[0] + terms[1], terms[0])
    w = torch.ones_like(data.adv) if data.weight is None else data.weight
    expected = -(objective * w).mean()
    assert_same(loss.policy_loss[None], expected[None], *leaves_of(new))
    entropy = (entropy_reference(new, MASK) * w).mean()
    assert_same(loss.entropy_loss[None], entropy[None], *leaves_of(new))
    joint = ((type_new + args_new) - (type_old + args_old)).mean().item()
    assert info.approx_kl == pytest.approx(-joint, abs=1e-9)
    outside = [
        ((a - b).exp() - 1).abs().gt(clip_ratio).double().mean().item()
        for a, b in ((type_new, type_old), (args_new, args_old))
    ]
    assert info.clipfrac == pytest.approx(max(outside))


@given(st.integers(0, 2**16))
@settings(max_examples=20)
def test_both_errors_have_the_same_gradient_at_ratio_one(seed):
    data = batch_of(seed, shift=0.0)
    losses, grads = [], []
    for function in ERRORS:
        loss, info = function(data, MASK)
        assert info.clipfrac == 0.0
        losses.append(loss.policy_loss.item())
        total = loss.policy_loss - 0.01 * loss.entropy_loss
        grads.append(torch.autograd.grad(total, leaves_of(data.logit_new)))
    for left, right in zip(*grads, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-12)
    has_args = MASK.any(-1)[data.action.action_type]
    value = data.weight * data.adv
    assert losses[0] == pytest.approx(-value.mean().item())
    assert losses[1] == pytest.approx(-(value * (1 + has_args.double())).mean().item())


def test_the_two_errors_clip_different_things():
    """Type ratio 1.3 and argument ratio 0.75: together 0.975, inside of the range."""
    mask = torch.ones(2, 1, dtype=torch.bool)
    old = logit_of(
        torch.zeros(1, 2).double(),
        torch.zeros(1, 1).double(),
        torch.ones(1, 1).double(),
    )
    z = torch.tensor(
        [[math.log(0.65 / 0.35), 0.0]], dtype=torch.float64
    ).requires_grad_()
    shift = math.sqrt(-2 * math.log(0.75))
    mu = torch.tensor([[shift]], dtype=torch.float64).requires_grad_()
    new = logit_of(z, mu, torch.ones(1, 1).double())
    action = action_of([0], torch.zeros(1, 1).double())
    data = ppo_policy_data(new, old, action, torch.ones(1).double(), None)
    joint, info = ppo_policy_error_hybrid(data, mask)
    assert joint.policy_loss.item() == pytest.approx(-0.975)
    assert info.clipfrac == 0.0
    assert torch.autograd.grad(joint.policy_loss, z)[0].abs().sum() > 0.1
    split, info = ppo_policy_error_hybrid_per_head(data, mask)
    assert split.policy_loss.item() == pytest.approx(-(1.2 + 0.75))
    assert info.clipfrac == 1.0
    assert torch.autograd.grad(split.policy_loss, z)[0].abs().sum() == 0.0


@pytest.mark.parametrize("function", ERRORS)
def test_errors_ignore_arguments_that_do_not_count(function):
    data = batch_of(3)
    data_mask = MASK[data.action.action_type]
    filled = data.action.action_args.masked_fill(~data_mask, torch.nan)
    other = data._replace(action=action_of(data.action.action_type, filled))
    results = [function(x, MASK) for x in (data, other)]
    assert results[0][1] == results[1][1]
    for left, right in zip(results[0][0], results[1][0], strict=True):
        assert torch.equal(left, right)
    grads = torch.autograd.grad(sum(results[1][0]), leaves_of(data.logit_new))
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("function", ERRORS)
def test_errors_take_impossible_types(function):
    data = batch_of(5, batch=8)
    k = data.action.action_type
    impossible = torch.nn.functional.one_hot((k + 1) % 3, 3).bool()
    trees = [
        logit_of(x.action_type.masked_fill(impossible, -torch.inf), *leaves_of(x)[1:])
        for x in (data.logit_new, data.logit_old)
    ]
    data = data._replace(logit_new=trees[0], logit_old=trees[1])
    loss, _ = function(data, MASK)
    (loss.policy_loss - loss.entropy_loss).backward()
    assert torch.isfinite(loss.policy_loss)


@pytest.mark.parametrize("function", ERRORS)
def test_errors_name_the_field(function):
    data = batch_of(1, batch=6)

    def with_nan(tensor, *index):
        result = tensor.clone()
        result[index] = torch.nan
        return result

    k = data.action.action_type
    counts = MASK[k].nonzero()[0].tolist()
    args = with_nan(data.action.action_args, *counts)
    for change, message in (
        ({"adv": with_nan(data.adv, 2)}, r"adv must be finite"),
        ({"weight": with_nan(data.weight, 3)}, "weight must be finite"),
        ({"action": action_of(k, args)}, "action_args must be finite"),
        ({"adv": data.adv[:, None]}, r"adv must .*B = 6.*got \(6, 1\)"),
        ({"weight": data.weight[:5]}, r"weight must .*B = 6.*got \(5,\)"),
        ({"logit_old": data.logit_old[:5]}, r"logit_old.*B = 6.*got \(5, 3\)"),
    ):
        with pytest.raises(ValueError, match=message):
            function(data._replace(**change), MASK)
    for clip in ({"dual_clip": 1.0}, {"dual_clip": math.nan}, {"clip_ratio": 0.0}):
        with pytest.raises(ValueError, match=next(iter(clip))):
            function(data, MASK, **clip)


def test_policy_improves_with_the_error():
    """A bandit whose best answer is type 2 with arguments near (1, ., -1, .)."""
    torch.manual_seed(0)
    network = HybridPolicyNetwork(2, {"action_type_shape": 3, "action_args_shape": 4})
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    state = torch.ones(256, 2)
    wanted = torch.tensor([1.0, -1.0])
    history = []
    for _ in range(60):
        with torch.no_grad():
            old = network(state)
            action = HybridDistribution(old, MASK).sample()
        miss = (action.action_args[:, [0, 2]] - wanted).square().sum(-1)
        reward = torch.where(action.action_type == 2, 2.0 - miss, 0.0)
        history.append(reward.mean().item())
        adv = reward - reward.mean()
        for _ in range(3):
            data = ppo_policy_data(network(state), old, action, adv, None)
            loss, _ = ppo_policy_error_hybrid(data, MASK)
            optimiser.zero_grad()
            loss.policy_loss.backward()
            optimiser.step()
    assert np.mean(history[-5:]) > np.mean(history[:5]) + 0.8


@pytest.mark.equation("hybrid-ratio")
@pytest.mark.parametrize("seed", range(3))
def test_expected_ratio_is_one(seed):
    """Importance weights of any policy have mean one under the old policy."""
    old = random_logit(1, MASK, seed)
    new = random_logit(1, MASK, seed)
    new.action_type += torch.tensor([[0.3, -0.2, 0.1]])
    new.action_args.mu += 0.2
    new.action_args.sigma *= 0.9
    action, weight = quadrature(old, MASK)
    log_probs = [
        HybridDistribution(repeated(tree, len(weight)), MASK).log_prob(action)
        for tree in (new, old)
    ]
    ratio = (log_probs[0] - log_probs[1]).exp()
    assert (ratio * weight).sum().item() == pytest.approx(1.0, abs=1e-7)
    assert ratio.std() > 0.1  # it is not one everywhere
    # The error reports the same thing: the mean of -log ratio, weighted by hand.
    batch = len(weight)
    adv = torch.ones(batch, dtype=torch.float64)
    new, old = repeated(new, batch), repeated(old, batch)
    data = ppo_policy_data(new, old, action, adv, None)
    _, info = ppo_policy_error_hybrid(data, MASK)
    assert info.approx_kl == pytest.approx(-ratio.log().mean().item())


@pytest.mark.parametrize(("logit", "error", "message"), BAD_LOGITS)
@pytest.mark.parametrize("function", ERRORS)
def test_errors_name_bad_logits(function, logit, error, message):
    action, adv = action_of([0, 1], torch.zeros(2, 4)), torch.ones(2)
    for name in ("logit_new", "logit_old"):
        trees = {"logit_new": good(), "logit_old": good(), name: logit}
        data = ppo_policy_data(**trees, action=action, adv=adv, weight=None)
        with pytest.raises(error, match=message):
            function(data, MASK)


@pytest.mark.parametrize("function", ERRORS)
def test_errors_name_the_policy_that_is_to_blame(function):
    action, adv = action_of([0, 1], torch.zeros(2, 4)), torch.ones(2)
    for name in ("logit_new", "logit_old"):
        trees = {"logit_new": good(), "logit_old": good()}
        trees[name]["action_args"]["mu"][1, 2] = torch.nan
        data = ppo_policy_data(**trees, action=action, adv=adv, weight=None)
        with pytest.raises(ValueError, match=rf"data\.{name}\.action_args\.mu"):
            function(data, MASK)


@pytest.mark.parametrize(("action", "error", "message"), BAD_ACTIONS)
@pytest.mark.parametrize("function", ERRORS)
def test_errors_name_bad_actions(function, action, error, message):
    data = ppo_policy_data(good(), good(), action, torch.ones(2), None)
    with pytest.raises(error, match=message):
        function(data, MASK)


def test_the_error_of_rows_is_that_of_trees():
    torch.manual_seed(0)
    space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (4,))))
    policy = make_hybrid_policy(spaces.Box(-1.0, 1.0, (6,)), space, MASK).double()
    torch.nn.init.normal_(policy.network.actor.network.action_args_log_sigma, std=0.5)
    obs = torch.randn(64, 6).double()
    old = policy(obs).detach()
    action = policy.act(obs, policy.noise(1, 64, torch.Generator().manual_seed(0))[0])
    action = action.detach()
    old_log_prob, _ = policy.actions.evaluate(old, action)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    adv, new = torch.randn(64).double(), policy(obs)
    log_prob, entropy = policy.actions.evaluate(new, action)
    clips = 0.1, 3.0
    loss, info = policy_error_from_log_prob(
        log_prob, old_log_prob, entropy, adv, None, *clips
    )
    split = [3, 4, 4]
    trees = ppo_policy_data(
        logit_of(*new.split(split, 1)),
        logit_of(*old.split(split, 1)),
        action_of(action[:, 0].long(), action[:, 1:]),
        adv,
        None,
    )
    expected_loss, expected_info = ppo_policy_error_hybrid(trees, MASK, *clips)
    torch.testing.assert_close(tuple(loss), tuple(expected_loss))
    assert info == pytest.approx(expected_info)


# --- Training ------------------------------------------------------------------------


def moving_learner(**changes):
    config = replace(ppo_settings("literate_rl/Moving-v0"), **changes)
    seed_everything(config.seed)
    envs = make_envs("literate_rl/Moving-v0", config.num_envs)
    policy = make_hybrid_policy(
        envs.single_observation_space,
        envs.single_action_space,
        normalize=config.normalize_obs,
    )
    return PPO(policy, envs, config)


@pytest.mark.parametrize("normalize", [False, True])
def test_an_iteration_of_ppo(normalize):
    learner = moving_learner(normalize_obs=normalize)
    before = [parameter.clone() for parameter in learner.policy.parameters()]
    metrics = learner.iterate()
    assert learner.step == 2048
    losses = {key: value for key, value in metrics.items() if key.startswith("losses")}
    assert all(map(math.isfinite, losses.values()))
    pairs = zip(before, learner.policy.parameters(), strict=True)
    assert all(not torch.equal(one, other) for one, other in pairs)


def test_hybrid_ppo_learns_moving():
    """Who comes near the target, and never stops there, earns less than 1."""
    small = {"total_steps": 30_000, "num_envs": 16, "num_steps": 32}

    def check(seed):
        learner = moving_learner(seed=seed, **small)
        fit(learner, progress=False)
        returns = evaluate(learner.policy, "literate_rl/Moving-v0", 100, seed=1)
        assert returns.mean() >= 1.2

    assert_for_most_seeds(check)


def test_the_command_line_trains_a_hybrid_policy(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = ["--num-envs=2", "--num-steps=32", "--total-steps=64", "--num-epochs=1"]
    main(["ppo", "--env", "literate_rl/Moving-v0", "--name", "moving", *small])
    assert "return of 20 episodes" in capsys.readouterr().out
    policy = load(tmp_path / "runs" / "moving")
    assert isinstance(policy.actions, HybridActions)
    assert evaluate(policy, "literate_rl/Moving-v0", 2).shape == (2,)


class Odd(Moving):
    """Moving with an action space that nothing here can act in."""

    def __init__(self, space, **arguments):
        super().__init__(**arguments)
        self.action_space = space


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Text(3), "must be Discrete, MultiDiscrete, MultiBinary or a Box"),
        (
            spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (2,)))),
            r"unless action_space is Tuple\(Discrete\(K\), Tuple\(K Boxes\)\)",
        ),
    ],
)
def test_the_command_line_names_the_spaces_that_work(
    space, words, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(
        gym.registry,
        "Odd-v0",
        gym.envs.registration.EnvSpec("Odd-v0", partial(Odd, space)),
    )
    with pytest.raises(SystemExit, match=words):
        main(["ppo", "--env", "Odd-v0"])


def test_public_names_are_documented():
    for name in hybrid_ppo.__all__:
        assert getattr(hybrid_ppo, name).__doc__, name
