"""The resident worker as a process: start, errors, end."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import Context, Message
from workers import (
    Worker,
    connected_to,
    eventually,
    handshake,
    logged,
    node_context,
    running_worker,
    same_time,
    state_folder,
    task_vector,
)

from clients.flower import context_to_wire, to_wire
from clients.folder import NodeFolder, NodeSettings
from deployment.hosting.processes import Supervisor
from deployment.hosting.timing import Timing
from deployment.node import relay
from deployment.node.channel import ask, is_listening
from deployment.node.up import Node, Useful, children
from fedpeft.experiment.config import Experiment
from fedpeft.runtime import runtime_of

pytestmark = pytest.mark.slow
Quick = Callable[..., Experiment]


def waits(state: Path) -> bool:
    return any("waiting for messages" in line for line in logged(state))


def test_the_worker_loads_the_nodes_backbones(tmp_path: Path) -> None:
    state = state_folder(tmp_path / "state", allow=("tiny", "/no/such/folder"))
    with running_worker(state):
        eventually(lambda: waits(state))
    lines = logged(state)
    assert any(
        line.startswith("backbone '/no/such/folder' is not loaded: UserError") for line in lines
    )
    assert lines[-1].endswith("with tiny")


def test_a_request_waits_while_the_worker_loads(tmp_path: Path, quick: Quick) -> None:
    state = state_folder(tmp_path / "state")
    with running_worker(state):
        context = node_context(state)
        assert relay.app(handshake(quick()), context).has_content()
    lines = logged(state)
    assert any(line.startswith("waiting for messages") for line in lines[:-1])
    assert lines[-1].startswith("query.handshake: done in")
    run = json.loads(NodeFolder(state).log.read_text().splitlines()[-1])["run"]
    assert run is not None and run.isdecimal()


def test_a_broken_request_is_dropped_and_the_next_is_answered(tmp_path: Path, quick: Quick) -> None:
    state = state_folder(tmp_path / "state")
    with running_worker(state) as worker:
        with pytest.raises(OSError):
            ask(NodeFolder(state).socket, (b"\xff secret", b"\xff"), 30)
        with connected_to(state) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        context = node_context(state)
        worker.send_signal(signal.SIGSTOP)
        with connected_to(state) as connection:  # one that is killed before its turn comes
            for part in (to_wire(handshake(quick())), context_to_wire(context)):
                connection.sendall(len(part).to_bytes(8, "big") + part)
        worker.send_signal(signal.SIGCONT)
        assert relay.app(handshake(quick()), context).has_content()
        assert worker.poll() is None
    lines = logged(state)
    assert sum("a request is dropped" in line for line in lines) == 3
    assert not any("secret" in line for line in lines)


def test_sigterm_ends_the_worker_and_the_next_replaces_it(tmp_path: Path, quick: Quick) -> None:
    state, experiment = state_folder(tmp_path / "state"), quick()
    asked = handshake(experiment)
    with running_worker(state) as worker:
        first = same_time(relay.app(asked, node_context(state)))
        worker.send_signal(signal.SIGTERM)
        assert worker.wait() == -signal.SIGTERM  # it does not wait for messages
    assert not is_listening(NodeFolder(state).socket)
    with running_worker(state):
        context = node_context(state)
        context.run_id = asked.metadata.run_id
        assert same_time(relay.app(asked, context)) == first
    assert sum("query.handshake: done" in line for line in logged(state)) == 2


RELAY = """
import sys
from pathlib import Path
from clients.flower import context_from_wire, from_wire
from deployment.node.relay import relay
message, context = (Path(path).read_bytes() for path in sys.argv[1:])
relay(from_wire(message), context_from_wire(context))
"""


def asking(folder: Path, asked: Message, context: Context) -> subprocess.Popen[bytes]:
    """Start the process that relays one message."""
    paths = folder / "message", folder / "context"
    for path, content in zip(paths, (to_wire(asked), context_to_wire(context)), strict=True):
        path.write_bytes(content)
    return subprocess.Popen([sys.executable, "-c", RELAY, *map(str, paths)])


@pytest.mark.long
def test_the_worker_restarts_if_the_requester_disconnects(tmp_path: Path, quick: Quick) -> None:
    state, experiment = state_folder(tmp_path / "state"), quick("local.steps=1000000")
    node = Node("nowhere:1", tmp_path, tmp_path, state, NodeSettings("", 0))
    log, timing = logging.getLogger("test"), Timing().scaled(0.1)
    worker = children(node, 1, 2, Useful(node, timing, log))[:1]
    supervisor = Supervisor(worker, log, timing)
    supervising = threading.Thread(target=supervisor.run)
    supervising.start()
    try:
        eventually(lambda: is_listening(NodeFolder(state).socket))
        context = node_context(state)
        assert relay.app(handshake(experiment), context).has_content()
        start = runtime_of(experiment).parameters.initial(0)
        asker = asking(tmp_path, task_vector("train", experiment, start), context)
        eventually(lambda: "train, round 1: begun" in logged(state))
        assert supervisor.restarts == {"worker": 0}
        asker.kill()
        asker.wait()
        eventually(lambda: supervisor.restarts == {"worker": 1})
        eventually(lambda: is_listening(NodeFolder(state).socket))
        assert relay.app(handshake(experiment), context).has_content()
    finally:
        supervisor.stop()
        supervising.join(180)
    assert "the requester disconnected; restarting the worker" in logged(state)
    assert not any(line.startswith("train, round 1: done") for line in logged(state))


def test_a_second_worker_in_a_state_folder_is_refused(tmp_path: Path) -> None:
    state = state_folder(tmp_path / "state")
    with running_worker(state):
        assert Worker(state).wait() == 1
        assert is_listening(NodeFolder(state).socket)
    assert any("another process listens there already" in line for line in logged(state))
