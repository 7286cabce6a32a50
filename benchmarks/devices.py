"""Where a GPU pays: one step of Adam, and the agents, on the CPU and on CUDA.

A time is wall time: what a GPU does is not the time of this process. On a machine
without CUDA the CPU alone is measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.harness import SEED, Case
from literate_rl.apps.training import ALGORITHMS, make_learner

ROUNDS = 21
ACTIONS = 6
WIDTHS = {64: (64, 2048), 256: (256, 2048), 1024: (64, 2048)}  # and rows of the batch
PICTURES = (32, 256)
AGENTS = dict.fromkeys(("ppo", "ppg", "impala", "a2c", "dqn", "rainbow"), "CartPole-v1")
AGENTS |= dict.fromkeys(("ddpg", "td3", "sac"), "Pendulum-v1")


def layers(inputs: int, hidden: int) -> nn.Sequential:
    """Build two layers and an output."""
    first, second = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden)
    last = nn.Linear(hidden, ACTIONS)
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), last)


def minatar() -> nn.Sequential:
    """Build the network of Young and Tian 2019 for pictures of 10 x 10 cells."""
    convolution = nn.Conv2d(4, 16, 3), nn.ReLU(), nn.Flatten()
    return nn.Sequential(
        *convolution, nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, ACTIONS)
    )


def nature() -> nn.Sequential:
    """Build the network of Mnih et al. 2015 for pictures of 84 x 84 points."""
    return nn.Sequential(
        *(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, ACTIONS)),
    )


def multiply_adds(network: nn.Module, obs: torch.Tensor) -> float:
    """Return the multiply-adds of one step: forward, and twice that backward."""
    with FlopCounterMode(display=False) as counter:
        network(obs)
    return 3 * counter.get_total_flops() / 2


def step_on(
    device: str, threads: int, make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> Callable[[], object]:
    """Return a function that takes one step of Adam; its loss is the mean square."""
    torch.manual_seed(SEED)
    network, obs = make().to(device), torch.randn(shape).to(device)
    optimizer = torch.optim.Adam(network.parameters(), fused=True)

    def step() -> None:
        torch.set_num_threads(threads)
        optimizer.zero_grad()
        network(obs).square().mean().backward()
        optimizer.step()

    return step


def training_on(device: str, algorithm: str, env: str) -> Callable[[], object]:
    """Return a function that acts and learns for an iteration of an agent."""

    def place(policy: Any, config: Any) -> Any:
        return policy.to(device)

    config = replace(ALGORITHMS[algorithm].settings(env), total_steps=10**9)
    if hasattr(config, "learning_starts"):
        config = replace(config, iteration_steps=100, learning_starts=config.batch_size)
    learner = make_learner(algorithm, env, config, {}, place=place)
    while learner.step < getattr(config, "learning_starts", 0):
        learner.iterate()

    def iterate() -> None:
        torch.set_num_threads(1)
        learner.iterate()

    return iterate


def wall_seconds(function: Callable[[], object], repeats: int) -> float:
    """Return the wall time of one call; a GPU has finished when the clock stops."""
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def cases() -> Iterator[Case]:
    """Yield a case for each network and batch, and one for each agent."""
    sizes: list[tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = []
    for hidden, batches in WIDTHS.items():
        for rows in batches:
            name = f"two layers of {hidden}, {rows} rows"
            sizes.append((name, lambda hidden=hidden: layers(4, hidden), (rows, 4)))
    for rows in PICTURES:
        sizes.append((f"MinAtar, {rows} rows", minatar, (rows, 4, 10, 10)))
        sizes.append((f"Atari, {rows} rows", nature, (rows, 4, 84, 84)))
    places = {"CPU, 1 thread": ("cpu", 1)}
    places["CPU, all threads"] = ("cpu", os.cpu_count() or 1)
    if torch.cuda.is_available():
        places["CUDA"] = ("cuda", 1)
    for name, make, shape in sizes:
        work = multiply_adds(make(), torch.zeros(shape))
        yield Case(
            name=f"{name}, {work:.0e} multiply-adds",
            functions={
                method: step_on(*place, make, shape) for method, place in places.items()
            },
            peer="CPU, 1 thread",
            sample=wall_seconds,
        )
    for algorithm, env in AGENTS.items():
        yield Case(
            name=f"an iteration of {algorithm} on {env}",
            functions={
                method: training_on(device, algorithm, env)
                for method, (device, threads) in places.items()
                if threads == 1
            },
            peer="CPU, 1 thread",
            sample=wall_seconds,
        )
