"""``fedpeft run``: a federation on a real server with a real node, followed from the outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from servers import gateway, operations, server_app_shim, server_folder, superlink

from fedpeft.experiment.config import Experiment
from fedpeft.hosting.keys import make_node
from fedpeft.hosting.ports import free_port
from server.host.folder import ServerFolder
from server.host.registration import add_node
from server.runfolder import RunFolder

Command = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.long
PATIENCE = 300.0  # seconds, on a machine of any speed
_NODE = """
import sys
from pathlib import Path
from clients.node import Node, up
from clients.folder import NodeSettings
superlink, key, ca, state = sys.argv[1:]
up(Node(superlink, Path(key), Path(ca), Path(state), NodeSettings("", 0)), False)
"""
QUICK = [
    *("backbone=tiny", "task.train_limit=60", "task.eval_limit=20", "method.d=8"),
    *("federation.clients=1", "federation.rounds=2", "federation.node_wait=300"),
    *("engine.threads=1", "output.plots=false"),
]


def settings(*overrides: str) -> list[str]:
    return [part for override in (*QUICK, *overrides) for part in ("-s", override)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server and its node live."""
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerFolder]:
    """A server that is up, with one node registered."""
    state = server_folder(folder)
    make_node(folder, "node")
    with superlink(state, server_app_shim(folder)), gateway(state), operations(state):
        add_node(state.path, folder / "node.pub")
        yield state


@pytest.fixture(scope="module")
def node(server: ServerFolder, folder: Path) -> Iterator[None]:
    """The server's node, up as well."""
    address = f"localhost:{server.ports['public']}"
    with open(folder / "node.out", "wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", _NODE, address, str(folder / "node"), str(server.ca)),
                str(folder / "node-state"),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0


