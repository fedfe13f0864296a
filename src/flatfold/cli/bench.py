"""``flatfold bench``: every method on one suite, as a table and as a page."""

from pathlib import Path
from typing import Annotated

import typer


def bench(
    suite: Annotated[str, typer.Argument(help="Built in: digits.")],
    methods: Annotated[
        str | None, typer.Option(help="Comma-separated names, as `flatfold methods` lists them. Default: all of them.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for results, features and page. Default: out/SUITE.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the data split and of the network's training.")] = 0,
    device: Annotated[str, typer.Option(help="Any torch device string: cpu, cuda, cuda:1, mps.")] = "cpu",
    batch_size: Annotated[int, typer.Option(min=1, help="Images per forward pass.")] = 256,
) -> None:
    """Judge methods on a suite: AUROC and FPR95 on every data set that the network has never met.

    Features are extracted once and kept under --out, so a second run is quick and an interrupted one goes on where it
    stopped. Writes results.json, results.csv, scores.safetensors and report.html, in place of those of an earlier run.

    Example: flatfold bench digits --methods msp,ebo,autofold
    """
    import logging

    from .. import detectors
    from ..evaluate.runner import run
    from ..evaluate.suites import load_suite
    from ..models.forward import usable_device
    from ..report.page import write_report
    from .table import print_results

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("flatfold.models").setLevel(logging.WARNING)  # the runner says once what is found
    names = detectors.methods() if methods is None else [name.strip() for name in methods.split(",")]
    for name in names:
        detectors.get_method(name)  # a misspelt name is told before the network is trained
    usable_device(device)
    folder = out or Path("out") / suite
    results = run(load_suite(suite, folder, seed=seed, batch_size=batch_size), names, folder, device=device)
    results.save(folder)
    print_results(results)
    typer.echo(f"{len(results.rows)} rows -> {folder / 'results.csv'}, {folder / 'results.json'}")
    typer.echo(f"report -> {write_report(folder)}")
