"""Signatures: what ``@checked`` accepts, beside a slow reference; messages; limits."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import json
import math
import operator
import pickle
import pkgutil
import pydoc
import re
import subprocess
import sys
import types
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from random import Random
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypedDict,
    TypeVar,
    get_type_hints,
    is_typeddict,
)

import gymnasium as gym
import jaxtyping
import numpy as np
import pytest
import torch
import treetensor.torch as ttorch
from annotated_types import Ge, Gt, Le, Lt, MultipleOf
from fuzz import assert_held, illegal_calls, legal_call
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

import literate_rl
from literate_rl.ground.signatures import (
    Bool,
    Count,
    Finite,
    Float,
    Fraction,
    Int,
    NonNegative,
    Positive,
    Scale,
    at_least,
    below,
    check_finite,
    check_for,
    check_that,
    checked,
    finite,
    plan_for,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.store import RESULTS, read_results


def takes(*hints: Any) -> Callable[..., None]:
    """Return a checked function with these annotations: ``a``, ``b`` and so on."""
    names = "abcdef"[: len(hints)]
    scope: dict[str, Any] = {}
    exec(f"def function({', '.join(names)}): pass", scope)
    scope["function"].__annotations__ = dict(zip(names, hints, strict=True))
    return checked(scope["function"])


def accepts(hint: Any, x: Any) -> bool:
    """Say whether an argument with this annotation may be this value."""
    try:
        takes(hint)(x)
    except (TypeError, ValueError) as error:
        if not str(error).startswith("a"):  # the annotation was not understood
            raise
        return False
    return True


# --- Shapes, beside a reference that tries every size ---------------------------------

PLAIN = ["T", "B", "T+1", "B-1", "2*B", "2*T+1", "1", "2"]
STARS = ["*S", "*R", "..."]


def reference(texts: list[str], shapes: list[tuple[int, ...]]) -> bool:
    """Try all sizes of T and B, and all stretches of the shapes for each star."""
    stretches = [part for shape in shapes for part in parts(shape) if 0 not in part]
    ways = {
        "T": range(1, 12),
        "B": range(1, 12),
        "*S": stretches or [()],
        "*R": stretches or [()],
    }
    used = {name: way for name, way in ways.items() if name in " ".join(texts)}
    return any(
        all(
            fits(text, shape, dict(zip(used, values, strict=True)))
            for text, shape in zip(texts, shapes, strict=True)
        )
        for values in itertools.product(*used.values())
    )


def parts(shape: tuple[int, ...]) -> set[tuple[int, ...]]:
    """Return all stretches of a shape, the empty one included."""
    ends = range(len(shape) + 1)
    return {shape[i:j] for i in ends for j in ends if i <= j}


def fits(text: str, shape: tuple[int, ...], known: dict[str, Any]) -> bool:
    """Compare a shape with its dimensions, now that every name has a value."""
    free = parts(shape) if "..." in text else {()}
    return any(expand(text, {**known, "...": part}) == shape for part in free)


def expand(text: str, known: dict[str, Any]) -> tuple[int, ...]:
    """Return the shape that a text stands for."""
    shape: tuple[int, ...] = ()
    for dim in text.split():
        shape += known[dim] if dim in STARS else (eval(dim, {}, known),)
    return shape


@st.composite
def texts_and_shapes(draw) -> tuple[list[str], list[tuple[int, ...]]]:
    """Draw annotations with shapes that fit, and then often change one of them."""
    texts = []
    for _ in range(draw(st.integers(1, 3))):
        dims = draw(st.lists(st.sampled_from(PLAIN), max_size=3))
        star = draw(st.none() | st.sampled_from(STARS))
        if star is not None:
            dims.insert(draw(st.integers(0, len(dims))), star)
        texts.append(" ".join(dims))
    middle = st.lists(st.integers(1, 3), max_size=2).map(tuple)
    known = {"T": draw(st.integers(1, 3)), "B": draw(st.integers(1, 3))}
    known |= {star: draw(middle) for star in STARS}
    shapes = [expand(text, known) for text in texts]
    if draw(st.booleans()):
        which = draw(st.integers(0, len(texts) - 1))
        shapes[which] = draw(st.lists(st.integers(0, 4), max_size=3).map(tuple))
    elif draw(st.booleans()):
        which = draw(st.integers(0, len(texts) - 1))
        near = [size + draw(st.integers(-1, 1)) for size in shapes[which]]
        shapes[which] = tuple(max(0, size) for size in near)
    return texts, shapes


@settings(max_examples=400)
@given(texts_and_shapes())
def test_shapes_agree_with_a_search_through_all_sizes(case):
    texts, shapes = case
    function = takes(*(Float[Tensor, text] for text in texts))
    tensors = [torch.empty(shape) for shape in shapes]
    if reference(texts, shapes):
        function(*tensors)
        function(**dict(zip("abc", tensors, strict=False)))
    else:
        with pytest.raises(ValueError, match=r"^[abc] must have .*shape \("):
            function(*tensors)


@given(texts_and_shapes())
def test_the_order_of_the_arguments_does_not_matter(case):
    texts, shapes = case
    tensors = [torch.empty(shape) for shape in shapes]
    verdicts = set()
    for order in itertools.permutations(range(len(texts))):
        function = takes(*(Float[Tensor, texts[i]] for i in order))
        try:
            function(*(tensors[i] for i in order))
            verdicts.add(True)
        except ValueError:
            verdicts.add(False)
    assert len(verdicts) == 1


def test_a_dimension_does_not_count_on_both_sides_of_a_star():
    for star in STARS:
        hint = Float[Tensor, f"B {star} B"]
        assert accepts(hint, torch.ones(3, 3))
        assert accepts(hint, torch.ones(3, 2, 3))
        assert not accepts(hint, torch.ones(3))
        assert not accepts(hint, torch.ones(()))


# --- Numbers --------------------------------------------------------------------------

BOUNDS = {Ge: operator.ge, Gt: operator.gt, Le: operator.le, Lt: operator.lt}
floats = st.floats(width=32) | st.integers(-3, 3)


@given(
    st.sampled_from([int, float]),
    st.lists(st.tuples(st.sampled_from(list(BOUNDS)), st.integers(-2, 2)), max_size=2),
    floats | st.booleans() | st.text() | st.none() | st.complex_numbers(),
    st.sampled_from([None, np.float32, np.float64, np.int64, np.bool_]),
)
def test_numbers_agree_with_the_definition_of_their_bounds(base, bounds, x, to_numpy):
    number = isinstance(x, int | float) and math.isfinite(x)
    if number and to_numpy is not None:
        x = to_numpy(x)
    kinds = (int, np.integer) if base is int else (int, float, np.integer, np.floating)
    right = isinstance(x, kinds) and not isinstance(x, bool)
    right = right and all(bool(BOUNDS[kind](x, limit)) for kind, limit in bounds)
    annotation = base
    for kind, limit in bounds:
        annotation = Annotated[annotation, kind(limit)]
    assert accepts(annotation, x) == right


def test_nan_satisfies_no_bound_and_infinity_those_that_it_satisfies():
    assert accepts(float, math.nan)
    assert accepts(float, -math.inf)
    assert accepts(Positive, math.inf)
    for annotation in (Fraction, Positive, NonNegative):
        assert not accepts(annotation, math.nan)
        assert not accepts(annotation, np.float32("nan"))
    assert not accepts(Fraction, math.inf)
    for annotation in (NonNegative, Finite):
        assert not accepts(annotation, math.inf)
    assert not accepts(Finite, -math.inf)


@pytest.mark.parametrize(
    ("annotation", "legal", "illegal"),
    [
        (Fraction, [0, 1, 0.5, np.float32(0.5), np.int64(1)], [-0.1, 1.1, True, "1"]),
        (Positive, [1, 1e-30, torch.ones(())], [0, -1.0, torch.ones(1), None]),
        (Scale, [1, 1e-30, 1e30], [0, -1.0, math.inf]),
        (NonNegative, [0, 0.0], [-1e-30, [0], math.inf]),
        (Finite, [0, -1e30, np.float32(3)], [math.inf, math.nan, True]),
        (Count, [1, np.int64(3), np.int32(3)], [0, 1.0, np.float64(1), True]),
    ],
)
def test_words(annotation, legal, illegal):
    assert all(accepts(annotation, x) for x in legal)
    assert not any(accepts(annotation, x) for x in illegal)


class Pair(NamedTuple):
    number: int
    rows: Tensor


ROWS = torch.ones(2)


@pytest.mark.parametrize(
    ("hint", "given", "wanted"),
    [
        (int, np.int32(3), 3),
        (float, np.uint8(3), 3),
        (float, np.float32(0.5), 0.5),
        (float, np.array(0.5), 0.5),
        (float, torch.tensor(0.5), 0.5),
        (Fraction | None, np.float64(0.5), 0.5),
        (Float[Tensor, "B"] | float, np.float64(0.5), 0.5),
        (bool, np.bool_(True), True),
        (str, np.str_("x"), "x"),
        (Literal["x", 3], np.str_("x"), "x"),
        (Literal["x", 3], np.int64(3), 3),
        (list[int], [1, np.int64(2)], [1, 2]),
        (Sequence[float], (np.float32(0.5), 1), (0.5, 1)),
        (tuple[int, float], (np.int8(1), np.float16(0.5)), (1, 0.5)),
        (Pair, Pair(np.int64(1), ROWS), Pair(1, ROWS)),
        (Any, np.float64(0.5), np.float64(0.5)),
        (Float[Tensor, ""], torch.tensor(0.5), torch.tensor(0.5)),
    ],
)
def test_a_function_gets_plain_numbers(hint, given, wanted):
    def returns(first: int, a: hint) -> Any:
        return a

    returns.__annotations__["a"] = hint
    returns = checked(returns)
    for came in (returns(1, given), returns(1, a=given), returns(a=given, first=1)):
        assert repr(came) == repr(wanted)


def test_settings_are_plain_numbers():
    @checked
    @dataclass(frozen=True)
    class Numbers:
        number: Count = 1
        gamma: Fraction = 0.5
        flag: bool = False
        sizes: tuple[int, ...] = ()

    flag = np.bool_(True)
    given = Numbers(np.int32(3), np.float32(0.5), flag, (np.int64(3),))
    for made in (given, replace(Numbers(3, flag=flag, sizes=(3,)), gamma=0.5)):
        values = {"number": 3, "gamma": 0.5, "flag": True, "sizes": [3]}
        assert json.loads(json.dumps(asdict(made))) == values


@pytest.mark.parametrize(
    ("hint", "x", "kind", "words"),
    [
        (int, np.float64(1000), TypeError, "a must be an integer, got float64"),
        (int, np.bool_(True), TypeError, "a must be an integer, got bool"),
        (float, np.ones(1), TypeError, "a must be a number, got ndarray"),
        (float, torch.ones((), requires_grad=True), TypeError, "a must be a number"),
        (Fraction, np.float32(1.5), ValueError, "a must be at least 0 and at most 1"),
        (list[int], [np.int64(1), "x"], TypeError, r"a\[1\] must be an integer"),
        (Float[Tensor, "B"], torch.ones(()), ValueError, r"a must have shape \(B,\)"),
    ],
)
def test_what_no_plain_number_mends_is_told_of_what_came(hint, x, kind, words):
    with pytest.raises(kind, match=words):
        takes(hint)(x)


# --- Dtypes ---------------------------------------------------------------------------

DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.bool,
]


@pytest.mark.parametrize(
    ("kind", "legal"),
    [
        (Float, {torch.float32, torch.float64}),
        (Int, {torch.int64}),
        (Bool, {torch.bool}),
        (jaxtyping.Int, {torch.int8, torch.int32, torch.int64}),
        (jaxtyping.Shaped, set(DTYPES)),
    ],
)
def test_dtypes_of_tensors(kind, legal):
    tensors = [torch.ones(2, dtype=dtype) for dtype in DTYPES]
    assert {x.dtype for x in tensors if accepts(kind[Tensor, "B"], x)} == legal


@pytest.mark.parametrize("array", [np.ndarray, np.ndarray[Any, np.dtype[Any]]])
def test_arrays(array):
    legal = [np.ones(2, np.float32), np.ones(2)]
    illegal = [np.ones(2, np.float16), np.ones(2, int), torch.ones(2), [1.0, 2.0]]
    assert all(accepts(Float[array, "B"], x) for x in legal)
    assert not any(accepts(Float[array, "B"], x) for x in illegal)
    assert accepts(Bool[array, "B"], np.ones(2, bool))
    assert accepts(Int[array, "B"], np.ones(2, np.int64))
    with pytest.raises(
        ValueError, match=r"b must have shape \(T,\) with T = 2 \(of a\)"
    ):
        takes(Float[Tensor, "T"], Float[array, "T"])(torch.ones(2), np.ones(3))


# --- What a message says --------------------------------------------------------------


class Pair(NamedTuple):
    logit: Float[Tensor, "B N"]
    action: Int[Tensor, "B"] | None


class Args(TypedDict):
    mu: Float[Tensor, "B A"]
    sigma: Float[Tensor, "B A"]


class Tree(TypedDict):
    action_type: Int[Tensor, "B"]
    action_args: Args


TB, ROW = Float[Tensor, "T B"], torch.ones(4)


@pytest.mark.parametrize(
    ("hints", "values", "message"),
    [
        ([TB], [[1.0]], "TypeError: a must be a tensor, got list of 1"),
        ([TB], [None], "TypeError: a must be a tensor, got NoneType"),
        (
            [TB],
            [torch.ones(2, 2).half()],
            "TypeError: a must be a float32 or float64 tensor, got torch.float16",
        ),
        (
            [Bool[Tensor, "B"]],
            [ROW],
            "TypeError: a must be a bool tensor, got torch.float32",
        ),
        (
            [Int[Tensor, "B"]],
            [ROW],
            "TypeError: a must be an int64 tensor, got torch.float32",
        ),
        ([TB], [ROW], "ValueError: a must have shape (T, B), got (4,)"),
        (
            [TB],
            [torch.ones(0, 2)],
            "ValueError: a must have a non-empty shape (T, B), got (0, 2)",
        ),
        (
            [Float[Tensor, ""]],
            [ROW],
            "ValueError: a must have shape (), got (4,)",
        ),
        (
            [Float[Tensor, "T"], TB],
            [torch.ones(5), torch.ones(5, 1, 3)],
            "ValueError: b must have shape (T, B) with T = 5 (of a), got (5, 1, 3)",
        ),
        (
            [Float[Tensor, "T"], Float[Tensor, "B N"], Float[Tensor, "T B N"]],
            [torch.ones(5), torch.ones(2, 3), torch.ones(5, 3, 2)],
            "ValueError: c must have shape (T, B, N) with T = 5 (of a), "
            "B = 2 (of b), N = 3 (of b), got (5, 3, 2)",
        ),
        (
            [Float[Tensor, "N N"]],
            [torch.ones(2, 3)],
            "ValueError: a must have shape (N, N), got (2, 3)",
        ),
        (
            [Float[Tensor, "*B N"], Float[Tensor, "*B"]],
            [torch.ones(2, 3, 4), torch.ones(2)],
            "ValueError: b must have shape (*B,) with *B = (2, 3) (of a), got (2,)",
        ),
        (
            [Fraction],
            [1.5],
            "ValueError: a must be at least 0 and at most 1, got 1.5",
        ),
        ([Fraction], ["1"], "TypeError: a must be a number, got str"),
        ([Count], [2.0], "TypeError: a must be an integer, got float"),
        (
            [Annotated[float, Gt(1)] | None],
            [0.5],
            "ValueError: a must be greater than 1, got 0.5",
        ),
        (
            [Literal["always", "never"]],
            ["Always"],
            "ValueError: a must be 'always' or 'never', got 'Always'",
        ),
        (
            [Literal["always", "never"]],
            [1],
            "ValueError: a must be 'always' or 'never', got 1",
        ),
        ([bool], [1], "TypeError: a must be a bool, got int"),
        ([str], [1], "TypeError: a must be a str, got int"),
        ([Callable[[int], int]], [1], "TypeError: a must be callable, got int"),
        (
            [torch.Generator],
            [1],
            "TypeError: a must be a Generator, got int",
        ),
        (
            [TB | float],
            ["x"],
            "TypeError: a must be a tensor or a number, got str",
        ),
        (
            [TB | Fraction],
            [ROW],
            "ValueError: a must have shape (T, B), got (4,)",
        ),
        (
            [TB | Fraction],
            [2],
            "ValueError: a must be at least 0 and at most 1, got 2",
        ),
        (
            [str | int | None],
            [1.0],
            "TypeError: a must be a str or an integer or None",
        ),
        (
            [Pair],
            [(ROW, None)],
            "TypeError: a must be a Pair (logit, action), got tuple of 2",
        ),
        (
            [Pair],
            [Pair(ROW, None)],
            "ValueError: a.logit must have shape (B, N), got (4,)",
        ),
        (
            [Pair],
            [Pair(torch.ones(4, 2), torch.ones(3).long())],
            "ValueError: a.action must have shape (B,) with B = 4 (of a.logit), "
            "got (3,)",
        ),
        (
            [Tree],
            [{"action_type": ROW.long(), "action_args": {"mu": torch.ones(4, 2)}}],
            "TypeError: a.action_args must be a tree with the keys 'mu', 'sigma', "
            "got {'mu'}",
        ),
        (
            [Args],
            [{"mu": torch.ones(4, 2), "sigma": ROW}],
            "ValueError: a.sigma must have shape (B, A) with B = 4 (of a.mu), "
            "A = 2 (of a.mu), got (4,)",
        ),
        (
            [Args],
            [ROW],
            "TypeError: a must be a tree with the keys 'mu', 'sigma', got Tensor",
        ),
        (
            [Sequence[Float[Tensor, "B"]]],
            [[ROW, torch.ones(3)]],
            "ValueError: a[1] must have shape (B,) with B = 4 (of a[0]), got (3,)",
        ),
        ([Sequence[str]], ["abc"], "TypeError: a must be a Sequence, got str"),
        ([list[Count]], [[1, 0]], "ValueError: a[1] must be at least 1, got 0"),
        ([list[Count]], [(1, 2)], "TypeError: a must be a list, got tuple of 2"),
        (
            [tuple[Count, ...]],
            [(1, "x")],
            "TypeError: a[1] must be an integer, got str",
        ),
        ([tuple[int, str]], [(1, 2)], "TypeError: a[1] must be a str, got int"),
        (
            [tuple[int, str]],
            [(1, "x", 2)],
            "TypeError: a must be a tuple of 2, got tuple of 3",
        ),
        (
            [Sequence[Sequence[bool]]],
            [[[True], [0]]],
            "TypeError: a[1][0] must be a bool, got int",
        ),
    ],
)
def test_messages(hints, values, message):
    with pytest.raises((TypeError, ValueError)) as caught:
        takes(*hints)(*values)
    assert f"{type(caught.value).__name__}: {caught.value}".startswith(message)


def test_the_error_leaves_the_checks_in_one_step():
    """Whoever reads the traceback sees the call, and one line of ours."""
    with pytest.raises(ValueError, match="at most 1") as caught:
        takes(Fraction)(2)
    assert len(caught.traceback) == 2


# --- Single kinds ---------------------------------------------------------------------


class Own:
    """A class that is not the package's: an instance is asked for."""


