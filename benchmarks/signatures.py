"""What it costs to hold a call to its signature, against jaxtyping with beartype.

The peer checks types, dtypes and shapes; the ranges of the two numbers only `@checked`
looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, NamedTuple

import torch
from annotated_types import Gt
from beartype import beartype
from jaxtyping import jaxtyped
from torch import Tensor

from benchmarks.harness import SEED, Case, Goal
from literate_rl.ground.signatures import Bool, Float, Fraction, Int, checked
from literate_rl.maths.ppo_error import ppo_policy_data, ppo_policy_error

ROUNDS = 51
PACKAGES = ("jaxtyping", "beartype")
PEER = "jaxtyping, beartype"


def no_checks(
    reward: Float[Tensor, "T B"],
    value: Float[Tensor, "T B"],
    next_value: Float[Tensor, "T B"],
    terminated: Bool[Tensor, "T B"],
    truncated: Bool[Tensor, "T B"],
    gamma: Fraction = 0.99,
    lambda_: Fraction = 0.95,
) -> Float[Tensor, "T B"]:
    """Do nothing, with the signature of GAE."""
    return reward


class PolicyData(NamedTuple):
    """What the policy error reads."""

    logit_new: Float[Tensor, "B N"]
    logit_old: Float[Tensor, "B N"]
    action: Int[Tensor, "B"]
    adv: Float[Tensor, "B"]
    weight: Float[Tensor, "B"] | None


@checked
def checks_alone(
    data: PolicyData,
    clip_ratio: Annotated[float, Gt(0)] = 0.2,
    dual_clip: Annotated[float, Gt(1)] | None = None,
) -> None:
    """Do nothing, with the signature of the policy error."""


FORMS: dict[str, Callable[..., Tensor]] = {
    "no checks": no_checks,
    PEER: jaxtyped(typechecker=beartype)(no_checks),
    "@checked": checked(no_checks),
}


def steps(num_steps: int = 16, num_envs: int = 8) -> dict[str, Tensor | float]:
    """Return legal arguments: five tensors and two numbers."""
    generator = torch.Generator().manual_seed(SEED)
    names = ("reward", "value", "next_value")
    tensors = torch.randn(3, num_steps, num_envs, generator=generator).unbind()
    flags = dict.fromkeys(("terminated", "truncated"), tensors[0] > 1)
    numbers = {"gamma": 0.99, "lambda_": 0.95}
    return {**dict(zip(names, tensors, strict=True)), **flags, **numbers}


def refuses(form: Callable[..., Tensor], arguments: dict[str, Tensor | float]) -> bool:
    """Say whether a form raises, of whatever type its errors are."""
    try:
        form(**arguments)
    except Exception:
        return True
    return False


def check() -> None:
    """Assert that both ways accept the same calls and refuse the same ones."""
    legal = steps()
    illegal = [
        {name: change(x)}
        for name, x in legal.items()
        if isinstance(x, Tensor)
        for change in (
            lambda x: x.tolist(),
            lambda x: x.to(torch.int64),
            lambda x: x.to(torch.float16),
            lambda x: x.unsqueeze(-1),
            lambda x: x[0],
            lambda x: x[:-1],
            lambda x: x[:, :1],
        )
    ]
    illegal += [{"gamma": "0.9"}, {"lambda_": None}]
    for name in (PEER, "@checked"):
        assert not refuses(FORMS[name], legal), f"{name} refuses a legal call"
        assert not refuses(FORMS[name], steps(3, 2)), f"{name} remembers a size"
        for change in illegal:
            assert refuses(FORMS[name], {**legal, **change}), f"{name} accepts {change}"


def policy_batch(size: int, num_actions: int) -> ppo_policy_data:
    """Return legal data of the policy error."""
    generator = torch.Generator().manual_seed(SEED)
    new, old = torch.randn(2, size, num_actions, generator=generator)
    action = torch.randint(0, num_actions, (size,), generator=generator)
    adv = torch.randn(size, generator=generator)
    return ppo_policy_data(new, old, action, adv, torch.ones(size))


def cases() -> Iterator[Case]:
    """Yield calls by place and by name, and the share in the time of a loss."""
    check()
    arguments = steps()
    yield Case(
        name="five tensors, two numbers",
        functions={n: partial(f, *arguments.values()) for n, f in FORMS.items()},
        peer=PEER,
        goals={"@checked": Goal(at_least=8.0)},
    )
    yield Case(
        name="the same, by name",
        functions={n: partial(f, **arguments) for n, f in FORMS.items()},
        peer=PEER,
        goals={"@checked": Goal(at_most=5.0)},
    )
    data = policy_batch(64, 6)
    assert not refuses(checks_alone, {"data": data})
    assert refuses(checks_alone, {"data": data._replace(adv=data.adv[:, None])})
    yield Case(
        name="share in PPO's policy error, B = 64, forward",
        functions={
            "the error": partial(ppo_policy_error, data, 0.2, 3.0),
            "checks alone": partial(checks_alone, data, 0.2, 3.0),
        },
        peer="the error",
        goals={"checks alone": Goal(at_least=20.0)},
    )
