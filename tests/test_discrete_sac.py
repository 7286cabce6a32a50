"""Discrete SAC: sums over the actions, targets of a list, the loop, own models."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import gymnasium as gym
import pytest
import torch
from fuzz import assert_held
from gymnasium import spaces
from learning import assert_for_most_seeds
from soft import (
    ACTIONS,
    CARTPOLE,
    PENDULUM,
    SEEN,
    SHORT,
    SMALL,
    Joined,
    N,
    TwoStateActor,
    TwoStateCritic,
    algorithm_for,
    assert_each_step_moves_its_own_weights,
    assert_models_train,
    assert_resumed,
    filled,
    generator,
    weights,
)
from torch import Tensor, nn
from torch.distributions import Categorical

from literate_rl.apps.training import ALGORITHMS, train
from literate_rl.book.contract_models import ActionValue, CategoricalActor, QNetwork
from literate_rl.check.contracts import ContractError
from literate_rl.check.own_models import FirstResult, make_own_sac_policy
from literate_rl.check.states import state_spec
from literate_rl.data.agents import make_envs
from literate_rl.data.replay import Batch
from literate_rl.learners.discrete_sac import (
    DiscreteCritics,
    DiscreteSAC,
    DiscreteSoftActorCritic,
    discrete_sac_settings,
    expected_soft_value,
    make_discrete_sac_policy,
)
from literate_rl.learners.loop import OffPolicy
from literate_rl.learners.sac import SACConfig, sac_settings
from literate_rl.maths.sac import soft_value
from literate_rl.runs.runs import fit, flat_env, load

# --- Soft values ----------------------------------------------------------------------


def judged(seed: int, actions: int = ACTIONS) -> tuple[Tensor, Tensor]:
    """Return values of two critics, and log-probabilities of discrete actions."""
    q = torch.randn(2, N, actions, generator=generator(seed), dtype=torch.float64)
    logits = torch.randn(N, actions, generator=generator(seed + 1), dtype=torch.float64)
    return q, logits.log_softmax(-1)


@pytest.mark.equation("exact-soft-value")
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


@pytest.mark.equation("soft-value")
@pytest.mark.equation("exact-soft-value")
def test_one_draw_is_right_on_average() -> None:
    q, log_prob = judged(0)
    exact = expected_soft_value(q, log_prob, 0.3)
    drawn = torch.multinomial(log_prob.exp(), 100_000, True, generator=generator())
    each = drawn.unsqueeze(0).expand(2, -1, -1)
    pairs = q.gather(-1, each).flatten(1), log_prob.gather(-1, drawn).flatten()
    mean = soft_value(*pairs, 0.3).reshape(N, -1).mean(-1)
    torch.testing.assert_close(mean, exact, rtol=0, atol=0.02)


@pytest.mark.erratum("mean-over-actions")
def test_a_mean_over_actions_is_a_part_of_the_expectation() -> None:
    q, log_prob = judged(2)
    right = expected_soft_value(q, log_prob, 0.3)
    wrong = (log_prob.exp() * (q.amin(0) - 0.3 * log_prob)).mean(-1)
    torch.testing.assert_close(wrong * ACTIONS, right)
    # As a target: four actions that are all worth 10 become a state that is worth 2.5.
    worth, even = torch.full((1, 1, 4), 10.0), torch.full((1, 4), 0.25)
    assert expected_soft_value(worth, even.log(), 0.0).item() == 10
    assert (even * worth[0]).mean(-1).item() == 2.5


def test_the_least_optimistic_critic_is_believed() -> None:
    q, log_prob = judged(3)
    both = expected_soft_value(q, log_prob, 0.0)
    for one in q:
        alone = expected_soft_value(one[None], log_prob, 0.0)
        assert (both <= alone + 1e-12).all()
    higher = torch.stack([q[0], q[0] + 5])
    torch.testing.assert_close(
        expected_soft_value(higher, log_prob, 0.2),
        expected_soft_value(q[:1], log_prob, 0.2),
    )


@pytest.mark.parametrize("worth", [1.0, math.inf, math.nan])
def test_an_action_that_cannot_happen_counts_nothing(worth: float) -> None:
    q, log_prob = judged(0)
    q[..., 0] = worth
    log_prob[:, 0] = -math.inf
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
    rows = [(best + 0.3 * torch.randn(3, generator=generator(s))) for s in range(50)]
    log_prob = torch.stack([best, *rows]).log_softmax(-1)
    each = q.expand(1, len(log_prob), 3)
    value = expected_soft_value(each, log_prob, alpha)
    assert value.argmax() == 0
    assert value[0].item() == pytest.approx(alpha * (q / alpha).logsumexp(-1).item())
    # Climbing the soft value from anywhere gets there.
    logits = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    for _ in range(2000):
        log_prob = logits.log_softmax(-1)
        loss = -expected_soft_value(q.expand(1, 1, 3), log_prob, alpha).sum()
        (grad,) = torch.autograd.grad(loss, logits)
        logits = (logits - 0.3 * grad).detach().requires_grad_()
    torch.testing.assert_close(logits.log_softmax(-1)[0], best, atol=1e-6, rtol=0)


@pytest.mark.equation("list-entropy")
def test_the_target_of_a_list_is_half_of_what_it_allows() -> None:
    scale = DiscreteSoftActorCritic.scale
    assert scale(spaces.Discrete(4), None) == (0.0, math.log(2))
    assert scale(spaces.Discrete(9, start=3), None)[1] == pytest.approx(math.log(3))
    assert scale(spaces.Discrete(4), 0.1) == (0.0, 0.1)
    for target, wanted in ((None, math.log(ACTIONS) / 2), (0.1, 0.1)):
        temperature = algorithm_for(
            policy_for(), LIST, target_entropy=target
        ).temperature
        assert temperature.target == pytest.approx(wanted)
        assert temperature.unit == 0


def test_signatures_hold() -> None:
    assert assert_held(expected_soft_value, Random(0)) > 0


# --- Targets --------------------------------------------------------------------------


LIST = spaces.Discrete(ACTIONS)


def policy_for() -> Any:
    """Return a small policy with seeded weights."""
    torch.manual_seed(0)
    return make_discrete_sac_policy(SEEN, LIST, hidden=8)


def remembered() -> Batch:
    """Return a batch whose first step ended in a termination."""
    source = generator(5)
    obs, next_obs = torch.randn(2, N, 4, generator=source)
    action = torch.randint(ACTIONS, (N,), generator=source)
    reward, discount = torch.rand(2, N, generator=source)
    discount[0] = 0.0
    rest = torch.ones(N), torch.arange(N)
    return Batch(obs, action, reward, next_obs, discount, *rest)


@pytest.mark.equation("soft-target")
@pytest.mark.parametrize("form", ["all", "one by one"])
def test_discrete_targets_are_sums_over_the_actions(form: str) -> None:
    policy = policy_for()
    if form == "one by one":
        torch.manual_seed(1)
        spec, models = state_spec(SEEN), [ActionValue(4, ACTIONS, 8) for _ in range(2)]
        policy.critics = DiscreteCritics(FirstResult(x, spec, ACTIONS) for x in models)
    batch, algorithm = remembered(), algorithm_for(policy, LIST, temperature=0.4)
    target = algorithm.target.network
    error = algorithm.error(batch, generator())
    assert not error.td_error.requires_grad
    log_prob = policy(batch.next_obs).log_softmax(-1).detach()
    for i in range(N):
        future = 0.0
        for a in range(ACTIONS):
            q = []
            for critic in target:
                if form == "all":
                    q.append(critic(batch.next_obs[i])[a])
                else:
                    one_hot = torch.eye(ACTIONS)[a]
                    q.append(critic.by_name.model(batch.next_obs[i], one_hot)[0])
            p = log_prob[i, a].exp()
            future += (p * (min(q) - 0.4 * log_prob[i, a])).item()
        wanted = float(batch.reward[i] + batch.discount[i] * future)
        got = float(error.td_error[i] + error.value[i])
        assert got == pytest.approx(wanted, abs=1e-5)


def test_what_follows_a_termination_may_hold_anything() -> None:
    error, batch = algorithm_for(policy_for(), LIST).error, remembered()
    wanted = error(batch, generator()).td_error
    batch.next_obs[0] = math.nan
    got = error(batch, generator()).td_error
    assert torch.equal(got[0], wanted[0])
    assert got.isfinite().all()


def test_our_own_policy_draws_nothing_to_learn() -> None:
    algorithm, batch = algorithm_for(policy_for(), LIST), remembered()
    source = generator(3)
    before = source.get_state()
    algorithm.error(batch, source)
    algorithm.ascent(batch.obs, source)
    assert torch.equal(source.get_state(), before)


# --- The learner ----------------------------------------------------------------------


def learner_for(config: SACConfig = SMALL, **models: Any) -> OffPolicy:
    """Return a learner with seeded weights."""
    envs = make_envs(partial(flat_env, CARTPOLE), config.num_envs)
    torch.manual_seed(config.seed)
    both = envs.single_observation_space, envs.single_action_space
    number = config.num_critics
    policy: Any
    if models:
        policy = make_own_sac_policy(*both, **models, num_critics=number)
    else:
        policy = make_discrete_sac_policy(*both, config.hidden, number)
    return DiscreteSAC(policy, envs, config)


def test_each_step_moves_its_own_weights_only() -> None:
    assert_each_step_moves_its_own_weights(filled(learner_for()))


@pytest.mark.equation("soft-actor")
def test_the_actors_gradient_is_that_of_the_soft_value() -> None:
    learner: Any = filled(learner_for(replace(SMALL, tune=False, temperature=0.3)))
    policy, obs = learner.policy, learner.sample().obs
    log_prob = policy(obs).log_softmax(-1)
    q = policy.critics(obs).detach()
    loss = (log_prob.exp() * (0.3 * log_prob - q.amin(0))).sum(-1).mean()
    wanted = torch.autograd.grad(loss, list(policy.network.parameters()))
    learner.climb(obs)
    for parameter, grad in zip(policy.network.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=1e-4, atol=1e-6)


def test_metrics_are_in_nats() -> None:
    learner: Any = learner_for()
    rows = [learner.iterate() for _ in range(2)]
    # An untrained policy is nearly uniform.
    assert 0.6 < rows[1]["charts/entropy"] <= math.log(2)
    assert learner.algorithm.temperature.target == pytest.approx(math.log(2) / 2)


RESUMED: list[dict[str, Any]] = [
    *({}, {"num_envs": 2, "train_interval": 2}, {"tune": False, "temperature": 0.2}),
    {"num_steps": 3, "priority_exponent": 0.5, "anneal": True},
]


@pytest.mark.parametrize("changes", RESUMED, ids=str)
def test_a_resumed_run_is_the_same_bit_for_bit(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    config = replace(SMALL, **changes)
    policy = assert_resumed(lambda: learner_for(config), tmp_path / "run")
    assert torch.equal(load(tmp_path / "run").log_alpha, policy.log_alpha)


def test_settings_by_environment() -> None:
    assert discrete_sac_settings("unknown") == SACConfig()
    assert discrete_sac_settings(CARTPOLE).total_steps == 20_000
    for env in (CARTPOLE, PENDULUM):
        known = discrete_sac_settings if env == CARTPOLE else sac_settings
        assert ALGORITHMS["sac"].settings(env) == known(env)


def test_spaces_that_do_not_fit_are_refused() -> None:
    for space in (spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 2])):
        with pytest.raises(ValueError, match="action_space must be Discrete"):
            make_discrete_sac_policy(SEEN, space)


class Name(gym.Env):  # type: ignore[type-arg]
    """One step: the action whose number is shown pays 1, the others nothing."""

    observation_space = spaces.Box(0, 1, (ACTIONS,))
    action_space = spaces.Discrete(ACTIONS, start=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.shown = int(self.np_random.integers(ACTIONS))
        return torch.eye(ACTIONS)[self.shown].numpy(), {}

    def step(self, action: Any) -> Any:
        reward = float(action - 5 == self.shown)
        return torch.eye(ACTIONS)[self.shown].numpy(), reward, True, False, {}


def test_it_learns_what_pays_and_stays_as_random_as_it_is_asked_to() -> None:
    config = replace(
        SMALL,
        total_steps=1500,
        hidden=32,
        learning_rate=3e-3,
        iteration_steps=250,
        batch_size=64,
        buffer_size=1500,
        learning_starts=100,
    )
    envs = gym.vector.SyncVectorEnv([Name])
    both = envs.single_observation_space, envs.single_action_space

    def check(seed: int) -> None:
        torch.manual_seed(seed)
        policy = make_discrete_sac_policy(*both, 32)
        learner = DiscreteSAC(policy, envs, replace(config, seed=seed))
        history = fit(learner, progress=False)
        best = policy.act(torch.eye(ACTIONS), 0.0)
        assert torch.equal(best, torch.arange(ACTIONS))
        assert history[-1]["charts/entropy"] == pytest.approx(math.log(3) / 2, abs=0.15)

    assert_for_most_seeds(check)


# --- Models of the user's -------------------------------------------------------------


class TwoStateValues(Joined):
    """A critic of all discrete actions."""

    def forward(self, near: Tensor, far: Tensor) -> Any:
        return self.inner(torch.cat([near, far], -1))


def models_for(env: str, form: str = "all") -> dict[str, Any]:
    """Return an actor and a critic of the user's for an environment."""
    torch.manual_seed(3)
    if env == CARTPOLE:
        critic = QNetwork(4, 2, 8) if form == "all" else ActionValue(4, 2, 8)
        return {"actor": CategoricalActor(4, 2, 8), "critic": critic}
    two = TwoStateActor(CategoricalActor(5, ACTIONS, 8))
    values: nn.Module = TwoStateValues(QNetwork(5, ACTIONS, 8))
    if form != "all":
        values = TwoStateCritic(ActionValue(5, ACTIONS, 8))
    return {"actor": two, "critic": values}


