"""The files of a run that the operations endpoint serves: plain files directly in its folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from starlette.exceptions import HTTPException

from fedpeft.files import PLAIN_NAME

_SERVED = (".json", ".jsonl", ".toml", ".safetensors")  # no ledgers, locks or pictures
_CHUNK = 1 << 16  # bytes


def run_names(runs: Path) -> list[str]:
    """Return the names of the runs in a folder, sorted."""
    entries = [entry for entry in _entries(runs) if entry.is_dir()]
    return sorted(entry.name for entry in entries if PLAIN_NAME.fullmatch(entry.name))


def served_files(folder: int) -> dict[str, int]:
    """Return the served files of an open folder with their sizes in bytes."""
    sizes = {}
    for entry in sorted(_entries(folder), key=lambda entry: entry.name):
        if _is_served(entry.name) and entry.is_file(follow_symlinks=False):
            with suppress(FileNotFoundError):  # replaced or dropped meanwhile
                sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
    return sizes


@contextmanager
def opened_folder(runs: Path, name: str) -> Iterator[int]:
    """Open a run's folder, but no link to one; files are opened relative to it.

    Raises:
        HTTPException: 404, there is no such run.
    """
    missing = HTTPException(404, "no such run")
    if not PLAIN_NAME.fullmatch(name):
        raise missing
    try:
        folder = os.open(runs / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        raise missing from None
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def opened_file(folder: int, name: str) -> Iterator[BinaryIO]:
    """Open a regular file directly in an open folder, if files of this name are served.

    Raises:
        HTTPException: 404, there is no such file.
    """
    missing = HTTPException(404, "no such file in this run")
    if not _is_served(name):
        raise missing
    try:  # not blocking: opening a named pipe would wait for its writer
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        raise missing from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise missing
    with open(handle, "rb") as file:
        yield file


def pieces(file: BinaryIO, start: int, count: int) -> Iterator[bytes]:
    """Yield ``count`` bytes of a file from an offset; fewer if it has become shorter."""
    file.seek(start)
    while count > 0 and (piece := file.read(min(_CHUNK, count))):
        count -= len(piece)
        yield piece


def _entries(folder: Path | int) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, except symbolic links."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.is_symlink()]
    except FileNotFoundError:  # no run yet
        return []


def _is_served(name: str) -> bool:
    return PLAIN_NAME.fullmatch(name) is not None and name.endswith(_SERVED)
