# Generated from chapters/workshop/signatures.py (edit there); digest ac0b95cf359f908e
"""Signatures: annotations that say what is accepted, and a decorator that checks it."""

from __future__ import annotations

import inspect
import math
import operator
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import astuple, is_dataclass
from functools import wraps
from itertools import cycle
from numbers import Integral, Real
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    ParamSpecArgs,
    ParamSpecKwargs,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Lt
from jaxtyping import AbstractDtype
from numpy.typing import ArrayLike
from torch import Tensor

__all__ = [
    "Bool",
    "Count",
    "Finite",
    "Float",
    "Fraction",
    "Int",
    "NonNegative",
    "NotFiniteError",
    "Positive",
    "Scale",
    "at_least",
    "below",
    "check_finite",
    "check_that",
    "checked",
    "finite",
    "plan_for",
]


if TYPE_CHECKING:
    from typing import Annotated as Bool
    from typing import Annotated as Float
    from typing import Annotated as Int
else:

    class Float(AbstractDtype):
        """Tensors of float32 or float64."""

        dtypes = ("float32", "float64")

    class Int(AbstractDtype):
        """Tensors of int64."""

        dtypes = ("int64",)

    class Bool(AbstractDtype):
        """Tensors of truth values."""

        dtypes = ("bool",)


# Ranges that many signatures share. The bounds come from the package `annotated_types`.
Fraction = Annotated[float, Ge(0), Le(1)]
Positive = Annotated[float, Gt(0)]
Scale = Annotated[float, Gt(0), Lt(math.inf)]
NonNegative = Annotated[float, Ge(0), Lt(math.inf)]
Finite = Annotated[float, Gt(-math.inf), Lt(math.inf)]
Count = Annotated[int, Ge(1)]


class Fault(NamedTuple):
    """What is wrong with an argument.

    Attributes:
        kind: ``TypeError`` for another type or dtype, ``ValueError`` for another shape,
            number or word.
        name: Name of the argument, such as ``data.logit_old``.
        expected: What it must do, such as "be a number".
        came: What came.
    """

    kind: type[Exception]
    name: str
    expected: str
    came: object

    def error(self) -> Exception:
        """Return the error to raise."""
        return self.kind(f"{self.name} must {self.expected}, got {self.came}")


# For each dimension that is known its size, and the argument that fixed it; for each
# string of dimensions that was met, the shape that it stood for.
Sizes = dict[str, Any]
Check = Callable[[str, Any, Sizes], Fault | None]


def anything(name: str, x: Any, sizes: Sizes) -> Fault | None:
    """Find no fault: the check of an annotation that says nothing."""


def describe(x: Any) -> str:
    """Say what came: "list of 3", "NoneType"."""
    counted = isinstance(x, Sequence | Mapping | Set) and not isinstance(x, str)
    return f"{type(x).__name__} of {len(x)}" if counted else type(x).__name__


AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])


def checked(function: AnyCallable) -> AnyCallable:
    """Hold every call of a function to its annotations.

    Args:
        function: A function or a method, below ``@classmethod`` and ``@staticmethod``;
            or a dataclass, which is then checked when an instance is made.

    Returns:
        A function of the same signature, or the dataclass. A call raises ``TypeError``
        where a type or dtype is wrong, ``ValueError`` where a shape, a number or a word
        is; both name the argument. An annotation that cannot be checked is a
        ``TypeError`` at the first call.
    """
    if isinstance(function, type) and is_dataclass(function):
        cast(Any, function).__init__ = held(cast(Any, function).__init__, function)
        return function
    if not inspect.isfunction(function):
        raise TypeError(
            f"@checked takes a function or a dataclass, got {function!r}; other "
            "classes have it on their methods, below @classmethod and @staticmethod"
        )
    return cast(AnyCallable, held(function, function))


def held(function: Callable[..., Any], source: Any) -> Callable[..., Any]:
    """Return a function that checks its arguments; ``source`` has the annotations."""
    plan: Plan | None = None

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal plan
        # `torch.compile` traces what it sees. Shapes are its own business then, and a
        # check in the middle would only cut its graph in two.
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if plan is None:
            plan = plan_for(source)

        args, fault = accepted(plan, args, kwargs)
        if fault:
            raise fault.error()
        return function(*args, **kwargs)

    return call


