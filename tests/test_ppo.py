"""The PPO learner against slow references, and its promises about runs."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from learning import assert_for_most_seeds

from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.data.agents import make_envs, seed_everything
from literate_rl.learners.ppo import PPO, PPOConfig, ppo_settings
from literate_rl.maths.advantages import lambda_returns
from literate_rl.maths.ppo_error import policy_error_from_log_prob
from literate_rl.nets.policies import make_policy
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import fit, flat_env

SMALL = PPOConfig(total_steps=256, num_envs=2, num_steps=32, num_epochs=2)


def learner_of(
    envs: Any = "CartPole-v1", config: PPOConfig = SMALL, **more: Any
) -> PPO:
    seed_everything(config.seed)
    if not isinstance(envs, SyncVectorEnv):
        envs = make_envs(partial(flat_env, envs), config.num_envs)
    spaces = envs.single_observation_space, envs.single_action_space
    return PPO(
        make_policy(*spaces, normalize=config.normalize_obs), envs, config, **more
    )


class Watched:
    """Is the loss of PPO, and keeps what it was asked."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def __call__(self, *columns: Any) -> Any:
        self.seen.append(columns)
        return policy_error_from_log_prob(*columns)


def cut_off(limit: int) -> gym.Env[Any, Any]:
    return TimeLimit(gym.make("CartPole-v1").unwrapped, limit)


# --- Settings -------------------------------------------------------------------------


def test_a_minibatch_needs_two_advantages_to_normalise():
    small = partial(PPOConfig, num_envs=1, num_steps=4, num_minibatches=4)
    assert small(normalize_advantage=False).num_minibatches == 4
    for bad in (small, partial(small, num_steps=1)):
        with pytest.raises(ValueError, match="must be at"):
            bad()


@pytest.mark.parametrize("asked", [{"num_envs": 4}, {"normalize_obs": True}])
def test_a_policy_and_environments_that_do_not_fit_are_named(asked):
    learner, (name,) = learner_of(), asked
    with pytest.raises(ValueError, match=name.removeprefix("num_")):
        PPO(learner.policy, learner.collector.envs, replace(SMALL, **asked))


# --- One iteration --------------------------------------------------------------------


@pytest.mark.parametrize(("parts", "sizes"), [(1, [54]), (20, [3] * 14 + [2] * 6)])
def test_phantom_rows_teach_nothing_and_the_rest_is_dealt_out_evenly(parts, sizes):
    makers, spy = [partial(cut_off, 5)] * 2, Watched()
    envs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
    config = replace(SMALL, num_minibatches=parts, num_epochs=1)
    learner_of(envs, config, policy_error=spy).iterate()
    # Rows 6, 12, 18, 24 and 30 of 32 are phantoms.
    assert [len(columns[0]) for columns in spy.seen] == sizes


@pytest.mark.equation("advantage-normalised")
def test_each_minibatch_gets_advantages_of_mean_zero_and_standard_deviation_one():
    spy = Watched()
    learner_of(policy_error=spy).iterate()
    assert len(spy.seen) == SMALL.num_epochs * SMALL.num_minibatches
    for _, _, _, adv, *_ in spy.seen:
        assert adv.mean().abs() < 1e-5
        assert adv.std(correction=0) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.equation("annealing")
@pytest.mark.parametrize(
    ("anneal", "left"), [(True, [4, 3, 2, 1, 0, 0]), (False, [4] * 6)]
)
def test_the_learning_rate_falls_in_a_straight_line_and_not_below_zero(anneal, left):
    learner = learner_of(config=replace(SMALL, learning_rate=4e-3, anneal=anneal))
    rates = [learner.iterate()["charts/learning_rate"] for _ in range(6)]
    np.testing.assert_allclose(rates, np.array(left) * 1e-3)


def test_the_first_ratios_of_an_iteration_are_one():
    config = replace(SMALL, normalize_obs=True, scale_reward=True)
    spy = Watched()
    learner = learner_of(config=config, policy_error=spy)
    for _ in range(3):
        spy.seen.clear()
        learner.iterate()
        far = [(new - old).abs().max().item() for new, old, *_ in spy.seen]
        assert far[0] < 1e-6
        assert far[-1] > 1e-4


def test_a_large_divergence_ends_the_epochs():
    def epochs(target_kl):
        config = replace(SMALL, target_kl=target_kl, num_epochs=8, learning_rate=1e-2)
        spy = Watched()
        learner_of(config=config, policy_error=spy).iterate()
        return len(spy.seen) // SMALL.num_minibatches

    assert epochs(None) == 8
    assert epochs(1e-9) == 1
    assert 1 < epochs(0.02) < 8


