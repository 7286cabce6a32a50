"""Pictures, dials and questions: as text, and in a browser."""

import __future__

import ast
import itertools
import json
import re
from functools import cache
from math import log, pi
from typing import Any

import numpy as np
import pytest
import tangle
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from literate_rl.book import pictures
from literate_rl.book.pictures import (
    AGENT_COLOURS,
    Axis,
    Box,
    Mark,
    Picture,
    dial,
    plot,
    predict,
    text_width,
)

CHAPTER = tangle.ROOT / "chapters/book/pictures.py"


@cache
def run_chapter() -> tuple[list[Any], dict[str, Any]]:
    """Run the chapter; return what its cells show and the names that they define."""
    shown, names = [], {"__name__": "__main__"}
    flag = __future__.annotations.compiler_flag
    for cell in tangle.read(CHAPTER).cells:
        if cell.cell_type != "code":
            continue
        tree, last = ast.parse(cell.source), None
        if isinstance(tree.body[-1], ast.Expr):
            last = tree.body.pop()
        exec(compile(tree, CHAPTER, "exec", flag), names)
        if isinstance(last, ast.Expr):
            code = compile(ast.Expression(last.value), CHAPTER, "eval", flag)
            value = eval(code, names)
            if hasattr(value, "_repr_html_"):
                shown.append(value)
    return shown, names


@cache
def diagrams() -> list[Picture]:
    """Return the diagrams of the other chapters: cells that draw and import little."""
    drawn = []
    for chapter in tangle.chapter_paths():
        cells = [] if chapter == CHAPTER else tangle.read(chapter).cells
        for cell in cells:
            is_diagram = re.search(r"^picture = Picture\(", cell.source, re.M)
            if cell.cell_type == "code" and is_diagram:
                names = dict(vars(pictures))
                exec(cell.source, names)
                drawn.append(names["picture"])
    return drawn


def gallery() -> list[Any]:
    """Return what the chapter shows, and the diagrams of all others."""
    return run_chapter()[0] + diagrams()


def line(value: float) -> Picture:
    """Draw a level line."""
    x, y = Axis("x", 0, 1, (0, 1)), Axis("y", 0, 10, (0, 10))
    return plot("level", "A level line.", x, y, Mark("line", [0, 1], [value, value]))


def sum_dial() -> Any:
    """Return a dial with two sliders that adds them up."""

    def frame(a: int, b: int) -> tuple[list[Picture], str]:
        return [line(a + b)], f"{a} + {b} = {a + b}"

    return dial("A sum", frame, {"a": [0, 1, 2], "b": [3, 4]}, start=(1, 3))


def count_dial() -> Any:
    """Return a dial with a grid that counts what is on."""

    def frame(table: tuple[tuple[bool, ...], ...]) -> tuple[list[Picture], str]:
        return [line(sum(map(sum, table)))], "\n".join(str(row) for row in table)

    return dial("A count", frame, {}, (("first", "second"), ("left", "right")))


# --- As text --------------------------------------------------------------------------


def test_the_gallery_shows_all_pictures():
    kinds = [type(item).__name__ for item in gallery()]
    assert kinds.count("Picture") == 21
    assert kinds.count("Widget") == 2


def test_ids_are_unique_and_named():
    html = "".join(item._repr_html_() for item in gallery())
    ids = re.findall(r'\sid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    again = re.findall(r'\sid="([^"]+)"', line(1).svg() + line(1).svg())
    assert len(set(again)) == 4
    named = re.findall(r'aria-labelledby="([^"]+)"', html)
    assert sorted(ids) == sorted(" ".join(named).split())


def test_nothing_is_loaded_from_outside():
    for item in gallery():
        assert not re.search(r"https?:|url\(|\bsrc=|\bhref|@import", item._repr_html_())


def test_every_drawing_has_a_text_alternative():
    for item in gallery():
        html = item._repr_html_()
        drawings = html.count("<svg ")
        assert len(re.findall(r'<svg role="img"', html)) == drawings
        assert len(re.findall(r"<title [^>]+>[^<]+</title><desc ", html)) == drawings
        assert all(len(desc) > 20 for desc in re.findall(r"<desc [^>]+>([^<]*)", html))
    for title, alt in (("", "words"), ("words", " ")):
        with pytest.raises(ValueError, match="title and alt must not be empty"):
            Picture(title, alt)


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


