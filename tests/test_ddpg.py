"""DDPG, HDDPG and TD3: formulas, gradients, noise, the loop and models of one's own."""

from __future__ import annotations

import copy
import json
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
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from literate_rl.agents import make_envs
from literate_rl.contract_models import ActionValue, DeterministicActor
from literate_rl.contracts import ContractError
from literate_rl.ddpg import (
    DDPG,
    BoxActions,
    DDPGConfig,
    HDDPGConfig,
    OneHotActions,
    TD3Config,
    clipped_double_target,
    critic_chains,
    critic_error,
    ddpg_error,
    ddpg_settings,
    frozen_values,
    fused_ddpg_error,
    hddpg_settings,
    make_ddpg_policy,
    smoothed_action,
    td3_settings,
)
from literate_rl.dqn import QError
from literate_rl.evaluation import evaluate
from literate_rl.policies import Policy
from literate_rl.replay import Batch
from literate_rl.workshop.cli import main
from literate_rl.workshop.fast import FusedCriticError
from literate_rl.workshop.runs import Run, fit, load
from literate_rl.workshop.training import train

N, STATE = 6, 3
# An action of two numbers whose bounds differ, and are not symmetric.
LOW, HIGH = (-1.0, 0.0), (3.0, 0.5)
OBSERVATIONS = spaces.Box(-1.0, 1.0, (STATE,))
BOX = spaces.Box(np.array(LOW, np.float32), np.array(HIGH, np.float32))
ENV, DISCRETE = "Pendulum-v1", "CartPole-v1"


