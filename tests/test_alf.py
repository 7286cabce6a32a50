"""ALF's interface: the tuples, one pass, the loss and the auxiliary phase."""

from __future__ import annotations

import copy
import inspect
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import (
    Beta,
    Categorical,
    Distribution,
    Independent,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
    kl_divergence,
)
from torch.distributions.transforms import TanhTransform

from literate_rl.data.agents import Rollout
from literate_rl.interfaces.alf import (
    LAST,
    MID,
    PPGAuxAlgorithm,
    PPGAuxOptions,
    PPGAuxPhaseLoss,
    PPGRolloutInfo,
    PPGTrainInfo,
    TimeStep,
    divergence,
    ppg_network_forward,
    put_together,
    successors,
    taken_apart,
)
from literate_rl.learners.ppg import AuxiliaryPhase, PPGAuxPhaseLossInfo
from literate_rl.learners.ppg_learner import PPGConfig, side_by_side
from literate_rl.nets.disjoint_network import DisjointPolicyValueNetwork
from literate_rl.nets.hybrid_action import HybridDistribution
from literate_rl.nets.recurrent import RecurrentEncodingNetwork

BOX, THREE = spaces.Box(-1, 1, (4,)), spaces.Discrete(3)
PAIR = spaces.Box(-1, 1, (2,))
HYBRID = spaces.Tuple((THREE, spaces.Tuple((PAIR, spaces.Box(0, 1, (1,)), PAIR))))


class Head(nn.Module):
    """A policy head of one's own: a linear layer and what its rows mean."""

    def __init__(self, size: int, width: int, read: Any) -> None:
        super().__init__()
        self.layer, self.distribution = nn.Linear(size, width), read

    def forward(self, features: Tensor) -> Any:
        return 5 * self.layer(features)


def tempered(row: Tensor) -> Distribution:
    return Categorical(logits=row / 3)


def two_halves(row: Tensor) -> tuple[Tensor, Tensor]:
    first, second = row.chunk(2, -1)
    return first, nn.functional.softplus(second) + 1e-3


def softplus_normal(row: Tensor) -> Distribution:
    return Independent(Normal(*two_halves(row)), 1)


def full_normal(row: Tensor) -> Distribution:
    mean, scale = two_halves(row)
    return MultivariateNormal(mean, scale_tril=scale.diag_embed())


def beta(row: Tensor) -> Distribution:
    return Independent(Beta(*(x.exp() + 1 for x in two_halves(row))), 1)


def squashed(row: Tensor) -> Distribution:
    return TransformedDistribution(softplus_normal(row), [TanhTransform()])


def network_with(read: Any, action: spaces.Space = PAIR) -> DisjointPolicyValueNetwork:
    torch.manual_seed(0)
    width = 3 if action == THREE else 4

    def make(size: int, leaf: spaces.Space) -> nn.Module:
        return Head(size, width, read)

    return DisjointPolicyValueNetwork(
        BOX,
        action,
        discrete_projection_net_ctor=make,
        continuous_projection_net_ctor=make,
    )


OWN_HEADS = [(tempered, THREE), (softplus_normal, PAIR), (full_normal, PAIR)]
OWN_HEADS += [(beta, PAIR), (softplus_normal, spaces.Dict({"a": PAIR, "b": PAIR}))]


# --- Tuples ---------------------------------------------------------------------------


def test_documented_fields_come_first_and_in_their_order() -> None:
    rollout = "action_distribution action log_prob value aux step_type discount reward"
    assert PPGRolloutInfo._fields[:9] == (*rollout.split(), "reward_weights")
    assert PPGTrainInfo._fields[:12] == (
        *PPGRolloutInfo._fields[:9],
        "rollout_action_distribution",
        "rollout_value",
        "rollout_log_prob",
    )
    assert PPGTrainInfo() == ((),) * 13
    assert PPGAuxOptions() == (True, 32, None, 8, 6)
    parts = ("td_loss_actual", "td_loss_aux", "policy_kl_loss")
    assert PPGAuxPhaseLossInfo._fields == parts


def test_absorbed_takes_what_the_network_says_and_keeps_what_was_done() -> None:
    old = PPGTrainInfo(*(f"old {name}" for name in PPGTrainInfo._fields))
    new = PPGRolloutInfo(*(f"new {name}" for name in PPGRolloutInfo._fields))
    both = old.absorbed(new)
    taken = "step_type reward discount action_distribution value aux reward_weights"
    for name in PPGTrainInfo._fields:
        source = "new" if name in taken.split() else "old"
        assert getattr(both, name) == f"{source} {name}"
    assert old.value == "old value"


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (
            ppg_network_forward,
            "network inputs state=() require_aux=True epsilon_greedy",
        ),
        (
            PPGAuxAlgorithm,
            "observation_spec action_spec reward_spec config optimizer "
            "dual_actor_value_network aux_options debug_summaries=False name",
        ),
        (
            PPGAuxPhaseLoss,
            "td_error_loss_fn policy_kl_loss_weight=1.0 gamma=0.999 td_lambda=0.95 "
            "name",
        ),
    ],
)
def test_signatures_are_the_documented_ones(function: Any, expected: str) -> None:
    parameters = inspect.signature(function).parameters
    assert len(parameters) == len(expected.split())
    for word, parameter in zip(expected.split(), parameters.values(), strict=True):
        name, _, default = word.partition("=")
        assert parameter.name == name
        assert not default or str(parameter.default) == default


# --- One pass -------------------------------------------------------------------------


def step_of(observation: Any) -> TimeStep:
    return TimeStep(torch.ones(1), torch.zeros(1), torch.ones(1), observation)


