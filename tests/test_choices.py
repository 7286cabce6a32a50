"""Several choices: each formula against a product of PyTorch's distributions."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Categorical, kl_divergence

from benchmarks.spaces import Sampled
from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.data.agents import Collector, make_envs
from literate_rl.ground.nests import SpaceError
from literate_rl.learners.ppg_learner import make_phasic_policy
from literate_rl.learners.ppo import PPO, PPOConfig
from literate_rl.nets.choices import ChoiceActions, is_choices
from literate_rl.nets.policies import Policy, make_actions, make_policy
from literate_rl.runs.runs import Run, fit, load

NEST = spaces.Dict(
    go=spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary((2, 2)))),
    aim=spaces.MultiDiscrete([[2, 4], [1, 3]], start=[[5, 0], [-7, 1]]),
)
SIZES = {
    "one": (spaces.MultiDiscrete([4]), [4]),
    "some": (spaces.MultiDiscrete([5, 3, 2]), [5, 3, 2]),
    "table": (spaces.MultiDiscrete([[2, 3], [1, 4]]), [2, 3, 1, 4]),
    "start": (spaces.MultiDiscrete([2, 3], np.int32, start=[7, -2]), [2, 3]),
    "switches": (spaces.MultiBinary(3), [2, 2, 2]),
    "table of switches": (spaces.MultiBinary((2, 2)), [2] * 4),
    "nest": (NEST, [3, 2, 2, 2, 2, 2, 4, 1, 3]),
}
spaces_of_choices = pytest.mark.parametrize(
    ("space", "sizes"), SIZES.values(), ids=list(SIZES)
)
SHAPES = st.sampled_from([(1,), (6,), (4, 3), (2, 1, 3)])


def rows(sizes: list[int], shape: tuple[int, ...], number: int, seed: int) -> Any:
    """Return rows in float64, logits that are far apart among them."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(number, *shape, sum(sizes), dtype=float, generator=generator)
    return [(4 * row).requires_grad_() for row in made]


def peers(row: torch.Tensor, sizes: list[int]) -> list[Categorical]:
    return [Categorical(logits=part) for part in row.split(sizes, -1)]


