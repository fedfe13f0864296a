"""Where tables are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPE = 200  # columns of text, for something that has no width to respect


def open_console() -> Console:
    """Return the terminal, or a pipe that is wide enough for any table."""
    from rich.console import Console  # late: --help needs none

    console = Console()
    if not console.is_terminal:
        console.width = PIPE
    return console
