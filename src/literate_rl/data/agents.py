# Generated from chapters/data/agents.py (edit there); digest b15a15d18de2e531
"""Collectors: rollouts of an agent in many environments, seeds and devices."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from annotated_types import Ge, Lt
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from literate_rl.data.episodes import (
    EpisodeCounter,
    as_argument,
    check_experience,
    check_final,
    env_seed,
    follow_masks,
    on_cpu,
    plain_actions,
    read_masks,
    resets_later,
    warn_cut_off,
)
from literate_rl.ground.networks import eval_mode
from literate_rl.ground.protocols import Act, Envs, Kept, PolicyLike
from literate_rl.ground.signatures import Bool, Count, Float, check_that, checked
from literate_rl.maths.returns import discounted_returns as discounted_returns

__all__ = [
    "Collector",
    "Rollout",
    "Runner",
    "Sampler",
    "Window",
    "best_device",
    "make_envs",
    "seed_everything",
    "seen_by",
    "true_successors",
]


@checked
def make_envs(
    env: str | Callable[[], gym.Env[Any, Any]], num_envs: Count = 1
) -> SyncVectorEnv:
    """Make a vector environment that resets in the step that ends an episode.

    Args:
        env: A registered id such as ``"CartPole-v1"``, or a function that makes a new
            environment at each call.
        num_envs: Number of copies.

    Raises:
        ValueError: If ``env`` cannot be made.
    """
    # A learner, which is handed its environments, does not need what makes one.
    from literate_rl.data.makers import check_copies, env_maker

    makers = [env_maker(env, copy) for copy in range(num_envs)]
    envs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    check_copies(envs)
    return envs


def true_successors(next_obs: NDArray[Any], infos: dict[str, Any]) -> NDArray[Any]:
    """Return where each step of a ``SAME_STEP`` environment led, as a new array.

    Args:
        next_obs: Observations as ``step`` returned them, ``(B, *)``.
        infos: The last thing that ``step`` returned.
    """
    # The copy is {eq}`true-successor` for every row that is not done.
    successors = np.array(next_obs)
    # The other rows are few, so a loop over them is quick enough.
    ended = np.flatnonzero(infos["_final_obs"]) if "_final_obs" in infos else ()
    for index in ended:
        last, wanted = np.asarray(infos["final_obs"][index]), successors.shape[1:]
        if last.shape != wanted:  # NumPy would stretch some shapes without a word
            raise ValueError(f"final_obs must have shape {wanted}, got {last.shape}")
        successors[index] = last
    return successors


class Rollout(NamedTuple):
    """What happened in T steps of B environments.

    Attributes:
        obs: What the agent saw, ``(T, B, *)``.
        action: What it did, ``(T, B, *)``.
        reward: What it was paid, float32.
        next_obs: Where each step led: true successors, never a reset.
        terminated: Whether the task ended with this step.
        truncated: Whether the episode was cut off after this step.
        real: Whether the step happened. In mode ``NEXT_STEP`` the one after an end did
            not: its action was ignored.
        episode_return: At the last step of an episode its undiscounted return, NaN at
            all other steps.
        episode_length: Likewise, the number of steps of the episode.
        mask: Which actions were legal, ``(T, B, N)``, or None where nobody says so.
        next_mask: Which are legal in ``next_obs``; all of them after a termination.
        state: What a policy that remembers knew before each step, or None.
    """

    obs: Tensor
    action: Tensor
    reward: Float[Tensor, "T B"]
    next_obs: Tensor
    terminated: Bool[Tensor, "T B"]
    truncated: Bool[Tensor, "T B"]
    real: Bool[Tensor, "T B"]
    episode_return: Float[Tensor, "T B"]
    episode_length: Float[Tensor, "T B"]
    mask: Bool[Tensor, "T B N"] | None = None
    next_mask: Bool[Tensor, "T B N"] | None = None
    state: Float[Tensor, "T B S"] | None = None

    def to(self, device: torch.device) -> Rollout:
        """Return the rollout on a device."""
        fields: Any = [x if x is None else x.to(device) for x in self]
        return Rollout(*fields)

    @property
    def seen(self) -> Any:
        """The observations as their policy reads them, see ``as_read``."""
        flags = self.terminated, self.truncated, self.real
        return as_read(self.obs, self.state, *flags)


class Collector:
    """Lets an agent act in a vector environment and writes down what happens.

    Args:
        envs: A vector environment in one of the two modes; its observations are arrays.
        to_env: Turns the agent's actions into what ``envs.step`` takes. The default
            takes tensors that fit the action space.
        dtype: NumPy's type for the stored observations; the environment's own if None.
        start: Function from the number of copies to the state of an agent that
            remembers, ``(B, S)``; or None.

    Attributes:
        obs: Observations from which to continue, None before the first ``reset``.
        mask: Which actions are legal there, ``(B, N)``, or None.
        state: What the agent remembers there, ``(B, S)``, or None.
        step: Steps taken so far, all environments together.
    """

    @checked
    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        to_env: Callable[[Tensor], Any] | None = None,
        dtype: Any = None,
        start: Callable[[int], Tensor] | None = None,
    ) -> None:
        self.envs, self.dtype, self.new_state = envs, dtype, start
        self.to_env = to_env or partial(plain_actions, envs)
        self.resets_later = resets_later(envs)
        self.obs: Any = None
        self.step = 0

    @checked
    def reset(self, seed: int) -> None:
        """Start new episodes in all environments, from a seed."""
        self.obs, infos = self.envs.reset(seed=int(seed))
        self.ended = np.zeros(self.envs.num_envs, dtype=bool)
        self.mask = read_masks(infos, ~self.ended)
        self.episodes = EpisodeCounter(self.envs.num_envs)
        self.state = self.new_state(self.envs.num_envs) if self.new_state else None

    @torch.no_grad()
    @checked
    def collect(self, act: Callable[..., Any], num_steps: Count) -> Rollout:
        """Let an agent act for T steps, without gradient.

        It gets observations ``(B, *)`` on the CPU and returns actions ``(B, *)``. Where
        the environments say which actions are legal, it gets them as ``mask``. One that
        remembers gets ``state`` too, and returns actions and the next state.

        Raises:
            ValueError: If ``reset`` was not called before, if the environments answer
                with a number that is not finite, or if their masks are none.
        """
        if self.obs is None:
            raise ValueError("collect needs a start: call reset first")
        # Step by step, then one array for each field, with time first.
        rows = [self.take_step(act) for _ in range(num_steps)]
        steps = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        # An environment that breaks should say so here, not in a loss an hour later.
        seen = {name: steps[name] for name in ("obs", "reward", "next_obs")}
        check_experience(self.step, **seen)
        self.step += steps["reward"].size

        # Which episodes ended, what they were paid in all, and how long they were.
        done = steps["terminated"] | steps["truncated"]
        ended = self.episodes.add(steps["reward"], done, steps["real"])
        steps["episode_return"], steps["episode_length"] = ended
        return Rollout(**{name: torch.from_numpy(x) for name, x in steps.items()})

    def take_step(self, act: Callable[..., Any]) -> dict[str, NDArray[Any]]:
        """Go round the loop once; return a row of each field of the rollout."""
        # What is written down is copied: agents and environments have arrays of their
        # own, which they may write to and use again.
        obs, mask = np.array(self.obs, self.dtype), self.mask
        # The agent looks and acts.
        seen, told = torch.from_numpy(obs.copy()), as_argument(mask)
        more: dict[str, Any] = {}
        if self.state is None:
            action = act(seen, **told)
        else:
            more["state"] = self.state.cpu().numpy().copy()
            action, self.state = act(seen, state=self.state, **told)
        action = on_cpu(action)
        taken = action.numpy().copy()
        # The environments answer.
        self.obs, reward, terminated, truncated, infos = self.envs.step(
            self.to_env(action)
        )

        done, real = terminated | truncated, ~self.ended
        check_final(infos, done, self.resets_later)
        if self.resets_later:
            # The last observation comes as it is, and the step after it did not happen.
            next_obs = self.obs
            self.ended = done & real
        else:
            # At an end `obs` belongs to the next episode already.
            next_obs = true_successors(self.obs, infos)

        if self.state is not None and (over := done | ~real).any():
            self.state = without(self.state, torch.from_numpy(over))
        reward = np.array(reward, np.float32)
        next_obs = np.array(next_obs, obs.dtype)
        # Which actions are legal next, and which are where the step led.
        ends = terminated, truncated, self.resets_later
        self.mask, next_mask = follow_masks(mask, infos, *ends)
        if mask is not None:
            more |= {"mask": mask, "next_mask": next_mask}
        return {
            "obs": obs,
            "action": taken,
            "reward": reward,
            "next_obs": next_obs,
            "terminated": terminated.copy(),
            "truncated": truncated.copy(),
            "real": real,
            **more,
        }


@checked
def seed_everything(seed: Annotated[int, Ge(0), Lt(2**32)]) -> None:
    """Seed the global generators of Python, NumPy and PyTorch (on all devices).

    Environments have their own generators: pass a seed to their ``reset`` as well.
    """
    random.seed(int(seed))
    np.random.seed(seed)
    torch.manual_seed(int(seed))


def best_device() -> torch.device:
    """Return the CUDA device if there is one, the CPU otherwise."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def kept_dtype(policy: PolicyLike, envs: Envs) -> Any:
    """Return NumPy's type in which a policy's rollouts keep observations."""
    own = envs.single_observation_space.dtype
    small = own is not None and own.itemsize == 1
    return own if small and getattr(policy, "reads_bytes", False) else np.float32


