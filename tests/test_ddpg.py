"""DDPG: the gradient through the action, noise, and models of one's own."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from learning import assert_for_most_seeds
from reach import (
    BOX,
    HIGH,
    LOW,
    OBSERVATIONS,
    SMALL,
    STATE,
    N,
    Reach,
    algorithm_for,
    learner_for,
    policy_for,
)
from soft import climb
from torch import nn

from literate_rl import evaluate, train
from literate_rl.book.contract_models import (
    ActionValue,
    DeterministicActor,
)
from literate_rl.check.own_models import make_own_ddpg_policy
from literate_rl.learners.ddpg import (
    BoxActions,
    DDPGConfig,
    OneHotActions,
    make_ddpg_policy,
)
from literate_rl.learners.dqn import EpsilonGreedy


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


# --- The actor's step -----------------------------------------------------------------


@pytest.mark.equation("policy-gradient-through-critic")
@pytest.mark.equation("actor-loss")
def test_the_actors_gradient_against_finite_differences_through_the_critic():
    algorithm = algorithm_for(DDPGConfig())
    actor, critic = algorithm.policy.network.actor, algorithm.policy.network.critics[0]
    parameters, obs = [*actor.parameters()], torch.randn(N, STATE, dtype=torch.float64)
    grads = torch.autograd.grad(-algorithm.ascent(obs, generator()), parameters)
    # The chain rule: the critic's slope in the action, times that of the action.
    action = actor(obs).detach().requires_grad_()
    (slope,) = torch.autograd.grad(critic(obs, action).mean(), action)
    chained = torch.autograd.grad(actor(obs), parameters, slope)
    torch.testing.assert_close(grads, chained)
    # A small step of all weights, there and back.
    step, heights = [1e-6 * torch.randn_like(p) for p in parameters], []
    with torch.no_grad():
        for sign in (1, -2):
            torch._foreach_add_(parameters, step, alpha=sign)
            heights.append(critic(obs, actor(obs)).mean().item())
    rise = sum((g * x).sum().item() for g, x in zip(grads, step, strict=True))
    assert heights[0] - heights[1] == pytest.approx(2 * rise, rel=1e-4)


@pytest.mark.parametrize("shared", [False, True])
def test_a_climb_moves_the_actor_uphill_and_nothing_else(shared):
    """Of two critics the first is asked; a layer may be its and the actor's."""
    policy = policy_for(DDPGConfig(), num_critics=2)
    network: Any = policy.network
    if shared:
        network.critics[0].net[2] = network.actor[0][2]
    learner = learner_for(DDPGConfig(**SMALL), policy)
    learner.iterate()  # the optimiser has seen gradients of the critics by now
    obs, older = learner.sample().obs, learner.algorithm.target.network
    before, target = (copy.deepcopy(x.state_dict()) for x in (policy, older))
    learner.optimizer.param_groups[0]["lr"] = 1e-4
    height = network.critics[0](obs, network(obs)).mean()
    for _ in range(20):
        climb(learner, obs)
    assert network.critics[0](obs, network(obs)).mean() > height
    torch.testing.assert_close(older.state_dict(), target, rtol=0, atol=0)
    for name, weight in policy.named_parameters(remove_duplicate=False):
        learns = any(weight is x for x in learner.actor)
        assert torch.equal(weight, before[name]) != learns, name
        assert (weight.grad is not None) == learns


# --- Actions --------------------------------------------------------------------------


@pytest.mark.equation("box-noise")
@pytest.mark.erratum("one-draw-for-all-environments")
def test_noise_is_in_proportion_to_each_numbers_bounds():
    actions = BoxActions([*LOW, -1.0], [*HIGH, 1.0])
    half, scale = torch.tensor([2.0, 0.25, 1.0]), torch.linspace(0.0, 0.2, 5)
    actions.scale = scale  # one for each environment
    noise = actions.noise(4000, 5, generator())
    row = torch.tensor([1.0, 0.25, 0.0]).expand(4000, 5, 3)
    moved = actions.choose(row, noise) - row
    spread = scale.unsqueeze(1) * half
    torch.testing.assert_close(moved.std(0), spread, rtol=0.05, atol=0)
    # Each environment and each step draws for itself; one draw moves all alike.
    flat = moved[:, 1:, 0]
    assert len(flat.unique()) > 0.99 * flat.numel()
    assert torch.corrcoef(flat.T).fill_diagonal_(0).abs().max() < 0.1
    one = row[0] + torch.normal(0, 0.1 * half)
    assert torch.equal(one, one[:1].expand(5, 3))
    assert torch.equal(actions.choose(row, 0.5), row + 0.5)


