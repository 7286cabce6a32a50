"""TD3 and HDDPG: targets and losses, and that without their parts they are DDPG."""

from __future__ import annotations

import copy
import math
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import gymnasium as gym
import pytest
import torch
from fuzz import assert_held
from hypothesis import given
from hypothesis import strategies as st
from reach import (
    BOX,
    DISCRETE,
    ENV,
    HIGH,
    LOW,
    SHORT,
    SMALL,
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

from literate_rl.apps.training import train
from literate_rl.check.contracts import ContractError
from literate_rl.check.own_models import make_own_ddpg_policy
from literate_rl.data.replay import Batch
from literate_rl.learners.ddpg import DDPGConfig, ddpg_settings
from literate_rl.learners.loop import OffPolicy, QError
from literate_rl.learners.td3 import (
    HDDPGConfig,
    TD3Config,
    critic_error,
    hddpg_settings,
    td3_settings,
)
from literate_rl.maths.td3 import clipped_double_target, smoothed_action
from literate_rl.nets.policies import Policy


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
    torch.testing.assert_close(error.loss.detach(), wanted)
    (grad,) = torch.autograd.grad(error.loss.sum(), q)
    torch.testing.assert_close(grad, slope)
    assert target.grad is None
    # A priority is measured from the mean of the critics.
    mean = (q[0] + q[1]).detach() / 2
    torch.testing.assert_close(error.value, mean)
    torch.testing.assert_close(error.td_error, target.detach() - mean)
    assert not error.value.requires_grad
    assert not error.td_error.requires_grad
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


class Terms:
    """What an error of one agent is made of; what an agent lacks is switched off."""

    def __init__(self, config: Any) -> None:
        self.num_critics = getattr(config, "num_critics", 1)
        self.smoothing = getattr(config, "smoothing", 0.0)
        self.clip = getattr(config, "smoothing_clip", 0.0)
        self.increase = getattr(config, "increase", 1.0)
        self.decrease = getattr(config, "decrease", 1.0)


def slow_error(
    policy: Policy, target: Policy, batch: Batch, config: Terms, seed: int
) -> tuple[list[float], list[float], list[float]]:
    """Return losses, TD errors and values, step by step."""
    noise = torch.randn(N, 2, generator=torch.Generator().manual_seed(seed))
    losses, errors, values = [], [], []
    for i in range(N):
        action = target.network.actor(batch.next_obs[i : i + 1])[0].tolist()
        for j in range(2):
            half, clip = (HIGH[j] - LOW[j]) / 2, config.clip
            shift = min(max(config.smoothing * noise[i, j].item(), -clip), clip)
            action[j] = min(max(action[j] + half * shift, LOW[j]), HIGH[j])
        row = torch.tensor([action], dtype=torch.float64)
        obs = batch.next_obs[i : i + 1]
        judged = [c(obs, row).item() for c in target.network.critics]
        aim = batch.reward[i].item() + batch.discount[i].item() * min(judged)
        taken = batch.action[i : i + 1]
        obs = batch.obs[i : i + 1]
        q = [c(obs, taken).item() for c in policy.network.critics]
        rates = [config.increase if aim > x else config.decrease for x in q]
        losses.append(
            sum(r * (aim - x) ** 2 / 2 for r, x in zip(rates, q, strict=True))
        )
        values.append(sum(q) / len(q))
        errors.append(aim - values[-1])
    return losses, errors, values


AGENTS = {
    "DDPG": DDPGConfig(),
    "HDDPG": HDDPGConfig(),
    # So much noise that some of it is clipped.
    "TD3": TD3Config(smoothing=0.4, smoothing_clip=0.3),
}


@pytest.mark.parametrize("name", AGENTS)
def test_the_error_against_a_slow_form(name: str) -> None:
    config, batch = AGENTS[name], batch_of()
    algorithm = algorithm_for(config)
    policy, target = algorithm.policy, algorithm.target.network
    error = algorithm.error(batch, torch.Generator().manual_seed(5))
    with torch.no_grad():
        wanted = slow_error(policy, target, batch, Terms(config), 5)
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


# --- The loop -------------------------------------------------------------------------


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
        target = copy.deepcopy(learner.algorithm.target.network.state_dict())
        learner.learn()
        turn = update % delay == 0
        moved = learner.policy.network.actor.state_dict()
        assert learner.updates == update
        same = all(torch.equal(moved[name], x) for name, x in actor.items())
        assert same != turn
        if not turn:
            now = learner.algorithm.target.network.state_dict()
            torch.testing.assert_close(now, target, rtol=0, atol=0)
            continue
        # Half the way from where they were to where the new weights are.
        for name, weight in learner.algorithm.target.network.state_dict().items():
            wanted = (target[name] + learner.policy.state_dict()[name]) / 2
            torch.testing.assert_close(weight, wanted)


def same_run(one: OffPolicy, other: OffPolicy, iterations: int = 5) -> bool:
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


def test_probabilities_are_not_smoothed() -> None:
    learner = learner_for(TD3Config(**SMALL), partial(gym.make, DISCRETE))
    for _ in range(2):
        learner.iterate()
    assert learner.updates > 0
    algorithm: Any = learner.algorithm
    batch, found = learner.sample(), []
    for share in (0.2, 0.0):
        algorithm.config = replace(algorithm.config, smoothing=share)
        found.append(algorithm.aim(batch, torch.Generator()))
    assert torch.equal(*found)


def test_several_steps_and_priorities() -> None:
    changes = {"num_steps": 3, "priority_exponent": 0.6, "gamma": 0.9}
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
    "HDDPG": HDDPGConfig(**SMALL),
    "TD3": TD3Config(**SMALL),
    "with priorities": TD3Config(**SMALL, priority_exponent=0.6, num_steps=3),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_resumed_run_is_the_same_bit_for_bit(name: str, tmp_path: Path) -> None:
    resumes_bit_for_bit(CHANGES[name], tmp_path)


@pytest.mark.parametrize("config", [HDDPGConfig(), TD3Config()])
def test_it_learns_to_name_the_point(config: DDPGConfig) -> None:
    learns_to_name_the_point(config)


# --- Models of one's own --------------------------------------------------------------


@pytest.mark.parametrize(("algorithm", "number"), [("HDDPG", 1), ("TD3", 2)])
def test_models_of_ones_own_train_are_saved_and_get_their_weights_back(
    algorithm: str, number: int, tmp_path: Path
) -> None:
    trains_models_of_ones_own(algorithm, number, tmp_path)


@pytest.mark.parametrize("algorithm", ["HDDPG", "TD3"])
def test_our_own_agents_act_in_states_and_in_discrete_actions(algorithm: str) -> None:
    acts_in_states_and_in_discrete_actions(algorithm)


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
    with pytest.raises(ValueError, match="num_critics"):
        TD3Config(num_critics=0)
    with pytest.raises(ValueError, match="policy must have 2 critics or more, got 1"):
        learner_for(TD3Config(**SMALL), policy=policy_for(1))
    with pytest.raises(ValueError, match="decrease"):
        HDDPGConfig(decrease=-0.1)


def test_settings_by_environment() -> None:
    assert type(hddpg_settings(ENV)) is HDDPGConfig
    assert type(td3_settings("other")) is TD3Config
    noise = {"num_critics": 2, "smoothing": 0.2, "smoothing_clip": 0.5}
    plain = asdict(ddpg_settings(ENV))
    assert plain | {"target_interval": 2} | noise == asdict(td3_settings(ENV))
    assert plain | {"increase": 1.0, "decrease": 0.5} == asdict(hddpg_settings(ENV))


@pytest.mark.parametrize("algorithm", ["hddpg", "td3"])
def test_the_command_line(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_from_the_command_line(algorithm, tmp_path, monkeypatch)


# --- Errata ---------------------------------------------------------------------------


@pytest.mark.erratum("one-draw-for-all-environments")
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


@pytest.mark.erratum("twins-that-are-one")
def test_a_copied_critic_stays_a_copy() -> None:
    first = OwnCritic()
    for fresh in (False, True):
        given = first if fresh else [first, copy.deepcopy(first)]
        policy = make_own_ddpg_policy(
            Reach.observation_space, BOX, OwnActor(), given, num_critics=2
        )
        learner = learner_for(TD3Config(**SMALL), policy=policy)
        for _ in range(3):
            learner.iterate()
        batch = learner.sample()
        one, other = learner.policy.network.critics(batch.obs, batch.action)
        assert torch.equal(one, other) != fresh
        first = OwnCritic()


@pytest.mark.erratum("target-outside-the-box")
def test_noise_without_a_clip_leaves_the_box() -> None:
    low, high = torch.tensor([-1.0]), torch.tensor([1.0])
    edge = torch.full((200, 1), 0.95)
    noise = torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
    assert (edge + (0.2 * noise).clamp(-0.5, 0.5)).max() > 1.2
    assert smoothed_action(edge, noise, low, high).max() == 1
