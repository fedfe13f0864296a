"""How a benchmark is run; what it is about stands in its suite."""

from dataclasses import dataclass


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