class Plan(NamedTuple):
    """How the arguments of a function are checked.

    Attributes:
        places: Name and check of each argument that can be passed by its place.
        named: The check of each argument that can be passed by its name.
        rest: Name and check of ``*args``, all of them as one tuple.
        others: The check of ``**kwargs``, one by one.
    """

    places: list[tuple[str, Check]]
    named: dict[str, Check]
    rest: tuple[str, Check]
    others: Check


def accepted(
    plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], Fault | None]:
    """Return the arguments by place, and the first fault of a call.

    Where an argument got a second chance, it is another one; ``kwargs`` are changed.
    """
    sizes: Sizes = {}
    for (name, check), x in zip(plan.places, args):  # noqa: B905, `strict` takes longer
        if fault := check(name, x, sizes):
            x, fault = second_chance(fault, name, check, x, sizes)
            if fault:
                return args, fault
            place = plan.places.index((name, check))
            args = *args[:place], x, *args[place + 1 :]
    if kwargs:
        # In the order of the signature: a rule may need the sizes of what comes first.
        known = [name for name in plan.named if name in kwargs]
        for name in (*known, *(name for name in kwargs if name not in plan.named)):
            check = plan.named.get(name, plan.others)
            if fault := check(name, x := kwargs[name], sizes):
                kwargs[name], fault = second_chance(fault, name, check, x, sizes)
                if fault:
                    return args, fault
    name, check = plan.rest
    rest = args[len(plan.places) :]
    if fault := check(name, rest, sizes):
        rest, fault = second_chance(fault, name, check, rest, sizes)
        args = *args[: len(plan.places)], *rest
    return args, fault


def second_chance(
    fault: Fault, name: str, check: Check, x: Any, sizes: Sizes
) -> tuple[Any, Fault | None]:
    """Return an argument with plain numbers, and its fault if it still has one."""
    mended = plain(x)
    again = check(name, mended, sizes)
    # The new fault is told if it is another one, else what came is told as it came.
    if again and again.kind is TypeError and again.name == fault.name:
        again = fault
    return mended, again


def plain(x: Any) -> Any:
    """Return Python's own number or text for a single one of another library's."""
    if isinstance(x, np.generic | np.ndarray | Tensor) and x.ndim == 0:
        x = x if isinstance(x, Tensor) and x.requires_grad else x.item()
    if isinstance(x, dict):
        return {key: plain(part) for key, part in x.items()}
    if isinstance(x, list | tuple):
        parts = map(plain, x)
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    if isinstance(x, Integral | Real) and not isinstance(x, bool):
        return int(x) if isinstance(x, Integral) else float(x)
    return str.__str__(x) if isinstance(x, str) else x


def plan_for(source: Any) -> Plan:
    """Read the annotations of a function or a dataclass.

    Raises:
        TypeError: If an annotation is missing, names something that does not exist,
            cannot be checked or refuses its own default. The message names function,
            argument and annotation.
    """
    plan, name = Plan([], {}, ("", anything), anything), "an annotation"
    try:
        # The annotation of the result is resolved too. That it holds is for the tests
        # to show, not for every call to find out.
        hints = get_type_hints(source, include_extras=True)
        function = cast(Any, source).__init__ if isinstance(source, type) else source
        parameters = inspect.signature(function).parameters
        for place, (name, parameter) in enumerate(parameters.items()):
            if name not in hints and (place > 0 or name not in ("self", "cls")):
                raise TypeError("the annotation is missing")
            check = check_for(hints.get(name, Any))
            # A dataclass shows `<factory>` where each instance gets its own default.
            default, kind = parameter.default, parameter.kind
            given = default is not parameter.empty and repr(default) != "<factory>"
            if given and (fault := check("the default", default, {})):
                raise fault.error()

            if kind is parameter.VAR_POSITIONAL:
                rest = items_check(tuple, (hints[name], ...))
                plan = plan._replace(rest=(name, rest))
            elif kind is parameter.VAR_KEYWORD:
                plan = plan._replace(others=check)
            else:
                if kind is not parameter.POSITIONAL_ONLY:
                    plan.named[name] = check
                if kind is not parameter.KEYWORD_ONLY:
                    plan.places.append((name, check))
    except Exception as error:
        where = f"{source.__module__}.{source.__qualname__}"
        raise TypeError(f"@checked cannot read {where}, {name}: {error}") from error
    return plan


OURS = ("literate_rl", "__main__")


