"""Lock files between processes."""

from __future__ import annotations

import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpeft.errors import UserError
from fedpeft.locks import locked

HOLD = """
import sys, time
from pathlib import Path
from fedpeft.locks import locked
with locked(Path(sys.argv[1]), "taken"):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "it.lock"


def holder(lock: Path, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", HOLD, str(lock), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        yield process
        process.kill()


@pytest.fixture
def held(lock: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the lock."""
    yield from holder(lock, 600)


@pytest.fixture
def briefly_held(lock: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the lock for half a second."""
    yield from holder(lock, 0.5)


def test_a_held_lock_is_refused_and_a_killed_holder_releases_it(
    lock: Path, held: subprocess.Popen[bytes]
) -> None:
    begun = time.monotonic()
    for wait in (0.0, 0.3):
        refused = pytest.raises(UserError, match="somebody has it")
        with refused, locked(lock, "somebody has it", wait):
            pytest.fail("it is held")
    assert time.monotonic() - begun >= 0.3
    held.kill()
    held.wait()
    with locked(lock, "taken"):
        pass


def test_a_process_can_wait_for_a_lock(lock: Path, briefly_held: subprocess.Popen[bytes]) -> None:
    with locked(lock, "taken", 60):
        assert briefly_held.wait(240) == 0


def test_a_lock_file_is_private_and_keeps_its_content(lock: Path) -> None:
    for written in ("12\n", "34\n"):
        with locked(lock, "taken"):
            lock.write_text(written)
            assert stat.S_IMODE(lock.stat().st_mode) == 0o600
        assert lock.read_text() == written
