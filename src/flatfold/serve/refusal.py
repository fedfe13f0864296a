"""Requests that are refused: a status and a sentence."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import JSONResponse

AGAIN = {"Retry-After": "1"}
"""Of a refusal for now: in a second it may be otherwise."""


class Refusal(Exception):  # noqa: N818 - it is an answer, and no error of the service
    """A request that is not answered as it wishes.

    Args:
        status: Of the answer.
        sentence: What was needed, what came, what to try. Whoever sent the request reads it, so it may say nothing of
            the machine.
        headers: That belong to the status.
    """

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.headers = {} if headers is None else dict(headers)

    def response(self) -> JSONResponse:
        """Return it as an answer."""
        return JSONResponse({"error": self.sentence}, self.status, self.headers)


def unfinished(seconds: float) -> Refusal:
    """Return the refusal of a request that took too long."""
    return Refusal(
        503,
        f"a request is answered within {seconds:g} seconds, but this one was not: too much is going on. "
        "Send it again, or fewer inputs at once.",
        AGAIN,
    )
