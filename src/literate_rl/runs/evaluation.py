# Generated from chapters/evaluation.py (edit there); digest 07d29967cf295b52
"""Evaluation: what an agent is worth, and how sure one can be of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from functools import cache, partial
from typing import Annotated, Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from annotated_types import Ge, Gt, Lt
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray
from torch import Tensor

from literate_rl.data.agents import make_envs
from literate_rl.data.episodes import (
    Masks,
    as_argument,
    env_seed,
    follow_masks,
    read_masks,
)
from literate_rl.data.held import check_seen, warn_unended
from literate_rl.data.makers import flat_env
from literate_rl.ground.networks import eval_mode, randomness_kept
from literate_rl.ground.protocols import PolicyLike
from literate_rl.ground.signatures import Count, Float, at_least, checked, finite

__all__ = ["Difference", "evaluate", "paired_difference", "t_interval"]

Level = Annotated[float, Gt(0), Lt(1)]
Seed = Annotated[int, Ge(0)]


def acted(
    policy: PolicyLike,
    obs: NDArray[Any],
    mask: Masks | None = None,
    noise: Tensor | float = 0.0,
) -> Any:
    """Return a policy's actions, in the form that environments take."""
    device = next(policy.parameters(), torch.empty(0)).device
    with torch.no_grad(), eval_mode(policy):
        state = torch.as_tensor(obs, dtype=torch.float32, device=device)
        noise = noise.to(device) if isinstance(noise, Tensor) else noise
        return policy.to_env(policy.act(state, noise, **as_argument(mask)).cpu())


@checked
@randomness_kept()
def evaluate(
    policy: PolicyLike,
    env: str | Callable[..., gym.Env[Any, Any]],
    episodes: Count = 10,
    seed: Seed = 0,
    max_episode_steps: Count = 30_000,
    greedy: bool = True,
) -> Float[np.ndarray, "episodes"]:
    """Play episodes, greedily or not, and return the undiscounted return of each.

    Args:
        policy: The policy; only ``act``, ``to_env`` and ``parameters`` are called,
            ``noise`` if it draws, and ``reset`` if it has one: alone at the start and
            the end, and after each step with a flag for each episode that is over.
        env: A registered id, or a function that makes an environment.
        episodes: How many to play.
        seed: Decides how they start and what happens in them. The same seed gives the
            same returns.
        max_episode_steps: After how many steps an episode is cut off, with a warning.
        greedy: Whether the policy takes the best action. If not, it draws as it did
            while it learned. It must where states look alike that want different
            actions: there a greedy policy may turn in circles.

    Raises:
        ValueError: If ``env`` cannot be made.
    """
    # One environment for each episode, stepped together: the network sees one batch.
    with closing(make_envs(partial(flat_env, env), episodes)) as envs:
        return play(policy, envs, seed, max_episode_steps, greedy)


def play(
    policy: PolicyLike,
    envs: SyncVectorEnv,
    seed: int,
    max_episode_steps: int,
    greedy: bool = True,
    look: Callable[[], Any] = lambda: None,
) -> NDArray[np.float64]:
    """Play an episode in each environment, as ``evaluate`` does; look at each step."""
    check_seen(policy, envs)
    obs, infos = envs.reset(seed=env_seed(seed, 0))
    # All play until the last of the first episodes is over.
    returns, playing = np.zeros(envs.num_envs), np.ones(envs.num_envs, bool)
    mask = read_masks(infos, playing)
    forget = getattr(policy, "reset", lambda *over: None)
    forget()
    generator = torch.Generator().manual_seed(env_seed(seed, 1))
    for _ in range(max_episode_steps):
        look()
        noise = 0.0 if greedy else policy.noise(1, envs.num_envs, generator)[0]
        action = acted(policy, obs, mask, noise)
        obs, reward, terminated, truncated, infos = envs.step(action)
        mask, _ = follow_masks(mask, infos, terminated, truncated)
        # An environment that is done starts another episode, which does not count.
        returns += np.where(playing, reward, 0.0)
        forget(over := terminated | truncated)
        playing &= ~over
        if not playing.any():
            break
    else:
        warn_unended(envs.envs[0], playing.tolist(), max_episode_steps, calls=5)
    forget()
    return returns


Results = Annotated[Float[np.ndarray, "seeds *points"], at_least(2, "2 seeds"), finite]


@checked
def t_interval(
    results: Results, level: Level = 0.95
) -> tuple[Float[np.ndarray, "*points"], Float[np.ndarray, "*points"]]:
    """Return a confidence interval of the mean over seeds, its low and its high end.

    Args:
        results: One result for each seed, or one curve: then each point of the curve
            has an interval of its own.
        level: Share of experiments whose interval should contain the true mean.

    Source: Student 1908. It is exact if results have a normal distribution.
    """
    # The interval {eq}`t-interval`: the mean, and so many standard errors on each side.
    mean = results.mean(0)
    error = results.std(0, ddof=1) / math.sqrt(len(results))
    half = t_quantile(level, len(results) - 1) * error
    return mean - half, mean + half


def t_share(angle: float, freedom: int) -> float:
    """Return the chance that the mean is off by no more than a bound.

    The bound is √freedom · tan(angle) standard errors.
    """
    # The quotient {eq}`t-share`. An even power starts from the integral of 1, an odd
    # one from that of the cosine.
    power = (freedom - 1) % 2
    inside, whole = (math.sin(angle), 1.0) if power else (angle, math.pi / 2)
    while power < freedom - 1:
        power += 2
        edge = math.cos(angle) ** (power - 1) * math.sin(angle)
        inside = (edge + (power - 1) * inside) / power
        whole *= (power - 1) / power
    return inside / whole


@cache
def t_quantile(level: float, freedom: int) -> float:
    """Return how many standard errors hold the truth with probability ``level``."""
    # Sixty halvings of a right angle are as exact as the numbers of a computer.
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        if t_share(angle, freedom) < level:
            low = angle
        else:
            high = angle
    return math.sqrt(freedom) * math.tan(low)


class Difference(NamedTuple):
    """How much better one agent is on average, and the ends of its interval."""

    mean: Any
    low: Any
    high: Any


@checked
def paired_difference(
    ours: Results, theirs: Results, level: Level = 0.95
) -> Difference:
    """Compare two agents that were trained with the same seeds, seed by seed.

    Args:
        ours: Results of the first agent.
        theirs: Results of the second, in the same order of seeds.
        level: Share of experiments whose interval should contain the true difference.
    """
    difference = ours - theirs
    return Difference(difference.mean(0), *t_interval(difference, level))
