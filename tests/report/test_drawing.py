"""A figure: one SVG per panel for a page, one file for a paper."""

import re
from xml.etree import ElementTree

import pytest

from flatfold.report.drawing import Drawing, Key, Panel
from flatfold.report.style import look


def line(axes):
    axes.plot([0, 1], [0, 1], "o-", clip_on=True)


@pytest.fixture
def drawing():
    panels = [Panel("first", line, "a note"), Panel("second & $last$", line)]
    return Drawing("toy", panels, [Key("_hidden", look(0)), Key("a $b$", look(9)), Key("area", look(1), filled=True)])


def test_each_panel_is_an_element_with_ids_of_its_own(drawing):
    first, second = drawing.inline()
    ids = [set(re.findall(r'id="([^"]+)"', svg)) for svg in (first, second)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for svg, own in zip((first, second), ids, strict=True):
        assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', svg)) == own
        assert svg.startswith("<svg viewBox=")
        assert "<style" not in svg
        assert not re.search(r"<svg[^>]*(width|height)=", svg)
        assert "<metadata" not in svg
        ElementTree.fromstring(svg)
    assert 'aria-label="toy: second &amp; $last$"' in second


def test_a_panel_on_a_page_has_no_title_inside(drawing):
    assert "first" not in drawing.inline()[0].replace('aria-label="toy: first"', "")


def test_the_file_has_titles_notes_and_the_whole_legend(drawing):
    texts = [element.text for element in ElementTree.fromstring(drawing.svg()).iter("{http://www.w3.org/2000/svg}text")]
    assert {"first", "a note", "second & $last$", "_hidden", "a $b$", "area"} <= set(texts)


@pytest.mark.parametrize(("note", "below"), [("short", False), ("a note that is far too long for it", True)])
def test_a_note_stands_beside_its_title_where_it_fits_and_else_below(note, below):
    svg = Drawing("toy", [Panel("the title", line, note)]).svg()
    places = [
        re.search(r"([\d.]+) ([\d.]+)\)$", element.get("transform")).groups()  # moved there, or turned by 0 around it
        for element in ElementTree.fromstring(svg).iter()
        if element.text in ("the title", note)
    ]
    (x, y), (note_x, note_y) = places
    assert (x == note_x, y == note_y) == (below, not below)


def test_the_same_figure_is_the_same_bytes_without_a_date(drawing, tmp_path):
    for folder in ("a", "b"):
        drawing.save(tmp_path / folder)
    for kind in ("svg", "pdf"):
        content = (tmp_path / "a" / f"toy.{kind}").read_bytes()
        assert content == (tmp_path / "b" / f"toy.{kind}").read_bytes()
        assert b"Date" not in content
        assert b"dc:date" not in content
    assert content.startswith(b"%PDF")


def test_a_figure_without_panels_removes_the_one_of_an_earlier_run(drawing, tmp_path):
    drawing.save(tmp_path)
    Drawing("other", []).save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    Drawing("toy", []).save(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert Drawing("toy", []).inline() == []


def test_a_file_has_room_for_any_number_of_panels_and_no_legend_without_keys():
    svg = Drawing("many", [Panel(f"panel {i}", line) for i in range(7)], columns=3).svg()
    assert all(f"panel {i}" in svg for i in range(7))
    assert "legend" not in svg
