"""The contract of a detector that needs the input itself: it runs the network, and its gradient.

It gets a callable and never a model: ``fit(network, batches)`` remembers ``network``, a differentiable function of a
batch of inputs, and a call ``detector(x)`` returns one score per input, **higher for more out-of-distribution**. What
``network(x)`` returns depends on the method, which says so in ``sees``: the logits ``(n, c)``, or a sequence of layers,
each ``(n, channels, ...)``. No row depends on another, so a score is the same in a batch of any size.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from ..core.check import check_finite
from ..core.errors import NotFittedError
from .base import Fittable, all_or_nothing

Network = Callable[[Tensor], Any]
Sees = Literal["features", "logits", "layers"]


class InputDetector(Fittable, ABC):
    """A score for inputs, by a network and its gradient."""

    sees: Sees
    """What the network must return: ``"logits"`` or ``"layers"``."""
    network: Network | None = None

    def fit(self, network: Network, batches: Iterable[tuple[Tensor, Tensor]] = ()) -> Self:
        """Remember the network and learn from labelled in-distribution inputs, for methods that learn.

        Args:
            network: A differentiable function of a batch of inputs, in evaluation mode.
            batches: Pairs ``(x, labels)``.

        Returns:
            The detector itself, ready to be called.
        """
        before = self.network
        with all_or_nothing(self):
            self._buffers.clear()  # what an earlier fit left
            try:
                self.attach(network).learn(batches)
            except BaseException:
                object.__setattr__(self, "network", before)
                raise
        return self

    def attach(self, network: Network) -> Self:
        """Remember the network only: enough for a detector whose state was loaded, or that learns nothing."""
        if isinstance(network, nn.Module) and network.training:
            raise ValueError("the network is in training mode, where scores are random. Call .eval() on it first.")
        object.__setattr__(self, "network", network)  # past torch, which would take a model for a part of this one
        return self

    def learn(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Turn what the inputs teach into buffers; by default there is nothing to learn."""

    def forward(self, x: Tensor) -> Tensor:
        """Return one score per input, higher for more out-of-distribution."""
        if self.network is None or not self.is_fitted:
            raise NotFittedError(f"this {type(self).__name__} is not fitted. Call .fit(network, batches) first.")
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"inputs must be a floating-point tensor, prepared as for the network, not {kind}.")
        check_finite(x, "inputs")
        with torch.inference_mode(False):  # where there would be no gradient
            return self.score(x.detach().clone())

    @property
    def is_fitted(self) -> bool:
        """Whether all that was to be learnt has been."""
        return True

    @abstractmethod
    def score(self, x: Tensor) -> Tensor:
        """Return one score per row of ``x``."""

    def run(self, x: Tensor) -> Any:
        """Return what the network says of a batch."""
        assert self.network is not None
        return self.network(x)


def stepped(x: Tensor, loss: Callable[[Tensor], Tensor], epsilon: float, std: Sequence[float] | float) -> Tensor:
    r"""Return the inputs after one small step that makes the loss smaller.

    .. math:: x' = x - \epsilon\, \operatorname{sign}(\nabla_x L) / \sigma

    with a step in the direction of +1 where the gradient is 0, as in OpenOOD. Gradients of parameters are not touched.

    Args:
        x: Normalised inputs, ``(n, channels, ...)``.
        loss: One number per row: they are added up, so no row's gradient depends on the others.
        epsilon: Length of the step in each value, on the scale before normalisation.
        std: What the channels were divided by in normalisation, one number for all or one per channel.
    """
    with torch.enable_grad():
        moving = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(moving).sum(), moving)
    sigma = torch.as_tensor(std, dtype=x.dtype, device=x.device)
    if sigma.ndim:
        if len(sigma) != x.shape[1]:
            raise ValueError(f"std has {len(sigma)} numbers, but the inputs have {x.shape[1]} channels.")
        sigma = sigma.view(-1, *[1] * (x.ndim - 2))
    return x - epsilon * torch.where(gradient >= 0, 1.0, -1.0).to(x) / sigma


def check_epsilon(epsilon: float) -> None:
    """Raise unless the length of a step is a number from 0 on."""
    if not isinstance(epsilon, Real) or not 0 <= epsilon < float("inf"):
        raise ValueError(f"epsilon must be a number from 0 on, got {epsilon!r}. 0.0014 is customary.")
