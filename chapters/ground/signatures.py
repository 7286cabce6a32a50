# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Signatures
#
# **Where should a function say which shapes it takes?** In its signature, once, in a
# notation that both a reader and a machine understand. This chapter builds the machine: a
# decorator `@checked` that holds every call of a function to its annotations.
#
# Nobody has to read this to follow the book. You need Python's type hints and a little
# PyTorch. After 20 minutes you can write such signatures yourself, and you know what they
# check, what they do not, and what they cost.

# %% tags=["export", "hide-input"]
"""Signatures: annotations that say what is accepted, and a decorator that checks it."""

from __future__ import annotations

import inspect
import math
import operator
import re
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, is_dataclass
from functools import wraps
from itertools import cycle
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
from jaxtyping import AbstractDtype, Bool
from jaxtyping import Int64 as Int
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

# %% [markdown]
# ## Why not twenty lines of guards?
#
# Most silent mistakes in reinforcement learning are mistakes of shape. Subtract values of
# shape $(B, 1)$ from returns of shape $(B,)$, and PyTorch makes a table $(B, B)$ of it
# without a word. The mean of that table is a number, and a loss that is a number trains.

# %%
returns, values = torch.arange(4.0), torch.arange(4.0).unsqueeze(1)
print("of the right shape:", (returns - values.squeeze(1)).square().mean().item())
print("of the wrong one:  ", (returns - values).square().mean().item())

# %% tags=["claims"]
assert (returns - values.squeeze(1)).square().mean() == 0, "the values are right"
assert (returns - values).square().mean() > 2, "the loss says otherwise"

# %% [markdown]
# So a function should look at its arguments before it computes. Written by hand, that is
# an `if` and a `raise` for each argument and each way to be wrong. They stand between the
# reader and the three lines that matter. Then the docstring says the same once more, in
# words that nobody checks.
#
# A signature can say all of it:
#
# ```python
# @checked
# def td_error(
#     reward: Float[Tensor, "T B"],
#     value: Float[Tensor, "T+1 B"],
#     terminated: Bool[Tensor, "T B"],
#     gamma: Fraction = 0.99,
# ) -> Float[Tensor, "T B"]:
# ```
#
# The notation is that of the library
# [jaxtyping](https://docs.kidger.site/jaxtyping/api/array/). The string names the
# dimensions, and **an equal name means an equal size** in all arguments of one call:
#
# | in the string | stands for |
# |---|---|
# | `T B` | two dimensions, of any sizes T and B |
# | `T+1`, `2*A` | one more than T, twice A |
# | `3` | exactly 3 |
# | `*B N` | any number of dimensions, the same ones wherever `*B` stands, then N |
# | `... N` | any number of dimensions, then N |
# | nothing | a tensor with a single number in it |
#
# A size that has a name is at least 1, because the mean of an empty batch is not a number.
#
# ## A few words
#
# `Float`, `Int` and `Bool` say what the numbers are. Jaxtyping's own `Float` and `Int` take
# every precision. Ours take what the tests cover: float32 and float64, and the
# int64 in which PyTorch counts and indexes. A type checker such as mypy cannot read the
# strings. For it, `Float[Tensor, "T B"]` is simply a `Tensor`.

# %% tags=["export"]
if TYPE_CHECKING:
    from typing import Annotated as Float
else:

    class Float(AbstractDtype):
        """Tensors of float32 or float64."""

        dtypes = ("float32", "float64")


# Ranges that many signatures share. The bounds come from the package `annotated_types`.
Fraction = Annotated[float, Ge(0), Le(1)]
Positive = Annotated[float, Gt(0)]
Scale = Annotated[float, Gt(0), Lt(math.inf)]
NonNegative = Annotated[float, Ge(0), Lt(math.inf)]
Finite = Annotated[float, Gt(-math.inf), Lt(math.inf)]
Count = Annotated[int, Ge(1)]

