"""Calls drawn from a signature: legal ones, and ones with a single thing wrong.

``assert_held(function, Random(0))`` draws legal calls, which must pass, and changes one
argument at a time, which must end in an error that names it. What a signature cannot
say (an action below the number of actions, a model) comes in by name:
``assert_held(function, Random(0), model=lambda: Net())``.
"""

from __future__ import annotations

import inspect
import math
import operator
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import (
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from literate_rl.ground.signatures import read_dim

EXAMPLES: dict[Any, Callable[[], Any]] = {
    bool: lambda: True,
    str: lambda: "word",
    Path: lambda: Path("somewhere"),
    Tensor: lambda: torch.ones(2),
    torch.Generator: torch.Generator,
    torch.device: lambda: torch.device("cpu"),
    np.ndarray: lambda: np.ones(2),
}


class Scale(dict[str, Any]):
    """The sizes and the precision of one call, drawn when they are first asked for."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.precision = random.choice(["float32", "float64"])

    def __missing__(self, base: str) -> Any:
        several = self.random.choices(range(2, 5), k=self.random.randint(0, 2))
        many = base.startswith(("*", "..."))
        self[base] = tuple(several) if many else self.random.randint(2, 4)
        return self[base]


# --- Legal ----------------------------------------------------------------------------


def legal_call(
    function: Any, random: Random, **given: Callable[[], Any]
) -> dict[str, Any]:
    """Draw the arguments of one legal call, at times without those with a default."""
    scale, arguments = Scale(random), {}
    for name, hint in hints_of(function).items():
        optional = inspect.signature(function).parameters[name].default
        if name in given:
            arguments[name] = given[name]()
        elif optional is inspect.Parameter.empty or random.random() < 0.8:
            arguments[name] = legal(hint, scale, random)
    return arguments


def hints_of(function: Any) -> dict[str, Any]:
    """Return the annotations of a function's arguments, less ``*args`` and the like."""
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if "VAR" not in p.kind.name]
    return {name: hints[name] for name in names if name in hints}


def bare(hint: Any) -> Any:
    """Return ``X`` of ``Annotated[X, rule]``, unless it is a number with its bounds."""
    parts = get_args(hint)
    ruled = get_origin(hint) is Annotated and parts[0] not in (int, float)
    return parts[0] if ruled else hint


def has_fields(hint: Any) -> bool:
    """Say whether it is a named tuple or a tree."""
    return is_typeddict(hint) or hasattr(hint, "_fields")


def legal(hint: Any, scale: Scale, random: Random) -> Any:
    """Draw one legal argument."""
    hint = bare(hint)
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return legal(random.choice(parts), scale, random)
    if hint is types.NoneType:
        return None
    if hasattr(hint, "dim_str"):
        return legal_tensor(hint, scale, random)
    if hint in (int, float) or origin is Annotated:
        return legal_number(hint, random)
    if origin is Literal:
        return random.choice(parts)
    if has_fields(hint):
        fields = get_type_hints(hint, include_extras=True).items()
        return hint(**{name: legal(part, scale, random) for name, part in fields})
    if get_origin(hint) is tuple and parts[-1] is not ...:
        return tuple(legal(part, scale, random) for part in parts)
    if parts and issubclass(origin, Mapping):
        return {legal(parts[0], scale, random): legal(parts[1], scale, random)}
    if parts and issubclass(origin, Sequence):
        items = [legal(parts[0], scale, random) for _ in range(random.randint(1, 2))]
        return tuple(items) if origin is tuple else items
    if (origin or hint) is Callable:
        return lambda *_: None
    return EXAMPLES[hint]()