def test_text_that_does_not_fit_is_an_error():
    assert (
        text_width("wide words") > text_width("wide word") > text_width("", bold=True)
    )
    picture = Picture("title", "alternative")
    with pytest.raises(ValueError, match="must fit into the box, got 'long words'"):
        picture.box(220, 0, "long words", width=40)
    with pytest.raises(ValueError, match="must fit into the box"):
        picture.box(220, 0, "two\nlines", height=30)
    with pytest.raises(ValueError, match="must fit into the picture's 0 to 440"):
        picture.text(430, 0, "beyond the edge")


@pytest.mark.parametrize(
    ("other", "side"),
    [
        ((90, 5), (20, 0)),
        ((-90, 5), (-20, 0)),
        ((5, 90), (0, 10)),
        ((5, -90), (0, -10)),
    ],
)
def test_an_arrow_starts_at_the_side_that_faces_its_end(other, side):
    assert Box(0, 0, 40, 20).toward(Box(*other)) == Box(*side)


def test_an_arrow_ends_where_it_should_and_its_head_points_there():
    picture = Picture("title", "alternative")
    picture.arrow((10, 50), (110, 50))
    curve, head = (re.findall(r'd="([^"]+)"', mark)[0] for mark in picture.marks)
    assert curve == "M10.0,50.0Q60.0,50.0 110.0,50.0"
    assert head == "M102.0,46.0L110.0,50.0L102.0,54.0"


def test_a_bent_arrow_swings_out_by_so_much_to_the_side_of_its_words():
    for side, middle in ((1, 30.0), (-1, 70.0)):
        picture = Picture("title", "alternative")
        picture.arrow((10, 50), (110, 50), bend=20, side=side)
        control = float(re.findall(r"Q60.0,([-\d.]+)", picture.marks[0])[0])
        assert (50 + control) / 2 == middle


def test_a_plot_puts_numbers_where_the_axes_say():
    picture = plot(
        "t", "alternative", Axis("x", 0, 1), Axis("y", 0, 1),
        Mark("dots", [0, 1], [0, 1]), width=146, height=100,
    )  # fmt: skip
    assert 'd="M38.0,100.0h0M138.0,0.0h0"' in picture.marks[-1]


def test_no_bar_hides_its_neighbour():
    def widths(*marks):
        picture = plot("t", "alt", Axis("x", 0, 60), Axis("y", 0, 1), *marks)
        return re.findall(r'lr-bars" style="stroke-width:([\d.]+)"', picture.svg())

    places = list(range(61))
    spacing = (320 - 8 - 38) / 60
    (width,) = widths(Mark("bars", places, [1] * 61))
    assert 0.7 * spacing < float(width) < spacing
    # One bar in front of the others is as wide as they are.
    assert len(set(widths(Mark("bars", places, [1] * 61), Mark("bars", [3], [1])))) == 1
    assert widths(Mark("bars", [10, 50], [1, 1])) == ["20.0"]


def test_a_straight_line_keeps_its_ends_only():
    xs = [k / 10 for k in range(11)]
    x, y = Axis("x", 0, 1), Axis("y", 0, 1)
    picture = plot(
        "t", "alternative", x, y, Mark("line", xs, xs), width=146, height=100
    )
    assert 'd="M38.0,100.0L138.0,0.0"' in picture.marks[-1]
    bent = [min(k, 0.5) for k in xs]
    picture = plot(
        "t", "alternative", x, y, Mark("line", xs, bent), width=146, height=100
    )
    assert 'd="M38.0,100.0L88.0,50.0L138.0,50.0"' in picture.marks[-1]


@pytest.mark.parametrize("value", [11.0, -0.1, float("nan"), float("inf")])
def test_a_number_outside_of_the_axis_is_an_error(value):
    with pytest.raises(ValueError, match="must lie on the axis 'y', from 0 to 10, got"):
        line(value)


def test_a_kind_that_nobody_knows_is_an_error():
    x = Axis("x", 0, 1)
    with pytest.raises(ValueError, match="got 'curve'"):
        plot("t", "alternative", x, x, Mark("curve", [0, 1], [0, 1]))


