"""Settings of the kernels that execute the chapters for the website.

Figures are SVG without background, in greys and colours that read well on a light and
on a dark page. What has one column is drawn twice: a second time for phones. A reader's
own notebook keeps its own settings.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

import IPython.core.pylabtools as tools

c = get_config()  # type: ignore[name-defined]  # noqa: F821
GREY = "#808080"
c.InlineBackend.figure_formats = {"svg"}
c.InlineBackend.rc = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.facecolor": "none",
    "legend.framealpha": 0,
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.titlecolor": GREY,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "grid.color": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 11,
    "svg.hashsalt": "literate-rl",
    "svg.fonttype": "path",
}
c.HistoryManager.enabled = False
c.Application.log_level = "ERROR"

WIDTH = 4.9  # inches; a phone shows each of its points as a pixel
SMALLEST = 10  # points
as_wide_as_paper = tools.print_figure


def for_a_phone(figure: Any) -> str:
    """Draw a figure anew for a phone, with words that can be read there.

    A legend would lie upon what is drawn, and stands above it.
    """
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.text import Text

    figure.set_size_inches(WIDTH, figure.get_figheight())
    for axes in figure.axes:
        legend = axes.get_legend()
        if legend and not axes.get_title():
            words = [text.get_text() for text in legend.get_texts()]
            where = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1)}
            axes.legend(legend.legend_handles, words, ncols=2, **where)
            figure.set_figheight(figure.get_figheight() + 0.2 * len(words) / 2)
    for words in figure.findobj(Text):
        words.set_fontsize(max(SMALLEST, words.get_fontsize()))
    if not isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        figure.tight_layout()
    return as_wide_as_paper(figure, "svg")


def for_all_screens(figure: Any, fmt: str = "png", **options: Any) -> Any:
    """Draw a figure; keep what a phone shows instead. Then the figure is closed."""
    drawn = as_wide_as_paper(figure, fmt, **options)
    places = [axes.get_subplotspec() for axes in figure.axes]
    columns = max((place.get_gridspec().ncols for place in places if place), default=1)
    if drawn and fmt == "svg" and columns == 1 and figure.get_figwidth() > WIDTH:
        # Beside the executed chapters, by the name that it has on the website.
        phones = Path(os.environ["IPYTHONDIR"]).parent / "cache/phones"
        phones.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256("\n".join(drawn.splitlines()).encode()).hexdigest()
        (phones / f"{name}.svg").write_text(for_a_phone(figure), "utf-8")
    return drawn


tools.print_figure = for_all_screens
