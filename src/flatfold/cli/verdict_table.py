"""The verdicts of a reproduction as a table in the terminal."""

from collections import Counter
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from ..evaluate.reproduce.verdict import Verdict
from .console import open_console

COLOURS = {"agrees": "green", "partly": "yellow", "disagrees": "red"}


def print_verdicts(found: Sequence[Verdict]) -> None:
    """Print a line for every table and figure: its number, whether it agrees, and what this run shows."""
    table = Table(title="The paper beside this run", title_justify="left", show_lines=True)
    table.add_column("in the paper", no_wrap=True)
    table.add_column("agreement", no_wrap=True)
    table.add_column("this run shows", overflow="fold")
    for each in found:
        colour = COLOURS.get(each.agreement, "default")
        table.add_row(escape(each.number), f"[{colour}]{each.agreement}[/]", escape(each.shows))
    console = open_console()
    console.print(table)
    counts = Counter(str(each.agreement) for each in found)
    console.print(f"{len(found)} claims: {', '.join(f'{count} {word}' for word, count in counts.items())}.")
