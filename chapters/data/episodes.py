# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Episodes
#
# **What can go wrong between an agent and an environment?** The id is misspelt, two copies
# are one object, the actions have the wrong shape, a reward is not a number. Python
# would complain about most of this, but late and in words of its own. The functions on this
# page complain at once and say which argument it was.
#
# {doc}`/chapters/agents` calls them in its loop. Nobody has to read this page to follow the
# book.

# %% tags=["export", "hide-input"]
"""Episodes: what guards the loop of agent and environment, and counts its episodes."""

from __future__ import annotations

import inspect
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Self, get_origin

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.wrappers import FlattenObservation
from numpy.typing import NDArray
from torch import Tensor

from literate_rl.ground.nests import (
    Space,
    as_space,
    leaves,
    map_nest,
    named_ends,
    pack,
    refused,
)
from literate_rl.ground.protocols import Envs
from literate_rl.ground.signatures import Float, Fraction, check_that, checked

__all__ = [
    "EpisodeCounter",
    "check_chain",
    "check_copies",
    "check_experience",
    "env_maker",
    "env_seed",
    "flat_env",
    "on_cpu",
    "plain_actions",
]

# %% [markdown]
# ## Making environments
#
# Gymnasium makes an environment from an id, and a vector environment from functions that
# make one each. Here both become such a function. Whatever it makes is held to its interface.
# An id that begins with a module, `gym_maze:Maze-v0`, imports that module first. If what stands
# behind the colon is a class or a function of the module, and no id, that makes the environment.


# %% tags=["export"]
Env = gym.Env[Any, Any]
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


# %% [markdown]
# Who has written `rooms.py` types `rooms.py:Room` or `./rooms:Room`, and means the module `rooms`. Then
# its folder is one that Python imports from, as if the file had been started. With the file alone,
# `rooms.py`, the only environment in it is meant. Ids with a slash, such as `ALE/Pong-v5`, are no files.


# %% tags=["export"]
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


@contextmanager
def making(env: Any) -> Iterator[None]:
    """Say which environment cannot be made; an exception of its own keeps its type."""
    words = f"env {env!r} cannot be made: "
    try:
        yield
    except (gym.error.Error, ImportError) as error:
        raise ValueError(f"{words}{error}") from error
    except LEAVING as error:
        raise ValueError(f"{words}{told(error)}") from error
    except KeyboardInterrupt:
        raise  # it is not the environment's fault
    except BaseException as error:
        # Who makes it may be made by somebody else, and has said so already.
        if not noted(error):
            error.add_note(f"{words}{told(error)}")
        raise


def check_copies(envs: SyncVectorEnv) -> None:
    """Raise if two copies are one object: they would step each other's episode."""
    if len({id(env.unwrapped) for env in envs.envs}) < envs.num_envs:
        raise ValueError("env must make a new environment at each call")


# %% [markdown]
# `flat_env`, which the command line and `train` use, gives each observation as one vector of
# numbers: a box of any shape is flattened, a discrete observation becomes a row with a single 1.


# %% tags=["export"]
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


# %% [markdown]
# A vector environment gives its copy $k$ the seed `seed + k`. So runs with the seeds 0 and 1 would
# share most of their environments ({doc}`/chapters/agents`). A learner draws the seed of its
# environments instead, from the run's seed and the step at which it resets them.


# %% tags=["export"]
def env_seed(seed: int, step: int) -> int:
    """Return a seed for environments, drawn from a run's seed and a step.

    Neighbouring seeds and steps give unrelated numbers. So two runs do not share
    environments, as they would with ``envs.reset(seed=0)`` and ``envs.reset(seed=1)``.

    Args:
        seed: Seed of the run, at least 0.
        step: Step at which the environments are reset, at least 0.

    Returns:
        An integer in [0, 2**32).
    """
    return int(np.random.SeedSequence([seed, step]).generate_state(1)[0])


# %%
print("seeds 0 and 1:", env_seed(0, step=0), env_seed(1, step=0))

# %% tags=["claims"]
assert abs(env_seed(0, step=0) - env_seed(1, step=0)) > 2**20, "no copy in common"

