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
from literate_rl.ground.nests import REASONS, SpaceError
from literate_rl.runs.runs import flat_env

STORED = table.stored()
# Those in one line have the same networks, so they share the spaces.
ALIKE = [
    ["impala", "a2c", "a3c"],
    ["dqn", "dqnper", "dqnapex"],
    ["rainbow", "rainbowapex"],
    ["ddpg", "ddpgper", "ddpgapex", "hddpg", "td3"],
    *(["sac"], ["ppo"], ["ppg"]),
]


def usual_pairs(name):
    """Each observation with the usual action, and the other way round."""
    action = USUAL_ACTION[name]
    return [(x, action) for x in SEEN] + [(USUAL_OBSERVATION, y) for y in DONE]


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.filterwarnings("ignore:.*Box")
@pytest.mark.parametrize("names", ALIKE)
def test_what_has_trained_still_trains(names):
    for number, (seen, done) in enumerate(usual_pairs(names[0])):
        name = names[number % len(names)]
        pair = name, seen, done
        assert outcome(*pair) == STORED[pair], pair


def test_no_algorithm_is_left_out():
    assert {name for names in ALIKE for name in names} == ALGORITHMS.keys()


def refused(name, seen, done, **models):
    """Return what an agent says of an environment that it does not take."""
    env = partial(Sampled, seen, done)
    with pytest.raises(SpaceError) as refusal, small_learner(name, env, **models):
        pass
    return str(refusal.value)


REFUSED = [
    ("dqn", "float32", "MultiDiscrete, table", "kind"),
    ("ppg", "float32", "MultiDiscrete, none", "shape"),
    ("sac", "float32", "equal bounds", "bounds"),
    ("impala", "float32", "hybrid, no mask", "mask"),
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


def test_a_space_that_is_no_row_of_numbers_is_refused():
    world = spaces.Sequence(spaces.Text(9))
    with pytest.raises(SpaceError, match=r"flattened, got .*no row"):
        flat_env(Sampled, seen=world, done=DONE["Discrete"])


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
