"""PPG: the tuples, the loss, the auxiliary phase, the loop and the mazes."""

from __future__ import annotations

import copy
import inspect
import math
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from learning import median_of_seeds
from memory import RecurrentEncodingNetwork
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from literate_rl.advantages import gae, lambda_returns
from literate_rl.agents import make_envs, seed_everything
from literate_rl.disjoint_network import DisjointPolicyValueNetwork
from literate_rl.evaluation import evaluate
from literate_rl.hybrid_action import HybridDistribution
from literate_rl.hybrid_ppo import HybridActions
from literate_rl.policies import Policy, make_policy
from literate_rl.ppg import (
    LAST,
    MID,
    ConvolutionalEncodingNetwork,
    PPGAlgorithm,
    PPGAuxAlgorithm,
    PPGAuxOptions,
    PPGAuxPhaseLoss,
    PPGAuxPhaseLossInfo,
    PPGConfig,
    PPGRolloutInfo,
    PPGTrainInfo,
    TimeStep,
    divergence,
    make_phasic_policy,
    ppg_network_forward,
    ppg_settings,
    row_of,
)
from literate_rl.ppo import PPO
from literate_rl.workshop.runs import (
    Run,
    fit,
    flat_env,
    load,
    load_checkpoint,
)

BOX, THREE = spaces.Box(-1, 1, (4,)), spaces.Discrete(3)
PAIR = spaces.Box(-1, 1, (2,))
HYBRID = spaces.Tuple((THREE, spaces.Tuple((PAIR, spaces.Box(0, 1, (1,)), PAIR))))
SMALL = PPGConfig(
    total_steps=256,
    num_envs=2,
    num_steps=16,
    num_epochs=2,
    aux_interval=3,
    aux_epochs=2,
)


def learner(env: Any = "CartPole-v1", config: PPGConfig = SMALL, **options: Any):
    seed_everything(config.seed)
    envs = make_envs(partial(flat_env, env), config.num_envs)
    policy = make_phasic_policy(
        envs.single_observation_space,
        envs.single_action_space,
        config.share_encoder,
        config.detach,
        normalize=config.normalize_obs,
    )
    return PPGAlgorithm(policy, envs, config, **options)


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
    # What a name of ours adds can only be handed over by its name.
    parameters = {k: p for k, p in parameters.items() if p.kind != p.KEYWORD_ONLY}
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
    with pytest.raises(ValueError, match="epsilon_greedy must be None or in"):
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


@pytest.mark.equation("auxiliary-loss")
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


def test_another_error_can_be_handed_over() -> None:
    info = random_info(0, 3, 2)
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
        ({"gamma": [0.9, 0.99]}, TypeError, "gamma must be a number, got list"),
        ({"gamma": 1.5}, ValueError, "gamma must be .* at most 1, got 1.5"),
        ({"td_lambda": -0.1}, ValueError, "td_lambda must be at least 0"),
        ({"policy_kl_loss_weight": -1.0}, ValueError, "policy_kl_loss_weight must be"),
    ],
)
def test_a_loss_that_makes_no_sense(options, error, message) -> None:
    with pytest.raises(error, match=message):
        PPGAuxPhaseLoss(**options)


def test_a_loss_needs_the_values_of_the_successors() -> None:
    info = random_info(0, 3, 2)._replace(rollout_next_value=())
    with pytest.raises(TypeError, match=r"info\.rollout_next_value must be a tensor"):
        PPGAuxPhaseLoss()(info)


@pytest.mark.erratum("cloning-by-log-probabilities")
def test_kl_div_of_log_probabilities_is_nan_and_pushes_the_wrong_way() -> None:
    """The clone term of DI-engine's PPG: log-probabilities passed as probabilities."""
    log_prob_old = torch.tensor([-0.5, -1.0, -2.0])
    log_prob_new = log_prob_old.clone().requires_grad_()
    loss = torch.nn.functional.kl_div(log_prob_new, log_prob_old, reduction="batchmean")
    assert torch.isnan(loss)
    loss.backward()
    # Descent lowers the log-probability of every action that was taken.
    assert (log_prob_new.grad > 0).all()


