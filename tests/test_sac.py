"""SAC: the squashed density, soft values, the temperature, the loop, own models."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from elsewhere import ELSEWHERE, elsewhere
from fuzz import assert_held
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from learning import assert_for_most_seeds
from soft import (
    BOX,
    HIGH,
    LOW,
    PENDULUM,
    SEEN,
    SHORT,
    SMALL,
    N,
    TwoStateActor,
    TwoStateCritic,
    algorithm_for,
    assert_each_step_moves_its_own_weights,
    assert_models_train,
    assert_resumed,
    filled,
    generator,
    learner_for,
    moved,
    weights,
)
from torch import Tensor, nn
from torch.distributions import (
    AffineTransform,
    Independent,
    Normal,
    TanhTransform,
    TransformedDistribution,
)

from literate_rl.apps.cli import main
from literate_rl.apps.training import train
from literate_rl.book.contract_models import (
    ActionValue,
    QNetwork,
    SquashedGaussianActor,
)
from literate_rl.check.contracts import ContractError
from literate_rl.data.replay import Batch
from literate_rl.learners.ddpg import ActorCritics
from literate_rl.learners.loop import OffPolicy
from literate_rl.learners.sac import (
    SAC,
    GaussianRows,
    SACConfig,
    SquashedGaussian,
    entropy_scale,
    make_sac_policy,
    sac_settings,
)
from literate_rl.learners.td3 import TD3Config, TwinDelayed
from literate_rl.maths.sac import soft_value, temperature_error
from literate_rl.nets.policies import Policy
from literate_rl.runs.runs import fit, load


def row_of(*log_sigma: float, mu: float = 0.3) -> Tensor:
    """Return one row in float64: equal means and these log standard deviations."""
    means = torch.full((len(log_sigma),), mu)
    return torch.cat([means, torch.tensor(log_sigma)]).double()


# --- The squashed Gaussian ------------------------------------------------------------


@pytest.mark.equation("squashed-density")
@pytest.mark.parametrize("log_sigma", [-2.0, 0.0, 1.0, 1.5])
@pytest.mark.parametrize("mu", [-1.0, 0.3])
def test_the_density_integrates_to_one(log_sigma: float, mu: float) -> None:
    actions = SquashedGaussian([-1.0], [3.0])
    # Points of equal distance before the squash come close to both bounds.
    u = torch.linspace(-18, 18, 20_001, dtype=torch.float64).unsqueeze(-1)
    action = 1 + 2 * u.tanh()
    row = row_of(log_sigma, mu=mu).expand(len(action), -1)
    density = actions.log_prob(row, action).exp()
    mass = torch.trapezoid(density, action.squeeze(-1)).item()
    assert mass == pytest.approx(1, abs=2e-3)


@pytest.mark.equation("squashed-density")
def test_the_density_of_two_numbers_integrates_to_one() -> None:
    actions = SquashedGaussian(LOW, HIGH)
    u = torch.linspace(-9, 9, 601, dtype=torch.float64)
    first, second = 1 + 2 * u.tanh(), 0.25 + 0.25 * u.tanh()
    points = torch.cartesian_prod(first, second)
    row = row_of(0.0, -1.0).expand(len(points), -1)
    density = actions.log_prob(row, points).exp().reshape(601, 601)
    inner = torch.trapezoid(density, second)
    assert torch.trapezoid(inner, first).item() == pytest.approx(1, abs=1e-4)


def test_the_box_goes_where_the_policy_goes() -> None:
    actions, row = SquashedGaussian(LOW, HIGH), row_of(0.3, -0.5).float().expand(4, -1)
    policy = Policy(nn.Identity(), actions)
    assert not policy.state_dict(), "old checkpoints load"
    assert not list(policy.parameters())
    wanted, wanted_log_prob = actions.draw(row, torch.zeros(4, 2))
    with elsewhere():
        policy.to(ELSEWHERE)
        there = row.to(ELSEWHERE)
        assert torch.equal(policy.act(there, 0.0).cpu(), wanted)
        action, log_prob = actions.draw(there, torch.zeros(4, 2, device=ELSEWHERE))
        assert torch.equal(log_prob.cpu(), wanted_log_prob)
        again = actions.log_prob(there, action)
        torch.testing.assert_close(again.cpu(), wanted_log_prob)
        policy.cpu()
    assert torch.equal(actions.choose(row, 0.0), wanted)
    assert actions.choose(row.double(), 0.0).dtype == torch.float64
    assert torch.equal(actions.choose(row, 0.0), wanted), "to the bit"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_density_is_finite_at_the_bounds(dtype: torch.dtype) -> None:
    actions = SquashedGaussian(LOW, HIGH)
    row = row_of(-5.0, 2.0).to(dtype).requires_grad_()
    for bound in (LOW, HIGH):
        log_prob = actions.log_prob(row, torch.tensor(bound, dtype=dtype))
        (grad,) = torch.autograd.grad(log_prob, row)
        assert log_prob.isfinite()
        assert grad.isfinite().all()
    # A draw that rounds to the bound is judged by its u, however far out it is.
    for far in (9.0, 30.0, 1000.0):
        noise = torch.full((2,), far, dtype=dtype)
        action, log_prob = actions.draw(row, noise)
        (grad,) = torch.autograd.grad(log_prob, row)
        assert log_prob.isfinite()
        assert grad.isfinite().all()
        assert (action <= torch.tensor(HIGH, dtype=dtype)).all()


def peer(row: Tensor) -> Any:
    """Return torch's own squashed Gaussian for a row, as one distribution."""
    mu, log_sigma = row.chunk(2, -1)
    low, high = (torch.tensor(x, dtype=row.dtype) for x in (LOW, HIGH))
    stretch = AffineTransform((low + high) / 2, (high - low) / 2)
    each = TransformedDistribution(
        Normal(mu, log_sigma.exp()), [TanhTransform(cache_size=1), stretch]
    )
    return Independent(each, 1)


