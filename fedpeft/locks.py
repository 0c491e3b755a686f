"""Lock files: each is held by at most one process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpeft.errors import UserError


@contextmanager
def locked(path: Path, taken: str, wait: float = 0.0) -> Iterator[None]:
    """Hold a lock file of mode 0600; a process that is killed releases it.

    Args:
        path: of the lock file; it is not removed, and its content is kept.
        taken: text of the error if another process holds the lock.
        wait: seconds to wait for the lock.

    Raises:
        UserError: another process holds the lock.
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


@contextmanager
def shared(path: Path) -> Iterator[None]:
    """Hold a lock file of mode 0600 that others may hold, too; for ``is_held(path, True)``."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def is_held(path: Path, by_some: bool = False) -> bool:
    """Return whether a process holds a lock file; False if there is no file.

    The check takes a lock for a moment, so ``locked`` needs a ``wait`` above 0 if processes may
    check at the same time.

    Args:
        path: of the lock file.
        by_some: the lock is ``shared``.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if by_some else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
