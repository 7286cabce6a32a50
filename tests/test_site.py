"""The built site, as its readers meet it: read as files, and opened in a browser."""

import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import nbformat
import pytest
import reader
import tangle
from axe_playwright_python.sync_playwright import Axe
from bs4 import BeautifulSoup, NavigableString, Tag
from docutils.nodes import make_id as sphinx_id
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    Route,
    expect,
)

ROOT = tangle.ROOT
SITE = ROOT / "build/html"
WIDE, NARROW = 1440, 390


# The pages of the API are all made alike, so one stands for them where a test is slow.
API_EXAMPLE = "docs/api/learners/sac.html"
GENERATED = ["genindex.html", "py-modindex.html", "search.html"]


def kind(name: str) -> int:
    """Say what kind of page this is, in the order of the lists below."""
    if name.startswith("chapters/"):
        # Chapters of evidence have no package code, and so no columns and no switch.
        text = source_of(name).read_text("utf-8")
        return 0 if re.search(r'^# %% .*"export"', text, re.M) else 1
    if name.startswith("docs/api/"):
        return 3 if name == API_EXAMPLE else 4
    return 5 if name in GENERATED else 2


def source_of(name: str) -> Path:
    """Return the file from which a chapter's page is made."""
    return (ROOT / name).with_suffix(".py")


