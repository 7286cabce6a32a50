"""DDPG: its target, the gradient through the action, noise, and models of one's own."""

from __future__ import annotations

import copy
import json
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from elsewhere import ELSEWHERE, elsewhere
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from reach import (
    BOX,
    DISCRETE,
    ENV,
    HIGH,
    LOW,
    OBSERVATIONS,
    SHORT,
    SMALL,
    STATE,
    Ending,
    N,
    OwnActor,
    OwnCritic,
    Reach,
    acts_in_states_and_in_discrete_actions,
    algorithm_for,
    batch_of,
    learner_for,
    learns_to_name_the_point,
    policy_for,
    resumes_bit_for_bit,
    runs_from_the_command_line,
    trains_models_of_ones_own,
)
from torch import Tensor, nn

from benchmarks.spaces import Sampled
from literate_rl.apps.training import train
from literate_rl.book.contract_models import ActionValue, DeterministicActor
from literate_rl.by_hand.fast_forms import (
    chain_backward,
    chain_layers,
    chain_outputs,
)
from literate_rl.check.own_models import make_own_ddpg_policy
from literate_rl.learners.ddpg import (
    BoxActions,
    DDPGConfig,
    OneHotActions,
    ddpg_settings,
    make_ddpg_policy,
)
from literate_rl.nets.policies import Policy


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


# --- Targets and losses ---------------------------------------------------------------


@pytest.mark.equation("ddpg-target")
@pytest.mark.parametrize("seed", range(3))
def test_the_target_and_the_error_against_a_slow_form(seed: int) -> None:
    algorithm, batch = algorithm_for(DDPGConfig()), batch_of(seed)
    target = algorithm.target.network
    network, then = algorithm.policy.network, target.network
    aims, q = [], []
    with torch.no_grad():
        for i in range(N):
            row = batch.next_obs[i : i + 1]
            judged = then.critics[0](row, then.actor(row)).item()
            aims.append(batch.reward[i].item() + batch.discount[i].item() * judged)
            pair = batch.obs[i : i + 1], batch.action[i : i + 1]
            q.append(network.critics[0](*pair).item())
    wanted = torch.tensor(aims, dtype=torch.float64)
    got = algorithm.aim(batch, torch.Generator())
    torch.testing.assert_close(got, wanted)
    assert not got.requires_grad

    error = algorithm.error(batch, torch.Generator())
    value = torch.tensor(q, dtype=torch.float64)
    torch.testing.assert_close(error.td_error, wanted - value)
    torch.testing.assert_close(error.loss.detach(), (wanted - value) ** 2 / 2)
    torch.testing.assert_close(error.value, value)
    assert not error.td_error.requires_grad
    assert not error.value.requires_grad

    error.backward(batch.weight)
    assert all(p.grad is not None for p in network.critics.parameters())
    # The critic's loss moves neither the actor nor anything in the target.
    still = [*network.actor.parameters(), *target.parameters()]
    assert all(p.grad is None for p in still)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_follows_a_termination_may_hold_anything(bad: float) -> None:
    aim, batch = algorithm_for(DDPGConfig()).aim, batch_of()
    wanted = aim(batch, torch.Generator())
    batch.next_obs[1] = bad
    assert torch.equal(aim(batch, torch.Generator()), wanted)
    batch.next_obs[2] = math.nan
    with pytest.raises(ValueError, match="must be finite"):
        aim(batch, torch.Generator())


@pytest.mark.equation("chain-gradient")
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 70),
    inputs=st.integers(1, 20),
    hidden=st.integers(1, 70),
)
def test_a_chains_gradients_are_those_of_autograd(
    seed: int, rows: int, inputs: int, hidden: int
) -> None:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 1))
    x, weight = torch.randn(rows, inputs), torch.rand(rows, 1)
    parameters, layers = list(net.parameters()), chain_layers(net)
    wanted = torch.autograd.grad((net(x) * weight).sum(), parameters)
    with torch.no_grad():
        chain_backward(layers, chain_outputs(layers, x), weight.clone())
    for parameter, grad in zip(parameters, wanted, strict=True):
        assert torch.equal(parameter.grad, grad), "to the bit"
        assert parameter.grad.stride() == parameter.stride()


# --- The actor's step -----------------------------------------------------------------


@pytest.mark.equation("policy-gradient-through-critic")
@pytest.mark.equation("actor-loss")
def test_the_actors_gradient_against_finite_differences_through_the_critic() -> None:
    policy = policy_for(2)
    network: Any = policy.network
    parameters = list(network.actor.parameters())
    obs = torch.randn(N, STATE, dtype=torch.float64)

    def judged() -> float:
        """Return what the first critic thinks of the actor's actions, by hand."""
        return float(network.critics[0](obs, network.actor(obs)).mean().detach())

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
    action = network.actor(obs).detach().requires_grad_()
    q = network.critics[0](obs, action).mean()
    (slope,) = torch.autograd.grad(q, action)
    chained = torch.autograd.grad(network.actor(obs), parameters, slope)
    torch.testing.assert_close(grads, chained)


