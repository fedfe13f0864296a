"""`display.look`: one place for colours, which can be read in light and dark."""

import re
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import flatfold
from flatfold.display.look import DARK, FONTS, LIGHT, MARK, icon, page_style, variables

ROOT = Path(__file__).parents[2]
SOURCE = Path(flatfold.__file__).parent
COLOUR = re.compile(r"#(?:[0-9a-f]{3}){1,2}\b|rgba?\(|hsla?\(", re.IGNORECASE)
ON_PAPER = ("ink", "soft", "faint", "accent", "id", "ood", "warn-ink", "bad-ink")
PAIRS = [(name, "paper") for name in ON_PAPER] + [(name, "wash") for name in ("ink", "soft", "accent")]
PAIRS += [("on-accent", "accent"), ("id", "id-wash"), ("ood", "ood-wash"), ("warn-ink", "warn"), ("bad-ink", "bad")]
PAIRS += [("accent", "best")]


def styles():
    """Return every file that may style a page, with its text."""
    paths = [path for kind in ("css", "html") for path in SOURCE.rglob(f"*.{kind}")] + [ROOT / "docs" / "style.css"]
    return {str(path): path.read_text(encoding="utf8") for path in paths if path.exists()}


def luminance(colour):
    """Return the relative luminance of WCAG 2."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_can_be_read_in_light_and_in_dark():
    assert LIGHT.keys() == DARK.keys()
    for mode in (LIGHT, DARK):
        for text, ground in PAIRS:
            assert contrast(mode[text], mode[ground]) >= 4.5, (text, ground, mode["paper"])
        for name in LIGHT:
            if name.startswith("line-"):
                assert contrast(mode[name], mode["paper"]) >= 2, (name, mode["paper"])


def test_no_other_style_has_a_colour_of_its_own():
    for name, text in styles().items():
        text = re.sub(r"&#\d+;|href=\"#|mask-image:[^;]*;", "", text)
        assert COLOUR.findall(text) == [], f"{name}: use a variable of flatfold/display/look.py"


def test_every_variable_of_a_style_is_defined():
    for name, text in styles().items():
        own = set(re.findall(r"(--[\w-]+):", text)) | {"--share", "--down"}  # and those that scripts set
        used = set(re.findall(r"var\((--[\w-]+)", text))
        assert {each[2:] for each in used - own} <= {*LIGHT, *FONTS}, name


def test_variables_have_the_selectors_that_were_asked_for():
    assert variables("a", "b", names=("ink",)) == f"a {{ --ink: {LIGHT['ink']} }}\nb {{ --ink: {DARK['ink']} }}"
    assert "@media screen and (prefers-color-scheme: dark) { :root {" in page_style()


def test_the_mark_is_one_drawing_for_pages_and_icons():
    text = unquote(icon().removeprefix("data:image/svg+xml,"))
    shapes = [(each.tag.rpartition("}")[2], each.attrib) for each in ElementTree.fromstring(text)]
    assert [name for name, _ in shapes] == ["style", "path", "circle"]
    assert shapes[1:] == [(each.tag, each.attrib) for each in ElementTree.fromstring(MARK)]
    assert '"' not in icon()  # it stands in an attribute
