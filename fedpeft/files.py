"""Writing files so that a crash leaves either the old content or the new, never half."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


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
