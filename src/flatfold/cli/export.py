"""``flatfold export``: model, detector and threshold as one file for another runtime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import (
    Crop,
    Interpolation,
    Mean,
    Mode,
    Model,
    Pretrained,
    Resize,
    Std,
    Weights,
    With,
    load_own,
    open_model,
    prepared_by,
)

if TYPE_CHECKING:
    from ..models.sources import ImageSource
    from ..models.transform import Transform


BATCH_SIZE = 64


def export(
    guard: Annotated[Path, typer.Argument(help="File that `guard.save` wrote.")],
    model: Model,
    images: Annotated[
        Path,
        typer.Option(
            help="Real images to check the export on: a folder of them or of parquet files, a .parquet or .npz file, "
            "or a list of paths (.txt, .lst, .list)."
        ),
    ],
    weights: Weights = None,
    pretrained: Pretrained = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write: .onnx, or .pt2 for torch.export. Default: GUARD with .onnx.", dir_okay=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=2, max=1024, help="Most images to check, spread over all of them.")] = 128,
    resize: Resize = None,
    crop: Crop = None,
    mean: Mean = None,
    std: Std = None,
    mode: Mode = None,
    interpolation: Interpolation = None,
    own: With = None,
) -> None:
    """Write a guard and its model as one graph: x -> logits, score, p_value, is_ood, for batches of any size.

    The file needs neither this library nor, as .onnx, torch. It is only written after it has given the guard's
    answers on real images, in batches of 1, 7 and 64. Images are prepared as the guard file says; a guard that was
    fitted on tensors does not know how, and takes --resize, --crop, --mean, --std, --mode and --interpolation.

    Example: flatfold export guard.safetensors --model nets:resnet20 --weights resnet20.pt --images photos/
    """
    from ..scoring.export import check_target
    from ..scoring.export import export as export_guard
    from ..scoring.guard import Guard

    target = guard.with_suffix(".onnx") if out is None else out
    check_target(target)
    load_own(own)
    loaded = Guard.load(guard, open_model(model, weights, pretrained))
    options = {"resize": resize, "crop": crop, "mean": mean, "std": std, "mode": mode, "interpolation": interpolation}
    loaded.transform = transform = prepared_by(loaded.transform, options, guard)
    parity = export_guard(loaded, target, _images(images, transform, limit))
    typer.echo(f"{loaded!r} -> {target}, {target.stat().st_size / 1e6:.1f} MB")
    typer.echo(f"compared on {parity.inputs} images of {images} in batches of {_listed(parity.batch_sizes)}")
    typer.echo(f"largest relative error: logits {parity.logits:.1e}, scores {parity.score:.1e}")
    near = f", {parity.undecidable} nearer to the threshold than 1e-4" if parity.undecidable else ""
    typer.echo(f"same decision for every image{near}")


def _images(place: Path, transform: Transform, limit: int) -> ImageSource:
    """Return at most ``limit`` images, evenly spread: folders are sorted by class."""
    from ..models.images import open_images
    from ..models.sources import take_subset

    return take_subset(open_images(place, transform, BATCH_SIZE, labels=False), limit)


def _listed(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))
