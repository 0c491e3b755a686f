"""Keys of a server, and a running gateway for the tests of one file."""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from fronts import LARGEST, Front, Upstream, make_state
from gateways import PATIENCE, Lines, Node, make_nodes, register

from deployment import server_up as up
from deployment.hosting.keys import make_authority, make_server
from deployment.hosting.processes import Supervisor


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_authority(folder)
    make_server(folder, ["fl.example.org"], folder)
    return folder


@pytest.fixture(scope="module")
def node(keys: Path) -> Node:
    return make_nodes(keys, "north")[0]


@pytest.fixture(scope="module")
def upstream(keys: Path) -> Iterator[ThreadingHTTPServer]:
    handler = type("Handler", (Upstream,), {"seen": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.request_queue_size = 100
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.crt", keys / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield server
    server.shutdown()
    server.server_close()
    serving.join()


@pytest.fixture(scope="module")
def running(
    keys: Path, node: Node, upstream: ThreadingHTTPServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    path = tmp_path_factory.mktemp("server") / "a state"
    state = make_state(path, keys, upstream.server_port)
    register(path, [node])
    log, lines = logging.Logger("gateway"), Lines()
    log.addHandler(lines)
    supervisor, up_now = Supervisor([up.gateway(state, LARGEST)], log), threading.Event()
    thread = threading.Thread(target=supervisor.run, args=(up_now.set,))
    thread.start()
    try:
        assert up_now.wait(PATIENCE), lines.texts
        seen = upstream.RequestHandlerClass.seen  # type: ignore[attr-defined]
        yield Front(state, node, lines.texts, seen, supervisor)
    finally:
        supervisor.stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()


@pytest.fixture
def front(running: Front) -> Front:
    """The running gateway with an empty log and no requests."""
    del running.lines[:], running.seen[:]
    return running
