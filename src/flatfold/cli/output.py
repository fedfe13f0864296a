"""Print messages, notes, tables and JSON, controlled by --quiet, --verbose, --debug and --json."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from ..display.numbers import count as count
from ..display.table import PIPE, UNLIMITED
from ..io import progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Quiet = Annotated[bool, Option("--quiet", "-q", help="Print errors only.")]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Print all log messages, with time and module.")]
Debug = Annotated[bool, Option("--debug", help="Print the stack trace of an error.")]
Json = Annotated[bool, Option("--json", help="Print the summary as JSON; all else goes to stderr.")]


@dataclass(frozen=True)
class OutputOptions:
    """Output options, accepted by every command and by ``flatfold`` itself."""

    quiet: Quiet = False
    verbose: Verbose = False
    debug: Debug = False
    json: Json = False

    def __or__(self, other: OutputOptions) -> OutputOptions:
        """Combine the options given in either place."""
        return OutputOptions(*(a or b for a, b in zip(astuple(self), astuple(other), strict=True)))


_options = OutputOptions()
_answered = False  # whether the one JSON document of this command is on stdout


def set_output(options: OutputOptions) -> None:
    """Set the output options."""
    global _options, _answered
    if options.quiet and options.verbose:
        raise typer.BadParameter("--quiet and --verbose contradict each other.")
    _options, _answered = options, False
    progress.hidden = options.quiet


def get_output() -> OutputOptions:
    """Return the current output options."""
    return _options


def say(text: str, err: bool = False, listing: bool = False) -> None:
    """Print a line of the summary unless --quiet or --json is given; --quiet does not hide a ``listing``."""
    if not _options.json and (listing or not _options.quiet):
        typer.echo(printable(text), err=err)


def note(text: str) -> None:
    """Print a note to stderr, unless --quiet is given."""
    if not _options.quiet:
        typer.echo(f"note: {printable(text)}", err=True)


def print_json(**summary: Any) -> None:
    """Print the summary of a command on stdout if --json is given, on one line unless stdout is a terminal.

    Non-finite numbers become null.
    """
    global _answered
    if _options.json:
        import msgspec

        text = msgspec.json.encode(summary, enc_hook=str)  # paths as text
        typer.echo(msgspec.json.format(text, indent=2 if sys.stdout.isatty() else 0).decode())
        _answered = True


def print_error(text: str, exit_code: int, show: Callable[[], object] | None = None) -> None:
    """Print an error on stderr and, if --json is given, as the JSON document on stdout.

    ``show`` prints it on stderr in another way than as one line.
    """
    if show is None:
        typer.echo(f"flatfold: {printable(text)}", err=True)
    else:
        show()
    if "--json" in sys.argv and not _answered:  # the options themselves may be what is wrong, and unread
        set_output(OutputOptions(json=True))
        print_json(error=text, exit_code=exit_code)


def open_console(listing: bool = False) -> Console:
    """Create a console, with the width of the terminal or of any table if piped; --quiet hides all but listings."""
    from rich.console import Console  # late: not needed for --help

    console = Console(quiet=_options.json or (_options.quiet and not listing))
    if not console.is_terminal:
        console.width = PIPE
    return console


def print_table(console: Console, *tables: Table) -> int:
    """Print the first of several tables, each narrower than the one before, that fits; return its place.

    The last one is printed if none fits, with lines that are longer than the terminal, so that no cell is cut.
    """
    widths = [table_width(console, table) for table in tables]
    window = console.width
    place = next((i for i, width in enumerate(widths) if width <= window), len(tables) - 1)
    console.width = max(widths[place], window)
    console.print(tables[place])
    console.width = window
    return place


def table_width(console: Console, table: Table) -> int:
    """Return the width of a table without wrapped cells."""
    return console.measure(table, options=console.options.update(width=UNLIMITED)).maximum


def printable(text: str) -> str:
    r"""Escape non-printable characters, with which a file name could control a terminal.

    Example:
        >>> printable("a\x1b[2J\u202eb.png")
        'a\\x1b[2J\\u202eb.png'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


class _Formatter(logging.Formatter):
    """Format warnings as notes and other messages unchanged; --verbose prepends time and module."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name in logging
        where = f"[{record.relativeCreated / 1000:.1f} s] {record.name}: " if _options.verbose else ""
        return printable(f"{where}{'note: ' if record.levelno == logging.WARNING else ''}{record.message}")


ROOMS_OF_STEPS = ("flatfold.data", "flatfold.network", "flatfold.passes")


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Print log messages of the library: warnings and errors; with --quiet only errors, with --verbose all."""
    log, rooms = logging.getLogger("flatfold"), list(map(logging.getLogger, ROOMS_OF_STEPS))
    before, handler = (log.level, [room.level for room in rooms], log.propagate), logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter())
    log.addHandler(handler)
    everything = _options.verbose or _options.debug
    log.setLevel(logging.ERROR if _options.quiet else logging.DEBUG if everything else logging.WARNING)
    log.propagate = False  # a root handler would duplicate the messages
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        for room, level in zip(rooms, before[1], strict=True):
            room.setLevel(level)
        log.propagate = before[2]


def log_steps() -> None:
    """Also print the steps of a long run, unless --quiet is given."""
    log = logging.getLogger("flatfold")
    if log.level == logging.WARNING:
        log.setLevel(logging.INFO)
        for room in ROOMS_OF_STEPS:
            logging.getLogger(room).setLevel(logging.ERROR)  # the runner logs the same with the data set


@contextmanager
def captured_warnings() -> Iterator[None]:
    """Print Python warnings at the end as notes on stderr, without duplicates."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")  # deprecations of other libraries
            warnings.simplefilter("always", UserWarning)
            yield
    finally:
        for message in dict.fromkeys(str(warning.message) for warning in caught):
            note(message)
