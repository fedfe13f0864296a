"""Whether the networks of a suite can be loaded, and classify as well as they should."""

from dataclasses import replace

from torch import nn

from ...models.extract import extract
from ..banks import accuracy, accuracy_fits
from .data import picked
from .file import SuiteFile
from .finding import FAILURES, Finding, State, reason, unset_sentence
from .library import even_rows
from .networks import MAKERS, Network, load_network
from .text import expanded

CAUSES = "Typical causes: another transform, another order of classes, another checkpoint."
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


def with_accuracy(found: Finding, model: nn.Module, suite_file: SuiteFile, network: Network, limit: int) -> Finding:
    """Return the finding about a network that could be loaded with how well it classifies.

    Args:
        found: What ``examine_network`` found.
        model: The network.
        suite_file: The suite, with as many images as there are.
        network: Where the file says what it is.
        limit: Most test images to run it on, evenly of all classes.
    """
    try:
        test = suite_file.data(network).split("test")
        some = test if test.rows <= limit else picked(test, even_rows(test, limit, network.draws))
        bank, head = extract(model, some, head=network.table.get("head"))
        share = accuracy(bank, head)
    except FAILURES as error:
        return replace(found, state="wrong", sentence=f"It cannot be run on the test images: {error}")
    labels = 0 if bank.labels is None else int(bank.labels.max()) + 1
    state, sentence = _judged(share, network.table.get("accuracy"), some.rows, labels, head.n_classes)
    return replace(found, state=state, found=f"{100 * share:.2f} %", sentence=sentence)


def _judged(share: float, expected: float | None, n: int, labels: int, outputs: int) -> tuple[State, str]:
    """Return whether an accuracy is what it should be, and what to say if not."""
    if labels > outputs:
        return "wrong", f"The test images have labels up to {labels - 1}, but the network has {outputs} classes."
    if expected is None:
        guessed = accuracy_fits(share, 100 / outputs, n)
        return ("note", f"Guessing would be as good, on {n} test images. {CAUSES}") if guessed else ("ok", "")
    if accuracy_fits(share, expected, n):
        return "ok", ""
    return "wrong", f"{100 * share:.2f} % of {n} test images are right, {expected:.2f} % should be. {CAUSES}"
