"""Inputs of several requests, together through the model."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor

from .refusal import AGAIN, Refusal

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
