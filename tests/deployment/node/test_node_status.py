"""The status of a node: its processes, its worker and its last message."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from workers import PATIENCE, eventually, handshake, node_context, other_user, state_folder

from clients.flower import context_to_wire, to_wire
from clients.folder import NodeFolder
from deployment.hosting.keys import make_authority, make_node
from deployment.hosting.record import write_record
from deployment.node import relay
from deployment.node.channel import listen
from deployment.node.status import describe_node
from deployment.node.worker import answer_wire
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment

PROGRAM = "from fedpeft.cli.app import main; main()"


@contextmanager
def node_up(folder: Path, *options: str) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """Run a node whose server is down; yield its state folder and its process."""
    make_authority(folder)
    key, _ = make_node(folder, "site")
    state = folder / "state"
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{taken.getsockname()[1]}"
        given = ["--superlink", server, "--key", key, "--ca", folder / "ca.crt", "--state", state]
        command = [sys.executable, "-c", PROGRAM, "node", "up", *map(str, given), *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            yield state, process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(PATIENCE)


def pids(state: Path) -> dict[str, int | None]:
    return {name: child["pid"] for name, child in describe_node(state)["children"].items()}


def is_up(state: Path) -> bool:
    return NodeFolder(state).log.exists() and bool(describe_node(state)["up"])


@pytest.mark.long
def test_a_node_from_its_start_to_its_end(tmp_path: Path, quick: Callable[..., Experiment]) -> None:
    begun = datetime.now(UTC)
    with node_up(tmp_path, "--partition", "0") as (state, process):
        eventually(lambda: is_up(state))
        described = describe_node(state)
        assert (described["pid"], described["worker"]) == (process.pid, "listening")
        since = datetime.fromisoformat(described["since"])
        assert begun - timedelta(seconds=1) < since <= datetime.now(UTC)
        assert set(described["children"]) == {"worker", "tunnel", "supernode", "superexec"}
        for child in described["children"].values():
            assert child["restarts"] == 0
            os.kill(child["pid"], 0)
        assert described["last_message"] is None
        assert described["tunnel"]["connected"] is False  # nobody listens at the server's port
        assert "no server answers" in described["tunnel"]["problem"]

        context = node_context(state)
        assert relay.app(handshake(quick()), context).has_content()
        last = describe_node(state)["last_message"]
        assert last["message"].startswith("query.handshake: done in ")

        worker = pids(state)["worker"]
        assert worker is not None
        os.kill(worker, signal.SIGKILL)
        eventually(lambda: pids(state)["worker"] not in (worker, None))
        eventually(lambda: is_up(state))
        described = describe_node(state)
        assert described["children"]["worker"]["restarts"] == 1
        assert described["children"]["worker"]["pid"] != worker
        assert described["last_message"] == last
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    described = describe_node(state)
    assert (described["up"], described["pid"], described["since"]) == (False, None, None)
    assert not NodeFolder(state).processes.exists()
    assert pids(state) == dict.fromkeys(("worker", "tunnel", "supernode", "superexec"))
    assert described["tunnel"] is None


@pytest.mark.long
def test_a_node_without_a_worker_is_up(tmp_path: Path) -> None:
    with node_up(tmp_path, "--partition", "0", "--no-worker") as (state, process):
        eventually(lambda: is_up(state))
        described = describe_node(state)
        assert described["worker"] == "none" and set(described["children"]) == {
            "tunnel",
            "supernode",
            "superexec",
        }
        supernode = described["children"]["supernode"]["pid"]
        os.kill(supernode, signal.SIGSTOP)  # a process that hangs still runs: it is not asked
        assert is_up(state)
        os.kill(supernode, signal.SIGCONT)
        process.kill()  # and with it, by setpriv, its children
        process.wait()
        assert describe_node(state)["pid"] is None
        eventually(lambda: set(pids(state).values()) == {None})
        eventually(lambda: not running(supernode))


def running(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_the_last_message_is_the_workers(tmp_path: Path) -> None:
    folder = NodeFolder(state_folder(tmp_path / "state"))
    assert describe_node(folder.path)["last_message"] is None
    asked = handshake("seed = [")
    answer_wire(folder, (to_wire(asked), context_to_wire(node_context(folder.path))))
    last = describe_node(folder.path)["last_message"]
    assert last["message"].startswith("query.handshake: an error in ")
    assert last["run"] == str(asked.metadata.run_id)
    age = datetime.now(UTC) - datetime.fromisoformat(last["time"])
    assert timedelta(0) <= age < timedelta(minutes=5)
    folder.last_message.write_text('{"torn')
    assert describe_node(folder.path)["last_message"] is None


def test_the_processes_are_those_of_the_record(tmp_path: Path) -> None:
    folder, here = NodeFolder(state_folder(tmp_path / "state")), os.getpid()
    since = datetime(2026, 1, 31, 12, tzinfo=UTC)
    write_record(folder.processes, since, {"supernode": here}, {"supernode": 3, "superexec": 0})
    described = describe_node(folder.path)
    assert (described["pid"], described["since"]) == (here, "2026-01-31T12:00:00+00:00")
    assert (described["worker"], described["up"]) == ("none", False)
    assert described["children"] == {
        "supernode": {"pid": here, "restarts": 3},
        "superexec": {"pid": None, "restarts": 0},
    }
    pids = {"supernode": here, "superexec": here}
    write_record(folder.processes, since, pids, dict.fromkeys(pids, 0))
    assert describe_node(folder.path)["up"]


def test_a_worker_listens_or_has_left_its_socket(tmp_path: Path) -> None:
    state = state_folder(tmp_path / "state")
    assert describe_node(state)["worker"] == "away"
    with listen(NodeFolder(state).socket) as listener:
        described = describe_node(state)
        assert described["worker"] == "listening" and not described["up"]
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()  # nobody has knocked
    assert NodeFolder(state).socket.exists()
    assert describe_node(state)["worker"] == "away"


def test_a_folder_that_is_not_a_nodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--state .*/none: not a node's folder .*No such file"):
        describe_node(tmp_path / "none")


def test_another_users_state_folder_is_refused(tmp_path: Path) -> None:
    user, state = other_user(), state_folder(tmp_path / "state")
    program = (
        "import os, pathlib, sys; from deployment.node.status import describe_node\n"
        "os.setuid(int(sys.argv[2]))\n"
        "describe_node(pathlib.Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", program, str(state), str(user)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "not a node's folder that you can read (Permission denied)" in done.stderr
