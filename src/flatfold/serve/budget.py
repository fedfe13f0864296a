"""Memory that requests may take together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .refusal import AGAIN, Refusal

MOST = 2**30
"""Bytes of all bodies and prepared inputs at once, 1 GB; what a decoder or the model needs comes on top."""


class Budget:
    """How many bytes the requests hold that are being answered; used by the event loop's thread alone.

    Args:
        most: Bytes that all of them may hold.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.used = 0

    @contextmanager
    def share(self) -> Iterator[Share]:
        """Yield the share of one request, which is given back at the end."""
        share = Share(self)
        try:
            yield share
        finally:
            self.used -= share.used


class Share:
    """What one request holds.

    Args:
        budget: Of all requests.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.used = 0

    def take(self, size: int) -> None:
        """Hold ``size`` more bytes, or refuse the request: for good if it is too large, for now if others are."""
        if self.used + size > self.budget.most:
            raise Refusal(
                413,
                f"the inputs of a request may take {self.budget.most // 10**6} MB of memory once they are prepared, "
                "and these take more. Send fewer at once, or smaller images.",
            )
        if self.budget.used + size > self.budget.most:
            raise Refusal(503, "the memory for requests is taken by others. Send it again in a moment.", AGAIN)
        self.budget.used += size
        self.used += size
