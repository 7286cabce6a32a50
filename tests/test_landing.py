"""The start page: films, an equation with its code, cards and counts."""

import base64
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import imageio_ffmpeg
import numpy as np
import order
import pytest
import tangle
from bs4 import BeautifulSoup, Tag
from playwright.sync_api import Browser, Page, expect
from routes import read_routes
from test_site import SITE, Visit, accessibility, exported_cells, soup, visit_in
from weave import comment_lines, split
from which_agent import QUESTIONS, agents

from benchmarks import films
from benchmarks.store import read_table
from literate_rl.apps.programs import program_names

ROOT = tangle.ROOT
START = "index.html"
CHAPTERS = [c for c in order.read_order(ROOT) if c.kind != "package"]
PLAYING = """() => document.querySelector('.hero video').currentTime > 0.2"""


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
    visit.page.context.close()


# --- Films ----------------------------------------------------------------------------


def test_every_agent_has_a_film_and_the_page_shows_each_once():
    sources = [str(tag["src"]) for tag in start().select(".film source")]
    assert sorted(sources) == sorted(f"_static/films/{x}.mp4" for x in films.FILMED)
    assert list(table()) == list(films.FILMED)


@pytest.mark.parametrize("name", films.FILMED)
def test_a_film_is_small_and_plays_while_it_arrives(name):
    path = films.FILMS / f"{name}.mp4"
    content = path.read_bytes()
    assert len(content) < 250_000
    assert content.index(b"moov") < content.index(b"mdat")
    reader = imageio_ffmpeg.read_frames(str(path))
    about = next(reader)
    reader.close()
    assert about["codec"] == "h264"
    assert about["pix_fmt"].startswith("yuv420p")
    assert about["size"] == (2 * films.PANEL + films.GAP, films.PANEL)
    assert about["duration"] == pytest.approx(float(table()[name]["seconds"]), abs=0.3)


def test_films_have_what_a_reader_without_script_needs():
    videos = start().select(".film video")
    assert videos
    for video in videos:
        for name in ("controls", "muted", "loop", "playsinline", "width", "height"):
            assert video.has_attr(name), f"{name}: {video}"
        assert not video.has_attr("autoplay")
        assert (SITE / str(video["poster"])).is_file()
        assert len(str(video["aria-label"])) > 40


def test_the_captions_say_what_was_measured():
    for figure in start().select("figure.film"):
        name = re.findall(r"films/(\w+)\.mp4", str(figure))[0]
        row, words = table()[name], figure.figcaption.get_text(" ", strip=True)
        assert f"after {int(row['steps']):,} steps" in words
        shown = [float(x.get_text().replace("−", "-")) for x in figure("strong")]
        wanted = [float(row["mean_before"]), float(row["mean_after"])]
        assert shown == pytest.approx(wanted, rel=0.06, abs=0.006)


def test_the_results_give_the_returns_of_the_episodes_shown():
    rows = soup("docs/results.html").select("#the-films tbody tr")
    assert len(rows) == len(table())
    for line, row in zip(rows, table().values(), strict=True):
        words = line.get_text(" ")
        assert row["env"] in words
        for when in ("before", "after"):
            assert f"({', '.join(row[f'returns_{when}'].split())})" in words


def test_the_readme_shows_the_film_and_its_returns():
    text, row = (ROOT / "README.md").read_text("utf-8"), table()[films.ON_README]
    for link in re.findall(r"\]\((docs/_static/[^)]+)\)", text):
        assert (ROOT / link).is_file(), link
    assert f"films/{films.ON_README}.mp4" in text
    for when in ("before", "after"):
        value = f"{float(row[f'mean_{when}']):.0f}".replace("-", "−")
        assert f"mean return {value}" in " ".join(text.split()), when
    assert f"{int(row['steps']):,} steps" in text


def hero(visit: Visit, motion: str) -> Page:
    """Open the start page as somebody who wants things to move, or not to."""
    visit.page.emulate_media(reduced_motion=motion)
    return visit.go(START)


