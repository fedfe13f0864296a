"""A stand-in with the interface of Hugging Face's ``datasets``, which is used where that is installed."""

from collections import UserDict
from importlib.util import find_spec
from typing import ClassVar

from torch.utils.data import IterableDataset


class ClassLabel:
    """The type of a column of classes."""


class Columns:
    """Rows as dicts; a column by its name."""

    def __init__(self, columns, features=None):
        self.columns, self._fingerprint = columns, "1234"
        self.features = dict.fromkeys(columns) | (features or {})

    @property
    def column_names(self):
        return list(self.columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        return self.columns[key] if isinstance(key, str) else {name: c[key] for name, c in self.columns.items()}

    def __iter__(self):
        return (self[row] for row in range(len(self)))

    def select_columns(self, names):
        return Columns({name: self.columns[name] for name in names}, {name: self.features[name] for name in names})


class Stream(IterableDataset):
    """A data set that is read from its beginning only."""

    def __init__(self, columns):
        self._columns, self.column_names, self.features = columns, None, None

    def __iter__(self):
        return iter(self._columns)


class Splits(UserDict):
    """Data sets by the name of the split, which has no ``features`` of its own."""

    column_names: ClassVar = {}


def make_columns(columns, classes=()):
    """Return a data set of these columns, of the real package if there is one."""
    if find_spec("datasets") is None:
        return Columns(columns, {name: ClassLabel() for name in classes})
    import datasets

    data = datasets.Dataset.from_dict(columns)
    for name in classes:
        data = data.cast_column(name, datasets.ClassLabel(num_classes=1 + max(columns[name])))
    return data
