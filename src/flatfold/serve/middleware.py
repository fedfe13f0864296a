"""Who may come in: checks in front of every route, and headers behind them."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from base64 import b64encode
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from time import perf_counter

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .metrics import Metrics
from .settings import AGAIN, Refusal, Settings

# The page of the service, in one piece, and what browsers may do with it.


HERE = Path(__file__).parent

_PARTS = {"{{style}}": ("page.css",), "{{script}}": ("chart.js", "page.js")}


@cache
def page() -> bytes:
    """Return the page: HTML with its style and its script in it, and nothing from elsewhere."""
    return joined(_read("page.html"), {place: "\n".join(map(_read, names)) for place, names in _PARTS.items()}).encode()


@cache
def fixed_headers() -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers of every answer: browsers run nothing but the page's own script, and keep nothing."""
    return (
        (b"content-security-policy", policy(page().decode()).encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-store"),
        (b"cross-origin-resource-policy", b"same-origin"),
    )


def joined(html: str, parts: dict[str, str]) -> str:
    """Return HTML with a text in each of its places, in one go: a text may look like a place."""
    return re.sub("|".join(map(re.escape, parts)), lambda found: parts[found[0]], html)


def policy(html: str) -> str:
    """Return a Content-Security-Policy under which the scripts and styles in ``html`` work, and no others.

    Example:
        >>> policy("<script>let a</script>").split("; ")[1]
        "script-src 'sha256-IfEXP/8HLuXoAiy0hZVrCAcjcLsZqYFpLOHDGj8enqE='"
    """
    rules = ["default-src 'none'"]
    rules += [f"{kind}-src {' '.join(_hashes(html, kind)) or _NONE}" for kind in ("script", "style")]
    rules += ["img-src data: blob:", "connect-src 'self'"]
    rules += [f"{name} 'none'" for name in ("base-uri", "form-action", "frame-ancestors")]
    return "; ".join(rules)


_NONE = "'none'"


def _hashes(html: str, kind: str) -> list[str]:
    texts = re.findall(rf"<{kind}(?:\s[^>]*)?>(.*?)</{kind}>", html, flags=re.DOTALL)
    return [f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in texts]


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf8")


# One request and its answer, as they pass the door.


LATE = 5.0  # seconds and ...

LEFT = 2**26  # ... bytes for the rest of a body that nobody wants

TOO_SLOW = 408


class Visit:
    """Puts the headers of every answer on this one, and remembers how it went.

    Args:
        scope: Of the request.
        receive: Gives its body.
        send: Takes the answer.
        extra: More headers for the answer.

    Attributes:
        status: Of the answer, once there is one.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, extra: list[tuple[bytes, bytes]]) -> None:
        headers = Headers(scope=scope)
        self.status: int | None = None
        self._receive, self._send, self._extra = receive, send, extra
        self._unread = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        self._waits = "expect" in headers
        self._closes = "close" in headers.get("connection", "").lower() or scope.get("http_version") == "1.0"

    async def receive(self) -> Message:
        """Return the next part of the body."""
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._unread = False
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", []))
            closes = self._closes or (b"connection", b"close") in headers
            if self._unread and closes and not self._waits and self.status != TOO_SLOW:
                await self._read_on()
            message = {**message, "headers": [*headers, *fixed_headers(), *self._extra]}
        await self._send(message)

    async def _read_on(self) -> None:
        """Read the rest of a body: a connection that is closed before it came would take the answer with it."""
        left = LEFT
        with suppress(TimeoutError):
            async with asyncio.timeout(LATE):
                while self._unread and left > 0:
                    left -= len((await self.receive()).get("body", b""))


log = logging.getLogger(__name__)

OPEN = "/healthz"

"""The one route that needs no token."""

GONE = 499

"""Counted for a request whose client did not wait for the answer."""

_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, HEAD, POST",
    "Access-Control-Allow-Headers": "authorization, content-type",
}


class Door:
    """Asks every request for its length, host, origin and token, in this order, and lets no error out as it is.

    Args:
        app: What lies behind.
        settings: Whom to let in.
        metrics: Count every answer.
    """

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self.app = app
        self.settings = settings
        self.metrics = metrics
        self._token = None if settings.token is None else _digest(settings.token.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        started = perf_counter()
        headers = Headers(scope=scope)
        visit = Visit(scope, receive, send, self._allowing(headers))
        try:
            await self._let_in(scope, headers, visit)
        finally:
            self.metrics.note(scope["path"], visit.status or GONE, perf_counter() - started)

    async def _let_in(self, scope: Scope, headers: Headers, visit: Visit) -> None:
        try:
            answer = self._at_the_door(scope, headers) or self.app
            await answer(scope, visit.receive, visit.send)
            return
        except Refusal as refusal:
            failed = refusal
        except ClientDisconnect:
            return
        except asyncio.CancelledError:  # the time for running requests is over, and nothing is above that must know
            failed = Refusal(503, "the service is about to end. Send the request again later.", AGAIN)
        except Exception:
            log.exception("a request failed")
            failed = Refusal(500, "the service failed at this request, which is no fault of yours. Its log says more.")
        if visit.status is None:
            await failed.response()(scope, visit.receive, visit.send)

    def _at_the_door(self, scope: Scope, headers: Headers) -> Response | None:
        """Return an answer that needs no route, or refuse; None lets the request in."""
        _check_length(scope, headers)
        self._check_host(headers)
        self._check_origin(headers)
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers and self._allowing(headers):
            return Response(status_code=204, headers=_PREFLIGHT)
        if self._has_token(headers) or scope["path"] == OPEN:
            return None
        asks = {"WWW-Authenticate": "Bearer"}
        if scope["path"] == "/" and scope["method"] in ("GET", "HEAD"):
            return Response(page(), 401, asks, "text/html")
        raise Refusal(
            401,
            "this service answers requests with its token, and this one has none, or another. "
            "Send the header Authorization: Bearer TOKEN.",
            asks,
        )

    def _check_host(self, headers: Headers) -> None:
        hosts = headers.getlist("host")
        name = hosts[0].lower() if len(hosts) == 1 else ""
        bare, colon, port = name.rpartition(":")
        if colon and (port.isdecimal() or not port) and not name.endswith("]"):
            name = bare
        if self.settings.hosts is not None and name not in self.settings.hosts:
            raise Refusal(
                421,
                "this service does not go by the name in the Host header. Use the address that it was started with; "
                "whoever runs it can add a name with --allow-host.",
            )

    def _check_origin(self, headers: Headers) -> None:
        for origin in headers.getlist("origin"):
            ours = origin.lower().partition("://")[2] == headers.get("host", "").lower() != ""
            if not ours and origin not in self.settings.origins:
                raise Refusal(
                    403,
                    "this request comes from a web page of somebody else. Use the page of this service; "
                    "whoever runs it can let others in with --allow-origin.",
                )

    def _allowing(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Return the headers by which a browser lets an allowed web page read the answer."""
        origin = headers.get("origin", "")
        if origin not in self.settings.origins:
            return []
        return [(b"access-control-allow-origin", origin.encode()), (b"vary", b"Origin")]

    def _has_token(self, headers: Headers) -> bool:
        if self._token is None:
            return True
        sent = headers.getlist("authorization")
        scheme, _, token = sent[0].partition(" ") if len(sent) == 1 else ("", "", "")
        # Of digests, all as long as each other: the time that this takes says nothing about the token.
        return hmac.compare_digest(_digest(token.strip().encode()), self._token) and scheme.lower() == "bearer"


def _check_length(scope: Scope, headers: Headers) -> None:
    """Raise for a body of two lengths: a proxy that goes by the other one would take a part of it for a request."""
    if "transfer-encoding" in headers and ("content-length" in headers or scope["http_version"] == "1.0"):
        raise Refusal(
            400,
            "a request must say the length of its body in one way, by Content-Length or, from HTTP/1.1 on, by "
            "Transfer-Encoding, but this one does not. Leave one of them out.",
            {"Connection": "close"},
        )


def _digest(token: bytes) -> bytes:
    return sha256(token).digest()
