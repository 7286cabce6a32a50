"""The policy gradient against sums over all actions and all episodes, in float64."""

import itertools
import math

import pytest
import torch
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


# --- Log-probabilities and entropies --------------------------------------------------


@pytest.mark.equation("categorical-log-prob")
@pytest.mark.equation("categorical-entropy")
@given(sizes, seeds)
def test_log_probs_and_entropies_match_their_definition(size, seed):
    logit = 3 * randn(*size, seed=seed)
    action = one_action_each(logit, seed)
    rows = [log_softmax_by_hand(row) for row in logit.tolist()]
    wanted = [row[a] for row, a in zip(rows, action, strict=True)]
    assert categorical_log_prob(logit, action).tolist() == pytest.approx(wanted)
    wanted = [-sum(math.exp(x) * x for x in row) for row in rows]
    assert categorical_entropy(logit).tolist() == pytest.approx(wanted, abs=1e-12)


def test_gradients_are_those_of_the_values():
    logit, action = randn(4, 3, seed=0).requires_grad_(), torch.tensor([0, 2, 1, 1])
    assert torch.autograd.gradcheck(lambda z: categorical_log_prob(z, action), logit)
    assert torch.autograd.gradcheck(categorical_entropy, logit)


# --- Actions that were taken away -----------------------------------------------------


@given(sizes, seeds)
def test_an_impossible_action_is_as_if_it_were_not_there(size, seed):
    narrow = randn(*size, seed=seed).requires_grad_()
    gone = torch.full((size[0], 1), -torch.inf, dtype=torch.float64)
    wide = torch.cat((narrow.detach(), gone), 1).requires_grad_()
    action, q_value = one_action_each(narrow, seed), randn(*wide.shape, seed=seed + 1)
    best = optimal_baseline(narrow, q_value[:, :-1])
    torch.testing.assert_close(optimal_baseline(wide, q_value), best)
    for function in (lambda z: categorical_log_prob(z, action), categorical_entropy):
        found, wanted = function(wide), function(narrow)
        torch.testing.assert_close(found, wanted)
        (gradient,) = torch.autograd.grad(found.sum(), wide)
        (expected,) = torch.autograd.grad(wanted.sum(), narrow)
        torch.testing.assert_close(gradient[:, :-1], expected)
        assert (gradient[:, -1] == 0).all()


# --- The loss -------------------------------------------------------------------------


@pytest.mark.equation("policy-gradient-loss")
@given(st.sampled_from([(1,), (20,), (4, 5)]), seeds, st.booleans())
def test_loss_and_slope_match_the_definition(shape, seed, weighted):
    log_prob, adv, weight = (x.requires_grad_() for x in randn(3, *shape, seed=seed))
    loss = policy_gradient_error(log_prob, adv, weight if weighted else None)
    factors = (adv * weight if weighted else adv).flatten().tolist()
    terms = zip(factors, log_prob.flatten().tolist(), strict=True)
    wanted = -sum(f * x for f, x in terms) / len(factors)
    assert loss.item() == pytest.approx(wanted, abs=1e-12)
    loss.backward()
    slopes = [-f / len(factors) for f in factors]
    assert log_prob.grad.flatten().tolist() == pytest.approx(slopes, abs=1e-12)
    assert adv.grad is weight.grad is None


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
def test_mean_over_all_episodes_is_the_gradient_of_the_objective(weigh):
    problem = Problem(seed=100)
    torch.testing.assert_close(problem.mean_estimate(weigh), problem.gradient())


# --- The best baseline ----------------------------------------------------------------


def variance(logit: Tensor, q_value: Tensor, baseline: float) -> float:
    """Return the variance of the estimate from one action, by a sum over actions."""
    prob = logit.softmax(0)
    samples = (q_value - baseline).unsqueeze(1) * score(logit)
    mean = prob @ samples
    return (prob @ (samples - mean).square().sum(1)).item()


@pytest.mark.equation("optimal-baseline")
@given(st.integers(2, 5), seeds, st.floats(-3.0, 3.0))
def test_no_baseline_has_less_variance(num_actions, seed, shift):
    logit, q_value = randn(2, num_actions, seed=seed)
    pair = (x.clone().unsqueeze(0).requires_grad_() for x in (logit, q_value))
    found = optimal_baseline(*pair)
    assert not found.requires_grad
    best = found.item()
    lowest = variance(logit, q_value, best)
    # The parabola of the chapter: how much more another baseline costs.
    length = logit.softmax(0) @ score(logit).square().sum(1)
    expected = lowest + length.item() * shift**2
    assert variance(logit, q_value, best + shift) == pytest.approx(expected)


def test_best_baseline_of_a_certain_action_is_its_return():
    logit = torch.tensor([[0.0, -torch.inf], [-torch.inf, 5.0], [0.0, 0.0]])
    q_value = torch.tensor([[1.0, 9.0], [9.0, 2.0], [1.0, 3.0]])
    assert optimal_baseline(logit, q_value).tolist() == pytest.approx([1.0, 2.0, 2.0])


def test_an_impossible_action_that_was_taken_has_no_loss():
    logit = torch.tensor([[0.0, -torch.inf]])
    log_prob = categorical_log_prob(logit, torch.tensor([1]))
    with pytest.raises(ValueError, match="log_prob"):
        policy_gradient_error(log_prob, torch.ones(1))


# --- Errata ---------------------------------------------------------------------------


@pytest.mark.erratum("sum-over-steps")
def test_without_the_sum_later_states_learn_nothing():
    """An episode that always starts in state 0 teaches state 1 nothing."""
    problem = Problem(0)
    problem.start = torch.tensor([1.0, 0.0]).double()
    mean = problem.mean_estimate(first_step_only)
    assert (mean[1] == 0).all()
    assert problem.gradient()[1].norm() > 0.01
    torch.testing.assert_close(problem.mean_estimate(from_now_on), problem.gradient())


@pytest.mark.erratum("own-mean-baseline")
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_the_mean_of_the_own_batch_shortens_the_gradient(batch):
    """All batches of three actions, weighted with their probability."""
    logit = torch.tensor([0.6, 0.0, -0.6]).double()
    q_value = torch.tensor([3.0, 4.0, 6.0]).double()
    prob, scores = logit.softmax(0), score(logit)
    exact = prob @ (q_value.unsqueeze(1) * scores)
    own = torch.zeros(3).double()
    for actions in itertools.product(range(3), repeat=batch):
        chosen = list(actions)
        chance, paid = prob[chosen].prod(), q_value[chosen]
        own += chance * ((paid - paid.mean()).unsqueeze(1) * scores[chosen]).mean(0)
    torch.testing.assert_close(own, (1 - 1 / batch) * exact)


@pytest.mark.erratum("advantage-attached")
def test_an_attached_value_settles_above_the_truth_by_the_entropy():
    logit = torch.tensor([0.6, 0.0, -0.6]).double()
    q_value = torch.tensor([3.0, 4.0, 6.0]).double()
    prob, log_prob = logit.softmax(0), logit.log_softmax(0)
    entropy = categorical_entropy(logit.unsqueeze(0)).item()
    value = (prob @ q_value).item()

    def slope(guess, attached):
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
def test_a_column_of_actions_teaches_each_state_all_actions():
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
    with pytest.raises(ValueError, match="action"):
        categorical_log_prob(logit, action.unsqueeze(1))
