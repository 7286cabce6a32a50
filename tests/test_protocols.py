"""Interfaces: a policy of the package remembers how it was built."""

import inspect
import json
from functools import partial

import pytest
from gymnasium import spaces

from literate_rl import (
    make_contract_policy,
    make_ddpg_policy,
    make_hybrid_policy,
    make_phasic_policy,
    make_policy,
    make_q_policy,
)
from literate_rl.book.contract_models import CategoricalActor, StateValue
from literate_rl.data.worlds import Moving
from literate_rl.ground.nests import MODELS, as_space

LIST, VECTOR, FORCES = spaces.Discrete(2), *(spaces.Box(-1, 1, (n,)) for n in (4, 1))
PICTURE = spaces.Box(0, 255, (3, 8, 8), "uint8")
OWN = CategoricalActor(4, 2), StateValue(4)
WORLD = Moving()
MAKERS = [
    partial(make_policy, PICTURE, FORCES, share_encoder=True),
    partial(make_hybrid_policy, WORLD.observation_space, WORLD.action_space),
    partial(make_phasic_policy, VECTOR, FORCES),
    partial(make_contract_policy, VECTOR, LIST, *OWN),
    partial(make_q_policy, PICTURE, LIST, convolutions=[[4, 3, 2]], dueling=True),
    partial(make_ddpg_policy, VECTOR, LIST),
]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.func.__name__)
def test_a_policy_remembers_how_it_was_built(make):
    recipe = name, arguments = make().recipe
    bound = inspect.signature(make.func).bind(*make.args, **make.keywords).arguments
    given = {key: x for key, x in bound.items() if key not in MODELS}
    models = {key: x for key, x in bound.items() if key in MODELS}
    named = {key: type(x).__name__ for key, x in models.items()}
    assert (name, arguments.get("models", {})) == (make.func.__name__, named)
    plain = json.loads(json.dumps(arguments))
    plain.pop("models", None)
    built = {key: as_space(x) for key, x in plain.items() if key.endswith("_space")}
    assert given.items() <= (plain | built).items()
    assert make.func(**plain, **models).recipe == recipe