def test_first_actions_are_uniform_in_the_box():
    actions = BoxActions(LOW, HIGH)
    actions.epsilon = torch.tensor([0.0, 1.0])  # one for each environment
    row = torch.full((20_000, 2, 2), 7.0)
    fixed, drawn = actions.choose(row, actions.noise(20_000, 2, generator())).unbind(1)
    assert (fixed == 7).all()
    low, high = torch.tensor(LOW), torch.tensor(HIGH)
    share = ((drawn - low) / (high - low)).sort(0).values
    # The largest distance between the distribution functions, Kolmogorov's.
    ideal = (torch.arange(len(share)) + 0.5).unsqueeze(1) / len(share)
    assert (share - ideal).abs().max() < 1.95 / len(share) ** 0.5
    assert torch.corrcoef(drawn.T)[0, 1].abs() < 0.03


def test_a_probability_of_zero_explores_not_even_at_the_lowest_draw(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.zeros(shape))
    actions = BoxActions(LOW, HIGH)
    for epsilon in (0.0, 1.0):
        actions.epsilon = epsilon
        random = ~actions.noise(2, 3, generator())[..., 2:].isnan()
        assert random.all() if epsilon else not random.any()
    assert not EpsilonGreedy(3).noise(2, 3, generator()).any()


def test_only_the_environment_gets_a_clipped_action():
    outside = torch.tensor([[9.0, -9.0], [1.0, 0.25]])
    sent = BoxActions(LOW, HIGH).to_env(outside)
    assert sent.tolist() == [[3.0, 0.0], [1.0, 0.25]]
    assert sent.dtype == np.float32
    assert outside[0].tolist() == [9.0, -9.0]
    # The environment asserts that it gets what lies in its box; the buffer keeps more.
    learner = learner_for(DDPGConfig(**SMALL, noise=2.0, epsilon_start=0.0))
    learner.iterate()
    kept = learner.buffer.state_dict()["action"]
    assert (torch.as_tensor(kept)[..., 0] > HIGH[0]).any()


def test_a_discrete_action_is_drawn_and_stored_as_one_hot():
    actions = OneHotActions(3, start=5)
    prob = [0.2, 0.5, 0.3]
    for row, epsilon, wanted in (
        (prob, 0.0, prob),
        # A random action wins even where its probability is zero.
        ([1.0, 0.0, 0.0], 1.0, [1 / 3] * 3),
        ([1.0, 0.0, 0.0], 0.0, [1.0, 0.0, 0.0]),
    ):
        actions.epsilon = epsilon
        noise = actions.noise(1, 20_000, generator())
        drawn = actions.choose(torch.tensor(row).expand(1, 20_000, 3), noise)
        assert {*drawn.unique().tolist()} == {0, 1}
        assert drawn.sum(-1).eq(1).all()
        assert drawn.mean((0, 1)).tolist() == pytest.approx(wanted, abs=0.015)
    best = actions.choose(torch.tensor([prob]), 0.0)
    assert best.tolist() == [[0, 1, 0]]
    assert actions.to_env(best).tolist() == [6]


@pytest.mark.erratum("discrete-batch-of-one")
def test_a_sample_for_each_row_and_each_row_again():
    for rows in (1, 4):
        prob = torch.full((rows, 3), 1 / 3)
        drawn = torch.distributions.Categorical(prob).sample(torch.Size([rows, 1]))
        assert drawn.numel() == rows**2, "as published: only one row fits into a column"
        actions = OneHotActions(3)
        noise = actions.noise(1, rows, generator())[0]
        assert actions.choose(prob, noise).shape == (rows, 3)


# --- What it learns -------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["ddpg", "sac"])
def test_it_learns_to_name_the_point(algorithm):
    """Who has learned nothing earns less than -1.5."""
    settings: dict[str, Any] = {
        "total_steps": 800,
        "iteration_steps": 800,
        "hidden": 32,
        "gamma": 0.5,
        "batch_size": 32,
        "learning_rate": 5e-3,
        "learning_starts": 100,
        "tau": 0.05,
        **({"target_entropy": -8.0} if algorithm == "sac" else {}),
    }

    def check(seed):
        agent = train(algorithm, Reach, **settings, seed=seed, progress=False)
        assert evaluate(agent.policy, Reach, 20).mean() > -0.4

    assert_for_most_seeds(check)


# --- Spaces and models of one's own ---------------------------------------------------


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1.0, 1.0, (2, 2)),
        spaces.Box(-1e10, 1e10, (2,)),
    ],
)
def test_policies_refuse_other_actions(space):
    with pytest.raises(ValueError, match="action_space must"):
        make_ddpg_policy(OBSERVATIONS, space)


def test_a_second_critic_is_given_or_begins_anew():
    actor = DeterministicActor(1, LOW, HIGH, 8)
    first, second = (ActionValue(1, 2, 8) for _ in range(2))

    def models_of(critic, number):
        spaces = Reach.observation_space, BOX
        policy = make_own_ddpg_policy(*spaces, actor, critic, num_critics=number)
        return [x.by_name.model for x in policy.network.critics]

    for kind in (list, nn.ModuleList):
        assert models_of(kind([first, second]), 2) == [first, second]
    models = models_of(first, 3)
    assert models[0] is first
    assert len({x.net[0].weight.sum().item() for x in models}) == 3