class Reach(gym.Env[Any, Any]):
    """Name the point that is seen. Every step pays minus the squared distance."""

    observation_space = spaces.Box(-1.0, 1.0, (1,))
    action_space = spaces.Box(
        np.array([-1.0, 0.0], np.float32), np.array([3.0, 0.5], np.float32)
    )
    ends = False

    def look(self) -> Any:
        self.point = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.point

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.look(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        wanted = np.array([1.0 + self.point[0], 0.25 + 0.2 * self.point[0]])
        reward = -float(np.square(action - wanted).sum())
        self.time += 1
        over = self.time == 5
        return self.look(), reward, over and self.ends, over and not self.ends, {}


class Ending(Reach):
    """The same, but the end is a true one."""

    ends = True


class TwoParts(Reach):
    """The same, with the observation in two parts."""

    observation_space = spaces.Dict(
        {"point": Reach.observation_space, "clock": spaces.Box(0.0, 5.0, (1,))}
    )

    def look(self) -> Any:
        clock = np.array([self.time], np.float32)
        return {"point": super().look(), "clock": clock}


gym.register("Reach-v0", entry_point=Reach)
gym.register("TwoParts-v0", entry_point=TwoParts)


def policy_for(num_critics: int = 2, space: Any = BOX, **arguments: Any) -> Policy:
    """Build a policy of float64."""
    torch.manual_seed(0)
    made = make_ddpg_policy(OBSERVATIONS, space, 8, num_critics, **arguments)
    return made.double()


def batch_of(seed: int = 0) -> Batch:
    """Return a random batch of float64; its second step ended the episode."""
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    discount = torch.full((N,), 0.97, dtype=torch.float64)
    discount[1] = 0.0
    weight = draw(N).abs()
    obs, next_obs = draw(2, N, STATE)
    return Batch(obs, draw(N, 2), draw(N), next_obs, discount, weight, torch.arange(N))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


# --- Targets and losses ---------------------------------------------------------------


@pytest.mark.equation("clipped-double-target")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("critics", [1, 2, 3])
def test_the_least_optimistic_critic_is_believed(seed: int, critics: int) -> None:
    batch = batch_of(seed)
    next_q = torch.randn(critics, N, dtype=torch.float64, requires_grad=True)
    got = clipped_double_target(batch.reward, batch.discount, next_q)
    for i in range(N):
        least = min(next_q[k, i].item() for k in range(critics))
        wanted = batch.reward[i].item() + batch.discount[i].item() * least
        assert got[i].item() == pytest.approx(wanted, abs=1e-14)
    assert got.dtype == torch.float64
    assert not got.requires_grad


@given(st.integers(0, 10_000))
def test_more_critics_never_promise_more(seed: int) -> None:
    batch = batch_of(seed)
    generator = torch.Generator().manual_seed(seed)
    next_q = torch.randn(3, N, generator=generator, dtype=torch.float64)
    target = partial(clipped_double_target, batch.reward, batch.discount)
    assert (target(next_q) <= target(next_q[:2])).all()
    assert torch.equal(target(next_q[:1]), target(next_q[:1].expand(2, N)))
    assert torch.equal(target(next_q), target(next_q.flip(0)))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_follows_a_termination_may_hold_anything(bad: float) -> None:
    batch = batch_of()
    next_q = torch.randn(2, N, dtype=torch.float64)
    wanted = clipped_double_target(batch.reward, batch.discount, next_q)
    next_q[:, 1] = bad
    got = clipped_double_target(batch.reward, batch.discount, next_q)
    assert torch.equal(got, wanted)
    next_q[0, 2] = math.nan
    with pytest.raises(ValueError, match="next_q must be finite"):
        clipped_double_target(batch.reward, batch.discount, next_q)


@pytest.mark.equation("hysteretic")
@pytest.mark.parametrize(("increase", "decrease"), [(1, 1), (1, 0.25), (0.5, 2)])
def test_values_rise_and_fall_at_two_rates(increase: float, decrease: float) -> None:
    q = torch.randn(2, N, dtype=torch.float64, requires_grad=True)
    target = torch.randn(N, dtype=torch.float64, requires_grad=True)
    error = critic_error(q, target, increase, decrease)
    wanted = torch.zeros(N, dtype=torch.float64)
    slope = torch.zeros(2, N, dtype=torch.float64)
    for k in range(2):
        for i in range(N):
            delta = target[i].item() - q[k, i].item()
            rate = increase if delta > 0 else decrease
            wanted[i] += rate * delta**2 / 2
            # What the value moves by is the rate times the TD error.
            slope[k, i] = -rate * delta
    torch.testing.assert_close(error.detach(), wanted)
    (grad,) = torch.autograd.grad(error.sum(), q)
    torch.testing.assert_close(grad, slope)
    assert target.grad is None
    assert len({x > 0 for x in (target - q).flatten().tolist()}) == 2


@pytest.mark.equation("smoothed-action")
def test_smoothing_has_a_scale_and_bounds_for_each_number() -> None:
    low, high = (torch.tensor(x, dtype=torch.float64) for x in (LOW, HIGH))
    action = low + (high - low) * torch.rand(N, 2, dtype=torch.float64)
    noise = 3 * torch.randn(N, 2, dtype=torch.float64)
    got = smoothed_action(action, noise, low, high, 0.2, 0.5)
    for i in range(N):
        for j in range(2):
            half = (HIGH[j] - LOW[j]) / 2
            shift = min(max(0.2 * noise[i, j].item(), -0.5), 0.5) * half
            wanted = min(max(action[i, j].item() + shift, LOW[j]), HIGH[j])
            assert got[i, j].item() == pytest.approx(wanted, abs=1e-14)
    assert ((0.2 * noise).abs() > 0.5).any()
    # None at all is none at all.
    for share, bound in ((0.0, 0.5), (0.2, 0.0)):
        assert torch.equal(
            smoothed_action(action, noise, low, high, share, bound), action
        )


@given(st.integers(0, 10_000))
def test_a_smoothed_action_stays_in_the_box_and_near_by(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    low = torch.randn(4, generator=generator, dtype=torch.float64)
    size = 5 * torch.rand(4, generator=generator, dtype=torch.float64)
    share = torch.rand(20, 4, generator=generator, dtype=torch.float64)
    noise = 10 * torch.randn(20, 4, generator=generator, dtype=torch.float64)
    action, high = low + size * share, low + size
    found = smoothed_action(action, noise, low, high)
    assert ((found >= low) & (found <= high)).all()
    assert ((found - action).abs() <= 0.5 * size / 2 + 1e-12).all()


FORMULAS = [clipped_double_target, critic_error, smoothed_action]


@pytest.mark.parametrize("function", FORMULAS)
def test_signatures_hold(function: Any) -> None:
    assert assert_held(function, Random(0)) > 0


def slow_error(
    policy: Policy, target: Policy, batch: Batch, config: DDPGConfig, seed: int
) -> tuple[list[float], list[float], list[float]]:
    """Return losses, TD errors and values, step by step."""
    noise = torch.randn(N, 2, generator=torch.Generator().manual_seed(seed))
    losses, errors, values = [], [], []
    for i in range(N):
        action = target.network.actor(batch.next_obs[i : i + 1])[0][0].tolist()
        for j in range(2):
            half, clip = (HIGH[j] - LOW[j]) / 2, config.smoothing_clip
            shift = min(max(config.smoothing * noise[i, j].item(), -clip), clip)
            action[j] = min(max(action[j] + half * shift, LOW[j]), HIGH[j])
        row = torch.tensor([action], dtype=torch.float64)
        obs = batch.next_obs[i : i + 1]
        judged = [c(obs, action=row)[0].item() for c in target.network.critics]
        aim = batch.reward[i].item() + batch.discount[i].item() * min(judged)
        taken = batch.action[i : i + 1]
        obs = batch.obs[i : i + 1]
        q = [c(obs, action=taken)[0].item() for c in policy.network.critics]
        rates = [config.increase if aim > x else config.decrease for x in q]
        losses.append(
            sum(r * (aim - x) ** 2 / 2 for r, x in zip(rates, q, strict=True))
        )
        values.append(sum(q) / len(q))
        errors.append(aim - values[-1])
    return losses, errors, values


AGENTS: dict[str, DDPGConfig] = {
    "DDPG": DDPGConfig(),
    "HDDPG": HDDPGConfig(),
    "TD3": TD3Config(),
}


def terms(config: DDPGConfig) -> dict[str, float]:
    """Return what ``ddpg_error`` takes of the settings."""
    names = {"clip": "smoothing_clip"} | {
        x: x for x in ("smoothing", "increase", "decrease")
    }
    return {key: getattr(config, name) for key, name in names.items()}


@pytest.mark.parametrize("name", AGENTS)
def test_the_error_against_a_slow_form(name: str) -> None:
    config = AGENTS[name]
    policy = policy_for(config.num_critics)
    target = copy.deepcopy(policy)
    with torch.no_grad():
        for p in target.parameters():
            p.add_(0.3 * torch.randn_like(p))
    batch, generator = batch_of(), torch.Generator().manual_seed(5)
    error = ddpg_error(policy, target, batch, generator, **terms(config))
    with torch.no_grad():
        wanted = slow_error(policy, target, batch, config, 5)
    for got, numbers in zip(error, wanted, strict=True):
        expected = torch.tensor(numbers, dtype=torch.float64)
        torch.testing.assert_close(got.detach(), expected)
    assert not error.td_error.requires_grad
    assert not error.value.requires_grad

    error.backward(batch.weight)
    network: Any = policy.network
    assert all(p.grad is not None for p in network.critics.parameters())
    # The critics' loss moves neither the actor nor anything in the target.
    still = [*network.actor.parameters(), *target.parameters()]
    assert all(p.grad is None for p in still)


@pytest.mark.parametrize("name", AGENTS)
def test_the_error_without_a_graph_is_the_plain_one(name: str) -> None:
    config = AGENTS[name]
    policy, target = policy_for(config.num_critics), policy_for(config.num_critics)
    with torch.no_grad():
        for p in target.parameters():
            p.add_(0.3 * torch.randn_like(p))
    batch, found = batch_of(), []
    for function in (ddpg_error, fused_ddpg_error):
        policy.zero_grad()
        source = torch.Generator().manual_seed(5)
        error = function(policy, target, batch, source, **terms(config))
        error.backward(batch.weight)
        network: Any = policy.network
        grads = [p.grad for p in network.critics.parameters()]
        found.append([error.loss.detach(), error.td_error, error.value, *grads])
        assert all(p.grad is None for p in network.actor.parameters())
    assert isinstance(error, FusedCriticError)
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.equation("tangent-plane")
@given(seed=st.integers(0, 2**32 - 1))
def test_a_frozen_critic_has_its_values_and_its_slopes(seed: int) -> None:
    torch.manual_seed(seed)
    critics: Any = policy_for(2).network.critics
    obs, action = batch_of(seed).obs, batch_of(seed).action.requires_grad_()
    plain = torch.stack([critic(obs, action=action)[0] for critic in critics])
    (wanted,) = torch.autograd.grad(plain.sum(), action)
    frozen = frozen_values(critics, obs, action)
    torch.testing.assert_close(frozen, plain.squeeze(-1))
    frozen.sum().backward()
    torch.testing.assert_close(action.grad, wanted)
    assert all(p.grad is None for p in critics.parameters())


def test_critics_of_ones_own_keep_the_plain_form() -> None:
    network: Any = make_ddpg_policy(
        Reach.observation_space, Reach.action_space, 8, 2, OwnActor(), OwnCritic()
    ).network
    assert critic_chains(network.critics) is None
    obs, action = torch.randn(4, 1), torch.randn(4, 2)
    values = frozen_values(network.critics, obs, action)
    torch.testing.assert_close(values, network.q(obs, action))
    # One that computes something else is not taken for ours.
    other: Any = policy_for(1).network.critics
    other[0].model.net.append(nn.Tanh())
    assert critic_chains(other) is None


# --- The actor's step -----------------------------------------------------------------

SMALL: dict[str, Any] = {
    "total_steps": 300,
    "num_envs": 2,
    "train_interval": 2,
    "hidden": 8,
    "batch_size": 8,
    "learning_starts": 40,
    "epsilon_steps": 50,
    "buffer_size": 150,
    "log_interval": 50,
    "checkpoint_interval": 2,
    "learning_rate": 1e-2,
}


def learner_for(
    config: DDPGConfig, env: Any = Reach, policy: Policy | None = None
) -> DDPG:
    """Build a learner."""
    envs = make_envs(env, config.num_envs)
    torch.manual_seed(config.seed)
    both = envs.single_observation_space, envs.single_action_space
    sizes = config.hidden, config.num_critics
    return DDPG(policy or make_ddpg_policy(*both, *sizes), envs, config)


@pytest.mark.equation("policy-gradient-through-critic")
@pytest.mark.equation("actor-loss")
def test_the_actors_gradient_against_finite_differences_through_the_critic() -> None:
    policy = policy_for(2)
    network: Any = policy.network
    parameters = list(network.actor.parameters())
    obs = torch.randn(N, STATE, dtype=torch.float64)

    def judged() -> float:
        """Return what the first critic thinks of the actor's actions, by hand."""
        action = network.actor(obs)[0]
        return float(network.critics[0](obs, action=action)[0].mean().detach())

    grads = torch.autograd.grad(policy.value(obs).mean(), parameters)
    for parameter, grad in zip(parameters, grads, strict=True):
        flat = parameter.detach().view(-1)
        for place in {0, len(flat) // 2, len(flat) - 1}:
            kept = flat[place].item()
            found = []
            for step in (1e-6, -1e-6):
                flat[place] = kept + step
                found.append(judged())
            flat[place] = kept
            slope = (found[0] - found[1]) / 2e-6
            assert grad.view(-1)[place].item() == pytest.approx(slope, abs=1e-8)

    # The chain rule: the critic's slope in the action, times that of the action.
    action = network.actor(obs)[0].detach().requires_grad_()
    q = network.critics[0](obs, action=action)[0].mean()
    (slope,) = torch.autograd.grad(q, action)
    chained = torch.autograd.grad(network.actor(obs)[0], parameters, slope)
    torch.testing.assert_close(grads, chained)


def test_a_climb_moves_the_actor_uphill_and_nothing_else() -> None:
    learner = learner_for(TD3Config(**SMALL))
    learner.iterate()  # the optimiser has seen gradients of the critics by now
    network = learner.policy.network
    obs = learner.sample().obs
    before = copy.deepcopy(learner.policy.state_dict())
    target = copy.deepcopy(learner.target_policy.state_dict())
    height = network.value(obs).mean()
    for group in learner.optimizer.param_groups:
        group["lr"] = 1e-4
    for _ in range(20):
        learner.climb(obs)
    for name, weight in learner.policy.state_dict().items():
        learned = name.startswith("network.actor") and ".box." not in name
        assert torch.equal(weight, before[name]) != learned, name
    torch.testing.assert_close(
        learner.target_policy.state_dict(), target, rtol=0, atol=0
    )
    assert all(p.grad is None for p in network.critics.parameters())
    assert network.value(obs).mean() > height


def test_the_actors_gradient_is_clipped_too() -> None:
    learner = learner_for(DDPGConfig(**SMALL, max_grad_norm=1e-3))
    learner.iterate()
    learner.climb(100 * learner.sample().obs)
    grads = [p.grad.flatten() for p in learner.actor_parameters]
    assert torch.cat(grads).norm().item() == pytest.approx(1e-3, rel=1e-3)


def test_the_critics_step_does_not_move_the_actor() -> None:
    learner = learner_for(DDPGConfig(**SMALL, target_interval=1000))
    before = copy.deepcopy(learner.policy.network.actor.state_dict())
    critic = copy.deepcopy(learner.policy.network.critics.state_dict())
    for _ in range(4):
        learner.iterate()
    assert 0 < learner.updates < 1000
    after = learner.policy.network
    torch.testing.assert_close(after.actor.state_dict(), before, rtol=0, atol=0)
    moved = after.critics.state_dict()
    assert not any(torch.equal(moved[name], x) for name, x in critic.items())


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_actor_and_targets_move_only_when_it_is_their_turn(delay: int) -> None:
    config = TD3Config(
        **{**SMALL, "learning_starts": 50, "tau": 0.5}, target_interval=delay
    )
    learner = learner_for(config)
    # Steps without updates: the buffer fills.
    learner.config = replace(config, learning_starts=1000)
    learner.iterate()
    assert learner.updates == 0
    for update in range(1, 8):
        actor = copy.deepcopy(learner.policy.network.actor.state_dict())
        target = copy.deepcopy(learner.target_policy.state_dict())
        learner.learn()
        turn = update % delay == 0
        moved = learner.policy.network.actor.state_dict()
        assert learner.updates == update
        same = all(torch.equal(moved[name], x) for name, x in actor.items())
        assert same != turn
        if not turn:
            now = learner.target_policy.state_dict()
            torch.testing.assert_close(now, target, rtol=0, atol=0)
            continue
        # Half the way from where they were to where the new weights are.
        for name, weight in learner.target_policy.state_dict().items():
            wanted = (target[name] + learner.policy.state_dict()[name]) / 2
            torch.testing.assert_close(weight, wanted)


def same_run(one: DDPG, other: DDPG, iterations: int = 5) -> bool:
    """Say whether two learners go the same way, update for update."""
    for _ in range(iterations):
        for learner in (one, other):
            learner.iterate()
        weights = (x.policy.state_dict() for x in (one, other))
        first, second = weights
        if not all(torch.equal(x, second[name]) for name, x in first.items()):
            return False
    return one.updates > 50


@pytest.mark.equation("hysteretic")
def test_equal_rates_are_ddpg() -> None:
    hysteretic = learner_for(HDDPGConfig(**SMALL, decrease=1.0))
    assert same_run(learner_for(DDPGConfig(**SMALL)), hysteretic)
    assert not same_run(
        learner_for(DDPGConfig(**SMALL)), learner_for(HDDPGConfig(**SMALL))
    )


OFF: dict[str, Any] = {"num_critics": 1, "target_interval": 1, "smoothing": 0.0}


def test_td3_without_its_three_parts_is_ddpg() -> None:
    fast: dict[str, Any] = {**SMALL, "tau": 0.5}

    def same(off: dict[str, Any]) -> bool:
        plain = learner_for(DDPGConfig(**fast))
        return same_run(plain, learner_for(TD3Config(**fast, **off)))

    assert same(OFF)
    # And with one of them on it is not.
    for name in OFF:
        assert not same({key: x for key, x in OFF.items() if key != name}), name


# --- Actions --------------------------------------------------------------------------


@pytest.mark.equation("box-noise")
def test_noise_is_in_proportion_to_each_numbers_bounds() -> None:
    actions = BoxActions(LOW, HIGH)
    actions.scale = 0.1
    noise = actions.noise(200, 100, torch.Generator().manual_seed(0))
    row = torch.tensor([1.0, 0.25]).expand(200, 100, 2)
    moved = actions.choose(row, noise) - row
    torch.testing.assert_close(moved, noise[..., :2])
    half = torch.tensor([2.0, 0.25])
    torch.testing.assert_close(
        moved.std((0, 1)) / half, torch.tensor([0.1, 0.1]), rtol=0.02, atol=0
    )
    # Each environment and each step draws for itself.
    flat = moved[..., 0]
    assert len(flat.unique()) > 0.99 * flat.numel()
    assert torch.corrcoef(flat.T).fill_diagonal_(0).abs().max() < 0.4
    assert torch.equal(actions.choose(row, 0.0), row)


def test_first_actions_are_uniform_in_the_box() -> None:
    actions = BoxActions(LOW, HIGH)
    actions.scale, actions.epsilon = 0.1, 1.0
    noise = actions.noise(200, 100, torch.Generator().manual_seed(0))
    drawn = actions.choose(torch.full((200, 100, 2), 7.0), noise).flatten(0, 1)
    low, high = torch.tensor(LOW), torch.tensor(HIGH)
    share = ((drawn - low) / (high - low)).sort(0).values
    assert ((share >= 0) & (share <= 1)).all()
    # The largest distance between the distribution functions, Kolmogorov's.
    ideal = (torch.arange(len(share)) + 0.5).unsqueeze(1) / len(share)
    assert (share - ideal).abs().max() < 1.95 / math.sqrt(len(share))
    assert torch.corrcoef(drawn.T)[0, 1].abs() < 0.03


def test_a_probability_of_zero_explores_not_even_at_the_lowest_draw(
    monkeypatch,
) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.zeros(shape))
    actions = BoxActions(LOW, HIGH)
    assert actions.noise(2, 3, torch.Generator())[..., 2:].isnan().all()
    actions.epsilon = 1.0
    assert not actions.noise(2, 3, torch.Generator()).isnan().any()


def test_each_environment_may_explore_in_its_own_way() -> None:
    actions = BoxActions(LOW, HIGH)
    actions.scale = torch.tensor([0.0, 0.3])
    actions.epsilon = torch.tensor([0.0, 0.5])
    noise = actions.noise(2000, 2, torch.Generator().manual_seed(0))
    drawn = actions.choose(torch.zeros(2000, 2, 2), noise)
    assert (drawn[:, 0] == 0).all()
    random = ~noise[:, 1, 2].isnan()
    assert random.double().mean().item() == pytest.approx(0.5, abs=0.05)
    spread = drawn[:, 1, 0][~random].std().item()
    assert spread == pytest.approx(0.3 * 2.0, rel=0.1)


def test_only_the_environment_gets_a_clipped_action() -> None:
    actions = BoxActions(LOW, HIGH)
    outside = torch.tensor([[9.0, -9.0], [1.0, 0.25]])
    sent = actions.to_env(outside)
    assert sent.tolist() == [[3.0, 0.0], [1.0, 0.25]]
    assert sent.dtype == np.float32
    assert outside.tolist() == [[9.0, -9.0], [1.0, 0.25]]
    # The environment asserts that it gets what lies in its box; the buffer keeps more.
    learner = learner_for(DDPGConfig(**SMALL, noise=2.0))
    for _ in range(3):
        learner.iterate()
    kept = learner.buffer.state_dict()["action"]
    assert (torch.as_tensor(kept)[..., 0] > HIGH[0]).any()


def test_a_discrete_action_is_drawn_and_stored_as_one_hot() -> None:
    actions = OneHotActions(3, start=5)
    prob = torch.tensor([0.2, 0.5, 0.3]).expand(1, 40_000, 3)
    noise = actions.noise(1, 40_000, torch.Generator().manual_seed(0))
    drawn = actions.choose(prob, noise)
    assert drawn.sum(-1).eq(1).all()
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(drawn.mean((0, 1)), prob[0, 0], rtol=0, atol=0.01)
    assert set(actions.to_env(drawn[0]).tolist()) == {5, 6, 7}
    assert actions.choose(prob[0, :1], 0.0).tolist() == [[0.0, 1.0, 0.0]]
    # A random action wins even where its probability is zero.
    actions.epsilon = 1.0
    sure = torch.tensor([1.0, 0.0, 0.0]).expand(1, 9_000, 3)
    noise = actions.noise(1, 9_000, torch.Generator().manual_seed(0))
    share = actions.choose(sure, noise).mean((0, 1))
    torch.testing.assert_close(share, torch.full((3,), 1 / 3), rtol=0, atol=0.02)
    actions.epsilon = 0.0
    noise = actions.noise(1, 9_000, torch.Generator().manual_seed(0))
    assert actions.choose(sure, noise)[..., 0].all()


def test_a_discrete_critic_sees_one_hot_rows_and_probabilities() -> None:
    learner = learner_for(TD3Config(**SMALL), partial(gym.make, DISCRETE))
    for _ in range(2):
        learner.iterate()
    assert learner.updates > 0
    stored = torch.as_tensor(learner.buffer.state_dict()["action"])
    assert stored.shape[-1] == 2
    assert set(stored.unique().tolist()) == {0.0, 1.0}
    prob = learner.policy(torch.randn(5, 4))
    torch.testing.assert_close(prob.sum(-1), torch.ones(5))
    same = learner.policy.actions.nearby(prob, torch.Generator(), 0.2, 0.5)
    assert torch.equal(same, prob)


# --- The loop -------------------------------------------------------------------------


def test_a_time_limit_bootstraps_and_an_end_does_not() -> None:
    seen = {}
    for env in (Reach, Ending):
        learner = learner_for(DDPGConfig(**{**SMALL, "batch_size": 64}), env)
        for _ in range(2):
            learner.iterate()
        batch = learner.sample()
        seen[env] = batch.discount
        with torch.no_grad():
            for p in learner.target_policy.network.critics.parameters():
                p.fill_(1.0)
        error = ddpg_error(
            learner.policy, learner.target_policy, batch, learner.generator
        )
        target = error.td_error + error.value
        ended = batch.discount == 0
        torch.testing.assert_close(target[ended], batch.reward[ended])
        assert (target[~ended] > batch.reward[~ended] + 0.5).all()
    assert (seen[Reach] == 0.99).all()
    assert (seen[Ending] == 0).any()


def test_several_steps_and_priorities() -> None:
    changes = {"num_steps": 3, "alpha": 0.6, "gamma": 0.9}
    learner = learner_for(TD3Config(**{**SMALL, **changes}))
    for _ in range(4):
        learner.iterate()
    assert len(learner.buffer.state_dict()["mass"].unique()) > 10
    batch = learner.sample()
    powers = {round(x, 5) for x in batch.discount.tolist()}
    assert powers <= {0.9, 0.81, 0.729}
    assert 0.729 in powers
    assert batch.weight.min() < 1 == batch.weight.max()
    mass = copy.deepcopy(learner.buffer.state_dict()["mass"])
    error = learner.learn()
    assert isinstance(error, QError)
    assert not torch.equal(learner.buffer.state_dict()["mass"], mass)


CHANGES: dict[str, DDPGConfig] = {
    "DDPG": DDPGConfig(**SMALL),
    "HDDPG": HDDPGConfig(**SMALL),
    "TD3": TD3Config(**SMALL),
    "with priorities": TD3Config(**SMALL, alpha=0.6, num_steps=3),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_resumed_run_is_the_same_bit_for_bit(name: str, tmp_path: Path) -> None:
    config = CHANGES[name]
    whole = learner_for(config)
    fit(whole, progress=False)
    half, resumed = learner_for(config), learner_for(config)
    with Run(tmp_path / "run", {}) as run:
        for _ in range(4):
            half.iterate()
        run.save(half)
    with Run(tmp_path / "run", resume=True) as run:
        run.restore(resumed)
        assert resumed.step == half.step
        fit(resumed, run, progress=False)
    for part in ("policy", "target_policy"):
        weights = (getattr(x, part).state_dict() for x in (whole, resumed))
        torch.testing.assert_close(*weights, rtol=0, atol=0)
    states = whole.state_dict(), resumed.state_dict()
    torch.testing.assert_close(*states, rtol=0, atol=0)
    policy = load(tmp_path / "run")
    assert torch.equal(policy(torch.ones(1, 1)), whole.policy(torch.ones(1, 1)))


@pytest.mark.parametrize("name", AGENTS)
def test_it_learns_to_name_the_point(name: str) -> None:
    config = replace(
        AGENTS[name],
        total_steps=2500,
        hidden=32,
        gamma=0.5,
        batch_size=64,
        learning_rate=3e-3,
        learning_starts=200,
        epsilon_steps=500,
        tau=0.05,
    )
    learner = learner_for(config)
    before = evaluate(learner.policy, Reach, 20).mean()
    fit(learner, progress=False)
    after = evaluate(learner.policy, Reach, 20).mean()
    assert before < -1.5
    assert after > -0.2


# --- Policies and models of one's own -------------------------------------------------


@pytest.mark.parametrize("space", [BOX, spaces.Discrete(3, start=4)])
def test_a_policy_survives_the_way_through_json(space: Any) -> None:
    policy = make_ddpg_policy(OBSERVATIONS, space, 8, 2)
    name, arguments = policy.recipe
    assert name == "make_ddpg_policy"
    again = make_ddpg_policy(**json.loads(json.dumps(arguments)))
    again.load_state_dict(policy.state_dict())
    obs = torch.randn(7, STATE)
    assert torch.equal(again.act(obs, 0.0), policy.act(obs, 0.0))
    assert torch.equal(again.value(obs), policy.value(obs))
    assert len(again.network.critics) == 2


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1.0, 1.0, (2, 2)),
        spaces.Box(-np.inf, 1.0, (2,)),
        spaces.MultiDiscrete([2, 3]),
    ],
)
def test_policies_refuse_other_actions(space: Any) -> None:
    with pytest.raises(ValueError, match="action_space must be Discrete or a vector"):
        make_ddpg_policy(OBSERVATIONS, space)


