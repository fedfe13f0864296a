"""Feature banks on disk: a part store whose parts hold the features, and labels, of ``shard_rows`` inputs each."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import torch
from torch import Tensor

from ..core.bank import FeatureBank
from ..errors import DamagedBankError, DamagedFileError
from ..io.artifacts import Blocks
from ..io.store import MANIFEST, Manifest, PartStore, read_manifest, read_part, remove_others, replace_parts

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "float64": torch.float64}
# Largest relative difference between two runs of one network. Another batch size or device changes the order of sums;
# TF32, which convolutions use on CUDA by default, has 11 bits, and errors add up over some fifty layers.
TOLERANCE = 1e-2
_HALF_TOLERANCE = {torch.bfloat16: 5e-2}  # 8 bits
_ROUNDING = 1e-5  # relative to a score: if all are nearly equal, their differences are noise
_ELSEWHERE = "Choose another directory, or delete this one to start again."
_AGAIN = "Call extract(..., out=...) or save_bank again, or copy the bank again."

BYTES_JOINED = 2**30  # features of more shards than one are joined in memory up to this size, beyond it on disk
_ALL_ROWS = 2**52  # in memory there is a single shard
_Count = Annotated[int, msgspec.Meta(gt=0, lt=2**53)]


class Shard(NamedTuple):
    """One part of a bank: the readable rows, and the error of each unreadable row."""

    features: Tensor
    labels: Tensor | None
    unreadable: dict[int, str]

    def tensors(self) -> dict[str, Tensor]:
        """Return the features, and the labels if there are any, by name."""
        return {"features": self.features} | ({} if self.labels is None else {"labels": self.labels})


class _Layout(msgspec.Struct):
    """Shard layout from the key and info of a bank; ``rows`` is None until the end of the data is reached."""

    width: Annotated[str, msgspec.Meta(pattern="^[1-9][0-9]{0,15}$")]
    dtype: Literal["float32", "float64"]
    labels: Literal["yes", "no"]
    shard_rows: _Count
    rows: _Count | None = None

    def covered(self, index: int) -> range:
        """Return the rows of a shard, as far as they are known."""
        stop = (index + 1) * self.shard_rows
        return range(index * self.shard_rows, stop if self.rows is None else min(stop, self.rows))


def save_bank(bank: FeatureBank, path: Path | str) -> None:
    """Write a bank to the directory ``path``, as one file so that ``load_bank`` can map it into memory.

    An existing bank is replaced. If interrupted, the directory holds the old bank, the new one, or
    one that ``load_bank`` rejects; never a mixture.
    """
    form = _form(bank.width, bank.features.dtype, bank.labels is not None)
    manifest = Manifest(form, {"shard_rows": len(bank), "rows": len(bank)})
    replace_parts(
        Path(path), manifest, shard_name(0), Shard(bank.features, bank.labels, {}).tensors(), {"unreadable": {}}
    )


def load_bank(path: Path | str, verify: bool = True) -> FeatureBank:
    """Read a bank from the directory ``path``.

    A bank of one file (``save_bank``, or ``extract`` with ``out=`` for more than a gigabyte) is mapped into memory and
    read on demand, so it may be larger than the memory; writing to its tensors does not change the file. Several files
    (``extract`` with ``out=``) are joined, which takes one copy.

    Args:
        path: The directory.
        verify: Verify the checksum of every file first, which reads it once.

    Raises:
        FileNotFoundError: There is no such directory.
        DamagedBankError: A file is missing, unfinished, or was changed since it was written.
    """
    shards = list(read_shards(path, verify))
    features, labels, _ = shards[0] if len(shards) == 1 else _join(shards)
    try:
        return FeatureBank(features, labels)
    except (TypeError, ValueError) as error:
        raise DamagedBankError(f"the bank in {path} holds invalid values: {error}") from error


def read_shards(path: Path | str, verify: bool) -> Iterator[Shard]:
    """Yield the shards of a finished bank in order, mapped into memory."""
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"no bank at {folder}: no such directory. Check the path.")
    with _bank_errors(folder):
        manifest = read_manifest(folder)
        layout = _convert(manifest.key | manifest.info, _Layout)
    if layout.rows is None:
        raise DamagedBankError(f"the bank in {folder} is not finished. Call extract(..., out=...) again to resume it.")
    for index in range(-(-layout.rows // layout.shard_rows)):
        yield _read_shard(folder, index, manifest.key, layout, verify)


class BankWriter:
    """Collect the rows of a run in memory or, with a ``path``, in shards of fixed size on disk, and resume there.

    Intact shards of an earlier run with the same key are kept, and so is its ``shard_rows``; then nothing is written
    before the network, which computes in ``computed_in``, has reproduced stored rows of one of them; ``scores`` are
    compared relative to their spread. ``first_stored`` is the first row stored by an earlier run; ``unreadable`` maps
    the unreadable rows, including those of earlier runs, to their errors.
    """

    def __init__(
        self,
        path: Path | str | None,
        key: Mapping[str, str],
        *,
        width: int,
        labels: bool,
        shard_rows: int,
        dtype: torch.dtype = torch.float32,
        computed_in: torch.dtype = torch.float32,
        scores: bool = False,
    ) -> None:
        if isinstance(shard_rows, bool) or not isinstance(shard_rows, int) or shard_rows < 1:
            raise ValueError(f"shard_rows must be a positive whole number, got {shard_rows!r}. 4096 is the default.")
        self._path, form = path, _form(width, dtype, labels)
        self._layout: _Layout = _convert({**form, "shard_rows": _ALL_ROWS}, _Layout)
        self._store: PartStore | None = None
        self._pending: dict[int, dict[int, Shard]] = {}  # by their first row: they may arrive in any order
        self._covered: Counter[int] = Counter()  # how many rows of each shard are pending
        self._finished: set[int] = set()  # shards that are on disk
        self.unreadable: dict[int, str] = {}
        self._tolerance = network_tolerance(computed_in)
        self._scores = scores
        if path is not None:
            self._open_store(Path(path), {**key, **form}, shard_rows)
        self.first_stored = next((row for index in sorted(self._finished) for row in self._stored_rows(index)), None)
        self.confirmed = self.first_stored is None

    def _open_store(self, folder: Path, key: dict[str, str], shard_rows: int) -> None:
        with _bank_errors(folder):
            if (folder / MANIFEST).exists() and "data" not in read_manifest(folder).key:
                raise ValueError(f"{folder} holds a bank that extract did not write and cannot continue. {_ELSEWHERE}")
            self._store = PartStore(folder, key, {"shard_rows": shard_rows, "rows": None})
            self._layout = _convert(key | self._store.info, _Layout)
        for index in [int(name) for name in self._store if name.isdecimal()]:
            if self._layout.covered(index):
                with suppress(DamagedBankError):  # from a run with another layout, whose manifest was lost
                    self.unreadable |= _read_shard(folder, index, key, self._layout, verify=False).unreadable
                    self._finished.add(index)
        if self._finished and (self.rows is None or self.missing(0, self.rows)):
            log.info("resuming the bank in %s: %d shards are stored", folder, len(self._finished))

    @property
    def rows(self) -> int | None:
        """Number of rows of the data, None until its end is reached."""
        return self._layout.rows

    @property
    def shard_rows(self) -> int:
        """Number of rows in a shard."""
        return self._layout.shard_rows

    def missing(self, start: int, stop: int) -> list[range]:
        """Return the rows between ``start`` and ``stop`` that no finished shard contains."""
        size = self._layout.shard_rows
        indices = range(start // size, -(-stop // size)) if start < stop else ()
        return [range(max(start, i * size), min(stop, i * size + size)) for i in indices if i not in self._finished]

    def confirm(self, rows: Sequence[int], features: Tensor) -> None:
        """Compare readable rows with the features that an earlier run stored for them, if any."""
        for index in sorted({row // self._layout.shard_rows for row in rows} & self._finished):
            place_of = {row: place for place, row in enumerate(self._stored_rows(index))}
            places = [place for place, row in enumerate(rows) if row in place_of]
            if places:
                assert self._store is not None
                stored = _read_shard(self._store.folder, index, self._store.key, self._layout, verify=False).features
                self._check_same_network(stored, stored[[place_of[rows[i]] for i in places]], features.cpu()[places])
                self.confirmed = True
                return

    def add(self, rows: range, features: Tensor, labels: Tensor | None, unreadable: Mapping[int, str]) -> None:
        """Add the features of the readable rows, and write complete shards.

        Rows of finished shards are skipped.
        """
        self._check_rows(self.rows is None or rows.stop <= self.rows, f"at least {rows.stop}")
        read = [row for row in rows if row not in unreadable]
        if not self.confirmed:
            self.confirm(read, features)
        for part in self.missing(rows.start, rows.stop):
            mine = slice(bisect_left(read, part.start), bisect_left(read, part.stop))
            reasons = {row: reason for row, reason in unreadable.items() if row in part}
            shard = Shard(features[mine], None if labels is None else labels[mine], reasons)
            index = part.start // self._layout.shard_rows
            self._pending.setdefault(index, {})[part.start] = shard
            self._covered[index] += len(part)
            self.unreadable = dict(sorted((self.unreadable | reasons).items())) if reasons else self.unreadable
        self._write_pending()

    def end(self, rows: int) -> None:
        """Record that the data has ``rows`` rows, and write the last shard, which may be shorter."""
        if self.rows is None:
            self._check_rows(all(self._layout.covered(index).stop <= rows for index in self._finished), str(rows))
            self._layout.rows = rows
            if self._store is not None:
                self._store.update(rows=rows)
        self._check_rows(self.rows == rows, str(rows))
        self.confirmed = True  # or no stored row is readable any more
        self._write_pending()

    def finish(self) -> FeatureBank:
        """Return the bank of all rows; on disk, shards of more than a gigabyte are replaced by one file first."""
        if self._store is not None:
            self._merge_shards(self._store)
            return load_bank(self._store.folder, verify=False)
        features, labels, _ = _join_sorted(self._pending[0])
        return FeatureBank(features, labels)

    def close(self) -> None:
        """Release the directory, so that other processes can write to it."""
        if self._store is not None:
            self._store.close()

    def _merge_shards(self, store: PartStore) -> None:
        """Replace the shards of a large bank by one, which can be mapped into memory without a copy.

        Stopped at any moment, the directory holds all shards, the bank, or, for a moment, the file of the bank in the
        place of the first shard, which the next run then computes again.
        """
        shards = list(read_shards(store.folder, verify=False))
        if len(shards) == 1:
            remove_others(store.folder, shard_name(0))  # left by a run that was stopped below
        if len(shards) == 1 or sum(shard.features.nbytes for shard in shards) <= BYTES_JOINED:
            return
        tensors: dict[str, Blocks] = {"features": [shard.features for shard in shards]}
        if shards[0].labels is not None:
            tensors["labels"] = [shard.labels for shard in shards if shard.labels is not None]
        manifest = Manifest(store.key, {**store.info, "shard_rows": self.rows})
        unreadable = {row: reason for shard in shards for row, reason in shard.unreadable.items()}
        store.close()
        try:
            replace_parts(store.folder, manifest, shard_name(0), tensors, {"unreadable": unreadable})
        except OSError as error:  # no space, or a directory that this user may only read
            log.warning("the shards of %s stay as they are and are joined in memory: %s", store.folder, error)

    def _stored_rows(self, index: int) -> list[int]:
        return [row for row in self._layout.covered(index) if row not in self.unreadable]

    def _write_pending(self) -> None:
        if self._store is None or not self.confirmed:
            return
        for index in list(self._pending):
            if self._covered[index] == len(self._layout.covered(index)):
                whole = _join_sorted(self._pending.pop(index))
                self._store.write(shard_name(index), whole.tensors(), {"unreadable": whole.unreadable})
                self._finished.add(index)

    def _check_same_network(self, stored: Tensor, there: Tensor, now: Tensor) -> None:
        """Raise if computed and stored features differ: an activation or a scale of the network may have changed."""
        sizes = torch.maximum(there.norm(dim=-1), now.norm(dim=-1))
        differences = (now - there).norm(dim=-1)
        most = TOLERANCE * stored.std(correction=0) + _ROUNDING * sizes if self._scores else self._tolerance * sizes
        wrong = ~(differences <= most)  # NaN is wrong too
        if wrong.any():
            raise ValueError(
                f"{self._path} holds {'scores' if self._scores else 'features'} of another network with the same "
                f"weights: for one input they differ by {float(differences[wrong][0]):.3g}, at a norm of "
                f"{float(sizes[wrong][0]):.3g}. Was a layer without weights replaced, are these other inputs under "
                f"the same key, or is the network random? {_ELSEWHERE}"
            )

    def _check_rows(self, fits: bool, now: str) -> None:
        before = self.rows or f"at least {(max(self._finished, default=-1) + 1) * self._layout.shard_rows}"
        if not fits:
            raise ValueError(
                f"the bank in {self._path} was started with data of {before} rows, got {now}. "
                f"The same key must mean the same data in the same order. {_ELSEWHERE}"
            )


def network_tolerance(computed_in: torch.dtype) -> float:
    """Return the largest relative difference allowed between two runs of one network."""
    return _HALF_TOLERANCE.get(computed_in, TOLERANCE)


def shard_name(index: int) -> str:
    """Return the name of the part that holds a shard."""
    return f"{index:05d}"


def _form(width: int, dtype: torch.dtype, labels: bool) -> dict[str, str]:
    return {"width": str(width), "dtype": str(dtype).removeprefix("torch."), "labels": "yes" if labels else "no"}


def _read_shard(folder: Path, index: int, key: Mapping[str, str], layout: _Layout, verify: bool) -> Shard:
    """Return a shard, mapped into memory."""
    name = shard_name(index)
    with _bank_errors(folder, name):
        info, tensors = read_part(folder, name, key, verify)
        unreadable: dict[int, str] = _convert(info.get("unreadable"), dict[int, str])
        rows = len(layout.covered(index)) - len(unreadable)
        wanted: dict[str, Any] = {"features": ((rows, int(layout.width)), DTYPES[layout.dtype])}
        if layout.labels == "yes":
            wanted["labels"] = ((rows,), torch.int64)
        if {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()} != wanted:
            raise DamagedFileError("its tensors do not match the manifest")
        return Shard(tensors["features"], tensors.get("labels"), unreadable)


def _join_sorted(shards: Mapping[int, Shard]) -> Shard:
    return _join([shards[start] for start in sorted(shards)])


def _join(shards: Sequence[Shard]) -> Shard:
    labels = [shard.labels for shard in shards if shard.labels is not None]
    features = torch.cat([shard.features for shard in shards])
    unreadable = {row: reason for shard in shards for row, reason in shard.unreadable.items()}
    return Shard(features, torch.cat(labels) if labels else None, unreadable)


def _convert(value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise DamagedFileError(f"it does not belong to a bank: {error}") from error


@contextmanager
def _bank_errors(folder: Path, name: str = "") -> Iterator[None]:
    """Convert errors of a damaged store to ``DamagedBankError``."""
    try:
        yield
    except FileNotFoundError as error:
        raise DamagedBankError(
            f"{folder} is not a bank: it has no {MANIFEST}. Check the path, or extract again."
        ) from error
    except DamagedFileError as error:
        what = f"{folder / name}.safetensors is damaged" if name else f"the bank in {folder} is damaged"
        raise DamagedBankError(f"{what}: {str(error).rstrip('.')}. {_AGAIN}") from error
