"""A run's folder comes home whole while the run goes on, over the real endpoint."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from servers import operations, server_state

from fedpeft.config import Experiment
from fedpeft.errors import RunFailed, UserError
from server.host.state import ServerState
from server.remote import mirror as mirror_module
from server.remote.connection import Connection
from server.remote.mirror import DIGEST, Lost, Mirror, runs_at
from server.runfolder import ROSTER, Checkpoint, RunFolder
from simulations.run import prepare, simulate


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ServerState:
    """A server's state; its keys take a moment."""
    return server_state(tmp_path_factory.mktemp("server"))


@pytest.fixture
def state(made: ServerState) -> Iterator[ServerState]:
    """A server whose operations endpoint is up."""
    with operations(made):
        yield made


@pytest.fixture
def there(made: ServerState, quick: Callable[..., Experiment], tmp_path: Path) -> RunFolder:
    """A run at the server, with a name of its own, before its first round."""
    return RunFolder.create(made.path / "runs" / tmp_path.name, quick())


@pytest.fixture
def mirror(state: ServerState, there: RunFolder, tmp_path: Path) -> Mirror:
    """A mirror of the run in an empty folder."""
    (tmp_path / "home").mkdir()
    return Mirror(state.connection(), there.path.name, tmp_path / "home")


def save(folder: RunFolder, number: int, **more: Any) -> None:
    sent = [json.dumps({"round": number, "client": client}) for client in range(3)]
    folder.save_round({"round": number, **more}, sent, Checkpoint(number, np.zeros(number)))


def same(mirror: Mirror, folder: RunFolder, *names: str) -> bool:
    return all((mirror.folder / n).read_bytes() == (folder.path / n).read_bytes() for n in names)


def test_rounds_come_home_as_they_are_done(mirror: Mirror, there: RunFolder) -> None:
    mirror.update()
    assert list(mirror.folder.iterdir()) == []
    for number in (1, 2, 3):
        save(there, number)
        mirror.update()
        assert same(mirror, there, "rounds.jsonl", "bytes.jsonl")
    inode = (mirror.folder / "rounds.jsonl").stat().st_ino
    save(there, 4)
    mirror.update()
    assert (mirror.folder / "rounds.jsonl").stat().st_ino == inode  # only what is new was sent


def test_a_line_that_is_being_written_waits_for_its_end(mirror: Mirror, there: RunFolder) -> None:
    save(there, 1)
    whole = (there.path / "rounds.jsonl").read_bytes()
    with open(there.path / "rounds.jsonl", "ab", buffering=0) as file:
        for piece in (b'{"rou', b'nd": 2}', b'\n{"round"', b": 3}\n"):
            file.write(piece)
            mirror.update()
            kept = (mirror.folder / "rounds.jsonl").read_bytes()
            assert kept.startswith(whole) and kept.endswith(b"}\n")
    assert same(mirror, there, "rounds.jsonl")


@pytest.mark.parametrize("redone", [0, 1, 2])
def test_rounds_that_the_server_dropped_leave_home_too(
    mirror: Mirror, there: RunFolder, redone: int
) -> None:
    save(there, 1)
    checkpoint = (there.path / "checkpoint.safetensors").read_bytes()
    save(there, 2)
    mirror.update()
    (there.path / "checkpoint.safetensors").write_bytes(checkpoint)  # killed before the new one
    there.checkpoint()
    for number in range(2, 2 + redone):
        save(there, number, seconds=1000.125)
    mirror.update()
    assert same(mirror, there, "rounds.jsonl", "bytes.jsonl")


def test_small_files_are_replaced_and_go(mirror: Mirror, there: RunFolder) -> None:
    for done in (1, 2):
        there.report("train", 1, done * 4, 4)
        mirror.update()
        assert json.loads((mirror.folder / "progress.json").read_text())["done"] == done * 4
    (there.path / "ended.json").write_text('{"ok": false, "reason": "x"}')
    mirror.update()
    assert same(mirror, there, "ended.json")
    (there.path / "ended.json").unlink()  # the run goes on
    mirror.update()
    assert not (mirror.folder / "ended.json").exists()


