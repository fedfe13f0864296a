"""``flatfold reproduce``: every table and figure of the paper on one suite, and whether each agrees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .bench import (
    AnyCounts,
    Data,
    Device,
    DrawReport,
    MaxUnreadable,
    SuiteName,
    Workers,
    parse_seeds,
    resumable,
)
from .curvature import check_study_folder
from .own import With, load_own

if TYPE_CHECKING:
    from ..evaluate.suites.suite import Suite


def reproduce(
    suite: SuiteName,
    out: Annotated[Path | None, typer.Option(help="Folder for everything. Default: out/paper/SUITE.")] = None,
    networks: Annotated[
        str | None,
        typer.Option(help="Comma-separated names of the suite's networks; of digits cnn, mlp, residual. Default: all."),
    ] = None,
    seed: Annotated[
        str | None,
        typer.Option(help="Of data splits and training; several, as in 0,1,2. Default: the suite's, or 0."),
    ] = None,
    data: Data = None,
    device: Device = "cpu",
    batch_size: Annotated[
        int, typer.Option(min=1, help="Images per pass; second derivatives take several times the memory of a bench.")
    ] = 64,
    workers: Workers = 0,
    samples: Annotated[
        int, typer.Option(min=2, help="Most images of each data set whose curvature is measured.")
    ] = 200,
    rounds: Annotated[int, typer.Option(min=1, help="How often each cost is timed, on a batch of 256.")] = 11,
    alpha: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Exponent of partial normalisation. Default: AutoFold's choice."),
    ] = None,
    bootstrap: Annotated[
        int, typer.Option(min=0, help="Redrawn samples behind each interval of the benchmark; 0 leaves some out.")
    ] = 1000,
    limit: Annotated[
        int | None, typer.Option(min=2, help="Take at most so many images of each data set, for a quick look.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="As for bench. Default: the paper's, tuned as in the paper where the suite allows it."),
    ] = None,
    max_unreadable: MaxUnreadable = 0.01,
    any_counts: AnyCounts = False,
    resume: Annotated[
        bool, typer.Option("--resume/--restart", help="Go on where an earlier run stopped, or compute all of it again.")
    ] = True,
    report: DrawReport = True,
    own: With = None,
) -> None:
    """Measure all that the paper reports on one suite, and say of every table and figure whether it agrees.

    Every network gets a benchmark of the paper's methods, a curvature study, and what neither has: the effect of
    normalisation on seven methods, the sensitivity to the exponent, the separation of scores, and the cost of each
    method. All of it from the same features, which are extracted once. One that was stopped goes on.

    Writes, under --out, a folder for each network as bench and curvature do, with ablations.json beside their files;
    reproduction.html, which has every table and figure under its number in the paper; and full-scale, with the
    commands and all that is needed to run the paper's own benchmarks.

    Example: flatfold reproduce digits

    Example: flatfold reproduce cifar10 --data ~/OpenOOD --device cuda --workers 8
    """
    import logging
    import sys

    from ..evaluate.reproduce.finished import check_suite
    from ..evaluate.reproduce.full_scale import write_full_scale
    from ..evaluate.reproduce.plan import Plan
    from ..evaluate.reproduce.run import forget_reproduction, place_of
    from ..evaluate.reproduce.run import reproduce as run
    from ..evaluate.runner import checked_specs
    from ..evaluate.settings import Settings
    from ..evaluate.spec import parse_specs
    from ..models.at_rest import usable_device

    logging.basicConfig(format="%(message)s")
    logging.getLogger("flatfold").setLevel(logging.INFO)
    logging.getLogger("flatfold.models").setLevel(logging.ERROR)  # the runs say what is found, with the data set
    load_own(own)
    chosen = None if methods is None else tuple(checked_specs(parse_specs(methods)))
    plan = Plan(samples=samples, rounds=rounds, methods=chosen, alpha=alpha)
    usable_device(device)
    settings = Settings(device, workers, max_unreadable, bootstrap, " ".join(["flatfold", *sys.argv[1:]]))
    folder = out or Path("out") / "paper" / Path(suite).stem
    with resumable(folder):
        suites = _suites(suite, folder, parse_seeds(seed), batch_size, data, any_counts, networks, limit)
        several = len(suites[0].siblings) > 1
        names = suites[0].siblings if several else [""]
        check_study_folder(folder, several)
        check_suite(folder, names, suites[0].name)
        for each in suites:
            place = place_of(each, folder)
            if not resume:
                forget_reproduction(each, place, plan)
            run([each], folder, settings, plan)
            _draw(place, report)
            typer.echo(f"{each.network or each.name} -> {place}")
        _conclude(folder, names, [each.network if several else "" for each in suites], report)
    typer.echo(f"what a full run needs -> {write_full_scale(folder)}")


def _suites(
    name: str,
    folder: Path,
    seeds: list[int] | None,
    batch_size: int,
    data: Path | None,
    any_counts: bool,
    networks: str | None,
    limit: int | None,
) -> list[Suite]:
    """Return a suite for each network; the paper has several, so all of digits' are taken unless some are named."""
    from ..evaluate.suites.digit_networks import DIGIT_NETWORKS
    from ..evaluate.suites.library import DIGITS, load_suites

    names = list(DIGIT_NETWORKS) if name == DIGITS else None
    if networks is not None:
        names = [network.strip() for network in networks.split(",")]
    return load_suites(name, folder, seeds, batch_size, data, any_counts, names, limit)


def _draw(place: Path, report: bool) -> None:
    """Draw the pages of one network; that of its curvature draws that of its benchmark too."""
    from ..report.curvature.page import write_curvature

    if report:
        write_curvature(place)


def _conclude(folder: Path, names: Sequence[str], now: Sequence[str], report: bool) -> None:
    """Say of every table and figure whether it agrees, with networks of earlier runs too, and write the page."""
    from ..evaluate.reproduce.claims import verdicts
    from ..evaluate.reproduce.finished import finished
    from ..evaluate.summary import save_summary, summarise
    from .verdict_table import print_verdicts

    materials, left_out = finished(folder, names, now)
    for network, reason in left_out.items():
        typer.echo(f"{network} is left out: {reason}", err=True)
    networks = [material.network for material in materials]
    if len(networks) > 1:
        save_summary(summarise(material.results for material in materials), folder, networks)
    print_verdicts(verdicts(materials))
    if report:
        typer.echo(f"every table and figure -> {_draw_all(folder, networks)}")


def _draw_all(folder: Path, networks: Sequence[str]) -> Path:
    """Draw the pages about all networks, and return the one about the paper."""
    from ..report.reproduction.page import write_reproduction
    from ..report.summary import write_summary

    if len(networks) > 1:
        write_summary(folder)
    return write_reproduction(folder, networks)
