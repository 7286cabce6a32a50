"""What a name is by default, in all functions of mathematics."""

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

# The papers' numbers, as the chapters quote them; a name means one thing everywhere.
DEFAULTS: dict[str, Any] = {
    "beta": 1.0,
    "c_clip_ratio": 1.0,
    "clip": 0.5,
    "clip_ratio": 0.2,
    "clone_weight": 1.0,
    "decrease": 1.0,
    "double": True,
    "dual_clip": None,
    "epsilon": 0.4,
    "gamma": 0.99,
    "generator": None,
    "increase": 1.0,
    "lambda_": 0.95,
    "next_value": None,
    "num_steps": 5,
    "power": 7.0,
    "rho_clip_ratio": 1.0,
    "rho_pg_clip_ratio": 1.0,
    "smoothing": 0.2,
    "terminated": None,
    "truncated": None,
    "value_clip": None,
    "weight": None,
}
MODULES = [
    "advantages",
    "policy_gradient",
    "ppo_error",
    "hybrid_action",
    "hybrid_ppo",
    "off_policy",
    "ppg",
    "a2c",
    "replay",
    "dqn",
    "c51",
    "rainbow",
    "apex",
    "ddpg",
    "td3",
    "sac",
    "discrete_sac",
]


def defaults_of(module: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield function, name and default of all numbers, flags and missing tensors."""
    for function in filter(
        inspect.isfunction, map(module.__dict__.get, module.__all__)
    ):
        for name, parameter in inspect.signature(function).parameters.items():
            kinds = (bool, int, float, type(None))
            if (
                isinstance(parameter.default, kinds)
                and "make_" not in function.__name__
            ):
                yield function.__name__, name, parameter.default


@pytest.mark.parametrize("name", MODULES)
def test_a_name_has_one_default_everywhere(name: str) -> None:
    module = importlib.import_module(f"literate_rl.{name}")
    for function, argument, default in defaults_of(module):
        assert default == DEFAULTS[argument], (function, argument)


@pytest.mark.parametrize(
    ("module", "function", "numbers"),
    [
        ("replay", "SumTree.__init__", {"branching": 16, "root": 4096}),
        ("replay", "ReplayBuffer.__init__", {"priority_exponent": 0.0}),
        ("replay", "ReplayBuffer.sample", {"num_steps": 1, "gamma": 0.99, "beta": 1.0}),
        ("rainbow", "NoisyLinear.__init__", {"sigma": 0.5}),
    ],
)
def test_methods_have_theirs(
    module: str, function: str, numbers: dict[str, Any]
) -> None:
    kind, method = function.split(".")
    found = getattr(importlib.import_module(f"literate_rl.{module}"), kind)
    parameters = inspect.signature(getattr(found, method)).parameters.values()
    given = {p.name: p.default for p in parameters if p.default is not p.empty}
    assert given == numbers
