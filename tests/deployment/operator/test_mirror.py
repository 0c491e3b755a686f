"""Copying a run's folder from the real endpoint while the run continues."""

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
from servers import operations, server_folder

from deployment.operator import mirror as mirror_module
from deployment.operator.connection import Connection
from deployment.operator.mirror import DIGEST, Lost, Mirror, runs_at
from deployment.server.folder import ServerFolder
from fedpeft.errors import RunFailed, UserError
from fedpeft.experiment.config import Experiment
from fedpeft.runs.checkpoints import Checkpoint
from fedpeft.runs.folder import ROSTER, RunFolder
from fedpeft.runs.records import Measured
from simulations.simulation import prepare, simulate


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ServerFolder:
    """The state folder of a server, made once because its keys take time."""
    return server_folder(tmp_path_factory.mktemp("server"))


@pytest.fixture
def state(made: ServerFolder) -> Iterator[ServerFolder]:
    """A server whose operations endpoint is up."""
    with operations(made):
        yield made


@pytest.fixture
def there(made: ServerFolder, quick: Callable[..., Experiment], tmp_path: Path) -> RunFolder:
    """A run at the server before its first round, named after the test."""
    return RunFolder.create(made.path / "runs" / tmp_path.name, quick())


@pytest.fixture
def mirror(state: ServerFolder, there: RunFolder, tmp_path: Path) -> Mirror:
    """A mirror of the run in an empty folder."""
    (tmp_path / "home").mkdir()
    return Mirror(state.connection(), there.path.name, tmp_path / "home")


def save(folder: RunFolder, number: int, **more: Any) -> None:
    sent = [{"round": number, "client": client} for client in range(3)]
    folder.save_round({"round": number, **more}, sent, Checkpoint(number, np.zeros(number)))


def same(mirror: Mirror, folder: RunFolder, *names: str) -> bool:
    return all((mirror.folder / n).read_bytes() == (folder.path / n).read_bytes() for n in names)


def test_rounds_are_copied_as_they_are_done(mirror: Mirror, there: RunFolder) -> None:
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


