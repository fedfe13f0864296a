"""``flatfold curvature``: the curvature of the loss on ID and OOD images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from .bench import title_of
from .options import ExecutionOptions, LoadingOptions, SuiteName, SuiteOptions
from .output import count, open_console, print_json, say

if TYPE_CHECKING:
    from rich.table import Table

    from ..evaluate.study_results import Space, Statistic, Study

SHOWN: tuple[Space, ...] = ("parameter", "feature")

DIGITS = 4  # significant digits of a figure

LEGEND = (
    "Mean matrix over the images of a data set; x: ratio to the value on ID images. Values without ± are exact for "
    "these images to all digits shown; other images of the same kind give other values."
)


def curvature(
    suite: SuiteName,
    samples: Annotated[int, Option(min=2, help="Largest number of images per data set.")] = 500,
    matrix: Annotated[str, Option(help="Matrix over the parameters: hessian or ggn (Gauss-Newton).")] = "hessian",
    loss: Annotated[
        str,
        Option(
            help="Loss over the parameters: energy (logsumexp of the logits, as in the paper) or ce_pred "
            "(cross-entropy of the predicted class). ce needs labels, which OOD images do not have."
        ),
    ] = "energy",
    probes: Annotated[int, Option(min=1, help="Random directions for the spectrum over the parameters.")] = 4,
    steps: Annotated[int, Option(min=1, help="Lanczos steps per random direction.")] = 16,
    alpha: Annotated[
        float | None, Option(min=0, max=1, help="Exponent of partial normalisation. Default: AutoFold's.")
    ] = None,
    batch_size: Annotated[int, Option(min=1, help="Images per pass; needs several times the memory of bench.")] = 64,
    *,
    options: SuiteOptions,
    loading: LoadingOptions,
    execution: ExecutionOptions,
) -> None:
    """Measure the curvature of the loss on ID and OOD images.

    The paper finds a larger curvature on OOD images, over the parameters and over the features. This command measures
    both on the same images: largest eigenvalue (lambda_max), trace and spectrum of the Hessian, and the trace for each
    image, which is a score. Values over the features are exact, and so is the trace over the parameters of a network of
    linear layers, convolutions and ReLUs; other values are estimates with an error.

    Finished parts are kept in the output folder; an interrupted study resumes from there. Writes curvature.json,
    curvature.csv, curvature.safetensors, curvature.html and figures, and updates the report.html of `flatfold bench` in
    the same folder. With several networks or seeds, each gets a folder.

    Example: flatfold curvature digits

    Example: flatfold curvature examples/cifar10.toml --networks resnet20 --samples 200
    """
    from dataclasses import asdict

    from ..evaluate.study import Plan, forget_study, run_study
    from ..report.page import write_curvature

    plan = Plan(samples, matrix, loss, probes, steps, alpha)  # type: ignore[arg-type]  # Plan checks the names
    settings = execution.settings(loading)
    folder = options.out or Path("out") / Path(suite).stem
    runs = []
    for place, each in options.suites(suite, folder, batch_size).items():
        if not options.resume:
            forget_study(each, place, plan.samples)
        study = run_study(each, place, settings, **{**asdict(plan), "seed": each.seed})
        study.save(place)
        page = write_curvature(place) if options.report else None
        print_study(study)
        say(f"{count(len(study.statistics), 'row')} -> {place / 'curvature.csv'}, {place / 'curvature.json'}")
        say(f"traces of single images and spectra -> {place / 'curvature.safetensors'}")
        if page is not None:
            say(f"curvature -> {page}")
            if (place / "results.json").exists():
                say(f"report -> {place / 'report.html'}")
        about = {name: study.suite[name] for name in ("name", "network", "deviations")}
        figures = {"statistics": study.statistics, "detections": study.detections}
        runs.append({"folder": place, "suite": about, **figures, "page": page})
    print_json(runs=runs)


def print_study(study: Study) -> None:
    """Print one line per data set and group, the estimators used, and where the paper's claim does not hold."""
    console = open_console()
    console.print(_study_table(study))
    for line in _sentences(study):
        console.print(line, markup=False, highlight=False)
    for deviation in study.suite.get("deviations", ()):
        console.print(f"Before you compare: {deviation}.", markup=False, style="yellow")


