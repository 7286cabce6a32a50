"""A2C, its loss and gradient, and policies made of contract models."""

from __future__ import annotations

import copy
import math
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
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
from torch import Tensor, nn
from worlds import counting

from literate_rl.actors.a3c import A3C, A3CConfig
from literate_rl.check import own_models
from literate_rl.check.contracts import check_model
from literate_rl.check.own_models import ContractPolicy, make_contract_policy
from literate_rl.data.agents import Collector, Rollout, make_envs
from literate_rl.learners.a2c import (
    A2C,
    A2CConfig,
    a2c_error,
    a2c_gradient,
    a2c_settings,
)
from literate_rl.learners.impala import IMPALA, IMPALAConfig
from literate_rl.learners.ppo import PPO, PPOConfig
from literate_rl.maths.ppo_error import policy_error_from_log_prob
from literate_rl.nets.policies import make_policy
from literate_rl.runs.evaluation import evaluate
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
def test_the_loss_is_what_a_loop_in_double_precision_says() -> None:
    rng = np.random.default_rng(0)
    columns = [torch.tensor(rng.normal(size=7), requires_grad=True) for _ in range(5)]
    log_prob, entropy, value, adv, target = columns
    loss = a2c_error(*columns)
    by_hand = [0.0, 0.0, 0.0]
    for b in range(7):
        by_hand[0] -= log_prob[b].item() * adv[b].item() / 7
        by_hand[1] += (value[b].item() - target[b].item()) ** 2 / 7
        by_hand[2] += entropy[b].item() / 7
    for got, wanted in zip(loss, by_hand, strict=True):
        assert got.item() == pytest.approx(wanted, rel=1e-12)
    sum(loss).backward()
    for grad, wanted in (
        (log_prob.grad, -adv / 7),
        (entropy.grad, torch.full((7,), 1 / 7, dtype=torch.float64)),
        (value.grad, 2 * (value - target) / 7),
    ):
        torch.testing.assert_close(grad, wanted.detach(), rtol=1e-12, atol=0)
    assert adv.grad is None
    assert target.grad is None


def test_the_loss_is_held_by_its_signature() -> None:
    assert assert_held(a2c_error, Random(0)) > 20
    good = [torch.ones(3) for _ in range(5)]
    for place, name in enumerate(("log_prob", "entropy", "value", "adv", "target")):
        bad = list(good)
        bad[place] = torch.tensor([1.0, math.nan, 1.0])
        with pytest.raises(ValueError, match=name):
            a2c_error(*bad)


def short_cartpoles(mode: AutoresetMode, copies: int = 3) -> SyncVectorEnv:
    """Both kinds of end, and in one of the modes rows that never happened."""

    def make() -> gym.Env[Any, Any]:
        return TimeLimit(gym.make("CartPole-v1").unwrapped, 10)

    return SyncVectorEnv([make] * copies, autoreset_mode=mode)


def rollout_of(envs: SyncVectorEnv, policy: Any, num_steps: int) -> Rollout:
    generator = torch.Generator().manual_seed(5)
    collector = Collector(envs, policy.to_env, np.float32)
    collector.reset(5)
    noise = iter(policy.noise(num_steps, envs.num_envs, generator))
    return collector.collect(lambda obs: policy.act(obs, next(noise)), num_steps)


@pytest.mark.equation("a2c-target")
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_the_gradient_is_that_of_returns_added_up_by_hand(mode) -> None:
    envs = short_cartpoles(mode)
    policy = policy_for(envs).double()
    config = replace(ALONE, entropy_weight=0.02, reward_scale=0.5)
    for layer in (policy.network.actor[-1], policy.network.critic[-1]):
        nn.init.normal_(layer.weight)
    batch = rollout_of(envs, copy.deepcopy(policy).float(), 40)
    batch = Rollout(*(x.double() if x.is_floating_point() else x for x in batch[:9]))
    assert batch.terminated.any()
    assert batch.truncated.any()
    assert (~batch.real).any() == (mode == AutoresetMode.NEXT_STEP)
    gradient, losses = a2c_gradient(policy, batch, config)

    rows = []
    for b in range(3):
        for t in range(40):
            if not batch.real[t, b]:
                continue
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
    for got, part in zip(gradient, wanted, strict=True):
        torch.testing.assert_close(got, part, rtol=1e-8, atol=1e-10)
    said = losses["policy_loss"] + 0.5 * losses["value_loss"]
    assert said - 0.02 * losses["entropy_loss"] == pytest.approx(total.item())


