"""What a curvature statistic is worth: its value, how certain it is, and what exactly was measured."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Matrix = Literal["hessian", "ggn"]
Loss = Literal["energy", "ce_pred", "ce"]
Level = Literal["dataset", "sample"]

MATRICES: dict[str, str] = {"hessian": "Hessian", "ggn": "Gauss-Newton matrix"}
LOSSES: dict[str, str] = {
    "energy": "energy logsumexp(z)",
    "ce_pred": "cross-entropy of the predicted class",
    "ce": "cross-entropy of the label",
}


@dataclass(frozen=True)
class Estimate:
    """A statistic of a curvature matrix.

    Attributes:
        value: A number for a data set, ``(n,)`` for single inputs.
        stderr: Its standard error, in the shape of ``value``; for an eigenvalue the residual of its Ritz vector, which
            bounds its distance to an eigenvalue. None where the value is exact.
        method: How it was computed.
        matrix: ``"hessian"`` or ``"ggn"``.
        loss: ``"energy"``, ``"ce_pred"`` or ``"ce"``.
        matvecs: Products of the matrix with a vector that each input took part in, the most where inputs differ; for
            the exact trace, passes back through the network.
        seed: Of what was random, None where nothing was.
        rows: Number of inputs.
    """

    value: float | Tensor
    stderr: float | Tensor | None
    method: str
    matrix: Matrix
    loss: Loss
    matvecs: int
    seed: int | None
    rows: int

    def __str__(self) -> str:
        what = f"{MATRICES[self.matrix]} of the {LOSSES[self.loss]}, {self.method}, {self.matvecs} products"
        if isinstance(self.value, Tensor):
            return f"{self.rows} values, mean {float(self.value.mean()):.6g} ({what})"
        certain = "exactly" if self.stderr is None else f"± {self.stderr:.2g}"
        return f"{self.value:.6g} {certain} ({what}, {self.rows} inputs)"


def check_choice(name: str, value: object, known: Collection[str]) -> None:
    """Raise unless an argument is one of the known words."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}.")
