"""What a reader does on the site besides reading: finding the way, printing, search."""

import re

import pytest
import symbols
from playwright.sync_api import expect
from test_site import (
    NARROW,
    Visit,
    fresh,
    from_disk,
    site,
    soup,
    visit_in,
)

__all__ = ["fresh", "from_disk", "site"]  # fixtures
CHAPTER = "chapters/advantages.html"
KEYWORD = {"light": "rgb(103, 48, 197)", "dark": "rgb(220, 198, 224)"}


# --- The way --------------------------------------------------------------------------


@pytest.mark.parametrize("width", [NARROW, 820, 1280])
def test_the_contents_open_where_there_is_no_room_for_them(fresh, width):
    fresh.page.set_viewport_size({"width": width, "height": 844})
    page = fresh.go(CHAPTER)
    contents = page.locator("#contents")
    expect(contents).to_be_hidden()
    page.get_by_role("button", name="Contents").click()
    expect(contents).to_be_visible()
    current = contents.locator("[aria-current=page]")
    expect(current).to_be_in_viewport()
    contents.get_by_role("link", name="Exercises").click()
    expect(contents).to_be_hidden()
    expect(page.locator("#exercises h2")).to_be_in_viewport()


def test_the_contents_stand_beside_a_chapter(fresh):
    page = fresh.go(CHAPTER)
    expect(page.locator("#contents")).to_be_visible()
    expect(page.get_by_role("button", name="Contents")).to_be_hidden()
    sections = [x.get_text().rstrip("¶") for x in soup(CHAPTER).select("article h2")]
    assert page.locator("#contents .sections a").all_inner_texts() == sections


def test_the_contents_mark_the_section_that_is_read(fresh):
    page = fresh.go(CHAPTER)
    for section in ("line-by-line", "traps"):
        page.locator(f"#{section}").evaluate("box => box.scrollIntoView()")
        marked = page.locator("#contents .sections [aria-current=true]")
        expect(marked).to_have_attribute("href", f"#{section}")


def test_the_start_page_leads_back_to_the_place_of_reading(fresh):
    page = fresh.go(CHAPTER)
    page.locator("#traps").evaluate("box => box.scrollIntoView()")
    expect(page.locator("#contents .sections [aria-current=true]")).to_have_text(
        "Traps"
    )
    fresh.go("index.html")
    page.locator(".continue a").click()
    expect(page).to_have_url(f"{fresh.address}/{CHAPTER}#traps")


def test_tab_walks_a_page_in_few_steps(fresh):
    page = fresh.go(CHAPTER)
    page.wait_for_load_state("load")
    stops = page.evaluate("""() => [...document.querySelectorAll(
      "a[href], button, summary, input, [tabindex='0']")]
      .filter(x => x.tabIndex >= 0 && x.checkVisibility()).length""")
    assert stops < 200


def test_the_page_for_wrong_addresses_leads_on(fresh):
    page = fresh.go("404.html")
    expect(page.locator("h1")).to_have_text("There is no such page")
    page.get_by_role("link", name="the start page").click()
    expect(page).to_have_url(f"{fresh.address}/index.html")


LONG = "chapters/ddpg.html"


def test_long_code_is_cut_on_a_phone_until_one_asks(fresh):
    page = fresh.go(LONG)
    fresh.set(NARROW)
    box = page.locator(".cell.tag_program .highlight").first
    button = box.get_by_role("button", name=re.compile(r"Show all \d\d lines"))
    assert box.bounding_box()["height"] < 250
    page.emulate_media(media="print")
    expect(button).to_be_hidden()
    assert box.bounding_box()["height"] > 800
    page.emulate_media(media="screen")
    button.press("Enter")
    expect(button).to_have_count(0)
    assert box.bounding_box()["height"] > 800
    fresh.set()
    expect(page.locator(".show-all >> visible=true")).to_have_count(0)


@pytest.mark.parametrize("way", ["#def-PPO.learn", "Tab"])
def test_what_is_cut_is_shown_where_it_is_looked_for(fresh, way):
    fresh.page.set_viewport_size({"width": NARROW, "height": 844})
    page = fresh.go("chapters/learners/ppo.html" + way.removeprefix("Tab"))
    target = page.locator("[id='def-PPO.learn']")
    if way == "Tab":  # as a search in the page does, it scrolls what is cut
        target.evaluate("box => { box.tabIndex = 0; box.focus(); }")
    expect(target).to_be_in_viewport()
    expect(page.locator(".cut", has=target)).to_have_count(0)
    expect(target).to_be_in_viewport()


def test_prose_stays_beside_long_code(fresh):
    page = fresh.go("chapters/learners/ppo.html")
    row = page.locator(".weave-row").filter(has=page.locator(".weave-code"))
    heights = [box.bounding_box()["height"] for box in row.all()]  # type: ignore[index]
    longest = row.nth(heights.index(max(heights)))
    longest.evaluate("row => scrollBy(0, row.getBoundingClientRect().top + 40)")
    prose = longest.locator(".weave-prose").bounding_box()
    assert prose is not None
    assert prose["y"] > 0


# --- Links and what they lead to ------------------------------------------------------


def test_a_link_to_a_folded_test_opens_it(fresh):
    page = fresh.go(CHAPTER)
    page.locator(".equation-ties a[href*='test-']").first.click()
    target = page.locator(":target")
    expect(target.locator("details")).to_have_attribute("open", "")
    expect(target.locator("pre")).to_be_in_viewport()


