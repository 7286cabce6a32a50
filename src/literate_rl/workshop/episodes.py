# Generated from chapters/workshop/episodes.py (edit there); digest be1c112ef4b17e71
"""Episodes: what guards the loop of agent and environment, and counts its episodes."""

from __future__ import annotations

import inspect
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, get_origin

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.wrappers import FlattenObservation
from numpy.typing import NDArray
from torch import Tensor

from literate_rl.workshop.nests import as_space, leaves
from literate_rl.workshop.signatures import Float, Fraction, checked

__all__ = [
    "EpisodeCounter",
    "check_chain",
    "check_copies",
    "check_experience",
    "env_maker",
    "env_seed",
    "on_cpu",
    "plain_actions",
]


Make = str | EnvSpec | Callable[..., gym.Env[Any, Any]]


def make_one(env: Make, **arguments: Any) -> gym.Env[Any, Any]:
    """Make one environment.

    Args:
        env: A registered id, ``module:id``, ``module:name`` of a class or function, or
            what makes an environment: a class, a function or a spec of Gymnasium's.
            A module may be a file, as in ``rooms.py:Room``.
        arguments: Passed on to ``gym.make`` or to what makes it.
    """
    if isinstance(env, str):
        module, _, name = from_file(with_name(env)).rpartition(":")
        env = f"{module}:{name}" if module else name
        found = import_module(module) if module else None
        make = getattr(found, name, None)
        env = make if callable(make) and name not in gym.registry else env
    if isinstance(env, str | EnvSpec):
        try:
            return gym.make(env, **arguments)
        except gym.error.NameNotFound as error:
            if isinstance(env, str) and module:
                words = f"{module} has no class or function {name}, and no id is {name}"
                raise gym.error.NameNotFound(words) from error
            raise
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
        ImportError: If there is no such file, or if its module is another one.
    """
    if not (parts := in_file(text)):
        return text
    path, name = parts
    files = [x for x in (Path(f"{path}.py"), path / "__init__.py") if x.is_file()]
    if not files:
        raise ImportError(f"there is no file {path}.py")
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.insert(0, folder)
    found = getattr(import_module(path.name), "__file__", None)
    if found is None or not files[0].samefile(found):
        words = f"{path.name} is the name of another module: rename {files[0]}"
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
    env: str | Callable[[], gym.Env[Any, Any]],
) -> Callable[[], gym.Env[Any, Any]]:
    """Return a function that makes an environment, from an id or a function."""

    def make() -> gym.Env[Any, Any]:
        try:
            made = make_one(env)
        except gym.error.Error as error:
            raise ValueError(f"env {env!r} cannot be made: {error}") from error
        if not isinstance(made, gym.Env):
            raise TypeError(f"env must make a gymnasium.Env, got {type(made).__name__}")
        # Once is enough: `flat_env` ({doc}`runs`) holds what it makes, then flattens.
        inner = made.env if isinstance(made, FlattenObservation) else made
        return made if isinstance(inner, Held) else Held(made)

    return make


def check_copies(envs: SyncVectorEnv) -> None:
    """Raise if two copies are one object: they would step each other's episode."""
    if len({id(env.unwrapped) for env in envs.envs}) < envs.num_envs:
        raise ValueError("env must make a new environment at each call")


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


def check_num_envs(envs: Any, wanted: int) -> None:
    """Raise unless there are as many environments as the settings say."""
    if not isinstance(envs, VectorEnv):
        kind = type(envs).__name__
        raise TypeError(f"envs must be a VectorEnv, got {kind}: make_envs makes one")
    if envs.num_envs != wanted:
        raise ValueError(f"envs must have {wanted} copies, got {envs.num_envs}")


def resets_later(envs: VectorEnv[Any, Any, Any]) -> bool:
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


def check_infos(infos: Any) -> None:
    """Raise unless what environments say beside all else is a dictionary."""
    if not isinstance(infos, dict):
        raise TypeError(f"infos must be a dict, got {type(infos).__name__}")


def check_final(infos: dict[str, Any], done: NDArray[Any], later: bool) -> None:
    """Raise unless the last observations are there that an autoreset mode promises."""
    check_infos(infos)
    wanted = [] if later else done.nonzero()[0].tolist()
    some = infos.get("_final_obs")
    given = [] if some is None else np.nonzero(some)[0].tolist()
    if given != wanted:
        mode = "NEXT_STEP" if later else "SAME_STEP"
        raise ValueError(
            f"in autoreset mode {mode} infos must have final_obs for the copies "
            f"{wanted}, got it for {given}"
        )


Masks = NDArray[np.bool_]


def as_masks(given: Any) -> Masks:
    """Return masks ``(B, N)`` of zeros and ones as booleans."""
    # Where there are several choices, a mask may have a part for each.
    rows = [np.hstack(x) if isinstance(x, tuple) else np.asarray(x) for x in given]
    numbers = np.array(rows) if len({row.shape for row in rows}) == 1 else np.zeros(0)
    if numbers.ndim != 2 or not ((numbers == 0) | (numbers == 1)).all():
        got = [row.tolist() for row in rows]
        raise ValueError(f"action_mask must be (B, N) zeros and ones, got {got}")
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


