"""`fedpeft serve` as an operator uses it: a process, its files, its signals and its mistakes."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from finished import finished_run, method
from models import SMALL

from fedpeft.hosting.keys import make_authority, make_server
from fedpeft.hosting.ports import free_port
from fedpeft.serving.hosting import token_of

SLASH = method("slash", SMALL["slash"])
TEXT = "the film last night was truly wonderful"


@contextmanager
def process(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start ``fedpeft serve``; yield the process and its first line; it has to end with 0."""
    code = "from fedpeft.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as running:
        try:
            assert running.stdout is not None
            yield running, running.stdout.readline()
        finally:
            running.kill()


@pytest.mark.slow
def test_serve_answers_as_predict_prints(fedpeft, tmp_path: Path) -> None:
    run, port = finished_run(*SLASH), free_port()
    texts = tmp_path / "in.tsv"
    texts.write_text(f"text\n{TEXT}\n")
    fedpeft("predict", run, texts, "--out", tmp_path / "out.jsonl")
    expected = json.loads((tmp_path / "out.jsonl").read_text())
    operator = tmp_path / "operator"
    options = ("--port", str(port), "--operator-token", operator)
    with process(f"films={run}", *options) as (running, line):
        assert line == (
            f"serving 1 vector on tiny at http://127.0.0.1:{port}, described at /docs\n"
        )
        url = f"http://127.0.0.1:{port}"
        body = {"inputs": [{"vector": "films", "text": TEXT}]}
        (row,) = httpx.post(f"{url}/predict", json=body, trust_env=False, timeout=120).json()[
            "predictions"
        ]
        assert row["prediction"] == expected["prediction"]
        assert row["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)
        assert operator.stat().st_mode & 0o777 == 0o600
        headers = {"Authorization": f"Bearer {operator.read_text().strip()}"}
        removed = httpx.delete(
            f"{url}/vectors/films", headers=headers, trust_env=False, timeout=120
        )
        assert removed.status_code == 200
        running.send_signal(signal.SIGINT)
        assert running.wait(120) == 0
        assert running.stdout is not None and running.stdout.read() == "stopped\n"
        assert running.stderr is not None
        (logged,) = running.stderr.read().splitlines()
        assert logged.endswith(" INFO removed vector 'films'")


@pytest.mark.long
def test_serve_over_tls(tmp_path: Path) -> None:
    port, keys, token = free_port(), tmp_path / "keys", tmp_path / "token"
    make_authority(tmp_path / "ca")
    make_server(keys, ["127.0.0.1"], tmp_path / "ca")
    options = ("--host", "0.0.0.0", "--port", str(port), "--keys", keys, "--token", token)
    with process(finished_run(*SLASH), *options) as (running, line):
        assert f"at https://0.0.0.0:{port}" in line
        context = ssl.create_default_context(cafile=keys / "ca.crt")
        url = f"https://127.0.0.1:{port}"
        with httpx.Client(base_url=url, verify=context, trust_env=False, timeout=120) as client:
            assert client.get("/vectors").status_code == 401
            headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
            assert len(client.get("/vectors", headers=headers).json()["vectors"]) == 1
        running.terminate()
        assert running.wait(120) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("missing",), "'missing': no such run folder or vector file"),
        (("x", "--host", "0.0.0.0"), "--host 0.0.0.0: other machines can reach it; add --keys"),
        (("x", "--host", "0.0.0.0", "--token", "t"), "add --keys FOLDER (TLS) and --token FILE"),
        (("x", "--host", "example.org"), "--host 'example.org': expected an IP address"),
        (("x", "--host", "192.0.2.1", "--keys", "k", "--token", "t"), "'k/ca.crt' cannot be read"),
        (("a b=x",), "'a b' is not a valid name of a vector"),
    ],
)
def test_mistakes_are_one_line(
    fedpeft, arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, printed, errors = fedpeft("serve", *arguments, "--port", str(free_port()))
    assert (code, printed, errors.count("\n")) == (2, "", 1)
    assert words in errors


def test_a_port_in_use_is_an_error(fedpeft) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, _, errors = fedpeft("serve", finished_run(*SLASH), "--port", str(port))
    assert code == 2
    assert f"cannot listen at 127.0.0.1 port {port} (Address already in use)" in errors


def test_tokens_come_from_files_that_only_the_user_reads(fedpeft, tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = token_of(path, "--token")
    assert len(token) > 30 and token_of(path, "--token") == token
    path.write_text(f"\ufeff{token}\n")
    assert token_of(path, "--token") == token
    path.chmod(0o644)
    code, _, errors = fedpeft("serve", finished_run(*SLASH), "--token", path)
    assert code == 2 and "other users may read it; chmod 600 it" in errors
    for content in ("short\n", "a token with spaces in it\n", "x" * 20 + "\n" + "y" * 20, "ä" * 20):
        path.write_text(content)
        path.chmod(0o600)
        code, _, errors = fedpeft("serve", finished_run(*SLASH), "--operator-token", path)
        assert code == 2 and errors.startswith("error: --operator-token") and "\n" in errors
