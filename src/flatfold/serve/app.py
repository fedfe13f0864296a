"""The HTTP routes of a service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.authentication import AuthenticationMiddleware

from ..scoring.calibrated import CalibratedDetector
from ..scoring.guard import Guard
from .middleware import PAGE, AccessMiddleware, BearerToken
from .service import Service
from .settings import Settings, error_response, unavailable

_GET = ["GET", "HEAD"]
_ROUTING_ERRORS = {
    404: "unknown path. Available: / (the page), /score, /stream, /metrics, /healthz.",
    405: "method not allowed. /score takes POST, all other paths take GET.",
}


def create_app(guard: Guard | CalibratedDetector, settings: Settings | None = None) -> FastAPI:
    """Return an ASGI application that scores images and features, or with a detector alone only features."""
    service = Service(guard, Settings() if settings is None else settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.service = service
    if service.settings.token is not None:
        backend = BearerToken(service.settings.token)
        app.add_middleware(AuthenticationMiddleware, backend=backend, on_error=backend.reject)
    app.add_middleware(AccessMiddleware, settings=service.settings, count=service.metrics.count_answer)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _query_error)
    _add_routes(app, service)
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    @app.post("/score")
    async def score(request: Request, explain: bool = False) -> Response:
        return JSONResponse({"rows": await service.score(request, explain)})

    # Not coroutines, because they compute for a while: FastAPI runs them in threads.
    @app.api_route("/stream", methods=_GET)
    def stream() -> Response:
        return JSONResponse(service.scorer.facts())

    @app.api_route("/metrics", methods=_GET)
    def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.api_route("/healthz", methods=_GET)
    async def healthz() -> Response:
        if service.closing:
            raise unavailable("the service is shutting down")
        return JSONResponse({"status": "ok"})

    @app.api_route("/", methods=_GET)
    async def page() -> Response:
        return Response(PAGE, media_type="text/html")


async def _http_error(request: Request, error: Any) -> Response:
    message = _ROUTING_ERRORS.get(error.status_code, error.detail)
    return error_response(HTTPException(error.status_code, message, error.headers))


async def _query_error(request: Request, error: Any) -> Response:
    value = request.query_params.get("explain", "")[:80]
    return error_response(HTTPException(422, f"query parameter 'explain' must be 'true' or 'false', got {value!r}."))
