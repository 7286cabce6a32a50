"""Search: sections, the right one first, without a page being fetched."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
import search
from check import ROOT
from playwright.sync_api import expect
from test_site import NARROW, fresh, from_disk, site

__all__ = ["fresh", "from_disk", "site"]  # fixtures
# The chapter or page whose section should come first, and what readers type.
QUERIES = """
advantages: gae, advantage
ppo_error: clip ratio, kl divergence
off_policy: importance sampling, v-trace
agents: truncation, terminated
policy_gradient: policy gradient, baseline
ppo: ppo, trust region
a2c: a2c
dqn: double dqn, dueling, target networks, q_target
c51: c51
rainbow: noisy layers
ddpg: ddpg
td3: twin critics
sac: soft actor critic, temperature
hybrid_action: hybrid actions
ppg: ppg, auxiliary phase
impala: impala
processes: shared memory
debugging: explained variance
encoders: convolutional layers
control_evidence: ornstein-uhlenbeck
policies: RunningMoments
come_from: cleanrl
"""
FIELD = ".top .search input"


def ask(page, query: str):
    """Type a query; return the links that come up."""
    page.locator(FIELD).fill(query)
    return page.locator(".top .found a")


@pytest.mark.parametrize("window", ["fresh", "from_disk"])
def test_thirty_queries_lead_to_their_chapters_and_fetch_no_page(window, request):
    visit = request.getfixturevalue(window)
    page = visit.go("chapters/advantages.html")
    ask(page, "x")
    page.wait_for_function("typeof searchIndex !== 'undefined'")
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    for line in QUERIES.strip().splitlines():
        chapter, queries = line.split(": ")
        for query in queries.split(", "):
            link = ask(page, query).first.get_attribute("href")
            assert Path(urlsplit(link).path).stem == chapter, query
    assert not fetched + visit.complaints


def test_it_is_used_with_the_keyboard_alone(fresh):
    page = fresh.go("chapters/advantages.html")
    page.keyboard.press("Control+k")
    page.keyboard.type("dual cl")  # a word that is still being typed
    found = page.locator(".top .found a").first
    expect(found).to_be_visible()
    page.keyboard.press("ArrowDown")
    expect(found).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator(FIELD)).to_be_focused()
    page.keyboard.press("Enter")
    results = page.locator("#search-results a")
    expect(results.nth(5)).to_be_visible()
    results.first.click()
    expect(page.locator(":target")).to_be_in_viewport()


def test_results_fit_a_phone(fresh):
    fresh.look_as(NARROW)
    page = fresh.go("index.html")
    expect(ask(page, "learning rate").nth(5)).to_be_visible()
    box = page.locator(".top .found").bounding_box()
    assert 0 <= box["x"] <= box["x"] + box["width"] <= NARROW


def test_what_the_book_does_not_have_is_said(fresh):
    page = fresh.go("index.html")
    notes = page.locator(".top .found li:not(:has(a))")
    readme = (ROOT / "README.md").read_text("utf-8").partition("## What is not here")[2]
    for text, queries in search.NOT_HERE.items():
        assert text.lower() in " ".join(readme.lower().split())
        for query in queries.split(", "):
            ask(page, query)
            expect(notes.first).to_have_text(f"Not in this book: {text}.")
    ask(page, "zzz")
    expect(notes).to_have_text("No section has this word.")


@pytest.mark.parametrize(
    "same",
    [
        "clip clipped clipping clips",
        "policy policies",
        "normalise normalize normalisation normalized",
    ],
)
def test_forms_of_a_word_are_one(same):
    assert len({tuple(search.words(word)) for word in same.split()}) == 1
