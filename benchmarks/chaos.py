"""What gives way? ``python -m benchmarks.chaos [--only KIND] [--count N] [--seed N]``.

Trainings are killed, interrupted, damaged and tampered with, and functions are called
with everything but what they ask for, at random, with a seed. The table says what was
tried, how often, how often it held, and what gave way.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, NamedTuple

from benchmarks.harness import cpu_model, provenance
from benchmarks.store import RESULTS, read_table, write_table

RESULT = RESULTS / "chaos.csv"
COLUMNS = ("kind", "what", "times", "held", "why", "seed", "date", "cpu")


class Kind(NamedTuple):
    """A kind of trial.

    Attributes:
        module: Where its function is, ``(seed, count)`` to rows.
        function: Its name.
        count: How often it is tried.
    """

    module: str
    function: str
    count: int


KINDS = {
    "kills": Kind("chaos_runs", "kills", 250),
    "interrupts": Kind("chaos_runs", "interrupts", 50),
    "bits": Kind("chaos_runs", "bits", 1000),
    "settings": Kind("chaos_runs", "settings", 114),
    "folders": Kind("chaos_runs", "folders", 114),
    "disk": Kind("chaos_runs", "disk", 57),
    "worlds": Kind("chaos_runs", "worlds", 247),
    "calls": Kind("chaos_calls", "calls", 20_000),
    "actors": Kind("chaos_actors", "trials", 150),
    "mutants": Kind("chaos_mutants", "trials", 200),
    "chapters": Kind("chaos_chapters", "trials", 106),
}


def trials(name: str, seed: int, count: int) -> list[dict[str, Any]]:
    """Return one row for each thing that was tried."""
    kind = KINDS[name]
    module = import_module(f"benchmarks.{kind.module}")
    rows = getattr(module, kind.function)(seed, count)
    return [alike(row) for row in rows]


def alike(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of any kind as what, times, held and why."""
    if "killed_by" in row:  # a mutant of a formula, which a test has noticed or not
        place, killer = f"{row['file']}:{row['line']}", row["killed_by"]
        held = "::" in killer or killer == "out of time"  # of an endless loop
        why = f"{place} {row['change']}"
        return {"what": "wrong formula, noticed by a test", "held": held, "why": why}
    if "done" in row:  # something that was done to actors
        what = f"actor, {row['done'].split(',')[0]}"
        return {"what": what, "held": row["held"], "why": str(row["came"])}
    return row


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each thing that was tried: how often, and how often it held."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        times, held = row.get("times", 1), row["held"]
        entry = found.setdefault(row["what"], {"times": 0, "held": 0, "why": []})
        entry["times"] += times
        entry["held"] += times * held
        if not held and row["why"] not in entry["why"]:
            entry["why"].append(row["why"])
    return [
        {"what": what, **row, "why": " · ".join(row["why"][:5])}
        for what, row in found.items()
    ]


def store(name: str, rows: list[dict[str, Any]], seed: int) -> None:
    """Put the rows of one kind into the stored table, instead of its old ones."""
    date = datetime.now(UTC).date().isoformat()
    own = {"kind": name, "seed": seed, "date": date, "cpu": cpu_model()}
    new = [own | row for row in rows]
    old = read_table(RESULT)[0] if RESULT.exists() else []
    table = {k: [row for row in old if row["kind"] == k] for k in KINDS} | {name: new}
    cells = [[row[c] for c in COLUMNS] for part in table.values() for row in part]
    origin = provenance("python -m benchmarks.chaos")
    for column in ("seed", "date", "cpu"):  # a row has its own
        del origin[column]
    write_table(RESULT, COLUMNS, cells, origin)


def main() -> None:
    """Read the command line, try everything and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos")
    parser.add_argument("--only", action="append", choices=KINDS, help="this kind")
    parser.add_argument("--count", type=int, help="how often; then nothing is stored")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for name in arguments.only or KINDS:
        rows = summary(trials(name, arguments.seed, arguments.count or KINDS[name][2]))
        for row in rows:
            line = f"{name:10} {row['what']:36} {row['held']:6} of {row['times']:6}"
            print(f"{line}  {row['why']}".rstrip(), flush=True)
        if arguments.count is None:
            store(name, rows, arguments.seed)


if __name__ == "__main__":
    main()
