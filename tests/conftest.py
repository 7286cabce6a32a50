"""What all tests share."""

import math
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from pages import document
from playwright.sync_api import Browser, Page, expect, sync_playwright

# The tangler and the weaver are no package: Sphinx finds them here, and so do tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs/_ext"))

# Small tensors: threads would only wait for each other. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch

from literate_rl.ground.interrupts import CTRL_C

# The same examples in every run, and no verdict that depends on a machine's speed.
settings.register_profile("repository", deadline=None, derandomize=True)
settings.load_profile("repository")
settings.register_profile("few", settings.get_profile("repository"), max_examples=20)

# Asked once, before the GPU is hidden: CUDA itself remembers the answer.
HAS_GPU = torch.cuda.is_available()

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    # Letters are as wide as on a screen with many pixels, also without windows.
    "--font-render-hinting=none",
    # Names lead nowhere: what a page asks of another host fails.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


def hide_gpu(patch: pytest.MonkeyPatch) -> None:
    """Hide a GPU from this process, and from the children that it will have."""
    patch.setattr(torch.cuda, "is_available", lambda: False)
    patch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(scope="session", autouse=True)
def hidden_gpu() -> Iterator[pytest.MonkeyPatch]:
    """Hide a GPU, so that tests do the same on every machine."""
    with pytest.MonkeyPatch.context() as patch:
        hide_gpu(patch)
        yield patch


@pytest.fixture(autouse=True)
def shown_gpu(
    request: pytest.FixtureRequest, hidden_gpu: pytest.MonkeyPatch
) -> Iterator[None]:
    """Show the GPU to a test with the mark ``gpu``, or skip it."""
    if request.node.get_closest_marker("gpu") is None:
        yield
        return
    if not HAS_GPU:
        pytest.skip("no GPU on this machine: nothing ran on one")
    hidden_gpu.undo()
    yield
    hide_gpu(hidden_gpu)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start one headless Chromium for all tests: Playwright allows one a process."""
    # The first is Chromium without windows and menus: it opens a page in half the time.
    names = ["chromium-headless-shell", "chromium", "chromium-browser"]
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        message = "no `chromium` on this machine: nothing was opened in a browser"
        if os.environ.get("REQUIRE_BROWSER") == "1":
            pytest.fail(message)
        pytest.skip(message)
    expect.set_options(timeout=60_000)  # a busy machine is no fault of a page
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def show(browser: Browser) -> Iterator[Any]:
    """Return a function that opens pictures; fail if the page complains or calls."""
    contexts, complaints = [], []

    def calls(request: Any) -> None:
        # A worker's script is a text of the page itself.
        if not request.url.startswith("blob:"):
            complaints.append(request.url)

    def open_page(*items: Any, width: int = 1280, **options: Any) -> Page:
        viewport = {"width": width, "height": 900}
        context = browser.new_context(viewport=viewport, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("request", calls)
        page.set_content(document(*items))
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Give Ctrl-C its usual meaning, whatever a library has made of it.

    That it was pressed in another test is forgotten.
    """
    CTRL_C.pressed = -math.inf
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler or signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
