"""The notebooks that the website hands out, run from their files as by a reader.

``make readers PYTHON=python3.12`` builds the website, makes an environment of that
Python in ``build/readers`` with what the first cell of each notebook installs, and
calls this. Each notebook is copied alone to a folder of its own and executed there by
the environment's kernel, with none of the book's files beside it. What became of each
is stored in ``benchmarks/results/handed_out.csv``. Names of notebooks, such as
``06_ppo``, try these and store nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from benchmarks.harness import cpu_model
from benchmarks.store import RESULTS, write_table

ROOT = Path(__file__).parents[1]
HANDED_OUT = ROOT / "build/html/notebooks"
SECONDS = 120  # the most that a cell may take, as on the website
PACKAGES = ("torch", "numpy", "gymnasium", "matplotlib", "ipykernel")
TELL = f"""
import json, platform
from importlib.metadata import version
versions = {{name: version(name) for name in {PACKAGES}}}
print(json.dumps({{"python": platform.python_version(), **versions}}))
"""


def versions(python: str) -> dict[str, str]:
    """Return the versions of an environment that the outputs depend on."""
    told = subprocess.run([python, "-c", TELL], check=True, capture_output=True)
    found: dict[str, str] = json.loads(told.stdout)
    return found


def execute(path: Path, python: str) -> str:
    """Execute a notebook alone; return nothing or how it failed."""
    manager: Any = AsyncKernelManager()
    command = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.kernel_spec.argv = command
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(path, folder)
        notebook = nbformat.read(Path(folder) / path.name, as_version=4)
        client = NotebookClient(
            notebook,
            km=manager,
            timeout=SECONDS,
            resources={"metadata": {"path": folder}},
        )
        try:
            client.execute()
        except CellExecutionError as error:
            return f"{error.ename}: {error.evalue}".partition("\n")[0]
        except (CellTimeoutError, DeadKernelError) as error:
            return f"{type(error).__name__}: {error}".partition("\n")[0]
        finally:
            run_sync(manager.shutdown_kernel)(now=True)
    return ""


def main() -> int:
    """Execute the notebooks; return how many failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.handed_out")
    parser.add_argument("python", help="the interpreter of a reader's environment")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of notebooks")
    arguments = parser.parse_args()
    # The processes that a chapter starts, and its commands, are the environment's too.
    place = os.path.dirname(os.path.abspath(arguments.python))
    os.environ["PATH"] = place + os.pathsep + os.environ["PATH"]
    os.environ.pop("PYTHONPATH", None)
    origin = {
        "command": "make readers",
        "date": datetime.now(UTC).date().isoformat(),
        **versions(arguments.python),
        "cpu": cpu_model(),
        "cores": str(os.cpu_count()),
    }
    names = arguments.names or sorted(path.stem for path in HANDED_OUT.glob("*.ipynb"))
    rows: list[tuple[str, str]] = []
    for name in names:
        start = time.monotonic()
        error = execute(HANDED_OUT / f"{name}.ipynb", arguments.python)
        rows.append((name, error))
        print(
            f"{name:32s}{time.monotonic() - start:4.0f} s  {error or 'ran'}", flush=True
        )
        if not arguments.names:
            write_table(RESULTS / "handed_out.csv", ("notebook", "error"), rows, origin)
    return sum(bool(error) for _, error in rows)


if __name__ == "__main__":
    sys.exit(main())
