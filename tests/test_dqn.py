"""DQN: targets, values, chance, the error, the older network, and what it learns."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
from learning import assert_for_most_seeds
from torch import Tensor, nn
from worlds import Apart

from literate_rl import evaluate, train
from literate_rl.by_hand.fast_forms import FusedQError, fused_q_error
from literate_rl.data.replay import Batch
from literate_rl.learners.dqn import (
    DQNConfig,
    EpsilonGreedy,
    QLearning,
    dueling_layer,
    make_q_policy,
)
from literate_rl.learners.loop import TargetNetwork, polyak_update
from literate_rl.maths.c51 import project_distribution
from literate_rl.maths.dqn import double_q_target, dueling_q, q_target
from literate_rl.nets.policies import Policy
from literate_rl.runs.runs import flat_env

N, ACTIONS = 5, 3
ENV = "CartPole-v1"


def random_parts(seed: int) -> tuple[Tensor, ...]:
    """Return rewards, discounts, and two tables of values."""
    generator = torch.Generator().manual_seed(seed)
    reward, discount = torch.rand(2, N, generator=generator, dtype=torch.float64)
    discount[0] = 0.0
    return reward, discount, *torch.randn(2, N, ACTIONS, generator=generator).double()


# --- Targets --------------------------------------------------------------------------


@pytest.mark.equation("q-target")
@pytest.mark.equation("double-q-target")
def test_one_network_chooses_and_the_other_judges():
    reward, discount, next_q, chooser = random_parts(4)
    for found, judge in (
        (q_target(reward, discount, next_q), next_q),
        (double_q_target(reward, discount, next_q, chooser), chooser),
    ):
        best = [max(range(ACTIONS), key=row.__getitem__) for row in judge.tolist()]
        wanted = reward + discount * next_q[range(N), best]
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_follows_a_termination_may_hold_anything_and_gets_no_gradient(bad):
    reward, discount, *tables = random_parts(0)
    next_q, chooser = (x.requires_grad_() for x in tables)
    for target, rest in ((q_target, ()), (double_q_target, (chooser,))):
        wanted, nonsense = target(reward, discount, next_q, *rest), next_q.clone()
        assert not wanted.requires_grad
        nonsense[0] = bad
        assert torch.equal(target(reward, discount, nonsense, *rest), wanted)
        nonsense[1] = math.nan
        with pytest.raises(ValueError, match="next_q"):
            target(reward, discount, nonsense, *rest)


# --- Dueling --------------------------------------------------------------------------


@pytest.mark.equation("dueling")
@pytest.mark.erratum("dueling-mean")
def test_the_mean_of_the_values_is_the_state_value():
    both = torch.randn(N, 1 + ACTIONS, dtype=torch.float64, requires_grad=True)
    value, advantage = both[:, :1], both[:, 1:]
    q, layer = dueling_q(value, advantage), dueling_layer(ACTIONS).double()
    for row, own, better in zip(q, value, advantage, strict=True):
        torch.testing.assert_close(row, own + better - sum(better) / ACTIONS)
    # As a layer it is the same, gradients included, and nobody trains it.
    weight = torch.randn(N, ACTIONS, dtype=torch.float64)
    pairs = [
        [x, *torch.autograd.grad((x * weight).sum(), both)] for x in (q, layer(both))
    ]
    torch.testing.assert_close(*pairs, rtol=0, atol=1e-6)
    assert not layer.weight.requires_grad
    # With the mean of a batch, what a state is worth depends on its neighbours.
    batch = value + advantage - advantage.mean()
    assert not torch.allclose(
        batch[:1], value[:1] + advantage[:1] - advantage[0].mean()
    )
    torch.testing.assert_close(dueling_q(value[:1], advantage[:1]), q[:1])


@pytest.mark.erratum("bound-of-zero")
def test_zero_is_not_none():
    def lower(value_min, value_max):
        return value_min if value_min else -value_max

    assert lower(None, 10.0) == lower(0.0, 10.0) == -10.0
    # Half of the atoms would stand for less. Ours lie where it was said.
    one = torch.ones(1)
    found = project_distribution(torch.ones(1, 5) / 5, 5 * one, 0 * one, 0.0, 10.0)
    assert found.tolist() == [[0, 0, 1, 0, 0]]


# --- Chance ---------------------------------------------------------------------------


@pytest.mark.equation("epsilon-noise")
@pytest.mark.erratum("one-coin")
def test_each_environment_tosses_its_own_coin():
    actions = EpsilonGreedy(4)
    actions.epsilon = chance = torch.tensor([0.0, 0.3, 0.3, 1.0])
    noise = actions.noise(5000, 4, torch.Generator().manual_seed(0))
    blind = noise.any(-1)
    torch.testing.assert_close(blind.float().mean(0), chance, rtol=0, atol=0.03)
    # With one coin for all, two environments would explore together or not at all.
    both = (blind[:, 1] & blind[:, 2]).float().mean().item()
    assert both == pytest.approx(0.3**2, abs=0.02)
    # Whatever the values, the action is the greedy one or the one that won the race.
    row = 1e14 * torch.randn(5000, 4, 4)
    greedy = row.argmax(-1)
    drawn = actions.choose(row, noise)
    assert torch.equal(drawn, torch.where(blind, noise.argmax(-1), greedy))
    share = drawn[blind].bincount(minlength=4) / blind.sum()
    torch.testing.assert_close(share, torch.full((4,), 0.25), rtol=0, atol=0.02)
    assert torch.equal(actions.choose(row, 0.0), greedy)
    # So the best action has 1 - ε and its share of what is blind.
    actions.epsilon = 0.4
    log_prob, entropy = actions.evaluate(torch.eye(4)[[0] * 4], torch.arange(4))
    torch.testing.assert_close(log_prob.exp(), torch.tensor([0.7, 0.1, 0.1, 0.1]))
    torch.testing.assert_close(entropy, -(log_prob.exp() @ log_prob).expand(4))
    # But no noise lets an action win whose value is minus infinity.
    row[..., 1] = -math.inf
    assert {*actions.choose(row, noise)[blind].tolist()} == {0, 2, 3}


# --- The error and the older network --------------------------------------------------


def policy_for(env: str = ENV, **arguments: Any) -> Policy:
    """Build a policy for an environment."""
    made = flat_env(env)
    return make_q_policy(made.observation_space, made.action_space, **arguments)


@pytest.mark.equation("huber")
@pytest.mark.equation("chain-gradient")
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_the_error_against_a_slow_form(double, dueling, fused):
    torch.manual_seed(2)
    policy, older = (policy_for(hidden=8, dueling=dueling).double() for _ in range(2))
    algorithm = QLearning(policy, DQNConfig(double=double))
    algorithm.target.network = older
    obs, next_obs = torch.randn(2, N, 4, dtype=torch.float64)
    reward, discount, weight = torch.rand(3, N, dtype=torch.float64)
    discount[1], action = 0.0, torch.randint(2, (N,))
    # Large values, so that both parts of the loss are met.
    batch = Batch(obs, action, 4 * reward, next_obs, discount, weight, torch.arange(N))
    form = fused_q_error(policy) if fused else QLearning.error
    error: Any = form(algorithm, batch, torch.Generator())
    assert isinstance(error, FusedQError) == fused
    q, judged, chosen = policy(obs), older(next_obs), policy(next_obs)
    best = (chosen if double else judged).argmax(1)
    # Somewhere the two networks choose differently.
    assert (judged.argmax(1) != chosen.argmax(1)).any()
    rows, q = torch.arange(N), q[range(N), action]
    gap = (batch.reward + discount * judged[rows, best] - q).detach()
    size = gap.abs()
    assert size.max() > 1 > size.min()
    loss = torch.where(size < 1, size**2 / 2, size - 0.5)
    found = [x.detach() for x in (error.loss, error.td_error, error.value)]
    torch.testing.assert_close(found, [loss, gap, q.detach()])

    # The slope in a value is minus the TD error, held to -1..1; nothing else has one.
    error.backward(weight)
    parameters = [p for p in policy.parameters() if p.requires_grad]
    mean = (weight * -gap.clamp(-1, 1) * q).mean()
    wanted = [*torch.autograd.grad(mean, parameters)]
    torch.testing.assert_close([p.grad for p in parameters], wanted)
    assert all(p.grad is None for p in older.parameters())


def test_a_target_of_another_shape_is_refused_and_stays():
    target = [torch.zeros(2), torch.zeros(3, 4)]
    with pytest.raises(ValueError, match=r"source\[1\]"):
        polyak_update(target, [torch.ones(2), torch.ones(4)], 0.5)
    assert not any(x.any() for x in target), "nothing has moved"


class Counted(nn.Sequential):
    """Layers with numbers that no optimiser moves: of all kinds."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 2), nn.BatchNorm1d(2))
        self.register_buffer("wide", torch.zeros((), dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(2, dtype=torch.bool))
        self.register_buffer("not_stored", torch.zeros(1), persistent=False)


@pytest.mark.equation("polyak")
@pytest.mark.parametrize("tau", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("anew", [False, True])
def test_the_target_is_a_copy_that_follows_and_that_nobody_trains(tau, anew):
    network: Any = Counted()
    target: Any = TargetNetwork(network)
    if anew:  # other objects, other memory, other buffers
        network, target = copy.deepcopy((network, target))
        network.double(), target.network.double()
        network.not_stored = network.not_stored.clone()

    def numbers_of(net):
        return [x.detach().clone() for x in (*net.parameters(), *net.buffers())]

    before = numbers_of(target.network)
    with torch.no_grad():
        for x in (*network.parameters(), *network.buffers()):
            x.add_(4) if x.dtype != torch.bool else x.logical_not_()
    torch.testing.assert_close(numbers_of(target.network), before, rtol=0, atol=0)
    target.follow(tau)
    rows = zip(numbers_of(target.network), before, numbers_of(network), strict=True)
    for x, then, now in rows:
        moved = then + tau * 4 if x.is_floating_point() else now
        torch.testing.assert_close(x, moved)
    assert not any(module.training for module in target.network.modules())
    assert not any(p.requires_grad for p in target.network.parameters())
    assert all(p.requires_grad for p in network.parameters())


# --- The agent -----------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_it_learns_to_tell_left_from_right(algorithm):
    """Who guesses earns 25 of 50."""
    settings: Any = {"total_steps": 400, "hidden": 16, "gamma": 0.5, "tau": 0.05}
    settings |= {"learning_rate": 1e-2, "batch_size": 32, "learning_starts": 100}
    settings |= {"iteration_steps": 200, "reward_scale": 0.1, "normalize_obs": True}
    if algorithm == "dqn":
        settings |= {"total_steps": 800, "num_envs": 2, "epsilon_steps": 400}
    env = partial(Apart, middle=0.0)

    def check(seed):
        agent = train(algorithm, env, **settings, seed=seed, progress=False)
        assert evaluate(agent.policy, env, 20).mean() > 42
        if algorithm == "sac":  # as random as it is asked to be
            entropy = agent.history[-1]["charts/entropy"]
            assert entropy == pytest.approx(math.log(2) / 2, abs=0.15)

    assert_for_most_seeds(check)
