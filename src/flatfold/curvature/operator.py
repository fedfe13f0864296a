"""A symmetric matrix that is only known by its products, and random vectors to multiply it with."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.check import check_count


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

    def __post_init__(self) -> None:
        check_count("size", self.size)

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return the products with the columns of ``vectors``, ``(size, k)``, and count them."""
        result = self.apply(vectors.to(self.dtype))
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
        return result


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
