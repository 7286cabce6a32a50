"""Execute: run the chapters that changed, several at once, before Sphinx reads them.

Sphinx reads one page after the other, and myst-nb executes a chapter while it is read.
Here the chapters run side by side and their outputs go into the cache in which myst-nb
looks first. A chapter that fails is left to myst-nb, which reports where.

What a chapter prints depends on more than its own file, on the code that it imports and
on the results that it draws. Where these have changed, its page is read again too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import ExecutionResult, single_nb_execution
from nbformat import NotebookNode
from sphinx.application import Sphinx
from sphinx.util.display import status_iterator
from weave import read_chapter

# The bar says how far the build is; these would print settings and each kernel's start.
TALKERS = "traitlets", "sphinx.myst_parser.sphinx_ext.main", "sphinx.myst_nb.sphinx_ext"


def chapters_among(env: Any, names: Iterable[str]) -> dict[str, NotebookNode]:
    """Return the chapters among some pages, as myst-nb reads them."""
    return {
        name: read_chapter(Path(env.doc2path(name)).read_text("utf-8"))
        for name in sorted(names)
        if name.startswith("chapters/")
    }


def keys(notebooks: dict[str, NotebookNode]) -> dict[str, Any]:
    """Return what decides, beside its own code, whether a chapter is executed again."""
    return {
        page: notebook.metadata["kernelspec"] for page, notebook in notebooks.items()
    }


def outdated(app: Sphinx, env: Any, added: set[str], *_: set[str]) -> list[str]:
    """Name the chapters that would now be executed in another way."""
    now = keys(chapters_among(env, env.found_docs - added))
    before = getattr(env, "executed", {})
    return [page for page in now if now[page] != before.get(page)]


def execute_chapters(app: Sphinx, env: Any, names: list[str]) -> None:
    """Execute the chapters about to be read, save those in the cache."""
    cache = get_cache(app.config.nb_execution_cache_path)
    notebooks = chapters_among(env, names)
    env.executed = getattr(env, "executed", {}) | keys(notebooks)
    for name, notebook in list(notebooks.items()):
        try:
            cache.match_cache_notebook(notebook)
        except KeyError:
            continue
        del notebooks[name]

    def execute(name: str) -> ExecutionResult:
        folder = str(Path(env.doc2path(name)).parent)
        timeout = app.config.nb_execution_timeout
        run = partial(single_nb_execution, notebooks[name], folder, timeout, False)
        try:
            return run()
        except RuntimeError:  # no kernel: another program had taken one of its ports
            return run()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results: Iterable[ExecutionResult] = status_iterator(
            pool.map(execute, notebooks),
            "executing chapters... ",
            "brown",
            len(notebooks),
            stringify_func=lambda result: f"{result.time:.0f} s",
        )
        for name, result in zip(notebooks, results, strict=True):
            if result.err is None:
                seconds = {"execution_seconds": result.time}
                bundle = CacheBundleIn(result.nb, env.doc2path(name), data=seconds)
                cache.cache_notebook_bundle(bundle, False, overwrite=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    for name in TALKERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    app.connect("env-get-outdated", outdated)
    app.connect("env-before-read-docs", execute_chapters)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
