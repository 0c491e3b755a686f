"""The state folders of servers, with real keys; and real SuperLinks in their hardened form."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpeft.keys import make_authority, make_server
from server.host.health import superlink_answers
from server.host.state import ServerState
from server.host.up import children

_PATIENCE = 60.0  # seconds for a SuperLink on a busy machine to start


def server_state(path: Path) -> ServerState:
    """Make a server's state folder and its keys; nothing runs."""
    make_authority(path / "ca")
    make_server(path / "keys", [], path / "ca")
    state = path / "state"
    state.mkdir(mode=0o700)
    any_free = {"public": None, "control": None, "operations": None}
    return ServerState.settle(state, path / "keys", ["localhost"], "127.0.0.1", any_free)


@contextmanager
def superlink(state: ServerState) -> Iterator[subprocess.Popen[bytes]]:
    """Run a SuperLink as `fedpeft server up` does; give its process when it answers."""
    child = children(state)[0]
    with open(state.path / "superlink.log", "wb") as log:
        process = subprocess.Popen(
            child.command,
            env={**os.environ, **child.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + _PATIENCE
        while not superlink_answers(state.connection()):
            assert process.poll() is None and time.monotonic() < deadline, (
                state.path / "superlink.log"
            ).read_text(errors="replace")
            time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
