"""OpenMax: probability of an unknown class, from distances between logits and those of the training data.

Bendale and Boult, "Towards Open Set Deep Networks", CVPR 2016; as OpenOOD evaluates it.
"""

import torch
from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.class_statistics import (
    Rows,
    Templates,
    Weibull,
    check_every_class,
    class_moments,
    fit_tails,
    template_samples,
)
from ..core.hessian import as_double, entry_chunks
from ..core.validation import check_choice, check_count, require_labels
from ..errors import warn
from .base import PASS, Costs, Detector
from .citations import Work
from .registry import register

PAPER = Work(
    "bendale2016openmax",
    "Towards Open Set Deep Networks",
    ("Abhijit Bendale", "Terrance E. Boult"),
    2016,
    "CVPR",
    "https://arxiv.org/abs/1511.06233",
)


@register("openmax", printed="OpenMax", full_name="Open-set softmax", cite=(PAPER,), fits_on="train")
class OpenMax(Detector):
    r"""Probability of an additional, unknown class.

    :math:`m_c` are the mean logits of the correctly classified samples of a class, and :math:`w_c` is a Weibull
    distribution fitted to the largest distances :math:`\|z - m_c\|` among them. The logit of the r-th likeliest class
    is reduced by a share:

    .. math:: v_c = z_c (1 - \omega_c w_c), \qquad u = \sum_c z_c\, \omega_c w_c, \qquad
        s(h) = \frac{e^u}{\sum_c e^{v_c} + e^u}, \qquad \omega = 1,\, \tfrac23,\, \tfrac13,\, 0,\, \dots

    With more classes than features, distances are computed without the logits: with :math:`W = Q R` and orthonormal
    columns of Q, :math:`\|z - m_c\| = \|R (h - h_c)\|`, :math:`h_c` the mean features of the class.

    A class without a correctly classified sample uses all its samples, with a warning; one whose tail distances are all
    equal uses a step function instead of a Weibull.

    Args:
        tail: Number of the largest distances that the Weibull of a class is fitted to.
        top: Number of classes whose logits are reduced, 3 in :math:`\omega` above; all if there are fewer.
        logarithm: Score by the log-odds instead, which have the same ranking and do not saturate at 1 in float32.
    """

    means: Tensor
    basis: Tensor | None
    smallest: Tensor
    scale: Tensor
    shape: Tensor

    def __init__(self, tail: int = 20, top: int = 3, logarithm: bool = False) -> None:
        super().__init__()
        self.tail = tail
        self.top = top
        self.logarithm = logarithm

    def learn(self, bank: FeatureBank, head: Head) -> None:
        check_count("tail", self.tail)
        check_count("top", self.top)
        check_choice("logarithm", self.logarithm, (True, False))
        labels = require_labels(bank, "OpenMax")
        basis = torch.linalg.qr(as_double(head.weight), mode="r").R if head.n_classes > head.width else None
        self.register_buffer("basis", basis)
        distances, templates = _distances_to_templates(bank.rows, labels, head, basis)
        labels = labels.to(distances.device)
        tails, valid = _largest(distances, labels, templates.used, head.n_classes, self.tail)
        self.register_buffers(means=templates.means, **fit_tails(tails, valid)._asdict())
        if templates.note:
            warn(templates.note)

    def costs(self, rows: int, width: int, classes: int) -> Costs:
        return Costs(
            60 * rows + 8 * 3 * classes * (classes + width), rows * width * (classes + 2 * PASS), width * classes
        )

    def score(self, h: Tensor) -> Tensor:
        logits = self.logits(h).to(self.means.dtype)
        values, classes = logits.topk(min(self.top, logits.shape[-1]), dim=-1)
        basis = self._buffers.get("basis")
        point = logits if basis is None else h.to(basis.dtype) @ basis.mT
        distances = (point[:, None] - self.means[classes]).norm(dim=-1)
        tails = Weibull(self.smallest[classes], self.scale[classes], self.shape[classes])
        omega = 1 - torch.arange(values.shape[-1], device=h.device) / self.top
        moved = values * omega * tails.cdf(distances)
        known = logits.scatter(-1, classes, values - moved).logsumexp(dim=-1)
        odds = moved.sum(dim=-1) - known
        return (odds if self.logarithm else torch.sigmoid(odds)).to(h.dtype)


def _distances_to_templates(
    features: Rows, labels: Tensor, head: Head, basis: Tensor | None
) -> tuple[Tensor, Templates]:
    r"""Return the distance of each sample to the template of its class, ``(n,)``, and the templates of the logits.

    Neither is known before all samples are classified, and logits of all samples may not fit into memory. So they are
    computed once, and compared with the logits :math:`a_k` of the mean features :math:`\bar h_k` of the class:

    .. math:: \|z - m_k\|^2 = \|z - a_k\|^2 - 2 \langle h - \bar h_k,\, W^\top \delta_k \rangle + \|\delta_k\|^2,
        \qquad \delta_k = m_k - a_k

    :math:`\delta_k` is small, for it is due to the wrongly classified samples alone. With more classes than features
    the ``basis`` R takes the place of W.
    """
    check_every_class(labels, head.n_classes, "OpenMax")
    linear = as_double(head.weight) if basis is None else basis
    _, counts, anchors, _ = class_moments(features, labels, scatter=False)
    labels = labels.to(linear.device)
    shift = 0.0 if basis is not None or head.bias is None else head.bias.to(linear)
    levels = anchors @ linear.mT + shift
    squares, predicted = linear.new_empty(len(labels)), torch.empty_like(labels)
    parts = list(entry_chunks(len(labels), max(head.n_classes, head.width)))
    for part in parts:
        logits = head(features[part])
        predicted[part] = logits.argmax(dim=-1)
        values = as_double(logits) if basis is None else as_double(features[part]) @ basis.mT
        squares[part] = (values - levels[labels[part]]).square_().sum(dim=-1)
    used, note = template_samples(labels, predicted, head.n_classes, "OpenMax")
    if not bool(used.all()):
        left = class_moments(features, labels, scatter=False, used=~used)
        kept = counts[left.classes] - left.counts
        shifts = torch.zeros_like(anchors)  # of the mean features: few samples are left out
        shifts[left.classes] = (anchors[left.classes] - left.means) * (left.counts / kept)[:, None]
        moved = shifts @ linear.mT
        slopes = moved @ linear
        constants = moved.square().sum(dim=-1) + 2 * (anchors * slopes).sum(dim=-1)
        for part in parts:
            own = labels[part]
            squares[part] += constants[own] - 2 * (as_double(features[part]) * slopes[own]).sum(dim=-1)
        levels = levels + moved
    return squares.clamp_min_(0.0).sqrt_(), Templates(levels, used, note)


def _largest(distances: Tensor, labels: Tensor, used: Tensor, n_classes: int, tail: int) -> tuple[Tensor, Tensor]:
    """Return the largest distances of each class, ``(c, t)`` with t <= ``tail``, and the mask of valid entries."""
    distances = distances[used]
    order = distances.argsort(descending=True)
    order = order[labels[used][order].argsort(stable=True)]  # by class, the largest distance first
    counts = labels[used].bincount(minlength=n_classes)
    tail = min(tail, int(counts.max()))  # or else a large one would take memory for nothing
    place = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[labels[used][order]]
    kept = place < tail
    tails = distances.new_zeros(n_classes, tail)
    tails[labels[used][order][kept], place[kept]] = distances[order][kept]
    return tails, torch.arange(tail, device=order.device) < counts[:, None]
