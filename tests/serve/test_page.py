"""`serve.page`: one file, and a policy that lets exactly its own script and style run."""

import base64
import hashlib
import re

from flatfold.serve.page import HERE, fixed_headers, joined, page, policy


def hash_of(text):
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_page_holds_its_style_and_script_and_loads_nothing():
    text = page().decode()
    for name in ("page.css", "chart.js", "page.js"):
        assert (HERE / name).read_text(encoding="utf8") in text
    assert "{{" not in text.replace((HERE / "page.js").read_text(encoding="utf8"), "")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:|//)""", text)


def test_the_policy_names_the_script_and_the_style_by_what_is_in_them():
    text = page().decode()
    script, style = (re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[1] for tag in ("script", "style"))
    rules = dict(rule.split(" ", 1) for rule in dict(fixed_headers())[b"content-security-policy"].decode().split("; "))
    assert rules == {
        "default-src": "'none'",
        "script-src": hash_of(script),
        "style-src": hash_of(style),
        "img-src": "data: blob:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


def test_scripts_with_attributes_count_and_a_page_without_one_allows_none():
    assert hash_of("a") in policy('<script type="module">a</script>')
    assert "script-src 'none'; style-src 'none'" in policy("<p>scripts</p>")


def test_what_is_put_in_a_place_is_not_searched_for_places():
    assert joined("<a>{{style}}{{script}}</a>", {"{{style}}": "{{script}}", "{{script}}": "x"}) == "<a>{{script}}x</a>"