@pytest.mark.parametrize("action", [THREE, PAIR, HYBRID])
def test_a_pass_returns_actions_and_information(action: spaces.Space) -> None:
    torch.manual_seed(0)
    net = DisjointPolicyValueNetwork(BOX, action)
    step = ppg_network_forward(net, step_of(torch.randn(5, 4)), ())
    info = step.info
    assert step.state == ((), (), ())
    assert info.log_prob.shape == info.value.shape == info.aux.shape == (5,)
    assert not info.log_prob.requires_grad
    assert info.value.requires_grad
    assert info.aux.requires_grad
    leaf, drawn = info.action_distribution, step.output
    if action is HYBRID:
        (kind, boxes), (first, others) = leaf, drawn
        expected = kind.log_prob(first)
        expected += sum(b.log_prob(x) for b, x in zip(boxes, others, strict=True))
    else:
        expected = leaf.log_prob(drawn)
    torch.testing.assert_close(info.log_prob, expected)
    without = ppg_network_forward(net, step_of(torch.randn(5, 4)), (), False)
    assert without.info.aux == ()


def test_a_memory_is_handed_on() -> None:
    net = DisjointPolicyValueNetwork(BOX, THREE, RecurrentEncodingNetwork)
    first = ppg_network_forward(net, step_of(torch.randn(2, 4)))
    second = ppg_network_forward(net, step_of(torch.randn(2, 4)), first.state)
    assert [len(x) for x in second.state] == [2, 2, 0]


@pytest.mark.equation("greedy-mixture")
@pytest.mark.parametrize("q", [0.0, 0.3, 1.0])
def test_the_greedy_mixture_is_drawn_row_by_row(q: float) -> None:
    torch.manual_seed(0)
    net = DisjointPolicyValueNetwork(BOX, spaces.Tuple((THREE, PAIR)))
    torch.nn.init.normal_(net.heads.projections[0].logits.bias)
    inputs = step_of(torch.zeros(50_000, 4))
    step = ppg_network_forward(net, inputs, (), epsilon_greedy=q)
    assert step.info.log_prob == ()
    kind, box = step.info.action_distribution
    action, numbers = step.output
    expected = q * kind.probs[0]
    expected[kind.mode[0]] += 1 - q
    share = torch.bincount(action, minlength=3) / len(action)
    torch.testing.assert_close(share, expected, atol=0.01, rtol=0)
    greedy = (numbers == box.mode).all(-1)
    assert greedy.float().mean().item() == pytest.approx(1 - q, abs=0.01)
    # The leaves decide on their own: a random number is no sign of a random type.
    if q == 0.3:
        first = (action != kind.mode).float()
        together = (first * ~greedy).mean()
        assert together.item() == pytest.approx(
            (first.mean() * (~greedy).float().mean()).item(), abs=0.01
        )


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan])
def test_the_chance_of_drawing_is_a_probability(q: float) -> None:
    net = DisjointPolicyValueNetwork(BOX, THREE)
    with pytest.raises(ValueError, match="epsilon_greedy must be at least 0"):
        ppg_network_forward(net, step_of(torch.zeros(1, 4)), (), epsilon_greedy=q)


# --- The loss -------------------------------------------------------------------------


def slow_targets(reward, next_value, terminated, ended, gamma, lambda_):
    """The λ-return by its definition: an average of n-step returns, step by step."""
    steps, batch = reward.shape
    target = np.zeros((steps, batch))
    for b in range(batch):
        for t in range(steps):
            end = t
            while end < steps - 1 and not ended[end, b]:
                end += 1
            total, weight, discounted = 0.0, 1.0, 0.0
            for n in range(t, end + 1):
                discounted += gamma ** (n - t) * reward[n, b]
                bootstrap = 0.0 if terminated[n, b] else next_value[n, b]
                one = discounted + gamma ** (n - t + 1) * bootstrap
                share = weight if n == end else weight * (1 - lambda_)
                total += share * one
                weight *= lambda_
            target[t, b] = total
    return target


def slow_kl(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return (p * (np.log(p) - np.log(q))).sum(-1)


def random_info(seed: int, steps: int, batch: int) -> PPGTrainInfo:
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    def chance(p: float) -> Tensor:
        return torch.rand(steps, batch, generator=rng) < p

    terminated = chance(0.2)
    ended = terminated | chance(0.2)
    row_new = normal(steps, batch, 3).requires_grad_()
    row_old = normal(steps, batch, 3)
    value, aux = (normal(steps, batch).requires_grad_() for _ in range(2))
    return PPGTrainInfo(
        action_distribution=Categorical(logits=row_new),
        value=value,
        aux=aux,
        step_type=torch.where(ended, LAST, MID),
        discount=(~terminated).double(),
        reward=normal(steps, batch),
        rollout_action_distribution=Categorical(logits=row_old),
        rollout_value=normal(steps, batch),
        rollout_next_value=normal(steps, batch),
    )


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    steps=st.integers(1, 6),
    batch=st.integers(1, 3),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    lambda_=st.sampled_from([0.0, 0.7, 1.0]),
    weight=st.sampled_from([0.0, 0.5, 2.0]),
)
def test_the_loss_is_its_definition_with_its_gradient(
    seed: int, steps: int, batch: int, gamma: float, lambda_: float, weight: float
) -> None:
    info = random_info(seed, steps, batch)
    loss_fn = PPGAuxPhaseLoss(
        policy_kl_loss_weight=weight, gamma=gamma, td_lambda=lambda_
    )
    loss, extra = loss_fn(info)
    target = slow_targets(
        info.reward.numpy(),
        info.rollout_next_value.numpy(),
        (info.discount == 0).numpy(),
        (info.step_type == LAST).numpy(),
        gamma,
        lambda_,
    )
    new, old = info.action_distribution, info.rollout_action_distribution
    kl = slow_kl(old.probs.numpy(), new.probs.detach().numpy())
    value, aux = info.value.detach().numpy(), info.aux.detach().numpy()
    expected = (value - target) ** 2 + (aux - target) ** 2 + weight * kl
    np.testing.assert_allclose(loss.detach().numpy(), expected, atol=1e-9)
    np.testing.assert_allclose(extra.policy_kl_loss.detach().numpy(), kl, atol=1e-9)
    loss.sum().backward()
    np.testing.assert_allclose(info.value.grad, 2 * (value - target), atol=1e-9)
    np.testing.assert_allclose(info.aux.grad, 2 * (aux - target), atol=1e-9)


