"""A2C, its loss and gradient, and policies made of contract models."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit, TransformObservation
from torch import nn

from literate_rl.book.contract_models import (
    CategoricalActor,
    SquashedGaussianActor,
    StateValue,
)
from literate_rl.check.own_models import ContractPolicy, make_contract_policy
from literate_rl.data.agents import Collector, Rollout, make_envs
from literate_rl.learners.a2c import A2C, A2CConfig, a2c_error, a2c_gradient
from literate_rl.learners.ppo import PPO, PPOConfig
from literate_rl.maths.ppo_error import policy_error_from_log_prob
from literate_rl.nets.policies import make_policy
from literate_rl.runs.runs import Run, fit, flat_env

ALONE = A2CConfig(num_envs=3, num_steps=5, total_steps=300, checkpoint_interval=4)


def policy_for(envs: SyncVectorEnv) -> Any:
    torch.manual_seed(0)
    return make_policy(envs.single_observation_space, envs.single_action_space)


def make_a2c(env: str = "CartPole-v1", **changes: Any) -> A2C:
    config = replace(ALONE, **changes)
    envs = make_envs(partial(flat_env, env), config.num_envs)
    return A2C(policy_for(envs), envs, config)


def same(one: Any, other: Any) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


# --- The loss -------------------------------------------------------------------------


@pytest.mark.equation("a2c-loss")
def test_the_loss_and_its_slopes_are_what_a_loop_in_double_precision_says():
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    columns = [x.clone().requires_grad_() for x in numbers]
    loss = a2c_error(*columns)
    wanted = [0.0] * 3
    for log_prob, entropy, value, adv, target in numbers.T.tolist():
        wanted[0] -= log_prob * adv / 7
        wanted[1] += (value - target) ** 2 / 7
        wanted[2] += entropy / 7
    assert [x.item() for x in loss] == pytest.approx(wanted, rel=1e-12)
    sum(loss).backward()
    _, _, value, adv, target = numbers
    slopes = [-adv / 7, torch.full((7,), 1 / 7).double(), 2 * (value - target) / 7]
    torch.testing.assert_close([x.grad for x in columns[:3]], slopes)
    assert columns[3].grad is columns[4].grad is None


def rollout_of(envs: SyncVectorEnv, policy: Any, num_steps: int) -> Rollout:
    generator = torch.Generator().manual_seed(5)
    collector = Collector(envs, policy.to_env, np.float32)
    collector.reset(5)
    noise = iter(policy.noise(num_steps, envs.num_envs, generator))
    return collector.collect(lambda obs: policy.act(obs, next(noise)), num_steps)


@pytest.mark.equation("a2c-target")
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_the_gradient_is_that_of_returns_added_up_by_hand(mode):
    make = lambda: TimeLimit(gym.make("CartPole-v1").unwrapped, 10)  # noqa: E731
    envs = SyncVectorEnv([make] * 3, autoreset_mode=mode)
    policy = policy_for(envs).double()
    config = replace(ALONE, entropy_weight=0.02, reward_scale=0.5)
    for layer in (policy.network.actor[-1], policy.network.critic[-1]):
        nn.init.normal_(layer.weight)
    batch = rollout_of(envs, copy.deepcopy(policy).float(), 40)
    batch = Rollout(*(x.double() if x.is_floating_point() else x for x in batch[:9]))
    # Both kinds of end, and in one of the modes rows that never happened.
    assert batch.terminated.any()
    assert batch.truncated.any()
    assert (~batch.real).any() == (mode == AutoresetMode.NEXT_STEP)
    gradient, losses = a2c_gradient(policy, batch, config)

    rows = []
    for t, b in batch.real.nonzero().tolist():
        # The rewards up to the end of the episode or of the rollout; what the
        # critic says about what comes then, unless nothing does.
        target, factor, k = 0.0, 1.0, t
        while True:
            target += factor * 0.5 * batch.reward[k, b].item()
            factor *= config.gamma
            if batch.terminated[k, b] or batch.truncated[k, b] or k == 39:
                break
            k += 1
        if not batch.terminated[k, b]:
            target += factor * policy.value(batch.next_obs[k, b]).item()
        value = policy.value(batch.obs[t, b])
        log_prob = policy(batch.obs[t, b]).log_softmax(-1)
        score = log_prob[batch.action[t, b]] * (target - value.item())
        entropy = -(log_prob.exp() * log_prob).sum()
        rows.append(-score + 0.5 * (value - target) ** 2 - 0.02 * entropy)
    total = torch.stack(rows).mean()
    wanted = torch.autograd.grad(total, list(policy.parameters()))
    torch.testing.assert_close(gradient, wanted, rtol=1e-8, atol=1e-10)
    said = losses["policy_loss"] + 0.5 * losses["value_loss"]
    assert said - 0.02 * losses["entropy_loss"] == pytest.approx(total.item())


@pytest.mark.equation("def-a2c-is-ppo")
@pytest.mark.parametrize("step", [0.0, 0.01])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_ppo_weighs_the_gradient_of_a2c_with_the_ratio(env, step):
    envs = make_envs(partial(flat_env, env), 4)
    policy, generator = policy_for(envs), torch.Generator().manual_seed(1)
    batch = rollout_of(envs, policy, 30)
    old = policy.evaluate_actions(batch.obs, batch.action)[0].detach()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += step * torch.randn(parameter.shape, generator=generator)
    new, entropy = policy.evaluate_actions(batch.obs, batch.action)
    adv = torch.randn(30, 4, generator=generator)
    columns = (x.flatten() for x in (new, old, entropy, adv))
    terms, info = policy_error_from_log_prob(*columns, None, 0.2)
    assert info.clipfrac == 0.0, "nothing is clipped"
    ppo, a2c, by_hand = (
        torch.autograd.grad(
            loss, [*policy.network.actor.parameters()], retain_graph=True
        )
        for loss in (
            terms.policy_loss,
            a2c_error(new, entropy, new, adv, adv).policy_loss,
            -((new - old).exp().detach() * adv * new).mean(),
        )
    )
    torch.testing.assert_close(ppo, by_hand, rtol=1e-4, atol=1e-6)
    alike = [torch.allclose(*x, rtol=1e-3) for x in zip(ppo, a2c, strict=True)]
    assert all(alike) == (step == 0)


# --- A2C ------------------------------------------------------------------------------


def test_the_learning_rate_falls_and_a_long_gradient_is_cut():
    learner = make_a2c(total_steps=30)
    rates = [learner.iterate()["charts/learning_rate"] for _ in range(3)]
    assert rates == [1e-3, 5e-4, 0.0]
    before = copy.deepcopy(learner.policy)
    learner.learner.learn([p.detach() * 1e6 for p in learner.learner.parameters], 30)
    assert same(before, learner.policy), "no step at the end"
    grads = torch.cat([p.grad.flatten() for p in learner.learner.parameters])
    assert grads.norm().item() == pytest.approx(0.5, rel=1e-4)


# --- Contract models ------------------------------------------------------------------


def world(name: str) -> gym.Env[Any, Any]:
    """CartPole or Pendulum whose observation has two states with names."""
    env = gym.make(name)
    low, high = env.observation_space.low, env.observation_space.high
    first, second = spaces.Box(low[:2], high[:2]), spaces.Box(low[2:], high[2:])
    space = spaces.Dict(state=first, state2=second)
    return TransformObservation(
        env, lambda obs: {"state": obs[:2], "state2": obs[2:]}, space
    )


class Two:
    """Takes two states, in another order than the environment's, and says more."""

    def forward(self, state2, state, action=None):
        return *super().forward(torch.cat([state, state2], 1), action), None

    def mode(self, state2, state):
        return super().mode(torch.cat([state, state2], 1))


