"""Whether the options of ``flatfold score`` go together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ..evaluate.spec import Spec


def check_options(head: Path | None, guard: Path | None, fpr: float | None, fitting: Mapping[str, object]) -> None:
    """Raise unless the options go together."""
    given = [name for name, value in fitting.items() if value is not None]
    if head is None and guard is None:
        raise typer.BadParameter(
            "features are scored with --head, the model's last linear layer, or with --guard. Give one of them."
        )
    if head is not None and guard is not None:
        raise typer.BadParameter("--guard has a head of its own, so --head cannot be given as well. Leave out one.")
    if guard is not None and given:
        raise typer.BadParameter(
            f"--guard is fitted and calibrated already, so {' and '.join(given)} cannot be given. "
            "Leave that out, or use --head instead of --guard."
        )
    needy = [name for name, value in {"--fpr": fpr, "--per-class": fitting["--per-class"]}.items() if value is not None]
    if head is not None and needy and fitting["--calibration"] is None:
        raise typer.BadParameter(
            f"{' and '.join(needy)} needs held-out known features to compare with. Give them as --calibration."
        )


def check_values(fpr: float | None, out: Path | None) -> None:
    """Raise unless the rate is one and the output can be written, before anything is read."""
    from ..scoring.calibration import check_rate
    from ..scoring.writers import check_out

    try:
        if fpr is not None:
            check_rate(fpr)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--fpr") from error
    try:
        if out is not None:
            check_out(out)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--out") from error


def parsed_method(method: str, fit: Path | None, calibration: Path | None) -> Spec:
    """Return what --method asks for, if it can be had from features."""
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
        why = "runs the network on images, but here are features only. `flatfold methods` lists what can score them."
    elif learns and fit is None:
        why = f"learns from known data ({entry.fits_on}). Give its features, and labels if it needs them, as --fit."
    elif learns and calibration is not None and fit is not None and calibration.resolve() == fit.resolve():
        why = "has seen what is in --fit, so --calibration must be other data, or its rate would mean nothing."
    else:
        return spec
    raise typer.BadParameter(f"{spec.label} {why}", param_hint="--method")