# %% [markdown]
# A learner takes a vector environment, with as many copies as its settings say. A single
# environment is what one has at hand first, and it is refused by its name.


# %% tags=["export"]
def check_num_envs(envs: Any, wanted: int) -> None:
    """Raise unless there are as many environments as the settings say."""
    if not isinstance(envs, VectorEnv):
        kind = type(envs).__name__
        raise TypeError(f"envs must be a VectorEnv, got {kind}: make_envs makes one")
    if envs.num_envs != wanted:
        raise ValueError(f"envs must have {wanted} copies, got {envs.num_envs}")


# %% [markdown]
# ## When environments reset
#
# A vector environment says in its metadata when it resets a copy whose episode is done
# ({doc}`/chapters/agents`). An object knows better than this dictionary, which it may share with
# all others of its class. The mode is read as a word, because `AutoresetMode` may have been
# imported twice, and then its members are not equal. An environment that does not name its mode
# is refused: whoever guesses wrong learns from steps that never happened, and nothing shows it.


# %% tags=["export"]
def resets_later(envs: Envs) -> bool:
    """Return whether a copy is reset in the step after an end, as in ``NEXT_STEP``.

    Raises:
        ValueError: If the mode is neither ``NEXT_STEP`` nor ``SAME_STEP``.
    """
    mode = getattr(envs, "autoreset_mode", None) or envs.metadata.get("autoreset_mode")
    word = str(getattr(mode, "value", mode)).replace("_", "").lower()
    if word not in ("nextstep", "samestep"):
        raise ValueError(
            "envs must have NEXT_STEP or SAME_STEP as metadata['autoreset_mode'], got "
            f"{getattr(mode, 'name', mode)}: name it where they are made, or use "
            "make_envs"
        )
    return word == "nextstep"


# %% [markdown]
# What a mode promises is held against what comes. Only `SAME_STEP` keeps last observations, one
# for each copy that is done.


# %% tags=["export"]
def check_infos(infos: Any) -> None:
    """Raise unless what environments say beside all else is a dictionary."""
    if not isinstance(infos, dict):
        raise TypeError(f"infos must be a dict, got {type(infos).__name__}")


def check_final(infos: dict[str, Any], done: NDArray[Any], later: bool) -> None:
    """Raise unless the last observations are there that an autoreset mode promises."""
    check_infos(infos)
    if "_final_obs" not in infos and (later or not done.any()):
        return  # as at nearly every step
    wanted = [] if later else np.flatnonzero(done).tolist()
    given = np.flatnonzero(infos.get("_final_obs", False)).tolist()
    if given != wanted:
        mode = "NEXT_STEP" if later else "SAME_STEP"
        raise ValueError(
            f"in autoreset mode {mode} infos must have final_obs for the copies "
            f"{wanted}, got it for {given}"
        )


# %% [markdown]
# ## Which actions are legal
#
# Where not everything is allowed, `infos["action_mask"]` says what is ({doc}`/chapters/masks`): a
# row for each copy, with a one for each legal action. An environment says so at each reset and at
# each step, or never. Where an episode has terminated nobody acts any more. So the mask of a last
# state may be empty or missing, and all actions are taken for legal there.


# %% tags=["export"]
Masks = NDArray[np.bool_]


def as_masks(given: Any, name: str = "action_mask") -> Masks:
    """Return masks ``(B, N)`` of zeros and ones as booleans."""
    # Where there are several choices, a mask may have a part for each.
    rows = [np.hstack(x) if isinstance(x, tuple) else np.asarray(x) for x in given]
    numbers = np.array(rows) if len({row.shape for row in rows}) == 1 else np.zeros(0)
    if numbers.ndim != 2 or not ((numbers == 0) | (numbers == 1)).all():
        got = [row.tolist() for row in rows]
        raise ValueError(f"{name} must be (B, N) zeros and ones, got {got}")
    return numbers.astype(bool)


def refuse_copies(copies: NDArray[np.bool_], rule: str) -> None:
    """Raise if there are copies that break a rule."""
    if copies.any():
        which = np.flatnonzero(copies).tolist()
        raise ValueError(f"{rule}, got none for the copies {which}")


