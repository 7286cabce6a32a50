# Generated from chapters/workshop/signatures.py (edit there); digest 3135a186b742677d
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
        raise TypeError(f"@checked takes a function or a dataclass, got {function!r}")
    return cast(AnyCallable, held(function, function))


def held(function: Callable[..., Any], source: Any) -> Callable[..., Any]:
    """Return a function that checks its arguments; ``source`` has the annotations."""
    plan: dict[str, Check] | None = None

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal plan
        # `torch.compile` traces what it sees. Shapes are its own business then, and a
        # check in the middle would only cut its graph in two.
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if plan is None:
            plan = plan_for(source)
        sizes: Sizes = {}
        mended: dict[str, Any] = {}
        given: Iterable[Any] = zip(plan.items(), args)  # noqa: B905
        if kwargs:
            named = [(one, kwargs[one[0]]) for one in plan.items() if one[0] in kwargs]
            given = [*given, *named]
        for (name, check), x in given:
            if fault := check(name, x, sizes):
                mended[name] = plain(x)
                if again := check(name, mended[name], sizes):
                    # The new fault is told if it is another one.
                    same = again.kind is TypeError and again.name == fault.name
                    raise (fault if same else again).error()
        if mended:
            first = [mended.get(n, x) for n, x in zip(plan, args)]  # noqa: B905
            args = *first, *args[len(first) :]
            kwargs = {**kwargs, **{n: x for n, x in mended.items() if n in kwargs}}
        return function(*args, **kwargs)

    return call


def plain(x: Any) -> Any:
    """Return Python's own number or text for a single one of another library's."""
    single = isinstance(x, np.generic | np.ndarray | Tensor) and x.ndim == 0
    if single and not getattr(x, "requires_grad", False):
        x = x.item()
    if isinstance(x, dict):
        return {key: plain(part) for key, part in x.items()}
    if isinstance(x, list | tuple):
        parts = map(plain, x)
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    if isinstance(x, Real) and not isinstance(x, bool):
        return int(x) if isinstance(x, Integral) else float(x)
    return str.__str__(x) if isinstance(x, str) else x


def plan_for(source: Any) -> dict[str, Check]:
    """Return the check of each argument of a function or a dataclass.

    Raises:
        TypeError: If an annotation is missing, names something that does not exist or
            cannot be checked. The message names function, argument and annotation.
    """
    plan: dict[str, Check] = {}
    name = "an annotation"
    try:
        # The annotation of the result is resolved too. That it holds is for the tests
        # to show, not for every call to find out.
        hints = get_type_hints(source, include_extras=True)
        function = cast(Any, source).__init__ if isinstance(source, type) else source
        for name, parameter in inspect.signature(function).parameters.items():
            if name not in hints and (plan or name not in ("self", "cls")):
                raise TypeError("the annotation is missing")
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise TypeError(f"@checked does not understand {parameter}")
            plan[name] = check_for(hints.get(name, Any))
    except Exception as error:
        where = f"{source.__module__}.{source.__qualname__}"
        raise TypeError(f"@checked cannot read {where}, {name}: {error}") from error
    return plan


# `ArrayLike` is a union of types of the last one.
OPEN = ("literate_rl.", "__main__", "numpy._typing")


def check_for(hint: Any) -> Check:
    """Return the check that an annotation asks for; raise if none is known."""
    origin, parts = get_origin(hint), get_args(hint)
    kind = origin or hint
    if hint in (Any, object):
        return anything
    if hasattr(hint, "__value__") and not parts:
        return check_for(hint.__value__)
    if isinstance(hint, TypeVar):
        return union_check(hint.__constraints__ or (hint.__bound__ or Any,))
    if origin in (Union, types.UnionType):
        return union_check(parts)
    if origin is Annotated and all(map(callable, parts[1:])):
        return ruled_check(check_for(parts[0]), parts[1:])
    if hasattr(hint, "dim_str"):
        return tensor_check(hint)
    if hint in (int, float) or (origin is Annotated and parts[0] in (int, float)):
        base, *bounds = parts or (hint,)
        return number_check(base, bounds)
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


