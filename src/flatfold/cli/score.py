"""``flatfold score``: which images, or rows of features, a classifier does not know, as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .bench import Device, Workers
from .checks import FPR, check_kept, check_values
from .image_options import BATCH_SIZE, PLACES, ImageColumn, Root
from .model import Pretrained, Weights
from .own import With, load_own
from .preparation import Crop, Interpolation, Mean, Mode, Resize, Std
from .score_options import METHOD, check_fitting, check_images, check_input, given, options_given, parsed_shard

_FILE = "safetensors, .npy, .npz, or the folder of a bank"


def score(
    context: typer.Context,
    images: Annotated[
        Path | None, typer.Argument(help=f"Images to score: {PLACES}. Or give --features.", show_default=False)
    ] = None,
    guard: Annotated[
        Path | None,
        typer.Option(help="A guard, as `flatfold fit` or Guard.save writes it. Features can do with --head."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The guard's network, as package.module:function or library/name; as for `flatfold fit`."),
    ] = None,
    weights: Weights = None,
    pretrained: Pretrained = None,
    out: Annotated[
        Path | None, typer.Option(help="File *.csv, *.jsonl or *.parquet. Default, of features: CSV to stdout.")
    ] = None,
    fpr: Annotated[
        float | None,
        typer.Option(help=f"Share of known inputs that may raise an alarm. Default: that of the guard, else {FPR}."),
    ] = None,
    shard: Annotated[
        str | None, typer.Option(help="i/n: score the i-th of n shares, i from 1; `flatfold join` puts them together.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--restart", help="Go on where an earlier run stopped, or score all images again.")
    ] = True,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per forward pass.")] = BATCH_SIZE,
    workers: Workers = 0,
    device: Device = "cpu",
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="What computes: this process, or the workers of a Ray cluster.")
    ] = "local",
    actors: Annotated[int | None, typer.Option(min=1, help="Workers on Ray. Default: as many as fit.")] = None,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs of each worker on Ray; with --device cuda.")] = 0.0,
    root: Root = None,
    image_column: ImageColumn = None,
    resize: Resize = None,
    crop: Crop = None,
    mean: Mean = None,
    std: Std = None,
    mode: Mode = None,
    interpolation: Interpolation = None,
    features: Annotated[
        Path | None,
        typer.Option(help=f"Features to score: an array `features` (n, d), perhaps with `labels`; {_FILE}."),
    ] = None,
    head: Annotated[
        Path | None,
        typer.Option(
            help="For features, instead of --guard: the model's last linear layer, a safetensors file with `weight` "
            "(c, d) and `bias` (c,)."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="With --head: a name, as `flatfold methods` lists them, with hyper-parameters behind colons "
            f"(knn:k=10). Default: {METHOD}."
        ),
    ] = None,
    fit: Annotated[
        Path | None,
        typer.Option(help="With --head: known features for a method that learns from them, like --features."),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="With --head: other known features, held out, which give p-values and alarms at a guaranteed rate."
        ),
    ] = None,
    per_class: Annotated[
        bool,
        typer.Option(
            "--per-class", help="With --head: keep that rate for every predicted class, each with a threshold."
        ),
    ] = False,
    own: With = None,
) -> None:
    """Score images, or rows of features without a model: how unlike the known data is each?

    One line per image or row: path or row, predicted (the likeliest class), score (higher = more out-of-distribution),
    p_value and is_ood; and label where a file of features has labels. Of known inputs at most a share --fpr raises an
    alarm. Features that are scored with --head have p_value and is_ood only with --calibration.

    Images are prepared as the guard's file says, else as --resize, --crop, --mean, --std, --mode and --interpolation
    do. Any number of them fits into memory. A run that was stopped, even killed, goes on where it was when the same
    command is given again. An image that is broken or missing stops nothing: OUT.unreadable.csv names it.
    OUT.summary.json holds the counts.

    Exit codes: 0 all is scored; 3 done, but some images could not be scored; 1 the input was wrong; 2 the usage was;
    130 interrupted.

    Example: flatfold score photos/ --guard guard.safetensors --model nets:resnet20 --weights resnet20.pt
    --out scores.csv

    Example: flatfold score photos.parquet --guard guard.safetensors --model torchvision/resnet50 --pretrained DEFAULT
    --device cuda --workers 8 --shard 1/4 --out scores-1.parquet

    Example: flatfold score --features f.safetensors --head head.safetensors --method fold:alpha=0.5 > scores.csv

    Example: flatfold score --features f.npy --head head.safetensors --method autofold --fit known.safetensors
    --calibration more_known.safetensors --fpr 0.01 --out scores.parquet
    """
    named = options_given(context)
    check_input(images, features, named)
    load_own(own)
    if features is not None:
        check_fitting(named)
        check_values(fpr, out)
        from .score_detector import Fitting
        from .score_features import score_features

        fitted = None if head is None else Fitting(head, method or METHOD, fit, calibration, per_class)
        score_features(features, fitted or given(guard), fpr, out)
        return
    check_images(named, engine, own)
    check_values(fpr, out)
    check_kept(given(out), images)
    from .score_images import Images, Network, engine_of, score_images

    options = {"resize": resize, "crop": crop, "mean": mean, "std": std, "mode": mode, "interpolation": interpolation}
    taken = Images(given(images), root, image_column, batch_size, options)
    network = Network(given(model), weights, pretrained, device)
    computed_by = engine_of(engine, workers, actors, gpus)
    score_images(taken, network, given(guard), given(out), fpr, parsed_shard(shard), computed_by, not resume)
