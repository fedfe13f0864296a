"""From inputs to rows of an answer: the model, the judge, and sentences for what they cannot take."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from ..models.heads import Pass
from ..scoring.calibrated import CalibratedDetector, Verdict
from ..scoring.explanation import explain
from ..scoring.guard import Guard
from ..scoring.monitor import Monitor
from .batcher import Input, Row
from .settings import Refusal

# All that a service has said so far, in counts.


class Stream:
    """A monitor that several threads may use.

    Args:
        judge: Whose verdicts are counted.
    """

    def __init__(self, judge: CalibratedDetector) -> None:
        self._monitor, self._nothing = Monitor.of(judge), Monitor.of(judge)
        self._lock = threading.Lock()

    def add(self, verdict: Verdict) -> None:
        """Count a verdict."""
        with self._lock:
            self._monitor.add(verdict)

    def now(self) -> Monitor:
        """Return what has been counted, as a monitor that does not change."""
        with self._lock:
            return self._monitor + self._nothing

    def as_dict(self) -> dict[str, Any]:
        """Return counts, rates and histograms as values that JSON knows: None for what is not there or infinite."""
        counted = self.now()
        bins = counted.histogram()
        return {
            "seen": counted.seen,
            "alarms": counted.alarms,
            "alarm_rate": finite(counted.alarm_rate),
            "alarm_p_value": counted.alarm_p_value,
            "drift": finite(counted.drift),
            "drift_p_value": counted.drift_p_value,
            "edges": [finite(edge) for edge in bins.edges.tolist()],
            "calibration": bins.calibration.tolist(),
            "live": bins.stream.tolist(),
        }


def finite(value: float) -> float | None:
    """Return a number, or None where it is none that JSON knows."""
    return value if isfinite(value) else None


log = logging.getLogger(__name__)

PAIRS = 3  # of classes that an explanation names

_OF_THE_INPUT = (ValueError, TypeError, LookupError, ArithmeticError)


class Scorer:
    """Judges inputs of one kind and shape; what it says about one does not depend on the others.

    Args:
        guard: A guard, or only its judge, which takes features alone.
        names: Of the classes, in the order of the logits.

    Attributes:
        stream: Counts what was said.
        transform: How images are prepared, or None without a model.
    """

    def __init__(self, guard: Guard | CalibratedDetector, names: tuple[str, ...] | None = None) -> None:
        self._guard = guard if isinstance(guard, Guard) else None
        self.judge = guard.calibrated if isinstance(guard, Guard) else guard
        if self._guard is not None and self._guard.transform is None:
            raise ValueError(
                "a service takes images, and must know how they are prepared, but its guard does not say so. "
                "Set guard.transform, or serve guard.calibrated, which takes features alone."
            )
        self.transform = None if self._guard is None else self._guard.transform
        self.names = _checked(names, len(self._weight))
        self.stream = Stream(self.judge)
        self.explains = self._can_explain()

    @property
    def width(self) -> int:
        """Numbers in a row of features."""
        return int(self._weight.shape[1])

    def facts(self) -> dict[str, Any]:
        """Return what judges, and what it has said so far, as values that JSON knows."""
        calibration = self.judge.calibration
        return {
            "method": self.method,
            "fpr": calibration.fpr,
            "thresholds": [finite(value) for value in calibration.threshold.tolist()],
            "calibrated": calibration.samples,
            **self.stream.as_dict(),
            "width": self.width,
            "classes": len(self._weight),
            "names": None if self.names is None else list(self.names),
            "explains": self.explains,
        }

    @property
    def method(self) -> str:
        """The name of the detector."""
        detector = self.judge.detector
        return detector.made_by[0] if detector.made_by else type(detector).__name__

    def __call__(self, inputs: Sequence[Input]) -> list[Row | Exception]:
        """Return a row for each input, or what is wrong with it: no input suffers from another."""
        try:
            return list(self._rows(inputs))
        except Exception as error:
            if len(inputs) == 1:
                return [_refused(inputs[0], error)]
            return [self([each])[0] for each in inputs]

    @torch.no_grad()
    def _rows(self, inputs: Sequence[Input]) -> list[Row]:
        seen = self._seen(inputs[0].kind, torch.stack([each.values for each in inputs]))
        verdict = self._judged(seen)
        texts = self._explanations(inputs, seen.features, verdict)
        self.stream.add(verdict)
        columns = (verdict.logits.argmax(dim=-1), verdict.score, verdict.p_value, verdict.is_ood)
        rows = []
        for predicted, score, p_value, is_ood in zip(*(column.tolist() for column in columns), strict=True):
            name = None if self.names is None else self.names[predicted]
            known = {"predicted": predicted, "class": name, "score": finite(score), "p_value": p_value}
            rows.append({**known, "is_ood": is_ood})
        return [row | text for row, text in zip(rows, texts, strict=True)]

    def _seen(self, kind: str, values: Tensor) -> Pass:
        if kind == "features" or self._guard is None:
            features = values.to(self._weight)
            return Pass(features, self.judge.detector.innermost.logits(features))
        return self._guard.run(values)

    def _judged(self, seen: Pass) -> Verdict:
        if self._guard is not None:
            return self._guard.decide(seen)
        return Verdict(seen.logits, *self.judge(seen.features, seen.logits))

    def _explanations(self, inputs: Sequence[Input], features: Tensor, verdict: Verdict) -> list[Row]:
        """Return an entry for each input that asks for it."""
        texts: list[Row] = [{"explanation": None} if each.explain else {} for each in inputs]
        asked = [i for i, each in enumerate(inputs) if each.explain]
        if asked and self.explains:
            part = Verdict(*(column[asked] for column in verdict))
            pairs = self.judge.detector.pairs(features[asked], PAIRS)
            for i, text in zip(asked, explain(part, pairs, self.names), strict=True):
                texts[i] = {"explanation": str(text)}
        return texts

    @property
    def _weight(self) -> Tensor:
        return self.judge.detector.fitted_weight

    def _can_explain(self) -> bool:
        try:
            self.judge.detector.pairs(torch.ones_like(self._weight[:1]), 1)
        except ValueError:  # its score is no sum over pairs of classes
            return False
        return True


def _refused(each: Input, error: Exception) -> Exception:
    """Return what is said about an input that could not be judged; what is no fault of its own stays an error."""
    if not isinstance(error, _OF_THE_INPUT):
        return error
    log.info("%s could not be judged: %s", each.called, error)
    if each.kind == "features":
        return Refusal(422, f"{each.called} cannot be judged: {error}")
    # The words of a model's own code may hold anything, so they stay here.
    shape = " x ".join(map(str, each.values.shape))
    return Refusal(
        422,
        f"{each.called} cannot be judged: the model does not take it, {shape} once it is prepared. "
        "Send images like those that the guard was calibrated on.",
    )


def _checked(names: tuple[str, ...] | None, classes: int) -> tuple[str, ...] | None:
    if names is not None and len(names) != classes:
        raise ValueError(
            f"names must be one per class, {classes} in all, got {len(names)}. "
            "Give them in the order of the model's outputs, or leave them out."
        )
    return names