def test_an_unfinished_line_is_not_copied(mirror: Mirror, there: RunFolder) -> None:
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
def test_rounds_that_the_server_dropped_are_dropped_from_the_copy(
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


def test_small_files_are_replaced_and_removed(mirror: Mirror, there: RunFolder) -> None:
    for done in (1, 2):
        there.report("train", 1, done * 4, 4)
        mirror.update()
        assert json.loads((mirror.folder / "progress.json").read_text())["done"] == done * 4
    scored: Measured = {"score": 0.5, "eval_loss": 0.7, "metrics": {}, "evaluated": 8}
    there.save_start_score(scored)
    mirror.update()
    assert RunFolder(mirror.folder).started() == scored
    (there.path / "ended.json").write_text('{"ok": false, "reason": "x"}')
    mirror.update()
    assert same(mirror, there, "ended.json")
    (there.path / "ended.json").unlink()  # the run goes on
    mirror.update()
    assert not (mirror.folder / "ended.json").exists()


def test_update_works_again_after_a_lost_connection(
    made: ServerFolder, there: RunFolder, tmp_path: Path
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


def test_whole_run_is_copied_to_the_byte(
    state: ServerFolder,
    quick: Callable[..., Experiment],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment, name = quick(), "whole-1.0_x"
    home = tmp_path / "home"
    home.mkdir()
    mirror, seen, save_round = Mirror(state.connection(), name, home), [], RunFolder.save_round

    def followed(folder: RunFolder, *round_: Any) -> None:
        save_round(folder, *round_)
        mirror.update()
        seen.append(len(RunFolder(home).rounds()))

    monkeypatch.setattr(RunFolder, "save_round", followed)
    folder, _ = prepare(experiment, state.path / "runs" / name)
    simulate(folder, experiment)
    assert seen == [1, 2]  # it was followed, not fetched at the end
    names = mirror.fetch()
    assert {"experiment.toml", "rounds.jsonl", "bytes.jsonl", "result.json"} < set(names)
    assert same(mirror, folder, *names)
    assert "vector.safetensors" in names and "run.lock" not in names
    assert name in runs_at(state.connection())


def test_unknown_run_is_empty(state: ServerFolder, tmp_path: Path) -> None:
    nothing = Mirror(state.connection(), "unknown", tmp_path)
    assert nothing.files() == {} and nothing.fetch() == [] and nothing.read("result.json") == b""
    nothing.update()
    with pytest.raises(RunFailed, match=r"'result.json' of run 'unknown' differs from"):
        nothing.fetch_file("result.json")


def test_another_token_is_refused(state: ServerFolder) -> None:
    wrong = replace(state.connection(), token="guessed")
    with pytest.raises(UserError, match="does not accept this token: copy its") as caught:
        runs_at(wrong)
    assert "guessed" not in str(caught.value)


class _Other(BaseHTTPRequestHandler):
    """Another program than a fedpeft server: gives the same body for every path."""

    body, digest, length, status = b"", "", 0, 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", str(self.length or len(self.body)))
        self.send_header(DIGEST, self.digest)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def other(made: ServerFolder) -> Iterator[Callable[..., Connection]]:
    """Return a function that starts a server with given answers and the server's certificate."""
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
def test_listing_of_another_program_is_refused(
    other: Callable[..., Connection], tmp_path: Path, listed: bytes
) -> None:
    with pytest.raises(UserError, match="is not a fedpeft server"):
        Mirror(other(body=listed), "run", tmp_path).update()
    assert list(tmp_path.iterdir()) == []


def test_only_files_of_a_run_are_copied(mirror: Mirror, there: RunFolder) -> None:
    save(there, 1)
    foreign = ("submitted.json", "train.jsonl", "adapter.safetensors", "pyproject.toml")
    copied = ("roster.json", "run.json", "ended.json", "result.json", "identity.json")
    for name in (*foreign, *copied):
        (there.path / name).write_text('{"theirs": 1}')
    (mirror.folder / "submitted.json").write_text("mine")
    rounds = {"rounds.jsonl", "bytes.jsonl", "checkpoint.safetensors", "experiment.toml"}
    assert set(mirror.fetch()) == {*rounds, *copied} and ROSTER in copied
    names = {path.name for path in mirror.folder.iterdir()}
    assert names == {"submitted.json", *rounds, *copied}
    assert (mirror.folder / "submitted.json").read_text() == "mine"


@pytest.mark.parametrize("changed", [b"seed = 5", b"seeed = 5", b"\xff"])
def test_another_experiment_at_the_server_does_not_replace_the_copy(
    mirror: Mirror, there: RunFolder, quick: Callable[..., Experiment], changed: bytes
) -> None:
    mine = RunFolder.create(mirror.folder, quick()).path / "experiment.toml"
    theirs = there.path / "experiment.toml"
    theirs.write_text(quick("federation.timeout=9").to_toml())
    mirror.fetch()
    assert same(mirror, there, "experiment.toml")  # the same run
    kept = mine.read_bytes()
    theirs.write_bytes(changed)
    with pytest.raises(RunFailed, match=r"'experiment.toml' of run .* is not the one in .* kept"):
        mirror.fetch()
    assert mine.read_bytes() == kept


@pytest.mark.parametrize("name", ["progress.json", "run.json", "experiment.toml"])
def test_endless_small_file_is_not_read(
    other: Callable[..., Connection], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(mirror_module, "_SMALL", 100)
    at = Mirror(other(body=b"1" * 101, length=1 << 40), "run", tmp_path)
    with pytest.raises(RunFailed, match=f"'{name}' of run 'run' has more than 100 bytes"):
        at.read(name)
    with pytest.raises(UserError, match="is not a fedpeft server"):
        at.files()
    assert len(Mirror(other(body=b"1" * 101), "run", tmp_path).read("rounds.jsonl")) == 101


def test_file_with_a_wrong_digest_is_not_kept(
    other: Callable[..., Connection], tmp_path: Path
) -> None:
    mirror = Mirror(other(body=b"bits", digest="0" * 64), "run", tmp_path)
    with pytest.raises(RunFailed, match="differs from the server's file: SHA-256"):
        mirror.fetch_file("vector.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("answer", [{"body": b"{", "length": 100}, {"status": 502, "body": b"x"}])
def test_broken_answer_counts_as_a_lost_connection(
    other: Callable[..., Connection], tmp_path: Path, answer: dict[str, Any]
) -> None:
    with pytest.raises(Lost):
        Mirror(other(**answer), "run", tmp_path).update()


def test_another_program_at_the_port_gets_no_request(made: ServerFolder, tmp_path: Path) -> None:
    """A program that listens while the server is down has no certificate or another one."""
    seen: list[str] = []

    class Curious(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    own = server_folder(tmp_path / "own")
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
            with pytest.raises(Lost, match=r"has no certificate of .*nothing was sent to it"):
                runs_at(there)
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
    assert seen == []


def test_no_proxy_gets_the_token(
    other: Callable[..., Connection],
    state: ServerFolder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://{other(body=b'[]').operations}")
    monkeypatch.delenv("no_proxy", raising=False)
    (state.path / "runs" / "direct").mkdir(exist_ok=True)
    assert "direct" in runs_at(state.connection())
