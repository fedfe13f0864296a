"""``flatfold report``: draw the page again from result files."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(help="Folder that `flatfold bench` wrote, such as out/digits.")],
) -> None:
    """Write report.html from the result files of a benchmark, without running anything."""
    from ..report.page import write_report

    typer.echo(f"report -> {write_report(folder)}")
