"""A whole run: parts that are missing are computed, noted in a journal, and put together as a table."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self
from zlib import crc32

import numpy as np
from numpy.typing import DTypeLike, NDArray
from torch import Tensor, nn

from ..io.files import open_exclusive, sha256_of, sweep, write_atomically
from ..models.eval_mode import usable_device
from ..models.extract import BatchResult, read_batches
from ..models.fingerprint import evenly_spaced
from ..models.heads import Pass
from ..models.sources import ImageSource
from .calibrated import CalibratedDetector, Verdict
from .guard import Guard
from .monitor import Monitor
from .tables import Columns, check_out, write_rows

# What was found out about some images, in memory and as a line of text.


@dataclass(frozen=True)
class Record:
    """The rows of a table for the images that could be scored, and why the others could not.

    Attributes:
        columns: ``path``, ``predicted``, ``score``, ``p_value`` and ``is_ood``, ``(n,)`` each.
        unreadable: Columns ``path`` and ``reason`` of the others.
    """

    columns: Columns
    unreadable: Columns

    @classmethod
    def joined(cls, records: Sequence[Self]) -> Self:
        """Return several records, at least one, as one."""
        tables = ([record.columns for record in records], [record.unreadable for record in records])
        return cls(*({name: np.concatenate([part[name] for part in parts]) for name in parts[0]} for parts in tables))

    def to_json(self) -> str:
        """Return a line of text that holds every digit."""
        tables = (self.columns, self.unreadable)
        return json.dumps([{name: (a.dtype.str, a.tolist()) for name, a in table.items()} for table in tables])

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return what :meth:`to_json` was called on."""
        tables = json.loads(text)
        return cls(*({name: np.array(values, kind) for name, (kind, values) in table.items()} for table in tables))


# What is to be scored and by what, small enough to be sent to another process, and the process that does it.


NOT_FINITE = "the model gave features that are not finite. Look at the image, and at the type the model computes in."

NO_SCORE = "the score is not finite: its features are enormous. Look at the image, and at how it is prepared."


@dataclass(frozen=True)
class Task:
    """Images to score with the guard of a model.

    Args:
        guard: Its file.
        model: Returns the model, in the process that scores; it is sent there, so it is a function of a module or a
            ``functools.partial`` of one.
        source: The images, prepared as for the model.
        fpr: The false-alarm rate, unless that of the file.
        device: Where the model runs, unless where it was made.
    """

    guard: Path
    model: Callable[[], nn.Module]
    source: ImageSource
    fpr: float | None = None
    device: str | None = None

    def calibrated(self) -> CalibratedDetector:
        """Return the calibrated of the guard, which needs no model."""
        calibrated = CalibratedDetector.load(self.guard)
        return calibrated if self.fpr is None else calibrated.at(self.fpr)

    def scorer(self) -> Scorer:
        """Load the model and its guard."""
        model = self.model()
        guard = Guard.load(self.guard, model if self.device is None else model.to(usable_device(self.device)))
        return Scorer(guard if self.fpr is None else guard.at(self.fpr), self.source)


class Scorer:
    """A guard that fills a table.

    Args:
        guard: Of a model.
        source: The images.
    """

    def __init__(self, guard: Guard, source: ImageSource) -> None:
        self.guard = guard
        self.source = source

    def __call__(self, pieces: Iterable[BatchResult]) -> Record:
        """Return what the guard says about the images of some batches, at least one."""
        return Record.joined([self._record(piece) for piece in pieces])

    def _record(self, piece: BatchResult) -> Record:
        seen = self._seen(piece)
        sound = seen.features.isfinite().all(dim=-1)
        verdict = self.guard.decide(Pass(*(part[sound] for part in seen)))
        counts = verdict.score.isfinite()
        readable = [row for row in piece.rows if row not in piece.unreadable]
        judged, unsound = _split(readable, sound)
        scored, scoreless = _split(judged, counts)
        reasons = piece.unreadable | dict.fromkeys(unsound, NOT_FINITE) | dict.fromkeys(scoreless, NO_SCORE)
        others = sorted(reasons)
        return Record(
            {"path": self._names(scored), **_columns(Verdict(*(part[counts] for part in verdict)))},
            {"path": self._names(others), "reason": _texts(reasons[row] for row in others)},
        )

    def _seen(self, piece: BatchResult) -> Pass:
        """Return features and logits of what could be read, perhaps of nothing."""
        if piece.batch is not None:
            try:
                return self.guard.run(piece.batch.first_tensor)
            except ValueError as error:
                first, last = (self.source.name(row) for row in (piece.rows[0], piece.rows[-1]))
                raise ValueError(f"{first} to {last}: {error}") from error
        head = self.guard.found.head
        return Pass(head.weight.new_empty(0, head.width), head.weight.new_empty(0, head.n_classes))

    def _names(self, rows: Iterable[int]) -> NDArray[np.str_]:
        return _texts(self.source.name(row) for row in rows)


