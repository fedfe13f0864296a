"""The page of the service, in one piece, and what browsers may do with it."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).parent
_PARTS = {"{{style}}": ("page.css",), "{{script}}": ("chart.js", "page.js")}


@cache
def page() -> bytes:
    """Return the page: HTML with its style and its script in it, and nothing from elsewhere."""
    return joined(_read("page.html"), {place: "\n".join(map(_read, names)) for place, names in _PARTS.items()}).encode()


@cache
def fixed_headers() -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers of every answer: browsers run nothing but the page's own script, and keep nothing."""
    return (
        (b"content-security-policy", policy(page().decode()).encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-store"),
        (b"cross-origin-resource-policy", b"same-origin"),
    )


def joined(html: str, parts: dict[str, str]) -> str:
    """Return HTML with a text in each of its places, in one go: a text may look like a place."""
    return re.sub("|".join(map(re.escape, parts)), lambda found: parts[found[0]], html)


def policy(html: str) -> str:
    """Return a Content-Security-Policy under which the scripts and styles in ``html`` work, and no others.

    Example:
        >>> policy("<script>let a</script>").split("; ")[1]
        "script-src 'sha256-IfEXP/8HLuXoAiy0hZVrCAcjcLsZqYFpLOHDGj8enqE='"
    """
    rules = ["default-src 'none'"]
    rules += [f"{kind}-src {' '.join(_hashes(html, kind)) or _NONE}" for kind in ("script", "style")]
    rules += ["img-src data: blob:", "connect-src 'self'"]
    rules += [f"{name} 'none'" for name in ("base-uri", "form-action", "frame-ancestors")]
    return "; ".join(rules)


_NONE = "'none'"


def _hashes(html: str, kind: str) -> list[str]:
    texts = re.findall(rf"<{kind}(?:\s[^>]*)?>(.*?)</{kind}>", html, flags=re.DOTALL)
    return [f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in texts]


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf8")
