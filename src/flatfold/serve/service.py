"""Request handling: decoding, batching, the shared memory limit, and metrics."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from .. import __version__
from ..data.decoding import is_image
from ..scoring.calibrated import CalibratedDetector
from ..scoring.guard import Guard
from ..scoring.monitor import Monitor
from .requests import (
    FEATURES,
    FORM,
    JSON,
    File,
    decode_features,
    decode_image,
    decode_texts,
    encode_text,
    limit_body,
    read_form,
)
from .scorer import Asked, Input, Row, Scorer
from .settings import Settings, too_large, unavailable

ROUTES = frozenset(
    {"/", "/v1/score", "/score", "/v1/stream", "/stream", "/healthz", "/metrics", "/docs", "/openapi.json"}
)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MEMORY = 2**30  # bytes of all bodies and prepared inputs; decoders and the model need more on top
MOST_TOKENS = 8  # texts of a request whose words are tried one by one
DECODERS = 2  # threads that decode images; each may need memory for the largest image allowed
Score = Callable[[Sequence[Input]], Sequence[Row | Exception]]
Waiting = tuple[Input, asyncio.Future[Row]]
_UNSTATED = ("", "application/x-www-form-urlencoded")  # the second is what curl --data-binary sends by itself
_FEATURES_HINT = f"features as {FEATURES} (little-endian float32)"


class Service:
    """A guard with its queue, threads, counters and limits."""

    def __init__(self, guard: Guard | CalibratedDetector, settings: Settings) -> None:
        self.settings = settings
        own = type(guard.model).__name__ if isinstance(guard, Guard) else None
        self._model = settings.model or own
        self.scorer = Scorer(guard, settings.names)
        fpr = float(self.scorer.calibrated.calibration.fpr)
        self.metrics = Metrics(self.scorer.monitor, self.scorer.method, fpr, lambda: self.batcher.waiting)
        sizes = self.scorer.sizes
        largest = None if sizes is None else prod(sizes.most)
        limits = (settings.max_batch, settings.max_waiting)
        self.batcher = Batcher(self.scorer, *limits, self.metrics.batches.observe, largest)
        self.memory = MemoryLimit(max(MEMORY, 4 * settings.max_body))
        self.closing = False  # whether the service is shutting down
        self._decoders = ThreadPoolExecutor(DECODERS, "flatfold-images")

    async def score(self, request: Request, asked: Asked) -> list[Row]:
        """Return one row for each input of a request."""
        if (asked.mask or asked.overlay) and not (self.scorer.dense and self.scorer.transform is not None):
            raise HTTPException(422, "this service has one decision per input, and so no masks. Leave out the query.")
        kind = self._media_type(request)
        if asked.tokens and kind != JSON:
            raise HTTPException(422, "tokens=true names the words of texts. Leave it out for other inputs.")
        with self.memory.reserve() as take:
            files = await self._read(limit_body(request, self.settings.max_body, take), kind)
            if kind in _UNSTATED:
                kind = self._check_type("image/unstated" if is_image(files[0].content) else kind)
            return await _cancel_on_disconnect(request, self._answer(kind, files, asked, take))

    def close(self, wait: bool = False) -> None:
        """Stop all threads after their current work, and optionally wait for them."""
        self.batcher.close(wait)
        self._decoders.shutdown(wait, cancel_futures=True)

    def ends_within(self, seconds: float) -> bool:
        """Close, and return whether all threads end within this time; Python itself would wait for them forever."""
        closing = threading.Thread(target=self.close, args=(True,), daemon=True)
        closing.start()
        closing.join(seconds)
        return not closing.is_alive()

    def facts(self) -> dict[str, Any]:
        """Return the settings of the guard and the current counts, with the names of guard and model."""
        return {"guard": self.settings.guard or None, "model": self._model} | self.scorer.facts()

    def _media_type(self, request: Request) -> str:
        """Return the media type that a request states; its first bytes will tell whether it is an unstated image."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        return kind if kind in _UNSTATED else self._check_type(kind)

    def _check_type(self, kind: str) -> str:
        if kind == FEATURES and self.scorer.dense:
            raise HTTPException(415, "this service has decisions at every position of an input. Send the input itself.")
        if kind == FEATURES:
            return kind
        if kind == JSON and self.scorer.tokeniser is not None:
            return kind
        if self.scorer.transform is None and self.scorer.tokeniser is not None:
            raise HTTPException(
                415, f'unsupported Content-Type. Send texts as {JSON}, {{"texts": ["..."]}}, or {_FEATURES_HINT}.'
            )
        if not kind.startswith("image/") and kind != FORM:
            raise HTTPException(
                415, f"unsupported Content-Type. Send an image (image/png, ...), images as {FORM}, or {_FEATURES_HINT}."
            )
        if self.scorer.transform is None:
            raise HTTPException(415, f"this service has no model and does not accept images. Send {_FEATURES_HINT}.")
        return kind

    async def _read(self, request: Request, kind: str) -> list[File]:
        try:
            async with asyncio.timeout(self.settings.timeout):
                if kind == FORM:
                    return await read_form(request, min(self.settings.max_images, self.settings.max_waiting))
                if body := await request.body():
                    return [File(None, body)]
                raise HTTPException(400, "the request body is empty. Send an image, texts or features.")
        except TimeoutError:
            message = f"the request did not arrive within {self.settings.timeout:g} seconds. Send less at once."
            raise HTTPException(408, message, {"Connection": "close"}) from None

    async def _answer(self, kind: str, files: list[File], asked: Asked, take: Callable[[int], None]) -> list[Row]:
        try:
            async with asyncio.timeout(self.settings.timeout):
                rows = await self.batcher.rows(await self._decode(kind, files, asked, take))
        except TimeoutError:
            raise unavailable(f"no answer within {self.settings.timeout:g} seconds, the service is busy") from None
        return rows if kind != FORM else [{"name": file.name} | row for file, row in zip(files, rows, strict=True)]

    async def _decode(self, kind: str, files: list[File], asked: Asked, take: Callable[[int], None]) -> list[Input]:
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self._decoders)
        if kind == FEATURES:
            width, max_rows = self.scorer.width, self.settings.max_waiting
            features = await in_thread(decode_features, files[0].content, width, max_rows)
            return [Input("features", row, f"row {i} of the features", asked) for i, row in enumerate(features)]
        inputs: list[Input] = []
        if kind == JSON:
            tokeniser = self.scorer.tokeniser
            assert tokeniser is not None  # as _media_type has checked
            most = min(self.settings.max_texts, MOST_TOKENS) if asked.tokens else self.settings.max_texts
            limits = (most, self.settings.max_characters)
            for i, text in enumerate(await in_thread(decode_texts, files[0].content, *limits)):
                arguments, values, truncated = await in_thread(encode_text, text, f"text {i}", tokeniser)
                take(values.nbytes)
                inputs.append(Input("text", values, f"text {i}", asked, arguments, truncated))
            return inputs
        transform = self.scorer.transform
        sizes = None if self.settings.allow_sizes else self.scorer.sizes
        assert transform is not None  # as _media_type has checked
        for i, (name, content) in enumerate(files):  # one by one, to reserve memory before decoding the next
            label = "the body" if name is None else f"the image {name!r}" if name else f"image {i}"
            values = await in_thread(decode_image, content, label, transform, self.settings.max_pixels, sizes)
            take(values.nbytes)
            inputs.append(Input("image", values, label, asked))
        return inputs


