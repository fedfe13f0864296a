"""``flatfold export``: model, detector and threshold as one file for another runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from .options import IMAGES, ModelOptions, TransformOptions, With, grouped, load_plugins


@grouped
def export(
    guard: Annotated[Path, Argument(help="Guard file, from `flatfold fit` or Guard.save.")],
    model: ModelOptions,
    images: Annotated[Path, Option(help=f"Images to check the export on: {IMAGES}.")],
    out: Annotated[Path | None, Option(help="File to write, .onnx or .pt2. Default: GUARD.onnx.")] = None,
    limit: Annotated[int, Option(min=2, max=1024, help="Number of images to check.")] = 128,
    *,
    transform: TransformOptions,
    own: With = None,
) -> None:
    """Export a guard and its model as one graph.

    The graph maps x to logits, score, p_value and is_ood, for any batch size. The file needs neither flatfold nor, as
    .onnx, torch. It is written only if it reproduces the guard's results on real images, in batches of 1, 7 and 64.
    Images are prepared with the transform stored in the guard file; a guard fitted on tensors stores none and needs
    --resize, --crop, --mean, --std, --mode or --interpolation.

    Exit codes: 0 done; 1 invalid input, or different results; 2 invalid usage.

    Example: flatfold export guard.safetensors --model nets:resnet20 --weights resnet20.pt --images photos/
    """
    from ..models.images import open_images
    from ..models.sources import take_subset
    from ..scoring.export import check_target
    from ..scoring.export import export as export_guard
    from ..scoring.guard import Guard

    target = guard.with_suffix(".onnx") if out is None else out
    check_target(target)
    load_plugins(own)
    loaded = Guard.load(guard, model.open())
    loaded.transform = transform.transform(guard, loaded.transform)
    source = take_subset(open_images(images, loaded.transform, labels=False), limit)
    parity = export_guard(loaded, target, source)
    sizes = ", ".join(map(str, parity.batch_sizes))
    typer.echo(f"{loaded!r} -> {target}, {target.stat().st_size / 1e6:.1f} MB")
    typer.echo(f"compared on {parity.inputs} images of {images} in batches of {sizes}")
    typer.echo(f"largest relative error: logits {parity.logits:.1e}, scores {parity.score:.1e}")
    near = f", {parity.undecidable} closer to the threshold than 1e-4" if parity.undecidable else ""
    typer.echo(f"same decision for every image{near}")
