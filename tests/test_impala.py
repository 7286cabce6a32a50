"""IMPALA: the learner on unrolls, and the loop around it."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from literate_rl.data.agents import Rollout, make_envs
from literate_rl.learners.impala import (
    IMPALA,
    IMPALAConfig,
    Unroll,
    VTraceLearner,
    distances,
    to_unroll,
)
from literate_rl.maths.off_policy import (
    check_clips,
    vtrace_data,
    vtrace_error_discrete_action,
)
from literate_rl.nets.policies import make_policy
from literate_rl.runs.runs import fit

BOX, TWO = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)


def vtrace_learner(**changes: Any) -> VTraceLearner:
    torch.manual_seed(0)
    return VTraceLearner(make_policy(BOX, TWO), IMPALAConfig(**changes))


def unroll_of(policy: Any, **changes: Any) -> Unroll:
    """Return what another policy has done in two environments."""
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(5, 2, 3, generator=generator)
    action = torch.randint(2, (4, 2), generator=generator)
    log_prob, _ = policy.evaluate_actions(obs[:-1], action)
    shift, reward = torch.randn(2, 4, 2, generator=generator)
    never = torch.zeros(4, 2, dtype=torch.bool)
    return Unroll(
        obs_plus_1=obs,
        next_obs=obs[1:].clone(),
        action=action,
        log_prob=(log_prob + 0.3 * shift).detach().clamp(max=-0.01),
        reward=reward,
        terminated=never,
        truncated=never,
        weight=torch.ones(4, 2),
    )._replace(**changes)


# --- Settings -------------------------------------------------------------------------


def test_a_bound_above_the_one_that_bounds_it_is_told():
    check_clips.cache_clear()
    with pytest.warns(UserWarning, match="c_clip_ratio is above rho_clip"):
        IMPALAConfig(c_clip_ratio=3.0)


# --- The learner ----------------------------------------------------------------------


def test_an_unroll_is_what_happened_and_how_likely_it_was():
    policy = make_policy(BOX, TWO)
    wanted = unroll_of(policy, weight=torch.eye(4)[:, :2])
    obs, action = wanted.obs_plus_1[:-1], wanted.action
    steps = obs, action, wanted.reward, wanted.next_obs
    flags = wanted.terminated, wanted.truncated, wanted.weight > 0
    found = to_unroll(Rollout(*steps, *flags, *[wanted.reward] * 2), policy)
    log_prob = policy(obs).log_softmax(-1).gather(-1, action.unsqueeze(-1))[..., 0]
    # A step that did not happen weighs nothing.
    wanted = wanted._replace(log_prob=log_prob.detach())
    torch.testing.assert_close(tuple(found), tuple(wanted))


@pytest.mark.equation("impala-loss")
def test_the_loss_is_put_together_by_hand():
    """Two environments; one is truncated in the middle of the unroll."""
    learner = vtrace_learner(value_weight=0.7, entropy_weight=0.3, reward_scale=0.5)
    policy, flags = learner.policy, torch.zeros(2, 4, 2).bool()
    flags[0, 2, 1] = flags[1, 1, 0] = True
    unroll = unroll_of(
        policy, terminated=flags[0], truncated=flags[1], weight=torch.rand(4, 2)
    )
    unroll.next_obs[1] = 0.5
    with torch.no_grad():
        logit, value = policy(unroll.obs_plus_1[:-1]), policy.value(unroll.obs_plus_1)
        next_value = value[1:].clone()
        next_value[1, 0] = policy.value(unroll.next_obs[1, 0])
        # Logits whose log-probabilities are those that the actor wrote down.
        taken, said = (x.unsqueeze(-1) for x in (unroll.action, unroll.log_prob))
        old = (-said.exp()).log1p().expand(4, 2, 2).scatter(-1, taken, said)
        reward = 0.5 * unroll.reward
        data = (logit, old, unroll.action, value, reward, unroll.weight, *flags)
        loss = vtrace_error_discrete_action(vtrace_data(*data, next_value))
    info = learner.learn(unroll)
    expected = loss.policy_loss + 0.7 * loss.value_loss - 0.3 * loss.entropy_loss
    assert info["total_loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert info["value_loss"] == pytest.approx(loss.value_loss.item(), rel=1e-5)


def test_what_is_not_finite_is_named_and_teaches_nothing():
    learner = vtrace_learner()
    before = copy.deepcopy(learner.policy.state_dict())
    wrong = unroll_of(learner.policy, reward=torch.full((4, 2), torch.nan))
    with pytest.raises(ValueError, match="reward"):
        learner.learn(wrong)
    torch.testing.assert_close(learner.policy.state_dict(), before, rtol=0, atol=0)


def test_steps_of_weight_zero_teach_nothing():
    unroll, learner = unroll_of(vtrace_learner().policy), vtrace_learner(priority=True)
    weight = torch.tensor([1.0, 0.0]).expand(4, 2)
    infos = [
        vtrace_learner().learn(unroll._replace(weight=weight, reward=reward))
        for reward in (unroll.reward, unroll.reward * torch.tensor([1.0, 9.0]))
    ]
    assert infos[0] == infos[1]
    # Importance weights do not change how far a value is from its target.
    learner.learn(unroll)
    twin = vtrace_learner(priority=True)
    twin.learn(unroll._replace(weight=torch.tensor([0.3, 1.0]).expand(4, 2)))
    assert learner.priority == pytest.approx(twin.priority)


@pytest.mark.equation("gradient-clips")
@pytest.mark.parametrize(
    "kind", [None, "clip_norm", "clip_value", "clip_momentum_norm"]
)
def test_gradients_are_clipped(kind):
    learner = vtrace_learner(grad_clip_type=kind, clip_value=0.3)
    squares: list[float] = []
    for turn in range(4):
        scale = 10.0 ** (turn % 3 - 3)
        grads = [scale * torch.randn_like(p) for p in learner.parameters]
        for parameter, grad in zip(learner.parameters, grads, strict=True):
            parameter.grad = grad.clone()
        norm = torch.cat([grad.flatten() for grad in grads]).double().norm().item()
        assert learner.clip_gradient() == pytest.approx(norm, rel=1e-5)
        squares.append(norm**2)
        decay = 0.999 ** np.arange(turn, -1, -1)  # this update counts as 1
        usual = np.sqrt((decay * squares).sum() / decay.sum())
        factor = {
            "clip_norm": min(1.0, 0.3 / norm),
            "clip_momentum_norm": min(1.0, 0.3 * usual / norm),
        }.get(kind, 1.0)
        bound = 0.3 if kind == "clip_value" else math.inf
        expected = [(grad * factor).clamp(-bound, bound) for grad in grads]
        found = [p.grad for p in learner.parameters]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-9)
        learner.optimizer.step()


def test_distances_are_means_over_the_steps_that_count():
    value = torch.randn(6, 2, requires_grad=True)
    target, weight = torch.randn(5, 2), torch.rand(5, 2)
    loss = (weight * (value[:-1] - target).square()).mean()
    far = (weight * (value[:-1] - target).abs()).sum(0) / weight.sum(0)
    torch.testing.assert_close(distances(loss, value, weight), far.tolist())


@pytest.mark.parametrize("lacks", ["optimizer", "norms", None])
def test_a_state_that_does_not_fit_changes_nothing(lacks):
    learner = vtrace_learner()
    learner.learn(unroll_of(learner.policy))
    before = copy.deepcopy(learner.state_dict())
    state = learner.state_dict() | {"norms": (1.0, 1.0)}
    if lacks is None:
        state = vtrace_learner(optim="rmsprop").state_dict()
    state.pop(lacks, None)
    with pytest.raises((ValueError, KeyError), match=lacks or "optimiser"):
        learner.load_state_dict(state)
    torch.testing.assert_close(learner.state_dict(), before, rtol=0, atol=0)


# --- The loop -------------------------------------------------------------------------

LOOP = IMPALAConfig(num_envs=4, num_steps=8, batch_size=4, total_steps=256)


def loop(config: IMPALAConfig = LOOP, copies: int | None = None, **more: Any) -> IMPALA:
    config = replace(config, **more)
    torch.manual_seed(config.seed)
    envs = make_envs("CartPole-v1", copies or config.num_envs)
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    return IMPALA(policy, envs, config)


def samples_of(learner: IMPALA) -> list[Unroll]:
    return [Unroll(*entry["sample"]) for entry in learner.memory.entries]


def test_a_batch_is_samples_side_by_side_and_copies_of_their_rollout():
    learner = loop(priority=True, priority_IS_weight=True)
    learner.collect()
    entries = [entry | {"IS": 0.5} for entry in learner.memory.entries]
    batch = learner.batch(entries)
    assert batch.obs_plus_1.shape == (9, 4, 4)
    assert batch.weight.tolist() == [[0.5] * 4] * 8
    for b, sample in enumerate(samples_of(learner)):
        assert torch.equal(batch.next_obs[:, b], sample.next_obs)
        assert sample.weight.tolist() == [1.0] * 8  # the stored one stays
        assert all(x.untyped_storage().nbytes() == x.nbytes for x in sample[:8])


class Witness(VTraceLearner):
    """Notes at each update how far the ratios are from 1."""

    def learn(self, unroll: Unroll) -> dict[str, float]:
        obs = unroll.obs_plus_1[:-1]
        log_prob, _ = self.policy.evaluate_actions(obs, unroll.action)
        self.ratios.append((log_prob - unroll.log_prob).abs().max().item())
        return super().learn(unroll)


@pytest.mark.parametrize("lag", [0, 2])
def test_without_a_lag_all_ratios_are_one_but_for_rounding(lag):
    changes = {"on_policy": True, "update_per_collect": 1, "learning_rate": 1e-2}
    learner = loop(lag=lag, **changes)
    learner.learner.__class__ = Witness
    learner.learner.ratios = []
    fit(learner, progress=False)
    ratios = np.array(learner.learner.ratios)
    assert len(ratios) == 8
    fresh = np.arange(8) % (lag + 1) == 0  # the actor has just got the weights
    assert ratios[fresh].max() < 1e-5
    assert (ratios[~fresh] > 1e-3).all()


@pytest.mark.parametrize("priority", [False, True])
def test_samples_are_preferred_only_if_that_is_asked_for(priority):
    learner = loop(priority=priority)
    assert learner.memory.alpha == (0.6 if priority else 0.0)
    learner.iterate()
    used = {entry["priority"] for entry in learner.memory.entries if entry["use"]}
    assert (len(used) > 1) == priority


def test_another_number_of_environments_is_refused():
    with pytest.raises(ValueError, match="envs must have 4 copies, got 3"):
        loop(copies=3)
