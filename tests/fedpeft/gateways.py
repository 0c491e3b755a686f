"""Clients of a gateway for tests: signed headers, requests by hand and by httpx."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from handmade import ask

from deployment.hosting.keys import make_node
from deployment.server.folder import ServerFolder
from deployment.server.registration import fingerprint
from server.members.registry import NODES

Headers = dict[str, str]
PATIENCE = 240.0  # seconds to wait for anything, as machines are busy


class Lines(logging.Handler):
    """A log handler that keeps the lines."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@dataclass
class Node:
    """A node's key and its number at the SuperLink."""

    private: ec.EllipticCurvePrivateKey
    node_id: int
    name: str = "north"
    digest: str = ""

    @property
    def pem(self) -> bytes:
        return self.private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def headers(self, age: float = 0.0) -> Headers:
        """Return the headers of a request signed ``age`` seconds ago, as Flower makes them."""
        at = (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
        signature = self.private.sign(at.encode(), ec.ECDSA(hashes.SHA256()))
        return {
            "content-type": "application/protobuf",
            "accept": "application/protobuf",
            "flwr-public-key": base64.b64encode(self.pem).decode(),
            "flwr-timestamp": at,
            "flwr-signature": base64.b64encode(signature).decode(),
        }


def make_nodes(folder: Path, *names: str) -> list[Node]:
    """Make nodes' keys in a folder."""
    nodes = []
    for number, name in enumerate(names):
        make_node(folder, name)
        private = serialization.load_ssh_private_key((folder / name).read_bytes(), None)
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        digest = fingerprint(folder / f"{name}.pub")
        nodes.append(Node(private, 2**63 + number, name, digest))
    return nodes


def register(state: Path, nodes: list[Node]) -> None:
    """Write nodes.json."""
    entries = [
        {"name": n.name, "node_id": n.node_id, "public_key_sha256": n.digest, "added": "2026"}
        for n in nodes
    ]
    (state / NODES).write_text(json.dumps(entries))


@dataclass
class Client:
    """A client of a gateway."""

    state: ServerFolder
    context: ssl.SSLContext = field(init=False)

    def __post_init__(self) -> None:
        self.context = ssl.create_default_context(cafile=self.state.ca)

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.state.ports["public"]

    def is_reachable(self) -> bool:
        """Return whether the gateway accepts a connection."""
        try:
            socket.create_connection(self.address, PATIENCE).close()
        except ConnectionRefusedError:
            return False
        return True

    @contextmanager
    def line(self, *alpn: str, timeout: float = PATIENCE) -> Iterator[ssl.SSLSocket]:
        """Open a TLS connection."""
        context = ssl.create_default_context(cafile=self.state.ca)
        context.set_alpn_protocols(list(alpn) or ["h2"])
        with (
            socket.create_connection(self.address, timeout) as line,
            context.wrap_socket(line, server_hostname="localhost") as wrapped,
        ):
            yield wrapped

    def ask(
        self,
        path: str,
        headers: Headers | None = None,
        body: bytes = b"",
        method: str = "POST",
        length: int | None = None,
    ) -> int:
        """Return the status of a request; ``length`` announces a body that is not sent."""
        with self.line() as line:
            return ask(line, path, headers or {}, body, method, length)

    def http(self, timeout: float = PATIENCE) -> httpx.Client:
        """Return a client that keeps its connections."""
        base = f"https://localhost:{self.state.ports['public']}"
        return httpx.Client(
            base_url=base, verify=self.context, http2=True, timeout=timeout, trust_env=False
        )

    def logged(self, words: str, lines: list[str]) -> str:
        """Wait for a line of the log with these words, and return it."""
        limit = time.monotonic() + PATIENCE
        while True:
            for line in list(lines):
                if words in line:
                    return line
            assert time.monotonic() < limit, f"not logged: {words}; but {lines[-20:]}"
            time.sleep(0.02)


def until(true: Callable[[], object]) -> None:
    """Wait until something is true."""
    limit = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < limit, "did not happen"
        time.sleep(0.05)


def processor(pid: int) -> float:
    """Return the processor time in seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    """Return the memory of a process in MB."""
    text = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert match
    return int(match[1]) / 1000
