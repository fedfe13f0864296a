"""``python -m studies.autofold``: measure, write tables and figures, and put them into the page if asked to."""

import os
from pathlib import Path
from typing import Annotated

import typer

DATA = "FLATFOLD_DATA"


def main(
    out: Annotated[Path, typer.Option(help="Where results go, and where an earlier run is continued.")] = Path(
        "out/autofold-study"
    ),
    replicates: Annotated[int, typer.Option(min=2, help="Bootstraps of all images.")] = 300,
    seeds: Annotated[int, typer.Option(min=1, help="Networks of the built-in suite.")] = 3,
    update_docs: Annotated[bool, typer.Option("--update-docs", help="Put the results into docs/studies.")] = False,
) -> None:
    """Measure how much AutoFold's choice of the exponent gives away, and whether another rule gives away less."""
    from .page import update  # torch takes a second to import
    from .study import run

    data = os.environ.get(DATA)
    if not data:
        typer.echo(f"{DATA} is not set: the study runs on the built-in suite alone and judges no rule.", err=True)
        if update_docs:
            typer.echo(f"The page is about all networks. Set {DATA} to update it.", err=True)
            raise typer.Exit(1)
    found = run(out, Path(data) if data else None, replicates, tuple(range(seeds)))
    if update_docs:
        update(found, out)
    typer.echo(f"{len(found)} networks measured -> {out / 'study.json'}")


if __name__ == "__main__":
    typer.run(main)
