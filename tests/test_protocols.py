"""Interfaces: each policy of the package has what they ask for."""

from __future__ import annotations

import inspect
import json
from functools import partial
from typing import Any

import pytest
from gymnasium import spaces
from torch import nn

import literate_rl
from literate_rl import (
    make_contract_policy,
    make_ddpg_policy,
    make_discrete_sac_policy,
    make_hybrid_policy,
    make_own_ddpg_policy,
    make_own_sac_policy,
    make_phasic_policy,
    make_policy,
    make_q_policy,
    make_qnet_policy,
    make_rainbow_policy,
    make_sac_policy,
)
from literate_rl.book.contract_models import (
    ActionValue,
    CategoricalActor,
    DeterministicActor,
    SquashedGaussianActor,
    StateValue,
)
from literate_rl.data.worlds import Moving
from literate_rl.ground.nests import MODELS, as_space

LIST, VECTOR, FORCES = spaces.Discrete(2), *(spaces.Box(-1, 1, (n,)) for n in (4, 1))
PICTURE = spaces.Box(0, 255, (3, 8, 8), "uint8")
JUDGE, DRAWER = ActionValue(4, 1), CategoricalActor(4, 2)
MOVER, SQUASHED = (
    kind(4, [-1.0], [1.0]) for kind in (DeterministicActor, SquashedGaussianActor)
)
WORLD = Moving()


# What remembers reads windows, and has tests of its own.
MAKERS = [
    partial(make_policy, PICTURE, LIST),
    partial(make_policy, VECTOR, FORCES, normalize=True),
    partial(make_policy, PICTURE, FORCES, share_encoder=True),
    partial(make_hybrid_policy, WORLD.observation_space, WORLD.action_space),
    partial(make_phasic_policy, PICTURE, LIST),
    partial(make_phasic_policy, VECTOR, FORCES),
    partial(make_contract_policy, VECTOR, LIST, DRAWER, StateValue(4)),
    partial(make_q_policy, PICTURE, LIST, convolutions=[[4, 3, 2]], dueling=True),
    partial(make_qnet_policy, VECTOR, LIST, nn.Linear(4, 2)),
    partial(make_rainbow_policy, PICTURE, LIST, noisy=False),
    partial(make_ddpg_policy, PICTURE, FORCES),
    partial(make_ddpg_policy, VECTOR, LIST),
    partial(make_sac_policy, VECTOR, FORCES),
    partial(make_own_ddpg_policy, VECTOR, FORCES, MOVER, JUDGE),
    partial(make_own_sac_policy, VECTOR, FORCES, SQUASHED, JUDGE),
    partial(make_own_sac_policy, VECTOR, LIST, DRAWER, nn.Linear(4, 2)),
    partial(make_discrete_sac_policy, PICTURE, LIST),
]


def test_no_maker_of_policies_is_forgotten() -> None:
    public = {x for x in dir(literate_rl) if x[:5] == "make_" and x[-7:] == "_policy"}
    known = {make.func.__name__ for make in MAKERS}
    assert public == known | {"make_recurrent_policy"}


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.func.__name__)
def test_a_policy_remembers_how_it_was_built(make: Any) -> None:
    recipe = name, arguments = make().recipe
    signature = inspect.signature(make.func)
    given = signature.bind(*make.args, **make.keywords)
    given.apply_defaults()
    wanted = given.arguments
    # What came later than others is told where it is not the default.
    for x in signature.parameters.values():
        if x.kind is x.KEYWORD_ONLY and wanted[x.name] == x.default:
            del wanted[x.name]
    models = {key: wanted.pop(key) for key in MODELS if key in wanted}
    named = {key: type(x).__name__ for key, x in models.items()}
    assert arguments.get("models", {}) == named
    plain = json.loads(json.dumps(arguments))
    plain.pop("models", None)
    built = {key: as_space(x) for key, x in plain.items() if key.endswith("_space")}
    if name == "make_hybrid_policy":
        wanted["mask"] = [[True, False], [False, True], [False, False]]  # of the space
    assert (name, plain | built) == (make.func.__name__, wanted)
    assert make.func(**plain, **models).recipe == recipe
