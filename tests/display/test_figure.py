"""Figures: axes that leave out outliers, and how figures become files."""

import re
from functools import partial
from xml.etree import ElementTree

import numpy as np
import pytest

from flatfold.display.figure import Drawing, Key, Panel, Span, line_style
from tests.report.conftest import drawn


def test_an_axis_holds_all_but_one_percent_and_is_logarithmic_over_decades():
    span = Span.of(np.arange(-500.0, 501.0))
    assert (span.low, span.high, span.logarithmic) == (-495.0, 495.0, False)
    assert span.clip(np.array([-9e9, 3.0, np.inf], dtype=np.float32)).tolist() == [-495.0, 3.0, 495.0]
    np.testing.assert_allclose(np.diff(span.edges(3)), 330)
    decades = Span.of(np.geomspace(1e-9, 1.0, 1001))
    assert decades.logarithmic
    edges = decades.edges(4)
    assert (edges[0], edges[-1]) == (decades.low, decades.high)
    np.testing.assert_allclose(np.diff(np.log(edges)), np.log(decades.high / decades.low) / 4)
    axes = drawn(Panel("", partial(decades.apply, which="x")))
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")
    assert axes.get_xlim()[0] < decades.low < decades.high < axes.get_xlim()[1]


def test_constant_and_infinite_values_have_an_axis():
    for value in (0.0, 5.0, -1e20, 1e-30):
        span = Span.of(np.full(10, value, dtype=np.float32))
        assert span.low < np.float32(value) < span.high, value
        assert len(set(span.edges(50))) == 51, value
    assert Span.of(np.array([np.inf, 1.0, 2.0, -np.inf])).high < 2.1
    assert Span.of(np.array([np.inf])) == Span(0.0, 1.0, False)


def line(axes):
    axes.plot([0, 1], [0, 1], "o-", clip_on=True)


@pytest.fixture
def drawing():
    panels = [Panel("first", line, "a note"), Panel("second & $last$", line)]
    return Drawing(
        "toy",
        panels,
        [Key("_hidden", line_style(0)), Key("a $b$", line_style(9)), Key("area", line_style(1), filled=True)],
    )


def test_each_panel_is_an_svg_with_ids_of_its_own(drawing):
    panels = drawing.inline()
    ids = [set(re.findall(r'id="([^"]+)"', svg)) for svg in panels]
    assert ids[0]
    assert not ids[0] & ids[1]
    for svg, own in zip(panels, ids, strict=True):
        assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', svg)) == own
        assert "<style" not in svg  # it would be one of the page
        ElementTree.fromstring(svg)
    assert "first" not in panels[0].replace('aria-label="toy: first"', "")  # the title is a part of the page
    assert 'aria-label="toy: second &amp; $last$"' in panels[1]


def test_a_file_has_titles_notes_and_the_whole_legend_and_always_the_same_bytes(drawing, tmp_path):
    for folder in ("a", "b"):
        drawing.save(tmp_path / folder)
    svg, pdf = (tmp_path / "a" / f"toy.{kind}" for kind in ("svg", "pdf"))
    texts = {element.text for element in ElementTree.fromstring(svg.read_bytes()).iter()}
    assert {"first", "a note", "second & $last$", "_hidden", "a $b$", "area"} <= texts
    for path in (svg, pdf):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
        assert b"Date" not in path.read_bytes()
    assert pdf.read_bytes().startswith(b"%PDF")
    Drawing("other", []).save(tmp_path / "a")
    assert pdf.exists()
    Drawing("toy", []).save(tmp_path / "a")  # nothing to draw: the files of an earlier run go
    assert list((tmp_path / "a").iterdir()) == []
