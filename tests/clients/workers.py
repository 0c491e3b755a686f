"""Real workers in state folders, and messages for them; shared by the tests of a node."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from clients.channel import is_listening
from clients.state import NodeSettings, log_path, prepare, socket_path
from fedpeft.config import Experiment
from server.flower import from_wire, give_id, new_run, to_wire


def eventually(happens: Callable[[], bool], seconds: float = 180) -> None:
    """Wait until something happens; a generous time, as machines are busy."""
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def state_folder(path: Path, **settings: Any) -> Path:
    """Make the state folder of a node that has part 0 of a task that makes its own data."""
    prepare(path)
    NodeSettings(**{"data": "", "partition": 0, **settings}).write(path)
    return path


def logged(state: Path) -> list[str]:
    """Return the messages of a node's log; none while there is no log yet."""
    if not log_path(state).exists():
        return []
    return [json.loads(line)["message"] for line in log_path(state).read_text().splitlines()]


def start_worker(state: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-P", "-m", "clients.worker", str(state)])


@contextmanager
def running_worker(state: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker that listens in a state folder."""
    process = start_worker(state)
    try:
        eventually(lambda: is_listening(socket_path(state)))
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def node_context(state: Path) -> Context:
    """Return the context that Flower gives the client app at this node."""
    return Context(new_run().run_id, 1000, {"state": str(state)}, RecordDict(), {})


def message(kind: str, content: RecordDict) -> Message:
    """Return a message as it arrives at a node."""
    made = Message(content, dst_node_id=1000, message_type=kind)
    give_id(made)
    return from_wire(to_wire(made))


def handshake(experiment: Experiment) -> Message:
    config = ConfigRecord({"experiment": experiment.to_toml(), "client": 0})
    return message("query.handshake", RecordDict({"config": config}))


def task_vector(kind: str, experiment: Experiment, vector: np.ndarray, round: int = 1) -> Message:
    content = RecordDict(
        {
            "arrays": ArrayRecord({"vector": Array(vector)}),
            "config": ConfigRecord({"experiment": experiment.digest, "round": round}),
        }
    )
    return message(kind, content)


def same_time(reply: Message) -> bytes:
    """Serialise a reply without the moment at which it was made, all else to the byte."""
    reply.metadata.created_at, reply.metadata.ttl = 0.0, 1.0
    return to_wire(reply)


def other_user() -> int:
    """Return a user that these tests may become and is not theirs; skip where there is none."""
    import pytest

    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    return 65534


def connected_to(state: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(socket_path(state)))
    return connection
