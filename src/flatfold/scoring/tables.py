"""Tables of scores: features to rows, and rows to CSV, JSON lines or parquet, in memory that does not grow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.bank import FeatureBank, Head
from ..core.validation import check_finite, check_width
from ..data.feature_files import FeatureFile
from ..detectors.base import ROWS_AT_ONCE, Detector
from ..io.files import replacing
from .calibrated import CalibratedDetector, Calibration, Verdict
from .fitting import FitResult, fit_detector

Columns = dict[str, NDArray[Any]]

SUFFIXES = (".csv", ".jsonl", ".parquet")
GROUP = 4  # chunks in a row group of a parquet file

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_SPECIAL = re.compile('[,"\r\n]')


def fit_on_files(
    detector: Detector,
    head: Head,
    scored: FeatureFile,
    fit: FeatureFile | None,
    calibration: FeatureFile | None,
    fpr: float,
    per_class: bool = False,
    confidence: float | None = None,
) -> FitResult:
    """Fit a detector on features in files (without ``fit`` on the head alone), and calibrate it on held-out ones."""
    files = [file for file in (fit, calibration) if file is not None]
    dtype = head.weight.dtype
    for file in (scored, *files):  # all in the widest type: widening is exact, rounding would not be
        dtype = torch.promote_types(dtype, file.dtype)
    head = head.to(dtype)
    bank, held_out = (None if file is None else _read_bank(file, head) for file in (fit, calibration))
    rate = None if held_out is None else fpr  # no half of ``fit`` is held out
    with _errors_about(*files):
        return fit_detector(detector, bank, head, rate, held_out=held_out, per_class=per_class, confidence=confidence)


@torch.no_grad()
def score_features(
    source: FeatureFile, detector: Detector, calibration: Calibration | None = None
) -> Iterator[Columns]:
    """Yield the rows of a table, one for each row of features, some thousand at a time.

    A score that is not finite raises an alarm; without a calibration it is an error.
    """
    weight = detector.fitted_weight
    with _errors_about(source):
        check_width(source.width, weight)
    if torch.promote_types(source.dtype, weight.dtype) != weight.dtype:
        raise TypeError(
            f"{source.path} holds features in {source.dtype}, but the detector was fitted in {weight.dtype}, and "
            "features are not rounded silently. Save them in that type, or fit again."
        )
    detector.eval()
    for chunk in source.chunks(ROWS_AT_ONCE):
        features = chunk.features.to(weight)
        logits = detector.innermost.logits(features)
        rows = np.arange(chunk.first, chunk.first + len(features))
        if calibration is None:
            score = detector(features).cpu()
            check_finite(score[:, None], f"scores of {source.path}", chunk.first)
            columns = {"row": rows, "predicted": logits.argmax(dim=-1).cpu().numpy(), "score": score.numpy()}
        else:
            verdict = Verdict(logits, *CalibratedDetector(detector, calibration)(features))
            columns = {"row": rows, **{name: values.numpy() for name, values in verdict.columns().items()}}
        if chunk.labels is not None:
            columns["label"] = chunk.labels.numpy()
        yield columns


def write_rows(chunks: Iterable[Columns], path: Path | str) -> None:
    """Write chunks of rows, at least one, to a ``.csv``, ``.jsonl`` or ``.parquet`` file, which appears in one step."""
    path = Path(path)
    check_out(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        if path.suffix.lower() == ".parquet":
            import pyarrow as arrow  # type: ignore[import-untyped]

            write_tables((arrow.table(columns) for columns in chunks), partial)
        else:
            text = csv_text if path.suffix.lower() == ".csv" else json_text
            with partial.open("w", encoding="utf-8", newline="") as file:
                file.writelines(text(chunks))


def check_out(path: Path) -> None:
    """Raise unless :func:`write_rows` can write to ``path``; call it before long work."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"a table of rows is a file *{', *'.join(SUFFIXES)}, got {path.name!r}. Choose one of them.")
    if path.is_dir():
        raise IsADirectoryError(f"a table of rows is a file, but {path} is a folder. Choose another name.")
    if path.exists() and not path.is_file():
        raise ValueError(f"a table of rows is a file, but {path} is a device or a pipe. Choose another name.")
    if path.suffix.lower() == ".parquet" and find_spec("pyarrow") is None:
        raise ModuleNotFoundError(
            "parquet is written by pyarrow, which is not installed. Run: pip install 'flatfold[parquet]'",
            name="pyarrow",
        )


def csv_text(chunks: Iterable[Columns]) -> Iterator[str]:
    """Yield a CSV table, its first line with the names of the columns."""
    for number, columns in enumerate(chunks):
        values = [map(_csv_field, array) if array.dtype.kind == "U" else _texts(array) for array in columns.values()]
        names = [map(_csv_field, columns)] if number == 0 else []
        yield "".join(",".join(row) + "\n" for row in chain(names, zip(*values, strict=True)))


def json_text(chunks: Iterable[Columns]) -> Iterator[str]:
    """Yield one JSON object per row and line."""
    for columns in chunks:
        names = [json.dumps(name) for name in columns]
        values = [
            map(json.dumps, array) if array.dtype.kind == "U" else _json_numbers(array) for array in columns.values()
        ]
        lines = (", ".join(map("{}: {}".format, names, row)) for row in zip(*values, strict=True))
        yield "".join(f"{{{line}}}\n" for line in lines)


def write_tables(tables: Iterable[Any], path: Path) -> None:
    """Write Arrow tables with the same columns, at least one, as a parquet file."""
    import pyarrow as arrow
    from pyarrow.parquet import ParquetWriter  # type: ignore[import-untyped]

    tables = iter(tables)
    with ExitStack() as opened:
        writer = None
        while group := list(islice(tables, GROUP)):
            writer = writer or opened.enter_context(ParquetWriter(path, group[0].schema))
            writer.write_table(arrow.concat_tables(group))
            arrow.default_memory_pool().release_unused()  # or Arrow keeps it for a while and takes more


def _csv_field(text: str) -> str:
    """Return text as a field of a CSV table; Python's writer does not quote a carriage return, and loses it.

    A spreadsheet would compute what begins like a formula: an apostrophe in front makes it a text.
    """
    text = f"'{text}" if text.startswith(_FORMULA) else text
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text


def _texts(array: NDArray[Any]) -> Iterable[str]:
    """Return each value as text: booleans as in JSON, numbers with as few digits as give the same number again."""
    texts: list[str] = (np.where(array, "true", "false") if array.dtype == np.bool_ else array.astype(str)).tolist()
    return texts


def _json_numbers(array: NDArray[Any]) -> Iterable[str]:
    """Return each value as text; JSON has no number for what is not finite."""
    return (text if finite else "null" for text, finite in zip(_texts(array), np.isfinite(array), strict=True))


def _read_bank(file: FeatureFile, head: Head) -> FeatureBank:
    with _errors_about(file):
        check_width(file.width, head.weight)
        bank = file.bank()
        return FeatureBank(bank.features.to(head.weight.dtype), bank.labels)


@contextmanager
def _errors_about(*files: FeatureFile) -> Iterator[None]:
    """Name files in the errors about their content."""
    try:
        yield
    except (TypeError, ValueError) as error:
        paths = [str(file.path) for file in files]
        if not paths or any(path in str(error) for path in paths):
            raise
        raise ValueError(f"{' and '.join(paths)}: {error}") from error