def _columns(verdict: Verdict) -> Columns:
    """Return what a guard said as columns of a table."""
    predicted = verdict.logits.argmax(dim=-1)
    said = {"predicted": predicted, "score": verdict.score, "p_value": verdict.p_value, "is_ood": verdict.is_ood}
    return {name: values.cpu().numpy() for name, values in said.items()}


def _split(rows: Sequence[int], good: Tensor) -> tuple[list[int], list[int]]:
    """Return the rows that are good and those that are not."""
    pairs = list(zip(rows, good.tolist(), strict=True))
    return [row for row, kept in pairs if kept], [row for row, kept in pairs if not kept]


def _texts(texts: Iterable[str]) -> NDArray[np.str_]:
    """Return texts that any file can hold: bytes in the name of a file that are no UTF-8 become escapes."""
    return np.array([text.encode("utf-8", "backslashreplace").decode() for text in texts], dtype="U")


# What computes parts: a function, so that where it does is nobody else's affair.


Parts = dict[int, range]

"""By number, the rows of a part: whole batches."""

Engine = Callable[[Task, Parts], Iterator[tuple[int, str]]]

"""Yields each part once, in any order: its number, and its record as text."""


# Parts that are done, in a file that only grows: whatever stops a run, it goes on behind the last whole line.


JOURNAL_FORMAT, JOURNAL_VERSION = "flatfold-journal", 1

OPENING = 64  # bytes, in which a journal says what it is

AGAIN = "Choose another --out, or give --restart to begin again."


