"""A hybrid policy: rows, spaces and what reaches the environment."""

from __future__ import annotations

import importlib
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
import treetensor.torch as ttorch
from gymnasium import spaces
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

from literate_rl.data.agents import make_envs
from literate_rl.data.worlds import Moving
from literate_rl.ground.nests import as_space, leaves, plain_space
from literate_rl.maths.ppo_error import (
    policy_error_from_log_prob,
)
from literate_rl.nets import hybrid_policy
from literate_rl.nets.hybrid_action import HybridDistribution, HybridPolicyNetwork
from literate_rl.nets.hybrid_policy import HybridActions, make_hybrid_policy
from literate_rl.nets.policies import Policy
from literate_rl.runs.runs import load, save_checkpoint

IDS = ["literate_rl/Moving-v0", "literate_rl/HybridLander-v0"]


# --- Spaces -------------------------------------------------------------------------


def box(*shape, low=-1.0, high=1.0, dtype=np.float32):
    return spaces.Box(low, high, shape, dtype)


NESTS = {
    "by type": (
        spaces.Tuple((spaces.Discrete(3), spaces.Tuple((box(1), box(0), box(2))))),
        None,
    ),
    "one box": (spaces.Tuple((spaces.Discrete(3), box(4, low=0.0, high=720.0))), MASK),
    "boxes": (
        spaces.Tuple((spaces.Discrete(3), box(1, 2), box(2, dtype=np.float64))),
        MASK,
    ),
    "dict": (spaces.Dict({"kind": spaces.Discrete(3, start=5), "args": box(4)}), MASK),
    "deep": (
        spaces.Dict({"a": spaces.Tuple((box(1), spaces.Discrete(3))), "b": box(3)}),
        MASK.tolist(),
    ),
    "unbounded": (
        spaces.Tuple(
            (
                spaces.Discrete(3),
                box(2, low=-np.inf, high=np.inf),
                box(2, low=0, high=np.inf),
            )
        ),
        MASK.numpy(),
    ),
}


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_the_largest_number_is_no_bound(kind) -> None:
    most = float(np.finfo(kind).max)
    boxes = spaces.Box(-most, most, (2,), kind), spaces.Box(0, most, (2,), kind)
    space = spaces.Tuple((spaces.Discrete(3), *boxes))
    spec = HybridActions.from_space(space, MASK)
    assert spec.low.tolist() == [-np.inf, -np.inf, 0, 0]
    assert spec.high.tolist() == [np.inf] * 4
    nest = spec.to_env(torch.tensor([[2.0, 1.0, -3.0, 1.0, -3.0]]))
    assert [x.tolist() for x in nest[1:]] == [[[1, -3]], [[1, 0]]]
    assert all(
        space.contains(x)
        for x in gym.vector.utils.iterate(gym.vector.utils.batch_space(space, 1), nest)
    )


@pytest.mark.parametrize("name", NESTS)
@pytest.mark.equation("hybrid-rescale")
@given(st.data())
@settings(max_examples=15)
def test_actions_reach_the_environment_inside_its_space(name, data):
    space, mask = NESTS[name]
    spec = HybridActions.from_space(space, mask)
    num_types, num_args = spec.mask.shape
    batch, seed = data.draw(st.integers(1, 5)), data.draw(st.integers(0, 1000))
    scale = data.draw(st.sampled_from([0.3, 1.0, 100.0]))
    generator = torch.Generator().manual_seed(seed)
    action = action_of(
        torch.randint(0, num_types, (batch,), generator=generator),
        scale * torch.randn(batch, num_args, generator=generator),
    )
    nest = spec.to_env(action)
    assert gym.vector.utils.batch_space(space, batch).contains(nest)
    for b, single in enumerate(
        gym.vector.utils.iterate(gym.vector.utils.batch_space(space, batch), nest)
    ):
        assert space.contains(single)
        alone = spec.to_single_env(action[b : b + 1])
        assert space.contains(alone)
        flat, flat_alone = flatten(space, single), flatten(space, alone)
        assert flat == flat_alone
        kind, args = flat
        assert kind == action.action_type[b].item()
        for j, u in enumerate(action.action_args[b].tolist()):
            low, high = spec.low[j], spec.high[j]
            if math.isfinite(low) and math.isfinite(high):
                u = (low + high) / 2 + (high - low) / 2 * u
            assert args[j] == pytest.approx(min(max(u, low), high), rel=1e-6, abs=1e-6)