async def _cancel_on_disconnect(request: Request, rows: Awaitable[list[Row]]) -> list[Row]:
    """Await rows, and cancel them when the client closes the connection."""

    async def wait_for_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    work, disconnect = asyncio.ensure_future(rows), asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait({work, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        work.cancel()
        disconnect.cancel()
        await asyncio.gather(work, disconnect, return_exceptions=True)


class MemoryLimit:
    """Limit on the memory of all running requests; used only by the event loop's thread."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @contextmanager
    def reserve(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves bytes for one request; they are released on exit."""
        held = 0

        def take(size: int) -> None:
            nonlocal held
            if held + size > self.limit:
                limit = f"{self.limit // 10**6} MB of memory per request"
                raise too_large("the prepared inputs are too large", limit, "Send fewer inputs or smaller images")
            if self.used + size > self.limit:
                raise unavailable("the memory reserved for requests is in use")
            self.used += size
            held += size

        try:
            yield take
        finally:
            self.used -= held


class Batcher:
    """A queue of inputs for the thread that runs the model.

    No input waits for a timer: an input that arrives while the thread is idle is scored alone, and inputs that arrive
    in the meantime form the next batch. A batch has at most the pixels of ``max_batch`` images of ``largest`` numbers,
    or the tokens of as many texts, the largest that the guard was calibrated on. Inputs of cancelled requests are
    removed from the queue. Everything except ``score`` runs in the event loop's thread.
    """

    def __init__(
        self,
        score: Score,
        max_batch: int,
        max_waiting: int,
        count_batch: Callable[[int], object],
        largest: int | None = None,
    ) -> None:
        self._score, self._max_batch, self._max_waiting, self._count_batch = score, max_batch, max_waiting, count_batch
        self._largest = largest
        self._queue: list[Waiting] = []
        self._thread = ThreadPoolExecutor(1, "flatfold-model")
        self._worker: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Number of inputs in the queue."""
        return len(self._queue)

    async def rows(self, inputs: Sequence[Input]) -> list[Row]:
        """Return a row for each input, or raise the error of one of them."""
        self._queue = [(entry, row) for entry, row in self._queue if not row.done()]  # remove cancelled inputs
        if len(self._queue) + len(inputs) > self._max_waiting:
            raise unavailable(f"the queue of {self._max_waiting} inputs is full")
        loop = asyncio.get_running_loop()
        rows: list[asyncio.Future[Row]] = [loop.create_future() for _ in inputs]
        self._queue += zip(inputs, rows, strict=True)
        if self._worker is None or self._worker.done():
            self._worker = loop.create_task(self._work())
        try:
            return await asyncio.gather(*rows)
        finally:
            for row in rows:
                row.cancel()

    def close(self, wait: bool = False) -> None:
        """Stop the thread after its current batch, and optionally wait for it."""
        self._thread.shutdown(wait, cancel_futures=True)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := self._next_batch():
            self._count_batch(len(batch))
            outcomes: Iterable[Row | Exception]
            try:
                outcomes = await loop.run_in_executor(self._thread, self._score, [entry for entry, _ in batch])
            except Exception as error:
                outcomes = [error] * len(batch)
            for (_, row), outcome in zip(batch, outcomes, strict=True):
                if row.done():
                    continue  # cancelled in the meantime
                if isinstance(outcome, Exception):
                    row.set_exception(outcome)
                else:
                    row.set_result(outcome)

    def _most_rows(self, entry: Input) -> int:
        if self._largest is None or entry.kind == "features":
            return self._max_batch
        return min(self._max_batch, self._max_batch * self._largest // entry.size)

    def _next_batch(self) -> list[Waiting]:
        """Pop the first input of the queue, and later ones of the same kind and shape."""
        batch: list[Waiting] = []
        rest: list[Waiting] = []
        for entry, row in self._queue:
            if row.done():
                continue
            fits = not batch or (len(batch) < self._most_rows(entry) and entry.group == batch[0][0].group)
            (batch if fits else rest).append((entry, row))
        self._queue = rest
        return batch


class Metrics(Collector):
    """Counters of one service, in the text format of Prometheus."""

    def __init__(self, monitor: Callable[[], Monitor], method: str, fpr: float, waiting: Callable[[], int]) -> None:
        self._monitor, self._waiting = monitor, waiting
        registry = self._registry = CollectorRegistry()
        self._requests = Counter("flatfold_requests", "Requests answered.", ["route", "status"], registry=registry)
        self._refused = Counter("flatfold_refused", "Answers with a status of 400 or more.", registry=registry)
        self._seconds = Histogram("flatfold_request_seconds", "From request to answer.", ["route"], registry=registry)
        self.batches = Histogram("flatfold_batch_size", "Inputs per batch.", buckets=BATCH_SIZES, registry=registry)
        Gauge("flatfold_allowed_alarm_rate", "Share of ID inputs that may raise an alarm.", registry=registry).set(fpr)
        what = "Connections closed without an answer, because there were too many."
        self.aborted = Counter("flatfold_aborted_connections", what, registry=registry)
        Info("flatfold_build", "What is running.", registry=registry).info({"version": __version__, "method": method})
        registry.register(self)

    def count_answer(self, path: str, status: int, seconds: float) -> None:
        """Count one answer; unknown paths share a label, or they would fill the memory."""
        route = path if path in ROUTES else "other"
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        if status >= 400:
            self._refused.inc()

    def text(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics that are computed on each scrape."""
        monitor = self._monitor()
        yield CounterMetricFamily("flatfold_inputs", "Inputs scored.", value=monitor.seen)
        yield CounterMetricFamily("flatfold_alarms", "Inputs that raised an alarm.", value=monitor.alarms)
        yield GaugeMetricFamily("flatfold_alarm_rate", "Share of alarms, NaN at first.", value=monitor.alarm_rate)
        yield GaugeMetricFamily("flatfold_drift", "Distance from the calibration scores, 0 to 1.", value=monitor.drift)
        yield GaugeMetricFamily("flatfold_waiting", "Inputs waiting for the model.", value=self._waiting())
