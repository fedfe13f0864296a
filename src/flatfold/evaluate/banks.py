"""Extract the features of every data set of a suite once, and store them on disk."""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path

from torch import Tensor, nn

from ..core.bank import FeatureBank, Head
from ..core.validation import check_fit
from ..data.feature_files import FeatureRows
from ..data.loading import Loading
from ..data.sources import Source
from ..detectors.registry import FitsOn
from ..errors import MethodRefusedError, UnreadableInputError
from ..io.progress import track
from ..network.execution import Execution
from ..network.fingerprint import weights_hash
from ..network.network import Network
from ..passes.extract import extract_features
from .results import ID
from .suites.suite import Suite

SHOWN = 3  # unreadable images that a message names
NO_DATA = {
    "train": "there is no training data to learn from. Add [train] to the file of the suite, or pass fit=.",
    "val": "there is no validation data to learn from. Pass val= or fit=.",
}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """Settings of a benchmark run. They do not change results, except by skipping unreadable images.

    Args:
        loading: Settings for reading images; the transform and batch size are those of the suite.
        execution: Settings for running the network.
        replicates: Bootstrap replicates for the intervals; 0 omits all intervals except those of AUROC.
        command: The command line, for the provenance.
    """

    loading: Loading = field(default_factory=lambda: Loading(max_unreadable=0.01))
    execution: Execution = field(default_factory=Execution)
    replicates: int = 1000
    command: str = ""

    @property
    def device(self) -> str:
        """The device on which methods and networks run in this process."""
        return str(self.execution.here().device or "cpu")


@dataclass(frozen=True)
class Banks:
    """The features of every data set of a suite."""

    head: Head
    train: FeatureBank | None
    val: FeatureBank | None
    test: FeatureBank
    ood: dict[str, FeatureBank]
    ood_val: FeatureBank | None = None
    unreadable: dict[str, dict[int, str]] = field(default_factory=dict)  # errors of unreadable images, by row
    runtime: str = ""  # runtime of the network

    @property
    def versions(self) -> list[int]:
        """How often each tensor was changed in place, as torch counts it."""
        banks = [bank for bank in (self.train, self.val, self.ood_val, *self.test_sets.values()) if bank is not None]
        tensors = [self.head.weight, self.head.bias, *(each for it in banks for each in (it.features, it.labels))]
        return [each._version for each in tensors if each is not None and not each.is_inference()]

    @property
    def seconds_saved(self) -> float:
        """The time of fits that methods have saved until now by sharing moments of the training data."""
        return 0.0 if self.train is None else self.train.seconds_saved

    def fitted_on(self, split: FitsOn) -> FeatureBank:
        """Return the features that a method of a split learns from; raise MethodRefusedError if there are none."""
        bank = self.train if split == "train" else self.val
        if bank is None and split == "nothing":
            return FeatureBank(self.head.weight[:1])  # of which only the size is used
        if bank is None:
            raise MethodRefusedError(NO_DATA[split])
        return bank

    @property
    def test_sets(self) -> dict[str, FeatureBank]:
        """The banks for evaluation, the ID test data first."""
        return {ID: self.test, **self.ood}


def extract_all(suite: Suite, folder: Path, settings: Settings | None = None, tuning: bool = False) -> Banks:
    """Extract the features of every data set into ``folder``, those of OOD validation images only with ``tuning``."""
    settings = settings or Settings()
    wanted = suite.sources_for(tuning)
    banks: dict[str, FeatureBank] = {}
    unreadable: dict[str, dict[int, str]] = {}
    execution = replace(
        settings.execution,
        device=settings.execution.device or "cpu",
        head=suite.head,
        onnx_cache=folder / f"{short_key(weights_hash(suite.model))}.graph",
    )
    network: nn.Module | Network = suite.model
    used = ""
    folders = bank_folders(wanted, suite.model, folder, settings)
    for name, source in track(wanted.items(), "data sets", len(wanted)):
        try:
            if (stored := stored_bank(source, suite.model, settings)) is not None:
                banks[name] = stored
                check_fit(stored, linear_head(suite.model))
                continue
            extracted = extract_features(
                network,
                source,
                settings.loading,
                execution,
                out=folders[name],
                rows=sum(each.rows for each in wanted.values()),
            )
            network, banks[name], reasons = extracted.network, extracted.bank, extracted.unreadable
            used = extracted.runtime or used
            check_fit(banks[name], network.found.head)
        except UnreadableInputError as error:
            raise type(error)(f"{name}: {error}") from error
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}: {error}") from error
        if reasons:
            unreadable[name] = reasons
            some = " ".join(list(reasons.values())[:SHOWN]) + (" ..." if len(reasons) > SHOWN else "")
            log.warning("%s: %d of %d images are unreadable and skipped. %s", name, len(reasons), source.rows, some)
    head = network.found.head if isinstance(network, Network) else linear_head(suite.model)
    log.info("features of %d images from the input of %r", sum(map(len, banks.values())), head)
    if used:
        log.info("runtime: %s", used)
    ood = {ood.name: banks[ood.name] for ood in suite.ood}
    train = banks.get("train")
    splits = (None if train is None else train.sharing_moments(), banks.get("val"), banks["test"])
    return Banks(head, *splits, ood, banks.get("ood_val"), unreadable, used)


def bank_folders(sources: Mapping[str, Source], model: nn.Module, folder: Path, settings: Settings) -> dict[str, Path]:
    """Return the folder for the features of each data set.

    Its name depends on weights and data, so that banks of several networks can share a folder.
    """
    dtype = settings.execution.dtype
    key = (weights_hash(model),) if dtype is None else (weights_hash(model), str(dtype))
    return {name: folder / f"{name}-{short_key(*key, source.fingerprint)}" for name, source in sources.items()}


def stored_bank(source: Source, model: nn.Module, settings: Settings) -> FeatureBank | None:
    """Return the bank of a source of features if the model is only their last layer: there is nothing to extract."""
    if not isinstance(source, FeatureRows) or type(model) is not nn.Linear or settings.execution.dtype is not None:
        return None
    return source.whole


def linear_head(model: nn.Module) -> Head:
    """Return the head that a linear layer is."""
    assert isinstance(model, nn.Linear)
    return Head(model.weight.detach(), None if model.bias is None else model.bias.detach())


def short_key(*parts: str) -> str:
    """Return 16 hexadecimal digits that depend on all of ``parts``."""
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def accuracy(bank: FeatureBank, head: Head) -> float:
    """Return the accuracy of the head on a labelled bank."""
    if bank.labels is None:
        raise ValueError("accuracy needs labels, but this bank has none. Pass FeatureBank(features, labels).")
    hits: Tensor = head.predict(bank.features) == bank.labels
    return float(hits.double().mean())


def accuracy_fits(share: float, expected: float, n: int) -> bool:
    """Return whether an accuracy on ``n`` images is within three standard errors and one point of ``expected`` %."""
    wanted = expected / 100
    return abs(share - wanted) <= 3 * sqrt(wanted * (1 - wanted) / n) + 0.01
