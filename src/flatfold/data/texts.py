"""Texts: a tokeniser of transformers as a function of rows, which a guard stores by name."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import msgspec
import numpy as np
import torch
from msgspec import Meta

from .labels import LABEL_KEYS

PROBES = ("", "Is this text new?", "12,345.67 & the naïve café\n", "two words " * 40)  # to recognise a tokeniser
PASS_AGAIN = "Pass the one used in fit: Guard.load(path, model, loading=Loading(collate=tokenizer))."
_PUBLISHED = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
LONGEST = 2**17  # tokens of a text, which a file of unknown origin may ask for
LONGEST_WORD = 8  # tokens
Length = Annotated[int, Meta(ge=1, le=LONGEST)]
Side = Literal["left", "right"]
_TOKENISING = threading.Lock()  # two threads cannot set the padding and truncation of one tokeniser
log = logging.getLogger(__name__)


class Encoded(NamedTuple):
    """Tokens of some texts as arguments of a model, and whether each text was truncated."""

    arguments: dict[str, Any]
    truncated: list[bool]


class Word(NamedTuple):
    """A word of a text, and the positions of its tokens."""

    text: str
    places: tuple[int, ...]


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
    def in_folder(cls, folder: Path, max_length: int | None = None) -> Self:
        """Load the tokeniser in a folder of ``save_pretrained``, which truncates texts to ``max_length`` tokens."""
        own = _from_pretrained(str(folder), f"the tokeniser in {folder}")
        return cls(own, {} if max_length is None else {"max_length": max_length})

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

    def encode(self, texts: list[str]) -> Encoded:
        """Tokenise texts; several threads may do so at the same time."""
        own = self.load()
        with _TOKENISING:
            batch = own(texts, **self._options)
            if (encodings := getattr(batch, "encodings", None)) is not None:
                return Encoded({**batch}, [bool(encoding.overflowing) for encoding in encodings])
            # Nothing says what was cut off, so texts as long as the longest are tokenised again.
            free = {**self._options, "padding": True, "truncation": False, "max_length": None}
            names = ("attention_mask", "input_ids")
            kept, whole = (
                next(torch.as_tensor(tokens[name]) for name in names if name in tokens)
                for tokens in (batch, own(texts, **free))
            )
        if whole.shape[1] <= kept.shape[1]:
            return Encoded({**batch}, [False] * len(texts))
        return Encoded({**batch}, [int((row != 0).sum()) > kept.shape[1] for row in whole])

    def words(self, ids: list[int]) -> list[Word]:
        """Return the words of a text, given its tokens, without special tokens.

        A word consists of neighbouring tokens without white space between them. A longer run than a word has, as in
        languages without spaces, gives a word for each token.
        """
        own = self.load()
        unknown = getattr(own, "unk_token_id", None)
        special = {token for token in getattr(own, "all_special_ids", ()) if token != unknown}
        special |= {getattr(own, f"{name}_token_id", None) for name in ("bos", "eos", "sep", "cls", "pad")}
        decode = partial(own.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        groups: list[list[int]] = []  # positions
        for place, token in enumerate(ids):
            if token in special:
                groups.append([])
            elif groups and groups[-1] and _continues(decode, ids[place - 1], token):
                groups[-1].append(place)
            else:
                groups.append([place])
        words = []
        for group in groups:
            for places in [group] if len(group) <= LONGEST_WORD else [[place] for place in group]:
                if places and (text := decode([ids[place] for place in places]).strip()):
                    words.append(Word(text, tuple(places)))
        return words

    @property
    def padding(self) -> tuple[int, bool]:
        """The token of padding, and whether padding is on the left."""
        own = self.load()
        token = getattr(own, "pad_token_id", None)
        return 0 if token is None else int(token), getattr(own, "padding_side", "right") == "left"

    @property
    def longest(self) -> int | None:
        """Largest number of tokens of a text, None if it is not limited."""
        given = self._options.get("max_length")
        length = given if given is not None else getattr(self.load(), "model_max_length", None)
        return length if isinstance(length, int) and length <= LONGEST else None

    def with_options(self, **options: Any) -> Tokeniser:
        """Return this tokeniser with other options of its calls."""
        return Tokeniser(self.load(), {**self._options, **options}, None)

    def placed(self, folder: Path) -> Tokeniser:
        """Return the tokeniser of a file, to be loaded from a folder; its checksum must be the same."""
        if self._spec is None:
            return self
        return Tokeniser.stored(msgspec.structs.replace(self._spec, name=str(folder)))

    @property
    def fingerprint(self) -> str:
        """A sha256 of the tokens of some texts, and of the options of the calls."""
        options = {name: value for name, value in self._options.items() if name != "return_tensors"}
        content = json.dumps([self.load() and self._checksum(), self.longest, options], sort_keys=True, default=repr)
        return hashlib.sha256(content.encode()).hexdigest()

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


def _continues(decode: Callable[[list[int]], str], token: int, following: int) -> bool:
    """Return whether a token continues the word of the token before it."""
    before = decode([token])
    return before != "" and not before[-1].isspace() and len(decode([token, following]).split()) < 2


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
    names = ("pad_token", "padding_side", "truncation_side", "model_max_length")
    settings = {name: value for name in names if (value := getattr(spec, name)) is not None}
    return _from_pretrained(spec.name, f"the tokeniser {spec.name!r} of the guard", settings)


def _from_pretrained(name: str, called: str, settings: Mapping[str, Any] | None = None) -> Any:
    """Load a tokeniser by name from the files of this machine, without running code that came with it."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ModuleNotFoundError(
            "tokenising texts needs transformers, which is not installed. Run: pip install 'flatfold[hf]'",
            name="transformers",
        ) from error
    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=True, trust_remote_code=False, **(settings or {}))
    except (ImportError, OSError, ValueError) as error:
        reason = " ".join(str(error).split()).partition(". ")[0]
        raise ValueError(
            f"{called} cannot be loaded from this machine: {reason}. Download it first. {PASS_AGAIN}"
        ) from error
