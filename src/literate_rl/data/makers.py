# Generated from chapters/data/makers.py (edit there); digest 30bc08b262cdabbb
"""Wrappers and names: what makes an environment, as files hold it."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, get_origin

import gymnasium as gym
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.wrappers import FlattenObservation

from literate_rl.data.held import Env, Held, making, name_of, told
from literate_rl.ground.nests import Space, refused
from literate_rl.ground.signatures import checked

__all__ = ["Wrapped", "check_copies", "env_maker", "flat_env", "make_wrapped"]


Make = str | EnvSpec | Callable[..., Env]


def make_one(env: Make, **arguments: Any) -> Env:
    """Make one environment.

    Args:
        env: A registered id, ``module:id``, ``module:name`` of a class or function, or
            what makes an environment: a class, a function or a spec of Gymnasium's.
            A module may be a file, as in ``rooms.py:Room``.
        arguments: Passed on to ``gym.make`` or to what makes it.
    """
    if isinstance(env, str):
        env = from_file(with_name(env))
        module, _, name = env.rpartition(":")
        make = getattr(import_module(module), name, None) if module else None
        env = make if callable(make) and name not in gym.registry else env
    if isinstance(env, str | EnvSpec):
        return gym.make(env, **arguments)
    return env(**arguments)


FILE = re.compile(r"(.+)\.py(?::(.+))?|(.*[/\\][^:]*):(.+)")


def in_file(text: str) -> tuple[Path, str] | None:
    """Return the file that a text names, without its ending, and what stands in it."""
    match = FILE.fullmatch(text)
    if match is None:
        return None
    path, name, short, of = match.groups(default="")
    return Path(path or short), name or of


def from_file(text: str) -> str:
    """Return ``module:name`` for what stands in a file; other texts as they are.

    Raises:
        ImportError: If there is no such module, or if it is that of another file.
    """
    if not (parts := in_file(text)):
        return text
    path, name = parts[0].resolve(), parts[1]
    if (folder := str(path.parent)) not in sys.path:
        sys.path.insert(0, folder)
    found = getattr(import_module(path.name), "__file__", None) or ""
    if Path(found).resolve().with_suffix("") not in (path, path / "__init__"):
        words = f"{path.name} is the name of another module: rename {path}.py"
        raise ImportError(words)
    return f"{path.name}:{name}" if name else path.name


def without_folder(text: str) -> str:
    """Return ``module:name`` for what stands in a file, without looking at it."""
    parts = in_file(text)
    return f"{parts[0].name}:{parts[1]}" if parts else text


def with_name(text: str) -> str:
    """Return ``rooms.py:Room`` for a file in which ``Room`` is the only environment."""
    parts = in_file(text)
    if parts is None or parts[1]:
        return text
    name = from_file(text)
    inside = vars(import_module(name))
    makers = [f"{text}:{x}" for x, thing in inside.items() if makes_env(thing, name)]
    if len(makers) == 1:
        return makers[0]
    wanted = " or ".join(makers) or f"a class or function in it, as in {text}:MyEnv"
    raise ImportError(f"it has {len(makers) or 'no'} environments, so name {wanted}")


def makes_env(thing: Any, module: str) -> bool:
    """Say whether a module defines something that makes environments."""
    if getattr(thing, "__module__", None) != module or not callable(thing):
        return False
    hints = getattr(thing, "__annotations__", {})
    made = thing if isinstance(thing, type) else hints.get("return")
    kind = get_origin(made) or made
    if not (
        issubclass(kind, gym.Env) if isinstance(kind, type) else "Env" in str(kind)
    ):
        return False
    try:
        inspect.signature(thing).bind()
    except TypeError:  # it needs arguments, such as an environment to wrap
        return False
    return True


@checked
def env_maker(
    env: str | Callable[[], Env], copy: int | None = None
) -> Callable[[], Env]:
    """Return a function that makes an environment.

    Args:
        env: Its id, or a function.
        copy: Which one it is of several, for the notes of exceptions.
    """

    def make() -> Env:
        with making(env):
            made = make_one(env)
            # Once is enough: `flat_env` holds what it makes, then flattens.
            inner = unflattened(made)
            if not isinstance(inner, Held):
                made = inner = Held(made)
        inner.copy = copy
        return made

    return make


def check_copies(envs: SyncVectorEnv) -> None:
    """Raise if two copies are one object: they would step each other's episode."""
    if len({id(env.unwrapped) for env in envs.envs}) < envs.num_envs:
        raise ValueError("env must make a new environment at each call")


def flat_env(env: Make, **arguments: Any) -> Env:
    """Make one environment whose observations are vectors.

    Args:
        env: A registered id, ``module:id``, ``module:name`` of a class or function, or
            what makes an environment.
        arguments: Passed on to ``gym.make`` or to what makes it.

    Returns:
        The environment, wrapped in ``FlattenObservation`` where that is needed.

    Raises:
        TypeError: If it makes nothing, such as a vector environment, or if one of its
            spaces is no space.
        ValueError: If the id cannot be made, or its observations cannot be flattened.
    """
    if not (isinstance(env, str | EnvSpec) or callable(env)):
        raise TypeError(
            "env must be an id, a class or a function that makes one environment, got "
            f"{type(env).__name__}"
        )
    with making(env):
        made = Held(make_one(env, **arguments))
    for name in ("observation_space", "action_space"):
        came = getattr(made, name)
        if not isinstance(came, spaces.Space):
            words = f"must have a Space of Gymnasium's as {name}, got {came!r}"
            raise TypeError(f"env {name_of(made)!r} {words}")
    space = made.observation_space
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return made
    check_flat(space)
    return FlattenObservation(made)


def unflattened(env: Env) -> Any:
    """Return an environment that shows what it did before it was made flat."""
    return env.env if isinstance(env, FlattenObservation) else env


def known_env(env: Any) -> Any:
    """Return what makes an environment; a file alone becomes ``file.py:Name``."""
    with making(env):
        return with_name(env) if isinstance(env, str) else env


def check_flat(space: Space) -> None:
    """Raise unless observations of a space can be made vectors."""
    # A space of somebody else's may not know. Gymnasium says that it could flatten a
    # Dict without parts, and fails.
    try:
        spaces.flatten_space(space)
        fits = space.is_np_flattenable
    except (NotImplementedError, ValueError):
        fits = False
    if not fits:
        wanted = "env must have observations that can be flattened"
        raise refused(wanted, space, "numbers")


Wrapper = str | Callable[[Env], Env]


def read_wrapper(
    text: Wrapper,
) -> tuple[Callable[..., Env], Sequence[Any], dict[str, Any]]:
    """Return the wrapper that a text names, and its arguments behind the environment.

    Raises:
        TypeError: If it is neither a text nor a function.
        ValueError: If there is none, or if its arguments cannot be read.
    """
    if not isinstance(text, str):
        if callable(text):
            return text, (), {}
        kind = type(text).__name__
        raise TypeError(f"wrappers must hold texts or functions, got {kind}")
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
            make, args, named = read_wrapper(wrapper)
            try:
                made = make(made, *args, **named)
            except Exception as error:
                words = f"wrapper {name_of_maker(wrapper)} does not fit {self.env!r}"
                error.add_note(f"{words}: {told(error)}")
                raise
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
        read_wrapper(wrapper)  # better now than in each copy
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