def test_a_script_comes_after_what_it_imports_and_once():
    assert list(pictures.modules("train_maze")) == [
        "random", "q_learning", "clock", "train", "train_maze",
    ]  # fmt: skip
    text = pictures.script("worker", "ppo", "q_learning")
    assert not re.search(r"^(import|export)\b", text, re.MULTILINE)
    assert text.count("const generator = ") == 1


def test_a_dial_keeps_only_what_differs():
    data = json.loads(
        re.findall(r"parentElement, (.*)\);}\)\(\)</script>", sum_dial().html)[0]
    )
    assert data["sizes"] == [3, 2]
    assert data["texts"] == [["0", "1", "2"], ["3", "4"]]
    assert len(data["live"]) == 1
    assert len(data["frames"]) == 6
    assert data["readouts"][2] == "1 + 3 = 4"
    # 1 + 3 and 0 + 4 are the same line.
    assert data["frames"][2] == data["frames"][1] != data["frames"][0]


def test_wrong_dials_are_errors():
    def other_marks(a: int) -> tuple[list[Picture], str]:
        return [line(0)] * a, ""

    with pytest.raises(ValueError, match="must return the same marks"):
        dial("d", other_marks, {"a": [1, 2]})
    with pytest.raises(
        ValueError, match=r"start must be one of the settings, got \(7,\)"
    ):
        dial("d", lambda a: ([line(a)], ""), {"a": [1, 2]}, start=(7,))
    with pytest.raises(ValueError, match="at most 2000 settings, got 4096"):
        dial("d", lambda t: ([line(0)], ""), {}, ("abc", "abcd"))
    with pytest.raises(ValueError, match="right must be one of the choices"):
        predict("Up?", ["yes", "no"], "perhaps", "It is so.")


# --- In a browser ---------------------------------------------------------------------


def state(page: Page, number: int = 0) -> tuple[list[str | None], str]:
    """Return the paths of a dial and its sentence."""
    figure = page.locator("figure").nth(number)
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
    expect(page.locator("label b").first).to_have_text("2")
    slider.press("Home")
    page.get_by_role("slider", name="b", exact=True).press("End")
    assert state(page)[1] == "0 + 4 = 4"
    # 0 + 4 is the line of 1 + 3.
    assert state(page)[0] == before[0]


def test_the_mouse_turns_a_dial(show):
    page = show(sum_dial())
    slider = page.get_by_role("slider", name="a", exact=True)
    place = slider.bounding_box()
    page.mouse.click(place["x"] + 2, place["y"] + place["height"] / 2)
    assert state(page)[1] == "0 + 3 = 3"
    page.mouse.click(place["x"] + place["width"] - 2, place["y"] + place["height"] / 2)
    assert state(page)[1] == "2 + 3 = 5"


def test_mouse_and_keys_toggle_a_grid(show):
    page = show(count_dial())
    button = page.get_by_role("button", name="second: left")
    before = state(page)
    expect(button).to_have_attribute("aria-pressed", "false")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(button).to_have_text("1")
    assert state(page)[1] == "(False, False)\n(True, False)"
    assert state(page)[0] != before[0]
    button.press("Enter")
    assert state(page) == before
    page.get_by_role("button", name="first: right").press("Space")
    assert state(page)[1] == "(False, True)\n(False, False)"


def test_two_dials_on_a_page_do_not_disturb_each_other(show):
    page = show(sum_dial(), sum_dial(), count_dial())
    before = [state(page, number) for number in range(3)]
    page.get_by_role("slider", name="a", exact=True).nth(1).press("End")
    page.get_by_role("button").first.click()
    assert state(page, 0) == before[0]
    assert state(page, 1)[1] == "2 + 3 = 5"
    assert state(page, 2)[1] == "(True, False)\n(False, False)"


def test_no_name_is_left_behind(show):
    names = "Object.getOwnPropertyNames(window).sort()"
    assert show(sum_dial(), *gallery()).evaluate(names) == show().evaluate(names)