# %% [markdown]
# ## What a check is
#
# A *check* is a small function for one argument. It gets the argument's name, the argument
# and the sizes that are known so far. It returns nothing if all is well, and a *fault* if
# not. Why does it not raise the error itself? An argument that may be a tensor or a number
# is tried against two checks, and the first fault is not yet an error.


# %% tags=["export"]
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
    counted = isinstance(x, list | tuple | dict)
    return f"{type(x).__name__} of {len(x)}" if counted else type(x).__name__


# %% [markdown]
# ## The decorator
#
# Annotations are read when a function is called for the first time. By then all names in
# them exist, even if a class is defined below the function that takes it. What was read is
# a *plan*, a check for each argument. From then on a call only walks through the plan, in
# the order of the signature: a rule may need the sizes of what comes first.
#
# Only what was passed is looked at. If an argument is missing or unknown, nothing is done about it
# here: Python has an error of its own for that.
#
# `np.logspace(-4, -2, 3)` hands out numbers that look like Python's. JSON cannot write them, and a
# checkpoint refuses them. So checks take Python's own numbers, truth values and texts, and an
# argument with a fault gets a second chance as a *plain* one. Who passes Python's own pays nothing
# for it.


# %% tags=["export"]
AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])


def checked(function: AnyCallable) -> AnyCallable:
    """Hold every call of a function to its annotations.

    Args:
        function: A function or a method, below ``@classmethod`` and ``@staticmethod``;
            or a dataclass, which is then checked when an instance is made.

    Returns:
        A function of the same signature, or the dataclass. A call raises ``TypeError``
        where a type or dtype is wrong, ``ValueError`` where a shape, a number or a word
        is; both name the argument. An annotation that cannot be read is a
        ``TypeError`` at the first call.
    """
    if isinstance(function, type) and is_dataclass(function):
        cast(Any, function).__init__ = held(cast(Any, function).__init__, function)
        return function
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
            kwargs = {n: mended.get(n, x) for n, x in kwargs.items()}
        return function(*args, **kwargs)

    return call


# %% [markdown]
# What is plain? A single number of NumPy or PyTorch becomes Python's. A tensor that needs a gradient
# stays one, because its number would lose it.


# %% tags=["export"]
def plain(x: Any) -> Any:
    """Return Python's own number or text for a single one of another library's."""
    single = isinstance(x, np.generic | np.ndarray | Tensor) and x.ndim == 0
    if single and not getattr(x, "requires_grad", False):
        return x.item()
    if isinstance(x, list | tuple):
        parts = map(plain, x)
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return x


# %% [markdown]
# ## From a signature to a plan
#
# The test suite calls `plan_for` on every function of the package, and holds each default to its
# check: a signature that cannot be read never reaches a reader.


