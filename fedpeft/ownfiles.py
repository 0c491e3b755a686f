"""Writing files that belong to one user: with their rights from the start, several together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fedpeft.files import sync

PRIVATE, PUBLIC, PROGRAM = 0o600, 0o644, 0o700


def write_together(files: Mapping[Path, tuple[bytes, int]], replace: bool = False) -> None:
    """Write files as path -> (content, mode); their folders are made 0700 where missing.

    All contents are on disk before the first file gets its name, so that no file is ever half
    written, or readable by others for a moment.

    Raises:
        FileExistsError: one of them is there and ``replace`` is not asked for; none is written.
    """
    for path in files:
        if not replace and os.path.lexists(path):
            raise FileExistsError(str(path))
    temporary = {path: path.with_name(f".{path.name}.tmp") for path in files}
    try:
        for path, (content, mode) in files.items():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_new(temporary[path], content, mode)
        for path in files:
            os.replace(temporary[path], path)
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)
    for folder in {path.parent for path in files}:
        sync(folder)


def _write_new(path: Path, content: bytes, mode: int) -> None:
    path.unlink(missing_ok=True)  # what a crash left
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
