"""Writing files so that a crash leaves either the old content or the new, never half."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PRIVATE, PUBLIC, PROGRAM = 0o600, 0o644, 0o700


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write ``data`` under a temporary name, fsync it, and rename it to ``path``."""
    if isinstance(data, str):
        data = data.encode()
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync(path.parent)


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


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Give a folder to write into, which gets its name when all is written."""
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # what a crash left
    temporary.mkdir()
    try:
        yield temporary
        for written in [*temporary.rglob("*"), temporary]:
            sync(written)
        temporary.replace(path)
        sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sync(path: Path) -> None:
    """fsync a file, or a folder's list of names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically."""
    write_atomic(path, json.dumps(value, indent=2) + "\n")


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append lines and fsync them."""
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
