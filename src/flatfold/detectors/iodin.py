"""I-ODIN: ODIN that perturbs a single entry of the image, the one with the largest gradient.

Regmi, "Going Beyond Conventional OOD Detection", arXiv 2411.10794, 2024.
"""

from .citations import Work
from .odin import PAPER as ODIN
from .odin import Odin
from .registry import register

PAPER = Work(
    "regmi2024ascood",
    "Going Beyond Conventional OOD Detection",
    ("Sudarshan Regmi",),
    2024,
    "arXiv",
    "https://arxiv.org/abs/2411.10794",
)


@register(
    "iodin",
    printed="I-ODIN",
    full_name="Temperature, perturbation of one entry",
    cite=(PAPER, ODIN),
    sees="logits",
    grid={"temperature": (1, 10, 100, 1000), "epsilon": (0.0014, 0.0028)},
)
class Iodin(Odin):
    r"""Minus the largest class probability of an input with one perturbed entry.

    .. math:: s(x) = -\max_c \operatorname{softmax}(z(x') / T)_c, \qquad
        x' = x - \epsilon\, m \odot \operatorname{sign}(g) / \sigma, \qquad
        m_j = \begin{cases} 1 & j = \arg\max_i |g_i| \\ 0 & \text{otherwise} \end{cases}

    :math:`g` is the gradient used by :class:`Odin`. An entry is one channel of one pixel, as in OpenOOD: the other
    channels of that pixel stay unchanged. The hyper-parameters are those of :class:`Odin`.
    """

    largest_only = True