def test_a_lost_connection_is_found_again(
    made: ServerState, there: RunFolder, tmp_path: Path
) -> None:
    mirror = Mirror(made.connection(), there.path.name, tmp_path / "home")
    mirror.folder.mkdir()
    save(there, 1)
    with operations(made):
        mirror.update()
    with pytest.raises(Lost, match=r"no connection to 127.0.0.1:\d+ \(Connection refused\)"):
        mirror.update()
    # Meanwhile a round was dropped, and longer ones written in its place.
    (there.path / "rounds.jsonl").write_text('{"round": 1, "seconds": 5}\n{"round": 2}\n' * 3)
    with operations(made):
        mirror.update()
    assert same(mirror, there, "rounds.jsonl")


def test_a_whole_run_comes_home_to_the_byte(
    state: ServerState, quick: Callable[..., Experiment], tmp_path: Path
) -> None:
    experiment, name = quick(), "whole-1.0_x"
    home = tmp_path / "home"
    home.mkdir()
    mirror, seen = Mirror(state.connection(), name, home), set()
    folder, _ = prepare(experiment, state.path / "runs" / name)
    running = threading.Thread(target=simulate, args=(folder, experiment))
    running.start()
    while running.is_alive():
        mirror.update()
        seen.add(len(RunFolder(home).rounds()))
    running.join()
    assert len(seen) > 1  # it was followed, not fetched at the end
    names = mirror.fetch()
    assert {"experiment.toml", "rounds.jsonl", "bytes.jsonl", "result.json"} < set(names)
    assert same(mirror, folder, *names)
    assert "vector.safetensors" in names and "run.lock" not in names
    assert name in runs_at(state.connection())


def test_what_is_not_there_is_empty(state: ServerState, tmp_path: Path) -> None:
    nothing = Mirror(state.connection(), "unknown", tmp_path)
    assert nothing.files() == {} and nothing.fetch() == [] and nothing.read("result.json") == b""
    nothing.update()
    with pytest.raises(RunFailed, match=r"'result.json' of run 'unknown' did not come home"):
        nothing.fetch_file("result.json")


def test_another_token_is_refused(state: ServerState) -> None:
    wrong = replace(state.connection(), token="guessed")
    with pytest.raises(UserError, match="does not take this token: copy its") as caught:
        runs_at(wrong)
    assert "guessed" not in str(caught.value)


