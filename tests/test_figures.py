"""Figures: drawings whose panels stand in rows on a phone."""

import hashlib
import io
import re
from pathlib import Path
from xml.etree import ElementTree

import figures
import matplotlib.pyplot as plt
import numpy as np
import pytest
from figures import FITS, SVG, for_all_screens, panels, size, stacked
from IPython.core import pylabtools
from traitlets.config import PyFileConfigLoader


def drawn(
    columns: int,
    *,
    width: float = 7,
    title: str = "",
    share: bool = False,
) -> str:
    """Return a drawing with panels side by side, each with words on its left."""
    shape = {"figsize": (width, 2), "squeeze": False, "sharey": share}
    figure, axes = plt.subplots(1, columns, **shape)
    for panel in axes[0]:
        panel.imshow([[0, 1]])
        if panel is axes[0, 0] or not share:
            panel.set_ylabel("return")
    if title:
        figure.suptitle(title)
    figure.tight_layout()
    file = io.StringIO()
    figure.savefig(file, format="svg")
    plt.close(figure)
    return file.getvalue()


def views_of(narrow: str) -> list[list[float]]:
    """Return of each view where it stands, and from where to where it shows."""
    found = []
    for view in ElementTree.fromstring(narrow).findall(f"{SVG}svg"):
        x, y = (float(view.get(name)) for name in ("x", "y"))
        start, _, across, _ = map(float, view.get("viewBox").split())
        assert float(view.get("width")) == across
        found.append([x, y, start, start + across])
    return found


@pytest.mark.parametrize(("columns", "rows"), [(2, 2), (3, 2), (6, 2)])
def test_panels_stand_in_rows_that_fit(columns, rows):
    text = drawn(columns)
    width, height = size(ElementTree.fromstring(text))
    narrow, shape = stacked(text)
    assert size(ElementTree.fromstring(narrow)) == pytest.approx(shape, abs=0.1)
    assert shape[0] <= FITS < width
    assert shape[1] == rows * height
    # The views show the whole drawing once, from left to right.
    views = views_of(narrow)
    assert len(views) == columns
    starts, ends = ([view[k] for view in views] for k in (2, 3))
    assert [0.0, *ends] == pytest.approx([*starts, width], abs=0.2)
    # Each stands on a place of its own.
    assert len({(x, y) for x, y, *_ in views}) == columns


@pytest.mark.parametrize(
    ("columns", "options"), [(1, {}), (2, {"width": 4}), (2, {"title": "for both"})]
)
def test_some_drawings_stay_as_they_are(columns, options):
    assert stacked(drawn(columns, **options)) is None


def test_a_row_begins_with_the_scale_that_it_shares():
    text = drawn(2, share=True)
    first, second = panels(ElementTree.fromstring(text))
    assert [first.shares, second.shares] == [False, True]
    width, height = size(ElementTree.fromstring(text))
    row = [[0, height, 0, first.left], [first.left, height, second.words, width]]
    np.testing.assert_allclose(views_of(stacked(text)[0])[1:], row, atol=0.1)


def test_a_page_keeps_room_for_each_form_and_what_has_none_is_told(tmp_path):
    tag = '<img alt="a" src="../_images/it.svg" />\n'
    (tmp_path / "it.svg").write_text(drawn(2), "utf-8")
    html = for_all_screens(tag, tmp_path / "it.svg", tmp_path, tmp_path / "none")
    assert re.search(
        r'srcset="../_images/it.phone.svg" width="\d+" height="\d+">', html
    )
    assert re.search(r'<img width="672" height="192" alt="a" src="', html)
    assert (tmp_path / "it.phone.svg").exists()
    (tmp_path / "it.svg").write_text(drawn(2, title="for both"), "utf-8")
    with pytest.raises(ValueError, match="tied"):
        for_all_screens("", tmp_path / "it.svg", tmp_path, tmp_path / "none")


def test_a_kernel_draws_one_wide_column_again_for_phones(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setattr(pylabtools, "print_figure", pylabtools.print_figure)
    folder = str(Path(figures.__file__).parent)
    PyFileConfigLoader("kernel_config.py", path=folder).load_config()
    figure, (axes, _) = plt.subplots(2, 1, figsize=(7, 3), sharex=True)
    axes.plot([1, 2], label="a line")
    axes.legend(fontsize=6)
    file, phones = tmp_path / "wide.svg", tmp_path / "cache/phones"
    file.write_text(pylabtools.print_figure(figure, "svg"), "utf-8")
    for columns, width in ((1, 4), (2, 7)):  # these are left as they are
        other, _ = plt.subplots(1, columns, figsize=(width, 2))
        pylabtools.print_figure(other, "svg")
    plt.close("all")
    # By the name that the website gives the wide drawing.
    [phone] = phones.iterdir()
    name = hashlib.sha256("\n".join(file.read_text().splitlines()).encode())
    assert phone.stem == name.hexdigest()
    width, _ = size(ElementTree.parse(phone).getroot())
    assert FITS - 30 < width <= FITS
    # No words are small, and the legend lies on nothing.
    assert axes.get_legend().get_texts()[0].get_fontsize() >= 10
    assert axes.get_legend().get_window_extent().y0 >= axes.bbox.y1
    # The page takes it.
    tag = '<img alt="a" src="it.svg" />\n'
    html = for_all_screens(tag, file.rename(tmp_path / phone.name), tmp_path, phones)
    assert f'width="{round(width * 4 / 3)}"' in html
    assert (tmp_path / "it.phone.svg").read_text() == phone.read_text()
