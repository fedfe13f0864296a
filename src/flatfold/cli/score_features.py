"""``flatfold score-features``: OOD scores of features as a table, without a model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from .options import (
    FPR,
    METHOD,
    PerClass,
    Rate,
    With,
    captured_warnings,
    check_table,
    count,
    load_plugins,
    make_detector,
)

if TYPE_CHECKING:
    from ..detectors.base import Detector
    from ..scoring.calibrated import Calibration
    from ..scoring.tables import Columns

DEFAULT = "fold"


def score_features(
    features: Annotated[
        Path,
        Argument(
            help="Features to score: safetensors, .npy, .npz or a saved feature bank with an array `features` (n, d) "
            "and optionally `labels`."
        ),
    ],
    guard: Annotated[Path | None, Option(help="Guard file. Give this or --head.")] = None,
    head: Annotated[
        Path | None,
        Option(
            help="Last linear layer of the model: safetensors file with `weight` (c, d) and `bias` (c,). Give this or "
            "--guard."
        ),
    ] = None,
    method: Annotated[str | None, Option(help=f"Method to fit to --head: a {METHOD}. Default: {DEFAULT}.")] = None,
    fit: Annotated[Path | None, Option(help="ID features, for methods that learn from data.")] = None,
    calibration: Annotated[Path | None, Option(help="Other ID features, for p-values and alarms.")] = None,
    per_class: PerClass = False,
    fpr: Rate = None,
    out: Annotated[Path | None, Option(help="Table (*.csv, *.jsonl, *.parquet). Default: CSV to stdout.")] = None,
    own: With = None,
) -> None:
    """Score features with a guard, or with a fitted method.

    Writes a table with one row per row of features. Columns: row, predicted (the most likely class), score (higher =
    more out-of-distribution), p_value and is_ood, and label if the file has labels. With --head, p_value and is_ood
    need --calibration.

    Exit codes: 0 done; 1 invalid input; 2 invalid usage; 130 interrupted.

    Example: flatfold score-features f.safetensors --guard guard.safetensors --out scores.csv

    Example: flatfold score-features f.safetensors --head head.safetensors --method fold:alpha=0.5 > scores.csv

    Example: flatfold score-features f.npy --head head.safetensors --method autofold --fit val.safetensors --calibration
    more_val.safetensors --fpr 0.01 --out scores.parquet
    """
    if (guard is None) == (head is None):
        raise typer.BadParameter("give either --guard or --head.")
    if guard is not None and (method or fit or calibration or per_class):
        raise typer.BadParameter(
            "a guard is fitted already: --method, --fit, --calibration and --per-class need --head."
        )
    if head is not None and calibration is None and (per_class or fpr is not None):
        raise typer.BadParameter("--fpr and --per-class need held-out ID features. Give them as --calibration.")
    load_plugins(own)
    if out is not None:
        check_table(out, features, fit, calibration)

    from ..models.feature_files import open_features, read_head
    from ..scoring.calibrated import CalibratedDetector, learns
    from ..scoring.tables import fit_on_files
    from ..scoring.tables import score_features as score_rows

    detector: Detector
    calibrated: Calibration | None
    if guard is not None:
        loaded = CalibratedDetector.load(guard)
        file = open_features(features)
        detector, calibrated = loaded.detector, loaded.calibration if fpr is None else loaded.calibration.at(fpr)
    else:
        assert head is not None
        detector = make_detector(method or DEFAULT, fit, calibration)
        file = open_features(features)
        if fit is not None and not learns(detector):
            assert detector.made_by is not None
            typer.echo(f"note: {detector.made_by[0]} learns only from the head: --fit is not used", err=True)
            fit = None
        fit_file, calibration_file = (None if path is None else open_features(path) for path in (fit, calibration))
        rate = FPR if fpr is None else fpr
        with captured_warnings():
            result = fit_on_files(detector, read_head(head), file, fit_file, calibration_file, rate, per_class)
        calibrated = result.calibration
    counts, start = {"rows": 0, "alarms": 0}, perf_counter()

    def counted(chunks: Iterable[Columns]) -> Iterator[Columns]:
        for columns in chunks:
            counts["rows"] += len(columns["score"])
            counts["alarms"] += int(columns["is_ood"].sum()) if "is_ood" in columns else 0
            yield columns

    _write(counted(score_rows(file, detector, calibrated)), file.rows, out)
    rows, seconds = counts["rows"], perf_counter() - start
    alarms = ""
    if calibrated is not None:
        share = 100 * counts["alarms"] / rows
        alarms = f", {count(counts['alarms'], 'alarm')} ({share:.2f} %) at a false-alarm rate of {calibrated.fpr:g}"
    speed = f"{seconds:.1f} s, {rows / seconds:.0f} rows per second"
    typer.echo(f"{count(rows, 'row')}{alarms}; {speed}{'' if out is None else f' -> {out}'}", err=True)


def _write(chunks: Iterator[Columns], rows: int, out: Path | None) -> None:
    """Write rows as they come, with a progress bar on stderr unless the rows go to the same terminal."""
    from ..detectors.base import ROWS_AT_ONCE
    from ..io.progress import track
    from ..scoring.tables import csv_text, write_rows

    if out is not None or not sys.stdout.isatty():
        chunks = track(chunks, "scoring", -(-rows // ROWS_AT_ONCE))
    if out is not None:
        write_rows(chunks, out)
        return
    try:
        sys.stdout.writelines(csv_text(chunks))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would fail again when it exits
        raise typer.Exit(0) from None