class Journal:
    """Lines ``<crc32> <json>``: the first says which job this is, each other one holds a part.

    A line that was cut off, or whose bytes have changed, ends the journal: what lies behind it is computed again. A
    part that comes twice counts once. While it is open, no other process can open it (:func:`open_exclusive`).

    Args:
        path: The file; made if it is not there.
        job: What tells this job from others, as values that JSON knows. A journal of another job is refused, unless no
            part of it was done.
        restart: Forget what is in it, of whatever job.

    Raises:
        ValueError: The file is that of another job, or no journal: then it is left as it is.
        BlockingIOError: Another process is writing it.
    """

    def __init__(self, path: Path, job: Mapping[str, object], restart: bool = False) -> None:
        self.path = path
        self._places: dict[int, tuple[int, int]] = {}  # of each part: where its line begins, and its length
        self._file = open_exclusive(path)
        try:
            self._recover({"format": JOURNAL_FORMAT, "version": JOURNAL_VERSION, "job": dict(job)}, restart)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            self._file.close()
        except OSError:  # what could not be written is tried once more, and has been told
            if kind is None:
                raise

    def __contains__(self, part: int) -> bool:
        return part in self._places

    def __len__(self) -> int:
        return len(self._places)

    def add(self, part: int, text: str) -> None:
        """Append what was found out about a part, as one line of JSON; a part that is there stays as it is."""
        if part in self._places:
            return
        line = _line(f"[{part}, {text}]")
        start = self._file.seek(0, os.SEEK_END)
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            error.filename = str(self.path)  # a write that fails does not know its file
            raise
        self._places[part] = start, len(line)

    def read(self, part: int) -> str:
        """Return what was added for a part."""
        start, length = self._places[part]
        self._file.seek(start)
        text = _checked(self._file.read(length))
        if text is None:
            raise ValueError(f"{self.path} was changed while it was in use. Run the same command again.")
        return text[text.index(",") + 2 : -1]

    def discard(self) -> None:
        """Remove the file: all of it is somewhere else now."""
        self.path.unlink(missing_ok=True)

    def _recover(self, head: dict[str, Any], restart: bool) -> None:
        """Take in all whole lines, and cut off what is behind them."""
        self._check_ours(_line(json.dumps(head)))
        lines = iter(()) if restart else self._whole_lines()
        first, there = next(lines, (b"", ""))
        end = len(first)
        for line, text in lines:
            if not self._places:  # a journal without a part may become that of any job
                self._check_head(json.loads(there), head)
            self._places.setdefault(int(text[1 : text.index(",")]), (end, len(line)))
            end += len(line)
        self._file.truncate(end if self._places else 0)
        if not self._places:
            self._file.seek(0)
            self._file.write(_line(json.dumps(head)))
            self._file.flush()

    def _whole_lines(self) -> Iterator[tuple[bytes, str]]:
        self._file.seek(0)
        for line in self._file:
            text = _checked(line)
            if text is None:
                return
            yield line, text

    def _check_ours(self, first: bytes) -> None:
        """Raise unless the file says that it is a journal, or is empty, or was cut off in its ``first`` line."""
        self._file.seek(0)
        opening = self._file.read(OPENING)
        if JOURNAL_FORMAT.encode() not in opening and not first.startswith(opening):
            raise ValueError(
                f"{self.path} is no journal of flatfold, and is not overwritten. Choose another --out, or remove it."
            )

    def _check_head(self, there: dict[str, Any], head: dict[str, Any]) -> None:
        if there == head:
            return
        was, now = there.get("job", {}), head["job"]
        other = [name for name in now if was.get(name) != now[name]] or ["version of flatfold"]
        raise ValueError(
            f"{self.path} belongs to a run that was stopped and had another {' and '.join(other)}. {AGAIN}"
        )


def _line(text: str) -> bytes:
    return f"{crc32(text.encode()):08x} {text}\n".encode()


def _checked(line: bytes) -> str | None:
    """Return the text of a line, or None if it is not whole."""
    if len(line) < 10 or line[-1:] != b"\n" or line[:9] != b"%08x " % crc32(line[9:-1]):
        return None
    return line[9:-1].decode()


# Parts one after the other in this process, with images read ahead by others.


def score_here(task: Task, parts: Parts, workers: int = 0) -> Iterator[tuple[int, str]]:
    """Yield each part as it is done: its number and its record as text.

    Args:
        task: What to score.
        parts: Those that are wanted: by number, the rows of each.
        workers: Processes that read images ahead; 0 reads in this one.
    """
    scorer, source = task.scorer(), task.source
    pieces = read_batches(source, source.batch_ranges(parts.values()), "scoring", workers)
    for number, rows in parts.items():
        yield number, scorer(islice(pieces, len(source.batch_ranges([rows])))).to_json()


# Which rows a process scores: its share of all batches, cut into parts.


PART_ROWS = 1024  # at most so many, and at least a batch, are computed again after a kill