def _study_table(study: Study) -> Table:
    from rich.markup import escape
    from rich.table import Table

    from ..curvature.estimate import LOSSES, MATRICES
    from ..evaluate.results import ID

    provenance = study.provenance
    what = f"{MATRICES[provenance['matrix']]} of the {LOSSES[provenance['loss']]}"
    sizes = f"{study.sizes['parameter']} parameters and {study.sizes['feature']} features"
    title = f"{title_of(study.suite)}: {what} over {sizes}."
    table = Table(title=title, title_justify="left", caption=LEGEND, caption_justify="left")
    table.add_column("data set", no_wrap=True)
    table.add_column("images", justify="right", no_wrap=True)
    columns = [column for column in study.columns if column[0] in SHOWN]
    for space, name in columns:
        table.add_column(f"{space}\n{name}", justify="right")  # on two lines, to fit into 80 columns of text
    for dataset in study.datasets + study.groups:
        if dataset == "near" or (dataset == "far" and "near" not in study.groups):
            table.add_section()
        values = []
        for column in columns:
            factor = None if dataset == ID else study.factor(dataset, *column)
            ratio = "" if factor is None else f" x{f'{factor:#.3g}'.rstrip('.')}"
            values.append(format_value(study.cells[dataset, *column]) + ratio)
        label = f"{dataset} (mean)" if dataset in study.groups else dataset
        table.add_row(escape(label), str(study.cells[dataset, *columns[0]].n), *values)
    return table


def format_value(cell: Statistic) -> str:
    """Format a value to four digits, with its error if that can change one of them."""
    figure = f"{cell.value:#.{DIGITS}g}".rstrip(".")
    if cell.stderr is None or cell.stderr < abs(cell.value) * 0.5 * 10.0 ** (1 - DIGITS):
        return figure
    return f"{figure} ± {cell.stderr:.1g}"


def _sentences(study: Study) -> Iterator[str]:
    """Yield the estimators used, the AUROC of traces as scores, and where the paper's claim does not hold."""
    from ..evaluate.results import ID
    from ..evaluate.study_results import above, typical_error

    for name in ("lambda_max", "trace"):
        yield f"parameter {name}: {study.cells[ID, 'parameter', name].method}."
    cells = study.cells
    if any(cells[d, "parameter", "trace"].value < cells[d, "parameter", "lambda_max"].value for d in study.datasets):
        yield "A parameter trace can be below its lambda_max, because it includes the eigenvalues below zero."
    aurocs = ", ".join(
        f"{each.space}s{f' (alpha = {each.alpha:g})' if each.alpha else ''} {100 * each.auroc:.2f}"
        for each in study.detections
        if each.dataset == "all" and each.space in SHOWN
    )
    error = typical_error(study, "parameter")
    yield f"The trace of a single image as a score, mean AUROC in percent: {aurocs}."
    if error is not None:
        yield (
            f"Over parameters the trace is an estimate, typically ± {100 * error:.2g} %, with independent errors: its "
            "AUROC differs from that of the exact trace."
        )
    for space, name in (column for column in study.columns if column[0] in SHOWN):
        reference = cells[ID, space, name]
        signs = {dataset: above(cells[dataset, space, name], reference) for dataset in study.datasets[1:]}
        lower, unclear = (", ".join(dataset for dataset in signs if signs[dataset] == sign) for sign in (-1, 0))
        if lower:
            yield f"The paper's claim does not hold here for the {space} {name} of {lower}: below id."
        if unclear:
            yield f"The {space} {name} of {unclear} is not significantly different from that of id."
