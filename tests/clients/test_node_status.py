"""What is said of a node is what its processes and its log say."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from workers import eventually, handshake, node_context, other_user, state_folder

from clients import relay
from clients.channel import listen
from clients.state import log_path, socket_path
from clients.status import describe_node
from fedpeft.config import Experiment
from fedpeft.errors import UserError
from fedpeft.keys import make_authority, make_node

PROGRAM = "from fedpeft.cli import main; main()"


@contextmanager
def node_up(
    folder: Path, *options: str, before: Sequence[str] = ()
) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """Run a node whose server nobody has started; give its state folder and its process.

    ``before`` is a program that runs the node as its child, as tini does.
    """
    make_authority(folder)
    key, _ = make_node(folder, "site")
    state = folder / "state"
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{taken.getsockname()[1]}"
        given = ["--superlink", server, "--key", key, "--ca", folder / "ca.crt", "--state", state]
        command = [sys.executable, "-c", PROGRAM, "node", "up", *map(str, given), *options]
        process = subprocess.Popen([*before, *command], stdout=subprocess.DEVNULL)
        try:
            yield state, process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(30)


def pids(state: Path) -> dict[str, int | None]:
    return {name: child["pid"] for name, child in describe_node(state)["children"].items()}


def is_up(state: Path) -> bool:
    return log_path(state).exists() and bool(describe_node(state)["up"])


@pytest.mark.slow
def test_a_node_from_its_start_to_its_end(tmp_path: Path, quick: Callable[..., Experiment]) -> None:
    begun = datetime.now(UTC)
    with node_up(tmp_path, "--partition", "0") as (state, process):
        eventually(lambda: is_up(state))
        found = describe_node(state)
        assert (found["pid"], found["worker"]) == (process.pid, "listening")
        assert abs(datetime.fromisoformat(found["since"]) - begun) < timedelta(seconds=5)
        assert set(found["children"]) == {"worker", "supernode", "superexec"}
        for child in found["children"].values():
            assert child["restarts"] == 0
            os.kill(child["pid"], 0)
        assert found["last_message"] is None

        context = node_context(state)
        assert relay.app(handshake(quick()), context).has_content()
        last = describe_node(state)["last_message"]
        assert last["message"].startswith("query.handshake: done in ")

        worker = pids(state)["worker"]
        assert worker is not None
        os.kill(worker, signal.SIGKILL)
        eventually(lambda: not is_up(state))
        eventually(lambda: is_up(state))
        found = describe_node(state)
        assert found["children"]["worker"]["restarts"] == 1
        assert found["children"]["worker"]["pid"] != worker
        assert found["last_message"] == last
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    found = describe_node(state)
    assert (found["up"], found["pid"], found["since"]) == (False, None, None)
    assert pids(state) == {"worker": None, "supernode": None, "superexec": None}


@pytest.mark.slow
def test_a_node_that_does_without_a_worker_is_up(tmp_path: Path) -> None:
    with node_up(tmp_path, "--partition", "0", "--no-worker") as (state, process):
        eventually(lambda: is_up(state))
        found = describe_node(state)
        assert found["worker"] == "none" and set(found["children"]) == {"supernode", "superexec"}
        supernode = found["children"]["supernode"]["pid"]
        os.kill(supernode, signal.SIGSTOP)  # a process that hangs still runs: it is not asked
        assert is_up(state)
        os.kill(supernode, signal.SIGCONT)
        process.kill()  # and with it, by setpriv, its children
        process.wait()
        assert describe_node(state)["pid"] is None
        eventually(lambda: set(pids(state).values()) == {None})
        eventually(lambda: not running(supernode))


@pytest.mark.slow
def test_a_node_below_a_program_with_the_same_words(tmp_path: Path) -> None:
    below = ["sh", "-c", '"$@" & trap "kill $!" TERM; wait; wait', "sh"]
    with node_up(tmp_path, "--partition", "0", "--no-worker", before=below) as (state, shell):
        eventually(lambda: is_up(state))
        main = describe_node(state)["pid"]
        assert main != shell.pid
        assert f"PPid:\t{shell.pid}\n" in Path(f"/proc/{main}/status").read_text()


def running(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def line(message: str, source: str = "worker", age: float = 0.0, **more: Any) -> str:
    time = datetime.now(UTC) - timedelta(seconds=age)
    said = {"time": time.isoformat(), "level": "info", "source": source, "run": "17"}
    return json.dumps({**said, "message": message, **more}) + "\n"


def test_the_last_message_is_the_workers(tmp_path: Path) -> None:
    state = state_folder(tmp_path / "state")
    assert describe_node(state)["last_message"] is None
    lines = [
        line("train, round 1: done in 0.53 s", age=30),
        line("train, round 2: an error in 1.20 s", age=20),
        line("train, round 3: begun"),
        line("train, round 3: done in 0.10 s", source="task"),
        '{"torn',
    ]
    log_path(state).write_text("".join(lines))
    last = describe_node(state)["last_message"]
    assert (last["message"], last["run"]) == ("train, round 2: an error in 1.20 s", "17")


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    state = state_folder(tmp_path / "state")
    served = line("train, round 1: done in 0.53 s")
    log_path(state).write_text(served + line("x" * 1000) * 1100)
    assert describe_node(state)["last_message"] is None
    log_path(state).write_text(line("x" * 1000) * 1100 + served)
    assert describe_node(state)["last_message"] is not None


def test_a_worker_listens_or_has_left_its_socket(tmp_path: Path) -> None:
    state = state_folder(tmp_path / "state")
    assert describe_node(state)["worker"] == "away"
    with listen(socket_path(state)) as listener:
        found = describe_node(state)
        assert found["worker"] == "listening" and not found["up"]
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()  # nobody has knocked
    assert socket_path(state).exists()
    assert describe_node(state)["worker"] == "away"


def test_a_folder_of_no_node_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--state .*/none: no node's folder .*No such file"):
        describe_node(tmp_path / "none")


def test_another_users_folder_is_named(tmp_path: Path) -> None:
    user, state = other_user(), state_folder(tmp_path / "state")
    program = (
        "import os, pathlib, sys; from clients.status import describe_node\n"
        "os.setuid(int(sys.argv[2]))\n"
        "describe_node(pathlib.Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", program, str(state), str(user)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "no node's folder that you can read (Permission denied)" in done.stderr
