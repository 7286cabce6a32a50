"""The start page: films, cards, counts and routes, and which agent fits."""

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import imageio_ffmpeg
import order
import pytest
import tangle
from bs4 import BeautifulSoup, Tag
from playwright.sync_api import Browser, expect
from routes import read_routes
from test_site import SITE, Visit, soup, visit_in
from which_agent import QUESTIONS, agents

from benchmarks import films
from benchmarks.store import read_table

ROOT = tangle.ROOT
START = "index.html"
CHAPTERS = [c for c in order.read_order(ROOT) if c.kind != "package"]


@cache
def start() -> Tag:
    """Return the start page, parsed."""
    return soup(START)


@cache
def table() -> dict[str, dict[str, str]]:
    """Return what was filmed."""
    return {row["film"]: row for row in read_table(films.TABLE)[0]}


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Return a window without memory that reads the site from the disk."""
    visit = visit_in(browser, SITE.as_uri())
    yield visit
    assert not visit.complaints
    visit.page.context.close()


# --- Films ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", films.FILMED)
def test_a_film_is_small_and_plays_while_it_arrives(name):
    path = films.FILMS / f"{name}.mp4"
    content = path.read_bytes()
    assert len(content) < 250_000
    assert content.index(b"moov") < content.index(b"mdat")
    reader = imageio_ffmpeg.read_frames(str(path))
    about = next(reader)
    reader.close()
    assert (about["codec"], about["pix_fmt"][:7]) == ("h264", "yuv420p")


def test_each_film_has_a_caption_that_says_what_was_measured():
    figures = start().select("figure.film")
    shown = [re.findall(r"films/(\w+)\.mp4", str(figure))[0] for figure in figures]
    assert sorted(shown) == sorted(films.FILMED)
    for figure, name in zip(figures, shown, strict=True):
        row, words = table()[name], figure.figcaption.get_text(" ", strip=True)
        assert f"after {int(row['steps']):,} steps" in words
        numbers = [float(x.get_text().replace("−", "-")) for x in figure("strong")]
        wanted = [float(row["mean_before"]), float(row["mean_after"])]
        assert numbers == pytest.approx(wanted, rel=0.06, abs=0.006)
        assert figure.video.has_attr("controls")


def test_readme_and_results_give_the_returns_of_the_film():
    results = soup("docs/results.html").select_one("#the-films").get_text(" ")
    text = " ".join((ROOT / "README.md").read_text("utf-8").split())
    for when in ("before", "after"):
        for row in table().values():
            assert f"({', '.join(row[f'returns_{when}'].split())})" in results
        value = float(table()[films.ON_README][f"mean_{when}"])
        assert f"mean return {value:.0f}".replace("-", "−") in text


PLAYING = "() => document.querySelector('.hero video').currentTime > 0.2"


def test_the_film_plays_by_itself_and_stops_for_good_when_told(visit):
    visit.page.emulate_media(reduced_motion="no-preference")
    page = visit.go(START)
    page.wait_for_function(PLAYING)
    video, button = page.locator(".hero video"), page.locator(".hero .film-button")
    button.click()
    expect(button).to_have_attribute("aria-label", "Play the film")
    # Out of sight and back: it stays as the reader has left it.
    page.locator(".reliable").scroll_into_view_if_needed()
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(300)
    assert video.evaluate("film => film.paused && film.muted && film.loop")
    button.click()
    page.emulate_media(reduced_motion="reduce")
    page.wait_for_function("() => document.querySelector('.hero video').paused")


def test_the_film_stands_still_for_those_who_ask_for_it(visit):
    page = visit.go(START)
    page.wait_for_timeout(1000)
    video, button = page.locator(".hero video"), page.locator(".hero .film-button")
    assert video.evaluate("film => film.paused && film.currentTime === 0")
    # The button still plays it, from the keyboard too.
    button.press("Enter")
    page.wait_for_function(PLAYING)
    # One may change one's mind before the first frame.
    other = page.locator(".films .film-button").first
    other.evaluate("button => { button.click(); button.click(); }")
    expect(other).to_have_attribute("aria-label", "Play the film")
    page.wait_for_timeout(200)  # a broken promise is reported later


def test_the_page_works_without_a_script(browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{SITE.as_uri()}/{START}")
    expect(page.locator(".hero video[controls]")).to_be_visible()
    expect(page.locator(".film-button")).to_have_count(0)
    page.get_by_role("link", name="Read chapter 1").click()
    expect(page.locator("h1")).to_contain_text(CHAPTERS[0].title)
    context.close()


# --- What stands on it ----------------------------------------------------------------


def test_each_chapter_has_a_card_with_a_picture():
    cards = start().select(".chapter-list > li")
    for card, chapter in zip(cards, CHAPTERS, strict=True):
        assert card.a["href"] == f"{chapter.docname}.html"
        assert card.select_one(".chapter-thumbnail > :is(div, img)"), chapter
        words = card.get_text(" ")
        for told in (chapter.number, chapter.title, f"{chapter.minutes} minutes", "?"):
            assert told in words
    assert (SITE / START).stat().st_size < 500_000


def test_the_counts_are_true():
    counts = {}
    for line in start().select(".reliable li"):
        count, name, *_ = line.get_text(" ", strip=True).split()
        counts[name.rstrip(",")] = int(count.replace(",", ""))
    entries = soup("docs/equations.html").select(".equation-entry")
    assert counts["equations"] == len(entries)
    errata = (ROOT / "docs/errata.md").read_text("utf-8")
    assert counts["mistakes"] == len(set(re.findall(r"\{errata-tests\} (\S+)", errata)))
    assert counts["chapters"] == len(order.read_order(ROOT))


# --- Routes, and which agent ----------------------------------------------------------


def test_the_start_page_lists_the_routes_with_their_minutes(visit):
    lines = start().select(".routes > li")
    for line, route in zip(lines, read_routes(), strict=True):
        words = line.get_text(" ", strip=True).replace("’", "'")
        assert words.startswith(f"{route.name} {route.minutes} minutes {route.promise}")
        links = [str(link["href"]) for link in line.select("ol a")]
        assert links == [f"{chapter.docname}.html" for chapter in route.chapters]
    page, anchor = visit.go(START), read_routes()[-1].anchor
    expect(page.locator(f"#{anchor} ol")).to_be_hidden()
    page.goto(f"{SITE.as_uri()}/{START}#{anchor}")
    expect(page.locator(f"#{anchor} ol")).to_be_visible()


@cache
def part(name: str, tag: str, kind: str) -> BeautifulSoup:
    """Return a part of a page: to parse all of many pages takes long."""
    text = (SITE / name).read_text("utf-8")
    found = re.search(rf"<{tag} [^>]*{kind}.*?</{tag}>", text, re.DOTALL)
    return BeautifulSoup(found[0] if found else "", "html.parser")


def test_a_chapter_says_where_its_routes_go_on():
    for route in read_routes():
        pages = [chapter.docname for chapter in route.chapters]
        for page, after in pairwise([*pages, None]):
            [line] = [
                line
                for line in part(f"{page}.html", "section", "onward")("li")
                if route.name in line.span.get_text().split(" · ")
            ]
            links = [str(link["href"]) for link in line("a")]
            assert links == [f"{x.rpartition('/')[2]}.html" for x in [after] if x]
            contents = part(f"{page}.html", "nav", "contents")
            assert contents.select_one(f"a[href$='#{route.anchor}']")


@pytest.mark.parametrize("javascript", [True, False])
def test_three_answers_leave_the_agents_that_fit(browser, javascript):
    context = browser.new_context(java_script_enabled=javascript)
    page = context.new_page()
    page.goto(f"{SITE.as_uri()}/docs/which_agent.html")
    left = list(agents())
    row = page.locator(".which-agent tbody tr:visible")
    for question, answer in {
        "actors": "no",
        "actions": "hybrid",
        "price": "dear",
    }.items():
        # With the keyboard: the arrow goes from answer to answer.
        page.locator(f"#which-{question}-any").focus()
        for _ in range([*QUESTIONS[question][1]].index(answer) + 1):
            page.keyboard.press("ArrowDown")
        left = [agent for agent in left if answer in agent.answers[question]]
        expect(row).to_have_count(len(left))
        expect(page.locator(".which-none")).to_be_visible(visible=not left)
    context.close()
