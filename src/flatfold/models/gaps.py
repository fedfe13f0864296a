"""Images that could not be read: how many may be left out, and how a message names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from ..core.errors import UnreadableImage

SHOWN = 3  # unreadable images that a message names


def check_share(unreadable: Mapping[int, str], rows: int, most: float) -> None:
    """Raise if more than a share of the rows could not be read."""
    if len(unreadable) <= most * rows:
        return
    if most == 0:
        raise UnreadableImage(next(iter(unreadable.values())))
    raise UnreadableImage(
        f"{len(unreadable)} of {rows} images could not be read, more than the {100 * most:g} % that may be left out. "
        + some_of(unreadable.values())
    )


def some_of(reasons: Iterable[str]) -> str:
    """Return the first reasons with numbers, each once: a list may name an image again.

    Example:
        >>> some_of(["a is cut.", "b is empty.", "a is cut."])
        '(1) a is cut. (2) b is empty.'
    """
    return " ".join(f"({number}) {reason}" for number, reason in enumerate(islice(dict.fromkeys(reasons), SHOWN), 1))
