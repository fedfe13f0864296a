"""What a curvature study measures, and of which images."""

from dataclasses import dataclass, replace

from ...core.shaping import check_alpha
from ...curvature.estimate import LOSSES, MATRICES, Loss, Matrix
from ...models.sources import ImageSource, Source
from ..suites.data import picked
from ..suites.library import even_rows
from ..suites.suite import Suite


@dataclass(frozen=True)
class Plan:
    """What is measured; how the network is run stands in ``Settings``.

    Args:
        samples: Most images to take of each data set.
        matrix: ``"hessian"`` or ``"ggn"``, of the loss over the parameters.
        loss: ``"energy"`` or ``"ce_pred"``. Unknown images have no labels, so there is no ``"ce"`` here.
        probes: Random directions behind the spectrum over the parameters.
        steps: Lanczos steps from each.
        alpha: Exponent of partial normalisation; None lets AutoFold choose it on the validation data.
        seed: Of what is random in the estimates. The images do not depend on it.
    """

    samples: int = 500
    matrix: Matrix = "hessian"
    loss: Loss = "energy"
    probes: int = 4
    steps: int = 16
    alpha: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("samples", 2), ("probes", 1), ("steps", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")
        if self.matrix not in MATRICES:
            raise ValueError(f"matrix must be one of {', '.join(MATRICES)}, got {self.matrix!r}.")
        if self.loss not in LOSSES:
            raise ValueError(f"loss must be energy or ce_pred, got {self.loss!r}.")
        if self.loss == "ce":
            raise ValueError(
                "the loss ce is the cross-entropy of the label, and unknown images have none. Use energy, which needs "
                "no label, or ce_pred, which takes the predicted class for it."
            )
        if self.alpha is not None:
            check_alpha(self.alpha)


def studied(suite: Suite, samples: int) -> Suite:
    """Return a suite with at most ``samples`` random images of each judged data set, evenly of all classes.

    All validation images stay, for AutoFold. Training data and unknown validation images are of no use here and left
    out. The images are the same for every network, and a sentence says that there are more.
    """
    judged = [suite.test, *(ood.images for ood in suite.ood)]
    deviations = list(suite.deviations)
    if any(source.rows > samples for source in judged):
        deviations.append(f"at most {samples} images of each data set were taken")
    if not all(isinstance(source, ImageSource) for source in judged):
        deviations.append("the suite holds features only, so the parameters are those of the last layer alone")

    def some(source: Source) -> Source:
        return source if source.rows <= samples else picked(source, even_rows(source, samples, seed=0))

    return replace(
        suite,
        train=None,
        ood_val=None,
        test=some(suite.test),
        ood=tuple(replace(ood, images=some(ood.images)) for ood in suite.ood),
        deviations=tuple(deviations),
    )
