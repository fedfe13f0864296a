"""From the reStructuredText in docstrings to what mkdocs understands: formulas, and names with links."""

import re
from typing import Any

from griffe import Alias, Extension, Object

DISPLAYED = re.compile(r"^( *)\.\. math::[ \n]*(.+(?:\n\1 +\S.*)*)", re.MULTILINE)
INLINE = re.compile(r":math:`([^`]+)`")
SEVERAL = re.compile(r"^( +)(\w+(?:, \w+)+): (.+(?:\n\1 +\S.*)*)", re.MULTILINE)
NAME = re.compile(r":(?:class|func|meth|mod|data|attr|exc):`(~?)([\w.]+)`")


class RestructuredText(Extension):
    """Rewrites every docstring when the package is read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value, lambda name: resolved(obj, name))


def resolved(obj: Object, name: str) -> str:
    """Return the full path of a name as it stands in the docstring of an object, or the name if it has none there."""
    first, dot, rest = name.lstrip(".").partition(".")
    for scope in (obj, obj.parent):
        if scope is not None and first in scope.members:
            member = scope.members[first]
            return (member.target_path if isinstance(member, Alias) else member.path) + dot + rest
    try:
        return obj.resolve(first) + dot + rest
    except Exception:  # griffe has its own kinds for names that nobody knows
        return name


def markdown(text: str, resolve: Any = lambda name: name) -> str:
    r"""Return a docstring with formulas between brackets, and names as links where they lead somewhere.

    Arguments that share a description get one each.

    Args:
        text: The docstring.
        resolve: From a name as written to its full path.

    Example:
        >>> markdown("See :func:`~a.b` for :math:`x^2`.")
        'See <autoref identifier="a.b" optional><code>b</code></autoref> for \\(x^2\\).'
    """
    text = DISPLAYED.sub(lambda found: f"{found[1]}$$\n{found[1]}{_one_line(found[2])}\n{found[1]}$$", text)
    text = SEVERAL.sub(lambda found: "\n".join(f"{found[1]}{n}: {found[3]}" for n in found[2].split(", ")), text)
    text = INLINE.sub(lambda found: rf"\({found[1]}\)", text)
    return NAME.sub(lambda found: _link(resolve(found[2]), _shown(found[1], found[2])), text)


def _one_line(formula: str) -> str:
    return " ".join(formula.split())


def _shown(tilde: str, name: str) -> str:
    return name.rpartition(".")[2] if tilde else name.lstrip(".")


def _link(path: str, shown: str) -> str:
    return f'<autoref identifier="{path}" optional><code>{shown}</code></autoref>'
