"""``flatfold score``: which images, or rows of features, a classifier does not know, as a table."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeVar

import typer

from .bench import Device, Workers
from .console import Stopwatch, noted, print_summary
from .options import (
    BATCH_SIZE,
    FPR,
    PLACES,
    Crop,
    ImageColumn,
    Interpolation,
    Mean,
    Mode,
    Pretrained,
    Resize,
    Root,
    Std,
    Weights,
    With,
    check_kept,
    check_values,
    load_own,
    open_model,
    opened,
    parsed_method,
    prepared_by,
)

if TYPE_CHECKING:
    from torch import nn

    from ..detectors.base import Detector
    from ..evaluate.spec import Spec
    from ..models.feature_files import FeatureFile
    from ..models.sources import ImageSource
    from ..scoring.batch import Engine, Shard
    from ..scoring.calibrated import Calibration
    from ..scoring.tables import Columns


# Whether the options of ``flatfold score`` go together.


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

        fitted = None if head is None else Fitting(head, method or METHOD, fit, calibration, per_class)
        score_features(features, fitted or given(guard), fpr, out)
        return
    check_images(named, engine, own)
    check_values(fpr, out)
    check_kept(given(out), images)

    options = {"resize": resize, "crop": crop, "mean": mean, "std": std, "mode": mode, "interpolation": interpolation}
    taken = Images(given(images), root, image_column, batch_size, options)
    network = Network(given(model), weights, pretrained, device)
    computed_by = engine_of(engine, workers, actors, gpus)
    score_images(taken, network, given(guard), given(out), fpr, parsed_shard(shard), computed_by, not resume)


# What judges rows of features: the guard of a file, or a method fitted to a head and known features.


@dataclass(frozen=True)
class Fitting:
    """What a detector is made from where there is no guard.

    Args:
        head: File of the model's last layer.
        method: Its name, with hyper-parameters behind colons.
        fit: Known features to learn from.
        calibration: Known features to compare with.
        per_class: Whether each predicted class has a threshold.
    """

    head: Path
    method: str
    fit: Path | None
    calibration: Path | None
    per_class: bool


class Known(NamedTuple):
    """Features of known inputs: those to fit on, and those to calibrate on."""

    fit: FeatureFile | None
    calibration: FeatureFile | None


def opened_with(
    features: Path, judged_by: Path | Fitting, fpr: float | None
) -> tuple[FeatureFile, Detector, Calibration | None]:
    """Return the features to score, what scores them, and its calibration if there is one.

    Args:
        features: File of the features.
        judged_by: File of a guard, or what a detector is made from.
        fpr: The false-alarm rate, unless the default or that of the guard.
    """
    from ..models.feature_files import open_features

    if isinstance(judged_by, Path):
        return open_features(features), *_from_guard(judged_by, fpr)
    spec = parsed_method(judged_by.method, judged_by.fit, judged_by.calibration)
    opened = open_features(features)
    used = (_used(spec, judged_by.fit), judged_by.calibration)
    known = Known(*(None if path is None else open_features(path) for path in used))
    rate = FPR if fpr is None else fpr
    return opened, *_from_head(judged_by.head, spec, opened, known, rate, judged_by.per_class)


def _used(spec: Spec, fit: Path | None) -> Path | None:
    """Return --fit if the method learns from it."""
    from ..detectors import get_method

    if fit is None or get_method(spec.name).fits_on != "nothing":
        return fit
    typer.echo(f"note: {spec.name} learns nothing from data: --fit is not used", err=True)
    return None


def _from_guard(path: Path, fpr: float | None) -> tuple[Detector, Calibration | None]:
    from ..scoring.calibrated import CalibratedDetector

    calibrated = CalibratedDetector.load(path)
    calibrated = calibrated if fpr is None else calibrated.at(fpr)
    return calibrated.detector, calibrated.calibration


def _from_head(
    path: Path, spec: Spec, features: FeatureFile, known: Known, fpr: float, per_class: bool
) -> tuple[Detector, Calibration | None]:
    """Return a fitted detector, and its calibration if there is data for one, in the widest type of all files."""
    from ..detectors import create
    from ..models.feature_files import read_head
    from ..scoring.tables import fit_on_files

    detector: Detector = create(spec.name, **spec.hyper)
    with noted():
        result = fit_on_files(detector, read_head(path), features, *known, fpr=fpr, per_class=per_class)
    return result.detector, result.calibration


# Rows of features to a table: which of them a classifier does not know.


def score_features(features: Path, judged_by: Path | Fitting, fpr: float | None, out: Path | None) -> None:
    """Write a row for each row of features, and print a line about them on stderr.

    Args:
        features: File of the features.
        judged_by: File of a guard, or what a detector is made from.
        fpr: The false-alarm rate, unless the default or that of the guard.
        out: File of the table; None writes CSV to the standard output.
    """
    from ..scoring.tables import score_features as scored

    opened, detector, calibrated = opened_with(features, judged_by, fpr)
    tally = Tally(None if calibrated is None else calibrated.fpr)
    _write(tally.follow(scored(opened, detector, calibrated)), opened.rows, out)
    typer.echo(f"{tally.summary()}{'' if out is None else f' -> {out}'}", err=True)


@dataclass
class Tally:
    """What goes by: rows, alarms and seconds.

    Args:
        fpr: The false-alarm rate, if there is a decision.
    """

    fpr: float | None
    rows: int = 0
    alarms: int = 0
    start: float = field(default_factory=perf_counter)

    def follow(self, chunks: Iterable[Columns]) -> Iterator[Columns]:
        """Yield chunks of rows as they are."""
        for columns in chunks:
            self.rows += len(columns["score"])
            self.alarms += int(columns["is_ood"].sum()) if "is_ood" in columns else 0
            yield columns

    def summary(self) -> str:
        """Return what has gone by in a line."""
        from .bench import counted

        seconds = perf_counter() - self.start
        alarms = ""
        if self.fpr is not None:
            share = 100 * self.alarms / self.rows
            alarms = f", {counted(self.alarms, 'alarm')} ({share:.2f} %) at a false-alarm rate of {self.fpr:g}"
        return f"{counted(self.rows, 'row')}{alarms}; {seconds:.1f} s, {self.rows / seconds:.0f} rows per second"


def _write(chunks: Iterator[Columns], rows: int, out: Path | None) -> None:
    """Write rows as they come, with a bar on stderr unless they go to the same terminal."""
    from ..detectors.base import ROWS_AT_ONCE
    from ..io.progress import track
    from ..scoring.tables import csv_text, write_rows

    if out is not None or not sys.stdout.isatty():
        chunks = track(chunks, "scoring", -(-rows // ROWS_AT_ONCE))
    try:
        if out is not None:
            write_rows(chunks, out)
            return
        sys.stdout.writelines(csv_text(chunks))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or closing the pipe would fail once more
        raise typer.Exit(0) from None
    except KeyboardInterrupt:
        left = "" if out is None else f": nothing was written to {out}"
        typer.echo(f"flatfold: stopped{left}", err=True)
        raise typer.Exit(130) from None


# Images to a table: which of them a classifier does not know.


class Images(NamedTuple):
    """Where images come from, and how they are prepared.

    Args:
        place: As in ``open_images``.
        root: Of a list.
        column: Of the images in a table or an array file, None for the default.
        batch_size: Images in a batch.
        preparation: Options of the preparation.
    """

    place: Path
    root: Path | None
    column: str | None
    batch_size: int
    preparation: Mapping[str, int | str | None]

    def source(self, guard: Path) -> ImageSource:
        """Return the images, prepared as the file of a guard says, or else as the options do."""
        from ..scoring.guard_file import read_guard

        transform = prepared_by(read_guard(guard).transform, self.preparation, guard)
        return opened(self.place, transform, self.batch_size, self.root, self.column)


class Network(NamedTuple):
    """How a model is opened, in whatever process.

    Args:
        model: Its function or name.
        weights: File of its weights.
        pretrained: Which published weights of a library.
        device: Where it runs.
    """

    model: str
    weights: Path | None
    pretrained: str | None
    device: str | None

    def maker(self) -> Callable[[], nn.Module]:
        """Return what opens it, and can be sent to another process."""
        return partial(open_model, self.model, self.weights, self.pretrained)


def score_images(
    images: Images,
    network: Network,
    guard: Path,
    out: Path,
    fpr: float | None,
    shard: Shard,
    engine: Engine,
    restart: bool,
) -> None:
    """Write a row for each image, and print on stderr what it has come to.

    Args:
        images: What to score.
        network: The model of the guard.
        guard: File of the guard.
        out: File of the table.
        fpr: The false-alarm rate, unless that of the guard.
        shard: Which share of the images to score.
        engine: What computes.
        restart: Whether to forget what an earlier run has done.

    Raises:
        OSError: The machine had no memory left, or lost a process.
        typer.Exit: With code 3 if an image could not be scored, 130 when interrupted.
    """
    from ..scoring.batch import Task
    from ..scoring.batch import score_images as scored

    watch = Stopwatch(engine)
    try:
        task = Task(guard, network.maker(), images.source(guard), fpr, network.device)
        summary = scored(task, out, shard=shard, engine=watch, restart=restart)
    except KeyboardInterrupt:
        same = "the same command without --restart" if restart else "the same command"
        typer.echo(f"flatfold: interrupted; {same} goes on where it stopped", err=True)
        raise typer.Exit(130) from None
    except (RuntimeError, MemoryError) as error:  # no memory is left, or a process that reads ahead was killed
        reason = str(error).strip().partition("\n")[0].rstrip(". ") or "there was no memory left"
        raise OSError(f"{reason}. The same command goes on where it stopped.") from error
    print_summary(summary, out, watch)


def engine_of(name: str | None, workers: int, actors: int | None, gpus: float) -> Engine:
    """Return what computes: this process, or Ray.

    Args:
        name: ``"ray"``, or else this process.
        workers: Processes that read images ahead for this one.
        actors: Workers on Ray, None for as many as fit.
        gpus: Of each of these.
    """
    if name == "ray":
        from ..scoring.ray import score_on_ray  # late: Ray is an extra

        return partial(score_on_ray, actors=actors, gpus=gpus)
    from ..scoring.batch import score_here

    return partial(score_here, workers=workers)
