"""PPG: the loss, the auxiliary phase, the policy and the loop."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from literate_rl.data.agents import Rollout, make_envs, seed_everything
from literate_rl.learners.ppg import (
    AuxiliaryPhase,
    PPGAlgorithm,
    auxiliary_loss,
)
from literate_rl.learners.ppg_learner import (
    PPGConfig,
    make_phasic_policy,
    side_by_side,
)
from literate_rl.learners.ppo import PPO
from literate_rl.maths.advantages import gae, lambda_returns
from literate_rl.nets.parts import CategoricalActions
from literate_rl.nets.policies import Policy, make_policy
from literate_rl.runs.runs import Run, flat_env

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


def weights(policy: torch.nn.Module) -> list[Tensor]:
    return [x.clone() for x in policy.state_dict().values()]


# --- The loss -------------------------------------------------------------------------


@pytest.mark.equation("phase-value")
@pytest.mark.equation("phase-auxiliary")
@pytest.mark.equation("phase-clone")
@pytest.mark.equation("auxiliary-loss")
@settings(max_examples=40)
@given(seed=st.integers(0, 2**31), weight=st.sampled_from([0.0, 0.5, 2.0]))
def test_the_loss_is_the_sum_of_its_three_terms(seed, weight):
    rng = torch.Generator().manual_seed(seed)
    numbers = torch.randn(3, 4, 2, generator=rng, dtype=torch.float64)
    value, aux, target = (x.clone().requires_grad_() for x in numbers)
    old, new = torch.randn(2, 4, 2, 3, generator=rng, dtype=torch.float64)
    p, q = old.softmax(-1), new.softmax(-1)
    kl = CategoricalActions(3).kl(old, new.requires_grad_())
    loss, parts = auxiliary_loss(value, aux, target, kl, weight)
    far = numbers[:2] - numbers[2]
    expected = *far.square(), (p * (p.log() - q.log())).sum(-1)
    torch.testing.assert_close([x.detach() for x in parts], [*expected])
    total = expected[0] + expected[1] + weight * expected[2]
    torch.testing.assert_close(loss.detach(), total)
    loss.sum().backward()
    # Of the divergence with respect to logits: what is likely now and was not then.
    found = [value.grad, aux.grad, new.grad]
    torch.testing.assert_close(found, [*2 * far, weight * (q - p)])
    assert target.grad is None


@pytest.mark.erratum("cloning-by-log-probabilities")
def test_kl_div_of_log_probabilities_is_nan_and_pushes_the_wrong_way():
    """The clone term of DI-engine's PPG: log-probabilities passed as probabilities."""
    log_prob_old = torch.tensor([-0.5, -1.0, -2.0])
    log_prob_new = log_prob_old.clone().requires_grad_()
    loss = torch.nn.functional.kl_div(log_prob_new, log_prob_old, reduction="batchmean")
    assert torch.isnan(loss)
    loss.backward()
    # Descent lowers the log-probability of every action that was taken.
    assert (log_prob_new.grad > 0).all()


@pytest.mark.erratum("chunk-without-successor")
def test_a_zero_appended_makes_the_last_step_its_own_target():
    """A chunk of eight steps; the old values are 0, the true successor is worth 10."""
    reward, value = torch.ones(8, 1), torch.zeros(8, 1)
    never = torch.zeros(8, 1, dtype=torch.bool)
    successor = torch.cat([value[1:], torch.full((1, 1), 10.0)])
    ours = lambda_returns(reward, successor, never, never, 0.9, 0.95)
    inner = gae(reward[:7], value[:7], value[1:], never[:7], never[:7], 0.9, 0.95)
    published = torch.cat([inner, torch.zeros(1, 1)]) + value
    assert published[-1] == value[-1] == 0
    assert ours[-1] == 1 + 0.9 * 10


# --- The auxiliary phase --------------------------------------------------------------


def rollout(steps: int, copies: int) -> Rollout:
    """Return a random rollout of ``BOX``."""
    terminated, truncated = torch.rand(2, steps, copies) < 0.1
    nothing = torch.full((steps, copies), math.nan)
    return Rollout(
        torch.randn(steps, copies, 4),
        torch.zeros(steps, copies),
        torch.randn(steps, copies),
        torch.randn(steps, copies, 4),
        terminated,
        truncated,
        torch.ones(steps, copies, dtype=torch.bool),
        nothing,
        nothing,
    )


