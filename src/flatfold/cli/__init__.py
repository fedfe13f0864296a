"""The command line: one file per command, and the only room that prints."""

import io
import sys
from typing import Annotated

import typer

from .. import __version__
from .bench import bench, methods, report
from .compare import compare
from .curvature import curvature
from .export import export
from .fit import fit
from .join import join
from .paper import paper, reproduce
from .score import score
from .serve import serve
from .suite import doctor, suite_app

app = typer.Typer(
    name="flatfold",
    help="Which inputs does your classifier not know? Out-of-distribution detection from the curvature of the energy.",
    epilog="Start with: flatfold bench digits",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for command in (bench, curvature, reproduce, doctor, compare, paper, report, fit, score, join, serve, export, methods):
    app.command()(command)

app.add_typer(suite_app)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"flatfold {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Which inputs does your classifier not know? Out-of-distribution detection from the curvature of the energy."""


def main() -> None:
    """Run the command line: exit 0 when done, 1 when the input was wrong, 2 when the usage was, 130 when interrupted.

    A command may have codes of its own: `score` leaves with 3 when it is done and some images could not be scored.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 has no ±
    try:
        app(prog_name="flatfold")
    except (ValueError, TypeError, OSError) as error:
        typer.echo(f"flatfold: {error}", err=True)
        sys.exit(1)
    except ModuleNotFoundError as error:
        extra = "" if "flatfold[" in str(error) else ". The built-in suite needs the extra [demo]."
        typer.echo(f"flatfold: {error}{extra}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo("flatfold: interrupted; the same command goes on where it stopped", err=True)
        sys.exit(130)
