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
# **What can go wrong between an agent and its environments?** The actions have the wrong shape, a
# reward is not a number, an environment resets at another time than it says. Python
# would complain about most of this, but late and in words of its own. The functions on this
# page complain at once and say which argument it was.
#
# {doc}`/chapters/agents` calls them in its loop. Nobody has to read this page to follow the
# book.

# %% tags=["export", "hide-input"]
"""Episodes: what guards the loop of agent and environment, and counts its episodes."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any, Self

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from literate_rl.ground.protocols import Envs

__all__ = [
    "EpisodeCounter",
    "check_experience",
    "env_seed",
    "on_cpu",
    "plain_actions",
]

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
# all others of its class. The mode is read as its word, because `AutoresetMode` may have been
# imported twice, and then its members are not equal. An environment that does not name its mode
# is refused: whoever guesses wrong learns from steps that never happened, and nothing shows it.


# %% tags=["export"]
def resets_later(envs: Envs) -> bool:
    """Return whether a copy is reset in the step after an end, as in ``NEXT_STEP``.

    Raises:
        ValueError: If the mode is neither ``NEXT_STEP`` nor ``SAME_STEP``.
    """
    mode = getattr(envs, "autoreset_mode", None) or envs.metadata.get("autoreset_mode")
    word = getattr(mode, "value", mode)
    if word not in ("NextStep", "SameStep"):
        raise ValueError(
            "envs must have NEXT_STEP or SAME_STEP as metadata['autoreset_mode'], got "
            f"{getattr(mode, 'name', mode)}: name it where they are made, or use "
            "make_envs"
        )
    return word == "NextStep"


# %% [markdown]
# What a mode promises is held against what comes. Only `SAME_STEP` keeps last observations, one
# for each copy that is done.


# %% tags=["export"]
def check_final(infos: dict[str, Any], done: NDArray[Any], later: bool) -> None:
    """Raise unless the last observations are there that an autoreset mode promises."""
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
    given: Any = infos.get("action_mask")
    if given is None and before is None:
        return None
    said = np.broadcast_to(infos.get("_action_mask", given is not None), acting.shape)
    rule = "infos must have action_mask at each reset and each step, or never"
    refuse_copies(acting & ~said, rule)
    if not said.any():
        return np.ones_like(before, bool)
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
import gymnasium as gym

copies = [lambda: gym.make("CartPole-v1")]
unattended = gym.vector.SyncVectorEnv(copies, autoreset_mode="Disabled")
try:
    resets_later(unattended)
except ValueError as error:
    refusal = str(error)
    print(refusal)

# %% tags=["claims"]
assert "got DISABLED" in refusal

# %% [markdown]
# ## Actions
#
# An agent is any function, so nobody knows what it returns before it does. A column of
# actions, $(B, 1)$ instead of $(B,)$, is found here and not somewhere inside an environment.


# %% tags=["export"]
def on_cpu(action: Tensor) -> Tensor:
    """Return an agent's actions on the CPU, where environments run."""
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
# ## Names that have moved
#
# What makes an environment, and what holds it to its interface, has its own pages. A learner is handed
# environments and needs neither.


# %% tags=["export"]
MOVED = dict.fromkeys(("check_copies", "env_maker"), "makers")
MOVED |= {"check_chain": "exact_values"}


def __getattr__(name: str) -> Any:
    """Find what was here before."""
    if name in MOVED:
        return getattr(import_module(f"literate_rl.data.{MOVED[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# %% [markdown]
# ## References
#
# The interface of the environments is Gymnasium's {cite:p}`towers2024`.
