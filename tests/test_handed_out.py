"""The notebooks that the site hands out, run as their readers run them."""

from __future__ import annotations

import sys

import nbformat
import psutil
from nbformat.v4 import new_code_cell, new_notebook

from benchmarks import handed_out
from benchmarks.store import RESULTS, read_table


def test_a_notebook_runs_alone_and_says_how_it_failed(tmp_path):
    (tmp_path / "beside.txt").touch()
    code = (
        "import os\nassert os.listdir() == ['one.ipynb']\nraise ValueError('no more')"
    )
    path = tmp_path / "one.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(code)]), path)
    before = path.read_bytes()
    assert handed_out.execute(path, sys.executable) == "ValueError: no more"
    assert path.read_bytes() == before
    kernels = [
        process
        for process in psutil.Process().children()
        if "ipykernel_launcher" in process.cmdline()
    ]
    assert not kernels


def test_all_notebooks_ran_on_python_3_12():
    """As many as there were then; `make readers` runs those of today."""
    rows, origin = read_table(RESULTS / "handed_out.csv")
    assert len({row["notebook"] for row in rows}) == len(rows) >= 70
    assert not [row for row in rows if row["error"]]
    assert origin["python"].startswith("3.12.")
