"""The HTTP endpoint: predictions, the served vectors, health and metrics."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from deployment.serving.catalog import Catalog
from deployment.serving.engine import Engine
from deployment.serving.limits import Limits, Rates
from deployment.serving.metrics import CONTENT_TYPE, ServingMetrics
from deployment.serving.openapi import page, specification
from deployment.serving.requests import items_of, read_body
from deployment.serving.scheduler import Busy, Scheduler
from fedpeft.errors import RunFailed, UserError
from fedpeft.page.http import LoopbackHost, SameOrigin, bears, json_error, json_response
from fedpeft.runs.predicting import Prediction

log = logging.getLogger(__name__)
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Serving:
    """Settings of a serving process.

    Attributes:
        token: needed for predictions, the list of vectors and metrics; "" = none.
        operator_token: needed to add and remove vectors; "" = nobody can.
        batch: maximum number of texts in a batch.
        delay: seconds that an idle server waits for more texts.
        queue: maximum number of texts that wait.
        cache: maximum bytes of realised vectors kept.
        loopback: whether only this machine reaches the server; Host headers are then checked.
        limits: of sizes and rates.
    """

    token: str = ""
    operator_token: str = ""
    batch: int = 64
    delay: float = 0.002
    queue: int = 1024
    cache: int = 256 << 20
    loopback: bool = True
    limits: Limits = field(default_factory=Limits)


def serving_app(catalog: Catalog, settings: Serving) -> Starlette:
    """Return the endpoint as an ASGI application; its lifespan runs the scheduler."""
    endpoint = _Endpoint(catalog, settings)
    routes: dict[str, dict[str, tuple[str, Handler]]] = {
        "/predict": {"POST": ("predict", endpoint.predict)},
        "/vectors": {"GET": ("vectors", endpoint.vectors)},
        "/vectors/{name}": {
            "GET": ("vector", endpoint.vector),
            "PUT": ("add", endpoint.add),
            "DELETE": ("remove", endpoint.remove),
        },
        "/health": {"GET": ("health", endpoint.health)},
        "/metrics": {"GET": ("metrics", endpoint.show_metrics)},
        "/openapi.json": {"GET": ("openapi", endpoint.openapi)},
        "/docs": {"GET": ("docs", endpoint.docs)},
    }
    app = Starlette(
        routes=[
            Route(path, endpoint.answering(handlers), methods=[*handlers])
            for path, handlers in routes.items()
        ],
        middleware=[
            *([Middleware(LoopbackHost)] if settings.loopback else ()),
            Middleware(SameOrigin),
        ],
        exception_handlers={HTTPException: json_error},
        lifespan=endpoint.lifespan,
    )
    app.router.redirect_slashes = False
    return app


class _Endpoint:
    """The answers."""

    def __init__(self, catalog: Catalog, settings: Serving):
        self._catalog, self._settings = catalog, settings
        self._engine = Engine(catalog.setups, settings.cache, settings.batch)
        self._rates = Rates(settings.limits.rate)
        self._adding = asyncio.Lock()
        self._scheduler: Scheduler | None = None
        self._metrics = ServingMetrics(catalog, self._engine.rows, self._waiting)

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Run the scheduler while the application runs; answer what waits before it ends."""
        chosen = self._settings
        self._scheduler = Scheduler(
            self._engine, chosen.batch, chosen.delay, chosen.queue, self._metrics.batch
        )
        running = asyncio.create_task(self._scheduler.run())
        yield
        self._scheduler.stop()
        await running

    def answering(self, handlers: Mapping[str, tuple[str, Handler]]) -> Handler:
        """Return the handler of a path's methods; its requests are counted by status."""

        async def answer(request: Request) -> Response:
            name, handler = handlers["GET" if request.method == "HEAD" else request.method]
            start, status = time.perf_counter(), 500
            try:
                response = await handler(request)
                status = response.status_code
                return response
            except HTTPException as error:
                status = error.status_code
                raise
            finally:
                self._metrics.request(name, status, time.perf_counter() - start)

        return answer

    async def predict(self, request: Request) -> Response:
        """Return the predictions for texts of any vectors."""
        self._check_client(request)
        limits = self._settings.limits
        self._check_rate(request, 1)
        body = await read_body(request, limits.body, limits.patience)
        items = items_of(body, self._catalog, limits)
        if len(items) > 1:
            self._check_rate(request, len(items) - 1)
        assert self._scheduler is not None  # the lifespan has started
        try:
            predictions = await self._scheduler.answer(items)
        except Busy:
            raise HTTPException(503, "too many texts are waiting", {"Retry-After": "1"}) from None
        except RunFailed as error:
            raise HTTPException(500, str(error)) from None
        pairs = zip(items, predictions, strict=True)
        rows = [{"vector": item.entry.name, **_shown(prediction)} for item, prediction in pairs]
        return json_response({"predictions": rows})

    async def vectors(self, request: Request) -> Response:
        """Return the names of the served vectors."""
        self._check_client(request)
        return json_response({"vectors": self._catalog.names()})

    async def vector(self, request: Request) -> Response:
        """Return the task, method, labels and digest of a vector."""
        self._check_client(request)
        try:
            return json_response(self._catalog[request.path_params["name"]].described())
        except KeyError:
            raise HTTPException(404, "no such vector is served") from None

    async def add(self, request: Request) -> Response:
        """Add or replace a vector: the body is its file."""
        self._check_operator(request)
        limits, name = self._settings.limits, request.path_params["name"]
        async with self._adding:  # one at a time bounds the memory of arriving files
            content = await read_body(request, limits.vector, limits.patience)
            try:
                entry, replaced = await asyncio.to_thread(self._catalog.receive, name, content)
            except UserError as error:
                raise HTTPException(422, str(error)) from None
        if replaced is not None:
            self._engine.rows.forget(replaced)
        log.info("%s vector '%s'", "replaced" if replaced else "added", name)
        return json_response(entry.described(), 200 if replaced else 201)

    async def remove(self, request: Request) -> Response:
        """Remove a vector; requests that were accepted before are still answered."""
        self._check_operator(request)
        name = request.path_params["name"]
        try:
            self._engine.rows.forget(self._catalog.remove(name))
        except KeyError:
            raise HTTPException(404, "no such vector is served") from None
        log.info("removed vector '%s'", name)
        return json_response({"removed": name})

    async def health(self, request: Request) -> Response:
        """Return the number of vectors and of waiting texts."""
        return json_response({"vectors": len(self._catalog), "waiting": self._waiting()})

    async def show_metrics(self, request: Request) -> Response:
        """Return the metrics in Prometheus's text format."""
        self._check_client(request)
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI description."""
        return json_response(specification(self._settings.limits))

    async def docs(self, request: Request) -> Response:
        """Return the OpenAPI description as a page."""
        return HTMLResponse(page(specification(self._settings.limits)))

    def _waiting(self) -> int:
        return self._scheduler.waiting if self._scheduler else 0

    def _check_client(self, request: Request) -> None:
        """Check the token for predictions; the operator's token is valid, too."""
        token, operator = self._settings.token, self._settings.operator_token
        if not token or bears(request.headers, token):
            return
        if not (operator and bears(request.headers, operator)):
            raise _unauthorized(request, "a token")

    def _check_operator(self, request: Request) -> None:
        token = self._settings.operator_token
        if not token:
            raise HTTPException(
                403, "vectors are fixed; start the server with --operator-token FILE to change them"
            )
        if not bears(request.headers, token):
            log.warning("refused a change of vectors without the operator's token")
            raise _unauthorized(request, "the operator's token")

    def _check_rate(self, request: Request, texts: int) -> None:
        address = request.client.host if request.client else ""
        if seconds := self._rates.wait(address, texts):
            raise HTTPException(
                429,
                f"more than {self._settings.limits.rate:g} texts per second",
                {"Retry-After": str(math.ceil(seconds))},
            )


def _shown(prediction: Prediction) -> dict[str, Any]:
    row: dict[str, Any] = {"prediction": prediction.value}
    if prediction.probabilities is not None:
        row["probabilities"] = prediction.probabilities
    return row


def _unauthorized(request: Request, needed: str) -> HTTPException:
    given = request.headers.get("authorization")
    said = "the token is wrong" if given else "no token was given"
    text = f"{said}; this needs {needed}, as 'Authorization: Bearer TOKEN'"
    return HTTPException(401, text, {"WWW-Authenticate": "Bearer"})
