"""Inputs of several requests, together through the model."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor

from .settings import AGAIN, Refusal

Row = dict[str, Any]


class Input(NamedTuple):
    """One image or one row of features."""

    kind: Literal["image", "features"]
    values: Tensor
    """``(c, h, w)`` or ``(d,)``."""
    called: str
    """What an answer calls it."""
    explain: bool = False

    @property
    def group(self) -> tuple[str, tuple[int, ...]]:
        """What inputs must have in common to go through the model together."""
        return self.kind, tuple(self.values.shape)


Judging = Callable[[Sequence[Input]], Sequence[Row | Exception]]


@dataclass(frozen=True, eq=False)
class _Waiting:
    input: Input
    answer: asyncio.Future[Row]


class Batcher:
    """A line of inputs in front of one thread that judges them.

    Nobody waits for company: an input that comes while the thread is idle goes alone, and those that come meanwhile go
    together. Inputs whose request was given up leave the line. All but ``judge`` runs in the event loop's thread.

    Args:
        judge: Gives a row or an error for each of some inputs of one group, in their order.
        most: Inputs that go together.
        line: Inputs that may wait.
        note: Is told how many inputs go together, each time.
    """

    def __init__(self, judge: Judging, most: int, line: int, note: Callable[[int], object] = lambda size: None) -> None:
        self._judge, self._most, self._longest, self._note = judge, most, line, note
        self._line: deque[_Waiting] = deque()
        self._thread = ThreadPoolExecutor(1, "flatfold-model")
        self._work: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """How many inputs are in the line."""
        return len(self._line)

    async def rows(self, inputs: Sequence[Input]) -> list[Row]:
        """Return a row for each input.

        Raises:
            Refusal: Too many inputs are waiting.
            Exception: What was said about one of the inputs; all others of this call are given up then.
        """
        self._line = deque(each for each in self._line if not each.answer.done())  # those given up take no place
        if len(self._line) + len(inputs) > self._longest:
            raise Refusal(
                503,
                f"{self._longest} inputs may wait for the model, and with these it would be more. "
                "Send them again in a moment, or fewer at once.",
                AGAIN,
            )
        loop = asyncio.get_running_loop()
        added = [_Waiting(each, loop.create_future()) for each in inputs]
        self._line.extend(added)
        if self._work is None or self._work.done():
            self._work = loop.create_task(self._until_empty())
        try:
            return await asyncio.gather(*(each.answer for each in added))
        finally:
            for each in added:
                each.answer.cancel()

    def close(self, wait: bool = False) -> None:
        """Let the thread end after what it is doing, and perhaps wait for that."""
        self._thread.shutdown(wait, cancel_futures=True)

    async def _until_empty(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := self._next():
            self._note(len(batch))
            said: Iterable[Row | Exception]
            try:
                said = await loop.run_in_executor(self._thread, self._judge, [each.input for each in batch])
            except Exception as error:
                said = [error] * len(batch)
            for each, outcome in zip(batch, said, strict=True):
                _tell(each.answer, outcome)

    def _next(self) -> list[_Waiting]:
        """Take the first input from the line, and those behind it that can go with it."""
        batch: list[_Waiting] = []
        left: deque[_Waiting] = deque()
        for each in self._line:
            if each.answer.done():
                continue
            fits = not batch or (len(batch) < self._most and each.input.group == batch[0].input.group)
            (batch if fits else left).append(each)
        self._line = left
        return batch


def _tell(answer: asyncio.Future[Row], outcome: Row | Exception) -> None:
    if answer.done():
        return  # given up meanwhile
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


# Memory that requests may take together.


MOST = 2**30

"""Bytes of all bodies and prepared inputs at once, 1 GB; what a decoder or the model needs comes on top."""


class Budget:
    """How many bytes the requests hold that are being answered; used by the event loop's thread alone.

    Args:
        most: Bytes that all of them may hold.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.used = 0

    @contextmanager
    def share(self) -> Iterator[Share]:
        """Yield the share of one request, which is given back at the end."""
        share = Share(self)
        try:
            yield share
        finally:
            self.used -= share.used


class Share:
    """What one request holds.

    Args:
        budget: Of all requests.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.used = 0

    def take(self, size: int) -> None:
        """Hold ``size`` more bytes, or refuse the request: for good if it is too large, for now if others are."""
        if self.used + size > self.budget.most:
            raise Refusal(
                413,
                f"the inputs of a request may take {self.budget.most // 10**6} MB of memory once they are prepared, "
                "and these take more. Send fewer at once, or smaller images.",
            )
        if self.budget.used + size > self.budget.most:
            raise Refusal(503, "the memory for requests is taken by others. Send it again in a moment.", AGAIN)
        self.budget.used += size
        self.used += size