def test_a_dial_works_where_scripts_are_inserted_later(show):
    # JupyterLab sets the HTML, then puts fresh copies of its scripts in their places.
    page = show()
    page.evaluate(
        """html => {
          const cell = document.createElement("div");
          cell.innerHTML = html;
          for (const script of cell.querySelectorAll("script")) {
            const fresh = document.createElement("script");
            fresh.textContent = script.textContent;
            script.replaceWith(fresh);
          }
          document.querySelector("main").append(cell);
        }""",
        sum_dial()._repr_html_(),
    )
    page.get_by_role("slider", name="a", exact=True).press("End")
    assert state(page)[1] == "2 + 3 = 5"


def test_without_javascript_one_sees_the_start(show):
    page = show(*gallery(), sum_dial(), java_script_enabled=False)
    for drawing in page.locator("svg").all():
        expect(drawing).to_be_visible()
    expect(page.locator("output").last).to_have_text("1 + 3 = 4")
    expect(page.locator(".lr-controls").last).to_be_hidden()
    expect(page.locator("fieldset")).to_be_visible()


@pytest.mark.parametrize("java_script_enabled", [True, False])
def test_a_prediction_comes_before_its_answer(show, java_script_enabled):
    question = predict("Up?", ["yes", "no"], "no", "It is so.")
    page = show(question, question, java_script_enabled=java_script_enabled)
    answer = page.locator("details").first
    expect(answer).to_be_hidden()
    page.get_by_label("yes").first.check()
    expect(page.locator("details").nth(1)).to_be_hidden()
    answer.locator("summary").click()
    expect(answer).to_contain_text("It is so.")
    expect(answer.locator(".lr-wrong")).to_be_visible()
    expect(answer.locator(".lr-right")).to_be_hidden()
    page.get_by_label("no").first.check()
    expect(answer.locator(".lr-wrong")).to_be_hidden()
    expect(answer.locator(".lr-right")).to_be_visible()


def test_paper_shows_no_controls(show):
    page = show(sum_dial())
    expect(page.locator(".lr-controls")).to_be_visible()
    page.emulate_media(media="print")
    expect(page.locator(".lr-controls")).to_be_hidden()
    expect(page.locator("output")).to_be_visible()


@pytest.mark.parametrize(
    ("motion", "seconds"), [("reduce", 0.0), ("no-preference", 0.2)]
)
def test_nothing_moves_for_readers_who_want_that(show, motion, seconds):
    page = show(sum_dial(), reduced_motion=motion)
    style = "path => parseFloat(getComputedStyle(path).transitionDuration)"
    assert page.locator("path").first.evaluate(style) == seconds


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


@pytest.mark.parametrize("width", [1280, 390])
def test_text_fits_and_can_be_read(show, width):
    texts = show(*gallery(), width=width).evaluate(TEXTS)
    assert len(texts) > 200
    assert [text["words"] for text in texts if not text["fits"]] == []
    assert min(text["size"] for text in texts) >= 11
    assert max(text["size"] for text in texts) < 19


def test_a_phone_does_not_scroll_sideways(show):
    page = show(*gallery(), width=390)
    assert page.evaluate("document.documentElement.scrollWidth") == 390


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
    assert len(found) > 200
    assert [(ratio, words) for ratio, words in found if ratio < 4.5] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_gallery_is_accessible(show, scheme, width):
    page = show(*gallery(), width=width, color_scheme=scheme, reduced_motion="reduce")
    page.get_by_role("radio").first.check()
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()


# --- The dials of the chapters --------------------------------------------------------


def test_every_setting_of_the_gallery_can_be_reached(show):
    page = show(*gallery())
    for figure in page.locator("figure[role=group]").all():
        for slider in figure.locator("input").all():
            sentences = set()
            slider.press("Home")
            for _ in range(int(slider.get_attribute("max") or 0) + 1):
                sentences.add(figure.locator("output").inner_text())
                slider.press("ArrowRight")
            assert len(sentences) == int(slider.get_attribute("max") or 0) + 1


def chapter_dial(name: str) -> Any:
    """Return the first dial of a chapter, from its cell alone."""
    flag = __future__.annotations.compiler_flag
    for cell in tangle.read(tangle.ROOT / f"chapters/{name}.py").cells:
        if cell.cell_type == "code" and "\ndial(" in cell.source:
            code, call = cell.source.split("\ndial(")
            names = dict(vars(pictures))
            exec(compile(code, name, "exec", flag), names)
            return eval(f"dial({call}", names)
    raise LookupError(f"{name} has no dial")


