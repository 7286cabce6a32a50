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
from results import html_table, measured
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from tangle import ROOT
from traitlets.config.loader import PyFileConfigLoader

sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "src"))
from benchmarks.store import RESULTS, read_table
from literate_rl.runs.evaluation import t_interval
from literate_rl.runs.runs import StoredRuns, stored_runs

logger = logging.getLogger(__name__)
LEARNING = RESULTS / "learning"
ENOUGH = 5  # seeds for an interval
Table = list[dict[str, str]]
Experiment = tuple[StoredRuns, dict[str, str]]


class Stored(SphinxDirective):
    """What the directives here share: they read files and name their origin."""

    required_arguments = 1
    final_argument_whitespace = True

    def there(self, *paths: Path) -> bool:
        """Return whether the files exist; warn about one that does not."""
        for path in paths:
            self.env.note_dependency(str(path))
            if not path.exists():
                place = self.get_location()
                logger.warning("no data in %s: run it first", path, location=place)
        return all(path.exists() for path in paths)

    def runs(self, name: str) -> tuple[dict[str, StoredRuns], dict[str, str]] | None:
        """Read the runs of an experiment and their origin."""
        final = LEARNING / f"{name}.csv"
        if not self.there(final, LEARNING / f"{name}_curves.csv"):
            return None
        return stored_runs(name, LEARNING), read_table(final)[1]


class Learning(Stored):
    """``{learning} name …``: the curves and the final returns of experiments."""

    def run(self) -> list[nodes.Node]:
        """Build a figure and a table."""
        found = [self.runs(name) for name in self.arguments[0].split()]
        if None in found:
            return []
        experiments = [
            (next(iter(variants.values())), source) for variants, source in found
        ]
        html = figure(experiments) + final_table(experiments)
        html += "".join(measured(source) for _, source in experiments)
        return [nodes.raw("", html, format="html")]


class Ablation(Stored):
    """``{ablation} name``: what each variant of an experiment reached."""

    def run(self) -> list[nodes.Node]:
        """Build a table with intervals."""
        found = self.runs(self.arguments[0])
        if found is None:
            return []
        variants, source = found
        return [
            nodes.raw("", ablation_table(variants) + measured(source), format="html")
        ]


class Solve(Stored):
    """``{solve} name``: how long the methods of a benchmark took."""

    def run(self) -> list[nodes.Node]:
        """Build a table."""
        path = RESULTS / f"{self.arguments[0]}.csv"
        if not self.there(path):
            return []
        rows, provenance = read_table(path)
        html = solve_table(rows) + measured(provenance, on=provenance["cpu"])
        return [nodes.raw("", html, format="html")]


def interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return mean and 95 percent t interval; of few seeds lowest and highest."""
    mean = float(np.mean(values))
    if len(values) < ENOUGH:
        return mean, float(min(values)), float(max(values))
    low, high = t_interval(values)
    return mean, float(low), float(high)


def style() -> dict[str, Any]:
    """Return the look of the chapters' figures, which fits light and dark pages."""
    folder = str(Path(__file__).parent)
    config = PyFileConfigLoader("kernel_config.py", path=folder).load_config()
    settings: dict[str, Any] = config.InlineBackend.rc
    return settings


def figure(experiments: list[Experiment]) -> str:
    """Draw the curves of each seed, their mean and its interval."""
    number = len(experiments)
    with matplotlib.rc_context(style()):
        drawing = Figure(figsize=(3.4 * number + 0.2, 2.8), layout="constrained")
        axes = drawing.subplots(1, number, squeeze=False)[0]
        for axis, (runs, origin) in zip(axes, experiments, strict=True):
            steps, curves = runs.steps / 1000, runs.curves
            axis.plot(steps, curves.T, color="C0", alpha=0.25, linewidth=0.8)
            axis.plot(steps, curves.mean(0), color="C1", linewidth=2)
            if len(curves) >= ENOUGH:
                low, high = t_interval(curves)
                axis.fill_between(steps, low, high, color="C1", alpha=0.3, linewidth=0)
            axis.set(title=origin["env"], xlabel="thousand steps", xlim=(0, steps[-1]))
        axes[0].set_ylabel("return while training")
        buffer = io.BytesIO()
        drawing.savefig(buffer, format="svg", metadata={"Date": None})
    data = base64.b64encode(buffer.getvalue()).decode()
    alt = escape(" ".join(describe(*each) for each in experiments), quote=True)
    source = f"data:image/svg+xml;base64,{data}"
    return f'<p><img alt="{alt}" src="{source}" style="max-width: 100%"></p>'


def describe(runs: StoredRuns, origin: dict[str, str]) -> str:
    """Say what the curves of one environment show."""
    mean = runs.curves.mean(0)
    return (
        f"{origin['env']}, {len(runs.final)} runs: the mean return while training goes "
        f"from {short(mean[0])} to {short(mean[-1])}; evaluated at the end, "
        f"the runs lie between {short(min(runs.final))} and {short(max(runs.final))}."
    )


def short(value: float) -> str:
    """Write three digits, and large numbers in full."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def with_interval(values: NDArray[np.float64]) -> str:
    """Write a mean and its interval; under five seeds their values and no interval."""
    if len(values) < ENOUGH:
        return ", ".join(map(short, values))
    mean, low, high = map(short, interval(values))
    return f"{mean} <small>({low} to {high})</small>"


def final_table(experiments: list[Experiment]) -> str:
    """Return the final evaluations, an environment a row."""
    body = ""
    for runs, origin in experiments:
        values = runs.final
        goal = float(origin["goal"])
        reached = sum(value >= goal for value in values)
        verdict = "reached" if values.mean() >= goal else "<strong>missed</strong>"
        body += (
            f'<tr><th scope="row">{escape(origin["env"])}</th>'
            f"<td>{with_interval(values)}</td>"
            f"<td>{short(min(values))}</td><td>at least {goal:g}: {verdict}</td>"
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


def ablation_table(variants: dict[str, StoredRuns]) -> str:
    """Return mean returns and intervals of each variant, with a bar for the latter."""
    every = [interval(runs.area) for runs in variants.values()]
    floor = min(low for _, low, _ in every)
    span = max(high for *_, high in every) - floor or 1.0
    body = ""
    for (variant, runs), (_, low, high) in zip(variants.items(), every, strict=True):
        start, width = 100 * (low - floor) / span, 100 * (high - low) / span
        body += (
            f'<tr><th scope="row">{escape(variant)}</th><td class="speed">'
            f'<span class="bar" style="margin-left:{start:.1f}%;'
            f'width:max({width:.1f}%,2px)"></span>'
            f"{with_interval(runs.area)}</td><td>{with_interval(runs.final)}</td>"
            f"<td>{len(runs.final)}</td></tr>"
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
