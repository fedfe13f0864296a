"""Whether a bank on disk may be continued: the same key and form, and a network that still does the same."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import Tensor

from .manifest import Manifest, read_manifest
from .store import is_intact

logger = logging.getLogger(__name__)

ELSEWHERE = "Choose another directory, or delete this one to start again."
# How far two passes of one network may lie apart, relative to what they gave. Another batch size or device changes the
# order of sums; TF32, which convolutions use on CUDA by default, has 11 bits and some fifty layers to add up.
TOLERANCE = 1e-2
ROUNDING = 1e-5  # of a score itself: where all are nearly equal, their differences are noise
_HALF_TOLERANCE = {torch.bfloat16: 5e-2}  # 8 bits


def resumed(folder: Path, like: Manifest) -> Manifest:
    """Return the manifest in ``folder`` without its damaged shards, or say why it belongs to another bank."""
    manifest = read_manifest(folder)
    _check_same(folder, manifest, like)
    for shard in list(manifest.shards.values()):
        if not is_intact(folder, shard):
            logger.warning("%s is damaged or missing; its rows are extracted again", folder / shard.file)
            del manifest.shards[shard.index]
    if manifest.shards and not manifest.complete:
        there = sum(shard.rows for shard in manifest.shards.values())
        logger.info("going on with the bank in %s: %d rows are there", folder, there)
    return manifest


def check_features(folder: Path, there: Tensor, now: Tensor, dtype: torch.dtype) -> None:
    """Raise if a network gives other features than are stored for the same inputs.

    Its weights may be the same and yet an activation, a pooling or a scale be another.

    Args:
        folder: Of the bank.
        there: Stored features, ``(n, d)``.
        now: What the network gives, ``(n, d)``.
        dtype: In which it computes.
    """
    lengths = torch.maximum(there.norm(dim=-1), now.norm(dim=-1))
    share = _HALF_TOLERANCE.get(dtype, TOLERANCE)
    _check_near(folder, "features", (now - there).norm(dim=-1), lengths, share * lengths)


def check_scores(folder: Path, there: Tensor, now: Tensor, spread: float) -> None:
    """Raise if a network gives other scores than are stored for the same inputs.

    Args:
        folder: Of the scores.
        there: Stored scores, ``(n, 1)``.
        now: What comes now, ``(n, 1)``.
        spread: How far stored scores lie apart: what a score is worth is not seen from its size.
    """
    sizes = torch.maximum(there.abs(), now.abs())
    _check_near(folder, "scores", (now - there).abs(), sizes, TOLERANCE * spread + ROUNDING * sizes)


def _check_near(folder: Path, what: str, gaps: Tensor, sizes: Tensor, allowed: Tensor) -> None:
    wrong = ~(gaps <= allowed)  # NaN is wrong too
    if wrong.any():
        gap, size = (float(values[wrong][0]) for values in (gaps, sizes))
        raise ValueError(
            f"{folder} holds {what} of another network: its weights are the same, but not what it does with them. For "
            f"one input they lie {gap:.3g} apart, at a size of {size:.3g}. Was a layer without weights exchanged, are "
            f"these other inputs under the same key, or does the network draw random numbers? {ELSEWHERE}"
        )


def _check_same(folder: Path, there: Manifest, now: Manifest) -> None:
    if there.key is None or now.key is None:
        raise ValueError(f"{folder} holds a bank that extract did not write, so it cannot be continued. {ELSEWHERE}")
    for part in sorted(now.key.keys() | there.key.keys()):
        was, is_now = there.key.get(part), now.key.get(part)
        if was != is_now:
            raise ValueError(
                f"{folder} holds features of other {part}: {_short(was)} there, {_short(is_now)} now. {ELSEWHERE}"
            )
    for name in ("labels", "width", "dtype"):
        if getattr(there, name) != getattr(now, name):
            raise ValueError(
                f"{folder} was begun with {name}={getattr(there, name)}, now it is {getattr(now, name)}. {ELSEWHERE}"
            )


def _short(part: str | None) -> str:
    return repr(part if part is None or len(part) <= 24 else part[:12] + "...")
