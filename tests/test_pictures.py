"""Pictures, dials and questions: as text, and in a browser."""

import json
import re
from functools import cache
from math import nan
from typing import Any

import pytest
import tangle
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from torch import nn

from literate_rl.book import pictures
from literate_rl.book.pictures import (
    Axis,
    Mark,
    Picture,
    dial,
    plot,
    predict,
)
from literate_rl.book.playground import push_cartpole
from literate_rl.book.train_here import train_cartpole, train_maze


@cache
def diagrams() -> list[Picture]:
    """Return the diagrams of the other chapters: cells that draw and import little."""
    drawn = []
    for chapter in tangle.chapter_paths():
        for cell in tangle.read(chapter).cells:
            is_diagram = re.search(r"^picture = Picture\(", cell.source, re.M)
            if cell.cell_type == "code" and is_diagram:
                names = dict(vars(pictures))
                exec(cell.source, names)
                drawn.append(names["picture"])
    return drawn


@cache
def gallery() -> list[Any]:
    """Return all diagrams, and what can be touched, one of each kind."""
    moving = (
        push_cartpole(nn.Linear(4, 2), nn.Linear(4, 1)),
        train_cartpole(),
        train_maze(),
    )
    question = predict("Up?", ["yes", "no"], "no", "It is so.")
    return [*diagrams(), *moving, question, sum_dial()]


def line(value: float) -> Picture:
    """Draw a level line."""
    x, y = Axis("x", 0, 1, (0, 1)), Axis("y", 0, 10, (0, 10))
    return plot("level", "A level line.", x, y, Mark("line", [0, 1], [value, value]))


def sum_dial() -> Any:
    """Return a dial with two sliders that adds them up."""

    def frame(a: int, b: int) -> tuple[list[Picture], str]:
        return [line(a + b)], f"{a} + {b} = {a + b}"

    return dial("A sum", frame, {"a": [0, 1, 2], "b": [3, 4]}, start=(1, 3))


# --- As text --------------------------------------------------------------------------


def test_without_a_browser_one_reads_words():
    assert repr(line(1)) == "level: A level line."
    assert repr(sum_dial()) == "A sum: 1 + 3 = 4"
    question = predict("Up?", ["yes", "no"], "no", "It is so.")
    assert repr(question) == "Up?\n- yes\n- no"