def flatten(space, element):
    """Return the type, from 0, and all arguments in order, by another walk."""
    if isinstance(space, spaces.Discrete):
        return int(element) - int(space.start), []
    if isinstance(space, spaces.Box):
        return None, np.ravel(element).tolist()
    children = list(
        space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
    )
    values = list(element.values() if isinstance(space, spaces.Dict) else element)
    flat = [flatten(c, v) for c, v in zip(children, values, strict=True)]
    kinds = [k for k, _ in flat if k is not None]
    return kinds[0] if kinds else None, [x for _, args in flat for x in args]


def test_boxes_by_type_give_the_mask():
    spec = HybridActions.from_space(NESTS["by type"][0])
    assert spec.mask.int().tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 1]]
    assert spec.mask.dtype == torch.bool
    assert spec.action_shape == {"action_type_shape": 3, "action_args_shape": 3}
    assert Moving().action_space.contains(
        (2, tuple(np.zeros(n, np.float32) for n in (1, 1, 0)))
    )
    assert HybridActions.from_space(Moving().action_space).mask.tolist() == [
        [True, False],
        [False, True],
        [False, False],
    ]


def test_a_given_mask_wins_over_the_form_of_the_space():
    given_mask = [[1, 1, 1], [0, 0, 0], [0, 0, 1]]
    spec = HybridActions.from_space(NESTS["by type"][0], given_mask)
    assert spec.mask.int().tolist() == given_mask


def test_the_action_distribution_is_frozen():
    spec = HybridActions.from_space(NESTS["by type"][0])
    with pytest.raises(AttributeError):
        spec.mask = MASK


def turned(low, high):
    """Return a space whose bounds were changed after Gymnasium had looked at them."""
    changed = box(1)
    changed.low[:], changed.high[:] = low, high
    return spaces.Tuple((spaces.Discrete(2), spaces.Tuple((changed, box(1)))))


@pytest.mark.parametrize(
    ("space", "mask", "error", "message"),
    [
        (turned(1, -1), None, ValueError, "lower bounds that are at most the upper"),
        (turned(np.nan, 1), None, ValueError, "lower bounds that are at most"),
        (NESTS["one box"][0], None, ValueError, "mask must be given"),
        (NESTS["boxes"][0], None, ValueError, "mask must be given"),
        (
            spaces.Tuple((spaces.Discrete(3), spaces.Tuple((box(1), box(1))))),
            None,
            ValueError,
            "mask must",
        ),
        (NESTS["one box"][0], MASK.T, ValueError, r"shape \(3, 4\), got \(4, 3\)"),
        (NESTS["one box"][0], MASK.int() + 1, ValueError, "zeros and ones"),
        (spaces.Discrete(3), None, ValueError, "at least one argument"),
        (box(2), None, ValueError, "exactly one Discrete"),
        (
            spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2), box(2))),
            None,
            ValueError,
            "exactly one",
        ),
        (
            spaces.Tuple((spaces.Discrete(1), spaces.Tuple((box(0),)))),
            None,
            ValueError,
            "at least one",
        ),
        (
            spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(2))),
            None,
            ValueError,
            "MultiBinary",
        ),
        (
            spaces.Tuple((spaces.Discrete(2), box(2, low=0, high=9, dtype=np.int64))),
            None,
            ValueError,
            "floating",
        ),
        ("Moving", None, TypeError, "space must be a Space, got str"),
    ],
)
def test_bad_spaces_are_named(space, mask, error, message):
    with pytest.raises(error, match=message):
        HybridActions.from_space(space, mask)