def html_files() -> list[str]:
    """Return all pages, kind by kind."""
    names = [path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html")]
    # An old address only leads to the new one.
    pages = [
        name
        for name in names
        if not name.startswith("_")
        and (not name.startswith("chapters/") or source_of(name).exists())
    ]
    return sorted(pages, key=lambda name: (kind(name), name))


# Each list begins the next one: so pytest opens a page once for all tests of it.
PAGES = html_files()
WRITTEN = [name for name in PAGES if kind(name) <= 4]
LOOKED_AT = [name for name in PAGES if kind(name) <= 3]
CHAPTERS = [name for name in PAGES if kind(name) <= 1]
WOVEN = [name for name in PAGES if kind(name) == 0]


def grouped(names: list[str]) -> list:
    """Return pages as parameters; one worker gets all tests of a page."""
    return [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in names]


each_page = pytest.mark.parametrize("name", grouped(PAGES))
each_chapter = pytest.mark.parametrize("name", grouped(CHAPTERS))


# --- The pages as files ---------------------------------------------------------------


STROKES = '<span class="katex-html" aria-hidden="true">'


def without_strokes(text: str) -> str:
    """Return a page without colours of code and the inside of drawn formulas.

    These are most of its tags, and nothing is asked about them here.
    """
    head, *parts = text.split(STROKES)
    for i, part in enumerate(parts):
        depth = 1
        for tag in re.finditer(r"<(/?)span", part):
            depth += -1 if tag[1] else 1
            if not depth:
                parts[i] = part[tag.start() :]
                break
    text = STROKES.join([head, *parts])
    return re.sub(r'<span class="\w{1,3}">([^<]*)</span>', r"\1", text)


@lru_cache(maxsize=8)  # a parsed page is large, and its tests follow each other
def soup(name: str) -> BeautifulSoup:
    """Return a page, parsed."""
    text = (SITE / name).read_text("utf-8")
    return BeautifulSoup(without_strokes(text), "html.parser")


@cache
def anchors(name: str) -> list[str]:
    """Return the places of a page that a link can lead to."""
    return re.findall(r'<[^<>]*\sid="([^"]+)"', (SITE / name).read_text("utf-8"))


def broken(name: str, link: str) -> str:
    """Return what is wrong with an internal link, or nothing."""
    parts = urlsplit(urljoin(f"/{name}", link))
    target = unquote(parts.path).lstrip("/")
    if not (SITE / target).is_file():
        return f"{link}: no such file"
    fragment = unquote(parts.fragment)
    if fragment and target.endswith(".html") and fragment not in anchors(target):
        return f"{link}: no such anchor"
    return ""


def is_internal(link: str) -> bool:
    """Say whether a link leads to a file of the site."""
    return link not in ("", "#") and not urlsplit(link).scheme


def source(name: str) -> tangle.NotebookNode:
    """Return the chapter that a page was made from."""
    return tangle.read(ROOT / Path(name).with_suffix(".py"))


def exported_cells(name: str) -> list[str]:
    """Return the sources of a chapter's export cells."""
    return [cell.source for cell in source(name).cells if tangle.is_export(cell)]


@cache
def book() -> reader.Book:
    """Return the book that the readers' notebooks are made from."""
    return reader.Book()


@cache
def notebooks() -> dict[str, str]:
    """Return the readers' notebooks by name."""
    return reader.reader_notebooks(book())


def test_the_site_is_built():
    assert [name for name in CHAPTERS if exported_cells(name)] == WOVEN
    assert PAGES, f"there is no site in {SITE}: run `make html`"


def test_every_page_of_the_sources_is_built():
    sources = [ROOT / "index.md", *(ROOT / "docs").glob("*.md")]
    sources += [*(ROOT / "docs/api").rglob("*.md"), *tangle.chapter_paths()]
    pages = {path.relative_to(ROOT).with_suffix(".html").as_posix() for path in sources}
    assert pages <= set(PAGES)


@each_page
def test_internal_links_are_alive(name):
    tags = soup(name).select("[href]:not(base), [src]")
    links = {str(tag.get("href") or tag.get("src")) for tag in tags}
    problems = [broken(name, link) for link in sorted(links) if is_internal(link)]
    assert not [problem for problem in problems if problem]


@each_page
def test_ids_are_unique(name):
    assert [i for i, count in Counter(anchors(name)).items() if count > 1] == []


@each_page
def test_images_have_a_text_alternative(name):
    for image in soup(name).select("img"):
        # Drawings on the cards of the start page are there to be recognised, no more.
        decorates = image.find_parent(class_="chapter-list") is not None
        assert decorates or str(image.get("alt", "")).strip(), image


@each_page
def test_no_cell_failed_or_warned(name):
    for output in soup(name).select(".output.traceback, .output.stderr"):
        pytest.fail(output.get_text())
    # What stands last in a cell is shown, wanted or not.
    for output in soup(name).select(".cell_output"):
        assert not re.search(r"<.+ at 0x[0-9a-f]+>", output.get_text())


def prose(tag: Tag) -> str:
    """Return the text of a tag without code and formulas."""
    if tag.name in ("pre", "code", "script", "style") or "math" in tag.get("class", ()):
        return ""
    return "".join(
        prose(child) if isinstance(child, Tag) else child
        for child in tag.children
        if isinstance(child, Tag) or type(child) is NavigableString
    )


@each_page
def test_no_markup_is_left_in_the_text(name):
    text = prose(soup(name))
    left = re.findall(r".*(?:\$\$|\\\(|\\\[|\{[\w:]+\}`|``|\]\().*", text)
    left += re.findall(r".*\$[^\s$](?:[^$\n]*[^\s$])?\$.*", text)
    left += re.findall(r".*\\[a-z]{3,}.*", text)
    left += re.findall(r"^\s*(?:Args|Attributes):\s*$", text, re.M)
    assert not left


@each_page
def test_mathematics_is_typeset(name):
    for formula in soup(name).select(".math"):
        assert len(formula.select("math")) == 1, formula
        assert len(formula.select(".katex-html[aria-hidden=true]")) == 1, formula
        assert not formula.select(".katex-error"), formula


@each_chapter
def test_equations_name_their_code_and_their_test(name):
    for block in soup(name).select("div.math[id^=equation-]"):
        label = str(block["id"]).removeprefix("equation-")
        if label.startswith("def-"):
            continue
        line = block.find_next_sibling()
        assert isinstance(line, Tag), label
        assert "equation-ties" in line.get("class", []), label
        text = line.get_text()
        assert re.fullmatch(r"computed by .+ · tested by .+", text), f"{label}: {text}"
        for link in line.select("a"):
            assert not broken(name, str(link["href"])), label


@cache
def index_of_equations() -> set[str]:
    """Return the places of the equations that the index lists."""
    links = soup("docs/equations.html").select(".equation-entry a")
    return {urlsplit(str(link["href"])).fragment for link in links}


@each_chapter
def test_the_index_lists_the_equations(name):
    listed = index_of_equations()
    for block in soup(name).select("div.math[id^=equation-]"):
        label = str(block["id"])
        assert label.startswith("equation-def-") or label in listed, label


@each_chapter
def test_descriptions_say_what_a_chapter_answers(name):
    [description] = soup(name).select("meta[name=description]")
    assert str(description["content"]).strip()


def test_a_description_is_a_whole_sentence():
    [description] = soup("docs/api.html").select("meta[name=description]")
    assert description["content"] == "pip install . in a clone installs literate_rl."


def test_the_reference_says_of_a_module_what_its_docstring_says():
    said = {
        str(entry.get_text()): str(entry.find_next_sibling("dd").get_text())
        for entry in soup("docs/api.html").select("dl.simple > dt")
    }
    assert len(said) > 60
    for module, text in said.items():
        first = import_module(f"literate_rl.{module}").__doc__.splitlines()[0]
        sentence = first.replace("``", "").replace("'", "’")
        assert text.strip().startswith(sentence), module


@each_chapter
def test_solutions_are_right(name):
    for cell in soup(name).select(".cell.tag_hide-cell"):
        if "grade(" in cell.get_text():
            output = cell.select_one(".cell_output")
            assert output is not None, cell.get_text()
            assert "Right" in output.get_text(), output.get_text()


@each_chapter
def test_the_facts_lead_to_the_other_views(name):
    links = {
        link.get_text(): str(link["href"])
        for link in soup(name).select(".chapter-facts a")
    }
    here = (SITE / name).parent
    place = Path(name).relative_to("chapters").with_suffix("")
    notebook = (here / links["Notebook"]).resolve()
    page = f"chapters/{place.as_posix()}"
    assert notebook == SITE / "notebooks" / book().chapters[page].notebook
    handed_out = nbformat.reads(notebook.read_text("utf-8"), 4)
    outputs = sum(len(cell.get("outputs", [])) for cell in handed_out.cells)
    assert outputs >= len(soup(name).select(".cell_output img, .cell_output pre"))
    for cell in handed_out.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    assert nbformat.writes(handed_out) + "\n" == notebooks()[notebook.name]
    chapter = (here / links["Source"]).resolve().read_bytes()
    assert chapter == (ROOT / f"chapters/{place}.py").read_bytes()
    if exported_cells(name):
        module = "literate_rl." + tangle.home_of(".".join(place.parts))
        page, _, fragment = links["Module"].partition("#")
        assert (here / page).resolve() == SITE / f"docs/api/{place}.html"
        assert fragment == f"module-{module}"


def test_the_notebooks_that_are_handed_out_find_their_package():
    handed_out = {path.name for path in (SITE / "notebooks").iterdir()}
    assert handed_out == {*notebooks(), reader.WHEEL}


@each_chapter
def test_notebooks_number_equations_as_pages_do(name):
    page = name.removesuffix(".html")
    shown = {
        str(block["id"]).removeprefix("equation-"): block.select_one(".eqno").get_text()
        for block in soup(name).select("div.math[id^=equation-]")
    }
    in_notebook = {
        sphinx_id(label): f"({number})"
        for label, (where, number) in book().equations.items()
        if where == page
    }
    assert {k: re.sub(r"[^(\w.)]", "", v) for k, v in shown.items()} == in_notebook
    tags = re.findall(r"\\\\tag\{(.+?)\}", notebooks()[book().chapters[page].notebook])
    assert [f"({tag})" for tag in tags] == list(in_notebook.values())


@each_chapter
def test_notebooks_lead_to_places_of_the_site(name):
    text = notebooks()[book().chapters[name.removesuffix(".html")].notebook]
    for link in set(re.findall(rf"\]\({book().site}([^)]*)\)", text)):
        assert not broken("index.html", link or "index.html"), link


@each_chapter
def test_names_in_code_lead_to_what_they_name(name):
    links = soup(name).select(".weave-code a, .cell_input .highlight a")
    found = {str(link["href"]): link.get_text() for link in links}
    for target, text in found.items():
        fragment = urlsplit(target).fragment
        last = re.split(r"[.\s]", text)[-1]
        assert fragment.split(".")[-1] == last or not fragment, f"{text}: {target}"
    others = [link for link in found if link.startswith("https://")]
    # A page may stand on the standard library alone.
    imports = " ".join(exported_cells(name))
    if re.search("^(?:import|from) (?:torch|numpy|gymnasium)", imports, re.M):
        assert others, "no name leads to the documentation of another project"
    place = Path(name).relative_to("chapters")
    own = [link for link in found if f"docs/api/{place.as_posix()}#" in link]
    assert own or not exported_cells(name), "no name leads to the chapter's API page"


@pytest.mark.parametrize("name", [n for n in WRITTEN if n.startswith("docs/api/")])
def test_sources_of_the_api_lead_into_a_chapter(name):
    page = soup(name)
    place = Path(name).relative_to("docs/api").as_posix()
    for signature in page.select("dl.function > dt, dl.class > dt"):
        assert not re.search(
            r" at 0x|<class|_empty", signature.get_text(" ", strip=True)
        )
        [link] = [a for a in signature.select("a") if "[source]" in a.get_text()]
        assert f"../chapters/{place}#" in str(link["href"])
        assert not broken(name, str(link["href"]))


# --- The pages in a browser -----------------------------------------------------------


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    """Serve the site; return its address."""
    if not (SITE / "index.html").exists():
        pytest.fail(f"there is no site in {SITE}: run `make html`")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = partial(Quiet, directory=str(SITE))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


# The theme follows the reader's colours and the window's width with a short delay.
SETTLED = """scheme =>
  document.documentElement.dataset.theme === scheme
  && document.getAnimations().every(animation =>
    animation.playState !== "running" || animation.timeline !== document.timeline)
  && document.fonts.status === "loaded"
  && [...document.querySelectorAll("article pre:not(.weave-code pre), .weave-code")]
    .filter(box => box.checkVisibility({contentVisibilityAuto: true}))
    .every(box => (box.tabIndex === 0) === (box.scrollWidth > box.clientWidth))"""


@dataclass
class Visit:
    """A page in the browser, what it complained of and whom it called."""

    page: Page
    address: str
    complaints: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    look: tuple[int, str] = (WIDE, "light")

    def go(self, name: str) -> Page:
        """Open a page of the site."""
        self.page.goto(f"{self.address}/{name}")
        return self.page

    def set(self, width: int = WIDE, scheme: str = "light") -> Page:
        """Change the width of the window and the reader's colour scheme."""
        self.look_as(width, scheme)
        self.page.wait_for_function(SETTLED, arg=scheme)
        return self.page

    def look_as(self, width: int = WIDE, scheme: str = "light") -> None:
        """Change them, and wait for nothing."""
        # Each change lays the page out anew, even one to what it is.
        if self.look != (width, scheme):
            self.page.set_viewport_size({"width": width, "height": 900})
            if self.look[1] != scheme:
                self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            self.look = width, scheme


def visit_in(browser: Browser, address: str, **options: Any) -> Visit:
    """Return a fresh window that notes what calls another host."""
    rights = ["clipboard-read", "clipboard-write"]
    context = browser.new_context(permissions=rights, **options)
    visit = Visit(context.new_page(), address)
    visit.page.set_default_timeout(60_000)
    visit.page.set_viewport_size({"width": WIDE, "height": 900})
    visit.page.emulate_media(color_scheme="light", reduced_motion="reduce")

    def look(request: Request) -> None:
        if not request.url.startswith((address, "data:", "blob:")):
            visit.calls.append(request.url)

    def hear(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            place = message.location["url"]
            visit.complaints.append(f"{message.type}: {message.text} ({place})")

    visit.page.on("request", look)
    visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    visit.page.on("console", hear)
    return visit


@pytest.fixture
def fresh(site: str, browser: Browser) -> Iterator[Visit]:
    """Return a window without memory."""
    visit = visit_in(browser, site)
    yield visit
    visit.page.context.close()


@pytest.fixture
def from_disk(site: str, browser: Browser) -> Iterator[Visit]:
    """Return a window that reads the site from ``file://``."""
    visit = visit_in(browser, SITE.as_uri())
    yield visit
    visit.page.context.close()


@pytest.fixture(scope="session")
def reused(site: str, browser: Browser) -> Iterator[Visit]:
    """Return a window for one page after the other: a fresh one costs twice as much."""
    visit = visit_in(browser, site)
    yield visit
    visit.page.context.close()


@pytest.fixture(scope="module")
def opened(reused: Visit, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """Open a page once for all tests of it, in a window that has seen nothing yet."""
    reused.go(request.param)
    yield reused
    reused.page.evaluate("localStorage.clear()")
    reused.page.goto("about:blank")  # which is soon laid out in the first look again
    reused.look_as()
    reused.complaints.clear()
    reused.calls.clear()


def in_browser(names: list[str]) -> pytest.MarkDecorator:
    """Open each of the pages."""
    pages = grouped(names)
    return pytest.mark.parametrize("opened", pages, indirect=True, scope="module")


# A page is laid out anew for each width, so its tests come in an order in which the
# width changes seldom. What changes the page comes last.


@in_browser(PAGES)
def test_a_page_opens_without_complaint_or_call(opened):
    assert not opened.complaints
    assert not opened.calls


# Code that is cut.
CUT = """() => [...document.querySelectorAll(".weave-code")]
  .filter(box => box.checkVisibility() && box.scrollWidth > box.clientWidth + 1)
  .map(box => box.innerText.slice(0, 80))"""

# What stands in the margin and lies upon another thing there, or below the equation.
CROWDED = """() => {
  const boxes = [...document.querySelectorAll(".equation-ties")]
    .map(box => [box, box.getBoundingClientRect()]);
  const wide = [...document.querySelectorAll(".weave-row, .cell, table")]
    .map(box => box.getBoundingClientRect());
  const over = (a, b) => a.left < b.right && b.left < a.right
    && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  return boxes.filter(([box, a], i) =>
    boxes.some(([_, b], j) => i !== j && over(a, b)) || wide.some(b => over(a, b)))
    .map(([box]) => box.innerText);
}"""


@in_browser(WOVEN)
@pytest.mark.parametrize("width", [1100, 1280, WIDE])
def test_two_columns_and_the_margin_have_room(opened, width):
    page = opened.set(width)
    assert page.evaluate(CUT) == []
    assert page.evaluate(CROWDED) == []


# Where prose and code of the rows stand that have both. Prose stays in sight beside
# long code, so the page must not be scrolled.
ROWS = """() => {
  scrollTo(0, 0);
  return [...document.querySelectorAll(".weave-row")]
    .map(row => [".weave-prose", ".weave-code"].map(part => row.querySelector(part)))
    .filter(([prose, code]) => prose && code && prose.textContent.trim())
    .map(parts => parts.map(part => part.getBoundingClientRect().toJSON()));
}"""


@in_browser(WOVEN)
def test_prose_stands_beside_its_code(opened):
    rows = opened.set(WIDE).evaluate(ROWS)
    assert rows
    for prose, code in rows:
        assert prose["right"] <= code["left"]
        assert abs(prose["top"] - code["top"]) < 2
        assert prose["width"] > 250
        assert code["width"] > 550


# The code of each woven cell, in two columns and as one piece.
CODE = """() => [...document.querySelectorAll(".cell.woven")].map(cell =>
  [".weave-code pre", ".weave-plain pre"].map(part =>
    [...cell.querySelectorAll(part)].map(box => box.textContent).join("\\n")))"""


@in_browser(WOVEN)
def test_two_columns_show_all_code(opened):
    cells = opened.set(WIDE).evaluate(CODE)
    assert cells
    for shown, plain in cells:
        lines = [line for line in shown.split("\n") if line.strip()]
        remaining = iter(plain.split("\n"))
        assert all(line in remaining for line in lines)


# What reaches beyond the right edge and is in no box that scrolls or hides it.
OVERHANG = """() => {
  const width = document.documentElement.clientWidth;
  const held = box => box !== document.body
    && (getComputedStyle(box).overflowX !== "visible" || held(box.parentElement));
  return [...document.querySelectorAll("body *")]
    .filter(node => node.getBoundingClientRect().right > width + 1)
    .filter(node => !held(node.parentElement))
    .map(node => `${node.tagName}.${node.className}: ${node.textContent.slice(0, 60)}`);
}"""


@in_browser(PAGES)
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_page_does_not_scroll_sideways(opened, width):
    page = opened.set(width)
    root = page.locator("html")
    excess = root.evaluate("root => root.scrollWidth - root.clientWidth")
    assert excess <= 0, f"{excess} px too wide: {page.evaluate(OVERHANG)[:5]}"
    # Nor has a finger a long way to go.
    if width == NARROW:
        assert root.evaluate("root => root.scrollHeight") <= 20_000


# What begins a line though it touches the end of a formula: a comma, say.
TORN = """() => [...document.querySelectorAll("span.math")].filter(formula => {
  const mark = formula.nextSibling;
  if (!formula.checkVisibility() || mark?.nodeType !== Node.TEXT_NODE) return false;
  const range = document.createRange();
  range.setStart(mark, 0);
  range.setEnd(mark, 1);
  const end = [...formula.querySelectorAll(".katex-base")].at(-1);
  return /^\\S/.test(mark.data)
    && range.getBoundingClientRect().top > end.getBoundingClientRect().bottom - 2;
}).map(formula => formula.querySelector("annotation").textContent
  + formula.nextSibling.data.slice(0, 20))"""


@in_browser(LOOKED_AT)
def test_no_line_begins_with_the_mark_behind_a_formula(opened):
    assert opened.set(NARROW).evaluate(TORN) == []


# Drawings that are cut, and what a finger may miss: a control of less than 24 pixels
# that has no larger label.
UNHANDY = """() => [
  ...[...document.querySelectorAll(".cell_output img")]
    .filter(image => image.getBoundingClientRect().right > innerWidth)
    .map(image => image.alt),
  ...[...document.querySelectorAll("main :is(button, summary, input)")]
    .map(control => control.closest("label") ?? control)
    .filter(box => box.checkVisibility())
    .filter(box => box.getBoundingClientRect().height < 24)
    .map(box => `${box.tagName} ${box.innerText}`)]"""


@in_browser(CHAPTERS)
def test_drawings_and_controls_suit_a_phone(opened):
    assert opened.set(NARROW).evaluate(UNHANDY) == []


@in_browser(WOVEN)
def test_prose_stands_above_its_code_on_a_phone(opened):
    rows = opened.set(NARROW).evaluate(ROWS)
    assert rows
    for prose, code in rows:
        assert prose["bottom"] <= code["top"] + 1
        assert code["width"] > 0.85 * (NARROW - 2 * code["left"])
        assert code["right"] <= NARROW


@in_browser(WOVEN)
def test_a_plain_notebook_does_not_scroll_sideways(opened):
    # One column: what fits in a narrow window fits in a wide one.
    page = opened.set(NARROW)
    switch = page.locator(".chapter-facts").get_by_role("button")
    switch.click()
    excess = page.locator("html").evaluate("it => it.scrollWidth - it.clientWidth")
    switch.click()
    assert excess <= 0


# The figures that are dials: all that say something, except for the agent.
DIAL = "figure.lr-picture:has(output):not(.lr-play, .lr-train)"
CONTROLS = re.compile(r'class="lr-controls" hidden><(?:label|table)')
WITH_DIALS = [
    name for name in CHAPTERS if CONTROLS.search((SITE / name).read_text("utf-8"))
]


# Where the marks of a dial are, and its sentence.
SHOWN = """figure => [
  [...figure.querySelectorAll("svg path, svg text")]
    .map(mark => mark.getAttribute("d") ?? mark.getAttribute("transform")),
  figure.querySelector("output").innerText]"""


def shown(figure: Locator) -> tuple[list[str | None], str]:
    """Return where the marks of a dial are, and its sentence."""
    places, sentence = figure.evaluate(SHOWN)
    return places, sentence


def test_chapters_have_dials():
    assert len(WITH_DIALS) >= 15


@in_browser(WITH_DIALS)
def test_keys_turn_every_dial(opened):
    for figure in opened.page.locator(DIAL).all():
        start = shown(figure)
        for slider in figure.locator("input[type=range]").all():
            value = slider.input_value()
            slider.press("End")
            last = shown(figure)
            slider.press("Home")
            first = shown(figure)
            # Both the drawing and the sentence say that something has changed.
            assert first[0] != last[0]
            assert first[1] != last[1]
            assert not any("NaN" in (place or "") for place in first[0] + last[0])
            slider.press("ArrowRight")
            assert slider.input_value() == "1"
            slider.fill(value)
            assert shown(figure) == start
        switches = figure.locator("td button").all()
        moved = []
        for switch in switches:
            state = switch.get_attribute("aria-pressed") or ""
            switch.press("Space")
            expect(switch).not_to_have_attribute("aria-pressed", state)
            moved.append(shown(figure) != start)
            switch.press("Enter")
            assert shown(figure) == start
        # Some change nothing, and rightly: the mask of an action that is not drawn.
        assert any(moved) or not switches
    assert not opened.complaints


UNFOLD = """() => {
  document.querySelectorAll("details").forEach(box => { box.open = true; });
  const style = document.createElement("style");
  style.textContent = "section { content-visibility: visible !important; }";
  document.head.append(style);
}"""


AXE = Axe().axe_script
AXE_OPTIONS = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"],
    "reporter": "no-passes",
    "preload": False,  # of style sheets, which none of these rules reads
}
# A page of code has thousands of spans in a few colours, and a formula is drawn with as
# many strokes. What has the same tags and classes all the way up looks the same, on
# other pages too, so the contrast of one stands for all of its kind. Other spans of
# code are dissolved, and strokes too, which have the colour of the text around them:
# that is much faster.
KINDS = """() => {
  const path = node => node === null ? ""
    : `${path(node.parentElement)}>${node.tagName}.${node.getAttribute("class")}`;
  window.kinds = new Map();
  for (const node of document.querySelectorAll("body *")) {
    const kind = path(node) + node.checkVisibility();
    if (!kinds.has(kind)) kinds.set(kind, node);
  }
  return [...kinds.keys()];
}"""
THIN_OUT = """unknown => {
  unknown.forEach(kind => { kinds.get(kind).dataset.judged = ""; });
  document.querySelectorAll(".highlight span:not([data-judged])")
    .forEach(span => span.replaceWith(...span.childNodes));
  document.querySelectorAll(".katex-html").forEach(box => box.replaceChildren());
  document.querySelectorAll("math")
    .forEach(box => box.replaceChildren(box.textContent));
  const judged = "[data-judged]";
  axe.configure({rules: [
    {id: "color-contrast", selector: judged},
    {id: "link-in-text-block", selector: `a[href]${judged}`},
  ]});
}"""


def accessibility(page: Page, known: set[str] | None = None) -> list[str]:
    """Return what axe finds on a page as it is now.

    Args:
        page: The page.
        known: Kinds that were judged on other pages which look the same; grows.
    """
    known = set() if known is None else known
    page.evaluate(AXE)
    unknown = [kind for kind in page.evaluate(KINDS) if kind not in known]
    known.update(unknown)
    page.evaluate(THIN_OUT, unknown)
    found = page.evaluate("options => axe.run(options)", AXE_OPTIONS)
    return [
        f"{rule['id']} ({rule['impact']}): {' '.join(node['html'].split())[:200]}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


# Contrast depends on the scheme and boxes that scroll on the width. All pages have the
# same styles, so the pages take turns.
LOOKS = [(WIDE, "light"), (NARROW, "dark")]


@pytest.fixture(scope="session")
def known() -> list[set[str]]:
    """Return what was judged on the pages before, in either look."""
    return [set(), set()]


@in_browser(LOOKED_AT)
def test_a_page_is_accessible(opened, known):
    # What is folded or out of sight is looked at too.
    turn = LOOKED_AT.index(opened.page.url.removeprefix(f"{opened.address}/")) % 2
    opened.page.evaluate(UNFOLD)
    assert not accessibility(opened.set(*LOOKS[turn]), known[turn])


# Each cell's text as its button copies it, and whether the button says so.
COPY = """async cells => {
  const copied = [];
  for (const cell of cells) {
    const button = cell.querySelector("button.copybtn");
    button.classList.remove("success");
    button.click();
    const said = button.classList.contains("success");
    copied.push([await navigator.clipboard.readText(), said]);
  }
  return copied;
}"""


@in_browser(CHAPTERS)
def test_the_copy_button_copies_the_whole_cell(opened):
    page = opened.page
    sources = exported_cells(page.url.removeprefix(opened.address + "/"))
    cells = page.locator(".cell.tag_export")
    expect(cells).to_have_count(len(sources))
    page.evaluate(UNFOLD)
    if sources:  # the pointer finds the first one
        cells.first.hover()
        cells.first.locator("button.copybtn").click()
        assert page.evaluate("navigator.clipboard.readText()") == sources[0]
    copied = cells.evaluate_all(COPY)
    assert copied == [[text, True] for text in sources]


# --- A few pages, which stand for all -------------------------------------------------

# All pages load the same scripts and styles, so a few stand for all.
FEW = ["index.html", CHAPTERS[1], "docs/results.html", "search.html"]


@pytest.mark.parametrize("name", ["docs/equations.html", "docs/results.html"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_long_page_lays_out_what_is_seen(fresh, name, width):
    """Else they have 18,000 and 34,000 boxes, and a slow phone waits for all."""
    fresh.page.set_viewport_size({"width": width, "height": 900})
    page = fresh.go(name)
    page.wait_for_function(SETTLED, arg="light")
    talk = page.context.new_cdp_session(page)
    talk.send("Performance.enable")
    told = talk.send("Performance.getMetrics")["metrics"]
    numbers = {entry["name"]: entry["value"] for entry in told}
    assert 500 < numbers["LayoutObjects"] < 12_000
    # It waits for no script but the one in its head, which is short.
    scripts = page.locator("head script").all()
    assert len(scripts[0].text_content() or "") < 1500
    assert all(script.get_attribute("defer") for script in scripts[1:])


@pytest.mark.parametrize("name", FEW)
def test_a_page_opens_from_disk(from_disk, name):
    page = from_disk.go(name)
    assert not from_disk.complaints
    assert not from_disk.calls
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_reader(fresh, name, scheme):
    fresh.go(name)
    page = fresh.set(scheme=scheme)
    colour = "body => getComputedStyle(body).backgroundColor"
    red, green, blue = re.findall(r"\d+", page.locator("body").evaluate(colour))[:3]
    brightness = (int(red) + int(green) + int(blue)) / 3
    assert brightness > 200 if scheme == "light" else brightness < 60


# A browser does not tell the colour of a visited link, and one pointer cannot hover on
# everything. So each state becomes a class, which weighs the same in the cascade.
STATE = re.compile(r"(?<!hover):(visited|hover|active|target|focus)(?![-\w])")
STATES = ["visited", "hover", "hover active", "target", "focus"]


def states_as_classes(route: Route) -> None:
    """Send a style sheet that a test can put into any state."""
    answer = route.fetch()
    route.fulfill(response=answer, body=STATE.sub(r".state-\1", answer.text()))


# What gets another colour when the sheets are taken away that are not the theme's, and
# that colour. In the dark, where the colours of code in the light are foreign too.
FOREIGN_COLOURS = """states => {
  const colours = ["color", "background-color", "fill", "stroke", "box-shadow",
    "outline-color", "text-decoration-color", "border-top-color",
    "border-right-color", "border-bottom-color", "border-left-color"];
  const own = ["book", "landing", "dark"];
  const others = [...document.styleSheets].filter(({href}) =>
    href && !own.some(name => href.includes(`/_static/${name}.css`)));
  const nodes = [...document.querySelectorAll("body *:not(.katex *)")];
  // One stands for all of its kind: the same tags, classes and attributes all the way
  // up, at an odd or an even place, the first and the last for themselves.
  const kinds = new Map(), places = new Map(), ones = new Map();
  for (const node of nodes) {
    const place = (places.get(node.previousElementSibling) ?? 0) + 1;
    const said = [...node.attributes].map(({name, value}) =>
      ["class", "type", "role"].includes(name) ? value : name);
    const kind = [kinds.get(node.parentElement), node.tagName, ...said, place % 2,
      place === 1, node.nextElementSibling === null].join(" ");
    places.set(node, place);
    kinds.set(node, kind);
    if (!ones.has(kind)) ones.set(kind, node);
  }
  const looked = [...ones.values()];
  const look = () => looked.map(node => {
    const style = getComputedStyle(node);
    return colours.map(colour => `${colour}: ${style.getPropertyValue(colour)}`);
  });
  nodes.forEach(node => node.classList.add(...states));
  const before = look();
  others.forEach(sheet => { sheet.disabled = true; });
  // A visited link looks as any other.
  nodes.forEach(node => node.classList.remove("state-visited"));
  const after = look();
  others.forEach(sheet => { sheet.disabled = false; });
  nodes.forEach(node => node.classList.remove(...states));
  return [...new Set(looked.flatMap((node, i) =>
    after[i].filter((colour, k) => colour !== before[i][k])
      .map(colour => `${node.tagName}.${node.getAttribute("class")} ${colour}`)))];
}"""


OTHER_KINDS = ["search.html?q=clipped", *GENERATED[:2], "docs/notation.html"]


@pytest.mark.parametrize("name", [*FEW[:3], API_EXAMPLE, *OTHER_KINDS])
def test_only_the_theme_gives_colours(fresh, name):
    fresh.page.route("**/*.css?*", states_as_classes)
    page = fresh.go(name)
    if "?q=" in name:
        expect(page.locator("#search-results a").first).to_be_visible()
    fresh.set(scheme="dark")
    page.add_style_tag(content="* { transition: none !important; }")
    for state in STATES:
        states = [f"state-{each}" for each in state.split()]
        assert page.evaluate(FOREIGN_COLOURS, states) == [], state


def test_the_switch_shows_the_plain_notebook_and_remembers(fresh):
    page = fresh.go("chapters/advantages.html")
    columns = page.locator(".weave-columns").first
    plain = page.locator(".weave-plain pre").first
    switch = page.locator(".chapter-facts").get_by_role("button")
    expect(columns).to_be_visible()
    expect(plain).to_be_hidden()

    switch.click()
    expect(columns).to_be_hidden()
    expect(plain).to_be_visible()
    page.reload()
    expect(columns).to_be_hidden()
    expect(plain).to_be_visible()
    page.goto(f"{fresh.address}/{CHAPTERS[0]}")
    expect(page.locator(".weave-columns").first).to_be_hidden()

    switch.click()
    expect(page.locator(".weave-columns").first).to_be_visible()
    fresh.go("chapters/advantages.html")
    expect(columns).to_be_visible()
    expect(plain).to_be_hidden()


def test_the_switch_works_from_the_keyboard(fresh):
    page = fresh.go("chapters/advantages.html")
    switch = page.locator(".chapter-facts").get_by_role("button")
    before = switch.inner_text()
    switch.press("Enter")
    expect(page.locator(".weave-columns").first).to_be_hidden()
    expect(switch).not_to_have_text(before)


def test_the_mouse_turns_a_dial(fresh):
    page = fresh.go("chapters/advantages.html")
    figure = page.locator(DIAL).first
    slider = figure.locator("input[type=range]")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 2, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 1, middle, steps=5)
    first = shown(figure)
    page.mouse.move(box["x"] + box["width"] - 1, middle, steps=5)
    page.mouse.up()
    assert shown(figure)[0] != first[0]
    assert slider.input_value() == slider.get_attribute("max")
    assert not fresh.complaints


def test_a_finger_turns_a_dial_and_pushes_the_agent(site, browser):
    visit = visit_in(browser, site, has_touch=True, is_mobile=True)
    visit.page.set_viewport_size({"width": NARROW, "height": 844})
    page = visit.go("chapters/advantages.html")
    figure = page.locator(DIAL).first
    slider = figure.locator("input[type=range]")
    box = slider.bounding_box()
    slider.tap(position={"x": 3, "y": box["height"] / 2})
    first = shown(figure)
    assert slider.input_value() == "0"
    slider.tap(position={"x": box["width"] - 3, "y": box["height"] / 2})
    assert shown(figure)[0] != first[0]
    assert slider.input_value() == slider.get_attribute("max")

    page = visit.go("chapters/ppo.html")
    agent = page.locator(".lr-play")
    cart = agent.locator(".lr-moves").first
    before = cart.get_attribute("transform") or ""
    agent.get_by_role("button", name="Push right").tap()
    expect(agent.get_by_role("button", name="Pause")).to_be_visible()
    expect(cart).not_to_have_attribute("transform", before)
    assert not visit.complaints
    page.context.close()


@pytest.mark.parametrize("window", ["fresh", "from_disk"])
def test_the_agent_of_a_chapter_can_be_pushed(window, request):
    visit = request.getfixturevalue(window)
    page = visit.go("chapters/ppo.html")
    agent = page.locator(".lr-play")
    agent.get_by_role("button", name="Start again").click()
    dots = agent.locator("svg").last.locator("path").last
    expect(dots).to_have_attribute("d", "")
    agent.focus()
    page.keyboard.press("ArrowLeft")
    expect(dots).to_have_attribute("d", re.compile(r"^M[\d.]+,[\d.]+h0$"))
    assert not visit.complaints
    assert not visit.calls
