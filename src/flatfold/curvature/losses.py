r"""The losses whose curvature is measured.

.. math:: L_{\text{energy}}(z) = \log\sum_c e^{z_c}, \qquad L_{\text{ce}}(z, y) = \log\sum_c e^{z_c} - z_y

They differ by a term that is linear in the logits, so they share the Hessian over logits and the Gauss-Newton matrix.
The full Hessians over parameters differ, because the logits are not linear in them.

Everything is written in differences to the largest logit: ``logsumexp`` and ``diag p - p p'`` as they stand subtract
nearly equal numbers, and a confident input would have second derivatives of nothing but rounding.
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
    r"""Return the loss of each row of logits: the energy, or the cross-entropy of ``target``.

    .. math:: \log\sum_c e^{z_c} = z_t + \log\Big(1 + \sum_{c \ne t} e^{z_c - z_t}\Big), \qquad t = \arg\max_c z_c

    Its first and second derivatives, by autograd, have all digits for every input, however confident.

    Args:
        logits: ``(n, c)``.
        target: ``(n,)``, or None for the energy.

    Returns:
        ``(n,)``.
    """
    top = logits.detach().argmax(dim=-1, keepdim=True)
    largest = logits.gather(-1, top)
    behind = (logits - largest).scatter(-1, top, 0.0)  # no slope of 1 - 1 where the difference is to itself
    others = behind.exp().scatter(-1, top, 0.0).sum(dim=-1).log1p()
    return others + largest.squeeze(-1) if target is None else others - behind.gather(-1, target[:, None]).squeeze(-1)


def logit_hessian_product(probs: Tensor, vectors: Tensor) -> Tensor:
    """Return ``(diag p - p p') v`` for rows of probabilities ``(n, c)`` and vectors ``(..., n, c)``."""
    top = probs.argmax(dim=-1, keepdim=True).expand(*vectors.shape[:-1], 1)
    vectors = vectors - vectors.gather(-1, top)  # a common shift changes nothing, and would leave only rounding
    return probs * (vectors - (vectors * probs).sum(dim=-1, keepdim=True))
