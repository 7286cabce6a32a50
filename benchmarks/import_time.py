"""What importing the package costs on top of torch, in fresh interpreters."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

from benchmarks.harness import Case, Goal

ROUNDS = 11

# What each interpreter imports first, and what is then measured.
IMPORTS = {
    "import torch": ("", "import torch"),
    "import literate_rl, after torch": ("import torch", "import literate_rl"),
    "and every public name": (
        "import torch",
        "import literate_rl as l; [getattr(l, name) for name in l.__all__]",
    ),
}
ALLOWANCE = 50_000.0  # microseconds


def run(before: str, code: str) -> float:
    """Return the CPU seconds of code in a fresh interpreter."""
    clock = "import time; start = time.process_time()"
    script = "\n".join([before, clock, code, "print(time.process_time() - start)"])
    command = [sys.executable, "-W", "ignore", "-c", script]
    return float(subprocess.run(command, check=True, capture_output=True).stdout)


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
        goals={"import literate_rl, after torch": Goal(at_most=ALLOWANCE)},
        sample=own_clock,
        shortest=0.0,
    )
