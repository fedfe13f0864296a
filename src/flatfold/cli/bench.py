"""``flatfold bench``: every method on one suite, as a table and as a page."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from .console import open_console
from .options import With, load_own

Data = Annotated[
    Path | None,
    typer.Option(help="Folder that holds OpenOOD's `data` and `results`. Default: the environment variable OPENOOD."),
]

SuiteName = Annotated[
    str,
    typer.Argument(
        help="Built in: digits, which needs nothing, and OpenOOD's cifar10, cifar100, imagenet200, imagenet1k. "
        "Or a suite file of your own, such as mine.toml (`flatfold suite init` writes one)."
    ),
]

Networks = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated names of the suite's networks. Default: all of them; of digits cnn alone (also: mlp, "
        "residual)."
    ),
]

Device = Annotated[str, typer.Option(help="Any torch device string: cpu, cuda, cuda:1, mps.")]

Workers = Annotated[int, typer.Option(min=0, help="Processes that read images ahead.")]

MaxUnreadable = Annotated[
    float,
    typer.Option(min=0, max=1, help="Share of a data set's images that may be left out because they are broken."),
]

AnyCounts = Annotated[
    bool, typer.Option("--any-counts", help="Run although a list has not as many images as it should.")
]

DrawReport = Annotated[
    bool,
    typer.Option("--report/--no-report", help="Draw the page and its figures; `flatfold report` does it later."),
]


def bench(
    suite: SuiteName,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated names, as `flatfold methods` lists them, with hyper-parameters behind colons "
            "(knn:k=10). NAME@ood chooses them on the suite's unknown validation images, NAME@id on known ones alone. "
            "Default: all methods, untuned."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for results, features and page. Default: out/SUITE.")] = None,
    networks: Networks = None,
    seed: Annotated[
        str | None,
        typer.Option(
            help="Of data splits and training; several, as in 0,1,2, are run one after the other and averaged. "
            "Default: the suite's, or 0."
        ),
    ] = None,
    data: Data = None,
    device: Device = "cpu",
    batch_size: Annotated[int, typer.Option(min=1, help="Images per forward pass.")] = 256,
    workers: Workers = 0,
    limit: Annotated[
        int | None, typer.Option(min=2, help="Take at most so many images of each data set, for a quick look.")
    ] = None,
    max_unreadable: MaxUnreadable = 0.01,
    bootstrap: Annotated[
        int, typer.Option(min=0, help="Redrawn samples behind each interval; 0 leaves all but AUROC's out.")
    ] = 1000,
    any_counts: AnyCounts = False,
    resume: Annotated[
        bool,
        typer.Option("--resume/--restart", help="Go on where an earlier run stopped, or compute all features again."),
    ] = True,
    report: DrawReport = True,
    own: With = None,
) -> None:
    """Judge methods on a suite: AUROC and FPR95 on every data set that the network has never met.

    Features are extracted once and kept under --out, so a second run is quick, and one that was stopped goes on after
    the last 4096 images of a data set. Writes results.json, results.csv, averages.csv, scores.safetensors,
    thumbnails.safetensors, report.html and figures, in place of those of an earlier run. A suite with several networks
    or seeds gets a folder for each, and summary.csv, summary.json and a page with their means above them.

    Example: flatfold bench digits --methods msp,knn:k=10,knn@id,react@ood,autofold
    """
    import logging
    import sys

    from .. import detectors
    from ..evaluate.banks import Settings
    from ..evaluate.runner import checked_specs, forget, run
    from ..evaluate.spec import parse_specs
    from ..evaluate.suites.library import load_suites
    from ..models.eval_mode import usable_device
    from ..report.page import write_report
    from .tables import print_results

    logging.basicConfig(format="%(message)s")
    logging.getLogger("flatfold").setLevel(logging.INFO)
    logging.getLogger("flatfold.models").setLevel(logging.ERROR)  # the runner says what is found, with the data set
    load_own(own)
    specs = checked_specs(detectors.methods() if methods is None else parse_specs(methods))
    usable_device(device)
    command = " ".join(["flatfold", *sys.argv[1:]])
    settings = Settings(device, workers, max_unreadable, bootstrap, command)
    folder = out or Path("out") / Path(suite).stem
    names = None if networks is None else [name.strip() for name in networks.split(",")]
    suites = load_suites(suite, folder, parse_seeds(seed), batch_size, data, any_counts, names, limit)
    several = len(suites[0].siblings) > 1
    check_folder(folder, several)
    for each in suites:
        place = folder / each.network if several else folder
        with resumable(place):
            if not resume:
                forget(place)
            results = run(each, specs, place, settings)
            results.save(place)
            page = write_report(place) if report else None
        print_results(results)
        typer.echo(f"{counted(len(results.rows), 'row')} -> {place / 'results.csv'}, {place / 'results.json'}")
        if page is not None:
            typer.echo(f"report -> {page}")
    if several:
        _summarise(folder, suites[0].siblings, report)


def check_folder(folder: Path, several: bool) -> None:
    """Raise if results would come to lie beside others that they would be taken for, or together with."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"--out must be a folder, but {folder} is a file. Choose another.")
    if several and (folder / "results.json").exists():
        raise ValueError(f"{folder} holds the results of a single run. Give another --out for several, or remove it.")
    if not several and (folder / "summary.json").exists():
        raise ValueError(f"{folder} holds the results of several runs. Give another --out for this one, or remove it.")


