"""A server's page for tests: the real endpoint, with a browser or a client of HTTP."""

from __future__ import annotations

import http.client
import json
import re
from dataclasses import dataclass, field
from typing import Any

from deployment.operator.connection import secure_line
from deployment.operator.page import PATH, act_token, page_token
from deployment.server.folder import ServerFolder


@dataclass
class Answer:
    status: int
    text: str
    headers: http.client.HTTPMessage = field(repr=False)


@dataclass
class Visitor:
    """A program that knows the page's tokens, unless a test says otherwise."""

    state: ServerFolder

    @property
    def origin(self) -> str:
        return f"https://{self.state.connection().operations}"

    @property
    def cookie(self) -> str:
        port = self.state.ports["operations"]
        return f"fedpeft-{port}={page_token(self.state.connection())}"

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        connection = self.state.connection()
        line = secure_line(connection.operations, connection.ca, 30)
        try:
            line.request(method, path, body or None, headers)
            answer = line.getresponse()
            return Answer(answer.status, answer.read().decode(), answer.headers)
        finally:
            line.close()

    def get(self, path: str = "", **headers: str) -> Answer:
        """GET a page with the cookie of a browser that has opened the address."""
        return self.request("GET", f"{PATH}{path}", **{"Cookie": self.cookie, **headers})

    def act(self, path: str, body: bytes = b"", **headers: str) -> Answer:
        """POST as the page itself does."""
        own = {
            "Cookie": self.cookie,
            "Origin": self.origin,
            "X-Fedpeft-Act": act_token(self.state.connection()),
        }
        sent = {name: value for name, value in (own | headers).items() if value}
        return self.request("POST", f"{PATH}act/{path}", body, **sent)

    def data(self, path: str = "") -> dict[str, Any]:
        """Return the data inside a page."""
        answer = self.get(path)
        assert answer.status == 200, answer.text
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', answer.text)
        assert found
        return dict(json.loads(found[1]))
