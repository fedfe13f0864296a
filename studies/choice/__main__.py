"""``python -m studies.choice``: measure every network, write tables and a figure, and put them into the page."""

import os
from pathlib import Path
from typing import Annotated

import typer

DATA = "FLATFOLD_DATA"


def main(
    out: Annotated[Path, typer.Option(help="Folder for results; features that are there are used again.")] = Path(
        "out/choice-study"
    ),
    update_docs: Annotated[bool, typer.Option("--update-docs", help="Put the results into docs/studies.")] = False,
) -> None:
    """Measure how much is lost to the best single method of each network when nobody has OOD data to find it."""
    from .study import run, update  # torch takes a second to import

    data = os.environ.get(DATA)
    if not data:
        typer.echo(f"{DATA} is not set: the study runs on the built-in networks alone.", err=True)
        if update_docs:
            typer.echo(f"The page is about all networks. Set {DATA} to update it.", err=True)
            raise typer.Exit(1)
    measured = run(out, Path(data) if data else None)
    if update_docs:
        update(out)
    typer.echo(f"{len(measured)} networks measured -> {out / 'choice.csv'}")


if __name__ == "__main__":
    typer.run(main)
