"""Limits and access rules of a service, and its error responses."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import isfinite

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
MIN_TOKEN = 16  # characters
_HOST = r"[a-z0-9._-]+|\[[0-9a-f:.]+\]"


@dataclass(frozen=True)
class Settings:
    """Limits and access rules of a service."""

    guard: str = ""  # name of the guard's file, to be shown
    model: str = ""  # name of the model, to be shown; by default that of its class
    names: tuple[str, ...] | None = None  # of the classes, in the order of the logits
    token: str | None = field(default=None, repr=False)  # required as "Authorization: Bearer ..."; None: no token
    # Accepted Host headers, without port; None accepts all. This prevents DNS rebinding: a web page can make its own
    # name resolve to this machine, but cannot send another Host.
    hosts: frozenset[str] | None = LOOPBACK
    origins: frozenset[str] = frozenset()  # other web origins that may use the service: https://example.org
    max_batch: int = 64  # inputs in one forward pass
    max_waiting: int = 1024  # inputs waiting for the model
    max_body: int = 16_000_000  # bytes of a request
    max_images: int = 64  # images of a request
    max_texts: int = 256  # texts of a request
    max_characters: int = 100_000  # characters of a text
    max_pixels: int = 50_000_000  # pixels of an image, before and after it is resized
    allow_sizes: bool = False  # whether to score images of other sizes than those seen during calibration
    timeout: float = 30.0  # seconds for receiving a request, and again for answering it
    docs: bool = True  # whether /docs and /openapi.json describe the interface

    def __post_init__(self) -> None:
        if not isfinite(self.timeout) or self.timeout <= 0:
            raise ValueError(f"timeout must be a positive number of seconds, got {self.timeout!r}.")
        if self.token is not None and (len(self.token) < MIN_TOKEN or not re.fullmatch(r"[\x21-\x7e]+", self.token)):
            raise ValueError(  # the message does not show the token
                f"the token must have at least {MIN_TOKEN} printable ASCII characters and no spaces. "
                'Create one with: python -c "import secrets; print(secrets.token_urlsafe())".'
            )
        for host in self.hosts or ():
            if not re.fullmatch(_HOST, host):
                raise ValueError(
                    f"a host must be a lower-case name or address without scheme and port, got {host!r}. "
                    "Examples: guard.example.org, 10.0.0.7, [fd00::7]."
                )
        for origin in self.origins:
            if not re.fullmatch(rf"https?://({_HOST})(:\d{{1,5}})?", origin):
                raise ValueError(
                    f"an origin must be a scheme and a lower-case host, with an optional port, got {origin!r}. "
                    "Example: https://example.org."
                )


def too_large(problem: str, limit: str, advice: str) -> HTTPException:
    """Return the error for a request that exceeds a limit on size, number or decoding time (413)."""
    return HTTPException(413, f"{problem}: the limit is {limit}. {advice}.")


def unavailable(problem: str) -> HTTPException:
    """Return the error for a request that may succeed when retried (503)."""
    return HTTPException(503, f"{problem}. Try again later.", {"Retry-After": "1"})


def error_response(error: HTTPException) -> JSONResponse:
    """Return the response to a failed request; its message is sent to clients and must not reveal internals."""
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)
