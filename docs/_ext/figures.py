"""Figures: a drawing has a second file for phones, in which everything fits.

A drawing is as wide as paper. On a phone either its words are too small or a part of it
is out of sight. Panels that stand side by side stand in rows there: each is a view of
the same drawing. What has one column was drawn a second time by the kernel that ran the
chapter (``kernel_config``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)
SVG = "{http://www.w3.org/2000/svg}"
# Words of 11 points are 11 pixels high where so many points fill a phone.
FITS = 360.0
PHONE = "screen and (max-width: 40rem)"
PIXELS = 4 / 3  # of a point
USE = '<use xlink:href="#figure_1"/>'
BAR = 20.0  # the colours of a map stand beside it and are no panel

Shape = tuple[float, float]
View = tuple[float, float]  # from where to where, across the drawing


@dataclass
class Panel:
    """A panel: where its words and its frame begin, and where its frame ends.

    Its scale is where its own numbers on the left stand, or those that it shares.
    """

    words: float
    left: float
    right: float
    shares: bool
    scale: View | None = None


def texts(part: Element) -> list[float]:
    """Return where the words of a part of a drawing begin, from the left."""
    found = []
    for group in part.iter(f"{SVG}g"):
        form = r"translate\((\S+) \S+\)( rotate\(-90\))? scale\((\S+)"
        if match := re.match(form, group.get("transform", "")):
            # Words that stand upright reach to the left of where they begin.
            height = 100 * float(match[3]) if match[2] else 0
            found.append(float(match[1]) - height)
    return found


def read(axes: Element) -> Panel:
    """Return a panel of a drawing."""
    words = texts(axes)
    frame = axes.find(f"{SVG}g/{SVG}path")
    if frame is not None and axes[0].get("id", "").startswith("patch_"):
        edges = [float(x) for x in re.findall(r"[ML] (\S+) ", frame.get("d", ""))]
    elif (picture := axes.find(f".//{SVG}image")) is not None:
        left = float(picture.get("x", 0))
        edges = [left, left + float(picture.get("width", 0))]
    else:
        edges = words or [0.0]
    sides = [each for each in axes if "axis" in each.get("id", "")]
    marks = [each.get("id", "") for each in sides[1]] if len(sides) == 2 else []
    # Marks without numbers belong to the scale of a panel on the left.
    shares = any("ytick" in mark for mark in marks) and not texts(sides[1])
    return Panel(min(edges + words), min(edges), max(edges), shares)


def panels(drawing: Element) -> list[Panel]:
    """Return the panels that stand side by side, a column as one, if none is tied."""
    parts = drawing.findall(f"{SVG}g[@id='figure_1']/{SVG}g")[1:]
    # What belongs to all panels ties them: it would be torn.
    if not all(x.get("id", "").startswith("axes_") for x in parts):
        return []
    found: list[Panel] = []
    for panel in sorted(map(read, parts), key=lambda each: each.left):
        if not found:
            panel.words = 0.0
            found.append(panel)
        elif panel.left >= found[-1].right and panel.right - panel.left > BAR:
            panel.words = max(found[-1].right, panel.words - 2)
            panel.scale = found[-1].scale
            found.append(panel)
        found[-1].right = max(panel.right, found[-1].right)
        if not found[-1].shares:
            found[-1].scale = found[-1].words, found[-1].left
    return found


def size(drawing: Element) -> Shape:
    """Return a drawing's width and height in points."""
    width, height = (
        drawing.get(x, "0").removesuffix("pt") for x in ("width", "height")
    )
    return float(width), float(height)


def across(row: list[View]) -> float:
    """Return the width of views side by side."""
    return sum(end - start for start, end in row)


def rows_within(limit: float, found: list[Panel], width: float) -> list[list[View]]:
    """Return the panels as rows of views; a row begins with the scale it shares."""
    rows: list[list[View]] = []
    ends = [panel.words for panel in found[1:]] + [width]
    for panel, end in zip(found, ends, strict=True):
        view = panel.words, end
        if rows and across([*rows[-1], view]) <= limit:
            rows[-1].append(view)
        else:
            rows.append([panel.scale, view] if panel.shares and panel.scale else [view])
    return rows


