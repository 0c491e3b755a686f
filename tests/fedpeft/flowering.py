"""Flower's own programs on loopback without TLS, for tests of what runs inside them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PROGRAMS = Path(sys.executable).parent
PATIENCE = 240.0  # seconds; the machine may be busy

# A project that brings code for both sides; each leaves a mark when it is imported.
FOREIGN_PROJECT = """
[project]
name = "foreign"
version = "1"
[tool.flwr.app]
publisher = "foreign"
[tool.flwr.app.components]
serverapp = "evil:server"
clientapp = "evil:client"
"""
FOREIGN_CODE = """
import os, time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
HERE = Path({here!r})
(HERE / f"imported-by-{{os.environ['SIDE']}}").touch()
server = ServerApp()
client = ClientApp()
@server.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.2)
    reply, = grid.send_and_receive([Message(RecordDict(), nodes[0], "train")])
    (HERE / "reply").write_text(f"{{reply.error.code}} {{reply.error.reason}}")
"""


def foreign_project(folder: Path, here: Path) -> Path:
    """Write an app whose code leaves its marks in ``here``; return its folder."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text(FOREIGN_PROJECT)
    (folder / "evil.py").write_text(FOREIGN_CODE.format(here=str(here)))
    return folder


def environment(home: Path, *paths: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a Flower process that finds programs in ``paths`` first."""
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "PATH": ":".join(map(str, [*paths, PROGRAMS, os.environ["PATH"]])),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        **variables,
    }


@contextmanager
def running(command: list[str], output: Path, env: dict[str, str]) -> Iterator[None]:
    """Run a program and all that it starts in a session of their own, and end them."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            [str(PROGRAMS / command[0]), *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=env,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def insecure_superlink(folder: Path, port: int, env: dict[str, str]) -> Iterator[None]:
    """Run a SuperLink and the programs it starts, until it answers and as long as asked."""
    command = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
    with running(command, folder / "superlink.txt", env):
        until(lambda: answers(port))
        yield


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def until(done: Callable[[], Any]) -> Any:
    """Wait for ``done()`` and return what it gave."""
    end = time.monotonic() + PATIENCE
    while not (found := done()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)
    return found


def flwr(port: int, home: Path, *arguments: str) -> dict[str, Any]:
    """Run one of Flower's own commands and return what it prints."""
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink.it]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    done = subprocess.run(
        [str(PROGRAMS / "flwr"), *arguments, "it", "--format", "json"],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    answer = dict(json.loads(done.stdout[done.stdout.index("{") :]))
    assert answer.get("success"), answer
    return answer


def lines(log: Path) -> list[dict[str, Any]]:
    """Return what a log of JSON lines holds so far."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