def phase(
    action: spaces.Space = THREE, rollouts: int = 2, copies: int = 3, **changes: Any
) -> AuxiliaryPhase:
    """Return an auxiliary phase that has observed some rollouts."""
    torch.manual_seed(0)
    small = {"num_steps": 8, "num_envs": copies, "aux_epochs": 2, "aux_batch_size": 2}
    config = PPGConfig(**small | {"num_minibatches": 1} | changes)
    policy = make_phasic_policy(BOX, action)
    head = policy.network.network.heads.projections[0]
    torch.nn.init.normal_((head.logits if action is not PAIR else head.mu).weight)
    aux = AuxiliaryPhase(policy, config)
    for _ in range(rollouts):
        batch = rollout(config.num_steps, copies)
        with torch.no_grad():
            row, next_value = policy(batch.obs), policy.value(batch.next_obs)
        aux.observe(batch, next_value, row)
    return aux


def test_metrics_are_means_over_the_last_epoch():
    aux, calls = phase(aux_epochs=3), itertools.count()
    aux.learn = lambda part: torch.full((4,), float(next(calls)))  # type: ignore[method-assign]
    metrics = aux.run()
    parts = next(calls) // 3
    assert parts == 3
    assert metrics["aux/kl"] == metrics["aux/grad_norm"] == 7  # of 6, 7 and 8
    assert metrics["aux/kl_at_start"] == 0


