"""Real workers in state folders, and messages for them."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from messaging import arriving, handshake_request, request

from clients.folder import NodeFolder, NodeSettings
from deployment.node.channel import is_listening
from fedpeft.experiment.config import Experiment
from server.flower import new_run, to_wire

PATIENCE = 240.0  # seconds to wait for anything, as machines are busy


def eventually(happens: Callable[[], object]) -> None:
    """Wait until ``happens`` returns a true value."""
    deadline = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def state_folder(path: Path, **settings: Any) -> Path:
    """Make the state folder of a node with part 0 of a synthetic task."""
    NodeFolder(path).prepare()
    NodeSettings(**{"data": "", "partition": 0, **settings}).write(path)
    return path


def logged(state: Path) -> list[str]:
    """Return the messages of a node's log; empty if there is no log yet."""
    if not NodeFolder(state).log.exists():
        return []
    return [json.loads(line)["message"] for line in NodeFolder(state).log.read_text().splitlines()]


class Worker:
    """``python -m deployment.node.worker``, forked from a process that has imported torch."""

    _forks = multiprocessing.get_context("forkserver")
    _forks.set_forkserver_preload(["clients.app", "deployment.node.worker"])

    def __init__(self, state: Path):
        self._process = self._forks.Process(target=_work, args=(str(state),), daemon=True)
        self._process.start()

    def send_signal(self, number: int) -> None:
        assert self._process.pid
        os.kill(self._process.pid, number)

    def wait(self, seconds: float = 180) -> int | None:
        """Return the exit code; None if it still runs after so many seconds."""
        self._process.join(seconds)
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.wait(0)


def _work(state: str) -> None:
    from deployment.node import worker

    sys.argv = ["worker", state]
    worker.main()


@contextmanager
def running_worker(state: Path) -> Iterator[Worker]:
    """Run a worker that listens in a state folder."""
    process = Worker(state)
    try:
        eventually(lambda: is_listening(NodeFolder(state).socket))
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)  # also where it is stopped
            process.wait()


def node_context(state: Path) -> Context:
    """Return the context that Flower gives the client app at this node."""
    return Context(new_run().run_id, 1000, {"state": str(state)}, RecordDict(), {})


def handshake(experiment: Experiment | str) -> Message:
    return arriving("query.handshake", handshake_request(experiment, client=0))


def task_vector(
    kind: str, experiment: Experiment, vector: np.ndarray, round_number: int = 1
) -> Message:
    return arriving(kind, request(experiment, vector, round_number))


def same_time(reply: Message) -> bytes:
    """Serialize a reply with its time of creation cleared."""
    reply.metadata.created_at, reply.metadata.ttl = 0.0, 1.0
    return to_wire(reply)


def other_user() -> int:
    """Return another user that this process may become; skip the test without root."""
    import pytest

    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    return 65534


def connected_to(state: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(NodeFolder(state).socket))
    return connection
