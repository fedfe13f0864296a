"""Batch scoring: write a table with one row per input, in resumable parts that can be distributed over processes."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_args

import msgspec
import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor, nn

from ..data.batch import Batch
from ..data.fingerprint import evenly_spaced
from ..data.sources import SIZES, BatchResult, ImageSource, NamedSource
from ..data.text_files import TextSource
from ..errors import DamagedFileError
from ..io.artifacts import read_json, write_json
from ..io.files import replacing, sha256_of
from ..io.store import Part, PartStore
from ..network.execution import Execution, RuntimeName
from ..network.heads import DensePass, Pass
from ..network.network import Network
from ..passes.passes import PART_ROWS, Parts, RowJob, run
from .calibrated import CalibratedDetector, Verdict
from .dense import DenseGuard
from .explanation import explain
from .guard import Guard
from .guard_file import GuardFile
from .mask_files import join_files, mask_places, png_of, split_files, write_files
from .monitor import Monitor
from .tables import Columns, check_out, write_rows, write_tables
from .tokens import Token, find_tokens

MASKED_ROWS = 128  # of a part that holds masks
PARTS = 64  # smallest number of parts, if there are as many batches, to distribute over processes
LONGEST = 200  # bytes of the name of a table: files next to it have longer names, and most systems allow 255
EXPLANATION = "explanation"  # the column
PAIRS = 3  # of classes in an explanation
READ_ROWS = 1024  # rows read at once from a parquet file
SHOWN = 5  # shards that a message names
NOT_FINITE = "the model returned non-finite features. Check the input and the dtype of the model."


@dataclass(frozen=True)
class ScoringJob(RowJob):
    """Images or texts to score with the guard of a model; it can be pickled."""

    guard: GuardFile  # other processes read the file again
    model: Callable[[], nn.Module]  # called in the scoring process: must be a module-level function for pickle
    source: NamedSource
    fpr: float | None = None  # default: that of the file
    execution: Execution = field(default_factory=Execution)
    allow_sizes: bool = False  # score images of other sizes than the guard was calibrated on
    explain: bool = False  # add a column with a sentence about each verdict
    tokens: bool = False  # name the words behind alarms, too
    masks: Path | None = None  # folder for a mask of each image, of a guard for every position

    title = "scoring"
    paced = True

    def __post_init__(self) -> None:
        if self.masks is not None and self.guard.images is None:
            raise ValueError(
                f"masks= needs a guard for every position, of a segmentation network, but {self.guard.path} is one for "
                "whole inputs. Leave it out."
            )
        if (self.explain or self.tokens) and self.guard.images is not None:
            raise ValueError(
                f"explanations are of whole inputs, but {self.guard.path} is a guard for every position. Leave out "
                "explain, and call guard.explain(images) in Python, which names regions."
            )
        if self.tokens and not isinstance(self.source, TextSource):
            raise ValueError(f"words are named for texts, but the data holds {self.source.noun}s. Leave out tokens.")
        source = copy(self.source)  # the user's source is not modified
        if self.masks is not None:
            mask_places(source, self.masks)  # raises if there are none
            if isinstance(source, ImageSource) and source.transform.crop is None:
                source.sized = True
        source.sizes = None if self.allow_sizes else self.guard.sizes
        object.__setattr__(self, "source", source)
        if not isinstance(source, ImageSource) and self.execution.runtime == "auto":
            # Batches of texts have several lengths. A graph is for one of them, and the choice would depend on which
            # batch is computed first, so that a resumed run had other last digits.
            object.__setattr__(self, "execution", replace(self.execution, runtime="torch"))

    def calibrated(self) -> CalibratedDetector:
        """Return the detector with the false-alarm rate of this job; it needs no model."""
        return self.guard.calibrated if self.fpr is None else self.guard.calibrated.at(self.fpr)

    def monitor(self) -> Monitor:
        """Return an empty monitor for the rows of the table."""
        if self.guard.images is None:
            return Monitor.of(self.calibrated())
        images = self.guard.images if self.fpr is None else self.guard.images.at(self.fpr)
        return Monitor.of(CalibratedDetector(self.guard.calibrated.detector, images.calibration), positions=True)

    def columns(self) -> dict[str, DTypeLike]:
        """Return the columns of the table and their types."""
        calibrated = self.calibrated()
        number = calibrated.calibration.scores.cpu().numpy().dtype
        own: dict[str, DTypeLike] = {"predicted": np.int64, "score": number, "p_value": number, "is_ood": np.bool_}
        if self.guard.images is not None:
            own = {"share_ood": np.float64, "image_score": number, "image_p_value": number, "image_is_ood": np.bool_}
        explained: dict[str, DTypeLike] = {EXPLANATION: np.str_} if self.explain or self.tokens else {}
        return {"path": np.str_, **own, **self.source.columns, **explained}

    def load(self, rows: int | None = None) -> Guard:
        """Load the model and its guard to score ``rows`` images; None means many."""
        execution = self.execution.on_worker() if self.execution.distributed else self.execution
        guard = Guard.load(self.guard, self.model())
        guard.network.to(execution.device).use_runtime(execution.runtime, rows, onnx_cache(self.guard.path))
        return guard if self.fpr is None else guard.at(self.fpr)

    def network(self, loaded: Guard) -> Network:
        """Return the network of the guard."""
        return loaded.network

    def batch(self, loaded: Guard, read: BatchResult) -> Part:
        """Return the columns of a table for one batch, and the errors of rows without a score."""
        rows_read, batch, reasons = read
        columns, sentences = {}, dict[str, list[str]]()
        if batch is not None:
            rows = torch.tensor([row for row in rows_read if row not in reasons])
            try:
                output = loaded.network.run(batch)
                finite, verdict = _decide(loaded, output)
            except ValueError as error:
                first, last = self.source.name(rows_read[0]), self.source.name(rows_read[-1])
                raise ValueError(f"{first} to {last}: {error}") from error
            reasons = reasons | dict.fromkeys(rows[~finite].tolist(), NOT_FINITE)
            others = {name: values[finite] for name, values in (batch.columns or {}).items()}
            columns = {} if verdict is None else {"row": rows[finite], **verdict.columns(), **others}
            if verdict is not None and self.masks is not None:
                sizes = zip(*(columns.pop(name).tolist() for name in SIZES), strict=True) if "height" in columns else ()
                given = [*sizes] or [None] * len(columns["row"])
                columns |= join_files([png_of(*each) for each in zip(verdict.is_ood, given, strict=True)])
            if verdict is not None and (self.explain or self.tokens):
                sentences[EXPLANATION] = self._explanations(loaded, batch, output, finite, verdict)
        info: dict[str, Any] = {"unreadable": {row: _printable(reason) for row, reason in sorted(reasons.items())}}
        return Part(info | ({"texts": sentences} if self.explain or self.tokens else {}), columns)

    def _explanations(self, guard: Guard, batch: Batch, output: Pass, finite: Tensor, verdict: Verdict) -> list[str]:
        """Return a sentence about each verdict; the words behind it only for alarms, each of which takes a batch."""
        features, detector = output.features[finite], guard.calibrated.detector
        words: list[tuple[Token, ...]] = [()] * len(features)
        if self.tokens:
            assert isinstance(self.source, TextSource)
            places = finite.nonzero()[:, 0].tolist()
            for row in verdict.is_ood.nonzero()[:, 0].tolist():
                text = batch.part(places[row], places[row] + 1)
                words[row] = find_tokens(
                    guard.network, guard.calibrated, self.source.tokeniser, text, verdict.score[[row]]
                )[0]
        pairs, signs = detector.pairs(features, PAIRS), detector.signs(features)
        return [str(each) for each in explain(verdict, pairs, _class_names(guard), signs, words)]

    def key(self) -> dict[str, str]:
        """Return the settings that identify the results of this job."""
        source = self.source
        names = [source.name(row) for row in evenly_spaced(range(source.rows))]
        return {
            "guard": self.guard.settings.sha256,
            "fpr": repr(self.calibrated().calibration.fpr),
            "data": source.fingerprint,
            "place": hashlib.sha256(json.dumps(names).encode()).hexdigest(),  # the table names images by their path
            "batch_size": str(source.batch_size),
            "rows": str(source.rows),
            **({"sizes": "any"} if self.allow_sizes else {}),
            **({"explain": "tokens" if self.tokens else "signs"} if self.explain or self.tokens else {}),
            **({"masks": "png"} if self.masks is not None else {}),
            **({} if isinstance(source, ImageSource) else {"inputs": source.noun}),
        }


def _decide(loaded: Guard, output: Pass) -> tuple[Tensor, Verdict | None]:
    """Return which inputs have finite features, a mask ``(n,)`` on the CPU, and the verdict on these if any has."""
    finite = output.features.isfinite().all(dim=-1)
    if isinstance(output, DensePass):
        assert isinstance(loaded, DenseGuard)
        finite = finite.reshape(output.grid[0], -1).all(dim=-1)
        return finite.cpu(), loaded.decide(output.select(finite)) if finite.any() else None
    return finite.cpu(), loaded.calibrated.decide(*(values[finite] for values in output))


Executor = Callable[[ScoringJob, Parts], Iterator[tuple[int, Part]]]
"""Yields each part once, in any order, with its number."""


@dataclass(frozen=True)
class Shard:
    """One of several shards of the same images, scored by separate processes; counted from 1.

    Shards consist of whole batches, in the order of the rows. So every image is in the same batch, and has
    the same score to the last digit, for any number of shards.
    """

    number: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise ValueError(
                f"shards are counted from 1, as in 1/{max(self.of, 1)}, got {self}. "
                "If your scheduler counts from 0, add 1."
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a shard written as ``i/n``."""
        if not (match := re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)):
            raise ValueError(f"a shard must be i/n, the i-th of n, such as 1/4, got {text!r}.")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def parts(self, rows: int, batch_size: int, most: int = PART_ROWS) -> list[range]:
        """Return the rows of each part of this shard, at most ``most``; all shards together have ``rows``."""
        batches = -(-rows // batch_size)
        start, stop = (min(batches * number // self.of * batch_size, rows) for number in (self.number - 1, self.number))
        size = max(1, min(most, rows // PARTS) // batch_size) * batch_size
        return [range(first, min(first + size, stop)) for first in range(start, stop, size)]


class Summary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counts of a run or of one shard, stored in a small file next to its table; counts of shards can be added."""

    FORMAT: ClassVar[str] = "flatfold-scores"
    VERSION: ClassVar[int] = 2

    job: dict[str, str]  # the key of the job
    shard: Shard
    unreadable: Annotated[int, msgspec.Meta(ge=0)]  # number of images that could not be scored
    table: str  # sha256
    counts: dict[str, Any] = msgspec.field(name="monitor")
    runtime: str = ""  # runtime of the model

    def __post_init__(self) -> None:
        Monitor.from_dict(self.counts)  # raises if they are damaged

    @property
    def noun(self) -> str:
        """What one input is called."""
        return self.job.get("inputs", ImageSource.noun)

    @property
    def monitor(self) -> Monitor:
        """Counts of all scored images."""
        return Monitor.from_dict(self.counts)

    @property
    def scored(self) -> int:
        """Number of rows in the table."""
        return self.monitor.seen

    @classmethod
    def load(cls, out: Path) -> Summary:
        """Read the summary next to the table ``out``."""
        path = summary_path(out)
        if not path.is_file():
            raise FileNotFoundError(
                f"{out} has no summary {path.name} next to it. Was it written completely by `flatfold score`? "
                "Keep the two together."
            )
        try:
            return read_json(path, cls)
        except DamagedFileError as error:
            raise ValueError(f"{error} Score the images again.") from error


WHOLE = Shard()


def compute_parts(
    job: ScoringJob, parts: Parts, workers: int | None = None, processes: int | None = 1
) -> Iterator[tuple[int, Part]]:
    """Compute parts with the execution settings of a job."""
    return run(job, parts, job.execution, workers, processes)


def score_images(
    job: ScoringJob, out: Path | str, *, shard: Shard = WHOLE, executor: Executor | None = None, restart: bool = False
) -> Summary:
    """Write one row per image or text: path, predicted class, score, p-value and decision.

    For a guard for every position these are the share of alarmed positions, and score, p-value and decision of the
    image as a whole, and a job with ``masks`` writes a PNG for each image: 255 where there is an alarm, else 0. It has
    the size of the decoded image, or that of the logits if the transform crops.

    Memory use does not grow with the number of images, except for their names. A stopped or killed run resumes
    when it is called again; a complete run is not repeated.

    The table is a file ``*.csv``, ``*.jsonl`` or ``*.parquet``. Next to it are ``OUT.summary.json``,
    ``OUT.unreadable.csv`` if an image could not be scored, and ``OUT.parts/`` until the run is complete. Raises if
    these parts belong to another job, or if another process is writing to them. ``restart`` discards the parts of an
    earlier run. The ``executor`` computes the parts, by default :func:`flatfold.passes.passes.run` with the job's
    execution settings.
    """
    executor = executor or compute_parts
    out = Path(out)
    check_table(out)
    key = job.key()
    if not restart and (summary := _finished(out, job, key, shard)) is not None:
        return summary
    most = PART_ROWS if job.masks is None else MASKED_ROWS
    parts = dict(enumerate(shard.parts(job.source.rows, job.source.batch_size, most)))
    new_folders = [folder for folder in (out.parent, *out.parent.parents) if not folder.exists()]
    store_key = {**key, "shard": str(shard), "parts": str(len(parts))}
    with PartStore(parts_path(out), store_key, restart=restart, lock=True) as store:
        try:
            missing = {number: rows for number, rows in parts.items() if _name(number) not in store}
            job = _with_runtime_of(job, store, parts)
            for number, scored in executor(job, missing) if missing else ():
                store.write(_name(number), scored.tensors, scored.info)
            if lost := sum(_name(number) not in store for number in parts):
                raise RuntimeError(f"{lost} of {len(parts)} parts were not computed; the others are kept.")
            summary = _write_results(out, job, shard, key, (store.read(_name(number)) for number in parts))
        except BaseException:
            if not len(store):  # a rejected run leaves nothing behind
                store.remove()
                for folder in new_folders:
                    with suppress(OSError):  # not empty
                        folder.rmdir()
            raise
        store.remove()
    return summary


def join_tables(tables: Sequence[Path | str], out: Path | str) -> Summary:
    """Join the tables of all shards, given in any order, and write the sum of their counts next to the result."""
    out, paths = Path(out), [Path(table) for table in tables]
    check_table(out)
    if not paths:
        raise ValueError("joining needs the tables of all shards, got none. Name them: scores-*.csv, for example.")
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"no table {path}. Check the path.")
        if path.suffix.lower() != out.suffix.lower():
            raise ValueError(f"joining does not convert tables, but {path} does not end in {out.suffix}. Rename out=.")
        if path.resolve() == out.resolve():
            raise ValueError(f"{out} is one of the tables to join. Choose another file as out=.")
    shards = sorted(((Summary.load(path), path) for path in paths), key=lambda shard: shard[0].shard.number)
    _check_complete(shards)
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as partial:
        if out.suffix.lower() == ".parquet":
            write_tables(chain.from_iterable(_read_parquet(path) for _, path in shards), partial)
        else:
            _concatenate([path for _, path in shards], partial, header=out.suffix.lower() == ".csv")
    unreadable_path(out).unlink(missing_ok=True)
    if lists := [unreadable_path(path) for summary, path in shards if summary.unreadable]:
        with replacing(unreadable_path(out)) as partial:
            _concatenate(lists, partial, header=True)
    first, *others = (summary for summary, _ in shards)
    monitor = sum((summary.monitor for summary in others), first.monitor)
    runtime = " / ".join(dict.fromkeys(summary.runtime for summary, _ in shards if summary.runtime))
    unreadable = sum(summary.unreadable for summary, _ in shards)
    joined = Summary(first.job, Shard(), unreadable, sha256_of(out), monitor.to_dict(), runtime)
    write_json(summary_path(out), joined)
    return joined


def check_table(out: Path) -> None:
    """Raise early unless a table and the files next to it can be written to ``out``."""
    check_out(out)
    if (length := len(os.fsencode(out.name))) > LONGEST:
        raise ValueError(
            f"the name of a table must have at most {LONGEST} bytes, got {length}: files next to it have longer names. "
            "Choose a shorter out=."
        )


def summary_path(out: Path) -> Path:
    """Return the path of the summary of a table."""
    return out.with_name(f"{out.name}.summary.json")


def unreadable_path(out: Path) -> Path:
    """Return the path of the list of unreadable images."""
    return out.with_name(f"{out.name}.unreadable.csv")


def parts_path(out: Path) -> Path:
    """Return the directory of the parts of an incomplete table."""
    return out.with_name(f"{out.name}.parts")


def onnx_cache(guard: Path) -> Path:
    """Return the file next to a guard that caches the exported graph of its model."""
    return guard.with_name(f"{guard.name}.graph")


def _with_runtime_of(job: ScoringJob, store: PartStore, parts: Parts) -> ScoringJob:
    """Replace the runtime ``"auto"`` by that of the stored parts, so that all parts agree to the last digit."""
    there = next((_name(number) for number in parts if _name(number) in store), None)
    if job.execution.runtime != "auto" or there is None:
        return job
    used = str(store.read(there).info.get("runtime", ""))
    names: tuple[RuntimeName, ...] = get_args(RuntimeName)
    chosen = next((name for name in names if used.startswith((f"{name} ", f"{name},"))), job.execution.runtime)
    return replace(job, execution=replace(job.execution, runtime=chosen))


def _class_names(guard: Guard) -> list[str] | None:
    """Return the names of the classes in the configuration of a model of transformers."""
    names = getattr(getattr(guard.model, "config", None), "id2label", None)
    classes = range(len(guard.calibrated.detector.fitted_weight))
    return [str(names[index]) for index in classes] if isinstance(names, dict) and {*names} == {*classes} else None


def _name(number: int) -> str:
    return f"{number:08d}"


def _printable(text: str) -> str:
    """Escape bytes of file names that are not valid UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def _finished(out: Path, job: ScoringJob, key: dict[str, str], shard: Shard) -> Summary | None:
    """Return the summary of an earlier complete run of the same job, if all of its files still exist."""
    if not out.is_file() or not summary_path(out).is_file() or parts_path(out).exists():
        return None
    try:
        summary = Summary.load(out)
    except ValueError:
        return None
    same = (summary.job, summary.shard, summary.table) == (key, shard, sha256_of(out))
    if job.masks is not None and same:
        own = shard.parts(job.source.rows, job.source.batch_size)
        places = mask_places(job.source, job.masks)[own[0].start : own[-1].stop] if own else []
        same = sum(not place.is_file() for place in places) <= summary.unreadable
    return summary if same and (not summary.unreadable or unreadable_path(out).is_file()) else None


def _write_results(out: Path, job: ScoringJob, shard: Shard, key: dict[str, str], parts: Iterator[Part]) -> Summary:
    """Write the table, the list of unreadable images, and last the summary, which marks both as complete."""
    monitor, kinds = job.monitor(), job.columns()
    places = [] if job.masks is None else mask_places(job.source, job.masks)
    unreadable: list[dict[int, str]] = []
    used: dict[str, None] = {}

    def paths(rows: Iterable[int]) -> NDArray[np.str_]:
        return np.array([_printable(job.source.name(row)) for row in rows], dtype="U")

    def table() -> Iterator[Columns]:
        yield {name: np.zeros(0, kind) for name, kind in kinds.items()}  # names the columns of an empty table
        for info, tensors in parts:
            used[info.get("runtime", "")] = None
            if reasons := info["unreadable"]:
                unreadable.append({int(row): reason for row, reason in reasons.items()})
                for row in unreadable[-1] if places else ():  # of an earlier run
                    places[row].unlink(missing_ok=True)
            if tensors:
                columns = {name: values.numpy() for name, values in tensors.items()}
                monitor.count_rows(columns)
                if places:
                    write_files(dict(zip((places[row] for row in columns["row"]), split_files(tensors), strict=True)))
                columns["path"] = paths(columns["row"].tolist())
                columns |= {name: np.array(texts, dtype="U") for name, texts in info.get("texts", {}).items()}
                yield {name: columns[name] for name in kinds}

    write_rows(table(), out)
    if unreadable:
        listed = ({"path": paths(rows), "reason": np.array([*rows.values()], dtype="U")} for rows in unreadable)
        write_rows(listed, unreadable_path(out))
    else:
        unreadable_path(out).unlink(missing_ok=True)
    runtime = " / ".join(filter(None, used))
    summary = Summary(key, shard, sum(map(len, unreadable)), sha256_of(out), monitor.to_dict(), runtime)
    write_json(summary_path(out), summary)
    return summary


def _check_complete(shards: Sequence[tuple[Summary, Path]]) -> None:
    """Raise unless these are all shards of one run, without duplicates or changes."""
    first, first_path = shards[0]
    for summary, path in shards:
        place = {"place": first.job.get("place")}  # paths of images may differ between machines
        if summary.job | place != first.job | place or summary.shard.of != first.shard.of:
            raise ValueError(f"{path} and {first_path} are not shards of one run. Score all of them in the same way.")
        if sha256_of(path) != summary.table:
            raise ValueError(f"{path} has changed: its checksum differs from its summary. Score this shard again.")
        if summary.unreadable and not unreadable_path(path).is_file():
            raise FileNotFoundError(
                f"{path} has no list {unreadable_path(path).name} of unreadable images next to it. "
                "Keep the two together, or score this shard again."
            )
    numbers = [summary.shard.number for summary, _ in shards]
    if twice := sorted({number for number in numbers if numbers.count(number) > 1}):
        raise ValueError(f"duplicate shard {twice[0]}/{first.shard.of}: got {numbers.count(twice[0])}. Pass each once.")
    if missing := sorted(set(range(1, first.shard.of + 1)) - set(numbers)):
        named = ", ".join(map(str, missing[:SHOWN])) + (" ..." if len(missing) > SHOWN else "")
        raise ValueError(f"{len(missing)} of {first.shard.of} shards are missing: {named}. Score them first.")


def _concatenate(paths: Sequence[Path], out: Path, header: bool) -> None:
    """Concatenate text tables, with their ``header`` line once."""
    with out.open("wb") as file:
        for number, path in enumerate(paths):
            with path.open("rb") as table:
                if header and number > 0:
                    table.readline()
                file.writelines(table)


def _read_parquet(path: Path) -> Iterator[Any]:
    """Yield a parquet file in chunks, after an empty table with its columns."""
    import pyarrow as arrow  # type: ignore[import-untyped]
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]

    with ParquetFile(path) as file:
        yield file.schema_arrow.empty_table()
        for batch in file.iter_batches(READ_ROWS):
            yield arrow.Table.from_batches([batch])