def check_for(hint: Any) -> Check:
    """Return the check that an annotation asks for; raise if none is known."""
    hint = resolved(hint)
    origin, parts = get_origin(hint), get_args(hint)
    kind = origin or hint
    if hint in (Any, object) or isinstance(hint, ParamSpecArgs | ParamSpecKwargs):
        return anything
    if isinstance(hint, TypeVar):
        return union_check(hint.__constraints__ or (hint.__bound__ or Any,))
    if origin in (Union, types.UnionType):
        return union_check(tuple(alternatives(hint)))
    if origin is Annotated and all(map(callable, parts[1:])):
        return ruled_check(check_for(parts[0]), parts[1:])
    if hasattr(hint, "dim_str"):
        return tensor_check(hint)
    if hint in (int, float):
        return number_check(hint, ())
    if origin is Annotated and parts[0] in (int, float):
        return number_check(parts[0], parts[1:])
    if origin is Literal:
        return literal_check(parts)
    if is_typeddict(hint):
        return tree_check(hint)
    if hasattr(hint, "_fields"):
        return fields_check(hint)
    if kind is Callable:
        return type_check(callable, "be callable")
    if isinstance(kind, type):
        return class_check(hint)
    raise TypeError(f"@checked does not understand {hint}")


def resolved(hint: Any) -> Any:
    """Return what an alias, made by ``type X = ...``, stands for; else the hint."""
    origin, parts = get_origin(hint) or hint, get_args(hint)
    if origin is Annotated:
        whole, *rules = parts
        # `Annotated` inside of `Annotated` becomes one.
        return hint if resolved(whole) is whole else Annotated[resolved(whole), *rules]
    if not hasattr(origin, "__value__"):
        return hint
    value = origin.__value__
    if parts:
        # The parameters of the alias, in the order in which its value has them.
        given = dict(zip(origin.__type_params__, parts, strict=True))
        if value in given:
            return resolved(given[value])
        value = value[tuple(given[p] for p in value.__parameters__)]
    return resolved(value)


def alternatives(hint: Any) -> Iterator[Any]:
    """Yield what a union is made of, also where one of its parts is a union."""
    hint = resolved(hint)
    if get_origin(hint) in (Union, types.UnionType):
        for part in get_args(hint):
            yield from alternatives(part)
    else:
        yield hint