def test_a_climb_moves_the_actor_uphill_and_nothing_else() -> None:
    both = Reach.observation_space, Reach.action_space
    policy = make_ddpg_policy(*both, 8, num_critics=2)
    learner = learner_for(DDPGConfig(**SMALL), policy=policy)
    learner.iterate()  # the optimiser has seen gradients of the critics by now
    network = learner.policy.network
    obs = learner.sample().obs
    before = copy.deepcopy(learner.policy.state_dict())
    target = copy.deepcopy(learner.algorithm.target.network.state_dict())
    height = network.value(obs).mean()
    for group in learner.optimizer.param_groups:
        group["lr"] = 1e-4
    # The second critic has no say.
    wanted = torch.autograd.grad(
        -network.critics[0](obs, network(obs)).mean(),
        learner.actor,
    )
    learner.climb(obs)
    found = [p.grad for p in learner.actor]
    torch.testing.assert_close(found, [*wanted])
    for _ in range(19):
        learner.climb(obs)
    for name, weight in learner.policy.state_dict().items():
        learned = name.startswith("network.actor.0")
        assert torch.equal(weight, before[name]) != learned, name
    torch.testing.assert_close(
        learner.algorithm.target.network.state_dict(), target, rtol=0, atol=0
    )
    assert all(p.grad is None for p in network.critics.parameters())
    assert network.value(obs).mean() > height


def test_an_actor_that_shares_weights_with_its_critic_gets_the_gradient_of_both() -> (
    None
):
    policy = make_ddpg_policy(Reach.observation_space, Reach.action_space, 8)
    network: Any = policy.network
    network.critics[0].net[2] = network.actor[0][2]
    learner = learner_for(DDPGConfig(**SMALL), policy=policy)
    learner.iterate()
    obs = learner.sample().obs
    q = network.critics[0](obs, network(obs))
    wanted = torch.autograd.grad(-q.mean(), learner.actor)
    learner.climb(obs)
    torch.testing.assert_close([p.grad for p in learner.actor], [*wanted])


def test_the_actors_gradient_is_clipped_too() -> None:
    learner = learner_for(DDPGConfig(**SMALL, max_grad_norm=1e-3))
    learner.iterate()
    learner.climb(100 * learner.sample().obs)
    grads = [p.grad.flatten() for p in learner.actor]
    assert torch.cat(grads).norm().item() == pytest.approx(1e-3, rel=1e-3)


def test_the_older_copies_follow_the_actor_and_the_critic() -> None:
    learner = learner_for(DDPGConfig(**SMALL))
    learner.iterate()
    found = list(learner.algorithm.target.network.parameters())
    before = [x.clone() for x in found]
    learner.algorithm.target.follow(0.25)
    for x, old, new in zip(found, before, learner.policy.parameters(), strict=True):
        torch.testing.assert_close(x, old + 0.25 * (new - old))
        assert not torch.equal(x, old)


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
    assert torch.equal(actions.choose(row, 0.5), row + 0.5)


def test_each_of_three_numbers_gets_its_own_noise() -> None:
    actions = BoxActions([-1.0] * 3, [1.0] * 3)
    added, instead = torch.randn(2, 5, 3)
    noise = torch.cat([added, instead.fill_(torch.nan)], -1)
    assert torch.equal(actions.choose(torch.zeros(5, 3), noise), added)


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


def test_the_bounds_go_where_the_policy_goes() -> None:
    actions, source = BoxActions(LOW, HIGH), torch.Generator()
    policy = Policy(nn.Identity(), actions)
    assert not policy.state_dict(), "old checkpoints load"
    wanted = actions.noise(2, 3, source.manual_seed(0))[..., :2]
    with elsewhere():
        policy.to(ELSEWHERE)
        assert {x.device for x in (actions.low, actions.high)} == {ELSEWHERE}
        # Noise is drawn on the CPU all the same.
        assert torch.equal(actions.noise(2, 3, source.manual_seed(0))[..., :2], wanted)


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
    learner = learner_for(DDPGConfig(**SMALL), partial(gym.make, DISCRETE))
    for _ in range(2):
        learner.iterate()
    assert learner.updates > 0
    stored = torch.as_tensor(learner.buffer.state_dict()["action"])
    assert stored.shape[-1] == 2
    assert set(stored.unique().tolist()) == {0.0, 1.0}
    prob = learner.policy(torch.randn(5, 4))
    torch.testing.assert_close(prob.sum(-1), torch.ones(5))


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
            for p in learner.algorithm.target.network.network.critics.parameters():
                p.fill_(1.0)
        error = learner.algorithm.error(batch, learner.generator)
        target = error.td_error + error.value
        ended = batch.discount == 0
        torch.testing.assert_close(target[ended], batch.reward[ended])
        assert (target[~ended] > batch.reward[~ended] + 0.5).all()
    assert (seen[Reach] == 0.99).all()
    assert (seen[Ending] == 0).any()


def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    resumes_bit_for_bit(DDPGConfig(**SMALL), tmp_path)


def test_it_learns_to_name_the_point() -> None:
    learns_to_name_the_point(DDPGConfig())


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
    ("space", "message"),
    [
        (spaces.Box(-1.0, 1.0, (2, 2)), "must have one dimension and a number in it"),
        (spaces.Box(-np.inf, 1.0, (2,)), r"must have bounds below 4\.3e\+09"),
        (spaces.MultiDiscrete([2, 3]), "must be Discrete or a Box of floating-point"),
    ],
)
def test_policies_refuse_other_actions(space: Any, message: str) -> None:
    with pytest.raises(
        ValueError, match=f"action_space {message}.*, got {re.escape(str(space))}"
    ):
        make_ddpg_policy(OBSERVATIONS, space)


def test_bounds_are_chosen_as_the_refusal_says() -> None:
    largest = float(np.finfo(np.float32).max)
    world = Sampled(OBSERVATIONS, spaces.Box(-largest, largest, (2,)))
    with pytest.raises(ValueError, match="choose others with") as refused:
        make_ddpg_policy(OBSERVATIONS, world.action_space)
    advice = str(refused.value).partition("others with ")[2]
    names = {"gymnasium": gym, "env": world}
    narrow = eval(advice, names)
    assert narrow.action_space == spaces.Box(-1, 1, (2,))
    make_ddpg_policy(OBSERVATIONS, narrow.action_space)
    narrow.reset()
    narrow.step(np.float32([1, -1]))


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


def test_models_of_ones_own_train_are_saved_and_get_their_weights_back(
    tmp_path: Path,
) -> None:
    trains_models_of_ones_own("DDPG", 1, tmp_path)


def test_states_reach_models_by_their_names() -> None:
    actor, critic = TwoActor(), TwoCritic()
    agent = train("DDPG", "TwoParts-v0", actor=actor, critic=critic, **SHORT)
    point, clock = torch.randn(3, 1), torch.rand(3, 1)
    got = agent.act({"point": point, "clock": clock})
    assert torch.equal(got, actor(clock, point))
    # In the rows of the loop the names are sorted, as Gymnasium lays them.
    rows = torch.cat([clock, point], 1)
    assert torch.equal(agent.policy(rows), got)
    q = agent.policy.network.critics(rows, got)
    torch.testing.assert_close(q[0], critic(point, clock, got).squeeze(1))


def test_a_second_critic_is_given_or_begins_anew() -> None:
    first, second = OwnCritic(), OwnCritic()
    build = partial(make_own_ddpg_policy, Reach.observation_space, BOX)
    for several in ([first, second], (first, second), nn.ModuleList([first, second])):
        policy = build(num_critics=2, actor=OwnActor(), critic=several)
        assert [x.by_name.model for x in policy.network.critics] == [first, second]
    before = copy.deepcopy(first.state_dict())
    policy = build(num_critics=3, actor=OwnActor(), critic=first)
    models = [x.by_name.model for x in policy.network.critics]
    assert models[0] is first
    torch.testing.assert_close(first.state_dict(), before, rtol=0, atol=0)
    weights = [x.inner.net[0].weight for x in models]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not torch.equal(weights[one], weights[other])


def test_a_second_critic_has_no_say_in_a_training() -> None:
    first, second = ActionValue(1, 2, 8), ActionValue(1, 2, 8)
    before = copy.deepcopy([first.state_dict(), second.state_dict()])
    actor = DeterministicActor(1, LOW, HIGH, 8)
    train("DDPG", "Reach-v0", actor=actor, critic=[first, second], **SHORT)
    assert not torch.equal(first.net[0].weight, before[0]["net.0.weight"])
    torch.testing.assert_close(second.state_dict(), before[1], rtol=0, atol=0)


def test_our_own_agents_act_in_states_and_in_discrete_actions() -> None:
    acts_in_states_and_in_discrete_actions("DDPG")


def test_what_cannot_be_trained_is_said() -> None:
    with pytest.raises(ValueError, match="for ddpg must be actor and critic, got act"):
        train("DDPG", "Reach-v0", actor=OwnActor(), **SHORT)
    with pytest.raises(TypeError, match="there is no setting 'num_critics'"):
        train("DDPG", "Reach-v0", num_critics=2, **SHORT)
    with pytest.raises(ValueError, match="noise"):
        DDPGConfig(noise=-0.1)


def test_settings_by_environment() -> None:
    assert ddpg_settings(ENV).total_steps == 10_000
    assert ddpg_settings("other") == DDPGConfig()


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs_from_the_command_line("ddpg", tmp_path, monkeypatch)


# --- Errata ---------------------------------------------------------------------------


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
