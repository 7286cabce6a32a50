"""Signatures: what ``@checked`` accepts, beside a slow reference; messages; limits."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import json
import math
import operator
import pkgutil
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
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
)

import numpy as np
import pytest
import torch
from annotated_types import Ge, Gt, Le, Lt
from fuzz import assert_held
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from torch import Tensor, nn

import literate_rl
from literate_rl.ground.signatures import (
    Count,
    Float,
    Fraction,
    Int,
    Positive,
    Scale,
    at_least,
    below,
    check_finite,
    checked,
    finite,
    plan_for,
)
from literate_rl.nets.hybrid_action import as_tree


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
    dims = text.split()
    each = [known[x] if x in STARS else (eval(x, {}, known),) for x in dims]
    return sum(each, ())


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


@settings(max_examples=200)
@given(texts_and_shapes())
@example((["B *S B"], [(3,)]))
@example((["B ... B"], [()]))
def test_shapes_agree_with_a_search_through_all_sizes_in_any_order(case):
    texts, shapes = case
    right = reference(texts, shapes)
    for pairs in itertools.permutations(
        zip(texts, map(torch.empty, shapes), strict=True)
    ):
        function = takes(*(Float[Tensor, text] for text, _ in pairs))
        tensors = [x for _, x in pairs]
        if right:
            function(*tensors)
            function(**dict(zip("abc", tensors, strict=False)))
        else:
            with pytest.raises(ValueError, match=r"^[abc] must have .*shape \("):
                function(*tensors)


# --- Numbers --------------------------------------------------------------------------

BOUNDS = {Ge: operator.ge, Gt: operator.gt, Le: operator.le, Lt: operator.lt}
floats = st.floats() | st.integers(-3, 3)


@given(
    st.sampled_from([int, float]),
    st.lists(st.tuples(st.sampled_from(list(BOUNDS)), st.integers(-2, 2)), max_size=2),
    floats | st.booleans() | st.text() | st.none() | st.complex_numbers(),
    st.sampled_from([None, np.float32, np.float64, np.int64, np.bool_]),
)
def test_numbers_agree_with_the_definition_of_their_bounds(base, bounds, x, to_numpy):
    if isinstance(x, int) and to_numpy is not None:
        x = to_numpy(x)
    kinds = (int, np.integer) if base is int else (int, float, np.integer, np.floating)
    right = isinstance(x, kinds) and not isinstance(x, bool)
    right = right and all(bool(BOUNDS[kind](x, limit)) for kind, limit in bounds)
    annotation = base
    for kind, limit in bounds:
        annotation = Annotated[annotation, kind(limit)]
    assert accepts(annotation, x) == right


class Own:
    """A class that is not the package's: an instance is asked for."""


class Pair(NamedTuple):
    logit: Float[Tensor, "B N"]
    action: Int[Tensor, "B"] | None


class Args(TypedDict):
    mu: Float[Tensor, "B A"]
    sigma: Float[Tensor, "B A"]


class Tree(TypedDict):
    action_type: Int[Tensor, "B"]
    action_args: Args


Fake = type("Fake", (), {"__module__": "literate_rl.somewhere"})
T = TypeVar("T")
TB, ROW, ROWS = Float[Tensor, "T B"], torch.ones(4), torch.ones(4, 2)
INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("hint", "legal", "illegal"),
    [
        (float, [NAN, -INF, np.float32(0.5), torch.ones(())], ["1", None, True, [1]]),
        (Scale, [1e-30], [0, INF]),
        (bool, [True, np.bool_(False), torch.tensor(True)], [0, None, torch.tensor(1)]),
        (str | Path, ["x", Path("x")], [b"x", None]),
        (Literal[1, "one", None], [1, "one", None], [True, 2, "two", np.ones(3)]),
        (Own, [Own()], [1]),
        (Float[Tensor | np.ndarray, "B"], [ROW, np.ones(3)], [[1.0], ROW.half()]),
        *(
            (Float[x, "B"], [np.ones(2, "f4"), np.ones(2)], [np.ones(2, int), ROW])
            for x in (np.ndarray, np.ndarray[Any, np.dtype[Any]])
        ),
        *(
            (x, [None, 1, "x", [[True]], ROW, Own()], [])
            for x in (Any, T, Fake | None, ArrayLike | Tensor)
        ),
    ],
)
def test_kinds(hint, legal, illegal):
    assert all(accepts(hint, x) for x in legal)
    assert not any(accepts(hint, x) for x in illegal)


