"""Settings of the kernels that execute the chapters for the website.

Figures are SVG without background, in greys and colours that read well on a light and
on a dark page. A reader's own notebook keeps its own settings.
"""

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
