"""Whether the values of options can be used: asked before anything is read, and so before long work."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ..evaluate.spec import Spec

FPR = 0.05


def check_writable(out: Path, what: str) -> None:
    """Raise unless a file can be written to ``out``, whose folder may be made for it.

    Args:
        out: Where to.
        what: What a message calls the file.
    """
    folder = next(folder for folder in (out.absolute().parent, *out.absolute().parents) if folder.exists())
    if out.is_dir():
        why = "that is a folder"
    elif out.exists() and not out.is_file():
        why = "that is a device or a pipe"
    elif not folder.is_dir():
        why = f"{folder} is a file and no folder"
    elif not os.access(folder, os.W_OK | os.X_OK):
        why = f"nothing can be written in {folder}"
    else:
        return
    raise typer.BadParameter(f"{out} is where {what} goes, but {why}. Choose another.", param_hint="--out")


def check_kept(out: Path, *read: Path | None) -> None:
    """Raise if the file to be written is one of those that are read, or would lie among the tables of a folder.

    Args:
        out: Where to.
        read: Files and folders that the command reads; None for those that were not given.
    """
    for path in read:
        if path is None or not path.exists():
            continue
        if out.exists() and out.samefile(path):
            why = "that is what is read, and would be lost"
        elif path.is_dir() and out.suffix.lower() == ".parquet" and out.absolute().parent.resolve() == path.resolve():
            why = f"all tables in {path} are read as images"
        else:
            continue
        raise typer.BadParameter(f"{out} is where the result goes, but {why}. Choose another.", param_hint="--out")


def check_values(fpr: float | None, out: Path | None) -> None:
    """Raise unless the rate is one and the table can be written."""
    from ..scoring.writers import check_out

    if fpr is not None:
        check_fpr(fpr)
    if out is None:
        return
    try:
        check_out(out)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--out") from error
    check_writable(out, "the table")


def check_fpr(fpr: float) -> None:
    """Raise unless the rate is one."""
    from ..scoring.calibration import check_rate

    try:
        check_rate(fpr)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--fpr") from error


def parsed_method(method: str, fit: Path | None, calibration: Path | None, fit_option: str = "--fit") -> Spec:
    """Return what --method asks for, if it can be had from features.

    Args:
        method: A name, with hyper-parameters behind colons.
        fit: Known data to learn from.
        calibration: Known data to compare with.
        fit_option: What a message calls ``fit``.
    """
    from ..detectors import get_method
    from ..evaluate.spec import parse_spec

    try:
        spec = parse_spec(method)
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--method") from error
    entry = get_method(spec.name)
    learns = entry.fits_on != "nothing"
    if spec.tune:
        why = "asks for tuning, which is for benchmarks. Leave out the @, and give hyper-parameters behind colons."
    elif entry.sees != "features":
        why = "runs the network on images, but here features are scored. `flatfold methods` lists what can do that."
    elif learns and fit is None:
        why = f"learns from known data ({entry.fits_on}). Give its features, and labels if it needs them, as --fit."
    elif learns and calibration is not None and fit is not None and calibration.resolve() == fit.resolve():
        why = f"has seen what is in {fit_option}, so --calibration must be other data, or its rate would mean nothing."
    else:
        return spec
    raise typer.BadParameter(f"{spec.label} {why}", param_hint="--method")