Fake = type("Fake", (), {"__module__": "literate_rl.somewhere"})
T = TypeVar("T")


@pytest.mark.parametrize(
    ("hint", "legal", "illegal"),
    [
        (bool, [True, np.bool_(False), torch.tensor(True)], [0, None, torch.tensor(1)]),
        (str | Path, ["x", Path("x")], [b"x", None]),
        (int | None, [1, None], [1.0]),
        (Literal[1, "one", None], [1, "one", None], [True, 2, "two", np.ones(3)]),
        (Callable[..., Any], [len, lambda: 0, int], [0, None]),
        (torch.device, [torch.device("cpu")], ["cpu"]),
        (torch.Generator | None, [torch.Generator(), None], [np.random.default_rng()]),
        (Tensor, [torch.ones(2), nn.Parameter(torch.ones(2))], [np.ones(2)]),
        (gym.spaces.Space[Any], [gym.spaces.Discrete(2)], [2, gym.spaces.Discrete]),
        (gym.Env[Any, Any], [gym.make("CartPole-v1")], ["CartPole-v1"]),
        (NDArray[Any], [np.ones(2)], [[1.0]]),
        (type[Any], [int], [1]),
        (list, [[1, "x"]], [(1,)]),
        (tuple[()], [()], [(1,)]),
        (Own, [Own()], [1]),
        (Float[Tensor | np.ndarray, "B"], [ROW, np.ones(3)], [[1.0], ROW.half()]),
    ],
)
def test_kinds(hint, legal, illegal):
    assert all(accepts(hint, x) for x in legal)
    assert not any(accepts(hint, x) for x in illegal)


