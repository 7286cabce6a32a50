# Generated from chapters/agents.py (edit there); digest 3ea841759e8ee68c
"""Agents, episodes and time limits: returns, rollouts, seeds, devices, exercises."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

__all__ = [
    "Collector",
    "Ring",
    "Rollout",
    "best_device",
    "check_experience",
    "check_steps",
    "discounted_returns",
    "grade",
    "make_envs",
    "seed_everything",
    "tabular_values",
    "true_successors",
]


def check_steps(**tensors: Tensor) -> None:
    """Raise unless all arguments are time-major tensors of one shape (T, B).

    Args:
        tensors: Tensors by the name that a message should give them. Those called
            ``terminated`` and ``truncated`` must be boolean, all others floating-point.

    Raises:
        TypeError: If an argument is no tensor or has the wrong dtype.
        ValueError: If an argument is empty or has another shape than the first.
    """
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
        flag = name in ("terminated", "truncated")
        if (value.dtype != torch.bool) if flag else not value.is_floating_point():
            kind = "boolean" if flag else "floating-point"
            raise TypeError(f"{name} must be {kind}, got {value.dtype}")
    first, *others = tensors
    shape = tuple(tensors[first].shape)
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"{first} must have a non-empty shape (T, B), got {shape}")
    for name in others:
        if tensors[name].shape != shape:
            given = tuple(tensors[name].shape)
            raise ValueError(
                f"{name} must have shape {shape} like {first}, got {given}"
            )


def check_gamma(gamma: float) -> None:
    """Raise unless a discount is a number from 0 to 1."""
    if isinstance(gamma, bool) or not isinstance(gamma, int | float):
        raise TypeError(f"gamma must be a number, got {type(gamma).__name__}")
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must lie in [0, 1], got {gamma}")


def discounted_returns(
    reward: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float = 0.99,
) -> Tensor:
    """Compute the discounted return of every step, with two flags.

    Args:
        reward: Rewards, (T, B).
        next_value: Value of each step's true successor, (T, B). Only the entries at
            truncated steps and in the last row are read.
        terminated: Whether the task ended with this step, (T, B) boolean.
        truncated: Whether the episode was cut off after this step, (T, B) boolean.
        gamma: Discount, in [0, 1].

    Returns:
        The returns, (T, B), without gradient.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If a shape or ``gamma`` is wrong, or a number that counts is not
            finite.

    Source:
        Sutton and Barto, Reinforcement Learning, 2nd edition, equation 3.9.
    """
    check_steps(
        reward=reward, next_value=next_value, terminated=terminated, truncated=truncated
    )
    check_gamma(gamma)
    # A return is a target, something to move towards. No gradient may flow through it.
    reward, next_value = reward.detach(), next_value.detach()
    # `terminated` decides whether there is a future. Filling in a zero is safer than
    # multiplying by one, because $0 \cdot \infty$ is not a number.
    bootstrap = next_value.masked_fill(terminated, 0.0)
    # `done` decides where the future is found: in the bootstrap or in the row below.
    done = terminated | truncated
    # This loop is {eq}`discounted-return`, read from the last step to the first. The
    # last row has no row below it, so it starts from its own bootstrap.
    future = bootstrap[-1]
    returns = []
    for t in reversed(range(len(reward))):
        future = torch.where(done[t], bootstrap[t], future)
        future = reward[t] + gamma * future
        returns.append(future)
    result = torch.stack(returns[::-1])
    # One look at the result is cheap. Only when it is bad do we look for the culprit.
    if not result.isfinite().all():
        inputs = {"reward": reward, "next_value": next_value}
        bad = [name for name, x in inputs.items() if not x.isfinite().all()]
        raise ValueError(f"{' and '.join(bad) or 'the sum of reward'} must be finite")
    return result


def tabular_values(
    transition: ArrayLike, reward: ArrayLike, gamma: float
) -> NDArray[Any]:
    """Solve the Bellman equation of a policy exactly.

    Args:
        transition: Probabilities (S, S) from row to column, averaged over the policy.
            What a row lacks to 1 is the probability of termination.
        reward: Expected reward of a step from each state, (S,).
        gamma: Discount, in [0, 1].

    Returns:
        The value of each state, (S,) in float64.

    Raises:
        TypeError: If ``gamma`` is not a number.
        ValueError: If a shape or number is wrong, or if the values are infinite because
            nothing is discounted and some state never terminates.

    Source:
        Sutton and Barto, Reinforcement Learning, 2nd edition, equation 3.14.
    """
    check_gamma(gamma)
    chain = np.asarray(transition, dtype=np.float64)
    pay = np.asarray(reward, dtype=np.float64)
    if chain.ndim != 2 or chain.shape[0] != chain.shape[1] or not chain.size:
        raise ValueError(f"transition must have shape (S, S), got {chain.shape}")
    if pay.shape != chain.shape[:1]:
        raise ValueError(f"reward must have shape {chain.shape[:1]}, got {pay.shape}")
    if not np.isfinite(pay).all():
        raise ValueError("reward must be finite")
    if not ((chain >= 0).all() and (chain.sum(axis=1) <= 1 + 1e-9).all()):
        raise ValueError("transition must have rows of probabilities with a sum <= 1")
    # Wherever an end can be reached at all, it can be reached in $S$ steps. A state
    # that survives $S$ discounted steps for certain has no finite value.
    survival = np.linalg.matrix_power(gamma * chain, len(chain)).sum(axis=1)
    if (survival > 1 - 1e-12).any():
        raise ValueError(
            f"gamma must be below 1 if a state never terminates, got {gamma}"
        )
    # Here is {eq}`tabular-value`. Solving is faster and more exact than inverting.
    return np.linalg.solve(np.eye(len(chain)) - gamma * chain, pay)


class Ring(gym.Env[np.int64, np.int64]):
    """A ring of cells with a reward in cell 0 and a chance to break down.

    The observation is the number of the cell. Action 0 goes left (to the cell before),
    action 1 goes right (to the cell after). A step from cell 0 pays 1, every other step
    0. An episode starts in a random cell.

    Args:
        num_cells: Number of cells, at least 2.
        end_probability: Probability that a step terminates the episode, in [0, 1].

    Raises:
        ValueError: If an argument is out of range.
    """

    metadata = {"render_modes": []}

    def __init__(self, num_cells: int = 5, end_probability: float = 0.02) -> None:
        if num_cells < 2:
            raise ValueError(f"num_cells must be at least 2, got {num_cells}")
        if not 0 <= end_probability <= 1:
            raise ValueError(
                f"end_probability must be in [0, 1], got {end_probability}"
            )
        self.num_cells = num_cells
        self.end_probability = end_probability
        self.observation_space = gym.spaces.Discrete(num_cells)
        self.action_space = gym.spaces.Discrete(2)
        self.cell = np.int64(0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Put the robot into a random cell."""
        super().reset(seed=seed)
        self.cell = self.np_random.integers(self.num_cells)
        return self.cell, {}

    def step(
        self, action: np.int64
    ) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Move by one cell; return observation, reward, two flags and an empty dict."""
        if not self.action_space.contains(action):
            raise ValueError(f"action must be 0 or 1, got {action!r}")
        reward = float(self.cell == 0)
        self.cell = np.int64((self.cell + (1 if action == 1 else -1)) % self.num_cells)
        # The environment knows only one way to end. A time limit is not its business,
        # so its own `truncated` is always false.
        terminated = bool(self.np_random.random() < self.end_probability)
        return self.cell, reward, terminated, False, {}

    def chain(self, right: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return what ``tabular_values`` reads, for a policy that ignores the cell.

        Args:
            right: Probability of action 1 in every cell.

        Returns:
            The transition probabilities (S, S) and the expected rewards (S,).
        """
        stay = np.eye(self.num_cells)
        # Rolling the identity's columns by one sends each cell to its neighbour.
        walk = right * np.roll(stay, 1, axis=1) + (1 - right) * np.roll(
            stay, -1, axis=1
        )
        return (1 - self.end_probability) * walk, stay[0]


