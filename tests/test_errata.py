"""The page of errata: each entry has its evidence.

Every test writes the mistake out in a few lines of its own and shows what it does.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium.spaces import Box, Discrete
from torch.distributions import Categorical, MultivariateNormal, Normal

from literate_rl.data.agents import Window
from literate_rl.nets.recurrent import make_recurrent_policy


def grid(low: float, high: float) -> tuple[torch.Tensor, float]:
    """A fine grid for integrals, and the distance of its points."""
    x = torch.linspace(low, high, 200_001, dtype=torch.float64)
    return x, (x[1] - x[0]).item()


# --- The page -------------------------------------------------------------------------


def test_the_start_page_says_how_many_they_are():
    docs = Path(__file__).parents[1] / "docs"
    number = (docs / "errata.md").read_text("utf-8").count("\n```{errata-tests}")
    start = (docs.parent / "index.md").read_text("utf-8")
    assert f"{number} mistakes" in start


# --- Estimates along a trajectory -----------------------------------------------------


@pytest.mark.erratum("gae-overwrites-its-input")
def test_in_place_mask_corrupts_values_that_share_memory():
    values = torch.arange(1.0, 7.0)
    value, next_value = values[:-1], values[1:]
    done = torch.tensor([0.0, 0, 1, 0, 0])
    next_value *= 1 - done
    assert value.tolist() == [1.0, 2.0, 3.0, 0.0, 5.0]


# --- Models of policies ---------------------------------------------------------------


@pytest.mark.erratum("squashed-twice")
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_given_action_must_be_unsquashed_before_it_is_judged(scale):
    """The mean score of a policy under itself is zero; Machin's actor misses it."""
    mu, sigma = 0.8, 0.8
    u, step = grid(mu - 8 * sigma, mu + 8 * sigma)
    density = Normal(mu, sigma).log_prob(u).exp() * step
    action = scale * u.tanh()

    correct = (
        torch.atanh((action / scale).clamp(-1 + 1e-12, 1 - 1e-12)) - mu
    ) / sigma**2
    assert (density * correct).sum().item() == pytest.approx(0.0, abs=1e-6)

    as_if_not_squashed = (action - mu) / sigma**2
    assert abs((density * as_if_not_squashed).sum().item()) > 0.3


@pytest.mark.erratum("saturated-jacobian")
def test_small_constant_saturates_the_jacobian():
    u = torch.tensor([10.0, 20.0])
    saturated = torch.log(1 - u.tanh().square() + 1e-6)
    stable = 2 * (math.log(2) - u - F.softplus(-2 * u))
    assert saturated.tolist() == pytest.approx([-13.8, -13.8], abs=0.05)
    assert stable.tolist() == pytest.approx([-18.6, -38.6], abs=0.05)


@pytest.mark.erratum("entropy-before-the-squash")
def test_entropy_of_the_unsquashed_normal_grows_for_ever():
    entropies = []
    for sigma in (1.0, 3.0, 10.0):
        base = Normal(torch.tensor(0.0).double(), torch.tensor(sigma).double())
        u, step = grid(-8 * sigma, 8 * sigma)
        log_density = base.log_prob(u) - 2 * (math.log(2) - u - F.softplus(-2 * u))
        squashed = -(base.log_prob(u).exp() * log_density).sum() * step
        assert squashed <= math.log(2.0)
        entropies.append((base.entropy().item(), squashed.item()))
    before, after = zip(*entropies, strict=True)
    assert list(before) == sorted(before)
    assert list(after) == sorted(after, reverse=True)


@pytest.mark.erratum("categorical-without-rsample")
def test_categorical_actions_cannot_be_reparameterised():
    dist = Categorical(logits=torch.zeros(3, requires_grad=True))
    assert not dist.has_rsample
    assert not dist.sample().requires_grad