def class_check(hint: Any) -> Check:
    """Return the check of a class, with parameters or without."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind.__module__.partition(".")[0] in OURS:
        return anything
    if kind in (bool, str):
        return type_check(lambda x: type(x) is kind, f"be a {kind.__name__}")
    if kind is not hint and issubclass(kind, Sequence | Set | Mapping):
        return items_check(kind, parts)
    # Of a generic class such as `Space[Any]` only the class can be tested. A parameter
    # that says more would be a promise that nobody keeps.
    if not all(map(says_nothing, parts)):
        raise TypeError(f"@checked does not understand {hint}")
    # A protocol that cannot be tested raises here, and not in the middle of a call.
    isinstance(None, kind)
    named = "None" if kind is types.NoneType else f"a {kind.__name__}"
    return type_check(lambda x: isinstance(x, kind), f"be {named}")


def says_nothing(hint: Any) -> bool:
    """Say whether a parameter of a generic class is open: ``Any``, ``dtype[Any]``."""
    hint = resolved(hint)
    parts = get_args(hint)
    open_parts = bool(parts) and all(map(says_nothing, parts))
    return hint in (Any, ...) or isinstance(hint, TypeVar) or open_parts


def type_check(test: Callable[[Any], bool], expected: str) -> Check:
    """Return a check that asks one question about the type."""

    def check(name: str, x: Any, sizes: Sizes) -> Fault | None:
        return None if test(x) else Fault(TypeError, name, expected, describe(x))

    return check


# A dimension is `factor * base + offset`, as in `2*T+1`; a plain number has no base.
Dim = tuple[str, int, int]


def read_dim(text: str) -> Dim:
    """Read one dimension: ``T``, ``T+1``, ``2*A``, ``3``, ``*B`` or ``...``."""
    if text.isdigit():
        return "", 1, int(text)
    if text == "..." or (text[0] == "*" and text[1:].isidentifier()):
        return text, 1, 0
    match = re.fullmatch(r"(?:([1-9]\d*)\*)?([A-Za-z]\w*)([+-]\d+)?", text)
    if match is None:
        raise TypeError(f"@checked does not understand the dimension {text!r}")
    return match[2], int(match[1] or 1), int(match[3] or 0)


def tensor_check(hint: Any) -> Check:
    """Return the check of ``Float[Tensor, "T B"]`` and its relatives."""
    kind, legal, noun, described = legal_dtypes(hint)
    texts = hint.dim_str.split()
    words = f"({', '.join(texts)}{',' * (len(texts) == 1)})"
    dims = [read_dim(text) for text in texts]
    star = next((i for i, d in enumerate(dims) if d[0][:1] in ("*", ".")), None)

    def check(name: str, x: Any, sizes: Sizes) -> Fault | None:
        if not isinstance(x, kind):
            return Fault(TypeError, name, f"be a {noun}", describe(x))
        if legal is not None and x.dtype not in legal:
            low = x.dtype in (torch.float16, torch.bfloat16) and torch.float32 in legal
            came = f"{x.dtype}{': convert it with .float()' * low}"
            return Fault(TypeError, name, f"be {described} {noun}", came)
        # Most arguments have the shape of one before them. Comparing the two is quicker
        # than looking at each dimension.
        shape = x.shape
        if sizes.get(words) == shape:
            return None
        if fits(name, shape, dims, star, sizes):
            sizes[words] = shape
            return None
        filled = "a non-empty shape" if 0 in shape else "shape"
        expected = f"have {filled} {words}{known(name, dims, sizes)}"
        return Fault(ValueError, name, expected, tuple(shape))

    return check


def fits(
    name: str, shape: tuple[int, ...], dims: list[Dim], star: int | None, sizes: Sizes
) -> bool:
    """Say whether a shape fits its dimensions; remember the sizes that are new."""
    # A star takes what the dimensions on its two sides leave over.
    if star is not None:
        end = len(shape) - (len(dims) - 1 - star)
        if end < star:
            return False
        base, middle = dims[star][0], tuple(shape[star:end])
        if base != "..." and (0 in middle or not agrees(base, middle, name, sizes)):
            return False
        shape = (*shape[:star], *shape[end:])
        dims = dims[:star] + dims[star + 1 :]
    if len(shape) != len(dims):
        return False
    for (base, factor, offset), size in zip(dims, shape):  # noqa: B905
        # Solve `size = factor * base + offset`, so that `T+1` may come before `T`.
        value = (size - offset) // factor
        if value * factor + offset != size:
            return False
        # A number has no base: only zero is left of it.
        if not base:
            if value != 0:
                return False
        elif value < 1 or not agrees(base, value, name, sizes):
            return False
    return True


def agrees(base: str, value: Any, name: str, sizes: Sizes) -> bool:
    """Say whether a name stands for this size; a new name does from now on."""
    return bool(sizes.setdefault(base, (value, name))[0] == value)


def known(name: str, dims: list[Dim], sizes: Sizes) -> str:
    """Say what earlier arguments fixed: " with T = 5 (of reward)"."""
    facts = {base: sizes[base] for base, *_ in dims if base in sizes}
    earlier = [f"{d} = {n} (of {of})" for d, (n, of) in facts.items() if of != name]
    return f" with {', '.join(earlier)}" if earlier else ""


def legal_dtypes(hint: Any) -> tuple[Any, set[Any] | None, str, str]:
    """Return the class and the dtypes that an annotation takes, and words for both."""
    kind, words = get_origin(hint.array_type) or hint.array_type, hint.dtypes
    if kind not in (Tensor, np.ndarray):
        raise TypeError(f"@checked does not understand {hint}")
    noun = "tensor" if kind is Tensor else "NumPy array"
    # jaxtyping's `Shaped` takes every dtype and lists none.
    if not isinstance(words, tuple | list):
        return kind, None, noun, "a"
    numpy_dtypes = {np.dtype(x).name: np.dtype(x) for x in np.sctypeDict.values()}
    table = vars(torch) if kind is Tensor else numpy_dtypes
    legal = {word: table[word] for word in words if word in table}
    few = " or ".join(legal) if len(legal) < 3 else hint.dtype.__name__.lower()
    return kind, set(legal.values()), noun, f"{'an' if few[0] in 'aeio' else 'a'} {few}"


BOUNDS: dict[Any, tuple[Callable[[Any, Any], Any], str]] = {
    Ge: (operator.ge, "at least"),
    Gt: (operator.gt, "greater than"),
    Le: (operator.le, "at most"),
    Lt: (operator.lt, "less than"),
}
LARGEST = torch.finfo(torch.float32).max


def number_check(base: type, bounds: tuple[Any, ...]) -> Check:
    """Return the check of ``int``, ``float`` and their ranges."""
    if not {type(bound) for bound in bounds} <= BOUNDS.keys():
        raise TypeError(f"@checked does not understand {base.__name__} with {bounds}")
    kinds = (int,) if base is int else (float, int)
    noun = "be an integer" if base is int else "be a number"
    facts = [(*BOUNDS[type(bound)], *astuple(bound)) for bound in bounds]
    rules = [(holds, limit) for holds, _, limit in facts]
    expected = f"be {' and '.join(f'{word} {limit}' for _, word, limit in facts)}"
    bounded = base is float and bool(bounds)

    def check(name: str, x: Any, sizes: Sizes) -> Fault | None:
        if type(x) not in kinds:
            return Fault(TypeError, name, noun, describe(x))
        for holds, limit in rules:
            if not holds(x, limit):
                return Fault(ValueError, name, expected, x)
        if bounded and LARGEST < abs(x) < math.inf:
            return Fault(ValueError, name, f"be infinite or at most {LARGEST:.2g}", x)
        return None

    return check


def literal_check(options: tuple[Any, ...]) -> Check:
    """Return the check of ``Literal["always", "never"]``."""
    expected = f"be {' or '.join(map(repr, options))}"

    def check(name: str, x: Any, sizes: Sizes) -> Fault | None:
        # The type counts as well: `1 == True`, but one is no truth value.
        alike = [option for option in options if type(x) is type(option)]
        if not alike:
            return Fault(TypeError, name, expected, describe(x))
        return None if x in alike else Fault(ValueError, name, expected, repr(x))

    return check


def union_check(parts: tuple[Any, ...]) -> Check:
    """Return the check of ``A | B`` and ``A | None``."""
    # `ArrayLike` is a long union itself, and dissolves in one that it is part of.
    if set(alternatives(ArrayLike)) <= set(parts):
        return anything
    checks = [check_for(part) for part in parts if part is not types.NoneType]
    if anything in checks:
        return anything
    optional = types.NoneType in parts

    def check(name: str, x: Any, sizes: Sizes) -> Fault | None:
        if x is None and optional:
            return None
        faults = []
        for attempt in checks:
            trial = dict(sizes)
            fault = attempt(name, x, trial)
            if fault is None:
                sizes.update(trial)
                return None
            faults.append(fault)
        # The first that came close, or all.
        close = [f for f in faults if f.kind is ValueError or f.name != name][:1]
        first, *others = close or faults
        words = [
            first.expected,
            *(fault.expected.removeprefix("be ") for fault in others),
        ]
        if optional and first.name == name and first.expected.startswith("be "):
            words.append("None")
        return first._replace(expected=" or ".join(words))

    return check


def parts_check(
    whole: Check, parts: Callable[[Any], Iterable[tuple[str, Check, Any]]]
) -> Check:
    """Return a check of a thing and then of its parts, each with a label."""

    def check(name: str, x: Any, sizes: Sizes) -> Fault | None:
        if fault := whole(name, x, sizes):
            return fault
        for label, test, part in parts(x):
            if fault := test(name + label, part, sizes):
                return fault
        return None

    return check


def fields_check(hint: Any) -> Check:
    """Return the check of a named tuple, field by field."""
    fields, hints = hint._fields, get_type_hints(hint, include_extras=True)
    labels = [f".{field}" for field in fields]
    checks = [check_for(hints.get(field, Any)) for field in fields]
    alike = type_check(
        lambda x: isinstance(x, tuple) and getattr(x, "_fields", None) == fields,
        f"be a {hint.__name__} ({', '.join(fields)})",
    )
    return parts_check(alike, lambda x: zip(labels, checks, x))  # noqa: B905


def tree_check(hint: Any) -> Check:
    """Return the check of a ``TypedDict``, key by key."""
    if not hint.__total__:
        raise TypeError(f"@checked does not understand {hint}, which is not total")
    hints = get_type_hints(hint, include_extras=True)
    checks = [(key, f".{key}", check_for(part)) for key, part in hints.items()]
    keys = f"the keys {', '.join(map(repr, hints))}"

    def whole(name: str, x: Any, sizes: Sizes) -> Fault | None:
        # A tree tensor is no `Mapping`, but it has keys.
        if not hasattr(x, "keys"):
            return Fault(TypeError, name, f"be a tree with {keys}", describe(x))
        if set(x.keys()) == hints.keys():
            return None
        return Fault(ValueError, name, f"have {keys}", f"the keys {list(x.keys())}")

    def parts(x: Any) -> Iterator[tuple[str, Check, Any]]:
        return ((label, check, x[key]) for key, label, check in checks)

    return parts_check(whole, parts)


def items_check(kind: type, hints: tuple[Any, ...]) -> Check:
    """Return the check of ``Sequence[X]``, ``tuple[X, Y]`` or ``dict[K, V]``."""
    tests = [check_for(hint) for hint in hints if hint is not ...]
    fixed = issubclass(kind, tuple) and ... not in hints
    expected = f"be a {kind.__name__}" + f" of {len(tests)}" * fixed

    def alike(x: Any) -> bool:
        right = isinstance(x, kind) and not isinstance(x, str)
        return right and (not fixed or len(x) == len(tests))

    def parts(x: Any) -> Iterator[tuple[str, Check, Any]]:
        if isinstance(x, Mapping):
            for key, part in x.items():
                yield f", key {key!r}", tests[0], key
                yield f"[{key!r}]", tests[1], part
        else:
            for i, (test, part) in enumerate(zip(cycle(tests), x, strict=False)):
                yield f"[{i}]", test, part

    return parts_check(type_check(alike, expected), parts)


def ruled_check(whole: Check, rules: tuple[Check, ...]) -> Check:
    """Return the check of ``Annotated[X, rule, ...]``."""

    def check(name: str, x: Any, sizes: Sizes) -> Fault | None:
        faults = (one(name, x, sizes) for one in (whole, *rules))
        return next((fault for fault in faults if fault), None)

    return check


def below(size: str | int) -> Check:
    """Return the rule that integers lie below a size, a number or a dimension."""

    def rule(name: str, x: Any, sizes: Sizes) -> Fault | None:
        end = size if isinstance(size, int) else sizes[size][0]
        low, high = (bound.item() for bound in x.aminmax())
        inside = low >= 0 and high < end
        expected, came = f"lie in 0..{end - 1}", f"{low}..{high}"
        return None if inside else Fault(ValueError, name, expected, came)

    return rule


def finite(name: str, x: Any, sizes: Sizes) -> Fault | None:
    """Find a fault in an array with NaN or infinity."""
    fine = np.isfinite(x).all()
    return None if fine else Fault(ValueError, name, "be finite", "NaN or infinity")


def at_least(number: int, things: str = "one") -> Check:
    """Return the rule that a list or an array holds so many things."""

    def rule(name: str, x: Any, sizes: Sizes) -> Fault | None:
        expected = f"hold at least {things}"
        return Fault(ValueError, name, expected, len(x)) if len(x) < number else None

    return rule


class NotFiniteError(ValueError):
    """A result holds NaN or infinity.

    Attributes:
        large: The inputs whose squares have an infinite sum, with the largest number of
            each.
    """

    large: dict[str, float] = {}


def check_finite(result: Tensor | float, **inputs: Tensor | None) -> None:
    """Raise if a result holds NaN or infinity, and name the inputs to blame.

    Args:
        result: What was computed, or a sum of it that has left the device.
        inputs: What it was computed from, by the names that a message should give.

    Raises:
        NotFiniteError: A ``ValueError``, if a number of ``result`` is not finite.
    """
    # One sum, one look. Finite numbers may have an infinite sum, so a bad sum of a
    # tensor is only a reason to look closer.
    total = result.sum().item() if isinstance(result, Tensor) else result
    if math.isfinite(total) or torch.as_tensor(result).isfinite().all():
        return
    given = {name: x for name, x in inputs.items() if x is not None}
    bad = [name for name, x in given.items() if not x.isfinite().all()]
    error = NotFiniteError(f"{' and '.join(bad) or 'the result'} must be finite")
    large = {name: x for name, x in given.items() if x.square().sum() == math.inf}
    error.large = {name: x.abs().max().item() for name, x in large.items()}
    raise error


def check_that(holds: bool | np.bool_ | Tensor, words: str) -> None:
    """Raise ``ValueError`` with these words unless something holds."""
    if not holds:
        raise ValueError(words)