def read_masks(
    infos: dict[str, Any], acting: NDArray[np.bool_], before: Masks | None = None
) -> Masks | None:
    """Return which actions are legal, ``(B, N)``, or None where nobody says so.

    Args:
        infos: What ``reset`` or ``step`` returned, or the ``final_info`` in it.
        acting: Copies in which somebody may act, ``(B,)``. Elsewhere all is legal.
        before: The masks before, if there were any: then there must be some again.
    """
    check_infos(infos)
    given: Any = infos.get("action_mask")
    if given is None and before is None:
        return None
    said = np.broadcast_to(infos.get("_action_mask", given is not None), acting.shape)
    rule = "infos must have action_mask at each reset and each step, or never"
    refuse_copies(acting & ~said, rule)
    if not said.any():
        return np.ones_like(before, bool)
    if isinstance(given, dict):
        raise ValueError(f"action_mask must be (B, N) zeros and ones, got {given}")
    rows = as_masks([row for row, known in zip(given, said, strict=True) if known])
    masks = np.ones((len(acting), rows.shape[1]), bool)
    masks[said] = rows
    if before is not None and masks.shape != before.shape:
        wanted, got = before.shape, masks.shape
        raise ValueError(f"action_mask must stay {wanted}, got {got}")
    stuck = ~masks.any(-1)
    refuse_copies(acting & stuck, "action_mask must leave a legal action")
    masks[stuck] = True
    return masks


def follow_masks(
    before: Masks | None,
    infos: dict[str, Any],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    later: bool = False,
) -> tuple[Masks | None, Masks | None]:
    """Return the masks after a step: of the states to act in, and of true successors.

    Args:
        before: The masks before it, None where nobody says what is legal.
        infos: What it returned.
        terminated: Whether the task ended with it.
        truncated: Whether the episode was cut off after it.
        later: Whether a copy is reset in the step after an end, as in ``NEXT_STEP``.
    """
    if before is None:
        if "action_mask" in infos:
            raise ValueError("infos must have action_mask at each reset too, got none")
        return None, None
    # Where a copy is reset in the same step, the next state is never a last one.
    acting = ~terminated if later else np.ones(len(terminated), bool)
    masks: Any = read_masks(infos, acting, before)
    done = terminated | truncated
    if later or not done.any():
        return masks, masks
    # The masks of last observations are kept beside them.
    cut = truncated & ~terminated
    following: Any = read_masks(infos.get("final_info", {}), cut, before)
    following[~done] = masks[~done]
    return masks, following


def as_argument(mask: Masks | Tensor | None) -> dict[str, Tensor]:
    """Return a copy of a mask as an argument, or nothing: many policies know none."""
    return {} if mask is None else {"mask": torch.as_tensor(mask).clone()}


# %%
makers = [lambda: gym.make("CartPole-v1")]
unattended = SyncVectorEnv(makers, autoreset_mode="Disabled")
try:
    resets_later(unattended)
except ValueError as error:
    refusal = str(error)
    print(refusal)

# %% tags=["claims"]
assert "got DISABLED" in refusal

# %% [markdown]
# ## What a policy expects
#
# A policy remembers the space of what it has learned from. If it meets an environment that shows
# something else, a wrapper is probably missing.


# %% tags=["export"]
def check_seen(policy: Any, envs: Envs) -> None:
    """Raise if a policy cannot read what environments show, as far as one can tell."""
    if hasattr(policy, "policy") and not hasattr(policy, "to_env"):
        kind = type(policy).__name__
        words = f"policy must have act and to_env, got {kind}"
        raise TypeError(f"{words}: hand over its policy, as in agent.policy")
    recipe: Any = getattr(policy, "recipe", ("", {}))
    plain = recipe[1].get("observation_space")
    size = spaces.flatdim(envs.single_observation_space)
    wanted = size if plain is None else spaces.flatdim(as_space(plain))
    if size != wanted:
        raise ValueError(
            f"env must show {wanted} numbers, like the one "
            f"that the policy has learned in, got {size}: with wrappers it is "
            "load_env(directory), or env of the agent"
        )