def each_reward(info: PPGTrainInfo) -> list[PPGTrainInfo]:
    """The same steps once for each reward, as if it were the only one."""
    names = ("value", "aux", "reward", "rollout_value", "rollout_next_value")
    parts = {name: getattr(info, name).unbind(-1) for name in names}
    return [
        info._replace(**{name: parts[name][d] for name in names})
        for d in range(len(parts["value"]))
    ]


def several_rewards(seed: int, steps: int, batch: int, count: int) -> PPGTrainInfo:
    """Steps with several rewards, from as many runs of single ones."""
    infos = [random_info(seed + d, steps, batch) for d in range(count)]
    names = ("value", "aux", "reward", "rollout_value", "rollout_next_value")
    wide = {n: torch.stack([getattr(x, n).detach() for x in infos], -1) for n in names}
    for name in ("value", "aux"):
        wide[name].requires_grad_()
    return infos[0]._replace(**wide)


@pytest.mark.equation("loss-of-rewards")
@pytest.mark.parametrize("successors_known", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_several_rewards_give_the_mean_of_the_losses_of_each(
    count: int, successors_known: bool
) -> None:
    info, gamma = several_rewards(3, 5, 3, count), [0.9, 0.5, 0.0][:count]
    if not successors_known:
        info = info._replace(rollout_next_value=())
        alone = each_reward(info._replace(rollout_next_value=info.rollout_value))
        alone = [one._replace(rollout_next_value=()) for one in alone]
    else:
        alone = each_reward(info)
    rest: Any = {"policy_kl_loss_weight": 0.7, "td_lambda": 0.8}
    loss, extra = PPGAuxPhaseLoss(gamma=gamma, **rest)(info)
    assert loss.shape == extra.td_loss_actual.shape == (5, 3)
    weight = torch.randn(5, 3, dtype=torch.float64)
    got = torch.autograd.grad((loss * weight).sum(), (info.value, info.aux))

    expected = [
        PPGAuxPhaseLoss(gamma=one, **rest)(single)
        for one, single in zip(gamma, alone, strict=True)
    ]
    mean = torch.stack([x.loss for x in expected]).mean(0)
    torch.testing.assert_close(loss, mean)
    for field in PPGAuxPhaseLossInfo._fields:
        parts = torch.stack([getattr(x.extra, field) for x in expected])
        torch.testing.assert_close(getattr(extra, field), parts.mean(0))
    grads = torch.autograd.grad((mean * weight).sum(), (info.value, info.aux))
    torch.testing.assert_close(got, grads)
    # One discount stands for all of them.
    same = PPGAuxPhaseLoss(gamma=0.9, **rest)(info).loss
    torch.testing.assert_close(
        same, PPGAuxPhaseLoss(gamma=[0.9] * count, **rest)(info)[0]
    )


def test_the_targets_of_several_rewards_are_those_of_each() -> None:
    info, gamma = several_rewards(8, 6, 2, 2), [0.9, 0.3]
    target = PPGAuxPhaseLoss(gamma=gamma, td_lambda=0.7).target(info)
    flags = (info.discount == 0).numpy(), (info.step_type == LAST).numpy()
    for d, one in enumerate(each_reward(info)):
        steps = one.reward.numpy(), one.rollout_next_value.numpy(), *flags
        expected = slow_targets(*steps, gamma[d], 0.7)
        np.testing.assert_allclose(target[..., d].numpy(), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("gamma", "change", "message"),
    [
        ([0.9], {}, r"gamma must be a number or a list of 2, .* got \[0.9\]"),
        ([0.9, 0.9], {"value": torch.ones(3, 2)}, "value must have shape"),
        ([0.9, 0.9], {"aux": torch.ones(3, 2, 3)}, "value must have shape"),
        (0.9, {"rollout_next_value": torch.ones(3, 2)}, "next_value must have"),
    ],
)
def test_several_rewards_that_do_not_fit_are_named(gamma, change, message) -> None:
    info = several_rewards(0, 3, 2, 2)
    with pytest.raises(ValueError, match=message):
        PPGAuxPhaseLoss(gamma=gamma)(info._replace(**change))
    with pytest.raises(TypeError, match="gamma must be a number, got list"):
        PPGAuxPhaseLoss(gamma=[0.9])(random_info(0, 3, 2))


def test_another_error_can_be_handed_over() -> None:
    info = random_info(0, 9, 2)
    # As in ALF it gets the target first.
    excess = PPGAuxPhaseLoss(lambda target, value: (value - target).relu())
    above = (info.value - excess.target(info)).relu()
    assert torch.equal(excess(info).extra.td_loss_actual, above)
    assert 0 < (above > 0).sum() < above.numel()
    plain = PPGAuxPhaseLoss()(info).extra
    half = PPGAuxPhaseLoss(lambda x, y: 0.5 * (x - y).square())(info).extra
    torch.testing.assert_close(2 * half.td_loss_aux, plain.td_loss_aux)
    torch.testing.assert_close(half.policy_kl_loss, plain.policy_kl_loss)


def nested(seed: int, batch: int) -> tuple[Any, Any]:
    """Return a nest of distributions and the rows of a hybrid policy that equal it."""
    generator = torch.Generator().manual_seed(seed)
    logit = torch.randn(batch, 3, generator=generator, dtype=torch.float64)
    mu = torch.randn(batch, 5, generator=generator, dtype=torch.float64)
    sigma = torch.rand(batch, 5, generator=generator, dtype=torch.float64) + 0.3
    boxes = tuple(
        Independent(Normal(m, s), 1)
        for m, s in zip(
            mu.split([2, 1, 2], -1), sigma.split([2, 1, 2], -1), strict=True
        )
    )
    tree = {"action_type": logit, "action_args": {"mu": mu, "sigma": sigma}}
    mask = [[1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 1]]
    return (Categorical(logits=logit), {"x": boxes}), HybridDistribution(tree, mask)


@pytest.mark.equation("nested-divergence")
@settings(max_examples=30)
@given(
    first=st.integers(0, 2**31), second=st.integers(0, 2**31), batch=st.integers(1, 4)
)
def test_the_divergence_of_a_nest_is_a_sum_and_bounds_the_hybrid_one(
    first: int, second: int, batch: int
) -> None:
    (old, old_hybrid), (new, new_hybrid) = nested(first, batch), nested(second, batch)
    ours = divergence(old, new)
    expected = kl_divergence(old[0], new[0])
    for p, q in zip(old[1]["x"], new[1]["x"], strict=True):
        expected = expected + kl_divergence(p, q)
    torch.testing.assert_close(ours, expected)
    assert (ours >= old_hybrid.kl(new_hybrid) - 1e-9).all()
    torch.testing.assert_close(divergence(old, old), torch.zeros_like(ours))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"gamma": [0.9, 1.5]}, ValueError, "gamma.* must be .* at most 1, got 1.5"),
        ({"gamma": []}, ValueError, "gamma must hold at least one discount"),
        ({"gamma": "0.9"}, TypeError, "gamma must be a number or .*, got str"),
        ({"gamma": 1.5}, ValueError, "gamma must be .* at most 1, got 1.5"),
        ({"gamma": math.nan}, ValueError, "gamma must be .* at most 1, got nan"),
        ({"td_lambda": -0.1}, ValueError, "td_lambda must be at least 0"),
        ({"td_lambda": 1.1}, ValueError, "td_lambda must be .* at most 1, got 1.1"),
        ({"policy_kl_loss_weight": -1.0}, ValueError, "policy_kl_loss_weight must be"),
    ],
)
def test_a_loss_that_makes_no_sense(options, error, message) -> None:
    with pytest.raises(error, match=message):
        PPGAuxPhaseLoss(**options)