@pytest.mark.parametrize(
    "hint",
    [Any, object, T, Fake, Fake | None, ArrayLike | Tensor],
)
def test_what_says_nothing_on_purpose(hint):
    assert all(accepts(hint, x) for x in (None, 1, "x", [[True]], ROW, Own()))


def test_a_named_tuple_that_was_defined_anew_is_the_same():
    function = takes(Pair)
    again = namedtuple("Pair", ["logit", "action"])
    function(again(torch.ones(4, 2), None))
    for fields in (["logit", "value"], ["action", "logit"], ["logit"]):
        strange = namedtuple("Pair", fields)
        with pytest.raises(TypeError, match="a must be a Pair"):
            function(strange(*[torch.ones(4, 2)] * len(fields)))


@pytest.mark.parametrize("build", [dict, types.MappingProxyType, ttorch.as_tensor])
def test_trees(build):
    def tree(sigma: Tensor) -> Any:
        args = {"mu": torch.ones(4, 2), "sigma": sigma}
        return build({"action_type": torch.ones(4).long(), "action_args": args})

    takes(Tree)(tree(torch.ones(4, 2)))
    with pytest.raises(ValueError, match=r"a\.action_args\.sigma must .* got \(4, 3\)"):
        takes(Tree)(tree(torch.ones(4, 3)))
    more = build({**dict(tree(ROW).items()), "more": ROW})
    with pytest.raises(TypeError, match="a must be a tree with the keys"):
        takes(Tree)(more)


