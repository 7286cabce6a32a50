"""Chaos in calls: every public function of tensors, called with one thing wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).parents[1]


def calls(seed: int, count: int) -> list[dict[str, Any]]:
    """Call functions with what their signatures forbid; each refusal names it."""
    # The functions, and how to call them, are those of a test.
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "docs/_ext")]
    from fuzz import assert_call_held, assert_held
    from test_public_functions import BUILT, FUNCTIONS

    random, rows = Random(seed), []
    share = -(-count // len(FUNCTIONS))
    for name, function in FUNCTIONS.items():
        tried = 0
        while tried < share:
            times, why = 1, ""
            try:
                if name in BUILT:
                    times = assert_call_held(function, BUILT[name](random))
                else:
                    times = assert_held(function, random, runs=1)
            except Exception as error:
                why = f"{name}: {type(error).__name__}: {error}"
            tried += times
            row = {"what": "call with one thing wrong", "times": times}
            rows.append({**row, "held": not why, "why": why})
    return rows