def legal_tensor(hint: Any, scale: Scale, random: Random) -> Any:
    """Draw a tensor or an array: normal numbers, zeros and ones, or coins."""
    shape: list[int] = []
    for text in hint.dim_str.split():
        base, factor, offset = read_dim(text)
        if factor:
            shape.append((factor * scale[base] if base else 0) + offset)
        else:
            shape += scale[text]
    words = [word for word in hint.dtypes if hasattr(torch, word)]
    usual = [word for word in (scale.precision, "int64") if word in words]
    word = [*usual, *words][0]
    generator = torch.Generator().manual_seed(random.randrange(2**32))
    if word.startswith(("float", "bfloat")):
        x = torch.randn(shape, generator=generator)
    else:
        x = torch.randint(0, 2, shape, generator=generator)
    x = x.to(getattr(torch, word))
    return x.numpy() if hint.array_type is np.ndarray else x


HOLDS = {"ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt}


def bounds_of(hint: Any) -> tuple[type, dict[str, float]]:
    """Return the base type of a number and its bounds, by their attributes."""
    base, *bounds = get_args(hint) or (hint,)
    return base, {k: getattr(x, k) for x in bounds for k in HOLDS if hasattr(x, k)}


def legal_number(hint: Any, random: Random) -> Any:
    """Draw a number inside of its bounds, sometimes on one of them."""
    base, bounds = bounds_of(hint)
    near = {base(k / 4) for k in range(-12, 13)}
    legal = [x for x in near if all(HOLDS[k](x, b) for k, b in bounds.items())]
    x = random.choice(sorted(legal))
    return random.choice([x, (np.int64 if base is int else np.float64)(x)])


# --- Illegal --------------------------------------------------------------------------


def illegal_calls(
    function: Any, arguments: dict[str, Any], **given: Any
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield calls that differ from a legal one in one thing, which is wrong.

    With each comes what the error must name, such as ``data.logit_old``, and what is
    wrong, in words.
    """
    hints = hints_of(function)
    names = [base for name, x in arguments.items() for base in bases(hints[name], x)]
    shared = {base for base in names if names.count(base) > 1}
    for name in arguments.keys() - given.keys():
        for label, what, x in wrong(hints[name], arguments[name], shared):
            yield name + label, what, {**arguments, name: x}


def bases(hint: Any, x: Any) -> Iterator[str]:
    """Yield the names of the dimensions of every tensor inside of an argument."""
    if hasattr(hint, "dim_str"):
        yield from (read_dim(text)[0] for text in hint.dim_str.split())
    else:
        for part, item, _, _ in parts_inside(hint, x):
            yield from bases(part, item)


def parts_inside(hint: Any, x: Any) -> Iterator[tuple[Any, Any, str, Any]]:
    """Yield annotation, value and label of each part, and how to put another one in."""
    hint = without_none(hint)
    parts, origin = get_args(hint), get_origin(hint)
    if x is None or origin in (Union, types.UnionType, Literal, Annotated):
        return
    if has_fields(hint):
        tree = is_typeddict(hint)
        for key, part in get_type_hints(hint, include_extras=True).items():
            put = lambda y, k=key: {**x, k: y} if tree else x._replace(**{k: y})  # noqa: E731
            yield part, x[key] if tree else getattr(x, key), f".{key}", put
    elif parts and isinstance(x, list | tuple):
        hints = parts if parts[-1] is not ... and len(parts) > 1 else parts[:1] * len(x)
        for i, (part, item) in enumerate(zip(hints, x, strict=True)):
            put = lambda y, i=i: type(x)((*x[:i], y, *x[i + 1 :]))  # noqa: E731
            yield part, item, f"[{i}]", put


def without_none(hint: Any) -> Any:
    """Return ``X`` of ``X | None``, and everything else as it is."""
    hint = bare(hint)
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    parts = [part for part in get_args(hint) if part is not types.NoneType]
    return bare(parts[0]) if len(parts) == 1 else hint


def wrong(hint: Any, x: Any, shared: set[str]) -> Iterator[tuple[str, str, Any]]:
    """Yield where, what and with which value an argument can be made wrong."""
    if hint is Any:
        return
    inner, cases = without_none(hint), [("an object", object())]
    origin = get_origin(inner)
    if types.NoneType not in get_args(hint):
        cases += [("None", None)]
    if hasattr(inner, "dim_str") and x is not None:
        cases += wrong_tensors(inner, x, shared)
    elif inner in (int, float) or origin is Annotated:
        cases += wrong_numbers(inner)
    elif inner is bool:
        cases += [("a number", 1)]
    elif inner is str or origin is Literal:
        cases += [("a number", 7)]
    elif hasattr(inner, "_fields") and x is not None:
        cases += [("a plain tuple", tuple(x))]
    elif is_typeddict(inner) and x is not None:
        cases += [("a key more", {**x, "stranger": 0})]
    elif origin not in (Union, types.UnionType) and isinstance(x, list | tuple):
        cases += [("a word", "word"), ("a tensor", torch.ones(2))]
    yield from (("", *case) for case in cases)
    for part, item, label, put in parts_inside(inner, x):
        for rest, what, bad in wrong(part, item, shared):
            yield label + rest, what, put(bad)


def wrong_tensors(hint: Any, x: Any, shared: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield tensors of another type, dtype, rank or size."""
    yield from [("a list", [x.tolist()]), ("a word", "word")]
    if hint.array_type is np.ndarray:
        yield "a tensor", torch.as_tensor(x)
        yield "complex", x.astype("complex64")
        return
    yield "an array", x.numpy()
    for word in ("float16", "bfloat16", "float32", "int32", "bool", "complex64"):
        if word not in hint.dtypes:
            yield word, x.to(getattr(torch, word))
    texts = hint.dim_str.split()
    if any(text.startswith(("*", "...")) for text in texts):
        return
    yield "a row", x.unsqueeze(0)
    for axis, text in enumerate(texts):
        yield "a dimension less", x.select(axis, 0)
        base, _, _ = read_dim(text)
        if base:
            yield "empty", x.narrow(axis, 0, 0)
        # A size that no other argument shares is free.
        if not base or base in shared:
            yield f"another {text}", x.repeat_interleave(3, axis)


def wrong_numbers(hint: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is no number, and numbers outside of their bounds."""
    base, bounds = bounds_of(hint)
    yield from [("a string", "1"), ("a truth value", True), ("a complex", 1j)]
    if base is int:
        yield "a fraction", 1.0
    elif bounds:
        yield "NaN", math.nan
    outside = {"ge": -1, "gt": 0, "le": 1, "lt": 0}
    for word, bound in bounds.items():
        yield f"outside of {word}", base(bound + outside[word])


# --- Judging --------------------------------------------------------------------------


def assert_held(
    function: Any, random: Random, runs: int = 5, **given: Callable[[], Any]
) -> int:
    """Assert that legal calls pass and illegal ones do not; return how many there were.

    Raises:
        AssertionError: If a legal call raises, an illegal one does not or names another
            argument, or a tensor of the caller has changed.
    """
    calls = [legal_call(function, random, **given) for _ in range(runs)]
    return sum(assert_call_held(function, arguments, **given) for arguments in calls)


def assert_call_held(function: Any, arguments: dict[str, Any], **given: Any) -> int:
    """Do the same with one legal call, which need not be drawn from the signature."""
    before, count = copied(arguments), 0
    try:
        function(**arguments)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"a legal call was refused: {error}") from error
    assert unchanged(arguments, before), "a legal call changed its arguments"
    for name, what, bad in illegal_calls(function, arguments, **given):
        count += 1
        before = copied(bad)
        try:
            function(**bad)
        except (TypeError, ValueError) as error:
            if name not in str(error):
                raise AssertionError(f"{name}, {what}: {error}") from error
        else:
            raise AssertionError(f"{name} may be {what}")
        assert unchanged(bad, before), f"{name}, {what}: the arguments changed"
    return count


def copied(nest: Any) -> list[Tensor]:
    """Return copies of all tensors."""
    return [x.clone() for x in tree_leaves(nest) if isinstance(x, Tensor)]


def unchanged(nest: Any, before: list[Tensor]) -> bool:
    """Say whether a nest still holds the same tensors."""
    return all(map(torch.equal, copied(nest), before))