def test_an_alternative_that_fails_leaves_no_size_behind():
    hint = Float[Tensor, "T 2"] | Float[Tensor, "B T"]
    takes(hint, Float[Tensor, "T"])(torch.ones(5, 3), torch.ones(3))
    with pytest.raises(ValueError, match=r"b must .* T = 3 \(of a\), got \(5,\)"):
        takes(hint, Float[Tensor, "T"])(torch.ones(5, 3), torch.ones(5))


def test_sizes_are_those_of_one_call():
    function = takes(TB, TB)
    for size in (1, 2, 3):
        function(torch.ones(size, 2), torch.ones(size, 2))


# --- Ways to pass an argument ---------------------------------------------------------


@checked
def every_way(first: Count, /, second: Count, *, last: Count = 1) -> list[Any]:
    """Return what came."""
    return [first, second, last]


def test_arguments_by_place_and_by_name():
    assert every_way(1, 2) == [1, 2, 1]
    assert every_way(1, second=2) == [1, 2, 1]
    assert every_way(1, last=5, second=np.int64(2)) == [1, 2, 5]


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((0, 1), {}, "first must be at least 1, got 0"),
        ((1, 0), {}, "second must be at least 1, got 0"),
        ((1,), {"second": 0}, "second must be at least 1, got 0"),
        ((1, 1), {"last": 0}, "last must be at least 1, got 0"),
    ],
)
def test_each_way_is_checked(args, kwargs, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        every_way(*args, **kwargs)


def test_missing_and_unknown_arguments_are_pythons_business():
    function = takes(Count)
    for one in (1, np.int64(1)):
        ways = ((), {}), ((one, 2), {}), ((one,), {"a": 1}), ((one,), {"b": 1})
        for args, kwargs in ways:
            with pytest.raises(TypeError, match=r"function\(\) (missing|takes|got)"):
                function(*args, **kwargs)


# --- Settings -------------------------------------------------------------------------


@checked
@dataclass(frozen=True)
class Settings:
    """Settings of a run."""

    gamma: Fraction = 0.99
    num_steps: Count = 8
    name: str | None = None
    hidden: list[Count] = field(default_factory=list)


@checked
@dataclass(frozen=True)
class MoreSettings(Settings):
    """Settings with one more."""

    clip: Positive = 0.2


@pytest.mark.parametrize("kind", [Settings, MoreSettings])
def test_a_dataclass_is_checked_when_it_is_made(kind):
    assert kind(0.5, 3, hidden=[4]).num_steps == 3
    with pytest.raises(ValueError, match="gamma must be at least 0 and at most 1"):
        kind(1.5)
    with pytest.raises(ValueError, match="num_steps must be at least 1, got 0"):
        replace(kind(), num_steps=0)
    with pytest.raises(ValueError, match=r"hidden\[0\] must be at least 1, got 0"):
        kind(hidden=[0])
    assert isinstance(kind(), Settings)
    assert pickle.loads(pickle.dumps(kind(0.5))) == kind(0.5)


def test_a_dataclass_that_inherits():
    with pytest.raises(ValueError, match="clip must be greater than 0, got 0"):
        MoreSettings(clip=0)


# --- What is not understood is an error -----------------------------------------------


@pytest.mark.parametrize(
    "hint",
    [
        Annotated[int, MultipleOf(2)],
        Annotated[Fraction, "words"],
        Annotated[int, MultipleOf(2)] | None,
        list["Nowhere"],
        tuple[int, Float[Tensor, "#B"]],
        NamedTuple("Holder", [("x", Float[Tensor, "#B"])]),
        TypedDict("Holder", {"x": Float[Tensor, "#B"]}),
        Float[Tensor, "#B"],
        Float[Tensor, "T*B"],
        Float[Tensor, "T/2"],
        "not python",
        "Nowhere",
    ],
    ids=str,
)
def test_what_is_not_understood_is_an_error_at_every_call(hint):
    function = takes(int, hint)
    for _ in range(2):
        with pytest.raises(TypeError, match=r"@checked cannot read .*function, "):
            function(1, None)


def test_the_error_names_function_argument_and_annotation():
    function = takes(int, Float[Tensor, "#B"])
    with pytest.raises(TypeError, match=r"function, b: .* the dimension '#B'"):
        function(1, torch.ones(2))


def test_an_argument_without_an_annotation_is_an_error():
    @checked
    def function(a: int, b) -> None: ...

    with pytest.raises(TypeError, match="function, b: the annotation is missing"):
        function(1, 2)

    @checked
    def disguised(a: int, self) -> None: ...

    with pytest.raises(TypeError, match="disguised, self: the annotation is missing"):
        disguised(1, 2)


def test_arguments_without_an_end_are_not_understood():
    @checked
    def many(*rest: Count) -> None: ...

    @checked
    def named(**others: Any) -> None: ...

    for function, words in (
        (many, r"rest: .* \*rest"),
        (named, r"others: .* \*\*others"),
    ):
        with pytest.raises(TypeError, match=words):
            function()


def test_the_annotation_of_the_result_must_exist():
    @checked
    def function(a: int) -> Nowhere: ...

    with pytest.raises(TypeError, match="name 'Nowhere' is not defined"):
        function(1)


@pytest.mark.parametrize("thing", [Own, Own(), 3, len, classmethod(lambda cls: 0)])
def test_what_cannot_be_decorated(thing):
    with pytest.raises(TypeError, match="@checked takes a function or a dataclass"):
        checked(thing)


# --- A checked function is still the function -----------------------------------------


@checked
def discount(reward: TB, gamma: Fraction = 0.9) -> TB:
    """Weigh rewards."""
    return reward * gamma


class Network(nn.Module):
    """A network with checked methods."""

    @checked
    def __init__(self, inputs: Count, outputs: Count = 2) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    @checked
    def forward(self, x: Float[Tensor, "B D"]) -> Float[Tensor, "B N"]:
        """Return a row for each state."""
        return self.linear(x)

    @classmethod
    @checked
    def of(cls, size: Count) -> Network:
        """Make one."""
        return cls(size, size)

    @staticmethod
    @checked
    def half(x: Fraction) -> float:
        """Return a half of it."""
        return x / 2

    @checked
    def grow(self, x: Later) -> Any:
        """Take a tuple that is defined below."""
        return x.size


class Later(NamedTuple):
    size: Count


def test_signature_help_and_name():
    signature = "(reward: 'TB', gamma: 'Fraction' = 0.9) -> 'TB'"
    assert str(inspect.signature(discount)) == signature
    assert "Weigh rewards." in pydoc.render_doc(discount)
    assert (discount.__name__, discount.__module__) == ("discount", __name__)
    assert inspect.signature(Settings).parameters["gamma"].default == 0.99


def test_pickle_and_partial():
    assert pickle.loads(pickle.dumps(discount)) is discount
    half = pickle.loads(pickle.dumps(functools.partial(discount, gamma=0.5)))
    assert half(torch.ones(1, 1)).item() == 0.5
    with pytest.raises(
        ValueError, match="gamma must be at least 0 and at most 1, got 2"
    ):
        functools.partial(discount, gamma=2)(torch.ones(1, 1))


def test_methods():
    network = Network.of(3)
    assert network(torch.ones(2, 3)).shape == (2, 3)
    assert Network.half(0.5) == 0.25
    assert network.grow(Later(3)) == 3
    for call, message in (
        (lambda: Network(0), "inputs must be at least 1"),
        (lambda: network(torch.ones(3)), r"x must have shape \(B, D\), got \(3,\)"),
        (lambda: Network.of(0), "size must be at least 1"),
        (lambda: Network.half(2), "x must be at least 0 and at most 1"),
        (lambda: network.grow(Later(0)), "x.size must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    again = pickle.loads(pickle.dumps(network))
    assert torch.equal(again(torch.ones(2, 3)), network(torch.ones(2, 3)))


def test_a_compiled_graph_has_no_checks_and_is_whole():
    compiled = torch.compile(discount, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2, 3), 0.5), torch.full((2, 3), 0.5))
    assert torch.equal(compiled(torch.ones(2), 0.5), torch.full((2,), 0.5))
    network = torch.compile(Network(3), backend="eager", fullgraph=True)
    assert network(torch.ones(2, 3)).shape == (2, 2)
    with pytest.raises(ValueError, match="reward must have shape"):
        discount(torch.ones(2))


def test_tensors_are_passed_on_as_they_are():
    seen = []

    @checked
    def keep(x: Float[Tensor, "B"], y: Float[Tensor, "B"]) -> None:
        seen.extend([x, y])

    x, y = torch.ones(3, requires_grad=True), torch.ones(3, device="meta")
    keep(x, y=y)
    assert seen[0] is x
    assert seen[1] is y
    assert x._version == 0


def test_vmap_and_functional_gradients():
    x = torch.rand(4, 2, 3)
    assert torch.equal(torch.func.vmap(discount)(x), x * 0.9)
    gradient = torch.func.grad(lambda x: discount(x).sum())(x[0])
    assert torch.equal(gradient, torch.full((2, 3), 0.9))


NOTEBOOK = """
from __future__ import annotations
import pickle, cloudpickle
from typing import NamedTuple
import torch
from torch import Tensor
from literate_rl.ground.signatures import Float, Fraction, checked

class Data(NamedTuple):
    x: Float[Tensor, "B"]

@checked
def mean(data: Data, gamma: Fraction = 0.5) -> float:
    return gamma * data.x.mean().item()

old = Data(torch.ones(2))

class Data(NamedTuple):
    x: Float[Tensor, "B"]

print(mean(old), mean(Data(torch.ones(2))))
again = pickle.loads(cloudpickle.dumps(mean))
print(again(old), pickle.loads(pickle.dumps(mean)) is mean)
for function in (mean, again):
    try:
        function(Data(torch.ones(2, 2)))
    except ValueError as error:
        print(error)
"""


def test_functions_of_a_notebook_also_when_a_class_is_defined_anew():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NOTEBOOK],
        capture_output=True,
        text=True,
        check=True,
    )
    message = "data.x must have shape (B,), got (2, 2)\n"
    assert done.stdout == "0.5 0.5\n0.5 True\n" + 2 * message