def collector_for(policy: PolicyLike, envs: Envs, dtype: Any) -> Collector:
    """Return what collects for a policy, and keeps its state if it remembers."""
    return Collector(envs, policy.to_env, dtype, getattr(policy, "start", None))


def step_of(policy: PolicyLike) -> Any:
    """Return how a policy acts: one that remembers takes a state, returns the next."""
    remembers: Any = policy
    return remembers.step if hasattr(policy, "start") else policy.act


class Sampler(Kept):
    """Steps environments so that a resumed run goes on with the same bits.

    Args:
        policy: The policy that acts, on any device.
        envs: A vector environment.
        seed: Seed of the noise and of the environments.
        checkpoint_interval: Iterations between checkpoints, at which the environments
            are reset.
        act: A faster form of ``policy.act``, or None for that one.
        dtype: As for ``Collector``.
    """

    kept: tuple[str, ...] = ("generator", "step", "iteration")

    def __init__(
        self,
        policy: PolicyLike,
        envs: Envs,
        seed: int,
        checkpoint_interval: int,
        act: Act | None = None,
        dtype: Any = None,
    ) -> None:
        self.policy, self.act = policy, act or step_of(policy)
        self.device = next(policy.parameters()).device
        self.seed, self.checkpoint_interval = seed, checkpoint_interval
        self.collector = collector_for(policy, envs, dtype)
        self.generator = torch.Generator().manual_seed(seed)
        self.iteration, self.warned = 0, False

    @property
    def step(self) -> int:
        """Steps taken so far, all environments together."""
        return self.collector.step

    @step.setter
    def step(self, step: int) -> None:
        # Who goes back to a step starts from there with fresh environments.
        self.collector.step, self.collector.obs = step, None

    @property
    def checkpoint_due(self) -> bool:
        """Whether a run that resumes here ends with the same bits."""
        return self.iteration % self.checkpoint_interval == 0

    @property
    def starts_anew(self) -> bool:
        """Whether the next iteration starts with fresh environments."""
        return self.collector.obs is None or self.checkpoint_due

    def start(self) -> None:
        """Reset the environments where a resumed run would do so."""
        if self.starts_anew:
            self.warned = self.warned or warn_cut_off(self.collector)
            self.collector.reset(env_seed(self.seed, self.step))


