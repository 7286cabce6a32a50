"""What a reader does on the site besides reading: finding the way, printing."""

import re

import pytest
import symbols
from playwright.sync_api import expect
from test_site import NARROW, fresh, from_disk, one_window, reused, site, soup

__all__ = ["fresh", "from_disk", "one_window", "reused", "site"]  # fixtures
CHAPTER = "chapters/advantages.html"
KEYWORD = {"light": "rgb(103, 48, 197)", "dark": "rgb(220, 198, 224)"}


# --- The way --------------------------------------------------------------------------


@pytest.mark.parametrize("width", [NARROW, 1280])
def test_the_contents_open_where_there_is_no_room_for_them(fresh, width):
    fresh.look_as(width)
    page = fresh.go(CHAPTER)
    contents = page.locator("#contents")
    expect(contents).to_be_hidden()
    page.get_by_role("button", name="Contents").click()
    expect(contents.locator("[aria-current=page]")).to_be_in_viewport()
    contents.get_by_role("link", name="Exercises").click()
    expect(contents).to_be_hidden()
    expect(page.locator("#exercises h2")).to_be_in_viewport()


def test_the_start_page_leads_back_to_the_place_of_reading(fresh):
    page = fresh.go(CHAPTER)
    page.locator("#traps").evaluate("box => box.scrollIntoView()")
    marked = page.locator("#contents .sections [aria-current=true]")
    expect(marked).to_have_attribute("href", "#traps")
    fresh.go("index.html")
    page.locator(".continue a").click()
    expect(page).to_have_url(f"{fresh.address}/{CHAPTER}#traps")


def test_long_code_is_cut_on_a_phone_until_one_asks(fresh):
    page = fresh.go("chapters/ddpg.html")
    fresh.set(NARROW)
    box = page.locator(".cell.tag_program .highlight").first
    button = box.get_by_role("button", name=re.compile(r"Show all \d\d lines"))
    assert box.bounding_box()["height"] < 250
    button.press("Enter")
    expect(button).to_have_count(0)
    assert box.bounding_box()["height"] > 800


@pytest.mark.parametrize("way", ["#def-PPO.learn", ""])
def test_what_is_cut_is_shown_where_it_is_looked_for(fresh, way):
    fresh.look_as(NARROW)
    page = fresh.go(f"chapters/learners/ppo.html{way}")
    target = page.locator("[id='def-PPO.learn']")
    if not way:  # as a search in the page does, it scrolls what is cut
        target.evaluate("box => { box.tabIndex = 0; box.focus(); }")
    expect(page.locator(".cut", has=target)).to_have_count(0)
    expect(target).to_be_in_viewport()


# --- Links and what they lead to ------------------------------------------------------


def test_a_link_to_a_folded_test_opens_it(fresh):
    page = fresh.go(CHAPTER)
    page.locator(".equation-ties a[href*='test-']").first.click()
    target = page.locator(":target")
    expect(target.locator("details")).to_have_attribute("open", "")
    expect(target.locator("pre")).to_be_in_viewport()


@pytest.mark.parametrize("window", ["reused", "from_disk"])
@pytest.mark.parametrize(
    "target",
    [
        *(f"a[href*='{x}']" for x in ("glossary.html#term-", "bibliography.html#")),
        "a[href*='#equation-']:not(.headerlink)",
        "#equation-gae .katex-display",
    ],
)
def test_what_a_link_or_a_formula_means_is_shown_beside_it(window, target, request):
    page = request.getfixturevalue(window).go(CHAPTER)
    link = page.locator(f"article {target}").first
    link.scroll_into_view_if_needed()
    link.hover()
    peek = page.locator("#peek")
    expect(peek).to_be_visible()
    assert len(peek.inner_text()) > 5
    if "gae" in target:  # its letters
        expect(peek).to_contain_text("TD error")
    page.mouse.move(0, 0)
    expect(peek).to_be_hidden()


@pytest.mark.parametrize(
    ("formula", "letters"),
    [
        (r"\mathbb{E}_\pi[ G_t ]", {r"\mathbbE", "G"}),
        (r"\operatorname*{argmax}_a Q(s, a)", {"Q", "s", "a"}),
        (r"Z \overset{D}{=} r", {"Z", "r"}),
    ],
)
def test_letters_of_a_command_are_no_symbols(formula, letters):
    found = {base for base, _ in symbols.symbols(formula)}
    assert letters <= found
    assert not {x for x in found if x.isalpha()} - letters


def test_the_glossary_leads_to_the_chapters():
    entry = soup("docs/glossary.html").select_one("#term-A2C").find_next("dd")
    assert "../chapters/a2c.html" in [x["href"] for x in entry.select("a")]


# --- Paper, and pages without a script ------------------------------------------------


def test_a_dark_page_prints_light_and_open(fresh):
    page = fresh.go(CHAPTER)
    folded = page.locator("article details:not([open])")
    before = folded.count()
    assert before > 1
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(page.locator("body")).to_have_css("background-color", "rgb(255, 255, 255)")
    expect(page.locator("h1")).to_have_css("color", "rgb(0, 0, 0)")
    assert folded.count() == 0
    # Words of the language are dark purple on paper, and pale on a dark page.
    expect(page.locator(".weave-code .k").first).to_have_css("color", KEYWORD["light"])
    expect(page.locator("#contents")).to_be_hidden()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert folded.count() == before


def test_a_page_without_scripts_has_its_colours_and_formulas(site, browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site}/{CHAPTER}")
    code = page.locator(".weave-code").first
    expect(code).to_have_css("background-color", "rgb(246, 244, 238)")
    expect(page.locator(".katex-html").first).to_be_visible()
    context.close()


def test_the_scheme_is_chosen_and_kept(fresh):
    page = fresh.go(CHAPTER)
    keyword = page.locator(".weave-code .k").first
    expect(keyword).to_have_css("color", KEYWORD["light"])
    page.get_by_role("button", name="Light or dark").click()
    expect(keyword).to_have_css("color", KEYWORD["dark"])
    fresh.go("index.html")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_a_chapter_is_light(fresh):
    sizes: list[int] = []
    fresh.page.on("response", lambda answer: sizes.append(len(answer.body())))
    fresh.go(CHAPTER).wait_for_load_state("networkidle")
    assert sum(sizes) < 1_500_000
