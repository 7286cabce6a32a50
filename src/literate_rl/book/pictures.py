# Generated from chapters/book/pictures.py (edit there); digest a1d1ea700017240d
"""Pictures: diagrams, small plots, dials and questions, drawn as SVG and HTML."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import count, pairwise, product
from math import inf
from typing import Any, Literal, NamedTuple

__all__ = [
    "AGENT_COLOURS",
    "Axis",
    "Box",
    "Mark",
    "Picture",
    "Widget",
    "dial",
    "plot",
    "predict",
]


Tone = Literal["", "accent", "second", "quiet", "faint"]

# A tone only sets the variable `--tone`. All that is drawn uses this one variable.
STYLE = """
.lr-picture { --tone: currentColor; margin: 0.5rem 0 1rem; max-width: 46rem;
  padding: 0 !important }
.lr-accent { --tone: color-mix(in oklab, var(--lr-accent, #d9541e) 75%, currentColor) }
.lr-second { --tone: color-mix(in oklab, var(--lr-second, #0d9488) 75%, currentColor) }
.lr-quiet { --tone: color-mix(in srgb, currentColor 72%, transparent) }
.lr-faint { --tone: color-mix(in srgb, currentColor 30%, transparent) }
"""

# One line weight, round joins, rounded boxes that are hardly filled.
STYLE += """
.lr-picture svg { display: block; width: 100%; height: auto }
.lr-picture text { fill: var(--tone) }
.lr-picture path { fill: none; stroke: var(--tone); stroke-width: 1.6;
  stroke-linecap: round; stroke-linejoin: round }
.lr-picture rect { fill: color-mix(in srgb, var(--tone) 7%, transparent);
  stroke: color-mix(in srgb, var(--tone) 70%, transparent); stroke-width: 1.6 }
.lr-picture rect.lr-accent { fill: color-mix(in srgb, var(--tone) 13%, transparent) }
.lr-picture .lr-dots { stroke-width: 5 }
.lr-picture .lr-token { stroke-width: 12 }
.lr-picture .lr-thick { stroke-width: 2.6 }
.lr-picture .lr-dashed { stroke-dasharray: 4 5 }
.lr-picture .lr-bars { stroke: none; fill: var(--tone) }
.lr-picture .lr-band { stroke: none;
  fill: color-mix(in srgb, var(--tone) 22%, transparent) }
"""

# Two panels of a dial stand side by side where there is room, and else one above the
# other. The controls are hidden on paper.
STYLE += """
.lr-panels { display: grid; gap: 0.75rem 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 16rem), 1fr)) }
.lr-panels svg { max-width: 24rem }
.lr-controls { display: flex; flex-wrap: wrap; gap: 0.5rem 1.5rem; margin-top: 0.75rem }
.lr-controls[hidden] { display: none }
.lr-controls label { display: flex; flex: 1 1 16rem; gap: 0.75rem; align-items: center }
.lr-controls input { flex: 1 1 6rem; min-width: 0; accent-color: #d9541e }
.lr-controls .lr-tick { flex: 0 1 9rem; gap: 0.5rem; min-height: 1.75rem }
.lr-controls .lr-tick input { flex: none; width: 1.1rem; height: 1.1rem }
.lr-controls b { min-width: 2.5em; font-variant-numeric: tabular-nums }
.lr-picture output { display: block; margin-top: 0.5rem; min-height: 3em;
  white-space: pre-line; font-variant-numeric: tabular-nums }
@media print { .lr-controls { display: none } }
"""

# Buttons look like what surrounds them, and what has the focus is framed.
STYLE += """
.lr-picture button { padding: 0.3rem 0.9rem; min-height: 2rem; color: inherit;
  border: 1.6px solid color-mix(in srgb, currentColor 55%, transparent);
  border-radius: 0.4rem; background: none; font: inherit; cursor: pointer }
.lr-picture :is(button, input, summary):focus-visible { outline: 2px solid #d9541e;
  outline-offset: 2px }
"""

# What changes moves there, unless the reader has asked for things not to move.
STYLE += """
@media (prefers-reduced-motion: no-preference) {
  .lr-picture :is(path, text) { transition: d 0.2s, transform 0.2s } }
"""


TEXT_SIZE, LINE_HEIGHT = 14, 18


def text_width(words: str, bold: bool = False) -> float:
    """Estimate how wide a line of text is, rather too wide than too narrow."""
    em = 0.0
    for sign in words:
        if sign in "fijlrtI'’.,:;|!()[] /·":
            em += 0.38
        elif not unicodedata.combining(sign):
            em += 0.97 if sign in "mwMW→←…%" else 0.72 if sign.isupper() else 0.63
    return em * TEXT_SIZE * (1.12 if bold else 1.0)


class Box(NamedTuple):
    """A rectangle: its middle and its size. A point is a box without size."""

    x: float
    y: float
    width: float = 0.0
    height: float = 0.0

    def at(self, across: float, down: float) -> Box:
        """Return a point: (0, 0) is the top left corner, (1, 1) the bottom right."""
        x = self.x + (across - 0.5) * self.width
        return Box(x, self.y + (down - 0.5) * self.height)

    def toward(self, other: Box) -> Box:
        """Return the middle of the side that looks at another box."""
        right, down = other.x - self.x, other.y - self.y
        # The side is the one where the gap between the two is wider.
        gap_across = abs(right) - (self.width + other.width) / 2
        if gap_across > abs(down) - (self.height + other.height) / 2:
            return self.at(float(right > 0), 0.5)
        return self.at(0.5, float(down > 0))


def pair(point: complex) -> str:
    """Write a point as a path wants it."""
    return f"{point.real:.1f},{point.imag:.1f}"


class Picture:
    """A drawing that grows mark by mark and shows itself in a notebook.

    Args:
        title: What it shows, in a few words.
        alt: The same in sentences, for those who cannot see it.
        width: Width in units. The height is that of the marks.
    """

    def __init__(self, title: str, alt: str, width: float = 440) -> None:
        self.title, self.alt, self.width = title, alt, width
        self.marks: list[str] = []
        self.top, self.bottom = inf, -inf

    def reach(self, top: float, bottom: float) -> None:
        """Make room from the one height to the other."""
        self.top, self.bottom = min(self.top, top), max(self.bottom, bottom)

    def path(self, d: str, tone: str = "", kind: str = "") -> None:
        """Draw with a pen, ``M…L…Q…Z``; its kind says how wide it is."""
        names = " ".join(f"lr-{name}" for name in f"{tone} {kind}".split())
        self.marks.append(f'<path class="{names}" d="{d}"/>')

    def text(
        self,
        x: float,
        y: float,
        words: str,
        tone: Tone = "",
        anchor: str = "middle",
        bold: bool = False,
    ) -> None:
        """Write lines of text around the height ``y``, at, left or right of ``x``."""
        lines = words.splitlines()
        first = y - (len(lines) - 1) * LINE_HEIGHT / 2
        for number, line in enumerate(lines):
            width, height = text_width(line, bold), first + number * LINE_HEIGHT
            left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
            if left < 0 or left + width > self.width:
                raise ValueError(
                    f"words must fit into the picture's 0 to {self.width:.0f}, "
                    f"got {line!r} from {left:.0f} to {left + width:.0f}"
                )
            self.reach(height - 9, height + 9)
            self.marks.append(
                f'<text class="lr-{tone}" text-anchor="{anchor}" dy="0.35em" '
                f'font-weight="{600 if bold else 400}" '
                f'transform="translate({x:.1f} {height:.1f})">{escape(line)}</text>'
            )

    def box(
        self,
        x: float,
        y: float,
        words: str = "",
        tone: Tone = "",
        width: float = 0.0,
        height: float = 0.0,
    ) -> Box:
        """Draw a box around a middle; the first line of its words is bold.

        Without a size the box is as large as its words need.
        """
        head, _, rest = words.partition("\n")
        more = LINE_HEIGHT * words.count("\n")
        need = max(text_width(head, bold=True), *map(text_width, rest.split("\n")))
        box = Box(x, y, width or need + 20, height or more + 32)
        self.reach(y - box.height / 2 - 2, y + box.height / 2 + 2)
        corner = box.at(0, 0)
        self.marks.append(
            f'<rect class="lr-{tone}" x="{corner.x:.1f}" y="{corner.y:.1f}" '
            f'width="{box.width:.1f}" height="{box.height:.1f}" '
            f'rx="{min(7, box.width / 6):.1f}"/>'
        )
        self.text(x, y - more / 2, head, tone, bold=True)
        self.text(x, y + LINE_HEIGHT / 2, rest)
        return box

    def cells(
        self,
        x: float,
        y: float,
        contents: Sequence[object],
        tones: Mapping[int, Tone] | None = None,
        width: float = 44,
        gap: float = 4,
    ) -> list[Box]:
        """Draw a row of cells, the first around (x, y); return their boxes."""
        row = []
        for number, content in enumerate(contents):
            middle = x + number * (width + gap)
            tone = (tones or {}).get(number, "")
            row.append(self.box(middle, y, "", tone, width, 28))
            self.text(middle, y, str(content), tone)
        return row

    def arrow(
        self,
        start: tuple[float, ...],
        end: tuple[float, ...],
        words: str = "",
        tone: Tone = "",
        bend: float = 0.0,
        kind: str = "",
        head: bool = True,
        side: Literal[1, -1] = 1,
    ) -> None:
        """Draw an arrow between two boxes or points.

        The words stand on the left of someone who walks along the arrow, or with
        ``side=-1`` on the right. With ``bend`` the arrow swings out to the side of its
        words by so many units.
        """
        # Between boxes the arrow goes from the side that faces the other; a point is
        # its own side. As complex numbers they are easy to add, and to turn: times -i
        # is a quarter turn to the left, because heights count downwards.
        from_, to = Box(*start), Box(*end)
        sides = from_.toward(to), to.toward(from_)
        a, b = (complex(side.x, side.y) for side in sides)
        aside = (b - a) / abs(b - a) * -1j * side
        middle = (a + b) / 2 + bend * aside
        # A curve `Q` is pulled towards a point and gets half as far.
        pull = (a + b) / 2 + 2 * bend * aside
        self.path(f"M{pair(a)}Q{pair(pull)} {pair(b)}", tone, kind)
        if head:
            # Back along the curve by eight units, and four to each side.
            back = 8 * (pull - b) / abs(pull - b)
            left, right = b + back * (1 + 0.5j), b + back * (1 - 0.5j)
            self.path(f"M{pair(left)}L{pair(b)}L{pair(right)}", tone)
        self.reach(middle.imag - 2, middle.imag + 2)
        # Beside an upright arrow the words start or end.
        upright, anchor = abs(aside.real) > 0.7, "start" if aside.real > 0 else "end"
        at = middle + (8 if upright else 12 + 9 * words.count("\n")) * aside
        self.text(at.real, at.imag, words, tone, anchor if upright else "middle")

    def svg(self) -> str:
        """Return the drawing as text."""
        height = self.bottom - self.top
        return (
            f'<svg role="img" aria-label="{escape(repr(self))}" '
            f'viewBox="0 {self.top:.1f} {self.width:.1f} {height:.1f}" '
            f'font-size="{TEXT_SIZE}">{"".join(self.marks)}</svg>'
        )

    def __repr__(self) -> str:
        return f"{self.title}: {self.alt}"

    def _repr_html_(self) -> str:
        # Larger than its own size a picture would shout.
        limit = f"max-width: {1.15 * self.width:.0f}px"
        return (
            f"<style>{STYLE}</style>"
            f'<figure class="lr-picture" style="{limit}">{self.svg()}</figure>'
        )


class Axis(NamedTuple):
    """One axis of a plot: its name, its range, and where it is marked.

    Ticks are numbers, or a mapping from numbers to what is written there.
    """

    name: str
    low: float
    high: float
    ticks: Sequence[float] | Mapping[float, str] = ()

    def words(self, tick: float) -> str:
        """Return what is written at a tick."""
        named = self.ticks if isinstance(self.ticks, Mapping) else {}
        return named.get(tick, f"{tick:g}").replace("-", "−")

    def place(self, value: float, start: float, end: float) -> float:
        """Return where a number stands between two ends of the axis."""
        if not self.low <= value <= self.high:
            raise ValueError(
                f"what is drawn must lie on the axis {self.name!r}, from {self.low} to "
                f"{self.high}, got {value}"
            )
        return start + (value - self.low) / (self.high - self.low) * (end - start)


class Mark(NamedTuple):
    """Some numbers to draw.

    ``x`` and ``y`` have the same length. A ``band`` goes from ``low`` to ``y``, a
    ``label`` writes ``words`` at its only point. ``thick`` or ``dashed`` may follow the
    kind. A mark without numbers takes its place among the marks and is not seen.
    """

    kind: str
    x: Sequence[float]
    y: Sequence[float]
    tone: Tone = ""
    low: Sequence[float] = ()
    words: str = ""


def pen(kind: str, points: list[tuple[float, float]], base: float, width: float) -> str:
    """Return what the pen does for a line, dots, or bars that stand on a base."""
    if kind == "dots":
        return "".join(f"M{x:.1f},{y:.1f}h0" for x, y in points)
    if kind == "bars":
        return "".join(
            f"M{x - width / 2:.1f},{base:.1f}V{y:.1f}h{width:.1f}V{base:.1f}Z"
            for x, y in points
        )
    if not points:
        return ""
    # A point on the straight line between its neighbours needs no place in the path.
    kept = points[:1]
    neighbours = zip(points, points[1:], points[2:], strict=False)
    for (before_x, before_y), (x, y), (after_x, after_y) in neighbours:
        turn = (x - before_x) * (after_y - y) - (y - before_y) * (after_x - x)
        if abs(turn) > 1e-6:
            kept.append((x, y))
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in kept + points[1:][-1:])


def plot(
    title: str,
    alt: str,
    x: Axis,
    y: Axis,
    *marks: Mark,
    width: float = 320,
    height: float = 190,
) -> Picture:
    """Draw marks over two axes.

    Args:
        title: Written above the plot.
        alt: The text alternative.
        x: The axis at the bottom.
        y: The axis on the left. Its name is written at its top.
        marks: What to draw, the first at the back.
        width: Width in units, of the whole picture.
        height: Height in units, of the part inside the axes.

    Returns:
        The picture.
    """
    picture = Picture(title, alt, width)
    left, right = 38.0, width - 8

    across = partial(x.place, start=left, end=right)
    up = partial(y.place, start=height, end=0)

    def points(xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
        return [(across(a), up(b)) for a, b in zip(xs, ys, strict=True)]

    picture.text(0, -40 if y.name else -18, title, anchor="start", bold=True)
    picture.text(0, -19, y.name, "quiet", "start")
    picture.text(right, height + 34, x.name, "quiet", "end")
    picture.path(f"M{left},0V{height}H{right}", "faint")
    for tick in x.ticks:
        picture.path(f"M{across(tick):.1f},{height}v4", "faint")
        picture.text(across(tick), height + 14, x.words(tick), "quiet")
    for tick in y.ticks:
        picture.path(f"M{left},{up(tick):.1f}h-4", "faint")
        picture.text(left - 7, up(tick), y.words(tick), "quiet", "end")

    # A bar takes four fifths of the distance to the next, of whichever mark that is.
    bars = [mark.x for mark in marks if mark.kind == "bars"]
    stands = sorted({round(across(a), 1) for xs in bars for a in xs})
    bar = min([25.0, *(b - a for a, b in pairwise(stands))]) * 0.8
    base = up(min(max(y.low, 0.0), y.high))
    # The axes decide on the size, not what is drawn.
    size = picture.top, picture.bottom
    for mark in marks:
        kind = mark.kind.split()[0]
        found = points(mark.x, mark.y)
        if kind == "label":
            # Words without a place wait outside of the picture.
            place = found[0] if found else (width / 2, -9999.0)
            picture.text(*place, mark.words, mark.tone)
            continue
        d = pen(kind, found, base, bar)
        if kind == "band":
            # There along the one curve and back along the other.
            back = points(mark.x, mark.low)[::-1]
            d += "L" + pen("line", back, base, bar)[1:] + "Z"
        picture.path(d, mark.tone, mark.kind)
    picture.top, picture.bottom = size
    return picture


def modules(name: str) -> dict[str, str]:
    """Return the text of a script of the book, after those of all that it imports."""
    text = (files("literate_rl") / "book" / f"{name}.js").read_text("utf-8")
    found: dict[str, str] = {}
    for other in re.findall(r'from "\./(\w+)\.js"', text):
        found |= modules(other)
    return found | {name: text}


def script(*names: str) -> str:
    """Return scripts as one text, without the words that make modules of them."""
    texts = {key: text for name in names for key, text in modules(name).items()}
    return re.sub(r"(?m)^import .*\n|^export ", "", "\n".join(texts.values()))


class Widget:
    """Something to touch: HTML for a browser, words for all others."""

    def __init__(self, html: str, words: str) -> None:
        # JupyterLab keeps the arrow keys and others for itself, unless the element that
        # has the focus says this.
        ours = r'<\1 data-lm-suppress-shortcuts="true"'
        self.html, self.words = re.sub("<(input|button|summary)\\b", ours, html), words

    def __repr__(self) -> str:
        return self.words

    def _repr_html_(self) -> str:
        return f"<style>{STYLE}</style>{self.html}"


def figure(
    label: str, inside: str, words: str, name: str, data: Any, kinds: str = ""
) -> Widget:
    """Return a figure that a script moves.

    Args:
        label: What it is for, in a few words.
        inside: Its pictures and controls.
        words: What is written below them.
        name: The script. It has a function ``start``.
        data: What the script has to know.
        kinds: Classes of its own.
    """
    packed = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    # A string in the data that holds `</script>` would end the script.
    packed = packed.replace("<", "\\u003c")
    call = f"start(document.currentScript.parentElement, {packed});"
    return Widget(
        f'<figure class="lr-picture{kinds}" role="group" aria-label="{escape(label)}">'
        f"{inside}<output>{escape(words)}</output>"
        f"<script>(() => {{\n{script(name)}{call}}})()</script></figure>",
        f"{label}: {words}",
    )


def slider(name: str, values: Sequence[Any], value: Any) -> str:
    """Return a slider that goes through values in their order, or a box to tick."""
    if values[0] is False:
        box = f'<input type="checkbox"{" checked" if value else ""}>'
        return f'<label class="lr-tick">{box} {escape(name)}</label>'
    return (
        f'<label>{escape(name)} <input type="range" min="0" max="{len(values) - 1}" '
        f'value="{values.index(value)}"> <b aria-hidden="true">{escape(str(value))}</b>'
        "</label>"
    )


Frame = tuple[Sequence[Picture], str]
# What may differ from one setting to the next: a path's way, a word's place.
LIVE = re.compile(r' (?:d|transform)="([^"]*)"')


def dial(
    label: str,
    frame: Callable[..., Frame],
    sliders: Mapping[str, Sequence[Any]],
    start: Sequence[Any] = (),
) -> Widget:
    """Make a picture with controls.

    Args:
        label: What the dial is for, in a few words.
        frame: Called for each setting, with the value of each slider. Returns the
            pictures, side by side, and a sentence with the numbers to read off. The
            pictures of all settings must have the same marks.
        sliders: Values by the name of the slider; a box to tick has False and True.
        start: The setting to begin with, in the order of the arguments of ``frame``;
            by default the first one.

    Returns:
        The widget.

    Raises:
        ValueError: If a setting is drawn with other marks than the first one.
    """
    # Draw each setting. An SVG without its live strings is its skeleton.
    settings = [*product(*sliders.values())]
    drawn, readouts, skeletons = [], [], set()
    for setting in settings:
        pictures, readout = frame(*setting)
        inside = "".join("".join(picture.marks) for picture in pictures)
        drawn.append(LIVE.findall(inside))
        skeletons.add(LIVE.sub("", inside))
        readouts.append(readout)
    if len(skeletons) > 1:
        raise ValueError("frame must return the same marks for each setting")

    # Keep the strings that differ somewhere.
    live = [
        i for i, strings in enumerate(zip(*drawn, strict=True)) if len(set(strings)) > 1
    ]
    first = tuple(start) or settings[0]
    data = {
        "texts": [[*map(str, values)] for values in sliders.values()],
        "live": live,
        "frames": [[strings[i] for i in live] for strings in drawn],
        "readouts": readouts,
    }

    # The controls, hidden until the script is there to serve them.
    controls = "".join(map(slider, sliders, sliders.values(), first))
    panels = "".join(picture.svg() for picture in frame(*first)[0])
    inside = (
        f'<div class="lr-panels">{panels}</div>'
        f'<div class="lr-controls" hidden>{controls}</div>'
    )
    return figure(label, inside, readouts[settings.index(first)], "dial", data)


STYLE += """
.lr-predict fieldset { border: 0; margin: 0; padding: 0 }
.lr-predict legend { font: inherit; font-weight: 600; padding: 0 }
.lr-predict label { display: flex; gap: 0.6rem; align-items: baseline }
.lr-predict summary { cursor: pointer }
.lr-predict:not(:has(:checked)) details { display: none }
.lr-predict details b { display: none }
.lr-predict:has([value="1"]:checked) .lr-right { display: inline }
.lr-predict:has([value="0"]:checked) .lr-wrong { display: inline }
"""

QUESTIONS = count(1)


def predict(question: str, choices: Sequence[str], right: str, because: str) -> Widget:
    """Ask the reader for a prediction, and explain the answer once there is one.

    Args:
        question: The question.
        choices: The answers to choose from.
        right: The one that is right.
        because: Why it is.

    Returns:
        The widget.
    """
    if right not in choices:
        raise ValueError(f"right must be one of the choices {choices}, got {right!r}")
    # Radio buttons belong together if they have the same name. The counter starts anew
    # with each kernel, and a notebook may still show what an older one has asked.
    name = f"lr-{next(QUESTIONS)}-{sha256(question.encode()).hexdigest()[:8]}"
    buttons = "".join(
        f'<label><input type="radio" name="{name}" value="{int(choice == right)}"> '
        f"{escape(choice)}</label>"
        for choice in choices
    )
    html = (
        f'<div class="lr-picture lr-predict"><fieldset><legend>{escape(question)}'
        f"</legend>{buttons}</fieldset><details><summary>Compare</summary><p>"
        f'<b class="lr-right">Right.</b><b class="lr-wrong">No: {escape(right)}.</b> '
        f"{escape(because)}</p></details></div>"
    )
    return Widget(html, "\n- ".join([question, *choices]))


AGENT_COLOURS = {
    "REINFORCE": "#009e73",
    "REINFORCE with baseline": "#b0308f",
    "A2C": "#3596d4",
    "A3C": "#808080",
    "PPO": "#d55e00",
    "PPG": "#8c564b",
    "hybrid PPO": "#8b85de",
    "IMPALA": "#6857d1",
    "DQN": "#0072b2",
    "C51": "#bb7e90",
    "Rainbow": "#549f0d",
    "Ape-X": "#6887ff",
    "discrete SAC": "#42734d",
    "DDPG": "#6857d1",
    "HDDPG": "#6d7eb1",
    "TD3": "#237568",
    "SAC": "#009e73",
}