def test_bad_actions_do_not_reach_the_environment():
    spec = HybridActions.from_space(NESTS["by type"][0])
    args = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="got a batch of 2"):
        spec.to_single_env(action_of([0, 1], args))
    args[1, 2] = torch.nan
    with pytest.raises(ValueError, match="action_args must be finite"):
        spec.to_env(action_of([0, 1], args))
    with pytest.raises(ValueError, match=r"action_args .*A = 3.*got \(2, 2\)"):
        spec.to_env(action_of([0, 1], torch.zeros(2, 2)))
    with pytest.raises(TypeError, match=r"action must .*got .*ndarray"):
        spec.to_env(np.zeros((2, 4)))
    # Rows have one number more, for the type.
    assert spec.to_env(torch.zeros(2, 4))[0].tolist() == [0, 0]
    with pytest.raises(ValueError, match=r"action_args .*A = 3.*got \(2, 2\)"):
        spec.to_env(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"action_args .*got \(2, 3\)"):
        spec.to_env(action_of([0, 1, 2], torch.zeros(2, 3)))


# --- In environments ----------------------------------------------------------------


@pytest.mark.parametrize("env_id", IDS)
def test_the_policy_acts_in_a_vector_environment(env_id):
    envs = make_envs(env_id, num_envs=3)
    space = envs.single_action_space
    spec = HybridActions.from_space(space)
    torch.manual_seed(0)
    size = spaces.flatdim(envs.single_observation_space)
    network = HybridPolicyNetwork(size, spec.action_shape)
    obs, _ = envs.reset(seed=0)
    for _ in range(120):
        logit = network(torch.as_tensor(obs))
        action = HybridDistribution(logit, spec.mask).sample()
        obs, reward, *_ = envs.step(spec.to_env(action))
        assert obs.shape == (3, network.encoder[0].in_features)
        assert np.isfinite(reward).all()


def test_platform_runs_through_the_same_code():
    pytest.importorskip("gym_platform")

    def make():
        env = gym.make("Platform-v0")
        first = env.observation_space[0]
        return gym.wrappers.TransformObservation(env, lambda obs: obs[0], first)

    env = make()
    spec = HybridActions.from_space(env.action_space)
    assert spec.mask.tolist() == torch.eye(3).bool().tolist()
    assert spec.high.tolist() == [30.0, 720.0, 430.0]
    torch.manual_seed(0)
    network = HybridPolicyNetwork(env.observation_space.shape[0], spec.action_shape)
    obs, _ = env.reset(seed=0)
    for _ in range(20):
        policy = HybridDistribution(network(torch.as_tensor(obs)[None]), spec.mask)
        action = spec.to_single_env(policy.sample())
        assert env.action_space.contains(action)
        obs, reward, terminated, truncated, _ = env.step(action)
        assert math.isfinite(reward)
        if terminated or truncated:
            obs, _ = env.reset()
    envs = make_envs(make, num_envs=2)
    obs, _ = envs.reset(seed=0)
    policy = HybridDistribution(network(torch.as_tensor(obs)), spec.mask)
    obs, *_ = envs.step(spec.to_env(policy.sample()))
    assert obs.shape == (2, 9)


# --- The policy of rows -------------------------------------------------------------

NEST = spaces.Dict(
    {
        "how": spaces.Tuple(
            (
                spaces.Box(-2.0, 2.0, (2, 1), np.float64),
                spaces.Box(np.float32(-np.inf), np.float32(np.inf), (1,)),
            )
        ),
        "what": spaces.Discrete(3, start=5),
        "why": spaces.Box(np.array([0.0], np.float32), np.array([9.0], np.float32)),
    }
)


BOX = spaces.Box(-1.0, 1.0, (6,))


def nested_policy(**arguments) -> Policy:
    torch.manual_seed(0)
    policy = make_hybrid_policy(BOX, NEST, MASK, **arguments)
    torch.nn.init.normal_(tree_network(policy).action_args_log_sigma, std=0.5)
    return policy


