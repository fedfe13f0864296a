"""Find the words of a text that raise its score, by leaving out one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data.batch import Batch
from ..data.texts import Tokeniser, Word
from ..network.network import Network
from .calibrated import CalibratedDetector

MOST_VARIANTS = 64  # of a text: in longer texts, neighbouring words are left out together
NAMED = 3  # words of a text
SHOWN = 60  # characters of neighbouring words
TOKENS = "input_ids"
NO_TOKENS = (
    "tokens=True names words of texts, but the guard has no tokeniser. Pass loading=Loading(collate=tokenizer) to "
    "Guard.fit or Guard.load."
)


class Token(NamedTuple):
    """A word of a text whose score is lower without it; in long texts, several neighbouring words."""

    text: str
    """The word, as the tokeniser decodes its tokens."""
    score: float
    """The score of the text without it."""
    p_value: float
    """The p-value of that score."""


def find_tokens(
    network: Network, calibrated: CalibratedDetector, tokeniser: Tokeniser, batch: Batch, score: Tensor
) -> list[tuple[Token, ...]]:
    """Return the words of each text that raise its score most, the worst first; one batch of the network for each text.

    Args:
        network: The classifier.
        calibrated: Its detector.
        tokeniser: The one that made the batch.
        batch: Texts as tokens.
        score: Their scores, ``(n,)``.
    """
    return [
        _tokens_of(network, calibrated, tokeniser, batch.part(row, row + 1), float(own))
        for row, own in enumerate(score.tolist())
    ]


def _tokens_of(
    network: Network, calibrated: CalibratedDetector, tokeniser: Tokeniser, text: Batch, score: float
) -> tuple[Token, ...]:
    """Return the words that raise the score of one text most."""
    ids = text.kwargs.get(TOKENS)
    if not isinstance(ids, Tensor) or ids.ndim != 2:
        raise ValueError(f"tokens=True needs batches of a tokeniser, with {TOKENS!r}, got {sorted(text.kwargs)}.")
    mask = text.kwargs.get("attention_mask", torch.ones_like(ids))
    real = mask[0].nonzero()[:, 0].tolist()
    words = [
        Word(word.text, tuple(real[place] for place in word.places)) for word in tokeniser.words(ids[0, real].tolist())
    ]
    parts = _neighbours(words)
    if len(parts) < 2:  # nothing would be left
        return ()
    token, left = tokeniser.padding

    def leave_out(name: str, values: Any) -> Any:
        if not text.one_per_input(values):
            return values
        if values.shape != ids.shape:
            return values.expand(len(parts), *values.shape[1:])
        return _without(values[0], [part.places for part in parts], token if name == TOKENS else 0, left)

    arguments = {name: leave_out(name, values) for name, values in text.kwargs.items()}
    verdict = calibrated.decide(*network.run(text._replace(kwargs=arguments, rows=len(parts))))
    found = zip(parts, verdict.score.tolist(), verdict.p_value.tolist(), strict=True)
    lower = sorted((own, p_value, part.text) for part, own, p_value in found if own < score)  # a NaN is not lower
    return tuple(Token(name, own, p_value) for own, p_value, name in lower[:NAMED])


def _neighbours(words: Sequence[Word]) -> list[Word]:
    """Return at most ``MOST_VARIANTS`` parts of a text, each one word or several neighbours."""
    size = -(-len(words) // MOST_VARIANTS)
    parts = [words[start : start + size] for start in range(0, len(words), size)] if words else []
    return [
        Word(_shorten(" ".join(word.text for word in part)), tuple(place for word in part for place in word.places))
        for part in parts
    ]


def _without(values: Tensor, parts: Sequence[Sequence[int]], fill: int, left: bool) -> Tensor:
    """Return a row ``(tokens,)`` once for each part, without the values at its places and filled up at one end."""
    rows = []
    for places in parts:
        kept = torch.ones(len(values), dtype=torch.bool)
        kept[list(places)] = False
        ends = [values[kept.to(values.device)], values.new_full((len(places),), fill)]
        rows.append(torch.cat(ends[::-1] if left else ends))
    return torch.stack(rows)


def _shorten(text: str) -> str:
    """Return text of at most ``SHOWN`` characters."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
