"""The features of every data set of a suite, each extracted once and kept on disk."""

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..core.bank import FeatureBank
from ..core.head import Head
from ..models.extract import extract
from ..models.identity import weights_hash
from .results import ID
from .suite import Suite

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Banks:
    """The features of every data set of a suite."""

    head: Head
    train: FeatureBank
    val: FeatureBank
    test: FeatureBank
    ood: dict[str, FeatureBank]
    ood_val: FeatureBank | None = None

    @property
    def judged(self) -> dict[str, FeatureBank]:
        """The banks that are scored: the in-distribution test data first."""
        return {ID: self.test, **self.ood}


def extract_all(suite: Suite, folder: Path, device: str = "cpu", tuning: bool = False) -> Banks:
    """Return the features of every data set, from ``folder`` where they are there already.

    Each bank lies under a name that holds the weights and the data, so that those of another network never get in the
    way.

    Args:
        suite: Network and data.
        folder: Where the banks are kept.
        device: Of the network.
        tuning: Whether the unknown validation images are wanted too.
    """
    sources = {"train": suite.train, "val": suite.val, "test": suite.test}
    sources |= {"ood_val": suite.ood_val} if tuning and suite.ood_val is not None else {}
    sources |= {ood.name: ood.images for ood in suite.ood}
    weights = weights_hash(suite.model)
    banks = {}
    for name, images in sources.items():
        out = folder / f"{name}-{short_key(weights, images.fingerprint)}"
        banks[name], head = extract(suite.model, images, device=device, out=out, head=suite.head)
    log.info("features of %d images from the input of %r", sum(map(len, banks.values())), head)
    ood = {ood.name: banks[ood.name] for ood in suite.ood}
    return Banks(head, banks["train"], banks["val"], banks["test"], ood, banks.get("ood_val"))


def short_key(*parts: str) -> str:
    """Return a few letters that stand for all of ``parts``."""
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def accuracy(bank: FeatureBank, head: Head) -> float:
    """Return the share of a labelled bank that the head classifies correctly."""
    if bank.labels is None:
        raise ValueError("accuracy needs labels, but this bank has none. Give FeatureBank(features, labels).")
    hits: Tensor = head(bank.features).argmax(dim=-1) == bank.labels
    return float(hits.double().mean())