@pytest.mark.parametrize("form", ["all", "one by one"])
@pytest.mark.parametrize("env", [CARTPOLE, "SACTwoStatesDiscrete-v0"])
def test_models_of_the_users_train_save_and_load(
    env: str, form: str, tmp_path: Path
) -> None:
    assert_models_train(env, partial(models_for, env, form), tmp_path / "run")


def test_an_actor_of_the_users_draws_from_the_learners_seed() -> None:
    runs = []
    for luck in (1, 2):
        learner = learner_for(**models_for(CARTPOLE))
        torch.manual_seed(luck)
        fit(learner, progress=False)
        runs.append(weights(learner.policy))
    assert all(map(torch.equal, *runs))


def test_both_kinds_of_critic_compute_the_same_from_the_same_values() -> None:
    torch.manual_seed(0)
    each = ActionValue(4, ACTIONS, 8)

    class All(nn.Module):
        def forward(self, state: Tensor) -> Tensor:
            rows = [each(state, x.expand(len(state), -1)) for x in torch.eye(ACTIONS)]
            return torch.cat(rows, -1)

    spec = state_spec(SEEN)
    critics = DiscreteCritics(FirstResult(x, spec, ACTIONS) for x in (each, All()))
    one, other = critics(torch.randn(N, 4))
    torch.testing.assert_close(one, other)


class ThreeResults(CategoricalActor):
    """An actor that does not return the log-probabilities of all actions."""

    def forward(self, state: Tensor, action: Tensor | None = None) -> Any:
        return super().forward(state, action)[:3]


def test_models_that_break_the_contract_are_refused() -> None:
    with pytest.raises(ContractError, match="tuple of 4"):
        train("SAC", CARTPOLE, actor=ThreeResults(4, 2), critic=QNetwork(4, 2), **SHORT)
