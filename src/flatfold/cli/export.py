"""``flatfold export``: model, detector and threshold as one file for another runtime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .model import Model, Pretrained, Weights, open_model

if TYPE_CHECKING:
    from ..models.sources import ImageSource
    from ..models.transform import Transform

BATCH_SIZE = 64
PREPARED = ("resize", "crop", "mean", "std", "mode")  # options that only a guard without a transform needs


def export(
    guard: Annotated[Path, typer.Argument(help="File that `guard.save` wrote.")],
    model: Model,
    images: Annotated[
        Path, typer.Option(help="Folder of real images, or a .npz file of them, to check the export on.")
    ],
    weights: Weights = None,
    pretrained: Pretrained = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write: .onnx, or .pt2 for torch.export. Default: GUARD with .onnx.", dir_okay=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=2, max=1024, help="Most images to check, spread over all of them.")] = 128,
    resize: Annotated[int | None, typer.Option(min=1, help="Shorter side of an image after a resize.")] = None,
    crop: Annotated[int | None, typer.Option(min=1, help="Side of the square cut from its middle.")] = None,
    mean: Annotated[str | None, typer.Option(help="Subtracted from the channels, such as 0.485,0.456,0.406.")] = None,
    std: Annotated[str | None, typer.Option(help="Then divided by, such as 0.229,0.224,0.225.")] = None,
    mode: Annotated[str | None, typer.Option(help="RGB or L (grey).")] = None,
) -> None:
    """Write a guard and its model as one graph: x -> logits, score, p_value, is_ood, for batches of any size.

    The file needs neither this library nor, as .onnx, torch. It is only written after it has given the guard's
    answers on real images, in batches of 1, 7 and 64. Images are prepared as the guard file says; a guard that was
    fitted on tensors does not know how, and takes --resize, --crop, --mean, --std and --mode.

    Example: flatfold export guard.safetensors --model nets:resnet20 --weights resnet20.pt --images photos/
    """
    from ..scoring.export import check_target
    from ..scoring.export import export as export_guard
    from ..scoring.guard import Guard

    target = guard.with_suffix(".onnx") if out is None else out
    check_target(target)
    loaded = Guard.load(guard, open_model(model, weights, pretrained))
    options = dict(zip(PREPARED, (resize, crop, mean, std, mode), strict=True))
    transform = _transform(
        loaded.transform, {name: value for name, value in options.items() if value is not None}, guard
    )
    loaded.transform = transform
    parity = export_guard(loaded, target, _images(images, transform, limit))
    typer.echo(f"{loaded!r} -> {target}, {target.stat().st_size / 1e6:.1f} MB")
    typer.echo(f"compared on {parity.inputs} images of {images} in batches of {_listed(parity.batch_sizes)}")
    typer.echo(f"largest relative error: logits {parity.logits:.1e}, scores {parity.score:.1e}")
    near = f", {parity.undecidable} nearer to the threshold than 1e-4" if parity.undecidable else ""
    typer.echo(f"same decision for every image{near}")


def _transform(known: Transform | None, options: dict[str, int | str], guard: Path) -> Transform:
    """Return how images are prepared: as the guard knows it, or else as the options say."""
    from ..models.transform import Transform

    if known is not None and options:
        raise ValueError(
            f"{guard} says how images are prepared, as those it was calibrated on: {known}. "
            f"Leave out --{next(iter(options))}."
        )
    if known is not None:
        return known
    if not options:
        raise ValueError(
            f"{guard} does not say how images are prepared. Say it with --resize, --crop, --mean, --std; "
            "or with --mode RGB if their pixels are only brought to the range from 0 to 1."
        )
    settings: dict[str, Any] = dict(options)
    settings |= {name: _numbers(name, settings[name]) for name in ("mean", "std") if name in settings}
    return Transform(**settings)


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise ValueError(
            f"--{name} takes numbers with commas between them, such as 0.5,0.5,0.5, got {text!r}."
        ) from None


def _images(place: Path, transform: Transform, limit: int) -> ImageSource:
    """Return at most ``limit`` images of a folder or a .npz file, evenly spread: folders are sorted by class."""
    import numpy as np

    from ..models.images import FolderImages, NpzImages
    from ..models.picked import PickedImages

    if not place.is_dir() and place.suffix != ".npz":
        raise ValueError(f"--images is a folder of images or a .npz file, got {place}. Check the path.")
    source: ImageSource = (
        FolderImages(place, transform, BATCH_SIZE, labels=False)
        if place.is_dir()
        else NpzImages(place, transform, BATCH_SIZE, y=None)
    )
    count = min(limit, source.rows)
    return PickedImages(source, np.arange(count) * source.rows // count)


def _listed(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))
