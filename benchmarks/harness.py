"""Measure functions against each other fairly.

What is measured is process CPU time on one thread: wall time on a shared machine says
more about the neighbours than about the code. All methods of a case take turns, so that
a slow minute hits each of them, and what is compared is the ratio of samples from the
same round.
"""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import quantiles

import torch
from threadpoolctl import threadpool_limits

from benchmarks.store import Row

SEED = 0

# A sample lasts at least this long, in seconds, so that the clock and the loop around
# the function cost next to nothing of it.
SHORTEST_SAMPLE = 0.02


def cpu_seconds(function: Callable[[], object], repeats: int) -> float:
    """Return the CPU time of one call, from a sample without garbage collection."""
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        for _ in range(repeats):
            function()
        return (time.process_time() - start) / repeats
    finally:
        gc.enable()


@dataclass(frozen=True)
class Goal:
    """What a method must reach; one of the two is set.

    Attributes:
        at_least: Times as fast as the peer.
        at_most: Microseconds of CPU time.
    """

    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class Case:
    """Functions that do the same work, and what is expected of them.

    Attributes:
        name: What sets this case apart from the others of its benchmark.
        functions: What to measure, by the name of the method.
        peer: The method that the ratios refer to.
        goals: Goals by the name of the method.
        sample: Returns the seconds of one call, the mean of a number of repeats.
        shortest: What a sample lasts at least, in seconds.
    """

    name: str
    functions: dict[str, Callable[[], object]]
    peer: str
    goals: dict[str, Goal] = field(default_factory=dict)
    sample: Callable[[Callable[[], object], int], float] = cpu_seconds
    shortest: float = SHORTEST_SAMPLE


def calibrate(case: Case, method: str) -> int:
    """Warm a method up; return how many calls make a sample that is long enough."""
    repeats = 1
    while case.sample(case.functions[method], repeats) * repeats < case.shortest:
        repeats *= 2
    return repeats


def measure(case: Case, rounds: int) -> dict[str, list[float]]:
    """Return the samples of each method, in seconds a call.

    Each round starts with another method, because the first one of a round finds the
    caches as the last one left them.
    """
    torch.set_num_threads(1)
    threadpool_limits(1)
    # What lives already is not looked through again before each sample.
    gc.collect()
    gc.freeze()
    methods = list(case.functions)
    # A single round only shows that all of them run, however short and cold.
    repeats = {name: calibrate(case, name) if rounds > 1 else 1 for name in methods}
    samples: dict[str, list[float]] = {method: [] for method in methods}
    for turn in range(rounds):
        first = turn % len(methods)
        for method in methods[first:] + methods[:first]:
            function = case.functions[method]
            samples[method].append(case.sample(function, repeats[method]))
    gc.unfreeze()
    return samples


def summarise(case: Case, samples: dict[str, list[float]]) -> list[Row]:
    """Reduce the samples of a case to medians and quartiles, one row a method."""
    rows = []
    for method, times in samples.items():
        pairs = list(zip(samples[case.peer], times, strict=True))
        ratio_q1, ratio, ratio_q3 = quartiles([peer / own for peer, own in pairs])
        time_q1, middle, time_q3 = quartiles([1e6 * seconds for seconds in times])
        goal = case.goals.get(method, Goal())
        rows.append(
            Row(
                case=case.name,
                method=method,
                microseconds=middle,
                time_q1=time_q1,
                time_q3=time_q3,
                ratio=ratio,
                ratio_q1=ratio_q1,
                ratio_q3=ratio_q3,
                rounds=len(times),
                at_least=goal.at_least,
                at_most=goal.at_most,
            )
        )
    return rows


def quartiles(values: list[float]) -> list[float]:
    """Return the lower quartile, the median and the upper quartile."""
    return quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


def provenance(command: str, *packages: str) -> dict[str, str]:
    """Return what made the figures: enough to repeat them.

    Args:
        command: The command that was run.
        packages: Packages that took part, besides torch and NumPy.
    """
    return {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy", *packages)},
        "cpu": cpu_model(),
        "cores": str(os.cpu_count()),
        **gpu_model(),
        "threads": "1",
        "seed": str(SEED),
    }


def cpu_model() -> str:
    """Return the processor's name for itself, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(": ", 1)[1] for line in lines if line.startswith("model name")]
    return names[0].strip() if names else platform.machine()


def gpu_model() -> dict[str, str]:
    """Return the name of the GPU and the version of its driver, if there is one."""
    if not torch.cuda.is_available():
        return {}
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    told = subprocess.run(query, check=True, capture_output=True, text=True).stdout
    return {"gpu": told.splitlines()[0], "cuda": str(torch.version.cuda)}