@pytest.mark.equation("def-a2c-is-ppo")
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_where_the_ratio_is_one_the_gradient_of_ppo_is_that_of_a2c(env) -> None:
    envs = make_envs(partial(flat_env, env), 4)
    policy = policy_for(envs)
    batch = rollout_of(envs, policy, 30)
    log_prob, entropy = policy.evaluate_actions(batch.obs, batch.action)
    adv = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
    value = policy.value(batch.obs)
    plain = a2c_error(log_prob, entropy, value, adv, adv + value)
    clipped, info = policy_error_from_log_prob(
        *(x.flatten() for x in (log_prob, log_prob.detach(), entropy, adv)), None, 0.2
    )
    assert info.clipfrac == 0.0
    weights = [x for name, x in policy.named_parameters() if "critic" not in name]
    for one, other in zip(
        torch.autograd.grad(plain.policy_loss, weights, retain_graph=True),
        torch.autograd.grad(clipped.policy_loss, weights, retain_graph=True),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


@pytest.mark.equation("def-a2c-is-ppo")
def test_at_a_second_step_ppo_weighs_each_gradient_with_its_ratio() -> None:
    envs = make_envs(partial(flat_env, "CartPole-v1"), 4)
    policy = policy_for(envs)
    batch = rollout_of(envs, policy, 30)
    old, _ = policy.evaluate_actions(batch.obs, batch.action)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)
    new, entropy = policy.evaluate_actions(batch.obs, batch.action)
    adv = torch.randn(30, 4, generator=generator)
    terms, info = policy_error_from_log_prob(
        *(x.flatten() for x in (new, old.detach(), entropy, adv)), None, 0.2
    )
    assert info.clipfrac == 0.0, "nothing is clipped"
    plain = a2c_error(new, entropy, new, adv, adv).policy_loss
    weighted = -((new - old).exp().detach() * adv * new).mean()
    weight = policy.network.actor[-1].weight
    ppo, a2c, by_hand = (
        torch.autograd.grad(loss, weight, retain_graph=True)[0]
        for loss in (terms.policy_loss, plain, weighted)
    )
    torch.testing.assert_close(ppo, by_hand, rtol=1e-4, atol=1e-7)
    assert not torch.allclose(ppo, a2c, rtol=1e-3)


# --- A2C ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_steps": 0}, "num_steps must be at least 1, got 0"),
        ({"gamma": 1.5}, "gamma must be .*1.5"),
        ({"rmsprop_epsilon": 0.0}, "rmsprop_epsilon must be .*0.0"),
        ({"entropy_weight": -0.1}, "entropy_weight must be at least 0 .*-0.1"),
        ({"value_weight": math.inf}, "value_weight must be .*less than inf, got inf"),
    ],
)
def test_illegal_settings_are_named(changes, message) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        replace(ALONE, **changes)


def test_settings_are_those_of_the_environment() -> None:
    assert a2c_settings("CartPole-v1").total_steps == 200_000
    assert a2c_settings("unknown") == A2CConfig()


