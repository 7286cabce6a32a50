"""A hybrid policy: rows, spaces and what reaches the environment."""

from __future__ import annotations

import math
import re

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate
from hybrid import (
    MASK,
    action_of,
    assert_same,
    cases,
    entropy_reference,
    kl_reference,
    leaves_of,
    log_prob_reference,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from literate_rl.maths.ppo_error import policy_error_from_log_prob
from literate_rl.nets.hybrid_action import HybridDistribution
from literate_rl.nets.hybrid_policy import HybridActions, make_hybrid_policy
from literate_rl.nets.policies import Policy
from literate_rl.runs.runs import load, save_checkpoint

# --- Spaces -------------------------------------------------------------------------


def box(*shape, low=-1.0, high=1.0, dtype=np.float32):
    return spaces.Box(low, high, shape, dtype)


def tuple_of(*parts):
    return spaces.Tuple(parts)


THREE = spaces.Discrete(3)
BY_TYPE = tuple_of(THREE, tuple_of(box(1), box(0), box(2)))
NEST = spaces.Dict(
    how=tuple_of(box(2, 1, low=-2.0, dtype=np.float64), box(1, low=-np.inf)),
    what=spaces.Discrete(3, start=5),
    why=box(1, low=0.0, high=720.0),
)
NESTS = {
    "by type": (BY_TYPE, None),
    "boxes": (tuple_of(THREE, box(1, 2), box(2, dtype=np.float64)), MASK.numpy()),
    "deep": (NEST, MASK.tolist()),
    "unbounded": (
        tuple_of(THREE, box(2, low=-np.inf, high=np.inf), box(2, low=0, high=np.inf)),
        MASK,
    ),
}


def test_boxes_by_type_give_the_mask_unless_one_is_given():
    mask = HybridActions.from_space(BY_TYPE).mask
    assert mask.int().tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 1]]
    mine = [[1, 1, 1], [0, 0, 0], [0, 0, 1]]
    assert HybridActions.from_space(BY_TYPE, mine).mask.int().tolist() == mine


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_the_largest_number_is_no_bound(kind) -> None:
    most = float(np.finfo(kind).max)
    both = box(2, low=-most, high=most, dtype=kind)
    space = tuple_of(THREE, both, box(2, low=0, high=most, dtype=kind))
    actions = HybridActions.from_space(space, MASK)
    assert actions.low.tolist() == [-np.inf, -np.inf, 0, 0]
    assert actions.high.tolist() == [np.inf] * 4
    nest = actions.to_env(torch.tensor([[2.0, 1.0, -3.0, 1.0, -3.0]]))
    assert [x.tolist() for x in nest[1:]] == [[[1, -3]], [[1, 0]]]


def flatten(space, element):
    """Return the type, from 0, and all arguments in order, by another walk."""
    if isinstance(space, spaces.Discrete):
        return int(element) - int(space.start), []
    if isinstance(space, spaces.Box):
        return 0, np.ravel(element).tolist()
    named = isinstance(space, spaces.Dict)
    parts = [(space[k], element[k]) for k in (space if named else range(len(space)))]
    kinds, args = zip(*(flatten(*part) for part in parts), strict=True)
    return sum(kinds), [x for part in args for x in part]


@pytest.mark.parametrize("name", NESTS)
@pytest.mark.equation("hybrid-rescale")
@given(st.integers(1, 5), st.integers(0, 1000), st.sampled_from([0.3, 100.0]))
@settings(max_examples=15)
def test_actions_reach_the_environment_inside_its_space(name, batch, seed, scale):
    space, mask = NESTS[name]
    actions = HybridActions.from_space(space, mask)
    num_types, num_args = actions.mask.shape
    torch.manual_seed(seed)
    kinds = torch.randint(0, num_types, (batch,))
    action = action_of(kinds, scale * torch.randn(batch, num_args))
    many = batch_space(space, batch)
    nest = actions.to_env(action)
    assert many.contains(nest)
    bounds = list(zip(actions.low, actions.high, strict=True))
    for b, single in enumerate(iterate(many, nest)):
        alone = actions.to_single_env(action[b : b + 1])
        assert space.contains(single)
        assert space.contains(alone)
        kind, args = flatten(space, single)
        assert (kind, args) == flatten(space, alone)
        assert kind == kinds[b]
        wanted = []
        for u, (low, high) in zip(action.action_args[b].tolist(), bounds, strict=True):
            if math.isfinite(low) and math.isfinite(high):
                u = (low + high) / 2 + (high - low) / 2 * u
            wanted.append(min(max(u, low), high))
        assert args == pytest.approx(wanted, rel=1e-6, abs=1e-6)


