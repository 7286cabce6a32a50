"""The programs of the chapters, trained to their end over seeds.

``python -m benchmarks.programs [NAME …]`` runs each program as its file stands, for
its whole number of steps, and stores curves like ``benchmarks.learning`` does, so that
``stored_runs("program_sac")["sac"]`` reads them. The final return is the mean of the
last 20 episodes. A stopped run goes on; a program that was changed starts over.
``--again`` throws away what is stored, ``--quick`` runs a moment of each and stores
nothing.
"""

from __future__ import annotations

import argparse
import io
import time
import tokenize
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import provenance
from benchmarks.learning import CURVE_COLUMNS, LEARNING, binned, paths
from benchmarks.store import read_table, write_table
from literate_rl.apps.programs import STEPS, program_names, program_path, run_program

SEEDS = dict.fromkeys(program_names(), 10) | dict.fromkeys(STEPS, 20)
# Programs with another setting.
CHANGED: dict[str, tuple[str, dict[str, float]]] = {
    "ppo_error_without_clip": ("ppo_error", {"clip_ratio": 1e9}),
}
SEEDS |= dict.fromkeys(CHANGED, 20)
COLUMNS = ("variant", "seed", "return", "area", "cpu_seconds")
UNSEEN = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE)


def fingerprint(path: Path) -> str:
    """Return a digest of a program's code, without comments and line breaks."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline)
    code = " ".join(token.string for token in tokens if token.type not in UNSEEN)
    return sha256("".join(code.split()).encode()).hexdigest()[:16]


def train(name: str, seed: int, total_steps: int | None = None) -> dict[str, Any]:
    """Train a program with one seed; return its environment, curve and numbers."""
    program, settings = CHANGED.get(name, (name, {}))
    start = time.process_time()
    made = run_program(program, seed=seed, total_steps=total_steps, **settings)
    seconds = time.process_time() - start
    history = [
        {"step": step, "charts/episodic_return": value}
        for step, value in made["episodes"]
    ]
    returns = [value for _, value in made["episodes"]]
    return {
        "env": made["env_id"],
        "curve": binned(history, made["total_steps"]),
        "return": float(np.mean(returns[-20:])),
        "area": float(np.mean(returns)),
        "cpu_seconds": seconds,
    }


def run(name: str, seeds: int, folder: Path = LEARNING) -> None:
    """Run the seeds that are missing of a program; store after each."""
    code = fingerprint(program_path(CHANGED.get(name, (name,))[0]))
    curve_path, final_path = paths(f"program_{name}", folder)
    curves, finals = [], []
    if final_path.exists():
        stored, before = read_table(final_path)
        if before["code"] == code:
            curves, finals = read_table(curve_path)[0], stored
    for seed in range(len(finals) + 1, seeds + 1):
        result = train(name, seed)
        head = {"variant": name, "seed": str(seed)}
        for step, value in result["curve"]:
            curves.append(head | {"step": str(step), "return": f"{value:.4g}"})
        numbers = {key: f"{result[key]:.4g}" for key in COLUMNS[2:]}
        finals.append(head | numbers)
        origin = provenance(f"python -m benchmarks.programs {name}", "gymnasium")
        origin |= {"env": result["env"], "code": code, "seeds": f"1 to {seed}"}
        origin.pop("seed")
        for path, columns, table in (
            (curve_path, CURVE_COLUMNS, curves),
            (final_path, COLUMNS, finals),
        ):
            rows = [[row[column] for column in columns] for row in table]
            write_table(path, columns, rows, origin)
        words = ", ".join(f"{key} {value}" for key, value in numbers.items())
        print(f"{name}, seed {seed}: {words}", flush=True)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs")
    parser.add_argument("names", nargs="*", default=[*SEEDS], metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="run a moment of each")
    parser.add_argument("--again", action="store_true", help="drop stored results")
    arguments = parser.parse_args()
    for name in arguments.names:
        if arguments.quick:
            train(name, seed=1, total_steps=2_000)
            continue
        if arguments.again:
            for path in paths(f"program_{name}", LEARNING):
                path.unlink(missing_ok=True)
        run(name, SEEDS[name])


if __name__ == "__main__":
    main()