@pytest.mark.parametrize("length", [None, 4])
def test_chunks_are_consecutive_steps_of_one_environment(length):
    aux = phase(rollouts=0, aux_batch_length=length)
    for number in range(2):
        batch = rollout(8, 3)
        batch.obs[..., 0] = 8 * number + torch.arange(8)[:, None]
        batch.obs[..., 1] = torch.arange(3)
        aux.observe(batch, torch.zeros(8, 3), torch.zeros(8, 3, 3))
    obs, target, row, _ = side_by_side(*aux.buffer)
    size = length or 8
    assert target.shape == row.shape[:2] == (size, 48 // size)
    time, place = obs[..., 0], obs[..., 1]
    assert (time == time[0] + torch.arange(size)[:, None]).all()
    assert (place == place[0]).all()
    assert sorted(time[0].tolist()) == sorted([*range(0, 16, size)] * 3)


@pytest.mark.parametrize(("count", "size"), [(9, 8), (7, 2)])
def test_minibatches_are_even_and_never_too_large(count, size):
    aux = phase(rollouts=1, copies=count, aux_batch_size=size, num_steps=4)
    wanted, seen = sorted(aux.buffer[0].target.T.tolist()), []
    aux.learn = lambda part: seen.append(part.target.T.tolist()) or torch.zeros(4)
    aux.run()
    sizes = [len(part) for part in seen]
    assert len(sizes) == 2 * math.ceil(count / size)
    assert max(sizes) - min(sizes) <= 1
    # Each of both epochs takes each chunk once.
    assert sorted(chunk for part in seen for chunk in part) == sorted(wanted * 2)


@pytest.mark.erratum("clone-of-the-rollout")
@pytest.mark.parametrize("reference", ["snapshot", "rollout"])
def test_the_clone_starts_where_it_is_told(reference):
    aux = phase(kl_reference=reference)
    # As if policy phases had moved it.
    torch.nn.init.normal_(aux.network.network.heads.projections[0].logits.weight)
    start = aux.run()["aux/kl_at_start"]
    assert (start > 0.1) if reference == "rollout" else (abs(start) < 1e-6)


def test_a_step_follows_the_mean_of_the_losses():
    aux = phase(rollouts=1, max_grad_norm=1e6)
    assert aux.optimizer.param_groups[0]["eps"] == 1e-5
    data = aux.buffer[0]
    row, *values = aux.network.three_heads(data.obs)
    kl = aux.policy.actions.kl(data.row, row)
    errors = [(x - data.target).square() for x in values]
    assert not torch.allclose(*errors)
    wanted = torch.autograd.grad((sum(errors) + kl).mean(), aux.parameters)
    norm = torch.cat([g.flatten() for g in wanted]).norm()
    told = torch.stack([*(x.mean() for x in (*errors, kl)), norm]).detach()
    torch.testing.assert_close(aux.learn(data), told)
    torch.testing.assert_close([p.grad for p in aux.parameters], [*wanted])


def test_a_gradient_that_is_not_finite_stops_before_a_weight_has_changed():
    aux = phase(rollouts=1)
    before, data = weights(aux.policy), aux.buffer[0]
    for large in (1e30, 1e19):
        aux.buffer = [data._replace(target=data.target + large)]
        with pytest.raises(ValueError, match="must be finite"):
            aux.run()
        assert all(map(torch.equal, weights(aux.policy), before))


# --- The algorithm --------------------------------------------------------------------


def test_without_its_second_phase_ppg_is_ppo_bit_for_bit():
    config = replace(SMALL, aux_enabled=False)
    ppg = learner(config=config)
    envs = make_envs("CartPole-v1", config.num_envs)
    plain = make_policy(envs.single_observation_space, envs.single_action_space)
    copy_weights(ppg.policy, plain)
    ppo = PPO(plain, envs, config)
    for _ in range(8):
        assert str(ppg.iterate()) == str(ppo.iterate())
        assert ppg.aux.buffer == []
    copied = copy.deepcopy(plain)
    copy_weights(ppg.policy, copied)
    assert all(map(torch.equal, weights(plain), weights(copied)))


def test_a_phase_follows_each_interval_and_starts_at_zero():
    ppg = learner()
    for iteration in range(1, 8):
        metrics = ppg.iterate()
        assert math.isnan(metrics["aux/kl"]) == (iteration % 3 > 0)
        assert not abs(metrics["aux/kl_at_start"]) > 1e-6
        assert len(ppg.aux.buffer) == iteration % 3


def test_the_auxiliary_phase_sees_what_ppo_saw():
    config = replace(SMALL, scale_reward=True, normalize_obs=True)
    ppg, before = learner(config=config), learner(config=config).policy
    ppg.iterate()
    batch, _, next_value = ppg.ppo.seen
    assert (batch.terminated | batch.truncated).any()
    assert (batch.reward != 1).any()  # they are scaled
    (data,) = ppg.aux.buffer
    # Observations are stored as they came. Each phase normalises them anew.
    assert torch.equal(data.obs, batch.obs)
    flags = batch.terminated, batch.truncated
    expected = lambda_returns(batch.reward, next_value, *flags, 0.99, 0.95)
    assert torch.equal(data.target, expected)
    # The rows are those of the policy that acted.
    assert torch.equal(data.row, before(batch.obs))
    assert not torch.equal(data.row, ppg.policy(batch.obs))


def test_the_step_size_of_the_second_phase_falls_with_the_first():
    ppg = learner(config=replace(SMALL, aux_learning_rate=0.1))
    for _ in range(3):
        rate = ppg.iterate()["charts/learning_rate"]
    ours = ppg.aux.optimizer.param_groups[0]["lr"]
    assert ours == pytest.approx(0.1 * rate / SMALL.learning_rate)
    assert 0 < ours < 0.1


@pytest.mark.parametrize("iterations", [3, 5])
def test_a_run_resumes_to_the_bit_in_any_phase(iterations, tmp_path):
    config = replace(SMALL, checkpoint_interval=1, value_epochs=3, normalize_obs=True)
    whole, again = learner(config=config), learner(config=config)
    with Run(tmp_path / "run", {}) as run:
        for _ in range(iterations):
            whole.iterate()
        run.save(whole)
    with Run(tmp_path / "run", resume=True) as run:
        run.restore(again)
    assert len(again.aux.buffer) == iterations % 3
    for _ in range(4):
        assert str(whole.iterate()) == str(again.iterate())
    assert all(map(torch.equal, weights(whole.policy), weights(again.policy)))


def test_environments_that_reset_later_are_refused():
    envs = SyncVectorEnv(
        [lambda: gym.make("CartPole-v1")] * 2, autoreset_mode=AutoresetMode.NEXT_STEP
    )
    policy = make_phasic_policy(envs.single_observation_space, envs.single_action_space)
    with pytest.raises(ValueError, match="SAME_STEP"):
        PPGAlgorithm(policy, envs, SMALL)