def class_check(hint: Any) -> Check:
    """Return the check of a class, with parameters or without."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind.__module__.startswith(OPEN):
        return anything
    if kind is str:
        return type_check(lambda x: type(x) is str, "be a str")
    if kind is not hint and issubclass(kind, Sequence | Set | Mapping):
        return items_check(kind, parts)
    if not all(map(says_nothing, parts)):
        raise TypeError(f"@checked does not understand {hint}")
    # A protocol that cannot be tested raises here, and not in the middle of a call.
    isinstance(None, kind)
    return type_check(lambda x: isinstance(x, kind), f"be a {kind.__name__}")


def says_nothing(hint: Any) -> bool:
    """Say whether a parameter of a generic class is open: ``Any``, ``dtype[Any]``."""
    parts = get_args(hint)
    return hint in (Any, ...) or (bool(parts) and all(map(says_nothing, parts)))


def type_check(test: Callable[[Any], bool], expected: str) -> Check:
    """Return a check that asks one question about the type."""

    def check(name: str, x: Any, sizes: Sizes) -> Fault | None:
        return None if test(x) else Fault(TypeError, name, expected, describe(x))

    return check


# A dimension is `factor * base + offset`, as in `2*T+1`. A plain number and `...` have
# no base, and what stands for several dimensions has the factor zero.
Dim = tuple[str, int, int]


def read_dim(text: str) -> Dim:
    """Read one dimension: ``T``, ``T+1``, ``2*A``, ``3``, ``*B`` or ``...``."""
    if text.isdigit():
        return "", 1, int(text)
    if text == "..." or (text[0] == "*" and text[1:].isidentifier()):
        return text.strip("."), 0, 0
    match = re.fullmatch(r"(?:([1-9]\d*)\*)?([A-Za-z]\w*)([+-]\d+)?", text)
    if match is None:
        raise TypeError(f"@checked does not understand the dimension {text!r}")
    return match[2], int(match[1] or 1), int(match[3] or 0)


def tensor_check(hint: Any) -> Check:
    """Return the check of ``Float[Tensor, "T B"]`` and its relatives."""
    kind, dtypes = legal_dtypes(hint)
    noun = "tensor" if kind is Tensor else "NumPy array"
    few = " or ".join(dtypes) if len(dtypes) < 3 else hint.dtype.__name__.lower()
    described = f"be {'an' if few[:1] in 'aeio' else 'a'} {few} {noun}"
    legal, texts = set(dtypes.values()), hint.dim_str.split()
    words = f"({', '.join(texts)}{',' * (len(texts) == 1)})"
    dims = [read_dim(text) for text in texts]
    star = next((i for i, d in enumerate(dims) if d[1] == 0), None)

    def check(name: str, x: Any, sizes: Sizes) -> Fault | None:
        if not isinstance(x, kind):
            return Fault(TypeError, name, f"be a {noun}", describe(x))
        if legal and x.dtype not in legal:
            low = x.dtype in (torch.float16, torch.bfloat16) and torch.float32 in legal
            came = f"{x.dtype}{': convert it with .float()' * low}"
            return Fault(TypeError, name, described, came)
        # Most arguments have the shape of one before them. Comparing the two is quicker
        # than looking at each dimension.
        shape = x.shape
        if sizes.get(words) == shape:
            return None
        # A star takes what the dimensions on its two sides leave over.
        parts: Sequence[Any] = shape
        if star is not None:
            end = star + 1 + len(shape) - len(dims)
            parts = *shape[:star], tuple(shape[star:end]), *shape[max(star, end) :]
        if fits(name, parts, dims, sizes):
            sizes[words] = shape
            return None
        filled = "a non-empty shape" if 0 in shape else "shape"
        # What earlier arguments fixed: " with T = 5 (of reward)".
        facts = {d: sizes[d] for d, *_ in dims if d in sizes and sizes[d][1] != name}
        known = ", ".join(f"{d} = {size} (of {of})" for d, (size, of) in facts.items())
        expected = f"have {filled} {words}{' with ' * bool(known)}{known}"
        return Fault(ValueError, name, expected, tuple(shape))

    return check


def fits(name: str, parts: Sequence[Any], dims: list[Dim], sizes: Sizes) -> bool:
    """Say whether sizes are those of their dimensions; remember those that are new."""
    if len(parts) != len(dims):
        return False
    for (base, factor, offset), size in zip(dims, parts):  # noqa: B905
        if factor:
            # Solve `size = factor * base + offset`, so that `T+1` may come before `T`.
            value = (size - offset) // factor
            right = value * factor + offset == size
            right = right and (value >= 1 if base else value == 0)
        else:
            value, right = size, not base or 0 not in size
        if not right or (base and sizes.setdefault(base, (value, name))[0] != value):
            return False
    return True


def legal_dtypes(hint: Any) -> tuple[Any, dict[str, Any]]:
    """Return the class that an annotation takes, and its dtypes; none for all."""
    kind, words = get_origin(hint.array_type) or hint.array_type, hint.dtypes
    # jaxtyping's `Shaped` takes every dtype and lists none.
    words = words if isinstance(words, tuple | list) else ()
    known: Any = vars(torch)
    if kind is np.ndarray:
        known = {word: np.dtype(word) for word in words if word in np.sctypeDict}
    dtypes = {word: known[word] for word in words if word in known}
    if kind not in (Tensor, np.ndarray) or (words and not dtypes):
        raise TypeError(f"@checked does not understand {hint}")
    return kind, dtypes


BOUNDS: dict[Any, tuple[Callable[[Any, Any], Any], str]] = {
    Ge: (operator.ge, "at least"),
    Gt: (operator.gt, "greater than"),
    Le: (operator.le, "at most"),
    Lt: (operator.lt, "less than"),
}
LARGEST = torch.finfo(torch.float32).max


def number_check(base: type, bounds: Sequence[Any]) -> Check:
    """Return the check of ``int``, ``float`` and their ranges."""
    if not {type(bound) for bound in bounds} <= BOUNDS.keys():
        raise TypeError(f"@checked does not understand {base.__name__} with {bounds}")
    kinds = (int,) if base is int else (float, int)
    noun = "be an integer" if base is int else "be a number"
    rules = [(*BOUNDS[type(bound)], *astuple(bound)) for bound in bounds]
    expected = f"be {' and '.join(f'{word} {limit}' for _, word, limit in rules)}"
    bounded = base is float and bool(rules)

    def check(name: str, x: Any, sizes: Sizes) -> Fault | None:
        if type(x) not in kinds:
            return Fault(TypeError, name, noun, describe(x))
        for holds, _, limit in rules:
            if not holds(x, limit):
                return Fault(ValueError, name, expected, x)
        if bounded and LARGEST < abs(x) < math.inf:
            return Fault(ValueError, name, f"be infinite or at most {LARGEST:.2g}", x)
        return None

    return check


def literal_check(options: tuple[Any, ...]) -> Check:
    """Return the check of ``Literal["always", "never"]``."""
    expected = f"be {' or '.join(map(repr, options))}"
    # The type counts as well: `1 == True`, but one is no truth value.
    typed = {(type(option), option) for option in options}
    kinds = {kind for kind, _ in typed}

    def check(name: str, x: Any, sizes: Sizes) -> Fault | None:
        if type(x) not in kinds:
            return Fault(TypeError, name, expected, describe(x))
        fine = (type(x), x) in typed
        return None if fine else Fault(ValueError, name, expected, repr(x))

    return check


def union_check(parts: tuple[Any, ...]) -> Check:
    """Return the check of ``A | B`` and ``A | None``."""
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
        for fault in faults:
            if fault.kind is ValueError or fault.name != name:
                return fault
        words = [fault.expected.removeprefix("be ") for fault in faults]
        expected = "be " + " or ".join(words + ["None"] * optional)
        return faults[0]._replace(expected=expected)

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
        if {*x.keys()} == {*hints}:
            return None
        return Fault(ValueError, name, f"have {keys}", f"the keys {[*x.keys()]}")

    return parts_check(
        whole, lambda x: ((at, test, x[key]) for key, at, test in checks)
    )


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