@pytest.mark.equation("squashed-density")
@given(st.integers(0, 10_000))
def test_it_is_the_transformed_distribution(seed: int) -> None:
    actions, source = SquashedGaussian(LOW, HIGH), generator(seed)
    # Not too far out: torch's own inverse is infinite where tanh rounds to 1.
    row = torch.randn(N, 4, generator=source, dtype=torch.float64).clamp(-1, 1)
    noise = torch.randn(N, 2, generator=source, dtype=torch.float64).clamp(-2, 2)
    action, log_prob = actions.draw(row, noise)
    wanted = peer(row).log_prob(action)
    torch.testing.assert_close(actions.log_prob(row, action), wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(log_prob, wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(actions.choose(row, noise), action, rtol=0, atol=0)
    # The same in float32, as an agent computes it.
    small, small_log_prob = actions.draw(row.float(), noise.float())
    assert small.dtype == small_log_prob.dtype == torch.float32
    torch.testing.assert_close(small_log_prob.double(), wanted, rtol=1e-4, atol=1e-4)


def test_what_is_drawn_has_the_density_that_it_says() -> None:
    actions, row = SquashedGaussian([-1.0], [3.0]), row_of(0.3)
    noise = torch.randn(200_000, 1, generator=generator(), dtype=torch.float64)
    action = actions.choose(row.expand(len(noise), -1), noise).squeeze(-1)
    edges = torch.linspace(-1, 3, 21, dtype=torch.float64)
    share = torch.histogram(action, edges).hist / len(action)
    for i in range(20):
        x = torch.linspace(edges[i], edges[i + 1], 401, dtype=torch.float64)[1:-1]
        density = actions.log_prob(row.expand(len(x), -1), x.unsqueeze(-1)).exp()
        mass = torch.trapezoid(density, x).item()
        assert share[i].item() == pytest.approx(mass, abs=0.006)


@pytest.mark.equation("score-zero")
def test_the_score_has_mean_zero() -> None:
    actions = SquashedGaussian(LOW, HIGH)
    row = row_of(0.2, -0.5).requires_grad_()
    noise = torch.randn(100_000, 2, generator=generator(), dtype=torch.float64)
    action = actions.choose(row.detach().expand(len(noise), -1), noise)
    log_prob = actions.log_prob(row.expand(len(noise), -1), action)
    (score,) = torch.autograd.grad(log_prob.mean(), row)
    assert score.abs().max() < 0.02
    # Judged by another distribution, it does not.
    other = (row + 0.2).detach().requires_grad_()
    log_prob = actions.log_prob(other.expand(len(noise), -1), action)
    (score,) = torch.autograd.grad(log_prob.mean(), other)
    assert score.abs().max() > 0.1


def test_gradients_are_those_of_finite_differences() -> None:
    actions = SquashedGaussian(LOW, HIGH)
    row = torch.randn(3, 4, generator=generator(), dtype=torch.float64)
    noise = torch.randn(3, 2, generator=generator(1), dtype=torch.float64)
    action = actions.choose(row, noise)
    row.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: actions.draw(x, noise), row)
    assert torch.autograd.gradcheck(lambda x: actions.log_prob(x, action), row)
    assert torch.autograd.gradcheck(actions.entropy, row)


def test_a_draw_never_undoes_its_squash(monkeypatch: pytest.MonkeyPatch) -> None:
    actions = SquashedGaussian(LOW, HIGH)

    def refuse(*_: Any) -> None:
        raise AssertionError("undone")

    monkeypatch.setattr(actions.box, "undo", refuse)
    action, _ = actions.draw(row_of(0.0, 0.0), torch.zeros(2).double())
    with pytest.raises(AssertionError, match="undone"):
        actions.log_prob(row_of(0.0, 0.0), action)


@pytest.mark.parametrize("log_sigma", [-5.0, -1.0, 0.0, 1.0, 2.0])
def test_the_entropy_is_the_mean_of_minus_the_log_density(log_sigma: float) -> None:
    actions, row = SquashedGaussian(LOW, HIGH), row_of(log_sigma, -0.5, mu=0.4)
    noise = torch.randn(200_000, 2, generator=generator(), dtype=torch.float64)
    _, log_prob = actions.draw(row.expand(len(noise), -1), noise)
    entropy = actions.entropy(row)
    error = log_prob.std().item() / math.sqrt(len(noise))
    assert entropy.item() == pytest.approx(-log_prob.mean().item(), abs=5 * error)
    found = actions.evaluate(row, torch.tensor([1.0, 0.2]).double())
    assert torch.equal(found[1], entropy)
    # None exceeds that of the uniform distribution.
    volume = math.prod(h - low for low, h in zip(LOW, HIGH, strict=True))
    assert entropy.item() < math.log(volume)


def test_the_density_of_three_numbers_is_the_product_of_theirs() -> None:
    low, high = [-1.0, 0.0, -2.0], [1.0, 0.5, 3.0]
    row = torch.randn(7, 6, generator=generator())
    share = torch.rand(7, 3, generator=generator()) * 0.9 + 0.05
    action = torch.tensor(low) + share * (torch.tensor(high) - torch.tensor(low))
    both = SquashedGaussian(low, high).log_prob(row, action)
    each = [
        SquashedGaussian(low[i : i + 1], high[i : i + 1]).log_prob(
            row[:, [i, 3 + i]], action[:, i : i + 1]
        )
        for i in range(3)
    ]
    torch.testing.assert_close(both, sum(each))
    # A draw has the density that comes back for its action.
    drawn = SquashedGaussian(low, high).draw(row.double(), torch.zeros(7, 3).double())
    again = SquashedGaussian(low, high).log_prob(row.double(), drawn[0])
    torch.testing.assert_close(drawn[1], again, rtol=1e-5, atol=1e-5)


def test_each_dimension_has_its_own_bounds() -> None:
    actions = SquashedGaussian(LOW, HIGH)
    row = torch.zeros(2, 4)
    far = torch.tensor([[50.0, 50.0], [-50.0, -50.0]])
    found = actions.to_env(actions.choose(row, far))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [HIGH, LOW], rtol=1e-6)
    middle = actions.to_env(actions.choose(row, 0.0))
    np.testing.assert_allclose(middle[0], [1.0, 0.25])
    beyond = actions.to_env(torch.tensor([[9.0, 9.0]]))
    np.testing.assert_allclose(beyond[0], HIGH)


