"""``flatfold report``: draw the page again from result files."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(help="Folder that `flatfold bench` wrote, such as out/digits.")],
) -> None:
    """Write report.html and figures from the result files of a benchmark, without running anything.

    In a folder with several networks, the page of each is written, and one with their means.
    """
    from ..evaluate.summary import load_runs
    from ..report.page import write_report
    from ..report.summary import write_summary

    places = list(load_runs(folder))
    for place in places:
        typer.echo(f"report -> {write_report(place)}")
    if places != [folder]:
        typer.echo(f"all runs -> {write_summary(folder)}")
