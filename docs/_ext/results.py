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
REASONS = ("kind", "numbers", "shape", "bounds", "mask")  # sections of the page


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
        how = measured(provenance, on=provenance["cpu"])
        return [nodes.raw("", table(rows) + how, format="html")]


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


class Spaces(SphinxDirective):
    """``{spaces} actions``: which agents train there, and why the others do not.

    Likewise ``observations``, and ``exceptions`` for pairs that are no product.
    """

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Build the table."""
        from benchmarks import spaces  # imports PyTorch, which few pages need

        self.env.note_dependency(str(spaces.PATH))
        html = spaces_table(spaces, self.arguments[0])
        if self.arguments[0] == "exceptions":
            html += measured(read_table(spaces.PATH)[1])
        return [nodes.raw("", html, format="html")]


def spaces_table(spaces: Any, axis: str) -> str:
    """Return the outcomes along an axis of the stored product as an HTML table."""
    stored = spaces.stored()

    def usual(name: str, seen: str = "", done: str = "") -> str:
        seen = seen or spaces.USUAL_OBSERVATION
        return str(stored[name, seen, done or spaces.USUAL_ACTION[name]])

    if axis == "exceptions":
        found: dict[tuple[str, ...], list[str]] = {}
        for (name, seen, done), outcome in stored.items():
            alone = {usual(name, seen=seen), usual(name, done=done)}
            if (outcome == spaces.TRAINS) != (alone == {spaces.TRAINS}):
                found.setdefault((seen, done, outcome), []).append(title_of(name))
        rows = [(", ".join(names), *pair) for pair, names in found.items()]
        return html_table(
            ("agents", "observation", "action", "outcome"),
            "".join(f"<tr>{''.join(map(cell_of, row))}</tr>" for row in rows),
        )

    seen = axis == "observations"
    word, kinds = ("seen", spaces.SEEN) if seen else ("done", spaces.DONE)
    # Agents with the same outcomes share a column.
    columns: dict[tuple[str, ...], list[str]] = {}
    for name in spaces.ALGORITHMS:
        outcomes = tuple(usual(name, **{word: kind}) for kind in kinds)
        columns.setdefault(outcomes, []).append(title_of(name))
    body = ""
    for (kind, space), *row in zip(kinds.items(), *columns, strict=True):
        described = " ".join(str(space).split())
        body += f'<tr><th scope="row">{escape(kind)}</th>'
        # On a phone what does not fit is at the end.
        body += "".join(map(cell_of, row))
        body += f"<td><code>{escape(described[:110])}</code></td></tr>"
    heads = [", ".join(names) for names in columns.values()]
    heads = heads if len(heads) > 1 else ["every agent"]
    return html_table(("kind", *heads, "space"), body)


def title_of(name: str) -> str:
    """Return the name of an agent as prose has it."""
    title = name.upper().replace("RAINBOW", "Rainbow")
    return title.replace("PER", "Per").replace("APEX", "Apex")


def cell_of(words: str) -> str:
    """Return a cell; a reason leads to what it means."""
    reason = f'<a href="#{words}">{words}</a>' if words in REASONS else escape(words)
    return f"<td>{reason}</td>"


def html_table(columns: tuple[str, ...], body: str) -> str:
    """Return a table with a head."""
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    return (
        '<div class="results" tabindex="0"><table class="docutils"><thead><tr>'
        f"{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def measured(provenance: dict[str, str], on: str = "") -> str:
    """Return how something was measured, and perhaps on what, folded."""
    lines = "".join(
        f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>"
        for key, value in provenance.items()
    )
    what = escape(provenance.get("env", "this"))
    where = f", on {escape(on)}" if on else ""
    summary = f"<summary>How {what} was measured{where}</summary>"
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
    app.add_directive("spaces", Spaces)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