def test_noise_is_held_for_so_many_steps() -> None:
    plain = SquashedGaussian(LOW, HIGH).noise(7, 2, generator())
    held = SquashedGaussian(LOW, HIGH, hold=3).noise(7, 2, generator())
    assert plain.shape == held.shape == (7, 2, 2)
    # Three draws for seven steps: rows 0 to 2 share the first, and so on.
    draws = SquashedGaussian(LOW, HIGH).noise(3, 2, generator())
    assert torch.equal(held, draws[torch.tensor([0, 0, 0, 1, 1, 1, 2])])
    assert not torch.equal(plain[0], plain[1])


# --- Soft values and the temperature --------------------------------------------------


@pytest.mark.equation("soft-value")
def test_a_draw_is_worth_its_value_and_its_surprise() -> None:
    source = generator()
    q = torch.randn(2, N, generator=source, dtype=torch.float64)
    log_prob = torch.randn(N, generator=source, dtype=torch.float64)
    got = soft_value(q, log_prob, 0.3)
    for i in range(N):
        wanted = min(float(q[0, i]), float(q[1, i])) - 0.3 * float(log_prob[i])
        assert got[i].item() == pytest.approx(wanted, abs=1e-12)
    # The less optimistic critic is believed.
    assert torch.equal(
        soft_value(torch.stack([q[0], q[0] + 5]), log_prob, 0.3),
        soft_value(q[:1], log_prob, 0.3),
    )


