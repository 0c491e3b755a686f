"""``fedpeft server up`` as a process: health, restarts after kills, and a clean end."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateways import make_nodes

from deployment.hosting.timing import Timing
from deployment.processes import alive
from deployment.server.folder import ServerFolder
from deployment.server.health import ask_health, failing, superlink_answers
from deployment.server.status import describe_server
from fedpeft.page.ports import free_port

pytestmark = pytest.mark.long
PATIENCE = 240.0  # seconds to wait for anything, as machines are busy
COMMAND = "import sys; from fedpeft.cli.app import main; main(sys.argv[1:])"


@dataclass
class Up:
    """A server that is up."""

    process: subprocess.Popen[str]
    state: ServerFolder
    output: Path

    def health(self) -> dict[str, Any]:
        return ask_health(self.state.connection())

    def pids(self) -> dict[str, int]:
        return {name: child["pid"] for name, child in self.health()["children"].items()}

    def lines(self, source: str) -> list[str]:
        lines = [json.loads(line) for line in self.state.log.read_text().splitlines()]
        return [line["message"] for line in lines if line["source"] == source]


def start(path: Path, *arguments: object, output: int = subprocess.PIPE) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", COMMAND, "server", "up", "--state", path, *arguments]
    return subprocess.Popen(
        list(map(str, command)), stdout=output, stderr=subprocess.STDOUT, text=True
    )


def until(true: Callable[[], object]) -> None:
    limit = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < limit, "did not happen"
        time.sleep(0.1)


def end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(PATIENCE)
    finally:
        process.kill()


@pytest.fixture(scope="module")
def server(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    path = tmp_path_factory.mktemp("server") / "state"
    path.mkdir(mode=0o700)
    replace(Timing(), stop=PATIENCE).write(path)  # so that nothing has to be killed
    output = path.with_name("output")
    with open(output, "w") as file:
        process = start(
            path, "--keys", keys, "--host", "127.0.0.1", "--port", free_port(), output=file.fileno()
        )
    try:
        until(lambda: "is up; Ctrl-C" in output.read_text() or process.poll() is not None)
        assert process.poll() is None, output.read_text()
        yield Up(process, ServerFolder.read(path), output)
    finally:
        end(process)


def ask(server: Up, path: str, port: str, headers: dict[str, str] | None = None) -> httpx.Response:
    """Return the response to a POST to one of the server's ports; the public one speaks HTTP/2."""
    context = ssl.create_default_context(cafile=server.state.ca)
    base = f"https://localhost:{server.state.ports[port]}"
    with httpx.Client(
        base_url=base, verify=context, http2=True, timeout=PATIENCE, trust_env=False
    ) as client:
        return client.post(path, headers=headers)


def test_all_processes_are_up_and_the_next_steps_are_printed(server: Up) -> None:
    assert server.health()["superlink"] is True
    assert list(server.pids()) == ["superlink", "superexec", "gateway"]
    printed = server.output.read_text()
    port = server.state.ports["public"]
    assert f"nodes reach it at  fl.example.org:{port}" in printed
    assert f"fedpeft server add-node NODE.pub --state {server.state.path}" in printed
    assert "info superlink: Starting Flower SuperLink" in printed
    for secret in (server.state.secret.read_text(), server.state.connection().token):
        assert secret not in printed
        for pid in server.pids().values():
            assert secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_only_calls_of_nodes_are_open_and_refusals_are_logged(server: Up) -> None:
    assert ask(server, "/v1/control/list-runs", "public").status_code == 403
    assert ask(server, "/v1/control/list-runs", "control").status_code != 403
    refused = "refused 127.0.0.1 POST /v1/control/list-runs: only POST /v1/fleet/NAME is open"
    until(lambda: any(line.startswith(refused) for line in server.lines("gateway")))
    assert ask(server, "/v1/fleet/pull-messages", "public").status_code == 401


