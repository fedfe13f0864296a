"""The features of every data set of a suite, each extracted once and kept on disk."""

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path

from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.validation import UnreadableImage, check_fit
from ..io.progress import track
from ..models.extract import extract_features
from ..models.fingerprint import weights_hash
from .results import ID
from .suites.suite import Suite

# How a benchmark is run; what it is about stands in its suite.


@dataclass(frozen=True)
class Settings:
    """How to run a benchmark. Only what is left out as unreadable can change a figure.

    Args:
        device: Any torch device string.
        workers: Processes that read images ahead; 0 reads them where the network runs.
        unreadable: Share of the images of a data set that may be left out because they cannot be read.
        replicates: Of the bootstrap behind the intervals; 0 leaves out all but those of AUROC.
        command: What was typed, for the record.
    """

    device: str = "cpu"
    workers: int = 0
    unreadable: float = 0.01
    replicates: int = 1000
    command: str = ""


SHOWN = 3  # unreadable images that a message names


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Banks:
    """The features of every data set of a suite.

    Attributes:
        unreadable: Images that have no row because they could not be read, and why, by data set and number.
    """

    head: Head
    train: FeatureBank | None
    val: FeatureBank
    test: FeatureBank
    ood: dict[str, FeatureBank]
    ood_val: FeatureBank | None = None
    unreadable: dict[str, dict[int, str]] = field(default_factory=dict)

    @property
    def judged(self) -> dict[str, FeatureBank]:
        """The banks that are scored: the in-distribution test data first."""
        return {ID: self.test, **self.ood}

    def row_of(self, dataset: str, index: int) -> int:
        """Return the number, in its data set, of the image behind a row of a judged bank."""
        for gap in sorted(self.unreadable.get("test" if dataset == ID else dataset, ())):
            index += gap <= index
        return index


def extract_all(suite: Suite, folder: Path, settings: Settings | None = None, tuning: bool = False) -> Banks:
    """Return the features of every data set, from ``folder`` where they are there already.

    Each bank lies under a name that holds the weights and the data, so that those of another network never get in the
    way.

    Args:
        suite: Network and data.
        folder: Where the banks are kept.
        settings: How to run the network and read the images.
        tuning: Whether the unknown validation images are wanted too.
    """
    settings = settings or Settings()
    wanted = {name: source for name, source in suite.sources.items() if tuning or name != "ood_val"}
    weights = weights_hash(suite.model)
    banks, unreadable = {}, {}
    for name, source in track(wanted.items(), "data sets", len(wanted)):
        out = folder / f"{name}-{short_key(weights, source.fingerprint)}"
        with _named(name):
            banks[name], found, unreadable[name] = extract_features(
                suite.model,
                source,
                settings.device,
                suite.head,
                settings.workers,
                settings.unreadable,
                out=out,
                weights=weights,
            )
            check_fit(banks[name], found.head)
        _tell(name, source.rows, unreadable[name])
    log.info("features of %d images from the input of %r", sum(map(len, banks.values())), found.head)
    return Banks(
        found.head,
        banks.get("train"),
        banks["val"],
        banks["test"],
        {ood.name: banks[ood.name] for ood in suite.ood},
        banks.get("ood_val"),
        {name: reasons for name, reasons in unreadable.items() if reasons},
    )


@contextmanager
def _named(dataset: str) -> Iterator[None]:
    """Begin a message about images with the name of their data set."""
    try:
        yield
    except UnreadableImage as error:
        raise UnreadableImage(f"{dataset}: {error}") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"{dataset}: {error}") from error


def _tell(dataset: str, rows: int, unreadable: dict[int, str]) -> None:
    """Log which images are left out."""
    if unreadable:
        shown = " ".join(list(unreadable.values())[:SHOWN]) + (" ..." if len(unreadable) > SHOWN else "")
        log.warning("%s: %d of %d images cannot be read and are left out. %s", dataset, len(unreadable), rows, shown)


def short_key(*parts: str) -> str:
    """Return a few letters that stand for all of ``parts``."""
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def accuracy(bank: FeatureBank, head: Head) -> float:
    """Return the share of a labelled bank that the head classifies correctly."""
    if bank.labels is None:
        raise ValueError("accuracy needs labels, but this bank has none. Give FeatureBank(features, labels).")
    hits: Tensor = head(bank.features).argmax(dim=-1) == bank.labels
    return float(hits.double().mean())


def accuracy_fits(found: float, expected: float, n: int) -> bool:
    """Tell whether an accuracy is what it should be: within three standard errors and one point.

    Args:
        found: Share of correct answers.
        expected: In per cent.
        n: Number of images behind ``found``.
    """
    share = expected / 100
    return abs(found - share) <= 3 * sqrt(share * (1 - share) / n) + 0.01