@pytest.mark.equation("soft-value")
@pytest.mark.equation("def-soft-optimal")
def test_draws_are_right_on_average_and_the_best_density_needs_only_one() -> None:
    # Values of actions from -1 to 1 that make the density itself the best one.
    box, row, alpha = SquashedGaussian([-1.0], [1.0]), row_of(-0.5), 0.7
    noise = torch.randn(200_000, 1, generator=generator(), dtype=torch.float64)
    action, log_prob = box.draw(row.expand(len(noise), -1), noise)
    best = soft_value(alpha * log_prob.unsqueeze(0) + 3.0, log_prob, alpha)
    torch.testing.assert_close(best, torch.full_like(best, 3.0))
    # With other values the mean of the draws is the integral.
    found = soft_value(action.T, log_prob, alpha).mean().item()
    u = torch.linspace(-9, 9, 20_001, dtype=torch.float64).unsqueeze(-1)
    density = box.log_prob(row.expand(len(u), -1), u.tanh())
    paid = density.exp() * (u.tanh().squeeze(-1) - alpha * density)
    wanted = torch.trapezoid(paid, u.tanh().squeeze(-1)).item()
    assert found == pytest.approx(wanted, abs=0.01)


@pytest.mark.equation("temperature")
@pytest.mark.parametrize(("entropy", "sign"), [(-2.0, -1), (0.5, 1), (-1.0, 0)])
def test_the_temperature_moves_towards_the_target(entropy: float, sign: int) -> None:
    log_alpha = torch.tensor(-0.7, dtype=torch.float64, requires_grad=True)
    seen = torch.full((N,), entropy, dtype=torch.float64, requires_grad=True)
    loss = temperature_error(log_alpha, seen, -1.0)
    grads = torch.autograd.grad(loss, [log_alpha, seen], allow_unused=True)
    assert grads[0] is not None
    assert grads[1] is None
    # Gradient descent lowers the temperature where the entropy is above its target.
    assert np.sign(grads[0].item()) == sign
    assert grads[0].item() == pytest.approx(entropy + 1.0)


@pytest.mark.equation("temperature")
@pytest.mark.erratum("log-alpha")
def test_log_alpha_and_alpha_agree_but_for_the_step() -> None:
    for entropy in (-3.0, -1.0, 2.0):
        for start in (0.01, 0.5, 3.0):
            seen = torch.full((N,), entropy, dtype=torch.float64)
            log_alpha = torch.tensor(start).double().log().requires_grad_()
            by_log = temperature_error(log_alpha, seen, -1.0)
            by_alpha = temperature_error(log_alpha.exp(), seen, -1.0)
            (one,) = torch.autograd.grad(by_log, log_alpha)
            (other,) = torch.autograd.grad(by_alpha, log_alpha)
            # The same sign, the same fixed point; the length differs by alpha.
            assert other.item() == pytest.approx(start * one.item())
            assert (one.item() == 0) == (entropy == -1.0)


