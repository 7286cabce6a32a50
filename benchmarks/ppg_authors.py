"""What the authors of PPG have published: their runs on the sixteen games of Procgen.

``python -m benchmarks.ppg_authors CLONE`` reads the curves in a clone of
https://github.com/openai/phasic-policy-gradient (MIT licence) at a fixed commit, and
stores them as ``stored_runs`` reads them. Nothing is trained. A score is the mean of
the last 5 % of a game's curve on the game's own scale. There 0 is what an agent gets
that sees nothing, and 1 is the best that is possible.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import numpy as np
from numpy.typing import NDArray

from benchmarks.learning import LEARNING
from benchmarks.store import write_table

COMMIT = "7295473f0185c82f9eb9c1e17a373135edd8aacc"
FOLDER = "phasic_policy_gradient"
# A line of a curve for each iteration: 4 workers, 64 environments each, 256 steps.
STEPS_OF_A_LINE = 4 * 64 * 256
# Their first lines are short episodes only. graph.py of the authors skips them too.
SKIPPED, LAST, BINS = 10, 0.05, 40
COLUMNS = ("variant", "seed", "return", "area", "cpu_seconds")
VARIANTS = {
    "ppg": "PPG",
    "ppo": "PPO",
    "ppgsingle": "PPG, one network",
    "ppgkl": "PPG, KL penalty",
    "e-pi": "E_pi",
    "e-aux": "E_aux",
    "n-pi": "N_pi",
}


def stored(clone: str, path: str) -> str:
    """Return a file of the clone as it was at the commit."""
    command = ["git", "-C", clone, "show", f"{COMMIT}:{FOLDER}/{path}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def game_ranges(clone: str) -> dict[str, tuple[float, float]]:
    """Return what nothing and everything is worth in each game on its hard setting."""
    text = stored(clone, "constants.py").partition("HARD_GAME_RANGES = ")[2]
    ranges: dict[str, tuple[float, float]] = ast.literal_eval(
        text[: text.index("}") + 1]
    )
    return ranges


def normalised(text: str, low: float, high: float) -> NDArray[np.float64]:
    """Return a curve on the game's own scale."""
    values = np.array([float(line) for line in text.split()[1:]])
    curve: NDArray[np.float64] = (values - low) / (high - low)
    return curve


def variant_of(run: str) -> tuple[str, int]:
    """Return the variant of a folder of results, and the number of its run."""
    name, number = re.fullmatch(r"(.+?)-(?:run)?(\d+)", run).groups()  # type: ignore
    if "run" in run:
        return VARIANTS[name], int(number)
    return f"{VARIANTS[name]} {number}", 0


def main() -> None:
    """Read all runs; write their scores and their curves."""
    clone = sys.argv[1]
    ranges = game_ranges(clone)
    # The first two words repeat what was asked for.
    listing = stored(clone, "results/").split()[2:]
    ends, bins = [], []
    for run in sorted(name[:-1] for name in listing if name.endswith("/")):
        curves = np.array(
            [
                normalised(stored(clone, f"results/{run}/progress-{game}.csv"), *limits)
                for game, limits in ranges.items()
            ]
        )
        mean, last = curves.mean(0), round(LAST * curves.shape[1])
        scores = curves[:, -last:].mean(1)
        variant = variant_of(run)
        area = mean[SKIPPED:].mean()
        ends.append((*variant, scores.mean(), area, "nan", *map(float, scores)))
        lines = np.arange(SKIPPED, len(mean))
        for part in np.array_split(lines, BINS):
            step = (part[-1] + 1) * STEPS_OF_A_LINE
            bins.append((*variant, int(step), float(mean[part].mean())))
    provenance = {
        "command": "python -m benchmarks.ppg_authors CLONE",
        "source": "https://github.com/openai/phasic-policy-gradient (MIT licence)",
        "commit": COMMIT,
        "return": "mean over the games of the last 5 % of EpRewMean, on the scale of "
        "HARD_GAME_RANGES in constants.py",
    }
    write_table(LEARNING / "ppg_authors.csv", (*COLUMNS, *ranges), ends, provenance)
    head = ("variant", "seed", "step", "return")
    write_table(LEARNING / "ppg_authors_curves.csv", head, bins, provenance)


if __name__ == "__main__":
    main()
