"""Whether the options of ``flatfold score`` go together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

if TYPE_CHECKING:
    from ..scoring.batch import Shard

Given = TypeVar("Given")
METHOD = "fold"
OF_FEATURES = ("--head", "--method", "--fit", "--calibration", "--per-class")
OF_RAY = ("--actors", "--gpus")
OF_IMAGES = (
    *("--model", "--weights", "--pretrained", "--device", "--batch-size", "--workers", "--engine", *OF_RAY),
    *("--resume", "--restart", "--root", "--image-column"),
    *("--resize", "--crop", "--mean", "--std", "--mode", "--interpolation"),
)


def options_given(context: typer.Context) -> list[str]:
    """Return the options that stand on the command line, as they do there."""
    named = []
    for parameter in context.params:
        source = context.get_parameter_source(parameter)
        if source is not None and source.name == "COMMANDLINE":
            word = "restart" if parameter == "resume" and not context.params["resume"] else parameter
            named.append(f"--{word.replace('_', '-')}")
    return named


def check_input(images: Path | None, features: Path | None, named: Sequence[str]) -> None:
    """Raise unless there are either images or features, and all options are those of that kind of input.

    Args:
        images: What was given as such.
        features: What was given as such.
        named: All options that were given.
    """
    if images is not None and features is not None:
        raise typer.BadParameter(
            f"either images or features are scored, got {images} and --features {features}. Leave out one."
        )
    if images is None and features is None:
        raise typer.BadParameter("there is nothing to score. Name the images, or give --features, a file of them.")
    if images is None and "--shard" in named:
        raise typer.BadParameter("--shard is for images: features are scored fast enough by one process. Leave it out.")
    if images is None and (foreign := _among(named, OF_IMAGES)):
        raise typer.BadParameter(
            f"{_listed(foreign)} can be said of images, but --features need no model. Leave that out, or name images "
            "instead of --features."
        )
    if images is not None and (foreign := _among(named, OF_FEATURES)):
        raise typer.BadParameter(
            f"{_listed(foreign)} can be said of --features, but images are scored with --guard, a file that "
            "`flatfold fit` writes. Leave that out."
        )


def check_images(named: Sequence[str], engine: str, own: Sequence[Path] | None = None) -> None:
    """Raise unless images can be scored with the options that were given."""
    if missing := [name for name in ("--guard", "--model", "--out") if name not in named]:
        raise typer.BadParameter(
            "images are scored with --guard and --model, and the table goes to --out, but "
            f"{_listed(missing)} {'is' if len(missing) == 1 else 'are'} missing. `flatfold fit` makes a guard."
        )
    if engine == "ray" and "--workers" in named:
        raise typer.BadParameter(
            "--workers is for --engine local: on Ray every worker reads its own images. Give --actors instead."
        )
    if engine == "ray" and own:
        raise typer.BadParameter(
            "--with is for --engine local: the workers of a cluster do not run files of this machine. Put the method "
            "into a package that is installed there and imported by the module of --model."
        )
    if engine != "ray" and (foreign := _among(named, OF_RAY)):
        raise typer.BadParameter(f"{_listed(foreign)} can be said of Ray only. Add --engine ray, or leave that out.")


def parsed_shard(shard: str | None) -> Shard:
    """Return what --shard asks for: by default all."""
    from ..scoring.batch import Shard

    try:
        return Shard() if shard is None else Shard.parsed(shard)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--shard") from error


def given(value: Given | None) -> Given:
    """Return a value that has been looked at: without it, a sentence would have said so."""
    assert value is not None
    return value


def check_fitting(named: Sequence[str]) -> None:
    """Raise unless it is clear what judges features: a guard, or a head and what is fitted to it."""
    if "--head" not in named and "--guard" not in named:
        raise typer.BadParameter(
            "features are scored with --head, the model's last linear layer, or with --guard. Give one of them."
        )
    if "--head" in named and "--guard" in named:
        raise typer.BadParameter("--guard has a head of its own, so --head cannot be given as well. Leave out one.")
    if "--guard" in named and (foreign := _among(named, OF_FEATURES)):
        raise typer.BadParameter(
            f"--guard is fitted and calibrated already, so {_listed(foreign)} cannot be given. "
            "Leave that out, or use --head instead of --guard."
        )
    if "--head" in named and "--calibration" not in named and (needy := _among(named, ("--fpr", "--per-class"))):
        raise typer.BadParameter(
            f"{_listed(needy)} needs held-out known features to compare with. Give them as --calibration."
        )


def _among(named: Sequence[str], options: Iterable[str]) -> list[str]:
    return [name for name in options if name in named]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names)