def test_the_dial_of_the_clip_ends_the_slope_where_the_text_says(show):
    page = show(chapter_dial("ppo_error"))
    for key, epsilon in (("Home", 0.05), ("End", 0.4)):
        page.get_by_label("clip range ε").press(key)
        for other, bound in (("Home", ""), ("End", " and above 1.60")):
            page.get_by_label("dual clip c").press(other)
            better, worse = page.locator("output").inner_text().split("\n")
            assert better.endswith(f"Â = 1: no slope above {1 + epsilon:.2f}")
            assert worse.endswith(f"Â = −1: no slope below {1 - epsilon:.2f}{bound}")


def test_the_dial_of_the_mask_adds_up_what_counts(show):
    page = show(chapter_dial("hybrid_action"))

    def density(u: float, mu: float, sigma: float) -> float:
        return -(((u - mu) / sigma) ** 2) / 2 - log(sigma) - log(2 * pi) / 2

    logits = {"accelerate": 0.2, "turn": 0.5, "stop": -0.4}
    total = sum(2.718281828459045**z for z in logits.values())
    power, angle = density(0.7, 0.1, 0.8), density(-0.3, 0.4, 0.6)

    def check(log_prob: float, alive: str) -> None:
        wanted = f"= {log_prob:.2f}\nalive: {alive}".replace("-", "−")
        assert page.locator("output").inner_text().endswith(wanted)

    turn = logits["turn"] - log(total)
    check(turn + angle, "z₀, z₁, z₂, μ₂, σ₂")
    page.get_by_role("button", name="turn: power").click()
    check(turn + power + angle, "z₀, z₁, z₂, μ₁, μ₂, σ₁, σ₂")
    # The rows of other types change nothing.
    page.get_by_role("button", name="stop: power").click()
    check(turn + power + angle, "z₀, z₁, z₂, μ₁, μ₂, σ₁, σ₂")
    page.get_by_role("button", name="stop: power").click()
    page.get_by_label("type drawn").press("End")
    check(logits["stop"] - log(total), "z₀, z₁, z₂")


# --- A colour for each agent ----------------------------------------------------------

# Agents that meet in one figure somewhere.
FAMILIES = [
    ["REINFORCE", "REINFORCE with baseline", "A2C", "PPO"],
    ["A2C", "A3C", "PPO", "IMPALA"],
    ["PPO", "PPG", "hybrid PPO", "IMPALA"],
    ["DQN", "C51", "Rainbow", "Ape-X", "discrete SAC"],
    ["DDPG", "HDDPG", "TD3", "SAC", "Ape-X", "PPO"],
]
# How colours look to everybody, and to those who lack one kind of cones: matrices of
# Machado, Oliveira and Fernandes (2009) for linear red, green and blue.
EYES = {
    "all cones": np.eye(3),
    "no red": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "no green": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}


def linear(colour):
    """Return red, green and blue as amounts of light."""
    part = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def oklab(light):
    """Return the place of a colour in OKLab, where distances are those one sees."""
    cones = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    mixed = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return mixed @ np.cbrt(cones @ light.clip(0, 1))


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("family", FAMILIES, ids=" ".join)
def test_agents_that_meet_can_be_told_apart(family, eyes):
    seen = {name: oklab(EYES[eyes] @ linear(AGENT_COLOURS[name])) for name in family}
    for one, other in itertools.combinations(family, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 0.09, (one, other)


@pytest.mark.parametrize("name", AGENT_COLOURS)
def test_each_agent_stands_out_from_both_grounds(name):
    style = (tangle.ROOT / "docs/_theme/static/book.css").read_text("utf-8")
    grounds = re.findall(r"--ground: (#\w{6})", style)
    assert len(grounds) == 2
    weights = [0.2126, 0.7152, 0.0722]
    own = linear(AGENT_COLOURS[name]) @ weights + 0.05
    for ground in grounds:
        other = linear(ground) @ weights + 0.05
        assert max(own / other, other / own) >= 3


def test_each_agent_with_a_family_has_a_colour():
    assert AGENT_COLOURS.keys() == {name for family in FAMILIES for name in family}