def stacked(text: str) -> tuple[str, Shape] | None:
    """Return a drawing with its panels in rows that fit, if it needs and has them."""
    drawing = ElementTree.fromstring(text)
    width, height = size(drawing)
    found = panels(drawing)
    if width <= FITS or len(found) < 2:
        return None
    rows = rows_within(FITS, found, width)
    if max(map(across, rows)) > FITS:
        return None
    # As few rows as fit, and those as equal as they can be.
    for limit in range(int(FITS), 0, -10):
        if len(narrower := rows_within(limit, found, width)) == len(rows):
            rows = narrower
    inside = text[text.index(">", text.index("<svg")) + 1 : text.rindex("</svg>")]
    views = ""
    for i, row in enumerate(rows):
        x = 0.0
        for start, end in row:
            box = (
                f'y="{i * height:.1f}" width="{end - start:.1f}" height="{height:.1f}"'
            )
            seen = f'viewBox="{start:.1f} 0 {end - start:.1f} {height:.1f}"'
            views += f'<svg x="{x:.1f}" {box} {seen}>{USE if views else inside}</svg>'
            x += end - start
    shape = max(map(across, rows)), len(rows) * height
    head = '<svg xmlns="http://www.w3.org/2000/svg" version="1.1" '
    head += 'xmlns:xlink="http://www.w3.org/1999/xlink" '
    head += 'width="{0:.1f}pt" height="{1:.1f}pt" viewBox="0 0 {0:.1f} {1:.1f}">'
    return f"{head.format(*shape)}{views}</svg>", shape


def room(shape: Shape) -> str:
    """Return the attributes that keep a drawing's place until it has come."""
    width, height = (round(PIXELS * each) for each in shape)
    return f'width="{width}" height="{height}"'


def for_all_screens(tag: str, file: Path, images: Path, drawn: Path) -> str:
    """Return the tag of a drawing with its form for phones, which is written.

    Args:
        tag: The tag of the drawing.
        file: The drawing.
        images: Where the forms for phones are written.
        drawn: Where the drawings for phones are that were made beside it.

    Raises:
        ValueError: If it is too wide for a phone and has no such form.
    """
    text = file.read_text("utf-8")
    shape = size(ElementTree.fromstring(text))
    tag = tag.replace("<img ", f"<img {room(shape)} ", 1)
    if shape[0] <= FITS:
        return tag
    again = drawn / file.name
    if again.exists():
        phone = again.read_text("utf-8")
        narrow = phone, size(ElementTree.fromstring(phone))
    elif not (narrow := stacked(text)):
        raise ValueError("panels are tied by words, a legend or a scale for all")
    source = re.search(r'src="(.*?)\.svg"', tag)
    assert source
    images.mkdir(exist_ok=True)
    name = Path(source[1]).name
    (images / f"{name}.phone.svg").write_text(narrow[0], "utf-8")
    place = f'srcset="{source[1]}.phone.svg" {room(narrow[1])}'
    return f'<picture><source media="{PHONE}" {place}>{tag.strip()}</picture>\n'


def visit_image(self: HTML5Translator, node: nodes.image) -> None:
    """Write an image; a drawing of a chapter's cell has a form for phones too."""
    file = Path(self.builder.srcdir, node["uri"])
    HTML5Translator.visit_image(self, node)
    if file.suffix == ".svg" and "jupyter_execute" in file.parts:
        images = Path(self.builder.outdir, self.builder.imagedir)
        drawn = Path(self.config.nb_execution_cache_path, "phones")
        try:
            self.body[-1] = for_all_screens(self.body[-1], file, images, drawn)
        except ValueError as error:
            logger.warning("no drawing for phones: %s", error, location=node)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    forms = (visit_image, HTML5Translator.depart_image)
    app.add_node(nodes.image, override=True, html=forms)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