@pytest.mark.erratum("chunk-without-successor")
def test_a_zero_appended_makes_the_last_step_its_own_target() -> None:
    """A chunk of eight steps; the old values are 0, the true successor is worth 10."""
    reward, value = torch.ones(8, 1), torch.zeros(8, 1)
    never = torch.zeros(8, 1, dtype=torch.bool)
    successor = torch.cat([value[1:], torch.full((1, 1), 10.0)])
    ours = lambda_returns(reward, successor, never, never, 0.9, 0.95)
    inner = gae(reward[:7], value[:7], value[1:], never[:7], never[:7], 0.9, 0.95)
    published = torch.cat([inner, torch.zeros(1, 1)]) + value
    assert published[-1] == value[-1] == 0
    assert ours[-1] == 1 + 0.9 * 10


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
        reward=torch.randn(batch),
        next_value=torch.randn(batch),
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


def test_chunks_are_consecutive_steps_of_one_environment() -> None:
    aux = auxiliary()
    for t in range(9):
        obs, info = experience(aux.network)
        obs[:, 0], obs[:, 1] = t, torch.arange(3)
        aux.observe_for_aux_replay((obs, info))
    obs, info = aux.chunks()
    assert obs.shape == (4, 6, 4)
    assert info.reward.shape == (4, 6)
    time, copies = obs[..., 0], obs[..., 1]
    assert time[:, 0].tolist() == [0, 1, 2, 3]
    assert sorted(time[0].tolist()) == [0, 0, 0, 4, 4, 4]
    assert (time == time[0] + torch.arange(4)[:, None]).all()
    assert (copies == copies[0]).all()


def test_the_number_of_updates_is_epochs_times_minibatches() -> None:
    aux = auxiliary()
    for _ in range(8):
        aux.observe_for_aux_replay(experience(aux.network))
    calls = []
    original = aux.learn
    aux.learn = lambda *x: calls.append(x[1].reward.shape) or original(*x)  # type: ignore
    aux.train_iter()
    # 2 chunks in time, 3 environments, 2 chunks in a minibatch, 2 epochs.
    assert calls == [(4, 2)] * 6


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
    for parameter in aux.parameters:
        if parameter.grad is not None:
            assert parameter.grad.abs().max() < 1e-6


def test_a_step_keeps_the_action_and_judges_it_anew() -> None:
    aux = auxiliary(HYBRID)
    with pytest.raises(ValueError, match="train_step needs an experience"):
        aux.train_step(step_of(torch.zeros(1, 4)), (), experience(aux.network)[1])
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
def test_a_row_describes_its_distribution(action: spaces.Space) -> None:
    net = DisjointPolicyValueNetwork(BOX, action)
    (distribution, _, _), _ = net(torch.randn(5, 4))
    again = net.distribution((row_of(distribution),))
    torch.testing.assert_close(
        kl_divergence(distribution, again), torch.zeros(5), atol=1e-6, rtol=0
    )


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
    error = TypeError if change in ("none", "list") else ValueError
    with pytest.raises(error, match="exp must h"):
        aux.observe_for_aux_replay(bad)
    assert len(aux.buffer) == 1


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
        ({"reward_spec": PAIR}, "reward_spec must be a single number"),
    ],
)
def test_options_out_of_range(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PPGAuxAlgorithm(BOX, THREE, **options)


def test_a_gradient_that_is_not_finite_stops_before_a_weight_has_changed() -> None:
    aux = auxiliary()
    for _ in range(4):
        obs, info = experience(aux.network)
        aux.observe_for_aux_replay((obs, info._replace(reward=info.reward + 1e30)))
    before = copy.deepcopy(aux.network.state_dict())
    with pytest.raises(ValueError, match="gradient's length must be finite, got"):
        aux.train_iter()
    for name, weight in aux.network.state_dict().items():
        assert torch.equal(weight, before[name])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"next_value": ()}, TypeError, "exp's next_value must be a tensor"),
        ({"reward": torch.zeros(())}, ValueError, r"exp's reward must have shape \(3,"),
        ({"value": torch.zeros(3, 1)}, ValueError, r"exp's value must have shape \(3,"),
        (
            {"action_distribution": Categorical(logits=torch.zeros(3, 5))},
            ValueError,
            r"exp's action_distribution must have shape \(3, 3\), got \(3, 5\)",
        ),
        ({"reward": torch.full((3,), math.nan)}, ValueError, "exp must hold finite"),
    ],
)
def test_a_bad_first_experience_leaves_room_for_a_good_one(
    change: dict[str, Any], error: Any, message: str
) -> None:
    aux = auxiliary()
    obs, info = experience(aux.network)
    with pytest.raises(error, match=message):
        aux.observe_for_aux_replay((obs, info._replace(**change)))
    with pytest.raises(TypeError, match="exp must be an observation and a PPGRollout"):
        aux.observe_for_aux_replay((obs, None))
    with pytest.raises(ValueError, match="observation must have shape"):
        aux.observe_for_aux_replay((obs[:, :2], info))
    empty = experience(aux.network, 0)
    with pytest.raises(ValueError, match="at least one environment, got none"):
        aux.observe_for_aux_replay(empty)
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


