"""Tables: the same content on a terminal, as plain text and in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from shutil import get_terminal_size
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table as RichTable

PIPE = 200  # columns of text if the output is not a terminal
UNLIMITED = 10_000  # columns of text, more than any table has
EDGE = "1px solid rgba(128, 128, 128, 0.4)"  # visible on light and on dark pages


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Attributes:
        columns: Heads of the columns.
        rows: The cells of each row.
        title: Above the table.
        caption: Below the table.
        left: Columns that are aligned to the left, as words are.
        best: Places of emphasised cells, as row and column.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    caption: str = ""
    left: Collection[int] = (0,)
    best: Collection[tuple[int, int]] = ()

    def rich(self) -> RichTable:
        """Return the table for a console of rich."""
        from rich.markup import escape as without_markup  # late: not needed for --help
        from rich.table import Table as RichTable
        from rich.text import Text

        title, caption = (without_markup(text) or None for text in (self.title, self.caption))
        table = RichTable(title=title, title_justify="left", caption=caption, caption_justify="left")
        for number, column in enumerate(self.columns):
            table.add_column(Text(column), justify="left" if number in self.left else "right", no_wrap=True)
        for i, row in enumerate(self.rows):
            styles = ("bold green" if (i, j) in self.best else "" for j in range(len(row)))
            table.add_row(*(Text(cell, style=style) for cell, style in zip(row, styles, strict=True)))
        return table

    def text(self) -> str:
        """Return the table as plain text, as wide as it needs to be."""
        from rich.console import Console

        file = StringIO()
        Console(file=file, width=UNLIMITED, color_system=None, legacy_windows=False).print(self.rich())
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.html()

    def html(self, notes: Sequence[str] = ()) -> str:
        """Return the table for a notebook, light or dark, with sentences below it; all texts are escaped."""

        def cell(kind: str, number: int, text: str) -> str:
            style = "text-align: left" if number in self.left else "text-align: right; white-space: nowrap"
            return f'<{kind} style="{style}; padding: 2px 10px">{text}</{kind}>'

        head = "".join(cell("th", number, escape(name)) for number, name in enumerate(self.columns))
        lines = [
            "".join(
                cell("td", j, f"<b>{escape(text)}</b>" if (i, j) in self.best else escape(text))
                for j, text in enumerate(row)
            )
            for i, row in enumerate(self.rows)
        ]
        body = "".join(f'<tr style="background: none; border-top: {EDGE}">{line}</tr>' for line in lines)
        title = f'<caption style="caption-side: top; text-align: left">{escape(self.title)}</caption>' * bool(
            self.title
        )
        below = "".join(f"<p>{escape(note)}</p>" for note in (self.caption, *notes) if note)
        table = f'<table style="border-collapse: collapse; color: inherit">{title}<tr>{head}</tr>{body}</table>'
        return f'<div style="overflow-x: auto">{table}{below}</div>'


def fitting_text(tables: Sequence[Table]) -> str:
    """Return the text of the first of several tables, each narrower than the one before, that fits the terminal."""
    width = get_terminal_size().columns if sys.stdout.isatty() else PIPE
    texts = [table.text() for table in tables]
    return next((text for text in texts if max(map(len, text.splitlines())) <= width), texts[-1])
