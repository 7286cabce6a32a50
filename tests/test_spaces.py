"""Spaces: the stored table of agents and spaces still holds, and refusals help."""

from __future__ import annotations

import csv
import re
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TransformAction

from benchmarks import spaces as table
from benchmarks.spaces import (
    DONE,
    SEEN,
    TRAINS,
    USUAL_ACTION,
    USUAL_OBSERVATION,
    Sampled,
    outcome,
    small_learner,
    train_a_little,
)
from literate_rl.apps.training import ALGORITHMS
from literate_rl.book.contract_models import CategoricalActor, StateValue
from literate_rl.check.contracts import check_model
from literate_rl.ground.nests import REASONS, SpaceError
from literate_rl.runs.runs import flat_env

STORED = table.stored()


def test_the_table_has_all_agents_and_all_spaces() -> None:
    every = {(name, x, y) for name in ALGORITHMS for x in SEEN for y in DONE}
    assert set(STORED) == every
    assert {TRAINS, *REASONS} == {*STORED.values()}
    assert len(REASONS) == 5


def usual_pairs(name: str) -> list[tuple[str, str]]:
    """Each observation with the usual action, and the other way round."""
    action = USUAL_ACTION[name]
    return [(x, action) for x in SEEN] + [(USUAL_OBSERVATION, y) for y in DONE]


def other_pairs(name: str) -> list[tuple[str, str]]:
    """Each observation with one of all actions in turn."""
    start, actions = list(ALGORITHMS).index(name), list(DONE)
    return [(x, actions[(start + 5 * k) % len(actions)]) for k, x in enumerate(SEEN)]


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.filterwarnings("ignore:.*Box")
@pytest.mark.parametrize("pairs", [usual_pairs, other_pairs])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_has_trained_still_trains(name: str, pairs: Any) -> None:
    for seen, done in pairs(name):
        assert outcome(name, seen, done) == STORED[name, seen, done], (seen, done)


REFUSED = {
    ("dqn", "float32", "MultiDiscrete, table"): "kind",
    ("rainbow", "float32", "MultiBinary"): "kind",
    ("sac", "float32", "MultiDiscrete"): "kind",
    ("ppo", "float32", "integers"): "kind",
    ("ppo", "float32", "boxes"): "kind",
    ("a2c", "float32", "table"): "shape",
    ("ppg", "float32", "MultiDiscrete, none"): "shape",
    ("td3", "float32", "half bounded"): "bounds",
    ("sac", "float32", "equal bounds"): "bounds",
    ("impala", "float32", "hybrid, no mask"): "mask",
    ("ppo", "Text among others", "Discrete"): "numbers",
    ("dqn", "Text beside a picture", "Discrete"): "numbers",
    ("ddpg", "Graph", "Box"): "numbers",
    ("ppo", "nothing", "Discrete"): "numbers",
}


@pytest.mark.parametrize(("case", "reason"), REFUSED.items())
def test_a_refusal_is_one_sentence_with_a_reason_and_what_to_do(
    case: tuple[str, str, str], reason: str
) -> None:
    name, seen, done = case
    env = partial(Sampled, SEEN[seen], DONE[done])
    with pytest.raises(SpaceError) as refused, small_learner(name, env):
        pass
    said = str(refused.value)
    assert "\n" not in said
    assert len(said) < 700
    assert said.endswith(f": {REASONS[reason]}")
    space = DONE[done] if REASONS["numbers"] not in said else SEEN[seen]
    named = seen != "Text among others" and seen != "Text beside a picture"
    assert not named or f", got {' '.join(str(space).split())}: " in said
    # Who refuses, unless nobody could have taken it.
    assert said.startswith((f"{name.upper()}'s ", "env must"))


def test_what_is_wrong_is_named_by_its_way_from_the_outside() -> None:
    world = spaces.Dict(near=spaces.Tuple((SEEN["float32"], spaces.Text(3))))
    words = r"DQN's observation_space\['near'\]\[1\] must be a Box, .* got Text"
    with (
        pytest.raises(SpaceError, match=words),
        small_learner("dqn", partial(Sampled, world, DONE["Discrete"])),
    ):
        pass


class Words(spaces.Space[str]):
    """A space of somebody else's, which does not say what it is."""


def test_a_space_that_knows_nothing_of_itself_is_refused() -> None:
    for world in (Words(), spaces.Dict(a=SEEN["float32"], b=Words())):
        with pytest.raises(SpaceError, match=r"can be flattened, got .*no row of num"):
            flat_env(Sampled, seen=world, done=DONE["Discrete"])


def test_models_of_ones_own_take_one_choice_or_numbers() -> None:
    world = partial(Sampled, SEEN["float32"], DONE["MultiDiscrete"])
    models: dict[str, Any] = {"actor": CategoricalActor(3, 2), "critic": StateValue(3)}
    with (
        pytest.raises(SpaceError, match="PPO's action_space must be Discrete or a Box"),
        small_learner("ppo", world, **models),
    ):
        pass
    with pytest.raises(SpaceError, match="the action space must be Discrete or a Box"):
        check_model("PPO", env=world, **models)


PAGE = Path(__file__).parents[1] / "docs/spaces.md"


def test_the_page_explains_each_reason_and_what_it_advises_helps() -> None:
    page = PAGE.read_text()
    for reason, words in REASONS.items():
        said = words.partition(";")[0]
        assert f"\n### {reason}\n\n> {said}\n" in page
    # The two wrappers of the page, for agents that refuse without them.
    one_list, choices, *_ = re.findall(r"^env = (.*)$", page, flags=re.MULTILINE)
    for name, done, wrapped in (
        ("dqn", spaces.MultiDiscrete([2, 3]), one_list),
        ("ppo", spaces.Box(0, 5, (2,), np.int64), choices),
    ):
        plain = partial(Sampled, SEEN["float32"], done)
        with pytest.raises(SpaceError), small_learner(name, plain):
            pass
        names = {"TransformAction": TransformAction, "spaces": spaces, "np": np}
        code = compile(wrapped, PAGE.name, "eval")
        make = partial(wrapped_by, code, names, plain)
        with small_learner(name, make) as learner:
            train_a_little(learner)


def wrapped_by(code: Any, names: dict[str, Any], make: Any) -> gym.Env[Any, Any]:
    wrapped: gym.Env[Any, Any] = eval(code, {**names, "env": make()})
    return wrapped


def test_a_space_that_fills_pages_is_shortened() -> None:
    world = spaces.Dict({str(k): spaces.Text(9) for k in range(50)})
    with pytest.raises(SpaceError) as refused:
        flat_env(Sampled, seen=spaces.Sequence(world), done=DONE["Discrete"])
    assert len(str(refused.value)) < 700


def test_a_pair_that_has_trained_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The benchmark stores more pairs than before, never fewer."""
    results = {"ppo": TRAINS, "dqn": "kind"}
    monkeypatch.setattr(table, "PATH", tmp_path / "spaces.csv")
    monkeypatch.setattr(
        table, "product", lambda: [[k, "number", x] for k, x in results.items()]
    )
    monkeypatch.setattr(table, "DONE", {"Box": DONE["Box"]})
    table.main()
    results["dqn"] = TRAINS
    table.main()
    first = (tmp_path / "spaces.csv").read_text()
    assert [*csv.reader(first.splitlines())][-1] == ["dqn", "number", TRAINS]
    results["ppo"] = "bounds"
    with pytest.raises(SystemExit, match="trained before: ppo, number, Box"):
        table.main()
    assert (tmp_path / "spaces.csv").read_text() == first
