"""``fedpeft server add-node``, ``remove-node`` and ``status`` as an operator calls them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from finished import finished_run
from servers import operations, server_folder, superlink

from fedpeft.hosting.keys import make_node
from server.host.folder import ServerFolder
from server.runfolder import RunFolder

Fedpeft = Callable[..., tuple[int, str, str]]


@pytest.fixture
def state(tmp_path: Path) -> ServerFolder:
    return server_folder(tmp_path)


def register(state: ServerFolder, *names: str) -> None:
    entries = [
        {"name": name, "node_id": 2**64 - 1 - place, "public_key_sha256": "0", "added": ""}
        for place, name in enumerate(names)
    ]
    (state.path / "nodes.json").write_text(json.dumps(entries))


def add_private_run(state: ServerFolder) -> None:
    """Put a private run in the state folder, whose clients were at two nodes."""
    folder = state.path / "runs" / "sentiment-1"
    private = ("privacy.unit=example", "privacy.noise_multiplier=2", "privacy.delta=0.01")
    shutil.copytree(finished_run("method.d=16", *private), folder)
    seen = datetime.now(UTC) - timedelta(minutes=5)
    entries = [
        {
            "client": client,
            "node_id": 2**64 - 1 - client,
            "name": f"hospital-{client}",
            "examples": 24,
            "last_seen": seen.isoformat(timespec="seconds"),
            "rounds": 1,
            "failed": client,
            "epsilon": {"example": 1.234},
        }
        for client in range(2)
    ]
    (folder / "roster.json").write_text(json.dumps({"nodes": entries}))


def test_the_status_of_a_server_that_is_down(fedpeft: Fedpeft, state: ServerFolder) -> None:
    code, out, err = fedpeft("server", "status", "--state", state.path)
    assert (code, err) == (1, "")
    head, where, *_ = out.splitlines()
    assert head == "down; 'fedpeft server up' starts it"
    assert where.startswith(f"nodes at 127.0.0.1:{state.ports['public']}; on loopback control")
    assert "no nodes; 'fedpeft server add-node NAME.pub' registers one" in out


def test_the_tables_fit_into_100_columns(fedpeft: Fedpeft, state: ServerFolder) -> None:
    long = "a-hospital-with-a-long-name-0032"
    register(state, "hospital-0", "hospital-1", long)
    add_private_run(state)
    code, out, _ = fedpeft("server", "status", "--state", state.path)
    assert code == 1
    table = out.splitlines()
    assert max(map(len, table)) <= 100
    words = {line.split()[0]: line.split() for line in table if line.strip()}
    assert words["sentiment-1"][1:3] == ["finished", "1/1"]
    assert words["run"] == ["run", "state", "round", "score", "up", "down", "epsilon", "changed"]
    assert words["node"] == ["node", "id", "state", "client", "answered", "up", "down", "epsilon"]
    first = words["hospital-0"]
    seen = ["seen", "5", "min", "ago"]
    assert first[1:10] == [str(2**64 - 1), *seen, "0", "1", "of", "1"]
    assert first[-1] == "1.24"  # rounded up
    assert "  1 of 2  " in next(line for line in table if "hospital-1" in line)
    assert "never seen" in next(line for line in table if str(2**64 - 3) in line)


def test_a_run_in_progress_shows_its_round(fedpeft: Fedpeft, state: ServerFolder) -> None:
    folder = state.path / "runs" / "sentiment"
    shutil.copytree(finished_run("method.d=16"), folder)
    (folder / "result.json").unlink()
    (folder / "rounds.jsonl").unlink()
    with RunFolder(folder).locked():
        _, out, _ = fedpeft("server", "status", "--state", state.path)
    assert "sentiment  round 1 of 1    0/1  " in out


def test_a_failed_run_says_why(fedpeft: Fedpeft, state: ServerFolder) -> None:
    folder = state.path / "runs" / "broken"
    shutil.copytree(finished_run("method.d=16"), folder)
    (folder / "ended.json").write_text('{"ok": false, "reason": "0 of 2\\u001b[31m clients"}')
    _, out, _ = fedpeft("server", "status", "--state", state.path)
    assert "broken failed: 0 of 2 [31m clients" in out.splitlines()


def test_server_status_prints_json(fedpeft: Fedpeft, state: ServerFolder) -> None:
    register(state, "hospital-0")
    add_private_run(state)
    code, out, _ = fedpeft("server", "status", "--state", state.path, "--json")
    described = json.loads(out)
    assert (code, described["up"]) == (1, False)
    assert described["nodes"][0]["node_id"] == 2**64 - 1
    assert described["nodes"][0]["epsilon"] == {"example": 1.234}
    assert described["runs"][0]["epsilon"] > 0


def test_quick_status_checks_only_the_processes(
    fedpeft: Fedpeft, state: ServerFolder, tmp_path: Path
) -> None:
    probe = ("server", "status", "--quick", "--state")
    assert fedpeft(*probe, state.path) == (1, "no answer: server\n", "")
    with operations(state):  # without a SuperLink
        assert fedpeft(*probe, state.path) == (1, "no answer: superlink\n", "")
        code, out, _ = fedpeft(*probe, state.path, "--json")
    assert code == 1 and json.loads(out) == {"up": False, "superlink": False, "children": {}}
    code, _, err = fedpeft(*probe, tmp_path)
    assert code == 2 and "connection.toml'; 'fedpeft server up --state" in err


@pytest.mark.long
def test_quick_status_of_a_server_that_is_up(fedpeft: Fedpeft, state: ServerFolder) -> None:
    with superlink(state), operations(state):
        assert fedpeft("server", "status", "--quick", "--state", state.path) == (0, "up\n", "")


@pytest.mark.parametrize("command", ["status", "add-node", "remove-node"])
def test_a_folder_without_a_server_is_a_user_s_mistake(
    fedpeft: Fedpeft, tmp_path: Path, command: str
) -> None:
    given = {"status": [], "add-node": [make_node(tmp_path, "a")[1]], "remove-node": ["a"]}
    code, out, err = fedpeft("server", command, *given[command], "--state", tmp_path / "none")
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and len(err.splitlines()) == 1


@pytest.mark.long
def test_a_registered_node_comes_online_and_a_removed_one_is_refused(
    fedpeft: Fedpeft, state: ServerFolder, tmp_path: Path
) -> None:
    """The whole life of a node, with a real SuperNode."""
    private, public = make_node(tmp_path, "hospital-a")
    given = ("--state", state.path)
    with superlink(state):
        code, out, _ = fedpeft("server", "add-node", public, *given)
        assert code == 0 and out.startswith("node 'hospital-a' may take part; its key: SHA256:")
        code, _, err = fedpeft("server", "add-node", private, *given)
        assert code == 2 and "is a private key" in err
        code, out, _ = fedpeft("server", "status", *given)
        assert code == 0 and out.startswith("up\n") and " never seen " in out
        node = start_supernode(state, private, tmp_path)
        try:
            assert wait_for(lambda: " online " in fedpeft("server", "status", *given)[1])
        finally:
            node.terminate()
            node.wait(timeout=180)
        assert wait_for(lambda: " offline " in fedpeft("server", "status", *given)[1])
        code, out, _ = fedpeft("server", "remove-node", "hospital-a", *given)
        assert (code, out) == (0, "node 'hospital-a' may no longer take part\n")
        assert "no nodes;" in fedpeft("server", "status", *given)[1]
        # The SuperLink does not let it in again.
        node = start_supernode(state, private, tmp_path)
        try:
            assert node.wait(timeout=180) != 0
        finally:
            node.kill()
            node.wait()


def start_supernode(state: ServerFolder, private: Path, folder: Path) -> subprocess.Popen[bytes]:
    home = folder / "flwr"
    home.mkdir(exist_ok=True)
    return subprocess.Popen(
        [
            *(str(Path(sys.executable).parent / "flower-supernode"), "--superlink"),
            *(f"127.0.0.1:{state.ports['control']}", "--root-certificates", str(state.ca)),
            *("--auth-supernode-private-key", str(private), "--max-retries", "1"),
            *("--port", str(state.ports["public"]), "--isolation", "process"),
            *("--superexec-auth-secret-file", str(state.secret)),
        ],
        env={
            **os.environ,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def wait_for(condition: Callable[[], bool], seconds: float = 180) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True
