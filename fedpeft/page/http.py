"""Shared parts of HTTP endpoints: tokens, Host and Origin checks, JSON, the listening socket."""

from __future__ import annotations

import hmac
import json
import os
import socket
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fedpeft.errors import UserError
from fedpeft.page.hosts import is_loopback
from fedpeft.page.ports import listen


class LoopbackHost:
    """Refuse web pages whose name was made to resolve to loopback (DNS rebinding)."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 403 if the Host header names no loopback address."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        host = Headers(scope=scope).get("host", "")
        refusal = json_response({"error": "the Host header names no loopback address"}, 403)
        await (self.app if is_loopback(host) else refusal)(scope, receive, send)


class SameOrigin:
    """Refuse requests that a browser sends for a page of another site."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 403 if there is an Origin header and it does not match the Host header."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        origin, host = headers.get("origin"), headers.get("host", "")
        same = origin is None or origin in (f"http://{host}", f"https://{host}")
        refusal = json_response({"error": "the Origin header names another site"}, 403)
        await (self.app if same else refusal)(scope, receive, send)


def bears(headers: Headers, token: str) -> bool:
    """Return whether a request has the token, compared in constant time."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    same = hmac.compare_digest(given.encode(), token.encode())
    return scheme.lower() == "bearer" and same  # RFC 9110, section 11.1: in any case


def listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an IP address and port.

    Raises:
        UserError: the port is in use, or this machine does not have the address.
    """
    try:
        return listen(host, port, backlog=512)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise UserError(
            f"cannot listen at {host} port {port} ({reason}); choose another --port, or stop the "
            f"program that uses it"
        ) from None


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a value as one line of JSON."""
    return Response(json.dumps(value) + "\n", status, headers, "application/json")


def json_error(request: Request, error: Exception) -> Response:
    """Return the response to an HTTPException, a handler for Starlette."""
    assert isinstance(error, HTTPException)  # for mypy: it is registered for no other
    return json_response({"error": error.detail}, error.status_code, error.headers)
