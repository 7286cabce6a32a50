"""Several choices: each formula against a product of PyTorch's distributions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hybrid import assert_same
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, kl_divergence

from benchmarks.spaces import Sampled
from literate_rl.data.agents import Collector, make_envs
from literate_rl.ground.nests import SpaceError
from literate_rl.nets.choices import ChoiceActions
from literate_rl.nets.parts import CategoricalActions
from literate_rl.nets.policies import make_actions, make_policy

NEST = spaces.Dict(
    go=spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary((2, 2)))),
    aim=spaces.MultiDiscrete([[2, 4], [1, 3]], start=[[5, 0], [-7, 1]]),
)
SIZES = {
    "one": (spaces.MultiDiscrete([4]), [4]),
    "some": (spaces.MultiDiscrete([2, 3], np.int32, start=[7, -2]), [2, 3]),
    "switches": (spaces.MultiBinary((2, 2)), [2] * 4),
    "nest": (NEST, [3, 2, 2, 2, 2, 2, 4, 1, 3]),
}
spaces_of_choices = pytest.mark.parametrize(
    ("space", "sizes"), SIZES.values(), ids=list(SIZES)
)
SHAPES = st.sampled_from([(1,), (4, 3), (2, 1, 3)])


@pytest.mark.equation("choices-log-prob")
@pytest.mark.equation("choices-entropy")
@spaces_of_choices
@settings(max_examples=40)
@given(shape=SHAPES, seed=st.integers(0, 2**31))
def test_each_number_is_a_sum_over_the_choices(space, sizes, shape, seed):
    actions = make_actions(space)
    assert (actions.sizes, actions.num_logits) == (sizes, sum(sizes))
    torch.manual_seed(seed)
    # Logits that are far apart among them.
    made = 4 * torch.randn(2, *shape, sum(sizes), dtype=float)
    row, other = (x.requires_grad_() for x in made)
    ours, others = (
        [Categorical(logits=part) for part in x.split(sizes, -1)] for x in (row, other)
    )
    entropy = sum(peer.entropy() for peer in ours)
    kl = sum(map(kl_divergence, ours, others))
    # Actions of both, so that some are unlikely.
    for drawn in (ours, others):
        parts = [peer.sample() for peer in drawn]
        action, pairs = torch.stack(parts, -1), zip(ours, parts, strict=True)
        wanted = sum(peer.log_prob(part) for peer, part in pairs), entropy, kl
        found = *actions.evaluate(row, action), actions.kl(row, other)
        assert_same(torch.stack(found), torch.stack(wanted), row, other)
    assert (actions.kl(row, row) == 0).all()
    best = [peer.logits.argmax(-1) for peer in ours]
    assert torch.equal(actions.choose(row, 0.0), torch.stack(best, -1))


def test_noise_draws_each_combination_as_often_as_it_is_likely():
    actions, number = ChoiceActions(spaces.MultiDiscrete([3, 1, 2])), 200_000
    row = torch.tensor([0.5, -1.0, 0.0, 3.0, 1.0, 0.2])
    noise = actions.noise(2, number // 2, torch.Generator().manual_seed(0))
    drawn = actions.choose(row.expand(2, number // 2, 6), noise).flatten(0, 1)
    for action in itertools.product(range(3), range(1), range(2)):
        share = (drawn == torch.tensor(action)).all(-1).double().mean().item()
        wanted = actions.evaluate(row, torch.tensor(action))[0].exp().item()
        assert abs(share - wanted) < 5 * math.sqrt(wanted / number)


@pytest.mark.parametrize(
    ("actions", "taken", "gone"),
    [
        (CategoricalActions(5), [4], [1]),
        (ChoiceActions(spaces.MultiDiscrete([3, 2])), [[2, 0]], [[1, 0]]),
    ],
)
def test_an_option_that_was_taken_away_makes_no_nan(actions, taken, gone):
    row = torch.tensor([[0.0, -math.inf, 1.0, 2.0, 3.0]], requires_grad=True)
    found, hardly = actions.evaluate(row, torch.tensor(taken)), row.clamp(min=-1e3)
    torch.testing.assert_close(found, actions.evaluate(hardly, torch.tensor(taken)))
    assert actions.evaluate(row, torch.tensor(gone))[0].item() == -math.inf
    assert actions.kl(row, row).item() == 0
    assert actions.kl(torch.zeros(1, 5), row).item() == math.inf
    total = sum(found) + actions.kl(row, torch.zeros(1, 5))
    (grad,) = torch.autograd.grad(total.sum(), row)
    assert grad.isfinite().all()
    assert grad[0, 1] == 0


def test_what_does_not_fit_is_named():
    pair, row = ChoiceActions(spaces.MultiDiscrete([2, 3])), torch.zeros(4, 5)
    with pytest.raises(ValueError, match="row must have 5 logits, got 3"):
        pair.choose(row[:, :3], 0.0)
    with pytest.raises(ValueError, match="leave a legal action"):
        pair.legal(row, (torch.arange(5) > 1).expand(4, 5))
    with pytest.raises(SpaceError, match="got MultiDiscrete"):
        ChoiceActions(spaces.MultiDiscrete([]))


@spaces_of_choices
def test_actions_arrive_as_the_environments_want_them(space, sizes):
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


def test_names_and_places_stay_together():
    actions = ChoiceActions(NEST)
    sent = actions.to_env(torch.tensor([[0, 1, 0, 0, 1, 1, 3, 0, 2]]))
    assert sent["aim"].tolist() == [[[6, 3], [-7, 3]]]
    assert sent["go"][0].tolist() == [-1]
    assert sent["go"][1].tolist() == [[[1, 0], [0, 1]]]


# --- Where not every option is legal --------------------------------------------------


def test_masks_leave_out_options_of_each_choice():
    actions = ChoiceActions(spaces.MultiDiscrete([3, 2]))
    mask = torch.tensor([True, False, True, False, True]).expand(200, -1)
    torch.manual_seed(5)
    row, other = (x.requires_grad_() for x in 4 * torch.randn(2, 200, 5, dtype=float))
    left, right = (actions.legal(x, mask) for x in (row, other))
    noise = actions.noise(1, 200, torch.Generator().manual_seed(1))[0].double()
    action = actions.choose(left, noise)
    assert action.unique(dim=0).tolist() == [[0, 1], [2, 1]]
    # What is left is one choice of two options, and one that is certain.
    one, two = (Categorical(logits=x[:, [0, 2]]) for x in (row, other))
    wanted = one.log_prob(action[:, 0] // 2), one.entropy(), kl_divergence(one, two)
    found = *actions.evaluate(left, action), actions.kl(left, right)
    assert_same(torch.stack(found), torch.stack(wanted), row)
