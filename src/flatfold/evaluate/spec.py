"""Methods as ``--methods`` names them: ``knn``, ``knn:k=10``, ``react:percentile=95:alpha=0.5``, ``knn@id``."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ..detectors import get_method, hyperparameters
from ..detectors.registry import parse_method

TuneOn = Literal["id", "ood"]


@dataclass(frozen=True)
class Spec:
    """A method with some of its hyper-parameters, and the data on which the others are tuned."""

    name: str
    hyper: dict[str, Any] = field(default_factory=dict)
    tune: TuneOn | None = None

    def __post_init__(self) -> None:
        method = get_method(self.name)
        hyperparameters(self.name, **self.hyper)  # raises for names that do not exist
        if self.tune not in (None, "id", "ood"):
            raise ValueError(f"{self.name}@{self.tune} is not valid: a method is tuned @id or @ood.")
        if self.tune and not self.grid:
            reason = "it chooses for itself" if method.tuned_on == "id" else "it has no hyper-parameter to choose"
            raise ValueError(f"{self.label} cannot be tuned: {reason}. Leave out the @.")
        if self.tune == "id" and method.sees != "features":
            raise ValueError(f"{self.name} sees inputs, not features, and cannot be tuned on ID data. Use @ood.")

    @property
    def grid(self) -> dict[str, Any]:
        """The values to try, of each hyper-parameter that is not given."""
        return {key: values for key, values in get_method(self.name).grid.items() if key not in self.hyper}

    @property
    def label(self) -> str:
        """The name in tables and figures, with hyper-parameters and the data it was tuned on."""
        hyper = "".join(f":{key}={value}" for key, value in self.hyper.items())
        return f"{self.name}{hyper}" + (f"@{self.tune}" if self.tune else "")

    @property
    def tuned_on(self) -> str:
        """Which data chose hyper-parameters: ``"nothing"``, ``"id"`` or ``"ood"``."""
        return self.tune or get_method(self.name).tuned_on


def parse_spec(text: str) -> Spec:
    """Return the method that a word of ``--methods`` names.

    Example:
        >>> parse_spec("gen:top=10@ood")
        Spec(name='gen', hyper={'top': 10}, tune='ood')
    """
    method, at, tune = text.strip().partition("@")
    return Spec(*parse_method(method), tune=tune if at else None)  # type: ignore[arg-type]  # Spec checks it


def parse_specs(text: str) -> list[Spec]:
    """Return the methods that ``--methods`` names, separated by commas; those inside brackets do not count."""
    words, depth = [""], 0
    for letter in text:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            words.append("")
        else:
            words[-1] += letter
    return [parse_spec(word) for word in words if word.strip()]