@pytest.mark.erratum("entropy-not-summed")
def test_entropy_of_a_vector_is_the_sum_of_its_parts():
    entropy = Normal(torch.zeros(4, 3), torch.ones(4, 3)).entropy()
    assert entropy.shape == (4, 3)
    noise = MultivariateNormal(torch.zeros(4, 3), torch.eye(3))
    torch.testing.assert_close(entropy.sum(1), noise.entropy())


@pytest.mark.erratum("inverse-cut-off")
def test_a_clamped_inverse_spoils_what_a_saturated_policy_thinks():
    mu, sigma = torch.tensor(9.0).double(), torch.tensor(0.3).double()
    u = torch.linspace(8.0, 10.0, 21).double()
    # In float64 there are digits enough, and only the clamp does harm.
    cut_off = torch.atanh(u.tanh().clamp(-1 + 1e-6, 1 - 1e-6))
    assert cut_off.tolist() == pytest.approx([7.25] * 21, abs=0.01)
    log_prob = Normal(mu, sigma).log_prob
    assert (log_prob(u) - log_prob(cut_off)).min() > 10, "large and negative"


@pytest.mark.erratum("width-left-out")
def test_without_the_width_of_the_box_a_density_has_another_mass():
    half_width, sigma = 3.0, 0.5
    action, step = grid(-half_width + 1e-9, half_width - 1e-9)
    u = torch.atanh(action / half_width)
    stable = 2 * (math.log(2) - u - F.softplus(-2 * u))
    log_density = Normal(0.0, sigma).log_prob(u) - stable
    right = (log_density - math.log(half_width)).exp().sum().item() * step
    assert right == pytest.approx(1.0, abs=1e-4)
    assert log_density.exp().sum().item() * step == pytest.approx(half_width, abs=1e-3)


@pytest.mark.erratum("first-bounds-for-all")
def test_bounds_of_the_first_number_are_no_bounds_for_the_second():
    low, high = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 1.0])
    target = torch.tensor([[0.5, 1.7], [0.5, -1.2]])
    by_the_first = target.clamp(low[0].item(), high[0].item())
    assert not ((by_the_first >= low) & (by_the_first <= high)).all()
    each = torch.maximum(torch.minimum(target, high), low)
    assert ((each >= low) & (each <= high)).all()


# --- Rainbow --------------------------------------------------------------------------


def gradient_of_wrong_atom(log) -> float:
    """Return the gradient of a network that is sure of the last atom, wrongly."""
    logit = torch.tensor([0.0, 0.0, 15.0], requires_grad=True)
    return torch.autograd.grad(-log(logit)[0], logit)[0][2].item()


@pytest.mark.erratum("c51-cannot-unlearn")
def test_a_probability_that_is_held_has_no_gradient():
    low, high = 1e-5, 1 - 1e-5
    assert gradient_of_wrong_atom(lambda z: z.softmax(-1).clamp(low, high).log()) == 0
    for small, left in ((1e-8, 0.968), (1e-6, 0.234)):
        found = gradient_of_wrong_atom(lambda z, x=small: (z.softmax(-1) + x).log())
        assert found == pytest.approx(left, abs=1e-3)
    assert gradient_of_wrong_atom(lambda z: z.log_softmax(-1)) > 0.999


@pytest.mark.erratum("c51-mass-lost")
def test_a_piece_on_an_atom_gets_weight_zero_from_both_sides():
    def mass(value, low, high):
        atoms, margin = 51, 1e-6
        held = torch.tensor(value).clamp(low + margin, high - margin)
        place = (held - low) / ((high - low) / (atoms - 1))
        lower, upper = place.floor(), place.ceil()
        return ((upper - place) + (place - lower)).item()

    assert mass(0.3, -10, 10) == pytest.approx(1)
    assert mass(0.0, -10, 10) == 0, "on an atom in between"
    # The margin helps at the lower end; at the upper one float32 does not see it.
    assert mass(-10.0, -10, 10) == pytest.approx(1)
    assert mass(10.0, -10, 10) == mass(100.0, 0, 100) == 0