class TwoCategorical(Two, CategoricalActor):
    pass


class TwoSquashed(Two, SquashedGaussianActor):
    """Draws inside of -2..2; its entropy comes from a sample of its own."""


class TwoCritic(StateValue):
    def forward(self, state2, state):
        return super().forward(torch.cat([state, state2], 1)), "words"


kinds = pytest.mark.parametrize("kind", ["CartPole-v1", "Pendulum-v1"])


def contract(kind: str) -> ContractPolicy:
    torch.manual_seed(0)
    actor, critic = TwoCategorical(4, 2, 16), TwoCritic(4, 16)
    if kind == "Pendulum-v1":
        actor, critic = TwoSquashed(3, [-2.0], [2.0], 16), TwoCritic(3, 16)
    env = world(kind)
    return make_contract_policy(env.observation_space, env.action_space, actor, critic)


def ppo_of(policy: Any, kind: str) -> PPO:
    """Return a learner around a policy."""
    envs = make_envs(partial(flat_env, partial(world, kind)), 3)
    sizes = {"num_envs": 3, "num_steps": 10, "num_minibatches": 2}
    run = {"total_steps": 120, "checkpoint_interval": 2}
    return PPO(policy, envs, PPOConfig(**sizes, **run))


@kinds
def test_a_contract_run_resumes_bit_for_bit(kind, tmp_path):
    """The global generator is somewhere else after the break."""
    whole, half, resumed = (ppo_of(contract(kind), kind) for _ in range(3))
    fit(whole, progress=False)
    with Run(tmp_path / "a", {}) as run:
        half.iterate()
        half.iterate()
        run.save(half)
    torch.manual_seed(12345)
    with Run(tmp_path / "a", resume=True) as run:
        run.restore(resumed)
        assert 0 < resumed.step < whole.step
        fit(resumed, run, progress=False)
    assert same(whole.policy, resumed.policy)


