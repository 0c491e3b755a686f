"""Serve live pages: the page with its data, then its changes as server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from fedpeft.errors import UserError
from fedpeft.page.guard import Access, Guard
from fedpeft.page.render import live_policy, page
from fedpeft.wire.messages import EXPERIMENT_BYTES

VIEWS = ("list", "runs", "study", "server", "node")
_NAMED = ("runs", "study")  # views of something that the address names
MOST = 12  # runs that one page compares: as many as there are colors
_PATIENCE = 0.5  # seconds within which a stream ends when the server stops
_SILENCE = 15.0  # seconds after which a comment is sent, to detect readers that disconnected


class Feed(Protocol):
    """The data of one page. Its methods may block and are called in threads.

    Attributes:
        interval: seconds between two calls of ``changes``.
    """

    interval: float

    def whole(self) -> dict[str, Any]:
        """Return the entries of the page (see ``render.page``), with a ``cursor``."""

    def changes(self, cursor: str) -> dict[str, Any] | None:
        """Return what changed since a cursor, with a new ``cursor``; None if nothing did."""


class Source(Protocol):
    """All pages of a server. Its methods may block and are called in threads."""

    def home(self) -> tuple[str, list[str]]:
        """Return view and names of the first page."""

    def feed(self, view: str, names: Sequence[str]) -> Feed:
        """Return the data of a page.

        Raises:
            KeyError: there is no such run or study.
        """


#: Carries out the action of a button, ``(action, name, text) -> a line for the reader``; ``text``
#: is the body of the request. Called in a thread. Raises KeyError for an unknown action or name,
#: and UserError if the action is impossible.
Act = Callable[[str, str, str], str]


def page_app(
    source: Source,
    access: Access,
    stopping: Callable[[], bool] = lambda: False,
    act: Act | None = None,
) -> Starlette:
    """Return the ASGI application of the pages of a source.

    Args:
        source: of the data.
        access: who may read, and act.
        stopping: returns whether the server is stopping; open streams then end.
        act: see ``Act``; None = the pages have no buttons.
    """
    pages = _Pages(source, stopping, act, access.act if act else "")
    app = Starlette(
        routes=[
            Route("/", pages.home),
            Route("/events", pages.events),
            Route("/act/{action}", pages.act, methods=["POST"]),
            Route("/{view}", pages.view),
        ],
        middleware=[Middleware(Guard, access=access, policy=live_policy())],
        exception_handlers={HTTPException: _error},
    )
    app.router.redirect_slashes = False
    return app


class _Pages:
    def __init__(self, source: Source, stopping: Callable[[], bool], act: Act | None, token: str):
        self._source, self._stopping, self._act, self._token = source, stopping, act, token

    def home(self, request: Request) -> Response:
        """Return the first page."""
        view, names = self._source.home()
        return self._page(view, names, alone=view != "list")

    def view(self, request: Request) -> Response:
        """Return the page of ``/VIEW?name=...&name=...``."""
        return self._page(request.path_params["view"], request.query_params.getlist("name"))

    async def act(self, request: Request) -> Response:
        """Carry out a button's action: ``POST /act/ACTION?name=...`` with a text as its body."""
        if self._act is None:
            raise HTTPException(404, "no such page")
        action, name = request.path_params["action"], request.query_params.get("name", "")
        text = await _body(request)
        try:
            line = await asyncio.to_thread(self._act, action, name, text)
            return PlainTextResponse(f"{line}\n")
        except KeyError as error:
            raise HTTPException(404, f"no action or run {error}") from None
        except UserError as error:
            raise HTTPException(409, str(error)) from None

    async def events(self, request: Request) -> Response:
        """Return the changes of ``?view=...&name=...&cursor=...`` as they happen."""
        query = request.query_params
        names = query.getlist("name")
        feed = await asyncio.to_thread(self._feed, query.get("view", ""), names)
        cursor = request.headers.get("last-event-id") or query.get("cursor", "")
        events = self._events(request, feed, cursor)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _events(self, request: Request, feed: Feed, cursor: str) -> AsyncIterator[str]:
        spoken = time.monotonic()
        yield "retry: 2000\n\n"
        while not (self._stopping() or await request.is_disconnected()):
            change = await asyncio.to_thread(feed.changes, cursor)
            if change:
                cursor, spoken = change["cursor"], time.monotonic()
                yield f"id: {cursor}\ndata: {json.dumps(change, allow_nan=False)}\n\n"
            elif time.monotonic() - spoken > _SILENCE:
                spoken = time.monotonic()
                yield ": \n\n"
            await self._pause(feed.interval)

    async def _pause(self, seconds: float) -> None:
        while seconds > 0 and not self._stopping():
            await asyncio.sleep(min(seconds, _PATIENCE))
            seconds -= _PATIENCE

    def _page(self, view: str, names: list[str], alone: bool = False) -> Response:
        data = self._feed(view, names).whole()
        about = {"view": view, "names": names, "live": True, "alone": alone}
        about |= {"home": self._source.home()[0], "act": self._token}
        return HTMLResponse(page({**data, **about}))

    def _feed(self, view: str, names: list[str]) -> Feed:
        if view not in VIEWS:
            raise HTTPException(404, "no such page")
        if view in _NAMED and not 1 <= len(names) <= MOST:
            raise HTTPException(400, f"{len(names)} runs: expected 1 to {MOST}")
        try:
            return self._source.feed(view, names)
        except KeyError as error:
            raise HTTPException(404, f"no run or study {error}") from None


async def _body(request: Request) -> str:
    """Return the body of a request, which is at most as long as an experiment."""
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > EXPERIMENT_BYTES:
                raise HTTPException(413, f"expected a text of at most {EXPERIMENT_BYTES:,} bytes")
        return body.decode()
    except ClientDisconnect:  # nobody reads this
        raise HTTPException(400, "the request ended early") from None
    except UnicodeDecodeError:
        raise HTTPException(400, "not UTF-8 text; is it an experiment file?") from None


def _error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # for mypy: registered for no other
    return PlainTextResponse(f"{error.detail}\n", error.status_code)