@pytest.mark.erratum("noise-of-full-rank")
def test_factorised_noise_has_rank_one_and_another_deviation_of_biases():
    each = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.linalg.matrix_rank(torch.outer(each[0], each[1])) == 1
    assert torch.linalg.matrix_rank(each) == 8
    assert 0.5 / math.sqrt(51) == pytest.approx(0.070, abs=1e-3)
    assert 0.5 / math.sqrt(512) == pytest.approx(0.022, abs=1e-3)


@pytest.mark.erratum("one-noise-for-two")
def test_what_the_noise_flatters_is_chosen_and_overrated():
    """Actions of equal worth, 0: the value of the best must be 0."""
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randn(2, 10_000, 4, generator=generator)
    best = one.argmax(-1, keepdim=True)
    assert one.gather(-1, best).mean() > 0.9
    assert other.gather(-1, best).mean().abs() < 0.05


# --- Policies that remember -----------------------------------------------------------


@pytest.mark.erratum("steps-no-window-trains")
def test_burn_in_and_the_last_steps_of_a_window_are_never_trained():
    """Only the last of 250 steps pays; the windows begin at 0, 100 and 150."""
    steps, size, burn_in, n, discount = 250, 100, 20, 5, 0.99
    windows = [range(start, start + size) for start in (0, 100, steps - size)]
    trained = {t for window in windows for t in window[burn_in:-n]}
    assert not trained & set(range(burn_in)), "the first actions"
    assert not trained & set(range(steps - n, steps)), "the end"

    def learn(times):
        value = np.zeros(steps + n)
        for t in sorted(times, reverse=True):
            paid = discount ** (steps - 1 - t) if t + n >= steps else 0.0
            value[t] = paid + discount**n * value[t + n]
        return value

    assert not learn(trained).any(), "the reward enters no target"
    assert learn(set(range(steps)))[burn_in] == pytest.approx(0.99**229)


@pytest.mark.erratum("epoch-without-data")
def test_a_shift_of_windows_as_long_as_the_rollout_leaves_none():
    processes, frames = 2, 8

    def shifted(window):
        starts = np.arange(0, processes * frames, window)
        kept = starts[(starts + window) % frames != 0]
        return (kept + window // 2).tolist()

    assert shifted(4) == [2, 10], "half of the steps are left out"
    assert shifted(8) == []


@pytest.mark.erratum("state-read-too-late")
def test_a_generator_reads_what_was_written_since():
    def shared():
        return [(torch.ones(1, 1, 4), torch.ones(1, 1, 4)) for _ in range(2)]

    for read, expected in ((iter, 9.0), (tuple, 1.0)):
        buffers = shared()
        at_start = read(torch.cat(parts, dim=1) for parts in zip(*buffers, strict=True))
        # The buffer is free again, and an actor begins its next unroll.
        buffers[0][0].fill_(9.0)
        output, _ = tuple(at_start)
        assert output[0, :, 0].tolist() == [expected, 1.0]


@pytest.mark.erratum("observation-read-twice")
def test_a_value_that_moves_the_memory_changes_the_next_rollout():
    torch.manual_seed(0)
    policy = make_recurrent_policy(Box(-1.0, 1.0, (3,)), Discrete(2))
    state = policy.start(1)
    with torch.no_grad():
        for obs in torch.randn(4, 1, 3):
            state = policy.states(Window(obs, state))
        following = torch.randn(1, 3)
        last = policy.value(Window(following, state))
        moved = policy.states(Window(following, state))
        first = policy.value(Window(following, moved))
        assert (first - last).abs() > 1e-2, "of one observation, without a step between"
        torch.testing.assert_close(policy.value(Window(following, state)), last)


@pytest.mark.erratum("value-before-the-last-step")
def test_the_value_before_the_limit_counts_its_own_reward_again():
    """The step before the limit pays 1 and leads to where nothing is paid."""
    discount, behind = 0.9, 0.0
    value = 0.0
    for _ in range(500):
        value = 1 + discount * value
    assert value == pytest.approx(10.0)
    assert 1 + discount * behind == 1.0
