"""Interfaces: each policy of the package has what they ask for."""

from __future__ import annotations

import inspect
import json
from functools import partial
from typing import Any

import pytest
import torch
from gymnasium import spaces
from test_edges import Drawer, Judge, Mover, Worth
from torch import Tensor, nn

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
from literate_rl.data.worlds import Moving
from literate_rl.ground.nests import MODELS, as_space
from literate_rl.ground.networks import eval_mode

LIST, VECTOR, FORCES = spaces.Discrete(2), *(spaces.Box(-1, 1, (n,)) for n in (4, 1))
PICTURE = spaces.Box(0, 255, (3, 8, 8), "uint8")
THREE, PAIR = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))
WORLD = Moving()


class Logits(Drawer):
    """An actor over a list that says all log-probabilities."""

    def forward(self, state: Tensor, action: Any = None) -> tuple[Tensor, ...]:
        return *super().forward(state, action), self.layer(state).log_softmax(-1)


class Squashed(nn.Linear):
    """An actor in a box."""

    def forward(self, state: Tensor, action: Any = None) -> tuple[Tensor, ...]:
        dist = torch.distributions.Normal(super().forward(state), 0.1)
        action = dist.rsample().clamp(-1, 1) if action is None else action
        terms = dist.log_prob(action).sum(-1, True), dist.entropy().sum(-1, True)
        return action, *terms


# What remembers reads windows, and has tests of its own.
MINDING = [
    partial(make_policy, VECTOR, LIST),
    partial(make_policy, PICTURE, LIST),
    partial(make_hybrid_policy, WORLD.observation_space, WORLD.action_space),
    partial(make_phasic_policy, PICTURE, LIST),
    partial(make_q_policy, VECTOR, LIST, dueling=True),
    partial(make_q_policy, PICTURE, LIST, convolutions=[[4, 3, 2]], dueling=True),
    partial(make_qnet_policy, VECTOR, LIST, nn.Linear(4, 2)),
    partial(make_rainbow_policy, VECTOR, LIST),
    partial(make_rainbow_policy, PICTURE, LIST, noisy=False),
    partial(make_discrete_sac_policy, VECTOR, LIST),
    partial(make_discrete_sac_policy, PICTURE, LIST),
]
REFUSING = [
    partial(make_policy, VECTOR, FORCES, normalize=True),
    partial(make_policy, PICTURE, FORCES, share_encoder=True),
    partial(make_phasic_policy, VECTOR, FORCES),
    partial(make_contract_policy, VECTOR, LIST, Drawer(), Worth()),
    partial(make_ddpg_policy, VECTOR, FORCES),
    partial(make_ddpg_policy, PICTURE, FORCES),
    partial(make_ddpg_policy, VECTOR, LIST),
    partial(make_sac_policy, VECTOR, FORCES),
    partial(make_sac_policy, PICTURE, FORCES),
    partial(make_own_ddpg_policy, THREE, PAIR, Mover(), Judge()),
    partial(make_own_sac_policy, THREE, PAIR, Squashed(3, 2), Judge()),
    partial(make_own_sac_policy, VECTOR, LIST, Logits(), nn.Linear(4, 2)),
]
MAKERS = [
    pytest.param(x, id=f"{x.func.__name__} {i}")
    for i, x in enumerate(MINDING + REFUSING)
]


def test_no_maker_of_policies_is_forgotten() -> None:
    public = {x for x in dir(literate_rl) if x[:5] == "make_" and x[-7:] == "_policy"}
    known = {make.func.__name__ for make in MINDING + REFUSING}
    assert public == known | {"make_recurrent_policy"}


@pytest.mark.parametrize("make", MAKERS)
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


@pytest.mark.parametrize("make", MAKERS)
def test_a_policy_minds_which_actions_are_legal_or_refuses_a_mask(make: Any) -> None:
    policy, space = make(), make.args[0]
    obs = torch.stack([torch.as_tensor(space.sample()).float() for _ in range(3)])
    noise = policy.noise(1, 3, torch.Generator().manual_seed(0))[0]
    number = 3 if make.func is make_hybrid_policy else 2
    mask = torch.eye(number)[[0, 1, 0]] == 1
    with torch.no_grad(), eval_mode(policy):
        for given in (noise, 0.0):
            action = policy.act(obs, given, mask=None)
            assert torch.equal(action, policy.act(obs, given))
            if make in MINDING:
                taken = policy.act(obs, given, mask=mask)
                assert taken.reshape(3, -1)[:, 0].tolist() == [0, 1, 0]
        if make in REFUSING:
            for method, more in (
                (policy.act, noise),
                (policy.evaluate_actions, action),
            ):
                with pytest.raises(ValueError, match=r"mask must be None for \w+, wh"):
                    method(obs, more, mask=mask)
        elif number == 2:
            terms = policy.evaluate_actions(obs, torch.tensor([0, 1, 0]), mask=mask)
            assert torch.stack(terms).tolist() == [[0.0] * 3] * 2