@given(st.integers(2, 40), st.integers(1, 8))
@settings(deadline=None, max_examples=20)
def test_minibatches_are_even_and_never_small(count: int, size: int) -> None:
    options = PPGAuxOptions(mini_batch_length=1, mini_batch_size=size)
    aux = PPGAuxAlgorithm(BOX, THREE, aux_options=options)
    aux.observe_for_aux_replay(experience(aux.network, count))
    seen: list[int] = []

    def learn(obs: Any, info: PPGRolloutInfo, target: Tensor) -> Tensor:
        seen.append(info.reward.shape[1])
        return torch.zeros(4)

    aux.learn = learn  # type: ignore[method-assign]
    aux.train_iter()
    assert sum(seen) == 6 * count
    assert max(seen) - min(seen) <= 1
    assert min(seen) >= min(size, count)


def test_each_minibatch_gets_the_targets_of_its_own_chunks() -> None:
    aux = auxiliary()
    for _ in range(8):
        obs, info = experience(aux.network)
        ends = torch.rand(3) < 0.3
        aux.observe_for_aux_replay((obs, info._replace(discount=(~ends).float())))

    def learn(obs: Any, info: PPGRolloutInfo, target: Tensor) -> Tensor:
        steps = PPGTrainInfo(rollout_next_value=info.next_value).absorbed(info)
        torch.testing.assert_close(target, aux.loss.target(steps))
        return torch.zeros(4)

    aux.learn = learn  # type: ignore[method-assign]
    aux.train_iter()


def test_a_summary_for_debugging_adds_the_gradient() -> None:
    for debug in (False, True):
        aux = auxiliary(debug_summaries=debug)
        for _ in range(4):
            aux.observe_for_aux_replay(experience(aux.network))
        assert ("aux/grad_norm" in aux.train_iter()) is debug


# --- The policy of the policy phase ---------------------------------------------------


def copy_weights(phasic: Policy, other: Policy) -> None:
    """Give a policy of ``make_policy`` the weights of a phasic one."""
    heads, network = phasic.network.network.heads, other.network
    projection = heads.projections[0]
    policy_head = getattr(projection, "logits", None) or projection.mu
    for sequential, encoder, head in (
        (getattr(network.actor, "mean", network.actor), "policy_encoder", policy_head),
        (network.critic, "value_encoder", heads.value_head),
    ):
        layers = [*getattr(heads, encoder).layers, head]
        for theirs, ours in zip(sequential[::2], layers, strict=True):
            theirs.load_state_dict(ours.state_dict())


def twins(action: spaces.Space) -> tuple[Policy, Policy]:
    """Return a phasic policy and one of the chapters before with the same weights."""
    torch.manual_seed(0)
    phasic, other = make_phasic_policy(BOX, action), make_policy(BOX, action)
    copy_weights(phasic, other)
    return phasic, other