# --- Plans ----------------------------------------------------------------------------


def test_plans_can_be_made_of_functions_and_of_checked_ones():
    for function in (discount, discount.__wrapped__):
        assert [*plan_for(function)] == ["reward", "gamma"]
    assert [*plan_for(MoreSettings)][-1] == "clip"


def checked_in(module: types.ModuleType) -> Iterator[Any]:
    """Yield what is checked in a module: functions, methods and dataclasses."""
    for thing in vars(module).values():
        if getattr(thing, "__module__", None) != module.__name__:
            continue
        parts = vars(thing).values() if isinstance(thing, type) else [thing]
        for part in parts:
            function = getattr(part, "__func__", part)
            code = getattr(function, "__code__", None)
            if code is not None and code.co_qualname == "held.<locals>.call":
                yield thing if is_dataclass(thing) else function


def test_what_is_checked_is_found():
    found = set(checked_in(sys.modules[__name__]))
    methods = {Network.forward, Network.grow, Network.half, Network.of.__func__}
    assert {discount, every_way, Settings, MoreSettings} | methods <= found
    assert takes not in found


MODULES = [
    info.name
    for info in pkgutil.walk_packages(literate_rl.__path__, "literate_rl.")
    if "__main__" not in info.name
]


@pytest.mark.parametrize("name", MODULES)
def test_every_signature_of_the_package_can_be_read(name):
    for thing in checked_in(importlib.import_module(name)):
        plan = plan_for(thing)
        for argument, parameter in inspect.signature(thing).parameters.items():
            default = parameter.default
            # A dataclass shows `<factory>` where each instance gets its own default.
            if default is not parameter.empty and repr(default) != "<factory>":
                assert plan[argument](argument, default, {}) is None


