"""``flatfold report``: draw the pages again from result files."""

from pathlib import Path
from typing import Annotated

import typer


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
    from ..report.curvature.page import write_curvature
    from ..report.page import write_report
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
