"""The loop of all off-policy agents: what it asks, when, and what it keeps."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import pytest
import torch
from test_dqn import ENV, policy_for
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from literate_rl.data.agents import make_envs
from literate_rl.data.replay import Batch
from literate_rl.ground.protocols import Algorithm
from literate_rl.learners.dqn import DQN, DQNConfig, QLearning
from literate_rl.learners.loop import (
    OffPolicy,
    QError,
    linear_schedule,
    squared_error,
)
from literate_rl.runs.runs import fit


@pytest.mark.equation("linear-schedule")
def test_a_schedule_is_a_straight_line_that_stays_at_its_end() -> None:
    line = partial(linear_schedule, 1.0, 0.2, 100)
    assert [line(x) for x in (0, 100, 1000)] == [1.0, 0.2, 0.2]
    assert [line(x) for x in (25, 50)] == pytest.approx([0.8, 0.6])


SMALL = DQNConfig(
    total_steps=400,
    num_envs=2,
    hidden=8,
    num_steps=3,
    batch_size=8,
    train_interval=2,
    learning_starts=40,
    epsilon_steps=200,
    buffer_size=150,  # smaller than the run: the ring goes round
    iteration_steps=50,
    checkpoint_interval=2,
    anneal=True,
)


def learner_for(make: Any = QLearning, **changes: Any) -> OffPolicy:
    """Build a learner on CartPole."""
    config = replace(SMALL, **changes)
    torch.manual_seed(0)
    policy, envs = policy_for(hidden=8), make_envs(ENV, config.num_envs)
    return OffPolicy(make(policy, config), envs, config)


def begun(*given: Any, **changes: Any) -> OffPolicy:
    """Build one that has learned for an iteration."""
    learner = learner_for(*given, **{"learning_starts": 10, **changes})
    learner.iterate()
    return learner


def same(one: OffPolicy, other: OffPolicy) -> bool:
    """Say whether two learners hold the same bits."""
    states = ((x.state_dict(), x.policy.state_dict()) for x in (one, other))
    pairs = zip(*map(tree_leaves, states), strict=True)
    return all(torch.equal(x, y) if isinstance(x, Tensor) else x == y for x, y in pairs)


@pytest.mark.parametrize(
    ("num_envs", "interval"), [(1, 4), (2, 4), (4, 4), (4, 2), (4, 1)]
)
def test_updates_are_counted_in_steps_of_all_environments(
    num_envs: int, interval: int
) -> None:
    changes = {"num_envs": num_envs, "train_interval": interval}
    learner = begun(**changes, learning_starts=1, iteration_steps=40)
    assert learner.config.rollout_len == max(interval // num_envs, 1)
    assert learner.step == 40
    assert learner.updates == 40 // interval


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: DQNConfig(num_envs=4, train_interval=3), "train_interval"),
        (lambda: replace(SMALL, log_interval=75), "log_interval"),
        (lambda: DQN(policy_for(), make_envs(ENV, 3), SMALL), "envs"),
    ],
)
def test_numbers_that_do_not_fit_each_other_are_refused(call: Any, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        call()


def test_nothing_is_learned_before_the_start_and_metrics_are_means_then() -> None:
    learner = learner_for(learning_starts=80, reward_scale=0.01)
    before = copy.deepcopy(learner.policy.state_dict())
    row = learner.iterate()
    torch.testing.assert_close(learner.policy.state_dict(), before, rtol=0, atol=0)
    assert all(math.isnan(x) for name, x in row.items() if "loss" in name)
    learn, errors = learner.learn, []
    learner.learn = lambda: errors.append(learn()) or errors[-1]
    row = learner.iterate()
    assert len(errors) == learner.updates == 11
    loss, td_error, value = (torch.cat(x).tolist() for x in zip(*errors, strict=True))
    assert min(td_error) < 0 < max(td_error)
    found = [row[f"losses/{name}"] for name in ("loss", "td_error", "q_value")]
    wanted = [fmean(x) for x in (loss, map(abs, td_error), value)]
    assert found == pytest.approx(wanted, rel=1e-5)


def test_each_schedule_begins_and_ends_where_it_should() -> None:
    learner = begun(
        priority_exponent=0.6, learning_rate=0.5, epsilon_end=0.1, batch_size=40
    )
    learner.buffer.update(torch.arange(40), torch.linspace(0.1, 9, 40))
    drawn, draw, found = [], learner.buffer.sample, []
    learner.buffer.sample = lambda *given: drawn.append(given[-1]) or draw(*given)
    for step in (0, 200, 400):
        learner.collector.step = step
        learner.prepare()
        learner.generator.manual_seed(0)
        smallest = learner.sample().weight.min().item()
        (group,) = learner.optimizer.param_groups
        found.append((learner.policy.actions.epsilon, group["lr"], drawn[-1], smallest))
    epsilon, rate, beta, weight = zip(*found, strict=True)
    assert epsilon == pytest.approx((1.0, 0.1, 0.1))  # within half of the run
    assert rate == pytest.approx((0.5, 0.25, 0.0))
    assert beta == pytest.approx((0.4, 0.7, 1.0))
    # The more of the preference is undone, the less a step counts that is drawn often.
    assert weight[0] > weight[1] > weight[2]


def test_a_checkpoint_cuts_the_buffer() -> None:
    learner = begun(checkpoint_interval=1)
    assert learner.collector.episodes.carried.sum() > 0
    cuts = learner.buffer.state_dict()["truncated"].sum()
    learner.prepare()
    assert learner.buffer.state_dict()["truncated"].sum() == cuts + 2


def test_weights_priorities_and_scaled_rewards_reach_loss_and_buffer() -> None:
    learner = begun(priority_exponent=0.6, reward_scale=0.5, max_grad_norm=1e9)
    mass = learner.buffer.state_dict()["mass"].clone()
    assert len(mass.unique()) > 10
    # The gradient is that of the weighted mean.
    batch = learner.sample()
    assert batch.reward.max().item() == pytest.approx(0.5 * (1 + 0.99 + 0.99**2))
    assert batch.weight.min() < 1 == batch.weight.max()
    error = learner.algorithm.error(batch, learner.generator)
    mean = (error.loss * batch.weight).mean()
    wanted = [*torch.autograd.grad(mean, learner.parameters)]
    learner.sample = lambda: batch  # type: ignore[method-assign]
    learner.learn()
    torch.testing.assert_close([p.grad for p in learner.parameters], wanted)
    assert not torch.equal(learner.buffer.state_dict()["mass"], mass)


# --- What the loop asks of an algorithm -----------------------------------------------


class Noted(QLearning):
    """An algorithm that keeps a diary."""

    def __init__(self, policy: Any, config: Any) -> None:
        super().__init__(policy, config)
        self.diary: list[Any] = []
        self.target.follow = self.diary.append

    def error(self, *given: Any) -> QError:
        self.diary.append("error")
        return super().error(*given)

    def ascent(self, *given: Any) -> None:
        self.diary.append("ascent")

    def explore(self, step: int) -> None:
        self.diary.append(step)
        super().explore(step)

    def metrics(self) -> dict[str, float]:
        return {"charts/pages": float(len(self.diary))}


def test_an_algorithm_is_asked_in_this_order() -> None:
    learner = begun(
        Noted, learning_starts=1, target_interval=3, iteration_steps=10, tau=0.5
    )
    moves = ["error", "error", "error", "ascent", 0.5]
    first = [0, *moves, "error", "error"]
    assert learner.algorithm.diary == first
    assert learner.iterate()["charts/pages"] == 18
    assert learner.algorithm.diary == [*first, 10, "error", *moves[3:], *moves, "error"]


class Halves(Algorithm):
    """Values from a first layer, an actor in the last; no older copy."""

    target = None

    def __init__(self, policy: Any, config: Any) -> None:
        self.policy, self.config = policy, config
        self.judge, self.actor = policy.network[0], [*policy.network[2].parameters()]

    def error(self, batch: Batch, generator: torch.Generator) -> QError:
        value = self.judge(batch.obs).mean(-1)
        return squared_error(value.unsqueeze(0), batch.reward)

    def ascent(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        return -1e6 * self.policy(obs).mean()


class Idle(Halves):
    """The same, but its actor never climbs."""

    def ascent(self, obs: Tensor, generator: torch.Generator) -> None:
        return None


class Frozen(Halves):
    """The same, but half of the actor is frozen."""

    def __init__(self, policy: Any, config: Any) -> None:
        super().__init__(policy, config)
        self.actor[0].requires_grad_(False)


@pytest.mark.parametrize(
    ("make", "moves"),
    [
        (Halves, "0.weight 0.bias 2.weight 2.bias"),
        (Idle, "0.weight 0.bias"),
        (Frozen, "0.weight 0.bias 2.bias"),
    ],
)
def test_a_run_without_an_older_copy_is_resumed_bit_for_bit(
    make: Any, moves: str
) -> None:
    """The error moves the judge, the ascent the actor, and nobody anything else."""
    whole, half, resumed = (learner_for(make, target_interval=2) for _ in range(3))
    before = copy.deepcopy(whole.policy.state_dict())
    fit(whole, progress=False)
    while half.step < 200:
        half.iterate()
    assert half.state_dict()["target"] == {}
    resumed.load_state_dict(copy.deepcopy(half.state_dict()))
    resumed.policy.load_state_dict(half.policy.state_dict())
    fit(resumed, progress=False)
    assert same(whole, resumed)
    after = whole.policy.state_dict()
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    assert moved == {f"network.{name}" for name in moves.split()}


# --- States and numbers that break ----------------------------------------------------


def test_a_state_that_lacks_something_is_refused_before_anything_changes() -> None:
    learner, other = begun(), begun()
    other.iterate()
    state, before = learner.state_dict(), copy.deepcopy(other.state_dict())
    for name in state:
        rest = {key: x for key, x in state.items() if key != name}
        with pytest.raises(KeyError, match=name):
            other.load_state_dict(rest)
        torch.testing.assert_close(other.state_dict(), before, rtol=0, atol=0)


def test_a_state_is_copied_and_leads_on_alike_whatever_was_before() -> None:
    learner, busy, fresh = begun(), begun(), learner_for(learning_starts=10)
    busy.iterate()
    state, weights = learner.state_dict(), learner.policy.state_dict()
    kept = copy.deepcopy(state)
    for x in (busy, fresh):
        x.load_state_dict(state)
        x.policy.load_state_dict(weights)
        x.iterate()
    assert same(busy, fresh)
    torch.testing.assert_close(state, kept, rtol=0, atol=0)


@pytest.mark.parametrize("share", [0.1, 1.5, math.inf])
def test_gradients_are_clipped_as_torch_does(share: float) -> None:
    learner = learner_for()
    *some, last = learner.parameters
    grads = [torch.randn_like(p) for p in some]
    wanted = [nn.Parameter(torch.zeros_like(grad)) for grad in grads]
    bound = share * nn.utils.get_total_norm(grads).item()

    def backward(parameters: Any = some) -> None:
        for p, grad in zip(parameters, grads, strict=True):
            p.grad = grad.clone()

    backward(wanted)
    nn.utils.clip_grad_norm_(wanted, bound)
    learner.config = replace(SMALL, max_grad_norm=bound)
    learner.descend(backward, learner.parameters)
    pair = [[p.grad for p in net] for net in (some, wanted)]
    torch.testing.assert_close(*pair)
    assert last.grad is None


# --- Errata ---------------------------------------------------------------------------


@pytest.mark.erratum("target-interval-shrinks")
def test_an_interval_that_is_written_over_shrinks_with_every_load() -> None:
    interval, seen = 10_000, []
    for _ in range(5):
        interval = max(interval // 4, 1)
        seen.append(interval)
    assert seen == [2500, 625, 156, 39, 9]
    # Ours is a setting, and nobody writes over it.
    other = begun(target_interval=7)
    other.load_state_dict(begun(target_interval=7).state_dict())
    assert other.config.target_interval == 7


@pytest.mark.erratum("target-interval-within")
def test_two_conditions_must_not_hold_at_once() -> None:
    renewed = [x for x in range(1, 20_000) if x % 10 == 0 and x % 501 == 0]
    assert renewed == [5010, 10_020, 15_030]
    # Ours counts updates, however many steps lie between them.
    learner = begun(train_interval=4, target_interval=3, tau=1.0)
    weight = next(learner.algorithm.target.network.parameters())
    moves = 0
    for _ in range(9):
        before = weight.clone()
        learner.learn()
        moves += not torch.equal(weight, before)
    assert moves == 3
