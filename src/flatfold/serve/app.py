"""The routes of a service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ..scoring.calibrated import CalibratedDetector
from ..scoring.guard import Guard
from .middleware import Door, page
from .service import Service
from .settings import Refusal, Settings

_READ = ["GET", "HEAD"]

_SENTENCES = {
    404: "there is nothing at this address. Try / for the page, /score, /stream, /metrics or /healthz.",
    405: "this address does not know the method of the request. /score takes POST, all others GET.",
}


def create_app(guard: Guard | CalibratedDetector, settings: Settings | None = None) -> FastAPI:
    """Return a service that tells which inputs a classifier does not know.

    Args:
        guard: A guard that knows its transform, for images and features; or a judge, for features alone.
        settings: What is allowed; by default as :class:`Settings` says, for this machine only.

    Returns:
        An application for uvicorn or another ASGI server; ``app.state.service`` is the
        :class:`~flatfold.serve.service.Service` behind it.
    """
    service = Service(guard, Settings() if settings is None else settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.service = service
    app.add_middleware(Door, settings=service.settings, metrics=service.metrics)
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(RequestValidationError, _wrong_query)
    _add_routes(app, service)
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    @app.post("/score")
    async def score(request: Request, explain: bool = False) -> Response:
        return JSONResponse({"rows": await service.answer(request, explain)})

    # The next two count for a while, so they are no coroutines: FastAPI runs them in threads.
    @app.api_route("/stream", methods=_READ)
    def stream() -> Response:
        return JSONResponse(service.scorer.facts())

    @app.api_route("/metrics", methods=_READ)
    def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.api_route("/healthz", methods=_READ)
    async def healthz() -> Response:
        if service.closing:
            raise Refusal(503, "the service is about to end.")
        return JSONResponse({"status": "ok"})

    @app.api_route("/", methods=_READ)
    async def start() -> Response:
        return Response(page(), media_type="text/html")


async def _refused(request: Request, error: Any) -> Response:
    refusal: Refusal = error
    return refusal.response()


async def _no_route(request: Request, error: Any) -> Response:
    sentence = _SENTENCES.get(error.status_code, "this request cannot be answered. Look at its address and method.")
    return Refusal(error.status_code, sentence, error.headers).response()


async def _wrong_query(request: Request, error: Any) -> Response:
    return Refusal(
        422, "behind ? stands explain=true or explain=false, or nothing, but something else came."
    ).response()