def test_without_successors_the_values_of_the_next_steps_stand_in() -> None:
    info = random_info(0, 4, 3)
    following = torch.cat([info.rollout_value[1:], info.rollout_value[-1:]])
    ended = info.step_type == LAST
    expected = torch.where(ended, info.rollout_value, following)
    assert torch.equal(successors(info.rollout_value, info.step_type), expected)
    loss_fn = PPGAuxPhaseLoss(gamma=0.9)
    whole = loss_fn(info._replace(rollout_next_value=expected))
    assert torch.equal(loss_fn(info._replace(rollout_next_value=())).loss, whole.loss)
    with pytest.raises(TypeError, match="value must be a tensor, got tuple"):
        loss_fn(info._replace(rollout_next_value=(), rollout_value=()))


def alf_targets(reward, discount, step_type, value, gamma, lambda_):
    """ALF's lines: reward and discount belong to the action of the row before."""
    discount, last = gamma * discount, (step_type == LAST).double()
    adv = torch.zeros_like(value)
    delta = reward[1:] + discount[1:] * value[1:] - value[:-1]
    for t in reversed(range(len(reward) - 1)):
        passed_on = discount[t + 1] * lambda_ * adv[t + 1]
        adv[t] = (1 - last[t]) * (delta[t] + passed_on)
    return adv + value


@settings(max_examples=30)
@given(seed=st.integers(0, 2**31), steps=st.integers(2, 9))
def test_a_rollout_of_alf_is_right_when_it_is_moved_by_a_row(
    seed: int, steps: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    reward, value = torch.randn(2, steps, 3, generator=rng, dtype=torch.float64)
    last = torch.rand(steps, 3, generator=rng) < 0.3
    terminated = last & (torch.rand(steps, 3, generator=rng) < 0.5)
    step_type, discount = torch.where(last, LAST, MID), (~terminated).double()
    expected = alf_targets(reward, discount, step_type, value, 0.9, 0.7)[:-1]
    moved = PPGTrainInfo(
        step_type=step_type[1:],
        discount=discount[1:],
        reward=reward[1:],
        rollout_value=value[:-1],
        rollout_next_value=value[1:],
    )
    ours = PPGAuxPhaseLoss(gamma=0.9, td_lambda=0.7).target(moved)
    counts = ~last[:-1]  # ALF leaves the others out
    torch.testing.assert_close(ours[counts], expected[counts])


def test_a_rollout_of_alf_that_is_not_moved_is_late() -> None:
    zero = torch.zeros(4, 1, dtype=torch.float64)
    reward, mid = torch.eye(4, dtype=torch.float64)[:, 1:2], torch.full((4, 1), MID)
    info = PPGTrainInfo(
        reward=reward, discount=zero + 1, step_type=mid, rollout_value=zero
    )
    target = PPGAuxPhaseLoss(gamma=0.5, td_lambda=1.0).target(info)
    assert target.flatten().tolist() == [0.5, 1, 0, 0]
    theirs = alf_targets(reward, zero + 1, mid, zero, 0.5, 1.0)
    assert theirs.flatten().tolist() == [1, 0, 0, 0]


@pytest.mark.erratum("discounts-without-values")
def test_a_tensor_is_not_multiplied_by_a_list_of_discounts() -> None:
    gamma, discount, value = [0.9, 0.99], torch.ones(4, 3), torch.zeros(4, 3)
    with pytest.raises(TypeError):
        discount.unsqueeze(-1) * gamma
    # With a number it goes on for a while.
    reward, discounts = torch.ones(4, 3, 2), discount.unsqueeze(-1) * 0.9
    with pytest.raises(RuntimeError, match="must match the size"):
        reward[1:] + discounts[1:] * value[1:]


@pytest.mark.parametrize("batch", [(1, 2), (2,), (1, 1), (1, 3, 2)])
def test_distributions_of_another_batch_are_refused(batch: tuple[int, ...]) -> None:
    info = random_info(0, 3, 2)
    for field in ("action_distribution", "rollout_action_distribution"):
        other = info._replace(**{field: Categorical(logits=torch.zeros(*batch, 3))})
        with pytest.raises(ValueError, match="action_distribution must have shape"):
            PPGAuxPhaseLoss()(other)
    both = Categorical(logits=torch.zeros(*batch, 3))
    other = info._replace(action_distribution=both, rollout_action_distribution=both)
    with pytest.raises(ValueError, match="kl must have shape"):
        PPGAuxPhaseLoss()(other)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"step_type": ()}, TypeError, "step_type must be a tensor, got tuple"),
        ({"step_type": torch.ones(1, 2)}, ValueError, "step_type must have shape"),
        ({"discount": [1.0]}, TypeError, "discount must be a tensor, got list"),
        (
            {"discount": torch.full((3, 2), math.nan)},
            ValueError,
            "discount must be 0 or 1, got nan",
        ),
        (
            {"discount": torch.full((3, 2), 0.5)},
            ValueError,
            "discount must be 0 or 1, got 0.5",
        ),
        ({"value": torch.ones(1, 3, 2)}, ValueError, r"must have shape .*\(1, 3, 2\)"),
        (
            {"rollout_action_distribution": ()},
            ValueError,
            r"action_distribution must have shape {'Categorical': .*}, got \(\)",
        ),
    ],
)
def test_a_field_that_does_not_fit_is_named(change, error, message) -> None:
    with pytest.raises(error, match=message):
        PPGAuxPhaseLoss()(random_info(0, 3, 2)._replace(**change))