def test_the_film_begins_where_there_is_something_to_see():
    reader = imageio_ffmpeg.read_frames(str(films.FILMS / f"{films.ON_README}.mp4"))
    width, height = next(reader)["size"]
    first = np.frombuffer(next(reader), np.uint8).reshape(height, width, 3)
    reader.close()
    # Landers are violet: blue is far above green. Both are in the picture.
    violet = first[..., 2].astype(int) - first[..., 1] > 60
    assert min(part.sum() for part in np.array_split(violet, 2, axis=1)) > 300


def test_the_film_plays_by_itself_and_stops_for_good_when_told(visit):
    page = hero(visit, "no-preference")
    page.wait_for_function(PLAYING)
    video, button = page.locator(".hero video"), page.locator(".hero .film-button")
    expect(button).to_have_attribute("aria-label", "Pause the film")
    button.click()
    expect(button).to_have_attribute("aria-label", "Play the film")
    assert video.evaluate("film => film.paused && film.muted && film.loop")
    # Out of sight and back: it stays as the reader has left it.
    page.locator(".reliable").scroll_into_view_if_needed()
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(300)
    assert video.evaluate("film => film.paused")
    others = page.locator(".films video")
    assert others.evaluate_all("films => films.every(film => film.paused)")
    assert not visit.complaints


def test_the_film_stands_still_for_those_who_ask_for_it(visit):
    page = hero(visit, "reduce")
    page.wait_for_timeout(1000)
    video, button = page.locator(".hero video"), page.locator(".hero .film-button")
    assert video.evaluate("film => film.paused && film.currentTime === 0")
    # The button still plays it, from the keyboard too.
    button.press("Enter")
    page.wait_for_function(PLAYING)
    button.press("Enter")
    assert video.evaluate("film => film.paused")


def test_a_film_stops_when_its_reader_asks_for_less_motion(visit):
    page = hero(visit, "no-preference")
    page.wait_for_function(PLAYING)
    page.emulate_media(reduced_motion="reduce")
    page.wait_for_function("() => document.querySelector('.hero video').paused")


def test_every_film_plays_on_a_click(visit):
    page = visit.go(START)
    for button in page.locator(".films .film-button").all():
        button.click()
        expect(button).to_have_attribute("aria-label", "Pause the film")
        button.click()
    assert not visit.complaints


def test_a_film_may_be_paused_before_its_first_frame(visit):
    button = visit.go(START).locator(".films .film-button").first
    button.evaluate("button => { button.click(); button.click(); }")
    expect(button).to_have_attribute("aria-label", "Play the film")
    visit.page.wait_for_timeout(200)  # a broken promise is reported later
    assert not visit.complaints


def test_what_cannot_be_played_has_no_button(visit):
    visit.page.route("**/*.mp4", lambda route: route.abort())
    page = visit.go(START)
    page.locator(".films .film-button").first.click()
    expect(page.locator(".film").nth(1).locator(".film-button")).to_have_count(0)