class _Other(BaseHTTPRequestHandler):
    """Something else than a fedpeft server: gives the same body for every path."""

    body, digest, length, status = b"", "", 0, 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", str(self.length or len(self.body)))
        self.send_header(DIGEST, self.digest)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def other(made: ServerState) -> Iterator[Callable[..., Connection]]:
    """Return a starter of a server that answers as a test says, with our certificate."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(made.certificate, made.key)
    with ExitStack() as stack:

        def start(**answer: Any) -> Connection:
            server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Other,), answer))
            server.socket = tls.wrap_socket(server.socket, server_side=True)
            thread = threading.Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            for undo in (thread.join, server.server_close, server.shutdown):
                stack.callback(undo)
            return Connection("127.0.0.1:1", made.ca, f"127.0.0.1:{server.server_port}", "t")

        yield start


@pytest.mark.parametrize(
    "listed", [b"<html>", b"[]", b'{"../../.ssh/keys": 3}', b'{".bashrc": 1}', b'{"a": "b"}']
)
def test_a_listing_that_is_none_of_ours_is_refused(
    other: Callable[..., Connection], tmp_path: Path, listed: bytes
) -> None:
    with pytest.raises(UserError, match="is no fedpeft server"):
        Mirror(other(body=listed), "run", tmp_path).update()
    assert list(tmp_path.iterdir()) == []


def test_only_the_files_of_a_run_come_home(mirror: Mirror, there: RunFolder) -> None:
    save(there, 1)
    theirs = ("submitted.json", "train.jsonl", "adapter.safetensors", "pyproject.toml")
    ours = ("roster.json", "run.json", "ended.json", "result.json", "identity.json")
    for name in (*theirs, *ours):
        (there.path / name).write_text('{"theirs": 1}')
    (mirror.folder / "submitted.json").write_text("mine")
    rounds = {"rounds.jsonl", "bytes.jsonl", "checkpoint.safetensors", "experiment.toml"}
    assert set(mirror.fetch()) == {*rounds, *ours} and ROSTER in ours
    assert {each.name for each in mirror.folder.iterdir()} == {"submitted.json", *rounds, *ours}
    assert (mirror.folder / "submitted.json").read_text() == "mine"


@pytest.mark.parametrize("changed", [b"seed = 5", b"seeed = 5", b"\xff"])
def test_the_experiment_at_home_stays_where_the_servers_is_another(
    mirror: Mirror, there: RunFolder, quick: Callable[..., Experiment], changed: bytes
) -> None:
    mine = RunFolder.create(mirror.folder, quick()).path / "experiment.toml"
    theirs = there.path / "experiment.toml"
    theirs.write_text(quick("federation.timeout=9").to_toml())
    mirror.fetch()
    assert same(mirror, there, "experiment.toml")  # the same run
    kept = mine.read_bytes()
    theirs.write_bytes(changed)
    with pytest.raises(RunFailed, match=r"'experiment.toml' of run .* is not the one in .* stays"):
        mirror.fetch()
    assert mine.read_bytes() == kept


@pytest.mark.parametrize("name", ["progress.json", "run.json", "experiment.toml"])
def test_a_small_file_that_has_no_end_is_not_read(
    other: Callable[..., Connection], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(mirror_module, "_SMALL", 100)
    at = Mirror(other(body=b"1" * 101, length=1 << 40), "run", tmp_path)
    with pytest.raises(RunFailed, match=f"'{name}' of run 'run' has more than 100 bytes"):
        at.read(name)
    with pytest.raises(UserError, match="is no fedpeft server"):
        at.files()
    assert len(Mirror(other(body=b"1" * 101), "run", tmp_path).read("rounds.jsonl")) == 101


def test_a_file_that_changed_on_its_way_is_not_kept(
    other: Callable[..., Connection], tmp_path: Path
) -> None:
    mirror = Mirror(other(body=b"bits", digest="0" * 64), "run", tmp_path)
    with pytest.raises(RunFailed, match="did not come home as it is at the server: SHA-256"):
        mirror.fetch_file("vector.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("answer", [{"body": b"{", "length": 100}, {"status": 502, "body": b"x"}])
def test_a_broken_answer_can_be_asked_for_again(
    other: Callable[..., Connection], tmp_path: Path, answer: dict[str, Any]
) -> None:
    with pytest.raises(Lost):
        Mirror(other(**answer), "run", tmp_path).update()


def test_another_program_at_the_port_is_told_nothing(made: ServerState, tmp_path: Path) -> None:
    """Who listens there while the server is down has no certificate, or one of its own."""
    seen: list[str] = []

    class Curious(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_error(404)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    own = server_state(tmp_path / "own")
    for tls in (False, True):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Curious)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(own.certificate, own.key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            there = replace(made.connection(), operations=f"127.0.0.1:{server.server_port}")
            with pytest.raises(Lost, match=r"has no certificate of .*nothing was told to it"):
                runs_at(there)
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
    assert seen == []


def test_no_proxy_gets_the_token(
    other: Callable[..., Connection],
    state: ServerState,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://{other(body=b'[]').operations}")
    monkeypatch.delenv("no_proxy", raising=False)
    (state.path / "runs" / "direct").mkdir(exist_ok=True)
    assert "direct" in runs_at(state.connection())
