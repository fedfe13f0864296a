"""The command line: one module per group of commands; the only package that prints."""

import io
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from .. import __version__
from .bench import bench, methods, report
from .compare import compare
from .curvature import curvature
from .fit import export, fit
from .options import Command, grouped, name_options
from .output import Debug, Json, OutputOptions, Quiet, Verbose, get_output, print_error, set_output
from .paper import paper, reproduce
from .score import join, score, score_features
from .serve import serve
from .suite import doctor, suite_app

UsageError: Any = typer.BadParameter.__base__  # typer has moved it from one place to another
ABOUT = "Out-of-distribution (OOD) detection for PyTorch classifiers, from the curvature of the energy."

app = typer.Typer(
    name="flatfold",
    help=ABOUT,
    epilog="Start with: flatfold bench digits",
    no_args_is_help=True,
    context_settings={"max_content_width": 120},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text: boxes would leave 20 of 80 columns for the help
)
COMMANDS: tuple[Callable[..., None], ...] = (
    *(bench, curvature, reproduce, doctor, compare, paper, report),
    *(fit, score, score_features, join, serve, export, methods),
)
for command in COMMANDS:
    app.command(cls=Command)(grouped(command))
app.add_typer(suite_app)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"flatfold {__version__}")
        raise typer.Exit


@app.callback(help=ABOUT)
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
    json: Json = False,
) -> None:
    set_output(OutputOptions(quiet, verbose, debug, json))


def main() -> None:
    """Run the command line.

    Exit codes: 0 done, 1 invalid input, 2 invalid usage, 130 interrupted; `score` and `join` use 3 for images without a
    score.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 cannot print ±
    short_of_memory = False
    try:
        code = app(_translate(sys.argv[1:]), prog_name="flatfold", standalone_mode=False)
    except UsageError as error:
        code = error.exit_code
        print_error(error.format_message(), code, error.show)
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        code = 1
        unnamed = isinstance(error, ModuleNotFoundError) and "flatfold[" not in str(error)
        hint = ". The built-in suite needs the extra [demo]." if unnamed else ""
        print_error(f"{name_options(str(error))}{hint}", code, traceback.print_exc if get_output().debug else None)
    except typer.Abort:  # before the command has begun
        code = 130
        print_error("interrupted.", code)
    except Exception as error:  # a mistake of ours, whose traceback Python prints
        if not _is_about_memory(error):
            print_error(f"{type(error).__name__}: {error}", 1, lambda: None)
            raise
        if get_output().debug:
            traceback.print_exc()
        code, short_of_memory = 1, True
    if short_of_memory:  # reported when what the stack of the error held is free again
        advice = "Close other programs, use a machine with more, or fewer or smaller inputs at once (--batch-size)"
        print_error(f"out of memory. {advice}.", code)
    sys.exit(code or 0)


def _is_about_memory(error: Exception) -> bool:
    """Return whether memory is short: torch and onnxruntime raise a RuntimeError, the loader of libraries others."""
    words = ("out of memory", "allocate memory", "bad_alloc", "bad allocation", "map segment", "start new thread")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def _translate(words: list[str]) -> list[str]:
    """Translate `score --features FILE ...`, as in earlier versions, to `score-features FILE ...`."""
    place = next((i for i, word in enumerate(words) if word.partition("=")[0] == "--features"), None)
    if words[:1] != ["score"] or place is None:
        return words
    typer.echo("note: `flatfold score --features FILE` is deprecated. Use `flatfold score-features FILE`.", err=True)
    first = [words[place].partition("=")[2]] if "=" in words[place] else words[place + 1 : place + 2]
    rest = words[place + (1 if "=" in words[place] else 2) :]
    return ["score-features", *first, *words[1:place], *rest]
