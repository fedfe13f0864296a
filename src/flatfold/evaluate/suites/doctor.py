"""What of a suite is there, what is missing, what is not as it should be: everything at once, before a long run."""

from dataclasses import replace
from typing import Any

from torch import nn

from ...models.sources import Source
from ...progress import track
from .doctor_data import examine_data, set_title
from .doctor_networks import UNCHECKED, examine_network, with_accuracy
from .file import SuiteFile
from .finding import Finding
from .keys import SPLITS
from .suite import OodSet, Suite

__all__ = ["Finding", "examine"]


def examine(suite_file: SuiteFile, accuracy: bool = True, limit: int = 1000, read: bool = False) -> list[Finding]:
    """Look at every part of a suite; a problem with one of them does not keep the others from being looked at.

    Images are counted and looked for, and the first of each data set are decoded: prepared, all must be of one size.
    As in a benchmark, up to 1 % of a data set may be unreadable. Networks are loaded, which downloads those that the
    file calls ``pretrained``. An accuracy is as it should be within three standard errors and one point; where the
    suite says nothing of it, it is noted.

    Args:
        suite_file: The suite.
        accuracy: Whether to run each network on test images.
        limit: Most test images to run it on, evenly of all classes.
        read: Whether to decode every image.

    Returns:
        One finding for each of train, val, test and ood_val that the file has, for each unknown data set and for each
        network, in this order. There is one more, before those of the networks, if images cannot be prepared or parts
        that are sound by themselves do not go together.
    """
    findings, parts = examine_data(suite_file, read)
    findings += _together(suite_file, {what: part.source for what, part in parts.items()})
    pictures = {what: part.pictures for what, part in parts.items() if part.pictures is not None}
    lenient = suite_file.lenient()
    usable = any(found.what == "test" and found.found and found.state != "missing" for found in findings)
    for network in track(suite_file.networks, "trying networks"):
        found, model = examine_network(suite_file, network)
        if model is not None and accuracy:
            found = (
                with_accuracy(found, model, lenient, network, limit, pictures.get("test"))
                if usable
                else replace(found, state="note", sentence=UNCHECKED)
            )
        findings.append(found)
    return [
        found.with_remarks(pictures[found.what].remarks()) if found.what in pictures else found for found in findings
    ]


def _together(file: SuiteFile, sources: dict[str, Source | None]) -> list[Finding]:
    """Return what is wrong with sections that are sound by themselves, if all of them are there."""
    needed = {name: source for name, source in sources.items() if name != "train"}
    if None in needed.values():
        return []
    known: dict[str, Any] = {name: sources.get(name) for name in (*SPLITS, "ood_val")}
    unknown: dict[str, Any] = {name: source for name, source in sources.items() if name not in known}
    tables = file.document["ood"]
    try:
        ood = tuple(OodSet(table["name"], table["group"], unknown[set_title(table)], "") for table in tables)
        Suite(name="", about="", model=nn.Identity(), seed=0, ood=ood, **known)
    except ValueError as error:
        return [Finding("all together", "wrong", str(file.path), sentence=str(error))]
    return []