def assert_same(ours: torch.Tensor, theirs: torch.Tensor, *rows: torch.Tensor) -> None:
    """Compare numbers and their gradients, each entry with a weight of its own."""
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    weight = torch.linspace(1, 2, ours.numel(), dtype=float).view_as(ours)
    grads = [
        torch.autograd.grad((x * weight).sum(), rows, retain_graph=True)
        for x in (ours, theirs)
    ]
    for mine, other in zip(*grads, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


@spaces_of_choices
def test_choices_are_read_from_their_space(space: Any, sizes: list[int]) -> None:
    actions = make_actions(space)
    assert isinstance(actions, ChoiceActions)
    assert (actions.sizes, actions.num_logits) == (sizes, sum(sizes))
    # Gymnasium's one-hot row has the same order.
    assert actions.num_logits == spaces.flatdim(space) or "Binary" in str(space)


@pytest.mark.equation("choices-log-prob")
@pytest.mark.equation("choices-entropy")
@spaces_of_choices
@given(shape=SHAPES, seed=st.integers(0, 2**31))
def test_each_number_is_a_sum_over_the_choices(
    space: Any, sizes: list[int], shape: tuple[int, ...], seed: int
) -> None:
    actions = ChoiceActions(space)
    row, other = rows(sizes, shape, 2, seed)
    torch.manual_seed(seed)
    ours, others = peers(row, sizes), peers(other, sizes)
    # Actions of both, so that some are unlikely.
    for drawn in (ours, others):
        action = torch.stack([peer.sample() for peer in drawn], -1)
        each = zip(ours, action.unbind(-1), strict=True)
        wanted = sum(peer.log_prob(part) for peer, part in each)
        entropy = sum(peer.entropy() for peer in ours)
        assert_same(actions.log_prob(row, action), wanted, row)
        found = actions.evaluate(row, action)
        assert_same(found[0], wanted, row)
        assert_same(found[0] + 3 * found[1], wanted + 3 * entropy, row)
    assert_same(actions.entropy(row), entropy, row)
    pairs = zip(ours, others, strict=True)
    theirs = sum(kl_divergence(*pair) for pair in pairs)
    assert_same(actions.kl(row, other), theirs, row, other)
    assert (actions.kl(row, row) == 0).all()


@spaces_of_choices
def test_all_actions_together_have_probability_one(space: Any, sizes: Any) -> None:
    (row,), actions = rows(sizes, (), 1, 0), ChoiceActions(space)
    combinations = itertools.product(*map(range, sizes))
    every = torch.tensor([*combinations])
    joint = actions.log_prob(row.expand(len(every), -1), every)
    torch.testing.assert_close(joint.exp().sum(), torch.ones((), dtype=float))
    torch.testing.assert_close(-(joint.exp() * joint).sum(), actions.entropy(row))


def test_the_gradient_of_a_choice_stays_with_it() -> None:
    actions, (row,) = ChoiceActions(spaces.MultiDiscrete([3, 2])), rows([5], (), 1, 0)
    action = torch.tensor([2, 1])
    (grad,) = torch.autograd.grad(actions.log_prob(row, action), row)
    parts = [x.softmax(-1) for x in row.detach().split([3, 2])]
    one_hot = [torch.eye(n, dtype=float)[a] for n, a in ((3, 2), (2, 1))]
    wanted = torch.cat([one - p for one, p in zip(one_hot, parts, strict=True)])
    torch.testing.assert_close(grad, wanted)


@pytest.mark.equation("choices-log-prob")
def test_noise_draws_each_combination_as_often_as_it_is_likely() -> None:
    actions, number = ChoiceActions(spaces.MultiDiscrete([3, 1, 2])), 200_000
    row = torch.tensor([0.5, -1.0, 0.0, 3.0, 1.0, 0.2])
    noise = actions.noise(2, number // 2, torch.Generator().manual_seed(0))
    assert noise.shape == (2, number // 2, 6)
    drawn = actions.choose(row.expand(2, number // 2, 6), noise).flatten(0, 1)
    for action in itertools.product(range(3), range(1), range(2)):
        share = (drawn == torch.tensor(action)).all(-1).double().mean().item()
        wanted = actions.log_prob(row, torch.tensor(action)).exp().item()
        assert abs(share - wanted) < 5 * math.sqrt(wanted / number)
    again = actions.noise(2, number // 2, torch.Generator().manual_seed(0))
    assert torch.equal(noise, again)


def test_without_noise_each_choice_is_its_likeliest() -> None:
    actions = ChoiceActions(NEST)
    row = torch.randn(7, actions.num_logits, generator=torch.Generator().manual_seed(0))
    best = [part.argmax(-1) for part in row.split(actions.sizes, -1)]
    assert torch.equal(actions.choose(row, 0.0), torch.stack(best, -1))


def test_an_option_that_was_taken_away_makes_no_nan() -> None:
    actions = ChoiceActions(spaces.MultiDiscrete([3, 2]))
    row = torch.tensor([[0.0, -math.inf, 1.0, 2.0, 3.0]], requires_grad=True)
    action = torch.tensor([[2, 0]])
    log_prob, entropy = actions.evaluate(row, action)
    assert actions.log_prob(row, torch.tensor([[1, 0]])).item() == -math.inf
    assert actions.kl(row, row).item() == 0
    assert actions.kl(torch.zeros(1, 5), row).item() == math.inf
    divergence = actions.kl(row, torch.zeros(1, 5))
    (grad,) = torch.autograd.grad((log_prob + entropy + divergence).sum(), row)
    assert grad.isfinite().all()
    assert grad[0, 1] == 0


@pytest.mark.parametrize(
    ("name", "given", "wrong"),
    [
        ("log_prob", torch.zeros(4, 2), "action must be an int64 tensor"),
        (
            "evaluate",
            torch.zeros(3, 2, dtype=int),
            r"action must have shape .*\(4,\) \(of row",
        ),
        ("kl", torch.zeros(3, 5), "other must have shape .*got"),
        ("choose", torch.zeros(4, 6), "noise must have shape .*got"),
    ],
)
def test_arguments_that_do_not_fit_are_named(name: str, given: Any, wrong: str) -> None:
    method = getattr(ChoiceActions(spaces.MultiDiscrete([2, 3])), name)
    with pytest.raises((TypeError, ValueError), match=wrong):
        method(torch.zeros(4, 5), given)


def test_a_row_of_another_size_is_refused() -> None:
    actions = ChoiceActions(spaces.MultiBinary(2))
    for size in (3, 5):
        with pytest.raises(ValueError, match=f"row must have 4 logits, got {size}"):
            actions.choose(torch.zeros(2, size), 0.0)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.MultiDiscrete([]), "at least one, got MultiDiscrete.*shape does not"),
        (spaces.Tuple(()), "consist of choices, .* got Tuple"),
        (spaces.Tuple((spaces.Discrete(2), spaces.Text(3))), "no such actions"),
        (spaces.Box(0, 3, (2,), np.int64), "no such actions; PPO"),
    ],
)
def test_what_has_no_choices_is_refused(space: Any, words: str) -> None:
    with pytest.raises(SpaceError, match=words):
        ChoiceActions(space)


def test_a_box_among_the_parts_is_another_matter() -> None:
    assert is_choices(NEST)
    assert is_choices(spaces.Discrete(2))
    assert not is_choices(spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (1,)))))
    assert not is_choices(spaces.Tuple(()))


