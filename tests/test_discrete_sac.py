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
def test_the_soft_value_is_the_sum_over_all_actions():
    q, log_prob = judged(3)
    got, policy = expected_soft_value(q, log_prob, 0.3), Categorical(logits=log_prob)
    wanted = (policy.probs * torch.minimum(*q)).sum(-1) + 0.3 * policy.entropy()
    torch.testing.assert_close(got, wanted)
    # Four actions that are all worth 10 are worth 10, and by a mean over them 2.5.
    worth, even = torch.full((1, 1, 4), 10.0), torch.full((1, 4), 0.25)
    assert expected_soft_value(worth, even.log(), 0.0).item() == 10
    assert (even * worth[0]).mean(-1).item() == 2.5


@pytest.mark.parametrize("worth", [1.0, math.inf, math.nan])
def test_an_action_that_cannot_happen_counts_nothing(worth):
    q, log_prob = judged(0)
    q[..., 0], log_prob[:, 0] = worth, -math.inf
    log_prob = log_prob.log_softmax(-1).requires_grad_()
    value = expected_soft_value(q.requires_grad_(), log_prob, 0.3)
    # What the others are worth, without it.
    rest = expected_soft_value(q[..., 1:], log_prob[:, 1:], 0.3)
    torch.testing.assert_close(value, rest)
    for grad in torch.autograd.grad(value.sum(), (q, log_prob)):
        assert grad.isfinite().all()


@pytest.mark.equation("def-soft-optimal")
def test_the_best_policy_is_the_softmax_of_the_values():
    alpha, q = 0.7, torch.tensor([1.0, 0.2, -0.5], dtype=torch.float64)
    best = (q / alpha).log_softmax(-1)
    rows = best + 0.3 * torch.randn(50, 3, generator=generator())
    log_prob = torch.cat([best[None], rows]).log_softmax(-1)
    value = expected_soft_value(q.expand(1, 51, 3), log_prob, alpha)
    assert value.argmax() == 0
    torch.testing.assert_close(value[0], alpha * (q / alpha).logsumexp(-1))


@pytest.mark.equation("list-entropy")
def test_the_target_of_a_list_is_half_of_what_it_allows():
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
def test_discrete_targets_are_sums_over_the_actions(form):
    policy, every = policy_for(), torch.eye(ACTIONS).expand(N, ACTIONS, ACTIONS)
    if form == "one by one":
        spec, models = state_spec(SEEN), [ActionValue(4, ACTIONS, 8) for _ in range(2)]
        policy.critics = DiscreteCritics(FirstResult(x, spec, ACTIONS) for x in models)
    batch = remembered(torch.arange(N) % ACTIONS)
    algorithm = algorithm_for(policy, LIST, temperature=0.4)
    error = algorithm.error(batch, generator())
    assert not error.td_error.requires_grad

    def worth(critic, obs):
        if form == "all":
            return critic(obs)
        shown = obs.unsqueeze(1).expand(-1, ACTIONS, -1)
        return critic.by_name.model(shown, every).squeeze(-1)

    log_prob = policy(batch.next_obs).log_softmax(-1)
    least = torch.minimum(*(worth(x, batch.next_obs) for x in algorithm.target.network))
    future = (log_prob.exp() * (least - 0.4 * log_prob)).sum(-1)
    wanted = (batch.reward + batch.discount * future).detach()
    torch.testing.assert_close(error.td_error + error.value, wanted)
    q = sum(worth(x, batch.obs) for x in policy.critics) / 2
    torch.testing.assert_close(error.value, q.detach()[range(N), batch.action])


@pytest.mark.equation("soft-actor")
def test_an_ascent_has_the_slopes_of_the_soft_value():
    policy = policy_for()
    algorithm = algorithm_for(policy, LIST, temperature=0.3)
    obs = torch.randn(N, 4)
    chance, q = Categorical(logits=policy(obs)), policy.critics(obs).detach()
    entropy = chance.entropy()
    loss = -((chance.probs * q.amin(0)).sum(-1) + 0.3 * entropy).mean()
    target = math.log(ACTIONS) / 2
    loss = loss + policy.log_alpha * (entropy.detach().mean() - target)
    inputs = [*policy.network.parameters(), policy.log_alpha]
    wanted = torch.autograd.grad(loss, inputs)
    found = algorithm.ascent(obs, generator())
    torch.testing.assert_close(torch.autograd.grad(found, inputs), wanted)
