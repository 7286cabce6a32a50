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

Call = dict[str, Any]
MASK = torch.tensor([[1, 0], [0, 1], [0, 0]], dtype=torch.bool)


def normal(random: Random, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(random.randrange(2**31))
    return torch.randn(shape, generator=generator)


def gaussian(random: Random, *shape: int) -> dict[str, Tensor]:
    return {"mu": normal(random, *shape), "sigma": normal(random, *shape).exp()}


def hybrid_logit(random: Random, batch: int) -> dict[str, Any]:
    args = gaussian(random, batch, 2)
    return {"action_type": normal(random, batch, 3), "action_args": args}


def batch_data(random: Random, module: str, name: str, logit: Any, action: Any) -> Any:
    tuple_of = getattr(importlib.import_module(f"literate_rl.{module}"), name)
    old, new = logit(), logit()
    return tuple_of(new, old, action, normal(random, 5), normal(random, 5).abs())


def continuous(random: Random) -> Call:
    names = "maths.ppo_error", "ppo_policy_data_continuous"
    action = normal(random, 5, 2)
    return {"data": batch_data(random, *names, lambda: gaussian(random, 5, 2), action)}


def hybrid(random: Random) -> Call:
    names = "nets.hybrid_ppo", "HybridPolicyData"
    action = {
        "action_type": torch.tensor([0, 1, 2, 1, 0]),
        "action_args": normal(random, 5, 2),
    }
    data = batch_data(random, *names, lambda: hybrid_logit(random, 5), action)
    return {"data": data, "mask": MASK}


def values(random: Random) -> Call:
    from literate_rl.maths.ppo_error import ppo_value_data

    data = ppo_value_data(*(normal(random, 5) for _ in range(3)), None)
    return {"data": data, "value_clip": 0.2}


def selected(random: Random) -> Call:
    return {
        "action_args": normal(random, 4, 2),
        "data_mask": torch.tensor([[1, 0], [0, 1], [0, 1], [1, 0]]).bool(),
    }


def unroll(random: Random) -> Call:
    numbers = ("log_prob", "log_prob_old", "entropy", "reward", "weight", "next_value")
    flags = torch.zeros(4, 3).bool()
    return {
        **{name: normal(random, 4, 3) for name in numbers},
        "value": normal(random, 5, 3),
        "terminated": flags,
        "truncated": flags,
    }


def unroll_of_values(random: Random) -> Call:
    names = "log_ratio", "reward", "value", "next_value"
    flags = torch.zeros(4, 3).bool()
    tensors = {name: normal(random, 4, 3) for name in names}
    return tensors | {"terminated": flags, "truncated": flags, "gamma": 0.9}


def vtrace_batch(random: Random, logit: Any, action: Tensor) -> Call:
    from literate_rl.maths.off_policy import vtrace_data

    flags = torch.zeros(4, 3).bool()
    tensors = normal(random, 5, 3), normal(random, 4, 3), normal(random, 4, 3).abs()
    successors = normal(random, 4, 3)
    return {
        "data": vtrace_data(
            logit(), logit(), action, *tensors, flags, flags, successors
        )
    }


def auxiliary(random: Random) -> Call:
    names = "value", "aux_value", "target", "kl"
    return {name: normal(random, 4, 3) for name in names} | {"clone_weight": 1.0}


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
    "ppo_value_error": values,
    "sample_hybrid_action": lambda r: {"logit": hybrid_logit(r, 5)},
    "select_args": selected,
    "ppo_policy_error_hybrid": hybrid,
    "ppo_policy_error_hybrid_per_head": hybrid,
    "auxiliary_loss": auxiliary,
    "legal": lambda r: {
        "row": normal(r, 4, 3),
        "mask": (normal(r, 4, 3) > 0) | torch.tensor([False, True, False]),
    },
    "clipped_policy": lambda r: {
        "policy": normal(r, 4, 3).softmax(-1).numpy(),
        "old_policy": normal(r, 4, 3).softmax(-1).numpy(),
        "rho_clip_ratio": 1.0,
    },
    "vtrace": unroll_of_values,
    "vtrace_error_discrete_action": lambda r: vtrace_batch(
        r, lambda: normal(r, 4, 3, 2), torch.ones(4, 3).long()
    ),
    "vtrace_error_continuous_action": lambda r: vtrace_batch(
        r, lambda: gaussian(r, 4, 3, 2), normal(r, 4, 3, 2)
    ),
    "vtrace_error_from_log_prob": unroll,
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
def test_two_hundred_illegal_calls_are_refused(name: str) -> None:
    function, count = FUNCTIONS[name], 0
    for seed in range(60):
        random = Random(seed)
        if name in BUILT:
            count += assert_call_held(function, BUILT[name](random))
        else:
            count += assert_held(function, random, runs=1)
        if count >= 200:
            return
    pytest.fail(f"{count} illegal calls only")


def test_no_built_call_is_for_a_function_that_is_gone() -> None:
    assert BUILT.keys() <= FUNCTIONS.keys()
