"""What the authors of PPG have published: their runs on the sixteen games of Procgen.

``python -m benchmarks.ppg_authors CLONE`` reads the curves from a clone of
https://github.com/openai/phasic-policy-gradient (MIT licence) at a fixed commit. Nothing is
trained. A score is the mean of the last 5 % of a curve, on the game's own scale, on which
0 is what an agent gets that sees nothing and 1 is the best that is possible.
"""

from __future__ import annotations

import ast
import subprocess
import sys

import numpy as np

from benchmarks.store import RESULTS, write_table

COMMIT = "7295473f0185c82f9eb9c1e17a373135edd8aacc"
FOLDER = "phasic_policy_gradient"
LAST = 0.05


def stored(clone: str, path: str) -> str:
    """Return a file of the clone as it was at the commit."""
    command = ["git", "-C", clone, "show", f"{COMMIT}:{FOLDER}/{path}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def game_ranges(clone: str) -> dict[str, list[float]]:
    """Return what nothing and everything is worth in each game on its hard setting."""
    for node in ast.parse(stored(clone, "constants.py")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == (
            "HARD_GAME_RANGES"
        ):
            ranges: dict[str, list[float]] = ast.literal_eval(node.value)
            return ranges
    raise ValueError(f"{clone} must hold the ranges of the games, found none")


def score(text: str, low: float, high: float) -> float:
    """Return the normalised mean of the last part of a curve."""
    values = np.array([float(line) for line in text.split()[1:]])
    values = values[np.isfinite(values)]
    return float((values[-round(LAST * len(values)) :].mean() - low) / (high - low))


def main() -> None:
    """Read all runs and write one row for each run and game."""
    clone = sys.argv[1]
    ranges = game_ranges(clone)
    # The first two words repeat what was asked for.
    listing = stored(clone, "results/").split()[2:]
    runs = sorted(name.rstrip("/") for name in listing if name.endswith("/"))
    rows = [
        (run, game, score(stored(clone, f"results/{run}/progress-{game}.csv"), *ends))
        for run in runs
        for game, ends in ranges.items()
    ]
    provenance = {
        "command": "python -m benchmarks.ppg_authors CLONE",
        "source": "https://github.com/openai/phasic-policy-gradient (MIT licence)",
        "commit": COMMIT,
        "score": "mean of the last 5 % of EpRewMean, (mean - low) / (high - low) with "
        "HARD_GAME_RANGES of constants.py",
    }
    write_table(RESULTS / "ppg_authors.csv", ("run", "game", "score"), rows, provenance)


if __name__ == "__main__":
    main()