@pytest.mark.equation("entropy-unit")
def test_the_unit_of_the_target() -> None:
    wide = spaces.Box(np.float32(LOW), np.float32(HIGH))
    unit, target = entropy_scale(wide, None)
    assert unit == pytest.approx(math.log(2) + math.log(0.25))
    assert target == pytest.approx(unit - 2)
    assert entropy_scale(wide, -3.0)[1] == pytest.approx(unit - 3)
    assert entropy_scale(spaces.Box(-1, 1, (5,)), None) == (0.0, -5.0)
    # The same policy, in a box of another width: log h is all that changes.
    narrow, broad = SquashedGaussian([-1.0] * 2, [1.0] * 2), SquashedGaussian(LOW, HIGH)
    row = row_of(0.3, -0.4)
    difference = broad.entropy(row) - narrow.entropy(row)
    assert difference.item() == pytest.approx(unit, abs=1e-6)


@pytest.mark.parametrize("function", [soft_value, temperature_error])
def test_signatures_hold(function: Any) -> None:
    assert assert_held(function, Random(0)) > 0


@pytest.mark.parametrize("method", ["choose", "draw", "log_prob", "entropy"])
def test_signatures_of_the_distribution_hold(method: str) -> None:
    actions = SquashedGaussian([-1.0], [1.0])
    row, one = torch.zeros(4, 2), torch.zeros(4, 1)
    second = () if method == "entropy" else (one,)
    getattr(actions, method)(row, *second)
    with pytest.raises((TypeError, ValueError), match="row"):
        getattr(actions, method)(row.int(), *second)
    if second:
        with pytest.raises((TypeError, ValueError), match=r"noise|action"):
            getattr(actions, method)(row, torch.zeros(3, 1))


# --- Targets --------------------------------------------------------------------------


def policy_for() -> Any:
    """Return a small policy with seeded weights."""
    torch.manual_seed(0)
    return make_sac_policy(SEEN, BOX, hidden=8)


def remembered(policy: Any) -> Batch:
    """Return a batch whose first step ended in a termination."""
    source = generator(5)
    obs, next_obs = torch.randn(2, N, 4, generator=source)
    action = policy.act(obs, torch.randn(N, 2, generator=source)).detach()
    reward, discount = torch.rand(2, N, generator=source)
    discount[0] = 0.0
    rest = torch.ones(N), torch.arange(N)
    return Batch(obs, action, reward, next_obs, discount, *rest)


@pytest.mark.equation("soft-target")
def test_the_target_adds_minus_alpha_log_pi() -> None:
    policy = policy_for()
    batch, algorithm, found = remembered(policy), algorithm_for(policy), {}
    target = algorithm.target.network
    for alpha in (0.0, 0.5, 2.0):
        policy.log_alpha.data.fill_(alpha).log_()
        error = algorithm.error(batch, generator(1))
        found[alpha] = error.td_error + error.value
        torch.testing.assert_close(found[alpha], algorithm.aim(batch, generator(1)))
    assert not found[alpha].requires_grad
    action, log_prob = policy.draw(batch.next_obs, generator(1))
    least = target(batch.next_obs, action).amin(0)
    plain = batch.reward + batch.discount * least
    torch.testing.assert_close(found[0.0], plain.detach())
    for alpha in (0.5, 2.0):
        bonus = -alpha * batch.discount * log_prob
        torch.testing.assert_close(found[alpha], (plain + bonus).detach())
        # After the termination there is none.
        assert found[alpha][0] == batch.reward[0]


def test_what_follows_a_termination_may_hold_anything() -> None:
    policy = policy_for()
    batch, error = remembered(policy), algorithm_for(policy).error
    wanted = error(batch, generator(1)).td_error
    batch.next_obs[0] = math.nan
    got = error(batch, generator(1)).td_error
    assert torch.equal(got[0], wanted[0])
    assert got.isfinite().all()
    batch.next_obs[1] = math.nan
    with pytest.raises(ValueError, match="must be finite"):
        error(batch, generator(1))


