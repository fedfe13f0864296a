"""What commands print: messages, notes, tables and JSON, as much as --quiet, --verbose, --debug and --json ask for."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from ..io import progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE = 200  # columns of text where the output is not a terminal

UNLIMITED = 10_000  # columns of text, more than any table has


Quiet = Annotated[bool, Option("--quiet", "-q", help="Print errors only.")]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Print all log messages, with time and module.")]
Debug = Annotated[bool, Option("--debug", help="Print the stack trace of an error.")]
Json = Annotated[bool, Option("--json", help="Print the summary as JSON; all else goes to stderr.")]


@dataclass(frozen=True)
class OutputOptions:
    """How much a command prints: options of every command, and of ``flatfold`` in front of it."""

    quiet: Quiet = False
    verbose: Verbose = False
    debug: Debug = False
    json: Json = False

    def __or__(self, other: OutputOptions) -> OutputOptions:
        """Return the options that are given in one place or the other."""
        return OutputOptions(*(a or b for a, b in zip(astuple(self), astuple(other), strict=True)))


_options = OutputOptions()


def set_output(options: OutputOptions) -> None:
    """Print from now on as the options ask for."""
    global _options
    if options.quiet and options.verbose:
        raise typer.BadParameter("--quiet and --verbose contradict each other.")
    _options = options
    progress.hidden = options.quiet


def get_output() -> OutputOptions:
    """Return the options that are in force."""
    return _options


def say(text: str, err: bool = False, listing: bool = False) -> None:
    """Print a line of the summary, unless --quiet or --json is given; a line of a listing is what was asked for."""
    if not _options.json and (listing or not _options.quiet):
        typer.echo(printable(text), err=err)


def note(text: str) -> None:
    """Print a note to stderr, unless --quiet is given."""
    if not _options.quiet:
        typer.echo(f"note: {printable(text)}", err=True)


def print_json(**summary: Any) -> None:
    """Print the summary of a command on stdout if --json is given, on one line unless that is a terminal.

    Numbers that are not finite become null.
    """
    if _options.json:
        import msgspec

        text = msgspec.json.encode(summary, enc_hook=str)  # paths as text
        typer.echo(msgspec.json.format(text, indent=2 if sys.stdout.isatty() else 0).decode())


def open_console(listing: bool = False) -> Console:
    """Return the terminal, or a pipe that is wide enough for any table; --quiet hides all but listings."""
    from rich.console import Console  # late: --help needs none

    console = Console(quiet=_options.json or (_options.quiet and not listing))
    if not console.is_terminal:
        console.width = PIPE
    return console


def print_table(console: Console, table: Table, narrow: Table) -> bool:
    """Print a table if it fits into the terminal, else a narrower one; return whether it fits."""
    fits = console.measure(table, options=console.options.update(width=UNLIMITED)).maximum <= console.width
    console.print(table if fits else narrow)
    return fits


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    Example:
        >>> count(1, "row"), count(1200, "row")
        ('1 row', '1,200 rows')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def printable(text: str) -> str:
    r"""Return a text whose characters are all printed: others, by which a file name could control a terminal, escaped.

    Example:
        >>> printable("a\x1b[2J\u202eb.png")
        'a\\x1b[2J\\u202eb.png'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


class _Formatter(logging.Formatter):
    """Warnings as notes, other messages as they are; with --verbose the time and the module in front of each."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name in logging
        where = f"[{record.relativeCreated / 1000:.1f} s] {record.name}: " if _options.verbose else ""
        return printable(f"{where}{'note: ' if record.levelno == logging.WARNING else ''}{record.message}")


ROOMS_OF_STEPS = ("flatfold.data", "flatfold.network", "flatfold.passes")


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Print what the library logs: warnings and errors; with --quiet only errors, with --verbose everything."""
    log, rooms = logging.getLogger("flatfold"), list(map(logging.getLogger, ROOMS_OF_STEPS))
    before, handler = (log.level, [room.level for room in rooms], log.propagate), logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter())
    log.addHandler(handler)
    everything = _options.verbose or _options.debug
    log.setLevel(logging.ERROR if _options.quiet else logging.DEBUG if everything else logging.WARNING)
    log.propagate = False  # a root logger that prints would repeat everything
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        for room, level in zip(rooms, before[1], strict=True):
            room.setLevel(level)
        log.propagate = before[2]


def log_steps() -> None:
    """Print the steps of a long run too, unless --quiet is given."""
    log = logging.getLogger("flatfold")
    if log.level == logging.WARNING:
        log.setLevel(logging.INFO)
        for room in ROOMS_OF_STEPS:
            logging.getLogger(room).setLevel(logging.ERROR)  # the runner logs the same with the data set


@contextmanager
def captured_warnings() -> Iterator[None]:
    """Print Python warnings at the end, each once, as notes on stderr."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")  # deprecations of other libraries
            warnings.simplefilter("always", UserWarning)
            yield
    finally:
        for message in dict.fromkeys(str(warning.message) for warning in caught):
            note(message)
