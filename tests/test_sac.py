"""SAC: the squashed density, soft values, the temperature, and the loop."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from soft import BOX, HIGH, LOW, SEEN, N, algorithm_for, climb, generator, remembered
from torch import Tensor, nn
from torch.distributions import Normal, TanhTransform

from literate_rl.apps.training import make_learner
from literate_rl.learners.sac import (
    GaussianRows,
    SACConfig,
    SquashedGaussian,
    entropy_scale,
    make_sac_policy,
)
from literate_rl.maths.sac import temperature_error

PENDULUM, CARTPOLE = "Pendulum-v1", "CartPole-v1"


def row_of(*log_sigma: float, mu: float = 0.3) -> Tensor:
    """Return one row in float64: equal means and these log standard deviations."""
    return torch.tensor([mu] * len(log_sigma) + [*log_sigma], dtype=torch.float64)


def drawn(row: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions and their log-densities from torch's own parts."""
    mu, log_sigma = row.chunk(2, -1)
    u = mu + log_sigma.exp() * noise
    low, high = torch.tensor([LOW, HIGH], dtype=row.dtype)
    middle, half = (low + high) / 2, (high - low) / 2
    density = Normal(mu, log_sigma.exp()).log_prob(u)
    density = density - TanhTransform().log_abs_det_jacobian(u, u.tanh()) - half.log()
    return middle + half * u.tanh(), density.sum(-1)


# --- The squashed Gaussian ------------------------------------------------------------


