"""Faults: would the tests notice if a page, a command or the file of a run were wrong?

``chaos_mutants`` changes formulas. What no formula says is here: a list of faults put
in by hand, each a text of a file and what stands in its place. A dead link, a lost
option, a checkpoint half written: a reader or a user would mind each of them.

``python -m benchmarks.faults [NAME ...] [--all FILE ...]`` puts each fault of
``results/faults.csv`` into a copy of the project. It runs the test that found it when
the list was made, then the other tests of its file, then the files behind ``--all``,
and says of each fault: found, and by which test; lived; out of time; or the text is
gone. Faults of the website are put into what ``make html`` has built.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.chaos_mutants import PATIENCE, ROOT
from benchmarks.store import RESULTS, read_table

LIST = RESULTS / "faults.csv"
SITE, SLOW = "build/html", "out of time"
# What a copy does without. Of what was built it has the website.
LEFT_OUT = [".git", ".venv", "build", "dist", "runs"]
# As pytest names a test that failed, or a file that it could not read.
FAILED = re.compile(r"^(?:FAILED|ERROR) tests/(.+?)(?: - .*)?$", re.MULTILINE)


class Fault(NamedTuple):
    """A fault put in by hand.

    Attributes:
        name: What is wrong, in a few words.
        file: Where it is put in, below the folder of the project.
        before: A text that stands there once.
        after: What takes its place.
        killed_by: The test that found it.
    """

    name: str
    file: str
    before: str
    after: str
    killed_by: str


def copied(folder: str) -> Path:
    """Copy the project, with the website if it was built; return where it is."""
    project, at_the_top = Path(folder) / "project", {str(ROOT): LEFT_OUT}
    shutil.copytree(ROOT, project, ignore=lambda place, _: at_the_top.get(place, []))
    if (ROOT / SITE).exists():
        shutil.copytree(ROOT / SITE, project / SITE)
    return project


def first_failure(project: Path, tests: Sequence[str]) -> str:
    """Return the first test that fails in a copy of the project, or ''."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    paths = os.pathsep.join(map(str, (project / "src", project)))
    ours = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "REQUIRE_BROWSER": "1"}
    # The file that opens the website takes as long as all others together.
    patience = PATIENCE if "::" in tests[0] else 20 * PATIENCE
    try:
        ended = subprocess.run(
            [*command, *(f"tests/{test}" for test in tests)],
            cwd=project,
            env=os.environ | ours,
            capture_output=True,
            text=True,
            timeout=patience * len(tests),
        )
    except subprocess.TimeoutExpired:
        return SLOW
    found = FAILED.search(ended.stdout)
    return found[1] if found else ""


def killer_of(fault: Fault, project: Path, files: Sequence[str] = ()) -> str | None:
    """Put a fault in, run tests, and put the text back.

    Returns:
        The test that found it, '' if it lived, or None if its text is gone.
    """
    path = project / fault.file
    text = path.read_text("utf-8") if path.exists() else ""
    if text.count(fault.before) != 1:
        return None
    path.write_text(text.replace(fault.before, fault.after), "utf-8")
    try:
        tests = (fault.killed_by, fault.killed_by.partition("::")[0], *files)
        return next(filter(None, (first_failure(project, [x]) for x in tests)), "")
    finally:
        path.write_text(text, "utf-8")


def main() -> None:
    """Print what becomes of each fault, then how many were found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults")
    parser.add_argument("names", nargs="*", help="faults of the list; none for all")
    parser.add_argument("--all", nargs="+", default=[], help="more files of tests")
    asked = parser.parse_args()
    files = [Path(file).name for file in asked.all]
    ends: Counter[str] = Counter()
    killers: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        project = copied(folder)
        for fault in (Fault(**row) for row in read_table(LIST)[0]):
            if asked.names and fault.name not in asked.names:
                continue
            killer = killer_of(fault, project, files)
            end = "gone" if killer is None else "found" if killer else "lived"
            # A busy machine is no test: run it again alone.
            end = killer if killer == SLOW else end
            ends[end] += 1
            killers |= {killer} if killer and "::" in killer else set()
            print(f"{end}: {fault.name} ({killer or fault.file})", flush=True)
        print(dict(ends))
        if killers and (failure := first_failure(project, sorted(killers))):
            raise RuntimeError(f"fails without a fault: {failure}")


if __name__ == "__main__":
    main()
