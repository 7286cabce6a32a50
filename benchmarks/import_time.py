"""What importing the package costs on top of torch, in fresh interpreters."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

from benchmarks.harness import Case, Goal

ROUNDS = 11

# What each interpreter imports first, and what is then measured.
IMPORTS = {
    "import torch": ("", "import torch"),
    "import literate_rl, after torch": ("import torch", "import literate_rl"),
    "import literate_rl.ppo, after torch": (
        "import torch",
        "import literate_rl.learners.ppo",
    ),
    "and every public name": (
        "import torch",
        "import literate_rl as l; [getattr(l, name) for name in l.__all__]",
    ),
}
# What they may take, in microseconds.
GOALS = {
    "import literate_rl, after torch": Goal(at_most=50_000.0),
    "import literate_rl.ppo, after torch": Goal(at_most=100_000.0),
}


def run(before: str, code: str) -> float:
    """Return the CPU seconds of code in a fresh interpreter."""
    clock = "import time; start = time.process_time()"
    script = "\n".join([before, clock, code, "print(time.process_time() - start)"])
    command = [sys.executable, "-W", "ignore", "-c", script]
    # As for a user, whose interpreter keeps what it compiled.
    keeps = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, check=True, capture_output=True, env=keeps)
    return float(done.stdout)


def own_clock(function: Callable[[], object], repeats: int) -> float:
    """Return the mean of what the interpreters read on their own clocks."""
    return sum(float(str(function())) for _ in range(repeats)) / repeats


def cases() -> Iterator[Case]:
    """Yield one case of fresh interpreters."""
    yield Case(
        name="fresh interpreter",
        functions={
            name: lambda before=before, code=code: run(before, code)
            for name, (before, code) in IMPORTS.items()
        },
        peer="import torch",
        goals=GOALS,
        sample=own_clock,
        shortest=0.0,
    )
