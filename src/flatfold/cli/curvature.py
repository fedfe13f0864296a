"""``flatfold curvature``: how sharply the loss bends on known and on unknown images."""

from pathlib import Path
from typing import Annotated

import typer

from .bench import (
    AnyCounts,
    Data,
    Device,
    DrawReport,
    MaxUnreadable,
    Networks,
    SuiteName,
    Workers,
    check_folder,
    counted,
    parse_seeds,
    resumable,
)


def curvature(
    suite: SuiteName,
    samples: Annotated[int, typer.Option(min=2, help="Take at most so many images of each data set.")] = 500,
    matrix: Annotated[
        str,
        typer.Option(help="Over the parameters: hessian, or ggn, its Gauss-Newton part, which is never negative."),
    ] = "hessian",
    loss: Annotated[
        str,
        typer.Option(
            help="Over the parameters: energy, logsumexp of the logits as in the paper, or ce_pred, the cross-entropy "
            "of the predicted class. Unknown images have no labels for ce."
        ),
    ] = "energy",
    probes: Annotated[int, typer.Option(min=1, help="Random directions behind the spectrum over the parameters.")] = 4,
    steps: Annotated[int, typer.Option(min=1, help="Lanczos steps from each of them.")] = 16,
    alpha: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Exponent of partial normalisation. Default: AutoFold's choice on the validation images.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the study, features and page. Default: out/SUITE, as for bench.")
    ] = None,
    networks: Networks = None,
    seed: Annotated[
        str | None,
        typer.Option(
            help="Of data splits, training and random directions; several, as in 0,1,2, are studied one after the "
            "other. Default: the suite's, or 0."
        ),
    ] = None,
    data: Data = None,
    device: Device = "cpu",
    batch_size: Annotated[
        int, typer.Option(min=1, help="Images per pass; second derivatives take several times the memory of a bench.")
    ] = 64,
    workers: Workers = 0,
    max_unreadable: MaxUnreadable = 0.01,
    any_counts: AnyCounts = False,
    resume: Annotated[
        bool,
        typer.Option("--resume/--restart", help="Go on where an earlier study stopped, or compute everything again."),
    ] = True,
    report: DrawReport = True,
) -> None:
    """Measure the curvature of the loss on known images and on every data set that the network has never met.

    The paper's finding is that the loss bends more sharply on unknown images, over the parameters and over the
    features. This measures both on the same images: the largest eigenvalue (lambda_max) and the trace of the Hessian,
    its spectrum, and the trace of every single image, which is a score. What is over the features is exact, and so is
    the trace over the parameters of a network of linear layers, convolutions and ReLUs; what is estimated says how
    certain it is.

    Every finished part is kept under --out, so one that was stopped goes on. Writes curvature.json, curvature.csv,
    curvature.safetensors, curvature.html and figures; a report.html of `flatfold bench` in the same folder is drawn
    again with them. A suite with several networks or seeds gets a folder for each.

    Example: flatfold curvature digits

    Example: flatfold curvature examples/cifar10.toml --networks resnet20 --samples 200
    """
    import logging
    import sys
    from dataclasses import asdict

    from ..evaluate.banks import Settings
    from ..evaluate.study import forget_study, run_study
    from ..evaluate.study_measure import Plan
    from ..evaluate.suites.library import load_suites
    from ..models.eval_mode import usable_device
    from ..report.page import write_curvature
    from .tables import print_study

    logging.basicConfig(format="%(message)s")
    logging.getLogger("flatfold").setLevel(logging.INFO)
    logging.getLogger("flatfold.models").setLevel(logging.ERROR)  # the study says what is found, with the data set
    plan = Plan(samples, matrix, loss, probes, steps, alpha)  # type: ignore[arg-type]  # which it looks at
    usable_device(device)
    settings = Settings(device, workers, max_unreadable, command=" ".join(["flatfold", *sys.argv[1:]]))
    folder = out or Path("out") / Path(suite).stem
    names = None if networks is None else [name.strip() for name in networks.split(",")]
    suites = load_suites(suite, folder, parse_seeds(seed), batch_size, data, any_counts, names)
    several = len(suites[0].siblings) > 1
    check_study_folder(folder, several)
    for each in suites:
        place = folder / each.network if several else folder
        with resumable(place):
            if not resume:
                forget_study(each, place, plan.samples)
            study = run_study(each, place, settings, **{**asdict(plan), "seed": each.seed})
            study.save(place)
            page = write_curvature(place) if report else None
        print_study(study)
        rows = counted(len(study.statistics), "row")
        typer.echo(f"{rows} -> {place / 'curvature.csv'}, {place / 'curvature.json'}")
        typer.echo(f"traces of single images and spectra -> {place / 'curvature.safetensors'}")
        if page is not None:
            typer.echo(f"curvature -> {page}")
            if (place / "results.json").exists():  # of a benchmark, whose page the study joins
                typer.echo(f"report -> {place / 'report.html'}")


def check_study_folder(folder: Path, several: bool) -> None:
    """Raise if a study would come to lie beside others that it would be taken for, or together with."""
    check_folder(folder, several)
    if several and (folder / "curvature.json").exists():
        raise ValueError(f"{folder} holds a study of a single network. Give another --out for several, or remove it.")
    if not several and any(folder.glob("*/curvature.json")):
        raise ValueError(
            f"{folder} holds studies of several networks. Give another --out for this one, or remove them."
        )