@kinds
def test_what_a_contract_policy_draws_depends_on_its_arguments_alone(kind):
    policy = contract(kind)
    obs = torch.randn(5, 4, 4 if kind == "CartPole-v1" else 3)
    noise = policy.noise(5, 4, torch.Generator().manual_seed(2))
    assert len(noise) == len(noise.unique()) == 5

    def ask():
        pairs = zip(obs, noise, strict=True)
        action = torch.stack([policy.act(x, seed) for x, seed in pairs])
        return action, *policy.evaluate_actions(obs, action), policy.value(obs)

    state = torch.get_rng_state()
    first = ask()
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(99)
    assert all(map(torch.equal, first, ask()))
    # Leading dimensions are one batch, and come back; states reach models by name.
    action, flat = first[0].flatten(0, 1), obs.flatten(0, 1)
    states = {"state": flat[:, :2], "state2": flat[:, 2:]}
    _, log_prob, *_ = policy.actor.model(**states, action=action)
    value, _ = policy.critic.model(**states)
    torch.testing.assert_close(first[1], log_prob.view(5, 4))
    torch.testing.assert_close(first[3], value.view(5, 4))
    if kind == "Pendulum-v1":
        # An entropy by sampling is another one where the observations are.
        _, other = policy.evaluate_actions(obs[:1].expand_as(obs), first[0])
        assert other.std() > 0.05


def test_greedy_is_the_mode_and_without_one_the_actor_draws():
    policy, obs = contract("CartPole-v1"), torch.randn(64, 4)
    best = policy.actor.model.mode(obs[:, 2:], obs[:, :2])
    assert torch.equal(policy.act(obs, 0.0), best)
    policy.actor.model.mode = None
    # The same state 64 times: the actions differ, and the next call draws them again.
    draws, again = (policy.act(obs[:1].expand(64, 4), 0.0) for _ in range(2))
    assert (draws != draws[0]).any()
    assert torch.equal(draws, again)


def test_only_what_the_environment_gets_is_clipped():
    policy, action = contract("Pendulum-v1"), torch.tensor([[3.0], [-0.5], [-9.0]])
    sent = policy.to_env(action)
    assert sent.tolist() == [[2.0], [-0.5], [-2.0]]
    assert sent.dtype == np.float32
    assert action[0] == 3
    policy.action_space = spaces.Discrete(3, start=5)
    assert policy.to_env(torch.tensor([[0], [2]])).tolist() == [5, 7]
