"""Results: show what the benchmarks stored, as tables with bars."""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from tangle import ROOT

sys.path.insert(0, str(ROOT))
from benchmarks.store import RESULTS, Row, read_results, read_table

logger = logging.getLogger(__name__)


class Benchmark(SphinxDirective):
    """``{benchmark} name``: the stored rows of a benchmark and their origin."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Build the table, or warn that nothing was measured."""
        path: Path = RESULTS / f"{self.arguments[0]}.csv"
        self.env.note_dependency(str(path))
        if not path.exists():
            logger.warning(
                "no data for %s: run `make bench`",
                self.arguments[0],
                location=self.get_location(),
            )
            return []
        rows, provenance = read_results(path)
        return [nodes.raw("", table(rows) + measured(provenance), format="html")]


class Chaos(SphinxDirective):
    """``{chaos}``: what was tried, how often it held, and what gave way."""

    def run(self) -> list[nodes.Node]:
        """Build the table."""
        path = RESULTS / "chaos.csv"
        self.env.note_dependency(str(path))
        rows, provenance = read_table(path)
        dates = sorted({row["date"] for row in rows})
        provenance["date"] = " to ".join(dict.fromkeys((dates[0], dates[-1])))
        provenance["cpu"] = " and ".join(sorted({row["cpu"] for row in rows}))
        html = chaos_table(rows) + measured(provenance)
        return [nodes.raw("", html, format="html")]


def chaos_table(rows: list[dict[str, str]]) -> str:
    """Return the rows as an HTML table."""
    body = ""
    for row in rows:
        cells = (f"{int(row['times']):,}", f"{int(row['held']):,}", row["why"])
        body += f'<tr><th scope="row">{escape(row["what"])}</th>'
        body += "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
    return html_table(("what was tried", "how often", "held", "what gave way"), body)


def html_table(columns: tuple[str, ...], body: str) -> str:
    """Return a table with a head."""
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    return (
        '<div class="results" tabindex="0"><table class="docutils"><thead><tr>'
        f"{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def measured(provenance: dict[str, str]) -> str:
    """Return how something was measured, folded."""
    lines = "".join(
        f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>"
        for key, value in provenance.items()
    )
    what = escape(provenance.get("env", "this"))
    summary = f"<summary>How {what} was measured</summary>"
    return f'<details class="provenance">{summary}<dl>{lines}</dl></details>'


def microseconds(row: Row) -> str:
    """Return a time with three digits, or all that stand before the point."""
    time = row.microseconds
    return f"{time:,.0f}" if time >= 100 else f"{time:.3g}"


def table(rows: list[Row]) -> str:
    """Return the rows as an HTML table, grouped by case."""
    longest = max(row.ratio for row in rows)
    body, case = "", None
    for row in rows:
        if row.case != case:
            case = row.case
            body += f'<tr><th colspan="4" scope="rowgroup">{escape(case)}</th></tr>'
        width = 100 * row.ratio / longest
        body += (
            f'<tr><th scope="row">{escape(row.method)}</th>'
            f'<td class="speed"><span class="bar" style="width:{width:.1f}%"></span>'
            f"{row.ratio:.3g} <small>({row.ratio_q1:.3g} to {row.ratio_q3:.3g})</small>"
            f"</td><td>{microseconds(row)} µs</td><td>{goal(row)}</td></tr>"
        )
    columns = ("method", "times as fast as the peer", "time", "goal")
    return html_table(columns, body)


def goal(row: Row) -> str:
    """Say what was to be reached, and whether it was."""
    if row.at_least is not None:
        wanted = f"at least {row.at_least:g}"
    elif row.at_most is not None:
        wanted = f"at most {row.at_most:,.0f} µs"
    else:
        return ""
    return f"{wanted}: {'reached' if row.reached else '<strong>missed</strong>'}"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("benchmark", Benchmark)
    app.add_directive("chaos", Chaos)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