def test_the_page_works_without_a_script(browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{SITE.as_uri()}/{START}")
    expect(page.locator(".hero video[controls]")).to_be_visible()
    expect(page.locator(".film-button")).to_have_count(0)
    expect(page.locator(".chapter-list > li")).to_have_count(len(CHAPTERS))
    page.get_by_role("link", name="Read chapter 1").click()
    expect(page.locator("h1")).to_contain_text(CHAPTERS[0].title)
    context.close()


@pytest.mark.parametrize(
    "page", [START, "chapters/ppo_error.html", "chapters/dqn.html"]
)
def test_an_agent_can_be_trained_in_the_page(page):
    [figure] = soup(page).select("figure.lr-train")
    assert [str(x["type"]) for x in figure("input")] == ["number", *["range"] * 3]
    # It is no card's picture.
    assert not start().select(".chapter-thumbnail .lr-pole")


# --- The equation and its code --------------------------------------------------------


def test_the_code_of_the_specimen_is_that_of_its_chapter():
    [box] = start().select(".specimen")
    shown = "\n".join(pre.get_text().strip("\n") for pre in box.select("pre"))
    [function] = re.findall(r"^def (\w+)", shown, re.MULTILINE)
    [link] = box.select(".specimen-source a")
    page, _, place = str(link["href"]).partition("#")
    assert place == f"def-{function}"
    [cell] = [x for x in exported_cells(page) if f"def {function}(" in x]
    code = [number for row in split(cell) for number in row.lines]
    lines = cell.split("\n")
    wanted = [lines[number] for number in code if lines[number].strip()]
    assert [line for line in shown.split("\n") if line.strip()] == wanted
    # The comments stand beside the code, and the line that computes is marked.
    words = " ".join(box.get_text().split())
    for comment in comment_lines(cell).values():
        for piece in re.split(r"\{eq\}`[^`]*`|`", comment):
            assert " ".join(piece.split()) in words
    assert len(box.select(".specimen-line")) == 1


def test_the_specimen_names_its_code_and_its_tests():
    [line] = start().select(".specimen .equation-ties")
    assert re.fullmatch(r"computed by .+ · tested by .+", line.get_text())


# --- Cards and counts -----------------------------------------------------------------


def marks(card: Tag) -> int:
    """Return how many things the picture of a card draws."""
    (picture,) = card.select(".chapter-thumbnail > :is(div, img)")
    _, _, coded = str(picture.get("src", "")).partition("base64,")
    drawing = base64.b64decode(coded).decode() or str(picture)
    return len(re.findall("<(?:path|use|rect|circle)", drawing))


def test_each_chapter_has_a_card_with_a_picture():
    cards = start().select(".chapter-list > li")
    assert len(cards) == len(CHAPTERS)
    for card, chapter in zip(cards, CHAPTERS, strict=True):
        link = card.select_one("a")
        assert link is not None
        assert link["href"] == f"{chapter.docname}.html"
        assert link.get_text() == chapter.title
        number = card.select_one(".chapter-number")
        assert number is not None
        assert number.get_text().strip() == chapter.number
        assert marks(card) > 2, f"{chapter.docname}: more than an empty ground"
        assert not card.select(".chapter-thumbnail svg text"), "too small to read"
        question = card.select_one(".chapter-question")
        assert question is not None
        assert question.get_text().endswith("?")
        minutes = card.select_one(".chapter-minutes")
        assert minutes is not None
        assert minutes.get_text() == f"{chapter.minutes} minutes"


def test_pictures_do_not_make_the_page_heavy():
    assert (SITE / START).stat().st_size < 500_000


def test_the_package_stands_apart():
    links = [str(a["href"]) for a in start().select(".package-list a")]
    assert links
    assert all(link.count("/") == 2 for link in links)


def test_the_counts_are_true():
    lines = [li.get_text(" ", strip=True) for li in start().select(".reliable li")]
    found = {
        name.rstrip(","): int(count.replace(",", ""))
        for count, name, *_ in map(str.split, lines)
    }
    entries = soup("docs/equations.html").select(".equation-entry")
    assert found["equations"] == len(entries)
    errata = (ROOT / "docs/errata.md").read_text("utf-8")
    shown = set(re.findall(r"^```\{errata-tests\} (\S+)", errata, re.MULTILINE))
    assert found["mistakes"] == len(shown)
    assert found["chapters"] == len(order.read_order(ROOT))


# --- Its looks ------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_the_start_page_is_accessible(visit, width, scheme):
    visit.go(START)
    assert not accessibility(visit.set(width, scheme))


@pytest.mark.parametrize("width", [1440, 1280, 820, 390])
def test_nothing_is_cut_or_overlaps(visit, width):
    visit.go(START)
    page = visit.set(width)
    root = page.locator("html")
    assert root.evaluate("root => root.scrollWidth <= root.clientWidth")
    for box in page.locator(".specimen .weave-code").all():
        assert width < 1280 or box.evaluate("box => box.scrollWidth <= box.clientWidth")
    film = page.locator(".hero .film-frame").bounding_box()
    words = page.locator(".hero-words").bounding_box()
    assert film is not None
    assert words is not None
    beside = words["x"] + words["width"] <= film["x"]
    assert beside if width >= 1280 else words["y"] + words["height"] <= film["y"]
    # In a desktop's first screen stand the promise, the buttons and the film.
    if width >= 1280:
        assert film["y"] + film["height"] < 800
        button = page.get_by_role("link", name="Read chapter 1").bounding_box()
        assert button is not None
        assert button["y"] + button["height"] < 800
    # On a phone the page is short: a stranger comes to its end.
    height = root.evaluate("root => root.scrollHeight")
    assert height < (6000 if width >= 1280 else 8000)


def test_headings_follow_one_another():
    levels = [int(tag.name[1]) for tag in start().select("main :is(h1, h2, h3)")]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


# --- Routes, and which agent ----------------------------------------------------------


def test_the_start_page_lists_the_routes_with_their_minutes():
    shown = start().select(".routes > li")
    assert [str(line["id"]) for line in shown] == [x.anchor for x in read_routes()]
    for line, route in zip(shown, read_routes(), strict=True):
        words = line.get_text(" ", strip=True).replace("’", "'")
        assert words.startswith(f"{route.name} {route.minutes} minutes {route.promise}")
        links = [str(link["href"]) for link in line.select("ol a")]
        assert links == [f"{chapter.docname}.html" for chapter in route.chapters]


def test_a_card_opens_and_a_link_to_a_route_opens_it(visit):
    page = visit.go(START)
    card = page.locator(".routes > li").first
    expect(card.locator("ol")).to_be_hidden()
    card.locator("summary").press("Enter")
    expect(card.locator("ol")).to_be_visible()
    anchor = read_routes()[-1].anchor
    page.goto(f"{SITE.as_uri()}/{START}#{anchor}")
    expect(page.locator(f"#{anchor} ol")).to_be_visible()


@pytest.mark.parametrize(("width", "columns"), [(1440, 4), (820, 2), (390, 1)])
def test_the_cards_of_the_routes_fill_their_rows(visit, width, columns):
    visit.go(START)
    cards = visit.set(width).locator(".routes > li").all()
    boxes = [card.bounding_box() for card in cards]
    assert len({box["x"] for box in boxes if box}) == columns
    assert len(cards) % columns == 0
    top, bottom = boxes[0], boxes[-1]
    assert top is not None
    assert bottom is not None
    assert bottom["y"] + bottom["height"] - top["y"] < 844, "one screen of a phone"


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
            if after is None:
                assert line.a is None
            else:
                assert str(line.a["href"]) == f"{after.rpartition('/')[2]}.html"
    assert not part("docs/faq.html", "section", "onward")("li")


def test_every_page_lists_the_routes_in_its_contents():
    for name in (START, "docs/faq.html", "chapters/ppo.html"):
        links = part(name, "nav", "contents").select("a[href*='#route-']")
        assert [link.get_text() for link in links] == [x.name for x in read_routes()]


@pytest.mark.parametrize("javascript", [True, False])
@pytest.mark.parametrize("width", [390, 1280])
def test_three_answers_leave_the_agents_that_fit(browser, width, javascript):
    context = browser.new_context(
        viewport={"width": width, "height": 900}, java_script_enabled=javascript
    )
    page = context.new_page()
    page.goto(f"{SITE.as_uri()}/docs/which_agent.html")
    found = list(agents())
    row = page.locator(".which-agent tbody tr:visible")
    expect(row).to_have_count(len(found))
    given = {}
    for question, answer in (
        ("actors", "no"),
        ("actions", "hybrid"),
        ("price", "dear"),
    ):
        # With the keyboard: the arrow goes from answer to answer.
        page.locator(f"#which-{question}-any").focus()
        keys = list(QUESTIONS[question][1])
        for _ in range(keys.index(answer) + 1):
            page.keyboard.press("ArrowDown")
        expect(page.locator(f"#which-{question}-{answer}")).to_be_checked()
        given[question] = answer
        left = [x for x in found if all(a in x.answers[q] for q, a in given.items())]
        expect(row).to_have_count(len(left))
        expect(page.locator(".which-none")).to_be_visible(visible=not left)
    context.close()


def test_the_row_of_an_agent_has_its_three_settings_and_its_chapter():
    page = soup("docs/which_agent.html")
    rows = page.select(".which-agent tbody tr")
    for row, agent in zip(rows, agents(), strict=True):
        assert str(row.th.a["href"]).endswith(f"{agent.chapter.docname}.html")
        if agent.told:
            settings = re.findall(r"`([^`]+)`", agent.told.settings)
            assert [x.get_text() for x in row("td")[1]("code")] == settings


def test_below_a_program_stands_how_to_take_it():
    for name in program_names():
        line = part(f"chapters/{name}.html", "p", "take-along")
        assert f"literate-rl copy {name} > my_{name}.py" in line.get_text()
        assert str(line.a["href"]).endswith(f"/{name}.py")