def test_the_loss_wants_its_own_tuple() -> None:
    with pytest.raises(TypeError, match="info must be a PPGTrainInfo"):
        PPGAuxPhaseLoss()(torch.ones(2))


@pytest.mark.parametrize("field", ["value", "aux", "reward", "rollout_next_value"])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_what_is_not_finite_is_refused(field: str, number: float) -> None:
    info = random_info(0, 3, 2)
    spoiled = getattr(info, field).detach().clone()
    spoiled[1, 0] = number
    discount = torch.ones_like(info.discount)
    with pytest.raises(ValueError, match="must be finite"):
        PPGAuxPhaseLoss()(info._replace(**{field: spoiled, "discount": discount}))


def test_an_action_that_was_taken_away_has_a_finite_gradient() -> None:
    info = random_info(0, 3, 2)
    old = torch.zeros(3, 2, 3, dtype=torch.float64)
    old[..., 0] = -math.inf
    new = torch.randn(3, 2, 3, dtype=torch.float64).requires_grad_()
    old.requires_grad_()
    loss, _ = PPGAuxPhaseLoss()(
        info._replace(
            action_distribution=Categorical(logits=new),
            rollout_action_distribution=Categorical(logits=old),
        )
    )
    loss.sum().backward()
    assert new.grad is not None
    assert new.grad.isfinite().all()
    assert old.grad is None, "the old policy is data"


@pytest.mark.erratum("divergence-of-a-nest")
def test_kl_divergence_knows_no_nests() -> None:
    (old, _), (new, _) = nested(0, 3), nested(1, 3)
    with pytest.raises(NotImplementedError):
        kl_divergence(old, new)
    assert divergence(old, new).shape == (3,)


# --- The auxiliary phase --------------------------------------------------------------


def experience(net: Any, batch: int = 3) -> tuple[Any, PPGRolloutInfo]:
    obs = torch.randn(batch, 4)
    with torch.no_grad():
        info = ppg_network_forward(net, step_of(obs), ()).info
    return obs, info._replace(
        step_type=torch.full((batch,), MID),
        discount=torch.ones(batch),
        reward=torch.randn(info.value.shape),
        next_value=torch.randn(info.value.shape),
    )


def auxiliary(action: spaces.Space = THREE, **options: Any) -> PPGAuxAlgorithm:
    torch.manual_seed(0)
    settings_ = PPGAuxOptions(
        mini_batch_length=4, mini_batch_size=2, num_updates_per_train_iter=2
    )
    return PPGAuxAlgorithm(BOX, action, aux_options=settings_, **options)


@pytest.mark.parametrize("action", [THREE, PAIR, HYBRID])
def test_a_phase_learns_and_leaves_an_empty_buffer(action: spaces.Space) -> None:
    aux = auxiliary(action)
    for _ in range(8):
        aux.observe_for_aux_replay(experience(aux.network))
    before = copy.deepcopy(aux.network.state_dict())
    metrics = aux.train_iter()
    assert aux.buffer == []
    assert metrics["aux/kl_at_start"] == pytest.approx(0.0, abs=1e-6)
    after = aux.network.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    for part in ("policy_encoder", "value_encoder", "aux_head", "value_head"):
        assert any(part in name for name in changed)
    with pytest.raises(ValueError, match="buffer must hold at least one chunk of 4"):
        aux.train_iter()


def test_a_phase_learns_from_several_rewards() -> None:
    spec = spaces.Box(-np.inf, np.inf, (2,))
    aux = auxiliary(reward_spec=spec)
    aux.loss = PPGAuxPhaseLoss(gamma=[0.0, 0.0])
    assert aux.network.reward_shape == (2,)
    bad = experience(aux.network)
    for change in ({"reward": torch.randn(3)}, {"discount": torch.ones(3, 2)}):
        with pytest.raises(ValueError, match=r"\w+ must have shape"):
            aux.observe_for_aux_replay((bad[0], bad[1]._replace(**change)))
    # With a discount of 0 each value learns what its own reward is.
    for _ in range(3):
        for _ in range(32):
            obs, info = experience(aux.network)
            reward = torch.stack([obs[:, 0], -2 * obs[:, 1]], -1)
            aux.observe_for_aux_replay((obs, info._replace(reward=reward)))
        metrics = aux.train_iter()
    assert all(map(math.isfinite, metrics.values()))
    obs = torch.randn(200, 4)
    (_, value, aux_value), _ = aux.network(obs)
    for learned in (value, aux_value):
        assert learned.shape == (200, 2)
        for d, truth in enumerate((obs[:, 0], -2 * obs[:, 1])):
            assert torch.corrcoef(torch.stack([learned[:, d], truth]))[0, 1] > 0.5


def test_chunks_are_consecutive_steps_of_one_environment() -> None:
    aux = auxiliary()
    for t in range(9):
        obs, info = experience(aux.network)
        obs[:, 0], obs[:, 1] = t, torch.arange(3)
        aux.observe_for_aux_replay((obs, info))
    obs, target, *_ = aux.chunks()
    assert obs.shape == (4, 6, 4)
    assert target.shape == (4, 6)
    time, copies = obs[..., 0], obs[..., 1]
    assert time[:, 0].tolist() == [0, 1, 2, 3]
    assert sorted(time[0].tolist()) == [0, 0, 0, 4, 4, 4]
    assert (time == time[0] + torch.arange(4)[:, None]).all()
    assert (copies == copies[0]).all()