@pytest.mark.parametrize("action", [THREE, PAIR])
def test_a_phasic_policy_is_that_of_ppo_with_another_head(action: Any) -> None:
    phasic, other = twins(action)
    phasic.requires_grad_(False)
    obs, generator = torch.randn(6, 4), torch.Generator()
    noise = phasic.noise(1, 6, generator.manual_seed(0))[0]
    assert torch.equal(noise, other.noise(1, 6, generator.manual_seed(0))[0])
    row, drawn = phasic(obs), phasic.act(obs, noise)
    torch.testing.assert_close(row, other(obs))
    torch.testing.assert_close(phasic.value(obs), other.value(obs))
    torch.testing.assert_close(drawn, other.act(obs, noise))
    judged = zip(
        phasic.evaluate_actions(obs, drawn),
        other.evaluate_actions(obs, drawn),
        strict=True,
    )
    for ours, theirs in judged:
        assert ours.shape == (6,)
        torch.testing.assert_close(ours, theirs)
    np.testing.assert_allclose(phasic.to_env(drawn), other.to_env(drawn), atol=1e-6)


def test_hybrid_rows_are_those_of_the_hybrid_actions() -> None:
    torch.manual_seed(0)
    phasic, actions = make_phasic_policy(BOX, HYBRID), HybridActions.from_space(HYBRID)
    for projection in phasic.network.network.heads.projections[1:]:
        torch.nn.init.normal_(projection.log_sigma)
    obs = torch.randn(6, 4)
    row = phasic(obs)
    (kind, boxes), _, _ = phasic.network.network(obs)[0]
    means, sigmas = ([getattr(b, name) for b in boxes] for name in ("mean", "stddev"))
    torch.testing.assert_close(row[:, :3].softmax(-1), kind.logits.softmax(-1))
    torch.testing.assert_close(row[:, 3:], torch.cat([*means, *sigmas], -1))
    noise = phasic.noise(1, 6, torch.Generator())[0]
    action = phasic.act(obs, noise)
    assert torch.equal(action, actions.choose(row, noise))
    # What was done is judged by the type and by the arguments of that type only.
    log_prob, entropy = phasic.evaluate_actions(obs, action)
    numbers = action[:, 1:].split([2, 1, 2], -1)
    of_type = torch.stack(
        [box.log_prob(x) for box, x in zip(boxes, numbers, strict=True)], -1
    )
    chosen = action[:, 0].long()
    expected = kind.log_prob(chosen) + of_type[torch.arange(6), chosen]
    torch.testing.assert_close(log_prob, expected)
    spread = torch.stack([box.entropy() for box in boxes], -1)
    expected = kind.entropy() + (kind.probs * spread).sum(-1)
    torch.testing.assert_close(entropy, expected)


@pytest.mark.parametrize("share", [False, True])
def test_pictures_may_come_flat(share: bool) -> None:
    space = spaces.Box(0, 1, (3, 5, 7))
    policy = make_phasic_policy(space, THREE, share)
    network = policy.network.network
    assert isinstance(network.heads.policy_encoder, ConvolutionalEncodingNetwork)
    obs = torch.rand(2, 4, 3, 5, 7)
    flat = obs.flatten(2)
    assert policy(obs).shape == (2, 4, 3)
    assert torch.equal(policy(obs), policy(flat))
    assert torch.equal(policy.value(obs), policy.value(flat))
    (_, value, _), _ = network(obs, (), False)
    assert torch.equal(policy.value(flat), value)
    torch.testing.assert_close(policy(obs)[1, 2], policy(obs[1, 2][None])[0])


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (THREE, THREE, "observation_space must be a Box"),
        (spaces.Box(0, 1, (2, 2)), THREE, "observation_space must be a Box"),
        (BOX, spaces.Box(0, 1, (2, 2)), "action_space must be Discrete"),
        (BOX, spaces.Tuple((THREE, THREE)), "exactly one Discrete"),
    ],
)
def test_spaces_that_the_policy_phase_cannot_serve(
    observation, action, message
) -> None:
    with pytest.raises(ValueError, match=message):
        make_phasic_policy(observation, action)


def test_channels_may_come_last_and_bytes_are_scaled() -> None:
    torch.manual_seed(0)
    first = ConvolutionalEncodingNetwork(spaces.Box(0, 1, (3, 20, 24)))
    last = ConvolutionalEncodingNetwork(spaces.Box(0, 255, (20, 24, 3), np.uint8))
    last.load_state_dict(first.state_dict())
    picture = torch.randint(256, (5, 20, 24, 3), dtype=torch.uint8)
    features, _ = last(picture)
    expected, _ = first((picture.double() / 255).movedim(-1, -3))
    torch.testing.assert_close(features, expected)


