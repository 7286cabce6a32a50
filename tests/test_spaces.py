"""Spaces: the stored table of agents and spaces still holds, and refusals help."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TransformAction  # noqa: F401 (the page needs it)

from benchmarks import spaces as table
from benchmarks.spaces import (
    DONE,
    SEEN,
    USUAL_ACTION,
    USUAL_OBSERVATION,
    Sampled,
    outcome,
    small_learner,
    train_a_little,
)
from literate_rl.apps.training import ALGORITHMS
from literate_rl.book.contract_models import CategoricalActor, StateValue
from literate_rl.ground.nests import REASONS, SpaceError
from literate_rl.runs.runs import flat_env

STORED = table.stored()


def usual_pairs(name):
    """Each observation with the usual action, and the other way round."""
    action = USUAL_ACTION[name]
    return [(x, action) for x in SEEN] + [(USUAL_OBSERVATION, y) for y in DONE]


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.filterwarnings("ignore:.*Box")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_has_trained_still_trains(name):
    for seen, done in usual_pairs(name):
        assert outcome(name, seen, done) == STORED[name, seen, done], (seen, done)


def refused(name, seen, done, **models):
    """Return what an agent says of an environment that it does not take."""
    env = partial(Sampled, seen, done)
    with pytest.raises(SpaceError) as refusal, small_learner(name, env, **models):
        pass
    return str(refusal.value)


REFUSED = [
    ("dqn", "float32", "MultiDiscrete, table", "kind"),
    ("ppo", "float32", "integers", "kind"),
    ("ppg", "float32", "MultiDiscrete, none", "shape"),
    ("td3", "float32", "half bounded", "bounds"),
    ("sac", "float32", "equal bounds", "bounds"),
    ("impala", "float32", "hybrid, no mask", "mask"),
    ("dqn", "Text beside a picture", "Discrete", "numbers"),
    ("ddpg", "Graph", "Box", "numbers"),
]


@pytest.mark.parametrize(("name", "seen", "done", "reason"), REFUSED)
def test_a_refusal_is_one_sentence_with_a_reason_and_what_to_do(
    name, seen, done, reason
):
    said = refused(name, SEEN[seen], DONE[done])
    assert "\n" not in said
    assert len(said) < 700
    assert said.endswith(f": {REASONS[reason]}")
    # Who refuses, unless nobody could have taken it.
    assert said.startswith((f"{name.upper()}'s ", "env must"))
    if seen == "float32":
        assert f", got {' '.join(str(DONE[done]).split())}: " in said


def test_what_is_wrong_is_named_by_its_way_from_the_outside():
    world = spaces.Dict(near=spaces.Tuple((SEEN["float32"], spaces.Text(3))))
    said = refused("dqn", world, DONE["Discrete"])
    assert re.match(r"DQN's observation_space\['near'\]\[1\] must .* got Text", said)


class Words(spaces.Space[str]):
    """A space of somebody else's, which does not say what it is."""


PAGES = spaces.Dict({str(k): spaces.Text(9) for k in range(50)})


@pytest.mark.parametrize(
    "world",
    [Words(), spaces.Dict(a=SEEN["float32"], b=Words()), spaces.Sequence(PAGES)],
)
def test_a_space_that_is_no_row_of_numbers_is_refused(world):
    with pytest.raises(SpaceError, match=r"flattened, got .*no row") as refusal:
        flat_env(Sampled, seen=world, done=DONE["Discrete"])
    assert len(str(refusal.value)) < 700


def test_models_of_ones_own_take_one_choice_or_numbers():
    models = {"actor": CategoricalActor(3, 2), "critic": StateValue(3)}
    said = refused("ppo", SEEN["float32"], DONE["MultiDiscrete"], **models)
    assert "PPO's action_space must be Discrete or a Box" in said


PAGE = Path(__file__).parents[1] / "docs/spaces.md"


def test_the_page_explains_each_reason_and_what_it_advises_helps():
    page = PAGE.read_text()
    for reason, words in REASONS.items():
        assert f"\n### {reason}\n\n> {words.partition(';')[0]}\n" in page
    # The two wrappers of the page, for agents that refuse without them.
    one_list, choices, *_ = re.findall(r"^env = (.*)$", page, flags=re.MULTILINE)
    for name, done, code in (
        ("dqn", spaces.MultiDiscrete([2, 3]), one_list),
        ("ppo", spaces.Box(0, 5, (2,), np.int64), choices),
    ):
        assert refused(name, SEEN["float32"], done)

        def make(code=code, done=done):
            return eval(code, {**globals(), "env": Sampled(SEEN["float32"], done)})

        with small_learner(name, make) as learner:
            train_a_little(learner)
