"""Data sets with random access to their batches, and prefetching of these batches."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import islice
from typing import Any, ClassVar, NamedTuple, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..display.numbers import count
from ..errors import UnreadableImageError, UnreadableInputError
from ..io.cores import usable_cores
from ..io.progress import track
from .batch import Batch, split_batch
from .labels import class_indices, indices_or_masks
from .transform import InputSizes, Transform

Item = TypeVar("Item")
Result = TypeVar("Result")

SIZES = "height", "width"  # columns with the sizes of decoded images
MOST_READERS = 4  # threads by default: with more, they would wait for Python's lock


class Source(ABC):
    """``rows`` inputs in batches with random access: batch i starts at row ``i * batch_size``.

    Several threads may read at the same time.
    """

    rows: int
    labels: Tensor | None = None
    label_classes: int | None = None  # as in Batch
    masked = False  # whether batches have masks as labels, a class for every position

    def __init__(self, batch_size: int) -> None:
        check_batch_size(batch_size)
        self.batch_size = batch_size

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A sha256 that changes whenever the inputs or their preprocessing change, but not with the batch size."""

    @abstractmethod
    def read(self, rows: range) -> Any:
        """Return the batch that holds these rows."""

    @abstractmethod
    def subset(self, rows: NDArray[np.integer]) -> Source:
        """Return the given rows, in that order, as a source."""

    def attempt(self, rows: range) -> tuple[Any, dict[int, str]]:
        """Return the batch of the readable rows, None if there are none, and the error of each unreadable row."""
        return self.read(rows), {}

    def batch_ranges(self, ranges: Iterable[range]) -> list[range]:
        """Return the rows of each batch that contains a row of ``ranges``, in order."""
        size = self.batch_size
        numbers = {i for rows in ranges if rows for i in range(rows[0] // size, rows[-1] // size + 1)}
        return [range(i * size, min(i * size + size, self.rows)) for i in sorted(numbers)]

    def __repr__(self) -> str:
        classes = "no labels" if self.labels is None else f"{len(torch.unique(self.labels))} classes"
        classes = "masks" if self.masked else classes
        return f"{type(self).__name__}({count(self.rows, 'input')}, {classes}, batch_size={self.batch_size})"

    def __len__(self) -> int:
        return -(-self.rows // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        return (self.read(rows) for rows in self.batch_ranges([range(self.rows)]))


def check_batch_size(batch_size: int) -> None:
    """Validate ``batch_size``."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size must be a positive whole number, got {batch_size!r}. The default is 64.")


class NamedSource(Source):
    """Inputs with names, some of which may be unreadable, such as the images of a folder or the lines of a file."""

    noun: ClassVar[str]  # one input, in messages
    unreadable: ClassVar[type[UnreadableInputError]]
    columns: ClassVar[Mapping[str, type[np.generic]]] = {}  # what a batch has of each input for tables, and its type
    sizes: InputSizes | None = None  # prepared images of other sizes count as unreadable

    @abstractmethod
    def name(self, row: int) -> str:
        """Return the name of an input in tables, without reading it."""

    @abstractmethod
    def subset(self, rows: NDArray[np.integer]) -> NamedSource:
        """Return the given rows, in that order, as a source."""

    def read(self, rows: range) -> Any:
        """Return the batch that holds these rows; raise the error of the first one that is unreadable."""
        batch, unreadable = self.attempt(rows)
        for reason in unreadable.values():
            raise self.unreadable(reason)
        assert batch is not None
        return batch


class ImageSource(NamedSource):
    """Images prepared by one transform, as batches ``x`` of shape ``(n, c, h, w)``, or ``(x, y)`` with labels."""

    noun = "image"
    unreadable = UnreadableImageError
    dtype = torch.float32
    sized = False  # whether batches have the sizes of the decoded images, as columns height and width

    def __init__(self, transform: Transform, batch_size: int) -> None:
        super().__init__(batch_size)
        self.transform = transform

    @abstractmethod
    def picture(self, row: int) -> tuple[str, Image.Image | NDArray[np.uint8]]:
        """Return the name of an image in error messages, and its pixels."""

    @abstractmethod
    def _identify(self, digest: hashlib._Hash) -> None:
        """Hash what identifies these images into ``digest``."""

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the transform, the images and their labels."""
        digest = hashlib.sha256(json.dumps(self.transform.as_dict(), sort_keys=True).encode())
        self._identify(digest)
        digest.update(b"no labels" if self.labels is None else self.labels.numpy().tobytes())
        return digest.hexdigest()

    def mask(self, row: int, picture: Image.Image | NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return the class of each pixel of an image, prepared like its pixels; only ``masked`` sources have them."""
        raise NotImplementedError

    def subset(self, rows: NDArray[np.integer]) -> ImageSource:
        """Return the given images, in that order, as a source."""
        return ImageSubset(self, rows)

    def attempt(self, rows: range) -> tuple[Tensor | tuple[Tensor, Tensor] | Batch | None, dict[int, str]]:
        """Decode and transform the images; report any that fails or whose size differs from the most frequent one."""
        prepared, masks, decoded, unreadable = {}, {}, {}, {}
        for row in rows:
            try:
                name, picture = self.picture(row)
                try:
                    pixels = self.transform.pixels(picture)
                    if self.sizes is not None:
                        self.sizes.check(pixels, "the image")
                    if self.masked:
                        masks[row] = self.mask(row, picture)
                    prepared[row] = name, pixels
                    decoded[row] = picture.size[::-1] if isinstance(picture, Image.Image) else picture.shape[:2]
                except ValueError as error:  # too small for the crop, or 16 bits: other images may be fine
                    unreadable[row] = f"{name}: {error}"
            except UnreadableImageError as error:
                unreadable[row] = str(error)
        unreadable |= _odd_sizes(prepared)
        kept = {row: pixels for row, (_, pixels) in prepared.items() if row not in unreadable}
        unreadable = dict(sorted(unreadable.items()))
        if not kept:
            return None, unreadable
        height, width, channels = next(iter(kept.values())).shape
        values = np.empty((len(kept), channels, height, width), np.float32)
        for out, pixels in zip(values, kept.values(), strict=True):
            self.transform.normalise(pixels, out)
        x = torch.from_numpy(values).to(self.dtype)
        if self.sized:
            sizes = torch.tensor([decoded[row] for row in kept]).T
            return Batch((x,), {}, None, len(x), columns=dict(zip(SIZES, sizes, strict=True))), unreadable
        if self.masked:
            return (x, torch.from_numpy(np.stack([masks[row] for row in kept]).astype(np.int64))), unreadable
        return x if self.labels is None else (x, self.labels[list(kept)]), unreadable


class ImageSubset(ImageSource):
    """Some rows of another source; its fingerprint changes with any image of the source."""

    def __init__(self, source: ImageSource, rows: NDArray[np.integer]) -> None:
        super().__init__(source.transform, source.batch_size)
        self.source, self.rows, self.dtype = source, len(rows), source.dtype
        self.chosen = rows.astype(np.int64)
        self.labels = None if source.labels is None else source.labels[torch.from_numpy(self.chosen)]
        self.label_classes, self.masked, self.sized = source.label_classes, source.masked, source.sized

    def mask(self, row: int, picture: Image.Image | NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return the mask of an image of the source."""
        return self.source.mask(int(self.chosen[row]), picture)

    def name(self, row: int) -> str:
        """Return the name of an image in the source."""
        return self.source.name(int(self.chosen[row]))

    def picture(self, row: int) -> tuple[str, Image.Image | NDArray[np.uint8]]:
        """Return the name of an image in error messages of the source, and its pixels."""
        return self.source.picture(int(self.chosen[row]))

    def _identify(self, digest: hashlib._Hash) -> None:
        digest.update(self.source.fingerprint.encode())
        digest.update(self.chosen.astype("<i8").tobytes())


@overload
def take_subset(
    source: ImageSource, count: int | None, seed: int | None = ..., balanced: bool = ...
) -> ImageSource: ...
@overload
def take_subset(
    source: NamedSource, count: int | None, seed: int | None = ..., balanced: bool = ...
) -> NamedSource: ...
@overload
def take_subset(source: Source, count: int | None, seed: int | None = ..., balanced: bool = ...) -> Source: ...
def take_subset(source: Source, count: int | None, seed: int | None = None, balanced: bool = False) -> Source:
    """Return at most ``count`` rows of a source, in ascending order; all of them with None.

    Without a seed they are evenly spaced. A seed draws one row from each of ``count`` equal segments, which preserves
    the class proportions, or, if ``balanced``, the same number from each class as far as possible.
    """
    if count is None or source.rows <= count:
        return source
    edges = np.arange(count + 1) * source.rows // count
    if seed is None:
        return source.subset(edges[:-1])
    rng = np.random.default_rng(seed)
    if not balanced:
        return source.subset(rng.integers(edges[:-1], edges[1:]))
    order = rng.permutation(source.rows)
    labels = np.zeros(source.rows, np.int64) if source.labels is None else source.labels.numpy()
    rank = np.empty(source.rows, np.int64)  # of each row within its class
    for label in np.unique(labels):
        members = order[labels[order] == label]
        rank[members] = np.arange(len(members))
    return source.subset(np.sort(order[np.argsort(rank[order], kind="stable")[:count]]))


def _odd_sizes(prepared: dict[int, tuple[str, NDArray[np.uint8]]]) -> dict[int, str]:
    """Return an error for each image whose size differs from the most frequent one of the batch."""
    sizes = {row: pixels.shape[:2] for row, (_, pixels) in prepared.items()}
    count = Counter(sizes.values())
    usual = max(sizes, key=lambda row: count[sizes[row]], default=None)  # ties: the first
    return {
        row: f"the images of a batch must have one size, got (h, w) = {sizes[usual]} for {prepared[usual][0]} and "
        f"{size} for {prepared[row][0]}. Set resize and crop in the transform, or read one image at a time, with "
        "batch_size=1."
        for row, size in sizes.items()
        if usual is not None and size != sizes[usual]
    }


class BatchResult(NamedTuple):
    """A range of rows: the batch of the readable ones, and the error of each unreadable one."""

    rows: range
    batch: Batch | None
    unreadable: dict[int, str]


def read_batches(
    source: Source,
    ranges: list[range] | None = None,
    title: str | None = None,
    workers: int | None = None,
    masks: bool = False,
) -> Iterator[BatchResult]:
    """Yield the batches of a source, all or those of ``ranges``; a ``title`` shows a progress bar.

    ``workers`` threads prefetch, by default one per core, up to four; with 0 each batch is read when it is requested.
    Threads, because decoders and the network release Python's lock, and processes would have to copy every batch.
    If a GPU is in use, batches are in page-locked memory. With ``masks``, labels may have a class for every position.
    """
    ranges = source.batch_ranges([range(source.rows)]) if ranges is None else ranges
    threads = min(MOST_READERS, usable_cores()) if workers is None else workers
    read, read_labels = partial(_attempt, source), indices_or_masks if masks or source.masked else class_indices
    results = map_ahead(read, ranges, threads) if threads and len(ranges) > 1 else map(read, ranges)
    pairs = zip(ranges, results, strict=True)
    for rows, (raw, unreadable) in pairs if title is None else track(pairs, title, len(ranges)):
        batch = None if raw is None else split_batch(raw, read_labels)
        yield BatchResult(rows, batch, unreadable)


def map_ahead(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Yield the result for each item, in order, while threads compute at most ``threads + 1`` results ahead."""
    pool = ThreadPoolExecutor(threads, "flatfold-reader")
    remaining = iter(items)
    waiting = deque(pool.submit(function, item) for item in islice(remaining, threads + 1))
    try:
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(function, item) for item in islice(remaining, 1))
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _attempt(source: Source, rows: range) -> tuple[Any, dict[int, str]]:
    raw, unreadable = source.attempt(rows)
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return _pinned(raw) if in_use else raw, unreadable


def _pinned(raw: Any) -> Any:
    """Return a batch with tensors in page-locked memory, which a GPU can copy while it computes."""
    if isinstance(raw, Tensor):
        return raw.pin_memory()
    if isinstance(raw, Batch):
        return raw.with_each(_pinned)
    return type(raw)(map(_pinned, raw)) if isinstance(raw, (tuple, list)) else raw
