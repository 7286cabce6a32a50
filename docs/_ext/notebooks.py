"""Execute the notebooks as a reader would, with a progress bar.

Outputs go to build/notebooks, so that the paired notebooks stay without outputs.
"""

from __future__ import annotations

import sys

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from tangle import ROOT, chapter_paths, read
from tqdm import tqdm


def main() -> int:
    """Execute all notebooks; return the number of those that failed."""
    out = ROOT / "build/notebooks"
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for chapter in chapter_paths():
        place = chapter.relative_to(ROOT / "chapters")
        path = (ROOT / "chapters/notebooks" / place).with_suffix(".ipynb")
        notebook = nbformat.read(path, as_version=4)
        starts = read(chapter).metadata["source_map"]
        with tqdm(total=len(notebook.cells), desc=chapter.stem) as bar:
            client = NotebookClient(
                notebook,
                timeout=120,
                resources={"metadata": {"path": str(path.parent)}},
                on_cell_complete=lambda cell, cell_index, bar=bar: bar.update(),
            )
            try:
                client.execute()
                bar.update(bar.total - bar.n)
            except CellExecutionError as error:
                failed += 1
                number = next(
                    i
                    for i, cell in enumerate(notebook.cells)
                    if any(o.output_type == "error" for o in cell.get("outputs", []))
                )
                line = starts[number] + 1
                message = f"chapters/{place}:{line}: {error.ename}: {error.evalue}"
                tqdm.write(message, file=sys.stderr)
        nbformat.write(notebook, out / path.name)
    print(f"Executed notebooks are in {out}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