@pytest.mark.equation("soft-target")
def test_without_temperature_and_deviation_it_is_the_target_of_td3(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = policy_for()
    batch, algorithm = remembered(policy), algorithm_for(policy)
    policy.log_alpha.data.fill_(-math.inf)
    monkeypatch.setattr(torch, "randn", lambda *size, **_: torch.zeros(size))
    error = algorithm.error(batch, generator())

    class Mean(nn.Module):
        def forward(self, state: Tensor) -> Tensor:
            greedy: Tensor = policy.act(state, 0.0)
            return greedy

    def deterministic(critics: Any) -> Policy:
        return Policy(ActorCritics(Mean(), critics), policy.actions)

    td3 = TwinDelayed(deterministic(policy.critics), TD3Config(smoothing=0.0))
    td3.target.network = deterministic(algorithm.target.network)
    wanted = td3.error(batch, generator())
    torch.testing.assert_close(error.td_error, wanted.td_error, rtol=0, atol=1e-5)
    torch.testing.assert_close(error.loss, wanted.loss, rtol=1e-5, atol=1e-5)


# --- The learner ----------------------------------------------------------------------


def trained(**changes: Any) -> OffPolicy:
    """Return a learner that has a buffer and has begun to learn."""
    return filled(learner_for(replace(SMALL, **changes)))


def test_each_step_moves_its_own_weights_only() -> None:
    assert_each_step_moves_its_own_weights(trained())


@pytest.mark.parametrize("interval", [1, 3])
def test_targets_move_only_when_they_should(interval: int) -> None:
    learner: Any = trained(target_interval=interval)
    target, source = learner.algorithm.target.network, learner.policy.critics
    learner.updates = 0
    for update in range(1, 7):
        before = weights(target)
        learner.learn()
        due = update % interval == 0
        assert moved(before, target) == due
        if due:
            for x, old, new in zip(
                weights(target), before, weights(source), strict=True
            ):
                torch.testing.assert_close(x, old + 0.005 * (new - old))
    assert not any(x.requires_grad for x in target.parameters())


@pytest.mark.equation("soft-actor")
def test_the_actors_gradient_is_that_of_the_soft_value() -> None:
    learner = trained(tune=False, temperature=0.3)
    policy: Any = learner.policy
    obs = learner.sample().obs
    state = learner.generator.get_state()
    action, log_prob = policy.draw(obs, learner.generator)
    loss = 0.3 * log_prob - policy.critics(obs, action).amin(0)
    wanted = torch.autograd.grad(loss.mean(), list(policy.network.parameters()))
    learner.generator.set_state(state)
    learner.climb(obs)
    for parameter, grad in zip(policy.network.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=1e-4, atol=1e-6)


@pytest.mark.equation("soft-actor")
@given(
    seed=st.integers(0, 2**32 - 1),
    critics=st.integers(1, 3),
    alpha=st.floats(0.01, 2),
    stretch=st.floats(0.5, 20),
)
def test_an_ascent_has_the_slopes_of_torchs_own_density(
    seed: int, critics: int, alpha: float, stretch: float
) -> None:
    torch.manual_seed(seed)
    policy: Any = make_sac_policy(SEEN, BOX, 8, critics).double()
    changes = {"temperature": alpha, "tune": False, "num_critics": critics}
    algorithm = algorithm_for(policy, **changes)
    obs = torch.randn(N, 4, dtype=torch.float64)
    with torch.no_grad():
        # Up to deviations that are clamped and draws close to the bounds.
        policy.network.net[-1].weight.mul_(stretch)
    parameters, found = list(policy.network.parameters()), []
    loss = algorithm.ascent(obs, generator(seed))
    entropy = algorithm.temperature.entropies[-1]
    found.append([loss, entropy, *torch.autograd.grad(loss, parameters)])
    # The same from torch's density of the transformed Gaussian.
    mu, log_sigma = policy.network(obs).chunk(2, -1)
    u = mu + log_sigma.exp() * torch.randn(N, 2, generator=generator(seed))
    low, high = torch.tensor([LOW, HIGH], dtype=torch.float64)
    middle, half = (low + high) / 2, (high - low) / 2
    density = Normal(mu, log_sigma.exp()).log_prob(u)
    density = density - TanhTransform().log_abs_det_jacobian(u, u.tanh()) - half.log()
    q, log_prob = policy.critics(obs, middle + half * u.tanh()), density.sum(-1)
    loss = (alpha * log_prob - q.amin(0)).mean()
    entropy = -log_prob.mean().detach()
    found.append([loss, entropy, *torch.autograd.grad(loss, parameters)])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-8)