def test_the_number_of_environments_must_be_right() -> None:
    policy = policy_for(counting())
    with pytest.raises(ValueError, match="envs must have 3 copies, got 2"):
        A2C(policy, counting(), ALONE)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_resumed_run_ends_with_the_same_bits(env, tmp_path: Path) -> None:
    whole = make_a2c(env)
    history = fit(whole, progress=False)
    assert history[-1]["step"] == 300
    assert all(math.isfinite(row["losses/policy_loss"]) for row in history)
    half = make_a2c(env, total_steps=120)
    half.learner.config = whole.config  # what the learning rate falls to zero by
    with Run(tmp_path / "a", {}) as run:
        fit(half, run, progress=False)
    resumed = make_a2c(env)
    with torch.no_grad():
        for parameter in resumed.policy.parameters():
            parameter.zero_()
    with Run(tmp_path / "a", resume=True) as run:
        run.restore(resumed)
        assert resumed.step == 120
        assert fit(resumed, run, progress=False)[-1]["step"] == 300
    assert same(whole.policy, resumed.policy)


def test_the_learning_rate_falls_and_a_long_gradient_is_cut() -> None:
    learner = make_a2c(total_steps=30)
    rates = [learner.iterate()["charts/learning_rate"] for _ in range(3)]
    assert rates == [1e-3, 5e-4, 0.0]
    before = copy.deepcopy(learner.policy)
    learner.learner.learn([p.detach() * 1e6 for p in learner.learner.parameters], 30)
    assert same(before, learner.policy), "no step at the end"
    grads = torch.cat([p.grad.flatten() for p in learner.learner.parameters])
    assert grads.norm().item() == pytest.approx(0.5, rel=1e-4)


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    learner = make_a2c()
    learner.iterate()
    with pytest.raises(KeyError):
        learner.load_state_dict({"step": 7, "iteration": 7, "learner": {}})
    assert (learner.step, learner.iteration) == (15, 1)


def test_gradients_are_not_added_up() -> None:
    """What was left in ``grad`` by somebody else plays no role."""
    clean, dirty = make_a2c(), make_a2c()
    for parameter in dirty.policy.parameters():
        parameter.grad = torch.full_like(parameter, 1e3)
    for learner in (clean, dirty):
        learner.iterate()
        learner.iterate()
    assert same(clean.policy, dirty.policy)


# --- Contract models ------------------------------------------------------------------


