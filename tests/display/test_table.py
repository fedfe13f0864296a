"""Tables: the same content as text and as HTML, which is safe, self-contained and has no colours of its own."""

import re
from html.parser import HTMLParser
from types import SimpleNamespace

from flatfold.display import table as tables
from flatfold.display.table import Table, fitting_text

HOSTILE = "<img src=x onerror=alert(1)> [bold] & $x$"


class Cells(HTMLParser):
    """The cells of a table, and the attributes of its tags."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)


def test_text_and_html_have_every_cell_and_escape_all_of_it():
    table = Table(["name", HOSTILE], [["a", "1"], [HOSTILE, "2"]], HOSTILE, HOSTILE, best=[(0, 1)])
    text, page = table.text(), Cells(table.html([HOSTILE, "a note"]))
    assert text == str(table)
    assert text.count(HOSTILE) == 4
    assert page.texts.count(HOSTILE) == 5
    assert {"name", "a", "1", "2", "a note"} <= set(page.texts)
    tags = [tag for tag, _ in page.tags]
    assert set(tags) == {"div", "table", "caption", "tr", "th", "td", "b", "p"}
    assert page.texts[page.texts.index("1")] == "1"
    assert tags.count("b") == 1, "the best cell alone is bold"


def test_html_is_legible_in_light_and_dark_and_needs_nothing_else():
    html = Table(["a"], [["1"]])._repr_html_()
    assert not re.search(r"https?:|url\(|<style|<script|class=", html)
    assert set(re.findall(r"(?<![-\w])(?:background|color): ([^;\"]+)", html)) == {"none", "inherit"}


def test_the_widest_table_that_fits_is_the_text(monkeypatch):
    wide, narrow = Table(["a" * 50], [["1"]]), Table(["a"], [["1"]], "a title that is longer than its table")
    assert fitting_text([wide, narrow]) == wide.text(), "a file has no width"
    monkeypatch.setattr(tables, "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    for columns, expected in ((80, wide), (54, wide), (53, narrow), (3, narrow)):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert fitting_text([wide, narrow]) == expected.text(), columns
