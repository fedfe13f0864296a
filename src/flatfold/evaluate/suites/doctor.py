"""What of a suite is there, what is missing, what is not as it should be: everything at once, before a long run."""

from dataclasses import replace

from ...progress import track
from .doctor_data import examine_data
from .doctor_networks import UNCHECKED, examine_network, with_accuracy
from .file import SuiteFile
from .finding import Finding

__all__ = ["Finding", "examine"]


def examine(suite_file: SuiteFile, accuracy: bool = True, limit: int = 1000) -> list[Finding]:
    """Look at every part of a suite; a problem with one of them does not keep the others from being looked at.

    Images are counted and looked for, not decoded. Networks are loaded, which downloads those that the file calls
    ``pretrained``. An accuracy is as it should be within three standard errors and one point.

    Args:
        suite_file: The suite.
        accuracy: Whether to run each network on test images.
        limit: Most test images to run it on, evenly of all classes.

    Returns:
        One finding for each of train, val, test and ood_val that the file has, for each unknown data set and for each
        network, in this order. There is one more, before those of the networks, if images cannot be prepared or parts
        that are sound by themselves do not go together.
    """
    findings, lenient = examine_data(suite_file), suite_file.lenient()
    usable = any(found.what == "test" and found.found and found.state != "missing" for found in findings)
    for network in track(suite_file.networks, "trying networks"):
        found, model = examine_network(suite_file, network)
        if model is not None and accuracy:
            found = (
                with_accuracy(found, model, lenient, network, limit)
                if usable
                else replace(found, state="note", sentence=UNCHECKED)
            )
        findings.append(found)
    return findings
