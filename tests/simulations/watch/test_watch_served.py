"""The served page: its address, its token, and ports that are taken."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from made import add_lines, line, make_run
from watching import Watch, watching

from fedpeft.cli.app import main


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer than httpx does: the first page loads its template on a busy machine."""
    monkeypatch.setattr(httpx, "get", partial(httpx.get, timeout=120))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_run(tmp_path / "run", 10, 4)
    return tmp_path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Watch]]:
    """A folder that nobody changes, and its page."""
    path = tmp_path_factory.mktemp("served")
    make_run(path / "run", 10, 4)
    with watching(path) as watch:
        yield path, watch


def test_a_foreign_host_and_origin_are_refused(served: tuple[Path, Watch]) -> None:
    _, watch = served
    assert watch.address.startswith("http://127.0.0.1:")
    assert "run" in httpx.get(watch.address).text
    for header in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
        assert httpx.get(watch.address, headers=header).status_code == 403
        assert httpx.get(f"{watch.address}events?view=list", headers=header).status_code == 403


def test_the_token_is_needed(folder: Path) -> None:
    with watching(folder, "--token") as watch:
        base, _, token = watch.address.partition("?token=")
        assert len(token) >= 32
        for address in (base, f"{base}?token=wrong", f"{base}events?view=list"):
            assert httpx.get(address).status_code == 401
        with httpx.Client(follow_redirects=True) as browser:
            assert browser.get(watch.address).status_code == 200
            assert browser.get(f"{base}runs?name=run").status_code == 200


def test_outside_loopback_a_token_is_always_needed(folder: Path) -> None:
    with watching(folder, "--host", "0.0.0.0") as watch:
        assert "?token=" in watch.address
        port = urlsplit(watch.address).port
        assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 401


def test_changes_are_sent_as_they_happen(folder: Path) -> None:
    with watching(folder) as watch, httpx.stream(
        "GET", f"{watch.address}events?view=runs&name=run&cursor=", timeout=120
    ) as stream:  # fmt: skip
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = (part for part in stream.iter_lines() if part.startswith("data: "))
        first = json.loads(next(lines)[6:])
        assert first["runs"][0]["columns"]["round"] == [1, 2, 3, 4]
        add_lines(folder / "run", line(5))
        assert json.loads(next(lines)[6:])["runs"][0]["columns"]["round"] == [5]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("runs?name=none", 404),
        ("runs?name=../run", 404),
        ("runs", 400),
        ("runs?" + "&".join(["name=run"] * 13), 400),
        ("study?name=run", 404),
        ("other", 404),
        ("events?view=other", 404),
        ("events?view=runs&name=none", 404),
    ],
)
def test_wrong_addresses_are_errors_in_a_line(
    served: tuple[Path, Watch], path: str, status: int
) -> None:
    answer = httpx.get(served[1].address + path)
    assert answer.status_code == status and answer.text.count("\n") == 1


def test_two_watchers_read_one_folder(served: tuple[Path, Watch]) -> None:
    folder, one = served
    with watching(folder) as other:
        assert one.address != other.address
        assert httpx.get(one.address).status_code == httpx.get(other.address).status_code == 200


def test_nothing_is_written(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with watching(folder) as watch:
        assert httpx.get(f"{watch.address}runs?name=run").status_code == 200
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_signal_ends_it_without_noise(folder: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from fedpeft.cli.app import main; main()",
        "watch",
        "--port",
        "0",
    ]
    with subprocess.Popen(
        [*command, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:  # fmt: skip
        assert process.stdout and process.stderr
        port = urlsplit(process.stdout.readline().split()[-1]).port
        stream = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        stream.request("GET", "/events?view=list")
        with closing(stream), stream.getresponse() as answer:
            assert answer.status == 200
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0
        assert process.stderr.read() == ""


def test_a_taken_port_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as stop:
            main(["watch", str(folder), "--port", str(port)])
    assert stop.value.code == 2
    assert f"port {port} (Address already in use)" in capsys.readouterr().err


def test_a_folder_without_runs_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, message in ((tmp_path, "holds no run"), (tmp_path / "none", "no such folder")):
        with pytest.raises(SystemExit) as stop:
            main(["watch", str(path)])
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert message in error and str(path) in error and error.count("\n") == 1