def tree_network(policy) -> HybridPolicyNetwork:
    """Return the network below the rows."""
    return policy.network.actor.network


def test_a_row_holds_what_the_network_says():
    policy, obs = nested_policy(), torch.randn(5, 6)
    logit = tree_network(policy)(obs)
    row = policy(obs)
    assert row.shape == (5, 3 + 2 * 4)
    args = logit.action_args
    torch.testing.assert_close(
        row, torch.cat([logit.action_type, args.mu, args.sigma], 1)
    )
    for part, whole in zip(policy.actions.split(row), leaves_of(logit), strict=True):
        torch.testing.assert_close(part, whole)
    # A rollout has two dimensions in front, the network knows one.
    rollout = torch.randn(7, 5, 6)
    torch.testing.assert_close(policy(rollout)[3], policy(rollout[3]))
    assert policy.value(rollout).shape == (7, 5)


# --- Rows against references ----------------------------------------------------------


def hybrid_actions(mask):
    """Return an action distribution with a mask, whatever its types look like."""
    num_types, num_args = mask.shape
    space = spaces.Tuple((spaces.Discrete(num_types), spaces.Box(-1, 1, (num_args,))))
    return HybridActions.from_space(space, mask)


def row_of(logit):
    return torch.cat(leaves_of(logit), -1)


def packed(action):
    types = action.action_type.to(action.action_args.dtype)
    return torch.cat([types.unsqueeze(-1), action.action_args], -1)


@given(case=cases())
@settings(max_examples=30, deadline=None)
def test_rows_mean_what_torch_distributions_say(case):
    mask, logit, other, action = case
    actions, row = hybrid_actions(mask), row_of(logit)
    both = [*leaves_of(logit), *leaves_of(other)]
    log_prob = log_prob_reference(logit, mask, action)
    entropy = entropy_reference(logit, mask)
    ours = actions.evaluate(row, packed(action))
    assert_same(ours[0], log_prob, *leaves_of(logit))
    assert_same(ours[1], entropy, *leaves_of(logit))
    assert_same(ours[0] + 3 * ours[1], log_prob + 3 * entropy, *leaves_of(logit))
    divergence = actions.kl(row, row_of(other))
    assert_same(divergence, kl_reference(logit, other, mask), *both)


@given(case=cases())
@settings(max_examples=30, deadline=None)
def test_a_divergence_of_rows_is_positive_but_between_equal_rows(case):
    mask, logit, other, _ = case
    actions, row, other_row = hybrid_actions(mask), row_of(logit), row_of(other)
    assert (actions.kl(row, row) == 0).all()
    # With one type and no argument that counts there is nothing to differ in.
    if mask.any() or len(mask) > 1:
        assert (actions.kl(row, other_row) > 0).all()
    assert (actions.kl(row.float(), other_row.float()) >= -1e-6).all()


def test_rows_of_a_rollout_are_rows_of_its_steps():
    policy, obs = nested_policy(), torch.randn(7, 5, 6)
    actions, row, other = policy.actions, policy(obs), policy(obs.flip(0))
    action = policy.act(obs, policy.noise(7, 5, torch.Generator().manual_seed(0)))
    for function, *arguments in (
        (actions.kl, row, other),
        (lambda *x: actions.evaluate(*x)[0], row, action),
        (lambda *x: actions.evaluate(*x)[1], row, action),
    ):
        whole = function(*arguments)
        assert whole.shape == (7, 5)
        for t in range(7):
            torch.testing.assert_close(whole[t], function(*(x[t] for x in arguments)))


def test_the_policys_log_prob_is_that_of_the_distribution():
    policy, obs = nested_policy(), torch.randn(64, 6)
    action = policy.act(obs, policy.noise(1, 64, torch.Generator().manual_seed(0))[0])
    log_prob, entropy = policy.evaluate_actions(obs, action)
    tree, logit = policy.actions.action_of(action), tree_network(policy)(obs)
    reference = log_prob_reference(logit, MASK, ttorch.as_tensor(tree))
    torch.testing.assert_close(log_prob, reference, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy, entropy_reference(logit, MASK))


