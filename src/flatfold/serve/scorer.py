"""Score batches of inputs for responses, and count all scored inputs."""

from __future__ import annotations

import logging
import threading
from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO
from math import isfinite
from typing import Any, Literal, NamedTuple

import torch
from starlette.exceptions import HTTPException
from torch import Tensor

from ..data.batch import split_batch
from ..data.texts import Tokeniser
from ..network.heads import Pass
from ..scoring.calibrated import CalibratedDetector, Verdict
from ..scoring.dense import DenseGuard
from ..scoring.explanation import explain
from ..scoring.guard import Guard
from ..scoring.mask_files import png_of
from ..scoring.monitor import Monitor
from ..scoring.tokens import Token, find_tokens

EXPLAINED_PAIRS = 3  # pairs of classes that an explanation names
_INPUT_ERRORS = (ValueError, TypeError, LookupError, ArithmeticError)

Row = dict[str, Any]

log = logging.getLogger(__name__)


class Asked(NamedTuple):
    """What a request asks for besides verdicts."""

    explain: bool = False
    tokens: bool = False
    mask: bool = False
    overlay: bool = False


class Input(NamedTuple):
    """One image ``(c, h, w)``, one row of features ``(d,)`` or one text, and its label in error messages.

    The values of a text are the arguments of the model ``(k, tokens)``, with their names.
    """

    kind: Literal["image", "features", "text"]
    values: Tensor
    label: str
    asked: Asked = Asked()
    names: tuple[str, ...] = ()
    truncated: bool = False

    @property
    def size(self) -> int:
        """Number of values that grow with the input: those of an image, or the tokens of a text."""
        return self.values.shape[-1] if self.kind == "text" else self.values.numel()

    @property
    def group(self) -> tuple[str, torch.Size]:
        """Kind and shape, which all inputs of a batch share."""
        return self.kind, self.values.shape