def unasked(hint: Any, name: str) -> Iterator[str]:
    """Yield the parts of an argument of which nothing is asked."""
    hint = getattr(hint, "__value__", hint)
    strange = [object(), None, "x", -1, math.nan, [[None]], torch.ones(0).half()]
    if not any(check_for(hint)(name, x, {}) for x in strange):
        yield name
    elif hasattr(hint, "_fields") or is_typeddict(hint):
        for field, part in get_type_hints(hint, include_extras=True).items():
            yield from unasked(part, f"{name}.{field}")


def test_a_hole_in_a_signature_is_found():
    class Holder(NamedTuple):
        x: Any
        y: int
        z: Any | None

    assert [*unasked(Any | int, "a")] == ["a"]
    assert [*unasked(Holder, "a")] == ["a.x", "a.z"]
    assert [*unasked(Callable[..., Any], "a")] == []


# Models, policies and learners are of the user's own making. Tables, and what two kinds
# of action or another library's types share, are looked at by the function itself.
UNASKED = {
    "check.own_models.make_contract_policy": "actor, critic",
    "check.own_models.make_own_ddpg_policy": "actor, critic",
    "check.own_models.make_own_sac_policy": "actor, critic",
    "check.own_models.make_qnet_policy": "qnet",
    "actors.a3c.A3C.__init__": "policy, config",
    "actors.actors.Actor.__init__": "policy",
    "actors.actors.ActorLearner.__init__": "policy, config",
    "actors.actors.slot_layout": "policy",
    "data.agents.Collector.__init__": "dtype",
    "actors.apex.Apex.__init__": "learner",
    "actors.apex.experience_layout": "policy",
    "nets.disjoint_network.DisjointPolicyValueNetwork.forward": "observation",
    "runs.evaluation.evaluate": "policy",
    "data.exact_values.tabular_values": "transition, reward",
    "nets.hybrid_action.HybridDistribution.__init__": "mask",
    "nets.hybrid_ppo.ppo_policy_error_hybrid": "mask",
    "nets.hybrid_ppo.ppo_policy_error_hybrid_per_head": "mask",
    "learners.impala.VTraceLearner.learn": "unroll.obs_plus_1, unroll.next_obs",
    "maths.off_policy.vtrace_error_continuous_action": (
        "data.target_output, data.behaviour_output"
    ),
    "maths.off_policy.vtrace_error_discrete_action": (
        "data.target_output, data.behaviour_output"
    ),
    "interfaces.alf.PPGAuxAlgorithm.__init__": "config, dual_actor_value_network",
    "interfaces.alf.PPGAuxPhaseLoss.forward": (
        "info.action_distribution, info.action, info.log_prob, info.value, "
        "info.aux, info.step_type, info.discount, info.reward, "
        "info.reward_weights, info.rollout_action_distribution, "
        "info.rollout_value, info.rollout_log_prob, info.rollout_next_value"
    ),
    "interfaces.alf.ppg_network_forward": (
        "network, inputs.step_type, inputs.reward, inputs.discount, "
        "inputs.observation, state"
    ),
    "interfaces.ding.IMPALAPolicy.__init__": "config",
    "interfaces.ding.IMPALAPolicyConfig": "model",
    "by_hand.fast_forms.numpy_act": "policy",
    "nets.hybrid_policy.make_hybrid_policy": "mask",
    "nets.recurrent.make_recurrent_policy": "mask",
    "ground.nests.is_spec": "spec, sizes",
    "runs.runs.record_video": "policy",
    "runs.runs.fit": "learner, run",
    "apps.training.Asked": "env, wrappers",
    "apps.training.check_fast": "row, config",
}


