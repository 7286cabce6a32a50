"""Curves: show training runs that the benchmarks stored, with their intervals."""

from __future__ import annotations

import base64
import io
import sys
from html import escape
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import matplotlib
import numpy as np
from docutils import nodes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from tangle import ROOT
from traitlets.config.loader import PyFileConfigLoader

sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "src"))
from benchmarks.store import RESULTS, read_table
from literate_rl.runs import bootstrap_interval

logger = logging.getLogger(__name__)
LEARNING = RESULTS / "learning"
Table = list[dict[str, str]]


class Stored(SphinxDirective):
    """What the directives here share: they read files and name their origin."""

    required_arguments = 1
    final_argument_whitespace = True

    def tables(self, *paths: Path) -> list[tuple[Table, dict[str, str]]]:
        """Read tables; warn about those that do not exist."""
        found = []
        for path in paths:
            self.env.note_dependency(str(path))
            if path.exists():
                found.append(read_table(path))
            else:
                place = self.get_location()
                logger.warning("no data in %s: run it first", path, location=place)
        return found

    def origin(self, provenance: dict[str, str]) -> nodes.Node:
        """Say how a table was made."""
        source = ", ".join(f"{key} {value}" for key, value in provenance.items())
        return nodes.paragraph("", f"Measured: {source}.", classes=["provenance"])


class Learning(Stored):
    """``{learning} name …``: the curves and the final returns of experiments."""

    def run(self) -> list[nodes.Node]:
        """Build a figure and a table."""
        curves, finals, origins = [], [], []
        for name in self.arguments[0].split():
            both = self.tables(
                LEARNING / f"{name}_curves.csv", LEARNING / f"{name}.csv"
            )
            if len(both) == 2:
                curves.append(both[0][0])
                finals.append(both[1][0])
                origins.append(both[1][1])
        if not curves:
            return []
        html = figure(curves, finals, origins) + final_table(finals, origins)
        return [nodes.raw("", html, format="html"), *map(self.origin, origins)]


class Ablation(Stored):
    """``{ablation} name``: what each variant of an experiment reached."""

    def run(self) -> list[nodes.Node]:
        """Build a table with intervals."""
        tables = self.tables(LEARNING / f"{self.arguments[0]}.csv")
        if not tables:
            return []
        finals, provenance = tables[0]
        html = ablation_table(finals)
        return [nodes.raw("", html, format="html"), self.origin(provenance)]


class Solve(Stored):
    """``{solve} name``: how long the methods of a benchmark took."""

    def run(self) -> list[nodes.Node]:
        """Build a table."""
        tables = self.tables(RESULTS / f"{self.arguments[0]}.csv")
        if not tables:
            return []
        rows, provenance = tables[0]
        html = solve_table(rows)
        return [nodes.raw("", html, format="html"), self.origin(provenance)]


def by_variant(table: Table, column: str) -> dict[str, list[float]]:
    """Return a column's numbers, grouped by variant in the order of the table."""
    groups: dict[str, list[float]] = {}
    for row in table:
        groups.setdefault(row["variant"], []).append(float(row[column]))
    return groups


def curve_matrix(table: Table) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the steps (bins,) and the returns (seeds, bins) of a lone variant.

    Where no episode ended, the line between the neighbours stands in.
    """
    seeds: dict[str, list[float]] = {}
    for row in table:
        seeds.setdefault(row["seed"], []).append(float(row["return"]))
    first = table[0]["seed"]
    steps = np.array([float(row["step"]) for row in table if row["seed"] == first])
    returns = np.array(list(seeds.values()))
    for line in returns:
        known = np.isfinite(line)
        line[:] = np.interp(steps, steps[known], line[known])
    return steps, returns


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return mean and 95 percent interval, from one seed the value three times."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, mean, mean
    low, high = bootstrap_interval(values)
    return mean, float(low), float(high)


def style() -> dict[str, Any]:
    """Return the look of the chapters' figures, which fits light and dark pages."""
    folder = str(Path(__file__).parent)
    config = PyFileConfigLoader("kernel_config.py", path=folder).load_config()
    settings: dict[str, Any] = config.InlineBackend.rc
    return settings


