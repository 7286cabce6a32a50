# Generated from chapters/data/makers.py (edit there); digest b03e62a17e2c3b27
"""Wrappers and names: what makes an environment, as files hold it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from literate_rl.data.episodes import Held, Make, from_file, make_one, told

__all__ = ["Wrapped", "make_wrapped"]


Env = gym.Env[Any, Any]
Wrapper = str | Callable[[Env], Env]


def read_wrapper(text: str) -> tuple[Callable[..., Env], Sequence[Any], dict[str, Any]]:
    """Return the wrapper that a text names, and its arguments behind the environment.

    Raises:
        ValueError: If there is none, or if its arguments cannot be read.
    """
    where, bracket, rest = text.partition("(")
    module, _, name = from_file(where.strip()).rpartition(":")
    try:
        call: Any = ast.parse(f"_({rest}" if bracket else "_()", mode="eval").body
        if not isinstance(getattr(call, "func", None), ast.Name):
            raise ValueError("something stands behind the bracket")
        args = [ast.literal_eval(x) for x in call.args]
        named = {x.arg: ast.literal_eval(x.value) for x in call.keywords}
        make = getattr(import_module(module) if module else gym.wrappers, name, None)
    except (SyntaxError, ValueError) as error:
        form = "Name, Name(4) or Name(key=4), with plain values"
        raise ValueError(f"wrappers must be like {form}, got {text!r}") from error
    except ImportError as error:
        words = f"wrappers: {module}:{name} cannot be imported: {error}"
        raise ValueError(words) from error
    if callable(make):
        return make, args, named
    known = [] if module else [*gym.wrappers.__all__, *OURS]
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; is it {close[0]}?" if close else ""
    words = "wrappers must be names of gymnasium.wrappers, or module:name"
    raise ValueError(f"{words}, got {where!r}{hint}")


# Those of the chapter on masks.
MASKS = ("MaskFromMethod", "MaskFromObservation", "WithoutMask")
OURS = [f"literate_rl:{name}" for name in MASKS]


@dataclass(frozen=True, repr=False)
class Wrapped:
    """Makes an environment and puts wrappers around it, the first one innermost."""

    env: Make
    wrappers: tuple[Wrapper, ...]

    def __call__(self, **arguments: Any) -> Env:
        """Make one; the arguments are those of the environment."""
        made: Env = Held(make_one(self.env, **arguments))
        for wrapper in self.wrappers:
            make: Callable[..., Env]
            if isinstance(wrapper, str):
                make, args, named = read_wrapper(wrapper)
            else:
                make, args, named = wrapper, (), {}
            try:
                made = make(made, *args, **named)
            except Exception as error:
                words = f"wrapper {name_of_maker(wrapper)} does not fit {self.env!r}"
                error.add_note(f"{words}: {told(error)}")
                raise
            if not isinstance(made, gym.Env):
                words = f"wrapper {name_of_maker(wrapper)} must return an environment"
                raise TypeError(f"{words}, got {type(made).__name__}")
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
            read_wrapper(wrapper)  # better now than in each copy
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
