"""AdaSCALE: SCALE with a percentile per input, chosen by the shift of the features when unimportant pixels change.

Regmi, "AdaSCALE: Adaptive Scaling for OOD Detection", arXiv 2503.08023, 2025.
"""

from abc import abstractmethod
from numbers import Real

import torch
from torch import Tensor

from ..core.bank import Head
from ..core.shaping import check_percentile, kept_entries, scale_ratio
from ..core.validation import check_above_zero, check_not_negative
from ..errors import MethodRefusedError
from .base import Batches, InputDetector
from .citations import Work
from .registry import register
from .scale import PAPER as SCALE

PAPER = Work(
    "regmi2025adascale",
    "AdaSCALE: Adaptive Scaling for OOD Detection",
    ("Sudarshan Regmi",),
    2025,
    "arXiv",
    "https://arxiv.org/abs/2503.08023",
)
MAXIMA = (80, 85, 90, 95, 99)


class AdaScale(InputDetector):
    r"""Energy of logits scaled as in SCALE, less for inputs that look OOD.

    .. math:: Q(x) = \sum_{j \in \text{top}_{k_1}(h)} \max(0, h'_j)
        + \lambda \sum_{j \in \text{top}_{k_2}(h)} |h_j - h'_j|, \qquad
        p(x) = p_{\min} + (1 - F(Q(x))) (p_{\max} - p_{\min}), \qquad
        r(x) = \sum_j h_j \Big/ \sum_{j \in \text{top } k} h_j

    with :math:`k = d - \operatorname{round}(d\, p(x) / 100)`. F is the share of in-distribution inputs with at most
    that Q. :math:`h'` are the features of :math:`x + \epsilon \operatorname{sign}(g)`, where only the given share of
    entries (a channel of a pixel) with the smallest absolute value of g, the gradient of the largest logit, is moved;
    an entry with zero gradient stays. Fitting needs no labels.

    This follows OpenOOD. The author's repository swaps the names of k1 (features) and k2 (shift), and its newest
    version uses them differently in fitting and in scoring. OpenOOD rounds k1 and k2 down, to 0 for fewer than 100
    features; here at least one feature counts. It rectifies negative features in the ratio; as for SCALE, they are
    rejected here.

    Args:
        p_min: The percentile of the input that looks most OOD.
        p_max: The percentile of the input that looks most in-distribution; equal values make ``adascale-a`` SCALE.
        k1: Share of features in the first sum, the largest ones without the step, in percent.
        k2: Share of features in the second sum, in percent.
        shift_weight: :math:`\lambda`.
        share: Share of the entries of an input that move.
        epsilon: Length of the step, on the scale of the normalised input.
    """

    sees = "head"
    layers = ()
    shifts: Tensor

    def __init__(
        self,
        p_min: float = 75,
        p_max: float = 85,
        k1: float = 5,
        k2: float = 1,
        shift_weight: float = 10,
        share: float = 0.05,
        epsilon: float = 0.5,
    ) -> None:
        super().__init__()
        self.p_min = p_min
        self.p_max = p_max
        self.k1 = k1
        self.k2 = k2
        self.shift_weight = shift_weight
        self.share = share
        self.epsilon = epsilon

    def learn(self, batches: Batches) -> None:
        """Store Q of every input, sorted."""
        for percentile in ("p_min", "p_max"):
            check_percentile(getattr(self, percentile), percentile)
        if self.p_min > self.p_max:
            raise MethodRefusedError(f"p_min must not be above p_max, got {self.p_min} and {self.p_max}.")
        for name, value, most in (("k1", self.k1, 100), ("k2", self.k2, 100), ("share", self.share, 1)):
            if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value <= most:
                raise MethodRefusedError(f"{name} must be above 0 and at most {most}, got {value!r}.")
        check_above_zero("shift_weight", self.shift_weight, "10", or_zero=True)
        check_above_zero("epsilon", self.epsilon, "0.5", or_zero=True)
        shifts = [self._features_and_shift(x.detach().clone())[1] for x, _ in batches]
        if not sum(map(len, shifts)):
            raise MethodRefusedError(
                "AdaSCALE is fitted on inputs. Call .fit(network, batches) with pairs (x, labels)."
            )
        self.register_buffer("shifts", torch.cat(shifts).sort().values)

    @property
    def is_fitted(self) -> bool:
        return "shifts" in self._buffers

    def score(self, x: Tensor) -> Tensor:
        h, shift, head = self._features_and_shift(x)
        below = torch.searchsorted(self.shifts, shift, right=True).cpu().double() / len(self.shifts)
        percentiles = self.p_min + (1 - below) * (self.p_max - self.p_min)
        width = h.shape[1]
        kept_entries(width, self.p_max)  # raises if none would be left
        kept = (width - (width * percentiles / 100).round().long()).to(h.device)
        largest = h.sort(dim=-1, descending=True).values.cumsum(dim=-1).gather(-1, kept[:, None] - 1)
        return -self.logits(h, head, scale_ratio(h, largest)).logsumexp(dim=-1)

    @abstractmethod
    def logits(self, h: Tensor, head: Head, ratio: Tensor) -> Tensor:
        """Return the logits ``(n, c)`` of features ``(n, d)`` scaled by a ratio ``(n, 1)``."""

    def _features_and_shift(self, x: Tensor) -> tuple[Tensor, Tensor, Head]:
        """Return the features, Q and the head."""
        with torch.enable_grad():
            still = x.requires_grad_()
            (features,), head = self.run(still)
            (gradient,) = torch.autograd.grad(head(features).max(dim=-1).values.sum(), still)
        gradient, h = gradient.flatten(1), features.detach()
        check_not_negative(h, "AdaSCALE")
        unimportant = gradient.abs().topk(int(gradient.shape[1] * self.share), dim=1, largest=False).indices
        step = torch.zeros_like(gradient).scatter(1, unimportant, self.epsilon * gradient.sign().gather(1, unimportant))
        with torch.no_grad():
            (moved,), _ = self.run(x.detach() + step.view_as(x))
        order = h.topk(self._entries(self.k1, h), dim=-1).indices
        shifted = h.topk(self._entries(self.k2, h), dim=-1).indices
        shift = moved.relu().gather(1, order).sum(dim=-1)
        return h, shift + self.shift_weight * (h - moved).abs().gather(1, shifted).sum(dim=-1), head

    @staticmethod
    def _entries(percent: float, h: Tensor) -> int:
        return max(1, int(h.shape[1] * percent / 100))


@register(
    "adascale-a",
    printed="AdaSCALE-A",
    full_name="Adaptive scaling of activations",
    cite=(PAPER, SCALE),
    fits_on="val",
    sees="head",
    needs_labels=False,
    grid={"p_max": MAXIMA},
)
class AdaScaleA(AdaScale):
    """Energy of adaptively scaled features.

    :class:`AdaScale`, whose features are multiplied by :math:`e^r`.
    """

    def logits(self, h: Tensor, head: Head, ratio: Tensor) -> Tensor:
        return head(h * ratio.exp())


@register(
    "adascale-l",
    printed="AdaSCALE-L",
    full_name="Adaptive scaling of logits",
    cite=(PAPER, SCALE),
    fits_on="val",
    sees="head",
    needs_labels=False,
    grid={"p_max": MAXIMA},
)
class AdaScaleL(AdaScale):
    """Energy of adaptively scaled logits.

    :class:`AdaScale`, whose logits are multiplied by :math:`r^2`.
    """

    def logits(self, h: Tensor, head: Head, ratio: Tensor) -> Tensor:
        return head(h) * ratio.square()
