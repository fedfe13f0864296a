r"""The losses whose curvature is measured.

.. math:: L_{\text{energy}}(z) = \log\sum_c e^{z_c}, \qquad L_{\text{ce}}(z, y) = \log\sum_c e^{z_c} - z_y

They differ by a term that is linear in the logits, so they share the Hessian over logits and the Gauss-Newton matrix.
The full Hessians over parameters differ, because the logits are not linear in them.
"""

from __future__ import annotations

from torch import Tensor

from .estimate import Loss


def targets(loss: Loss, logits: Tensor, labels: Tensor | None) -> Tensor | None:
    """Return the class that each row is measured against, ``(n,)``; None for the energy, which needs none.

    Args:
        loss: Which loss.
        logits: ``(n, c)``.
        labels: ``(n,)``, where the data has them.
    """
    if loss == "energy":
        return None
    if loss == "ce_pred":
        return logits.detach().argmax(dim=-1)
    if labels is None:
        raise ValueError(
            "loss='ce' needs labels, but these batches have none. Give pairs (inputs, labels), or use loss='ce_pred', "
            "which takes the predicted class, or loss='energy'."
        )
    n_classes = logits.shape[-1]
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < n_classes:
        raise ValueError(
            f"labels must lie in 0..{n_classes - 1}, for the model has {n_classes} outputs, "
            f"got {int(labels.min())}..{int(labels.max())}."
        )
    return labels.to(logits.device)


def losses(logits: Tensor, target: Tensor | None) -> Tensor:
    """Return the loss of each row of logits ``(n, c)`` as ``(n,)``: the energy, or the cross-entropy of ``target``."""
    energy = logits.logsumexp(dim=-1)
    if target is None:
        return energy
    return energy - logits.gather(-1, target[:, None]).squeeze(-1)


def slopes(logits: Tensor, target: Tensor | None) -> Tensor:
    r"""Return the gradient of the loss over the logits, ``(n, c)``.

    .. math:: \frac{\partial L}{\partial z_c} = p_c - [c = y]

    At the target, ``1 - p_y`` is the sum of the other probabilities: it keeps its digits when the model is sure.
    """
    probs = logits.detach().softmax(dim=-1)
    if target is None:
        return probs
    others = probs.scatter(-1, target[:, None], 0.0)
    return others.scatter(-1, target[:, None], -others.sum(dim=-1, keepdim=True))


def logit_hessian_product(probs: Tensor, vectors: Tensor) -> Tensor:
    """Return ``(diag p - p p') v`` for rows of probabilities ``(n, c)`` and vectors ``(..., n, c)``."""
    return probs * (vectors - (vectors * probs).sum(dim=-1, keepdim=True))