def test_what_does_not_fit_is_named():
    make = HybridActions.from_space
    actions, args = make(BY_TYPE), torch.zeros(2, 3)
    assert actions.to_env(torch.zeros(2, 4))[0].tolist() == [0, 0]
    one_box = tuple_of(THREE, box(4))
    for words, call, *given_ in (
        ("mask must be given", make, one_box),
        ("at least one argument", make, tuple_of(THREE, tuple_of(*[box(0)] * 3))),
        ("exactly one Discrete", make, box(2)),
        ("exactly one Discrete", make, tuple_of(THREE, THREE, box(2))),
        ("floating", make, tuple_of(THREE, box(2, dtype=np.int64))),
        ("a batch of 2", actions.to_single_env, action_of([0, 1], args)),
        ("args must be finite", actions.to_env, action_of([0, 1], args + torch.nan)),
        ("got (2, 2)", actions.to_env, action_of([0, 1], args[:, :2])),
        # Rows have one number more, for the type.
        ("got (2, 2)", actions.to_env, args),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            call(*given_)


def test_platform_runs_through_the_same_code():
    pytest.importorskip("gym_platform")
    env = gym.make("Platform-v0")
    actions = HybridActions.from_space(env.action_space)
    env.reset(seed=0)
    for kind in (0, 1, 2):
        action = actions.to_single_env(torch.tensor([[kind, 0.1, 0.2, 0.3]]))
        assert env.action_space.contains(action)
        assert math.isfinite(env.step(action)[1])


# --- The policy of rows -------------------------------------------------------------


def nested_policy(**arguments) -> Policy:
    torch.manual_seed(0)
    policy = make_hybrid_policy(box(6), NEST, MASK, **arguments)
    torch.nn.init.normal_(policy.network.actor.network.action_args_log_sigma, std=0.5)
    return policy


def noise_of(policy, *shape):
    return policy.noise(*shape, torch.Generator().manual_seed(0))


@given(case=cases())
@settings(max_examples=30, deadline=None)
def test_rows_mean_what_torch_distributions_say(case):
    mask, logit, other, action = case
    kinds, args = action.action_type.unsqueeze(-1), action.action_args
    space = tuple_of(spaces.Discrete(mask.shape[0]), box(mask.shape[1]))
    actions, leaves = HybridActions.from_space(space, mask), leaves_of(logit)
    row, other_row = (torch.cat(leaves_of(x), -1) for x in (logit, other))
    log_prob = log_prob_reference(logit, mask, action)
    entropy = entropy_reference(logit, mask)
    ours = actions.evaluate(row, torch.cat([kinds.to(args.dtype), args], -1))
    assert_same(ours[0], log_prob, *leaves)
    assert_same(ours[0] + 3 * ours[1], log_prob + 3 * entropy, *leaves)
    divergence, expected = actions.kl(row, other_row), kl_reference(logit, other, mask)
    assert_same(divergence, expected, *leaves, *leaves_of(other))
    assert (actions.kl(row, row) == 0).all()


def test_rows_of_a_rollout_are_rows_of_its_steps():
    policy, obs = nested_policy(), torch.randn(7, 5, 6)
    actions, row, other = policy.actions, policy(obs), policy(obs.flip(0))
    tree = leaves_of(policy.network.actor.network(obs[3]))
    torch.testing.assert_close(row[3], torch.cat(tree, 1))
    torch.testing.assert_close(policy.value(obs)[3], policy.value(obs[3]))
    action = policy.act(obs, noise_of(policy, 7, 5))
    for function, *arguments in (
        (actions.kl, row, other),
        (lambda *x: actions.evaluate(*x)[0], row, action),
        (lambda *x: actions.evaluate(*x)[1], row, action),
        (lambda x: actions.distribution(x).prob.view(*x.shape[:-1], 3), row),
    ):
        whole = function(*arguments)
        for t in range(7):
            torch.testing.assert_close(whole[t], function(*(x[t] for x in arguments)))


def test_acting_is_the_mode_or_a_sample_of_the_distribution():
    policy, number = nested_policy(), 200_000
    obs = torch.randn(1, 6).expand(number, 6)
    with torch.no_grad():
        expected = HybridDistribution(policy.network.actor.network(obs[:1]), MASK)
        chosen = policy.actions.action_of(policy.act(obs[:1], 0.0))
        action = policy.actions.action_of(
            policy.act(obs, noise_of(policy, 1, number)[0])
        )
    mode = expected.mode()
    assert torch.equal(chosen["action_type"], mode.action_type)
    torch.testing.assert_close(chosen["action_args"], mode.action_args)
    kinds, args = action["action_type"], action["action_args"]
    # Five standard errors of a frequency, a mean and a deviation.
    error = 5 / math.sqrt(number)
    frequency = kinds.bincount(minlength=3) / number
    assert (frequency - expected.prob[0]).abs().max() < error * 0.5
    zeta = (args - expected.mu[0]) / expected.sigma[0]
    assert zeta.mean(0).abs().max() < error
    assert (zeta.std(0) - 1).abs().max() < error
    # Types and arguments are independent of each other.
    assert zeta[kinds == 0].mean(0).abs().max() < 2 * error


def test_arguments_that_do_not_count_do_no_harm_in_a_row():
    policy, obs = nested_policy(), torch.randn(8, 6)
    action = policy.act(obs, 0.0).detach()
    expected, _ = policy.evaluate_actions(obs, action)
    unused = ~MASK[action[:, 0].long()]
    assert unused.any()
    action[:, 1:][unused] = torch.nan
    log_prob, entropy = policy.evaluate_actions(obs, action)
    assert torch.equal(log_prob, expected)
    loss, _ = policy_error_from_log_prob(
        log_prob, log_prob.detach() - 0.1, entropy, torch.randn(8)
    )
    sum(loss).backward()
    assert all(x.grad.isfinite().all() for x in policy.network.actor.parameters())


def test_a_checkpoint_brings_the_policy_back(tmp_path):
    policy, obs = nested_policy(normalize=True), torch.randn(4, 6)
    policy.network.normalizer.update(3 + 2 * torch.randn(100, 6))
    state = {"recipe": policy.recipe, "weights": policy.state_dict()}
    save_checkpoint(tmp_path / "checkpoint.pt", {"policy": state})
    again = load(tmp_path)
    assert (again.actions.space, again.recipe) == (NEST, policy.recipe)
    assert torch.equal(again.actions.mask, MASK)
    assert torch.equal(again.act(obs, 0.0), policy.act(obs, 0.0))
