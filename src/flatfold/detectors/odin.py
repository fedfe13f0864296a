"""ODIN: MSP at a high temperature, after a small step that increases the confidence of the prediction.

Liang, Li and Srikant, "Enhancing The Reliability of Out-of-distribution Image Detection in Neural Networks", ICLR 2018.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..core.validation import check_above_zero
from .base import Batches, InputDetector, perturb
from .citations import Work
from .registry import register

PAPER = Work(
    "liang2018odin",
    "Enhancing The Reliability of Out-of-distribution Image Detection in Neural Networks",
    ("Shiyu Liang", "Yixuan Li", "R. Srikant"),
    2018,
    "ICLR",
    "https://arxiv.org/abs/1706.02690",
)


@register(
    "odin",
    printed="ODIN",
    full_name="Temperature, perturbation",
    cite=(PAPER,),
    sees="logits",
    grid={"temperature": (1, 10, 100, 1000), "epsilon": (0.0014, 0.0028)},
)
class Odin(InputDetector):
    r"""Minus the largest class probability of a slightly perturbed input.

    .. math:: s(x) = -\max_c \operatorname{softmax}(z(x') / T)_c, \qquad
        x' = x - \epsilon\, \operatorname{sign}\!\big( \nabla_x\, {-\log} \operatorname{softmax}(z(x) / T)_{\hat y}
        \big) / \sigma

    The reference averages the loss over the batch and divides by T, so that its float32 gradients may underflow. Here
    neither is done, which changes no sign, and a score does not depend on the batch size.

    Args:
        temperature: T, above 0.
        epsilon: Length of the step on the scale of pixels in [0, 1].
        std: :math:`\sigma`, the divisor of the channels in normalisation: one number, or one per channel.
    """

    sees = "logits"
    largest_only = False

    def __init__(self, temperature: float = 1000, epsilon: float = 0.0014, std: Sequence[float] | float = 0.5) -> None:
        super().__init__()
        self.temperature = temperature
        self.epsilon = epsilon
        self.std = std

    def learn(self, batches: Batches) -> None:
        check_above_zero("temperature", self.temperature, "1000")
        check_above_zero("epsilon", self.epsilon, "0.0014", or_zero=True)
        for deviation in self.std if isinstance(self.std, Sequence) else [self.std]:
            check_above_zero("std", deviation, "The standard deviation used in normalisation")

    def score(self, x: Tensor) -> Tensor:
        moved = perturb(x, self._loss, self.epsilon, self.std, self.largest_only)
        with torch.no_grad():
            logits: Tensor = self.run(moved)
        return -(logits / self.temperature).softmax(dim=-1).amax(dim=-1)

    def _loss(self, x: Tensor) -> Tensor:
        logits = self.run(x)
        predicted = logits.detach().argmax(dim=-1)
        return self.temperature * cross_entropy(logits / self.temperature, predicted, reduction="none")
