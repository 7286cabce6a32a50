"""A hybrid policy: rows, spaces and what reaches the environment."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate
from hybrid import (
    MASK,
    action_of,
    leaves_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from literate_rl.nets.hybrid_action import HybridDistribution
from literate_rl.nets.hybrid_policy import HybridActions, make_hybrid_policy
from literate_rl.nets.policies import Policy

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


def test_boxes_by_type_give_the_mask():
    mask = HybridActions.from_space(BY_TYPE).mask
    assert mask.int().tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 1]]


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_the_largest_number_is_no_bound(kind):
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
        assert space.contains(single)
        kind, args = flatten(space, single)
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
    for words, call, given_ in (
        ("mask must be given", make, tuple_of(THREE, box(4))),
        ("exactly one Discrete", make, tuple_of(THREE, THREE, box(2))),
        ("args must be finite", actions.to_env, action_of([0, 1], args + torch.nan)),
        # Rows have one number more, for the type.
        ("got (2, 2)", actions.to_env, args),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            call(given_)


# --- The policy of rows -------------------------------------------------------------


def nested_policy(**arguments) -> Policy:
    torch.manual_seed(0)
    policy = make_hybrid_policy(box(6), NEST, MASK, **arguments)
    torch.nn.init.normal_(policy.network.actor.network.action_args_log_sigma, std=0.5)
    return policy


def noise_of(policy, *shape):
    return policy.noise(*shape, torch.Generator().manual_seed(0))


def test_rows_of_a_rollout_are_the_trees_of_its_steps():
    policy, obs = nested_policy(), torch.randn(7, 5, 6)
    actions, row, other = policy.actions, policy(obs), policy(obs.flip(0))
    action = policy.act(obs, noise_of(policy, 7, 5))
    log_prob, entropy = actions.evaluate(row, action)
    kl, prob = actions.kl(row, other), actions.distribution(row).prob.view(7, 5, 3)
    network = policy.network.actor.network
    for t in range(7):
        tree = network(obs[t])
        torch.testing.assert_close(row[t], torch.cat(leaves_of(tree), 1))
        torch.testing.assert_close(policy.value(obs)[t], policy.value(obs[t]))
        here, there = (HybridDistribution(x, MASK) for x in (tree, network(obs[6 - t])))
        taken = actions.action_of(action[t])
        found = log_prob[t], entropy[t], kl[t], prob[t]
        wanted = here.log_prob(taken), here.entropy(), here.kl(there), here.prob
        torch.testing.assert_close(found, wanted)


def test_acting_is_the_mode_or_a_sample_of_the_distribution():
    policy, number = nested_policy(), 200_000
    obs = torch.randn(1, 6)
    with torch.no_grad():
        expected = HybridDistribution(policy.network.actor.network(obs), MASK)
        greedy = policy.act(obs, 0.0)
        action = policy.act(obs.expand(number, 6), noise_of(policy, 1, number)[0])
    kinds, args = action[:, 0].long(), action[:, 1:]
    mode = expected.mode()
    torch.testing.assert_close(greedy[:, 0].long(), mode.action_type)
    torch.testing.assert_close(greedy[:, 1:], mode.action_args)
    # Five standard errors of a frequency, a mean and a deviation.
    error = 5 / math.sqrt(number)
    frequency = kinds.bincount(minlength=3) / number
    assert (frequency - expected.prob[0]).abs().max() < error * 0.5
    zeta = (args - expected.mu) / expected.sigma
    assert zeta.mean(0).abs().max() < error
    assert (zeta.std(0) - 1).abs().max() < error
