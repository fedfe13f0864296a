"""Output that a page shows, compared by its words with what came; numbers depend on machines and on limits."""

import re

STRANGE = 0.1  # share of the words that may differ: the classes that an explanation names are those of a training


def words(text):
    """Return the words of some output, without numbers, frames and what a table cuts off."""
    return set(re.findall(r"[A-Za-z_]{2,}", text))


def check_shown(shown, came):
    """Raise unless nearly all words that a page shows were printed.

    A page may leave out lines, columns and, with ``...``, what follows; it may not show what nobody prints.

    Args:
        shown: The block of the page.
        came: What the block above it has printed.
    """
    expected = words(shown)
    missing = expected - words(came)
    assert len(missing) <= STRANGE * len(expected), f"the page shows {sorted(missing)}, but what came is\n{came}"