def test_nothing_is_asked_only_where_that_is_on_purpose():
    """A signature that looks enforced and is not would be worse than none."""
    found = {}
    for module in MODULES:
        for thing in checked_in(importlib.import_module(module)):
            hints = get_type_hints(thing, include_extras=True)
            asked = [
                name for name in inspect.signature(thing).parameters if name in hints
            ]
            holes = [hole for name in asked for hole in unasked(hints[name], name)]
            if holes:
                place = f"{module.removeprefix('literate_rl.')}.{thing.__qualname__}"
                found[place] = ", ".join(holes)
    assert found == UNASKED


def test_the_stored_figures_reach_their_goals():
    """The chapter says: more than eight times as fast."""
    rows, _ = read_results(RESULTS / "signatures.csv")
    goals = [row.reached for row in rows if row.reached is not None]
    assert len(goals) == 3
    assert all(goals)


# --- Results --------------------------------------------------------------------------


@given(
    st.lists(st.floats(width=32) | st.just(3e38), min_size=1, max_size=4),
    st.booleans(),
)
def test_check_finite_agrees_with_a_look_at_every_number(numbers, known):
    result = torch.tensor(numbers)
    inputs = {"x": result if known else torch.ones(2), "y": None}
    if all(map(math.isfinite, numbers)):
        check_finite(result, **inputs)
    else:
        expected = f"^{'x' if known else 'the result'} must be finite$"
        with pytest.raises(ValueError, match=expected):
            check_finite(result, **inputs)


