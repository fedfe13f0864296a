r"""FOLD's score at any exponent and temperature, from what one matrix product leaves of the features.

With ``m`` the mean norm of in-distribution features, the study separates two things that the paper ties together:

.. math:: \tilde h = \frac{h}{T} \left( \frac{m}{\|h\|} \right)^{\alpha}, \qquad
    s(h) = \tfrac12 p^\top D p, \qquad p = \operatorname{softmax}(W \tilde h + b)

The exponent says how much of the norm is taken away, the temperature how soft the probabilities are. The paper's
:math:`h / \|h\|^\alpha` is :math:`T = m^\alpha`.
"""

from typing import NamedTuple

from torch import Tensor

from flatfold.core.autofold import Weights
from flatfold.core.bank import FeatureBank, Head
from flatfold.core.class_statistics import best_temperature
from flatfold.core.shaping import row_norms


class View(NamedTuple):
    """What scores need to know of features."""

    projected: Tensor
    """``(n, c)``, logits without the bias, float64."""
    norms: Tensor
    """``(n, 1)``, float64."""


class Classes(NamedTuple):
    """What scores need to know of a head."""

    bias: Tensor
    """``(c,)``."""
    weights: Weights
    """The class weights."""
    mean_norm: float
    """Of in-distribution features."""


def view_of(features: Tensor, head: Head) -> View:
    """Return the view of features ``(n, d)``."""
    h = features.double()
    return View(h @ head.weight.double().mT, row_norms(h))


def classes_of(val: FeatureBank, head: Head) -> Classes:
    """Return what is needed of a head, with the mean norm of validation features."""
    weight = head.weight.double()
    bias = weight.new_zeros(len(weight)) if head.bias is None else head.bias.double()
    return Classes(bias, Weights.of(weight), float(row_norms(val.features.double()).mean()))


def logits_at(view: View, classes: Classes, alpha: float, temperature: float) -> Tensor:
    """Return the logits ``(n, c)`` of rescaled features: the formula at the top of this file."""
    return view.projected * (classes.mean_norm / view.norms) ** alpha / temperature + classes.bias


def scores_at(view: View, classes: Classes, alpha: float, temperature: float) -> Tensor:
    """Return FOLD's scores ``(n,)`` at an exponent and a temperature."""
    probs = logits_at(view, classes, alpha, temperature).softmax(dim=-1)
    return classes.weights.draw(probs).trace


def paper_temperature(classes: Classes, alpha: float) -> float:
    r"""Return the temperature that makes :math:`h / \|h\|^\alpha` of rescaled features, ``m ** alpha``."""
    return float(classes.mean_norm**alpha)


def likeliest_temperature(view: View, labels: Tensor, classes: Classes, alpha: float) -> float:
    r"""Return the temperature of the smallest mean cross-entropy of ``softmax(a / T + b)``.

    Args:
        view: Of labelled features; ``a`` are their rescaled logits without bias.
        labels: ``(n,)``.
        classes: Of the head.
        alpha: The exponent.
    """
    a = logits_at(view, classes, alpha, 1.0) - classes.bias
    return best_temperature(a, labels, classes.bias)
