"""How a command prepares images: options, and from them to a transform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..models.transform import Transform

Resize = Annotated[int | None, typer.Option(min=1, help="Shorter side of an image after a resize.")]
Crop = Annotated[int | None, typer.Option(min=1, help="Side of the square cut from its middle.")]
Mean = Annotated[str | None, typer.Option(help="Subtracted from the channels, such as 0.485,0.456,0.406.")]
Std = Annotated[str | None, typer.Option(help="Then divided by, such as 0.229,0.224,0.225.")]
Mode = Annotated[str | None, typer.Option(help="RGB or L (grey).")]
Interpolation = Annotated[str | None, typer.Option(help="Of the resize: bilinear (default) or bicubic.")]


def prepared_by(known: Transform | None, options: Mapping[str, int | str | None], guard: Path | None) -> Transform:
    """Return how images are prepared: as is known already, or else as the options say.

    A guard that knows how the images were prepared that it was calibrated on takes no options: others would make its
    threshold wrong. While one is fitted nothing is settled, and the options given replace those parts of what is known.

    Args:
        known: What a guard's file says, or while fitting what comes with a model; None if nothing does.
        options: Values of the options above by their names in lower case; None for those that were not given.
        guard: The guard's file, None while fitting.

    Raises:
        ValueError: Nothing is known and no option given, or both for a guard; or an option has a value that is none.
    """
    from ..models.transform import Transform

    given = {name: value for name, value in options.items() if value is not None}
    if known is not None and given and guard is not None:
        raise ValueError(
            f"{guard} says how images are prepared, as those it was calibrated on: {known}. "
            f"Leave out --{next(iter(given))}."
        )
    if known is None and not given:
        silent = "nothing says" if guard is None else f"{guard} does not say"
        raise ValueError(
            f"{silent} how images are prepared. Say it with --resize, --crop, --mean, --std; "
            "or with --mode RGB if their pixels are only brought to the range from 0 to 1."
        )
    settings: dict[str, Any] = {name: _value(name, value) for name, value in given.items()}
    return replace(Transform() if known is None else known, **settings)


def _value(name: str, value: int | str) -> int | str | tuple[float, ...]:
    if name not in ("mean", "std"):
        return value
    try:
        return tuple(float(word) for word in str(value).split(","))
    except ValueError:
        raise ValueError(
            f"--{name} takes numbers with commas between them, such as 0.5,0.5,0.5, got {value!r}."
        ) from None
