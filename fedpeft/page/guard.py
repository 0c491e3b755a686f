"""Access to a live page: checks of every request, and security headers of every response.

- Host: a web page whose name was made to resolve to this machine (DNS rebinding) is refused.
- Origin and Sec-Fetch-Site: requests that a page of another site makes are refused.
- Token: whoever does not know it is refused. The first request carries it in the address; then a
  cookie does, and the address has none.
- Method: only GET and HEAD. A page that can act also sends POST, from its own origin alone, with a
  second token in a header: neither a form nor a script of another site can send that header, and
  the cookie by itself permits nothing.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedpeft.page.hosts import host_name, is_address, is_loopback

TOKEN = "token"  # name in the address
ACT = "X-Fedpeft-Act"  # header of requests that act


@dataclass(frozen=True)
class Access:
    """Who may read a page.

    Attributes:
        token: needed to read it; "" = none is needed.
        names: host names of the machine; without any, only loopback is served. With some, every
            IP address is allowed as well: after DNS rebinding the Host header holds a name.
        cookie: name of the cookie, different for each server of a machine.
        path: of the pages below which the cookie is sent.
        command: the command that prints the address with the token.
        act: needed in the header ``ACT`` of a POST; "" = the page is read-only.
    """

    token: str = ""
    names: Collection[str] = ()
    cookie: str = "fedpeft"
    path: str = "/"
    command: str = "fedpeft watch"
    act: str = ""

    def allows_host(self, header: str) -> bool:
        """Return whether a Host header names this machine."""
        if not self.names:
            return is_loopback(header)
        name = host_name(header)
        return is_loopback(header) or is_address(name) or name in self.names

    def knows(self, given: str) -> bool:
        """Return whether a token is right, in constant time."""
        return _equal(given, self.token)

    def may_act(self, headers: Headers) -> bool:
        """Return whether a request comes from the page itself and has the token for acting."""
        return "origin" in headers and bool(self.act) and _equal(headers.get(ACT, ""), self.act)


class Guard:
    """ASGI middleware that refuses everyone who may not read the page."""

    def __init__(self, app: ASGIApp, access: Access, policy: str):
        self._app, self._access = app, access
        self._headers = {
            "Content-Security-Policy": policy,
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, sent)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        reads = scope["method"] in ("GET", "HEAD")
        if not reads and (scope["method"] != "POST" or not self._access.act):
            return _refuse(405, "this page is read-only")
        if not self._access.allows_host(host):
            return _refuse(403, "the Host header does not name this machine")
        if headers.get("origin", f"{scope['scheme']}://{host}") != f"{scope['scheme']}://{host}":
            return _refuse(403, "the request comes from a page of another site")
        elsewhere = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if elsewhere and headers.get("sec-fetch-mode") != "navigate":  # a link may lead here
            return _refuse(403, "the request comes from a page of another site")
        refusal = self._without_token(scope, headers) if self._access.token else None
        if not (refusal or reads or self._access.may_act(headers)):
            return _refuse(403, "only the page itself may act; reload it")
        return refusal

    def _without_token(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer to a request whose cookie has no right token; None if it has one."""
        if self._access.knows(_cookie(headers, self._access.cookie)):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if not any(key == TOKEN and self._access.knows(value) for key, value in query):
            return _refuse(401, f"open the address that `{self._access.command}` prints")
        rest = urlencode([pair for pair in query if pair[0] != TOKEN])
        # A path that begins with "//" would lead to another host.
        path = f"/{scope['path'].lstrip('/')}"
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        answer.set_cookie(
            self._access.cookie,
            self._access.token,
            path=self._access.path,
            secure=scope["scheme"] == "https",
            httponly=True,
            samesite="lax",
        )
        return answer


def _equal(given: str, expected: str) -> bool:
    """Compare two tokens in constant time."""
    return hmac.compare_digest(given.encode(), expected.encode())


def _cookie(headers: Headers, name: str) -> str:
    try:
        cookies = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return ""
    return cookies[name].value if name in cookies else ""


def _refuse(status: int, reason: str) -> Response:
    return PlainTextResponse(f"{reason}\n", status)
