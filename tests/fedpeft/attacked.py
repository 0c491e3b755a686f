"""A real gateway and SuperLink under attack, while a registered node works."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gateways import PATIENCE, Client, Lines, Node, make_nodes, register, resident
from servers import server_folder, superlink
from superlinks import SuperLinkState

from fedpeft.hosting.processes import Supervisor
from server.host import up
from server.host.folder import ServerFolder

HEARTBEAT = "/v1/fleet/send-node-heartbeat"
_HEAD = 1  # type of the frame with a response's head
_HEAD = 1  # type of the frame with a response's head
#: Last part of the first attacker's address; all of 127.0.0.0/8 is this machine.
ATTACKER = 66


@dataclass
class Running(Client):
    """A gateway and a SuperLink with two registered nodes, of which one does no harm."""

    node: Node
    bad: Node  # another registered one
    stranger: Node
    lines: list[str]
    supervisor: Supervisor = field(repr=False)
    attacks: int = 0

    @property
    def pid(self) -> int:
        return self.supervisor.pids["gateway"]

    @property
    def attacker(self) -> str:
        """Another address for each attack.

        The gateway limits the lines of an address, and may not have seen yet that those of the
        attack before are closed.
        """
        return f"127.0.0.{ATTACKER + self.attacks}"

    def tcp(self) -> socket.socket:
        return socket.create_connection(self.address, PATIENCE, source_address=(self.attacker, 0))

    def tls(self) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=self.state.ca)
        context.set_alpn_protocols(["h2"])
        return context.wrap_socket(self.tcp(), server_hostname="localhost")

    def complaints(self) -> list[str]:
        """Return lines of the log with a traceback or headers, which attacks must not leave."""
        assert Path(f"/proc/{self.pid}").exists()
        never = ("Traceback", "flwr-signature", "flwr-public-key", "BEGIN PUBLIC")
        return [line for line in self.lines if any(text in line for text in never)]


@contextlib.contextmanager
def attacked(folder: Path) -> Iterator[Running]:
    """Run a gateway and a SuperLink in a folder."""
    state: ServerFolder = server_folder(folder)
    link = SuperLinkState(state.path / "superlink.db")
    node, bad, stranger = make_nodes(folder, "north", "bad", "stranger")
    for registered in (node, bad):
        registered.node_id = link.register(registered.pem)
    register(state.path, [node, bad])
    log, lines = logging.Logger("gateway"), Lines()
    log.addHandler(lines)
    supervisor = Supervisor([up.gateway(state, 64)], log)
    ready = threading.Event()
    thread = threading.Thread(target=supervisor.run, args=(ready.set,))
    with superlink(state):
        thread.start()
        try:
            assert ready.wait(PATIENCE)
            yield Running(state, node, bad, stranger, lines.texts, supervisor)
        finally:
            supervisor.stop()
            thread.join(PATIENCE)


@contextlib.contextmanager
def working_node(running: Running) -> Iterator[list[float]]:
    """Send requests as the node all the time; yield the seconds that each took.

    The block begins when the gateway knows the node's two connections: until their first request
    they are a stranger's, and too many later ones may push them out.
    """
    running.attacks += 1
    took: list[float] = []
    failed: list[str] = []
    stopping = threading.Event()

    def work() -> None:
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
        from flwr.proto.node_pb2 import Node as ProtoNode

        node = ProtoNode(node_id=running.node.node_id)
        request = SendNodeHeartbeatRequest(node=node, heartbeat_interval=30)
        body = request.SerializeToString()
        with running.http() as client:
            while not stopping.is_set():
                start = time.monotonic()
                try:
                    answer = client.post(HEARTBEAT, content=body, headers=running.node.headers())
                    if answer.status_code != 200:
                        failed.append(f"{answer.status_code} {answer.text}")
                except Exception as error:
                    failed.append(repr(error))
                took.append(time.monotonic() - start)
                time.sleep(0.1)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        while len(took) < len(workers):
            time.sleep(0.1)
        yield took
        while len(took) <= 10:
            time.sleep(0.1)
    finally:
        stopping.set()
        for worker in workers:
            worker.join(PATIENCE)
    assert not failed, failed[:5]
    print(f"{len(took)} requests of the node, the slowest {max(took):.2f} s")


@contextlib.contextmanager
def bounded_memory(running: Running, most: float = 200.0) -> Iterator[None]:
    """Check that the gateway needs at most ``most`` MB more than before."""
    idle, peak, stopping = resident(running.pid), 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stopping.wait(0.1):
            peak = max(peak, resident(running.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        stopping.set()
        watcher.join()
    print(f"memory: {idle:.0f} MB before, {peak:.0f} MB at most")
    assert peak - idle < most


def until_closed(line: socket.socket, drip: bytes = b"", answered: bool = False) -> None:
    """Wait until the gateway closes a connection; send ``drip`` every second.

    With ``answered``, until it sends the head of a response.
    """
    limit = time.monotonic() + PATIENCE
    line.settimeout(1.0)
    while True:
        assert time.monotonic() < limit, "the gateway did not close the connection"
        try:
            received = line.recv(65536)
            if not received or (answered and _HEAD in frames(received)):
                break
        except TimeoutError:
            try:
                line.sendall(drip)
            except OSError:
                break
        except OSError:
            break
    line.close()


def frames(content: bytes) -> set[int]:
    """Return the types of the HTTP/2 frames in received bytes, which begin with one."""
    types = set()
    while len(content) >= 9:
        types.add(content[3])
        content = content[9 + int.from_bytes(content[:3], "big") :]
    return types


def in_threads(calls: list[Callable[[], float]]) -> list[float]:
    results: list[float] = []
    threads = [threading.Thread(target=lambda call=call: results.append(call())) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(results)
