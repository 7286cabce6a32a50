# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What an environment answers
#
# **How does one find a bug in somebody else's environment?** It pays with a word, returns four things or shows a
# number outside of its space, and Python complains far away from where it went wrong. Here each answer is
# looked at, and the error names the environment, the copy and the step.
#
# Nobody has to read this page to follow the book.

# %% tags=["export", "hide-input"]
"""What an environment answers: held to its interface, and copied."""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from literate_rl.ground.nests import (
    Space,
    as_space,
    leaves,
    map_nest,
    named_ends,
    pack,
)
from literate_rl.ground.protocols import Envs
from literate_rl.ground.signatures import check_that

__all__ = ["Held"]

# %% [markdown]
# ## Held to its interface
#
# NumPy hides some bugs of an environment: it turns the reward `"1"`
# into a number, and a flag that is `None` into `False`. Old environments return four things from a
# step, and only an observation from a reset. So each answer is looked at before NumPy sees it, and
# an error says which environment it came from. No number is looked at: NaN is found later ({doc}`/chapters/data/episodes`).
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
Env = gym.Env[Any, Any]
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


# %% [markdown]
# What an answer must be stands in the spaces, and in Gymnasium's interface.


# %% tags=["export"]
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


# %% [markdown]
# The error of an environment is told in one line, with the place where it was raised. An environment may fail
# while it is made, too.


# %% tags=["export"]
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


# %% tags=["hide-input"]
class Careless(gym.Env):
    """Pays with a word, as a table read from a file might."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def step(self, action):
        return np.zeros(2, np.float32), "1", False, False, {}


try:
    Held(Careless()).step(0)
except ValueError as error:
    careless = str(error)
    print(careless)

# %% tags=["claims"]
assert careless == "env 'Careless' failed in step: reward must be a number, got '1'"

# %% [markdown]
# Gymnasium's own vector environments make no such copy. With `SAME_STEP` they reset an environment
# while they hold its last observation, and if its array is always the same, what they report as the
# end is the next beginning. So make yours with `make_envs` ({doc}`/chapters/data/agents`), or of what `env_maker`
# ({doc}`/chapters/data/makers`) returns.


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
    envs = gym.vector.SyncVectorEnv([make], autoreset_mode="SameStep")
    envs.reset()
    for _ in range(3):
        *_, infos = envs.step([0])
    return infos["final_obs"][0].item()


as_it_is, held = last_observation(Reusing), last_observation(lambda: Held(Reusing()))
print(f"the last observation: {as_it_is} as it is, {held} held")

# %% tags=["claims"]
assert (as_it_is, held) == (0, 3)

# %% [markdown]
# ## Observations by hand
#
# `predict` takes what an environment shows, or a vector environment: arrays, lists or tensors, in the parts of
# the space. A policy reads flat rows.


# %% tags=["export"]
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
    ranks = [len(leaf.shape or ()) for leaf in leaves(space)]
    # A batch has a dimension more, in front of each part.
    alone = all(x.ndim != rank + 1 for x, rank in zip(parts, ranks, strict=True))
    parts = [x[None] for x in parts] if alone else parts
    sizes = {x.shape[:1] for x in parts}
    wanted = "obs must have as many rows in each part, and one at least"
    check_that(len(sizes) == 1 and (0,) not in sizes, f"{wanted}, got {sizes}")
    rows = []
    for index, row in enumerate(zip(*parts, strict=True)):
        one = pack(space, iter(row))
        if wrong := wrong_obs(one, space, "obs" if alone else f"obs[{index}]"):
            raise ValueError(f"{wrong}: give one observation or a batch")
        rows.append(np.asarray(spaces.flatten(space, one)))
    table = np.stack(rows)
    finite = bool(np.isfinite(table).all())
    check_that(finite, "obs must be finite, got NaN or infinity")
    return table, alone


# %% [markdown]
# ## A policy in an environment
#
# A policy remembers the space of what it has learned from. If it meets an environment that shows
# something else, a wrapper is probably missing. And *CliffWalking* ends at its goal and has no time limit: an
# agent that walks to and fro never comes to an end. So `evaluate` and `record_video`
# ({doc}`/chapters/evaluation`, {doc}`/chapters/runs/runs`) cut an episode off after many steps, and say so.


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
# ## References
#
# The interface of the environments is Gymnasium's {cite:p}`towers2024`.
