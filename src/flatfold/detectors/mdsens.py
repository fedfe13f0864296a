"""MDSEns: Mahalanobis distances in one or several layers, each after a small step towards the nearest class.

Lee et al., "A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks", NeurIPS
2018.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ..core.class_statistics import Gaussian, fit_gaussian, squared_distances
from ..core.validation import check_above_zero
from ..errors import MethodRefusedError
from .base import Batches, InputDetector, perturb
from .mds import PAPER as MDS
from .registry import register


@register(
    "mdsens",
    printed="MDSEns",
    full_name="Mahalanobis, several layers",
    cite=(MDS,),
    fits_on="train",
    sees="layers",
    grid={"epsilon": (0.0014,)},
)
class MdsEns(InputDetector):
    r"""Weighted sum over layers of half the squared Mahalanobis distance to the nearest class.

    .. math:: s(x) = \sum_\ell \alpha_\ell \min_c \tfrac12 d_{\ell c}\big(f_\ell(x'_\ell)\big), \qquad
        x'_\ell = x - \epsilon\, \operatorname{sign}\!\big( \nabla_x \min_c \tfrac12 d_{\ell c}(f_\ell(x)) \big) / 0.5

    :math:`f_\ell` is a layer averaged over its pixels, with a Gaussian per class and a shared covariance. OpenOOD's
    results under this name use a single layer, the stem, which is the default. Fitting needs labels.

    Args:
        epsilon: Length of the step.
        layers: Layers of the network for ``layers_of(model, batch, detector.layers)``, which builds the function passed
            to ``fit``: ``"stem"``, the input of the second convolution; ``"stages"``, an ensemble of the stem, the last
            activation at each resolution but the smallest, and the features; or names of modules, whose outputs are
            used. Each is averaged over all dimensions but the first two. In a network without convolutions, linear
            layers take their place: the stem is the input of the second one, the stages are those of all.
        weights: :math:`\alpha_\ell`, one per layer. None means 1 for a single layer, and for several the inverse
            standard deviation of the layer's distances on the training data, so that all layers count equally.
    """

    sees = "layers"
    weights_: Tensor

    def __init__(
        self,
        epsilon: float = 0.0014,
        layers: Literal["stem", "stages"] | Sequence[str] = "stem",
        weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.layers = layers
        self.weights = weights

    @torch.no_grad()
    def learn(self, batches: Batches) -> None:
        check_above_zero("epsilon", self.epsilon, "0.0014", or_zero=True)
        seen = [(self._pooled(x), labels) for x, labels in batches]
        if not seen or any(labels is None for _, labels in seen):
            raise MethodRefusedError(
                "MDSEns needs labelled inputs. Call .fit(network, batches) with pairs (x, labels)."
            )
        labels = torch.cat([labels for _, labels in seen if labels is not None])
        gaussians = [
            fit_gaussian(torch.cat(parts), labels.to(parts[0].device))
            for parts in zip(*(pooled for pooled, _ in seen), strict=True)
        ]
        for index, gaussian in enumerate(gaussians):
            self.register_buffers(**{f"{name}{index}": part for name, part in gaussian._asdict().items()})
        spreads = [
            torch.cat([_nearest(pooled[index], gaussian) for pooled, _ in seen]).std()
            for index, gaussian in enumerate(gaussians)
        ]
        self.register_buffer("weights_", self._layer_weights(torch.stack(spreads)))

    @property
    def is_fitted(self) -> bool:
        return "weights_" in self._buffers

    def _layer_weights(self, spreads: Tensor) -> Tensor:
        if self.weights is not None:
            if not isinstance(self.weights, Sequence) or len(self.weights) != len(spreads):
                raise MethodRefusedError(f"weights must be one number per layer, {len(spreads)}, got {self.weights!r}.")
            return spreads.new_tensor(self.weights)
        return torch.ones_like(spreads) if len(spreads) == 1 else 1 / spreads

    def score(self, x: Tensor) -> Tensor:
        total = x.new_zeros(len(x), dtype=self.weights_.dtype)
        for index in range(len(self.weights_)):
            gaussian = self._gaussian(index)
            moved = perturb(x, lambda x, i=index, g=gaussian: _nearest(self._pooled(x)[i], g), self.epsilon, 0.5)  # type: ignore[misc]
            with torch.no_grad():
                total += self.weights_[index] * _nearest(self._pooled(moved)[index], gaussian)
        return total.to(x.dtype)

    def _gaussian(self, index: int) -> Gaussian:
        return Gaussian(*(self.get_buffer(f"{name}{index}") for name in Gaussian._fields))

    def _pooled(self, x: Tensor) -> list[Tensor]:
        """Return every layer as ``(n, channels)``."""
        return [layer.flatten(2).mean(dim=-1) if layer.ndim > 2 else layer for layer in self.run(x)]


def _nearest(pooled: Tensor, gaussian: Gaussian) -> Tensor:
    return squared_distances(pooled, gaussian).amin(dim=-1) / 2