class OwnActor(nn.Module):
    """An actor with a second result, and weights that its action does not need."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = DeterministicActor(1, LOW, HIGH, hidden=8)
        self.beside, self.fixed = nn.Linear(1, 1), nn.Linear(1, 1)
        self.fixed.requires_grad_(False)

    def forward(self, my_state: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner(my_state), my_state + 1


class OwnCritic(nn.Module):
    """A critic that takes its action first, with a second result."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = ActionValue(1, 2, hidden=8)

    def forward(self, action: Tensor, my_state: Tensor) -> tuple[Tensor, str]:
        return self.inner(my_state, action), "beside"


class TwoActor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = DeterministicActor(2, LOW, HIGH, hidden=8)

    def forward(self, clock: Tensor, point: Tensor) -> Tensor:
        action: Tensor = self.inner(torch.cat([clock, point], 1))
        return action


class TwoCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = ActionValue(2, 2, hidden=8)

    def forward(self, point: Tensor, clock: Tensor, action: Tensor) -> Tensor:
        q_value: Tensor = self.inner(torch.cat([point, clock], 1), action)
        return q_value


SHORT: dict[str, Any] = {
    "total_steps": 120,
    "learning_starts": 60,
    "log_interval": 60,
    "batch_size": 16,
    "progress": False,
}