def test_acting_without_noise_is_the_mode():
    policy, obs = nested_policy(), torch.randn(64, 6)
    action = policy.actions.action_of(policy.act(obs, 0.0))
    mode = HybridDistribution(tree_network(policy)(obs), MASK).mode()
    assert action["action_type"].dtype == torch.int64
    assert torch.equal(action["action_type"], mode.action_type)
    torch.testing.assert_close(action["action_args"], mode.action_args)


def test_acting_with_noise_samples_the_distribution():
    policy = nested_policy()
    number = 200_000
    obs = torch.randn(1, 6).expand(number, 6)
    noise = policy.noise(1, number, torch.Generator().manual_seed(0))[0]
    assert noise.shape == (number, 3 + 4)
    with torch.no_grad():
        action = policy.actions.action_of(policy.act(obs, noise))
        expected = HybridDistribution(tree_network(policy)(obs[:1]), MASK)
    frequency = action["action_type"].bincount(minlength=3) / number
    # Five standard errors of a frequency, a mean and a deviation.
    error = 5 / math.sqrt(number)
    assert (frequency - expected.prob[0]).abs().max() < error * 0.5
    distance = (action["action_args"].mean(0) - expected.mu[0]) / expected.sigma[0]
    assert distance.abs().max() < error
    ratio = action["action_args"].std(0) / expected.sigma[0]
    assert (ratio - 1).abs().max() < error
    # Types and arguments are independent of each other.
    first = action["action_args"][action["action_type"] == 0].mean(0)
    assert ((first - expected.mu[0]) / expected.sigma[0]).abs().max() < 2 * error


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
    (loss.policy_loss + loss.entropy_loss).backward()
    for name, parameter in policy.network.actor.named_parameters():
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("normalize", [False, True])
def test_a_checkpoint_brings_the_policy_back(tmp_path, normalize):
    policy = nested_policy(normalize=normalize)
    if normalize:
        policy.network.normalizer.update(3 + 2 * torch.randn(100, 6))
    state = {"recipe": policy.recipe, "weights": policy.state_dict()}
    save_checkpoint(tmp_path / "checkpoint.pt", {"policy": state})
    again = load(tmp_path)
    assert again.actions.space == NEST
    assert torch.equal(again.actions.mask, MASK)
    obs = torch.randn(4, 6)
    action = policy.act(obs, 0.0)
    assert torch.equal(again.act(obs, 0.0), action)
    names = policy.to_env(action)
    for one in (again.to_env(action), names):
        assert one["what"].min() >= 5
        assert one["how"][0].shape == (4, 2, 1)
    assert again.recipe == policy.recipe


@given(data=st.data())
def test_spaces_survive_their_description(data):
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    shape = data.draw(st.sampled_from([(0,), (1,), (3,), (2, 2)]))
    bound = data.draw(st.sampled_from([1.0, 720.0, np.inf]))
    box = spaces.Box(dtype(-bound), dtype(bound), shape, dtype)
    types = spaces.Discrete(
        data.draw(st.integers(1, 4)), start=data.draw(st.integers(-2, 2))
    )
    for space in (
        spaces.Tuple((types, spaces.Tuple((box, box)))),
        spaces.Dict(b=box, a=spaces.Tuple((types,))),
    ):
        again = as_space(plain_space(space))
        # The order counts, and a Dict space compares without it.
        assert again == space
        assert list(leaves(again)) == list(leaves(space))
        kinds = [x.dtype for x in leaves(again)]
        assert kinds == [x.dtype for x in leaves(space)]


def test_public_names_are_documented():
    for name in hybrid_policy.__all__:
        assert getattr(hybrid_policy, name).__doc__, name


def test_the_old_address_leads_here() -> None:
    old = importlib.import_module("literate_rl.nets.hybrid_policy")
    for name in hybrid_policy.__all__:
        assert getattr(old, name) is getattr(hybrid_policy, name)
    assert old.__all__ == hybrid_policy.__all__