def test_a_long_gradient_is_clipped():
    learner = learner_of(config=replace(SMALL, max_grad_norm=0.1))
    learner.iterate()
    squares = sum(p.grad.square().sum().item() for p in learner.parameters)
    assert math.sqrt(squares) == pytest.approx(0.1, rel=1e-4)


def test_truncation_bootstraps_and_termination_does_not():
    """Where each state is worth 100, all surprises are known."""
    config = replace(SMALL, num_steps=200, gamma=0.5, lambda_=0.0)
    learner = learner_of(partial(cut_off, 20), config)
    head = learner.policy.network.critic[-1]
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.constant_(head.bias, 100.0)
    batch = learner.collect()
    assert batch.truncated.any()
    assert batch.terminated.any()
    wanted = torch.where(batch.terminated, 1.0 - 100, 1.0 + 50 - 100)
    torch.testing.assert_close(learner.look_back(batch).adv, wanted.flatten())


def test_rewards_are_scaled_with_every_kind_of_end_and_a_reset_starts_anew():
    learner = learner_of(config=replace(SMALL, scale_reward=True))
    learner.scaler.carry.fill_(7.0)
    batch = learner.collect()  # the first one begins with a reset
    assert not learner.scaler.carry.any()
    terminated, truncated = torch.zeros(2, *batch.real.shape).bool()
    terminated[3, 0] = truncated[5, 1] = True
    seen = []
    learner.scaler.forward = lambda reward, done, real: seen.append(done) or reward
    learner.look_back(batch._replace(terminated=terminated, truncated=truncated))
    assert torch.equal(seen[0], terminated | truncated)


def test_the_critic_learns_lambda_returns_and_tells_what_it_foresaw():
    learner = learner_of()
    batch = learner.collect()
    samples = learner.look_back(batch)
    _, _, next_value = learner.seen
    flags = batch.terminated, batch.truncated
    decay = SMALL.gamma, SMALL.lambda_
    wanted = lambda_returns(batch.reward, next_value, *flags, *decay)
    torch.testing.assert_close(samples.target, wanted[batch.real])
    missed = samples.target - samples.value
    share = 1 - np.var(missed.tolist()) / np.var(samples.target.tolist())
    told = learner.update(batch)["losses/explained_variance"]
    assert told == pytest.approx(share, abs=1e-4)


def test_the_distance_is_that_of_the_old_policy_to_the_new_one():
    learner = learner_of()
    samples = learner.look_back(learner.collect())
    with torch.no_grad():
        for parameter in learner.policy.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        new, _ = learner.policy.evaluate_actions(samples.obs, samples.action)
    log_ratio = (new - samples.log_prob).double().numpy()
    ratio = np.exp(log_ratio)
    wanted = {
        "losses/old_approx_kl": -log_ratio.mean(),
        "losses/approx_kl": (ratio - 1 - log_ratio).mean(),
        "losses/clipfrac": (abs(ratio - 1) > SMALL.clip_ratio).mean(),
    }
    assert learner.distance(samples) == pytest.approx(wanted, rel=1e-4)
    assert 0 < wanted["losses/clipfrac"] < 1


# --- Promises about runs --------------------------------------------------------------


@pytest.mark.parametrize("part", ["actor", "critic", "adv"])
def test_a_network_or_a_loss_that_fails_stops_the_run(part):
    learner = learner_of(config=replace(SMALL, normalize_advantage=False))
    samples = learner.look_back(learner.collect())
    if part == "adv":
        huge = torch.full_like(samples.adv, 3e38)
        samples = samples._replace(adv=huge, log_prob=samples.log_prob - 1)
    else:
        bias = getattr(learner.policy.network, part)[-1].bias
        torch.nn.init.constant_(bias, math.nan)
    before = copy.deepcopy(learner.policy.state_dict())
    with pytest.raises(ValueError, match="must be finite"):
        learner.learn(samples)
    after = learner.policy.state_dict()
    torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)


# --- Learning -------------------------------------------------------------------------


def test_ppo_learns():
    """A policy that draws at random balances the pole for 22 steps."""
    settings = replace(ppo_settings("CartPole-v1"), total_steps=12_000)

    def check(seed):
        learner = learner_of(config=replace(settings, seed=seed))
        learner.act = numpy_act(learner.policy)
        fit(learner, progress=False)
        assert evaluate(learner.policy, "CartPole-v1", 20, seed=5).mean() >= 60

    assert_for_most_seeds(check)
