"""The end of the log has no text that a client may have chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deployment.pages.server.log import WITHHELD, log_tail, shown_text

SECRET = "a secret row of table: 12"


def line(message: str, source: str = "server", run: str | None = None) -> dict[str, str | None]:
    now = "2026-01-31T12:00:00.000+00:00"
    return {"time": now, "level": "warning", "source": source, "run": run, "message": message}


@pytest.mark.parametrize(
    ("source", "message", "shown"),
    [
        ("server", "the server has ended", "the server has ended"),
        ("superlink", "ready (pid 17)", "ready (pid 17)"),
        (
            "gateway",
            "ended by signal 9 (Killed); restart 1 in 0.5 s",
            "ended by signal 9 (Killed); restart 1 in 0.5 s",
        ),
        (
            "superexec",
            "did not answer for 120 s; restart 2 in 1 s",
            "did not answer for 120 s; restart 2 in 1 s",
        ),
        (
            "gateway",
            f"refused 10.0.0.7 POST /v1/fleet/{SECRET}: no signature of a node",
            "refused a request of 10.0.0.7: no signature of a node",
        ),
        (
            "gateway",
            f"refused ::1 GET /{SECRET}: its key is not registered (fedpeft server add-node)",
            "refused a request of ::1: its key is not registered (fedpeft server add-node)",
        ),
        (
            "gateway",
            f"TLS handshake with 10.0.0.7 failed: {SECRET}",
            "TLS handshake with 10.0.0.7 failed",
        ),
        ("run", f"round 3: client 2 failed: {SECRET}", "round 3: client 2 failed ..."),
        ("run", f"run 'first' has failed: {SECRET}", "run 'first' has failed ..."),
        ("run", f"refused north: {SECRET}", WITHHELD),
        ("superlink", SECRET, WITHHELD),
        ("superexec", f"ready (pid 17) {SECRET}", WITHHELD),
        ("superexec", f"round 3: client 2 failed: {SECRET}", WITHHELD),
        ("gateway", SECRET, WITHHELD),
    ],
)
def test_foreign_parts_are_cut_off(source: str, message: str, shown: str) -> None:
    text = shown_text(line(message, source, "17" if source == "run" else None))
    assert text == shown and "secret" not in text


def test_text_of_a_run_is_not_the_servers(tmp_path: Path) -> None:
    assert shown_text(line(SECRET, "server", run="17")) == WITHHELD


def test_the_last_whole_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    assert log_tail(path, 5) == []
    lines = [json.dumps(line(f"line {number}")) for number in range(2000)]
    path.write_text("\n".join(lines) + '\nno JSON\n{"time": 1}\n' + lines[0][:20])
    shown = log_tail(path, 3)
    assert [entry["text"] for entry in shown] == ["line 1997", "line 1998", "line 1999"]
    assert shown[0]["run"] == "" and shown[0]["level"] == "warning"
    lines *= 3
    path.write_text("\n".join(lines) + "\n")
    assert 1000 < len(log_tail(path, 9999)) < 3000  # those of the last 256 KiB


def test_information_of_other_programs_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    entries = [line("Activated node_id", "superlink"), line("odd", "superlink"), line("the end")]
    entries[0]["level"] = "info"
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    assert [entry["text"] for entry in log_tail(path, 9)] == [WITHHELD, "the end"]