class Runner(Sampler):
    """Lets a policy act for a rollout at a time.

    Args:
        policy: The policy that acts, on any device.
        envs: A vector environment.
        num_steps: Steps of one rollout in each environment.
        seed: Seed of the noise and of the environments.
        checkpoint_interval: Rollouts between checkpoints. The environments are reset
            at each of them, so an episode of more than ``num_steps *
            checkpoint_interval`` steps never ends.
        act: A faster form of ``policy.act``, or None for that one.

    Attributes:
        actor: Who acts, the policy unless a learner says otherwise.
        scaler: A ``RewardScaler``, whose running returns begin anew with fresh
            environments; or None.
    """

    scaler: Any = None

    def __init__(
        self,
        policy: PolicyLike,
        envs: Envs,
        num_steps: int,
        seed: int,
        checkpoint_interval: int,
        act: Act | None = None,
    ) -> None:
        dtype = kept_dtype(policy, envs)
        super().__init__(policy, envs, seed, checkpoint_interval, act, dtype)
        # With one step a rollout might hold a reset and nothing else.
        fits = num_steps > 1 or not self.collector.resets_later
        check_that(fits, "num_steps must be above 1 with autoreset mode NEXT_STEP")
        self.num_steps, self.actor = num_steps, policy

    def noise(self) -> Tensor:
        """Draw the noise of a rollout."""
        num_envs = self.collector.envs.num_envs
        return self.actor.noise(self.num_steps, num_envs, self.generator)

    def collect(self) -> Rollout:
        """Act for T steps with the policy as it is."""
        # Fresh environments have no episodes under way whose rewards add up.
        if self.scaler is not None and self.starts_anew:
            self.scaler.carry.zero_()
        self.start()
        # Each step takes its share of the noise.
        draws = iter(self.noise().to(self.device))
        self.iteration += 1
        with eval_mode(self.actor):
            batch = self.collector.collect(
                lambda obs, **told: self.act(obs.to(self.device), next(draws), **told),
                self.num_steps,
            )
        return batch.to(self.device)


