"""Run the benchmarks: ``python -m benchmarks [NAME …] [--quick]``.

Each one asserts that all methods agree, measures them in turns, prints a table and
stores the data that the results page shows. ``--quick`` runs everything once and stores
nothing.
"""

from __future__ import annotations

import argparse
from importlib import import_module

from benchmarks.harness import measure, provenance, summarise
from benchmarks.store import RESULTS, Row, write_results

NAMES = (
    "advantages",
    "ppo_error",
    "hybrid",
    "ppg_aux",
    "vtrace",
    "actors",
    "apex",
    "replay",
    "container",
    "import_time",
    "signatures",
    "c51_projection",
)
# These need peers from an environment of their own, which ppo_loop.py describes.
PEER_NAMES = (
    "ppo_loop",
    "pong_loop",
    "dqn_loop",
    "td3_loop",
    "sac_loop",
    "advantages_torchrl",
    "vtrace_torchrl",
    "actors_ray",
)

# This one needs a GPU; elsewhere it measures the CPU alone.
GPU_NAMES = ("devices",)


def describe(row: Row) -> str:
    """Return one line of the table: the ratio first, then the goal and the verdict."""
    if row.at_least is not None:
        goal = f"goal: {row.at_least:g} times as fast"
    elif row.at_most is not None:
        goal = f"goal: at most {row.at_most:g} µs"
    else:
        goal = ""
    verdict = {None: "", True: "reached", False: "MISSED"}[row.reached]
    return (
        f"  {row.method:32s}{row.ratio:7.2f} x {row.microseconds:11.1f} µs  "
        f"{goal}  {verdict}".rstrip()
    )


def run(name: str, quick: bool) -> list[Row]:
    """Run one benchmark; print its table and, unless it is quick, store it."""
    module = import_module(f"benchmarks.{name}")
    rounds = 1 if quick else module.ROUNDS
    print(f"\n{module.__doc__.strip()}")
    rows: list[Row] = []
    for case in module.cases():
        print(f"{case.name}, {rounds} rounds; times as fast as {case.peer}:")
        rows += summarise(case, measure(case, rounds))
        print("\n".join(map(describe, rows[-len(case.functions) :])))
    if not quick:
        packages = getattr(module, "PACKAGES", ())
        origin = provenance(f"python -m benchmarks {name}", *packages)
        write_results(RESULTS / f"{name}.csv", rows, origin)
    return rows


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="run once, store nothing")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in NAMES + PEER_NAMES + GPU_NAMES:
            known = ", ".join(NAMES + PEER_NAMES + GPU_NAMES)
            parser.error(f"no benchmark {name!r}, choose from {known}")
    for name in arguments.names:
        run(name, arguments.quick)


if __name__ == "__main__":
    main()
