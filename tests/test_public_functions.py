"""Every public function that takes tensors refuses 200 illegal calls by name."""

import importlib
import inspect
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from fuzz import assert_call_held, assert_held
from torch import Tensor

from literate_rl.floors import modules
from literate_rl.maths.off_policy import vtrace_data
from literate_rl.maths.ppo_error import ppo_policy_data_continuous, ppo_value_data
from literate_rl.nets.hybrid_ppo import HybridPolicyData

Call = dict[str, Any]
FLAGS = {name: torch.zeros(4, 3).bool() for name in ("terminated", "truncated")}


def normal(random: Random, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(random.randrange(2**31))
    return torch.randn(shape, generator=generator)


def normals(random: Random, names: str, *shape: int) -> Call:
    return {name: normal(random, *shape) for name in names.split()}


def gaussian(random: Random, *shape: int) -> dict[str, Tensor]:
    return {"mu": normal(random, *shape), "sigma": normal(random, *shape).exp()}


def hybrid_logit(r: Random) -> dict[str, Any]:
    return {"action_type": normal(r, 5, 3), "action_args": gaussian(r, 5, 2)}


def continuous(r: Random) -> Call:
    said = gaussian(r, 5, 2), gaussian(r, 5, 2), normal(r, 5, 2)
    return {"data": ppo_policy_data_continuous(*said, normal(r, 5), normal(r, 5).abs())}


def hybrid(r: Random) -> Call:
    kind = torch.tensor([0, 1, 2, 1, 0])
    action = {"action_type": kind, "action_args": normal(r, 5, 2)}
    said = hybrid_logit(r), hybrid_logit(r), action
    data = HybridPolicyData(*said, normal(r, 5), normal(r, 5).abs())
    return {"data": data, "mask": torch.eye(3, 2).bool()}


def vtrace_batch(r: Random, logit: Any, action: Tensor) -> Call:
    tensors = normal(r, 5, 3), normal(r, 4, 3), normal(r, 4, 3).abs()
    rest = *tensors, *FLAGS.values(), normal(r, 4, 3)
    return {"data": vtrace_data(logit(), logit(), action, *rest)}


# What a signature cannot say: standard deviations are positive, a mask fits a tree or
# leaves something legal, a clip needs old values. These calls are built, all others are
# drawn.
BUILT: dict[str, Callable[[Random], Call]] = {
    "ppo_policy_error_continuous": continuous,
    "importance_weights": lambda r: {
        "probability": normal(r, 5).softmax(0),
        "count": 50,
        "beta": 0.4,
    },
    "categorical_error": lambda r: {
        "log_prob": normal(r, 4, 5).log_softmax(-1),
        "target": normal(r, 4, 5).softmax(-1),
    },
    **{
        name: lambda r: {
            "prob": normal(r, 3, 5).softmax(-1),
            "reward": normal(r, 3),
            "discount": normal(r, 3).sigmoid(),
            "value_min": -2.0,
            "value_max": 3.0,
        }
        for name in ("project_distribution", "project_distribution_loop")
    },
    "ppo_value_error": lambda r: {
        "data": ppo_value_data(*normals(r, "new old return_", 5).values(), None),
        "value_clip": 0.2,
    },
    "sample_hybrid_action": lambda r: {"logit": hybrid_logit(r)},
    "select_args": lambda r: {
        "action_args": normal(r, 4, 2),
        "data_mask": torch.eye(2)[[0, 1, 1, 0]].bool(),
    },
    "ppo_policy_error_hybrid": hybrid,
    "ppo_policy_error_hybrid_per_head": hybrid,
    "auxiliary_loss": lambda r: {
        **normals(r, "value aux_value target kl", 4, 3),
        "clone_weight": 1.0,
    },
    "legal": lambda r: {
        "row": normal(r, 4, 3),
        "mask": (normal(r, 4, 3) > 0) | torch.tensor([False, True, False]),
    },
    "clipped_policy": lambda r: {
        "policy": normal(r, 4, 3).softmax(-1).numpy(),
        "old_policy": normal(r, 4, 3).softmax(-1).numpy(),
        "rho_clip_ratio": 1.0,
    },
    "vtrace_error_discrete_action": lambda r: vtrace_batch(
        r, lambda: normal(r, 4, 3, 2), torch.ones(4, 3).long()
    ),
    "vtrace_error_continuous_action": lambda r: vtrace_batch(
        r, lambda: gaussian(r, 4, 3, 2), normal(r, 4, 3, 2)
    ),
    "check_chain": lambda r: {
        "transition": 0.9 * normal(r, 3, 3).double().softmax(-1).numpy(),
        "reward": normal(r, 3).double().numpy(),
        "gamma": 0.9,
    },
}


def public_functions() -> dict[str, Any]:
    """Return name and function of all that is checked and takes tensors."""
    found = {}
    for home in modules():
        module = importlib.import_module(f"literate_rl.{home}")
        things = ((name, getattr(module, name)) for name in module.__all__)
        found |= {name: x for name, x in things if takes_tensors(x)}
    return found


def takes_tensors(thing: Any) -> bool:
    if not inspect.isfunction(thing) or not hasattr(thing, "__wrapped__"):
        return False
    hints = {k: v for k, v in thing.__annotations__.items() if k != "return"}
    return any(word in str(hints) for word in ("Tensor", "ndarray", "_data", "Hybrid"))


FUNCTIONS = public_functions()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_two_hundred_illegal_calls_are_refused(name):
    function, count = FUNCTIONS[name], 0
    for random in map(Random, range(60)):
        if name in BUILT:
            count += assert_call_held(function, BUILT[name](random))
        else:
            count += assert_held(function, random, runs=1)
        if count >= 200:
            break
    assert count >= 200