def test_a_link_to_an_equation_shows_it_below_the_bar(fresh):
    page = fresh.go(CHAPTER)
    link = page.locator("article .weave-prose a[href^='#equation-']").first
    link.click()
    target = page.locator(":target")
    box, bar = target.bounding_box(), page.locator(".top").bounding_box()
    assert box is not None
    assert bar is not None
    assert box["y"] > bar["y"] + bar["height"] + 30  # so that its sentence is seen
    outline = target.evaluate("box => getComputedStyle(box).boxShadow")
    assert outline != "none"


@pytest.mark.parametrize("window", ["fresh", "from_disk"])
@pytest.mark.parametrize(
    "target", ["glossary.html#term-", "bibliography.html#", "#equation-"]
)
def test_what_a_link_leads_to_is_shown_beside_it(window, target, request):
    page = request.getfixturevalue(window).go(CHAPTER)
    link = page.locator(f"article a[href*='{target}']:not(.headerlink)").first
    link.scroll_into_view_if_needed()
    link.hover()
    peek = page.locator("#peek")
    expect(peek).to_be_visible()
    assert len(peek.inner_text()) > 5
    page.mouse.move(0, 0)
    expect(peek).to_be_hidden()


@pytest.mark.parametrize("window", ["fresh", "from_disk"])
def test_an_equation_says_what_its_letters_mean(window, request):
    page = request.getfixturevalue(window).go(CHAPTER)
    equation = page.locator("#equation-gae")
    formula, peek = equation.locator(".katex-display"), page.locator("#peek")
    for show in (formula.hover, equation.locator(".headerlink").focus):
        page.keyboard.press("Tab")  # from here on, focus is seen
        show()
        expect(peek).to_be_visible()
        expect(peek).to_contain_text("TD error")
        expect(peek).to_contain_text("discount")
        page.mouse.move(0, 0)
        page.keyboard.press("Escape")
        expect(peek).to_be_hidden()


@pytest.mark.parametrize(
    ("formula", "letters"),
    [
        (r"\mathbb{E}_\pi[ G_t ]", {r"\mathbbE", "G"}),
        (r"\operatorname*{argmax}_a Q(s, a)", {"Q", "s", "a"}),
        (r"{\operatorname{std} \hat A} + \max_j z_j", {r"\hatA", "z"}),
        (r"Z \overset{D}{=} r", {"Z", "r"}),
        (r"\pi_{\text{old}}", {r"\pi"}),
    ],
)
def test_letters_of_a_command_are_no_symbols(formula, letters):
    found = {base for base, _ in symbols.symbols(formula)}
    assert letters <= found
    assert not {x for x in found if x.isalpha()} - letters


def test_a_table_begins_where_the_text_does(fresh):
    page = fresh.go("chapters/rainbow.html")
    table, text = (
        page.locator(f"article {tag}").first.evaluate(
            "x => x.getBoundingClientRect().x"
        )
        for tag in ("table", "h1")
    )
    assert abs(table - text) < 1


def test_the_glossary_leads_to_the_chapters():
    [item] = soup("docs/glossary.html").select("#term-advantage")
    definition = item.find_next("dd")
    assert definition is not None
    links = [str(link["href"]) for link in definition.select("a")]
    assert links
    assert all(link.startswith("../chapters/") for link in links)
    [item] = soup("docs/glossary.html").select("#term-A2C")
    [link] = item.find_next("dd").select("a")
    assert link["href"] == "../chapters/a2c.html"


# --- Paper, and pages without a script ------------------------------------------------


def test_a_dark_page_prints_light_and_open(fresh):
    page = fresh.go(CHAPTER)
    folded = page.locator("article details:not([open])")
    before = folded.count()
    assert before > 1
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    style = (
        "box => [getComputedStyle(box).color, getComputedStyle(box).backgroundColor]"
    )
    assert page.locator("body").evaluate(style)[1] == "rgb(255, 255, 255)"
    for heading in page.locator("h1, h2").all():
        assert heading.evaluate(style)[0] == "rgb(0, 0, 0)"
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
    page.set_viewport_size({"width": NARROW, "height": 844})
    page.get_by_role("button", name="Contents").click()
    expect(page.locator("#contents")).to_be_visible()
    context.close()


def test_the_scheme_is_chosen_and_kept(fresh):
    page = fresh.go(CHAPTER)
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    keyword = page.locator(".weave-code .k").first
    expect(keyword).to_have_css("color", KEYWORD["light"])
    page.get_by_role("button", name="Light or dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(keyword).to_have_css("color", KEYWORD["dark"])
    fresh.go("index.html")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


# --- Weight ---------------------------------------------------------------------------


def test_a_chapter_is_light(site, browser):
    visit: Visit = visit_in(browser, site)
    sizes: list[int] = []
    visit.page.on("response", lambda answer: sizes.append(len(answer.body())))
    visit.go(CHAPTER)
    visit.page.wait_for_load_state("networkidle")
    assert sum(sizes) < 1_500_000
    shift = visit.page.evaluate("""() => new Promise(done =>
      new PerformanceObserver(list => done(list.getEntries().map(x => x.value)
        .reduce((a, b) => a + b, 0))).observe({type: "layout-shift", buffered: true})
      || setTimeout(done, 500, 0))""")
    assert shift < 0.03
    visit.page.context.close()