@spaces_of_choices
def test_actions_arrive_as_the_environments_want_them(space: Any, sizes: Any) -> None:
    """``Sampled`` holds each action to its space, values and dtype."""
    envs = make_envs(lambda: Sampled(spaces.Box(-1, 1, (3,)), space), 3)
    policy = make_policy(envs.single_observation_space, space)
    collector, generator = Collector(envs, policy.to_env), torch.Generator()
    collector.reset(0)
    noise = iter(policy.noise(40, 3, generator.manual_seed(0)))
    batch = collector.collect(lambda obs: policy.act(obs, next(noise)), 40)
    assert batch.action.shape == (40, 3, len(sizes))
    # All options come up, counted from 0 in what is remembered.
    assert batch.action.amax((0, 1)).tolist() == [size - 1 for size in sizes]
    assert batch.action.amin().item() == 0


def test_names_and_places_stay_together() -> None:
    actions = ChoiceActions(NEST)
    sent = actions.to_env(torch.tensor([[0, 1, 0, 0, 1, 1, 3, 0, 2]]))
    assert sent["aim"].tolist() == [[[6, 3], [-7, 3]]]
    assert sent["go"][0].tolist() == [-1]
    assert sent["go"][1].tolist() == [[[1, 0], [0, 1]]]
    assert sent["go"][1].dtype == np.int8


@spaces_of_choices
@pytest.mark.parametrize("make", [make_policy, make_phasic_policy])
def test_a_recipe_builds_the_same_policy(make: Any, space: Any, sizes: Any) -> None:
    policy = make(spaces.Box(-1, 1, (3,)), space)
    again = make(**json.loads(json.dumps(policy.recipe[1])))
    again.load_state_dict(policy.state_dict())
    obs = torch.randn(4, 3)
    assert policy(obs).shape == (4, sum(sizes))
    assert torch.equal(again(obs), policy(obs))
    action = policy.act(obs, 0.0)
    assert str(again.to_env(action)) == str(policy.to_env(action))


def test_the_fast_form_of_acting_leaves_choices_alone() -> None:
    policy = make_policy(spaces.Box(-1, 1, (3,)), spaces.MultiBinary(2))
    with pytest.raises(ValueError, match=r"methods of its own, got ChoiceActions"):
        numpy_act(policy)


class Copied(gym.Env[Any, Any]):
    """Pays for copying what is seen: a digit and two bits."""

    observation_space = spaces.MultiDiscrete([3, 2, 2])

    def __init__(self) -> None:
        one, two = spaces.Discrete(3, start=10), spaces.MultiBinary(2)
        self.action_space = spaces.Tuple((one, two))

    def show(self) -> np.ndarray:
        self.seen = self.np_random.integers(0, [3, 2, 2])
        return self.seen

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.show(), {}

    def step(self, action: Any) -> Any:
        digit, bits = action
        paid = float((self.seen == [digit - 10, *bits]).mean())
        self.count += 1
        return self.show(), paid, self.count == 10, False, {}