@pytest.mark.parametrize("size", [5, 16, 17, 64])
def test_a_convolution_takes_pictures_of_any_size(size: int) -> None:
    encoder = ConvolutionalEncodingNetwork(spaces.Box(0, 1, (2, size, size)), hidden=8)
    features, state = encoder(torch.rand(3, 4, 2, size, size), "a state")
    assert features.shape == (3, 4, 8)
    assert state == "a state"


def test_a_convolution_needs_a_picture() -> None:
    with pytest.raises(ValueError, match="channels, height, width"):
        ConvolutionalEncodingNetwork(BOX)


# --- The algorithm --------------------------------------------------------------------


def weights(policy: torch.nn.Module) -> list[Tensor]:
    return [x.clone() for x in policy.state_dict().values()]


def test_without_its_second_phase_ppg_is_ppo_bit_for_bit() -> None:
    config = replace(SMALL, aux_enabled=False)
    ppg = learner(config=config)
    envs = make_envs("CartPole-v1", config.num_envs)
    plain = make_policy(envs.single_observation_space, envs.single_action_space)
    copy_weights(ppg.policy, plain)
    ppo = PPO(plain, envs, config)
    for _ in range(8):
        ours, theirs = ppg.iterate(), ppo.iterate()
        assert str(ours) == str(theirs)
        assert ppg.aux.buffer == []
    heads = ppg.policy.network.network.heads
    same = [*heads.policy_encoder.layers, heads.projections[0].logits]
    for ours, theirs in zip(same, plain.network.actor[::2], strict=True):
        assert torch.equal(ours.weight, theirs.weight)


def test_a_phase_follows_each_interval_and_starts_at_zero() -> None:
    ppg = learner()
    filled = []
    for iteration in range(1, 8):
        metrics = ppg.iterate()
        ran = not math.isnan(metrics["aux/kl"])
        assert ran is (iteration % 3 == 0)
        filled.append(len(ppg.aux.buffer))
        if ran:
            assert abs(metrics["aux/kl_at_start"]) < 1e-6
    assert filled == [16, 32, 0, 16, 32, 0, 16]


def test_the_auxiliary_phase_sees_what_ppo_saw() -> None:
    ppg = learner(config=replace(SMALL, scale_reward=True, normalize_obs=True))
    collected = ppg.ppo.collect()
    (row,) = ppg.rows(collected)
    assert torch.equal(row, ppg.policy(collected.obs))
    ppg.ppo.update(collected)
    ppg.observe((row,))
    batch, value, next_value = ppg.ppo.seen
    assert not torch.equal(batch.reward, collected.reward)  # they are scaled
    assert not torch.equal(row, ppg.policy(collected.obs))  # of the policy before
    obs, info = ppg.aux.buffer[5]
    # Observations are stored as they came. Each phase normalises them anew.
    assert torch.equal(obs, batch.obs[5])
    assert torch.equal(ppg.aux.prepare(obs), ppg.policy.network.normalizer(obs))
    for ours, expected in (
        (info.action_distribution[0], row[5]),
        (info.value, value[5]),
        (info.next_value, next_value[5]),
        (info.reward, batch.reward[5]),
        (info.action, batch.action[5]),
    ):
        assert torch.equal(ours, expected)
    assert ((info.discount == 0) == batch.terminated[5]).all()
    ended = batch.terminated | batch.truncated
    assert ended.any()
    for t, (_, stored) in enumerate(ppg.aux.buffer):
        assert ((stored.step_type == LAST) == ended[t]).all()


@pytest.mark.parametrize(
    "env",
    ["CartPole-v1", "Pendulum-v1", "literate_rl/Moving-v0", "literate_rl/Maze-v0"],
)
def test_every_kind_of_action_trains(env: str) -> None:
    ppg = learner(env)
    history = fit(ppg, progress=False)
    assert ppg.step == 256
    last = [h for h in history if not math.isnan(h["aux/kl"])]
    assert len(last) == 2
    assert all(math.isfinite(h["aux/value_loss"]) for h in last)


