"""Figures: drawings whose panels stand in rows on a phone."""

import hashlib
import io
import re
from pathlib import Path
from xml.etree import ElementTree

import figures
import matplotlib.pyplot as plt
import pytest
from figures import FITS, SVG, for_all_screens, panels, size, stacked
from IPython.core import pylabtools
from traitlets.config import PyFileConfigLoader


def drawn(
    columns: int,
    *,
    width: float = 7,
    title: str = "",
    bar: bool = False,
    share: bool = False,
) -> str:
    """Return a drawing with panels side by side, each with words on its left."""
    shape = {"figsize": (width, 2), "squeeze": False, "sharey": share}
    figure, axes = plt.subplots(1, columns, **shape)
    for panel in axes[0]:
        shown = panel.imshow([[0, 1]])
        if panel is axes[0, 0] or not share:
            panel.set_ylabel("return")
    if bar:
        figure.colorbar(shown)
    if title:
        figure.suptitle(title)
    figure.tight_layout()
    file = io.StringIO()
    figure.savefig(file, format="svg")
    plt.close(figure)
    return file.getvalue()


@pytest.mark.parametrize(("columns", "rows"), [(2, 2), (3, 2), (4, 2), (6, 2)])
def test_panels_stand_in_rows_that_fit(columns, rows):
    text = drawn(columns)
    width, height = size(ElementTree.fromstring(text))
    narrow, shape = stacked(text)
    picture = ElementTree.fromstring(narrow)
    assert size(picture) == pytest.approx(shape, abs=0.1)
    assert shape[0] <= FITS < width
    assert shape[1] == rows * height
    # The views show the whole drawing once, from left to right.
    views = picture.findall(f"{SVG}svg")
    boxes = [[float(x) for x in view.get("viewBox").split()] for view in views]
    assert len(boxes) == columns
    ends = [left + across for left, _, across, _ in boxes]
    assert [0.0, *ends] == pytest.approx([box[0] for box in boxes] + [width], abs=0.2)
    # Each stands on a place of its own.
    places = {(view.get("x"), view.get("y")) for view in views}
    assert len(places) == columns
    # A frame and the words on its left are in one view.
    frames = re.findall(
        r'<g id="axes_\d+">\s*<g id="patch_\d+">\s*<path d="M (\S+)', text
    )
    for frame, (left, *_), end in zip(frames, boxes, ends, strict=True):
        assert left < float(frame) - 11 < end


@pytest.mark.parametrize(
    ("columns", "options"), [(1, {}), (2, {"width": 4}), (2, {"title": "for both"})]
)
def test_some_drawings_stay_as_they_are(columns, options):
    assert stacked(drawn(columns, **options)) is None


def test_a_row_begins_with_the_scale_that_it_shares():
    text = drawn(2, share=True)
    first, second = panels(ElementTree.fromstring(text))
    assert [first.shares, second.shares] == [False, True]
    narrow, _ = stacked(text)
    views = ElementTree.fromstring(narrow).findall(f"{SVG}svg")
    starts = [float(view.get("viewBox").split()[0]) for view in views]
    ends = [float(view.get("x")) + float(view.get("width")) for view in views]
    assert starts == pytest.approx([0, 0, second.words], abs=0.1)
    assert ends[1] == pytest.approx(first.left, abs=0.1)
    assert float(views[2].get("x")) == pytest.approx(first.left, abs=0.1)


def test_the_colours_of_a_map_are_no_panel():
    assert len(panels(ElementTree.fromstring(drawn(2, bar=True)))) == 2


def test_a_page_keeps_room_for_each_form(tmp_path):
    tag = '<img alt="a" src="../_images/it.svg" />\n'
    (tmp_path / "it.svg").write_text(drawn(2), "utf-8")
    html = for_all_screens(tag, tmp_path / "it.svg", tmp_path, tmp_path / "none")
    assert re.search(
        r'srcset="../_images/it.phone.svg" width="\d+" height="\d+">', html
    )
    assert re.search(r'<img width="672" height="192" alt="a" src="', html)
    assert (tmp_path / "it.phone.svg").exists()


def test_what_has_no_form_for_phones_is_told(tmp_path):
    (tmp_path / "it.svg").write_text(drawn(2, title="for both"), "utf-8")
    with pytest.raises(ValueError, match="tied"):
        for_all_screens("", tmp_path / "it.svg", tmp_path, tmp_path / "none")


def kernel(tmp_path, monkeypatch):
    """Return how a kernel of the site prints a figure, and where it keeps the other."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setattr(pylabtools, "print_figure", pylabtools.print_figure)
    folder = str(Path(figures.__file__).parent)
    PyFileConfigLoader("kernel_config.py", path=folder).load_config()
    return pylabtools.print_figure, tmp_path / "cache/phones"


def test_a_kernel_draws_one_column_again_for_phones(tmp_path, monkeypatch):
    print_figure, phones = kernel(tmp_path, monkeypatch)
    figure, (axes, _) = plt.subplots(2, 1, figsize=(7, 3), sharex=True)
    axes.plot([1, 2], label="a line")
    axes.legend(fontsize=6)
    file = tmp_path / "wide.svg"
    file.write_text(print_figure(figure, "svg"), "utf-8")
    plt.close(figure)
    # By the name that the website gives the wide drawing.
    [phone] = phones.iterdir()
    name = hashlib.sha256("\n".join(file.read_text().splitlines()).encode())
    assert phone.stem == name.hexdigest()
    width, height = size(ElementTree.parse(phone).getroot())
    assert FITS - 30 < width <= FITS
    assert height > 2.5 * 72
    # No words are small, and the legend lies on nothing.
    assert axes.get_legend().get_texts()[0].get_fontsize() >= 10
    assert axes.get_legend().get_window_extent().y0 >= axes.bbox.y1
    # The page takes it.
    tag = '<img alt="a" src="it.svg" />\n'
    html = for_all_screens(tag, file.rename(tmp_path / phone.name), tmp_path, phones)
    assert f'width="{round(width * 4 / 3)}"' in html
    assert (tmp_path / "it.phone.svg").read_text() == phone.read_text()


@pytest.mark.parametrize(("columns", "width"), [(1, 4), (2, 7)])
def test_a_kernel_leaves_other_drawings(columns, width, tmp_path, monkeypatch):
    print_figure, phones = kernel(tmp_path, monkeypatch)
    figure, _ = plt.subplots(1, columns, figsize=(width, 2))
    assert print_figure(figure, "svg").startswith("<?xml")
    plt.close(figure)
    assert not phones.exists()
