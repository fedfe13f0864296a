"""Features that were saved before, in the place of images, and the linear layer that goes with them."""

from __future__ import annotations

import hashlib
import json
from copy import copy
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..core.head import Head
from .manifest import read_manifest
from .picked import check_picked
from .sources import Source
from .store import load_bank

SHOWN = 3  # names of tensors in a message


class FeatureRows(Source):
    """The rows of a bank on disk as inputs, so that a network of one linear layer can be run on them.

    Iterating gives ``x`` of shape ``(n, d)``, or pairs ``(x, y)`` with labels. The fingerprint holds the checksums in
    the bank's manifest, with which its files are compared when it is opened.

    Args:
        path: The directory of the bank, as ``save_bank`` or ``extract`` with ``out=`` wrote it.
        batch_size: Rows in a batch.
        labels: False to leave out the labels of the bank; True needs a bank that has them.

    Attributes:
        bank: The features, ``(n, d)``, and all labels that there are.
        labels: ``(n,)`` int64, or None when they are not wanted.

    Raises:
        DamagedBank: Something is missing, unfinished, or not as it was written.
        ValueError: Labels are wanted of a bank without any.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import torch
        >>> from flatfold import FeatureBank, save_bank
        >>> with TemporaryDirectory() as folder:
        ...     save_bank(FeatureBank(torch.eye(3)), folder)
        ...     [tuple(x.shape) for x in FeatureRows(folder, batch_size=2, labels=False)]
        [(2, 3), (1, 3)]
    """

    def __init__(self, path: Path | str, batch_size: int = 64, labels: bool = True) -> None:
        super().__init__(batch_size)
        self.bank = load_bank(path)
        if labels and self.bank.labels is None:
            raise ValueError(f"labels are wanted, but the bank in {path} has none. Pass labels=False to do without.")
        self.labels = self.bank.labels if labels else None
        self._chosen: Tensor | None = None
        shards = read_manifest(Path(path)).shards
        self._checksums = [shards[index].sha256 for index in sorted(shards)]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.bank) if self._chosen is None else len(self._chosen)

    def picked(self, rows: NDArray[np.integer]) -> FeatureRows:
        """Return some rows, in the order asked for, as a source of their own; the features are not copied."""
        check_picked(rows, self.rows)
        chosen = torch.from_numpy(rows.astype(np.int64))
        some = copy(self)
        some.labels = None if self.labels is None else self.labels[chosen]
        some._chosen = chosen if self._chosen is None else self._chosen[chosen]
        return some

    @property
    def fingerprint(self) -> str:
        """The sha256 of the checksums of the bank's files, of whether labels are given, and of picked rows."""
        identity = ["features", *self._checksums, "no labels" if self.labels is None else "labels"]
        identity += [] if self._chosen is None else [hashlib.sha256(self._chosen.numpy().tobytes()).hexdigest()]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    def read(self, rows: range) -> Tensor | tuple[Tensor, Tensor]:
        """Return some rows of the bank."""
        where = slice(rows.start, rows.stop)
        x = self.bank.features[where if self._chosen is None else self._chosen[where]]
        return x if self.labels is None else (x, self.labels[rows.start : rows.stop])


def linear_head(path: Path | str) -> nn.Linear:
    """Return a linear layer in evaluation mode from a safetensors file.

    Args:
        path: A file with the tensors ``weight`` ``(c, d)`` and, for a layer with one, ``bias`` ``(c,)``, and no
            others; float32 or float64, which the layer keeps.

    Raises:
        FileNotFoundError: There is no such file.
        TypeError: The tensors are of another type.
        ValueError: The file is damaged, or its tensors make no head.
    """
    head = read_head(path)
    classes, width = head.weight.shape
    # On "meta" nothing is drawn for weights that are replaced at once.
    layer = nn.Linear(width, classes, bias=head.bias is not None, device="meta")
    layer.weight = nn.Parameter(head.weight)
    if head.bias is not None:
        layer.bias = nn.Parameter(head.bias)
    return layer.eval()


def read_head(path: Path | str) -> Head:
    """Return the weight and bias in a file that :func:`linear_head` takes; it raises the same."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}. Check the path.")
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} must be a safetensors file, but cannot be read: {error}. Write it again.") from error
    if "weight" not in tensors or tensors.keys() - {"weight", "bias"}:
        names = sorted(tensors)
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise ValueError(
            f"{path} must hold the tensors 'weight' and, if there is one, 'bias', of one linear layer; it holds "
            f"{', '.join(map(repr, names[:SHOWN])) or 'none'}{more}. Save the state dict of the last layer alone."
        )
    try:
        return Head(tensors["weight"], tensors.get("bias"))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{path}: {error}") from error