def make_envs(
    env: str | Callable[[], gym.Env[Any, Any]], num_envs: int = 1
) -> SyncVectorEnv:
    """Make a vector environment that resets in the step that ends an episode.

    Args:
        env: A registered id such as ``"CartPole-v1"``, or a function without arguments
            that makes a new environment at each call.
        num_envs: Number of copies B.

    Returns:
        The vector environment, with autoreset mode ``SAME_STEP``.

    Raises:
        TypeError: If an argument has the wrong type, or ``env`` makes something else
            than an environment.
        ValueError: If ``num_envs`` is below 1, the id cannot be made, or ``env``
            returns the same object twice.
    """
    if not isinstance(env, str) and not callable(env):
        raise TypeError(f"env must be an id or a function, got {type(env).__name__}")
    if isinstance(num_envs, bool) or not isinstance(num_envs, int):
        raise TypeError(f"num_envs must be an int, got {type(num_envs).__name__}")
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")
    make = partial(gym.make, env) if isinstance(env, str) else env

    def make_one() -> gym.Env[Any, Any]:
        made = make()
        if not isinstance(made, gym.Env):
            raise TypeError(f"env must make a gymnasium.Env, got {type(made).__name__}")
        return made

    try:
        envs = SyncVectorEnv(
            [make_one] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP
        )
    except gym.error.Error as error:
        raise ValueError(f"env {env!r} cannot be made: {error}") from error
    # Copies that are one and the same object would step each other's episode.
    if len(set(map(id, envs.envs))) < num_envs:
        raise ValueError("env must make a new environment at each call")
    return envs


