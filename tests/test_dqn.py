"""DQN: targets, values, chance, the error, the older network, and what it learns."""

from __future__ import annotations

import copy
import json
import math
import re
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import numpy as np
import pytest
import torch
from fuzz import assert_held
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from learning import assert_for_most_seeds
from torch import Tensor, nn
from worlds import moody

from literate_rl.actors.actors import Actor, slot_layout
from literate_rl.apps.programs import run_program
from literate_rl.by_hand.fast_forms import (
    FusedQError,
    chain_outputs,
    fused_q_error,
    numpy_act,
)
from literate_rl.data.agents import make_envs
from literate_rl.data.replay import Batch, ReplayBuffer
from literate_rl.learners.dqn import (
    DQN,
    DQNConfig,
    EpsilonGreedy,
    QLearning,
    dqn_settings,
    dueling_layer,
    make_q_policy,
)
from literate_rl.learners.loop import TargetNetwork, polyak_update
from literate_rl.maths.dqn import double_q_target, dueling_q, q_target
from literate_rl.nets.policies import Policy
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import fit, flat_env

N, ACTIONS = 5, 3
ENV = "CartPole-v1"


def random_parts(seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Return rewards, discounts, and two tables of values."""
    generator = torch.Generator().manual_seed(seed)
    reward, discount = torch.rand(2, N, generator=generator, dtype=dtype)
    discount[0] = 0.0
    q = torch.randn(2, N, ACTIONS, generator=generator, dtype=dtype)
    return reward, discount, *q


# --- Targets --------------------------------------------------------------------------


@pytest.mark.equation("q-target")
@pytest.mark.parametrize("seed", range(5))
def test_the_target_is_the_best_of_the_next_values(seed: int) -> None:
    reward, discount, next_q, _ = random_parts(seed)
    wanted = [
        float(r) + float(d) * max(map(float, row))
        for r, d, row in zip(reward, discount, next_q, strict=True)
    ]
    got = q_target(reward, discount, next_q)
    torch.testing.assert_close(got, torch.tensor(wanted, dtype=torch.float64))


@pytest.mark.equation("double-q-target")
@pytest.mark.parametrize("seed", range(5))
def test_one_network_chooses_and_the_other_judges(seed: int) -> None:
    reward, discount, next_q, chooser = random_parts(seed)
    wanted = []
    for i in range(N):
        best = max(range(ACTIONS), key=lambda a: float(chooser[i, a]))
        wanted.append(float(reward[i]) + float(discount[i]) * float(next_q[i, best]))
    got = double_q_target(reward, discount, next_q, chooser)
    torch.testing.assert_close(got, torch.tensor(wanted, dtype=torch.float64))


@given(st.integers(0, 10_000))
def test_double_never_promises_more_than_the_maximum(seed: int) -> None:
    reward, discount, next_q, chooser = random_parts(seed)
    single = q_target(reward, discount, next_q)
    assert (double_q_target(reward, discount, next_q, chooser) <= single).all()
    same = double_q_target(reward, discount, next_q, next_q)
    assert torch.equal(same, single)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_follows_a_termination_may_hold_anything(bad: float) -> None:
    reward, discount, next_q, chooser = random_parts(0)
    wanted = q_target(reward, discount, next_q)
    next_q[0] = bad
    assert torch.equal(q_target(reward, discount, next_q), wanted)
    assert torch.isfinite(double_q_target(reward, discount, next_q, chooser)).all()
    next_q[1] = math.nan
    with pytest.raises(ValueError, match="next_q must be finite"):
        q_target(reward, discount, next_q)
    with pytest.raises(ValueError, match="reward must be finite"):
        q_target(reward * math.nan, discount, chooser)


def test_targets_carry_no_gradient() -> None:
    reward, discount, next_q, chooser = random_parts(0)
    next_q.requires_grad_(), chooser.requires_grad_()
    assert not q_target(reward, discount, next_q).requires_grad
    assert not double_q_target(reward, discount, next_q, chooser).requires_grad


@pytest.mark.parametrize("function", [q_target, double_q_target, dueling_q])
def test_signatures_hold(function: Any) -> None:
    assert assert_held(function, Random(0)) > 0


# --- Dueling --------------------------------------------------------------------------


@pytest.mark.equation("dueling")
def test_the_mean_of_the_values_is_the_state_value() -> None:
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(N, 1, generator=generator, dtype=torch.float64)
    advantage = torch.randn(N, ACTIONS, generator=generator, dtype=torch.float64)
    q = dueling_q(value, advantage)
    for i in range(N):
        mean = sum(map(float, advantage[i])) / ACTIONS
        for a in range(ACTIONS):
            wanted = float(value[i, 0]) + float(advantage[i, a]) - mean
            assert q[i, a].item() == pytest.approx(wanted, abs=1e-12)
    torch.testing.assert_close(q.mean(-1), value[:, 0])
    # A constant on all advantages changes nothing: the mean is that of the actions.
    torch.testing.assert_close(dueling_q(value, advantage + 7), q)


def test_the_layer_computes_what_the_formula_says_gradients_included() -> None:
    both = torch.randn(N, 1 + ACTIONS, dtype=torch.float64, requires_grad=True)
    layer = dueling_layer(ACTIONS).double()
    plain = dueling_q(both[:, :1], both[:, 1:])
    torch.testing.assert_close(layer(both), plain, rtol=0, atol=1e-6)
    weight = torch.randn(N, ACTIONS, dtype=torch.float64)
    (wanted,) = torch.autograd.grad((plain * weight).sum(), both)
    (got,) = torch.autograd.grad((layer(both) * weight).sum(), both)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6)
    assert not any(p.requires_grad for p in layer.parameters())


# --- The policy -----------------------------------------------------------------------


@pytest.mark.equation("epsilon-noise")
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_each_environment_tosses_its_own_coin(epsilon: float) -> None:
    actions = EpsilonGreedy(4)
    actions.epsilon = epsilon
    noise = actions.noise(500, 20, torch.Generator().manual_seed(0))
    blind = noise.any(-1)
    assert noise.isfinite().all()
    share = blind.double().mean().item()
    assert abs(share - epsilon) < 4 * math.sqrt(epsilon * (1 - epsilon) / 10_000) + 1e-9
    # With one coin for all of them, a step would have none or all: the variance over
    # the steps of how many explore would be 20 times that of 20 coins.
    counts = blind.sum(1).double()
    assert counts.var().item() < 1.5 * 20 * epsilon * (1 - epsilon) + 1e-9
    # Whatever the values, the action is the greedy one or the one that won the race.
    row = 1e14 * torch.randn(500, 20, 4)
    chosen = actions.choose(row, noise)
    wanted = torch.where(blind, noise.argmax(-1), row.argmax(-1))
    assert torch.equal(chosen, wanted)
    assert torch.equal(actions.choose(row, 0.0), row.argmax(-1))
    # But no noise lets an action win whose value is minus infinity.
    row[..., 1] = -math.inf
    chosen = actions.choose(row, noise)
    wanted = noise.index_fill(-1, torch.tensor(1), -1.0).argmax(-1)
    assert torch.equal(chosen, torch.where(blind, wanted, row.argmax(-1)))
    assert (epsilon == 0.0) or set(chosen[blind].tolist()) == {0, 2, 3}


def test_a_probability_of_zero_explores_not_even_at_the_lowest_draw(
    monkeypatch,
) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.zeros(shape))
    assert not EpsilonGreedy(3).noise(2, 3, torch.Generator()).any()


def test_each_environment_may_have_its_own_chance() -> None:
    actions = EpsilonGreedy(2)
    actions.epsilon = torch.tensor([0.0, 0.5, 1.0])
    noise = actions.noise(2000, 3, torch.Generator().manual_seed(0))
    share = noise.any(-1).double().mean(0)
    torch.testing.assert_close(
        share, torch.tensor([0.0, 0.5, 1.0]).double(), rtol=0, atol=0.05
    )


def test_probabilities_are_the_frequencies() -> None:
    actions = EpsilonGreedy(3)
    actions.epsilon = 0.4
    row = torch.tensor([[0.0, 2.0, 1.0]]).expand(60_000, 3)
    noise = actions.noise(1, 60_000, torch.Generator().manual_seed(0))[0]
    share = actions.choose(row, noise).bincount(minlength=3) / 60_000
    log_prob, entropy = actions.evaluate(row[:3], torch.arange(3))
    torch.testing.assert_close(log_prob.exp(), share, rtol=0, atol=0.01)
    assert log_prob.exp().sum().item() == pytest.approx(1.0)
    wanted = -(log_prob * log_prob.exp()).sum()
    torch.testing.assert_close(entropy, wanted.expand(3))
    actions.epsilon = 0.0
    log_prob, entropy = actions.evaluate(row[:3], torch.arange(3))
    assert log_prob.tolist() == [-math.inf, 0.0, -math.inf]
    assert entropy.tolist() == [0.0] * 3


def policy_for(env: str = ENV, **arguments: Any) -> Policy:
    """Build a policy for an environment."""
    made = flat_env(env)
    return make_q_policy(made.observation_space, made.action_space, **arguments)


@pytest.mark.parametrize("dueling", [False, True])
def test_numpy_acts_as_torch_does(dueling: bool) -> None:
    torch.manual_seed(0)
    policy = policy_for(hidden=16, dueling=dueling)
    policy.actions.epsilon = 0.5
    act = numpy_act(policy)
    obs = torch.randn(200, 4)
    for _ in range(2):
        noise = policy.noise(1, 200, torch.Generator().manual_seed(1))[0]
        with torch.no_grad():
            assert torch.equal(act(obs, noise), policy.act(obs, noise))
            for p in policy.parameters():
                p.add_(0.1 * torch.randn_like(p) * p.requires_grad)


def test_numpy_refuses_networks_that_it_does_not_know() -> None:
    class Own(nn.Sequential):
        def forward(self, obs: Tensor) -> Tensor:
            return -super().forward(obs)

    strange = nn.Sequential(nn.Linear(4, 2), nn.GELU())
    for network in (Own(nn.Linear(4, 2)), strange, nn.Bilinear(1, 2, 3)):
        with pytest.raises(ValueError, match="there, without hooks or methods"):
            numpy_act(Policy(network, EpsilonGreedy(2)))


def test_a_policy_survives_the_way_through_json_and_acts_greedily() -> None:
    policy = policy_for(hidden=8, dueling=True)
    name, arguments = policy.recipe
    assert name == "make_q_policy"
    again = make_q_policy(**json.loads(json.dumps(arguments)))
    again.load_state_dict(policy.state_dict())
    obs = torch.randn(6, 4)
    assert torch.equal(again(obs), policy(obs))
    assert torch.equal(policy.value(obs), policy(obs).amax(-1))
    assert policy.to_env(policy.act(obs, 0.0)).dtype == np.int64
    returns = evaluate(policy, ENV, 3)
    assert returns.shape == (3,)


def test_policies_refuse_other_spaces() -> None:
    box, discrete = spaces.Box(-1, 1, (3,)), spaces.Discrete(2, start=5)
    policy = make_q_policy(box, discrete)
    assert policy.to_env(torch.tensor([0, 1])).tolist() == [5, 6]
    with pytest.raises(ValueError, match="action_space must be Discrete"):
        make_q_policy(box, box)
    with pytest.raises(ValueError, match="observation_space must be a box of vectors"):
        make_q_policy(discrete, discrete)


def test_actors_take_a_policy_of_values_as_it_is() -> None:
    policy = policy_for(hidden=8)
    policy.actions.epsilon = 0.2
    build = partial(make_envs, partial(flat_env, ENV), 2)
    record = np.zeros((), slot_layout(policy, build(), 6))
    actor = Actor(build, policy, seed=3)
    actor.work({k: x.numpy() for k, x in policy.state_dict().items()}, record["result"])
    log_prob = record["result"]["log_prob"]
    known = [math.log(0.9), math.log(0.1)]
    assert all(min(abs(x - y) for y in known) < 1e-6 for x in log_prob.flatten())


# --- The error and the older network --------------------------------------------------


def batch_of(seed: int) -> Batch:
    """Return a random batch of CartPole's shapes."""
    generator = torch.Generator().manual_seed(seed)
    obs, next_obs = torch.randn(2, N, 4, generator=generator)
    reward, discount, weight = torch.rand(3, N, generator=generator)
    discount[1] = 0.0
    action = torch.randint(2, (N,), generator=generator)
    return Batch(obs, action, reward, next_obs, discount, weight, torch.arange(N))


def error_of(
    policy: Any, older: Any, batch: Batch, double: bool = True, error: Any = None
) -> Any:
    """Return the error of a batch, where this is the older network."""
    algorithm = QLearning(policy, DQNConfig(double=double))
    algorithm.target.network = older
    return (error or QLearning.error)(algorithm, batch, torch.Generator())


@pytest.mark.equation("huber")
@pytest.mark.parametrize("double", [False, True])
def test_the_error_against_a_slow_form(double: bool) -> None:
    torch.manual_seed(2)
    policy, target = (policy_for(hidden=8).double() for _ in range(2))
    # Large values, so that both parts of the loss are met.
    batch = batch_of(0)
    batch = Batch(*(x.double() if x.is_floating_point() else x for x in batch[:7]))
    batch = batch._replace(reward=4 * batch.reward)
    error = error_of(policy, target, batch, double)
    with torch.no_grad():
        for i in range(N):
            row = policy(batch.obs[i])
            q = row[batch.action[i]].item()
            judged = target(batch.next_obs[i]).tolist()
            chosen = policy(batch.next_obs[i]).tolist() if double else judged
            best = max(range(2), key=chosen.__getitem__)
            aim = batch.reward[i].item() + batch.discount[i].item() * judged[best]
            delta = aim - q
            huber = delta**2 / 2 if abs(delta) < 1 else abs(delta) - 0.5
            assert error.loss[i].item() == pytest.approx(huber, abs=1e-12)
            assert error.td_error[i].item() == pytest.approx(delta, abs=1e-12)
            assert error.value[i].item() == pytest.approx(q, abs=1e-12)
    assert error.td_error.abs().max() > 1 > error.td_error.abs().min()
    # Somewhere the two networks choose differently.
    rows = (chooser(batch.next_obs).argmax(-1) for chooser in (policy, target))
    assert (torch.ne(*rows) & (batch.discount > 0)).any()

    # The gradient with respect to a value is the TD error, held to -1..1.
    row = policy(batch.obs).detach().requires_grad_()
    fixed = Policy(nn.Identity(), EpsilonGreedy(2))
    signed = row.detach()[range(N), batch.action]
    error = error_of(fixed, fixed, batch._replace(obs=row, next_obs=row.detach()))
    (grad,) = torch.autograd.grad(error.loss.sum(), row)
    aim = batch.reward + batch.discount * row.detach().amax(-1)
    wanted = torch.zeros_like(row)
    wanted[range(N), batch.action] = (signed - aim).clamp(-1, 1)
    torch.testing.assert_close(grad, wanted)


def test_only_the_policy_in_training_gets_a_gradient() -> None:
    policy, target = policy_for(hidden=8), policy_for(hidden=8)
    error_of(policy, target, batch_of(0)).loss.mean().backward()
    assert all(p.grad is not None for p in policy.parameters())
    assert all(p.grad is None for p in target.parameters())


@pytest.mark.parametrize("shape", [(4,), (1, 4), (3, 1), (), (3, 5)])
def test_a_target_of_another_shape_is_refused_and_stays(shape):
    target = [torch.zeros(2), torch.zeros(3, 4)]
    words = re.escape(f"source[1] must have shape (3, 4) like target's, got {shape}")
    with pytest.raises(ValueError, match=words):
        polyak_update(target, [torch.ones(2), torch.ones(shape)], 0.5)
    assert not any(x.any() for x in target), "nothing has moved"


@pytest.mark.equation("polyak")
def test_the_target_moves_by_a_share() -> None:
    target, source = ([torch.randn(3), torch.randn(2, 2)] for _ in range(2))
    before = [x.clone() for x in target]
    wanted = [0.9 * x + 0.1 * y for x, y in zip(target, source, strict=True)]
    polyak_update(target, source, 0.1)
    torch.testing.assert_close(target, wanted)
    polyak_update(target, source, 1.0)
    assert all(map(torch.equal, target, source))
    polyak_update(target, before, 0.0)
    assert all(map(torch.equal, target, source))


class Counted(nn.Sequential):
    """Layers with numbers that no optimiser moves: of all kinds."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 2))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("wide", torch.zeros((), dtype=torch.float64))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("seen", torch.zeros(2, dtype=torch.bool))
        self.register_buffer("not_stored", torch.zeros(1), persistent=False)


def numbers_of(network: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


@pytest.mark.parametrize("tau", [0.25, 1.0])
@pytest.mark.parametrize("anew", [False, True])
def test_weights_and_buffers_reach_the_target(tau: float, anew: bool) -> None:
    network = Counted()
    target = TargetNetwork(network)
    before = copy.deepcopy(numbers_of(target.network))
    for name in dict(network.named_buffers()) if anew else ():
        # A module may put another tensor in the place of a buffer.
        setattr(network, name, getattr(network, name).clone())
    with torch.no_grad():
        for x in (*network.parameters(), *network.buffers()):
            x.add_(4) if x.dtype != torch.bool else x.logical_not_()
    target.follow(tau)
    now = numbers_of(network)
    for name, x in numbers_of(target.network).items():
        moved = before[name] + tau * 4 if x.is_floating_point() else now[name]
        torch.testing.assert_close(x, moved)


def test_a_target_follows_a_copy_and_numbers_that_have_moved() -> None:
    network = moody(4, 2)
    network, target = copy.deepcopy((network, TargetNetwork(network)))
    network.double()
    target.network.double()
    with torch.no_grad():
        for x in network.parameters():
            x.data = x + 1  # another memory
    target.follow(1.0)
    torch.testing.assert_close(target.network.state_dict(), network.state_dict())


def test_the_target_is_a_copy_that_nobody_trains() -> None:
    network = moody(4, 2).train()
    target = TargetNetwork(network)
    assert not any(module.training for module in target.network.modules())
    assert not any(p.requires_grad for p in target.network.parameters())
    kept = copy.deepcopy(target.network.state_dict())
    assert kept
    with torch.no_grad():
        for x in network.state_dict().values():
            x.add_(1)
    torch.testing.assert_close(target.network.state_dict(), kept, rtol=0, atol=0)
    assert all(p.requires_grad for p in network.parameters())


# --- The agent -----------------------------------------------------------------------


def test_random_actions_become_rarer_and_the_metrics_say_so() -> None:
    config = DQNConfig(epsilon_start=0.8, epsilon_end=0.2, epsilon_steps=100)
    algorithm = QLearning(policy_for(), config)
    for step, epsilon in ((0, 0.8), (50, 0.5), (100, 0.2), (1000, 0.2)):
        algorithm.explore(step)
        assert algorithm.policy.actions.epsilon == pytest.approx(epsilon)
        assert algorithm.metrics() == {"charts/epsilon": pytest.approx(epsilon)}


def test_it_learns_to_tell_left_from_right() -> None:
    class Signs(gym.Env[Any, Any]):
        """The sign that is seen is the action that pays; six steps in a row."""

        observation_space = spaces.Box(-1, 1, (1,))
        action_space = spaces.Discrete(2)

        def look(self) -> Any:
            self.sign = int(self.np_random.integers(2))
            return np.array([2 * self.sign - 1], np.float32)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.time = 0
            return self.look(), {}

        def step(self, action: Any) -> Any:
            reward = float(action == self.sign)
            self.time += 1
            return self.look(), reward, self.time == 6, False, {}

    config = DQNConfig(
        total_steps=3000,
        num_envs=2,
        hidden=16,
        gamma=0.5,
        learning_rate=3e-3,
        batch_size=32,
        learning_starts=100,
        epsilon_steps=1000,
        tau=0.05,
    )
    envs = make_envs(Signs, 2)
    both = envs.single_observation_space, envs.single_action_space

    def check(seed: int) -> None:
        torch.manual_seed(seed)
        policy = make_q_policy(*both, 16)
        fit(DQN(policy, envs, replace(config, seed=seed)), progress=False)
        assert evaluate(policy, Signs, 10).tolist() == [6.0] * 10
        # Each later step pays 1 and counts half; the time left is not seen, so a value
        # is between 1 (nothing follows) and 2 (for ever).
        row = policy(torch.tensor([[-1.0], [1.0]]))
        right, wrong = row[[0, 1], [0, 1]], row[[0, 1], [1, 0]]
        assert (right > 1.2).all()
        assert (right < 2.0).all()
        torch.testing.assert_close(right - wrong, torch.ones(2), rtol=0, atol=0.2)

    assert_for_most_seeds(check)


def test_it_does_what_the_program_does() -> None:
    """Given the batches that the program drew, it ends with the same weights."""
    batches: list[Batch] = []

    class Recorded(ReplayBuffer):
        """A buffer that keeps what was drawn from it."""

        def sample(self, *settings: Any) -> Batch:
            batches.append(super().sample(*settings))
            return batches[-1]

    with patch("literate_rl.data.replay.ReplayBuffer", Recorded):
        made = run_program("dqn", total_steps=1100)
    torch.manual_seed(1)
    envs = make_envs(ENV, 4)
    policy = make_q_policy(envs.single_observation_space, envs.single_action_space)
    names = ("gamma", "tau", "learning_rate")
    config = DQNConfig(
        num_steps=made["n"],
        reward_scale=made["scale"],
        max_grad_norm=math.inf,
        **{name: made[name] for name in names},
    )
    learner: Any = DQN(policy, envs, config)
    start = copy.deepcopy(policy)
    for number, batch in enumerate(batches):
        # Two updates after each round of four steps; the learning rate falls.
        rate = config.learning_rate * (1 - (1000 + 4 * (number // 2)) / 1100)
        learner.optimizer.param_groups[0]["lr"] = rate
        scaled = batch._replace(reward=made["scale"] * batch.reward)
        learner.sample = lambda scaled=scaled: scaled
        learner.learn()
    assert len(batches) == 50
    for x, y in zip(made["network"].parameters(), policy.parameters(), strict=True):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-5)
    for x, y in zip(start.parameters(), policy.parameters(), strict=True):
        assert not torch.allclose(x, y, atol=1e-4)


def test_settings_by_environment() -> None:
    assert dqn_settings(ENV).num_steps == 20
    assert dqn_settings("Acrobot-v1") == DQNConfig()


@pytest.mark.equation("chain-gradient")
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
def test_the_fused_error_is_the_plain_one_gradients_included(
    double: bool, dueling: bool
) -> None:
    torch.manual_seed(0)
    policy, target = (policy_for(hidden=8, dueling=dueling).double() for _ in range(2))
    batch = batch_of(1)
    batch = Batch(*(x.double() if x.is_floating_point() else x for x in batch[:7]))
    batch = batch._replace(reward=4 * batch.reward)
    found = []
    for form in (None, fused_q_error(policy)):
        policy.zero_grad()
        error = error_of(policy, target, batch, double, form)
        error.backward(batch.weight)
        gradients = [p.grad for p in policy.parameters() if p.requires_grad]
        assert all(gradient.abs().sum() > 0 for gradient in gradients)
        found.append((error.loss.detach(), error.td_error, error.value, gradients))
    assert isinstance(error, FusedQError)
    torch.testing.assert_close(*found)
    assert all(p.grad is None for p in target.parameters())


def test_a_chain_that_begins_with_a_relu_leaves_its_input_as_it_is() -> None:
    layers = [nn.ReLU(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)]
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    with torch.no_grad():
        outputs = chain_outputs(layers, x)
        wanted = nn.Sequential(*layers)(before)
    torch.testing.assert_close(outputs[-1], wanted)
    assert torch.equal(x, before)


def test_the_fused_error_refuses_what_needs_autograd() -> None:
    layers = nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 2)
    policy = Policy(nn.Sequential(*layers), EpsilonGreedy(2))
    with pytest.raises(ValueError, match="Linear or ReLU there"):
        fused_q_error(policy)
    # The plain error takes it.
    error_of(policy, policy, batch_of(0)).backward(torch.ones(N))
    assert all(p.grad is not None for p in policy.parameters())


# --- Errata --------------------------------------------------------------------------


@pytest.mark.erratum("one-coin")
def test_one_coin_for_all_explores_with_all_or_none() -> None:
    actions = EpsilonGreedy(4)
    actions.epsilon = 0.05
    coins = actions.noise(20_000, 8, torch.Generator().manual_seed(0)).any(-1)
    one = coins[:, :1].expand(-1, 8)
    shares = [x.double().mean().item() for x in (coins, one)]
    assert shares == pytest.approx([0.05, 0.05], abs=0.005)
    none = [(x.sum(1) == 0).double().mean().item() for x in (coins, one)]
    assert none == pytest.approx([0.95**8, 0.95], abs=0.01)
    assert set(one.sum(1).tolist()) == {0, 8}


@pytest.mark.erratum("dueling-mean")
def test_a_mean_over_the_batch_makes_states_depend_on_each_other() -> None:
    value = torch.zeros(3, 1)
    advantage = torch.tensor([[1.0, -1.0], [5.0, 3.0], [-2.0, 2.0]])
    wrong = value + advantage - advantage.mean()
    alone = value[:1] + advantage[:1] - advantage[:1].mean()
    assert not torch.allclose(wrong[:1], alone)
    assert wrong.mean(1).abs().max() > 1
    whole = dueling_q(value, advantage)
    assert torch.equal(whole[:1], dueling_q(value[:1], advantage[:1]))
    assert whole.mean(1).abs().max() == 0


@pytest.mark.erratum("bound-of-zero")
def test_zero_is_not_none() -> None:
    def lower(value_min: float | None, value_max: float) -> float:
        return value_min if value_min else -value_max

    assert lower(None, 10.0) == lower(0.0, 10.0) == -10.0
    assert lower(-1.0, 10.0) == -1.0
    atoms = np.linspace(lower(0.0, 10.0), 10.0, 51)
    assert (atoms < 0).sum() == 25
