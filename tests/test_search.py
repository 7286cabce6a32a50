"""Search: sections, the right one first, without a page being fetched."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
import search
from check import ROOT
from docutils import nodes
from docutils.utils import new_document
from playwright.sync_api import expect
from test_site import NARROW, accessibility, fresh, from_disk, site

__all__ = ["fresh", "from_disk", "site"]  # fixtures
# What readers type, and the chapter or page whose section should come first.
QUERIES = {
    "gae": "advantages",
    "advantage": "advantages",
    "clip ratio": "ppo_error",
    "kl divergence": "ppo_error",
    "importance sampling": "off_policy",
    "v-trace": "off_policy",
    "truncation": "agents",
    "terminated": "agents",
    "policy gradient": "policy_gradient",
    "baseline": "policy_gradient",
    "ppo": "ppo",
    "trust region": "ppo",
    "a2c": "a2c",
    "double dqn": "dqn",
    "dueling": "dqn",
    "target networks": "dqn",
    "c51": "c51",
    "noisy layers": "rainbow",
    "ddpg": "ddpg",
    "twin critics": "td3",
    "soft actor critic": "sac",
    "temperature": "sac",
    "hybrid actions": "hybrid_action",
    "ppg": "ppg",
    "auxiliary phase": "ppg",
    "impala": "impala",
    "shared memory": "processes",
    "explained variance": "debugging",
    "convolutional layers": "encoders",
    "ornstein-uhlenbeck": "control_evidence",
    "RunningMoments": "policies",
    "q_target": "dqn",
    "cleanrl": "come_from",
}
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
    first = {
        query: Path(urlsplit(ask(page, query).first.get_attribute("href")).path).stem
        for query in QUERIES
    }
    assert first == QUERIES
    assert not fetched
    assert not visit.complaints


def test_it_is_used_with_the_keyboard_alone(fresh):
    page = fresh.go("chapters/advantages.html")
    page.keyboard.press("Control+k")
    page.keyboard.type("dual cl")  # a word that is still being typed
    found = page.locator(".top .found a")
    expect(found.first).to_be_visible()
    page.keyboard.press("ArrowDown")
    expect(found.first).to_be_focused()
    page.keyboard.press("Escape")
    expect(found.first).to_be_hidden()
    expect(page.locator(FIELD)).to_be_focused()
    page.keyboard.press("Enter")
    results = page.locator("#search-results a")
    expect(results.first).to_be_visible()
    assert results.count() > 5
    results.first.click()
    expect(page.locator(":target")).to_be_in_viewport()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_results_fit_a_phone_and_can_be_read(fresh, scheme):
    page = fresh.go("index.html")
    page.set_viewport_size({"width": NARROW, "height": 844})
    expect(ask(page, "learning rate").nth(5)).to_be_visible()
    box = page.locator(".top .found").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= NARROW
    assert not accessibility(fresh.set(scheme=scheme))


def test_what_the_book_does_not_have_is_said(fresh):
    page = fresh.go("index.html")
    notes = page.locator(".top .found li:not(:has(a))")
    readme = (ROOT / "README.md").read_text("utf-8").partition("## What is not here")[2]
    for text, queries in search.NOT_HERE.items():
        assert text in " ".join(readme.lower().split()).replace("atari", "Atari")
        for query in queries.split(", "):
            ask(page, query)
            expect(notes.first).to_have_text(f"Not in this book: {text}.")
    ask(page, "zzz")
    expect(notes).to_have_text("No section has this word.")
    ask(page, "multi step")
    expect(notes).to_have_count(0)


def test_the_own_text_of_a_section_is_found_by_what_is_explained_there():
    inner = nodes.section(ids=["inside"])
    inner += nodes.title("", "Inside")
    inner += nodes.paragraph("", "", nodes.Text("of a "), nodes.strong("", "baseline"))
    outer = nodes.section(ids=["outside"])
    outer += [nodes.title("", "Outside"), nodes.paragraph("", "a baseline"), inner]
    outer += nodes.literal_block("", "def my_gae(x):\n    pass")
    document = new_document("x")
    document += outer
    first, second = search.parts(document)
    assert (first.anchor, first.title, first.text) == ("", "Outside", "a baseline")
    assert (second.anchor, second.bold) == ("inside", "baseline")
    assert first.names == "my_gae"
    index = search.index_of({"docs/x": [first, second]}, ROOT)
    (word,) = search.words("baselines")
    _, one, _, two = index["stems"][word]
    assert two > 3 * one > 0
    assert search.stem("gae") in index["stems"]


@pytest.mark.parametrize(
    "same",
    [
        ("clip", "clipped", "clipping", "clips"),
        ("truncate", "truncation", "truncated"),
        ("policy", "policies"),
        ("normalise", "normalize", "normalisation", "normalized"),
        ("value", "values"),
    ],
    ids="/".join,
)
def test_forms_of_a_word_are_one(same):
    assert len({tuple(search.words(word)) for word in same}) == 1