def flat_copied() -> gym.Env[Any, Any]:
    return gym.wrappers.FlattenObservation(Copied())


def test_ppo_learns_it_comes_back_and_goes_on(tmp_path: Path) -> None:
    def build(total_steps: int) -> PPO:
        torch.manual_seed(3)
        envs = make_envs(flat_copied, 8)
        seen, done = envs.single_observation_space, envs.single_action_space
        config = PPOConfig(
            total_steps=total_steps, num_envs=8, num_steps=64, learning_rate=3e-3,
            gamma=0.0, checkpoint_interval=1,
        )  # fmt: skip
        return PPO(make_policy(seen, done), envs, config)

    whole = build(8192)
    history = fit(whole, progress=False)
    assert history[0]["charts/episodic_return"] < 6
    assert history[-1]["charts/episodic_return"] > 9
    # Half of it, and the rest later, is the same. (The learning rate falls.)
    first = build(8192)
    with Run(tmp_path / "run", {}) as run:
        while first.step < 4096:
            first.iterate()
        run.save(first)
    again = build(8192)
    with Run(tmp_path / "run", resume=True) as run:
        run.restore(again)
        fit(again, progress=False)
    ends = [learner.policy.state_dict() for learner in (whole, again)]
    assert all(torch.equal(x, ends[1][key]) for key, x in ends[0].items())
    loaded = load(tmp_path / "run")
    assert isinstance(loaded, Policy)
    obs = torch.eye(7)
    assert torch.equal(loaded(obs), first.policy(obs))


# --- Where not every option is legal --------------------------------------------------


def test_masks_leave_out_options_of_each_choice() -> None:
    actions, sizes = ChoiceActions(spaces.MultiDiscrete([3, 2])), [3, 2]
    mask = torch.tensor([True, False, True, False, True])
    row, other = rows(sizes, (200,), 2, 5)
    left, right = (actions.legal(x, mask.expand(200, -1)) for x in (row, other))
    noise = actions.noise(1, 200, torch.Generator().manual_seed(1))[0].double()
    action = actions.choose(left, noise)
    assert set(action[:, 0].tolist()) == {0, 2}
    assert (action[:, 1] == 1).all()
    terms = [*actions.evaluate(left, action), actions.kl(left, right)]
    (mine,) = torch.autograd.grad(sum(terms).sum(), row, retain_graph=True)
    # What is left is one choice of two options, and one that is certain.
    one, two = (Categorical(logits=x[:, [0, 2]]) for x in (row, other))
    slow = [one.log_prob(action[:, 0] // 2), one.entropy(), kl_divergence(one, two)]
    (theirs,) = torch.autograd.grad(sum(slow).sum(), row)
    torch.testing.assert_close(torch.stack(terms), torch.stack(slow))
    torch.testing.assert_close(mine, theirs)
    with pytest.raises(ValueError, match="mask must have 5 options, got 3"):
        actions.legal(row, mask[:3].expand(200, -1))
    mask[4] = False
    with pytest.raises(ValueError, match="mask must leave a legal action"):
        actions.legal(row, mask.expand(200, -1))


class Doors(gym.Env[Any, Any]):
    """Two choices, of which the second option of each is locked, and says so."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.MultiDiscrete([3, 2])
    # As Gymnasium's own `sample(mask=…)` takes it: a part for each choice.
    infos: Any = {"action_mask": (np.array([1, 0, 1]), np.array([1, 0]))}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), self.infos

    def step(self, action: Any) -> Any:
        assert action.tolist() in ([0, 0], [2, 0]), "a locked door"
        return np.zeros(2, np.float32), 1.0, False, False, self.infos


def test_an_agent_opens_no_locked_door() -> None:
    envs = make_envs(lambda **_: Doors(), 2)
    policy = make_policy(Doors.observation_space, Doors.action_space)
    config = PPOConfig(total_steps=64, num_envs=2, num_steps=16, num_minibatches=2)
    history = fit(PPO(policy, envs, config), progress=False)
    # What is left to chance is the first choice, between two doors.
    assert 0.5 < history[-1]["losses/entropy"] <= math.log(2) + 1e-6
