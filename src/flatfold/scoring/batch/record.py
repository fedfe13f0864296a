"""What was found out about some images, in memory and as a line of text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from ..writers import Columns


@dataclass(frozen=True)
class Record:
    """The rows of a table for the images that could be scored, and why the others could not.

    Attributes:
        columns: ``path``, ``predicted``, ``score``, ``p_value`` and ``is_ood``, ``(n,)`` each.
        unreadable: Columns ``path`` and ``reason`` of the others.
    """

    columns: Columns
    unreadable: Columns

    @classmethod
    def joined(cls, records: Sequence[Self]) -> Self:
        """Return several records, at least one, as one."""
        tables = ([record.columns for record in records], [record.unreadable for record in records])
        return cls(*({name: np.concatenate([part[name] for part in parts]) for name in parts[0]} for parts in tables))

    def to_json(self) -> str:
        """Return a line of text that holds every digit."""
        tables = (self.columns, self.unreadable)
        return json.dumps([{name: (a.dtype.str, a.tolist()) for name, a in table.items()} for table in tables])

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return what :meth:`to_json` was called on."""
        tables = json.loads(text)
        return cls(*({name: np.array(values, kind) for name, (kind, values) in table.items()} for table in tables))
