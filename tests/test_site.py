"""The built site, as its readers meet it: read as files, and opened in a browser.

Each page is opened once and asked all its questions at once.
"""

import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
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
from playwright.sync_api import Browser, Locator, Page, expect

ROOT = tangle.ROOT
SITE = ROOT / "build/html"
WIDE, NARROW = 1440, 390

# The pages of the API are all made alike, so one stands for them where a test is slow.
API_EXAMPLE = "docs/api/learners/sac.html"
GENERATED = ["genindex.html", "py-modindex.html", "search.html"]


def source_of(name: str) -> Path:
    """Return the file from which a chapter's page is made."""
    return (ROOT / name).with_suffix(".py")


# An old address only leads to the new one.
PAGES = sorted(
    name
    for name in (path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
    if not name.startswith("_")
    and (not name.startswith("chapters/") or source_of(name).exists())
)
CHAPTERS = [name for name in PAGES if name.startswith("chapters/")]
# Chapters of evidence have no package code, and so no columns and no switch.
WOVEN = [
    name
    for name in CHAPTERS
    if re.search(r'^# %% .*"export"', source_of(name).read_text("utf-8"), re.M)
]
LOOKED_AT = [
    name
    for name in PAGES
    if name not in GENERATED
    and (name == API_EXAMPLE or not name.startswith("docs/api/"))
]


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


@lru_cache(maxsize=8)  # a parsed page is large
def soup(name: str) -> BeautifulSoup:
    """Return a page, parsed."""
    text = (SITE / name).read_text("utf-8")
    return BeautifulSoup(without_strokes(text), "html.parser")


@cache
def anchors(name: str) -> list[str]:
    """Return the places of a page that a link can lead to."""
    return re.findall(r'<[^<>]*\sid="([^"]+)"', (SITE / name).read_text("utf-8"))


def broken(name: str, link: str) -> str:
    """Return what is wrong with a link if it leads to the site, or nothing."""
    if link in ("", "#") or urlsplit(link).scheme:
        return ""
    parts = urlsplit(urljoin(f"/{name}", link))
    target, fragment = unquote(parts.path).lstrip("/"), unquote(parts.fragment)
    if not (SITE / target).is_file():
        return f"{link}: no such file"
    if fragment and target.endswith(".html") and fragment not in anchors(target):
        return f"{link}: no such anchor"
    return ""


def exported_cells(name: str) -> list[str]:
    """Return the sources of a chapter's export cells."""
    cells = tangle.read(source_of(name)).cells
    return [cell.source for cell in cells if tangle.is_export(cell)]


@cache
def notebooks() -> tuple[reader.Book, dict[str, str]]:
    """Return the book and the readers' notebooks by name."""
    return (book := reader.Book()), reader.reader_notebooks(book)


def test_every_page_and_notebook_is_built():
    sources = [ROOT / "index.md", *(ROOT / "docs").glob("*.md")]
    sources += [*(ROOT / "docs/api").rglob("*.md"), *tangle.chapter_paths()]
    pages = {path.relative_to(ROOT).with_suffix(".html").as_posix() for path in sources}
    assert pages <= set(PAGES), "run `make html`"
    handed_out = {path.name for path in (SITE / "notebooks").iterdir()}
    assert handed_out == {*notebooks()[1], reader.WHEEL}


def test_old_addresses_lead_to_pages():
    texts = {
        path.relative_to(SITE).as_posix(): path.read_text("utf-8")
        for path in SITE.rglob("*.html")
    }
    moved = {
        name: re.findall(r'http-equiv="refresh" content="0; *url=([^"]+)"', text)
        for name, text in texts.items()
        if "http-equiv" in text
    }
    assert len(moved) > 100
    for name, [link] in moved.items():
        assert not broken(name, link), name
        assert unquote(urljoin(f"/{name}", link))[1:] in PAGES, name


def prose(tag: Tag) -> str:
    """Return the text of a tag without code and formulas."""
    if tag.name in ("pre", "code", "script", "style") or "math" in tag.get("class", ()):
        return ""
    return "".join(
        prose(child) if isinstance(child, Tag) else child
        for child in tag.children
        if isinstance(child, Tag) or type(child) is NavigableString
    )


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole(name):
    page = soup(name)
    tags = page.select("[href]:not(base), [src]")
    links = {str(tag.get("href") or tag.get("src")) for tag in tags}
    assert {*filter(None, (broken(name, link) for link in links))} == set()
    assert [i for i, count in Counter(anchors(name)).items() if count > 1] == []
    for image in page.select("img:not(.chapter-list *)"):  # whose cards have words
        assert str(image.get("alt", "")).strip(), image
    for output in page.select(".cell_output"):
        assert not output.select(".traceback, .stderr"), output.get_text()
        # What stands last in a cell is shown, wanted or not.
        assert not re.search(r"<.+ at 0x[0-9a-f]+>", output.get_text())
    for formula in page.select(".math"):
        drawn = formula.select("math, .katex-html[aria-hidden=true], .katex-error")
        assert [x.name for x in drawn] == ["math", "span"], formula
    assert not re.findall(
        r".*(?:\$\$|\\\(|\\\[|\{[\w:]+\}`|``|\]\(|\\[a-z]{3,}).*"
        r"|.*\$[^\s$](?:[^$\n]*[^\s$])?\$.*|(?m:^\s*(?:Args|Attributes):\s*$)",
        prose(page),
    ), "markup is left in the text"


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_is_tied_to_its_code_tests_and_notebook(name):
    page, (book, made) = soup(name), notebooks()
    place = Path(name).relative_to("chapters").with_suffix("")
    docname = name.removesuffix(".html")
    # Equations name their code and their tests, and have the number of the notebook.
    numbers = {}
    for block in page.select("div.math[id^=equation-]"):
        label = str(block["id"]).removeprefix("equation-")
        number = block.select_one(".eqno").get_text()
        numbers[label] = re.sub(r"[^(\w.)]", "", number)
        if not label.startswith("def-"):
            ties = block.find_next_sibling(class_="equation-ties").get_text()
            assert re.fullmatch(r"computed by .+ · tested by .+", ties), label
    assert numbers == {
        sphinx_id(label): f"({number})"
        for label, (where, number) in book.equations.items()
        if where == docname
    }
    wanted = made[book.chapters[docname].notebook]
    tags = re.findall(r"\\\\tag\{(.+?)\}", wanted)
    assert [f"({tag})" for tag in tags] == list(numbers.values())
    for link in set(re.findall(rf"\]\({book.site}([^)]*)\)", wanted)):
        assert not broken("index.html", link or "index.html"), link
    for cell in page.select(".cell.tag_hide-cell"):
        if "grade(" in cell.get_text():
            assert "Right" in cell.select_one(".cell_output").get_text()

    # The facts lead to the notebook with its outputs, the source and the module.
    facts = {x.get_text(): str(x["href"]) for x in page.select(".chapter-facts a")}
    here = (SITE / name).parent
    notebook = nbformat.read(here / facts["Notebook"], 4)
    outputs = sum(len(cell.get("outputs", [])) for cell in notebook.cells)
    assert outputs >= len(page.select(".cell_output img, .cell_output pre"))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    assert nbformat.writes(notebook) + "\n" == wanted
    assert (here / facts["Source"]).read_bytes() == source_of(name).read_bytes()
    if name in WOVEN:
        module = tangle.home_of(".".join(place.parts))
        fragment = f"docs/api/{place}.html#module-literate_rl.{module}"
        assert facts["Module"].endswith(fragment)

    # Names in code lead to what they name.
    links = page.select(".weave-code a, .cell_input .highlight a")
    found = {str(link["href"]): link.get_text() for link in links}
    for target, text in found.items():
        fragment = urlsplit(target).fragment
        last = re.split(r"[.\s]", text)[-1]
        assert fragment.split(".")[-1] == last or not fragment, f"{text}: {target}"
    assert name not in WOVEN or any(f"docs/api/{place}.html#" in x for x in found)


# --- The pages in a browser -----------------------------------------------------------


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    """Serve the site; return its address."""

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

    def go(self, name: str) -> Page:
        """Open a page of the site."""
        self.page.goto(f"{self.address}/{name}")
        return self.page

    def look_as(self, width: int = WIDE, scheme: str = "light") -> None:
        """Change the width of the window and the reader's colour scheme."""
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")

    def set(self, width: int = WIDE, scheme: str = "light") -> Page:
        """Change them, and wait until the page has."""
        self.look_as(width, scheme)
        self.page.wait_for_function(SETTLED, arg=scheme)
        return self.page


def visit_in(browser: Browser, address: str, **options: Any) -> Visit:
    """Return a fresh window that notes what calls another host."""
    rights = ["clipboard-read", "clipboard-write"]
    context = browser.new_context(permissions=rights, **options)
    visit = Visit(context.new_page(), address)
    visit.page.set_default_timeout(60_000)
    visit.look_as()

    def look(request: Any) -> None:
        if not request.url.startswith((address, "data:", "blob:")):
            visit.calls.append(request.url)

    def hear(message: Any) -> None:
        if message.type in ("error", "warning"):
            visit.complaints.append(f"{message.text} ({message.location['url']})")

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
def from_disk(browser: Browser) -> Iterator[Visit]:
    """Return a window that reads the site from ``file://``."""
    visit = visit_in(browser, SITE.as_uri())
    yield visit
    visit.page.context.close()


@pytest.fixture(scope="session")
def one_window(site: str, browser: Browser) -> Iterator[Visit]:
    """Return a window for one page after the other: a fresh one costs twice as much."""
    visit = visit_in(browser, site)
    yield visit
    visit.page.context.close()


@pytest.fixture
def reused(one_window: Visit) -> Iterator[Visit]:
    """Return that window as if it had seen nothing yet."""
    yield one_window
    one_window.page.evaluate("localStorage.clear()")
    one_window.page.goto("about:blank")
    one_window.complaints.clear()
    one_window.calls.clear()


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


# Where prose and code of the rows stand that have both. Prose stays in sight beside
# long code, so the page must not be scrolled.
ROWS = """() => {
  scrollTo(0, 0);
  return [...document.querySelectorAll(".weave-row")]
    .map(row => [".weave-prose", ".weave-code"].map(part => row.querySelector(part)))
    .filter(([prose, code]) => prose && code && prose.textContent.trim())
    .map(parts => parts.map(part => part.getBoundingClientRect().toJSON()));
}"""


# The code of each woven cell, in two columns and as one piece.
CODE = """() => [...document.querySelectorAll(".cell.woven")].map(cell =>
  [".weave-code pre", ".weave-plain pre"].map(part =>
    [...cell.querySelectorAll(part)].map(box => box.textContent).join("\\n")))"""


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


DIAL = "figure.lr-picture:has(output):not(.lr-play, .lr-train)"

# Where the marks of a dial are, and its sentence.
SHOWN = """figure => [
  [...figure.querySelectorAll("svg path, svg text")]
    .map(mark => mark.getAttribute("d") ?? mark.getAttribute("transform")),
  figure.querySelector("output").innerText]"""


def shown(figure: Locator) -> tuple[list[str | None], str]:
    """Return where the marks of a dial are, and its sentence."""
    places, sentence = figure.evaluate(SHOWN)
    return places, sentence


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


EXCESS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def asked_at(page: Page, name: str, width: int) -> Iterator[Any]:
    """Yield what is wrong with a page's layout at a width."""
    if page.evaluate(EXCESS) > 0:
        yield page.evaluate(OVERHANG)[:5] or "it scrolls sideways"
    if width == NARROW:
        # Nor has a finger a long way to go.
        if page.evaluate("document.documentElement.scrollHeight") > 20_000:
            yield "it is too long"
        yield page.evaluate(TORN) if name in LOOKED_AT else []
        yield page.evaluate(UNHANDY) if name in CHAPTERS else []
    elif name in WOVEN:
        yield page.evaluate(CUT)
        yield page.evaluate(CROWDED)
    for prose, code in page.evaluate(ROWS) if width in (WIDE, NARROW) else []:
        if width == NARROW:  # the code stands below
            fits = prose["bottom"] <= code["top"] + 1 and code["right"] <= NARROW
        else:  # beside it
            fits = prose["right"] <= code["left"] and code["width"] > 550
        yield "" if fits else f"a row has no room: {prose} {code}"


def asked_of_code(page: Page, name: str) -> Iterator[Any]:
    """Yield what is wrong with code in two columns, as one piece and copied."""
    for shown, plain in page.evaluate(CODE):
        remaining = iter(plain.split("\n"))
        lines = [line for line in shown.split("\n") if line.strip()]
        yield "" if all(line in remaining for line in lines) else f"is not all: {shown}"
    if name in WOVEN:
        # One column: what fits in a narrow window fits in a wide one.
        switch = page.locator(".chapter-facts").get_by_role("button")
        switch.click()
        yield "" if page.evaluate(EXCESS) <= 0 else "the plain notebook is too wide"
        switch.click()
    page.evaluate(UNFOLD)
    cells = page.locator(".cell.tag_export").evaluate_all(COPY)
    for text, copied in zip(exported_cells(name), cells, strict=True):
        yield "" if copied == [text, True] else f"was copied: {copied}"


def turn(figure: Locator) -> None:
    """Turn a dial with keys: drawing and sentence follow, and come back."""
    start = shown(figure)
    for slider in figure.locator("input[type=range]").all():
        value = slider.input_value()
        slider.press("End")
        last = shown(figure)
        slider.press("Home")
        first = shown(figure)
        assert first[0] != last[0]
        assert first[1] != last[1]
        slider.fill(value)
        assert shown(figure) == start
    moved = []
    for switch in figure.locator("input[type=checkbox]").all():
        switch.press("Space")
        moved.append(shown(figure) != start)
        switch.press("Space")
        assert shown(figure) == start
    # Some change nothing, and rightly: the mask of an action that is not drawn.
    assert any(moved) or not moved


# Contrast depends on the scheme and boxes that scroll on the width. All pages have the
# same styles, so the pages take turns; the start page has its own.
LOOKS = [(WIDE, "light"), (NARROW, "dark")]


@pytest.fixture(scope="session")
def known() -> list[set[str]]:
    """Return what was judged on the pages before, in either look."""
    return [set(), set()]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_in_a_browser(reused, known, name):
    page, wrong = reused.go(name), []
    for width in (1100, WIDE, NARROW) if name in WOVEN else (WIDE, NARROW):
        reused.set(width)
        wrong += asked_at(page, name, width)
    if name in CHAPTERS:
        # All that say something, except for the agent.
        for figure in page.locator(DIAL).all():
            turn(figure)
        wrong += asked_of_code(page, name)
    page.evaluate(UNFOLD)  # what is folded or out of sight is looked at too
    for number, look in enumerate(LOOKS):
        if name == "index.html" or name in LOOKED_AT[number::2]:
            wrong += accessibility(reused.set(*look), known[number])
    assert [x for x in wrong if x] + reused.complaints + reused.calls == []


# --- What a reader does on a page -----------------------------------------------------


def test_the_switch_shows_the_plain_notebook_and_remembers(fresh):
    page = fresh.go("chapters/advantages.html")
    columns = page.locator(".weave-columns").first
    plain = page.locator(".weave-plain pre").first
    switch = page.locator(".chapter-facts").get_by_role("button")
    for press in (None, "Enter", "Space"):
        if press:
            switch.press(press)
            fresh.go("chapters/advantages.html")
        expect(columns).to_be_visible(visible=press != "Enter")
        expect(plain).to_be_visible(visible=press == "Enter")


def test_a_finger_turns_a_dial(site, browser):
    visit = visit_in(browser, site, has_touch=True, is_mobile=True)
    visit.look_as(NARROW)
    page = visit.go("chapters/advantages.html")
    figure = page.locator(DIAL).first
    slider = figure.locator("input[type=range]")
    box = slider.bounding_box()
    slider.tap(position={"x": 3, "y": box["height"] / 2})
    first = shown(figure)
    slider.tap(position={"x": box["width"] - 3, "y": box["height"] / 2})
    assert shown(figure)[0] != first[0]
    assert slider.input_value() == slider.get_attribute("max")
    assert not visit.complaints
    page.context.close()
