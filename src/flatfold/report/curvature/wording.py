"""Of what a figure shows the curvature, in few words: a figure that leaves the page must still say it."""

from ...evaluate.results import ID
from ...evaluate.study.files import Space, Study

MATRICES = {"hessian": "Hessian", "ggn": "GGN"}
LOSSES = {"energy": "the energy", "ce_pred": "CE(predicted)", "ce": "CE(label)"}


def matrix_and_loss(study: Study, space: Space) -> str:
    """Return which matrix of which loss it is in a space, such as ``Hessian of the energy``."""
    told = study.cell(ID, space, "trace")
    return f"{MATRICES[told.matrix]} of {LOSSES[told.loss]}"
