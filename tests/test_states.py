"""States by name: they are named, split from a vector, and passed to a model."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from worlds import Tower, TwoStates

from literate_rl.book.contract_models import CategoricalActor
from literate_rl.check.states import ByName, StateSpec, look_around, state_spec
from literate_rl.runs.runs import flat_env

FOUR = spaces.Box(-1, 1, (4,))


class Scaled(nn.Linear):
    def forward(self, state: Tensor, scale: float) -> Tensor:
        return scale * super().forward(state)


def test_state_spec_reads_names_shapes_and_dtypes():
    both = spaces.Tuple((spaces.Discrete(5), spaces.Box(-1, 1, ())))
    tower = ("picture", "speed"), ((3, 6, 6), (2,)), (torch.uint8, None)
    for space, *wanted in (
        (Tower().observation_space, *tower),
        (FOUR, ("state",), ((4,),), (None,)),
        (both, ("state_0", "state_1"), ((5,), (1,)), (None, None)),
    ):
        assert state_spec(space) == StateSpec(*wanted)


def test_a_lone_picture_may_come_as_it_is_or_flat():
    spec = state_spec(spaces.Box(0, 1, (3, 6, 6)))
    picture = torch.rand(5, 2, 3, 6, 6)
    for given in (picture, picture.flatten(2)):
        assert torch.equal(spec.split(given)["state"], picture)


@pytest.mark.parametrize("lead", [(), (4,), (5, 2)])
def test_by_name_flattens_what_stands_in_front_and_puts_it_back(lead):
    actor = CategoricalActor(4, 3)
    obs, action = torch.randn(*lead, 4), torch.randint(0, 3, (*lead, 1))
    results = ByName(actor, state_spec(FOUR))(obs, action=action)
    rows = actor(obs.reshape(-1, 4), action.reshape(-1, 1))
    for one, other, size in zip(results, rows, (1, 1, 1, 3), strict=True):
        assert torch.equal(one, other.reshape(*lead, size))


def test_by_name_knows_wrappers_extras_and_a_lone_tensor():
    two = StateSpec(("cart", "pole"), ((4,), (2,)), (None, None))
    q_value, number, nothing, word = ByName(TwoStates(), two)(torch.randn(5, 2, 6))
    assert (q_value.shape, number.shape) == ((5, 2, 3), ())
    assert (nothing, word) == (None, "anything")
    model = ByName(partial(Scaled(4, 3), scale=2.0), state_spec(FOUR))
    assert model(torch.randn(5, 2, 4))[0].shape == (5, 2, 3)
    assert len(list(model.parameters())) == 2
    with pytest.raises(TypeError, match=r"a torch\.nn\.Module"):
        ByName(torch.relu, two)


@pytest.mark.parametrize("make", [Tower, partial(flat_env, Tower)])
def test_looking_around_finds_names_below_a_wrapper_and_flat_observations(make):
    before = torch.get_rng_state()
    spec, action_space, obs = look_around(make)
    assert action_space == spaces.Discrete(3)
    assert obs.shape == (max(32, len(obs)), 3 * 6 * 6 + 2)
    picture, speed = spec.split(obs).values()
    assert (picture.dtype, speed.dtype) == (torch.uint8, torch.float32)
    assert picture.float().std() > 10, "bytes, not a fraction of them"
    assert torch.equal(torch.get_rng_state(), before)
