"""Results of curvature measurements: values with their errors, spectra and densities."""

from dataclasses import dataclass, field
from math import pi, sqrt
from typing import Literal

import torch
from torch import Tensor

from ..core.validation import check_above_zero

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
            bounds its distance to an eigenvalue. None if the value is exact.
        method: The method of computation.
        matrix: ``"hessian"`` or ``"ggn"``.
        loss: ``"energy"``, ``"ce_pred"`` or ``"ce"``.
        matvecs: Matrix-vector products per input, the maximum over inputs; for the exact trace, backward passes through
            the network.
        seed: Seed of the random vectors, None if none were used.
        rows: Number of inputs.
        shares: For the largest eigenvalue of a data set, the curvature of each input along its eigenvector, ``(n,)``.
            Their mean is the eigenvalue, and the standard error of that mean is, to first order, its sampling error.
            None for other statistics, and if a step of the network has no third derivative.
    """

    value: float | Tensor
    stderr: float | Tensor | None
    method: str
    matrix: Matrix
    loss: Loss
    matvecs: int
    seed: int | None
    rows: int
    shares: Tensor | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"Estimate({self})"

    def __str__(self) -> str:
        what = f"{MATRICES[self.matrix]} of the {LOSSES[self.loss]}, {self.method}, {self.matvecs} products"
        if isinstance(self.value, Tensor):
            return f"{self.rows} values, mean {float(self.value.mean()):.6g} ({what})"
        certain = "exactly" if self.stderr is None else f"± {self.stderr:.2g}"
        return f"{self.value:.6g} {certain} ({what}, {self.rows} inputs)"


# An eigenvalue below this share of the largest counts as zero: products in float32 have errors up to 7e-7 of it.
ZERO = 1e-6
MARGIN = 5  # kernel widths by which the grid extends beyond the ends: it covers all but 6e-7 of the mass
PER_WIDTH = 4  # grid points per kernel width


@dataclass(frozen=True)
class Density:
    """A smoothed spectrum.

    Attributes:
        grid: Evaluation points, ``(g,)``.
        mean: Density of the non-zero eigenvalues, ``(g,)``; together with ``atom`` it integrates to 1.
        lower, upper: A band of one standard error of the mean over the probes, ``(g,)``, never below 0; equal to
            ``mean`` if exact, and for a single probe, whose error is unknown.
        atom: Share of the eigenvalues that are zero.
        width: Standard deviation of the kernel, 0 if every eigenvalue is zero.
    """

    grid: Tensor
    mean: Tensor
    lower: Tensor
    upper: Tensor
    atom: float
    width: float

    def __repr__(self) -> str:
        ends = f"{float(self.grid[0]):.4g} to {float(self.grid[-1]):.4g}"
        return f"Density({len(self.grid)} points from {ends}, {100 * self.atom:.4g} % at zero)"


@dataclass(frozen=True)
class Spectrum:
    """The spectrum of a curvature matrix, as a discrete distribution.

    Attributes:
        nodes: Points, ``(probes, m)`` in float64; one row if the spectrum is exact.
        weights: Share of all eigenvalues at each point, ``(probes, m)``; a row sums to 1.
        size: Number of eigenvalues.
        lambda_min, lambda_max: The smallest and largest eigenvalue.
        method, matrix, loss, matvecs, seed, rows: As in :class:`~flatfold.curvature.Estimate`.
    """

    nodes: Tensor
    weights: Tensor
    size: int
    lambda_min: float
    lambda_max: float
    method: str
    matrix: Matrix
    loss: Loss
    matvecs: int
    seed: int | None
    rows: int

    def __post_init__(self) -> None:
        if self.nodes.ndim != 2 or self.nodes.shape != self.weights.shape or self.nodes.numel() == 0:
            raise ValueError(
                "nodes and weights must have one shape (probes, m), got "
                f"{tuple(self.nodes.shape)} and {tuple(self.weights.shape)}. A single row needs nodes[None]."
            )
        total = self.weights.sum(dim=1)
        if not torch.allclose(total, torch.ones_like(total), rtol=0, atol=1e-6):
            worst = float(total[(total - 1).abs().argmax()])
            raise ValueError(f"each row of weights must sum to 1, got {worst:g}. Divide it by its sum.")

    def __repr__(self) -> str:
        matrix = f"{MATRICES[self.matrix]} of the {LOSSES[self.loss]}"
        ends = f"{self.lambda_min:.4g} to {self.lambda_max:.4g}"
        return f"Spectrum({self.size:,} eigenvalues from {ends} ({matrix}, {self.method}, {self.rows} inputs))"

    @property
    def exact(self) -> bool:
        """Whether these are all eigenvalues, computed without random vectors."""
        return self.seed is None

    def density(self, grid: Tensor | None = None, width: float = 0.01) -> Density:
        r"""Return the density, smoothed by a Gaussian kernel of ``width`` times the largest absolute eigenvalue.

        .. math:: \rho(x) = \frac1k \sum_{j=1}^k \sum_l w_{jl}\, \varphi_\sigma(x - \theta_{jl}), \qquad
           \sigma = \text{width} \cdot \max |\lambda|

        Nodes within 1e-6 times the largest absolute eigenvalue of zero form the ``atom`` and are excluded from the
        density: most eigenvalues of a network are there, and their peak would hide all others.

        Args:
            grid: Evaluation points, ``(g,)``. By default from the smallest to the largest eigenvalue and five kernel
                widths beyond, with four points per width; the single point 0 if every eigenvalue is zero.
            width: Standard deviation of the kernel, relative to the spectrum.

        Example:
            >>> nodes = torch.tensor([[0.0, 2.0]], dtype=torch.float64)
            >>> half = torch.full_like(nodes, 0.5)
            >>> density = Spectrum(nodes, half, 2, 0.0, 2.0, "exact", "ggn", "energy", 0, None, 1).density()
            >>> density.atom, density.width
            (0.5, 0.02)
        """
        check_above_zero("width", width, "0.01")
        scale = max(abs(self.lambda_min), abs(self.lambda_max), float(self.nodes.abs().max()))
        if grid is not None and (grid.ndim != 1 or len(grid) == 0 or not grid.isfinite().all()):
            raise ValueError(
                f"grid must be a vector of finite points, got {tuple(grid.shape)}. Omit it for the default grid."
            )
        grid = self._grid(width * scale) if grid is None else grid.to(self.nodes)
        is_zero = self.nodes.abs() <= ZERO * scale
        atom = float((self.weights * is_zero).sum(dim=1).mean())
        rows = _smooth(self.nodes, self.weights * ~is_zero, grid, width * scale)
        mean = rows.mean(dim=0)
        error = rows.std(dim=0) / sqrt(len(rows)) if len(rows) > 1 else torch.zeros_like(mean)
        return Density(grid, mean, (mean - error).clamp(min=0), mean + error, atom, width * scale)

    def _grid(self, sigma: float) -> Tensor:
        low = min(self.lambda_min, float(self.nodes.min())) - MARGIN * sigma
        high = max(self.lambda_max, float(self.nodes.max())) + MARGIN * sigma
        points = 1 if sigma == 0 else int(PER_WIDTH * (high - low) / sigma) + 2
        return torch.linspace(low, high, points, dtype=self.nodes.dtype, device=self.nodes.device)


def _smooth(nodes: Tensor, weights: Tensor, grid: Tensor, sigma: float) -> Tensor:
    """Return the density of each row at each point, ``(probes, g)``."""
    if sigma == 0:  # all eigenvalues are zero
        return torch.zeros(len(nodes), len(grid), dtype=nodes.dtype, device=nodes.device)
    rows = []
    for points, masses in zip(nodes, weights, strict=True):
        positive = masses > 0
        distance = (grid[:, None] - points[positive]) / sigma
        rows.append((-0.5 * distance.square()).exp() @ masses[positive] / (sigma * sqrt(2 * pi)))
    return torch.stack(rows)