@pytest.mark.equation("squashed-density")
@given(st.integers(0, 10_000))
def test_it_is_the_transformed_distribution(seed):
    actions, source = SquashedGaussian(LOW, HIGH), generator(seed)
    # Not too far out: there the way back from the action loses digits.
    row = torch.randn(N, 4, generator=source, dtype=torch.float64).clamp(-1, 1)
    noise = torch.randn(N, 2, generator=source, dtype=torch.float64).clamp(-2, 2)
    action, log_prob = actions.draw(row, noise)
    other, wanted = drawn(row, noise)
    torch.testing.assert_close(action, other)
    torch.testing.assert_close(actions.log_prob(row, action), wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(log_prob, wanted, rtol=0, atol=1e-5)
    assert torch.equal(actions.choose(row, noise), action)
    # The same in float32, as an agent computes it.
    _, small = actions.draw(row.float(), noise.float())
    torch.testing.assert_close(small, wanted.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_density_is_finite_at_the_bounds(dtype):
    actions = SquashedGaussian(LOW, HIGH)
    row = row_of(-5.0, 2.0).to(dtype).requires_grad_()
    low, high = torch.tensor([LOW, HIGH], dtype=dtype)
    found = [actions.log_prob(row, x) for x in (low, high)]
    # A draw that rounds to the bound is judged by its u, however far out it is.
    action, log_prob = actions.draw(row, torch.full((2,), 1000.0, dtype=dtype))
    assert (action <= high).all()
    found.append(log_prob)
    for log_prob in found:
        (grad,) = torch.autograd.grad(log_prob, row)
        assert torch.cat([grad, log_prob[None]]).isfinite().all()


@pytest.mark.parametrize("log_sigma", [-5.0, 0.0, 2.0])
def test_the_entropy_is_the_mean_of_minus_the_log_density(log_sigma):
    actions, row = SquashedGaussian(LOW, HIGH), row_of(log_sigma, -0.5, mu=0.4)
    noise = torch.randn(200_000, 2, generator=generator(), dtype=torch.float64)
    _, log_prob = actions.draw(row.expand(len(noise), -1), noise)
    error = log_prob.std().item() / math.sqrt(len(noise))
    entropy = actions.entropy(row).item()
    assert entropy == pytest.approx(-log_prob.mean().item(), abs=5 * error)


def test_each_dimension_has_its_own_bounds():
    actions, row = SquashedGaussian(LOW, HIGH), torch.zeros(2, 4)
    far = torch.tensor([[50.0, 50.0], [-50.0, -50.0]])
    found = actions.to_env(actions.choose(row, far))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [HIGH, LOW], rtol=1e-6)
    np.testing.assert_allclose(actions.to_env(9 + far)[0], HIGH)


def test_noise_is_held_for_so_many_steps():
    held = SquashedGaussian(LOW, HIGH, hold=3).noise(7, 2, generator())
    # Three draws for seven steps: rows 0 to 2 share the first, and so on.
    draws = SquashedGaussian(LOW, HIGH).noise(3, 2, generator())
    assert torch.equal(held, draws[torch.tensor([0, 0, 0, 1, 1, 1, 2])])


def test_deviations_are_kept_away_from_zero_and_from_absurdly_large_numbers():
    rows = GaussianRows(3, 8, 2)
    for wild, log_sigma in ((100.0, 2.0), (-100.0, -5.0)):
        nn.init.constant_(rows.net[-1].bias, wild)
        mu, found = rows(torch.zeros(1, 3)).chunk(2, -1)
        assert found.tolist() == [[log_sigma] * 2]
        assert (mu.abs() > 90).all()


def test_spaces_without_room_for_a_density_are_refused():
    with pytest.raises(ValueError, match="bounds that differ"):
        make_sac_policy(SEEN, spaces.Box(np.float32([-1, 1]), np.float32([1, 1])))
    with pytest.raises(ValueError, match="bounds below"):
        make_sac_policy(SEEN, spaces.Box(-np.inf, np.inf, (2,)))


# --- Soft values and the temperature --------------------------------------------------


@pytest.mark.equation("temperature")
@pytest.mark.erratum("log-alpha")
@pytest.mark.parametrize("entropy", [-2.0, -1.0, 0.5])
@pytest.mark.parametrize("start", [0.01, 3.0])
def test_the_temperature_moves_towards_the_target(entropy, start):
    log_alpha = torch.tensor(start).double().log().requires_grad_()
    seen = torch.full((N,), entropy).double().requires_grad_()
    loss = temperature_error(log_alpha, seen, -1.0)
    grad, none = torch.autograd.grad(loss, [log_alpha, seen], allow_unused=True)
    assert none is None
    # Gradient descent lowers it where the entropy is above its target.
    assert grad.item() == pytest.approx(entropy + 1.0)
    # With alpha for its logarithm only the length of the step differs.
    by_alpha = temperature_error(log_alpha.exp(), seen, -1.0)
    (other,) = torch.autograd.grad(by_alpha, log_alpha)
    assert other.item() == pytest.approx(start * grad.item())


@pytest.mark.equation("entropy-unit")
def test_the_unit_of_the_target():
    unit, target = entropy_scale(BOX, None)
    assert unit == pytest.approx(math.log(2) + math.log(0.25))
    assert target == pytest.approx(unit - 2)
    assert entropy_scale(BOX, -3.0)[1] == pytest.approx(unit - 3)
    # The same policy, in a box of another width: log h is all that changes.
    narrow, broad = SquashedGaussian([-1.0] * 2, [1.0] * 2), SquashedGaussian(LOW, HIGH)
    row = row_of(0.3, -0.4)
    difference = broad.entropy(row) - narrow.entropy(row)
    assert difference.item() == pytest.approx(unit, abs=1e-6)


# --- Targets and slopes ---------------------------------------------------------------


@pytest.mark.equation("soft-target")
@pytest.mark.equation("soft-value")
@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_the_target_adds_minus_alpha_log_pi(alpha):
    torch.manual_seed(0)
    policy = make_sac_policy(SEEN, BOX, 8)
    batch = remembered(policy.act(torch.randn(N, 4), torch.randn(N, 2)).detach())
    algorithm = algorithm_for(policy)
    policy.log_alpha.data.fill_(alpha).log_()
    error = algorithm.error(batch, generator(1))
    aim = error.td_error + error.value
    assert not aim.requires_grad
    action, log_prob = policy.draw(batch.next_obs, generator(1))
    # The less optimistic critic is believed; after the termination there is no bonus.
    least = torch.minimum(*algorithm.target.network(batch.next_obs, action))
    wanted = batch.reward + batch.discount * (least - alpha * log_prob)
    torch.testing.assert_close(aim, wanted.detach())
    each = policy.critics(batch.obs, batch.action) - aim
    torch.testing.assert_close(error.loss, each.square().sum(0) / 2)


@pytest.mark.equation("soft-actor")
@given(
    seed=st.integers(0, 2**32 - 1),
    critics=st.integers(1, 3),
    alpha=st.floats(0.01, 2),
    stretch=st.floats(0.5, 20),
)
def test_an_ascent_has_the_slopes_of_torchs_own_density(seed, critics, alpha, stretch):
    torch.manual_seed(seed)
    policy: Any = make_sac_policy(SEEN, BOX, 8, critics).double()
    algorithm = algorithm_for(policy, temperature=alpha, num_critics=critics)
    obs = torch.randn(N, 4, dtype=torch.float64)
    with torch.no_grad():
        # Up to deviations that are clamped and draws close to the bounds.
        policy.network.net[-1].weight.mul_(stretch)
    parameters = [*policy.network.parameters(), policy.log_alpha]
    loss = algorithm.ascent(obs, generator(seed))
    entropy = algorithm.temperature.entropies[-1]
    found = [loss, entropy, *torch.autograd.grad(loss, parameters)]
    # The same from torch's density of the transformed Gaussian.
    noise = torch.randn(N, 2, generator=generator(seed))
    action, log_prob = drawn(policy.network(obs), noise)
    q = policy.critics(obs, action)
    loss = (policy.log_alpha.exp().detach() * log_prob - q.amin(0)).mean()
    entropy = -log_prob.mean().detach()
    # The temperature's own step, which nothing else moves.
    loss = loss + policy.log_alpha * (entropy - entropy_scale(BOX, None)[1])
    wanted = [loss, entropy, *torch.autograd.grad(loss, parameters)]
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-8)


