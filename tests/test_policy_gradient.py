"""The policy gradient against sums over all actions and all episodes, in float64."""

import itertools
import math
from random import Random

import pytest
import torch
from fuzz import assert_held, illegal_calls
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical

from literate_rl.maths.policy_gradient import (
    categorical_entropy,
    categorical_log_prob,
    optimal_baseline,
    policy_gradient_error,
)

sizes = st.tuples(st.integers(1, 6), st.integers(1, 5))
seeds = st.integers(0, 9999)


def randn(*size: int, seed: int) -> Tensor:
    """Return normal numbers in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*size, generator=generator, dtype=torch.float64)


def log_softmax_by_hand(row: list[float]) -> list[float]:
    """The definition, number by number."""
    top = max(row)
    total = math.log(sum(math.exp(z - top) for z in row)) + top
    return [z - total for z in row]


def one_action_each(logit: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, logit.shape[1], (len(logit),), generator=generator)


def score(logit: Tensor) -> Tensor:
    """Return the score of every action by autograd, row by row, (N, N)."""
    leaf = logit.repeat(len(logit), 1).requires_grad_()
    log_prob = categorical_log_prob(leaf, torch.arange(len(logit)))
    return torch.autograd.grad(log_prob.sum(), leaf)[0]


# --- Log-probabilities ----------------------------------------------------------------


@pytest.mark.equation("categorical-log-prob")
@given(sizes, seeds)
def test_log_prob_matches_its_definition(size, seed) -> None:
    logit = 3 * randn(*size, seed=seed)
    action = one_action_each(logit, seed)
    result = categorical_log_prob(logit, action)
    assert result.shape == (size[0],)
    for row, a, given_ in zip(logit.tolist(), action, result, strict=True):
        assert given_.item() == pytest.approx(log_softmax_by_hand(row)[a])


@given(sizes, seeds)
def test_score_is_one_minus_the_probabilities(size, seed) -> None:
    logit = randn(size[1], seed=seed)
    expected = torch.eye(size[1]) - logit.softmax(0)
    torch.testing.assert_close(score(logit), expected)


@given(sizes, seeds)
def test_the_mean_of_the_score_is_zero(size, seed) -> None:
    logit = randn(size[1], seed=seed)
    mean = logit.softmax(0) @ score(logit)
    torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0, atol=1e-14)


@pytest.mark.parametrize("shift", [-3e4, 3e4])
def test_a_common_shift_of_the_logits_changes_nothing(shift: float) -> None:
    logit = torch.tensor([[0.5, -0.25, 1.0]])  # exact in float32, shifted as well
    action = torch.tensor([1])
    for function in (lambda z: categorical_log_prob(z, action), categorical_entropy):
        torch.testing.assert_close(
            function(logit + shift), function(logit), rtol=0, atol=1e-6
        )


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64])
def test_actions_may_be_any_integers(dtype: torch.dtype) -> None:
    logit = randn(4, 3, seed=0)
    action = torch.tensor([0, 2, 1, 1])
    expected = categorical_log_prob(logit, action)
    assert torch.equal(categorical_log_prob(logit, action.to(dtype)), expected)


def test_gradients_are_those_of_the_values() -> None:
    logit = randn(4, 3, seed=0).requires_grad_()
    action = torch.tensor([0, 2, 1, 1])
    adv, weight = randn(2, 4, seed=1)
    assert torch.autograd.gradcheck(lambda z: categorical_log_prob(z, action), logit)
    assert torch.autograd.gradcheck(categorical_entropy, logit)
    assert torch.autograd.gradcheck(
        lambda z: policy_gradient_error(categorical_log_prob(z, action), adv, weight),
        logit,
    )


# --- Entropy --------------------------------------------------------------------------


@pytest.mark.equation("categorical-entropy")
@given(sizes, seeds)
def test_entropy_matches_its_definition(size, seed) -> None:
    logit = 3 * randn(*size, seed=seed)
    result = categorical_entropy(logit)
    assert result.shape == (size[0],)
    for row, given_ in zip(logit.tolist(), result.tolist(), strict=True):
        logs = log_softmax_by_hand(row)
        expected = -sum(math.exp(x) * x for x in logs)
        assert given_ == pytest.approx(expected, abs=1e-12)
        assert -1e-12 <= given_ <= math.log(size[1]) + 1e-12


@given(sizes, seeds)
def test_gradient_of_the_entropy_is_the_closed_form(size, seed) -> None:
    logit = randn(*size, seed=seed).requires_grad_()
    entropy = categorical_entropy(logit)
    (gradient,) = torch.autograd.grad(entropy.sum(), logit)
    log_prob = logit.detach().log_softmax(1)
    expected = -log_prob.exp() * (log_prob + entropy.detach().unsqueeze(1))
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)


def test_climbing_the_entropy_makes_a_policy_more_even() -> None:
    logit = torch.tensor([[2.0, 0.0, -1.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(categorical_entropy(logit).sum(), logit)
    after = (logit + 0.1 * gradient).softmax(1).max()
    assert after < logit.softmax(1).max()


# --- Actions that were taken away -----------------------------------------------------


@given(sizes, seeds)
def test_an_impossible_action_is_as_if_it_were_not_there(size, seed) -> None:
    logit = randn(*size, seed=seed)
    gone = torch.full((size[0], 1), -torch.inf, dtype=torch.float64)
    both = torch.cat((logit, gone), 1)
    action = one_action_each(logit, seed)
    q_value = randn(*both.shape, seed=seed + 1)
    for function in (
        lambda z: categorical_log_prob(z, action),
        categorical_entropy,
        lambda z: optimal_baseline(z, q_value[:, : z.shape[1]]),
    ):
        torch.testing.assert_close(function(both), function(logit))
    for function in (lambda z: categorical_log_prob(z, action), categorical_entropy):
        wide, narrow = both.clone().requires_grad_(), logit.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(function(wide).sum(), wide)
        (expected,) = torch.autograd.grad(function(narrow).sum(), narrow)
        torch.testing.assert_close(gradient[:, :-1], expected)
        assert (gradient[:, -1] == 0).all()


def test_taking_an_impossible_action_has_no_finite_loss() -> None:
    logit = torch.tensor([[0.0, -torch.inf]])
    log_prob = categorical_log_prob(logit, torch.tensor([1]))
    assert log_prob.item() == -torch.inf
    with pytest.raises(ValueError, match="log_prob must be finite"):
        policy_gradient_error(log_prob, torch.ones(1))


# --- The loss -------------------------------------------------------------------------


@pytest.mark.equation("policy-gradient-loss")
@given(st.integers(1, 20), seeds, st.booleans())
def test_loss_and_slope_match_the_definition(batch, seed, weighted) -> None:
    log_prob, adv, weight = randn(3, batch, seed=seed)
    log_prob.requires_grad_()
    loss = policy_gradient_error(log_prob, adv, weight if weighted else None)
    factors = (adv * weight if weighted else adv).tolist()
    terms = [f * x for f, x in zip(factors, log_prob.tolist(), strict=True)]
    assert loss.shape == ()
    assert loss.item() == pytest.approx(-sum(terms) / batch, abs=1e-12)
    (slope,) = torch.autograd.grad(loss, log_prob)
    assert slope.tolist() == pytest.approx([-f / batch for f in factors], abs=1e-12)


def test_gradient_flows_into_the_log_probabilities_alone() -> None:
    leaves = [x.clone().requires_grad_() for x in randn(3, 5, seed=0)]
    policy_gradient_error(*leaves).backward()
    assert leaves[0].grad is not None
    assert leaves[1].grad is None
    assert leaves[2].grad is None


def test_arguments_keep_their_numbers() -> None:
    log_prob, adv, weight = randn(3, 5, seed=0)
    logit, q_value = randn(2, 4, 3, seed=1)
    logit[0, 0] = -torch.inf
    tensors = (log_prob, adv, weight, logit, q_value)
    before = [x.clone() for x in tensors]
    policy_gradient_error(log_prob, adv, weight)
    categorical_log_prob(logit, torch.tensor([1, 0, 2, 1]))
    categorical_entropy(logit)
    optimal_baseline(logit, q_value)
    assert all(map(torch.equal, tensors, before))


def test_time_major_losses_are_those_of_the_flat_batch() -> None:
    log_prob, adv, weight = randn(3, 4, 5, seed=0)
    flat = policy_gradient_error(log_prob.flatten(), adv.flatten(), weight.flatten())
    torch.testing.assert_close(policy_gradient_error(log_prob, adv, weight), flat)


# --- The theorem: all episodes of a small problem -------------------------------------

STATES, ACTIONS, STEPS = 2, 2, 3


class Problem:
    """Two states, two actions, three steps; start, answers and rewards are random."""

    def __init__(self, seed: int) -> None:
        self.start = randn(STATES, seed=seed).softmax(0)
        self.answer = randn(STATES, ACTIONS, STATES, seed=seed + 1).softmax(2)
        self.reward = randn(STATES, ACTIONS, seed=seed + 2) + 2.0
        self.logit = randn(STATES, ACTIONS, seed=seed + 3)
        self.gamma = 0.8

    def objective(self, logit: Tensor) -> Tensor:
        """Compute J forward in time from the distribution of the states."""
        policy = logit.softmax(1)
        state, total = self.start, torch.zeros(())
        for t in range(STEPS):
            joint = state.unsqueeze(1) * policy
            total = total + self.gamma**t * (joint * self.reward).sum()
            state = torch.einsum("sa,sax->x", joint, self.answer)
        return total

    def gradient(self) -> Tensor:
        leaf = self.logit.clone().requires_grad_()
        return torch.autograd.grad(self.objective(leaf), leaf)[0]

    def mean_estimate(self, weigh) -> Tensor:
        """Average the estimate of the loss over all episodes, by their probability.

        ``weigh`` gets states, actions, returns and rewards of an episode, and gives
        the advantages and the weights of its steps.
        """
        policy = self.logit.softmax(1)
        mean = torch.zeros_like(self.logit)
        spaces = [range(STATES)] * STEPS + [range(ACTIONS)] * STEPS
        for episode in itertools.product(*spaces):
            s, a = episode[:STEPS], episode[STEPS:]
            chance = self.start[s[0]] * policy[s[-1], a[-1]]
            for t in range(STEPS - 1):
                chance = chance * policy[s[t], a[t]] * self.answer[s[t], a[t], s[t + 1]]
            reward = [self.reward[s[t], a[t]].item() for t in range(STEPS)]
            returns = [
                sum(self.gamma ** (k - t) * reward[k] for k in range(t, STEPS))
                for t in range(STEPS)
            ]
            adv, weight = weigh(s, returns, self.gamma)
            leaf = self.logit.clone().requires_grad_()
            log_prob = categorical_log_prob(leaf[list(s)], torch.tensor(a))
            loss = policy_gradient_error(
                log_prob, torch.tensor(adv).double(), torch.tensor(weight).double()
            )
            mean += chance * -STEPS * torch.autograd.grad(loss, leaf)[0]
        return mean


def whole_return(s, returns, gamma):
    return [returns[0]] * STEPS, [1.0] * STEPS


def from_now_on(s, returns, gamma):
    return returns, [gamma**t for t in range(STEPS)]


def with_baseline(s, returns, gamma):
    """Any function of state and time will do."""
    adv = [g - (5.0 * s[t] + 3.0 * t - 4.0) for t, g in enumerate(returns)]
    return adv, [gamma**t for t in range(STEPS)]


def first_step_only(s, returns, gamma):
    return returns, [1.0] + [0.0] * (STEPS - 1)


@pytest.mark.equation("policy-gradient")
@pytest.mark.parametrize("weigh", [whole_return, from_now_on, with_baseline])
@pytest.mark.parametrize("seed", [0, 100, 200])
def test_mean_over_all_episodes_is_the_gradient_of_the_objective(weigh, seed) -> None:
    problem = Problem(seed)
    torch.testing.assert_close(problem.mean_estimate(weigh), problem.gradient())


def test_without_the_discount_of_the_step_the_mean_is_another_one() -> None:
    problem = Problem(0)
    mean = problem.mean_estimate(lambda s, returns, gamma: (returns, [1.0] * STEPS))
    assert (mean - problem.gradient()).norm() > 0.05 * problem.gradient().norm()


# --- The best baseline ----------------------------------------------------------------


def variance(logit: Tensor, q_value: Tensor, baseline: float) -> float:
    """Return the variance of the estimate from one action, by a sum over actions."""
    prob = logit.softmax(0)
    samples = (q_value - baseline).unsqueeze(1) * score(logit)
    mean = prob @ samples
    return (prob @ (samples - mean).square().sum(1)).item()


@pytest.mark.equation("optimal-baseline")
@given(st.integers(2, 5), seeds, st.floats(-3.0, 3.0))
def test_no_baseline_has_less_variance(num_actions, seed, shift) -> None:
    logit, q_value = randn(2, num_actions, seed=seed)
    (best,) = optimal_baseline(logit.unsqueeze(0), q_value.unsqueeze(0)).tolist()
    lowest = variance(logit, q_value, best)
    # The parabola of the chapter: how much more another baseline costs.
    length = logit.softmax(0) @ score(logit).square().sum(1)
    expected = lowest + length.item() * shift**2
    assert variance(logit, q_value, best + shift) == pytest.approx(expected)


@given(sizes, seeds)
def test_best_baselines_of_a_batch_are_those_of_its_rows(size, seed) -> None:
    logit, q_value = randn(2, *size, seed=seed)
    together = optimal_baseline(logit, q_value)
    rows = zip(logit.split(1), q_value.split(1), strict=True)
    alone = [optimal_baseline(*row) for row in rows]
    torch.testing.assert_close(together, torch.cat(alone))


def test_best_baseline_of_two_actions_exchanges_their_probabilities() -> None:
    logit = torch.tensor([[0.9, 0.1]]).double().log()
    q_value = torch.tensor([[1.0, 3.0]]).double()
    assert optimal_baseline(logit, q_value).item() == pytest.approx(0.1 * 1 + 0.9 * 3)
    assert variance(logit[0], q_value[0], 2.8) == pytest.approx(0.0, abs=1e-15)


def test_best_baseline_of_a_certain_action_is_its_return() -> None:
    logit = torch.tensor([[0.0, -torch.inf], [-torch.inf, 5.0], [0.0, 0.0]])
    q_value = torch.tensor([[1.0, 9.0], [9.0, 2.0], [1.0, 3.0]])
    assert optimal_baseline(logit, q_value).tolist() == pytest.approx([1.0, 2.0, 2.0])
    assert optimal_baseline(torch.zeros(1, 1), torch.full((1, 1), 7.0)).item() == 7.0


def test_best_baseline_has_no_gradient() -> None:
    logit, q_value = randn(2, 3, 2, seed=0).requires_grad_()
    assert not optimal_baseline(logit, q_value).requires_grad


# --- What is refused ------------------------------------------------------------------

LOGIT, ACTION = torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)


@pytest.mark.parametrize(
    "function",
    [
        lambda logit: categorical_log_prob(logit, ACTION),
        categorical_entropy,
        lambda logit: optimal_baseline(logit, LOGIT),
    ],
)
@pytest.mark.parametrize(
    ("logit", "error", "message"),
    [
        ([[0.0]], TypeError, "logit must be a tensor, got list of 1"),
        (torch.zeros(4), ValueError, r"logit must have shape \(B, N\).*got \(4,\)"),
        (
            torch.zeros(4, 0),
            ValueError,
            r"logit must have a non-empty shape .*got \(4, 0\)",
        ),
        (torch.zeros(4, 3).long(), TypeError, "logit must be a float32 or float64"),
    ],
)
def test_bad_logits_are_named(function, logit, error, message) -> None:
    with pytest.raises(error, match=message):
        function(logit)


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        (
            ACTION.unsqueeze(1),
            ValueError,
            r"action must have shape \(B,\) with B = 4 .*got \(4, 1",
        ),
        (
            ACTION.float(),
            TypeError,
            "action must be an integer tensor, got torch.float32",
        ),
        (ACTION.bool(), TypeError, "action must be an integer tensor, got torch.bool"),
        (ACTION + 3, ValueError, r"action must lie in 0..2, got 3..3"),
        (ACTION - 1, ValueError, r"action must lie in 0..2, got -1..-1"),
        ([0, 0, 0, 0], TypeError, "action must be a tensor, got list of 4"),
    ],
)
def test_bad_actions_are_named(action, error, message) -> None:
    with pytest.raises(error, match=message):
        categorical_log_prob(LOGIT, action)


ROW = torch.zeros(4)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0.5, ROW), TypeError, "log_prob must be a tensor, got float"),
        ((ROW.long(), ROW), TypeError, "log_prob must be a float32 or float64"),
        (
            (ROW[:0], ROW[:0]),
            ValueError,
            r"log_prob must have a non-empty shape .*got \(0,\)",
        ),
        (
            (ROW, ROW.unsqueeze(1)),
            ValueError,
            r"adv must have shape .* = \(4,\) \(of log_prob\), got \(4, ",
        ),
        ((ROW, 1.0), TypeError, "adv must be a tensor, got float"),
        (
            (ROW, ROW, torch.ones(1)),
            ValueError,
            r"weight must have shape .* = \(4,\) \(of log_prob\), got \(1,",
        ),
        ((ROW, ROW + torch.nan), ValueError, "adv must be finite"),
        ((ROW + torch.inf, ROW + 1), ValueError, "log_prob must be finite"),
        ((ROW, ROW, ROW + torch.inf), ValueError, "weight must be finite"),
    ],
)
def test_bad_arguments_of_the_loss_are_named(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        policy_gradient_error(*arguments)


@pytest.mark.parametrize(
    ("q_value", "error", "message"),
    [
        (
            torch.zeros(4),
            ValueError,
            r"q_value must have shape \(B, N\) with B = 4 .*got \(4,\)",
        ),
        (None, TypeError, "q_value must be a tensor, got NoneType"),
        (LOGIT + torch.nan, ValueError, "q_value must be finite"),
    ],
)
def test_bad_values_of_actions_are_named(q_value, error, message) -> None:
    with pytest.raises(error, match=message):
        optimal_baseline(LOGIT, q_value)


def test_a_logit_of_minus_infinity_is_not_to_blame() -> None:
    logit = torch.tensor([[0.0, -torch.inf]])
    with pytest.raises(ValueError, match=r"^q_value must be finite"):
        optimal_baseline(logit, torch.tensor([[1.0, torch.nan]]))


@pytest.mark.parametrize(
    "function", [policy_gradient_error, optimal_baseline, categorical_entropy]
)
def test_signatures_are_held(function) -> None:
    assert assert_held(function, Random(0)) > 0


def test_the_signature_of_a_log_probability_is_held() -> None:
    # That an action lies below the number of actions is what a signature cannot say, so
    # the legal call is given.
    legal = {"logit": torch.zeros(2, 3), "action": torch.tensor([0, 2])}
    categorical_log_prob(**legal)
    calls = list(illegal_calls(categorical_log_prob, legal))
    assert {call.name for call in calls} == {"logit", "action"}
    for name, _, arguments in calls:
        with pytest.raises((TypeError, ValueError), match=name):
            categorical_log_prob(**arguments)


def test_a_logit_that_is_not_a_number_is_named() -> None:
    logit = torch.tensor([[0.0, torch.nan]])
    for function in (
        categorical_entropy,
        lambda z: optimal_baseline(z, torch.ones(1, 2)),
    ):
        with pytest.raises(ValueError, match=r"^logit must be finite"):
            function(logit)


# --- Errata ---------------------------------------------------------------------------


@pytest.mark.erratum("sum-over-steps")
def test_without_the_sum_later_states_learn_nothing() -> None:
    """An episode that always starts in state 0 teaches state 1 nothing."""
    problem = Problem(0)
    problem.start = torch.tensor([1.0, 0.0]).double()
    mean = problem.mean_estimate(first_step_only)
    assert (mean[1] == 0).all()
    assert problem.gradient()[1].norm() > 0.01
    torch.testing.assert_close(problem.mean_estimate(from_now_on), problem.gradient())


@pytest.mark.erratum("own-mean-baseline")
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_the_mean_of_the_own_batch_shortens_the_gradient(batch: int) -> None:
    """All batches of three actions, weighted with their probability."""
    logit = torch.tensor([0.6, 0.0, -0.6]).double()
    q_value = torch.tensor([3.0, 4.0, 6.0]).double()
    prob, scores = logit.softmax(0), score(logit)
    exact = prob @ (q_value.unsqueeze(1) * scores)
    own, others = torch.zeros(3).double(), torch.zeros(3).double()
    for actions in itertools.product(range(3), repeat=batch):
        chosen = list(actions)
        chance, paid = prob[chosen].prod(), q_value[chosen]
        own += chance * ((paid - paid.mean()).unsqueeze(1) * scores[chosen]).mean(0)
        if batch > 1:
            rest = (paid.sum() - paid) / (batch - 1)
            others += chance * ((paid - rest).unsqueeze(1) * scores[chosen]).mean(0)
    torch.testing.assert_close(own, (1 - 1 / batch) * exact)
    if batch > 1:
        torch.testing.assert_close(others, exact)


@pytest.mark.erratum("advantage-attached")
def test_an_attached_value_settles_above_the_truth_by_the_entropy() -> None:
    logit = torch.tensor([0.6, 0.0, -0.6]).double()
    q_value = torch.tensor([3.0, 4.0, 6.0]).double()
    prob, log_prob = logit.softmax(0), logit.log_softmax(0)
    entropy = categorical_entropy(logit.unsqueeze(0)).item()
    value = (prob @ q_value).item()

    def slope(guess: float, attached: bool) -> float:
        """Return the slope of the mean of both losses by the value."""
        leaf = torch.tensor(guess, dtype=torch.float64, requires_grad=True)
        adv = q_value - leaf
        if attached:
            actor = -(prob * log_prob * adv).sum()
        else:
            actor = 3 * policy_gradient_error(log_prob, prob * adv)
        critic = (prob * (q_value - leaf).square()).sum() / 2
        return torch.autograd.grad(actor + critic, leaf)[0].item()

    assert slope(value + entropy, attached=True) == pytest.approx(0.0, abs=1e-12)
    assert slope(value, attached=True) == pytest.approx(-entropy)
    assert slope(value, attached=False) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.erratum("column-minus-row")
def test_a_column_of_actions_teaches_each_state_all_actions() -> None:
    logit = torch.zeros(3, 2, requires_grad=True)
    action, adv = torch.tensor([0, 1, 1]), torch.ones(3)
    log_prob = Categorical(logits=logit).log_prob(action.unsqueeze(1))
    assert log_prob.shape == (3, 3)
    (gradient,) = torch.autograd.grad((log_prob * adv).mean(), logit)
    # The first state took action 0 and is pushed towards action 1.
    assert (gradient[:, 1] > 0).all()
    loss = policy_gradient_error(categorical_log_prob(logit, action), adv)
    (gradient,) = torch.autograd.grad(-loss, logit)
    assert (gradient[:, 1] > 0).tolist() == [False, True, True]
    with pytest.raises(ValueError, match="action must have shape"):
        categorical_log_prob(logit, action.unsqueeze(1))