@pytest.mark.parametrize("algorithm", ["DDPG", "HDDPG", "TD3"])
def test_models_of_ones_own_train_are_saved_and_get_their_weights_back(
    algorithm: str, tmp_path: Path
) -> None:
    actor, critic = OwnActor(), OwnCritic()
    agent = train(algorithm, "Reach-v0", actor=actor, critic=critic, **SHORT)
    assert agent.learner.updates == 61
    network: Any = agent.policy.network
    assert network.actor.model is actor
    assert network.critics[0].model is critic
    assert len(network.critics) == (2 if algorithm == "TD3" else 1)
    state = torch.randn(4, 1)
    action, beside = agent.act({"my_state": state})
    assert torch.equal(action, actor(state)[0])
    assert torch.equal(beside, state + 1)
    saved = agent.save(tmp_path / "agent")
    again = load(saved, actor=OwnActor(), critic=OwnCritic())
    assert torch.equal(again.act(state, 0.0), agent.policy.act(state, 0.0))
    with pytest.raises(ValueError, match=r"actor=OwnActor.*got none"):
        load(saved)


def test_states_reach_models_by_their_names() -> None:
    actor, critic = TwoActor(), TwoCritic()
    agent = train("TD3", "TwoParts-v0", actor=actor, critic=critic, **SHORT)
    point, clock = torch.randn(3, 1), torch.rand(3, 1)
    got = agent.act({"point": point, "clock": clock})
    assert torch.equal(got, actor(clock, point))
    # In the rows of the loop the names are sorted, as Gymnasium lays them.
    rows = torch.cat([clock, point], 1)
    assert torch.equal(agent.policy(rows), got)
    q = agent.policy.network.q(rows, got)
    torch.testing.assert_close(q[0], critic(point, clock, got).squeeze(1))


