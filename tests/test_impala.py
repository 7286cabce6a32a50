"""IMPALA: the learner on unrolls, and the loop around it."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from fuzz import assert_held
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from learning import assert_for_most_seeds
from torch import Tensor, nn
from worlds import left_alone, moody

from literate_rl.apps.training import train
from literate_rl.data.agents import Rollout, make_envs
from literate_rl.learners.impala import (
    IMPALA,
    SETTINGS,
    IMPALAConfig,
    Unroll,
    VTraceLearner,
    distances,
    impala_settings,
    to_unroll,
)
from literate_rl.maths.off_policy import (
    check_clips,
    vtrace_data,
    vtrace_error_discrete_action,
)
from literate_rl.nets.hybrid_policy import make_hybrid_policy
from literate_rl.nets.parts import ActorCritic, CategoricalActions
from literate_rl.nets.policies import Policy, make_policy
from literate_rl.runs.runs import Run, fit, flat_env, stored_runs

BOX, TWO = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)
BOXES = spaces.Tuple((spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (2,))))
HYBRID = spaces.Tuple((spaces.Discrete(2), BOXES))


def make_learner(config: IMPALAConfig, env: Any = "CartPole-v1") -> IMPALA:
    envs = make_envs(partial(flat_env, env), config.num_envs)
    torch.manual_seed(config.seed)
    return IMPALA(policy_for(envs), envs, config)


def policy_for(envs: SyncVectorEnv) -> Policy:
    actions = envs.single_action_space
    make = make_hybrid_policy if isinstance(actions, spaces.Tuple) else make_policy
    return make(envs.single_observation_space, actions)


def vtrace_learner(**changes: Any) -> VTraceLearner:
    torch.manual_seed(0)
    return VTraceLearner(make_policy(BOX, TWO), IMPALAConfig(**changes))


def unroll_of(policy: Any, steps: int = 4, envs: int = 2, seed: int = 0) -> Unroll:
    """Return what another policy of the same kind has done in random states."""
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randn(steps + 1, envs, 3, generator=generator)
    noise = policy.noise(steps, envs, generator)
    action = policy.act(obs[:-1], noise).detach()
    log_prob, _ = policy.evaluate_actions(obs[:-1], action)
    never = torch.zeros(steps, envs, dtype=torch.bool)
    shift, reward = torch.randn(2, steps, envs, generator=generator)
    return Unroll(
        obs_plus_1=obs,
        next_obs=obs[1:].clone(),
        action=action,
        log_prob=(log_prob + 0.3 * shift).detach(),
        reward=reward,
        terminated=never,
        truncated=never,
        weight=torch.ones(steps, envs),
    )


# --- Settings -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_steps": 0}, "num_steps must be at least 1"),
        ({"lag": -1}, "lag must be at least 0"),
        ({"learning_rate": 0.0}, "learning_rate must be greater than 0"),
        ({"lambda_": 2.0}, "lambda_ must be at least 0 and at most 1"),
        ({"optim": "sgd"}, "optim must be 'adam' or 'rmsprop', got 'sgd'"),
        ({"grad_clip_type": "norm"}, "grad_clip_type must be 'clip_norm'"),
        ({"priority_IS_weight": True}, "priority must be True if priority_IS_weight"),
        ({"batch_size": 2.5}, "batch_size must be an integer, got float"),
        ({"lag": 1.5}, "lag must be an integer, got float"),
        ({"seed": 1.5}, "seed must be an integer, got float"),
        ({"on_policy": "no"}, "on_policy must be a bool, got str"),
    ],
)
def test_illegal_settings_are_named(changes, message) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        IMPALAConfig(**changes)


@pytest.mark.parametrize("changes", [{"c_clip_ratio": 3.0}, {"rho_clip_ratio": 0.3}])
def test_a_bound_of_c_above_that_of_rho_trains_and_warns_once(changes) -> None:
    check_clips.cache_clear()
    small = {"num_envs": 2, "num_steps": 4, "batch_size": 2, "total_steps": 64}
    with pytest.warns(UserWarning, match="c_clip_ratio is above rho_clip") as caught:
        agent = train("IMPALA", "CartPole-v1", progress=False, **small, **changes)
    assert agent.history
    assert sum("c_clip" in str(warning.message) for warning in caught) == 1


def test_the_settings_alone_warn_of_a_bound_of_c_above_that_of_rho() -> None:
    check_clips.cache_clear()
    with pytest.warns(UserWarning, match="c_clip_ratio is above rho_clip"):
        IMPALAConfig(c_clip_ratio=3.0)


def test_every_setting_is_held_to_its_annotation() -> None:
    legal: dict[str, Any] = {
        name: partial(getattr, IMPALAConfig(), name)
        for name in ("priority", "priority_IS_weight")
    }
    assert assert_held(IMPALAConfig, Random(0), **legal) > 100


def test_settings_by_environment_are_legal() -> None:
    for env in (*SETTINGS, "unknown"):
        assert isinstance(impala_settings(env), IMPALAConfig)


# --- From a rollout to an unroll ------------------------------------------------------


def test_an_unroll_is_what_happened_and_how_likely_it_was() -> None:
    policy = make_policy(BOX, TWO)
    obs, next_obs = torch.randn(2, 5, 3, 3)
    reward, flags = torch.randn(5, 3), torch.rand(3, 5, 3) < 0.5
    action = torch.randint(2, (5, 3))
    batch = Rollout(obs, action, reward, next_obs, *flags, reward, reward)
    unroll = to_unroll(batch, policy)
    assert torch.equal(unroll.obs_plus_1, torch.cat([obs, next_obs[-1:]]))
    expected = policy(obs).log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(unroll.log_prob, expected.detach())
    assert not unroll.log_prob.requires_grad
    # A step that did not happen weighs nothing.
    assert torch.equal(unroll.weight, flags[2].float())


# --- The learner ----------------------------------------------------------------------


@pytest.mark.equation("impala-loss")
def test_the_loss_is_put_together_by_hand() -> None:
    """Two environments; one is truncated in the middle of the unroll."""
    learner = vtrace_learner(value_weight=0.7, entropy_weight=0.3, reward_scale=0.5)
    policy = learner.policy
    unroll = unroll_of(policy)
    unroll = unroll._replace(
        next_obs=unroll.next_obs.clone().index_fill_(0, torch.tensor([1]), 0.5),
        truncated=torch.tensor([[0, 0], [1, 0], [0, 0], [0, 0]]).bool(),
        terminated=torch.tensor([[0, 0], [0, 0], [0, 1], [0, 0]]).bool(),
        weight=torch.rand(4, 2),
    )
    with torch.no_grad():
        logit, value = policy(unroll.obs_plus_1[:-1]), policy.value(unroll.obs_plus_1)
        next_value = value[1:].clone()
        next_value[1, 0] = policy.value(unroll.next_obs[1, 0])
        # Logits whose log-probabilities are those that the actor wrote down.
        other = (-unroll.log_prob.exp()).log1p().unsqueeze(-1)
        taken = unroll.action.unsqueeze(-1)
        old = torch.cat([other, other], -1)
        old.scatter_(-1, taken, unroll.log_prob.unsqueeze(-1))
        loss = vtrace_error_discrete_action(
            vtrace_data(
                *(logit, old, unroll.action, value, 0.5 * unroll.reward),
                *(unroll.weight, unroll.terminated, unroll.truncated, next_value),
            )
        )
    info = learner.learn(unroll)
    expected = loss.policy_loss + 0.7 * loss.value_loss - 0.3 * loss.entropy_loss
    assert info["total_loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert info["value_loss"] == pytest.approx(loss.value_loss.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"reward": torch.zeros(4)}, ValueError, r"unroll.reward must have .* \(4,\)"),
        ({"weight": torch.zeros(3, 2)}, ValueError, "unroll.weight .* T = 4"),
        ({"log_prob": None}, TypeError, "unroll.log_prob must be a tensor"),
        (
            {"truncated": torch.zeros(4, 2)},
            TypeError,
            "unroll.truncated must be a bool",
        ),
        ({"log_prob": torch.full((4, 2), torch.nan)}, ValueError, "must be finite"),
    ],
)
def test_what_is_wrong_with_an_unroll_is_named(change, error, message) -> None:
    learner = vtrace_learner()
    unroll = unroll_of(learner.policy)._replace(**change)
    before = weights(learner.policy)
    with pytest.raises(error, match=message):
        learner.learn(unroll)
    assert torch.equal(weights(learner.policy), before)


@pytest.mark.parametrize("actions", [TWO, spaces.Box(-1, 1, (2,)), HYBRID])
def test_every_policy_learns_from_its_log_probabilities(actions: Any) -> None:
    make = make_hybrid_policy if isinstance(actions, spaces.Tuple) else make_policy
    learner = VTraceLearner(make(BOX, actions), IMPALAConfig(learning_rate=1e-2))
    unroll = unroll_of(learner.policy)
    before = weights(learner.policy)
    errors = [learner.learn(unroll)["value_loss"] for _ in range(50)]
    assert errors[-1] < 0.5 * errors[0]
    assert not torch.equal(before, weights(learner.policy))


def test_likelihoods_and_values_of_successors_leave_modes_and_moments_alone() -> None:
    policy = Policy(ActorCritic(moody(3, 2), moody(3, 1)), CategoricalActions(2))
    unroll = unroll_of(make_policy(BOX, TWO))
    unroll = unroll._replace(truncated=torch.ones_like(unroll.truncated))
    rollout = Rollout(
        unroll.obs_plus_1[:-1],
        unroll.action,
        unroll.reward,
        unroll.next_obs,
        *(unroll.terminated, unroll.truncated, unroll.weight.bool()),
        *(unroll.reward, unroll.reward),
    )
    value = torch.zeros(5, 2)
    learner = VTraceLearner(policy, IMPALAConfig())
    with left_alone(policy):
        first, again = (to_unroll(rollout, policy).log_prob for _ in "ab")
        assert torch.equal(first, again)
        first, again = (learner.next_value(value, unroll) for _ in "ab")
        assert torch.equal(first, again)


def test_steps_of_weight_zero_teach_nothing() -> None:
    learner = vtrace_learner(priority=True)
    unroll = unroll_of(learner.policy)
    weight = torch.tensor([1.0, 0.0]).expand(4, 2)
    changed = unroll.reward * torch.tensor([1.0, 9.0])
    infos = [
        vtrace_learner().learn(unroll._replace(weight=weight, reward=reward))
        for reward in (unroll.reward, changed)
    ]
    assert infos[0] == infos[1]
    # Importance weights do not change how far a value is from its target.
    learner.learn(unroll)
    twin = vtrace_learner(priority=True)
    twin.learn(unroll._replace(weight=torch.tensor([0.3, 1.0]).expand(4, 2)))
    assert learner.priority == pytest.approx(twin.priority)


@pytest.mark.equation("gradient-clips")
@pytest.mark.parametrize("optim", ["adam", "rmsprop"])
@pytest.mark.parametrize(
    "kind", [None, "clip_norm", "clip_value", "clip_momentum_norm"]
)
def test_gradients_are_clipped_with_both_optimisers(kind, optim) -> None:
    learner = vtrace_learner(grad_clip_type=kind, clip_value=0.3, optim=optim)
    generator = torch.Generator().manual_seed(0)
    squares: list[float] = []
    for turn in range(4):
        grads = [
            10 ** (turn % 3) * torch.randn(p.shape, generator=generator)
            for p in learner.parameters
        ]
        set_gradient(learner, grads)
        norm = torch.cat([grad.flatten() for grad in grads]).double().norm().item()
        assert learner.clip_gradient() == pytest.approx(norm, rel=1e-5)
        squares.append(norm**2)
        weights = 0.999 ** np.arange(turn, -1, -1)  # this update counts as 1
        usual = np.sqrt((weights * squares).sum() / weights.sum())
        for parameter, grad in zip(learner.parameters, grads, strict=True):
            expected = grad
            if kind == "clip_norm":
                expected = grad * min(1.0, 0.3 / norm)
            elif kind == "clip_value":
                expected = grad.clamp(-0.3, 0.3)
            elif kind == "clip_momentum_norm":
                expected = grad * min(1.0, 0.3 * usual / norm)
            torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-6)
        learner.optimizer.step()


def set_gradient(learner: VTraceLearner, grads: list[Tensor]) -> None:
    for parameter, grad in zip(learner.parameters, grads, strict=True):
        parameter.grad = grad.clone()


def norm_of_gradient(learner: VTraceLearner) -> float:
    return torch.cat([p.grad.flatten() for p in learner.parameters]).norm().item()


@pytest.mark.parametrize(("bound", "share"), [(2.0, 1.0), (0.5, 0.5)])
def test_the_usual_norm_is_that_of_gradients_before_the_clip(bound, share) -> None:
    """A constant gradient keeps its length, or a share of it, and never less."""
    learner = vtrace_learner(grad_clip_type="clip_momentum_norm", clip_value=bound)
    grads = [torch.full_like(p, 0.01) for p in learner.parameters]
    for _ in range(300):
        set_gradient(learner, grads)
        norm = learner.clip_gradient()
        assert norm_of_gradient(learner) == pytest.approx(share * norm, rel=1e-4)
        learner.optimizer.step()
    # One that is a hundred times as long is cut to a few of the usual lengths.
    set_gradient(learner, [100 * grad for grad in grads])
    learner.clip_gradient()
    assert norm_of_gradient(learner) < 10 * bound * norm


def test_the_learning_rate_falls_to_zero_in_a_straight_line() -> None:
    for anneal, rates in ((True, [0.4, 0.3, 0.0, 0.0]), (False, [0.4] * 4)):
        learner = vtrace_learner(learning_rate=0.4, total_steps=100, anneal=anneal)
        for step, rate in zip((0, 25, 100, 120), rates, strict=True):
            learner.anneal(step)
            assert learner.optimizer.param_groups[0]["lr"] == pytest.approx(rate)


def test_distances_are_means_over_the_steps_that_count() -> None:
    torch.manual_seed(0)
    value = torch.randn(6, 2, requires_grad=True)
    target, weight = torch.randn(5, 2), torch.rand(5, 2)
    loss = (weight * (value[:-1] - target).square()).mean()
    far = (weight * (value[:-1] - target).abs()).sum(0) / weight.sum(0)
    torch.testing.assert_close(distances(loss, value, weight), far.tolist())


def test_two_learners_share_no_state() -> None:
    first, second = (
        vtrace_learner(grad_clip_type="clip_momentum_norm") for _ in range(2)
    )
    unroll = unroll_of(first.policy)
    first.learn(unroll)
    state = first.state_dict()
    second.policy.load_state_dict(first.policy.state_dict())
    second.load_state_dict(state)
    ours, theirs = (
        [x for entry in y.optimizer.state.values() for x in entry.values()]
        for y in (first, second)
    )
    assert not {x.data_ptr() for x in ours} & {x.data_ptr() for x in theirs}
    for _ in range(2):  # the second one sees how the first gradient was clipped
        assert first.learn(unroll) == second.learn(unroll)


@pytest.mark.parametrize("kind", ["optimiser", "optimizer", "norms"])
def test_a_state_that_does_not_fit_changes_nothing(kind: str) -> None:
    learner = vtrace_learner()
    learner.learn(unroll_of(learner.policy))
    before = copy.deepcopy(learner.state_dict())
    state = vtrace_learner(optim="rmsprop").state_dict()
    if kind != "optimiser":
        state = learner.state_dict() | {"norms": (1.0, 1.0)}
        del state[kind]
    with pytest.raises((ValueError, KeyError), match=f"{kind[:7]}"):
        learner.load_state_dict(state)
    torch.testing.assert_close(learner.state_dict(), before, rtol=0, atol=0)


# --- The loop -------------------------------------------------------------------------

LOOP = IMPALAConfig(num_envs=4, num_steps=8, batch_size=4, total_steps=256)


def samples_of(learner: IMPALA) -> list[Unroll]:
    return [Unroll(*entry["sample"]) for entry in learner.memory.entries]


def test_a_collection_is_what_happened() -> None:
    env = partial(flat_env, lambda: TimeLimit(gym.make("CartPole-v1"), 5))
    learner = make_learner(replace(LOOP, num_steps=12), env)
    returned = learner.collect().episode_return
    assert returned.nanmean() == 5.0
    assert learner.step == 48
    assert len(samples_of(learner)) == 4
    for sample in samples_of(learner):
        assert sample.truncated.nonzero().flatten().tolist() == [4, 9]
        assert sample.weight.tolist() == [1.0] * 12
        same = (sample.obs_plus_1[1:] == sample.next_obs).all(-1)
        assert same.equal(~sample.truncated)


def test_samples_are_copies_and_keep_no_rollout_alive() -> None:
    learner = make_learner(LOOP)
    learner.collect()
    for x in (x for sample in samples_of(learner) for x in sample[:8]):
        assert x.untyped_storage().nbytes() == x.nbytes


def test_a_batch_is_samples_side_by_side() -> None:
    learner = make_learner(replace(LOOP, priority=True, priority_IS_weight=True))
    learner.collect()
    entries = [entry | {"IS": 0.5} for entry in learner.memory.entries]
    batch = learner.batch(entries)
    assert batch.obs_plus_1.shape == (9, 4, 4)
    assert batch.weight.tolist() == [[0.5] * 4] * 8
    for b, sample in enumerate(samples_of(learner)):
        assert torch.equal(batch.next_obs[:, b], sample.next_obs)
        assert sample.weight.tolist() == [1.0] * 8  # the stored one stays


def test_the_actor_falls_behind_and_catches_up() -> None:
    learner = make_learner(replace(LOOP, lag=2))
    assert learner.actor is not learner.policy
    versions = [weights(learner.policy)]
    for turn in range(7):
        torch.testing.assert_close(weights(learner.actor), versions[turn - turn % 3])
        learner.iterate()
        versions.append(weights(learner.policy))
    assert make_learner(LOOP).actor is not None


def weights(policy: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in policy.parameters()])


class Witness(VTraceLearner):
    """Notes at each update how far the ratios are from 1."""

    def learn(self, unroll: Unroll) -> dict[str, float]:
        obs = unroll.obs_plus_1[:-1]
        log_prob, _ = self.policy.evaluate_actions(obs, unroll.action)
        self.ratios.append((log_prob - unroll.log_prob).abs().max().item())
        return super().learn(unroll)


@pytest.mark.parametrize("lag", [0, 2])
def test_without_a_lag_all_ratios_are_one_but_for_rounding(lag: int) -> None:
    config = replace(LOOP, on_policy=True, update_per_collect=1, lag=lag)
    learner = make_learner(replace(config, learning_rate=1e-2))
    learner.learner.__class__ = Witness
    learner.learner.ratios = []
    fit(learner, progress=False)
    ratios = np.array(learner.learner.ratios)
    assert len(ratios) == 8
    fresh = np.arange(8) % (lag + 1) == 0  # the actor has just got the weights
    assert ratios[fresh].max() < 1e-5
    assert (ratios[~fresh] > 1e-3).all()


def test_stored_runs_without_old_data_coincide() -> None:
    """All ratios were 1 up to rounding, and no rounding made an action another one."""
    one, eight = (stored_runs(f"impala_updates_{n}") for n in (1, 8))
    for name in ("curves", "final", "area"):
        kinds = [getattr(one[kind], name) for kind in ("V-trace", "uncorrected")]
        assert len(kinds[0]) == 10
        np.testing.assert_array_equal(*kinds)
    assert not np.array_equal(eight["V-trace"].curves, eight["uncorrected"].curves)


@pytest.mark.parametrize("changes", [{}, {"lag": 2, "priority": True}])
def test_a_resumed_run_goes_on_to_the_bit(changes, tmp_path) -> None:
    config = replace(LOOP, checkpoint_interval=2, anneal=True, **changes)
    whole = make_learner(config)
    fit(whole, progress=False)
    first = make_learner(config)
    with Run(tmp_path / "run", {}) as run:
        for _ in range(4):
            first.iterate()
        run.save(first)
    second = make_learner(config)
    with Run(tmp_path / "run", resume=True) as run:
        run.restore(second)
        assert second.step == first.step
        fit(second, progress=False)
    assert torch.equal(weights(whole.policy), weights(second.policy))


@pytest.mark.parametrize(("max_use", "updates"), [(1, 4), (2, 4), (2, 5)])
def test_learning_ends_when_all_samples_are_used_up(max_use, updates) -> None:
    learner = make_learner(replace(LOOP, max_use=max_use, update_per_collect=updates))
    for _ in range(4):
        assert math.isfinite(learner.iterate()["losses/total_loss"])
    assert len(learner.memory) == 0


def test_a_stored_state_is_not_the_live_one() -> None:
    learner = make_learner(replace(LOOP, max_use=100))
    learner.iterate()
    state = learner.state_dict()
    used = [entry["use"] for entry in state["memory"]]
    learner.iterate()
    assert [entry["use"] for entry in state["memory"]] == used
    other = make_learner(replace(LOOP, max_use=100, lag=2))
    other.load_state_dict(copy.deepcopy(state))
    expected = torch.cat([x.flatten() for x in state["actor"].values()])
    torch.testing.assert_close(weights(other.actor), expected)
    other.iterate()
    assert [entry["use"] for entry in state["memory"]] == used

    for name in state:
        partial_state = {key: x for key, x in state.items() if key != name}
        with pytest.raises(KeyError, match=name):
            learner.load_state_dict(partial_state)
    assert learner.iteration == 2


def test_priorities_reach_the_buffer() -> None:
    learner = make_learner(replace(LOOP, priority=True, priority_IS_weight=True))
    learner.iterate()
    used = [e["priority"] for e in learner.memory.entries if e["use"]]
    assert len(set(used)) > 1


@pytest.mark.parametrize(("priority", "alpha"), [(False, 0.0), (True, 0.6)])
def test_samples_are_preferred_only_if_that_is_asked_for(
    priority: bool, alpha: float
) -> None:
    assert make_learner(replace(LOOP, priority=priority)).memory.alpha == alpha


@pytest.mark.parametrize("env", ["Pendulum-v1", "literate_rl/Moving-v0"])
def test_any_action_space_trains(env: str) -> None:
    learner = make_learner(replace(LOOP, lag=1), env)
    history = fit(learner, progress=False)
    assert all(math.isfinite(row["losses/total_loss"]) for row in history)


def test_phantom_steps_of_late_resets_weigh_nothing() -> None:
    makers = [lambda: TimeLimit(gym.make("CartPole-v1"), 3)] * 4
    late = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
    learner = IMPALA(policy_for(late), late, LOOP)
    learner.iterate()
    for sample in samples_of(learner):
        assert sample.weight.tolist() == [1, 1, 1, 0, 1, 1, 1, 0]


def test_wrong_environments_and_rewards_are_refused() -> None:
    envs = make_envs("CartPole-v1", 3)
    with pytest.raises(ValueError, match="envs must have 4 copies, got 3"):
        IMPALA(policy_for(envs), envs, LOOP)

    class Broken(gym.Wrapper):
        def step(self, action: Any) -> Any:
            obs, _, *rest = self.env.step(action)
            return obs, math.nan, *rest

    learner = make_learner(LOOP, lambda: Broken(gym.make("CartPole-v1")))
    with pytest.raises(ValueError, match="reward of environment 0 is nan at step 0"):
        learner.iterate()


def test_it_learns_to_balance() -> None:
    def check(seed: int) -> None:
        config = replace(impala_settings("CartPole-v1"), total_steps=10_000, seed=seed)
        history = fit(make_learner(config), progress=False)
        returns = [row["charts/episodic_return"] for row in history]
        assert np.nanmean(returns[-5:]) >= 2 * np.nanmean(returns[:3])

    assert_for_most_seeds(check)
