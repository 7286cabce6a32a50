"""What the pages train while they run, once more with twenty other seeds.

A page that trains an agent asserts a bound, and another processor rounds another way:
then the run is another one, as with another seed. So ``python -m benchmarks.live
[PAGE …]`` runs each page of ``LIVE`` up to its bound with other seeds and stores the
number that the bound is about in ``results/learning/live.csv``, where a test holds them
to it. A stopped run goes on.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from types import ModuleType

import matplotlib as mpl

from benchmarks.harness import provenance
from benchmarks.learning import LEARNING
from benchmarks.store import read_table, write_table

CHAPTERS = Path(__file__).parents[1] / "chapters"
FILE = LEARNING / "live.csv"
COLUMNS = ("page", "seed", "number")
SEEDS = range(1, 21)
# Number and bound by page, as its cell of claims says them.
LIVE = {
    "contracts": ('trained["fixed"][-20:].mean()', "> 0.9"),
    "hybrid_ppo": ("returns.mean()", "> 1"),
    "ppo": ("pendulum_returns.mean()", "> -600"),
}
NAMED = re.compile(r"((?:seed=|seed\": |_seed\(|seed_everything\(|default_rng\())(\d+)")


def run(page: str, seed: int) -> float:
    """Run a page up to its bound with other seeds, and return the number."""
    number, bound = LIVE[page]
    # A module of its own, because annotations are looked up in one.
    sys.modules["live"] = ModuleType("live")
    names = vars(sys.modules["live"])
    text = (CHAPTERS / f"{page}.py").read_text("utf-8")
    for cell in text.split("\n# %%")[1:]:
        head, _, code = cell.partition("\n")
        if f"assert {number} {bound}" in code:
            return float(eval(number, names))
        if "[markdown]" not in head and '"claims"' not in head:
            code = NAMED.sub(lambda x: f"{x[1]}{int(x[2]) + 100 * seed}", code)
            exec(compile(code, page, "exec"), names)
    raise ValueError(f"{page} does not say: assert {number} {bound}")


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live")
    parser.add_argument("pages", nargs="*", default=list(LIVE), metavar="PAGE")
    mpl.use("agg")
    rows = [[*row.values()] for row in read_table(FILE)[0]] if FILE.exists() else []
    for page in parser.parse_args().pages:
        for seed in map(str, SEEDS):
            if [page, seed] not in [row[:2] for row in rows]:
                rows.append([page, seed, f"{run(page, int(seed)):.4g}"])
                origin = provenance("python -m benchmarks.live", "gymnasium")
                write_table(FILE, COLUMNS, rows, origin)
                print(*rows[-1], flush=True)


if __name__ == "__main__":
    main()
