"""NAC: frequency of the states of an input's neurons on the training data.

Liu et al., "Neuron Activation Coverage: Rethinking Out-of-distribution Detection and Generalization", ICLR 2024.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.validation import check_above_zero
from ..errors import MethodRefusedError
from .base import Batches, InputDetector
from .citations import Work
from .registry import register

PAPER = Work(
    "liu2024nac",
    "Neuron Activation Coverage: Rethinking Out-of-distribution Detection and Generalization",
    ("Yibing Liu", "Chris Xing Tian", "Haoliang Li", "Lei Ma", "Shiqi Wang"),
    2024,
    "ICLR",
    "https://arxiv.org/abs/2306.02879",
)
MOST_BINS = 10_000  # of a layer


@register(
    "nac",
    printed="NAC",
    full_name="Neuron activation coverage",
    cite=(PAPER,),
    fits_on="train",
    sees="head",
    needs_labels=False,
    grid={"steepness": (1, 3, 10, 100, 1000, 3000), "threshold": (0.01, 0.05)},
)
class Nac(InputDetector):
    r"""Minus the coverage of the neurons' states, averaged over neurons and summed over layers.

    .. math:: s(x) = -\sum_\ell \frac{1}{N_\ell} \sum_i \min\!\big(1, \hat p_{\ell i}(v_{\ell i}) / r\big), \qquad
        v_\ell = \sigma\big(\alpha_\ell\, f_\ell \odot
        \nabla_{f_\ell} \operatorname{KL}(u \,\|\, \operatorname{softmax} z)\big)

    :math:`f_\ell` is a layer, u the uniform distribution, and :math:`\hat p_{\ell i}(v)` the share of training inputs
    whose state of this neuron is in the same interval as v. Fitting needs no labels.

    A layer and its gradient are each summed over pixels, and intervals are narrow around 1/2, the state of a neuron
    without influence, both as in the authors' code; pytorch-ood averages the product of the two over pixels, and has
    intervals that are narrow at 0 and 1. The authors count O inputs of 1000, which is a threshold of O / 1000 here, so
    that its meaning does not depend on the amount of training data, and average over layers, which ranks inputs in the
    same way. The defaults are theirs for the last layer of a ResNet-18 on CIFAR-10. They tune a steepness for each
    network and layer, between 0.001 and 5000: it must match the scale of features and weights, or most states are 0,
    1/2 or 1.

    Args:
        steepness: :math:`\alpha`, one number, or one per layer.
        threshold: r, the minimum share of the training data in a covered interval: one number, or one per layer.
        bins: The authors' M, an even number whose edges define M - 2 intervals: one number, or one per layer.
        layers: Layers of the network in addition to its features, which come last, for ``layers_and_head(model, batch,
            detector.layers)``, which builds the function passed to ``fit``: none, ``"stem"``, ``"stages"``, or names of
            modules, as for :class:`MdsEns`.
    """

    sees = "head"

    def __init__(
        self,
        steepness: float | Sequence[float] = 100,
        threshold: float | Sequence[float] = 0.05,
        bins: int | Sequence[int] = 50,
        layers: Literal["stem", "stages"] | Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.steepness = steepness
        self.threshold = threshold
        self.bins = bins
        self.layers = layers

    def learn(self, batches: Batches) -> None:
        """Count the training inputs in each interval of each neuron."""
        for steepness in _to_list(self.steepness):
            check_above_zero("steepness", steepness, "100")
        for threshold in _to_list(self.threshold):
            check_above_zero("threshold", threshold, "0.05")
        for bins in _to_list(self.bins):
            if isinstance(bins, bool) or not isinstance(bins, int) or not 4 <= bins <= MOST_BINS or bins % 2:
                raise MethodRefusedError(f"bins must be an even number from 4 to {MOST_BINS}, got {bins!r:.60}.")
        counts: list[Tensor] = []
        rows = 0
        for x, _ in batches:
            rows += len(x)
            found = [_count_states(*state) for state in self._states(x.detach().clone())]
            counts = [a + b for a, b in zip(counts, found, strict=True)] if counts else found
        if not rows:
            raise MethodRefusedError("NAC is fitted on inputs. Call .fit(network, batches) with pairs (x, labels).")
        for index, (count, r) in enumerate(zip(counts, self._per_layer("threshold", len(counts)), strict=True)):
            self.register_buffer(f"coverage{index}", (count.to(x.dtype) / (rows * r)).clamp_max(1.0))

    @property
    def is_fitted(self) -> bool:
        return "coverage0" in self._buffers

    def score(self, x: Tensor) -> Tensor:
        total = x.new_zeros(len(x))
        for index, (state, _) in enumerate(self._states(x)):
            covered = self.get_buffer(f"coverage{index}").gather(1, state.mT).mean(dim=0)
            total -= covered.to(x.dtype)
        return total

    def _states(self, x: Tensor) -> list[tuple[Tensor, int]]:
        """Return the interval ``(n, neurons)`` of each state, and the number of intervals, for every layer."""
        with torch.enable_grad():
            layers, head = self.run(x.requires_grad_())
            divergence = -head(layers[-1]).log_softmax(dim=-1).mean(dim=-1)  # up to a constant
            gradients = torch.autograd.grad(divergence.sum(), layers, allow_unused=True)
        if any(gradient is None for gradient in gradients):
            raise MethodRefusedError(
                "the logits do not depend on one of the layers. Choose layers that the features are computed from."
            )
        states = []
        settings = self._per_layer("steepness", len(layers)), self._per_layer("bins", len(layers))
        for layer, gradient, steepness, bins in zip(layers, gradients, *settings, strict=True):
            state = (steepness * _sum_positions(layer.detach()) * _sum_positions(gradient)).sigmoid()
            edges = inner_edges(bins).to(state)
            states.append((torch.bucketize(state, edges, right=True), len(edges) + 1))
        return states

    def _per_layer(self, name: str, layers: int) -> list[Any]:
        values = _to_list(getattr(self, name))
        if len(values) not in (1, layers):
            raise MethodRefusedError(
                f"{name} must be one number, or {layers}, one per layer, got {getattr(self, name)!r}."
            )
        return values if len(values) == layers else values * layers


def _to_list(values: Any) -> list[Any]:
    return list(values) if isinstance(values, Sequence) and not isinstance(values, str) else [values]


def _sum_positions(layer: Tensor) -> Tensor:
    return layer.flatten(2).sum(dim=-1) if layer.ndim > 2 else layer


def _count_states(state: Tensor, intervals: int) -> Tensor:
    """Count the inputs in each interval of each neuron, ``(neurons, intervals)``."""
    neurons = state.shape[1]
    first = intervals * torch.arange(neurons, device=state.device)
    return torch.bincount((state + first).flatten(), minlength=neurons * intervals).view(neurons, intervals)


def inner_edges(bins: int) -> Tensor:
    r"""Return the M - 3 edges between the intervals of [0, 1], in float64.

    .. math:: b_j = \log_{1000}\!\Big(1 + j\, \frac{\sqrt{1000} - 1}{M/2 - 1}\Big), \quad j = 1, ..., M/2 - 1

    and :math:`1 - b_j`; the last :math:`b_j` is 1/2.
    """
    steps = torch.linspace(1, 1000**0.5, bins // 2, dtype=torch.float64)[1:-1]
    left = steps.log() / torch.tensor(1000.0, dtype=torch.float64).log()
    return torch.cat([left, left.new_tensor([0.5]), 1 - left.flip(0)])