class Scorer:
    """Score inputs of one kind and shape; the row of an input does not depend on the other inputs of its batch."""

    def __init__(self, guard: Guard | CalibratedDetector, names: tuple[str, ...] | None = None) -> None:
        self._guard = guard if isinstance(guard, Guard) else None
        self.calibrated = guard.calibrated if isinstance(guard, Guard) else guard
        self.transform = None if self._guard is None else self._guard.transform  # None: features only
        self.tokeniser = None if self._guard is None else Tokeniser.of(self._guard.loading.collate)
        self.sizes = None if self._guard is None else self._guard.network.sizes  # None: not known
        if self.tokeniser is not None:
            self.tokeniser.load()  # a service that cannot read texts must not start
        elif self._guard is not None and self.transform is None:
            raise ValueError(
                "the guard has no transform and no tokeniser, so the service cannot prepare images or texts. "
                "Set guard.transform, or serve guard.calibrated, which accepts features only."
            )
        weight = self.calibrated.detector.fitted_weight
        self.classes, self.width = weight.shape
        if names is not None and len(names) != self.classes:
            raise ValueError(
                f"names must have one entry per class, {self.classes} in all, got {len(names)}. "
                "Pass them in the order of the model's outputs, or omit them."
            )
        self.names = names
        detector = self.calibrated.detector
        self.method = detector.method_text or type(detector).__name__
        self._dense = guard if isinstance(guard, DenseGuard) else None
        self._decides = self.calibrated  # about inputs as a whole
        if self._dense is not None:
            self._decides = CalibratedDetector(detector, self._dense.images.calibration)
        self._live, self._empty = (Monitor.of(self._decides, self._dense is not None) for _ in range(2))
        self._lock = threading.Lock()  # other threads read the live monitor

    @property
    def dense(self) -> bool:
        """Whether there is a decision at every position of an input."""
        return self._dense is not None

    def monitor(self) -> Monitor:
        """Return a copy of the live monitor of all verdicts."""
        with self._lock:
            return self._live + self._empty

    def facts(self) -> dict[str, Any]:
        """Return the guard's settings and current counts as JSON values; None for missing or infinite numbers."""
        calibration, monitor = self._decides.calibration, self.monitor()
        bins = monitor.histogram()
        return {
            "method": self.method,
            "fpr": calibration.fpr,
            "thresholds": [_finite(value) for value in calibration.threshold.tolist()],
            "calibrated": calibration.samples,
            "seen": monitor.seen,
            "alarms": monitor.alarms,
            "alarm_rate": _finite(monitor.alarm_rate),
            "alarm_p_value": monitor.alarm_p_value,
            "drift": _finite(monitor.drift),
            "drift_p_value": monitor.drift_p_value,
            "edges": [_finite(edge) for edge in bins.edges.tolist()],
            "calibration": bins.calibration.tolist(),
            "live": bins.stream.tolist(),
            "width": self.width,
            "classes": self.classes,
            "names": None if self.names is None else list(self.names),
            **({"share_ood": _finite(monitor.share_ood)} if monitor.share_ood is not None else {}),
        }

    def __call__(self, inputs: Sequence[Input]) -> list[Row | Exception]:
        """Return a row or an error for each input; if a batch fails, its inputs are scored one by one."""
        try:
            return list(self._rows(inputs))
        except Exception as error:
            if len(inputs) == 1:
                return [_to_http_error(inputs[0], error)]
            return [self([entry])[0] for entry in inputs]

    @torch.no_grad()
    def _rows(self, inputs: Sequence[Input]) -> list[Row]:
        values = torch.stack([entry.values for entry in inputs])
        if self._dense is not None:
            return self._dense_rows(self._dense, inputs, values)
        if self._guard is not None and inputs[0].kind == "image":
            result = self._guard.network(values)
        elif self._guard is not None and inputs[0].kind == "text":
            result = self._guard.network(dict(zip(inputs[0].names, values.unbind(1), strict=True)))
        else:
            features = values.to(self.calibrated.detector.fitted_weight)
            result = Pass(features, self.calibrated.detector.innermost.logits(features))
        verdict = self.calibrated.decide(*result)
        explanations = self._explanations(inputs, values, result.features, verdict)
        with self._lock:
            self._live.add(verdict)
        columns = [values.tolist() for values in verdict.columns().values()]
        rows = []
        for i, (predicted, score, p_value, is_ood) in enumerate(zip(*columns, strict=True)):
            name = None if self.names is None else self.names[predicted]
            row = {"predicted": predicted, "class": name, "score": _finite(score), "p_value": p_value, "is_ood": is_ood}
            row |= {"truncated": inputs[i].truncated} if inputs[i].kind == "text" else {}
            rows.append(row | explanations.get(i, {}))
        return rows

    def _dense_rows(self, guard: DenseGuard, inputs: Sequence[Input], values: Tensor) -> list[Row]:
        """Return the rows of a guard for every position: verdicts on inputs as a whole, and pictures of alarms."""
        texts = inputs[0].kind == "text"
        verdict = guard(dict(zip(inputs[0].names, values.unbind(1), strict=True)) if texts else values)
        with self._lock:
            self._live.add(verdict)
        rows = []
        columns = [column.tolist() for column in verdict.columns().values()]
        for i, (share, score, p_value, is_ood) in enumerate(zip(*columns, strict=True)):
            row: Row = {"predicted": None, "class": None, "score": _finite(score), "p_value": p_value}
            row |= {"is_ood": is_ood, "share_ood": share}
            if inputs[i].asked.mask:
                row["mask"] = b64encode(png_of(verdict.is_ood[i])).decode()
            if inputs[i].asked.overlay:
                file = BytesIO()
                guard.picture(values[i], verdict.is_ood[i]).save(file, "PNG")
                row["overlay"] = b64encode(file.getvalue()).decode()
            rows.append(row | ({"truncated": inputs[i].truncated} if texts else {}))
        return rows

    def _explanations(
        self, inputs: Sequence[Input], values: Tensor, features: Tensor, verdict: Verdict
    ) -> dict[int, Row]:
        """Return the explanations of inputs that request one, by index."""
        asked = [i for i, entry in enumerate(inputs) if entry.asked.explain or entry.asked.tokens]
        if not asked:
            return {}
        part, h, detector = Verdict(*(column[asked] for column in verdict)), features[asked], self.calibrated.detector
        words: list[tuple[Token, ...]] = [()] * len(asked)
        for place, i in enumerate(asked):
            if inputs[i].asked.tokens and self._guard is not None and self.tokeniser is not None:
                text = split_batch(dict(zip(inputs[i].names, values[i : i + 1].unbind(1), strict=True)))
                own = part.score[[place]]
                words[place] = find_tokens(self._guard.network, self.calibrated, self.tokeniser, text, own)[0]
        explanations = explain(part, detector.pairs(h, EXPLAINED_PAIRS), self.names, detector.signs(h), words)
        rows: dict[int, Row] = {}
        for i, it in zip(asked, explanations, strict=True):
            rows[i] = {"explanation": str(it), "signs": {name: _finite(z) for name, z in it.signs.items()}}
            if inputs[i].asked.tokens:
                rows[i]["tokens"] = [{**token._asdict(), "score": _finite(token.score)} for token in it.tokens]
        return rows


def _finite(value: float) -> float | None:
    """Return a number, or None if it is not finite, which JSON cannot represent."""
    return value if isfinite(value) else None


def _to_http_error(entry: Input, error: Exception) -> Exception:
    """Translate errors caused by an input to HTTP errors; return others unchanged."""
    if not isinstance(error, _INPUT_ERRORS):
        return error
    log.info("%s could not be scored: %s", entry.label, error)
    if entry.kind == "features":
        return HTTPException(422, f"{entry.label} cannot be scored: {error}")
    if entry.kind == "text":
        return HTTPException(422, f"{entry.label} cannot be scored: the model does not accept its tokens.")
    # Errors of the model's own code may reveal internals, so they are only logged.
    shape = " x ".join(map(str, entry.values.shape))
    return HTTPException(
        422,
        f"{entry.label} cannot be scored: the model does not accept its shape, {shape} after preprocessing. "
        "Send images like the calibration images.",
    )
