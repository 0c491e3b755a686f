"""When and why a run ends, from Flower's status and the run's own files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from deployment.hosting.timing import Timing
from deployment.operator import flwr_cli, follow
from deployment.operator.connection import Connection
from deployment.operator.flwr_cli import UnknownRun
from deployment.operator.follow import reason
from deployment.operator.mirror import Lost, Mirror, RefusedToken
from deployment.operator.submit import Status, status
from fedpeft.errors import RunFailed, UserError

DIED = "the server app died; the same command with --resume continues after its last round"
AT_ONCE = Timing().scaled(0.0)
OWN = {"ok": False, "reason": "round 2: 1 of 3 clients\nsucceeded"}


@pytest.mark.parametrize(
    ("end", "details", "ended", "expected"),
    [
        ("failed", "ServerApp failed with exception: x", OWN, "round 2: 1 of 3 clients succeeded"),
        (
            "failed",
            "ServerApp failed with exception: x",
            None,
            "ServerApp failed with exception: x",
        ),
        ("failed", "No heartbeat received from the task", None, DIED),
        ("failed", "No heartbeat received from the task", {"ok": True, "reason": ""}, DIED),
        ("failed", "", None, DIED),
        (
            "failed",
            "Task failed with unknown error.",
            {"ok": False, "stopped": True, "reason": "stopped"},
            "the server was stopped, and the run with it; the same command with --resume continues "
            "after its last round",
        ),
        (
            "stopped",
            "",
            {"ok": False, "stopped": True, "reason": "stopped"},
            "the run was stopped at the server; the same command with --resume continues after its "
            "last round",
        ),
    ],
)
def test_a_run_that_did_not_complete_says_why(
    end: str, details: str, ended: dict[str, Any] | None, expected: str
) -> None:
    assert reason(Status("finished", end, details), ended) == expected


class _There(Mirror):
    """A mirror of a run that has ended at the server; it first raises the given errors."""

    def __init__(self, folder: Path, *errors: Exception):
        connection = Connection("127.0.0.1:1", folder / "ca", "127.0.0.1:1", "t")
        super().__init__(connection, "run", folder)
        self.errors = [*errors]
        (folder / "ended.json").write_text("{}")

    def update(self) -> None:
        if self.errors:
            raise self.errors.pop(0)

    def fetch(self) -> list[str]:
        return ["result.json"]


@pytest.fixture
def flwr(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes ``flwr`` answer with the given errors, then with a run."""

    def answer(*reasons: str) -> None:
        done: dict[str, Any] = {"run-id": "7", "status": "finished:completed"}
        answers: list[dict[str, Any]] = [{"success": False, "error-message": r} for r in reasons]
        answers.append({"success": True, "runs": [done]})

        def run(command: list[str], **options: Any) -> CompletedProcess[str]:
            return CompletedProcess(command, 0, json.dumps(answers.pop(0)), "")

        monkeypatch.setattr(flwr_cli.subprocess, "run", run)

    return answer


@pytest.mark.parametrize(
    "words",
    [
        "Connection to the SuperLink is unavailable.",
        "(sqlite3.OperationalError) database is locked",
        "Server error '503 Service Unavailable' for url 'https://127.0.0.1:1/v1/control/list-runs'",
        "EOF occurred in violation of protocol (_ssl.c:1006)",
    ],
)
def test_follow_waits_for_a_superlink_that_restarts(
    tmp_path: Path, flwr: Callable[..., None], words: str
) -> None:
    (tmp_path / "ca").touch()
    flwr(words, words)
    said: list[str] = []
    follow.follow(_There(tmp_path), "7", said.append, AT_ONCE)
    assert len(said) == 1 and said[0].endswith("; trying again until it is back")


def test_follow_waits_for_an_endpoint_that_restarts(
    tmp_path: Path, flwr: Callable[..., None]
) -> None:
    flwr()
    errors = Lost("refused"), UserError("127.0.0.1:1 is not a fedpeft server")
    said: list[str] = []
    follow.follow(_There(tmp_path, *errors), "7", said.append, AT_ONCE)
    assert said == ["refused; trying again until it is back"]


def test_lines_about_nodes_are_passed_on_once(tmp_path: Path, flwr: Callable[..., None]) -> None:
    flwr("Connection to the SuperLink is unavailable.")
    wait = {"phase": "wait", "round": 1, "done": 1, "total": 2, "missing": ["south"]}
    (tmp_path / "progress.json").write_text(json.dumps(wait))
    refused = {"round": 1, "message": "refused client 1, south: version is \x1b[31m0"}
    (tmp_path / "refused.jsonl").write_text(json.dumps(refused) + "\n")
    (tmp_path / "ca").touch()
    said: list[str] = []
    follow.follow(_There(tmp_path), "7", said.append, AT_ONCE)
    assert said[:2] == [
        "refused client 1, south: version is ?[31m0",
        "waiting for nodes: 1 of 2 connected; missing: south",
    ]
    assert len(said) == 3 and "trying again" in said[2]
    (tmp_path / "refused.jsonl").write_text("x\n")  # damaged: ignored
    flwr()
    follow.follow(_There(tmp_path), "7", pytest.fail, AT_ONCE)


def test_unknown_run_and_refused_token_end_following(
    tmp_path: Path, flwr: Callable[..., None]
) -> None:
    flwr("[code: 16] Run ID not found.")
    with pytest.raises(UnknownRun, match=r"Flower refused 'flwr ls': .* Run ID not found"):
        follow.follow(_There(tmp_path), "7", pytest.fail, AT_ONCE)
    flwr()
    with pytest.raises(UnknownRun, match="knows no run 8"):
        status(_There(tmp_path).connection, "8")
    with pytest.raises(RefusedToken):
        follow.follow(_There(tmp_path, RefusedToken("token")), "7", pytest.fail, AT_ONCE)
    with pytest.raises(RunFailed):
        follow.follow(_There(tmp_path, RunFailed("other bits")), "7", pytest.fail, AT_ONCE)
