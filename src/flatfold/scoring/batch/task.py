"""What is to be scored and by what, small enough to be sent to another process, and the process that does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from ...models.at_rest import usable_device
from ...models.heads import Pass
from ...models.sources import ImageSource
from ...models.stream import Piece
from ..guard import Guard
from ..judge import Judge
from ..verdict import Verdict
from ..writers import Columns
from .record import Record

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

    def judge(self) -> Judge:
        """Return the judge of the guard, which needs no model."""
        judge = Judge.load(self.guard)
        return judge if self.fpr is None else judge.at(self.fpr)

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

    def __call__(self, pieces: Iterable[Piece]) -> Record:
        """Return what the guard says about the images of some batches, at least one."""
        return Record.joined([self._record(piece) for piece in pieces])

    def _record(self, piece: Piece) -> Record:
        seen = self._seen(piece)
        sound = seen.features.isfinite().all(dim=-1)
        verdict = self.guard.judged(Pass(*(part[sound] for part in seen)))
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

    def _seen(self, piece: Piece) -> Pass:
        """Return features and logits of what could be read, perhaps of nothing."""
        if piece.batch is not None:
            try:
                return self.guard.look(piece.batch.first_tensor)
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