def test_a_second_critic_is_given_or_begins_anew() -> None:
    first, second = OwnCritic(), OwnCritic()
    build = partial(make_ddpg_policy, Reach.observation_space, BOX, 8)
    for several in ([first, second], (first, second), nn.ModuleList([first, second])):
        policy = build(num_critics=2, actor=OwnActor(), critic=several)
        assert [x.model for x in policy.network.critics] == [first, second]
    before = copy.deepcopy(first.state_dict())
    policy = build(num_critics=3, actor=OwnActor(), critic=first)
    models = [x.model for x in policy.network.critics]
    assert models[0] is first
    torch.testing.assert_close(first.state_dict(), before, rtol=0, atol=0)
    weights = [x.inner.net[0].weight for x in models]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not torch.equal(weights[one], weights[other])


@pytest.mark.parametrize("algorithm", ["DDPG", "HDDPG", "TD3"])
def test_our_own_agents_act_in_states_and_in_discrete_actions(algorithm: str) -> None:
    agent = train(algorithm, DISCRETE, **SHORT)
    action = agent.act({"state": torch.randn(4, 4)})
    assert action.shape == (4, 2)
    assert action.sum(-1).eq(1).all()
    assert evaluate(agent.policy, DISCRETE, 2).min() > 0


class Loud(OwnActor):
    """It leaves the box."""

    def forward(self, my_state: Tensor) -> tuple[Tensor, Tensor]:
        action, beside = super().forward(my_state)
        return 5 * action, beside