@pytest.mark.parametrize(
    ("hint", "given", "wanted"),
    [
        (float, np.array(0.5), 0.5),
        (tuple[int, list[int]], (np.int8(1), [np.int64(2)]), (1, [2])),
        (Any, np.float64(0.5), np.float64(0.5)),
    ],
)
def test_a_function_gets_plain_numbers(hint, given, wanted):
    def returns(first: int, a: hint) -> Any:
        return a

    returns.__annotations__["a"] = hint
    for came in (checked(returns)(1, given), checked(returns)(1, a=given)):
        assert repr(came) == repr(wanted)


# --- What a message says --------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (TB, [1.0], "TypeError: a must be a tensor, got list of 1"),
        (TB, ROWS.half(), "TypeError: a must be a float32 or float64 tensor, got tor"),
        (TB, ROW, "ValueError: a must have shape (T, B), got (4,)"),
        (TB, ROWS[:0], "ValueError: a must have a non-empty shape (T, B), got (0, 2)"),
        (Fraction, 1.5, "ValueError: a must be at least 0 and at most 1, got 1.5"),
        (
            Pair,
            (ROW, None),
            "TypeError: a must be a Pair (logit, action), got tuple of 2",
        ),
        (
            Pair,
            Pair(ROWS, ROW[:3].long()),
            "ValueError: a.action must have shape (B,) with B = 4 (of a.logit), "
            "got (3,)",
        ),
        (
            Args,
            {"mu": ROWS, "sigma": ROW},
            "ValueError: a.sigma must have shape (B, A) with B = 4 (of a.mu), "
            "A = 2 (of a.mu), got (4,)",
        ),
        (list[list[bool]], [[True], [0]], "TypeError: a[1][0] must be a bool, got int"),
    ],
)
def test_messages(hint, value, message):
    with pytest.raises((TypeError, ValueError)) as caught:
        takes(hint)(value)
    assert f"{type(caught.value).__name__}: {caught.value}".startswith(message)
    # Whoever reads the traceback sees the call, and one line of ours.
    assert len(caught.traceback) == 2


@pytest.mark.parametrize("build", [dict, types.MappingProxyType, as_tree])
def test_trees(build):
    def tree(sigma: Tensor, **more: Tensor) -> Any:
        args = {"mu": ROWS, "sigma": sigma}
        return build({"action_args": args, "action_type": ROW.long(), **more})

    takes(Tree)(tree(ROWS))
    with pytest.raises(ValueError, match=r"a\.action_args\.sigma must .* \(4, 3\)"):
        takes(Tree)(tree(torch.ones(4, 3)))
    with pytest.raises(TypeError, match="a must be a tree with the keys"):
        takes(Tree)(tree(ROWS, more=ROW))


def test_sizes_are_those_of_one_call_and_of_the_alternative_that_fits():
    function = takes(Float[Tensor, "T 2"] | Float[Tensor, "B T"], Float[Tensor, "T"])
    for size in (3, 4):
        function(torch.ones(5, size), torch.ones(size))
        with pytest.raises(ValueError, match=rf"b must .* T = {size} \(of a\), got"):
            function(torch.ones(5, size), torch.ones(5))


# --- Ways to pass an argument ---------------------------------------------------------


@checked
def every_way(first: Count, /, second: Count, *, last: Count = 1) -> list[Any]:
    """Return what came."""
    return [first, second, last]


def test_each_way_is_checked():
    assert every_way(1, 2) == [1, 2, 1]
    assert every_way(1, last=5, second=np.int64(2)) == [1, 2, 5]
    for args, named in (((1, 0), {}), ((1,), {"second": 0})):
        with pytest.raises(ValueError, match="second must be at least 1, got 0"):
            every_way(*args, **named)
    for args in ((), (1, 2, 3)):
        with pytest.raises(TypeError, match="argument"):
            every_way(*args)


@checked
@dataclass(frozen=True)
class Settings:
    """Settings of a run."""

    gamma: Fraction = 0.99
    num_steps: Count = 8
    hidden: list[Count] = field(default_factory=list)


@checked
@dataclass(frozen=True)
class MoreSettings(Settings):
    """Settings with one more."""

    clip: Positive = 0.2


def test_a_dataclass_is_checked_when_it_is_made_and_holds_plain_numbers():
    made = replace(MoreSettings(0.5, hidden=[np.int64(4)]), num_steps=np.int32(3))
    values = {"gamma": 0.5, "num_steps": 3, "hidden": [4], "clip": 0.2}
    assert json.loads(json.dumps(asdict(made))) == values
    for change in ({"gamma": 1.5}, {"hidden": [0]}, {"clip": 0}):
        with pytest.raises(ValueError, match=min(change)):
            replace(made, **change)


