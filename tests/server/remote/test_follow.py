"""Why a run is over, from what Flower says and what the run said itself."""

from __future__ import annotations

from typing import Any

import pytest

from server.remote.follow import reason
from server.remote.submit import Status

DIED = "the server app died; the same command with --resume goes on from its last round"
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
            {"ok": False, "reason": "SystemExit in the server app"},
            DIED,
        ),
        (
            "stopped",
            "",
            {"ok": False, "reason": "SystemExit in the server app"},
            "the run was stopped at the server; the same command with --resume goes on from its "
            "last round",
        ),
    ],
)
def test_a_run_that_did_not_complete_says_why(
    end: str, details: str, ended: dict[str, Any] | None, expected: str
) -> None:
    assert reason(Status("finished", end, details), ended) == expected