def test_the_number_of_updates_is_epochs_times_minibatches() -> None:
    aux = auxiliary()
    for _ in range(8):
        aux.observe_for_aux_replay(experience(aux.network))
    calls: list[Any] = []
    original = aux.phase.learn
    aux.phase.learn = lambda x: calls.append(x.target.shape) or original(x)  # type: ignore
    aux.train_iter()
    # 2 chunks in time, 3 environments, 2 chunks in a minibatch, 2 epochs.
    assert calls == [(4, 2)] * 6


def test_the_algorithm_shows_its_networks_parameters_and_mode() -> None:
    aux = auxiliary()
    assert list(aux.parameters()) == aux.phase.parameters
    assert aux.training is True
    aux.network.eval()
    assert aux.training is False


def test_what_is_only_looked_at_is_in_evaluation_mode() -> None:
    aux, seen = auxiliary(), set()
    exps = [experience(aux.network) for _ in range(8)]

    def note(heads: nn.Module, _: Any) -> None:
        seen.add((heads.training, torch.is_grad_enabled()))

    aux.network.heads.register_forward_pre_hook(note)
    aux.network.heads.policy_encoder.register_forward_pre_hook(note)
    for exp in exps:
        aux.observe_for_aux_replay(exp)
    assert seen == {(False, False)}
    aux.train_iter()
    assert seen == {(False, False), (True, True)}
    assert aux.training is True


def test_a_clone_weight_holds_the_policy() -> None:
    drift = {}
    for weight in (0.0, 10.0):
        aux = auxiliary(config=PPGConfig(clone_weight=weight))
        torch.nn.init.normal_(aux.network.heads.projections[0].logits.weight, std=0.3)
        for _ in range(80):
            aux.observe_for_aux_replay(experience(aux.network))
        drift[weight] = aux.train_iter()["aux/kl"]
    assert drift[10.0] < 0.5 * drift[0.0]


@pytest.mark.erratum("clone-of-the-rollout")
@pytest.mark.parametrize("reference", ["snapshot", "rollout"])
def test_the_clone_starts_where_it_is_told(reference: str) -> None:
    aux = auxiliary(config=PPGConfig(kl_reference=reference))
    weight = aux.network.heads.projections[0].logits.weight
    torch.nn.init.normal_(weight)
    for _ in range(8):
        aux.observe_for_aux_replay(experience(aux.network))
    torch.nn.init.normal_(weight)  # as if the policy phase had moved it
    start = aux.train_iter()["aux/kl_at_start"]
    assert (start > 0.1) if reference == "rollout" else (abs(start) < 1e-6)


def test_at_the_start_the_clone_has_no_gradient() -> None:
    aux = auxiliary(HYBRID)
    aux.observe_for_aux_replay(experience(aux.network))
    obs, info = aux.buffer[0]
    step = aux.train_step(step_of(obs), (), info)
    kl = divergence(
        step.info.rollout_action_distribution, step.info.action_distribution
    )
    kl.sum().backward()
    for parameter in aux.phase.parameters:
        if parameter.grad is not None:
            assert parameter.grad.abs().max() < 1e-6


def test_a_step_keeps_the_action_and_judges_it_anew() -> None:
    aux = auxiliary(HYBRID)
    exp = experience(aux.network)
    aux.observe_for_aux_replay(exp)
    obs, info = aux.buffer[0]
    step = aux.train_step(step_of(obs), (), info)
    assert str(step.info.action) == str(exp[1].action)
    old = step.info.rollout_action_distribution
    torch.testing.assert_close(old[0].logits, exp[1].action_distribution[0].logits)
    assert step.info.aux.requires_grad
    assert torch.equal(step.info.rollout_value, exp[1].value)