def test_what_is_written_is_escaped():
    picture = Picture("<b>", "a & b")
    picture.text(220, 0, "<i>")
    assert "<b>" not in picture.svg()
    assert "<i>" not in picture.svg()
    assert "a &amp; b" in picture.svg()
    end = "</script><script>alert(1)</script>"
    widget = dial("'\">", lambda a: ([line(a)], end), {"<u>": [1, 2]})
    assert widget.html.count("<script") == 1
    assert "<u>" not in widget.html


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Picture("t", "alt").text(430, 0, "beyond the edge"), "words must fit"),
        *((lambda x=x: line(x), "axis 'y'") for x in (11.0, nan)),
        (lambda: dial("d", lambda a: ([line(0)] * a, ""), {"a": [1, 2]}), "same marks"),
        (lambda: predict("Up?", ["yes"], "perhaps", "It is so."), "one of the choices"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def drawn(xs: Any, ys: Any, kind: str = "line") -> str:
    """Return the last mark of a plot of 100 by 100 below whose axes are 0 to 1."""
    x, y = Axis("x", 0, 1), Axis("y", 0, 1)
    return plot("t", "alt", x, y, Mark(kind, xs, ys), width=146, height=100).marks[-1]


def test_a_plot_puts_numbers_where_the_axes_say_and_lines_keep_their_ends_only():
    assert 'd="M38.0,100.0h0M138.0,0.0h0"' in drawn([0, 1], [0, 1], "dots")
    assert 'd="M78.0,100.0V50.0h20.0V100.0Z"' in drawn([0.5], [0.5], "bars")
    xs = [k / 10 for k in range(11)]
    assert 'd="M38.0,100.0L138.0,0.0"' in drawn(xs, xs)
    bent = [min(k, 0.5) for k in xs]
    assert 'd="M38.0,100.0L88.0,50.0L138.0,50.0"' in drawn(xs, bent)


def test_no_bar_hides_its_neighbour():
    marks = Mark("bars", [*range(61)], [1] * 61), Mark("bars", [3], [1])
    picture = plot("t", "alt", Axis("x", 0, 60), Axis("y", 0, 1), *marks)
    # One bar in front of the others is as wide as they are.
    (width,) = {*re.findall(r"h([\d.]+)V", "".join(picture.marks))}
    assert float(width) < (320 - 8 - 38) / 60


def test_a_script_comes_after_what_it_imports_and_once():
    text = pictures.script("worker", "ppo", "q_learning")
    assert not re.search(r"^(import|export)\b", text, re.MULTILINE)
    assert text.count("const generator = ") == 1


def test_a_dial_keeps_only_what_differs():
    html = sum_dial().html
    data = json.loads(re.findall(r"parentElement, (.*)\);}\)\(\)</script>", html)[0])
    assert len(data["live"]) == 1
    # 1 + 3 and 0 + 4 are the same line.
    first, same, again, *others = data["frames"]
    assert first != same == again
    assert len(others) == 3


# --- In a browser ---------------------------------------------------------------------


def state(page: Page) -> tuple[list[str | None], str]:
    """Return the paths of a dial and its sentence."""
    figure = page.locator("figure")
    paths = [path.get_attribute("d") for path in figure.locator("path").all()]
    return paths, figure.locator("output").inner_text()


def test_keys_turn_a_dial(show):
    page = show(sum_dial())
    slider = page.get_by_role("slider", name="a", exact=True)
    before = state(page)
    assert before[1] == "1 + 3 = 4"
    slider.press("ArrowRight")
    after = state(page)
    assert after[1] == "2 + 3 = 5"
    assert after[0] != before[0]
    expect(slider).to_have_attribute("aria-valuetext", "2")
    slider.press("Home")
    page.get_by_role("slider", name="b", exact=True).press("End")
    # 0 + 4 is the line of 1 + 3.
    assert state(page) == (before[0], "0 + 4 = 4")


def test_no_name_is_left_behind(show):
    names = "Object.getOwnPropertyNames(window).sort()"
    assert show(*gallery()).evaluate(names) == show().evaluate(names)


@pytest.mark.parametrize("scripts", [True, False])
def test_a_prediction_comes_before_its_answer(show, scripts):
    question = predict("Up?", ["yes", "no"], "no", "It is so.")
    page = show(question, java_script_enabled=scripts)
    answer = page.locator("details")
    expect(answer).to_be_hidden()
    for choice, right in (("yes", False), ("no", True)):
        page.get_by_label(choice).check()
        if not right:
            answer.locator("summary").click()
        expect(answer).to_contain_text("It is so.")
        expect(answer.locator(".lr-wrong")).to_be_visible(visible=not right)
        expect(answer.locator(".lr-right")).to_be_visible(visible=right)


@pytest.mark.parametrize("scripts", [True, False])
def test_on_paper_and_without_javascript_one_sees_the_start(show, scripts):
    page = show(*gallery(), java_script_enabled=scripts)
    page.emulate_media(media="print" if scripts else "screen")
    for drawing in page.locator("svg").all():
        expect(drawing).to_be_visible()
    expect(page.locator("output").last).to_have_text("1 + 3 = 4")
    for controls in page.locator(".lr-controls").all():
        expect(controls).to_be_hidden()


# The text of each drawing, the box that its middle lies in, and its size on the screen.
TEXTS = """() => [...document.querySelectorAll("svg text")].map(text => {
  const svg = text.ownerSVGElement, whole = svg.getBoundingClientRect();
  const box = text.getBoundingClientRect();
  const x = box.x + box.width / 2, y = box.y + box.height / 2;
  const rects = [...svg.querySelectorAll("rect")].map(r => r.getBoundingClientRect());
  const room = rects.find(rect => rect.left <= x && x <= rect.right
    && rect.top <= y && y <= rect.bottom) ?? whole;
  const fits = room.left <= box.left && box.right <= room.right
    && room.top <= box.top + 2 && box.bottom <= room.bottom + 2;
  // A label without a place waits far above its picture.
  return {words: text.textContent, fits: fits || box.bottom < whole.top - 999,
    size: whole.width / svg.viewBox.baseVal.width
      * parseFloat(getComputedStyle(text).fontSize)};
})"""


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_gallery_fits_and_is_accessible(show, width, scheme):
    page = show(*gallery(), width=width, color_scheme=scheme, reduced_motion="reduce")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    texts = page.evaluate(TEXTS)
    assert [text["words"] for text in texts if not text["fits"]] == []
    sizes = [text["size"] for text in texts]
    assert 11 <= min(sizes) <= max(sizes) < 19
    page.get_by_role("radio").first.check()
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()


# The contrast of each text with what is painted behind it: the page, and its box.
CONTRAST = """() => {
  const canvas = document.createElement("canvas");
  const pen = canvas.getContext("2d", {willReadFrequently: true});
  const light = (...layers) => {
    for (const layer of layers) { pen.fillStyle = layer; pen.fillRect(0, 0, 1, 1); }
    const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map(part => {
      const c = part / 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const page = getComputedStyle(document.body).backgroundColor;
  return [...document.querySelectorAll("svg text")].map(text => {
    const before = text.previousElementSibling;
    const behind = before?.tagName === "rect" ? [getComputedStyle(before).fill] : [];
    const ground = light(page, ...behind);
    const ink = light(page, ...behind, getComputedStyle(text).fill);
    const [dark, bright] = [ground, ink].sort((a, b) => a - b);
    return [(bright + 0.05) / (dark + 0.05), text.textContent];
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(show, scheme):
    found = show(*gallery(), color_scheme=scheme).evaluate(CONTRAST)
    assert [(ratio, words) for ratio, words in found if ratio < 4.5] == []