def true_successors(next_obs: NDArray[Any], infos: dict[str, Any]) -> NDArray[Any]:
    """Undo the reset: return where each step of a ``SAME_STEP`` environment led.

    Args:
        next_obs: Observations as ``step`` returned them, ``(B, *)``. Not written to.
        infos: The last thing that ``step`` returned.

    Returns:
        A new array ``(B, *)``: the true last observation where an episode ended, and
        ``next_obs`` elsewhere.

    Raises:
        ValueError: If a last observation has another shape than an observation.
    """
    # The copy is {eq}`true-successor` for every row that is not done.
    successors = np.array(next_obs)
    # The other rows are few, so a loop over them is quick enough.
    for index in np.flatnonzero(infos.get("_final_obs", ())):
        last = np.asarray(infos["final_obs"][index])
        if last.shape != successors.shape[1:]:
            wanted = successors.shape[1:]
            raise ValueError(f"final_obs must have shape {wanted}, got {last.shape}")
        successors[index] = last
    return successors


class Rollout(NamedTuple):
    """What happened in T steps of B environments: time-major tensors.

    Attributes:
        obs: What the agent saw, ``(T, B, *)``.
        action: What it did, ``(T, B, *)``.
        reward: What it was paid, (T, B) float32.
        next_obs: Where each step led, ``(T, B, *)``: true successors, never a reset.
        terminated: Whether the task ended with this step, (T, B) boolean.
        truncated: Whether the episode was cut off after this step, (T, B) boolean.
        real: Whether the step happened, (T, B) boolean. In mode ``NEXT_STEP`` the step
            behind an end did not: its action was ignored.
        episode_return: At the last step of an episode its undiscounted return, NaN at
            all other steps, (T, B) float64.
        episode_length: The same of its number of steps, (T, B) float64.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    terminated: Tensor
    truncated: Tensor
    real: Tensor
    episode_return: Tensor
    episode_length: Tensor

    def to(self, device: torch.device) -> Rollout:
        """Return the rollout on a device."""
        return Rollout(*(field.to(device) for field in self))


class Collector:
    """Lets an agent act in a vector environment and writes down what happens.

    Args:
        envs: A vector environment in either mode, with observations that are arrays
            (Box, Discrete and the like).
        to_env: Turns the agent's actions into what ``envs.step`` takes. The default
            takes tensors that fit the action space.
        dtype: NumPy's type for the stored observations; the environment's own if None.

    Attributes:
        obs: Observations to go on from, None before the first ``reset``.
        step: Steps taken so far, all environments together.
    """

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        to_env: Callable[[Tensor], Any] | None = None,
        dtype: Any = None,
    ) -> None:
        self.envs, self.dtype = envs, dtype
        self.to_env = to_env or partial(plain_actions, envs)
        mode = envs.metadata.get("autoreset_mode")
        self.resets_later = mode == AutoresetMode.NEXT_STEP
        self.obs: Any = None
        self.step = 0

    def reset(self, seed: int) -> None:
        """Start new episodes in all environments, from a seed."""
        self.obs, _ = self.envs.reset(seed=seed)
        self.ended = np.zeros(self.envs.num_envs, dtype=bool)
        # What the episodes under way were paid, and how many steps they have taken.
        self.paid = np.zeros(self.envs.num_envs)
        self.age = np.zeros(self.envs.num_envs)

    @torch.no_grad()
    def collect(self, act: Callable[[Tensor], Tensor], num_steps: int) -> Rollout:
        """Act for some steps, without gradient.

        Args:
            act: The agent: function from observations ``(B, *)`` on the CPU to actions
                ``(B, *)``.
            num_steps: Number of steps T.

        Returns:
            What happened, on the CPU.

        Raises:
            TypeError: If ``num_steps`` is no int or the agent returns no tensor.
            ValueError: If ``num_steps`` or a shape is wrong, an environment gives a
                number that is not finite, or nothing was reset yet.
        """
        check_num_steps(num_steps)
        if self.obs is None:
            raise ValueError("collect needs a start: call reset first")
        shape = (num_steps, self.envs.num_envs)
        dtype = self.dtype or np.asarray(self.obs).dtype
        obs = np.empty((num_steps, *np.shape(self.obs)), dtype)
        next_obs = np.empty_like(obs)
        reward = np.empty(shape, np.float32)
        terminated, truncated, real = np.empty((3, *shape), bool)
        actions = []
        for t in range(num_steps):
            # The agent looks and acts, the environments answer.
            obs[t] = self.obs
            action = act(torch.from_numpy(obs[t]))
            if not isinstance(action, Tensor):
                got = type(action).__name__
                raise TypeError(f"act must return a tensor, got {got}")
            actions.append(action.cpu())
            self.obs, reward[t], terminated[t], truncated[t], infos = self.envs.step(
                self.to_env(actions[t])
            )
            # Where the step led. In mode `NEXT_STEP` the last observation comes as it
            # is, and the step after it is a phantom.
            real[t] = ~self.ended
            if self.resets_later:
                next_obs[t] = self.obs
                self.ended = (terminated[t] | truncated[t]) & real[t]
            else:
                next_obs[t] = true_successors(self.obs, infos)
        check_experience(self.step, obs=obs, reward=reward, next_obs=next_obs)
        self.step += reward.size
        fields = (reward, next_obs, terminated, truncated, real)
        ended = self.count_episodes(reward, terminated | truncated, real)
        rest = map(torch.from_numpy, (*fields, *ended))
        return Rollout(torch.from_numpy(obs), torch.stack(actions), *rest)

    def count_episodes(
        self, reward: NDArray[Any], done: NDArray[Any], real: NDArray[Any]
    ) -> NDArray[np.float64]:
        """Return the returns and the lengths of the episodes that ended, (2, T, B)."""
        # Running sums since the start of the rollout, and what they were when the
        # episode under way began.
        total = np.stack([reward.astype(np.float64), real]).cumsum(1)
        total += np.stack([self.paid, self.age])[:, None]
        start = np.zeros((2, reward.shape[1]))
        ended = np.full_like(total, np.nan)
        for t, b in zip(*done.nonzero(), strict=True):
            ended[:, t, b] = total[:, t, b] - start[:, b]
            start[:, b] = total[:, t, b]
        self.paid, self.age = total[:, -1] - start
        return ended


def plain_actions(envs: VectorEnv[Any, Any, Any], action: Tensor) -> NDArray[Any]:
    """Return actions as an array, or raise unless they fit the action space."""
    # A column of actions, (B, 1) instead of (B,), is caught here by name and not
    # somewhere inside the environment.
    if action.shape != envs.action_space.shape:
        given, wanted = tuple(action.shape), envs.action_space.shape
        raise ValueError(f"act must return shape {wanted}, got {given}")
    array: NDArray[Any] = action.numpy()
    return array


def check_num_steps(num_steps: int) -> None:
    """Raise unless a number of steps is a whole number, at least 1."""
    if isinstance(num_steps, bool) or not isinstance(num_steps, int | np.integer):
        raise TypeError(f"num_steps must be an int, got {type(num_steps).__name__}")
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")


def check_experience(step: int, **arrays: NDArray[Any]) -> None:
    """Raise if an environment gave a number that is not finite, and say where.

    Args:
        step: Steps taken before this rollout.
        arrays: What the environments gave, ``(T, B, *)``, by name.

    Raises:
        ValueError: If something is NaN or infinite.
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


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, NumPy and PyTorch (on all devices).

    Environments have their own generators: pass a seed to ``envs.reset`` as well.

    Args:
        seed: An int in [0, 2**32), the range that NumPy accepts.

    Raises:
        TypeError: If ``seed`` is no int.
        ValueError: If ``seed`` is out of range.
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be an int, got {type(seed).__name__}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must lie in [0, 2**32), got {seed}")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def best_device() -> torch.device:
    """Return the CUDA device if there is one, the CPU otherwise."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def grade(
    answer: Callable[..., Any], expected: Callable[..., Any], *cases: tuple[Any, ...]
) -> None:
    """Compare an answer with a function that is right, and print one line.

    An answer that is wrong, that raises or that is still empty is reported, never
    raised.

    Args:
        answer: The reader's function.
        expected: A function that is right.
        cases: One tuple of positional arguments for each call.

    Raises:
        ValueError: If there is no case.
    """
    if not cases:
        raise ValueError("cases must hold at least one tuple of arguments, got none")
    for case in cases:
        wanted = expected(*case)
        call = f"answer({', '.join(map(one_line, case))})"
        # Whatever a learner's code does wrong is an answer that is not right yet.
        try:
            got = answer(*case)
        except Exception as error:
            print(f"Not yet: {call} raised {type(error).__name__}: {error}")
            return
        if not agree(got, wanted):
            given, sought = one_line(got), one_line(wanted)
            print(f"Not yet: {call} gave {given}, expected {sought}.")
            return
    print(f"Right: all {len(cases)} cases agree.")


def agree(got: Any, wanted: Any) -> bool:
    """Say whether two results have the same shape and nearly the same numbers."""
    if isinstance(wanted, str):
        return isinstance(got, str) and got == wanted
    if isinstance(wanted, tuple | list):
        same_length = isinstance(got, tuple | list) and len(got) == len(wanted)
        return same_length and all(map(agree, got, wanted))
    # The rest are numbers, arrays and tensors. An empty answer is none of these.
    try:
        left, right = (torch.as_tensor(x).cpu().double() for x in (got, wanted))
    except (TypeError, ValueError, RuntimeError):
        return False
    close = partial(torch.allclose, rtol=1e-4, atol=1e-6, equal_nan=True)
    return left.shape == right.shape and close(left, right)


def one_line(value: Any) -> str:
    """Return how a value prints, on one line."""
    return " ".join(repr(value).split())