def figure(
    curves: list[Table], finals: list[Table], origins: list[dict[str, str]]
) -> str:
    """Draw the curves of each seed, their mean and its interval."""
    with matplotlib.rc_context(style()):
        drawing = Figure(figsize=(3.4 * len(curves) + 0.2, 2.8), layout="constrained")
        axes = drawing.subplots(1, len(curves), squeeze=False)[0]
        told = []
        for axis, curve, final, origin in zip(
            axes, curves, finals, origins, strict=True
        ):
            steps, returns = curve_matrix(curve)
            steps = steps / 1000
            axis.plot(steps, returns.T, color="C0", alpha=0.25, linewidth=0.8)
            axis.plot(steps, returns.mean(0), color="C1", linewidth=2)
            if len(returns) > 1:
                low, high = bootstrap_interval(returns)
                axis.fill_between(steps, low, high, color="C1", alpha=0.3, linewidth=0)
            axis.set(title=origin["env"], xlabel="thousand steps", xlim=(0, steps[-1]))
            told.append(describe(origin["env"], returns, final))
        axes[0].set_ylabel("return while training")
        buffer = io.BytesIO()
        drawing.savefig(buffer, format="svg", metadata={"Date": None})
    data = base64.b64encode(buffer.getvalue()).decode()
    alt = escape(" ".join(told), quote=True)
    source = f"data:image/svg+xml;base64,{data}"
    return f'<p><img alt="{alt}" src="{source}" style="max-width: 100%"></p>'


def describe(env: str, returns: NDArray[np.float64], final: Table) -> str:
    """Say what the curves of one environment show."""
    mean = returns.mean(0)
    last = [float(row["return"]) for row in final]
    return (
        f"{env}, {len(returns)} runs: the mean return while training goes from "
        f"{mean[0]:.3g} to {mean[-1]:.3g}; evaluated at the end, the runs lie "
        f"between {min(last):.3g} and {max(last):.3g}."
    )


def html_table(columns: tuple[str, ...], body: str) -> str:
    """Return a table with a head."""
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    return (
        '<div class="results" tabindex="0"><table class="docutils"><thead><tr>'
        f"{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def final_table(finals: list[Table], origins: list[dict[str, str]]) -> str:
    """Return the final evaluations, an environment a row."""
    body = ""
    for table, origin in zip(finals, origins, strict=True):
        values = [float(row["return"]) for row in table]
        mean, low, high = interval(values)
        goal = float(origin["goal"])
        reached = sum(value >= goal for value in values)
        verdict = "reached" if mean >= goal else "<strong>missed</strong>"
        body += (
            f'<tr><th scope="row">{escape(origin["env"])}</th>'
            f"<td>{mean:.3g} <small>({low:.3g} to {high:.3g})</small></td>"
            f"<td>{min(values):.3g}</td><td>at least {goal:g}: {verdict}</td>"
            f"<td>{reached} of {len(values)}</td></tr>"
        )
    columns = (
        "environment",
        "mean over seeds (95 % interval)",
        "worst seed",
        "goal for the mean",
        "seeds that reached it",
    )
    return html_table(columns, body)


def ablation_table(finals: Table) -> str:
    """Return mean returns and intervals of each variant, with a bar for the latter."""
    ends, areas = by_variant(finals, "return"), by_variant(finals, "area")
    every = [interval(values) for values in areas.values()]
    floor = min(low for _, low, _ in every)
    span = max(high for *_, high in every) - floor or 1.0
    body = ""
    for (variant, values), (mean, low, high) in zip(ends.items(), every, strict=True):
        start, width = 100 * (low - floor) / span, 100 * (high - low) / span
        end, end_low, end_high = interval(values)
        body += (
            f'<tr><th scope="row">{escape(variant)}</th><td class="speed">'
            f'<span class="bar" style="margin-left:{start:.1f}%;'
            f'width:max({width:.1f}%,2px)"></span>'
            f"{mean:.3g} <small>({low:.3g} to {high:.3g})</small></td>"
            f"<td>{end:.3g} <small>({end_low:.3g} to {end_high:.3g})</small></td>"
            f"<td>{len(values)}</td></tr>"
        )
    columns = ("variant", "return while training", "return at the end", "seeds")
    return html_table(columns, body)


def solve_table(rows: Table) -> str:
    """Return medians and quartiles of steps, and times beside the peer's."""
    steps: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {}
    for row in rows:
        steps.setdefault(row["method"], []).append(float(row["steps"]))
        seconds.setdefault(row["method"], []).append(float(row["cpu_seconds"]))
    peer = next(iter(steps))
    body = ""
    for method, values in steps.items():
        low, middle, high = quantiles(values, n=4, method="inclusive")
        share = middle / median(steps[peer])
        time_share = median(seconds[method]) / median(seconds[peer])
        body += (
            f'<tr><th scope="row">{escape(method)}</th><td>{middle:,.0f} '
            f"<small>({low:,.0f} to {high:,.0f})</small></td><td>{share:.2f}</td>"
            f"<td>{time_share:.2f}</td><td>{len(values)}</td></tr>"
        )
    columns = (
        "method",
        "median steps (quartiles)",
        "steps, as a part of the peer's",
        "CPU time, as a part of the peer's",
        "seeds",
    )
    return html_table(columns, body)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("learning", Learning)
    app.add_directive("ablation", Ablation)
    app.add_directive("solve", Solve)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
