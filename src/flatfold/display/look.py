"""The look of all pages and figures: colours in light and dark, type, and the mark. Colours are defined only here.

A page has :func:`page_style` in its head, and its own rules after it, with colours as ``var(--accent)``. The site maps
its theme to the same variables (``docs/style.css``). Figures are drawn in the colours of a light page.
"""

from importlib.resources import files
from urllib.parse import quote

LIGHT = {
    "ink": "#1f2933",
    "soft": "#52606d",
    "faint": "#6b7785",
    "edge": "#7b8794",
    "line": "#e4e7eb",
    "wash": "#f6f8f9",
    "paper": "#ffffff",
    "accent": "#00704f",
    "on-accent": "#ffffff",
    "best": "#e3f2ec",
    "warn": "#fff8e6",
    "warn-line": "#e69f00",
    "warn-ink": "#7a5200",
    "bad": "#fdecea",
    "bad-ink": "#a1261b",
    "id": "#005a8f",
    "id-wash": "#e3f0f8",
    "ood": "#a33f00",
    "ood-wash": "#fdeee3",
    "grey": "#9aa5b1",
    "light-grey": "#c3cad3",
    # Lines of figures: eight colours that colour-blind readers can tell apart.
    "line-0": "#0072b2",
    "line-1": "#d55e00",
    "line-2": "#009e73",
    "line-3": "#cc79a7",
    "line-4": "#e69f00",
    "line-5": "#56b4e9",
    "line-6": "#7a5195",
    "line-7": "#6b8e23",
}
DARK = {
    "ink": "#e6ebf0",
    "soft": "#aab5c1",
    "faint": "#93a0ae",
    "edge": "#73808c",
    "line": "#323c47",
    "wash": "#1e262e",
    "paper": "#14191f",
    "accent": "#4fc793",
    "on-accent": "#0c1712",
    "best": "#143629",
    "warn": "#332a14",
    "warn-line": "#b98419",
    "warn-ink": "#f0c468",
    "bad": "#3d1f1d",
    "bad-ink": "#ff9c92",
    "id": "#7cc4f2",
    "id-wash": "#142c3d",
    "ood": "#ffa366",
    "ood-wash": "#3a2314",
    "grey": "#8a97a5",
    "light-grey": "#4b5763",
    "line-0": "#4fa9e0",
    "line-1": "#f28b4b",
    "line-2": "#2fc79a",
    "line-3": "#e59fc6",
    "line-4": "#f2b84b",
    "line-5": "#93d3f7",
    "line-6": "#b996d6",
    "line-7": "#a5c552",
}
FONTS = {
    "font": 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif',
    "mono": "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace",
}
ON_DARK_SCREENS = "@media screen and (prefers-color-scheme: dark)"  # paper stays white

# The scores of ID inputs as a curve, and an OOD input beside it.
_SHAPES = '<path d="M3 26.5C11 26.5 8.5 6 13 6s2 20.5 10 20.5"/><circle cx="27" cy="13" r="3.5"/>'
_RULES = """
.logo path { fill: none; stroke: var(--accent); stroke-width: 4; stroke-linecap: round; }
.logo circle { fill: var(--ood); }
"""
MARK = f'<svg class="logo" viewBox="0 0 32 32" aria-hidden="true">{_SHAPES}</svg>'  # part of a page


def variables(root: str = ":root", dark: str = "", names: tuple[str, ...] | None = None) -> str:
    """Return the colours and fonts as CSS variables.

    Args:
        root: Selector of light pages.
        dark: Selector of dark pages. Default: ``root``, on screens whose user prefers dark pages.
        names: The only variables needed. Default: all.
    """

    def block(selector: str, values: dict[str, str]) -> str:
        lines = "; ".join(f"--{name}: {value}" for name, value in values.items() if names is None or name in names)
        return f"{selector} {{ {lines} }}"

    light, darkened = block(root, LIGHT | FONTS), block(dark or root, DARK | FONTS)
    return f"{light}\n{darkened}" if dark else f"{light}\n{ON_DARK_SCREENS} {{ {darkened} }}"


def page_style() -> str:
    """Return the style that all pages share: variables, type, and the parts of a header."""
    return variables() + _RULES + files(__package__).joinpath("look.css").read_text(encoding="utf8")


def mark_file() -> str:
    """Return the mark as an SVG file, in colours for light and dark."""
    style = variables(names=("accent", "ood")) + _RULES
    head = '<svg class="logo" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">'
    return f"{head}<style>{style}</style>{_SHAPES}</svg>"


def icon() -> str:
    """Return the mark as a ``data:`` address, for the icon of a page."""
    return f"data:image/svg+xml,{quote(mark_file())}"