# --- Calls drawn from a signature -----------------------------------------------------


@checked
def advantages(
    reward: TB,
    value: Float[Tensor, "T+1 B"],
    terminated: Bool[Tensor, "T B"],
    gamma: Fraction = 0.99,
    clip: Annotated[float, Gt(1)] | None = None,
) -> TB:
    """A function of tensors and numbers."""
    future = torch.where(terminated, 0.0, value[1:])
    return reward + gamma * future - value[:-1]


@checked
def weighted(data: Pair, weight: Float[Tensor, "B"] | None, tree: Tree) -> Tensor:
    """A function of a named tuple and a tree."""
    return data.logit.sum(1) + tree["action_args"]["mu"].sum(1)


@checked
def options(
    kind: Literal["always", "never"],
    hidden: Sequence[Count],
    scale: Mapping[str, float],
    flag: bool = False,
    noise: Float[Tensor, "*S"] | float = 0.0,
    generator: torch.Generator | None = None,
    act: Callable[[Tensor], Tensor] | None = None,
    bounds: tuple[float, int] = (0.0, 1),
    table: Float[np.ndarray, "S A"] | None = None,
) -> None:
    """A function of everything else."""


SAMPLES = [advantages, weighted, options, discount, Settings, Network(2).half]


@pytest.mark.parametrize("function", SAMPLES, ids=lambda f: f.__name__)
def test_legal_calls_pass_and_illegal_ones_are_named(function):
    assert assert_held(function, Random(0), runs=10) > 50


def test_given_arguments_are_taken_as_they_are():
    seen = []

    @checked
    def use(model: Any, x: Float[Tensor, "B"]) -> None:
        seen.append(model)

    assert assert_held(use, Random(0), model=lambda: "model") > 0
    assert set(seen) == {"model"}


@pytest.mark.parametrize("function", SAMPLES[:4], ids=lambda f: f.__name__)
def test_functions_that_check_nothing_are_found_out(function):
    def passive(*args: Any, **kwargs: Any) -> None: ...

    functools.update_wrapper(passive, function.__wrapped__)
    with pytest.raises(AssertionError, match=r"may be|the arguments changed"):
        assert_held(passive, Random(0))


def test_functions_that_write_are_found_out():
    @checked
    def write(x: Float[Tensor, "B"]) -> None:
        x.add_(1)

    with pytest.raises(AssertionError, match="a legal call changed its arguments"):
        assert_held(write, Random(0))


def test_functions_that_refuse_what_is_legal_are_found_out():
    @checked
    def strict(x: Fraction) -> None:
        raise ValueError("x must be something else")

    with pytest.raises(AssertionError, match="a legal call was refused"):
        assert_held(strict, Random(0))


def test_what_is_changed_in_an_illegal_call():
    """The mistakes that cost the most are among those that are drawn."""
    arguments = legal_call(advantages, Random(1))
    drawn = {(call.name, call.what) for call in illegal_calls(advantages, arguments)}
    assert {
        ("reward", "a column"),
        ("reward", "another B"),
        ("reward", "float16"),
        ("reward", "a list"),
        ("reward", "None"),
        ("value", "another T+1"),
        ("terminated", "float32"),
    } <= drawn
    calls = illegal_calls(weighted, legal_call(weighted, Random(1)))
    assert ("data.logit", "a row") in {(call.name, call.what) for call in calls}


@pytest.mark.parametrize(
    ("index", "came"), [([0, 3], "0..3"), ([-1, 2], "-1..2"), ([7, 7], "7..7")]
)
def test_an_index_out_of_range_is_named(index, came):
    @checked
    def choose(
        logit: Float[Tensor, "B N"], action: Annotated[Int[Tensor, "B"], below("N")]
    ) -> None: ...

    message = f"action must lie in 0..2, got {came}"
    with pytest.raises(ValueError, match=re.escape(message)):
        choose(torch.zeros(2, 3), torch.tensor(index))
    choose(torch.zeros(2, 3), torch.tensor([0, 2]))
    with pytest.raises(ValueError, match=r"action must have shape \(B,\)"):
        choose(torch.zeros(2, 3), torch.tensor([7]))  # the shape is looked at first


def test_rules_follow_what_they_are_rules_for():
    @checked
    def mean(x: Annotated[Float[np.ndarray, "n"], at_least(2, "2 seeds"), finite]): ...

    mean(np.ones(2))
    for x, message in (
        (np.ones(1), "x must hold at least 2 seeds, got 1"),
        (np.array([1.0, np.nan]), "x must be finite"),
        (np.ones((2, 2)), "x must have shape"),
    ):
        with pytest.raises(ValueError, match=message):
            mean(x)
    with pytest.raises(TypeError, match="x must be a"):
        mean([1.0, 2.0])


def test_what_must_hold_is_said_in_words():
    check_that(True, "never said")
    with pytest.raises(ValueError, match="a must be b"):
        check_that(torch.tensor(False), "a must be b")