@dataclass(frozen=True)
class Shard:
    """The share of one of several processes that score the same images.

    Shards consist of whole batches, in the order of the rows. So every image meets the same neighbours in its batch,
    and has the same score to the last digit, however many shards there are.

    Args:
        number: From 1.
        of: How many there are.
    """

    number: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise ValueError(
                f"shards are counted from 1, as in 1/{max(self.of, 1)}, got {self}. "
                "A scheduler that counts from 0 needs a 1 added."
            )

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Return the shard that is written ``i/n``."""
        if not (found := re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)):
            raise ValueError(f"a shard is written i/n, the i-th of n, such as 1/4, got {text!r}.")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def parts(self, rows: int, batch_size: int) -> list[range]:
        """Return the rows of each part of this shard.

        Args:
            rows: Of all shards together.
            batch_size: Rows in a batch; only the very last may be shorter.

        Example:
            >>> Shard(2, 2).parts(rows=10, batch_size=3)
            [range(6, 10)]
        """
        batches = -(-rows // batch_size)
        first, behind = (
            min(batches * number // self.of * batch_size, rows) for number in (self.number - 1, self.number)
        )
        size = max(1, PART_ROWS // batch_size) * batch_size
        return [range(start, min(start + size, behind, rows)) for start in range(first, behind, size)]


# What a run has come to, as a small file beside its table; those of several shards add up to that of one run.


SUMMARY_FORMAT, SUMMARY_VERSION = "flatfold-scores", 1

LONGEST = 200  # bytes of the name of a table: those beside it are longer, and most systems end at 255


@dataclass(frozen=True)
class Summary:
    """What a run, or one shard of it, has scored.

    Args:
        job: What tells the run from others: ``guard``, ``data`` and ``place`` (what the table calls the
            images) as sha256, ``fpr``, ``batch_size``, ``rows``.
        shard: Which share of it this is.
        unreadable: How many images could not be scored.
        monitor: Counts of all that could.
        table: The sha256 of the table.
    """

    job: Mapping[str, Any]
    shard: Shard
    unreadable: int
    monitor: Monitor
    table: str

    @property
    def scored(self) -> int:
        """How many images have a row in the table."""
        return self.monitor.seen

    def save(self, out: Path) -> None:
        """Write it beside the table ``out``."""
        values = {"shard": str(self.shard), "unreadable": self.unreadable, "table": self.table}
        content = {
            "format": SUMMARY_FORMAT,
            "version": SUMMARY_VERSION,
            "job": self.job,
            **values,
            "monitor": self.monitor.to_dict(),
        }
        write_atomically(summary_of(out), json.dumps(content, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, out: Path) -> Self:
        """Read what lies beside the table ``out``."""
        path = summary_of(out)
        if not path.is_file():
            raise FileNotFoundError(
                f"{out} has no summary {path.name} beside it: was it written by `flatfold score`, and to its end? "
                "Keep the two together."
            )
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(values, dict) or (values.get("format"), values.get("version")) != (
                SUMMARY_FORMAT,
                SUMMARY_VERSION,
            ):
                raise ValueError(f"its format must be {SUMMARY_FORMAT!r}, version {SUMMARY_VERSION}")
            job, unreadable, table = values["job"], values["unreadable"], values["table"]
            if not isinstance(job, dict) or type(unreadable) is not int or unreadable < 0 or type(table) is not str:
                raise ValueError("its values have the wrong types")
            return cls(job, Shard.parsed(values["shard"]), unreadable, Monitor.from_dict(values["monitor"]), table)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} cannot be used: {error}. Score the images again.") from error

    @classmethod
    def added(cls, shards: Sequence[Self], out: Path) -> Self:
        """Return what all shards of a run have come to, whose joined table is ``out``."""
        first, *others = shards
        monitor = sum((other.monitor for other in others), first.monitor)
        return cls(first.job, Shard(), sum(shard.unreadable for shard in shards), monitor, sha256_of(out))


def check_name(out: Path) -> None:
    """Raise if the name of a table is too long for those of the files beside it: to be asked before long work."""
    if (length := len(os.fsencode(out.name))) > LONGEST:
        raise ValueError(
            f"the name of a table has at most {LONGEST} bytes, because files beside it have longer ones, got {length}. "
            "Choose a shorter --out."
        )


def summary_of(out: Path) -> Path:
    """Return where the summary of a table lies."""
    return out.with_name(f"{out.name}.summary.json")


def unreadable_of(out: Path) -> Path:
    """Return where the list of images lies that could not be scored."""
    return out.with_name(f"{out.name}.unreadable.csv")


def journal_of(out: Path) -> Path:
    """Return where a run notes what is done, as long as its table is not."""
    return out.with_name(f"{out.name}.journal")


WHOLE = Shard()


def score_images(
    task: Task, out: Path | str, *, shard: Shard = WHOLE, engine: Engine = score_here, restart: bool = False
) -> Summary:
    """Write one row for each image: path, predicted class, score, p-value and decision.

    Memory does not grow with the number of images, but for their names. A run that was stopped, even killed, goes on
    where it was when it is called again; one that is complete is not done again.

    Args:
        task: What to score.
        out: A file ``*.csv``, ``*.jsonl`` or ``*.parquet``. Beside it lie ``OUT.summary.json``, and
            ``OUT.unreadable.csv`` if an image could not be scored; ``OUT.journal`` as long as it is not complete.
        shard: Which share of the images to score.
        engine: What computes parts; by default this process.
        restart: Forget what an earlier run has done.

    Returns:
        What it has come to.

    Raises:
        ValueError: An earlier run to this place was of another job, or the guard is not that of the model; or ``out``
            is no name for a table.
        BlockingIOError: Another process is writing to this place.
    """
    out = Path(out)
    check_out(out)
    check_name(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    calibrated = task.calibrated()
    job = _job(task, calibrated)
    if not restart and (done := _finished(out, job, shard)) is not None:
        return done
    parts = dict(enumerate(shard.parts(task.source.rows, task.source.batch_size)))
    with Journal(journal_of(out), job | {"shard": str(shard)}, restart) as journal:
        missing = {number: rows for number, rows in parts.items() if number not in journal}
        for number, text in engine(task, missing) if missing else ():
            journal.add(number, text)
        if lost := [number for number in parts if number not in journal]:
            raise RuntimeError(f"{len(lost)} of {len(parts)} parts did not come back; the others are kept.")
        summary = _written(
            out, job, shard, calibrated, lambda: (Record.from_json(journal.read(part)) for part in parts)
        )
        journal.discard()
    return summary


def _job(task: Task, calibrated: CalibratedDetector) -> dict[str, Any]:
    """Return what tells a run from others, whatever its shard."""
    return {
        "guard": sha256_of(task.guard),
        "fpr": calibrated.calibration.fpr,
        "data": task.source.fingerprint,
        "place": _place(task.source),
        "batch_size": task.source.batch_size,
        "rows": task.source.rows,
    }


def _place(source: ImageSource) -> str:
    """Return a sha256 of what a table calls some of the images, so that it does not name copies in several folders."""
    names = [source.name(row) for row in evenly_spaced(range(source.rows))]
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()


def _finished(out: Path, job: dict[str, Any], shard: Shard) -> Summary | None:
    """Return what an earlier run has come to, if it was this one and all that it wrote is still there."""
    if not out.is_file() or not summary_of(out).is_file() or journal_of(out).exists():
        return None
    try:
        summary = Summary.load(out)
    except ValueError:
        return None
    same = (summary.job, summary.shard, summary.table) == (job, shard, sha256_of(out))
    listed = not summary.unreadable or unreadable_of(out).is_file()
    return summary if same and listed else None


def _written(
    out: Path,
    job: dict[str, Any],
    shard: Shard,
    calibrated: CalibratedDetector,
    records: Callable[[], Iterator[Record]],
) -> Summary:
    """Write the table, the list of images that are not in it, and the summary, which says that both are complete."""
    sweep(out.parent, out.name)
    monitor, unreadable = Monitor.of(calibrated), 0

    def counted() -> Iterator[Columns]:
        nonlocal unreadable
        for record in records():
            monitor.count(*(record.columns[name] for name in ("predicted", "score", "is_ood")))
            unreadable += len(record.unreadable["path"])
            yield record.columns

    write_rows(chain([_no_rows(calibrated)], counted()), out)
    if unreadable:
        write_rows((record.unreadable for record in records()), unreadable_of(out))
    else:
        unreadable_of(out).unlink(missing_ok=True)
    summary = Summary(job, shard, unreadable, monitor, sha256_of(out))
    summary.save(out)
    return summary


def _no_rows(calibrated: CalibratedDetector) -> Columns:
    """Return a table of the right form that is empty: even if nothing could be read, its columns have names."""
    digits = calibrated.calibration.scores.numpy().dtype
    kinds: dict[str, DTypeLike] = {"predicted": np.int64, "score": digits, "p_value": digits, "is_ood": np.bool_}
    return {name: np.zeros(0, kind) for name, kind in ({"path": np.str_} | kinds).items()}


# Images of any number to a table of verdicts: in parts, which any process may compute and none computes twice.


__all__ = ["Shard", "Summary", "Task", "score_images"]
