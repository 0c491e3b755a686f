"""`fedpeft node up` with a real SuperLink: start, restarts, and end of all processes."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from servers import server_folder, superlink
from workers import PATIENCE, eventually, handshake, logged, node_context

from clients.folder import NodeFolder, NodeSettings
from deployment.hosting.keys import make_node
from deployment.hosting.processes import Supervisor
from deployment.hosting.timing import Timing
from deployment.node import relay
from deployment.node.channel import is_listening
from deployment.node.up import Node, Useful, children, make_certificate, up
from deployment.processes import alive, command_line, descendants
from deployment.server.folder import ServerFolder
from deployment.server.registration import add_node
from deployment.server_up import gateway
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment

PROGRAM = "from fedpeft.cli.app import main; main()"


@contextmanager
def node_up(state: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run `fedpeft node up`; kill all its processes at the end."""
    command = [sys.executable, "-c", PROGRAM, "node", "up", "--state", str(state), *options]
    with open(state.with_suffix(".out"), "w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pid in processes_of(state):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def processes_of(state: Path) -> dict[int, str]:
    """Return the running processes that a node has started: pid -> command."""
    mark, processes = f"FEDPEFT_NODE_STATE={state}".encode(), {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and mark in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                processes[int(entry.name)] = command
    return processes


def pids_of(state: Path, word: str) -> list[int]:
    return [pid for pid, command in processes_of(state).items() if word in command]


def commands_below(pid: int) -> list[str]:
    return [command_line(child) for child in descendants(pid)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFolder]:
    """A SuperLink behind its gateway, with the registered node `site`, whose keys are beside it."""
    state = server_folder(tmp_path_factory.mktemp("server"))
    make_node(state.path.parent / "site", "site")
    supervisor = Supervisor([gateway(state, 64)], logging.getLogger("test"))
    with superlink(state):
        add_node(state.path, state.path.parent / "site" / "site.pub")
        running = threading.Thread(target=supervisor.run)
        running.start()
        try:
            yield state
        finally:
            supervisor.stop()
            running.join()


def options(server: ServerFolder) -> list[str]:
    folder, address = server.path.parent, f"localhost:{server.ports['public']}"
    return [
        *("--superlink", address, "--key", str(folder / "site" / "site")),
        *("--ca", str(server.connection().ca), "--partition", "0", "--backbone", "tiny"),
    ]


@pytest.mark.long
def test_a_node_joins_restarts_its_worker_and_ends_all_processes(
    server: ServerFolder, tmp_path: Path, quick: Callable[..., Experiment]
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    replace(Timing().scaled(0.1), stop=PATIENCE).write(state)  # so that nothing has to be killed
    with node_up(state, *options(server), "--log-json") as node:
        eventually(lambda: "the node is up" in str(logged(state)))
        eventually(lambda: any("SuperNode ID" in line for line in logged(state)))

        second = subprocess.run(
            [sys.executable, "-c", PROGRAM, "node", "up", "--state", str(state), *options(server)],
            capture_output=True,
            text=True,
        )
        assert second.returncode == 2 and "another node runs there" in second.stderr

        (worker,) = pids_of(state, "deployment.node.worker")
        context = node_context(state)
        assert relay.app(handshake(quick()), context).has_content()
        assert any("query.handshake: done" in line for line in logged(state))
        os.kill(worker, signal.SIGKILL)
        eventually(lambda: set(pids_of(state, "deployment.node.worker")) - {worker} != set())
        eventually(lambda: is_listening(NodeFolder(state).socket))
        assert relay.app(handshake(quick()), context).has_content()
        assert sum("query.handshake: done" in line for line in logged(state)) == 2

        node.send_signal(signal.SIGTERM)
        assert node.wait(PATIENCE) == 0
        assert processes_of(state) == {}
        assert not any(line.endswith(": killed") for line in logged(state))
    printed = state.with_suffix(".out").read_text()
    assert '"source": "supernode"' in printed and "the node has ended" in printed


@pytest.mark.long
def test_a_node_runs_without_a_worker(server: ServerFolder, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with node_up(state, *options(server), "--no-worker") as node:
        eventually(lambda: "the node is up" in str(logged(state)))
        assert pids_of(state, "flower-supernode") and not pids_of(state, "deployment.node.worker")
        node.send_signal(signal.SIGTERM)
        assert node.wait(PATIENCE) == 0
    assert "worker" not in state.with_suffix(".out").read_text()


@pytest.mark.long
def test_a_key_that_the_server_does_not_know_ends_the_node_or_is_waited_for(
    server: ServerFolder, tmp_path: Path
) -> None:
    key, public = make_node(tmp_path, "new")
    given = [*options(server), "--no-worker"]
    given[given.index("--key") + 1] = str(key)
    state = tmp_path / "state"
    with node_up(state, *given) as node:
        assert node.wait(PATIENCE) == 2
        assert processes_of(state) == {}
    printed = state.with_suffix(".out").read_text()
    assert "does not know the key" in printed and "start this node after that" in printed
    with node_up(state, *given, "--wait") as node:
        eventually(lambda: "yet: waiting (--wait)" in str(logged(state)))
        assert node.poll() is None
        add_node(server.path, public)
        eventually(lambda: "the node is up" in str(logged(state)))
        node.send_signal(signal.SIGTERM)
        assert node.wait(PATIENCE) == 0


@pytest.mark.long
def test_a_mistake_ends_node_up_before_any_start(server: ServerFolder, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with node_up(state, *options(server)[:-1], "/no/such/backbone") as node:
        assert node.wait(PATIENCE) == 2
        assert processes_of(state) == {}
    assert "'/no/such/backbone': no such folder" in state.with_suffix(".out").read_text()
    assert not (state / "node.json").exists()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_checks_ends_node_up(
    server: ServerFolder, tmp_path: Path, number: int
) -> None:
    state = tmp_path / "state"
    # A shell starts what runs in its background with SIGINT ignored.
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with node_up(state, *options(server)) as node:
            eventually(lambda: "deployment.node.checks" in str(commands_below(node.pid)))
            (checking,) = descendants(node.pid)
            node.send_signal(number)
            assert node.wait(PATIENCE) == 0
            eventually(lambda: not alive(checking))
    finally:
        signal.signal(signal.SIGINT, earlier)
    printed = state.with_suffix(".out").read_text()
    assert "the node has ended" in printed and "Traceback" not in printed
    assert not (state / "node.json").exists()


def test_a_state_folder_in_the_data_is_refused(tmp_path: Path) -> None:
    for state in (tmp_path, tmp_path / "deep" / "state"):
        node = Node("host:1", Path("/k"), Path("/ca"), state, NodeSettings(str(tmp_path)))
        with pytest.raises(UserError, match=rf"--state {state}: lies in --data {tmp_path}, whose"):
            up(node, as_json=False)
    assert not list(tmp_path.iterdir())


def test_the_nodes_processes_get_a_new_certificate_at_each_start(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path).runtime
    make_certificate(folder)
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(first) == {"ca.crt", "server.crt", "server.key"}  # nobody can sign another
    modes = {path.name: path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())}
    assert modes["runtime"] == 0o700 and modes["server.key"] == 0o600
    make_certificate(folder)
    assert not any(first[path.name] == path.read_bytes() for path in folder.iterdir())


def test_the_nodes_processes_are_private_and_use_our_scripts(tmp_path: Path) -> None:
    state = tmp_path / "a state"
    NodeFolder(state).prepare()
    node = Node("host:1", Path("/k"), Path("/ca"), state, NodeSettings("", 0))
    useful = Useful(node, Timing(), logging.getLogger("test"))
    worker, tunnel, supernode, superexec = children(node, 4321, 4322, useful)
    assert "process" in supernode.command and f'state="{state}"' in supernode.command
    assert "--host" in supernode.command and "127.0.0.1" in supernode.command
    assert "127.0.0.1:4322" in supernode.command and "host:1" not in supernode.command
    assert tunnel.command[-4:] == ["4322", "host", "1", "/ca"]
    assert "127.0.0.1:4321" in superexec.command and "--insecure" not in superexec.command
    for child in (supernode, superexec):
        secret = child.command[list(child.command).index("--superexec-auth-secret-file") + 1]
        assert Path(secret).stat().st_mode & 0o777 == 0o600
        assert (state / "secret").read_text() not in str(child.command)
    around = worker.environment
    assert around["PATH"].split(os.pathsep)[0] == str(state / "bin")
    assert around["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert around["FEDPEFT_NODE_STATE"] == str(state)
    assert supernode.environment == superexec.environment == tunnel.environment == around
