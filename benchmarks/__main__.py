"""Run the benchmarks: ``python -m benchmarks [NAME …] [--quick]``.

``peers`` in place of names runs all that need other libraries (``make peers``).

Each one asserts that all methods agree, measures them in turns, prints a table and
stores the data that the results page shows. ``--quick`` runs everything once and stores
nothing.

``python -m benchmarks learn NAME …`` repeats stored training runs from their first
seed, whichever module made them; ``--list`` names them, each with its command. The new
runs replace the stored ones, so that ``git diff`` compares the two. ``--quick`` trains
for a moment and stores nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib import import_module

from benchmarks.harness import measure, provenance, summarise
from benchmarks.store import RESULTS, Row, read_table, write_results

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
# These need other libraries, from the environment that `make peers` makes.
PEER_NAMES = (
    "ppo_loop",
    "pong_loop",
    "dqn_loop",
    "td3_loop",
    "sac_loop",
    "recurrent_loop",
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


def learning_commands() -> dict[str, str]:
    """Return the command that made each stored experiment, by the experiment's name."""
    commands = {}
    for path in sorted((RESULTS / "learning").glob("*.csv")):
        command = read_table(path)[1]["command"]
        # Not the curves beside the runs, nor what other authors ran.
        if path.stem.endswith(command.split()[-1]):
            commands[path.stem] = command
    return commands


def learn(arguments: list[str]) -> None:
    """Repeat stored training runs."""
    commands = learning_commands()
    parser = argparse.ArgumentParser(prog="python -m benchmarks learn")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="name what is stored")
    parser.add_argument("--quick", action="store_true", help="run a moment of each")
    asked = parser.parse_args(arguments)
    if asked.list or not asked.names:
        print("\n".join(f"{name:24s}{made}" for name, made in commands.items()))
    for name in asked.names:
        if name not in commands:
            parser.error(f"no stored runs of {name!r}: --list names what there is")
    for name in asked.names:
        how = "--quick" if asked.quick else "--again"
        command = [sys.executable, *commands[name].split()[1:], how]
        subprocess.run(command, check=True)


def main() -> None:
    """Read the command line and run."""
    if sys.argv[1:2] == ["learn"]:
        learn(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="run once, store nothing")
    arguments = parser.parse_args()
    if arguments.names == ["peers"]:
        arguments.names = PEER_NAMES
    for name in arguments.names:
        if name not in NAMES + PEER_NAMES + GPU_NAMES:
            known = ", ".join(NAMES + PEER_NAMES + GPU_NAMES)
            parser.error(f"no benchmark {name!r}, choose from {known}")
    for name in arguments.names:
        run(name, arguments.quick)


if __name__ == "__main__":
    main()
