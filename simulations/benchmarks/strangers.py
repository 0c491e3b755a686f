"""The gateway under loads of strangers and of one registered key: its cost, and a node's answers.

A deployed server, and a registered node that asks ten times a second (heartbeats, signed as Flower
signs them). Under each load of ten seconds: the gateway's processor time and peak memory, and the
node's answers, failures and slowest answer.

- ``nothing``: no load.
- ``handshakes``: 200 TLS handshakes that offer a large finite-field group only (openssl s_client).
- ``frames``: window updates on closed streams from four connections, as many as are taken.
- ``headers``: lists of headers of 4 KB (the largest permitted), four connections.
- ``unread``: 90 requests of another registered key whose answers are never read.

The script runs on earlier versions, too (``PYTHONPATH=OLDTREE python strangers.py``), which permit
lists of 16 KB.

Example:
    python -m simulations.benchmarks.strangers
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import httpx
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node

from simulations.benchmarks.common import Report, Row, arguments_of, record, script
from simulations.loopback import Deployment, deployment

SECONDS = 10.0  # of each load
HANDSHAKES, REQUESTS, CONNECTIONS = 200, 90, 4
STREAMS = 50  # unanswered requests of a connection
HEARTBEAT, PULL = "/v1/fleet/send-node-heartbeat", "/v1/fleet/pull-messages"
_PAUSE = 0.1  # seconds between two questions of the node


class Key:
    """A node's key, which signs requests."""

    def __init__(self, made: Deployment, name: str):
        private = serialization.load_ssh_private_key((made.keys / name).read_bytes(), None)
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        self._private = private
        nodes = json.loads((made.state / "nodes.json").read_text())
        self.node_id = int(next(node["node_id"] for node in nodes if node["name"] == name))

    def headers(self) -> dict[str, str]:
        """Return the headers of a request signed now."""
        at = datetime.now(UTC).isoformat()
        public = self._private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        signature = self._private.sign(at.encode(), ec.ECDSA(hashes.SHA256()))
        return {
            "content-type": "application/protobuf",
            "accept": "application/protobuf",
            "flwr-public-key": base64.b64encode(public).decode(),
            "flwr-timestamp": at,
            "flwr-signature": base64.b64encode(signature).decode(),
        }


class Asking:
    """A registered node that asks all the time, in a thread, during a ``with`` block."""

    def __init__(self, made: Deployment, key: Key):
        self.took: list[float] = []
        self.failed: list[str] = []
        self._made, self._key = made, key
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        node = Node(node_id=self._key.node_id)
        body = SendNodeHeartbeatRequest(node=node, heartbeat_interval=30).SerializeToString()
        base = f"https://localhost:{self._made.port}"
        context = authority(self._made)
        with httpx.Client(base_url=base, verify=context, http2=True, timeout=60) as client:
            while not self._stop.wait(_PAUSE):
                start = time.monotonic()
                try:
                    answer = client.post(HEARTBEAT, content=body, headers=self._key.headers())
                    if answer.status_code != 200:
                        self.failed.append(str(answer.status_code))
                except httpx.HTTPError as error:
                    self.failed.append(type(error).__name__)
                self.took.append(time.monotonic() - start)


class Meter:
    """Processor time and peak memory of a process, read ten times a second in a thread."""

    def __init__(self, pid: int):
        self.peak = 0.0  # MB
        self._pid, self._before = pid, processor(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def seconds(self) -> float:
        """Return the processor time since the start."""
        return processor(self._pid) - self._before

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            match = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self._pid}/status").read_text())
            self.peak = max(self.peak, int(match[1]) / 1000 if match else 0.0)


def processor(pid: int) -> float:
    """Return the processor time in seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def authority(made: Deployment) -> ssl.SSLContext:
    """Return a TLS context that trusts the deployment's authority."""
    return ssl.create_default_context(cafile=str(made.keys / "ca.crt"))


@contextlib.contextmanager
def connected(made: Deployment) -> Iterator[tuple[ssl.SSLSocket, h2.connection.H2Connection]]:
    """Open an HTTP/2 connection."""
    context = authority(made)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", made.port), 60) as line,
        context.wrap_socket(line, server_hostname="localhost") as wrapped,
    ):
        wrapped.settimeout(1.0)
        state = h2.connection.H2Connection(
            h2.config.H2Configuration(header_encoding="utf-8", validate_outbound_headers=False)
        )
        state.initiate_connection()
        wrapped.sendall(state.data_to_send())
        yield wrapped, state


