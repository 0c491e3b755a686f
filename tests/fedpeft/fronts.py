"""A gateway, a real process, in front of a TLS server in place of the SuperLink."""

from __future__ import annotations

from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from gateways import Client, Node

from deployment.hosting.processes import Supervisor
from deployment.server.folder import ServerFolder
from fedpeft.page.ports import free_port

PUSH = "/v1/fleet/push-object"
LARGEST = 8  # megabytes


class Upstream(BaseHTTPRequestHandler):
    """Record the requests, and answer with the number of received bytes."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, dict[str, str]]]

    def do_POST(self) -> None:
        self.seen.append((self.path, dict(self.headers)))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = f"upstream got {len(body)}".encode()
        if self.path.endswith("/pull-object"):
            answer = b"x" * 5_000_000
        self.send_response(self._status())
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _status(self) -> int:
        if self.path.endswith("/unknown-node"):
            return 401
        first = [path for path, _ in self.seen].count(self.path) == 1
        busy = self.path.endswith("/busy") and first
        return 500 if busy or self.path.endswith("/broken") else 200

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass


@dataclass
class Front(Client):
    """A running gateway, its log, and the requests that reached the server behind it."""

    node: Node
    lines: list[str]
    seen: list[tuple[str, dict[str, str]]]
    supervisor: Supervisor = field(repr=False)

    @property
    def pid(self) -> int:
        return self.supervisor.pids["gateway"]

    def line_with(self, words: str) -> str:
        return self.logged(words, self.lines)


def make_state(path: Path, keys: Path, control: int) -> ServerFolder:
    """Make a server's state folder; ``control`` is the port behind the gateway."""
    path.mkdir(parents=True)
    ports = {"public": free_port(), "control": control, "operations": 1}
    state = ServerFolder(path, keys, "127.0.0.1", ("fl.example.org",), ports)
    state._write()
    return state
