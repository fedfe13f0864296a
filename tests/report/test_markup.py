"""HTML from values: nothing but markup is markup."""

import json
import re

from flatfold.report.markup import Html, data_block, definition_list, joined, tag

HOSTILE = '</script><img src=x onerror=alert(1)> & "quoted"'


def test_children_are_text_unless_they_are_markup():
    assert tag("p", "a < b", tag("b", "&"), 3) == "<p>a &lt; b<b>&amp;</b>3</p>"
    assert joined(["<", Html("<br>")]) == "&lt;<br>"


def test_attributes_are_named_as_in_html_and_escaped():
    assert tag("td", class_="x", data_key='"', aria_sort=None) == '<td class="x" data-key="&quot;"></td>'
    assert tag("input", checked=True, hidden=False) == "<input checked>"
    assert tag("input", name="a", value=0) == '<input name="a" value="0">'


def test_data_for_a_script_cannot_end_it_and_is_read_back_equal():
    block = data_block("x", {"a": [HOSTILE, "–", 1.5]})
    assert block.count("<") == 2
    (text,) = re.findall(r">(.*)</script>", block)
    assert json.loads(text) == {"a": [HOSTILE, "–", 1.5]}


def test_mappings_nest_and_what_is_empty_is_left_out():
    entries = {"a": 0, "sha256": {"net": "ab", "data": {"x": HOSTILE}}, "none": None, "": "kept", "e": {}, "l": [1, 2]}
    text = definition_list(entries)
    assert "<dt>a</dt><dd>0</dd>" in text
    assert "<dt>sha256</dt><dd><dl><dt>net</dt><dd>ab</dd><dt>data</dt><dd><dl><dt>x</dt>" in text
    assert "<dt>l</dt><dd>1, 2</dd>" in text
    assert "<dd>kept</dd>" in text
    assert "none" not in text
    assert "<dt>e</dt>" not in text
    assert "<img" not in text
