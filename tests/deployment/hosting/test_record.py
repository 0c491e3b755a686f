"""The record of a supervisor's processes: true while they run, ignored afterwards."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deployment.hosting.record import Record, read_record, write_record

SINCE = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "processes.json"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_a_record_names_the_supervisor_and_the_children_that_run(
    path: Path, child: subprocess.Popen[bytes]
) -> None:
    write_record(path, SINCE, {"a": child.pid}, {"a": 2, "b": 1})
    expected = Record(os.getpid(), SINCE, {"a": child.pid, "b": None}, {"a": 2, "b": 1})
    assert read_record(path) == expected
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_child_that_ended_since_is_not_running(
    path: Path, child: subprocess.Popen[bytes]
) -> None:
    write_record(path, SINCE, {"a": child.pid}, {"a": 0})
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, but not yet reaped
    for _ in range(2):
        record = read_record(path)
        assert record is not None and record.pids == {"a": None}
        child.wait()


@pytest.mark.parametrize("change", [{"started": 1}, {"pid": 2**22 + 1}, {"pid": None}])
def test_the_record_of_another_process_is_ignored(path: Path, change: dict[str, int]) -> None:
    """A supervisor was killed, and its pid is free or belongs to another process."""
    write_record(path, SINCE, {}, {"a": 0})
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert read_record(path) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"pid": 1', "null", '{"children": 3}'])
def test_a_damaged_record_is_ignored(path: Path, content: str) -> None:
    path.write_text(content)
    assert read_record(path) is None


def test_without_a_file_there_is_no_record(path: Path) -> None:
    assert read_record(path) is None