def test_the_step_size_of_the_second_phase_falls_with_the_first() -> None:
    ppg = learner(config=replace(SMALL, aux_learning_rate=0.1))
    for _ in range(3):
        rate = ppg.iterate()["charts/learning_rate"]
    ours = ppg.aux.optimizer.param_groups[0]["lr"]
    assert ours == pytest.approx(0.1 * rate / SMALL.learning_rate)
    assert 0 < ours < 0.1


@pytest.mark.parametrize("iterations", [3, 4, 5])
def test_a_run_resumes_to_the_bit_in_any_phase(iterations: int, tmp_path) -> None:
    config = replace(SMALL, checkpoint_interval=1, normalize_obs=True)
    whole = learner(config=config)
    with Run(tmp_path / "run", {}) as run:
        for _ in range(iterations):
            whole.iterate()
        run.save(whole)
    saved = load_checkpoint(run.checkpoint)
    assert saved["learner"]["aux"].keys() >= {"optimizer", "generator"}
    again = learner(config=config)
    with Run(tmp_path / "run", resume=True) as run:
        run.restore(again)
    assert len(again.aux.buffer) == 16 * (iterations % 3)
    for _ in range(4):
        assert str(whole.iterate()) == str(again.iterate())
    for ours, theirs in zip(weights(whole.policy), weights(again.policy), strict=True):
        assert torch.equal(ours, theirs)


def test_a_stored_policy_comes_back(tmp_path) -> None:
    ppg = learner("literate_rl/Moving-v0", replace(SMALL, share_encoder=True))
    with Run(tmp_path / "run", {}) as run:
        fit(ppg, run, progress=False)
    policy = load(tmp_path / "run")
    obs = torch.randn(3, 9)
    assert torch.equal(policy.act(obs, 0.0), ppg.policy.act(obs, 0.0))


def test_environments_that_reset_later_are_refused() -> None:
    envs = SyncVectorEnv(
        [lambda: gym.make("CartPole-v1")] * 2, autoreset_mode=AutoresetMode.NEXT_STEP
    )
    policy = make_phasic_policy(envs.single_observation_space, envs.single_action_space)
    with pytest.raises(ValueError, match="envs must have autoreset mode SAME_STEP"):
        PPGAlgorithm(policy, envs, SMALL)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"aux_interval": 0}, "aux_interval must be at least 1, got 0"),
        ({"aux_epochs": 2.5}, "aux_epochs must be an integer, got float"),
        ({"aux_batch_size": 0}, "aux_batch_size must be at least 1"),
        ({"aux_epochs": 0}, "aux_epochs must be at least 1"),
        (
            {"aux_batch_length": 5},
            "aux_batch_length must be None or a divisor of the 16",
        ),
        ({"aux_learning_rate": 0.0}, "aux_learning_rate must be positive"),
        ({"clone_weight": -1.0}, "clone_weight must be at least 0"),
        ({"kl_reference": "old"}, "kl_reference must be one of .*snapshot.*got old"),
        ({"detach": "sometimes"}, "detach must be 'always' or .* got 'sometimes'"),
        (
            {"clone_weight": math.inf},
            "clone_weight must be at least 0, finite, got inf",
        ),
        ({"gamma": 2.0}, "gamma must be at least 0 and at most 1, got 2.0"),
    ],
)
def test_settings_that_make_no_sense(change: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        replace(SMALL, **change)


def test_settings_are_those_of_ppo_and_more() -> None:
    assert ppg_settings("CartPole-v1").gamma == 0.98
    assert ppg_settings("CartPole-v1").aux_interval == 16
    assert ppg_settings("Nothing-v0") == PPGConfig()
    assert SMALL.aux_options == PPGAuxOptions(True, 3, 16, 8, 2)


def test_ppg_learns_to_balance_a_pole() -> None:
    settings = replace(ppg_settings("CartPole-v1"), total_steps=32_000, num_epochs=4)

    def train(seed: int) -> float:
        ppg = learner(config=replace(settings, seed=seed))
        fit(ppg, progress=False)
        return evaluate(ppg.policy, "CartPole-v1", 10, seed=1).mean()

    assert median_of_seeds(train) > 120
