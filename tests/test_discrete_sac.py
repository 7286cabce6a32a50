"""Discrete SAC: sums over the actions, targets of a list, and what it learns."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from soft import ACTIONS, LIST, SEEN, N, algorithm_for, generator, remembered
from torch import Tensor
from torch.distributions import Categorical

from literate_rl.book.contract_models import ActionValue
from literate_rl.check.own_models import FirstResult
from literate_rl.check.states import state_spec
from literate_rl.learners.discrete_sac import (
    DiscreteCritics,
    DiscreteSoftActorCritic,
    expected_soft_value,
    make_discrete_sac_policy,
)


def judged(seed: int) -> tuple[Tensor, Tensor]:
    """Return values of two critics, and log-probabilities of discrete actions."""
    q = torch.randn(2, N, ACTIONS, generator=generator(seed), dtype=torch.float64)
    logits = torch.randn(q.shape[1:], generator=generator(seed + 1)).double()
    return q, logits.log_softmax(-1)


@pytest.mark.equation("exact-soft-value")
@pytest.mark.erratum("mean-over-actions")
@pytest.mark.parametrize("seed", range(5))
def test_the_soft_value_is_the_sum_over_all_actions(seed: int) -> None:
    q, log_prob = judged(seed)
    got = expected_soft_value(q, log_prob, 0.3)
    for i in range(N):
        wanted = 0.0
        for a in range(ACTIONS):
            least = min(float(q[0, i, a]), float(q[1, i, a]))
            log_p = float(log_prob[i, a])
            wanted += math.exp(log_p) * (least - 0.3 * log_p)
        assert got[i].item() == pytest.approx(wanted, abs=1e-12)
    # The part that alpha weighs is torch's entropy.
    bonus = expected_soft_value(q, log_prob, 1.3) - got
    torch.testing.assert_close(bonus, Categorical(logits=log_prob).entropy())
    # Four actions that are all worth 10 are worth 10, and by a mean over them 2.5.
    worth, even = torch.full((1, 1, 4), 10.0), torch.full((1, 4), 0.25)
    assert expected_soft_value(worth, even.log(), 0.0).item() == 10
    assert (even * worth[0]).mean(-1).item() == 2.5


@pytest.mark.parametrize("worth", [1.0, math.inf, math.nan])
def test_an_action_that_cannot_happen_counts_nothing(worth: float) -> None:
    q, log_prob = judged(0)
    q[..., 0], log_prob[:, 0] = worth, -math.inf
    log_prob = log_prob.log_softmax(-1).requires_grad_()
    alpha = torch.tensor(0.3, requires_grad=True)
    value = expected_soft_value(q.requires_grad_(), log_prob, alpha)
    grads = torch.autograd.grad(value.sum(), (q, log_prob, alpha))
    # What the others are worth, without it.
    rest = expected_soft_value(q[..., 1:], log_prob[:, 1:], 0.3)
    torch.testing.assert_close(value, rest)
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.equation("def-soft-optimal")
def test_the_best_policy_is_the_softmax_of_the_values() -> None:
    alpha, q = 0.7, torch.tensor([1.0, 0.2, -0.5], dtype=torch.float64)
    best = (q / alpha).log_softmax(-1)
    rows = best + 0.3 * torch.randn(50, 3, generator=generator())
    log_prob = torch.cat([best[None], rows]).log_softmax(-1).requires_grad_()
    value = expected_soft_value(q.expand(1, 51, 3), log_prob, alpha)
    assert value.argmax() == 0
    assert value[0].item() == pytest.approx(alpha * (q / alpha).logsumexp(-1).item())
    # There it is flat: each logarithm has the same slope for its probability.
    slope = torch.autograd.grad(value[0], log_prob)[0][0] / best.exp()
    torch.testing.assert_close(slope, slope[:1].expand(3))


@pytest.mark.equation("list-entropy")
def test_the_target_of_a_list_is_half_of_what_it_allows() -> None:
    scale = DiscreteSoftActorCritic.scale
    assert scale(LIST, None) == (0.0, math.log(ACTIONS) / 2)
    assert scale(LIST, 0.1) == (0.0, 0.1)


# --- Targets and slopes ---------------------------------------------------------------


def policy_for() -> Any:
    """Return a small policy with seeded weights."""
    torch.manual_seed(0)
    return make_discrete_sac_policy(SEEN, LIST, hidden=8)


@pytest.mark.equation("soft-target")
@pytest.mark.parametrize("form", ["all", "one by one"])
def test_discrete_targets_are_sums_over_the_actions(form: str) -> None:
    policy, one_hot = policy_for(), torch.eye(ACTIONS)
    if form == "one by one":
        spec, models = state_spec(SEEN), [ActionValue(4, ACTIONS, 8) for _ in range(2)]
        policy.critics = DiscreteCritics(FirstResult(x, spec, ACTIONS) for x in models)
    batch = remembered(torch.arange(N) % ACTIONS)
    algorithm = algorithm_for(policy, LIST, temperature=0.4)
    error = algorithm.error(batch, generator())
    assert not error.td_error.requires_grad

    def worth(critic: Any, obs: Tensor, action: int) -> float:
        if form == "all":
            return critic(obs)[action].item()
        return critic.by_name.model(obs, one_hot[action]).item()

    log_prob = policy(batch.next_obs).log_softmax(-1).tolist()
    for i in range(N):
        future = 0.0
        for a, log_p in enumerate(log_prob[i]):
            q = [worth(x, batch.next_obs[i], a) for x in algorithm.target.network]
            future += math.exp(log_p) * (min(q) - 0.4 * log_p)
        wanted = float(batch.reward[i] + batch.discount[i] * future)
        assert float(error.td_error[i] + error.value[i]) == pytest.approx(wanted, 1e-4)
        taken = int(batch.action[i])
        q = [worth(x, batch.obs[i], taken) for x in policy.critics]
        assert float(error.value[i]) == pytest.approx(sum(q) / 2, abs=1e-5)


@pytest.mark.equation("soft-actor")
def test_an_ascent_has_the_slopes_of_the_soft_value() -> None:
    policy = policy_for()
    algorithm = algorithm_for(policy, LIST, temperature=0.3)
    obs = torch.randn(N, 4)
    log_prob, q = policy(obs).log_softmax(-1), policy.critics(obs).detach()
    loss = (log_prob.exp() * (0.3 * log_prob - q.amin(0))).sum(-1).mean()
    entropy = Categorical(logits=log_prob.detach()).entropy().mean()
    loss = loss + policy.log_alpha * (entropy - math.log(ACTIONS) / 2)
    inputs = [*policy.network.parameters(), policy.log_alpha]
    wanted = torch.autograd.grad(loss, inputs)
    found = algorithm.ascent(obs, generator())
    torch.testing.assert_close(torch.autograd.grad(found, inputs), wanted)
