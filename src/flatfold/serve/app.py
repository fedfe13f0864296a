"""The HTTP application: routes, access checks, security headers, errors and the web page."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from importlib.resources import files
from time import perf_counter
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from jinja2 import Template
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import __version__
from ..display.look import MARK, icon, page_style
from ..scoring.calibrated import CalibratedDetector
from ..scoring.guard import Guard
from . import api
from .scorer import Asked
from .service import Service
from .settings import Settings, error_response, unavailable

_GET = ["GET", "HEAD"]
_ROUTING_ERRORS = {
    404: "unknown path. Available: / (the page), /v1/score, /v1/stream, /metrics, /healthz{docs}.",
    405: "method not allowed. Use POST for /v1/score and GET for all other paths.",
}
Explain = Annotated[bool, Query(description="Whether rows include an explanation and signs.")]
Words = Annotated[
    bool, Query(description="Whether rows of texts name the words that raise the score, at most 8 texts.")
]
Mask = Annotated[bool, Query(description="Whether rows include a PNG of alarms, for segmentation networks.")]
Overlay = Annotated[
    bool, Query(description="Whether rows include a PNG of the image with its alarms in red, likewise.")
]
OK = "Success."
PUBLIC_PATH = "/healthz"  # requires no token
CLIENT_CLOSED = 499  # status counted for a request whose client did not wait for the response
DRAIN_SECONDS, DRAIN_BYTES = 5.0, 2**26  # limits on reading the rest of a rejected body

log = logging.getLogger(__name__)


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf8")


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


_STYLE, _SCRIPT = f"{page_style()}{_read('page.css')}", f"{_read('chart.js')}\n{_read('page.js')}"


def page_of(settings: Settings, texts: bool = False, dense: bool = False) -> bytes:
    """Return the page for images or for ``texts``, with alarms drawn into images if there are ``dense`` decisions.

    It links to /docs only without a token, because a browser sends none when it follows a link.
    """
    docs = settings.docs and settings.token is None
    noun, look = "text" if texts else "image", {"style": _STYLE, "script": _SCRIPT, "mark": MARK, "icon": icon()}
    text: str = Template(_read("page.html")).render(
        docs=docs, noun=noun, dense=dense, longest=settings.max_characters, **look
    )
    return text.encode()


SECURITY_HEADERS = [
    (
        b"content-security-policy",
        f"default-src 'none'; script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; img-src data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'".encode(),
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


def create_app(guard: Guard | CalibratedDetector, settings: Settings | None = None) -> FastAPI:
    """Return an ASGI application that scores images and features, or only features for a detector without a model."""
    service = Service(guard, Settings() if settings is None else settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    limits = service.settings
    scorer = service.scorer
    page = page_of(limits, scorer.tokeniser is not None and scorer.transform is None, scorer.dense)
    app = FastAPI(
        title=api.TITLE,
        version=__version__,
        description=api.about(limits),
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    app.add_middleware(AccessMiddleware, settings=limits, count=service.metrics.count_answer, page=page)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _query_error)

    def get(*paths: str, **about: Any) -> Callable[[Callable[..., Any]], None]:
        """Register a function for GET and HEAD on all paths; ``about`` describes the first path."""

        def add(answer: Callable[..., Any]) -> None:
            for path in paths:
                app.add_api_route(path, answer, methods=_GET, include_in_schema=False)
            if about:  # never called, only for the documentation: the route above would document HEAD too
                app.add_api_route(paths[0], answer, methods=["GET"], response_description=OK, **about)

        return add

    body, failures = api.request_body(service.scorer, limits), api.errors(400, 401, 408, 413, 415, 422, 503)

    @app.post("/score", include_in_schema=False)
    @app.post("/v1/score", response_model=api.Scores, responses=failures, openapi_extra=body, response_description=OK)
    async def score(
        request: Request, explain: Explain = False, tokens: Words = False, mask: Mask = False, overlay: Overlay = False
    ) -> Response:
        """Score one image, several images in a form, texts, or rows of features."""
        return JSONResponse({"rows": await service.score(request, Asked(explain, tokens, mask, overlay))})

    # Not coroutines, because they are CPU-bound: FastAPI runs them in threads.
    @get("/v1/stream", "/stream", response_model=api.Stream, responses=api.errors(401))
    def stream() -> Response:
        """Return the settings of the guard, and counts and histograms of all inputs."""
        return JSONResponse(service.facts())

    @get("/metrics", response_class=PlainTextResponse, responses=api.errors(401))
    def metrics() -> Response:
        """Return all metrics in the text format of Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @get("/healthz", response_model=api.Health, responses=api.errors(503))
    async def healthz() -> Response:
        """Return whether the service is up; requires no token."""
        if service.closing:
            raise unavailable("the service is shutting down")
        return JSONResponse({"status": "ok"})

    @get("/")
    async def show_page() -> Response:
        return Response(page, media_type="text/html")

    if limits.docs:
        document = api.openapi(app, limits)
        described = api.render(document, _STYLE).encode()

        @get("/openapi.json")
        async def openapi() -> Response:
            return JSONResponse(document)

        @get("/docs")
        async def docs() -> Response:
            return Response(described, media_type="text/html")

    return app


async def _http_error(request: Request, error: Any) -> Response:
    docs = ", /docs" if request.app.state.service.settings.docs else ""
    message = _ROUTING_ERRORS.get(error.status_code, error.detail).replace("{docs}", docs)
    return error_response(HTTPException(error.status_code, message, error.headers))


