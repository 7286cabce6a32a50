"""What importing the package costs on top of torch, in fresh interpreters."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator

from benchmarks.harness import Case, Goal

ROUNDS = 11
IMPORTS = {
    "import torch": "import torch",
    "import torch, literate_rl": "import torch, literate_rl",
    "and every public name": (
        "import torch, literate_rl as l; [getattr(l, name) for name in l.__all__]"
    ),
}
ALLOWANCE = 50_000.0  # microseconds


def run(code: str) -> None:
    """Run code in a fresh interpreter."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def children_seconds(function: Callable[[], object], repeats: int) -> float:
    """Return the CPU time of the processes that a call starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(repeats):
        function()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used / repeats


def cases() -> Iterator[Case]:
    """Yield one case of whole interpreters."""
    yield Case(
        name="fresh interpreter",
        functions={name: lambda code=code: run(code) for name, code in IMPORTS.items()},
        peer="import torch",
        goals={"import torch, literate_rl": Goal(more_than_peer=ALLOWANCE)},
        sample=children_seconds,
    )
