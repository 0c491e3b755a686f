"""Real parts of a server for tests: state folder and keys, operations endpoint, SuperLink."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deployment import server_up as up
from deployment.hosting.keys import make_authority, make_server
from deployment.hosting.processes import Supervisor
from deployment.operations import operations as serve
from deployment.server.folder import PORTS, ServerFolder
from deployment.server.health import superlink_answers

_PATIENCE = 240.0  # seconds for a process on a busy machine to start or end


def server_folder(folder: Path) -> ServerFolder:
    """Return the state folder of a new server in ``folder/state``, with new keys; nothing runs."""
    make_authority(folder / "ca")
    make_server(folder / "keys", ["localhost"], folder / "ca")
    state = folder / "state"
    state.mkdir(mode=0o700)
    any_free = dict.fromkeys(PORTS)
    return ServerFolder.settle(state, folder / "keys", ["localhost"], "127.0.0.1", any_free)


@contextmanager
def operations(state: ServerFolder, supervisor: Supervisor | None = None) -> Iterator[None]:
    """Serve the operations endpoint while the context is open; by default of no processes."""
    with serve(state, supervisor or Supervisor([], logging.getLogger("test"))):
        yield


def server_app_shim(folder: Path) -> Path:
    """Return a folder with a ``flwr-serverapp`` that first writes its pid into ``folder/pid``."""
    shim = folder / "bin" / "flwr-serverapp"
    shim.parent.mkdir()
    shim.write_text(
        f"#!/bin/sh\necho $$ > '{folder}/pid'\n"
        f"exec '{sys.executable}' -P -m deployment.server.process "
        f"\"$@\" > '{folder}/app.log' 2>&1\n"
    )
    shim.chmod(0o700)
    return shim.parent


@contextmanager
def superlink(state: ServerFolder, shims: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a SuperLink as `fedpeft server up` does; yield its process once it answers.

    With ``shims`` it starts the ``flwr-serverapp`` in that folder itself, without a superexec.
    """
    child = up.superlink(state)
    command, environment = [*child.command], {**os.environ, **child.environment}
    if shims:
        del command[command.index("--isolation") :]
        environment["PATH"] = f"{shims}:{environment['PATH']}"
    with open(state.path / "superlink.log", "ab") as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
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
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def gateway(state: ServerFolder) -> Iterator[None]:
    """Run a server's gateway, which nodes connect to."""
    child = up.gateway(state, 4)
    process = subprocess.Popen(child.command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + _PATIENCE
        while not child.ready():
            assert process.poll() is None and time.monotonic() < end, "no gateway"
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(_PATIENCE)