# --- What is not understood is an error -----------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: int, self", "f, self: the annotation is missing"),
        ("a: int, b: Float[Tensor, '#B']", "f, b: .* the dimension '#B'"),
        ("*rest: Count", r"f, rest: .* \*rest"),
        ("a: int) -> (Nowhere", "name 'Nowhere' is not defined"),
    ],
)
def test_what_is_not_understood_is_an_error_at_every_call(text, words):
    scope = dict(globals())
    exec(f"from __future__ import annotations\ndef f({text}): pass", scope)
    function = checked(scope["f"])
    for _ in range(2):
        with pytest.raises(TypeError, match=words):
            function(1, 2)


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


def test_methods():
    network = Network(3)
    assert network(torch.ones(2, 3)).shape == (2, 2)
    for method, bad, name in ((Network, 0, "inputs"), (network, torch.ones(3), "x")):
        with pytest.raises(ValueError, match=f"^{name} must"):
            method(bad)


def test_a_compiled_graph_has_no_checks_and_is_whole():
    compile_ = functools.partial(torch.compile, backend="eager", fullgraph=True)
    assert torch.equal(compile_(discount)(torch.ones(2), 0.5), torch.full((2,), 0.5))
    assert compile_(Network(3))(torch.ones(2, 3)).shape == (2, 2)
    with pytest.raises(ValueError, match="reward must have shape"):
        discount(torch.ones(2))


def test_tensors_are_passed_on_as_they_are():
    @checked
    def keep(x: Float[Tensor, "B"], y: Float[Tensor, "B"]) -> Any:
        return x, y

    x, y = torch.ones(3, requires_grad=True), torch.ones(3, device="meta")
    seen = keep(x, y=y)
    assert (seen[0] is x, seen[1] is y) == (True, True)
    x = torch.rand(4, 2, 3)
    assert torch.equal(torch.func.vmap(discount)(x), x * 0.9)


NOTEBOOK = """
from __future__ import annotations
import cloudpickle
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
again = cloudpickle.loads(cloudpickle.dumps(mean))
try:
    again(Data(torch.ones(2, 2)))
except ValueError as error:
    print(error)
"""


def test_functions_of_a_notebook_also_when_a_class_is_defined_anew():
    command = [sys.executable, "-W", "ignore", "-c", NOTEBOOK]
    printed = subprocess.check_output(command, text=True)
    assert printed == "0.5 0.5\ndata.x must have shape (B,), got (2, 2)\n"


# --- Plans ---------------------------------------------------------------------------


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


MODULES = [
    info.name
    for info in pkgutil.walk_packages(literate_rl.__path__, "literate_rl.")
    if "__main__" not in info.name
]


def test_every_signature_of_the_package_is_read_and_takes_its_defaults():
    for module in MODULES:
        for thing in checked_in(importlib.import_module(module)):
            plan = plan_for(thing)
            for name, x in inspect.signature(thing).parameters.items():
                # A dataclass shows `<factory>` where each gets its own default.
                if x.default is not x.empty and repr(x.default) != "<factory>":
                    assert plan[name](name, x.default, {}) is None


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


def quiet(x: Float[Tensor, "B"]) -> None:
    """Check nothing."""


@checked
def writing(x: Float[Tensor, "B"]) -> None:
    x.add_(1)


@checked
def strict(x: Fraction) -> None:
    raise ValueError("x must be something else")


def test_functions_that_do_not_hold_are_found_out():
    for function, words in (
        (quiet, "may be"),
        (writing, "a legal call changed its arguments"),
        (strict, "a legal call was refused"),
    ):
        with pytest.raises(AssertionError, match=words):
            assert_held(function, Random(0))


# --- Rules ----------------------------------------------------------------------------


Pick = Annotated[Int[Tensor, "B"], below("N")]
Mean = Annotated[Float[np.ndarray, "n"], at_least(2, "2 seeds"), finite]
PICKED, TWO = torch.tensor([0, 2]), np.ones(2)


@pytest.mark.parametrize(
    ("hint", "fine", "bad", "words"),
    [
        (Pick, PICKED, PICKED + 1, "lie in 0..2, got 1..3"),
        (Pick, PICKED, PICKED[:1] + 7, "have shape"),  # which is looked at first
        (Mean, TWO, TWO[:1], "hold at least 2 seeds, got 1"),
        (Mean, TWO, TWO * NAN, "be finite"),
    ],
)
def test_rules_follow_what_they_are_rules_for(hint, fine, bad, words):
    function = takes(Float[Tensor, "B N"], hint)
    function(torch.zeros(2, 3), fine)
    with pytest.raises(ValueError, match=f"b must {words}"):
        function(torch.zeros(2, 3), bad)