class Deaf(OwnCritic):
    """It does not look at the action."""

    def forward(self, action: Tensor, my_state: Tensor) -> tuple[Tensor, str]:
        return super().forward(0 * action, my_state)


class Flat(OwnCritic):
    """It forgets the last dimension."""

    def forward(self, action: Tensor, my_state: Tensor) -> tuple[Tensor, str]:
        q, beside = super().forward(action, my_state)
        return q.squeeze(-1), beside


@pytest.mark.parametrize(
    ("actor", "critic", "message"),
    [
        (Loud(), OwnCritic(), r"action\[:, [01]\] must lie in"),
        (OwnActor(), Deaf(), "gradient"),
        (OwnActor(), Flat(), r"q_value must have shape \(5, 1\)"),
        (OwnActor(), [OwnCritic(), Flat()], "critic 2"),
        (OwnActor(), OwnActor(), "action"),
    ],
)
def test_models_that_break_the_contract_are_not_trained(
    actor: nn.Module, critic: Any, message: str
) -> None:
    before = copy.deepcopy(actor.state_dict())
    with pytest.raises(ContractError, match=message):
        train("TD3", "Reach-v0", actor=actor, critic=critic, **SHORT)
    torch.testing.assert_close(actor.state_dict(), before, rtol=0, atol=0)


