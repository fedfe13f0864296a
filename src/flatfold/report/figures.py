"""All figures of a run."""

from ..evaluate.results import Results
from .alphas import alpha_curves
from .costs import TALL, cost_figure
from .curves import roc_curves
from .drawing import Drawing
from .histograms import histograms
from .norms import norm_figures


def all_figures(results: Results) -> dict[str, Drawing]:
    """Return every figure by its name; ``costs-tall`` is ``costs`` again, for narrow screens."""
    drawings = (
        histograms(results),
        roc_curves(results),
        *norm_figures(results),
        alpha_curves(results),
        cost_figure(results),
        cost_figure(results, TALL),
    )
    return {drawing.name: drawing for drawing in drawings}
