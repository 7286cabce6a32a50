"""Six rooms: whoever learns of discrete actions learns them, and a fault is named."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from gymnasium.utils.env_checker import check_env

from literate_rl.apps.training import ALGORITHMS, make_learner, settings_with
from literate_rl.book.rooms import (
    ROOMS,
    House,
    house,
    room_answers,
    six_rooms,
    values_and_greedy,
    visit_rooms,
)
from literate_rl.runs.runs import fit

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
        "num_envs": 8,
        "num_steps": 32,
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


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_of_discrete_actions_is_right_in_all_rooms(name):
    default = ALGORITHMS[name].settings("")
    wanted = LEARNERS[name] | {"seed": 1, "gamma": 0.8, "anneal": False}
    known = {field.name for field in fields(default)} & wanted.keys()

    def after(times):
        changes = {x: wanted[x] for x in known}
        changes["total_steps"] *= times
        learner = make_learner(name, house, settings_with(default, changes), {})
        fit(learner, progress=False)
        policy = learner.policy
        if name in ("dqn", "rainbow"):
            return values_and_greedy(policy)
        prob = lambda obs: policy(obs).softmax(-1)  # noqa: E731
        if name == "sac":
            return values_and_greedy(lambda obs: policy.critics(obs).amin(0))[0], prob
        return policy.value, prob

    told, _ = visit_rooms(after, 1)
    assert set(told) == set(ROOMS)


def exact(obs: torch.Tensor) -> torch.Tensor:
    return obs @ torch.tensor([1.0, 1, -1, 0.8, 1, 5, 1, 1, 1])


def best(obs: torch.Tensor) -> torch.Tensor:
    right = obs @ torch.tensor([0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1, 1, 0])
    return torch.stack([1 - right, right], -1)


def test_exact_answers_pass_in_any_form():
    told = six_rooms(exact, best, 1e-4)
    assert told == pytest.approx({room: answer for room, (answer, _) in ROOMS.items()})
    assert six_rooms(lambda obs: exact(obs).unsqueeze(-1), best) == told
    assert six_rooms(lambda obs: exact(obs).tolist(), lambda x: best(x).numpy()) == told
    # Of what it does not do an action value only has to be lower.
    value, prob = values_and_greedy(lambda obs: exact(obs)[:, None] * best(obs))
    assert room_answers(value, prob)["both"] == 1


def test_wrong_answers_are_named_and_logits_are_none():
    with pytest.raises(AssertionError) as caught:
        six_rooms(exact, lambda obs: torch.full((9, 2), 0.5))
    head, chooses, both = str(caught.value).splitlines()
    assert head == "2 of 6 rooms are wrong"
    assert "chooses" in chooses
    assert both.endswith(f"got 0.50: {ROOMS['both'][1]}")
    with pytest.raises(AssertionError, match=r"pays +expected 1, got nan"):
        six_rooms(lambda obs: exact(obs) * torch.nan, best)
    with pytest.raises(ValueError, match="logits need a softmax"):
        six_rooms(exact, lambda obs: torch.zeros(9, 2))


def test_the_house_keeps_gymnasiums_interface():
    check_env(House(), skip_render_check=True)
    env = house()
    env.reset(seed=1)
    env.unwrapped.state = 5
    ends = [env.step(0)[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]


# --- A right learner gets time --------------------------------------------------------


def answering(*rooms: float) -> tuple[Any, Any]:
    """Return the functions of a learner that gives these answers."""
    pays, reads, waits, lasts, chooses, both = rooms
    value = torch.tensor([pays, reads, -reads, waits, 0, lasts, 0, 0, 0])
    right = torch.tensor([0.5, 0.5, 0.5, 0.5, 0.5, 0.5, chooses, both, 1 - both])
    probs = torch.stack([1 - right, right], 1)
    return lambda obs: value[obs.argmax(-1)], lambda obs: probs[obs.argmax(-1)]


def verdict(table: str) -> tuple[int, str, str]:
    """Return when a learner that answers as a table says is judged, and how.

    The table has a row for each visit. What comes back is the number of iterations,
    the rooms that are called wrong, and those that are not there yet.
    """
    rows = iter([float(x) for x in row.split()] for row in table.strip().splitlines())
    try:
        return visit_rooms(lambda iterations: answering(*next(rows)))[1], "", ""
    except AssertionError as error:
        head, *said = str(error).splitlines()
    wrong = [x.split()[0] for x in said if x.endswith(ROOMS[x.split()[0]][1])]
    moving = [x.split()[0] for x in said if x.endswith(": not there yet")]
    assert len(wrong) + len(moving) == len(said)
    return int(head.split()[1]), " ".join(wrong), " ".join(moving)


# What the solution of the exercise in the chapter on PPO answered after each of them,
# with another rate or with a fault.
VERDICTS = {
    "right, rate 3e-4": (
        120,
        "",
        "",
        """1.10 .41 .98 1.73 .89 .79
        1.20 .70 .93 3.34 .95 .94
        1.01 .98 .80 4.94 1 1""",
    ),
    "right at once": (30, "", "", "1 1 .8 5 1 1"),
    "on its way, rate 1e-4": (
        240,
        "",
        "reads lasts",
        """.41 .10 .45 .60 .71 .65
        .79 .24 .79 1.16 .79 .72
        1.26 .53 1.03 2.34 .90 .88
        1.09 .82 .86 4.30 .99 .98""",
    ),
    "one flag": (60, "lasts", "", "1 .97 .80 2.46 .99 .99\n1 1 .8 2.44 1 1"),
    "no end, slowly": (
        120,
        "pays reads waits",
        "",
        "1.26 .35 1.31 1.67 .87 .75\n2.71 1.02 2.40 3.36 .96 .90\n4.46 2.65 3.53 5 1 1",
    ),
    "wrong sign": (60, "chooses both", "", "1.02 .97 .82 4.71 .01 .01\n1 1 .8 5 0 0"),
    "not a number": (60, "pays", "", "nan 1 .8 5 1 1\nnan 1 .8 5 1 1"),
    "a fault beside what still moves": (
        240,
        "pays waits lasts",
        "reads",
        "0 .41 0 0 .9 .8\n0 .5 0 0 .95 .9\n0 .6 0 0 1 1\n0 .75 0 0 1 1",
    ),
    "nothing moves": (60, " ".join(ROOMS), "", "0 0 0 0 .5 .5\n0 0 0 0 .5 .5"),
}


@pytest.mark.parametrize(
    ("after", "wrong", "moving", "table"), VERDICTS.values(), ids=VERDICTS
)
def test_a_learner_gets_time_as_long_as_it_moves(after, wrong, moving, table):
    assert verdict(table) == (after, wrong, moving)


def test_a_verdict_has_the_answers_before_and_after():
    words = "lasts +expected 5, got 2.46, with twice the training 2.44: the two flags"
    with pytest.raises(AssertionError, match=words):
        visit_rooms(lambda n: answering(1, 1, 0.8, 2.46 if n == 30 else 2.44, 1, 1))
