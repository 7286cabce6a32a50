"""Six rooms: whoever learns of discrete actions learns them, and a fault is named."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from gymnasium.utils.env_checker import check_env

from literate_rl.ppo_error import policy_error_from_log_prob, ppo_policy_loss
from literate_rl.workshop.rooms import (
    ROOMS,
    House,
    house,
    room_answers,
    six_rooms,
    values_and_greedy,
)
from literate_rl.workshop.runs import fit
from literate_rl.workshop.training import ALGORITHMS, make_learner, settings_with

ROLLOUTS = {
    "num_envs": 8,
    "num_steps": 32,
    "lambda_": 0.8,
    "learning_rate": 3e-3,
    "entropy_weight": 0.0,
}
PPO = ROLLOUTS | {"num_epochs": 8, "num_minibatches": 1, "total_steps": 5_120}
REPLAYED = {
    "num_envs": 8,
    "num_steps": 1,
    "hidden": 64,
    "learning_rate": 3e-3,
    "batch_size": 64,
    "train_interval": 2,
    "learning_starts": 200,
    "epsilon_steps": 1000,
    "tau": 0.05,
    "total_steps": 4_000,
    "iteration_steps": 500,
}
LEARNERS: dict[str, dict[str, Any]] = {
    "ppo": PPO,
    "ppg": PPO | {"aux_interval": 10},
    "a2c": ROLLOUTS | {"num_steps": 8, "total_steps": 25_600},
    "impala": {
        "n_sample": 8,
        "unroll_len": 32,
        "batch_size": 8,
        "learning_rate": 3e-3,
        "lambda_": 0.8,
        "entropy_weight": 0.0,
        "total_steps": 10_240,
    },
    "dqn": REPLAYED,
    "rainbow": REPLAYED
    | {"total_steps": 2_500, "num_steps": 3, "value_min": -2.0, "value_max": 6.0},
    "sac": REPLAYED | {"total_steps": 3_000, "tune": False, "temperature": 0.02},
}


def trained(algorithm: str, **changes: Any) -> Any:
    """Return a learner that has lived in the house."""
    default = ALGORITHMS[algorithm].settings("")
    known = {field.name for field in fields(default)}
    gamma = "discount_factor" if "discount_factor" in known else "gamma"
    wanted = LEARNERS[algorithm] | {"seed": 1, gamma: 0.8, "anneal": False} | changes
    config = settings_with(default, {k: x for k, x in wanted.items() if k in known})
    return make_learner(algorithm, house, config, {})


def functions(name: str, learner: Any) -> tuple[Any, Any]:
    """Return the values and the probabilities that a learner answers with."""
    policy = learner.policy
    if name in ("dqn", "rainbow"):
        return values_and_greedy(policy)
    prob = lambda obs: policy(obs).softmax(-1)  # noqa: E731
    if name == "sac":
        return values_and_greedy(lambda obs: policy.critics(obs).amin(0))[0], prob
    return policy.value, prob


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_of_discrete_actions_is_right_in_all_rooms(name: str) -> None:
    learner = trained(name)
    fit(learner, progress=False)
    assert set(six_rooms(*functions(name, learner))) == set(ROOMS)


def uphill(*terms: Any) -> Any:
    (policy_loss, entropy_loss), info = policy_error_from_log_prob(*terms)
    return ppo_policy_loss(-policy_loss, entropy_loss), info


def joined(learner: Any) -> None:
    """Call each truncation a termination."""
    collect = learner.collect

    def one_flag() -> Any:
        batch = collect()
        done = batch.terminated | batch.truncated
        return batch._replace(terminated=done, truncated=torch.zeros_like(done))

    learner.collect = one_flag


def test_a_fault_is_found_in_its_rooms_and_nowhere_else() -> None:
    learner = trained("ppo")
    learner.policy_error = uphill
    fit(learner, progress=False)
    with pytest.raises(AssertionError, match="2 of 6 rooms are wrong") as caught:
        six_rooms(*functions("ppo", learner))
    assert "\n  chooses  expected 1, got 0." in str(caught.value)
    assert "\n  both     expected 1, got 0." in str(caught.value)

    learner = trained("ppo")
    joined(learner)
    fit(learner, progress=False)
    with pytest.raises(AssertionError, match="1 of 6 rooms is wrong") as caught:
        six_rooms(*functions("ppo", learner))
    assert "lasts    expected 5, got" in str(caught.value)
    assert "the two flags" in str(caught.value)


def exact(obs: torch.Tensor) -> torch.Tensor:
    return obs @ torch.tensor([1.0, 1, -1, 0.8, 1, 5, 1, 1, 1])


def best(obs: torch.Tensor) -> torch.Tensor:
    right = obs @ torch.tensor([0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1, 1, 0])
    return torch.stack([1 - right, right], -1)


def test_exact_answers_pass_in_any_form() -> None:
    told = six_rooms(exact, best, 1e-4)
    assert told == pytest.approx({room: answer for room, (answer, _) in ROOMS.items()})
    column = six_rooms(lambda obs: exact(obs).unsqueeze(-1), best)
    assert column == told
    assert six_rooms(lambda obs: exact(obs).tolist(), lambda x: best(x).numpy()) == told
    # Of what it does not do an action value only has to be lower.
    value, prob = values_and_greedy(lambda obs: exact(obs)[:, None] * best(obs))
    assert room_answers(value, prob)["both"] == 1


@pytest.mark.parametrize(
    ("value", "prob", "words"),
    [
        (exact, lambda obs: torch.zeros(9, 2), r"rows that sum to 1, got sums from 0 "),
        (exact, exact, r"prob must return \(9, 2\), got \(9,\)"),
        (best, best, r"value must return \(9,\), got \(9, 2\)"),
    ],
)
def test_what_is_no_answer_is_refused(value: Any, prob: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        six_rooms(value, prob)


def test_nan_is_wrong() -> None:
    with pytest.raises(AssertionError, match=r"pays +expected 1, got nan"):
        six_rooms(lambda obs: exact(obs) * torch.nan, best)


def test_the_house_keeps_gymnasiums_interface() -> None:
    check_env(House(), skip_render_check=True)
    env = house()
    env.reset(seed=1)
    env.unwrapped.state = 5
    ends = [env.step(0)[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]
    env.reset(seed=1)
    env.unwrapped.state = 3
    assert [env.step(0)[1:3] for _ in range(2)] == [(0.0, False), (1.0, True)]