# %% [markdown]
# ## What an environment answers
#
# An environment of your own may have bugs. NumPy hides some of them: it turns the reward `"1"`
# into a number, and a flag that is `None` into `False`. Old environments return four things from a
# step, and only an observation from a reset. So each answer is looked at before NumPy sees it, and
# an error says which environment it came from. No number is looked at: NaN is found further below.
#
# An exception that your environment raises keeps its type, so that whoever calls can catch it: your
# own `Enough`, or the one by which a search for settings ends a trial. A note says which copy it was,
# and in which step. Only what would end Python becomes an error, because `sys.exit` in a simulator is
# no success of the training.
#
# Many environments keep one array and write each observation into it. Whoever holds such an
# observation holds the next one a step later, and at the end of an episode the one after the
# reset. So what comes out is a copy. Both together take a few microseconds for each step.


# %% tags=["export"]
LEAVING = SystemExit, GeneratorExit  # by which code leaves Python or a generator


class Held(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that is held to its interface; errors call it by its name.

    Attributes:
        copy: Which one it is of several, if somebody knows.
        steps: Steps of the episode under way.
    """

    copy: int | None = None
    steps = 0

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.seen = env.observation_space
        self.options = num_options(env.action_space)

    def reset(self, **options: Any) -> Any:
        """Begin an episode."""
        self.steps = 0
        return self.held("reset", **options)

    def step(self, action: Any) -> Any:
        """Take a step."""
        self.steps += 1
        return self.held("step", action)

    def held(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method, look at what it returns, and copy it."""
        answer, cause = self.called(method, *arguments, **options), None
        try:
            wrong = wrong_answer(method, answer, self.seen, self.options)
        except Exception as error:  # what came cannot even be looked at
            wrong, cause = told(error), error
        if wrong:
            raise self.located(ValueError(self.failed(method) + wrong)) from cause
        # Arrays are in the first part and in the last one.
        return copied(answer[0]), *answer[1:-1], copied(answer[-1])

    def called(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method; an exception of its own gets a note."""
        try:
            return getattr(self.env, method)(*arguments, **options)
        except LEAVING as error:
            words = self.failed(method) + told(error)
            raise self.located(ValueError(words)) from error
        except KeyboardInterrupt:
            raise  # it is not the environment's fault
        except BaseException as error:
            # One inside of a wrapper has come by here before.
            if not noted(error):
                error.add_note(self.failed(method) + told(error))
            self.located(error)
            raise

    def failed(self, method: str) -> str:
        """Return how a sentence on what failed begins."""
        return f"env {name_of(self)!r} failed in {method}: "

    def located(self, error: BaseException) -> BaseException:
        """Note in which step and in which copy something happened; return it."""
        known = getattr(error, "__notes__", [])
        step = f"in step {self.steps} of its episode" if self.steps else ""
        copy = "" if self.copy is None else f"in copy {self.copy}"
        for note in filter(None, (step, copy)):
            if note not in known:
                error.add_note(note)
        return error

    def render(self) -> Any:
        """Draw the environment."""
        return copied(self.called("render"))

    def close(self) -> None:
        """Close the environment."""
        self.called("close")


def noted(error: BaseException) -> bool:
    """Say whether the words or notes of an exception say what it came from."""
    words = (str(error), *getattr(error, "__notes__", ()))
    begin = "(env|wrapper) .* (failed in|cannot be made|does not fit)"
    return any(re.match(begin, x, re.S) for x in words)


def name_of(env: Env) -> str:
    """Return the id of an environment, or the name of its class."""
    return env.spec.id if env.spec else type(env.unwrapped).__name__


def copied(x: Any) -> Any:
    """Copy arrays, also those in dicts, lists and tuples; leave other objects alone."""
    if isinstance(x, np.ndarray):
        return x.copy()
    if isinstance(x, (dict, tuple)):  # a union is slow, and each step comes here
        return map_nest(copied, x) if x else type(x)()
    if isinstance(x, list):
        return [*map(copied, x)]
    return x.clone() if isinstance(x, Tensor) else x


PARTS = {
    "reset": ("obs", "infos"),
    "step": ("obs", "reward", "terminated", "truncated", "infos"),
}


def wrong_answer(method: str, answer: Any, space: Any, number: int) -> str:
    """Return what an environment may not return, or an empty text."""
    wanted, many = PARTS[method], isinstance(answer, tuple | list)
    if not many or len(answer) != len(wanted):
        got = f"{len(answer)} things" if many else type(answer).__name__
        return f"it must return {', '.join(wanted)}, got {got}"
    obs, *paid, infos = answer
    if wrong := wrong_obs(obs, space):
        return wrong
    if not isinstance(infos, dict):
        return f"infos must be a dict, got {infos!r}"
    if paid:
        reward, terminated, truncated = paid
        one = np.asarray(reward)
        if one.ndim or one.dtype.kind not in NUMBERS:
            return f"reward must be a number, got {reward!r}"
        if not isinstance(terminated, FLAGS) or not isinstance(truncated, FLAGS):
            return f"terminated and truncated must be bools, got {paid[1:]}"
    return wrong_mask(infos.get("action_mask"), number)


def wrong_obs(obs: Any, space: Space, name: str = "obs") -> str:
    """Return what is wrong with an observation, or an empty text."""
    if isinstance(space, spaces.Box):
        return wrong_end(space, obs, name)
    try:
        found = (wrong_end(*end) for end in named_ends(space, obs, name))
        return next(filter(None, found), "")
    except ValueError as error:
        return str(error)


def wrong_end(space: Any, obs: Any, name: str) -> str:
    """Return what is wrong with what stands at an end, or an empty text."""
    if not isinstance(space, spaces.Box):
        fits = space.contains(obs)
        return "" if fits else f"{name} must be in {space}, got {obs!r:.80}"
    # Many environments leave their own bounds, and no agent minds.
    seen, wanted = np.asarray(obs), space.dtype
    if seen.shape != space.shape:
        return f"{name} must have shape {space.shape}, got {seen.shape}"
    if seen.dtype == wanted:
        return ""
    if seen.dtype.kind not in NUMBERS:
        return f"{name} must hold numbers, got {seen.dtype}"
    # Who makes a row of it would turn 0.9 into 0, and 300 into 44 if there are 8 bits.
    lost: Any = [seen.dtype]
    if np.can_cast(seen.dtype, wanted, "same_kind"):
        lost = seen[seen.astype(wanted) != seen] if wanted.kind in "iu" else []
    words = f"{name} must hold {wanted} like its space"
    return f"{words}, got {lost[0]}" if len(lost) else ""


def seen_parts(space: Space, obs: Any) -> Iterator[NDArray[Any]]:
    """Yield what stands at the ends of an observation, or of a batch, as arrays."""
    for end, there, name in named_ends(space, obs, "obs"):
        try:
            tensor = isinstance(there, Tensor)
            part = np.asarray(there.numpy(force=True) if tensor else there)
        except ValueError as error:
            kind = type(there).__name__
            words = f"{name} must hold numbers, in rows of one length, got a {kind}"
            raise ValueError(words) from error
        # A list of whole numbers has no size of its own.
        whole = part.dtype.kind in "iu" and not isinstance(end, spaces.Box)
        small = part.astype(end.dtype) if whole else part
        yield small if (small == part).all() else part


def as_rows(space: Space, obs: Any) -> tuple[NDArray[Any], bool]:
    """Return observations as flat rows, and whether there is one and no batch of them.

    Args:
        space: The space of one observation.
        obs: What an environment shows, or a vector environment.

    Raises:
        ValueError: If it is neither.
    """
    parts = [*seen_parts(space, obs)]
    shapes = [leaf.shape or () for leaf in leaves(space)]
    pairs = [*zip(parts, shapes, strict=True)]
    # A batch has a dimension more, in front of each part.
    alone = all(part.ndim != len(shape) + 1 for part, shape in pairs)
    if alone:
        each = [pack(space, iter(parts))]
    else:
        sizes = [len(part) if part.ndim else 0 for part in parts]
        wanted = "obs must have as many rows in each part, and one at least"
        check_that(len({*sizes}) == 1 and sizes[0] > 0, f"{wanted}, got {sizes}")
        each = [pack(space, iter([x[i] for x in parts])) for i in range(sizes[0])]
    for index, one in enumerate(each):
        if wrong := wrong_obs(one, space, "obs" if alone else f"obs[{index}]"):
            flat = isinstance(space, spaces.Box) and len(space.shape) == 1
            rows = ", in rows as gymnasium.spaces.flatten makes them" if flat else ""
            raise ValueError(f"{wrong}: give one observation or a batch{rows}")
    table = np.stack([np.asarray(spaces.flatten(space, one)) for one in each])
    finite = bool(np.isfinite(table).all())
    check_that(finite, "obs must be finite, got NaN or infinity")
    return table, alone


def wrong_mask(mask: Any, number: int) -> str:
    """Return what is wrong with the form of a mask, or an empty text."""
    if mask is None or not number:
        return ""
    try:
        shape = np.shape(np.hstack(mask) if isinstance(mask, tuple) else mask)
    except ValueError:  # rows of several lengths
        shape = ()
    if shape == (number,):
        return ""
    return (
        f"infos['action_mask'] must be {number} zeros and ones, one for each option "
        "(switches have two), in a row or in a tuple with a row for each choice, "
        f"got {mask!r:.200}"
    )


def num_options(space: Space) -> int:
    """Return how many options there are to choose from, 0 where nobody chooses."""
    lists = spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary
    # A switch is one number with two options.
    return sum(
        spaces.flatdim(part) * (1 + isinstance(part, spaces.MultiBinary))
        for part in leaves(space)
        if isinstance(part, lists)
    )


NUMBERS = "biuf"  # NumPy's letters for booleans, integers and floating-point numbers
FLAGS = (bool, np.bool_)


def told(error: BaseException) -> str:
    """Return an error in one line: its kind, its words and where it was raised."""
    words = " ".join(str(error).split())
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({place[0].filename}:{place[0].lineno})" if place else ""
    return f"{type(error).__name__}: {words}{where}"


def in_one_line(error: BaseException) -> str:
    """Return an error and its notes in one line, for a command that ends with it."""
    # The messages of these are sentences. Others say less, so their place is told.
    sentence = isinstance(error, ValueError | OSError)
    words, notes = told(error), getattr(error, "__notes__", [])
    # What an environment has raised is told with its place in a note.
    if any(words in note for note in notes):
        lines = notes
    else:
        lines = [str(error) if sentence else words, *notes]
    return " ".join("; ".join(lines).split())


# %% tags=["hide-input"]
class Careless(gym.Env):
    """Pays with a word, as a table read from a file might."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def step(self, action):
        return np.zeros(2, np.float32), "1", False, False, {}


try:
    env_maker(Careless)().step(0)
except ValueError as error:
    careless = str(error)
    print(careless)

# %% tags=["claims"]
assert careless == "env 'Careless' failed in step: reward must be a number, got '1'"

# %% [markdown]
# Gymnasium's own vector environments make no such copy. With `SAME_STEP` they reset an environment
# while they hold its last observation, and if its array is always the same, what they report as the
# end is the next beginning. So make yours with `make_envs`, or of what `env_maker` returns.


# %% tags=["hide-input"]
class Reusing(gym.Env):
    """Counts its steps, up to three, in an array that it hands out again and again."""

    observation_space = gym.spaces.Box(0, 3, (1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self):
        self.count = np.zeros(1, np.float32)

    def reset(self, *, seed=None, options=None):
        self.count[:] = 0
        return self.count, {}

    def step(self, action):
        self.count += 1
        return self.count, 1.0, False, bool(self.count[0] == 3), {}


def last_observation(make):
    """Play an episode in a vector environment of Gymnasium's; return its end."""
    envs = SyncVectorEnv([make], autoreset_mode="SameStep")
    envs.reset()
    for _ in range(3):
        *_, infos = envs.step([0])
    return infos["final_obs"][0].item()


as_it_is, held = last_observation(Reusing), last_observation(env_maker(Reusing))
print(f"the last observation: {as_it_is} as it is, {held} with env_maker")

# %% tags=["claims"]
assert (as_it_is, held) == (0, 3)

# %% [markdown]
# ## Actions
#
# An agent is any function, so nobody knows what it returns before it does. A column of
# actions, $(B, 1)$ instead of $(B,)$, is found here and not somewhere inside an environment.


# %% tags=["export"]
def on_cpu(action: Tensor) -> Tensor:
    """Return an agent's actions on the CPU, where environments run."""
    if not isinstance(action, Tensor):
        raise TypeError(f"act must return a tensor, got {type(action).__name__}")
    return action.cpu()


def plain_actions(envs: Envs, action: Tensor) -> NDArray[Any]:
    """Return actions as an array, or raise unless they fit the action space."""
    given, wanted = tuple(action.shape), envs.action_space.shape
    if given != wanted:
        raise ValueError(f"act must return shape {wanted}, got {given}")
    return action.numpy()


# %% [markdown]
# ## Experience
#
# A single NaN from an environment ruins a network for good, and the loss only shows it an
# update later. So a rollout is looked through as soon as it is complete, and the message
# says where the number is.


# %% tags=["export"]
def check_experience(step: int, **arrays: NDArray[Any]) -> None:
    """Raise if an environment gave a number that is not finite, and say where.

    Args:
        step: Steps taken before this rollout.
        arrays: What the environments gave, ``(T, B, *)``, by name.
    """
    for name, array in arrays.items():
        bad = ~np.isfinite(array)
        if bad.any():
            index = tuple(np.argwhere(bad)[0])
            t, b = int(index[0]), int(index[1])
            raise ValueError(
                f"{name} of environment {b} is {array[index]} at step "
                f"{step + t * array.shape[1]} (row {t} of the rollout)"
            )


# %%
reward = np.zeros((5, 2))
reward[3, 1] = np.nan
try:
    check_experience(1000, reward=reward)
except ValueError as error:
    print(error)

# %% [markdown]
# ## Episodes
#
# A rollout does not stop where an episode stops, and most episodes reach over several
# rollouts. Their returns and lengths come from running sums. Where an episode ends, its part
# of the sum is what has been added since the one before it ended. What is left over at the
# end of a rollout is carried into the next.


# %% tags=["export"]
class EpisodeCounter:
    """Adds up the rewards and the steps of each episode, over many rollouts.

    Args:
        num_envs: Number of environments.
    """

    def __init__(self, num_envs: int) -> None:
        # Reward and steps of the episodes under way, and the steps of all rollouts.
        self.carried = np.zeros((2, num_envs))
        self.steps = 0

    def add(
        self, reward: NDArray[Any], done: NDArray[Any], real: NDArray[Any]
    ) -> NDArray[np.float64]:
        """Return the returns and the lengths of the episodes that end in a rollout.

        Both are NaN at all other steps. A step that is not ``real`` is not counted.
        """
        total = np.stack([reward.astype(np.float64), real]).cumsum(1)
        total += self.carried[:, None]
        # What the sums were when the episode under way began.
        start = np.zeros_like(self.carried)
        ended = np.full_like(total, np.nan)
        for t, b in zip(*done.nonzero(), strict=True):
            ended[:, t, b] = total[:, t, b] - start[:, b]
            start[:, b] = total[:, t, b]
        self.carried = total[:, -1] - start
        self.steps += len(reward)
        return ended

    @property
    def unended(self) -> int:
        """Number of environments whose first episode is still under way."""
        return int((self.carried[1] == self.steps).sum()) if self.steps else 0


# %%
counter = EpisodeCounter(num_envs=1)
done = np.array([[False], [True], [False]])
real = np.ones_like(done)
first, _ = counter.add(np.array([[1.0], [2.0], [4.0]]), done, real)
second, lengths = counter.add(np.array([[8.0], [16.0], [32.0]]), done, real)
print("returns in the first rollout: ", first.flatten())
print("returns in the second rollout:", second.flatten())

# %% [markdown]
# **Notice** that the second episode was paid 4 in the first rollout and 24 in the second.

# %% tags=["claims"]
assert first[1] == 3
assert second[1] == 4 + 24
assert lengths[1] == 3

# %% [markdown]
# A learner reports the mean return of the episodes that ended in an iteration. In some iterations
# ten end, in others none. Whoever watches would rather see the mean of the last twenty, and a row of
# the log may be about several iterations ({doc}`/chapters/runs/runs`). So a mean remembers what it is the mean of.


# %% tags=["export"]
class Mean(float):
    """A mean, NaN of nothing.

    Attributes:
        weight: How much it counts where several means become one, such as the number
            of what it is the mean of.
        returns: What it is the mean of, if these are returns.
    """

    weight: float
    returns: tuple[float, ...] = ()

    def __new__(cls, mean: float, weight: float) -> Self:
        self = super().__new__(cls, mean)
        self.weight = weight
        return self


def mean_return(episode_return: Tensor) -> Mean:
    """Return the mean of the returns in a rollout, which are NaN where none ended."""
    returns = tuple(episode_return[~episode_return.isnan()].tolist())
    mean = Mean(episode_return.nanmean().item(), len(returns))
    mean.returns = returns
    return mean


# %% [markdown]
# ## Episodes without an end
#
# *CliffWalking* ends at its goal and has no time limit. An agent that walks to and fro never comes
# to an end, and whoever waits for one waits for ever. So `evaluate` and `record_video`
# ({doc}`/chapters/evaluation`, {doc}`/chapters/runs/runs`) cut an episode off after many steps, and say so.


# %% tags=["export"]
def warn_unended(env: Env, playing: Sequence[bool], limit: int, calls: int) -> None:
    """Warn that the episodes which are still under way are cut off at a limit.

    Args:
        env: What is played.
        playing: Whether each episode is under way.
        limit: After how many steps they are cut off.
        calls: How many calls lie between here and the line that the warning points to,
            those of decorators included.
    """
    warnings.warn(
        f"env {name_of(env)!r}: {sum(playing)} of {len(playing)} episodes had no end "
        f"within {limit} steps and were cut off; give it a time limit, gym.make(id, "
        "max_episode_steps=...), or allow more steps with max_episode_steps",
        stacklevel=calls + 1,
    )


# %% [markdown]
# A learner starts its environments anew at each checkpoint, so that a run that is resumed there is the
# same run ({doc}`/chapters/nets/policies`). Where no episode is short enough to end in between, the learner
# never sees an end, nor what it pays. So whoever starts them anew says so, once a run.


# %% tags=["export"]
def warn_cut_off(*collectors: Any) -> bool:
    """Warn if environments that start anew now have ended no episode since they did.

    Args:
        collectors: What steps them.

    Returns:
        Whether there was a warning: one in a run is enough.
    """
    counters = [x.episodes for x in collectors if x.obs is not None]
    unended = sum(x.unended for x in counters)
    if not unended:
        return False
    steps = max(x.steps for x in counters)
    number = sum(x.carried.shape[1] for x in counters)
    warnings.warn(
        f"no episode ended within {steps} steps in {unended} of {number} "
        "environments, and at each checkpoint all of them start anew; raise "
        "checkpoint_interval if episodes are longer, or give them a time limit",
        stacklevel=2,
    )
    return True


# %% [markdown]
# ## Chains
#
# {doc}`/chapters/exact_values` solves the Bellman equation for a *chain*: a table of
# probabilities from state to state, and a mean reward for each of the $S$ states. It has one
# solution if, without a discount, an end can be reached from every state. Where an end can be
# reached at all, it can be reached in $S$ steps. So we ask how likely a state is to survive $S$
# steps, each of which it survives with probability $\gamma$ at most. If that is certain, the
# state has no finite value.


# %% tags=["export"]
@checked
def check_chain(
    transition: Float[np.ndarray, "S S"],
    reward: Float[np.ndarray, "S"],
    gamma: Fraction,
) -> None:
    """Raise unless a chain of states has finite values."""
    check_that(np.isfinite(reward).all(), "reward must be finite")
    # NaN is not at least zero either.
    fits = (transition >= 0).all() and (transition.sum(1) <= 1 + 1e-9).all()
    check_that(fits, "transition must have rows of probabilities with a sum <= 1")
    survival = np.linalg.matrix_power(gamma * transition, len(reward)).sum(1)
    words = f"gamma must be below 1 if a state never terminates, got {gamma}"
    check_that((survival <= 1 - 1e-12).all(), words)


# %% [markdown]
# ## References
#
# The interface of the environments is Gymnasium's {cite:p}`towers2024`.
