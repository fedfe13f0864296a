"""One request from its body to its rows, beside all others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from torch import Tensor

from ..models.transform import Transform
from ..scoring.calibrated import CalibratedDetector
from ..scoring.guard import Guard
from .batcher import MOST, Batcher, Budget, Input, Row, Share
from .metrics import Metrics
from .requests import Part, files_of, prepared, read_body, rows_of
from .scorer import Scorer
from .settings import Refusal, Settings, unfinished

DECODERS = 2

"""Threads that decode images; each may need memory for the largest one allowed."""

_T = TypeVar("_T")

_TAKEN = "Send an image (image/png, image/jpeg ...), a form with images (multipart/form-data), or features"

_FEATURES = "as application/octet-stream, little-endian float32"


class Service:
    """All that stands behind the routes.

    Args:
        guard: What judges: a guard for images and features, or its judge for features alone.
        settings: What is allowed.

    Attributes:
        closing: Whether the service is about to end.
    """

    def __init__(self, guard: Guard | CalibratedDetector, settings: Settings) -> None:
        self.settings = settings
        self.scorer = Scorer(guard, settings.names)
        self.metrics = Metrics(self.scorer.stream, self.scorer.method)
        self.batcher = Batcher(self.scorer, settings.max_batch, settings.max_waiting, self.metrics.note_batch)
        self.metrics.watch_line(lambda: self.batcher.waiting)
        self.budget = Budget(max(MOST, 4 * settings.max_body))
        self.closing = False
        self._decoders = ThreadPoolExecutor(DECODERS, "flatfold-images")

    async def answer(self, request: Request, explain: bool) -> list[Row]:
        """Return the rows of a request, or refuse it."""
        read = self._reader(request.headers.get("content-type", ""))
        with self.budget.share() as share:
            body = await read_body(request, self.settings, share)
            return await _unless_gone(request, self._within_time(read(body, explain, share)))

    def close(self, wait: bool = False) -> None:
        """Let all threads end after what they are doing, and perhaps wait for that."""
        self.batcher.close(wait)
        self._decoders.shutdown(wait, cancel_futures=True)

    def ends_within(self, seconds: float) -> bool:
        """Close, and tell whether all threads end in this time: Python itself would wait for them without a limit."""
        waiting = threading.Thread(target=self.close, args=(True,), daemon=True)
        waiting.start()
        waiting.join(seconds)
        return not waiting.is_alive()

    def _reader(self, content_type: str) -> Callable[[bytes, bool, Share], Awaitable[list[Row]]]:
        """Return what makes rows of a body of some type."""
        kind = content_type.partition(";")[0].strip().lower()
        if kind == "application/octet-stream":
            return self._features
        if not kind.startswith("image/") and kind != "multipart/form-data":
            raise Refusal(415, f"the Content-Type of this request is none that is understood. {_TAKEN} {_FEATURES}.")
        if self.scorer.transform is None:
            raise Refusal(415, f"this service runs without a model, so it takes no images. Send features {_FEATURES}.")
        transform = self.scorer.transform
        if kind == "multipart/form-data":
            return lambda body, explain, share: self._form(body, content_type, transform, explain, share)
        return lambda body, explain, share: self._images([("the image", body)], transform, explain, share)

    async def _features(self, body: bytes, explain: bool, share: Share) -> list[Row]:
        features = await self._aside(rows_of, body, self.scorer.width, self.settings.max_waiting)
        called = (f"row {i} of the features" for i in range(len(features)))
        return await self.batcher.rows(
            [Input("features", row, name, explain) for row, name in zip(features, called, strict=True)]
        )

    async def _form(
        self, body: bytes, content_type: str, transform: Transform, explain: bool, share: Share
    ) -> list[Row]:
        most = min(self.settings.max_images, self.settings.max_waiting)
        files = await self._aside(files_of, body, content_type, most)
        named = [(_called(i, file), file.content) for i, file in enumerate(files)]
        rows = await self._images(named, transform, explain, share)
        return [{"name": file.name, **row} for file, row in zip(files, rows, strict=True)]

    async def _images(
        self, images: list[tuple[str, bytes]], transform: Transform, explain: bool, share: Share
    ) -> list[Row]:
        inputs = []
        for called, content in images:  # one after the other, so that no request takes more than its share
            values: Tensor = await self._aside(prepared, content, called, transform, self.settings.max_pixels)
            share.take(values.nbytes)
            inputs.append(Input("image", values, called, explain))
        return await self.batcher.rows(inputs)

    async def _aside(self, function: Callable[..., _T], *arguments: object) -> _T:
        """Return what a function returns that would keep the event loop waiting."""
        return await asyncio.get_running_loop().run_in_executor(self._decoders, function, *arguments)

    async def _within_time(self, rows: Awaitable[list[Row]]) -> list[Row]:
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await rows
        except TimeoutError:
            raise unfinished(self.settings.timeout) from None


def _called(index: int, file: Part) -> str:
    return f"the image {file.name!r}" if file.name else f"image {index}"


async def _unless_gone(request: Request, rows: Awaitable[list[Row]]) -> list[Row]:
    """Return rows, or stop waiting for them when nobody is there any more to read them."""
    work, gone = asyncio.ensure_future(rows), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            gone.result()
        return await work
    finally:
        work.cancel()
        gone.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnect
