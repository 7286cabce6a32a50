# Generated from chapters/workshop/makers.py (edit there); digest c2746b01797deb65
"""Wrappers and names: what makes an environment, as files hold it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any, cast

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from literate_rl.data.episodes import Held, Make, from_file, make_one, told

__all__ = ["Wrapped", "make_wrapped"]


Env = gym.Env[Any, Any]
Wrapper = str | Callable[[Env], Env]


@dataclass(frozen=True)
class Call:
    """A wrapper with its arguments, all but the environment."""

    make: Callable[..., Env]
    args: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)

    def __call__(self, env: Env) -> Env:
        """Wrap an environment."""
        return self.make(env, *self.args, **self.named)


def read_wrapper(text: str) -> Call:
    """Find the wrapper that a text names.

    Raises:
        ValueError: If there is none, or if its arguments cannot be read.
    """
    where, bracket, rest = text.partition("(")
    module, _, name = from_file(where.strip()).rpartition(":")
    try:
        call = ast.parse(f"_({rest}" if bracket else "_()", mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            raise ValueError("something stands behind the bracket")
        args = tuple(ast.literal_eval(x) for x in call.args)
        named = {x.arg or "": ast.literal_eval(x.value) for x in call.keywords}
        if "" in named:
            raise ValueError("an argument has no name")
    except (SyntaxError, ValueError) as error:
        form = "Name, Name(4) or Name(key=4), with plain values"
        raise ValueError(f"wrappers must be like {form}, got {text!r}") from error
    return Call(find_wrapper(module, name), args, named)


OURS = (
    "MaskFromMethod",
    "MaskFromObservation",
    "WithoutMask",
)  # {doc}`/chapters/masks`


def find_wrapper(module: str, name: str) -> Callable[..., Env]:
    """Return a wrapper of Gymnasium's, or one of a module."""
    try:
        home = import_module(module) if module else gym.wrappers
    except ImportError as error:
        words = f"wrappers: {module}:{name} cannot be imported: {error}"
        raise ValueError(words) from error
    found: Any = getattr(home, name, None)
    wraps = isinstance(found, type) and issubclass(found, gym.Wrapper)
    if wraps or (module and callable(found)):
        return cast(Callable[..., Env], found)
    ours = {x: f"literate_rl:{x}" for x in OURS}
    known = [*gym.wrappers.__all__, *ours]
    close = [ours.get(x, x) for x in get_close_matches(name, known, cutoff=0.5)]
    raise ValueError(
        "wrappers must be names of gymnasium.wrappers, or module:name, got "
        f"{f'{module}:{name}' if module else name!r}"
        f"{f'; is it {close[0]}?' if close and not module else ''}"
    )


@dataclass(frozen=True, repr=False)
class Wrapped:
    """Makes an environment and puts wrappers around it, the first one innermost."""

    env: Make
    wrappers: tuple[Wrapper, ...]

    def __call__(self, **arguments: Any) -> Env:
        """Make one; the arguments are those of the environment."""
        made: Env = Held(make_one(self.env, **arguments))
        for wrapper in self.wrappers:
            put = read_wrapper(wrapper) if isinstance(wrapper, str) else wrapper
            try:
                made = put(made)
            except Exception as error:
                words = f"wrapper {name_of_maker(wrapper)} does not fit {self.env!r}"
                error.add_note(f"{words}: {told(error)}")
                raise
            if not isinstance(made, gym.Env):
                kind = type(made).__name__
                words = f"wrapper {name_of_maker(wrapper)} must return an environment"
                raise TypeError(f"{words}, got {kind}")
        return made

    def __repr__(self) -> str:
        names = ", ".join(map(name_of_maker, self.wrappers))
        return f"{name_of_maker(self.env)} in {names}"


def make_wrapped(env: Make, wrappers: Sequence[Wrapper] = ()) -> Make:
    """Return what makes an environment with wrappers around it.

    Args:
        env: As in ``train``, but no vector environment.
        wrappers: Texts such as ``"FrameStackObservation(4)"``, or functions from an
            environment to another one. The first one is the innermost.

    Returns:
        A function that makes one, or ``env`` itself without wrappers.

    Raises:
        TypeError: If a wrapper is neither a text nor a function.
        ValueError: If a text names no wrapper.
    """
    if isinstance(wrappers, str) or not isinstance(wrappers, Sequence):
        raise TypeError(f"wrappers must be a list, got {wrappers!r}")
    for wrapper in wrappers:
        if isinstance(wrapper, str):
            read_wrapper(wrapper)
        elif not callable(wrapper):
            kind = type(wrapper).__name__
            raise TypeError(f"wrappers must hold texts or functions, got {kind}")
    return Wrapped(env, tuple(wrappers)) if wrappers else env


def name_of_maker(thing: Any) -> str:
    """Return the name by which a file holds an environment's maker or a wrapper."""
    if isinstance(thing, str):
        return thing
    if isinstance(thing, EnvSpec):
        return thing.id
    if isinstance(thing, VectorEnv):
        kind = type(thing.unwrapped).__name__
        return f"<{kind} of {thing.spec.id}>" if thing.spec else f"<{kind}>"
    if isinstance(thing, partial):
        return f"<partial of {name_of_maker(thing.func).strip('<>')}>"
    module = getattr(thing, "__module__", None)
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    if getattr(gym.wrappers, name, None) is thing:
        return str(name)
    try:
        known = module != "__main__" and getattr(import_module(str(module)), name)
    except (ImportError, AttributeError):
        known = None
    return f"{module}:{name}" if known is thing else f"<{name.strip('<>')} of {module}>"


def has_name(stored: str) -> bool:
    """Say whether a stored name leads back to what it names."""
    return not stored.startswith("<")
