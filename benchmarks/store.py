"""Keep measured figures as small CSV files with their provenance on top."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
NET = Path(__file__).parents[1] / "tests/net.json"


@cache
def nets() -> dict[str, str]:
    """Return by algorithm a hash of what its short trainings come to (tests/net.py).

    It is another one once the algorithm draws or computes other numbers. Metrics, of
    which there may be more without that, are left out.
    """
    mine = defaultdict(dict)
    for case, parts in json.loads(NET.read_text()).items():
        numbers = {x: y for x, y in parts.items() if not x.startswith("metric ")}
        mine[case.partition(",")[0]][case] = numbers
    return {
        name: hashlib.sha256(json.dumps(x).encode()).hexdigest()[:12]
        for name, x in mine.items()
    }


def is_stale(origin: Mapping[str, str]) -> bool:
    """Say whether runs were made before their algorithm computed other numbers.

    Files that are older than these hashes have none, and nothing can be said of them.
    """
    return origin.get("net", "") not in ("", *nets().values())


@dataclass(frozen=True)
class Row:
    """What was measured of one method in one case: medians and quartiles.

    Attributes:
        case: Name of the case.
        method: Name of the method.
        microseconds: Median CPU time of one call.
        time_q1: Lower quartile of that time.
        time_q3: Upper quartile of that time.
        ratio: Median of the peer's time divided by this method's in the same round.
        ratio_q1: Lower quartile of that ratio.
        ratio_q3: Upper quartile of that ratio.
        rounds: Number of samples.
        at_least: Goal for the ratio, or None.
        at_most: Goal for the time in microseconds, or None.
    """

    case: str
    method: str
    microseconds: float
    time_q1: float
    time_q3: float
    ratio: float
    ratio_q1: float
    ratio_q3: float
    rounds: int
    at_least: float | None = None
    at_most: float | None = None

    @property
    def reached(self) -> bool | None:
        """Whether the goal was reached; None without a goal."""
        if self.at_least is not None:
            return self.ratio >= self.at_least
        if self.at_most is not None:
            return self.microseconds <= self.at_most
        return None


def write_results(path: Path, rows: list[Row], provenance: dict[str, str]) -> None:
    """Write figures and provenance; a reader sees the old file or the new one."""
    columns = [field.name for field in fields(Row)]
    write_table(path, columns, [list(asdict(row).values()) for row in rows], provenance)


def write_table(
    path: Path,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    provenance: dict[str, str],
) -> None:
    """Write a table of any columns; a reader sees the old file or the new one."""
    text = io.StringIO()
    for key, value in provenance.items():
        text.write(f"# {key}: {value}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(map(show, row))
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(text.getvalue(), "utf-8")
    os.replace(new, path)


def show(value: object) -> str:
    """Write four digits of a measured number: more would only be noise."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def read_results(path: Path) -> tuple[list[Row], dict[str, str]]:
    """Read what ``write_results`` wrote.

    Raises:
        FileNotFoundError: If nothing was measured yet.
    """
    table, provenance = read_table(path)
    rows = []
    for entry in table:
        rounds = int(entry.pop("rounds"))
        case, method = entry.pop("case"), entry.pop("method")
        numbers = {key: float(value) if value else None for key, value in entry.items()}
        rows.append(Row(case=case, method=method, rounds=rounds, **numbers))
    return rows, provenance


def read_table(path: Path) -> tuple[list[dict[str, str]], dict[str, str]]:
    """Read what ``write_table`` wrote: rows by the name of the column.

    Raises:
        FileNotFoundError: If nothing was measured yet.
    """
    lines = path.read_text("utf-8").splitlines()
    head = [line for line in lines if line.startswith("#")]
    provenance = dict(line.removeprefix("# ").split(": ", 1) for line in head)
    return list(csv.DictReader(lines[len(head) :])), provenance
