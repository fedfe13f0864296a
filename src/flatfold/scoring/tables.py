"""Features to rows of a table, a chunk at a time, in memory that does not grow with their number."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.validation import check_finite, check_width
from ..detectors.base import ROWS_AT_ONCE, Detector
from ..io.files import replacing
from ..models.feature_files import FeatureChunk, FeatureFile
from .calibrated import Calibration, FitResult, calibrate, fit_detector

# Rows of a table to a file, a chunk at a time, in memory that does not grow with their number.


Columns = dict[str, NDArray[Any]]

GROUP = 4  # chunks in a row group of a parquet file, which has a head of its own for each

_SPECIAL = re.compile('[,"\r\n]')


def csv_text(chunks: Iterable[Columns]) -> Iterator[str]:
    """Yield a CSV table, its first line with the names of the columns."""
    for number, columns in enumerate(chunks):
        values = [map(_field, array) if array.dtype.kind == "U" else _words(array) for array in columns.values()]
        names = [map(_field, columns)] if number == 0 else []
        yield "".join(",".join(row) + "\n" for row in chain(names, zip(*values, strict=True)))


def json_text(chunks: Iterable[Columns]) -> Iterator[str]:
    """Yield one JSON object per row and line."""
    for columns in chunks:
        names = [json.dumps(name) for name in columns]
        values = [map(json.dumps, array) if array.dtype.kind == "U" else _words(array) for array in columns.values()]
        lines = (", ".join(map("{}: {}".format, names, row)) for row in zip(*values, strict=True))
        yield "".join(f"{{{line}}}\n" for line in lines)


def _field(text: str) -> str:
    """Return text as a field of a CSV table; the writer of Python leaves a carriage return as it is, and loses it."""
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text


def _words(array: NDArray[Any]) -> Iterable[str]:
    """Return each value as text: truth as JSON writes it, numbers with as few digits as give the same number again."""
    words: list[str] = (np.where(array, "true", "false") if array.dtype == np.bool_ else array.astype(str)).tolist()
    return words


def _write_csv(chunks: Iterable[Columns], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(csv_text(chunks))


def _write_json(chunks: Iterable[Columns], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(json_text(chunks))


def _write_parquet(chunks: Iterable[Columns], path: Path) -> None:
    import pyarrow as arrow  # type: ignore[import-untyped]

    write_tables((arrow.table(columns) for columns in chunks), path)


def write_tables(tables: Iterable[Any], path: Path) -> None:
    """Write Arrow tables with the same columns, at least one, as a parquet file."""
    import pyarrow as arrow
    from pyarrow.parquet import ParquetWriter  # type: ignore[import-untyped]

    tables = iter(tables)
    with ExitStack() as opened:
        writer = None
        while some := list(islice(tables, GROUP)):
            writer = writer or opened.enter_context(ParquetWriter(path, some[0].schema))
            writer.write_table(arrow.concat_tables(some))
            arrow.default_memory_pool().release_unused()  # or it is kept for a while, and more is taken


WRITERS = {".csv": _write_csv, ".jsonl": _write_json, ".parquet": _write_parquet}


def write_rows(chunks: Iterable[Columns], path: Path | str) -> None:
    """Write rows to a file as they come; it takes its place in one step when all are there, or not at all.

    Args:
        chunks: At least one, all with the same columns.
        path: Ends in ``.csv``, ``.jsonl`` (a JSON object per line) or ``.parquet``, which needs pyarrow. Its folder is
            made if needed.

    Raises:
        IsADirectoryError: There is a folder at ``path``.
        ModuleNotFoundError: pyarrow is needed and not installed.
        ValueError: ``path`` ends in something else, or is a device or a pipe, which would not outlive it.
    """
    path = Path(path)
    check_out(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        WRITERS[path.suffix.lower()](chunks, partial)


def check_out(path: Path) -> None:
    """Raise unless :func:`write_rows` can write to ``path``: to be asked before long work."""
    if path.suffix.lower() not in WRITERS:
        raise ValueError(f"a table of rows is a file *{', *'.join(WRITERS)}, got {path.name!r}. Choose one of them.")
    if path.is_dir():
        raise IsADirectoryError(f"a table of rows is a file, but {path} is a folder. Choose another name.")
    if path.exists() and not path.is_file():
        raise ValueError(f"a table of rows is a file, but {path} is a device or a pipe. Choose another name.")
    if path.suffix.lower() == ".parquet" and find_spec("pyarrow") is None:
        raise ModuleNotFoundError(
            "parquet is written by pyarrow, which is not installed. Run: pip install 'flatfold[parquet]'",
            name="pyarrow",
        )


@torch.no_grad()
def score_features(
    source: FeatureFile, detector: Detector, calibration: Calibration | None = None
) -> Iterator[Columns]:
    """Yield the rows of a table, one for each row of features, some thousand at a time.

    The columns are ``row``, its number from 0; ``predicted``, the likeliest class; ``score``, higher for more
    out-of-distribution; with a calibration ``p_value`` and ``is_ood``; and ``label`` if there are labels.

    Args:
        source: The features. Where the detector was fitted in float64, float32 is widened, which is exact.
        detector: Fitted.
        calibration: Scores of that detector on held-out known inputs.

    Raises:
        TypeError: The features have more digits than the detector was fitted with.
        ValueError: The features do not fit the detector, or a feature or a score is not finite.
    """
    for chunk, score, predicted in _scored(source, detector):
        rows = np.arange(chunk.first, chunk.first + len(score))
        columns = {"row": rows, "predicted": predicted.numpy(), "score": score.numpy()}
        if calibration is not None:
            p_value, is_ood = calibration(score, predicted)
            columns |= {"p_value": p_value.numpy(), "is_ood": is_ood.numpy()}
        if chunk.labels is not None:
            columns["label"] = chunk.labels.numpy()
        yield columns


def fit_on_files(
    detector: Detector,
    head: Head,
    scored: FeatureFile,
    fit: FeatureFile | None,
    calibration: FeatureFile | None,
    fpr: float,
    per_class: bool = False,
) -> FitResult:
    """Fit a detector on features in files, and calibrate it if there are held-out ones, in the widest of their types.

    Args:
        detector: It is fitted in place.
        head: The model's last layer.
        scored: The features that will be scored; only their type matters.
        fit: ID features to fit on; None for a detector that only needs the head.
        calibration: Other ID features, to calibrate on; None to fit only.
        fpr: The share of ID inputs that may raise an alarm.
        per_class: Give each predicted class its own threshold.
    """
    dtype = head.weight.dtype
    for file in (scored, fit, calibration):  # widening is exact, rounding would not be
        dtype = dtype if file is None else torch.promote_types(dtype, file.dtype)
    head = head.to(dtype)
    with _errors_about(fit):
        result = fit_detector(detector, None if fit is None else _read_bank(fit, head), head, fpr=None)
    if calibration is None:
        return result
    with _errors_about(calibration):
        features = _read_bank(calibration, head).features
        return replace(result, calibration=calibrate(detector, features, fpr, per_class))


def _read_bank(file: FeatureFile, head: Head) -> FeatureBank:
    check_width(torch.empty(0, file.width), head.weight)
    bank = file.bank()
    return FeatureBank(bank.features.to(head.weight.dtype), bank.labels)


@contextmanager
def _errors_about(file: FeatureFile | None) -> Iterator[None]:
    """Name a file in the errors about its content."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if file is None or str(file.path) in str(error):
            raise
        raise ValueError(f"{file.path}: {error}") from error


def _scored(source: FeatureFile, detector: Detector) -> Iterator[tuple[FeatureChunk, Tensor, Tensor]]:
    """Yield chunks of features with their scores and likeliest classes."""
    weight = detector.fitted_weight
    try:
        check_width(torch.empty(0, source.width), weight)
    except ValueError as error:
        raise ValueError(f"{source.path}: {error}") from error
    if torch.promote_types(source.dtype, weight.dtype) != weight.dtype:
        raise TypeError(
            f"{source.path} holds features in {source.dtype}, but what judges them was fitted in {weight.dtype}, and "
            "they are not rounded for you. Save them in that type, or fit again."
        )
    detector.eval()
    for chunk in source.chunks(ROWS_AT_ONCE):
        features = chunk.features.to(weight)
        score = detector(features).cpu()
        check_finite(score[:, None], f"scores of {source.path}", chunk.first)
        yield chunk, score, detector.innermost.logits(features).argmax(dim=-1).cpu()