@contextmanager
def resumable(place: Path) -> Iterator[None]:
    """Say that nothing is lost when the work is interrupted; typer itself would leave without a word."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"flatfold: stopped. The same command goes on with what is already in {place}.", err=True)
        raise typer.Exit(130) from None


def counted(number: int, thing: str) -> str:
    """Return a number of things in words.

    Example:
        >>> counted(1, "row"), counted(2, "row")
        ('1 row', '2 rows')
    """
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _summarise(folder: Path, networks: Sequence[str], report: bool) -> None:
    """Write and print the means over the networks of each family, as far as they have been judged."""
    from ..evaluate.results import load_results
    from ..evaluate.summary import save_summary, summarise
    from ..report.summary import write_summary
    from .tables import print_summary

    judged = [network for network in networks if (folder / network / "results.json").exists()]
    rows = summarise(load_results(folder / network) for network in judged)
    save_summary(rows, folder, judged)
    page = f", {write_summary(folder)}" if report else ""
    print_summary(rows)
    typer.echo(f"all runs -> {folder / 'summary.csv'}{page}")


def parse_seeds(text: str | None) -> list[int] | None:
    """Return the seeds in a text such as ``0,1,2``, each once."""
    if text is None:
        return None
    seeds = [word.strip() for word in text.split(",")]
    if not all(seed.isdecimal() and int(seed) < 2**32 for seed in seeds):
        raise ValueError(
            f"--seed takes whole numbers from 0 to 2^32 - 1 with commas between them, such as 0,1,2, got {text!r}."
        )
    return list(dict.fromkeys(map(int, seeds)))


# ``flatfold report``: draw the pages again from result files.


def report(
    folder: Annotated[
        Path, typer.Argument(help="Folder that `flatfold bench` or `flatfold curvature` wrote, such as out/digits.")
    ],
) -> None:
    """Write report.html, curvature.html and figures from result files, without running anything.

    Both pages where a benchmark and a curvature study lie in the folder, or the one of what is there. In a folder with
    several networks, the pages of each are written, and one with their means.
    """
    from ..evaluate.summary import load_runs
    from ..report.page import write_curvature, write_report
    from ..report.summary import write_summary

    studies = _holding(folder, "curvature.json")
    runs = list(load_runs(folder)) if _holding(folder, "results.json") or not studies else []
    for place in dict.fromkeys([*runs, *studies]):
        if place in studies:
            typer.echo(f"curvature -> {write_curvature(place)}")  # with the report that it joins
        else:
            write_report(place)
        if place in runs:
            typer.echo(f"report -> {place / 'report.html'}")
    if runs and runs != [folder]:
        typer.echo(f"all runs -> {write_summary(folder)}")


def _holding(folder: Path, name: str) -> list[Path]:
    """Return the folder itself if it holds such a file, else its direct sub-folders that do."""
    return [folder] if (folder / name).exists() else [path.parent for path in sorted(folder.glob(f"*/{name}"))]


# ``flatfold methods``: what can be put after ``--methods``.


def methods(own: With = None) -> None:
    """List every method with its hyper-parameters and what it learns from."""
    from rich.table import Table

    from .. import detectors

    load_own(own)
    table = Table(box=None, pad_edge=False)
    for column in ("method", "what it scores", "learns from", "hyper-parameters"):
        table.add_column(column)
    for name in detectors.methods():
        method = detectors.get_method(name)
        hyper = ", ".join(f"{key}={_short(value)}" for key, value in detectors.hyperparameters(name).items())
        table.add_row(name, method.summary, _teachers(method.fits_on, method.sees), hyper)
    console = open_console()
    console.print(table)
    console.print(
        "\nalpha=... on any other method that sees features puts partial normalisation, h / |h|^alpha, in front of it."
    )
    console.print("From Python: flatfold.create(name, alpha=..., preset='authors').")
    tunable = {name: detectors.get_method(name) for name in detectors.methods() if detectors.get_method(name).grid}
    features = ", ".join(name for name, method in tunable.items() if method.sees == "features")
    inputs = " and ".join(name for name, method in tunable.items() if method.sees != "features")
    console.print(f"In a benchmark name@id tunes a method on known data, name@ood on unknown data: {features}.")
    console.print(f"{inputs} can be tuned on unknown data only.")


def _teachers(fits_on: str, sees: str) -> str:
    """Return what a method learns from, in words."""
    if sees != "features":
        return "ID training images" if fits_on == "train" else "nothing, it runs the network"
    return {"nothing": "the head alone", "val": "ID validation data", "train": "ID training data"}[fits_on]


def _short(value: object) -> str:
    """Return a default in a few characters; a grid by its ends."""
    return f"{value[0]}..{value[-1]}" if isinstance(value, tuple) and value else str(value)