# --- The loop -------------------------------------------------------------------------


def learner_for(env: str = PENDULUM, **changes: Any) -> Any:
    """Return a learner with seeded weights."""
    torch.manual_seed(0)
    small = {"hidden": 8, "batch_size": 16, "learning_starts": 40}
    config = SACConfig(**{**small, "iteration_steps": 25, **changes})
    return make_learner("sac", env, config, {}, fast="plain")


@pytest.mark.parametrize("env", [PENDULUM, CARTPOLE])
def test_each_step_moves_its_own_weights_only(env):
    learner = learner_for(env, learning_starts=75)
    for _ in range(2):
        learner.iterate()
    policy, older = learner.policy, learner.algorithm.target.network
    batch = learner.sample()
    loss = learner.error(batch, learner.generator).loss.mean()
    target = copy.deepcopy(older.state_dict())
    for step, wanted in (
        (lambda: learner.descend(loss.backward, learner.parameters), {"critics"}),
        (lambda: climb(learner, batch.obs), {"network", "log_alpha"}),
    ):
        before = [x.detach().clone() for x in policy.parameters()]
        step()
        after = zip(policy.named_parameters(), before, strict=True)
        moved = [name for (name, x), y in after if not torch.equal(x, y)]
        assert {name.partition(".")[0] for name in moved} == wanted
    torch.testing.assert_close(older.state_dict(), target, rtol=0, atol=0)
    (entropy,) = learner.algorithm.temperature.entropies
    assert not entropy.requires_grad, "they would pile up"


@pytest.mark.parametrize("env", [PENDULUM, CARTPOLE])
@pytest.mark.parametrize("rises", [True, False])
def test_the_temperature_follows_its_target_in_a_run(env, rises):
    learner = learner_for(env, target_entropy=5.0 if rises else -20.0)
    alphas = [learner.iterate()["charts/alpha"] for _ in range(5)]
    assert (alphas[-1] > alphas[0]) == rises


def test_a_temperature_that_is_fixed_stays():
    for temperature in (0.1, 0.0):
        learner = learner_for(tune=False, temperature=temperature)
        for _ in range(3):
            row = learner.iterate()
        assert row["charts/alpha"] == pytest.approx(temperature)
    with pytest.raises(ValueError, match="temperature"):
        SACConfig(temperature=0.0)


def test_metrics_speak_in_units_of_minus_one_to_one():
    learner = learner_for()
    first, row = (learner.iterate()["charts/entropy"] for _ in range(2))
    assert math.isnan(first), "nothing was learned yet"
    # An untrained policy is nearly uniform: log 2 in a box from -1 to 1.
    assert 0.4 < row < math.log(2)
    assert not learner.algorithm.temperature.entropies, "the next row has its own mean"
