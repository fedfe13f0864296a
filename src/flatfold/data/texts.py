"""Texts: a tokeniser of transformers as a function of rows, which a guard stores by name."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import torch
from msgspec import Meta

from .labels import LABEL_KEYS

PROBES = ("", "Is this text new?", "12,345.67 & the naïve café\n", "two words " * 40)  # to recognise a tokeniser
PASS_AGAIN = "Pass the one used in fit: Guard.load(path, model, loading=Loading(collate=tokenizer))."
_PUBLISHED = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
LONGEST = 2**17  # tokens of a text, which a file of unknown origin may ask for
Length = Annotated[int, Meta(ge=1, le=LONGEST)]
Side = Literal["left", "right"]
log = logging.getLogger(__name__)


class CallOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of each call of a tokeniser."""

    padding: bool | Literal["longest", "max_length"] = True
    truncation: bool | Literal["longest_first", "only_first"] = True
    max_length: Length | None = None
    pad_to_multiple_of: Length | None = None
    add_special_tokens: bool = True
    return_token_type_ids: bool | None = None
    return_attention_mask: bool | None = None


class TokeniserSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a file holds of a tokeniser: the name or folder to load it from, what was set afterwards, and a checksum."""

    name: Annotated[str, Meta(min_length=1, max_length=1000)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    options: CallOptions = CallOptions()
    pad_token: str | None = None
    padding_side: Side | None = None
    truncation_side: Side | None = None
    model_max_length: Length | None = None


class Tokeniser:
    """A tokeniser with the options of its calls, which joins rows with one text each into a batch.

    It is loaded from its name when the first rows come, if there is only a ``spec``: from the files of this machine,
    without access to a network, and without running code that came with it.
    """

    def __init__(self, tokeniser: Any, options: Mapping[str, Any], spec: TokeniserSpec | None = None) -> None:
        self._tokeniser = tokeniser
        self._options = {"padding": True, "truncation": True, **options, "return_tensors": "pt"}
        self._spec = spec

    @classmethod
    def of(cls, collate: Any) -> Tokeniser | None:
        """Return the tokeniser that ``collate`` is, also in a ``functools.partial`` with options; None for others."""
        if isinstance(collate, cls):
            return collate
        options: Mapping[str, Any] = {}
        if isinstance(collate, partial) and not collate.args:
            collate, options = collate.func, collate.keywords
        return cls(collate, options) if hasattr(collate, "pad") and hasattr(collate, "decode") else None

    @classmethod
    def stored(cls, spec: TokeniserSpec) -> Tokeniser:
        """Return the tokeniser of a file, to be loaded when it is needed."""
        return cls(None, msgspec.to_builtins(spec.options), spec)

    def spec(self) -> TokeniserSpec | None:
        """Return what a file holds of this tokeniser; None if it could not be loaded again from that."""
        if self._spec is not None:
            return self._spec
        own, name = self._tokeniser, getattr(self._tokeniser, "name_or_path", None)
        if not isinstance(name, str) or not (_is_published(name) or Path(name).is_dir()):
            return None
        length = getattr(own, "model_max_length", None)
        content = {
            "name": name,
            "options": {key: value for key, value in self._options.items() if key != "return_tensors"},
            "pad_token": getattr(own, "pad_token", None),
            "padding_side": getattr(own, "padding_side", None),
            "truncation_side": getattr(own, "truncation_side", None),
            "model_max_length": length if isinstance(length, int) and length <= LONGEST else None,
        }
        try:
            return msgspec.convert({**content, "sha256": self._checksum()}, TokeniserSpec)
        except Exception as error:  # options that a file does not hold, or whatever a tokeniser raises for our texts
            log.info("the tokeniser %s is not stored: %s", name, error)
            return None

    def __call__(self, items: list[Any], label: str | None = None) -> dict[str, Any]:
        """Tokenise texts or rows with one text each, or pad rows that are tokenised; ``label`` names the labels."""
        rows = [_as_row(item, label) for item in items]
        first, own = rows[0], self.load()
        label = label or next((name for name in LABEL_KEYS if name in first), None)
        if "input_ids" in first:
            names = [name for name in first if name in own.model_input_names]
            batch = own.pad([{name: row[name] for name in names} for row in rows], return_tensors="pt")
        else:
            texts = [name for name, value in first.items() if isinstance(value, str) and name != label]
            if len(texts) != 1:
                raise ValueError(
                    f"a tokeniser needs rows with one text, got {', '.join(map(repr, texts)) or 'none'}. Pass a "
                    "function that joins a list of rows into a batch instead"
                )
            batch = own([row[texts[0]] for row in rows], **self._options)
        if label is None or label not in first:
            return {**batch}
        return {**batch, "labels": [row[label] for row in rows]}

    def load(self) -> Any:
        """Return the tokeniser itself, loaded by its name if need be."""
        if self._tokeniser is None:
            assert self._spec is not None
            self._tokeniser = _load(self._spec)
            if self._checksum() != self._spec.sha256:
                self._tokeniser = None
                raise ValueError(
                    f"the tokeniser {self._spec.name!r} on this machine gives other tokens than the one that the guard "
                    "was fitted with. " + PASS_AGAIN
                )
        return self._tokeniser

    def _checksum(self) -> str:
        """Return the sha256 of the tokens of some texts."""
        digest, batch = hashlib.sha256(), self([*PROBES])
        for name in sorted(batch):
            values = np.ascontiguousarray(torch.as_tensor(batch[name]).numpy(), np.int64)
            digest.update(f"{name} {values.shape}\n".encode() + values.tobytes())
        return digest.hexdigest()

    def __repr__(self) -> str:
        name = self._spec.name if self._spec is not None else type(self._tokeniser).__name__
        return f"Tokeniser({name})"


class NotStored:
    """The place of a ``collate`` that the file of a guard cannot hold; ``name`` says which one it was."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, items: list[Any]) -> Any:
        """Raise: what to pass is known to the user only."""
        raise ValueError(f"the guard was fitted with collate={self.name}, which its file does not hold. {PASS_AGAIN}")


def _as_row(item: Any, label: str | None) -> Mapping[str, Any]:
    if isinstance(item, Mapping):
        return item
    if isinstance(item, str):
        return {"text": item}
    return dict(zip(("text", label or "label"), item, strict=True))


def _is_published(name: str) -> bool:
    """Return whether this can be the name of a published tokeniser, ``owner/name``, and not a path elsewhere."""
    return _PUBLISHED.fullmatch(name) is not None


def _load(spec: TokeniserSpec) -> Any:
    """Load a tokeniser from the files of this machine."""
    network_path = spec.name.startswith(("//", "\\\\"))  # looking at it would contact another machine
    if network_path or not (_is_published(spec.name) or Path(spec.name).is_dir()):
        raise ValueError(f"the tokeniser {spec.name!r} of the guard is no folder on this machine. {PASS_AGAIN}")
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ModuleNotFoundError(
            "tokenising texts needs transformers, which is not installed. Run: pip install 'flatfold[hf]'",
            name="transformers",
        ) from error
    names = ("pad_token", "padding_side", "truncation_side", "model_max_length")
    settings = {name: value for name in names if (value := getattr(spec, name)) is not None}
    try:
        return AutoTokenizer.from_pretrained(spec.name, local_files_only=True, trust_remote_code=False, **settings)
    except (ImportError, OSError, ValueError) as error:
        reason = " ".join(str(error).split()).partition(". ")[0]
        raise ValueError(
            f"the tokeniser {spec.name!r} of the guard cannot be loaded from this machine: {reason}. Download it "
            f"first. {PASS_AGAIN}"
        ) from error
