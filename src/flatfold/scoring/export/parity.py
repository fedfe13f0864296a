r"""Whether an exported graph gives the answers of its guard, on real inputs and in batches of several sizes.

Two runtimes add up in different orders, so numbers may differ in their last digits. With a tolerance of 1e-4,

.. math:: \frac{|z - z'|}{\max_k |z_k|} \le 10^{-4}, \qquad \frac{|s - s'|}{\max(|s|, \Delta)} \le 10^{-4}

must hold for logits z and scores s. The floor :math:`\Delta` is the distance between the quartiles of the calibration
scores: a score near zero, which many methods have, owes nothing to digits that no decision depends on. P-values must
lie between those of scores that much higher and lower. Decisions must be identical, except where the score is so close
to the threshold that either is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...models.batches import Batch
from ...progress import track
from ..verdict import Verdict

if TYPE_CHECKING:
    from ..calibration import Calibration
    from ..guard import Guard

TOLERANCE = 1e-4
ROUNDING = 1e-6  # of a p-value in float32
SIZES = (1, 7, 64)

Runtime = Callable[[Batch], Iterable[Any]]
"""Runs a batch in another runtime and returns logits, score, p-value and decision as arrays."""


class Mismatch(ValueError):  # noqa: N818 - as those in core/errors.py
    """An exported graph does not give the answers of its guard."""


@dataclass(frozen=True)
class Parity:
    """How well an exported graph agrees with its guard.

    Attributes:
        inputs: How many real inputs were compared.
        batch_sizes: In batches of how many.
        logits: The worst error of a logit, relative to the largest of its input.
        score: The worst error of a score, relative to it or to the spread of the calibration scores.
        undecidable: Inputs whose score is nearer to the threshold than the tolerance, so that either decision is right.
    """

    inputs: int
    batch_sizes: tuple[int, ...]
    logits: float
    score: float
    undecidable: int

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.batch_sizes))
        near = f", {self.undecidable} too near to the threshold to tell" if self.undecidable else ""
        return (
            f"{self.inputs} inputs in batches of {sizes}: logits within {self.logits:.1e}, scores within "
            f"{self.score:.1e}, same decisions{near}"
        )


def compare(guard: Guard, runtime: Runtime, batch: Batch) -> Parity:
    """Run all inputs of a batch through a guard and another runtime, in batches of 1, 7 and 64, and compare.

    Raises:
        Mismatch: They differ by more than rounding; the message names the output, the input and the error.
    """
    calibration = deepcopy(guard.calibration).cpu().double()
    sizes = tuple(sorted({min(size, batch.rows) for size in SIZES}))
    worst = {"logits": 0.0, "score": 0.0}
    unsure = torch.zeros(batch.rows, dtype=torch.bool)
    for size in track(sizes, "comparing"):
        parts = [batch.part(start, start + size) for start in range(0, batch.rows, size)]
        ours = _joined([guard((part.args[0] if part.args else part.kwargs,)) for part in parts])
        theirs = _joined([runtime(part) for part in parts])
        errors, near = _differences(ours, theirs, calibration, f"in batches of {size}")
        worst = {name: max(worst[name], error) for name, error in errors.items()}
        unsure |= near
    return Parity(batch.rows, sizes, worst["logits"], worst["score"], int(unsure.sum()))


def _joined(verdicts: list[Iterable[Any]]) -> Verdict:
    """Return all verdicts as one, in float64 on the CPU."""
    columns = zip(*verdicts, strict=True)
    return Verdict(*(torch.cat([torch.as_tensor(part).cpu().double() for part in column]) for column in columns))


def _differences(
    ours: Verdict, theirs: Verdict, calibration: Calibration, where: str
) -> tuple[dict[str, float], Tensor]:
    """Return the worst errors, and which inputs cannot be decided; raise if something differs by more than rounding."""
    for name, one, other in zip(Verdict._fields, ours, theirs, strict=True):
        if one.shape != other.shape:
            raise Mismatch(
                f"the exported graph gives {name} of shape {tuple(other.shape)} {where}, not {tuple(one.shape)}."
            )
    largest = ours.logits.abs().amax(dim=1)
    allowed = TOLERANCE * ours.score.abs().clamp_min(_spread(calibration))
    predicted, tied = _predicted(ours.logits, calibration)
    threshold = calibration.threshold[predicted if calibration.per_class else 0]
    unsure = tied | ((ours.score - threshold).abs() <= allowed)
    highest, lowest = (calibration(ours.score + shift, predicted)[0] for shift in (-allowed, allowed))
    inside = (theirs.p_value >= lowest - ROUNDING) & (theirs.p_value <= highest + ROUNDING)
    off = {
        "logits": _error((ours.logits - theirs.logits).abs().amax(dim=1), largest),
        "score": _error((ours.score - theirs.score).abs(), allowed / TOLERANCE),
        "p_value": torch.where(inside | tied, 0.0, (ours.p_value - theirs.p_value).abs()),
        "is_ood": torch.where(unsure, 0.0, (ours.is_ood - theirs.is_ood).abs()),
    }
    for name, allowance in zip(off, (TOLERANCE, TOLERANCE, 0.0, 0.0), strict=True):
        _check(name, off[name], allowance, where)
    return {name: float(off[name].max()) for name in ("logits", "score")}, unsure


def _check(name: str, errors: Tensor, allowed: float, where: str) -> None:
    row = int(errors.argmax())
    if errors[row] > allowed:
        what = "the decision is another one" if name == "is_ood" else f"it is off by {float(errors[row]):.1e}"
        raise Mismatch(
            f"the exported graph does not give the {name} of the guard for input {row}: {what} {where}, where "
            f"{allowed:g} is allowed. Does the model draw random numbers, mix the inputs of a batch, or take ways that "
            "depend on their values?"
        )


def _error(difference: Tensor, scale: Tensor) -> Tensor:
    """Return relative errors: none where nothing differs, infinite ones where only one is a number."""
    return torch.where(difference == 0, 0.0, difference / scale).nan_to_num(nan=torch.inf)


def _spread(calibration: Calibration) -> float:
    scores = calibration.scores[calibration.scores.isfinite()].sort().values
    return float(scores[(3 * len(scores)) // 4] - scores[len(scores) // 4])


def _predicted(logits: Tensor, calibration: Calibration) -> tuple[Tensor, Tensor]:
    """Return the likeliest class, and where a second one is so close that another threshold may be taken."""
    top = logits.topk(min(2, logits.shape[1]), dim=1).values
    close = top[:, 0] - top[:, -1] <= 2 * TOLERANCE * logits.abs().amax(dim=1)
    return logits.argmax(dim=1), close & calibration.per_class