# %% tags=["export"]
def plan_for(source: Any) -> dict[str, Check]:
    """Return the check of each argument of a function or a dataclass.

    Raises:
        TypeError: If an annotation is missing, or names something that does not exist.
            The message names the function, the argument and the annotation.
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
            if str(parameter).startswith("*"):
                raise TypeError(f"it does not understand {parameter}")
            plan[name] = check_for(hints.get(name, Any))
    except Exception as error:
        where = f"{source.__module__}.{source.__qualname__}"
        raise TypeError(f"@checked cannot read {where}, {name}: {error}") from error
    return plan


# %% [markdown]
# ## From an annotation to a check
#
# Here is the vocabulary: what an annotation can say, one line each. All else, such as what
# a function in an argument takes and returns, is a type checker's matter. Of a class with
# parameters only the class is tested, with the exception of lists and tuples.
#
# Some annotations accept anything, on purpose: `Any`, `object`, type variables, and
# NumPy's `ArrayLike`, which is for functions that convert what they get. So do **classes of
# our own**, those of this package and of a notebook. If you run a chapter as a notebook, you
# define its classes again, and an object of the old class is no instance of the new one,
# although nothing is wrong with it. Named tuples are therefore recognised by their fields,
# and trees by their keys. The test suite has a list of all arguments of which nothing is
# asked, and fails if there is one more.


# %% tags=["export"]
# `Any` is a class of `typing`, and `ArrayLike` a union of types of the last one.
OPEN = ("literate_rl.", "__main__", "typing", "numpy._typing")


def check_for(hint: Any) -> Check:
    """Return the check that an annotation asks for."""
    origin, parts = get_origin(hint), get_args(hint)
    kind = origin or hint
    if origin in (Union, types.UnionType):
        return union_check(parts)
    if hint in (int, float) or (origin is Annotated and parts[0] in (int, float)):
        base, *bounds = parts or (hint,)
        return number_check(base, bounds)
    if origin is Annotated:
        return ruled_check(check_for(parts[0]), parts[1:])
    if hasattr(hint, "dim_str"):
        return tensor_check(hint)
    if origin is Literal:
        return literal_check(parts)
    if is_typeddict(hint) or hasattr(hint, "_fields"):
        return fields_check(hint)
    if not isinstance(kind, type) or kind.__module__.startswith(OPEN):
        return anything
    if origin and issubclass(kind, Sequence):
        return items_check(kind, parts)
    return asking(lambda x: isinstance(x, kind), TypeError, f"be a {kind.__name__}")


def asking(
    question: Callable[[Any], Any],
    kind: type[Exception],
    expected: str,
    came: Callable[[Any], object] = describe,
) -> Check:
    """Return a check that asks one question, whatever the sizes."""

    def check(name: str, x: Any, sizes: Sizes) -> Fault | None:
        return None if question(x) else Fault(kind, name, expected, came(x))

    return check


# %% [markdown]
# ## Tensors
#
# This is the heart. A tensor is right if its type, its dtype and its shape are. The shape
# is compared with the sizes known from earlier arguments, dimension by dimension. A name
# that is new takes the size that it meets.


# %% tags=["export"]
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
    kind, texts = get_origin(hint.array_type) or hint.array_type, hint.dim_str.split()
    noun = "tensor" if kind is Tensor else "NumPy array"
    # jaxtyping serves several libraries, so it gives dtypes as words, and for `Shaped`,
    # which takes every dtype, none.
    dtypes = hint.dtypes if isinstance(hint.dtypes, list | tuple) else []
    legal = {getattr(torch, x, None) if kind is Tensor else np.dtype(x) for x in dtypes}
    few = " or ".join(dtypes) if len(dtypes) < 3 else hint.dtype.__name__.lower()
    described = f"be {'an' if few[:1] in 'aeio' else 'a'} {few} {noun}"
    words = f"({', '.join(texts)}{',' * (len(texts) == 1)})"
    dims = [read_dim(text) for text in texts]
    star = next((i for i, d in enumerate(dims) if d[1] == 0), None)

    def check(name: str, x: Any, sizes: Sizes) -> Fault | None:
        if not isinstance(x, kind):
            return Fault(TypeError, name, f"be a {noun}", describe(x))
        if legal and x.dtype not in legal:
            return Fault(TypeError, name, described, x.dtype)
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


# %% [markdown]
# ## Numbers and words
#
# An integer is a number, but a `bool` is not, although Python says so: `gamma=True` is a
# slip. So the exact type counts.
#
# NaN lies in no range, so every bound refuses it. Without a bound, NaN and infinity pass.
# A lower bound alone lets infinity pass: an infinite clip range clips nothing, and someone
# may want that. Where it makes no sense, add `Lt(math.inf)`. `NonNegative` has it, because most
# of what may be zero is a factor, and nothing is left of a loss that is multiplied by infinity.


# %% tags=["export"]
BOUNDS: dict[Any, tuple[Callable[[Any, Any], Any], str]] = {
    Ge: (operator.ge, "at least"),
    Gt: (operator.gt, "greater than"),
    Le: (operator.le, "at most"),
    Lt: (operator.lt, "less than"),
}


def number_check(base: type, bounds: Sequence[Any]) -> Check:
    """Return the check of ``int``, ``float`` and their ranges."""
    kinds = (int,) if base is int else (float, int)
    noun = "be an integer" if base is int else "be a number"
    rules = [(*BOUNDS[type(bound)], *astuple(bound)) for bound in bounds]
    expected = f"be {' and '.join(f'{word} {limit}' for _, word, limit in rules)}"

    def check(name: str, x: Any, sizes: Sizes) -> Fault | None:
        if type(x) not in kinds:
            return Fault(TypeError, name, noun, describe(x))
        for holds, _, limit in rules:
            if not holds(x, limit):
                return Fault(ValueError, name, expected, x)
        return None

    return check


def literal_check(options: tuple[Any, ...]) -> Check:
    """Return the check of ``Literal["always", "never"]``."""
    expected = f"be {' or '.join(map(repr, options))}"

    # The type counts as well: `1 == True`, but one is no truth value.
    def is_one(x: Any) -> bool:
        return any(type(x) is type(option) and x == option for option in options)

    return asking(is_one, ValueError, expected, repr)


# %% [markdown]
# ## One of several
#
# `Float[Tensor, "B"] | None` takes a tensor or nothing, and `int | str` one of two types.
# Each alternative is tried with its own copy of the known sizes: one that fails half-way
# must not leave a size behind.
#
# If all of them fail, the message is about the first that came close. With a tensor of the
# wrong shape, you want to read about the shape, not that a number would do as well.


# %% tags=["export"]
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
        words += ["None"] * optional
        return faults[0]._replace(expected=f"be {' or '.join(words)}")

    return check


# %% [markdown]
# ## Tuples, trees and lists
#
# What holds several things is checked thing by thing, and the name in the message says where
# the fault is: `data.logit_old`, `action.action_args`, `frames[3]`. A tree is described by a
# `TypedDict` of its leaves. It may be a dictionary or a tree tensor.
#
# For Python a string is a sequence of strings. Here it is not: `names="abc"` means that somebody
# forgot the brackets.


# %% tags=["export"]
def fields_check(hint: Any) -> Check:
    """Return the check of a named tuple, field by field, or of a tree, key by key."""
    hints, tree = get_type_hints(hint, include_extras=True), is_typeddict(hint)
    fields = hints if tree else hint._fields
    tests = [(key, check_for(hints.get(key, Any))) for key in fields]
    reach = operator.getitem if tree else getattr
    expected = f"be a {hint.__name__} ({', '.join(fields)})"
    if tree:
        expected = f"be a tree with the keys {', '.join(map(repr, fields))}"

    def check(name: str, x: Any, sizes: Sizes) -> Fault | None:
        # A tree tensor is no `Mapping`, but it has keys.
        names = getattr(x, "keys", tuple)() if tree else getattr(x, "_fields", ())
        if {*names} != {*fields}:
            return Fault(TypeError, name, expected, tuple(names) or describe(x))
        for key, test in tests:
            if fault := test(f"{name}.{key}", reach(x, key), sizes):
                return fault
        return None

    return check


def items_check(kind: type, hints: tuple[Any, ...]) -> Check:
    """Return the check of ``Sequence[X]``, ``list[X]`` or ``tuple[X, Y]``."""
    tests = [check_for(hint) for hint in hints if hint is not ...]
    fixed = issubclass(kind, tuple) and ... not in hints
    expected = f"be a {kind.__name__}" + f" of {len(tests)}" * fixed

    def check(name: str, x: Any, sizes: Sizes) -> Fault | None:
        right = isinstance(x, kind) and not isinstance(x, str)
        if not right or (fixed and len(x) != len(tests)):
            return Fault(TypeError, name, expected, describe(x))
        for i, (test, part) in enumerate(zip(cycle(tests), x, strict=False)):
            if fault := test(f"{name}[{i}]", part, sizes):
                return fault
        return None

    return check


# %% [markdown]
# ## Three errors
#
# Here is the function from above, and three calls that it refuses. **Notice** that each
# message names the argument, what was expected and what came. The third one also says which
# argument fixed the size, because the mistake may be there.


# %%
@checked
def td_error(
    reward: Float[Tensor, "T B"],
    value: Float[Tensor, "T+1 B"],
    terminated: Bool[Tensor, "T B"],
    gamma: Fraction = 0.99,
) -> Float[Tensor, "T B"]:
    """Return the TD errors of a rollout whose last value stands behind the others."""
    future = torch.where(terminated, 0.0, value[1:])
    return reward + gamma * future - value[:-1]


reward, value = torch.ones(5, 2), torch.zeros(6, 2)
never = torch.zeros(5, 2, dtype=torch.bool)
print("fine:", tuple(td_error(reward, value, never).shape))

messages = []
for arguments in (
    (reward, value, never, 1.5),
    (reward, value, never.float()),
    (reward, value[:-1], never),
):
    try:
        td_error(*arguments)
    except (TypeError, ValueError) as error:
        messages.append(f"{type(error).__name__}: {error}")
print("\n".join(messages))

# %% tags=["claims"]
assert len(messages) == 3, "three calls are refused"
assert "(of reward)" in messages[2], "the third tells who fixed the size"

# %% [markdown]
# ## Rules of your own
#
# `Annotated[X, rule]` takes whatever `X` takes, if the rule finds no fault in it. A rule is a
# check like all others. Three are needed often: indices lie below a size, an array is finite, and
# a list is not too short. The numbers inside a tensor are read then, so keep rules to arguments
# that are small or must be looked at anyway: an index that is too large would, on a GPU, end the
# program with a message about a kernel.


# %% tags=["export"]
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


# The rule that an array holds no NaN and no infinity.
finite = asking(lambda x: np.isfinite(x).all(), ValueError, "be finite")


def at_least(number: int, things: str = "one") -> Check:
    """Return the rule that a list or an array holds so many things."""
    words = f"hold at least {things}"
    return asking(lambda x: len(x) >= number, ValueError, words, len)


# %% [markdown]
# ## What a signature cannot say
#
# The numbers inside a tensor are not looked at. That would cost as much as many a loss, and
# on a GPU the processor would have to wait for the answer. Asking whether a *result* is
# finite costs one sum. So functions ask afterwards, and search their inputs only if the
# result is bad.


# %% tags=["export"]
class NotFiniteError(ValueError):
    """A result holds NaN or infinity."""


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
    raise NotFiniteError(f"{' and '.join(bad) or 'the result'} must be finite")


# %% [markdown]
# And what two arguments must be to each other stands in one line at the top of the function.


# %% tags=["export"]
def check_that(holds: bool | np.bool_ | Tensor, words: str) -> None:
    """Raise ``ValueError`` with these words unless something holds."""
    if not holds:
        raise ValueError(words)


# %% [markdown]
# ## What it costs
#
# A check asks Python a few questions about each argument, and reads no tensor. The next
# cell measures it on this machine. `benchmarks/signatures.py` compares it with jaxtyping
# and the type checker beartype. They understand far more annotations, and take more than
# eight times as long.

# %%
import timeit

unchecked = td_error.__wrapped__
arguments = (reward, value, never, 0.99)
seconds = [
    min(timeit.repeat(lambda f=f: f(*arguments), number=1000, repeat=5)) / 1000
    for f in (unchecked, td_error)
]
print(f"plain {1e6 * seconds[0]:.1f} µs, with its checks {1e6 * seconds[1]:.1f} µs")

# %% [markdown]
# ## Summary
#
# - The signature says type, dtype, dimensions and ranges. The body is free for the idea.
# - Equal names are equal sizes, across all arguments of a call.
# - An error names the argument, what was expected, what came and which argument fixed a size.
# - An annotation that cannot be read is an error at the first call. `Any` accepts anything.
# - The numbers inside tensors are not read. `check_finite` looks at results.

# %% [markdown]
# ## References
#
# The notation is [jaxtyping](https://docs.kidger.site/jaxtyping/)'s, the bounds are those of
# [annotated-types](https://github.com/annotated-types/annotated-types). The type checker in
# the comparison is [beartype](https://beartype.readthedocs.io).
