"""How long PPO takes to solve CartPole-v1, against stable-baselines3.

Every 4096 steps, 20 greedy episodes are played. CartPole counts as solved when they
last 475 steps in the mean for the first time. The evaluation is left out of steps and
times. Both learners have CleanRL's settings, the step size that falls to zero over
500,000 steps among them. The peer lives in the environment that
``make peers`` makes::

    build/peers/bin/python -m benchmarks.ppo_solve

It stores the results after each seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.harness import provenance
from benchmarks.ppo_loop import ENV, check, learner, peer_learner
from benchmarks.store import RESULTS, write_table
from literate_rl.learners.ppo import PPOConfig
from literate_rl.runs.evaluation import evaluate

PACKAGES = ("stable-baselines3", "gymnasium")
SEEDS = 20
INTERVAL = 4096
MOST_STEPS = 200_000
EPISODES, THRESHOLD = 20, 475.0
EVALUATION_SEED = 1_000_000
TOTAL_STEPS = 500_000
COLUMNS = ("method", "seed", "steps", "cpu_seconds")
PEER = "stable-baselines3"

# What a learner is here: a policy to evaluate, and a way to take some more steps.
Learner = tuple[Any, Callable[[], object]]


class PeerPolicy(nn.Module):
    """A policy of stable-baselines3 with the methods that ``evaluate`` asks for."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def act(self, obs: Tensor, noise: Tensor | float) -> Tensor:
        """Return the most probable actions."""
        logit: Tensor = self.policy.get_distribution(obs).distribution.logits
        return (logit + noise).argmax(-1)

    def to_env(self, action: Tensor) -> NDArray[np.int64]:
        """Return the actions as arrays."""
        names: NDArray[np.int64] = action.numpy()
        return names


def own(config: PPOConfig, fast: bool, by_hand: bool = False) -> Learner:
    """Build our learner."""
    ours = learner(config, fast, by_hand)

    def go_on() -> None:
        goal = ours.step + INTERVAL
        while ours.step < goal:
            ours.iterate()

    return ours.policy, go_on


def peer(config: PPOConfig) -> Learner:
    """Build the peer."""
    model = peer_learner(config)
    go_on = partial(model.learn, INTERVAL, reset_num_timesteps=False)
    return PeerPolicy(model.policy), go_on


def solve(build: Callable[[PPOConfig], Learner], seed: int) -> tuple[float, float]:
    """Return steps and CPU seconds until CartPole is solved, or infinity twice."""
    policy, go_on = build(PPOConfig(seed=seed, total_steps=TOTAL_STEPS))
    seconds = 0.0
    for steps in range(INTERVAL, MOST_STEPS + 1, INTERVAL):
        start = time.process_time()
        go_on()
        seconds += time.process_time() - start
        if evaluate(policy, ENV, EPISODES, EVALUATION_SEED).mean() >= THRESHOLD:
            return steps, seconds
    return float("inf"), float("inf")


METHODS: dict[str, Callable[[PPOConfig], Learner]] = {
    PEER: peer,
    "PPO, plain": partial(own, fast=False),
    "PPO, numpy_act": partial(own, fast=True),
    "PPO, by hand": partial(own, fast=True, by_hand=True),
}


def run(path: Path) -> None:
    """Run all seeds, the methods in turns, and store the results."""
    torch.set_num_threads(1)
    check(PPOConfig())
    origin = provenance("python -m benchmarks.ppo_solve", *PACKAGES)
    origin["seed"] = f"1 to {SEEDS}"
    rows: list[tuple[str, int, float, float]] = []
    for seed in range(1, SEEDS + 1):
        for method, build in METHODS.items():
            rows.append((method, seed, *solve(build, seed)))
            print("{}, seed {}: {:g} steps, {:.2f} s of CPU time".format(*rows[-1]))
        write_table(path, COLUMNS, rows, origin)


if __name__ == "__main__":
    run(RESULTS / "ppo_solve.csv")