def test_what_cannot_be_trained_is_said() -> None:
    with pytest.raises(ValueError, match="for td3 must be actor and critic, got actor"):
        train("TD3", "Reach-v0", actor=OwnActor(), **SHORT)
    with pytest.raises(ValueError, match="noise"):
        DDPGConfig(noise=-0.1)
    with pytest.raises(ValueError, match="num_critics"):
        TD3Config(num_critics=0)


def test_settings_by_environment() -> None:
    assert ddpg_settings(ENV).total_steps == 10_000
    assert type(hddpg_settings(ENV)) is HDDPGConfig
    assert type(td3_settings("other")) is TD3Config
    changed = {"num_critics": 2, "target_interval": 2, "smoothing": 0.2}
    both = asdict(ddpg_settings(ENV)), asdict(td3_settings(ENV))
    assert both[0] | changed == both[1]
    assert both[0] | {"decrease": 0.5} == asdict(hddpg_settings(ENV))


@pytest.mark.parametrize("algorithm", ["ddpg", "hddpg", "td3"])
def test_the_command_line(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    models = ["--actor", "own_models:actor", "--critic", "own_models:critic"]
    (tmp_path / "own_models.py").write_text(
        "from literate_rl.contract_models import ActionValue, DeterministicActor\n"
        "def actor(): return DeterministicActor(3, [-2.0], [2.0])\n"
        "def critic(): return ActionValue(3, 1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    short = [
        "--total-steps",
        "200",
        "--learning-starts",
        "100",
        "--log-interval",
        "100",
    ]
    for name, extra in (("ours", []), ("own", models)):
        arguments = [algorithm, "--env", ENV, "--name", name, *short, *extra]
        assert main(arguments) in (0, None)
        assert (tmp_path / "runs" / name / "checkpoint.pt").exists()
    settings = json.loads((tmp_path / "runs/own/settings.json").read_text())
    assert settings["algorithm"] == algorithm


# --- Errata ---------------------------------------------------------------------------


@pytest.mark.erratum("one-noise-for-the-batch")
def test_one_noise_for_all_shifts_and_does_not_spread() -> None:
    low, high = (torch.tensor(x) for x in (LOW, HIGH))
    action = ((low + high) / 2).expand(500, 2)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(500, 2, generator=generator)
    each = smoothed_action(action, noise, low, high)
    same = smoothed_action(action, noise[:1].expand(500, 2), low, high)
    assert (each.std(0) > 0.1 * (high - low) / 2).all()
    assert torch.equal(same, same[:1].expand(500, 2))
    assert not torch.equal(same, action)


@pytest.mark.erratum("one-draw-for-all-environments")
def test_one_draw_moves_all_environments_alike() -> None:
    action, scale = torch.zeros(4, 2), torch.tensor([2.0, 0.25])
    one = action + torch.normal(0, scale * 0.1)
    assert torch.equal(one, one[:1].expand(4, 2))
    assert one.abs().min() > 0
    actions = BoxActions(LOW, HIGH)
    actions.scale = 0.1
    ours = actions.noise(1, 4, torch.Generator().manual_seed(0))[0]
    assert len(actions.choose(action, ours)[:, 0].unique()) == 4


@pytest.mark.erratum("twins-that-are-one")
def test_a_copied_critic_stays_a_copy() -> None:
    first = OwnCritic()
    for fresh in (False, True):
        given = first if fresh else [first, copy.deepcopy(first)]
        policy = make_ddpg_policy(
            Reach.observation_space, BOX, 8, 2, actor=OwnActor(), critic=given
        )
        learner = learner_for(TD3Config(**SMALL), policy=policy)
        for _ in range(3):
            learner.iterate()
        batch = learner.sample()
        one, other = learner.policy.network.q(batch.obs, batch.action)
        assert torch.equal(one, other) != fresh
        first = OwnCritic()


@pytest.mark.erratum("target-outside-the-box")
def test_noise_without_a_clip_leaves_the_box() -> None:
    low, high = torch.tensor([-1.0]), torch.tensor([1.0])
    edge = torch.full((200, 1), 0.95)
    noise = torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
    assert (edge + (0.2 * noise).clamp(-0.5, 0.5)).max() > 1.2
    assert smoothed_action(edge, noise, low, high).max() == 1


@pytest.mark.erratum("discrete-batch-of-one")
def test_a_sample_for_each_row_and_each_row_again() -> None:
    def draw(rows: int) -> Tensor:
        prob = torch.full((rows, 3), 1 / 3)
        drawn = torch.distributions.Categorical(prob).sample(torch.Size([rows, 1]))
        return drawn.view(rows, 1)

    assert draw(1).shape == (1, 1)
    with pytest.raises(RuntimeError, match="invalid for input of size 16"):
        draw(4)
    actions = OneHotActions(3)
    noise = actions.noise(1, 4, torch.Generator().manual_seed(0))[0]
    assert actions.choose(torch.full((4, 3), 1 / 3), noise).shape == (4, 3)
