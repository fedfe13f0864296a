"""What a service allows, and whom it answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

from starlette.responses import JSONResponse

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})

"""What a service on this machine is called by those who are on it too."""

SHORTEST = 16  # characters of a token: with 16 of 64 kinds, guessing is hopeless

_COUNTS = ("max_batch", "max_waiting", "max_body", "max_images", "max_pixels")


@dataclass(frozen=True)
class Settings:
    """Limits of a service, and who may use it.

    Args:
        names: Of the classes, in the order of the logits.
        token: What requests must carry as ``Authorization: Bearer ...``; None lets everybody in.
        hosts: What the service may be called in a ``Host`` header, without a port; None for anything. A web page can
            make its own name lead to this machine, but not send another one.
        origins: Other web pages that may use the service, such as ``https://example.org``.
        max_batch: Most inputs that go through the model together; 1 for one after the other.
        max_waiting: Most inputs that wait for the model.
        max_body: Most bytes of a request.
        max_images: Most images of a request.
        max_pixels: Most pixels of an image, before and after it is resized.
        timeout: Seconds in which a request must arrive, and then be answered.
    """

    names: tuple[str, ...] | None = None
    token: str | None = field(default=None, repr=False)
    hosts: frozenset[str] | None = LOOPBACK
    origins: frozenset[str] = frozenset()
    max_batch: int = 64
    max_waiting: int = 1024
    max_body: int = 16_000_000
    max_images: int = 64
    max_pixels: int = 50_000_000
    timeout: float = 30.0

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number from 1 on, got {value!r}.")
        if not isfinite(self.timeout) or self.timeout <= 0:
            raise ValueError(f"timeout must be a number of seconds above 0, got {self.timeout!r}. 30 is customary.")
        if self.token is not None:
            _check_token(self.token)
        if self.hosts is not None:
            for host in self.hosts:
                _check_host(host)
        for origin in self.origins:
            _check_origin(origin)


def _check_token(token: str) -> None:
    """Raise unless a token is long enough and can stand in a header; the sentence does not show it."""
    if len(token) < SHORTEST or not re.fullmatch(r"[\x21-\x7e]+", token):
        raise ValueError(
            f"a token must have at least {SHORTEST} characters, all of them printable ASCII and none a space, and this "
            f'one of {len(token)} is otherwise. Make one: python -c "import secrets; print(secrets.token_urlsafe())".'
        )


def _check_host(host: str) -> None:
    if host != host.lower() or not re.fullmatch(r"[a-z0-9._-]+|\[[0-9a-f:.]+\]", host):
        raise ValueError(
            f"a host is a name or an address in small letters, without scheme and port, got {host!r}. "
            "Examples: guard.example.org, 10.0.0.7, [fd00::7]."
        )


def _check_origin(origin: str) -> None:
    if not re.fullmatch(r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:\d{1,5})?", origin):
        raise ValueError(
            "an origin is a scheme and a host in small letters, perhaps with a port, and nothing behind them, got "
            f"{origin!r}. Example: https://example.org."
        )


# Requests that are refused: a status and a sentence.


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
