"""A reader works through a notebook in JupyterLab, as ``make lab`` opens it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest
import reader
import tangle
from order import read_order
from playwright.sync_api import Browser, Page, expect

ROOT = tangle.ROOT
PAIR = "chapters/notebooks/advantages.ipynb"
MINUTE = 60_000
# The chapter that is opened, and the one that its head leads to.
HERE, NEXT = next(x for x in pairwise(read_order()) if x[0].name == "advantages")
NAME = HERE.notebook
SOLUTION = """\
def answer(reward, value, next_value, terminated, truncated, gamma, lambda_):
    future = next_value.masked_fill(terminated, 0.0)
    td_error = reward + gamma * future - value
    goes_on = (~(terminated | truncated)).float()
    return gae_loop(td_error, gamma * lambda_ * goes_on)
"""


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """Return a book of one chapter, with two of the notebooks of ``make lab``."""
    (tmp_path / PAIR).parent.mkdir(parents=True)
    for name in ("pyproject.toml", "chapters/advantages.py", PAIR):
        shutil.copy(ROOT / name, tmp_path / name)
    book, folder = reader.Book(), tmp_path / "notebooks"
    folder.mkdir()
    for chapter in (HERE, NEXT):
        made = reader.reader_notebook(book, chapter.docname)
        nbformat.write(made, folder / chapter.notebook)
    return tmp_path


@pytest.fixture
def address(book: Path) -> Iterator[str]:
    """Start JupyterLab in the folder of the notebooks; return its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folders = ["JUPYTER_CONFIG", "JUPYTER_DATA", "JUPYTER_RUNTIME"]
    folders += ["JUPYTERLAB_SETTINGS", "JUPYTERLAB_WORKSPACES"]
    own = {f"{name}_DIR": str(book / "jupyter" / name) for name in folders}
    own |= {"IPYTHONDIR": str(book / "ipython"), "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "jupyterlab", "notebooks", "--no-browser"]
    command += ["--allow-root", "--ip=127.0.0.1", f"--port={port}"]
    command += ["--IdentityProvider.token=", "--ServerApp.password="]
    with (book / "server.log").open("w") as log:
        server = subprocess.Popen(
            command,
            cwd=book,
            env=os.environ | own,
            stdout=log,
            stderr=log,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{address}/api/status")
        yield address
    finally:
        server.terminate()
        server.wait(120)


def wait_for(url: str, seconds: float = 120) -> None:
    """Wait until a server answers."""
    end = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(url).close()
            return
        except urllib.error.URLError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


@pytest.fixture
def lab(address: str, browser: Browser) -> Iterator[Page]:
    """Open a notebook and run all of its cells."""
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    page.set_default_timeout(MINUTE)
    page.goto(f"{address}/lab/tree/{NAME}")
    kernel = page.locator("#jp-main-statusbar").get_by_text("Python 3 (ipykernel) |")
    expect(kernel).to_contain_text("Idle", timeout=MINUTE)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.locator('.lm-Menu-item[data-command="runmenu:run-all"]').click()
    expect(kernel).to_contain_text("Busy", timeout=MINUTE)
    expect(kernel).to_contain_text("Idle", timeout=2 * MINUTE)
    yield page
    page.close()


def test_a_reader_works_through_a_notebook(lab, book):
    """One page, from top to bottom: what comes later builds on what was before."""
    all_of_it_runs(lab, book)
    equations_have_their_numbers(lab)
    a_dial_listens_to_the_keys(lab)
    an_exercise_is_solved_without_changing_the_book(lab, book)
    a_link_opens_the_next_notebook(lab)


def all_of_it_runs(lab: Page, book: Path) -> None:
    saved = saved_when(lab, book, lambda text: '"execution_count": null' not in text)
    cells = [cell for cell in saved.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    for output in (output for cell in cells for output in cell.outputs):
        assert output.output_type != "error", output
        assert output.get("name") != "stderr", output


def saved_when(
    page: Page, book: Path, ready: Callable[[str], bool]
) -> nbformat.NotebookNode:
    """Save the notebook until its file is as wanted; return it."""
    path, end = book / "notebooks" / NAME, time.monotonic() + 120
    while not ready(path.read_text("utf-8")):
        assert time.monotonic() < end, "the notebook was not saved"
        page.keyboard.press("Control+s")
        page.wait_for_timeout(500)
    return nbformat.read(path, 4)


def equations_have_their_numbers(lab: Page) -> None:
    number = lab.locator("mjx-container", has_text=f"{HERE.number}.1").first
    number.wait_for(state="attached")
    assert lab.locator("mjx-merror, [data-mjx-error]").count() == 0


def a_dial_listens_to_the_keys(lab: Page) -> None:
    figure = lab.locator("figure.lr-picture").first
    slider, readout = figure.locator("input"), figure.locator("output")
    said = readout.text_content()
    slider.focus()
    lab.keyboard.press("ArrowLeft")
    assert readout.text_content() != said
    lab.keyboard.press("ArrowRight")
    assert readout.text_content() == said


def an_exercise_is_solved_without_changing_the_book(lab: Page, book: Path) -> None:
    before = {path: path.read_bytes() for path in book.glob("chapters/**/*.*")}
    empty = "Not yet: the answer is still empty."
    unsolved = lab.get_by_text(empty).count()
    lab.locator(".jp-CodeCell .cm-content", has_text="return ...").first.click()
    lab.keyboard.press("Control+a")
    lab.keyboard.insert_text(SOLUTION)
    lab.keyboard.press("Shift+Enter")
    lab.keyboard.press("Shift+Enter")
    expect(lab.get_by_text("Right: all 6 cases agree.")).to_have_count(2)
    expect(lab.get_by_text(empty)).to_have_count(unsolved - 1)
    saved_when(
        lab,
        book,
        lambda text: "return gae_loop(td_error, gamma * lambda_ * goes_on)" in text,
    )
    assert {path: path.read_bytes() for path in book.glob("chapters/**/*.*")} == before


def a_link_opens_the_next_notebook(lab: Page) -> None:
    panel = ".jp-NotebookPanel:not(.lm-mod-hidden)"
    # Only the cells in view are there: the head is at the top.
    lab.locator(f"{panel} .jp-Cell").first.evaluate("cell => cell.scrollIntoView()")
    lab.locator(f"{panel} a", has_text=f"{NEXT.number} {NEXT.title}").first.click()
    tab = lab.locator(".lm-TabBar-tabLabel", has_text=NEXT.notebook)
    expect(tab).to_be_visible()
