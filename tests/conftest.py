"""What all tests share."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from playwright.sync_api import Browser, sync_playwright

# The tangler and the weaver are no package: Sphinx finds them here, and so do tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs/_ext"))

# Small tensors: threads would only wait for each other. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples in every run, and no verdict that depends on a machine's speed.
settings.register_profile("repository", deadline=None, derandomize=True)
settings.load_profile("repository")

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start one headless Chromium for all tests: Playwright allows one a process."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        message = "no `chromium` on this machine: nothing was opened in a browser"
        if os.environ.get("REQUIRE_BROWSER") == "1":
            pytest.fail(message)
        pytest.skip(message)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()