def without(state: Tensor, over: Tensor) -> Tensor:
    """Return states ``(B, S)`` that are zero where an episode is over, ``(B,)``."""
    return state.masked_fill(over.to(state.device).unsqueeze(-1), 0.0)


class Window(NamedTuple):
    """What a policy that remembers reads: steps in a row, and what it knew before.

    Attributes:
        obs: What the agent saw, ``(T, B, *)``.
        state: What it knew before each step, ``(T, B, S)``. Only the first row is read.
        over: Whether an episode ended right before a step, ``(T, B)``. With () each
            step stands alone, and each row of ``state`` is read.
        real: Which steps count, ``(T, B)``. What a policy says of a window is about
            these, in a row. With () it is about all steps, and their form is kept.
    """

    obs: Tensor
    state: Tensor
    over: Any = ()
    real: Any = ()

    def take(self, chosen: Tensor) -> tuple[Window, Tensor]:
        """Return a part, and which of the steps that counted so far count in it.

        Args:
            chosen: Numbers of environments, or which steps count from now on.
        """
        if chosen.dtype == torch.bool:
            return self._replace(real=chosen), chosen
        mine = torch.zeros_like(self.real[0])
        mine[chosen] = True
        part = Window(*(x[:, mine] for x in self))
        return part, mine.expand_as(self.real)[self.real]


def as_read(
    obs: Tensor,
    state: Tensor | None,
    terminated: Tensor,
    truncated: Tensor,
    real: Tensor,
) -> Any:
    """Return observations in a row as their policy reads them.

    With states before each step they are a ``Window``, else they stay what they are.
    ``obs`` may have a row more than the rest, where the last step led.
    """
    if state is None:
        return obs
    # A step behind an end begins an episode, and so does one behind a phantom row.
    ends = (terminated | truncated | ~real)[: len(obs) - 1]
    return Window(obs, state, torch.cat([torch.zeros_like(real[:1]), ends]))


def seen_by(policy: PolicyLike, batch: Rollout) -> tuple[Any, Any]:
    """Return what a policy reads of a rollout's steps, and of where they led."""
    obs = batch.seen
    return obs, behind(policy, obs, batch.next_obs)


def behind(policy: Any, obs: Any, next_obs: Tensor) -> Any:
    """Return what a policy reads of where steps led, given what it read of them."""
    if not isinstance(obs, Window):
        return next_obs
    with torch.no_grad(), eval_mode(policy):
        return Window(next_obs, policy.states(obs))
