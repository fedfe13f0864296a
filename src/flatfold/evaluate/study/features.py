"""The curvature of the energy over features and logits, on one data set: all of it exact."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from torch import Tensor

from ...core.bank import FeatureBank
from ...core.chunks import row_chunks
from ...core.head import Head
from ...core.precision import widened
from ...core.shaping import rescaled_logits, row_norms
from ...curvature.features import feature_eigenvalues, feature_spectrum, feature_trace, logit_spectrum, logit_trace
from ...curvature.spectrum import Spectrum
from .measured import Array, Measured, as_array
from .rows import Space, Statistic

TOP = 50  # eigenvalues of single inputs, as in the paper's figure
ROWS = 1024  # at once

Traces = Callable[[Tensor, Tensor], Tensor]
TRACES: dict[Space, Traces] = {"feature": feature_trace, "logit": lambda weight, logits: logit_trace(logits)}
SPECTRA: dict[Space, Callable[[Tensor, Iterable[Tensor]], Spectrum]] = {
    "feature": feature_spectrum,
    "logit": lambda weight, logits: logit_spectrum(logits),
}


class FeatureCurvature:
    r"""The curvature over the features, or the logits, of one data set.

    .. math:: H = W^\top (\operatorname{diag} p - p p^\top) W, \qquad
        p = \operatorname{softmax}(W \tilde h + b), \qquad \tilde h = h / \|h\|^\alpha

    and over the logits the same without W. It is that of the energy, and of the cross-entropy with any label.

    Args:
        bank: The features.
        head: The network's last layer.
    """

    def __init__(self, bank: FeatureBank, head: Head) -> None:
        self.bank, self.head = bank, head
        self.weight, _ = widened(head.weight, bank.features[:0])

    def logits(self, alpha: float, rows: int = ROWS) -> Iterator[Tensor]:
        """Yield the logits of partially normalised features, ``(rows, c)`` at a time."""
        for chunk in row_chunks(len(self.bank), rows):
            weight, h = widened(self.head.weight, self.bank.features[chunk])
            yield rescaled_logits(h @ weight.mT, row_norms(h) ** alpha, self.head.bias)

    def traces(self, space: Space, alpha: float) -> Array:
        """Return the trace at every input, ``(n,)``."""
        return np.concatenate([as_array(TRACES[space](self.weight, logits)) for logits in self.logits(alpha)])

    def eigenvalues(self, alpha: float) -> Array:
        """Return the largest feature eigenvalues at every input, largest first, ``(n, k)``."""
        k = min(TOP, self.head.n_classes, self.head.width)
        return np.concatenate(
            [as_array(feature_eigenvalues(self.weight, logits, k=k)) for logits in self.logits(alpha)]
        )

    def measure(self, space: Space, dataset: str, group: str) -> Measured:
        """Return the largest eigenvalue, the trace, the traces of single inputs and the spectrum, at alpha = 0."""
        traces = self.traces(space, alpha=0.0)
        spectrum = SPECTRA[space](self.weight, self.logits(alpha=0.0))
        values: Mapping[str, float] = {"lambda_max": spectrum.lambda_max, "trace": float(traces.mean())}
        statistics = tuple(
            Statistic(
                dataset,
                group,
                space,
                name,  # type: ignore[arg-type]  # one of the two above
                value,
                None,
                spectrum.method,
                spectrum.matrix,
                spectrum.loss,
                spectrum.matvecs,
                len(self.bank),
            )
            for name, value in values.items()
        )
        return Measured(statistics, traces, None, as_array(spectrum.nodes), as_array(spectrum.weights), spectrum.size)
