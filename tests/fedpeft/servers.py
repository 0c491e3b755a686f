"""Real pieces of a server for tests: its state and keys, its operations endpoint, a SuperLink."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import sysconfig
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

SCRIPTS = sysconfig.get_path("scripts")


def make_state(folder: Path) -> ServerState:
    """Return the state of a new server in ``folder``, with keys of its own."""
    keys, state = folder / "keys", folder / "state"
    keys.mkdir(parents=True)
    make_authority(keys)
    make_server(keys, ["localhost"], keys)
    state.mkdir(mode=0o700)
    return ServerState.settle(state, keys, ["localhost"], "127.0.0.1", dict.fromkeys(PORTS))


@contextmanager
def operations(state: ServerState) -> Iterator[None]:
    """Run the operations endpoint while the context is open."""
    endpoint = serve(state, Supervisor([], logging.getLogger("test")))
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
def superlink(state: ServerState, shims: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a SuperLink that starts the ``flwr-serverapp`` in ``shims``, until the context closes."""
    command = [
        *(f"{SCRIPTS}/flower-superlink", "--host", "127.0.0.1"),
        *("--port", str(state.ports["control"]), "--ssl-ca-certfile", str(state.ca)),
        *("--ssl-certfile", str(state.certificate), "--ssl-keyfile", str(state.key)),
        *("--enable-supernode-auth", "--database", str(state.path / "superlink.db")),
        "--disable-runtime-dependency-installation",
    ]
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    home = {"FLWR_HOME": str(state.path / "flwr"), "FEDPEFT_SERVER_STATE": str(state.path)}
    path = {"PATH": f"{shims}:{SCRIPTS}:{os.environ['PATH']}"}
    with open(state.path / "superlink.log", "ab") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, **quiet, **home, **path},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        end = time.monotonic() + 60
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
