"""``flatfold bench``: every method on one suite, as a table and as a page."""

from pathlib import Path
from typing import Annotated

import typer


def bench(
    suite: Annotated[str, typer.Argument(help="Built in: digits. Or a suite file of your own, such as mine.toml.")],
    methods: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated names, as `flatfold methods` lists them, with hyper-parameters behind colons "
            "(knn:k=10). NAME@ood chooses them on the suite's unknown validation images, NAME@id on known ones alone. "
            "Default: all methods, untuned."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for results, features and page. Default: out/SUITE.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of data splits and training. Default: the suite's, or 0.")
    ] = None,
    device: Annotated[str, typer.Option(help="Any torch device string: cpu, cuda, cuda:1, mps.")] = "cpu",
    batch_size: Annotated[int, typer.Option(min=1, help="Images per forward pass.")] = 256,
) -> None:
    """Judge methods on a suite: AUROC and FPR95 on every data set that the network has never met.

    Features are extracted once and kept under --out, so a second run is quick and an interrupted one goes on where it
    stopped. Writes results.json, results.csv, scores.safetensors and report.html, in place of those of an earlier run;
    a suite with several networks gets a folder for each.

    Example: flatfold bench digits --methods msp,knn:k=10,knn@id,react@ood,autofold
    """
    import logging

    from .. import detectors
    from ..evaluate.runner import checked_specs, run
    from ..evaluate.spec import parse_specs
    from ..evaluate.suites import load_suites
    from ..models.forward import usable_device
    from ..report.page import write_report
    from .table import print_results

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("flatfold.models").setLevel(logging.WARNING)  # the runner says once what is found
    specs = checked_specs(detectors.methods() if methods is None else parse_specs(methods))
    usable_device(device)
    folder = out or Path("out") / Path(suite).stem
    suites = load_suites(suite, folder, seed=seed, batch_size=batch_size)
    for network in suites:
        place = folder / network.network if len(suites) > 1 else folder
        results = run(network, specs, place, device=device)
        results.save(place)
        print_results(results)
        typer.echo(f"{len(results.rows)} rows -> {place / 'results.csv'}, {place / 'results.json'}")
        typer.echo(f"report -> {write_report(place)}")
