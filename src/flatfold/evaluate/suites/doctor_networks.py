"""Whether the networks of a suite can be loaded, and classify as well as they should."""

from dataclasses import replace

from torch import nn

from ...core.bank import FeatureBank
from ...core.head import Head
from ...models.extract import one_pass
from ...models.sources import ImageSource, Source
from ...models.writer import MemoryBank
from ..banks import accuracy, accuracy_fits
from .data import picked
from .file import SuiteFile
from .finding import FAILURES, Finding, Pictures, State, origin, reason, unset_sentence
from .library import even_rows
from .networks import MAKERS, Network, load_network
from .text import expanded

CAUSES = "Typical causes: another transform, another order of classes, another checkpoint."
UNNORMALISED = "No mean and std are set: is the network used to values from 0 to 1?"
UNCHECKED = "Its accuracy is unchecked, because there are no test images that could be used."


def examine_network(suite_file: SuiteFile, network: Network) -> tuple[Finding, nn.Module | None]:
    """Return whether a network can be loaded, and the network if it can.

    Args:
        suite_file: The suite.
        network: One of its networks.
    """
    table = network.table
    where = str(next((table[key] for key in ("weights", *MAKERS) if key in table), ""))
    where = where.replace("{seed}", str(network.seed))
    expected = f"{table['accuracy']:.2f} %" if "accuracy" in table else ""
    unset = unset_sentence(where, suite_file.variables)
    if unset:
        return Finding(f"network {network.name}", "missing", where, expected, "", unset), None
    if {"weights", "linear"} & table.keys():
        where = str(expanded(where, suite_file.folder, suite_file.variables))
    found = Finding(f"network {network.name}", "ok", where, expected)
    try:
        return found, load_network(network, suite_file.folder, suite_file.variables)
    except FAILURES as error:
        state: State = "missing" if isinstance(error, FileNotFoundError) else "wrong"
        return replace(found, state=state, sentence=reason(error, "network", table)), None


def with_accuracy(
    found: Finding,
    model: nn.Module,
    suite_file: SuiteFile,
    network: Network,
    limit: int,
    pictures: Pictures | None = None,
) -> Finding:
    """Return the finding about a network that could be loaded with how well it classifies what can be read.

    Args:
        found: What ``examine_network`` found.
        model: The network.
        suite_file: The suite, with as many images as there are.
        network: Where the file says what it is.
        limit: Most test images to run it on, evenly of all classes.
        pictures: What is known of the test images; those that cannot be read are added.
    """
    rows = MemoryBank()
    try:
        test = suite_file.data(network).split("test")
        some = test if test.rows <= limit else picked(test, even_rows(test, limit, network.draws))
        bank, layer = one_pass(model, some, None, network.table.get("head"), lambda *_: rows, unreadable=1.0)
        share = accuracy(bank, layer.head)
    except FAILURES as error:
        return replace(found, state="wrong", sentence=f"It cannot be run on the test images: {error}")
    if pictures is not None and isinstance(some, ImageSource):
        pictures.tried = max(pictures.tried, some.rows)
        pictures.broken |= dict(origin(some, row) for row in rows.unreadable)
    hint = f" {UNNORMALISED}" if _unnormalised(some) else ""
    state, sentence = _judged(share, network.table.get("accuracy"), bank, layer.head, hint)
    return replace(found, state=state, found=f"{100 * share:.2f} %", sentence=sentence)


def _judged(share: float, expected: float | None, bank: FeatureBank, head: Head, hint: str) -> tuple[State, str]:
    """Return whether an accuracy is what it should be, and what to say if not or if nobody said what it should be."""
    n, outputs = len(bank), head.n_classes
    largest = -1 if bank.labels is None else int(bank.labels.max())
    if largest >= outputs:
        return "wrong", f"The test images have labels up to {largest}, but the network has {outputs} classes."
    told = f"{100 * share:.2f} % of {n} test images are right"
    if expected is None:
        guessed = f" Guessing would be as good. {CAUSES}" if accuracy_fits(share, 100 / outputs, n) else ""
        return "note", f"{told}; the suite does not say how many should be (accuracy = ...).{guessed}{hint}"
    if accuracy_fits(share, expected, n):
        return "ok", ""
    return "wrong", f"{told}, {expected:.2f} % should be. {CAUSES}{hint}"


def _unnormalised(source: Source) -> bool:
    return isinstance(source, ImageSource) and source.transform.mean is None and source.transform.std is None
