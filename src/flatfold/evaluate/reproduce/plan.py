"""What a reproduction runs: the paper's methods, tuned as the paper tuned them, and how much of everything else."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...core.shaping import check_alpha
from ...detectors import create, get_method
from ..banks import Banks
from ..paper_tables import read_table
from ..spec import Spec, parse_spec
from ..tuning import grid_points
from .family import in_family

BESIDES = ("mdsens",)  # of which the paper's appendix speaks, but none of its tables


@dataclass(frozen=True)
class Plan:
    """What is measured; how the network is run stands in ``Settings``.

    Args:
        samples: Most images of each data set whose curvature is measured.
        batch_size: Inputs in the batch on which costs are measured.
        rounds: How often each cost is timed.
        methods: As for a benchmark; None takes the paper's.
        alpha: Exponent of partial normalisation; None lets AutoFold choose it on the validation data.
    """

    samples: int = 200
    batch_size: int = 256
    rounds: int = 11
    methods: tuple[str | Spec, ...] | None = None
    alpha: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("samples", 2), ("batch_size", 1), ("rounds", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")
        if self.methods is not None and not self.methods:
            raise ValueError("a reproduction needs at least one method, got none. Leave methods out for the paper's.")
        if self.alpha is not None:
            check_alpha(self.alpha)

    def specs(self, banks: Banks) -> list[Spec]:
        """Return the methods: those that were given, or the paper's as far as these data can tune them."""
        if self.methods is not None:
            return [parse_spec(method) if isinstance(method, str) else method for method in self.methods]
        return [_tuned_spec(name, banks) for name in paper_methods()]


def paper_methods() -> list[str]:
    """Return the names of all methods of the paper as the registry has them, its 14 baselines first.

    Example:
        >>> paper_methods()[:3], paper_methods()[-3:]
        (['openmax', 'msp', 'tempscale'], ['autofold', 'autofold-r', 'autofold-a'])
    """
    rows = list(dict.fromkeys(number.row.lower() for number in read_table("main")))
    own = [name for name in rows if in_family(name)]
    return [*(name for name in rows if name not in own), *BESIDES, *own]


def _tuned_spec(name: str, banks: Banks) -> Spec:
    """Return a method, tuned on unknown validation images where there are some and it has something to choose.

    OpenOOD and the paper choose so. Where not one point of the grid can be used, as when ViM is to keep more dimensions
    than there are, the method has its own defaults.
    """
    grid = get_method(name).grid
    points = grid_points(grid, name) if grid else []
    if banks.ood_val is None or len(points) < 2 or not _usable(name, points, banks):
        return Spec(name)
    return Spec(name, tune="ood")


def _usable(name: str, points: Sequence[dict[str, Any]], banks: Banks) -> bool:
    method = get_method(name)
    bank = banks.train if method.fits_on == "train" else banks.val
    if method.sees != "features" or bank is None:
        return True  # the benchmark says why not
    for point in points:
        try:
            create(name, **point).fit(bank, banks.head)
        except ValueError:
            continue
        return True
    return False