def test_the_superlink_asks_for_the_superexecs_secret(server: Up) -> None:
    """Without it, any program of this machine could take a run's task and its token."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest

    context = ssl.create_default_context(cafile=server.state.ca)
    request = urllib.request.Request(
        f"https://localhost:{server.state.ports['control']}/v1/runtime/acquire-task",
        data=AcquireTaskRequest(supported_task_types=["flwr-serverapp"]).SerializeToString(),
        headers={
            "Content-Type": "application/protobuf",
            "Accept": "application/protobuf",
        },
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=PATIENCE, context=context)
    refused.value.close()
    assert refused.value.code == 401


def test_refusal_of_a_node_without_a_registered_key_is_logged(server: Up, tmp_path: Path) -> None:
    (stranger,) = make_nodes(tmp_path, "stranger")
    answer = ask(server, "/v1/fleet/activate-node", "public", stranger.headers())
    assert answer.status_code == 412 and "not registered" in answer.json()["detail"]
    until(lambda: any("key is not registered" in line for line in server.lines("gateway")))
    assert stranger.headers()["flwr-public-key"] not in server.state.log.read_text()


def test_a_second_server_in_the_same_folder_is_refused(server: Up, keys: Path) -> None:
    second = start(server.state.path, "--keys", keys, "--port", free_port())
    output, _ = second.communicate(timeout=PATIENCE)
    assert second.returncode == 2
    assert output == f"error: --state '{server.state.path}': another server runs there\n"
    assert server.health()["superlink"] is True


def test_killed_superlink_is_restarted_and_the_superexec_survives(server: Up) -> None:
    before = server.pids()
    os.kill(before["superlink"], signal.SIGKILL)
    ended = "ended by signal 9 (Killed); restart 1 in 1 s"
    until(lambda: ended in server.lines("superlink"))
    until(lambda: server.lines("superlink")[-1].startswith("ready"))
    assert superlink_answers(server.state.connection())
    after = server.pids()
    assert after["superlink"] != before["superlink"]
    assert (after["superexec"], after["gateway"]) == (before["superexec"], before["gateway"])
    until(lambda: any("Connection successful" in line for line in server.lines("superexec")))


def test_a_gateway_that_hangs_is_named(server: Up) -> None:
    pid = server.pids()["gateway"]
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: failing(server.health()) == ["gateway"])
        described = describe_server(server.state.path)
        assert not described["up"] and described["failing"] == ["gateway"]
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: not failing(server.health()))
    assert server.pids()["gateway"] == pid


def test_sigterm_ends_all_processes(server: Up) -> None:
    """The last test of this server."""
    pids = list(server.pids().values())
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE) == 0
    assert ": killed" not in server.state.log.read_text()
    assert not any(map(alive, pids))
    for port in server.state.ports.values():
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    assert server.lines("server")[-1] == "the server has ended"
    assert server.output.read_text().splitlines()[-1].endswith("info server: the server has ended")


def test_killed_supervisor_ends_its_children_and_can_be_restarted(
    keys: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    arguments = ("--keys", keys, "--host", "127.0.0.1", "--port", free_port(), "--log-json")
    first, second = start(state, *arguments), None
    try:
        assert first.stdout is not None
        lines = [json.loads(first.stdout.readline())]
        while not lines[-1]["message"].startswith("the server is up"):
            lines.append(json.loads(first.stdout.readline()))  # nothing else is printed
        kept = ServerFolder.read(state)
        pids = list(Up(first, kept, state).pids().values())
        first.kill()
        until(lambda: not any(map(alive, pids)))
        second = start(state, *arguments, output=subprocess.DEVNULL)
        until(lambda: superlink_answers(kept.connection()))
        assert ServerFolder.read(state) == kept
    finally:
        for process in filter(None, (first, second)):
            end(process)
        if first.stdout is not None:
            first.stdout.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda keys: (keys / "ca.crt").unlink(), "ca.crt' cannot be read (No such file"),
        (lambda keys: (keys / "server.key").chmod(0o644), "may be read by other users"),
    ],
)
def test_wrong_keys_are_a_user_error(
    keys: Path, tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    for name in ("ca.crt", "server.crt", "server.key"):
        (tmp_path / name).write_bytes((keys / name).read_bytes())
    (tmp_path / "server.key").chmod(0o600)
    change(tmp_path)
    process = start(tmp_path / "state", "--keys", tmp_path)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert message in output
    assert output.startswith("error: ")
    assert output.count("\n") == 1
    assert not (tmp_path / "state").exists()