def test_a_temperature_that_is_fixed_stays() -> None:
    learner = trained(tune=False, temperature=0.1)
    assert learner.policy.log_alpha.exp().item() == pytest.approx(0.1)
    row = learner.iterate()
    assert row["charts/alpha"] == pytest.approx(0.1)
    without = trained(tune=False, temperature=0.0)
    assert without.iterate()["charts/alpha"] == 0.0
    with pytest.raises(ValueError, match="temperature must be above 0"):
        SACConfig(temperature=0.0)


@pytest.mark.parametrize(("target", "rises"), [(5.0, True), (-20.0, False)])
def test_the_temperature_follows_its_target_in_a_run(
    target: float, rises: bool
) -> None:
    learner = learner_for(replace(SMALL, target_entropy=target))
    alphas = [learner.iterate()["charts/alpha"] for _ in range(5)]
    assert (alphas[-1] > alphas[0]) == rises


def test_deviations_are_kept_away_from_zero_and_from_absurdly_large_numbers() -> None:
    rows = GaussianRows(3, 8, 2)
    for wild, log_sigma in ((100.0, 2.0), (-100.0, -5.0)):
        torch.nn.init.constant_(rows.net[-1].bias, wild)
        mu, found = rows(torch.zeros(1, 3)).chunk(2, -1)
        assert found.tolist() == [[log_sigma] * 2]
        assert (mu.abs() > 90).all()


def test_metrics_speak_in_units_of_minus_one_to_one() -> None:
    learner: Any = learner_for(SMALL)
    rows = [learner.iterate() for _ in range(2)]
    assert math.isnan(rows[0]["charts/entropy"]), "nothing was learned yet"
    row = rows[1]
    # An untrained policy is nearly uniform: log 2 in a box from -1 to 1.
    assert 0.4 < row["charts/entropy"] < math.log(2)
    assert set(row) > {"charts/alpha", "charts/episodic_return", "losses/loss"}
    temperature = learner.algorithm.temperature
    assert temperature.target == pytest.approx(-1 + math.log(2))
    assert not temperature.entropies, "the next row has a mean of its own"


RESUMED = [
    *({}, {"num_envs": 2, "train_interval": 2}, {"tune": False, "temperature": 0.2}),
    {"hold": 4, "num_steps": 3, "priority_exponent": 0.5, "anneal": True},
]