def request(path: str, headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the header list of a request."""
    pseudo = {":method": "POST", ":path": path, ":scheme": "https", ":authority": "localhost"}
    return [*pseudo.items(), *headers.items()]


def handshakes(made: Deployment, key: Key, end: float) -> int:
    """Ask for handshakes over a large finite-field group; return how many succeeded."""
    line = ["openssl", "s_client", "-connect", f"127.0.0.1:{made.port}", "-groups", "ffdhe8192"]
    started = []
    for number in range(HANDSHAKES):
        process = subprocess.Popen(
            [*line, "-brief"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        started.append(process)
        left = max(0.0, end - time.monotonic())
        time.sleep(left / (HANDSHAKES - number))
    outputs = [process.communicate()[0] for process in started]
    return sum(b"CONNECTION ESTABLISHED" in output for output in outputs)


def frames(made: Deployment, key: Key, end: float) -> int:
    """Send window updates on a closed stream; return how many the gateway took."""
    update = b"\x00\x00\x04\x08\x00\x00\x00\x00\x01" + (1).to_bytes(4, "big")
    sent = 0
    while time.monotonic() < end:
        with contextlib.suppress(OSError), connected(made) as (line, state):
            state.send_headers(1, request(HEARTBEAT, {"content-length": "0"}), end_stream=True)
            state.reset_stream(1)
            line.sendall(state.data_to_send())
            while time.monotonic() < end:
                line.sendall(update * 1000)
                sent += 1000
    return sent


def headers(made: Deployment, key: Key, end: float) -> int:
    """Send requests with the largest permitted list of headers; return how many were sent."""
    size = 3900 if limit_of_headers() == 4096 else 16_000
    many = {f"x{number}": "y" for number in range((size - 200) // 36)}
    sent = 0
    while time.monotonic() < end:
        with contextlib.suppress(OSError), connected(made) as (line, state):
            while time.monotonic() < end:
                stream = state.get_next_available_stream_id()
                fields = request(HEARTBEAT, {"content-length": "0", **many})
                state.send_headers(stream, fields, end_stream=True)
                line.sendall(state.data_to_send())
                sent += 1
                while state.open_outbound_streams >= STREAMS and time.monotonic() < end:
                    with contextlib.suppress(TimeoutError):
                        state.receive_data(line.recv(1 << 16))
    return sent


def limit_of_headers() -> int:
    """Return the gateway's limit of a header list; 16,384 in versions without a table of it."""
    with contextlib.suppress(ImportError, AttributeError):
        from server.host.gateway.limits import Limits

        return int(Limits().head)
    return 16_384


def unread(made: Deployment, key: Key, end: float) -> int:
    """Send requests whose answers are not read, on several connections; return how many."""
    sent = 0
    with contextlib.ExitStack() as stack:
        for _ in range(REQUESTS // 30):
            line, state = stack.enter_context(connected(made))
            for _ in range(30):
                stream = state.get_next_available_stream_id()
                fields = request(PULL, {"content-length": "0", **key.headers()})
                state.send_headers(stream, fields, end_stream=True)
                sent += 1
            with contextlib.suppress(OSError):
                line.sendall(state.data_to_send())
        time.sleep(max(0.0, end - time.monotonic()))
    return sent


def nothing(made: Deployment, key: Key, end: float) -> int:
    """Wait."""
    time.sleep(max(0.0, end - time.monotonic()))
    return 0


#: Load -> connections that do it side by side.
LOADS: Mapping[Callable[[Deployment, Key, float], int], int] = {
    nothing: 1,
    handshakes: 1,
    frames: CONNECTIONS,
    headers: CONNECTIONS,
    unread: 1,
}


def main(arguments: Sequence[str] | None = None) -> Report:
    """Measure all loads from the command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__, 1)
    parser.add_argument("--case", default="now", help="name of the version in the results (now)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as home:
        report = measure(Path(home), options)
    record("strangers", options.case, report, arguments, options.results)
    return report


def measure(home: Path, options: argparse.Namespace) -> Report:
    """Put each load on a server of its own."""
    rows = []
    for number, load in enumerate(LOADS):
        with deployment(_made(home / str(number))) as made:
            made.add_node("north")
            made.add_node("other")
            rows.append(under(made, load))
            print(rows[-1], flush=True)
    return Report({"seconds": SECONDS}, rows, {}, {})


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def under(made: Deployment, load: Callable[[Deployment, Key, float], int]) -> Row:
    """Return what a load costs the gateway, and what answers the node gets meanwhile."""
    node, other = Key(made, "north"), Key(made, "other")
    gateway = made.pids("server", "server.host.gateway")[0]
    counts: list[int] = []

    def work() -> None:
        counts.append(load(made, other, time.monotonic() + SECONDS))

    with Meter(gateway) as meter, Asking(made, node) as asking:
        threads = [threading.Thread(target=work) for _ in range(LOADS[load])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        cost: dict[str, Any] = {"gateway CPU, s": round(meter.seconds(), 2)}
    ended = gateway not in made.pids("server", "server.host.gateway")
    return {
        "load": load.__name__,
        "done": sum(counts),
        **cost,
        "peak, MB": round(meter.peak, 1),
        "answers": len(asking.took) - len(asking.failed),
        "failed": len(asking.failed),
        "slowest answer, s": round(max(asking.took, default=0.0), 2),
        "gateway restarted": ended,
    }


if __name__ == "__main__":
    script(main)