@contextmanager
def following(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Run ``fedpeft run`` as a process of its own, as in a terminal where Ctrl-C can be typed."""
    command = [sys.executable, "-c", "from fedpeft.cli import main; main()", "run"]
    process = subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A background job of a shell ignores Ctrl-C, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def submitted(out: Path) -> str:
    """Return Flower's id of the run in ``out``, once it has one."""
    end = time.monotonic() + PATIENCE
    file = out / "submitted.json"
    while not file.exists() or "run" not in json.loads(file.read_text()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return str(json.loads(file.read_text())["run"])


def test_a_run_continues_after_ctrl_c_and_is_copied_when_resumed(
    server: ServerFolder, fedpeft: Command, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It waits for the node when it is interrupted; then the node comes."""
    out, rounds = tmp_path / "first", 3
    longer = settings(f"federation.rounds={rounds}")
    with following("--on", server.path, *longer, "--out", out) as process:
        run = submitted(out)
        assert process.stdout
        begun = process.stdout.readline()  # a run can be interrupted before it has said a word
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert begun.startswith("synthetic/sentiment · slash on tiny · 1 clients, 1 a round · run ")
    assert said == (
        f"interrupted; the run continues at the server; the same command with '--out {out} "
        f"--resume' reconnects, with '--out {out} --stop' stops the run\n"
    )
    request.getfixturevalue("node")
    code, printed, said = fedpeft("run", "--on", server.path, "--resume", "--out", out)
    assert (code, said) == (0, ""), printed
    lines = printed.splitlines()
    assert f", number {run} · " in lines[0]  # not submitted again
    assert lines[1].startswith("start  accuracy 0.")
    played = [line.split()[:2] for line in lines[2 : rounds + 2]]
    assert played == [["round", f"{number}/{rounds}"] for number in range(1, rounds + 1)]
    assert lines[rounds + 2].startswith("accuracy 0.") and "after 3 rounds" in lines[rounds + 2]
    assert lines[-1] == f"results: {out}"
    there = server.path / "runs" / "first"
    home = {each.name for each in out.iterdir()} - {"run.lock", "submitted.json"}
    assert home >= {"result.json", "vector.safetensors", "rounds.jsonl", "roster.json"}
    assert all((out / name).read_bytes() == (there / name).read_bytes() for name in home)


def test_a_failed_run_prints_its_reason(
    server: ServerFolder, fedpeft: Command, tmp_path: Path
) -> None:
    waiting = settings("federation.clients=5", "federation.node_wait=1")
    out = tmp_path / "alone"
    code, _, said = fedpeft("run", "--on", server.path, *waiting, "--out", out)
    assert code == 1 and said.startswith("stopped: ") and said.count("\n") == 1
    assert json.loads((out / "ended.json").read_text())["reason"] in said


def test_a_server_that_goes_away_is_waited_for_and_a_run_can_be_stopped(
    server: ServerFolder, fedpeft: Command, tmp_path: Path
) -> None:
    ports = {**server.ports, "operations": free_port()}
    reached, out = replace(server, ports=ports), tmp_path / "stopped"
    (tmp_path / "trial.toml").write_text(reached.connection().to_toml())
    on = ("--on", tmp_path / "trial.toml", "--out", out)
    with following(*on, *settings("federation.clients=7", "federation.node_wait=300")) as process:
        with operations(reached):
            submitted(out)
        assert process.stdout
        begun, lost = process.stdout.readline(), process.stdout.readline()
        with operations(reached):
            back = process.stdout.readline()
            code, printed, _ = fedpeft("run", *on, "--stop")
            assert code == 0 and printed.startswith("stopped run ")
            _, said = process.communicate(timeout=PATIENCE)
    assert "run 'stopped' at 127.0.0.1:" in begun
    # Refused, or reset or closed where the question had just been asked.
    address = f"127.0.0.1:{ports['operations']}"
    assert lost.startswith(
        tuple(f"no connection to {address} ({why}" for why in ("Connection re", "RemoteDisc"))
    )
    assert back == "connected again\n"
    assert process.returncode == 1 and said.startswith(
        "stopped: the run was stopped at the server; the same command with --resume continues"
    )


def test_a_run_whose_submission_reply_was_lost_can_be_resumed(
    server: ServerFolder, fedpeft: Command, tmp_path: Path
) -> None:
    out, there = tmp_path / "lost", server.path / "runs" / "lost" / "run.json"
    on = ("--on", server.path, "--out", out)
    waiting = settings("federation.clients=7", "federation.node_wait=300")
    with following(*on, *waiting) as process:
        run = submitted(out)
        end = time.monotonic() + PATIENCE
        while not there.exists():
            assert time.monotonic() < end
            time.sleep(0.1)
        process.kill()
        process.communicate()
    (out / "submitted.json").unlink()  # as after a crash before the answer came
    with following(*on, "--resume") as process:
        assert process.stdout
        assert f", number {run} · " in process.stdout.readline()  # not given a second time
        code, printed, _ = fedpeft("run", *on, "--stop")
        assert code == 0 and printed.startswith(f"stopped run {run};")
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert json.loads(there.read_text()) == {"run": run}


def test_a_name_that_is_taken_and_other_settings_are_refused(
    server: ServerFolder, fedpeft: Command, tmp_path: Path
) -> None:
    RunFolder.create(server.path / "runs" / "taken", Experiment.load("", QUICK))
    arguments = ("run", "--on", server.path, "--name", "taken")
    code, _, said = fedpeft(*arguments, *settings(), "--out", tmp_path / "new")
    assert code == 2 and "the server has a run 'taken' already; choose another --name" in said
    RunFolder.create(tmp_path / "home", Experiment.load("", [*QUICK, "seed=5"]))
    code, _, said = fedpeft(
        *(*arguments, "--resume", "--out", tmp_path / "home", *settings("seed=5"))
    )
    assert code == 2 and "the server's run 'taken' has other settings: seed (0 and 5)" in said
    assert not (tmp_path / "new").exists()


def test_wrong_options_write_and_submit_nothing(
    server: ServerFolder, fedpeft: Command, tmp_path: Path
) -> None:
    here, odd = ("--on", server.path), tmp_path / "odd"
    odd.mkdir()
    (odd / "submitted.json").write_text('{"name": 5}')
    for arguments, expected in (
        (["-s", "backbone=tiny"], "--on"),
        (["--on", "nowhere"], "--on 'nowhere': no server of that name"),
        ([*here, "-s", "engine.kind=ray"], "engine.kind = 'ray' is only for simulations"),
        ([*here, "-s", "devices.step_seconds=1"], "virtual devices are for simulations"),
        ([*here, "-s", "adversary.fraction=0.5"], "malicious clients are for simulations"),
        ([*here, "-s", "seeed=1"], "unknown key 'seeed'"),
        ([*here, "--name", "../up"], "'../up': expected a --name of letters"),
        ([*here, "--resume"], "--resume and --stop need --out or --name"),
        ([*here, "--resume", "--out", tmp_path / "no"], "no run in '"),
        ([*here, "--stop", "--out", tmp_path / "no"], "nothing to stop: no active run 'no'"),
        ([*here, "--stop", "--out", odd], "'5': expected a --name of letters"),
    ):
        code, printed, said = fedpeft("run", *arguments)
        assert (code, printed) == (2, "") and expected in said, arguments
    assert not (tmp_path / "no").exists()


def test_a_server_that_is_not_there_names_the_tunnel(
    server: ServerFolder, fedpeft: Command, tmp_path: Path
) -> None:
    file = tmp_path / "connection.toml"
    operations_port = str(server.ports["operations"])
    text = (server.path / "connection.toml").read_text().replace(operations_port, "1")
    file.write_text(text.replace('ca = "', f'ca = "{server.path}/'))
    code, _, said = fedpeft("run", "--on", file, *settings(), "--out", tmp_path / "out")
    assert code == 2 and said.count("\n") == 1
    assert "no connection to 127.0.0.1:1 (Connection refused); is the server up" in said
    assert "ssh -L 127.0.0.1:1:127.0.0.1:1 -L 127.0.0.1:" in said
    assert not (tmp_path / "out").exists()
