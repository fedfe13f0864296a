"""``flatfold score``: which rows of features a classifier does not know, as a table."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from .score_options import check_options, check_values, parsed_method

if TYPE_CHECKING:
    from ..core.head import Head
    from ..detectors.base import Detector
    from ..evaluate.spec import Spec
    from ..models.feature_files import FeatureFile
    from ..scoring.calibration import Calibration
    from ..scoring.writers import Columns

METHOD, FPR = "fold", 0.05
_FILE = "safetensors, .npy, .npz, or the folder of a bank"


def score(
    features: Annotated[
        Path, typer.Option(help=f"What to score: an array `features` (n, d), perhaps with `labels`; {_FILE}.")
    ],
    head: Annotated[
        Path | None,
        typer.Option(help="The model's last linear layer: a safetensors file with `weight` (c, d) and `bias` (c,)."),
    ] = None,
    guard: Annotated[
        Path | None,
        typer.Option(help="Instead of --head and all below but --fpr: a guard, as Guard.save writes it."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="A name, as `flatfold methods` lists them, with hyper-parameters behind colons (knn:k=10). "
            f"Default: {METHOD}."
        ),
    ] = None,
    fit: Annotated[
        Path | None, typer.Option(help="Known features for a method that learns from them, like --features.")
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="Other known features, held out: they give p-values and alarms at a guaranteed rate."),
    ] = None,
    fpr: Annotated[
        float | None,
        typer.Option(help=f"Share of known inputs that may raise an alarm. Default: {FPR}, or that of the guard."),
    ] = None,
    per_class: Annotated[
        bool, typer.Option("--per-class", help="Keep that rate for every predicted class, each with a threshold.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="File *.csv, *.jsonl or *.parquet. Default: CSV to the standard output.")
    ] = None,
) -> None:
    """Score rows of features: how unlike the known data is each? No model is needed.

    One line per row: row, predicted (the likeliest class), score (higher = more out-of-distribution); with --guard or
    --calibration also p_value and is_ood; and label where the file has labels. Of known inputs at most a share --fpr
    raises an alarm. Files of any length are read and written piece by piece; --out appears when it is complete.

    Example: flatfold score --features f.safetensors --head head.safetensors --method fold:alpha=0.5 > scores.csv

    Example: flatfold score --features f.npy --head head.safetensors --method autofold --fit known.safetensors
    --calibration more_known.safetensors --fpr 0.01 --out scores.parquet
    """
    fitting = {"--method": method, "--fit": fit, "--calibration": calibration, "--per-class": per_class or None}
    check_options(head, guard, fpr, fitting)
    check_values(fpr, out)

    from ..models.feature_files import open_features
    from ..scoring.rows import score_features

    if head is None:
        assert guard is not None  # or a sentence has said so
        opened = open_features(features)
        detector, calibrated = _from_guard(guard, fpr)
    else:
        spec = parsed_method(method or METHOD, fit, calibration)
        opened = open_features(features)
        used = (_used(spec, fit), calibration)
        known = Known(*(None if path is None else open_features(path) for path in used))
        detector, calibrated = _from_head(head, spec, opened, known, FPR if fpr is None else fpr, per_class)
    tally = Tally(None if calibrated is None else calibrated.fpr)
    _write(tally.follow(score_features(opened, detector, calibrated)), opened.rows, out)
    typer.echo(f"{tally.summary()}{'' if out is None else f' -> {out}'}", err=True)


class Known(NamedTuple):
    """Features of known inputs: those to fit on, and those to calibrate on."""

    fit: FeatureFile | None
    calibration: FeatureFile | None


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


def _used(spec: Spec, fit: Path | None) -> Path | None:
    """Return --fit if the method learns from it."""
    from ..detectors import get_method

    if fit is None or get_method(spec.name).fits_on != "nothing":
        return fit
    typer.echo(f"note: {spec.name} learns nothing from data: --fit is not used", err=True)
    return None


def _from_guard(path: Path, fpr: float | None) -> tuple[Detector, Calibration | None]:
    from ..scoring.artefact import load_judge

    judge = load_judge(path)[0]
    judge = judge if fpr is None else judge.at(fpr)
    return judge.detector, judge.calibration


def _from_head(
    path: Path, spec: Spec, features: FeatureFile, known: Known, fpr: float, per_class: bool
) -> tuple[Detector, Calibration | None]:
    """Return a fitted detector, and its calibration if there is data for one, in the widest type of all files."""
    import torch

    from ..models.features import read_head
    from ..scoring.rows import calibrate

    head = read_head(path)
    dtype = head.weight.dtype
    for source in (features, *known):  # widening is exact, rounding the others would not be
        dtype = dtype if source is None else torch.promote_types(dtype, source.dtype)
    detector = _fitted(spec, head.to(dtype), known.fit)
    if known.calibration is None:
        return detector, None
    return detector, calibrate(known.calibration, detector, fpr, per_class)


def _fitted(spec: Spec, head: Head, known: FeatureFile | None) -> Detector:
    """Return a detector that has learnt what there is to learn, and pass on what it remarks."""
    import torch

    from ..core.bank import FeatureBank
    from ..detectors import create

    detector = create(spec.name, **spec.hyper)
    if known is None:  # only the head matters, but every fit looks at a bank
        return detector.fit(FeatureBank(torch.ones(1, head.width, dtype=head.weight.dtype)), head)
    bank = known.bank()
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        try:
            detector.fit(FeatureBank(bank.features.to(head.weight.dtype), bank.labels), head)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{known.path}: {error}") from error
    for remark in remarks:
        typer.echo(f"note: {remark.message}", err=True)
    return detector


def _write(chunks: Iterator[Columns], rows: int, out: Path | None) -> None:
    """Write rows as they come, with a bar on stderr unless they go to the same terminal."""
    from ..detectors.base import ROWS_AT_ONCE
    from ..progress import track
    from ..scoring.writers import csv_text, write_rows

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
