"""Real pieces of a server for tests: its state and keys, its operations endpoint, a SuperLink."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpeft.keys import make_authority, make_server
from fedpeft.processes import Supervisor
from server.host.health import superlink_answers
from server.host.operations import serve
from server.host.state import PORTS, ServerState
from server.host.up import children

_PATIENCE = 60.0  # seconds for a SuperLink on a busy machine to start


def server_state(folder: Path) -> ServerState:
    """Return the state of a new server in ``folder/state``, with keys of its own; nothing runs."""
    make_authority(folder / "ca")
    make_server(folder / "keys", ["localhost"], folder / "ca")
    state = folder / "state"
    state.mkdir(mode=0o700)
    any_free = dict.fromkeys(PORTS)
    return ServerState.settle(state, folder / "keys", ["localhost"], "127.0.0.1", any_free)


@contextmanager
def operations(state: ServerState, supervisor: Supervisor | None = None) -> Iterator[None]:
    """Run the operations endpoint while the context is open, of no processes if none are given."""
    endpoint = serve(state, supervisor or Supervisor([], logging.getLogger("test")))
    thread = threading.Thread(target=endpoint.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield
    finally:
        endpoint.shutdown()
        endpoint.server_close()
        thread.join()


def server_app_shim(folder: Path) -> Path:
    """Return a folder with a ``flwr-serverapp`` that notes its pid in ``folder/pid`` first."""
    shim = folder / "bin" / "flwr-serverapp"
    shim.parent.mkdir()
    shim.write_text(
        f"#!/bin/sh\necho $$ > '{folder}/pid'\n"
        f"exec '{sys.executable}' -P -m server.task \"$@\" > '{folder}/app.log' 2>&1\n"
    )
    shim.chmod(0o700)
    return shim.parent


@contextmanager
def superlink(state: ServerState, shims: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a SuperLink as `fedpeft server up` does; give its process when it answers.

    With ``shims`` it starts the ``flwr-serverapp`` there itself, without a superexec.
    """
    child = children(state)[0]
    command, around = [*child.command], {**os.environ, **child.environment}
    if shims:
        del command[command.index("--isolation") :]
        around["PATH"] = f"{shims}:{around['PATH']}"
    with open(state.path / "superlink.log", "ab") as log:
        process = subprocess.Popen(
            command, env=around, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        end = time.monotonic() + _PATIENCE
        while not superlink_answers(state.connection()):
            assert process.poll() is None and time.monotonic() < end, log.name
            time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
