"""A symmetric matrix that is only known by its products, and random vectors to multiply it with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt

import torch
from torch import Tensor

from ..core.check import check_count
from .second_derivatives import check_symmetric


@dataclass
class Operator:
    """A symmetric matrix, given by what it does to vectors.

    Attributes:
        apply: Maps ``(size, k)`` to ``(size, k)``: ``k`` vectors at once, one per column. They may lie in memory row by
            row or column by column.
        size: Rows and columns of the matrix.
        dtype: In which vectors are handed over and come back.
        device: On which they live.
        products: Vectors multiplied so far.

    Example:
        >>> operator = Operator(lambda v: 2 * v, size=3, dtype=torch.float64, device=torch.device("cpu"))
        >>> operator(torch.eye(3, dtype=torch.float64)).trace().item(), operator.products
        (6.0, 3)
    """

    apply: Callable[[Tensor], Tensor]
    size: int
    dtype: torch.dtype
    device: torch.device
    products: int = field(default=0, init=False)
    _last: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False)
    _norm: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        check_count("size", self.size)

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return the products with the columns of ``vectors``, ``(size, k)``, and count them."""
        vectors = vectors.to(self.dtype)
        result: Tensor = self.apply(vectors)
        self.products += vectors.shape[1]
        if result.shape != vectors.shape:
            raise ValueError(
                f"a product with vectors of shape {tuple(vectors.shape)} must have their shape, got "
                f"{tuple(result.shape)}. One column goes in for each that comes out."
            )
        if not result.isfinite().all():
            raise ValueError(
                "products with the curvature matrix must be finite, but one has a NaN or an infinite entry. "
                "Look at the model's weights and inputs, or take them in float64."
            )
        self._check_symmetric(vectors, result)
        return result

    def _check_symmetric(self, vectors: Tensor, images: Tensor) -> None:
        """Raise if ``u' A v`` and ``v' A u`` differ, for the last vector and one before it: it costs no product."""
        # Views would keep all columns in memory.
        v, v_image = vectors[:, -1].double().clone(), images[:, -1].double().clone()
        u, u_image = self._last or (vectors[:, 0].double(), images[:, 0].double())
        self._last = v, v_image
        lengths = [float(vector.norm()) for vector in (u, v, u_image, v_image)]
        if not lengths[0] or not lengths[1]:
            return
        self._norm = max(self._norm, lengths[2] / lengths[0], lengths[3] / lengths[1])
        usual = max(lengths[0] * lengths[3], lengths[1] * lengths[2]) / sqrt(self.size)
        most = lengths[0] * lengths[1] * self._norm
        check_symmetric(float(u @ v_image), float(v @ u_image), usual, most)


def random_signs(operator: Operator, columns: int, generator: torch.Generator) -> Tensor:
    """Return vectors of +1 and -1, each with even odds, ``(size, columns)``.

    They are drawn one after the other where the generator lives, so a seed gives the same ones on every device, and
    however many are asked for at once.
    """
    drawn = torch.empty(columns, operator.size, dtype=operator.dtype, device=generator.device)
    for row in drawn:
        row.bernoulli_(0.5, generator=generator)
    return drawn.mul_(2).sub_(1).T.to(operator.device)


def random_directions(operator: Operator, columns: int, generator: torch.Generator) -> Tensor:
    """Return vectors of length 1 in directions that are all equally likely, ``(size, columns)``.

    Unlike signs, they are orthogonal to no fixed vector: none of a few eigenvectors can be missed. They are drawn in
    the way of :func:`random_signs`.
    """
    drawn = torch.empty(columns, operator.size, dtype=operator.dtype, device=generator.device)
    for row in drawn:
        row.normal_(generator=generator)
    drawn /= torch.linalg.vector_norm(drawn, dim=1, keepdim=True)
    return drawn.T.to(operator.device)