@pytest.mark.parametrize("action", [THREE, PAIR, spaces.Box(-1, 1, (2, 3))])
def test_a_distribution_is_put_together_as_it_was(action: spaces.Space) -> None:
    net = DisjointPolicyValueNetwork(BOX, action)
    (distribution, _, _), _ = net(torch.randn(5, 4))
    (other, _, _), _ = net(torch.randn(5, 4))
    again = put_together(other, taken_apart(distribution))
    torch.testing.assert_close(
        kl_divergence(distribution, again), torch.zeros(5), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize(("read", "action"), OWN_HEADS)
def test_a_head_of_ones_own_has_no_divergence_from_itself(
    read: Any, action: spaces.Space
) -> None:
    net = network_with(read, action)
    aux = auxiliary(action, dual_actor_value_network=net)
    obs, info = experience(net)
    aux.observe_for_aux_replay((obs, info))
    # As the rollout has it, and as it is stored.
    for old in (info, aux.buffer[0][1]):
        step = aux.train_step(step_of(obs), (), old)
        policies = step.info.rollout_action_distribution, step.info.action_distribution
        assert divergence(*policies).abs().max() < 1e-5


@pytest.mark.parametrize("reference", ["snapshot", "rollout"])
@pytest.mark.parametrize(("read", "action"), OWN_HEADS)
def test_a_phase_holds_a_head_of_ones_own_to_itself(
    read: Any, action: spaces.Space, reference: str
) -> None:
    net = network_with(read, action)
    options: Any = {"aux_learning_rate": 1e-2, "kl_reference": reference}
    config = PPGConfig(**options)
    aux = auxiliary(action, dual_actor_value_network=net, config=config)
    for _ in range(8):
        aux.observe_for_aux_replay(experience(net))
    metrics = aux.train_iter()
    assert abs(metrics["aux/kl_at_start"]) < 1e-5
    assert metrics["aux/kl"] > 1e-4, "the policy moves, and it is seen"


@pytest.mark.parametrize(
    "old", [softplus_normal, full_normal, beta, lambda row: Normal(row, 1.0)]
)
def test_no_gradient_flows_into_an_old_policy(old: Any) -> None:
    row = torch.randn(3, 2, 4, dtype=torch.float64).requires_grad_()
    other = torch.randn(3, 2, 4, dtype=torch.float64)
    assert not divergence(old(row), old(other)).requires_grad
    assert divergence(old(other), old(row)).requires_grad
    expected = kl_divergence(old(row), old(other))
    torch.testing.assert_close(divergence(old(row), old(other)), expected)


def test_a_distribution_without_parameters_of_its_own_is_refused() -> None:
    leaf = squashed(torch.randn(3, 4))
    message = "must have parameters of its own, .* got TransformedDistribution"
    with pytest.raises(TypeError, match=message):
        divergence(leaf, leaf)
    aux = auxiliary(PAIR)
    obs, info = experience(aux.network)
    with pytest.raises(TypeError, match=message):
        aux.observe_for_aux_replay((obs, info._replace(action_distribution=leaf)))
    assert aux.buffer == []


def test_what_is_stored_is_a_copy() -> None:
    aux = auxiliary()
    obs, info = experience(aux.network)
    aux.observe_for_aux_replay((obs, info))
    expected = obs.clone()
    obs.zero_()
    assert torch.equal(aux.buffer[0][0], expected)


@pytest.mark.parametrize("change", ["batch", "size", "dtype", "none", "list"])
def test_bad_experience_is_refused_and_nothing_is_stored(change: str) -> None:
    aux = auxiliary()
    obs, info = experience(aux.network)
    aux.observe_for_aux_replay((obs, info))
    bad: Any = {
        "batch": experience(aux.network, 2),
        "size": (obs, info._replace(reward=torch.zeros(3, 1))),
        "dtype": (obs, info._replace(reward=torch.zeros(3).double())),
        "none": (obs, info._replace(reward=None)),
        "list": (obs.tolist(), info),
    }[change]
    error = AttributeError if change in ("none", "list") else ValueError
    with pytest.raises(error, match=r"exp must have the form|no attribute 'shape'"):
        aux.observe_for_aux_replay(bad)
    assert len(aux.buffer) == 1


def test_without_settings_the_loss_is_the_documented_one() -> None:
    documented, ours = PPGAuxPhaseLoss(), PPGAuxAlgorithm(BOX, THREE).loss
    for name in ("weight", "gamma", "td_lambda", "td_error_loss_fn"):
        assert getattr(ours, name) == getattr(documented, name)
    config = PPGConfig(gamma=0.9, lambda_=0.8, clone_weight=2.0)
    told = PPGAuxAlgorithm(BOX, THREE, config=config).loss
    assert (told.gamma, told.td_lambda, told.weight) == (0.9, 0.8, 2.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aux_options": PPGAuxOptions(interval=0)}, "interval must be at least 1"),
        ({"aux_options": PPGAuxOptions(mini_batch_size=0)}, "mini_batch_size must be"),
        ({"aux_options": PPGAuxOptions(mini_batch_length=0)}, "mini_batch_length must"),
        (
            {"aux_options": PPGAuxOptions(num_updates_per_train_iter=0)},
            "num_updates_per_train_iter must be",
        ),
        ({"reward_spec": spaces.Box(-1, 1, (2, 1))}, "reward_spec must be a number or"),
        ({"reward_spec": spaces.Box(-1, 1, (0,))}, "reward_shape.* must be at least"),
        (
            {
                "reward_spec": spaces.Box(-1, 1, (3,)),
                "dual_actor_value_network": DisjointPolicyValueNetwork(BOX, THREE),
            },
            r"reward_spec must have the network's reward_shape \(\), got",
        ),
    ],
)
def test_options_out_of_range(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PPGAuxAlgorithm(BOX, THREE, **options)


def test_a_gradient_that_is_not_finite_stops_before_a_weight_has_changed() -> None:
    aux = auxiliary()
    for step in range(4):
        obs, info = experience(aux.network)
        reward = info.reward + 1e30 * (step > 0)
        aux.observe_for_aux_replay((obs, info._replace(reward=reward)))
    before = copy.deepcopy(aux.network.state_dict())
    with pytest.raises(ValueError, match="must be finite"):
        aux.train_iter()
    for name, weight in aux.network.state_dict().items():
        assert torch.equal(weight, before[name])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"next_value": None}, AttributeError, "no attribute 'shape'"),
        ({"reward": torch.zeros(())}, ValueError, "reward must have shape"),
        ({"next_value": torch.zeros(3, 1)}, ValueError, "value must have shape"),
        ({"step_type": torch.zeros(2)}, ValueError, "step_type must have shape"),
        (
            {"action_distribution": Categorical(logits=torch.zeros(3, 5))},
            ValueError,
            r"action_distribution must have .* 3\)}}, got .* 5\)}}",
        ),
        (
            {"action_distribution": Independent(Normal(torch.zeros(3, 3), 1.0), 1)},
            ValueError,
            "action_distribution must be Categorical",
        ),
        ({"reward": torch.full((3,), math.nan)}, ValueError, "reward must be finite"),
        ({"discount": torch.full((3,), 0.5)}, ValueError, "discount must be 0 or 1"),
    ],
)
def test_a_bad_first_experience_leaves_room_for_a_good_one(
    change: dict[str, Any], error: Any, message: str
) -> None:
    aux = auxiliary()
    obs, info = experience(aux.network)
    with pytest.raises(error, match=message):
        aux.observe_for_aux_replay((obs, info._replace(**change)))
    with pytest.raises(ValueError, match="observation must have shape"):
        aux.observe_for_aux_replay((obs[:, :2], info))
    with pytest.raises(ValueError, match="must have a non-empty shape"):
        aux.observe_for_aux_replay(experience(aux.network, 0))
    assert aux.buffer == []
    aux.observe_for_aux_replay((obs, info))
    assert len(aux.buffer) == 1


def test_a_network_with_memory_is_refused() -> None:
    net = DisjointPolicyValueNetwork(BOX, THREE, RecurrentEncodingNetwork)
    aux = auxiliary(dual_actor_value_network=net)
    with pytest.raises(ValueError, match="encoders without memory"):
        aux.observe_for_aux_replay(experience(net))


