"""Execute: run the chapters that changed, several at once, before Sphinx reads them.

Sphinx reads one page after the other, and myst-nb executes a chapter while it is read.
Here the chapters run side by side and their outputs go into the cache in which myst-nb
looks first. A chapter that fails is left to myst-nb, which reports where.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import ExecutionResult, single_nb_execution
from sphinx.application import Sphinx
from sphinx.util.display import status_iterator
from weave import read_chapter


def execute_chapters(app: Sphinx, env: Any, names: list[str]) -> None:
    """Execute the chapters about to be read, save those in the cache."""
    logging.getLogger("traitlets").setLevel(logging.WARNING)  # the bar says how far
    cache = get_cache(app.config.nb_execution_cache_path)
    paths = [Path(env.doc2path(name)) for name in names if name.startswith("chapters/")]
    notebooks = {path: read_chapter(path.read_text("utf-8")) for path in sorted(paths)}
    for path, notebook in list(notebooks.items()):
        try:
            cache.match_cache_notebook(notebook)
        except KeyError:
            continue
        del notebooks[path]

    def execute(path: Path) -> ExecutionResult:
        timeout = app.config.nb_execution_timeout
        return single_nb_execution(notebooks[path], str(path.parent), timeout, False)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results: Iterable[ExecutionResult] = status_iterator(
            pool.map(execute, notebooks),
            "executing chapters... ",
            "brown",
            len(notebooks),
            stringify_func=lambda result: f"{result.time:.0f} s",
        )
        for path, result in zip(notebooks, results, strict=True):
            if result.err is None:
                seconds = {"execution_seconds": result.time}
                bundle = CacheBundleIn(result.nb, str(path), data=seconds)
                cache.cache_notebook_bundle(bundle, False, overwrite=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("env-before-read-docs", execute_chapters)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