class Two(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole or Pendulum whose observation has two states with names."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        low, high = env.observation_space.low, env.observation_space.high
        boxes = {
            "state": spaces.Box(low[:2], high[:2]),
            "state2": spaces.Box(low[2:], high[2:]),
        }
        self.observation_space = spaces.Dict(boxes)

    def cut(self, obs: Any) -> dict[str, Any]:
        return {"state": obs[:2], "state2": obs[2:]}

    def reset(self, **options: Any) -> Any:
        obs, info = self.env.reset(**options)
        return self.cut(obs), info

    def step(self, action: Any) -> Any:
        obs, *others = self.env.step(action)
        return self.cut(obs), *others


def world(name: str, two: bool) -> gym.Env[Any, Any]:
    made = gym.make(name)
    return Two(made) if two else made


class Judge(nn.Module):
    """A critic for one state or two, with or without further outputs."""

    def __init__(self, size: int, extra: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(size, 16), nn.Tanh(), nn.Linear(16, 1))
        self.extra = extra

    def judge(self, x: Tensor) -> Any:
        value = self.layers(x)
        return (value, x, "words") if self.extra else value


class Categorical(nn.Module):
    def __init__(self, size: int, extra: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(size, 16), nn.Tanh(), nn.Linear(16, 2))
        self.extra = extra

    def choose(self, x: Tensor, action: Any) -> Any:
        dist = torch.distributions.Categorical(logits=self.layers(x))
        if action is None:
            action = dist.sample().unsqueeze(-1)
        log_prob = dist.log_prob(action.squeeze(-1)).unsqueeze(-1)
        extras = (x, None) if self.extra else ()
        return action, log_prob, dist.entropy().unsqueeze(-1), *extras

    def best(self, x: Tensor) -> Tensor:
        return self.layers(x).argmax(-1, keepdim=True)


class Squashed(nn.Module):
    """Draws inside of -2..2; its entropy comes from a sample of its own."""

    def __init__(self, size: int, extra: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(size, 16), nn.Tanh(), nn.Linear(16, 2))
        self.extra = extra

    def log_prob(self, u: Tensor, mu: Tensor, log_sigma: Tensor) -> Tensor:
        gaussian = torch.distributions.Normal(mu, log_sigma.exp()).log_prob(u)
        jacobian = 2 * (math.log(2) - u - nn.functional.softplus(-2 * u))
        return gaussian - jacobian - math.log(2.0)

    def choose(self, x: Tensor, action: Any) -> Any:
        mu, log_sigma = self.layers(x).chunk(2, -1)
        log_sigma = log_sigma.clamp(-3, 1)
        u = drawn = mu + log_sigma.exp() * torch.randn_like(mu)
        if action is None:
            action = 2 * u.tanh()
        else:
            u = (action / 2).double().clamp(-1 + 1e-7, 1 - 1e-7).atanh().to(x)
        entropy = -self.log_prob(drawn, mu, log_sigma)
        extras = (x, None) if self.extra else ()
        return action, self.log_prob(u, mu, log_sigma), entropy, *extras

    def best(self, x: Tensor) -> Tensor:
        return 2 * self.layers(x).chunk(2, -1)[0].tanh()


class OneState:
    """Takes its only state under a name of its own."""

    def forward(self, some_state, action=None):
        return self.choose(some_state, action)


class TwoStates:
    """Takes two states, in another order than the environment's."""

    def forward(self, state2, state, action=None):
        return self.choose(torch.cat([state, state2], 1), action)


class OneMode:
    def mode(self, some_state):
        return self.best(some_state)


class TwoModes:
    def mode(self, state, state2):
        return self.best(torch.cat([state, state2], 1))


class Critic(Judge):
    def forward(self, state):
        return self.judge(state)


class TwoCritic(Judge):
    def forward(self, state, state2):
        return self.judge(torch.cat([state, state2], 1))


def actor_for(kind: type[Any], size: int, two: bool, extra: bool, mode: bool) -> Any:
    """Return an actor whose arguments and methods are what the case asks for."""
    modes = (TwoModes if two else OneMode,) if mode else ()
    parts = (*modes, TwoStates if two else OneState, kind)
    return type("Actor", parts, {})(size, extra)


def critic_for(size: int, two: bool, extra: bool) -> Any:
    return (TwoCritic if two else Critic)(size, extra)


NAMES = {"discrete": "CartPole-v1", "squashed": "Pendulum-v1"}
CASES = [
    pytest.param(kind, two, extra, id=f"{kind}-{1 + two}-{'extra' * extra or 'plain'}")
    for kind in NAMES
    for two in (False, True)
    for extra in (False, True)
]


def contract(
    kind: str, two: bool = False, extra: bool = False, mode: bool = True
) -> tuple[ContractPolicy, Any]:
    """Return a contract policy and what makes one of its environments."""
    make = partial(world, NAMES[kind], two)
    env = make()
    size = spaces.flatdim(env.observation_space)
    torch.manual_seed(0)
    models = Categorical if kind == "discrete" else Squashed
    actor = actor_for(models, size, two, extra, mode)
    critic = critic_for(size, two, extra)
    check_model("A2C", actor=actor, critic=critic, env=make)
    policy = make_contract_policy(
        env.observation_space, env.action_space, actor, critic
    )
    return policy, make


def learners(
    policy: Any, make: Any, total: int = 300, interval: int = 50
) -> dict[str, Any]:
    """Return one learner of each family around the same policy."""
    run = {"total_steps": total, "checkpoint_interval": interval}
    build = partial(make_envs, partial(flat_env, make), 3)
    ppo = PPOConfig(num_envs=3, num_steps=10, num_minibatches=2, anneal=False, **run)
    impala = IMPALAConfig(num_envs=3, num_steps=5, batch_size=3, **run)
    alone = replace(ALONE, entropy_weight=0.01, **run)
    shared = {name: x for name, x in asdict(alone).items() if name != "scale_reward"}
    remote = A3CConfig(**shared, slots=2)
    return {
        "A2C": A2C(policy, build(), alone),
        "A3C": A3C(policy, build, remote),
        "PPO": PPO(policy, build(), ppo),
        "IMPALA": IMPALA(policy, build(), impala),
    }


@pytest.mark.parametrize("family", ["A2C", "A3C", "PPO", "IMPALA"])
@pytest.mark.parametrize(("kind", "two", "extra"), CASES)
def test_a_contract_actor_trains_in_each_family(kind, two, extra, family) -> None:
    policy, make = contract(kind, two, extra)
    before = copy.deepcopy(policy)
    learner = learners(policy, make, total=90)[family]
    history = fit(learner, progress=False)
    assert history[-1]["step"] >= 90
    for row in history:
        losses = [x for name, x in row.items() if name.startswith("losses/")]
        assert np.isfinite(losses).all()
    for part in ("actor", "critic"):
        assert not same(getattr(before, part), getattr(policy, part))


@pytest.mark.parametrize(("kind", "two", "extra"), CASES)
def test_the_log_probabilities_that_ppo_sees_are_the_actors(kind, two, extra) -> None:
    policy, make = contract(kind, two, extra)
    ppo = learners(policy, make)["PPO"]
    batch = ppo.collect()
    samples = ppo.look_back(batch)
    # The actor is called by hand, with its states by name.
    obs, action = batch.obs.flatten(0, 1), batch.action.flatten(0, 1)
    states: Any = (obs[:, :2], obs[:, 2:]) if two else (obs,)
    names = ("state", "state2") if two else ("some_state",)
    with torch.no_grad():
        result = policy.actor.model(
            **dict(zip(names, states, strict=True)), action=action
        )
        value = policy.critic.model(*states)
    assert result[0] is action
    torch.testing.assert_close(samples.log_prob, result[1].squeeze(-1))
    value = value[0] if extra else value
    torch.testing.assert_close(samples.value, value.squeeze(-1))
    # And those of the draw: no judgement differs from what was drawn by.
    seed = torch.tensor(7)
    drawn = policy.act(obs, seed)
    torch.manual_seed(7)
    with torch.no_grad():
        by_hand = policy.actor.model(**dict(zip(names, states, strict=True)))
    assert torch.equal(drawn, by_hand[0])
    judged, _ = policy.evaluate_actions(obs, drawn.detach())
    torch.testing.assert_close(judged, by_hand[1].squeeze(-1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["A2C", "PPO", "IMPALA"])
@pytest.mark.parametrize("kind", NAMES)
def test_a_contract_run_resumes_bit_for_bit(kind, family, tmp_path: Path) -> None:
    """The global generator is somewhere else after the break."""
    policy, make = contract(kind, two=True)
    whole = learners(policy, make, interval=2)[family]
    steps = whole.iterate() and whole.step
    for _ in range(3):
        whole.iterate()
    policy, make = contract(kind, two=True)
    half = learners(policy, make, interval=2)[family]
    half.config = replace(whole.config, total_steps=2 * steps)
    with Run(tmp_path / "a", {}) as run:
        fit(half, run, progress=False)
    fresh, make = contract(kind, two=True)
    resumed = learners(fresh, make, interval=2)[family]
    resumed.config = replace(whole.config, total_steps=4 * steps)
    torch.manual_seed(12345)
    with Run(tmp_path / "a", resume=True) as run:
        run.restore(resumed)
        fit(resumed, run, progress=False)
    assert resumed.step == whole.step
    assert same(whole.policy, resumed.policy)


@pytest.mark.parametrize("kind", NAMES)
def test_what_a_contract_policy_draws_depends_on_its_arguments_alone(kind) -> None:
    policy, make = contract(kind)
    obs = torch.randn(5, 4, spaces.flatdim(make().observation_space))
    noise = policy.noise(5, 4, torch.Generator().manual_seed(2))
    assert torch.equal(noise, policy.noise(5, 4, torch.Generator().manual_seed(2)))
    assert len(noise) == len(noise.unique()) == 5
    state = torch.get_rng_state()
    action = torch.stack(
        [policy.act(x, seed) for x, seed in zip(obs, noise, strict=True)]
    )
    first = policy.evaluate_actions(obs, action), policy.value(obs)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(99)
    assert torch.equal(policy.act(obs[2], noise[2]), action[2])
    again = policy.evaluate_actions(obs, action), policy.value(obs)
    torch.testing.assert_close(again, first, rtol=0, atol=0)
    # Leading dimensions are one batch, and come back.
    log_prob, entropy = first[0]
    assert log_prob.shape == entropy.shape == first[1].shape == (5, 4)
    flat, _ = policy.evaluate_actions(obs.flatten(0, 1), action.flatten(0, 1))
    torch.testing.assert_close(flat, log_prob.flatten())
    assert policy.act(obs, 0.0).shape == action.shape
    if kind == "squashed":
        # An entropy by sampling is another one where the observations are.
        repeated = obs[:1].expand_as(obs)
        _, other = policy.evaluate_actions(repeated, action)
        assert other.std() > 0.05


def test_greedy_is_the_mode_and_without_one_the_actor_draws() -> None:
    policy, make = contract("discrete")
    obs = torch.randn(64, 4)
    assert torch.equal(policy.act(obs, 0.0), policy.actor.model.best(obs))
    assert (evaluate(policy, make, 3) == evaluate(policy, make, 3)).all()
    drawing, _ = contract("discrete", mode=False)
    # The same state 64 times: the actions differ, and the next call draws them again.
    draws = drawing.act(obs[:1].expand(64, 4), 0.0)
    assert (draws != draws[0]).any()
    assert torch.equal(draws, drawing.act(obs[:1].expand(64, 4), 0.0))
    assert torch.equal(
        drawing.act(obs, torch.tensor(3)), drawing.act(obs, torch.tensor(3))
    )


def test_only_what_the_environment_gets_is_clipped() -> None:
    policy, _ = contract("squashed")
    action = torch.tensor([[3.0], [-0.5], [-9.0]])
    before = action.clone()
    assert policy.to_env(action).tolist() == [[2.0], [-0.5], [-2.0]]
    assert policy.to_env(action).dtype == np.float32
    assert torch.equal(action, before)
    actor, critic = policy.actor.model, policy.critic.model
    box = spaces.Box(-1, 1, (3,))
    shifted = make_contract_policy(box, spaces.Discrete(3, start=5), actor, critic)
    assert shifted.to_env(torch.tensor([[0], [2]])).tolist() == [5, 7]


def test_the_recipe_wants_the_models_and_brings_back_the_weights() -> None:
    policy, _ = contract("squashed", two=True)
    name, arguments = policy.recipe[0], dict(policy.recipe[1])
    names = arguments.pop("models")
    assert [names[part] for part in ("actor", "critic")] == ["Actor", "TwoCritic"]
    other, _ = contract("squashed", two=True)
    with torch.no_grad():
        other.actor.model.layers[0].weight.zero_()
    models = {"actor": other.actor.model, "critic": other.critic.model}
    again = getattr(own_models, name)(**arguments, **models)
    again.load_state_dict(policy.state_dict())
    obs = torch.randn(6, 3)
    assert torch.equal(again.act(obs, 0.0), policy.act(obs, 0.0))


def test_a_layer_that_both_models_share_is_trained_once() -> None:
    policy, make = contract("discrete")
    policy.critic.model.layers[0] = policy.actor.model.layers[0]
    names = [name for name, _ in policy.named_parameters()]
    assert len(names) == len(set(names)) == 6
    for name in ("A2C", "A3C"):
        fit(learners(policy, make, total=60)[name], progress=False)
    assert policy.critic.model.layers[0] is policy.actor.model.layers[0]


def test_parameters_that_play_no_role_stay_as_they_are() -> None:
    policy, make = contract("discrete")
    policy.actor.model.idle = nn.Linear(2, 2)
    before = policy.actor.model.idle.weight.clone()
    for name in ("A2C", "A3C"):
        fit(learners(policy, make, total=60)[name], progress=False)
    assert torch.equal(policy.actor.model.idle.weight, before)