async def _query_error(request: Request, error: Any) -> Response:
    name = str(error.errors()[0]["loc"][-1])
    value = request.query_params.get(name, "")[:80]
    return error_response(HTTPException(422, f"query parameter {name!r} must be 'true' or 'false', got {value!r}."))


class AccessMiddleware:
    """Validate length, host, origin and token of each request, add headers, and convert every error to JSON."""

    def __init__(self, app: ASGIApp, settings: Settings, count: Callable[[str, int, float], None], page: bytes) -> None:
        self.settings, self._count, self._routes, self._page = settings, count, app, page
        self.app = self._with_cors(self._check_token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._routes(scope, receive, send)
            return
        started = perf_counter()
        exchange = _Exchange(scope, receive, send)
        try:
            await self._answer(scope, exchange)
        finally:
            self._count(scope["path"], exchange.status or CLIENT_CLOSED, perf_counter() - started)

    async def _answer(self, scope: Scope, exchange: _Exchange) -> None:
        response: ASGIApp
        try:
            self._check(scope, Headers(scope=scope))
            await self.app(scope, exchange.receive, exchange.send)
            return
        except HTTPException as error:  # raised by the check; the routes handle their own
            response = error_response(error)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:  # cancelled by uvicorn at shutdown
            response = self._with_cors(error_response(unavailable("the service is shutting down")))
        except Exception:
            log.exception("a request failed")
            response = self._with_cors(error_response(HTTPException(500, "internal error; see the server log.")))
        if exchange.status is None:
            await response(scope, exchange.receive, exchange.send)

    def _with_cors(self, app: ASGIApp) -> ASGIApp:
        """Allow web pages of the allowed origins to read the responses of an app."""
        if not self.settings.origins:
            return app
        headers = ["authorization", "content-type"]
        return CORSMiddleware(app, self.settings.origins, ["GET", "HEAD", "POST"], headers)

    async def _check_token(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a request without a required token; not a dependency of routes, to cover unknown paths too."""
        path, expected, app = scope["path"], self.settings.token, self._routes
        scheme, _, token = ",".join(Headers(scope=scope).getlist("authorization")).partition(" ")
        # Digests have equal lengths, so the time of the comparison does not reveal the length of the token.
        digests = [sha256(text.strip().encode()).digest() for text in (token, expected or "")]
        matches = hmac.compare_digest(*digests) and scheme.lower() == "bearer"
        if expected is not None and path != PUBLIC_PATH and not matches:
            headers = {"WWW-Authenticate": "Bearer"}
            message = "missing or wrong token. Send the header Authorization: Bearer TOKEN."
            app = error_response(HTTPException(401, message, headers))
            if path == "/" and scope["method"] in _GET:  # the page asks for the token
                app = Response(self._page, 401, headers, "text/html")
        await app(scope, receive, send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        if scope["http_version"] not in ("1.0", "1.1"):  # such as PRI * HTTP/2.0, the preface of HTTP/2
            raise HTTPException(505, "only HTTP/1.1 is supported.", {"Connection": "close"})
        if "transfer-encoding" in headers and ("content-length" in headers or scope["http_version"] == "1.0"):
            # Request smuggling: a proxy that uses the other length would parse part of the body as a request.
            message = "the request states the length of its body twice. Send Content-Length or Transfer-Encoding."
            raise HTTPException(400, message, {"Connection": "close"})
        for name in ("content-type", "content-encoding"):  # a proxy may act on the other one
            if len(headers.getlist(name)) > 1:
                raise HTTPException(400, f"the request has several {name.title()} headers. Send one.")
        # Not by TrustedHostMiddleware: it answers 400 in plain text instead of 421 in JSON.
        host = ",".join(headers.getlist("host")).lower()
        named = re.fullmatch(r"(\[.*\]|[^:]*)(:\d*)?", host)
        if self.settings.hosts is not None and (named is None or named[1] not in self.settings.hosts):
            raise HTTPException(
                421, "unknown name in the Host header. Use the service's address, or add the name to its allowed hosts."
            )
        # CORSMiddleware only prevents other pages from reading responses; this also rejects their requests.
        for origin in headers.getlist("origin"):
            same = host != "" and origin.lower().partition("://")[2] == host
            if not same and origin not in self.settings.origins:
                message = "requests from this web page are not allowed. Add its origin to the allowed origins."
                raise HTTPException(403, message)


class _Exchange:
    """One request and its response: adds the headers, and records the status and whether the body was read."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.status: int | None = None
        self._receive, self._send = receive, send
        headers = Headers(scope=scope)
        self._unread = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        self._waits = "expect" in headers  # the client waits for a 100 before it sends the body
        self._closes = "close" in headers.get("connection", "").lower() or scope["http_version"] == "1.0"

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._unread = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", []))
            closes = self._closes or (b"connection", b"close") in headers
            if closes and self._unread and not self._waits and self.status != 408:
                await self._drain()
            message = {**message, "headers": [*headers, *SECURITY_HEADERS]}
        await self._send(message)

    async def _drain(self) -> None:
        """Read the rest of the body: closing a connection with unread data would discard the response too."""
        left = DRAIN_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while self._unread and left > 0:
                    left -= len((await self.receive()).get("body", b""))