def test_where_the_phase_is_not_enabled_nothing_is_stored_or_trained() -> None:
    options = PPGAuxOptions(enabled=False, mini_batch_length=4)
    aux = PPGAuxAlgorithm(BOX, THREE, aux_options=options)
    before = copy.deepcopy(aux.network.state_dict())
    for _ in range(4):
        aux.observe_for_aux_replay(experience(aux.network))
    assert aux.buffer == []
    assert aux.train_iter() == {}
    for name, weight in aux.network.state_dict().items():
        assert torch.equal(weight, before[name])


@pytest.mark.parametrize("length", [8, 4, 2])
def test_the_targets_of_a_chunk_are_those_of_its_rollout(length: int) -> None:
    options = PPGAuxOptions(mini_batch_length=length)
    config = PPGConfig(num_steps=8, gamma=0.9, aux_batch_length=length)
    torch.manual_seed(0)
    aux = PPGAuxAlgorithm(BOX, THREE, config=config, aux_options=options)
    # The same steps for the auxiliary phase of the chapter on PPG, rollout by rollout.
    phase = AuxiliaryPhase(aux.phase.policy, config)
    for _ in range(3):
        steps = []
        for _ in range(8):
            obs, info = experience(aux.network)
            terminated, ended = torch.rand(2, 3) < 0.2
            info = info._replace(
                discount=(~terminated).float(),
                step_type=torch.where(ended | terminated, LAST, MID),
            )
            aux.observe_for_aux_replay((obs, info))
            steps.append((obs, info.reward, terminated, ended & ~terminated, info))
        obs, reward, terminated, truncated = (
            torch.stack(x) for x in list(zip(*steps, strict=True))[:4]
        )
        flags = terminated, truncated, torch.ones_like(terminated)
        rollout = Rollout(obs, reward, reward, obs, *flags, reward, reward)
        next_value = torch.stack([info.next_value for *_, info in steps])
        phase.observe(rollout, next_value, obs)
    chunks, expected = aux.chunks(), side_by_side(*phase.buffer)
    assert torch.equal(chunks.obs, expected.obs)
    assert torch.equal(chunks.target, expected.target)


def test_the_targets_are_learned_from() -> None:
    aux = auxiliary()
    for _ in range(9):
        aux.observe_for_aux_replay(experience(aux.network))
    expected = aux.chunks().target
    seen: list[Any] = []
    aux.phase.learn = lambda x: seen.append(x) or torch.zeros(4)  # type: ignore
    aux.train_iter()
    columns = {tuple(column) for part in seen for column in part.target.T.tolist()}
    assert columns == {tuple(column) for column in expected.T.tolist()}


def test_what_a_pass_returns_can_be_observed_and_learned_from() -> None:
    aux = auxiliary()
    aux.loss = PPGAuxPhaseLoss(gamma=0.5, td_lambda=0.0)
    values = []
    for t in range(8):
        kind = torch.tensor([MID, MID, LAST if t == 2 else MID])
        inputs = TimeStep(kind, torch.zeros(3), torch.ones(3), torch.randn(3, 4))
        step = ppg_network_forward(aux.network, inputs)
        assert step.info.next_value == ()
        values.append(step.info.value.detach())
        aux.observe_for_aux_replay((inputs.observation, step.info))
    target = aux.chunks().target.unflatten(1, (2, 3)).transpose(0, 1).flatten(0, 1)
    expected = torch.stack([*values[1:], values[-1]])
    expected[2, 2] = values[2][2]
    assert torch.equal(target, 0.5 * expected)
    assert aux.train_iter().keys() >= {"aux/value_loss", "aux/kl"}


def test_a_loss_of_ones_own_is_learned_from() -> None:
    losses = []
    for error in (None, lambda x, y: 3 * (x - y).square()):
        aux = auxiliary()
        if error is not None:
            aux.loss = PPGAuxPhaseLoss(error)
        for _ in range(4):
            aux.observe_for_aux_replay(experience(aux.network))
        aux.phase.learn = lambda part, aux=aux: torch.stack(  # type: ignore
            [*(x.mean() for x in loss_of(aux, part)), torch.zeros(())]
        ).detach()
        losses.append(aux.train_iter()["aux/value_loss"])
    assert losses[1] == pytest.approx(3 * losses[0])


def loss_of(aux: PPGAuxAlgorithm, part: Any) -> Any:
    _, value, aux_value = aux.phase.network.three_heads(part.obs)
    return aux.phase.loss(value, aux_value, part.target, torch.zeros_like(value))[1]


def test_two_learners_that_were_loaded_from_one_state_go_their_own_ways() -> None:
    first, state = auxiliary(), None
    for _ in range(2):
        for _ in range(6):
            first.observe_for_aux_replay(experience(first.network))
        state = state or (first.train_iter() and first.state_dict())
    assert len(state["buffer"]) == 0
    second, third = auxiliary(), auxiliary()
    for learner in (second, third):
        learner.load_state_dict(state)
    state = first.state_dict()
    assert len(state["buffer"]) == 6
    second.load_state_dict(state)
    assert len(second.buffer) == 6
    moments = [copy.deepcopy(x.optimizer.state_dict()["state"]) for x in (first, third)]
    second.train_iter()
    for learner, before in zip((first, third), moments, strict=True):
        after = learner.optimizer.state_dict()["state"]
        for index, fields in before.items():
            for name, x in fields.items():
                assert torch.equal(after[index][name], x)


def test_a_summary_for_debugging_adds_the_gradient() -> None:
    for debug in (False, True):
        aux = auxiliary(debug_summaries=debug)
        for _ in range(4):
            aux.observe_for_aux_replay(experience(aux.network))
        assert ("aux/grad_norm" in aux.train_iter()) is debug


@pytest.mark.parametrize("field", ["reward", "next_value"])
def test_numbers_that_cannot_be_learned_from_are_not_stored(field: str) -> None:
    aux = auxiliary()
    obs, info = experience(aux.network)
    whole = info._replace(**{field: torch.ones(3, dtype=torch.long)})
    with pytest.raises(TypeError, match=f"{field} must be a float32 or float64"):
        aux.observe_for_aux_replay((obs, whole))
    assert aux.buffer == []
    aux.observe_for_aux_replay((obs, info))
    assert len(aux.buffer) == 1