@pytest.mark.parametrize("changes", RESUMED, ids=str)
def test_a_resumed_run_is_the_same_bit_for_bit(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    config = replace(SMALL, **changes)
    policy = assert_resumed(lambda: learner_for(config), tmp_path / "run")
    assert torch.equal(load(tmp_path / "run").log_alpha, policy.log_alpha)


def test_settings_by_environment() -> None:
    assert sac_settings("unknown") == SACConfig()
    assert sac_settings(PENDULUM).total_steps == 10_000


def test_spaces_that_do_not_fit_are_refused() -> None:
    for space, words in (
        (spaces.Box(-np.inf, np.inf, (2,)), "have bounds below 4.3e.09"),
        (
            spaces.Box(np.float32([-1, 1]), np.float32([1, 1])),
            "have bounds that differ",
        ),
        (spaces.Box(-1, 1, (2, 2)), "have one dimension"),
        (spaces.MultiDiscrete([2, 2]), "be a Box"),
        (spaces.Discrete(2), "be a Box, or Discrete for discrete SAC"),
    ):
        with pytest.raises(ValueError, match=f"action_space must {words}"):
            make_sac_policy(SEEN, space)


def test_it_learns_to_go_where_the_reward_is() -> None:
    """Learn, in an environment of one step, the number that is asked for."""
    config = replace(
        SMALL,
        total_steps=1500,
        hidden=32,
        learning_rate=3e-3,
        iteration_steps=250,
        batch_size=64,
        buffer_size=1500,
        learning_starts=100,
        target_entropy=-3.0,
    )
    envs = gym.vector.SyncVectorEnv([Aim])
    spaces_of = envs.single_observation_space, envs.single_action_space
    wanted = torch.tensor([[-0.5], [0.0], [0.5]])

    def check(seed: int) -> None:
        torch.manual_seed(seed)
        policy = make_sac_policy(*spaces_of, 32)
        fit(SAC(policy, envs, replace(config, seed=seed)), progress=False)
        assert (policy.act(wanted, 0.0) - (2 + wanted)).abs().max() < 0.25

    assert_for_most_seeds(check)


class Aim(gym.Env):  # type: ignore[type-arg]
    """One step: the closer the action is to two plus the observation, the better."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Box(0, 4, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.obs = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.obs, {}

    def step(self, action: Any) -> Any:
        reward = -float((action[0] - 2 - self.obs[0]) ** 2)
        return self.obs, reward, True, False, {}


# --- Models of the user's -------------------------------------------------------------


def models_for(env: str) -> dict[str, Any]:
    """Return an actor and a critic of the user's for an environment."""
    torch.manual_seed(3)
    if env == PENDULUM:
        actor = SquashedGaussianActor(3, [-2.0], [2.0], 8)
        return {"actor": actor, "critic": ActionValue(3, 1, 8)}
    inner = SquashedGaussianActor(5, LOW, HIGH, 8)
    return {
        "actor": TwoStateActor(inner),
        "critic": TwoStateCritic(ActionValue(5, 2, 8)),
    }


@pytest.mark.parametrize("env", [PENDULUM, "SACTwoStates-v0"])
def test_models_of_the_users_train_save_and_load(env: str, tmp_path: Path) -> None:
    assert_models_train(env, partial(models_for, env), tmp_path / "run")


def test_an_actor_of_the_users_draws_from_the_learners_seed() -> None:
    runs = []
    for luck in (1, 2):
        learner = learner_for(**models_for(PENDULUM))
        torch.manual_seed(luck)
        fit(learner, progress=False)
        runs.append(weights(learner.policy))
    assert all(map(torch.equal, *runs))


def test_our_own_density_is_that_of_the_contract_model() -> None:
    policy = policy_for()
    actor = SquashedGaussianActor(4, LOW, HIGH, 8)
    actor.net.load_state_dict(policy.network.net.state_dict())
    obs = torch.randn(N, 4, generator=generator())
    action, found = policy.draw(obs, generator(1))
    log_prob = actor(obs, action)[1].squeeze(-1)
    torch.testing.assert_close(found, log_prob, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(actor.mode(obs), policy.act(obs, 0.0))


def test_the_command_line_trains_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--total-steps", "100", "--iteration-steps", "50", "--batch-size", "16"]
    small += ["--learning-starts", "50", "--target-entropy", "-2", "--no-anneal"]
    main(["sac", "--env", PENDULUM, "--name", "short", *small])
    said = capsys.readouterr().out
    assert "return of 20 episodes without noise: -" in said
    assert (tmp_path / "runs/short/checkpoint.pt").exists()
    policy = load(tmp_path / "runs/short")
    assert policy.act(torch.zeros(1, 3), 0.0).shape == (1, 1)
    main(["sac", "--resume", "runs/short"])
    assert "checkpoint:" in capsys.readouterr().out


class NotReparametrised(SquashedGaussianActor):
    """An actor that draws without a gradient."""

    def forward(self, state: Tensor, action: Tensor | None = None) -> Any:
        drawn = super().forward(state, action)[0].detach()
        return super().forward(state, drawn)


def test_models_that_break_the_contract_are_refused() -> None:
    bad = NotReparametrised(3, [-2.0], [2.0], 8)
    with pytest.raises(ContractError, match="action"):
        train("SAC", PENDULUM, actor=bad, critic=ActionValue(3, 1, 8), **SHORT)
    good = models_for(PENDULUM)["actor"]
    with pytest.raises(ContractError, match="critic"):
        train("SAC", PENDULUM, actor=good, critic=QNetwork(3, 1, 8), **SHORT)
    with pytest.raises(ValueError, match="actor and critic"):
        train("SAC", PENDULUM, actor=good, **SHORT)
