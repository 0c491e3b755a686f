"""The state folder of a server: settled once, kept, private, locked by one server at a time."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployment.operator.connection import Connection
from deployment.server.folder import ServerFolder, locked
from fedpeft.errors import UserError

NONE = {"public": None, "control": None, "operations": None}


def settle(path: Path, keys: Path, **ports: int) -> ServerFolder:
    with locked(path):
        return ServerFolder.settle(path, keys, ["fl.example.org"], "127.0.0.1", {**NONE, **ports})


def test_ports_and_secrets_are_created_once_and_kept(tmp_path: Path, keys: Path) -> None:
    path = tmp_path / "new" / "state"
    first = settle(path, keys)
    token, secret = first.connection().token, first.secret.read_bytes()
    assert len(set(first.ports.values())) == 3
    assert len(secret) == len(token) == 64
    assert secret.decode() != token
    assert settle(path, keys) == first == ServerFolder.read(path)
    assert first.connection().token == token
    assert first.secret.read_bytes() == secret


def test_a_requested_port_replaces_the_kept_one(tmp_path: Path, keys: Path) -> None:
    first = settle(tmp_path, keys)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    second = settle(tmp_path, keys, control=port)
    assert second.ports == {**first.ports, "control": port}
    assert Connection.read(tmp_path / "connection.toml").control == f"127.0.0.1:{port}"


def test_the_connection_can_be_copied_with_its_certificate(tmp_path: Path, keys: Path) -> None:
    state = settle(tmp_path / "state", keys)
    operator = tmp_path / "operator"
    operator.mkdir()
    for name in ("connection.toml", "ca.crt"):
        (operator / name).write_bytes((state.path / name).read_bytes())
    copied = Connection.read(operator / "connection.toml")
    assert copied.ca == operator / "ca.crt"
    assert (copied.control, copied.operations, copied.token) == (
        f"127.0.0.1:{state.ports['control']}",
        f"127.0.0.1:{state.ports['operations']}",
        state.connection().token,
    )


def test_secrets_and_folders_are_closed_to_other_users(tmp_path: Path, keys: Path) -> None:
    state = settle(tmp_path / "state", keys)
    for name in ("secret", "token", "connection.toml", "server.lock"):
        assert stat.S_IMODE((state.path / name).stat().st_mode) == 0o600, name
    for folder in (state.path, *filter(Path.is_dir, state.path.iterdir())):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_ports_in_use_and_used_twice_are_refused(tmp_path: Path, keys: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            UserError, match=f"the public port 127.0.0.1:{port} cannot be used .*--port"
        ):
            settle(tmp_path, keys, public=port)
        with pytest.raises(UserError, match=f"the control port .*{port} .*--control-port"):
            settle(tmp_path, keys, control=port)
    with pytest.raises(UserError, match=f"port {port} cannot be both the public port and the "):
        settle(tmp_path, keys, public=port, control=port)


def test_a_kept_port_may_become_free_a_little_later(tmp_path: Path, keys: Path) -> None:
    first = settle(tmp_path, keys)
    taken = socket.create_server(("127.0.0.1", first.ports["control"]))
    leaving = threading.Timer(0.5, taken.close)
    leaving.start()
    assert settle(tmp_path, keys) == first
    leaving.join()


@pytest.mark.parametrize("content", ["", "[]", '{"ports": {}}', '{"ports": {"public": "x"}}'])
def test_damaged_settings_are_refused(tmp_path: Path, keys: Path, content: str) -> None:
    (tmp_path / "server.json").write_text(content)
    with pytest.raises(UserError, match=r"server.json' is damaged; remove it"):
        settle(tmp_path, keys)


def test_missing_settings_say_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no '.*server.json'; 'fedpeft server up --state"):
        ServerFolder.read(tmp_path)


HOLD = """
import sys, time
from pathlib import Path
from deployment.server.folder import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, env=os.environ
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_folder_is_locked_until_its_server_is_killed(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    with pytest.raises(UserError, match="another server runs there"), locked(tmp_path):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with locked(tmp_path):
        pass


@pytest.mark.parametrize(
    ("name", "message"),
    [("file", "is a file; expected a folder"), ("file/below", "cannot be used")],
)
def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=f"--state '.*{name}' {message}"), locked(tmp_path / name):
        pass