def check_seen(policy: Any, envs: VectorEnv[Any, Any, Any]) -> None:
    """Raise if a policy cannot read what environments show, as far as one can tell."""
    if hasattr(policy, "policy") and not hasattr(policy, "to_env"):
        kind = type(policy).__name__
        words = f"policy must have act and to_env, got {kind}"
        raise TypeError(f"{words}: hand over its policy, as in agent.policy")
    arguments: dict[str, Any] = getattr(policy, "recipe", ("", {}))[1]
    wanted = arguments.get("observation_space")
    size = spaces.flatdim(envs.single_observation_space)
    if wanted is not None and size != spaces.flatdim(as_space(wanted)):
        raise ValueError(
            f"env must show {spaces.flatdim(as_space(wanted))} numbers, like the one "
            f"that the policy has learned in, got {size}: with wrappers it is "
            "load_env(directory), or env of the agent"
        )


class Held(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that is held to its interface; errors call it by its name."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.seen = env.observation_space
        self.options = num_options(env.action_space)

    def reset(self, **options: Any) -> Any:
        """Begin an episode."""
        obs, infos = self.held("reset", **options)
        return copied(obs), copied(infos)

    def step(self, action: Any) -> Any:
        """Take a step."""
        obs, reward, terminated, truncated, infos = self.held("step", action)
        return copied(obs), reward, terminated, truncated, copied(infos)

    def held(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method and look at what it returns."""
        cause = None
        try:
            answer = getattr(self.env, method)(*arguments, **options)
            wrong = (
                wrong_count(method, answer)
                or wrong_part(*answer, space=self.seen)
                or wrong_mask(answer[-1].get("action_mask"), self.options)
            )
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # `sys.exit` is no success
            wrong, cause = told(error), error
        if wrong:
            name = name_of(self)
            raise ValueError(f"env {name!r} failed in {method}: {wrong}") from cause
        return answer

    def render(self) -> Any:
        """Draw the environment."""
        return copied(self.env.render())


def name_of(env: gym.Env[Any, Any]) -> str:
    """Return the id of an environment, or the name of its class."""
    return env.spec.id if env.spec else type(env.unwrapped).__name__


def copied(x: Any) -> Any:
    """Copy arrays, also those in dicts, lists and tuples; leave other objects alone."""
    if isinstance(x, np.ndarray):
        return x.copy()
    if isinstance(x, dict):
        return {key: copied(part) for key, part in x.items()}
    if isinstance(x, list):
        return [copied(part) for part in x]
    if isinstance(x, tuple):
        parts = map(copied, x)
        return type(x)._make(parts) if hasattr(x, "_make") else tuple(parts)
    return x.clone() if isinstance(x, Tensor) else x


PARTS = {
    "reset": ("obs", "infos"),
    "step": ("obs", "reward", "terminated", "truncated", "infos"),
}


def wrong_count(method: str, answer: Any) -> str:
    """Return what is wrong with the number of things in an answer, or an empty text."""
    wanted = PARTS[method]
    if isinstance(answer, tuple | list) and len(answer) == len(wanted):
        return ""
    many = isinstance(answer, tuple | list)
    got = f"{len(answer)} things" if many else type(answer).__name__
    return f"it must return {', '.join(wanted)}, got {got}"


def wrong_part(obs: Any, *others: Any, space: gym.Space[Any]) -> str:
    """Return what an environment may not return, or an empty text."""
    if wrong := wrong_obs(obs, space):
        return wrong
    if not isinstance(others[-1], dict):
        return f"infos must be a dict, got {others[-1]!r}"
    if len(others) > 1:
        reward, terminated, truncated, _ = others
        paid = np.asarray(reward)
        if paid.ndim or paid.dtype.kind not in NUMBERS:
            return f"reward must be a number, got {reward!r}"
        if not isinstance(terminated, FLAGS) or not isinstance(truncated, FLAGS):
            both = f"{terminated!r} and {truncated!r}"
            return f"terminated and truncated must be bools, got {both}"
    return ""


def wrong_obs(obs: Any, space: gym.Space[Any], name: str = "obs") -> str:
    """Return what is wrong with an observation, or an empty text."""
    if isinstance(space, spaces.Box):
        # Many environments leave their own bounds, and no agent minds.
        seen = np.asarray(obs)
        if seen.dtype == space.dtype and seen.shape == space.shape:
            return ""
        if seen.shape != space.shape:
            return f"{name} must have shape {space.shape}, got {seen.shape}"
        if seen.dtype.kind not in NUMBERS:
            return f"{name} must hold numbers, got {seen.dtype}"
        return wrong_kind(seen, space.dtype, name)
    if isinstance(space, spaces.Dict) and isinstance(obs, dict):
        if not space.spaces.keys() <= obs.keys():
            return f"{name} must have {list(space.spaces)}, got {list(obs)}"
        parts = [(obs[key], part, f"{name}[{key!r}]") for key, part in space.items()]
    elif isinstance(space, spaces.Tuple) and isinstance(obs, tuple | list):
        if len(obs) != len(space):
            return f"{name} must have {len(space)} parts, got {len(obs)}"
        pairs = enumerate(zip(obs, space, strict=True))
        parts = [(x, part, f"{name}[{index}]") for index, (x, part) in pairs]
    else:
        fits = space.contains(obs)
        return "" if fits else f"{name} must be in {space}, got {obs!r:.80}"
    return next(filter(None, (wrong_obs(*part) for part in parts)), "")


def wrong_kind(seen: NDArray[Any], wanted: Any, name: str) -> str:
    """Return what is lost when numbers become those of a space, or an empty text."""
    # Who makes a row of it would turn 0.9 into 0, and 300 into 44 if there are 8 bits.
    if not np.can_cast(seen.dtype, wanted, "same_kind"):
        return f"{name} must hold {wanted} like its space, got {seen.dtype}"
    if wanted.kind in "iu":
        lost = seen[seen.astype(wanted) != seen]
        if lost.size:
            return f"{name} must hold {wanted} like its space, got {lost.flat[0]}"
    return ""


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


def num_options(space: spaces.Space[Any]) -> int:
    """Return how many options there are to choose from, 0 where nobody chooses."""
    lists = spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary
    parts = [part for part in leaves(space) if isinstance(part, lists)]
    # A switch is one number with two options.
    return sum(
        spaces.flatdim(part) * (1 + isinstance(part, spaces.MultiBinary))
        for part in parts
    )


NUMBERS = "biuf"  # NumPy's letters for booleans, integers and floating-point numbers
FLAGS = (bool, np.bool_)


def told(error: BaseException) -> str:
    """Return an error in one line: its kind, its words and where it was raised."""
    words = " ".join(str(error).split())
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({place[0].filename}:{place[0].lineno})" if place else ""
    return f"{type(error).__name__}: {words}{where}"


def on_cpu(action: Tensor) -> Tensor:
    """Return an agent's actions on the CPU, where environments run."""
    if not isinstance(action, Tensor):
        raise TypeError(f"act must return a tensor, got {type(action).__name__}")
    return action.cpu()


def plain_actions(envs: VectorEnv[Any, Any, Any], action: Tensor) -> NDArray[Any]:
    """Return actions as an array, or raise unless they fit the action space."""
    given, wanted = tuple(action.shape), envs.action_space.shape
    if given != wanted:
        raise ValueError(f"act must return shape {wanted}, got {given}")
    array: NDArray[Any] = action.numpy()
    return array


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


class MeanReturn(float):
    """A mean of returns, NaN without any.

    Attributes:
        returns: What it is the mean of.
    """

    returns: tuple[float, ...] = ()


def mean_return(episode_return: Tensor) -> MeanReturn:
    """Return the mean of the returns in a rollout, which are NaN where none ended."""
    mean = MeanReturn(episode_return.nanmean().item())
    mean.returns = tuple(episode_return[~episode_return.isnan()].tolist())
    return mean


def warn_unended(
    env: gym.Env[Any, Any], playing: Sequence[bool], limit: int, calls: int
) -> None:
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


def warn_cut_off(*collectors: Any) -> bool:
    """Warn if environments that start anew now have ended no episode since they did.

    Args:
        collectors: What steps them.

    Returns:
        Whether there was a warning: one in a run is enough.
    """
    counters = [x.episodes for x in collectors if x.obs is not None]
    unended = [x.unended for x in counters]
    if not any(unended):
        return False
    steps, number = (
        max(x.steps for x in counters),
        sum(x.carried.shape[1] for x in counters),
    )
    warnings.warn(
        f"no episode ended within {steps} steps in {sum(unended)} of {number} "
        "environments, and at each checkpoint all of them start anew; raise "
        "checkpoint_interval if episodes are longer, or give them a time limit",
        stacklevel=2,
    )
    return True


@checked
def check_chain(
    transition: Float[np.ndarray, "S S"],
    reward: Float[np.ndarray, "S"],
    gamma: Fraction,
) -> None:
    """Raise unless a chain of states has finite values."""
    if not np.isfinite(reward).all():
        raise ValueError("reward must be finite")
    # NaN is not at least zero either.
    total = transition.sum(1)
    if not ((transition >= 0).all() and (total <= 1 + 1e-9).all()):
        raise ValueError("transition must have rows of probabilities with a sum <= 1")
    survival = np.linalg.matrix_power(gamma * transition, len(reward)).sum(1)
    if (survival > 1 - 1e-12).any():
        raise ValueError(
            f"gamma must be below 1 if a state never terminates, got {gamma}"
        )
