"""``flatfold fit``: a guard for a model, from images that it knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .bench import Device, MaxUnreadable, Workers
from .console import noted
from .options import (
    BATCH_SIZE,
    FPR,
    PLACES,
    Crop,
    ImageColumn,
    Interpolation,
    LabelColumn,
    Mean,
    Mode,
    Model,
    Pretrained,
    Resize,
    Root,
    Std,
    Weights,
    With,
    check_fpr,
    check_kept,
    check_writable,
    is_list,
    load_own,
    open_model,
    opened,
    parsed_method,
    prepared_by,
)

if TYPE_CHECKING:
    from ..detectors.base import Detector
    from ..evaluate.spec import Spec
    from ..models.sources import ImageSource
    from ..scoring.guard import Guard


def fit(
    images: Annotated[Path, typer.Argument(help=f"Known images that the model was not trained on: {PLACES}.")],
    model: Model,
    out: Annotated[Path, typer.Option(help="File to write, such as guard.safetensors.")],
    weights: Weights = None,
    pretrained: Pretrained = None,
    method: Annotated[
        str,
        typer.Option(
            help="A name, as `flatfold methods` lists them, with hyper-parameters behind colons (fold:alpha=0.5)."
        ),
    ] = "autofold",
    fpr: Annotated[float, typer.Option(help="Share of known inputs that may raise an alarm.")] = FPR,
    per_class: Annotated[
        bool, typer.Option("--per-class", help="Keep that rate for every predicted class, each with a threshold.")
    ] = False,
    calibration: Annotated[
        Path | None, typer.Option(help="More such images to calibrate on. Default: half of IMAGES, drawn at random.")
    ] = None,
    resize: Resize = None,
    crop: Crop = None,
    mean: Mean = None,
    std: Std = None,
    mode: Mode = None,
    interpolation: Interpolation = None,
    head: Annotated[
        str | None, typer.Option(help="Name of the model's last linear layer, where it cannot be found by itself.")
    ] = None,
    device: Device = "cpu",
    batch_size: Annotated[int, typer.Option(min=1, help="Images per forward pass.")] = BATCH_SIZE,
    workers: Workers = 0,
    max_unreadable: MaxUnreadable = 0.01,
    limit: Annotated[
        int | None, typer.Option(min=2, help="Take at most so many images, spread over all of them.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws: of the half to calibrate on, and of --limit.")] = 0,
    root: Root = None,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    labels: Annotated[
        bool, typer.Option("--labels/--no-labels", help="Read labels, or do without: some methods need none.")
    ] = True,
    own: With = None,
) -> None:
    """Make a guard: a method fitted to a model, and a threshold that at most a share --fpr of known inputs exceeds.

    IMAGES are like those the model will meet, of classes it knows, but none of those it was trained on: on these it is
    too sure. Labels are class folders, the numbers of a list (path, space, class), a column or an array; a method that
    needs none takes images without (--no-labels, unless they lie in a plain folder). The options of the preparation
    must be those of the model's training, and are kept in the file. `flatfold score` and `flatfold export` use it.

    Exit codes: 0 done; 1 the input was wrong; 2 the usage was; 130 interrupted.

    Example: flatfold fit val/ --model nets:resnet20 --weights resnet20.pt --mean 0.485,0.456,0.406
    --std 0.229,0.224,0.225 --out guard.safetensors

    Example: flatfold fit val.parquet --model torchvision/resnet50 --pretrained DEFAULT --resize 256 --crop 224
    --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --method knn:k=10 --fpr 0.01 --out guard.safetensors
    """
    load_own(own)
    spec = parsed_method(method, images, calibration, "the images to fit on")
    check_fpr(fpr)
    check_writable(out, "the guard")
    check_kept(out, images, calibration, weights)
    from ..detectors import create
    from ..scoring.guard import Guard

    options = {"resize": resize, "crop": crop, "mean": mean, "std": std, "mode": mode, "interpolation": interpolation}
    transform = prepared_by(None, options, None)
    wanted = label_column if labels else False
    known = _some(opened(images, transform, batch_size, root, image_column, wanted), limit, seed)
    held_out = None
    if calibration is not None:
        start = root if is_list(calibration) else None
        held_out = _some(opened(calibration, transform, batch_size, start, image_column), limit, seed)
    detector: Detector = create(spec.name, **spec.hyper)
    _check_labels(spec, known, images)
    try:
        with noted():
            guard = Guard.fit(
                open_model(model, weights, pretrained),
                known,
                detector,
                fpr,
                calibration=held_out,
                per_class=per_class,
                head=head,
                device=device,
                seed=seed,
                workers=workers,
                unreadable=max_unreadable,
            )
        guard.save(out)
    except KeyboardInterrupt:
        typer.echo(f"flatfold: stopped: nothing was written to {out}", err=True)
        raise typer.Exit(130) from None
    typer.echo("\n".join(described(guard, spec, images, calibration, out)))


def _some(source: ImageSource, limit: int | None, seed: int) -> ImageSource:
    """Return at most ``limit`` images: of that many stretches, which spreads them over all classes, one each.

    Which one of a stretch is drawn: every third image could be of one class, where classes take turns.
    """
    import numpy as np

    from ..models.sources import ImageSubset

    if limit is None or source.rows <= limit:
        return source
    edges = np.arange(limit + 1) * source.rows // limit
    return ImageSubset(source, np.random.default_rng(seed).integers(edges[:-1], edges[1:]))


def _check_labels(spec: Spec, source: ImageSource, place: Path) -> None:
    """Raise if a method needs labels that are not there, before all images are read in vain."""
    from ..detectors import get_method

    if source.labels is None and get_method(spec.name).needs_labels:
        raise ValueError(
            f"{spec.name} learns from labels, but none are read from {place}. Sort the images into a folder for each "
            "class, in the order of the model's outputs, or choose a --method that needs no labels, such as fold."
        )


def described(guard: Guard, spec: Spec, images: Path, calibration: Path | None, out: Path) -> list[str]:
    """Return what was made, a line for each thing that matters."""
    result = guard.fit_result
    assert result is not None
    accuracy = result.accuracy
    right = "no labels" if accuracy is None else f"the model is right about {100 * accuracy:.1f} % of them"
    learnt = "".join(f", {name} = {value:g}" for name, value in _learnt(guard.detector).items())
    held_out = "half of them" if calibration is None else str(calibration)
    least, most = (float(edge) for edge in guard.calibration.threshold.aminmax())
    above = f"{least:.4g}" if not guard.calibration.per_class else f"{least:.4g} to {most:.4g}, by predicted class"
    return [
        f"images       {result.samples:,} of {images}; {right}",
        f"method       {spec.label}{learnt}",
        f"calibration  {guard.calibration.samples:,} images, {held_out}",
        f"rate         of known images at most {100 * guard.fpr:g} % raise an alarm",
        f"threshold    a score above {above}",
        f"guard        -> {out}, {out.stat().st_size / 1e6:.1f} MB",
    ]


def _learnt(detector: Detector) -> dict[str, float]:
    """Return the single numbers that a method chose for itself, such as AutoFold's alpha."""
    buffers = ((name.rpartition(".")[2], values) for name, values in detector.named_buffers())
    return {name.removesuffix("_"): values.item() for name, values in buffers if name.endswith("_") and not values.ndim}
