"""What a run has come to, as a small file beside its table; those of several shards add up to that of one run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ...files import sha256_of, write_atomically
from ..monitor import Monitor
from .shard import Shard

FORMAT, VERSION = "flatfold-scores", 1
LONGEST = 200  # bytes of the name of a table: those beside it are longer, and most systems end at 255


@dataclass(frozen=True)
class Summary:
    """What a run, or one shard of it, has scored.

    Args:
        job: What tells the run from others: ``guard``, ``data`` and ``place`` (what the table calls the
            images) as sha256, ``fpr``, ``batch_size``, ``rows``.
        shard: Which share of it this is.
        unreadable: How many images could not be scored.
        monitor: Counts of all that could.
        table: The sha256 of the table.
    """

    job: Mapping[str, Any]
    shard: Shard
    unreadable: int
    monitor: Monitor
    table: str

    @property
    def scored(self) -> int:
        """How many images have a row in the table."""
        return self.monitor.seen

    def save(self, out: Path) -> None:
        """Write it beside the table ``out``."""
        values = {"shard": str(self.shard), "unreadable": self.unreadable, "table": self.table}
        content = {"format": FORMAT, "version": VERSION, "job": self.job, **values, "monitor": self.monitor.to_dict()}
        write_atomically(summary_of(out), json.dumps(content, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, out: Path) -> Self:
        """Read what lies beside the table ``out``."""
        path = summary_of(out)
        if not path.is_file():
            raise FileNotFoundError(
                f"{out} has no summary {path.name} beside it: was it written by `flatfold score`, and to its end? "
                "Keep the two together."
            )
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(values, dict) or (values.get("format"), values.get("version")) != (FORMAT, VERSION):
                raise ValueError(f"its format must be {FORMAT!r}, version {VERSION}")
            job, unreadable, table = values["job"], values["unreadable"], values["table"]
            if not isinstance(job, dict) or type(unreadable) is not int or unreadable < 0 or type(table) is not str:
                raise ValueError("its values have the wrong types")
            return cls(job, Shard.parsed(values["shard"]), unreadable, Monitor.from_dict(values["monitor"]), table)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} cannot be used: {error}. Score the images again.") from error

    @classmethod
    def added(cls, shards: Sequence[Self], out: Path) -> Self:
        """Return what all shards of a run have come to, whose joined table is ``out``."""
        first, *others = shards
        monitor = sum((other.monitor for other in others), first.monitor)
        return cls(first.job, Shard(), sum(shard.unreadable for shard in shards), monitor, sha256_of(out))


def check_name(out: Path) -> None:
    """Raise if the name of a table is too long for those of the files beside it: to be asked before long work."""
    if (length := len(os.fsencode(out.name))) > LONGEST:
        raise ValueError(
            f"the name of a table has at most {LONGEST} bytes, because files beside it have longer ones, got {length}. "
            "Choose a shorter --out."
        )


def summary_of(out: Path) -> Path:
    """Return where the summary of a table lies."""
    return out.with_name(f"{out.name}.summary.json")


def unreadable_of(out: Path) -> Path:
    """Return where the list of images lies that could not be scored."""
    return out.with_name(f"{out.name}.unreadable.csv")


def journal_of(out: Path) -> Path:
    """Return where a run notes what is done, as long as its table is not."""
    return out.with_name(f"{out.name}.journal")
