"""Processes that tests start."""

from __future__ import annotations

import subprocess
from typing import Any


class Child(subprocess.Popen[Any]):
    """A process that ends when its test fails.

    ``with subprocess.Popen(...)`` waits for the process even then. One that trains for
    ever, and is killed in the last line of the block, would keep the tests from ending.
    """

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, trace)
