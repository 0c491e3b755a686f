"""Files that one process at a time holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpeft.errors import UserError


@contextmanager
def locked(path: Path, taken: str, wait: float = 0.0) -> Iterator[None]:
    """Hold a lock file, made with mode 0600; a process that is killed lets go of it.

    Args:
        path: of the lock file; it stays, and may hold what its holder writes into it.
        taken: what to say if another process holds it.
        wait: seconds that the other one has to let go.

    Raises:
        UserError: another process holds it.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, mode=0o600)
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        raise UserError(taken) from None
    try:
        yield
    finally:
        lock.release()


def is_held(path: Path) -> bool:
    """Return whether a process holds a lock file; False where there is none.

    To ask is to hold it for a moment, together with others that ask: who wants it should wait a
    little, or the file should say already that its holder is gone.
    """
    import fcntl

    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
